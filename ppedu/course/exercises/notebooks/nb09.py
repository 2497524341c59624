"""What notebook 09 asks: who holds which stage in a bidirectional schedule, what runs beside what, and what it costs.

Letters: p ranks, m microbatches; F forward, B backward, I and W its halves, F&B an overlapped pair.
"""

from __future__ import annotations

from functools import cache

from ppedu.core.costs import Costs
from ppedu.core.operations import Action, Kind, Overlap
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.core.text import parse_entry
from ppedu.course.exercises.ask import Exercise, Question, cases, idea
from ppedu.course.exercises.forms import Choice, Fields, ListOf, Number
from ppedu.schedules import SCHEDULES, dualpipe, dualpipev


def _pair() -> float:
    """F = 1 and B = 2 at once, half of each on the network: no shorter than B, nor than what either resource has to do."""
    forward, backward, network = 1.0, 2.0, 0.5
    return max(backward, network * (forward + backward), (1 - network) * (forward + backward))


def _beside(schedule: Schedule, operation: str) -> Action:
    """What the schedule runs beside an operation, like "1F3"."""
    place = schedule.place(_action(operation))
    if place is None:
        raise ValueError(f"{schedule.label} has no {operation}")
    entry = schedule.orders[place[0]][place[1]]
    if not isinstance(entry, Overlap):
        raise ValueError(f"{operation} stands alone in {schedule.label}")
    return next(a for a in entry.actions if str(a) != operation)


def _action(operation: str) -> Action:
    return parse_entry(operation).actions[0]


def _costs(schedule: Schedule, pair: float, transfer: float = 0.0) -> Costs:
    """F = I = W = 1 on 1/p of the model."""
    size = schedule.stage_size
    return Costs(size, input_grad=size, weight_grad=size, overlapped=pair * size, transfer=transfer)


def _nothing_overlaps() -> float:
    schedule = dualpipe(4, 8)
    return simulate(schedule, _costs(schedule, pair=3)).makespan


QUESTIONS = (
    Question(
        "a forward beside a backward",
        form=Number("units"),
        answer=_pair,
        because="B is a chain: its parts wait for one another, so it takes 2. The parts of F fit beside it: F computes while B's data "
        "is on its way, and the other way round.",
        wrong=(
            idea("one after the other", 3)("""
                3 is one after the other, with the arithmetic units at rest for half of the time. Can F not compute
                while B waits for the network?"""),
            idea("only the work counts", 1.5)("""
                1.5 units of computing in all, yes, and 1.5 of network. But B alone cannot be shorter than 2: each of
                its parts needs the one before."""),
            idea("as long as the forward", 1)("The pair is done when both are, and B alone takes 2."),
        ),
    ),
    Question(
        "who runs beside 1F3",
        form=Number(whole=True),
        answer=lambda: _beside(dualpipe(4, 8), "1F3").microbatch,
        because="F3 goes down the ranks, and so does the gradient of microbatch 5, which entered at rank 3. They left rank 0 together, "
        "so they reach rank 1 together.",
        wrong=(
            idea("each rank pairs anew", 6)("""
                As in 1F1B, where the partner changes from rank to rank? Which way does the gradient of microbatch 5 go
                after rank 0?"""),
            idea("each rank pairs anew, upwards", 4)("""
                6B4 is done by then: rank 0 had 7B5, and it is the next that comes down."""),
            idea("a microbatch beside itself", 3)("""
                1B3 needs 1F3, and all that follows. A pair is of two microbatches that do not need each other."""),
            idea("a pair of one chain", 0)("""
                B0 is of the same chain as F3 and comes up the ranks. Look for one that goes down."""),
        ),
    ),
    Question(
        "why p is even",
        form=Choice(("a", "b", "c")),
        answer=lambda: "b",
        because="Rank 2 would hold position 2 of both chains: two copies of one stage, on one rank. All other ranks have a mirror image, "
        "and the order is written as two mirrored halves. One could invent an order for the middle; DualPipeV, which has no second half, "
        "takes any p.",
        wrong=(
            idea("m has to be even", "a")("""
                A chain may have five microbatches: p=4 with m=10 runs. The authors' code wants m even, as 10 is; ours
                takes an odd m, too."""),
            idea("sums need an even number of ranks", "c")("""
                The sum is over two copies, whatever p is. Sums of three would be no problem either."""),
        ),
    ),
    Question(
        "DualPipe when nothing overlaps",
        form=Number("units"),
        answer=_nothing_overlaps,
        because="24 units of work and 2 of waiting, more than ZB-V has, with twice the weights. DualPipe's bubble alone is no reason to take it.",
        wrong=(
            idea("pairs always overlap", 22)("22 was with F&B = 2. Now a pair takes 3."),
            idea("no bubble", 24)("24 is the work of a rank. DualPipe has a bubble: (p/2 - 1)(F&B + B - 3W)."),
            idea("the newer one is faster", 25)("It does not beat ZB-V here. Put F&B = 3 into the formula."),
            idea("as fast as ZB-V", 25.5)("Near. Put F&B = 3 into the formula: how long does a rank wait?"),
            idea("as slow as 1F1B", 33)("""
                Without overlap there are still two ends to start from, and W to fill gaps with."""),
        ),
    ),
)


