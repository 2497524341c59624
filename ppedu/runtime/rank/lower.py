"""Schedule -> what each rank really does: its operations with the sends and receives between them.

For each ordered pair of ranks the receiver takes tensors in the order in which the sender sends them, so that no
channel needs tags and no order can deadlock that the schedule itself does not.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ppedu.core.operations import Action, Entry
from ppedu.core.schedule import Schedule, dependencies
from ppedu.core.validate import check


@dataclass(frozen=True, slots=True)
class Send:
    """Start to send what `action` computed: a forward's output, a backward's gradient for its input."""

    action: Action
    to: int


@dataclass(frozen=True, slots=True)
class Recv:
    """Take the next tensor that rank `source` sends here, which is what `action` computed there.

    taken_there: how many of this rank's own tensors `source` has taken when it sends this one. Those have arrived, and
        need not be kept any longer.
    """

    action: Action
    source: int
    taken_there: int = 0


Instruction: TypeAlias = Entry | Send | Recv
Program: TypeAlias = tuple[Instruction, ...]


def lower(schedule: Schedule) -> tuple[Program, ...]:
    """The program of each rank. Raises ScheduleError for a schedule that cannot run.

    >>> from ppedu.schedules import gpipe
    >>> for program in lower(gpipe(p=2, m=1)):
    ...     print(*(f"{type(i).__name__}({i.action})" if hasattr(i, "action") else i for i in program))
    0F0 Send(0F0) Recv(1B0) 0B0
    Recv(0F0) 1F0 1B0 Send(1B0)
    """
    check(schedule)
    destinations = _destinations(schedule)
    channels = _channels(schedule, destinations)
    programs = []
    for rank, order in enumerate(schedule.orders):
        program: list[Instruction] = []
        taken: set[Action] = set()
        for entry in order:
            for source, wanted in _inputs(entry, rank, schedule):
                while wanted not in taken:  # what the sender sent before it comes first
                    arrived = channels[source, rank].popleft()
                    taken.add(arrived)
                    program.append(Recv(arrived, source))
            program.append(entry)
            program += [Send(action, to) for action in entry.actions for to in destinations[action]]
        programs.append(program)
    return _with_receipts(programs)


def _with_receipts(programs: Sequence[Sequence[Instruction]]) -> tuple[Program, ...]:
    """Write into each receive what it tells of this rank's own sends (`Recv.taken_there`)."""
    taken_before: dict[Action, int] = {}
    for program in programs:
        taken: Counter[int] = Counter()
        for i in program:
            if isinstance(i, Recv):
                taken[i.source] += 1
            elif isinstance(i, Send):
                taken_before[i.action] = taken[i.to]
    return tuple(
        tuple(replace(i, taken_there=taken_before[i.action]) if isinstance(i, Recv) else i for i in program)
        for program in programs
    )


def _inputs(entry: Entry, rank: int, schedule: Schedule) -> list[tuple[int, Action]]:
    """(source rank, action) for each result that an entry needs from another rank."""
    needed = [d for action in entry.actions for d in dependencies(action, schedule)]
    return [(schedule.rank_of_stage[d.stage], d) for d in needed if schedule.rank_of_stage[d.stage] != rank]


def _destinations(schedule: Schedule) -> defaultdict[Action, list[int]]:
    """For each action the other ranks that need its result."""
    found: defaultdict[Action, list[int]] = defaultdict(list)
    for rank, order in enumerate(schedule.orders):
        for entry in order:
            for _, action in _inputs(entry, rank, schedule):
                found[action].append(rank)
    return found


def _channels(
    schedule: Schedule, destinations: defaultdict[Action, list[int]]
) -> defaultdict[tuple[int, int], deque[Action]]:
    """For each ordered pair of ranks what goes from one to the other, in the order of sending."""
    channels: defaultdict[tuple[int, int], deque[Action]] = defaultdict(deque)
    for rank, order in enumerate(schedule.orders):
        for entry in order:
            for action in entry.actions:
                for to in destinations[action]:
                    channels[rank, to].append(action)
    return channels
