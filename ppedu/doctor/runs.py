"""Checks of runs that go well: whatever the schedule, the device and the dtype, training gives what plain training gives, and
takes the time that was predicted."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ppedu
from ppedu.doctor.table import device, gpus, require

TOLERANCE = 1e-10  # of the largest number of a tensor: sums are taken in another order, and by other kernels
ALLOWED = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2, torch.float64: TOLERANCE}
MAX_RANKS = 8  # of a check that takes all GPUs
SLOW = 1.5  # of the ideal: what a paced run may take on a machine that others use too
EARLY, LATE = {"cpu": 5e-4, "cuda": 8e-3}, {"cpu": 8e-3, "cuda": 1.2e-2}  # seconds; a GPU's clock changes its speed
UNPACED = 2.0  # of the prediction from the run's own medians

Batch = tuple[Tensor, Tensor]
mse = nn.functional.mse_loss


def momentum(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.05, momentum=0.9)


def layers(count: int, width: int = 4, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """`count` linear layers with a Tanh after each but the last, always with the same weights."""
    torch.manual_seed(0)
    pairs = [layer for _ in range(count) for layer in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*pairs[:-1]).to(dtype)


def batch(samples: int, width: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64) -> Batch:
    numbers = torch.Generator().manual_seed(seed)
    inputs, targets = (torch.randn(samples, width, generator=numbers, dtype=torch.float64) for _ in range(2))
    return inputs.to(dtype), targets.to(dtype)


def _all(losses: Sequence[float], gradients: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """What training gave: the losses step by step, the last step's gradients, the weights and buffers afterwards."""
    named = {f"gradient of {name}": gradient.cpu() for name, gradient in gradients.items()}
    state = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    return {"the losses": torch.tensor(losses, dtype=torch.float64)} | named | state


def plain(model: nn.Module, data: Sequence[Batch], steps: int) -> dict[str, Tensor]:
    """The oracle: train a copy of the whole model on whole batches as everybody does, on the CPU."""
    model = copy.deepcopy(model)
    optimizer = momentum(model.parameters())
    losses = []
    for step in range(steps):
        inputs, targets = data[step % len(data)]
        model.zero_grad()
        loss = mse(model(inputs), targets)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return _all(losses, {n: w.grad for n, w in model.named_parameters() if w.grad is not None}, model)


