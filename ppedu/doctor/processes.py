"""Which processes and which files in shared memory a check has left: Linux keeps both where anybody can read of them.

A check's process is born with a mark in its environment, and so are all that come from it, in whatever session they are.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "PPEDU_DOCTOR"
SHARED = Path("/dev/shm")
_PROC = Path("/proc")


def marked(mark: str) -> list[int]:
    """The living processes with this mark, but for this one. Empty where there is no /proc."""
    text = f"{MARK}={mark}".encode()
    found = []
    for pid in _processes():
        with contextlib.suppress(OSError):
            if pid != os.getpid() and text in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def _processes() -> Iterator[int]:
    if _PROC.is_dir():
        yield from (int(folder.name) for folder in _PROC.iterdir() if folder.name.isdecimal())


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return "gone"


def open_files(pid: int) -> list[str]:
    """What a process holds open, and what is mapped into its memory."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for file in (_PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                found.append(os.readlink(file))
    with contextlib.suppress(OSError):
        found += [line.split(maxsplit=5)[-1] for line in (_PROC / str(pid) / "maps").read_text().splitlines()]
    return found


def wait_until_gone(mark: str, seconds: float) -> list[int]:
    """Processes with this mark that are still there after so many seconds."""
    deadline = time.perf_counter() + seconds
    while (left := marked(mark)) and time.perf_counter() < deadline:
        time.sleep(0.05)
    return left


def end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kill a process, its group, and whatever has this mark: torchrun's workers have sessions of their own."""
    if process.poll() is None or not _PROC.is_dir():
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
    for _ in range(3):  # one may be born meanwhile
        for pid in marked(mark):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not wait_until_gone(mark, 1.0):
            break
    process.wait()


def in_shared_memory() -> set[str]:
    return {file.name for file in SHARED.iterdir()} if SHARED.is_dir() else set()


def left_in_shared_memory(before: set[str]) -> list[str]:
    """Files of this user that came meanwhile and that no living process holds: those that one holds may be another program's."""
    new = set()
    for name in in_shared_memory() - before:
        with contextlib.suppress(OSError):
            if (SHARED / name).stat().st_uid == os.getuid():
                new.add(str(SHARED / name))
    held = {file for pid in (_processes() if new else ()) for file in open_files(pid)}
    return sorted(new - held)
