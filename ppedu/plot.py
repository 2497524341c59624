"""Pictures of timelines, to be put on a slide: what ran when on which rank, what waited, what was held in memory.

Each function returns the Axes that it drew on, saves nothing, shows nothing and leaves matplotlib's settings as they
were. Without `ax` it opens one pyplot figure, which a notebook shows once. `ax.get_label()` is the picture's text twin,
one line a timeline: an alt text, and what the figure prints as. `str(timeline)` has every operation.
Lengths below are in points (1/72 inch).
Letters: p ranks, m microbatches; F forward, B backward, I and W its halves (B = I + W).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.offsetbox import AnchoredOffsetbox, DrawingArea, HPacker, OffsetBox, TextArea
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from ppedu.schedule import Kind, Schedule
from ppedu.timeline import Span, Timeline

PALETTE: dict[str, str] = {
    "F": "#2a62a8",
    "B": "#eaa43a",
    "I": "#d2702a",
    "W": "#f0d28a",
    "idle": "#dfe3ea",
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
_EDGE, _RIGHT = 1.5, 62.0  # room beside the lanes, and for the peaks
_DPI = 144
_SMALLEST, _LABEL, _TITLE = 7.0, 13.0, 15.0  # font sizes
_STYLE: Any = {  # its keys are literals for the type checker in new versions of matplotlib only
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
    critical_path: outline the chain of operations that the makespan is made of (the second one's, where there are two).
    ax: where to draw; by default on a figure of its own, as high as the ranks need.

    Numbers are left out where boxes are too narrow for them. Raises ValueError for two timelines with different
    numbers of ranks, or whose units cannot be compared.

    >>> from ppedu import one_f_one_b, simulate
    >>> ax = plot_timeline(simulate(one_f_one_b(p=4, m=8)))
    >>> ax.get_title(loc="left")
    '1F1B   makespan 22   bubble 27.3 %   in flight 4 3 2 1'
    >>> plt.close(ax.figure)
    """
    timelines = _several((t,) if measured is None else (t, measured))
    if len({one.schedule.num_ranks for one in timelines}) > 1:
        raise ValueError(
            f"two timelines on one axis need the same ranks: {timelines[0].label} has "
            f"{timelines[0].schedule.num_ranks}, {timelines[1].label} has {timelines[1].schedule.num_ranks}. "
            "Use plot_compare to stack them"
        )
    tracks = _tracks(timelines)
    layout = _layout([tracks], False, in_flight, phases)
    return _draw(layout, tracks, _figures(tracks), tracks[-1:] if critical_path else (), ax)


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
    return _draw(layout, tracks, (), tracks if critical_path else (), ax)


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
    def bottom(self) -> float:
        return self.top + self.height

    @property
    def strip_bottom(self) -> float:
        return self.bottom + 0.12 * self.height + self.strip


@dataclass(frozen=True, slots=True)
class _Layout:
    lanes: tuple[_Lane, ...]
    ranks: tuple[tuple[float, str], ...]
    headings: tuple[tuple[float, str], ...]
    phases: tuple[tuple[float, _Track], ...]
    height: float


def _several(timelines: Timeline | Sequence[Timeline]) -> tuple[Timeline, ...]:
    if isinstance(timelines, Timeline):
        return (timelines,)
    given = tuple(timelines) if isinstance(timelines, Iterable) else (timelines,)
    if not all(isinstance(t, Timeline) for t in given):
        raise TypeError("pictures are drawn of timelines: simulate(schedule) returns one, and a run has run.timeline")
    if not given:
        raise ValueError("there is nothing to draw: give at least one timeline")
    return given


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
    unit = "s" if longest >= 1 else "us" if 0 < longest < 1e-3 else "ms"
    return tuple(_Track(t, _SECONDS[t.unit] / _SECONDS[unit], unit) for t in timelines)


