"""Export notebooks as slides: one HTML file each, which needs no network and no server.

    make slides, or: .venv/bin/python scripts/slides.py notebooks/00_start_here.ipynb

What is a slide is told by the cells' slide types, as in `jupyter nbconvert --to slides`. That one loads reveal.js and
more from the network when a talk begins; these pages are turned by the few lines in scripts/slides/slides.js.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import nbformat
from nbconvert.exporters import SlidesExporter
from nbformat.v4 import new_code_cell, new_markdown_cell

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "slides"
CAPTION = re.compile(r"\*Figure: ")


def title(notebook: nbformat.NotebookNode) -> str:
    """The notebook's heading."""
    return next((m[1] for cell in notebook.cells if (m := re.match(r"# (.+)", cell.source))), "")


def spread(notebook: nbformat.NotebookNode) -> None:
    """Give each picture a slide of its own, as large as it can be, with its caption and without the code that drew it."""
    cells = []
    for cell in notebook.cells:
        pictures = [output for output in cell.get("outputs", ()) if "image/png" in output.get("data", {})]
        if pictures and slide_type(cell) != "skip":
            cell.outputs = [output for output in cell.outputs if output not in pictures]
            alone = new_code_cell("", outputs=pictures, metadata={"slideshow": {"slide_type": "subslide"}})
            cells += [cell, alone]
        elif CAPTION.match(cell.source) and cells and has_picture(cells[-1]):
            caption, _, rest = cell.source.partition("\n\n")
            cells.append(new_markdown_cell(caption))
            cell.source = rest
            cell.metadata.setdefault("slideshow", {}).setdefault("slide_type", "subslide")
            cells += [cell] if rest.strip() else []
        else:
            cells.append(cell)
    notebook.cells = cells


def slide_type(cell: nbformat.NotebookNode) -> str:
    return str(cell.metadata.get("slideshow", {}).get("slide_type", ""))


def has_picture(cell: nbformat.NotebookNode) -> bool:
    return any("image/png" in output.get("data", {}) for output in cell.get("outputs", ()))


def describe(notebook: nbformat.NotebookNode) -> None:
    """Give each picture its text twin as alt text."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            twin = output.get("data", {}).get("text/plain")
            if "image/png" in output.get("data", {}):
                output.metadata["image/png"] = {"alt": " ".join("".join(twin or "").split())}


def export(path: Path, folder: Path = FOLDER) -> Path:
    """Write the slides of one notebook, and return where they are."""
    notebook = nbformat.read(path, as_version=4)
    describe(notebook)
    spread(notebook)
    exporter = SlidesExporter(template_name="slides", extra_template_basedirs=[str(HERE)])
    parts = {part: (HERE / "slides" / f"slides.{part}").read_text("utf-8") for part in ("css", "js")}
    resources = {"metadata": {"name": path.stem}, "slides": {**parts, "title": title(notebook)}}
    html, _ = exporter.from_notebook_node(notebook, resources)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{path.stem}.slides.html"
    target.write_text(html, encoding="utf-8")
    return target


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="slides", description="Export notebooks as slides.")
    parser.add_argument("notebooks", nargs="+", help="like notebooks/00_start_here.ipynb")
    parser.add_argument("--to", type=Path, default=FOLDER, help="the folder to write to (slides/)")
    asked = parser.parse_args(arguments)
    for name in asked.notebooks:
        print(export(Path(name), asked.to))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
