"""What a fork server imports once, so that every rank is born with it: torch, and what torch imports lazily at the first
backward, optimizer step and process group. A rank that was spawned imports it itself, before its time counts."""

from __future__ import annotations

import gc
import os
import threading
from importlib import import_module
from multiprocessing import process as mp_process

MODULES = (
    "cloudpickle",
    "torch",
    "torch._dynamo",
    "torch.distributed.distributed_c10d",
    "torch.optim",
    "ppedu.runtime.world",
    "ppedu.runtime.born",
)


def _load() -> None:
    for name in MODULES:
        import_module(name)


def _load_in_fork_server() -> None:
    loaded = threading.Event()
    guard = threading.Thread(target=_end_if_orphaned, args=(os.getppid(), loaded), daemon=True)
    guard.start()
    try:
        _load()
    finally:
        loaded.set()
        guard.join()  # who forks has one thread
    gc.collect()
    gc.freeze()  # a collection in a rank would write to, and so copy, every page that the ranks share


def _end_if_orphaned(parent: int, loaded: threading.Event) -> None:
    """A fork server sees that its parent is gone once it serves; until then, which takes seconds, this looks for it."""
    while not loaded.wait(0.1):
        if os.getppid() != parent:
            os._exit(1)


if mp_process.parent_process() is None:
    _load_in_fork_server()
else:
    _load()
