"""Checks of ranks that torchrun starts, which join the world that is there; each rank runs this file, and writes what it
found into a folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ppedu
from ppedu.doctor import faults, runs
from ppedu.doctor.table import device, require

BIG = 4096  # width of a model that takes much more memory than the others


def _job(what: str, ranks: int) -> tuple[int, str, list[dict[str, Any]]]:
    """Run this file under torchrun: exit code, what it printed, what ranks found. The check's limit ends it and its ranks."""
    with tempfile.TemporaryDirectory(prefix="ppedu-") as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        done = subprocess.run(
            [*command, "-m", "ppedu.doctor.torchrun", what, folder],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        found = [json.loads(file.read_text("utf-8")) for file in sorted(Path(folder).glob("*.json"))]
    return done.returncode, done.stdout, found


def equal(backend: str, ranks: int = 2) -> str:
    """The joined runs equal plain training; the memory that one took is not told of the next."""
    code, text, found = _job("equal", ranks)
    require(code == 0 and len(found) == ranks, f"exit code {code}: {text[-600:]}")
    first = found[0]
    backends = {one["backend"] for one in found}
    require(backends == {backend}, f"it ran over {backends}, not over {backend} ({first['where']})")
    said = f"off by {max(one['off'] for one in found):.0e}; {first['where']}"
    if not first["big"]:
        return said
    big, small = max(first["big"]), max(first["small"])
    require(
        small < big / 2, f"of the GPU a big run took {big:,} bytes, and a small one after it is said to take {small:,}"
    )
    return f"{said}; peak {big / 1e6:.0f} MB, then {small / 1e6:.1f} MB"


def _equal(p: int) -> dict[str, Any]:
    """Several runs in one world; a big one first, whose peak is not the next one's."""
    big = None
    if device() == "cuda":
        data = [(torch.randn(2 * BIG, BIG), torch.randn(2 * BIG, BIG))]
        model = [nn.Linear(BIG, BIG) for _ in range(p)]
        big = runs.train(model, ppedu.gpipe(p, p), data, None).peak_device_bytes
    made = [runs.trained(build(p, 8)) for build in (ppedu.one_f_one_b, ppedu.zb_v, ppedu.dualpipe)]
    run = made[-1][0]
    off = max(off for _, off in made)
    return {"big": big, "off": off, "small": run.peak_device_bytes, "backend": run.backend, "where": run.where}


def raises(within: float) -> str:
    """A rank that raises ends the job; rank, operation and cause can be read."""
    code, text, found = _job("raises", 2)
    ended = time.time()
    require(code != 0, "exit code 0, though rank 1 raised")
    require("it broke on purpose" in text, f"the cause is not told: {text[-600:]}")
    after = ended - max(one["raised"] for one in found)
    require(after < within, f"the job went on for {after:.1f} s after rank 1 had raised, where {within:g} are enough")
    named = re.search(r"rank 1 on \S+ failed in F2 of step 1", text)
    require(named is not None, f"rank 1 in F2 of step 1 is not named: {text[-600:]}")
    return f"exit code {code}, {after:.1f} s after it happened: {named[0] if named else ''}"


def _raises(p: int) -> dict[str, Any]:
    """A layer on rank 1 raises in F2 of the second step."""

    def act(x: Any) -> None:
        _tell({"raised": time.time()})
        faults.raise_error(x)

    model = faults.with_layer(runs.Acting(act, call=8 + 3), p, 1)
    faults.train(model, ppedu.one_f_one_b(p, 8), steps=3)
    return {}


def to_torch() -> str:
    """After a plain init_process_group() the stage is on the GPU, where there is one."""
    code, text, found = _job("to_torch", 1)
    require(code == 0, f"exit code {code}: {text[-600:]}")
    where = found[0]["device"]
    require(where.startswith(device()), f"the stage is on {where}, not on {device()}")
    return f"the stage is on {where}"


def _to_torch(p: int) -> dict[str, Any]:
    """The recipe of to_torch's docstring: init_process_group() without a backend."""
    torch.distributed.init_process_group()
    model = [nn.Linear(4, 4) for _ in range(p)]
    runtime = ppedu.to_torch(ppedu.one_f_one_b(p, 2), ppedu.split(model, p), runs.mse)
    weight = next(model[torch.distributed.get_rank()].parameters())
    x = torch.ones(4, 4, device=weight.device)
    runtime.step(x, target=x, losses=[])
    torch.distributed.destroy_process_group()
    return {"device": str(weight.device)}


def _tell(found: dict[str, Any]) -> None:
    Path(sys.argv[2], f"{os.environ['RANK']}.json").write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    torch.manual_seed(0)  # each rank has the whole model: they have to be alike
    _tell({"equal": _equal, "raises": _raises, "to_torch": _to_torch}[sys.argv[1]](int(os.environ["WORLD_SIZE"])))
