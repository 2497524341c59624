"""What notebook 06 asks: how many stages and microbatches, where the slow stage is, and what messages cost.

Letters: p ranks, m microbatches; F forward, B backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

from ppedu import theory
from ppedu.core.costs import Costs
from ppedu.core.simulate import simulate
from ppedu.course.exercises.ask import Exercise, Question, cases, idea
from ppedu.course.exercises.forms import ListOf, Number
from ppedu.schedules import gpipe, one_f_one_b


def _step(p: int) -> float:
    """24 layers with F=1 and B=2 each under GPipe, m=8, messages of 2."""
    return simulate(gpipe(p, 8), Costs(24 / p, 48 / p, transfer=2)).makespan


def _batch_of_64(m: int) -> float:
    """4 stages on which a microbatch of s sequences takes 2 + s, F and B together."""
    return theory.makespan(4, m, (2 + 64 / m) / 3, (2 + 64 / m) * 2 / 3)


def _slow_stage() -> float:
    return simulate(one_f_one_b(p=4, m=8), Costs([1, 2, 1, 1], [2, 4, 2, 2])).makespan


def _slow_link() -> float:
    return simulate(one_f_one_b(p=4, m=8), Costs(1, 2, transfer=1)).makespan


QUESTIONS = (
    Question(
        "6, 12 or 24 devices",
        form=Number("devices", whole=True),
        answer=lambda: min((6, 12, 24), key=_step),
        because="24 devices share the work out best, but each microbatch then passes 23 links down and 23 up, and the fill and "
        "the drain have grown as well. Here that costs more than the smaller stages save.",
        wrong=(
            idea("more devices are always faster", 24)("""
                24 stages of one layer have half the work of 12 stages of two. But only the work shrinks with p: the
                number of messages on the way grows."""),
            idea("few devices, few messages", 6)("""
                Six devices have the fewest messages, but also stages of four layers."""),
        ),
    ),
    Question(
        "best m for a batch of 64",
        form=Number("microbatches", whole=True),
        answer=lambda: min((1, 2, 4, 8, 16, 32, 64), key=_batch_of_64),
        because="(8 + 3) x (2 + 8) = 110. With 4 microbatches the bubble costs more, 7 x 18 = 126; with 16 the fixed part of each "
        "operation does, 19 x 6 = 114.",
        wrong=(
            idea("more microbatches are free", 64)("""
                With 64 the bubble is smallest, 3 of 67. But each operation then spends 2 of its 3 units on what does
                not shrink with the microbatch: 67 x 3 = 201."""),
            idea("no microbatches", 1)("One microbatch is naive: (1 + 3) x 66 = 264, three quarters of it bubble."),
            idea("few operations", 2)("Two large microbatches leave a bubble of 3 in 5: 5 x 34 = 170."),
            idea("m = p", 4)("As many microbatches as ranks leave a bubble of 3 in 7."),
            idea("m = 4p", 16)("16 is a good rule of thumb, and close."),
            idea("the bubble alone counts", 32)("""
                With 32 the bubble is small, 3 of 35. But each operation spends 2 of its 4 units on the fixed part: 35 x
                4 = 140."""),
        ),
    ),
    Question(
        "one slow stage",
        form=Number("units"),
        answer=_slow_stage,
        because="Stage 1 has 8 x (2 + 4) = 48 units of work, and nobody can do it for it. The rest is the way in before its first "
        "forward, one wait for the first gradient, and the way out after its last backward.",
        wrong=(
            idea("a slow stage delays once", 36)("""
                36 is 33 and the 3 units that stage 1 needs more for one microbatch. It needs them for each of the eight."""),
            idea("the mean counts", 41.25)("""
                41.25 follows the mean, which grew by a quarter. But microbatches queue in front of the slowest stage,
                and the others cannot help."""),
            idea("everything doubles", 66)("""
                66 would be all four stages twice as slow. Three of them are as fast as before."""),
            idea("the slow stage alone", 48)("""
                48 is the work of stage 1. It starts a little later than the step does, and ends a little earlier."""),
            idea("1F1B and GPipe always take the same time", 57)("""
                57 is GPipe's. It lets stage 1 wait longer, between its last forward and its first backward."""),
        ),
    ),
    Question(
        "slow messages under 1F1B",
        form=Number("units"),
        answer=_slow_link,
        because="GPipe waits for messages while it fills and while it drains, and in between they hide behind work. In 1F1B rank 0 "
        "must have a gradient back before each next forward, and the gradient's way is now 6 messages longer.",
        wrong=(
            idea("1F1B and GPipe always take the same time", 39)("""
                That is GPipe's. The two are equal when messages are free; these are not."""),
            idea("messages hide behind work", 33)("33 is the time with free messages. Here somebody waits for them."),
            idea("1F1B is the faster one", 36, when=lambda got, want: 33 < got < 39)("""
                That would be faster than GPipe. Whom does rank 0 wait for, between two of its forwards?"""),
            idea("messages cost at the ends only", 45, when=lambda got, want: 39 < got < want)("""
                It is slower than GPipe, and by more than that: rank 0 waits for a gradient before each of its later
                forwards, not only while the pipeline fills and drains."""),
            idea("each microbatch waits for all of its messages", 81, when=lambda got, want: got > want)("""
                Not every message is waited for by itself: rank 0 has four microbatches on their way, and while the
                messages of one travel, the ranks work on others."""),
        ),
    ),
)


