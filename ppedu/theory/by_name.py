"""Time of every schedule by its name in `ppedu.SCHEDULES`, where there is a closed form for it.

Letters: p ranks, m microbatches, v stages per rank; F, B, I, W times on one p-th of the model, F&B of an overlapped pair.
"""

from __future__ import annotations

from collections.abc import Mapping

from ppedu.theory.forms import IDLE, IDLE_IN_SPAN, SAVED, Case, Form
from ppedu.theory.formula import evaluate


def idle(name: str, p: int, m: int, v: int = 2, **times: float) -> float:
    """Idle time of a rank over the whole makespan, of the one that idles most, in the unit of the times.

    name: as in `ppedu.SCHEDULES`. v counts for interleaved and looped_bfs only. times: forward (1), backward (as long as
    forward, or I + W), input_grad and weight_grad (half of backward each), overlapped (F + B): those of `ppedu.Costs`, of
    one microbatch on one p-th of the model. Raises ValueError where `IDLE[name]` does not hold.

    >>> idle("1f1b", p=4, m=8, backward=2), idle("interleaved", p=4, m=8, v=2, backward=2)
    (9.0, 4.5)
    >>> idle("zb_h1", p=4, m=8, input_grad=1, weight_grad=1), IDLE["zb_h1"].formula
    (3.0, '(p - 1)(F + I - W)')
    """
    return _value("idle time", IDLE, name, Case.of(p, m, v, **times))


def idle_in_span(name: str, p: int, m: int, v: int = 2, **times: float) -> float:
    """Idle time between a rank's own first and last operation, of the rank that idles most there; as `idle`, by
    `IDLE_IN_SPAN`.

    >>> idle_in_span("zb_h2", p=4, m=8, input_grad=2, weight_grad=1)
    3.0
    """
    return _value("idle time in a rank's own span", IDLE_IN_SPAN, name, Case.of(p, m, v, **times))


def makespan_of(name: str, p: int, m: int, v: int = 2, **times: float) -> float:
    """The makespan: `idle` plus the work of that rank, m (F + B), less what its overlapped pairs save; as `idle`.

    >>> makespan_of("1f1b", 4, 8, backward=2), makespan_of("interleaved", 4, 8, backward=2)
    (33.0, 28.5)
    """
    case = Case.of(p, m, v, **times)
    waits = _value("makespan", IDLE, name, case)
    saved = evaluate(SAVED[name], case.letters) if name in SAVED else 0.0
    return m * (case.f + case.b) - saved + waits


def _value(what: str, forms: Mapping[str, Form], name: str, case: Case) -> float:
    if name not in forms:
        raise ValueError(f"there is no closed form for the {what} of {name!r}: the names are {', '.join(forms)}")
    form = forms[name]
    if not form.where(case):
        given = f"p={case.p}, m={case.m}, F={case.f:g}, B={case.b:g}, I={case.i:g}, W={case.w:g}, F&B={case.f_and_b:g}"
        raise ValueError(f"the closed form for the {what} of {name} holds for {form.holds}: {given}. Simulate instead")
    return form.value(case)
