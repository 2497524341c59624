"""explore(): one schedule, with its figures, their formulas, and what the last move did to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import traitlets
from traitlets import Bool, Dict, List, Unicode

from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.core.timeline import Timeline
from ppedu.picture.labels import caption, title
from ppedu.picture.live import assets
from ppedu.picture.live.controls import LiveView
from ppedu.picture.live.figures import Figure, changes, figures
from ppedu.picture.live.real_run import PACE, Job
from ppedu.picture.live.settings import OWN, Order, Settings, Which, check_name, words
from ppedu.picture.scene import Track

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ppedu.runtime.run import Run


GIVEN = ""
"""What stands in `schedule` for the order that was given."""


class Explorer(LiveView):
    """One schedule. `schedule`, `p`, `m`, `v`, `ratio`, `w_share`, `overlap`, `transfer`, `slow_stage` and `slow_factor`
    are its controls. Of an order that was given `schedule` is "", and p and m are what they are in it.

    figures: the rows beside the picture. moved: what the last move changed, as {what, before, after}.
    overlay: lay the measured timeline over the predicted one, where these settings were run for real.
    """

    _esm = Unicode(assets.module("explore.js")).tag(sync=True)
    _css = Unicode(assets.style()).tag(sync=True)

    schedule = traitlets.Any("1f1b").tag(sync=True)
    overlay = Bool(True).tag(sync=True)
    figures: List[Any] = List().tag(sync=True)
    moved = Dict().tag(sync=True)
    measured = Bool(False).tag(sync=True)

    CHECKS = {  # noqa: RUF012 - a table of the class
        **LiveView.CHECKS,
        "schedule": lambda view, value: value if value == GIVEN and view._given else check_name(value),
        "overlay": lambda view, value: bool(value),
    }

    def __init__(self, schedule: str | Schedule = "1f1b", **given: Any) -> None:
        self._given = Order(schedule) if isinstance(schedule, Schedule) else None
        if self._given:
            shape = {"p": self._given.schedule.num_ranks, "m": self._given.schedule.num_microbatches}
            schedule, given = GIVEN, shape | given
        self._base: tuple[Settings, tuple[Figure, ...]] | None = None  # where the gesture began
        self._now: tuple[Settings, tuple[Figure, ...]] | None = None
        self._measured: dict[Settings, Timeline] = {}
        super().__init__(schedule=schedule, **given)

    @traitlets.validate("schedule", "overlay")
    def _validate_name(self, proposal: Any) -> Any:
        return self._validate(proposal)

    @property
    def settings(self) -> Settings:
        """The position of the controls."""
        return self._settings()[0]

    def _names(self) -> Sequence[Which]:
        return (self._given if self.schedule == GIVEN and self._given else self.schedule,)

    def _choices(self) -> dict[str, Which]:
        return ({GIVEN: self._given} if self._given else {}) | super()._choices()

    def _fixed(self) -> dict[str, Any]:
        fixed = super()._fixed()
        if self._given:
            fixed["names"][GIVEN] += " (as given)"
        return fixed

    @property
    def timelines(self) -> tuple[Timeline, ...]:
        """What is drawn: the predicted timeline, or the predicted and the measured one, in seconds."""
        settings = self.settings
        measured = self._measured.get(settings) if self.overlay else None
        if measured is None:
            return (settings.predicted(),)
        return simulate(settings.built()[0], settings.costs(PACE, "s")), measured

    def static(self, **how: Any) -> Axes:
        """The same picture by matplotlib (`ppedu.plot_timeline`, which takes `how`): for the cell above the view."""
        from ppedu.picture.paper import plot_timeline

        how = {"in_flight": self.in_flight, "phases": self.phases, "critical_path": self.critical_path, **how}
        return plot_timeline(*self.timelines, **how)

    def _key(self) -> Any:
        settings = self.settings
        return settings, self.overlay and settings in self._measured

    def _compute(self, key: Any, fresh: bool) -> None:
        settings, overlaid = key
        timelines = self.timelines
        predicted = settings.predicted()
        found = figures(settings, predicted)
        if fresh or self._base is None:
            self._base = self._now or (settings, found)
        self._now = settings, found
        self._tell_changes(*self._base)
        self.measured = settings in self._measured
        unit = PACE if overlaid else 1.0
        tracks = [
            Track(
                t, word=t.word if overlaid else "", title=title(timelines) if n == 0 else (),
                transfer=settings.transfer * unit if n == 0 else 0.0, structure=settings.built()[1] if n == 0 else None,
            )
            for n, t in enumerate(timelines)
        ]  # fmt: skip
        self._draw(tracks, caption=caption(settings.p, settings.m, f"predicted, {words([settings])}", timelines[1:]))

    def _tell_changes(self, before: Settings, old: Sequence[Figure]) -> None:
        settings, new = self._now or (before, old)
        told = changes(old, new)
        rows = []
        for row in new:
            was, way = told.get(row.key, ("", ""))
            rows.append({**asdict(row), "before": was, "way": way})
        self.figures = rows
        self.moved = _difference(before, settings)

    def _jobs(self) -> list[Job]:
        return [Job(self.settings.built()[0], self.settings.costs(PACE, "s"))]

    def _ran(self, key: Any, runs: Sequence[Run]) -> None:
        self._measured[key[0]] = runs[0].timeline
        if key[0] == self.settings:
            self.overlay = True
        self._shown = None  # there is more to show at the same settings
        self._refresh(fresh=False)

    def _said(self) -> str:
        return "live view of " + "; ".join(map(repr, self.timelines))


_SAID = {
    "schedule": "schedule",
    "p": "p",
    "m": "m",
    "v": "v",
    "ratio": "B : F",
    "w_share": "W of B",
    "overlap": "F&B",
    "transfer": "transfer",
    "slow_stage": "slow stage",
    "slow_factor": "slow-down",
}


def _difference(before: Settings, after: Settings) -> dict[str, str]:
    """The controls that two positions differ in, as one text each."""

    def shown(name: str) -> bool:
        """A control that one of two schedules lacks has not been moved."""
        return name not in OWN or name in before.features.controls & after.features.controls

    changed = [name for name in _SAID if getattr(before, name) != getattr(after, name) and shown(name)]

    def text(settings: Settings, name: str) -> str:
        value = getattr(settings, name)
        if name == "schedule":
            return settings.features.name
        return "none" if value is None else f"{value:g}"

    if not changed:
        return {}
    return {
        "what": ", ".join(_SAID[name] for name in changed),
        "before": ", ".join(text(before, name) for name in changed),
        "after": ", ".join(text(after, name) for name in changed),
    }
