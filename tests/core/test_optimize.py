"""The best order: against all orders there are, against the literature, and within its limits."""

from __future__ import annotations

import itertools
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orders import B, F, I, W, golden, legal_schedules, rules

from ppedu.core.costs import Costs
from ppedu.core.operations import Action
from ppedu.core.replay import replay
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.core.validate import violations
from ppedu.optimizer import Optimized, lower_bound, optimize
from ppedu.optimizer.greedy import greedy
from ppedu.optimizer.known import one_by_one, with_halves
from ppedu.optimizer.problem import problem
from ppedu.optimizer.search import Ticks, search
from ppedu.schedules import SCHEDULES, dualpipe, forward_only, gpipe, naive, one_f_one_b, zb_h1, zb_v

HALVES = Costs(forward=1, input_grad=1, weight_grad=1)  # F = I = W = 1, so B = 2
LAST = 1e-6  # a millionth: what rounding to ticks may hide


def quiet(*args, **more) -> Optimized:
    pytest.importorskip("ortools.sat.python.cp_model", reason='pip install "ortools>=9.12"')
    return optimize(*args, **{"progress": False, "workers": 2, **more})


def uneven(stages: int, seed: int = 1) -> Costs:
    """Costs as a run measures them: none is a round number, no two are the same."""
    chance = random.Random(seed)

    def some(low: float, high: float) -> list[float]:
        return [chance.uniform(low, high) for _ in range(stages)]

    transfer = 0.08 if seed == 1 else 0.9
    return Costs(some(0.9, 1.2), None, some(0.9, 1.2), some(0.6, 0.9), transfer=transfer)


def assert_sound(best: Optimized, costs: Costs) -> None:
    """What holds of every result: a legal, whole order and its simulation, within its limits and above its bound."""
    assert violations(best.schedule) == ()
    assert best.timeline.spans == simulate(best.schedule, costs).spans
    assert 0 <= best.lower_bound <= best.makespan
    if best.best_builtin is not None:
        assert best.makespan <= best.best_builtin[1]
    if best.memory_limit is not None:
        assert all(n <= limit for n, limit in zip(best.timeline.peak_in_flight, best.memory_limit, strict=True))


# all orders there are


def lanes(mine: list[Action]) -> Iterator[tuple[Action, ...]]:
    """Every order of one rank's operations in which each microbatch keeps its way; microbatches in any order."""

    def before(a: Action, b: Action) -> bool:
        if a.microbatch != b.microbatch or a.kind is W:
            return False
        if b.kind is W:
            return a.stage == b.stage
        if a.kind is not b.kind:
            return a.kind is F
        return a.stage < b.stage if a.kind is F else a.stage > b.stage

    if not mine:
        yield ()
    for first in mine:
        if not any(before(other, first) for other in mine):
            for rest in lanes([a for a in mine if a != first]):
                yield (first, *rest)


def best_of_all(m: int, placement: tuple[int, ...], split: bool, costs: Costs, limits=None) -> float:
    """The smallest makespan of all orders that keep the limits."""
    kinds = (F, I, W) if split else (F, B)
    ranks = range(1 + max(placement))
    mine = [
        [Action(s, k, j) for s, r in enumerate(placement) if r == n for k in kinds for j in range(m)] for n in ranks
    ]
    best = float("inf")
    for orders in itertools.product(*(list(lanes(some)) for some in mine)):
        schedule = Schedule("any", m, placement, orders)
        if limits is not None and any(n > k for n, k in zip(schedule.peak_in_flight, limits, strict=True)):
            continue
        times, stuck = replay(schedule, costs)
        if not stuck:
            best = min(best, max(lane[-1][1] for lane in times))
    return best


