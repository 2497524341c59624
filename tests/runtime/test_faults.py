"""Whatever goes wrong in a run: one error that says where, within seconds; no rank is left; the next run works."""

from __future__ import annotations

import functools
import math
import multiprocessing.process
import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import faulty
import leftovers
import psutil
import pytest
import torch
from faulty import WIDTH, AtArrival, InBackward, InForward, Pair, Prints, Product, Products, Reshaped, Residual
from torch import Tensor, nn

import ppedu
from ppedu.runtime.errors import RunError, RunStopped

pytestmark = pytest.mark.slow
P, M = 3, 4
OVER = 5.0  # seconds after which a fault must be over


def batch(samples: int = 8) -> tuple[Tensor, Tensor]:
    return torch.ones(samples, WIDTH), torch.zeros(samples, WIDTH)


def linears(p: int = P) -> list[nn.Module]:
    return [nn.Linear(WIDTH, WIDTH) for _ in range(p)]


def put(rank: int, layer: nn.Module) -> list[nn.Module]:
    """P layers, one a rank, of which this one is not like the others."""
    layers = linears()
    layers[rank] = layer
    return layers


def train(model: Any, **change: Any) -> ppedu.Run:
    what: dict[str, Any] = {
        "schedule": ppedu.one_f_one_b(len(model) if isinstance(model, list) else P, M), "data": [batch()],
        "loss_fn": nn.functional.mse_loss, "optimizer": faulty.sgd, "progress": False,
    }  # fmt: skip
    return ppedu.train(model, **{**what, **change})


def fails(model: Any, within: float = OVER, **change: Any) -> RunError:
    """The one error of a run, which is over in time and leaves no rank."""
    began = time.perf_counter()
    with pytest.raises(RunError) as caught:
        train(model, **change)
    took = time.perf_counter() - began
    assert took < within, f"over after {took:.1f} s only"
    assert leftovers.children() == []
    for echo in ("closed by peer", "gloo", "Connection reset"):
        assert echo not in str(caught.value)
    return caught.value


@pytest.fixture(scope="module", autouse=True)
def _first_start() -> None:
    train(linears())


