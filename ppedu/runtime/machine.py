"""What this machine will do when a pipeline runs on it: ranks, devices, pacing. Said before anything starts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ppedu.runtime.run import available_cores


@dataclass(frozen=True, slots=True, repr=False)
class Machine:
    """The devices that are here. `plan(p)` says in a sentence what p ranks will run on.

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
            text = f"{p} ranks will be {p} CPU processes that share {self.cores} core{'s' if self.cores > 1 else ''}"
            text += " and talk over gloo"
            return text if self.cores >= p else f"{text}: only a paced run shows what {p} devices do"
        names = ", ".join(sorted(set(self.gpus)))
        if len(self.gpus) >= p:
            return f"{p} ranks will have a GPU each ({names}) and talk over NCCL"
        count = f"{len(self.gpus)} GPU{'s' if len(self.gpus) > 1 else ''}"
        return f"{p} ranks will share {count} ({names}) and talk through host memory over gloo"

    def __repr__(self) -> str:
        gpus = f"{len(self.gpus)} x {self.gpus[0]}" if self.gpus else "no GPU"
        return f"This machine: {self.cores} cores, {gpus}. Here {self.plan(4)}."


def machine() -> Machine:
    """Look at this machine. Asks the driver how many GPUs there are, but starts none of them.

    >>> machine().cores >= 1
    True
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return Machine(available_cores(), ("GPU",) * count)
