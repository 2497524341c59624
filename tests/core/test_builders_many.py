"""Every builder over wide ranges of p, m and v: legal, complete, in the memory and in the time that its paper gives.

The counts here are taken from the orders themselves, by a few lines of their own.
"""

from __future__ import annotations

import csv
import time
from collections import Counter
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orders import GOLDEN, B, F, I, W, dualpipe, dualpipe_v, golden

from ppedu.core.costs import Costs
from ppedu.core.operations import Action, Overlap
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.core.validate import violations
from ppedu.schedules import SCHEDULES, gpipe, interleaved, looped_bfs, one_f_one_b, zb_h1, zb_h2, zb_v
from ppedu.schedules import dualpipe as build_dualpipe
from ppedu.schedules import dualpipev as build_dualpipev

pytestmark = pytest.mark.slow  # every schedule, over a wide range of p and m

OLD = ("naive", "gpipe", "1f1b")
NEW = ("interleaved", "looped_bfs", "zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipev")
RING, VEE = ("interleaved", "looped_bfs"), ("zb_v", "dualpipe", "dualpipev")


@st.composite
def built(draw: st.DrawFn, names: tuple[str, ...] = tuple(SCHEDULES)) -> tuple[str, int, int, int, Schedule]:
    """(name, p, m, v, schedule); m < p and p = 1 included."""
    name = draw(st.sampled_from(names))
    p, m, v = draw(st.integers(1, 12)), draw(st.integers(1, 40)), draw(st.integers(1, 4))
    p += name == "dualpipe" and p % 2
    more = {"v": v} if name in RING else {}
    return name, p, m, v, SCHEDULES[name](p=p, m=m, **more)


def actions_of(schedule: Schedule, rank: int) -> list[Action]:
    return [a for entry in schedule.orders[rank] for a in entry.actions]


def most_kept(schedule: Schedule, rank: int) -> int:
    """Forwards without their B or W, at the worst: a pair holds what it makes beside what it frees."""
    kept = most = 0
    for entry in schedule.orders[rank]:
        kept += sum(a.kind is F for a in entry.actions)
        most = max(most, kept)
        kept -= sum(a.kind in (B, W) for a in entry.actions)
    return most


def own_spans(timeline) -> list[float]:
    """For each rank, from the start of its first operation to the end of its last."""
    spans = [timeline.spans_of(rank) for rank in range(timeline.schedule.num_ranks)]
    return [mine[-1].end - mine[0].start for mine in spans]


# legal and complete


@given(built())
@settings(max_examples=400)
def test_every_order_is_legal_and_complete(one):
    name, p, m, v, schedule = one
    assert violations(schedule) == ()
    assert (schedule.num_ranks, schedule.num_microbatches) == (p, m)
    assert schedule.chains == (2 if name == "dualpipe" else 1)
    there = Counter((a.stage, a.microbatch) for rank in range(p) for a in actions_of(schedule, rank) if a.kind is F)
    stages = schedule.num_stages
    if name in (*OLD, *NEW):
        assert stages == {"zb_v": 2 * p, "dualpipev": 2 * p, "dualpipe": 2 * p}.get(name, p * v if name in RING else p)
    assert set(there.values()) == {1}
    assert sum(there.values()) == m * stages // schedule.chains
    halves = Counter(a.kind for rank in range(p) for a in actions_of(schedule, rank))
    assert halves[B] + halves[I] == halves[B] + halves[W] == halves[F]


@given(built(NEW))
def test_stages_stand_where_the_papers_put_them(one):
    name, p, _, v, schedule = one
    if name in RING:
        assert schedule.rank_of_stage == tuple(stage % p for stage in range(p * v))
    elif name in VEE:
        assert schedule.rank_of_stage == tuple(min(stage, 2 * p - 1 - stage) for stage in range(2 * p))
    else:
        assert schedule.rank_of_stage == tuple(range(p))


@given(built((*OLD, *NEW)))
@settings(max_examples=200)
def test_forwards_of_a_stage_come_in_order_and_so_do_its_backwards(one):
    """No rank asks for a microbatch out of turn; looped BFS alone goes back in reverse."""
    name, p, _, _, schedule = one
    for rank in range(p):
        orders: dict[tuple[int, bool], list[int]] = {}
        for a in actions_of(schedule, rank):
            if a.kind is not W:
                orders.setdefault((a.stage, a.kind is F), []).append(a.microbatch)
        for (_, forward), microbatches in orders.items():
            assert microbatches == sorted(microbatches, reverse=name == "looped_bfs" and not forward)


