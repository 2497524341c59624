"""What notebook 11 asks: orders of one's own, in little memory, by text, by rule, and better than 1F1B; and what bounds them.

Letters: p ranks, m microbatches; F forward, B backward, I and W its halves (B = I + W).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ppedu.core.costs import Costs
from ppedu.core.schedule import Schedule
from ppedu.core.timeline import Timeline
from ppedu.core.validate import violations
from ppedu.course.exercises.ask import Exercise, Question, Wrong, cases, idea
from ppedu.course.exercises.forms import Choice, Fields, Number
from ppedu.course.exercises.notebooks.nb05 import in_rounds
from ppedu.course.exercises.notebooks.nb08 import put_off
from ppedu.course.exercises.orders import Orders, one_too_many
from ppedu.course.scoreboard.challenge import Challenge
from ppedu.optimizer.bounds import lower_bound
from ppedu.schedules import gpipe, naive, one_f_one_b, zb_h1, zb_h2

CHALLENGE = Challenge(
    p=4,
    m=8,
    costs=Costs(forward=[2, 2, 3, 2], input_grad=[2, 2, 3, 2], weight_grad=[1, 1, 2, 1], transfer=1),
    memory_limit=4,
)
"""The race of the notebook: stage 2 is slow, messages take time, and a rank holds four microbatches at most."""


def _by_rule(p: int, m: int, warmup: Callable[[int], int], name: str = "custom") -> Schedule:
    """On rank r `warmup(r)` forwards, then a forward and the oldest backward in turn, then the rest."""

    def order(rank: int, p: int, m: int) -> list[str]:
        first = warmup(rank)
        pairs = [word for i in range(m - first) for word in (f"F{first + i}", f"B{i}")]
        return [f"F{i}" for i in range(first)] + pairs + [f"B{i}" for i in range(max(0, m - first), m)]

    return Schedule.from_function(order, p, m, name=name)


def _capped(p: int, m: int, cap: int) -> Schedule:
    """1F1B in which no rank ever holds more than `cap`."""
    return _by_rule(p, m, lambda rank: min(p - 1 - rank, cap - 1, m), name=f"1F1B, cap {cap}")


def _head() -> float:
    """What passes before rank 2 of the challenge can start: two forwards and two messages."""
    return 2 + 1 + 2 + 1.0


def reverse(schedule: Schedule, ranks: range) -> Schedule:
    """The schedule with microbatch m - 1 - i in place of i on these ranks."""
    m, lines = schedule.num_microbatches, []
    for rank, order in enumerate(schedule.orders):
        words = [
            f"{a.kind.value}{m - 1 - a.microbatch if rank in ranks else a.microbatch}" for e in order for a in e.actions
        ]
        lines.append(" ".join(words))
    return Schedule.from_text("\n".join(lines))


def _who_may_reverse() -> str:
    everybody, one = (not violations(reverse(one_f_one_b(4, 8), ranks)) for ranks in (range(4), range(3, 4)))
    if everybody:
        return "both" if one else "all ranks"
    return "only rank 3" if one else "neither"


QUESTIONS = (
    Question(
        "bound of the challenge",
        form=Number("units"),
        answer=lambda: CHALLENGE.lower_bound,
        because="Rank 2 has 8 x (3 + 3 + 2) = 64 units of work, and its first microbatch is there after two forwards and two messages: "
        "2 + 1 + 2 + 1 = 6. After its last I others may still have to go on, but it can have its last W's to run meanwhile.",
        wrong=(
            idea("the slow stage alone", 64)("64 is the work of rank 2. But it cannot start at 0."),
            idea("messages are free", 68)("68 leaves out the two messages on the way to rank 2."),
            idea("a backward is one piece", 78)("""
                78 would be right for whole B's: after rank 2's last B, ranks 1 and 0 have one each to run. With I and W
                they start on it earlier."""),
            idea("the work of the other ranks", 40)("40 is what each of the other three has to do. Rank 2 has more."),
            idea("the work is shared", 46)("46 is the mean of the work of four ranks. Nobody can take any off rank 2."),
            idea("1F1B is the best that there is", 84)("""
                84 is what 1F1B takes. Is there a reason why nothing could be faster?"""),
        ),
    ),
    Question(
        "which microbatch first",
        form=Choice(("both", "all ranks", "only rank 3", "neither")),
        answer=_who_may_reverse,
        because="An order is about who waits for whom. Where all ranks take microbatch 7 first, each result is there when the next rank wants it: "
        "numbers are names. Rank 3 alone would wait for F7, which rank 2 runs only after B0; and B0 needs rank 3.",
        wrong=(
            idea("microbatches have an order", "neither")("""
                Nothing says that microbatch 0 comes first: gradients are added up, and a sum has no order."""),
            idea("any order runs", "both")("""
                Each rank's order looks well for itself. But ranks wait for each other, and such waiting can go in a
                circle."""),
            idea("the last rank is free", "only rank 3")("It is the other way round: follow what rank 3 waits for."),
        ),
    ),
)


@dataclass(frozen=True)
class Within(Orders):
    """Any legal schedule that keeps to a cap and ends soon enough.

    cap: the most in flight on each rank; by default the most that the right one holds anywhere.
    below: ends before this time; by default no later than the right one.
    """

    cap: int | None = None
    below: float | None = None

    def read(self, answer: Any) -> Any:
        if isinstance(answer, str) and re.match(r"\s*\d+[FBIW]\d+,", answer):  # the text of a game, which is a CSV
            try:
                return Schedule.from_csv(answer, name="yours")
            except ValueError:
                pass  # told by what reads texts
        held = getattr(answer, "schedule", None)  # of a timeline, a run, or what ppedu.optimize returned
        return super().read(held if isinstance(held, Schedule) else answer)

    def same(self, got: Any, want: Any) -> bool:
        return (
            (got.num_ranks, got.num_microbatches) == (want.num_ranks, want.num_microbatches)
            and got.one_stage_per_rank
            and not violations(got)
            and not self._breaks(got)
            and not self._holds_more(got, want)
            and self._soon_enough(self._simulated(got), want)
        )

    def remark(self, got: Any, want: Any) -> str:
        return self.differs(got, want)

    def _soon_enough(self, mine: Timeline, want: Schedule) -> bool:
        if self.below is None:
            return mine.makespan <= self._simulated(want).makespan * (1 + 1e-9)
        return mine.makespan < self.below

    def _holds_more(self, got: Schedule, want: Schedule) -> str:
        cap = max(want.peak_in_flight) if self.cap is None else self.cap
        for rank, held in enumerate(got.peak_in_flight):
            if held > cap:
                return (
                    f"it can run, but rank {rank} holds {held} microbatches at once, and may hold {cap}: "
                    f"{one_too_many(got, rank, cap)} before what frees the next."
                )
        return ""

    def _slower(self, got: Schedule, want: Schedule) -> str:
        over = self._holds_more(got, want)
        mine = self._simulated(got)
        if over or self._soon_enough(mine, want):
            return over
        if self.below is None:
            return super()._slower(got, want)
        rank = max(range(got.num_ranks), key=lambda r: mine.busy[r])
        first, last = mine.spans_of(rank)[0], mine.spans_of(rank)[-1]
        waits = [gap for gap in mine.gaps(rank) if first.start < gap.start < last.end]
        said = (
            f"it can run within the cap, but takes {mine.makespan:g}, and less than {self.below:g} is asked for. Rank {rank} has the most to do, "
            f"{mine.busy[rank]:g}. It starts at {first.start:g}, waits for {sum(gap.end - gap.start for gap in waits):g} in between, and when it is "
            f"done the others go on for {mine.end - last.end:g}."
        )
        if waits:
            said += f" Its longest wait: {max(waits, key=lambda gap: gap.end - gap.start).message}."
        return said


def _of_your_own(schedule: Schedule) -> str:
    known = next((name for name, built_in in CHALLENGE.builtins() if built_in.orders == schedule.orders), "")
    return known and (
        f"this is {known}, to the letter. It is somebody's; make one of your own, if it is {known} with one thing changed."
    )


_LITTLE = "F0 F1 B0 F2 B1 F3 B2 B3\nF0 F1 B0 B1 F2 F3 B2 B3\nF0 F1 B0 B1 F2 F3 B2 B3\nF0 B0 F1 B1 F2 B2 F3 B3"

_WHOLE = CHALLENGE.costs
_BOUNDS = {
    "a: the rank that decides": 2,
    "a: units before its first operation can start": _head(),
    "a: units of work that it has": 64.0,
    "a: units from the end of its last B to the end of the step, at least": 8.0,
    "a: no order takes less than": lower_bound(4, 8, _WHOLE, 4, split_backward=False),
    "b: units that rank 0 holds a microbatch, at least": 8.0,
    "b: no order takes less than": lower_bound(4, 4, Costs(), 2, split_backward=False),
    "b: what decides, work or memory": "memory",
}


def _bound_ideas() -> tuple[Wrong, ...]:
    rank, before, work, after, a, held, b, what = _BOUNDS
    return (
        idea("the last rank decides", {rank: 3})("Rank 3 starts last, but has 40 units to run. Whose are 64?"),
        idea("the first rank decides", {rank: 0})("Rank 0 ends last, but has 40 units to run. Whose are 64?"),
        idea("messages are free", {before: 4})("Two forwards are 4. How many messages lie between them and rank 2?"),
        idea("all ranks before, and itself", {before: 10})("""
            That is when its first forward has ended. When does it start?"""),
        idea("one microbatch", {work: 8})("Those are its operations for one microbatch. There are eight."),
        idea("forwards only", {work: 24})("Those are its forwards. A B takes 5 on stage 2."),
        idea("messages are free on the way back", {after: 6})("""
            Two B's of 3 units are 6. And two messages lie between them."""),
        idea("what the picture shows", {a: 84})("""
            84 is what 1F1B takes, not what any order must take. Add the three parts."""),
        idea("work alone", {a: 64})("That is the work. It starts late, and others go on after it."),
        idea("with W at the end", {a: 70})("""
            70 holds where I and W are apart. Here B's are whole, so ranks 1 and 0 come after rank 2."""),
        idea("one forward and one backward", {held: 2})("""
            Between F0 and B0 on rank 0 lie the forwards and the backwards of all ranks below."""),
        idea("what the picture shows of a place", {held: 9})("""
            In the rounds it is 9: rank 3 runs F1 before B0 there. At least is without anything in the way."""),
        idea("until the gradient is there", {held: 7})("It is held until the end of B0: B needs the activations."),
        idea("the cap does not matter", {b: 14})("""
            14 is 1F1B's, with four in flight. How often must rank 0 free two places here?"""),
        idea("what is possible is the bound", {b: 18})("""
            18 is what the best order takes. The bound says what none can go below, and may be smaller."""),
        idea("work always decides", {what: "work"})("""
            By work alone 14 would do: that is 1F1B, with more in flight. What makes it longer?"""),
    )


