"""Ctrl-C while ranks start, run and end: held back, and let through where nothing is left half done."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

GRACE = 2.0  # seconds after SIGTERM in which the reason for it may be heard
PATIENCE = 1.0  # seconds after which a second Ctrl-C no longer waits for a good moment


class Held:
    """Ctrl-C, while it is held back. `previous` is the handler that it would have met."""

    def __init__(self, previous: Callable[[int, Any], Any] | None = None) -> None:
        self._previous = previous
        self._came: float | None = None
        self._uninterruptible = False

    def handle(self, number: int, frame: Any) -> None:
        now = time.perf_counter()
        if self._came is None:
            self._came = now
        elif not self._uninterruptible and now - self._came > PATIENCE:
            self.let_through()

    def let_through(self) -> None:
        """What Ctrl-C does otherwise (it raises KeyboardInterrupt), if it came."""
        if self._came is not None and self._previous is not None:
            self._came = None
            self._previous(signal.SIGINT, None)

    @contextmanager
    def uninterruptible(self) -> Iterator[None]:
        """Not even a second Ctrl-C breaks in: for what takes no time."""
        before, self._uninterruptible = self._uninterruptible, True
        try:
            yield
        finally:
            self._uninterruptible = before


def import_aside(name: str) -> None:
    """Import a module that takes seconds. In a thread: Ctrl-C comes at once, and yet leaves nothing that is half imported."""
    thread = threading.Thread(target=import_module, args=(name,), name=f"import {name}")
    thread.start()
    while thread.is_alive():
        thread.join(0.05)


@contextmanager
def interrupts_held() -> Iterator[Held]:
    """Hold Ctrl-C back; what came meanwhile is let through at the end, or wherever `let_through` is called.

    A handler, not a signal mask: with more threads than one, as in a notebook's kernel, the signal finds another
    thread, and then interrupts this one all the same. Outside the main thread Python raises no KeyboardInterrupt.
    """
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield Held()
        return
    outer = getattr(previous, "__self__", None)
    if isinstance(outer, Held):
        yield outer
        return
    held = Held(previous)
    signal.signal(signal.SIGINT, held.handle)
    try:
        yield held
    finally:
        if signal.getsignal(signal.SIGINT) == held.handle:
            signal.signal(signal.SIGINT, previous)
        held.let_through()


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Processes and threads that are started in here have SIGINT blocked from their first moment on: a terminal sends
    it to them too, and it would end them before they can say that they ignore it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Ended(BaseException):
    """SIGTERM came, and nothing explained it in time. The signal itself is raised again once all is tidied up."""


class Terminations:
    """SIGTERM, while it is held back. `previous` is what it would have met."""

    def __init__(self, previous: Any = signal.SIG_DFL) -> None:
        self.previous = previous
        self.came: float | None = None
        self.failed: float | None = None  # when an error explained it all

    def handle(self, number: int, frame: Any) -> None:
        now = time.perf_counter()
        if self.failed is None:
            self.came = self.came or now
        elif now - self.failed < GRACE:  # this process is ending by itself, and says why
            again = threading.Timer(GRACE, os.kill, (os.getpid(), signal.SIGTERM))
            again.daemon = True
            again.start()
        else:
            self.let_through()

    def look(self) -> None:
        """Raise Ended if it came, and nothing has explained it since."""
        if self.came is not None and time.perf_counter() - self.came > GRACE:
            raise Ended

    def let_through(self) -> None:
        signal.signal(signal.SIGTERM, self.previous)
        signal.raise_signal(signal.SIGTERM)


@contextmanager
def terminations_held() -> Iterator[Terminations]:
    """Hold SIGTERM back, so that the reason can be heard first, and told: who starts many processes ends all of them when
    one has failed. If nothing explains it, it does at the end what it does otherwise."""
    previous = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or previous is None:
        yield Terminations()
        return
    earlier = getattr(previous, "__self__", None)
    if isinstance(earlier, Terminations):  # it stayed after a failure: what it would have let through is what counts
        previous = earlier.previous
    held = Terminations(previous)
    signal.signal(signal.SIGTERM, held.handle)
    try:
        yield held
    except Ended:
        held.let_through()
        raise
    except Exception:
        held.failed = time.perf_counter()  # the handler stays: torchrun sends SIGTERM as soon as one rank has ended
        raise
    except BaseException:
        signal.signal(signal.SIGTERM, previous)
        raise
    if held.came is not None:
        held.let_through()
    signal.signal(signal.SIGTERM, previous)
