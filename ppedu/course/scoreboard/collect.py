"""What a class has done, from the progress files and score boards that its members handed in.

    python -m ppedu.course.scoreboard.collect handed_in/*.json

A reader writes such files with `ppedu.course.progress().save("ada.json", name="Ada")` and `ppedu.course.scores().save(...)`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ppedu.course.exercises import progress_store as kept
from ppedu.course.exercises import registry
from ppedu.course.scoreboard import board
from ppedu.course.store import UNREADABLE


def collect(paths: Sequence[str | Path]) -> str:
    """A table of who is how far, and for each question how many have it right and which wrong ideas were met.

    Score boards become one, on which each entry has its reader's name in front. A file that cannot be read is named, and left out.
    """
    members: list[tuple[str, dict[str, Any]]] = []
    entered: list[board.Scored] = []
    trouble = []
    for path in map(Path, paths):
        try:
            data = json.loads(path.read_text("utf-8"))
            name = str(data.get("name") or path.stem)
            if data.get("format") == board.STORE.format:
                entered += [replace(entry, name=f"{name}: {entry.name}") for entry in board.read_board(data)]
            else:
                members.append((name, kept.checked(data)))
        except (OSError, *UNREADABLE) as error:
            trouble.append(
                f"{path} is left out, for it is no progress file ({kept.STORE.format!r}) and no score board ({board.STORE.format!r}): {error}"
            )
    lines = [f"{len(members)} handed in", ""]
    for name, entries in sorted(members, key=lambda member: member[0]):
        done = kept.Progress(registry.notebooks(), entries)
        lines.append(f"{name}: " + "; ".join(done.line(n) for n in registry.notebooks() if entries.get(n)))
    for number in registry.notebooks():
        lines += _notebook(number, [entries.get(number, {}) for _, entries in members])
    if entered:
        lines += ["", repr(board.ScoreBoard(tuple(entered), tuple(board.challenges_of(entered))))]
    return "\n".join([*lines, *([""] if trouble else []), *trouble])


def _notebook(number: str, entries: list[dict[str, Any]]) -> list[str]:
    """One notebook's questions and exercises: tried, right, and what was in the way."""
    asked = registry.asked(number)
    parts = [("predictions", "first_right", [q.id for q in asked.questions])]
    parts += [("exercises", "right", [e.id for e in asked.exercises])]
    lines = []
    for part, right, names in parts:
        for name in names:
            tried = [entry[part][name] for entry in entries if name in entry.get(part, {})]
            if tried:
                good = sum(bool(one.get(right)) for one in tried)
                at_first = " at first" if part == "predictions" else ""
                lines.append(f"  {name}: {good} of {len(tried)} right{at_first}{_ideas(tried)}")
    return ["", f"notebook {number}", *lines] if lines else []


def _ideas(tried: Iterable[dict[str, Any]]) -> str:
    counted = Counter(idea for one in tried for idea in one.get("ideas", ()))
    named = ", ".join(f'"{idea}" ({count})' for idea, count in counted.most_common())
    return f"; met: {named}" if named else ""


if __name__ == "__main__":
    sys.stdout.write(collect(sys.argv[1:]) + "\n" if sys.argv[1:] else f"{__doc__}\n")
