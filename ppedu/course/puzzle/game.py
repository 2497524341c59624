"""One player's way through a level: the moves, and the way back."""

from __future__ import annotations

from ppedu.core.operations import Action
from ppedu.core.schedule import Schedule
from ppedu.core.structure import Violation
from ppedu.course.puzzle.levels import Level, level_of
from ppedu.course.puzzle.position import Position
from ppedu.course.puzzle.score import Score, score


class Game:
    """A level, the position that was reached, and those before and after it.

    >>> game = Game(1)
    >>> print(game.place(1, "B0").message)
    rank 1 runs B0 before F0, whose result it needs: run F0 first
    >>> [game.place(rank, move) for rank, move in ((0, "F0"), (1, "F0"), (1, "B0"), (0, "B0"))]
    [None, None, None, None]
    >>> game.score.solved, game.undo(), game.score.solved
    (True, True, False)
    """

    def __init__(self, level: int | Level = 1, start: Schedule | str | float | None = None) -> None:
        """start: what stands there at first, as a beginning of each order; or the time up to which the level's reference
        does. An order of one's own stands there whole by default. `undo` takes it back, last first."""
        self.level = level_of(level)
        self.position = self.level.start()
        self._before: list[Position] = []
        self._after: list[Position] = []
        given, before = (start, None) if isinstance(start, Schedule | str) else (self.level.reference, start)
        if start is not None or self.level.own:
            for position in self.position.load(str(given)).way(self.level.costs, before):
                self._go(position)

    @property
    def score(self) -> Score:
        """The figures of the position beside the level's."""
        return score(self.position, self.level)

    def place(self, rank: int, move: Action | str) -> Violation | None:
        """Make a move; an illegal one changes nothing, and the reason is returned."""
        reason = self.position.why_not(rank, move)
        if reason is None:
            self._go(self.position.place(rank, move))
        return reason

    def load(self, text: str) -> None:
        """Go to a position that was saved; `undo` leads back. Raises ScheduleError, with every reason, and stays then."""
        self._go(self.position.load(text))

    def restart(self) -> None:
        """Empty the board; `undo` leads back."""
        self._go(self.level.start())

    def undo(self) -> bool:
        """Take the last move back. False where there is none."""
        return self._turn(self._before, self._after)

    def redo(self) -> bool:
        """Make a move again that was taken back. False where there is none, or another move was made since."""
        return self._turn(self._after, self._before)

    @property
    def can_undo(self) -> bool:
        return bool(self._before)

    @property
    def can_redo(self) -> bool:
        return bool(self._after)

    def _go(self, position: Position) -> None:
        if position != self.position:
            self._before.append(self.position)
            self._after.clear()
            self.position = position

    def _turn(self, source: list[Position], other: list[Position]) -> bool:
        if not source:
            return False
        other.append(self.position)
        self.position = source.pop()
        return True
