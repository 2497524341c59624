"""Torch's own runtime runs our order: the same numbers as plain training, the same operations in the same order."""

from __future__ import annotations

import copy
import random
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from orders import dualpipe, dualpipe_v, golden, legal_schedule
from runtime_helpers import (
    Plain,
    assert_close,
    assert_equal_training,
    backwards_reversed,
    batch,
    in_ranks,
    layers,
    momentum,
    mse,
)
from torch import Tensor, nn
from torchrun import torchrun

import ppedu
from ppedu.core.schedule import Schedule
from ppedu.runtime.torch_engine import convert as module
from ppedu.runtime.torch_engine.convert import to_torch

pytestmark = pytest.mark.slow

QUIET: dict[str, Any] = {"progress": False, "timeout": 30, "gradients": True, "engine": "torch"}
NAMES = ("naive", "gpipe", "1f1b", "interleaved", "looped_bfs", "zb_h1", "zb_h2", "zb_v", "dualpipev")
GOLDEN = {
    name: golden(name)
    for name in ("gpipe_p4_m8", "1f1b_p4_m8", "interleaved_p4_m8_v2", "looped_bfs_p4_m8_v2", "zbh1_p4_m8", "zbh2_p4_m8", "zbv_p4_m8")
} | {"dualpipev_p4_m10": dualpipe_v()}  # fmt: skip


def random_order(seed: int) -> Schedule:
    """Any legal order on one chain where every rank has a stage: stages placed anyhow, some of the B split, some pairs."""
    chance = random.Random(seed)
    p = chance.randint(1, 4)
    length, m = chance.randint(p, 7), chance.randint(1, 5)
    rank_of = [*range(p), *(chance.randrange(p) for _ in range(length - p))]
    chance.shuffle(rank_of)
    splits = chance.choice([0.0, 0.5, 1.0])
    made = legal_schedule(p, m, tuple(rank_of), 1, True, splits, True, chance)
    return replace(made, name=f"random {seed}")


def model_for(schedule: Schedule, width: int = 4) -> nn.Sequential:
    """A layer a stage at least, Linear and Tanh in turn: every other stage has no weights, or all have some."""
    return layers(*[width] * (schedule.num_stages // 2 + 2))


def data_for(schedule: Schedule, width: int = 4) -> list[tuple[Tensor, Tensor]]:
    return [batch(2 * schedule.num_microbatches, width, width, seed) for seed in range(2)]


def assert_as_plain(schedule: Schedule, model: nn.Sequential | None = None, data: Any = None) -> ppedu.Run:
    """Three steps with momentum give what single-process training gives."""
    model = model_for(schedule) if model is None else model
    data = data or data_for(schedule)
    plain = Plain(model, data, mse, momentum, 3)
    run = ppedu.train(model, schedule, data, mse, momentum, steps=3, **QUIET)
    assert run.gradients is not None
    assert_equal_training(run.losses, run.gradients, dict(model.state_dict()), plain)
    return run


# the same numbers


@pytest.mark.parametrize("p", [pytest.param(2, marks=pytest.mark.soak), 3])
@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_those_of_plain_training(name, p):
    schedule = ppedu.SCHEDULES[name](p=p, m=6 if name == "interleaved" and p == 3 else 8)
    run = assert_as_plain(schedule)
    assert len(run.timelines) == len(run.makespans) == 3
    for timeline, makespan in zip(run.timelines, run.makespans, strict=True):
        assert timeline.complete
        assert timeline.start == 0
        assert timeline.makespan == makespan > 0
        assert timeline.peak_in_flight == ppedu.simulate(schedule).peak_in_flight
        ends = {a: span.end for span in timeline.spans for a in span.action.actions}
        for span in timeline.spans:
            for needed in ppedu.dependencies(span.action.actions[0], schedule):
                assert span.start >= ends[needed]


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.soak) for n in range(4, 60))])
def test_any_legal_order(seed):
    assert_as_plain(random_order(seed))


# the same order


