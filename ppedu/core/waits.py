"""What ranks wait for: every idle gap with its reason in a sentence, and the chain of waits that the makespan is made of."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

from ppedu.core.format import time_text
from ppedu.core.operations import Action, Entry
from ppedu.core.schedule import dependencies

if TYPE_CHECKING:
    from ppedu.core.spans import Span
    from ppedu.core.timeline import Timeline


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


def gaps(timeline: Timeline, rank: int) -> tuple[Gap, ...]:
    """Every idle gap of a rank, the ones at both ends included."""
    shortest = 1e-9 * timeline.makespan  # less is rounding
    found, since = [], timeline.start
    for span in timeline.spans_of(rank):
        if span.start - since > shortest:
            found.append(_gap_before(timeline, span, since, shortest))
        since = max(since, span.end)
    if timeline.end - since > shortest:
        found.append(Gap(rank, since, timeline.end, None, None, _nothing_more(timeline, rank)))
    return tuple(found)


def _gap_before(timeline: Timeline, span: Span, since: float, shortest: float) -> Gap:
    waited = _waited_for(timeline, span)
    if waited is None:
        reason = _no_wait(timeline, span, since)
    else:
        producer = timeline.span_of[waited]
        reason = _wait(timeline, span, since, producer, shortest)
        if timeline.measured and producer.end <= since:
            waited = None  # it was there already
    head = f"rank {span.rank} is idle from {_clock(timeline, since)} to {_clock(timeline, span.start)}"
    return Gap(span.rank, since, span.start, span.action, waited, f"{head}: {reason}")


def critical_path(timeline: Timeline) -> tuple[Span, ...]:
    """From the span that ends last back to the first, each time to what let it start."""
    lanes = map(timeline.spans_of, range(timeline.schedule.num_ranks))
    before = {after.action: span for lane in lanes for span, after in pairwise(lane)}
    span = max(timeline.spans, key=attrgetter("end"), default=None)
    path: list[Span] = []
    while span is not None:
        path.append(span)
        previous, waited = before.get(span.action), _waited_for(timeline, span)
        dependency = None if waited is None else timeline.span_of[waited]
        span = _binding(span, previous, dependency, timeline.measured)
    return tuple(reversed(path))


def _binding(span: Span, previous: Span | None, dependency: Span | None, measured: bool) -> Span | None:
    """Of the two that a span had to wait for, the one that held it up."""
    if previous is None or dependency is None:
        return previous or dependency
    if measured:
        return previous if previous.end >= dependency.end else dependency
    # an idle rank waited for the message, even where its sender ended long ago
    return previous if previous.end == span.start else dependency


def _waited_for(timeline: Timeline, span: Span) -> Action | None:
    """The dependency from another rank that ended last, among those that were recorded."""
    ran, needed = timeline.span_of, _needed(timeline, span)
    known = (d for d in needed if d in ran and ran[d].rank != span.rank)
    return max(known, key=lambda d: ran[d].end, default=None)


def _needed(timeline: Timeline, span: Span) -> list[Action]:
    return [needed for part in span.action.actions for needed in dependencies(part, timeline.schedule)]


def _wait(timeline: Timeline, span: Span, since: float, producer: Span, shortest: float) -> str:
    """Why an entry started late that needed what ran on another rank."""
    short, ended = timeline.schedule.short, _clock(timeline, producer.end)
    who = f"rank {producer.rank}'s {short(producer.action)}"
    if timeline.measured and producer.end <= since:
        took = _time(span.start - since, timeline.unit)
        needs = f"everything that {short(span.action)} needs had ended by {ended} ({who})"
        return f"{needs}: the message or the start itself took {took}"
    if producer.end >= span.start - shortest:
        return f"it waits for {who}, which ended at {_clock(timeline, span.start)}"
    return f"it waits for {who}, which ended at {ended} and was on its way until {_clock(timeline, span.start)}"


def _no_wait(timeline: Timeline, span: Span, since: float) -> str:
    """Why an entry started late of which no span on another rank tells."""
    schedule = timeline.schedule
    name = schedule.short(span.action)
    for needed in _needed(timeline, span):
        rank = schedule.rank_of_stage[needed.stage]
        if rank != span.rank:
            return f"{name} needs rank {rank}'s {schedule.short(needed)}, of which no time was recorded"
    took = _time(span.start - since, timeline.unit)
    return f"{name} needs nothing from another rank: the start itself took {took}"


def _nothing_more(timeline: Timeline, rank: int) -> str:
    """Why a rank is idle at the end."""
    order, ran = timeline.schedule.orders[rank], len(timeline.spans_of(rank))
    if ran < len(order):
        return f"rank {rank} ran {ran} of its {len(order)} operations before the run was stopped"
    last = max(timeline.spans, key=attrgetter("end"))
    end = f"rank {last.rank}'s {timeline.schedule.short(last.action)} ends the step at {_clock(timeline, timeline.end)}"
    return f"rank {rank} {'is done' if order else 'has nothing to run'}; {end}"


def _time(length: float, unit: str) -> str:
    return time_text(length, unit, digits=6)


def _clock(timeline: Timeline, time: float) -> str:
    return _time(time - timeline.start, timeline.unit)
