"""The core knows nothing of torch, imports point one way, and `import ppedu` is light."""

from __future__ import annotations

import ast
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# What each room may import of ppedu. The library knows nothing of the course, and everything else stands on `core`.
MAY_IMPORT: dict[str, set[str]] = {
    "core": {"core"},
    "schedules": {"core", "schedules"},
    "theory": {"core", "theory"},
    "optimizer": {"core", "schedules", "optimizer"},
    "picture": {"core", "schedules", "theory", "picture", "runtime"},
    "runtime": {"core", "runtime"},
    "doctor": {"__init__", "doctor", "runtime"},  # the public names, as a user has them; and a warm start of ranks
    "course": {
        "__init__",
        "core",
        "schedules",
        "theory",
        "optimizer",
        "picture",
        "runtime",
        "doctor",
        "course",
    },  # all of it
}
TOP = {"__init__", "__main__"}  # they put it all together
TORCH_SIDE = ("runtime", "doctor", "course.job", "course.models", "course.data", "course.parallelisms")
HEAVY = {"torch", "matplotlib", "numpy"}
LOADED = f"""
import sys
print(*sorted({{name.partition('.')[0] for name in sys.modules}} & {HEAVY!r}))
"""


def modules(package: Path) -> Iterator[tuple[str, Path]]:
    """(dotted name below ppedu, file) of every module."""
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        yield ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts), path


