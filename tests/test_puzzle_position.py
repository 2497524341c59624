"""Positions of the puzzle: a move is legal exactly where some way of going on makes a schedule that runs."""

from __future__ import annotations

import itertools
import random
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orders import golden, rules

from ppedu import SCHEDULES, Action, Costs, Kind, Schedule, ScheduleError, gpipe, one_f_one_b, simulate, violations
from ppedu.explore.puzzle_position import Position

F, B = Kind.F, Kind.B


def operations(rank: int, m: int) -> list[Action]:
    return [Action(rank, kind, j) for kind in (F, B) for j in range(m)]


def can_be_continued(orders: list[list[Action]], m: int) -> bool:
    """A witness that knows nothing of circles: run what can run, in any order behind each beginning, to the end or not."""
    p = len(orders)
    left = [set(operations(rank, m)) for rank in range(p)]
    begun = [list(order) for order in orders]
    done: set[Action] = set()

    def able(action: Action) -> bool:
        return action not in done and all(any(n in done for n in some) for some in rules(action, p))

    while any(left):
        ran = None
        for rank in range(p):
            for action in begun[rank][:1] or sorted(left[rank]):
                if action in left[rank] and able(action):
                    ran = action
        if ran is None:
            return False
        done.add(ran)
        left[ran.stage].remove(ran)
        del begun[ran.stage][:1]
    return not any(begun)  # an operation too many is left over


@lru_cache
def beginnings(p: int, m: int) -> frozenset[tuple[tuple[Action, ...], ...]]:
    """Every beginning of every legal schedule, by trying all orders of all ranks."""
    found = set()
    for orders in itertools.product(*(itertools.permutations(operations(rank, m)) for rank in range(p))):
        if can_be_continued([list(order) for order in orders], m):
            cuts = itertools.product(range(2 * m + 1), repeat=p)
            found.update(tuple(order[:cut] for order, cut in zip(orders, lengths, strict=True)) for lengths in cuts)
    return frozenset(found)


def test_every_position_of_two_ranks_and_two_microbatches():
    """All of them, against all orders that there are: nothing legal is refused, nothing hopeless is let through."""
    alive = beginnings(2, 2)
    start = Position.start(2, 2)
    seen, to_see, refused = {start.schedule.orders}, [start], 0
    for position in to_see:
        for rank in range(2):
            moves = {a: position.why_not(rank, a) for a in operations(rank, 2)}
            assert position.legal_moves(rank) == tuple(a for a, reason in moves.items() if reason is None)
            for action, reason in moves.items():
                orders = list(position.schedule.orders)
                orders[rank] = (*orders[rank], action)
                assert (reason is None) == (tuple(orders) in alive), f"{position.schedule}\n{rank}: {action}"
                refused += reason is not None
                if reason is None and tuple(orders) not in seen:
                    seen.add(tuple(orders))
                    to_see.append(position.place(rank, action))
    assert seen == alive
    assert refused > 1000


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32))
def test_random_ways_through_larger_boards(p, m, seed):
    chance = random.Random(seed)
    position = Position.start(p, m)
    for _ in range(3 * p * m):
        rank = chance.randrange(p)
        action = Action(rank, chance.choice((F, B)), chance.randrange(m))
        orders = [list(order) for order in position.schedule.orders]
        orders[rank].append(action)
        reason = position.why_not(rank, action)
        assert (reason is None) == can_be_continued(orders, m), f"{position.schedule}\n{rank}: {action}"
        if reason is None:
            position = position.place(rank, action)
    while not position.complete:  # the promise: one can always go on
        rank = chance.choice([r for r in range(p) if position.rest[r]])
        position = position.place(rank, chance.choice(position.legal_moves(rank)))
    assert violations(position.schedule) == ()


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**32))
def test_a_circle_names_only_what_is_forced(p, m, seed):
    """Each step of a refusal is true: it waits for what it needs, or behind what stands before it for sure."""
    chance, position = random.Random(seed), Position.start(p, m)
    for _ in range(4 * p * m):
        rank = chance.randrange(p)
        action = Action(rank, chance.choice((F, B)), chance.randrange(m))
        reason = position.why_not(rank, action)
        if reason is None:
            position = position.place(rank, action)
        elif reason.rule == "deadlock":
            after = position._with(rank, action)
            circle = after._circle(rank, action)
            for link, following in zip(circle, circle[1:] + circle[:1], strict=True):
                assert any(link.needed in some for some in rules(link.entry, p))
                assert link.of == following.rank
                order = after.schedule.orders[link.of]
                held, needed = following.entry, link.needed
                own = [held] in rules(needed, p)
                assert needed == held or own or held in order[: order.index(needed) if needed in order else None]


