"""Cutting a row of costs into p consecutive parts, the largest as small as can be: exact, and without torch."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from math import inf, lcm
from typing import TypeAlias

from ppedu.core.checks import whole


def balance(costs: Sequence[float], p: int) -> tuple[int, ...]:
    """How many layers each of `p` stages takes, so that the largest stage costs as little as can be. Exact.

    Each stage takes at least one layer. Of several best answers the most even one: the least sum of squares of the
    stages' costs, then of their numbers of layers, then the one whose first stages are the shortest.
    costs: one a layer, in any unit, at least 0. Raises ValueError for other costs, p < 1 and p above their number.

    >>> balance([1, 1, 1, 1, 5, 1, 1], p=3)
    (4, 1, 2)
    """
    check_stages(p, len(costs))
    for index, cost in enumerate(costs):
        if not 0 <= cost < inf:
            raise ValueError(f"a cost is a finite number of at least 0: that of layer {index} is {cost!r}")
    exact = [Fraction(cost) for cost in costs]  # float sums round: two equal stages could come out different
    unit = lcm(*(cost.denominator for cost in exact))
    units = [int(cost * unit) for cost in exact]
    return _most_even(units, p, _least_bound(units, p))


def check_stages(p: object, layers: int, hint: str = "") -> None:
    """Raise ValueError where `layers` layers cannot make `p` stages; `hint` goes to the end of the sentence."""
    p = whole("p", p, "the number of stages")
    if not layers:
        raise ValueError("the model has no layers: give nn.Sequential(...) or a list with at least one a stage")
    if p > layers:
        raise ValueError(
            f"each stage holds at least one layer, but p={p} stages are more than the {layers} layers. "
            f"Take p of at most {layers}, or a model with more layers{hint}"
        )


def _least_bound(costs: list[int], p: int) -> int:
    """The cost of the largest stage in the best split, by bisection."""

    def stages_needed(bound: int) -> int:
        stages, room = 1, bound
        for cost in costs:
            if cost > room:
                stages, room = stages + 1, bound
            room -= cost
        return stages

    low, high = max(costs), sum(costs)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if stages_needed(middle) <= p else (middle + 1, high)
    return low


_Cut: TypeAlias = tuple[int, int, tuple[int, ...]]
"""Sum of squares of the stages' costs, that of their sizes, and the sizes: compared in this order."""


def _most_even(costs: list[int], p: int, bound: int) -> tuple[int, ...]:
    """The most even split in which no stage costs more than `bound`, built stage by stage (dynamic programming)."""
    until = (0, *accumulate(costs))
    best: dict[int, _Cut] = {0: (0, 0, ())}  # layers taken so far -> the best way to cut them
    for _ in range(p):
        longer: dict[int, _Cut] = {}
        for end in range(1, len(until)):
            found: _Cut | None = None
            for start in range(end - 1, -1, -1):
                load = until[end] - until[start]
                if load > bound:
                    break
                if start in best:
                    loads, sizes, cut = best[start]
                    candidate = (loads + load * load, sizes + (end - start) ** 2, cut)
                    found = candidate if found is None else min(found, candidate)
            if found is not None:
                loads, sizes, cut = found
                longer[end] = (loads, sizes, (*cut, end - sum(cut)))
        best = longer
    return best[len(costs)][2]
