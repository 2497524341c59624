"""A rank of `train(..., engine="torch")`: as any other, but torch's runtime runs its order."""

from __future__ import annotations

import logging
import math

import torch
import torch.distributed as dist
from torch import Tensor

from ppedu.core.costs import Costs
from ppedu.core.schedule import Schedule
from ppedu.runtime.joined import world
from ppedu.runtime.model.batches import Data, batch_of, check_batch
from ppedu.runtime.processes.rank_main import Context
from ppedu.runtime.processes.watch import Place
from ppedu.runtime.rank.group import machine_id
from ppedu.runtime.rank.heartbeat import PLACES, RETURNING, STARTING, STEPPING, WAITING
from ppedu.runtime.rank.job import RankResult, StepReport, Work, made_optimizer
from ppedu.runtime.run import available_cores
from ppedu.runtime.torch_engine.convert import check_order
from ppedu.runtime.torch_engine.runtime import (
    LEARNING_SHAPES,
    LOGGER,
    Runtime,
    Track,
    check_cut,
    check_same,
    runtime_of,
)


def check(schedule: Schedule, data: Data, device: str, pace: Costs | None) -> None:
    """Refuse, with the reason, what this engine cannot do."""
    check_order(schedule)
    if device == "cuda":
        raise ValueError(
            "engine='torch' trains on CPU processes: for GPUs call ppedu.to_torch on each rank under torchrun, or take "
            "engine='ppedu'"
        )
    if pace is not None and pace.transfer:
        raise ValueError(
            f"torch's messages take what they take: pace with transfer={pace.transfer:g} is for engine='ppedu'"
        )
    if world.is_there(schedule.num_ranks):
        raise RuntimeError(
            "engine='torch' starts its own ranks, but a world is there: call ppedu.to_torch on each rank"
        )
    shapes: list[tuple[torch.Size, ...]] = []
    for step in range(1 if callable(data) else len(data)):
        inputs, targets = batch_of(data, step)
        check_batch(inputs, targets, schedule.num_microbatches)
        check_cut(len(inputs), schedule.num_microbatches)
        shapes.append((inputs.shape, targets.shape))
        check_same(*(tuple(map(tuple, shapes[k])) for k in (-1, 0)))


def place(work: Work, step: int, at: int, since: float) -> Place:
    """What a rank is doing, in words: torch's runtime says when it computes, and all else is waiting."""
    schedule, shown = work.job.schedule, step if step >= 0 else None
    order = schedule.orders[work.at.pipeline]
    if at == LEARNING_SHAPES:
        return Place("runs its stage once to learn shapes", None, shown, False, since)
    if at < 0:
        return Place(f"is {PLACES[at]}", None, shown, at in WAITING, since)
    if at // 2 >= len(order):
        return Place("waits for its last messages to leave", None, shown, True, since)
    action = schedule.short(order[at // 2])
    if at % 2:
        return Place(f"computes {action}", action, shown, False, since)
    return Place(f"waits in torch's runtime for what {action} needs", None, shown, True, since)


def train_rank(work: Work, context: Context) -> RankResult:
    job, heartbeat, order = work.job, context.heartbeat, work.job.schedule.orders[work.at.pipeline]
    logging.getLogger(LOGGER).setLevel(logging.CRITICAL)  # who fails is reported once, by the parent
    heartbeat.put(-1, STARTING)
    track = Track(order, job.pace, heartbeat.put)
    context.computes = lambda: track.busy
    runtime = runtime_of(job.schedule, work.modules, job.loss_fn, context.device, None, track)
    weights = [w for module in work.modules.values() for w in module.parameters() if w.requires_grad]
    optimizer = made_optimizer(job.optimizer, weights) if job.optimizer and weights else None
    torch.manual_seed(job.seed + work.rank)
    for step in range(job.steps):
        for module in work.modules.values():
            module.zero_grad(set_to_none=True)
        report = _step(work, runtime, step)
        report.moments = track.moments
        stop = torch.tensor([float(report.not_finite is not None)], device="cpu")
        dist.broadcast(stop, src=job.schedule.rank_of_stage[-1])
        if optimizer and not stop.item():
            heartbeat.put(step, STEPPING)
            optimizer.step()
        context.report(report)
        if stop.item():
            break
    heartbeat.put(step, RETURNING)
    return _result(work)


def _step(work: Work, runtime: Runtime, step: int) -> StepReport:
    ends = [s in work.modules for s in (0, work.job.schedule.num_stages - 1)]
    inputs = targets = None
    if work.data is not None:
        inputs, targets = batch_of(work.data, step)
        check_batch(inputs, targets, work.job.schedule.num_microbatches)
    losses: list[Tensor] = []
    runtime.step(*([inputs] if ends[0] else []), target=targets if ends[1] else None, losses=losses)
    if not ends[1]:
        return StepReport(step, [])
    values = [loss.item() for loss in losses]
    bad = next(((i, value) for i, value in enumerate(values) if not math.isfinite(value)), None)
    return StepReport(step, [], sum(value / len(values) for value in values), bad)


def _result(work: Work) -> RankResult:
    tensors = {name: tensor.detach() for name, tensor in work.named_tensors()}
    gradients = {name: tensor.grad for name, tensor in work.named_tensors() if tensor.grad is not None}
    size = sum(w.nbytes for module in work.modules.values() for w in module.parameters())
    return RankResult(
        tensors=tensors, gradients=gradients if work.job.gradients else {}, peak_activation_bytes=None,
        peak_device_bytes=None, device="CPU", backend="gloo", parameter_bytes=size, unsplit=(), machine=machine_id(),
        cores=available_cores(),
    )  # fmt: skip
