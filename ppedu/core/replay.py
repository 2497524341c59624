"""Runs the orders of all ranks, strictly: when each entry runs, or why it cannot. `simulate` and `violations` both ask here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ppedu.core.costs import Costs
from ppedu.core.deadlock import deadlocks
from ppedu.core.operations import Action, B, Entry, F, I, Kind, Overlap, W
from ppedu.core.schedule import Schedule, needs
from ppedu.core.structure import Violation, faults

Times: TypeAlias = list[list[tuple[float, float]]]
"""For each rank (start, end) of its entries, as far as it gets."""


def replay(schedule: Schedule, costs: Costs) -> tuple[Times, tuple[Violation, ...]]:
    """When each entry runs, and every reason why that is not possible, if it is not.

    What is wrong with an order by itself comes first; only without that can ranks be found to wait for each other.
    """
    found = faults(schedule)
    if found:
        return [], found
    times = walk(schedule, costs)
    return times, tuple(deadlocks(schedule, [len(done) for done in times]))


def walk(schedule: Schedule, costs: Costs) -> Times:
    """An entry starts when its rank is free and all that it needs is there. Times end early where ranks are stuck."""
    steps = _steps(schedule, costs)
    ended: list[float | None] = [None] * (3 * schedule.num_stages * schedule.num_microbatches)
    times: Times = [[] for _ in schedule.orders]
    waiting: dict[int, list[int]] = {}  # result -> the ranks that wait for it
    ready = list(reversed(range(schedule.num_ranks)))
    while ready:
        rank = ready.pop()
        order, done = schedule.orders[rank], times[rank]
        free = done[-1][1] if done else 0.0
        for slot in range(len(done), len(order)):
            entry = order[slot]
            start, missing = _start(entry, free, steps, ended)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            if isinstance(entry, Overlap):
                free = start + costs.duration(entry)
            else:
                free = start + steps[entry.stage][entry.kind].duration
            done.append((start, free))
            for part in entry.actions:
                result = steps[part.stage][part.kind].result + part.microbatch
                ended[result] = free
                if result in waiting:
                    ready += waiting.pop(result)
    return times


_RESULT = {F: 0, B: 1, I: 1, W: 2}  # what a kind yields: B and I both give the gradient that the stage before needs


@dataclass(frozen=True, slots=True)
class _Step:
    """What a stage's operations of one kind have in common. Results are numbered: `result` + microbatch."""

    result: int
    needs: tuple[tuple[int, float], ...]  # (result, how long its tensor travels)
    duration: float


def _start(
    entry: Entry, free: float, steps: list[dict[Kind, _Step]], ended: list[float | None]
) -> tuple[float, int | None]:
    """When an entry can start, or a result that is not there yet."""
    start = free
    for part in entry.actions:
        for result, delay in steps[part.stage][part.kind].needs:
            end = ended[result + part.microbatch]
            if end is None:
                return start, result + part.microbatch
            if end + delay > start:
                start = end + delay
    return start, None


def _steps(schedule: Schedule, costs: Costs) -> list[dict[Kind, _Step]]:
    m, rank_of = schedule.num_microbatches, schedule.rank_of_stage

    def step(stage: int, kind: Kind) -> _Step:
        needed = tuple(
            ((other * 3 + _RESULT[kinds[0]]) * m, 0.0 if rank_of[other] == rank_of[stage] else costs.transfer)
            for other, kinds in needs(stage, kind, schedule)
        )
        return _Step((stage * 3 + _RESULT[kind]) * m, needed, costs.duration(Action(stage, kind, 0)))

    return [{kind: step(stage, kind) for kind in Kind} for stage in range(schedule.num_stages)]
