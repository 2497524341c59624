"""The notebooks keep to their rules, and each rule finds a notebook that does not. What they print is nbval's to compare."""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import notebook_rules as rules
import pytest
from nbformat import v4
from notebook_files import FOLDER, all_notebooks
from notebook_rules import FIRST_CODE, KERNELSPEC, Page, broken_link, problems, read

from ppedu.course.exercises import registry

COURSE = [
    "00_start_here",
    "01_splitting_a_model",
    "02_one_device_at_a_time",
    "03_microbatches",
    "04_gpipe",
    "05_one_f_one_b",
    "06_how_many_stages_and_microbatches",
    "07_interleaved",
    "08_zero_bubble",
    "09_dualpipe",
    "11_design_your_own",
]
MISCONCEPTIONS = [  # each is met by name, and settled by a run
    "1F1B has a smaller bubble than GPipe.",
    "1F1B runs B of a microbatch right after its F.",
    "Non-interleaved means F and B do not alternate.",
    "Cutting the model over 4 GPUs makes it 4 times faster.",
    "PP is ZeRO-3 by another name.",
    "Micro-batches remove the dependency between stages.",
    "More microbatches are free.",
    "(p-1)/m is the share of time lost.",
    "Micro-batching never changes the result.",
    "O(p) memory means memory no longer depends on the model.",
    "All stages need the same warm-up.",
    "The bubble can be removed entirely by better scheduling, at no cost.",
]
PAGES = sorted(FOLDER.glob("*.md"))


def page_of(path: Path) -> Page:
    asked = registry.asked(path.name[:2])
    return read(path, tuple(q.id for q in asked.questions), tuple(e.id for e in asked.exercises))


@pytest.mark.parametrize("path", all_notebooks(), ids=lambda path: path.stem)
def test_each_notebook_keeps_to_the_rules(path):
    assert problems(page_of(path)) == []


def test_the_course_is_complete_and_in_order():
    assert [path.stem for path in all_notebooks()] == COURSE


@pytest.mark.parametrize("path", all_notebooks()[:-1], ids=lambda path: path.stem)
def test_each_notebook_leads_to_the_next(path):
    names = [p.name for p in all_notebooks()]
    assert f"]({names[names.index(path.name) + 1]})" in nbformat.read(path, as_version=4).cells[-1].source


def same_words(text: str) -> str:
    """Letters and digits only: quotes, dashes and line breaks are for looks."""
    words = text.lower().replace("four", "4").replace("micro-", "micro").replace("−", "-")
    return re.sub(r"[^a-z0-9()/-]+", " ", words).strip()


@pytest.mark.parametrize("sentence", MISCONCEPTIONS)
def test_each_misconception_is_met_by_name(sentence):
    prose = (cell.source for path in all_notebooks() for cell in nbformat.read(path, as_version=4).cells)
    assert any(same_words(sentence) in same_words(source) for source in prose)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_pages_beside_them_lead_somewhere(path):
    text = path.read_text("utf-8")
    found = [s for _, _, target in rules.LINK.findall(text) for s in broken_link(path.parent, target)]
    assert found == []


def test_each_term_stands_in_the_notebook_that_introduces_it():
    """A line of the glossary: **term**: what it means ([02](02_one_device_at_a_time.ipynb))."""
    lines = re.findall(r"^\*\*(.+?)\*\*.*?\]\((\d\d_\w+\.ipynb)\)\)?\s*$", text_of("GLOSSARY.md"), re.MULTILINE)
    assert len(lines) >= 30
    for term, name in lines:
        prose = " ".join(cell.source for cell in nbformat.read(FOLDER / name, as_version=4).cells)
        words = re.split(r", | \(", term)  # "data parallelism, DDP", "forward (F)"
        assert any(word.lower() in " ".join(prose.split()).lower() for word in words), f"{term} is not in {name}"


def test_the_instructors_page_knows_every_notebook():
    for path in all_notebooks():
        assert f"({path.name})" in text_of("INSTRUCTORS.md")


def text_of(name: str) -> str:
    return (FOLDER / name).read_text("utf-8")


# each rule bites


def code(source, *tags, outputs=(), **more):
    slide = {"slideshow": {"slide_type": "skip"}} if {"exercise", "live"} & set(tags) else {}
    measured = {"measured": "abc"} if "nbval-ignore-output" in tags else {}
    return v4.new_code_cell(
        source, outputs=list(outputs), metadata={**({"tags": list(tags)} if tags else {}), **slide, **measured, **more}
    )


