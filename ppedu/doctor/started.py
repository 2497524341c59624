"""A check's process, as the driver sees it: started ahead, given its turn, ended in time with all that came from it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from ppedu.doctor import processes
from ppedu.doctor.table import Check

OUT_OF_TIME = "not checked: out of time"
GRACE = 5.0  # seconds that what a check started has to be gone after it
LONG = 60  # characters of a folder, below which sockets get their paths, of some 100 at most
ROOT = Path(__file__).resolve().parents[2]


class Started:
    """The process of a check. It gets ready (imports torch, starts its fork server), and waits for `result`."""

    def __init__(self, check: Check, folder: Path) -> None:
        self.check, self.mark = check, uuid.uuid4().hex
        self.output, self.found = folder / f"{check.name}.txt", folder / f"{check.name}.json"
        task = dataclasses.asdict(check) | {"result": str(self.found)}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ppedu.doctor.one", json.dumps(task)],
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=self._environment(folder), start_new_session=True,
            )  # fmt: skip

    def _environment(self, folder: Path) -> dict[str, str]:
        here = [] if ROOT.name in ("site-packages", "dist-packages") else [str(ROOT)]  # there Python looks anyway
        path = os.pathsep.join([*here, *filter(None, [os.environ.get("PYTHONPATH")])])
        made = {**os.environ, "PYTHONPATH": path, "MPLBACKEND": "Agg", processes.MARK: self.mark}
        if len(str(folder)) < LONG:
            made["TMPDIR"] = str(folder)  # what a check that is killed leaves there goes with the folder
        if self.check.share:
            made["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        return made

    def result(self, seconds: float) -> dict[str, Any]:
        """Give it its turn, and so many seconds: what it found. Nothing of it is left afterwards."""
        began = time.perf_counter()
        with contextlib.suppress(OSError):  # it has ended already: that is told below
            assert self.process.stdin is not None
            self.process.stdin.write(b"go\n")
            self.process.stdin.flush()
        try:
            self.process.wait(seconds)
            found = self._told()
        except subprocess.TimeoutExpired:
            found = self._too_long(seconds)
        found["seconds"] = round(time.perf_counter() - began, 1)
        if found["is"] == "ok" and (left := processes.wait_until_gone(self.mark, GRACE)):
            commands = ", ".join(processes.command(pid)[:120] for pid in left)
            found |= {"is": "FAIL", "said": f"left behind (processes): {commands}"}
        self.end()
        return found

    def _told(self) -> dict[str, Any]:
        if self.found.exists():
            told: dict[str, Any] = json.loads(self.found.read_text("utf-8"))
            return told
        return {
            "is": "FAIL",
            "said": f"its process ended with {self.process.returncode} and told nothing: {self._tail()}",
        }

    def _too_long(self, seconds: float) -> dict[str, Any]:
        if seconds < self.check.limit:
            return {
                "is": "skip",
                "said": f"{OUT_OF_TIME}, after {seconds:.0f} s of the {self.check.limit:g} that it may take",
            }
        return {"is": "FAIL", "said": f"not done after {seconds:.0f} s, and was ended: {self._tail()}"}

    def _tail(self) -> str:
        return " ".join(self.output.read_text("utf-8", errors="replace").split())[-400:] or "it printed nothing"

    def end(self) -> None:
        """Kill what is left of it."""
        processes.end(self.process, self.mark)
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
