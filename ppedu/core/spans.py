"""What one rank did: its spans, and the figures that follow from them alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from ppedu.core.operations import Entry


@dataclass(frozen=True, slots=True)
class Span:
    """One entry of a rank's order, from its start to its end. Waiting is not part of it."""

    action: Entry
    rank: int
    start: float
    end: float

    @property
    def duration(self) -> float:
        """end - start."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Lane:
    """A rank's spans by start; the last one's end, the time in operations, and what is in flight: its curve and its peak."""

    spans: tuple[Span, ...]
    end: float
    busy: float
    curve: tuple[tuple[float, int], ...]
    peak: int

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Lane:
        ordered = sorted(spans, key=attrgetter("start"))
        curve: list[tuple[float, int]] = []
        count = peak = 0
        for time, step in _steps(ordered):
            count += step
            peak = max(peak, count)
            if curve and curve[-1][0] == time:
                curve.pop()  # one step a time: a free and a forward at once leave the count as it was
            if count != (curve[-1][1] if curve else 0):
                curve.append((time, count))
        end = max((span.end for span in ordered), default=0.0)
        return cls(tuple(ordered), end, math.fsum(span.duration for span in ordered), tuple(curve), peak)


def _steps(spans: Iterable[Span]) -> list[tuple[float, int]]:
    """What is in flight on a rank, as (time, +1 or -1). A rank works in order, so its spans yield them in order."""
    steps = []
    for span in spans:
        if span.action.keeps:
            steps.append((span.start, 1))
        if span.action.frees:
            steps.append((span.end, -1))
    if any(a[0] > b[0] for a, b in pairwise(steps)):
        steps.sort()  # spans that overlap by a clock's error; at equal times -1 comes first
    return steps
