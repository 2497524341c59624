"""What notebook 03 asks."""

from __future__ import annotations

from ppedu.exercises.ask import Exercise, Question

QUESTIONS: tuple[Question, ...] = ()
EXERCISES: tuple[Exercise, ...] = ()
