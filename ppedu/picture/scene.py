"""What a picture of timelines is made of, as plain data: what matplotlib draws (`ppedu.picture.paper`), and as JSON the page.

Neither of the two has rules of its own: what an operation needs comes from `dependencies`, why a rank is idle from
`Timeline.gaps`, words from `labels`, colours from `palette`. The format is described at the top of view.js.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeAlias

from ppedu.core.operations import Action, Entry
from ppedu.core.schedule import Schedule, dependencies
from ppedu.core.spans import Span
from ppedu.core.timeline import Timeline
from ppedu.core.waits import Gap
from ppedu.picture import labels
from ppedu.picture.palette import SHAPE, WORD, box_colors

Scene: TypeAlias = dict[str, Any]
Parts: TypeAlias = tuple[tuple[str, float, float], ...]
_DIGITS = 6  # of times in a scene: more are rounding, and cost time on the way
KEEPS: dict[str, str] = {
    "I": "frees nothing: its activations are kept until its W has run",
    "W": "frees the activations when it ends",
}
"""What the halves of a backward do to what is in flight. The page says it of an operation that one points at."""


@dataclass(frozen=True, slots=True)
class Structure:
    """What a picture needs of the order of operations. They are numbered rank by rank, in order.

    first: the number of each rank's first operation, and the number of them all.
    names, kinds: one an operation. index: the number of each action.
    shades: what kinds of boxes there are, as (kind, how pale): the later the stage on its rank, the paler.
    shade: for each operation its number in `shades`; two of them for a pair.
    """

    first: tuple[int, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    index: dict[Action, int]
    shades: tuple[tuple[str, float], ...]
    shade: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Track:
    """A timeline in a scene.

    group: tracks of one group share their ranks: predicted over measured. word: what tells them apart.
    title: the pieces of the heading. transfer: what a message between ranks takes, in the timeline's unit; None where a
        prediction does not say. Of a measurement nobody knows.
    waiting: operations that cannot start yet, as (rank, name, kind, why).
    """

    timeline: Timeline
    group: int = 0
    word: str = ""
    title: tuple[str, ...] = ()
    transfer: float | None = 0.0
    waiting: tuple[tuple[int, str, str, str], ...] = ()


def tracks_of(groups: Sequence[Sequence[Timeline]], transfer: float | None = 0.0) -> list[Track]:
    """Timelines as tracks with their headings; those of a group share their ranks.

    transfer: what a message takes in the first timeline of a group.
    """
    return [
        Track(t, group, word, () if n else title, 0.0 if n else transfer)
        for group, (timelines, title) in enumerate(zip(groups, labels.titles(groups), strict=True))
        for n, (t, word) in enumerate(zip(timelines, labels.words_of(timelines), strict=True))
    ]


def scene(
    number: int,
    tracks: Sequence[Track],
    *,
    predicted: str = "",
    label: str = "",
    span: float | None = None,
    budget: int | None = None,
    marks: Sequence[tuple[float, str]] = (),
    whole: bool = True,
    activations: bool = False,
) -> Scene:
    """All that is drawn, ready for JSON. Timelines have one unit in it, and start at 0.

    predicted: what the caption says of the predictions, in place of their own words. label: of the time axis, where it is
        known better than from the timelines.
    span: where the time axis ends, by default with the longest timeline. marks: (time, label) of dashed lines. Both are in
        the first timeline's unit.
    whole: with what `details` has. A large scene is on the page sooner without, and its details follow.
    activations: what is in flight as `Timeline.peak_activations` counts it, so that schedules with stages of other sizes
        compare; else in stage-microbatches.

    >>> from ppedu import one_f_one_b, simulate
    >>> drawn = scene(1, [Track(simulate(one_f_one_b(p=2, m=2)))])
    >>> drawn["span"], drawn["peak"], drawn["tracks"][0]["name"]
    (6.0, 2, ('F0', 'F1', 'B0', 'B1', 'F0', 'B0', 'F1', 'B1'))
    >>> drawn["tracks"][0]["gaps"][0]
    (0, 2.0, 3.0, "rank 0 is idle from 2 to 3: it waits for rank 1's B0, which ended at 3", 2, 5)
    """
    timelines = [track.timeline for track in tracks]
    unit, scales = labels.units_of(timelines)
    drawn = [_track(track, scale, activations) for track, scale in zip(tracks, scales, strict=True)]
    if whole:
        for one, more in zip(drawn, details(number, tracks)["tracks"], strict=True):
            one.update(more)
    held = "activations" if activations else "in flight"
    return {
        "number": number,
        "unit": unit.replace("us", "µs"),
        "label": labels.time_label(timelines, unit) if unit or not label else label,
        "integer": all(end == int(end) for one in drawn for end in one["end"]),
        "span": max((one["makespan"] for one in drawn), default=0.0)
        if span is None
        else round(span * scales[0], _DIGITS),
        "peak": max((max(one["peaks"]) for one in drawn), default=0),
        "budget": budget,
        "held": held,
        "key": _key(drawn, held),
        "caption": labels.caption(timelines, predicted),
        "marks": [{"time": time * scales[0], "label": text} for time, text in marks],
        "tracks": drawn,
    }


def details(number: int, tracks: Sequence[Track]) -> Scene:
    """What a scene says when one points at it: what operations need, why ranks are idle; and the critical path."""
    _, scales = labels.units_of([track.timeline for track in tracks])
    return {"number": number, "tracks": [_details(track, scale) for track, scale in zip(tracks, scales, strict=True)]}


def _key(drawn: Sequence[dict[str, Any]], held: str) -> list[tuple[str, str, Parts]]:
    """What the shapes mean, as (kind, word, what it is made of), in the order of the letters."""
    kinds = {kind for one in drawn for kind in one["kind"]}
    shown: list[tuple[str, str, Parts]] = [
        (kind, word, ((kind, *SHAPE[kind]),)) for kind, word in WORD.items() if kind in kinds
    ]
    if any(len(kind) > 1 for kind in kinds):
        shown.append(("pair", "both at once", (("F", 0.0, 0.5), ("B", 0.5, 1.0))))
    return [
        *shown,
        ("idle", "bubble", (("idle", 0.0, 1.0),)),
        ("in flight", held, (("strip", 0.1, 0.9), ("in flight", 0.5, 0.9))),
        ("path", "critical path", (("paper", 0.0, 1.0),)),
    ]


class _This:
    """One schedule, by identity: to hash a long one takes longer than to draw it."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def __hash__(self) -> int:
        return id(self.schedule)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _This) and other.schedule is self.schedule


