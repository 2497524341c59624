"""What goes to a rank, and what comes back from it: plain data, sent by value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ppedu.runtime.batches import Data
from ppedu.runtime.clocks import Moment
from ppedu.runtime.lower import Program
from ppedu.runtime.stage import LossFn
from ppedu.schedule import Costs, Schedule

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


@dataclass(slots=True)
class Work:
    """All that one rank needs: its own stages, not the whole model. Goes to it by value."""

    rank: int
    schedule: Schedule
    program: Program
    modules: dict[int, nn.Module]
    names: dict[int, dict[str, str]]  # stage -> a weight's or buffer's name in the stage -> its name in the model
    loss_fn: LossFn
    optimizer: MakeOptimizer | None
    data: Data | None  # on the ranks at the ends of a chain
    steps: int
    pace: Costs | None
    gradients: bool
    threads: int
    seed: int
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)  # torch.set_default_dtype of the caller


@dataclass(slots=True)
class StepReport:
    """What a rank tells of one step. The loss comes from the last rank; where several chains end, each gives its part."""

    step: int
    moments: list[Moment]
    loss: float | None = None
    not_finite: tuple[int, float] | None = None  # (microbatch, loss)


@dataclass(slots=True)
class RankResult:
    """What a rank hands back at the end: its part of the model, and what it measured."""

    tensors: dict[str, Tensor]
    gradients: dict[str, Tensor]
    peak_activation_bytes: int
    peak_device_bytes: int | None
    device: str
    backend: str
    parameter_bytes: int
    unsplit: tuple[str, ...]  # names of weights whose gradients came in I


class Reporter(Protocol):
    """Whom a rank tells what it did."""

    def step(self, report: StepReport) -> None: ...


def made_optimizer(optimizer: MakeOptimizer, weights: Any) -> torch.optim.Optimizer:
    made: Any = optimizer(weights)
    if not callable(getattr(made, "step", None)):
        raise TypeError(
            "optimizer is a function that returns an optimizer, like lambda w: torch.optim.SGD(w, lr=0.1), "
            f"but it returned {type(made).__name__}"
        )
    return made  # type: ignore[no-any-return]
