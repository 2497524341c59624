"""Measurements in a process such as ranks are: fresh, one thread, with their malloc."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ppedu.runtime.processes.launch import run_ranks
from ppedu.runtime.processes.rank_main import Context
from ppedu.runtime.processes.watch import Place


def in_a_rank(function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function(*arguments)` returns there."""
    (found,) = run_ranks(
        _called, [(function, arguments)], lambda *_: Place("measures", None, None, False, time.perf_counter()),
        lambda *_: None, timeout=600,
    )  # fmt: skip
    return found


def _called(work: tuple[Callable[..., Any], tuple[Any, ...]], context: Context) -> Any:
    function, arguments = work
    return function(*arguments)
