"""In a world that torchrun made a run fails as a launched one does: one error on every rank that is left, told once."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from runtime_helpers import Plain, assert_equal_training, batch, layers, momentum, mse
from torchrun import torchrun

import ppedu
from ppedu.runtime.errors import RunError
from ppedu.runtime.joined import join as joined
from ppedu.runtime.joined import links, told, world
from ppedu.runtime.joined.clocks import on_one_clock
from ppedu.runtime.processes.interrupts import Ended, terminations_held
from ppedu.runtime.rank.job import StepReport
from ppedu.runtime.rank.timers import Moment

pytestmark = pytest.mark.slow

# What all ranks survive, one after the other in one world; then an error that nobody catches.
SCRIPT = """
import json, os, sys, threading, time
import torch, ppedu
from runtime_helpers import batch, layers, mse, momentum

rank, p, out = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1]
data, found = [batch(16, 4, 4)], {}

class At(torch.nn.Module):
    "Does something at its call number `call`, on a copy of its own."
    def __init__(self, what, call=10):
        super().__init__()
        self.what, self.left = what, call
    def forward(self, x):
        self.left -= 1
        if self.left == 0:
            self.what()
        return x

def model(what, guilty=1):
    torch.manual_seed(0)
    return [torch.nn.Sequential(At(what) if s == guilty else torch.nn.Tanh(), torch.nn.Linear(4, 4)).double() for s in range(p)]

def boom():
    raise RuntimeError("boom")

def phase(name, layers, **rest):
    began = time.perf_counter()
    rest = {"steps": 3, "progress": False, "device": "cpu", "timeout": 4} | rest
    try:
        run = ppedu.train(layers, ppedu.one_f_one_b(p, 8), data, mse, momentum, **rest)
        found[name] = {"losses": run.losses}
    except Exception as error:
        found[name] = {
            "kind": type(error).__name__, "text": str(error), "rank": getattr(error, "rank", None),
            "host": getattr(error, "host", None), "action": getattr(error, "action", None),
            "step": getattr(error, "step", None), "told": getattr(error, "told_here", None),
        }
    found[name]["took"] = time.perf_counter() - began

def stopped(*progress):
    if rank == 1:
        stop.set()

steps = []
phase("well", model(lambda: None), progress=lambda *told: steps.append(told))
other = model(lambda: None)
if rank == 2:
    torch.nn.init.normal_(other[1][1].weight)
phase("other", other)
phase("raises", model(boom))
phase("hangs", model(lambda: time.sleep(60)))
stop = threading.Event()
if rank == 1:
    threading.Timer(1.0, stop.set).start()
phase("stopped", model(lambda: None), steps=10**6, stop=stop)
phase("callback", model(lambda: None), steps=10**6, progress=lambda *told: 1 / 0)
def workers():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ppedu rank")]
deadline = time.perf_counter() + 10
while len(workers()) > (rank == 1) and time.perf_counter() < deadline:
    time.sleep(0.1)