SMALL = [
    pytest.param(2, (0, 1), True, None, id="p=2 m=2, halves"),
    pytest.param(2, (0, 1), True, (1, 1), id="p=2 m=2, halves, one in flight"),
    pytest.param(2, (0, 1), True, (2, 1), id="p=2 m=2, halves, as 1F1B"),
    pytest.param(3, (0, 1), False, None, id="p=2 m=3"),
    pytest.param(3, (0, 1), False, (2, 1), id="p=2 m=3, as 1F1B"),
    pytest.param(3, (0, 1), False, (2, 2), id="p=2 m=3, two in flight"),
    pytest.param(2, (0, 1, 2), False, None, id="p=3 m=2"),
    pytest.param(2, (0, 1, 2), False, (1, 2, 2), id="p=3 m=2, one in flight on rank 0"),
    pytest.param(2, (0, 1, 1, 0), False, None, id="V", marks=pytest.mark.slow),
    pytest.param(2, (0, 1, 1, 0), False, (3, 3), id="V, three in flight", marks=pytest.mark.slow),
    pytest.param(2, (0, 1, 1, 0), False, (2, 3), id="V, two and three", marks=pytest.mark.slow),
    pytest.param(2, (0, 1, 0, 1), False, (3, 4), id="two rounds, three and four", marks=pytest.mark.slow),
    pytest.param(1, (0, 1, 1, 0), True, None, id="V, halves, m=1"),
]


@pytest.mark.parametrize(("m", "placement", "split", "limits"), SMALL)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_none_of_all_orders_is_faster(m, placement, split, limits, seed):
    costs = uneven(len(placement), seed)
    fastest = pytest.approx(best_of_all(m, placement, split, costs, limits), rel=LAST)
    best = quiet(1 + max(placement), m, costs, limits, split_backward=split, rank_of_stage=placement)
    assert_sound(best, costs)
    assert best.optimal
    assert best.makespan == fastest
    # the solver alone, from the slowest start: no built-in schedule, rule of thumb or bound has found the order for it
    asked = problem(1 + max(placement), m, costs, limits, split, placement)
    start = one_by_one(asked)
    ticks = Ticks.of(asked, simulate(start, costs).makespan)
    order, bound = search(ticks, start, seconds=30, seed=0, workers=2, tell=lambda *_: None)
    assert simulate(order, costs).makespan == fastest
    assert bound == fastest


@pytest.mark.slow
def test_none_of_eight_thousand_orders_is_faster():
    """p=3, m=2 in halves."""
    costs = uneven(3)
    best = quiet(3, 2, costs, (2, 2, 1))
    assert best.makespan == pytest.approx(best_of_all(2, (0, 1, 2), True, costs, (2, 2, 1)), rel=LAST)


# the literature


@pytest.mark.parametrize("limit", [None, 4, (4, 3, 2, 1)])
def test_1f1b_cannot_be_beaten_without_halves(limit):
    """p=4, m=8, F=B=1: 22 for GPipe and 1F1B alike (Narayanan et al., SC'21)."""
    best = quiet(4, 8, Costs(forward=1, backward=1), limit, split_backward=False)
    assert (best.makespan, best.lower_bound, best.optimal) == (22, 22, True)
    assert best.best_builtin == ("1f1b", 22)
    assert best.schedule == one_f_one_b(4, 8)


def test_one_in_flight_is_one_microbatch_at_a_time():
    """Eight times down and up through four stages of F=B=1."""
    best = quiet(4, 8, Costs(forward=1, backward=1), 1, split_backward=False)
    assert (best.makespan, best.lower_bound) == (64, 64)


def test_zb_h1_cannot_be_beaten():
    """Zero Bubble (Qi et al., ICLR'24): 27 with the memory of 1F1B, which takes 33."""
    best = quiet(4, 8, HALVES, 4)
    assert (best.makespan, best.lower_bound) == (27, 27)
    assert simulate(golden("zbh1_p4_m8"), HALVES).makespan == 27


