"""One rank runs its program: a short interpreter that receives, computes, sends, and records when.

Nothing here knows how ranks are started or watched; `Reporter` is what they tell to whom.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, MutableSequence, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ppedu.runtime.channels import Channels, Group
from ppedu.runtime.fit import explained
from ppedu.runtime.lower import Program, Recv, Send
from ppedu.runtime.stage import LossFn, Meter, Stage
from ppedu.schedule import Action, Costs, Entry, Kind, Schedule

Batch = tuple[Tensor, Tensor]
Data = Sequence[Batch] | Callable[[int], Batch]
MakeOptimizer = Callable[[Any], torch.optim.Optimizer]

# Where a rank is when it is at none of its program's instructions: what a hang is explained with.
STARTING, READING, ANNOUNCING, AWAITING_BATCH, FLUSHING, STEPPING, RETURNING, CONNECTING = range(-1, -9, -1)
PLACES = {
    STARTING: "starting up",
    READING: "reading its batch",
    ANNOUNCING: "waiting for the other ranks to start the step",
    AWAITING_BATCH: "waiting for the first rank to start the step",
    FLUSHING: "waiting for its last messages to leave",
    STEPPING: "in its optimizer step",
    RETURNING: "handing back its results",
    CONNECTING: "connecting to the other ranks",
}

WAITING = (ANNOUNCING, AWAITING_BATCH, FLUSHING, CONNECTING)  # for other ranks


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
    data: Data | None  # on the first and last rank
    steps: int
    pace: Costs | None
    gradients: bool
    threads: int
    seed: int


@dataclass(slots=True)
class Moment:
    """One entry of an order as it ran: seconds on the system-wide clock. `computed`: when the mathematics were done."""

    start: float
    computed: float
    end: float


@dataclass(slots=True)
class StepReport:
    """What a rank tells of one step. The loss comes from the last rank."""

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


class Reporter(Protocol):
    """Whom a rank tells what it did."""

    def step(self, report: StepReport) -> None: ...


class Board:
    """Where a rank publishes what it is doing, in memory that the process which started it can read.

    Three numbers a rank: the step, the instruction's number in the program (or one of PLACES), and since when.
    """

    WIDTH = 3

    def __init__(self, cells: MutableSequence[float], rank: int) -> None:
        self.cells, self.base = cells, rank * self.WIDTH

    def put(self, step: int, at: int) -> None:
        self.cells[self.base] = step
        self.cells[self.base + 1] = at
        self.cells[self.base + 2] = time.perf_counter()

    @staticmethod
    def blank(ranks: int) -> list[float]:
        """The numbers before any rank has begun."""
        return [-1, STARTING, time.perf_counter()] * ranks

    @staticmethod
    def read(cells: Sequence[float], rank: int) -> tuple[int, int, float]:
        """(step, instruction, since when) of a rank."""
        step, at, since = cells[rank * Board.WIDTH : (rank + 1) * Board.WIDTH]
        return int(step), int(at), since


def microbatch_sizes(samples: int, m: int) -> list[int]:
    """Samples in each of m microbatches: they differ by one at most, as torch.tensor_split cuts."""
    return [samples // m + (i < samples % m) for i in range(m)]


class Rank:
    """One rank of a run: `run()` trains and returns its part of the model."""

    def __init__(self, work: Work, group: Group, reporter: Reporter, board: Board, clock: Callable[[], float]) -> None:
        self.work, self.group, self.reporter, self.board, self.clock = work, group, reporter, board, clock
        self.schedule = work.schedule
        self.train = any(a.kind is not Kind.F for order in self.schedule.orders for e in order for a in e.actions)
        self.meter = Meter()
        last = self.schedule.chain_length - 1
        self.stages = {
            s: Stage(
                module.to(group.device), self.meter, first=s == 0, loss_fn=work.loss_fn if s == last else None
            )
            for s, module in work.modules.items()
        }
        self.is_first, self.is_last = 0 in self.stages, last in self.stages
        self.first_rank, self.last_rank = self.schedule.rank_of_stage[0], self.schedule.rank_of_stage[last]
        self.channels = Channels(group, work.program, stamped=work.pace is not None and work.pace.transfer > 0)
        weights = [w for stage in self.stages.values() for w in stage.weights]
        self.optimizer = _made(work.optimizer, weights) if work.optimizer and weights and self.train else None
        self.do = _slowly if work.pace else _at_once
        self.current: Entry | None = None
        self.step = 0
        self.sample_shapes: dict[tuple[torch.Size, torch.dtype], int] = {}

    def run(self) -> RankResult:
        torch.manual_seed(self.work.seed + self.work.rank)
        for self.step in range(self.work.steps):
            for stage in self.stages.values():
                stage.module.zero_grad(set_to_none=True)
            report = self._run_step()
            self.meter.active = False  # the next steps keep as much: the hooks need not cost them time
            stop = self._agree_to_stop(report)
            if self.optimizer and not stop:
                self.board.put(self.step, STEPPING)
                self.optimizer.step()
            self.reporter.step(report)
            if stop:
                break
        self.board.put(self.step, RETURNING)
        return self._result()

    def _run_step(self) -> StepReport:
        self._read_batch()
        self.channels.start_step([(size, self.sample) for size in self.sizes])
        self.ready: dict[Action, tuple[Tensor, float | None]] = {}  # results that wait for the operation that needs them
        self.losses: list[tuple[int, Tensor]] = []
        timer = _EventTimer(self.clock, self.group.device) if self._by_events else _ClockTimer(self.clock)
        for at, instruction in enumerate(self.work.program):
            self.board.put(self.step, at)
            if isinstance(instruction, Recv):
                self.ready[instruction.action] = self.channels.take(instruction.source)
            elif isinstance(instruction, Send):
                tensor, stamp = self.ready.pop(instruction.action)
                self.channels.send(instruction.action, tensor, instruction.to, stamp)
            else:
                self.current = instruction
                self._await_transfer(instruction)
                timer.start()
                self.do(self, instruction, timer)
                end = timer.end()
                for action in instruction.actions:
                    if action in self.ready:
                        self.ready[action] = (self.ready[action][0], end)
                self.current = None
        self.board.put(self.step, FLUSHING)
        self.channels.end_step()
        return self._report(timer.moments())

    @property
    def _by_events(self) -> bool:
        return self.group.device.type == "cuda" and self.work.pace is None

    def _read_batch(self) -> None:
        """Cut this step's batch on the first and last rank, and agree on its size."""
        self.inputs: Sequence[Tensor] = ()
        self.targets: Sequence[Tensor] = ()
        m, samples = self.schedule.num_microbatches, 0
        self.sample = 0  # which shape the samples have: sequences may be longer in one step than in another
        if self.work.data is not None:
            self.board.put(self.step, READING)
            inputs, targets = batch_of(self.work.data, self.step)
            check_batch(inputs, targets, m)
            samples = len(inputs)
            if self.is_first:
                self.inputs = inputs.to(self.group.device).tensor_split(m)
                self.sample = self.sample_shapes.setdefault((inputs.shape[1:], inputs.dtype), len(self.sample_shapes))
            if self.is_last:
                self.targets = targets.to(self.group.device).tensor_split(m)
            self.meter.ignore((*self.inputs, *self.targets))
        if self.is_first:
            self.board.put(self.step, ANNOUNCING)
            for other in range(self.group.size):
                if other != self.group.rank:
                    self.group.send_number(samples, other).wait()
                    self.group.send_number(self.sample, other).wait()
        else:
            self.board.put(self.step, AWAITING_BATCH)
            agreed = int(self.group.receive_number(self.first_rank))
            self.sample = int(self.group.receive_number(self.first_rank))
            if self.is_last and samples != agreed:
                raise ValueError(
                    f"data gave the first rank {agreed} samples and the last rank {samples} in step {self.step}. "
                    "It is called on both, so it must return the same batch for the same step (seed it with the step)"
                )
            samples = agreed
        self.sizes = microbatch_sizes(samples, m)

    def compute(self, action: Action) -> None:
        """Run one operation's mathematics; its result waits in `ready` for a Send or for this rank's next stage."""
        stage, i = self.stages[action.stage], action.microbatch
        if action.kind is Kind.F:
            inputs = self.inputs[i] if stage.first else self._input(action)
            if stage.loss_fn is None:
                with explained(action.stage, stage.module, inputs):
                    result, _ = stage.forward(i, inputs, train=self.train)
                self.ready[action] = (result, None)
            else:
                share = self.sizes[i] / sum(self.sizes)
                with explained(action.stage, stage.module, inputs):
                    _, loss = stage.forward(i, inputs, self.targets[i], share, self.train)
                assert loss is not None
                self.losses.append((i, loss))
            return
        if action.kind is Kind.W:
            stage.backward_weight(i)
            return
        gradient = None if stage.loss_fn is not None else self._input(action)
        back = stage.backward if action.kind is Kind.B else stage.backward_input
        result_gradient = back(i, gradient)
        if result_gradient is not None:
            self.ready[action] = (result_gradient, None)

    def _needed(self, action: Action) -> list[Action]:
        """What `action` takes from `ready`: the previous stage's output, or the next stage's gradient."""
        if action.kind is Kind.W:
            return []
        kinds = (Kind.F,) if action.kind is Kind.F else (Kind.B, Kind.I)
        stage = action.stage + (-1 if action.kind is Kind.F else 1)
        return [a for kind in kinds if (a := Action(stage, kind, action.microbatch)) in self.ready]

    def _input(self, action: Action) -> Tensor:
        return self.ready.pop(self._needed(action)[0])[0]

    def _await_transfer(self, entry: Entry) -> None:
        """Under a pace with a transfer time, a tensor counts as arrived only so long after it was computed."""
        pace = self.work.pace
        if pace is None or not pace.transfer:
            return
        for needed in (n for action in entry.actions for n in self._needed(action)):
            stamp = self.ready[needed][1]
            if stamp is not None and self.schedule.rank_of_stage[needed.stage] != self.work.rank:
                _sleep_until(stamp + pace.transfer, self.clock)

    def _report(self, moments: list[Moment]) -> StepReport:
        if not self.is_last:
            return StepReport(self.step, moments)
        total, samples, bad = 0.0, sum(self.sizes), None
        for i, loss in sorted(self.losses):
            value = loss.item()
            total += value * (self.sizes[i] / samples)
            if not math.isfinite(value) and bad is None:
                bad = (i, value)
        return StepReport(self.step, moments, total, bad)

    def _agree_to_stop(self, report: StepReport) -> bool:
        """The last rank, which alone knows the loss, tells the others before anyone's optimizer moves a weight. It knew
        before their last backward began, so this waits for nothing."""
        if self.is_last:
            stop = report.not_finite is not None
            for other in range(self.group.size):
                if other != self.group.rank:
                    self.group.send_number(stop, other).wait()
            return stop
        return bool(self.group.receive_number(self.last_rank))

    def _result(self) -> RankResult:
        tensors: dict[str, Tensor] = {}
        gradients: dict[str, Tensor] = {}
        for s, stage in self.stages.items():
            state = {**dict(stage.module.named_parameters()), **dict(stage.module.named_buffers())}
            for local, tensor in state.items():
                name = self.work.names[s][local]
                tensors[name] = tensor.detach().cpu()
                if self.work.gradients and tensor.grad is not None:
                    gradients[name] = tensor.grad.cpu()
        cuda = self.group.device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self.group.device) if cuda else None
        device = torch.cuda.get_device_name(self.group.device) if cuda else "CPU"
        return RankResult(tensors, gradients, self.meter.peak, peak, device, self.group.backend)