threads = workers()
phase("after", model(lambda: None))
json.dump({"found": found, "steps": steps, "threads": threads}, open(f"{out}/{rank}.json", "w"))
ppedu.train(model(boom), ppedu.one_f_one_b(p, 8), data, mse, momentum, steps=3, progress=False, device="cpu", timeout=4)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> tuple[list[dict[str, Any]], subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("joined")
    done = torchrun(folder, SCRIPT, 3)
    return [json.loads((folder / f"{rank}.json").read_text("utf-8")) for rank in range(3)], done


def seen(job, phase: str) -> list[dict[str, Any]]:
    return [rank["found"][phase] for rank in job[0]]


def test_a_rank_that_raises_is_named_on_all(job):
    host = socket.gethostname()
    for found in seen(job, "raises"):
        assert (found["kind"], found["rank"], found["host"]) == ("RunError", 1, host)
        assert (found["action"], found["step"]) == ("F1", 1)
        assert found["text"].startswith(
            f"rank 1 on {host} failed in F1 of step 1:\n\nTraceback (most recent call last):\n"
        )
        assert 'raise RuntimeError("boom")' in found["text"]
        assert found["took"] < 4 + 5
    assert [found["told"] for found in seen(job, "raises")] == [True, False, False]  # once a host


def test_ranks_that_bring_other_models_are_told(job):
    for found in seen(job, "other"):
        assert found["kind"] == "ValueError"
        assert found["text"].startswith("rank 2's model is not rank 0's: the weights 1.1.weight add up to ")


def test_a_hang_is_blamed_on_the_rank_that_computes(job):
    host = socket.gethostname()
    for found in seen(job, "hangs"):
        assert (found["kind"], found["rank"], found["action"], found["step"]) == ("RunError", 1, "F1", 1)
        assert found["text"].startswith(
            f"no progress for 4 s: rank 1 on {host} computes F1.\n  rank 0 on {host} waits for "
        )
        assert found["took"] < 4 + 5


def test_any_rank_may_stop_the_run(job):
    for found in seen(job, "stopped"):
        assert (found["kind"], found["text"]) == ("RunStopped", "the run was stopped")


def test_a_callers_function_that_raises_ends_the_run_everywhere(job):
    first, *others = seen(job, "callback")
    assert first["kind"] == "ZeroDivisionError"
    for found in others:
        assert (found["kind"], found["rank"]) == ("RunError", 0)
        assert "ended the run (ZeroDivisionError: division by zero)" in found["text"]


def test_progress_is_told_live_and_on_rank_0_alone(job):
    assert [told[:2] for told in job[0][0]["steps"]] == [[1, 3], [2, 3], [3, 3]]
    assert [told[2] for told in job[0][0]["steps"]] == seen(job, "well")[0]["losses"]
    assert all(rank["steps"] == [] for rank in job[0][1:])


def test_the_next_run_works_and_no_worker_is_left(job):
    assert len({tuple(found["losses"]) for found in [*seen(job, "well"), *seen(job, "after")]}) == 1
    for rank, found in enumerate(job[0]):
        assert found["threads"] == (
            ["ppedu rank 1"] if rank == 1 else []
        )  # the one that sleeps for a minute in its layer


def test_an_error_that_nobody_catches_is_printed_once_and_the_exit_code_is_1(job):
    done = job[1]
    assert done.returncode == 1
    printed = [line for line in done.stderr.splitlines() if "errors.RunError: rank 1 on" in line]
    assert len(printed) == 1, done.stderr
    root = done.stderr.partition("Root Cause")[2]
    assert "rank      : 1 " in root  # torchrun blames the right one


KILLED = """
import os, sys, time, torch, ppedu
from runtime_helpers import batch, mse
rank, p, out = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1]
class Killed(torch.nn.Module):
    left = 10
    def forward(self, x):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), 9)
        return x
torch.manual_seed(0)
model = [torch.nn.Sequential(Killed() if s == GUILTY else torch.nn.Tanh(), torch.nn.Linear(4, 4)).double() for s in range(p)]
try:
    ppedu.train(model, ppedu.one_f_one_b(p, 8), [batch(16, 4, 4)], mse, steps=3, progress=False, device="cpu", timeout=4)
except ppedu.RunError as error:
    open(f"{out}/{rank}.txt", "w").write(f"{error.rank} {error.action} {error.step} {error.told_here} {error}")
    raise
"""


@pytest.mark.parametrize("guilty", [0, 2])
def test_a_rank_that_is_killed_is_named_by_all_that_are_left(tmp_path, guilty):
    done = torchrun(tmp_path, KILLED.replace("GUILTY", str(guilty)), 3)
    assert done.returncode == 1
    left = [rank for rank in range(3) if rank != guilty]
    for rank in left:
        text = (tmp_path / f"{rank}.txt").read_text("utf-8")
        assert text.startswith(
            f"{guilty} F1 1 {rank == left[0]} rank {guilty} on {socket.gethostname()} ended without a word"
        ), text
        assert "in F1 of step 1" in text
    assert len([line for line in done.stderr.splitlines() if "errors.RunError: rank" in line]) == 1, done.stderr


# what is no world


def test_leftovers_of_a_world_of_one_are_no_world(monkeypatch):
    """Notebooks on some clusters are started with them. The address is nobody's: who tried to join would wait."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    model, data = layers(4, 4, 4), [batch(8, 4, 4)]
    plain = Plain(model, data, mse, momentum, 2)
    run = ppedu.train(model, ppedu.gpipe(3, 4), data, mse, momentum, 2, device="cpu", gradients=True, progress=False)
    assert_equal_training(run.losses, run.gradients, model.state_dict(), plain)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("RANK", "-1", "RANK='-1' in the environment is no whole number"),
        ("RANK", "5", "RANK=5 in the environment is no rank of WORLD_SIZE=2: they go from 0 to 1"),
        ("WORLD_SIZE", "abc", "WORLD_SIZE='abc' in the environment is no whole number"),
        ("LOCAL_RANK", "q", "LOCAL_RANK='q' in the environment is no whole number"),
    ],
)
def test_leftovers_of_any_kind_get_a_sentence(monkeypatch, name, value, wanted):
    given = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", name: value}
    for key, text in given.items():
        monkeypatch.setenv(key, text)
    with pytest.raises(ValueError, match=wanted) as caught:
        ppedu.train(
            layers(4, 4, 4), ppedu.gpipe(2, 4), [batch(8, 4, 4)], mse, device="cpu", progress=False, timeout=1.0
        )
    assert "unset them" in str(caught.value)


def test_a_world_that_does_not_come_is_told_with_the_remedy(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(world, "_stores", [])
    monkeypatch.setattr(joined, "BIRTH", 1.0)
    began = time.perf_counter()
    with pytest.raises(
        RunError, match=rf"rank 1 found RANK, WORLD_SIZE=2, .* no world at 127.0.0.1:{port} within 1 s"
    ) as caught:
        ppedu.train(
            layers(4, 4, 4), ppedu.gpipe(2, 4), [batch(8, 4, 4)], mse, device="cpu", progress=False, timeout=1.0
        )
    assert "unset WORLD_SIZE where there is no such world" in str(caught.value)
    assert time.perf_counter() - began < 1 + 5


# how ranks meet


def met(
    store: Any, rank: int, size: int, found: dict[int, Any], timeout: float = 5.0, called: dict[str, str] | None = None
) -> None:
    try:
        found[rank] = links.meet(store, rank, size, called or {}, timeout, lambda: None)
    except Exception as error:
        found[rank] = error


def meet_in_threads(size: int, ranks: list[int], timeout: float = 5.0) -> dict[int, Any]:
    store, found = dist.HashStore(), dict[int, Any]()
    threads = [threading.Thread(target=met, args=(store, rank, size, found, timeout)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def test_all_ranks_meet_and_are_heard():
    found = meet_in_threads(4, [3, 0, 2, 1])
    hub = found[0]
    for rank in range(4):
        found[rank].mine.send_bytes(f"I am {rank}".encode())
        assert hub.connections[rank].recv_bytes() == f"I am {rank}".encode()
        assert [name for name, _ in found[rank].machines] == [socket.gethostname()] * 4
    for rank in (1, 2, 3):
        assert hub.trails[rank].last() is None
        for step in range(5000):
            found[rank].trails[0].write((step, rank, 0.5))
        deadline = time.perf_counter() + 5
        record = None
        while (record is None or record[0] < 4999) and time.perf_counter() < deadline:
            record = hub.trails[rank].last() or record
        assert record == (4999, rank, 0.5)
    for one in found.values():
        one.close()


def test_a_rank_that_does_not_come_is_named():
    found = meet_in_threads(3, [0, 1], timeout=1.0)
    assert isinstance(found[0], RunError)
    assert str(found[0]).startswith("rank 2 did not come")
    assert found[0].rank == 2


def test_a_rank_that_leaves_before_all_have_met_is_not_waited_for():
    store, found = dist.HashStore(), dict[int, Any]()
    other = threading.Thread(target=met, args=(store, 0, 3, found, 30.0))
    other.start()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        links.meet(store, 1, 3, {}, 30.0, interrupted)
    other.join(10)
    assert str(found[0]) == f"rank 1 on {socket.gethostname()} ended the run (KeyboardInterrupt)"


def test_ranks_that_want_different_things_are_refused():
    store, found = dist.HashStore(), dict[int, Any]()
    wants = [
        {"steps": "3", "pace": "None"},
        {"steps": "3", "pace": "None"},
        {"steps": "3", "pace": "F=0.02 s B=0.02 s"},
    ]
    threads = [threading.Thread(target=met, args=(store, r, 3, found, 5.0, want)) for r, want in enumerate(wants)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for rank in range(3):
        assert isinstance(found[rank], ValueError)
        assert str(found[rank]).startswith(
            "rank 0 called train with pace=None, and rank 2 with pace=F=0.02 s B=0.02 s: all ranks call it alike"
        )


def test_ranks_with_other_models_are_refused():
    """Each rank trains its own stages: ranks whose models differ would train one that nobody has."""
    alike = {"weights 0.weight": [2.0, 10.0], "weights 0.bias": [math.nan, math.nan]}
    assert links._unlike(alike, {**alike, "weights 0.weight": [2.0 + 1e-6, 10.0]}, 1) is None
    assert links._unlike(alike, {**alike, "weights 0.weight": [-1.5, 10.0]}, 1).startswith(
        "rank 1's model is not rank 0's: the weights 0.weight add up to -1.5 there and to 2 on rank 0. "
    )
    assert "model=None" in links._unlike({"model": "2 weights"}, {}, 1)


def test_a_stranger_is_sent_away(monkeypatch):
    """Messages are pickled: nobody is listened to who does not know the key."""
    monkeypatch.setattr(links, "SILENCE", 60.0)  # so long nobody waits
    store, found = dist.HashStore(), dict[int, Any]()
    hub = threading.Thread(target=met, args=(store, 0, 2, found, 10.0))
    hub.start()
    while not store.check([links.HUB]):
        time.sleep(0.01)
    port, *_ = json.loads(store.get(links.HUB))
    with (
        socket.create_connection(("127.0.0.1", port)) as silent,
        socket.create_connection(("127.0.0.1", port)) as stranger,
    ):
        stranger.sendall(b"\x00\x00\x00\x05hello")
        other = threading.Thread(target=met, args=(store, 1, 2, found, 10.0))
        other.start()
        other.join(15)
        hub.join(15)
        silent.setblocking(False)
        assert silent.recv(4) != b""  # still there: it held nobody up
    assert isinstance(found[0], links.Links), found
    assert isinstance(found[1], links.Links), found


# clocks


def test_a_clock_that_drifts_is_put_right_all_the_way():
    """A clock that is 500 ppm fast: off by nothing at the begin, 4 ms after 8 s, and by half of that in the middle."""
    fast = 1 + 500e-6
    truth = [0.0, 2.0, 4.0, 8.0]
    report = StepReport(0, [Moment(t * fast, t * fast, t * fast) for t in truth])
    found = on_one_clock(report, 0.0, 8.0 * fast, 8.0 - 8.0 * fast)
    for moment, wanted in zip(found.moments, truth, strict=True):
        assert abs(moment.start - wanted) < 1e-9
        assert moment.start == moment.computed == moment.end
    assert on_one_clock(report, 0.0, 8.0, 0.0) is report


# SIGTERM


def terminated(body: str) -> subprocess.CompletedProcess[str]:
    code = f"""
import os, signal, sys, time
from ppedu.runtime.processes.interrupts import Ended, terminations_held
{body}
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)


