"""A drawing of four ways to share a model over ranks: who keeps what, and computes with what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ppedu.picture.palette import PALETTE, edge_color, mix
from ppedu.picture.paper.frame import STYLE, WIDTH, new_figure

__all__ = ["plot_ways"]

KEPT, GATHERED, BATCH = PALETTE["F"], mix(PALETTE["F"], 0.72), PALETTE["B"]
NOT_HERE = mix(PALETTE["idle"], 0.15, PALETTE["ink"])
TEXT, HEADING = 12.0, 15.0  # font sizes


@dataclass(frozen=True, slots=True)
class _Plan:
    """One way: its name, what it splits, what a rank has, what ranks send, and what a rank keeps of a layer.

    part: (rank, layer, p, layers) -> which share of the layer's width is kept, from where to where.
    """

    name: str
    splits: str
    has: str
    sends: str
    part: Callable[[int, int, int, int], tuple[float, float]]
    gathers: bool = False
    whole_batch: bool = False


def _slice(rank: int, layer: int, p: int, layers: int) -> tuple[float, float]:
    return rank / p, (rank + 1) / p


_PLANS = (
    _Plan(
        "DDP", "the batch", "1/{p} of it and {layers} whole layers", "gradients",
        lambda rank, layer, p, layers: (0.0, 1.0),
    ),
    _Plan(
        "ZeRO-3", "the batch, and the storage", "1/{p} of it, keeps 1/{p} of each layer and gathers the rest",
        "weights and gradients", _slice, gathers=True,
    ),
    _Plan(
        "TP", "each layer", "the whole batch and 1/{p} of each layer", "activations, in every layer", _slice,
        whole_batch=True,
    ),
    _Plan(
        "PP", "the stack of layers", "the whole batch and {own} whole layers", "activations, at the cuts",
        lambda rank, layer, p, layers: (0.0, float(layer * p // layers == rank)), whole_batch=True,
    ),
)  # fmt: skip


def plot_ways(p: int = 4, layers: int = 8, ax: Axes | None = None) -> Axes:
    """Draw who keeps what, and computes with what, under DDP, ZeRO-3, tensor and pipeline parallelism: a sketch, not a
    measurement. Every column is a rank, every bar in it a layer; the squares above are the parts of the batch.

    Raises ValueError where p does not divide the layers.

    >>> ax = plot_ways(p=4, layers=8)
    >>> print(ax.get_label())
    DDP splits the batch: a rank has 1/4 of it and 8 whole layers; it sends gradients
    ZeRO-3 splits the batch, and the storage: a rank has 1/4 of it, keeps 1/4 of each layer and gathers the rest; it sends weights and gradients
    TP splits each layer: a rank has the whole batch and 1/4 of each layer; it sends activations, in every layer
    PP splits the stack of layers: a rank has the whole batch and 2 whole layers; it sends activations, at the cuts
    >>> plt.close(ax.figure)
    """
    if layers % p:
        raise ValueError(
            f"each rank takes as many layers: p={p} does not divide layers={layers}. Take {p * (layers // p + 1)}"
        )
    twin = [
        f"{plan.name} splits {plan.splits}: a rank has {plan.has.format(p=p, layers=layers, own=layers // p)}; "
        f"it sends {plan.sends}"
        for plan in _PLANS
    ]
    height = 146.0 + 17.0 * layers
    ax = new_figure(height, (0, 0, 4, 4)) if ax is None else ax
    with plt.rc_context(STYLE):
        blank(ax, (0, WIDTH), (height, 0), "\n".join(twin))
        _legend(ax)
        room = WIDTH / len(_PLANS)
        for index, plan in enumerate(_PLANS):
            _panel(ax, plan, p, layers, index * room, room)
    return ax


def blank(ax: Axes, x: tuple[float, float], y: tuple[float, float], label: str) -> None:
    ax.set(xlim=x, ylim=y, xticks=(), yticks=(), facecolor=PALETTE["paper"])
    ax.set_label(label)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _box(ax: Axes, x: float, y: float, width: float, height: float, fill: str, **more: Any) -> None:
    style = {"facecolor": fill, "edgecolor": edge_color(fill), "linewidth": 0.6, **more}
    ax.add_patch(Rectangle((x, y), width, height, **style))


def _text(ax: Axes, x: float, y: float, text: str, size: float = TEXT, **more: Any) -> None:
    ax.text(x, y, text, fontsize=size, **{"color": PALETTE["ink"], "ha": "center", "va": "center", **more})


def _legend(ax: Axes) -> None:
    entries: tuple[tuple[float, dict[str, Any], str], ...] = (
        (14, {"fill": KEPT}, "kept here, computed with"),
        (228, {"fill": GATHERED, "hatch": "////"}, "gathered, computed with, dropped"),
        (500, {"fill": PALETTE["paper"], "edgecolor": NOT_HERE}, "not here"),
        (610, {"fill": BATCH}, "part of the batch it works on"),
    )
    for x, look, text in entries:
        _box(ax, x, 8, 22, 12, **look)
        _text(ax, x + 29, 14, text, ha="left")


def _panel(ax: Axes, plan: _Plan, p: int, layers: int, left: float, room: float) -> None:
    """One way: p columns of layers, with the batch above and the ranks' numbers below."""
    gap = 0.22 * room / p
    width = (room - 36) / p - gap
    middle, top = left + room / 2, 84.0
    _text(ax, middle, 42, plan.name, HEADING, weight="bold")
    _text(ax, middle, 60, f"splits {plan.splits}")
    for rank in range(p):
        x = left + 18 + gap / 2 + rank * (width + gap)
        for part in range(p):
            here = plan.whole_batch or part == rank
            _box(ax, x + part * width / p + 0.7, top - 8, width / p - 1.4, 7, BATCH if here else PALETTE["paper"],
                 **({} if here else {"edgecolor": NOT_HERE}))  # fmt: skip
        for layer in range(layers):
            y = top + 6 + 17 * layer
            rest: dict[str, Any] = {"hatch": "////"} if plan.gathers else {"edgecolor": NOT_HERE}
            _box(ax, x, y, width, 13, GATHERED if plan.gathers else PALETTE["paper"], **rest)
            start, end = plan.part(rank, layer, p, layers)
            if end > start:
                _box(ax, x + start * width, y, (end - start) * width, 13, KEPT)
        _text(ax, x + width / 2, top + 16 + 17 * layers, f"rank {rank}", 11, color=PALETTE["quiet"])
    _text(ax, middle, top + 34 + 17 * layers, "sends " + plan.sends)
    if left:
        ax.plot([left, left], [34, top + 40 + 17 * layers], color=PALETTE["idle"], linewidth=1)
