"""What notebook 04 asks: GPipe's order, what every rank holds under it and when, and how many microbatches fit."""

from __future__ import annotations

from collections.abc import Sequence as Row
from itertools import pairwise

from ppedu.core.costs import Costs
from ppedu.core.operations import Kind
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.course.exercises.ask import Exercise, Question, Wrong
from ppedu.course.exercises.forms import Number, Sequence
from ppedu.course.exercises.orders import Orders
from ppedu.schedules import forward_only, gpipe, naive, one_f_one_b


def _all_forwards_first(schedule: Schedule) -> str:
    """GPipe's one rule, as a sentence where a schedule breaks it."""
    for rank, order in enumerate(schedule.orders):
        for before, after in pairwise(order):
            if any(a.kind is not Kind.F for a in before.actions) and any(a.kind is Kind.F for a in after.actions):
                names = schedule.short(before), schedule.short(after)
                return f"it can run, but is not GPipe: rank {rank} runs {names[1]} after {names[0]}, a forward after a backward."
    return ""


def _reversed_on_odd_ranks(p: int, m: int) -> list[list[str]]:
    """Backwards in falling order on every other rank: the ranks then wait for one another."""
    down = [f"F{i}" for i in range(m)]
    up = [f"B{i}" for i in range(m)]
    return [down + (up[::-1] if rank % 2 else up) for rank in range(p)]


def _peak(rank: int, p: int, m: int, forward: float, backward: float) -> tuple[float, float]:
    """(from, to): when a rank holds the activations of all m microbatches. Read from the simulated curve."""
    curve = simulate(gpipe(p, m), Costs(forward, backward)).in_flight(rank)
    return next((start, end) for (start, count), (end, _) in pairwise(curve) if count == m)


def _largest_m(budget: int, fixed: Row[int], per_microbatch: Row[int]) -> int:
    """The most microbatches that every rank affords, by trying them one after the other."""
    m = 0
    while all(own + (m + 1) * each <= budget for own, each in zip(fixed, per_microbatch, strict=True)):
        m += 1
    return m