def logged_rank(cases: list[Schedule], context: Any) -> list[Any]:
    """For each schedule: what torch holds as the order, and what its stages really ran."""
    from torch.distributed.pipelining import PipelineStage

    log: list[str] = []

    def noted(name: str, letter: Callable[[dict[str, Any]], str]) -> None:
        original = getattr(PipelineStage, name)

        def method(self: Any, i: int, *args: Any, **rest: Any) -> Any:
            full = rest.get("full_backward", args[1] if len(args) > 1 else True)
            log.append(f"{self.stage_index}{letter({'full_backward': full})}{i}")
            return original(self, i, *args, **rest)

        setattr(PipelineStage, name, method)

    noted("forward_one_chunk", lambda _: "F")
    noted("backward_one_chunk", lambda rest: "B" if rest["full_backward"] else "I")
    noted("backward_weight_one_chunk", lambda _: "W")
    found = []
    for schedule in cases:
        runtime = to_torch(schedule, ppedu.split(model_for(schedule), schedule.num_stages), mse)
        inputs, targets = data_for(schedule)[0]
        first, last = (schedule.rank_of_stage[s] == context.rank for s in (0, -1))
        del log[:]
        runtime.step(*([inputs] if first else []), target=targets if last else None, losses=[])
        held = {r: [str(a) for a in order if a is not None] for r, order in runtime.pipeline_order.items()}
        found.append((held, list(log)))
    return found


def test_torch_runs_the_order_as_it_stands():
    cases = [ppedu.SCHEDULES[name](p=4, m=8) for name in NAMES] + list(GOLDEN.values()) + [backwards_reversed(4, 4)]
    found = in_ranks(logged_rank, [cases] * 4, timeout=60)
    for number, schedule in enumerate(cases):
        for rank in range(4):
            held, ran = found[rank][number]
            assert held == {r: [str(e) for e in order] for r, order in enumerate(schedule.orders)}
            assert ran == [str(a) for entry in schedule.orders[rank] for a in entry.actions]


# what torch gets wrong, or does not say


class View(nn.Module):
    def forward(self, x):
        return x.view(x.shape[0], -1)


class Shared(nn.Module):
    """A weight used twice, a skip, a normalisation, and weights that nothing uses."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(2, 2)

    def forward(self, x):
        return x + self.b(torch.tanh(self.a(self.norm(x)))) * self.a(x)


class Indices(nn.Module):
    def forward(self, x):
        return (x.abs() * 10).long() % 5


def linear(frozen: bool = False) -> nn.Linear:
    return nn.Linear(4, 4).requires_grad_(not frozen)


MODELS: dict[str, Callable[[], list[nn.Module]]] = {
    "nothing learns in the first stage": lambda: [nn.Tanh(), linear(), linear()],
    "frozen first stage": lambda: [linear(frozen=True), linear(), linear()],
    "frozen in the middle": lambda: [linear(), linear(frozen=True), linear()],
    "a stage that does nothing": lambda: [linear(), nn.Identity(), linear()],
    "nothing at the end": lambda: [linear(), linear(), nn.Identity()],
    "views": lambda: [linear(), View(), linear(), View(), linear(), View()],
    "in place": lambda: [linear(), nn.ReLU(inplace=True), linear()],
    "shared and unused": lambda: [Shared(), Shared(), Shared()],
}


@pytest.mark.parametrize("key", ["1f1b", "zb_h1"])
@pytest.mark.parametrize("name", MODELS)
def test_models_that_are_hard_on_torch(name, key):
    torch.manual_seed(0)
    schedule = ppedu.SCHEDULES[key](p=3, m=4)
    assert_as_plain(schedule, nn.Sequential(*MODELS[name]()).double())


def test_buffers_see_each_microbatch_once():
    """As under `train`; torch's own look at shapes leaves no trace in BatchNorm's means."""
    torch.manual_seed(0)
    model = nn.Sequential(linear(), nn.BatchNorm1d(4), linear()).double()
    schedule = ppedu.zb_h1(3, 2)
    found, wanted = copy.deepcopy(model), copy.deepcopy(model)
    ppedu.train(found, schedule, data_for(schedule), mse, steps=2, **QUIET)
    ppedu.train(wanted, ppedu.one_f_one_b(3, 2), data_for(schedule), mse, steps=2, progress=False)
    assert found[1].num_batches_tracked == 4
    for name, tensor in wanted.named_buffers():
        assert_close(found.get_buffer(name).double(), tensor.double(), name)


def test_whole_numbers_between_stages():
    data = [(torch.rand(8, dtype=torch.float64), torch.randn(8, 4, dtype=torch.float64))]
    model = nn.Sequential(Indices(), nn.Embedding(5, 4), linear()).double()
    assert_as_plain(ppedu.one_f_one_b(3, 4), model, data)
    with pytest.raises(ppedu.RunError, match="stage 1 gets whole numbers, through which no gradient passes"):
        ppedu.train(model, ppedu.zb_h1(3, 4), data, mse, **QUIET)


def bare_rank(work: Any, context: Any) -> Any:
    """Torch's runtime and stages as they come, loaded with an order: gradients and the buffers of one stage."""
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    path, module, schedule, (inputs, targets) = work
    rank, size = context.rank, context.size
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    runtime = _PipelineScheduleRuntime([stage], schedule.num_microbatches, loss_fn=mse)
    csv = Path(path + f".{rank}.csv")
    csv.write_text(schedule.to_csv(), "utf-8")
    runtime._load_csv(str(csv))
    try:
        runtime.step(*([inputs] if rank == 0 else []), target=targets if rank == size - 1 else None, losses=[])
    except Exception as error:
        dist.destroy_process_group()  # or its peers would wait for it
        return str(error)
    return {n: w.grad for n, w in module.named_parameters()}, dict(module.named_buffers())


