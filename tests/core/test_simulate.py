"""Predicted times: the literature's numbers, the closed forms, and every start explained by what it waited for."""

from __future__ import annotations

import gc
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orders import F, dualpipe, dualpipe_v, golden, legal_schedules, rules

from ppedu.core.costs import Costs
from ppedu.core.operations import Action, ScheduleError
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.schedules import SCHEDULES, forward_only, gpipe, naive, one_f_one_b

HALVES = Costs(forward=1, input_grad=1, weight_grad=1)  # F = I = W = 1, so B = 2


def own_spans(timeline) -> list[float]:
    """For each rank, from the start of its first operation to the end of its last."""
    spans = [timeline.spans_of(rank) for rank in range(timeline.schedule.num_ranks)]
    return [mine[-1].end - mine[0].start for mine in spans]


def drawing(timeline) -> str:
    """A timeline of unit steps, as a figure in a paper shows it: a column a time step, '..' idle."""
    rows = []
    for rank in range(timeline.schedule.num_ranks):
        row = [".."] * round(timeline.makespan)
        for span in timeline.spans_of(rank):
            row[round(span.start)] = timeline.schedule.short(span.action)
        rows.append(" ".join(row))
    return "\n".join(rows)


# pictures


def test_gpipe_looks_like_the_figure():
    """GPipe, figure 2; Megatron-LM, SC'21, figure 3."""
    assert drawing(simulate(gpipe(p=4, m=4))) == (
        "F0 F1 F2 F3 .. .. .. .. .. .. B0 B1 B2 B3\n"
        ".. F0 F1 F2 F3 .. .. .. .. B0 B1 B2 B3 ..\n"
        ".. .. F0 F1 F2 F3 .. .. B0 B1 B2 B3 .. ..\n"
        ".. .. .. F0 F1 F2 F3 B0 B1 B2 B3 .. .. .."
    )


def test_one_f_one_b_looks_like_the_figure():
    """Megatron-LM, SC'21, figure 4, upper part, with F and B of one length."""
    assert drawing(simulate(one_f_one_b(p=4, m=8))) == (
        "F0 F1 F2 F3 .. .. .. B0 F4 B1 F5 B2 F6 B3 F7 B4 .. B5 .. B6 .. B7\n"
        ".. F0 F1 F2 .. .. B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 .. B6 .. B7 ..\n"
        ".. .. F0 F1 .. B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 .. B7 .. ..\n"
        ".. .. .. F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 .. .. .."
    )


def test_naive_is_a_staircase():
    assert drawing(simulate(naive(p=4))) == (
        "F0 .. .. .. .. .. .. B0\n.. F0 .. .. .. .. B0 ..\n.. .. F0 .. .. B0 .. ..\n.. .. .. F0 B0 .. .. .."
    )


def test_forwards_alone_are_a_wave():
    timeline = simulate(forward_only(p=3, m=4))
    assert drawing(timeline) == "F0 F1 F2 F3 .. ..\n.. F0 F1 F2 F3 ..\n.. .. F0 F1 F2 F3"
    assert all(span.start == span.rank + span.action.microbatch for span in timeline.spans)


# numbers


@pytest.mark.parametrize(("build", "peaks"), [(gpipe, (8, 8, 8, 8)), (one_f_one_b, (4, 3, 2, 1))])
def test_same_time_other_memory(build, peaks):
    """p=4, m=8: 22 steps and a bubble of 3/11 both; eight activations against at most four."""
    timeline = simulate(build(p=4, m=8))
    assert timeline.makespan == 22
    assert timeline.bubble_fraction == pytest.approx(3 / 11, rel=1e-15)
    assert timeline.bubble_over_ideal == 3 / 8
    assert timeline.utilization == pytest.approx(8 / 11, rel=1e-15)
    assert timeline.busy == (16,) * 4
    assert timeline.idle == (6,) * 4
    assert timeline.peak_in_flight == peaks
    assert simulate(build(p=4, m=8), Costs(backward=2)).makespan == 33


def test_naive_uses_one_of_p_devices():
    timeline = simulate(naive(p=4))
    assert (timeline.makespan, timeline.utilization, timeline.bubble_fraction) == (8, 0.25, 0.75)
    assert timeline.peak_in_flight == (1, 1, 1, 1)


