"""What a timeline tells: figures, phases, the critical path, gaps, text and exports; predicted, measured or cut short."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orders import B, F, I, W, dualpipe, dualpipe_v, golden, legal_schedules

from ppedu import schedules as builders
from ppedu.core.costs import Costs
from ppedu.core.operations import Action, Kind, Overlap
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.core.spans import Span
from ppedu.core.timeline import Timeline
from ppedu.schedules import forward_only, gpipe, naive, one_f_one_b

HALVES = Costs(forward=1, input_grad=1, weight_grad=1)


def names(timeline: Timeline, entries) -> str:
    return " ".join(map(timeline.schedule.short, entries))


def measured(schedule: Schedule, times: dict[str, tuple[float, float]], unit: str = "") -> Timeline:
    """A timeline as a run would give it, from '2F0': (start, end)."""
    places = ((entry, rank) for rank, order in enumerate(schedule.orders) for entry in order)
    spans = (Span(entry, rank, *times[str(entry)]) for entry, rank in places if str(entry) in times)
    return Timeline(schedule, tuple(spans), "2 CPU processes", unit, measured=True)


# figures


def test_both_denominators():
    """Idle time over ranks x makespan, and over busy time: (p-1)/(m+p-1) and the (p-1)/m of papers."""
    timeline = simulate(gpipe(p=4, m=2))
    assert timeline.bubble_fraction == pytest.approx(3 / 5, rel=1e-15)
    assert timeline.bubble_over_ideal == 3 / 2
    assert timeline.utilization == pytest.approx(2 / 5, rel=1e-15)


def test_in_flight_is_a_step_curve():
    timeline = simulate(one_f_one_b(p=2, m=3))
    assert timeline.in_flight(0) == ((0, 1), (1, 2), (6, 1), (8, 0))  # B0 ends at 4, where F2 starts: no step
    assert timeline.in_flight(1) == ((0, 0), (1, 1), (7, 0))
    assert timeline.peak_in_flight == (2, 1)


def test_a_split_backward_frees_at_its_end():
    """Activations are free after W only, for it reads them too."""
    schedule = Schedule.from_text("F0 I0 F1 I1 W0 W1")
    timeline = simulate(schedule)
    assert timeline.in_flight(0) == ((0, 1), (1.5, 2), (3.5, 1), (4, 0))
    assert timeline.peak_in_flight == (2,)


@pytest.mark.parametrize(
    ("schedule", "stage_microbatches", "activations"),
    [
        (gpipe(p=4, m=8), (8, 8, 8, 8), (8, 8, 8, 8)),  # one stage on each rank: the same
        (one_f_one_b(p=4, m=8), (4, 3, 2, 1), (4, 3, 2, 1)),
        (golden("zbh2_p4_m8"), (7, 7, 7, 7), (7, 7, 7, 7)),
        # two stages of half the size on each rank. Megatron-LM, 2.2: interleaving keeps more than 1F1B's 4 3 2 1
        (golden("interleaved_p4_m8_v2"), (11, 9, 7, 5), (5.5, 4.5, 3.5, 2.5)),
        (golden("looped_bfs_p4_m8_v2"), (16, 16, 16, 16), (8, 8, 8, 8)),  # Lamy-Poirier: GPipe's
        (golden("zbv_p4_m8"), (8, 8, 8, 8), (4, 4, 4, 4)),  # its authors: 1F1B's, p, on every rank
        (dualpipe(), (5, 5, 5, 5), (5, 5, 5, 5)),  # two stages, each a whole fourth: DeepSeek's PP + 1
        (dualpipe_v(), (9, 9, 9, 9), (4.5, 4.5, 4.5, 4.5)),  # PP + 1 eighths
    ],
    ids=lambda value: value.label if isinstance(value, Schedule) else "",
)
def test_peaks_in_units_that_compare(schedule, stage_microbatches, activations):
    """What a microbatch leaves on one p-th of the model, however many stages that is."""
    timeline = simulate(schedule, HALVES)
    assert timeline.peak_in_flight == stage_microbatches
    assert timeline.peak_activations == activations


@given(legal_schedules())
def test_peak_activations_never_exceed_every_microbatch_of_every_stage_of_the_rank(schedule):
    timeline = simulate(schedule)
    share = schedule.num_ranks / schedule.chain_length
    for rank, peak in enumerate(timeline.peak_activations):
        mine = [stage for stage, at in enumerate(schedule.rank_of_stage) if at == rank]
        assert 0 <= peak <= share * sum(len(schedule.microbatches_of(stage)) for stage in mine)
    assert timeline.peak_activations == tuple(share * peak for peak in timeline.peak_in_flight)


def test_an_overlapped_pair_holds_what_it_makes_and_what_it_frees():
    schedule = Schedule.from_text("F0 F1&B0 B1")
    timeline = simulate(schedule)
    assert timeline.in_flight(0) == ((0, 1), (1, 2), (3, 1), (4, 0))


def test_forwards_alone_free_nothing():
    timeline = simulate(forward_only(p=2, m=3))
    assert timeline.in_flight(1) == ((0, 0), (1, 1), (2, 2), (3, 3))
    assert timeline.peak_in_flight == (3, 3)


@given(legal_schedules(), st.sampled_from([0.0, 1.0]))
def test_curve_and_peak_agree(schedule, transfer):
    timeline = simulate(schedule, Costs(transfer=transfer))
    trains = any(a.kind is not F for order in schedule.orders for entry in order for a in entry.actions)
    for rank in range(schedule.num_ranks):
        times, counts = zip(*timeline.in_flight(rank), strict=True)
        assert max(counts) == timeline.peak_in_flight[rank]
        assert min(counts) >= 0
        assert list(times) == sorted(set(times))
        forwards = sum(a.kind is F for entry in schedule.orders[rank] for a in entry.actions)
        assert counts[-1] == (0 if trains else forwards)


@given(legal_schedules(), st.sampled_from([0.0, 0.5]))
def test_idle_time_is_what_the_gaps_are(schedule, transfer):
    timeline = simulate(schedule, Costs(transfer=transfer))
    for rank in range(schedule.num_ranks):
        gaps = timeline.gaps(rank)
        assert sum(gap.end - gap.start for gap in gaps) == pytest.approx(timeline.idle[rank], abs=1e-9)
        assert all(gap.start < gap.end and gap.rank == rank for gap in gaps)
    whole = timeline.makespan * schedule.num_ranks
    assert timeline.bubble_fraction == pytest.approx(sum(timeline.idle) / whole)
    assert 0 <= timeline.bubble_fraction <= 1


# costs, read back from what ran


@pytest.mark.parametrize("schedule", [one_f_one_b(p=4, m=6), golden("zbv_p4_m8")], ids=lambda s: s.label)
def test_costs_of_a_prediction_predict_it_again(schedule):
    stages = range(schedule.num_stages)
    costs = Costs(
        [1 + s for s in stages], [2 + s for s in stages], [0.5 + s for s in stages], [1.5] * len(stages), unit="s"
    )
    timeline = simulate(schedule, costs)
    assert simulate(schedule, timeline.costs()).spans == timeline.spans
    assert timeline.costs().unit == "s"


@pytest.mark.parametrize(
    "schedule", [dualpipe(), dualpipe_v(), builders.dualpipe(2, 8), builders.dualpipev(1, 2)], ids=str
)
@pytest.mark.parametrize("pair", [None, 3.5])
def test_costs_of_overlapped_pairs_predict_them_again(schedule, pair):
    """On some stages B runs in pairs alone: it must not count as free, nor I and W where only B ran."""
    costs = Costs(forward=2, input_grad=1.5, weight_grad=1.5, overlapped=pair)
    again = simulate(schedule, costs).costs()
    assert simulate(schedule, again).spans == simulate(schedule, costs).spans
    for action in (Action(stage, kind, 0) for stage in range(schedule.num_stages) for kind in Kind if pair is None):
        assert again.duration(action) == costs.duration(action)


def test_costs_of_halves_that_never_ran_alone():
    """The rest of the pair beside what is known; half of it where nothing is."""
    known = Schedule.from_text("F0 F1&B0 B1")
    found = measured(known, {"0F0": (0, 2), "(0F1;0B0)OVERLAP_F_B": (2, 7)}).costs()
    assert [found.duration(Action(0, kind, 0)) for kind in (F, B, I, W)] == [2, 3, 1.5, 1.5]
    unknown = measured(known, {"(0F1;0B0)OVERLAP_F_B": (2, 7)}).costs()
    assert [unknown.duration(Action(0, kind, 0)) for kind in (F, B)] == [2.5, 2.5]


def test_costs_are_medians():
    times = {"0F0": (0, 1), "0F1": (1, 3), "0F2": (3, 12), "1F0": (1, 2)}
    found = measured(forward_only(p=2, m=3), times).costs()
    assert [found.duration(Action(stage, F, 0)) for stage in (0, 1)] == [2, 1]


def test_costs_of_a_run_that_was_stopped():
    found = measured(golden("zbh1_p4_m8"), {"0F0": (0, 1), "3F0": (1, 2), "3I0": (2, 5)}).costs()
    assert [found.duration(Action(3, kind, 0)) for kind in (F, I, W)] == [1, 3, 0]
    assert Timeline(gpipe(p=2, m=1), (), "measured").costs().duration(Action(0, F, 0)) == 0


# phases


@pytest.mark.parametrize(
    ("schedule", "borders"),
    [
        (gpipe(p=4, m=8), (0, 3, 19, 22)),
        (one_f_one_b(p=4, m=8), (0, 3, 19, 22)),
        (naive(p=4), (0, 3, 5, 8)),
        (gpipe(p=1, m=2), (0, 0, 4, 4)),
        (forward_only(p=4, m=2), (0, 3, 3, 5)),  # rank 0 is done at 2, before rank 3 starts at 3: nothing is steady
    ],
    ids=str,
)
def test_phases_by_time(schedule, borders):
    phases = simulate(schedule).phases()
    assert (*phases.warmup, *phases.steady, *phases.cooldown) == (*borders[:2], *borders[1:3], *borders[2:])


@pytest.mark.parametrize(
    ("schedule", "rank", "parts"),
    [
        (one_f_one_b(p=4, m=8), 0, ("F0 F1 F2", "F3 B0 F4 B1 F5 B2 F6 B3 F7 B4", "B5 B6 B7")),
        (one_f_one_b(p=4, m=8), 2, ("F0", "F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6", "B7")),
        (one_f_one_b(p=4, m=8), 3, ("", "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7", "")),
        (gpipe(p=2, m=3), 0, ("F0 F1 F2", "", "B0 B1 B2")),
        (forward_only(p=2, m=2), 1, ("F0 F1", "", "")),
        (golden("1f1b_p4_m2"), 0, ("F0 F1", "", "B0 B1")),
        (
            golden("zbh1_p4_m8"),
            0,
            ("F0 F1 F2", "F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4", "W4 I5 W5 I6 W6 I7 W7"),
        ),
        (Schedule.from_text("F0 F1 F2&B0 F3&B1 B2 B3"), 0, ("F0 F1", "F2&B0 F3&B1", "B2 B3")),
        (Schedule.from_text("F0 F1 B0 F2 B1&F3", name="illegal"), 0, ("F0", "F1 B0 F2 B1&F3", "")),
        (Schedule("empty", 1, (0,), ((Action(0, F, 0),), ())), 1, ("", "", "")),
    ],
)
def test_phases_by_order(schedule, rank, parts):
    timeline = Timeline(schedule, (), "measured")
    assert tuple(names(timeline, part) for part in timeline.phases_of(rank)) == parts


@given(legal_schedules())
def test_phases_by_order_are_the_whole_order(schedule):
    timeline = Timeline(schedule, (), "measured")
    for rank, order in enumerate(schedule.orders):
        leading, alternation, trailing = timeline.phases_of(rank)
        assert leading + alternation + trailing == order
        assert all(a.kind is F for entry in leading for a in entry.actions)
        assert all(a.kind is not F for entry in trailing for a in entry.actions)


# the critical path


def test_critical_path_of_gpipe():
    """Down the ranks with the first microbatch, all of them through the last stage, and up with the last one's gradient."""
    timeline = simulate(gpipe(p=3, m=2))
    assert [f"{span.rank}:{timeline.schedule.short(span.action)}" for span in timeline.critical_path()] == (
        ["0:F0", "1:F0", "2:F0", "2:F1", "2:B0", "1:B0", "0:B0", "0:B1"]
    )


