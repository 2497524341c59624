"""Pictures of timelines, to be put on a slide: what ran when on which rank, what waited, what was held in memory.

Each function returns the Axes that it drew on, saves nothing, shows nothing and leaves matplotlib's settings as they
were. Without `ax` it opens one pyplot figure, which a notebook shows once. `ax.get_label()` is the picture's text twin,
one line a timeline; `str(timeline)` has every operation. Lengths below are in points (1/72 inch).
Letters: p ranks, m microbatches; F forward, B backward, I and W its halves (B = I + W).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.font_manager import FontProperties
from matplotlib.offsetbox import AnchoredOffsetbox, DrawingArea, HPacker, OffsetBox, TextArea
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from ppedu.schedule import Entry, Schedule
from ppedu.timeline import Span, Timeline

PALETTE: dict[str, str] = {
    "F": "#2a62a8",
    "B": "#eaa43a",
    "I": "#d2702a",
    "W": "#f0d28a",
    "idle": "#e4e7ed",
    "in flight": "#8577b3",
    "ink": "#1d2430",
    "quiet": "#59636f",
    "paper": "#ffffff",
}
"""The one palette. Forward is cold and dark, backward is warm and light, so that they differ in grey as well."""

SHAPE: dict[str, tuple[float, float]] = {"F": (0.0, 0.84), "B": (0.16, 1.0), "I": (0.16, 1.0), "W": (0.38, 1.0)}
"""Where in its lane a box stands, from top (0) to bottom (1): forwards ride high, backwards sit low, W is short."""

HATCH: dict[str, str] = {"W": "////"}
"""The hatch of a kind, where it has one."""

WORD: dict[str, str] = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
"""What the letters stand for."""

_WIDTH = 864.0  # of a figure of our own: 12 inches, 90 % of a slide's width
_DPI = 144
_SMALLEST, _LABEL, _TITLE = 7.0, 12.0, 15.0  # font sizes
_STYLE = {
    "font.family": ["DejaVu Sans"],  # it comes with matplotlib: a picture has the same widths everywhere
    "text.usetex": False,
    "axes.grid": False,
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
    "hatch.linewidth": 0.7,
    "path.sketch": None,
}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def plot_timeline(
    t: Timeline,
    measured: Timeline | None = None,
    *,
    in_flight: bool = False,
    phases: bool = True,
    critical_path: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw what each rank runs over time. Every rank has a lane; what is shaded in it is bubble.

    measured: a second timeline of the same schedule, drawn under the first one, both from their first start.
    in_flight: a strip under each lane with the activations in flight over time; the peak stands at its right.
    phases: mark warm-up, steady and cool-down, by time, of the (first) timeline.
    critical_path: outline the chain of operations that the makespan is made of.
    ax: where to draw; by default on a figure of its own, as high as the ranks need.

    Numbers are left out where boxes are too narrow for them. Raises ValueError for two timelines with different
    numbers of ranks, or whose units cannot be compared.

    >>> from ppedu import one_f_one_b, simulate
    >>> ax = plot_timeline(simulate(one_f_one_b(p=4, m=8)))
    >>> ax.get_title(loc="left")
    '1F1B   makespan 22   bubble 27.3 %   in flight 4 3 2 1'
    >>> plt.close(ax.figure)
    """
    timelines = (t,) if measured is None else (t, measured)
    if len({one.schedule.num_ranks for one in timelines}) > 1:
        raise ValueError(
            f"two timelines on one axis need the same ranks: {timelines[0].label} has "
            f"{timelines[0].schedule.num_ranks}, {timelines[1].label} has {timelines[1].schedule.num_ranks}. "
            "Use plot_compare to stack them"
        )
    tracks = _tracks(timelines)
    layout = _layout([tracks], False, in_flight, phases)
    return _draw(layout, tracks, _figures(tracks), critical_path, ax)


