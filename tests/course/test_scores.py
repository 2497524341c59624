"""The score board: what counts, where it stands, how it is kept, and what is said to what does not count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import ppedu
import ppedu.course
from ppedu.core.spans import Span
from ppedu.core.timeline import Timeline
from ppedu.course import store as files
from ppedu.course.scoreboard import enter
from ppedu.course.scoreboard.board import ScoreBoard
from ppedu.course.scoreboard.collect import collect

COSTS = ppedu.Costs(forward=[2, 2, 3, 2], input_grad=[2, 2, 3, 2], weight_grad=[1, 1, 2, 1], transfer=1)
CHALLENGE = ppedu.course.Challenge(p=4, m=8, costs=COSTS, memory_limit=4)
SMALL = ppedu.course.Challenge(p=2, m=2)
BY_HAND = ppedu.Schedule.from_text("F0 F1 B0 B1\nF0 B0 F1 B1", name="mine")  # 1F1B
SLOWER = ppedu.Schedule.from_text("F0 B0 F1 B1\nF0 B0 F1 B1", name="slow")  # naive


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """A reader who starts today."""
    monkeypatch.setenv("PPEDU_HOME", str(tmp_path / "home"))
    enter._kept.clear()
    return tmp_path / "home"


def run_of(schedule, challenge, unit=0.01, slower=(1.1, 1.04, 1.2), pace=None):
    """What `ppedu.train` returns, made by the simulator: a step for each factor by which it is slower than its pace."""
    ideal = challenge.simulate(schedule)
    steps = []
    for factor in slower:
        spans = tuple(Span(s.action, s.rank, unit * factor * s.start, unit * factor * s.end) for s in ideal.spans)
        steps.append(Timeline(schedule, spans, "measured: here", "s"))
    return SimpleNamespace(schedule=schedule, timelines=tuple(steps), pace=pace or challenge.pace(unit))


# what counts


def test_the_literatures_makespans_stand_on_the_board():
    """p=4, m=8, F=I=W=1: 33 for 1F1B and 27 for ZB-H1, which nobody beats (Qi et al., Zero Bubble, 2024)."""
    challenge = ppedu.course.Challenge(4, 8, ppedu.Costs(1, input_grad=1, weight_grad=1), memory_limit=4)
    rows = ppedu.course.scores(challenge).rows(challenge)
    assert [(place, e.name, e.predicted) for place, e in rows[:2]] == [(1, "ZB-H1", 27), (2, "1F1B", 33)]
    assert challenge.lower_bound == 27
    assert {e.name for _, e in rows} == {"ZB-H1", "1F1B", "naive"}  # GPipe holds 8, ZB-H2 7


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (ppedu.gpipe(4, 8), "rank 0 holds 8 microbatches in flight, and may hold 4. Run a backward before one of its forwards."),
        (ppedu.zb_h2(4, 8), "rank 0 holds 7 microbatches in flight, and may hold 4. Run a W before one of its forwards."),
        (ppedu.one_f_one_b(4, 4), "it has p=4 ranks and m=4 microbatches, and p=4 m=8 are asked for."),
        (ppedu.interleaved(4, 8, 2), "stage r stands on rank r here"),
        (ppedu.dualpipe(4, 8), "stage r stands on rank r here"),
        (ppedu.forward_only(4, 8), "it has no backward"),
    ],
)  # fmt: skip
def test_what_does_not_count_is_told_why_and_leaves_no_trace(home, schedule, said):
    result = ppedu.course.score(schedule, CHALLENGE)
    assert result.correct is False
    assert " ".join(repr(result).split()).startswith(f"Not entered: {said}")
    assert not home.exists()


def test_an_illegal_order_is_told_with_its_reason(home):
    """Rank 1 takes the microbatches in reverse, rank 0 waits for the first: neither can go on."""
    circle = ppedu.Schedule.from_text("F0 B0 F1 B1\nF1 B1 F0 B0")
    said = " ".join(repr(ppedu.course.score(circle, SMALL)).split())
    assert said.startswith("Not entered: it cannot run: rank 0 waits at B0 for rank 1's B0, which waits behind F1")
    twice = ppedu.Schedule.from_text("F0 F0 B0 B1\nF0 B0 F1 B1")
    assert "Not entered: it cannot run: " in repr(ppedu.course.score(twice, SMALL))
    assert "more such fault" in repr(ppedu.course.score(twice, SMALL))
    assert not home.exists()


def test_a_cap_of_its_own_for_each_rank():
    tight = ppedu.course.Challenge(2, 2, memory_limit=(2, 1))
    assert tight.why_not(BY_HAND) == ""
    assert tight.why_not(ppedu.gpipe(2, 2)).startswith("rank 1 holds 2 microbatches in flight, and may hold 1.")
    assert repr(tight) == "p=2 m=2, F=1 B=1, at most 2 1 in flight"
    assert ppedu.course.Challenge(2, 2, memory_limit=(2, 2)) == ppedu.course.Challenge(2, 2, memory_limit=2)


@pytest.mark.parametrize("wrong", [BY_HAND.to_csv(), None, 3, CHALLENGE.simulate(ppedu.one_f_one_b(4, 8))])
def test_what_is_no_schedule_is_a_type_error(wrong):
    with pytest.raises(TypeError, match="a schedule is entered, or the run of one"):
        ppedu.course.score(wrong, CHALLENGE)
    with pytest.raises(TypeError, match=r"challenge is ppedu\.course\.Challenge"):
        ppedu.course.score(BY_HAND, wrong)
    if wrong is not None:
        with pytest.raises(TypeError, match=r"challenge is a ppedu\.course\.Challenge"):
            ppedu.course.scores(wrong)


def test_numbers_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="p is the number of ranks"):
        ppedu.course.Challenge(0, 8)
    with pytest.raises(ValueError, match="The least that works is memory_limit=1"):
        ppedu.course.Challenge(4, 8, memory_limit=0)
    with pytest.raises(ValueError, match="costs are given for 4 stages"):
        ppedu.course.Challenge(3, 8, COSTS)


# the board


def test_best_first_and_a_built_in_is_one_row_with_who_entered_it():
    assert repr(ppedu.course.score(SLOWER, SMALL)) == 'Entered as "slow": 8 predicted, in flight 1 1. Place 5 of 5.'
    assert (
        repr(ppedu.course.score(BY_HAND, SMALL, name="Ada"))
        == 'Entered as "Ada": 6 predicted, in flight 2 1. Place 3 of 5.'
    )
    rows = ppedu.course.scores(SMALL).rows(SMALL)
    # F=B=1, I=W=1/2: ZB-H1 and ZB-H2 hide W's; GPipe takes as long as 1F1B and holds more
    assert [(place, e.name) for place, e in rows] == [(1, "ZB-H1"), (1, "ZB-H2"), (3, "Ada"), (3, "GPipe"), (5, "slow")]


def test_the_same_order_twice_is_one_row():
    ppedu.course.score(BY_HAND, SMALL, name="Ada")
    again = ppedu.course.score(run_of(BY_HAND, SMALL), SMALL, name="Ada, run")
    assert 'This order was there already, as "Ada": it is still one row.' in " ".join(repr(again).split())
    ppedu.course.score(run_of(BY_HAND, SMALL, slower=(1.5,)), SMALL, name="Ada, run")
    ppedu.course.score(BY_HAND, SMALL, name="Ada, run")
    (entry,) = ppedu.course.scores().entries
    assert (entry.name, entry.predicted) == ("Ada, run", 6)
    assert entry.measured == pytest.approx(6 * 1.04)  # the best step of the best run


def test_the_same_order_in_another_challenge_is_another_row():
    ppedu.course.score(BY_HAND, SMALL)
    other = ppedu.course.Challenge(2, 2, ppedu.Costs(1, 2))
    ppedu.course.score(BY_HAND, other)
    assert [c.key for c in ppedu.course.scores().challenges] == [SMALL.key, other.key]
    assert len(ppedu.course.scores(SMALL).entries) == len(ppedu.course.scores(other).entries) == 1


def test_a_challenge_is_its_numbers_and_not_how_they_were_written():
    assert ppedu.course.Challenge(2, 2, ppedu.Costs([1, 1], [1.0, 1])).key == SMALL.key
    assert (
        ppedu.course.Challenge(2, 2, ppedu.Costs(1, 2, input_grad=0.5)).key
        != ppedu.course.Challenge(2, 2, ppedu.Costs(1, 2)).key
    )
    assert ppedu.course.Challenge(2, 2, memory_limit=2).key != SMALL.key


def test_text_and_html_show_the_same_cells():
    name = "A<b> & 'co'"
    ppedu.course.score(run_of(ppedu.zb_h1(4, 8), CHALLENGE), CHALLENGE, name=name)
    ppedu.course.score(ppedu.naive(4, 8), CHALLENGE)
    board = ppedu.course.scores(CHALLENGE)
    lines = repr(board).splitlines()
    assert lines[0] == (
        "p=4 m=8, F=2,2,3,2 I=2,2,3,2 W=1,1,2,1, transfer 1, at most 4 in flight; no order takes less than 70"
    )
    assert lines[1].split("  ")[0] == "place"
    assert lines[2].split()[:1] == ["1"]
    assert f"{name} (ZB-H1)" in lines[2]
    assert lines[2].split()[-9:-1] == ["75", "+7.1", "%", "78.0", "4", "4", "4", "4"]
    assert lines[3].split() == ["2", "1F1B", "84", "+20.0", "%", "4", "3", "2", "1", "built-in"]
    assert len(lines) == 5
    page = board._repr_html_()
    assert "A&lt;b&gt; &amp; &#x27;co&#x27; (ZB-H1)" in page
    assert page.count("<tr>") == 4
    assert "<td>78.0</td>" in page


def test_an_empty_board_says_how_to_fill_it():
    assert (
        repr(ppedu.course.scores())
        == "The score board is empty: ppedu.course.score(schedule, challenge) enters an order."
    )
    assert "is empty" in ppedu.course.scores()._repr_html_()
    assert repr(ppedu.course.scores(CHALLENGE)).count("built-in") == 3


# measured


def test_the_best_step_counts_in_units_of_the_challenge():
    schedule = ppedu.one_f_one_b(4, 8)
    result = ppedu.course.score(run_of(schedule, CHALLENGE, unit=0.02), CHALLENGE)
    assert repr(result).startswith('Entered as "1F1B": 84 predicted, 87.4 measured, in flight 4 3 2 1.')


def test_a_run_under_other_costs_is_no_measurement(home):
    schedule = ppedu.one_f_one_b(4, 8)
    said = repr(ppedu.course.score(run_of(schedule, CHALLENGE, pace=ppedu.Costs(0.01)), CHALLENGE))
    assert "no multiple of the challenge's" in " ".join(said.split())
    longer = ppedu.Costs(forward=[0.01] * 8)
    assert "no multiple" in " ".join(
        repr(ppedu.course.score(run_of(schedule, CHALLENGE, pace=longer), CHALLENGE)).split()
    )
    bare = SimpleNamespace(schedule=schedule, timelines=(), pace=None)
    assert "this run has no pace" in repr(ppedu.course.score(bare, CHALLENGE))
    stopped = run_of(schedule, CHALLENGE)
    stopped.timelines = (Timeline(schedule, stopped.timelines[0].spans[:5], "measured", "s"),)
    assert "stopped before the end" in repr(ppedu.course.score(stopped, CHALLENGE))
    assert not home.exists()


def test_pace_and_its_unit():
    pace = CHALLENGE.pace(0.01)
    assert str(pace) == (
        "F=0.02 s,0.02 s,0.03 s,0.02 s I=0.02 s,0.02 s,0.03 s,0.02 s W=0.01 s,0.01 s,0.02 s,0.01 s, transfer 0.01 s"
    ) or pace == ppedu.Costs([0.02, 0.02, 0.03, 0.02], None, [0.02, 0.02, 0.03, 0.02], [0.01, 0.01, 0.02, 0.01],
                             transfer=0.01, unit="s")  # fmt: skip
    assert CHALLENGE.seconds_per_unit(pace) == pytest.approx(0.01)
    assert CHALLENGE.seconds_per_unit(ppedu.Costs(0.02, transfer=0.01)) is None
    assert ppedu.course.Challenge(2, 2, ppedu.Costs(0)).seconds_per_unit(ppedu.Costs(0.01)) is None


@pytest.mark.slow
def test_a_real_run_is_entered():
    torch = pytest.importorskip("torch")
    layers = [torch.nn.Linear(4, 4) for _ in range(2)]
    data = [(torch.ones(4, 4), torch.zeros(4, 4))]
    run = ppedu.train(layers, BY_HAND, data, torch.nn.functional.mse_loss, pace=SMALL.pace(0.02), progress=False)
    assert ppedu.course.score(run, SMALL).correct is True
    (entry,) = ppedu.course.scores().entries
    assert entry.measured is not None
    assert 6 * 0.99 < entry.measured < 60


def test_what_optimize_returns_is_entered():
    timeline = SMALL.simulate(BY_HAND)
    best = ppedu.Optimized(BY_HAND, timeline, 5.5, None, None, 0.0)
    assert ppedu.course.score(best, SMALL, name="solver").correct is True
    assert ppedu.course.scores().entries[0].measured is None


# kept


def test_it_is_there_again_in_the_next_kernel(home, fresh_python):
    ppedu.course.score(BY_HAND, SMALL, name="Ada")
    assert os.listdir(home) == ["scores.json"]
    before = repr(ppedu.course.scores(SMALL))
    code = "import ppedu.course\nprint(repr(ppedu.course.scores(ppedu.course.Challenge(2, 2))))"
    assert fresh_python(code).strip() == before


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"format": "other"}', '{"format": "ppedu scores 1", "entries": 3}',
        '{"format": "ppedu scores 1", "entries": [{"name": "x"}]}',
        # an order that was made illegal by hand: figures are never taken on trust
        '{"format": "ppedu scores 1", "entries": [{"name": "x", "date": "", "measured": null, "schedule": "0B0,0F0", '
        '"challenge": {"p": 1, "m": 1, "costs": {}, "memory_limit": null}}]}',
    ],
)  # fmt: skip
def test_a_broken_file_is_kept_aside(home, text):
    home.mkdir()
    (home / "scores.json").write_text(text)
    result = ppedu.course.score(BY_HAND, SMALL)
    said = " ".join(repr(result).split())
    assert "could not be read: it is kept as scores.broken.json, and a new one begins." in said
    assert (home / "scores.broken.json").read_text() == text
    assert len(ppedu.course.scores().entries) == 1
    assert ppedu.course.scores().note == ""


def test_figures_are_computed_anew_from_the_order(home):
    ppedu.course.score(BY_HAND, SMALL)
    data = json.loads((home / "scores.json").read_text())
    assert data["entries"][0]["predicted"] == 6
    assert data["entries"][0]["in_flight"] == [2, 1]
    data["entries"][0]["predicted"] = 1
    (home / "scores.json").write_text(json.dumps(data))
    assert ppedu.course.scores().entries[0].predicted == 6


def test_where_nothing_can_be_written_this_kernel_knows_it(home):
    home.write_text("a file where the folder should be")
    said = " ".join(repr(ppedu.course.score(BY_HAND, SMALL)).split())
    assert said.startswith('Entered as "mine": 6 predicted')
    assert "cannot be kept in" in said
    assert [e.name for e in ppedu.course.scores(SMALL).entries] == ["mine"]
    assert "cannot be read" in repr(ppedu.course.scores(SMALL))


def test_looking_writes_nothing(home):
    ppedu.course.scores()
    ppedu.course.scores(SMALL)
    assert not home.exists()


def test_kernels_that_enter_at_once_lose_nothing(tmp_path):
    code = (
        "import sys, ppedu.course\n"
        "for n in range(8):\n"
        "    costs = ppedu.Costs(1 + n + 10 * int(sys.argv[1]))\n"
        "    ppedu.course.score(ppedu.gpipe(2, 2), ppedu.course.Challenge(2, 2, costs))\n"
    )
    env = {**os.environ, "PPEDU_HOME": str(tmp_path)}
    writers = [subprocess.Popen([sys.executable, "-c", code, str(n)], env=env) for n in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert len(json.loads((tmp_path / "scores.json").read_text())["entries"]) == 24
    assert os.listdir(tmp_path) == ["scores.json"]


def test_a_lock_that_was_left_behind_is_broken(home, monkeypatch):
    monkeypatch.setattr(files, "STALE", 0.1)
    home.mkdir()
    (home / "scores.lock").touch()
    ppedu.course.score(BY_HAND, SMALL)
    assert os.listdir(home) == ["scores.json"]


def test_a_class_is_collected_on_one_board(tmp_path):
    ppedu.course.score(BY_HAND, SMALL, name="first")
    ppedu.course.scores().save(tmp_path / "ada.json", name="Ada")
    ppedu.course.score(SLOWER, SMALL, name="second")
    ppedu.course.scores().save(tmp_path / "bob.json")
    (tmp_path / "not.json").write_text('{"format": "ppedu scores 1", "entries": 3}')
    said = collect([tmp_path / "ada.json", tmp_path / "bob.json", tmp_path / "not.json"])
    assert said.startswith("0 handed in")
    assert "Ada: first (1F1B)" in said
    assert "bob: first (1F1B)" in said
    assert "bob: second (naive)" in said
    assert "not.json is left out, for it is no progress file" in said
    assert said.count("no order takes less than") == 1


def test_a_board_without_a_bound_to_speak_of():
    free = ppedu.course.Challenge(2, 2, ppedu.Costs(0))
    board = ScoreBoard((), (free,))
    assert "no order takes less than 0" in repr(board)
    assert "%" not in repr(board)
