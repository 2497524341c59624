"""The checks, in the order in which they run (what tells most comes first), and how a check says what it found.

A check is a function that returns what it saw, in a line of text, or raises Failed or Skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STARTS = 1 if sys.platform == "linux" else 4  # elsewhere each rank of each run imports torch: all takes longer
UNSEEN: list[str] = []  # what a check would look at on another machine: the end of the report lists it


class Failed(Exception):  # noqa: N818 - it is a finding
    """The machine, or ppedu on it, does not do what it should."""


class Skipped(Exception):  # noqa: N818 - nobody made a mistake
    """This machine cannot be asked that."""


def require(holds: bool, otherwise: str) -> None:
    """Raise Failed unless it holds. (An assert would pass everything under `python -O`.)"""
    if not holds:
        raise Failed(otherwise)


def gpus() -> int:
    """GPUs that this process may use."""
    import torch  # not at the top: who lists the checks need not wait for it

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def device() -> str:
    """Where the ranks of a check compute."""
    return "cuda" if gpus() else "cpu"


def too_few(needed: int, here: int) -> str:
    return (
        f"NCCL, and a GPU for each rank, need {needed} GPUs, and here {'is' if here == 1 else 'are'} {here or 'none'}"
    )


@dataclass(frozen=True, slots=True)
class Check:
    """One check, which runs in a process of its own.

    calls: "module:function", of keyword `arguments`. limit: seconds after which it has failed. gpus: how many it needs.
    share: its ranks see one GPU only.
    """

    name: str
    calls: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    limit: float = 40
    gpus: int = 0
    share: bool = True


def _check(name: str, function: str, limit: float = 40, gpus: int = 0, share: bool = True, **arguments: Any) -> Check:
    return Check(name, f"ppedu.doctor.{function}", arguments, limit * STARTS, gpus, share)


def _nccl(name: str, function: str, limit: float = 60, **arguments: Any) -> Check:
    """One that wants a GPU for each rank, and may use all."""
    return _check(name, function, limit, 2, False, **arguments)


CHECKS = (
    _check("environment", "machine:environment", share=False),
    _check("fork_server", "machine:fork_server"),
    _check("equal", "runs:one", backend="gloo", p=4, steps=3),
    _check("no_device_wait", "faults:no_device_wait"),
    _check("equal_every_schedule", "runs:schedules", 90, backend="gloo"),
    _check("raises", "faults:named", fault="raises"),
    _check("out_of_memory", "faults:named", fault="out_of_memory"),
    _check("device_assert", "faults:named", fault="device_assert"),
    _check("killed", "faults:named", fault="killed"),
    _check("hangs", "faults:named", fault="hangs"),
    _check("long_step", "faults:long_step"),
    _check("stops", "faults:stops"),
    _check("paced", "runs:paced", p=4, backend="gloo"),
    _check("events", "runs:events"),
    _check("memory", "machine:memory"),
    _check("nothing_left", "machine:nothing_left", 60, backend="gloo"),
    _check("dtypes", "runs:dtypes"),
    _check("in_place", "runs:in_place"),
    _check("torchrun", "torchrun:equal", 70, backend="gloo"),
    _check("torchrun_raises", "torchrun:raises", 50, within=20),
    _check("to_torch", "torchrun:to_torch", 50),
    _check("command_line", "runs:command_line", 60),
    _nccl("nccl_one_step", "runs:one", backend="nccl", p=2, steps=1),
    _nccl("nccl_several_steps", "runs:one", backend="nccl", p=2, steps=4),
    _nccl("nccl_paced", "runs:paced", backend="nccl", p=2),
    _nccl("nccl_unpaced", "runs:unpaced"),
    _nccl("nccl_every_schedule", "runs:schedules", 180, backend="nccl", p=None, m=8),
    _nccl("nccl_large_messages", "runs:large_messages", backend="nccl", mib=64),
    _nccl("nccl_raises", "faults:named", fault="raises", p=2),
    _nccl("nccl_killed", "faults:named", fault="killed", p=2),
    _nccl("nccl_hangs", "faults:named", fault="hangs", p=2),
    _nccl("nccl_own_gpu", "faults:own_gpu_in_the_paced_thread"),
    _nccl("more_ranks_than_gpus", "runs:one", backend="gloo", p=None, steps=2),
    _nccl("nccl_nothing_in_shared_memory", "machine:nothing_left", backend="nccl", rounds=1),
    _nccl("nccl_torchrun", "torchrun:equal", 90, backend="nccl"),
    _nccl("nccl_torchrun_raises", "torchrun:raises", 70, within=30),
)
