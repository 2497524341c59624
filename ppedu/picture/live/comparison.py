"""explore_compare(): two or three schedules on one time axis, at the same costs; their memory, and what a budget affords."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import traitlets
from traitlets import Int, List, Unicode

from ppedu.core.format import joined, number, percent
from ppedu.core.schedule import Schedule
from ppedu.core.timeline import Timeline
from ppedu.picture.live import assets
from ppedu.picture.live.controls import LiveView
from ppedu.picture.live.features import named
from ppedu.picture.live.memory_budget import BUDGET, Afford, afford
from ppedu.picture.live.settings import Settings, check_shape

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
    rows: List[Any] = List().tag(sync=True)
    verdict: List[Any] = List(Unicode()).tag(sync=True)

    CHECKS = {  # noqa: RUF012 - a table of the class
        **LiveView.CHECKS,
        "schedules": lambda view, value: view._check_schedules(value),
        "budget": lambda view, value: None if value is None else BUDGET.check("budget", value),
    }

    def __init__(self, schedules: Sequence[str | Schedule] = ("gpipe", "1f1b"), **given: Any) -> None:
        names, orders = named(schedules) if isinstance(schedules, list | tuple) else (schedules, {})
        self._orders = orders
        self._check_schedules(names)  # before p, which is asked of each of them
        super().__init__(orders, schedules=names, **given)

    @traitlets.validate("schedules", "budget")
    def _validate_more(self, proposal: Any) -> Any:
        return self._validate(proposal)

    @property
    def settings(self) -> tuple[Settings, ...]:
        """The position of the controls, one for each schedule."""
        return self._settings()

    def _chosen(self) -> Sequence[str]:
        return self.schedules

    def _check_schedules(self, value: object) -> list[str]:
        """Two or three different names; orders of one's own have the same p and m."""
        names = [self._check_name(name) for name in value] if isinstance(value, list | tuple) else []
        if not FEWEST <= len(names) <= MOST or len(set(names)) < len(names):
            raise ValueError(
                f"schedules is a list of {FEWEST} or {MOST} different names or Schedules, to be compared: got {value!r:.80}"
            )
        own = [self._orders[name].schedule for name in names if name in self._orders]
        if len({(one.num_ranks, one.num_microbatches) for one in own}) > 1:
            labels = joined(one.label for one in own)
            raise ValueError(f"orders of one's own are compared at the same p and m: got {labels}")
        if own:
            check_shape("p", own[0].num_ranks, [self._orders.get(name, name) for name in names])
        return names

    def _fixed(self) -> dict[str, Any]:
        return {**super()._fixed(), "budget": asdict(BUDGET)}

    def _key(self) -> Any:
        return *super()._key(), self.budget

    def _say(self, settings: Sequence[Settings], fresh: bool) -> dict[str, Any]:
        budget, sized = self.budget, any(one.size != 1 for one in settings)
        predicted = [one.predicted() for one in settings]
        self.rows = [_row(t, budget, sized) for t in predicted]
        self.verdict = [verdict(predicted)]
        if budget is not None:
            afforded = [afford(one, budget) for one in settings]
            self.rows = [{**row, "afford": a.text, "each": a.pace} for row, a in zip(self.rows, afforded, strict=True)]
            self.verdict.append(budget_verdict(predicted, afforded, budget))
        return {"budget": budget, "activations": sized}


def _row(t: Timeline, budget: int | None, sized: bool) -> dict[str, Any]:
    """sized: stages are of different size, and what is in flight is counted by it."""
    most = max(t.peak_activations)
    return {
        "name": t.schedule.name,
        "makespan": t.makespan,
        "time": number(t.makespan),
        "bubble": percent(t.bubble_fraction),
        "peak": most,
        "most": number(most),
        "stages": _stages(t) if sized else "",
        "weights": "weights: 2 copies" if t.schedule.chains == 2 else "",
        "over": budget is not None and most > budget,
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
    order = sorted(zip(times, names, strict=True))
    slowest_last = "Makespan: " + ", ".join(f"{name} {number(one)}" for one, name in order)
    time = f"The same makespan, {number(times[0])}" if same_time else slowest_last
    sized = any(t.schedule.stage_size != 1 for t in timelines)
    if len(set(peaks)) == 1:
        held = f"a rank holds up to {number(peaks[0])}" + (f" {_of(sized, peaks[0])}" if sized else "")
        return f"{time}, and the same memory: {held}." if same_time else f"{time}; {held} with each."
    each = [f"{number(peak)} with {name}" for peak, name in zip(peaks, names, strict=True)]
    each[0] = f"{number(peaks[0])} {_of(sized, peaks[0])} with {names[0]}"
    return f"{time}; {'other memory: ' if same_time else ''}a rank holds up to {', '.join(each)}."


def _of(sized: bool, count: float) -> str:
    """What memory is counted in."""
    return f"activation{'s' * (count != 1)} of 1/p of the model" if sized else f"microbatch{'es' * (count != 1)}"


def budget_verdict(timelines: Sequence[Timeline], afforded: Sequence[Afford], budget: int) -> str:
    """What each schedule makes of the budget: how many microbatches, and so how much time each of them takes."""
    said = [f"{t.schedule.name} affords {one.text}, {one.pace}" for t, one in zip(timelines, afforded, strict=True)]
    sized = any(t.schedule.stage_size != 1 for t in timelines)
    return f"With room for {budget} {_of(sized, budget) if sized else 'in flight'}: {'; '.join(said)}."
