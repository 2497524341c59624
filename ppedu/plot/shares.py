"""Pictures of how ranks share a model: a drawing of the four ways, and bars of what was measured under each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ppedu.palette import PALETTE
from ppedu.plot.frame import new_figure
from ppedu.plot.style import STYLE, WIDTH, edge_color, mix

__all__ = ["plot_shares", "plot_ways"]

KEPT, GATHERED = PALETTE["F"], mix(PALETTE["F"], 0.72)
TEXT, HEADING = 12.0, 15.0  # font sizes


@dataclass(frozen=True, slots=True)
class _Plan:
    """One way: its name, what it splits, what its ranks send, and what a rank holds of a layer.

    part: (rank, layer, p, layers) -> which share of the layer's width is kept, from where to where.
    """

    name: str
    splits: str
    sends: str
    part: Callable[[int, int, int, int], tuple[float, float]]
    gathers: bool = False
    whole_batch: bool = False


def _all(rank: int, layer: int, p: int, layers: int) -> tuple[float, float]:
    return 0.0, 1.0


def _slice(rank: int, layer: int, p: int, layers: int) -> tuple[float, float]:
    return rank / p, (rank + 1) / p


def _own(rank: int, layer: int, p: int, layers: int) -> tuple[float, float]:
    return (0.0, 1.0) if layer * p // layers == rank else (0.0, 0.0)


_PLANS = (
    _Plan("DDP", "the batch", "gradients", _all),
    _Plan("ZeRO-3", "the batch, and the storage", "weights and gradients", _slice, gathers=True),
    _Plan("TP", "each layer", "activations, in every layer", _slice, whole_batch=True),
    _Plan("PP", "the row of layers", "activations, between stages", _own, whole_batch=True),
)


def plot_ways(p: int = 4, layers: int = 8, ax: Axes | None = None) -> Axes:
    """Draw who keeps what, and computes with what, under DDP, ZeRO-3, tensor and pipeline parallelism: a sketch, not a
    measurement. Every column is a rank, every bar in it a layer; the squares above are the parts of the batch.

    Raises ValueError where p does not divide the layers.

    >>> ax = plot_ways(p=4, layers=8)
    >>> print(ax.get_label())
    DDP splits the batch: a rank has 1/4 of it and 8 whole layers; it sends gradients
    ZeRO-3 splits the batch, and the storage: a rank has 1/4 of it, keeps 1/4 of each layer and gathers the rest; it sends weights and gradients
    TP splits each layer: a rank has the whole batch and 1/4 of each layer; it sends activations, in every layer
    PP splits the row of layers: a rank has the whole batch and 2 whole layers; it sends activations, between stages
    >>> plt.close(ax.figure)
    """
    if layers % p:
        raise ValueError(
            f"each rank takes as many layers: p={p} does not divide layers={layers}. Take {p * (layers // p + 1)}"
        )
    height = 146.0 + 17.0 * layers
    ax = new_figure(height, (0, 0, 4, 4)) if ax is None else ax
    with plt.rc_context(STYLE):
        _blank(ax, (0, WIDTH), (height, 0), "\n".join(_twin(plan, p, layers) for plan in _PLANS))
        _legend(ax)
        room = WIDTH / len(_PLANS)
        for index, plan in enumerate(_PLANS):
            _panel(ax, plan, p, layers, index * room, room)
    return ax


def _twin(plan: _Plan, p: int, layers: int) -> str:
    holds = {
        "DDP": f"1/{p} of it and {layers} whole layers",
        "ZeRO-3": f"1/{p} of it, keeps 1/{p} of each layer and gathers the rest",
        "TP": f"the whole batch and 1/{p} of each layer",
        "PP": f"the whole batch and {layers // p} whole layers",
    }[plan.name]
    return f"{plan.name} splits {plan.splits}: a rank has {holds}; it sends {plan.sends}"


def _blank(ax: Axes, x: tuple[float, float], y: tuple[float, float], label: str) -> None:
    ax.set(xlim=x, ylim=y, xticks=(), yticks=(), facecolor=PALETTE["paper"])
    ax.set_label(label)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _box(ax: Axes, x: float, y: float, width: float, height: float, fill: str, **more: Any) -> None:
    style = {"facecolor": fill, "edgecolor": edge_color(fill), "linewidth": 0.6, **more}
    ax.add_patch(Rectangle((x, y), width, height, **style))


def _text(
    ax: Axes, x: float, y: float, text: str, size: float = TEXT, color: str = PALETTE["ink"], **more: Any
) -> None:
    ax.text(x, y, text, fontsize=size, color=color, **{"ha": "center", "va": "center", **more})


def _legend(ax: Axes) -> None:
    entries = (
        (96.0, {"fill": KEPT}, "kept here, computed with"),
        (328.0, {"fill": GATHERED, "hatch": "////"}, "gathered, computed with, dropped"),
        (612.0, {"fill": PALETTE["paper"], "edgecolor": PALETTE["idle"]}, "not here"),
    )
    for x, look, text in entries:
        _box(ax, x, 8, 22, 12, **look)  # type: ignore[arg-type]
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
            _box(ax, x + part * width / p + 0.7, top - 8, width / p - 1.4, 7, PALETTE["B"] if here else PALETTE["paper"],
                 **({} if here else {"edgecolor": PALETTE["idle"]}))  # fmt: skip
        for layer in range(layers):
            y = top + 6 + 17 * layer
            rest: dict[str, Any] = {"hatch": "////"} if plan.gathers else {"edgecolor": PALETTE["idle"]}
            _box(ax, x, y, width, 13, GATHERED if plan.gathers else PALETTE["paper"], **rest)
            start, end = plan.part(rank, layer, p, layers)
            if end > start:
                _box(ax, x + start * width, y, (end - start) * width, 13, KEPT)
        _text(ax, x + width / 2, top + 16 + 17 * layers, str(rank), color=PALETTE["quiet"])
    _text(ax, middle, top + 34 + 17 * layers, "sends " + plan.sends)
    if left:
        ax.plot([left, left], [34, top + 40 + 17 * layers], color=PALETTE["idle"], linewidth=1)


class _Share(Protocol):
    """What is read of one rank (`ppedu.runtime.parallelisms.RankShare`)."""

    @property
    def parameter_bytes(self) -> int: ...
    @property
    def used_bytes(self) -> int: ...
    @property
    def sent_bytes(self) -> int | None: ...
    @property
    def needed_bytes(self) -> int: ...


class _Way(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def where(self) -> str: ...
    @property
    def ranks(self) -> Sequence[_Share]: ...


class _Comparison(Protocol):
    """`ppedu.runtime.parallelisms.Comparison`"""

    @property
    def one_device(self) -> _Way: ...
    @property
    def ways(self) -> Sequence[_Way]: ...


def plot_shares(comparison: _Comparison, ax: Axes | None = None) -> Axes:
    """Draw what was measured: for each way the part of the weights that its fullest rank keeps, the part that it computes
    with, and what it sends."""
    whole = comparison.one_device.ranks[0].parameter_bytes
    kept = [100 * max(r.parameter_bytes for r in way.ranks) / whole for way in comparison.ways]
    used = [100 * max(r.used_bytes for r in way.ranks) / whole for way in comparison.ways]
    sent = [
        max(r.needed_bytes if r.sent_bytes is None else r.sent_bytes for r in way.ranks) / 1e6
        for way in comparison.ways
    ]
    lines = [
        f"{way.name}: keeps {k:.0f} % of the weights, computes with {u:.0f} %, sends {s:.2f} MB a step"
        for way, k, u, s in zip(comparison.ways, kept, used, sent, strict=True)
    ]
    ax = new_figure(190, (64, 16, 64, 44)) if ax is None else ax
    with plt.rc_context(STYLE):
        _blank(ax, (-0.5, len(lines) - 0.5), (0, 118), "\n".join(lines))
        ax.set_yticks((0, 25, 50, 75, 100), ["0", "25", "50", "75", "100 %"], fontsize=11, color=PALETTE["ink"])
        ax.tick_params(length=0)
        ax.grid(axis="y", color=PALETTE["idle"], linewidth=1)
        ax.set_axisbelow(True)
        for offset, values, look in ((-0.2, kept, {"color": KEPT}), (0.2, used, {"color": GATHERED, "hatch": "////"})):
            places = [index + offset for index in range(len(values))]
            bars = ax.bar(places, values, width=0.36, edgecolor=edge_color(KEPT), linewidth=0.6, **look)
            ax.bar_label(
                bars,
                [f"{value:.0f} %" for value in values],
                padding=3,
                fontsize=TEXT,
                weight="bold",
                color=PALETTE["ink"],
            )
        names = [f"{way.name}\nsends {s:.2f} MB" for way, s in zip(comparison.ways, sent, strict=True)]
        ax.set_xticks(range(len(names)), names, fontsize=TEXT, color=PALETTE["ink"])
        _shares_around(ax, comparison.ways[0].where)
    return ax


def _shares_around(ax: Axes, where: str) -> None:
    inside: Any = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}
    for x, look, text in (
        (0.0, {"facecolor": KEPT}, "weights kept"),
        (0.2, {"facecolor": GATHERED, "hatch": "////"}, "weights computed with"),
    ):
        ax.add_patch(Rectangle((x, 1.09), 0.028, 0.07, transform=ax.transAxes, clip_on=False, linewidth=0.6,
                               edgecolor=edge_color(KEPT), **look))  # fmt: skip
        ax.annotate(text, (x, 1.125), (28, 0), ha="left", va="center", fontsize=TEXT, color=PALETTE["ink"], **inside)
    ax.annotate(
        f"the fullest rank; {where}",
        (1, 0),
        (0, -52),
        ha="right",
        va="center",
        fontsize=11,
        color=PALETTE["quiet"],
        **inside,
    )
