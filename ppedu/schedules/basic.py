"""One stage on each rank, B in one piece: naive, GPipe, 1F1B, and forwards alone.

Letters: p ranks, m microbatches; F a forward, B a backward of one microbatch. Rank r holds stage r.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import TypeAlias

from ppedu.core.checks import whole
from ppedu.core.operations import Action, B, F, Kind
from ppedu.core.schedule import Schedule


def naive(p: int, m: int = 1) -> Schedule:
    """One microbatch at a time, down all stages and up again, before the next one starts: no overlap.

    m=1 is the whole batch going down and up once. One of p ranks is busy at any time.

    >>> print(naive(p=2, m=2))
    rank 0: F0 B0 F1 B1
    rank 1: F0 B0 F1 B1
    """
    return _one_stage_per_rank("naive", p, m, lambda rank, p, m: ((k, i) for i in range(m) for k in (F, B)))


def gpipe(p: int, m: int) -> Schedule:
    """All forwards, then all backwards (Huang et al., GPipe, 2019). Every rank keeps m activations.

    >>> print(gpipe(p=2, m=3))
    rank 0: F0 F1 F2 B0 B1 B2
    rank 1: F0 F1 F2 B0 B1 B2
    """
    return _one_stage_per_rank("GPipe", p, m, lambda rank, p, m: ((k, i) for k in (F, B) for i in range(m)))


def one_f_one_b(p: int, m: int) -> Schedule:
    """1F1B: a few forwards to fill the pipeline, then one forward, one backward, in turn (PipeDream-Flush;
    Narayanan et al., SC'21, section 2.2). Rank r keeps min(p - r, m) activations instead of GPipe's m.

    >>> print(one_f_one_b(p=2, m=3))
    rank 0: F0 F1 B0 F2 B1 B2
    rank 1: F0 B0 F1 B1 F2 B2
    """

    def order(rank: int, p: int, m: int) -> Iterable[tuple[Kind, int]]:
        warmup = min(p - 1 - rank, m)  # forwards that are on their way when the first backward comes back
        fill = ((F, i) for i in range(warmup))
        steady = chain.from_iterable(((F, warmup + i), (B, i)) for i in range(m - warmup))
        drain = ((B, i) for i in range(m - warmup, m))
        return chain(fill, steady, drain)

    return _one_stage_per_rank("1F1B", p, m, order)


def forward_only(p: int, m: int) -> Schedule:
    """Forwards alone, as in inference: the wave that every pipeline starts with.

    >>> print(forward_only(p=2, m=3))
    rank 0: F0 F1 F2
    rank 1: F0 F1 F2
    """
    return _one_stage_per_rank("forward only", p, m, lambda rank, p, m: ((F, i) for i in range(m)))


Order: TypeAlias = Callable[[int, int, int], Iterable[tuple[Kind, int]]]
"""(rank, p, m) -> what that rank runs."""


def _one_stage_per_rank(name: str, p: int, m: int, order: Order) -> Schedule:
    p, m = whole("p", p), whole("m", m)
    orders = tuple(tuple(Action(rank, kind, i) for kind, i in order(rank, p, m)) for rank in range(p))
    return Schedule(name, m, tuple(range(p)), orders)
