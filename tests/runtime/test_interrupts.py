"""Ctrl-C at any moment: KeyboardInterrupt and nothing else, no rank left, no noise, and the next run works."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from driven import ROOT, Driven
from torch import nn

import ppedu
from ppedu.runtime.processes.interrupts import PATIENCE, interrupts_held

pytestmark = pytest.mark.slow
PROGRAM = str(ROOT / "tests" / "helpers" / "interrupted.py")
FIRST = 4.0  # seconds: a first start takes 2 to 3, more on a busy machine
LATER = 0.3  # seconds: a later run of two steps takes some 0.2 to 0.3
EXACTLY = {"interrupted, nothing left", "completed before, nothing left"}


def interrupted(program: Driven, delay: float) -> tuple[str, float]:
    """(what became of a run, seconds it took to end) after Ctrl-C so long after train() was called."""
    program.say("interrupt 2")
    assert program.line() == "go"
    time.sleep(delay)
    program.interrupt()
    began = time.perf_counter()
    return program.line(), time.perf_counter() - began


def completes(program: Driven, how: str = "run") -> None:
    program.say(f"{how} 2")
    assert program.line() == "go"
    assert program.line() == "completed, nothing left"


def many_moments(seed: int, rounds: int) -> Counter[str]:
    """A fresh interpreter: Ctrl-C in its very first start, then in later ones."""
    moments, seen = random.Random(seed), Counter[str]()
    with Driven(PROGRAM) as program:
        assert program.line() == "ready"
        for round_ in range(rounds):
            outcome, took = interrupted(program, moments.uniform(0, LATER if round_ else FIRST))
            assert outcome in EXACTLY
            assert took < 5
            seen[outcome] += 1
            if round_ in (0, 7):
                completes(program)
        assert program.end() == ([], [])
    return seen


@pytest.mark.parametrize("starts", [1, pytest.param(30, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_ctrl_c_at_any_moment(starts: int) -> None:
    """14 moments, other ones each time, of which one in a first start; and thirty times as many, two interpreters at a time."""
    seed = random.randrange(10**6)
    print("seed", seed)
    with ThreadPoolExecutor(2) as pool:
        seen = sum(pool.map(many_moments, range(seed, seed + starts), [14] * starts), Counter[str]())
    assert seen.total() == 14 * starts
    assert seen["interrupted, nothing left"] > 5 * starts  # the others came when the run was over already


def test_a_first_start_ends_at_once() -> None:
    with Driven(PROGRAM) as program:
        assert program.line() == "ready"
        outcome, took = interrupted(program, 0.5)
        assert outcome == "interrupted, nothing left"
        again, took_again = interrupted(program, 0.2)  # it finds a fork server that is not ready yet
        assert again == outcome
        began = time.perf_counter()
        completes(program, "thread")
        assert max(took, took_again) < time.perf_counter() - began  # neither waited until torch was imported
        program.say("thread 20")  # Python interrupts its main thread alone: what another one trains goes on
        assert program.line() == "go"
        time.sleep(0.3)
        program.interrupt()
        assert program.line() == "interrupted outside, completed, nothing left"
        assert program.end() == ([], [])


# what holds the interrupt back


def test_an_interrupt_is_held_back_until_it_may_come() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts_held():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        reached.append("end")
    assert reached == ["end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_comes_in_where_it_is_let_through() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts_held() as held:  # noqa: PT012
        held.let_through()
        signal.raise_signal(signal.SIGINT)
        reached.append("before")
        held.let_through()
        reached.append("after")
    assert reached == ["before"]


def test_who_holds_it_twice_lets_it_go_at_the_end() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts_held():  # noqa: PT012
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
        reached.append("between")
    assert reached == ["between"]


def test_a_second_one_after_a_while_comes_in_at_once_but_where_it_must_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppedu.runtime.processes.interrupts.PATIENCE", 0.05)
    assert PATIENCE == 1.0
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts_held() as held:  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.1)
        with held.uninterruptible():
            signal.raise_signal(signal.SIGINT)
        reached.append("held")
        signal.raise_signal(signal.SIGINT)
        reached.append("after")
    assert reached == ["held"]


def test_who_ignores_interrupts_or_has_a_handler_keeps_it() -> None:
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append("mine"))
    try:
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            assert heard == []
        assert heard == ["mine"]
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_shapes_are_checked_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes go through a copy of the model: once, they went through the model itself, and Ctrl-C left it without weights."""
    layers = [nn.Linear(8, 8) for _ in range(2)]
    before = [(w, w.clone()) for layer in layers for w in layer.parameters()]

    def interrupted(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        assert all(layer is not mine for mine in layers)
        raise KeyboardInterrupt

    monkeypatch.setattr(nn.Linear, "forward", interrupted)
    data = [(torch.ones(4, 8), torch.ones(4, 8))]
    with pytest.raises(KeyboardInterrupt):
        ppedu.train(layers, ppedu.gpipe(2, 2), data, nn.functional.mse_loss, None)
    after = [w for layer in layers for w in layer.parameters()]
    for (same, kept), now in zip(before, after, strict=True):
        assert now is same
        assert torch.equal(now, kept)


def test_two_threads_train_at_once() -> None:
    """Starting ranks changes how multiprocessing prepares them, for a moment: runs side by side must not mix that up."""
    losses: dict[int, tuple[float, ...]] = {}

    def train(number: int) -> None:
        layers = [nn.Linear(8, 8) for _ in range(2)]
        data = [(torch.ones(4, 8), torch.full((4, 8), float(number)))]
        for _ in range(3):
            run = ppedu.train(layers, ppedu.gpipe(2, 2), data, nn.functional.mse_loss, None, steps=2, progress=False)
        losses[number] = run.losses

    from multiprocessing import spawn

    before = spawn.get_preparation_data
    threads = [threading.Thread(target=train, args=(number,)) for number in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert losses[0][0] < 10 < losses[100][0]
    assert spawn.get_preparation_data is before
