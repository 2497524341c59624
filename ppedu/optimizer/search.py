"""The search itself: the problem in whole numbers, as intervals of OR-Tools' CP-SAT solver. Nothing else imports that.

**Microbatches in order.** On each stage each kind of step is run for microbatch 0, then 1, and so on. That loses
nothing, for microbatches are equal: in any legal order, call the j-th to run on each stage and kind microbatch j. When a
step runs for the j-th time, the step that it needs had ended at least j times; so every dependency still holds, each at
the same time, and what is in flight is the same count. It saves the solver m! orders that differ in names alone.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from ppedu.core.operations import Action, F
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.optimizer.bounds import bound_of, heads_and_tails
from ppedu.optimizer.problem import Problem, Step

LONGEST = 10**9
"""Ticks that the whole may take. Rounded down to ticks, times of one order differ by a millionth at most."""

INSTALL = 'pip install "ortools>=9.12"'


@dataclass(frozen=True, slots=True)
class Ticks:
    """The problem with all times in whole ticks, rounded down, so that a bound on it is one on the problem."""

    asked: Problem
    per_unit: float

    @classmethod
    def of(cls, asked: Problem, longest: float) -> Ticks:
        """longest: a makespan that is reached. A power of ten keeps decimal costs exact; common factors are taken out."""
        scale = 10.0 ** math.floor(math.log10(LONGEST / longest)) if longest else 1.0

        def ticks(value: float) -> int:
            return math.floor(value * scale * (1 + 1e-12))  # 0.3 * 1e7 is 3e6, less a rounding

        times = {step: ticks(asked.duration(step)) for step in asked.steps}
        transfer = ticks(asked.costs.transfer)
        common = math.gcd(transfer, *times.values()) or 1
        return cls(
            asked.with_times({step: time // common for step, time in times.items()}, transfer // common), scale / common
        )


@dataclass(slots=True)
class Found:
    """What the solver has found so far: start ticks by operation, and the bound in ticks."""

    starts: dict[Action, int] = field(default_factory=dict)
    bound: float = 0.0


def solver_module() -> Any:
    """OR-Tools' CP-SAT. Raises ImportError with the line that installs it."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ImportError(
            f"optimize searches with the solver of OR-Tools, which cannot be imported here ({error}). Install it: {INSTALL} "
            "(lower_bound and all other of ppedu work without)",
            name="ortools",
        ) from error
    return cp_model


def search(
    ticks: Ticks,
    start: Schedule,
    *,
    seconds: float,
    seed: int,
    workers: int,
    tell: Callable[[Schedule | None, float], None],
) -> tuple[Schedule | None, float]:
    """(the best order that the solver finds, a proven bound in the unit of the costs), after `seconds` at most.

    start: a legal order of single steps, from which the solver starts. tell: called from this thread, some ten times a
    second, with a new order, if there is one, and the bound.
    """
    cp_model = solver_module()
    model, starts = _model(cp_model, ticks.asked, start)
    solver, found = cp_model.CpSolver(), Found()
    parameters = solver.parameters
    parameters.max_time_in_seconds, parameters.random_seed, parameters.num_workers = seconds, seed, workers
    parameters.catch_sigint_signal = False  # Ctrl-C is Python's: see _watched

    listens: Any = cp_model.CpSolverSolutionCallback

    class Callback(listens):  # type: ignore[misc]  # a class that is known on use only
        def on_solution_callback(self) -> None:
            found.starts = {action: self.value(start) for action, start in starts.items()}

    def better_bound(bound: float) -> None:
        found.bound = max(found.bound, bound)

    solver.best_bound_callback = better_bound
    heard: dict[Action, int] = {}

    def report() -> None:
        nonlocal heard
        new = found.starts is not heard and bool(found.starts)
        heard = found.starts
        tell(_order(ticks.asked, heard) if new else None, found.bound / ticks.per_unit)

    _watched(solver, lambda: solver.solve(model, Callback()), time.perf_counter() + seconds, report)
    better_bound(solver.best_objective_bound)
    report()
    return (_order(ticks.asked, heard) if heard else None), found.bound / ticks.per_unit


