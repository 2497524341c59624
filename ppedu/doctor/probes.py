"""Layers that act in the rank that holds them: they break, hang, kill their process, or look at what the runtime does."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Act = Callable[[Tensor], Any]


class Acting(nn.Module):
    """Passes on what comes in, and acts on it in its forward: at the call with this number, from 1 on, or at each (None)."""

    def __init__(self, act: Act, call: int | None = None) -> None:
        super().__init__()
        self.act, self.call, self.calls = act, call, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.call in (None, self.calls):
            self.act(x)
        return x


def raise_error(x: Tensor) -> None:
    raise RuntimeError("it broke on purpose")


class RaiseNoted:
    """Raise, and write into a file when that was, by the system's clock."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, x: Tensor) -> None:
        self.file.write_text(str(time.time()), "utf-8")
        raise_error(x)


def take_all_memory(x: Tensor) -> None:
    torch.empty(1 << 48, dtype=torch.uint8, device=x.device)


def look_outside(x: Tensor) -> None:
    """An index that an embedding does not have. A GPU finds out later than Python does, and is of no use afterwards."""
    nn.functional.embedding(torch.tensor([99], device=x.device), torch.ones(3, 4, device=x.device))


def kill(x: Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def cycles_per_second(seconds: float = 0.05) -> float:
    """Of the GPU's clock, which torch.cuda._sleep counts by. Measured once it has been busy for a moment."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cycles = int(seconds * 1.5e9)
    for event in (begin, end):
        torch.cuda._sleep(cycles)
        event.record()
    torch.cuda.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return cycles / (milliseconds / 1e3)


class Busy:
    """Keep the device busy for so many seconds; where there is no GPU, sleep. cycles: a second's, on a GPU."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.cycles = cycles_per_second() if torch.cuda.is_available() else 0.0

    def __call__(self, x: Tensor) -> None:
        if x.is_cuda:
            torch.cuda._sleep(int(self.seconds * self.cycles))
        else:
            time.sleep(self.seconds)


class Stopwatch(nn.Module):
    """Keeps the device busy, and says in its buffer how many seconds that took by the host's clock, call by call."""

    seconds: Tensor

    def __init__(self, seconds: float, calls: int) -> None:
        super().__init__()
        self.busy, self.calls = Busy(seconds), 0
        self.register_buffer("seconds", torch.zeros(calls, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        _finish(x)
        began = time.perf_counter()
        self.busy(x)
        _finish(x)
        self.seconds[self.calls] = time.perf_counter() - began
        self.calls += 1
        return x


class Repeated(nn.Module):
    """A layer several times over: much to compute with few weights."""

    def __init__(self, layer: nn.Module, times: int) -> None:
        super().__init__()
        self.layer, self.times = layer, times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = torch.tanh(self.layer(x))
        return x


def _finish(x: Tensor) -> None:
    """Wait for what this thread has launched; not for the whole device, where messages may be on their way."""
    if x.is_cuda:
        torch.cuda.current_stream(x.device).synchronize()


def check_current_device(x: Tensor) -> None:
    current = torch.cuda.current_device()
    if x.device.index != current:
        raise RuntimeError(f"the current GPU of this thread is {current}, but its tensors are on {x.device}")


class DeviceWideWaitError(RuntimeError):
    """A rank waited for its whole device while receives were posted."""


class Spy:
    """From its first call on, a wait for the whole device raises in this rank while receives are posted that nobody waited
    for yet. NCCL's receives run on the device: such a wait would last until messages come that only come if it ends.

    bait: wait so itself, at each call, to show that the spy sees it.
    """

    def __init__(self, bait: bool) -> None:
        self.bait = bait

    def __call__(self, x: Tensor) -> None:
        if not hasattr(torch.cuda.synchronize, "posted"):
            _watch_waits()
        if self.bait:
            torch.cuda.synchronize()


def _watch_waits() -> None:
    group: Any = torch.distributed.ProcessGroup
    posted: list[Any] = []
    receive = group.recv

    def recv(*arguments: Any, **named: Any) -> Any:
        posted.append(receive(*arguments, **named))
        return posted[-1]

    group.recv = recv
    modules: tuple[Any, ...] = (torch.cuda, getattr(torch, "accelerator", None))
    for module in modules:
        if module is not None:
            module.synchronize = _spied(module.synchronize, posted)


def _spied(synchronize: Any, posted: list[Any]) -> Any:
    def spied(*arguments: Any, **named: Any) -> None:
        posted[:] = [work for work in posted if not work.is_completed()]
        if posted:
            caller = traceback.extract_stack(limit=2)[0]
            where = f"{Path(caller.filename).name}:{caller.lineno}"
            raise DeviceWideWaitError(f"a wait for the whole device at {where} while {len(posted)} receives are posted")
        if torch.cuda.is_available():
            synchronize(*arguments, **named)

    spied.posted = posted  # type: ignore[attr-defined]
    return spied
