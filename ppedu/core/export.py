"""Timelines as JSON that reads back exactly, and as traces for Perfetto."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ppedu.core.operations import Entry
from ppedu.core.schedule import Schedule
from ppedu.core.spans import Span
from ppedu.core.text import parse_entry

if TYPE_CHECKING:
    from ppedu.core.timeline import Timeline

_FORMAT = "ppedu timeline 2"
_MICROSECONDS = {"s": 1e6, "ms": 1e3, "us": 1.0}


def to_json(timeline: Timeline) -> str:
    s = timeline.schedule
    schedule = {
        "name": s.name,
        "num_microbatches": s.num_microbatches,
        "rank_of_stage": s.rank_of_stage,
        "chains": s.chains,
        "orders": [",".join(map(str, order)) for order in s.orders],
    }
    spans = [(str(span.action), span.rank, span.start, span.end) for span in timeline.spans]
    head = {"format": _FORMAT, "provenance": timeline.provenance, "unit": timeline.unit, "measured": timeline.measured}
    return json.dumps({**head, "schedule": schedule, "spans": spans})


def from_json(text: str, make: type[Timeline]) -> Timeline:
    try:
        data = json.loads(text)
        if data["format"] != _FORMAT:
            raise ValueError(f"its format is {data['format']!r}")
        s = data["schedule"]
        orders = tuple(tuple(map(parse_entry, filter(None, line.split(",")))) for line in s["orders"])
        schedule = Schedule(s["name"], s["num_microbatches"], tuple(s["rank_of_stage"]), orders, s["chains"])
        entries = {str(entry): entry for order in orders for entry in order}
        spans = tuple(Span(entries[name], rank, start, end) for name, rank, start, end in data["spans"])
        if not isinstance(data["measured"], bool):
            raise ValueError(f"measured is true or false: {data['measured']!r}")
        return make(schedule, spans, data["provenance"], data["unit"], data["measured"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"this is no '{_FORMAT}', the JSON that Timeline.to_json writes: {error}") from error


def to_chrome_trace(timeline: Timeline) -> str:
    scale, start = _MICROSECONDS.get(timeline.unit, 1e3), timeline.start
    events = [_event("M", "process_name", 0, args={"name": f"{timeline.label}, {timeline.provenance}"})]
    for rank in range(timeline.schedule.num_ranks):
        events.append(_event("M", "thread_name", rank, args={"name": f"rank {rank}"}))
        events.append(_event("M", "thread_sort_index", rank, args={"sort_index": rank}))
        for span in timeline.spans_of(rank):
            times = {"ts": (span.start - start) * scale, "dur": span.duration * scale}
            kinds = ",".join(a.kind.value for a in span.action.actions)
            name = timeline.schedule.short(span.action)
            events.append(_event("X", name, rank, cat=kinds, **times, args=_arguments(span.action)))
        for time, count in timeline.in_flight(rank):
            ts = (time - start) * scale
            events.append(_event("C", f"in flight, rank {rank}", rank, ts=ts, args={"activations": count}))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"measured": timeline.measured}})


def _event(phase: str, name: str, rank: int, **more: object) -> dict[str, Any]:
    return {"ph": phase, "name": name, "pid": 0, "tid": rank, **more}


def _arguments(entry: Entry) -> dict[str, object]:
    first, *rest = entry.actions
    arguments: dict[str, object] = {"stage": first.stage, "microbatch": first.microbatch}
    for part in rest:
        arguments.update({"backward stage": part.stage, "backward microbatch": part.microbatch})
    return arguments
