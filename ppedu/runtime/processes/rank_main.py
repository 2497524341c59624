"""The life of a rank process: how it gets its work, speaks to the process that started it, and ends with it."""

from __future__ import annotations

import ctypes
import io
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from multiprocessing import connection
from multiprocessing import process as mp_process
from typing import Any

from ppedu.runtime.processes.failures import failure_of


class Mouth:
    """How a rank speaks to the process that started it."""

    def __init__(self, conn: connection.Connection) -> None:
        self._conn, self._lock = conn, threading.Lock()

    def say(self, kind: str, content: Any) -> None:
        data = pickle.dumps((kind, content), protocol=pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._conn.send_bytes(data)


RankFunction = Callable[[Mouth, Any, Any], Any]
"""(mouth, shared cells, argument) -> result: what a rank runs."""


class Printed(io.TextIOBase):
    """stdout or stderr of a rank: whole lines go to the caller."""

    encoding = "utf-8"

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


def live(conn: connection.Connection, cells: Any, payload: bytes) -> None:
    """All that a rank process does. payload: (function, argument, environment), pickled by value."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it decides what an interrupt means
    _end_with_parent()
    mouth = Mouth(conn)
    out, err = Printed(mouth, "stdout"), Printed(mouth, "stderr")
    sys.stdout, sys.stderr = out, err
    try:
        import_module("ppedu.runtime.processes.preload")  # the fork server has; whoever was spawned imports torch now
        mouth.say("awake", None)
        function, argument, environment = pickle.loads(payload)
        os.environ.clear()
        os.environ.update(environment)
        result = function(mouth, cells, argument)
        kind = "done"
    except BaseException as error:  # SystemExit and the like too: all of it is the caller's to hear
        result, kind = failure_of(error), "failed"
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
    if sys.platform != "linux":
        return
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    libc = ctypes.CDLL(None)
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    libc.prctl(29, 1)  # PR_SET_TIMERSLACK, nanoseconds: sleeps end on time
    if connection.wait([parent.sentinel], 0):  # it ended before that signal was asked for
        os._exit(1)
