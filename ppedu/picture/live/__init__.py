"""Live views for notebooks: one widget each, with picture and controls, drawn in the browser from the same timelines.

This module is light: what a view needs (anywidget, and torch once "Run for real" is pressed) is imported when asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from ppedu.core.format import joined
from ppedu.core.schedule import Schedule
from ppedu.core.timeline import Timeline

if TYPE_CHECKING:
    from ppedu.picture.live.comparison import Comparison
    from ppedu.picture.live.explorer import Explorer
    from ppedu.picture.live.real_run import Trainer
    from ppedu.picture.live.recorded import Recorded
    from ppedu.runtime.run import Run

__all__ = ["explore", "explore_compare"]


@overload
def explore(schedule: Timeline | Run) -> Recorded: ...
@overload
def explore(
    schedule: str | Schedule = ..., p: int = ..., m: int = ..., *, train: Trainer | None = ..., **settings: Any
) -> Explorer: ...
def explore(
    schedule: str | Schedule | Timeline | Run = "1f1b",
    p: int | None = None,
    m: int | None = None,
    *,
    train: Trainer | None = None,
    **settings: Any,
) -> Explorer | Recorded:
    """A live view of one schedule: move p and m, ask any operation or bubble why, play it, and run it for real.

    schedule: a name of `ppedu.SCHEDULES`; or a Schedule of your own, whose p and m stand still while its costs move; or
        what is there already, and cannot be moved: a Timeline, or a run (of `ppedu.train`), whose last timeline is shown
        beside the simulation of its pace, or, without a pace, of what its operations took. These two take no more arguments.
    p: ranks, 1 to 16, by default 4. m: microbatches, 1 to 64, by default 8.
    train: what "Run for real" trains: `ppedu.course.train_course`, or a function of yours as `Trainer` in
        `ppedu.picture.live.real_run` says. Without it that button is off.

    settings, with which p and m are the controls of the view and its traitlets (`view.m = 16` moves its slider):
    v: stages on each rank, 1 to 4, at first 2, where the schedule takes it. The unit of time is an F of 1/p of the model; of
        more than p stages each takes its share of that.
    ratio: how many times as long as F a B takes, at first 1. transfer: how long a tensor travels, in units of F, at first 0.
    w_share: the share of B that W takes, where the schedule splits B, at first 0.5; I takes the rest.
    overlap: what an overlapped pair F&B takes of F + B, where the schedule has pairs: 1, as at first, on a single stream,
        where nothing overlaps; less with kernels that do.
    slow_stage: the rank of a stage that takes `slow_factor` (2) times as long as the others; None for none. Where a rank
        holds several stages, all of them are slow.

    `view.static()` draws the same with matplotlib, for readers without a kernel. Raises ValueError for values outside of
    these ranges, and TypeError for other settings, and for what is none of the four.

    >>> explore(p=4, m=8)
    live view of 1F1B p=4 m=8: makespan 22, bubble 27.3 %, in flight 4 3 2 1
    >>> explore(Schedule.from_text("F0 F1 B0 B1\\nF0 B0 F1 B1"), ratio=2)
    live view of custom p=2 m=2: makespan 9, bubble 33.3 %, in flight 2 1
    """
    from ppedu.picture.live.explorer import Explorer
    from ppedu.picture.live.recorded import Recorded
    from ppedu.runtime.run import Run

    settings = _checked("explore", p, m, settings)
    if isinstance(schedule, str | Schedule):
        return Explorer(schedule, train=train, **settings)
    if not isinstance(schedule, Timeline | Run):
        has = {"schedule": Schedule, "timeline": Timeline}
        parts = [f"its {part}" for part, kind in has.items() if isinstance(getattr(schedule, part, None), kind)]
        raise TypeError(
            "explore() shows a schedule by its name ('1f1b') or as a ppedu.Schedule, a ppedu.Timeline, or a run: got "
            f"{schedule!r:.80}" + (f". Give it {joined(parts, 'or')}" if parts else "")
        )
    given = settings | ({"train": train} if train else {})
    if given:
        raise ValueError(
            f"what is measured or simulated already has its times: leave out {joined(given)}, or explore its schedule, "
            "whose costs can be moved"
        )
    return Recorded(schedule)


def explore_compare(
    schedules: Sequence[str | Schedule] = ("gpipe", "1f1b"),
    p: int | None = None,
    m: int | None = None,
    *,
    budget: int | None = None,
    train: Trainer | None = None,
    **settings: Any,
) -> Comparison:
    """A live view of two or three schedules on one time axis, at the same costs, with what each of them holds in memory.

    schedules: names of `ppedu.SCHEDULES`, and Schedules of your own, which have one p and m. budget: activations in flight
    that a rank has room for; the view then shows how many microbatches each schedule affords. train and settings are those
    of `ppedu.explore`; so are `static()`, the traitlets, and the errors.

    Where stages are of different size (with v stages on each rank there are v times as many), memory is counted in what a
    microbatch leaves on 1/p of the model, as `Timeline.peak_activations` does.

    >>> explore_compare(p=4, m=8).verdict[0]
    'The same makespan, 22; other memory: a rank holds up to 8 microbatches with GPipe, 4 with 1F1B.'
    >>> mine = Schedule.from_text("F0 F1 B1 B0\\nF0 B0 F1 B1", name="mine")
    >>> explore_compare(["1f1b", mine], ratio=2).verdict[0]
    'Makespan: 1F1B 9, mine 11; a rank holds up to 2 with each.'
    """
    from ppedu.picture.live.comparison import Comparison

    settings = _checked("explore_compare", p, m, settings)
    return Comparison(schedules, train=train, budget=budget, **settings)


def _checked(function: str, p: int | None, m: int | None, settings: dict[str, Any]) -> dict[str, Any]:
    """All settings that are given, or TypeError for one that there is not."""
    from ppedu.picture.live.settings import DEFAULTS

    unknown = [name for name in settings if name not in DEFAULTS]
    if unknown:
        raise TypeError(f"{function}() has no setting {unknown[0]!r}: the settings are {joined(DEFAULTS)}")
    return {name: value for name, value in (("p", p), ("m", m)) if value is not None} | settings
