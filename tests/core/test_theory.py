"""Closed forms against simulation, over a wide range of p, m and costs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppedu import theory
from ppedu.core.costs import Costs
from ppedu.core.simulate import simulate
from ppedu.schedules import SCHEDULES, gpipe, naive, one_f_one_b, zb_h1

ranks, microbatches = st.integers(1, 12), st.integers(1, 20)  # m < p and p = 1 included
times = st.integers(1, 64).map(lambda eighths: eighths / 8)  # sums of eighths are exact


@given(ranks, microbatches, times, times, st.sampled_from([gpipe, one_f_one_b]))
def test_gpipe_and_one_f_one_b(p, m, forward, backward, build):
    timeline = simulate(build(p=p, m=m), Costs(forward, backward))
    assert timeline.makespan == theory.makespan(p, m, forward, backward)
    assert timeline.idle == (theory.idle_time(p, forward, backward),) * p
    assert timeline.bubble_fraction == pytest.approx(theory.bubble_fraction(p, m), rel=1e-12)
    assert timeline.bubble_over_ideal == pytest.approx(theory.bubble_over_ideal(p, m), rel=1e-12)
    assert timeline.utilization == pytest.approx(theory.utilization(p, m), rel=1e-12)


@given(ranks, microbatches, times, times)
def test_naive(p, m, forward, backward):
    timeline = simulate(naive(p=p, m=m), Costs(forward, backward))
    assert timeline.makespan == theory.naive_makespan(p, m, forward, backward) == sum(timeline.busy)
    assert timeline.utilization == pytest.approx(theory.naive_utilization(p), rel=1e-12)


@given(ranks, microbatches, times, times, st.sampled_from(["naive", "gpipe", "1f1b"]))
def test_peaks(p, m, forward, backward, name):
    timeline = simulate(SCHEDULES[name](p=p, m=m), Costs(forward, backward))
    assert timeline.peak_in_flight == theory.peak_in_flight(name, p, m)


# every schedule by its name

RING = ("interleaved", "looped_bfs")
HALVED = ("zb_v", "dualpipev")  # two stages on each rank
PAIRS = ("dualpipe", "dualpipev")


@st.composite
def cases(draw: st.DrawFn, names: tuple[str, ...] = tuple(theory.IDLE)):
    """(name, p, m, v, times, timeline): times on one p-th of the model, as `theory` takes them, and what a simulation
    with stages of a v-th or half of that gives. F, I and W are often equal, for so the papers have them."""
    name = draw(st.sampled_from(names))
    p, m, v = draw(st.integers(1, 8)), draw(st.integers(1, 24)), draw(st.integers(1, 4))
    p += name == "dualpipe" and p % 2
    m += 2 * p * draw(st.booleans())  # for conditions like m >= 2p
    f = draw(times)
    i, w = draw(st.sampled_from([f, f, f / 2, 2 * f])), draw(st.sampled_from([f, f / 2, f / 4, 0.0, 3 * f]))
    more = {"v": v} if name in RING else {}
    schedule = SCHEDULES[name](p=p, m=m, **more)
    given_ = {"forward": f, "input_grad": i, "weight_grad": w}
    if name in PAIRS:
        given_["overlapped"] = (i + w) + f * draw(st.sampled_from([0.0, 0.25, 1.0]))
    parts = v if name in RING else 2 if name in HALVED else 1
    timeline = simulate(schedule, Costs(**{word: time / parts for word, time in given_.items()}))
    return name, p, m, v, given_, timeline


def or_none(form, *case, **given_):
    """What the closed form says, or None where it says that it does not hold."""
    try:
        return form(*case, **given_)
    except ValueError:
        return None


@pytest.mark.slow
@given(cases())
@settings(max_examples=600)
def test_idle_time_and_makespan_of_every_schedule(case):
    name, p, m, v, given_, timeline = case
    found = or_none(theory.idle, name, p, m, v, **given_)
    if found is None:
        return
    assert max(timeline.idle) == pytest.approx(found, rel=1e-12, abs=1e-12)
    assert timeline.makespan == pytest.approx(theory.makespan_of(name, p, m, v, **given_), rel=1e-12)
    if name not in PAIRS:
        assert min(timeline.idle) == pytest.approx(found, rel=1e-12, abs=1e-12)


@given(cases(("zb_h2", "zb_v")))
@settings(max_examples=200)
def test_idle_time_in_a_ranks_own_span(case):
    name, p, m, v, given_, timeline = case
    lanes = [timeline.spans_of(rank) for rank in range(p)]
    idle = [mine[-1].end - mine[0].start - busy for mine, busy in zip(lanes, timeline.busy, strict=True)]
    found = or_none(theory.idle_in_span, name, p, m, v, **given_)
    if found is None:
        return
    assert max(idle) == pytest.approx(found, rel=1e-12, abs=1e-12)


@pytest.mark.slow
@given(cases())
@settings(max_examples=400)
def test_peaks_of_every_schedule(case):
    name, p, m, v, _, timeline = case
    assert timeline.peak_in_flight == theory.peak_in_flight(name, p, m, v)
    assert timeline.peak_activations == pytest.approx(theory.peak_activations(name, p, m, v), rel=1e-12)


HOLDS = [
    # name, p, m, F, I, W, F&B, whether it holds: what each condition shuts out, and what stands next to it
    ("zb_h1", 4, 1, 1, 1, 1, 2, True),
    ("zb_h1", 4, 8, 1, 2, 2, 3, False),
    ("zb_h1", 4, 8, 2, 1, 2, 3, False),
    ("zb_h1", 4, 8, 2, 2, 1, 3, True),
    ("zb_h2", 4, 7, 1, 1, 1, 2, True),
    ("zb_h2", 4, 6, 2, 2, 1, 2, False),
    ("zb_h2", 4, 8, 4, 1, 4, 3, True),
    ("zb_h2", 4, 8, 1, 3, 2, 3, False),
    ("zb_v", 4, 7, 1, 1, 1, 2, True),
    ("zb_v", 4, 7, 2, 2, 1, 2, True),
    ("zb_v", 4, 6, 2, 2, 1, 2, False),
    ("zb_v", 4, 8, 4, 4, 1, 2, False),
    ("zb_v", 4, 8, 1, 1, 1.5, 2, False),
    ("zb_v", 4, 8, 1, 2, 1, 2, False),
    ("dualpipe", 4, 8, 1, 1, 1, 3, True),
    ("dualpipe", 4, 6, 1, 1, 1, 3, False),
    ("dualpipe", 4, 9, 1, 1, 1, 3, False),
    ("dualpipe", 4, 8, 1, 2, 1, 3, False),
    ("dualpipe", 4, 8, 1, 1, 2, 3, False),
    ("dualpipev", 4, 8, 1, 1, 1, 2, True),
    ("dualpipev", 4, 9, 1, 1, 1, 2.5, True),
    ("dualpipev", 4, 7, 1, 1, 1, 2, False),
]


@pytest.mark.parametrize(("name", "p", "m", "f", "i", "w", "pair", "holds"), HOLDS)
def test_where_a_form_holds_and_that_it_is_wrong_beyond(name, p, m, f, i, w, pair, holds):
    """A condition that asks too much would hide figures, and one that asks too little would show wrong ones."""
    parts = 2 if name in HALVED else 1
    costs = Costs(f / parts, input_grad=i / parts, weight_grad=w / parts, overlapped=pair / parts)
    timeline = simulate(SCHEDULES[name](p=p, m=m), costs)
    given_ = {"forward": f, "input_grad": i, "weight_grad": w, "overlapped": pair}
    if holds:
        assert theory.idle(name, p, m, **given_) == pytest.approx(max(timeline.idle), rel=1e-12, abs=1e-12)
        return
    with pytest.raises(
        ValueError, match=f"the closed form for the idle time of {name} holds for .*: p={p}, m={m}, F={f:g}"
    ):
        theory.idle(name, p, m, **given_)
    form = theory.IDLE[name]
    asked = theory.Case(p, m, 2, f, i + w, i, w, pair)
    assert form.value(asked) != pytest.approx(max(timeline.idle), rel=1e-6)


def test_numbers_of_the_newer_papers():
    """Interleaving divides the bubble by v; zero bubble and DualPipe as their tables have them, with F = I = W = 1."""
    equal = {"input_grad": 1.0, "weight_grad": 1.0}
    assert theory.idle("interleaved", 4, 8, v=2, backward=2) == theory.idle("1f1b", 4, 8, backward=2) / 2 == 4.5
    assert theory.makespan_of("interleaved", 4, 8, v=2, forward=2, backward=4) == 57
    assert theory.makespan_of("interleaved", 4, 2, v=2, forward=2, backward=4) == 27  # m < p: the formula says 21
    assert theory.makespan_of("zb_h1", 4, 8, **equal) == theory.makespan_of("zb_h2", 4, 8, **equal) == 27
    assert theory.makespan_of("1f1b", 4, 8, **equal) == 33
    assert theory.idle("zb_h1", 4, 1, **equal) == 6  # and (p - 1)(F + I - W) says 3
    assert theory.idle_in_span("zb_h2", 4, 8, **equal) == theory.idle_in_span("zb_v", 4, 8, **equal) == 0
    assert theory.makespan_of("zb_v", 4, 8, forward=2, input_grad=2, weight_grad=2) == 51
    assert theory.idle("dualpipe", 4, 8, **equal, overlapped=3) == 2
    assert theory.peak_in_flight("interleaved", 4, 8, 2) == (11, 9, 7, 5)
    assert theory.peak_in_flight("looped_bfs", 4, 8, 2) == (16,) * 4
    assert theory.peak_in_flight("zb_h2", 4, 8) == (7,) * 4
    assert theory.peak_activations("zb_v", 4, 8) == (4.0,) * 4
    assert theory.peak_activations("dualpipe", 4, 8) == (5.0,) * 4
    assert theory.peak_activations("dualpipev", 4, 10) == (4.5,) * 4


def test_every_form_is_one_of_a_schedule_and_has_its_source():
    assert set(SCHEDULES) >= {*theory.IDLE, *theory.IDLE_IN_SPAN}
    for form in (*theory.IDLE.values(), *theory.IDLE_IN_SPAN.values()):
        assert form.formula
        assert form.holds
        assert form.source


@given(st.integers(1, 8), st.integers(1, 12), times, times)
def test_names_and_plain_forms_agree(p, m, forward, backward):
    given_ = {"forward": forward, "backward": backward}
    for name in ("gpipe", "1f1b"):
        assert theory.idle(name, p, m, **given_) == theory.idle_time(p, forward, backward)
        assert theory.makespan_of(name, p, m, **given_) == theory.makespan(p, m, forward, backward)
    assert theory.makespan_of("naive", p, m, **given_) == theory.naive_makespan(p, m, forward, backward)


@pytest.mark.parametrize("given_", [{}, {"forward": 2}, {"backward": 2}, {"backward": 3, "weight_grad": 1}, {"backward": 3, "input_grad": 2}, {"input_grad": 1, "weight_grad": 0.5}])  # fmt: skip
def test_times_that_are_left_out_are_what_costs_takes_them_for(given_):
    assert theory.idle("zb_h1", 4, 8, **given_) == simulate(zb_h1(4, 8), Costs(**given_)).idle[0]


def test_wrong_names_and_times_get_a_sentence():
    with pytest.raises(ValueError, match=r"no closed form for the idle time of 'zb': the names are naive, gpipe"):
        theory.idle("zb", 2, 2)
    with pytest.raises(
        ValueError, match="no closed form for the idle time in a rank's own span of '1f1b': the names are zb_h2, zb_v"
    ):
        theory.idle_in_span("1f1b", 2, 2)
    with pytest.raises(ValueError, match=r"v is the number of stages on each rank.*v=0"):
        theory.peak_in_flight("interleaved", 2, 2, 0)
    with pytest.raises(ValueError, match=r"backward=1 and input_grad \+ weight_grad = 2"):
        theory.makespan_of("zb_h1", 2, 2, backward=1, weight_grad=2)
    with pytest.raises(ValueError, match="one number for all, and not F=1,2 B=1,2"):
        theory.idle("1f1b", 2, 2, forward=[1, 2])
    with pytest.raises(TypeError, match="sideways"):
        theory.idle("1f1b", 2, 2, sideways=1)


def test_times_that_are_equal_but_for_rounding_count_as_equal():
    """0.3 - 0.2 is a little less than 0.1: W = F = I = 0.1 all the same, as the error's text would say."""
    assert 0.3 - 0.2 < 0.1
    times = {"forward": 0.1, "backward": 0.3 - 0.2 + 0.1, "weight_grad": 0.1}
    assert theory.idle("zb_v", 4, 8, **times) == pytest.approx(0.15)
    assert theory.idle("dualpipe", 4, 8, **times) == pytest.approx(0.2)
    assert theory.idle_in_span("zb_v", 4, 8, **times) == 0
    with pytest.raises(ValueError, match="Simulate instead"):
        theory.idle("zb_v", 4, 8, **{**times, "forward": 0.1001})


