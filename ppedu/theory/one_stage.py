"""Closed forms for one stage on each rank and B in one piece: GPipe and 1F1B alike, and naive.

Letters: p ranks, m microbatches; F and B the time of one microbatch's forward and backward on one stage. They hold for
stages of equal cost and messages that take no time.
"""

from __future__ import annotations

from ppedu.core.checks import whole
from ppedu.theory.forms import Case


def makespan(p: int, m: int, forward: float = 1.0, backward: float = 1.0) -> float:
    """(m + p - 1)(F + B): GPipe and 1F1B alike, for every m >= 1, m < p included. In the unit of F and B.

    The m microbatches pass through the last stage one after the other; the first one has p - 1 forwards to go before it
    is there, the last one p - 1 backwards after it left. Source: Megatron-LM, SC'21, section 2.2.1 and 2.2.2.

    >>> makespan(p=4, m=8), makespan(p=4, m=8, backward=2)
    (22.0, 33.0)
    """
    c = Case.of(p, m, 1, forward, backward)
    return (c.m + c.p - 1) * (c.f + c.b)


def naive_makespan(p: int, m: int = 1, forward: float = 1.0, backward: float = 1.0) -> float:
    """m p (F + B): one microbatch at a time goes down and up all stages. With m=1, F and B are the whole batch's.

    It is what one device would take for the same work. Source: it is the sum of all operations, no two of which overlap.

    >>> naive_makespan(p=4)
    8.0
    """
    c = Case.of(p, m, 1, forward, backward)
    return c.m * c.p * (c.f + c.b)


def idle_time(p: int, forward: float = 1.0, backward: float = 1.0) -> float:
    """(p - 1)(F + B): the idle time of each rank under GPipe and 1F1B, whatever m is. In the unit of F and B.

    Source: Megatron-LM, SC'21, section 2.2.1, t_pb.

    >>> idle_time(p=4)
    6.0
    """
    c = Case.of(p, 1, 1, forward, backward)
    return (c.p - 1) * (c.f + c.b)


def bubble_fraction(p: int, m: int) -> float:
    """(p - 1) / (m + p - 1): idle time over ranks x makespan, under GPipe and 1F1B, for every F and B.

    It is the share of the devices' time that is lost, below 1. Source: GPipe, section 2.3, O((K-1)/(M+K-1)).

    >>> bubble_fraction(p=4, m=8) == 3 / 11
    True
    """
    return (whole("p", p) - 1) / (whole("m", m) + p - 1)


def bubble_over_ideal(p: int, m: int) -> float:
    """(p - 1) / m: idle time over the time that the work alone takes, under GPipe and 1F1B, for every F and B.

    Papers call this the bubble too; it may exceed 1. Source: Megatron-LM, SC'21, section 2.2.1, t_pb / t_id.

    >>> bubble_over_ideal(p=4, m=8)
    0.375
    """
    return (whole("p", p) - 1) / whole("m", m)


def utilization(p: int, m: int) -> float:
    """m / (m + p - 1): the busy share of the devices' time under GPipe and 1F1B; 1 - `bubble_fraction`.

    >>> utilization(p=4, m=8) == 8 / 11
    True
    """
    return whole("m", m) / (m + whole("p", p) - 1)


def naive_utilization(p: int) -> float:
    """1 / p: one of p ranks works at any time, whatever m, F and B are. Source: as `naive_makespan`.

    >>> naive_utilization(p=4)
    0.25
    """
    return 1 / whole("p", p)
