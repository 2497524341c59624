"""JSON files that outlive a kernel: what a reader has done, and the score board. Several kernels may write at once.

They lie in $PPEDU_HOME, or else in the folder for users' data that the system has.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError)
"""What reading raises where a file holds something else."""
STALE = 5.0
"""Seconds after which a lock is taken for a dead kernel's."""
_Read = TypeVar("_Read")


def home() -> Path:
    """The folder of the files: $PPEDU_HOME, or the system's place for users' data."""
    if os.environ.get("PPEDU_HOME"):
        return Path(os.environ["PPEDU_HOME"]).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library/Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    return base / "ppedu"


@dataclass(frozen=True, slots=True)
class Store:
    """One file. format: what it says it is, at its beginning. noun: what a reader calls it. again: what follows a loss."""

    stem: str
    format: str
    noun: str
    again: str

    @property
    def path(self) -> Path:
        return home() / f"{self.stem}.json"

    def entries(self, data: Any, key: str) -> Any:
        """What stands in the data of such a file under `key`. Raises one of UNREADABLE for another file's."""
        if data["format"] != self.format:
            raise ValueError(f"its format is {data['format']!r}")
        return data[key]

    def read(self, made: Callable[[Any], _Read]) -> tuple[_Read | None, str]:
        """(what `made` makes of the data, what was wrong with the file). One that is broken is set aside."""
        path = self.path
        try:
            return made(json.loads(path.read_text("utf-8"))), ""
        except FileNotFoundError:
            return None, ""
        except UNREADABLE:
            aside = path.with_suffix(".broken.json")
            with contextlib.suppress(OSError):
                path.replace(aside)
            return None, f"Your {self.noun} could not be read: it is kept as {aside.name}, and {self.again}."

    def text(self, **data: Any) -> str:
        """The JSON of such a file."""
        return json.dumps({"format": self.format, **data}, indent=1, ensure_ascii=False) + "\n"

    def write(self, **data: Any) -> None:
        """Write the file whole, or not at all: beside the old one, and then in its place in one step."""
        handle, name = tempfile.mkstemp(dir=home(), prefix=f"{self.stem}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(self.text(**data))
            os.replace(name, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Only one kernel at a time changes the file. A lock that is left behind is broken after a few seconds."""
        home().mkdir(parents=True, exist_ok=True)
        lock = self.path.with_suffix(".lock")
        deadline = time.monotonic() + STALE
        while True:
            try:
                os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                break
            except (FileExistsError, PermissionError):  # Windows: a file that is just being removed
                if time.monotonic() > deadline:
                    break
                time.sleep(0.01)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                lock.unlink()