def test_critical_path_goes_by_the_slow_stage():
    timeline = simulate(gpipe(p=3, m=5), Costs(forward=[1, 3, 1], backward=[1, 3, 1]))
    path = timeline.critical_path()
    assert sum(span.rank == 1 for span in path) == 10  # every operation of the slow stage
    assert sum(span.duration for span in path) == timeline.makespan


@given(legal_schedules(), st.sampled_from([0.0, 0.25, 3.0]))
@settings(max_examples=200)
def test_critical_path_is_the_makespan(schedule, transfer):
    """No hole in it but the messages': what makes any of it shorter makes the step shorter."""
    timeline = simulate(schedule, Costs(transfer=transfer))
    path = timeline.critical_path()
    assert path[0].start == 0
    assert path[-1].end == timeline.end
    for before, after in pairwise(path):
        assert after.start - before.end == (0 if before.rank == after.rank else transfer)


def test_critical_path_of_a_run_follows_what_ended_last():
    schedule = one_f_one_b(p=2, m=1)
    times = {"0F0": (10.0, 11.0), "1F0": (11.1, 12.0), "1B0": (12.1, 14.0), "0B0": (14.2, 15.0)}
    timeline = measured(schedule, times)
    assert [str(span.action) for span in timeline.critical_path()] == ["0F0", "1F0", "1B0", "0B0"]


