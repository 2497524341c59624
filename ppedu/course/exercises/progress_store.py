"""What a reader has done so far, kept from kernel to kernel in one JSON file, which can be handed in.

The file is `progress.json` in $PPEDU_HOME, or else in the folder for users' data that the system has.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppedu.course.exercises import registry

FORMAT = "ppedu progress 1"
"""What the file says it is, at its beginning."""
_STALE = 5.0  # seconds after which a lock is taken for a dead kernel's
_kept: dict[str, Any] = {}  # what could not be written, so that at least this kernel knows it
_trouble: list[str] = []  # the last thing that went wrong with the file, as a sentence


def home() -> Path:
    """The folder of the progress file: $PPEDU_HOME, or the system's place for users' data."""
    if os.environ.get("PPEDU_HOME"):
        return Path(os.environ["PPEDU_HOME"]).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData/Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library/Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    return base / "ppedu"


def record(notebook: str, part: str, name: str, correct: bool, idea: str | None) -> None:
    """Note one attempt. part: "exercises" or "predictions". Never fails: learning goes on without the file."""
    _trouble.clear()
    try:
        with locked(home()):
            data = _read()
            _note(data, notebook, part, name, correct, idea)
            _write(data)
    except OSError as error:
        _trouble[:] = [
            f"Your progress cannot be kept in {home()} ({error.strerror or error}): this kernel alone knows it."
        ]
        _note(_kept, notebook, part, name, correct, idea)


def _note(data: dict[str, Any], notebook: str, part: str, name: str, correct: bool, idea: str | None) -> None:
    entry = data.setdefault(notebook, {}).setdefault(part, {}).setdefault(name, {"attempts": 0, "right": False})
    entry["attempts"] += 1
    if part == "predictions":
        entry.setdefault("first_right", correct)  # a prediction counts by its first answer; later ones know more
    entry["right"] = entry["right"] or correct
    if idea and idea not in entry.setdefault("ideas", []):
        entry["ideas"].append(idea)


def _read() -> dict[str, Any]:
    """What the file holds, by notebook. A file that cannot be read is set aside, and a new one begun."""
    path = home() / "progress.json"
    try:
        return checked(json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        aside = path.with_suffix(".broken.json")
        with contextlib.suppress(OSError):
            path.replace(aside)
        _trouble[:] = [f"Your progress file could not be read: it is kept as {aside.name}, and counting starts afresh."]
        return {}


def checked(data: Any) -> dict[str, Any]:
    """The entries of a progress file by notebook. Raises ValueError, KeyError, TypeError or AttributeError for another."""
    if data["format"] != FORMAT:
        raise ValueError(f"its format is {data['format']!r}")
    entries: dict[str, Any] = data["notebooks"]
    for parts in entries.values():
        for names in parts.values():
            for entry in names.values():
                if not isinstance(entry["attempts"], int) or not isinstance(entry["right"], bool):
                    raise TypeError(f"{entry!r} is no entry")
    return entries


def _write(data: dict[str, Any]) -> None:
    text = json.dumps({"format": FORMAT, "notebooks": data}, indent=1, sort_keys=True, ensure_ascii=False)
    put(home() / "progress.json", text + "\n")


def put(path: Path, text: str) -> None:
    """Write a text file whole, or not at all: beside the old one, and then in its place in one step."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@contextlib.contextmanager
def locked(folder: Path, name: str = "progress") -> Iterator[None]:
    """Only one kernel at a time changes the file. A lock that is left behind is broken after a few seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / f"{name}.lock"
    deadline = time.monotonic() + _STALE
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


@dataclass(frozen=True, slots=True, repr=False)
class Progress:
    """How far a reader is. Its text is one line a notebook."""

    notebooks: tuple[str, ...]
    entries: dict[str, Any]
    note: str = ""

    def line(self, notebook: str) -> str:
        """One notebook's line: "02: 2 of 3 exercises, 1 of 2 predictions"."""
        asked, entry = registry.asked(notebook), self.entries.get(notebook, {})
        right = [e.id for e in asked.exercises if entry.get("exercises", {}).get(e.id, {}).get("right")]
        made = [q.id for q in asked.questions if q.id in entry.get("predictions", {})]
        counts = [
            f"{len(done)} of {total} {word if total != 1 else word[:-1]}"
            for done, total, word in (
                (right, len(asked.exercises), "exercises"),
                (made, len(asked.questions), "predictions"),
            )
            if total
        ]
        return f"{notebook}: {', '.join(counts) or 'nothing to answer'}"

    def __repr__(self) -> str:
        lines = [self.line(notebook) for notebook in self.notebooks]
        return "\n".join(lines + ([self.note] if self.note else []))

    def to_json(self, name: str = "") -> str:
        """Everything as JSON, to be handed in: attempts, what is right, which wrong ideas were met.

        name: the reader's, as the class knows it. Nothing else tells who it was.
        """
        counted = {n: self.entries.get(n, {}) for n in self.notebooks}
        lines = {n: self.line(n) for n in self.notebooks}
        data = {"format": FORMAT, "name": name, "lines": lines, "notebooks": counted}
        return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    def save(self, path: str | Path, name: str = "") -> str:
        """Write `to_json` to a file, and return where it lies."""
        Path(path).write_text(self.to_json(name), encoding="utf-8")
        return str(path)


def progress(notebook: str | None = None) -> Progress:
    """How far you are in a notebook ("02"), or in all of them. Kept across kernels; see `to_json` to hand it in.

    Exercises count when they are right, predictions when they are made. Raises ValueError for an unknown notebook.
    """
    known = registry.notebooks()
    if notebook is not None:
        registry.asked(notebook)
    notes = list(_trouble)  # of the last attempt: before what is found now
    try:
        entries = _read()
    except OSError as error:
        entries = {}
        notes.append(f"Your progress in {home()} cannot be read ({error.strerror or error}).")
    for number, parts in _kept.items():
        for part, names in parts.items():
            entries.setdefault(number, {}).setdefault(part, {}).update(names)
    note = next(iter(notes + _trouble), "")
    return Progress((notebook,) if notebook else known, entries, note)