_PLACED = dualpipe(8, 20)
_TWELVE = dualpipe(4, 12)
_WHOLE = Number(whole=True)
_MEMBERS = ListOf(_WHOLE, ordered=False)


def _way(microbatch: int) -> list[int]:
    """The ranks that a microbatch passes, forward."""
    n = _PLACED.chain_length
    chain = next(c for c in range(_PLACED.chains) if microbatch in _PLACED.microbatches_of(c * n))
    return list(_PLACED.rank_of_stage[chain * n : (chain + 1) * n])


def _holders(p: int, position: int) -> list[int]:
    return list(dualpipe(p, 2 * p).rank_of_stage[position::p])


def _gigabytes(schedule: Schedule, rank: int = 0) -> float:
    """What a rank holds of a model of 64 GB."""
    return 64 * schedule.rank_of_stage.count(rank) / schedule.chain_length


def _halved(stage: int, microbatch: int, p: int, m: int) -> tuple[int, int]:
    """What stands in DualPipeV where DualPipe has this forward."""
    rank, slot = dualpipe(2 * p, 2 * m).place(Action(stage, Kind.F, microbatch)) or (0, 0)
    entry = dualpipev(p, m).orders[rank][slot]
    action = next(a for a in entry.actions if a.kind is Kind.F)
    return action.stage, action.microbatch


NAMES = {"1F1B": "1f1b", "ZB-H1": "zb_h1", "ZB-V": "zb_v", "DualPipe": "dualpipe", "DualPipeV": "dualpipev"}


@cache
def _fastest(pair: float, transfer: float, room: float, copies: int) -> str:
    """The schedule with the shortest makespan, p=4 and m=8, among those that fit."""

    def makespan(name: str) -> float:
        schedule = SCHEDULES[NAMES[name]](p=4, m=8)
        timeline = simulate(schedule, _costs(schedule, pair, transfer))
        fits = schedule.chains <= copies and max(timeline.peak_activations) <= room
        return timeline.makespan if fits else float("inf")

    return min(NAMES, key=makespan)


_ONE, _FOUR = "F&B = 2, room for 5 activations and weights once", "F&B = 2, room for 4 activations and weights once"
_SLOW = "F&B = 2, room for 5 activations and weights once, a message takes 1"
_TWICE = "F&B = 3, room for 5 activations and weights twice, a message takes 1"
_APART = "F&B = 3, room for 5 activations and weights twice"

