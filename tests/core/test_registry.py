"""A schedule is one builder and one line in SCHEDULES: everything else that lists or shows schedules follows."""

from __future__ import annotations

import pytest

import ppedu
from ppedu import Action, Kind, Schedule, theory
from ppedu.course import cli
from ppedu.picture.live.features import why_not_p
from ppedu.picture.live.memory_budget import afford
from ppedu.picture.live.settings import Settings
from ppedu.schedules import SCHEDULES

NOT_KNOWN = "Simulated: no closed form is known here."


def eager(p: int, m: int) -> Schedule:
    """1F1B with one forward more in flight on each rank, for m that p divides."""
    if m % p:
        raise ValueError(f"eager takes microbatches in rounds of p: p={p}, m={m}")
    orders = []
    for rank in range(p):
        ahead = min(p - rank + 1, m)
        kinds = "F" * ahead + "BF" * (m - ahead) + "B" * ahead
        order, counts = [], {"F": 0, "B": 0}
        for kind in kinds:
            order.append(Action(rank, Kind(kind), counts[kind]))
            counts[kind] += 1
        orders.append(tuple(order))
    return Schedule("eager", m, tuple(range(p)), tuple(orders))


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(SCHEDULES, "eager", eager)


def test_it_is_explored():
    """With F = B it takes as long as 1F1B, and keeps one more."""
    view = ppedu.explore("eager", p=2, m=8, ratio=2)
    rows = {row["key"]: row for row in view.figures}
    assert rows["makespan"]["text"] == "27"  # (m + p - 1)(F + B)
    assert rows["peak"]["text"] == "3 2"
    assert {(row["formula"], row["note"]) for row in view.figures} == {("", NOT_KNOWN)}
    assert view.fixed["names"]["eager"] == "eager"
    assert view.ranks == list(range(1, 17))
    view.slow_stage, view.transfer = 1, 0.5  # no formula holds for equal stages either
    assert {row["note"] for row in view.figures} == {NOT_KNOWN}
    view.schedule = "1f1b"
    assert view.moved["before"] == "eager"
    with pytest.raises(ValueError, match="there is no schedule 'eagre'"):
        view.schedule = "eagre"
    view.close()


def test_an_m_that_it_cannot_have_gets_its_builder_s_sentence():
    with pytest.raises(ValueError, match="eager takes microbatches in rounds of p: p=4, m=7"):
        ppedu.explore("eager", p=4, m=7)
    assert why_not_p("eager", 3) == ""


def test_it_is_compared_and_has_a_budget():
    view = ppedu.explore_compare(["1f1b", "eager"], p=4, m=8, budget=4)
    assert [(row["name"], row["most"], row["over"], row["afford"]) for row in view.rows] == [
        ("1F1B", "4", False, "any m"), ("eager", "5", True, "m = 4"),
    ]  # fmt: skip
    view.close()


def test_another_builder_of_the_same_name_is_another_schedule(monkeypatch):
    """What is kept for speed is kept by the builder."""
    assert afford(Settings("eager", 2, 8), 2).m == 2
    monkeypatch.setitem(SCHEDULES, "eager", ppedu.naive)
    assert afford(Settings("eager", 2, 8), 2).any
    assert Settings("eager", 2, 8).predicted().schedule == ppedu.naive(2, 8)


def test_it_is_simulated_optimized_and_named_by_the_theory_as_unknown():
    assert ppedu.simulate(SCHEDULES["eager"](p=2, m=4)).makespan == 10
    for form in (theory.idle, theory.makespan_of, theory.idle_in_span, theory.peak_in_flight, theory.peak_activations):
        with pytest.raises(ValueError, match="no closed form"):
            form("eager", 2, 4)


def test_the_command_line_lists_it(capsys):
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    assert "eager" in capsys.readouterr().out
    (schedule,) = cli._built(cli._parser().parse_args(["run", "-p", "2"]), ["eager"])
    assert schedule == eager(2, 8)


def test_a_builder_that_makes_nothing_is_told():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCHEDULES, "never", _never)
        with pytest.raises(
            ValueError, match=r"a builder in SCHEDULES takes p and m, but .* makes no small schedule: no"
        ):
            ppedu.explore()


def _never(p: int, m: int) -> Schedule:
    raise ValueError("no")
