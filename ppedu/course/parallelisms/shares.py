"""Bars of what was measured under each way to share a model: what a rank keeps, computes with and sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ppedu.course.parallelisms.plans import GATHERED, KEPT, TEXT, blank
from ppedu.picture.palette import PALETTE
from ppedu.picture.paper.frame import STYLE, edge_color, new_figure

__all__ = ["plot_shares"]


class Share(Protocol):
    """What is read of one rank (`ppedu.course.parallelisms.RankShare`)."""

    @property
    def parameter_bytes(self) -> int: ...
    @property
    def used_bytes(self) -> int: ...
    @property
    def sent_bytes(self) -> int | None: ...
    @property
    def needed_bytes(self) -> int: ...


class Way(Protocol):
    """What is read of one way (`ppedu.course.parallelisms.Way`)."""

    @property
    def name(self) -> str: ...
    @property
    def where(self) -> str: ...
    @property
    def ranks(self) -> Sequence[Share]: ...


class Comparison(Protocol):
    """What is read of all of them (`ppedu.course.parallelisms.Comparison`)."""

    @property
    def one_device(self) -> Way: ...
    @property
    def ways(self) -> Sequence[Way]: ...


def plot_shares(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """Draw what was measured: of each way's fullest rank the share of the weights that it keeps and that it computes
    with, in per cent of the model, and the most that a rank sent in a step (what it has to send, where that was not
    measured)."""
    whole = comparison.one_device.ranks[0].parameter_bytes
    kept = [100 * max(r.parameter_bytes for r in way.ranks) / whole for way in comparison.ways]
    used = [100 * max(r.used_bytes for r in way.ranks) / whole for way in comparison.ways]
    sent = [max(_sent(r) for r in way.ranks) / 1e6 for way in comparison.ways]
    names = [way.name for way in comparison.ways]
    twin = "\n".join(
        f"{name}: keeps {k:.0f} % of the weights, computes with {u:.0f} %, sends {s:.2f} MB a step"
        for name, k, u, s in zip(names, kept, used, sent, strict=True)
    )
    ax = new_figure(190, (64, 16, 64, 44)) if ax is None else ax
    with plt.rc_context(STYLE):
        blank(ax, (-0.5, len(names) - 0.5), (0, 118), twin)
        ax.set_yticks((0, 25, 50, 75, 100), ["0", "25", "50", "75", "100 %"], fontsize=11, color=PALETTE["ink"])
        ax.tick_params(length=0)
        ax.grid(axis="y", color=PALETTE["idle"], linewidth=1)
        ax.set_axisbelow(True)
        _bars(ax, -0.2, kept, KEPT, "")
        _bars(ax, 0.2, used, GATHERED, "////")
        below = [f"{name}\nsends {s:.2f} MB" for name, s in zip(names, sent, strict=True)]
        ax.set_xticks(range(len(names)), below, fontsize=TEXT, color=PALETTE["ink"])
        _key(ax, 0.0, KEPT, "", "weights kept")
        _key(ax, 0.2, GATHERED, "////", "weights computed with")
        caption: Any = {"ha": "right", "va": "center", "fontsize": 11, "color": PALETTE["quiet"]}
        _beside(ax, (1, 0), (0, -52), f"the fullest rank; {comparison.ways[0].where}", **caption)
    return ax


def _sent(share: Share) -> int:
    return share.needed_bytes if share.sent_bytes is None else share.sent_bytes


def _bars(ax: Axes, offset: float, values: Sequence[float], fill: str, hatch: str) -> None:
    places = [index + offset for index in range(len(values))]
    bars = ax.bar(places, values, 0.36, color=fill, hatch=hatch, edgecolor=edge_color(KEPT), linewidth=0.6)
    style: Any = {"padding": 3, "fontsize": TEXT, "weight": "bold", "color": PALETTE["ink"]}
    ax.bar_label(bars, [f"{value:.0f} %" for value in values], **style)


def _key(ax: Axes, x: float, fill: str, hatch: str, text: str) -> None:
    look: Any = {"facecolor": fill, "hatch": hatch, "edgecolor": edge_color(KEPT), "linewidth": 0.6}
    ax.add_patch(Rectangle((x, 1.09), 0.028, 0.07, transform=ax.transAxes, clip_on=False, **look))
    _beside(ax, (x, 1.125), (28, 0), text, ha="left", va="center", fontsize=TEXT, color=PALETTE["ink"])


def _beside(ax: Axes, at: tuple[float, float], points: tuple[float, float], text: str, **style: Any) -> None:
    """Text at a place in parts of the Axes, moved by points."""
    ax.annotate(text, at, points, xycoords="axes fraction", textcoords="offset points", annotation_clip=False, **style)