def _layout(groups: Sequence[Sequence[_Track]], headings: bool, in_flight: bool, phases: bool) -> _Layout:
    """Put lanes under one another, the tracks of a group rank by rank. Few ranks get high lanes."""
    names = _labels([group[0] for group in groups])
    rows = sum(track.timeline.schedule.num_ranks for group in groups for track in group)
    height = min(34.0, max(12.0, 480 / rows / (1.8 if in_flight else 1.15)))
    lanes: list[_Lane] = []
    labels: list[tuple[float, str]] = []
    heads: list[tuple[float, str]] = []
    marks: list[tuple[float, _Track]] = []
    y = 0.0
    for group, name in zip(groups, names, strict=True):
        if headings:
            y += 24 if heads else 10
            heads.append((y, "   ".join((name, *_figures(group)[1:]))))
            y += 14
        if phases and group[0].timeline.complete:  # a run that was stopped has no cool-down
            y += 20
            marks.append((y, group[0]))
        for rank in range(group[0].timeline.schedule.num_ranks):
            first = y
            for track, row in zip(group, _names(group), strict=True):
                lane = _Lane(track, rank, row, y, height, in_flight * height / 2)
                lanes.append(lane)
                y = (lane.strip_bottom if in_flight else lane.bottom) + 0.12 * height
            labels.append(((first + lanes[-1].bottom) / 2, f"rank {rank}"))
            y += (len(group) > 1) * 0.3 * height + in_flight * 0.2 * height
    return _Layout(tuple(lanes), tuple(labels), tuple(heads), tuple(marks), y)


def _names(group: Sequence[_Track]) -> Sequence[str]:
    """What tells the lanes of one rank apart."""
    if len(group) == 1:
        return [""]
    options = [track.word for track in group], [track.timeline.schedule.name for track in group]
    return next((names for names in options if len(set(names)) == len(group)), ["first", "second"])


def _time(value: float, unit: str) -> str:
    unit = unit.replace("us", "µs")
    return f"{value:.4g} {unit}".rstrip() if abs(value) < 1e4 else f"{value:.0f} {unit}".rstrip()


def _figures(tracks: Sequence[_Track]) -> tuple[str, ...]:
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
        "in flight " + " → ".join(dict.fromkeys(_listed(t.peak_in_flight) for t in timelines)),
        *stopped,
    )


def _listed(values: Sequence[float]) -> str:
    """One figure a rank, or what they have in common where that is too long for a title."""
    texts = [f"{value:.3g}" for value in values]
    if len(texts) > 8 and len(set(texts)) == 1:
        return f"{texts[0]} on every rank"
    return " ".join(texts) if len(texts) <= 16 else f"at most {max(values):.3g}"


def _caption(tracks: Sequence[_Track]) -> str:
    """How many ranks and microbatches, and where the times come from."""
    schedules = [track.timeline.schedule for track in tracks]
    sizes = dict.fromkeys((s.num_ranks, s.num_microbatches) for s in schedules)
    said = ["; ".join(f"p = {_count(p, 'rank')}, m = {_count(m, 'microbatch')}" for p, m in sizes)]
    said += dict.fromkeys(t[:1].upper() + t[1:] for t in (track.timeline.provenance for track in tracks) if t)
    most = max(len(_stages(s, rank)) for s in schedules for rank in range(s.num_ranks))
    if most > 1:
        said.append("Pale: the rank's second stage" if most == 2 else "The paler, the later the stage on its rank")
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
    alone = [span for track in tracks for span in track.timeline.spans if len(span.action.actions) == 1]
    forwards = (span.duration for span in alone if span.action.actions[0].kind is Kind.F)
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

    def text(self, x: float, y: float, text: str, size: float, color: str = PALETTE["ink"], **more: Any) -> Text:
        more = {"va": "center_baseline", "ha": "center", "clip_on": True, **more}
        return self.ax.text(x, y, text, fontsize=size, color=color, **more)

    def beside(self, x: float, y: float, text: str, size: float, color: str = PALETTE["ink"]) -> None:
        """A text to the right of a point, outside the Axes where it must."""
        self.ax.annotate(
            text, (x, y), (8, 0), "data", "offset points", va="center_baseline", fontsize=size, color=color,
            annotation_clip=False,
        )  # fmt: skip


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
    left, minor = max(_LABEL * _em(text) for _, text in layout.ranks), _minor_width(layout)
    left = 14 + (left + minor if any(lane.name for lane in layout.lanes) else max(left, minor))
    right = _RIGHT if any(lane.strip for lane in layout.lanes) else 16.0
    return (left, right, *_rows_around(frame, _WIDTH - left - right))