def plot_compare(
    timelines: Sequence[Timeline],
    *,
    in_flight: bool = True,
    phases: bool = False,
    critical_path: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Stack several timelines on one Axes, with one time axis and one scale for what is in flight.

    Each has its figures as a heading. The options are those of `plot_timeline`. Raises ValueError for no timelines, or
    units that cannot be compared.

    >>> from ppedu import gpipe, one_f_one_b, simulate
    >>> ax = plot_compare([simulate(gpipe(p=4, m=8)), simulate(one_f_one_b(p=4, m=8))])
    >>> print(ax.get_label())
    GPipe p=4 m=8: makespan 22, bubble 27.3 %, in flight 8 8 8 8
    1F1B p=4 m=8: makespan 22, bubble 27.3 %, in flight 4 3 2 1
    >>> plt.close(ax.figure)
    """
    tracks = _tracks(_several(timelines))
    layout = _layout([(track,) for track in tracks], True, in_flight, phases)
    return _draw(layout, tracks, (), critical_path, ax)


def plot_memory(
    timelines: Timeline | Sequence[Timeline],
    *,
    rank: int | None = None,
    bytes_per_microbatch: float | Sequence[float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw what ranks hold in memory: the peak of every rank as bars, or one rank over time.

    rank: draw this rank's activations in flight over time instead, one line a timeline.
    bytes_per_microbatch: bytes that one activation in flight takes, one number or one a rank; the axis is then bytes.

    Where a rank holds several stages, one activation is that of one microbatch on one stage. Raises ValueError for no
    timelines, a rank that one of them lacks, or bytes that are not one number a rank.

    >>> from ppedu import gpipe, one_f_one_b, simulate
    >>> ax = plot_memory([simulate(gpipe(p=4, m=8)), simulate(one_f_one_b(p=4, m=8))])
    >>> ax.get_ylabel()
    'peak in flight (microbatches)'
    >>> plt.close(ax.figure)
    """
    tracks = _tracks(_several(timelines))
    ranks = max(track.timeline.schedule.num_ranks for track in tracks)
    least = min(track.timeline.schedule.num_ranks for track in tracks)
    if rank is not None and not 0 <= rank < least:
        raise ValueError(f"rank {rank} is not there: the timelines have ranks 0 to {least - 1}")
    sizes = _sizes(bytes_per_microbatch, ranks)
    return _memory(tracks, rank, sizes, ax)


# what is drawn


@dataclass(frozen=True, slots=True)
class _Track:
    """A timeline with the factor from its unit to the picture's."""

    timeline: Timeline
    scale: float
    unit: str

    def at(self, time: float) -> float:
        return (time - self.timeline.start) * self.scale

    @property
    def makespan(self) -> float:
        return self.timeline.makespan * self.scale

    @property
    def word(self) -> str:
        """How the provenance opens: predicted or measured."""
        return self.timeline.provenance.split(",")[0].split(":")[0].strip()


@dataclass(frozen=True, slots=True)
class _Lane:
    """One rank of one timeline: where it stands, from the picture's top, and the height of its strip (0 for none)."""

    track: _Track
    rank: int
    name: str
    top: float
    height: float
    strip: float

    @property
    def middle(self) -> float:
        return self.top + self.height / 2

    @property
    def strip_bottom(self) -> float:
        return self.top + self.height + 0.12 * self.height + self.strip


@dataclass(frozen=True, slots=True)
class _Layout:
    lanes: tuple[_Lane, ...]
    ranks: tuple[tuple[float, str], ...]
    headings: tuple[tuple[float, str], ...]
    phases: tuple[tuple[float, float, _Track], ...]
    height: float


def _several(timelines: Timeline | Sequence[Timeline]) -> tuple[Timeline, ...]:
    found = (timelines,) if isinstance(timelines, Timeline) else tuple(timelines)
    if not found:
        raise ValueError("there is nothing to draw: give at least one timeline")
    return found


def _tracks(timelines: Sequence[Timeline]) -> tuple[_Track, ...]:
    units = {t.unit for t in timelines}
    if not units <= _SECONDS.keys():
        if len(units) > 1:
            first, second = sorted(units)[:2]
            raise ValueError(
                f"timelines in '{first}' and '{second}' cannot share a time axis. Simulate with the durations that the "
                "run has, such as Costs(forward=0.02, backward=0.02, unit='s')"
            )
        return tuple(_Track(t, 1.0, t.unit) for t in timelines)
    longest = max(t.makespan * _SECONDS[t.unit] for t in timelines)
    unit = "s" if longest >= 1 else "ms" if longest >= 1e-3 else "us"
    return tuple(_Track(t, _SECONDS[t.unit] / _SECONDS[unit], unit) for t in timelines)


def _layout(groups: Sequence[Sequence[_Track]], headings: bool, in_flight: bool, phases: bool) -> _Layout:
    """Put lanes under one another, the tracks of a group rank by rank. Few ranks get high lanes."""
    rows = sum(track.timeline.schedule.num_ranks for group in groups for track in group)
    height = min(30.0, max(12.0, 460 / rows / (1.8 if in_flight else 1.15)))
    lanes: list[_Lane] = []
    labels, heads, marks = [], [], []
    y = 0.0
    for group in groups:
        if headings:
            y += 24 if heads else 10
            heads.append((y, "   ".join(_figures(group))))
            y += 14
        if phases:
            y += 20
        top = y
        for rank in range(group[0].timeline.schedule.num_ranks):
            first = y
            for track in group:
                lane = _Lane(track, rank, track.word if len(group) > 1 else "", y, height, in_flight * height / 2)
                lanes.append(lane)
                y = (lane.strip_bottom if in_flight else y + height) + 0.12 * height
            labels.append(((first + lanes[-1].top + height) / 2, f"rank {rank}"))
            y += (len(group) - 1) * 0.25 * height + in_flight * 0.2 * height
        if phases:
            marks.append((top, y, group[0]))
    return _Layout(tuple(lanes), tuple(labels), tuple(heads), tuple(marks), y)


def _time(value: float, unit: str) -> str:
    unit = unit.replace("us", "µs")
    return f"{value:.4g} {unit}".rstrip() if abs(value) < 1e4 else f"{value:.0f} {unit}".rstrip()


def _figures(tracks: Sequence[_Track]) -> tuple[str, ...]:
    """The title's pieces. Two timelines: makespans with the difference, then what else differs."""
    timelines = [track.timeline for track in tracks]
    spans = [_time(track.makespan, track.unit) for track in tracks]
    if len(tracks) == 2:
        spans = [f"{text} {track.word}" for text, track in zip(spans, tracks, strict=True)]
        if tracks[0].makespan:
            spans[1] += f" ({100 * (tracks[1].makespan / tracks[0].makespan - 1):+.1f} %)"
    stopped = [f"stopped after {len(t.spans)} of {t.total} operations" for t in timelines if not t.complete]
    return (
        " / ".join(dict.fromkeys(t.schedule.name for t in timelines)),
        "makespan " + " → ".join(spans),
        "bubble " + " → ".join(dict.fromkeys(f"{100 * t.bubble_fraction:.1f} %" for t in timelines)),
        "in flight " + " → ".join(dict.fromkeys(map(_peaks, timelines))),
        *stopped,
    )


def _peaks(t: Timeline) -> str:
    peaks = t.peak_in_flight
    return " ".join(map(str, peaks)) if len(peaks) <= 16 else f"at most {max(peaks)}"


def _caption(tracks: Sequence[_Track], critical_path: bool) -> str:
    """How many ranks and microbatches, and where the times come from."""
    schedules = [track.timeline.schedule for track in tracks]
    sizes = dict.fromkeys((s.num_ranks, s.num_microbatches) for s in schedules)
    said = ["; ".join(f"p = {_count(p, 'rank')}, m = {_count(m, 'microbatch')}" for p, m in sizes)]
    said += dict.fromkeys(t[:1].upper() + t[1:] for t in (track.timeline.provenance for track in tracks) if t)
    if any(len(_stages(s, rank)) > 1 for s in schedules for rank in range(s.num_ranks)):
        said.append("The paler a box, the later its stage among those of the rank")
    if critical_path:
        said.append("Outlined: the critical path")
    return " ".join(sentence.rstrip(".") + "." for sentence in said)


def _count(number: int, what: str) -> str:
    plural = "" if number == 1 else "es" if what.endswith("ch") else "s"
    return f"{number} {what}{plural}"


def _stages(schedule: Schedule, rank: int) -> list[int]:
    return [stage for stage, holder in enumerate(schedule.rank_of_stage) if holder == rank]


def _time_label(tracks: Sequence[_Track]) -> str:
    unit = tracks[0].unit.replace("us", "µs")
    if unit:
        return f"time ({unit})"
    forwards = (s.duration for track in tracks for s in track.timeline.spans if str(s.action.actions[0].kind) == "F")
    ones = all(abs(duration - 1) < 1e-9 for duration in forwards)
    return "time (units of F)" if ones else "time (units)"


# text that fits


@lru_cache(maxsize=4096)
def _em(text: str, bold: bool = False) -> float:
    """Width of a text per point of its font size."""
    font = FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal", size=100)
    width: float = text_to_path.get_text_width_height_descent(text, font, False)[0]
    return width / 100


def _fit(pieces: Sequence[str], gap: str, width: float, size: float, most: int, bold: bool) -> tuple[str, float]:
    """Join pieces to at most so many lines of a width; where they do not fit, in a smaller font."""
    while True:
        lines = [pieces[0]] if pieces else []
        for piece in pieces[1:]:
            longer = lines[-1] + gap + piece
            if _em(longer, bold) * size <= width:
                lines[-1] = longer
            else:
                lines.append(piece)
        fits = len(lines) <= most and all(_em(line, bold) * size <= width for line in lines)
        if fits or size <= _SMALLEST:
            return "\n".join(lines), size
        size -= 0.5


# the frame: everything outside the lanes


@dataclass(frozen=True, slots=True)
class _Page:
    """The Axes with its scales: points per unit of time, and points per point of the layout (1 on our own figures)."""

    ax: Axes
    dx: float
    dy: float

    def size(self, wished: float, room: float) -> float:
        """The font size for a text in a row of the layout that is `room` high."""
        return min(wished, 0.74 * room * self.dy)

    def text(self, x: float, y: float, text: str, size: float, color: str = PALETTE["ink"], **more: object) -> Text:
        kwargs = {"va": "center_baseline", "ha": "center", "clip_on": True, **more}
        return self.ax.text(x, y, text, fontsize=size, color=color, **kwargs)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Frame:
    title: tuple[str, ...]
    time_label: str
    caption: str
    key: tuple[tuple[str, str], ...]

    def key_width(self, words: bool) -> float:
        return sum(18 + words * (5 + 11 * _em(word)) for _, word in self.key) + 12 * (len(self.key) - 1)

    def key_beside(self, width: float) -> bool:
        """The key stands in the row of the axis label where both fit, else in a row of its own."""
        return 11 * _em(self.time_label) + 30 + self.key_width(True) <= width


def _margins(layout: _Layout, frame: _Frame) -> tuple[float, float, float, float]:
    """Left, right, bottom and top margin of a figure of our own."""
    left = max(12 * _em(text) for _, text in layout.ranks) + 14 + _minor_width(layout)
    right = 62.0 if any(lane.strip for lane in layout.lanes) else 16.0
    inside = _WIDTH - left - right
    lines = 1 + _fit(frame.caption.split(), " ", inside, 11, 3, False)[0].count("\n")
    bottom = 46 + (0 if frame.key_beside(inside) else 20) + 15 * lines
    heads = _fit(frame.title, "   ", inside, _TITLE, 2, True)[0] if frame.title else ""
    return left, right, bottom, 12 + (20 + 20 * heads.count("\n") if heads else 0)


def _minor_width(layout: _Layout) -> float:
    names = {lane.name for lane in layout.lanes} | {"in flight" for lane in layout.lanes if lane.strip}
    return max(10 * _em(name) for name in names) + (8 if any(names) else 0)


def _page(layout: _Layout, tracks: Sequence[_Track], frame: _Frame, ax: Axes | None) -> _Page:
    """Open the Axes, label everything around the lanes, then measure what is left for them."""
    longest = max(track.makespan for track in tracks) or 1.0
    if ax is None:
        ax = _figure(layout.height, _margins(layout, frame))
    ax.set(xlim=(0, longest), ylim=(layout.height, 0), facecolor=PALETTE["paper"])
    ax.set_label("\n".join(repr(track.timeline) for track in tracks))
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=12, steps=[1, 2, 5, 10], integer=longest >= 12))
    ax.tick_params(axis="x", labelsize=11, color=PALETTE["quiet"], labelcolor=PALETTE["ink"], length=3)
    _around(ax, frame)
    page = _measured(ax, longest, layout.height)
    _side_labels(page, layout)
    return _measured(ax, longest, layout.height)