def bare(schedule: Schedule, model: nn.Sequential, folder: Path) -> list[Any]:
    data = data_for(schedule)[0]
    p = schedule.num_ranks
    return in_ranks(bare_rank, [(str(folder / "order"), model[r : r + 1], schedule, data) for r in range(p)])


def test_without_our_care_torch_loses_gradients(tmp_path):
    """So the tests above can fail: with nothing to learn in the first stage, I and W leave the second without gradients."""
    model = nn.Sequential(nn.Tanh(), linear(), linear()).double()
    found = bare(ppedu.zb_h1(3, 4), model, tmp_path)
    assert all(gradient is None for gradient in found[1][0].values())


def test_without_our_care_torch_counts_batches_twice(tmp_path):
    model = nn.Sequential(linear(), nn.BatchNorm1d(4), linear()).double()
    found = bare(ppedu.one_f_one_b(3, 4), model, tmp_path)
    assert found[1][1]["1.num_batches_tracked"] == 5


def test_without_our_care_torch_mixes_up_losses(tmp_path):
    """Microbatch 0's backward starts from another one's loss, whose graph its own backward then misses."""
    schedule = backwards_reversed(3, 4)
    model = nn.Sequential(linear(), linear(), linear()).double()
    assert "Failed to run stage backward" in bare(schedule, model, tmp_path)[2]


# torchrun

SCRIPT = """
import os, sys
import torch, torch.distributed as dist
import ppedu
from ppedu.runtime.torch_engine.convert import to_torch
from runtime_helpers import batch, layers, momentum, mse

out = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
schedule = ppedu.zb_v(4, 8)
model = layers(4, 4, 4, 4, 4, 4)
runtime = to_torch(schedule, ppedu.split(model, schedule.num_stages), mse)
mine = [w for stage in runtime._stages for w in stage.submod.parameters()]
optimizer = momentum(mine) if mine else None
losses, data = [], [batch(16, 4, 4, seed) for seed in range(2)]
for step in range(3):
    inputs, targets = data[step % 2]
    if optimizer:
        optimizer.zero_grad()
    parts = []
    if rank == 0:  # V: the first stage and the last
        outputs = runtime.step(inputs, target=targets, losses=parts)
        losses.append(torch.stack(parts).mean().item())
        assert outputs.shape == targets.shape
    else:
        runtime.step()
    if optimizer:
        optimizer.step()
trained = {name: w for name, w in model.named_parameters() if any(w is m for m in mine)}
state = {name: w.detach().clone() for name, w in trained.items()}
gradients = {name: w.grad.clone() for name, w in trained.items()}
inputs, targets = data[0]
evaluated = runtime.eval(inputs, target=targets, losses=[]) if rank == 0 else runtime.eval()
refused = []
def refuse(call):
    try:
        call()
    except Exception as error:
        refused.append(str(error))
refuse(lambda: to_torch(ppedu.gpipe(3, 4), layers(4, 4, 4), mse))
if rank == 0:
    refuse(lambda: runtime.step(inputs[:15], target=targets[:15]))
    refuse(lambda: runtime.step(inputs[:8], target=targets[:8]))
half = dist.new_group([2, 3])
small = layers(4, 4, 4)
if rank > 1:
    refuse(lambda: to_torch(schedule, model, mse, group=half))
    within = to_torch(ppedu.one_f_one_b(2, 4), small, mse, group=half)
    within.step(*([inputs] if rank == 2 else []), target=targets if rank == 3 else None, losses=[])
torch.save((losses, gradients, state, evaluated, refused, {n: w.grad for n, w in small.named_parameters()}), f"{out}/{rank}.pt")
dist.destroy_process_group()
"""


