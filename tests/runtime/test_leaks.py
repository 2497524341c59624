"""Many runs in a row leave nothing behind: no process, file, socket, thread or piece of shared memory."""

from __future__ import annotations

import ast
from pathlib import Path

import leftovers
import pytest
from driven import Driven

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
import tempfile, time
import torch
from torch import nn
import ppedu, faulty, leftovers

def run(number):
    layers = [nn.Linear(8, 8) for _ in range(3)]
    if number % 5 > 2:
        layers[1] = faulty.InForward(faulty.boom if number % 5 == 3 else faulty.kill)
    try:
        ppedu.train(layers, ppedu.one_f_one_b(3, 4), [(torch.ones(8, 8), torch.zeros(8, 8))],
                    nn.functional.mse_loss, faulty.sgd, progress=number % 2 == 0)
        return "ok"
    except ppedu.RunError:
        return "failed"

for number in range(5):
    run(number)
before = leftovers.inventory(tempfile.gettempdir())
began = time.perf_counter()
results = [run(number) for number in range({runs})]
seconds = time.perf_counter() - began
print((before, leftovers.inventory(tempfile.gettempdir()), results.count("ok"), results.count("failed"), seconds))
"""


@pytest.mark.parametrize("runs", [10, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_runs_leak_nothing(tmp_path: Path, runs: int) -> None:
    """Two of five fail: one raises, one is killed."""
    tests = str(Path(__file__).parents[1] / "helpers")
    with Driven(
        "-c", PROGRAM.format(tests=tests, runs=runs), env={"TMPDIR": str(tmp_path), "COLUMNS": "80"}
    ) as program:
        said = program.line(400)
        program.end()
        leftovers.gone_within(3, program.mark)
    before, after, completed, failed, seconds = ast.literal_eval(said)
    print(f"{seconds / runs:.3f} s a run", before)
    assert (completed, failed) == (runs * 3 // 5, runs * 2 // 5)
    assert before == after
    assert before["sockets"] == []
    left = [path.name for path in tmp_path.iterdir() if not path.name.startswith("torchinductor_")]  # torch's own cache
    assert left == []  # when the process has ended, not even multiprocessing's folder is left


def test_the_inventory_sees_what_is_left(tmp_path: Path) -> None:
    """The check above can fail: each kind of leftover is seen."""
    import socket
    import subprocess
    import sys
    import threading
    from multiprocessing import shared_memory

    before = leftovers.inventory(str(tmp_path))
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    (tmp_path / "left").touch()
    memory = shared_memory.SharedMemory(create=True, size=8)
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        with socket.create_server(("127.0.0.1", 0)):
            after = leftovers.inventory(str(tmp_path))
    finally:
        child.communicate()
        memory.close()
        memory.unlink()
        stop.set()
        thread.join()
    assert {kind for kind in before if before[kind] != after[kind]} == set(before)
