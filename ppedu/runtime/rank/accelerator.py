"""What a rank asks of its GPU besides the mathematics: whose it is, and when what was launched on it is over.

NCCL's kernels run on streams of their own, and a receive that is posted ahead runs until its message comes. So nobody here
waits for the whole device (torch.cuda.synchronize): it would wait for messages that only come if this rank goes on.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import torch

OPERATIONS_AHEAD = 2  # operations that a host launches before it waits for the first of them
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


class Event(Protocol):
    """A mark in the stream of the thread that records it: torch.cuda.Event."""

    def record(self) -> Any: ...
    def query(self) -> bool: ...
    def synchronize(self) -> Any: ...
    def elapsed_time(self, end: Any, /) -> float: ...


class Accelerator(Protocol):
    """A rank's GPU; there is none where it computes on the CPU."""

    def use(self) -> None:
        """Make it the calling thread's GPU: threads begin with GPU 0."""

    def event(self) -> Event: ...

    def finish(self) -> None:
        """Wait for what the calling thread has launched, and for what that waits for. Never for the whole device."""

    def reset_peak(self) -> None: ...

    def peak_bytes(self) -> int:
        """The most that the allocator held since the last reset."""

    def name(self) -> str: ...


class Cuda:
    """A GPU that torch calls "cuda"."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def use(self) -> None:
        torch.cuda.set_device(self.device)

    def event(self) -> Event:
        return torch.cuda.Event(enable_timing=True, blocking=True)  # a host that waits leaves its core to the others

    def finish(self) -> None:
        done = self.event()
        done.record()
        done.synchronize()

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self.device)

    def name(self) -> str:
        return torch.cuda.get_device_name(self.device)


def many_connections() -> None:
    """Before CUDA starts in a process: ask for as many hardware queues as there can be. With fewer queues than streams,
    what one stream waits for holds up another."""
    if not torch.cuda.is_initialized():
        os.environ[CONNECTIONS] = "32"


def check_connections(streams: int) -> None:
    """Refuse fewer hardware queues than streams: a receive that is posted ahead could hold up the very mathematics that
    its sender waits for, and no rank would go on."""
    text = os.environ.get(CONNECTIONS, "8")  # CUDA's default
    if text.isdecimal() and int(text) < streams:
        raise ValueError(
            f"{CONNECTIONS}={text} gives a GPU fewer queues than this rank has streams ({streams}: its mathematics, and one "
            "for each channel), so that a message could hold up the operation that it waits for. Unset it, or set it to 32, "
            "before CUDA starts in this process"
        )
