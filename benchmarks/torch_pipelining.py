"""The same stages under torch.distributed.pipelining, started, paced and measured as ours are."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import schedules

import ppedu
from ppedu.runtime.processes.launch import Mouth, Place, run_ranks
from ppedu.runtime.processes.world import FOREVER, Rendezvous
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
class Job:
    rank: int
    schedule: ppedu.Schedule
    own: str | None
    stages: dict[int, nn.Module]
    batch: tuple[Tensor, Tensor]
    loss_fn: Any
    steps: int
    pace: ppedu.Costs | None
    rendezvous: str
    threads: int


def run_torch(
    stages: Any, schedule: ppedu.Schedule, own: str | None, batch: Any, loss_fn: Any, steps: int,
    pace: ppedu.Costs | None, threads: int = 1,
) -> list[float]:  # fmt: skip
    """Makespan of each step, from the first operation's start to the last one's end, over all ranks.

    own: torch's class that orders the operations itself, or None for our order.
    """
    p = schedule.num_ranks
    with Rendezvous(p) as meeting:
        jobs = [
            Job(
                rank, schedule, own, {s: stages[s] for s, r in enumerate(schedule.rank_of_stage) if r == rank}, batch, loss_fn,
                steps, pace, meeting.path, threads,
            )
            for rank in range(p)
        ]  # fmt: skip
        found = run_ranks(
            _work, jobs, [0.0], timeout=600,
            where=lambda cells, rank: Place("works", None, None, False, time.perf_counter()),
            on_message=lambda rank, kind, content: None,
        )  # fmt: skip
    return [max(end for _, end in step) - min(start for start, _ in step) for step in zip(*found, strict=True)]


def _work(mouth: Mouth, cells: Any, job: Job) -> list[tuple[float, float]]:
    """(start of the first operation, end of the last) of each step on this rank."""
    torch.set_num_threads(job.threads)
    schedule, size = job.schedule, job.schedule.num_ranks
    store = dist.FileStore(job.rendezvous, size)
    dist.init_process_group("gloo", store=store, rank=job.rank, world_size=size, timeout=FOREVER)
    track = Track(None if job.own else schedule.orders[job.rank], job.pace)
    runtime = _own(job, track) if job.own else runtime_of(schedule, job.stages, job.loss_fn, _CPU, None, track)
    inputs, targets = job.batch
    args = (inputs,) if schedule.rank_of_stage[0] == job.rank else ()
    rest = {"target": targets, "losses": []} if schedule.rank_of_stage[-1] == job.rank else {}
    steps = []
    for step in range(job.steps):
        for stage in job.stages.values():
            stage.zero_grad()
        track.start_step(step)
        runtime.step(*args, **rest)
        steps.append((track.moments[0].start, max(moment.end for moment in track.moments)))
    return steps


_CPU = torch.device("cpu")


def _own(job: Job, track: Track) -> Any:
    """Torch's own schedule."""
    stages = [Stage(module, s, job.schedule.num_stages, _CPU) for s, module in sorted(job.stages.items())]
    for stage in stages:
        stage.track = track
    made = getattr(schedules, str(job.own))
    single = issubclass(made, schedules.PipelineScheduleSingle)
    return made(stages[0] if single else stages, job.schedule.num_microbatches, loss_fn=LossOf(job.loss_fn, track))
