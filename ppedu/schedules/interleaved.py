"""Several stages on each rank, in a ring: interleaved 1F1B and looped BFS.

Letters: p ranks, m microbatches, v stages per rank; stage s stands on rank s modulo p. F a forward, B a backward.
"""

from __future__ import annotations

from ppedu.core.checks import whole
from ppedu.core.operations import Action, Entry, Kind
from ppedu.core.schedule import Schedule
from ppedu.schedules.order_builder import Writing, ring


def interleaved(p: int, m: int, v: int = 2) -> Schedule:
    """Interleaved 1F1B: 1F1B over v stages per rank, which take turns (Narayanan et al., SC'21, section 2.2).

    A rank runs a round of about p microbatches on its first stage, the same on its second, and so on; then the next
    round. Backwards come in the same rounds, from the last stage to the first. Idle time shrinks to (p - 1)(F + B) / v,
    with F and B of all the rank's stages together; messages grow to v times as many.

    Any m: where p does not divide m, rounds are as equal as can be and hold p microbatches at least (torch wants them all
    equal, Megatron-LM all but the last p). With m < p there is one round, of m. v=1 is 1F1B.

    >>> print(interleaved(p=2, m=2, v=2))
    rank 0: 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
    rank 1: 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1
    """
    p, m, v = whole("p", p), whole("m", m), whole("v", v)
    rounds = max(1, m // p)
    sizes = [m // rounds + (i < m % rounds) for i in range(rounds)]

    def order(rank: int) -> tuple[Entry, ...]:
        mine = [rank + p * k for k in range(v)]
        forwards = [stage for size in sizes for stage in mine for _ in range(size)]
        backwards = [stage for size in sizes for stage in reversed(mine) for _ in range(size)]
        hops = p - 1 - rank  # to the last rank
        ahead = hops if v == 1 else (v - 1) * sizes[0] + 2 * hops
        warmup = min(ahead, m * v)
        write = Writing()
        for stage in forwards[:warmup]:
            write.run("F", stage)
        for forward, backward in zip(forwards[warmup:], backwards, strict=False):
            write.run("F", forward)
            write.run("B", backward)
        for stage in backwards[m * v - warmup :]:
            write.run("B", stage)
        return tuple(write.entries)

    return Schedule("interleaved 1F1B", m, ring(p, v), tuple(map(order, range(p))))


def looped_bfs(p: int, m: int, v: int = 2) -> Schedule:
    """Looped BFS: all microbatches on the rank's first stage, then all on its second, ...; and back in reverse
    (Lamy-Poirier, Breadth-First Pipeline Parallelism, 2022). Every rank keeps m v stage-microbatches, as under GPipe.

    One visit to a stage serves all microbatches, so that a rank whose weights are sharded gathers them once a pass.

    >>> print(looped_bfs(p=2, m=2, v=2))
    rank 0: 0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0
    rank 1: 1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0
    """
    p, m, v = whole("p", p), whole("m", m), whole("v", v)

    def order(rank: int) -> tuple[Entry, ...]:
        forwards = [Action(rank + p * k, Kind.F, i) for k in range(v) for i in range(m)]
        backwards = [Action(f.stage, Kind.B, f.microbatch) for f in reversed(forwards)]
        return (*forwards, *backwards)

    return Schedule("looped BFS", m, ring(p, v), tuple(map(order, range(p))))
