"""Pipeline parallelism, learnt by running it: one list of operations is validated, simulated, run, measured and drawn.

>>> import ppedu
>>> ppedu.simulate(ppedu.one_f_one_b(p=4, m=8)).makespan
22.0

The core is imported at once, for it is light. What needs matplotlib or torch is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ppedu import schedules
from ppedu.core.costs import Costs
from ppedu.core.operations import Action, Kind, Overlap, ScheduleError
from ppedu.core.schedule import Schedule, dependencies, dependents
from ppedu.core.simulate import simulate
from ppedu.core.spans import Span
from ppedu.core.structure import Violation
from ppedu.core.timeline import Timeline
from ppedu.core.validate import violations
from ppedu.optimizer import Optimized, lower_bound, optimize
from ppedu.picture.live import explore, explore_compare
from ppedu.schedules import *  # noqa: F403 - its __all__: SCHEDULES and each builder

if TYPE_CHECKING:  # for type checkers and editors: the same names as in _LATE
    from ppedu import theory as theory
    from ppedu.picture.paper import plot_compare as plot_compare
    from ppedu.picture.paper import plot_memory as plot_memory
    from ppedu.picture.paper import plot_timeline as plot_timeline
    from ppedu.runtime.errors import RunError as RunError
    from ppedu.runtime.errors import RunStopped as RunStopped
    from ppedu.runtime.machine import machine as machine
    from ppedu.runtime.model.split import split as split
    from ppedu.runtime.run import Run as Run
    from ppedu.runtime.torch_engine.convert import to_torch as to_torch
    from ppedu.runtime.train import train as train

__version__ = "0.1.0"

_LATE = {
    "Run": "runtime.run",
    "RunError": "runtime.errors",
    "RunStopped": "runtime.errors",
    "machine": "runtime.machine",
    "plot_compare": "picture.paper",
    "plot_memory": "picture.paper",
    "plot_timeline": "picture.paper",
    "split": "runtime.model.split",
    "theory": "theory",
    "to_torch": "runtime.torch_engine.convert",
    "train": "runtime.train",
}

__all__ = [
    "Action", "Costs", "Kind", "Optimized", "Overlap", "Schedule", "ScheduleError", "Span", "Timeline", "Violation",
    "__version__", "dependencies", "dependents", "explore", "explore_compare", "lower_bound", "optimize", "simulate",
    "violations",
]  # fmt: skip
__all__ += schedules.__all__
__all__.extend(_LATE)


def __getattr__(name: str) -> object:
    """Import what a late name stands for, once (PEP 562)."""
    if name not in _LATE:
        raise AttributeError(f"module 'ppedu' has no attribute '{name}'")
    module = import_module(f"ppedu.{_LATE[name]}")
    value: object = getattr(module, name, module)  # theory is a module itself
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
