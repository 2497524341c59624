"""The builders against torch.distributed.pipelining's own orders, asked for over a wide range of p, m and v.

torch writes a rank's order from a few numbers of the schedule object, so no stage and no process group is needed for it.
Not compared: its Schedule1F1B, whose describing order is wrong on the last rank in 2.13 (what it runs is right).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining import schedules as theirs

from ppedu.core.costs import Costs
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.core.text import parse_entry
from ppedu.schedules import dualpipev, interleaved, looped_bfs, zb_v

pytestmark = pytest.mark.slow

RANKS, MICROBATCHES = (1, 2, 3, 4, 5, 8, 12), range(1, 41)


def torchs(name: str, p: int, m: int, v: int, **more: Any) -> tuple[tuple[object, ...], ...]:
    """The order of each rank by torch's class `name`, without its idle slots."""
    kind = getattr(theirs, name, None)
    if kind is None:
        pytest.skip(f"this torch has no {name}")
    numbers: dict[str, Any] = {
        "pp_group_size": p,
        "n_local_stages": v,
        "num_stages": p * v,
        "_n_microbatches": m,
        "_stages": [SimpleNamespace()] * v,
        **more,
    }
    schedule = object.__new__(kind)
    for word, number in numbers.items():
        setattr(schedule, word, number)
    orders = (schedule._calculate_single_rank_operations(rank) for rank in range(p))
    return tuple(tuple(parse_entry(str(action)) for action in order if action is not None) for order in orders)


@pytest.mark.parametrize("v", [1, 2, 3, 4])
@pytest.mark.parametrize("p", RANKS)
def test_interleaved(p, v):
    """torch takes an m that its number of rounds divides; there the orders are equal, so ours is no slower."""
    refused = 0
    for m in MICROBATCHES:
        rounds = max(1, m // p)  # ScheduleInterleaved1F1B.__init__
        if m % rounds:
            refused += 1
        elif v > 1:
            orders = torchs(
                "ScheduleInterleaved1F1B", p, m, v, number_of_rounds=rounds, microbatches_per_round=m // rounds
            )
            assert interleaved(p=p, m=m, v=v).orders == orders
    assert (refused == 0) == (p == 1)  # p=1 has rounds of one, which divide everything


@pytest.mark.parametrize("p", RANKS)
def test_interleaved_with_one_stage_keeps_fewer_activations_than_torchs(p):
    """torch goes on with two forwards a hop where v is 1; 1F1B needs one, and takes as long."""
    for m in (p, 2 * p, 4 * p):
        rounds = max(1, m // p)
        orders = torchs("ScheduleInterleaved1F1B", p, m, 1, number_of_rounds=rounds, microbatches_per_round=m // rounds)
        ours = interleaved(p=p, m=m, v=1)
        other = Schedule("torch's", m, ours.rank_of_stage, orders)
        mine, its = (simulate(each, Costs(backward=2)) for each in (ours, other))
        assert mine.makespan == its.makespan
        assert max(mine.peak_in_flight) == min(p, m)
        assert max(its.peak_in_flight) == min(2 * p - 1, m)


@pytest.mark.parametrize("v", [1, 2, 3, 4])
@pytest.mark.parametrize("p", RANKS)
def test_looped_bfs(p, v):
    for m in MICROBATCHES:
        assert looped_bfs(p=p, m=m, v=v).orders == torchs("ScheduleLoopedBFS", p, m, v)


@pytest.mark.parametrize("p", RANKS)
def test_zb_v(p):
    for m in MICROBATCHES:
        assert zb_v(p=p, m=m).orders == torchs("ScheduleZBVZeroBubble", p, m, 2)


@pytest.mark.parametrize("p", RANKS)
def test_dualpipev(p):
    """torch takes at least as many microbatches as stages."""
    for m in (m for m in (*MICROBATCHES, 100) if m >= 2 * p):
        assert dualpipev(p=p, m=m).orders == torchs("ScheduleDualPipeV", p, m, 2)
