"""Where ranks publish what they are doing, so that a hang can be blamed on the rank that computes."""

from __future__ import annotations

import time
from collections.abc import MutableSequence, Sequence

# Where a rank is when it is at none of its program's instructions: what a hang is explained with.
(
    STARTING, READING, ANNOUNCING, AWAITING_BATCH, FLUSHING, STEPPING, RETURNING, CONNECTING, AWAITING_LOSS, SUMMING,
    GATHERING,
) = range(-1, -12, -1)  # fmt: skip
PLACES = {
    STARTING: "starting up",
    READING: "reading its batch",
    ANNOUNCING: "waiting for the other ranks to start the step",
    AWAITING_BATCH: "waiting for the first rank to start the step",
    FLUSHING: "waiting for its last messages to leave",
    STEPPING: "in its optimizer step",
    RETURNING: "handing back its results",
    CONNECTING: "connecting to the other ranks",
    AWAITING_LOSS: "waiting to hear that the loss is a number",
    SUMMING: "waiting for the gradients of its stages' copies",
    GATHERING: "waiting for the other ranks' results",
}

WAITING = (ANNOUNCING, AWAITING_BATCH, FLUSHING, CONNECTING, AWAITING_LOSS, SUMMING, GATHERING)  # for other ranks


class Heartbeat:
    """Where a rank publishes what it is doing, in memory that the process which started it can read.

    Three numbers a rank: the step, the instruction's number in the program (or one of PLACES), and since when.
    """

    WIDTH = 3

    def __init__(self, cells: MutableSequence[float], rank: int) -> None:
        self.cells, self.base = cells, rank * self.WIDTH

    def put(self, step: int, at: int) -> None:
        self.cells[self.base] = step
        self.cells[self.base + 1] = at
        self.cells[self.base + 2] = time.perf_counter()

    @staticmethod
    def blank(ranks: int) -> list[float]:
        """The numbers before any rank has begun."""
        return [-1, STARTING, time.perf_counter()] * ranks

    @staticmethod
    def read(cells: Sequence[float], rank: int) -> tuple[int, int, float]:
        """(step, instruction, since when) of a rank."""
        step, at, since = cells[rank * Heartbeat.WIDTH : (rank + 1) * Heartbeat.WIDTH]
        return int(step), int(at), since
