"""Checks of numbers: whatever the schedule, the device and the dtype, training gives what plain training gives."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ppedu
from ppedu.doctor import plain
from ppedu.doctor.plain import TOLERANCE, batch, trained
from ppedu.doctor.verdict import device, gpus, require

ALLOWED = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2, torch.float64: TOLERANCE}
MAX_RANKS = 8  # of a check that takes all GPUs
LOSSES = {"mse": plain.mse, "sum": nn.MSELoss(reduction="sum")}


def schedules(backend: str, p: int | None = 2, m: int = 4, tolerance: float = TOLERANCE, loss: str = "mse") -> str:
    """Every schedule there is. p: ranks; None for one on each GPU."""
    p = p or _even(gpus())
    worst = 0.0
    for build in ppedu.SCHEDULES.values():
        run, off = trained(build(p, m), samples=3 * m + 1, loss_fn=LOSSES[loss], tolerance=tolerance, timeout=30)
        require(
            run.backend == backend, f"{run.schedule.label} ran over {run.backend}, not over {backend} ({run.where})"
        )
        worst = max(worst, off)
    return f"{len(ppedu.SCHEDULES)} schedules on {p} ranks, off by {worst:.0e} at most: {', '.join(ppedu.SCHEDULES)}"


def _even(count: int) -> int:
    return min(count, MAX_RANKS) // 2 * 2  # DualPipe pairs its ranks


def one(backend: str, p: int, steps: int) -> str:
    """1F1B, with microbatches that differ in size."""
    run, off = trained(ppedu.one_f_one_b(p, 8), steps=steps, samples=21, timeout=30)
    require(run.backend == backend, f"it ran over {run.backend}, not over {backend} ({run.where})")
    made = ", ".join(f"{1e3 * timeline.makespan:.1f}" for timeline in run.timelines)
    return f"off by {off:.0e}; makespans {made} ms; {run.where}"


def more_ranks_than_gpus() -> str:
    """One rank more than there are GPUs: they share, and talk over gloo."""
    return one("gloo", gpus() + 1, 2)


def large_messages(backend: str, mib: int) -> str:
    """Messages of so many MiB, larger than a transport's buffers: there a send ends only with its receive."""
    wide = 512
    samples = (mib << 20) // (8 * wide)  # in a microbatch, of float64
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, wide), nn.Linear(wide, 4)).double()
    run, off = trained(ppedu.one_f_one_b(2, 4), model=model, data=[batch(4 * samples)], steps=3, timeout=30)
    require(run.backend == backend, f"it ran over {run.backend}, not over {backend} ({run.where})")
    return f"8 messages of {mib} MiB a step; off by {off:.0e}; {run.where}"


def dtypes() -> str:
    """Between stages, and token numbers into an embedding, on the first rank and on the second."""
    said = []
    for dtype, allowed in ALLOWED.items():
        _, off = trained(
            ppedu.zb_h1(2, 4), model=plain.layers(4, 8, dtype), data=[batch(8, 8, dtype=dtype)], tolerance=allowed
        )
        said.append(f"{_name(dtype)} {off:.0e}")
    for where, before in (("first", []), ("second", [nn.Identity()])):
        torch.manual_seed(0)
        model = nn.Sequential(*before, nn.Embedding(16, 8), nn.Linear(8, 8)).double()  # a layer on each rank
        data: Sequence[tuple[Tensor, Tensor]] = [(torch.arange(8), batch(8, 8)[1])]
        _, off = trained(ppedu.gpipe(len(model), 4), model=model, data=data)
        said.append(f"int64 into the {where} rank {off:.0e}")
    return "off by at most: " + ", ".join(said)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def in_place() -> str:
    """A model and a batch that are on the GPU stay there, and the model is trained."""
    model: Any = [nn.Linear(4, 4).to(device()) for _ in range(2)]
    before = [w.detach().clone() for layer in model for w in layer.parameters()]
    data = [(torch.ones(8, 4, device=device()), torch.zeros(8, 4, device=device()))]
    ppedu.train(model, ppedu.gpipe(2, 2), data, plain.mse, plain.momentum, steps=2, progress=False)
    after = [w for layer in model for w in layer.parameters()]
    where = {w.device.type for w in after}
    require(where == {device()}, f"weights were on {device()}, and are on {where} after training")
    same = sum(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    require(not same, f"{same} of {len(after)} weights are what they were before training")
    return f"{len(after)} weights on {device()} trained where they are"


def command_line() -> str:
    """The course's model by `ppedu compare`."""
    options = "--schedules gpipe,zb_v -p 2 -m 4 --blocks 4 --steps 2 --pace none --device"
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "ppedu", "compare", *options.split(), device(), "--out", out]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        require(done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-400:]}")
        files = sorted(file.name for file in Path(out).iterdir())
    require(len(files) == 3, f"wrote {files}, not a picture and two traces")
    return f"a table, and {', '.join(files)}"
