"""The live views without a browser: traits in, traits out, what goes to the page, and errors that show in the widget."""

from __future__ import annotations

import json

import pytest
from traitlets import TraitError

import ppedu
from ppedu import theory
from ppedu.picture.live import assets, explorer
from ppedu.picture.live.comparison import Comparison
from ppedu.picture.live.explorer import Explorer
from ppedu.picture.live.settings import DEFAULTS


@pytest.fixture
def view():
    made = ppedu.explore()
    yield made
    made.close()


@pytest.fixture
def comparison():
    made = ppedu.explore_compare()
    yield made
    made.close()


class Page:
    """The other end: it says what a page says, and keeps what it is told."""

    def __init__(self, view):
        self.view, self.told, self.asked = view, [], 0
        view._send = lambda message, buffers=None: self.told.append(message)

    def say(self, **content):
        self.view._handle_custom_msg(content, [])

    def move(self, gesture=None, **values):
        self.asked += 1
        self.say(do="set", values=values, asked=self.asked, gesture=gesture or self.asked)

    def answers(self):
        """The states of all messages that had an answer in them."""
        states = [message["state"] for message in self.told if message["method"] == "update"]
        return [state for state in states if "answered" in state]


def row(view, key):
    return next(row for row in view.figures if row["key"] == key)


def test_setting_a_trait_recomputes_picture_and_figures(view):
    before = view.scene["number"]
    view.m = 16
    assert view.scene["number"] > before
    assert view.scene["tracks"][0]["makespan"] == 38  # (m + p - 1)(F + B)
    assert row(view, "makespan")["text"] == "38"
    view.ratio = 2
    assert row(view, "makespan")["text"] == "57"
    view.schedule = "naive"
    assert row(view, "makespan")["numbers"] == "16 x 4 x (1 + 2)"


def test_the_published_numbers_of_slow_stages_and_messages(view):
    """p=4, m=8, F=1, B=2: with transfer 1 1F1B takes 49 and GPipe 39; with stage 1 twice as slow, 53 and 57."""
    view.ratio, view.transfer = 2, 1
    assert row(view, "makespan")["text"] == "49"
    view.schedule = "gpipe"
    assert row(view, "makespan")["text"] == "39"
    view.transfer, view.slow_stage, view.slow_factor = 0, 1, 2
    assert row(view, "makespan")["text"] == "57"
    view.schedule = "1f1b"
    assert row(view, "makespan")["text"] == "53"


def test_a_wrong_value_raises_here_and_changes_nothing(view):
    number = view.scene["number"]
    with pytest.raises(TraitError, match="p is the number of ranks, a whole number from 1 to 16: got 17"):
        view.p = 17
    with pytest.raises(TraitError, match="there is no schedule 'zb'"):
        view.schedule = "zb"
    assert (view.p, view.schedule, view.scene["number"]) == (4, "1f1b", number)
    with pytest.raises(TraitError, match="m is the number of microbatches"):
        ppedu.explore(m=65)
    with pytest.raises(
        ValueError, match="slow_stage is None or the rank of the slow stage: with p=2 there are ranks 0 to 1, got 2"
    ):
        ppedu.explore(p=2, slow_stage=2)


def test_a_wrong_value_from_the_page_shows_its_sentence_and_changes_nothing(view):
    page, number = Page(view), view.scene["number"]
    page.move(p=99)
    assert view.error == "p is the number of ranks, a whole number from 1 to 16: got 99"
    assert (view.p, view.scene["number"], view.answered) == (4, number, 1)
    page.move(m=None)
    assert "got nothing" in view.error
    page.move(p=2, slow_stage=2)  # as a whole or not at all
    assert (view.p, view.slow_stage) == (4, None)
    assert "with p=2 there are ranks 0 to 1, got 2" in view.error
    page.move(p=2, slow_stage=1)
    assert (view.p, view.slow_stage, view.error) == (2, 1, "")


def test_a_move_that_changes_nothing_clears_the_error(view):
    page = Page(view)
    page.move(p=99)
    page.move(p=4)
    assert view.error == ""
    assert view.answered == 2


def test_one_move_is_one_message_with_its_answer(view):
    page = Page(view)
    page.move(m=9)
    (answer,) = page.answers()
    assert answer["answered"] == 1
    assert answer["m"] == 9
    assert json.loads(answer["scene"])["tracks"][0]["makespan"] == 24
    assert answer["figures"][0]["text"] == "24"
    assert len([m for m in page.told if "scene" in m.get("state", {})]) == 1


