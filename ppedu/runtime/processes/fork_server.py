"""The process that forks ranks: it has imported torch, and is ready before the first of them is wanted."""

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

from ppedu.runtime.processes.interrupts import Held, born_deaf, interrupts_held
from ppedu.runtime.processes.malloc import roomy_malloc
from ppedu.runtime.processes.watch import TICK

START_METHOD = "forkserver" if sys.platform == "linux" else "spawn"


def _start(process: Any) -> None:
    with _without_main(), born_deaf(), roomy_malloc():
        process.start()


# The first start imports torch, which takes seconds. A thread waits for it, so that Ctrl-C need not.
_warming: dict[int, threading.Thread] = {}  # by the fork server's process id


def warm_up() -> None:
    """Let the first start begin, for who knows that one will come: it goes on while this process imports torch itself."""
    if START_METHOD == "forkserver":
        with interrupts_held() as held:
            _begin_to_warm_up(multiprocessing.get_context(START_METHOD), held)


def _warm_up(context: Any, held: Held, let_in: Callable[[], None]) -> None:
    """Return when there is a fork server that is ready to fork."""
    server = _begin_to_warm_up(context, held)
    while _warming[server].is_alive():
        _warming[server].join(TICK)
        let_in()


def _begin_to_warm_up(context: Any, held: Held) -> int:
    """The process id of a fork server that is ready to fork once its thread in _warming has ended."""
    # torch is named too: ppedu.runtime.processes.preload is not found where sys.path was changed by hand
    context.set_forkserver_preload(["ppedu.runtime.processes.preload", "torch._dynamo", "torch.optim"])
    with held.firmly():
        resource_tracker.ensure_running()  # before SIGINT is blocked: where it has to start, it unblocks it
        with born_deaf(), roomy_malloc():
            server = _server()
        if server not in _warming:
            _warming[server] = threading.Thread(target=_fork_once, args=(context,), name="first start", daemon=True)
            _warming[server].start()
    return server


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


LONGEST = 60  # of a temporary folder's path; with what multiprocessing adds to it, a socket's has at most 100 or so


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


def _fork_once(context: Any) -> None:
    process = context.Process(target=_nothing, daemon=True)
    try:
        _start(process)
        process.join()
        process.close()
    except (OSError, EOFError):  # the server is gone: who starts a rank will be told
        pass


def _nothing() -> None:
    pass


_starting = threading.Lock()


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
