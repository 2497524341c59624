"""explore() of what is there already: a timeline, or a real run beside its prediction. Of these nothing can be moved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import traitlets
from traitlets import Bool, List, Unicode

from ppedu.core.costs import Costs
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.core.timeline import Timeline
from ppedu.picture.labels import caption, title
from ppedu.picture.live import assets
from ppedu.picture.live.figures import read_off
from ppedu.picture.live.widget import View
from ppedu.picture.scene import Track

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@runtime_checkable
class Ran(Protocol):
    """What is looked at of a run, of `ppedu.train` or of `ppedu.train_with_torch`."""

    @property
    def schedule(self) -> Schedule: ...
    @property
    def losses(self) -> tuple[float, ...]: ...
    @property
    def timelines(self) -> tuple[Timeline, ...]: ...
    @property
    def pace(self) -> Costs | None: ...


class Recorded(View):
    """A timeline, or the last one of a run.

    figures: the rows beside the picture. overlay: show the prediction that a run has beside it.
    """

    _esm = Unicode(assets.module("explore.js")).tag(sync=True)
    _css = Unicode(assets.style()).tag(sync=True)

    overlay = Bool(True).tag(sync=True)
    figures: List[Any] = List().tag(sync=True)
    measured = Bool(False).tag(sync=True)
    """There is a measurement and something to lay beside it."""

    CHECKS = {"overlay": lambda view, value: bool(value)}  # noqa: RUF012 - a table of the class

    def __init__(self, shown: Timeline | Ran) -> None:
        self._timeline = shown if isinstance(shown, Timeline) else _last(shown)
        self._beside: Timeline | None = None
        self._transfer: float | None = None
        if not isinstance(shown, Timeline):
            self._beside, self._transfer = _prediction(shown, self._timeline)
        super().__init__()

    @traitlets.validate("overlay")
    def _validate_overlay(self, proposal: Any) -> Any:
        return self._validate(proposal)

    @property
    def timelines(self) -> tuple[Timeline, ...]:
        """What is drawn: the timeline, or a run's prediction and its last timeline."""
        return (self._beside, self._timeline) if self._beside and self.overlay else (self._timeline,)

    def static(self, **how: Any) -> Axes:
        """The same picture by matplotlib (`ppedu.plot_timeline`, which takes `how`): for the cell above the view."""
        from ppedu.picture.paper import plot_timeline

        how = {"in_flight": self.in_flight, "phases": self.phases, "critical_path": self.critical_path, **how}
        return plot_timeline(*self.timelines, **how)

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
        timelines, t = self.timelines, self._timeline
        self.measured = self._beside is not None
        self.figures = [asdict(row) for row in read_off(t, timelines[0] if len(timelines) > 1 else None)]
        tracks = [
            Track(
                one, word=one.word if len(timelines) > 1 else "", title=title(timelines) if n == 0 else (),
                transfer=self._transfer,
            )
            for n, one in enumerate(timelines)
        ]  # fmt: skip
        unit = f"({t.unit})" if t.unit else "(units of F)" if t.in_forwards else "(units)"
        said = caption(t.schedule.num_ranks, t.schedule.num_microbatches, timelines[0].provenance, timelines[1:])
        self._draw(tracks, caption=said, label=f"time {unit}")

    def _said(self) -> str:
        return "live view of " + "; ".join(map(repr, self.timelines))


def _last(run: Ran) -> Timeline:
    if not run.timelines:
        raise ValueError("this run ended before its first step was measured: it has no timeline to show")
    return run.timelines[-1]


def _prediction(run: Ran, t: Timeline) -> tuple[Timeline, float]:
    """What its pace comes to, or, without one, what each stage's operations took; and what messages take in it."""
    if run.pace is None:
        said = "predicted from the medians of what each stage's operations took"
        return replace(simulate(t.schedule, t.costs()), provenance=said), 0.0
    pace = replace(run.pace, unit=t.unit)
    return simulate(t.schedule, pace), pace.transfer
