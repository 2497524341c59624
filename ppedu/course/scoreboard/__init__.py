"""Challenges, and the board of those who met them."""

from __future__ import annotations

from ppedu.course.scoreboard.challenge import Challenge
from ppedu.course.scoreboard.enter import score, scores

__all__ = ["Challenge", "score", "scores"]
