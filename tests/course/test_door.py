"""`ppedu.course` is the door to the course: all that notebooks call stands there, and opening it costs nothing."""

from __future__ import annotations

import pytest

import ppedu.course

HEAVY = ("torch", "matplotlib", "multiprocessing", "numpy", "IPython", "anywidget")
ROOMS = """
import sys
from importlib import import_module
from pkgutil import walk_packages
for room in {rooms!r}:
    package = import_module("ppedu.course." + room)
    for module in walk_packages(package.__path__, package.__name__ + "."):
        import_module(module.name)
print(*(name for name in {heavy!r} if name in sys.modules))
"""


def test_the_door_is_light(fresh_python):
    code = f"import sys, ppedu.course\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    assert fresh_python(code).split() == []


def test_what_asks_and_checks_needs_neither_torch_nor_matplotlib_nor_processes(fresh_python):
    code = ROOMS.format(rooms=("exercises", "scoreboard"), heavy=HEAVY)
    assert fresh_python(code).split() == []


def test_the_puzzle_needs_neither_torch_nor_matplotlib_nor_processes(fresh_python):
    code = ROOMS.format(rooms=("puzzle",), heavy=("torch", "matplotlib", "multiprocessing", "numpy", "anywidget"))
    assert fresh_python(code).split() == ["anywidget"]  # it is a widget: so the check can find something


@pytest.mark.parametrize(
    "first", ["import ppedu.course.puzzle.levels", "import ppedu.course.puzzle.widget", "import sys"]
)
def test_names_are_what_they_are_whatever_was_imported_before(fresh_python, first):
    code = f"{first}\nfrom ppedu.course import puzzle, score, progress\nprint(callable(puzzle), callable(score), callable(progress))"
    assert fresh_python(code).split() == ["True"] * 3


def test_every_name_is_there():
    for name in ppedu.course.__all__:
        assert getattr(ppedu.course, name) is not None
    with pytest.raises(AttributeError, match=r"module 'ppedu\.course' has no attribute 'chek'"):
        ppedu.course.chek  # noqa: B018
