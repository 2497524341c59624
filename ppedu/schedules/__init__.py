"""The schedules, each about as long as its explanation: (p ranks, m microbatches, v stages per rank) -> Schedule."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature

from ppedu.core.schedule import Schedule
from ppedu.schedules.basic import forward_only, gpipe, naive, one_f_one_b
from ppedu.schedules.dualpipe import dualpipe, dualpipev
from ppedu.schedules.interleaved import interleaved, looped_bfs
from ppedu.schedules.zero_bubble import zb_h1, zb_h2, zb_v

__all__ = [
    "SCHEDULES",
    "dualpipe",
    "dualpipev",
    "forward_only",
    "gpipe",
    "interleaved",
    "looped_bfs",
    "naive",
    "one_f_one_b",
    "zb_h1",
    "zb_h2",
    "zb_v",
]

SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "looped_bfs": looped_bfs,
    "zb_h1": zb_h1,
    "zb_h2": zb_h2,
    "zb_v": zb_v,
    "dualpipe": dualpipe,
    "dualpipev": dualpipev,
}
"""The schedules that train, by the names that the command line and the explorers use. All take p and m; interleaved and
looped_bfs take v as well. It is the one list of them: a builder that stands here is explored, compared, run and listed. Closed
forms (`ppedu.theory`) are added where there are any."""


def takes_v(build: Callable[..., Schedule]) -> bool:
    """Whether a builder takes v, the stages on each rank; the others have a fixed number.

    >>> [name for name, build in SCHEDULES.items() if takes_v(build)]
    ['interleaved', 'looped_bfs']
    """
    return "v" in signature(build).parameters
