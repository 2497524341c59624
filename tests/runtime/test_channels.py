"""The interpreter and its channels on a network that keeps NCCL's rules or gloo's, with any legal schedule.

Ranks are threads here, so that a hang is seen at once and thousands of messages cost nothing.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gpu_model import DeadlockError, Post, Trace, replay
from hypothesis import given, settings
from hypothesis import strategies as st
from network import Network, RecordingGpu, StuckError, Threads
from orders import F, dualpipe, dualpipe_v, golden, legal_schedules
from runtime_helpers import Plain, assert_equal_training, backwards_reversed, batch, momentum, mse
from torch import nn

import ppedu
from ppedu.core.schedule import Schedule
from ppedu.runtime import train as train_module
from ppedu.runtime.rank import channels
from ppedu.runtime.rank import group as groups
from ppedu.runtime.rank.channels import AHEAD
from ppedu.runtime.rank.group import Group, by_rounds
from ppedu.runtime.rank.lower import Recv, Send, lower

WIDTH = 3
TRANSPORTS = pytest.mark.parametrize("nccl", [True, False], ids=["nccl", "gloo"])


@pytest.fixture(autouse=True)
def unpatched():
    """The tests put threads in the place of processes; hypothesis wants no monkeypatch, which lives for one example."""
    kept = train_module.run_launched, train_module.lower
    yield
    train_module.run_launched, train_module.lower = kept


def run(schedule: Schedule, nccl: bool, steps: int = 2, samples: int | None = None) -> Threads:
    """Train a stage of 3 x 3 numbers each under the schedule, and compare with plain training."""
    m, stages = schedule.num_microbatches, schedule.chain_length
    torch.manual_seed(0)
    model = [nn.Linear(WIDTH, WIDTH) if (s + stages) % 3 else nn.Tanh() for s in range(stages)]
    model = nn.Sequential(*model).double()
    data = [batch(samples or 2 * m + m // 2, WIDTH, WIDTH)]  # sizes of 2 and 3 where m > 1
    trains = any(a.kind is not F for order in schedule.orders for e in order for a in e.actions)
    plain = Plain(model, data, mse, momentum if trains else None, steps)
    threads = train_module.run_launched = Threads(nccl)
    result = ppedu.train(model, schedule, data, mse, momentum, steps, device="cpu", gradients=True, progress=False)
    if not trains:
        assert result.gradients == {}
        plain.gradients = {}
    assert_equal_training(result.losses, result.gradients, model.state_dict(), plain)
    return threads


@TRANSPORTS
@settings(max_examples=60)
@given(legal_schedules())
def test_any_legal_schedule_runs_to_the_numbers_of_plain_training(nccl, schedule):
    run(schedule, nccl)


@TRANSPORTS
@pytest.mark.parametrize(
    "schedule",
    [
        *map(golden, ("zbh1_p4_m8", "zbh2_p4_m8", "zbv_p4_m8", "interleaved_p4_m8_v2", "looped_bfs_p4_m8_v2")),
        dualpipe(),
        dualpipe_v(),
        backwards_reversed(3, 5),
        ppedu.gpipe(4, 8),
        ppedu.one_f_one_b(4, 8),
        ppedu.one_f_one_b(5, 3),
        ppedu.naive(3, 4),
        ppedu.forward_only(3, 6),
    ],
    ids=lambda s: s.name,
)
def test_published_schedules(nccl, schedule):
    run(schedule, nccl, steps=3)


@TRANSPORTS
def test_stamps_travel_beside_the_tensors(nccl):
    """Under a pace with a transfer time each tensor comes with the time at which it was computed."""
    threads = train_module.run_launched = Threads(nccl)
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3))).double()
    pace = ppedu.Costs(forward=0.001, backward=0.001, transfer=0.02)
    result = ppedu.train(
        model, ppedu.one_f_one_b(3, 3), [batch(6, 2, 2)], mse, steps=2, device="cpu", pace=pace, progress=False
    )
    assert threads.network.left() == 0
    ends = {span.action: span.end for span in result.timeline.spans}
    for span in result.timeline.spans:
        for needed in ppedu.dependencies(span.action, result.schedule):
            away = needed.stage != span.action.stage
            assert span.start >= ends[needed] + (0.02 if away else 0)


# what is bounded


@TRANSPORTS
def test_receives_are_posted_two_ahead_and_no_more(nccl):
    """Not one for each of the m microbatches, which would hold memory that 1F1B promises not to need."""
    for schedule in (ppedu.gpipe(3, 12), ppedu.one_f_one_b(3, 12)):
        most = run(schedule, nccl, steps=2).network.most_untaken
        posted = {channel: count for (sends, channel), count in most.items() if not sends}
        assert set(posted) == {(0, 1), (1, 2), (2, 1), (1, 0)}
        assert set(posted.values()) == {AHEAD}  # posted while an operation runs: the two that come after its own


@TRANSPORTS
@pytest.mark.parametrize("m", [6, 24])
def test_tensors_sent_are_let_go_once_they_have_arrived(nccl, m):
    """1F1B keeps min(p - r, m) activations on rank r however many microbatches there are, and so it is with what it sends."""
    network = run(ppedu.one_f_one_b(4, m), nccl, steps=1).network
    kept = {channel: count for (sends, channel), count in network.most_untaken.items() if sends}
    assert max(kept.values()) <= 4 + 1


# a batch that changes


@TRANSPORTS
def test_shapes_may_change_from_step_to_step(nccl):
    """Other numbers of samples, longer and shorter sequences, and back to what there was before."""
    sizes = [(7, 5), (7, 9), (4, 9), (7, 2), (7, 5), (8, 9)]

    def data(step):
        samples, length = sizes[step]
        g = torch.Generator().manual_seed(step)
        return tuple(torch.randn(samples, length, WIDTH, generator=g, dtype=torch.float64) for _ in range(2))

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))).double()
    plain = Plain(model, data, mse, momentum, len(sizes))
    train_module.run_launched = Threads(nccl)
    schedule = ppedu.one_f_one_b(3, 3)
    result = ppedu.train(model, schedule, data, mse, momentum, len(sizes), device="cpu", gradients=True, progress=False)
    assert_equal_training(result.losses, result.gradients, model.state_dict(), plain)


class Uneven(nn.Module):
    """Drops as many rows as it pleases."""

    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return x[: 1 + self.calls % 2]


@TRANSPORTS
def test_a_shape_that_depends_on_more_than_the_inputs_shape_is_refused(nccl):
    """The receiver would take the bytes for a tensor of the shape that it knows."""
    train_module.run_launched = Threads(nccl)
    model = [nn.Sequential(nn.Linear(2, 2), Uneven()), nn.Linear(2, 2)]
    data = [(torch.ones(6, 2), torch.ones(6, 2))]
    with pytest.raises(ValueError, match=r"stage 0 passed on \(2, 2\) torch.float32 before, and now \(1, 2\)"):
        ppedu.train(model, ppedu.gpipe(2, 2), data, lambda y, t: y.mean(), device="cpu", progress=False)


class AsComplex(nn.Module):
    def forward(self, x):
        return x.to(torch.complex128)


class AsIfReal(nn.Module):
    """From complex numbers to real ones."""

    def forward(self, x):
        return torch.view_as_real(x).flatten(1)


class Rounded(nn.Module):
    """Passes on whole numbers, through which no gradient goes."""

    def forward(self, x):
        return (8 * x).to(torch.int16)


class Looked(nn.Module):
    """Looks numbers from 0 to 7 up in a table."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, WIDTH)

    def forward(self, x):
        return self.table(x.long().clamp(0, 7)).mean(1)


