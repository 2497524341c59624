"""The public names are these, each of them works, and none comes or goes unnoticed."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

import ppedu

PUBLIC = [
    "Action",
    "Costs",
    "Kind",
    "Optimized",
    "Overlap",
    "Run",
    "RunError",
    "RunStopped",
    "SCHEDULES",
    "Schedule",
    "ScheduleError",
    "Span",
    "Timeline",
    "Violation",
    "__version__",
    "dependencies",
    "dependents",
    "dualpipe",
    "dualpipev",
    "explore",
    "explore_compare",
    "forward_only",
    "gpipe",
    "interleaved",
    "looped_bfs",
    "lower_bound",
    "machine",
    "naive",
    "one_f_one_b",
    "optimize",
    "plot_compare",
    "plot_memory",
    "plot_timeline",
    "simulate",
    "split",
    "theory",
    "to_torch",
    "train",
    "violations",
    "zb_h1",
    "zb_h2",
    "zb_v",
]


def test_the_names_are_these():
    assert sorted(ppedu.__all__) == PUBLIC


def test_dir_lists_them(fresh_python):
    """Completion in a notebook sees every name, before any was used."""
    listed = fresh_python("import ppedu; print(*dir(ppedu))").split()
    assert set(PUBLIC) <= set(listed)
    assert listed == sorted(listed)


# The names that need torch take seconds on their first use.
NEED_TORCH = {name for name, module in ppedu._LATE.items() if module.startswith("runtime")}
ONE_BY_ONE = [pytest.param(name, marks=pytest.mark.slow if name in NEED_TORCH else ()) for name in PUBLIC]


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_each_is_there_and_explained(name):
    value = getattr(ppedu, name)
    if callable(value):
        assert value.__doc__, f"{name} has no docstring"
        assert value.__module__.startswith("ppedu.")
        assert pickle.loads(pickle.dumps(value)) is value  # so it can be sent to a rank


@pytest.mark.slow
def test_star_import(fresh_python):
    names = fresh_python("from ppedu import *; print(*sorted(set(globals())))").split()
    assert set(PUBLIC) <= set(names)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'ppedu' has no attribute 'two_f_two_b'"):
        ppedu.two_f_two_b  # noqa: B018


def type_checking_imports(path: Path) -> dict[str, str]:
    """name -> module of the imports below `if TYPE_CHECKING:`."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for inner in node.body:
                if isinstance(inner, ast.ImportFrom):
                    found.update((alias.asname or alias.name, inner.module or "") for alias in inner.names)
    return found


def test_type_checkers_see_the_names_that_come_late(root):
    late = {name: f"ppedu.{module}" for name, module in ppedu._LATE.items()}
    assert type_checking_imports(root / "ppedu/__init__.py") == late | {"theory": "ppedu"}


def test_theory_is_there_without_an_import(fresh_python):
    assert fresh_python("import ppedu; print(ppedu.theory.makespan(p=4, m=8))") == "22.0\n"


def test_a_builder_in_the_registry_is_a_public_name():
    assert {build.__name__ for build in ppedu.SCHEDULES.values()} < set(ppedu.__all__)