def _off(found: Tensor, wanted: Tensor) -> float:
    """How far it is off, as a share of the largest number."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype or not found.isfinite().all():
        return math.inf
    scale, worst = wanted.abs().max().item(), (found - wanted).abs().max().item()
    return worst / scale if scale else (math.inf if worst else 0.0)


def train(model: Any, schedule: ppedu.Schedule, data: Any, optimizer: Any = momentum, **options: Any) -> ppedu.Run:
    """On the GPU where there is one."""
    return ppedu.train(model, schedule, data, mse, optimizer, **{"device": device(), "progress": False, **options})


def trained(
    schedule: ppedu.Schedule, *, backend: str | None = None, model: nn.Sequential | None = None,
    data: Sequence[Batch] | None = None, loss_fn: Any = mse, steps: int = 2, samples: int = 13,
    tolerance: float = TOLERANCE, **options: Any,
) -> tuple[ppedu.Run, float]:  # fmt: skip
    """Train under the schedule, on the GPU where there is one: (the run, how far it is off plain training).

    Raises Failed where that is more than `tolerance`. By default float64, and microbatches that differ in size.
    """
    model = layers(max(4, schedule.chain_length)) if model is None else model
    data = [batch(samples, seed=seed) for seed in range(2)] if data is None else data
    wanted = plain(model, data, steps)
    options = {"device": device(), "progress": False, "gradients": True, "timeout": 30, **options}
    run = ppedu.train(model, schedule, data, loss_fn, momentum, steps=steps, **options)
    name = schedule.label
    require(run.stopped is None, f"{name} stopped: {run.stopped}")
    require(backend in (None, run.backend), f"{name}: it ran over {run.backend}, not over {backend} ({run.where})")
    found = _all(run.losses, run.gradients or {}, model)
    require(found.keys() == wanted.keys(), f"{name}: only one has {sorted(found.keys() ^ wanted.keys())}")
    off, which = max((_off(found[name], wanted[name]), name) for name in wanted)
    require(off <= tolerance, f"{name}: {which} is off by {off:.1e}, where {tolerance:.0e} is allowed ({run.where})")
    return run, off


def warm_up() -> None:
    """The first run starts the fork server, which takes seconds: a check that measures calls this before."""
    trained(ppedu.gpipe(1, 1), device="cpu")


def one(backend: str, p: int | None, steps: int) -> str:
    """1F1B, with microbatches that differ in size. p: ranks; None for one more than there are GPUs, which they share."""
    schedule = ppedu.one_f_one_b(p or gpus() + 1, 8)
    run, off = trained(schedule, backend=backend, steps=steps, samples=21)
    made = ", ".join(f"{1e3 * timeline.makespan:.1f}" for timeline in run.timelines)
    return f"off by {off:.0e}; makespans {made} ms; {run.where}"


def schedules(
    backend: str, p: int | None = 2, m: int = 4, tolerance: float = TOLERANCE, reduction: str = "mean"
) -> str:
    """Every schedule there is. p: ranks; None for one on each GPU."""
    p = p or min(gpus(), MAX_RANKS) // 2 * 2  # DualPipe pairs its ranks
    options: Any = {"samples": 3 * m + 1, "loss_fn": nn.MSELoss(reduction=reduction), "tolerance": tolerance}
    worst = max(trained(build(p, m), backend=backend, **options)[1] for build in ppedu.SCHEDULES.values())
    return f"{len(ppedu.SCHEDULES)} schedules on {p} ranks, off by {worst:.0e} at most: {', '.join(ppedu.SCHEDULES)}"


def large_messages(backend: str, mib: int, width: int = 512) -> str:
    """Messages of so many MiB, larger than a transport's buffers: there a send ends only with its receive."""
    samples = (mib << 20) // (8 * width)  # in a microbatch, of float64
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 4)).double()
    run, off = trained(ppedu.one_f_one_b(2, 4), backend=backend, model=model, data=[batch(4 * samples)], steps=3)
    return f"8 messages of {mib} MiB a step; off by {off:.0e}; {run.where}"


def dtypes() -> str:
    """Between stages, and token numbers into an embedding, on the first rank and on the second."""
    said = []
    for dtype, allowed in ALLOWED.items():
        data = [batch(8, 8, dtype=dtype)]
        _, off = trained(ppedu.zb_h1(2, 4), model=layers(4, 8, dtype), data=data, tolerance=allowed)
        said.append(f"{str(dtype).removeprefix('torch.')} {off:.0e}")
    for where, before in (("first", []), ("second", [nn.Identity()])):
        torch.manual_seed(0)
        model = nn.Sequential(*before, nn.Embedding(16, 8), nn.Linear(8, 8)).double()  # a layer on each rank
        _, off = trained(ppedu.gpipe(len(model), 4), model=model, data=[(torch.arange(8), batch(8, 8)[1])])
        said.append(f"int64 into the {where} rank {off:.0e}")
    return "off by at most: " + ", ".join(said)


def in_place() -> str:
    """A model and a batch that are on the GPU stay there, and the model is trained."""
    inputs, targets = batch(8)
    model = layers(2).to(device())
    _, off = trained(ppedu.gpipe(2, 2), model=model, data=[(inputs.to(device()), targets.to(device()))], device="auto")
    weights = list(model.parameters())
    stayed = sum(w.device.type == device() for w in weights)
    require(stayed == len(weights), f"{stayed} of {len(weights)} weights are still on {device()}")
    return f"{stayed} weights on {device()} trained where they are, off by {off:.0e}"


def command_line() -> str:
    """The course's model by `ppedu compare`."""
    options = f"--schedules gpipe,zb_v -p 2 -m 4 --blocks 4 --steps 2 --pace none --device {device()}"
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "ppedu", "compare", *options.split(), "--out", out]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        require(done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-400:]}")
        files = sorted(file.name for file in Path(out).iterdir())
    require(len(files) == 3, f"wrote {files}, not a picture and two traces")
    return f"a table, and {', '.join(files)}"