def test_any_rank_may_be_extended_first():
    """An order has no times: rank 3 may be written down before rank 0 has anything to give it."""
    position = Position.start(4, 8)
    for action in one_f_one_b(4, 8).orders[3]:
        position = position.place(3, action)
    timeline, waiting = position.play(Costs())
    assert timeline.spans == ()
    assert len(waiting) == 16
    assert waiting[0].message == "rank 3's F0 waits for rank 2's F0, which has no place yet"
    assert waiting[1].message == "rank 3's B0 waits behind F0"
    assert waiting[0].needs == Action(2, F, 0)


@pytest.mark.parametrize(
    ("placed", "rank", "move", "rule", "message"),
    [
        ("F0", 0, "F0", "duplicate", "rank 0 runs F0 twice, as number 1 and as number 2 of its order: "
         "each operation runs once, remove one"),
        ("F0", 0, "B1", "B before F", "rank 0 runs B1 before F1, whose result it needs: run F1 first"),
        ("F0", 1, "0F1", "wrong rank", "rank 1 runs 0F1, but stage 0 is on rank 0: move it there"),
        ("F0", 0, "F2", "unknown microbatch", "rank 0 runs 0F2, but there is no microbatch 2: with m=2 they run from 0 to 1"),
        ("F0", 0, "3F0", "unknown stage", "rank 0 runs 3F0, but there is no stage 3: stages run from 0 to 2"),
        ("F0 B0\n\nF0", 2, "F1", "deadlock", "rank 0 waits at B0 for rank 1's B0, which waits for rank 2's B0, which waits "
         "behind F1, which waits for rank 1's F1, which waits for rank 0's F1, which waits behind B0. To break the circle, "
         "run B0 before F1 on rank 2, or F1 before B0 on rank 0"),
        ("F0 F1 B1\nF0", 1, "B0", "", ""),  # rank 1 can still run F1 and B1: rank 0 waits, and no more than that
        ("F0 F1 B1 B0\nF0 F1", 1, "B0", "", ""),
        ("F0 B0\nF0", 1, "F1", "deadlock", "rank 0 waits at B0 for rank 1's B0, which waits behind F1, which waits for "
         "rank 0's F1, which waits behind B0. To break the circle, run B0 before F1 on rank 1, or F1 before B0 on rank 0"),
    ],
)  # fmt: skip
def test_refusals_and_their_words(placed, rank, move, rule, message):
    position = Position.start(3, 2).load(placed)
    reason = position.why_not(rank, move)
    if not rule:
        assert reason is None
        return
    assert reason is not None
    assert (reason.rule, reason.message) == (rule, message)
    with pytest.raises(ScheduleError) as caught:
        position.place(rank, move)
    assert caught.value.violations == (reason,)
    assert position == Position.start(3, 2).load(placed)


@pytest.mark.parametrize(
    ("move", "words"),
    [("x", "is no operation"), ("I0", "a backward is one operation, B"), ("F0&B0", "Place one at a time")],
)
def test_what_is_no_move_says_what_is(move, words):
    with pytest.raises(ScheduleError, match=words):
        Position.start(2, 2).why_not(0, move)


def test_there_is_no_such_rank():
    with pytest.raises(ValueError, match="no rank 2: ranks run from 0 to 1"):
        Position.start(2, 2).why_not(2, "F0")


