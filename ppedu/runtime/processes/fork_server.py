"""How a rank's process is started: forked by a server that has imported torch already, where forking is safe.

This module itself needs no torch, so that who knows that ranks will come can have the server begin with its import early.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker, spawn
from typing import Any

from ppedu.runtime.processes.interrupts import Held, interrupts_held, sigint_blocked
from ppedu.runtime.processes.malloc import roomy_malloc
from ppedu.runtime.processes.watch import TICK

START_METHOD = "forkserver" if sys.platform == "linux" else "spawn"
LONGEST = 60  # of a temporary folder's path; with what multiprocessing adds to it, a socket's has at most 100 or so

# The first start imports torch, which takes seconds. A thread waits for it, so that Ctrl-C need not.
_first_starts: dict[int, threading.Thread] = {}  # by the fork server's process id
_starting = threading.Lock()


def context() -> Any:
    """multiprocessing, as ranks are started by it."""
    return multiprocessing.get_context(START_METHOD)


def start_process(process: Any) -> None:
    """Start a process of this context, with a rank's malloc."""
    with _without_main(), sigint_blocked(), roomy_malloc():
        process.start()


def warm_up() -> None:
    """Let the server begin to import torch, and do not wait for it."""
    if START_METHOD == "forkserver":
        with interrupts_held() as held:
            _begin(held)


def wait_for_server(held: Held, check_stop: Callable[[], None]) -> None:
    """Return when there is a fork server that is ready to fork, or where none is used."""
    if START_METHOD == "forkserver":
        first_start = _begin(held)
        while first_start.is_alive():
            first_start.join(TICK)
            check_stop()


def _begin(held: Held) -> threading.Thread:
    """Start a fork server unless there is one. It is ready to fork once this thread has ended."""
    # torch is named too: ppedu.runtime.processes.preload is not found where sys.path was changed by hand
    context().set_forkserver_preload(["ppedu.runtime.processes.preload", "torch._dynamo", "torch.optim"])
    with held.uninterruptible():
        resource_tracker.ensure_running()  # before SIGINT is blocked: where it has to start, it unblocks it
        with sigint_blocked(), roomy_malloc():
            server = _server()
        if server not in _first_starts:
            _first_starts[server] = threading.Thread(target=_fork_once, name="first start", daemon=True)
            _first_starts[server].start()
    return _first_starts[server]


def _server() -> int:
    """The process id of the fork server, which is started unless it is there."""
    from multiprocessing import forkserver

    known: Any = forkserver._forkserver
    try:
        with _short_paths():
            forkserver.ensure_running()
    except ChildProcessError:  # its end was noticed by someone else (os.wait), or this process is a fork of its parent
        os.close(known._forkserver_alive_fd)
        known._forkserver_pid = known._forkserver_alive_fd = known._forkserver_address = None
        forkserver.ensure_running()
    server: int = known._forkserver_pid
    return server


@contextmanager
def _short_paths() -> Iterator[None]:
    """Let multiprocessing's sockets be in /tmp where TMPDIR, as a cluster's job may have it, is too long for their names."""
    kept = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST and os.access("/tmp", os.W_OK):
        tempfile.tempdir = "/tmp"
    try:
        yield
    finally:
        tempfile.tempdir = kept


def _fork_once() -> None:
    process = context().Process(target=_nothing, daemon=True)
    try:
        start_process(process)
        process.join()
        process.close()
    except (OSError, EOFError):  # the server is gone: who starts a rank will be told
        pass


def _nothing() -> None:
    pass


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep multiprocessing from running the caller's script again in the ranks it starts (its `__main__` guard)."""
    with _starting:  # two runs, in two threads, start their ranks one after the other
        original, me = spawn.get_preparation_data, threading.get_ident()

        def prepare(name: str) -> dict[str, Any]:
            data = original(name)
            if threading.get_ident() == me:
                data.pop("init_main_from_name", None)
                data.pop("init_main_from_path", None)
            return data

        spawn.get_preparation_data = prepare
        try:
            yield
        finally:
            spawn.get_preparation_data = original
