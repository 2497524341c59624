"""The same order in torch's own runtime: torch.distributed.pipelining takes our list of operations, and adds its messages.

The way on, past learning: what was drawn and understood here runs there, on as many GPUs as torchrun finds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from threading import Event
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ppedu.core.costs import Costs
from ppedu.core.operations import Kind, Overlap
from ppedu.core.schedule import Schedule
from ppedu.core.timeline import Timeline
from ppedu.core.validate import check
from ppedu.runtime import train as trainer
from ppedu.runtime.model.batches import Data, batch_of
from ppedu.runtime.model.split import ModelLike, stage_parameter_names, stages_of
from ppedu.runtime.processes import world
from ppedu.runtime.processes.interrupts import interrupts_held
from ppedu.runtime.rank.accelerator import Cuda
from ppedu.runtime.rank.job import MakeOptimizer
from ppedu.runtime.rank.stage import LossFn
from ppedu.runtime.run import Overrun
from ppedu.runtime.torch_engine.ranks import launched, works_of
from ppedu.runtime.torch_engine.runtime import HAS_PAIRS, check_cut, check_same, runtime_of

if TYPE_CHECKING:
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

__all__ = ["TorchRun", "to_torch", "train_with_torch"]


def to_torch(
    schedule: Schedule,
    stages: ModelLike,
    loss_fn: LossFn,
    *,
    device: torch.device | str | None = None,
    group: dist.ProcessGroup | None = None,
) -> _PipelineScheduleRuntime:
    """Torch's own pipeline runtime, loaded with this order: call it on each of p ranks, then `.step(...)` on all of them.

    stages: what `ppedu.split` returned, all of them on every rank; this rank takes (and moves to its device) those that
        schedule.rank_of_stage gives it.
    loss_fn: (outputs, targets) -> the mean over the samples. torch adds the gradients of the m microbatches and divides
        them by m (its scale_grads), so they are those of the whole batch.
    device: this rank's; by default its GPU (the one that the group is bound to, or that of LOCAL_RANK) where the group
        carries GPU tensors, as torch's default does on a machine with GPUs; else the CPU.
    group: the p ranks of the pipeline, by default the world. torch.distributed is initialised by the caller (torchrun).

    `.step(inputs)` is for the rank of the first stage, `.step(target=targets, losses=[])` for that of the last stage,
    `.step(inputs, target=targets, losses=[])` for a rank with both, and `.step()` for the others. Losses and outputs come
    in the order of the microbatches. The batch is on the rank's device, a multiple of m, and of one shape in all steps.

    A script for `torchrun --nproc-per-node 4`::

        torch.distributed.init_process_group()
        schedule = ppedu.zb_v(p=4, m=8)  # rank 0 has the first stage and the last
        runtime = ppedu.to_torch(schedule, ppedu.split(model, schedule.num_stages), loss_fn)
        first = torch.distributed.get_rank() == 0
        runtime.step(inputs, target=targets, losses=[]) if first else runtime.step()

    What torch does otherwise: its I on the first stage is nothing, and its W there the whole backward; an overlapped pair
    runs forward, then backward. Raises ValueError or ScheduleError for an order that torch has no way to run, RuntimeError
    without a world, ValueError for one of another size than p.
    """
    _check_chains(schedule)
    trainer._check_arguments(schedule, [None], loss_fn, None, 1, "cpu", None, 1.0)
    _check_order(schedule)
    _check_world(schedule, group)
    parts = stages_of(stages, schedule.num_stages)
    rank = dist.get_rank(group)
    device = _own_device(group) if device is None else torch.device(device)
    mine = {s: stage for s, stage in enumerate(parts) if schedule.rank_of_stage[s] == rank}
    return runtime_of(schedule, mine, loss_fn, device, group, None)


def _own_device(group: dist.ProcessGroup | None) -> torch.device:
    if not _carries_gpu_tensors(group):
        return torch.device("cpu")
    bound = (group or dist.distributed_c10d._get_default_group()).bound_device_id
    if bound is not None and bound.type == "cuda":
        Cuda(bound).use()
        return bound
    return world.pick_device("auto", int(os.environ.get("LOCAL_RANK", dist.get_rank())))


def _carries_gpu_tensors(group: dist.ProcessGroup | None) -> bool:
    """By the backend for each device, like "cpu:gloo,cuda:nccl": of a group for which none was named, torch tells no single
    one. Gloo names CUDA too, but passes no GPU tensors from rank to rank, and MPI only where it was built to."""
    backends = dict(pair.split(":", 1) for pair in dist.get_backend_config(group).split(","))
    return backends.get("cuda", "gloo") not in ("gloo", "mpi")


def _check_chains(schedule: Any) -> None:
    if isinstance(schedule, Schedule) and schedule.chains > 1:
        raise ValueError(
            f"{schedule.label} runs {schedule.chains} chains of stages at once, each stage twice. In torch.distributed."
            "pipelining a stage is one module on one rank that all microbatches pass through: it has no second copy, and "
            "nothing that would add up the gradients of two. Take ppedu.dualpipev, the same idea on one chain, or ppedu.train"
        )


def _check_order(schedule: Schedule) -> None:
    """Refuse, with the reason, what torch's runtime cannot run."""
    check(schedule)
    actions = [a for order in schedule.orders for entry in order for a in entry.actions]
    if all(a.kind is Kind.F for a in actions):
        raise ValueError(
            f"{schedule.label} has no backward, but torch's runtime wants each microbatch's backward in the order. "
            "Take a schedule that trains, and call .eval(...) of what to_torch returns, which leaves the backward out"
        )
    for rank in range(schedule.num_ranks):
        if rank not in schedule.rank_of_stage:
            raise ValueError(f"torch's runtime gives every rank a stage, but in {schedule.label} rank {rank} has none")
    pairs = any(isinstance(entry, Overlap) for order in schedule.orders for entry in order)
    if pairs and not HAS_PAIRS:
        raise ValueError(
            f"{schedule.label} has overlapped pairs (OVERLAP_F_B), which torch {torch.__version__} does not know: "
            "install a newer one (below 2.15), or take a schedule without pairs, like ppedu.zb_v"
        )