# gaps


def messages(timeline: Timeline, rank: int) -> list[str]:
    return [gap.message for gap in timeline.gaps(rank)]


def test_why_ranks_are_idle():
    timeline = simulate(one_f_one_b(p=4, m=8))
    assert messages(timeline, 3) == [
        "rank 3 is idle from 0 to 3: it waits for rank 2's F0, which ended at 3",
        "rank 3 is done; rank 0's B7 ends the step at 22",
    ]
    gap = timeline.gaps(0)[0]
    assert gap.message == "rank 0 is idle from 4 to 7: it waits for rank 1's B0, which ended at 7"
    assert (gap.start, gap.end, gap.before, gap.waited_for) == (4, 7, Action(0, B, 0), Action(1, B, 0))
    assert timeline.gaps(3)[-1].before is None


def test_a_message_on_its_way_is_told_apart():
    timeline = simulate(one_f_one_b(p=2, m=1), Costs(transfer=1))
    assert messages(timeline, 0) == [
        "rank 0 is idle from 1 to 5: it waits for rank 1's B0, which ended at 4 and was on its way until 5"
    ]


def test_a_prediction_that_waits_for_an_old_message_alone():
    """Rank 1's F1 ends at 3, and so does its own wait; the message of F1, sent at 2, is there at 4 only."""
    timeline = simulate(forward_only(p=2, m=2), Costs(forward=[1, 0.5], transfer=2))
    assert messages(timeline, 1)[1] == (
        "rank 1 is idle from 3.5 to 4: it waits for rank 0's F1, which ended at 2 and was on its way until 4"
    )


