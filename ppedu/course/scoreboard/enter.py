"""The score board: a reader's own orders beside the built-in ones, by challenge, kept from kernel to kernel.

It is `scores.json` beside the progress file, and holds the order of each entry. Every figure is computed anew from that.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from ppedu.core.costs import Costs
from ppedu.core.schedule import Schedule
from ppedu.core.timeline import Timeline
from ppedu.course.exercises.result import Result
from ppedu.course.scoreboard.board import STORE, ScoreBoard, Scored, challenges_of, read_board, same_order, scored
from ppedu.course.scoreboard.challenge import Challenge
from ppedu.course.store import home
from ppedu.optimizer.result import Optimized

_kept: list[Scored] = []  # what could not be written, so that at least this kernel knows it


class Paced(Protocol):
    """What `ppedu.train` returns, as far as it is read here."""

    @property
    def schedule(self) -> Schedule: ...
    @property
    def timelines(self) -> tuple[Timeline, ...]: ...
    @property
    def pace(self) -> Costs | None: ...


def score(entry: Schedule | Optimized | Paced, challenge: Challenge, name: str = "") -> Result:
    """Enter an order in the score board, where it can run and keeps to the challenge's cap; else say why not.

    entry: a schedule, what `ppedu.optimize` returned, or the run of one by `ppedu.train(..., pace=challenge.pace(0.01))`,
        whose best step is then the measured time.
    name: whose it is, or what it is called; by default the schedule's name.

    The same order entered again is the same row: it gets the new name, and keeps the better measurement. `correct` of
    the result says whether it was entered. Raises TypeError for what is no schedule.

    >>> from ppedu.schedules import gpipe
    >>> score(gpipe(p=4, m=8), Challenge(p=4, m=8, memory_limit=4), name="Ada")
    Not entered: rank 0 holds 8 microbatches in flight, and may hold 4. Run a backward before one of its forwards.
    """
    if not isinstance(challenge, Challenge):
        raise TypeError(
            f"challenge is ppedu.course.Challenge(p=4, m=8, costs=..., memory_limit=4): challenge={challenge!r:.80}"
        )
    schedule = _schedule_of(entry)
    reason = challenge.why_not(schedule)
    measured = None
    if not reason and hasattr(entry, "timelines"):
        measured, reason = _measured(entry, challenge)
    if reason:
        return Result(f"Not entered: {reason}.", False)
    given = " ".join(str(name).split())[:40] or schedule.name
    new = scored(given, schedule, challenge, measured, datetime.date.today().isoformat())
    board, before = _add(new)
    return Result(_entered(board, new, before), True)


def _schedule_of(entry: Any) -> Schedule:
    schedule = entry if isinstance(entry, Schedule) else getattr(entry, "schedule", None)
    if not isinstance(schedule, Schedule) or isinstance(entry, Timeline):
        raise TypeError(
            "a schedule is entered, or the run of one (what ppedu.train returned), or what ppedu.optimize returned: "
            f"this is of type {type(entry).__name__}"
        )
    return schedule


def _measured(run: Any, challenge: Challenge) -> tuple[float | None, str]:
    """(the best step's makespan in the challenge's unit, why it does not count)"""
    if run.pace is None:
        return None, (
            "this run has no pace, so it measures how this machine's cores are shared. Run it with "
            "pace=challenge.pace(0.01), or enter its schedule, without a measurement"
        )
    scale = challenge.seconds_per_unit(run.pace)
    if scale is None:
        return None, (
            f"the run was paced {run.pace}, which is no multiple of the challenge's {challenge.costs}. Run it with "
            "pace=challenge.pace(0.01), or enter its schedule, without a measurement"
        )
    steps = [t.makespan for t in run.timelines if t.complete]
    return (min(steps) / scale, "") if steps else (None, "the run was stopped before the end of its first step")


def _add(new: Scored) -> tuple[ScoreBoard, Scored | None]:
    """(the board with the new entry, what stood there for the same order). Never fails: racing goes on without the file."""
    try:
        with STORE.locked():
            found, note = STORE.read(read_board)
            entries, before = _with(found or [], new)
            STORE.write(entries=[entry.to_data() for entry in entries])
    except OSError as error:
        note = f"The score board cannot be kept in {home()} ({error.strerror or error}): this kernel alone knows it."
        _kept[:], before = _with(_kept, new)
        entries = list(_kept)
    return ScoreBoard(tuple(entries), (new.challenge,), note), before


def _with(entries: Sequence[Scored], new: Scored) -> tuple[list[Scored], Scored | None]:
    """One row for one order."""
    before = next((entry for entry in entries if same_order(entry, new)), None)
    times = [e.measured for e in (before, new) if e is not None and e.measured is not None]
    row = replace(new, measured=min(times, default=None))
    return [entry for entry in entries if entry is not before] + [row], before


def _entered(board: ScoreBoard, new: Scored, before: Scored | None) -> str:
    rows = board.rows(new.challenge)
    place, row = next((place, row) for place, row in rows if same_order(row, new))
    took = "" if row.measured is None else f", {row.measured:.1f} measured"
    held = " ".join(map(str, row.in_flight))
    text = (
        f'Entered as "{row.name}": {row.predicted:g} predicted{took}, in flight {held}. Place {place} of {len(rows)}.'
    )
    if before is not None:
        text += f' This order was there already, as "{before.name}": it is still one row.'
    return f"{text}\n{board.note}" if board.note else text


def scores(challenge: Challenge | None = None) -> ScoreBoard:
    """The score board of one challenge, or of all that were entered. Kept across kernels; see its `save` to hand it in.

    Built-in schedules that keep to a challenge's cap are rows of their own, to compare with.
    """
    if challenge is not None and not isinstance(challenge, Challenge):
        raise TypeError(f"challenge is a ppedu.course.Challenge, or None for all: challenge={challenge!r:.80}")
    try:
        found, note = STORE.read(read_board)
    except OSError as error:
        found, note = None, f"Your score board in {home()} cannot be read ({error.strerror or error})."
    entries = found or []
    for entry in _kept:
        entries, _ = _with(entries, entry)
    if challenge is None:
        return ScoreBoard(tuple(entries), tuple(challenges_of(entries)), note)
    mine = [entry for entry in entries if entry.challenge.key == challenge.key]
    return ScoreBoard(tuple(mine), (challenge,), note)
