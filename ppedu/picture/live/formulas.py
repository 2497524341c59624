"""The closed forms that stand beside the figures: a formula is text, and that very text is worked out for its numbers.

They hold under the conditions that `ppedu.theory` states, which has their sources; elsewhere the simulated figure stands
alone. Letters: p ranks, m microbatches, v stages a rank, i a rank; F and B what a microbatch takes on 1/p of the model,
I and W the halves of B, F&B an overlapped pair.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import CodeType
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
_WRAPPED = ("(p - 1)(F + B) / v", "(p - 1 + (v - 1)(p - m))(F + B) / v")
_IDLE = {
    "interleaved": _WRAPPED,
    "looped_bfs": _WRAPPED,
    "zb_h1": ("(p - 1)(F + I - W)", "(p - 1)(F + I - W) + (p - m) W"),
}
"""How `theory.IDLE` is written for m >= p, and for m < p."""
_SAVED = {"dualpipe": "(m - p - 1)(F + B - F&B)", "dualpipev": "(m - p - 0.5)(F + B - F&B)"}
"""What overlapped pairs save a rank."""
_PEAK = {
    "naive": "1",
    "gpipe": "m",
    "1f1b": "min(p - i, m) on rank i",
    "looped_bfs": "m v",
    "zb_h1": "min(p, m)",
    "zb_h2": "min(2p - 1, m)",
    "zb_v": "min(2p, m + min(m, i + 1)) on rank i",
    "dualpipev": "min(2p + 1, m + min(m, i + 1)) on rank i",
}


def formulas(settings: Settings) -> Formulas:
    """The closed forms that hold for these settings. What is in flight depends on the order alone, never on times."""
    times = _times(settings) if settings.even and settings.free else {}
    return times | _memory(settings)


def _times(s: Settings) -> Formulas:
    if s.key in PLAIN:
        return PLAIN[s.key]
    f, b, i, w, pair = _letters(s).values()
    try:
        theory.idle(s.key, s.p, s.m, s.v, forward=f, backward=b, input_grad=i, weight_grad=w, overlapped=pair)
    except ValueError:  # its condition does not hold, or there is none
        return {}
    idle = _IDLE[s.key][s.m < s.p] if s.key in _IDLE else theory.IDLE[s.key].formula
    if s.overlap != 1:  # the ranks have different work, and so different idle times
        return {"idle": idle, "makespan": f"m (F + B) - {_SAVED[s.key]} + idle"}
    return {"idle": idle, "makespan": "m (F + B) + idle", **_BY_IDLE}


def _memory(s: Settings) -> Formulas:
    peak = _PEAK.get(s.key, "")
    if s.key == "interleaved":
        first_round = -(-s.m // max(1, s.m // s.p))
        wrapped = f"2(p - i - 1) + (v - 1) {'p' if first_round == s.p else first_round} + 1"
        peak = f"min(m v, {wrapped}) on rank i" if s.v > 1 else _PEAK["1f1b"]
    if s.key == "dualpipe" and s.m >= 2 * s.p:
        peak = "p + 1"
    if not peak:
        return {}
    return {"peak": peak} | ({"activations": f"peak in flight / {1 / s.size:.0f}"} if s.size != 1 else {})


def _letters(s: Settings) -> dict[str, float]:
    """What operations take on 1/p of the model."""
    scale = s.slow_factor if s.p == 1 and s.slow_stage == 0 else 1.0
    f, b = scale, scale * s.ratio
    return {"F": f, "B": b, "I": b * (1 - s.w_share), "W": b * s.w_share, "F&B": s.overlap * (f + b)}


@dataclass(frozen=True, slots=True)
class Worked:
    """A formula, what it comes to (for each rank where it is a rank's), and how that is written."""

    formula: str
    value: Value
    numbers: str

    def gives(self, value: Value) -> bool:
        """Whether this is what a timeline shows."""
        mine, other = (one if isinstance(one, tuple) else (one,) for one in (self.value, value))
        return all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) for a, b in zip(mine, other, strict=True))


def work_out(found: Formulas, settings: Settings) -> dict[str, Worked]:
    """What formulas come to.

    >>> work_out({"idle": "(p - 1)(F + B)", "bubble": "idle / (20 + p)"}, Settings("1f1b", p=4, m=8))["bubble"]
    Worked(formula='idle / (20 + p)', value=0.25, numbers='6/24 = 1/4')
    """
    letters = {"p": settings.p, "m": settings.m, "v": settings.v, **_letters(settings)}
    held, done = [0.0] * settings.p, {}
    for key, formula in found.items():
        if key in ("peak", "activations"):
            rule = formula.removesuffix(" on rank i")
            held = [evaluate(rule, {**letters, "i": i, "peak in flight": peak}) for i, peak in enumerate(held)]
            done[key] = Worked(formula, tuple(held), by_rank(held))
        else:
            letters[key] = evaluate(formula, letters)
            numbers = _share(formula, letters) if key in _BY_IDLE and " / " in formula else put_in(formula, letters)
            done[key] = Worked(formula, letters[key], numbers)
    return done


def evaluate(formula: str, letters: Mapping[str, float]) -> float:
    """What a formula comes to.

    >>> evaluate("2p - 1 + max(0, p - m) W", {"p": 4, "m": 2, "W": 0.5})
    8.0
    """
    names = {_name(letter): value for letter, value in letters.items()}
    return float(eval(_code(formula), {"__builtins__": {}, "min": min, "max": max}, names))


def put_in(formula: str, letters: Mapping[str, float]) -> str:
    """A formula with the numbers in place of its letters.

    >>> put_in("m (F + B) + (p - 1)(F + I - W)", {"p": 4, "m": 8, "F": 1, "B": 2, "I": 1, "W": 1})
    '8 x (1 + 2) + (4 - 1)(1 + 1 - 1)'
    """
    text = " ".join(number(letters[token]) if token in letters else token for token in _tokens(formula))
    return re.sub(r"(?<=\() | (?=[),])|(?<=min|max) (?=\()", "", text).replace(") x (", ")(")


def _share(formula: str, letters: Mapping[str, float]) -> str:
    """A quotient as one number over the other, and the same in lowest terms where that differs."""
    part, whole = (evaluate(side, letters) for side in formula.split(" / ", 1))
    written = f"{number(part)}/{number(whole)}"
    if not (part.is_integer() and whole.is_integer()):
        return written
    lowest = str(Fraction(int(part), int(whole)))
    return written if lowest == written else f"{written} = {lowest}"


@lru_cache(maxsize=256)
def _tokens(formula: str) -> tuple[str, ...]:
    """Its numbers, letters and signs, with an x where a product is written without a sign."""
    found: list[str] = []
    for token in re.findall(r"peak in flight|F&B|[A-Za-z]+|[\d.]+|\S", formula):
        factor = found and (found[-1] == ")" or found[-1][-1].isalnum()) and found[-1] not in ("min", "max")
        found += ["x", token] if factor and (token == "(" or token[0].isalnum()) else [token]
    return tuple(found)


@lru_cache(maxsize=256)
def _code(formula: str) -> CodeType:
    return compile(" ".join("*" if token == "x" else _name(token) for token in _tokens(formula)), formula, "eval")


def _name(token: str) -> str:
    """A letter as Python can read it."""
    return token.replace("&", "_and_").replace(" ", "_")
