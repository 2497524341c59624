"""One check after the other, each in a process of its own that is ended in time with all that came from it.

That process is born with a mark in its environment, and so is whatever comes from it: torchrun's workers have sessions of
their own, and no process group holds them. Linux keeps the marks where anybody can read them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from ppedu.doctor import table
from ppedu.doctor.table import Check, Failed, Skipped, too_few

ONE_GPU, SEVERAL = 240.0, 600.0  # seconds for all checks, where there is one GPU or none, and where there are more
RESERVE = 8.0  # seconds of these in which the last check is ended and the report is written
LEAST = 3.0  # seconds in which it is worth while to begin a check
GRACE = 5.0  # seconds that what a check started has to be gone after it
OUT_OF_TIME = "not checked: out of time"
MARK = "PPEDU_DOCTOR"
PROC = Path("/proc")

Result = dict[str, Any]
T = TypeVar("T")


class Examination:
    """The checks of one machine and what they found: `results`, by name, in the order in which they ran.

    seconds: for all of them; None for ONE_GPU or SEVERAL. tell: called with each result.
    """

    def __init__(self, checks: Sequence[Check], seconds: float | None, tell: Callable[[str, Result], None]) -> None:
        self.checks, self.asked, self.tell = checks, seconds, tell
        self.results: dict[str, Result] = {}
        self.gpus: int | None = None  # not known before a check has told
        self.began = time.perf_counter()

    @property
    def budget(self) -> float:
        return self.asked or (SEVERAL if (self.gpus or 0) > 1 else ONE_GPU)

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.began

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ppedu-") as folder:
            for check in self.checks:
                self.results[check.name] = result = self._result(check, Path(folder))
                self.tell(check.name, result)

    def _result(self, check: Check, folder: Path) -> Result:
        if self.gpus is not None and check.gpus > self.gpus:
            return {"is": "skip", "said": too_few(check.gpus, self.gpus), "seconds": 0.0}
        left = self.budget - self.spent - (0 if self.asked else RESERVE)
        if left < LEAST:
            return {"is": "skip", "said": OUT_OF_TIME, "seconds": 0.0}
        result = looked(check, folder, min(check.limit, left))
        if not check.share and result.get("gpus") is not None:
            self.gpus = result["gpus"]
        return result


def looked(check: Check, folder: Path, seconds: float) -> Result:
    """Run a check in a process of its own: what it found. Nothing of it is left afterwards."""
    began, mark = time.perf_counter(), uuid.uuid4().hex
    found, output = folder / f"{check.name}.json", folder / f"{check.name}.txt"
    task = json.dumps(dataclasses.asdict(check) | {"result": str(found)})
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", "from ppedu.doctor.driver import look; look()", task],
            stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            env=environment(check, folder, mark),
        )  # fmt: skip
    try:
        result = _waited(process, check, seconds, found, output)
        result["seconds"] = round(time.perf_counter() - began, 1)
        if result["is"] == "ok" and (left := left_after(GRACE, lambda: marked(mark))):
            result |= {"is": "FAIL", "said": left_behind("processes", [command(pid)[:120] for pid in left])}
        return result
    finally:
        _end(process, mark)


def environment(check: Check, folder: Path, mark: str) -> dict[str, str]:
    # what a check that is killed leaves in TMPDIR goes with the folder
    made = {**os.environ, "MPLBACKEND": "Agg", "TMPDIR": str(folder), MARK: mark}
    if check.share:
        made["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    return made


def _waited(process: subprocess.Popen[bytes], check: Check, seconds: float, found: Path, output: Path) -> Result:
    try:
        what = f"its process ended with {process.wait(seconds)} and told nothing"
        if found.exists():
            result: Result = json.loads(found.read_text("utf-8"))
            return result
    except subprocess.TimeoutExpired:
        what = f"not done after {seconds:.0f} s, and was ended"
        if seconds < check.limit:
            of = f"after {seconds:.0f} s of the {check.limit:g} that it may take"
            return {"is": "skip", "said": f"{OUT_OF_TIME}, {of}"}
    tail = " ".join(output.read_text("utf-8", errors="replace").split())[-400:]
    return {"is": "FAIL", "said": f"{what}: {tail or 'it printed nothing'}"}


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kill a check's process, and whatever has its mark."""
    left_after(3.0, lambda: marked(mark), _kill)  # also those that are born meanwhile
    if not PROC.is_dir():  # nobody sees marks: its group is the most that can be found
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def marked(mark: str) -> list[int]:
    """The living processes with this mark, but for this one. Empty where there is no /proc."""
    text, found = f"{MARK}={mark}".encode(), []
    for file in PROC.glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if text in file.read_bytes().split(b"\0") and int(file.parent.name) != os.getpid():
                found.append(int(file.parent.name))
    return found


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return "gone"


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def left_after(seconds: float, there: Callable[[], list[T]], end: Callable[[T], None] | None = None) -> list[T]:
    """What is still there after so many seconds. end: what is done to each of them meanwhile."""
    deadline = time.perf_counter() + seconds
    while (left := there()) and time.perf_counter() < deadline:
        if end is not None:
            for one in left:
                end(one)
        time.sleep(0.05)
    return left


def left_behind(what: str, those: Sequence[str]) -> str:
    return f"left behind ({what}): {', '.join(those)}"


# in the check's process


def look() -> None:
    """Run the check that the command line holds, as JSON, and write what it found into its file `result`."""
    threading.Thread(target=_end_with_driver, daemon=True).start()
    task = json.loads(sys.argv[1])
    from ppedu.runtime.processes.fork_server import warm_up

    warm_up()  # ranks import torch while this process does
    Path(task["result"]).write_text(json.dumps(_seen(task)), "utf-8")


def _end_with_driver() -> None:
    """Nobody waits for this check any more once its stdin ends, which the driver's end does, however it ends."""
    os.read(sys.stdin.fileno(), 1)  # not sys.stdin.read(): Python could not end while a thread is in it
    if hasattr(os, "killpg"):
        os.killpg(os.getpgid(0), signal.SIGKILL)
    os._exit(1)


def _seen(task: dict[str, Any]) -> Result:
    """What to report of a check: is (ok, FAIL or skip), said, unseen, and the number of GPUs that it saw."""
    found: Result = {"is": "ok"}
    try:
        if task["gpus"] and table.gpus() < task["gpus"]:
            raise Skipped(too_few(task["gpus"], table.gpus()))
        module, _, name = task["calls"].partition(":")
        found["said"] = getattr(import_module(module), name)(**task["arguments"])
    except Skipped as why:
        found = {"is": "skip", "said": str(why)}
    except Failed as what:
        found = {"is": "FAIL", "said": str(what)}
    except BaseException as error:  # a check that ends in any other way has found something too
        place = traceback.extract_tb(error.__traceback__)[-1]
        found = {"is": "FAIL", "said": f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"}
    return found | {"unseen": table.UNSEEN, "gpus": None if task["share"] else table.gpus()}
