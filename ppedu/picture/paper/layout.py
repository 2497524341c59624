"""Where each lane of a scene stands, from the picture's top down, in points (1/72 inch)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

from ppedu.picture.scene import Scene

Track: TypeAlias = dict[str, Any]
"""A timeline of a scene; view.js says what is in it."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank of one timeline, and the height of its strip (0 for none)."""

    track: Track
    rank: int
    top: float
    height: float
    strip: float
    end: float

    @property
    def middle(self) -> float:
        return self.top + self.height / 2

    @property
    def bottom(self) -> float:
        return self.top + self.height

    @property
    def strip_bottom(self) -> float:
        return self.bottom + 0.12 * self.height + self.strip

    @property
    def operations(self) -> range:
        first: tuple[int, ...] = self.track["first"]
        return range(first[self.rank], first[self.rank + 1])


@dataclass(frozen=True, slots=True)
class Layout:
    """held: what strips count, "" where there are none. named: each lane has a word for what it is."""

    lanes: tuple[Lane, ...]
    ranks: tuple[tuple[float, str], ...]
    headings: tuple[tuple[float, str], ...]
    phases: tuple[tuple[float, Track], ...]
    held: str
    named: bool
    height: float


def lay_out(scene: Scene, headings: bool, in_flight: bool, phases: bool) -> Layout:
    """Put lanes under one another, the tracks of a group rank by rank. Few ranks get high lanes."""
    rows = sum(track["ranks"] for track in scene["tracks"])
    height = min(34.0, max(12.0, 480 / rows / (1.8 if in_flight else 1.15)))
    lanes: list[Lane] = []
    labels: list[tuple[float, str]] = []
    heads: list[tuple[float, str]] = []
    marks: list[tuple[float, Track]] = []
    y, named = 0.0, any(track["word"] for track in scene["tracks"])
    for _, found in groupby(scene["tracks"], key=lambda track: track["group"]):
        group = list(found)
        if headings:
            y += 24 if heads else 10
            heads.append((y, "   ".join(group[0]["title"])))
            y += 14
        if phases and group[0]["phases"]:
            y += 20
            marks.append((y, group[0]))
        for rank in range(group[0]["ranks"]):
            first = y
            for track in group:
                end = track["makespan"] or scene["span"] or 1.0  # the lanes of an empty one are whole
                lanes.append(Lane(track, rank, y, height, in_flight * height / 2, end))
                y = (lanes[-1].strip_bottom if in_flight else lanes[-1].bottom) + 0.12 * height
            labels.append(((first + lanes[-1].bottom) / 2, f"rank {rank}"))
            y += (len(group) > 1) * 0.3 * height + in_flight * 0.2 * height
    return Layout(tuple(lanes), tuple(labels), tuple(heads), tuple(marks), scene["held"] * in_flight, named, y)


def corners_of(left: float, right: float, top: float, bottom: float) -> list[tuple[float, float]]:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def steps_of(track: Track, rank: int) -> Iterator[tuple[float, float]]:
    """The corners of a rank's step curve of what is in flight."""
    flat, before = [*track["curve"][rank], track["makespan"], 0.0], 0.0
    for time, count in zip(flat[::2], flat[1::2], strict=True):
        yield time, before
        yield time, count
        before = count
