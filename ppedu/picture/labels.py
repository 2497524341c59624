"""What pictures say in words, on paper and live: the unit, headings, the caption, and what tells timelines apart."""

from __future__ import annotations

from collections.abc import Sequence

from ppedu.core.format import by_rank, counted, percent, quantity
from ppedu.core.timeline import Timeline

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
SHORTER = ("", r"^\d+", r"^.*[FBIW]", r"\d")
"""What is left out of a name where a box has no room for it, the least first: nothing; the stage, which its shade tells; all
but the microbatch; where even that is too long, all but the kind."""


def units_of(timelines: Sequence[Timeline]) -> tuple[str, list[float]]:
    """The unit of a picture of several timelines, and for each the factor to it.

    Seconds are shown as milliseconds where all is over in less than 10, as sentences say them. Raises ValueError for units
    that cannot be compared.
    """
    units = {t.unit for t in timelines}
    if not units <= _SECONDS.keys():
        if len(units) > 1:
            first, second = sorted(units)[:2]
            raise ValueError(
                f"timelines in '{first}' and '{second}' cannot share a time axis. Simulate with the durations that the "
                "run has, such as Costs(forward=0.02, backward=0.02, unit='s')"
            )
        return units.pop(), [1.0] * len(timelines)
    longest = max(t.makespan * _SECONDS[t.unit] for t in timelines)
    unit = "s" if longest >= 10 else "us" if 0 < longest < 1e-3 else "ms"
    return unit, [_SECONDS[t.unit] / _SECONDS[unit] for t in timelines]


def titles(groups: Sequence[Sequence[Timeline]]) -> list[tuple[str, ...]]:
    """The pieces of each group's heading: of one timeline, or of two on the same ranks with the difference between them.

    >>> from ppedu import gpipe, one_f_one_b, simulate
    >>> titles([[simulate(one_f_one_b(p=4, m=8))]])
    [('1F1B', 'makespan 22', 'bubble 27.3 %', 'in flight 4 3 2 1')]
    >>> [title[0] for title in titles([[simulate(gpipe(p=4, m=m))] for m in (8, 16)])]
    ['GPipe p=4 m=8', 'GPipe p=4 m=16']

    Where a stage is no p-th of the model, what is in flight is said in p-ths as well ("activations"), for comparisons.
    """
    timelines = [t for group in groups for t in group]
    unit, scales = units_of(timelines)
    spans = iter([t.makespan * scale for t, scale in zip(timelines, scales, strict=True)])
    names = names_of([group[0] for group in groups])
    if len(groups) == 1:
        names = [" / ".join(dict.fromkeys(t.schedule.name for t in groups[0]))]
    return [_title(name, group, [next(spans) for _ in group], unit) for name, group in zip(names, groups, strict=True)]


def _title(name: str, group: Sequence[Timeline], spans: Sequence[float], unit: str) -> tuple[str, ...]:
    makespans = [f"{quantity(time, unit)} {word}".rstrip() for time, word in zip(spans, words_of(group), strict=True)]
    if len(group) == 2 and spans[0] and group[1].complete:
        makespans[1] += f" ({percent(spans[1] / spans[0] - 1, '+')})"
    peaks = {"in flight": [by_rank(t.peak_in_flight) for t in group]}
    if not all(_whole(t) for t in group):
        peaks["activations"] = [by_rank(t.peak_activations) for t in group]
    return (
        name,
        "makespan " + " → ".join(makespans),
        "bubble " + " → ".join(dict.fromkeys(percent(t.bubble_fraction) for t in group)),
        *(f"{what} {' → '.join(dict.fromkeys(texts))}" for what, texts in peaks.items()),
        *(f"stopped after {len(t.spans)} of {t.total} operations" for t in group if not t.complete),
    )


def _whole(t: Timeline) -> bool:
    """Each stage is a p-th of the model: one in flight is one microbatch on its rank."""
    return t.schedule.stage_size == 1


def words_of(group: Sequence[Timeline]) -> list[str]:
    """What tells the lanes of one rank apart; "" where it has one lane."""
    if len(group) == 1:
        return [""]
    options = [t.word for t in group], [t.schedule.name for t in group]
    return next((words for words in options if len(set(words)) == len(group)), ["first", "second"])


def names_of(timelines: Sequence[Timeline]) -> list[str]:
    """What tells timelines apart, as short as it can be: name, p and m where names repeat, predicted or measured."""
    names, labels = [t.schedule.name for t in timelines], [t.label for t in timelines]
    words = [t.word for t in timelines]
    worded = [[f"{text}, {word}" for text, word in zip(texts, words, strict=True)] for texts in (names, labels)]
    options = worded if len(set(words)) > 1 else [names, labels]
    return next((texts for texts in options if len(set(texts)) == len(timelines)), options[-1])


def caption(timelines: Sequence[Timeline], predicted: str = "") -> str:
    """How many ranks and microbatches, what shades and figures count, and where the times come from: what all timelines
    have in common is said once. predicted: what the predictions rest on, in place of their own words for it.

    >>> from ppedu import Costs, gpipe, one_f_one_b, simulate
    >>> caption([simulate(gpipe(p=4, m=8)), simulate(one_f_one_b(p=4, m=8), Costs(backward=2))])
    'p = 4 ranks, m = 8 microbatches. GPipe: predicted, F=1 B=1. 1F1B: predicted, F=1 B=2.'
    """
    schedules = [t.schedule for t in timelines]
    shapes = dict.fromkeys((s.num_ranks, s.num_microbatches) for s in schedules)
    said = ["; ".join(f"p = {counted(p, 'rank')}, m = {counted(m, 'microbatch')}" for p, m in shapes)]
    most = max(len(s.stages_of(rank)) for s in schedules for rank in range(s.num_ranks))
    if most > 1:
        said.append("Pale: the rank's second stage" if most == 2 else "The paler, the later the stage on its rank")
    if not all(map(_whole, timelines)):
        said.append("In flight: microbatches on one stage; activations: on 1/p of the model")
    for measured in (False, True):
        whose: dict[str, list[str]] = {}
        for t in timelines:
            if t.measured == measured and (text := t.provenance if measured else predicted or t.provenance):
                whose.setdefault(text, []).append(t.schedule.name if len(shapes) == 1 else t.label)
        if len(whose) == 1:
            said += [text[:1].upper() + text[1:] for text in whose]
        else:
            said += [f"{', '.join(dict.fromkeys(names))}: {text}" for text, names in whose.items()]
    return " ".join(sentence.rstrip(".") + "." for sentence in said)


def time_label(timelines: Sequence[Timeline], unit: str) -> str:
    """What the time axis counts."""
    if unit:
        return f"time ({unit.replace('us', 'µs')})"
    return "time (units of F)" if all(t.in_forwards for t in timelines) else "time (units)"
