"""What the puzzle's page shows, as plain data: the picture of a position, and all that stands around it."""

from __future__ import annotations

from typing import Any

from ppedu.explore.levels import LEVELS, Level
from ppedu.explore.puzzle_game import Game
from ppedu.explore.puzzle_score import Score
from ppedu.explore.scene import Scene, Track, scene
from ppedu.schedule import Action, Kind
from ppedu.timeline import Timeline


def picture(game: Game, score: Score, number: int, measured: Timeline | None = None) -> Scene:
    """The scene of a position: what runs already with its times, what waits, and the target as a line.

    measured: a run of this very schedule, drawn under the prediction; then both are in seconds.
    """
    level, position = game.level, game.position
    mine = Track(
        score.timeline,
        word="" if measured is None else "predicted",
        transfer=level.costs.transfer,
        waiting=tuple(
            (w.rank, position.schedule.short(w.action), w.action.kind.value, w.message) for w in score.waiting
        ),
    )
    tracks = [mine] if measured is None else [mine, Track(measured, word="measured")]
    span = max(level.target, score.timeline.makespan)
    drawn = scene(
        number,
        tracks,
        caption=caption(level, measured),
        span=None if measured is not None else span,
        marks=((level.target, f"target {level.target:g}"),),
    )
    drawn["budget"] = level.cap
    drawn["peak"] = max(drawn["peak"], *(level.cap or (1,)))
    if not position.complete:
        for track in drawn["tracks"]:
            track["phases"] = []  # there are none before the end is there
            track["gaps"] = [_open_end(game, score, gap) for gap in track["gaps"]]
    return drawn


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


def caption(level: Level, measured: Timeline | None = None) -> str:
    """How large the board is, and where the times come from."""
    said = f"p = {level.p} ranks, m = {level.m} microbatch{'es' if level.m > 1 else ''}. Predicted, {level.costs}."
    return said if measured is None else f"{said} {measured.provenance[:1].upper()}{measured.provenance[1:]}."


def board(
    game: Game, score: Score, number: int, *, show_legal: bool, hints: int, said: dict[str, str]
) -> dict[str, Any]:
    """All but the picture. number: of the level, 0 for one of the player's own. said: the answer to the last move.

    tray: for each rank the state of F0, F1, ..., then B0, B1, ...: "placed", or "open", or where the legal moves are
    shown "legal" or "illegal".
    """
    level, position = game.level, game.position
    return {
        "level": number,
        "levels": [one.title for one in LEVELS],
        "title": level.title,
        "goal": level.goal,
        "ranks": level.p,
        "names": [f"{kind}{j}" for kind in (Kind.F, Kind.B) for j in range(level.m)],
        "tray": [_states(game, rank, show_legal) for rank in range(level.p)],
        "legal": show_legal,
        "goals": [{"name": g.name, "yours": g.yours, "wanted": g.wanted, "kept": g.kept, "message": g.message}
                  for g in score.goals],
        "placed": sum(map(len, position.schedule.orders)),
        "total": 2 * level.p * level.m,
        "complete": position.complete,
        "solved": score.solved,
        "recognised": score.recognised,
        "undo": game.can_undo,
        "redo": game.can_redo,
        "hints": list(level.hints[:hints]),
        "hints_left": max(0, len(level.hints) - hints),
        "said": said,
    }  # fmt: skip


def _states(game: Game, rank: int, show_legal: bool) -> list[str]:
    level, position = game.level, game.position
    placed = set(position.schedule.orders[rank])
    legal = set(position.legal_moves(rank)) if show_legal else set()

    def state(action: Action) -> str:
        if action in placed:
            return "placed"
        if not show_legal:
            return "open"
        return "legal" if action in legal else "illegal"

    return [state(Action(rank, kind, j)) for kind in (Kind.F, Kind.B) for j in range(level.m)]
