"""The puzzle's widget: operations are placed one by one, why one cannot stand there is said at once, and a whole one is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import traitlets
from traitlets import Bool, Dict, Int, Unicode

from ppedu.core.costs import Costs
from ppedu.core.operations import Action
from ppedu.core.schedule import Schedule
from ppedu.core.structure import Violation
from ppedu.core.timeline import Timeline
from ppedu.course.job import train_course
from ppedu.course.puzzle.game import Game
from ppedu.course.puzzle.levels import Level, level_of
from ppedu.course.puzzle.page import Answer, board, picture, placed, reached, refused
from ppedu.course.puzzle.position import Position
from ppedu.course.puzzle.score import name_of
from ppedu.picture.live import assets
from ppedu.picture.live.real_run import IDLE, PACE, Job, why_not_real
from ppedu.picture.live.widget import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ppedu.runtime.run import Run


@dataclass(frozen=True, slots=True)
class _Shown:
    """All that the page depends on: where it is the same, there is nothing to compute."""

    level: Level
    position: Position
    overlaid: bool
    legal: bool
    hints: int
    answer: Answer


class Puzzle(View):
    """One game at a time on one level; each level keeps its own.

    level: its number, or 0 for one of your own. text: the position as CSV, a line a rank. legal: show which moves are
    legal. hints: how many are shown. overlay: lay the measured timeline over the predicted one, where there is one.
    """

    _esm = Unicode(assets.module("ppedu.course.puzzle:puzzle.js")).tag(sync=True)
    _css = Unicode(assets.style("ppedu.course.puzzle:puzzle.css")).tag(sync=True)

    level = Int(1).tag(sync=True)
    text = Unicode("").tag(sync=True)
    legal = Bool(False).tag(sync=True)
    hints = Int(0).tag(sync=True)
    board = Dict().tag(sync=True)

    CHECKS = {  # noqa: RUF012 - a table of the class
        **View.CHECKS,
        "level": lambda view, value: view._check_level(value),
        "text": lambda view, value: view._check_text(value),
        "legal": lambda view, value: bool(value),
        "hints": lambda view, value: view._check_hints(value),
    }

    def __init__(
        self,
        level: int | Level | Schedule | str = 1,
        start: Schedule | str | float | None = None,
        costs: Costs | None = None,
        **given: Any,
    ) -> None:
        """As `ppedu.course.puzzle`. given: other traits."""
        number = level if isinstance(level, int) else 0
        self._games = {number: Game(level_of(level, costs), start)}
        self.game = self._games[number]
        self._answer = reached(self.game)
        self._timelines: dict[tuple[Level, Position], Timeline] = {}
        self._ran_at: tuple[Level, Position] | None = None
        super().__init__(train_course, **{"level": number, "text": self.game.position.to_text(), **given})

    @traitlets.validate("level", "text", "legal", "hints")
    def _validate_trait(self, proposal: Any) -> Any:
        return self._validate(proposal)

    def _check_level(self, value: Any) -> int:
        if value not in self._games:
            level_of(value)  # raises ValueError where there is none
        return int(value)

    def _check_text(self, value: Any) -> str:
        now = self.game.position
        return value if value == now.to_text() else now.load(str(value)).to_text()

    def _check_hints(self, value: Any) -> int:
        most = len(self.game.level.hints)
        if not isinstance(value, int) or not 0 <= value <= most:
            raise ValueError(f"hints is how many of this level's hints are shown, from 0 to {most}: hints={value!r}")
        return value

    # moves, for the page and for a cell of the notebook

    def place(self, rank: int, move: Action | str) -> Violation | None:
        """Let `move` ("F0") come next on `rank`. A move that cannot stand there changes nothing; the reason is returned."""
        reason = self.game.place(rank, move)
        name = move if isinstance(move, str) else self.game.position.schedule.short(move)
        self._go(placed(self.game, rank) if reason is None else refused(name, rank, reason))
        return reason

    def undo(self) -> bool:
        """Take the last move back; False where there is none."""
        done = self.game.undo()
        self._go(("undone", "Taken back." if done else "There is nothing to take back."))
        return done

    def redo(self) -> bool:
        """Make a move again that was taken back; False where there is none."""
        done = self.game.redo()
        self._go(("undone", "Made again." if done else "There is nothing to make again."))
        return done

    def restart(self) -> None:
        """Empty the board; `undo` brings it back."""
        self.game.restart()
        self._go(("undone", "Emptied: undo brings it back."))

    def load(self, text: str) -> None:
        """Go to a position that was saved. Raises ScheduleError, with every reason, for what cannot be one."""
        self.game.load(text)
        self._go(reached(self.game))

    def _go(self, said: Answer) -> None:
        self._answer = said
        with self._together():
            self.text = self.game.position.to_text()
            self._refresh()

    def _commands(self) -> dict[str, Callable[[dict[str, Any]], None]]:
        return {
            **super()._commands(),
            "place": lambda content: self._place(content["rank"], content["move"]),
            "undo": lambda _: void(self.undo()),
            "redo": lambda _: void(self.redo()),
            "restart": lambda _: self.restart(),
            "load": lambda content: self.load(content["text"]),
        }

    def _place(self, rank: int, move: str) -> None:
        self.error = ""
        self.place(rank, move)

    # what is shown

    def _follow(self) -> None:
        if self.level not in self._games:
            self._games[self.level] = Game(self.level)
        if self._games[self.level] is not self.game:
            self.game = self._games[self.level]
            self._answer = reached(self.game)
            self.text = self.game.position.to_text()  # first of all: the old one belongs to the level before
            self.hints = 0
        elif self.text != self.game.position.to_text():
            self.game.load(self.text)
            self._answer = reached(self.game)
        self.text = self.game.position.to_text()

    def _key(self) -> _Shown:
        level, position = self.game.level, self.game.position
        overlaid = self.overlay and (level, position) in self._timelines
        return _Shown(level, position, overlaid, self.legal, self.hints, self._answer)

    def _compute(self, key: _Shown, fresh: bool) -> None:
        score = self.game.score
        run = self._timelines.get((key.level, key.position))
        if self._ran_at not in (None, (key.level, key.position)) and not self.run["busy"]:
            self._ran_at, self.run = None, IDLE  # how that run ended says nothing of this position
        self.measured = run is not None
        self._number += 1
        drawn = picture(self.game, score, self._number, self._pace(), run if key.overlaid else None)
        shown = board(self.game, score, self.level, show_legal=key.legal, hints=key.hints, said=key.answer)
        self.scene, self.board = drawn, shown

    def _send_details(self) -> None:
        """They came with the scene, where ends that are still open have words of their own."""
        names = ("needs", "there", "gaps", "path")
        tracks = [{name: track[name] for name in names} for track in self.scene["tracks"]]
        self.details = {"number": self._number, "tracks": tracks}

    # the real run

    def _why_not_real(self) -> str:
        return why_not_real(self._train, [self.game.level.reference])

    def _pace(self) -> Costs:
        """The level's costs, in seconds that a real run can keep."""
        return self.game.level.costs.scaled(PACE, "s")

    def _jobs(self) -> list[Job]:
        schedule = self.game.position.schedule
        return [(replace(schedule, name=name_of(schedule)), self._pace())]

    def _run(self) -> None:
        rest = sum(map(len, self.game.position.rest))
        if rest:
            raise ValueError(f"{rest} operations have no place yet: only a whole schedule can run")
        super()._run()
        self._ran_at = (self.game.level, self.game.position)

    def _ran(self, key: _Shown, runs: Sequence[Run]) -> None:
        self._timelines[key.level, key.position] = runs[0].timeline
        self.overlay = True
        self._shown = None  # there is more to show at the same position
        self._refresh()

    # text

    def static(self, **how: Any) -> Axes:
        """The position as far as it runs, by matplotlib (`ppedu.plot_timeline`, which takes `how`)."""
        from ppedu.picture.paper import plot_timeline

        timeline, _ = self.game.position.play(self.game.level.costs)
        return plot_timeline(timeline, **{"in_flight": True, "phases": self.game.position.complete, **how})

    def __repr__(self) -> str:
        score, level, position = self.game.score, self.game.level, self.game.position
        head = f"puzzle {self.level}, {level.title}" if self.level else f"puzzle '{level.title}'"
        if not position.complete:
            return f"{head}: {position.placed} of {position.total} operations placed"
        figures = repr(score.timeline).partition(": ")[2]
        end = "Solved" if score.solved else "Not every goal is reached"
        return f"{head}: {figures}. {end}. {score.recognised.partition(':')[0].rstrip('.')}"


def void(_: object) -> None:
    """For a command whose value nobody asks for."""
