"""What notebook 08 asks: the two halves of a backward, where W goes, and what an empty bubble costs.

Letters: p ranks, m microbatches; F forward, B backward, I and W its halves (input's and weights' gradient). Times are those
of a p-th of the model. With no costs given F, I and W take one unit each, and B two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ppedu.core.costs import Costs
from ppedu.core.operations import Kind
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.core.timeline import Timeline
from ppedu.course.exercises.ask import Exercise, Question, Wrong, cases, idea
from ppedu.course.exercises.forms import Choice, Fields, Number, Order
from ppedu.course.exercises.orders import Orders
from ppedu.schedules import SCHEDULES, one_f_one_b, zb_h1, zb_h2

UNIT = Costs(forward=1, backward=2)


def in_halves(p: int, m: int) -> Schedule:
    """1F1B in which each B is an I with its W right behind."""
    return put_off(p, m, lambda rank, p: 0)


def put_off(p: int, m: int, delay: Callable[[int, int], int], name: str = "1F1B in halves") -> Schedule:
    """1F1B with I for B, each W put off by `delay` microbatches."""

    def order(rank: int, p: int, m: int) -> list[str]:
        found, by = [], delay(rank, p)
        for entry in one_f_one_b(p, m).orders[rank]:
            kind, i = entry.actions[0].kind, entry.actions[0].microbatch
            found.append(f"F{i}" if kind is Kind.F else f"I{i}")
            if kind is Kind.B and i >= by:
                found.append(f"W{i - by}")
        return found + [f"W{i}" for i in range(max(0, m - by), m)]

    return Schedule.from_function(order, p, m, name=name)


def own_span(timeline: Timeline) -> float:
    """The longest time from a rank's own first operation to its own last."""
    ranks = range(timeline.schedule.num_ranks)
    return max(timeline.spans_of(r)[-1].end - timeline.spans_of(r)[0].start for r in ranks)


QUESTIONS = (
    Question(
        "1F1B with B in halves",
        form=Number("units"),
        answer=lambda: simulate(in_halves(p=4, m=8), UNIT).makespan,
        because="The work is the same, 24 on each rank. But the last gradient goes up through I's alone: ranks 3, 2 and 1 send "
        "it on before their W, which is 3 x 1 sooner.",
        wrong=(
            idea("the same work in the same order takes the same time", 33)("""
                The work is the same and so is its order. What waits is not: rank 2 needs rank 3's I0, and no longer its
                W0."""),
            idea("W is free", 22)("""
                22 is what forwards and I's alone would take. Somebody has to run the W's: 8 units more on each rank."""),
            idea("no bubble at all", 24)("""
                24 is the work of one rank: no rank would ever wait, not even for its first F."""),
            idea("W's move by themselves", 27)("""
                27 is possible, but not yet: here each W stands right behind its I, also where the rank could have done
                something that others wait for."""),
            idea("each of the m backwards is sooner", 25, when=lambda got, want: 24 < got < 27)("""
                Each I is sooner on its way, but in the middle ranks do not wait for gradients: they are busy. Only the
                way up at the end gets shorter."""),
        ),
    ),
    Question(
        "in flight in ZB-H1",
        form=Number("microbatches", whole=True),
        answer=lambda: simulate(zb_h1(p=4, m=8), UNIT).peak_in_flight[3],
        because="Activations are free after W, and rank 3 puts its W's off by three microbatches: one in flight as in 1F1B, and three "
        "that wait for their W.",
        wrong=(
            idea("I frees the activations", 1)("""
                One is rank 3's figure in 1F1B. After I0 the inputs of the layers are still needed: W0 multiplies with
                them."""),
            idea("only what waits for W counts", 3)("""
                Three wait for their W. The one whose F or I is running comes on top."""),
            idea("all W's come last", 8)("Eight it would be if all W's came at the end. W0 comes right after I3."),
        ),
    ),
    Question(
        "makespan of ZB-H2",
        form=Number("units"),
        answer=lambda: simulate(zb_h2(p=4, m=8), UNIT).makespan,
        because="Rank 3 cannot start before 3, and has 24 units of work: no order of these four stages ends before 27, whatever the memory is. "
        "ZB-H1 is there already.",
        wrong=(
            idea("own span taken for the makespan", 24)("""
                24 is what each rank takes from its own first operation to its own last. They do not start together:
                rank 3 works from 3 to 27."""),
            idea("more memory is more speed", 25.5, when=lambda got, want: got < want)("""
                Look at rank 3: its first forward can start at 3, and then it has 24 units of work."""),
            idea("more forwards ahead take longer", 30, when=lambda got, want: got > want)("""
                The forwards ahead fill the time in which ZB-H1 waits. They delay nothing that others wait for."""),
        ),
    ),
    Question(
        "a split that costs 20 per cent",
        form=Choice(("1F1B", "ZB-H1")),
        answer=lambda: min(
            ("1F1B", simulate(one_f_one_b(4, 32), UNIT).makespan),
            ("ZB-H1", simulate(zb_h1(4, 32), Costs(1, input_grad=1.2, weight_grad=1.2)).makespan),
            key=lambda pair: pair[1],
        )[0],
        because="ZB-H1 has the smaller bubble, by 6 units, once a step. The split costs 0.4 units for each of 32 microbatches: 12.8.",
        wrong=(
            idea("a smaller bubble is a shorter step", "ZB-H1")("""
                Its bubble is smaller, and its step is longer: a rank that computes more waits less."""),
        ),
    ),
)


