"""Ranks that wait for each other: the circle, spelt out, and what would break it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ppedu.core.operations import Action, Entry, Overlap
from ppedu.core.schedule import Schedule, dependencies
from ppedu.core.structure import Violation


@dataclass(frozen=True, slots=True)
class Link:
    """Rank `rank` stands at `entry`, which needs an operation that rank `of` has not run."""

    rank: int
    entry: Entry
    needed: Action
    of: int


def deadlocks(schedule: Schedule, reached: list[int]) -> Iterator[Violation]:
    """One violation for each circle of ranks that wait for each other, once no rank can go on."""
    links = {
        rank: _link(schedule, rank, order[slot], reached)
        for rank, (order, slot) in enumerate(zip(schedule.orders, reached, strict=True))
        if slot < len(order)
    }
    seen: set[int] = set()
    for rank in sorted(links):
        path: dict[int, Link] = {}
        while rank not in seen:
            seen.add(rank)
            path[rank] = links[rank]
            rank = links[rank].of
        if rank in path:
            ranks = list(path)
            yield deadlock(schedule, [path[r] for r in ranks[ranks.index(rank) :]])


def _link(schedule: Schedule, rank: int, entry: Entry, reached: list[int]) -> Link:
    for part in entry.actions:
        for needed in dependencies(part, schedule):
            place = schedule.place(needed)
            if place is not None and place[1] >= reached[place[0]]:
                return Link(rank, entry, needed, place[0])
    raise RuntimeError(f"rank {rank} stopped at {entry}, which waits for nothing")


def deadlock(schedule: Schedule, circle: list[Link]) -> Violation:
    """Spell a circle out: each link's `of` is the next one's rank, and its `needed` is, or stands behind, that one's entry."""

    def behind(link: Link, held: Link) -> bool:
        return link.needed not in held.entry.actions

    # Start at the rank whose own operation stands behind what it waits at, so that the sentence ends where it began.
    turns = (k for k in range(len(circle)) if behind(circle[k - 1], circle[k]))
    turn = min(turns, key=lambda k: circle[k].rank, default=0)
    circle = circle[turn:] + circle[:turn]
    texts = []
    for link, held in zip(circle, circle[1:] + circle[:1], strict=True):
        whose = "its own" if link.of == link.rank else f"rank {link.of}'s"
        name = schedule.short(held.entry)
        how = f"which waits behind {name}" if behind(link, held) else f"which is part of {name}"
        same = held.entry == link.needed
        texts.append(
            f"for {whose} {schedule.short(link.needed)}, " + ("which waits" if same else f"{how}, which waits")
        )
    if len(texts) > 8:
        texts[4:-2] = [f"(... {len(texts) - 6} more ranks ...)"]
    first = circle[0]
    message = f"rank {first.rank} waits at {schedule.short(first.entry)} " + " ".join(texts)
    message = message.removesuffix(", which waits") + f". {_remedy(schedule, circle)}"
    return Violation("deadlock", first.rank, first.entry, first.needed, message)


def _remedy(schedule: Schedule, circle: list[Link]) -> str:
    """Changes of one rank's order that would each break the circle (there may be another one behind it)."""
    ways = []
    for link, after in zip(circle, circle[1:] + circle[:1], strict=True):
        entry, needed = after.entry, link.needed
        name, held = schedule.short(needed), schedule.short(entry)
        if needed in entry.actions:
            if isinstance(entry, Overlap):
                ways.append(f"{name} apart from {held} on rank {link.of}")
            continue
        first = [part for part in entry.actions if _follows(needed, part, schedule)]
        if not first:
            ways.append(f"{name} before {held} on rank {link.of}")
        elif len(first) < len(entry.actions):  # the other half of the pair need not wait for it
            ways.append(f"{schedule.short(first[0])} apart from {held} on rank {link.of}")
    return f"To break the circle, run {', or '.join(ways[:2])}"


def _follows(later: Action, earlier: Action, schedule: Schedule) -> bool:
    """`later` needs `earlier`, at once or by way of others."""
    seen, to_see = {later}, [later]
    while to_see:
        more = [a for a in dependencies(to_see.pop(), schedule) if a not in seen]
        seen.update(more)
        to_see += more
    return earlier in seen
