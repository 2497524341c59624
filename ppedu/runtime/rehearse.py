"""Before its first step with new shapes a rank on a GPU runs one microbatch of them, and nobody notices.

CUDA loads each kernel at its first launch, and its allocator gets memory, and both may have to wait until all kernels on
the GPU are over. Beside a receive that is posted ahead they would wait for a message that never comes. So what a step
launches is launched once before, one microbatch at a time, with messages that go through the hosts; and then again, for
only the second one adds to gradients that are there. It also keeps that first time out of the measured step, and tells each
rank the shapes of what it gets.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import nn

from ppedu.runtime.lower import Instruction, Program, Recv, Send
from ppedu.schedule import Kind, Overlap, Schedule

Way: TypeAlias = tuple[int, Hashable, frozenset[tuple[int, Kind]]]
"""What decides which kernels a microbatch launches: its chain, its form, and which backwards the schedule splits."""


def rehearsed(schedule: Schedule, forms: Sequence[Hashable], known: set[Way]) -> dict[Way, int]:
    """The microbatches to rehearse: the first one that goes each way that is not known yet."""
    done: dict[int, set[tuple[int, Kind]]] = {}
    for order in schedule.orders:
        for action in (a for entry in order for a in entry.actions):
            done.setdefault(action.microbatch, set()).add((action.stage, action.kind))
    chosen: dict[Way, int] = {}
    for chain in range(schedule.chains):
        for i in schedule.microbatches_of(chain * schedule.chain_length):
            if (way := (chain, forms[i], frozenset(done[i]))) not in known:
                chosen.setdefault(way, i)
    return chosen


def part_of(program: Program, microbatch: int) -> list[tuple[int, Instruction]]:
    """One microbatch's instructions and their numbers in the program. Ranks that run these alone run one after the other:
    each has the operation before it to wait for."""
    part: list[tuple[int, Instruction]] = []
    for at, instruction in enumerate(program):
        if isinstance(instruction, Overlap):
            part += [(at, action) for action in instruction.actions if action.microbatch == microbatch]
        elif isinstance(instruction, Recv):  # what was sent is kept until the end: it is not much
            part += [(at, replace(instruction, taken_there=0))] if instruction.action.microbatch == microbatch else []
        elif isinstance(instruction, Send):
            part += [(at, instruction)] if instruction.action.microbatch == microbatch else []
        elif instruction.microbatch == microbatch:
            part.append((at, instruction))
    return part


@contextmanager
def unnoticed(modules: Iterable[nn.Module], device: torch.device) -> Iterator[None]:
    """Afterwards buffers, layers' own attributes and random numbers are what they were, and weights have no gradients."""
    layers = [layer for module in modules for layer in module.modules()]
    attributes = [dict(vars(layer)) for layer in layers]
    buffers = [{name: (b, None if b is None else b.clone()) for name, b in layer._buffers.items()} for layer in layers]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
    with torch.no_grad():
        for layer, kept, tensors in zip(layers, attributes, buffers, strict=True):
            vars(layer).clear()
            vars(layer).update(kept)
            for name, (buffer, before) in tensors.items():
                layer._buffers[name] = buffer if buffer is None or before is None else buffer.copy_(before)
            for weight in layer.parameters(recurse=False):
                weight.grad = None
