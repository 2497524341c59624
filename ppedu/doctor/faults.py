"""Checks of what goes wrong: the right rank and operation are named, in time; what is only slow is left alone.

What goes wrong is a layer that acts in the rank that holds it: it breaks, hangs, kills its process, or looks at what the runtime does.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from threading import Event
from typing import Any

import torch
from torch import Tensor, nn

import ppedu
from ppedu.doctor import runs
from ppedu.doctor.runs import Acting, Busy, warm_up
from ppedu.doctor.table import STARTS, Failed, Skipped, device, gpus, require

CALL = 3  # of the layer that goes wrong: microbatch 2 of the first step
START = 10.0 * STARTS  # seconds to start ranks, and CUDA in them
HANG = 40.0  # seconds: more than anybody here waits for


def with_layer(layer: nn.Module, p: int, at: int = 0) -> list[nn.Module]:
    """p stages, of which one begins with this layer."""
    model: list[nn.Module] = [nn.Linear(4, 4).double() for _ in range(p)]
    model[at] = nn.Sequential(layer, model[at])
    return model


def train(model: Any, schedule: ppedu.Schedule, **options: Any) -> ppedu.Run:
    return runs.train(model, schedule, [runs.batch(16)], **{"steps": 2, **options})


def patience() -> float:
    """Seconds of `timeout=` where it is waited for: more on a GPU, where a rank's first operation starts CUDA."""
    return 6.0 if gpus() else 4.0


def raise_error(x: Tensor) -> None:
    raise RuntimeError("it broke on purpose")


def take_all_memory(x: Tensor) -> None:
    torch.empty(1 << 48, dtype=torch.uint8, device=x.device)


def look_outside(x: Tensor) -> None:
    """An index that an embedding does not have. A GPU finds out later than Python does, and is of no use afterwards."""
    nn.functional.embedding(torch.tensor([99], device=x.device), torch.ones(3, 4, device=x.device))


def kill(x: Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


ACTS: dict[str, tuple[Callable[[Tensor], None], str]] = {  # what the layer does, and a word that the error says
    "raises": (raise_error, "it broke on purpose"),
    "out_of_memory": (take_all_memory, "memory"),
    "device_assert": (look_outside, "out of range"),
    "killed": (kill, "SIGKILL"),
}


def named(fault: str, p: int = 4, at: int = 1, blamed: int | None = None) -> str:
    """Something goes wrong in F2 of stage `at`: that rank and that operation are blamed, in time. blamed: by default `at`."""
    if fault == "killed" and not hasattr(signal, "SIGKILL"):
        raise Skipped("this system has no SIGKILL")
    hangs = fault == "hangs"
    act, word = (Busy(HANG), "no progress") if hangs else ACTS[fault]
    if fault == "device_assert" and gpus():
        word = "assert"
    within = (patience() if hangs else 0.0) + 5.0 + START
    model, wanted = with_layer(Acting(act, CALL), p, at), at if blamed is None else blamed
    warm_up()
    began = time.perf_counter()
    try:
        train(model, ppedu.one_f_one_b(p, 8), timeout=patience() if hangs else 30.0)
    except ppedu.RunError as error:
        took = time.perf_counter() - began
        first, *more = str(error).strip().splitlines()
        said = f"rank {error.rank} in {error.action} after {took:.1f} s: {first}"
        if first.endswith(":") and more:  # a traceback follows, whose last line tells most
            said += f" {more[-1]}"
        require(error.rank == wanted and error.action == "F2", f"not rank {wanted} in F2 is blamed, but {said}")
        require(word.lower() in str(error).lower(), f"nothing is said of '{word}': {said}")
        require(took < within, f"more than {within:.0f} s: {said}")
        return said
    raise Failed(f"no RunError, though stage {at} {fault.replace('_', ' ')} in F2")


def long_step() -> str:
    """A step that takes longer than the time-out, of operations that do not: no hang, even if the host runs ahead."""
    timeout, operations = patience(), 8
    model = with_layer(Acting(Busy(timeout / 6)), 1)
    made = train(model, ppedu.gpipe(1, operations), steps=1, timeout=timeout).timeline.makespan
    require(made > timeout, f"the step took {made:.1f} s, and was to take longer than the time-out of {timeout:g} s")
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
        train(with_layer(nn.Identity(), 2), ppedu.gpipe(2, 4), steps=10**6, progress=progress, stop=stop)
    except ppedu.RunStopped:
        took = time.perf_counter() - at
        require(took < 5, f"{took:.1f} s until the run ended")
        return f"the run ended {took:.2f} s after stop was set"
    raise Failed("the run went on to its end, though stop was set")


def spy(x: Tensor) -> None:
    """From its first call on, a wait for the whole device raises in this rank while receives are posted that nobody waited
    for yet. NCCL's receives run on the device: such a wait would last until messages come that only come if it ends."""
    group: Any = torch.distributed.ProcessGroup
    posted: list[Any] = []
    receive, wait = group.recv, torch.cuda.synchronize

    def recv(*arguments: Any, **named: Any) -> Any:
        posted.append(receive(*arguments, **named))
        return posted[-1]

    def synchronize(*arguments: Any, **named: Any) -> None:
        if count := sum(not work.is_completed() for work in posted):
            raise RuntimeError(f"a wait for the whole device while {count} receives are posted")
        if torch.cuda.is_available():
            wait(*arguments, **named)

    if not hasattr(group, "spied"):
        group.spied, group.recv = True, recv
        for module in filter(None, (torch.cuda, getattr(torch, "accelerator", None))):
            module.synchronize = synchronize


def bait(x: Tensor) -> None:
    spy(x)
    torch.cuda.synchronize()


def no_device_wait() -> str:
    """No rank waits for its whole device while receives are posted, unpaced and paced. A rank that does is seen."""
    seen = _seen_by(bait)
    require("receives are posted" in seen, f"the spy saw nothing where it was given a device-wide wait: {seen!r}")
    for how, pace in (("unpaced", None), ("paced", ppedu.Costs(0.01, 0.01, unit="s"))):
        seen = _seen_by(spy, pace=pace)
        require(not seen, f"{how}: {seen}")
    return f"none in three steps, unpaced and paced, on {device()}; the wait that was put in for a trial was seen"


def _seen_by(act: Callable[[Tensor], None], **options: Any) -> str:
    """The error that both ranks' spies ended three steps with: its end, or nothing."""
    try:
        train(with_layer(Acting(act), 1) + with_layer(Acting(act), 1), ppedu.one_f_one_b(2, 4), steps=3, **options)
    except ppedu.RunError as error:
        return str(error).strip()[-400:]
    return ""


def check_current_device(x: Tensor) -> None:
    if x.device.index != (current := torch.cuda.current_device()):
        raise RuntimeError(f"the current GPU of this thread is {current}, but its tensors are on {x.device}")


def own_gpu_in_the_paced_thread() -> str:
    """A paced rank computes in a thread of its own, and threads begin on GPU 0."""
    model = [*with_layer(Acting(check_current_device), 1), *with_layer(Acting(check_current_device), 1)]
    run = train(model, ppedu.gpipe(2, 4), steps=1, pace=ppedu.Costs(0.01, 0.01, unit="s"), timeout=30)
    require(run.backend == "nccl", f"ran as {run.where}")
    return f"the mathematics of each rank ran on its own GPU; {run.where}"
