"""When each operation ran, predicted or measured, and every figure that a picture of it is read for.

A simulation and a real run both return a `Timeline`, so all that reads one works on the other.
Letters: p ranks, m microbatches; F forward, B backward, I and W its halves (B = I + W).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from statistics import median
from typing import Any, TypeAlias, TypeVar

from ppedu.core.costs import Costs
from ppedu.core.operations import Action, Entry, Kind, Overlap
from ppedu.core.schedule import Schedule, dependencies
from ppedu.core.text import parse_entry

Interval: TypeAlias = tuple[float, float]
"""(from, to), in the timeline's unit."""

_MICROSECONDS = {"s": 1e6, "ms": 1e3, "us": 1.0}
_FORMAT = "ppedu timeline 2"


@dataclass(frozen=True, slots=True)
class Span:
    """One entry of a rank's order, from its start to its end. Waiting is not part of it."""

    action: Entry
    rank: int
    start: float
    end: float

    @property
    def duration(self) -> float:
        """end - start."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which a rank is idle, and why.

    before: what the rank runs after the gap, or None where nothing follows.
    waited_for: the operation on another rank that `before` waited for, or None where it waited for none.
    message: the reason as a sentence; its times count from the start of the timeline.
    """

    rank: int
    start: float
    end: float
    before: Entry | None
    waited_for: Action | None
    message: str


@dataclass(frozen=True, slots=True)
class Phases:
    """The three phases by time, over the whole pipeline: each one begins where the one before it ends."""

    warmup: Interval
    steady: Interval
    cooldown: Interval


@dataclass(frozen=True, slots=True)
class _Lane:
    """What is known of one rank after one pass over its spans."""

    spans: tuple[Span, ...]
    end: float
    busy: float
    curve: tuple[tuple[float, int], ...]
    peak: int


