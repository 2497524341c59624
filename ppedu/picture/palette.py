"""The one look of all pictures, on paper and live: colours, shapes and words for what a timeline shows."""

from __future__ import annotations

from functools import lru_cache

PALETTE: dict[str, str] = {
    "F": "#2a62a8",
    "B": "#eaa43a",
    "I": "#d2702a",
    "W": "#f0d28a",
    "idle": "#dfe3ea",
    "strip": "#f1f2f6",
    "in flight": "#8577b3",
    "series": "#463a78",
    "ink": "#1d2430",
    "quiet": "#59636f",
    "paper": "#ffffff",
}
"""The one palette. Forward is cold and dark, backward is warm and light, so that they differ in grey as well."""

PAGE: dict[str, tuple[str, str]] = {
    "own-paper": (PALETTE["paper"], "#15181d"),
    "own-ink": (PALETTE["ink"], "#eef1f5"),
    "line": ("#a9b0ba", "#6b7480"),
    "soft": ("#f1f3f6", "#23272e"),
    "quiet": (PALETTE["quiet"], "#b6bec9"),
    "accent": (PALETTE["F"], "#8fbcf2"),
    "on-accent": (PALETTE["paper"], "#10151c"),
    "wrong": ("#b3261e", "#ff8a80"),
    "memory": (PALETTE["in flight"], PALETTE["in flight"]),
}
"""What the live views' page has besides, in a light and in a dark notebook: variables of its style sheet, as --ppedu-line.
"own" is what counts where the notebook does not tell its paper and ink."""

SHAPE: dict[str, tuple[float, float]] = {"F": (0.0, 0.84), "B": (0.16, 1.0), "I": (0.16, 1.0), "W": (0.38, 1.0)}
"""Where in its lane a box stands, from top (0) to bottom (1): forwards ride high, backwards sit low, W is short."""

HATCH: dict[str, str] = {"W": "////"}
"""The hatch of a kind, where it has one."""

WORD: dict[str, str] = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
"""What the letters stand for."""


@lru_cache
def mix(color: str, share: float, other: str = PALETTE["paper"]) -> str:
    """A colour with a share of another one in it.

    >>> mix("#000000", 0.5)
    '#808080'
    """
    pairs = [(int(color[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def edge_color(fill: str) -> str:
    return mix(fill, 0.35, PALETTE["ink"])


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


def box_colors(kind: str, pale: float = 0.0, dark: bool = False) -> tuple[str, str]:
    """Fill and text colour of a box, in a light or a dark notebook. pale: 0 to 1, how much of the paper is in it."""
    own = mix(PALETTE[kind], 0.14 * (dark and kind == "F"))  # F is dark itself
    fill = mix(own, pale, PAGE["own-paper"][dark])
    return fill, ink_on(fill)
