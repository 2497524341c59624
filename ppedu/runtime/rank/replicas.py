"""Where a stage has several copies (chains of stages that run side by side), how the copies stay one model.

After each step every copy gets the sum of the gradients of all. What is on the same rank is added there first; the ranks
then add up what they have by an all-reduce, in which each of d ranks sends 2 (d - 1) / d times the gradients, and not d - 1
times as if everybody sent to everybody. All ranks get the same bits, so that the optimizers, each on its own copy, do the
same to all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from ppedu.core.schedule import Schedule
from ppedu.runtime.rank.group import Group

Gradients: TypeAlias = list[Tensor | None]


def copy_sets(schedule: Schedule) -> list[tuple[int, ...]]:
    """The sets of ranks, sorted, that hold copies of one stage: those of two ranks and more, each once. The order is the
    same for all, so that ranks which go through their own sets in it never wait in a circle."""
    found = (_holders(schedule, position) for position in range(schedule.chain_length))
    return [ranks for ranks in dict.fromkeys(found) if len(ranks) > 1]


def _holders(schedule: Schedule, position: int) -> tuple[int, ...]:
    """The ranks with a copy of the stage at this position in its chain."""
    return tuple(sorted(set(schedule.rank_of_stage[position :: schedule.chain_length])))


def sum_gradients(
    schedule: Schedule,
    group: Group,
    weights: dict[int, Sequence[Tensor]],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float]:
    """Give each copy the sum over all copies; returns when that began and was over, in seconds on `clock`.

    weights: of the stages that this rank holds. A gradient that is missing from one copy counts as zero; one that all miss
    stays missing.
    """
    start, n = clock(), schedule.chain_length
    copies: dict[int, list[Sequence[Tensor]]] = {}  # position in the chain -> the weights of each copy here
    for s in sorted(weights):
        copies.setdefault(s % n, []).append(weights[s])
    sums = {position: _added_here(mine) for position, mine in copies.items()}
    for ranks in copy_sets(schedule):
        # By position, as all ranks do: the numbers of their own stages are in another order on each of them.
        here = [position for position in sorted(copies) if _holders(schedule, position) == ranks]
        together = [w for position in here for w in copies[position][0]]
        if together:
            shared = iter(_added_among(group, ranks, together, [g for position in here for g in sums[position]]))
            sums |= {position: [next(shared) for _ in sums[position]] for position in here}
    for position, mine in copies.items():
        for weights_of_copy in mine:
            for weight, total in zip(weights_of_copy, sums[position], strict=True):
                weight.grad = None if total is None else total.clone()  # its own memory: an optimizer may change it
    if group.gpu is not None:
        group.gpu.finish()
    return start, clock()


def _added_here(copies: Sequence[Sequence[Tensor]]) -> Gradients:
    return [_sum([_plain(w.grad) for w in of_one_weight]) for of_one_weight in zip(*copies, strict=True)]


def _plain(gradient: Tensor | None) -> Tensor | None:
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def _sum(gradients: Sequence[Tensor | None]) -> Tensor | None:
    total: Tensor | None = None
    for gradient in gradients:
        if gradient is not None:
            total = gradient if total is None else total + gradient
    return total


def _added_among(group: Group, ranks: tuple[int, ...], weights: Sequence[Tensor], mine: Gradients) -> Gradients:
    """The sums of what each of these ranks has. mine: of this rank, for weights of the same shapes on all of them."""
    wanted = any_of(group, [g is not None for g in mine], ranks)
    sums: Gradients = [None] * len(mine)
    for dtype in dict.fromkeys(w.dtype for w in weights):  # one message for all of a kind
        which = [k for k, w in enumerate(weights) if wanted[k] and w.dtype == dtype]
        if which:
            parts = [torch.zeros_like(weights[k]) if (g := mine[k]) is None else g for k in which]
            total = all_reduce(group, torch.cat([part.reshape(-1) for part in parts]), ranks)
            for k, part in zip(which, total.split([weights[k].numel() for k in which]), strict=True):
                sums[k] = part.view(weights[k].shape)
    return sums


def any_of(group: Group, flags: Sequence[bool], ranks: tuple[int, ...]) -> list[bool]:
    """For each flag, whether it is set on any of these ranks. They go over the control group: NCCL carries no bools of the
    host's."""
    others = [rank for rank in ranks if rank != group.rank]
    sent = [group.send(flags, other) for other in others]
    found = list(flags)
    for other in others:
        found = [a or bool(b) for a, b in zip(found, group.receive(len(found), other), strict=True)]
    for one in sent:
        one.wait()
    return found


def all_reduce(group: Group, tensor: Tensor, ranks: tuple[int, ...]) -> Tensor:
    """The sum of a flat tensor over these ranks, the same bits on each. It is added in the tensor's own dtype: gloo and NCCL
    both add float16 and bfloat16, too."""
    total = tensor.to("cpu") if group.through_host else tensor
    # Not the group's own method: an error that begins in torch.distributed is known as the echo of a peer's end.
    dist.all_reduce(total, group=group.copy_groups[ranks])
    return total.to(tensor.device)
