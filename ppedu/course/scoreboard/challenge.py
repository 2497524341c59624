"""What orders are compared on: so many ranks and microbatches, given costs, and a cap on what a rank may hold.

Letters: p ranks, m microbatches; F forward, B backward, I and W its halves (input's and weights' gradient).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ppedu.core.costs import Costs
from ppedu.core.operations import Action, Kind, Overlap
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.core.timeline import Timeline
from ppedu.core.validate import violations
from ppedu.optimizer.bounds import bound_of
from ppedu.optimizer.problem import Problem, problem
from ppedu.schedules import SCHEDULES


@dataclass(frozen=True, repr=False)
class Challenge:
    """Find the order of p ranks and m microbatches that ends soonest under these costs, and holds no more than it may.

    costs: what operations take, one number or one a stage; stage r stands on rank r.
    memory_limit: the most microbatches that a rank may have in flight, one number or one a rank; None for no cap.

    >>> challenge = Challenge(p=4, m=8, memory_limit=4)
    >>> challenge
    p=4 m=8, F=1 B=1, at most 4 in flight
    >>> challenge.lower_bound
    19.0
    >>> print(challenge.why_not(SCHEDULES["gpipe"](p=4, m=8)))
    rank 0 holds 8 microbatches in flight, and may hold 4. Run a backward before one of its forwards

    Raises TypeError or ValueError, with what works, for numbers that make no sense.
    """

    p: int
    m: int
    costs: Costs = field(default_factory=Costs)
    memory_limit: int | Sequence[int] | None = None

    def __post_init__(self) -> None:
        limits = self._problem.limits
        even = limits is not None and len(set(limits)) == 1
        object.__setattr__(self, "memory_limit", limits[0] if limits and even else limits)  # (4, 4, 4, 4) is 4

    @property
    def _problem(self) -> Problem:
        return problem(self.p, self.m, self.costs, self.memory_limit, True, None)

    @property
    def limits(self) -> tuple[int, ...] | None:
        """The cap of each rank, or None."""
        return self._problem.limits

    @property
    def lower_bound(self) -> float:
        """A makespan that no order goes below, as `ppedu.lower_bound` proves it."""
        return bound_of(self._problem)

    @property
    def key(self) -> str:
        """The same text for the same challenge, however its costs were written."""
        stages = range(self.p)
        times = {k.value: [self.costs.duration(Action(s, k, 0)) for s in stages] for k in Kind}
        pairs = [self.costs.duration(_pair(s)) for s in stages]
        return json.dumps([self.p, self.m, times, pairs, float(self.costs.transfer), self.limits, self.costs.unit])

    def __repr__(self) -> str:
        limit = self.memory_limit
        held = limit if not isinstance(limit, Sequence) else " ".join(map(str, limit))
        return f"p={self.p} m={self.m}, {self.costs}, " + ("no cap" if limit is None else f"at most {held} in flight")

    def why_not(self, schedule: Schedule) -> str:
        """Why a schedule does not count here, in a sentence or some; "" where it does."""
        if (schedule.num_ranks, schedule.num_microbatches) != (self.p, self.m):
            return (
                f"it has p={schedule.num_ranks} ranks and m={schedule.num_microbatches} microbatches, "
                f"and p={self.p} m={self.m} are asked for"
            )
        if schedule.chains != 1 or not schedule.one_stage_per_rank:
            return f"stage r stands on rank r here, and {schedule.label} has its stages elsewhere: {schedule.rank_of_stage}"
        found = violations(schedule)
        if found:
            more = f" (and {len(found) - 1} more such faults)" if len(found) > 1 else ""
            return f"it cannot run: {found[0].message}{more}"
        if schedule.kinds == {Kind.F}:
            return "it has no backward: a step of training runs one for each microbatch on each stage"
        held, limits = schedule.peak_in_flight, self.limits
        over = next((r for r in range(self.p) if limits is not None and held[r] > limits[r]), None)
        if over is None or limits is None:
            return ""
        frees = Kind.W if any(part.kind is Kind.W for e in schedule.orders[over] for part in e.actions) else Kind.B
        name = {Kind.B: "backward", Kind.W: "W"}[frees]
        return (
            f"rank {over} holds {held[over]} microbatches in flight, and may hold {limits[over]}. "
            f"Run a {name} before one of its forwards"
        )

    def simulate(self, schedule: Schedule) -> Timeline:
        """`ppedu.simulate` with this challenge's costs."""
        return simulate(schedule, self.costs)

    def pace(self, unit: float) -> Costs:
        """The costs in seconds, where one unit is so many of them: for `ppedu.train(..., pace=challenge.pace(0.01))`.

        >>> print(Challenge(4, 8, Costs(forward=1, backward=2)).pace(0.01))
        F=0.01 s B=0.02 s
        """

        return self.costs.scaled(unit, "s")

    def seconds_per_unit(self, pace: Costs) -> float | None:
        """How many seconds a run with this pace took for a unit of the costs; None where pace and costs differ in shape.

        >>> challenge = Challenge(4, 8, Costs(forward=1, backward=2))
        >>> challenge.seconds_per_unit(Costs(0.01, 0.02)), challenge.seconds_per_unit(Costs(0.01, 0.01))
        (0.01, None)
        """
        if pace.stages not in (None, self.p):
            return None
        steps = [Action(s, kind, 0) for s in range(self.p) for kind in Kind]
        both = [(self.costs.duration(step), pace.duration(step)) for step in steps]
        both.append((float(self.costs.transfer), float(pace.transfer)))
        scale = sum(b for _, b in both) / (sum(a for a, _ in both) or 1.0)
        alike = all(abs(b - scale * a) <= 1e-6 * scale * max(1.0, a) for a, b in both)
        return scale if alike and scale > 0 else None

    def builtins(self) -> Iterator[tuple[str, Schedule]]:
        """(its name, schedule) of each built-in schedule that counts here."""
        for build in SCHEDULES.values():
            try:
                schedule = build(p=self.p, m=self.m)
            except ValueError:
                continue  # a schedule that this p or m does not suit
            if not self.why_not(schedule):
                yield schedule.name, schedule

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON, which `of_data` reads."""
        costs = {f.name: getattr(self.costs, f.name) for f in fields(Costs)}
        return {"p": self.p, "m": self.m, "costs": costs, "memory_limit": self.memory_limit}

    @classmethod
    def of_data(cls, data: dict[str, Any]) -> Challenge:
        """Raises KeyError, TypeError or ValueError for other data."""
        return cls(data["p"], data["m"], Costs(**data["costs"]), data["memory_limit"])


def _pair(stage: int) -> Overlap:
    return Overlap(Action(stage, Kind.F, 0), Action(stage, Kind.B, 0))
