"""Where train() is called from: notebook cells, scripts without a main guard, `python -c`, stdin, `python -m`, by spawning."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import leftovers
import pytest
from driven import ROOT, Driven, environment
from jupyter_client import BlockingKernelClient, KernelManager

pytestmark = [pytest.mark.slow, pytest.mark.apart]
GONE = 3.0  # seconds after the end of a kernel within which no process of it is left


class Kernel:
    """A real kernel, as JupyterLab starts it."""

    def __init__(self, folder: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env=environment(self.mark, {"TMPDIR": str(folder)}))  # who is killed cannot tidy up
        self.client = self._connect()

    def _connect(self) -> BlockingKernelClient:
        client: BlockingKernelClient = self.manager.blocking_client()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        return client

    def submit(self, code: str) -> str:
        return self.client.execute(code)

    def results(self, request: str, until: str | None = None) -> tuple[str, str]:
        """(what the cell printed, the name of its error or ''), when it is done or has printed `until`."""
        printed, error = "", ""
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                printed += content["text"]
            elif message["msg_type"] == "error":
                error = content["ename"]
                printed += "\n".join(content["traceback"])
            if content.get("execution_state") == "idle" or (until is not None and until in printed):
                return printed, error

    def run(self, code: str) -> tuple[str, str]:
        return self.results(self.submit(code))

    def restart(self) -> None:
        self.client.stop_channels()
        self.manager.restart_kernel(now=True)
        self.client = self._connect()

    def end(self) -> None:
        self.client.stop_channels()
        if self.manager.is_alive():
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    kernel = Kernel(tmp_path)
    yield kernel
    kernel.end()
    leftovers.gone_within(10, kernel.mark)


IMPORTS = """
import ctypes, time
import torch, ppedu
from torch import nn
"""
DEFINITIONS = """
class Act(nn.Module):
    def __init__(self, act=None):
        super().__init__()
        self.linear, self.act = nn.Linear(8, 8), act
    def forward(self, x):
        if self.act:
            self.act()
        return self.linear(x)

def loss(outputs, targets):
    return (outputs - targets).square().mean()

class CellError(Exception):
    pass

def fail():
    raise CellError("from a cell")

def hold():
    print("holding")
    ctypes.PyDLL(None).sleep(1000)

def nap():
    print("napping")
    time.sleep(0.5)

def train(*acts, steps=2):
    layers = [Act(act) for act in acts]
    batches = [(torch.ones(8, 8), torch.zeros(8, 8))]
    return ppedu.train(layers, ppedu.gpipe(len(acts), 2), batches, loss, lambda w: torch.optim.SGD(w, lr=0.1), steps=steps)
"""


def ends(kernel: Kernel, before: set[int]) -> None:
    """All processes of `before` are gone in time. Those born later belong to the next kernel."""
    deadline = time.perf_counter() + GONE
    while left := before & set(leftovers.marked(kernel.mark)):
        assert time.perf_counter() < deadline, left
        time.sleep(0.02)


def processes(kernel: Kernel, at_least: int) -> set[int]:
    """All of a kernel's processes, once there are so many."""
    deadline = time.perf_counter() + 30
    while len(found := set(leftovers.marked(kernel.mark))) < at_least:
        assert time.perf_counter() < deadline, found
        time.sleep(0.02)
    return found


def test_a_notebook(kernel: Kernel) -> None:
    """Models and losses of a cell; an error with the cell's source; the stop button; then restart while a rank hangs in C."""
    assert kernel.run(IMPORTS + DEFINITIONS) == ("", "")
    printed, error = kernel.run("run = train(None, lambda: print('here')); print(run.losses[1] < run.losses[0])")
    assert error == ""
    assert "[rank 1] here" in printed
    assert printed.rstrip().endswith("True")

    printed, error = kernel.run("train(None, fail)")
    assert error == "RunError"
    assert "rank 1 failed in F0 of step 0" in printed
    assert 'raise CellError("from a cell")' in printed

    request = kernel.submit("train(nap, nap, steps=100)")
    kernel.results(request, until="napping")
    kernel.manager.interrupt_kernel()
    assert kernel.results(request)[1] == "KeyboardInterrupt"
    assert kernel.run("train(None, None).stopped") == ("", "")

    request = kernel.submit("train(None, hold)")
    before = processes(kernel, at_least=5)  # the kernel, the tracker, the fork server, two ranks
    time.sleep(0.3)
    kernel.restart()
    ends(kernel, before)
    assert kernel.run(IMPORTS + DEFINITIONS + "train(None, None)")[1] == ""


