"""When operations ran: by the system's clock or by the GPU's own events; and how a paced operation passes its time."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import torch

from ppedu.runtime.rank.accelerator import OPERATIONS_AHEAD, Accelerator, Event


@dataclass(slots=True)
class Moment:
    """One entry of an order as it ran: seconds on the system-wide clock. `computed`: when the mathematics were done."""

    start: float
    computed: float
    end: float


class Timer(Protocol):
    """Records the moments of a step. at: the instruction's number; waits_at: that of the last receive before it, if any."""

    @property
    def now(self) -> Callable[[], float]: ...

    def start(self, at: int, waits_at: int | None) -> None: ...
    def computed(self) -> None: ...
    def end(self) -> float: ...

    def settle(self) -> None:
        """Wait until all that was started is over."""

    def unsettled(self) -> int | None:
        """The number of the oldest instruction that may not be over yet."""

    def moments(self) -> list[Moment]: ...


@dataclass(slots=True)
class ClockTimer:
    """The system's clock: an operation is over when its call returns."""

    now: Callable[[], float]
    done: list[Moment] = field(default_factory=list)

    def start(self, at: int, waits_at: int | None) -> None:
        moment = self.now()
        self.done.append(Moment(moment, moment, moment))

    def computed(self) -> None:
        self.done[-1].computed = self.now()

    def end(self) -> float:
        self.done[-1].end = self.now()
        return self.done[-1].end

    def settle(self) -> None:
        pass

    def unsettled(self) -> int | None:
        return None

    def moments(self) -> list[Moment]:
        return self.done


@dataclass(slots=True)
class Launched:
    """An operation on the GPU, between the events that mark its begin and its end."""

    at: int
    waits_at: int | None
    begin: Event
    end: Event


class EventTimer:
    """CUDA events: when the GPU, not the host, began and finished. Their times are read once, at the end of the step.

    The host runs at most OPERATIONS_AHEAD operations ahead of the GPU. Otherwise it would have launched the whole step
    before the first operation is over, and a hang or a fault on the GPU would be blamed on whatever the host is at.
    tell: called with the number of the instruction for which the host waits.
    """

    def __init__(self, clock: Callable[[], float], gpu: Accelerator, tell: Callable[[int], None]) -> None:
        self.now, self.gpu, self.tell = clock, gpu, tell
        self.origin = gpu.event()
        self.origin.record()
        self.origin.synchronize()
        self.zero = clock()
        self.launched: list[Launched] = []
        self.running: deque[Launched] = deque()

    def start(self, at: int, waits_at: int | None) -> None:
        while len(self.running) >= OPERATIONS_AHEAD:
            self._settle_oldest()
        self.running.append(Launched(at, waits_at, self.gpu.event(), self.gpu.event()))
        self.running[-1].begin.record()

    def computed(self) -> None:
        pass

    def end(self) -> float:
        self.running[-1].end.record()
        self.launched.append(self.running[-1])
        return 0.0

    def settle(self) -> None:
        while self.running:
            self._settle_oldest()

    def unsettled(self) -> int | None:
        return self.running[0].at if self.running else None

    def _settle_oldest(self) -> None:
        """Say what the GPU really does: it waits for a message before an operation has begun, and computes after that."""
        oldest = self.running[0]
        if oldest.waits_at is not None and not oldest.begin.query():
            self.tell(oldest.waits_at)
            oldest.begin.synchronize()
        self.tell(oldest.at)
        oldest.end.synchronize()
        self.running.popleft()

    def moments(self) -> list[Moment]:
        self.settle()
        found = []
        for one in self.launched:
            start, end = (self.zero + self.origin.elapsed_time(e) / 1e3 for e in (one.begin, one.end))
            found.append(Moment(start, end, end))
        return found


_pool: list[ThreadPoolExecutor] = []


def in_background(mathematics: Callable[[], None], gpu: Accelerator | None) -> None:
    """Run paced mathematics in a thread of low priority, and wait until they are over, on the GPU too. Where ranks share
    cores, one that is due to wake and pass on a message must not queue behind another's mathematics, which has time to
    spare."""
    if not _pool:
        _pool.append(ThreadPoolExecutor(1, "mathematics", _begin, (torch.get_num_threads(),)))

    def there() -> None:
        if gpu is not None:
            gpu.use()
        mathematics()
        if gpu is not None:
            gpu.finish()

    _pool[0].submit(there).result()


def _begin(threads: int) -> None:
    torch.set_num_threads(threads)  # MKL counts per thread, and its idle ones spin for milliseconds
    if sys.platform == "linux":  # only there a priority belongs to a thread
        os.setpriority(os.PRIO_PROCESS, 0, 19)


AWAKE = 50e-6


def sleep_until(deadline: float, clock: Callable[[], float]) -> None:
    while (left := deadline - clock()) > 0:
        if left > AWAKE:
            time.sleep(left - AWAKE)
