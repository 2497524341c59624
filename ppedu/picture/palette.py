"""The one look of all pictures, on paper and live: colours, shapes and words for what a timeline shows."""

from __future__ import annotations

PALETTE: dict[str, str] = {
    "F": "#2a62a8",
    "B": "#eaa43a",
    "I": "#d2702a",
    "W": "#f0d28a",
    "idle": "#dfe3ea",
    "in flight": "#8577b3",
    "ink": "#1d2430",
    "quiet": "#59636f",
    "paper": "#ffffff",
}
"""The one palette. Forward is cold and dark, backward is warm and light, so that they differ in grey as well."""

SHAPE: dict[str, tuple[float, float]] = {"F": (0.0, 0.84), "B": (0.16, 1.0), "I": (0.16, 1.0), "W": (0.38, 1.0)}
"""Where in its lane a box stands, from top (0) to bottom (1): forwards ride high, backwards sit low, W is short."""

HATCH: dict[str, str] = {"W": "////"}
"""The hatch of a kind, where it has one."""

WORD: dict[str, str] = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
"""What the letters stand for."""