def _least_m(p: int, bubble: float) -> int:
    return next(m for m in range(1, 100_000) if theory.bubble_fraction(p, m) <= bubble)


LAYERS = (0.0, *(1.0 for _ in range(12)), 4.0)
"""Seconds of forward of an embedding, twelve blocks and a head, as the exercise gives them."""


def _stages(sizes: Iterable[int]) -> list[float]:
    rest = iter(LAYERS)
    return [sum(islice(rest, size)) for size in sizes]


@dataclass(frozen=True)
class Sizes(ListOf):
    """How many layers each stage takes. What is said to wrong ones is what their stages would take."""

    def remark(self, got: Any, want: Any) -> str:
        if min(got) < 1:
            return f"stage {got.index(min(got))} of your {self.show(got)} has no layer: each stage has at least one."
        if sum(got) != len(LAYERS):
            return f"your stages {self.show(got)} have {sum(got)} layers in all, and there are {len(LAYERS)}."
        times = _stages(got)
        forward = ", ".join(f"{time:g}" for time in times)
        made = simulate(one_f_one_b(4, 8), Costs(times, [2 * time for time in times])).makespan
        return f"a forward of your stages takes {forward}: stage {times.index(max(times))} sets the pace, and the step takes {made:g}."


@cache
def forecast(p: int, m: int) -> tuple[float, float]:
    """(milliseconds a step, GB on rank 0) under 1F1B, of the 24 layers and 64 sequences in the exercise "plan p and m"."""
    layers, sequences = 24 / p, 64 / m
    forward = layers * (1 + sequences / 3)
    step = simulate(one_f_one_b(p, m), Costs(forward, 2 * forward, transfer=6))
    return step.makespan, layers * 1.2 + step.peak_in_flight[0] * sequences * layers * 0.05


_P, _M = (1, 2, 3, 4, 6, 8, 12, 24), (1, 2, 4, 8, 16, 32, 64)


def _plan(
    memory: float, time: float, kept: Callable[[int, int], float] = lambda p, m: forecast(p, m)[1]
) -> tuple[int, int]:
    """The fewest devices that will do, with their fastest m. kept: GB on rank 0."""
    for p in _P:
        good = [(forecast(p, m)[0], m) for m in _M if kept(p, m) <= memory and forecast(p, m)[0] <= time]
        if good:
            return p, min(good)[1]
    raise ValueError(f"no p and m fit {memory} GB and {time} ms")


def _fitting(memory: float, time: float, p: int) -> list[int]:
    return [m for m in _M if forecast(p, m)[1] <= memory and forecast(p, m)[0] <= time]


def _fastest(memory: float, time: float) -> tuple[int, int]:
    return min(((p, m) for p in _P for m in _M if forecast(p, m)[1] <= memory), key=lambda pm: forecast(*pm)[0])


def _first_m(memory: float, time: float) -> tuple[int, int]:
    p, _ = _plan(memory, time)
    return p, _fitting(memory, time, p)[0]


def _most_m(memory: float, time: float) -> tuple[int, int]:
    p, _ = _plan(memory, time)
    return p, _fitting(memory, time, p)[-1]


