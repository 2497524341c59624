"""Checks of what goes wrong: the right rank and operation are named, in time; what is only slow is left alone."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from typing import Any

import torch
from torch import nn

import ppedu
from ppedu.doctor import plain, probes
from ppedu.doctor.plain import batch
from ppedu.doctor.table import STARTS
from ppedu.doctor.verdict import Failed, Skipped, device, gpus, patience, require

CALL = 3  # of the layer that goes wrong: microbatch 2 of the first step
START = 10.0 * STARTS  # seconds to start ranks, and CUDA in them
HANG = 40.0  # seconds: more than anybody here waits for


@dataclass(frozen=True, slots=True)
class Fault:
    """act: makes what the layer does. says: a word of the error, here and on a GPU. hangs: it is found by the time-out."""

    act: Callable[[], probes.Act]
    says: tuple[str, str]
    hangs: bool = False


FAULTS = {
    "raises": Fault(lambda: probes.raise_error, ("it broke on purpose",) * 2),
    "out_of_memory": Fault(lambda: probes.take_all_memory, ("memory",) * 2),
    "device_assert": Fault(lambda: probes.look_outside, ("out of range", "assert")),
    "killed": Fault(lambda: probes.kill, ("SIGKILL",) * 2),
    "hangs": Fault(lambda: probes.Busy(HANG), ("no progress",) * 2, hangs=True),
}


def named(fault: str, p: int = 4, at: int = 1, blamed: int | None = None) -> str:
    """Something goes wrong in F2 of stage `at`: that rank and that operation are blamed, in time. blamed: by default `at`."""
    wrong = FAULTS[fault]
    if fault == "killed" and not hasattr(signal, "SIGKILL"):
        raise Skipped("this system has no SIGKILL")
    timeout = patience() if wrong.hangs else 30.0
    within = (timeout if wrong.hangs else 0.0) + 5.0 + START
    model = _with(probes.Acting(wrong.act(), CALL), p, at)
    began = time.perf_counter()
    try:
        _train(model, ppedu.one_f_one_b(p, 8), timeout=timeout)
    except ppedu.RunError as error:
        took = time.perf_counter() - began
        said = f"rank {error.rank} in {error.action} after {took:.1f} s: {_in_short(error)}"
        wanted = at if blamed is None else blamed
        require(error.rank == wanted and error.action == "F2", f"not rank {wanted} in F2 is blamed, but {said}")
        word = wrong.says[bool(gpus())]
        require(word.lower() in str(error).lower(), f"nothing is said of '{word}': {said}")
        require(took < within, f"more than {within:.0f} s: {said}")
        return said
    raise Failed(f"no RunError, though stage {at} {fault.replace('_', ' ')} in F2")


def _in_short(error: ppedu.RunError) -> str:
    """Its first line, and where a traceback follows, the last."""
    first, *more = str(error).strip().splitlines()
    return f"{first} {more[-1]}" if first.endswith(":") and more else first


def _with(layer: nn.Module, p: int, at: int) -> list[nn.Module]:
    """p stages, of which one begins with this layer."""
    model: list[nn.Module] = [nn.Linear(4, 4).double() for _ in range(p)]
    model[at] = nn.Sequential(layer, model[at])
    return model


def _train(model: Any, schedule: ppedu.Schedule, **options: Any) -> ppedu.Run:
    return ppedu.train(
        model,
        schedule,
        [batch(16)],
        plain.mse,
        plain.momentum,
        **{"steps": 2, "device": device(), "progress": False, **options},
    )


def long_step() -> str:
    """A step that takes longer than the time-out, of operations that do not: no hang, even if the host runs ahead."""
    timeout, operations = patience(), 8
    layer = probes.Acting(probes.Busy(timeout / 6))
    model = _with(layer, 1, 0)
    run = _train(model, ppedu.gpipe(1, operations), steps=1, timeout=timeout)
    made = run.timeline.makespan
    require(
        made > timeout, f"the step took {made:.1f} s only: it was to take longer than the time-out of {timeout:g} s"
    )
    return f"{operations} forwards of {timeout / 6:.1f} s took {made:.1f} s under a time-out of {timeout:g} s"


def stops() -> str:
    """`stop=` ends a run within a moment."""
    stop, at = Event(), 0.0

    def progress(done: int, steps: int, loss: float) -> None:
        nonlocal at
        if done == 3:
            at = time.perf_counter()
            stop.set()

    try:
        _train(_with(nn.Identity(), 2, 0), ppedu.gpipe(2, 4), steps=10**6, progress=progress, stop=stop)
    except ppedu.RunStopped:
        took = time.perf_counter() - at
        require(took < 5, f"{took:.1f} s until the run ended")
        return f"the run ended {took:.2f} s after stop was set"
    raise Failed("the run went on to its end, though stop was set")


def no_device_wait() -> str:
    """No rank waits for its whole device while receives are posted, unpaced and paced. A rank that does is seen."""
    seen = _spied(bait=True, pace=None)
    require("posted" in seen, f"the spy saw nothing where it was given a device-wide wait: {seen!r}")
    for how, pace in (("unpaced", None), ("paced", ppedu.Costs(0.01, 0.01, unit="s"))):
        seen = _spied(bait=False, pace=pace)
        require(not seen, f"{how}: {seen}")
    return f"none in three steps, unpaced and paced, on {device()}; the wait that was put in for a trial was seen"


def _spied(bait: bool, pace: ppedu.Costs | None) -> str:
    """What the spies in both ranks saw in three steps: a sentence, or nothing."""
    model: Any = [nn.Sequential(probes.Acting(probes.Spy(bait)), nn.Linear(4, 4)).double() for _ in range(2)]
    try:
        _train(model, ppedu.one_f_one_b(2, 4), steps=3, pace=pace)
    except ppedu.RunError as error:
        return next((line for line in str(error).splitlines() if "DeviceWideWaitError" in line), str(error)[-300:])
    return ""


def own_gpu_in_the_paced_thread() -> str:
    """A paced rank computes in a thread of its own, and threads begin on GPU 0."""
    model: Any = [nn.Sequential(probes.Acting(probes.check_current_device), nn.Linear(4, 4)).double() for _ in range(2)]
    run = _train(model, ppedu.gpipe(2, 4), steps=1, pace=ppedu.Costs(0.01, 0.01, unit="s"), timeout=30)
    require(torch.cuda.device_count() >= 2 and run.backend == "nccl", f"ran as {run.where}")
    return f"the mathematics of each rank ran on its own GPU; {run.where}"
