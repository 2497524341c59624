"""What `torchrun -m ppedu.doctor.joined WHAT FOLDER` runs in each rank. It writes what it found into FOLDER, as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ppedu
from ppedu.doctor import plain, probes
from ppedu.doctor.plain import batch, trained
from ppedu.doctor.verdict import device

BIG = 4096  # width of a model that takes much more memory than the others


def equal(p: int, folder: Path) -> dict[str, Any]:
    """Several runs in one world, each of which equals plain training; a big one first, whose peak is not the next one's."""
    found: dict[str, Any] = {"big": None}
    if device() == "cuda":
        model = [nn.Linear(BIG, BIG) for _ in range(p)]
        data = [(torch.randn(2 * BIG, BIG), torch.randn(2 * BIG, BIG))]
        big = ppedu.train(model, ppedu.gpipe(p, p), data, plain.mse, progress=False, device=device())
        found["big"] = big.peak_device_bytes
    offs = []
    for build in (ppedu.one_f_one_b, ppedu.zb_v, ppedu.dualpipe):
        run, off = trained(build(p, 8))
        offs.append(off)
    return found | {"off": max(offs), "small": run.peak_device_bytes, "backend": run.backend, "where": run.where}


def raises(p: int, folder: Path) -> dict[str, Any]:
    """A layer on rank 1 raises in F2 of the second step."""
    model = [nn.Linear(4, 4).double() for _ in range(p)]
    wrong = probes.Acting(probes.RaiseNoted(folder / "raised"), call=8 + 3)
    stages: list[nn.Module] = [*model[:1], nn.Sequential(wrong, model[1]), *model[2:]]
    ppedu.train(stages, ppedu.one_f_one_b(p, 8), [batch(16)], plain.mse, steps=3, progress=False, device=device())
    return {}


def to_torch(p: int, folder: Path) -> dict[str, Any]:
    """The recipe of to_torch's docstring: init_process_group() without a backend."""
    torch.distributed.init_process_group()
    model = [nn.Linear(4, 4) for _ in range(p)]
    runtime = ppedu.to_torch(ppedu.one_f_one_b(p, 2), ppedu.split(model, p), plain.mse)
    weight = next(model[torch.distributed.get_rank()].parameters())
    x = torch.ones(4, 4, device=weight.device)
    runtime.step(x, target=x, losses=[])
    torch.distributed.destroy_process_group()
    return {"device": str(weight.device)}


def main(what: str, folder: str) -> None:
    run = {"equal": equal, "raises": raises, "to_torch": to_torch}[what]
    found = run(int(os.environ["WORLD_SIZE"]), Path(folder))
    Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