def paced(p: int, backend: str) -> str:
    """1F1B at 30 ms an operation: the best step's makespan over the ideal."""
    pace = ppedu.Costs(0.03, 0.03, unit="s")
    run, _ = trained(ppedu.one_f_one_b(p, 8), backend=backend, steps=3, samples=16, pace=pace)
    ideal = ppedu.simulate(run.schedule, pace).makespan
    best = min(timeline.makespan for timeline in run.timelines) / ideal
    require(0.99 < best < SLOW, f"{best:.3f} of the ideal {1e3 * ideal:.0f} ms, where less than {SLOW} is expected")
    operations = sum(len(timeline.spans) for timeline in run.timelines)
    return f"{best:.3f} of the ideal {1e3 * ideal:.0f} ms; {len(run.overruns)} of {operations} operations overran their pace"


def unpaced(p: int | None = None, width: int = 2048, samples: int = 1024) -> str:
    """Each rank with a GPU of its own: the best step's makespan over what its operations' medians predict."""
    p = p or min(gpus(), MAX_RANKS)
    torch.manual_seed(0)
    model = [nn.Sequential(*[nn.Linear(width, width), nn.Tanh()] * 8) for _ in range(p)]  # one layer, eight times over
    data = [(torch.randn(8 * samples, width), torch.randn(8 * samples, width))]
    run = train(model, ppedu.one_f_one_b(p, 8), data, steps=4)
    best = min(t.makespan / ppedu.simulate(t.schedule, t.costs()).makespan for t in run.timelines[1:])
    require(best < UNPACED, f"{best:.3f} of the prediction, where less than {UNPACED} is expected")
    backwards(run)
    return f"{best:.3f} of the prediction, {1e3 * run.timeline.makespan:.1f} ms in the last step; {run.where}"


class Acting(nn.Module):
    """Passes on what comes in, and acts on it in its forward: at the call with this number, from 1 on, or at each (None)."""

    def __init__(self, act: Callable[[Tensor], Any], call: int | None = None) -> None:
        super().__init__()
        self.act, self.call, self.calls = act, call, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.call in (None, self.calls):
            self.act(x)
        return x


class Busy:
    """Keep the device busy for so many seconds; where there is no GPU, sleep. cycles: a second's, of the GPU's clock."""

    def __init__(self, seconds: float, cycles: int = 10**8) -> None:
        self.seconds, self.cycles = seconds, float(cycles)
        if gpus():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for event in (begin, end):  # the first makes it busy, which changes the speed of its clock
                torch.cuda._sleep(cycles)
                event.record()
            torch.cuda.synchronize()
            self.cycles = cycles / (begin.elapsed_time(end) / 1e3)

    def __call__(self, x: Tensor) -> None:
        torch.cuda._sleep(int(self.seconds * self.cycles)) if x.is_cuda else time.sleep(self.seconds)


def events(seconds: float = 0.04, steps: int = 4) -> str:
    """An operation of known length on stage 1, alone, by the timeline."""
    model: Any = [nn.Linear(4, 4).double(), nn.Sequential(Acting(Busy(seconds)), nn.Linear(4, 4)).double()]
    run = train(model, ppedu.naive(2), [batch(8)], None, steps=steps)
    told = [span.duration for t in run.timelines for span in t.spans if str(span.action) == "1F0"]
    best = min(told, key=lambda span: abs(span - seconds))
    said = f"{1e3 * best:.2f} ms in the timeline, for {1e3 * seconds:.0f}, in the best of {steps} steps"
    on_time = -EARLY[device()] < best - seconds < LATE[device()]
    require(on_time, f"{said}: further off than a small layer and a launch take")
    backwards(run)
    return f"{said}; no operation starts before what it needs has ended"


def backwards(run: ppedu.Run) -> float:
    """Seconds by which the worst operation starts before what it needs has ended on another rank. Raises Failed from 1 ms on."""
    worst, rank_of = 0.0, run.schedule.rank_of_stage
    for timeline in run.timelines:
        ends = {a: span.end for span in timeline.spans for a in span.action.actions}
        for span in timeline.spans:
            needed = [n for a in span.action.actions for n in ppedu.dependencies(a, run.schedule)]
            worst = max([worst, *(ends[n] - span.start for n in needed if rank_of[n.stage] != span.rank)])
    require(worst < 1e-3, f"an operation starts {1e3 * worst:.2f} ms before what it needs has ended on another rank")
    return worst
