"""What a run may have left behind: processes, files, sockets, threads."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from pathlib import Path

import psutil

SERVANTS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")  # they may live as long as we do


def children(pid: int | None = None) -> list[psutil.Process]:
    """The children and grandchildren of a process, without its fork server and resource tracker, and the dead."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE and not _is_servant(process):
                found.append(process)
    return found


def _is_servant(process: psutil.Process) -> bool:
    """A rank has the command line of the fork server that it was forked from; what tells them apart is the parent."""
    line, above = " ".join(process.cmdline()), process.parent()
    return any(name in line for name in SERVANTS) and (above is None or " ".join(above.cmdline()) != line)


def marked(mark: str) -> list[int]:
    """All processes that were born with this text in their environment, or whose ancestors were."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def gone_within(seconds: float, mark: str) -> float:
    """Seconds until no process with this mark is left. Raises AssertionError after `seconds`."""
    began = time.perf_counter()
    while left := marked(mark):
        took = time.perf_counter() - began
        assert took < seconds, f"left after {took:.1f} s: {[_describe(pid) for pid in left]}"
        time.sleep(0.02)
    return time.perf_counter() - began


def _describe(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return f"{pid} ({process.status()}, parent {process.ppid()}): {' '.join(process.cmdline())[:200]}"
    return f"{pid}: gone"


def _is_others(name: str, family: list[psutil.Process]) -> bool:
    """Whether a file in shared memory says that it belongs to another living process: tests may run beside this one."""
    whose = re.match(r"(?:torch_|pym-)(\d+)", name)
    other = (
        whose is not None
        and int(whose[1]) not in [process.pid for process in family]
        and psutil.pid_exists(int(whose[1]))
    )
    return other or name.startswith(".org.chromium")


def inventory(folder: str) -> dict[str, object]:
    """What this process and its fork server hold: numbers that must not grow from run to run. folder: for temporary files."""
    me = psutil.Process()
    family = [me, *me.children(recursive=True)]
    return {
        "processes": len(family),
        "threads": [process.num_threads() for process in family],
        "python threads": sorted(thread.name for thread in threading.enumerate()),
        "files": [process.num_fds() for process in family],
        "sockets": sorted((c.status, str(c.laddr)) for process in family for c in process.net_connections("inet")),
        "temporary files": sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*")),
        "shared memory": sorted(name for name in os.listdir("/dev/shm") if not _is_others(name, family)),
    }
