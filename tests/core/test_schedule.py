"""The types: text and CSV both ways, dependencies, costs."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orders import B, F, I, W, dualpipe, dualpipe_v, golden, legal_schedules, rules

from ppedu.core.checks import whole
from ppedu.core.costs import Costs
from ppedu.core.operations import Action, Overlap, ScheduleError
from ppedu.core.schedule import Schedule, dependencies, dependents
from ppedu.core.text import parse_entry
from ppedu.core.validate import violations
from ppedu.schedules import dualpipe as dualpipe_built
from ppedu.schedules import forward_only, gpipe, interleaved, naive, one_f_one_b


def in_full(schedule: Schedule) -> bool:
    """Every stage and rank has something to run, so that text tells the whole schedule."""
    stages = {a.stage for order in schedule.orders for entry in order for a in entry.actions}
    return all(schedule.orders) and len(stages) == schedule.num_stages


@given(legal_schedules().filter(in_full))
def test_csv_and_text_read_back_what_they_write(schedule):
    assert Schedule.from_csv(schedule.to_csv(), "random", schedule.chains) == schedule
    assert Schedule.from_text(str(schedule), "random", schedule.chains) == schedule


@pytest.mark.parametrize("build", [naive, gpipe, one_f_one_b])
def test_builders_read_back(build):
    schedule = build(p=3, m=5)
    assert Schedule.from_csv(schedule.to_csv(), schedule.name) == schedule
    assert Schedule.from_text(str(schedule), schedule.name) == schedule
    assert pickle.loads(pickle.dumps(schedule)) == schedule


def test_a_rank_is_where_its_line_says():
    with pytest.raises(ScheduleError, match=r"where rank 0 should stand is 'rank 1:'. Sort the lines"):
        Schedule.from_text("rank 1: F0 B0\nrank 0: F0 B0")
    with pytest.raises(ScheduleError, match=r"where rank 1 should stand is 'rank 2:'"):
        Schedule.from_text("rank 0: F0 B0\nrank 2: F0 B0")
    assert Schedule.from_text("rank 0: F0 B0\nF0 B0\n\nrank 2: F0 B0").num_ranks == 3


@pytest.mark.parametrize("read", [Schedule.from_text, Schedule.from_csv])
def test_a_schedule_is_read_from_one_string(read):
    with pytest.raises(TypeError, match="read from one string with a line a rank, but this is of type list"):
        read(["F0 B0", "F0 B0"])


def test_text_is_what_a_reader_types():
    schedule = Schedule.from_text("rank 0: F0 F1  B0 B1\n\nrank 1: F0 B0 F1 B1")
    assert schedule.orders[1] == (Action(1, F, 0), Action(1, B, 0), Action(1, F, 1), Action(1, B, 1))
    assert Schedule.from_csv("0F0,,0B0,\n1F0, 1B0\n") == Schedule.from_text("F0 B0\nF0 B0")  # idle slots are skipped
    assert Schedule.from_text("F1&B0", name="x").orders[0] == (Overlap(Action(0, F, 1), Action(0, B, 0)),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("F0 X0", "rank 0: 'X0' is no operation. An operation is its stage, a letter of F B I W"),
        ("F0 B0\nF0 B", "rank 1: 'B' is no operation"),
        ("F0 2SEND_F0", "'2SEND_F0' is no operation"),
        ("", "the schedule is empty"),
        ("F0 B0\n999999999F0", "stages run from 0 to 999999999, but no rank runs stage 1"),
        ("F0 B0\n2F0 2B0", "stages run from 0 to 2, but no rank runs stage 1"),
    ],
)
def test_unreadable_text_gets_a_sentence(text, says):
    with pytest.raises(ScheduleError, match=says):
        Schedule.from_text(text)


def test_torch_writes_pairs_like_this():
    pair = Overlap(Action(0, F, 7), Action(7, B, 3))
    assert str(pair) == "(0F7;7B3)OVERLAP_F_B"
    assert parse_entry(str(pair)) == pair == parse_entry("0F7&7B3")


# orders from a function


def one_forward_one_backward(rank: int, p: int, m: int) -> str:
    """1F1B as a reader writes it."""
    ahead = min(p - 1 - rank, m)
    words = [f"F{i}" for i in range(ahead)]
    for i in range(m - ahead):
        words += [f"F{ahead + i}", f"B{i}"]
    return " ".join([*words, *(f"B{i}" for i in range(m - ahead, m))])


@given(st.integers(1, 8), st.integers(1, 12))
def test_a_function_writes_a_schedule_for_every_p_and_m(p, m):
    assert Schedule.from_function(one_forward_one_backward, p, m).orders == one_f_one_b(p, m).orders


@pytest.mark.parametrize(
    "order",
    [
        lambda rank, p, m: "F0 F1 B0 B1",
        lambda rank, p, m: ["F0", " F1 ", "B0", "B1"],
        lambda rank, p, m: tuple(f"{rank}{kind}{i}" for kind in "FB" for i in range(m)),
        lambda rank, p, m: (f"{kind}{i}" for kind in "FB" for i in range(m)),
        lambda rank, p, m: [Action(rank, kind, i) for kind in (F, B) for i in range(m)],
        lambda rank, p, m: ["F0", Action(rank, F, 1), f"{rank}B0", "B1"],
    ],
    ids=["text", "words", "stages", "generator", "actions", "mixed"],
)
def test_a_function_may_return_words_actions_or_a_generator(order):
    assert Schedule.from_function(order, p=3, m=2, name="mine").orders == gpipe(p=3, m=2).orders


def test_a_function_may_yield():
    def order(rank, p, m):
        for i in range(m):
            yield f"F{i}"
            yield f"B{i}"

    assert Schedule.from_function(order, 2, 3) == Schedule.from_text(str(naive(2, 3)))


def test_a_function_may_write_pairs_chains_and_other_placements():
    def vee(rank, p, m):
        return [f"{rank}F0", f"{2 * p - 1 - rank}F0", f"{2 * p - 1 - rank}B0", f"{rank}B0"]

    assert Schedule.from_function(vee, p=3, m=1).rank_of_stage == (0, 1, 2, 2, 1, 0)
    paired = Schedule.from_function(lambda rank, p, m: ["F0", Overlap(Action(0, F, 1), Action(0, B, 0)), "B1"], 1, 2)
    assert paired == Schedule.from_text("F0 F1&B0 B1")
    both = Schedule.from_function(lambda rank, p, m: f"{rank}F{rank} {rank}B{rank}", p=2, m=2, chains=2)
    assert (both.chains, both.chain_length) == (2, 1)


def test_m_is_what_was_asked_for_and_not_what_the_words_count_up_to():
    """A function that forgets the last microbatch is found out."""
    forgetful = Schedule.from_function(lambda rank, p, m: [f"F{i}" for i in range(m - 1)], p=2, m=4)
    assert forgetful.num_microbatches == 4
    assert [v.message for v in violations(forgetful)] == [
        f"rank {rank} never runs F3: every microbatch passes every stage (m=4)" for rank in (0, 1)
    ]
    beyond = Schedule.from_function(lambda rank, p, m: [f"F{i}" for i in range(m + 1)], p=1, m=2)
    assert [v.rule for v in violations(beyond)] == ["unknown microbatch"]


@pytest.mark.parametrize(
    ("order", "p", "error", "says"),
    [
        (lambda rank, p, m: None, 2, TypeError, r"the order of rank 0 is text .* returned nothing \(is a return missing\?\)"),
        (lambda rank, p, m: 3, 2, TypeError, "the order of rank 0 is text like 'F0 F1 B0 B1' or a list of such words, but the function returned 3"),
        (lambda rank, p, m: ["F0", 1], 2, TypeError, "rank 0: an operation is a word like 'F0' or '2F0', an Action or an Overlap: 1"),
        (lambda rank, p, m: ["F0", ("F", 1)], 2, TypeError, r"rank 0: an operation is a word .*: \('F', 1\)"),
        (lambda rank, p, m: "F0 X0" if rank else "F0", 2, ScheduleError, "rank 1: 'X0' is no operation"),
        (lambda rank, p, m: "", 2, ScheduleError, "the schedule is empty"),
        (lambda rank, p, m: "0F0" if rank == 0 else "5F0", 2, ScheduleError, "stages run from 0 to 5, but no rank runs stage 1"),
        (lambda rank, p, m: "F0", 0, ValueError, "p is the number of ranks, a whole number of at least 1: p=0"),
        (lambda rank, p, m: "F0", 1.5, ValueError, "p=1.5"),
    ],
)  # fmt: skip
def test_what_a_function_may_not_return(order, p, error, says):
    with pytest.raises(error, match=says):
        Schedule.from_function(order, p, 2)


@pytest.mark.parametrize("m", [0, -1, True, "2", None])
def test_a_function_is_asked_for_microbatches_that_there_can_be(m):
    with pytest.raises(ValueError, match=f"m is the number of microbatches, a whole number of at least 1: m={m!r}"):
        Schedule.from_function(one_forward_one_backward, 2, m)


def test_a_stage_that_stands_on_two_ranks_is_on_the_first_of_them():
    """Which of them is wrong only the reader knows: validation names both."""
    twice = Schedule.from_function(lambda rank, p, m: "0F0 1F0" if rank == 0 else "1F0", p=2, m=1)
    assert twice.rank_of_stage == (0, 0)
    assert [v.message for v in violations(twice)] == ["rank 1 runs 1F0, but stage 1 is on rank 0: move it there"]


def test_errors_of_the_function_come_through():
    with pytest.raises(ZeroDivisionError):
        Schedule.from_function(lambda rank, p, m: "F" + str(1 // rank), 2, 2)


# placement and dependencies


def test_placement_is_read_from_the_orders():
    assert golden("interleaved_p4_m8_v2").rank_of_stage == (0, 1, 2, 3, 0, 1, 2, 3)
    assert golden("zbv_p4_m8").rank_of_stage == (0, 1, 2, 3, 3, 2, 1, 0)


def test_chains_share_the_microbatches():
    schedule = dualpipe()
    assert (schedule.chain_length, schedule.num_stages) == (4, 8)
    assert [list(schedule.microbatches_of(stage)) for stage in (0, 3, 4, 7)] == [[0, 1, 2, 3]] * 2 + [[4, 5, 6, 7]] * 2


@pytest.mark.parametrize(
    ("action", "needed"),
    [
        (Action(0, F, 2), []),
        (Action(2, F, 2), [Action(1, F, 2)]),
        (Action(3, B, 2), [Action(3, F, 2)]),  # the last stage needs no gradient from elsewhere, but its own forward
        (Action(1, B, 2), [Action(1, F, 2), Action(2, B, 2)]),
    ],
)
def test_dependencies_of_a_chain(action, needed):
    assert list(dependencies(action, one_f_one_b(p=4, m=8))) == needed


def test_dependencies_where_backward_is_split():
    schedule = golden("zbh1_p4_m8")
    assert dependencies(Action(1, I, 2), schedule) == (Action(1, F, 2), Action(2, I, 2))
    assert dependencies(Action(1, W, 2), schedule) == (Action(1, I, 2),)
    assert set(dependents(Action(1, I, 2), schedule)) == {Action(1, W, 2), Action(0, I, 2)}


def test_chains_do_not_depend_on_each_other():
    """Stage 4 opens DualPipe's second chain, and follows stage 3 in DualPipeV's only one."""
    assert dependencies(Action(4, F, 5), dualpipe()) == ()
    assert dependencies(Action(3, B, 1), dualpipe()) == (Action(3, F, 1),)
    assert dependencies(Action(4, F, 5), dualpipe_v()) == (Action(3, F, 5),)


@given(legal_schedules())
def test_dependencies_agree_with_the_rules_written_twice(schedule):
    actions = [a for order in schedule.orders for entry in order for a in entry.actions]
    for action in actions:
        found, expected = dependencies(action, schedule), rules(action, schedule.chain_length)
        assert len(found) == len(expected)
        assert all(a in some and a in actions for a, some in zip(found, expected, strict=True))
        assert all(action in dependencies(other, schedule) for other in dependents(action, schedule))
        assert all(action in dependents(needed, schedule) for needed in found)


# costs


def test_costs_default_to_each_other():
    assert Costs().duration(Action(0, B, 0)) == 1
    split = Costs(forward=1, input_grad=3, weight_grad=2)
    assert [split.duration(Action(0, kind, 0)) for kind in (F, B, I, W)] == [1, 5, 3, 2]
    assert Costs(backward=5, input_grad=3).duration(Action(0, W, 0)) == 2
    pair = Overlap(Action(0, F, 1), Action(1, B, 0))
    assert Costs(forward=[1, 2], backward=[3, 4]).duration(pair) == 5
    assert Costs(overlapped=1.5).duration(pair) == 1.5


def test_costs_of_each_stage_must_fit_the_schedule():
    Costs(forward=[1, 2, 3, 4]).check(one_f_one_b(p=4, m=2))
    with pytest.raises(
        ValueError, match="for 3 stages, but 1F1B p=4 m=2 has 4: give one number for all, or one a stage"
    ):
        Costs(forward=[1, 2, 3]).check(one_f_one_b(p=4, m=2))


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "1", [1, -1]])
def test_impossible_costs_are_refused(wrong):
    with pytest.raises(ValueError, match="a cost is a number of at least 0"):
        Costs(forward=wrong)


def test_forward_and_transfer_are_given_and_transfer_is_one_number():
    with pytest.raises(ValueError, match="a cost is a number of at least 0: forward is None"):
        Costs(forward=None)
    for wrong in ([1, 2], None):
        with pytest.raises(ValueError, match="transfer is one for all: transfer is"):
            Costs(transfer=wrong)


@given(st.integers(0, 99), st.sampled_from([F, B, I, W]), st.integers(0, 99))
def test_an_action_reads_back(stage, kind, microbatch):
    action = Action(stage, kind, microbatch)
    assert parse_entry(str(action)) == action


def test_what_is_no_order_of_a_rank_gets_a_sentence():
    """A set would put the operations in an order of its own, another one each time."""
    with pytest.raises(TypeError, match=r"or a list of such words, but the function returned \{"):
        Schedule.from_function(lambda rank, p, m: {"F0", "B0"}, 2, 1)
    with pytest.raises(TypeError, match=r"order is a function \(rank, p, m\) -> 'F0 F1 B0 B1': order='F0 B0'"):
        Schedule.from_function("F0 B0", 2, 1)


def test_what_an_order_is_made_of():
    pair = Schedule.from_text("F0 F1&B0 B1\nF0 B0 F1 I1 W1")
    assert [str(action) for action in pair.actions] == ["0F0", "0F1", "0B0", "0B1", "1F0", "1B0", "1F1", "1I1", "1W1"]
    assert pair.kinds == {F, B, I, W}
    assert forward_only(2, 3).kinds == {F}
    assert [s.stage_size for s in (gpipe(4, 8), interleaved(4, 8, v=3), dualpipe_built(4, 8))] == [1, 1 / 3, 1]
    assert [interleaved(2, 2, v=2).stages_of(rank) for rank in range(2)] == [(0, 2), (1, 3)]


def test_all_times_of_costs_are_scaled():
    costs = Costs([1, 2], 3, 1, 2, 4, transfer=0.5)
    assert costs.scaled(2, "s") == Costs([2, 4], 6, 2, 4, 8, transfer=1, unit="s")
    assert Costs(0, unit="ms").scaled(3) == Costs(0, unit="ms")


@pytest.mark.parametrize("wrong", [0, -1, 2.0, "2", True, None, 5])
def test_a_whole_number_is_told_from_others(wrong):
    with pytest.raises(ValueError, match="n is the number of lots, a whole number from 1 to 4: n="):
        whole("n", wrong, "the number of lots", most=4)
    assert whole("n", 4, most=4) == 4
