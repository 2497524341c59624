"""Says of any order whether it can run, and of one that cannot, why: which rank, which operation, what it needs.

Letters: F forward, B backward, I and W its halves (B = I + W): gradient of the input, gradient of the weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ppedu.schedule import Action, Costs, Entry, Kind, Overlap, Schedule, ScheduleError, dependencies, needs

__all__ = ["ScheduleError", "Violation", "check", "replay", "violations"]

F, B, I, W = Kind.F, Kind.B, Kind.I, Kind.W  # noqa: E741 - the field's letters


@dataclass(frozen=True, slots=True)
class Violation:
    """One reason why a schedule cannot run.

    rule: a few words that name the rule, the same for every breach of it.
    rank: whose order is at fault, or None where it is no single one's.
    action: what breaks the rule, or is missing; None where the whole schedule does.
    needs: the operation that `action` cannot do without, where that is the reason.
    message: the rule, the numbers and the remedy, in a sentence or two.
    """

    rule: str
    rank: int | None
    action: Entry | None
    needs: Action | None
    message: str


def violations(schedule: Schedule) -> tuple[Violation, ...]:
    """Every reason why a schedule cannot run; () when it is legal. Linear in the number of operations.

    Orders that wait for each other are looked for only once each operation is there, once and on its rank.
    A schedule without any backward is legal: inference.

    >>> late = Schedule.from_text("F0 F1 B0 B1\\nF0 F1 B1 B0")
    >>> violations(late)
    ()
    >>> print(violations(Schedule.from_text("F0 B0\\nB0 F0"))[0].message)
    rank 1 runs B0 before F0, whose result it needs: run F0 first
    """
    return replay(schedule, Costs())[1]


def check(schedule: Schedule) -> None:
    """Raise ScheduleError, with the reasons in its `violations`, where a schedule cannot run."""
    found = violations(schedule)
    if found:
        raise refusal(schedule, found)


def refusal(schedule: Schedule, found: tuple[Violation, ...], shown: int = 5) -> ScheduleError:
    """The error that tells the first few of the reasons and counts the others."""
    if len(found) == 1:
        return ScheduleError(f"{schedule.label} cannot run: {found[0].message}", found)
    lines = [f"{schedule.label} cannot run, for {len(found)} reasons:", *(f"- {v.message}" for v in found[:shown])]
    if len(found) > shown:
        lines.append(f"- and {len(found) - shown} more (the error's `violations` holds all)")
    return ScheduleError("\n".join(lines), found)


# the walk

Times: TypeAlias = list[list[tuple[float, float]]]
"""For each rank (start, end) of its entries, as far as it gets."""

_RESULT = {F: 0, B: 1, I: 1, W: 2}  # what a kind yields: B and I both give the gradient that the stage before needs


@dataclass(frozen=True, slots=True)
class _Step:
    """What a stage's operations of one kind have in common. Results are numbered: `result` + microbatch."""

    result: int
    needs: tuple[tuple[int, float], ...]  # (result, how long its tensor travels)
    duration: float


def replay(schedule: Schedule, costs: Costs) -> tuple[Times, tuple[Violation, ...]]:
    """Run every rank's order strictly: when each entry runs, and why that was not possible, if it was not."""
    found = _frame(schedule) or _structure(schedule)
    if found:
        return [], tuple(found)
    times = walk(schedule, costs)
    return times, tuple(_deadlocks(schedule, [len(done) for done in times]))


def walk(schedule: Schedule, costs: Costs) -> Times:
    """An entry starts when its rank is free and all that it needs is there. Times end early where ranks are stuck."""
    steps = _steps(schedule, costs)
    ended: list[float | None] = [None] * (3 * schedule.num_stages * schedule.num_microbatches)
    times: Times = [[] for _ in schedule.orders]
    waiting: dict[int, list[int]] = {}  # result -> the ranks that wait for it
    ready = list(reversed(range(schedule.num_ranks)))
    while ready:
        rank = ready.pop()
        order, done = schedule.orders[rank], times[rank]
        free = done[-1][1] if done else 0.0
        for slot in range(len(done), len(order)):
            entry = order[slot]
            start, missing = _start(entry, free, steps, ended)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            if isinstance(entry, Overlap):
                free = start + costs.duration(entry)
            else:
                free = start + steps[entry.stage][entry.kind].duration
            done.append((start, free))
            for part in entry.actions:
                result = steps[part.stage][part.kind].result + part.microbatch
                ended[result] = free
                if result in waiting:
                    ready += waiting.pop(result)
    return times


def _start(
    entry: Entry, free: float, steps: list[dict[Kind, _Step]], ended: list[float | None]
) -> tuple[float, int | None]:
    """When an entry can start, or a result that is not there yet."""
    start = free
    for part in entry.actions:
        for result, delay in steps[part.stage][part.kind].needs:
            end = ended[result + part.microbatch]
            if end is None:
                return start, result + part.microbatch
            if end + delay > start:
                start = end + delay
    return start, None