def _rows_around(frame: _Frame, width: float) -> tuple[float, float]:
    """What the texts below and above the Axes need."""
    lines = 1 + _fit(frame.caption.split(), " ", width, 11, 3, False)[0].count("\n")
    bottom = 46 + (0 if frame.key_beside(width) else 20) + 15 * lines
    title = _fit(frame.title, "   ", width, _TITLE, 2, True)[0]
    return bottom, 12 + (22 + 20 * title.count("\n") if title else 0)


def _minor_width(layout: _Layout) -> float:
    names = {lane.name for lane in layout.lanes} | {"in flight" for lane in layout.lanes if lane.strip}
    return max(10 * _em(name) for name in names) + (8 if any(names) else 0)


def _page(layout: _Layout, tracks: Sequence[_Track], frame: _Frame, ax: Axes) -> _Page:
    """Label everything around the lanes, then measure what is left for them."""
    longest = max(track.makespan for track in tracks) or 1.0
    edge = longest * _EDGE / _WIDTH  # room for half a line
    ax.set(xlim=(-edge, longest + edge), ylim=(layout.height, 0))
    _plain(ax, tracks)
    _time_ticks(ax, tracks)
    _side_labels(_measured(ax, longest, layout.height), layout)
    peaks = (
        _RIGHT if _settle(ax) and any(lane.strip for lane in layout.lanes) else 0.0
    )  # a layout will make room for them
    _around(ax, frame, _points(ax)[0] - peaks)
    _side_labels(_measured(ax, longest, layout.height), layout)  # for the height that is left
    return _measured(ax, longest, layout.height)


class _Picture(Figure):
    """A figure that prints as its text twin, where matplotlib's would print its size in pixels."""

    def __repr__(self) -> str:
        return "\n".join(str(ax.get_label()) for ax in self.axes)


def _figure(height: float, margins: tuple[float, float, float, float]) -> Axes:
    """Axes on a figure of its own. Call it outside of _STYLE: the first figure of a notebook loads the backend, which
    switches matplotlib to interactive for good; were that undone, no later figure would be shown."""
    left, right, bottom, top = margins
    whole = height + bottom + top
    figure = plt.figure(
        figsize=(_WIDTH / 72, whole / 72), dpi=_DPI, facecolor=PALETTE["paper"], layout="none", FigureClass=_Picture
    )
    with plt.rc_context(_STYLE):
        return figure.add_axes((left / _WIDTH, bottom / whole, (_WIDTH - left - right) / _WIDTH, height / whole))


def _plain(ax: Axes, tracks: Sequence[_Track]) -> None:
    ax.set_facecolor(PALETTE["paper"])
    ax.grid(False)
    ax.set_label("\n".join(repr(track.timeline) for track in tracks))
    for spine in ax.spines.values():
        spine.set_visible(False)
    _settle(ax)


def _points(ax: Axes) -> tuple[float, float]:
    box = ax.get_window_extent()
    return box.width * 72 / ax.figure.dpi, box.height * 72 / ax.figure.dpi


def _settle(ax: Axes) -> bool:
    """Let the layout engine, if the figure has one, give the Axes its size. Says whether it has one."""
    figure = ax.figure.canvas.figure  # the whole one, where the Axes stands in a subfigure
    if figure.get_layout_engine() is None:
        return False
    figure.draw_without_rendering()
    return True


def _measured(ax: Axes, longest: float, height: float) -> _Page:
    _settle(ax)
    width_points, height_points = _points(ax)
    return _Page(ax, width_points / (longest * (1 + 2 * _EDGE / _WIDTH)), height_points / height)


def _time_ticks(ax: Axes, tracks: Sequence[_Track]) -> None:
    """Whole numbers where all operations end at such; no more ticks than the width has room for."""
    ends = (track.at(span.end) for track in tracks for span in track.timeline.spans)
    whole = all(abs(end - round(end)) < 1e-9 for end in ends)
    bins = min(12, max(2, int(_points(ax)[0] / 45)))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=bins, steps=[1, 2, 5, 10], integer=whole))


