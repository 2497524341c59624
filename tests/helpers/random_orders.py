"""A thousand random orders, legal and not, and what becomes of each.

Legal ones come from `orders` and from the builders. The others are legal ones with a rank's operations shuffled, or with a
rank that takes the microbatches in reverse or in an order of its own. An executor of a few lines, which knows neither costs
nor the library's rules, says what happens.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

from orders import legal_schedule, rules

from ppedu.core.operations import Action, Entry, Overlap
from ppedu.core.schedule import Schedule
from ppedu.core.structure import Violation
from ppedu.core.validate import violations
from ppedu.schedules import SCHEDULES

MANY, SEED = 1000, 20
WAYS = ("as it is", "shuffled", "neighbours", "one moved", "in reverse", "own numbers")


def random_order(seed: int) -> tuple[str, Schedule]:
    """(how it was made, a schedule whose operations are complete, each once and on its rank, in some order)."""
    chance = random.Random(SEED + seed)
    p, m = chance.randint(1, 4), chance.randint(1, 5)
    if seed % 2:
        name = chance.choice([name for name in SCHEDULES if name != "dualpipe" or p % 2 == 0])
        schedule = SCHEDULES[name](p=p, m=m)
    else:
        chains, length = chance.choice([1, 1, 2]), chance.randint(1, 4)
        rank_of = tuple(chance.randrange(p) for _ in range(chains * length))
        splits = chance.choice([0.0, 0.5, 1.0])
        schedule = legal_schedule(p, m, rank_of, chains, chance.random() < 0.9, splits, chance.random() < 0.5, chance)
    way = WAYS[seed // 2 % len(WAYS)]
    ranks = [rank for rank, order in enumerate(schedule.orders) if len(order) > 1]
    if way == "as it is" or not ranks:
        return "as it is", schedule
    rank = chance.choice(ranks)
    orders = list(schedule.orders)
    orders[rank] = changed(orders[rank], way, schedule, chance)
    return way, replace(schedule, orders=tuple(orders))


def changed(order: tuple[Entry, ...], way: str, schedule: Schedule, chance: random.Random) -> tuple[Entry, ...]:
    mine = list(order)
    i, j = chance.randrange(len(mine)), chance.randrange(len(mine))
    if way == "shuffled":
        chance.shuffle(mine)
    elif way == "neighbours":
        for _ in range(3):
            i = chance.randrange(len(mine) - 1)
            mine[i], mine[i + 1] = mine[i + 1], mine[i]
    elif way == "one moved":
        mine.insert(j, mine.pop(i))
    else:
        return renumbered(mine, way, schedule, chance)
    return tuple(mine)


def renumbered(order: list[Entry], way: str, schedule: Schedule, chance: random.Random) -> tuple[Entry, ...]:
    """The same order, with other microbatches in each place."""
    to = {}
    for first in range(0, schedule.num_stages, schedule.chain_length):
        share = list(schedule.microbatches_of(first))
        other = share[::-1] if way == "in reverse" else chance.sample(share, len(share))
        to.update(zip(share, other, strict=True))

    def moved(a: Action) -> Action:
        return replace(a, microbatch=to[a.microbatch])

    return tuple(Overlap(*map(moved, e.actions)) if isinstance(e, Overlap) else moved(e) for e in order)


def where_it_stops(schedule: Schedule) -> tuple[list[int], set[Action]]:
    """(how many entries each rank gets through, what was done): ranks take turns for as long as one can go on."""
    at, done = [0] * schedule.num_ranks, set()
    length = schedule.num_stages // schedule.chains
    going = True
    while going:
        going = False
        for rank, order in enumerate(schedule.orders):
            if at[rank] < len(order):
                parts = order[at[rank]].actions
                if all(any(n in done for n in some) for a in parts for some in rules(a, length)):
                    done.update(parts)
                    at[rank] += 1
                    going = True
    return at, done


@cache
def the_thousand() -> list[tuple[str, Schedule, tuple[Violation, ...], list[int], set[Action]]]:
    found = []
    for seed in range(MANY):
        way, schedule = random_order(seed)
        found.append((way, schedule, violations(schedule), *where_it_stops(schedule)))
    return found


def ends(schedule: Schedule, at: list[int]) -> bool:
    return at == [len(order) for order in schedule.orders]
