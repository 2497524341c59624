"""Measurements in a process such as ranks are: fresh, one thread, with their malloc."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from ppedu.runtime.processes.launch import run_ranks
from ppedu.runtime.processes.rank_process import Sender
from ppedu.runtime.processes.watch import Place


def in_a_rank(function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function(*arguments)` returns there."""
    (found,) = run_ranks(
        _called, [(function, arguments)], [0.0], timeout=600,
        where=lambda cells, rank: Place("measures", None, None, False, time.perf_counter()),
        on_message=lambda rank, kind, content: None,
    )  # fmt: skip
    return found


def _called(sender: Sender, cells: Any, job: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    torch.set_num_threads(1)
    function, arguments = job
    return function(*arguments)
