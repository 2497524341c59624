"""Bidirectional schedules run several chains of stages, so that each stage has copies: how the copies stay one model.

After each step every copy gets the sum of the gradients of all, added up in the order of the chains. The sums agree to
the last bit, so that the optimizers, each on its own copy, do the same to all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from ppedu.runtime.channels import Group, Sent
from ppedu.schedule import Schedule

Gradients: TypeAlias = list[Tensor | None]


@dataclass(frozen=True, slots=True)
class Message:
    """The gradients of stage `stage` go from the rank that holds it to the rank that holds its copy `copy`."""

    stage: int
    copy: int


def messages(schedule: Schedule) -> list[Message]:
    """What goes between ranks, in the one order that all keep, so that nothing can wait in a circle."""
    n, rank_of = schedule.chain_length, schedule.rank_of_stage
    return [
        Message(stage, copy)
        for position in range(n)
        for stage in range(position, schedule.num_stages, n)
        for copy in range(position, schedule.num_stages, n)
        if rank_of[stage] != rank_of[copy]
    ]


def copy_pairs(schedule: Schedule) -> set[tuple[int, int]]:
    """The ordered pairs of ranks between which gradients go."""
    rank_of = schedule.rank_of_stage
    return {(rank_of[m.stage], rank_of[m.copy]) for m in messages(schedule)}


def sum_gradients(schedule: Schedule, group: Group, weights: dict[int, Sequence[Tensor]]) -> None:
    """Give each copy the sum over all copies. weights: of the stages that this rank holds.

    A gradient that is missing from one copy counts as zero; one that all miss stays missing.
    """
    n, rank_of = schedule.chain_length, schedule.rank_of_stage
    found: dict[tuple[int, int], Gradients] = {  # (stage here, its copy or itself) -> the gradients there
        (s, copy): [_plain(w.grad) for w in weights[copy]] for s in weights for copy in weights if s % n == copy % n
    }
    sent: list[Sent] = []
    for message in messages(schedule):
        if message.stage in weights:
            sent += _send(group, rank_of[message.copy], found[message.stage, message.stage])
        elif message.copy in weights:
            source = rank_of[message.stage]
            found[message.copy, message.stage] = _receive(group, source, weights[message.copy])
    for s, mine in weights.items():
        copies = [found[s, copy] for copy in range(s % n, schedule.num_stages, n)]
        for weight, *gradients in zip(mine, *copies, strict=True):
            weight.grad = _sum(gradients)
    for one in sent:
        one.wait()


def _plain(gradient: Tensor | None) -> Tensor | None:
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def _sum(gradients: Sequence[Tensor | None]) -> Tensor | None:
    total: Tensor | None = None
    for gradient in gradients:
        if gradient is not None:
            total = gradient.clone() if total is None else total.add_(gradient)
    return total


def _send(group: Group, to: int, gradients: Gradients) -> list[Sent]:
    """First which of them are there, then those that are, in one piece for each dtype."""
    if not gradients:
        return []
    sent = [group.send_flags([g is not None for g in gradients], to)]
    present = [g for g in gradients if g is not None]
    for dtype in _dtypes(present):
        sent.append(group.send_flat(torch.cat([g.reshape(-1) for g in present if g.dtype == dtype]), to))
    return sent


def _receive(group: Group, source: int, weights: Sequence[Tensor]) -> Gradients:
    """What `_send` sends, for weights of the same shapes."""
    if not weights:
        return []
    flags = group.receive_flags(len(weights), source)
    present = [w for w, there in zip(weights, flags, strict=True) if there]
    parts: dict[torch.dtype, Iterator[Tensor]] = {}
    for dtype in _dtypes(present):
        sizes = [w.numel() for w in present if w.dtype == dtype]
        parts[dtype] = iter(group.receive_flat(sum(sizes), dtype, source).split(sizes))
    return [next(parts[w.dtype]).view(w.shape) if there else None for w, there in zip(weights, flags, strict=True)]


def _dtypes(tensors: Sequence[Tensor]) -> list[torch.dtype]:
    return list(dict.fromkeys(t.dtype for t in tensors))
