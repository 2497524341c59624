"""The same stages under torch.distributed.pipelining, started, paced and measured as ours are."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import schedules

import ppedu
from ppedu.runtime.processes.launch import run_ranks
from ppedu.runtime.processes.rank_main import Context
from ppedu.runtime.processes.watch import Place
from ppedu.runtime.torch_engine.runtime import LossOf, Stage, Track, runtime_of

OWN = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "looped_bfs": "ScheduleLoopedBFS",
    "zb_h1": "ScheduleInterleavedZeroBubble",  # an order of its own: with one stage a rank, near to ZB-H1
    "zb_v": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}
"""Torch's own class for a schedule, where it has one; our order runs there through to_torch."""


@dataclass(slots=True)
class Stages:
    """What one rank runs. own: torch's class that orders the operations itself, or None for our order."""

    schedule: ppedu.Schedule
    own: str | None
    modules: dict[int, nn.Module]
    batch: tuple[Tensor, Tensor]
    loss_fn: Any
    steps: int
    pace: ppedu.Costs | None


def run_torch(
    stages: Any, schedule: ppedu.Schedule, own: str | None, batch: Any, loss_fn: Any, steps: int,
    pace: ppedu.Costs | None, threads: int = 1,
) -> list[float]:  # fmt: skip
    """Makespan of each step, from the first operation's start to the last one's end, over all ranks.

    own: torch's class that orders the operations itself, or None for our order.
    """
    works = [
        Stages(schedule, own, {s: stages[s] for s in schedule.stages_of(rank)}, batch, loss_fn, steps, pace)
        for rank in range(schedule.num_ranks)
    ]
    found = run_ranks(
        _work, works, lambda rank, *_: Place("works", None, None, False, time.perf_counter()), lambda *_: None,
        timeout=600, threads=threads,
    )  # fmt: skip
    return [max(end for _, end in step) - min(start for start, _ in step) for step in zip(*found, strict=True)]


def _work(work: Stages, context: Context) -> list[tuple[float, float]]:
    """(start of the first operation, end of the last) of each step on this rank."""
    schedule = work.schedule
    track = Track(None if work.own else schedule.orders[context.rank], work.pace)
    runtime = (
        _own(work, track) if work.own else runtime_of(schedule, work.modules, work.loss_fn, context.device, None, track)
    )
    inputs, targets = work.batch
    args = (inputs,) if schedule.rank_of_stage[0] == context.rank else ()
    rest = {"target": targets, "losses": []} if schedule.rank_of_stage[-1] == context.rank else {}
    steps = []
    for _ in range(work.steps):
        for stage in work.modules.values():
            stage.zero_grad()
        track.start_step()
        runtime.step(*args, **rest)
        steps.append((track.moments[0].start, max(moment.end for moment in track.moments)))
    return steps


_CPU = torch.device("cpu")


def _own(work: Stages, track: Track) -> Any:
    """Torch's own schedule."""
    stages = [Stage(module, s, work.schedule.num_stages, _CPU) for s, module in sorted(work.modules.items())]
    for stage in stages:
        stage.track = track
    made = getattr(schedules, str(work.own))
    single = issubclass(made, schedules.PipelineScheduleSingle)
    return made(stages[0] if single else stages, work.schedule.num_microbatches, loss_fn=LossOf(work.loss_fn, track))
