"""What notebook 01 asks: what each rank keeps, computes and sends under four ways to split a model, and where to cut it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, combinations, pairwise
from typing import Any

from ppedu.course.exercises.ask import Exercise, Question, cases, idea
from ppedu.course.exercises.forms import Choice, Fields, ListOf, Number

Times = Sequence[float]
WEIGHT, GRADIENT, ADAMW = 4, 4, 8  # bytes a weight, in float32: AdamW remembers two numbers of each


def cuts(layers: int, p: int) -> list[tuple[int, ...]]:
    """Every way to cut so many layers into p stages, as the number of layers in each."""
    return [tuple(b - a for a, b in pairwise((0, *at, layers))) for at in combinations(range(1, layers), p - 1)]


def largest(times: Times, cut: Sequence[int]) -> float:
    """What the largest stage of a cut takes."""
    return max(sum(times[a:b]) for a, b in pairwise((0, *accumulate(cut))))


def smallest_largest(times: Times, p: int) -> float:
    """What the largest stage of the best cut takes: every cut is tried."""
    return min(largest(times, cut) for cut in cuts(len(times), p))


def _kept(weights: float, p: int) -> dict[str, float]:
    all_of_it = (WEIGHT + GRADIENT + ADAMW) * weights
    return {"DDP": all_of_it, "ZeRO-3": all_of_it / p, "PP": all_of_it / p}


def _sent(
    p: int,
    weights: float,
    blocks: int,
    activation: float,
    *,
    ring: float = 2,
    zero: float = 3,
    tp: float = 4,
    pp: float = 2,
) -> dict[str, float]:
    """Bytes that a rank sends in a step. ring: what an all-reduce costs, in (p-1)/p of its tensor. zero: the same for what
    ZeRO-3 sends of the weights. tp: all-reduces a block. pp: activations a middle rank."""
    part = (p - 1) / p
    return {
        "DDP": ring * part * weights,
        "ZeRO-3": zero * part * weights,
        "TP": tp * blocks * ring * part * activation,
        "PP": pp * activation,
    }


def _only(way: str, **changed: Any) -> Callable[..., dict[str, float]]:
    """A wrong answer for one way, whatever the others are."""
    return lambda *case: {way: _sent(*case, **changed)[way]}


def _sends_least() -> str:
    """Of the notebook's model: 8 blocks of width 96, and 16 sequences of 32 bytes, in float32."""
    sent = _sent(p=4, weights=3.79e6, blocks=8, activation=16 * 32 * 96 * 4)
    return min(sent, key=lambda name: sent[name])


def _even(times: Times, p: int) -> float:
    """The largest stage where all have as many layers, the last ones one more where some are left over."""
    short, more = divmod(len(times), p)
    return largest(times, [short + (stage >= p - more) for stage in range(p)])


def _filled(times: Times, p: int) -> float:
    """The largest stage where each one is filled until the next layer would take it above the average."""
    average, stages = sum(times) / p, [0.0]
    for layer in times:
        if stages[-1] and stages[-1] + layer > average and len(stages) < p:
            stages.append(0.0)
        stages[-1] += layer
    return max(stages)


def _scattered(times: Times, p: int) -> float:
    """The largest share where a rank may take any layers: the longest first, each to the rank with the least so far."""
    ranks = [0.0] * p
    for layer in sorted(times, reverse=True):
        ranks[ranks.index(min(ranks))] += layer
    return max(ranks)


HEAVY_HEAD = (3, 3, 3, 3, 3, 3, 3, 3, 3, 10)

