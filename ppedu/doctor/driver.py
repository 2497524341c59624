"""One check after the other, within a budget of seconds that is divided among them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ppedu.doctor.started import OUT_OF_TIME, Started
from ppedu.doctor.table import Check
from ppedu.doctor.verdict import too_few

ONE_GPU, SEVERAL = 240.0, 600.0  # seconds for all checks, where there is one GPU or none, and where there are more
LEAST = 3.0  # seconds in which it is worth while to begin a check

Result = dict[str, Any]


class Examination:
    """The checks of one machine and what they found: `results`, by name, in the order in which they ran.

    A check may take its limit, but not what the checks after it usually take: one that hangs costs the others nothing. On
    a slow machine, where all take longer than usual, the first get the time that they need, and for the last none is left.
    seconds: for all of them; None for ONE_GPU or SEVERAL. tell: called with each result.
    """

    def __init__(self, checks: Sequence[Check], seconds: float | None, tell: Callable[[str, Result], None]) -> None:
        self.checks, self.asked, self.tell = checks, seconds, tell
        self.results: dict[str, Result] = {}
        self.gpus: int | None = None  # not known before a check has told
        self.ahead: Started | None = None
        self.began = time.perf_counter()

    @property
    def budget(self) -> float:
        return self.asked or (SEVERAL if (self.gpus or 0) > 1 else ONE_GPU)

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.began

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="ppedu-doctor-") as folder:
            try:
                for at, check in enumerate(self.checks):
                    result = self._result(check, self.checks[at + 1 :], Path(folder))
                    self.results[check.name] = result
                    self.tell(check.name, result)
            finally:
                if self.ahead is not None:
                    self.ahead.end()

    def _result(self, check: Check, later: Sequence[Check], folder: Path) -> Result:
        if not self._fits(check):
            return {"is": "skip", "said": too_few(check.gpus, self.gpus or 0), "seconds": 0.0}
        later = [other for other in later if other.gpus <= (self.gpus or 0)]  # not known: then they may not count
        seconds = self._allowance(check, later)
        if self.budget - self.spent < LEAST:
            return {"is": "skip", "said": OUT_OF_TIME, "seconds": 0.0}
        started = self._started(check, folder)
        try:
            if later and not check.alone:
                self.ahead = Started(later[0], folder)  # gets ready meanwhile
            result = started.result(seconds)
        finally:
            started.end()
        if result.get("gpus") is not None:
            self.gpus = result["gpus"]
        return result

    def _started(self, check: Check, folder: Path) -> Started:
        """The check's process, which may have been started ahead."""
        ahead, self.ahead = self.ahead, None
        if ahead is None or ahead.check is check:
            return ahead or Started(check, folder)
        ahead.end()  # there are more GPUs than was known, so that another check comes next
        return Started(check, folder)

    def _fits(self, check: Check) -> bool:
        return self.gpus is None or check.gpus <= self.gpus

    def _allowance(self, check: Check, later: Sequence[Check]) -> float:
        left = self.budget - self.spent
        kept = sum(other.usual for other in later)
        return min(check.limit, left, max(2 * self._slowness() * check.usual, left - kept))

    def _slowness(self) -> float:
        """How many times as long as usual checks take here, at least 1. One that failed may have hung: that tells nothing."""
        usual = took = 0.0
        for check in self.checks:
            result = self.results.get(check.name)
            if result and result["is"] != "FAIL" and result["seconds"]:
                usual, took = usual + check.usual, took + result["seconds"]
        return max(1.0, took / usual) if usual else 1.0
