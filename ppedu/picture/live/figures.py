"""The figures beside the picture: each with the formula that gives it, or with the reason why there is none.

The closed forms are those of `ppedu.theory`, under the conditions that it states; where they do not hold, the simulated
figure stands alone. Letters: p ranks, m microbatches, i a rank; F forward, B backward.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from ppedu import theory
from ppedu.core.timeline import Timeline
from ppedu.picture.live.settings import Settings

Value: TypeAlias = float | tuple[float, ...]


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
    known, why = closed_forms(settings), _why_simulated(settings)
    found = []
    for key, value in values_of(t).items():
        if key == "idle" and settings.key in PLAIN:
            continue
        form = known.get(key)
        formula, numbers = (form.formula, form.numbers) if form else ("", "")
        found.append(Figure(key, LABELS[key], value, text_of(key, value), formula, numbers, "" if form else why))
    return (*found, *_weights(t))


def read_off(t: Timeline, beside: Timeline | None = None) -> tuple[Figure, ...]:
    """The figures of a timeline that stands for itself, each with the same of another one `beside` it.

    >>> from ppedu import one_f_one_b, simulate
    >>> for one in read_off(simulate(one_f_one_b(p=4, m=8)))[:2]:
    ...     print(one.label, one.text, one.about)
    makespan 22 predicted
    idle time, most of any rank 6 predicted
    """
    others = (
        {} if beside is None else {key: text_of(key, value, beside.unit) for key, value in values_of(beside).items()}
    )
    found = [
        Figure(
            key, LABELS[key], value, text_of(key, value, t.unit),
            about=f"{beside.word} {others[key]}" if beside else t.word,
        )
        for key, value in values_of(t).items()
    ]  # fmt: skip
    return (*found, *_weights(t))


def values_of(t: Timeline) -> dict[str, Value]:
    """What a timeline costs in time and memory, in the order in which it is shown."""
    sized = t.schedule.num_ranks != t.schedule.chain_length
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


PLAIN = ("naive", "gpipe", "1f1b")
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


def text_of(key: str, value: float | Sequence[float], unit: str = "") -> str:
    """A figure's value as it is shown."""
    if not isinstance(value, int | float):
        return listed(value)
    return time_text(value, unit) if key in ("makespan", "idle") else f"{100 * value:.1f} %"


def time_text(time: float, unit: str) -> str:
    """A time as figures and headings say it; seconds as milliseconds, as long as there are not too many."""
    if unit == "s":
        return f"{time:.3g} s" if time >= 10 else f"{1e3 * time:.4g} ms"
    return f"{time:.4g} {unit}".rstrip()


def listed(peaks: Sequence[float]) -> str:
    """One figure a rank, or what they have in common where they are all the same."""
    if len(peaks) > 8 and len(set(peaks)) == 1:
        return f"{peaks[0]:.4g} on every rank"
    return " ".join(f"{peak:.4g}" for peak in peaks)


@dataclass(frozen=True, slots=True)
class _Form:
    """A closed form: its value, by `theory`, and how it is written."""

    value: Value
    formula: str
    numbers: str


def closed_forms(settings: Settings) -> dict[str, _Form]:
    """The closed forms that hold for these settings. What is in flight depends on the order alone, never on times."""
    name, p, m = settings.key, settings.p, settings.m
    held = _memory(settings)
    if not (settings.even and settings.free):
        return held
    if name not in PLAIN:
        return {**_split_or_wrapped(settings), **held}
    scale = _scale(settings)
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


def _scale(settings: Settings) -> float:
    """How slow the one rank is, where there is but one."""
    return settings.slow_factor if settings.slow_stage == 0 and settings.p == 1 else 1.0


def _times(settings: Settings) -> dict[str, float]:
    """What operations take on 1/p of the model, by the names that `theory` knows."""
    scale, ratio = _scale(settings), settings.ratio
    return {
        "forward": scale,
        "backward": scale * ratio,
        "input_grad": scale * ratio * (1 - settings.w_share),
        "weight_grad": scale * ratio * settings.w_share,
        "overlapped": scale * settings.overlap * (1 + ratio),
    }


_IDLE = {
    "interleaved": ("(p - 1)(F + B) / v", "(p - 1 + (v - 1)(p - m))(F + B) / v"),
    "looped_bfs": ("(p - 1)(F + B) / v", "(p - 1 + (v - 1)(p - m))(F + B) / v"),
    "zb_h1": ("(p - 1)(F + I - W)", "(p - 1)(F + I - W) + (p - m) W"),
}
"""How `theory.IDLE` is written for m >= p, and for m < p."""
_PAIRS = {"dualpipe": "(m - p - 1)(F + B - F&B)", "dualpipev": "(m - p - 0.5)(F + B - F&B)"}


