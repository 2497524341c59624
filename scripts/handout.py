"""Write the notebooks for a class: without the solutions, which a teacher keeps. Everything else works as before.

    make handout, or: .venv/bin/python scripts/handout.py notebooks/*.ipynb

The checks are in the library, and so are the answers that they compare with: this keeps solutions from being read by
accident, not from being looked up.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "handout"
PAGES = ("GLOSSARY.md", "REFERENCES.md")  # what notebooks link to; INSTRUCTORS.md stays with the teacher


def without_solutions(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook without its cells that are tagged as solutions."""
    notebook.cells = [cell for cell in notebook.cells if "solution" not in cell.metadata.get("tags", ())]
    return notebook


def write(paths: list[Path], folder: Path = FOLDER) -> list[Path]:
    """Write the handout of each notebook, and the pages that they link to. Returns where they are.

    Files of these names are overwritten; anything else in the folder stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for path in paths:
        target = folder / path.name
        if target.resolve() == path.resolve():
            raise ValueError(f"{target} would be written over itself: choose another folder than that of the notebooks")
        nbformat.write(without_solutions(nbformat.read(path, as_version=4)), target)
        written.append(target)
    for name in PAGES:
        written.append(Path(shutil.copy(ROOT / "notebooks" / name, folder / name)))
    return written


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="handout", description="Write notebooks without their solutions.")
    parser.add_argument("notebooks", nargs="+", type=Path, help="like notebooks/00_start_here.ipynb")
    parser.add_argument("--to", type=Path, default=FOLDER, help="the folder to write to (handout/)")
    asked = parser.parse_args(arguments)
    try:
        for path in write(asked.notebooks, asked.to):
            print(path)
    except (OSError, ValueError) as error:
        print(f"handout: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