def _steps(schedule: Schedule, costs: Costs) -> list[dict[Kind, _Step]]:
    m, rank_of = schedule.num_microbatches, schedule.rank_of_stage

    def step(stage: int, kind: Kind) -> _Step:
        needed = tuple(
            ((other * 3 + _RESULT[kinds[0]]) * m, 0.0 if rank_of[other] == rank_of[stage] else costs.transfer)
            for other, kinds in needs(stage, kind, schedule)
        )
        return _Step((stage * 3 + _RESULT[kind]) * m, needed, costs.duration(Action(stage, kind, 0)))

    return [{kind: step(stage, kind) for kind in Kind} for stage in range(schedule.num_stages)]


# the frame: what must hold before single operations can be looked at


def _frame(schedule: Schedule) -> list[Violation]:
    p, m, stages, chains = schedule.num_ranks, schedule.num_microbatches, schedule.num_stages, schedule.chains
    homeless = [stage for stage, rank in enumerate(schedule.rank_of_stage) if not 0 <= rank < p]
    faults = {
        "ranks": p < 1 and "there is no rank: give at least one order",
        "microbatches": m < 1 and f"a batch has at least one microbatch, but m={m}",
        "stages": stages < 1 and "there is no stage: rank_of_stage names the rank of each, and is empty",
        "chains": (not isinstance(chains, int) or chains < 1 or stages % chains != 0)
        and f"{stages} stages do not make {chains!r} chains of one length: give a divisor of {stages} as chains",
        "placement": homeless
        and f"stage {homeless[0]} is placed on rank {schedule.rank_of_stage[homeless[0]]}, but there are {p} orders, "
        f"of ranks 0 to {p - 1}: correct rank_of_stage, or give every rank its order",
    }
    return [Violation(rule, None, None, None, message) for rule, message in faults.items() if message]


# the structure: each operation there, once, on its rank, and not before what its own stage must have done


Slots: TypeAlias = dict[int, int]
"""microbatch -> slot in its rank's order, or -1 where it stands on a wrong rank alone."""


def _structure(schedule: Schedule) -> list[Violation]:
    places: list[dict[Kind, Slots]] = [{kind: {} for kind in Kind} for _ in range(schedule.num_stages)]
    if halves := _two_chains(schedule):
        return [halves]
    found = list(_place(schedule, places))
    trains = any(places[stage][kind] for stage in range(schedule.num_stages) for kind in (B, I, W))
    for stage, slots in enumerate(places):
        found += _incomplete(schedule, stage, slots, trains)
        found += _early(schedule, stage, slots)
    return found