def _check_world(schedule: Schedule, group: dist.ProcessGroup | None) -> None:
    p = schedule.num_ranks
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            f"to_torch is called on each of the p={p} ranks of a world, and there is none: run the script by "
            f"torchrun --nproc-per-node {p}, and call torch.distributed.init_process_group() first. "
            "ppedu.train_with_torch starts the ranks itself"
        )
    size, whose = dist.get_world_size(group), "world" if group is None else "group"
    if size != p:
        raise ValueError(
            f"the schedule has p={p} ranks, but this {whose} has {size} process{'' if size == 1 else 'es'}: "
            + (f"start {p} (torchrun --nproc-per-node {p} on one machine)" if group is None else f"give a group of {p}")
            + f", or take a schedule with p={size}"
        )


@dataclass(frozen=True, slots=True, repr=False)
class TorchRun:
    """The result of `ppedu.train_with_torch`: what `ppedu.Run` holds, as far as it can be seen from outside of torch.

    losses: the mean loss of each step's batch, before that step's update.
    timelines: when torch ran each operation, for each step, in seconds from its first one; `timeline` is the last.
        Waiting for messages is no part of an operation, but torch may wait between the two halves of an overlapped pair.
    gradients: of the last step, by the names of the model's weights; None where they were not wanted.
    overruns: operations that took longer than their pace. stopped: why the run ended early, or None.
    """

    schedule: Schedule
    losses: tuple[float, ...]
    timelines: tuple[Timeline, ...]
    gradients: dict[str, Tensor] | None
    pace: Costs | None = None
    overruns: tuple[Overrun, ...] = ()
    stopped: str | None = None

    @property
    def timeline(self) -> Timeline:
        """When torch ran each operation in the last step."""
        return self.timelines[-1]

    @property
    def makespans(self) -> tuple[float, ...]:
        """Seconds from the first operation's start to the last one's end, of each step. The first step's may hold pauses
        in which torch learns shapes."""
        return tuple(timeline.makespan for timeline in self.timelines)

    @property
    def where(self) -> str:
        """What captions say: 'measured: torch.distributed.pipelining, 4 CPU processes on 2 cores'."""
        return self.timeline.provenance

    def __repr__(self) -> str:
        losses = ", ".join(f"{x:.4g}" for x in self.losses[:3])
        return f"{self.timeline!r} ({self.where})\nloss {losses}" + (", ..." if len(self.losses) > 3 else "")


