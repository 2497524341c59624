"""What the notebooks ask: predictions that a reader commits to before the answer is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ppedu.builders import one_f_one_b
from ppedu.simulate import simulate


@dataclass(frozen=True, slots=True)
class Question:
    """A prediction that a notebook asks for, and what to say to answers that are wrong for a known reason."""

    unit: str
    answer: Callable[[], float]
    because: str
    hints: dict[float, str]


QUESTIONS: dict[str, Question] = {
    "makespan of 1F1B": Question(
        "units",
        lambda: simulate(one_f_one_b(p=4, m=8)).makespan,
        "Each rank works 8 x (1 + 1) = 16 units, and 6 more pass in which the work has not reached it yet or has left it "
        "already: the last rank starts at 3, and the first one waits as long at the end.",
        {
            16: "16 is 64 units shared out over 4 ranks that never wait. But rank 3 cannot start before the first "
            "microbatch has passed ranks 0, 1 and 2, and rank 0 is not done before the last gradient is back.",
            64: "64 is what one rank alone would take for all of it. While rank 1 works on microbatch 0, rank 0 need not "
            "wait: it can start on microbatch 1.",
            19: "19 counts the way down, 3 units until the last rank starts, but not the way back: the last gradient has "
            "3 more ranks to pass.",
            8: "8 units is the way of one microbatch, 4 forwards and 4 backwards. There are 8 of them, and a rank works "
            "on one at a time.",
        },
    ),
}


@dataclass(frozen=True, slots=True, repr=False)
class Revealed:
    """The answer beside the reader's prediction. What a notebook shows is its text."""

    text: str
    correct: bool | None

    def __repr__(self) -> str:
        return self.text


def reveal(question: str, prediction: float | None) -> Revealed:
    """Compare a prediction with the answer. None means not attempted, and gives nothing away.

    Raises ValueError for a question that no notebook asks, TypeError for a prediction that is no number.

    >>> reveal("makespan of 1F1B", None)
    Not attempted yet: put your number in place of None, then run this cell again.
    >>> reveal("makespan of 1F1B", 22).correct
    True
    """
    if question not in QUESTIONS:
        raise ValueError(f"no notebook asks for {question!r}: there are {', '.join(map(repr, QUESTIONS))}")
    asked = QUESTIONS[question]
    if prediction is None:
        return Revealed("Not attempted yet: put your number in place of None, then run this cell again.", None)
    if not isinstance(prediction, int | float) or isinstance(prediction, bool):
        raise TypeError(f"a prediction is a number of {asked.unit}: got {prediction!r}")
    answer = asked.answer()
    if abs(prediction - answer) < 1e-9:
        return Revealed(f"Yes: {answer:g} {asked.unit}. {asked.because}", True)
    hint = asked.hints.get(prediction)
    middle = f"{hint} " if hint else ""
    return Revealed(f"You said {prediction:g}, it is {answer:g} {asked.unit}. {middle}{asked.because}", False)
