"""What notebook 03 asks: what microbatches overlap, what they cannot, what a bubble is a share of, what they change."""

from __future__ import annotations

from collections.abc import Sequence

from ppedu import theory
from ppedu.core.costs import Costs
from ppedu.core.operations import Action, Kind
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.course.exercises.ask import Exercise, Question, cases, idea
from ppedu.course.exercises.forms import Fields, ListOf, Number, YesNo
from ppedu.schedules import forward_only, gpipe, one_f_one_b


def _start(stage: int, microbatch: int, forward: float, transfer: float) -> float:
    """When F of a microbatch starts on a stage of the forward wave: read from the simulation."""
    wave = simulate(forward_only(stage + 1, microbatch + 1), Costs(forward, transfer=transfer))
    return next(span.start for span in wave.spans if span.action == Action(stage, Kind.F, microbatch))


def _phases(schedule: Schedule) -> tuple[float, float, tuple[tuple[int, ...], ...]]:
    """(end of the warm-up by time, start of the cool-down by time, for each rank the three counts by order)."""
    timeline = simulate(schedule, Costs(1, 2))
    by_time = timeline.phases()
    counts = tuple(tuple(map(len, timeline.phases_of(rank))) for rank in range(schedule.num_ranks))
    return by_time.steady[0], by_time.steady[1], counts


def _both(p: int, m: int) -> tuple[float, float]:
    return theory.bubble_fraction(p, m), theory.bubble_over_ideal(p, m)


def _shares(sizes: Sequence[int]) -> list[float]:
    return [size / sum(sizes) for size in sizes]


_GPIPE, _1F1B = _phases(gpipe(p=3, m=4)), _phases(one_f_one_b(p=3, m=4))
_COUNTS = ListOf(Number(whole=True), length=3)
_TIME = Number("units")

QUESTIONS = (
    Question(
        "end of the forward wave",
        form=Number("units"),
        answer=lambda: simulate(forward_only(p=4, m=8)).makespan,
        because="Microbatch 0 has left the last stage after 4 units, and then one more leaves it in each unit: 4 + 7.",
        wrong=(
            idea("one microbatch at a time", 32)("""
                32 sends one microbatch through all stages before the next one starts. But rank 0 is free again after
                one unit."""),
            idea("all ranks work from the start", 8)("""
                8 is what each rank works. But the last rank can only begin once microbatch 0 has passed the three
                before it."""),
            idea("one too many", 12)("""
                12 is m + p. While microbatch 0 is on the last stage, it does its own work there: only p - 1 stages come
                before."""),
            idea("stages run at once", 4)("""
                4 is the way of one microbatch through four stages. Rank 0 alone has 8 forwards to run."""),
        ),
    ),
    Question(
        "share of time that is lost",
        form=Number("per cent", rel=0.02),
        answer=lambda: 100 * simulate(gpipe(p=4, m=6)).bubble_fraction,
        because="Of 18 units each rank works 12 and waits 6: a third is lost.",
        wrong=(
            idea("a fraction for per cent", 1 / 3)("As a fraction you are right: in per cent it is 100 times as much."),
            idea("(p-1)/m is the share of time lost", 50)("""
                50 % is 6 units of waiting over 12 units of work, (p-1)/m. But the devices' time is work and waiting
                together, 18."""),
            idea("bubble for utilization", 200 / 3)("That is the share in which ranks work. What is lost is the rest."),
            idea("microbatches close the bubble", 0)("""
                Even with many microbatches the last rank starts late and the first one waits for the last gradient."""),
            idea("the bubble does not depend on m", 100 * 3 / 11)("""
                That is the share at m = 8. The waiting is the same 6 units, but here there is less work beside it."""),
            idea("naive's bubble stays", 75)("""
                75 % was lost without microbatches. Now ranks work on different microbatches at the same time."""),
            idea("only the warm-up is lost", 100 * 3 / 18)("""
                That counts 3 of 18 units, the warm-up or the cool-down alone. A rank loses 3 on the way down and 3 on
                the way up."""),
        ),
    ),
    Question(
        "gradient without the 1/m",
        form=Number("times"),
        answer=lambda: 8.0,
        because="In a mean over 4 samples each counts a quarter, in the mean over all 32 a thirty-second. So all of it is 8 times too "
        "large.",
        wrong=(
            idea("gradients add up to the whole batch's", 1)("""
                They do if each loss counts with its share of the batch. But each microbatch's loss here is a mean over
                its own 4 samples, not over all 32."""),
            idea("too small instead of too large", 1 / 8)("""
                It is the other way round: the losses are added up, and nothing divides them by 8."""),
            idea("times the samples of a microbatch", 4)("""
                4 is how many samples each mean is over. How many such means are added up?"""),
            idea("times the samples of the batch", 32)("""
                32 would be it if the losses were sums over samples. They are means."""),
        ),
    ),
    Question(
        "BatchNorm keeps the gradient",
        form=YesNo(),
        answer=lambda: False,
        because="BatchNorm subtracts the mean of the samples that it sees, and divides by their spread. In a microbatch it sees 8 "
        "samples, in the batch 64. It is another function, with other gradients.",
        wrong=(
            idea("micro-batching never changes the result", True)("""
                It holds for what treats each sample by itself, as LayerNorm does."""),
        ),
    ),
)