def _watched(solver: Any, solve: Callable[[], object], deadline: float, report: Callable[[], None]) -> None:
    """Run the solver beside this thread, which so hears Ctrl-C at once, and stop it whatever happens here."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            solve()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="ppedu optimize", daemon=True)
    thread.start()
    try:
        while thread.is_alive() and time.perf_counter() < deadline:
            thread.join(0.1)
            report()
    finally:
        while thread.is_alive():  # again and again: a stop before the solver has begun is lost
            solver.stop_search()
            thread.join(0.02)
    if failed:
        raise failed[0]


def _model(cp_model: Any, asked: Problem, start: Schedule) -> tuple[Any, dict[Action, Any]]:
    """An interval for each operation; the start of each, by operation; the makespan to be made small."""
    model = cp_model.CpModel()
    known = simulate(start, asked.costs)
    horizon, least = round(known.makespan), math.ceil(bound_of(asked) - 1e-6)
    heads, tails = heads_and_tails(asked)
    makespan = model.new_int_var(min(least, horizon), horizon, "makespan")
    starts: dict[Action, Any] = {}
    lanes: list[list[Any]] = [[] for _ in range(asked.p)]
    for step in asked.steps:
        length, head, tail = round(asked.duration(step)), round(heads[step]), round(tails[step])
        for j in range(asked.m):
            action = Action(*step, j)
            first, last = head + j * length, horizon - tail - (asked.m - j) * length
            starts[action] = begin = model.new_int_var(first, last, str(action))
            lanes[asked.rank_of_stage[step[0]]].append(model.new_fixed_size_interval_var(begin, length, str(action)))
            if j:
                model.add(begin >= starts[Action(*step, j - 1)] + length)
        model.add(makespan >= starts[Action(*step, asked.m - 1)] + length + tail)
    for lane in lanes:
        model.add_no_overlap(lane)
    _add_needs(model, asked, starts)
    _add_limits(model, asked, starts)
    began: dict[Step, list[int]] = {step: [] for step in asked.steps}
    for span in sorted(known.spans, key=attrgetter("start")):
        for action in span.action.actions:
            began[action.stage, action.kind].append(round(span.start))
    for step, times in began.items():  # the j-th to run is microbatch j here, whatever the start order calls it
        for j, begin in enumerate(times):
            model.add_hint(starts[Action(*step, j)], begin)
    model.minimize(makespan)
    return model, starts


def _add_needs(model: Any, asked: Problem, starts: dict[Action, Any]) -> None:
    for step, needed in asked.links().items():
        for other, delay in needed:
            for j in range(asked.m):
                ended = starts[Action(*other, j)] + round(asked.duration(other) + delay)
                model.add(starts[Action(*step, j)] >= ended)


def _add_limits(model: Any, asked: Problem, starts: dict[Action, Any]) -> None:
    """What a rank keeps. With one stage and microbatches in order, forward j + limit waits until j is freed."""
    for rank, limit in enumerate(asked.limits or ()):
        stages, kept = asked.shape.stages_of(rank), []
        for stage in stages:
            length = round(asked.duration((stage, asked.frees)))
            for j in range(asked.m):
                begin, end = starts[Action(stage, F, j)], starts[Action(stage, asked.frees, j)] + length
                if len(stages) == 1:
                    if j + limit < asked.m:
                        model.add(starts[Action(stage, F, j + limit)] >= end)
                    continue
                size = model.new_int_var(0, 2 * LONGEST, "")
                kept.append(model.new_interval_var(begin, size, end, f"{stage}F{j} is kept"))
        if kept and limit < len(kept):
            model.add_cumulative(kept, [1] * len(kept), limit)


def _order(asked: Problem, starts: dict[Action, int]) -> Schedule:
    """Each rank's operations by start. Those that take no time stand where what they need, and what they free, asks."""
    place: dict[Step, int] = {step: i for i, step in enumerate(asked.steps)}

    def key(action: Action) -> tuple[int, int, int, int]:
        step, start = (action.stage, action.kind), starts[action]
        return start, start + round(asked.duration(step)), action.microbatch, place[step]

    orders: list[list[Action]] = [[] for _ in range(asked.p)]
    for action in sorted(starts, key=key):
        orders[asked.rank_of_stage[action.stage]].append(action)
    return replace(asked.shape, orders=tuple(map(tuple, orders)))