@pytest.fixture(autouse=True)
def _next_run_works(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "no_start" not in request.fixturenames:
        assert len(train(linears(2), schedule=ppedu.gpipe(2, 1)).losses) == 1
    assert leftovers.children() == []


# a layer raises


@pytest.mark.parametrize("rank", range(P))
def test_a_layer_raises_in_forward(rank: int) -> None:
    error = fails(put(rank, InForward(faulty.boom, call=2)))
    assert (error.rank, error.action, error.step) == (rank, "F2", 0)
    assert str(error).startswith(f"rank {rank} failed in F2 of step 0:\n\nTraceback (most recent call last):\n")
    assert str(error).count("Traceback") == 1
    assert error.traceback.endswith("RuntimeError: boom\n")
    for line in ("self.act()", 'raise RuntimeError("boom")', 'faulty.py", line', "in boom"):
        assert line in error.traceback
    assert "/runtime/" not in error.traceback  # the package's own frames would only hide the user's
    assert "_call_impl" not in error.traceback


@pytest.mark.parametrize("hook", [False, True])
@pytest.mark.parametrize("rank", range(P))
def test_a_layer_raises_in_backward(rank: int, hook: bool) -> None:
    error = fails(put(rank, InBackward(faulty.boom, hook)))
    assert (error.rank, error.action, error.step) == (rank, "B0", 0)
    assert 'raise RuntimeError("boom")' in error.traceback


def test_the_exception_may_be_of_a_class_that_the_caller_alone_has() -> None:
    class OddError(Exception):
        def __init__(self, a: int, b: int) -> None:
            super().__init__(a + b)
            self.lock = threading.Lock()  # cannot be pickled

    def odd() -> None:
        raise OddError(1, 2)

    error = fails(put(1, InForward(odd)))
    assert "OddError: 3" in error.traceback
    assert "raise OddError(1, 2)" in error.traceback


def test_an_exit_is_a_failure_too() -> None:
    error = fails(put(1, InForward(faulty.leave)))
    assert (error.rank, error.action) == (1, "F0")
    assert error.traceback.endswith("SystemExit: 7\n")


def test_what_caused_an_exception_is_told_with_it() -> None:
    error = fails(put(2, InForward(faulty.because)))
    first, second = error.traceback.split("\nThe above exception was the direct cause of the following exception:\n\n")
    assert first.endswith("KeyError: 'key'\n")
    assert second.endswith("ValueError: no such key\n")
    assert "raise ValueError" in second


def test_a_layer_raises_in_a_paced_run() -> None:
    error = fails(put(1, InForward(faulty.boom, call=1)), pace=ppedu.Costs(forward=0.01, backward=0.01))
    assert (error.rank, error.action) == (1, "F1")
    assert 'raise RuntimeError("boom")' in error.traceback


def test_a_layer_raises_in_a_later_step() -> None:
    error = fails(put(1, InForward(faulty.boom, call=2 * M + 1)), steps=4)
    assert (error.rank, error.action, error.step) == (1, "F1", 2)


def test_a_layer_cannot_be_made_again_in_its_rank() -> None:
    error = fails(put(1, AtArrival(faulty.boom)))
    assert (error.rank, error.action) == (1, None)
    assert str(error).startswith("rank 1 failed while it is starting up:")
    assert "__setstate__" in error.traceback


# the loss, the optimizer, the data


def test_the_loss_raises() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        raise RuntimeError("size of my loss")  # it sounds like a misfit of shapes, and is none

    error = fails(linears(), loss_fn=loss)
    assert (error.rank, error.action) == (P - 1, "F0")
    assert str(error).startswith(f"rank {P - 1} failed in F0 of step 0:")
    assert 'raise RuntimeError("size of my loss")' in error.traceback


@pytest.mark.parametrize(
    ("loss", "what"),
    [(nn.MSELoss(reduction="none"), "shape (2, 8)"), (lambda outputs, targets: 1.0, "float")],
)
def test_the_loss_is_no_number(loss: Any, what: str) -> None:
    error = fails(linears(), loss_fn=loss)
    assert (error.rank, error.action) == (P - 1, "F0")
    assert f"loss_fn returns the mean over the samples, a tensor of one number, but it returned {what}" in str(error)


def test_the_optimizer_cannot_be_made() -> None:
    error = fails(linears(), optimizer=lambda weights: torch.optim.SGD(weights, lr=-1))
    assert error.action is None
    assert "Invalid learning rate: -1" in error.traceback
    assert "torch.optim.SGD(weights, lr=-1)" in error.traceback


def test_the_optimizer_is_none() -> None:
    error = fails(linears(), optimizer=lambda weights: None)
    assert "optimizer" in str(error)
    assert "NoneType" in str(error)


def test_the_optimizer_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppedu.runtime.processes.watch.ECHO", 60.0)
    error = fails(linears(), optimizer=lambda w: faulty.Optimizer(w, faulty.boom))
    assert "failed while it is in its optimizer step (step 0)" in str(error)
    assert 'raise RuntimeError("boom")' in error.traceback


def test_the_data_raise_on_a_rank_only(monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.getpid()

    def data(step: int) -> tuple[Tensor, Tensor]:
        if os.getpid() != here and step == 1:
            raise RuntimeError("no more data")
        return torch.ones(8, WIDTH), torch.zeros(8, WIDTH)

    monkeypatch.setattr("ppedu.runtime.processes.watch.ECHO", 60.0)
    error = fails(linears(), data=data, steps=3)  # a RuntimeError, but not taken for a lost connection
    assert error.rank in (0, P - 1)
    assert (error.action, error.step) == (None, 1)
    assert "while it is reading its batch (step 1)" in str(error)
    assert 'raise RuntimeError("no more data")' in error.traceback


# what ranks print


def test_prints_come_back_labelled_and_in_rank_order(capsys: pytest.CaptureFixture[str]) -> None:
    train([Prints("a"), Prints("b", warning="look out"), Prints("c")], steps=2)
    out, err = capsys.readouterr()
    step = ["[rank 0] a"] * M + ["[rank 1] b"] * M + ["[rank 2] c"] * M
    assert out.splitlines() == step * 2
    assert [line for line in err.splitlines() if "look out" in line and line.startswith("[rank 1] ")]


def test_prints_before_a_failure_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    layers = [Prints("a"), nn.Sequential(Prints("b"), InBackward(faulty.boom)), Prints("c")]
    fails(layers)
    lines = capsys.readouterr().out.splitlines()
    assert lines == sorted(lines)
    assert "[rank 1] b" in lines
    assert {"[rank 0] a", "[rank 2] c"} <= set(lines)


def test_prints_before_a_death_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    fails([Prints("a"), nn.Sequential(Prints("b"), InForward(faulty.kill)), Prints("c")])
    assert "[rank 1] b" in capsys.readouterr().out.splitlines()


# stages that do not fit


def test_stages_that_do_not_fit_are_refused_before_training(no_start: None) -> None:
    error = fails([nn.Linear(WIDTH, WIDTH), nn.Linear(7, 3)])
    assert (error.rank, error.action) == (1, "F0")
    assert str(error).startswith(
        "stages 0 and 1 do not fit: stage 0 sends (2, 8) float32, but in stage 1 it meets "
        "Linear(in_features=7, out_features=3, bias=True), whose first weight is (3, 7) float32. "
        "Make the last layer of stage 0 return what the first of stage 1 takes.\nNothing was started."
    )


def test_stages_of_other_dtypes_are_refused_before_training(no_start: None) -> None:
    error = fails([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH).double()])
    assert error.rank == 2
    assert "stages 1 and 2 do not fit: stage 1 sends (2, 8) float32" in str(error)
    assert "whose first weight is (8, 8) float64" in str(error)


@pytest.mark.parametrize("layer", [nn.Embedding(8, 8), nn.BatchNorm2d(8), nn.Conv2d(3, 8, 3), nn.LayerNorm(7)])
def test_layers_that_check_for_themselves_are_refused_before_training(no_start: None, layer: nn.Module) -> None:
    error = fails([nn.Linear(WIDTH, WIDTH), layer])
    assert f"stages 0 and 1 do not fit: stage 0 sends (2, 8) float32, but in stage 1 it meets {layer}" in str(error)


def test_a_batch_that_does_not_fit_is_refused_before_training(no_start: None) -> None:
    error = fails([nn.Linear(7, WIDTH), nn.Linear(WIDTH, WIDTH)])
    assert str(error).startswith("the batch does not fit stage 0: a microbatch of inputs is (2, 8) float32")
    assert error.rank == 0


def test_a_stage_that_returns_more_than_a_tensor_is_refused_before_training(no_start: None) -> None:
    error = fails([nn.LSTM(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])
    assert "a stage passes on one tensor, but stage 0 ends with LSTM(8, 8), which returns tuple" in str(error)


@pytest.mark.parametrize(
    ("layer", "weight"),
    [
        (Product(7, 8), "(7, 8) float32"),
        (Product(8, 8, torch.float64), "(8, 8) float64"),
        (nn.Sequential(nn.Tanh(), Product(7, 8)), "(7, 8) float32"),
        (Residual(nn.Linear(7, 7)), "(7, 7) float32"),
    ],
)
def test_stages_of_custom_layers_that_do_not_fit_are_told_when_they_run(layer: nn.Module, weight: str) -> None:
    error = fails([nn.Linear(WIDTH, WIDTH), layer, nn.Linear(WIDTH, WIDTH)])
    assert (error.rank, error.action) == (1, "F0")
    assert str(error).startswith("stages 0 and 1 do not fit: stage 0 sends (2, 8) float32, but in stage 1 it meets ")
    assert f"whose first weight is {weight}" in str(error)
    assert "So rank 1 failed in F0 of step 0:\n\nTraceback" in str(error)


def test_a_custom_layer_without_weights_does_not_fit() -> None:
    error = fails([nn.Linear(WIDTH, WIDTH), Reshaped()])
    assert "stage 0 sends (2, 8) float32, but in stage 1 it meets Reshaped()." in str(error)
    assert "return x.view(len(x), 7)" in error.traceback


@pytest.mark.parametrize(
    "stage",
    [
        nn.Sequential(nn.Linear(8, 8), nn.Linear(7, 8)),  # refused by its second layer
        nn.Sequential(nn.LayerNorm(8), nn.Linear(7, 8)),
        Products((8, 8), (7, 8)),
        Residual(nn.Linear(8, 7)),
        InForward(functools.partial(torch.ones(8, 7).__matmul__, torch.ones(8, 7))),  # nothing of what came in
    ],
)
def test_what_does_not_fit_inside_a_stage_is_not_blamed_on_two(stage: nn.Module) -> None:
    error = fails([nn.Linear(WIDTH, WIDTH), stage, nn.Linear(WIDTH, WIDTH)])
    assert (error.rank, error.action) == (1, "F0")
    assert "do not fit" not in str(error)
    assert str(error).startswith("rank 1 failed in F0 of step 0:")


def test_a_microbatch_too_small_for_batch_norm_is_not_blamed_on_two_stages() -> None:
    error = fails([nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)], data=[batch(M)])
    assert "do not fit" not in str(error)
    assert "Expected more than 1 value per channel" in str(error)


def test_a_custom_layer_returns_a_pair() -> None:
    error = fails(put(0, Pair()))
    assert (error.rank, error.action) == (0, "F0")
    assert "a stage passes on one tensor, but this one returned tuple" in str(error)


# a rank dies


def test_a_rank_is_killed_while_it_computes() -> None:
    error = fails(put(1, InForward(faulty.kill, call=2)))
    assert (error.rank, error.action, error.step) == (1, "F2", 0)
    assert str(error) == (
        "rank 1 was killed by SIGKILL (by hand, or by a system that ran out of memory) in F2 of step 0"
    )


def test_a_rank_is_killed_in_its_backward() -> None:
    error = fails(put(2, InBackward(faulty.kill)))
    assert (error.rank, error.action) == (2, "B0")


def test_a_rank_is_killed_while_it_waits() -> None:
    waits = AtArrival(faulty.in_a_thread(faulty.kill, seconds=0.7))
    error = fails([InForward(faulty.nap), nn.Linear(WIDTH, WIDTH), waits])
    assert (error.rank, error.step) == (2, 0)
    assert "killed by SIGKILL" in str(error)
    assert "while it waits for rank 1's F0 (step 0)" in str(error)


def test_a_rank_is_killed_while_it_starts_up() -> None:
    error = fails(put(1, AtArrival(faulty.kill)))
    assert (error.rank, error.action, error.step) == (1, None, None)
    assert "killed by SIGKILL" in str(error)
    assert "while it is starting up" in str(error)


def test_a_rank_is_killed_in_its_optimizer_step() -> None:
    only = [nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]  # one rank has weights, and so an optimizer
    error = fails(only, optimizer=lambda w: faulty.Optimizer(w, faulty.kill))
    assert (error.rank, error.step) == (1, 0)
    assert "killed by SIGKILL" in str(error)
    assert "while it is in its optimizer step (step 0)" in str(error)


def test_a_rank_ends_itself() -> None:
    error = fails(put(1, InForward(faulty.exit_at_once)))
    assert (error.rank, error.action) == (1, "F0")
    assert str(error) == "rank 1 ended by itself with exit code 3 in F0 of step 0"


def test_a_rank_crashes() -> None:
    error = fails(put(0, InForward(faulty.crash, call=1)))
    assert (error.rank, error.action) == (0, "F1")
    assert str(error) == "rank 0 was killed by SIGSEGV in F1 of step 0"


def fork_server() -> psutil.Process:
    living = [c for c in psutil.Process().children() if c.status() != psutil.STATUS_ZOMBIE]
    return next(c for c in living if "multiprocessing.forkserver" in " ".join(c.cmdline()))


@pytest.mark.parametrize("noticed_elsewhere", [False, True])
def test_the_fork_server_is_killed_between_two_runs(noticed_elsewhere: bool) -> None:
    server = fork_server()  # that the next run works is checked after each test
    server.kill()
    if noticed_elsewhere:
        server.wait(5)
    while server.is_running() and server.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)