def text(source, *tags, slide=None):
    kind = slide or ("slide" if source.startswith("#") else "skip" if tags else None)
    meta = {**({"tags": list(tags)} if tags else {}), **({"slideshow": {"slide_type": kind}} if kind else {})}
    return v4.new_markdown_cell(source, metadata=meta)


def said(words):
    return v4.new_output("execute_result", {"text/plain": words}, execution_count=1)


PICTURE = v4.new_output("display_data", {"image/png": "AAAA", "text/plain": "1F1B p=4 m=8: makespan 22"})
OPENING = """\
# 02 · One device at a time

**Time:** 25 minutes. **You need:** notebook 01.

After this page you can
- explain why p devices are as slow as one;
- compute the share of time in which they work."""
EXERCISE = 'def share(p):\n    ...\n\n\ncheck("share", share)'
SOLUTION = "<details>\n<summary>Solution</summary>\n\n```python\ndef share(p):\n    return 1 / p\n```\n\n</details>"


def good_cells():
    """A notebook that keeps to every rule, by the names of its cells."""
    return {
        "opening": text(OPENING),
        "first": code(FIRST_CODE, "nbval-ignore-output", outputs=[said("This machine: 2 cores")]),
        "question": text("## The question\n\nHow long? See the [glossary](GLOSSARY.md)."),
        "predict": code('mine = None\n\nreveal("time", mine)', "prediction", outputs=[said("Not attempted yet")]),
        "plot": code("ppedu.plot_timeline(t)", outputs=[PICTURE]),
        "live": code("ppedu.explore()", "live", outputs=[said("1F1B p=4 m=8: makespan 22")]),
        "caption": text("*Figure: predicted.*"),
        "run": code("run = ppedu.train()\nassert run\nrun", "nbval-ignore-output", outputs=[said("a run")]),
        "wrong": text("## What people get wrong\n\n**This.**"),
        "exercise": code(EXERCISE, "exercise", outputs=[said("Not attempted yet")]),
        "solution": text(SOLUTION, "solution"),
        "progress": code('progress("02")', "nbval-ignore-output", outputs=[said("02: 0 of 1")]),
        "end": text("## Three lines to remember\n\n1. One.\n2. Two.\n3. Three.\n\n**Next:** more."),
    }


def page(cells, path=FOLDER / "02_test.ipynb") -> Page:
    book = v4.new_notebook(cells=list(cells.values()), metadata={"kernelspec": dict(KERNELSPEC)})
    for name, cell in cells.items():
        cell.id = name
    for count, cell in enumerate((cell for cell in book.cells if cell.cell_type == "code"), 1):
        cell.setdefault("execution_count", None)
        cell.execution_count = count if cell.execution_count is None else cell.execution_count
    return Page(path, book, ("time",), ("share",))


def test_a_good_notebook_has_no_problems():
    assert problems(page(good_cells())) == []


def change(cell, field, value):
    """What breaks one cell: its source, its tags, its outputs, or anything of its metadata."""

    def breaks(cells):
        if field == "source":
            cells[cell].source = value if isinstance(value, str) else cells[cell].source.replace(*value)
        elif field == "outputs":
            cells[cell].outputs = copy.deepcopy(value)
        elif value is None:
            cells[cell].metadata.pop(field, None)
        else:
            cells[cell].metadata[field] = value

    return breaks


def without(*names):
    return lambda cells: [cells.pop(name) for name in names]


def moved_to_end(name):
    return lambda cells: cells.update({name: cells.pop(name)})


def asked_again(cells):
    cells["again"] = copy.deepcopy(cells["predict"])
    cells["again"].id = "again"


def uncounted(cells):
    cells["plot"].execution_count = 99


