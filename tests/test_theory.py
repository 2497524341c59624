"""Closed forms against simulation, over a wide range of p, m and costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppedu import theory
from ppedu.builders import SCHEDULES, gpipe, naive, one_f_one_b
from ppedu.schedule import Costs
from ppedu.simulate import simulate

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
    with pytest.raises(ValueError, match="forward is the time of one operation, a number of at least 0: forward=-1"):
        theory.makespan(2, 2, forward=-1)
    with pytest.raises(ValueError, match="backward=nan"):
        theory.idle_time(2, backward=float("nan"))
    with pytest.raises(ValueError, match="no closed form for the schedule 'zb': the names are naive, gpipe, 1f1b"):
        theory.peak_in_flight("zb", 2, 2)
    with pytest.raises(ValueError, match="p is the number of ranks"):
        theory.peak_in_flight("1f1b", 0, 2)
