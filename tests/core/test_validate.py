"""Legal orders pass, every other is refused with the reason: which rank, which operation, what it needs."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from orders import B, F, I, dualpipe, dualpipe_v, golden, legal_schedules, rules

from ppedu.core import validate
from ppedu.core.operations import Action, Kind, Overlap, ScheduleError
from ppedu.core.schedule import Schedule
from ppedu.core.validate import check, violations
from ppedu.schedules import gpipe, one_f_one_b

LITERATURE = [
    "gpipe_p4_m8",
    "1f1b_p4_m8",
    "1f1b_p4_m2",
    "interleaved_p4_m8_v2",
    "looped_bfs_p4_m8_v2",
    "zbh1_p4_m8",
    "zbh2_p4_m8",
    "zbv_p4_m8",
]


def faults(text: str, **more: object) -> list[tuple[str, str]]:
    schedule = replace(Schedule.from_text(text), **more)
    return [(v.rule, v.message) for v in violations(schedule)]


def test_check_lives_with_the_error_that_it_raises():
    assert validate.ScheduleError is ScheduleError


@pytest.mark.parametrize("name", LITERATURE)
def test_the_literature_is_legal(name):
    assert violations(golden(name)) == ()


@pytest.mark.parametrize("schedule", [dualpipe(), dualpipe_v()], ids=str)
def test_overlapped_pairs_and_two_chains_are_legal(schedule):
    assert violations(schedule) == ()


def test_a_rank_may_have_nothing_to_run():
    assert violations(Schedule("idle", 1, (0,), ((Action(0, F, 0),), ()))) == ()


# one fault, one sentence


@pytest.mark.parametrize(
    ("text", "rule", "message"),
    [
        # torch.distributed.pipelining 2.13 accepts this one
        (
            "F0 F0 B0\nF0 B0",
            "duplicate",
            "rank 0 runs F0 twice, as number 1 and as number 2 of its order: each operation runs once, remove one",
        ),
        # a simulator that forgets a stage's own forward accepts this one
        ("F0 B0\nB0 F0", "B before F", "rank 1 runs B0 before F0, whose result it needs: run F0 first"),
        ("F0 I0 W0\nF0 W0 I0", "W before I", "rank 1 runs W0 before I0, whose result it needs: run I0 first"),
        ("I0 F0 W0", "I before F", "rank 0 runs I0 before F0, whose result it needs: run F0 first"),
        ("F0&B0", "B before F", "rank 0 overlaps F0 with B0, which needs its result: run F0 first"),
        ("F0 F1 B0 B1\nF0 B0 B1", "backward without forward", "rank 1 runs B1 but never F1, whose activations it needs: put F1 before it"),
        ("F0 F1\nF0", "missing", "rank 1 never runs F1: every microbatch passes every stage (m=2)"),
        ("F0 F1 F2 F3\nF0", "missing", "rank 1 never runs F1 to F3: every microbatch passes every stage (m=4)"),
        ("F0 F1 B0 B1\nF0 F1 B0", "missing", "rank 1 never runs B1: where one has a backward, every other needs it too (m=2)"),
        ("F0 I0 W0\nF0 I0", "I without W", "rank 1 runs I0 but never W0, so its weights get no gradient: put W0 after it, or run B0 in its place"),
        ("F0 F1 B0 W1", "W without I", "rank 0 runs W1 but never I1, whose work it finishes: put I1 before it, or run B1 in its place"),
        ("F0 I0 B0 W0", "B beside I or W", "rank 0 runs B0 and I0: B is I and W in one. Run either B0, or I0 and W0"),
        ("F0 F1&W0 I0 W1 I1", "pair", "rank 0 overlaps (0F1;0W0)OVERLAP_F_B: a pair is an F and a B (or an I), in this order. Run these two apart"),
    ],
)  # fmt: skip
def test_one_fault_one_sentence(text, rule, message):
    found = faults(text)
    assert (rule, message) in found
    assert len(found) == 1 or rule == "pair"


def test_out_of_range_stage_is_named():
    """torch.distributed.pipelining 2.13 says KeyError: 2."""
    schedule = Schedule("typo", 1, (0, 1), ((Action(0, F, 0), Action(0, B, 0)), (Action(1, F, 0), Action(2, B, 0))))
    assert [(v.rule, v.rank, v.action, v.message) for v in violations(schedule)] == [
        ("unknown stage", 1, Action(2, B, 0), "rank 1 runs 2B0, but there is no stage 2: stages run from 0 to 1"),
        (
            "missing",
            1,
            Action(1, B, 0),
            "rank 1 never runs B0: where one has a backward, every other needs it too (m=1)",
        ),
    ]


def test_out_of_range_microbatch_is_named():
    assert faults("F0 F1 F2", num_microbatches=2) == [
        ("unknown microbatch", "rank 0 runs 0F2, but there is no microbatch 2: with m=2 they run from 0 to 1")
    ]


def test_microbatch_of_the_other_chain_is_named():
    schedule = Schedule.from_csv("0F0,1F1,0F1", chains=2)
    assert [(v.rule, v.message) for v in violations(schedule)] == [
        (
            "unknown microbatch",
            "rank 0 runs 0F1, but through stage 0, of one of 2 chains, only microbatches 0 to 0 pass",
        )
    ]


def test_wrong_rank_is_named_and_not_reported_as_missing_too():
    assert faults("0F0 1F0\n0B0 1B0", rank_of_stage=(0, 1)) == [
        ("wrong rank", "rank 0 runs 1F0, but stage 1 is on rank 1: move it there"),
        ("wrong rank", "rank 1 runs 0B0, but stage 0 is on rank 0: move it there"),
    ]


@pytest.mark.parametrize(
    ("schedule", "rule", "says"),
    [
        (Schedule("x", 1, (), ()), "ranks", "there is no rank"),
        (Schedule("x", 0, (0,), ((),)), "microbatches", "at least one microbatch, but m=0"),
        (Schedule("x", 1, (), ((),)), "stages", "there is no stage"),
        (Schedule("x", 1, (0, 0, 0), ((),), 2), "chains", "3 stages do not make 2 chains of one length"),
        (Schedule("x", 1, (0,), ((),), 0), "chains", "1 stages do not make 0 chains"),
        (Schedule.from_text("0F0 0B0", chains="2"), "chains", "1 stages do not make '2' chains"),
        (Schedule.from_text("0F0 0B0", chains=1.0), "chains", "1 stages do not make 1.0 chains"),
        (Schedule("x", 1, (0, 2), ((), ())), "placement", "stage 1 is placed on rank 2, but there are 2 orders, of ranks 0 to 1"),
        (Schedule("x", 1, (0, -1), ((), ())), "placement", "stage 1 is placed on rank -1"),
    ],
)  # fmt: skip
def test_a_frame_that_holds_no_schedule(schedule, rule, says):
    found = {v.rule: v.message for v in violations(schedule)}
    assert says in found[rule]


# orders that wait for each other


def test_the_circle_is_spelled_out():
    text = """
        F0 F1 F2 F3 B0 B1 B2 B3
        F0 F1 F2 B0 F3 B1 B2 B3
        F0 F3 F1 B0 F2 B1 B2 B3
        F0 B0 F1 B1 F2 B2 F3 B3
    """
    (found,) = violations(Schedule.from_text(text))
    assert found.message == (
        "rank 1 waits at B0 for rank 2's B0, which waits behind F3, which waits for rank 1's F3, which waits behind B0. "
        "To break the circle, run B0 before F3 on rank 2, or F3 before B0 on rank 1"
    )
    assert (found.rule, found.rank, found.action, found.needs) == ("deadlock", 1, Action(1, B, 0), Action(2, B, 0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1F0 0F0", "rank 0 waits at 1F0 for its own 0F0, which waits behind 1F0. To break the circle, run 0F0 before 1F0 on rank 0"),
        (
            "F0 F1 B1 F2 B0 B2\nF0 B0 F1 F2 B1 B2",
            "rank 0 waits at B1 for rank 1's B1, which waits behind F2, which waits for rank 0's F2, which waits behind B1. "
            "To break the circle, run B1 before F2 on rank 1, or F2 before B1 on rank 0",
        ),
        (
            "F0 F1&B0 B1\nF0 F1&B0 B1",
            "rank 0 waits at F1&B0 for rank 1's B0, which is part of F1&B0, which waits for rank 0's F1, which is part of F1&B0. "
            "To break the circle, run B0 apart from F1&B0 on rank 1, or F1 apart from F1&B0 on rank 0",
        ),
        # the gradient comes up rank by rank, and meets a rank that waits at another one
        (
            "F0 F1 F2 B0 B1 B2\nF0 F1 B1 F2 B0 B2\nF0 F1 F2 B1 B0 B2",
            "rank 1 waits at B1 for rank 2's B1, which waits behind F2, which waits for rank 1's F2, which waits behind B1. "
            "To break the circle, run B1 before F2 on rank 2, or F2 before B1 on rank 1",
        ),
        (
            "F0 B0 F1 B1\nF1 F0 B0 B1",
            "rank 0 waits at B0 for rank 1's B0, which waits behind F1, which waits for rank 0's F1, which waits behind B0. "
            "To break the circle, run B0 before F1 on rank 1, or F1 before B0 on rank 0",
        ),
        # no advice that cannot be followed: 3F0 needs 1F0, so it cannot go before it
        (
            "4F0 0F0 2F0\n1F0 3F0",
            "rank 0 waits at 4F0 for rank 1's 3F0, which waits behind 1F0, which waits for rank 0's 0F0, which waits behind 4F0. "
            "To break the circle, run 0F0 before 4F0 on rank 0",
        ),
    ],
)  # fmt: skip
def test_circles(text, message):
    assert faults(text) == [("deadlock", message)]


def test_each_circle_is_told_once_and_ranks_behind_it_not_at_all():
    """Two chains that share no rank: ranks 1 and 2 wait for each other, rank 0 behind them; and so do ranks 4 and 5."""
    text = """
        0F0 0F1 0B0 0B1
        1F0 1B0 1F1 1B1
        2F0 2F1 2B0 2B1
        3F2 3F3 3B2 3B3
        4F2 4B2 4F3 4B3
        5F2 5F3 5B2 5B3
    """
    schedule = Schedule.from_text(text, chains=2)
    assert [(v.rule, v.rank) for v in violations(schedule)] == [("deadlock", 1), ("deadlock", 4)]


def test_long_circles_are_cut_in_the_middle():
    """Two stages a rank, and rank 0 asks for the upper one first: it waits for rank 63, that for rank 62, ..."""
    p = 64
    orders = [(Action(rank, F, 0), Action(p + rank, F, 0)) for rank in range(p)]
    orders[0] = orders[0][::-1]
    (found,) = violations(Schedule("ring", 1, (*range(p), *range(p)), tuple(orders)))
    assert found.message == (
        "rank 0 waits at 64F0 for rank 63's 63F0, which waits for rank 62's 62F0, which waits for rank 61's 61F0, "
        "which waits for rank 60's 60F0, which waits (... 58 more ranks ...) for rank 1's 1F0, "
        "which waits for rank 0's 0F0, which waits behind 64F0. To break the circle, run 0F0 before 64F0 on rank 0"
    )


def test_faults_of_structure_come_before_deadlock():
    assert [rule for rule, _ in faults("1F0 0F0 0F0")] == ["duplicate"]


# the error


def test_check_raises_with_the_first_few_and_the_count():
    check(gpipe(p=2, m=2))
    with pytest.raises(ScheduleError) as caught:
        check(Schedule.from_text("F0 F0 F0 F0 F0 F0 F0 F0 B0", name="mine"))
    lines = str(caught.value).splitlines()
    assert lines[0] == "mine p=1 m=1 cannot run, for 7 reasons:"
    assert len(lines) == 7
    assert lines[-1] == "- and 2 more (the error's `violations` holds all)"
    assert len(caught.value.violations) == 7


def test_check_says_one_reason_in_one_line():
    with pytest.raises(ScheduleError, match=r"^custom p=1 m=1 cannot run: rank 0 runs B0 before F0") as caught:
        check(Schedule.from_text("B0 F0"))
    assert "\n" not in str(caught.value)


def test_a_slip_of_the_keyboard_costs_neither_memory_nor_a_wall_of_text():
    found = faults("F0 F1 F999999999 B0")
    assert [rule for rule, _ in found] == ["missing", "missing"]
    with pytest.raises(ScheduleError) as caught:
        check(replace(gpipe(p=8, m=200), rank_of_stage=(1, 2, 3, 4, 5, 6, 7, 0)))
    assert len(caught.value.violations) == 8 * 400
    assert len(str(caught.value)) < 1000


# any order at all


def finishes(schedule: Schedule) -> bool:
    """Each operation once and on its rank, and a replay that goes round and round gets to the end. Written naively."""
    m, stages, ranks = schedule.num_microbatches, schedule.num_stages, schedule.num_ranks
    length = stages // schedule.chains
    everything = [a for order in schedule.orders for entry in order for a in entry.actions]
    trains = any(a.kind is not F for a in everything)
    for rank, order in enumerate(schedule.orders):
        for entry in order:
            if isinstance(entry, Overlap) and (entry.forward.kind is not F or entry.backward.kind not in (B, I)):
                return False
            if any(not 0 <= a.stage < stages or schedule.rank_of_stage[a.stage] != rank for a in entry.actions):
                return False
    expected = 0
    for stage in range(stages):
        chain = stage // length
        for j in range(m * chain // schedule.chains, m * (chain + 1) // schedule.chains):
            kinds = "".join(sorted(a.kind.value for a in everything if a.stage == stage and a.microbatch == j))
            if kinds not in (("BF", "FIW") if trains else ("F",)):
                return False
            expected += len(kinds)
    if len(everything) != expected:
        return False
    done: set[Action] = set()
    at = [0] * ranks
    while True:
        before = sum(at)
        for rank, order in enumerate(schedule.orders):
            while at[rank] < len(order):
                needed = [some for a in order[at[rank]].actions for some in rules(a, length)]
                if not all(any(n in done for n in some) for some in needed):
                    break
                done.update(order[at[rank]].actions)
                at[rank] += 1
        if sum(at) == before:
            return len(done) == expected


def spoil(schedule: Schedule, chance: random.Random) -> Schedule:
    """One random change: swap, repeat, drop or move an entry, or write another stage, kind or microbatch into it."""
    orders = [list(order) for order in schedule.orders]
    rank = chance.choice([r for r, order in enumerate(orders) if order] or [0])
    order = orders[rank]
    if not order:
        return schedule
    i, j, other = chance.randrange(len(order)), chance.randrange(len(order)), chance.choice(orders)
    how = chance.choice(["swap", "repeat", "drop", "move", "stage", "kind", "microbatch"])
    if how == "swap":
        order[i], order[j] = order[j], order[i]
    elif how == "repeat":
        other.insert(chance.randrange(len(other) + 1), order[i])
    elif how == "drop":
        del order[i]
    elif how == "move":
        entry = order.pop(i)
        other.insert(chance.randrange(len(other) + 1), entry)
    elif isinstance(entry := order[i], Action):
        changes = {
            "stage": chance.randint(-1, schedule.num_stages),
            "kind": chance.choice(list(Kind)),
            "microbatch": chance.randint(-1, schedule.num_microbatches),
        }
        order[i] = replace(entry, **{how: changes[how]})
    return replace(schedule, orders=tuple(map(tuple, orders)))


@given(legal_schedules())
@settings(max_examples=200)
def test_every_legal_order_is_accepted(schedule):
    assert finishes(schedule)
    assert violations(schedule) == ()


@given(legal_schedules(), st.integers(0, 2**32), st.integers(1, 4))
@settings(max_examples=500)
@example(one_f_one_b(p=4, m=4), 1, 1)
@example(golden("zbv_p4_m8"), 2, 1)
def test_an_order_is_refused_if_and_only_if_a_naive_replay_does_not_finish(schedule, seed, changes):
    chance = random.Random(seed)
    for _ in range(changes):
        schedule = spoil(schedule, chance)
    found = violations(schedule)
    assert (found == ()) == finishes(schedule)
    for violation in found:
        assert violation.message
        assert len(violation.message) < 900


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 2**32))
@settings(max_examples=300)
def test_shuffled_orders_of_whole_pipelines(p, m, seed):
    """Every operation is there, so what is wrong can only be the order: too early on its rank, or a circle."""
    chance = random.Random(seed)
    order = [(kind, j) for kind in (F, B) for j in range(m)]
    orders = []
    for rank in range(p):
        mine = chance.sample(order, len(order)) if chance.random() < 0.3 else list(order)
        for _ in range(chance.randint(0, 3)):  # a few neighbours change places
            i = chance.randrange(len(mine) - 1)
            mine[i], mine[i + 1] = mine[i + 1], mine[i]
        orders.append(tuple(Action(rank, kind, j) for kind, j in mine))
    schedule = Schedule("shuffled", m, tuple(range(p)), tuple(orders))
    found = violations(schedule)
    assert (found == ()) == finishes(schedule)
    assert {v.rule for v in found} <= {"B before F", "deadlock"}


@given(legal_schedules(pairs=False), st.integers(0, 2**32))
@settings(max_examples=300)
def test_the_remedy_breaks_the_circle(schedule, seed):
    """Doing what a deadlock's message says makes it go away: that circle is not found again."""
    chance = random.Random(seed)
    orders = [chance.sample(order, len(order)) for order in schedule.orders]
    schedule = replace(schedule, orders=tuple(map(tuple, orders)))
    for found in violations(schedule):
        if found.rule != "deadlock":
            continue
        assert "run " in found.message
        remedy = found.message.partition("To break the circle, run ")[2].split(", or ")[0]
        first, _, rest = remedy.partition(" before ")
        behind, _, rank = rest.partition(" on rank ")
        names = [schedule.short(entry) for entry in orders[int(rank)]]
        moved = orders[int(rank)].pop(names.index(first))
        orders[int(rank)].insert(names.index(behind), moved)
        messages = [v.message for v in violations(replace(schedule, orders=tuple(map(tuple, orders))))]
        assert found.message not in messages
        break


