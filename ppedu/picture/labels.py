"""Headings and captions of the live views: the same words as those of `ppedu.picture.paper`."""

from __future__ import annotations

from collections.abc import Sequence

from ppedu.core.timeline import Timeline
from ppedu.picture.live.figures import listed, time_text


def title(timelines: Sequence[Timeline]) -> tuple[str, ...]:
    """The pieces of a heading. Two timelines, predicted and measured: both makespans with the difference, then the rest.

    >>> from ppedu import one_f_one_b, simulate
    >>> title([simulate(one_f_one_b(p=4, m=8))])
    ('1F1B', 'makespan 22', 'bubble 27.3 %', 'in flight 4 3 2 1')

    Where a stage is no p-th of the model, what is in flight is said in p-ths as well ("activations"), for comparisons.
    """
    makespans = [time_text(t.makespan, t.unit) for t in timelines]
    if len(timelines) == 2:
        makespans[0] += " predicted"
        comparable = timelines[0].makespan and timelines[1].complete
        share = f" ({100 * (timelines[1].makespan / timelines[0].makespan - 1):+.1f} %)" if comparable else ""
        makespans[1] += f" measured{share}"
    sized = timelines[0].schedule.num_ranks != timelines[0].schedule.chain_length
    peaks = dict.fromkeys(listed(t.peak_activations) for t in timelines) if sized else ()
    return (
        timelines[0].schedule.name,
        "makespan " + " → ".join(makespans),
        "bubble " + " → ".join(dict.fromkeys(f"{100 * t.bubble_fraction:.1f} %" for t in timelines)),
        "in flight " + " → ".join(dict.fromkeys(listed(t.peak_in_flight) for t in timelines)),
        *(["activations " + " → ".join(peaks)] if sized else []),
        *(f"stopped after {len(t.spans)} of {t.total} operations" for t in timelines if not t.complete),
    )


def caption(p: int, m: int, provenance: str, measured: Sequence[Timeline] = ()) -> str:
    """How many ranks and microbatches, and where the times come from: of the first timelines, and of those `measured`
    beside them. What all of these have in common is said once."""
    ranks = f"p = {p} rank{'s' * (p > 1)}"
    parts = f"m = {m} microbatch{'es' * (m > 1)}"
    said = [f"{ranks}, {parts}.", f"{provenance[:1].upper()}{provenance[1:]}."]
    whose: dict[str, list[str]] = {}
    for t in measured:
        whose.setdefault(t.provenance, []).append(t.schedule.name)
    for text, names in whose.items():
        said.append(f"{', '.join(names)}: {text}." if len(whose) > 1 else f"{text[:1].upper()}{text[1:]}.")
    return " ".join(said)
