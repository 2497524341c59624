"""Before its first step with new shapes a rank on a GPU runs one microbatch of them, and nobody notices.

CUDA loads each kernel at its first launch, and its allocator gets memory, and both may have to wait until all kernels on
the GPU are over. Beside a receive that is posted ahead they would wait for a message that never comes. So what a step
launches is launched once before, one microbatch at a time, with messages that go through the hosts; and then again, for
only the second one adds to gradients that are there. It also keeps that first time out of the measured step, and tells each
rank the shapes of what it gets.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ppedu.core.operations import Kind, Overlap
from ppedu.core.schedule import Schedule
from ppedu.runtime.rank.lower import Instruction, Program, Recv, Send

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
def unnoticed(holders: Iterable[Any], device: torch.device) -> Iterator[None]:
    """Afterwards layers (and a loss with a state of its own) have the weights, buffers and attributes that they had, lists
    and the like in them too, random numbers go on where they were, and weights have no gradients."""
    seen: set[int] = set()
    layers = [
        part
        for h in holders
        for part in (h.modules() if isinstance(h, nn.Module) else [h])
        if hasattr(part, "__dict__")
    ]
    kept = [_kept(vars(layer), seen) for layer in layers]
    with _random_numbers_kept(device):
        yield
    with torch.no_grad():
        for restore in kept:
            restore()
        for layer in layers:
            for weight in layer.parameters(recurse=False) if isinstance(layer, nn.Module) else ():
                weight.grad = None


@contextmanager
def _random_numbers_kept(device: torch.device) -> Iterator[None]:
    numpy = sys.modules.get("numpy")
    python, arrays = random.getstate(), numpy.random.get_state() if numpy else None
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
    random.setstate(python)
    if numpy:
        numpy.random.set_state(arrays)


def _kept(value: Any, seen: set[int]) -> Callable[[], object]:
    """What puts a value back to what it is now, in place. (Of objects that it does not know it keeps which one it was.)"""
    if id(value) in seen:
        return _nothing
    seen.add(id(value))
    if isinstance(value, Tensor):
        return partial(value.detach().copy_, value.detach().clone())  # whatever its version: BatchNorm's does not tell
    if not isinstance(value, list | dict | set | deque):
        return _nothing
    items = value.copy()
    inner = [_kept(item, seen) for item in (items.values() if isinstance(items, dict) else items)]

    def restore() -> None:
        value.clear()
        value.update(items) if isinstance(value, dict | set) else value.extend(items)
        for one in inner:
            one()

    return restore


def _nothing() -> None:
    pass