def test_halves_that_are_no_halves_get_a_sentence():
    """ZB-H1 runs I and W: a B of another length would give a makespan that no simulation has."""
    with pytest.raises(
        ValueError, match=r"B = I \+ W, but backward=5 and input_grad \+ weight_grad = 2: leave one of them out"
    ):
        theory.makespan_of("zb_h1", 2, 4, backward=5, input_grad=1, weight_grad=1)
    with pytest.raises(ValueError, match="a cost is a number of at least 0: backward is '2'"):
        theory.idle("1f1b", 2, 2, backward="2")
    with pytest.raises(ValueError, match=r"so p is even: p=3"):  # as the builder says
        theory.peak_in_flight("dualpipe", 3, 6)


def test_numbers_of_the_papers():
    assert theory.makespan(4, 8) == 22
    assert theory.makespan(4, 8, backward=2) == 33
    assert theory.makespan(4, 2) == 10
    assert theory.naive_makespan(4) == 8
    assert theory.idle_time(4) == 6
    assert theory.bubble_fraction(4, 8) == 3 / 11
    assert theory.bubble_over_ideal(4, 8) == 3 / 8
    assert theory.utilization(4, 8) == 8 / 11
    assert theory.naive_utilization(8) == 0.125
    assert theory.peak_in_flight("1f1b", 4, 32) == (4, 3, 2, 1)
    assert theory.peak_in_flight("1f1b", 4, 2) == (2, 2, 2, 1)
    assert theory.peak_in_flight("gpipe", 4, 32) == (32,) * 4


@pytest.mark.parametrize(
    "form",
    [theory.makespan, theory.naive_makespan, theory.bubble_fraction, theory.bubble_over_ideal, theory.utilization],
)
@pytest.mark.parametrize(("p", "m", "says"), [(0, 1, "p=0"), (2, 0, "m=0"), (2.5, 1, "p=2.5"), (2, True, "m=True")])
def test_impossible_numbers_get_a_sentence(form, p, m, says):
    with pytest.raises(ValueError, match=f"a whole number of at least 1: {says}"):
        form(p, m)


def test_other_mistakes_get_a_sentence():
    with pytest.raises(ValueError, match="a cost is a number of at least 0: forward is -1"):
        theory.makespan(2, 2, forward=-1)
    with pytest.raises(ValueError, match="backward is nan"):
        theory.idle_time(2, backward=float("nan"))
    with pytest.raises(ValueError, match="no closed form for the schedule 'zb': the names are naive, gpipe, 1f1b"):
        theory.peak_in_flight("zb", 2, 2)
    with pytest.raises(ValueError, match="p is the number of ranks"):
        theory.peak_in_flight("1f1b", 0, 2)