def _chain(schedule: Schedule) -> str:
    return " ".join(str(span.action) for span in simulate(schedule, UNIT).critical_path())


_WHOLE, _HALVES = "B in one piece", "B in halves"
_CHAINS = {_WHOLE: _chain(one_f_one_b(p=3, m=1)), _HALVES: _chain(zb_h1(p=3, m=1))}


class _Placed(Orders):
    """Orders that are a value: what is wrong with them is said, for the right ones are not the only ones."""

    def remark(self, got: Any, want: Any) -> str:
        return self.differs(got, want)


def _keeps_forwards_and_inputs(schedule: Schedule) -> str:
    """F and I stand as they were given: this one is about W."""
    given = put_off(schedule.num_ranks, schedule.num_microbatches, lambda rank, p: 0)
    for rank, (mine, theirs) in enumerate(zip(schedule.orders, given.orders, strict=True)):
        kept, wanted = (
            [schedule.short(e) for e in order if e.actions[0].kind is not Kind.W] for order in (mine, theirs)
        )
        if kept != wanted:
            return (
                f"rank {rank}'s F and I stood in the order {' '.join(wanted)}: leave them so, and put only the W's in."
            )
    return ""


_RIGHT_BEHIND = (
    "Every W stands right behind its I. That is legal, and takes longer than it has to: the rank above waits for the next I while this one "
    "runs a W that nobody waits for."
)
_ALL_LAST = (
    "All W's come last. The time in which ranks wait in the middle stays empty, and nothing is freed until the end: every rank "
    "holds all the microbatches."
)
_WRONG_END = (
    "Your delay is longest on rank 0. Rank 0 holds most activations as it is, and nobody waits for its I. It is the last rank on "
    "which everybody's gradients wait, and which holds only one."
)
_ALIKE = (
    "All ranks put W off alike. Rank 0 has p activations in flight without that; each W that it puts off comes on top. "
    "How many can rank r of p afford?"
)


def _wrong_places(*size: int) -> tuple[Wrong, ...]:
    """The wrong ideas of where W goes: as functions of (p, m), or for one size (p, m) as schedules."""
    delays: tuple[tuple[str, Callable[[int, int], int], str], ...] = (
        ("W right behind its I", lambda rank, p: 0, _RIGHT_BEHIND),
        ("all W's come last", lambda rank, p: 10**6, _ALL_LAST),
        ("delay counted from the wrong end", lambda rank, p: p - 1 - rank, _WRONG_END),
        ("all ranks put W off alike", lambda rank, p: p - 1, _ALIKE),
    )
    builds = [(name, partial(put_off, delay=delay), hint) for name, delay, hint in delays]
    return tuple(idea(name, build(*size) if size else build)(hint) for name, build, hint in builds)


# Which schedule for which machine

_NAMES = {"GPipe": "gpipe", "1F1B": "1f1b", "ZB-H1": "zb_h1", "ZB-H2": "zb_h2", "ZB-V": "zb_v"}
_MACHINES: Mapping[str, Mapping[str, Any]] = {
    "room for 4, messages are free": {"room": 4},
    "room for 4, a message takes 2": {"room": 4, "transfer": 2},
    "room for 7, a message takes 2": {"room": 7, "transfer": 2},
    "room for 8, a message takes 4": {"room": 8, "transfer": 4},
    "room for 4, messages are free, m = 64, and I = W = 1.2": {"room": 4, "m": 64, "half": 1.2},
}


