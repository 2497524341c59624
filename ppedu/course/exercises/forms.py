"""What an answer looks like: how it is read, whether it is the right one, and what is said of one that is not.

Each question and each exercise has a form. A form reads whatever a reader may hand in, a numpy number for instance, and
says in a sentence what it cannot read.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from numbers import Real
from typing import Any

from ppedu.core.timeline import Timeline
from ppedu.course.exercises.reading import MisreadError, listed, open_answer, operation, plain, short, what


class Form(ABC):
    """How answers of one kind are read, compared and told."""

    wants: str
    """What a reader has to give, as a noun: "a number"."""

    @abstractmethod
    def read(self, answer: Any) -> Any:
        """The answer as a plain value. Raises MisreadError for what is no answer of this form."""

    def same(self, got: Any, want: Any) -> bool:
        """Whether a value that was read is right, given the right one."""
        return bool(got == want)

    def alike(self, got: Any, other: Any) -> bool:
        """Whether two values that were read are one and the same answer: how known wrong ideas are recognised."""
        return self.same(got, other)

    def show(self, value: Any) -> str:
        """A value that was read, as text."""
        return short(value)

    def differs(self, got: Any, want: Any) -> str:
        """What is wrong with a value, in a sentence or two, where the right one may be named."""
        return f"you gave {self.show(got)}, it is {self.show(want)}."

    def remark(self, got: Any, want: Any) -> str:
        """A hint that needs no knowledge of the question, and does not name the right value; "" where there is none."""
        return ""

    def timelines(self, got: Any, want: Any) -> tuple[Timeline, ...]:
        """What to draw, the reader's first, the right one below it; () for nothing."""
        return ()


@dataclass(frozen=True)
class Number(Form):
    """A number. unit: what it counts, said behind it. whole: only whole numbers are answers. rel: tolerance."""

    unit: str = ""
    whole: bool = False
    rel: float = 1e-6

    @property
    def wants(self) -> str:  # type: ignore[override]
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} of {self.unit}" if self.unit else kind

    def read(self, answer: Any) -> Any:
        value = plain(answer)
        if isinstance(value, bool) or not isinstance(value, Real):
            more = " Write it without quotes." if isinstance(value, str) else ""
            raise MisreadError(f"{self.wants} is asked for, and this is {what(answer)}.{more}")
        number = float(value)
        if not math.isfinite(number):
            raise MisreadError(f"{self.wants} is asked for, and this is {number}.")
        if self.whole and not math.isclose(number, round(number), rel_tol=1e-9, abs_tol=1e-9):
            raise MisreadError(f"{self.wants} is asked for, and {number:g} is not whole.")
        return round(number) if self.whole else number

    def same(self, got: Any, want: Any) -> bool:
        return math.isclose(got, want, rel_tol=self.rel, abs_tol=1e-12)

    def show(self, value: Any) -> str:
        text = str(value) if isinstance(value, int) else f"{value:.6g}"
        return f"{text} {self.unit}" if self.unit else text

    def remark(self, got: Any, want: Any) -> str:
        if got and want and self.same(got, 100 * want):
            return "That is in per cent. Give it as a fraction: 25 % is 0.25."
        if want and got == -want:
            return "The size is right, the sign is not."
        if want and math.isclose(got, want, rel_tol=0.02):
            return "That is close: is it rounded? Let Python compute it, without rounding."
        return ""


@dataclass(frozen=True)
class YesNo(Form):
    """True or False."""

    wants = "True or False"

    def read(self, answer: Any) -> Any:
        value = plain(answer)
        if isinstance(value, bool):
            return value
        raise MisreadError(f"True or False is asked for, and this is {what(answer)}.")


@dataclass(frozen=True)
class Choice(Form):
    """One of a few options, by its name: "a", "b", ... or a word. Case and blanks do not matter."""

    options: tuple[str, ...]

    @property
    def wants(self) -> str:  # type: ignore[override]
        return "one of " + ", ".join(f'"{option}"' for option in self.options)

    def read(self, answer: Any) -> Any:
        if isinstance(answer, str):
            for option in self.options:
                if option.strip().lower() == answer.strip().lower():
                    return option
        raise MisreadError(f"{self.wants} is asked for, and this is {what(answer)}.")

    def show(self, value: Any) -> str:
        return f'"{value}"'


