"""explore() of an order of one's own, of a timeline, and of a run: the same live view, and nothing moves that is no control."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

import ppedu
from ppedu import Costs, Schedule, Span, Timeline, gpipe, one_f_one_b, simulate, zb_v

TWO = Schedule.from_text("F0 F1 B0 B1\nF0 B0 F1 B1", name="mine")


def ran(schedule: Schedule, timelines: tuple[Timeline, ...], pace: Costs | None = None) -> ppedu.Run:
    """What `ppedu.train` returns, without any training."""
    return ppedu.Run(schedule, (5.5,), timelines, (), None, "cpu", "gloo", 2, pace)


def clocked(schedule: Schedule, costs: Costs, part: int | None = None) -> Timeline:
    """As if everything had taken a quarter longer than these seconds."""
    spans = [Span(s.action, s.rank, 9 + 1.25 * s.start, 9 + 1.25 * s.end) for s in simulate(schedule, costs).spans]
    return Timeline(schedule, tuple(spans[:part]), "measured: 2 fake processes", "s", measured=True)


PACE = Costs(0.02, 0.04, transfer=0.01, unit="s")


@pytest.fixture
def made():
    views = []

    def make(*args, **more):
        views.append(ppedu.explore(*args, **more))
        return views[-1]

    yield make
    for view in views:
        view.close()


def say(view, **content):
    view._handle_custom_msg(content, [])


def row(view, key):
    return next(row for row in view.figures if row["key"] == key)


# an order of one's own


def test_an_order_is_shown_with_its_own_p_and_m(made):
    view = made(TWO)
    assert (view.schedule, view.p, view.m, view.ranks) == ("mine (as given)", 2, 2, [2])
    assert repr(view) == "live view of mine p=2 m=2: makespan 6, bubble 33.3 %, in flight 2 1"
    assert next(iter(view.fixed["names"].items())) == ("mine (as given)", "mine (as given)")
    assert {r["note"] for r in view.figures} == {"Simulated: no closed form is known here."}
    assert view.scene["caption"] == "p = 2 ranks, m = 2 microbatches. Predicted, F=1 B=1."
    assert view.scene["tracks"][0]["gaps"][0][3].startswith("rank 0 is idle from 2 to 3: it waits for rank 1's B0")
    assert view.static().get_label() == simulate(TWO).__repr__()
    json.dumps([view.scene, view.details, view.figures, view.fixed])


def test_its_costs_move_and_nothing_else(made):
    view = made(TWO, ratio=2, transfer=0.5)
    assert row(view, "makespan")["text"] == f"{simulate(TWO, Costs(backward=2, transfer=0.5)).makespan:.4g}"
    view.slow_stage, view.slow_factor = 1, 3
    assert view.timelines == (simulate(TWO, Costs([1, 3], [2, 6], transfer=0.5)),)
    number = view.scene["number"]
    for name, fixed in (("p", 2), ("m", 2)):
        says = f"{name} is {fixed} in the order that was given: got 4. Choose a schedule by its name to move it"
        with pytest.raises(ValueError, match=says):
            setattr(view, name, 4)
        say(view, do="set", values={name: 4}, asked=1)
        assert view.error == says
        with pytest.raises(ValueError, match=says):
            made(TWO, **{name: 4})
    assert (view.p, view.m, view.scene["number"]) == (2, 2, number)


def test_halves_and_pairs_have_their_controls(made):
    best = made(zb_v(2, 4), w_share=0.25, ratio=2)
    assert best.schedule in best.fixed["own"]["w_share"]
    assert best.schedule not in best.fixed["own"]["overlap"] + best.fixed["own"]["v"]
    assert best.schedule in best.fixed["several"]
    assert best.settings.costs().weight_grad == 0.25  # a quarter of B, which is 1: a stage is half of a p-th
    named = made("zb_v", 2, 4, w_share=0.25, ratio=2)
    assert best.timelines[0].spans == named.timelines[0].spans
    assert named.fixed["names"] == {key: name for key, name in best.fixed["names"].items() if key != best.schedule}


def test_from_an_order_to_a_name_and_back(made):
    """A named schedule is shown at the same costs, and can be moved; the order comes back as it was."""
    view = made(TWO, ratio=2)
    say(view, do="set", values={"schedule": "gpipe"}, asked=1)
    assert view.moved == {"what": "schedule", "before": "mine", "after": "GPipe"}
    assert (view.p, view.m, view.ranks[-1]) == (2, 2, 16)
    view.p, view.m = 6, 7
    assert row(view, "makespan")["text"] == "36"  # (m + p - 1)(F + B)
    view.schedule = "mine (as given)"
    assert (view.p, view.m) == (2, 2)
    assert view.timelines == (simulate(TWO, Costs(backward=2)),)
    with pytest.raises(ValueError, match=re.escape("there is no schedule 'mine (as given)'")):
        made().schedule = "mine (as given)"


def test_an_order_larger_than_the_controls_is_shown(made):
    view = made(one_f_one_b(p=20, m=70), train=print)
    assert (view.p, view.m) == (20, 70)
    assert row(view, "makespan")["text"] == "178"
    assert view.not_real.startswith("A real run takes up to 8 ranks")
    view.schedule = "1f1b"
    assert (view.p, view.m) == (16, 64)


def test_an_order_that_cannot_run_says_why():
    stuck = Schedule.from_text("B0 F0\nF0 B0")
    with pytest.raises(ppedu.ScheduleError, match="B0"):
        ppedu.explore(stuck)


def test_run_for_real_runs_that_very_order(made):
    schedules = []

    def train(schedule, pace, **_):
        schedules.append(schedule)
        return ran(schedule, (clocked(schedule, pace),), pace)

    view = made(TWO, ratio=2, train=train)
    say(view, do="run", asked=1)
    view._real.join(10)
    assert view.run["state"] == "done", view.run["text"]
    assert schedules[0] is TWO
    assert [t["word"] for t in view.scene["tracks"]] == ["predicted", "measured"]
    assert view.scene["tracks"][1]["makespan"] == 225  # 9 units of 20 ms, and a quarter more


# what is there already


def test_a_prediction_stands_for_itself(made):
    t = simulate(gpipe(2, 2), Costs(3, 4, transfer=1))
    view = made(t)
    assert repr(view) == "live view of GPipe p=2 m=2: makespan 23, bubble 39.1 %, in flight 2 2"
    assert (view.scene["label"], made(simulate(TWO)).scene["label"]) == ("time (units)", "time (units of F)")
    (drawn,) = view.scene["tracks"]
    assert (drawn["word"], drawn["arrives"]) == ("", False)
    assert view.scene["caption"] == "p = 2 ranks, m = 2 microbatches. Predicted, F=3 B=4, transfer 1."
    assert row(view, "idle")["text"] == "9"
    assert {r["about"] for r in view.figures} == {"predicted"}
    assert not view.measured
    assert view.static().get_label() == repr(t)


@pytest.mark.parametrize("pace", [PACE, None, replace(PACE, unit="")], ids=["paced", "unpaced", "pace without a unit"])
def test_a_run_lies_over_its_prediction(made, pace):
    """The prediction is its pace's; without one, that of what its operations took."""
    measured = clocked(TWO, PACE)
    view = made(ran(TWO, (clocked(TWO, Costs(1, 1)), measured), pace))
    expected = simulate(TWO, PACE if pace else measured.costs())
    assert (view.timelines[0].spans, view.timelines[1]) == (expected.spans, measured)
    assert ("Predicted from the medians of what each stage's operations took." in view.scene["caption"]) == (not pace)
    predicted, drawn = view.scene["tracks"]
    assert (predicted["word"], drawn["word"], predicted["group"]) == ("predicted", "measured", drawn["group"])
    assert (predicted["arrives"], drawn["arrives"]) == (True, False)
    assert drawn["makespan"] == 1.25 * 200  # 2 (F + B) + (F + B) + 2 transfers
    assert predicted["title"][1].startswith("makespan 200 ms predicted → 250 ms" if pace else "makespan 225 ms")
    assert view.scene["caption"].endswith("Measured: 2 fake processes.")
    assert (row(view, "makespan")["text"], row(view, "peak")["about"]) == ("250 ms", "predicted 2 1")
    say(view, do="set", values={"overlay": False}, asked=1)
    assert [t["makespan"] for t in view.scene["tracks"]] == [250]
    assert view.timelines == (measured,)
    assert (view.measured, row(view, "peak")["about"]) == (True, "measured")