def test_the_fork_server_is_killed_during_a_run() -> None:
    timer = threading.Timer(0.5, fork_server().kill)
    timer.start()
    error = fails(put(1, InForward(faulty.nap)))
    timer.join()
    assert error.rank is not None


# a rank hangs


@pytest.mark.parametrize("act", [faulty.sleep, faulty.loop, faulty.hold_the_lock])
def test_a_rank_hangs(act: Any) -> None:
    error = fails(put(1, InForward(act, call=1)), timeout=2)
    assert (error.rank, error.action, error.step) == (1, "F1", 0)
    first, *lines = str(error).splitlines()
    assert first == "no progress for 2 s: rank 1 computes F1."
    *places, remedy = lines
    wanted = ["rank 0 waits for rank 1's B0", "rank 1 computes F1", "rank 2 waits for rank 1's F1"]
    for line, place in zip(places, wanted, strict=True):
        assert re.fullmatch(rf"  {place}, for [12]\.\d s", line)
    assert remedy == "If an operation may take that long, give train(..., timeout=seconds) more."


def test_a_rank_hangs_while_another_talks_all_the_time() -> None:
    error = fails([AtArrival(faulty.chatter), InBackward(faulty.sleep), nn.Linear(WIDTH, WIDTH)], timeout=2)
    assert (error.rank, error.action) == (1, "B0")


