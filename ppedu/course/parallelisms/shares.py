"""Bars of what was measured under each way to share a model: what a rank keeps, computes with and sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from ppedu.course.parallelisms.plans import GATHERED, KEPT, TEXT, blank
from ppedu.picture.palette import PALETTE, edge_color
from ppedu.picture.paper.frame import STYLE, new_figure

if TYPE_CHECKING:
    from ppedu.course.parallelisms.results import Comparison

__all__ = ["plot_shares"]


def plot_shares(comparison: Comparison, ax: Axes | None = None) -> Axes:
    """Draw what was measured: of each way's fullest rank the share of the weights that it keeps and that it computes
    with, in per cent of the model, and the most that a rank sent in a step (what it has to send, where that was not
    measured)."""
    ways, whole = comparison.ways, comparison.one_device.ranks[0].parameter_bytes
    kept = [100 * max(rank.parameter_bytes for rank in way.ranks) / whole for way in ways]
    used = [100 * max(rank.used_bytes for rank in way.ranks) / whole for way in ways]
    sent = [max(r.needed_bytes if r.sent_bytes is None else r.sent_bytes for r in way.ranks) / 1e6 for way in ways]
    twin = "\n".join(
        f"{way.name}: keeps {k:.0f} % of the weights, computes with {u:.0f} %, sends {s:.2f} MB a step"
        for way, k, u, s in zip(ways, kept, used, sent, strict=True)
    )
    words: dict[str, Any] = {"fontsize": TEXT, "color": PALETTE["ink"]}
    ax = new_figure(190, (64, 16, 64, 44)) if ax is None else ax
    with plt.rc_context(STYLE):
        blank(ax, (-0.5, len(ways) - 0.5), (0, 118), twin)
        ax.set_yticks((0, 25, 50, 75, 100), ["0", "25", "50", "75", "100 %"], fontsize=11, color=PALETTE["ink"])
        ax.tick_params(length=0)
        ax.grid(axis="y", color=PALETTE["idle"], linewidth=1)
        ax.set_axisbelow(True)
        looks = (-0.2, kept, KEPT, "", "weights kept"), (0.2, used, GATHERED, "////", "weights computed with")
        for offset, values, fill, hatch, label in looks:
            look: dict[str, Any] = {"color": fill, "hatch": hatch, "edgecolor": edge_color(KEPT), "linewidth": 0.6}
            bars = ax.bar([index + offset for index in range(len(ways))], values, 0.36, label=label, **look)
            ax.bar_label(bars, [f"{value:.0f} %" for value in values], padding=3, weight="bold", **words)
        ax.legend(
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=2,
            frameon=False,
            borderaxespad=0,
            fontsize=TEXT,
            labelcolor=PALETTE["ink"],
        )
        below = [f"{way.name}\nsends {s:.2f} MB" for way, s in zip(ways, sent, strict=True)]
        ax.set_xticks(range(len(ways)), below, **words)
        caption: Any = {"ha": "right", "va": "center", "fontsize": 11, "color": PALETTE["quiet"]}
        place: Any = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}
        ax.annotate(f"the fullest rank; {ways[0].where}", (1, 0), (0, -52), **place, **caption)
    return ax