def test_halves_in_1f1bs_own_memory():
    """In (4, 3, 2, 1) in flight, ZB-H1 does not fit, and 1F1B with its backwards in halves is better than 1F1B."""
    best = quiet(4, 8, HALVES, (4, 3, 2, 1))
    assert best.best_builtin == ("1f1b", 33)
    assert best.makespan == 30
    assert best.optimal
    assert best.schedule.name == "1F1B in halves"


def test_zb_v_cannot_be_beaten():
    """ZB-V, p=4, m=8, F=I=W=1 on each of its half stages: 51 by the global clock."""
    best = quiet(4, 8, HALVES, 8, rank_of_stage=(0, 1, 2, 3, 3, 2, 1, 0))
    assert (best.makespan, best.lower_bound) == (51, 51)
    assert simulate(golden("zbv_p4_m8"), HALVES).makespan == 51


@pytest.mark.parametrize(
    "costs", [Costs(1, 2, transfer=1), Costs([1, 2, 1, 1], [2, 4, 2, 2])], ids=["far", "slow stage"]
)
def test_the_same_memory_and_less_time_than_1f1b(costs):
    """49 where a message takes 1, 53 with one slow stage: 1F1B is not made for either."""
    ordinary = simulate(one_f_one_b(4, 8), costs)
    best = quiet(4, 8, costs, ordinary.peak_in_flight, split_backward=False)
    assert ordinary.makespan in (49, 53)
    assert_sound(best, costs)
    more = quiet(4, 8, costs, 4, split_backward=False)
    assert_sound(more, costs)
    assert more.makespan < ordinary.makespan
    assert more.makespan <= best.makespan


@pytest.mark.slow
def test_larger_ones_are_never_slower_than_the_built_in():
    costs = uneven(8)
    began = time.perf_counter()
    best = quiet(8, 16, costs, 8, time_limit=3)
    assert time.perf_counter() - began < 8
    assert_sound(best, costs)
    assert best.best_builtin is not None
    assert best.best_builtin[0] == "zb_h1"
    assert best.best_builtin[1] == simulate(SCHEDULES["zb_h1"](p=8, m=16), costs).makespan


# bounds


@st.composite
def one_chain(draw: st.DrawFn) -> Schedule:
    """A legal order on ranks that all hold a stage: backwards whole, in halves, or some of each."""
    p, m = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    placement = tuple(draw(st.permutations([*range(p), *draw(st.lists(st.integers(0, p - 1), max_size=3))])))
    chance, splits = random.Random(draw(st.integers(0, 2**32))), draw(st.sampled_from([0.0, 0.5, 1.0]))
    waiting: list[Action] = []
    for stage, j in itertools.product(range(len(placement)), range(m)):
        backward = (I, W) if chance.random() < splits else (B,)
        waiting += [Action(stage, kind, j) for kind in (F, *backward)]
    orders: list[list[Action]] = [[] for _ in range(p)]
    done: set[Action] = set()
    while waiting:
        able = [a for a in waiting if all(any(n in done for n in some) for some in rules(a, len(placement)))]
        first = chance.choice(able)
        orders[placement[first.stage]].append(first)
        done.add(first)
        waiting.remove(first)
    return Schedule("random", m, placement, tuple(map(tuple, orders)))


@settings(max_examples=100)
@given(one_chain(), st.integers(0, 99), st.sampled_from([None, 0.4, 1.2, 3.0]))
def test_no_legal_order_is_below_the_bound(schedule, seed, whole):
    """Under limits that it just keeps, and whatever B takes beside I and W."""
    costs = replace(uneven(schedule.num_stages, seed), backward=whole)
    if whole == 3.0:  # more than I + W
        schedule = with_halves(schedule)
    timeline = simulate(schedule, costs)
    p, m, placement = schedule.num_ranks, schedule.num_microbatches, schedule.rank_of_stage
    bound = lower_bound(p, m, costs, timeline.peak_in_flight, rank_of_stage=placement)
    assert bound <= timeline.makespan * (1 + 1e-12)