def imported(path: Path) -> set[str]:
    """The dotted names that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} line {node.lineno}: write the import in full"
            module = node.module or ""
            found.update(f"ppedu.{alias.name}" for alias in node.names) if module == "ppedu" else found.add(module)
    return found


def wrong_imports(package: Path) -> list[str]:
    """What the two rules forbid: imports against the direction, and torch outside the runtime."""
    wrong = []
    for name, path in modules(package):
        unit = name.partition(".")[0]
        names = imported(path)
        if "torch" in {n.partition(".")[0] for n in names} and not of_torch_side(name):
            wrong.append(f"{name} imports torch")
        if unit in TOP:
            continue
        if unit not in MAY_IMPORT:
            wrong.append(f"{name} is new: say in MAY_IMPORT (tests/project/test_imports.py) what it may import")
            continue
        own = {n.split(".")[1] if "." in n else "__init__" for n in names if n.partition(".")[0] == "ppedu"}
        wrong += [f"{name} imports {other}" for other in sorted(own - MAY_IMPORT[unit])]
    return wrong


FILE, FUNCTION = 300, 50  # lines
LONGER = {  # what may be longer, and why
    "course.exercises.notebooks.nb05": "one page's questions, exercises and answers stay together",
    "course.exercises.notebooks.nb07": "as above",
    "course.exercises.notebooks.nb08": "as above",
    "course.exercises.notebooks.nb09": "as above",
    "course.exercises.notebooks.nb11": "as above",
    "runtime.rank.interpreter": "one loop over a program, with what each of its instructions does",
    "picture.live.explore": "most of it says what each argument means",
    "picture.scene.scene": "one picture, item by item",
    "runtime.train.train": "most of it says what each argument means",
}


def too_long(package: Path) -> set[str]:
    """Modules and functions over these numbers of lines, by their dotted names."""
    found = set()
    for name, path in modules(package):
        text = path.read_text("utf-8")
        found |= {name} if len(text.splitlines()) > FILE else set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= FUNCTION:
                found.add(f"{name}.{node.name}")
    return found


def private_imports(package: Path) -> list[str]:
    """The names with an underscore that a module takes from another."""
    return [
        f"{name} imports {alias.name} of {node.module}"
        for name, path in modules(package)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name.startswith("_") and alias.name != "__version__" and (node.module or "").startswith("ppedu")
    ]


def of_torch_side(name: str) -> bool:
    return f"{name}.".startswith(tuple(f"{side}." for side in TORCH_SIDE))


def core(package: Path) -> list[str]:
    """The modules that must import without torch, matplotlib and numpy."""
    names = [name for name, _ in modules(package) if name not in TOP]
    return [name for name in names if not (of_torch_side(name) or name.startswith("picture.paper"))]


def test_import_ppedu_is_light(fresh_python):
    assert fresh_python("import ppedu" + LOADED).split() == []


def test_core_imports_without_torch(root, fresh_python):
    names = core(root / "ppedu")
    assert {"core.schedule", "schedules", "course.puzzle.widget"} <= set(names)
    imports = "".join(f"import ppedu.{name}\n" for name in names)
    assert fresh_python(imports + LOADED).split() == []


def test_pictures_need_no_torch(fresh_python):
    assert "torch" not in fresh_python("import ppedu.picture.paper" + LOADED).split()


@pytest.mark.parametrize("heavy", sorted(HEAVY))
def test_the_tests_above_can_fail(root, fresh_python, tmp_path, heavy):
    """A core that does import a heavy package is caught: a copy of ppedu with one line more, and a stand-in for it."""
    shutil.copytree(root / "ppedu", tmp_path / "ppedu", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / f"{heavy}.py").write_text("")
    with (tmp_path / "ppedu/core/schedule.py").open("a") as file:
        file.write(f"\nimport {heavy}\n")
    # a new interpreter looks into its folder first
    found = fresh_python("import ppedu.core.schedule" + LOADED, cwd=tmp_path, env={"PYTHONPATH": ""})
    assert found.split() == [heavy]


def test_imports_point_one_way(root):
    assert wrong_imports(root / "ppedu") == []


@pytest.mark.parametrize(
    ("name", "line", "complaint"),
    [
        ("core", "from ppedu.schedules import naive", "core imports schedules"),
        ("core", "import ppedu", "core imports __init__"),
        ("schedules", "def f():\n    from ppedu import runtime", "schedules imports runtime"),
        ("runtime", "from ppedu.course import train_course", "runtime imports course"),
        ("picture", "from ppedu.course.job import train_course", "picture imports course"),
        ("optimizer", "from torch import nn", "optimizer imports torch"),
        ("novelty", "", "novelty is new: say in MAY_IMPORT (tests/project/test_imports.py) what it may import"),
    ],
)
def test_a_wrong_import_is_found(tmp_path, name, line, complaint):
    (tmp_path / f"{name}.py").write_text(line)
    assert wrong_imports(tmp_path) == [complaint]


def test_files_and_functions_can_be_seen_at_once(root):
    assert too_long(root / "ppedu") <= LONGER.keys()


def test_what_is_too_long_is_found(tmp_path):
    lines = "def f():\n" + "    pass\n" * FUNCTION
    (tmp_path / "a.py").write_text(lines)
    (tmp_path / "b.py").write_text(lines.replace("    pass\n", "", 1) + "\n" * FILE)
    assert too_long(tmp_path) == {"a.f", "b"}


def test_what_is_private_stays_in_its_module(root):
    assert private_imports(root / "ppedu") == []


def test_a_private_import_is_found(tmp_path):
    (tmp_path / "a.py").write_text("def f():\n    from ppedu.core.text import parse_entry, _word")
    assert private_imports(tmp_path) == ["a imports _word of ppedu.core.text"]


@pytest.mark.slow
def test_the_library_never_loads_the_course(root, fresh_python):
    """Not even where it looks a module up by its name, which no list of imports shows."""
    names = [name for name, _ in modules(root / "ppedu") if name.partition(".")[0] not in {*TOP, "course"}]
    assert {"runtime.train", "picture.live", "doctor"} <= set(names)
    imports = "".join(f"import ppedu.{name}\n" for name in names if name != "doctor.__main__")
    assert (
        fresh_python(f"{imports}import sys; print(*[n for n in sys.modules if n.startswith('ppedu.course')])").split()
        == []
    )


@pytest.mark.parametrize("part", ["exercises", "puzzle"])
def test_who_asks_and_plays_starts_light(fresh_python, part):
    code = f"import sys, ppedu.course.{part}; print(*{{'torch', 'matplotlib', 'multiprocessing'}} & sys.modules.keys())"
    assert fresh_python(code).split() == []


@pytest.mark.timing
def test_import_takes_no_time(root):
    """`import ppedu` takes at most 0.15 s more than nothing at all: the medians of runs in turn."""

    def seconds(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, timeout=30, cwd=root)
        return time.perf_counter() - start

    seconds("import ppedu")  # writes the byte code
    pairs = [(seconds("pass"), seconds("import ppedu")) for _ in range(15)]
    more = statistics.median(with_it for _, with_it in pairs) - statistics.median(without for without, _ in pairs)
    assert more <= 0.15, f"import ppedu takes {more * 1000:.0f} ms"
