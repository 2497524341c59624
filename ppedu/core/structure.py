"""What is wrong with an order by itself: each operation is there, once, on its rank, after what its own stage must have done."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ppedu.core.operations import Action, B, Entry, F, I, Kind, Overlap, W
from ppedu.core.schedule import Schedule


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


def faults(schedule: Schedule) -> tuple[Violation, ...]:
    """What is wrong with single operations; or, where these cannot even be looked at, with the whole."""
    return tuple(_frame_faults(schedule) or _structure_faults(schedule))


def _frame_faults(schedule: Schedule) -> list[Violation]:
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


Slots: TypeAlias = dict[int, int]
"""microbatch -> slot in its rank's order, or -1 where it stands on a wrong rank alone."""


def _structure_faults(schedule: Schedule) -> list[Violation]:
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
    for action in schedule.actions:
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
