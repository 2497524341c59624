"""Sizes, fonts and colours that all pictures share. Lengths are in points (1/72 inch)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ppedu.picture.palette import PALETTE

WIDTH = 864.0  # of a figure of our own: 12 inches, 90 % of a slide's width
EDGE, RIGHT = 1.5, 62.0  # room beside the lanes, and for the peaks
DPI = 144
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
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


@lru_cache
def mix(color: str, share: float, other: str = PALETTE["paper"]) -> str:
    """A colour with a share of another one in it."""
    pairs = [(int(color[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def edge_color(fill: str) -> str:
    return mix(fill, 0.35, PALETTE["ink"])


def soft(fill: str) -> str:
    return mix(fill, 0.2, PALETTE["ink"])


def luminance(color: str) -> float:
    """Relative luminance, 0 to 1 (WCAG 2)."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@lru_cache
def ink_on(fill: str) -> str:
    """The text colour with the better contrast on a fill."""
    paper, ink, ground = (luminance(c) + 0.05 for c in (PALETTE["paper"], PALETTE["ink"], fill))
    return PALETTE["paper"] if paper / ground > ground / ink else PALETTE["ink"]
