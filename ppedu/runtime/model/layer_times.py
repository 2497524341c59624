"""How long each layer of a model takes: what split(by="time") balances, and what per-stage Costs can be made of."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Sample: TypeAlias = Tensor | Sequence[Any]
"""The inputs of one microbatch, or (inputs, targets)."""


def layer_times(
    layers: Sequence[nn.Module],
    sample: Sample,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    repeats: int = 5,
) -> tuple[float, ...]:
    """Seconds of forward and backward of each layer, the median of `repeats` rounds after one to warm up.

    sample: the inputs of one microbatch, or (inputs, targets). With loss_fn and targets the last layer's time includes
    the loss. One thread computes, as in a rank. Copies of the layers are measured, so that weights, gradients,
    buffers and mode stay as they are; random numbers are restored.
    Raises ValueError for a sample that fits neither form, and where a layer cannot run on what it gets or passes on
    anything but one tensor.

    >>> all(t > 0 for t in layer_times([nn.Linear(4, 4), nn.Tanh()], torch.zeros(2, 4)))
    True
    """
    inputs, *targets = (sample,) if isinstance(sample, Tensor) else tuple(sample)
    if not isinstance(inputs, Tensor) or len(targets) > 1:
        raise ValueError(
            "a sample is the tensor of inputs of one microbatch, or (inputs, targets), but this one is a "
            f"{type(sample).__name__} of {', '.join(type(part).__name__ for part in (inputs, *targets))}"
        )
    if loss_fn is not None and not targets:
        raise ValueError("the loss needs targets: give sample=(inputs, targets), or leave loss_fn out")
    if repeats < 1:
        raise ValueError(f"a median takes at least 1 round: repeats={repeats}")
    copies = copy.deepcopy(list(layers))
    loss: _Loss = (lambda output: loss_fn(output, targets[0])) if loss_fn else None
    threads = torch.get_num_threads()
    devices = [inputs.device] if inputs.is_cuda else []
    try:
        torch.set_num_threads(1)
        with torch.enable_grad(), torch.random.fork_rng(devices=devices):
            # round by round, not layer by layer: what else the machine does then slows all layers alike
            rounds = [_one_round(copies, inputs, loss) for _ in range(1 + repeats)]
    finally:
        torch.set_num_threads(threads)
    return tuple(statistics.median(times) for times in zip(*rounds[1:], strict=True))


_Loss: TypeAlias = Callable[[Tensor], Tensor] | None


def _one_round(layers: list[nn.Module], x: Tensor, loss: _Loss) -> list[float]:
    times = []
    for index, layer in enumerate(layers):
        last = index == len(layers) - 1
        try:
            seconds, x = _forward_backward(layer, x, loss if last else None, first=index == 0)
        except Exception as error:
            raise ValueError(
                f"layer {index} ({type(layer).__name__}) cannot be measured on {str(x.dtype).removeprefix('torch.')} "
                f"of shape {tuple(x.shape)}: {type(error).__name__}: {str(error).rstrip('.')}. The sample is what the first layer reads, "
                "and each layer passes on one tensor"
            ) from error
        times.append(seconds)
    return times


def _forward_backward(layer: nn.Module, x: Tensor, loss: _Loss, first: bool) -> tuple[float, Tensor]:
    """(seconds, output). The first layer computes no gradient for its input."""
    wanted: list[Tensor] = [w for w in layer.parameters() if w.requires_grad]
    leaf = x.detach()
    if not first and leaf.is_floating_point():
        wanted.append(leaf.requires_grad_())
    given = leaf.clone()  # a layer may work in place, which a leaf that wants a gradient forbids
    started = _now(x)
    output = layer(given)
    if not isinstance(output, Tensor):
        raise TypeError(f"it returned {type(output).__name__}")
    end = output if loss is None else loss(output)
    seconds = _now(x) - started
    if end.requires_grad and wanted:
        gradient = torch.ones_like(end)
        started = _now(x)
        torch.autograd.grad(end, wanted, gradient, allow_unused=True)
        seconds += _now(x) - started
    return seconds, output.detach()


def _now(x: Tensor) -> float:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter()
