"""The figures beside the picture: each with the formula that gives it, or with the reason why there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ppedu import theory
from ppedu.core.format import by_rank, joined, percent, time_text
from ppedu.core.timeline import Timeline
from ppedu.picture.live.formulas import PLAIN, Value, formulas, work_out
from ppedu.picture.live.settings import Settings

LABELS = {
    "makespan": "makespan",
    "idle": "idle time, most of any rank",
    "bubble": "bubble, of the makespan",
    "over ideal": "bubble, over the ideal time",
    "utilization": "utilization",
    "peak": "peak in flight, rank by rank",
    "activations": "the same in activations of 1/p of the model",
    "weights": "weights",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a timeline.

    key, label: what it is, for programs and for people. value: as a number, or one a rank. text: as it is shown.
    formula: letters. numbers: the same with the numbers put in. note: why there is no formula, or "".
    about: what is said in place of a formula, where none is to be expected.
    """

    key: str
    label: str
    value: Value
    text: str
    formula: str = ""
    numbers: str = ""
    note: str = ""
    about: str = ""


def figures(settings: Settings, t: Timeline) -> tuple[Figure, ...]:
    """What the timeline of these settings costs in time and memory, in the order in which it is shown.

    >>> settings = Settings("1f1b", p=4, m=8)
    >>> for one in figures(settings, settings.predicted()):
    ...     print(one.label, one.text, "=", one.formula, "=", one.numbers)
    makespan 22 = (m + p - 1)(F + B) = (8 + 4 - 1)(1 + 1)
    bubble, of the makespan 27.3 % = (p - 1) / (m + p - 1) = 3/11
    bubble, over the ideal time 37.5 % = (p - 1) / m = 3/8
    utilization 72.7 % = m / (m + p - 1) = 8/11
    peak in flight, rank by rank 4 3 2 1 = min(p - i, m) on rank i = 4 3 2 1
    """
    known, why = formulas(settings), _why_simulated(settings)
    come_to = work_out(known, settings)
    found = []
    for key, value in values_of(t).items():
        if key == "idle" and settings.key in PLAIN:
            continue
        more = {"note": why}
        if key in known and _same(come_to[key][0], value):
            more = {"formula": known[key], "numbers": come_to[key][1]}
        found.append(Figure(key, LABELS[key], value, text_of(key, value), **more))
    return (*found, *_weights(t))


def _same(a: Value, b: Value) -> bool:
    pairs = zip(*(one if isinstance(one, tuple) else (one,) for one in (a, b)), strict=True)
    return all(math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-9) for x, y in pairs)


def read_off(t: Timeline, beside: Timeline | None = None) -> tuple[Figure, ...]:
    """The figures of a timeline that stands for itself, each with the same of another one `beside` it.

    >>> from ppedu import one_f_one_b, simulate
    >>> for one in read_off(simulate(one_f_one_b(p=4, m=8)))[:2]:
    ...     print(one.label, one.text, one.about)
    makespan 22 predicted
    idle time, most of any rank 6 predicted
    """
    others = values_of(beside) if beside else {}
    found = []
    for key, value in values_of(t).items():
        about = f"{beside.word} {text_of(key, others[key], beside.unit)}" if beside else t.word
        found.append(Figure(key, LABELS[key], value, text_of(key, value, t.unit), about=about))
    return (*found, *_weights(t))


def values_of(t: Timeline) -> dict[str, Value]:
    """What a timeline costs in time and memory, in the order in which it is shown."""
    sized = t.schedule.stage_size != 1
    return {
        "makespan": t.makespan,
        "idle": max(t.idle),
        "bubble": t.bubble_fraction,
        "over ideal": t.bubble_over_ideal,
        "utilization": t.utilization,
        "peak": t.peak_in_flight,
        **({"activations": t.peak_activations} if sized else {}),
    }


def _weights(t: Timeline) -> list[Figure]:
    if t.schedule.chains != 2:
        return []
    about = "one for each direction; their gradients are summed before the optimizer step"
    return [Figure("weights", LABELS["weights"], 2.0, "2 copies", about=about)]


def text_of(key: str, value: float | Sequence[float], unit: str = "") -> str:
    """A figure's value as it is shown."""
    if not isinstance(value, int | float):
        return by_rank(value)
    return time_text(value, unit) if key in ("makespan", "idle") else percent(value)


def _why_simulated(settings: Settings) -> str:
    unknown = "Simulated: no closed form is known here."
    if settings.key not in theory.IDLE:
        return unknown
    several = len(settings.built().rank_of_stage) > settings.p
    slow = f"one {'rank' if several else 'stage'} is slower"
    reasons = [why for why, there in ((slow, not settings.even), ("messages take time", not settings.free)) if there]
    if reasons:
        return f"Simulated: the formulas hold for equal stages and free messages, but {joined(reasons)}."
    if settings.key in PLAIN:
        return unknown
    more = "; and pairs that overlap leave the ranks with different work" if settings.overlap != 1 else ""
    return f"Simulated: the closed form is known for {theory.IDLE[settings.key].holds}{more}."


def changes(before: Sequence[Figure], after: Sequence[Figure]) -> dict[str, tuple[str, str]]:
    """How a move changed the figures that it changed: (text before, 'up', 'down' or 'other')."""
    found, olds = {}, {old.key: old for old in before}
    for new in after:
        old = olds.get(new.key)
        if old is None or old.text == new.text:
            continue
        a, b = (one.value if isinstance(one.value, int | float) else max(one.value) for one in (old, new))
        found[new.key] = (old.text, "up" if b > a else "down" if b < a else "other")
    return found
