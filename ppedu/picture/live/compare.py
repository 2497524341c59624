"""explore_compare(): the function. It is light; the widget is imported when it is called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppedu.picture.live.comparison import Comparison


def explore_compare(
    schedules: Sequence[str] = ("gpipe", "1f1b"),
    p: int = 4,
    m: int = 8,
    *,
    budget: int | None = None,
    v: int = 2,
    ratio: float = 1.0,
    w_share: float = 0.5,
    overlap: float = 1.0,
    transfer: float = 0.0,
    slow_stage: int | None = None,
    slow_factor: float = 2.0,
) -> Comparison:
    """A live view of two or three schedules on one time axis, at the same costs, with what each of them holds in memory.

    schedules: names of `ppedu.SCHEDULES`. budget: activations in flight that a rank has room for; the view then shows
    how many microbatches each schedule affords. The other arguments are those of `ppedu.explore`; so are `static()`,
    the traitlets, and the errors.

    Where stages are of different size (with v stages on each rank there are v times as many), memory is counted in what a
    microbatch leaves on 1/p of the model, as `Timeline.peak_activations` does.

    >>> explore_compare(p=4, m=8).verdict[0]
    'The same makespan, 22; other memory: a rank holds up to 8 microbatches with GPipe, 4 with 1F1B.'
    """
    from ppedu.picture.live.comparison import Comparison

    names = schedules if isinstance(schedules, str) else list(schedules)  # the letters of one name are no names
    return Comparison(
        schedules=names, p=p, m=m, budget=budget, v=v, ratio=ratio, w_share=w_share, overlap=overlap,
        transfer=transfer, slow_stage=slow_stage, slow_factor=slow_factor,
    )  # fmt: skip
