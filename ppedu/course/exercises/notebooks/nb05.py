"""What notebook 05 asks: 1F1B, its time, its memory, and what a fixed room for activations is worth.

Letters: p ranks, m microbatches; F forward, B backward; a forward and a backward take one unit of time each.
"""

from __future__ import annotations

from collections.abc import Callable

from ppedu.core.operations import Action, Kind
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.core.timeline import Timeline
from ppedu.course.exercises.ask import Exercise, Question, Wrong, cases, idea
from ppedu.course.exercises.forms import Fields, ListOf, Number, Order, YesNo
from ppedu.course.exercises.orders import Orders
from ppedu.schedules import gpipe, naive, one_f_one_b


def _start(timeline: Timeline, action: Action) -> float:
    return next(span.start for span in timeline.spans if span.action == action)


def in_rounds(p: int, m: int, room: int) -> Schedule:
    """GPipe that empties the pipeline each time `room` microbatches are in flight."""
    rounds = [range(first, min(first + room, m)) for first in range(0, m, room)]
    order = " ".join(f"{kind}{i}" for part in rounds for kind in "FB" for i in part)
    return Schedule.from_text("\n".join([order] * p), name=f"GPipe in rounds of {room}")


QUESTIONS = (
    Question(
        "earliest B0 on rank 0",
        form=Number("units"),
        answer=lambda: _start(simulate(naive(p=4)), Action(0, Kind.B, 0)),
        because="Microbatch 0 goes down through ranks 0 to 3, which takes 4 units, and its gradient comes up through ranks "
        "3, 2 and 1, which takes 3 more. Then rank 0 has what B0 needs, however many microbatches there are.",
        wrong=(
            idea("B of a microbatch comes right after its F", 1)("""
                At 1 rank 0 has done F0, but the gradient that B0 needs comes from rank 1, which has it from rank 2,
                which has it from rank 3: nobody has computed a loss yet."""),
            idea("the way back costs nothing", 4)("""
                At 4 the last rank has done F0 and knows the loss. The gradient still has to come up."""),
            idea("the last rank's B is free", 6)("6 counts ranks 2 and 1 on the way up. Rank 3 has a B0 as well."),
            idea("a backward waits for all forwards", 14)("""
                14 is when GPipe runs it. B0 needs nothing from microbatches 1 to 7: it is GPipe's order that makes it
                wait."""),
            idea("after its own forwards", 8)("""
                8 is when rank 0 could have run its eight forwards. B0 needs none but F0."""),
        ),
    ),
    Question(
        "1F1B against GPipe",
        form=Number("units"),
        answer=lambda: simulate(one_f_one_b(p=4, m=32)).makespan,
        because="The same as GPipe: rank 3 cannot start before 3, has 32 x 2 = 64 units of work, and its last gradient needs "
        "3 more to come up to rank 0. No order changes any of the three.",
        wrong=(
            idea("no bubble at all", 64)("64 is the work of one rank alone: it would mean that no rank ever waits."),
            idea("1F1B has a smaller bubble than GPipe", 60, when=lambda got, want: got < want)("""
                That would be faster than GPipe's 70. Alternating forwards and backwards moves the bubble to other
                places; it does not shrink it."""),
            idea("alternating costs time", 80, when=lambda got, want: got > want)("""
                That would be slower than GPipe's 70. Whenever a rank waits in 1F1B, it would have waited as long
                somewhere else in GPipe."""),
        ),
    ),
    Question(
        "in flight in 1F1B",
        form=Number("microbatches", whole=True),
        answer=lambda: simulate(one_f_one_b(p=4, m=32)).peak_in_flight[0],
        because="Three forwards to warm up, and the forward of the first pair. From then on each forward comes right after "
        "a backward, which has freed its place.",
        wrong=(
            idea("as in GPipe", 32)("32 is GPipe's. In 1F1B the first backward comes long before the last forward."),
            idea("B of a microbatch comes right after its F", 1)("""
                One would do if B0 came right after F0. It comes 6 units later, and meanwhile rank 0 goes on."""),
            idea("warm-up alone", 3)("Three are the warm-up. The first pair opens with one more forward: F3, then B0."),
            idea("fixed for m=8", 8)("""
                Eight is GPipe's figure for m = 8. Count the forwards before the first backward."""),
        ),
    ),
    Question(
        "GPipe with room for four",
        form=Number("units"),
        answer=lambda: simulate(in_rounds(p=4, m=16, room=4)).makespan,
        because="Each round of four fills and empties the whole pipeline: (4 + 3) x 2 = 14 units, four times. 1F1B fits "
        "into the same room with one fill and one drain: (16 + 3) x 2 = 38.",
        wrong=(
            idea("room costs no time", 38)("""
                38 is what GPipe takes when it may hold all 16. Here it must stop after four."""),
            idea("one round only", 14)("14 is one round of four microbatches, and there are four rounds."),
            idea("no bubble at all", 32)("32 is the work of a rank alone. Each round has a fill and a drain as well."),
            idea("a drain overlaps the next fill", 44, when=lambda got, want: 38 < got < want)("""
                That would let the drain of a round hide in the fill of the next one. But rank 0 is the last to finish a
                round, and nothing of the next one can start anywhere before rank 0 starts it."""),
        ),
    ),
)


