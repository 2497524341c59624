"""The notebooks as files: where they are, and what their exercise and solution cells hold."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def all_notebooks() -> list[Path]:
    """The notebooks of the course, in order."""
    return sorted(FOLDER.glob("*.ipynb"))


def notebook_of(number: str) -> Path | None:
    """The notebook with a number ("02"), or None where it is not written yet."""
    return next(iter(FOLDER.glob(f"{number}_*.ipynb")), None)


def tags(cell: Any) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def asks(source: str) -> list[tuple[str, str]]:
    """(function, id) of every `check("id", ...)` and `reveal("id", ...)` in a code cell."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a line of IPython, like %pip
        return []
    found = []
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"check", "reveal"}
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            found.append((node.func.id, str(node.args[0].value)))
    return found


@dataclass(frozen=True)
class Task:
    """An exercise cell, taken apart: what stands before the check, the check, and the code of the solution below it."""

    stub: str
    check: str
    solution: str | None


def task(path: Path, exercise: str) -> Task | None:
    """The cells of one exercise in a notebook; None where no cell checks it."""
    cells = nbformat.read(path, as_version=4).cells
    for place, cell in enumerate(cells):
        if cell.cell_type == "code" and ("check", exercise) in asks(cell.source):
            tree = ast.parse(cell.source)
            *body, last = tree.body
            lines = cell.source.splitlines()
            below = cells[place + 1] if place + 1 < len(cells) else None
            blocks = PYTHON_BLOCK.findall(below.source) if below is not None and "solution" in tags(below) else []
            return Task(
                "\n".join(lines[: last.lineno - 1]) if body else "",
                "\n".join(lines[last.lineno - 1 : last.end_lineno]),
                "\n".join(blocks) if blocks else None,
            )
    return None
