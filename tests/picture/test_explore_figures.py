"""The figures beside the picture: every formula that is shown holds, and where none holds the view says so."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppedu import SCHEDULES, theory
from ppedu.core.format import by_rank
from ppedu.picture.labels import caption, titles
from ppedu.picture.live.comparison import verdict
from ppedu.picture.live.figures import changes, figures
from ppedu.picture.live.formulas import PLAIN, formulas, work_out
from ppedu.picture.live.memory_budget import afford, peaks
from ppedu.picture.live.settings import CONTROLS, Settings, check_name, check_shape, check_stage, ranks_of, words

settings = st.builds(
    Settings,
    schedule=st.sampled_from([*SCHEDULES]),
    p=st.integers(1, 7),
    m=st.integers(1, 18),
    ratio=st.sampled_from([0.5, 1.0, 2.0, 3.25]),
    transfer=st.sampled_from([0.0, 0.0, 0.1, 1.0]),
    slow_factor=st.sampled_from([1.0, 2.0, 3.5]),
    v=st.integers(1, 4),
    w_share=st.sampled_from([0.3, 0.5, 0.5, 0.8]),
    overlap=st.sampled_from([1.0, 1.0, 0.8]),
)


@given(s=settings, stage=st.none() | st.integers(0, 6))
def test_a_formula_is_shown_only_where_it_gives_the_simulated_figure(s, stage):
    p = s.p + s.p % 2 if s.schedule == "dualpipe" else s.p
    s = replace(s, p=p, slow_stage=stage if stage is not None and stage < p else None)
    known = work_out(formulas(s), s)
    for row in figures(s, s.predicted()):
        assert bool(row.formula) == (row.key in known) == (row.note == row.about == "")
        if row.key in known:
            assert known[row.key][0] == pytest.approx(row.value)
    if s.schedule in theory.IDLE and (s.schedule != "dualpipe" or s.m > 2 * s.p + 1):
        assert "peak" in known  # what is in flight depends on the order alone
    if s.schedule in PLAIN:
        assert ("makespan" in known) == (s.even and s.free)
    else:
        assert not (known.keys() & {"makespan", "idle"} and not (s.even and s.free))


@pytest.mark.parametrize("name", [name for name in theory.IDLE if name not in PLAIN])
def test_with_the_papers_times_every_schedule_has_its_closed_form(name):
    """F = I = W, and 2p microbatches: the conditions of the zero-bubble papers and of DualPipe's."""
    s = Settings(name, 4, 8, ratio=2.0)
    notes = [row.note for row in figures(s, s.predicted())]
    assert notes == [""] * len(notes)


def shown(row) -> float:
    """What the numbers of a formula come to: 'x' is written for times, and products without a sign."""
    text = row.numbers.split(" = ")[0].replace(" x ", "*").replace(")(", ")*(")
    assert re.fullmatch(r"([\d\s.,()+*/-]|max)+", text), text
    return eval(text)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(
    ("p", "m", "ratio", "overlap"),
    [(4, 8, 1, 1), (4, 2, 2, 1), (1, 3, 1, 1), (7, 5, 0.5, 1), (4, 8, 2, 1), (4, 10, 2, 0.75), (2, 16, 2, 1)],
)
def test_the_numbers_that_are_put_in_come_to_the_figure(name, p, m, ratio, overlap):
    p += name == "dualpipe" and p % 2
    s = Settings(name, p, m, ratio=float(ratio), overlap=overlap)
    for row in figures(s, s.predicted()):
        if row.key in ("peak", "activations"):
            assert row.numbers in (by_rank(row.value), "")
        elif row.formula:
            assert shown(row) == pytest.approx(row.value, rel=1e-3)  # numbers are shown with four digits


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
    both = Settings("1f1b", 4, 8, transfer=0.5, slow_stage=1, slow_factor=2.0)
    assert "one stage is slower and messages take time" in figures(both, both.predicted())[0].note


