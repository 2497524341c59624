"""explore(): one schedule, with its figures, their formulas, and what the last move did to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import traitlets
from traitlets import Dict, List, Unicode

from ppedu.core.schedule import Schedule
from ppedu.picture.live import assets
from ppedu.picture.live.controls import LiveView
from ppedu.picture.live.features import named
from ppedu.picture.live.figures import Figure, changes, figures
from ppedu.picture.live.settings import LABELS, OWN, Settings


class Explorer(LiveView):
    """One schedule. `schedule` and what Settings has (p, m, ratio, ...) are its controls. A Schedule that was given stands
    in `schedule` by its name with " (as given)", and p and m are what they are in it.

    figures: the rows beside the picture. moved: what the last move changed, as {what, before, after}.
    """

    _esm = Unicode(assets.module("explore.js")).tag(sync=True)
    _css = Unicode(assets.style()).tag(sync=True)

    schedule = traitlets.Any("1f1b").tag(sync=True)
    figures: List[Any] = List().tag(sync=True)
    moved = Dict().tag(sync=True)

    CHECKS = {  # noqa: RUF012 - a table of the class
        **LiveView.CHECKS,
        "schedule": lambda view, value: view._check_name(value),
    }

    def __init__(self, schedule: str | Schedule = "1f1b", **given: Any) -> None:
        self._base: tuple[Settings, tuple[Figure, ...]] | None = None  # where the gesture began
        self._now: tuple[Settings, tuple[Figure, ...]] | None = None
        (name,), orders = named([schedule])
        super().__init__(orders, schedule=name, **given)

    @traitlets.validate("schedule")
    def _validate_name(self, proposal: Any) -> Any:
        return self._validate(proposal)

    @property
    def settings(self) -> Settings:
        """The position of the controls."""
        return self._settings()[0]

    def _chosen(self) -> Sequence[str]:
        return (self.schedule,)

    def _say(self, all_settings: Sequence[Settings], fresh: bool) -> dict[str, Any]:
        (settings,) = all_settings
        found = figures(settings, settings.predicted())
        if fresh or self._base is None:
            self._base = self._now or (settings, found)
        self._now = settings, found
        before, old = self._base
        told = changes(old, found)
        rows = []
        for row in found:
            was, way = told.get(row.key, ("", ""))
            rows.append({**asdict(row), "before": was, "way": way})
        self.figures = rows
        self.moved = _difference(before, settings)
        return {}


def _difference(before: Settings, after: Settings) -> dict[str, str]:
    """The controls that two positions differ in, as one text each."""

    def changed(name: str) -> bool:
        """A control that one of two schedules lacks has not been moved."""
        there = name not in OWN or name in before.features.controls & after.features.controls
        return there and getattr(before, name) != getattr(after, name)

    def text(settings: Settings, name: str) -> str:
        value = settings.features.name if name == "schedule" else getattr(settings, name)
        return "none" if value is None else value if isinstance(value, str) else f"{value:g}"

    names = [name for name in LABELS if changed(name)]
    if not names:
        return {}
    return {
        "what": ", ".join(LABELS[name] for name in names),
        "before": ", ".join(text(before, name) for name in names),
        "after": ", ".join(text(after, name) for name in names),
    }
