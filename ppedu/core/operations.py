"""What a rank can do: F, B, I or W of a microbatch by a stage, or a forward and a backward as a pair; and what that keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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

    @property
    def keeps(self) -> int:
        """1 for a forward: from its start on, its activations are kept for the backward. Else 0."""
        return int(self.kind is Kind.F)

    @property
    def frees(self) -> int:
        """1 for what frees a forward's activations at its end: B, or W where B is split. Else 0."""
        return int(self.kind is Kind.B or self.kind is Kind.W)


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

    @property
    def keeps(self) -> int:
        return self.forward.keeps

    @property
    def frees(self) -> int:
        return self.backward.frees


Entry: TypeAlias = Action | Overlap
"""What stands in an order: an action, or an overlapped pair of them."""

F, B, I, W = Kind.F, Kind.B, Kind.I, Kind.W  # noqa: E741 - the field's letters


def in_flight(order: Iterable[Entry]) -> Iterator[int]:
    """How many forwards' activations a rank keeps while each entry of its order runs. No times decide that.

    >>> list(in_flight([Action(0, Kind.F, 0), Action(0, Kind.F, 1), Action(0, Kind.B, 0), Action(0, Kind.B, 1)]))
    [1, 2, 2, 1]
    """
    count = 0
    for entry in order:
        count += entry.keeps
        yield count
        count -= entry.frees