def test_the_orders_that_the_papers_print():
    assert interleaved(p=4, m=8, v=2).orders == golden("interleaved_p4_m8_v2").orders
    assert looped_bfs(p=4, m=8, v=2).orders == golden("looped_bfs_p4_m8_v2").orders
    assert zb_h1(p=4, m=8).orders == golden("zbh1_p4_m8").orders
    assert zb_h2(p=4, m=8).orders == golden("zbh2_p4_m8").orders
    assert zb_v(p=4, m=8).orders == golden("zbv_p4_m8").orders
    for found, printed in ((build_dualpipe(4, 8), dualpipe()), (build_dualpipev(4, 10), dualpipe_v())):
        assert found.orders == printed.orders
        assert (found.chains, found.rank_of_stage) == (printed.chains, printed.rank_of_stage)


# what they become where they differ in nothing


@given(st.integers(1, 12), st.integers(1, 40))
def test_one_stage_on_each_rank_is_the_plain_schedule(p, m):
    assert interleaved(p=p, m=m, v=1).orders == one_f_one_b(p=p, m=m).orders
    for bfs, plain in zip(looped_bfs(p=p, m=m, v=1).orders, gpipe(p=p, m=m).orders, strict=True):
        assert bfs == (*plain[:m], *reversed(plain[m:]))


@given(st.integers(1, 12), st.integers(1, 40))
def test_zb_h1_is_1f1b_with_w_put_off(p, m):
    """Zero Bubble, section 2.1: it follows 1F1B, and only where W's start differs."""
    for order, plain in zip(zb_h1(p=p, m=m).orders, one_f_one_b(p=p, m=m).orders, strict=True):
        assert [Action(a.stage, B if a.kind is I else a.kind, a.microbatch) for a in order if a.kind is not W] == list(
            plain
        )


@given(st.integers(1, 12), st.integers(1, 40))
def test_zb_h2_fills_with_more_forwards(p, m):
    """Zero Bubble, figure 3: 2(p - 1 - i) forwards before the first F-I pair, and W's at the end."""
    for rank, order in enumerate(zb_h2(p=p, m=m).orders):
        runs = [(kind, len(list(some))) for kind, some in groupby(a.kind for a in order)]
        assert runs[0] == (F, min(2 * (p - 1 - rank) + 1, m))
        assert runs[-1][0] is W


@given(st.integers(1, 6), st.integers(1, 8))
def test_half_a_dualpipe_is_a_dualpipev(half, more):
    """ "Cut in half": the first ranks of DualPipe run DualPipeV's order on half as many, with the other end's stages."""
    p, n = 2 * half, 2 * half + more
    both, cut = build_dualpipe(p=p, m=2 * n), build_dualpipev(p=half, m=n)

    def moved(a: Action) -> Action:
        if a.stage < half:
            return a
        return Action(2 * p - 1 - (2 * half - 1 - a.stage), a.kind, a.microbatch + n)

    for rank in range(half):
        entries = [Overlap(*map(moved, e.actions)) if isinstance(e, Overlap) else moved(e) for e in cut.orders[rank]]
        assert list(both.orders[rank]) == entries


@given(st.sampled_from(range(2, 13, 2)), st.integers(1, 20))
def test_dualpipe_is_its_own_mirror_image(p, half):
    """With as many microbatches from each end, rank p - 1 - i does for one chain what rank i does for the other."""
    orders = build_dualpipe(p=p, m=2 * half).orders

    def mirrored(a: Action) -> Action:
        return Action((a.stage + p) % (2 * p), a.kind, (a.microbatch + half) % (2 * half))

    for order, other in zip(orders, reversed(orders), strict=True):
        assert [tuple(map(mirrored, e.actions)) for e in order] == [e.actions for e in other]


# memory