def test_published_figures_of_the_later_schedules():
    """Interleaved p=4, m=8, v=2, B=2F: 57 halves against 33, in flight 11 9 7 5 halves (SC'21, 2.2). F=I=W: 27 for ZB-H1
    (Zero Bubble, table 2), 25.5 for ZB-V (51 halves). DualPipe: p + 1 activations, two copies of the weights (README)."""
    shown = {}
    for name in ("1f1b", "interleaved", "zb_h1", "zb_v", "dualpipe"):
        s = Settings(name, 4, 8, ratio=2.0)
        shown[name] = {row.key: row.text for row in figures(s, s.predicted())}
    assert {name: rows["makespan"] for name, rows in shown.items()} == {
        "1f1b": "33", "interleaved": "28.5", "zb_h1": "27", "zb_v": "25.5", "dualpipe": "26",
    }  # fmt: skip
    assert (shown["interleaved"]["peak"], shown["interleaved"]["activations"]) == ("11 9 7 5", "5.5 4.5 3.5 2.5")
    assert (shown["zb_v"]["peak"], shown["zb_v"]["activations"]) == ("8 8 8 8", "4 4 4 4")
    assert (shown["dualpipe"]["peak"], shown["dualpipe"]["weights"]) == ("5 5 5 5", "2 copies")
    assert "weights" not in shown["zb_v"]


@given(s=settings)
def test_the_same_model_is_the_same_work_under_every_schedule(s):
    """Without overlap each rank is busy for m (F + B), whatever its stages are: makespans compare."""
    s = replace(s, p=s.p + s.p % 2, slow_stage=None, overlap=1.0)
    assert s.predicted().busy == pytest.approx([s.m * (1 + s.ratio)] * s.p)


def test_a_slow_rank_is_slow_with_all_its_stages():
    """p=2, v=2: stages 1 and 3 stand on rank 1; each is half of a p-th, and three times as slow there."""
    s = Settings("interleaved", 2, 4, ratio=2.0, slow_stage=1, slow_factor=3.0)
    assert s.costs().forward == (0.5, 1.5, 0.5, 1.5)
    assert s.costs().backward == (1.0, 3.0, 1.0, 3.0)
    assert s.predicted().busy == (12, 36)
    assert "but one rank is slower" in figures(s, s.predicted())[0].note


def test_i_w_and_pairs_take_their_shares():
    s = Settings("dualpipev", 2, 4, ratio=2.0, w_share=0.25, overlap=0.9)
    c = s.costs()
    assert (c.forward, c.backward, c.input_grad, c.weight_grad) == (0.5, 1.0, 0.75, 0.25)
    assert c.overlapped == pytest.approx(0.9 * 1.5)


def test_a_control_that_a_schedule_lacks_counts_for_nothing():
    assert Settings("1f1b", 4, 8, v=3, w_share=0.2, overlap=0.7) == Settings("1f1b", 4, 8)
    assert Settings("interleaved", 4, 8, v=3) != Settings("interleaved", 4, 8)
    assert Settings("zb_h1", 4, 8, overlap=0.7) == Settings("zb_h1", 4, 8) != Settings("zb_h1", 4, 8, w_share=0.2)


def test_the_p_that_schedules_can_have():
    assert ranks_of(["1f1b", "zb_v"]) == list(range(1, 17))
    assert ranks_of(["1f1b", "dualpipe"]) == [2, 4, 6, 8, 10, 12, 14, 16]
    assert check_shape("p", 6, ["dualpipe"]) == 6
    with pytest.raises(ValueError, match=r"p cannot be 5: DualPipe pairs rank r .* Take p=6 or p=4"):
        check_shape("p", 5, ["gpipe", "dualpipe"])


def test_what_a_prediction_rests_on():
    pair = [Settings(name, 4, 8, ratio=2.0, v=3, overlap=0.9) for name in ("interleaved", "dualpipe")]
    assert words(pair) == ("F=1 B=2 (I=1 W=1) for 1/4 of the model, F&B=2.7; a stage of interleaved 1F1B is 1/12")
    assert words([Settings("zb_h1", 4, 8)]) == "F=1 B=1 (I=0.5 W=0.5)"


def test_one_rank_has_no_messages_and_no_slower_stage():
    """With p=1 the formulas hold whatever the transfer; the slow stage is all there is."""
    s = Settings("gpipe", 1, 3, ratio=2.0, transfer=1.0, slow_stage=0, slow_factor=2.0)
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
        CONTROLS[name].check(name, value)


def test_numbers_between_the_sliders_steps_are_taken():
    assert CONTROLS["transfer"].check("transfer", 0.05) == 0.05
    assert CONTROLS["p"].check("p", 4.0) == 4


