"""Which rank runs which operation, in which order: the one list that is validated, simulated, run and drawn.

Letters: p ranks, m microbatches; F forward, B full backward, I backward for the input's gradient only,
W backward for the weights' gradient only (B = I + W). The letters are those of torch.distributed.pipelining;
the Zero Bubble paper writes B for what is I here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias


class ScheduleError(ValueError):
    """A schedule that cannot be read or cannot run. `violations` holds the reasons as values."""

    def __init__(self, message: str, violations: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.violations = violations


class Kind(str, Enum):
    """What an operation computes."""

    F = "F"
    B = "B"
    I = "I"  # noqa: E741 - the field's letter
    W = "W"

    def __str__(self) -> str:
        return str.__str__(self)


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One operation: `kind` on `microbatch`, by `stage`. Written stage, kind, microbatch.

    >>> str(Action(2, Kind.F, 0))
    '2F0'
    """

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.microbatch}"

    @property
    def actions(self) -> tuple[Action, ...]:
        return (self,)


@dataclass(frozen=True, slots=True)
class Overlap:
    """A forward and a backward that run as one slot (DualPipe). Written as torch writes it.

    >>> str(Overlap(Action(0, Kind.F, 7), Action(7, Kind.B, 3)))
    '(0F7;7B3)OVERLAP_F_B'
    """

    forward: Action
    backward: Action

    def __str__(self) -> str:
        return f"({self.forward};{self.backward})OVERLAP_F_B"

    @property
    def actions(self) -> tuple[Action, ...]:
        return (self.forward, self.backward)


Entry: TypeAlias = Action | Overlap
"""What stands in an order: an action, or an overlapped pair of them."""