@given(built(NEW))
@settings(max_examples=300)
def test_memory_stays_within_what_the_papers_promise(one):
    """Megatron-LM, 2.2; Lamy-Poirier; Zero Bubble, table 2; DualPipe's README: PP + 1 activations."""
    name, p, m, v, schedule = one
    kept = [most_kept(schedule, rank) for rank in range(p)]
    rounds = -(-m // max(1, m // p))
    most = {
        "interleaved": (2 if v > 1 else 1) * (p - 1) + (v - 1) * rounds + 1,
        "looped_bfs": m * v,
        "zb_h1": p,
        "zb_h2": 2 * p - 1,
        "zb_v": 2 * p,
        "dualpipe": p + 1,
        "dualpipev": 2 * p + 1,
    }[name]
    assert max(kept) <= most
    assert kept == list(simulate(schedule).peak_in_flight)
    if m >= 2 * p:
        assert max(kept) == most
        if name in ("zb_h1", "zb_h2", *VEE):
            assert set(kept) == {most}  # it is the same on every rank


# time


@given(st.integers(1, 12), st.integers(0, 28), st.integers(1, 4), st.sampled_from([1, 2, 0.5]))
@settings(max_examples=300)
def test_rounds_of_unequal_size_cost_interleaving_nothing(p, more, v, backward):
    """m v + p - 1 times F + B of a stage for every m >= p, whether p divides m or not. Megatron-LM (2.2.2) has it for
    the m that p divides. Nothing in a ring is shorter: the last rank starts p - 1 forwards late and ends as much early."""
    m = p + more
    timeline = simulate(interleaved(p=p, m=m, v=v), Costs(backward=backward))
    assert timeline.makespan == (m * v + p - 1) * (1 + backward)


@pytest.mark.parametrize("row", list(csv.DictReader((GOLDEN / "zb_table5.csv").read_text("utf-8").splitlines())), ids=lambda row: f"p={row['p']} m={row['m']}")  # fmt: skip
@pytest.mark.parametrize("column", ["1f1b", "zb_h1", "zb_h2"])
def test_bubble_rates_that_were_published(row, column):
    """Zero Bubble, ICLR'24, table 5, to all four decimals; ZB-H2 by the longest rank's own span, as its authors count."""
    p, m, f, i, w, transfer = (int(row[key]) for key in ("p", "m", "F", "I", "W", "transfer"))
    timeline = simulate(SCHEDULES[column](p=p, m=m), Costs(f, input_grad=i, weight_grad=w, transfer=transfer))
    whole = max(own_spans(timeline)) if column == "zb_h2" else timeline.makespan
    assert round((whole - m * (f + i + w)) / whole, 4) == float(row[f"bubble_{column}"])


@given(st.integers(1, 12), st.integers(1, 40))
def test_zero_bubble_has_none_where_it_says_so(p, m):
    """F = I = W: every rank of ZB-H2 and ZB-V works from its first operation to its last, from 2p - 1 microbatches on."""
    equal = Costs(forward=1, input_grad=1, weight_grad=1)
    for build, stages in ((zb_h2, 1), (zb_v, 2)):
        spans = own_spans(simulate(build(p=p, m=m), equal))
        assert (spans == [3 * m * stages] * p) == (m >= 2 * p - 1)


# numbers that make no sense


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize(
    ("p", "m", "says"),
    [
        (0, 2, "p is the number of ranks, a whole number of at least 1: p=0"),
        (2, 0, "m is the number of microbatches, a whole number of at least 1: m=0"),
        (2.0, 2, "p=2.0"),
        (2, True, "m=True"),
        (2, "4", "m='4'"),
    ],
)
def test_impossible_numbers_get_a_sentence(name, p, m, says):
    with pytest.raises(ValueError, match=says):
        SCHEDULES[name](p=p, m=m)


@pytest.mark.parametrize("name", RING)
@pytest.mark.parametrize("v", [0, -2, 1.5, True, None])
def test_an_impossible_v_gets_a_sentence(name, v):
    with pytest.raises(
        ValueError, match=f"v is the number of stages on each rank, a whole number of at least 1: v={v}"
    ):
        SCHEDULES[name](p=2, m=2, v=v)


@pytest.mark.parametrize(("p", "nearest"), [(1, "Take p=2, or dualpipev"), (3, "Take p=4 or p=2, or dualpipev"), (11, "Take p=12 or p=10")])  # fmt: skip
def test_dualpipe_on_an_odd_number_of_ranks_says_which_are_near(p, nearest):
    with pytest.raises(ValueError, match=f"p is even: p={p}. {nearest}"):
        build_dualpipe(p=p, m=8)


@pytest.mark.timing
@pytest.mark.parametrize("name", SCHEDULES)
def test_large_orders_are_written_fast(name):
    """p=64, m=1024: 131,072 to 393,216 operations, under two seconds of processor time, and legal."""
    start = time.process_time()
    schedule = SCHEDULES[name](p=64, m=1024)
    assert time.process_time() - start < 2.0
    assert violations(schedule) == ()


@pytest.mark.parametrize("name", SCHEDULES)
def test_numbers_of_numpy_are_numbers(name):
    """And leave no trace in the schedule, which JSON has to take."""
    np = pytest.importorskip("numpy")
    made = SCHEDULES[name](np.int64(4), np.int32(8))
    assert made == SCHEDULES[name](4, 8)
    numbers = {
        type(number)
        for order in made.orders
        for entry in order
        for a in entry.actions
        for number in (a.stage, a.microbatch)
    }
    assert numbers | {type(made.num_microbatches)} == {int}
    with pytest.raises(ValueError, match="m is the number of microbatches"):
        SCHEDULES[name](4, np.float64(8))
