"""What the notebooks ask: predictions that a reader commits to, exercises that are checked, and how far a reader is.

`reveal` and `check` are what notebooks call. What they ask stands in the modules of `notebooks`, one a notebook.
"""

from __future__ import annotations

from ppedu.course.exercises.ask import Exercise, Question, Wrong
from ppedu.course.exercises.grade import check, reveal
from ppedu.course.exercises.progress_store import Progress, progress
from ppedu.course.exercises.result import Result

__all__ = [
    "Exercise",
    "Progress",
    "Question",
    "Result",
    "Wrong",
    "check",
    "progress",
    "reveal",
]
