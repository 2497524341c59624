"""Processes: start one per rank, watch them, collect what they say, report the first failure, leave nothing behind.

On Linux a fork server that has imported torch makes fresh ranks in some 10 ms each; elsewhere, where forking is not
safe, they are spawned. Ranks never import the caller's `__main__`: all that they need comes by value (cloudpickle).
"""

from __future__ import annotations

import ctypes
import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker, spawn
from multiprocessing import process as mp_process
from typing import Any, NoReturn

import cloudpickle

from ppedu.runtime.errors import RunError

START_METHOD = "forkserver" if sys.platform == "linux" else "spawn"
TICK = 0.1  # seconds between looks at whether anything moves
ECHO = 2.0  # seconds that a lost connection waits for its cause to be heard of


@dataclass(frozen=True, slots=True)
class Place:
    """What a rank is doing: `text` says it, `action` and `step` name it, `waiting` if it only waits for others."""

    text: str
    action: str | None
    step: int | None
    waiting: bool
    since: float


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception in a rank, as plain data: the frames are joined with their source where the source is."""

    summary: str
    frames: tuple[tuple[str, int, str], ...]
    lost_peer: bool


class Mouth:
    """How a rank speaks to the process that started it."""

    def __init__(self, conn: connection.Connection) -> None:
        self._conn, self._lock = conn, threading.Lock()

    def say(self, kind: str, content: Any) -> None:
        data = pickle.dumps((kind, content), protocol=pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._conn.send_bytes(data)


class _Printed(io.TextIOBase):
    """stdout or stderr of a rank: whole lines go to the caller."""

    def __init__(self, mouth: Mouth, stream: str) -> None:
        self._mouth, self._stream, self._rest = mouth, stream, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._mouth.say("print", (self._stream, line))
        return len(text)

    def close_line(self) -> None:
        if self._rest:
            self.write("\n")


RankFunction = Callable[[Mouth, Any, Any], Any]
"""(mouth, shared cells, argument) -> result: what a rank runs."""


def run_ranks(
    function: RankFunction,
    arguments: Sequence[Any],
    cells: Sequence[float],
    *,
    where: Callable[[Sequence[float], int], Place],
    on_message: Callable[[int, str, Any], None],
    timeout: float,
) -> list[Any]:
    """Run `function` in one fresh process per argument and return what each returned, in rank order.

    cells: numbers of shared memory, as they are at first, in which ranks publish where they are; `where` reads them. on_message: called with
    (rank, kind, content) for what ranks say on the way. timeout: seconds that a rank may stay in one operation.
    Raises RunError for the first rank that fails, dies or hangs. No rank is left when this returns or raises.
    """
    # The resource tracker unblocks SIGINT when it starts, so it goes first; then an interrupt waits until all ranks are known.
    if START_METHOD == "forkserver":
        resource_tracker.ensure_running()
    with _sigint(blocked=True):
        ranks = Ranks(cells)
        try:
            ranks.start(function, arguments)
            with _sigint(blocked=False):
                return _Watch(ranks, where, on_message, timeout).results()
        finally:
            ranks.end()


class Ranks:
    """The processes of one run."""

    def __init__(self, cells: Sequence[float]) -> None:
        self.context: Any = multiprocessing.get_context(START_METHOD)
        if START_METHOD == "forkserver":
            # ppedu.runtime.preload may not be found before sys.path is set up in the child: then at least torch is there
            self.context.set_forkserver_preload(["torch._dynamo", "torch.optim", "ppedu.runtime.preload"])
        self.cells = self.context.RawArray("d", list(cells))
        self.processes: list[Any] = []
        self.ears: list[connection.Connection] = []

    def start(self, function: RankFunction, arguments: Sequence[Any]) -> None:
        for rank, argument in enumerate(arguments):
            payload = cloudpickle.dumps((function, argument, dict(os.environ)))
            ear, mouth = self.context.Pipe(duplex=False)
            self.ears.append(ear)
            process = self.context.Process(
                target=_rank_main, args=(mouth, self.cells, payload), name=f"ppedu rank {rank}", daemon=True
            )
            with _without_main(), mouth:
                process.start()
            self.processes.append(process)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(5)
            process.close()
        for ear in self.ears:
            ear.close()


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep multiprocessing from running the caller's script again in the ranks it starts (its `__main__` guard)."""
    original, me = spawn.get_preparation_data, threading.get_ident()

    def prepare(name: str) -> dict[str, Any]:
        data = original(name)
        if threading.get_ident() == me:
            data.pop("init_main_from_name", None)
            data.pop("init_main_from_path", None)
        return data

    spawn.get_preparation_data = prepare  # type: ignore[assignment]
    try:
        yield
    finally:
        spawn.get_preparation_data = original


