"""When operations ran: by the system's clock or by the GPU's own events; and how a paced operation passes its time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import torch


@dataclass(slots=True)
class Moment:
    """One entry of an order as it ran: seconds on the system-wide clock. `computed`: when the mathematics were done."""

    start: float
    computed: float
    end: float


class Timer(Protocol):
    """Records the moments of a step."""

    def now(self) -> float: ...
    def start(self) -> None: ...
    def computed(self) -> None: ...
    def end(self) -> float: ...
    def moments(self) -> list[Moment]: ...


@dataclass(slots=True)
class ClockTimer:
    now: Callable[[], float]
    done: list[Moment] = field(default_factory=list)

    def start(self) -> None:
        moment = self.now()
        self.done.append(Moment(moment, moment, moment))

    def computed(self) -> None:
        self.done[-1].computed = self.now()

    def end(self) -> float:
        self.done[-1].end = self.now()
        return self.done[-1].end

    def moments(self) -> list[Moment]:
        return self.done


class EventTimer:
    """CUDA events: when the GPU, not the host, began and finished. Read once, at the end of the step."""

    def __init__(self, clock: Callable[[], float], device: torch.device) -> None:
        torch.cuda.synchronize(device)
        self.device, self.now = device, clock
        self.origin = torch.cuda.Event(enable_timing=True)
        self.origin.record()
        self.origin.synchronize()
        self.zero = clock()
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def start(self) -> None:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self.events.append((begin, end))

    def computed(self) -> None:
        pass

    def end(self) -> float:
        self.events[-1][1].record()
        return 0.0

    def moments(self) -> list[Moment]:
        torch.cuda.synchronize(self.device)
        times = [(self.zero + self.origin.elapsed_time(a) / 1e3, self.zero + self.origin.elapsed_time(b) / 1e3)
                 for a, b in self.events]  # fmt: skip
        return [Moment(start, end, end) for start, end in times]


_pool: list[ThreadPoolExecutor] = []


def in_background(mathematics: Callable[[], None]) -> None:
    """Run paced mathematics in a thread of low priority, and wait. Where ranks share cores, one that is due to wake and
    pass on a message must not queue behind another's mathematics, which has time to spare."""
    if not _pool:
        _pool.append(ThreadPoolExecutor(1, "mathematics", _begin, (torch.get_num_threads(),)))
    _pool[0].submit(mathematics).result()


def _begin(threads: int) -> None:
    torch.set_num_threads(threads)  # MKL counts per thread, and its idle ones spin for milliseconds
    if sys.platform == "linux":  # only there a priority belongs to a thread
        os.setpriority(os.PRIO_PROCESS, 0, 19)


AWAKE = 50e-6


def sleep_until(deadline: float, clock: Callable[[], float]) -> None:
    while (left := deadline - clock()) > 0:
        if left > AWAKE:
            time.sleep(left - AWAKE)
