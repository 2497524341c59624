"""Which of the ranks that torchrun started this process is, and what it may say."""

from __future__ import annotations

import os
from dataclasses import dataclass

_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_MASTER = ("MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Seat:
    """A process that starts its ranks itself has the first seat.

    rank: of all ranks. local: of those on this host. here: how many there are on this host; None where this starts them.
    """

    rank: int = 0
    local: int = 0
    here: int | None = None

    @staticmethod
    def found() -> Seat:
        """As the environment says. A world of one process is none: notebooks on some clusters have such variables."""
        number = {name: int(text) for name, text in os.environ.items() if name in _RANKS and text.isdecimal()}
        world = number.get("WORLD_SIZE", 1)
        if world == 1 or "RANK" not in number or not all(os.environ.get(name) for name in _MASTER):
            return Seat()
        return Seat(number["RANK"], number.get("LOCAL_RANK", 0), number.get("LOCAL_WORLD_SIZE", world))

    @property
    def shows(self) -> bool:
        """All ranks have the whole result: one of them prints it, and writes the files."""
        return self.rank == 0

    @property
    def speaks(self) -> bool:
        """All ranks make the same mistakes: one of each host tells them."""
        return self.local == 0