def odd_dtypes() -> dict[str, nn.Sequential]:
    torch.manual_seed(0)
    wide = nn.Linear(WIDTH, WIDTH, dtype=torch.complex128)
    return {
        "complex128": nn.Sequential(
            AsComplex(), copy.deepcopy(wide), wide, AsIfReal(), nn.Linear(2 * WIDTH, WIDTH).double()
        ),
        "int16": nn.Sequential(nn.Linear(WIDTH, WIDTH), Rounded(), Looked(), nn.Linear(WIDTH, WIDTH)).double(),
    }


@pytest.mark.filterwarnings("ignore:only matrix products")
@pytest.mark.parametrize("make", [ppedu.one_f_one_b, ppedu.dualpipe])
@pytest.mark.parametrize("dtype", ["complex128", "int16"])
@TRANSPORTS
def test_tensors_of_dtypes_that_nccl_does_not_know(nccl, dtype, make):
    """As bytes between stages, and as pairs of real numbers in sums among copies."""
    model, data = odd_dtypes()[dtype], [batch(9, WIDTH, WIDTH)]
    plain = Plain(model, data, mse, momentum, 2)
    train_module.run_launched = Threads(nccl)
    result = ppedu.train(model, make(2, 4), data, mse, momentum, 2, device="cpu", gradients=True, progress=False)
    assert_equal_training(result.losses, result.gradients, model.state_dict(), plain)


# the network bites