def batch_of(data: Data, step: int) -> Batch:
    """The batch of a step: a list goes round, a function is asked."""
    batch = data(step) if callable(data) else data[step % len(data)]
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not all(isinstance(t, Tensor) for t in batch):
        raise TypeError(f"a batch is (inputs, targets), two tensors, but data gave {_what(batch)} for step {step}")
    return batch[0], batch[1]


def check_batch(inputs: Tensor, targets: Tensor, m: int) -> None:
    if not inputs.dim() or not targets.dim() or len(inputs) != len(targets):
        raise ValueError(
            "inputs and targets have one entry a sample in their first dimension, as many in both, "
            f"but their shapes are {tuple(inputs.shape)} and {tuple(targets.shape)}"
        )
    if len(inputs) < m:
        raise ValueError(
            f"a batch of {len(inputs)} samples cannot be cut into m={m} microbatches: "
            f"every microbatch needs a sample. Take m of at most {len(inputs)}, or a larger batch"
        )


def _made(optimizer: MakeOptimizer, weights: Any) -> torch.optim.Optimizer:
    made: Any = optimizer(weights)
    if not callable(getattr(made, "step", None)):
        raise TypeError(
            "optimizer is a function that returns an optimizer, like lambda w: torch.optim.SGD(w, lr=0.1), "
            f"but it returned {type(made).__name__}"
        )
    return made  # type: ignore[no-any-return]