EXERCISES = (
    Exercise(
        "placement of DualPipe",
        form=Fields(
            {
                "stages on rank 2": _MEMBERS,
                "positions on rank 2": _MEMBERS,
                "rank of stage 12": _WHOLE,
                "position of stage 12": _WHOLE,
                "ranks that hold position 0": _MEMBERS,
                "rank where microbatch 13 enters": _WHOLE,
                "rank where microbatch 13 has its loss": _WHOLE,
            }
        ),
        right={
            "stages on rank 2": _PLACED.stages_of(2),
            "positions on rank 2": [s % 8 for s in _PLACED.stages_of(2)],
            "rank of stage 12": _PLACED.rank_of_stage[12],
            "position of stage 12": 12 % _PLACED.chain_length,
            "ranks that hold position 0": _holders(8, 0),
            "rank where microbatch 13 enters": _way(13)[0],
            "rank where microbatch 13 has its loss": _way(13)[-1],
        },
        nudge="Draw the first chain down, 0 to 7, and the second one up, 8 to 15: stage 8 on rank 7, stage 15 on rank 0. Ten microbatches "
        "for each.",
        because="Rank r holds stages r and 2p - 1 - r: positions r and p - 1 - r. Two ends, at which microbatches enter.",
        wrong=(
            idea("a ring", {"stages on rank 2": [2, 10]})("""
                2 and 10 is a ring, as in 07: there the second lap goes the same way. Here the second chain starts at
                the other end."""),
            idea("one stage on each rank", {"stages on rank 2": [2]})("Each rank holds a stage of either chain: two."),
            idea("stage and position are one", {"positions on rank 2": [2, 13]})("""
                13 is a stage's number. Its place in the model, from 0 to 7, is that number modulo 8."""),
            idea("a ring (rank)", {"rank of stage 12": 4})("""
                12 modulo 8 is the position. The second chain starts at rank 7 with stage 8."""),
            idea("position is the rank", {"position of stage 12": 3})("""
                3 is the rank. How many stages does a microbatch pass before stage 12?"""),
            idea("one copy of each stage", {"ranks that hold position 0": [0]})("""
                Each chain has its own copy. Where does the second one start?"""),
            idea("ranks count from 1", {"ranks that hold position 0": [0, 8]})("""
                Eight ranks are 0 to 7: there is no rank 8."""),
            idea("all enter at rank 0", {"rank where microbatch 13 enters": 0})("""
                Microbatches 0 to 9 do. 13 is one of the other ten."""),
            idea("the loss is on the last rank", {"rank where microbatch 13 has its loss": 7})("""
                For the first chain. The second one goes up and ends at the other end."""),
        ),
    ),
    Exercise(
        "who runs beside whom",
        form=Fields({f"beside {name}": _WHOLE for name in ("1F3", "3F5", "0B2", "2B2", "1B3")}),
        right={f"beside {name}": _beside(_TWELVE, name).microbatch for name in ("1F3", "3F5", "0B2", "2B2", "1B3")},
        nudge="Find the pair on rank 0, then follow it: once two have met, they go on together.",
        because="F of one chain and B of the other go the same way, at the same pace.",
        wrong=(
            idea("each rank pairs anew", {"beside 1F3": 8})("Rank 0 has F3 beside B7. Where do both go next?"),
            idea("a microbatch beside itself", {"beside 3F5": 5})("""
                3B5 needs 3F5: on the last position F, then B. Which one came down with F5?"""),
            idea("numbers are equal", {"beside 0B2": 2})("""
                F2 and B2 are of the same chain, and B2 needs F2. Look at rank 0's order, for 0B2."""),
            idea("each rank pairs anew, upwards", {"beside 2B2": 8})("""
                Rank 0 has B2 beside F10, and both came up through rank 2."""),
            idea("off by one", {"beside 1B3": 10})("F10 came up with B2. B3 came one later."),
        ),
    ),
    Exercise(
        "who sums with whom",
        form=ListOf(_WHOLE, 2),
        cases=cases("p position", (8, 0), (8, 3), (8, 7), (4, 1), (2, 1), (12, 4)),
        right=_holders,
        nudge="Chain 0 goes down from rank 0, chain 1 goes up from rank p - 1. Where is each after `position` stages?",
        because="So each rank has one partner, p - 1 - rank, for both of its stages.",
        wrong=(
            idea("off by one", lambda p, position: [position, p - position])("""
                Ranks count from 0: the second chain starts at rank p - 1, not p. {got} has it one too far."""),
            idea("copies side by side", lambda p, position: [position, position])("""
                {got}: both copies on one rank? Then there would be nothing to send, and nothing to run at the same time."""),
            idea("half a ring away", lambda p, position: [position, (position + p // 2) % p])("""
                The second chain is the first one mirrored, not shifted by half."""),
            idea("the second chain first", lambda p, position: [p - 1 - position, position])("""
                The right two ranks. First the one of chain 0, which goes down from rank 0."""),
            idea("the stage's number", lambda p, position: [position, p + position])("""
                p + position is the number of the stage in chain 1. Asked for is the rank that holds it."""),
        ),
    ),
    Exercise(
        "gigabytes of weights",
        form=Fields(
            {
                "1F1B, p = 8": Number("GB"),
                "DualPipe, p = 8": Number("GB"),
                "DualPipe, p = 16": Number("GB"),
                "DualPipeV, p = 8": Number("GB"),
                "gradients to the partner, DualPipe, p = 8": Number("GB"),
                "all ranks together, DualPipe, p = 8": Number("GB"),
            }
        ),
        right={
            "1F1B, p = 8": _gigabytes(SCHEDULES["1f1b"](8, 16)),
            "DualPipe, p = 8": _gigabytes(_PLACED),
            "DualPipe, p = 16": _gigabytes(dualpipe(16, 32)),
            "DualPipeV, p = 8": _gigabytes(dualpipev(8, 16)),
            "gradients to the partner, DualPipe, p = 8": _gigabytes(_PLACED),
            "all ranks together, DualPipe, p = 8": sum(_gigabytes(_PLACED, rank) for rank in range(8)),
        },
        nudge="Into how many stages is the model cut, and how many of them does a rank hold?",
        because="Two copies on p ranks are 2/p of the model on each. Gradients and optimizer state double with the weights.",
        wrong=(
            idea("all of it on each rank", {"1F1B, p = 8": 64})("A rank holds one of eight stages."),
            idea("each copy is half", {"DualPipe, p = 8": 8})("""
                A rank holds two of the stages, each an eighth of the model: the second chain has weights of its own."""),
            idea("twice the devices, the same weights", {"DualPipe, p = 16": 16})("""
                With 16 ranks each stage is a sixteenth of the model."""),
            idea("two stages are two copies", {"DualPipeV, p = 8": 16})("""
                Two stages, yes, but of sixteen: DualPipeV has one chain, and no copy."""),
            idea("one stage alone is summed", {"gradients to the partner, DualPipe, p = 8": 8})("""
                The partner holds the copies of both of the rank's stages."""),
            idea("only activations are sent", {"gradients to the partner, DualPipe, p = 8": 0})("""
                Each copy saw half of the batch. Its gradients alone are not the batch's."""),
            idea("one model is held once", {"all ranks together, DualPipe, p = 8": 64})("Two copies of 64 GB each."),
        ),
    ),
    Exercise(
        "cut in half",
        form=ListOf(_WHOLE, 2),
        cases=cases(
            "stage microbatch p m",
            *((7, 4, 2, 4), (6, 7, 2, 4), (0, 2, 2, 4), (1, 3, 2, 4)),
            *((15, 9, 4, 8), (12, 15, 4, 8), (3, 5, 4, 8), (3, 2, 1, 2)),
        ),
        right=_halved,
        nudge="What comes down keeps its name. What comes back is on the second chain: it starts 2p stages and m microbatches further on.",
        because="Nothing but names changes: the order of a rank stays what it is.",
        wrong=(
            idea("microbatches keep their numbers", lambda s, i, p, m: [s - 2 * p if s >= 2 * p else s, i])("""
                The stages are right. But DualPipeV has m={m} microbatches, and its second half of the V runs the same
                ones."""),
            idea("stages keep their numbers", lambda s, i, p, m: [s, i - m if s >= 2 * p else i])("""
                The microbatches are right. But DualPipeV with p={p} has 2p stages, numbered from 0."""),
            idea("modulo p", lambda s, i, p, m: [s % p, i % m])("""
                On the way back a microbatch is in the second half of the model, stages p to 2p - 1: stage {stage}
                cannot become one below p={p}."""),
            idea("mirrored", lambda s, i, p, m: [4 * p - 1 - s if s >= 2 * p else s, i % m])("""
                The mirror image of stage {stage} is on the same rank, but at the other end of the model. On the way
                back the rank holds its second stage."""),
        ),
    ),
    Exercise(
        "which schedule fits",
        form=Fields({key: Choice(tuple(NAMES)) for key in (_ONE, _SLOW, _FOUR, _APART, _TWICE)}),
        right={
            _ONE: _fastest(2, 0, 5, 1),
            _SLOW: _fastest(2, 1, 5, 1),
            _FOUR: _fastest(2, 0, 4, 1),
            _APART: _fastest(3, 0, 5, 2),
            _TWICE: _fastest(3, 1, 5, 2),
        },
        nudge="Cross out what does not fit, then compare makespans: the tables above have them all.",
        because="No schedule wins everywhere. What a pair costs, what a message costs, and what fits decide.",
        wrong=(
            idea("DualPipe is always best", {_ONE: "DualPipe"})("""
                As fast as the right one, but it needs the weights twice."""),
            idea("a V is always best", {_SLOW: "DualPipeV"})("""
                With free messages, yes. Here each of its 12 trips for a microbatch takes 1."""),
            idea("more stages hide messages", {_SLOW: "ZB-V"})("""
                Near: 41.5. One stage on each rank sends half as many messages."""),
            idea("activations are no matter", {_FOUR: "DualPipeV"})("It keeps 4.5, and there is room for 4."),
            idea("activations are no matter (DualPipe)", {_FOUR: "DualPipe"})("It keeps 5, and has the weights twice."),
            idea("DualPipe is best with a bubble alone", {_APART: "DualPipe"})("""
                26, and another one takes 25.5, with the weights once: what does a pair of 3 gain?"""),
            idea("weights twice are too much", {_TWICE: "ZB-H1"})("""
                41. Here the weights fit twice, and a chain of four stages has short ways."""),
        ),
    ),
)