@contextmanager
def _sigint(blocked: bool) -> Iterator[None]:
    """Hold Ctrl-C back, or let it through, in this thread. What was held back is raised at the first chance."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK if blocked else signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Watch:
    """Listen to the ranks until all are done or one has failed."""

    def __init__(
        self,
        ranks: Ranks,
        where: Callable[[Sequence[float], int], Place],
        on_message: Callable[[int, str, Any], None],
        timeout: float,
    ) -> None:
        self.ranks, self.on_message, self.timeout = ranks, on_message, timeout
        self.where = lambda rank: where(ranks.cells, rank)
        self.done: dict[int, Any] = {}
        self.echo: tuple[float, int, Failure, Place] | None = None

    def results(self) -> list[Any]:
        ears = {ear: rank for rank, ear in enumerate(self.ranks.ears)}
        deaths = {process.sentinel: rank for rank, process in enumerate(self.ranks.processes)}
        while len(self.done) < len(self.ranks.processes):
            ready = connection.wait([*ears, *deaths], TICK)
            for ear in [e for e in ready if e in ears]:
                self._listen(ear, ears)
            for sentinel in [s for s in ready if s in deaths]:
                rank = deaths[sentinel]
                if not any(r == rank for r in ears.values()) or not self.ranks.ears[rank].poll():
                    del deaths[sentinel]
                    if rank not in self.done:
                        self._died(rank)
            if self.echo and time.perf_counter() - self.echo[0] > ECHO:
                self._failed(*self.echo[1:])
            if not ready:
                self._check_progress()
        return [self.done[rank] for rank in sorted(self.done)]

    def _listen(self, ear: Any, ears: dict[Any, int]) -> None:
        rank = ears[ear]
        try:
            kind, content = pickle.loads(ear.recv_bytes())
        except (EOFError, OSError):
            del ears[ear]  # its end is heard by the sentinel
            return
        if kind == "done":
            self.done[rank] = content
        elif kind == "failed":
            place = self.where(rank)
            if not content.lost_peer:
                self._failed(rank, content, place)
            self.echo = self.echo or (time.perf_counter(), rank, content, place)
        else:
            self.on_message(rank, kind, content)

    def _failed(self, rank: int, failure: Failure, place: Place) -> NoReturn:
        text = failure_text(failure)
        raise RunError(
            f"rank {rank} failed {_in(place)}:\n\n{text}",
            rank=rank, action=place.action, step=place.step, traceback=text,
        )  # fmt: skip

    def _died(self, rank: int) -> NoReturn:
        process, place = self.ranks.processes[rank], self.where(rank)
        process.join(1)
        code = process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            how = f"was killed by {name}"
            if name == "SIGKILL":
                how += " (by hand, or by a system that ran out of memory)"
        else:
            how = f"ended by itself with exit code {code}"
        raise RunError(f"rank {rank} {how} {_in(place)}", rank=rank, action=place.action, step=place.step)

    def _check_progress(self) -> None:
        """Blame the rank that computes: the others wait, directly or not, for it."""
        now = time.perf_counter()
        places = {r: self.where(r) for r in range(len(self.ranks.processes)) if r not in self.done}
        stuck = {r: p for r, p in places.items() if now - p.since > self.timeout}
        guilty = [r for r, p in stuck.items() if not p.waiting]
        if not guilty and (len(stuck) < len(places) or not stuck):
            return
        lines = [f"  rank {r} {p.text}, for {now - p.since:.1f} s" for r, p in places.items()]
        first = guilty[0] if guilty else min(stuck)
        raise RunError(
            f"no progress for {self.timeout:g} s: rank {first} {places[first].text}.\n" + "\n".join(lines)
            + "\nIf an operation may take that long, give train(..., timeout=seconds) more.",
            rank=first, action=places[first].action, step=places[first].step,
        )  # fmt: skip


def _in(place: Place) -> str:
    if place.action is not None and not place.waiting:
        return f"in {place.action} of step {place.step}"
    return f"while it {place.text}" + ("" if place.step is None else f" (step {place.step})")


def failure_of(error: BaseException, lost_peer: bool = False) -> Failure:
    """An exception as plain data, without the frames of this package above the first of the user's."""
    frames = [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
    here = os.path.dirname(__file__)
    while len(frames) > 1 and os.path.dirname(frames[0][0]) == here:
        del frames[0]
    return Failure("".join(traceback.format_exception_only(type(error), error)), tuple(frames), lost_peer)


def failure_text(failure: Failure) -> str:
    """The traceback as Python prints it. Source of notebook cells is found here, in the kernel, not in the rank."""
    frames = [traceback.FrameSummary(*frame) for frame in failure.frames]
    return "Traceback (most recent call last):\n" + "".join(traceback.format_list(frames)) + failure.summary


def _rank_main(conn: connection.Connection, cells: Any, payload: bytes) -> None:
    """The life of a rank process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it decides what an interrupt means
    _end_with_parent()
    mouth = Mouth(conn)
    out, err = _Printed(mouth, "stdout"), _Printed(mouth, "stderr")
    sys.stdout, sys.stderr = out, err
    try:
        function, argument, environment = cloudpickle.loads(payload)
        os.environ.update(environment)
        result = function(mouth, cells, argument)
        kind = "done"
    except BaseException as error:  # SystemExit and the like too: all of it is the caller's to hear
        result, kind = failure_of(error, getattr(error, "lost_peer", False)), "failed"
    for stream in (out, err):
        stream.close_line()
    mouth.say(kind, result)
    threading.Event().wait()  # keep connections open, so that no peer mistakes this end for a fault; the caller ends it


def _end_with_parent() -> None:
    """End this process when the one that started it ends, however it ends.

    A thread watches the parent. A rank whose C code holds the interpreter lock cannot run it: on Linux the fork server,
    which ends once no one but the parent keeps it, takes its ranks along.
    """
    parent = mp_process.parent_process()
    if parent is None:
        return

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
    if START_METHOD == "forkserver":
        from multiprocessing import forkserver

        server: Any = forkserver._forkserver  # type: ignore[attr-defined]
        if server._forkserver_alive_fd is not None:
            os.close(server._forkserver_alive_fd)
            server._forkserver_alive_fd = None
        libc = ctypes.CDLL(None)
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        libc.prctl(29, 1)  # PR_SET_TIMERSLACK, nanoseconds: sleeps end on time
