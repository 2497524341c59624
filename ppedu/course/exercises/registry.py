"""Finds what each notebook asks: the modules `nbNN` beside this one, imported when they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from ppedu.course.exercises.ask import Exercise, Question


@dataclass(frozen=True)
class Asked:
    """What one notebook asks, in the order in which it does."""

    notebook: str
    questions: tuple[Question, ...]
    exercises: tuple[Exercise, ...]


@cache
def notebooks() -> tuple[str, ...]:
    """The numbers of the notebooks that ask something: "00", "01", ..."""
    package = import_module("ppedu.course.exercises.notebooks")
    names = sorted(module.name for module in iter_modules(package.__path__))
    return tuple(name[2:] for name in names if name.startswith("nb") and name[2:].isdigit())


@cache
def asked(notebook: str) -> Asked:
    """What a notebook asks. Raises ValueError where there is no such notebook."""
    if notebook not in notebooks():
        raise ValueError(f"there is no notebook {notebook!r}: there are {', '.join(notebooks())}")
    module = import_module(f"ppedu.course.exercises.notebooks.nb{notebook}")
    return Asked(notebook, tuple(getattr(module, "QUESTIONS", ())), tuple(getattr(module, "EXERCISES", ())))


def question(name: str) -> tuple[str, Question]:
    """(notebook, question) of an id. Raises ValueError for one that no notebook asks."""
    found = {q.id: (number, q) for number in notebooks() for q in asked(number).questions}
    if name not in found:
        raise ValueError(_unknown(name, "question", list(found)))
    return found[name]


def exercise(name: str) -> tuple[str, Exercise]:
    """(notebook, exercise) of an id. Raises ValueError for one that no notebook has."""
    found = {e.id: (number, e) for number in notebooks() for e in asked(number).exercises}
    if name not in found:
        raise ValueError(_unknown(name, "exercise", list(found)))
    return found[name]


def _unknown(name: object, kind: str, known: list[str]) -> str:
    return f"no notebook has the {kind} {name!r}: there are {', '.join(map(repr, known)) or 'none'}"