def test_sigterm_that_nothing_explains_ends_the_process_as_ever():
    done = terminated(
        "with terminations_held() as held:\n    os.kill(os.getpid(), signal.SIGTERM)\n    while True:\n        held.look(); time.sleep(0.05)"
    )
    assert done.returncode == -signal.SIGTERM


def test_sigterm_after_an_error_lets_the_process_say_why():
    done = terminated(
        "try:\n    with terminations_held() as held:\n        raise ValueError('why')\nexcept ValueError as error:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(0.3)\n    print(error)\n    sys.exit(1)"
    )
    assert (done.returncode, done.stdout) == (1, "why\n")


def test_sigterm_long_after_an_error_ends_the_process():
    done = terminated(
        "try:\n    with terminations_held() as held:\n        raise ValueError('why')\nexcept ValueError as error:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(10)\n    sys.exit(1)"
    )
    assert done.returncode == -signal.SIGTERM


def unexplained() -> None:
    with terminations_held() as held:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        assert held.came is not None
        held.came -= 60
        held.look()


def test_handlers_of_failed_runs_do_not_pile_up():
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def fail() -> None:
        with terminations_held():
            raise ValueError("why")

    try:
        for _ in range(3):
            with pytest.raises(ValueError, match="why"):
                fail()
        assert signal.getsignal(signal.SIGTERM).__self__.previous == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_callers_own_handler_is_called():
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        with terminations_held():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            assert came == []
        assert came == [signal.SIGTERM]
        with pytest.raises(Ended):
            unexplained()
        assert came == [signal.SIGTERM] * 2
        assert signal.getsignal(signal.SIGTERM) is not None
    finally:
        signal.signal(signal.SIGTERM, before)


