"""The puzzle's levels can be solved, their targets are the best there is, and their hints are true."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from ppedu import (
    Action,
    Costs,
    Kind,
    Schedule,
    ScheduleError,
    Timeline,
    dependencies,
    gpipe,
    naive,
    one_f_one_b,
    simulate,
    theory,
    violations,
)
from ppedu.course.puzzle.game import Game
from ppedu.course.puzzle.levels import LEVELS, Level, level_of
from ppedu.course.puzzle.position import Position
from ppedu.course.puzzle.score import recognise, score
from ppedu.schedules import SCHEDULES, dualpipe, dualpipev, interleaved, looped_bfs, zb_h1, zb_h2, zb_v

F, B = Kind.F, Kind.B
NUMBERS = range(1, len(LEVELS) + 1)


def play(level: int, text: str) -> Game:
    game = Game(level)
    game.load(text)
    return game


def within(peaks: tuple[int, ...], cap: tuple[int, ...] | None) -> bool:
    return cap is None or all(peak <= most for peak, most in zip(peaks, cap, strict=True))


def test_there_are_as_many_as_the_course_says():
    assert [(level.p, level.m) for level in LEVELS] == [
        (2, 1), (2, 2), (3, 4), (3, 4), (4, 8), (4, 8), (3, 6), (2, 2), (2, 4), (2, 2), (3, 4), (2, 3),
    ]  # fmt: skip
    assert len({level.title for level in LEVELS}) == len(LEVELS)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_reference_reaches_the_target_within_the_cap(number):
    level = level_of(number)
    assert violations(level.reference) == ()
    timeline = simulate(level.reference, level.costs)
    assert timeline.makespan == level.target
    assert within(timeline.peak_in_flight, level.cap)


@pytest.mark.parametrize("number", NUMBERS)
def test_it_is_solved_by_the_reference_move_by_move(number):
    """Placed one by one, in the order in which they run, and not solved before the last one."""
    game = Game(number)
    spans = sorted(simulate(game.level.reference, game.level.costs).spans, key=lambda s: (s.start, s.rank))
    for span in spans:
        assert not game.score.solved
        assert all(goal.kept is not False for goal in game.score.goals), "a good move never looks lost"
        assert game.place(span.rank, span.action) is None
    assert game.score.solved
    assert [goal.kept for goal in game.score.goals] == [True] * len(game.score.goals)


@pytest.mark.parametrize("number", range(1, 8))
def test_no_order_ends_earlier(number):
    """The last rank cannot start before p - 1 forwards and messages, and after its last backward p - 1 more must run."""
    level = level_of(number)
    c, p, m = level.costs, level.p, level.m
    f, b = c.duration(Action(0, F, 0)), c.duration(Action(0, B, 0))
    bound = (p - 1) * (f + c.transfer) + m * (f + b) + (p - 1) * (b + c.transfer)
    assert bound == level.target
    if not c.transfer:
        assert bound == theory.makespan(p, m, f, b)


@pytest.mark.parametrize(("number", "after"), [(8, 1), (9, 1), (10, 0), (11, 0), (12, 0)])
def test_no_order_of_the_later_boards_ends_earlier(number, after):
    """The last rank cannot start before p - 1 forwards; then it has all of its own to run. What comes last there is a B
    of its first stage, after which that of stage 0 must run; a W lets nobody wait."""
    level = level_of(number)
    own = len(level.start().operations(level.p - 1))  # each takes 1
    assert level.p - 1 + own + after == level.target


@pytest.mark.parametrize("number", [1, 2])
def test_no_order_ends_earlier_by_trying_them_all(number):
    level = level_of(number)
    each = [[Action(rank, kind, j) for kind in (F, B) for j in range(level.m)] for rank in range(level.p)]
    best = float("inf")
    for orders in itertools.product(*map(itertools.permutations, each)):
        schedule = Schedule("any", level.m, tuple(range(level.p)), orders)
        if not violations(schedule):
            best = min(best, simulate(schedule, level.costs).makespan)
    assert best == level.target


@pytest.mark.parametrize(
    ("number", "schedule", "missed"),
    [
        (2, naive(2, 2), ["makespan", "bubble"]),
        (3, naive(3, 4), ["makespan", "bubble"]),
        (4, gpipe(3, 4), ["in flight"]),
        (5, gpipe(4, 8), ["in flight"]),
        (5, naive(4, 8), ["makespan", "bubble"]),
        (6, gpipe(4, 8), ["in flight"]),
        (7, gpipe(3, 6), ["in flight"]),
        (7, one_f_one_b(3, 6), ["makespan", "bubble"]),
        (3, one_f_one_b(3, 4), []),
        (6, one_f_one_b(4, 8), []),
    ],
)
def test_what_other_schedules_miss(number, schedule, missed):
    game = play(number, schedule.to_csv())
    assert [goal.name for goal in game.score.goals if not goal.kept] == missed
    assert game.score.solved == (not missed)


# hints: each claim, by its text, so that a hint which is changed loses its proof


def ran(t: Timeline, name: str) -> tuple[float, float]:
    return next((s.start, s.end) for s in t.spans if str(s.action) == name)


def order(schedule: Schedule, rank: int) -> str:
    return str(schedule).splitlines()[rank].partition(": ")[2]


def needs_what_the_hint_says() -> bool:
    start = Position.start(2, 1)
    first = start.load("\nF0").play(Costs())[1][0].needs
    second = start.load("F0 B0").play(Costs())[1][0].needs
    return (first, second) == (Action(0, F, 0), Action(1, B, 0))


def ends(number: int, text: str) -> bool:
    """The text solves the level."""
    return play(number, text).score.solved


def leading(schedule: Schedule) -> list[int]:
    """Forwards before a rank takes turns: those of its warm-up, by order."""
    return [len(Timeline(schedule, (), "predicted").phases_of(rank)[0]) for rank in range(schedule.num_ranks)]


def forwards(schedule: Schedule, rank: int) -> str:
    return " ".join(str(a) for a in schedule.orders[rank] if isinstance(a, Action) and a.kind is F)


def waits(schedule: Schedule, costs: Costs, rank: int) -> list[str]:
    """For what a rank waits between its first operation and its last."""
    timeline = simulate(schedule, costs)
    begun, done = timeline.spans_of(rank)[0].start, timeline.spans_of(rank)[-1].end
    return [str(gap.before) for gap in timeline.gaps(rank) if begun <= gap.start and gap.end <= done]


def under_the_cap(number: int, rank: int, text: str) -> list[str]:
    """The legal moves of a rank that keep the cap."""
    game = play(number, text)
    after = [(a, game.position.place(rank, a)) for a in game.position.legal_moves(rank)]
    return [
        game.position.schedule.short(a)
        for a, position in after
        if within(position.schedule.peak_in_flight, game.level.cap)
    ]


EARLY, EAGER = one_f_one_b(3, 4), LEVELS[6].reference
ONE, TWICE, SLOW = one_f_one_b(4, 8), LEVELS[5].costs, LEVELS[6].costs
TWO, HALVES = LEVELS[7].reference, LEVELS[9].costs
REST_OF_RANK_1 = "F0 F1 B0 F2 B1 F3 B2 B3"
CHECKS: dict[tuple[int, str], Callable[[], bool]] = {
    (1, "Each rank runs two operations: F0, and later B0."): lambda: all(
        [game.position.schedule.short(a) for a in game.position.rest[r]] == ["F0", "B0"] for game in [Game(1)] for r in (0, 1)
    ),
    (1, "Rank 1's F0 needs rank 0's F0, and rank 0's B0 needs rank 1's B0."): needs_what_the_hint_says,
    (1, "F0 B0 on both ranks. At any time one of the two is idle: half of their time is bubble."): lambda: (
        ends(1, "F0 B0\nF0 B0") and simulate(naive(2, 1)).bubble_fraction == 0.5
    ),
    (2, "When rank 0 is done with F0, its B0 cannot start yet: rank 1 has not even begun."): lambda: (
        ran(simulate(naive(2, 2)), "0F0")[1] == 1 == ran(simulate(naive(2, 2)), "1F0")[0] < ran(simulate(naive(2, 2)), "0B0")[0]
    ),
    (2, "Let rank 0 run F1 while rank 1 runs F0."): lambda: (
        ran(simulate(gpipe(2, 2)), "0F1") == ran(simulate(gpipe(2, 2)), "1F0") == (1, 2)
    ),
    (2, "Rank 0: F0 F1 B0 B1. Rank 1 may run the same, or F0 B0 F1 B1: both end at 6."): lambda: (
        ends(2, "F0 F1 B0 B1\nF0 F1 B0 B1") and ends(2, "F0 F1 B0 B1\nF0 B0 F1 B1")
    ),
    (3, "A rank that runs forward after forward never waits once it has started."): lambda: all(
        ran(simulate(gpipe(3, 4)), f"{r}F{j}") == (r + j, r + j + 1) for r in range(3) for j in range(4)
    ),
    (3, "When rank 2 has run F0 to F3, it starts to send gradients back: B0 to B3."): lambda: (
        order(gpipe(3, 4), 2) == "F0 F1 F2 F3 B0 B1 B2 B3"
    ),
    (3, "F0 F1 F2 F3 B0 B1 B2 B3 on every rank: this is GPipe. Each rank then holds 4 in flight."): lambda: (
        ends(3, "\n".join(["F0 F1 F2 F3 B0 B1 B2 B3"] * 3))
        and simulate(Schedule.from_text("\n".join(["F0 F1 F2 F3 B0 B1 B2 B3"] * 3))).peak_in_flight == (4, 4, 4)
        and recognise(Schedule.from_text("\n".join(["F0 F1 F2 F3 B0 B1 B2 B3"] * 3))) == "This is GPipe."
    ),
    (4, "A forward keeps its activations until the backward of the same microbatch has run on that rank. "
        "Rank 2 may keep one: after its F0 only B0 is left to it."): lambda: under_the_cap(4, 2, "\n\nF0") == ["B0"],
    (4, "Rank 2: F0 B0 F1 B1 F2 B2 F3 B3. Rank 1 fills its two places with F0 F1, then frees one with B0."): lambda: (
        order(EARLY, 2) == "F0 B0 F1 B1 F2 B2 F3 B3" and order(EARLY, 1).startswith("F0 F1 B0")
        and set(under_the_cap(4, 1, "\nF0 F1\n")) == {"B0", "B1"}
    ),
    (4, f"Rank 1: {REST_OF_RANK_1}. Rank 0: F0 F1 F2 B0 F3 B1 B2 B3."): lambda: ends(
        4, f"F0 F1 F2 B0 F3 B1 B2 B3\n{REST_OF_RANK_1}\nF0 B0 F1 B1 F2 B2 F3 B3"
    ),
    (5, "Fill, alternate, drain: rank r starts with 3 - r forwards, then runs one forward and one backward in turn."): lambda: (
        leading(ONE) == [3, 2, 1, 0]
    ),
    (5, "Rank 3: F0 B0 F1 B1 and so on to F7 B7, without any forward ahead."): lambda: (
        order(ONE, 3) == " ".join(f"F{j} B{j}" for j in range(8))
    ),
    (5, "Rank 0: F0 F1 F2, then F3 B0 F4 B1 F5 B2 F6 B3 F7 B4, then B5 B6 B7. This is 1F1B."): lambda: (
        order(ONE, 0) == "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7" and recognise(ONE) == "This is 1F1B."
    ),
    (6, "An order holds no times. Does the one of the level before have to change?"): lambda: ends(6, ONE.to_csv()),
    (6, "Rank 3 is busy for 24. The first microbatch takes 3 until it is there, and the last gradient 6 more to rank 0: "
        "no order ends before 33."): lambda: (
        simulate(ONE, TWICE).busy[3] == 24 and ran(simulate(ONE, TWICE), "3F0")[0] == 3
        and simulate(ONE, TWICE).makespan - ran(simulate(ONE, TWICE), "3B7")[1] == 6 and LEVELS[5].target == 3 + 24 + 6
    ),
    (6, "Load the text of your 1F1B from the level before: the same order ends at 33."): lambda: (
        play(5, ONE.to_csv()).score.solved and play(6, play(5, ONE.to_csv()).position.to_text()).score.timeline.makespan == 33
    ),
    (7, "Under 1F1B rank 2 waits again and again for a forward. Send it more of them ahead, and it never waits once it has started."): lambda: (
        len(waits(one_f_one_b(3, 6), SLOW, 2)) > 2 and waits(EAGER, SLOW, 2) == []
    ),
    (7, "GPipe ends at 28 as well, but holds 6 on every rank. Take 1F1B and give it more forwards to start with."): lambda: (
        simulate(gpipe(3, 6), SLOW).makespan == 28 and simulate(gpipe(3, 6), SLOW).peak_in_flight == (6, 6, 6)
        and all(more >= few for more, few in zip(leading(EAGER), leading(one_f_one_b(3, 6)), strict=True))
    ),
    (7, "Rank 0 starts with 4 forwards before it takes turns, rank 1 with 2, rank 2 with none."): lambda: (
        leading(EAGER) == [4, 2, 0]
    ),
    (8, "A microbatch visits each rank twice: 0F0, 1F0, 2F0, 3F0. While it is on rank 1, rank 0 runs 0F1."): lambda: (
        LEVELS[7].reference.rank_of_stage == (0, 1, 0, 1) and ran(simulate(TWO), "1F0") == ran(simulate(TWO), "0F1")
    ),
    (8, "With one stage of twice the size on each rank, 1F1B ends at 12: its rank 1 starts at 2, here it can start at 1."): lambda: (
        simulate(one_f_one_b(2, 2), Costs(2)).makespan == 12 and ran(simulate(one_f_one_b(2, 2), Costs(2)), "1F0")[0] == 2
        and ran(simulate(TWO), "1F0")[0] == 1
    ),
    (8, "Rank 0: 0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1. Rank 1: 1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1. This is interleaved 1F1B."): lambda: (
        play(8, "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1\n1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1").score.recognised == "This is interleaved 1F1B."
    ),
    (9, "Run two microbatches through a rank's first stage, the same two through its second, and then the next two."): lambda: (
        forwards(LEVELS[8].reference, 0) == "0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3"
        and forwards(LEVELS[8].reference, 1) == "1F0 1F1 3F0 3F1 1F2 1F3 3F2 3F3"
    ),
    (9, "All forwards first, stage by stage, end at 18 as well, but hold 8 on each rank: this would be looped BFS."): lambda: (
        simulate(looped_bfs(2, 4)).makespan == 18 and simulate(looped_bfs(2, 4)).peak_in_flight == (8, 8)
        and play(9, looped_bfs(2, 4).to_csv()).score.recognised == "This is looped BFS."
        and forwards(looped_bfs(2, 4), 0) == " ".join(order(looped_bfs(2, 4), 0).split()[:8])
    ),
    (9, "Rank 0 begins 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0, rank 1 begins 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1."): lambda: (
        order(LEVELS[8].reference, 0).startswith("0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 ")
        and order(LEVELS[8].reference, 1).startswith("1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 ")
    ),
    (10, "With I and W in one piece, 1F1B ends at 9: rank 0 waits while rank 1 computes gradients of its weights."): lambda: (
        simulate(one_f_one_b(2, 2), Costs(1, 2)).makespan == 9
        # rank 0's B0 waits for the end of rank 1's B0; of the I in it the end would be 1 earlier, which is W
        and ran(simulate(one_f_one_b(2, 2), Costs(1, 2)), "0B0")[0] == ran(simulate(zb_h1(2, 2), HALVES), "0I0")[0] + 1
    ),
    (10, "Rank 1 runs I0 as soon as it can, and puts W0 off until nothing else is left."): lambda: (
        order(zb_h1(2, 2), 1).split()[:2] == ["F0", "I0"] and all(w[0] == "W" for w in order(zb_h1(2, 2), 1).split()[4:])
        and not any(w[0] == "W" for w in order(zb_h1(2, 2), 1).split()[:4])
    ),
    (10, "Rank 0: F0 F1 I0 W0 I1 W1. Rank 1: F0 I0 F1 I1 W0 W1."): lambda: ends(10, "F0 F1 I0 W0 I1 W1\nF0 I0 F1 I1 W0 W1"),
    (11, "1F1B ends at 18 here. Activations are kept until W, so each W that is put off takes room."): lambda: (
        simulate(EARLY, Costs(1, 2)).makespan == 18
        and Position.start(1, 2, split=True).load("F0 I0 F1 I1 W0 W1").schedule.peak_in_flight == (2,)
        and Position.start(1, 2, split=True).load("F0 I0 W0 F1 I1 W1").schedule.peak_in_flight == (1,)
    ),
    (11, "Take 1F1B, with I in place of B. Rank r then puts each W off by r microbatches: W0 comes after I0, I1 or I2."): lambda: all(
        " ".join(w for w in order(zb_h1(3, 4), r).split() if w[0] != "W").replace("I", "B") == order(EARLY, r)
        and f"I{r} W0" in order(zb_h1(3, 4), r) for r in range(3)
    ),
    (11, "Rank 0: F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3. Rank 1: F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3. "
         "Rank 2: F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3. This is ZB-H1."): lambda: (
        play(11, "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3\nF0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3\n"
                 "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3").score.recognised == "This is ZB-H1."
    ),
    (12, "The first gradient is ready on rank 0, where the microbatch began: 3I0 needs its own 3F0 and nothing else."): lambda: (
        LEVELS[11].reference.rank_of_stage == (0, 1, 1, 0)
        and dependencies(Action(3, Kind.I, 0), LEVELS[11].reference) == (Action(3, F, 0),)
    ),
    (12, "Rank 1 has 18 to run and can start at 1: it must not wait any more. A W fills each wait."): lambda: (
        simulate(LEVELS[11].reference, HALVES).busy[1] == 18 and ran(simulate(LEVELS[11].reference, HALVES), "1F0")[0] == 1
        and waits(LEVELS[11].reference, HALVES, 1) == []
    ),
    (12, "Rank 0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2. "
         "Rank 1: 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2. This is ZB-V."): lambda: (
        play(12, "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2\n"
                 "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2").score.recognised == "This is ZB-V."
    ),
}  # fmt: skip


def test_every_hint_has_its_proof():
    assert list(CHECKS) == [(n, hint) for n in NUMBERS for hint in level_of(n).hints]


@pytest.mark.parametrize(("number", "hint"), CHECKS)
def test_hints_are_true(number, hint):
    assert CHECKS[number, hint]()


def test_the_numbers_in_the_goals_are_true():
    assert [level.goal for level in LEVELS if f"{level.target:g}" not in level.goal] == []
    for level in LEVELS:
        if level.cap is not None and level is not LEVELS[5]:
            assert all(str(most) in level.goal for most in level.cap)
    assert simulate(one_f_one_b(3, 4)).peak_in_flight[0] == 3  # level 11: "as 1F1B's rank 0 does"
    assert LEVELS[5].cap == LEVELS[4].cap  # "the same memory"
    assert simulate(naive(2, 2)).makespan == 8  # level 2
    assert simulate(one_f_one_b(3, 6), SLOW).makespan == 34  # level 7


# levels of one's own


def test_a_level_of_ones_own():
    mine = Level("Mine", "End at 10.", 2, 4, 10, one_f_one_b(2, 4), cap=(2, 1))
    game = Game(mine)
    game.load(one_f_one_b(2, 4).to_csv())
    assert game.score.solved


@pytest.mark.parametrize("level", [0, 13, -1, "1", True, 1.0, None])
def test_there_is_no_such_level(level):
    with pytest.raises(ValueError, match="there are levels 1 to 12"):
        level_of(level)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reference": gpipe(3, 4)}, "has p=2 m=4; its reference is GPipe p=3 m=4"),
        ({"reference": dualpipe(2, 4)}, "which has more than one chain, overlapped pairs, or B beside I"),
        ({"reference": dualpipev(2, 4)}, "which has more than one chain, overlapped pairs, or B beside I"),
        ({"cap": (2,)}, "has 2 ranks: give a cap of one number a rank"),
        ({"costs": Costs(forward=[1, 2, 3])}, "costs are given for 3 stages"),
    ],
)
def test_a_level_that_makes_no_sense_is_refused(change, words):
    given = {"title": "Mine", "goal": "", "p": 2, "m": 4, "target": 10, "reference": gpipe(2, 4)}
    with pytest.raises(ValueError, match=words):
        Level(**{**given, **change})


# from an order of one's own

MINE = Schedule.from_text("F0 F1 F2 F3 B0 B1 B2 B3\nF0 F1 B0 F2 B1 F3 B2 B3", name="mine")


def test_an_order_of_ones_own_stands_there_whole_and_is_taken_back_from_its_end():
    game = Game(level_of(MINE, Costs(forward=1, backward=2)))
    assert game.position.schedule.orders == MINE.orders
    level = game.level
    assert (level.p, level.m, level.target, level.cap) == (2, 4, 15, (4, 2))
    assert not game.score.solved
    assert [goal.name for goal in game.score.goals if not goal.kept] == ["improvement"]
    ends = []
    while game.undo():
        ends.append(game.position.play(level.costs)[0].end)
    assert len(ends) == 16
    assert game.position.placed == 0
    assert ends == sorted(ends, reverse=True)  # F = 1 and B = 2 all along: what starts last, ends last


@pytest.mark.parametrize(
    ("order", "improvement", "solved"),
    [
        (MINE, None, False),
        (one_f_one_b(2, 4), "less in flight", True),  # 15 as well, and rank 0 holds 2 in place of 4
        (naive(2, 4), "less in flight", False),  # holds 1 and 1, but ends at 24
        (gpipe(2, 4), "less in flight", False),  # rank 1 holds more: no improvement within the cap
    ],
)
def test_to_better_it_is_to_be_sooner_or_to_hold_less_and_neither_worse(order, improvement, solved):
    game = Game(level_of(MINE, Costs(forward=1, backward=2)))
    game.load(str(order))
    goal = {goal.name: goal for goal in game.score.goals}["improvement"]
    assert (goal.yours, goal.kept) == (improvement or "none", improvement is not None)
    assert game.score.solved is solved


def test_sooner_is_better():
    game = Game(level_of("F0 B0 F1 B1\nF0 B0 F1 B1"))
    assert game.level.target == 8
    game.load("F0 F1 B0 B1\nF0 B0 F1 B1")
    missed = [goal.name for goal in game.score.goals if not goal.kept]
    assert missed == ["in flight"]  # ends at 6, but rank 0 holds 2


def test_it_stands_there_up_to_a_time():
    """GPipe on two ranks, F = B = 1: before 3 start F0, F1 and F2 on rank 0, and F0 and F1 on rank 1."""
    game = Game(level_of(gpipe(2, 4)), start=3)
    assert str(game.position.schedule) == "rank 0: F0 F1 F2\nrank 1: F0 F1"
    assert game.place(1, "B0") is None
    assert game.undo()
    assert game.undo()
    assert str(game.position.schedule) in ("rank 0: F0 F1\nrank 1: F0 F1", "rank 0: F0 F1 F2\nrank 1: F0")


def test_stages_and_halves_are_those_of_the_order():
    for order in (interleaved(2, 4), zb_h1(3, 4), zb_v(2, 3)):
        game = Game(level_of(order))
        assert game.position.complete
        assert game.position.schedule.rank_of_stage == order.rank_of_stage
        assert game.level.split is (order.name != interleaved(2, 4).name)


def test_a_level_can_begin_with_a_beginning():
    game = Game(5, start="F0 F1\nF0")
    assert (game.position.placed, game.can_undo) == (3, True)
    game = Game(1, start=naive(2, 1))
    assert game.score.solved
    with pytest.raises(ScheduleError, match="rank 1 runs B0 before F0"):
        Game(5, start="F0\nB0 F0")


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("B0 F0\nF0 B0", "rank 0 runs B0 before F0"),
        (dualpipe(2, 4), "which has more than one chain, overlapped pairs"),
        ("F0 F1", "asks for"),  # no backward
    ],
)
def test_an_order_that_is_no_level_is_refused_with_its_reason(order, words):
    with pytest.raises(ValueError, match=words):
        Game(level_of(order))


def test_a_level_keeps_its_own_costs():
    with pytest.raises(ValueError, match="a level has its costs"):
        level_of(3, Costs())


# the score


def goals(level: int | Level, text: str) -> dict[str, str]:
    position = Position.start(level_of(level).p, level_of(level).m).load(text)
    return {g.name: f"{g.yours} ({g.wanted}): {g.message}" for g in score(position, level_of(level)).goals}


def test_figures_of_a_whole_schedule():
    """GPipe where 1F1B is asked for: the same 22 and 3/11, and 8 in flight (GPipe paper; Megatron-LM, SC'21)."""
    assert goals(5, gpipe(4, 8).to_csv()) == {
        "makespan": "22 (at most 22): kept",
        "bubble": "27.3 % (at most 27.3 %): kept",
        "in flight": "8 8 8 8 (at most 4 3 2 1): rank 0 holds 8 (4 over), rank 1 holds 8 (5 over), "
        "rank 2 holds 8 (6 over), rank 3 holds 8 (7 over)",
    }


def test_by_how_much_a_target_is_missed():
    found = goals(7, one_f_one_b(3, 6).to_csv())
    assert found["makespan"] == "34 (at most 28): 6 over"
    assert found["bubble"] == "47.1 % (at most 35.7 %): 11.3 points over"  # 1 - 18/34 and 1 - 18/28
    assert found["in flight"] == "3 2 1 (at most 5 3 1): kept"


def test_better_than_asked_for():
    easy = Level("Easy", "End at 24.", 4, 8, 24, one_f_one_b(4, 8))
    assert goals(easy, one_f_one_b(4, 8).to_csv())["makespan"] == "22 (at most 24): kept, 2 less"


def test_a_cap_is_seen_to_break_at_once():
    assert goals(4, "F0 F1 F2\n\nF0")["in flight"] == "3 0 1 (at most 3 2 1): so far"
    assert goals(4, "F0 F1 F2\n\nF0 F1")["in flight"] == "3 0 2 (at most 3 2 1): rank 2 holds 2 (1 over)"


def test_what_waits_counts_as_held():
    """Rank 1's forwards have nothing to run on yet: their order alone says what it will hold."""
    assert goals(4, "\nF0 F1 F2\n")["in flight"].startswith("0 3 0 ")


def test_a_target_that_is_out_of_reach_is_seen_at_once():
    """Naive on level 2: rank 0 runs F1 at 4 to 5, and B1 is still to come, which rank 1 alone delays to 7."""
    assert goals(2, "F0 B0\nF0 B0")["makespan"] == "4 (at most 6): so far"
    assert goals(3, "F0 B0\nF0 B0\nF0 B0")["makespan"] == ("6 (at most 12): so far")
    late = goals(3, "F0 B0 F1 B1\nF0 B0 F1 B1\nF0 B0 F1 B1")["makespan"]
    assert late == "12 (at most 12): rank 0 has more to run than time: it cannot end before 16"


def test_what_waits_still_has_to_run():
    """Rank 0 is done with F1 at 7 and has B1 placed and four more to come: 12 at best."""
    hard = Level("Hard", "", 3, 4, 11, gpipe(3, 4))
    assert goals(hard, "F0 B0 F1 B1\nF0 B0\nF0 B0")["makespan"] == (
        "7 (at most 11): rank 0 has more to run than time: it cannot end before 12"
    )


def test_an_empty_board_has_no_figures_yet():
    assert goals(4, "") == {
        "makespan": "0 (at most 12): so far",
        "bubble": "0.0 % (at most 33.3 %): so far",
        "in flight": "0 0 0 (at most 3 2 1): so far",
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (one_f_one_b(4, 8).to_csv(), "This is 1F1B."),
        (gpipe(4, 8).to_csv(), "This is GPipe."),
        (naive(4, 8).to_csv(), "This is naive."),
        ("F0 B0\nF0 B0", "This is naive, GPipe and 1F1B: with p=2 and m=1 they are the same."),
        ("F0 F1 B0 B1", "This is GPipe."),
        ("F0 B0 F1 B1", "This is naive and 1F1B: with p=1 and m=2 they are the same."),
        ("F1 F0 B1 B0\nF1 B1 F0 B0", "This is 1F1B, with its microbatches numbered otherwise."),
        ("F1 F2 F0 B1 B2 B0", "This is GPipe, with its microbatches numbered otherwise."),
        ("F1 F0 B1 B0\nF0 B0 F1 B1", "This is an order of your own."),
        ("F0 F1 B1 B0\nF0 F1 B1 B0", "This is an order of your own."),
        (interleaved(2, 4, 2).to_csv(), "This is interleaved 1F1B."),
        (interleaved(2, 4, 3).to_csv(), "This is interleaved 1F1B."),
        (looped_bfs(2, 4, 2).to_csv(), "This is looped BFS."),
        (zb_h1(3, 4).to_csv(), "This is ZB-H1."),
        (zb_h2(3, 4).to_csv(), "This is ZB-H2."),
        (zb_v(3, 4).to_csv(), "This is ZB-V."),
        (dualpipev(2, 4).to_csv(), "This is DualPipeV."),
        (zb_h1(2, 2).to_csv(), "This is ZB-H1 and ZB-H2: with p=2 and m=2 they are the same."),
    ],
)
def test_what_was_built_is_recognised(text, sentence, monkeypatch):
    for name in SCHEDULES.keys() - theory.IDLE.keys():  # one that is new may be the same as one of these
        monkeypatch.delitem(SCHEDULES, name)
    assert recognise(Schedule.from_text(text.replace(",", " "))) == sentence


