"""Reads whatever a reader hands in, and says of what cannot be read what it is: in one way, and the same everywhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from numbers import Real
from typing import Any

_MOST = 100_000  # entries that are read from an iterator: one that never ends is told so


class MisreadError(ValueError):
    """An answer of the wrong kind. The message says what was wanted and what came."""


def short(value: object, most: int = 80) -> str:
    """A value in a few words: the same on every machine (no addresses), and never an error of its own."""
    if callable(value):
        return f"the function {getattr(value, '__name__', type(value).__name__)}"
    try:
        text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    except Exception:
        text = f"a {type(value).__name__} without a readable repr"
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def what(value: object) -> str:
    """A value with its type, for "got ...": `'22' (str)`."""
    return short(value) if callable(value) else f"{short(value)} ({type(value).__name__})"


def sentence(text: str, end: str = "") -> str:
    """A text that begins large, and ends in `end`."""
    return f"{text[0].upper()}{text[1:]}" + ("" if text.endswith(end) else end)


def plain(value: Any) -> Any:
    """A number out of a numpy or torch scalar; anything else as it is."""
    if isinstance(value, Real | str | bytes | type) or getattr(value, "shape", None) != ():
        return value
    try:
        return value.item()
    except Exception:
        return value


def listed(value: Any, wants: str) -> list[Any]:
    """The entries of any iterable but text and mappings; generators as well. Raises MisreadError for anything else."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise MisreadError(f"{wants} is asked for, and this is {what(value)}.")
    found = list(islice(value, _MOST + 1))
    if len(found) > _MOST:
        raise MisreadError(
            f"{wants} is asked for, and this one goes on and on: after {_MOST} entries it had not ended. "
            "What should end it?"
        )
    return found


def operation(entry: Any) -> str | None:
    """One operation as "F0", from text, an Action, or a pair like ("F", 0); None for what is none."""
    if isinstance(entry, tuple | list) and len(entry) == 2:
        entry = "".join(str(getattr(part, "value", plain(part))) for part in entry)
    match = re.fullmatch(r"\s*(\d*)([FBIWfbiw])(\d+)\s*", str(entry)) if not callable(entry) else None
    return f"{match[1]}{match[2].upper()}{match[3]}" if match else None


def open_answer(answer: Any) -> bool:
    """Whether an answer is a stub: None, `...`, or nothing but these."""
    if answer is None or answer is Ellipsis:
        return True
    if isinstance(answer, Mapping):
        return bool(answer) and all(map(open_answer, answer.values()))
    return isinstance(answer, tuple | list) and bool(answer) and all(map(open_answer, answer))