def test_gaps_of_a_run_count_from_its_start():
    schedule = one_f_one_b(p=2, m=2)  # rank 0: F0 F1 B0 B1, rank 1: F0 B0 F1 B1
    times = {
        "0F0": (100.0, 100.02), "0F1": (100.0215, 100.0415), "0B0": (100.0611, 100.0811), "0B1": (100.102, 100.122),
        "1F0": (100.021, 100.04), "1B0": (100.04, 100.061), "1F1": (100.0612, 100.0812), "1B1": (100.0812, 100.1),
    }  # fmt: skip
    timeline = measured(schedule, times, unit="s")
    assert messages(timeline, 0) == [
        "rank 0 is idle from 20 ms to 21.5 ms: F1 needs nothing from another rank: the start itself took 1.5 ms",
        "rank 0 is idle from 41.5 ms to 61.1 ms: it waits for rank 1's B0, which ended at 61 ms "
        "and was on its way until 61.1 ms",
        "rank 0 is idle from 81.1 ms to 102 ms: it waits for rank 1's B1, which ended at 100 ms "
        "and was on its way until 102 ms",
    ]
    gap = timeline.gaps(1)[1]
    assert gap.message == (
        "rank 1 is idle from 61 ms to 61.2 ms: everything that F1 needs had ended by 41.5 ms (rank 0's F1): "
        "the message or the start itself took 0.2 ms"
    )
    assert gap.waited_for is None