def _two_chains(schedule: Schedule) -> Violation | None:
    """An order that is bidirectional by all signs, but was read as one chain: one reason instead of hundreds."""
    half, odd = divmod(schedule.num_stages, 2)
    down, up = schedule.rank_of_stage[:half], schedule.rank_of_stage[half:]
    if schedule.chains > 1 or odd or half < 2 or up != down[::-1]:
        return None
    passing: tuple[set[int], set[int]] = set(), set()
    for order in schedule.orders:
        for action in (a for entry in order for a in entry.actions):
            passing[action.stage >= half].add(action.microbatch)
    m = schedule.num_microbatches
    if passing != (set(range(m // 2)), set(range(m // 2, m))):
        return None
    message = (
        f"microbatches below {m // 2} pass through stages 0 to {half - 1} alone and the others through stages {half} to "
        f"{2 * half - 1}, as in a bidirectional schedule: read it with chains=2, or run each microbatch on every stage"
    )
    return Violation("chains", None, None, None, message)


def _place(schedule: Schedule, places: list[dict[Kind, Slots]]) -> Iterator[Violation]:
    """Enter every operation that can be one into `places`, and yield what is wrong with the others."""
    rank_of = schedule.rank_of_stage
    shares = [schedule.microbatches_of(stage) for stage in range(schedule.num_stages)]
    for rank, order in enumerate(schedule.orders):
        for slot, entry in enumerate(order):
            if isinstance(entry, Overlap) and not (entry.forward.kind is F and entry.backward.kind in (B, I)):
                message = f"rank {rank} overlaps {entry}: a pair is an F and a B (or an I), in this order. Run these two apart"
                yield Violation("pair", rank, entry, None, message)
            for part in entry.actions:
                stage, microbatch = part.stage, part.microbatch
                if not 0 <= stage < len(shares) or microbatch not in shares[stage]:
                    yield _unknown(schedule, rank, part)
                    continue
                places_of_kind = places[stage][part.kind]
                if rank_of[stage] != rank:
                    message = f"rank {rank} runs {part}, but stage {stage} is on rank {rank_of[stage]}: move it there"
                    yield Violation("wrong rank", rank, part, None, message)
                    places_of_kind.setdefault(microbatch, -1)
                elif places_of_kind.get(microbatch, -1) >= 0:
                    both = f"as number {places_of_kind[microbatch] + 1} and as number {slot + 1} of its order"
                    message = (
                        f"rank {rank} runs {schedule.short(part)} twice, {both}: each operation runs once, remove one"
                    )
                    yield Violation("duplicate", rank, part, None, message)
                else:
                    places_of_kind[microbatch] = slot


def _unknown(schedule: Schedule, rank: int, part: Action) -> Violation:
    stages, m = schedule.num_stages, schedule.num_microbatches
    if not 0 <= part.stage < stages:
        message = f"rank {rank} runs {part}, but there is no stage {part.stage}: stages run from 0 to {stages - 1}"
        return Violation("unknown stage", rank, part, None, message)
    message = (
        f"rank {rank} runs {part}, but there is no microbatch {part.microbatch}: with m={m} they run from 0 to {m - 1}"
    )
    if 0 <= part.microbatch < m:
        share = schedule.microbatches_of(part.stage)
        known = f"only microbatches {share[0]} to {share[-1]} pass" if share else "no microbatch passes"
        message = (
            f"rank {rank} runs {part}, but through stage {part.stage}, of one of {schedule.chains} chains, {known}"
        )
    return Violation("unknown microbatch", rank, part, None, message)


def _incomplete(schedule: Schedule, stage: int, slots: dict[Kind, Slots], trains: bool) -> Iterator[Violation]:
    """What a stage lacks, or has besides its like: for each microbatch F, and if anything trains B or else I and W."""
    share, rank = schedule.microbatches_of(stage), schedule.rank_of_stage[stage]
    f, b, i, w = (slots[kind].keys() for kind in (F, B, I, W))
    backward = b | i | w

    def says(rule: str, microbatch: int, kind: Kind, needs: Kind | None, text: str) -> Violation:
        letters = {k.value: schedule.short(Action(stage, k, microbatch)) for k in Kind}
        needed = None if needs is None else Action(stage, needs, microbatch)
        message = f"rank {rank} " + text.format(**letters, this=letters[kind.value])
        return Violation(rule, rank, Action(stage, kind, microbatch), needed, message)

    for j in sorted(b & (i | w)):
        other = "I" if j in i else "W"
        text = f"runs {{B}} and {{{other}}}: B is I and W in one. Run either {{B}}, or {{I}} and {{W}}"
        yield says("B beside I or W", j, B, None, text)
    for j in sorted(backward - f):
        kind = B if j in b else I if j in i else W
        text = "runs {this} but never {F}, whose activations it needs: put {F} before it"
        yield says("backward without forward", j, kind, F, text)
    for j in sorted(w - i - b):
        text = "runs {W} but never {I}, whose work it finishes: put {I} before it, or run {B} in its place"
        yield says("W without I", j, W, I, text)
    for j in sorted(i - w - b):
        text = "runs {I} but never {W}, so its weights get no gradient: put {W} after it, or run {B} in its place"
        yield says("I without W", j, I, None, text)
    yield from _missing(schedule, stage, F, share, f | backward)
    if trains:
        yield from _missing(schedule, stage, I if i else B, share, backward)


def _missing(schedule: Schedule, stage: int, kind: Kind, share: range, there: Collection[int]) -> Iterator[Violation]:
    """One violation for each run of microbatches that are not there: m may be a slip, and huge."""
    rank = schedule.rank_of_stage[stage]
    needed = (
        "every microbatch passes every stage" if kind is F else "where one has a backward, every other needs it too"
    )
    begin = share.start
    for end in (*sorted(there), share.stop) if len(there) < len(share) else ():
        if end > begin:
            first, last = Action(stage, kind, begin), Action(stage, kind, end - 1)
            names = schedule.short(first) if first == last else f"{schedule.short(first)} to {schedule.short(last)}"
            message = f"rank {rank} never runs {names}: {needed} (m={schedule.num_microbatches})"
            yield Violation("missing", rank, first, None, message)
        begin = end + 1


def _early(schedule: Schedule, stage: int, slots: dict[Kind, Slots]) -> Iterator[Violation]:
    """An operation that stands before the one of its own stage whose work it takes up."""
    rank = schedule.rank_of_stage[stage]
    for kind, before in ((B, F), (I, F), (W, I)):
        needed = slots[before]
        for j, slot in slots[kind].items():
            if 0 <= slot <= needed.get(j, -1):
                action, needs = Action(stage, kind, j), Action(stage, before, j)
                name, first = schedule.short(action), schedule.short(needs)
                message = f"rank {rank} runs {name} before {first}, whose result it needs: run {first} first"
                if slot == needed[j]:
                    message = f"rank {rank} overlaps {first} with {name}, which needs its result: run {first} first"
                yield Violation(f"{kind} before {before}", rank, action, needs, message)


# deadlock: ranks that wait for each other


@dataclass(frozen=True, slots=True)
class Link:
    """Rank `rank` stands at `entry`, which needs an operation that rank `of` has not run."""

    rank: int
    entry: Entry
    needed: Action
    of: int


def _deadlocks(schedule: Schedule, reached: list[int]) -> Iterator[Violation]:
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