@dataclass(frozen=True, slots=True)
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
    _places: dict[Action, tuple[int, int]] | None = field(default=None, init=False, repr=False, compare=False)

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

    def microbatches_of(self, stage: int) -> range:
        """The microbatches that pass through a stage: all of them, or its chain's share."""
        chain = stage // self.chain_length
        m, n = self.num_microbatches, self.chains
        return range(m * chain // n, m * (chain + 1) // n)

    def place(self, action: Action) -> tuple[int, int] | None:
        """(rank, slot) where the action stands first, or None where it stands nowhere."""
        places = self._places
        if places is None:
            places = {}
            for rank, order in enumerate(self.orders):
                for slot, entry in enumerate(order):
                    for part in entry.actions:
                        places.setdefault(part, (rank, slot))
            object.__setattr__(self, "_places", places)  # a cache: the value of a frozen schedule never changes
        return places.get(action)

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
        return _parse([line.split(",") for line in _lines(text)], name, chains)

    @classmethod
    def from_text(cls, text: str, name: str = "custom", chains: int = 1) -> Schedule:
        """Read the form of `str(schedule)`: one rank a line, 'rank 0:' in front if wished.

        'F0' means the stage with the rank's own number; write '4F0' where a rank holds other stages.
        """
        lines = [_without_rank(line, rank) for rank, line in enumerate(_lines(text))]
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
        for letter, value, what in (("p", p, "ranks"), ("m", m, "microbatches")):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{letter} is the number of {what}, a whole number of at least 1: {letter}={value!r}")
        return _made(tuple(_entries(order(rank, p, m), rank) for rank in range(p)), name, chains, m)


_CELL = re.compile(r"(\d*)([FBIW])(\d+)")
_PAIR = re.compile(r"\(?(\d*[FBIW]\d+)[;&](\d*[FBIW]\d+)(?:\)OVERLAP_F_B)?")


def parse_entry(cell: str, rank: int = 0) -> Entry:
    """One cell of an order, as `str(entry)` or `Schedule.short` writes it; a cell without a stage means stage `rank`.

    >>> print(parse_entry("2F0"), parse_entry("F1&B0", rank=3))
    2F0 (3F1;3B0)OVERLAP_F_B
    """
    pair = _PAIR.fullmatch(cell)
    if pair is None:
        return _parse_action(cell, rank)
    return Overlap(_parse_action(pair[1], rank), _parse_action(pair[2], rank))


def _parse_action(cell: str, rank: int) -> Action:
    match = _CELL.fullmatch(cell)
    if match is None:
        raise ScheduleError(
            f"rank {rank}: '{cell}' is no operation. An operation is its stage, a letter of F B I W and its "
            "microbatch, like 2F0 (sends, receives and idle slots are not written down)"
        )
    stage, kind, microbatch = match.groups()
    return Action(int(stage) if stage else rank, Kind(kind), int(microbatch))


def _lines(text: object) -> list[str]:
    """The lines that say something, one a rank."""
    if not isinstance(text, str):
        raise TypeError(
            f"a schedule is read from one string with a line a rank, but this is of type {type(text).__name__}"
        )
    return [line for line in text.splitlines() if line.strip()]


def _without_rank(line: str, rank: int) -> str:
    """The line without its 'rank 0:', which must be where it stands: read in another order, it is another schedule."""
    match = re.match(r"\s*rank\s+(\d+)\s*:", line)
    if match is None:
        return line
    if int(match[1]) != rank:
        raise ScheduleError(
            f"ranks stand in order, one a line, but where rank {rank} should stand is 'rank {match[1]}:'. Sort the lines; "
            f"a rank that runs nothing has a line too, 'rank {rank}:'"
        )
    return line[match.end() :]


def _parse(lines: Iterable[Sequence[str]], name: str, chains: int) -> Schedule:
    orders = tuple(
        tuple(parse_entry(cell.strip(), rank) for cell in line if cell.strip()) for rank, line in enumerate(lines)
    )
    return _made(orders, name, chains)


def _entries(given: object, rank: int) -> tuple[Entry, ...]:
    """What a function returned for a rank, as entries."""
    words = given.split() if isinstance(given, str) else given
    if not isinstance(words, Iterable) or isinstance(words, Set):  # a set has no order
        raise TypeError(
            f"the order of rank {rank} is text like 'F0 F1 B0 B1' or a list of such words, but the function returned "
            + ("nothing (is a return missing?)" if given is None else f"{given!r:.80}")
        )
    found: list[Entry] = []
    for word in words:
        if isinstance(word, Action | Overlap):
            found.append(word)
        elif isinstance(word, str):
            found.append(parse_entry(word.strip(), rank))
        else:
            raise TypeError(
                f"rank {rank}: an operation is a word like 'F0' or '2F0', an Action or an Overlap: {word!r:.80}"
            )
    return tuple(found)


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


PerStage: TypeAlias = float | Sequence[float]


@dataclass(frozen=True, slots=True)
class Costs:
    """How long operations take: one number for all stages, or one a stage. Units are yours; seconds where `unit` is "s".

    forward: F. backward: B, by default I + W where they are given, else as long as F.
    input_grad, weight_grad: I and W, by default half of B each.
    overlapped: an overlapped forward-backward pair, by default F + B.
    transfer: a tensor is on the next rank this long after its producer ended; the link itself is never busy.
    unit: what the numbers are, as axes say it ("" for units of their own, "s" for seconds).

    >>> c = Costs(forward=1, backward=2)
    >>> c.duration(Action(0, Kind.B, 0)), c.duration(Action(0, Kind.W, 0))
    (2.0, 1.0)
    >>> print(Costs(forward=[1, 2], backward=2, transfer=0.1))
    F=1,2 B=2, transfer 0.1
    """

    forward: PerStage = 1.0
    backward: PerStage | None = None
    input_grad: PerStage | None = None
    weight_grad: PerStage | None = None
    overlapped: PerStage | None = None
    transfer: float = 0.0
    unit: str = ""

    def __post_init__(self) -> None:
        for name in ("forward", "backward", "input_grad", "weight_grad", "overlapped", "transfer"):
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str):
                value = tuple(value)  # hashable, and safe from later changes
                object.__setattr__(self, name, value)
            if name == "transfer" and not isinstance(value, int | float):
                raise ValueError(
                    f"a cost is a number of at least 0, and transfer is one for all: transfer is {value!r}"
                )
            if name == "forward" and value is None:
                raise ValueError("a cost is a number of at least 0: forward is None")
            for number in value if isinstance(value, tuple) else () if value is None else (value,):
                if not isinstance(number, int | float) or not math.isfinite(number) or number < 0:
                    raise ValueError(f"a cost is a number of at least 0: {name} is {value!r}")
        if (self.input_grad is None) != (self.weight_grad is None) and self.backward is None:
            raise ValueError("give both input_grad and weight_grad, or one of them and backward (B = I + W)")

    @property
    def stages(self) -> int | None:
        """The number of stages that per-stage costs are for, or None where one number serves all."""
        given = (self.forward, self.backward, self.input_grad, self.weight_grad, self.overlapped)
        lengths = {len(v) for v in given if isinstance(v, tuple)}
        if len(lengths) > 1:
            raise ValueError(f"per-stage costs differ in length: {sorted(lengths)}. Give one number a stage")
        return lengths.pop() if lengths else None

    def check(self, schedule: Schedule) -> None:
        """Raise ValueError where per-stage costs are not one for each stage of the schedule."""
        if self.stages not in (None, schedule.num_stages):
            raise ValueError(
                f"costs are given for {self.stages} stages, but {schedule.label} has {schedule.num_stages}: "
                "give one number for all, or one a stage"
            )

    def duration(self, entry: Entry) -> float:
        """The time that one entry of an order takes."""
        if isinstance(entry, Overlap):
            if self.overlapped is not None:
                return _at(self.overlapped, entry.forward.stage)
            return self.duration(entry.forward) + self.duration(entry.backward)
        stage, kind = entry.stage, entry.kind
        if kind is Kind.F:
            return _at(self.forward, stage)
        if kind is Kind.B:
            if self.backward is not None:
                return _at(self.backward, stage)
            if self.input_grad is not None and self.weight_grad is not None:
                return _at(self.input_grad, stage) + _at(self.weight_grad, stage)
            return _at(self.forward, stage)
        mine, other = self.input_grad, self.weight_grad
        if kind is Kind.W:
            mine, other = other, mine
        if mine is not None:
            return _at(mine, stage)
        whole = self.duration(Action(stage, Kind.B, entry.microbatch))
        return whole / 2 if other is None else max(0.0, whole - _at(other, stage))

    def __str__(self) -> str:
        def text(value: PerStage) -> str:
            numbers = value if isinstance(value, Sequence) else (value,)
            return ",".join(f"{n:g}" for n in numbers) + (f" {self.unit}" if self.unit else "")

        parts = [f"F={text(self.forward)}"]
        if self.input_grad is None and self.weight_grad is None:
            parts.append(f"B={text(self.forward if self.backward is None else self.backward)}")
        else:
            given = {"B": self.backward, "I": self.input_grad, "W": self.weight_grad}
            parts += [f"{letter}={text(value)}" for letter, value in given.items() if value is not None]
        if self.overlapped is not None:
            parts.append(f"F&B={text(self.overlapped)}")
        return " ".join(parts) + (f", transfer {text(self.transfer)}" if self.transfer else "")


def _at(value: PerStage, stage: int) -> float:
    return float(value[stage]) if isinstance(value, Sequence) else float(value)