def test_every_move_is_answered_even_the_unknown_and_the_failed(view, monkeypatch):
    page = Page(view)
    page.say(do="dance", asked=1)
    assert "it can ask for set, details, run, stop" in view.error
    page.say(asked=2)
    assert "KeyError" in view.error
    page.move(colour="red")
    assert view.error == "there is no control 'colour'"
    monkeypatch.setattr(explorer, "figures", lambda *_: 1 / 0)
    page.asked = 10
    page.move(m=3)
    assert view.error == "ZeroDivisionError: division by zero"
    assert view.answered == 11


def test_after_an_error_inside_the_view_goes_on(view, monkeypatch):
    page = Page(view)
    with monkeypatch.context() as patch:
        patch.setattr(explorer, "figures", lambda *_: 1 / 0)
        page.move(m=3)
    page.move(m=3)
    assert row(view, "makespan")["text"] == "12"
    assert view.error == ""


def test_the_page_sets_how_things_are_drawn(view):
    view.set_state({"critical_path": True, "large": True})
    assert (view.critical_path, view.large) == (True, True)
    view.set_state({"large": "very"})
    assert "large" in view.error


def test_the_slow_stage_follows_p(view):
    view.slow_stage = 3
    view.p = 2
    assert view.slow_stage == 1
    assert "rank 1 takes 2 times as long" in view.scene["caption"]


def test_what_the_last_move_changed(view):
    assert view.moved == {}
    view.m = 16
    assert view.moved == {"what": "microbatches m", "before": "8", "after": "16"}
    assert (row(view, "makespan")["before"], row(view, "makespan")["way"]) == ("22", "up")
    assert (row(view, "bubble")["before"], row(view, "bubble")["way"]) == ("27.3 %", "down")
    assert row(view, "peak")["way"] == ""
    view.schedule = "gpipe"
    assert view.moved == {"what": "schedule", "before": "1F1B", "after": "GPipe"}
    assert row(view, "makespan")["way"] == ""
    assert row(view, "peak")["before"] == "4 3 2 1"


def test_a_drag_is_one_move_from_where_it_began(view):
    page = Page(view)
    for m in (9, 10, 11, 12):
        page.move(gesture="first drag", m=m)
    assert view.moved == {"what": "microbatches m", "before": "8", "after": "12"}
    assert row(view, "makespan")["before"] == "22"
    page.move(gesture="second drag", m=13)
    assert view.moved == {"what": "microbatches m", "before": "12", "after": "13"}


def test_large_scenes_get_their_details_when_asked(view):
    page = Page(view)
    page.move(p=8, m=32)
    assert "gaps" not in view.scene["tracks"][0]
    page.say(do="details")
    assert view.details["number"] == view.scene["number"]
    assert len(view.details["tracks"][0]["needs"]) == 2 * 8 * 32
    told = len(page.told)
    page.say(do="details")  # twice is once
    assert len(page.told) == told
    view.critical_path = True
    page.move(m=33)
    assert view.scene["tracks"][0]["path"]


def test_controls_know_their_ranges(view):
    p = view.fixed["controls"]["p"]
    assert (p["label"], p["low"], p["high"], p["step"]) == ("ranks p", 1, 16, 1)
    assert view.fixed["names"] == view.fixed["names"] | {
        "naive": "naive", "gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved 1F1B", "looped_bfs": "looped BFS",
        "zb_h1": "ZB-H1", "zb_h2": "ZB-H2", "zb_v": "ZB-V", "dualpipe": "DualPipe", "dualpipev": "DualPipeV",
    }  # fmt: skip
    for name, keys in {
        "v": {"interleaved", "looped_bfs"}, "w_share": {"dualpipe", "dualpipev", "zb_h1", "zb_h2", "zb_v"},
        "overlap": {"dualpipe", "dualpipev"},
    }.items():  # fmt: skip
        assert keys == set(view.fixed["own"][name]) & theory.IDLE.keys()
    several = {"dualpipe", "dualpipev", "interleaved", "looped_bfs", "zb_v"}
    assert several == set(view.fixed["several"]) & theory.IDLE.keys()
    assert list(view.fixed["controls"]) == [name for name in DEFAULTS if name != "slow_stage"]
    assert {name: getattr(view, name) for name in DEFAULTS} == DEFAULTS


def test_a_setting_that_there_is_not_is_refused_with_those_that_there_are():
    says = "the settings are p, m, v, ratio, w_share, overlap, transfer, slow_stage and slow_factor"
    with pytest.raises(TypeError, match=rf"explore\(\) has no setting 'ration': {says}"):
        ppedu.explore(ration=2)
    with pytest.raises(TypeError, match=rf"explore_compare\(\) has no setting 'trian': {says}"):
        ppedu.explore_compare(trian=1)
    with pytest.raises(TypeError, match=r"like ppedu.course.train_course: train=3"):
        ppedu.explore(train=3)


