"""The best order for given costs under a cap on memory, found by a constraint solver.

Letters: p ranks, m microbatches; F forward, B full backward, I and W its halves (input's and weights' gradient).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from operator import itemgetter
from typing import Any, TypeAlias

from ppedu.core.checks import whole
from ppedu.core.costs import Costs
from ppedu.core.format import number
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.optimizer.bounds import bound_of, lower_bound, whole_is_cheaper
from ppedu.optimizer.greedy import greedy
from ppedu.optimizer.known import builtins, keeps_to, one_by_one, why_not, with_halves
from ppedu.optimizer.problem import MemoryLimit, Problem, problem
from ppedu.optimizer.result import ROUNDING, Optimized
from ppedu.optimizer.search import Ticks, search, solver_module

__all__ = ["Optimized", "lower_bound", "optimize"]

Progress: TypeAlias = Callable[[float, float, float], None]
"""Called with (seconds, best makespan so far, proven lower bound)."""

_UNIT_COSTS = Costs()


def optimize(
    p: int,
    m: int,
    costs: Costs = _UNIT_COSTS,
    memory_limit: MemoryLimit = None,
    *,
    split_backward: bool = True,
    rank_of_stage: tuple[int, ...] | None = None,
    start: Schedule | None = None,
    time_limit: float = 10.0,
    progress: bool | Progress = True,
    seed: int = 0,
    workers: int | None = None,
) -> Optimized:
    """The order with the smallest predicted makespan that is found in `time_limit` seconds, and how good it can be at all.

    costs: as for `simulate`, one number or one a stage; a run's `timeline.costs()` plans with what was measured.
    memory_limit: the most stage-microbatches that a rank may have in flight (`Timeline.peak_in_flight`), one number or one
        a rank. A rank's own order alone decides what it keeps, so the limit holds in every run, whatever it measures.
    split_backward: each backward is two operations, I and W, and W may wait. Where `costs` give no I and W, they are
        half of B each.
    rank_of_stage: where each stage is, by default stage r on rank r: (0, 1, 1, 0) is a V, (0, 1, 0, 1) two rounds.
    start: an order of your own for the same problem, which the search starts from where it is the best that is known.
    progress: a bar, or a function that is called with (seconds, best makespan, lower bound) whenever one of them is new.
    seed, workers: of the solver; by default a worker for each core, 8 at most.

    The result is never slower than `start` and the built-in schedules that fit placement and limit; those with overlapped pairs or two
    chains are other problems. With one worker, the same seed and the time to finish, the same order comes out; with several,
    or cut short, only makespan and bound of a finished search do. Ctrl-C ends the search and is raised.

    >>> best = optimize(4, 8, Costs(forward=1, input_grad=1, weight_grad=1), memory_limit=4, progress=False)
    >>> best.makespan, best.lower_bound, best.optimal      # ZB-H1's time and memory: it cannot be beaten
    (27.0, 27.0, True)

    Raises ImportError, with the line that installs it, where OR-Tools is missing; TypeError or ValueError, with what works,
    for limits too low for one microbatch, a `start` that is no answer, and other arguments that make no sense.
    """
    asked = problem(p, m, costs, memory_limit, split_backward, rank_of_stage)
    if start is not None and not isinstance(start, Schedule):
        raise TypeError(f"start is a schedule, as Schedule.from_text reads it: start={start!r:.80}")
    reason = "" if start is None else why_not(asked, start)
    if reason:
        raise ValueError(f"start is no answer to what is asked for: {reason}")
    _check_options(time_limit, progress)
    seed = whole("seed", seed, least=0, most=2**31 - 1)
    workers = _cores() if workers is None else whole("workers", workers, "the number of the solver's threads")
    solver_module()
    return _Search(asked, start, time_limit, progress).run(seed, workers)


class _Search:
    """The best so far, and who is told of it."""

    def __init__(self, asked: Problem, start: Schedule | None, seconds: float, progress: bool | Progress) -> None:
        self.asked, self.seconds, self.began = asked, seconds, time.perf_counter()
        self.tell = progress if callable(progress) else None
        self.with_bar = progress is True
        own = [] if start is None else [start]
        fitting = [(self._makespan(s), sum(s.peak_in_flight), name, s) for name, s in builtins(asked)]
        single = [with_halves(s) if asked.split else s for s in (*own, *(s for *_, s in fitting))]
        single += [*greedy(asked, self.began + seconds / 2), one_by_one(asked)]
        self.start = min(single, key=self._makespan)  # all of its backwards are of the kind that is searched
        self.builtin = None
        if fitting:
            makespan, _, name, schedule = min(fitting, key=itemgetter(0, 1))
            self.builtin = (name, makespan)
            own.insert(0, schedule)  # where several take as long, it is the built-in one
        self.best = min((*own, self.start), key=self._makespan)
        self.makespan = self._makespan(self.best)
        self.bound = min(bound_of(asked), self.makespan)
        self.told: tuple[float, float] | None = None

    def run(self, seed: int, workers: int) -> Optimized:
        self._report()
        if self.makespan - self.bound > ROUNDING * self.makespan:
            with _bar(self.seconds, self.asked.shape.label, self.with_bar) as self.bar:
                ticks = Ticks.of(self.asked, self._makespan(self.start))
                search(ticks, self.start, seconds=self._left(), seed=seed, workers=workers, tell=self.hear)
        timeline = simulate(self.best, self.asked.costs)
        seconds = time.perf_counter() - self.began
        return Optimized(self.best, timeline, self.bound, self.builtin, self.asked.limits, seconds)

    def hear(self, order: Schedule | None, bound: float) -> None:
        """An order counts by its true costs and its own count in flight, whatever the solver made of it."""
        if order is not None and keeps_to(self.asked, order):
            makespan = self._makespan(order)
            if makespan < self.makespan:
                self.best, self.makespan = order, makespan
        if not whole_is_cheaper(self.asked):  # else whole backwards, which the solver did not try, could do better
            self.bound = max(self.bound, bound)
        self.bound = min(self.bound, self.makespan)
        self.bar.set_postfix_str(f"makespan {number(self.makespan)}, at least {number(self.bound)}", refresh=False)
        self.bar.update(min(time.perf_counter() - self.began, self.seconds) - self.bar.n)
        self._report()

    def _report(self) -> None:
        if self.tell is not None and self.told != (self.makespan, self.bound):
            self.told = self.makespan, self.bound
            self.tell(time.perf_counter() - self.began, self.makespan, self.bound)

    def _left(self) -> float:
        return max(0.05, self.seconds - (time.perf_counter() - self.began))

    def _makespan(self, schedule: Schedule) -> float:
        return simulate(schedule, self.asked.costs).makespan


def _bar(seconds: float, label: str, shown: bool) -> Any:
    """A bar over the seconds of the search, with what it has so far."""
    from tqdm.auto import tqdm

    form = "{desc}: {n:.1f} of {total:.1f} s |{bar}|{postfix}"
    return tqdm(total=seconds, desc=label, leave=False, disable=not shown, bar_format=form)


def _check_options(time_limit: Any, progress: Any) -> None:
    if isinstance(time_limit, bool) or not isinstance(time_limit, int | float) or not 0 < time_limit < math.inf:
        raise ValueError(f"time_limit is the seconds that the search may take, above 0: time_limit={time_limit!r:.80}")
    if not isinstance(progress, bool) and not callable(progress):
        raise TypeError(
            f"progress is True, False or a function (seconds, best makespan, lower bound): progress={progress!r:.80}"
        )


def _cores() -> int:
    """A worker for each core, 8 at most."""
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
