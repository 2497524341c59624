"""Everything around the lanes: the page with its margins, title, time axis, key and caption, and text that fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.offsetbox import AnchoredOffsetbox, DrawingArea, HPacker, OffsetBox, TextArea
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from ppedu.picture.palette import HATCH, PALETTE, SHAPE, WORD
from ppedu.picture.paper.style import DPI, EDGE, LABEL, RIGHT, SMALLEST, STYLE, TITLE, WIDTH, edge_color, ink_on, soft
from ppedu.picture.paper.tracks import Layout, Track


@lru_cache(maxsize=4096)
def em(text: str, bold: bool = False) -> float:
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
            if em(longer, bold) * size <= width:
                lines[-1] = longer
            else:
                lines.append(piece)
        fits = len(lines) <= most and all(em(line, bold) * size <= width for line in lines)
        if fits or size <= SMALLEST:
            return "\n".join(lines), size
        size -= 0.5


@dataclass(frozen=True, slots=True)
class Page:
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
class Frame:
    title: tuple[str, ...]
    time_label: str
    caption: str
    key: tuple[tuple[str, str], ...]

    def key_width(self, words: bool) -> float:
        return sum(18 + words * (5 + 11 * em(word)) for _, word in self.key) + 12 * (len(self.key) - 1)

    def key_beside(self, width: float) -> bool:
        """The key stands in the row of the axis label where both fit, else in a row of its own."""
        return 11 * em(self.time_label) + 30 + self.key_width(True) <= width


def margins_of(layout: Layout, frame: Frame) -> tuple[float, float, float, float]:
    """Left, right, bottom and top margin of a figure of our own."""
    left, minor = max(LABEL * em(text) for _, text in layout.ranks), _minor_width(layout)
    left = 14 + (left + minor if any(lane.name for lane in layout.lanes) else max(left, minor))
    right = RIGHT if any(lane.strip for lane in layout.lanes) else 16.0
    return (left, right, *rows_around(frame, WIDTH - left - right))


def rows_around(frame: Frame, width: float) -> tuple[float, float]:
    """What the texts below and above the Axes need."""
    lines = 1 + _fit(frame.caption.split(), " ", width, 11, 3, False)[0].count("\n")
    bottom = 46 + (0 if frame.key_beside(width) else 20) + 15 * lines
    title = _fit(frame.title, "   ", width, TITLE, 2, True)[0]
    return bottom, 12 + (22 + 20 * title.count("\n") if title else 0)


def _minor_width(layout: Layout) -> float:
    names = {lane.name for lane in layout.lanes} | {"in flight" for lane in layout.lanes if lane.strip}
    return max(10 * em(name) for name in names) + (8 if any(names) else 0)


def page_of(layout: Layout, tracks: Sequence[Track], frame: Frame, ax: Axes) -> Page:
    """Label everything around the lanes, then measure what is left for them."""
    longest = max(track.makespan for track in tracks) or 1.0
    edge = longest * EDGE / WIDTH  # room for half a line
    ax.set(xlim=(-edge, longest + edge), ylim=(layout.height, 0))
    make_plain(ax, tracks)
    put_time_ticks(ax, tracks)
    _side_labels(_measured(ax, longest, layout.height), layout)
    peaks = (
        RIGHT if _settle(ax) and any(lane.strip for lane in layout.lanes) else 0.0
    )  # a layout will make room for them
    put_around(ax, frame, points_of(ax)[0] - peaks)
    _side_labels(_measured(ax, longest, layout.height), layout)  # for the height that is left
    return _measured(ax, longest, layout.height)


class _Picture(Figure):
    """A figure that prints as its text twin, where matplotlib's would print its size in pixels."""

    def __repr__(self) -> str:
        return "\n".join(str(ax.get_label()) for ax in self.axes)


def new_figure(height: float, margins: tuple[float, float, float, float]) -> Axes:
    """Axes on a figure of its own. Call it outside of STYLE: the first figure of a notebook loads the backend, which
    switches matplotlib to interactive for good; were that undone, no later figure would be shown."""
    left, right, bottom, top = margins
    whole = height + bottom + top
    figure = plt.figure(
        figsize=(WIDTH / 72, whole / 72), dpi=DPI, facecolor=PALETTE["paper"], layout="none", FigureClass=_Picture
    )
    with plt.rc_context(STYLE):
        return figure.add_axes((left / WIDTH, bottom / whole, (WIDTH - left - right) / WIDTH, height / whole))


def make_plain(ax: Axes, tracks: Sequence[Track]) -> None:
    ax.set_facecolor(PALETTE["paper"])
    ax.grid(False)
    ax.set_label("\n".join(repr(track.timeline) for track in tracks))
    for spine in ax.spines.values():
        spine.set_visible(False)
    _settle(ax)


