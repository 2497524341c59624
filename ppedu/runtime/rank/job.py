"""What goes to a rank, and what comes back from it: plain data, sent by value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ppedu.core.costs import Costs
from ppedu.core.schedule import Schedule
from ppedu.runtime.model.batches import Data
from ppedu.runtime.rank.lower import Program
from ppedu.runtime.rank.stage import LossFn
from ppedu.runtime.rank.timers import Moment

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


def _cudnn_may_use_tf32() -> bool | None:
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:  # set for each kind of operation alone, which has no short name here
        return None


@dataclass(frozen=True, slots=True)
class Settings:
    """torch's switches as the caller has set them, so that ranks compute what one process would.

    own_device: the caller's default device is a GPU, and so each rank's is its own.
    """

    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    own_device: bool = field(default_factory=lambda: torch.get_default_device().type != "cpu")
    matmul_precision: str = field(default_factory=torch.get_float32_matmul_precision)
    cudnn_tf32: bool | None = field(default_factory=_cudnn_may_use_tf32)
    cudnn_benchmark: bool = field(default_factory=lambda: torch.backends.cudnn.benchmark)
    cudnn_deterministic: bool = field(default_factory=lambda: torch.backends.cudnn.deterministic)
    deterministic: int = field(default_factory=torch.get_deterministic_debug_mode)

    def apply(self) -> None:
        """In a fresh process: set them to the same."""
        torch.set_default_dtype(self.dtype)
        if torch.get_float32_matmul_precision() != self.matmul_precision:
            torch.set_float32_matmul_precision(self.matmul_precision)
        if self.cudnn_tf32 is not None:
            torch.backends.cudnn.allow_tf32 = self.cudnn_tf32
        torch.backends.cudnn.benchmark = self.cudnn_benchmark
        torch.backends.cudnn.deterministic = self.cudnn_deterministic
        torch.set_deterministic_debug_mode(self.deterministic)

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        """Where the caller's code runs on a rank: tensors without a device are made on the rank's."""
        if not self.own_device:
            yield
            return
        with device:
            yield


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
    settings: Settings = field(default_factory=Settings)


@dataclass(slots=True)
class StepReport:
    """What a rank tells of one step. The loss comes from the last rank; where several chains end, each gives its part."""

    step: int
    moments: list[Moment]
    loss: float | None = None
    not_finite: tuple[int, float] | None = None  # (microbatch, loss)
    summed: tuple[float, float] | None = None  # when the gradients of copies were added up


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
    machine: tuple[str, str]  # the host's name, and what tells two hosts of one name apart
    cores: int  # that this rank may use


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
