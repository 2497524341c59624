"""Schedules as answers: read from what a reader's function returns, judged by what happens when they run.

Letters: p ranks, m microbatches; F forward, B backward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ppedu.core.costs import Costs
from ppedu.core.operations import ScheduleError, in_flight
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate, until_stuck
from ppedu.core.timeline import Timeline
from ppedu.core.validate import violations
from ppedu.course.exercises.forms import Form, Order
from ppedu.course.exercises.reading import MisreadError, listed, sentence, what

_DRAWN = 600  # operations: a picture of more is no help
_WALKABLE = {"deadlock", "missing", "B before F", "I before F", "W before I"}  # what can run until it is stuck


@dataclass(frozen=True)
class Orders(Form):
    """The orders of all ranks: a Schedule, its text, or a list that holds for each rank its order.

    costs: what operations take when answers are compared.
    exact: the order has to be the right one itself; else any that is legal, as fast, and holds no more in flight, is right.
    rule: one demand more on a legal schedule: a sentence that says what it breaks, or "" where it keeps it.
    """

    costs: Costs = field(default_factory=Costs)
    exact: bool = False
    rule: Callable[[Schedule], str] | None = None
    wants = 'for each rank its operations in order, like [["F0", "B0"], ["F0", "B0"]]'

    def read(self, answer: Any) -> Any:
        if isinstance(answer, Schedule):
            return answer
        lines = answer.strip().splitlines() if isinstance(answer, str) else listed(answer, self.wants)
        if lines and all(isinstance(line, str) and " " not in line.strip() for line in lines) and len(lines) > 1:
            raise MisreadError(
                f"{self.wants} is asked for, and this is one flat list that begins with {what(lines[0])}: "
                "it does not say which rank runs what. Make one list a rank, and a list of these lists."
            )
        orders = []
        for rank, line in enumerate(lines):
            try:
                text = line.partition(":")[2] if isinstance(line, str) and ":" in line else line
                orders.append(" ".join(Order().read(text)))
            except MisreadError as error:
                raise MisreadError(f"rank {rank}: {error}") from None
        empty = [rank for rank, order in enumerate(orders) if not order]
        if empty or not orders:
            where = f"rank {empty[0]} has no operations" if empty else "there is no rank in it"
            raise MisreadError(f"{self.wants} is asked for, and {where}.")
        try:
            return Schedule.from_text("\n".join(orders), name="yours")
        except ScheduleError as error:
            raise MisreadError(f"{str(error)[0].lower()}{str(error)[1:]}.") from None

    def same(self, got: Any, want: Any) -> bool:
        if got.orders == want.orders:
            return True
        if self.exact or _size(got) != _size(want) or violations(_as(got, want)) or self._breaks(got):
            return False
        mine, right = self._simulated(_as(got, want)), self._simulated(want)
        kept = all(a <= b for a, b in zip(got.peak_in_flight, want.peak_in_flight, strict=True))
        return kept and mine.makespan <= right.makespan * (1 + 1e-9)

    def alike(self, got: Any, other: Any) -> bool:
        return bool(got.orders == other.orders)

    def show(self, value: Any) -> str:
        return "\n" + "\n".join(f"    {line}" for line in str(value).splitlines())

    def differs(self, got: Any, want: Any) -> str:
        p, m = _size(want)
        if got.num_ranks != p:
            return f"there are p={p} ranks, and your schedule has {got.num_ranks}: give each rank its own order."
        schedule = _as(got, want)
        found = violations(schedule)
        if found:
            rest = len(found) - 1
            more = f" And {rest} more such {'thing' if rest == 1 else 'things'}." if rest else ""
            return f"this cannot run. {sentence(found[0].message, end='.')}{more}"
        if got.num_microbatches != m:
            return f"there are m={m} microbatches, and your schedule has {got.num_microbatches}."
        return (
            self._breaks(schedule)
            or self._slower(schedule, want)
            or self._holds_more(schedule, want)
            or _first_difference(schedule, want)
        )

    def _breaks(self, schedule: Schedule) -> str:
        return self.rule(schedule) if self.rule else ""

    def _slower(self, got: Schedule, want: Schedule) -> str:
        """Why the reader's schedule takes longer: the first wait that the right one does not have."""
        mine, right = self._simulated(got), self._simulated(want)
        if mine.makespan <= right.makespan * (1 + 1e-9):
            return ""
        known = {(gap.rank, gap.start, gap.end) for rank in range(want.num_ranks) for gap in right.gaps(rank)}
        gaps = [gap for rank in range(got.num_ranks) for gap in mine.gaps(rank) if gap.waited_for is not None]
        new = [gap for gap in gaps if (gap.rank, gap.start, gap.end) not in known] or gaps
        reason = f" {sentence(min(new, key=lambda gap: gap.start).message, end='.')}" if new else ""
        return f"it can run, but takes {mine.makespan:g}, and {right.makespan:g} is possible.{reason}"

    def _holds_more(self, got: Schedule, want: Schedule) -> str:
        """Which rank holds more activations than it must, and which forward could have waited for which backward."""
        for rank, (mine, right) in enumerate(zip(got.peak_in_flight, want.peak_in_flight, strict=True)):
            if mine > right:
                return (
                    f"it can run and is fast enough, but rank {rank} holds {mine} activations at once, and {right} is "
                    f"enough: {one_too_many(got, rank, right)} before the next backward."
                )
        return ""

    def timelines(self, got: Any, want: Any) -> tuple[Timeline, ...]:
        schedule = _as(got, want)
        if sum(map(len, schedule.orders)) > _DRAWN or got.num_ranks != want.num_ranks:
            return ()
        rules = {fault.rule for fault in violations(schedule)}
        if not rules <= _WALKABLE:
            return ()
        mine = self._simulated(schedule) if not rules else _until_stuck(schedule, self.costs)
        return (mine, self._simulated(want))

    def _simulated(self, schedule: Schedule) -> Timeline:
        return simulate(schedule, self.costs)


def one_too_many(schedule: Schedule, rank: int, limit: int) -> str:
    """Which operation of a rank is the first to make it hold more than `limit`, as words of a sentence."""
    order = schedule.orders[rank]
    place = next(place for place, held in enumerate(in_flight(order)) if held > limit)
    return f"number {place + 1} of its order, {schedule.short(order[place])}, is one forward too many"


def _size(schedule: Schedule) -> tuple[int, int]:
    return schedule.num_ranks, schedule.num_microbatches


def _as(got: Schedule, want: Schedule) -> Schedule:
    """The reader's orders on the p and m that were asked for, so that what is missing counts as missing."""
    if got.num_ranks != want.num_ranks:
        return got
    return Schedule("yours", want.num_microbatches, want.rank_of_stage, got.orders, want.chains)


def _until_stuck(schedule: Schedule, costs: Costs) -> Timeline:
    """What runs of a schedule that cannot be finished."""
    timeline = until_stuck(schedule, costs)
    return replace(timeline, provenance=f"{timeline.provenance}, until it is stuck")


def _first_difference(got: Schedule, want: Schedule) -> str:
    for rank, (mine, right) in enumerate(zip(got.orders, want.orders, strict=True)):
        if mine != right:
            names = tuple(map(got.short, mine)), tuple(map(want.short, right))
            return f"it can run, but is another schedule. Rank {rank}: {Order().differs(*names)}"
    return ""