def test_a_run_that_was_stopped_is_shown_as_far_as_it_came(made):
    view = made(ran(TWO, (clocked(TWO, PACE, part=3),), PACE))
    assert view.scene["tracks"][0]["title"][-1] == "stopped after 3 of 8 operations"
    assert "%" not in view.scene["tracks"][0]["title"][1]
    with pytest.raises(ValueError, match="ended before its first step was measured: it has no timeline"):
        made(ran(TWO, ()))


def test_nothing_of_it_can_be_moved_or_run(made):
    view = made(simulate(TWO))
    say(view, do="set", values={"p": 3}, asked=1)
    assert view.error == "there is no control 'p'"
    say(view, do="run", asked=2)
    assert "it can ask for set, details" in view.error
    with pytest.raises(ValueError, match=re.escape("ppedu.explore(its.schedule) is a view that can run the schedule")):
        view.run_for_real()
    assert "names" not in view.fixed
    for shown in (simulate(TWO), ran(TWO, (clocked(TWO, PACE),))):
        with pytest.raises(ValueError, match="already has its times: leave out p, ratio and train, or explore its"):
            made(shown, p=2, ratio=2.0, train=print)


# what is neither


def test_other_things_get_a_sentence(made):
    best = ppedu.Optimized(TWO, simulate(TWO), 6.0, None, None, 0.0)
    with pytest.raises(TypeError, match="got <module 'ppedu'") as caught:
        made(ppedu)
    assert "Give it" not in str(caught.value)
    with pytest.raises(TypeError, match=r"explore\(\) shows a schedule .* Give it its schedule or its timeline"):
        made(best)
    assert made(best.schedule).timelines == made(best.timeline).timelines
    for wrong in (5, None, [TWO], ppedu.gpipe):
        with pytest.raises(
            TypeError, match=re.escape("by its name ('1f1b') or as a ppedu.Schedule, a ppedu.Timeline, or")
        ):
            made(wrong)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("p", "4", "p is the number of ranks, a whole number from 1 to 16: got '4'"),
        ("m", 2.5, "m is the number of microbatches, a whole number from 1 to 64: got 2.5"),
        ("ratio", "two", "ratio is how many times as long as F a B takes, a number from 0.25 to 4: got 'two'"),
        (
            "slow_stage",
            "1",
            "slow_stage is None or the rank of the slow stage: with p=4 there are ranks 0 to 3, got '1'",
        ),
        ("schedule", 3, "there is no schedule 3: the names are naive"),
    ],
)
def test_a_value_of_a_wrong_type_gets_the_rule_too(made, name, value, says):
    with pytest.raises(TypeError if name == "schedule" else ValueError, match=re.escape(str(value))):
        made(**{name: value})
    with pytest.raises(ValueError, match=re.escape(says)):
        setattr(made(), name, value)