def points_of(ax: Axes) -> tuple[float, float]:
    box = ax.get_window_extent()
    return box.width * 72 / ax.figure.dpi, box.height * 72 / ax.figure.dpi


def _settle(ax: Axes) -> bool:
    """Let the layout engine, if the figure has one, give the Axes its size. Says whether it has one."""
    figure = ax.figure.canvas.figure  # the whole one, where the Axes stands in a subfigure
    if figure.get_layout_engine() is None:
        return False
    figure.draw_without_rendering()
    return True


def _measured(ax: Axes, longest: float, height: float) -> Page:
    _settle(ax)
    width_points, height_points = points_of(ax)
    return Page(ax, width_points / (longest * (1 + 2 * EDGE / WIDTH)), height_points / height)


def put_time_ticks(ax: Axes, tracks: Sequence[Track]) -> None:
    """Whole numbers where all operations end at such; no more ticks than the width has room for."""
    ends = (track.at(span.end) for track in tracks for span in track.timeline.spans)
    whole = all(abs(end - round(end)) < 1e-9 for end in ends)
    bins = min(12, max(2, int(points_of(ax)[0] / 45)))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=bins, steps=[1, 2, 5, 10], integer=whole))


def put_around(ax: Axes, frame: Frame, width: float) -> None:
    """Title above; axis label, key and caption below. On Axes of a small width all of it is smaller."""
    small = min(1.0, max(0.6, width / 550))
    if frame.title:
        title, size = _fit(frame.title, "   ", width, TITLE * small, 2, True)
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
            (PALETTE["ink"], 1.6)
            if kind == "paper"
            else (edge_color(fill), 0.6 * (kind not in PALETTE or kind in SHAPE))
        )
        shape = (0, height * (1 - bottom)), width, height * (bottom - top)
        area.add_artist(Rectangle(*shape, facecolor=fill, edgecolor=edge, linewidth=line))
        if letter in HATCH:
            pale = soft(fill)
            area.add_artist(Rectangle(*shape, facecolor="none", edgecolor=pale, linewidth=0, hatch=HATCH[letter]))
        if kind in SHAPE:
            middle = width / 2, height * (1 - (top + bottom) / 2)
            text = Text(*middle, letter, color=ink_on(fill), size=9 * small, weight="bold", ha="center")
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


def key_of(tracks: Sequence[Track], in_flight: bool, critical_path: bool) -> tuple[tuple[str, str], ...]:
    """What the picture shows, in the order of the letters."""
    entries = [span.action.actions for track in tracks for span in track.timeline.spans]
    kinds = {parts[0].kind.value for parts in entries if len(parts) == 1}
    shown = [(kind, word) for kind, word in WORD.items() if kind in kinds]
    shown += [("pair", "both at once")] * any(len(parts) > 1 for parts in entries)
    shown += [("idle", "bubble")]
    shown += [("in flight", "in flight")] * in_flight
    return (*shown, *[("paper", "critical path")] * critical_path)


def every_nth(page: Page, rows: Sequence[float], size: float) -> int:
    """Label every so many rows, so that labels of a size have room."""
    pitch = min((b - a for a, b in pairwise(rows)), default=math.inf)
    return max(1, math.ceil(1.2 * size / (pitch * page.dy)))


def _side_labels(page: Page, layout: Layout) -> None:
    """Ranks as major ticks; what a row is (predicted, measured, in flight) as minor ticks, nearer to the lanes."""
    ax, lane = page.ax, layout.lanes[0]
    size = max(SMALLEST, page.size(LABEL, lane.height))
    every = every_nth(page, [y for y, _ in layout.ranks], size)
    ax.set_yticks([y for y, _ in layout.ranks[::every]], [text for _, text in layout.ranks[::every]])
    minor = [(each.middle, each.name) for each in layout.lanes if each.name]
    minor += [(each.strip_bottom - each.strip / 2, "in flight") for each in layout.lanes if each.strip]
    small = min(10.0, page.size(10.0, 1.3 * (lane.strip or lane.height)))
    if small < SMALLEST:
        minor = []
    ax.set_yticks([y for y, _ in minor], [text for _, text in minor], minor=True)
    ax.tick_params(axis="y", which="minor", length=0, pad=6, labelsize=small, labelcolor=PALETTE["quiet"])
    named = any(each.name for each in layout.lanes) and bool(minor)
    pad = 6 + (_minor_width(layout) * small / 10 if named else 0)
    ax.tick_params(axis="y", which="major", length=0, pad=pad, labelsize=size, labelcolor=PALETTE["ink"])
