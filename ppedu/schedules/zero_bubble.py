"""Zero bubble: the backward is split into I and W, and W, for which nobody waits, fills the bubble.

Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024; their B is the I here. Letters: p ranks, m microbatches;
F forward, I gradient of the input, W gradient of the weights (B = I + W). Activations are kept until W.
"""

from __future__ import annotations

from ppedu.core.checks import whole
from ppedu.core.operations import Entry
from ppedu.core.schedule import Schedule
from ppedu.schedules.order_builder import Writing, only, vee


def zb_h1(p: int, m: int) -> Schedule:
    """ZB-H1: 1F1B in which rank r puts each W off by r microbatches: idle (p - 1)(F + I - W), memory of 1F1B's rank 0.

    >>> print(zb_h1(p=2, m=3))
    rank 0: F0 F1 I0 W0 F2 I1 W1 I2 W2
    rank 1: F0 I0 F1 I1 W0 F2 I2 W1 W2
    """
    return _handmade("ZB-H1", p, m, slack=1)


def zb_h2(p: int, m: int) -> Schedule:
    """ZB-H2: twice the forwards ahead and twice the delay of ZB-H1. With F=I=W and 2p - 1 microbatches or more no rank
    idles between its first and its last operation; each keeps up to 2p - 1 activations.

    Ranks start and end staggered: the gain shows where the optimizer step does not wait for all of them.

    >>> print(zb_h2(p=2, m=3))
    rank 0: F0 F1 F2 I0 W0 I1 W1 I2 W2
    rank 1: F0 I0 F1 I1 F2 I2 W0 W1 W2
    """
    return _handmade("ZB-H2", p, m, slack=2)


def _handmade(name: str, p: int, m: int, slack: int) -> Schedule:
    """Rank r runs `slack` forwards ahead for each rank below it, and puts W off by `slack` microbatches for each above."""
    p, m = whole("p", p), whole("m", m)

    def order(rank: int) -> tuple[Entry, ...]:
        ahead, delay = slack * (p - 1 - rank), slack * rank
        write = Writing()
        for _ in range(min(ahead, m)):
            write.run("F", rank)
        for i in range(m):
            if i + ahead < m:
                write.run("F", rank)
            write.run("I", rank)
            if i >= delay:
                write.run("W", rank)
        for _ in range(min(delay, m)):
            write.run("W", rank)
        return tuple(write.entries)

    return Schedule(name, m, tuple(range(p)), tuple(map(order, range(p))))


def zb_v(p: int, m: int) -> Schedule:
    """ZB-V: two stages on each rank, down the ranks and up again, so that a microbatch's first backward starts on the rank
    that ran its first forward. With F=I=W and 2p - 1 microbatches or more no rank idles between its first and its last
    operation, in 1F1B's memory: 2p stage-microbatches of half the size. (Qi et al., Pipeline Parallelism with
    Controllable Memory, 2024.)

    Below 2p - 1 microbatches it is the order for 2p - 1 without those that are not there, as torch has it.

    >>> print(zb_v(p=2, m=2))
    rank 0: 0F0 0F1 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 0I1 0W1
    rank 1: 1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1
    """
    p, m = whole("p", p), whole("m", m)
    n = max(m, 2 * p - 1)

    def order(rank: int) -> tuple[Entry, ...]:
        down, up = rank, 2 * p - 1 - rank
        below = p - 1 - rank
        write = Writing()
        for _ in range(2 * below + 1):  # until the first microbatch has been down and up again
            write.run("F", down)
        for _ in range(rank):
            write.run("F", up)
            write.run("F", down)
        for _ in range(below + 1):  # the up stage ends first: its backwards can start
            write.run("FIW", up)
        for i in range(n - p):  # down and up in turn
            if i < n - (2 * p - 1 - rank):
                write.run("F", down)
            write.run("IW", down)
            write.run("FIW", up)
        for _ in range(rank):  # the others wait for these: W can follow
            write.run("I", down)
            write.run("I", up)
        for _ in range(below + 1):
            write.run("IW", down)
        for stage in (up, down):
            for _ in range(rank):
                write.run("W", stage)
        return tuple(write.entries)

    orders = tuple(only(order(rank), dict.fromkeys(range(2 * p), m)) for rank in range(p))
    return Schedule("ZB-V", m, vee(p), orders)
