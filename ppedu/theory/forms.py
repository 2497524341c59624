"""Closed forms for the idle time of every schedule, each with its text, its condition and its source.

Letters: p ranks, m microbatches, v stages per rank; F, B, I, W the time of one microbatch's operation on one p-th of the
model (B = I + W), F&B of an overlapped pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ppedu.core.checks import whole
from ppedu.core.costs import Costs
from ppedu.core.operations import Action, Kind, Overlap
from ppedu.theory.formula import evaluate


@dataclass(frozen=True, slots=True)
class Case:
    """What a closed form is asked for: p, m, v, and times on one p-th of the model; f_and_b is a pair that overlaps."""

    p: int
    m: int
    v: int
    f: float
    b: float
    i: float
    w: float
    f_and_b: float

    @classmethod
    def of(
        cls,
        p: int,
        m: int,
        v: int = 1,
        forward: float = 1.0,
        backward: float | None = None,
        input_grad: float | None = None,
        weight_grad: float | None = None,
        overlapped: float | None = None,
    ) -> Case:
        """The times that are left out are what `ppedu.Costs` takes them for. Raises ValueError for what makes no sense."""
        costs = Costs(forward, backward, input_grad, weight_grad, overlapped)
        if costs.stages:
            raise ValueError(f"closed forms are for stages of equal cost: give one number for all, and not {costs}")
        one = {kind: Action(0, kind, 0) for kind in Kind}
        f, b, i, w = (costs.duration(one[kind]) for kind in (Kind.F, Kind.B, Kind.I, Kind.W))
        if not close(b, i + w):
            raise ValueError(
                f"B = I + W, but backward={b:g} and input_grad + weight_grad = {i + w:g}: leave one of them out"
            )
        pair = costs.duration(Overlap(one[Kind.F], one[Kind.B]))
        return cls(whole("p", p), whole("m", m), whole("v", v), f, b, i, w, pair)

    @property
    def letters(self) -> dict[str, float]:
        """The values by the letters that formulas have for them."""
        times = {"F": self.f, "B": self.b, "I": self.i, "W": self.w, "F&B": self.f_and_b}
        return {"p": self.p, "m": self.m, "v": self.v, **times}


def close(a: float, b: float) -> bool:
    """Equal, but for rounding: 0.3 - 0.2 is 0.1."""
    return math.isclose(a, b, rel_tol=1e-9)


def at_most(a: float, b: float) -> bool:
    """a <= b, but for rounding."""
    return a <= b or close(a, b)


@dataclass(frozen=True, slots=True)
class Form:
    """A closed form: how it is written, where it holds, in words and as a test, and who gives it.

    below: how it is written for m < p, where that differs.
    """

    formula: str
    holds: str
    source: str
    where: Callable[[Case], bool] = lambda c: True
    below: str = ""

    def at(self, case: Case) -> str:
        """How it is written for this case."""
        return self.below if self.below and case.m < case.p else self.formula

    def value(self, case: Case) -> float:
        """What it comes to."""
        return evaluate(self.at(case), case.letters)


_RAMP, _SPLIT = "SC'21, section 2.2.1, t_pb", "Zero Bubble, ICLR'24, table 2"
_AUTHORS = "DualPipe's README"


def _wrapped(source: str) -> Form:
    below = "(p - 1 + (v - 1)(p - m))(F + B) / v"
    return Form("(p - 1)(F + B) / v", "always", f"{source}, for m >= p; below by counting", below=below)


def _facing(c: Case) -> bool:
    pair = at_most(max(c.f, c.b), c.f_and_b) and at_most(c.f_and_b, c.f + c.b)
    return close(c.f, c.i) and at_most(c.w, c.i) and pair


_FACING = "m >= 2p, F = I >= W, and F&B from B to F + B"

IDLE: dict[str, Form] = {
    "naive": Form("m (p - 1)(F + B)", "always", "by counting: no two operations overlap"),
    "gpipe": Form("(p - 1)(F + B)", "always", _RAMP),
    "1f1b": Form("(p - 1)(F + B)", "always", _RAMP),
    "interleaved": _wrapped("SC'21, section 2.2.2"),
    "looped_bfs": _wrapped("Lamy-Poirier, 2022"),
    "zb_h1": Form(
        "(p - 1)(F + I - W)",
        "W <= F and W <= I",
        f"{_SPLIT}, for m >= p; below by counting",
        lambda c: at_most(c.w, min(c.f, c.i)),
        below="(p - 1)(F + I - W) + (p - m) W",
    ),
    "zb_h2": Form(
        "(p - 1) max(F, F + I - 2W)",
        "m >= 2p - 1 and W <= F",
        f"{_SPLIT}, with the staggered start and end added",
        lambda c: c.m >= 2 * c.p - 1 and at_most(c.w, c.f),
    ),
    "zb_v": Form(
        "(p - 1) F / 2",
        "m >= 2p - 1 and F = I >= W >= F / 2",
        "Controllable Memory, 2024, for F = I = W: no bubble but the staggered start",
        lambda c: c.m >= 2 * c.p - 1 and close(c.f, c.i) and at_most(c.w, c.i) and at_most(c.f / 2, c.w),
    ),
    "dualpipe": Form(
        "(p/2 - 1)(F&B + B - 3W)",
        f"p and m even, {_FACING}",
        _AUTHORS,
        lambda c: c.p % 2 == c.m % 2 == 0 and c.m >= 2 * c.p and _facing(c),
    ),
    "dualpipev": Form(
        "(p - 1)(F&B + B - 3W) / 2",
        _FACING,
        f"{_AUTHORS}, on PP/2 devices",
        lambda c: c.m >= 2 * c.p and _facing(c),
    ),
}
"""Idle time of a rank from the first rank's start to the last one's end, by the names of `ppedu.SCHEDULES`: of each rank
alike, and with overlapped pairs (which leave ranks with different work) of the rank that idles most."""

IDLE_IN_SPAN: dict[str, Form] = {
    "zb_h2": Form(
        "(p - 1)(F + I - 2W)",
        "m >= 2p - 1, W <= F and 2W <= F + I",
        _SPLIT,
        lambda c: c.m >= 2 * c.p - 1 and at_most(c.w, c.f) and at_most(2 * c.w, c.f + c.i),
    ),
    "zb_v": Form(
        "0",
        "m >= 2p - 1 and F = I = W",
        "Controllable Memory, 2024",
        lambda c: c.m >= 2 * c.p - 1 and close(c.f, c.i) and close(c.i, c.w),
    ),
}
"""Idle time between a rank's own first and last operation, of the rank that idles most there: what counts where the
optimizer step waits for nobody, so that the next iteration fills the corners."""

SAVED = {"dualpipe": "(m - p - 1)(F + B - F&B)", "dualpipev": "(m - p - 0.5)(F + B - F&B)"}
"""What the pairs of the rank that idles most save it, by the order's phases."""