def _figure(height: float, margins: tuple[float, float, float, float]) -> Axes:
    left, right, bottom, top = margins
    whole = height + bottom + top
    figure = plt.figure(figsize=(_WIDTH / 72, whole / 72), dpi=_DPI, facecolor=PALETTE["paper"])
    return figure.add_axes((left / _WIDTH, bottom / whole, (_WIDTH - left - right) / _WIDTH, height / whole))


def _points(ax: Axes) -> tuple[float, float]:
    box = ax.get_window_extent()
    return box.width * 72 / ax.figure.dpi, box.height * 72 / ax.figure.dpi


def _measured(ax: Axes, longest: float, height: float) -> _Page:
    figure = ax.get_figure(root=True)
    if figure is not None and figure.get_layout_engine() is not None:
        figure.draw_without_rendering()  # the layout engine gives the Axes its size only now
    width_points, height_points = _points(ax)
    return _Page(ax, width_points / longest, height_points / height)


def _around(ax: Axes, frame: _Frame) -> None:
    """Title above; axis label, key and caption below."""
    width, _ = _points(ax)
    if frame.title:
        title, size = _fit(frame.title, "   ", width, _TITLE, 2, True)
        ax.set_title(title, loc="left", fontsize=size, fontweight="bold", color=PALETTE["ink"], pad=8)
    ax.set_xlabel(frame.time_label, loc="left", fontsize=11, color=PALETTE["ink"], labelpad=4)
    beside = frame.key_beside(width)
    words = frame.key_width(True) <= width
    _put_key(ax, [_swatch(kind, word if words else "") for kind, word in frame.key], 22 if beside else 42)
    caption, size = _fit(frame.caption.split(), " ", width, 11, 3, False)
    ax.annotate(
        caption, (0, 0), (0, -44 if beside else -64), "axes fraction", "offset points", va="top", ha="left",
        fontsize=size, color=PALETTE["quiet"], annotation_clip=False, linespacing=1.25,
    )  # fmt: skip