@dataclass(frozen=True)
class ListOf(Form):
    """A list of answers of one form. length: how many, where that is no part of the question. ordered: order matters."""

    of: Form
    length: int | None = None
    ordered: bool = True

    @property
    def wants(self) -> str:  # type: ignore[override]
        count = "" if self.length is None else f"{self.length} entries, "
        return f"a list ({count}each {self.of.wants})"

    def read(self, answer: Any) -> Any:
        entries = listed(answer, self.wants)
        if self.length is not None and len(entries) != self.length:
            raise MisreadError(f"{self.wants} is asked for, and yours has {len(entries)} entries.")
        found = []
        for place, entry in enumerate(entries):
            try:
                found.append(self.of.read(entry))
            except MisreadError as error:
                raise MisreadError(f"entry {place} of your list: {error}") from None
        return tuple(found)

    def same(self, got: Any, want: Any) -> bool:
        pair = (got, want) if self.ordered else (sorted(got), sorted(want))
        return len(got) == len(want) and all(map(self.of.same, *pair))

    def show(self, value: Any) -> str:
        return short([entry if isinstance(entry, int | str | bool) else round(entry, 6) for entry in value], 120)

    def differs(self, got: Any, want: Any) -> str:
        if len(got) != len(want):
            return f"your list {self.show(got)} has {len(got)} entries, and {len(want)} are needed."
        place = next(i for i, pair in enumerate(zip(got, want, strict=True)) if not self.of.same(*pair))
        return f"in your list {self.show(got)}, entry {place}: {self.of.differs(got[place], want[place])}"


@dataclass(frozen=True)
class Fields(Form):
    """A dict with one answer a key: a table to fill in, or a quiz. Open entries are None."""

    of: Mapping[str, Form]

    @property
    def wants(self) -> str:  # type: ignore[override]
        return "a dict with " + ", ".join(f'"{key}"' for key in self.of)

    def read(self, answer: Any) -> Any:
        if not isinstance(answer, Mapping):
            raise MisreadError(f"{self.wants} is asked for, and this is {what(answer)}.")
        unknown = [key for key in answer if key not in self.of]
        if unknown:
            raise MisreadError(f"{self.wants} is asked for, and yours has {short(unknown[0])} as well.")
        found = {}
        for key, form in self.of.items():
            value = answer.get(key)
            try:
                found[key] = None if open_answer(value) else form.read(value)
            except MisreadError as error:
                raise MisreadError(f'"{key}": {error}') from None
        return found

    def wrong(self, got: Any, want: Any) -> list[str]:
        """The keys whose answers are given and wrong."""
        return [key for key, form in self.of.items() if got[key] is not None and not form.same(got[key], want[key])]

    def same(self, got: Any, want: Any) -> bool:
        return all(got[key] is not None and form.same(got[key], want[key]) for key, form in self.of.items())

    def alike(self, got: Any, other: Any) -> bool:
        """Whether every entry of the other, which may leave some open, is given in the same way."""
        named = {key: value for key, value in other.items() if value is not None}
        return all(got[key] is not None and self.of[key].alike(got[key], value) for key, value in named.items())

    def show(self, value: Any) -> str:
        return ", ".join(f'"{k}": {"open" if value[k] is None else f.show(value[k])}' for k, f in self.of.items())

    def differs(self, got: Any, want: Any) -> str:
        wrong, still_open = self.wrong(got, want), [key for key in self.of if got[key] is None]
        said = "not right yet" if wrong else "still open"
        return f"{said}: " + ", ".join(f'"{key}"' for key in wrong or still_open) + "."


@dataclass(frozen=True)
class Order(Form):
    """The operations of one rank in their order: "F0 F1 B0" or ["F0", "F1", "B0"]."""

    wants = 'operations in their order, like "F0 F1 B0"'

    def read(self, answer: Any) -> Any:
        entries = re.split(r"[\s,]+", answer.strip()) if isinstance(answer, str) else listed(answer, self.wants)
        found = []
        for place, entry in enumerate(entries):
            name = operation(entry)
            if name is None:
                raise MisreadError(
                    f"entry {place} is {what(entry)}, which is no operation: write a letter and the microbatch, like F0."
                )
            found.append(name)
        return tuple(found)

    def show(self, value: Any) -> str:
        return " ".join(value) or "nothing"

    def differs(self, got: Any, want: Any) -> str:
        for place, (mine, right) in enumerate(zip_longest(got, want)):
            if mine is None:
                return f"your order ends after {place} operations, and {len(want)} are needed."
            if right is None:
                return f"your order goes on after the last operation, number {place}: {mine} is one too many."
            if mine != right:
                return f"number {place + 1} of your order is {mine}: up to there it is right, from there it is not."
        return "your order is right."