def _around(ax: Axes, frame: _Frame, width: float) -> None:
    """Title above; axis label, key and caption below. On Axes of a small width all of it is smaller."""
    small = min(1.0, max(0.6, width / 550))
    if frame.title:
        title, size = _fit(frame.title, "   ", width, _TITLE * small, 2, True)
        ax.set_title(title, loc="left", fontsize=size, fontweight="bold", color=PALETTE["ink"], pad=10)
    ax.tick_params(axis="x", labelsize=11 * small, color=PALETTE["quiet"], labelcolor=PALETTE["ink"], length=3)
    ax.set_xlabel(frame.time_label, loc="left", fontsize=11 * small, color=PALETTE["ink"], labelpad=4)
    beside = frame.key_beside(width / small)
    words = frame.key_width(True) <= width / small
    if frame.key:
        swatches = [_swatch(kind, word if words else "", small) for kind, word in frame.key]
        _put_key(ax, swatches, 9 + (13 if beside else 33) * small)
    caption, size = _fit(frame.caption.split(), " ", width, 11 * small, 3, False)
    ax.annotate(
        caption, (0, 0), (0, -9 - (35 if beside else 55) * small), "axes fraction", "offset points",
        va="top", ha="left", fontsize=size, color=PALETTE["quiet"], annotation_clip=False, linespacing=1.25,
    )  # fmt: skip


def _put_key(ax: Axes, swatches: Sequence[OffsetBox], below: float) -> None:
    shift = ScaledTranslation(0, -below / 72, ax.figure.dpi_scale_trans)
    row = HPacker(children=list(swatches), pad=0, sep=12, align="center")
    ax.add_artist(
        AnchoredOffsetbox(
            "upper right", child=row, pad=0, borderpad=0, frameon=False,
            bbox_to_anchor=(1, 0), bbox_transform=ax.transAxes + shift,
        )
    )  # fmt: skip


def _swatch(kind: str, word: str, small: float = 1.0) -> OffsetBox:
    """A small box as the lanes show it, or in a colour, and what it means."""
    width, height = 18 * small, 14 * small
    area = DrawingArea(width, height)
    for letter, top, bottom in _parts(kind):
        fill = PALETTE.get(letter, letter)
        edge, line = (
            (PALETTE["ink"], 1.6) if kind == "paper" else (_edge(fill), 0.6 * (kind not in PALETTE or kind in SHAPE))
        )
        shape = (0, height * (1 - bottom)), width, height * (bottom - top)
        area.add_artist(Rectangle(*shape, facecolor=fill, edgecolor=edge, linewidth=line))
        if letter in HATCH:
            soft = _soft(fill)
            area.add_artist(Rectangle(*shape, facecolor="none", edgecolor=soft, linewidth=0, hatch=HATCH[letter]))
        if kind in SHAPE:
            middle = width / 2, height * (1 - (top + bottom) / 2)
            text = Text(*middle, letter, color=_on(fill), size=9 * small, weight="bold", ha="center")
            text.set_verticalalignment("center_baseline")
            area.add_artist(text)
    if not word:
        return area
    said = TextArea(word, textprops={"fontsize": 11 * small, "color": PALETTE["ink"]})
    return HPacker(children=[area, said], pad=0, sep=5 * small, align="center")


def _parts(kind: str) -> list[tuple[str, float, float]]:
    """The boxes of a swatch: kind, top, bottom."""
    if kind == "pair":
        return [("F", 0.0, 0.5), ("B", 0.5, 1.0)]
    if kind == "in flight":
        return [("idle", 0.1, 0.9), (kind, 0.5, 0.9)]
    return [(kind, *SHAPE.get(kind, (0.0, 1.0)))]


def _key(tracks: Sequence[_Track], in_flight: bool, critical_path: bool) -> tuple[tuple[str, str], ...]:
    """What the picture shows, in the order of the letters."""
    entries = [span.action.actions for track in tracks for span in track.timeline.spans]
    kinds = {parts[0].kind.value for parts in entries if len(parts) == 1}
    shown = [(kind, word) for kind, word in WORD.items() if kind in kinds]
    shown += [("pair", "both at once")] * any(len(parts) > 1 for parts in entries)
    shown += [("idle", "bubble")]
    shown += [("in flight", "in flight")] * in_flight
    return (*shown, *[("paper", "critical path")] * critical_path)


