"""`make notebooks` keeps what was measured, `make handout` keeps solutions back, `make slides` needs no network."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
from nbformat import v4
from notebook_files import FOLDER, all_notebooks, tags
from notebook_rules import Page, links, problems, read

from ppedu.course.exercises import registry


@pytest.fixture(scope="module")
def script(root):
    """The scripts as modules, by name."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"{name}_script", root / f"scripts/{name}.py")
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def measuring(path: Path, source: str = "import time; print(time.time_ns())") -> Path:
    cells = [v4.new_code_cell("print('same')"), v4.new_code_cell(source, metadata={"tags": ["nbval-ignore-output"]})]
    nbformat.write(v4.new_notebook(cells=cells), path)
    return path


def outputs(path: Path) -> list[str]:
    return [cell.outputs[0].text for cell in nbformat.read(path, as_version=4).cells]


@pytest.mark.slow
def test_what_was_measured_stays_until_it_is_asked_for_or_its_code_changes(script, tmp_path):
    notebooks, path = script("notebooks"), measuring(tmp_path / "00_test.ipynb")
    notebooks.run(path)
    first, stored = path.read_bytes(), outputs(path)
    notebooks.run(path)
    assert path.read_bytes() == first
    notebooks.run(path, measure=True)
    again = outputs(path)
    assert (again[0], again[1] != stored[1]) == ("same\n", True)
    book = nbformat.read(path, as_version=4)
    book.cells[0].source = "print('other')"  # stands above: what is measured may depend on it
    nbformat.write(book, path)
    notebooks.run(path)
    changed = outputs(path)
    assert (changed[0], changed[1] != again[1]) == ("other\n", True)
    assert sorted(os.listdir(tmp_path)) == ["00_test.ipynb"]


@pytest.mark.slow
def test_a_cell_that_measures_runs_even_where_its_output_stays(script, tmp_path, capsys):
    flag = tmp_path / "flag"
    path = measuring(tmp_path / "00_test.ipynb", f"import os; assert not os.path.exists({flag.name!r}); print(1)")
    notebooks = script("notebooks")
    notebooks.run(path)
    before = path.read_bytes()
    flag.touch()
    assert notebooks.main([str(path)]) == 1
    assert "AssertionError" in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.slow
def test_noise_is_left_out_and_the_reader_is_nobody(script, tmp_path):
    path = tmp_path / "00_test.ipynb"
    sources = [
        "import sys; print('seen'); print('noise', file=sys.stderr)",
        "from tqdm.auto import tqdm\nfor _ in tqdm(range(2)): pass\nprint('done')",
        "import os; os.environ.get('MPLBACKEND', 'inline')[-6:], len(os.listdir(os.environ['PPEDU_HOME']))",
        "1 / 0",
    ]
    cells = [v4.new_code_cell(source) for source in sources]
    cells[-1].metadata["tags"] = ["raises-exception"]
    nbformat.write(v4.new_notebook(cells=cells), path)
    script("notebooks").run(path)
    noisy, bar, home, error = nbformat.read(path, as_version=4).cells
    assert [o.text for o in noisy.outputs] == ["seen\n"]
    assert [o.text for o in bar.outputs] == ["done\n"]
    assert home.outputs[0].data["text/plain"] == "('inline', 0)"
    assert error.outputs[0].traceback == ["ZeroDivisionError: division by zero"]


@pytest.mark.parametrize(
    ("said", "noise"),
    [
        ("1F1B p=4 m=8:   0%|          | 0/5 [00:00<?, ?step/s]", True),
        ("100%|██████████| 5/5 [00:03<00:00,  1.5step/s]", True),
        ("1F1B p=4 m=8: makespan 22, bubble 27.3 %, in flight 4 3 2 1", False),
        ("| a | 25 % | b |", False),
    ],
)
def test_progress_bars_are_told_from_results(script, said, noise):
    assert script("notebooks").is_noise(v4.new_output("display_data", {"text/plain": said})) is noise


# handout


@pytest.fixture
def handout(script, tmp_path) -> Path:
    script("handout").write(all_notebooks(), tmp_path / "handout")
    return tmp_path / "handout"


def test_a_handout_has_everything_but_the_solutions(handout):
    assert sorted(os.listdir(handout)) == sorted([p.name for p in all_notebooks()] + ["GLOSSARY.md", "REFERENCES.md"])
    for path in all_notebooks():
        kept, given = nbformat.read(path, as_version=4).cells, nbformat.read(handout / path.name, as_version=4).cells
        assert [cell.id for cell in given] == [cell.id for cell in kept if "solution" not in tags(cell)]
        assert "<summary>Solution" not in (handout / path.name).read_text("utf-8")


