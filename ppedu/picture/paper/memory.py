"""Charts of what ranks hold in memory: peaks as bars, or one rank over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.ticker import MaxNLocator

from ppedu.core.format import by_rank, byte_unit, number
from ppedu.core.timeline import Timeline
from ppedu.picture.labels import names_of
from ppedu.picture.palette import PALETTE, edge_color, mix
from ppedu.picture.paper.frame import LABEL, SMALLEST, STYLE, WIDTH, Frame, em, new_figure, points_of, put_time_ticks
from ppedu.picture.paper.layout import corners_of, steps_of
from ppedu.picture.scene import Scene


def draw_memory(
    scene: Scene, timelines: Sequence[Timeline], rank: int | None, sizes: Sequence[float] | None, ax: Axes | None
) -> Axes:
    rows = [list(track["peaks"]) for track in scene["tracks"]]
    factor, unit = 1.0, _counted(scene, timelines)
    if sizes is not None:
        rows = [[peak * size for peak, size in zip(row, sizes, strict=False)] for row in rows]
        factor, unit = byte_unit(max(map(max, rows)) if rank is None else max(row[rank] for row in rows))
    rows = [[value / factor for value in row] for row in rows]
    shown = rows if rank is None else [[row[rank]] for row in rows]
    names, shades = names_of(timelines), _shades(len(timelines))
    held = scene["held"]
    head = ("Peak " if rank is None else f"Rank {rank}, peak ") + held + f" ({unit})" * (sizes is not None)
    title = (head, *(f"{name} {by_rank(row)}" for name, row in zip(names, shown, strict=True)))
    key = [(name, name, ((shade, 0.0, 1.0),)) for shade, name in zip(shades, names, strict=True)]
    label, twin = "rank" if rank is None else scene["label"], "\n".join(map(repr, timelines))
    frame = Frame(title, label, scene["caption"], key if len(key) > 1 else (), twin)
    ax = new_figure(250, (62, 16, *frame.rows(WIDTH - 78))) if ax is None else ax
    with plt.rc_context(STYLE):
        _chart(ax, frame, max(map(max, shown)), ("peak " if rank is None else "") + f"{held} ({unit})")
        if rank is None:
            _bars(ax, rows, shades)
        else:
            _curves(ax, scene, rank, (1.0 if sizes is None else sizes[rank]) / factor, shades)
    return ax


def sizes_of(given: float | Sequence[float] | None, ranks: int) -> Sequence[float] | None:
    if given is None:
        return None
    sizes = [float(size) for size in given] if isinstance(given, Sequence) else [float(given)] * ranks
    if len(sizes) != ranks or min(sizes) < 0:
        raise ValueError(
            f"bytes_per_microbatch is {given!r}: give one number of at least 0 for all ranks, or one for each of the "
            f"{ranks} ranks"
        )
    return sizes


def _counted(scene: Scene, timelines: Sequence[Timeline]) -> str:
    if scene["held"] == "activations":
        return "microbatches on 1/p of the model"
    return "microbatches" + " on one stage" * any(t.schedule.chain_length > t.schedule.num_ranks for t in timelines)


def _shades(count: int) -> list[str]:
    """Dark to light, so that series differ in grey as well."""
    if count == 1:
        return [PALETTE["in flight"]]
    return [mix(PALETTE["series"], 0.62 * index / (count - 1)) for index in range(count)]


def _chart(ax: Axes, frame: Frame, largest: float, label: str) -> None:
    """For quantities: a value axis with faint lines at the left, and the same surroundings as the lanes have."""
    ax.set(ylim=(0, 1.12 * largest or 1))
    ax.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=largest >= 4))
    frame.put_around(ax, points_of(ax)[0])
    ax.grid(axis="y", color=PALETTE["idle"], linewidth=1)
    ax.set_axisbelow(True)
    ax.set_ylabel(label, fontsize=11, color=PALETTE["ink"])
    ax.tick_params(axis="y", labelsize=11, labelcolor=PALETTE["ink"], length=0)


def _bars(ax: Axes, rows: Sequence[Sequence[float]], shades: Sequence[str]) -> None:
    """A group of bars a rank, with the figure on top of each where it has room."""
    ranks, width = max(map(len, rows)), 0.8 / len(rows)
    ax.set_xlim(-0.5, ranks - 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=24, integer=True, steps=[1, 2, 5, 10]))
    texts = [[number(value, 3) for value in row] for row in rows]
    room = width * points_of(ax)[0] / ranks - 2
    size = min(LABEL, *(room / em(text, True) for row in texts for text in row))
    for index, (row, shade) in enumerate(zip(rows, shades, strict=True)):
        xs = [rank + (index - (len(rows) - 1) / 2) * width for rank in range(len(row))]
        boxes = [corners_of(x - 0.46 * width, x + 0.46 * width, value, 0) for x, value in zip(xs, row, strict=True)]
        bars = PolyCollection(boxes, facecolor=shade, edgecolor=edge_color(shade), linewidth=0.5, zorder=2)
        ax.add_collection(bars, autolim=False)
        for x, value, text in zip(xs, row, texts[index], strict=True) if size >= SMALLEST else ():
            place: Any = {"xy": (x, value), "xytext": (0, 3), "textcoords": "offset points", "ha": "center"}
            ax.annotate(text, **place, fontsize=size, fontweight="bold", color=PALETTE["ink"])


def _curves(ax: Axes, scene: Scene, rank: int, scale: float, shades: Sequence[str]) -> None:
    """What one rank holds over time, one line a timeline; the lighter lines are dashed."""
    ax.set_xlim(0, scene["span"] or 1.0)
    put_time_ticks(ax, scene)
    for index, (track, shade) in enumerate(zip(scene["tracks"], shades, strict=True)):
        xs, ys = zip(*((time, count * scale) for time, count in steps_of(track, rank)), strict=True)
        dashes = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))[index % 3]
        ax.fill_between(xs, ys, color=shade, alpha=0.12, linewidth=0, zorder=2)
        ax.plot(xs, ys, color=shade, linewidth=2.6, linestyle=dashes, zorder=3)
