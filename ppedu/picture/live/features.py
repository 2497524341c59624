"""What can be shown: a schedule of SCHEDULES by its name, or an order of one's own; and which controls it has.

Letters: p ranks, m microbatches, v stages per rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, count
from typing import Any, TypeAlias

from ppedu.core.operations import Kind, Overlap
from ppedu.core.schedule import Schedule
from ppedu.schedules import SCHEDULES, takes_v

Build: TypeAlias = Callable[..., Schedule]


@dataclass(frozen=True, slots=True)
class Features:
    """What the controls need to know of a schedule, whatever p, m and v are.

    name: what pictures call it. controls: those that only some schedules have, and this one has.
    several: some rank holds more than one stage.
    """

    name: str
    controls: frozenset[str]
    several: bool


class Order:
    """An order of one's own in the place of a name: a builder for one p and one m.

    Two of them are the same only where they are one object: to compare thousands of operations for each move takes too long.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.shape = {"p": schedule.num_ranks, "m": schedule.num_microbatches}

    def __call__(self, p: int, m: int) -> Schedule:
        self.check("p", p), self.check("m", m)
        return self.schedule

    def check(self, name: str, value: object) -> int:
        """p or m, or ValueError where it is not the order's."""
        fixed = self.shape[name]
        if value != fixed:
            raise ValueError(
                f"{name} is {fixed} in the order that was given: got {said(value)}. Choose a schedule by its name to move it"
            )
        return fixed


Which: TypeAlias = str | Order
"""A name in SCHEDULES, or an order of one's own."""


def named(given: Sequence[object]) -> tuple[list[Any], dict[str, Order]]:
    """(names, orders): the names of these schedules, and which of them stand for an order of one's own. What is called as
    another one before it gets a number, to be told from it.

    >>> one = Schedule.from_text("F0 B0")
    >>> names, orders = named(["gpipe", one, one])
    >>> names, orders["custom 2 (as given)"].schedule.name
    (['gpipe', 'custom (as given)', 'custom 2 (as given)'], 'custom 2')
    """
    names: list[Any] = []
    orders: dict[str, Order] = {}
    taken = [features(one).name for one in given if isinstance(one, str) and one in SCHEDULES]
    for one in given:
        if isinstance(one, Schedule):
            tries = chain([one.name], (f"{one.name} {n}" for n in count(2)))
            taken.append(next(name for name in tries if name not in taken))
            names.append(f"{taken[-1]} (as given)")
            orders[names[-1]] = Order(one if taken[-1] == one.name else replace(one, name=taken[-1]))
        else:
            names.append(one)
    return names, orders


def builder(which: Which) -> Build:
    """What makes the schedule; what is kept for speed is kept by it."""
    return which if isinstance(which, Order) else SCHEDULES[which]


def features(which: Which) -> Features:
    """Those of an order, or of a schedule of SCHEDULES, as a small one of its kind shows them.

    >>> sorted(features("zb_v").controls), features("zb_v").several
    (['w_share'], True)
    """
    return _features(builder(which))


@lru_cache(maxsize=256)
def _features(build: Build) -> Features:
    tries = [build.schedule] if isinstance(build, Order) else (_try(build, p, (4, 4 * p, 1)) for p in (2, 4, 3, 1, 8))
    for schedule in tries:
        if isinstance(schedule, Schedule):
            entries = {entry for order in schedule.orders for entry in order}
            has = {
                "v": takes_v(build),
                "w_share": any(part.kind is Kind.W for entry in entries for part in entry.actions),
                "overlap": any(isinstance(entry, Overlap) for entry in entries),
            }
            several = schedule.num_stages > schedule.num_ranks
            return Features(schedule.name, frozenset(name for name, there in has.items() if there), several)
    raise ValueError(f"a builder in SCHEDULES takes p and m, but {build!r} makes no small schedule: {schedule}")


def _try(build: Build, p: int, ms: Sequence[int]) -> Schedule | str:
    """A schedule of p ranks, with the first of these m that it can have; or why it can have none."""
    reason = ""
    for m in ms:
        try:
            return build(p=p, m=m)
        except ValueError as error:
            reason = str(error)
    return reason


def why_not_p(which: Which, p: int) -> str:
    """Why a schedule cannot have p ranks, in its builder's words; "" where it can."""
    return _why_not_p(builder(which), p)


@lru_cache(maxsize=256)
def _why_not_p(build: Build, p: int) -> str:
    ms = (build.shape["m"],) if isinstance(build, Order) else (1, p, 2 * p, 4 * p)
    found = _try(build, p, ms)
    return found if isinstance(found, str) else ""


def said(value: object) -> str:
    """A value in the sentence that refuses it."""
    return "nothing" if value is None else f"{value:g}" if isinstance(value, float) else f"{value!r:.80}"