@pytest.mark.parametrize("key", SCHEDULES)
@pytest.mark.parametrize("costs", [Costs(), Costs(forward=1, backward=2, transfer=0.5), Costs(forward=[1, 2, 3])])
def test_a_whole_position_has_the_simulator_s_times(key, costs):
    schedule = SCHEDULES[key](3, 5)
    position = Position.start(3, 5).load(schedule.to_csv())
    timeline, waiting = position.play(costs)
    assert timeline.spans == simulate(schedule, costs).spans
    assert waiting == ()
    assert position.peaks == simulate(schedule, costs).peak_in_flight


def test_times_of_a_beginning():
    """Rank 0 runs F0 to F2 and then waits: rank 1 has F0 only. By hand: F0 at 1 on rank 1, B0 nowhere."""
    timeline, waiting = Position.start(2, 3).load("F0 F1 F2 B0\nF0").play(Costs(forward=1, backward=2))
    assert [(str(s.action), s.start, s.end) for s in timeline.spans] == [
        ("0F0", 0, 1), ("0F1", 1, 2), ("0F2", 2, 3), ("1F0", 1, 2),
    ]  # fmt: skip
    assert [w.message for w in waiting] == ["rank 0's B0 waits for rank 1's B0, which has no place yet"]


def test_what_is_behind_a_waiting_operation_of_another_rank():
    _, waiting = Position.start(3, 1).load("\nF0\nF0").play(Costs())
    assert waiting[1].message == "rank 2's F0 waits for rank 1's F0, which cannot run yet either"


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32))
def test_positions_come_back_from_their_text(p, m, seed):
    chance, position = random.Random(seed), Position.start(p, m)
    for _ in range(chance.randrange(2 * p * m + 1)):
        rank = chance.randrange(p)
        moves = position.legal_moves(rank)
        if moves:
            position = position.place(rank, chance.choice(moves))
    assert Position.start(p, m).load(position.to_text()) == position
    assert Position.start(p, m).load(str(position.schedule)) == position


def test_text_is_the_csv_of_the_schedule():
    schedule = gpipe(3, 2)
    position = Position.start(3, 2).load(schedule.to_csv())
    assert position.to_text() == schedule.to_csv()
    assert Schedule.from_csv(position.to_text()).orders == schedule.orders


def test_golden_orders_load():
    """1F1B as another program wrote it (tests/golden/README.md)."""
    schedule = golden("1f1b_p4_m8")
    assert Position.start(4, 8).load(schedule.to_csv()).complete


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0\n1F0\n0F0", "there are 3 lines, but 2 ranks: write one line a rank, rank 0's first"),
        ("0F0,nonsense", "rank 0: 'nonsense' is no operation"),
        ("0F0,0F0\n1B0", "cannot run, for 2 reasons:\n- rank 0 runs F0 twice.*\n- rank 1 runs B0 before F0"),
        ("0F0,0B0\n1F1", "cannot run: rank 0 waits at B0 for rank 1's B0, which waits behind F1"),
        ("F0 B0 F1 B1\nF0 F1 B0 B1", "cannot run: rank 0 waits at B0 for rank 1's B0, which waits behind F1"),
    ],
)
def test_text_that_cannot_be_loaded_says_why(text, message):
    with pytest.raises(ScheduleError, match=message):
        Position.start(2, 2).load(text)


@pytest.mark.parametrize("text", ["", "\n", "\n\n\n", "   \n"])
def test_no_text_is_an_empty_board(text):
    assert Position.start(2, 2).load(text) == Position.start(2, 2)


def test_blank_lines_stand_for_ranks_without_operations():
    assert str(Position.start(3, 1).load("\nF0\n").schedule) == "rank 0: \nrank 1: F0\nrank 2: "
    assert Position.start(2, 1).load("\n\n0F0\n\n1F0\n\n") == Position.start(2, 1).load("0F0\n1F0")
