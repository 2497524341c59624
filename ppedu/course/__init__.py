"""The course: what its notebooks ask and check, a puzzle, a score board, and the job that they train.

>>> from ppedu.course import check, reveal
"""

from __future__ import annotations

from ppedu.course.exercises import Result, check, progress, reveal
from ppedu.course.job import train_course
from ppedu.course.puzzle.widget import puzzle
from ppedu.course.scoreboard import Challenge, score, scores

__all__ = ["Challenge", "Result", "check", "progress", "puzzle", "reveal", "score", "scores", "train_course"]
