"""What several tests share: orders from the literature, and random orders that are legal by how they were made."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import strategies as st

from ppedu.core.operations import Action, Entry, Kind, Overlap
from ppedu.core.schedule import Schedule

F, B, I, W = Kind.F, Kind.B, Kind.I, Kind.W  # noqa: E741
GOLDEN = Path(__file__).parents[1] / "golden"


class StuckError(Exception):
    """Of a replay: no rank can go on."""


def golden(name: str) -> Schedule:
    """A schedule of tests/golden/README.md."""
    return Schedule.from_csv((GOLDEN / f"{name}.csv").read_text("utf-8"), name=name)


def dualpipe() -> Schedule:
    """DualPipe on 4 ranks, 8 microbatches: one chain of stages down, one up, each with half of the microbatches."""
    return _phases("dualpipe_p4_m8", 8, 2, lambda rank, phase: (rank, 7 - rank)[phase], lambda phase, j: j + 4 * phase)


def dualpipe_v() -> Schedule:
    """DualPipeV on 4 ranks, 10 microbatches: one chain of eight stages that goes down and comes up again."""
    return _phases("dualpipev_p4_m10", 10, 1, lambda rank, phase: (rank, 7 - rank)[phase], lambda _, j: j)


def _phases(name, m, chains, stage_of, microbatch_of) -> Schedule:
    def action(rank: int, word: str) -> Action:
        phase, j = map(int, word[1:].split("."))
        return Action(stage_of(rank, phase), Kind(word[0]), microbatch_of(phase, j))

    def entry(rank: int, cell: str) -> Entry:
        parts = [action(rank, word) for word in cell.split("&")]
        return Overlap(*parts) if len(parts) == 2 else parts[0]

    lines = (GOLDEN / f"{name}.txt").read_text("utf-8").splitlines()
    orders = tuple(tuple(entry(rank, cell) for cell in line.split()) for rank, line in enumerate(lines))
    return Schedule(name, m, (0, 1, 2, 3, 3, 2, 1, 0), orders, chains)


def rules(action: Action, length: int) -> list[list[Action]]:
    """What an action needs, one of each list: written down a second time, so that the library's own rule has a witness."""
    s, j, position = action.stage, action.microbatch, action.stage % length
    if action.kind is F:
        return [[Action(s - 1, F, j)]] if position > 0 else []
    if action.kind is W:
        return [[Action(s, I, j)]]
    needed = [[Action(s, F, j)]]
    if position < length - 1:
        needed.append([Action(s + 1, B, j), Action(s + 1, I, j)])
    return needed


@st.composite
def legal_schedules(draw: st.DrawFn, pairs: bool = True) -> Schedule:
    """Any legal schedule: stages placed anyhow, B whole or split, operations drawn one by one among those that can run.

    With `pairs`, a forward and a backward that can run on one rank at one time are now and then overlapped.
    """
    p = draw(st.integers(1, 4))
    chains = draw(st.integers(1, 2))
    length = draw(st.integers(1, 4))
    m = draw(st.integers(1, 5))
    rank_of = tuple(draw(st.lists(st.integers(0, p - 1), min_size=chains * length, max_size=chains * length)))
    trains, splits = draw(st.booleans()), draw(st.sampled_from([0.0, 0.5, 1.0]))
    chance = random.Random(draw(st.integers(0, 2**32)))
    return legal_schedule(p, m, rank_of, chains, trains, splits, pairs, chance)


def legal_schedule(
    p: int,
    m: int,
    rank_of: tuple[int, ...],
    chains: int,
    trains: bool,
    splits: float,
    pairs: bool,
    chance: random.Random,
) -> Schedule:
    """One of them. splits: the share of backwards that are split."""
    length = len(rank_of) // chains
    empty = Schedule("random", m, rank_of, ((),) * p, chains)
    waiting: list[Action] = []
    for stage in range(len(rank_of)):
        for j in empty.microbatches_of(stage):
            backward = (I, W) if chance.random() < splits else (B,)
            waiting += [Action(stage, kind, j) for kind in (F, *(backward if trains else ()))]
    orders: list[list[Entry]] = [[] for _ in range(p)]
    done: set[Action] = set()
    while waiting:
        able = [a for a in waiting if all(any(n in done for n in some) for some in rules(a, length))]
        first = chance.choice(able)
        rank = rank_of[first.stage]
        mates = [a for a in able if rank_of[a.stage] == rank and a.kind in (B, I)]
        entry: Entry = first
        if pairs and first.kind is F and mates and chance.random() < 0.5:
            entry = Overlap(first, chance.choice(mates))
        orders[rank].append(entry)
        done.update(entry.actions)
        waiting = [a for a in waiting if a not in entry.actions]
    return Schedule("random", m, rank_of, tuple(map(tuple, orders)), chains)
