"""Live views for notebooks: one widget each, with picture and controls, drawn in the browser from the same timelines.

This module is light: what a view needs (anywidget, and torch once "Run for real" is pressed) is imported when asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppedu.explore.explorer import Explorer

__all__ = ["explore"]


# Named like its package, so `ppedu` binds it at once, as it does `simulate`: a late name would find the module.
def explore(
    schedule: str = "1f1b",
    p: int = 4,
    m: int = 8,
    *,
    v: int = 2,
    ratio: float = 1.0,
    w_share: float = 0.5,
    overlap: float = 1.0,
    transfer: float = 0.0,
    slow_stage: int | None = None,
    slow_factor: float = 2.0,
) -> Explorer:
    """A live view of one schedule: move p and m, ask any operation or bubble why, play it, and run it for real.

    schedule: a name of `ppedu.SCHEDULES`. p: ranks, 1 to 16. m: microbatches, 1 to 64.
    v: stages on each rank, 1 to 4, where the schedule takes it. The unit of time is an F of 1/p of the model; of more than
        p stages each takes its share of that.
    ratio: how many times as long as F a B takes. transfer: how long a tensor travels, in units of F.
    w_share: the share of B that W takes, where the schedule splits B; I takes the rest.
    overlap: what an overlapped pair F&B takes of F + B, where the schedule has pairs: 1 as on a single stream, where
        nothing overlaps; less as with kernels that do.
    slow_stage: the rank of a stage that takes `slow_factor` times as long as the others; None for none. Where a rank holds
        several stages, all of them are slow.

    The controls are traitlets of the widget: `view.m = 16` moves its slider. `view.static()` draws the same with matplotlib,
    for readers without a kernel. Raises ValueError for values outside of these ranges.

    >>> explore(p=4, m=8)
    live view of 1F1B p=4 m=8: makespan 22, bubble 27.3 %, in flight 4 3 2 1
    """
    from ppedu.explore.explorer import Explorer

    return Explorer(
        schedule=schedule, p=p, m=m, v=v, ratio=ratio, w_share=w_share, overlap=overlap, transfer=transfer,
        slow_stage=slow_stage, slow_factor=slow_factor,
    )  # fmt: skip
