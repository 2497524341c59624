"""The orders that a search starts from and has to beat: built-in schedules that fit, and one that always does."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace

from ppedu.core.operations import Action, Entry, Overlap
from ppedu.core.schedule import Schedule
from ppedu.optimizer.problem import B, F, I, Problem, W
from ppedu.schedules import SCHEDULES


def builtins(asked: Problem) -> Iterator[tuple[str, Schedule]]:
    """(name in SCHEDULES, schedule) of those with the stages where they are asked for that keep within the limits.

    Pairs that run as one slot are no orders of single operations, and a backward stays whole where it is to be whole.
    """
    per_rank, rest = divmod(len(asked.rank_of_stage), asked.p)
    for name, build in SCHEDULES.items():
        numbers = {"p": asked.p, "m": asked.m}
        if "v" in inspect.signature(build).parameters:
            if rest:
                continue
            numbers["v"] = per_rank
        try:
            schedule = build(**numbers)
        except ValueError:
            continue  # a schedule that this p, m or v does not suit
        entries = [entry for order in schedule.orders for entry in order]
        fits = schedule.rank_of_stage == asked.rank_of_stage and schedule.chains == 1 and keeps_to(asked, schedule)
        single = not any(isinstance(entry, Overlap) for entry in entries)
        whole = all(part.kind in (F, B) for entry in entries for part in entry.actions)
        if fits and single and (asked.split or whole):
            yield name, schedule


def one_by_one(asked: Problem) -> Schedule:
    """Microbatch after microbatch: slow, and legal wherever one microbatch fits."""
    orders: list[list[Entry]] = [[] for _ in range(asked.p)]
    for j in range(asked.m):
        for stage, kind in asked.steps:
            orders[asked.rank_of_stage[stage]].append(Action(stage, kind, j))
    return replace(asked.shape, name="one by one", orders=tuple(map(tuple, orders)))


def with_halves(schedule: Schedule) -> Schedule:
    """Each B as its I and W, one after the other. A stage then hears of its gradient a W earlier."""

    def halves(entry: Entry) -> tuple[Entry, ...]:
        if isinstance(entry, Action) and entry.kind is B:
            return Action(entry.stage, I, entry.microbatch), Action(entry.stage, W, entry.microbatch)
        return (entry,)

    orders = tuple(tuple(half for entry in order for half in halves(entry)) for order in schedule.orders)
    return (
        schedule if orders == schedule.orders else replace(schedule, name=f"{schedule.name} in halves", orders=orders)
    )


def in_flight(schedule: Schedule) -> tuple[int, ...]:
    """The most that each rank keeps. A rank's own order decides it, whatever the operations take: it holds in every run."""
    peaks = []
    for order in schedule.orders:
        count = peak = 0
        for part in (part for entry in order for part in entry.actions):
            count += (part.kind is F) - (part.kind in (B, W))
            peak = max(peak, count)
        peaks.append(peak)
    return tuple(peaks)


def keeps_to(asked: Problem, schedule: Schedule) -> bool:
    """No rank keeps more than it may."""
    return asked.limits is None or all(n <= limit for n, limit in zip(in_flight(schedule), asked.limits, strict=True))