def test_a_kernel_is_killed_while_a_rank_holds_the_interpreter(kernel: Kernel) -> None:
    kernel.run(IMPORTS + DEFINITIONS + "train(None, None)")
    kernel.submit("train(None, hold, hold)")
    before = processes(kernel, at_least=6)
    time.sleep(0.3)
    kernel.manager.provisioner.process.kill()  # the kernel alone, not its group
    ends(kernel, before)


@pytest.mark.parametrize("delay", [pytest.param(0.0, marks=pytest.mark.soak), 1.0])
def test_a_kernel_is_killed_in_its_first_start(kernel: Kernel, delay: float) -> None:
    kernel.run(IMPORTS + DEFINITIONS)
    kernel.submit("train(None, None)")
    processes(kernel, at_least=3)
    time.sleep(delay)
    before = processes(kernel, at_least=3)
    kernel.manager.provisioner.process.kill()
    ends(kernel, before)


def test_a_kernel_is_closed_while_it_trains(kernel: Kernel) -> None:
    kernel.run(IMPORTS + DEFINITIONS)
    kernel.submit("train(nap, nap, steps=100)")
    before = processes(kernel, at_least=5)
    kernel.manager.shutdown_kernel(now=False)
    ends(kernel, before)


# scripts

SCRIPT = """
import os, sys, warnings
print("script runs", flush=True)
import torch
from torch import nn
import ppedu

class OddError(Exception):
    def __init__(self, a, b):
        super().__init__(a, b)

class Layer(nn.Module):
    def __init__(self, fails=False):
        super().__init__()
        self.linear, self.fails = nn.Linear(8, 8), fails
    def forward(self, x):
        if self.fails:
            raise OddError(1, 2)
        return self.linear(x)

def loss(outputs, targets):
    return (outputs - targets).square().mean()

def train(fails):
    layers = [Layer(), Layer(fails)]
    return ppedu.train(layers, ppedu.gpipe(2, 2), [(torch.ones(4, 8), torch.zeros(4, 8))], loss,
                       lambda w: torch.optim.SGD(w, lr=0.1), steps=2, progress=False, timeout=3)

run = train(False)
print("falls", run.losses[1] < run.losses[0])
try:
    train(True)
except ppedu.RunError as error:
    print("rank", error.rank, "action", error.action)
    print(error.traceback)
print("end")
"""


def output_of(*arguments: str, cwd: Path, stdin: str = "") -> list[str]:
    with Driven(*arguments, cwd=cwd) as program:
        if stdin:
            program.say(stdin)
        out, err = program.end()
        leftovers.gone_within(3, program.mark)
    assert err == [], err
    return list(out)


@pytest.mark.parametrize("way", ["file", "-c", pytest.param("stdin", marks=pytest.mark.soak), "-m"])
def test_a_script_without_a_main_guard(tmp_path: Path, way: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT, "utf-8")
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("print('package is imported')\n", "utf-8")
    (package / "mod.py").write_text("from pkg.other import HELPER\n" + SCRIPT, "utf-8")
    (package / "other.py").write_text("HELPER = 1\n", "utf-8")
    arguments = {"file": ("script.py",), "-c": ("-c", SCRIPT), "stdin": ("-",), "-m": ("-m", "pkg.mod")}[way]
    out = output_of(*arguments, cwd=tmp_path, stdin=SCRIPT if way == "stdin" else "")
    expected = ["script runs", "falls True", "rank 1 action F0", "Traceback (most recent call last):"]
    if way == "-m":
        assert out.pop(0) == "package is imported"
    assert out[:4] == expected  # the script ran once: no rank ran it again
    assert out.count("script runs") == 1
    assert "OddError: (1, 2)" in out
    assert ("    raise OddError(1, 2)" in out) == (way in ("file", "-m"))  # elsewhere there is no source to show
    assert out[-1] == "end"


SPAWNS = f"""
from ppedu.runtime.processes import fork_server
fork_server.START_METHOD = "spawn"
{SCRIPT}
"""


def test_ranks_can_be_spawned(tmp_path: Path) -> None:
    """Where forking is not safe. A rank imports torch first, which takes about as long as the time-out, and does not count."""
    (tmp_path / "script.py").write_text(SPAWNS, "utf-8")
    out = output_of("script.py", cwd=tmp_path)
    assert out[:3] == ["script runs", "falls True", "rank 1 action F0"]
    assert out.count("script runs") == 1
    assert "    raise OddError(1, 2)" in out
    assert out[-1] == "end"


def test_this_project_is_what_is_tested() -> None:
    assert (ROOT / "ppedu").is_dir()