@given(legal_schedules(), st.sampled_from([0.0, 0.5]))
def test_a_predicted_gap_always_has_its_cause(schedule, transfer):
    timeline = simulate(schedule, Costs(transfer=transfer))
    for gap in (gap for rank in range(schedule.num_ranks) for gap in timeline.gaps(rank)):
        if gap.before is None:
            assert "ends the step at" in gap.message
        else:
            assert gap.waited_for is not None
            (producer,) = [span for span in timeline.spans if gap.waited_for in span.action.actions]
            assert gap.end == producer.end + transfer
            assert producer.rank != gap.rank


# cut short, or empty


def test_a_run_that_was_stopped():
    schedule = one_f_one_b(p=2, m=2)
    timeline = measured(schedule, {"0F0": (0, 1), "0F1": (1, 2), "1F0": (1, 2), "1B0": (2, 3)})
    assert not timeline.complete
    assert repr(timeline) == (
        "1F1B p=2 m=2 (stopped after 4 of 8 operations): makespan 3, bubble 33.3 %, in flight 2 1"
    )
    assert timeline.in_flight(0) == ((0, 1), (1, 2))
    assert messages(timeline, 0) == ["rank 0 ran 2 of its 4 operations before the run was stopped"]
    assert [str(span.action) for span in timeline.critical_path()] == ["0F0", "1F0", "1B0"]
    assert timeline.phases().cooldown == (2, 3)
    assert Timeline.from_json(timeline.to_json()) == timeline


def test_a_span_that_is_missing_in_the_middle():
    timeline = measured(one_f_one_b(p=2, m=1), {"0F0": (0, 1), "0B0": (5, 6)})
    assert messages(timeline, 0) == ["rank 0 is idle from 1 to 5: B0 needs rank 1's B0, of which no time was recorded"]
    assert messages(timeline, 1) == ["rank 1 ran 0 of its 2 operations before the run was stopped"]
    assert [str(span.action) for span in timeline.critical_path()] == ["0F0", "0B0"]


def test_nothing_at_all():
    timeline = Timeline(gpipe(p=2, m=1), (), "measured: interrupted")
    assert (timeline.start, timeline.end, timeline.makespan, timeline.bubble_fraction) == (0, 0, 0, 0)
    assert (timeline.busy, timeline.idle, timeline.peak_in_flight) == ((0, 0), (0, 0), (0, 0))
    assert timeline.critical_path() == timeline.gaps(0) == timeline.spans_of(1) == ()
    assert timeline.in_flight(0) == ((0, 0),)
    assert timeline.phases().steady == (0, 0)
    assert str(timeline).startswith("GPipe p=2 m=1 (stopped after 0 of 4 operations): makespan 0")
    assert json.loads(timeline.to_chrome_trace())
    assert Timeline.from_json(timeline.to_json()) == timeline


def test_a_rank_with_nothing_to_run():
    timeline = simulate(Schedule("one of two", 1, (0,), ((Action(0, F, 0),), ())))
    assert messages(timeline, 1) == ["rank 1 has nothing to run; rank 0's 0F0 ends the step at 1"]
    assert Timeline.from_json(timeline.to_json()) == timeline


