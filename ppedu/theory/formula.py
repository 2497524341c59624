"""A formula is text, and that very text is worked out: what is shown and what it comes to cannot disagree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType

from ppedu.core.format import number


def evaluate(formula: str, letters: Mapping[str, float]) -> float:
    """What a formula comes to.

    >>> evaluate("2p - 1 + max(0, p - m) W", {"p": 4, "m": 2, "W": 0.5})
    8.0
    """
    code, names = _read(formula)
    known = {name: letters[letter] for name, letter in names.items()}
    return float(eval(code, {"__builtins__": {}, "min": min, "max": max}, known))


def put_in(formula: str, letters: Mapping[str, float]) -> str:
    """A formula with the numbers in place of its letters.

    >>> put_in("m (F + B) + (p - 1)(F + I - W)", {"p": 4, "m": 8, "F": 1, "B": 2, "I": 1, "W": 1})
    '8 x (1 + 2) + (4 - 1)(1 + 1 - 1)'
    """
    text = " ".join(number(letters[token]) if token in letters else token for token in _tokens(formula))
    return re.sub(r"(?<=\() | (?=[),])|(?<=min|max) (?=\()", "", text).replace(") x (", ")(")


@lru_cache(maxsize=256)
def _tokens(formula: str) -> tuple[str, ...]:
    """Its numbers, letters and signs, with an x where a product is written without a sign."""
    found: list[str] = []
    for token in re.findall(r"F&B|[A-Za-z]+|[\d.]+|\S", formula):
        factor = found and (found[-1] == ")" or found[-1][-1].isalnum()) and found[-1] not in ("min", "max")
        found += ["x", token] if factor and (token == "(" or token[0].isalnum()) else [token]
    return tuple(found)


@lru_cache(maxsize=256)
def _read(formula: str) -> tuple[CodeType, dict[str, str]]:
    """A formula as Python's code, and its letters by the names that they have there."""
    letters = {token.replace("&", "_"): token for token in _tokens(formula) if token[0].isalpha()}
    text = " ".join("*" if token == "x" else token.replace("&", "_") for token in _tokens(formula))
    return compile(text, formula, "eval"), {n: one for n, one in letters.items() if n not in ("x", "min", "max")}
