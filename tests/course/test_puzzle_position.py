"""Positions of the puzzle: a move is legal exactly where some way of going on makes a schedule that runs."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orders import golden, rules

from ppedu import SCHEDULES, Action, Costs, Kind, Schedule, ScheduleError, gpipe, one_f_one_b, simulate, violations
from ppedu.course.puzzle.position import Position
from ppedu.schedules import interleaved, zb_h1, zb_v

F, B, I, W = Kind.F, Kind.B, Kind.I, Kind.W  # noqa: E741 - the field's letters


@dataclass(frozen=True)
class Board:
    """Ranks, microbatches, the rank of each stage, and whether a backward is I and W."""

    p: int
    m: int
    stages: tuple[int, ...]
    split: bool = False

    @property
    def start(self) -> Position:
        return Position.start(self.p, self.m, self.stages, self.split)

    def operations(self, rank: int) -> list[Action]:
        kinds = (F, I, W) if self.split else (F, B)
        mine = [stage for stage, its in enumerate(self.stages) if its == rank]
        return [Action(stage, kind, j) for kind in kinds for stage in mine for j in range(self.m)]


def plain(p: int, m: int) -> Board:
    return Board(p, m, tuple(range(p)))


def any_board(draw: st.DrawFn) -> Board:
    """One stage on each rank, or some of them anywhere: rings, the letter V and whatever else there is."""
    p, m = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    rank = st.integers(0, p - 1)
    stages = draw(st.just(tuple(range(p))) | st.lists(rank, min_size=1, max_size=6).map(tuple))
    return Board(p, m, stages, draw(st.booleans()))


boards = st.composite(any_board)()


def can_be_continued(orders: list[list[Action]], board: Board) -> bool:
    """A witness that knows nothing of circles: run what can run, in any order behind each beginning, to the end or not."""
    length = len(board.stages)
    left = [set(board.operations(rank)) for rank in range(board.p)]
    begun = [list(order) for order in orders]
    done: set[Action] = set()

    def able(action: Action) -> bool:
        return action not in done and all(any(n in done for n in some) for some in rules(action, length))

    while any(left):
        ran = None
        for rank in range(board.p):
            for action in begun[rank][:1] or sorted(left[rank]):
                if action in left[rank] and able(action):
                    ran = rank, action
        if ran is None:
            return False
        rank, action = ran
        done.add(action)
        left[rank].remove(action)
        del begun[rank][:1]
    return not any(begun)  # an operation too many is left over


@lru_cache
def beginnings(board: Board) -> frozenset[tuple[tuple[Action, ...], ...]]:
    """Every beginning of every legal schedule, by trying all orders of all ranks."""
    found = set()
    for orders in itertools.product(*(itertools.permutations(board.operations(rank)) for rank in range(board.p))):
        if can_be_continued([list(order) for order in orders], board):
            cuts = itertools.product(*(range(len(order) + 1) for order in orders))
            found.update(tuple(order[:cut] for order, cut in zip(orders, lengths, strict=True)) for lengths in cuts)
    return frozenset(found)


@pytest.mark.parametrize(
    "board",
    [
        plain(2, 2),
        Board(2, 1, (0, 1), split=True),
        Board(2, 1, (0, 1, 0, 1)),
        Board(2, 1, (0, 1, 1, 0)),
        Board(1, 1, (0, 0), split=True),
    ],
)
def test_every_position_of_a_small_board(board):
    """All of them, against all orders that there are: nothing legal is refused, nothing hopeless is let through."""
    alive = beginnings(board)
    start = board.start
    seen, to_see, refused = {start.schedule.orders}, [start], 0
    for position in to_see:
        for rank in range(board.p):
            moves = {a: position.why_not(rank, a) for a in board.operations(rank)}
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
    assert refused > 2 * len(seen)


@pytest.mark.slow
@given(boards, st.integers(0, 2**32))
def test_random_ways_through_larger_boards(board, seed):
    chance = random.Random(seed)
    position = board.start
    ranks = [rank for rank in range(board.p) if board.operations(rank)]
    for _ in range(3 * len(board.stages) * board.m):
        rank = chance.choice(ranks)
        action = chance.choice(board.operations(rank))
        orders = [list(order) for order in position.schedule.orders]
        orders[rank].append(action)
        reason = position.why_not(rank, action)
        assert (reason is None) == can_be_continued(orders, board), f"{position.schedule}\n{rank}: {action}"
        if reason is None:
            position = position.place(rank, action)
    while not position.complete:  # the promise: one can always go on
        rank = chance.choice([r for r in range(board.p) if position.rest[r]])
        position = position.place(rank, chance.choice(position.legal_moves(rank)))
    assert violations(position.schedule) == ()
    assert position.placed == position.total


@given(boards, st.integers(0, 2**32))
def test_a_circle_names_only_what_is_forced(board, seed):
    """Each step of a refusal is true: it waits for what it needs, or behind what stands before it for sure."""
    chance, position, length = random.Random(seed), board.start, len(board.stages)

    def before(action: Action, orders: tuple[tuple[Action, ...], ...]) -> set[Action]:
        """What is sure to run first on the action's rank: what is ahead there, and what is needed from there."""
        order = orders[board.stages[action.stage]]
        found = set(order[: order.index(action)] if action in order else order)
        same = [
            n for some in rules(action, length) for n in some if board.stages[n.stage] == board.stages[action.stage]
        ]
        return found.union(same, *(before(n, orders) for n in same))

    for _ in range(4 * length * board.m):
        rank = chance.choice([rank for rank in range(board.p) if board.operations(rank)])
        action = chance.choice(board.operations(rank))
        reason = position.why_not(rank, action)
        if reason is None:
            position = position.place(rank, action)
        elif reason.rule == "deadlock":
            after = position._with(rank, action)
            circle = after._circle(rank, action, after._completed())
            for link, following in zip(circle, circle[1:] + circle[:1], strict=True):
                assert any(link.needed in some for some in rules(link.entry, length))
                assert link.of == following.rank
                assert link.needed == following.entry or following.entry in before(link.needed, after.schedule.orders)


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


