"""What no order can beat: bounds on the makespan that need no search."""

from __future__ import annotations

from ppedu.core.costs import Costs
from ppedu.core.operations import B, F, I, W
from ppedu.optimizer.problem import MemoryLimit, Problem, Step, problem

_UNIT_COSTS = Costs()


def lower_bound(
    p: int,
    m: int,
    costs: Costs = _UNIT_COSTS,
    memory_limit: MemoryLimit = None,
    *,
    split_backward: bool = True,
    rank_of_stage: tuple[int, ...] | None = None,
) -> float:
    """A makespan that no order goes below, in the unit of `costs`. It needs no solver, and may be out of reach.

    The largest of these, with all ranks starting at 0:

    - Work: of any steps that a rank has to do, none can start before the first microbatch has come to one of them, and
      after the last of them a microbatch has still a way to go. In between the rank does all m of each.
      (Carlier, 1982, for one machine: the heads and tails of jobs.)
    - Memory: a rank that may keep c activations, each of them for at least the way from its forward to the end of what
      frees it, keeps m for each of its stages (Little's law). With one stage a rank, its forward j + c waits until
      microbatch j is freed.

    With `split_backward` the bound holds for orders that split no backward, or some, as well.

    >>> lower_bound(4, 8, Costs(forward=1, backward=1), split_backward=False)  # 1F1B reaches it
    22.0
    >>> lower_bound(4, 8, Costs(forward=1, input_grad=1, weight_grad=1))       # ZB-H1 reaches it
    27.0
    >>> lower_bound(4, 8, Costs(forward=1, backward=1), memory_limit=1)        # one microbatch at a time
    52.0

    Raises as `optimize` does.
    """
    return bound_of(problem(p, m, costs, memory_limit, split_backward, rank_of_stage))


def whole_is_cheaper(asked: Problem) -> bool:
    """Some stage's B takes less than its I and W together, so that splitting has a price."""
    stages = range(len(asked.rank_of_stage))
    return asked.split and any(asked.duration((s, B)) < asked.duration((s, I)) + asked.duration((s, W)) for s in stages)


def bound_of(asked: Problem) -> float:
    """`lower_bound` of a checked problem."""
    easier = _relaxed(asked) if whole_is_cheaper(asked) else asked
    heads, tails = heads_and_tails(easier)
    work = (_work(easier, rank, heads, tails) for rank in range(easier.p))
    memory = (_memory(easier, rank, heads, tails) for rank in range(easier.p))
    return max(*work, *memory)


def heads_and_tails(asked: Problem) -> tuple[dict[Step, float], dict[Step, float]]:
    """For each step the least time before it starts, and after it has ended: what one microbatch alone needs."""
    links = asked.links()
    heads = dict.fromkeys(asked.steps, 0.0)
    tails = dict(heads)
    for step in asked.steps:
        heads[step] = max((heads[d] + asked.duration(d) + delay for d, delay in links[step]), default=0.0)
    for step in reversed(asked.steps):
        for needed, delay in links[step]:
            tails[needed] = max(tails[needed], delay + asked.duration(step) + tails[step])
    return heads, tails


def _work(asked: Problem, rank: int, heads: dict[Step, float], tails: dict[Step, float]) -> float:
    """The best bound over all sets of the rank's steps: of all with certain heads and tails, taking the rest is no worse."""
    mine = [step for step in asked.steps if asked.rank_of_stage[step[0]] == rank]
    best = 0.0
    for head in {heads[step] for step in mine}:
        for tail in {tails[step] for step in mine}:
            some = [step for step in mine if heads[step] >= head and tails[step] >= tail]
            if some:
                best = max(best, head + asked.m * sum(map(asked.duration, some)) + tail)
    return best


def _memory(asked: Problem, rank: int, heads: dict[Step, float], tails: dict[Step, float]) -> float:
    if asked.limits is None:
        return 0.0
    stages, limit = asked.shape.stages_of(rank), asked.limits[rank]
    kept = {stage: _kept(asked, stage) for stage in stages}
    first, last = (min(times[s, kind] for s in stages) for times, kind in ((heads, F), (tails, asked.frees)))
    if limit >= asked.m * len(stages):
        return 0.0
    bound = first + asked.m * sum(kept.values()) / limit + last
    if len(stages) == 1:
        step = (stages[0], F)
        rounds = (asked.m - 1) // limit
        bound = max(bound, first + rounds * kept[stages[0]] + asked.duration(step) + tails[step])
    return bound


def _kept(asked: Problem, stage: int) -> float:
    """The least time from the start of a stage's forward to the end of what frees it."""
    links, start = asked.links(), (stage, F)
    ends = {start: asked.duration(start)}
    for step in asked.steps:
        came = [ends[d] + delay for d, delay in links[step] if d in ends]
        if came:
            ends[step] = max(came) + asked.duration(step)
    return ends[stage, asked.frees]


def _relaxed(asked: Problem) -> Problem:
    """Halves so short that both together take no longer than B: what bounds them bounds whole backwards too."""
    times = {step: asked.duration(step) for step in asked.steps}
    for stage in range(len(asked.rank_of_stage)):
        whole = asked.duration((stage, B))
        times[stage, I] = min(times[stage, I], whole)
        times[stage, W] = min(times[stage, W], whole - times[stage, I])
    return asked.with_times(times, asked.costs.transfer)
