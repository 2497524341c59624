"""The figures beside the picture: every formula that is shown holds, and where none holds the view says so."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppedu.explore.afford import afford, peak
from ppedu.explore.comparison import verdict
from ppedu.explore.figures import _closed_forms, changes, figures, listed
from ppedu.explore.settings import RANGES, Settings, check_name, check_stage
from ppedu.explore.titles import caption, title

settings = st.builds(
    Settings,
    schedule=st.sampled_from(["naive", "gpipe", "1f1b"]),
    p=st.integers(1, 7),
    m=st.integers(1, 10),
    ratio=st.sampled_from([0.5, 1.0, 2.0, 3.25]),
    transfer=st.sampled_from([0.0, 0.0, 0.1, 1.0]),
    slow_factor=st.sampled_from([1.0, 2.0, 3.5]),
)


@given(s=settings, stage=st.none() | st.integers(0, 6))
def test_a_formula_is_shown_only_where_it_gives_the_simulated_figure(s, stage):
    s = Settings(
        s.schedule, s.p, s.m, s.ratio, s.transfer, stage if stage is not None and stage < s.p else None, s.slow_factor
    )
    known = _closed_forms(s)
    for row in figures(s, s.predicted()):
        assert bool(row.formula) == (row.key in known) == (row.note == "")
        if row.key in known:
            assert known[row.key].value == pytest.approx(row.value)
    assert "peak" in known  # what is in flight depends on the order alone
    assert ("makespan" in known) == (s.even and s.free)


def shown(row) -> float:
    """What the numbers of a formula come to: 'x' is written for times, and products without a sign."""
    text = row.numbers.split(" = ")[0].replace(" x ", "*").replace(")(", ")*(")
    assert re.fullmatch(r"[\d\s.()+*/-]+", text), text
    return eval(text)


@pytest.mark.parametrize("name", ["naive", "gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m", "ratio"), [(4, 8, 1), (4, 2, 2), (1, 3, 1), (7, 5, 0.5)])
def test_the_numbers_that_are_put_in_come_to_the_figure(name, p, m, ratio):
    s = Settings(name, p, m, float(ratio))
    for row in figures(s, s.predicted()):
        if row.key != "peak":
            assert shown(row) == pytest.approx(row.value)
        else:
            assert row.numbers == listed(row.value)


def test_the_literatures_figures():
    """p=4, m=8, F=B=1: 22, 3/11, 3/8, 8/11, 4 3 2 1 (GPipe, 2019; Narayanan et al., SC'21)."""
    s = Settings("1f1b", 4, 8)
    rows = {row.key: row for row in figures(s, s.predicted())}
    assert [rows[k].text for k in ("makespan", "bubble", "over ideal", "utilization", "peak")] == [
        "22", "27.3 %", "37.5 %", "72.7 %", "4 3 2 1",
    ]  # fmt: skip
    assert rows["bubble"].numbers == "3/11"


def test_why_a_figure_is_simulated():
    slow = Settings("1f1b", 4, 8, slow_stage=1, slow_factor=2.0)
    note = figures(slow, slow.predicted())[0].note
    assert note == "Simulated: the formulas hold for equal stages and free messages, but one stage is slower."
    both = Settings("1f1b", 4, 8, 1.0, 0.5, 1, 2.0)
    assert "one stage is slower and messages take time" in figures(both, both.predicted())[0].note


def test_one_rank_has_no_messages_and_no_slower_stage():
    """With p=1 the formulas hold whatever the transfer; the slow stage is all there is."""
    s = Settings("gpipe", 1, 3, 2.0, 1.0, 0, 2.0)
    row = figures(s, s.predicted())[0]
    assert (row.text, row.numbers) == ("18", "(3 + 1 - 1)(2 + 4)")


def test_changes_say_what_moved_and_which_way():
    a, b = Settings("1f1b", 4, 8), Settings("1f1b", 4, 16)
    told = changes(figures(a, a.predicted()), figures(b, b.predicted()))
    assert told == {
        "makespan": ("22", "up"), "bubble": ("27.3 %", "down"), "over ideal": ("37.5 %", "down"),
        "utilization": ("72.7 %", "up"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("p", 0, "p is the number of ranks, a whole number from 1 to 16: got 0"),
        ("p", 4.5, "p is the number of ranks, a whole number from 1 to 16: got 4.5"),
        ("m", 65, "m is the number of microbatches, a whole number from 1 to 64: got 65"),
        ("m", None, "m is the number of microbatches, a whole number from 1 to 64: got nothing"),
        ("m", True, "m is the number of microbatches, a whole number from 1 to 64: got True"),
        ("ratio", 0, "ratio is how many times as long as F a B takes, a number from 0.25 to 4: got 0"),
        (
            "transfer",
            -1,
            "transfer is how long a tensor travels to another rank, in units of F, a number from 0 to 4: got -1",
        ),
        ("transfer", float("nan"), "got nan"),
        ("slow_factor", "2", "slow_factor is how many times slower the slow stage is, a number from 1 to 4: got '2'"),
    ],
)
def test_a_value_out_of_range_says_the_rule(name, value, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        RANGES[name].check(name, value)


def test_numbers_between_the_sliders_steps_are_taken():
    assert RANGES["transfer"].check("transfer", 0.05) == 0.05
    assert RANGES["p"].check("p", 4.0) == 4


def test_names_and_stages():
    assert check_name("gpipe") == "gpipe"
    with pytest.raises(ValueError, match="there is no schedule 'zb': the names are naive, gpipe, 1f1b"):
        check_name("zb")
    assert check_stage(None, 4) is None
    assert check_stage(3, 4) == 3
    with pytest.raises(ValueError, match="with p=4 there are stages 0 to 3, got 4"):
        check_stage(4, 4)
    with pytest.raises(ValueError, match="with p=1 there is stage 0 alone, got 1"):
        check_stage(1, 1)


@pytest.mark.parametrize("p", [1, 2, 4, 7])
@pytest.mark.parametrize("budget", [1, 2, 4, 8])
def test_what_a_budget_affords(p, budget):
    """GPipe keeps m on every rank, 1F1B min(p, m), naive 1 (theory.peak_in_flight): so this is what fits."""
    assert (afford(Settings("gpipe", p, 8), budget).m, afford(Settings("gpipe", p, 8), budget).any) == (budget, False)
    one = afford(Settings("1f1b", p, 8), budget)
    assert (one.m, one.any) == ((64, True) if budget >= p else (budget, False))
    assert afford(Settings("naive", p, 8), budget).any


def test_what_is_afforded_fits_and_one_more_does_not():
    for budget in (1, 3, 5):
        m = afford(Settings("gpipe", 4, 8), budget).m
        assert peak("gpipe", 4, m) <= budget < peak("gpipe", 4, m + 1)


def test_a_budget_is_spent_on_time():
    """With room for 4 and p=4, GPipe runs 4 microbatches in 14, 1F1B 64 in 134: (m + p - 1)(F + B) over m."""
    assert afford(Settings("gpipe", 4, 8), 4).each == 14 / 4
    assert afford(Settings("1f1b", 4, 8), 4).each == 134 / 64


def test_verdicts():
    pair = [Settings(name, 4, 8).predicted() for name in ("gpipe", "1f1b")]
    assert verdict(pair).startswith("The same makespan, 22; other memory")
    slow = [Settings(name, 4, 8, 2.0, 1.0).predicted() for name in ("1f1b", "gpipe")]
    assert verdict(slow) == "Makespan: GPipe 39, 1F1B 49; a rank holds up to 4 microbatches with 1F1B, 8 with GPipe."
    one = [Settings(name, 4, 1).predicted() for name in ("naive", "gpipe")]
    assert verdict(one) == "The same makespan, 8, and the same memory: a rank holds up to 1."


def test_title_and_caption_are_those_of_the_pictures():
    from ppedu.plot import plot_timeline

    s = Settings("1f1b", 4, 8)
    axes = plot_timeline(s.predicted())
    assert "   ".join(title([s.predicted()])) == axes.get_title(loc="left")
    assert caption(4, 8, s.words) == "p = 4 ranks, m = 8 microbatches. Predicted, F=1 B=1."
    slow = Settings("1f1b", 1, 1, 2.0, 0.5, 0, 3.0)
    assert caption(1, 1, slow.words) == (
        "p = 1 rank, m = 1 microbatch. Predicted, F=1 B=2, rank 0 takes 3 times as long, transfer 0.5."
    )
