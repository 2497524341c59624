"""What a run returns: losses, the measured timeline of each step, memory, and where it ran."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ppedu.core.costs import Costs
from ppedu.core.format import counted
from ppedu.core.operations import Entry
from ppedu.core.schedule import Schedule
from ppedu.core.spans import Span
from ppedu.core.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Overrun:
    """A paced operation whose mathematics took longer than its pace (seconds): there the run was slower than it claims."""

    step: int
    rank: int
    action: Entry
    pace: float
    took: float


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """The result of `ppedu.train`.

    losses: the mean loss of each step's batch, before that step's update.
    timelines: the measured timeline of each step, in seconds from its first operation; `timeline` is the last.
    peak_activation_bytes: per rank, the most bytes of activations that waited for their backward at one time
        (each storage once, weights left out), measured in the first step. Empty under engine="torch", which does not tell.
    peak_device_bytes: per rank, the most that the GPU's allocator held; None on CPUs.
    gradients: of the last step, by the names of the model's weights; None unless asked for.
    device, backend, cores: where it ran; cores of all hosts together. host_cores: those of each host. pace: the nominal durations, or None where operations took what they took.
    overruns: operations that took longer than their pace.
    stopped: why the run ended early (a loss that is not finite), or None.
    sum_seconds: per rank, how long it took after the last step to add up the gradients of stages that have copies; empty
        where there are none. It comes after the last backward, and is in no timeline.
    parameter_bytes: per rank, the bytes of the weights that it holds: with two chains twice the model in all.
    unsplit: the names of weights (matrices and larger) whose gradients came in I, because their layers have no split of
        their own. Biases and norms' scales always come in I, where they cost next to nothing.
    engine: whose runtime ran the order. Of torch's, waiting for messages is no part of an operation, but it may wait between
        the two halves of an overlapped pair.
    """

    schedule: Schedule
    losses: tuple[float, ...]
    timelines: tuple[Timeline, ...]
    peak_activation_bytes: tuple[int, ...]
    peak_device_bytes: tuple[int, ...] | None
    device: str
    backend: str
    cores: int
    pace: Costs | None = None
    overruns: tuple[Overrun, ...] = ()
    stopped: str | None = None
    gradients: dict[str, Any] | None = field(default=None)
    parameter_bytes: tuple[int, ...] = ()
    unsplit: tuple[str, ...] = ()
    host_cores: tuple[int, ...] = ()
    sum_seconds: tuple[float, ...] = ()
    engine: str = "ppedu"

    @property
    def timeline(self) -> Timeline:
        """The measured timeline of the last step."""
        return self.timelines[-1]

    @property
    def makespans(self) -> tuple[float, ...]:
        """Of each step, the seconds from the first operation's start to the last one's end. Under engine="torch" the first
        step's may hold pauses in which torch learns shapes."""
        return tuple(timeline.makespan for timeline in self.timelines)

    @property
    def where(self) -> str:
        """'measured: 4 CPU processes on 2 cores, paced F=0.02 s B=0.02 s': what captions say."""
        cores = self.host_cores or (self.cores,)
        return where_measured(self.schedule.num_ranks, self.device, self.backend, cores, self.pace, self.engine)

    def __repr__(self) -> str:
        losses = ", ".join(f"{x:.4g}" for x in self.losses[:3]) + (
            f", ... {self.losses[-1]:.4g}" if len(self.losses) > 3 else ""
        )
        lines = [f"{self.timeline!r} ({self.where})", f"loss {losses}"]
        return "\n".join([*lines, *([f"stopped: {self.stopped}"] if self.stopped else [])])


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def where_measured(
    ranks: int, device: str, backend: str, cores: Sequence[int], pace: Costs | None, engine: str = "ppedu"
) -> str:
    """What captions say: the number and kind of ranks, and the cores of each host."""
    several = f"{len(cores)} hosts" if len(cores) > 1 else ""
    if device == "CPU":
        alike = len(set(cores)) == 1
        each = counted(cores[0], "core") if alike else " + ".join(map(str, cores)) + " cores"
        each = f"{several} with {each}{' each' if alike else ''}" if several else each
        place = f"{counted(ranks, 'CPU process')} on {each}"
    else:
        place = f"{counted(ranks, 'rank')} on {device}{f' in {several}' if several else ''} over {backend}"
    runtime = "torch.distributed.pipelining, " if engine == "torch" else ""
    return f"measured: {runtime}{place}" + ("" if pace is None else f", paced {pace}")


def step_timeline(
    schedule: Schedule, moments: Sequence[Sequence[Any]], where: str, overruns: Sequence[Overrun]
) -> Timeline:
    """The Timeline of one step from each rank's moments (start, computed, end), its first operation at 0."""
    origin = min((m.start for rank in moments for m in rank), default=0.0)
    spans = tuple(
        Span(entry, rank, m.start - origin, m.end - origin)
        for rank, measured in enumerate(moments)
        for entry, m in zip(schedule.orders[rank], measured, strict=False)
    )
    if overruns:
        longest = max(o.took - o.pace for o in overruns)
        where += f"; {len(overruns)} of {len(spans)} operations overran their pace, by up to {longest * 1e3:.1f} ms"
    return Timeline(schedule, spans, where, "s", measured=True)


def find_overruns(
    schedule: Schedule, step: int, moments: Sequence[Sequence[Any]], pace: Costs | None
) -> tuple[Overrun, ...]:
    if pace is None:
        return ()
    return tuple(
        Overrun(step, rank, entry, pace.duration(entry), m.computed - m.start)
        for rank, measured in enumerate(moments)
        for entry, m in zip(schedule.orders[rank], measured, strict=False)
        if m.computed - m.start > pace.duration(entry)
    )
