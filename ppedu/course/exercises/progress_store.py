"""What a reader has done so far, kept from kernel to kernel in `progress.json`, which can be handed in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppedu.core.format import counted
from ppedu.course.exercises import registry
from ppedu.course.store import Store, home

STORE = Store("progress", "ppedu progress 1", "progress file", "counting starts afresh")
_kept: dict[str, Any] = {}  # what could not be written, so that at least this kernel knows it
_trouble: list[str] = []  # the last thing that went wrong with the file, as a sentence


def record(notebook: str, part: str, name: str, correct: bool, idea: str | None) -> None:
    """Note one attempt. part: "exercises" or "predictions". Never fails: learning goes on without the file."""
    _trouble.clear()
    try:
        with STORE.locked():
            data = _read()
            _note(data, notebook, part, name, correct, idea)
            STORE.write(notebooks=data)
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
    """What the file holds, by notebook."""
    entries, trouble = STORE.read(checked)
    if trouble:
        _trouble[:] = [trouble]
    return entries or {}


def checked(data: Any) -> dict[str, Any]:
    """The entries of a progress file by notebook. Raises ValueError, KeyError, TypeError or AttributeError for another."""
    entries: dict[str, Any] = STORE.entries(data, "notebooks")
    for parts in entries.values():
        for names in parts.values():
            for entry in names.values():
                if not isinstance(entry["attempts"], int) or not isinstance(entry["right"], bool):
                    raise TypeError(f"{entry!r} is no entry")
    return entries


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
        parts = ((right, asked.exercises, "exercise"), (made, asked.questions, "prediction"))
        counts = [f"{len(done)} of {counted(len(total), word)}" for done, total, word in parts if total]
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
        return STORE.text(name=name, lines=lines, notebooks=counted)

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