def _put_key(ax: Axes, swatches: Sequence[OffsetBox], below: float) -> None:
    figure = ax.get_figure(root=True)
    if figure is None or not swatches:
        return
    shift = ScaledTranslation(0, -below / 72, figure.dpi_scale_trans)
    row = HPacker(children=list(swatches), pad=0, sep=12, align="center")
    ax.add_artist(
        AnchoredOffsetbox(
            "upper right", child=row, pad=0, borderpad=0, frameon=False,
            bbox_to_anchor=(1, 0), bbox_transform=ax.transAxes + shift,
        )
    )  # fmt: skip


def _swatch(kind: str, word: str) -> OffsetBox:
    """A small box as the lanes show it, and what it means."""
    area = DrawingArea(18, 14)
    for letter, top, bottom in _parts(kind):
        shape = (0, 14 * (1 - bottom)), 18, 14 * (bottom - top)
        outline = {"edgecolor": PALETTE["ink"], "linewidth": 1.6} if kind == "critical path" else {}
        fill = PALETTE.get(letter, PALETTE["paper"])
        edge = outline or {"edgecolor": _edge(fill) if letter in SHAPE else "none", "linewidth": 0.6}
        area.add_artist(Rectangle(*shape, facecolor=fill, hatch=HATCH.get(letter), **edge))  # type: ignore[arg-type]
        if letter in SHAPE and kind in SHAPE:
            y = 14 * (1 - (top + bottom) / 2)
            area.add_artist(Text(9, y, letter, size=9, weight="bold", color=_on(fill), ha="center", va="center_baseline"))
    text = TextArea(word, textprops={"fontsize": 11, "color": PALETTE["ink"]})
    return HPacker(children=[area, text], pad=0, sep=5, align="center") if word else area