def _split_or_wrapped(settings: Settings) -> dict[str, _Form]:
    """The closed forms of the schedules that are known by what a rank idles; {} where their conditions do not hold."""
    name, p, m, v, times = settings.key, settings.p, settings.m, settings.v, _times(settings)
    try:
        idle = theory.idle(name, p, m, v, **times)
        makespan = theory.makespan_of(name, p, m, v, **times)
    except ValueError:
        return {}
    formula = _IDLE[name][m < p] if name in _IDLE else theory.IDLE[name].formula
    forms = {"idle": _Form(idle, formula, put_in(formula, settings))}
    saves = f" - {_PAIRS[name]}" if settings.overlap != 1 else ""
    said = f"m (F + B){saves} + idle"
    forms["makespan"] = _Form(makespan, said, put_in(said, settings).replace("idle", f"{idle:.4g}"))
    if saves:
        return forms  # the ranks have different work, and so different idle times
    work = makespan - idle
    for key, value, letters, shown in (
        ("bubble", idle / makespan, "idle / makespan", f"{idle:.4g}/{makespan:.4g}"),
        ("over ideal", idle / work, "idle / (m (F + B))", f"{idle:.4g}/{work:.4g}"),
        ("utilization", work / makespan, "m (F + B) / makespan", f"{work:.4g}/{makespan:.4g}"),
    ):
        forms[key] = _Form(value, letters, shown)
    return forms


def put_in(formula: str, settings: Settings) -> str:
    """A formula with the numbers in place of its letters.

    >>> put_in("m (F + B) + (p - 1)(F + I - W)", Settings("zb_h1", p=4, m=8, ratio=2))
    '8 x (1 + 2) + (4 - 1)(1 + 1 - 1)'
    """
    times = _times(settings)
    numbers = {"p": settings.p, "m": settings.m, "v": settings.v}
    letters = dict(zip(("F", "B", "I", "W", "F&B"), times.values(), strict=True))

    def number(match: re.Match[str]) -> str:
        value = {**numbers, **letters}[match[2]]
        return f"{match[1]} x {value:.4g}" if match[1] else f"{value:.4g}"

    put = re.sub(r"(\d?)\b(F&B|[pmvFBIW])\b", number, re.sub(r"(\d)([pW])", r"\1 x \2", formula))
    return re.sub(r"(\d|\)) (?=[\d(]|max)", r"\1 x ", put)


def _memory(settings: Settings) -> dict[str, _Form]:
    """What is in flight: by `theory`, for any times."""
    name, p, m, v = settings.key, settings.p, settings.m, settings.v
    try:
        peaks = theory.peak_in_flight(name, p, m, v)
    except ValueError:
        return {}
    size = -(-m // max(1, m // p))  # of interleaved's first round
    wrapped = f"2(p - i - 1) + (v - 1) {'p' if size == p else size} + 1"
    formulas = {
        "naive": "1",
        "gpipe": "m",
        "1f1b": "min(p - i, m) on rank i",
        "interleaved": f"min(m v, {wrapped}) on rank i" if v > 1 else "min(p - i, m) on rank i",
        "looped_bfs": "m v",
        "zb_h1": "min(p, m)",
        "zb_h2": "min(2p - 1, m)",
        "zb_v": "min(2p, m + min(m, i + 1)) on rank i",
        "dualpipev": "min(2p + 1, m + min(m, i + 1)) on rank i",
    }
    if name == "dualpipe" and set(peaks) == {p + 1}:
        formulas[name] = "p + 1"
    forms = {"peak": _Form(peaks, formulas[name], listed(peaks))} if name in formulas else {}
    if settings.size != 1:
        held = tuple(settings.size * peak for peak in peaks)
        forms["activations"] = _Form(held, f"peak in flight / {1 / settings.size:.0f}", listed(held))
    return forms


def _share(part: int, whole: int) -> str:
    """A fraction, and the same in lowest terms where that differs."""
    written, lowest = f"{part}/{whole}", str(Fraction(part, whole))
    return written if lowest == written else f"{written} = {lowest}"


def _why_simulated(settings: Settings) -> str:
    if settings.key not in theory.IDLE:
        return "Simulated: no closed form is known here."
    reasons = []
    if not settings.even:
        several = len(settings.built()[0].rank_of_stage) > settings.p
        reasons.append("one rank is slower" if several else "one stage is slower")
    if not settings.free:
        reasons.append("messages take time")
    if reasons:
        return f"Simulated: the formulas hold for equal stages and free messages, but {' and '.join(reasons)}."
    if settings.key in PLAIN:
        return "Simulated: no closed form is known here."
    more = "; and pairs that overlap leave the ranks with different work" if settings.overlap != 1 else ""
    return f"Simulated: the closed form is known for {theory.IDLE[settings.key].holds}{more}."


def changes(before: Sequence[Figure], after: Sequence[Figure]) -> dict[str, tuple[str, str]]:
    """How a move changed the figures that it changed: (text before, 'up', 'down' or 'other')."""
    found, olds = {}, {old.key: old for old in before}
    for new in after:
        old = olds.get(new.key)
        if old is None or old.text == new.text:
            continue
        a, b = (_size(one.value) for one in (old, new))
        found[new.key] = (old.text, "up" if b > a else "down" if b < a else "other")
    return found


def _size(value: Value) -> float:
    return value if isinstance(value, int | float) else float(max(value))