def test_impossible_spans_are_refused():
    schedule, f = gpipe(p=2, m=1), Action(0, F, 0)
    with pytest.raises(ValueError, match="0F0 ran on rank 2, but GPipe p=2 m=1 has ranks 0 to 1"):
        Timeline(schedule, (Span(f, 2, 0, 1),), "measured")
    for start, end in ((2, 1), (float("nan"), 1), (0, float("inf"))):
        with pytest.raises(ValueError, match="finite times and ends no earlier than it starts"):
            Timeline(schedule, (Span(f, 0, start, end),), "measured")


def test_order_of_spans_does_not_matter():
    timeline = simulate(one_f_one_b(p=3, m=4))
    shuffled = replace(timeline, spans=timeline.spans[::-1])
    assert shuffled.spans_of(1) == timeline.spans_of(1)
    assert str(shuffled) == str(timeline)
    assert shuffled.gaps(0) == timeline.gaps(0)


def test_clocks_that_overlap_a_little_do_not_upset_the_count():
    schedule = Schedule.from_text("F0 B0 F1 B1")
    spans = {"0F0": (0.0, 1.0), "0B0": (1.0, 2.001), "0F1": (2.0, 3.0), "0B1": (3.0, 4.0)}
    timeline = measured(schedule, spans)
    assert timeline.in_flight(0) == ((0, 1), (2.0, 2), (2.001, 1), (4.0, 0))
    assert timeline.gaps(0) == ()
    assert timeline.idle == (0.0,)
    inside = measured(schedule, {**spans, "0B0": (1.0, 3.0), "0F1": (2.0, 2.5)})
    assert inside.gaps(0) == ()


# text


def test_the_text_twin():
    assert str(simulate(one_f_one_b(p=4, m=3))) == (
        "1F1B p=4 m=3: makespan 12, bubble 50.0 %, in flight 3 3 2 1\n"
        "predicted, F=1 B=1\n"
        "rank 0: busy 6, idle 6, in flight 3: F0 F1 F2 B0 B1 B2\n"
        "rank 1: busy 6, idle 6, in flight 3: F0 F1 F2 B0 B1 B2\n"
        "rank 2: busy 6, idle 6, in flight 2: F0 F1 B0 F2 B1 B2\n"
        "rank 3: busy 6, idle 6, in flight 1: F0 B0 F1 B1 F2 B2"
    )


def test_a_notebook_shows_one_line():
    assert repr(simulate(one_f_one_b(p=4, m=8))) == "1F1B p=4 m=8: makespan 22, bubble 27.3 %, in flight 4 3 2 1"
    seconds = Costs(forward=0.0205, backward=0.0205, unit="s")
    assert repr(simulate(one_f_one_b(p=4, m=8), seconds)).startswith("1F1B p=4 m=8: makespan 0.451 s, bubble 27.3 %")
    assert repr(simulate(one_f_one_b(p=40, m=50))).endswith("in flight at most 40")


def test_large_text_stays_a_page():
    text = str(simulate(one_f_one_b(p=64, m=128)))
    assert len(text) < 64 * 500
    assert text.endswith("... and 192 more")


# exports


@given(legal_schedules(), st.sampled_from([0.0, 0.1, 1 / 3]), st.sampled_from(["", "s"]))
def test_json_reads_back_exactly(schedule, transfer, unit):
    timeline = simulate(schedule, Costs(0.1, 0.7, transfer=transfer, unit=unit))
    again = Timeline.from_json(timeline.to_json())
    assert again == timeline
    assert again.schedule == schedule
    assert str(again) == str(timeline)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "nonsense", '{"format": "ppedu timeline 1"}', '{"format": "ppedu timeline 2"}']
)
def test_other_json_is_refused(text):
    with pytest.raises(ValueError, match=r"this is no 'ppedu timeline 2', the JSON that Timeline\.to_json writes"):
        Timeline.from_json(text)