def _parts(kind: str) -> list[tuple[str, float, float]]:
    """The boxes of a swatch: kind, top, bottom."""
    if kind == "pair":
        return [("F", 0.0, 0.5), ("B", 0.5, 1.0)]
    if kind == "in flight":
        return [("idle", 0.1, 0.9), (kind, 0.5, 0.9)]
    return [(kind, *SHAPE.get(kind, (0.0, 1.0)))]


def _key(tracks: Sequence[_Track], in_flight: bool, critical_path: bool) -> tuple[tuple[str, str], ...]:
    """What the picture shows, in the order of the letters."""
    entries = {type(s.action).__name__: s.action for track in tracks for s in track.timeline.spans}
    kinds = {str(a.kind) for track in tracks for s in track.timeline.spans if len(s.action.actions) == 1 for a in s.action.actions}
    key = [(kind, word) for kind, word in WORD.items() if kind in kinds]
    key += [("pair", "both at once")] * ("Overlap" in entries)
    key += [("idle", "bubble")]
    key += [("in flight", "in flight")] * in_flight
    return (*key, *[("critical path", "critical path")] * critical_path)


def _side_labels(page: _Page, layout: _Layout) -> None:
    """Ranks as major ticks; what a row is (predicted, measured, in flight) as minor ticks, nearer to the lanes."""
    ax, lane = page.ax, layout.lanes[0]
    size = max(_SMALLEST, page.size(_LABEL, lane.height))
    pitch = layout.ranks[1][0] - layout.ranks[0][0] if len(layout.ranks) > 1 else layout.height
    every = math.ceil(1.2 * size / (pitch * page.dy))
    ax.set_yticks([y for y, _ in layout.ranks[::every]], [text for _, text in layout.ranks[::every]])
    minor = [(each.middle, each.name) for each in layout.lanes if each.name]
    minor += [(each.strip_bottom - each.strip / 2, "in flight") for each in layout.lanes if each.strip]
    small = min(10.0, page.size(10.0, 1.3 * (lane.strip or lane.height)))
    if small < _SMALLEST:
        minor = []
    ax.set_yticks([y for y, _ in minor], [text for _, text in minor], minor=True)
    ax.tick_params(axis="y", which="minor", length=0, pad=6, labelsize=small, labelcolor=PALETTE["quiet"])
    pad = 6 + (_minor_width(layout) * small / 10 if minor else 0)
    ax.tick_params(axis="y", which="major", length=0, pad=pad, labelsize=size, labelcolor=PALETTE["ink"])