@pytest.mark.parametrize("dtype", ["complex128", "int16"])
def test_nccl_itself_would_refuse_them(dtype, monkeypatch):
    monkeypatch.setattr(channels, "_wire", lambda group, tensor: tensor)
    train_module.run_launched = Threads(nccl=True)
    with pytest.raises(TypeError, match=f"NCCL takes no tensor of dtype torch.{dtype}"):
        ppedu.train(odd_dtypes()[dtype], ppedu.gpipe(2, 4), [batch(9, WIDTH, WIDTH)], mse, device="cpu", progress=False)


def broken_lower(change):
    def lowered(schedule):
        programs = [list(program) for program in lower(schedule)]
        change(programs)
        return tuple(map(tuple, programs))

    return lowered


def run_broken(nccl, change, schedule):
    train_module.lower = broken_lower(change)
    return run(schedule, nccl, steps=1, samples=2 * schedule.num_microbatches)


@TRANSPORTS
def test_a_lost_send_is_found(nccl):
    def lose(programs):
        programs[0].remove(next(i for i in programs[0] if isinstance(i, Send)))

    with pytest.raises(StuckError, match="every rank waits"):
        run_broken(nccl, lose, ppedu.one_f_one_b(3, 4))


@TRANSPORTS
def test_a_receive_before_what_it_comes_from_hangs(nccl):
    def swap(programs):
        first, second = [k for k, i in enumerate(programs[1]) if isinstance(i, Recv) and i.source == 0][:2]
        gradient = next(k for k, i in enumerate(programs[1]) if isinstance(i, Recv) and i.source == 2)
        assert first < second < gradient
        programs[1].insert(first, programs[1].pop(gradient))

    with pytest.raises(StuckError, match="every rank waits"):
        run_broken(nccl, swap, ppedu.one_f_one_b(3, 4))


@TRANSPORTS
def test_swapped_receives_give_other_numbers(nccl):
    """Tensors without tags: rank 1 takes microbatch 1 for microbatch 0, and training is no longer plain training."""

    def swap(programs):
        (first, one), (second, other) = [(k, i) for k, i in enumerate(programs[1]) if isinstance(i, Recv)][:2]
        programs[1][first], programs[1][second] = other, one

    with pytest.raises((AssertionError, StuckError, RuntimeError, KeyError, IndexError)):
        run_broken(nccl, swap, ppedu.gpipe(2, 4))


def test_hangs_are_found_only_where_all_wait():
    network = Network(2, nccl=True)
    a, b = network.group(0, {(0, 1)}), network.group(1, {(0, 1)})
    sent = a.data[0, 1].send([torch.ones(2)], 1, 0)
    assert not sent.is_completed()
    got = torch.zeros(2)
    received = b.data[0, 1].recv([got], 0, 0)
    assert sent.is_completed()
    assert received.wait()
    assert got.tolist() == [1, 1]
    network.leave(failed=False)
    with pytest.raises(StuckError):
        b.data[0, 1].recv([got], 0, 0).wait()


# the order in which ranks first meet on NCCL


ordered_pairs = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda ab: ab[0] != ab[1]), max_size=24)


def meetings(own: dict[int, list[tuple[int, int]]]) -> int:
    """Rounds until all have met, where each rank goes through its own pairs one after the other, and a pair meets when both
    are at it. Raises StuckError where they wait in a circle."""
    own, rounds = {rank: list(pairs) for rank, pairs in own.items()}, 0
    while left := {rank: pairs[0] for rank, pairs in own.items() if pairs}:
        ready = {pair for pair in left.values() if left[pair[0]] == left[pair[1]] == pair}
        if not ready:
            raise StuckError(f"they wait in a circle: {left}")
        own = {rank: pairs[1:] if pairs and pairs[0] in ready else pairs for rank, pairs in own.items()}
        rounds += 1
    return rounds


def own_pairs(order: Sequence[tuple[int, int]]) -> dict[int, list[tuple[int, int]]]:
    return {rank: [pair for pair in order if rank in pair] for rank in range(8)}


@given(ordered_pairs.map(set))
def test_pairs_meet_in_few_rounds(pairs):
    """A pair shares a rank with at most 2 (d - 1) others, where no rank is in more than d; so that many rounds, and its own,
    are enough."""
    order = by_rounds(pairs)
    assert sorted(order) == sorted(pairs)
    own = own_pairs(order)
    most = max(map(len, own.values()))
    assert meetings(own) <= max(0, 2 * most - 1)


def test_ranks_that_keep_orders_of_their_own_wait_in_a_circle():
    circle = {0: [(0, 1), (2, 0)], 1: [(1, 2), (0, 1)], 2: [(2, 0), (1, 2)]}
    with pytest.raises(StuckError):
        meetings(circle)


