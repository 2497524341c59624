"""A run that failed in a world of several processes is told once a host, and torchrun hears who failed first."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ppedu.runtime.errors import RunError


def for_here(error: RunError, rank: int, told: bool) -> RunError:
    """The error as this rank raises it. told: whether this process prints it where nobody catches it."""
    error.told_here = told
    _where_nobody_catches_it(rank)
    return error


@contextmanager
def told_by_one() -> Iterator[None]:
    """Before ranks know one another, the first process of a host prints."""
    try:
        yield
    except RunError as error:
        raise for_here(error, -1, os.environ.get("LOCAL_RANK", "0") == "0") from error.__cause__


def _where_nobody_catches_it(rank: int) -> None:
    """One rank of each host prints a RunError, and torchrun is told of it."""
    before = sys.excepthook
    if getattr(before, "ppedu", False):
        return

    def hook(kind: Any, error: BaseException, trace: Any) -> None:
        if isinstance(error, RunError):
            tell_torchrun(error, rank)
        if getattr(error, "told_here", True):
            before(kind, error, trace)

    hook.ppedu = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def tell_torchrun(error: RunError, rank: int) -> None:
    """torchrun sums up who failed first by what each rank writes here. Let it be the one that did."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    when = int(time.time()) + (0 if rank == error.rank else 1)
    first, cause = str(error).partition("\n")[0], error.traceback.strip().rpartition("\n")[2]
    said = f"{first} {cause}".strip()
    info = {"message": f"RunError: {said}", "extraInfo": {"py_callstack": said, "timestamp": str(when)}}
    with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
        json.dump({"message": info}, file)