# the lanes


class _Box(NamedTuple):
    """A rectangle in times of the picture and heights of the layout, and the texts for it, the fullest first."""

    kind: str
    fill: str
    left: float
    right: float
    top: float
    bottom: float
    texts: tuple[str, ...]


def _draw(
    layout: _Layout, tracks: Sequence[_Track], title: tuple[str, ...], critical_path: bool, ax: Axes | None
) -> Axes:
    in_flight = any(lane.strip for lane in layout.lanes)
    key = _key(tracks, in_flight, critical_path)
    frame = _Frame(title, _time_label(tracks), _caption(tracks, critical_path), key)
    path = {span for track in tracks for span in track.timeline.critical_path()} if critical_path else None
    boxes = [box for lane in layout.lanes for box in _boxes(lane, path)]
    with plt.rc_context(_STYLE):
        page = _page(layout, tracks, frame, ax)
        _grounds(page, layout)
        _headings(page, layout)
        _fill(page, boxes)
        _numbers(page, boxes)
        if in_flight:
            _strips(page, layout)
        if path is not None:
            for track in tracks:
                _outline(page, [lane for lane in layout.lanes if lane.track is track])
    return page.ax


def _boxes(lane: _Lane, path: set[Span] | None) -> Iterator[_Box]:
    schedule = lane.track.timeline.schedule
    stages = {stage: index for index, stage in enumerate(_stages(schedule, lane.rank))}
    for span in lane.track.timeline.spans_of(lane.rank):
        parts = span.action.actions
        for place, part in enumerate(parts):
            kind = part.kind.value
            top, bottom = SHAPE[kind] if len(parts) == 1 else (place / len(parts), (place + 1) / len(parts))
            pale = 0.5 * stages.get(part.stage, 0) / max(1, len(stages) - 1)
            fill = _mix(PALETTE[kind], pale if path is None or span in path else 0.5 + pale / 2)
            texts = (f"{kind}{part.microbatch}", str(part.microbatch))
            yield _Box(
                kind, fill, lane.track.at(span.start), lane.track.at(span.end),
                lane.top + top * lane.height, lane.top + bottom * lane.height,
                texts if schedule.one_stage_per_rank else (str(part), *texts),
            )  # fmt: skip


