"""What goes to a rank, and what comes back from it: plain data, sent by value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from ppedu.core.costs import Costs
from ppedu.core.schedule import Schedule
from ppedu.runtime.model.batches import Data
from ppedu.runtime.processes.watch import Place
from ppedu.runtime.rank import heartbeat
from ppedu.runtime.rank.channels import pairs_of
from ppedu.runtime.rank.lower import Program, Recv, Send
from ppedu.runtime.rank.mesh import Coordinate, Mesh
from ppedu.runtime.rank.stage import LossFn
from ppedu.runtime.rank.timers import Moment

FOREVER = timedelta(days=7)  # who hangs is found by the process that watches, not by a time-out of the transport

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


def _cudnn_may_use_tf32() -> bool | None:
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:  # set for each kind of operation alone, which has no short name here
        return None


def _set_cudnn(name: str) -> Callable[[Any], None]:
    return lambda value: setattr(torch.backends.cudnn, name, value)


# How each of torch's switches is read and set.
_SWITCHES: tuple[tuple[Callable[[], Any], Callable[[Any], None]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (_cudnn_may_use_tf32, _set_cudnn("allow_tf32")),
    (lambda: torch.backends.cudnn.benchmark, _set_cudnn("benchmark")),
    (lambda: torch.backends.cudnn.deterministic, _set_cudnn("deterministic")),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """torch's switches as the caller has set them, so that ranks compute what one process would.

    own_device: the caller's default device is a GPU, and so each rank's is its own.
    """

    values: tuple[Any, ...] = field(default_factory=lambda: tuple(read() for read, _ in _SWITCHES))
    own_device: bool = field(default_factory=lambda: torch.get_default_device().type != "cpu")

    def apply(self) -> None:
        """In a fresh process: set them to the same."""
        for (read, switch), value in zip(_SWITCHES, self.values, strict=True):
            if value is not None and read() != value:
                switch(value)

    @contextmanager
    def on(self, device: torch.device) -> Iterator[None]:
        """Where the caller's code runs on a rank: tensors without a device are made on the rank's."""
        if not self.own_device:
            yield
            return
        with device:
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training run, as all its ranks know it. device, timeout: as `ppedu.train` takes them."""

    schedule: Schedule
    loss_fn: LossFn
    optimizer: MakeOptimizer | None = None
    steps: int = 1
    device: str = "cpu"
    pace: Costs | None = None
    gradients: bool = False
    seed: int = 0
    timeout: float = 60.0
    threads: int = 1
    settings: Settings = field(default_factory=Settings)

    @property
    def mesh(self) -> Mesh:
        """Today every rank holds stages of its own: there is one pipeline, and no stage is sharded."""
        return Mesh(self.schedule.num_ranks)

    @property
    def patience(self) -> timedelta:
        """How long the transport waits for a message. A rank may rightly wait while all operations of a step run, each for
        as long as `timeout` allows. Who watches finds a hang long before, and whose it is; this is for when nobody watches
        any more."""
        operations = sum(len(order) for order in self.schedule.orders)
        return min(FOREVER, timedelta(seconds=self.timeout * (operations + 10)))


@dataclass(slots=True)
class Work:
    """All that one rank needs: the job, and its own stages, not the whole model. Goes to it by value."""

    job: Job
    rank: int
    program: Program
    modules: dict[int, nn.Module]
    names: dict[int, dict[str, str]]  # stage -> a weight's or buffer's name in the stage -> its name in the model
    data: Data | None  # on the ranks at the ends of a chain
    pairs: set[tuple[int, int]]  # the ordered pairs of ranks that talk, of the whole job

    @property
    def at(self) -> Coordinate:
        return self.job.mesh.coordinate(self.rank)

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The weights and buffers of this rank's stages, by their names in the model."""
        for s, module in self.modules.items():
            for local, tensor in (*module.named_parameters(), *module.named_buffers()):
                yield self.names[s][local], tensor

    def place(self, step: int, at: int, since: float) -> Place:
        """What the rank is doing, in words, from the numbers that it publishes."""
        short = self.job.schedule.short
        if at < 0:
            waiting, shown = at in heartbeat.WAITING, step if step >= 0 else None
            return Place(f"is {heartbeat.PLACES[at]}", None, shown, waiting, since, long=at == heartbeat.GATHERING)
        match self.program[at]:
            case Recv(action, source):
                return Place(f"waits for rank {source}'s {short(action)}", None, step, True, since)
            case Send(action, to):
                return Place(f"sends {short(action)} to rank {to}", None, step, True, since)
            case entry:
                return Place(f"computes {short(entry)}", short(entry), step, False, since)


def works_of(
    job: Job, programs: Sequence[Program], stages: Sequence[nn.Module], names: Sequence[dict[str, str]], data: Data
) -> list[Work]:
    """What each rank of the mesh is given, in the order of the world. stages, names: of one chain, in its order."""
    n, works = job.schedule.chain_length, []
    for rank in range(job.mesh.size):
        at = job.mesh.coordinate(rank)
        mine = job.schedule.stages_of(at.pipeline)
        program = _in_the_world(programs[at.pipeline], job.mesh, at) if programs else ()
        modules, names_here = {s: stages[s % n] for s in mine}, {s: names[s % n] for s in mine}
        at_an_end = any(s % n in (0, n - 1) for s in mine)
        works.append(Work(job, rank, program, modules, names_here, data if at_an_end else None, set()))
    pairs = pairs_of([work.program for work in works])
    return [replace(work, pairs=pairs) for work in works]


def _in_the_world(program: Program, mesh: Mesh, at: Coordinate) -> Program:
    """A schedule counts ranks within a pipeline; messages go to ranks of the world."""

    def rank(pipeline: int) -> int:
        return mesh.rank(replace(at, pipeline=pipeline))

    return tuple(
        replace(i, to=rank(i.to)) if isinstance(i, Send)
        else replace(i, source=rank(i.source)) if isinstance(i, Recv)
        else i
        for i in program
    )  # fmt: skip


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
    peak_activation_bytes: int | None  # None where the engine does not tell
    peak_device_bytes: int | None
    device: str
    backend: str
    parameter_bytes: int
    unsplit: tuple[str, ...]  # names of weights whose gradients came in I
    machine: tuple[str, str]  # the host's name, and what tells two hosts of one name apart
    cores: int  # that this rank may use


def made_optimizer(optimizer: MakeOptimizer, weights: Any) -> torch.optim.Optimizer:
    made: Any = optimizer(weights)
    if not callable(getattr(made, "step", None)):
        raise TypeError(
            "optimizer is a function that returns an optimizer, like lambda w: torch.optim.SGD(w, lr=0.1), "
            f"but it returned {type(made).__name__}"
        )
    return made  # type: ignore[no-any-return]
