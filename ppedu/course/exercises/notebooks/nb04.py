"""What notebook 04 asks: GPipe's order, what every rank holds under it and when, and how many microbatches fit.

Letters in wrong answers: rank r of p, m microbatches, f and b what a forward and a backward take.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ppedu.core.costs import Costs
from ppedu.core.operations import Kind
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.course.exercises.ask import Exercise, Question, cases, idea
from ppedu.course.exercises.forms import ListOf, Number
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


def _largest_m(budget: int, fixed: Sequence[int], per_microbatch: Sequence[int]) -> int:
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
            idea("a backward follows its forward", 1)("""
                1 would be right if rank 3 ran B0 right after F0. It could: the loss is there. But GPipe runs all
                forwards first."""),
            idea("it depends on p", 4)("""
                4 is the number of ranks. What a rank holds is how many forwards it runs before its first backward."""),
            idea("one is gone before the last one comes", 7)("""
                B0 comes after F7, so nothing goes before the last one comes."""),
            idea("activations are shared out", 2)("""
                2 is 8 microbatches over 4 ranks. But each microbatch passes each rank and leaves activations on all of
                them: those of the rank's own layers."""),
        ),
    ),
    Question(
        "makespan of GPipe at m = 32",
        form=Number("units"),
        answer=lambda: simulate(gpipe(p=4, m=32)).makespan,
        because="32 microbatches of 2 units each pass through every rank, and the waiting is 6 units as before: 64 + 6.",
        wrong=(
            idea("four times the work, four times the bubble", 88)("""
                88 is four times 22. The work is four times as much, but the pipeline is filled and drained once."""),
            idea("time does not depend on m", 22)("""
                22 was for 8 microbatches of the same size. These are four times as many."""),
            idea("no bubble", 64)("64 is the work of one rank. It also waits, as before."),
            idea("half of the bubble", 67)("""
                67 counts 3 units of waiting. There are 3 on the way down and 3 on the way up."""),
        ),
    ),
    Question(
        "bytes when the same batch is cut finer",
        form=Number("times"),
        answer=lambda: 1.0,
        because="Four times as many activations are in flight, and each is a quarter as large: a rank holds the activations of "
        "the whole batch in both cases.",
        wrong=(
            idea("in flight is memory", 4)("""
                4 is by how much the count grows. But the microbatches are a quarter as large now: 1 sequence each in
                place of 4."""),
            idea("smaller microbatches, less memory", 0.25)("""
                0.25 is by how much one microbatch's activations shrink. But there are four times as many of them in
                flight."""),
            idea("a square", 16)("4 times as many in flight, and each of them smaller, not larger."),
        ),
    ),
)

