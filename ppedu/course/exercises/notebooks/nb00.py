"""What notebook 00 asks."""

from __future__ import annotations

from ppedu.core.simulate import simulate
from ppedu.course.exercises.ask import Question, idea
from ppedu.course.exercises.forms import Number
from ppedu.schedules import one_f_one_b

QUESTIONS = (
    Question(
        "makespan of 1F1B",
        form=Number("units"),
        answer=lambda: simulate(one_f_one_b(p=4, m=8)).makespan,
        because="Each rank works 8 x (1 + 1) = 16 units, and 6 more pass in which the work has not reached it yet or has "
        "left it already: the last rank starts at 3, and the first one waits as long at the end.",
        wrong=(
            idea("four ranks are four times faster", 16)("""
                16 is 64 units shared out over 4 ranks that never wait. But rank 3 cannot start before the first
                microbatch has passed ranks 0, 1 and 2, and rank 0 is not done before the last gradient is back."""),
            idea("ranks take turns", 64)("""
                64 is what one rank alone would take for all of it. While rank 1 works on microbatch 0, rank 0 need not
                wait: it can start on microbatch 1."""),
            idea("filling counts, draining does not", 19)("""
                19 counts the way down, 3 units until the last rank starts, but not the way back: the last gradient has
                3 more ranks to pass."""),
            idea("one too many", 24)("""
                24 is (8 + 4) x 2. Rank 3 starts when the first microbatch has passed the three ranks before it, not
                four: 3 units, and as many on the way back."""),
            idea("the forwards are the step", 11)("""
                11 is when the last forward would end if there were forwards only. Each rank has 8 backwards to run as
                well."""),
            idea("one microbatch's way is the step", 8)("""
                8 units is the way of one microbatch, 4 forwards and 4 backwards. There are 8 of them, and a rank works
                on one at a time."""),
        ),
    ),
)
EXERCISES = ()
