"""What a schedule built by hand is worth: its figures beside the level's, and which schedule of the course it is.

Letters: p ranks, m microbatches; F forward, B backward; in flight: forwards whose activations are still kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from ppedu.core.format import joined, percent, quantity
from ppedu.core.operations import Action, Entry, Kind, Overlap
from ppedu.core.schedule import Schedule
from ppedu.core.timeline import Timeline
from ppedu.course.puzzle.levels import Level
from ppedu.course.puzzle.position import Position, Waiting
from ppedu.schedules import SCHEDULES, takes_v


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure beside what the level asks for.

    name: what is counted. yours, wanted: as text. kept: whether it is reached; None while that is open.
    message: how far off it is, or that it is kept.
    """

    name: str
    yours: str
    wanted: str
    kept: bool | None
    message: str


@dataclass(frozen=True, slots=True)
class Score:
    """goals: each figure. waiting: what stands there and cannot run yet. solved: complete, and every goal kept.

    timeline: all that runs already, as the costs of the level predict. recognised: what was built, once it is complete.
    """

    goals: tuple[Goal, ...]
    timeline: Timeline
    waiting: tuple[Waiting, ...]
    solved: bool
    recognised: str


def score(position: Position, level: Level) -> Score:
    """The figures of a position. A cap once broken stays broken, and so does a target that cannot be met any more.

    >>> from ppedu.course.puzzle.levels import LEVELS
    >>> done = score(Position.start(4, 8).load(str(SCHEDULES["gpipe"](4, 8))), LEVELS[4])
    >>> done.recognised, done.solved
    ('This is GPipe.', False)
    >>> [goal.message for goal in done.goals if not goal.kept]
    ['rank 0 holds 8 (4 over), rank 1 holds 8 (5 over), rank 2 holds 8 (6 over), rank 3 holds 8 (7 over)']
    """
    timeline, waiting = position.play(level.costs)
    goals = [_makespan(position, timeline, level), _bubble(timeline, level, position.complete)]
    if level.cap is not None:
        goals.append(_memory(position, level.cap))
    if level.own:
        goals.append(_better(position, timeline, level))
    solved = position.complete and all(goal.kept for goal in goals)
    recognised = recognise(position.schedule) if position.complete else ""
    return Score(tuple(goals), timeline, waiting, solved, recognised)


_CLOSE = 1e-9  # rounding of sums of costs


def _makespan(position: Position, timeline: Timeline, level: Level) -> Goal:
    """Whatever comes next, each rank still has to run all that it lacks: past the target there is no need to go on."""
    rank, least = _least(position, timeline, level)
    over = least - level.target
    yours, wanted = _time(timeline.makespan, level), f"at most {_time(level.target, level)}"
    if position.complete:
        much = f"{_time(over, level)} over" if over > _CLOSE else "kept"
        better = f", {_time(-over, level)} less" if over < -_CLOSE else ""
        return Goal("makespan", yours, wanted, over <= _CLOSE, much + better)
    if over > _CLOSE:
        late = f"rank {rank} has more to run than time: it cannot end before {_time(least, level)}"
        return Goal("makespan", yours, wanted, False, late)
    return Goal("makespan", yours, wanted, None, "so far")


def _least(position: Position, timeline: Timeline, level: Level) -> tuple[int, float]:
    """(rank, time) of the rank that is sure to end last: what it ran, and then the rest without any gap."""
    ran = [timeline.spans_of(rank) for rank in range(level.p)]
    ends = [spans[-1].end if spans else 0.0 for spans in ran]
    for rank, (order, rest) in enumerate(zip(position.schedule.orders, position.rest, strict=True)):
        ends[rank] += sum(level.costs.duration(entry) for entry in (*order[len(ran[rank]) :], *rest))
    return ends.index(max(ends)), max(ends)


def _time(value: float, level: Level) -> str:
    return quantity(value, level.costs.unit, digits=6)


