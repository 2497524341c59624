"""`make notebooks` writes what a reader sees and nothing else, and `make setup` says in a sentence what is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from nbformat import v4


@pytest.fixture(scope="module")
def notebooks(root) -> ModuleType:
    """scripts/notebooks.py as a module."""
    spec = importlib.util.spec_from_file_location("notebooks_script", root / "scripts/notebooks.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tidy_leaves_what_a_reader_sees(notebooks):
    view = {notebooks.WIDGET_VIEW: {"model_id": "1"}, "text/plain": "100%"}
    cell = v4.new_code_cell("1", execution_count=3, outputs=[v4.new_output("display_data", data=view)])
    cell.metadata.update({"tags": ["nbval-ignore-output"], "execution": {"iopub.execute_input": "now"}, "vscode": {}})
    book = v4.new_notebook(cells=[v4.new_markdown_cell("text"), cell], metadata={"widgets": {}, "colab": {}})
    notebooks.tidy(book)
    assert set(book.metadata) == {"kernelspec", "language_info"}
    assert book.cells[1].metadata == {"tags": ["nbval-ignore-output"]}
    assert book.cells[1].execution_count == 3
    assert book.cells[1].outputs[0].data == {"text/plain": "100%"}
    assert book.cells[0].source == "text"


@pytest.mark.slow
def test_a_notebook_is_run_twice_to_the_same_bytes(notebooks, tmp_path):
    path = tmp_path / "00_test.ipynb"
    cells = [v4.new_code_cell("import os; print(os.path.basename(os.getcwd()))\nprint('ü')"), v4.new_code_cell("6 * 7")]
    nbformat.write(v4.new_notebook(cells=cells), path)
    notebooks.run(path)
    first = path.read_bytes()
    book = nbformat.read(path, as_version=4)
    assert [cell.execution_count for cell in book.cells] == [1, 2]
    assert book.cells[0].outputs[0].text == f"{tmp_path.name}\nü\n"
    assert book.cells[1].outputs[0].data["text/plain"] == "42"
    notebooks.run(path)
    assert path.read_bytes() == first


@pytest.mark.slow
def test_a_failing_notebook_is_left_alone(notebooks, tmp_path, capsys):
    path = tmp_path / "00_test.ipynb"
    nbformat.write(v4.new_notebook(cells=[v4.new_code_cell("1 / 0")]), path)
    before = path.read_bytes()
    assert notebooks.main([str(path)]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert path.read_bytes() == before


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(root, tmp_path) -> Path:
    """A folder in which nothing was set up yet."""
    folder = tmp_path / "a checkout"  # with a space, as people have them
    (folder / "scripts").mkdir(parents=True)
    for name in ("scripts/setup.sh", "pyproject.toml", "constraints.txt", "Makefile"):
        shutil.copy(root / name, folder / name)
    return folder


def setup(folder: Path, **env: str) -> tuple[int, str]:
    """The exit status of scripts/setup.sh and all that it printed."""
    clean = {key: value for key, value in os.environ.items() if key not in {"PYTHON", "PIP_ARGS"}}
    done = subprocess.run(
        ["sh", "scripts/setup.sh"],
        cwd=folder,
        env={**clean, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


OLD = 'case "$2" in *version_info\\ \\<*) exit 1;; *) echo 3.9.2;; esac'
NO_VENV = f'case "$2" in *ensurepip*) exit 1;; *) exec "{sys.executable}" "$@";; esac'


@pytest.mark.skipif(os.name == "nt", reason="make is for Unix; the README has the lines for Windows")
@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        (None, "there is no {python} here, and ppedu needs Python 3.10 or newer: install it (Debian"),
        ("exit 1", "{python} does not start, and ppedu needs Python 3.10 or newer: install it (Debian"),
        (OLD, "{python} is Python 3.9.2, and ppedu needs 3.10 or newer: install it (Debian"),
        (NO_VENV, "comes without its venv module: install it (Debian, Ubuntu: sudo apt install python3."),
    ],
)
def test_what_is_missing_gets_a_sentence(checkout, tmp_path, python, sentence):
    path = tmp_path / "python-under-test"
    if python is not None:
        script(path, python)
    status, printed = setup(checkout, PYTHON=str(path))
    assert status == 1
    assert printed.startswith("ppedu: ")
    assert sentence.format(python=path) in printed
    assert len(printed.splitlines()) == 1
    assert not (checkout / ".venv").exists()


# Stands for Python: makes a .venv whose pip only writes down how it was called, and fails or hangs up where told.
PRETENDER = """
case "$*" in
    "-m venv "*) mkdir -p .venv/bin && cp "$0" .venv/bin/python && echo "VIRTUAL_ENV='$(pwd -P)/.venv'" > .venv/bin/activate
        echo venv >> calls;;
    "-m pip "*) echo pip >> calls; if [ -e interrupt ]; then kill -INT $PPID; fi; if [ -e fail ]; then exit 1; fi;;
    *print*) echo 3.11.0;;
esac
"""


@pytest.fixture
def pretender(tmp_path) -> str:
    return str(script(tmp_path / "python3", PRETENDER))


def calls(folder: Path) -> list[str]:
    """What was called since the last time one asked."""
    path = folder / "calls"
    found = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return found


def test_set_up_once_then_at_once(checkout, pretender):
    assert setup(checkout, PYTHON=pretender)[0] == 0
    assert calls(checkout) == ["venv", "pip"]
    assert setup(checkout, PYTHON=pretender) == (0, "")
    assert setup(checkout) == (0, "")  # what is there serves where no Python is asked for
    assert calls(checkout) == []


def test_a_changed_pyproject_installs_again(checkout, pretender):
    setup(checkout, PYTHON=pretender)
    for name in ("pyproject.toml", "constraints.txt"):
        calls(checkout)
        with (checkout / name).open("a") as file:
            file.write("# changed\n")
        assert setup(checkout)[0] == 0
        assert calls(checkout) == ["pip"]
        assert setup(checkout) == (0, "")


def test_an_interrupted_set_up_starts_afresh(checkout, pretender):
    (checkout / "interrupt").touch()
    assert setup(checkout, PYTHON=pretender)[0] in (130, -2)
    assert calls(checkout) == ["venv", "pip"]
    (checkout / "interrupt").unlink()
    assert setup(checkout, PYTHON=pretender)[0] == 0
    assert calls(checkout) == ["venv", "pip"]
    assert setup(checkout) == (0, "")


def test_a_failed_set_up_says_so_and_goes_on(checkout, pretender):
    (checkout / "fail").touch()
    status, printed = setup(checkout, PYTHON=pretender)
    assert status == 1
    assert "pip could not install what ppedu needs, for the reason above" in printed
    (checkout / "fail").unlink()
    calls(checkout)
    assert setup(checkout)[0] == 0  # pip had ended by itself, so its .venv is whole
    assert calls(checkout) == ["pip"]


def test_a_moved_checkout_or_another_python_starts_afresh(checkout, pretender, tmp_path):
    setup(checkout, PYTHON=pretender)
    moved = checkout.rename(tmp_path / "moved")
    calls(moved)
    assert setup(moved, PYTHON=pretender)[0] == 0
    assert calls(moved) == ["venv", "pip"]
    other = shutil.copy(pretender, tmp_path / "python3.99")
    assert setup(moved, PYTHON=str(other))[0] == 0
    assert calls(moved) == ["venv", "pip"]
    (moved / ".venv/bin/python").unlink()  # its Python was removed from the machine
    assert setup(moved, PYTHON=pretender)[0] == 0
    assert calls(moved) == ["venv", "pip"]