def _pairs(warmup: Callable[[int, int, int], int], offset: bool = True) -> Callable[[int, int], list[list[str]]]:
    """Orders of the shape warm-up, pairs, rest. offset: the B of a pair is the oldest one, else that of its own F."""

    def orders(p: int, m: int) -> list[list[str]]:
        ranks = []
        for rank in range(p):
            fill = warmup(rank, p, m)
            order = [f"F{i}" for i in range(fill)]
            for i in range(fill, m):
                order += [f"F{i}", f"B{i - fill if offset else i}"]
            rest = range(max(0, m - fill), m) if offset else range(fill)
            ranks.append(order + [f"B{i}" for i in rest])
        return ranks

    return orders


def _lines(schedule: Schedule) -> list[str]:
    return [line.split(": ")[1] for line in str(schedule).splitlines()]


_SEQUENCES = {
    "p=4, m=5, rank 2": _lines(one_f_one_b(4, 5))[2],
    "p=6, m=6, rank 1": _lines(one_f_one_b(6, 6))[1],
    "p=4, m=3, rank 3": _lines(one_f_one_b(4, 3))[3],
    "p=4, m=2, rank 0": _lines(one_f_one_b(4, 2))[0],
}

_NOT_ALTERNATING = "That is GPipe: all forwards, then all backwards. Once warm, 1F1B alternates: F, B, F, B."
_RIGHT_AFTER = (
    "Here each B follows its own F. Only the last rank can do that. Any other rank would stand still until the gradient "
    "has come back, so it runs a few forwards first."
)
_ONE_TOO_MANY = (
    "One forward too many before the first B: the warm-up of rank i is p - 1 - i, and the forward of the first pair comes on "
    "top of it."
)
_SAME_WARMUP = (
    "That is the warm-up of rank 0. The further down a rank stands, the sooner the first gradient is back, and the fewer "
    "forwards it needs until then: p - 1 - i."
)
_OWN_PAIR = (
    "After the warm-up, the B of a pair is that of the oldest microbatch in flight, whose gradient is back first, not that of "
    "the forward beside it."
)


def _sequence_ideas() -> tuple[Wrong, ...]:
    key, small = "p=4, m=5, rank 2", "p=4, m=2, rank 0"
    return (
        idea("Non-interleaved means F and B do not alternate", {key: _lines(gpipe(4, 5))[2]})(_NOT_ALTERNATING),
        idea("B of a microbatch comes right after its F", {key: _lines(naive(4, 5))[2]})(_RIGHT_AFTER),
        idea("one forward too many", {key: " ".join(_pairs(lambda r, p, m: p - r)(4, 5)[2])})(_ONE_TOO_MANY),
        idea("all ranks warm up alike", {key: " ".join(_pairs(lambda r, p, m: p - 1)(4, 5)[2])})(_SAME_WARMUP),
        idea("a pair is one microbatch's", {key: " ".join(_pairs(lambda r, p, m: p - 1 - r, False)(4, 5)[2])})(
            _OWN_PAIR
        ),
        idea(
            "Non-interleaved means F and B do not alternate (last rank)", {"p=4, m=3, rank 3": _lines(gpipe(4, 3))[3]}
        )("""
            That is GPipe's order. Rank 3 is the last one: it knows the loss as soon as F0 is done, so what should B0
            wait for?"""),
        idea("warm-up is not limited by m", {small: "F0 F1 F2 B0 B1"})("""
            There is no microbatch 2: m = 2. The warm-up cannot have more forwards than there are microbatches."""),
        idea("a rank must alternate", {small: "F0 B0 F1 B1"})("""
            Rank 0 has a warm-up of up to three forwards, and both that there are belong to it. Waiting for B0 before F1
            leaves everybody below without work."""),
        idea(
            "one forward too many (rank 1 of 6)", {"p=6, m=6, rank 1": " ".join(_pairs(lambda r, p, m: p - r)(6, 6)[1])}
        )(_ONE_TOO_MANY),
    )


