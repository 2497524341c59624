"""What notebook 07 asks: several stages on each rank, in which order they take turns, and what that costs.

Letters: p ranks, m microbatches, v stages on each rank; F forward, B backward. Stage s stands on rank s modulo p.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ppedu.core.costs import Costs
from ppedu.core.simulate import simulate
from ppedu.course.exercises.ask import Exercise, Question, Wrong, cases, idea
from ppedu.course.exercises.forms import Fields, ListOf, Number
from ppedu.course.exercises.orders import Orders
from ppedu.schedules import interleaved, looped_bfs, one_f_one_b

STAGE = Costs(1, 2)
"""One of the p v stages: F = 1, B = 2."""


def _warmup_of_last_rank() -> int:
    return len(simulate(interleaved(4, 8)).phases_of(3)[0])


def _messages(p: int, m: int, v: int) -> int:
    """Results that another rank needs: of each microbatch one activation and one gradient over each cut between ranks."""
    ranks = interleaved(p, m, v).rank_of_stage
    return 2 * m * sum(ranks[s] != ranks[s + 1] for s in range(len(ranks) - 1))


QUESTIONS = (
    Question(
        "makespan when interleaved",
        form=Number("units"),
        answer=lambda: simulate(interleaved(4, 8), STAGE).makespan,
        because="Each rank still has 16 x 3 = 48 units of work. But the last rank now waits for three stages of half the size before "
        "it can start, and the last gradient passes three of half the size on its way up: 9 units of idle time in place of 18.",
        wrong=(
            idea("the same work takes the same time", 66)("""
                The work is the same, 48 units for each rank. But 66 has 18 units of waiting in it. Is the way to the
                last rank as long as before?"""),
            idea("no bubble is left", 48)("""
                48 is the work of a rank alone. Rank 3 still has to wait for its first input."""),
            idea("interleaving needs more devices", 45)("""
                45 = (8 + 7) x 3 is eight devices with one stage each. There are four, and each has two stages to run."""),
            idea("a longer chain has a longer fill", 69)("""
                That would be if rank 3 waited for all seven stages before the last one. It holds stage 3 as well, and
                can start with that."""),
            idea("half the stages, half the time", 33)("""
                33 is half of 66. The stages are half as long, but there are twice as many."""),
        ),
    ),
    Question(
        "warm-up of the last rank",
        form=Number("forwards", whole=True),
        answer=_warmup_of_last_rank,
        because="Rank 3 runs F0 to F3 on stage 3. Meanwhile microbatch 0 has gone round, through stages 4, 5 and 6, and is back. Its "
        "forward on stage 7 opens the first pair, and its backward closes it.",
        wrong=(
            idea("the last rank has no warm-up", 0)("""
                In 1F1B, yes: there the last rank has the last stage only. Here its first forward is one of stage 3, and
                that has no loss yet."""),
            idea("the pair's forward is warm-up", 5)("""
                Five forwards stand before the first backward. But the fifth, 7F0, belongs to the pair that this
                backward closes."""),
            idea("all microbatches first", 8)("""
                Eight would be all microbatches on stage 3 before the first one on stage 7. That one is there earlier:
                after four."""),
            idea("one lap is one forward", 1)("""
                After its F0 on stage 3, microbatch 0 has three more stages to pass. What does rank 3 do meanwhile?"""),
        ),
    ),
    Question(
        "in flight when interleaved",
        form=Number("whole microbatches"),
        answer=lambda: simulate(interleaved(4, 8, 6)).peak_activations[0],
        because="(6 - 1) x 4 + 2 x 3 = 26 forwards of warm-up, and the forward of the first pair: 27 sixths are 4.5 whole ones. There are more "
        "pieces than with v = 2, but each is smaller.",
        wrong=(
            idea("counts pieces", 27)("There are 27 pieces, yes. Each is one sixth of a whole one."),
            idea("as in 1F1B", 4)("""
                Four is 1F1B's figure, or 24 sixths. The usual warm-up runs more forwards than that: count them."""),
            idea("as with two stages", 5.5)("""
                5.5 is v = 2. The warm-up gets longer by p with each further stage, but the stages get smaller."""),
            idea("the warm-up alone", 26 / 6, when=lambda got, want: abs(got - 26 / 6) < 0.01)("""
                26 sixths are the warm-up of rank 0. The forward of the first pair comes on top, before anything is
                freed."""),
            idea("as in GPipe", 8)("""
                Eight would be all microbatches on all six stages. The first backward comes before that."""),
            idea("more stages keep more", 16.5, when=lambda got, want: got > 5.5)("""
                The number of pieces grows with v, but each piece is 1/v of a whole one."""),
        ),
    ),
    Question(
        "messages when interleaved",
        form=Number("messages", whole=True),
        answer=lambda: _messages(4, 8, 2),
        because="Eight stages have seven cuts between them, and each cut has a rank on either side. Eight activations go down and eight "
        "gradients up: 7 x 16. With four stages it was 3 x 16.",
        wrong=(
            idea("v times the messages", 96)("""
                Twice 48 would be six cuts. But between the two laps there is one more, from rank 3 back to rank 0."""),
            idea("the same model sends the same", 48)("""
                The model is the same, but it is cut in more places, and each cut is between two ranks."""),
            idea("one cut for each stage", 128)("""
                128 is eight cuts. Between eight stages there are seven: the last one sends to nobody."""),
            idea("forwards only", 56)("56 are the activations. The gradients go back over the same cuts."),
        ),
    ),
)


