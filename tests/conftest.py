"""What the tests share: the folder of the project, fresh interpreters, and the quick run of `make check`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")  # before anything imports matplotlib: tests open no window

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job, and then in all that it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)

NOBODY = tempfile.TemporaryDirectory(prefix="ppedu-tests-")  # removed at the end
os.environ["PPEDU_HOME"] = NOBODY.name  # tests answer exercises, and must not count as their user's progress

# Two cores run tests, ranks and whatever else is on: how long one example takes says nothing about the code.
settings.register_profile("ppedu", deadline=None)
settings.load_profile("ppedu")

ROOT = Path(__file__).resolve().parent.parent
TORCH_SIDE = (
    "ppedu/runtime",
    "ppedu/course/models.py",
    "ppedu/course/data.py",
    "ppedu/course/parallelisms",
    "ppedu/doctor",
)
# A test file, or a helper of tests, that loads torch: it imports torch or what needs it, or calls what imports that.
LOADS_TORCH = re.compile(
    r"^\s*(import|from) (torch|ppedu\.(runtime|course\.(models|data|parallelisms)))\b"
    r"|^\s*from ppedu import .*\b(runtime|train|split)\b"
    r"|\bppedu\.(train|split)\(",
    re.MULTILINE,
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` stands for: a worker more than cores, for tests wait as much as they compute. At most 8: each loads torch."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores + 1, 8)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--core", action="store_true", help="only what is tested in seconds: without torch and processes")


def pytest_configure(config: pytest.Config) -> None:
    """With --core, leave out what imports torch: such files are not even collected, so torch is not loaded."""
    if not config.getoption("--core"):
        return
    tests = [path for path in (ROOT / "tests").rglob("*.py") if LOADS_TORCH.search(path.read_text("utf-8"))]
    ignored = [*(ROOT / name for name in TORCH_SIDE), *tests]
    config.option.ignore = [*(config.option.ignore or ()), *map(str, ignored)]


@pytest.hookimpl(tryfirst=True)  # before xdist writes groups into names
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers share out files, so that a file's fixtures are made once; all that needs a browser counts as one file."""
    for item in items if config.pluginmanager.hasplugin("xdist") else ():
        if not item.get_closest_marker("apart"):
            group = "browser" if item.get_closest_marker("browser") else item.path.relative_to(ROOT).as_posix()
            item.add_marker(pytest.mark.xdist_group(group))
    if not config.getoption("--core"):
        return
    slow = [item for item in items if {"slow", "timing"} & {mark.name for mark in item.iter_markers()}]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if item not in slow]


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the project."""
    return ROOT


FreshPython = Callable[..., str]


@pytest.fixture(scope="session")
def fresh_python() -> FreshPython:
    """Run code in a new interpreter, in which nothing is imported yet, and return what it printed."""

    def run(code: str, *, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            check=False,
        )
        if done.returncode:
            pytest.fail(f"a fresh interpreter failed with {done.returncode} at:\n{code}\n{done.stdout}{done.stderr}")
        return done.stdout

    return run