def _every(page: _Page, rows: Sequence[float], size: float) -> int:
    """Label every so many rows, so that labels of a size have room."""
    pitch = min((b - a for a, b in pairwise(rows)), default=math.inf)
    return max(1, math.ceil(1.2 * size / (pitch * page.dy)))


def _side_labels(page: _Page, layout: _Layout) -> None:
    """Ranks as major ticks; what a row is (predicted, measured, in flight) as minor ticks, nearer to the lanes."""
    ax, lane = page.ax, layout.lanes[0]
    size = max(_SMALLEST, page.size(_LABEL, lane.height))
    every = _every(page, [y for y, _ in layout.ranks], size)
    ax.set_yticks([y for y, _ in layout.ranks[::every]], [text for _, text in layout.ranks[::every]])
    minor = [(each.middle, each.name) for each in layout.lanes if each.name]
    minor += [(each.strip_bottom - each.strip / 2, "in flight") for each in layout.lanes if each.strip]
    small = min(10.0, page.size(10.0, 1.3 * (lane.strip or lane.height)))
    if small < _SMALLEST:
        minor = []
    ax.set_yticks([y for y, _ in minor], [text for _, text in minor], minor=True)
    ax.tick_params(axis="y", which="minor", length=0, pad=6, labelsize=small, labelcolor=PALETTE["quiet"])
    named = any(each.name for each in layout.lanes) and bool(minor)
    pad = 6 + (_minor_width(layout) * small / 10 if named else 0)
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
    layout: _Layout, tracks: Sequence[_Track], title: tuple[str, ...], critical: Sequence[_Track], ax: Axes | None
) -> Axes:
    in_flight = any(lane.strip for lane in layout.lanes)
    key = _key(tracks, in_flight, bool(critical))
    frame = _Frame(title, _time_label(tracks), _caption(tracks), key)
    paths = {id(track): set(track.timeline.critical_path()) for track in critical}
    boxes = [box for lane in layout.lanes for box in _boxes(lane, paths.get(id(lane.track)))]
    ax = _figure(layout.height, _margins(layout, frame)) if ax is None else ax
    with plt.rc_context(_STYLE):
        page = _page(layout, tracks, frame, ax)
        _grounds(page, layout)
        _phases(page, layout)
        _headings(page, layout)
        _fill(page, boxes)
        _numbers(page, boxes)
        if in_flight:
            _strips(page, layout)
        for track in critical:
            _outline(page, [lane for lane in layout.lanes if lane.track is track])
    return ax


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


def _soft(fill: str) -> str:
    return _mix(fill, 0.2, PALETTE["ink"])


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
    """The lanes from first start to last end: what no box covers is bubble."""
    longest = max(lane.track.makespan for lane in layout.lanes) or 1.0
    grounds = [_corners(0, lane.track.makespan or longest, lane.top, lane.bottom) for lane in layout.lanes]
    for lane in layout.lanes:
        if not lane.track.timeline.spans and lane.rank == 0:
            page.text(longest / 2, lane.middle, "no operation ran", page.size(11, lane.height), PALETTE["quiet"])
    page.ax.add_collection(PolyCollection(grounds, facecolor=PALETTE["idle"], linewidth=0, zorder=1), autolim=False)


def _limits(track: _Track) -> list[tuple[str, float, float]]:
    """The phases by time that are not empty; a run that was stopped has none."""
    if not track.timeline.complete:
        return []
    phases = track.timeline.phases()
    named = (("warm-up", phases.warmup), ("steady", phases.steady), ("cool-down", phases.cooldown))
    return [(name, track.at(start), track.at(end)) for name, (start, end) in named if end > start]


