"""Bidirectional: microbatches enter at both ends, and a forward of one direction runs beside a backward of the other.

DeepSeek-AI, DualPipe (2025), and its half, DualPipeV. An overlapped pair is one slot. On a device that runs one stream of
work, as a CPU process or a plain CUDA stream does, its two halves run one after the other; what the paper gains there comes
from kernels that compute one half while the other's messages (between experts) are on their way. Letters: p ranks, m microbatches; F forward, B backward, I and W its
halves (input's and weights' gradient), F&B an overlapped pair.
"""

from __future__ import annotations

from ppedu.core.checks import whole
from ppedu.core.operations import Action, Entry, Overlap
from ppedu.core.schedule import Schedule
from ppedu.schedules.order_builder import Writing, only, vee


def dualpipe(p: int, m: int) -> Schedule:
    """DualPipe: two copies of the chain of stages, one down the ranks and one up, each with half of the microbatches.

    Every rank holds two stages, one of each copy, so weights are held twice; the copies' gradients are summed before
    the optimizer step. p is even. Below 2p microbatches it is the order for 2p without those that are not there.

    >>> print(dualpipe(p=2, m=4))
    rank 0: 0F0 3F2 0F1 3B2 3F3&0B0 3B3 0I1 0W1
    rank 1: 2F2 1F0 2F3 1B0 1F1&2B2 1B1 2I3 2W3
    """
    p, m = whole("p", p), whole("m", m)
    if p % 2:
        raise ValueError(
            f"DualPipe pairs rank r with rank p - 1 - r, so p is even: p={p}. Take p={p + 1}"
            + (f" or p={p - 1}" if p > 1 else "")
            + ", or dualpipev, which takes any p"
        )
    first, second = m // 2, m - m // 2  # the chains' shares of the microbatches

    def order(rank: int) -> tuple[Entry, ...]:
        near, far = sorted((rank, 2 * p - 1 - rank), reverse=rank >= p // 2)
        written = _order(min(rank, p - 1 - rank), p // 2, max(p, second), near, far)
        there = {stage: first if stage < p else second for stage in (near, far)}
        return tuple(_moved(entry, p, first) for entry in only(written, there))

    return Schedule("DualPipe", m, vee(p), tuple(map(order, range(p))), chains=2)


def dualpipev(p: int, m: int) -> Schedule:
    """DualPipeV: DualPipe cut in half. One chain of 2p stages goes down the ranks and up again, as in ZB-V, and the turn
    takes the place of the other half of the ranks: no weights are held twice.

    Below 2p microbatches it is the order for 2p without those that are not there.

    >>> print(dualpipev(p=1, m=2))
    rank 0: 0F0 1F0 0F1 1B0 1F1&0B0 1B1 0I1 0W1
    """
    p, m = whole("p", p), whole("m", m)
    orders = tuple(
        only(_order(rank, p, max(m, 2 * p), rank, 2 * p - 1 - rank), {rank: m, 2 * p - 1 - rank: m})
        for rank in range(p)
    )
    return Schedule("DualPipeV", m, vee(p), orders)


def _order(position: int, length: int, n: int, near: int, far: int) -> list[Entry]:
    """What one rank of half a DualPipe runs: `length` ranks from an end, at `position` 0, to the turn, in both directions.

    near: the stage that microbatches reach on their way from the end, far: the one that they reach on their way back.
    """
    behind = length - 1 - position  # ranks between this one and the turn
    write = Writing()
    for _ in range(2 * behind):  # fill
        write.run("F", near)
    for _ in range(position + 1):
        write.run("F", near)
        write.run("F", far)
    for _ in range(behind):  # the first that come back; W fills the wait for the next one
        write.run("I", far)
        write.run_oldest_w()
        write.run("F", far)
    for i in range(n - 2 * length + position + 1):  # both directions in pairs
        if i == 0 and behind == 0:  # at the turn the first pair waits for itself: run apart, it ends sooner
            write.run("F", near)
            write.run("B", far)
        else:
            write.run_pair(near, far)
        write.run_pair(far, near)
    for _ in range(behind):  # no F is left on the near stage
        write.run("B", far)
        write.run_pair(far, near)
    for i in range(2 * position + 2):  # nor on the far one: B at first, then I, with W put off
        write.run("B" if i <= position else "I", near if i % 2 else far)
    for _ in range(behind):
        write.run_oldest_w()
        write.run("I", near)
    for _ in range(position + 1):
        write.run_oldest_w()
    return write.entries


def _moved(entry: Entry, p: int, by: int) -> Entry:
    """The entry with the microbatches of the second chain, stages p and up, counted from `by`."""
    moved = [Action(a.stage, a.kind, a.microbatch + (by if a.stage >= p else 0)) for a in entry.actions]
    return Overlap(*moved) if isinstance(entry, Overlap) else moved[0]
