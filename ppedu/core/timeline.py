"""When each operation ran, predicted or measured, and every figure that a picture of it is read for.

A simulation and a real run both return a `Timeline`, so all that reads one works on the other.
Letters: p ranks, m microbatches; F forward, B backward, I and W its halves (B = I + W).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from ppedu.core import export, waits
from ppedu.core.costs import Costs
from ppedu.core.format import by_rank, percent, quantity, table, time_text
from ppedu.core.median_costs import median_costs
from ppedu.core.operations import Action, Entry, Kind
from ppedu.core.schedule import Schedule
from ppedu.core.spans import Lane, Span
from ppedu.core.waits import Gap

Interval: TypeAlias = tuple[float, float]
"""(from, to), in the timeline's unit."""


@dataclass(frozen=True, slots=True)
class Phases:
    """The three phases by time, over the whole pipeline: each one begins where the one before it ends."""

    warmup: Interval
    steady: Interval
    cooldown: Interval


@dataclass(frozen=True, repr=False)
class Timeline:
    """Spans of a schedule, with their figures. Times are in `unit` ("" for units of their own, "s" for seconds).

    schedule: what was run. spans: in any order; some may be missing, as in a run that was stopped.
    provenance: the sentence that every caption repeats: what the times rest on.
    measured: the times come from clocks. Else they come from a simulation, where starting an operation takes no time of
        its own.

    >>> from ppedu.schedules import one_f_one_b
    >>> from ppedu.core.simulate import simulate
    >>> t = simulate(one_f_one_b(p=4, m=8))
    >>> t
    1F1B p=4 m=8: makespan 22, bubble 27.3 %, in flight 4 3 2 1
    >>> t.makespan, t.busy, t.peak_in_flight
    (22.0, (16.0, 16.0, 16.0, 16.0), (4, 3, 2, 1))

    Raises ValueError for a span on a rank that the schedule does not have, or that ends before it starts.
    """

    schedule: Schedule
    spans: tuple[Span, ...]
    provenance: str
    unit: str = ""
    measured: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "spans", tuple(self.spans))
        p, inf = self.schedule.num_ranks, math.inf
        for span in self.spans:
            if not 0 <= span.rank < p:
                raise ValueError(f"{span.action} ran on rank {span.rank}, but {self.label} has ranks 0 to {p - 1}")
            if not -inf < span.start <= span.end < inf:  # false for NaN too
                raise ValueError(
                    f"{span.action} on rank {span.rank} runs from {span.start} to {span.end}: "
                    "a span has finite times and ends no earlier than it starts"
                )

    # figures

    @cached_property
    def _lanes(self) -> tuple[Lane, ...]:
        spans: list[list[Span]] = [[] for _ in range(self.schedule.num_ranks)]
        for span in self.spans:
            spans[span.rank].append(span)
        return tuple(map(Lane.of, spans))

    @cached_property
    def span_of(self) -> dict[Action, Span]:
        """The span in which each operation ran."""
        return {action: span for span in self.spans for action in span.action.actions}

    @property
    def label(self) -> str:
        """The schedule's name with p and m: what titles say."""
        return self.schedule.label

    @property
    def word(self) -> str:
        """'predicted' or 'measured': what tells two timelines of one schedule apart."""
        return "measured" if self.measured else "predicted"

    @property
    def in_forwards(self) -> bool:
        """Every forward that ran by itself took 1: the unit of time is an F."""
        forwards = (s.duration for s in self.spans if isinstance(s.action, Action) and s.action.kind is Kind.F)
        return all(abs(duration - 1) < 1e-9 for duration in forwards)

    @property
    def total(self) -> int:
        """How many spans a whole run of the schedule has."""
        return sum(map(len, self.schedule.orders))

    @property
    def complete(self) -> bool:
        """Every entry of the schedule has its span (false for a run that was stopped)."""
        return len(self.spans) == self.total

    @cached_property  # every time in a sentence counts from it
    def start(self) -> float:
        """The first operation's start."""
        return min((lane.spans[0].start for lane in self._lanes if lane.spans), default=0.0)

    @property
    def end(self) -> float:
        """The last operation's end."""
        return max((lane.end for lane in self._lanes if lane.spans), default=0.0)

    @property
    def makespan(self) -> float:
        """End of the last operation minus start of the first."""
        return self.end - self.start

    @property
    def busy(self) -> tuple[float, ...]:
        """Time in operations, one figure a rank."""
        return tuple(lane.busy for lane in self._lanes)

    @property
    def idle(self) -> tuple[float, ...]:
        """Makespan minus busy, one figure a rank."""
        makespan = self.makespan
        return tuple(max(0.0, makespan - lane.busy) for lane in self._lanes)  # rounding may leave -1e-15

    @property
    def bubble_fraction(self) -> float:
        """Idle time / (ranks x makespan): the share of the devices' time that is lost."""
        whole = self.makespan * self.schedule.num_ranks
        return sum(self.idle) / whole if whole else 0.0

    @property
    def bubble_over_ideal(self) -> float:
        """Idle time / busy time: what papers write as (p-1)/m. It may exceed 1; `bubble_fraction` cannot."""
        busy = sum(self.busy)
        return sum(self.idle) / busy if busy else 0.0

    @property
    def utilization(self) -> float:
        """1 - bubble fraction."""
        return 1.0 - self.bubble_fraction

    @property
    def peak_in_flight(self) -> tuple[int, ...]:
        """The most forwards whose activations a rank holds at one time, one figure a rank."""
        return tuple(lane.peak for lane in self._lanes)

    @property
    def peak_activations(self) -> tuple[float, ...]:
        """`peak_in_flight` in units that compare schedules of one model: p / chain length each, one figure a rank.

        A unit is what a microbatch leaves on one p-th of the model. With two stages on each rank a stage is half of
        that, and so is what it keeps; in a bidirectional schedule each of the two stages is a whole p-th.
        """
        size = self.schedule.stage_size
        return tuple(size * peak for peak in self.peak_in_flight)

    # by rank

    def spans_of(self, rank: int) -> tuple[Span, ...]:
        """The rank's spans by start."""
        return self._lanes[rank].spans

    def in_flight(self, rank: int) -> tuple[tuple[float, int], ...]:
        """A step curve of (time, count from then on): forwards run whose activations are not yet freed.

        It rises at the start of an F and falls at the end of the backward that frees: B, or W where B is split.
        Where no backward follows, as in a schedule of forwards alone, nothing is ever freed. At one and the same
        time freeing comes first.
        """
        curve = self._lanes[rank].curve
        return curve if curve and curve[0][0] == self.start else ((self.start, 0), *curve)

    def phases_of(self, rank: int) -> tuple[tuple[Entry, ...], tuple[Entry, ...], tuple[Entry, ...]]:
        """The three phases by order: leading forwards, alternation, trailing backwards.

        Where a forward stands after the first backward, the alternation runs from the last leading forward through
        the first backward after the last forward; elsewhere it is empty. An overlapped pair is both.

        >>> from ppedu.schedules import one_f_one_b
        >>> order = Timeline(one_f_one_b(p=4, m=8), (), "predicted").phases_of(0)
        >>> [" ".join(f"{a.kind.value}{a.microbatch}" for e in part for a in e.actions) for part in order]
        ['F0 F1 F2', 'F3 B0 F4 B1 F5 B2 F6 B3 F7 B4', 'B5 B6 B7']
        """
        order = self.schedule.orders[rank]
        forward = [any(a.kind is Kind.F for a in entry.actions) for entry in order]
        backward = [any(a.kind is not Kind.F for a in entry.actions) for entry in order]
        if not any(backward):
            return order, (), ()
        first = backward.index(True)
        last = max((slot for slot, is_forward in enumerate(forward) if is_forward), default=-1)
        if last < first:
            return order[:first], (), order[first:]
        begin = first if forward[first] else max(0, first - 1)
        end = next((slot + 1 for slot in range(last, len(order)) if backward[slot]), len(order))
        return order[:begin], order[begin:end], order[end:]

    # over the whole pipeline

    def phases(self) -> Phases:
        """The three phases by time: warm-up until every rank has started, cool-down from when the first is done.

        Where a rank is done before the last one has started (few microbatches, many ranks), the steady phase is
        empty and stands at the end of the warm-up. Ranks without spans do not count.
        """
        lanes = [lane for lane in self._lanes if lane.spans]
        all_started = max((lane.spans[0].start for lane in lanes), default=0.0)
        one_done = max(all_started, min((lane.end for lane in lanes), default=0.0))
        return Phases((self.start, all_started), (all_started, one_done), (one_done, self.end))

    def critical_path(self) -> tuple[Span, ...]:
        """The chain of spans that the makespan is made of, from first to last.

        From the span that ends last one goes back, each time to what let it start: the previous span of the rank or
        a dependency, whichever ended last. A prediction that left its rank idle was waiting for a dependency.
        """
        return waits.critical_path(self)

    def gaps(self, rank: int) -> tuple[Gap, ...]:
        """Every idle gap of a rank, the ones at both ends included, with the reason for it."""
        return waits.gaps(self, rank)

    def costs(self) -> Costs:
        """What operations took: the median of each kind on each stage, as costs to predict with.

        Where a kind ran in overlapped pairs alone, its stage's other operations tell (B is I and W), or what the pairs took
        beyond the other half. Kinds that did not run at all are left at their defaults; transfers count as free.

        >>> from ppedu import Costs, gpipe, simulate
        >>> print(simulate(gpipe(p=2, m=3), Costs(forward=[1, 2], backward=3)).costs())
        F=1,2 B=3,3
        """
        return median_costs(self.spans, self.schedule.num_stages, self.unit)

    # text and exports

    def __repr__(self) -> str:
        makespan = quantity(self.makespan, self.unit, 3 if self.unit == "s" else 6)
        part = "" if self.complete else f" (stopped after {len(self.spans)} of {self.total} operations)"
        bubble, in_flight = percent(self.bubble_fraction), by_rank(self.peak_in_flight)
        return f"{self.label}{part}: makespan {makespan}, bubble {bubble}, in flight {in_flight}"

    def __str__(self) -> str:
        """The text twin of a picture: the figures, then each rank's figures and what it ran."""
        rows = []
        for rank, (lane, idle) in enumerate(zip(self._lanes, self.idle, strict=True)):
            busy, free = (time_text(time, self.unit, 6) for time in (lane.busy, idle))
            figures = (f"rank {rank}:", f"busy {busy},", f"idle {free},", f"in flight {lane.peak}:")
            rows.append((*figures, self._names(lane.spans)))
        return "\n".join([repr(self), self.provenance, *table(rows, "<", gap=" ")])

    def _names(self, spans: tuple[Span, ...]) -> str:
        limit = max(16, min(256, 4096 // self.schedule.num_ranks))  # a page of text, not megabytes
        names = [self.schedule.short(span.action) for span in spans[:limit]]
        return " ".join(names if len(spans) <= limit else [*names, f"... and {len(spans) - limit} more"])

    def to_json(self) -> str:
        """JSON that `from_json` reads back exactly, the schedule included."""
        return export.to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Timeline:
        """Read what `to_json` wrote. Raises ValueError for other text."""
        return export.from_json(text, cls)

    def to_chrome_trace(self) -> str:
        """JSON for Perfetto (ui.perfetto.dev) and chrome://tracing: a lane and an in-flight counter for each rank.

        Times are microseconds from the start; a timeline without a time unit counts 1 unit as 1 ms.
        """
        return export.to_chrome_trace(self)
