"""Sums of gradients among the ranks that hold copies of a stage: the same numbers on each, and no circle of waits."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from orders import StuckError, dualpipe, legal_schedules
from runtime_helpers import batch, in_ranks, mse
from torch import Tensor, nn
from two_chains import adamw, blocks, train_as_plain, two_ways

import ppedu
from ppedu.core.operations import Action
from ppedu.core.schedule import Schedule
from ppedu.runtime.processes.rank_main import Context
from ppedu.runtime.rank import heartbeat as board
from ppedu.runtime.rank.group import Group
from ppedu.runtime.rank.job import Job, Work
from ppedu.runtime.rank.replicas import all_reduce, any_of, copy_sets, sum_gradients


def replicated(schedule: Schedule, copies: int) -> Schedule:
    """A schedule several times side by side, each on ranks of its own with its share of the microbatches: data parallelism."""
    assert schedule.chains == 1
    m, n, p = schedule.num_microbatches, schedule.num_stages, schedule.num_ranks

    def moved(action: Action, k: int) -> Action:
        return Action(action.stage + k * n, action.kind, action.microbatch + k * m)

    orders = [tuple(moved(a, k) for e in order for a in e.actions) for k in range(copies) for order in schedule.orders]
    rank_of = tuple(rank + k * p for k in range(copies) for rank in schedule.rank_of_stage)
    return Schedule(f"{copies} x {schedule.name}", m * copies, rank_of, tuple(orders), chains=copies)


def test_sets_of_ranks():
    """Ranks 0 and 3 hold stages 0 and 3, 1 and 2 hold 1 and 2: mirror images, each set once."""
    assert copy_sets(dualpipe()) == [(0, 3), (1, 2)]
    assert copy_sets(two_ways(1, 2)) == []
    assert copy_sets(two_ways(3, 2)) == [(0, 2)]
    assert copy_sets(ppedu.gpipe(4, 4)) == []
    assert copy_sets(replicated(ppedu.zb_v(2, 4), 3)) == [(0, 2, 4), (1, 3, 5)]


def replay(lists: dict[int, list[tuple[int, ...]]]) -> int:
    """An all-reduce waits for all of its ranks, and a rank does one thing at a time. How many were done."""
    left = {rank: list(todo) for rank, todo in lists.items()}
    done = 0
    while any(left.values()):
        able = [todo[0] for todo in left.values() if todo and all(left[r][:1] == [todo[0]] for r in todo[0])]
        if not able:
            raise StuckError("ranks wait for each other")
        for rank in able[0]:
            left[rank].pop(0)
        done += 1
    return done


def lists_of(sets: list[tuple[int, ...]]) -> dict[int, list[tuple[int, ...]]]:
    return {rank: [ranks for ranks in sets if rank in ranks] for ranks in sets for rank in ranks}


@settings(max_examples=200)
@given(legal_schedules())
def test_copies_never_wait_in_a_circle(schedule):
    sets = copy_sets(schedule)
    assert replay(lists_of(sets)) == len(sets)
    assert all(len(ranks) > 1 and list(ranks) == sorted(set(ranks)) for ranks in sets)
    for position in range(schedule.chain_length):  # every rank with a copy is in the one set of its stage
        holders = {schedule.rank_of_stage[s] for s in range(position, schedule.num_stages, schedule.chain_length)}
        assert len(holders) == 1 or [set(ranks) for ranks in sets].count(holders) == 1


def test_another_order_would():
    """The replay bites: three sets in a ring, and each rank begins with another one."""
    lists = lists_of([(0, 1), (1, 2), (0, 2)])
    assert replay(lists) == 3
    lists[0].reverse()
    with pytest.raises(StuckError):
        replay(lists)


def test_sums_on_one_rank_need_no_messages():
    alone: Any = SimpleNamespace(rank=0, gpu=None)
    one, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    one.grad, other.grad = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])
    times = iter([5.0, 7.0])
    assert sum_gradients(two_ways(1, 2), alone, {0: [one], 1: [other]}, lambda: next(times)) == (5.0, 7.0)
    assert one.grad.tolist() == other.grad.tolist() == [11.0, 22.0]
    assert one.grad is not other.grad
    one.grad.zero_()
    assert other.grad.tolist() == [11.0, 22.0]
    one.grad = None
    sum_gradients(two_ways(1, 2), alone, {0: [one], 1: [other]})
    assert one.grad is not None
    assert one.grad.tolist() == [11.0, 22.0]
    one.grad = other.grad = None
    sum_gradients(two_ways(1, 2), alone, {0: [one], 1: [other]})
    assert one.grad is None


@dataclass
class Case:
    """What the ranks have: weights like these on each copy of the stage, and the gradients of each copy."""

    weights: list[Tensor]
    gradients: list[list[Tensor | None]]


def side_by_side(copies: int) -> Schedule:
    """One stage, with copies on so many ranks."""
    return replicated(ppedu.naive(1), copies)


def joined_group(context: Context) -> Group:
    return context.connect(
        Work(Job(schedule=side_by_side(context.size), loss_fn=mse), context.rank, (), {}, {}, None, set())
    )


def summing_rank(cases: list[Case], context: Context) -> list[Any]:
    """For each case this rank's sums, and the bytes that its process wrote meanwhile (to all its peers together)."""
    import torch.distributed as dist

    rank, size = context.rank, context.size
    group = joined_group(context)
    found = []
    for case in cases:
        weights = [nn.Parameter(torch.zeros_like(like)) for like in case.weights]
        for weight, gradient in zip(weights, case.gradients[rank], strict=True):
            weight.grad = gradient
        dist.barrier()
        before = written()
        start, end = sum_gradients(side_by_side(size), group, {rank: weights})
        found.append(([w.grad for w in weights], written() - before))
        assert start < end <= time.perf_counter()
        dist.barrier()
    return found


