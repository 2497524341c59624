"""Numbers that a user gives: refused with the rule, the number and what it counts."""

from __future__ import annotations

from numbers import Integral

_COUNTS = {"p": "the number of ranks", "m": "the number of microbatches", "v": "the number of stages on each rank"}


def is_whole(value: object) -> bool:
    """A whole number, numpy's included; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def whole(name: str, value: object, what: str = "", least: int = 1, most: int | None = None) -> int:
    """The value as an int, or ValueError where it is no whole number from `least` on, up to `most` where that is given.

    what: what the number is, as the sentence says it; p, m and v are known.

    >>> whole("steps", 3)
    3
    >>> whole("p", 0)
    Traceback (most recent call last):
    ValueError: p is the number of ranks, a whole number of at least 1: p=0
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)
        if number >= least and (most is None or number <= most):
            return number
    what = what or _COUNTS.get(name, "")
    range_ = f"of at least {least}" if most is None else f"from {least} to {most}"
    raise ValueError(f"{name} is {what}{', ' if what else ''}a whole number {range_}: {name}={value!r:.80}")
