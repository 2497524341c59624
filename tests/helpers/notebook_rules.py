"""What every notebook of the course keeps to, as rules: each one takes a page and yields sentences that say what is wrong."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
from notebook_files import PYTHON_BLOCK, asks, tags

KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
FIRST_CODE = """\
try:
    import ppedu
except ModuleNotFoundError:  # on Colab, say
    %pip install -q ppedu
    import ppedu

from ppedu.course import check, progress, reveal  # what asks, checks, and keeps your answers

ppedu.machine()"""
TAGS = {  # tag -> the type of the cells that may have it
    "nbval-ignore-output": "code",  # measures: its output differs from run to run
    "prediction": "code",
    "exercise": "code",
    "solution": "markdown",
    "live": "code",  # a widget
    "raises-exception": "code",  # a refusal that is shown on purpose
}
METADATA = {"tags", "slideshow", "measured"}
SLIDE_TYPES = {"slide", "subslide", "fragment", "skip", "notes"}
LIVE = re.compile(r"ppedu\.(explore|explore_compare|puzzle)\(")
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)[^)]*\)")
ABSOLUTE = re.compile(r"(?<![\w.:/])/(?:home|root|Users|tmp|var|usr|opt|work|mnt|content)/|\b[A-Z]:\\\\?\w|file://")
ADDRESS = re.compile(r"\bat 0x[0-9a-f]+", re.IGNORECASE)
WORDS, LINES = 210, 30  # the most of a markdown cell, and of a code cell


@dataclass(frozen=True)
class Page:
    """A notebook, the file it is in, and the ids of what it is to ask."""

    path: Path
    book: Any
    questions: tuple[str, ...] = ()
    exercises: tuple[str, ...] = ()

    @property
    def number(self) -> str:
        return self.path.name[:2]

    @property
    def cells(self) -> list[Any]:
        return list(self.book.cells)

    @property
    def code(self) -> list[Any]:
        return [cell for cell in self.cells if cell.cell_type == "code"]

    @property
    def prose(self) -> list[Any]:
        return [cell for cell in self.cells if cell.cell_type == "markdown"]


Rule = Callable[[Page], Iterator[str]]


def problems(page: Page) -> list[str]:
    """Every rule that the page breaks, as "rule: sentence"."""
    return [f"{rule.__name__}: {sentence}" for rule in RULES for sentence in rule(page)]


def name(page: Page) -> Iterator[str]:
    if not re.fullmatch(r"\d\d_[a-z0-9]+(_[a-z0-9]+)*\.ipynb", page.path.name):
        yield f"{page.path.name} is not named like 02_one_device_at_a_time.ipynb"


def kernel(page: Page) -> Iterator[str]:
    if page.book.metadata.get("kernelspec") != KERNELSPEC:
        yield f"the kernel is {page.book.metadata.get('kernelspec')}, not {KERNELSPEC}"


def metadata(page: Page) -> Iterator[str]:
    more = set(page.book.metadata) - {"kernelspec", "language_info"}
    if more:
        yield f"the notebook has metadata {sorted(more)}: make notebooks leaves it out"
    for cell in page.cells:
        more = set(cell.metadata) - METADATA
        if more:
            yield f"{_which(cell)} has metadata {sorted(more)}"
        slide = cell.metadata.get("slideshow", {}).get("slide_type")
        if slide is not None and slide not in SLIDE_TYPES:
            yield f"{_which(cell)} has slide type {slide!r}"
    ids = [cell.get("id") for cell in page.cells]
    if None in ids or len(set(ids)) < len(ids):
        yield "each cell needs an id of its own"


def allowed_tags(page: Page) -> Iterator[str]:
    for cell in page.cells:
        for tag in tags(cell):
            if TAGS.get(tag) != cell.cell_type:
                known = "no tag of ours" if tag not in TAGS else f"for {TAGS[tag]} cells"
                yield f"{_which(cell)}: {tag} is {known}"


def opening(page: Page) -> Iterator[str]:
    text = page.cells[0].source if page.cells and page.cells[0].cell_type == "markdown" else ""
    if not re.match(rf"# {page.number} · \S", text):
        yield f'the first cell begins with "# {page.number} · " and the title'
    if not re.search(r"\*\*Time:\*\* \d+ minutes", text):
        yield 'the first cell says how long it takes: "**Time:** 40 minutes"'
    if "**You need:**" not in text:
        yield 'the first cell says what one should know first: "**You need:** ..."'
    goals = re.search(r"^After this page you can\n+((?:- .*\n?(?:  .*\n?)*){2,})", text, re.MULTILINE)
    if not goals:
        yield 'the first cell says "After this page you can" and lists two things or more'


def first_code(page: Page) -> Iterator[str]:
    if not page.code or page.code[0].source != FIRST_CODE:
        yield "the first code cell is not the one that all notebooks begin with"


def order(page: Page) -> Iterator[str]:
    found = [line for cell in page.prose for line in cell.source.splitlines() if line.startswith("## ")]
    wanted = ["## The question", "## What people get wrong", "## Three lines to remember"]
    places = [found.index(heading) if heading in found else None for heading in wanted]
    for heading, place in zip(wanted, places, strict=True):
        if place is None:
            yield f'there is no section "{heading}"'
    there = [place for place in places if place is not None]
    if there != sorted(there):
        yield f"the sections stand in another order than {wanted}"
    last = page.cells[-1].source if page.cells else ""
    if "**Next:**" not in last:
        yield 'the last cell says what comes next: "**Next:** ..."'
    lines = next((cell.source for cell in page.prose if "## Three lines to remember" in cell.source), "")
    if lines and len(re.findall(r"^\d\. \S", lines, re.MULTILINE)) != 3:
        yield "three lines to remember are three, numbered"


def links(page: Page) -> Iterator[str]:
    for cell in page.prose:
        for picture, text, target in LINK.findall(cell.source):
            if picture and not text.strip():
                yield f"{_which(cell)}: the picture {target} has no alt text"
            yield from broken_link(page.path.parent, target)


def broken_link(folder: Path, target: str) -> Iterator[str]:
    """Say so where a link leads nowhere: files must be there, and headings as well."""
    if target.startswith(("https://", "mailto:")):
        return
    if target.startswith(("http:", "/", "attachment:")):
        yield f"the link {target} is neither https nor relative"
        return
    file, _, anchor = target.partition("#")
    path = folder / file
    if file and not path.exists():
        yield f"the link {target} leads nowhere"
    elif file and anchor and path.suffix == ".md" and anchor not in anchors(path.read_text("utf-8")):
        yield f"the link {target} leads to no heading"


def anchors(markdown: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", markdown, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def captions(page: Page) -> Iterator[str]:
    for place, cell in enumerate(page.cells):
        if not _has_picture(cell):
            continue
        below = next((c for c in page.cells[place + 1 :] if "live" not in tags(c)), None)
        text = below.source if below is not None and below.cell_type == "markdown" else ""
        if not text.startswith("*Figure: "):
            yield f'{_which(cell)} shows a picture: the cell below it begins with "*Figure: ..."'
        elif not re.search(r"predicted|measured|diagram", text, re.IGNORECASE):
            yield f"the caption below {_which(cell)} says neither predicted nor measured (nor that it is a diagram)"


def live_twins(page: Page) -> Iterator[str]:
    for place, cell in enumerate(page.cells):
        if cell.cell_type == "code" and LIVE.search(cell.source) and ".static(" not in cell.source:
            if "live" not in tags(cell):
                yield f"{_which(cell)} makes a widget: tag it live"
                continue
        elif "live" not in tags(cell):
            continue
        above = page.cells[max(0, place - 2) : place]
        if above and above[-1].cell_type == "code":
            above = above[-1:]
        if not any(_has_picture(c) for c in above):
            yield f"{_which(cell)} is live: the cell above it shows the static figure"
        texts = ["".join(o.get("data", {}).get("text/plain", "")) for o in cell.get("outputs", ())]
        if not texts or any(not text.strip() or "\n" in text.strip() for text in texts):
            yield f"{_which(cell)} is live: its text is one line"


def measured(page: Page) -> Iterator[str]:
    for cell in page.code[1:]:
        if "nbval-ignore-output" in tags(cell) and "progress(" not in cell.source and "live" not in tags(cell):
            if not re.search(r"^\s*assert ", cell.source, re.MULTILINE):
                yield f"{_which(cell)} measures, and asserts nothing about it"
            if not cell.metadata.get("measured"):
                yield f"{_which(cell)} does not come from make notebooks"


def asked(page: Page) -> Iterator[str]:
    found = [(function, name, cell) for cell in page.code for function, name in asks(cell.source)]
    for function, kind, tag, wanted in (
        ("reveal", "question", "prediction", page.questions),
        ("check", "exercise", "exercise", page.exercises),
    ):
        here = [name for f, name, _ in found if f == function]
        for name in sorted(set(wanted) ^ set(here)):
            yield f"the {kind} '{name}' is {'not asked here' if name in wanted else 'not declared for this notebook'}"
        for name in sorted({name for name in here if here.count(name) > 1}):
            yield f"the {kind} '{name}' is asked twice"
        for f, name, cell in found:
            if f == function and tag not in tags(cell):
                yield f"{_which(cell)} asks '{name}': tag it {tag}"
            if f == function and not _ends_in_call(cell.source):
                yield f"{_which(cell)}: ppedu.{function} is the last line of its cell"
            if f == function and not re.search(r"\bNone\b|\.\.\.", cell.source):
                yield f"{_which(cell)}: '{name}' has no stub (None, or ... as the body of a function)"


def solutions(page: Page) -> Iterator[str]:
    pairs = list(pairwise([*page.cells, None]))
    for cell, below in pairs:
        if "exercise" in tags(cell) and (below is None or "solution" not in tags(below)):
            yield f"{_which(cell)} is an exercise: the cell below it is its solution"
    for above, cell in pairwise([None, *page.cells]):
        if "solution" not in tags(cell):
            continue
        if above is None or "exercise" not in tags(above):
            yield f"{_which(cell)} is a solution, but no exercise stands above it"
        folded = re.fullmatch(r"\s*<details>\n<summary>.+</summary>\n\n.*\n\n</details>\s*", cell.source, re.DOTALL)
        if not folded or not PYTHON_BLOCK.search(cell.source):
            yield f"{_which(cell)}: a solution is folded, <details> around a block of python"


def outputs(page: Page) -> Iterator[str]:
    counts = [cell.execution_count for cell in page.code]
    if counts != list(range(1, len(counts) + 1)):
        yield f"the cells did not run from top to bottom on a fresh kernel: {counts}"
    for cell in page.code:
        if not cell.outputs and _shows_something(cell.source):
            yield f"{_which(cell)} should show something, and has no output"
        for output in cell.outputs:
            if output.output_type == "error" and "raises-exception" not in tags(cell):
                yield f"{_which(cell)} ended in {output.ename}"
            if output.get("name") == "stderr":
                yield f"{_which(cell)} has output on stderr"
            if "application/vnd.jupyter.widget-view+json" in output.get("data", {}):
                yield f"{_which(cell)} holds the state of a widget"
            if not _text(output).strip():
                yield f"{_which(cell)} has an empty output"


def nothing_local(page: Page) -> Iterator[str]:
    for cell in page.cells:
        for text in [cell.source, *map(_text, cell.get("outputs", ()))]:
            for pattern, kind in ((ABSOLUTE, "an absolute path"), (ADDRESS, "an address")):
                found = pattern.search(text)
                if found:
                    yield f"{_which(cell)} holds {kind}: {text[found.start() : found.start() + 40]!r}"


def progress_line(page: Page) -> Iterator[str]:
    line = f'progress("{page.number}")'
    lines = [cell for cell in page.code if cell.source.strip() == line]
    if (page.questions or page.exercises) and len(lines) != 1:
        yield f"one cell shows how far the reader is: {line}"
    for cell in lines:
        if "nbval-ignore-output" not in tags(cell):
            yield f"{_which(cell)} shows the reader's own progress: tag it nbval-ignore-output"


def short_cells(page: Page) -> Iterator[str]:
    for cell in page.cells:
        words, lines = len(cell.source.split()), len(cell.source.splitlines())
        if cell.cell_type == "markdown" and "solution" not in tags(cell) and words > WORDS:
            yield f"{_which(cell)} has {words} words: at most {WORDS}, one idea each"
        if cell.cell_type == "code" and not {"exercise", "prediction"} & tags(cell) and lines > LINES:
            yield f"{_which(cell)} has {lines} lines: at most {LINES}, machinery belongs in the library"


def slides(page: Page) -> Iterator[str]:
    for cell in page.cells:
        slide = cell.metadata.get("slideshow", {}).get("slide_type")
        begins = cell.cell_type == "markdown" and re.match(r"##? ", cell.source)
        if begins and slide not in {"slide", "skip"}:
            yield f"{_which(cell)} begins a section: its slide type is slide, or skip"
        if {"exercise", "solution", "live"} & tags(cell) and slide != "skip":
            yield f"{_which(cell)} is no slide: its slide type is skip"


RULES: tuple[Rule, ...] = (
    name, kernel, metadata, allowed_tags, opening, first_code, order, links, captions, live_twins, measured, asked,
    solutions, outputs, nothing_local, progress_line, short_cells, slides,
)  # fmt: skip


def read(path: Path, questions: tuple[str, ...] = (), exercises: tuple[str, ...] = ()) -> Page:
    """A notebook as a page."""
    return Page(path, nbformat.read(path, as_version=4), questions, exercises)


def _which(cell: Any) -> str:
    """A cell by its id and its first words."""
    return f"cell {cell.get('id')} ({' '.join(cell.source.split())[:40]!r})"


def _has_picture(cell: Any) -> bool:
    return any("image/png" in output.get("data", {}) for output in cell.get("outputs", ()))


def _text(output: Any) -> str:
    data = output.get("data", {})
    parts = [output.get("text", ""), *(value for kind, value in data.items() if kind.startswith("text/"))]
    parts += [output.get("evalue", ""), *output.get("traceback", ())]
    return "\n".join("".join(part) for part in parts) or " ".join(data)


def _tree(source: str) -> list[ast.stmt]:
    return ast.parse(re.sub(r"^(\s*)%.*$", r"\1pass", source, flags=re.MULTILINE)).body


def _ends_in_call(source: str) -> bool:
    body = _tree(source)
    last = body[-1] if body else None
    return isinstance(last, ast.Expr) and bool(asks(ast.unparse(last)))


def _shows_something(source: str) -> bool:
    """Whether a cell ends in a value, or prints or plots on the way."""
    body = _tree(source)
    calls = [node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Call)]
    prints = any(isinstance(c.func, ast.Name) and c.func.id == "print" for c in calls)
    plots = any(isinstance(c.func, ast.Attribute) and c.func.attr.startswith("plot") for c in calls)
    return bool(body) and (isinstance(body[-1], ast.Expr) or prints or plots)
