"""explore_compare(): two or three schedules on one time axis, at the same costs; their memory, and what a budget affords."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import traitlets
from traitlets import Bool, Int, List, Unicode

from ppedu.core.simulate import simulate
from ppedu.core.timeline import Timeline
from ppedu.picture.labels import caption, title
from ppedu.picture.live import assets
from ppedu.picture.live.controls import LiveView
from ppedu.picture.live.memory_budget import Afford, afford
from ppedu.picture.live.real_run import PACE, Job
from ppedu.picture.live.settings import RANGES, Settings, Which, check_name, words
from ppedu.picture.scene import Track

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ppedu.runtime.run import Run

FEWEST, MOST = 2, 3


class Comparison(LiveView):
    """Two or three schedules. `schedules`, `budget` and what `explore` has (p, m, ratio, ...) are its controls.

    budget: activations in flight that a rank has room for, or None for no limit.
    rows: what the table shows of each schedule. verdict: what it comes to, in sentences.
    """

    _esm = Unicode(assets.module("compare.js")).tag(sync=True)
    _css = Unicode(assets.style()).tag(sync=True)

    schedules = List(Unicode(), ["gpipe", "1f1b"]).tag(sync=True)
    budget = Int(None, allow_none=True).tag(sync=True)
    overlay = Bool(True).tag(sync=True)
    rows: List[Any] = List().tag(sync=True)
    verdict: List[Any] = List(Unicode()).tag(sync=True)
    measured = Bool(False).tag(sync=True)

    CHECKS = {  # noqa: RUF012 - a table of the class
        **LiveView.CHECKS,
        "schedules": lambda view, value: check_schedules(value),
        "budget": lambda view, value: None if value is None else RANGES["budget"].check("budget", value),
        "overlay": lambda view, value: bool(value),
    }

    def __init__(self, **given: Any) -> None:
        self._measured: dict[Settings, Timeline] = {}
        if "schedules" in given:
            check_schedules(given["schedules"])  # before p, which is asked of each of them
        super().__init__(**given)

    @traitlets.validate("schedules", "budget", "overlay")
    def _validate_more(self, proposal: Any) -> Any:
        return self._validate(proposal)

    @property
    def settings(self) -> tuple[Settings, ...]:
        """The position of the controls, one for each schedule."""
        return self._settings()

    def _names(self) -> Sequence[Which]:
        return self.schedules

    @property
    def pairs(self) -> tuple[tuple[Timeline, ...], ...]:
        """What is drawn of each schedule: the predicted timeline, and the measured one where all were run for real."""
        if not (self.overlay and self._all_measured):
            return tuple((settings.predicted(),) for settings in self.settings)
        return tuple(
            (simulate(settings.built()[0], settings.costs(PACE, "s")), self._measured[settings])
            for settings in self.settings
        )

    @property
    def _all_measured(self) -> bool:
        return all(settings in self._measured for settings in self.settings)

    def static(self, **how: Any) -> Axes:
        """The same picture by matplotlib (`ppedu.plot_compare`, which takes `how`): for the cell above the view."""
        from ppedu.picture.paper import plot_compare

        how = {"in_flight": self.in_flight, "phases": self.phases, "critical_path": self.critical_path, **how}
        return plot_compare([t for pair in self.pairs for t in pair], **how)

    def _key(self) -> Any:
        return self.settings, self.budget, self.overlay and self._all_measured

    def _compute(self, key: Any, fresh: bool) -> None:
        settings, budget, overlaid = key
        pairs, first = self.pairs, settings[0]
        sized = any(one.size != 1 for one in settings)
        predicted = [one.predicted() for one in settings]
        afforded = [afford(one, budget) for one in settings]
        self.measured = self._all_measured
        self.rows = [_row(t, gets, budget, sized) for t, gets in zip(predicted, afforded, strict=True)]
        self.verdict = [verdict(predicted), *budget_verdict(predicted, afforded, budget)]
        tracks = [
            Track(
                t, group=group, word=t.word if overlaid else "", title=title(pair) if n == 0 else (),
                transfer=(0.0 if n else first.transfer * (PACE if overlaid else 1.0)),
                structure=None if n else settings[group].built()[1],
            )
            for group, pair in enumerate(pairs)
            for n, t in enumerate(pair)
        ]  # fmt: skip
        measured = [pair[1] for pair in pairs if len(pair) == 2]
        said = caption(first.p, first.m, f"predicted, {words(settings)}", measured)
        self._draw(tracks, caption=said, budget=budget, activations=sized)

    def _jobs(self) -> list[Job]:
        return [Job(one.built()[0], one.costs(PACE, "s")) for one in self.settings]

    def _ran(self, key: Any, runs: Sequence[Run]) -> None:
        self._measured.update(zip(key[0], (run.timeline for run in runs), strict=True))
        if key[0] == self.settings:
            self.overlay = True
        self._shown = None  # there is more to show at the same settings
        self._refresh(fresh=False)

    def _said(self) -> str:
        return "live comparison of " + "; ".join(repr(t) for pair in self.pairs for t in pair)


def check_schedules(value: object) -> list[str]:
    """Two or three different names of SCHEDULES."""
    names = [check_name(name) for name in value] if isinstance(value, list | tuple) else []
    if not FEWEST <= len(names) <= MOST or len(set(names)) < len(names):
        raise ValueError(f"schedules are {FEWEST} or {MOST} different names, to be compared: got {value!r}")
    return names


def _row(t: Timeline, gets: Afford, budget: int | None, sized: bool) -> dict[str, Any]:
    """sized: stages are of different size, and what is in flight is counted by it."""
    most = max(t.peak_activations)
    return {
        "name": t.schedule.name,
        "makespan": t.makespan,
        "time": f"{t.makespan:.4g}",
        "bubble": f"{100 * t.bubble_fraction:.1f} %",
        "peak": most,
        "most": f"{most:.4g}",
        "stages": _stages(t) if sized else "",
        "weights": "weights: 2 copies" if t.schedule.chains == 2 else "",
        "over": budget is not None and most > budget,
        "afford": gets.text,
        "each": gets.pace,
    }


def _stages(t: Timeline) -> str:
    """What is in flight, by count: '11 in flight, each 1/2'."""
    parts = t.schedule.chain_length // t.schedule.num_ranks
    return f"{max(t.peak_in_flight)} in flight" + (f", each 1/{parts}" if parts > 1 else "")


def verdict(timelines: Sequence[Timeline]) -> str:
    """What the comparison comes to: is it time, is it memory?

    >>> from ppedu import gpipe, one_f_one_b, simulate
    >>> verdict([simulate(gpipe(p=4, m=8)), simulate(one_f_one_b(p=4, m=8))])
    'The same makespan, 22; other memory: a rank holds up to 8 microbatches with GPipe, 4 with 1F1B.'
    """
    times = [t.makespan for t in timelines]
    peaks = [max(t.peak_activations) for t in timelines]
    names = [t.schedule.name for t in timelines]
    same_time = max(times) - min(times) <= 1e-9 * max(times)
    if same_time:
        time = f"The same makespan, {times[0]:.4g}"
    else:
        order = sorted(zip(times, names, strict=True))
        time = "Makespan: " + ", ".join(f"{name} {one:.4g}" for one, name in order)
    if any(t.schedule.chain_length != t.schedule.num_ranks for t in timelines):
        what = ("activations of 1/p of the model", "activation of 1/p of the model")
    else:
        what = ("microbatches", "microbatch")
    if len(set(peaks)) == 1:
        unit = "" if what[1] == "microbatch" else f" {what[peaks[0] == 1]}"
        if same_time:
            return f"{time}, and the same memory: a rank holds up to {peaks[0]:.4g}{unit}."
        return f"{time}; a rank holds up to {peaks[0]:.4g}{unit} with each."
    held = [f"{peak:.4g} with {name}" for peak, name in zip(peaks, names, strict=True)]
    held[0] = held[0].replace(" with", f" {what[peaks[0] == 1]} with", 1)
    return f"{time}; {'other memory: ' if same_time else ''}a rank holds up to {', '.join(held)}."


def budget_verdict(timelines: Sequence[Timeline], afforded: Sequence[Afford], budget: int | None) -> list[str]:
    """What each schedule makes of the budget: how many microbatches, and so how much time each of them takes."""
    if budget is None:
        return []
    said = [f"{t.schedule.name} affords {gets.text}, {gets.pace}" for t, gets in zip(timelines, afforded, strict=True)]
    sized = any(t.schedule.chain_length != t.schedule.num_ranks for t in timelines)
    what = f"activation{'s' * (budget != 1)} of 1/p of the model" if sized else "in flight"
    return [f"With room for {budget} {what}: {'; '.join(said)}."]