def test_memory_of_gpipe_grows_with_m_and_of_one_f_one_b_does_not():
    assert simulate(gpipe(p=4, m=32)).peak_in_flight[0] == 32
    assert simulate(one_f_one_b(p=4, m=32)).peak_in_flight[0] == 4


def test_fewer_microbatches_than_ranks():
    timeline = simulate(one_f_one_b(p=4, m=2))
    assert timeline.makespan == 10
    assert timeline.peak_in_flight == (2, 2, 2, 1)


@pytest.mark.parametrize(
    ("costs", "of_gpipe", "of_one_f_one_b"),
    [
        # messages that take time separate the two schedules
        (Costs(forward=1, backward=2, transfer=1), 39, 49),
        (Costs(forward=1, backward=2, transfer=0.1), 33.6, 34.6),
        # a slow stage sets the pace
        (Costs(forward=[1, 2, 1, 1], backward=[2, 4, 2, 2]), 57, 53),
    ],
    ids=str,
)
def test_where_gpipe_and_one_f_one_b_differ(costs, of_gpipe, of_one_f_one_b):
    assert simulate(gpipe(p=4, m=8), costs).makespan == pytest.approx(of_gpipe, rel=1e-12)
    assert simulate(one_f_one_b(p=4, m=8), costs).makespan == pytest.approx(of_one_f_one_b, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "makespan", "own", "peaks"),
    [
        # Zero Bubble, ICLR'24, figures 2 and 3: ZB-H2 keeps at most 2p - 1 and is 24 long on every stage's own clock
        ("zbh1_p4_m8", 27, [27, 26, 25, 24], (4, 4, 4, 4)),
        ("zbh2_p4_m8", 27, [24, 24, 24, 24], (7, 7, 7, 7)),
        # its authors' V schedule: no idle time on a rank's own clock, 2p stage-microbatches of half the size
        ("zbv_p4_m8", 51, [48, 48, 48, 48], (8, 8, 8, 8)),
        # Megatron-LM, SC'21, 2.2.2: bubble (p-1)(F+B)/v, peaks min(mv, 2(p-i-1) + (v-1)p + 1)
        ("interleaved_p4_m8_v2", 57, [57, 54, 51, 48], (11, 9, 7, 5)),
        # Lamy-Poirier, 2022: the same bubble, all mv stage-microbatches kept
        ("looped_bfs_p4_m8_v2", 57, [57, 54, 51, 48], (16, 16, 16, 16)),
    ],
)
def test_schedules_of_the_literature(name, makespan, own, peaks):
    timeline = simulate(golden(name), HALVES)
    assert timeline.makespan == makespan
    assert own_spans(timeline) == own
    assert timeline.peak_in_flight == peaks


def test_interleaving_shortens_what_it_should():
    """Eight stages with F=1, B=2: 57 on four ranks of two stages each, 66 with both stages of a rank run as one."""
    assert simulate(golden("interleaved_p4_m8_v2"), Costs(backward=2)).makespan == 57
    assert simulate(one_f_one_b(p=4, m=8), Costs(forward=2, backward=4)).makespan == 66


@pytest.mark.parametrize("pair", [3.0, 2.5, 2.0])
@pytest.mark.parametrize(("schedule", "devices"), [(dualpipe(), 4), (dualpipe_v(), 8)], ids=["DualPipe", "DualPipeV"])
def test_dualpipe_idles_as_its_authors_say(schedule, devices, pair):
    """deepseek-ai/DualPipe, README: bubble (PP/2 - 1)(F&B + B - 3W), V on PP/2 devices; PP + 1 activations."""
    timeline = simulate(schedule, Costs(forward=1, input_grad=1, weight_grad=1, overlapped=pair))
    assert max(timeline.idle) == (devices / 2 - 1) * (pair + 2 - 3)
    assert max(timeline.peak_in_flight) == devices + 1


# any schedule


