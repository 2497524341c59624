"""Orders made by a simple rule, in no time: where a search starts when no built-in schedule fits, or none fits well."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from ppedu.core.operations import Action, F, W
from ppedu.core.schedule import Schedule
from ppedu.optimizer.problem import Problem, Step

MOST = 400_000
"""Above this many steps to look at (operations x steps of a microbatch) the rules take seconds, and have to be in time."""


def greedy(asked: Problem, until: float = math.inf) -> Iterator[Schedule]:
    """Orders in which a rank never idles when it could run something; of several things, what the rule puts first.

    Gradients come first, as other ranks wait for them. Then forwards or weight gradients; and of several forwards the
    one that is furthest on its way, or the least far. Rules that get stuck in the limits yield nothing.

    until: of time.perf_counter(). A large problem's rules that are not done by then yield nothing.
    """
    if len(asked.steps) ** 2 * asked.m <= MOST:
        until = math.inf  # in no time, and always the same
    several = len(asked.rank_of_stage) > asked.p
    for forwards_first, furthest_first in product((True, False), (True, False) if several else (True,)):
        order = {F: 1 if forwards_first else 2, W: 2 if forwards_first else 1}
        rule = {
            (stage, kind): (order.get(kind, 0), -stage if kind is F and furthest_first else stage)
            for stage, kind in asked.steps
        }
        found = _run(asked, rule, until)
        if found is not None:
            yield found


def _run(asked: Problem, rule: dict[Step, tuple[int, int]], until: float) -> Schedule | None:
    """In order of time: of all that can run next, the earliest runs."""
    links, rank_of = asked.links(), asked.rank_of_stage
    ends: dict[Step, list[float]] = {step: [] for step in asked.steps}
    free, kept = [0.0] * asked.p, [0] * asked.p
    orders: list[list[Action]] = [[] for _ in range(asked.p)]
    room = _room(asked)
    for _ in range(len(asked.steps) * asked.m):
        able = []
        for step, done in ends.items():
            j, rank = len(done), rank_of[step[0]]
            if j == asked.m or any(len(ends[d]) <= j for d, _ in links[step]):
                continue
            if step[1] is F and kept[rank] >= room[step[0]]:
                continue
            start = max([free[rank], *(ends[d][j] + delay for d, delay in links[step])])
            able.append((start, rule[step], step))
        if not able or time.perf_counter() > until:
            return None
        start, _, step = min(able)
        stage, kind = step
        rank = rank_of[stage]
        orders[rank].append(Action(stage, kind, len(ends[step])))
        free[rank] = start + asked.duration(step)
        kept[rank] += (kind is F) - (kind is asked.frees)
        ends[step].append(free[rank])
    return replace(asked.shape, orders=tuple(map(tuple, orders)))


def _room(asked: Problem) -> list[float]:
    """How much a rank may keep before a forward of each stage: there must be room for its later stages too."""
    if asked.limits is None:
        return [float("inf")] * len(asked.rank_of_stage)
    stages = range(len(asked.rank_of_stage))
    later = [asked.rank_of_stage[s + 1 :].count(asked.rank_of_stage[s]) for s in stages]
    return [float(asked.limits[asked.rank_of_stage[s]] - later[s]) for s in stages]