def test_only_whole_schedules_are_recognised():
    assert play(5, "F0\n\n\n").score.recognised == ""


# the game


def test_undo_and_redo():
    game = Game(2)
    assert (game.can_undo, game.can_redo, game.undo(), game.redo()) == (False, False, False, False)
    for move in ("F0", "F1", "B0"):
        assert game.place(0, move) is None
    assert game.undo()
    assert game.undo()
    assert order(game.position.schedule, 0) == "F0"
    assert game.redo()
    assert order(game.position.schedule, 0) == "F0 F1"
    assert game.place(1, "F0") is None  # another way: what was taken back is gone
    assert not game.can_redo
    assert game.position.to_text() == "0F0,0F1\n1F0\n"


def test_a_refused_move_leaves_no_trace():
    game = Game(2)
    reason = game.place(0, "B0")
    assert reason is not None
    assert reason.message == "rank 0 runs B0 before F0, whose result it needs: run F0 first"
    assert (game.can_undo, game.position.to_text()) == (False, "\n\n")


def test_loading_and_emptying_can_be_undone():
    game = play(2, "F0 F1\nF0")
    game.restart()
    assert game.position == Position.start(2, 2)
    assert game.undo()
    assert game.position.to_text() == "0F0,0F1\n1F0\n"
    with pytest.raises(ValueError, match="run F0 first"):
        game.load("B0")
    assert game.position.to_text() == "0F0,0F1\n1F0\n"
    assert game.undo()
    assert game.position == Position.start(2, 2)


def test_doing_nothing_is_no_move():
    game = Game(2)
    game.restart()
    game.load("")
    assert not game.can_undo
