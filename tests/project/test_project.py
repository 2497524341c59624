"""The files around the code say the same things, and nothing that only one machine knows."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import ppedu

CONDA_NAMES = {"torch": "pytorch", "playwright": "playwright-python", "ortools": "ortools-python"}
EXTRAS_FOR_CONDA = ("lab", "test", "optimize")


# pyproject.toml is read as text, for Python 3.10 has no tomllib: a list is what stands between `name = [` and `]`.
def toml_lines(text: str, section: str, name: str) -> list[str]:
    """The lines of the list `name` in [section], as they stand there."""
    match = re.search(rf"^\[{re.escape(section)}\]\n(.*?)(?=^\[|\Z)", text, re.MULTILINE | re.DOTALL)
    assert match, f"no [{section}]"
    found = re.search(rf"^{re.escape(name)} = \[\n(.*?)^\]", match[1], re.MULTILINE | re.DOTALL)
    assert found, f"no {name} in [{section}]"
    return [line.strip() for line in found[1].splitlines() if line.strip()]


def with_reason(lines: list[str], pattern: str) -> dict[str, Requirement]:
    """The requirements of a list, by name; each line must end in a comment."""
    found = {}
    for line in lines:
        match = re.fullmatch(pattern + r"\s+# (\S.+)", line)
        assert match, f"one requirement a line, with its reason: {line!r}"
        requirement = Requirement(match[1])
        found[requirement.name] = requirement
    return found


def declared(root: Path, *extras: str) -> dict[str, Requirement]:
    text = (root / "pyproject.toml").read_text("utf-8")
    lines = toml_lines(text, "project", "dependencies")
    for extra in extras:
        lines += toml_lines(text, "project.optional-dependencies", extra)
    return with_reason(lines, r'"([^"]+)",')


def conda_requirements(root: Path) -> dict[str, Requirement]:
    text = (root / "environment.yml").read_text("utf-8")
    match = re.search(r"^dependencies:\n(.*?)^  - pip:", text, re.MULTILINE | re.DOTALL)
    assert match
    lines = [line.strip() for line in match[1].splitlines() if line.strip()]
    return with_reason(lines, r"- (.+?)")


def test_environment_and_pyproject_ask_for_the_same(root):
    pyproject = {CONDA_NAMES.get(n, n): r.specifier for n, r in declared(root, *EXTRAS_FOR_CONDA).items()}
    conda = {name: r.specifier for name, r in conda_requirements(root).items()}
    python, _ = conda.pop("python"), conda.pop("pip")
    requires = re.search(r'^requires-python = "(.+)"', (root / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert requires
    assert str(python) == requires[1]
    assert conda == pyproject


def test_environment_uses_one_channel(root):
    text = (root / "environment.yml").read_text("utf-8")
    channels = re.search(r"^channels:\n((?:  - .*\n)+)", text, re.MULTILINE)
    assert channels
    assert [line.split()[1] for line in channels[1].splitlines()] == ["conda-forge", "nodefaults"]
    pip = re.search(r"^  - pip:.*\n((?:      - .*\n?)+)", text, re.MULTILINE)
    assert pip, "ppedu itself comes from this folder, and nothing else from pip"
    assert [line.split("#")[0].split() for line in pip[1].splitlines()] == [["-", "-e", "."]]


def test_constraints_fit_what_is_declared(root):
    pins = {}
    for line in (root / "constraints.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            assert re.fullmatch(r'[a-z0-9-]+==[0-9a-z.]+( ; python_(full_)?version >= "[0-9.]+")?', line), line
            pin = Requirement(line)
            pins[pin.name] = next(iter(pin.specifier)).version
    for name, requirement in declared(root, "lab", "test", "dev").items():
        pinned = pins[canonicalize_name(name)]
        assert requirement.specifier.contains(pinned), f"{name} is pinned to {pinned}, but {requirement} is declared"


def test_what_the_library_imports_is_declared(root):
    names = set(declared(root, "optimize"))
    optional = {"IPython"}  # is there wherever a notebook is
    for path in (root / "ppedu").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            tops = {m.partition(".")[0] for m in modules} - set(sys.stdlib_module_names) - {"ppedu"} - optional
            assert tops <= names, f"{path.name} line {node.lineno}: {tops - names} is not in pyproject.toml"


def test_version_is_the_newest_of_the_changelog(root):
    entries = re.findall(r"^## \[?(\d+\.\d+\.\d+)\]?", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert entries[0] == ppedu.__version__
    assert entries == sorted(entries, key=Version, reverse=True)


def test_help_lists_every_target(root):
    makefile = (root / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-zA-Z][\w.-]*):(?!=)", makefile, re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.+)", makefile, re.MULTILINE)
    assert phony
    assert set(phony[1].split()) == targets
    help_text = subprocess.run(["make"], cwd=root, capture_output=True, text=True, check=True, timeout=30).stdout
    assert set(re.findall(r"^make (\S+)  +\S", help_text, re.MULTILINE)) == targets
    assert targets >= {"lab", "demo", "test", "check", "notebooks", "bench", "setup", "clean", "help"}


def project_files(root: Path) -> Iterator[Path]:
    """Every file that is, or would be, committed."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this is no git checkout")
    yield from (root / name for name in listed.split("\0") if name and (root / name).is_file())


# Written in pieces, so that this file does not hold what it looks for.
TELLTALES = {
    "a path of one machine": r"/(?:" + r"root|work|home/\w+|Users/\w+|opt/\w+|tmp/\w+" + r")/",
    "the address of a package registry": r"(?:pypi|pythonhosted|pytorch)\.org/" + r"(?:simple|whl|packages)"
    r"|files\.python" + r"hosted|--(?:extra-)?index-" + r"url|registry\." + r"npmjs",
    "a folder that is not in the project": r"(?<![\w/-])shared" + r"/",
}


@pytest.mark.parametrize("what", TELLTALES)
def test_no_file_tells_of_the_machine_it_was_written_on(root, what):
    pattern = re.compile(TELLTALES[what])
    found = []
    for path in project_files(root):
        if path.suffix in {".png", ".gif", ".ico", ".pdf"}:
            continue
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            found += [f"{path.relative_to(root)}:{number}: {m[0]}" for m in pattern.finditer(line)]
    assert found == []


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("a path of one machine", "File " + "/ro" + "ot/.venv/x.py"),
        ("a path of one machine", "/ho" + "me/ada/ppedu"),
        ("the address of a package registry", "pip install --index-" + "url x"),
        ("a folder that is not in the project", "see sha" + "red/design.md"),
    ],
)
def test_telltales_are_found(what, line):
    assert re.search(TELLTALES[what], line)


def test_one_word_for_a_part_of_a_batch(root):
    """The word is microbatch (CONTRIBUTING.md, "Words"); torch's function of the other name may be called."""
    other = re.compile(r"(?<![.\w])chu" + r"nk(?:s|ed)?\b(?!\()", re.IGNORECASE)
    for path in project_files(root):
        if path.suffix in {".py", ".ipynb", ".md"} and path.name != "CONTRIBUTING.md":
            for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
                assert not other.search(line), f"{path.relative_to(root)}:{number}: {line.strip()[:120]}"
