"""The checks, in the order in which they run: what tells most comes first, in case the time is up before the end."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STARTS = 1 if sys.platform == "linux" else 4  # elsewhere each rank of each run imports torch: all takes longer


@dataclass(frozen=True, slots=True)
class Check:
    """One check, which runs in a process of its own.

    calls: "module:function", a function of keyword `arguments` that returns what it saw. limit: seconds after which it has
    failed. usual: seconds that are kept free for it while others take theirs. gpus: how many it needs. share: its ranks
    see one GPU only. launches: it starts ranks from its own process. alone: nothing else runs meanwhile, for it measures.
    """

    name: str
    calls: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    limit: float = 40
    usual: float = 4
    gpus: int = 0
    share: bool = True
    launches: bool = True
    alone: bool = False


def _check(name: str, function: str, limit: float = 40, usual: float = 4, **more: Any) -> Check:
    """One that any machine can do. more: other fields of the check, and the function's arguments."""
    named = {key: more.pop(key) for key in ("gpus", "share", "launches", "alone") if key in more}
    return Check(name, f"ppedu.doctor.{function}", more, limit * STARTS, usual, **named)


def _each(name: str, function: str, limit: float = 60, usual: float = 12, **more: Any) -> Check:
    """One that wants a GPU for each rank."""
    return _check(name, function, limit, usual, gpus=2, share=False, **more)


ONE_DEVICE = (
    _check("environment", "machine:environment", usual=5, share=False, launches=False),
    _check("fork_server", "machine:fork_server"),
    _check("equal", "equality:one", backend="gloo", p=4, steps=3),
    _check("no_device_wait", "faults:no_device_wait", usual=6),
    _check("equal_every_schedule", "equality:schedules", 90, 18, backend="gloo"),
    _check("raises", "faults:named", fault="raises"),
    _check("out_of_memory", "faults:named", fault="out_of_memory"),
    _check("device_assert", "faults:named", fault="device_assert"),
    _check("killed", "faults:named", fault="killed"),
    _check("hangs", "faults:named", usual=10, fault="hangs"),
    _check("long_step", "faults:long_step", usual=11),
    _check("stops", "faults:stops"),
    _check("paced", "times:paced", usual=6, alone=True, p=4, backend="gloo"),
    _check("events", "times:events"),
    _check("memory", "machine:memory", usual=7),
    _check("nothing_left", "machine:nothing_left", 60, 10),
    _check("dtypes", "equality:dtypes", usual=8),
    _check("in_place", "equality:in_place"),
    _check("torchrun", "torchrun:equal", 70, 14, launches=False, backend="gloo"),
    _check("torchrun_raises", "torchrun:raises", 50, 14, launches=False, within=20),
    _check("to_torch", "torchrun:to_torch", 50, 11, launches=False),
    _check("command_line", "equality:command_line", 60, 11, launches=False),
)  # fmt: skip

A_GPU_EACH = (
    _each("nccl_one_step", "equality:one", backend="nccl", p=2, steps=1),
    _each("nccl_several_steps", "equality:one", backend="nccl", p=2, steps=4),
    _each("nccl_paced", "times:paced", alone=True, p=2, backend="nccl"),
    _each("nccl_unpaced", "times:unpaced", alone=True),
    _each("nccl_every_schedule", "equality:schedules", 180, 80, backend="nccl", p=None, m=8),
    _each("nccl_large_messages", "equality:large_messages", backend="nccl", mib=64),
    _each("nccl_raises", "faults:named", fault="raises", p=2),
    _each("nccl_killed", "faults:named", fault="killed", p=2),
    _each("nccl_hangs", "faults:named", usual=16, fault="hangs", p=2),
    _each("nccl_own_gpu", "faults:own_gpu_in_the_paced_thread"),
    _each("more_ranks_than_gpus", "equality:more_ranks_than_gpus"),
    _each("nccl_nothing_in_shared_memory", "machine:nccl_leaves_no_shared_memory"),
    _each("nccl_torchrun", "torchrun:equal", 90, 18, launches=False, backend="nccl"),
    _each("nccl_torchrun_raises", "torchrun:raises", 70, 18, launches=False, within=30),
)  # fmt: skip

CHECKS = ONE_DEVICE + A_GPU_EACH