WIDGET = v4.new_output("display_data", {"application/vnd.jupyter.widget-view+json": {}, "text/plain": "w"})
ERROR = v4.new_output("error", ename="ValueError", evalue="no", traceback=["ValueError: no"])
BROKEN = [
    ("metadata", "plot", "has metadata ['vscode']", change("plot", "vscode", {})),
    ("metadata", "plot", "has slide type 'side'", change("plot", "slideshow", {"slide_type": "side"})),
    ("allowed_tags", "plot", "skip_me is no tag of ours", change("plot", "tags", ["skip_me"])),
    ("allowed_tags", "caption", "live is for code cells", change("caption", "tags", ["live"])),
    ("opening", "", 'begins with "# 02 · "', change("opening", "source", ("# 02", "# 03"))),
    ("opening", "", "says how long it takes", change("opening", "source", ("25 minutes", "a while"))),
    ("opening", "", "what one should know first", change("opening", "source", ("**You need:**", "Needs"))),
    ("opening", "", "lists two things or more", change("opening", "source", ("- explain", "explain"))),
    ("first_code", "", "not the one that all notebooks", change("first", "source", ("-q", ""))),
    ("order", "", 'no section "## What people get wrong"', change("wrong", "source", "## Wrong")),
    ("order", "", "in another order", moved_to_end("question")),
    ("order", "", "what comes next", change("end", "source", ("**Next:**", "Then"))),
    ("order", "", "three lines to remember are three", change("end", "source", ("3. Three.", ""))),
    ("links", "", "the link 77_none.ipynb leads nowhere", change("question", "source", "## The question [x](77_none.ipynb)")),
    ("links", "", "neither https nor relative", change("question", "source", "## The question [x](http://x.org)")),
    ("links", "", "leads to no heading", change("question", "source", "## The question [x](GLOSSARY.md#nothing-here)")),
    ("links", "question", "has no alt text", change("question", "source", "## The question ![](GLOSSARY.md)")),
    ("captions", "plot", "shows a picture", change("caption", "source", "Look.")),
    ("captions", "plot", "neither predicted nor measured", change("caption", "source", "*Figure: 1F1B.*")),
    ("live_twins", "live", "tag it live", change("live", "tags", [])),
    ("live_twins", "live", "the cell above it shows the static figure", change("plot", "outputs", [said("22")])),
    ("live_twins", "live", "its text is one line", change("live", "outputs", [said("a\nb")])),
    ("measured", "run", "asserts nothing about it", change("run", "source", "run = ppedu.train()\nrun")),
    ("measured", "run", "does not come from make notebooks", change("run", "measured", None)),
    ("asked", "", "the question 'time' is not asked here", without("predict")),
    ("asked", "", "the exercise 'other' is not declared", change("exercise", "source", ('"share"', '"other"'))),
    ("asked", "", "is asked twice", asked_again),
    ("asked", "predict", "tag it prediction", change("predict", "tags", [])),
    ("asked", "exercise", "is the last line of its cell", change("exercise", "source", EXERCISE + "\nprint()")),
    ("asked", "predict", "has no stub", change("predict", "source", ("None", "22"))),
    ("solutions", "exercise", "the cell below it is its solution", without("solution")),
    ("solutions", "solution", "no exercise stands above it", without("exercise")),
    ("solutions", "solution", "a solution is folded", change("solution", "source", "```python\n1 / p\n```")),
    ("solutions", "solution", "a solution is folded", change("solution", "source", ("```python", "```"))),
    ("outputs", "", "did not run from top to bottom", uncounted),
    ("outputs", "plot", "should show something", change("plot", "outputs", [])),
    ("outputs", "plot", "ended in ValueError", change("plot", "outputs", [ERROR])),
    ("outputs", "plot", "has output on stderr", change("plot", "outputs", [v4.new_output("stream", name="stderr", text="w")])),
    ("outputs", "plot", "holds the state of a widget", change("plot", "outputs", [WIDGET])),
    ("outputs", "plot", "has an empty output", change("plot", "outputs", [said("")])),
    ("nothing_local", "plot", "holds an absolute path", change("plot", "outputs", [said("in /ho" + "me/ada/x.py")])),
    ("nothing_local", "wrong", "holds an absolute path", change("wrong", "source", "## What people get wrong C:" + "\\x")),
    ("nothing_local", "plot", "holds an address", change("plot", "outputs", [said("<Axes at 0x7f00>")])),
    ("progress_line", "", "one cell shows how far the reader is", without("progress")),
    ("progress_line", "progress", "tag it nbval-ignore-output", change("progress", "tags", [])),
    ("short_cells", "caption", "has 303 words: at most", change("caption", "source", "*Figure: predicted " + "x " * 300 + "*")),
    ("short_cells", "plot", "has 41 lines: at most", change("plot", "source", "x = 1\n" * 40 + "x")),
    ("slides", "wrong", "begins a section", change("wrong", "slideshow", None)),
    ("slides", "exercise", "is no slide", change("exercise", "slideshow", None)),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "cell", "sentence", "breaks"), BROKEN, ids=[f"{b[0]}: {b[2]}" for b in BROKEN])
