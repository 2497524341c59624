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
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.offsetbox import AnchoredOffsetbox, DrawingArea, HPacker, OffsetBox, TextArea
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from ppedu.core.format import number
from ppedu.picture.palette import HATCH, PALETTE, SHAPE, edge_color, ink_on, mix
from ppedu.picture.paper.layout import Layout
from ppedu.picture.scene import Parts, Scene

WIDTH = 864.0  # of a figure of our own, in points: 12 inches, 90 % of a slide's width
EDGE, RIGHT = 1.5, 62.0  # room beside the lanes, and for the peaks
DPI = 144
LINES = 6  # of a caption; a longer one is written smaller
SMALLEST, LABEL, TITLE = 7.0, 13.0, 15.0  # font sizes
STYLE: Any = {  # its keys are literals for the type checker in new versions of matplotlib only
    "font.family": ["DejaVu Sans"],  # it comes with matplotlib: a picture has the same widths everywhere
    "text.usetex": False,
    "axes.grid": False,
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
    "hatch.linewidth": 0.7,
    "path.sketch": None,
}


WIDER = 1.04  # letters lie on whole pixels: a line of them may be so much wider than they are


@lru_cache(maxsize=4096)
def em(text: str, bold: bool = False) -> float:
    """Width of a text per point of its font size."""
    font = FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal", size=100)
    width: float = text_to_path.get_text_width_height_descent(text, font, False)[0]
    return width / 100


def _fit(pieces: Sequence[str], gap: str, width: float, size: float, most: int, bold: bool) -> tuple[str, float]:
    """Join pieces to at most so many lines of a width; where they do not fit, in a smaller font."""
    width /= WIDER
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

    def polygons(self, corners: Sequence[Sequence[tuple[float, float]]], fill: str, **more: Any) -> None:
        more = {"linewidth": 0, "zorder": 2, **more}
        self.ax.add_collection(PolyCollection(corners, facecolor=fill, **more), autolim=False)

    def beside(self, x: float, y: float, text: str, size: float) -> None:
        """A text to the right of a point, outside the Axes where it must."""
        style: Any = {"va": "center_baseline", "fontsize": size, "color": PALETTE["ink"]}
        self.ax.annotate(text, (x, y), (8, 0), "data", "offset points", annotation_clip=False, **style)


@dataclass(frozen=True, slots=True)
class Frame:
    """What is said around the lanes. key: as a scene has it. twin: the picture as text."""

    title: tuple[str, ...]
    label: str
    caption: str
    key: Sequence[tuple[str, str, Parts]]
    twin: str

    def key_width(self, words: bool) -> float:
        return sum(18 + words * (5 + 11 * em(word)) for _, word, _ in self.key) + 12 * (len(self.key) - 1)

    def key_beside(self, width: float) -> bool:
        """The key stands in the row of the axis label where both fit, else in a row of its own."""
        return 11 * em(self.label) + 30 + self.key_width(True) <= width

    def rows(self, width: float) -> tuple[float, float]:
        """What the texts below and above the Axes need."""
        lines = 1 + _fit(self.caption.split(), " ", width, 11, LINES, False)[0].count("\n")
        bottom = 46 + (0 if self.key_beside(width) else 20) + 15 * lines
        title = _fit(self.title, "   ", width, TITLE, 2, True)[0]
        return bottom, 12 + (22 + 20 * title.count("\n") if title else 0)

    def put_around(self, ax: Axes, width: float) -> None:
        """Title above; axis label, key and caption below; no spines. On Axes of a small width all of it is smaller."""
        ax.set(facecolor=PALETTE["paper"], label=self.twin)
        ax.grid(False)
        ax.spines[:].set_visible(False)
        small = min(1.0, max(0.6, width / 550))
        if self.title:
            title, size = _fit(self.title, "   ", width, TITLE * small, 2, True)
            ax.set_title(title, loc="left", fontsize=size, fontweight="bold", color=PALETTE["ink"], pad=10)
        ax.tick_params(axis="x", labelsize=11 * small, color=PALETTE["quiet"], labelcolor=PALETTE["ink"], length=3)
        ax.set_xlabel(self.label, loc="left", fontsize=11 * small, color=PALETTE["ink"], labelpad=4)
        beside = self.key_beside(width / small)
        words = self.key_width(True) <= width / small
        if self.key:
            swatches = [_swatch(kind, word if words else "", parts, small) for kind, word, parts in self.key]
            _put_key(ax, swatches, 9 + (13 if beside else 33) * small)
        caption, size = _fit(self.caption.split(), " ", width, 11 * small, LINES, False)
        ax.annotate(
            caption, (0, 0), (0, -9 - (35 if beside else 55) * small), "axes fraction", "offset points",
            va="top", ha="left", fontsize=size, color=PALETTE["quiet"], annotation_clip=False, linespacing=1.25,
        )  # fmt: skip


def axes_of(layout: Layout, frame: Frame) -> Axes:
    """A figure of our own, as high as the ranks need."""
    left, minor = max(LABEL * em(text) for _, text in layout.ranks), _minor_width(layout)
    left = 14 + (left + minor if layout.named else max(left, minor))
    right = RIGHT if layout.held else 16.0
    return new_figure(layout.height, (left, right, *frame.rows(WIDTH - left - right)))


def _minor_width(layout: Layout) -> float:
    names = {lane.track["word"] for lane in layout.lanes} | {layout.held}
    return max(10 * em(name) for name in names) + (8 if any(names) else 0)


