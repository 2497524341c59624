"""What the notebooks ask: predictions that a reader commits to, exercises that are checked, and how far a reader is.

And the score board, on which a reader's own orders stand beside the built-in ones.

`reveal` and `check` are what notebooks call. What they ask stands in the modules nb00, nb01, ..., one a notebook.
"""

from __future__ import annotations

from ppedu.exercises.ask import Exercise, Question, Wrong
from ppedu.exercises.challenge import Challenge
from ppedu.exercises.grade import check, reveal
from ppedu.exercises.kept import Progress, progress
from ppedu.exercises.result import Result
from ppedu.exercises.scores import score, scores

__all__ = [
    "Challenge",
    "Exercise",
    "Progress",
    "Question",
    "Result",
    "Wrong",
    "check",
    "progress",
    "reveal",
    "score",
    "scores",
]