# the sum up of torchrun, and what is printed


def test_torchrun_is_told_who_failed_first(tmp_path: Path, monkeypatch):
    stamps = {}
    error = RunError("rank 1 failed in F1:\n\nTraceback", rank=1, traceback="Traceback\n  File\nKeyError: 'x'\n")
    for rank in range(3):
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / f"{rank}.json"))
        told.tell_torchrun(error, rank)
        message = json.loads((tmp_path / f"{rank}.json").read_text("utf-8"))["message"]
        assert message["message"] == "RunError: rank 1 failed in F1: KeyError: 'x'"
        stamps[rank] = int(message["extraInfo"]["timestamp"])
    assert stamps[1] < min(stamps[0], stamps[2])


def test_torchrun_hears_of_errors_that_nobody_catches_alone(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    told.for_here(RunError("a"), 0, True)
    assert not (tmp_path / "error.json").exists()
    sys.excepthook(ValueError, ValueError("b"), None)
    assert not (tmp_path / "error.json").exists()
    sys.excepthook(RunError, RunError("c"), None)
    assert "RunError: c" in (tmp_path / "error.json").read_text("utf-8")


def test_only_what_is_told_here_is_printed(monkeypatch):
    printed: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: printed.append(error))
    loud, silent = RunError("a"), RunError("b")
    told.for_here(loud, 0, True)
    told.for_here(silent, 1, False)
    told.for_here(silent, 1, False)
    for error in (loud, silent, ValueError("c")):
        sys.excepthook(type(error), error, None)
    assert [str(error) for error in printed] == ["a", "c"]
    assert torch.distributed.is_available()