@pytest.mark.slow
@given(legal_schedules(), st.data())
@settings(max_examples=300)
def test_each_entry_starts_as_soon_as_it_can_and_no_sooner(schedule, data):
    """The definition itself, entry by entry: the latest of the rank's previous end and what comes from elsewhere."""
    stages = schedule.num_stages
    some = st.integers(0, 8).map(lambda eighths: eighths / 8)  # sums of eighths are exact
    each = st.lists(some, min_size=stages, max_size=stages)
    costs = Costs(
        data.draw(each), data.draw(each), data.draw(each), data.draw(each), data.draw(each | st.none()), data.draw(some)
    )
    timeline = simulate(schedule, costs)
    span_of = {a: span for span in timeline.spans for a in span.action.actions}
    assert [[s.action for s in timeline.spans if s.rank == rank] for rank in range(schedule.num_ranks)] == [
        list(order) for order in schedule.orders
    ]
    free = [0.0] * schedule.num_ranks
    for span in timeline.spans:
        needed = [some for a in span.action.actions for some in rules(a, schedule.chain_length)]
        producers = [span_of[next(a for a in some if a in span_of)] for some in needed]
        there = [producer.end + costs.transfer * (producer.rank != span.rank) for producer in producers]
        assert span.start == max([free[span.rank], *there])
        assert span.end == span.start + costs.duration(span.action)
        free[span.rank] = span.end


@given(legal_schedules(pairs=False), st.integers(0, 4))
def test_slower_messages_never_make_a_step_shorter(schedule, transfer):
    free, slow = simulate(schedule), simulate(schedule, Costs(transfer=transfer))
    assert slow.makespan >= free.makespan
    assert slow.busy == free.busy


# words


def test_the_caption_says_what_was_assumed():
    assert simulate(gpipe(2, 2)).provenance == "predicted, F=1 B=1"
    timeline = simulate(gpipe(2, 2), Costs(forward=0.02, backward=0.04, transfer=0.001, unit="s"))
    assert timeline.provenance == "predicted, F=0.02 s B=0.04 s, transfer 0.001 s"
    assert timeline.unit == "s"
    assert not timeline.measured


def test_an_illegal_schedule_is_refused_with_the_reasons():
    with pytest.raises(ScheduleError, match=r"custom p=2 m=1 cannot run: rank 1 runs B0 before F0") as caught:
        simulate(Schedule.from_text("F0 B0\nB0 F0"))
    assert [v.rule for v in caught.value.violations] == ["B before F"]
    with pytest.raises(ScheduleError, match="rank 0 waits at B0 for rank 1's B0, which waits behind F1"):
        simulate(Schedule.from_text("F0 B0 F1 B1\nF0 F1 B0 B1"))


def test_costs_must_fit():
    with pytest.raises(ValueError, match="costs are given for 3 stages, but GPipe p=4 m=8 has 4"):
        simulate(gpipe(p=4, m=8), Costs(forward=[1, 2, 3]))


def test_operations_that_take_no_time():
    timeline = simulate(one_f_one_b(p=4, m=8), Costs(forward=0, backward=0))
    assert (timeline.makespan, timeline.bubble_fraction, timeline.bubble_over_ideal) == (0, 0, 0)
    assert timeline.peak_in_flight == (4, 3, 2, 1)


def test_a_rank_without_operations_is_idle():
    timeline = simulate(Schedule("one of two", 1, (0,), ((Action(0, F, 0),), ())))
    assert (timeline.makespan, timeline.busy, timeline.idle, timeline.peak_in_flight) == (1, (1, 0), (0, 1), (1, 0))


@pytest.mark.timing
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_large_pipeline_takes_seconds(name):
    """p=64, m=1024: a second for each 131,072 operations, validation included. Processor time, since others use the
    machine too. (GPipe and 1F1B have as many; two stages on each rank, and a B in two, make it up to three times that.)"""
    schedule = SCHEDULES[name](p=64, m=1024)
    took = []
    for _ in range(3):
        gc.collect()
        start = time.process_time()
        timeline = simulate(schedule)
        took.append(time.process_time() - start)
        assert timeline.complete
    assert min(took) < sum(len(e.actions) for order in schedule.orders for e in order) / 131_072


@pytest.mark.parametrize(
    ("schedule", "costs", "text"),
    [("1f1b", Costs(), "a schedule is what ppedu.gpipe"), (gpipe(2, 2), 3, "costs is ppedu.Costs.* costs=3")],
)
def test_only_schedules_and_costs_are_simulated(schedule, costs, text):
    with pytest.raises(TypeError, match=text):
        simulate(schedule, costs)
