"""The life of a rank process: how it gets its work, speaks to the process that started it, and ends with it."""

from __future__ import annotations

import ctypes
import io
import os
import pickle
import signal
import sys
import threading
from importlib import import_module
from multiprocessing import connection
from multiprocessing import process as mp_process
from typing import Any

from ppedu.runtime.processes.failures import failure_of


class Sender:
    """A rank's end of the connection to the process that watches it."""

    def __init__(self, connected: connection.Connection) -> None:
        self._connection, self._lock = connected, threading.Lock()

    def send(self, kind: str, content: Any) -> None:
        data = pickle.dumps((kind, content), protocol=pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._connection.send_bytes(data)


class Printed(io.TextIOBase):
    """stdout or stderr of a rank: whole lines go to the caller."""

    encoding = "utf-8"

    def __init__(self, sender: Sender, stream: str) -> None:
        self._sender, self._stream, self._rest = sender, stream, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._sender.send("print", (self._stream, line))
        return len(text)

    def close_line(self) -> None:
        if self._rest:
            self.write("\n")


def rank_process(connected: connection.Connection, cells: Any, payload: bytes) -> None:
    """All that a rank process does. payload: its main, what that starts with, and the environment."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it decides what an interrupt means
    _end_with_parent()
    sender = Sender(connected)
    out, err = Printed(sender, "stdout"), Printed(sender, "stderr")
    sys.stdout, sys.stderr = out, err
    try:
        import_module("ppedu.runtime.processes.preload")  # the fork server has; whoever was spawned imports torch now
        sender.send("awake", None)
        main, start, environment = pickle.loads(payload)
        os.environ.clear()
        os.environ.update(environment)
        kind, result = "done", main(sender, cells, start)
    except BaseException as error:  # SystemExit and the like too: all of it is the caller's to hear
        kind, result = "failed", failure_of(error)
    for stream in (out, err):
        stream.close_line()
    sender.send(kind, result)
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
