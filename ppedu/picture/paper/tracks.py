"""What a picture shows: timelines brought to one unit, their figures, captions and labels, and where each lane stands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ppedu.core.schedule import Schedule
from ppedu.core.timeline import Timeline
from ppedu.picture.paper.style import SECONDS


@dataclass(frozen=True, slots=True)
class Track:
    """A timeline with the factor from its unit to the picture's.

    size: what one activation in flight counts in this picture: 1, or, beside schedules with another number of stages,
    p / chain length (see `Timeline.peak_activations`).
    """

    timeline: Timeline
    scale: float
    unit: str
    size: float = 1.0

    def at(self, time: float) -> float:
        return (time - self.timeline.start) * self.scale

    @property
    def makespan(self) -> float:
        return self.timeline.makespan * self.scale

    @property
    def peaks(self) -> tuple[float, ...]:
        """The peak in flight of each rank, as the picture counts."""
        return tuple(self.size * peak for peak in self.timeline.peak_in_flight)


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank of one timeline: where it stands, from the picture's top, and the height of its strip (0 for none)."""

    track: Track
    rank: int
    name: str
    top: float
    height: float
    strip: float

    @property
    def middle(self) -> float:
        return self.top + self.height / 2

    @property
    def bottom(self) -> float:
        return self.top + self.height

    @property
    def strip_bottom(self) -> float:
        return self.bottom + 0.12 * self.height + self.strip


@dataclass(frozen=True, slots=True)
class Layout:
    lanes: tuple[Lane, ...]
    ranks: tuple[tuple[float, str], ...]
    headings: tuple[tuple[float, str], ...]
    phases: tuple[tuple[float, Track], ...]
    height: float


def several(timelines: Timeline | Sequence[Timeline]) -> tuple[Timeline, ...]:
    if isinstance(timelines, Timeline):
        return (timelines,)
    given = tuple(timelines) if isinstance(timelines, Iterable) else (timelines,)
    if not all(isinstance(t, Timeline) for t in given):
        raise TypeError("pictures are drawn of timelines: simulate(schedule) returns one, and a run has run.timeline")
    if not given:
        raise ValueError("there is nothing to draw: give at least one timeline")
    return given


def tracks_of(timelines: Sequence[Timeline]) -> tuple[Track, ...]:
    units = {t.unit for t in timelines}
    if not units <= SECONDS.keys():
        if len(units) > 1:
            first, second = sorted(units)[:2]
            raise ValueError(
                f"timelines in '{first}' and '{second}' cannot share a time axis. Simulate with the durations that the "
                "run has, such as Costs(forward=0.02, backward=0.02, unit='s')"
            )
        return tuple(Track(t, 1.0, t.unit, size) for t, size in zip(timelines, _sizes(timelines), strict=True))
    longest = max(t.makespan * SECONDS[t.unit] for t in timelines)
    unit = "s" if longest >= 1 else "us" if 0 < longest < 1e-3 else "ms"
    return tuple(
        Track(t, SECONDS[t.unit] / SECONDS[unit], unit, size)
        for t, size in zip(timelines, _sizes(timelines), strict=True)
    )


def _sizes(timelines: Sequence[Timeline]) -> list[float]:
    """What one activation in flight counts: the same for all, or as much as it is where stages differ in size."""
    sizes = [t.schedule.num_ranks / t.schedule.chain_length for t in timelines]
    return sizes if len(set(sizes)) > 1 else [1.0] * len(sizes)


def lay_out(groups: Sequence[Sequence[Track]], headings: bool, in_flight: bool, phases: bool) -> Layout:
    """Put lanes under one another, the tracks of a group rank by rank. Few ranks get high lanes."""
    names = labels_of([group[0] for group in groups])
    rows = sum(track.timeline.schedule.num_ranks for group in groups for track in group)
    height = min(34.0, max(12.0, 480 / rows / (1.8 if in_flight else 1.15)))
    lanes: list[Lane] = []
    labels: list[tuple[float, str]] = []
    heads: list[tuple[float, str]] = []
    marks: list[tuple[float, Track]] = []
    y = 0.0
    for group, name in zip(groups, names, strict=True):
        if headings:
            y += 24 if heads else 10
            heads.append((y, "   ".join((name, *figures_of(group)[1:]))))
            y += 14
        if phases and group[0].timeline.complete:  # a run that was stopped has no cool-down
            y += 20
            marks.append((y, group[0]))
        for rank in range(group[0].timeline.schedule.num_ranks):
            first = y
            for track, row in zip(group, _names(group), strict=True):
                lane = Lane(track, rank, row, y, height, in_flight * height / 2)
                lanes.append(lane)
                y = (lane.strip_bottom if in_flight else lane.bottom) + 0.12 * height
            labels.append(((first + lanes[-1].bottom) / 2, f"rank {rank}"))
            y += (len(group) > 1) * 0.3 * height + in_flight * 0.2 * height
    return Layout(tuple(lanes), tuple(labels), tuple(heads), tuple(marks), y)


