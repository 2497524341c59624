"""One rank runs its program: a short interpreter that receives, computes, sends, and records when.

Nothing here knows how ranks are started or watched; `report` is called with what each step came to.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from ppedu.core.costs import Costs
from ppedu.core.operations import Action, Entry, Kind
from ppedu.core.schedule import dependencies
from ppedu.runtime.model.shapes import explained
from ppedu.runtime.rank.agreement import Agreement, StepBatch
from ppedu.runtime.rank.channels import Channels, Form
from ppedu.runtime.rank.group import Group, machine_id
from ppedu.runtime.rank.heartbeat import FLUSHING, RETURNING, STEPPING, SUMMING, Heartbeat
from ppedu.runtime.rank.job import RankResult, StepReport, Work, made_optimizer
from ppedu.runtime.rank.lower import Instruction, Recv, Send
from ppedu.runtime.rank.rehearsal import Way, part_of, rehearsed, unnoticed
from ppedu.runtime.rank.replicas import sum_gradients
from ppedu.runtime.rank.stage import Meter, Stage
from ppedu.runtime.rank.timers import ClockTimer, EventTimer, Moment, Timer, in_background, sleep_until
from ppedu.runtime.run import available_cores


class Rank:
    """One rank of a run: `run()` trains and returns its part of the model."""

    def __init__(
        self,
        work: Work,
        group: Group,
        report: Callable[[StepReport], None],
        heartbeat: Heartbeat,
        clock: Callable[[], float],
    ) -> None:
        job = self.job = work.job
        self.work, self.group, self.report, self.heartbeat, self.clock = work, group, report, heartbeat, clock
        self.schedule, self.gpu = job.schedule, group.gpu
        self.train = self.schedule.kinds != {Kind.F}
        self.meter = Meter()
        n = self.schedule.chain_length
        self.stages = {
            s: Stage(
                module.to(group.device), self.meter, first=s % n == 0, loss_fn=job.loss_fn if s % n == n - 1 else None
            )
            for s, module in _one_each(work.modules).items()
        }
        self.is_last = any(stage.loss_fn is not None for stage in self.stages.values())
        is_first = any(stage.first for stage in self.stages.values())
        self.agreement = Agreement(work, group, heartbeat, is_first, self.is_last)
        self.channels = Channels(group, work.program, stamped=job.pace is not None and job.pace.transfer > 0)
        weights = [w for stage in self.stages.values() for w in stage.weights]
        with job.settings.on(group.device):
            self.optimizer = (
                made_optimizer(job.optimizer, weights) if job.optimizer and weights and self.train else None
            )
        self.current: Entry | None = None
        self.step = 0
        self.took: dict[tuple[int, Kind], float] = {}  # seconds of mathematics, the last time
        self.rehearsed: set[Way] = set()
        self.batch = StepBatch()
        self.ready: dict[
            Action, tuple[Tensor, float | None]
        ] = {}  # results, for the operation that needs them; and when
        self.losses: list[tuple[int, Tensor]] = []

    def run(self) -> RankResult:
        torch.manual_seed(self.job.seed + self.work.rank)
        with self.job.settings.on(self.group.device):
            self._train()
        self.heartbeat.put(self.step, RETURNING)
        return self._result()

    def _train(self) -> None:
        for step in range(self.job.steps):
            self.step = step
            for stage in self.stages.values():
                stage.module.zero_grad(set_to_none=True)
            report = self._run_step()
            self.meter.active = False  # the next steps keep as much: the hooks need not cost them time
            stop = self.agreement.stop(step, report.not_finite is not None)
            if self.schedule.chains > 1 and self.train:
                self.heartbeat.put(self.step, SUMMING)
                weights: dict[int, Sequence[Tensor]] = {s: stage.weights for s, stage in self.stages.items()}
                report.summed = sum_gradients(self.schedule, self.group, weights, self.clock)
            if self.optimizer and not stop:
                self.heartbeat.put(self.step, STEPPING)
                self.optimizer.step()
            self.report(report)
            if stop:
                break

    def _run_step(self) -> StepReport:
        self.batch = self.agreement.batch(self.step)
        self.meter.ignore((*self.batch.inputs, *self.batch.targets))
        forms = self.batch.forms
        if self.gpu is not None:
            self._rehearse(forms)
        self.channels.start_step(forms)
        by_events = self.gpu is not None and self.job.pace is None
        timer: Timer = self._timer() if by_events else ClockTimer(self.clock)
        self._interpret(enumerate(self.work.program), self.channels, timer, self.job.pace)
        self.heartbeat.put(self.step, FLUSHING)
        self.channels.end_step()
        return self._report(timer.moments())

    def _timer(self) -> Timer:
        assert self.gpu is not None
        return EventTimer(self.clock, self.gpu, lambda at: self.heartbeat.put(self.step, at))

    def _rehearse(self, forms: Sequence[Form]) -> None:
        """Run a microbatch of each shape that is new, before any message of the step is on its way."""
        was, self.meter.active = self.meter.active, False
        ways = rehearsed(self.schedule, forms, self.rehearsed)
        for i in ways.values():
            part = part_of(self.work.program, i)
            channels = Channels(self.group.over_the_host(), [instruction for _, instruction in part], stamped=False)
            touched = [*(stage.module for stage in self.stages.values()), self.job.loss_fn]
            with unnoticed(touched, self.group.device):
                for _ in range(2):
                    channels.start_step(forms)
                    timer = self._timer()
                    self._interpret(part, channels, timer, None)
                    timer.settle()
                    channels.end_step()
            self.channels.learn(channels)
        if not self.rehearsed and self.gpu is not None:
            self.gpu.reset_peak()
        self.rehearsed |= set(ways)
        self.meter.active = was

    def _interpret(
        self, program: Iterable[tuple[int, Instruction]], channels: Channels, timer: Timer, pace: Costs | None
    ) -> None:
        """Run instructions, each with its number: what the heartbeat shows."""
        self.ready, self.losses = {}, []
        waits_at: int | None = None
        try:
            for at, instruction in program:
                if isinstance(instruction, Recv):
                    self.heartbeat.put(self.step, at)
                    self.ready[instruction.action] = channels.take(instruction.source)
                    waits_at = at  # on NCCL the GPU waits for it, not the host
                    if pace is not None and self.gpu is not None:
                        self.gpu.finish()  # an operation's time begins when its input is there
                elif isinstance(instruction, Send):
                    if channels.group.through_host:
                        timer.settle()  # the copy to the host waits for what it copies: that is computing, not sending
                    self.heartbeat.put(self.step, at)
                    tensor, stamp = self.ready.pop(instruction.action)
                    channels.send(instruction.action, tensor, instruction.to, stamp)
                else:
                    self._operation(at, waits_at, instruction, channels, timer, pace)
                    waits_at = None
        except Exception as error:
            self._blame(error, timer.unsettled())
            raise

    def _operation(
        self, at: int, waits_at: int | None, entry: Entry, channels: Channels, timer: Timer, pace: Costs | None
    ) -> None:
        self.heartbeat.put(self.step, at)
        if pace is None:
            channels.tidy()
        else:
            self._await_transfer(entry, pace)
        timer.start(at, waits_at)
        self.heartbeat.put(self.step, at)  # meanwhile it showed what the GPU is at
        if pace is None:
            self._mathematics(entry, timer)
            end = timer.end()
        else:
            end = self._paced(entry, pace, channels, timer)
        for action in entry.actions:
            if action in self.ready:
                self.ready[action] = (self.ready[action][0], end)

    def _mathematics(self, entry: Entry, timer: Timer) -> None:
        self.current = entry  # what fails from here on is no message
        with self.job.settings.on(self.group.device):
            for action in entry.actions:
                self.compute(action)
        self.current = None
        timer.computed()

    def _blame(self, error: Exception, oldest: int | None) -> None:
        """A GPU tells of a fault late, whatever the host is at by then: the oldest operation that is not known to be over
        is the likely cause."""
        if oldest is None or not _is_of_gpu(error):
            return
        self.heartbeat.put(self.step, oldest)
        error.remark = (  # type: ignore[attr-defined]
            "a GPU tells of a fault late: this is the oldest operation that was not over yet, and the next one may be the "
            "cause as well. CUDA_LAUNCH_BLOCKING=1 tells for sure"
        )

    def _paced(self, entry: Entry, pace: Costs, channels: Channels, timer: Timer) -> float:
        """Compute an entry, then sleep until its nominal time is up, as if the device were that fast.

        Ranks that share cores finish at the same moments. What can wait (the mathematics where they are short, posting
        receives) waits until their messages have passed, or each rank would hold the others up."""
        nominal = pace.duration(entry)
        begin, kind = timer.now(), (entry.actions[0].stage, entry.actions[0].kind)
        if self.took.get(kind, nominal) < nominal / 2:
            sleep_until(begin + nominal / 10, self.clock)
        computing = self.clock()
        in_background(lambda: self._mathematics(entry, timer), self.gpu)
        if self.gpu is not None:
            timer.computed()  # now it is
        self.took[kind] = self.clock() - computing
        sleep_until(begin + nominal / 2, self.clock)
        channels.tidy()
        sleep_until(begin + nominal, self.clock)
        return timer.end()

    def compute(self, action: Action) -> None:
        """Run one operation's mathematics; its result waits in `ready` for a Send or for this rank's next stage."""
        stage, i = self.stages[action.stage], action.microbatch
        received = next((self.ready.pop(needed)[0] for needed in self._received(action)), None)
        result: Tensor | None = None
        match action.kind:
            case Kind.F:
                result = self._forward(action, self.batch.inputs[i] if received is None else received)
            case Kind.B:
                result = stage.backward(i, received)
            case Kind.I:
                result = stage.backward_input(i, received)
            case Kind.W:
                stage.backward_weight(i)
        if result is not None:
            self.ready[action] = (result, None)

    def _forward(self, action: Action, inputs: Tensor) -> Tensor | None:
        """What goes to the next stage; the last one keeps its loss here."""
        stage, i = self.stages[action.stage], action.microbatch
        share = self.batch.sizes[i] / sum(self.batch.sizes)
        target = None if stage.loss_fn is None else self.batch.targets[i]
        with explained(action.stage % self.schedule.chain_length, stage.module, inputs):
            output, loss = stage.forward(i, inputs, target, share, self.train)
        if loss is None:
            return output
        self.losses.append((i, loss))
        return None

    def _received(self, action: Action) -> list[Action]:
        """What `action` takes from `ready`: the previous stage's output, or the next stage's gradient."""
        return [needed for needed in dependencies(action, self.schedule) if needed.stage != action.stage]

    def _await_transfer(self, entry: Entry, pace: Costs) -> None:
        """Under a pace with a transfer time, a tensor counts as arrived only so long after it was computed."""
        if not pace.transfer:
            return
        for needed in (n for action in entry.actions for n in self._received(action)):
            stamp = self.ready[needed][1]
            if stamp is not None and self.schedule.rank_of_stage[needed.stage] != self.work.at.pipeline:
                sleep_until(stamp + pace.transfer, self.clock)

    def _report(self, moments: list[Moment]) -> StepReport:
        if not self.is_last:
            return StepReport(self.step, moments)
        total, samples, bad = 0.0, sum(self.batch.sizes), None
        for i, loss in sorted(self.losses):
            value = loss.item()
            total += value * (self.batch.sizes[i] / samples)
            if not math.isfinite(value) and bad is None:
                bad = (i, value)
        return StepReport(self.step, moments, total, bad)

    def _result(self) -> RankResult:
        tensors: dict[str, Tensor] = {}
        gradients: dict[str, Tensor] = {}
        for s, stage in self.stages.items():
            if s >= self.schedule.chain_length:
                continue  # a copy has the same weights
            state = {**dict(stage.module.named_parameters()), **dict(stage.module.named_buffers())}
            for local, tensor in state.items():
                name = self.work.names[s][local]
                tensors[name] = tensor.detach().cpu()
                if self.job.gradients and tensor.grad is not None:
                    gradients[name] = tensor.grad.cpu()
        peak, device = (None, "CPU") if self.gpu is None else (self.gpu.peak_bytes(), self.gpu.name())
        return RankResult(
            tensors, gradients, self.meter.peak, peak, device, self.group.backend, self._parameter_bytes(), self._unsplit(),
            machine_id(), available_cores(),
        )  # fmt: skip

    def _parameter_bytes(self) -> int:
        weights = [w for stage in self.stages.values() for w in stage.module.parameters()]
        return sum({w.untyped_storage().data_ptr(): w.untyped_storage().nbytes() for w in weights}.values())

    def _unsplit(self) -> tuple[str, ...]:
        """The names in the model of weights whose gradients came in I."""
        found = {id(w) for stage in self.stages.values() for w in stage.unsplit}
        named = [(s, local, w) for s, stage in self.stages.items() for local, w in stage.module.named_parameters()]
        return tuple(dict.fromkeys(self.work.names[s][local] for s, local, w in named if id(w) in found))


def _one_each(modules: dict[int, nn.Module]) -> dict[int, nn.Module]:
    """Where a rank holds a stage twice, for two chains, the second one becomes a copy."""
    seen: set[int] = set()
    own: dict[int, nn.Module] = {}
    for s, module in modules.items():
        own[s] = copy.deepcopy(module) if id(module) in seen else module
        seen.add(id(module))
    return own


def _is_of_gpu(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and "CUDA error" in str(error)