def test_a_price_of_halves_is_in_the_bound():
    """Where B takes less than I + W, an order with whole backwards may win, and the bound holds for it too."""
    costs = Costs(forward=1, backward=2, input_grad=2, weight_grad=2)
    best = quiet(4, 8, costs, 4)
    assert_sound(best, costs)
    assert best.makespan <= 33  # 1F1B
    assert best.lower_bound <= 33
    assert lower_bound(4, 8, costs) <= lower_bound(4, 8, costs, split_backward=False) == 33


@pytest.mark.parametrize("scale", [1e-6, 1, 3e5])
def test_ticks_round_down_and_by_little(scale):
    """Rounded up, a bound on the ticks would be none on the times."""
    costs = Costs(
        *(([scale * n for n in side] if side else None) for side in ([0.91, 1.07], None, [1.1, 0.3], [0.77, 0.6]))
    )
    asked = problem(2, 4, replace(costs, transfer=scale * 0.123456789), None, True, None)
    ticks = Ticks.of(asked, longest=20 * scale)
    for step in asked.steps:
        true = asked.duration(step)
        assert -1e-12 <= 1 - ticks.asked.duration(step) / ticks.per_unit / true <= 1e-6
    assert ticks.asked.costs.transfer == int(ticks.asked.costs.transfer)
    assert -1e-12 <= 1 - ticks.asked.costs.transfer / ticks.per_unit / asked.costs.transfer <= 1e-6


def test_decimal_costs_are_whole_numbers_of_ticks():
    asked = problem(2, 4, Costs(0.3, None, 0.6, 0.9, transfer=0.1), None, True, None)
    ticks = Ticks.of(asked, 11.7)
    assert [ticks.asked.duration((0, kind)) for kind in (F, I, W)] == [3, 6, 9]
    assert (ticks.asked.costs.transfer, ticks.per_unit) == (1, 10)


def test_the_bound_needs_no_solver(fresh_python):
    code = (
        "import sys; sys.modules['ortools'] = None\nfrom ppedu.optimizer import lower_bound\nprint(lower_bound(4, 8))"
    )
    assert fresh_python(code) == "19.0\n"


# limits and other arguments


@pytest.mark.parametrize(
    ("limit", "placement", "least"),
    [
        (0, None, "memory_limit allows 0. The least that works is memory_limit=1"),
        ((1, 1, 0, 1), None, "rank 2 keeps 1 activation there, but memory_limit allows 0"),
        (
            1,
            (0, 1, 2, 3, 3, 2, 1, 0),
            "through the 2 stages of rank 0 keeps 2 activations .* least .* is memory_limit=2$",
        ),
        ((1, 1, 1, 1), (0, 1, 2, 3, 1), r"least that works is memory_limit=\(1, 2, 1, 1\)"),
        ((4, 4), None, "2 numbers for p=4 ranks"),
    ],
)
def test_a_limit_that_nothing_keeps_is_refused(limit, placement, least):
    with pytest.raises(ValueError, match=least):
        optimize(4, 8, memory_limit=limit, rank_of_stage=placement)
    with pytest.raises(ValueError, match=least):
        lower_bound(4, 8, memory_limit=limit, rank_of_stage=placement)


