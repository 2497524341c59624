"""The four ways to train one model on p ranks: checked, started, and put together. All of it on CPU processes.

p: ranks. N: bytes of all weights. A: bytes of one activation, of the whole batch, between two layers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ppedu.core.checks import whole
from ppedu.core.operations import Kind
from ppedu.core.schedule import Schedule
from ppedu.course.parallelisms.ranks import Alike, RankReport, Wrap, train_alike, train_stages
from ppedu.course.parallelisms.results import Way
from ppedu.course.parallelisms.wraps import as_it_is, blocks_of, by_kind, with_ddp, with_tp, with_zero3
from ppedu.runtime.model.batches import Batch, batch_of, check_batch
from ppedu.runtime.model.split import ModelLike, layers_of, stage_parameter_names, stages_of
from ppedu.runtime.processes.launch import run_ranks
from ppedu.runtime.processes.rank_main import RankMain
from ppedu.runtime.processes.watch import Place
from ppedu.runtime.rank.job import Job, works_of
from ppedu.runtime.rank.lower import Program, Send, lower
from ppedu.runtime.rank.stage import LossFn
from ppedu.runtime.run import available_cores, step_timeline, where_measured

STEPS = 2  # the first one creates what the optimizer remembers; the second is like all later ones
TIMEOUT = 120.0  # seconds that one step may take


def adamw(weights: Any) -> torch.optim.Optimizer:
    """What all ways train with. It remembers two numbers of each weight."""
    return torch.optim.AdamW(weights, lr=0.0003)


def one_device(model: ModelLike, batch: Batch, loss_fn: LossFn, *, steps: int = STEPS) -> Way:
    """Train a copy of `model` on `batch` for some steps in one process: what the four ways are compared with.

    model: a sequence of layers. batch: (inputs, targets), the same in each step. loss_fn: a mean over the samples.
    """
    return _train_alike("one device", as_it_is, model, batch, loss_fn, 1, steps)


def ddp(model: ModelLike, batch: Batch, loss_fn: LossFn, p: int, *, steps: int = STEPS) -> Way:
    """DistributedDataParallel: every rank has the whole model and a p-th of the batch.

    Needs to send 2 (p-1)/p N: a ring all-reduce of the gradients (Patarasuk and Yuan, 2009).
    In its second step, which is measured, DDP also agrees on the order of its buckets: one to three kB more.
    Raises ValueError where p does not divide the batch.
    """
    needed = 2 * _weight_bytes(model)
    return _train_alike("DDP", with_ddp, model, batch, loss_fn, p, steps, needed, split=True)


def zero3(model: ModelLike, batch: Batch, loss_fn: LossFn, p: int, *, steps: int = STEPS) -> Way:
    """ZeRO-3, as FSDP2 (`torch.distributed.fsdp.fully_shard`): every rank keeps a p-th of each weight, and has a p-th of
    the batch.

    Needs to send 3 (p-1)/p N: all-gathers of the weights for the forward and for the backward, and a reduce-scatter of the
    gradients (Rajbhandari et al., ZeRO, 2020, section 7). Gloo has no reduce-scatter of its own: torch runs an all-reduce in
    its place, and 4 (p-1)/p N is sent. Raises ValueError where p does not divide the batch.
    """
    needed = 3 * _weight_bytes(model)
    return _train_alike("ZeRO-3", with_zero3, model, batch, loss_fn, p, steps, needed, split=True)


def tp(model: ModelLike, batch: Batch, loss_fn: LossFn, p: int, *, steps: int = STEPS) -> Way:
    """Tensor parallelism: every rank has a p-th of the heads of each attention and of the columns of each MLP, and the
    whole batch. Embedding, norms and head are repeated on all ranks. The model is a `ppedu.course.models.ByteGPT`.

    Needs to send 4 all-reduces of A in each block, 8 (p-1)/p A: two in the forward, two in the backward (Shoeybi et al.,
    Megatron-LM, 2019, section 3). Raises ValueError where p does not divide the heads, TypeError for another model.
    """
    whole("p", p)
    blocks = blocks_of(_module(model))
    if not blocks:
        raise TypeError(
            "tensor parallelism is laid out for the blocks of a ppedu.course.models.ByteGPT, and this model has none"
        )
    heads, width = blocks[0].attention.heads, blocks[0].attention.out.in_features
    if heads % p:
        raise ValueError(f"every rank takes as many heads: p={p} does not divide heads={heads}. Take a p that does")
    activation = batch[0].numel() * width * blocks[0].attention.out.weight.element_size()
    way = _train_alike("TP", with_tp, model, batch, loss_fn, p, steps, 8 * len(blocks) * activation)
    for tensors in (way.gradients, way.weights):
        for name in tensors:
            if ".query_key_value." in name:
                tensors[name] = by_kind(tensors[name], p)
    return way


def pp(model: ModelLike, batch: Batch, loss_fn: LossFn, schedule: Schedule, *, steps: int = STEPS) -> Way:
    """Pipeline parallelism: every rank has its stages, and the whole batch in microbatches, as `ppedu.train` runs it.

    model: a sequence of layers, or what `ppedu.split` returned. Needs to send A over each cut between two ranks, twice:
    the activation down, its gradient up. Raises as `ppedu.train` does for what cannot run.
    """
    whole("steps", steps, "how often it trains")
    programs = lower(schedule)
    stages = stages_of(model, schedule.num_stages)
    names = stage_parameter_names(model, stages)
    check_batch(*batch_of([batch], 0), schedule.num_microbatches)
    job = Job(schedule=schedule, loss_fn=loss_fn, optimizer=adamw, steps=steps, gradients=True)
    works = works_of(job, programs, stages, names, [batch])
    needed = _sent_between_stages(stages, batch[0], programs, schedule.num_microbatches)
    return _train("PP", train_stages, works, lambda rank, *published: works[rank].place(*published), needed, schedule)


def _train_alike(
    name: str, wrap: Wrap, model: ModelLike, batch: Batch, loss_fn: LossFn, p: int, steps: int, needed: int = 0,
    split: bool = False,
) -> Way:  # fmt: skip
    """needed: bytes that a rank would send with infinitely many others; of p ranks each sends the (p-1)/p-th of it."""
    inputs, targets = batch_of([batch], 0)
    check_batch(inputs, targets, 1)
    whole("p", p)
    whole("steps", steps, "how often it trains")
    if split and len(inputs) % p:
        raise ValueError(
            f"{name} gives every rank as many samples: p={p} does not divide a batch of {len(inputs)}. Take {p * max(1, len(inputs) // p)}"
        )
    parts = list(zip(inputs.chunk(p), targets.chunk(p), strict=True)) if split else [(inputs, targets)] * p

    def place(rank: int, step: int, at: int, since: float) -> Place:
        return Place(f"trains under {name}", None, step if step >= 0 else None, False, since)

    works = [Alike(_module(model), wrap, *part, loss_fn, adamw, steps) for part in parts]
    return _train(name, train_alike, works, place, [(p - 1) * needed // p] * p)


def _train(
    name: str, main: RankMain, works: Sequence[Any], place: Callable[[int, int, int, float], Place], needed: Sequence[int],
    schedule: Schedule | None = None,
) -> Way:  # fmt: skip
    """Run the works, and put together what the ranks report. schedule: where they are stages of a pipeline."""

    def receive(rank: int, kind: str, content: Any) -> None:
        if kind == "print":
            sys.stderr.write(f"[rank {rank}] {content[1]}\n")

    reports: list[RankReport] = run_ranks(main, works, place, receive, timeout=TIMEOUT)
    known = [report.losses for report in reports if report.losses]  # of a pipeline the last rank alone knows them
    where = where_measured(len(reports), "CPU", "gloo", (available_cores(),), None)
    return Way(
        name,
        ranks=tuple(replace(r.share, needed_bytes=count) for r, count in zip(reports, needed, strict=True)),
        losses=tuple(sum(step) / len(known) for step in zip(*known, strict=True)),
        gradients={name: gradient for r in reports for name, gradient in r.gradients.items()},
        weights={name: weight for r in reports for name, weight in r.weights.items()},
        where=where,
        timeline=step_timeline(schedule, [r.moments for r in reports], where, ()) if schedule else None,
    )


def _sent_between_stages(stages: Sequence[nn.Module], inputs: Tensor, programs: Sequence[Program], m: int) -> list[int]:
    """Bytes that each rank has to send in a step: what its sends carry, one after the other."""
    sample, sizes = inputs[:1], []  # sizes: bytes of one sample between stage s and s + 1
    with torch.no_grad():
        for stage in stages[:-1]:
            sample = stage(sample)
            sizes.append(sample.numel() * sample.element_size())
    needed = []
    samples = [len(part) for part in inputs.tensor_split(m)]
    for program in programs:
        sent = [i.action for i in program if isinstance(i, Send)]
        needed.append(sum(samples[a.microbatch] * sizes[a.stage - (a.kind is not Kind.F)] for a in sent))
    return needed


def _weight_bytes(model: ModelLike) -> int:
    return sum(w.numel() * w.element_size() for layer in layers_of(model) for w in layer.parameters())


def _module(model: ModelLike) -> nn.Module:
    return model if isinstance(model, nn.Module) else nn.Sequential(*layers_of(model))
