"""explore() of what is there already: a timeline, or a real run beside its prediction. Of these nothing can be moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from traitlets import List, Unicode

from ppedu.core.simulate import simulate
from ppedu.core.timeline import Timeline
from ppedu.picture.live import assets
from ppedu.picture.live.figures import read_off
from ppedu.picture.live.widget import View
from ppedu.runtime.run import Run


class Recorded(View):
    """A timeline, or the last one of a run.

    figures: the rows beside the picture. overlay: show the prediction that a run has beside it. measured: it has one.
    """

    _esm = Unicode(assets.module("explore.js")).tag(sync=True)
    _css = Unicode(assets.style()).tag(sync=True)

    figures: List[Any] = List().tag(sync=True)

    def __init__(self, shown: Timeline | Run) -> None:
        self._timeline = shown if isinstance(shown, Timeline) else _last(shown)
        self._beside: Timeline | None = None
        self._transfer: float | None = None
        if not isinstance(shown, Timeline):
            self._beside, self._transfer = _prediction(shown, self._timeline)
        super().__init__()

    @property
    def pairs(self) -> tuple[tuple[Timeline, ...], ...]:
        """What is drawn: the timeline, or a run's prediction and its last timeline."""
        return ((self._beside, self._timeline) if self._beside and self.overlay else (self._timeline,),)

    def _fixed(self) -> dict[str, Any]:
        return {**super()._fixed(), "overlay": "predicted"}

    def _commands(self) -> dict[str, Callable[[dict[str, Any]], None]]:
        return {name: use for name, use in super()._commands().items() if name in ("set", "details")}

    def _why_not_real(self) -> str:
        return (
            "These times are there already. ppedu.explore(its.schedule) is a view that can run the schedule for real."
        )

    def _key(self) -> Any:
        return self.overlay

    def _compute(self, key: Any, fresh: bool) -> None:
        (timelines,), t = self.pairs, self._timeline
        self.measured = self._beside is not None
        self.figures = [asdict(row) for row in read_off(t, timelines[0] if len(timelines) > 1 else None)]
        self._draw([timelines], self._transfer)


def _last(run: Run) -> Timeline:
    if not run.timelines:
        raise ValueError("this run ended before its first step was measured: it has no timeline to show")
    return run.timelines[-1]


def _prediction(run: Run, t: Timeline) -> tuple[Timeline, float]:
    """What its pace comes to, or, without one, what each stage's operations took; and what messages take in it."""
    if run.pace is None:
        said = "predicted from the medians of what each stage's operations took"
        return replace(simulate(t.schedule, t.costs()), provenance=said), 0.0
    pace = replace(run.pace, unit=t.unit)
    return simulate(t.schedule, pace), pace.transfer