def test_names_and_stages():
    assert check_name("gpipe") == "gpipe"
    with pytest.raises(ValueError, match="there is no schedule 'zb': the names are naive, gpipe, 1f1b"):
        check_name("zb")
    assert check_stage(None, 4) is None
    assert check_stage(3, 4) == 3
    with pytest.raises(ValueError, match="with p=4 there are ranks 0 to 3, got 4"):
        check_stage(4, 4)
    with pytest.raises(ValueError, match="with p=1 there is rank 0 alone, got 1"):
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
        held = peaks(Settings("gpipe", 4, 8))
        assert held[m] <= budget < held[m + 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
@given(p=st.integers(1, 4), m=st.integers(1, 12), v=st.integers(1, 3))
def test_peaks_are_those_of_the_simulation(name, p, m, v):
    s = Settings(name, 2 * p if name == "dualpipe" else p, m, v=v)
    assert peaks(s)[m] == pytest.approx(max(s.predicted().peak_activations))


def test_budgets_count_activations_of_one_size():
    """ZB-V and 1F1B keep p activations, looped BFS m, interleaved with p=4, v=2 up to 5.5 and more where rounds are uneven."""
    assert afford(Settings("zb_v", 4, 8), 4).any
    assert not afford(Settings("zb_v", 4, 8), 3).any
    assert (afford(Settings("looped_bfs", 4, 8), 6).m, afford(Settings("looped_bfs", 4, 8), 6).any) == (6, False)
    assert afford(Settings("interleaved", 4, 8), 5).m < 64
    assert afford(Settings("interleaved", 4, 8), 6).m == 64
    assert not afford(Settings("interleaved", 4, 8), 6).any  # m = 7 is one round of 7: 7 x 2 - 1 halves and more
    assert afford(Settings("interleaved", 4, 8), 7).any


def test_a_budget_is_spent_on_time():
    """With room for 4 and p=4, GPipe runs 4 microbatches in 14, 1F1B 64 in 134: (m + p - 1)(F + B) over m."""
    assert afford(Settings("gpipe", 4, 8), 4).each == 14 / 4
    assert afford(Settings("1f1b", 4, 8), 4).each == 134 / 64


def test_verdicts():
    pair = [Settings(name, 4, 8).predicted() for name in ("gpipe", "1f1b")]
    assert verdict(pair).startswith("The same makespan, 22; other memory")
    slow = [Settings(name, 4, 8, ratio=2.0, transfer=1.0).predicted() for name in ("1f1b", "gpipe")]
    assert verdict(slow) == "Makespan: GPipe 39, 1F1B 49; a rank holds up to 4 microbatches with 1F1B, 8 with GPipe."
    mixed = [Settings(name, 4, 8, ratio=2.0).predicted() for name in ("1f1b", "interleaved", "zb_v")]
    assert verdict(mixed) == (
        "Makespan: ZB-V 25.5, interleaved 1F1B 28.5, 1F1B 33; a rank holds up to 4 activations of 1/p of the model with "
        "1F1B, 5.5 with interleaved 1F1B, 4 with ZB-V."
    )
    halves = [
        Settings(name, 4, 64).predicted() for name in ("zb_v", "dualpipev")
    ]  # 8 and 9 stages, each half of a p-th
    assert verdict(halves).endswith(
        "a rank holds up to 4 activations of 1/p of the model with ZB-V, 4.5 with DualPipeV."
    )
    one = [Settings(name, 4, 1).predicted() for name in ("naive", "gpipe")]
    assert verdict(one) == "The same makespan, 8, and the same memory: a rank holds up to 1."


def test_title_and_caption_are_those_of_the_pictures():
    from ppedu.picture.paper import plot_timeline

    s = Settings("1f1b", 4, 8)
    axes = plot_timeline(s.predicted())
    assert "   ".join(titles([[s.predicted()]])[0]) == axes.get_title(loc="left")
    assert (
        caption([s.predicted()], f"predicted, {words([s])}") == "p = 4 ranks, m = 8 microbatches. Predicted, F=1 B=1."
    )
    slow = Settings("1f1b", 1, 1, ratio=2.0, transfer=0.5, slow_stage=0, slow_factor=3.0)
    assert caption([slow.predicted()], f"predicted, {words([slow])}") == (
        "p = 1 rank, m = 1 microbatch. Predicted, F=1 B=2, rank 0 takes 3 times as long, transfer 0.5."
    )