def test_stages_on_a_rank(view):
    view.schedule = "interleaved"
    assert view.scene["tracks"][0]["makespan"] == 19  # (m v + p - 1)(F + B) / v
    assert view.scene["tracks"][0]["title"][-1] == "activations 5.5 4.5 3.5 2.5"
    view.v = 4
    assert view.scene["tracks"][0]["makespan"] == 17.5
    assert view.moved == {"what": "stages a rank v", "before": "2", "after": "4"}
    assert view.scene["caption"].endswith("F=1 B=1 for 1/4 of the model; a stage of interleaved 1F1B is 1/16.")
    with pytest.raises(TraitError, match="v is the number of stages on each rank, a whole number from 1 to 4: got 5"):
        view.v = 5
    view.v = 1  # 1F1B by another name
    assert (view.scene["tracks"][0]["makespan"], view.scene["tracks"][0]["peaks"]) == (22, (4, 3, 2, 1))
    view.schedule = "gpipe"
    assert view.moved["what"] == "schedule", "v is none of GPipe's"


def test_w_s_share_and_the_pair_s_gain(view):
    view.schedule, view.ratio = "zb_h1", 2
    assert row(view, "makespan")["text"] == "27"
    view.w_share = 0.25  # (p - 1)(F + I - W) more than m (F + B): 24 + 3 (1 + 1.5 - 0.5)
    assert row(view, "makespan")["text"] == "30"
    view.schedule, view.w_share = "dualpipe", 0.5
    assert (row(view, "makespan")["text"], row(view, "weights")["text"]) == ("26", "2 copies")
    view.overlap = 0.8
    assert float(row(view, "makespan")["text"]) < 26
    assert "F&B=2.4" in view.scene["caption"]


def test_a_p_that_a_schedule_cannot_have_cannot_be_chosen(view):
    assert view.ranks == list(range(1, 17))
    view.p = 5
    view.schedule = "dualpipe"
    assert (view.p, view.ranks) == (6, [2, 4, 6, 8, 10, 12, 14, 16])
    assert view.moved == {"what": "schedule, ranks p", "before": "1F1B, 5", "after": "DualPipe, 6"}
    with pytest.raises(TraitError, match="p cannot be 3: DualPipe pairs rank r with rank p - 1 - r, so p is even"):
        view.p = 3
    page = Page(view)
    page.move(p=7)
    assert view.error.startswith("p cannot be 7: DualPipe pairs")
    assert view.p == 6
    page.move(schedule="gpipe", p=3)  # what belongs together is checked together
    assert (view.error, view.p, view.schedule) == ("", 3, "gpipe")
    page.move(schedule="dualpipe", p=5)
    assert view.error.startswith("p cannot be 5")
    assert (view.p, view.schedule) == (3, "gpipe")
    with pytest.raises(ValueError, match="p cannot be 3"):
        ppedu.explore("dualpipe", p=3)


def test_comparing_stages_of_different_size(comparison):
    comparison.schedules, comparison.ratio = ["1f1b", "interleaved", "zb_v"], 2
    assert [(r["time"], r["most"], r["stages"]) for r in comparison.rows] == [
        ("33", "4", "4 in flight"), ("28.5", "5.5", "11 in flight, each 1/2"), ("25.5", "4", "8 in flight, each 1/2"),
    ]  # fmt: skip
    assert ("in flight", "activations") in [entry[:2] for entry in comparison.scene["key"]]
    assert comparison.scene["peak"] == 5.5
    comparison.budget = 4
    assert [r["over"] for r in comparison.rows] == [False, True, False]
    assert [r["afford"] for r in comparison.rows] == ["any m", "m = 4", "any m"]
    comparison.p = 3
    comparison.schedules = ["1f1b", "dualpipe"]
    assert comparison.p == 4
    assert [r["weights"] for r in comparison.rows] == ["", "weights: 2 copies"]
    with pytest.raises(TraitError, match="p cannot be 5"):
        comparison.p = 5


@pytest.mark.slow
@pytest.mark.parametrize("name", ppedu.SCHEDULES)
@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 1), (4, 3), (16, 64)])
def test_every_schedule_has_its_view(name, p, m):
    p += name == "dualpipe" and p % 2
    made = ppedu.explore(name, p=p, m=m)
    assert made.error == ""
    assert made.scene["tracks"][0]["ranks"] == p
    assert repr(made).startswith("live view of ")
    json.dumps([made.scene, made.details, made.figures])
    made.close()


