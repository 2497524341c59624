"""What a rank does: it trains for a few steps, and measures the last of them."""

from __future__ import annotations

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
from ppedu.runtime.processes.rank_main import Context, rank_of
from ppedu.runtime.rank.heartbeat import STEPPING
from ppedu.runtime.rank.job import MakeOptimizer, StepReport, Work
from ppedu.runtime.rank.stage import LossFn
from ppedu.runtime.rank.timers import Moment

Wrap = Callable[[Any, DeviceMesh], nn.Module]


@dataclass(frozen=True, slots=True)
class Alike:
    """All that a rank needs where every rank runs the same program. `wrap` makes the model this rank's part of it."""

    model: nn.Module
    wrap: Wrap
    inputs: Tensor
    targets: Tensor
    loss_fn: LossFn
    optimizer: MakeOptimizer
    steps: int


@dataclass(frozen=True, slots=True)
class RankReport:
    """What a rank hands back. moments: when its operations of the last step ran, in a pipeline."""

    share: RankShare
    losses: list[float]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    moments: list[Moment]


def train_alike(work: Alike, context: Context) -> RankReport:
    """One rank of DDP, ZeRO-3 or tensor parallelism: the same program on every rank, on another part of the data or of
    the weights."""
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")  # nothing here works in place
    model = work.wrap(work.model, init_device_mesh("cpu", (context.size,)))
    usage = Usage(model, (work.inputs, work.targets))
    optimizer = work.optimizer(model.parameters())
    losses = []
    for step in range(work.steps):
        context.heartbeat.put(step, STEPPING)
        optimizer.zero_grad()
        dist.barrier()
        before = sent_bytes()
        last = step == work.steps - 1  # counting takes time
        flops = Flops()
        with flops if last else nullcontext():
            with usage.watch_forward() if last else nullcontext():
                loss = work.loss_fn(model(work.inputs), work.targets)
            loss.backward()
        optimizer.step()
        sent = _since(before)
        losses.append(loss.item())
    share = RankShare(
        len(work.inputs), *_kept(list(model.parameters()), optimizer), usage.activation_bytes, usage.weight_bytes,
        flops.count, sent,
    )  # fmt: skip
    dist.barrier()
    named = {name.removeprefix("module."): w for name, w in model.named_parameters()}  # DDP's prefix
    gradients = {name: _whole(w.grad) for name, w in named.items() if w.grad is not None}
    weights = {name: _whole(w.detach()) for name, w in named.items()}
    first = context.rank == 0  # on all ranks they are the same
    return RankReport(share, losses, gradients if first else {}, weights if first else {}, [])


def train_stages(work: Work, context: Context) -> RankReport:
    """One rank of a pipeline, as `ppedu.train` runs it."""
    usages = [Usage(stage) for stage in work.modules.values()]
    with Flops() as flops:
        log = _Log(flops)
        context.report = log.step
        rank = rank_of(work, context)
        result = rank.run()
    weights = [w for stage in rank.stages.values() for w in stage.weights]
    used = sum(usage.weight_bytes for usage in usages)
    kept = result.peak_activation_bytes or 0
    share = RankShare(sum(rank.batch.sizes), *_kept(weights, rank.optimizer), kept, used, log.flops, log.sent)
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
