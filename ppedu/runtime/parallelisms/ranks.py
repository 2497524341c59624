"""What a rank does: it trains for a few steps, and measures the last of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from ppedu.runtime.born import Mouth
from ppedu.runtime.execute import Board, MakeOptimizer, Rank, StepReport, Work
from ppedu.runtime.parallelisms.meters import Flops, Usage, local, optimizer_tensors, sent_bytes, size_in_bytes
from ppedu.runtime.stage import LossFn
from ppedu.runtime.world import FOREVER, pick_device
from ppedu.runtime.channels import connect

State = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where a rank finds the others."""

    rank: int
    size: int
    path: str
    threads: int

    def join(self) -> dist.ProcessGroup:
        torch.set_num_threads(self.threads)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
        os.environ.setdefault("USE_LIBUV", "0")
        store = dist.FileStore(self.path, self.size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size, timeout=FOREVER)
        return dist.distributed_c10d._get_default_group()


@dataclass(frozen=True, slots=True)
class Job:
    """All that one rank needs where every rank runs the same program. `wrap` makes the model a parallel one."""

    meeting: Meeting
    model: nn.Module
    wrap: Callable[[nn.Module, DeviceMesh], nn.Module]
    inputs: Tensor
    targets: Tensor
    loss_fn: LossFn
    optimizer: MakeOptimizer
    steps: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What a rank found in the last step."""

    samples: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    used_bytes: int
    flops: int
    activation_bytes: int
    sent_bytes: int | None


@dataclass(frozen=True, slots=True)
class RankReport:
    measured: Measured
    losses: list[float]
    gradients: State
    weights: State


def train_alike(mouth: Mouth, cells: Any, job: Job) -> RankReport:
    """Train as every rank does under DDP, ZeRO-3 and tensor parallelism: the same program, on other data or other shards."""
    job.meeting.join()
    mesh = init_device_mesh("cpu", (job.meeting.size,))
    model = job.wrap(job.model, mesh)
    usage = Usage(model, (job.inputs, job.targets))
    optimizer = job.optimizer(model.parameters())
    losses = []
    for _ in range(job.steps):
        optimizer.zero_grad()
        dist.barrier()
        before = sent_bytes()
        with Flops() as flops:
            with usage.watch_forward():
                loss = job.loss_fn(model(job.inputs), job.targets)
            loss.backward()
        optimizer.step()
        after = sent_bytes()
        losses.append(loss.item())
    weights = list(model.parameters())
    measured = Measured(
        samples=len(job.inputs),
        parameter_bytes=size_in_bytes(weights),
        gradient_bytes=size_in_bytes(w.grad for w in weights),
        optimizer_bytes=size_in_bytes(optimizer_tensors(optimizer)),
        used_bytes=usage.weight_bytes,
        flops=flops.count,
        activation_bytes=usage.activation_bytes,
        sent_bytes=None if before is None or after is None else after - before,
    )
    dist.barrier()
    gradients = {n: _whole(w.grad) for n, w in model.named_parameters() if w.grad is not None}
    return RankReport(measured, losses, gradients, {n: _whole(w.detach()) for n, w in model.named_parameters()})


def _whole(tensor: Tensor) -> Tensor:
    """Put a tensor together from all ranks' shards."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
