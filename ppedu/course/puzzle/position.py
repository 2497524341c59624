"""A schedule that is being built by hand: what stands there, what may come next, and why not.

A position holds the beginning of each rank's order, and every rank may be extended at any time, for an order has no times.
It obeys one promise: **some way of going on makes a whole schedule that runs**. So each move that would break the promise
is refused at once, and nothing is left to be found out at the end:

- what no order may hold: an operation twice, on a wrong rank, of an unknown stage or microbatch, a B before its own F;
  where B is split, an I before its F and a W before its I;
- a deadlock that no continuation can avoid: the move needs, by way of other ranks, an operation which could only come
  after it. (One that a later move can still avoid is no fault. A rank that merely waits is none either.)

The reasons are `ppedu.core.validate`'s own. Too much in flight is no fault but a goal missed: see `puzzle_score`.
Letters: p ranks, m microbatches; F forward, B backward, I and W its halves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from operator import itemgetter

from ppedu.core.costs import Costs
from ppedu.core.deadlock import Link, deadlock
from ppedu.core.operations import Action, Entry, Kind, ScheduleError
from ppedu.core.schedule import Schedule, dependencies
from ppedu.core.simulate import until_stuck
from ppedu.core.structure import Violation
from ppedu.core.text import parse_entry
from ppedu.core.timeline import Timeline
from ppedu.core.validate import refusal, violations


@dataclass(frozen=True, slots=True)
class Waiting:
    """An operation that stands in an order but cannot start yet.

    needs: the operation that it waits for; None where it only stands behind another one that waits.
    message: the same in a sentence.
    """

    rank: int
    action: Action
    needs: Action | None
    message: str


@dataclass(frozen=True, slots=True)
class Position:
    """The beginnings of the orders of ranks.

    split: a backward is two operations, I and W; else it is one, B.

    >>> there = Position.start(p=2, m=2).place(0, "F0").place(0, "B0")
    >>> print(there.schedule)
    rank 0: F0 B0
    rank 1:
    >>> [there.schedule.short(action) for action in there.legal_moves(1)]
    ['F0']
    >>> print(there.why_not(1, "F1").message)
    rank 0 waits at B0 for rank 1's B0, which waits behind F1, which waits for rank 0's F1, which waits behind B0. \