@pytest.mark.slow
def test_a_handout_breaks_no_rule_but_that_of_solutions(handout):
    for path in sorted(handout.glob("*.ipynb")):
        asked = registry.asked(path.name[:2])
        page = read(path, tuple(q.id for q in asked.questions), tuple(e.id for e in asked.exercises))
        assert [problem for problem in problems(page) if not problem.startswith("solutions: ")] == []


def test_a_link_that_a_handout_lacks_is_found(handout):
    path = handout / all_notebooks()[0].name
    book = nbformat.read(path, as_version=4)
    book.cells.append(v4.new_markdown_cell("[for teachers](INSTRUCTORS.md)"))
    assert list(links(Page(FOLDER / path.name, book))) == []
    assert list(links(Page(path, book))) == ["the link INSTRUCTORS.md leads nowhere"]


def test_a_handout_is_not_written_over_the_notebooks(script, tmp_path, capsys):
    path = tmp_path / "00_test.ipynb"
    shutil.copy(all_notebooks()[0], path)
    before = path.read_bytes()
    assert script("handout").main([str(path), "--to", str(tmp_path)]) == 1
    assert "would be written over itself" in capsys.readouterr().err
    assert path.read_bytes() == before


# slides


def talk(path: Path) -> Path:
    """A notebook with one cell of each kind."""

    def cell(new, source, slide=None, **more):
        return new(source, metadata={"slideshow": {"slide_type": slide}} if slide else {}, **more)

    picture = v4.new_output("display_data", {"image/png": "AAAA", "text/plain": 'makespan 22 "x"'})
    cells = [
        cell(v4.new_markdown_cell, "# 00 · A talk", "slide"),
        cell(v4.new_code_cell, "import secret", "skip"),
        cell(v4.new_markdown_cell, "## One & two", "slide"),
        cell(v4.new_code_cell, "plot(t)", outputs=[picture]),
        cell(v4.new_markdown_cell, f"*Figure: predicted.*\n\n{'More about it. ' * 15}"),
        cell(v4.new_markdown_cell, "later", "fragment"),
        cell(v4.new_markdown_cell, "say this", "notes"),
        cell(v4.new_markdown_cell, "not this", "skip"),
    ]
    nbformat.write(v4.new_notebook(cells=cells), path)
    return path


def sections(html: str) -> list[str]:
    return [re.sub(r"<[^>]+>|\s+", " ", part) for part in re.findall(r"<section>(.*?)</section>", html, re.DOTALL)]


@pytest.mark.slow
def test_slides_follow_the_slide_types_and_pictures_stand_alone(script, tmp_path):
    html = script("slides").export(talk(tmp_path / "00_talk.ipynb"), tmp_path / "out").read_text("utf-8")
    first, second, picture, rest = sections(html)
    assert "A talk" in first
    assert "One" in second
    assert "plot" in second
    assert "Figure: predicted." in picture
    assert "plot" not in picture
    assert "More about it." in rest
    assert re.search(r'class="fragment">(?:(?!</section>).)*later', html, re.DOTALL)
    assert re.search(r'class="notes">(?:(?!</section>).)*say this', html, re.DOTALL)
    assert "secret" not in html
    assert "not this" not in html
    assert re.search(r"""alt=(["'])makespan 22 (&quot;|&#34;|")x""", html)


@pytest.fixture(scope="module")
def exported(script, tmp_path_factory) -> dict[str, Path]:
    """All notebooks as slides, by the name of the notebook."""
    folder = tmp_path_factory.mktemp("slides")
    return {path.stem: script("slides").export(path, folder) for path in all_notebooks()}


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in all_notebooks()])
def test_slides_need_no_network(exported, name):
    html = exported[name].read_text("utf-8")
    assert len(sections(html)) >= 8
    assert not re.search(r'(?:src|href)="(?!data:|https://|#|[\w./-]+\.(?:ipynb|md))', html)
    assert not re.search(r"<(?:script|img|iframe)[^>]+src=\"(?!data:)|<link|@import|url\(", html)


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no browser here: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in all_notebooks()])
def test_slides_fit_and_are_legible(browser, exported, name):
    """At 1280 x 720 nothing is cut off, and no text is set below seven tenths of its wished 27 pixels."""
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(exported[name].as_uri())
    page.wait_for_function("document.body.dataset.ready")
    found = page.evaluate(
        "[...document.querySelectorAll('section')].map(s => [s.textContent.trim().slice(0, 60), s.dataset.fit, s.dataset.overflow])"
    )
    page.keyboard.press("End")
    last = page.evaluate("[...document.querySelectorAll('section')].findIndex(s => s.classList.contains('here'))")
    for key in ("ArrowRight", "Home", " "):
        page.keyboard.press(key)
    page.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    small = [(said, size, over) for said, size, over in found if float(size) < 0.7 or over]
    assert small == []
    assert last == len(found) - 1
