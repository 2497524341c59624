"""Pictures of timelines, to be put on a slide: what ran when on which rank, what waited, what was held in memory.

Each function returns the Axes that it drew on, saves nothing, shows nothing and leaves matplotlib's settings as they
were. Without `ax` it opens one pyplot figure, which a notebook shows once. `ax.get_label()` is the picture's text twin,
one line a timeline: an alt text, and what the figure prints as. `str(timeline)` has every operation.
Lengths below are in points (1/72 inch).
Letters: p ranks, m microbatches; F forward, B backward, I and W its halves (B = I + W).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes

from ppedu.core.timeline import Timeline
from ppedu.picture.paper.lanes import draw_lanes
from ppedu.picture.paper.memory import draw_memory, sizes_of
from ppedu.picture.scene import Scene, path, scene, tracks_of

__all__ = ["plot_compare", "plot_memory", "plot_timeline"]


def plot_timeline(
    t: Timeline,
    measured: Timeline | None = None,
    *,
    in_flight: bool = False,
    phases: bool = True,
    critical_path: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw what each rank runs over time. Every rank has a lane; what is shaded in it is bubble.

    measured: a second timeline of the same schedule, drawn under the first one, both from their first start.
    in_flight: a strip under each lane with the activations in flight over time; the peak stands at its right.
    phases: mark warm-up, steady and cool-down, by time, of the (first) timeline.
    critical_path: outline the chain of operations that the makespan is made of (the second one's, where there are two).
    ax: where to draw; by default on a figure of its own, as high as the ranks need.

    Numbers are left out where boxes are too narrow for them. Raises ValueError for two timelines with different
    numbers of ranks, or whose units cannot be compared.

    >>> from ppedu import one_f_one_b, simulate
    >>> ax = plot_timeline(simulate(one_f_one_b(p=4, m=8)))
    >>> ax.get_title(loc="left")
    '1F1B   makespan 22   bubble 27.3 %   in flight 4 3 2 1'
    >>> from matplotlib import pyplot as plt; plt.close(ax.figure)
    """
    timelines = _several((t,) if measured is None else (t, measured))
    if len({one.schedule.num_ranks for one in timelines}) > 1:
        raise ValueError(
            f"two timelines on one axis need the same ranks: {timelines[0].label} has "
            f"{timelines[0].schedule.num_ranks}, {timelines[1].label} has {timelines[1].schedule.num_ranks}. "
            "Use plot_compare to stack them"
        )
    return draw_lanes(_scene([timelines], critical_path), _twin(timelines), False, in_flight, phases, ax)


def plot_compare(
    timelines: Sequence[Timeline],
    *,
    in_flight: bool = True,
    phases: bool = False,
    critical_path: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Stack several timelines on one Axes, with one time axis and one scale for what is in flight.

    Each has its figures as a heading. The options are those of `plot_timeline`. Raises ValueError for no timelines, or
    units that cannot be compared.

    >>> from ppedu import gpipe, one_f_one_b, simulate
    >>> ax = plot_compare([simulate(gpipe(p=4, m=8)), simulate(one_f_one_b(p=4, m=8))])
    >>> print(ax.get_label())
    GPipe p=4 m=8: makespan 22, bubble 27.3 %, in flight 8 8 8 8
    1F1B p=4 m=8: makespan 22, bubble 27.3 %, in flight 4 3 2 1
    >>> from matplotlib import pyplot as plt; plt.close(ax.figure)
    """
    timelines = _several(timelines)
    shown = _scene([(t,) for t in timelines], critical_path)
    return draw_lanes(shown, _twin(timelines), True, in_flight, phases, ax)


def plot_memory(
    timelines: Timeline | Sequence[Timeline],
    *,
    rank: int | None = None,
    bytes_per_microbatch: float | Sequence[float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw what ranks hold in memory: the peak of every rank as bars, or one rank over time.

    rank: draw this rank's activations in flight over time instead, one line a timeline.
    bytes_per_microbatch: bytes that one activation in flight takes, one number or one a rank; the axis is then bytes.

    Where a rank holds several stages, one activation is that of one microbatch on one stage. Raises ValueError for no
    timelines, a rank that one of them lacks, or bytes that are not one number a rank.

    >>> from ppedu import gpipe, one_f_one_b, simulate
    >>> ax = plot_memory([simulate(gpipe(p=4, m=8)), simulate(one_f_one_b(p=4, m=8))])
    >>> ax.get_ylabel()
    'peak in flight (microbatches)'
    >>> from matplotlib import pyplot as plt; plt.close(ax.figure)
    """
    timelines = _several(timelines)
    counts = [t.schedule.num_ranks for t in timelines]
    if rank is not None and not 0 <= rank < min(counts):
        raise ValueError(f"rank {rank} is not there: the timelines have ranks 0 to {min(counts) - 1}")
    sizes = sizes_of(bytes_per_microbatch, max(counts))
    return draw_memory(_scene([(t,) for t in timelines]), timelines, rank, sizes, ax)


def _several(timelines: Timeline | Sequence[Timeline]) -> tuple[Timeline, ...]:
    if isinstance(timelines, Timeline):
        return (timelines,)
    given = tuple(timelines) if isinstance(timelines, Iterable) else (timelines,)
    if not all(isinstance(t, Timeline) for t in given):
        raise TypeError("pictures are drawn of timelines: simulate(schedule) returns one, and a run has run.timeline")
    if not given:
        raise ValueError("there is nothing to draw: give at least one timeline")
    return given


def _scene(groups: Sequence[Sequence[Timeline]], critical_path: bool = False) -> Scene:
    """What is drawn of groups that share their ranks. critical_path: of the last one of each group."""
    tracks = tracks_of(groups)
    sizes = {track.timeline.schedule.stage_size for track in tracks}
    drawn = scene(1, tracks, whole=False, activations=len(sizes) > 1)
    for one, track in zip(drawn["tracks"], tracks, strict=True):
        if critical_path and track.timeline is groups[track.group][-1]:
            one["path"] = path(track)
    return drawn


def _twin(timelines: Sequence[Timeline]) -> str:
    return "\n".join(map(repr, timelines))