@dataclass(frozen=True, slots=True, repr=False)
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
    _lanes: tuple[_Lane, ...] | None = field(default=None, init=False, repr=False, compare=False)
    _span_of: dict[Action, Span] | None = field(default=None, init=False, repr=False, compare=False)
    _first: float | None = field(default=None, init=False, repr=False, compare=False)

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

    @property
    def _ranks(self) -> tuple[_Lane, ...]:
        if self._lanes is None:
            spans: list[list[Span]] = [[] for _ in range(self.schedule.num_ranks)]
            for span in self.spans:
                spans[span.rank].append(span)
            object.__setattr__(self, "_lanes", tuple(map(_lane, spans)))  # a cache: a timeline never changes
        return self._lanes or ()

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

    @property
    def start(self) -> float:
        """The first operation's start."""
        if self._first is None:  # every time in a sentence counts from it: kept, for the live views' sake
            first = min((lane.spans[0].start for lane in self._ranks if lane.spans), default=0.0)
            object.__setattr__(self, "_first", first)
        return self._first or 0.0

    @property
    def end(self) -> float:
        """The last operation's end."""
        return max((lane.end for lane in self._ranks if lane.spans), default=0.0)

    @property
    def makespan(self) -> float:
        """End of the last operation minus start of the first."""
        return self.end - self.start

    @property
    def busy(self) -> tuple[float, ...]:
        """Time in operations, one figure a rank."""
        return tuple(lane.busy for lane in self._ranks)

    @property
    def idle(self) -> tuple[float, ...]:
        """Makespan minus busy, one figure a rank."""
        makespan = self.makespan
        return tuple(max(0.0, makespan - lane.busy) for lane in self._ranks)  # rounding may leave -1e-15

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
        return tuple(lane.peak for lane in self._ranks)

    @property
    def peak_activations(self) -> tuple[float, ...]:
        """`peak_in_flight` in units that compare schedules of one model: p / chain length each, one figure a rank.

        A unit is what a microbatch leaves on one p-th of the model. With two stages on each rank a stage is half of
        that, and so is what it keeps; in a bidirectional schedule each of the two stages is a whole p-th.
        """
        size = self.schedule.num_ranks / self.schedule.chain_length
        return tuple(size * peak for peak in self.peak_in_flight)

    # by rank

    def spans_of(self, rank: int) -> tuple[Span, ...]:
        """The rank's spans by start."""
        return self._ranks[rank].spans

    def in_flight(self, rank: int) -> tuple[tuple[float, int], ...]:
        """A step curve of (time, count from then on): forwards run whose activations are not yet freed.

        It rises at the start of an F and falls at the end of the backward that frees: B, or W where B is split.
        Where no backward follows, as in a schedule of forwards alone, nothing is ever freed. At one and the same
        time freeing comes first.
        """
        curve = self._ranks[rank].curve
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
        lanes = [lane for lane in self._ranks if lane.spans]
        all_started = max((lane.spans[0].start for lane in lanes), default=0.0)
        one_done = max(all_started, min((lane.end for lane in lanes), default=0.0))
        return Phases((self.start, all_started), (all_started, one_done), (one_done, self.end))

    def critical_path(self) -> tuple[Span, ...]:
        """The chain of spans that the makespan is made of, from first to last.

        From the span that ends last one goes back, each time to what let it start: the previous span of the rank or
        a dependency, whichever ended last. A prediction that left its rank idle was waiting for a dependency.
        """
        lanes = (lane.spans for lane in self._ranks)
        before = {after.action: span for lane in lanes for span, after in pairwise(lane)}
        span = max(self.spans, key=attrgetter("end"), default=None)
        path: list[Span] = []
        while span is not None:
            path.append(span)
            previous, waited = before.get(span.action), self._waited_for(span)
            dependency = None if waited is None else self._by_action[waited]
            span = _binding(span, previous, dependency, self.measured)
        return tuple(reversed(path))

    def gaps(self, rank: int) -> tuple[Gap, ...]:
        """Every idle gap of a rank, the ones at both ends included, with the reason for it."""
        shortest = 1e-9 * self.makespan  # less is rounding
        found, since = [], self.start
        for span in self.spans_of(rank):
            if span.start - since > shortest:
                found.append(self._gap_before(span, since, shortest))
            since = max(since, span.end)
        if self.end - since > shortest:
            found.append(self._gap_after(rank, since))
        return tuple(found)

    def costs(self) -> Costs:
        """What operations took: the median of each kind on each stage, as costs to predict with.

        Where a kind ran in overlapped pairs alone, its stage's other operations tell (B is I and W), or what the pairs took
        beyond the other half. Kinds that did not run at all are left at their defaults; transfers count as free.

        >>> from ppedu import Costs, gpipe, simulate
        >>> print(simulate(gpipe(p=2, m=3), Costs(forward=[1, 2], backward=3)).costs())
        F=1,2 B=3,3
        """
        took = _medians(
            ((span.action.kind, span.action.stage), span.duration)
            for span in self.spans
            if isinstance(span.action, Action)
        )
        pairs = [(span.action, span.duration) for span in self.spans if isinstance(span.action, Overlap)]
        took = _medians(_told_by_pairs(pairs, took)) | took
        stages = range(self.schedule.num_stages)

        def of(kind: Kind) -> list[float] | None:
            ran = any((kind, stage) in took for stage in stages)
            return [_took(kind, stage, took) for stage in stages] if ran else None

        none = [0.0 for _ in stages]
        forward, backward, input_grad, weight_grad = of(Kind.F) or none, of(Kind.B), of(Kind.I), of(Kind.W)
        if input_grad is not None and weight_grad is None:
            weight_grad = none  # a run that was stopped before its first W
        together = _medians((pair.forward.stage, duration) for pair, duration in pairs)
        overlapped = [together.get(s, forward[s] + _took(Kind.B, s, took)) for s in stages] if pairs else None
        return Costs(forward, backward, input_grad, weight_grad, overlapped, unit=self.unit)

    @property
    def _by_action(self) -> dict[Action, Span]:
        if self._span_of is None:
            object.__setattr__(self, "_span_of", {a: span for span in self.spans for a in span.action.actions})
        return self._span_of or {}

    def _waited_for(self, span: Span) -> Action | None:
        """The dependency from another rank that ended last, among those that were recorded."""
        needed = (d for part in span.action.actions for d in dependencies(part, self.schedule))
        known = (d for d in needed if d in self._by_action and self._by_action[d].rank != span.rank)
        return max(known, key=lambda d: self._by_action[d].end, default=None)

    def _gap_before(self, span: Span, since: float, shortest: float) -> Gap:
        name, waited = self.schedule.short(span.action), self._waited_for(span)
        if waited is None:
            reason = self._reason_of_start(span, since)
        else:
            producer = self._by_action[waited]
            who, ended = f"rank {producer.rank}'s {self.schedule.short(producer.action)}", producer.end
            if self.measured and ended <= since:
                waited = None
                reason = (
                    f"everything that {name} needs had ended by {self._clock(ended)} ({who}): "
                    f"the message or the start itself took {self._time(span.start - since)}"
                )
            elif ended >= span.start - shortest:
                reason = f"it waits for {who}, which ended at {self._clock(span.start)}"
            else:
                reason = (
                    f"it waits for {who}, which ended at {self._clock(ended)} "
                    f"and was on its way until {self._clock(span.start)}"
                )
        head = f"rank {span.rank} is idle from {self._clock(since)} to {self._clock(span.start)}"
        return Gap(span.rank, since, span.start, span.action, waited, f"{head}: {reason}")

    def _reason_of_start(self, span: Span, since: float) -> str:
        """Why an entry started late of which no span on another rank tells."""
        name = self.schedule.short(span.action)
        needed = (d for part in span.action.actions for d in dependencies(part, self.schedule))
        elsewhere = [d for d in needed if self.schedule.rank_of_stage[d.stage] != span.rank]
        if elsewhere:
            rank, first = self.schedule.rank_of_stage[elsewhere[0].stage], self.schedule.short(elsewhere[0])
            return f"{name} needs rank {rank}'s {first}, of which no time was recorded"
        return f"{name} needs nothing from another rank: the start itself took {self._time(span.start - since)}"

    def _gap_after(self, rank: int, since: float) -> Gap:
        order, ran = self.schedule.orders[rank], len(self.spans_of(rank))
        last = max(self.spans, key=attrgetter("end"))
        end = f"rank {last.rank}'s {self.schedule.short(last.action)} ends the step at {self._clock(self.end)}"
        if not order:
            why = f"rank {rank} has nothing to run; {end}"
        elif ran == len(order):
            why = f"rank {rank} is done; {end}"
        else:
            why = f"rank {rank} ran {ran} of its {len(order)} operations before the run was stopped"
        return Gap(rank, since, self.end, None, None, why)

    # text

    def _time(self, length: float) -> str:
        if self.unit == "s":
            return f"{length * 1e3:.2f} ms" if length >= 1e-3 else f"{length * 1e3:.2g} ms"
        return f"{length:.6g} {self.unit}".rstrip()

    def _clock(self, time: float) -> str:
        return self._time(time - self.start)

    def __repr__(self) -> str:
        p, peaks = self.schedule.num_ranks, self.peak_in_flight
        makespan = f"{self.makespan:.3g} s" if self.unit == "s" else f"{self.makespan:.6g} {self.unit}".rstrip()
        part = "" if self.complete else f" (stopped after {len(self.spans)} of {self.total} operations)"
        in_flight = " ".join(map(str, peaks)) if p <= 16 else f"at most {max(peaks)}"
        bubble = f"bubble {100 * self.bubble_fraction:.1f} %"
        return f"{self.label}{part}: makespan {makespan}, {bubble}, in flight {in_flight}"

    def __str__(self) -> str:
        """The text twin of a picture: the figures, then each rank's figures and what it ran."""
        rows = [
            (f"rank {rank}:", f"busy {self._time(lane.busy)},", f"idle {self._time(idle)},", f"in flight {lane.peak}:")
            for rank, (lane, idle) in enumerate(zip(self._ranks, self.idle, strict=True))
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [repr(self), self.provenance]
        for row, lane in zip(rows, self._ranks, strict=True):
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append(" ".join([*cells, *self._names(lane.spans)]).rstrip())
        return "\n".join(lines)

    def _names(self, spans: Sequence[Span]) -> list[str]:
        limit = max(16, min(256, 4096 // self.schedule.num_ranks))  # a page of text, not megabytes
        names = [self.schedule.short(span.action) for span in spans[:limit]]
        return names if len(spans) <= limit else [*names, f"... and {len(spans) - limit} more"]

    # exports

    def to_json(self) -> str:
        """JSON that `from_json` reads back exactly, the schedule included."""
        s = self.schedule
        schedule = {
            "name": s.name,
            "num_microbatches": s.num_microbatches,
            "rank_of_stage": s.rank_of_stage,
            "chains": s.chains,
            "orders": [",".join(map(str, order)) for order in s.orders],
        }
        spans = [(str(span.action), span.rank, span.start, span.end) for span in self.spans]
        head = {"format": _FORMAT, "provenance": self.provenance, "unit": self.unit, "measured": self.measured}
        return json.dumps({**head, "schedule": schedule, "spans": spans})

    @classmethod
    def from_json(cls, text: str) -> Timeline:
        """Read what `to_json` wrote. Raises ValueError for other text."""
        try:
            data = json.loads(text)
            if data["format"] != _FORMAT:
                raise ValueError(f"its format is {data['format']!r}")
            s = data["schedule"]
            orders = tuple(tuple(map(parse_entry, filter(None, line.split(",")))) for line in s["orders"])
            placement = tuple(s["rank_of_stage"])
            schedule = Schedule(s["name"], s["num_microbatches"], placement, orders, s["chains"])
            entries = {str(entry): entry for order in orders for entry in order}
            spans = tuple(Span(entries[name], rank, start, end) for name, rank, start, end in data["spans"])
            if not isinstance(data["measured"], bool):
                raise ValueError(f"measured is true or false: {data['measured']!r}")
            return cls(schedule, spans, data["provenance"], data["unit"], data["measured"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"this is no '{_FORMAT}', the JSON that Timeline.to_json writes: {error}") from error

    def to_chrome_trace(self) -> str:
        """JSON for Perfetto (ui.perfetto.dev) and chrome://tracing: a lane and an in-flight counter for each rank.

        Times are microseconds from the start; a timeline without a time unit counts 1 unit as 1 ms.
        """
        scale, start = _MICROSECONDS.get(self.unit, 1e3), self.start
        events: list[dict[str, Any]] = [
            _event("M", "process_name", 0, args={"name": f"{self.label}, {self.provenance}"})
        ]
        for rank, lane in enumerate(self._ranks):
            events.append(_event("M", "thread_name", rank, args={"name": f"rank {rank}"}))
            events.append(_event("M", "thread_sort_index", rank, args={"sort_index": rank}))
            for span in lane.spans:
                times = {"ts": (span.start - start) * scale, "dur": span.duration * scale}
                kinds = ",".join(a.kind.value for a in span.action.actions)
                name = self.schedule.short(span.action)
                events.append(_event("X", name, rank, cat=kinds, **times, args=_arguments(span.action)))
            counts = ((self.start, 0),) if not lane.curve else self.in_flight(rank)
            for time, count in counts:
                ts = (time - start) * scale
                events.append(_event("C", f"in flight, rank {rank}", rank, ts=ts, args={"activations": count}))
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"measured": self.measured}})


_Key = TypeVar("_Key")


def _medians(took: Iterable[tuple[_Key, float]]) -> dict[_Key, float]:
    found: dict[_Key, list[float]] = {}
    for key, duration in took:
        found.setdefault(key, []).append(duration)
    return {key: median(durations) for key, durations in found.items()}


def _told_by_pairs(
    pairs: Sequence[tuple[Overlap, float]], took: Mapping[tuple[Kind, int], float]
) -> Iterator[tuple[tuple[Kind, int], float]]:
    """What the halves of pairs took that never ran alone: the rest of the pair, or half of it where neither half did."""
    for pair, duration in pairs:
        for part, other in (pair.actions, pair.actions[::-1]):
            if not _took(part.kind, part.stage, took):
                rest = duration - _took(other.kind, other.stage, took)
                yield (part.kind, part.stage), duration / 2 if rest == duration else max(0.0, rest)


def _took(kind: Kind, stage: int, took: Mapping[tuple[Kind, int], float]) -> float:
    """What a kind took on a stage, or what the others there say of it: B is I and W, either of them half of B."""
    b, i, w = (took.get((one, stage)) for one in (Kind.B, Kind.I, Kind.W))
    if (kind, stage) in took:
        return took[kind, stage]
    if kind is Kind.B:
        return (i or 0.0) + (w or 0.0)
    other = w if kind is Kind.I else i
    if kind is Kind.F or b is None:
        return 0.0
    return b / 2 if other is None else max(0.0, b - other)


def _lane(spans: list[Span]) -> _Lane:
    spans.sort(key=attrgetter("start"))
    curve: list[tuple[float, int]] = []
    count = peak = 0
    for time, step in _steps(spans):
        count += step
        peak = max(peak, count)
        if curve and curve[-1][0] == time:
            curve.pop()  # one step a time: a free and a forward at once leave the count as it was
        if count != (curve[-1][1] if curve else 0):
            curve.append((time, count))
    end = max((span.end for span in spans), default=0.0)
    return _Lane(tuple(spans), end, math.fsum(span.end - span.start for span in spans), tuple(curve), peak)


def _steps(spans: list[Span]) -> list[tuple[float, int]]:
    """What is in flight on a rank, as (time, +1 or -1). A rank works in order, so its spans yield them in order."""
    steps = []
    for span in spans:
        kinds = [part.kind for part in span.action.actions]
        if Kind.F in kinds:
            steps.append((span.start, 1))
        if Kind.B in kinds or Kind.W in kinds:
            steps.append((span.end, -1))
    if any(a[0] > b[0] for a, b in pairwise(steps)):
        steps.sort()  # spans that overlap by a clock's error; at equal times -1 comes first
    return steps


def _binding(span: Span, previous: Span | None, dependency: Span | None, measured: bool) -> Span | None:
    """Of the two that a span had to wait for, the one that held it up."""
    if previous is None or dependency is None:
        return previous or dependency
    if measured:
        return previous if previous.end >= dependency.end else dependency
    # an idle rank waited for the message, even where its sender ended long ago
    return previous if previous.end == span.start else dependency


def _event(phase: str, name: str, rank: int, **more: object) -> dict[str, Any]:
    return {"ph": phase, "name": name, "pid": 0, "tid": rank, **more}


def _arguments(entry: Entry) -> dict[str, object]:
    first, *rest = entry.actions
    arguments: dict[str, object] = {"stage": first.stage, "microbatch": first.microbatch}
    for part in rest:
        arguments.update({"backward stage": part.stage, "backward microbatch": part.microbatch})
    return arguments