def _bubble(timeline: Timeline, level: Level, complete: bool) -> Goal:
    """The same work in the target's time leaves this much idle: on equal work the two stand or fall together."""
    work = sum(level.costs.duration(action) for order in level.reference.orders for action in order)
    most = 1 - work / (level.p * level.target)
    yours, wanted = percent(timeline.bubble_fraction), f"at most {percent(most)}"
    over = 100 * (timeline.bubble_fraction - most)
    if not complete:
        return Goal("bubble", yours, wanted, None, "so far")
    if over > _CLOSE:
        return Goal("bubble", yours, wanted, False, f"{over:.1f} points over")
    return Goal("bubble", yours, wanted, True, "kept")


def _memory(position: Position, cap: tuple[int, ...]) -> Goal:
    peaks = position.schedule.peak_in_flight
    over = [
        f"rank {rank} holds {peak} ({peak - most} over)"
        for rank, (peak, most) in enumerate(zip(peaks, cap, strict=True))
        if peak > most
    ]
    kept = False if over else True if position.complete else None
    message = ", ".join(over) or ("kept" if kept else "so far")
    return Goal("in flight", " ".join(map(str, peaks)), f"at most {' '.join(map(str, cap))}", kept, message)


def _better(position: Position, timeline: Timeline, level: Level) -> Goal:
    """Sooner, or less in flight on some rank: to do as well as one's own order is no improvement on it."""
    found = ["sooner"] if timeline.makespan < level.target - _CLOSE else []
    found += ["less in flight"] if position.schedule.peak_in_flight != level.reference.peak_in_flight else []
    better, name = bool(found) if position.complete else None, level.reference.name
    message = {True: "kept", False: f"it is as good as {name}", None: "so far"}[better]
    return Goal("improvement", joined(found) if better else "none", "sooner or less in flight", better, message)


def recognise(schedule: Schedule) -> str:
    """What a complete schedule is, in a sentence.

    >>> recognise(Schedule.from_text("F0 F1 B0 B1\\nF0 B0 F1 B1"))
    'This is 1F1B.'
    """
    names, renumbered = _known(schedule)
    more = ", with its microbatches numbered otherwise" if renumbered else ""
    if not names:
        return "This is an order of your own."
    if len(names) == 1:
        return f"This is {names[0]}{more}."
    p, m = schedule.num_ranks, schedule.num_microbatches
    return f"This is {joined(names)}{more}: with p={p} and m={m} they are the same."


def name_of(schedule: Schedule) -> str:
    """What pictures and runs call a complete schedule.

    >>> name_of(Schedule.from_text("F0 F1 B0 B1\\nF0 B0 F1 B1")), name_of(Schedule.from_text("F0 F1 B1 B0"))
    ('1F1B', 'your order')
    """
    names, renumbered = _known(schedule)
    return names[-1] if names and not renumbered else "your order"


def _known(schedule: Schedule) -> tuple[list[str], bool]:
    """The names of the course's schedules that this one is, and whether only after numbering its microbatches anew."""
    known = list(_like(schedule))
    names = [one.name for one in known if one.orders == schedule.orders]
    if names:
        return names, False
    again = _renumbered(schedule)
    return [one.name for one in known if one.orders == again.orders], True


def _like(schedule: Schedule) -> Iterator[Schedule]:
    """The course's schedules of this size."""
    p, m, stages = schedule.num_ranks, schedule.num_microbatches, schedule.num_stages
    for build in SCHEDULES.values():
        with suppress(ValueError):  # a p that this one cannot have
            if not takes_v(build):
                yield build(p, m)
            elif stages > p and stages % p == 0:  # with one stage on each rank they are others' orders
                yield build(p, m, stages // p)


def _renumbered(schedule: Schedule) -> Schedule:
    """The same schedule, its microbatches counted in the order in which the first stage starts them."""
    first = (a for a in schedule.actions if a.stage == 0)
    number = {a.microbatch: i for i, a in enumerate(a for a in first if a.kind is Kind.F)}

    def renamed(entry: Entry) -> Entry:
        parts = [Action(a.stage, a.kind, number.get(a.microbatch, a.microbatch)) for a in entry.actions]
        return Overlap(*parts) if isinstance(entry, Overlap) else parts[0]

    return replace(schedule, orders=tuple(tuple(map(renamed, order)) for order in schedule.orders))