def test_they_need_neither_torch_nor_matplotlib(fresh_python):
    code = (
        "import sys, ppedu; s = ppedu.gpipe(2, 2); ppedu.explore(s); ppedu.explore(ppedu.simulate(s)); "
        "print(*{'torch', 'matplotlib', 'numpy'} & set(sys.modules))"
    )
    assert fresh_python(code).split() == []


# orders of one's own side by side


@pytest.fixture
def compared():
    views = []

    def compare(*args, **more):
        views.append(ppedu.explore_compare(*args, **more))
        return views[-1]

    yield compare
    for view in views:
        view.close()


def test_an_order_is_compared_at_its_own_p_and_m(compared):
    view = compared(["gpipe", TWO], ratio=2)
    assert (view.schedules, view.p, view.m, view.ranks) == (["gpipe", "mine (as given)"], 2, 2, [2])
    assert [(row["name"], row["time"], row["most"]) for row in view.rows] == [("GPipe", "9", "2"), ("mine", "9", "2")]
    assert view.timelines == (simulate(gpipe(2, 2), Costs(backward=2)), simulate(TWO, Costs(backward=2)))
    with pytest.raises(ValueError, match="m is 2 in the order that was given: got 4"):
        view.m = 4
    say(view, do="set", values={"schedules": ["gpipe", "1f1b"]}, asked=1)
    view.m = 4
    say(view, do="set", values={"schedules": ["1f1b", "mine (as given)"]}, asked=2)
    assert (view.m, view.error) == (2, "")


