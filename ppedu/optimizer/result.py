"""What a search returns: the order, how long it takes, and how far below it no order can go."""

from __future__ import annotations

from dataclasses import dataclass

from ppedu.core.format import by_rank, percent, table, time_text
from ppedu.core.schedule import Schedule
from ppedu.core.timeline import Timeline

ROUNDING = 1e-6
"""Costs are searched in whole ticks: a gap below this share is rounding."""


@dataclass(frozen=True, slots=True, repr=False)
class Optimized:
    """The best order found, and how good it is. Times are in the unit of the costs.

    schedule: the order. Where no search beat the best built-in schedule, it is that one.
    timeline: `simulate(schedule, costs)`.
    lower_bound: proven: no order that was asked for takes less.
    best_builtin: (name in SCHEDULES, makespan) of the fastest that fits, or None where none fits.
    memory_limit: the most in flight, one a rank, or None. seconds: how long the search took.

    >>> from ppedu.schedules import one_f_one_b
    >>> from ppedu.core.simulate import simulate
    >>> t = simulate(one_f_one_b(p=4, m=8))
    >>> Optimized(t.schedule, t, 22.0, ("1f1b", 22.0), None, 0.0)
    1F1B p=4 m=8: makespan 22, no order takes less; best built-in 1f1b 22, in flight 4 3 2 1
    """

    schedule: Schedule
    timeline: Timeline
    lower_bound: float
    best_builtin: tuple[str, float] | None
    memory_limit: tuple[int, ...] | None
    seconds: float

    @property
    def makespan(self) -> float:
        """That of the timeline."""
        return self.timeline.makespan

    @property
    def gap(self) -> float:
        """(makespan - lower bound) / makespan: the share that a better order could still save, at most."""
        return (self.makespan - self.lower_bound) / self.makespan if self.makespan else 0.0

    @property
    def optimal(self) -> bool:
        """Proven: no order is faster by more than a millionth, which is what rounding may hide."""
        return self.gap <= ROUNDING

    def _time(self, value: float) -> str:
        return time_text(value, self.timeline.unit, 6)

    @property
    def _verdict(self) -> str:
        if self.optimal:
            return "no order takes less"
        return f"none takes less than {self._time(self.lower_bound)} (gap {percent(self.gap)})"

    def __repr__(self) -> str:
        name, makespan = self.best_builtin or ("", 0.0)
        builtin = f"best built-in {name} {self._time(makespan)}" if name else "no built-in fits"
        flight = by_rank(self.timeline.peak_in_flight)
        return f"{self.schedule.label}: makespan {self._time(self.makespan)}, {self._verdict}; {builtin}, in flight {flight}"

    def __str__(self) -> str:
        """A small table: what was found, what there was before, and what cannot be beaten."""
        whole = self.makespan
        limit = "none" if self.memory_limit is None else by_rank(self.memory_limit)
        found = f"{self.schedule.name}, in flight {by_rank(self.timeline.peak_in_flight)}"
        rows = [("  found", self._time(whole), found)]
        if self.best_builtin is not None:
            name, makespan = self.best_builtin
            more = f", {100 * (makespan / whole - 1):.2g} % more" if whole and makespan > whole * (1 + ROUNDING) else ""
            rows.append(("  best built-in", self._time(makespan), name + more))
        rows.append(("  lower bound", self._time(self.lower_bound), self._verdict))
        title = f"{self.schedule.label}, at most in flight: {limit}; {self.seconds:.1f} s of search"
        return "\n".join([title, *table(rows, "<><"), self.timeline.provenance])
