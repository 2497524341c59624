"""What this machine will do when a pipeline runs on it: ranks, devices, pacing. Said before anything starts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass

import torch

from ppedu.core.format import counted
from ppedu.runtime.run import available_cores

NAMELESS = "GPU"  # the name of one whose name is not known
PATIENCE = 10.0  # seconds that the driver may take to name its GPUs: they may have to be woken


@dataclass(frozen=True, slots=True, repr=False)
class Machine:
    """The devices that are here. `plan(p)` says in a sentence what p ranks will run on.

    cores: that this process may use. gpus: the name of each GPU that it may use, or "GPU" where that is not known.

    >>> Machine(cores=2, gpus=()).plan(p=4)
    '4 ranks will be 4 CPU processes that share 2 cores and talk over gloo: only a paced run shows what 4 devices do'
    >>> Machine(cores=16, gpus=("NVIDIA H200",)).plan(p=4)
    '4 ranks will share 1 GPU (NVIDIA H200) and talk through host memory over gloo'
    """

    cores: int
    gpus: tuple[str, ...]

    def plan(self, p: int) -> str:
        """What `device="auto"` means here for p ranks."""
        if not self.gpus:
            text = f"{p} ranks will be {p} CPU processes that share {counted(self.cores, 'core')} and talk over gloo"
            return text if self.cores >= p else f"{text}: only a paced run shows what {p} devices do"
        names = ", ".join(sorted({*self.gpus} - {NAMELESS}))
        names = f" ({names})" if names else ""
        if len(self.gpus) >= p:
            return f"{p} ranks will have a GPU each{names} and talk over NCCL"
        return f"{p} ranks will share {counted(len(self.gpus), 'GPU')}{names} and talk through host memory over gloo"

    def __repr__(self) -> str:
        kinds = Counter(self.gpus)
        gpus = ", ".join(counted(n, NAMELESS) if name == NAMELESS else f"{n} x {name}" for name, n in kinds.items())
        return f"This machine: {counted(self.cores, 'core')}, {gpus or 'no GPU'}. Here {self.plan(4)}."


def machine() -> Machine:
    """Look at this machine. Asks the driver for its GPUs, but starts none of them in this process.

    >>> machine().cores >= 1
    True
    """
    count = gpu_count()
    names = _names() if count else ()
    return Machine(available_cores(), names if len(names) == count else (NAMELESS,) * count)


def gpu_count() -> int:
    """How many GPUs torch can use here."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _names() -> tuple[str, ...]:
    """What the driver calls the GPUs that this process may use, or nothing where it cannot be asked.

    torch would have to start CUDA here to know, which takes seconds and some hundred megabytes of the first GPU.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    which = [] if visible is None else ["-i", visible.replace(" ", "")]
    command = [tool, "--query-gpu=name", "--format=csv,noheader", *which]
    try:
        said = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError):  # a slice of a GPU has a name there that -i does not take
        return ()
    return tuple(line.strip() for line in said.stdout.splitlines() if line.strip())
