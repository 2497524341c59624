"""train(): check, cut, lower, start the ranks (or join the world that torchrun made), and put the results together."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from threading import Event
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ppedu.core.costs import Costs
from ppedu.core.schedule import Schedule
from ppedu.runtime.errors import RunError, RunStopped
from ppedu.runtime.joined import join as joined
from ppedu.runtime.model.batches import Data, batch_of, check_batch
from ppedu.runtime.model.shapes import check_fit
from ppedu.runtime.model.split import ModelLike, layers_of, stage_parameter_names, stages_of
from ppedu.runtime.processes import world
from ppedu.runtime.processes.interrupts import interrupts_held
from ppedu.runtime.processes.launch import Place, run_ranks
from ppedu.runtime.processes.pickling import dumps
from ppedu.runtime.rank import heartbeat as board
from ppedu.runtime.rank.channels import pairs_of
from ppedu.runtime.rank.job import MakeOptimizer, RankResult, StepReport, Work
from ppedu.runtime.rank.lower import Recv, Send, lower
from ppedu.runtime.rank.replicas import copy_sets
from ppedu.runtime.rank.stage import LossFn
from ppedu.runtime.run import Overrun, Run, _where, available_cores, find_overruns, step_timeline

__all__ = ["Run", "RunError", "train"]

Progress = Callable[[int, int, float], object]
"""(steps done, steps, loss of the last one): called after each step."""


def train(
    model: ModelLike,
    schedule: Schedule,
    data: Data,
    loss_fn: LossFn,
    optimizer: MakeOptimizer | None = None,
    steps: int = 1,
    device: str = "auto",
    pace: Costs | None = None,
    *,
    gradients: bool = False,
    seed: int = 0,
    timeout: float = 60.0,
    progress: bool | Progress = True,
    stop: Event | None = None,
) -> Run:
    """Train `model` for real under `schedule`, one process per rank, and measure when each operation ran.

    model: a sequence of layers (nn.Sequential, a list of modules), or what `ppedu.split` returned. Its weights (and
        buffers) hold the trained values afterwards.
    data: a list of batches (inputs, targets), gone round where `steps` ask for more, or a function of the step that
        returns one. Both tensors have the samples in their first dimension. The function is called on the first and
        on the last rank (with several chains, of each), so it returns the same batch for the same step; and once here,
        to check the batch.
    loss_fn: (outputs, targets) -> the mean over the samples. Each microbatch counts with its share of the batch, so the
        gradients equal those of the whole batch.
    optimizer: parameters -> optimizer, like `lambda w: torch.optim.SGD(w, lr=0.1)`; each rank makes one for its stage,
        and its state lives for this call. None leaves the weights as they are. Where a schedule runs two chains, each
        stage has two copies, which get the sum of both gradients after the step and stay equal as long as the optimizer
        treats each weight by itself; buffers come back from the first one.
    device: "cpu", "cuda", or "auto": one GPU per rank over NCCL where there are enough, else ranks share the GPUs and
        send through host memory over gloo, else CPU processes over gloo.
    pace: nominal seconds per operation. The mathematics run, and the operation then sleeps until its time is up, as if
        its device were that fast: how a machine with fewer cores than ranks shows what p devices do.
    gradients: keep those of the last step in the Run. seed: of torch's random numbers in rank r, plus r.
    timeout: seconds after which a rank that does not get on in one operation counts as hung.
    progress: a bar over the steps, or a function that is called with (steps done, steps, loss) after each.
    stop: an event (threading.Event); once another thread sets it, the run ends in RunStopped within a moment.

    On a GPU each new shape of a microbatch is first run once, unmeasured: model and loss are called once more for it.

    Under torchrun every rank calls this, joins the world that is there, and returns its Run with the whole timeline. `stop`
    may be set on any rank, progress is told on rank 0, and a RunError is raised on every rank that is left.
    A loss that is not finite ends the run: what it measured so far is returned, `Run.stopped` says where, and the
    weights are those before that step. Raises ValueError, TypeError or ScheduleError for what cannot run, before
    anything starts, and RunError for the rank that failed, died or hung.

    >>> import ppedu, torch
    >>> layers = [torch.nn.Linear(4, 4) for _ in range(2)]
    >>> batch = torch.ones(8, 4), torch.zeros(8, 4)
    >>> sgd = lambda weights: torch.optim.SGD(weights, lr=0.1)
    >>> run = ppedu.train(layers, ppedu.one_f_one_b(p=2, m=4), [batch], torch.nn.functional.mse_loss, sgd,
    ...                   steps=2, progress=False)
    >>> run.losses[1] < run.losses[0], run.timeline.peak_in_flight
    (True, (2, 1))
    """
    _check_arguments(schedule, data, loss_fn, optimizer, steps, device, pace, timeout)
    _check_options(seed, progress, stop)
    programs = lower(schedule)
    n = schedule.chain_length
    if n != schedule.num_ranks and n > len(layers := layers_of(model)):
        raise ValueError(
            f"{schedule.label} has {n} stages, of at least one layer each, but the model has {len(layers)} layers. "
            "Take a smaller p or v, a schedule with one stage a rank, or a model with more layers"
        )
    stages = stages_of(model, n)
    names = stage_parameter_names(model, stages)
    _check_data(data, schedule, stages)
    is_joined = world.found(schedule.num_ranks)
    threads = 1 if pace else max(1, available_cores() // (world.ranks_here() if is_joined else schedule.num_ranks))
    works = []
    ends = {r for s, r in enumerate(schedule.rank_of_stage) if s % n in (0, n - 1)}
    for rank, program in enumerate(programs):
        mine = [s for s, r in enumerate(schedule.rank_of_stage) if r == rank]
        works.append(
            Work(
                rank, schedule, program, {s: stages[s % n] for s in mine}, {s: names[s % n] for s in mine}, loss_fn, optimizer,
                data if rank in ends else None, steps, pace, gradients, threads, seed,
            )
        )  # fmt: skip
    if not is_joined:
        _check_sendable(works)
    told = progress if not is_joined or world.rank() == 0 else False  # one bar, not one a rank
    # The ranks of a launched run are watched from here, and Ctrl-C comes in only where nothing is left half done.
    with nullcontext() if is_joined else interrupts_held(), _Collector(schedule, pace, steps, told) as collector:
        run = _train_joined if is_joined else _train_launched
        try:
            results = run(works, pairs_of(programs), device, collector, timeout, stop)
        except RunError as error:
            raise error.with_traceback(None) from error.__cause__  # how it came up through here tells nobody anything
        _put_back(stages, names, results)
    return collector.run(results, gradients)


def _check_arguments(
    schedule: Any, data: Any, loss_fn: Any, optimizer: Any, steps: Any, device: Any, pace: Any, timeout: Any
) -> None:
    if not isinstance(schedule, Schedule):
        raise TypeError(f"a schedule is what ppedu.gpipe(p=4, m=8) and the like return: schedule={schedule!r:.80}")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"steps is a whole number of at least 1: steps={steps!r}")
    if not callable(loss_fn):
        raise TypeError(f"loss_fn is a function (outputs, targets) -> loss: loss_fn={loss_fn!r:.80}")
    if optimizer is not None and not callable(optimizer):
        raise TypeError(
            "optimizer is a function from parameters to an optimizer, because each rank makes its own: "
            f"lambda w: torch.optim.SGD(w, lr=0.1). Got {type(optimizer).__name__}"
        )
    if not callable(data) and not (isinstance(data, Sequence) and len(data)):
        raise TypeError(
            "data is a list of (inputs, targets) batches, at least one, or a function of the step. "
            f"Of what goes round, such as a DataLoader, take list(...). Got {type(data).__name__}"
        )
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is 'auto', 'cpu' or 'cuda': device={device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda', but torch sees no GPU here. Take device='auto' or 'cpu'")
    if pace is not None:
        if not isinstance(pace, Costs):
            raise TypeError(f"pace is ppedu.Costs(forward=..., backward=...) in seconds: pace={pace!r:.80}")
        pace.check(schedule)
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise ValueError(f"timeout is a number of seconds above 0: timeout={timeout!r}")


def _check_options(seed: Any, progress: Any, stop: Any) -> None:
    if not hasattr(seed, "__index__") or abs(seed) >= 2**62:  # each rank adds its number
        raise ValueError(f"seed is a whole number between -2^62 and 2^62: seed={seed!r:.80}")
    if not isinstance(progress, bool) and not callable(progress):
        raise TypeError(f"progress is True, False or a function (steps done, steps, loss): progress={progress!r:.80}")
    if stop is not None and not callable(getattr(stop, "is_set", None)):
        raise TypeError(f"stop is a threading.Event: stop={stop!r:.80}")


def _check_data(data: Data, schedule: Schedule, stages: Sequence[nn.Module]) -> None:
    m = schedule.num_microbatches
    for step in range(1 if callable(data) else len(data)):
        inputs, targets = batch_of(data, step)
        check_batch(inputs, targets, m)
        if step == 0:
            check_fit(stages, inputs[: -(-len(inputs) // m)], schedule)


def _train_launched(
    works: Sequence[Work],
    pairs: set[tuple[int, int]],
    device: str,
    collector: _Collector,
    timeout: float,
    stop: Event | None,
) -> list[RankResult]:
    with world.Rendezvous(len(works)) as rendezvous:
        results: list[RankResult] = run_ranks(
            world.train_started,
            world.starts_of(works, pairs, copy_sets(works[0].schedule), device, rendezvous.path, timeout),
            board.Board.blank(len(works)),
            where=_where_of(works),
            on_message=collector.hear,
            timeout=timeout,
            stop=stop,
        )
    return results


def _train_joined(
    works: Sequence[Work],
    pairs: set[tuple[int, int]],
    device: str,
    collector: _Collector,
    timeout: float,
    stop: Event | None,
) -> list[RankResult]:
    def let_in() -> None:
        if stop is not None and stop.is_set():
            raise RunStopped("the run was stopped")

    mine = works[world.rank()]
    state = {work.names[s][local]: tensor for work in works for s, local, tensor in _state_of(work)}
    everyone = joined.train_joined(
        joined.Join(
            mine, pairs, copy_sets(mine.schedule), device, _where_of(works), collector.hear, timeout, let_in, state
        )
    )  # fmt: skip
    collector.reports = {}
    for number, (reports, _) in enumerate(everyone):
        for report in reports:
            collector.reports.setdefault(report.step, {})[number] = report
    return [result for _, result in everyone]


def _state_of(work: Work) -> Iterator[tuple[int, str, Tensor]]:
    for s, module in work.modules.items():
        for local, tensor in (*module.named_parameters(), *module.named_buffers()):
            yield s, local, tensor


def _where_of(works: Sequence[Work]) -> Callable[[Sequence[float], int], Place]:
    """What a rank is doing, by what stands on its board."""

    def where(cells: Sequence[float], rank: int) -> Place:
        return place_of(works[rank].schedule, works[rank].program, *board.Board.read(cells, rank))

    return where


def place_of(schedule: Schedule, program: Sequence[Any], step: int, at: int, since: float) -> Place:
    """What a rank is doing, in words, from the numbers that it publishes."""
    if at < 0:
        waiting = at in board.WAITING
        text, shown = f"is {board.PLACES[at]}", step if step >= 0 else None
        return Place(text, None, shown, waiting, since, long=at == board.GATHERING)
    instruction = program[at]
    if isinstance(instruction, Recv):
        text = f"waits for rank {instruction.source}'s {schedule.short(instruction.action)}"
        return Place(text, None, step, True, since)
    if isinstance(instruction, Send):
        text = f"sends {schedule.short(instruction.action)} to rank {instruction.to}"
        return Place(text, None, step, True, since)
    return Place(f"computes {schedule.short(instruction)}", schedule.short(instruction), step, False, since)


def _check_sendable(works: Sequence[Work]) -> None:
    """All that ranks need goes to them by value: say what cannot, before any of them starts."""
    work = works[0]
    parts: dict[str, Any] = {"loss_fn": work.loss_fn, "optimizer": work.optimizer}
    if callable(work.data):
        parts["data"] = work.data
    parts |= {f"stage {s}": module for work in works for s, module in work.modules.items()}
    for name, part in parts.items():
        try:
            dumps(part)
        except Exception as error:
            remedy = "Keep open files, locks, generators and the like out of it, or make them inside the function"
            if "parametrized modules" in str(error):  # weight_norm, spectral_norm, orthogonal
                remedy = (
                    "Make such a layer plain first, by torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight'), "
                    "or leave the parametrization out"
                )
            raise TypeError(
                f"{name} cannot be sent to another process ({type(error).__name__}: {error}). {remedy}"
            ) from error


class _Collector:
    """Hears the ranks: keeps reports, prints what they printed in rank order, moves the progress bar."""

    def __init__(self, schedule: Schedule, pace: Costs | None, steps: int, progress: bool | Progress) -> None:
        self.schedule, self.pace = schedule, pace
        self.reports: dict[int, dict[int, StepReport]] = {}
        self.printed: list[list[tuple[str, str]]] = [[] for _ in range(schedule.num_ranks)]
        self.steps, self.tell = steps, progress if callable(progress) else None
        bar = progress is True
        self.bar = tqdm(total=steps, desc=schedule.label, unit="step", leave=False, disable=not bar)

    def __enter__(self) -> _Collector:
        return self

    def __exit__(self, *_: object) -> None:
        self._print(len(lines) for lines in self.printed)
        self.bar.close()

    def hear(self, rank: int, kind: str, content: Any) -> None:
        if kind == "print":
            self.printed[rank].append(content)
            return
        step = self.reports.setdefault(content.step, {})
        step[rank] = content
        self.printed[rank].append(("step", ""))
        if len(step) == self.schedule.num_ranks:
            self._print(lines.index(("step", "")) + 1 for lines in self.printed)
            loss = _loss(step) if any(r.loss is not None for r in step.values()) else math.nan
            self.bar.set_postfix(loss=f"{loss:.4g}", refresh=False)
            self.bar.update()
            if self.tell:
                self.tell(content.step + 1, self.steps, loss)

    def _print(self, counts: Any) -> None:
        for rank, count in enumerate(counts):
            for stream, line in self.printed[rank][:count]:
                if stream != "step":
                    self.bar.write(f"[rank {rank}] {line}", file=sys.stderr if stream == "stderr" else sys.stdout)
            del self.printed[rank][:count]

    def run(self, results: Sequence[RankResult], gradients: bool) -> Run:
        first, schedule = results[0], self.schedule
        pace = None if self.pace is None else replace(self.pace, unit="s")
        devices = sorted({r.device for r in results})
        cores = list({r.machine: r.cores for r in results}.values())
        where = _where(schedule.num_ranks, ", ".join(devices), first.backend, cores, pace)
        losses, timelines, stopped = [], [], None
        overruns: list[Overrun] = []
        for number in sorted(self.reports):
            step = self.reports[number]
            moments = [step[rank].moments for rank in range(schedule.num_ranks)]
            over = find_overruns(schedule, number, moments, pace)
            overruns += over
            timelines.append(step_timeline(schedule, moments, where, over))
            losses += [_loss(step)] if any(r.loss is not None for r in step.values()) else []
            for i, value in sorted(r.not_finite for r in step.values() if r.not_finite is not None)[:1]:
                stopped = f"the loss of microbatch {i} in step {number} is {value}"
        if stopped:
            warnings.warn(f"the run ended early: {stopped}. The weights are those before that step", stacklevel=3)
        unsplit = tuple(dict.fromkeys(name for r in results for name in r.unsplit))
        if unsplit:
            warnings.warn(_about_unsplit(unsplit), stacklevel=3)
        merged = {name: g for r in results for name, g in r.gradients.items()} if gradients else None
        peaks = tuple(r.peak_device_bytes for r in results if r.peak_device_bytes is not None)
        return Run(
            schedule, tuple(losses), tuple(timelines), tuple(r.peak_activation_bytes for r in results), peaks or None,
            ", ".join(devices), first.backend, sum(cores), pace, tuple(overruns), stopped, merged,
            tuple(r.parameter_bytes for r in results), unsplit, tuple(cores),
            self._sum_seconds(),
        )  # fmt: skip

    def _sum_seconds(self) -> tuple[float, ...]:
        last = self.reports[max(self.reports)]
        spans = [span for rank in range(self.schedule.num_ranks) if (span := last[rank].summed) is not None]
        return tuple(end - start for start, end in spans)


def _loss(step: dict[int, StepReport]) -> float:
    """The parts of all ranks that know one, in the order of the ranks."""
    return sum(step[rank].loss or 0.0 for rank in sorted(step))


def _about_unsplit(names: Sequence[str]) -> str:
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    shown = ", ".join(layers[:4]) + (f" and {len(layers) - 4} more" if len(layers) > 4 else "")
    return (
        f"only linear and embedding leave their matrices' gradients for W: those of {shown} came in I. "
        "They are right, but there I takes longer than it says and W less. `Run.unsplit` names the weights"
    )


def _put_back(stages: Sequence[nn.Module], names: Sequence[dict[str, str]], results: Sequence[RankResult]) -> None:
    """Copy the trained weights and buffers into the caller's model."""
    trained = {name: tensor for result in results for name, tensor in result.tensors.items()}
    with torch.no_grad():
        for stage, local_names in zip(stages, names, strict=True):
            state = {**dict(stage.named_parameters()), **dict(stage.named_buffers())}
            for local, name in local_names.items():
                state[local].copy_(trained[name])