def _affords(budget: int, own: int, each: int) -> int:
    return max(0, (budget - own) // each)


QUESTIONS = (
    Question(
        "what rank 3 holds in GPipe",
        form=Number("activations"),
        answer=lambda: simulate(gpipe(p=4, m=8)).peak_in_flight[3],
        because="The last rank, too, runs F7 before B0. Only then does the first of its eight activations go.",
        wrong=(
            Wrong(
                "a backward follows its forward",
                1,
                "1 would be right if rank 3 ran B0 right after F0. It could: the loss is there. But GPipe runs all forwards first.",
            ),
            Wrong(
                "it depends on p",
                4,
                "4 is the number of ranks. What a rank holds is how many forwards it runs before its first backward.",
            ),
            Wrong(
                "one is gone before the last one comes",
                7,
                "B0 comes after F7, so nothing goes before the last one comes.",
            ),
            Wrong(
                "activations are shared out",
                2,
                "2 is 8 microbatches over 4 ranks. But each microbatch passes each rank and leaves "
                "activations on all of them: those of the rank's own layers.",
            ),
        ),
    ),
    Question(
        "makespan of GPipe at m = 32",
        form=Number("units"),
        answer=lambda: simulate(gpipe(p=4, m=32)).makespan,
        because="32 microbatches of 2 units each pass through every rank, and the waiting is 6 units as before: 64 + 6.",
        wrong=(
            Wrong(
                "four times the work, four times the bubble",
                88,
                "88 is four times 22. The work is four times as much, but the pipeline is filled and drained once.",
            ),
            Wrong(
                "time does not depend on m",
                22,
                "22 was for 8 microbatches of the same size. These are four times as many.",
            ),
            Wrong("no bubble", 64, "64 is the work of one rank. It also waits, as before."),
            Wrong(
                "half of the bubble",
                67,
                "67 counts 3 units of waiting. There are 3 on the way down and 3 on the way up.",
            ),
        ),
    ),
    Question(
        "bytes when the same batch is cut finer",
        form=Number("times"),
        answer=lambda: 1.0,
        because="Four times as many activations are in flight, and each is a quarter as large: a rank holds the activations of "
        "the whole batch in both cases.",
        wrong=(
            Wrong(
                "in flight is memory",
                4,
                "4 is by how much the count grows. But the microbatches are a quarter as large now: 1 sequence each in place of 4.",
            ),
            Wrong(
                "smaller microbatches, less memory",
                0.25,
                "0.25 is by how much one microbatch's activations shrink. But there are four times as many of them in flight.",
            ),
            Wrong("a square", 16, "4 times as many in flight, and each of them smaller, not larger."),
        ),
    ),
)

EXERCISES = (
    Exercise(
        "order of GPipe",
        form=Orders(rule=_all_forwards_first),
        cases=({"p": 4, "m": 8}, {"p": 2, "m": 3}, {"p": 3, "m": 1}, {"p": 4, "m": 2}),
        right=gpipe,
        nudge="Every rank runs the same list: first all forwards, then all backwards.",
        because="The list is the same on every rank. That the ranks start and end at different times follows from what they wait for; "
        "nobody writes it down.",
        wrong=(
            Wrong(
                "a backward follows its forward",
                naive,
                "in your order each backward comes right after its forward. That can run, but on rank 0 the F1 then waits for B0, "
                "which waits for all other ranks: no two ranks work at the same time.",
            ),
            Wrong(
                "1F1B for GPipe",
                one_f_one_b,
                "this is 1F1B, the schedule of the next notebook, which runs its backwards earlier. GPipe runs all {m} forwards "
                "before its first backward.",
            ),
            Wrong(
                "forwards alone",
                forward_only,
                "your ranks run forwards alone. That is inference: without backwards there are no gradients.",
            ),
            Wrong(
                "p and m swapped",
                lambda p, m: gpipe(m, p),
                "you gave one list per microbatch. A schedule has one list per rank, here {p} of them, and each names all {m} microbatches.",
            ),
            Wrong(
                "microbatches are shared out over ranks",
                lambda p, m: [
                    [f"F{i}" for i in range(r % m, m, p)] + [f"B{i}" for i in range(r % m, m, p)] for r in range(p)
                ],
                "in your order a rank runs some of the microbatches only. That is data parallelism: here each rank holds one stage, and every "
                "microbatch passes through every stage.",
            ),
            Wrong(
                "ranks run backwards in different orders",
                _reversed_on_odd_ranks,
                "your ranks run the backwards in different orders. A rank then waits for a gradient that the rank after it computes "
                "last. Rising or falling, all ranks need the same order.",
            ),
        ),
    ),
    Exercise(
        "where the peak stands",
        form=Sequence(Number(), length=2),
        cases=(
            {"rank": 0, "p": 4, "m": 8, "forward": 1, "backward": 1},
            {"rank": 3, "p": 4, "m": 8, "forward": 1, "backward": 1},
            {"rank": 1, "p": 3, "m": 5, "forward": 1, "backward": 2},
            {"rank": 2, "p": 6, "m": 2, "forward": 2, "backward": 3},
            {"rank": 1, "p": 2, "m": 1, "forward": 1, "backward": 2},
        ),
        right=_peak,
        nudge="The count rises when an F starts and falls when a B ends. When does this rank's last F start? When does its first B end?",
        because="All ranks reach the same height, but rank 0 stays there longest, and the last one only for its last F and its first B.",
        wrong=(
            Wrong(
                "the peak ends when a backward starts",
                lambda rank, p, m, forward, backward: (
                    (rank + m - 1) * forward,
                    (m + p - 1) * forward + (p - 1 - rank) * backward,
                ),
                "you gave {got}. The start is right. But rank {rank}'s first backward still needs its activations while it runs: they "
                "are free when it ends.",
            ),
            Wrong(
                "the peak starts when the last forward ends",
                lambda rank, p, m, forward, backward: (
                    (rank + m) * forward,
                    (m + p - 1) * forward + (p - rank) * backward,
                ),
                "you gave {got}. The end is right. But an F fills memory while it runs; the pictures count it from its start.",
            ),
            Wrong(
                "a backward counts when it starts, a forward when it ends",
                lambda rank, p, m, forward, backward: (
                    (rank + m) * forward,
                    (m + p - 1) * forward + (p - 1 - rank) * backward,
                ),
                "you gave {got}, the time between the last F and the first B. While these two run, all {m} activations are there as well.",
            ),
            Wrong(
                "all ranks peak at the same time",
                lambda rank, p, m, forward, backward: ((m - 1) * forward, (m + p - 1) * forward + p * backward),
                "you gave {got}, which is rank 0's. Rank {rank} starts later, and its first gradient comes back earlier.",
            ),
            Wrong(
                "ranks turn round together",
                lambda rank, p, m, forward, backward: ((rank + m - 1) * forward, (m + p - 1) * forward + backward),
                "you gave {got}. There is no common turning point: the last rank turns round first, and the gradient needs a B on "
                "each rank on its way back to rank {rank}.",
            ),
            Wrong(
                "the gradient comes back down the ranks",
                lambda rank, p, m, forward, backward: (
                    (rank + m - 1) * forward,
                    (m + p - 1) * forward + (rank + 1) * backward,
                ),
                "you gave {got}. The gradient starts on the last rank, not on rank 0: how many ranks are behind rank {rank}?",
            ),
        ),
    ),
    Exercise(
        "largest m under a budget",
        form=Number(whole=True),
        cases=(
            {"budget": 1000, "fixed": [200, 200, 200, 200], "per_microbatch": [25, 25, 25, 25]},
            {"budget": 1000, "fixed": [250, 200, 200, 300], "per_microbatch": [30, 24, 24, 45]},
            {"budget": 500, "fixed": [100, 100, 100], "per_microbatch": [33, 20, 26]},
            {"budget": 1000, "fixed": [400, 100, 300], "per_microbatch": [20, 50, 30]},
            {"budget": 300, "fixed": [310, 200], "per_microbatch": [10, 10]},
        ),
        right=_largest_m,
        nudge="One rank: what is left of its budget once its fixed bytes are there, and how many microbatches fit into that? "
        "Which rank decides for all?",
        because="One m serves all ranks, so the tightest rank decides.",
        wrong=(
            Wrong(
                "activations are all of the memory",
                lambda budget, fixed, per_microbatch: min(budget // each for each in per_microbatch),
                "{got} spends the whole budget on activations. Weights, gradients and optimizer state are there first.",
            ),
            Wrong(
                "each rank has its own m",
                lambda budget, fixed, per_microbatch: max(map(_affords, [budget] * len(fixed), fixed, per_microbatch)),
                "{got} fits on the rank with the most room. Every microbatch passes through every rank: the others run out of memory.",
            ),
            Wrong(
                "rank 0 speaks for all",
                lambda budget, fixed, per_microbatch: _affords(budget, fixed[0], per_microbatch[0]),
                "{got} is what rank 0 affords. Another rank has less room: look at all of them.",
            ),
            Wrong(
                "microbatches are shared out over ranks",
                lambda budget, fixed, per_microbatch: sum(map(_affords, [budget] * len(fixed), fixed, per_microbatch)),
                "{got} adds up what the ranks afford. But a microbatch leaves activations on every rank, each for its own layers.",
            ),
            Wrong(
                "the pool is shared",
                lambda budget, fixed, per_microbatch: max(0, (budget * len(fixed) - sum(fixed)) // sum(per_microbatch)),
                "{got} fits if the ranks could lend each other memory. They are devices of their own: each has to hold its part.",
            ),
            Wrong(
                "the worst of both",
                lambda budget, fixed, per_microbatch: _affords(budget, max(fixed), max(per_microbatch)),
                "{got} sets the largest fixed bytes against the largest microbatch. They need not be the same rank's: count for "
                "each rank by itself, then compare.",
            ),
            Wrong(
                "rounded up",
                lambda budget, fixed, per_microbatch: min(
                    -(-max(0, budget - own) // each) for own, each in zip(fixed, per_microbatch, strict=True)
                ),
                "{got} is one more than fits: a part of a microbatch is none. Round down.",
            ),
            Wrong(
                "less than none",
                lambda budget, fixed, per_microbatch: min(
                    (budget - own) // each for own, each in zip(fixed, per_microbatch, strict=True)
                ),
                "{got}: where the fixed bytes alone are above the budget, no microbatch fits. That is 0, not less.",
            ),
        ),
    ),
)