def _fastest(room: float, transfer: float = 0, m: int = 8, half: float = 1) -> str:
    """The schedule with the shortest makespan among those that fit, p = 4."""
    found = []
    for name, key in _NAMES.items():
        schedule = SCHEDULES[key](p=4, m=m)
        size = schedule.stage_size
        costs = Costs(size, 2 * size, input_grad=half * size, weight_grad=half * size, transfer=transfer)
        timeline = simulate(schedule, costs)
        if max(timeline.peak_activations) <= room:
            found.append((timeline.makespan, name))
    return min(found)[1]


_BEST = {machine: _fastest(**limits) for machine, limits in _MACHINES.items()}
_FREE, _SLOW_4, _SLOW_7, _SLOWER_8, _DEAR = _MACHINES
_TOO_LARGE = "It does not fit: ZB-H2 holds 7 microbatches' activations on each rank."


def _rate(p: int, m: int, F: float, I: float, W: float, transfer: float) -> float:  # noqa: E741, N803 - the paper's letters
    work = m * (F + I + W)
    longest = own_span(simulate(zb_h2(p, m), Costs(F, input_grad=I, weight_grad=W, transfer=transfer)))
    return (longest - work) / longest


def _timeline(p: int, m: int, *costs: float) -> tuple[Timeline, float]:
    forward, half, weights, transfer = costs
    timeline = simulate(zb_h2(p, m), Costs(forward, input_grad=half, weight_grad=weights, transfer=transfer))
    return timeline, m * (forward + half + weights)


def _global_clock(p: int, m: int, *costs: float) -> float:
    timeline, work = _timeline(p, m, *costs)
    return (timeline.makespan - work) / timeline.makespan


def _over_work(p: int, m: int, *costs: float) -> float:
    timeline, work = _timeline(p, m, *costs)
    return (own_span(timeline) - work) / work


def _last_rank(p: int, m: int, *costs: float) -> float:
    timeline, work = _timeline(p, m, *costs)
    spans = timeline.spans_of(p - 1)
    own = spans[-1].end - spans[0].start
    return (own - work) / own


