"""What operations and messages cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TypeAlias

from ppedu.core.operations import Entry, Kind, Overlap
from ppedu.core.schedule import Schedule

PerStage: TypeAlias = float | Sequence[float]

_TIMES = ("forward", "backward", "input_grad", "weight_grad", "overlapped", "transfer")


@dataclass(frozen=True, slots=True)
class Costs:
    """How long operations take: one number for all stages, or one a stage. Units are yours; seconds where `unit` is "s".

    forward: F. backward: B, by default I + W where they are given, else as long as F.
    input_grad, weight_grad: I and W, by default half of B each.
    overlapped: an overlapped forward-backward pair, by default F + B.
    transfer: a tensor is on the next rank this long after its producer ended; the link itself is never busy.
    unit: what the numbers are, as axes say it ("" for units of their own, "s" for seconds).

    >>> from ppedu.core.operations import Action
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
        for name in _TIMES:
            value = getattr(self, name)
            if value is None and name not in ("forward", "transfer"):
                continue
            if isinstance(value, Sequence) and not isinstance(value, str):
                value = tuple(value)  # hashable, and safe from later changes
                object.__setattr__(self, name, value)
            several = isinstance(value, tuple) and name != "transfer"
            if not all(isinstance(n, Real) and 0 <= float(n) < math.inf for n in (value if several else (value,))):
                one = ", and transfer is one for all" if name == "transfer" else ""
                raise ValueError(f"a cost is a number of at least 0{one}: {name} is {value!r}")
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

    def scaled(self, factor: float, unit: str | None = None) -> Costs:
        """The same costs, all times as long, messages included; in `unit`, if given.

        >>> print(Costs(forward=[1, 2], backward=2, transfer=1).scaled(0.01, "s"))
        F=0.01,0.02 s B=0.02 s, transfer 0.01 s
        """

        def of(value: PerStage | None) -> PerStage | None:
            return tuple(factor * v for v in value) if isinstance(value, Sequence) else value and factor * value

        times = {name: of(getattr(self, name)) for name in _TIMES}
        return replace(self, **times, unit=self.unit if unit is None else unit)  # type: ignore[arg-type]

    def duration(self, entry: Entry) -> float:
        """The time that one entry of an order takes."""
        if isinstance(entry, Overlap):
            if self.overlapped is not None:
                return _at(self.overlapped, entry.forward.stage)
            return self.duration(entry.forward) + self.duration(entry.backward)
        f = _at(self.forward, entry.stage)
        b, i, w = (
            None if value is None else _at(value, entry.stage)
            for value in (self.backward, self.input_grad, self.weight_grad)
        )
        if entry.kind is Kind.F:
            return f
        if b is None:
            b = f if i is None or w is None else i + w
        if entry.kind is Kind.B:
            return b
        mine, other = (i, w) if entry.kind is Kind.I else (w, i)
        if mine is not None:
            return mine
        return b / 2 if other is None else max(0.0, b - other)

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