@pytest.mark.parametrize("placement", [(0, 1, 2, 3), (0, 1, 2, 3, 3, 2, 1, 0), (0, 1, 2, 3, 1)])
def test_the_least_limit_works(placement):
    limits = tuple(map(placement.count, range(4)))
    best = quiet(4, 3, uneven(len(placement)), limits, rank_of_stage=placement, time_limit=1)
    assert_sound(best, uneven(len(placement)))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"p": 0}, ValueError, "p is the number of ranks, a whole number of at least 1: p=0"),
        ({"m": 2.5}, ValueError, "m is the number of microbatches, a whole number of at least 1: m=2.5"),
        ({"costs": 3}, TypeError, "costs is ppedu.Costs"),
        ({"costs": Costs([1, 2, 3])}, ValueError, "costs are given for 3 stages, but .* has 4"),
        ({"memory_limit": 2.5}, TypeError, "a whole number for all ranks, or one a rank, or None: memory_limit=2.5"),
        ({"split_backward": "no"}, TypeError, "split_backward is True"),
        ({"rank_of_stage": (0, 1, 2)}, ValueError, r"rank_of_stage=\(0, 1, 2\) with p=4"),
        ({"rank_of_stage": "v"}, TypeError, "rank_of_stage holds a rank for each stage"),
        ({"time_limit": 0}, ValueError, "above 0: time_limit=0"),
        ({"progress": 1}, TypeError, "progress is True, False or a function"),
        ({"seed": -1}, ValueError, "seed is a whole number from 0"),
        ({"workers": 0}, ValueError, "at least 1: workers=0"),
    ],
)
def test_mistakes_are_explained(arguments, error, says):
    with pytest.raises(error, match=says):
        optimize(**{"p": 4, "m": 8, **arguments})


def test_without_a_solver_it_says_how_to_get_one(fresh_python):
    code = """
import sys
sys.modules["ortools"] = None
from ppedu.optimizer import optimize
try:
    optimize(4, 8)
except ImportError as error:
    print(error)
"""
    assert 'Install it: pip install "ortools>=' in fresh_python(code)


def test_the_solver_is_loaded_on_use_only(fresh_python):
    assert fresh_python("import sys, ppedu.optimizer\nprint('ortools' in sys.modules)") == "False\n"


# an order of one's own


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_result_is_never_worse_than_the_start(seed):
    """An order for these costs and limits that no rule makes: no time to search is time enough not to lose it."""
    costs = uneven(4)
    found = quiet(4, 8, costs, 4, time_limit=3)
    numbers = random.Random(seed).sample(range(8), 8)  # the same order, its microbatches named otherwise
    renamed = [[Action(a.stage, a.kind, numbers[a.microbatch]) for a in order] for order in found.schedule.orders]
    own = replace(found.schedule, name="own", orders=tuple(map(tuple, renamed)))
    again = quiet(4, 8, costs, 4, start=own, time_limit=0.05)
    assert_sound(again, costs)
    assert again.makespan <= found.makespan == simulate(own, costs).makespan
    assert quiet(4, 8, costs, 4, time_limit=0.05).makespan > found.makespan  # so it is the start that made it


def test_the_solver_starts_from_it():
    """In the ticks of the search, with hardly any time, it finds what it was given, under its own numbers."""
    costs = uneven(4)
    own = quiet(4, 8, costs, 4, time_limit=3).schedule
    mirrored = [[Action(a.stage, a.kind, 7 - a.microbatch) for a in order] for order in own.orders]
    start = replace(own, orders=tuple(map(tuple, mirrored)))
    asked = problem(4, 8, costs, 4, True, None)
    order, _ = search(
        Ticks.of(asked, simulate(own, costs).makespan), start, seconds=2, seed=0, workers=1, tell=lambda *_: None
    )
    assert simulate(order, costs).makespan <= simulate(own, costs).makespan * (1 + LAST)


