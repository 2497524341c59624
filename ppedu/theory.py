"""The closed forms that papers give for a schedule's time and memory, each with the conditions under which it holds.

Letters: p ranks, m microbatches, i the stage from 0 to p-1; F and B the time of one microbatch's forward and backward on
one stage. All of them hold for stages of equal cost, one stage on each rank, and messages that take no time; where one of
these fails, simulate. Sources: GPipe (Huang et al., 2019); PipeDream-Flush (Narayanan et al., "Memory-Efficient
Pipeline-Parallel DNN Training", 2021); Megatron-LM (Narayanan et al., "Efficient Large-Scale Language Model Training on
GPU Clusters Using Megatron-LM", SC'21, section 2.2).
"""

from __future__ import annotations

import math


def makespan(p: int, m: int, forward: float = 1.0, backward: float = 1.0) -> float:
    """(m + p - 1)(F + B): GPipe and 1F1B alike, for every m >= 1, m < p included. In the unit of F and B.

    The m microbatches pass through the last stage one after the other; the first one has p - 1 forwards to go before it
    is there, the last one p - 1 backwards after it left. Source: Megatron-LM, SC'21, section 2.2.1 and 2.2.2.

    >>> makespan(p=4, m=8), makespan(p=4, m=8, backward=2)
    (22.0, 33.0)
    """
    return (_count(m=m) + _count(p=p) - 1) * _both(forward, backward)


def naive_makespan(p: int, m: int = 1, forward: float = 1.0, backward: float = 1.0) -> float:
    """m p (F + B): one microbatch at a time goes down and up all stages. With m=1, F and B are the whole batch's.

    It is what one device would take for the same work. Source: it is the sum of all operations, no two of which overlap.

    >>> naive_makespan(p=4)
    8.0
    """
    return _count(m=m) * _count(p=p) * _both(forward, backward)


def idle_time(p: int, forward: float = 1.0, backward: float = 1.0) -> float:
    """(p - 1)(F + B): the idle time of each rank under GPipe and 1F1B, whatever m is. In the unit of F and B.

    Source: Megatron-LM, SC'21, section 2.2.1, t_pb.

    >>> idle_time(p=4)
    6.0
    """
    return (_count(p=p) - 1) * _both(forward, backward)


def bubble_fraction(p: int, m: int) -> float:
    """(p - 1) / (m + p - 1): idle time over ranks x makespan, under GPipe and 1F1B, for every F and B.

    It is the share of the devices' time that is lost, below 1. Source: GPipe, section 2.3, O((K-1)/(M+K-1)).

    >>> bubble_fraction(p=4, m=8) == 3 / 11
    True
    """
    return (_count(p=p) - 1) / (_count(m=m) + p - 1)


def bubble_over_ideal(p: int, m: int) -> float:
    """(p - 1) / m: idle time over the time that the work alone takes, under GPipe and 1F1B, for every F and B.

    Papers call this the bubble too; it may exceed 1. Source: Megatron-LM, SC'21, section 2.2.1, t_pb / t_id.

    >>> bubble_over_ideal(p=4, m=8)
    0.375
    """
    return (_count(p=p) - 1) / _count(m=m)


def utilization(p: int, m: int) -> float:
    """m / (m + p - 1): the busy share of the devices' time under GPipe and 1F1B; 1 - `bubble_fraction`.

    >>> utilization(p=4, m=8) == 8 / 11
    True
    """
    return _count(m=m) / (m + _count(p=p) - 1)


def naive_utilization(p: int) -> float:
    """1 / p: one of p ranks works at any time, whatever m, F and B are. Source: as `naive_makespan`.

    >>> naive_utilization(p=4)
    0.25
    """
    return 1 / _count(p=p)


def peak_in_flight(name: str, p: int, m: int) -> tuple[int, ...]:
    """The most microbatches whose activations stage i holds at one time, one figure a stage; for every F and B.

    "naive": 1. "gpipe": m. "1f1b": min(p - i, m). Source: Megatron-LM, SC'21, section 2.2.1 (at most p in place of m).
    The names are those of `ppedu.SCHEDULES`. Raises ValueError for another name.

    >>> peak_in_flight("gpipe", p=4, m=8), peak_in_flight("1f1b", p=4, m=8)
    ((8, 8, 8, 8), (4, 3, 2, 1))
    """
    stages, m = range(_count(p=p)), _count(m=m)
    peaks = {
        "naive": tuple(1 for _ in stages),
        "gpipe": tuple(m for _ in stages),
        "1f1b": tuple(min(p - i, m) for i in stages),
    }
    if name not in peaks:
        raise ValueError(f"there is no closed form for the schedule {name!r}: the names are {', '.join(peaks)}")
    return peaks[name]


def _count(**given: object) -> int:
    (letter, value), *_ = given.items()
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        what = {"p": "ranks", "m": "microbatches"}[letter]
        raise ValueError(f"{letter} is the number of {what}, a whole number of at least 1: {letter}={value!r}")
    return value


def _both(forward: float, backward: float) -> float:
    for name, time in (("forward", forward), ("backward", backward)):
        if not math.isfinite(time) or time < 0:
            raise ValueError(f"{name} is the time of one operation, a number of at least 0: {name}={time!r}")
    return float(forward + backward)
