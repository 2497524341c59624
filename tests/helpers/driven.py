"""Fresh interpreters that a test drives line by line, in a process group of their own: what a terminal or Jupyter runs."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

import leftovers

ROOT = Path(__file__).resolve().parents[2]


def environment(mark: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, with a mark by which all descendants are found, and with this ppedu, installed or not."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "PPEDU_TEST_MARK": mark, **(more or {})}


class Driven:
    """`arguments` of Python; `input` is what it reads at first. Leaves nothing behind, whatever happens in the test."""

    def __init__(self, *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # who is killed cannot tidy up
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8",
            start_new_session=True, cwd=cwd, env=environment(self.mark, {"TMPDIR": self.folder.name, **(env or {})}),
        )  # fmt: skip
        self._lines: queue.Queue[str] = queue.Queue()
        self.errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self._lines.put), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors.append), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: IO[str], keep: object) -> None:
        for line in stream:
            keep(line.rstrip("\n"))  # type: ignore[operator]

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def line(self, timeout: float = 60) -> str:
        """The next line of its stdout. Raises AssertionError after so many seconds, or once it is over."""
        deadline = time.perf_counter() + timeout
        while time.perf_counter() < deadline:
            ended = self.process.poll()
            with contextlib.suppress(queue.Empty):
                return self._lines.get(timeout=0.2)
            if ended is not None:
                raise AssertionError(f"it is over, with {ended}; on stderr: {self.errors}")
        raise AssertionError(f"nothing for {timeout} s; on stderr: {self.errors}")

    def interrupt(self) -> None:
        """What Ctrl-C in a terminal and the stop button of Jupyter do: the signal goes to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """The process alone, not its group."""
        self.process.kill()
        self.process.wait(10)

    def end(self) -> tuple[Sequence[str], Sequence[str]]:
        """Close its stdin, wait for it; what it still said on stdout and all that it said on stderr."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        for reader in self._readers:
            reader.join(10)
        return [self._lines.get() for _ in range(self._lines.qsize())], self.errors

    def __enter__(self) -> Driven:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)
        deadline = time.perf_counter() + 10
        while leftovers.marked(self.mark) and time.perf_counter() < deadline:
            time.sleep(0.02)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        self.folder.cleanup()
