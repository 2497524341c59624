"""The same stages under torch.distributed.pipelining, started, paced and measured as ours are."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from ppedu.runtime.launch import Mouth, Place, run_ranks
from ppedu.runtime.world import FOREVER, Rendezvous

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class _Mark(torch.autograd.Function):
    """Calls `at_backward` when the backward pass comes through."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, x: Tensor, at_backward: Any) -> Tensor:
        ctx.at_backward = at_backward
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:  # type: ignore[override]
        ctx.at_backward()
        return None, gradient, None


class Paced(nn.Module):
    """A stage whose forward and backward last `pace` seconds each at least, and that records when they ran."""

    def __init__(self, module: nn.Module, pace: float) -> None:
        super().__init__()
        self.module, self.pace = module, pace
        self.gate = torch.empty(0, requires_grad=True)
        self.spans: list[tuple[float, float]] = []

    def forward(self, x: Tensor) -> Tensor:
        start, backward_start = time.perf_counter(), 0.0

        def begin() -> None:
            nonlocal backward_start
            backward_start = time.perf_counter()

        x = _Mark.apply(self.gate, x, lambda: self._finish(backward_start))
        y = _Mark.apply(self.gate, self.module(x), begin)
        self._finish(start)
        return y

    def _finish(self, start: float) -> None:
        while (left := start + self.pace - time.perf_counter()) > 0:
            time.sleep(left)
        self.spans.append((start, time.perf_counter()))


@dataclass(slots=True)
class Job:
    rank: int
    size: int
    stage: nn.Module
    schedule: str
    m: int
    batch: tuple[Tensor, Tensor]
    loss_fn: Any
    steps: int
    pace: float
    rendezvous: str
    threads: int


def run_torch(
    stages: Any, schedule: str, m: int, batch: Any, loss_fn: Any, steps: int, pace: float, threads: int = 1
) -> list[float]:
    """Makespan of each step, from the first forward's start to the last backward's end, over all ranks."""
    with Rendezvous(len(stages)) as meeting:
        jobs = [
            Job(r, len(stages), stage, schedule, m, batch, loss_fn, steps, pace, meeting.path, threads)
            for r, stage in enumerate(stages)
        ]
        found = run_ranks(
            _work, jobs, [0.0], timeout=600,
            where=lambda cells, rank: Place("works", None, None, False, time.perf_counter()),
            on_message=lambda rank, kind, content: None,
        )  # fmt: skip
    steps_of = [[spans[i * 2 * m : (i + 1) * 2 * m] for i in range(steps)] for spans in found]
    return [
        max(end for rank in steps_of for _, end in rank[i]) - min(start for rank in steps_of for start, _ in rank[i])
        for i in range(steps)
    ]


def _work(mouth: Mouth, cells: Any, job: Job) -> list[tuple[float, float]]:
    torch.set_num_threads(job.threads)
    store = dist.FileStore(job.rendezvous, job.size)
    dist.init_process_group("gloo", store=store, rank=job.rank, world_size=job.size, timeout=FOREVER)
    paced = Paced(job.stage, job.pace)
    stage = PipelineStage(paced, job.rank, job.size, torch.device("cpu"))
    schedule = SCHEDULES[job.schedule](stage, job.m, loss_fn=job.loss_fn)
    inputs, targets = job.batch
    paced.spans.clear()
    for _ in range(job.steps):
        paced.zero_grad()
        before = len(paced.spans)
        args = (inputs,) if job.rank == 0 else ()
        if job.rank == job.size - 1:
            schedule.step(*args, target=targets, losses=[])
        else:
            schedule.step(*args)
        del paced.spans[
            before : len(paced.spans) - 2 * job.m
        ]  # shape inference runs the stage once more in the first step
    return paced.spans