@pytest.mark.timing
def test_validation_is_linear():
    """131,072 operations, and as many in an order that cannot finish: under a second of processor time each."""
    schedule = one_f_one_b(p=64, m=1024)
    stuck = replace(schedule, orders=(*schedule.orders[:-1], schedule.orders[-1][2:] + schedule.orders[-1][:2]))
    for each, found in ((schedule, 0), (stuck, 1)):
        start = time.process_time()
        assert len(violations(each)) == found
        assert time.process_time() - start < 1.0


def test_a_pair_whose_backward_waits_for_its_forward_by_way_of_another_rank():
    """0B0 needs 1B0, so 3B0, so 3F0: the halves of the pair 3F0&0B0 cannot run at once, and only to part them helps."""
    vee = Schedule.from_text("0F0 3F0&0B0 3B0\n1F0 2F0 2B0 1B0")
    (found,) = violations(vee)
    assert found.message.endswith(
        "which waits for rank 0's 3B0, which waits behind 3F0&0B0. To break the circle, run 3F0 apart from 3F0&0B0 on rank 0"
    )
    assert violations(Schedule.from_text("0F0 3F0 3B0 0B0\n1F0 2F0 2B0 1B0")) == ()


def test_a_bidirectional_order_that_was_read_as_one_chain():
    text = dualpipe().to_csv()
    (found,) = violations(Schedule.from_csv(text))
    assert found.rule == "chains"
    assert found.message == (
        "microbatches below 4 pass through stages 0 to 3 alone and the others through stages 4 to 7, as in a "
        "bidirectional schedule: read it with chains=2, or run each microbatch on every stage"
    )
    assert violations(Schedule.from_csv(text, chains=2)) == ()
    incomplete = Schedule.from_text("F0 B0\nF1 B1")  # each rank with a microbatch of its own
    assert {one.rule for one in violations(incomplete)} == {"missing"}