QUESTIONS = (
    Question(
        "weights that ZeRO-3 computes with",
        form=Number("GB"),
        answer=lambda: 4 * 1.0,
        because="A rank keeps 1 GB. To run a layer it gathers the other three quarters of that layer from the other ranks, "
        "computes with all of it, and drops what is not its own. After one forward it has computed with all 4 GB.",
        wrong=(
            idea("storing a part is computing a part", 1)("""
                1 GB is what it keeps. But a sample has to pass through every layer, and this rank alone takes its
                samples through the model."""),
            idea("four ranks, four times the weights", 16)("16 GB would be four models. There is one, of 4 GB."),
            idea("it gathers the others' parts only", 3)("3 GB is what it gathers from others. It has 1 GB already."),
        ),
    ),
    Question(
        "who sends least",
        form=Choice(("DDP", "ZeRO-3", "TP", "PP")),
        answer=_sends_least,
        because="Under PP a rank sends one activation down and one gradient up, to its neighbours, however many layers it has. "
        "The others send something for every layer: its gradients, its weights, or what its parts have computed.",
        wrong=(
            idea("DDP sends little", "DDP")("""
                Under DDP a rank sends once a step, but then the gradients of the whole model."""),
            idea("ZeRO-3 sends only parts", "ZeRO-3")("""
                Under ZeRO-3 each rank keeps a part only, so whole weights have to be gathered: in the forward, and once
                more in the backward."""),
            idea("TP sends activations only", "TP")("""
                TP sends activations as PP does, but inside every block, four times, and not only where two ranks meet."""),
        ),
    ),
    Question(
        "layers in a stage",
        form=Number("layers", whole=True),
        answer=lambda: 24 // (4 * 2),
        because="4 ranks with 2 stages each make 8 stages, and 24 layers over 8 stages are 3 in each.",
        wrong=(
            idea("a stage is what a rank has", 6)("""
                6 layers is what a rank has. But it has them in two pieces, which run at different times: a stage is one
                piece."""),
            idea("stages are counted per model", 12)("12 would make 2 stages in all. Here each of the 4 ranks has 2."),
            idea("a stage is a layer", 1)("A stage may hold many layers: it is what runs as one piece."),
        ),
    ),
    Question(
        "cut with a heavy head",
        form=ListOf(Number("layers", whole=True), 4),
        answer=lambda: min(cuts(len(HEAVY_HEAD), 4), key=partial(largest, HEAVY_HEAD)),
        because="The last layer takes 10 by itself, so no cut does better than 10. Three layers before it take 9, and four would "
        "take 12. So three, three, three, and the last layer alone.",
        wrong=(
            idea("as many layers each", (2, 2, 3, 3))("""
                That is as even as can be in layers, but the last stage takes 3 + 3 + 10 = 16, and the first one 6."""),
            idea("as many layers each, the other way round", (3, 3, 2, 2))("""
                The last stage takes 3 + 10 = 13. Give its first layer away."""),
            idea(
                "the stages do not hold all the layers",
                (3, 3, 3, 3),
                when=lambda got, want: sum(got) != len(HEAVY_HEAD),
            )("""
                There are 10 layers, and every one is in one stage: the four numbers add up to 10."""),
        ),
    ),
)