def _times(p: int, m: int, room: int) -> tuple[float, float]:
    return simulate(in_rounds(p, m, room)).makespan, simulate(one_f_one_b(p, m)).makespan


def _largest(p: int, m: int, room: int) -> tuple[int, int]:
    return room // m, room // simulate(one_f_one_b(p, m)).peak_in_flight[0]


_QUIZ = {
    "With equal stages and free messages, 1F1B has a smaller bubble than GPipe": False,
    "In 1F1B with p=4 and m=8, rank 0 runs B0 right after F3": True,
    "In non-interleaved 1F1B, forwards and backwards do not alternate": False,
    "All stages need the same warm-up": False,
    "With p=4 and m=32 in place of 16, 1F1B holds no more activations": True,
    "O(p) memory means that memory no longer depends on the model": False,
    "Where memory is short, 1F1B can finish a batch sooner than GPipe": True,
}
_TRUE_ONES = {
    "In 1F1B with p=4 and m=8, rank 0 runs B0 right after F3": "Count: F0 F1 F2 to warm up, then the first pair. What stands "
    "second in it?",
    "With p=4 and m=32 in place of 16, 1F1B holds no more activations": "What does the peak of rank i depend "
    "on, p - i, once there are that many microbatches?",
    "Where memory is short, 1F1B can finish a batch sooner than GPipe": "With room for four, GPipe took 56 units and 1F1B 38.",
}
_FALSE_ONES = {
    "With equal stages and free messages, 1F1B has a smaller bubble than GPipe": (
        "1F1B has a smaller bubble than GPipe",
        "Both took 22 units, predicted and, but for what messages took, measured.",
    ),
    "In non-interleaved 1F1B, forwards and backwards do not alternate": (
        "Non-interleaved means F and B do not alternate",
        "Look at rank 3: F0 B0 F1 B1. The word says how layers are placed, not in which order operations run.",
    ),
    "All stages need the same warm-up": (
        "All stages need the same warm-up",
        "Rank 0 of four runs three forwards to warm up, rank 3 none.",
    ),
    "O(p) memory means that memory no longer depends on the model": (
        "O(p) memory means memory no longer depends on the model",
        "p counts the microbatches in flight. How many bytes each of them takes is up to the model.",
    ),
}

