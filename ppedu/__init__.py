"""Pipeline parallelism, learnt by running it: one list of operations is validated, simulated, run, measured and drawn.

>>> import ppedu
>>> ppedu.simulate(ppedu.one_f_one_b(p=4, m=8)).makespan
22.0

The core is imported at once, for it is light. What needs matplotlib or torch is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ppedu.core.costs import Costs
from ppedu.core.operations import Action, Kind, Overlap, ScheduleError
from ppedu.core.schedule import Schedule, dependencies, dependents
from ppedu.core.simulate import simulate
from ppedu.core.structure import Violation
from ppedu.core.spans import Span
from ppedu.core.timeline import Timeline
from ppedu.core.validate import violations
from ppedu.optimizer import Optimized, lower_bound, optimize
from ppedu.picture.live import explore, explore_compare
from ppedu.schedules import (
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

if TYPE_CHECKING:  # for type checkers and editors: the same names as in _LATE
    from ppedu.picture.paper import plot_compare, plot_memory, plot_timeline
    from ppedu.runtime.errors import RunError, RunStopped
    from ppedu.runtime.machine import machine
    from ppedu.runtime.model.split import split
    from ppedu.runtime.run import Run
    from ppedu.runtime.torch_engine.convert import to_torch
    from ppedu.runtime.train import train

__version__ = "0.1.0"

__all__ = [
    "Action",
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
    "Violation",
    "__version__",
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
    "simulate",
    "split",
    "to_torch",
    "train",
    "violations",
    "zb_h1",
    "zb_h2",
    "zb_v",
]

_LATE = {
    "Run": "ppedu.runtime.run",
    "RunError": "ppedu.runtime.errors",
    "RunStopped": "ppedu.runtime.errors",
    "plot_compare": "ppedu.picture.paper",
    "plot_memory": "ppedu.picture.paper",
    "plot_timeline": "ppedu.picture.paper",
    "machine": "ppedu.runtime.machine",
    "split": "ppedu.runtime.model.split",
    "to_torch": "ppedu.runtime.torch_engine.convert",
    "train": "ppedu.runtime.train",
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