def _what(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"({', '.join(type(v).__name__ for v in value)})"
    return type(value).__name__


def _at_once(rank: Rank, entry: Entry, timer: Timer) -> None:
    for action in entry.actions:
        rank.compute(action)
    timer.computed()


def _slowly(rank: Rank, entry: Entry, timer: Timer) -> None:
    """The mathematics, then sleep until the entry's nominal time is up, as if the device were that fast."""
    assert rank.work.pace is not None
    deadline = timer.now() + rank.work.pace.duration(entry)
    _background().submit(_at_once, rank, entry, timer).result()
    if rank.group.device.type == "cuda":
        torch.cuda.synchronize(rank.group.device)
        timer.computed()
    _sleep_until(deadline, rank.clock)


_pool: list[ThreadPoolExecutor] = []


def _background() -> ThreadPoolExecutor:
    """A thread of low priority for paced mathematics. Where ranks share cores, one that is due to wake and pass on a
    message must not queue behind another's mathematics, which has time to spare."""
    if not _pool:
        _pool.append(ThreadPoolExecutor(1, "mathematics", _lower_priority))
    return _pool[0]


def _lower_priority() -> None:
    if sys.platform == "linux":  # only there a priority belongs to a thread
        os.setpriority(os.PRIO_PROCESS, 0, 19)


def _sleep_until(deadline: float, clock: Callable[[], float]) -> None:
    while (left := deadline - clock()) > 0:
        time.sleep(left)


class Timer(Protocol):
    """Records the moments of a step."""

    def now(self) -> float: ...
    def start(self) -> None: ...
    def computed(self) -> None: ...
    def end(self) -> float: ...
    def moments(self) -> list[Moment]: ...


@dataclass(slots=True)
class _ClockTimer:
    now: Callable[[], float]
    done: list[Moment] = field(default_factory=list)

    def start(self) -> None:
        moment = self.now()
        self.done.append(Moment(moment, moment, moment))

    def computed(self) -> None:
        self.done[-1].computed = self.now()

    def end(self) -> float:
        self.done[-1].end = self.now()
        return self.done[-1].end

    def moments(self) -> list[Moment]:
        return self.done


class _EventTimer:
    """CUDA events: when the GPU, not the host, began and finished. Read once, at the end of the step."""

    def __init__(self, clock: Callable[[], float], device: torch.device) -> None:
        torch.cuda.synchronize(device)
        self.device, self.now = device, clock
        self.origin = torch.cuda.Event(enable_timing=True)
        self.origin.record()
        self.origin.synchronize()
        self.zero = clock()
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def start(self) -> None:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self.events.append((begin, end))

    def computed(self) -> None:
        pass

    def end(self) -> float:
        self.events[-1][1].record()
        return 0.0

    def moments(self) -> list[Moment]:
        torch.cuda.synchronize(self.device)
        times = [(self.zero + self.origin.elapsed_time(a) / 1e3, self.zero + self.origin.elapsed_time(b) / 1e3)
                 for a, b in self.events]  # fmt: skip
        return [Moment(start, end, end) for start, end in times]