def test_under_torchrun(tmp_path):
    done = torchrun(tmp_path, SCRIPT, 4)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(4)]
    model, data = layers(4, 4, 4, 4, 4, 4), [batch(16, 4, 4, seed) for seed in range(2)]
    plain = Plain(model, data, mse, momentum, 3)
    gradients = {name: g for rank in found for name, g in rank[1].items()}
    state = {name: w for rank in found for name, w in rank[2].items()}
    assert_equal_training(found[0][0], gradients, state, plain)
    assert_close(found[0][3], plain.model(data[0][0]).detach(), "outputs of eval")
    half = Plain(layers(4, 4, 4), data, mse, None, 1)
    for name, gradient in half.gradients.items():
        (own,) = [rank[5][name] for rank in found[2:] if rank[5][name] is not None]
        assert_close(own, gradient, f"{name} within a group")
    for rank in found:
        assert "the schedule has p=3 ranks, but this world has 4 processes" in rank[4][0]
    assert "15 samples are no multiple of m=8. Take 8 samples, or ppedu.train" in found[0][4][1]
    assert "it was (16, 4) there, and is (8, 4) now" in found[0][4][2]
    assert found[3][4][1].startswith("the schedule has p=4 ranks, but this group has 2 processes: give a group of 4")


# the device


@pytest.fixture
def chosen(monkeypatch):
    """On a machine with four GPUs, in a world of one process whose group is said to be of this kind: the device that
    `to_torch` computes on by default. Nothing is computed."""
    import torch.distributed as dist

    found: list[Any] = []
    monkeypatch.setattr(module, "runtime_of", lambda *given: found.append(given[3]))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: found.append(f"set {device}"))
    monkeypatch.setattr(
        module, "pick_device", lambda device, rank, *_: torch.device("cuda", rank % 4) if device == "auto" else None
    )
    monkeypatch.delenv("LOCAL_RANK", raising=False)

    def choose(backends: str | None = None, bound: torch.device | None = None, **rest: Any) -> list[Any]:
        del found[:]
        everybody: Any = dist.distributed_c10d._get_default_group()
        everybody.bound_device_id = bound
        with monkeypatch.context() as patch:
            if backends is not None:
                patch.setattr(dist, "get_backend_config", lambda group=None: backends)
            to_torch(ppedu.gpipe(1, 2), layers(4, 4), mse, **rest)
        return list(found)

    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)  # no backend named: here it is the CPU's
    yield choose
    dist.destroy_process_group()


def default_backends(monkeypatch: pytest.MonkeyPatch) -> str:
    """What this torch takes for a plain init_process_group() on a machine with GPUs."""
    from torch.distributed.distributed_c10d import Backend, BackendConfig

    with monkeypatch.context() as patch:
        patch.setattr(torch._C, "_get_accelerator", lambda *_: torch.device("cuda"))
        return str(BackendConfig(Backend("undefined")))


def test_on_a_machine_with_gpus_it_takes_the_rank_s_own(chosen, monkeypatch):
    import torch.distributed as dist

    assert dist.get_backend() == "undefined"  # what it would say with GPUs, too
    plain = default_backends(monkeypatch)
    assert "cuda:nccl" in plain.split(",")
    assert chosen(plain) == [torch.device("cuda:0")]
    monkeypatch.setenv("LOCAL_RANK", "2")
    for backends in (plain, "cuda:nccl", "cpu:gloo,cuda:nccl"):
        assert chosen(backends) == [torch.device("cuda:2")]
        assert chosen(backends, device="cuda:1") == [torch.device("cuda:1")]
        assert chosen(backends, device=torch.device("cpu")) == [torch.device("cpu")]
        assert chosen(backends, bound=torch.device("cuda:3")) == ["set cuda:3", torch.device("cuda:3")]


def test_a_group_that_carries_no_gpu_tensors_computes_on_the_cpu(chosen):
    import torch.distributed as dist

    for backends in (None, "cpu:gloo", "cpu:gloo,cuda:gloo", "cpu:mpi,cuda:mpi"):
        assert chosen(backends) == [torch.device("cpu")]
    assert chosen("cpu:gloo,cuda:gloo", device="cuda:1") == [torch.device("cuda:1")]
    gloo = dist.new_group([0], backend="gloo")
    assert chosen(None, group=gloo) == [torch.device("cpu")]