def _phases(page: _Page, layout: _Layout) -> None:
    """A bracket for each phase above the lanes, and its limits as dashes in every lane, by that lane's own timeline."""
    quiet = PALETTE["quiet"]
    brackets, dashes = [], []
    for top, track in layout.phases:
        limits = _limits(track)
        y, inset, tick = top - 5, 1.5 / page.dx, 3 / page.dy
        brackets += [
            [(a + inset, y + tick), (a + inset, y), (b - inset, y), (b - inset, y + tick)] for _, a, b in limits
        ]
        _phase_names(page, top - 12, limits)
    for lane in layout.lanes if layout.phases else ():
        dashes += [[(a, lane.top), (a, lane.bottom)] for _, a, _ in _limits(lane.track)[1:]]
    page.ax.add_collection(LineCollection(brackets, colors=quiet, linewidths=1.1), autolim=False)
    dashed = LineCollection(dashes, colors=quiet, linewidths=0.9, linestyles=(0, (3, 3)), zorder=1.5)
    page.ax.add_collection(dashed, autolim=False)


def _phase_names(page: _Page, y: float, limits: Sequence[tuple[str, float, float]]) -> None:
    """Names in the middle of their phases; the first and the last may reach over a narrow one, towards the middle."""
    size = page.size(11, 14)
    taken: list[tuple[float, float]] = []
    for name, a, b in sorted(limits, key=lambda limit: limit[1] - limit[2]):
        half = _em(name) * size / 2 / page.dx + 3 / page.dx
        x = (a + b) / 2
        if half > (b - a) / 2 and name != "steady":
            x = a + half if name == "warm-up" else b - half
        elif half > (b - a) / 2:
            continue
        if size >= _SMALLEST and all(x + half <= left or right <= x - half for left, right in taken):
            taken.append((x - half, x + half))
            page.text(x, y, name, size, PALETTE["quiet"])


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
    corners = (
        (left, box.top, rx, ry),
        (right, box.top, -rx, ry),
        (right, box.bottom, -rx, -ry),
        (left, box.bottom, rx, -ry),
    )
    points: list[tuple[float, float]] = []
    for x, y, inx, iny in corners:
        arc = [(x, y + iny), (x + 0.29 * inx, y + 0.29 * iny), (x + inx, y)]
        points += arc if inx * iny > 0 else arc[::-1]  # always clockwise
    return points


def _fill(page: _Page, boxes: Sequence[_Box]) -> None:
    """All boxes of one fill are one collection: a thousand boxes cost about as much as ten."""
    groups: dict[tuple[str, str], list[_Box]] = defaultdict(list)
    for box in boxes:
        groups[box.kind, box.fill].append(box)
    for (kind, fill), group in groups.items():
        outlines = [_rounded(page, box) for box in group]
        narrow = min(box.right - box.left for box in group) * page.dx < 3
        line: Any = {"edgecolor": _edge(fill), "linewidth": 0 if narrow else 0.5}
        page.ax.add_collection(PolyCollection(outlines, facecolor=fill, **line, zorder=2), autolim=False)
        if kind in HATCH:  # apart, for its colour is softer than the edge's: text on it stays legible
            line = {"edgecolor": _soft(fill), "linewidth": 0, "hatch": HATCH[kind]}
            page.ax.add_collection(PolyCollection(outlines, facecolor="none", **line, zorder=2), autolim=False)


def _numbers(page: _Page, boxes: Sequence[_Box]) -> None:
    """Name the boxes, in nearly one font size: with the letter where that fits, else with the number alone."""
    kinds: dict[str, list[_Box]] = defaultdict(list)
    for box in boxes:
        kinds[box.kind].append(box)
    chosen = {kind: choice for kind, group in kinds.items() if (choice := _level(page, group)) is not None}
    smallest = min((size for _, size in chosen.values()), default=0.0)
    for kind, (level, largest) in chosen.items():
        size = min(largest, 1.3 * smallest)
        for box in kinds[kind]:
            text = next((text for text in box.texts[level:] if _room(page, box, text) > size - 0.05), None)
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
    longest = max(lane.track.makespan for lane in layout.lanes) or 1.0
    size = max(_SMALLEST, page.size(11, 1.4 * layout.lanes[0].strip))
    every = _every(page, [lane.top for lane in layout.lanes], size)
    hair = 0.8 / page.dy  # so that one activation is seen even beside 64
    grounds, areas = [], []
    for index, lane in enumerate(layout.lanes):
        track, bottom, end = lane.track, lane.strip_bottom, lane.track.makespan or longest
        grounds.append(_corners(0, end, bottom - lane.strip, bottom))
        heights = [0.0, *(max(count * lane.strip / peak, hair) for count in range(1, peak + 1))]
        curve = [(track.at(time), bottom - heights[count]) for time, count in _curve(track.timeline, lane.rank)]
        areas.append([(0, bottom), *curve, (end, bottom)])
        if index % every == 0:
            count = track.timeline.peak_in_flight[lane.rank]
            page.beside(longest if lane.name else end, bottom - lane.strip / 2, f"peak {count}", size)
    pale = _mix(PALETTE["idle"], 0.55)
    page.ax.add_collection(PolyCollection(grounds, facecolor=pale, linewidth=0, zorder=1), autolim=False)
    page.ax.add_collection(PolyCollection(areas, facecolor=PALETTE["in flight"], linewidth=0, zorder=2), autolim=False)


