"""The oracle: plain training of the whole model on whole batches, in this process, in float64 on the CPU."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import ppedu
from ppedu.doctor.verdict import device, require

Batch = tuple[Tensor, Tensor]
TOLERANCE = 1e-10  # of the largest number of a tensor: sums are taken in another order, and by other kernels


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs, targets)


def momentum(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.05, momentum=0.9)


def layers(count: int, width: int = 4, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """`count` linear layers with a Tanh after each but the last, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pairs = [layer for _ in range(count) for layer in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*pairs[:-1]).to(dtype)


def batch(samples: int, width: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64) -> Batch:
    numbers = torch.Generator().manual_seed(seed)
    inputs, targets = (torch.randn(samples, width, generator=numbers, dtype=torch.float64) for _ in range(2))
    return inputs.to(dtype), targets.to(dtype)


@dataclass(frozen=True, slots=True)
class Trained:
    """What training gave: the losses step by step, the last step's gradients, and the weights (and buffers) afterwards."""

    losses: Sequence[float]
    gradients: Mapping[str, Tensor]
    state: Mapping[str, Tensor]


def plain(model: nn.Module, data: Sequence[Batch], loss_fn: Any, optimizer: Any, steps: int) -> Trained:
    """Train a copy of the model as everybody does."""
    model = copy.deepcopy(model)
    made = optimizer(model.parameters())
    losses = []
    for step in range(steps):
        inputs, targets = data[step % len(data)]
        model.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        losses.append(loss.item())
        made.step()
    return Trained(losses, {n: w.grad for n, w in model.named_parameters() if w.grad is not None}, model.state_dict())


def deviation(found: Trained, wanted: Trained) -> tuple[float, str]:
    """(how far the worst tensor is off, as a share of its largest number; which one). Infinite where one is missing."""
    pairs = {"the losses": (torch.tensor(found.losses).double(), torch.tensor(wanted.losses).double())}
    for kind, ours, theirs in (("gradient of", found.gradients, wanted.gradients), ("", found.state, wanted.state)):
        if ours.keys() != theirs.keys():
            return math.inf, f"the names {sorted(ours.keys() ^ theirs.keys())}"
        pairs |= {f"{kind} {name}".strip(): (ours[name].cpu(), theirs[name]) for name in theirs}
    return max((_off(*pair), name) for name, pair in pairs.items())


def _off(found: Tensor, wanted: Tensor) -> float:
    if found.shape != wanted.shape or found.dtype != wanted.dtype or not found.isfinite().all():
        return math.inf
    scale = wanted.abs().max().item()
    worst = (found - wanted).abs().max().item()
    return worst / scale if scale else (math.inf if worst else 0.0)


def trained(
    schedule: ppedu.Schedule,
    *,
    model: nn.Sequential | None = None,
    data: Sequence[Batch] | None = None,
    loss_fn: Any = mse,
    steps: int = 2,
    samples: int = 13,
    tolerance: float = TOLERANCE,
    **options: Any,
) -> tuple[ppedu.Run, float]:
    """Train under the schedule, on the GPU where there is one: (the run, how far it is off plain training).

    Raises Failed where that is more than `tolerance`. By default float64, and microbatches that differ in size.
    """
    model = layers(max(4, schedule.chain_length)) if model is None else model
    data = [batch(samples, seed=seed) for seed in range(2)] if data is None else data
    wanted = plain(model, data, mse, momentum, steps)
    options = {"device": device(), "progress": False, "gradients": True, **options}
    run = ppedu.train(model, schedule, data, loss_fn, momentum, steps=steps, **options)
    require(run.stopped is None, f"{schedule.label} stopped: {run.stopped}")
    off, which = deviation(Trained(run.losses, run.gradients or {}, model.state_dict()), wanted)
    require(
        off <= tolerance,
        f"{schedule.label}: {which} is off by {off:.1e}, where {tolerance:.0e} is allowed ({run.where})",
    )
    return run, off