To break the circle, run B0 before F1 on rank 1, or F1 before B0 on rank 0
    """

    schedule: Schedule
    split: bool = False

    @classmethod
    def start(cls, p: int, m: int, stages: tuple[int, ...] | None = None, split: bool = False) -> Position:
        """Nothing placed yet. stages: the rank of each, as in `Schedule.rank_of_stage`; by default one on each rank."""
        return cls(Schedule("yours", m, tuple(range(p)) if stages is None else stages, ((),) * p), split)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What a microbatch does on a stage, in order."""
        return (Kind.F, Kind.I, Kind.W) if self.split else (Kind.F, Kind.B)

    def operations(self, rank: int) -> tuple[Action, ...]:
        """All that a rank has to run: forwards first, by stage and microbatch."""
        stages, m = self.schedule.stages_of(rank), self.schedule.num_microbatches
        return tuple(Action(stage, kind, j) for kind in self.kinds for stage in stages for j in range(m))

    @property
    def total(self) -> int:
        """How many operations the whole schedule has."""
        return len(self.kinds) * self.schedule.num_stages * self.schedule.num_microbatches

    @property
    def placed(self) -> int:
        """How many of them have their place."""
        return sum(map(len, self.schedule.orders))

    @property
    def rest(self) -> tuple[tuple[Action, ...], ...]:
        """What each rank still has to run: forwards first, by stage and microbatch."""
        there = [set(order) for order in self.schedule.orders]
        return tuple(tuple(a for a in self.operations(rank) if a not in placed) for rank, placed in enumerate(there))

    @property
    def complete(self) -> bool:
        """Each operation has its place, so this is a schedule that can run."""
        return not any(self.rest)

    def why_not(self, rank: int, move: Action | str) -> Violation | None:
        """Why `move` cannot come next on `rank`, or None where it can. A string is read as orders are: "F0"."""
        action = self._read(move, rank)
        if not 0 <= rank < self.schedule.num_ranks:
            raise ValueError(f"there is no rank {rank}: ranks run from 0 to {self.schedule.num_ranks - 1}")
        after = self._with(rank, action)
        whole = after._completed()
        # Whether the ranks wait for each other is asked below: here the order of what is not placed yet would count.
        fault = next((v for v in violations(whole) if v.rule != "deadlock"), None)
        if fault is not None:
            return fault
        circle = after._circle(rank, action, whole)
        return deadlock(whole, circle) if circle else None

    def place(self, rank: int, move: Action | str) -> Position:
        """The position after a move. Raises ScheduleError, with the Violation, for an illegal one."""
        action = self._read(move, rank)
        reason = self.why_not(rank, action)
        if reason is not None:
            raise ScheduleError(reason.message, (reason,))
        return self._with(rank, action)

    def legal_moves(self, rank: int) -> tuple[Action, ...]:
        """What can come next on a rank: forwards first, by microbatch."""
        return tuple(action for action in self.rest[rank] if self.why_not(rank, action) is None)

    def play(self, costs: Costs) -> tuple[Timeline, tuple[Waiting, ...]]:
        """When everything runs that can run already, and what has to wait, rank by rank."""
        timeline = until_stuck(self.schedule, costs)
        reached = [len(timeline.spans_of(rank)) for rank in range(self.schedule.num_ranks)]
        return timeline, tuple(self._waiting(reached))

    def way(self, costs: Costs, before: float | None = None) -> Iterator[Position]:
        """The positions on the way here, one operation more each time, as they start; up to the last `before` a time."""
        timeline, waiting = self.play(costs)
        moves = [(span.start, span.rank, span.action) for span in timeline.spans]
        moves += [(inf, wait.rank, wait.action) for wait in waiting]
        there = replace(self, schedule=replace(self.schedule, orders=((),) * self.schedule.num_ranks))
        for start, rank, entry in sorted(moves, key=itemgetter(0)):
            if before is None or start < before:
                there = there._with(rank, entry)
                yield there

    def to_text(self) -> str:
        """The schedule's CSV, a line a rank; a rank without operations has an empty line."""
        return self.schedule.to_csv()

    def load(self, text: str) -> Position:
        """The position of the same size that `text` describes: CSV ("0F0,0F1"), or what a schedule prints ("F0 F1").

        Line r is rank r's; lines that are left out at the end are empty. Raises ScheduleError, with every reason, for
        what cannot be read or cannot be continued to a schedule that runs.
        """
        p, m = self.schedule.num_ranks, self.schedule.num_microbatches
        orders = tuple(tuple(self._read(cell, rank) for cell in cells) for rank, cells in enumerate(_lines(text, p)))
        loaded = replace(self, schedule=replace(self.schedule, orders=orders))
        found = loaded._faults()
        if found:
            raise refusal(Schedule("this text", m, self.schedule.rank_of_stage, orders), found)
        return loaded

    # what the above stands on

    def _with(self, rank: int, *actions: Entry) -> Position:
        orders = list(self.schedule.orders)
        orders[rank] = (*orders[rank], *actions)
        return replace(self, schedule=replace(self.schedule, orders=tuple(orders)))

    def _completed(self) -> Schedule:
        """The orders with all that is left behind them, so that nothing is missing from them."""
        orders = zip(self.schedule.orders, self.rest, strict=True)
        return replace(self.schedule, orders=tuple((*order, *rest) for order, rest in orders))

    def _circle(self, rank: int, action: Action, whole: Schedule) -> list[Link]:
        """The shortest circle of waiting in which `action`, the last one of `rank`, waits for what comes after it.

        Found from `action` back to what it cannot start without, step by step, until that is an operation which `rank`
        has not placed: it can only come later. [] where there is no circle. whole: `_completed`, which knows whether a
        backward that is not placed yet is a B or an I.
        """
        came_from: dict[Action, Action] = {}
        to_see, late = [action], self.rest[rank]
        for current in to_see:
            if current in late:
                return self._links(action, current, came_from)
            for before in (*dependencies(current, whole), *self._ahead(current)):
                if before != action and before not in came_from:
                    came_from[before] = current
                    to_see.append(before)
        return []

    def _rank(self, action: Action) -> int:
        return self.schedule.rank_of_stage[action.stage]

    def _ahead(self, action: Action) -> Iterator[Action]:
        """What is sure to stand before an action in its rank's order, farthest first."""
        for entry in self.schedule.orders[self._rank(action)]:
            if entry == action:
                return
            yield from entry.actions

    def _links(self, first: Action, last: Action, came_from: dict[Action, Action]) -> list[Link]:
        way = [last]
        while way[-1] != first:
            way.append(came_from[way[-1]])
        way.reverse()
        # A step to the same rank is one to what stands ahead there, or to what has to stand there since it is needed: both
        # are part of the order. A link leads from what heads a rank to what it waits for on another one.
        links = [Link(self._rank(a), a, b, self._rank(b)) for a, b in pairwise(way) if self._rank(a) != self._rank(b)]
        return links or [Link(self._rank(first), first, last, self._rank(last))]  # its own rank runs it only later

    def _waiting(self, reached: list[int]) -> Iterator[Waiting]:
        whole = self._completed()
        for rank, order in enumerate(self.schedule.orders):
            head: str | None = None
            for action in (part for entry in order[reached[rank] :] for part in entry.actions):
                name = self.schedule.short(action)
                if head is not None:
                    yield Waiting(rank, action, None, f"rank {rank}'s {name} waits behind {head}")
                    continue
                needs = self._not_run(action, reached, whole)
                whose = f"rank {self._rank(needs)}'s {self.schedule.short(needs)}"
                place = self.schedule.place(needs)
                how = "which has no place yet" if place is None else "which cannot run yet either"
                yield Waiting(rank, action, needs, f"rank {rank}'s {name} waits for {whose}, {how}")
                head = name

    def _not_run(self, action: Action, reached: list[int], whole: Schedule) -> Action:
        for needed in dependencies(action, whole):
            place = self.schedule.place(needed)
            if place is None or place[1] >= reached[place[0]]:
                return needed
        raise RuntimeError(f"{action} waits for nothing")

    def _faults(self) -> tuple[Violation, ...]:
        """Why no continuation can run: every fault of an order by itself, else the first circle of waiting."""
        found = violations(self._completed())
        faults = tuple(v for v in found if v.rule != "deadlock")
        if faults or not found:
            return faults
        position = replace(self, schedule=replace(self.schedule, orders=((),) * self.schedule.num_ranks))
        for rank, order in enumerate(self.schedule.orders):
            for action in (part for entry in order for part in entry.actions):
                position = position._with(rank, action)
                whole = position._completed()
                circle = position._circle(rank, action, whole)
                if circle:
                    return (deadlock(whole, circle),)
        return ()

    def _read(self, move: Action | str, rank: int) -> Action:
        entry = parse_entry(move, rank) if isinstance(move, str) else move
        if not isinstance(entry, Action):
            raise ScheduleError(f"rank {rank}: {entry} is a pair of operations. Place one at a time")
        if entry.kind not in self.kinds:
            if self.split:
                raise ScheduleError(f"rank {rank}: {entry} is a whole backward. Here it is two operations, I and W")
            raise ScheduleError(f"rank {rank}: {entry} is a part of a backward. Here a backward is one operation, B")
        return entry


def _lines(text: str, p: int) -> list[list[str]]:
    """The cells of p lines. Blank lines stand for empty ranks, unless there are p lines without them."""
    lines = [re.sub(r"^\s*rank\s+\d+\s*:", "", line) for line in text.splitlines()]
    full = [line for line in lines if line.strip()]
    if len(full) == p:
        lines = full
    while len(lines) > p and not lines[-1].strip():
        lines.pop()
    if len(lines) > p:
        raise ScheduleError(f"there are {len(lines)} lines, but {p} ranks: write one line a rank, rank 0's first")
    return [
        re.split(r"[\s,]+", line.strip(", \t")) if line.strip(", \t") else []
        for line in lines + [""] * (p - len(lines))
    ]
