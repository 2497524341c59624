"""Before its first step with new shapes a rank on a GPU runs one microbatch of them, and nobody notices.

CUDA loads each kernel at its first launch, and its allocator gets memory, and both may have to wait until all kernels on
the GPU are over. Beside a receive that is posted ahead they would wait for a message that never comes. So what a step
launches is launched once before, one microbatch at a time, with messages that go through the hosts. It also keeps that
first time out of the measured step, and tells each rank the shapes of what it gets.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ppedu.runtime.lower import Instruction, Program, Recv, Send
from ppedu.schedule import Overlap, Schedule


def rehearsed(schedule: Schedule, forms: Sequence[Hashable], known: set[Any]) -> list[int]:
    """The microbatches to rehearse: of each chain the first one of each form that is not known yet."""
    chosen: dict[tuple[int, Hashable], int] = {}
    for chain in range(schedule.chains):
        for i in schedule.microbatches_of(chain * schedule.chain_length):
            if forms[i] not in known:
                chosen.setdefault((chain, forms[i]), i)
    return list(chosen.values())


def part_of(program: Program, microbatch: int) -> list[tuple[int, Instruction]]:
    """One microbatch's instructions and their numbers in the program. Ranks that run these alone run one after the other:
    each has the operation before it to wait for."""
    part: list[tuple[int, Instruction]] = []
    for at, instruction in enumerate(program):
        if isinstance(instruction, Overlap):
            part += [(at, action) for action in instruction.actions if action.microbatch == microbatch]
        elif isinstance(instruction, Send | Recv):
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