def test_each_rule_finds_what_breaks_it(rule, cell, sentence, breaks):
    cells = good_cells()
    breaks(cells)
    found = [problem for problem in problems(page(cells)) if problem.startswith(f"{rule}: ") and sentence in problem]
    assert len(found) == 1, problems(page(cells))
    assert f"cell {cell} " in found[0] if cell else True


def test_names_kernels_and_ids():
    assert problems(page(good_cells(), FOLDER / "02_Test.ipynb"))[0].startswith("name: ")
    book = page(good_cells())
    book.book.metadata = nbformat.from_dict({"kernelspec": {"name": "python3.11"}, "widgets": {}})
    book.book.cells[0].id = book.book.cells[2].id
    found = problems(book)
    assert any(problem.startswith("kernel: ") for problem in found)
    assert "metadata: the notebook has metadata ['widgets']: make notebooks leaves it out" in found
    assert "metadata: each cell needs an id of its own" in found


def test_every_rule_is_tried():
    tried = {rule for rule, *_ in BROKEN} | {"name", "kernel"}
    assert tried == {rule.__name__ for rule in rules.RULES}


# strict nbval bites

CLAIM = "print('another time')\nassert {}"


def only_predicted(path: Path) -> nbformat.NotebookNode:
    """A notebook up to its first cell that needs torch, so that it runs in seconds."""
    book = nbformat.read(path, as_version=4)
    last = next(i for i, c in enumerate(book.cells) if "ByteGPT" in c.source and c.cell_type == "code")
    book.cells = book.cells[:last]
    return book


def claiming(claim: str) -> nbformat.NotebookNode:
    """A notebook that measures, prints another time than the one stored, and asserts this."""
    cell = v4.new_code_cell(
        CLAIM.format(claim),
        execution_count=1,
        metadata={"tags": ["nbval-ignore-output"]},
        outputs=[v4.new_output("stream", text="one time")],
    )
    return v4.new_notebook(cells=[cell], metadata={"kernelspec": KERNELSPEC})


@pytest.fixture(scope="module")
def ran(root, tmp_path_factory) -> tuple[dict[str, list[str]], str]:
    """(notebook -> how each of its cells ended, all that was printed) of nbval as `make test` calls it."""
    folder = tmp_path_factory.mktemp("nbval")
    book = only_predicted(FOLDER / "00_start_here.ipynb")
    nbformat.write(book, folder / "as_it_is.ipynb")
    stored = (folder / "as_it_is.ipynb").read_text("utf-8")
    assert stored.count("makespan 22, bubble") > 0
    (folder / "changed.ipynb").write_text(stored.replace("makespan 22, bubble", "makespan 21, bubble"), "utf-8")
    nbformat.write(claiming("1 < 2"), folder / "holds.ipynb")
    nbformat.write(claiming("2 < 1"), folder / "fails.ipynb")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("MPLBACKEND", "PYTEST"))}
    env |= {"PYTHONPATH": str(root), "PPEDU_HOME": str(folder / "home")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
    ]
    done = subprocess.run(
        [*command, "--nbval", "--nbval-current-env", "--nbval-cell-timeout=60", str(folder)],
        env=env, cwd=folder, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    cells: dict[str, list[str]] = {}
    for name, result in re.findall(r"^(\w+)::ipynb::Cell \d+ (PASSED|FAILED)", done.stdout, re.MULTILINE):
        cells.setdefault(name, []).append(result)
    return cells, done.stdout


@pytest.mark.slow
def test_a_changed_number_in_a_notebook_fails(ran):
    """The stored text must come out again: as it is, it passes; with 22 made 21 in one cell, nbval fails for that cell."""
    cells, said = ran
    assert len(cells["as_it_is"]) >= 4, said
    assert set(cells["as_it_is"]) == {"PASSED"}
    assert len(cells["changed"]) == len(cells["as_it_is"])
    assert cells["changed"].count("FAILED") == 1
    assert "Cell outputs differ" in said
    assert "makespan 21, bubble" in said
    assert "makespan 22, bubble" in said


@pytest.mark.slow
@pytest.mark.parametrize(("name", "result"), [("holds", "PASSED"), ("fails", "FAILED")])
def test_a_measured_cell_may_print_anything_but_its_claim_must_hold(ran, name, result):
    assert ran[0][name] == [result]