_WHOLE = Number(whole=True)
_THREE, _SIX = (ListOf(_WHOLE, count, ordered=False) for count in (3, 6))
_HELD = {
    "rank of stage 6, p=4": 2,
    "rank of stage 9, p=4": 1,
    "stages on rank 0, p=3, v=3": [0, 3, 6],
    "layers on rank 1, p=4, v=2": [3, 4, 5, 15, 16, 17],
}
_NEIGHBOURS = "Those are neighbours: one run of layers, which is what non-interleaved means. In a ring, neighbours stand on different ranks."
_BACK_UP = "That walks down the ranks and up again, like a V. There is such a placement (notebook 08 has it). A ring starts each lap at rank 0."


def _held_ideas() -> tuple[Wrong, ...]:
    six, nine, stages, layers = _HELD
    return (
        idea("a rank holds neighbours (stage 6)", {six: 3})(_NEIGHBOURS),
        idea("a rank holds neighbours (stage 9)", {nine: 3})(_NEIGHBOURS),
        idea("a rank holds neighbours (stages)", {stages: [0, 1, 2]})(_NEIGHBOURS),
        idea("a rank holds neighbours (layers)", {layers: [6, 7, 8, 9, 10, 11]})(_NEIGHBOURS),
        idea("down and up again (stage 6)", {six: 1})(_BACK_UP),
        idea("down and up again (stages)", {stages: [0, 5, 6]})(_BACK_UP),
        idea("down and up again (layers)", {layers: [3, 4, 5, 18, 19, 20]})(_BACK_UP),
        idea("layers are dealt out one by one", {layers: [1, 5, 9, 13, 17, 21]})("""
            That deals out single layers, as with v=6. With v=2 there are 8 stages of 3 layers, and rank 1 holds two of
            them."""),
        idea("layers are counted from 1", {layers: [4, 5, 6, 16, 17, 18]})("""
            The right layers, counted from 1. The first one is layer 0 here."""),
    )


Rule = Callable[[int, list[int], int], int]
"""(rank, sizes of the rounds, p) -> forwards before the first pair, v=2."""


def _usual(rank: int, sizes: list[int], p: int) -> int:
    return min(sizes[0] + 2 * (p - 1 - rank), 2 * sum(sizes))