EXERCISES = (
    Exercise(
        "predict sequences of 1F1B",
        form=Fields({key: Order() for key in _SEQUENCES}),
        right=_SEQUENCES,
        nudge="Three questions for rank i: how many forwards are its warm-up, min(p - 1 - i, m)? Which pairs of F and oldest B "
        "follow? Which B are left?",
        because="Rank, p and m are all you need: nobody has to tell a rank what the others do.",
        wrong=_sequence_ideas(),
    ),
    Exercise(
        "write 1F1B",
        form=Orders(),
        cases=cases("p m", (4, 8), (4, 2), (1, 3), (3, 3), (2, 5)),
        right=one_f_one_b,
        nudge="Print the order of one rank and read it: a warm-up of min(p - 1 - rank, m) forwards, pairs, the remaining backwards.",
        because="This is the schedule that Megatron-LM calls non-interleaved, and you wrote it.",
        wrong=(
            idea("warm-up is not limited by m", _pairs(lambda rank, p, m: p - 1 - rank))("""
                For m < p the warm-up is longer than the batch: with p=4 and m=2, rank 0 would run F2, and there is
                none. It is min(p - 1 - rank, m)."""),
            idea("GPipe", gpipe)(_NOT_ALTERNATING),
            idea("B of a microbatch comes right after its F", naive)(_RIGHT_AFTER),
            idea("one forward too many", _pairs(lambda rank, p, m: min(p - rank, m)))(_ONE_TOO_MANY),
            idea("all ranks warm up alike", _pairs(lambda rank, p, m: min(p - 1, m)))(_SAME_WARMUP),
            idea("a pair is one microbatch's", _pairs(lambda rank, p, m: min(p - 1 - rank, m), False))(_OWN_PAIR),
            idea("counted from the wrong end", _pairs(lambda rank, p, m: min(rank, m)))("""
                Your warm-up grows with the rank. It is the first rank that waits longest for its first gradient, and so
                runs most forwards before it: p - 1 - rank."""),
        ),
    ),
    Exercise(
        "spend room for activations",
        form=ListOf(Number("units"), 2),
        cases=cases("p m room", (4, 16, 4), (4, 16, 16), (4, 10, 4), (2, 12, 6), (4, 3, 5)),
        right=_times,
        nudge="A round of n microbatches takes (n + p - 1) x 2. How many rounds does GPipe need, and how large is the last one?",
        because="With room for all of them the two are equal. What 1F1B wins, it wins because it needs less room.",
        wrong=(
            idea("room costs no time", lambda p, m, room: (2 * (m + p - 1), 2 * (m + p - 1)))("""
                Here both schedules hold as much as they like. GPipe may hold {room}, so it runs {room} forwards, then
                all their backwards, and only then goes on."""),
            idea("1F1B has a smaller bubble than GPipe", lambda p, m, room: (_times(p, m, room)[0], 2.0 * m))("""
                GPipe is right. 1F1B fills and drains once, too: its makespan is not the work of one rank alone."""),
            idea("1F1B works in rounds as well", lambda p, m, room: (_times(p, m, room)[0],) * 2)("""
                GPipe is right. 1F1B never holds more than p, so room for p is enough to go on without a stop."""),
            idea("1F1B first", lambda p, m, room: _times(p, m, room)[::-1])("""
                Both are right, in the other order: GPipe's comes first."""),
            idea("all rounds are full", lambda p, m, room: (2 * -(-m // room) * (room + p - 1), 2 * (m + p - 1)))("""
                1F1B is right. The last round of GPipe has only the microbatches that are left."""),
            idea(
                "one fill and drain for all rounds",
                lambda p, m, room: (2 * m + 2 * (p - 1) * (m // room), 2 * (m + p - 1)),
            )("""
                1F1B is right. Each round of GPipe fills and drains the pipeline, a last one that is not full as well."""),
        ),
    ),
    Exercise(
        "larger microbatches in the same room",
        form=ListOf(Number("sequences", whole=True), 2),
        cases=cases("p m room", (4, 8, 32), (4, 32, 64), (8, 16, 100), (4, 2, 20)),
        right=_largest,
        nudge="How many microbatches does rank 0 hold at its peak, under each of the two? The room is shared out among them.",
        because="The larger the microbatch, the better a device is used. That is the other thing that 1F1B's spare room buys.",
        wrong=(
            idea("both hold m", lambda p, m, room: (room // m, room // m))("""
                Under 1F1B rank 0 holds at most p={p} microbatches, not m={m}."""),
            idea("both hold p", lambda p, m, room: (room // p, room // p))("""
                Under GPipe rank 0 holds all m={m} microbatches before its first backward."""),
            idea("1F1B first", lambda p, m, room: _largest(p, m, room)[::-1])("""
                Both are right, in the other order: GPipe's comes first."""),
            idea("1F1B holds p even where there are fewer", lambda p, m, room: (room // m, room // p))("""
                Right while m is at least p. With fewer microbatches than ranks, rank 0 holds what there is: min(p, m)."""),
            idea("the warm-up alone", lambda p, m, room: (room // m, room // min(p - 1, m)))("""
                p - 1 are the warm-up of rank 0. The forward of the first pair comes on top."""),
        ),
    ),
    Exercise(
        "quiz of 1F1B",
        form=Fields({claim: YesNo() for claim in _QUIZ}),
        right=_QUIZ,
        nudge="Each of them is settled by a run on this page: look again.",
        because="Each of them is met again below, with the run that settles it.",
        wrong=(
            *(idea(name, {claim: True})(hint) for claim, (name, hint) in _FALSE_ONES.items()),
            *(idea(f"denies: {claim}", {claim: False})(hint) for claim, hint in _TRUE_ONES.items()),
        ),
    ),
)
