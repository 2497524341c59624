"""Pipeline parallelism, learnt by running it: one list of operations is validated, simulated, run, measured and drawn.

>>> import ppedu
>>> ppedu.simulate(ppedu.one_f_one_b(p=4, m=8)).makespan
22.0

The core is imported at once, for it is light. What needs matplotlib or torch is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ppedu.builders import (
    SCHEDULES,
    dualpipe,
    dualpipev,
    forward_only,
    gpipe,
    interleaved,
    looped_bfs,
    naive,
    one_f_one_b,
    zb_h1,
    zb_h2,
    zb_v,
)

# `explore`, `optimize` and `simulate` are modules and functions. Importing a module binds it in its package, but only the first time:
# once these lines have bound the functions, no later import of the modules takes their place. So they cannot come late.
from ppedu.explore import explore
from ppedu.optimize import Optimized, lower_bound, optimize
from ppedu.schedule import Action, Costs, Kind, Overlap, Schedule, ScheduleError, dependencies, dependents
from ppedu.simulate import simulate
from ppedu.timeline import Span, Timeline
from ppedu.validate import Violation, violations

if TYPE_CHECKING:  # for type checkers and editors: the same names as in _LATE
    from ppedu.exercises import Challenge, check, progress, reveal, score, scores
    from ppedu.explore.compare import explore_compare
    from ppedu.explore.puzzle import puzzle
    from ppedu.plot import plot_compare, plot_memory, plot_timeline
    from ppedu.runtime.errors import RunError, RunStopped
    from ppedu.runtime.machine import machine
    from ppedu.runtime.split import split
    from ppedu.runtime.to_torch import TorchRun, to_torch, train_with_torch
    from ppedu.runtime.train import Run, train

__version__ = "0.1.0"

__all__ = [
    "Action",
    "Challenge",
    "Costs",
    "Kind",
    "Optimized",
    "Overlap",
    "Run",
    "RunError",
    "RunStopped",
    "SCHEDULES",
    "Schedule",
    "ScheduleError",
    "Span",
    "Timeline",
    "TorchRun",
    "Violation",
    "__version__",
    "check",
    "dependencies",
    "dependents",
    "dualpipe",
    "dualpipev",
    "explore",
    "explore_compare",
    "forward_only",
    "gpipe",
    "interleaved",
    "looped_bfs",
    "lower_bound",
    "machine",
    "naive",
    "one_f_one_b",
    "optimize",
    "plot_compare",
    "plot_memory",
    "plot_timeline",
    "progress",
    "puzzle",
    "reveal",
    "score",
    "scores",
    "simulate",
    "split",
    "to_torch",
    "train",
    "train_with_torch",
    "violations",
    "zb_h1",
    "zb_h2",
    "zb_v",
]

_LATE = {
    "Challenge": "ppedu.exercises",
    "Run": "ppedu.runtime.train",
    "RunError": "ppedu.runtime.errors",
    "RunStopped": "ppedu.runtime.errors",
    "TorchRun": "ppedu.runtime.to_torch",
    "check": "ppedu.exercises",
    "explore_compare": "ppedu.explore.compare",
    "plot_compare": "ppedu.plot",
    "plot_memory": "ppedu.plot",
    "plot_timeline": "ppedu.plot",
    "machine": "ppedu.runtime.machine",
    "progress": "ppedu.exercises",
    "puzzle": "ppedu.explore.puzzle",
    "reveal": "ppedu.exercises",
    "score": "ppedu.exercises",
    "scores": "ppedu.exercises",
    "split": "ppedu.runtime.split",
    "to_torch": "ppedu.runtime.to_torch",
    "train": "ppedu.runtime.train",
    "train_with_torch": "ppedu.runtime.to_torch",
}


def __getattr__(name: str) -> object:
    """Import what a late name stands for, once (PEP 562)."""
    if name not in _LATE:
        raise AttributeError(f"module 'ppedu' has no attribute '{name}'")
    value: object = getattr(import_module(_LATE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
