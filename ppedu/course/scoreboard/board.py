"""The rows of the score board, and how they are read, put in order, and shown.

Letters: p ranks, m microbatches.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppedu.core.format import percent, table
from ppedu.core.schedule import Schedule
from ppedu.course.scoreboard.challenge import Challenge
from ppedu.course.store import Store

STORE = Store("scores", "ppedu scores 1", "score board", "a new one begins")
_HEAD = ("place", "", "predicted", "over the bound", "measured", "in flight", "entered")


@dataclass(frozen=True, slots=True)
class Scored:
    """A row of the board. Times are in the unit of the challenge's costs.

    predicted: the makespan of the simulation, which places are given by. measured: that of the best step of a paced run.
    in_flight: the most that each rank holds, by its own order: true in every run. date: ISO, or "built-in".
    """

    name: str
    schedule: Schedule
    challenge: Challenge
    predicted: float
    measured: float | None
    in_flight: tuple[int, ...]
    date: str

    def to_data(self) -> dict[str, Any]:
        figures = {"predicted": self.predicted, "measured": self.measured, "in_flight": self.in_flight}
        text = {"name": self.name, "schedule": self.schedule.to_csv(), "date": self.date}
        return {**text, **figures, "challenge": self.challenge.to_data()}


def scored(name: str, schedule: Schedule, challenge: Challenge, measured: float | None, date: str) -> Scored:
    """Raises ValueError with the reason where the schedule does not count."""
    reason = challenge.why_not(schedule)
    if reason:
        raise ValueError(reason)
    return Scored(
        name, schedule, challenge, challenge.simulate(schedule).makespan, measured, schedule.peak_in_flight, date
    )


def _read_entry(data: dict[str, Any]) -> Scored:
    """Raises ValueError, KeyError, TypeError or AttributeError for what is no entry."""
    name, date, measured = data["name"], data["date"], data["measured"]
    if not isinstance(name, str) or not isinstance(date, str) or not isinstance(measured, int | float | None):
        raise TypeError(f"{data!r:.80} is no entry")
    schedule = Schedule.from_csv(data["schedule"], name=name)
    return scored(name, schedule, Challenge.of_data(data["challenge"]), measured, date)


def same_order(a: Scored, b: Scored) -> bool:
    return a.schedule.orders == b.schedule.orders and a.challenge.key == b.challenge.key


def read_board(data: Any) -> list[Scored]:
    """The entries of a score board's file. Raises ValueError, KeyError, TypeError or AttributeError for another file."""
    return [_read_entry(entry) for entry in STORE.entries(data, "entries")]


@dataclass(frozen=True, slots=True, repr=False)
class ScoreBoard:
    """The score board: for each challenge a table, best first. Its text is the table; notebooks show it as HTML."""

    entries: tuple[Scored, ...]
    challenges: tuple[Challenge, ...]
    note: str = ""

    def rows(self, challenge: Challenge) -> list[tuple[int, Scored]]:
        """(place, entry), best first: by predicted time, then by measured, then by what is held.

        Built-in schedules that count have a row each, unless the same order was entered. Equal times share a place.
        """
        mine = [entry for entry in self.entries if entry.challenge.key == challenge.key]
        known = [scored(name, s, challenge, None, "built-in") for name, s in challenge.builtins()]
        mine += [entry for entry in known if not any(same_order(entry, other) for other in mine)]
        never = float("inf")
        mine.sort(key=lambda e: (e.predicted, never if e.measured is None else e.measured, sum(e.in_flight)))
        times = [entry.predicted for entry in mine]
        return [(1 + sum(t < entry.predicted * (1 - 1e-9) for t in times), entry) for entry in mine]

    def table(self, challenge: Challenge) -> tuple[str, list[tuple[str, ...]]]:
        """(heading, rows of text) of one challenge."""
        bound = challenge.lower_bound
        names = {s.orders: name for name, s in challenge.builtins()}
        rows: list[tuple[str, ...]] = []
        for place, e in self.rows(challenge):
            also = names.get(e.schedule.orders, e.name)
            name = e.name if also == e.name else f"{e.name} ({also})"
            took = "" if e.measured is None else f"{e.measured:.1f}"
            over = percent(e.predicted / bound - 1, "+") if bound else ""
            rows.append((str(place), name, f"{e.predicted:g}", over, took, " ".join(map(str, e.in_flight)), e.date))
        return f"{challenge}; no order takes less than {bound:g}", rows

    def __repr__(self) -> str:
        lines = []
        for challenge in self.challenges:
            heading, rows = self.table(challenge)
            lines += [heading, *table([_HEAD, *rows], "><>>>><"), ""]
        if not lines:
            lines = ["The score board is empty: ppedu.course.score(schedule, challenge) enters an order."]
        return "\n".join([*lines, self.note]).strip("\n")

    def _repr_html_(self) -> str:
        parts = []
        for challenge in self.challenges:
            heading, rows = self.table(challenge)
            head = "".join(f"<th>{cell}</th>" for cell in _HEAD)
            body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
            title = html.escape(heading)
            parts.append(f"<p>{title}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        note = f"<p>{html.escape(self.note)}</p>" if self.note else ""
        return "".join(parts) + note or f"<p>{html.escape(repr(self))}</p>"

    def to_json(self, name: str = "") -> str:
        """Everything as JSON, to be handed in. name: the reader's, as the class knows it."""
        return STORE.text(name=name, entries=[entry.to_data() for entry in self.entries])

    def save(self, path: str | Path, name: str = "") -> str:
        """Write `to_json` to a file, and return where it lies."""
        Path(path).write_text(self.to_json(name), encoding="utf-8")
        return str(path)


def challenges_of(entries: Iterable[Scored]) -> list[Challenge]:
    """The challenges of some entries, each once, in the order in which they were met."""
    return list({entry.challenge.key: entry.challenge for entry in entries}.values())
