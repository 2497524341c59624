"""Charts of what ranks hold in memory: peaks as bars, or one rank over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.ticker import MaxNLocator

from ppedu.picture.palette import PALETTE
from ppedu.picture.paper.frame import (
    Frame,
    em,
    make_plain,
    new_figure,
    points_of,
    put_around,
    put_time_ticks,
    rows_around,
)
from ppedu.picture.paper.lanes import corners_of, curve_of
from ppedu.picture.paper.style import LABEL, SMALLEST, STYLE, WIDTH, edge_color, mix
from ppedu.picture.paper.tracks import Track, caption_of, labels_of, listed, time_label_of


def draw_memory(tracks: Sequence[Track], rank: int | None, sizes: Sequence[float] | None, ax: Axes | None) -> Axes:
    rows = [list(track.peaks) for track in tracks]
    factor, unit = 1.0, _counted(tracks)
    if sizes is not None:
        rows = [[peak * size for peak, size in zip(row, sizes, strict=False)] for row in rows]
        factor, unit = _bytes(max(map(max, rows)) if rank is None else max(row[rank] for row in rows))
    rows = [[value / factor for value in row] for row in rows]
    shown = rows if rank is None else [[row[rank]] for row in rows]
    names, shades = labels_of(tracks), _shades(len(tracks))
    head = ("Peak in flight" if rank is None else f"Rank {rank}, peak in flight") + f" ({unit})" * (sizes is not None)
    title = (head, *(f"{name} {listed(row)}" for name, row in zip(names, shown, strict=True)))
    key = tuple(zip(shades, names, strict=True)) if len(tracks) > 1 else ()
    frame = Frame(title, "rank" if rank is None else time_label_of(tracks), caption_of(tracks), key)
    label = ("peak " if rank is None else "") + f"in flight ({unit})"
    ax = new_figure(250, (62, 16, *rows_around(frame, WIDTH - 78))) if ax is None else ax
    with plt.rc_context(STYLE):
        _chart(ax, frame, max(map(max, shown)), label, tracks)
        if rank is None:
            _bars(ax, rows, shades)
        else:
            _curves(ax, tracks, rank, (1.0 if sizes is None else sizes[rank]) / factor, shades)
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


def _bytes(largest: float) -> tuple[float, str]:
    """The decimal unit for an axis of bytes."""
    return next(((f, unit) for f, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if largest >= f), (1.0, "bytes"))


def _counted(tracks: Sequence[Track]) -> str:
    if len({track.size for track in tracks}) > 1:
        return "microbatches on 1/p of the model"
    whole = all(track.timeline.schedule.chain_length <= track.timeline.schedule.num_ranks for track in tracks)
    return "microbatches" if whole else "microbatches on one stage"


def _shades(count: int) -> list[str]:
    """Dark to light, so that series differ in grey as well."""
    return (
        [mix("#463a78", 0.62 * index / (count - 1)) for index in range(count)] if count > 1 else [PALETTE["in flight"]]
    )


def _chart(ax: Axes, frame: Frame, largest: float, label: str, tracks: Sequence[Track]) -> None:
    """For quantities: a value axis with faint lines at the left, and the same surroundings as the lanes have."""
    ax.set(ylim=(0, 1.12 * largest or 1))
    make_plain(ax, tracks)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=largest >= 4))
    ax.grid(axis="y", color=PALETTE["idle"], linewidth=1)
    ax.set_axisbelow(True)
    put_around(ax, frame, points_of(ax)[0])
    ax.set_ylabel(label, fontsize=11, color=PALETTE["ink"])
    ax.tick_params(axis="y", labelsize=11, labelcolor=PALETTE["ink"], length=0)


def _bars(ax: Axes, rows: Sequence[Sequence[float]], shades: Sequence[str]) -> None:
    """A group of bars a rank, with the figure on top of each where it has room."""
    ranks, width = max(map(len, rows)), 0.8 / len(rows)
    ax.set_xlim(-0.5, ranks - 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=24, integer=True, steps=[1, 2, 5, 10]))
    texts = [[f"{value:.3g}" for value in row] for row in rows]
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


def _curves(ax: Axes, tracks: Sequence[Track], rank: int, scale: float, shades: Sequence[str]) -> None:
    """What one rank holds over time, one line a timeline; the lighter lines are dashed."""
    longest = max(track.makespan for track in tracks) or 1.0
    ax.set_xlim(0, longest)
    put_time_ticks(ax, tracks)
    for index, (track, shade) in enumerate(zip(tracks, shades, strict=True)):
        xs, ys = zip(
            *((track.at(time), count * scale * track.size) for time, count in curve_of(track.timeline, rank)),
            strict=True,
        )
        ax.fill_between(xs, ys, color=shade, alpha=0.12, linewidth=0, zorder=2)
        ax.plot(
            xs, ys, color=shade, linewidth=2.6, linestyle=("-", (0, (5, 1.5)), (0, (1.5, 1.2)))[index % 3], zorder=3
        )