def _curve(timeline: Timeline, rank: int) -> Iterator[tuple[float, int]]:
    """The corners of a rank's step curve."""
    before = 0
    for time, count in (*timeline.in_flight(rank), (timeline.end, 0)):
        yield time, before
        yield time, count
        before = count


def _outline(page: _Page, lanes: Sequence[_Lane]) -> None:
    """The critical path: its boxes outlined, and a line where it changes rank."""
    track = lanes[0].track
    lane_of = {lane.rank: lane for lane in lanes}
    path = track.timeline.critical_path()
    edges = [
        _corners(track.at(span.start), track.at(span.end), lane.top, lane.bottom)
        for span in path
        for lane in (lane_of[span.rank],)
    ]
    hops = [
        [(track.at(a.end), lane_of[a.rank].middle), (track.at(b.start), lane_of[b.rank].middle)]
        for a, b in pairwise(path)
        if a.rank != b.rank
    ]
    ink = PALETTE["ink"]
    page.ax.add_collection(
        PolyCollection(edges, facecolor="none", edgecolor=ink, linewidth=1.8, zorder=4), autolim=False
    )
    page.ax.add_collection(LineCollection(hops, colors=ink, linewidths=1.8, zorder=1.8), autolim=False)


# memory


def _memory(tracks: Sequence[_Track], rank: int | None, sizes: Sequence[float] | None, ax: Axes | None) -> Axes:
    rows = [[float(peak) for peak in track.timeline.peak_in_flight] for track in tracks]
    factor, unit = 1.0, _counted(tracks)
    if sizes is not None:
        rows = [[peak * size for peak, size in zip(row, sizes, strict=False)] for row in rows]
        factor, unit = _bytes(max(map(max, rows)) if rank is None else max(row[rank] for row in rows))
    rows = [[value / factor for value in row] for row in rows]
    shown = rows if rank is None else [[row[rank]] for row in rows]
    names, shades = _labels(tracks), _shades(len(tracks))
    head = ("Peak in flight" if rank is None else f"Rank {rank}, peak in flight") + f" ({unit})" * (sizes is not None)
    title = (head, *(f"{name} {_listed(row)}" for name, row in zip(names, shown, strict=True)))
    key = tuple(zip(shades, names, strict=True)) if len(tracks) > 1 else ()
    frame = _Frame(title, "rank" if rank is None else _time_label(tracks), _caption(tracks), key)
    label = ("peak " if rank is None else "") + f"in flight ({unit})"
    ax = _figure(250, (62, 16, *_rows_around(frame, _WIDTH - 78))) if ax is None else ax
    with plt.rc_context(_STYLE):
        _chart(ax, frame, max(map(max, shown)), label, tracks)
        if rank is None:
            _bars(ax, rows, shades)
        else:
            _curves(ax, tracks, rank, (1.0 if sizes is None else sizes[rank]) / factor, shades)
    return ax


def _sizes(given: float | Sequence[float] | None, ranks: int) -> Sequence[float] | None:
    if given is None:
        return None
    sizes = [float(size) for size in given] if isinstance(given, Sequence) else [float(given)] * ranks
    if len(sizes) != ranks or min(sizes) < 0:
        raise ValueError(
            f"bytes_per_microbatch is {given!r}: give one number of at least 0 for all ranks, or one for each of the "
            f"{ranks} ranks"
        )
    return sizes


