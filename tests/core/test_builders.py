"""The schedules, against the orders that the papers print."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orders import B, F, golden

from ppedu.core.schedule import Schedule
from ppedu.core.validate import violations
from ppedu.schedules import SCHEDULES, forward_only, gpipe, naive, one_f_one_b

ranks, microbatches = st.integers(1, 12), st.integers(1, 20)


def texts(schedule: Schedule) -> list[str]:
    return [line.partition(": ")[2] for line in str(schedule).splitlines()]


def test_gpipe_is_the_papers():
    """Huang et al., 2019, figure 2; Megatron-LM, SC'21, figure 3."""
    assert gpipe(p=4, m=8).orders == golden("gpipe_p4_m8").orders
    assert texts(gpipe(p=2, m=3)) == ["F0 F1 F2 B0 B1 B2"] * 2


def test_one_f_one_b_is_the_papers():
    """Megatron-LM, SC'21, figure 4, upper part. (The "F1 before B0" of every rank but the last is two microbatches.)"""
    schedule = one_f_one_b(p=4, m=8)
    assert schedule.orders == golden("1f1b_p4_m8").orders
    assert texts(schedule) == [
        "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
    ]


def test_one_f_one_b_with_fewer_microbatches_than_ranks():
    """Warm-up is min(p - 1 - rank, m) forwards; code that forgets the min breaks here."""
    assert one_f_one_b(p=4, m=2).orders == golden("1f1b_p4_m2").orders
    assert texts(one_f_one_b(p=4, m=2)) == ["F0 F1 B0 B1"] * 3 + ["F0 B0 F1 B1"]
    assert texts(one_f_one_b(p=3, m=1)) == ["F0 B0"] * 3
    assert texts(one_f_one_b(p=1, m=3)) == ["F0 B0 F1 B1 F2 B2"]


def test_naive_and_forward_only():
    assert texts(naive(p=3, m=2)) == ["F0 B0 F1 B1"] * 3
    assert texts(naive(p=2)) == ["F0 B0"] * 2
    assert texts(forward_only(p=2, m=3)) == ["F0 F1 F2"] * 2


@given(ranks, microbatches, st.sampled_from([naive, gpipe, one_f_one_b, forward_only]))
def test_every_schedule_is_legal_and_complete(p, m, build):
    schedule = build(p=p, m=m)
    assert violations(schedule) == ()
    kinds = (F,) if build is forward_only else (F, B)
    for rank, order in enumerate(schedule.orders):
        assert sorted((a.stage, a.kind, a.microbatch) for a in order) == sorted(
            (rank, kind, j) for kind in kinds for j in range(m)
        )


@given(ranks, microbatches)
def test_one_f_one_b_alternates_between_warm_up_and_cool_down(p, m):
    for rank, order in enumerate(one_f_one_b(p=p, m=m).orders):
        warmup = min(p - 1 - rank, m)
        kinds = "".join(a.kind.value for a in order)
        assert kinds == "F" * warmup + "FB" * (m - warmup) + "B" * warmup


def test_names_of_the_schedules():
    labels = {name: build(p=2, m=3).label for name, build in SCHEDULES.items()}
    assert labels == labels | {
        "naive": "naive p=2 m=3",
        "gpipe": "GPipe p=2 m=3",
        "1f1b": "1F1B p=2 m=3",
        "interleaved": "interleaved 1F1B p=2 m=3",
        "looped_bfs": "looped BFS p=2 m=3",
        "zb_h1": "ZB-H1 p=2 m=3",
        "zb_h2": "ZB-H2 p=2 m=3",
        "zb_v": "ZB-V p=2 m=3",
        "dualpipe": "DualPipe p=2 m=3",
        "dualpipev": "DualPipeV p=2 m=3",
    }


@pytest.mark.parametrize("build", [naive, gpipe, one_f_one_b, forward_only])
@pytest.mark.parametrize(
    ("p", "m", "says"), [(0, 1, "p=0"), (2, 0, "m=0"), (-1, 2, "p=-1"), (2, 1.5, "m=1.5"), (True, 2, "p=True")]
)
def test_impossible_numbers_get_a_sentence(build, p, m, says):
    with pytest.raises(ValueError, match=f"a whole number of at least 1: {says}"):
        build(p=p, m=m)