EXERCISES = (
    Exercise(
        "bubble against m",
        form=Number("microbatches", whole=True),
        cases=cases("p bubble", (4, 0.25), (4, 0.11), (8, 0.11), (2, 0.6), (1, 0.05)),
        right=_least_m,
        nudge="Which m makes (p - 1) / (m + p - 1) exactly as large as allowed? Trying m = 1, 2, 3, ... is fine as well.",
        because="To halve a small bubble takes twice the microbatches.",
        wrong=(
            idea("(p-1)/m is the share of time lost", lambda p, bubble: max(1, math.ceil((p - 1) / bubble)))("""
                With {got} it is (p - 1) / m that is at most {bubble}, which is idle time over the time of the work.
                Asked for is the share of the whole step, (p - 1) / (m + p - 1)."""),
            idea(
                "(p-1)/m is the share of time lost (none on one rank)", lambda p, bubble: math.ceil((p - 1) / bubble)
            )("""
                With {got} it is (p - 1) / m that is at most {bubble}, which is idle time over the time of the work.
                Asked for is the share of the whole step, (p - 1) / (m + p - 1)."""),
            idea("one more, to be safe", lambda p, bubble: math.floor((p - 1) * (1 - bubble) / bubble) + 1)("""
                With {got} the bubble is below {bubble}, but one less is enough: at most {bubble} allows exactly
                {bubble}."""),
            idea("m = 4p", lambda p, bubble: 4 * p)("""
                4p is a rule of thumb for a bubble of at most a fifth. Asked for is the least m for the bubble that is
                given."""),
            idea("rounded down", lambda p, bubble: max(1, math.floor((p - 1) * (1 - bubble) / bubble)))("""
                With {got} the bubble is still a little above {bubble}: round up."""),
            idea("no microbatch at all", lambda p, bubble: math.ceil((p - 1) * (1 - bubble) / bubble))("""
                Right for p > 1. One rank has no bubble, but a batch has at least one microbatch."""),
            idea("p in place of p - 1", lambda p, bubble: max(1, math.ceil(p * (1 - bubble) / bubble)))("""
                Each rank waits for the other p - 1 ranks, not for p."""),
        ),
    ),
    Exercise(
        "rebalance",
        form=Sizes(Number("layers", whole=True), 4),
        right=(5, 4, 4, 1),
        nudge="Move layers between neighbours until no stage is slower than it must be.",
        because="Four stages of 4: the step takes 132, where the split into 3, 3, 4 and 4 layers took 195.",
        wrong=(
            idea("as many layers on each stage", (3, 3, 4, 4))("""
                That is even in layers, not in time: the last stage takes 7, the first 2, and 195 the step."""),
            idea("as many layers on each stage (first ones longer)", (4, 4, 3, 3))("""
                That is even in layers, not in time: the last stage takes 6, the first 3, and 174 the step."""),
            idea("as many parameters on each stage", (3, 4, 4, 3))("""
                That is even in parameters. But the embedding's many weights cost no time, and the head's cost a lot:
                stages of 2, 4, 4 and 6, and a step of 174."""),
        ),
    ),
    Exercise(
        "plan p and m",
        form=ListOf(Number(whole=True), 2),
        cases=cases("memory time", (16, 800), (8, 700), (30, 1000), (80, 2000), (5, 1000), (12.5, 1000)),
        right=_plan,
        nudge="Go through p from the fewest devices up. For each, which m fit into the memory and the time? Of these, which is fastest?",
        because="More devices would have done as well, and m had to fit the memory, the kernels and the bubble at once.",
        seconds=20,
        wrong=(
            idea("m first", lambda memory, time: _plan(memory, time)[::-1])("""
                Both are right, in the other order: p comes first."""),
            idea("more devices are always faster", lambda memory, time: (24, _plan(memory, time)[1]))("""
                24 devices are the most that there are. Asked for are the fewest that will do."""),
            idea("the fastest, not the fewest", _fastest)("""
                {got} is the fastest that fits {memory} GB. But {time} ms are good enough, and fewer devices reach them."""),
            idea("weights alone take memory", lambda memory, time: _plan(memory, time, lambda p, m: 24 / p * 1.2))("""
                {got} would fit if only weights took memory. forecast returns what rank 0 needs with activations:
                compare that."""),
            idea("the first m that fits", _first_m)("""
                p is right, and that m fits. But it is not the fastest of those that do."""),
            idea("more microbatches are free", _most_m)("""
                p is right, and that m fits. But it is not the fastest: small microbatches cost time."""),
            idea(
                "too few devices", lambda memory, time: (1, 1), when=lambda got, want, memory, time: got[0] < want[0]
            )("""
                {got}: on so few devices no m fits into {memory} GB and {time} ms."""),
            idea(
                "too many devices",
                lambda memory, time: (2 * _plan(memory, time)[0], 8),
                when=lambda got, want, memory, time: got[0] > want[0],
            )("""
                {got}: fewer devices will do for {memory} GB and {time} ms."""),
            idea(
                "m does not fit",
                lambda memory, time: (_plan(memory, time)[0], 1),
                when=lambda got, want, memory, time: got[0] == want[0] and got[1] not in _fitting(memory, time, got[0]),
            )("""
                {got}: p is right, but with this m the step does not fit into {memory} GB and {time} ms."""),
        ),
    ),
)
