"""The course: what its notebooks ask and check, a puzzle, a score board, and the job that they train.

>>> from ppedu.course import check, reveal

What needs torch or IPython is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ppedu.course.exercises import Result, check, progress, reveal
from ppedu.course.job import train_course
from ppedu.course.puzzle import puzzle
from ppedu.course.puzzle.levels import LEVELS, Level
from ppedu.course.scoreboard import Challenge, score, scores

if TYPE_CHECKING:
    from ppedu.course.data import Batches
    from ppedu.course.models import ByteGPT, next_byte_loss

__all__ = [
    "LEVELS",
    "Batches",
    "ByteGPT",
    "Challenge",
    "Level",
    "Result",
    "check",
    "next_byte_loss",
    "progress",
    "puzzle",
    "reveal",
    "score",
    "scores",
    "train_course",
]
_LATE = {
    "Batches": "ppedu.course.data",
    "ByteGPT": "ppedu.course.models",
    "next_byte_loss": "ppedu.course.models",
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module 'ppedu.course' has no attribute '{name}'")
    return getattr(import_module(_LATE[name]), name)
