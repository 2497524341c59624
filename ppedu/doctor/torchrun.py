"""Checks of ranks that torchrun starts: they join the world that is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppedu.doctor.verdict import device, require


@dataclass(frozen=True, slots=True)
class Job:
    """How a torchrun job ended: its exit code, what it printed, what each rank found, how long it took, and how long it
    went on after a rank had raised (None where none did)."""

    code: int
    text: str
    found: list[dict[str, Any]]
    seconds: float
    after: float | None


def job(what: str, ranks: int) -> Job:
    """Run ppedu.doctor.joined. No time-out: this check's own ends it, and all that it started."""
    with tempfile.TemporaryDirectory(prefix="ppedu-") as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        began = time.perf_counter()
        done = subprocess.run(
            [*command, "-m", "ppedu.doctor.joined", what, folder],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        took, ended = time.perf_counter() - began, time.time()
        raised = Path(folder, "raised")
        after = ended - float(raised.read_text("utf-8")) if raised.exists() else None
        found = [json.loads(file.read_text("utf-8")) for file in sorted(Path(folder).glob("*.json"))]
    return Job(done.returncode, done.stdout, found, took, after)


def equal(backend: str, ranks: int = 2) -> str:
    """The joined runs equal plain training; the memory that one took is not told of the next."""
    done = job("equal", ranks)
    require(done.code == 0 and len(done.found) == ranks, f"exit code {done.code}: {done.text[-600:]}")
    first = done.found[0]
    backends = {found["backend"] for found in done.found}
    require(backends == {backend}, f"it ran over {backends}, not over {backend} ({first['where']})")
    said = f"off by {max(found['off'] for found in done.found):.0e}; {first['where']}; {done.seconds:.1f} s"
    if not first["big"]:
        return said
    big, small = max(first["big"]), max(first["small"])
    require(
        small < big / 2,
        f"a small run after a big one is said to have taken {small:,} bytes of the GPU, the big one {big:,}",
    )
    return f"{said}; peak {big / 1e6:.0f} MB, then {small / 1e6:.1f} MB"


def raises(within: float) -> str:
    """A rank that raises ends the job; rank, operation and cause can be read."""
    done = job("raises", 2)
    require(done.code != 0, "exit code 0, though rank 1 raised")
    require("it broke on purpose" in done.text, f"the cause is not told: {done.text[-600:]}")
    after = done.after or 0.0
    require(after < within, f"the job went on for {after:.1f} s after rank 1 had raised, where {within:g} are enough")
    named = re.search(r"rank 1 on \S+ failed in F2 of step 1", done.text)
    require(named is not None, f"rank 1 in F2 of step 1 is not named: {done.text[-600:]}")
    return f"exit code {done.code}, {after:.1f} s after it happened: {named[0] if named else ''}"


def to_torch() -> str:
    """After a plain init_process_group() the stage is on the GPU, where there is one."""
    done = job("to_torch", 1)
    require(done.code == 0, f"exit code {done.code}: {done.text[-600:]}")
    (found,) = done.found
    require(found["device"].startswith(device()), f"the stage is on {found['device']}, not on {device()}")
    return f"the stage is on {found['device']}"
