"""Numbers that a closed form makes sense for."""

from __future__ import annotations

import math


def count(**given: object) -> int:
    """The value of p, m or v, or ValueError where it is no whole number of at least 1."""
    (letter, value), *_ = given.items()
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        what = {"p": "ranks", "m": "microbatches", "v": "stages on each rank"}[letter]
        raise ValueError(f"{letter} is the number of {what}, a whole number of at least 1: {letter}={value!r}")
    return value


def both(forward: float, backward: float) -> float:
    """F + B."""
    return time_of("forward", forward) + time_of("backward", backward)


def close(a: float, b: float) -> bool:
    """Equal, but for rounding: 0.3 - 0.2 is 0.1."""
    return math.isclose(a, b, rel_tol=1e-9)


def at_most(a: float, b: float) -> bool:
    """a <= b, but for rounding."""
    return a <= b or close(a, b)


def time_of(name: str, time: float) -> float:
    """The time, or ValueError where it can be none."""
    if not hasattr(time, "__float__") or not math.isfinite(time) or time < 0:
        raise ValueError(f"{name} is the time of one operation, a number of at least 0: {name}={time!r}")
    return float(time)