@pytest.mark.parametrize(("split", "best"), [(True, 27), (False, 33)])
def test_a_worse_start_does_no_harm(split, best):
    assert quiet(4, 8, HALVES, 4, split_backward=split, start=naive(4, 8)).makespan == best


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (one_f_one_b(4, 7), "it has p=4 ranks and m=7 microbatches, and p=4 and m=8 are asked for"),
        (one_f_one_b(2, 8), "it has p=2 ranks and m=8 microbatches"),
        (gpipe(4, 8), "its ranks have 8 8 8 8 in flight, and memory_limit allows 4 4 4 4"),
        (forward_only(4, 8), "it has no backward"),
        (dualpipe(4, 8), "it has 2 chains of stages, and one is searched"),
        (zb_v(4, 8), r"its rank_of_stage is \(0, 1, 2, 3, 3, 2, 1, 0\), and \(0, 1, 2, 3\) is asked for"),
        (
            Schedule.from_text("\n".join(["F0 F1&B0 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"] * 4)),
            "it runs F1&B0 as one",
        ),
        (zb_h1(4, 8), "it splits backwards into I and W, and split_backward is False"),
        (Schedule.from_text("\n".join(["F0 B0 F1 F2 B1 B2 F3 B3 F4 B4 F5 B5 F6 F7 B7"] * 4)), "never runs B6"),
        (
            Schedule.from_text(
                "\n".join(
                    ["F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"] * 3
                    + ["F1 B1 F0 B0 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"]
                )
            ),
            "rank 2 waits at B0",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Schedule) else "",
)
def test_a_start_that_is_no_answer_is_refused(start, says):
    with pytest.raises(ValueError, match=f"start is no answer to what is asked for: .*{says}"):
        optimize(4, 8, memory_limit=4, split_backward=False, start=start)


def test_a_start_is_a_schedule():
    with pytest.raises(TypeError, match=r"start is a schedule, .* start='1f1b'"):
        optimize(4, 8, start="1f1b")


# rules of thumb