EXERCISES = (
    Exercise(
        "start of F",
        form=Number(),
        cases=cases(
            "stage microbatch forward transfer",
            (0, 0, 1, 0),
            (3, 2, 1, 0),
            (2, 5, 0.5, 0.25),
            (1, 7, 2, 3),
            (5, 1, 1, 0.5),
        ),
        right=_start,
        nudge="When does microbatch 0 reach this stage? How many forwards does the stage run before this microbatch's?",
        because="A message delays each stage once, not once per microbatch: later messages travel while the stage computes.",
        wrong=(
            idea("the end, not the start", lambda s, i, f, t: (s + i + 1) * f + s * t)("""
                {got} is when F ends. It starts one F earlier."""),
            idea("messages cost nothing", lambda s, i, f, t: (s + i) * f)("""
                {got} is right where messages are free. Here each takes {transfer}, and to reach stage {stage} a
                microbatch crosses the cuts before it."""),
            idea("every microbatch waits for messages", lambda s, i, f, t: (s + i) * (f + t))("""
                {got} adds a message for every microbatch that came before. But while stage {stage} computes, the next
                message is already on its way. How many messages does this microbatch itself need?"""),
            idea("one microbatch at a time", lambda s, i, f, t: (s + i * (s + 1)) * f + s * t)("""
                {got} starts a microbatch when the one before it has left stage {stage}. It starts as soon as stage 0 is
                free."""),
            idea("stages do not wait for each other", lambda s, i, f, t: i * f)("""
                {got} is when stage 0 starts it. Stage {stage} needs what the stages before it compute of the same
                microbatch: this dependency stays, however finely the batch is cut."""),
            idea("microbatches start together", lambda s, i, f, t: s * (f + t))("""
                {got} is when microbatch 0 gets to stage {stage}. Each stage works on one microbatch at a time: how many
                does it run before microbatch {microbatch}?"""),
        ),
    ),
    Exercise(
        "the three phases",
        form=Fields(
            {
                "GPipe: warm-up ends at": _TIME,
                "GPipe: cool-down begins at": _TIME,
                "GPipe: rank 0 by order": _COUNTS,
                "1F1B: warm-up ends at": _TIME,
                "1F1B: cool-down begins at": _TIME,
                "1F1B: rank 0 by order": _COUNTS,
                "1F1B: rank 2 by order": _COUNTS,
            }
        ),
        right={
            "GPipe: warm-up ends at": _GPIPE[0],
            "GPipe: cool-down begins at": _GPIPE[1],
            "GPipe: rank 0 by order": _GPIPE[2][0],
            "1F1B: warm-up ends at": _1F1B[0],
            "1F1B: cool-down begins at": _1F1B[1],
            "1F1B: rank 0 by order": _1F1B[2][0],
            "1F1B: rank 2 by order": _1F1B[2][2],
        },
        nudge="By time: when does the last of the three ranks start its first operation, and when does the first of them end its last one? "
        "By order: count the operations in a rank's list; the turn-taking part starts with a forward and ends with a backward.",
        because="By time, the two pictures have the same phases; by order, they have little in common. When you read 'warm-up', "
        "ask which one is meant.",
        wrong=(
            idea("warm-up lasts until the first backward", {"GPipe: warm-up ends at": 6})("""
                6 is when the first backward begins. By time, the warm-up ends when every rank has started: that is
                earlier."""),
            idea("warm-up lasts until the last rank's first forward has ended", {"GPipe: warm-up ends at": 3})("""
                3 is when rank 2 has run its first forward. By time, the warm-up ends when the last rank starts."""),
            idea("warm-up lasts until the first backward of 1F1B", {"1F1B: warm-up ends at": 3})("""
                3 is when rank 2's first backward begins. By time, the warm-up ends when every rank has started its
                first operation."""),
            idea("warm-up is all forwards", {"GPipe: warm-up ends at": 4})("""
                4 is when rank 0 has run its forwards. By time, the warm-up is over the whole pipeline: it ends when the
                last rank starts."""),
            idea("cool-down is all backwards", {"GPipe: cool-down begins at": 6})("""
                6 is when the backwards begin. But all ranks are still at work or have work to come. By time, the
                cool-down begins when the first rank is done for good."""),
            idea("cool-down is the end of the step", {"GPipe: cool-down begins at": 18})("""
                18 is when the last rank to be done is done: there the cool-down ends. It begins when the first one is."""),
            idea("cool-down is the end of the step of 1F1B", {"1F1B: cool-down begins at": 18})("""
                18 is when the last rank to be done is done: there the cool-down ends. It begins when the first one is."""),
            idea("cool-down is trailing backwards", {"1F1B: cool-down begins at": 12})("""
                12 is when the last of all forwards, rank 2's F3, has ended. But B3 is still to come there. By time, the
                cool-down begins when a rank has run all that it has to run."""),
            idea("GPipe alternates", {"GPipe: rank 0 by order": (3, 2, 3)})("""
                You gave {got}: F3 and B0 stand side by side, but that is no taking turns: no forward comes after a
                backward. The middle part is empty."""),
            idea("the pair's forward counts as warm-up", {"1F1B: rank 0 by order": (3, 3, 2)})("""
                You counted F2 to the warm-up. It is the forward of the first pair, F2 B0: the turn-taking starts with
                it. Megatron's warm-up counts the same way."""),
            idea("pairs are counted", {"1F1B: rank 0 by order": (2, 2, 2)})("""
                You counted two pairs in the middle, and two pairs there are. Count operations: the three numbers add up
                to the rank's 8."""),
            idea("pairs are counted on rank 2", {"1F1B: rank 2 by order": (0, 4, 0)})("""
                You counted pairs. Count operations: the three numbers add up to the rank's 8."""),
            idea(
                "only what stands between the first B and the last F is turn-taking",
                {"1F1B: rank 0 by order": (3, 2, 3)},
            )("""
                You cut right before the first backward and right after the last forward. The turn-taking is made of
                whole pairs: F2 B0 and F3 B1 belong to it."""),
            idea("the last pair's backward counts as cool-down", {"1F1B: rank 0 by order": (2, 3, 3)})("""
                You counted B1 to the cool-down. It is the backward of the last pair, F3 B1: the turn-taking ends with
                it."""),
            idea("all stages need the same warm-up", {"1F1B: rank 2 by order": (2, 4, 2)})("""
                You gave rank 2 what rank 0 has. Read its own list: its first operation after F0 is a backward already."""),
            idea("the last rank has leading and trailing parts as well", {"1F1B: rank 2 by order": (1, 6, 1)})("""
                F0 and B0 are a pair of the turn-taking, and so are F3 and B3. What is left before and after?"""),
        ),
    ),
    Exercise(
        "the two bubbles",
        form=ListOf(Number(), length=2),
        cases=cases("p m", (4, 8), (4, 32), (8, 4), (2, 1), (1, 8)),
        right=_both,
        nudge="In units of F + B, each rank works m and waits p - 1. Divide what it waits, first by all of its time, then by the work.",
        because="One is the share of time lost, never above 1. The other compares with the ideal time, and has no upper end. A paper's "
        "'bubble' may be either: look at what it divides by.",
        wrong=(
            idea("denominators swapped", lambda p, m: tuple(reversed(_both(p, m))))("""
                You have both, in the other order: the first divides by the makespan, the second by the ideal time."""),
            idea("(p-1)/m is the share of time lost", lambda p, m: ((p - 1) / m, (p - 1) / m))("""
                (p-1)/m is idle time over the time of the work alone. As a share of all the time it would be above 1 for
                p=8, m=4: more lost than there is. Divide by work and waiting together."""),
            idea("there is one bubble", lambda p, m: ((p - 1) / (m + p - 1),) * 2)("""
                The first one is right. The second divides the same idle time by the ideal time, in which nobody waits."""),
            idea("the makespan is m + p", lambda p, m: ((p - 1) / (m + p), (p - 1) / m))("""
                The makespan in units of F + B is what a rank works, m, plus what it waits, p - 1. You added p."""),
            idea("utilization for bubble", lambda p, m: (m / (m + p - 1), (p - 1) / m))("""
                Your first number is the share in which ranks work. The bubble is the rest."""),
            idea("per cent", lambda p, m: tuple(100 * share for share in _both(p, m)))("""
                You have both, in per cent. Give fractions: 25 % is 0.25."""),
        ),
    ),
    Exercise(
        "weights of the microbatch losses",
        form=ListOf(Number()),
        cases=({"sizes": [4, 4]}, {"sizes": [3, 3, 2, 2]}, {"sizes": [5]}, {"sizes": [1, 7, 2]}),
        right=_shares,
        nudge="In the mean over the whole batch each sample counts the same. In a microbatch's mean each counts 1 / its size. "
        "What must that mean be multiplied by?",
        because="1/m is the special case of equal sizes.",
        wrong=(
            idea("losses are just added", lambda sizes: [1 for _ in sizes])("""
                With weight 1 for each, the sum of {sizes} comes out as many means added up: the gradients are too large."""),
            idea("1/m whatever the sizes", lambda sizes: [1 / len(sizes) for _ in sizes])("""
                1/m for each is right where all microbatches have the same size. In {sizes} a sample of a small
                microbatch would count more than one of a large microbatch."""),
            idea("small microbatches count more", lambda sizes: [1 / size for size in sizes])("""
                {got} divides by the size once more, but each loss is a mean already."""),
            idea("sizes themselves as weights", list)("""
                {got} makes the mean of each microbatch its sum again: the result is the sum over the batch, not the
                mean."""),
        ),
    ),
)