def _rounds_of_p(p: int, m: int) -> list[int]:
    return [p] * (m // p) + [m % p] * (m % p > 0)


def _even(p: int, m: int) -> list[int]:
    rounds = max(1, m // p)
    return [m // rounds + (i < m % rounds) for i in range(rounds)]


def _even_and_small(p: int, m: int) -> list[int]:
    rounds = -(-m // p)
    return [m // rounds + (i < m % rounds) for i in range(rounds)]


def _in_rounds(
    p: int,
    m: int,
    sizes: Callable[[int, int], list[int]] = _rounds_of_p,
    warmup: Rule = _usual,
    turned: bool = True,
    stride: bool = True,
    named: bool = True,
) -> list[list[str]]:
    """Orders for v=2, right or wrong. turned: backwards begin with the later stage. stride: stages stand in a ring.
    named: operations say their stage."""
    rounds = sizes(p, m)
    first = [sum(rounds[:i]) for i in range(len(rounds))]
    ranks = []
    for rank in range(p):
        mine = [rank, rank + p] if stride else [2 * rank, 2 * rank + 1]
        parts = [range(start, start + size) for start, size in zip(first, rounds, strict=True)]
        forwards = [f"{s}F{i}" for part in parts for s in mine for i in part]
        backwards = [f"{s}B{i}" for part in parts for s in (mine[::-1] if turned else mine) for i in part]
        fill = warmup(rank, rounds, p)
        pairs = [word for pair in zip(forwards[fill:], backwards, strict=False) for word in pair]
        order = forwards[:fill] + pairs + backwards[len(backwards) - fill :]
        ranks.append(order if named else [word.lstrip("0123456789") for word in order])
    return ranks


def _one_lap_at_once(p: int, m: int) -> list[list[str]]:
    """Each microbatch through both stages of a rank before the next one."""
    return _in_rounds(p, m, lambda p, m: [1] * m, lambda rank, sizes, p: min(p + 2 * (p - 1 - rank), 2 * len(sizes)))


_BY_RULE = "Three things make up the order of a rank: its forwards in rounds of p, its backwards in the same rounds with the later stage first, "
_WRITE_NUDGE = (
    _BY_RULE
    + "and how many forwards it runs before the first pair: p + 2 (p - 1 - rank), or all there are. Print one rank of yours."
)
_PLAIN_WARMUP = (
    "That is the warm-up of 1F1B. With two stages a rank needs its whole first round, p more forwards, before a microbatch can be on "
    "its second stage."
)
_ALL_AT_ONCE = (
    "Your rounds are as long as the batch: all m on the first stage, then all on the second. The time is the same, but rank 0 holds more than "
    "it must. After p microbatches the first one is back, so go on with it."
)


def _peak(rank: int, p: int, m: int, v: int) -> int:
    return simulate(interleaved(p, m, v)).peak_in_flight[rank]


EXERCISES = (
    Exercise(
        "what a rank holds",
        form=Fields(dict(zip(_HELD, (_WHOLE, _WHOLE, _THREE, _SIX), strict=True))),
        right=_HELD,
        nudge="Deal the stages out like cards: stage 0 to rank 0, stage 1 to rank 1, ..., and from the last rank on to rank 0 again.",
        because="Stage s stands on rank s modulo p, whatever v is.",
        wrong=_held_ideas(),
    ),
    Exercise(
        "write interleaved 1F1B",
        form=Orders(costs=STAGE),
        cases=cases("p m", (4, 8), (2, 4), (4, 4), (3, 9), (1, 2)),
        right=partial(interleaved, v=2),
        nudge=_WRITE_NUDGE,
        because="No slower than what Megatron-LM calls interleaved, no more in flight, and you wrote it.",
        wrong=(
            idea(
                "the stage is left out",
                partial(_in_rounds, named=False),
                when=lambda got, want, p, m: got.num_stages == p and len(got.orders[0]) == len(want.orders[0]),
            )("""
                Your operations do not say on which of its two stages a rank runs them, so F0 stands there twice. Write
                the stage in front: 0F0 and 4F0."""),
            idea("plain 1F1B", one_f_one_b, when=lambda got, want, p, m: got.num_stages == p)("""
                Your ranks have one stage each, as in plain 1F1B. Here there are 2p stages: write the stage in front, as
                in 4F0, and run both of the rank's stages."""),
            idea("looped BFS", looped_bfs)("""
                All forwards, then all backwards: that is GPipe's order on a ring. It is a schedule, but it holds all m."""),
            idea("the warm-up of 1F1B", partial(_in_rounds, warmup=lambda rank, sizes, p: p - 1 - rank))(_PLAIN_WARMUP),
            idea(
                "the round is missing in the warm-up",
                partial(_in_rounds, warmup=lambda rank, sizes, p: min(2 * (p - 1 - rank), 2 * sum(sizes))),
            )("""
                The last rank would have no warm-up at all. But before its second stage has anything to do, it has run a
                round of p forwards on its first."""),
            idea(
                "one forward too many",
                partial(_in_rounds, warmup=lambda rank, sizes, p: min(_usual(rank, sizes, p) + 1, 2 * sum(sizes))),
            )("""
                One forward too many before the first pair: the pair brings its own."""),
            idea(
                "counted from the wrong end",
                partial(_in_rounds, warmup=lambda rank, sizes, p: min(p + 2 * rank, 2 * sum(sizes))),
            )("""
                Your warm-up grows with the rank. It is the first rank that waits longest for its first gradient."""),
            idea(
                "warm-up is not limited by m",
                partial(_in_rounds, warmup=lambda rank, sizes, p: sizes[0] + 2 * (p - 1 - rank)),
            )("""
                With p=4 and m=4, rank 0 has eight forwards in all, and your warm-up asks for ten. Take what there is:
                min(..., 2 * m)."""),
            idea("all microbatches of a stage at once", partial(_in_rounds, sizes=lambda p, m: [m]))(_ALL_AT_ONCE),
            idea("each microbatch through both stages", _one_lap_at_once)("""
                Your ranks alternate between their two stages with each microbatch. But after 0F0, microbatch 0 is away
                on ranks 1 to p - 1. In the meantime run p - 1 more on the first stage."""),
            idea("backwards in the order of forwards", partial(_in_rounds, turned=False))("""
                The gradient comes from the end of the model. So backwards begin with the later one of the rank's two
                stages."""),
            idea("a rank holds neighbours", partial(_in_rounds, stride=False))("""
                You gave rank r the stages 2r and 2r + 1, which are neighbours. In a ring it holds r and r + p."""),
        ),
    ),
    Exercise(
        "peak when interleaved",
        form=Number("stage-microbatches", whole=True),
        cases=cases("rank p m v", (0, 4, 8, 2), (3, 4, 8, 2), (0, 4, 4, 2), (1, 4, 8, 4), (0, 2, 6, 3)),
        right=_peak,
        nudge="How long is the warm-up of this rank? What comes on top of it? And can it hold more than there is?",
        because="In whole ones, each of 1/v of that: rank 0 holds p + (p - 1) / v.",
        wrong=(
            idea("there is no end to microbatches", lambda r, p, m, v: 2 * (p - r - 1) + (v - 1) * p + 1)("""
                Right as long as the batch is large. With p={p}, m={m} and v={v} a rank has {m} x {v} forwards in all,
                and cannot hold more."""),
            idea("the warm-up alone", lambda r, p, m, v: min(m * v, 2 * (p - r - 1) + (v - 1) * p))("""
                That is the warm-up. The forward of the first pair comes on top."""),
            idea("v times 1F1B", lambda r, p, m, v: v * min(p - r, m))("""
                That is what 1F1B holds, in pieces of 1/v. Here the warm-up is another one: (v - 1) p forwards for the
                rounds before the last stage, and two for each rank below."""),
            idea("one forward for each rank below", lambda r, p, m, v: min(m * v, (p - r - 1) + (v - 1) * p + 1))("""
                The usual rule has two forwards for each rank below, not one."""),
            idea("as in GPipe", lambda r, p, m, v: m * v)("""
                Those are all forwards of the rank. The first backward comes before the last of them."""),
        ),
    ),
    Exercise(
        "messages per step",
        form=Number("messages", whole=True),
        cases=cases("p m v", (4, 8, 1), (4, 8, 2), (2, 5, 3), (1, 4, 2), (8, 16, 4)),
        right=_messages,
        nudge="How many cuts lie between p v stages? What passes each of them, and how often? Are there two ranks at every cut?",
        because="Times the bytes of one activation, that is what a step sends.",
        wrong=(
            idea("v times the messages", lambda p, m, v: 2 * m * (p - 1) * v)("""
                That leaves out the way from the last rank back to the first, which each microbatch takes v - 1 times."""),
            idea("a rank writes to itself", lambda p, m, v: 2 * m * (p * v - 1))("""
                Right for p > 1. With one rank both sides of every cut are on it, and nothing has to be sent."""),
            idea("forwards only", lambda p, m, v: m * (p * v - 1) * (p > 1))("""
                Those are the activations. A gradient comes back over each cut as well."""),
            idea("one cut for each stage", lambda p, m, v: 2 * m * p * v * (p > 1))("""
                Between p v stages there are p v - 1 cuts: the last stage sends its output to nobody."""),
            idea("one rank's share", lambda p, m, v: 2 * m * v * (p > 1))("""
                That is what one of the inner ranks sends. How many are sent in all?"""),
        ),
    ),
    Exercise(
        "interleaved for any m",
        form=Orders(costs=STAGE),
        cases=cases("p m", (4, 8), (4, 6), (4, 10), (3, 11), (4, 2), (2, 1)),
        right=partial(interleaved, v=2),
        nudge="Only the sizes of the rounds change: none below p, if m allows that, and none larger than it must be. The warm-up begins with the "
        "size of the first round.",
        because="(m v + p - 1)(F + B) for every m of at least p, so no batch has to be padded.",
        wrong=(
            idea("rounds of p and a rest", _in_rounds)("""
                Right where p divides m. Elsewhere your last round has fewer than p microbatches: the first of them is
                not back from its lap when the rank has run the last one, and everybody waits. Spread the rest over the
                other rounds."""),
            idea("small rounds of equal size", partial(_in_rounds, sizes=_even_and_small))("""
                Your rounds are even, but some have fewer than p microbatches. Make fewer rounds: m // p, so that none
                is too small."""),
            idea("one round of all", partial(_in_rounds, sizes=lambda p, m: [m]))(_ALL_AT_ONCE),
            idea("the rest goes first", partial(_in_rounds, sizes=lambda p, m: _rounds_of_p(p, m)[::-1]))("""
                A first round of m % p microbatches is the shortest one, and the warm-up that begins with it is too
                short for the rounds that follow."""),
            idea(
                "the warm-up counts p",
                partial(
                    _in_rounds, sizes=_even, warmup=lambda rank, sizes, p: min(p + 2 * (p - 1 - rank), 2 * sum(sizes))
                ),
            )("""
                Your rounds are right. But the warm-up begins with p forwards, and a whole first round may be more: take
                its size."""),
            idea("a larger round comes later", partial(_in_rounds, sizes=lambda p, m: _even(p, m)[::-1]))("""
                Your rounds have the right sizes, but the larger ones come last, and the warm-up is that of the first.
                Begin with a large one."""),
        ),
    ),
)