@settings(max_examples=40)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 4), st.sampled_from(["", "V", "rounds"]), st.booleans())
def test_rules_of_thumb_are_legal_and_keep_the_limit(p, m, more, placement, split):
    ranks = (*range(p),)
    where = {"": ranks, "V": ranks + ranks[::-1], "rounds": ranks * 2}[placement]
    asked = problem(p, m, uneven(len(where)), more + len(where) // p, split, where)
    made = list(greedy(asked))
    assert made or placement
    for schedule in (*made, one_by_one(asked)):
        assert violations(schedule) == ()
        assert sum(map(len, schedule.orders)) == m * len(where) * (3 if split else 2)
        peaks = simulate(schedule, asked.costs).peak_in_flight
        assert peaks == schedule.peak_in_flight
        assert max(peaks) <= asked.limits[0]


@settings(max_examples=60)
@given(legal_schedules())
def test_in_flight_is_that_of_the_order_whatever_the_costs(schedule):
    for seed in (1, 2):
        assert simulate(schedule, uneven(schedule.num_stages, seed)).peak_in_flight == schedule.peak_in_flight


# steps that take no time, and times far apart


@pytest.mark.parametrize(
    "costs",
    [
        Costs(0, None, 0, 0),
        Costs([0, 1, 0], None, [1, 0, 0], [0, 0, 1]),
        Costs(1e-9, None, 1, 0, transfer=0.5),
        Costs(1e-9, None, 1e-12, 1e-9),
        Costs(1e9, None, 1e9, 2e9, transfer=1e7),
    ],
    ids=str,
)
@pytest.mark.parametrize("limit", [1, 2, None])
def test_strange_costs(costs, limit):
    assert_sound(quiet(3, 4, costs, limit, time_limit=2), costs)


# what it tells


@pytest.mark.slow
def test_progress_is_told_and_only_gets_better():
    told = []
    costs = uneven(4)
    best = quiet(4, 8, costs, 4, progress=lambda *now: told.append(now))
    seconds, makespans, bounds = zip(*told, strict=True)
    assert list(seconds) == sorted(seconds)
    assert list(makespans) == sorted(makespans, reverse=True)
    assert list(bounds) == sorted(bounds)
    assert (makespans[0], makespans[-1], bounds[-1]) == (best.best_builtin[1], best.makespan, best.lower_bound)
    assert makespans[-1] < makespans[0]


def test_a_bar_is_shown_and_removed(capfd):
    quiet(4, 8, uneven(4), 4, progress=True)
    shown = capfd.readouterr()
    assert "optimized p=4 m=8" in shown.err
    assert shown.out == ""


def test_an_error_in_the_callers_function_ends_the_search():
    calls = []

    def tell(*now):
        calls.append(now)
        if len(calls) == 2:
            raise LookupError("enough")

    began = time.perf_counter()
    with pytest.raises(LookupError, match="enough"):
        quiet(8, 16, uneven(8), 4, progress=tell, time_limit=60)
    assert time.perf_counter() - began < 20


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_ends_it_at_once(root):
    """A search of a minute is interrupted as soon as it has begun."""
    pytest.importorskip("ortools.sat.python.cp_model")
    code = """
import sys; sys.path[:0] = ["tests/core", "tests/helpers"]
from test_optimize import optimize, uneven
try:
    optimize(16, 32, uneven(16), 8, time_limit=60, progress=lambda *now: print("now", flush=True), workers=2)
except KeyboardInterrupt:
    print("interrupted")
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=root) as process:
        try:
            assert process.stdout.readline() == "now\n"
            time.sleep(1.5)
            process.send_signal(signal.SIGINT)
            began = time.perf_counter()
            out, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert out.endswith("interrupted\n")
    assert process.returncode == 0
    assert time.perf_counter() - began < 10


def test_one_worker_and_one_seed_give_one_order():
    costs = uneven(3)
    one, two = (quiet(3, 4, costs, 2, workers=1, seed=7) for _ in range(2))
    assert one.optimal
    assert one.schedule == two.schedule
    assert one.lower_bound == two.lower_bound


def test_the_result_reads_well():
    best = quiet(4, 8, HALVES, 4)
    assert repr(best) == "ZB-H1 p=4 m=8: makespan 27, no order takes less; best built-in zb_h1 27, in flight 4 4 4 4"
    lines = str(best).splitlines()
    assert lines[0].startswith("ZB-H1 p=4 m=8, at most in flight: 4 4 4 4; ")
    assert lines[-1] == best.timeline.provenance == "predicted, F=1 I=1 W=1"
    assert [" ".join(line.split()) for line in lines[1:-1]] == [
        "found 27 ZB-H1, in flight 4 4 4 4",
        "best built-in 27 zb_h1",
        "lower bound 27 no order takes less",
    ]
    again = pickle.loads(pickle.dumps(best))
    assert (again.schedule, again.makespan, again.gap) == (best.schedule, 27, 0)


@pytest.mark.slow
def test_a_large_problem_starts_from_a_rule_if_there_is_time():
    """16 ranks, 256 microbatches, room for 8: of the built-ins naive alone fits, at 8 times what the rules reach."""
    asked = problem(16, 256, Costs(1, input_grad=1.1, weight_grad=0.7), 8, True, None)
    assert list(greedy(asked, until=0.0)) == []
    best = min(simulate(order, asked.costs).makespan for order in greedy(asked))
    assert best < 1300
    assert simulate(one_by_one(asked), asked.costs).makespan > 8000
    small = replace(asked, m=8)
    assert len(list(greedy(small, until=0.0))) == len(list(greedy(small))) > 0


def test_nanoseconds_are_not_rounded_to_nothing():
    timeline = simulate(one_f_one_b(2, 2), Costs(1e-9, 1e-9, unit="s"))
    assert "makespan 6e-06 ms, no order" in repr(Optimized(timeline.schedule, timeline, 6e-9, None, None, 0.0))


def test_what_is_open_is_said():
    timeline = simulate(one_f_one_b(4, 8), Costs(1, 1, unit="s"))
    best = Optimized(timeline.schedule, timeline, 11.0, None, (4, 4, 4, 4), 2.0)
    assert (best.gap, best.optimal) == (0.5, False)
    assert "none takes less than 11 s (gap 50.0 %); no built-in fits" in repr(best)
    assert "best built-in" not in str(best)
