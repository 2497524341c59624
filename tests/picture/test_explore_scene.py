"""What a live view draws: the numbers of a timeline and the words for it, against the timeline itself and the literature."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppedu import SCHEDULES, Action, Costs, Kind, Schedule, Span, Timeline, dependents, one_f_one_b, simulate
from ppedu.picture.palette import PALETTE, mix
from ppedu.picture.scene import KEEPS, Track, details, scene
from ppedu.schedules import dualpipe, interleaved, zb_h1


def track(schedule, costs=None, **more):
    return scene(7, [Track(simulate(schedule, costs or Costs()), **more)])["tracks"][0]


def number(drawn, rank, name):
    """The number of an operation, by rank and name."""
    numbers = range(drawn["first"][rank], drawn["first"][rank + 1])
    return next(i for i in numbers if drawn["name"][i] == name)


def test_times_and_places_are_the_timelines():
    """1F1B at p=4, m=8: makespan 22, in flight 4 3 2 1 (Narayanan et al., SC'21, section 2.2)."""
    t = simulate(one_f_one_b(p=4, m=8))
    drawn = track(one_f_one_b(p=4, m=8))
    assert drawn["makespan"] == 22
    assert drawn["peaks"] == (4, 3, 2, 1)
    assert drawn["first"] == (0, 16, 32, 48, 64)
    spans = [span for rank in range(4) for span in t.spans_of(rank)]
    assert [(s.start, s.end) for s in spans] == list(zip(drawn["start"], drawn["end"], strict=True))
    assert [t.schedule.short(s.action) for s in spans] == list(drawn["name"])
    assert "".join(drawn["kind"][:8]) == "FFFFBFBF"
    assert drawn["phases"] == [("warm-up", 0, 3), ("steady", 3, 19), ("cool-down", 19, 22)]


def test_what_an_operation_needs_and_unblocks():
    """Rank 1's B4 of p=4, m=8 needs its own F4 and rank 2's B4; what needs it is `dependents`."""
    schedule = one_f_one_b(p=4, m=8)
    drawn = track(schedule)
    this = number(drawn, 1, "B4")
    assert set(drawn["needs"][this]) == {number(drawn, 1, "F4"), number(drawn, 2, "B4")}
    unblocked = {i for i, needed in enumerate(drawn["needs"]) if this in needed}
    expected = {number(drawn, a.stage, f"{a.kind}{a.microbatch}") for a in dependents(Action(1, Kind.B, 4), schedule)}
    assert unblocked == expected == {number(drawn, 0, "B4")}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
@given(p=st.integers(1, 5), m=st.integers(1, 6))
def test_needs_are_the_dependencies_everywhere(name, p, m):
    """Read backwards, `needs` is `dependents`, which is stated by the library and not by the view."""
    schedule = SCHEDULES[name](p=2 * p if name == "dualpipe" else p, m=m)
    drawn = track(schedule)
    entries = [entry for order in schedule.orders for entry in order]
    for i, entry in enumerate(entries):
        unblocked = {entries[j] for j, needed in enumerate(drawn["needs"]) if i in needed}
        needing = {other for action in entry.actions for other in dependents(action, schedule)}
        assert unblocked == {other for other in entries if needing & set(other.actions)}
        assert len(set(drawn["needs"][i])) == len(drawn["needs"][i]), "each is told once"


def test_messages_arrive_later_on_another_rank_only():
    drawn = track(one_f_one_b(p=2, m=1), Costs(transfer=0.5), transfer=0.5)
    b0 = number(drawn, 0, "B0")
    arrivals = dict(zip(drawn["needs"][b0], drawn["there"][b0], strict=True))
    assert arrivals == {number(drawn, 0, "F0"): 1.0, number(drawn, 1, "B0"): 4.0}  # 1 + 0.5 + 1 + 1, then 0.5
    assert drawn["start"][b0] == 4.0
    assert track(one_f_one_b(p=2, m=1))["there"] is None


def test_a_bubble_says_why_and_what_for():
    t = simulate(one_f_one_b(p=4, m=8))
    drawn = track(one_f_one_b(p=4, m=8))
    gaps = [gap for rank in range(4) for gap in t.gaps(rank)]
    assert [gap[3] for gap in drawn["gaps"]] == [gap.message for gap in gaps]
    rank, start, end, message, following, waited = next(g for g in drawn["gaps"] if g[0] == 1 and g[1] == 4)
    assert (rank, start, end) == (1, 4, 6)
    assert message == "rank 1 is idle from 4 to 6: it waits for rank 2's B0, which ended at 6"
    assert (following, waited) == (number(drawn, 1, "B0"), number(drawn, 2, "B0"))
    assert drawn["gaps"][-1][4:] == (-1, -1)  # rank 3 is done: nothing follows, and it waits for nothing


def test_critical_path_and_in_flight():
    t = simulate(one_f_one_b(p=4, m=8), Costs(backward=2))
    drawn = track(one_f_one_b(p=4, m=8), Costs(backward=2))
    path = [drawn["end"][i] - drawn["start"][i] for i in drawn["path"]]
    assert sum(path) == t.makespan == 33  # (m + p - 1)(F + B)
    flat = [x for time, count in t.in_flight(0) for x in (time, count)]
    assert drawn["curve"][0] == flat


def test_seconds_are_shown_as_milliseconds_from_the_first_start():
    t = Timeline(
        Schedule.from_text("F0 B0"),
        (Span(Action(0, Kind.F, 0), 0, 5.0, 5.02), Span(Action(0, Kind.B, 0), 0, 5.0201, 5.0401)),
        "measured: here",
        "s",
        measured=True,
    )
    drawn = scene(1, [Track(t)])
    assert (drawn["unit"], drawn["label"], drawn["span"]) == ("ms", "time (ms)", 40.1)
    assert drawn["tracks"][0]["start"] == [0.0, 20.1]
    assert drawn["integer"] is False


def test_a_run_that_was_stopped_is_drawn_as_far_as_it_came():
    whole = simulate(one_f_one_b(p=2, m=2))
    part = Timeline(whole.schedule, tuple(s for s in whole.spans if s.end <= 3), "measured: here", measured=True)
    drawn = scene(1, [Track(part)])["tracks"][0]
    assert drawn["name"] == ("F0", "F1", "F0", "B0")
    assert drawn["phases"] == []
    assert drawn["needs"] == [[], [], [0], [2]]


def test_several_stages_on_a_rank_are_told_apart():
    """Two stages a rank, as in interleaved schedules: names tell the stage, later stages are paler."""
    s = Schedule.from_csv("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0")
    drawn = track(s)
    assert drawn["name"][:2] == ("0F0", "2F0")
    fills = [drawn["colors"][0][shade][0] for (shade,) in drawn["shade"][:2]]
    assert fills == [PALETTE["F"], mix(PALETTE["F"], 0.5)]
    assert len(track(one_f_one_b(p=2, m=2))["colors"][0]) == 2, "one F, one B"


def test_the_two_of_a_pair_have_each_the_shade_of_their_stage():
    drawn = track(dualpipe(p=2, m=4))
    pair = number(drawn, 0, "3F3&0B0")
    fills = [drawn["colors"][0][shade][0] for shade in drawn["shade"][pair]]
    assert (drawn["kind"][pair], fills) == ("FB", [mix(PALETTE["F"], 0.5), PALETTE["B"]])


def test_what_is_in_flight_is_freed_by_w_and_not_by_i():
    """ZB-H1, p=2, m=3, rank 1: F0 I0 F1 I1 W0 F2 I2 W1 W2: two are held until the first W, though two I have run."""
    drawn = track(zb_h1(p=2, m=3), Costs(input_grad=1, weight_grad=1))
    curve = list(zip(drawn["curve"][1][::2], drawn["curve"][1][1::2], strict=True))

    def held_after(name):
        end = drawn["end"][number(drawn, 1, name)]
        return [count for time, count in curve if time <= end][-1]

    names = ("I0", "F1", "I1", "I2", "W1", "W2")
    assert [held_after(name) for name in names] == [2, 2, 2, 2, 1, 0]  # where I0 ends, F1 begins
    assert set(KEEPS) == {"I", "W"}


def test_strips_can_count_activations_of_one_size():
    """Interleaved p=4, m=8, v=2 holds 11 9 7 5 stage-microbatches (SC'21, section 2.2), each half of a p-th."""
    tracks = [Track(simulate(interleaved(p=4, m=8, v=2))), Track(simulate(one_f_one_b(p=4, m=8)), group=1)]
    plain, sized = scene(1, tracks), scene(1, tracks, activations=True)
    assert [track["peaks"] for track in plain["tracks"]] == [(11, 9, 7, 5), (4, 3, 2, 1)]
    assert [track["peaks"] for track in sized["tracks"]] == [(5.5, 4.5, 3.5, 2.5), (4, 3, 2, 1)]
    words = [{kind: word for kind, word, _ in one["key"]}["in flight"] for one in (plain, sized)]
    assert (*words, sized["peak"]) == ("in flight", "activations", 5.5)
    assert max(sized["tracks"][0]["curve"][0][1::2]) == 5.5


def test_the_scale_is_one_for_all_tracks():
    a, b = (simulate(SCHEDULES[name](p=4, m=8)) for name in ("gpipe", "1f1b"))
    drawn = scene(1, [Track(a), Track(b, group=1)], budget=4, marks=[(20, "target 20")])
    assert (drawn["span"], drawn["peak"], drawn["budget"]) == (22, 8, 4)
    assert drawn["marks"] == [{"time": 20, "label": "target 20"}]
    assert scene(1, [Track(b)], span=30)["span"] == 30


def test_details_can_follow_later():
    tracks = [Track(simulate(one_f_one_b(p=4, m=8)))]
    whole, bare, more = scene(3, tracks), scene(3, tracks, whole=False), details(3, tracks)
    assert more["number"] == 3
    assert whole["tracks"][0] == {**bare["tracks"][0], **more["tracks"][0]}
    assert "gaps" not in bare["tracks"][0]


def test_it_is_json():
    drawn = scene(1, [Track(simulate(one_f_one_b(p=2, m=2)))])
    assert json.loads(json.dumps(drawn))["tracks"][0]["end"] == drawn["tracks"][0]["end"]
