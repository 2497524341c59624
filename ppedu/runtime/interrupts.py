"""Ctrl-C while ranks start, run and end: held back, and let through where nothing is left half done."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 1.0  # seconds after which a second Ctrl-C no longer waits for a good moment


class Held:
    """Ctrl-C, while it is held back. `previous` is the handler that it would have met."""

    def __init__(self, previous: Callable[[int, Any], Any] | None = None) -> None:
        self._previous = previous
        self._came: float | None = None
        self._firmly = False

    def handle(self, number: int, frame: Any) -> None:
        now = time.perf_counter()
        if self._came is None:
            self._came = now
        elif not self._firmly and now - self._came > PATIENCE:
            self.let_through()

    def let_through(self) -> None:
        """What Ctrl-C does otherwise (it raises KeyboardInterrupt), if it came."""
        if self._came is not None and self._previous is not None:
            self._came = None
            self._previous(signal.SIGINT, None)

    @contextmanager
    def firmly(self) -> Iterator[None]:
        """Not even a second Ctrl-C breaks in: for what takes no time."""
        before, self._firmly = self._firmly, True
        try:
            yield
        finally:
            self._firmly = before


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
def born_deaf() -> Iterator[None]:
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