def test_a_rank_hangs_while_it_starts_up() -> None:
    error = fails(put(1, AtArrival(faulty.sleep)), timeout=2)
    assert error.rank == 1
    assert "rank 1 is starting up" in str(error).splitlines()[0]
    assert "  rank 0 is connecting to the other ranks" in str(error)


def test_a_rank_hangs_in_its_optimizer() -> None:
    only = [nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    error = fails(only, optimizer=lambda w: faulty.Optimizer(w, faulty.sleep), timeout=2, steps=2)
    assert (error.rank, error.step) == (1, 0)
    assert "rank 1 is in its optimizer step" in str(error).splitlines()[0]


def test_slow_is_not_hung() -> None:
    """Each operation takes less than the time-out; the last rank waits for its first one for longer than that."""
    slow = functools.partial(time.sleep, 0.7)
    run = train([*(InForward(slow) for _ in range(3)), nn.Linear(WIDTH, WIDTH)], timeout=2, schedule=ppedu.naive(4, 1))
    assert run.timeline.makespan > 2


def test_a_run_that_was_stopped_for_a_while_did_not_hang() -> None:
    """Ctrl-Z stops this process and its ranks alike. Here they are stopped for longer than the time-out."""
    ranks: list[psutil.Process] = []

    def stop_and_go_on() -> None:
        ranks.extend(leftovers.children())
        script = f"for s in STOP CONT; do kill -$s {os.getpid()} {' '.join(str(r.pid) for r in ranks)}; sleep 2.5; done"
        os.spawnlp(os.P_NOWAIT, "sh", "sh", "-c", script)

    timer = threading.Timer(0.5, stop_and_go_on)
    timer.start()
    pace = ppedu.Costs(forward=0.1, backward=0.1)
    run = train(linears(), timeout=2, pace=pace)
    timer.join()
    os.wait()
    assert len(ranks) == P
    assert run.timeline.makespan > 2.5


# ended from outside


def test_a_run_is_stopped_by_another_thread() -> None:
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    error = fails(put(1, InForward(faulty.sleep)), stop=stop)
    assert isinstance(error, RunStopped)


def test_what_a_progress_function_raises_ends_the_run() -> None:
    def progress(done: int, steps: int, loss: float) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(linears(), progress=progress, steps=3)
    assert leftovers.children() == []


# refused before anything starts


@pytest.fixture
def no_start(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    with monkeypatch.context() as patch:

        def start(self: object) -> None:
            raise AssertionError("a process was started")

        patch.setattr(multiprocessing.process.BaseProcess, "start", start)
        yield
    assert {process.pid for process in psutil.Process().children(recursive=True)} == before


def test_the_check_that_nothing_starts_can_fail(no_start: None) -> None:
    with pytest.raises(AssertionError, match="a process was started"):
        train(linears())


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "batch smaller than m": ({"data": [batch(3)]}, ValueError, "batch of 3 samples cannot be cut into m=4 microbatches"),
    "a later batch smaller than m": ({"data": [batch(), batch(3)]}, ValueError, "batch of 3 samples cannot be cut"),
    "p > layers": ({"schedule": lambda: ppedu.gpipe(4, M)}, ValueError, "3 layers"),
    "p < 1": ({"schedule": lambda: ppedu.gpipe(0, M)}, ValueError, "p=0"),
    "m < 1": ({"schedule": lambda: ppedu.one_f_one_b(3, 0)}, ValueError, "m=0"),
    "a schedule that never finishes": (
        {"schedule": lambda: ppedu.Schedule.from_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n2F1,2B1,2F0,2B0")},
        ppedu.ScheduleError, "waits",
    ),
    "a schedule that lacks an operation": (
        {"schedule": lambda: ppedu.Schedule.from_csv("0F0,0B0\n1F0\n2F0,2B0")}, ppedu.ScheduleError, "B0",
    ),
    "schedule a name": ({"schedule": "1f1b"}, TypeError, "a schedule is what ppedu.gpipe"),
    "no model": ({"model": None}, TypeError, "a model is a sequence of layers"),
    "model a function": ({"model": torch.relu}, TypeError, "a model is a sequence of layers"),
    "data a tensor": ({"data": torch.ones(8, 8)}, TypeError, r"data is a list of \(inputs, targets\) batches"),
    "data empty": ({"data": []}, TypeError, "at least one"),
    "data one batch": ({"data": batch()}, TypeError, r"a batch is \(inputs, targets\), two tensors, but data gave Tensor"),
    "data of arrays": ({"data": [([1.0], [2.0])]}, TypeError, r"two tensors, but data gave \(list, list\)"),
    "samples without targets": ({"data": [(torch.ones(8, 8), torch.ones(4, 8))]}, ValueError, r"\(8, 8\) and \(4, 8\)"),
    "optimizer made already": ({"optimizer": torch.optim.SGD([torch.ones(1)], lr=0.1)}, TypeError, "each rank makes its own"),
    "loss no function": ({"loss_fn": "mse"}, TypeError, "loss_fn is a function"),
    "pace a number": ({"pace": 0.02}, TypeError, "pace is ppedu.Costs"),
    "no steps": ({"steps": 0}, ValueError, "steps=0"),
    "steps a bool": ({"steps": True}, ValueError, "steps=True"),
    "steps half": ({"steps": 1.5}, ValueError, "steps=1.5"),
    "steps a string": ({"steps": "3"}, ValueError, "steps='3'"),
    "an unknown device": ({"device": "gpu"}, ValueError, "device is 'auto', 'cpu' or 'cuda': device='gpu'"),
    "no time": ({"timeout": 0}, ValueError, "timeout=0"),
    "seed a string": ({"seed": "x"}, ValueError, "seed is a whole number .* seed='x'"),
    "progress a string": ({"progress": "x"}, TypeError, "progress is True, False or a function"),
    "stop a bool": ({"stop": True}, TypeError, "stop is a threading.Event: stop=True"),
    "no layers": ({"model": nn.Sequential()}, ValueError, "the model has no layers"),
    "data a generator": ({"data": (x for x in ())}, TypeError, r"take list\(...\). Got generator"),
    "one batch, in no list": ({"data": batch()}, TypeError, r"One batch goes in as \[\(inputs, targets\)\]"),
    "time a string": ({"timeout": "1"}, ValueError, "timeout='1'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_is_refused_before_anything_starts(no_start: None, case: str) -> None:
    change, error, text = REFUSED[case]
    with pytest.raises(error, match=text) as caught:  # noqa: PT012
        if callable(change.get("schedule")):
            change = {"schedule": change["schedule"]()}
        train(**{"model": linears(), **change})
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("what", ["lock", "file", "generator"])
def test_a_model_that_cannot_be_sent_is_refused_before_anything_starts(
    no_start: None, what: str, tmp_path: Any
) -> None:
    layers = linears()
    with open(tmp_path / "file", "w") as file:
        layers[1].extra = {"lock": threading.Lock(), "file": file, "generator": (i for i in range(3))}[what]  # type: ignore[assignment]
        with pytest.raises(TypeError, match="stage 1 cannot be sent to another process"):
            train(layers)


def test_a_parametrized_layer_is_refused_with_its_remedy(no_start: None) -> None:
    layers = linears()
    torch.nn.utils.parametrizations.weight_norm(layers[1])
    with pytest.raises(
        TypeError, match=r"(?s)stage 1 cannot be sent.*remove_parametrizations\(layer, 'weight'\)"
    ) as caught:
        train(layers)
    assert "locks" not in str(caught.value)


def test_functions_that_cannot_be_sent_are_refused_before_anything_starts(no_start: None) -> None:
    lock = threading.Lock()

    def with_lock(*_: Any) -> Any:
        with lock:
            return batch()

    for name in ("loss_fn", "optimizer", "data"):
        with pytest.raises(TypeError, match=f"{name} cannot be sent to another process"):
            train(linears(), **{name: with_lock})


# a loss that is not finite


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_the_run(value: float) -> None:
    def data(step: int) -> tuple[Tensor, Tensor]:
        inputs, targets = torch.ones(8, WIDTH), torch.zeros(8, WIDTH)
        if step == 2:
            inputs[5] = value  # in microbatch 2 of samples 4 and 5
        return inputs, targets

    layers = linears()
    with pytest.warns(UserWarning, match="the run ended early: the loss of microbatch 2 in step 2 is"):
        run = train(layers, data=data, steps=5)
    assert run.stopped is not None
    assert "microbatch 2 in step 2" in run.stopped
    assert len(run.losses) == 3
    assert all(math.isfinite(loss) for loss in run.losses[:2])
    assert not math.isfinite(run.losses[2])
    assert len(run.timelines) == 3
    assert f"stopped: {run.stopped}" in repr(run)
    assert all(torch.isfinite(w).all() for layer in layers for w in layer.parameters())


def test_the_weights_are_those_before_the_step_that_is_not_finite() -> None:
    bad = (torch.full((8, WIDTH), math.nan), torch.zeros(8, WIDTH))
    torch.manual_seed(0)
    stopped = linears()
    wanted = [nn.Linear(WIDTH, WIDTH) for _ in range(P)]
    for layer, other in zip(wanted, stopped, strict=True):
        layer.load_state_dict(other.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(stopped, data=[batch(), batch(), bad], steps=3)
    train(wanted, steps=2)
    for layer, other in zip(wanted, stopped, strict=True):
        assert torch.equal(layer.weight, other.weight)  # type: ignore[arg-type]


def test_a_run_that_fails_leaves_the_model_as_it_was() -> None:
    layers = put(1, InForward(faulty.boom, call=2 * M))
    before = [w.clone() for layer in layers for w in layer.parameters()]
    fails(layers, steps=4)
    after: Sequence[Tensor] = [w for layer in layers for w in layer.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_signals_that_end_a_rank_are_named() -> None:
    error = fails(put(1, InForward(functools.partial(signal.raise_signal, signal.SIGTERM))))
    assert "rank 1 was killed by SIGTERM in F0 of step 0" in str(error)
