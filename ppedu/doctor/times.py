"""Checks of time: paced and unpaced runs against their prediction, and GPU events against the host's clock."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import ppedu
from ppedu.doctor import plain, probes
from ppedu.doctor.plain import batch, trained
from ppedu.doctor.verdict import device, gpus, require

SLOW = 1.5  # of the ideal: what a paced run may take on a machine that others use too
APART = 8e-3  # seconds between the host's clock and the timeline, which has a small layer and a launch more
UNPACED = 2.0  # of the prediction from the run's own medians


def paced(p: int, backend: str) -> str:
    """1F1B at 30 ms an operation: the best step's makespan over the ideal."""
    pace = ppedu.Costs(0.03, 0.03, unit="s")
    run, _ = trained(ppedu.one_f_one_b(p, 8), steps=3, samples=16, pace=pace, timeout=30)
    require(run.backend == backend, f"it ran over {run.backend}, not over {backend} ({run.where})")
    ideal = ppedu.simulate(run.schedule, pace).makespan
    best = min(timeline.makespan for timeline in run.timelines) / ideal
    require(0.99 < best < SLOW, f"{best:.3f} of the ideal {1e3 * ideal:.0f} ms, where less than {SLOW} is expected")
    operations = sum(len(timeline.spans) for timeline in run.timelines)
    return f"{best:.3f} of the ideal {1e3 * ideal:.0f} ms; {len(run.overruns)} of {operations} operations overran their pace"


def unpaced(p: int | None = None, width: int = 2048, samples: int = 1024) -> str:
    """Each rank with a GPU of its own: the best step's makespan over what its operations' medians predict."""
    p = p or min(gpus(), 8)
    torch.manual_seed(0)
    model = [probes.Repeated(nn.Linear(width, width), 8) for _ in range(p)]
    data = [(torch.randn(8 * samples, width), torch.randn(8 * samples, width))]
    run = ppedu.train(
        model, ppedu.one_f_one_b(p, 8), data, plain.mse, plain.momentum, steps=4, device=device(), progress=False
    )
    ratios = [t.makespan / ppedu.simulate(t.schedule, t.costs()).makespan for t in run.timelines[1:]]
    require(min(ratios) < UNPACED, f"{min(ratios):.3f} of the prediction, where less than {UNPACED} is expected")
    _check_order(run)
    return f"{min(ratios):.3f} of the prediction, {1e3 * run.timeline.makespan:.1f} ms in the last step; {run.where}"


def events(seconds: float = 0.04, steps: int = 4) -> str:
    """An operation of known length on stage 1, alone: by the timeline, and by the host's clock in the rank."""
    watch = probes.Stopwatch(seconds, steps)
    model: Any = [nn.Linear(4, 4).double(), nn.Sequential(watch, nn.Linear(4, 4)).double()]
    run = ppedu.train(model, ppedu.naive(2), [batch(8)], plain.mse, steps=steps, device=device(), progress=False)
    told = [span.duration for t in run.timelines for span in t.spans if str(span.action) == "1F0"]
    more, span, clock = min((abs(a - b), a, b) for a, b in zip(told, watch.seconds.tolist(), strict=True))
    said = f"{1e3 * span:.2f} ms in the timeline, {1e3 * clock:.2f} ms by the clock, in the best of {steps} steps"
    require(0.5 * seconds < clock < 2 * seconds, f"{said}, for {1e3 * seconds:.0f}")
    require(more < APART and clock - span < 5e-4, f"{said}: further apart than a small layer and a launch can take")
    _check_order(run)
    return f"{said}; no operation starts before what it needs has ended"


def _check_order(run: ppedu.Run) -> None:
    early = backwards(run)
    require(early < 1e-3, f"an operation starts {1e3 * early:.2f} ms before what it needs has ended on another rank")


def backwards(run: ppedu.Run) -> float:
    """Seconds by which the worst operation starts before what it needs has ended on another rank; 0 where none does."""
    worst, rank_of = 0.0, run.schedule.rank_of_stage
    for timeline in run.timelines:
        ends = {a: span.end for span in timeline.spans for a in span.action.actions}
        for span in timeline.spans:
            needed = [n for a in span.action.actions for n in ppedu.dependencies(a, run.schedule)]
            worst = max([worst, *(ends[n] - span.start for n in needed if rank_of[n.stage] != span.rank)])
    return worst
