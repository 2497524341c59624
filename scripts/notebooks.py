"""Run notebooks from top to bottom on a fresh kernel, and write their outputs into them: the only way outputs are made.

    make notebooks, or: .venv/bin/python scripts/notebooks.py notebooks/00_start_here.ipynb

What only tells of one run is left out (times, the state of widgets, editors' notes), so that a change in a notebook's
file is a change that its reader sees. Execution counts stay: a cell without one is not compared by nbval.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
CELL_TIMEOUT = 120  # seconds: the same as in `make test`
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"  # shows as an error without its state; its text stays
KEPT = ("tags", "slideshow")  # of a cell's metadata: what authors write


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Leave out of the notebook, in place, what its reader cannot see."""
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({key: cell.metadata[key] for key in KEPT if key in cell.metadata})
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop(WIDGET_VIEW, None)


def run(path: Path) -> float:
    """Run one notebook in its own folder and write it; if a cell fails, the file stays as it is.

    Returns the seconds that it took. Raises CellExecutionError with the cell and its traceback.
    """
    notebook = nbformat.read(path, as_version=4)
    start = time.perf_counter()
    NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name=KERNEL["name"],
        record_timing=False,
        coalesce_streams=True,  # how print arrived in pieces differs from run to run
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    tidy(notebook)
    nbformat.validate(notebook)
    nbformat.write(notebook, path)
    return time.perf_counter() - start


def main(names: list[str]) -> int:
    if not names:
        print("notebooks: name the notebooks to run, like notebooks/00_start_here.ipynb", file=sys.stderr)
        return 2
    for name in names:
        try:
            print(f"{name}: {run(Path(name)):.1f} s")
        except CellExecutionError as error:
            print(f"{name} is left as it was, for a cell failed:\n{error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