def greeted(pairs: set[tuple[int, int]], copies: Sequence[tuple[int, ...]] = ()) -> list[Trace]:
    network = Network(4, True, RecordingGpu)

    def meet(rank: int) -> None:
        with network.changed:
            groups.greet(network.group(rank, pairs, copies))
            network.leave(failed=False)

    run_all(meet, range(4))
    assert network.left() == 0
    return network.traces


def run_all(function: Callable[[Any], None], arguments: Sequence[Any]) -> None:
    """In a thread each."""
    threads = [threading.Thread(target=function, args=(argument,), daemon=True) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)


def test_ranks_greet_each_other_one_pair_after_the_other():
    """Each host waits for each greeting; in another order on one of them that hangs."""
    pairs, copies = {(a, b) for a in range(4) for b in range(4) if a != b}, [(0, 1, 2, 3), (0, 3), (1, 2)]
    traces = greeted(pairs, copies)
    replay(traces, 32)
    posts = [k for k, step in enumerate(traces[0].steps) if isinstance(step, Post)]
    assert len(posts) == 6 + 2
    traces[0].steps = traces[0].steps[posts[3] :] + traces[0].steps[: posts[3]]
    with pytest.raises(DeadlockError):
        replay(traces, 32)


# which ranks can talk over NCCL, and how they end it


class CountedGroup:
    """A process group that may be aborted, and nothing else."""

    def __init__(self) -> None:
        self.aborted = 0

    def abort(self) -> None:
        self.aborted += 1


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_abort_ends_what_nccl_has_running(backend):
    control, copies, pairs = CountedGroup(), CountedGroup(), {(0, 1): CountedGroup(), (1, 0): CountedGroup()}
    data = pairs if backend == "nccl" else dict.fromkeys(pairs, control)
    group: Any = Group(0, 2, torch.device("cpu"), control, data, False, backend, None, {(0, 1): copies})
    group.abort()
    wanted = int(backend == "nccl")
    assert [one.aborted for one in (*pairs.values(), copies)] == [wanted] * 3
    assert control.aborted == 0  # gloo's is left to whom it belongs


CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def slot(bus: int, uuid: str = "") -> Any:
    return SimpleNamespace(pci_domain_id=0, pci_bus_id=bus, pci_device_id=0, uuid=uuid)


RANKS: dict[str, tuple[bool, list[tuple[torch.device, str, Any]]]] = {  # -> (NCCL, (device, host, properties) of each rank)
    "two GPUs of one machine": (True, [(GPU, "a", slot(1)), (GPU, "a", slot(2))]),
    "one GPU for two ranks": (False, [(GPU, "a", slot(1)), (GPU, "a", slot(1))]),
    "the same slots on two machines": (True, [(GPU, host, slot(bus)) for host in "ab" for bus in (1, 2)]),
    "parts of one GPU (MIG)": (False, [(GPU, "a", slot(1, "MIG-1")), (GPU, "a", slot(1, "MIG-2"))]),
    "a torch that tells no slots": (
        True, [(GPU, "a", SimpleNamespace(uuid="GPU-1")), (GPU, "a", SimpleNamespace(uuid="GPU-2"))],
    ),
    "GPUs here, none there": (False, [(GPU, "a", slot(1)), (GPU, "a", slot(2)), (CPU, "b", None)]),
    "no GPU at all": (False, [(CPU, "a", None), (CPU, "b", None)]),
}  # fmt: skip


@pytest.mark.parametrize(("nccl", "ranks"), RANKS.values(), ids=RANKS)
def test_all_ranks_agree_on_what_carries_their_tensors(nccl, ranks, monkeypatch):
    """Each asks, whatever its own device is: nobody waits for an answer that does not come."""
    here, store, found = threading.local(), dist.HashStore(), {}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: here.properties)
    monkeypatch.setattr(groups, "machine_id", lambda: (here.host, "boot"))
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)

    def ask(rank: int) -> None:
        device, here.host, here.properties = ranks[rank]
        found[rank] = groups.one_gpu_each(rank, len(ranks), device, store)

    run_all(ask, range(len(ranks)))
    assert found == dict.fromkeys(range(len(ranks)), nccl)


def test_one_rank_without_a_gpu_has_all_of_them_on_gloo(monkeypatch):
    """And the tensors of those with one go through their hosts."""
    store, control, found = dist.HashStore(), object(), {}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: slot(1))

    def join(rank: int) -> None:
        device = [GPU, CPU][rank]
        found[rank] = groups.connect(rank, 2, device, control, {(0, 1), (1, 0)}, [(0, 1)], store)

    run_all(join, range(2))
    assert [found[rank].backend for rank in range(2)] == ["gloo", "gloo"]
    assert [found[rank].through_host for rank in range(2)] == [True, False]
    assert all(via is control for rank in range(2) for via in found[rank].data.values())
