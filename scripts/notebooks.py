"""Run notebooks from top to bottom on a fresh kernel, and write their outputs into them: the only way outputs are made.

    make notebooks               every cell runs; what was measured before stays, unless code up to it has changed
    make notebooks MEASURE=1     what is measured is measured anew
    .venv/bin/python scripts/notebooks.py notebooks/00_start_here.ipynb

What only tells of one run is left out (times, progress bars, the state of widgets, editors' notes), so that a change in
a notebook's file is a change that its reader sees, and running it twice changes nothing. Execution counts stay: a cell
without one is not compared by nbval.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
CELL_TIMEOUT = 120  # seconds: the same as in `make test`
MEASURES = (
    "nbval-ignore-output"  # the tag of cells that measure: they run and assert, but print something else each time
)
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"  # shows as an error without its state; its text stays
KEPT = ("tags", "slideshow")  # of a cell's metadata: what authors write
MEASURED = "measured"  # of a cell's metadata: which code its outputs come from
PROGRESS_BAR = re.compile(r"\d+%\|.*\|")  # tqdm's text, in a terminal as well as in a notebook


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Leave out of the notebook, in place, what its reader cannot see or what only tells of this run."""
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({key: cell.metadata[key] for key in KEPT if key in cell.metadata})
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not is_noise(output)]
            for output in cell.outputs:
                data = output.get("data", {})
                data.pop(WIDGET_VIEW, None)
                if "image/png" in data:
                    data["image/png"] = smaller(data["image/png"])
                output.pop("transient", None)
                if output.output_type == "error":  # its lines name files of this machine
                    output.traceback = [f"{output.ename}: {output.evalue}"]


def smaller(png: str) -> str:
    """A picture in base64 with 64 colours at most: a quarter of the bytes, and flat colours lose nothing that one sees."""
    picture = Image.open(io.BytesIO(base64.b64decode(png)))
    if picture.mode == "P":
        return png
    few = picture.convert("RGB").quantize(64, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    written = io.BytesIO()
    few.save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode() + "\n"


def is_noise(output: nbformat.NotebookNode) -> bool:
    """Progress bars, and what libraries say on stderr."""
    if output.output_type == "stream":
        return bool(output.name == "stderr")
    text = output.get("data", {}).get("text/plain", "")
    return bool(PROGRESS_BAR.search("".join(text)))


def origins(notebook: nbformat.NotebookNode) -> Iterator[tuple[nbformat.NotebookNode, str]]:
    """Each code cell, with a short name of all the code that its outputs come from: its own and what stands above it."""
    seen = hashlib.sha256()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            seen.update(cell.source.encode() + b"\0")
            yield cell, seen.hexdigest()[:12]


def measured(notebook: nbformat.NotebookNode) -> dict[str, list[nbformat.NotebookNode]]:
    """The outputs of cells that measure, by the code that they come from, where they do come from the code that is there."""
    return {
        name: cell.outputs
        for cell, name in origins(notebook)
        if MEASURES in cell.metadata.get("tags", ()) and cell.metadata.get(MEASURED) == name
    }


def run(path: Path, measure: bool = False) -> float:
    """Run one notebook in its own folder and write it; if a cell fails, the file stays as it is.

    measure: take the new outputs of cells that measure. Else they keep those that they have, if these come from the
    same code. Returns the seconds that it took. Raises CellExecutionError with the cell and its traceback.
    """
    notebook = nbformat.read(path, as_version=4)
    kept = {} if measure else measured(notebook)
    start = time.perf_counter()
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name=KERNEL["name"],
        record_timing=False,
        coalesce_streams=True,  # how print arrived in pieces differs from run to run
        resources={"metadata": {"path": str(path.parent)}},
    )
    with tempfile.TemporaryDirectory() as nobody:
        client.execute(env=environment(nobody))
    tidy(notebook)
    for cell, name in origins(notebook):
        if MEASURES in cell.metadata.get("tags", ()):
            cell.outputs = kept.get(name, cell.outputs)
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = cell.execution_count
            cell.metadata[MEASURED] = name
    write(notebook, path)
    return time.perf_counter() - start


def environment(home: str) -> dict[str, str]:
    """The kernel's environment: this checkout's ppedu, pictures below their cells, and a reader who has done nothing yet."""
    given = {key: value for key, value in os.environ.items() if key != "MPLBACKEND"}
    path = os.pathsep.join([str(ROOT), *filter(None, [given.get("PYTHONPATH")])])
    return {**given, "PPEDU_HOME": home, "PYTHONPATH": path}


def write(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook whole, or not at all."""
    notebook.nbformat_minor = max(notebook.nbformat_minor, 5)  # cells have ids
    nbformat.validate(notebook)
    beside = path.with_suffix(".new")
    try:
        nbformat.write(notebook, beside)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="notebooks", description="Run notebooks, and write their outputs into them.")
    parser.add_argument("notebooks", nargs="+", help="like notebooks/00_start_here.ipynb")
    parser.add_argument("--measure", action="store_true", help="measure anew what cells measure")
    asked = parser.parse_args(arguments)
    for name in asked.notebooks:
        try:
            print(f"{name}: {run(Path(name), asked.measure):.1f} s", flush=True)
        except CellExecutionError as error:
            print(f"{name} is left as it was, for a cell failed:\n{error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
