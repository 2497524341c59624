"""Closed forms for what is in flight under every schedule, by its name in `ppedu.SCHEDULES`.

Letters: p ranks, m microbatches, v stages per rank, i a rank from 0 to p - 1.
"""

from __future__ import annotations

from ppedu.core.checks import whole
from ppedu.theory.formula import evaluate


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
    formula = peak_formula(name, p, m, v)
    letters = {"p": p, "m": m, "v": v}
    held = []
    for i in range(p):
        near, depth = (m // 2, i) if i < p / 2 else (m - m // 2, p - 1 - i)
        held.append(int(evaluate(formula, {**letters, "i": i, "near": near, "depth": depth})))
    return tuple(held)


def peak_formula(name: str, p: int, m: int, v: int = 2) -> str:
    """How `peak_in_flight` is written for rank i. DualPipe's has two more letters where m < 2p: near, the microbatches that
    start at the rank's end of the chain, and depth, how many ranks it is from there.

    >>> peak_formula("1f1b", p=4, m=8), peak_formula("interleaved", p=4, m=6)
    ('min(p - i, m)', 'min(m v, 2(p - i - 1) + (v - 1) 6 + 1)')
    """
    p, m, v = whole("p", p), whole("m", m), whole("v", v)
    first_round = -(-m // max(1, m // p))  # the largest
    formulas = {
        "naive": "1",
        "gpipe": "m",
        "1f1b": "min(p - i, m)",
        "interleaved": f"min(m v, 2(p - i - 1) + (v - 1) {'p' if first_round == p else first_round} + 1)",
        "looped_bfs": "m v",
        "zb_h1": "min(p, m)",
        "zb_h2": "min(2p - 1, m)",
        "zb_v": "min(2p, m + min(m, i + 1))",
        "dualpipe": "p + 1" if m >= 2 * p else "min(p + 1, near + min(m - near, depth + 1))",
        "dualpipev": "min(2p + 1, m + min(m, i + 1))",
    }
    if name not in formulas:
        raise ValueError(f"there is no closed form for the schedule {name!r}: the names are {', '.join(formulas)}")
    if name == "dualpipe" and p % 2:
        raise ValueError(f"DualPipe pairs rank r with rank p - 1 - r, so p is even: p={p}")
    return formulas["1f1b" if name == "interleaved" and v == 1 else name]


def peak_activations(name: str, p: int, m: int, v: int = 2) -> tuple[float, ...]:
    """`peak_in_flight` in units that compare schedules of one model: what a microbatch leaves on one p-th of the model.

    >>> peak_activations("interleaved", p=4, m=8, v=2), peak_activations("zb_v", p=4, m=8)
    ((5.5, 4.5, 3.5, 2.5), (4.0, 4.0, 4.0, 4.0))
    """
    stages = {"interleaved": v, "looped_bfs": v, "zb_v": 2, "dualpipev": 2}.get(name, 1)  # that a p-th is cut into
    return tuple(peak / stages for peak in peak_in_flight(name, p, m, v))