def _names(group: Sequence[Track]) -> Sequence[str]:
    """What tells the lanes of one rank apart."""
    if len(group) == 1:
        return [""]
    options = [track.timeline.word for track in group], [track.timeline.schedule.name for track in group]
    return next((names for names in options if len(set(names)) == len(group)), ["first", "second"])


def _time(value: float, unit: str) -> str:
    unit = unit.replace("us", "µs")
    return f"{value:.4g} {unit}".rstrip() if abs(value) < 1e4 else f"{value:.0f} {unit}".rstrip()


def figures_of(tracks: Sequence[Track]) -> tuple[str, ...]:
    """The pieces of a title. Two timelines: makespans with the difference, then what else differs."""
    timelines = [track.timeline for track in tracks]
    spans = [_time(track.makespan, track.unit) for track in tracks]
    if len(tracks) == 2:
        spans = [f"{text} {name}" for text, name in zip(spans, _names(tracks), strict=True)]
        if tracks[0].makespan:
            spans[1] += f" ({100 * (tracks[1].makespan / tracks[0].makespan - 1):+.1f} %)"
    stopped = [f"stopped after {len(t.spans)} of {t.total} operations" for t in timelines if not t.complete]
    return (
        " / ".join(dict.fromkeys(t.schedule.name for t in timelines)),
        "makespan " + " → ".join(spans),
        "bubble " + " → ".join(dict.fromkeys(f"{100 * t.bubble_fraction:.1f} %" for t in timelines)),
        "in flight " + " → ".join(dict.fromkeys(listed(track.peaks) for track in tracks)),
        *stopped,
    )


def listed(values: Sequence[float]) -> str:
    """One figure a rank, or what they have in common where that is too long for a title."""
    texts = [f"{value:.3g}" for value in values]
    if len(texts) > 8 and len(set(texts)) == 1:
        return f"{texts[0]} on every rank"
    return " ".join(texts) if len(texts) <= 16 else f"at most {max(values):.3g}"


def caption_of(tracks: Sequence[Track]) -> str:
    """How many ranks and microbatches, and where the times come from."""
    schedules = [track.timeline.schedule for track in tracks]
    sizes = dict.fromkeys((s.num_ranks, s.num_microbatches) for s in schedules)
    said = ["; ".join(f"p = {_count(p, 'rank')}, m = {_count(m, 'microbatch')}" for p, m in sizes)]
    said += dict.fromkeys(t[:1].upper() + t[1:] for t in (track.timeline.provenance for track in tracks) if t)
    most = max(len(stages_on(s, rank)) for s in schedules for rank in range(s.num_ranks))
    if most > 1:
        said.append("Pale: the rank's second stage" if most == 2 else "The paler, the later the stage on its rank")
    said += [counted] if (counted := _counted_in(tracks)) else []
    return " ".join(sentence.rstrip(".") + "." for sentence in said)


def _counted_in(tracks: Sequence[Track]) -> str:
    """What one activation in flight is, where it is not simply a microbatch on its rank."""
    if len({track.size for track in tracks}) > 1:
        return "In flight counts microbatches on 1/p of the model"
    parts = {track.timeline.schedule.chain_length for track in tracks}
    if parts == {track.timeline.schedule.num_ranks for track in tracks}:
        return ""
    return f"In flight counts microbatches on one stage, 1/{parts.pop()} of the model" if len(parts) == 1 else ""


def _count(number: int, what: str) -> str:
    plural = "" if number == 1 else "es" if what.endswith("ch") else "s"
    return f"{number} {what}{plural}"


def stages_on(schedule: Schedule, rank: int) -> list[int]:
    return [stage for stage, holder in enumerate(schedule.rank_of_stage) if holder == rank]


def time_label_of(tracks: Sequence[Track]) -> str:
    unit = tracks[0].unit.replace("us", "µs")
    if unit:
        return f"time ({unit})"
    return "time (units of F)" if all(track.timeline.in_forwards for track in tracks) else "time (units)"


def labels_of(tracks: Sequence[Track]) -> list[str]:
    """What tells timelines apart, as short as it can be: name, p and m where names repeat, predicted or measured."""
    names, labels = [t.timeline.schedule.name for t in tracks], [t.timeline.label for t in tracks]
    words = [track.timeline.word for track in tracks]
    worded = [[f"{text}, {word}" for text, word in zip(texts, words, strict=True)] for texts in (names, labels)]
    options = [worded[0], worded[1]] if len(set(words)) > 1 else [names, labels]
    return next((texts for texts in options if len(set(texts)) == len(tracks)), options[-1])