def _bytes(largest: float) -> tuple[float, str]:
    """The decimal unit for an axis of bytes."""
    return next(((f, unit) for f, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if largest >= f), (1.0, "bytes"))


def _counted(tracks: Sequence[_Track]) -> str:
    whole = all(track.timeline.schedule.num_stages <= track.timeline.schedule.num_ranks for track in tracks)
    return "microbatches" if whole else "microbatches of one stage"


def _shades(count: int) -> list[str]:
    """Dark to light, so that series differ in grey as well."""
    return (
        [_mix("#463a78", 0.62 * index / (count - 1)) for index in range(count)] if count > 1 else [PALETTE["in flight"]]
    )


def _chart(ax: Axes, frame: _Frame, largest: float, label: str, tracks: Sequence[_Track]) -> None:
    """For quantities: a value axis with faint lines at the left, and the same surroundings as the lanes have."""
    ax.set(ylim=(0, 1.12 * largest or 1))
    _plain(ax, tracks)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=largest >= 4))
    ax.grid(axis="y", color=PALETTE["idle"], linewidth=1)
    ax.set_axisbelow(True)
    _around(ax, frame, _points(ax)[0])
    ax.set_ylabel(label, fontsize=11, color=PALETTE["ink"])
    ax.tick_params(axis="y", labelsize=11, labelcolor=PALETTE["ink"], length=0)


def _bars(ax: Axes, rows: Sequence[Sequence[float]], shades: Sequence[str]) -> None:
    """A group of bars a rank, with the figure on top of each where it has room."""
    ranks, width = max(map(len, rows)), 0.8 / len(rows)
    ax.set_xlim(-0.5, ranks - 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=24, integer=True, steps=[1, 2, 5, 10]))
    texts = [[f"{value:.3g}" for value in row] for row in rows]
    room = width * _points(ax)[0] / ranks - 2
    size = min(_LABEL, *(room / _em(text, True) for row in texts for text in row))
    for index, (row, shade) in enumerate(zip(rows, shades, strict=True)):
        xs = [rank + (index - (len(rows) - 1) / 2) * width for rank in range(len(row))]
        boxes = [_corners(x - 0.46 * width, x + 0.46 * width, value, 0) for x, value in zip(xs, row, strict=True)]
        bars = PolyCollection(boxes, facecolor=shade, edgecolor=_edge(shade), linewidth=0.5, zorder=2)
        ax.add_collection(bars, autolim=False)
        for x, value, text in zip(xs, row, texts[index], strict=True) if size >= _SMALLEST else ():
            place: Any = {"xy": (x, value), "xytext": (0, 3), "textcoords": "offset points", "ha": "center"}
            ax.annotate(text, **place, fontsize=size, fontweight="bold", color=PALETTE["ink"])


def _curves(ax: Axes, tracks: Sequence[_Track], rank: int, scale: float, shades: Sequence[str]) -> None:
    """What one rank holds over time, one line a timeline; the lighter lines are dashed."""
    longest = max(track.makespan for track in tracks) or 1.0
    ax.set_xlim(0, longest)
    _time_ticks(ax, tracks)
    for index, (track, shade) in enumerate(zip(tracks, shades, strict=True)):
        xs, ys = zip(*((track.at(time), count * scale) for time, count in _curve(track.timeline, rank)), strict=True)
        ax.fill_between(xs, ys, color=shade, alpha=0.12, linewidth=0, zorder=2)
        ax.plot(
            xs, ys, color=shade, linewidth=2.6, linestyle=("-", (0, (5, 1.5)), (0, (1.5, 1.2)))[index % 3], zorder=3
        )


def _labels(tracks: Sequence[_Track]) -> list[str]:
    """What tells timelines apart, as short as it can be: name, p and m where names repeat, predicted or measured."""
    names, labels = [t.timeline.schedule.name for t in tracks], [t.timeline.label for t in tracks]
    words = [track.word for track in tracks]
    worded = [[f"{text}, {word}" for text, word in zip(texts, words, strict=True)] for texts in (names, labels)]
    options = [worded[0], worded[1]] if len(set(words)) > 1 else [names, labels]
    return next((texts for texts in options if len(set(texts)) == len(tracks)), options[-1])