def test_text_is_one_semantic_line(view, comparison):
    assert repr(view) == "live view of 1F1B p=4 m=8: makespan 22, bubble 27.3 %, in flight 4 3 2 1"
    assert repr(comparison) == (
        "live comparison of GPipe p=4 m=8: makespan 22, bubble 27.3 %, in flight 8 8 8 8; "
        "1F1B p=4 m=8: makespan 22, bubble 27.3 %, in flight 4 3 2 1"
    )
    view.m = 9
    for one in (view, comparison):
        bundle = one._repr_mimebundle_()
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        assert data["text/plain"] == repr(one)
        assert "application/vnd.jupyter.widget-view+json" in data


def test_the_static_twin_draws_the_same(view, comparison):
    view.m, view.critical_path = 4, True
    axes = view.static()
    assert axes.get_label() == "1F1B p=4 m=4: makespan 14, bubble 42.9 %, in flight 4 3 2 1"
    assert axes.get_title(loc="left").startswith("1F1B")
    assert comparison.static(in_flight=False).get_label().splitlines()[0].startswith("GPipe p=4 m=8: makespan 22")


def test_comparison_rows_and_verdict(comparison):
    assert [(r["name"], r["time"], r["peak"]) for r in comparison.rows] == [("GPipe", "22", 8), ("1F1B", "22", 4)]
    assert comparison.verdict == [
        "The same makespan, 22; other memory: a rank holds up to 8 microbatches with GPipe, 4 with 1F1B."
    ]
    comparison.budget = 4
    assert [(r["over"], r["afford"]) for r in comparison.rows] == [(True, "m = 4"), (False, "any m")]
    assert comparison.verdict[1] == (
        "With room for 4 in flight: GPipe affords m = 4, each takes 3.5; 1F1B affords any m, at m = 64 each takes 2.09."
    )
    assert comparison.scene["budget"] == 4
    comparison.m = 32
    assert [t["makespan"] for t in comparison.scene["tracks"]] == [70, 70]
    assert [t["group"] for t in comparison.scene["tracks"]] == [0, 1]


def test_comparison_takes_two_or_three_different_schedules(comparison):
    comparison.schedules = ["1f1b", "naive", "gpipe"]
    assert [t["title"][0] for t in comparison.scene["tracks"]] == ["1F1B", "naive", "GPipe"]
    for wrong in (["1f1b"], ["1f1b", "1f1b"], ["1f1b", "zb"], []):
        with pytest.raises(
            TraitError, match=r"schedules is a list of 2 or 3 different names|there is no schedule 'zb'"
        ):
            comparison.schedules = wrong
    page = Page(comparison)
    page.move(schedules=["gpipe"])
    assert "2 or 3 different names" in comparison.error
    page.move(budget=65)
    assert "budget is how many activations in flight a rank has room for" in comparison.error
    assert len(comparison.schedules) == 3
    with pytest.raises(ValueError, match="2 or 3 different names"):
        ppedu.explore_compare(schedules=("gpipe",))


@pytest.mark.parametrize("kind", [Explorer, Comparison])
def test_modules_are_whole(kind):
    """One ES module a view: the palette in front, one export at the end, and no import of anything."""
    text = kind._esm.default_value
    assert text.count("export default") == 1
    assert "import " not in "".join(line for line in text.splitlines() if line.startswith("import"))
    assert 'const PALETTE = {"F": "#2a62a8"' in text
    assert kind._css.default_value == assets.style()


def test_colab_gets_its_widget_manager(monkeypatch):
    import sys
    from types import ModuleType

    calls = []
    output = ModuleType("google.colab.output")
    output.enable_custom_widget_manager = lambda: calls.append(1)
    output._widgets = type("Widgets", (), {"_installed_url": None})()
    for name, module in {"google": ModuleType("google"), "google.colab": ModuleType("google.colab")}.items():
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "google.colab.output", output)
    ppedu.explore().close()
    assert calls


def test_a_view_needs_neither_torch_nor_matplotlib(fresh_python):
    code = "import sys, ppedu; ppedu.explore(); ppedu.explore_compare(); print(*{'torch', 'matplotlib', 'numpy'} & set(sys.modules))"
    assert fresh_python(code).split() == []


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ("1f1b", "2 or 3 different names or Schedules, to be compared: got '1f1b'"),
        (["1f1b", "zb"], "there is no schedule 'zb': the names are"),
    ],
)
def test_names_that_cannot_be_compared_get_a_sentence(given_, says):
    with pytest.raises(ValueError, match=says):
        ppedu.explore_compare(given_)