def train_with_torch(
    model: ModelLike,
    schedule: Schedule,
    data: Data,
    loss_fn: LossFn,
    optimizer: MakeOptimizer | None = None,
    steps: int = 1,
    pace: Costs | None = None,
    *,
    gradients: bool = True,
    seed: int = 0,
    timeout: float = 60.0,
    progress: bool | trainer.Progress = True,
    stop: Event | None = None,
) -> TorchRun:
    """Train `model` as `ppedu.train` does, on p CPU processes, but by torch.distributed.pipelining's runtime.

    Arguments, checks and errors are those of `ppedu.train`; batches are multiples of m, and of one shape. pace: as there,
    for operations; torch's messages take what they take, so that `transfer` must be 0. See `ppedu.to_torch` for what torch
    does otherwise and what it cannot run, and for its use under torchrun.

    >>> import ppedu, torch
    >>> layers = [torch.nn.Linear(4, 4) for _ in range(2)]
    >>> batch = torch.ones(8, 4), torch.zeros(8, 4)
    >>> schedule, mse = ppedu.one_f_one_b(p=2, m=4), torch.nn.functional.mse_loss
    >>> theirs = train_with_torch(layers, schedule, [batch], mse, progress=False)
    >>> ours = ppedu.train(layers, schedule, [batch], mse, progress=False)
    >>> abs(theirs.losses[0] - ours.losses[0]) < 1e-6, theirs.timeline.peak_in_flight
    (True, (2, 1))
    """
    _check_chains(schedule)
    trainer._check_arguments(schedule, data, loss_fn, optimizer, steps, "cpu", pace, timeout)
    trainer._check_options(seed, progress, stop)
    _check_order(schedule)
    if pace is not None and pace.transfer:
        raise ValueError(
            f"torch's messages take what they take: pace with transfer={pace.transfer:g} is for ppedu.train"
        )
    if world.found(schedule.num_ranks):
        raise RuntimeError(
            "train_with_torch starts its own ranks, but a world is there: call ppedu.to_torch on each rank"
        )
    stages = stages_of(model, schedule.num_stages)
    names = stage_parameter_names(model, stages)
    trainer._check_data(data, schedule, stages)
    _check_batches(data, schedule.num_microbatches)
    works = works_of(schedule, stages, names, loss_fn, optimizer, data, steps, pace, gradients, seed)
    trainer._check_sendable(works)
    with interrupts_held(), trainer._Collector(schedule, pace, steps, progress) as collector:
        results = launched(works, collector.hear, timeout, stop)
        trainer._put_back(stages, names, results)
    run = collector.run(results, gradients)
    timelines = tuple(replace(t, provenance=_by_torch(t.provenance)) for t in run.timelines)
    return TorchRun(schedule, run.losses, timelines, run.gradients, run.pace, run.overruns, run.stopped)


def _by_torch(provenance: str) -> str:
    return provenance.replace("measured: ", "measured: torch.distributed.pipelining, ", 1)


def _check_batches(data: Data, m: int) -> None:
    first: Any = None
    for step in range(1 if callable(data) else len(data)):
        batch = batch_of(data, step)
        check_cut(len(batch[0]), m)
        shapes = tuple(tuple(t.shape) for t in batch)
        first = first or shapes
        check_same(shapes, first)