EXERCISES = (
    Exercise(
        "critical path of one microbatch",
        form=Fields({_WHOLE: Order(), _HALVES: Order()}),
        right=_CHAINS,
        nudge="Start at the end: which operation ends last? Which one did it wait for? Go back like this as far as the first forward.",
        because="Seven units in place of nine: of three W's only one is in the chain, the others run beside it.",
        wrong=(
            idea("every W is in the chain", {_HALVES: "0F0 1F0 2F0 2I0 2W0 1I0 1W0 0I0 0W0"})("""
                That is what one device would have to run. But rank 1's I0 does not wait for rank 2's W0: the two run at
                the same time."""),
            idea("no W is in the chain", {_HALVES: "0F0 1F0 2F0 2I0 1I0 0I0"})("""
                The step has not ended there: something on rank 0 is still to be run."""),
            idea("the last rank's W ends the step", {_HALVES: "0F0 1F0 2F0 2I0 2W0"})("""
                Rank 2's W0 is over soon, while the gradient is still on its way up to rank 0."""),
            idea("all W's at the end of the chain", {_HALVES: "0F0 1F0 2F0 2I0 1I0 0I0 2W0 1W0 0W0"})("""
                Each W runs on its own rank, right after that rank's I. They do not wait for one another."""),
            idea("leaves the stage out (halves)", {_HALVES: "F0 F0 F0 I0 I0 I0 W0"})("""
                The kinds are right. Say on which stage each of them runs: 0F0 is F0 on stage 0."""),
            idea("leaves the stage out (whole)", {_WHOLE: "F0 F0 F0 B0 B0 B0"})("""
                The kinds are right. Say on which stage each of them runs: 0F0 is F0 on stage 0."""),
            idea("the chain ends on the last rank", {_WHOLE: "0F0 1F0 2F0 2B0"})("""
                The step ends when rank 0 has its gradients as well: go on, up through the ranks."""),
        ),
    ),
    Exercise(
        "place the W's",
        form=_Placed(costs=UNIT, rule=_keeps_forwards_and_inputs),
        right=zb_h1(p=3, m=4),
        nudge="How many activations does each rank hold with its W's right behind their I's, and how many may it hold here? The "
        "difference is how many microbatches its W's can wait.",
        because="The same forwards and the same I's; only what nobody waits for has moved.",
        wrong=_wrong_places(3, 4),
    ),
    Exercise(
        "write ZB-H1",
        form=Orders(costs=UNIT),
        cases=cases("p m", (4, 8), (4, 2), (1, 3), (2, 5), (3, 3)),
        right=zb_h1,
        nudge="Take 1F1B with I for B. On rank r, put W of microbatch i - r behind the I of microbatch i, as soon as there is one. Which W's "
        "are left at the end?",
        because="27 units in place of 33 for p=4 and m=8, and no rank holds more than rank 0 of 1F1B does.",
        wrong=(
            *_wrong_places(),
            idea("each W one microbatch too late", lambda p, m: put_off(p, m, lambda rank, p: rank + 1))("""
                Each W comes one microbatch too late. Rank 0 has no room to put any off: its W0 stands right behind I0.
                Rank r puts off r."""),
        ),
    ),
    Exercise(
        "bubble rate of ZB-H2",
        form=Number(),
        cases=cases(
            "p m F I W transfer",
            (4, 8, 2, 1, 1, 0.5),
            (8, 24, 18522, 18086, 9337, 601),
            (8, 32, 29802, 29428, 19530, 577),
            (16, 48, 11347, 11248, 8132, 377),
        ),
        right=_rate,
        nudge="T is the longest time that any rank takes from the start of its own first operation to the end of its own last one: "
        "timeline.spans_of(rank) has them in order.",
        because="To four decimals these are the figures in the paper's table.",
        wrong=(
            idea("the global clock", _global_clock)("""
                That is the makespan's rate, by the one clock for all. For ZB-H2 the paper takes each rank's own clock."""),
            idea("bubble over ideal", _over_work)("You divide by the work alone. The rate is a share of T."),
            idea("any rank will do", _last_rank)("That is the last rank's own span. Ranks differ: take the longest."),
            idea("messages are free", lambda p, m, f, i, w, transfer: _rate(p, m, f, i, w, 0))("""
                You left the messages out: transfer={transfer}."""),
        ),
    ),
    Exercise(
        "choose a schedule",
        form=Fields({machine: Choice(tuple(_NAMES)) for machine in _MACHINES}),
        right=_BEST,
        nudge="Simulate all five and compare. Which of them fit (peak_activations)? Which of those has the shortest makespan?",
        because="Each of the five wins somewhere: which one depends on the room, on the link, and on what the split costs.",
        wrong=(
            idea("counts stage-microbatches as activations", {_FREE: "ZB-H1"})("""
                ZB-H1 fits, but something else that fits is faster. Did you rule ZB-V out for its 8 in flight? These are
                half as large."""),
            idea("ZB-H2 everywhere", {_FREE: "ZB-H2"})(_TOO_LARGE),
            idea("1F1B is as fast as it gets", {_FREE: "1F1B"})("""
                It takes 33 units. Something else with the same peak takes fewer."""),
            idea("ZB-V everywhere", {_SLOW_4: "ZB-V"})("""
                ZB-V sends twice as many messages, for each microbatch passes every rank twice. With this link that
                costs more than its smaller bubble saves."""),
            idea("ZB-H2 everywhere (slow link)", {_SLOW_4: "ZB-H2"})(_TOO_LARGE),
            idea("a slow link calls for GPipe", {_SLOW_4: "GPipe"})("""
                GPipe bears slow messages well, but it holds all 8 microbatches."""),
            idea("a slow link calls for GPipe (room for 7)", {_SLOW_7: "GPipe"})("""
                GPipe holds 8, and the room is for 7."""),
            idea("the room is not used", {_SLOW_7: "ZB-H1"})("""
                It uses four of the seven places. More forwards ahead would hide more of the messages."""),
            idea("zero bubble is always fastest", {_SLOWER_8: "ZB-H2"})("""
                With messages of 4 units the forwards that ZB-H2 runs ahead no longer hide them. Which of the five sends
                a microbatch's messages without anyone waiting in between?"""),
            idea("the split is free", {_DEAR: "ZB-V"})("""
                Its bubble is the smallest, once a step. But it computes 0.4 units more for each of 64 microbatches."""),
            idea("the split is free (ZB-H1)", {_DEAR: "ZB-H1"})("""
                Its bubble is 6 units smaller than 1F1B's, once a step. But it computes 0.4 units more for each of 64
                microbatches."""),
            idea("GPipe with 64", {_DEAR: "GPipe"})("GPipe would hold all 64 microbatches."),
        ),
    ),
)
