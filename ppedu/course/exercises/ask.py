"""What the notebooks ask: predictions and exercises, with the wrong ideas that are known and what is said to each.

A module `nbNN.py` beside this one holds what notebook NN asks, as QUESTIONS and EXERCISES.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ppedu.course.exercises.forms import Form, Number


@dataclass(frozen=True)
class Wrong:
    """A wrong idea that readers are known to have.

    idea: the misconception in a few words; its name in the progress file, and for the instructor.
    answer: what somebody who has it answers: a value, or where a function is asked for, that function.
    hint: what is said to it. May hold {got} and the names of the case, like {p}.
    when: recognises the idea in other answers than this one: called as when(got, want, *case) on the first case that
        is wrong. Without it, an answer is recognised by being the same as `answer` in every case.
    """

    idea: str
    answer: Any
    hint: str
    when: Callable[..., bool] | None = None


def idea(name: str, answer: Any, when: Callable[..., bool] | None = None) -> Callable[[str], Wrong]:
    """A wrong idea and who has it; called with what is said to it, whose line breaks are those of the source.

    >>> idea("ranks take turns", 64)('''
    ...     64 is what one rank alone would take for all of it.
    ...     Rank 0 need not wait.''').hint
    '64 is what one rank alone would take for all of it. Rank 0 need not wait.'
    """
    return lambda hint: Wrong(name, answer, " ".join(hint.split()), when)


def cases(names: str, *rows: tuple[Any, ...]) -> tuple[dict[str, Any], ...]:
    """What a function is called with, as a table: a head of names, and a row a call.

    >>> cases("p m", (4, 8), (2, 3))
    ({'p': 4, 'm': 8}, {'p': 2, 'm': 3})
    """
    return tuple(dict(zip(names.split(), row, strict=True)) for row in rows)


@dataclass(frozen=True)
class Question:
    """A prediction: the reader commits to an answer, and then sees the right one.

    id: what the notebook calls it. form: what an answer looks like. answer: computes the right one.
    because: why it is that, said to everybody who answered. wrong: what is said to known wrong answers, before it.
    """

    id: str
    answer: Callable[[], Any]
    because: str
    form: Form = field(default_factory=Number)
    wrong: tuple[Wrong, ...] = ()


@dataclass(frozen=True)
class Exercise:
    """An exercise, checked as often as the reader likes.

    id: what the notebook calls it. form: what an answer looks like, or what the asked-for function returns.
    right: the right answer, or a function that returns it for a case.
    cases: where a function is asked for, what it is called with, by position: {"p": 4, "m": 8}. () where a value is.
    nudge: how to go on, said to a wrong answer that no known idea explains. It must not give the answer away.
    because: said to the right answer: what to take away from it.
    wrong: known wrong ideas. seconds: how long all cases together may take.
    """

    id: str
    right: Any
    nudge: str
    form: Form = field(default_factory=Number)
    cases: tuple[Mapping[str, Any], ...] = ()
    because: str = ""
    wrong: tuple[Wrong, ...] = ()
    seconds: float = 5.0

    def wanted(self, case: Mapping[str, Any]) -> Any:
        """The right answer of one case, as a value that was read."""
        return self.form.read(self.right(*case.values()) if self.cases else self.right)

    @property
    def all_cases(self) -> tuple[Mapping[str, Any], ...]:
        """The cases; for a value, one empty one."""
        return self.cases or ({},)