@lru_cache(maxsize=16)
def _structure(this: _This, ran: tuple[tuple[Entry, ...], ...] | None) -> Structure:
    """Number the operations of a schedule, or those that `ran` of them. Other costs leave them as they are."""
    schedule, lanes = this.schedule, this.schedule.orders if ran is None else ran
    entries = [entry for lane in lanes for entry in lane]
    first = (0, *accumulate(map(len, lanes)))
    index = {part: number for number, entry in enumerate(entries) for part in entry.actions}
    kinds = tuple("".join(part.kind.value for part in entry.actions) for entry in entries)
    held = [schedule.stages_of(rank) for rank in range(schedule.num_ranks)]
    pale = {stage: 0.5 * n / max(1, len(stages) - 1) for stages in held for n, stage in enumerate(stages)}
    found: dict[tuple[str, float], int] = {}
    shade = tuple(
        tuple(
            [
                found.setdefault((kind, pale[part.stage]), len(found))
                for kind, part in zip(its, entry.actions, strict=True)
            ]
        )
        for its, entry in zip(kinds, entries, strict=True)
    )
    return Structure(first, tuple(map(schedule.short, entries)), kinds, index, tuple(found), shade)


def _lanes(t: Timeline) -> list[tuple[Span, ...]]:
    return [t.spans_of(rank) for rank in range(t.schedule.num_ranks)]


