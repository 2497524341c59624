"""Closed forms for what is in flight under every schedule, by its name in `ppedu.SCHEDULES`.

Letters: p ranks, m microbatches, v stages per rank, i a rank from 0 to p - 1.
"""

from __future__ import annotations

from collections.abc import Callable

from ppedu.core.checks import whole


def peak_in_flight(name: str, p: int, m: int, v: int = 2) -> tuple[int, ...]:
    """The most microbatches whose activations a rank holds at one time, counted for each of its stages, one figure a rank.

    It depends on the order alone, never on times. The names are those of `ppedu.SCHEDULES`; v counts for interleaved and
    looped_bfs only. Sources: "1f1b" and "interleaved" SC'21, section 2.2 (there with p in place of a round's size, which
    is the same where p divides m); zero bubble as for `idle`, at most p, 2p - 1 and 2p; DualPipe's README, at most p + 1,
    and on half of the devices 2p + 1. Those bounds are reached for large m; below by counting. Raises ValueError for
    another name, and for an odd p with "dualpipe".

    >>> peak_in_flight("gpipe", p=4, m=8), peak_in_flight("1f1b", p=4, m=8)
    ((8, 8, 8, 8), (4, 3, 2, 1))
    >>> peak_in_flight("interleaved", p=4, m=8, v=2), peak_in_flight("zb_v", p=4, m=8)
    ((11, 9, 7, 5), (8, 8, 8, 8))
    """
    p, m, v = whole("p", p), whole("m", m), whole("v", v)
    round_size = -(-m // max(1, m // p))  # the largest, which comes first
    less = m // 2  # DualPipe: the share of the chain that starts at rank 0

    def both_ways(i: int) -> int:
        position, near = (i, less) if i < p / 2 else (p - 1 - i, m - less)
        return min(p + 1, near + min(m - near, position + 1))

    peaks: dict[str, Callable[[int], int]] = {
        "naive": lambda i: 1,
        "gpipe": lambda i: m,
        "1f1b": lambda i: min(p - i, m),
        "interleaved": lambda i: min(m * v, (2 if v > 1 else 1) * (p - i - 1) + (v - 1) * round_size + 1),
        "looped_bfs": lambda i: m * v,
        "zb_h1": lambda i: min(p, m),
        "zb_h2": lambda i: min(2 * p - 1, m),
        "zb_v": lambda i: min(2 * p, m + min(m, i + 1)),
        "dualpipe": both_ways,
        "dualpipev": lambda i: min(2 * p + 1, m + min(m, i + 1)),
    }
    if name not in peaks:
        raise ValueError(f"there is no closed form for the schedule {name!r}: the names are {', '.join(peaks)}")
    if name == "dualpipe" and p % 2:
        raise ValueError(f"DualPipe pairs rank r with rank p - 1 - r, so p is even: p={p}")
    return tuple(map(peaks[name], range(p)))


def peak_activations(name: str, p: int, m: int, v: int = 2) -> tuple[float, ...]:
    """`peak_in_flight` in units that compare schedules of one model: what a microbatch leaves on one p-th of the model.

    >>> peak_activations("interleaved", p=4, m=8, v=2), peak_activations("zb_v", p=4, m=8)
    ((5.5, 4.5, 3.5, 2.5), (4.0, 4.0, 4.0, 4.0))
    """
    stages = {"interleaved": v, "looped_bfs": v, "zb_v": 2, "dualpipev": 2}.get(name, 1)  # that a p-th is cut into
    return tuple(peak / stages for peak in peak_in_flight(name, p, m, v))