def test_a_world_of_another_size(chosen):
    with pytest.raises(
        ValueError, match=r"p=2 ranks, but this world has 1 process: start 2 .torchrun --nproc-per-node 2"
    ):
        to_torch(ppedu.gpipe(2, 2), layers(4, 4, 4), mse)


def test_of_a_group_within_the_world_ranks_count_in_the_world(chosen, monkeypatch):
    """Two pipelines of two ranks each: the third rank's GPU is not that of the first."""
    import torch.distributed as dist

    group: Any = SimpleNamespace(bound_device_id=None)
    monkeypatch.setattr(dist, "get_rank", lambda group=None: 2 if group is None else 0)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 4 if group is None else 1)
    assert chosen("cuda:nccl", group=group) == [torch.device("cuda:2")]


# refused


def refused(match: str, schedule: Any, error: type[Exception] = ValueError, **rest: Any) -> None:
    arguments = {"model": layers(4, 4, 4, 4), "data": [batch(8, 4, 4)], "loss_fn": mse} | rest
    with pytest.raises(error, match=match):
        ppedu.train(schedule=schedule, **arguments, **QUIET)
    if not rest:
        with pytest.raises(error, match=match):
            to_torch(schedule, arguments["model"], mse)


def test_orders_that_torch_cannot_run():
    refused("2 chains of stages at once.*no second copy.*Take ppedu.dualpipev", dualpipe())
    refused("has no backward.*call .eval", ppedu.forward_only(2, 4))
    idle = Schedule.from_csv("0F0,0B0\n\n1F0,1B0")
    refused("rank 1 has none", Schedule("idle", 1, (0, 2), (idle.orders[0], (), idle.orders[1])))
    refused("rank 1 never runs B0", Schedule.from_text("F0 B0\nF0"), ppedu.ScheduleError)


@pytest.mark.parametrize(
    ("match", "error", "rest"),
    [
        ("9 samples are no multiple of m=4", ValueError, {"data": [batch(9, 4, 4)]}),
        ("it was .*8, 4.* there", ValueError, {"data": [batch(8, 4, 4), batch(16, 4, 4)]}),
        ("pace with transfer=0.1 is for engine='ppedu'", ValueError, {"pace": ppedu.Costs(0.1, transfer=0.1)}),
    ],
)
def test_what_torch_fixes(match, error, rest):
    refused(match, ppedu.one_f_one_b(2, 4), error, **rest)


def test_an_engine_that_there_is_not_and_one_that_has_no_gpus(monkeypatch):
    arguments = {"model": layers(4, 4, 4), "data": [batch(8, 4, 4)], "loss_fn": mse, "progress": False}
    with pytest.raises(ValueError, match="engine is 'ppedu' or 'torch': engine='jax'"):
        ppedu.train(schedule=ppedu.gpipe(2, 4), **arguments, engine="jax")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match=r"engine='torch' trains on CPU processes: for GPUs call ppedu.to_torch"):
        ppedu.train(schedule=ppedu.gpipe(2, 4), **arguments, engine="torch", device="cuda")


def test_in_a_world_that_is_there_ranks_call_to_torch_themselves(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match=r"a world is there: call ppedu.to_torch on each rank"):
        ppedu.train(layers(4, 4, 4), ppedu.gpipe(2, 4), [batch(8, 4, 4)], mse, progress=False, engine="torch")


class Locked:
    """A loss that cannot be sent to another process."""

    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, outputs, targets):
        return mse(outputs, targets)


@pytest.mark.parametrize(
    "rest",
    [
        {"steps": 0}, {"loss_fn": 1}, {"optimizer": 1}, {"data": []}, {"data": [batch(3, 4, 4)]}, {"pace": 1}, {"seed": "a"},
        {"model": layers(4, 4)}, {"model": nn.Linear(4, 4)}, {"loss_fn": Locked()}, {"stop": 1},
        {"model": [nn.Linear(4, 4), nn.Linear(5, 4)]},
    ],
)  # fmt: skip
def test_refused_as_train_refuses(rest):
    model = rest.get("model") or layers(4, 4, 4, 4)
    arguments = {"data": [batch(8, 4, 4)], "loss_fn": mse} | rest | {"model": model}
    with pytest.raises((ValueError, TypeError, ppedu.RunError)) as wanted:
        ppedu.train(schedule=ppedu.one_f_one_b(2, 4), **arguments, progress=False)
    with pytest.raises(type(wanted.value)) as found:
        ppedu.train(schedule=ppedu.one_f_one_b(2, 4), **arguments, progress=False, engine="torch")
    last = str(wanted.value).strip().splitlines()[-1]
    assert str(found.value).strip().splitlines()[-1] == last


