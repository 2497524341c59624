"""What a rank does: it trains for a few steps, and measures the last of them."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from ppedu.course.parallelisms.meters import Flops, Usage, optimizer_tensors, sent_bytes, size_in_bytes
from ppedu.course.parallelisms.results import RankShare
from ppedu.runtime.processes.rank_main import Mouth
from ppedu.runtime.processes.world import FOREVER
from ppedu.runtime.rank.channels import connect, pairs_of
from ppedu.runtime.rank.heartbeat import STEPPING, Board
from ppedu.runtime.rank.interpreter import Rank
from ppedu.runtime.rank.job import MakeOptimizer, StepReport, Work
from ppedu.runtime.rank.lower import Program
from ppedu.runtime.rank.stage import LossFn
from ppedu.runtime.rank.timers import Moment

Wrap = Callable[[Any, DeviceMesh], nn.Module]


@dataclass(frozen=True, slots=True)
class Meeting:
    """Who a rank is, and where it finds the others."""

    rank: int
    size: int
    path: str

    def join(self) -> dist.ProcessGroup:
        torch.set_num_threads(1)  # several ranks share the cores
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        os.environ.setdefault("USE_LIBUV", "0")
        store = dist.FileStore(self.path, self.size)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size, timeout=FOREVER)
        return dist.distributed_c10d._get_default_group()


@dataclass(frozen=True, slots=True)
class Job:
    """All that a rank needs where every rank runs the same program. `wrap` makes the model this rank's part of it."""

    meeting: Meeting
    model: nn.Module
    wrap: Wrap
    inputs: Tensor
    targets: Tensor
    loss_fn: LossFn
    optimizer: MakeOptimizer
    steps: int


@dataclass(frozen=True, slots=True)
class StageJob:
    """All that a rank needs where every rank runs stages of its own."""

    meeting: Meeting
    work: Work
    programs: tuple[Program, ...]


@dataclass(frozen=True, slots=True)
class RankReport:
    """What a rank hands back. moments: when its operations of the last step ran, in a pipeline."""

    share: RankShare
    losses: list[float]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    moments: list[Moment]


def train_alike(mouth: Mouth, cells: Any, job: Job) -> RankReport:
    """One rank of DDP, ZeRO-3 or tensor parallelism: the same program on every rank, on another part of the data or of
    the weights."""
    job.meeting.join()
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")  # nothing here works in place
    model = job.wrap(job.model, init_device_mesh("cpu", (job.meeting.size,)))
    usage = Usage(model, (job.inputs, job.targets))
    optimizer = job.optimizer(model.parameters())
    board, losses = Board(cells, job.meeting.rank), []
    for step in range(job.steps):
        board.put(step, STEPPING)
        optimizer.zero_grad()
        dist.barrier()
        before = sent_bytes()
        last = step == job.steps - 1  # counting takes time
        flops = Flops()
        with flops if last else nullcontext():
            with usage.watch_forward() if last else nullcontext():
                loss = job.loss_fn(model(job.inputs), job.targets)
            loss.backward()
        optimizer.step()
        sent = _since(before)
        losses.append(loss.item())
    share = RankShare(
        len(job.inputs), *_kept(list(model.parameters()), optimizer), usage.activation_bytes, usage.weight_bytes,
        flops.count, sent,
    )  # fmt: skip
    dist.barrier()
    named = {name.removeprefix("module."): w for name, w in model.named_parameters()}  # DDP's prefix
    gradients = {name: _whole(w.grad) for name, w in named.items() if w.grad is not None}
    weights = {name: _whole(w.detach()) for name, w in named.items()}
    first = job.meeting.rank == 0  # on all ranks they are the same
    return RankReport(share, losses, gradients if first else {}, weights if first else {}, [])


def train_stages(mouth: Mouth, cells: Any, job: StageJob) -> RankReport:
    """One rank of a pipeline, as `ppedu.train` runs it."""
    meeting, work = job.meeting, job.work
    group = connect(meeting.rank, meeting.size, torch.device("cpu"), meeting.join(), pairs_of(job.programs))
    usages = [Usage(stage) for stage in work.modules.values()]
    with Flops() as flops:
        log = _Log(flops)
        rank = Rank(work, group, log, Board(cells, meeting.rank), time.perf_counter)
        result = rank.run()
    weights = [w for stage in rank.stages.values() for w in stage.weights]
    used = sum(usage.weight_bytes for usage in usages)
    share = RankShare(
        sum(rank.sizes), *_kept(weights, rank.optimizer), result.peak_activation_bytes, used, log.flops, log.sent
    )
    losses = [report.loss for report in log.reports if report.loss is not None]
    return RankReport(share, losses, result.gradients, result.tensors, log.reports[-1].moments)


class _Log:
    """Hears of each step of a pipeline's rank, and keeps what was counted in the last one."""

    def __init__(self, counter: Flops) -> None:
        self.counter, self.reports = counter, list[StepReport]()
        self.flops, self._flops = 0, 0
        self.sent: int | None = None
        self._sent = sent_bytes()

    def step(self, report: StepReport) -> None:
        self.reports.append(report)
        self.flops, self._flops = self.counter.count - self._flops, self.counter.count
        self.sent, self._sent = _since(self._sent), sent_bytes()


def _kept(weights: Sequence[Tensor], optimizer: torch.optim.Optimizer | None) -> tuple[int, int, int]:
    """Bytes of weights, gradients and the optimizer's memory."""
    gradients = size_in_bytes(w.grad for w in weights)
    remembered = () if optimizer is None else optimizer_tensors(optimizer)
    return size_in_bytes(weights), gradients, size_in_bytes(remembered)


def _since(before: int | None) -> int | None:
    """Bytes sent since then."""
    now = sent_bytes()
    return None if now is None or before is None else now - before


def _whole(tensor: Tensor) -> Tensor:
    """Put a tensor together from all ranks' shards: all ranks call it. A view becomes a tensor of its own: with it, what
    it is a view of would go to the caller."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()
