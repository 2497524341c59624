"""The closed forms that stand beside the figures: a formula is text, and that very text is worked out for its numbers.

They hold under the conditions that `ppedu.theory` states, which has their sources; elsewhere the simulated figure stands
alone. Letters: p ranks, m microbatches, v stages a rank, i a rank; F and B what a microbatch takes on 1/p of the model,
I and W the halves of B, F&B an overlapped pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TypeAlias

from ppedu import theory
from ppedu.core.format import by_rank, number
from ppedu.picture.live.settings import Settings

Value: TypeAlias = float | tuple[float, ...]
Formulas: TypeAlias = dict[str, str]
"""A formula for each figure that has one; later ones may name earlier ones."""

_ONE_STAGE = {
    "makespan": "(m + p - 1)(F + B)",
    "bubble": "(p - 1) / (m + p - 1)",
    "over ideal": "(p - 1) / m",
    "utilization": "m / (m + p - 1)",
}
PLAIN: dict[str, Formulas] = {
    "naive": {"makespan": "m p (F + B)", "bubble": "(p - 1) / p", "over ideal": "p - 1", "utilization": "1 / p"},
    "gpipe": _ONE_STAGE,
    "1f1b": _ONE_STAGE,
}
"""The schedules that no condition is put on."""
_BY_IDLE = {
    "bubble": "idle / makespan",
    "over ideal": "idle / (m (F + B))",
    "utilization": "m (F + B) / makespan",
}


def formulas(settings: Settings) -> Formulas:
    """The closed forms that hold for these settings. What is in flight depends on the order alone, never on times."""
    times = _times(settings) if settings.even and settings.free else {}
    return times | _memory(settings)


def _times(s: Settings) -> Formulas:
    if s.key in PLAIN:
        return PLAIN[s.key]
    form, case = theory.IDLE.get(s.key), _case(s)
    if not form or not form.where(case):
        return {}
    idle = form.at(case)
    if s.overlap != 1:  # the ranks have different work, and so different idle times
        return {"idle": idle, "makespan": f"m (F + B) - {theory.SAVED[s.key]} + idle"}
    return {"idle": idle, "makespan": "m (F + B) + idle", **_BY_IDLE}


def _memory(s: Settings) -> Formulas:
    try:
        peak = theory.peak_formula(s.key, s.p, s.m, s.v)
    except ValueError:
        return {}
    if "near" in peak:  # too long to be read at a glance
        return {}
    each = " on rank i" if " i" in peak else ""
    return {"peak": peak + each} | ({"activations": f"peak / {1 / s.size:.0f}"} if s.size != 1 else {})


def _case(s: Settings) -> theory.Case:
    """p, m, v, and what operations take on 1/p of the model."""
    f = s.slow_factor if s.p == 1 and s.slow_stage == 0 else 1.0
    b = f * s.ratio
    return theory.Case(s.p, s.m, s.v, f, b, b * (1 - s.w_share), b * s.w_share, s.overlap * (f + b))


def work_out(found: Formulas, settings: Settings) -> dict[str, tuple[Value, str]]:
    """What formulas come to (for each rank where it is a rank's), and how that is written.

    >>> work_out({"idle": "(p - 1)(F + B)", "bubble": "idle / (20 + p)"}, Settings("1f1b", p=4, m=8))["bubble"]
    (0.25, '6/24 = 1/4')
    """
    letters, held = _case(settings).letters, (0.0,) * settings.p
    done: dict[str, tuple[Value, str]] = {}
    for key, formula in found.items():
        if key in ("peak", "activations"):
            rule, before = formula.removesuffix(" on rank i"), enumerate(held)
            held = tuple(theory.evaluate(rule, {**letters, "i": i, "peak": peak}) for i, peak in before)
            done[key] = held, by_rank(held)
        else:
            letters[key] = theory.evaluate(formula, letters)
            quotient = key in _BY_IDLE and " / " in formula
            done[key] = letters[key], _share(formula, letters) if quotient else theory.put_in(formula, letters)
    return done


def _share(formula: str, letters: Mapping[str, float]) -> str:
    """A quotient as one number over the other, and the same in lowest terms where that differs."""
    part, whole = (theory.evaluate(side, letters) for side in formula.split(" / ", 1))
    written = f"{number(part)}/{number(whole)}"
    if not (part.is_integer() and whole.is_integer()):
        return written
    lowest = str(Fraction(int(part), int(whole)))
    return written if lowest == written else f"{written} = {lowest}"
