"""Which rank runs which operation, in which order: the one list that is validated, simulated, run and drawn.

Letters: p ranks, m microbatches; F forward, B full backward, I backward for the input's gradient only,
W backward for the weights' gradient only (B = I + W). The letters are those of torch.distributed.pipelining;
the Zero Bubble paper writes B for what is I here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from ppedu.core.checks import whole
from ppedu.core.operations import Action, Entry, Kind, ScheduleError, in_flight
from ppedu.core.text import entries_of, lines_of, parse_entry, without_rank


@dataclass(frozen=True)
class Schedule:
    """For each rank the order of its operations. Order only: no times, no idle slots, no sends.

    name: what pictures and tables call it.
    num_microbatches: m, the equal parts that a batch is cut into.
    rank_of_stage: entry s is the rank that holds stage s. Interleaved and V-shaped placements differ here only.
    orders: entry r is the order of rank r.
    chains: copies of the chain of stages that run at once, each with its share of the microbatches
        (2 for bidirectional schedules; stage s then stands at position s modulo the chain's length).

    >>> two = Schedule.from_text("F0 F1 B0 B1\\nF0 B0 F1 B1", name="1F1B")
    >>> two.num_ranks, two.num_microbatches, two.rank_of_stage
    (2, 2, (0, 1))
    >>> print(two)
    rank 0: F0 F1 B0 B1
    rank 1: F0 B0 F1 B1
    >>> print(two.to_csv(), end="")
    0F0,0F1,0B0,0B1
    1F0,1B0,1F1,1B1
    """

    name: str
    num_microbatches: int
    rank_of_stage: tuple[int, ...]
    orders: tuple[tuple[Entry, ...], ...]
    chains: int = 1

    @property
    def num_ranks(self) -> int:
        """p, the number of ranks."""
        return len(self.orders)

    @property
    def num_stages(self) -> int:
        """Stages over all ranks and chains: p times v times chains for regular placements."""
        return len(self.rank_of_stage)

    @property
    def chain_length(self) -> int:
        """Stages that one microbatch passes through."""
        return self.num_stages // self.chains

    @property
    def one_stage_per_rank(self) -> bool:
        """Stage and rank are the same number, so that text may leave the stage out."""
        return self.rank_of_stage == tuple(range(self.num_ranks))

    @property
    def label(self) -> str:
        """Name with p and m: what titles say.

        >>> Schedule.from_text("F0 B0").label
        'custom p=1 m=1'
        """
        return f"{self.name} p={self.num_ranks} m={self.num_microbatches}"

    @property
    def stage_size(self) -> float:
        """What a stage is of 1/p of the model: p / chain length, so 1/v with v stages on each rank, 1 in each of two chains."""
        return self.num_ranks / self.chain_length

    @property
    def actions(self) -> Iterator[Action]:
        """Every operation, rank by rank; those of a pair one after the other."""
        return (action for order in self.orders for entry in order for action in entry.actions)

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of operations that it has anywhere."""
        return frozenset(action.kind for action in self.actions)

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """The most forwards whose activations each rank keeps at one time. Its order alone decides it: it holds in every run.

        >>> Schedule.from_text("F0 F1 B0 B1\\nF0 B0 F1 B1").peak_in_flight
        (2, 1)
        """
        return tuple(max(in_flight(order), default=0) for order in self.orders)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that a rank holds."""
        return tuple(stage for stage, holder in enumerate(self.rank_of_stage) if holder == rank)

    def microbatches_of(self, stage: int) -> range:
        """The microbatches that pass through a stage: all of them, or its chain's share."""
        chain = stage // self.chain_length
        m, n = self.num_microbatches, self.chains
        return range(m * chain // n, m * (chain + 1) // n)

    def place(self, action: Action) -> tuple[int, int] | None:
        """(rank, slot) where the action stands first, or None where it stands nowhere."""
        return self._places.get(action)

    @cached_property
    def _places(self) -> dict[Action, tuple[int, int]]:
        places: dict[Action, tuple[int, int]] = {}
        for rank, order in enumerate(self.orders):
            for slot, entry in enumerate(order):
                for part in entry.actions:
                    places.setdefault(part, (rank, slot))
        return places

    def short(self, entry: Entry) -> str:
        """An entry as text says it: 'F0' where the rank tells the stage, '2F0' elsewhere; 'F7&B3' for a pair."""
        if self.one_stage_per_rank:
            return "&".join(f"{a.kind.value}{a.microbatch}" for a in entry.actions)
        return "&".join(str(a) for a in entry.actions)

    def __str__(self) -> str:
        return "\n".join(f"rank {r}: {' '.join(map(self.short, order))}" for r, order in enumerate(self.orders))

    def to_csv(self) -> str:
        """One rank a line, '2F0' a cell: the form that torch.distributed.pipelining reads and writes."""
        return "".join(",".join(map(str, order)) + "\n" for order in self.orders)

    @classmethod
    def from_csv(cls, text: str, name: str = "custom", chains: int = 1) -> Schedule:
        """Read the form of `to_csv`; empty cells (torch writes them for idle slots) are skipped.

        >>> Schedule.from_csv("0F0,0B0\\n1F0,1B0").num_stages
        2
        """
        return _parse([line.split(",") for line in lines_of(text)], name, chains)

    @classmethod
    def from_text(cls, text: str, name: str = "custom", chains: int = 1) -> Schedule:
        """Read the form of `str(schedule)`: one rank a line, 'rank 0:' in front if wished.

        'F0' means the stage with the rank's own number; write '4F0' where a rank holds other stages.
        """
        lines = [without_rank(line, rank) for rank, line in enumerate(lines_of(text))]
        return _parse([line.split() for line in lines], name, chains)

    @classmethod
    def from_function(
        cls,
        order: Callable[[int, int, int], str | Iterable[str | Entry]],
        p: int,
        m: int,
        name: str = "custom",
        chains: int = 1,
    ) -> Schedule:
        """The schedule of p ranks and m microbatches in which rank r runs `order(r, p, m)`.

        order: a function that returns the operations of one rank as text ("F0 F1 B0"), or as a list (or a generator) of
            such words, Actions and Overlaps. 'F0' means the stage with the rank's own number.

        >>> def last_first(rank, p, m):
        ...     return [f"{kind}{i}" for kind in "FB" for i in reversed(range(m))]
        >>> print(Schedule.from_function(last_first, p=2, m=2))
        rank 0: F1 F0 B1 B0
        rank 1: F1 F0 B1 B0

        Raises TypeError where the function returns something else, ScheduleError for words that are no operations.
        """
        if not callable(order):
            raise TypeError(f"order is a function (rank, p, m) -> 'F0 F1 B0 B1': order={order!r:.80}")
        p, m = whole("p", p), whole("m", m)
        return _made(tuple(entries_of(order(rank, p, m), rank) for rank in range(p)), name, chains, m)


def _parse(lines: Iterable[Sequence[str]], name: str, chains: int) -> Schedule:
    orders = tuple(
        tuple(parse_entry(cell.strip(), rank) for cell in line if cell.strip()) for rank, line in enumerate(lines)
    )
    return _made(orders, name, chains)


def _made(orders: tuple[tuple[Entry, ...], ...], name: str, chains: int, m: int | None = None) -> Schedule:
    """The schedule of these orders: a stage is where it runs first; m, if not given, is what they count up to."""
    rank_of: dict[int, int] = {}
    for rank, order in enumerate(orders):
        for part in (a for e in order for a in e.actions):
            rank_of.setdefault(part.stage, rank)
    if not rank_of:
        raise ScheduleError("the schedule is empty: write one line a rank, like 'F0 F1 B0 B1'")
    absent = next((wanted for wanted, stage in enumerate(sorted(rank_of)) if wanted != stage), None)
    if absent is not None:
        raise ScheduleError(f"stages run from 0 to {max(rank_of)}, but no rank runs stage {absent}")
    microbatches = 1 + max(a.microbatch for order in orders for e in order for a in e.actions)
    return Schedule(name, microbatches if m is None else m, tuple(rank_of[s] for s in sorted(rank_of)), orders, chains)


Alternatives: TypeAlias = tuple[Kind, ...]


def needs(stage: int, kind: Kind, schedule: Schedule) -> tuple[tuple[int, Alternatives], ...]:
    """The rule behind `dependencies`, the same for every microbatch: (stage, kinds of which one must have run).

    A forward needs the previous stage's output; a backward needs its own forward, and the gradient that the next
    stage computes in its B or its I; W needs its own I.
    """
    position = stage % schedule.chain_length
    if kind is Kind.F:
        return () if position == 0 else ((stage - 1, (Kind.F,)),)
    if kind is Kind.W:
        return ((stage, (Kind.I,)),)
    own: tuple[tuple[int, Alternatives], ...] = ((stage, (Kind.F,)),)
    if position == schedule.chain_length - 1:
        return own
    return (*own, (stage + 1, (Kind.B, Kind.I)))


def dependencies(action: Action, schedule: Schedule) -> tuple[Action, ...]:
    """The operations whose results `action` needs before it can start. Stated here and nowhere else.

    >>> s = Schedule.from_text("F0 B0\\nF0 B0")
    >>> [str(a) for a in dependencies(Action(0, Kind.B, 0), s)]
    ['0F0', '1B0']
    """
    found = []
    for stage, kinds in needs(action.stage, action.kind, schedule):
        options = [Action(stage, kind, action.microbatch) for kind in kinds]
        found.append(next((a for a in options if schedule.place(a) is not None), options[0]))
    return tuple(found)


def dependents(action: Action, schedule: Schedule) -> tuple[Action, ...]:
    """The operations that need the result of `action`: what it unblocks.

    >>> s = Schedule.from_text("F0 B0\\nF0 B0")
    >>> [str(a) for a in dependents(Action(0, Kind.F, 0), s)]
    ['1F0', '0B0']
    """
    near = (action.stage + 1, action.stage, action.stage - 1)
    candidates = (Action(stage, kind, action.microbatch) for stage in near for kind in Kind)
    return tuple(c for c in candidates if schedule.place(c) is not None and action in dependencies(c, schedule))