@pytest.mark.parametrize("of_clocks", [False, True])
def test_whether_it_was_measured_is_a_fact_and_no_word(of_clocks):
    """Whatever the caption says. JSON and traces keep it, and JSON that does not say it is refused."""
    timeline = Timeline(gpipe(p=2, m=1), (), "measured, or predicted: who knows", measured=of_clocks)
    assert timeline.word == ("measured" if of_clocks else "predicted")
    assert Timeline.from_json(timeline.to_json()).measured is of_clocks
    assert json.loads(timeline.to_chrome_trace())["otherData"] == {"measured": of_clocks}
    data = json.loads(timeline.to_json())
    for wrong in (data | {"measured": "yes"}, {key: value for key, value in data.items() if key != "measured"}):
        with pytest.raises(ValueError, match="measured"):
            Timeline.from_json(json.dumps(wrong))


def test_a_timeline_is_a_value():
    timeline = simulate(dualpipe())
    assert timeline == simulate(dualpipe())
    assert timeline.makespan  # its caches are filled
    assert pickle.loads(pickle.dumps(timeline)) == timeline == simulate(dualpipe())
    with pytest.raises(FrozenInstanceError):
        timeline.unit = "s"


def trace(timeline: Timeline) -> dict[str, list[dict]]:
    events = json.loads(timeline.to_chrome_trace())["traceEvents"]
    return {phase: [event for event in events if event["ph"] == phase] for phase in "MXC"}


def test_chrome_trace():
    """The fields that Perfetto reads: the Trace Event Format's M, X and C events, in microseconds."""
    seconds = Costs(forward=0.02, backward=0.04, unit="s")
    events = trace(simulate(one_f_one_b(p=2, m=2), seconds))
    lanes = {event["tid"]: event["args"]["name"] for event in events["M"] if event["name"] == "thread_name"}
    assert lanes == {0: "rank 0", 1: "rank 1"}
    assert {event["pid"] for kind in events.values() for event in kind} == {0}
    assert len(events["X"]) == 8
    b0 = next(event for event in events["X"] if event["tid"] == 1 and event["name"] == "B0")
    assert (b0["cat"], b0["args"]) == ("B", {"stage": 1, "microbatch": 0})
    assert (b0["ts"], b0["dur"]) == (pytest.approx(40_000), pytest.approx(40_000))
    counts = [event["args"]["activations"] for event in events["C"] if event["name"] == "in flight, rank 0"]
    assert counts == [1, 2, 1, 0]


def test_chrome_trace_without_a_unit_counts_milliseconds():
    events = trace(simulate(gpipe(p=2, m=1)))["X"]
    assert [(event["ts"], event["dur"]) for event in events if event["tid"] == 0] == [(0, 1000), (3000, 1000)]


def test_chrome_trace_of_every_kind():
    kinds = {event["cat"] for event in trace(simulate(dualpipe(), HALVES))["X"]}
    assert kinds == {"F", "B", "I", "W", "F,B"}
    pair = Schedule("pair", 2, (0,), ((Action(0, F, 0), Overlap(Action(0, F, 1), Action(0, B, 0)), Action(0, B, 1)),))
    event = trace(simulate(pair))["X"][1]
    assert event["name"] == "F1&B0"
    assert event["args"] == {"stage": 0, "microbatch": 1, "backward stage": 0, "backward microbatch": 0}


def test_chrome_trace_starts_at_zero():
    times = {"0F0": (1000.5, 1000.6), "0B0": (1000.8, 1000.9), "1F0": (1000.6, 1000.7), "1B0": (1000.7, 1000.8)}
    events = trace(measured(one_f_one_b(p=2, m=1), times, unit="s"))
    assert min(event["ts"] for event in events["X"]) == 0
    assert all(event["dur"] == pytest.approx(1e5) for event in events["X"])


@given(legal_schedules())
def test_lanes_of_a_trace_do_not_overlap(schedule):
    events = trace(simulate(schedule, HALVES))["X"]
    for rank in range(schedule.num_ranks):
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["tid"] == rank)
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(mine))