def test_orders_of_one_name_are_told_apart(compared):
    other = Schedule.from_text("F1 F0 B1 B0\nF1 B1 F0 B0", name="mine")
    view = compared([TWO, other, TWO])
    assert view.schedules == ["mine (as given)", "mine 2 (as given)", "mine 3 (as given)"]
    assert [track["title"][0] for track in view.scene["tracks"]] == ["mine", "mine 2", "mine 3"]
    mine = compared([one_f_one_b(2, 2), "1f1b"])
    assert [row["name"] for row in mine.rows] == ["1F1B 2", "1F1B"]


def test_orders_that_cannot_be_compared_get_a_sentence(compared):
    with pytest.raises(ValueError, match="at the same p and m: got mine p=2 m=2 and GPipe p=2 m=4"):
        compared([TWO, gpipe(2, 4)])
    with pytest.raises(ValueError, match="p cannot be 3: DualPipe pairs rank r with rank p - 1 - r"):
        compared([one_f_one_b(3, 6), "dualpipe"])
    view = compared([one_f_one_b(3, 6), "gpipe"])
    say(view, do="set", values={"schedules": [view.schedules[0], "dualpipe"]}, asked=1)
    assert view.error.startswith("p cannot be 3")
    with pytest.raises(ValueError, match="2 or 3 different names"):
        compared(TWO)


def test_a_budget_says_whether_an_order_fits(compared):
    """TWO holds two on rank 0; for another m it would be another order."""
    view = compared([TWO, "gpipe"], budget=2)
    assert [(row["afford"], row["each"], row["over"]) for row in view.rows] == [
        ("m = 2", "each takes 3", False), ("m = 2", "each takes 3", False),
    ]  # fmt: skip
    view.budget = 1
    assert [(row["afford"], row["each"], row["over"]) for row in view.rows] == [
        ("no m", "it always holds more", True), ("m = 1", "each takes 4", True),
    ]  # fmt: skip
    assert view.verdict[1].startswith(
        "With room for 1 in flight: mine affords no m, it always holds more; GPipe affords"
    )


def test_all_of_them_run_for_real(compared):
    schedules = []

    def train(schedule, pace, **_):
        schedules.append(schedule)
        return ran(schedule, (clocked(schedule, pace),), pace)

    view = compared([TWO, "gpipe"], train=train)
    say(view, do="run", asked=1)
    view._real.join(10)
    assert view.run["state"] == "done", view.run["text"]
    assert schedules == [TWO, gpipe(2, 2)]
    assert [track["word"] for track in view.scene["tracks"]] == ["predicted", "measured"] * 2