EXERCISES = (
    Exercise(
        "bytes kept per rank",
        form=Fields({name: Number("bytes") for name in ("DDP", "ZeRO-3", "PP")}),
        cases=cases("weights p", (1_000_000, 4), (7_000_000_000, 8), (24, 1)),
        right=_kept,
        nudge="Start with one device: how many bytes for the weight, for its gradient, and for AdamW's two numbers? Then ask of "
        "each way which of these a rank keeps whole.",
        because="Under ZeRO-3 and PP a rank keeps equally little. What tells them apart is not what a rank keeps, but what it "
        "computes and sends.",
        wrong=(
            idea("weights alone", lambda weights, p: {"DDP": WEIGHT * weights})("""
                your DDP counts the weights alone. Each of them has a gradient, and AdamW remembers two numbers of it."""),
            idea("the optimizer is free", lambda weights, p: {"DDP": (WEIGHT + GRADIENT) * weights})("""
                your DDP counts weights and gradients. AdamW remembers two numbers of each weight, so it has half of all
                the bytes."""),
            idea(
                "AdamW remembers one number", lambda weights, p: {"DDP": (WEIGHT + GRADIENT + ADAMW / 2) * weights}
            )("""
                your DDP counts one number a weight for AdamW. It keeps a mean of the gradients and a mean of their
                squares: two."""),
            idea("DDP splits the model", lambda weights, p: {"DDP": _kept(weights, p)["ZeRO-3"]})("""
                under DDP nothing of the model is split. Every rank has all of it, and a part of the batch."""),
            idea(
                "ZeRO-3 keeps the weights whole",
                lambda weights, p: {"ZeRO-3": WEIGHT * weights + (GRADIENT + ADAMW) * weights / p},
            )("""
                your ZeRO-3 keeps whole weights, and splits gradients and AdamW's memory. That is ZeRO-2. ZeRO-3 splits
                the weights as well."""),
            idea(
                "ZeRO-3 splits the optimizer alone",
                lambda weights, p: {"ZeRO-3": (WEIGHT + GRADIENT) * weights + ADAMW * weights / p},
            )("""
                your ZeRO-3 keeps whole weights and gradients, and splits AdamW's memory. That is ZeRO-1. ZeRO-3 splits
                all three."""),
            idea(
                "ZeRO-3 splits the weights alone",
                lambda weights, p: {"ZeRO-3": WEIGHT * weights / p + (GRADIENT + ADAMW) * weights},
            )("""
                your ZeRO-3 splits the weights, and keeps all gradients and all of AdamW's memory. It splits those as
                well: a rank updates its own part of the weights only."""),
            idea("ZeRO-3 keeps what it gathers", lambda weights, p: {"ZeRO-3": _kept(weights, p)["DDP"]})("""
                your ZeRO-3 keeps everything. It does gather whole layers, but drops them after use: it keeps its part
                only."""),
            idea("PP keeps the whole model", lambda weights, p: {"PP": _kept(weights, p)["DDP"]})("""
                your PP keeps the whole model on each rank. A rank has the layers of its stage and no others."""),
        ),
    ),
    Exercise(
        "bytes sent per rank",
        form=Fields({name: Number("bytes") for name in ("DDP", "ZeRO-3", "TP", "PP")}),
        cases=cases(
            "p weights blocks activation",
            (4, 4_000_000, 8, 200_000),
            (8, 4_000_000, 8, 200_000),
            (3, 900_000, 24, 60_000),
        ),
        right=_sent,
        nudge="Write each way as a list of its exchanges in one step. An all-reduce is 2 (p - 1) / p of its tensor, an all-gather or "
        "a reduce-scatter (p - 1) / p, a plain message is all of it.",
        because="Weights count for DDP and ZeRO-3, activations for TP and PP. So a larger batch costs DDP and ZeRO-3 nothing on the "
        "wire, and a larger model costs PP nothing where its width stays.",
        wrong=(
            idea("an all-reduce goes round once", _only("DDP", ring=1))("""
                your DDP goes round once. An all-reduce first adds up the parts and then hands the sums round: twice."""),
            idea("a ring costs whole tensors", lambda p, weights, blocks, activation: {"DDP": 2 * weights})("""
                your ranks send whole tensors round. Each has a p-th of the tensor already, so (p - 1) / p of it has to
                move."""),
            idea("ZeRO-3 gathers once", _only("ZeRO-3", zero=2))("""
                your ZeRO-3 gathers the weights once. After the forward it has dropped them, and the backward needs them
                again."""),
            idea(
                "ZeRO-3's ring costs whole tensors", lambda p, weights, blocks, activation: {"ZeRO-3": 3 * weights}
            )("""
                your ZeRO-3 has three exchanges, as it should, but sends whole tensors in each. A rank has a p-th of
                them already."""),
            idea("what gloo does is what is needed", _only("ZeRO-3", zero=4))("""
                your ZeRO-3 sends what gloo was seen to send. What the algorithm needs is a reduce-scatter, half an
                all-reduce."""),
            idea("TP talks in the forward only", _only("TP", tp=2))("""
                your TP has half of what it should. Are there all four all-reduces of a block, two of them in the
                backward? And does each count as 2 (p - 1) / p?"""),
            idea(
                "TP talks once a step",
                lambda p, weights, blocks, activation: {"TP": _sent(p, weights, 1, activation)["TP"]},
            )("""
                your TP talks in one block. Each of the {blocks} blocks is split, and in each of them the parts have to
                be added up."""),
            idea("PP talks in the forward only", _only("PP", pp=1))("""
                your PP rank sends its activation down. It also sends a gradient up, to the rank before it."""),
            idea("PP sends for every block", lambda p, weights, blocks, activation: {"PP": 2 * blocks * activation})("""
                your PP sends something for each block. Blocks of one stage are on one rank: only what crosses a cut is
                sent."""),
        ),
    ),
    Exercise(
        "smallest largest stage",
        form=Number(),
        cases=cases(
            "times p",
            ([3, 3, 3, 3, 3, 3, 3, 3, 3, 10], 4),
            ([6, 1, 1, 1, 1, 1, 1, 1, 1, 4], 4),
            ([5, 1, 5, 1, 5, 1], 2),
            ([2, 2, 3, 3, 1, 4], 3),
            ([1, 2, 3], 3),
            ([4, 2], 1),
        ),
        right=smallest_largest,
        nudge="A cut is p - 1 places between layers. Try every choice of places, take the largest stage of each, and keep the "
        "smallest of these.",
        because='ppedu.split(model, p, by="time") finds such a cut, also where there are too many to try.',
        wrong=(
            idea("the average", lambda times, p: sum(times) / p)("""
                {got} is the average stage. The pace is set by the largest one, and a layer cannot be cut in two."""),
            idea("as many layers each", _even)("""
                {got} comes from as many layers in each stage. But layers are not equally long: count time, not layers."""),
            idea("filled up to the average", _filled)("""
                {got} comes from filling each stage up to the average from the front. What is left over for the last
                stage can be large: a cut that goes above the average early may be better."""),
            idea("any layers for any rank", _scattered)("""
                {got} needs layers that are not next to each other in one stage. A stage is consecutive layers."""),
            idea("average, or the longest layer", lambda times, p: max(*times, sum(times) / p))("""
                {got} is a bound that no cut can beat, but not every model has a cut that reaches it."""),
            idea(
                "smallest stage, made large",
                lambda times, p: max(
                    min(sum(times[a:b]) for a, b in pairwise((0, *accumulate(cut)))) for cut in cuts(len(times), p)
                ),
            )("""
                {got} is the smallest stage of a cut. It is the largest one that all others wait for."""),
        ),
    ),
)