@lru_cache
def _mix(color: str, share: float, other: str = PALETTE["paper"]) -> str:
    """A colour with a share of another one in it."""
    pairs = [(int(color[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def _edge(fill: str) -> str:
    return _mix(fill, 0.35, PALETTE["ink"])


def _luminance(color: str) -> float:
    """Relative luminance, 0 to 1 (WCAG 2)."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@lru_cache
def _on(fill: str) -> str:
    """The text colour with the better contrast on a fill."""
    paper, ink, ground = (_luminance(c) + 0.05 for c in (PALETTE["paper"], PALETTE["ink"], fill))
    return PALETTE["paper"] if paper / ground > ground / ink else PALETTE["ink"]


def _grounds(page: _Page, layout: _Layout) -> None:
    """The lanes from first start to last end: what no box covers is bubble. Phase limits run through them."""
    grounds = [_corners(0, lane.track.makespan, lane.top, lane.top + lane.height) for lane in layout.lanes]
    page.ax.add_collection(PolyCollection(grounds, facecolor=PALETTE["idle"], linewidth=0, zorder=1), autolim=False)
    for top, bottom, track in layout.phases:
        _phases(page, top, bottom, track)


def _phases(page: _Page, top: float, bottom: float, track: _Track) -> None:
    phases = track.timeline.phases()
    names = zip(("warm-up", "steady", "cool-down"), (phases.warmup, phases.steady, phases.cooldown), strict=True)
    limits = [(name, track.at(start), track.at(end)) for name, (start, end) in names if end > start]
    y, inset, tick = top - 5, 1.5 / page.dx, 3 / page.dy
    lines = [[(a + inset, y + tick), (a + inset, y), (b - inset, y), (b - inset, y + tick)] for _, a, b in limits]
    page.ax.add_collection(LineCollection(lines, colors=PALETTE["quiet"], linewidths=1.1), autolim=False)
    inner = [[(a, top), (a, bottom)] for _, a, _ in limits[1:]]
    page.ax.add_collection(
        LineCollection(inner, colors=PALETTE["quiet"], linewidths=0.9, linestyles=(0, (3, 3)), zorder=1.5), autolim=False
    )
    size = page.size(11, 14)
    for name, a, b in limits:
        if size >= _SMALLEST and _em(name) * size <= (b - a) * page.dx - 6:
            page.text((a + b) / 2, top - 12, name, size, PALETTE["quiet"])


def _headings(page: _Page, layout: _Layout) -> None:
    for y, text in layout.headings:
        size = page.size(13.5, 20)
        while _em(text, True) * size > page.dx * page.ax.get_xlim()[1] and size > _SMALLEST:
            size -= 0.5
        page.text(0, y, text, size, ha="left", weight="bold")


def _corners(left: float, right: float, top: float, bottom: float) -> list[tuple[float, float]]:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _rounded(page: _Page, box: _Box) -> list[tuple[float, float]]:
    """The outline of a box: a hair apart from its neighbours, round where it is large enough to show."""
    width = (box.right - box.left) * page.dx
    gap = min(0.7, 0.08 * width) / page.dx
    left, right = box.left + gap, box.right - gap
    radius = min(2.5, 0.2 * width, 0.2 * (box.bottom - box.top) * page.dy)
    if radius < 0.8:
        return _corners(left, right, box.top, box.bottom)
    rx, ry = radius / page.dx, radius / page.dy
    points = []
    for x, y, sx, sy, turn in (
        (left, box.top, 1, 1, 0), (right, box.top, -1, 1, 1), (right, box.bottom, -1, -1, 0), (left, box.bottom, 1, -1, 1)
    ):  # fmt: skip
        arc = [(x + sx * rx * a, y + sy * ry * b) for a, b in ((0, 1), (0.29, 0.29), (1, 0))]
        points += arc[::-1] if turn else arc
    return points


def _fill(page: _Page, boxes: Sequence[_Box]) -> None:
    """All boxes of one fill are one collection: a thousand boxes cost about as much as ten."""
    groups: dict[tuple[str, str], list[_Box]] = defaultdict(list)
    for box in boxes:
        groups[box.kind, box.fill].append(box)
    for (kind, fill), group in groups.items():
        narrow = min(box.right - box.left for box in group) * page.dx < 3
        page.ax.add_collection(
            PolyCollection(
                [_rounded(page, box) for box in group], facecolor=fill, edgecolor=_edge(fill),
                linewidth=0 if narrow else 0.5, hatch=HATCH.get(kind), zorder=2,
            ),
            autolim=False,
        )  # fmt: skip


def _numbers(page: _Page, boxes: Sequence[_Box]) -> None:
    """Name the boxes in one font size: with the letter where that fits, with the number alone where only that does."""
    kinds: dict[str, list[_Box]] = defaultdict(list)
    for box in boxes:
        kinds[box.kind].append(box)
    chosen = {kind: choice for kind, group in kinds.items() if (choice := _level(page, group)) is not None}
    size = min((size for _, size in chosen.values()), default=0.0)
    for kind, (level, _) in chosen.items():
        for box in kinds[kind]:
            text = next((text for text in box.texts[level:] if _room(page, box, text) >= size), None)
            if text is not None:
                x, y = (box.left + box.right) / 2, (box.top + box.bottom) / 2
                page.text(x, y, text, size, _on(box.fill), weight="bold", zorder=3).set_in_layout(False)


def _room(page: _Page, box: _Box, text: str) -> float:
    """The largest font size in which a text fits into a box."""
    wide = ((box.right - box.left) * page.dx - 3) / _em(text, True)
    return min(_LABEL, wide, 0.72 * (box.bottom - box.top) * page.dy)


def _level(page: _Page, boxes: Sequence[_Box]) -> tuple[int, float] | None:
    """The fullest text that nearly all boxes of a kind have room for, and its size; None where none has."""
    for level in range(len(boxes[0].texts)):
        rooms = sorted(_room(page, box, box.texts[level]) for box in boxes)
        if (size := rooms[len(rooms) // 10]) >= _SMALLEST:
            return level, size
    return None


def _strips(page: _Page, layout: _Layout) -> None:
    """What is in flight under each lane, as a share of the largest peak in the picture: one scale for all."""
    peak = max(max(lane.track.timeline.peak_in_flight) for lane in layout.lanes) or 1
    grounds, areas = [], []
    for lane in layout.lanes:
        bottom, end = lane.strip_bottom, lane.track.makespan
        grounds.append(_corners(0, end, bottom - lane.strip, bottom))
        curve = [(lane.track.at(time), bottom - lane.strip * count / peak) for time, count in _curve(lane)]
        areas.append([(0, bottom), *curve, (end, bottom)])
        size = max(_SMALLEST, page.size(11, 1.4 * lane.strip))
        page.ax.annotate(
            f"peak {lane.track.timeline.peak_in_flight[lane.rank]}", (1, bottom - lane.strip / 2), (8, 0),
            ("axes fraction", "data"), "offset points", va="center", fontsize=size, color=PALETTE["ink"],
            annotation_clip=False,
        )  # fmt: skip
    pale = _mix(PALETTE["idle"], 0.55)
    page.ax.add_collection(PolyCollection(grounds, facecolor=pale, linewidth=0, zorder=1), autolim=False)
    page.ax.add_collection(PolyCollection(areas, facecolor=PALETTE["in flight"], linewidth=0, zorder=2), autolim=False)


def _curve(lane: _Lane) -> Iterator[tuple[float, int]]:
    """The corners of a rank's step curve."""
    timeline = lane.track.timeline
    before = 0
    for time, count in (*timeline.in_flight(lane.rank), (timeline.end, 0)):
        yield time, before
        yield time, count
        before = count


def _outline(page: _Page, lanes: Sequence[_Lane]) -> None:
    """The critical path: its boxes outlined, and a line where it changes rank."""
    track = lanes[0].track
    lane_of = {lane.rank: lane for lane in lanes}
    path = track.timeline.critical_path()
    edges = [
        _corners(track.at(span.start), track.at(span.end), lane.top, lane.top + lane.height)
        for span in path
        for lane in (lane_of[span.rank],)
    ]
    hops = [
        [(track.at(a.end), lane_of[a.rank].middle), (track.at(b.start), lane_of[b.rank].middle)]
        for a, b in pairwise(path)
        if a.rank != b.rank
    ]
    ink = PALETTE["ink"]
    page.ax.add_collection(PolyCollection(edges, facecolor="none", edgecolor=ink, linewidth=1.8, zorder=4), autolim=False)
    page.ax.add_collection(LineCollection(hops, colors=ink, linewidths=1.8, zorder=4), autolim=False)