EXERCISES = (
    Exercise(
        "an order in little memory",
        form=Within(cap=2),
        right=Schedule.from_text(_LITTLE, name="in room for two"),
        nudge="Start from the rounds of two. Which rank holds a microbatch longer than it must? Which one waits with a place free?",
        because="With whole B's, 18 is the best there is with two in flight: a solver will prove it below.",
        wrong=(
            idea("GPipe in rounds", in_rounds(4, 4, 2))("""
                Those are the rounds, 20. Look at both ends of the pipeline: rank 3 could send B0 back before it runs
                F1, and rank 0 has a place free before the round is over."""),
            idea("1F1B with less warm-up", _capped(4, 4, 2))("""
                The ranks in the middle take turns, F then B, with two in flight. Each pair waits for two neighbours.
                Let ranks 1 and 2 run two forwards, then two backwards."""),
            idea("only the last rank is better", "F0 F1 B0 B1 F2 F3 B2 B3\n" * 3 + "F0 B0 F1 B1 F2 B2 F3 B3")("""
                Rank 3 is right. It has sent B0 back early, so rank 0 has a place free early: what could it start then?"""),
            idea("1F1B as it is", one_f_one_b(4, 4))("1F1B ends at 14, but rank 0 holds four. There is room for two."),
            idea("one at a time", naive(4, 4))("""
                One microbatch at a time takes 32, and leaves a place unused on every rank."""),
        ),
    ),
    Exercise(
        "1F1B with a cap",
        form=Within(),
        cases=cases("p m cap", (4, 8, 4), (4, 8, 3), (4, 8, 8), (3, 7, 2), (4, 2, 4), (4, 4, 1), (1, 3, 2)),
        right=_capped,
        nudge="The forward of the first pair counts: a rank with a warm-up of w holds w + 1. And with p <= cap it should be 1F1B itself.",
        because="From one at a time (cap 1) to 1F1B (cap p) in one rule, and legal everywhere.",
        wrong=(
            idea(
                "a warm-up as long as the cap", lambda p, m, cap: _by_rule(p, m, lambda rank: min(p - 1 - rank, cap, m))
            )("""
                With a warm-up of {cap} forwards a rank holds {cap} and then runs the forward of its first pair: one
                more."""),
            idea("the same warm-up on all ranks", lambda p, m, cap: _by_rule(p, m, lambda rank: min(cap - 1, m)))("""
                Within the cap, but every rank fills up before its first backward, the last one too, and all wait for
                it. Rank r needs no more than p - 1 - r."""),
            idea("GPipe in rounds", in_rounds)("""
                Legal and within the cap, but each round fills and drains the pipeline. Start the next forward as soon
                as a place is free."""),
            idea("the cap is forgotten", lambda p, m, cap: one_f_one_b(p, m))("""
                That is 1F1B, whatever the cap: rank 0 holds p microbatches."""),
            idea("m is forgotten", lambda p, m, cap: _by_rule(p, m, lambda rank: min(p - 1 - rank, cap - 1)))("""
                With p=4 and m=2 your rank 0 warms up with three forwards, and there are two: min(..., m)."""),
            idea("one at a time", lambda p, m, cap: naive(p, m))("""
                Right for cap 1. With a larger cap there may be more in flight, and should be."""),
        ),
    ),
    Exercise(
        "beat 1F1B",
        form=Within(costs=CHALLENGE.costs, cap=4, below=84, rule=_of_your_own),
        right=put_off(4, 8, lambda rank, p: 2 if rank == 2 else 0, name="only the slow rank's W's wait"),
        nudge="A W is waited for by nobody, so it may stand where its rank would be idle. The text of any schedule is str(schedule): change that.",
        because="Of the built-in schedules that fit, ZB-H1 takes 75, and no order at all takes less than 70. Where does yours stand?",
        wrong=(
            idea("1F1B", one_f_one_b(4, 8))("""
                That is 1F1B itself: 84. Nobody waits for a W, so write I and W in place of B, and put W where the rank
                waits."""),
            idea("a longer warm-up on the slow rank", _by_rule(4, 8, lambda rank: (3, 2, 2, 0)[rank]))("""
                One forward more on rank 2 makes its first backward later, and with it those of ranks 1 and 0: 114. What
                rank 2 lacks is not forwards."""),
            idea("GPipe", gpipe(4, 8))("""
                GPipe holds eight on each rank, and there is room for four. It would take 85 anyway."""),
            idea("ZB-H1", zb_h1(4, 8))("""
                That is ZB-H1, and it does take 75. But it is somebody's: change something. Which of its W's could stand
                elsewhere?"""),
            idea("ZB-H2", zb_h2(4, 8))("""
                ZB-H2 takes 70, which nobody beats. But it holds seven on each rank, and there is room for four."""),
        ),
    ),
    Exercise(
        "what bounds the makespan",
        form=Fields(
            {
                key: Choice(("work", "memory"))
                if isinstance(value, str)
                else Number("" if key.endswith("decides") else "units")
                for key, value in _BOUNDS.items()
            }
        ),
        right=_BOUNDS,
        nudge="For a: what must happen before rank 2 can start, and what after it is done? For b: each place on rank 0 is used by one microbatch after "
        "the other. How many have to share it, and how long does each keep it?",
        because="The larger of the two bounds counts. It may be out of reach, as in b: 16, and the best order takes 18.",
        wrong=_bound_ideas(),
    ),
)
