"""What a fork server imports once, so that every rank is born with it: torch, and what torch imports lazily at the first
backward, optimizer step and process group. A rank that was spawned imports it itself, before its time counts."""

from __future__ import annotations

import gc
import os
import socket
import struct
import sys
import threading
from importlib import import_module
from types import FrameType

MODULES = (
    "cloudpickle",
    "torch",
    "torch._dynamo",
    "torch.distributed.distributed_c10d",
    "torch.optim",
    "ppedu.runtime.processes.rank_main",
)


def _load() -> None:
    for name in MODULES:
        import_module(name)


def _load_in_fork_server(served: int) -> None:
    loaded = threading.Event()
    guard = threading.Thread(target=_end_if_orphaned, args=(served, loaded), daemon=True)
    guard.start()
    try:
        _load()
    finally:
        loaded.set()
        guard.join()  # who forks has one thread
    gc.collect()
    gc.freeze()  # a collection in a rank would write to, and so copy, every page that the ranks share


def _end_if_orphaned(served: int, loaded: threading.Event) -> None:
    """A fork server sees that its parent is gone once it serves; until then, which takes seconds, this looks for it."""
    while not loaded.wait(0.1):
        if os.getppid() != served:
            os._exit(1)


def _served() -> int | None:
    """In a fork server, the process that it serves, or served: the one that made its socket, which is an argument of the
    main() that imports us. (Who asked for its parent only now could be an orphan already, and take init for it.)"""
    if sys.platform != "linux":
        return None
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "multiprocessing.forkserver" and "listener_fd" in frame.f_locals:
            with socket.socket(fileno=os.dup(frame.f_locals["listener_fd"])) as listener:
                who = listener.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            return int(struct.unpack("3i", who)[0])
        frame = frame.f_back
    return None


_parent = _served()
if _parent is None:
    _load()
else:
    _load_in_fork_server(_parent)