def test_without_a_world():
    with pytest.raises(RuntimeError, match=r"p=2 ranks of a world, and there is none: run the script by\s+torchrun"):
        to_torch(ppedu.gpipe(2, 4), layers(4, 4, 4), mse)


def test_a_torch_without_the_runtime(fresh_python):
    code = """
import torch.distributed.pipelining.schedules as schedules
del schedules._PipelineScheduleRuntime{}
try:
    import ppedu.runtime.torch_engine.convert
except ImportError as error:
    print(error)
"""
    assert "Install torch>=2.6,<2.15, or run the schedule by ppedu.train" in fresh_python(code.format(""))
    assert "is without _load_csv" in fresh_python(
        code.format("\nclass Other: pass\nschedules._PipelineScheduleRuntime = Other")
    )


# pace, and what goes wrong on the way


@pytest.mark.timing
def test_paced():
    pace = ppedu.Costs(forward=0.01, backward=0.02, overlapped=0.025)
    schedule = ppedu.dualpipev(2, 4)
    run = ppedu.train(model_for(schedule), schedule, data_for(schedule), mse, pace=pace, steps=2, **QUIET)
    for span in run.timeline.spans:
        nominal = pace.duration(span.action)
        assert nominal <= span.end - span.start < nominal + 0.05
    assert run.makespans[-1] >= ppedu.simulate(schedule, pace).makespan
    assert run.where.startswith("measured: torch.distributed.pipelining, 2 CPU processes on ")
    assert "paced F=0.01 s B=0.02 s" in run.where
    assert "torch.distributed.pipelining" in repr(run)


class Breaks(nn.Module):
    """Fails or hangs in the first forward of a kind: torch's own, made to learn shapes, or a real one."""

    def __init__(self, calls: int, hang: bool):
        super().__init__()
        self.calls, self.hang = calls, hang

    def forward(self, x):
        self.calls -= 1
        if self.calls < 0:
            time.sleep(1000 if self.hang else 0)
            raise ArithmeticError("a layer of the user's own")
        return x


@pytest.mark.parametrize("hang", [False, True])
@pytest.mark.parametrize("calls", [0, 3])
def test_a_layer_that_fails_or_hangs(calls, hang):
    model = [nn.Linear(4, 4).double(), Breaks(calls, hang), nn.Linear(4, 4).double()]
    start = time.perf_counter()
    with pytest.raises(ppedu.RunError) as found:
        ppedu.train(model, ppedu.one_f_one_b(3, 4), [batch(8, 4, 4)], mse, progress=False, timeout=2, engine="torch")
    assert time.perf_counter() - start < 20
    assert found.value.rank == 1
    assert (found.value.action == "F2") if calls else ("learn shapes" in str(found.value))
    if not hang:
        assert "ArithmeticError: a layer of the user's own" in found.value.traceback


def test_a_loss_that_is_not_finite():
    def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
        return mse(outputs, targets) / (targets.sum() * 0 + (targets.abs().max() < 50))

    model, good = layers(4, 4, 4), batch(8, 4, 4)
    before = copy.deepcopy(model.state_dict())
    bad = good[0], good[1].clone().index_fill_(0, torch.tensor([5]), 100.0)
    with pytest.warns(UserWarning, match="the loss of microbatch 2 in step 0 is inf"):
        run = ppedu.train(model, ppedu.gpipe(2, 4), [bad, good], loss_fn, momentum, steps=2, **QUIET)
    assert run.stopped is not None
    assert len(run.losses) == 1
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_nothing_is_left_in_the_temporary_folder():
    before = set(Path(tempfile.gettempdir()).glob("ppedu-*"))
    ppedu.train(layers(4, 4, 4), ppedu.gpipe(2, 4), [batch(8, 4, 4)], mse, **QUIET)
    assert not {p for p in set(Path(tempfile.gettempdir()).glob("ppedu-*")) - before if "tests" not in p.name}
