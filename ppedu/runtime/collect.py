"""What the ranks of a run say and hand back, put together: progress and prints on the way, the Run at the end."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from ppedu.runtime.rank.job import Job, RankResult, StepReport
from ppedu.runtime.rank.mesh import Coordinate
from ppedu.runtime.run import Overrun, Run, find_overruns, step_timeline, where_measured

Progress = Callable[[int, int, float], object]
"""(steps done, steps, loss of the last one): called after each step."""


class Collector:
    """Hears the ranks: keeps reports, prints what they printed in rank order, moves the progress bar."""

    def __init__(self, job: Job, progress: bool | Progress, engine: str = "ppedu") -> None:
        self.job, self.schedule, self.engine = job, job.schedule, engine
        self.reports: dict[int, dict[int, StepReport]] = {}  # step -> rank -> its report
        self.printed: list[list[tuple[str, str]]] = [[] for _ in range(job.mesh.size)]
        self.progress = progress if callable(progress) else None
        bar = progress is True
        self.bar = tqdm(total=job.steps, desc=job.schedule.label, unit="step", leave=False, disable=not bar)

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: object) -> None:
        self._print(len(lines) for lines in self.printed)
        self.bar.close()

    def receive(self, rank: int, kind: str, content: Any) -> None:
        if kind == "print":
            self.printed[rank].append(content)
            return
        step = self.reports.setdefault(content.step, {})
        step[rank] = content
        self.printed[rank].append(("step", ""))
        if len(step) == self.job.mesh.size:
            self._print(lines.index(("step", "")) + 1 for lines in self.printed)
            loss = _loss(step) if any(r.loss is not None for r in step.values()) else math.nan
            self.bar.set_postfix(loss=f"{loss:.4g}", refresh=False)
            self.bar.update()
            if self.progress:
                self.progress(content.step + 1, self.job.steps, loss)

    def _print(self, counts: Any) -> None:
        for rank, count in enumerate(counts):
            for stream, line in self.printed[rank][:count]:
                if stream != "step":
                    self.bar.write(f"[rank {rank}] {line}", file=sys.stderr if stream == "stderr" else sys.stdout)
            del self.printed[rank][:count]

    def run(self, results: Sequence[RankResult]) -> Run:
        """What was reported, and what each rank of the world handed back, as one Run of a pipeline."""
        schedule, mesh = self.schedule, self.job.mesh
        ranks = [mesh.rank(Coordinate(r)) for r in range(schedule.num_ranks)]
        pace = None if self.job.pace is None else replace(self.job.pace, unit="s")
        cores = tuple({r.machine: r.cores for r in results}.values())
        devices = ", ".join(sorted({r.device for r in results}))
        where = where_measured(schedule.num_ranks, devices, results[0].backend, cores, pace, self.engine)
        losses, timelines, overruns, stopped = [], [], list[Overrun](), None
        for number, step in sorted(self.reports.items()):
            moments = [step[rank].moments for rank in ranks]
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
        last = self.reports[max(self.reports)]
        sums = [span for rank in ranks if (span := last[rank].summed) is not None]
        mine = [results[rank] for rank in ranks]
        gradients = {name: g for r in mine for name, g in r.gradients.items()}
        return Run(
            schedule=schedule, losses=tuple(losses), timelines=tuple(timelines),
            peak_activation_bytes=tuple(b for r in mine if (b := r.peak_activation_bytes) is not None),
            peak_device_bytes=tuple(b for r in mine if (b := r.peak_device_bytes) is not None) or None,
            device=devices, backend=results[0].backend, cores=sum(cores), pace=pace, overruns=tuple(overruns),
            stopped=stopped, gradients=gradients if self.job.gradients else None,
            parameter_bytes=tuple(r.parameter_bytes for r in mine), unsplit=unsplit, host_cores=cores,
            sum_seconds=tuple(end - start for start, end in sums), engine=self.engine,
        )  # fmt: skip


def _loss(step: dict[int, StepReport]) -> float:
    """The parts of all ranks that know one, in the order of the ranks."""
    return sum(step[rank].loss or 0.0 for rank in sorted(step))


def _about_unsplit(names: Sequence[str]) -> str:
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
    shown = ", ".join(layers[:4]) + (f" and {len(layers) - 4} more" if len(layers) > 4 else "")
    return (
        f"only matrix products and embeddings leave their matrices' gradients for W: those of {shown} came in I. "
        "They are right, but there I takes longer than it says and W less. `Run.unsplit` names the weights"
    )


def put_back(stages: Sequence[nn.Module], names: Sequence[dict[str, str]], results: Sequence[RankResult]) -> None:
    """Copy the trained weights and buffers into the caller's model."""
    trained = {name: tensor for result in results for name, tensor in result.tensors.items()}
    with torch.no_grad():
        for stage, local_names in zip(stages, names, strict=True):
            state = {**dict(stage.named_parameters()), **dict(stage.named_buffers())}
            for local, name in local_names.items():
                state[local].copy_(trained[name])
