"""Random orders, legal and not: what is accepted runs to its end, and what is refused for a circle hangs there.

helpers/random_orders.py makes a thousand of them, and says what an executor that knows no rule makes of each. A sample runs
for real in tests/runtime/test_random_orders_real.py.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import pytest
from orders import F, rules
from random_orders import WAYS, ends, the_thousand, where_it_stops

from ppedu.core.operations import Action, ScheduleError
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.core.validate import violations


def test_there_is_enough_of_each_kind():
    """So that none of what follows is shown by nothing."""
    kinds = Counter((way, ends(s, at)) for way, s, _, at, _ in the_thousand())
    assert min(kinds[way, True] for way in WAYS) >= 10, kinds
    assert min(kinds[way, False] for way in WAYS if way != "as it is") >= 20, kinds
    assert kinds["as it is", False] == 0
    rules_broken = Counter(v.rule for _, _, found, _, _ in the_thousand() for v in found)
    assert rules_broken.keys() == {"deadlock", "B before F", "I before F", "W before I"}
    assert rules_broken["deadlock"] >= 100, rules_broken


def test_an_order_is_accepted_if_and_only_if_it_runs_to_its_end():
    wrong = [str(s) for _, s, found, at, _ in the_thousand() if (found == ()) != ends(s, at)]
    assert wrong == []


def test_what_is_accepted_is_simulated_to_its_end_and_the_rest_not_at_all():
    for _, schedule, found, _, done in the_thousand():
        if found:
            with pytest.raises(ScheduleError) as caught:
                simulate(schedule)
            assert caught.value.violations == found
            continue
        timeline = simulate(schedule)
        assert timeline.complete
        assert {a for span in timeline.spans for a in span.action.actions} == done
        for rank, order in enumerate(schedule.orders):
            assert tuple(span.action for span in timeline.spans_of(rank)) == order


def waits_for(schedule: Schedule, rank: int, at: list[int], done: set[Action]) -> set[int]:
    """The ranks that hold what a stuck rank still needs."""
    if at[rank] == len(schedule.orders[rank]):
        return set()
    length = schedule.num_stages // schedule.chains
    parts = schedule.orders[rank][at[rank]].actions
    missing = [some for a in parts for some in rules(a, length) if not any(n in done for n in some)]
    return {schedule.rank_of_stage[some[0].stage] for some in missing}


def test_a_deadlock_is_where_it_is_said_to_be():
    """The rank stands at the action named, what that needs is not done, and each rank of the circle waits for the next."""
    circles = [(v, s, at, done) for _, s, found, at, done in the_thousand() for v in found if v.rule == "deadlock"]
    assert circles
    for violation, schedule, at, done in circles:
        assert violation.rank is not None
        assert schedule.orders[violation.rank][at[violation.rank]] == violation.action
        assert violation.needs not in done
        told = violation.message.partition("To break the circle")[0]
        ranks = [int(number) for number in re.findall(r"rank (\d+)(?:'s| waits)", told)]
        if ranks[-1] != ranks[0]:
            ranks.append(ranks[0])  # a circle of one rank says "its own"
        for rank, following in pairwise(ranks):
            assert following in waits_for(schedule, rank, at, done), violation.message
            stuck = schedule.short(schedule.orders[rank][at[rank]])
            assert stuck in told


def test_every_rank_that_is_stuck_waits_in_a_circle_or_behind_one():
    for _, schedule, found, at, done in the_thousand():
        if {v.rule for v in found} != {"deadlock"}:
            continue
        stuck = {rank for rank, order in enumerate(schedule.orders) if at[rank] < len(order)}
        assert stuck
        assert all(waits_for(schedule, rank, at, done) & stuck for rank in stuck)
        assert {v.rank for v in found} <= stuck


def test_reversed_microbatches_are_refused_for_1f1b_and_accepted_for_gpipe():
    """GPipe's backwards can come in any order; 1F1B's second rank would wait for what stands behind its own wait."""
    gpipe = Schedule.from_text("F0 F1 F2 B0 B1 B2\nF2 F1 F0 B2 B1 B0")
    assert violations(gpipe) == ()
    assert ends(gpipe, where_it_stops(gpipe)[0])
    one = Schedule.from_text("F0 F1 B0 F2 B1 B2\nF2 B2 F1 B1 F0 B0")
    assert [v.rule for v in violations(one)] == ["deadlock"]
    assert where_it_stops(one)[0] == [2, 0]
    assert all(a.kind is F for a in where_it_stops(one)[1])
