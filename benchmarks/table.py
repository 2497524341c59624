"""The one line that each benchmark prints for each figure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def line(what: str, values: Sequence[float], bound: float | None = None, unit: str = "", more: bool = False) -> None:
    """'what: median (lowest to highest), bound', and whether it holds."""
    middle = statistics.median(values)
    text = f"{what:<66} {middle:7.3f}{unit}  ({min(values):.3f} to {max(values):.3f})"
    if bound is not None:
        kept = middle >= bound if more else middle <= bound
        text += f"  {'at least' if more else 'at most'} {bound:g}: {'kept' if kept else 'MISSED'}"
    print(text, flush=True)
