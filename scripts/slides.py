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
ALONE, FULL = 10, 20  # lines: longer code begins a slide; more code and output together take two
BESIDE = 35  # words that have room below a picture, its caption included
CAPTION = re.compile(r"\*Figure: ")


def title(notebook: nbformat.NotebookNode) -> str:
    """The notebook's heading."""
    return next((m[1] for cell in notebook.cells if (m := re.match(r"# (.+)", cell.source))), "")


def spread(notebook: nbformat.NotebookNode) -> None:
    """Give what is long a slide of its own: code, its output, and each picture, with its caption and as large as can be."""
    cells: list[nbformat.NotebookNode] = []
    for cell in notebook.cells:
        if slide_type(cell) in {"skip", "notes"}:
            cells.append(cell)
            continue
        shown = [c for c in cells if slide_type(c) not in {"skip", "notes"}]
        captioned = len(shown) > 1 and bool(CAPTION.match(shown[-1].source)) and has_picture(shown[-2])
        full = bool(shown) and shown[-1].cell_type == "code" and len(shown[-1].source.splitlines()) > FULL
        if (captioned or full) and not slide_type(cell):
            cell.metadata["slideshow"] = {"slide_type": "subslide"}
        if cell.cell_type == "code":
            cells += parts_of(cell)
        elif CAPTION.match(cell.source) and shown and has_picture(shown[-1]):
            cells += caption_of(cell)
        else:
            cells.append(cell)
    notebook.cells = cells


def caption_of(cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """A caption, which stays with its picture, and what stands behind it, on a slide of its own if there is much."""
    caption, _, rest = cell.source.partition("\n\n")
    if len(cell.source.split()) <= BESIDE:
        caption, rest = cell.source, ""
    behind = new_markdown_cell(rest, metadata={"slideshow": {"slide_type": slide_type(cell) or "subslide"}})
    return [new_markdown_cell(caption), *([behind] if rest.strip() else [])]


def parts_of(cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """A code cell as slides show it: the code with its text, or each on its own where they are long; then its pictures."""
    pictures = [output for output in cell.outputs if "image/png" in output.get("data", {})]
    text = [output for output in cell.outputs if output not in pictures]
    lines = len(cell.source.splitlines())
    if lines > ALONE and not slide_type(cell):
        cell.metadata["slideshow"] = {"slide_type": "subslide"}
    apart = lines + sum(map(length, text)) > FULL
    cell.outputs = [] if apart else text
    later = [text if apart else [], pictures]
    next_slide = {"slideshow": {"slide_type": "subslide"}}
    return [cell, *(new_code_cell("", outputs=part, metadata=next_slide) for part in later if part)]


def length(output: nbformat.NotebookNode) -> int:
    """The lines of a text output."""
    return str(output.get("text", "") or output.get("data", {}).get("text/plain", "")).count("\n") + 1


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