def losing_rank(work: Any, context: Context) -> bool:
    """Whether rank 0's error counts as the echo of rank 1's end, which leaves before the sum."""
    import torch.distributed as dist

    group = joined_group(context)
    any_of(group, [True], (0, 1))
    if context.rank == 1:
        dist.destroy_process_group()
        return False
    try:
        with context.lost_peers_marked():
            all_reduce(group, torch.ones(3), (0, 1))
    except RuntimeError as error:
        return getattr(error, "lost_peer", False)
    return False


@pytest.mark.slow
def test_who_loses_its_peer_in_the_sum_is_not_to_blame():
    assert in_ranks(losing_rank, [None, None]) == [True, False]


def written() -> int:
    """Bytes that this process has written so far, to sockets too, as Linux counts them."""
    path = Path("/proc/self/io")
    return int(path.read_text("utf-8").split("wchar: ")[1].split()[0]) if path.exists() else 0


def summed(copies: int, cases: list[Case]) -> list[list[Any]]:
    """case -> rank -> what `summing_rank` gives."""
    by_rank = in_ranks(summing_rank, [cases] * copies)
    return [list(ranks) for ranks in zip(*by_rank, strict=True)]


DTYPES = {torch.float64: 1e-15, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.complex64: 1e-6}
"""What adding two numbers may change, over their size."""


@pytest.mark.slow
@pytest.mark.parametrize("copies", [2, 3, 4])
def test_every_rank_has_the_same_sum_to_the_last_bit(copies):
    """Of numbers whose sum depends on the order. And it is the sum, which is computed here in twice the digits."""
    generator = torch.Generator().manual_seed(copies)
    numbers = [torch.randn(copies, 7, 143, generator=generator, dtype=torch.float64).to(dtype) for dtype in DTYPES]
    numbers[-1] = torch.complex(numbers[1], numbers[1].flip(0))
    cases = [Case([of_ranks[0]], [[one.clone()] for one in of_ranks]) for of_ranks in numbers]
    for of_ranks, ranks in zip(numbers, summed(copies, cases), strict=True):
        found = [gradients[0] for gradients, _ in ranks]
        dtype = of_ranks.dtype
        assert (found[0].dtype, found[0].shape) == (dtype, (7, 143))
        assert len({one.view(torch.uint8).numpy().tobytes() for one in found}) == 1
        exact = of_ranks.to(torch.complex128 if dtype.is_complex else torch.float64)
        error = (found[0].to(exact.dtype) - exact.sum(0)).abs()
        assert (error <= copies * DTYPES[dtype] * exact.abs().sum(0)).all()