def page_of(layout: Layout, scene: Scene, frame: Frame, ax: Axes) -> Page:
    """Label everything around the lanes, then measure what is left for them."""
    longest = scene["span"] or 1.0
    edge = longest * EDGE / WIDTH  # room for half a line
    ax.set(xlim=(-edge, longest + edge), ylim=(layout.height, 0))
    put_time_ticks(ax, scene)
    _side_labels(_measured(ax, longest, layout.height), layout)
    peaks = RIGHT if layout.held and _engine(ax) else 0.0  # a layout engine will make room for them
    frame.put_around(ax, points_of(ax)[0] - peaks)
    _side_labels(_measured(ax, longest, layout.height), layout)  # for the height that is left
    return _measured(ax, longest, layout.height)


def _measured(ax: Axes, longest: float, height: float) -> Page:
    width_points, height_points = points_of(ax)
    return Page(ax, width_points / (longest * (1 + 2 * EDGE / WIDTH)), height_points / height)


class _Picture(Figure):
    """A figure that prints as its text twin, where matplotlib's would print its size in pixels."""

    def __repr__(self) -> str:
        return "\n".join(str(ax.get_label()) for ax in self.axes)


def new_figure(height: float, margins: tuple[float, float, float, float]) -> Axes:
    """Axes on a figure of its own. Call it outside of STYLE: the first figure of a notebook loads the backend, which
    switches matplotlib to interactive for good; were that undone, no later figure would be shown."""
    left, right, bottom, top = margins
    whole = height + bottom + top
    look: Any = {"dpi": DPI, "facecolor": PALETTE["paper"], "layout": "none", "FigureClass": _Picture}
    figure = plt.figure(figsize=(WIDTH / 72, whole / 72), **look)
    with plt.rc_context(STYLE):
        return figure.add_axes((left / WIDTH, bottom / whole, (WIDTH - left - right) / WIDTH, height / whole))


def _engine(ax: Axes) -> object:
    """The layout engine of the whole figure, where the Axes stands in a subfigure; None where it has none."""
    return ax.figure.canvas.figure.get_layout_engine()


def points_of(ax: Axes) -> tuple[float, float]:
    """Width and height of the Axes, once the layout engine, if there is one, has given it its size."""
    if _engine(ax) is not None:
        ax.figure.canvas.figure.draw_without_rendering()
    box = ax.get_window_extent()
    return box.width * 72 / ax.figure.dpi, box.height * 72 / ax.figure.dpi


def put_time_ticks(ax: Axes, scene: Scene) -> None:
    """Whole numbers where all operations end at such; no more ticks than the width has room for."""
    bins = min(12, max(2, int(points_of(ax)[0] / 45)))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=bins, steps=[1, 2, 5, 10], integer=scene["integer"]))
    ax.xaxis.set_major_formatter(lambda value, _: number(value, 6))


def _put_key(ax: Axes, swatches: Sequence[OffsetBox], below: float) -> None:
    shift = ScaledTranslation(0, -below / 72, ax.figure.dpi_scale_trans)
    row = HPacker(children=list(swatches), pad=0, sep=12, align="center")
    ax.add_artist(
        AnchoredOffsetbox(
            "upper right", child=row, pad=0, borderpad=0, frameon=False,
            bbox_to_anchor=(1, 0), bbox_transform=ax.transAxes + shift,
        )
    )  # fmt: skip


def _swatch(kind: str, word: str, parts: Parts, small: float = 1.0) -> OffsetBox:
    """A small box as the lanes show it, or in a colour, and what it means."""
    width, height = 18 * small, 14 * small
    area = DrawingArea(width, height)
    for letter, top, bottom in parts:
        fill = PALETTE.get(letter, letter)
        outlined = letter in SHAPE or letter not in PALETTE
        edge, line = (PALETTE["ink"], 1.6) if kind == "path" else (edge_color(fill), 0.6 * outlined)
        shape = (0, height * (1 - bottom)), width, height * (bottom - top)
        area.add_artist(Rectangle(*shape, facecolor=fill, edgecolor=edge, linewidth=line))
        if letter in HATCH:
            soft = mix(fill, 0.2, PALETTE["ink"])
            area.add_artist(Rectangle(*shape, facecolor="none", edgecolor=soft, linewidth=0, hatch=HATCH[letter]))
        if kind in SHAPE:
            style: Any = {"size": 9 * small, "weight": "bold", "ha": "center", "va": "center_baseline"}
            area.add_artist(Text(width / 2, height * (1 - (top + bottom) / 2), kind, color=ink_on(fill), **style))
    if not word:
        return area
    said = TextArea(word, textprops={"fontsize": 11 * small, "color": PALETTE["ink"]})
    return HPacker(children=[area, said], pad=0, sep=5 * small, align="center")


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
    minor = [(each.middle, each.track["word"]) for each in layout.lanes if each.track["word"]]
    minor += [(each.strip_bottom - each.strip / 2, layout.held) for each in layout.lanes if each.strip]
    small = min(10.0, page.size(10.0, 1.3 * (lane.strip or lane.height)))
    if small < SMALLEST:
        minor = []
    ax.set_yticks([y for y, _ in minor], [text for _, text in minor], minor=True)
    ax.tick_params(axis="y", which="minor", length=0, pad=6, labelsize=small, labelcolor=PALETTE["quiet"])
    pad = 6 + (_minor_width(layout) * small / 10 if layout.named and minor else 0)
    ax.tick_params(axis="y", which="major", length=0, pad=pad, labelsize=size, labelcolor=PALETTE["ink"])
