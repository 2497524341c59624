"""The same order in torch's own runtime: torch.distributed.pipelining takes our list of operations, and adds its messages.

The way on, past learning: what was drawn and understood here runs there, on as many GPUs as torchrun finds.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ppedu.core.operations import Kind, Overlap
from ppedu.core.schedule import Schedule
from ppedu.core.validate import check
from ppedu.runtime.arguments import check_order_and_loss
from ppedu.runtime.joined.world import check_size
from ppedu.runtime.model.split import ModelLike, stages_of
from ppedu.runtime.processes.rank_main import pick_device
from ppedu.runtime.rank.accelerator import Cuda
from ppedu.runtime.rank.stage import LossFn
from ppedu.runtime.torch_engine.runtime import HAS_PAIRS, Track, runtime_of

if TYPE_CHECKING:
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

__all__ = ["check_order", "to_torch"]


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
    check_order_and_loss(schedule, loss_fn)
    check_order(schedule)
    _check_world(schedule, group)
    parts = stages_of(stages, schedule.num_stages)
    rank = dist.get_rank(group)
    device = _own_device(group) if device is None else torch.device(device)
    mine = {s: parts[s] for s in schedule.stages_of(rank)}
    return runtime_of(schedule, mine, loss_fn, device, group, Track())


def _own_device(group: dist.ProcessGroup | None) -> torch.device:
    if not _carries_gpu_tensors(group):
        return torch.device("cpu")
    bound = (group or dist.distributed_c10d._get_default_group()).bound_device_id
    if bound is not None and bound.type == "cuda":
        Cuda(bound).use()
        return bound
    return pick_device("auto", int(os.environ.get("LOCAL_RANK", dist.get_rank())))


def _carries_gpu_tensors(group: dist.ProcessGroup | None) -> bool:
    """By the backend for each device, like "cpu:gloo,cuda:nccl": of a group for which none was named, torch tells no single
    one. Gloo names CUDA too, but passes no GPU tensors from rank to rank, and MPI only where it was built to."""
    backends = dict(pair.split(":", 1) for pair in dist.get_backend_config(group).split(","))
    return backends.get("cuda", "gloo") not in ("gloo", "mpi")


def check_order(schedule: Schedule) -> None:
    """Refuse, with the reason, what torch's runtime cannot run."""
    check(schedule)
    if schedule.chains > 1:
        raise ValueError(
            f"{schedule.label} runs {schedule.chains} chains of stages at once, each stage twice. In torch.distributed."
            "pipelining a stage is one module on one rank that all microbatches pass through: it has no second copy, and "
            "nothing that would add up the gradients of two. Take ppedu.dualpipev, the same idea on one chain, or ppedu.train"
        )
    actions = list(schedule.actions)
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
            "ppedu.train(..., engine='torch') starts the ranks itself"
        )
    check_size(p, dist.get_world_size(group), "world" if group is None else "group")