def board_of(schedule: Schedule) -> Position:
    split = any(a.kind is W for order in schedule.orders for a in order)
    return Position.start(schedule.num_ranks, schedule.num_microbatches, schedule.rank_of_stage, split)


@pytest.mark.parametrize("key", [key for key in SCHEDULES if not key.startswith("dualpipe")])  # these have pairs
@pytest.mark.parametrize("costs", [Costs(), Costs(forward=1, backward=2, transfer=0.5), Costs(forward=[1, 2, 3])])
def test_a_whole_position_has_the_simulator_s_times(key, costs):
    schedule = SCHEDULES[key](3, 5)
    if costs.stages is not None and schedule.num_stages != 3:
        costs = Costs(forward=[*costs.forward, *costs.forward])
    position = board_of(schedule).load(schedule.to_csv())
    timeline, waiting = position.play(costs)
    assert timeline.spans == simulate(schedule, costs).spans
    assert waiting == ()
    assert position.schedule.peak_in_flight == simulate(schedule, costs).peak_in_flight


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


@pytest.mark.slow
@given(boards, st.integers(0, 2**32))
def test_positions_come_back_from_their_text(board, seed):
    chance, position = random.Random(seed), board.start
    for _ in range(chance.randrange(position.total + 1)):
        moves = position.legal_moves(chance.randrange(board.p))
        if moves:
            rank = board.stages[moves[0].stage]
            position = position.place(rank, chance.choice(moves))
    assert board.start.load(position.to_text()) == position
    assert board.start.load(str(position.schedule)) == position


@pytest.mark.parametrize(
    ("board", "placed", "rank", "move", "message"),
    [
        (zb_h1(2, 2), "F0", 0, "W0", "rank 0 runs W0 before I0, whose result it needs: run I0 first"),
        (zb_h1(2, 2), "", 1, "I0", "rank 1 runs I0 before F0, whose result it needs: run F0 first"),
        (zb_h1(2, 2), "F0 I0\nF0", 1, "F1", "rank 0 waits at I0 for rank 1's I0, which waits behind F1, which waits for "
         "rank 0's F1, which waits behind I0. To break the circle, run I0 before F1 on rank 1, or F1 before I0 on rank 0"),
        (zb_v(2, 2), "", 1, "2F0", "rank 1 waits at 2F0 for its own 1F0, which waits behind 2F0. To break the circle, run "
         "1F0 before 2F0 on rank 1"),
        (interleaved(2, 2), "", 0, "2F0", "rank 0 waits at 2F0 for rank 1's 1F0, which waits for rank 0's 0F0, which waits "
         "behind 2F0. To break the circle, run 0F0 before 2F0 on rank 0"),
        (interleaved(2, 2), "", 0, "1F0", "rank 0 runs 1F0, but stage 1 is on rank 1: move it there"),
    ],
)  # fmt: skip
def test_refusals_on_other_boards(board, placed, rank, move, message):
    reason = board_of(board).load(placed).why_not(rank, move)
    assert reason is not None
    assert reason.message == message


def test_what_waits_says_where_the_stage_is():
    _, waiting = board_of(interleaved(2, 2)).load("0F0 2F0").play(Costs())
    assert [w.message for w in waiting] == ["rank 0's 2F0 waits for rank 1's 1F0, which has no place yet"]
    _, waiting = board_of(zb_h1(2, 1)).load("F0 I0").play(Costs())
    assert waiting[0].needs == Action(1, I, 0)
    with pytest.raises(ScheduleError, match=r"0B0 is a whole backward. Here it is two operations, I and W"):
        board_of(zb_h1(2, 1)).why_not(0, "B0")


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