@pytest.mark.slow
def test_kinds_of_gradients():
    """A message for each dtype; sparse ones become dense; who lacks one counts as zero; what all lack stays missing."""
    indices, values = torch.tensor([[1, 1]]), torch.tensor([[1.0, 2.0], [10.0, 20.0]])
    rows = torch.sparse_coo_tensor(indices, values, (3, 2), check_invariants=True)
    half, wide = torch.ones(2, dtype=torch.float16), torch.full((1, 3), 2.0, dtype=torch.float64)
    weights = [half, torch.ones(2), torch.ones(3, 2), wide, torch.ones(0), torch.ones(2)]
    case = Case(
        weights,
        [
            [half, None, rows, wide, torch.ones(0), None],
            [None, None, torch.ones(3, 2), wide * 10, None, torch.ones(2)],
            [half * 4, None, rows, wide * 100, torch.ones(0), None],
        ],
    )
    nobody = Case(weights[:2], [[None, None]] * 3)
    no_weights = Case([], [[]] * 3)
    first, second, third = summed(3, [case, nobody, no_weights])
    for gradients, _ in first:
        assert [None if g is None else (g.dtype, g.tolist()) for g in gradients] == [
            (torch.float16, [5.0, 5.0]),
            None,
            (torch.float32, [[1.0, 1.0], [23.0, 45.0], [1.0, 1.0]]),
            (torch.float64, [[222.0, 222.0, 222.0]]),
            (torch.float32, []),
            (torch.float32, [1.0, 1.0]),
        ]
        assert all(g is None or g.untyped_storage().nbytes() == g.nbytes for g in gradients)  # no part of a larger one
    assert [gradients for gradients, _ in second] == [[None, None]] * 3
    assert [gradients for gradients, _ in third] == [[]] * 3


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="Linux counts what a process writes")
@pytest.mark.parametrize("copies", [2, 3, 4])
def test_an_all_reduce_sends_less_than_everybody_to_everybody(copies):
    """2 (d - 1) / d times the gradients, as Patarasu and Yuan (2009) prove to be the least; not d - 1 times."""
    numbers = torch.randn(copies, 2, 60_000, dtype=torch.float64)
    case = Case([*numbers[0]], [list(of_rank) for of_rank in numbers])
    (ranks,) = summed(copies, [case])
    size = numbers[0].nbytes
    for gradients, wrote in ranks:
        torch.testing.assert_close(torch.stack(gradients), numbers.sum(0), rtol=1e-12, atol=1e-12)
        assert 2 * (copies - 1) / copies <= wrote / size < 2 * (copies - 1) / copies + 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("name", "copies"), [("naive", 2), ("1f1b", 3), ("interleaved", 2), ("zb_v", 3)])
def test_data_parallel_pipelines_train_as_one_process_does(name, copies):
    """Pipelines side by side, whose ranks hold copies of one stage, or of two."""
    one = ppedu.SCHEDULES[name](p=2, m=1 if name == "naive" else 4)
    schedule = replicated(one, copies)
    run = train_as_plain(schedule, blocks(schedule.chain_length), copies * one.num_microbatches + 1)
    assert run.timeline.complete
    assert len(run.parameter_bytes) == 2 * copies


def test_places_have_words():
    """What a hang is explained with: both are waits, so that the rank that computes is blamed."""
    work = Work(Job(schedule=dualpipe(), loss_fn=mse), 0, (), {}, {}, None, set())
    for at in (board.AWAITING_LOSS, board.SUMMING):
        place = work.place(3, at, 0.0)
        assert place.waiting
        assert place.step == 3
    assert "copies" in place.text
    assert len(set(board.PLACES.values())) == len(board.PLACES)


def test_the_run_says_how_long_the_sum_took():
    """On each rank, and no longer than the whole run; nothing where nothing is summed."""
    data = [batch(8, 4, 4)]
    began = time.perf_counter()
    run = ppedu.train(blocks(4), ppedu.dualpipe(2, 4), data, mse, adamw, device="cpu", progress=False)
    took = time.perf_counter() - began
    assert len(run.sum_seconds) == 2
    assert all(0 < seconds < took for seconds in run.sum_seconds)
    assert ppedu.train(blocks(4), ppedu.gpipe(2, 4), data, mse, adamw, device="cpu", progress=False).sum_seconds == ()