EXERCISES = (
    Exercise(
        "order of GPipe",
        form=Orders(rule=_all_forwards_first),
        cases=cases("p m", (4, 8), (2, 3), (3, 1), (4, 2)),
        right=gpipe,
        nudge="Every rank runs the same list: first all forwards, then all backwards.",
        because="The list is the same on every rank. That the ranks start and end at different times follows from what they wait for; "
        "nobody writes it down.",
        wrong=(
            idea("a backward follows its forward", naive)("""
                in your order each backward comes right after its forward. That can run, but on rank 0 the F1 then waits
                for B0, which waits for all other ranks: no two ranks work at the same time."""),
            idea("1F1B for GPipe", one_f_one_b)("""
                this is 1F1B, the schedule of the next notebook, which runs its backwards earlier. GPipe runs all {m}
                forwards before its first backward."""),
            idea("forwards alone", forward_only)("""
                your ranks run forwards alone. That is inference: without backwards there are no gradients."""),
            idea("p and m swapped", lambda p, m: gpipe(m, p))("""
                you gave one list per microbatch. A schedule has one list per rank, here {p} of them, and each names all
                {m} microbatches."""),
            idea(
                "microbatches are shared out over ranks",
                lambda p, m: [
                    [f"F{i}" for i in range(r % m, m, p)] + [f"B{i}" for i in range(r % m, m, p)] for r in range(p)
                ],
            )("""
                in your order a rank runs some of the microbatches only. That is data parallelism: here each rank holds
                one stage, and every microbatch passes through every stage."""),
            idea("ranks run backwards in different orders", _reversed_on_odd_ranks)("""
                your ranks run the backwards in different orders. A rank then waits for a gradient that the rank after
                it computes last. Rising or falling, all ranks need the same order."""),
        ),
    ),
    Exercise(
        "where the peak stands",
        form=ListOf(Number(), length=2),
        cases=cases(
            "rank p m forward backward",
            (0, 4, 8, 1, 1),
            (3, 4, 8, 1, 1),
            (1, 3, 5, 1, 2),
            (2, 6, 2, 2, 3),
            (1, 2, 1, 1, 2),
        ),
        right=_peak,
        nudge="The count rises when an F starts and falls when a B ends. When does this rank's last F start? When does its first B end?",
        because="All ranks reach the same height, but rank 0 stays there longest, and the last one only for its last F and its first B.",
        wrong=(
            idea(
                "the peak ends when a backward starts",
                lambda r, p, m, f, b: ((r + m - 1) * f, (m + p - 1) * f + (p - 1 - r) * b),
            )("""
                you gave {got}. The start is right. But rank {rank}'s first backward still needs its activations while
                it runs: they are free when it ends."""),
            idea(
                "the peak starts when the last forward ends",
                lambda r, p, m, f, b: ((r + m) * f, (m + p - 1) * f + (p - r) * b),
            )("""
                you gave {got}. The end is right. But an F fills memory while it runs; the pictures count it from its
                start."""),
            idea(
                "a backward counts when it starts, a forward when it ends",
                lambda r, p, m, f, b: ((r + m) * f, (m + p - 1) * f + (p - 1 - r) * b),
            )("""
                you gave {got}, the time between the last F and the first B. While these two run, all {m} activations
                are there as well."""),
            idea("all ranks peak at the same time", lambda r, p, m, f, b: ((m - 1) * f, (m + p - 1) * f + p * b))("""
                you gave {got}, which is rank 0's. Rank {rank} starts later, and its first gradient comes back earlier."""),
            idea("ranks turn round together", lambda r, p, m, f, b: ((r + m - 1) * f, (m + p - 1) * f + b))("""
                you gave {got}. There is no common turning point: the last rank turns round first, and the gradient
                needs a B on each rank on its way back to rank {rank}."""),
            idea(
                "the gradient comes back down the ranks",
                lambda r, p, m, f, b: ((r + m - 1) * f, (m + p - 1) * f + (r + 1) * b),
            )("""
                you gave {got}. The gradient starts on the last rank, not on rank 0: how many ranks are behind rank
                {rank}?"""),
        ),
    ),
    Exercise(
        "largest m under a budget",
        form=Number(whole=True),
        cases=cases(
            "budget fixed per_microbatch",
            (1000, [200, 200, 200, 200], [25, 25, 25, 25]),
            (1000, [250, 200, 200, 300], [30, 24, 24, 45]),
            (500, [100, 100, 100], [33, 20, 26]),
            (1000, [400, 100, 300], [20, 50, 30]),
            (300, [310, 200], [10, 10]),
        ),
        right=_largest_m,
        nudge="One rank: what is left of its budget once its fixed bytes are there, and how many microbatches fit into that? "
        "Which rank decides for all?",
        because="One m serves all ranks, so the tightest rank decides.",
        wrong=(
            idea(
                "activations are all of the memory", lambda budget, fixed, each: min(budget // one for one in each)
            )("""
                {got} spends the whole budget on activations. Weights, gradients and optimizer state are there first."""),
            idea(
                "each rank has its own m",
                lambda budget, fixed, each: max(map(_affords, [budget] * len(fixed), fixed, each)),
            )("""
                {got} fits on the rank with the most room. Every microbatch passes through every rank: the others run
                out of memory."""),
            idea("rank 0 speaks for all", lambda budget, fixed, each: _affords(budget, fixed[0], each[0]))("""
                {got} is what rank 0 affords. Another rank has less room: look at all of them."""),
            idea(
                "microbatches are shared out over ranks",
                lambda budget, fixed, each: sum(map(_affords, [budget] * len(fixed), fixed, each)),
            )("""
                {got} adds up what the ranks afford. But a microbatch leaves activations on every rank, each for its own
                layers."""),
            idea(
                "the pool is shared",
                lambda budget, fixed, each: max(0, (budget * len(fixed) - sum(fixed)) // sum(each)),
            )("""
                {got} fits if the ranks could lend each other memory. They are devices of their own: each has to hold
                its part."""),
            idea("the worst of both", lambda budget, fixed, each: _affords(budget, max(fixed), max(each)))("""
                {got} sets the largest fixed bytes against the largest microbatch. They need not be the same rank's:
                count for each rank by itself, then compare."""),
            idea(
                "rounded up",
                lambda budget, fixed, each: min(
                    -(-max(0, budget - own) // one) for own, one in zip(fixed, each, strict=True)
                ),
            )("""
                {got} is one more than fits: a part of a microbatch is none. Round down."""),
            idea(
                "less than none",
                lambda budget, fixed, each: min((budget - own) // one for own, one in zip(fixed, each, strict=True)),
            )("""
                {got}: where the fixed bytes alone are above the budget, no microbatch fits. That is 0, not less."""),
        ),
    ),
)
