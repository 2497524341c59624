"""The orders that a search starts from and has to beat: built-in schedules that fit, and one that always does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from ppedu.core.operations import Action, B, Entry, I, Overlap, W
from ppedu.core.schedule import Schedule
from ppedu.core.validate import violations
from ppedu.optimizer.problem import Problem
from ppedu.schedules import SCHEDULES, takes_v


def builtins(asked: Problem) -> Iterator[tuple[str, Schedule]]:
    """(name in SCHEDULES, schedule) of those that are an answer."""
    per_rank = len(asked.rank_of_stage) // asked.p
    for name, build in SCHEDULES.items():
        with suppress(ValueError):  # a schedule that this p, m or v does not suit
            schedule = build(asked.p, asked.m, per_rank) if takes_v(build) else build(asked.p, asked.m)
            if not why_not(asked, schedule):
                yield name, schedule


def why_not(asked: Problem, schedule: Schedule) -> str:
    """Why a schedule is no answer to this problem, in a sentence; "" where it is one."""
    p, m = schedule.num_ranks, schedule.num_microbatches
    if (p, m) != (asked.p, asked.m):
        return f"it has p={p} ranks and m={m} microbatches, and p={asked.p} and m={asked.m} are asked for"
    if schedule.chains != 1:
        return f"it has {schedule.chains} chains of stages, and one is searched"
    if schedule.rank_of_stage != asked.rank_of_stage:
        return f"its rank_of_stage is {schedule.rank_of_stage}, and {asked.rank_of_stage} is asked for"
    pair = next((entry for order in schedule.orders for entry in order if isinstance(entry, Overlap)), None)
    if pair is not None:
        return f"it runs {schedule.short(pair)} as one, and orders of single operations are searched"
    if not schedule.kinds & {B, W}:
        return "it has no backward"
    if not asked.split and schedule.kinds & {I, W}:
        return "it splits backwards into I and W, and split_backward is False"
    if not keeps_to(asked, schedule):
        held, most = (" ".join(map(str, numbers)) for numbers in (schedule.peak_in_flight, asked.limits or ()))
        return f"its ranks have {held} in flight, and memory_limit allows {most}"
    return " ".join(violation.message for violation in violations(schedule)[:1])


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


def keeps_to(asked: Problem, schedule: Schedule) -> bool:
    """No rank keeps more than it may."""
    limits = asked.limits
    return limits is None or all(n <= most for n, most in zip(schedule.peak_in_flight, limits, strict=True))
