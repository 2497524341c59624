"""Processes: start one per rank, watch them, collect what they say, report the first failure, leave nothing behind.

On Linux a fork server that has imported torch makes fresh ranks in some 10 ms each; elsewhere, where forking is not
safe, they are spawned. Ranks never import the caller's `__main__`: all that they need comes by value (cloudpickle).
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from glob import glob
from multiprocessing import connection, resource_tracker, spawn
from pathlib import Path
from threading import Event
from typing import Any

from ppedu.runtime import born
from ppedu.runtime.born import Mouth, RankFunction
from ppedu.runtime.by_value import dumps
from ppedu.runtime.errors import RunError, RunStopped
from ppedu.runtime.interrupts import Held, born_deaf, interrupts_held
from ppedu.runtime.malloc import roomy_malloc
from ppedu.runtime.watch import TICK, Place, Watch, how_it_ended
from ppedu.runtime.watch import Ranks as Watched

__all__ = ["Mouth", "Place", "RankFunction", "Ranks", "run_ranks"]

START_METHOD = "forkserver" if sys.platform == "linux" else "spawn"
END = 5.0  # seconds that killed ranks have to be gone


def run_ranks(
    function: RankFunction,
    arguments: Sequence[Any],
    cells: Sequence[float],
    *,
    where: Callable[[Sequence[float], int], Place],
    on_message: Callable[[int, str, Any], None],
    timeout: float,
    stop: Event | None = None,
) -> list[Any]:
    """Run `function` in one fresh process per argument and return what each returned, in rank order.

    cells: numbers of shared memory, as they are at first, in which ranks publish where they are; `where` reads them.
    on_message: called with (rank, kind, content) for what ranks say on the way. timeout: seconds that a rank may stay
    in one operation. stop: once it is set, the run ends in RunStopped.
    Raises RunError for the first rank that fails, dies or hangs. No rank is left when this returns or raises.
    """
    with interrupts_held() as held:

        def let_in() -> None:
            held.let_through()
            if stop is not None and stop.is_set():
                raise RunStopped("the run was stopped")

        ranks = Ranks(cells)
        try:
            ranks.start(function, arguments, held, let_in)
            return Watch(ranks.watched(), partial(where, ranks.cells), on_message, timeout, let_in).results()
        finally:
            with held.firmly():
                ranks.end()


class Ranks:
    """The processes of one run, and the ends of the pipes over which they are heard."""

    def __init__(self, cells: Sequence[float]) -> None:
        self.context: Any = multiprocessing.get_context(START_METHOD)
        self.cells = self.context.RawArray("d", list(cells))
        self.processes: list[Any] = []
        self.ears: list[connection.Connection] = []

    def start(self, function: RankFunction, arguments: Sequence[Any], held: Held, let_in: Callable[[], None]) -> None:
        """`let_in` is called where nothing is left half done."""
        if START_METHOD == "forkserver":
            _warm_up(self.context, held, let_in)
        for rank, argument in enumerate(arguments):
            payload = dumps((function, argument, dict(os.environ)))
            ear, mouth = self.context.Pipe(duplex=False)
            self.ears.append(ear)
            process = self.context.Process(
                target=born.live, args=(mouth, self.cells, payload), name=f"ppedu rank {rank}", daemon=True
            )
            try:
                with mouth, held.firmly():
                    _start(process)
            except (OSError, EOFError) as error:  # no memory, no more files; or it was killed while it was started
                what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                raise RunError(f"rank {rank} could not be started ({what})", rank=rank) from error
            self.processes.append(process)
            let_in()

    def watched(self) -> Watched:
        return Watched(self.ears, self._ended, {process.sentinel: rank for rank, process in enumerate(self.processes)})

    def _ended(self, rank: int) -> str:
        self.processes[rank].join(1)
        return how_it_ended(self.processes[rank].exitcode)

    def end(self) -> None:
        leftovers = [file for process in self.processes for file in shared_by_nccl(process.pid)]
        for process in self.processes:
            if process.exitcode is None:
                process.kill()
        deadline = time.perf_counter() + END
        for process in self.processes:
            process.join(max(0.0, deadline - time.perf_counter()))
            if process.exitcode is not None:
                process.close()
        for ear in self.ears:
            ear.close()
        for file in leftovers:
            file.unlink(missing_ok=True)


def shared_by_nccl(process: int | None, proc: Path = Path("/proc")) -> list[Path]:
    """The files in shared memory over which NCCL in this process talks to others on its machine. Who is killed leaves them."""
    if not _shared_memory():  # as on every machine but those with GPUs
        return []
    try:
        maps = (proc / str(process) / "maps").read_text()
    except OSError:  # it is over
        return []
    return [Path(name) for name in sorted(set(re.findall(r"/dev/shm/nccl-\w+", maps)))]


def _shared_memory() -> list[str]:
    return glob("/dev/shm/nccl-*")


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
    # torch is named too: ppedu.runtime.preload is not found where sys.path was changed by hand
    context.set_forkserver_preload(["ppedu.runtime.preload", "torch._dynamo", "torch.optim"])
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
