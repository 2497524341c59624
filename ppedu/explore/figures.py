"""The figures beside the picture: each with the formula that gives it, or with the reason why there is none.

The closed forms are those of `ppedu.theory`, under the conditions that it states; where they do not hold, the simulated
figure stands alone. Letters: p ranks, m microbatches, i a rank; F forward, B backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ppedu import theory
from ppedu.explore.settings import Settings
from ppedu.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a timeline.

    key, label: what it is, for programs and for people. value: as a number, or one a rank. text: as it is shown.
    formula: letters. numbers: the same with the numbers put in. note: why there is no formula, or "".
    """

    key: str
    label: str
    value: float | tuple[int, ...]
    text: str
    formula: str = ""
    numbers: str = ""
    note: str = ""


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
    values: dict[str, float | tuple[int, ...]] = {
        "makespan": t.makespan,
        "bubble": t.bubble_fraction,
        "over ideal": t.bubble_over_ideal,
        "utilization": t.utilization,
        "peak": t.peak_in_flight,
    }
    known, why = _closed_forms(settings), _why_simulated(settings)
    found = []
    for key, value in values.items():
        form = known.get(key)
        formula, numbers = (form.formula, form.numbers) if form else ("", "")
        found.append(Figure(key, LABELS[key], value, text_of(key, value), formula, numbers, "" if form else why))
    return tuple(found)


LABELS = {
    "makespan": "makespan",
    "bubble": "bubble, of the makespan",
    "over ideal": "bubble, over the ideal time",
    "utilization": "utilization",
    "peak": "peak in flight, rank by rank",
}


def text_of(key: str, value: float | Sequence[int]) -> str:
    """A figure's value as it is shown."""
    if not isinstance(value, int | float):
        return listed(value)
    return f"{value:.4g}" if key == "makespan" else f"{100 * value:.1f} %"


def listed(peaks: Sequence[int]) -> str:
    """One figure a rank, or what they have in common where they are all the same."""
    if len(peaks) > 8 and len(set(peaks)) == 1:
        return f"{peaks[0]} on every rank"
    return " ".join(map(str, peaks))


@dataclass(frozen=True, slots=True)
class _Form:
    """A closed form: its value, by `theory`, and how it is written."""

    value: float | tuple[int, ...]
    formula: str
    numbers: str


def _closed_forms(settings: Settings) -> dict[str, _Form]:
    """The closed forms that hold for these settings. What is in flight depends on the order alone, never on times."""
    name, p, m = settings.schedule, settings.p, settings.m
    peak = {"naive": "1", "gpipe": "m", "1f1b": "min(p - i, m) on rank i"}.get(name)
    if peak is None:
        return {}
    peaks = theory.peak_in_flight(name, p, m)
    held = {"peak": _Form(peaks, peak, listed(peaks))}
    if not (settings.even and settings.free):
        return held
    scale = settings.slow_factor if settings.slow_stage == 0 and p == 1 else 1.0
    forward, backward = scale, scale * settings.ratio
    both = f"({forward:g} + {backward:g})"
    if name == "naive":
        return {
            "makespan": _Form(theory.naive_makespan(p, m, forward, backward), "m p (F + B)", f"{m} x {p} x {both}"),
            "bubble": _Form(1 - theory.naive_utilization(p), "(p - 1) / p", _share(p - 1, p)),
            "over ideal": _Form(float(p - 1), "p - 1", f"{p} - 1"),
            "utilization": _Form(theory.naive_utilization(p), "1 / p", _share(1, p)),
            **held,
        }
    whole = m + p - 1
    return {
        "makespan": _Form(theory.makespan(p, m, forward, backward), "(m + p - 1)(F + B)", f"({m} + {p} - 1){both}"),
        "bubble": _Form(theory.bubble_fraction(p, m), "(p - 1) / (m + p - 1)", _share(p - 1, whole)),
        "over ideal": _Form(theory.bubble_over_ideal(p, m), "(p - 1) / m", _share(p - 1, m)),
        "utilization": _Form(theory.utilization(p, m), "m / (m + p - 1)", _share(m, whole)),
        **held,
    }


def _share(part: int, whole: int) -> str:
    """A fraction, and the same in lowest terms where that differs."""
    written, lowest = f"{part}/{whole}", str(Fraction(part, whole))
    return written if lowest == written else f"{written} = {lowest}"


def _why_simulated(settings: Settings) -> str:
    reasons = []
    if not settings.even:
        reasons.append("one stage is slower")
    if not settings.free:
        reasons.append("messages take time")
    if not reasons:
        return "Simulated: no closed form is known here."
    return f"Simulated: the formulas hold for equal stages and free messages, but {' and '.join(reasons)}."


def changes(before: Sequence[Figure], after: Sequence[Figure]) -> dict[str, tuple[str, str]]:
    """How a move changed the figures that it changed: (text before, 'up', 'down' or 'other')."""
    found = {}
    for old, new in zip(before, after, strict=True):
        if old.text == new.text:
            continue
        a, b = (_size(one.value) for one in (old, new))
        found[new.key] = (old.text, "up" if b > a else "down" if b < a else "other")
    return found


def _size(value: float | tuple[int, ...]) -> float:
    return value if isinstance(value, int | float) else float(max(value))