def _clock(t: Timeline, scale: float) -> Callable[[float], float]:
    """From the timeline's times to the picture's."""
    start, longest = t.start, t.makespan * scale
    digits = _DIGITS if longest >= 1 or not longest else _DIGITS - math.floor(math.log10(longest))
    return lambda time: round((time - start) * scale, digits)


def _known(t: Timeline) -> Structure:
    ran = tuple(tuple([span.action for span in lane]) for lane in _lanes(t))
    return _structure(_This(t.schedule), None if ran == t.schedule.orders else ran)


def _track(track: Track, scale: float, activations: bool) -> dict[str, Any]:
    t = track.timeline
    known, at = _known(t), _clock(t, scale)
    size = t.schedule.stage_size if activations else 1
    spans = [span for lane in _lanes(t) for span in lane]
    ranks = range(t.schedule.num_ranks)
    return {
        "group": track.group,
        "word": track.word,
        "title": track.title,
        "ranks": len(ranks),
        "makespan": at(t.end),
        "first": known.first,
        "kind": known.kinds,
        "name": known.names,
        "start": [at(span.start) for span in spans],
        "end": [at(span.end) for span in spans],
        "curve": [[x for time, count in t.in_flight(rank) for x in (at(time), size * count)] for rank in ranks],
        "peaks": tuple(size * peak for peak in t.peak_in_flight),
        "phases": _phases(t, at),
        "shade": known.shade,
        "colors": [[_colors(*shade, dark) for shade in known.shades] for dark in (False, True)],
        "arrives": not t.measured and track.transfer is not None,
        "waiting": track.waiting,
    }


def _colors(kind: str, pale: float, dark: bool) -> tuple[str, ...]:
    """Fill and text of a box; then, paler, where the critical path is shown and the box is not on it."""
    return *box_colors(kind, pale, dark), *box_colors(kind, 0.5 + pale / 2, dark)


def path(track: Track) -> list[int]:
    """The operations of the critical path."""
    index = _known(track.timeline).index
    return [index[span.action.actions[0]] for span in track.timeline.critical_path()]


def _details(track: Track, scale: float) -> dict[str, Any]:
    t = track.timeline
    known, at = _known(t), _clock(t, scale)
    spans = [span for lane in _lanes(t) for span in lane]
    index, s = known.index, t.schedule
    needs = [_needs(span.action, s, index) for span in spans]
    return {
        "needs": needs,
        "there": _arrivals(spans, needs, track.transfer, at) if track.transfer else None,
        "gaps": [_gap(gap, known, at) for rank in range(t.schedule.num_ranks) for gap in t.gaps(rank)],
        "path": path(track),
    }


def _needs(entry: Entry, schedule: Schedule, index: dict[Action, int]) -> list[int]:
    """What an entry needs, each once: the two of a pair may both need the two of another."""
    found = [index[d] for part in entry.actions for d in dependencies(part, schedule) if d in index]
    return found if isinstance(entry, Action) else list(dict.fromkeys(found))


def _gap(gap: Gap, known: Structure, at: Callable[[float], float]) -> tuple[Any, ...]:
    next_one = -1 if gap.before is None else known.index[gap.before.actions[0]]
    waited = -1 if gap.waited_for is None else known.index.get(gap.waited_for, -1)
    return gap.rank, at(gap.start), at(gap.end), gap.message, next_one, waited


def _arrivals(
    spans: Sequence[Span], needs: Sequence[Sequence[int]], transfer: float, at: Callable[[float], float]
) -> list[list[float]]:
    """When each result that an operation needs was on its rank."""
    return [
        [at(spans[j].end + (transfer if spans[j].rank != span.rank else 0.0)) for j in needed]
        for span, needed in zip(spans, needs, strict=True)
    ]


def _phases(t: Timeline, at: Callable[[float], float]) -> list[tuple[str, float, float]]:
    """The phases by time that are not empty; a run that was stopped has none."""
    if not t.complete:
        return []
    phases = t.phases()
    named = (("warm-up", phases.warmup), ("steady", phases.steady), ("cool-down", phases.cooldown))
    return [(name, at(start), at(end)) for name, (start, end) in named if end > start]
