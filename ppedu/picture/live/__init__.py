"""Live views for notebooks: one widget each, with picture and controls, drawn in the browser from the same timelines.

This module is light: what a view needs (anywidget, and torch once "Run for real" is pressed) is imported when asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from ppedu.core.schedule import Schedule
from ppedu.core.timeline import Timeline

if TYPE_CHECKING:
    from ppedu.picture.live.explorer import Explorer
    from ppedu.picture.live.recorded import Ran, Recorded

__all__ = ["explore"]


@overload
def explore(schedule: Timeline | Ran) -> Recorded: ...
@overload
def explore(
    schedule: str | Schedule = ...,
    p: int | None = ...,
    m: int | None = ...,
    *,
    v: int = ...,
    ratio: float = ...,
    w_share: float = ...,
    overlap: float = ...,
    transfer: float = ...,
    slow_stage: int | None = ...,
    slow_factor: float = ...,
) -> Explorer: ...
# Named like its package, so `ppedu` binds it at once, as it does `simulate`: a late name would find the module.
def explore(
    schedule: str | Schedule | Timeline | Ran = "1f1b",
    p: int | None = None,
    m: int | None = None,
    *,
    v: int = 2,
    ratio: float = 1.0,
    w_share: float = 0.5,
    overlap: float = 1.0,
    transfer: float = 0.0,
    slow_stage: int | None = None,
    slow_factor: float = 2.0,
) -> Explorer | Recorded:
    """A live view of one schedule: move p and m, ask any operation or bubble why, play it, and run it for real.

    schedule: a name of `ppedu.SCHEDULES`; or a Schedule of your own, whose p and m stand still while its costs move; or
        what is there already, and cannot be moved: a Timeline, or a run (of `ppedu.train`), whose last timeline is shown
        beside the simulation of its pace, or, without a pace, of what its operations took. These two take no more arguments.
    p: ranks, 1 to 16, by default 4. m: microbatches, 1 to 64, by default 8.
    v: stages on each rank, 1 to 4, where the schedule takes it. The unit of time is an F of 1/p of the model; of more than
        p stages each takes its share of that.
    ratio: how many times as long as F a B takes. transfer: how long a tensor travels, in units of F.
    w_share: the share of B that W takes, where the schedule splits B; I takes the rest.
    overlap: what an overlapped pair F&B takes of F + B, where the schedule has pairs: 1 as on a single stream, where
        nothing overlaps; less as with kernels that do.
    slow_stage: the rank of a stage that takes `slow_factor` times as long as the others; None for none. Where a rank holds
        several stages, all of them are slow.

    The controls are traitlets of the widget: `view.m = 16` moves its slider. `view.static()` draws the same with matplotlib,
    for readers without a kernel. Raises ValueError for values outside of these ranges, and TypeError for what is none of
    the four.

    >>> explore(p=4, m=8)
    live view of 1F1B p=4 m=8: makespan 22, bubble 27.3 %, in flight 4 3 2 1
    >>> explore(Schedule.from_text("F0 F1 B0 B1\\nF0 B0 F1 B1"), ratio=2)
    live view of custom p=2 m=2: makespan 9, bubble 33.3 %, in flight 2 1
    """
    from ppedu.picture.live.explorer import Explorer
    from ppedu.picture.live.recorded import Ran, Recorded

    costs = {
        "v": v, "ratio": ratio, "w_share": w_share, "overlap": overlap, "transfer": transfer, "slow_stage": slow_stage,
        "slow_factor": slow_factor,
    }  # fmt: skip
    given = {name: value for name, value in (("p", p), ("m", m)) if value is not None}
    if isinstance(schedule, str | Schedule):
        return Explorer(schedule, **given, **costs)
    if not isinstance(schedule, Timeline | Ran):
        has = {"schedule": Schedule, "timeline": Timeline}
        parts = [f"its {part}" for part, kind in has.items() if isinstance(getattr(schedule, part, None), kind)]
        raise TypeError(
            "explore() shows a schedule by its name ('1f1b') or as a ppedu.Schedule, a ppedu.Timeline, or a run: got "
            f"{schedule!r:.80}" + (f". Give it {' or '.join(parts)}" if parts else "")
        )
    moved = [*given, *(name for name, value in costs.items() if value != (explore.__kwdefaults__ or {})[name])]
    if moved:
        raise ValueError(
            f"what is measured or simulated already has its times: leave out {', '.join(moved)}, or explore its schedule, "
            "whose costs can be moved"
        )
    return Recorded(schedule)
