"""What the puzzle's page shows, as plain data: the picture of a position, and all that stands around it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

from ppedu.core.costs import Costs
from ppedu.core.operations import Action, Kind
from ppedu.core.simulate import simulate
from ppedu.core.structure import Violation
from ppedu.core.timeline import Timeline
from ppedu.course.puzzle.game import Game
from ppedu.course.puzzle.levels import LEVELS, Level
from ppedu.course.puzzle.position import Position
from ppedu.course.puzzle.score import Score
from ppedu.picture.labels import titles
from ppedu.picture.scene import Scene, Track, scene


def picture(game: Game, score: Score, number: int, pace: Costs, measured: Timeline | None = None) -> Scene:
    """The scene of a position: what runs already with its times, what waits, and the target as a line.

    measured: a run of this very schedule under `pace`, drawn below the prediction; then both are in seconds.
    """
    level, position = game.level, game.position
    timeline = score.timeline if measured is None else simulate(position.schedule, pace)
    scale = timeline.makespan / score.timeline.makespan if measured else 1.0
    waiting = [(w.rank, position.schedule.short(w.action), w.action.kind.value, w.message) for w in score.waiting]
    mine = Track(
        timeline,
        word="" if measured is None else "predicted",
        title=() if measured is None else titles([(replace(timeline, schedule=measured.schedule), measured)])[0],
        transfer=level.costs.transfer * scale,
        waiting=tuple(waiting),
    )
    drawn = scene(
        number,
        [mine] if measured is None else [mine, Track(measured, word="measured")],
        predicted=str(level.costs),
        label=_time_label(level.costs),
        span=max(level.target * scale, timeline.makespan, 0.0 if measured is None else measured.makespan),
        marks=((level.target * scale, f"target {level.target:g}"),),
    )
    drawn["budget"] = level.cap
    drawn["peak"] = max(drawn["peak"], *(level.cap or (1,)))
    if not position.complete:
        drawn["open"] = True
        for track in drawn["tracks"]:
            track["phases"] = []  # there are none before the end is there
            track["gaps"] = [_open_end(game, score, gap) for gap in track["gaps"]]
    return drawn


def _time_label(costs: Costs) -> str:
    """What the unit of time is: an F, where all of them take 1."""
    each = costs.forward if isinstance(costs.forward, tuple) else (costs.forward,)
    return "time (units of F)" if set(each) == {1} else "time (units)"


def _open_end(game: Game, score: Score, gap: tuple[Any, ...]) -> tuple[Any, ...]:
    """A gap at the end of a lane that goes on: why nothing stands there, in place of why the rank is done."""
    rank, start, end, message, following, waited = gap
    rest, head = game.position.rest[rank], next((w for w in score.waiting if w.rank == rank), None)
    if following >= 0 or not (rest or head):
        return gap
    if head is not None:
        message = f"nothing runs on rank {rank} from {start:g} on: {head.message}"
    else:
        message = f"rank {rank} has {len(rest)} more to run: place the next one, and it starts as early as it can"
    return rank, start, end, message, following, waited


Answer: TypeAlias = tuple[str, str]
"""(kind, sentence): what the page says to a move. The kinds are start, placed, refused, undone, done and solved."""


def refused(move: str, rank: int, reason: Violation) -> Answer:
    """Why a move is none."""
    return "refused", f"{move} on rank {rank} cannot come next: {reason.message}."


def placed(game: Game, rank: int) -> Answer:
    """What the last operation of a rank does there."""
    if game.position.complete:
        return reached(game)
    action = game.position.schedule.orders[rank][-1]
    said = f"{game.position.schedule.short(action)} on rank {rank}: placed."
    waiting = next((w for w in game.score.waiting if (w.rank, w.action) == (rank, action)), None)
    return "placed", said if waiting is None else f"{said} It has to wait: {waiting.message}."


def reached(game: Game) -> Answer:
    """Where the game stands, however it came there."""
    score, there = game.score, game.position.placed
    if not game.position.complete:
        return ("placed", f"{there} of {game.position.total} operations are placed.") if there else ("start", "")
    if score.solved:
        return "solved", f"Solved. {score.recognised}"
    missed = "; ".join(f"{goal.name} {goal.yours}, {goal.message}" for goal in score.goals if not goal.kept)
    return "done", f"It runs, but misses the goal: {missed}. {score.recognised}"


def board(
    game: Game, score: Score, number: int, *, show_legal: bool, hints: int, said: tuple[str, str]
) -> dict[str, Any]:
    """All but the picture. number: of the level, 0 for one of the player's own. said: the answer to the last move.

    names: for each rank its operations, in groups of one kind and one stage: F0, F1, ..., then B0, B1, ...
    tray: for each rank their states: "placed", or "open", or where the legal moves are shown "legal" or "illegal".
    """
    level, position = game.level, game.position
    return {
        "level": number,
        "levels": [one.title for one in LEVELS],
        "title": level.title,
        "goal": level.goal,
        "given": _given(level),
        "ranks": level.p,
        "names": [_groups(position, rank) for rank in range(level.p)],
        "kinds": [kind.value for kind in position.kinds],
        "tray": [_states(game, rank, show_legal) for rank in range(level.p)],
        "legal": show_legal,
        "goals": [{"name": g.name, "yours": g.yours, "wanted": g.wanted, "kept": g.kept, "message": g.message}
                  for g in score.goals],
        "placed": position.placed,
        "total": position.total,
        "complete": position.complete,
        "solved": score.solved,
        "recognised": score.recognised,
        "undo": game.can_undo,
        "redo": game.can_redo,
        "hints": list(level.hints[:hints]),
        "hints_left": max(0, len(level.hints) - hints),
        "said": said,
    }  # fmt: skip


def _groups(position: Position, rank: int) -> list[list[str]]:
    """A rank's operations as the tray shows them: those of one kind and one stage together."""
    groups: dict[tuple[Kind, int], list[str]] = {}
    for action in position.operations(rank):
        groups.setdefault((action.kind, action.stage), []).append(position.schedule.short(action))
    return list(groups.values())


def _given(level: Level) -> str:
    """What operations and messages take."""
    first, costs = Action(0, Kind.F, 0), level.costs
    if costs.stages is not None:
        return f"({costs})"
    kinds = level.start().kinds
    said = ", ".join(f"{kind} = {costs.duration(replace(first, kind=kind)):g}" for kind in kinds)
    return f"({said}, a message {costs.transfer:g})" if costs.transfer else f"({said})"


def _states(game: Game, rank: int, show_legal: bool) -> list[str]:
    position = game.position
    placed = set(position.schedule.orders[rank])
    legal = set(position.legal_moves(rank)) if show_legal else set()

    def state(action: Action) -> str:
        if action in placed:
            return "placed"
        if not show_legal:
            return "open"
        return "legal" if action in legal else "illegal"

    return [state(action) for action in position.operations(rank)]
