"""Predicts when each operation of a schedule runs, from what operations and messages cost."""

from __future__ import annotations

from ppedu.core.costs import Costs
from ppedu.core.replay import Times, replay, walk
from ppedu.core.schedule import Schedule
from ppedu.core.spans import Span
from ppedu.core.timeline import Timeline
from ppedu.core.validate import refusal

_UNIT_COSTS = Costs()


def simulate(schedule: Schedule, costs: Costs = _UNIT_COSTS) -> Timeline:
    """Run every rank's order strictly, all ranks starting at 0, and say when each entry runs.

    An entry starts when its rank is free and each operation that it needs has ended, plus `costs.transfer` where
    that ran on another rank. Times are in the unit of `costs`. Linear in the number of operations.

    >>> from ppedu.schedules import gpipe, one_f_one_b
    >>> simulate(gpipe(p=4, m=8), Costs(forward=1, backward=2, transfer=1)).makespan
    39.0
    >>> simulate(one_f_one_b(p=4, m=8), Costs(forward=1, backward=2, transfer=1)).makespan
    49.0

    Raises ScheduleError, with every reason, for a schedule that cannot run, and ValueError for per-stage costs that
    are not one for each stage.
    """
    if not isinstance(schedule, Schedule):
        raise TypeError(f"a schedule is what ppedu.gpipe(p=4, m=8) and the like return: schedule={schedule!r:.80}")
    if not isinstance(costs, Costs):
        raise TypeError(f"costs is ppedu.Costs(forward=..., backward=...): costs={costs!r:.80}")
    costs.check(schedule)
    times, found = replay(schedule, costs)
    if found:
        raise refusal(schedule, found)
    return _timeline(schedule, costs, times)


def until_stuck(schedule: Schedule, costs: Costs) -> Timeline:
    """What runs of a schedule that cannot be finished, as far as each rank gets. Every operation's stage must exist."""
    return _timeline(schedule, costs, walk(schedule, costs))


def _timeline(schedule: Schedule, costs: Costs, times: Times) -> Timeline:
    spans = tuple(
        Span(entry, rank, start, end)
        for rank, (order, lane) in enumerate(zip(schedule.orders, times, strict=True))
        for entry, (start, end) in zip(order, lane, strict=False)  # the lane ends where the rank is stuck
    )
    return Timeline(schedule, spans, f"predicted, {costs}", costs.unit)
