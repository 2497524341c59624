"""The puzzle as a widget: what the page asks for, what it is told, and that nothing gets lost on the way. No browser here."""

from __future__ import annotations

import json
import threading

import pytest
from traitlets import TraitError

from ppedu import Costs, Schedule, gpipe, naive, one_f_one_b, simulate
from ppedu.core.timeline import Timeline
from ppedu.course.puzzle import puzzle, widget
from ppedu.course.puzzle.levels import LEVELS, Level
from ppedu.course.puzzle.widget import Puzzle
from ppedu.schedules import interleaved, zb_h1, zb_h2


@pytest.fixture
def view():
    made: list[Puzzle] = []

    def make(level: int | Level = 1, **given) -> Puzzle:
        made.append(Puzzle(level, **given))
        return made[-1]

    yield make
    for one in made:
        one.close()


def say(view: Puzzle, do: str, **more) -> None:
    """What the page sends; the answer must come, whatever it is."""
    asked = view.answered + 1
    view._hear(view, {"do": do, "asked": asked, **more}, [])
    assert view.answered == asked


def solve(view: Puzzle) -> None:
    level = view.game.level
    for span in sorted(simulate(level.reference, level.costs).spans, key=lambda span: span.start):
        say(view, "place", rank=span.rank, move=level.reference.short(span.action))


def test_a_new_one_shows_its_level(view):
    one = view(5)
    board = one.board
    assert (board["level"], board["ranks"], board["placed"], board["total"]) == (5, 4, 0, 64)
    assert board["goal"] == LEVELS[4].goal
    assert board["given"] == "(F = 1, B = 1)"
    assert board["names"] == [[[f"{kind}{j}" for j in range(8)] for kind in "FB"]] * 4
    assert board["tray"] == [["open"] * 16] * 4
    assert board["levels"] == [level.title for level in LEVELS]
    assert one.scene["marks"] == [{"time": 22, "label": "target 22"}]
    assert one.scene["budget"] == (4, 3, 2, 1)
    assert one.text == "\n\n\n\n"


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, len(LEVELS) + 1))
def test_each_level_is_solved_through_the_page(view, number):
    one = view(number)
    solve(one)
    assert one.error == ""
    assert one.board["solved"]
    assert one.board["complete"]
    assert one.board["said"][0] == "solved"
    assert [goal["kept"] for goal in one.board["goals"]] == [True] * len(one.board["goals"])
    assert one.scene["tracks"][0]["makespan"] == LEVELS[number - 1].target


def test_a_board_with_two_stages_on_each_rank(view):
    one = view(8)
    assert (one.board["kinds"], one.board["total"], one.board["given"]) == (["F", "B"], 16, "(F = 1, B = 1)")
    assert one.board["names"][1] == [["1F0", "1F1"], ["3F0", "3F1"], ["1B0", "1B1"], ["3B0", "3B1"]]
    say(one, "place", rank=0, move="2F0")
    assert one.board["said"][1].startswith("2F0 on rank 0 cannot come next: rank 0 waits at 2F0 for rank 1's 1F0")
    say(one, "place", rank=0, move="0F0")
    say(one, "place", rank=0, move="2F0")
    assert one.board["said"][1] == (
        "2F0 on rank 0: placed. It has to wait: rank 0's 2F0 waits for rank 1's 1F0, which has no place yet."
    )
    assert one.scene["tracks"][0]["waiting"][0][1:3] == ("2F0", "F")
    one.text = interleaved(2, 2, 2).to_csv()
    assert one.board["said"] == ("solved", "Solved. This is interleaved 1F1B.")
    assert one._jobs()[0][0].name == "interleaved 1F1B"


def test_a_board_where_a_backward_is_two(view):
    one = view(11)
    assert (one.board["kinds"], one.board["total"], one.board["given"]) == (
        ["F", "I", "W"],
        36,
        "(F = 1, I = 1, W = 1)",
    )
    one.text = zb_h1(3, 4).to_csv()
    assert one.board["said"] == ("solved", "Solved. This is ZB-H1.")
    say(one, "load", text=zb_h2(3, 4).to_csv())
    assert "in flight 4 4 4, rank 0 holds 4 (1 over)" in one.board["said"][1]
    assert one.board["said"][1].endswith("This is ZB-H2.")
    say(one, "load", text="F0 B0")
    assert one.error == "rank 0: 0B0 is a whole backward. Here it is two operations, I and W"
    assert one.not_real == ""


def test_an_illegal_move_says_why_and_changes_nothing(view):
    one = view(2)
    say(one, "place", rank=0, move="F0")
    before, text = one.scene["tracks"], one.text
    say(one, "place", rank=0, move="B1")
    assert one.board["said"] == (
        "refused",
        "B1 on rank 0 cannot come next: rank 0 runs B1 before F1, whose result it needs: run F1 first.",
    )
    assert (one.scene["tracks"], one.text, one.board["placed"]) == (before, text, 1)
    say(one, "place", rank=0, move="F1")
    assert one.board["said"] == ("placed", "F1 on rank 0: placed.")


def test_a_deadlock_is_refused_with_its_circle(view):
    one = view(2)
    say(one, "load", text="F0 B0\nF0")
    say(one, "place", rank=1, move="F1")
    assert one.board["said"][0] == "refused"
    assert (
        "rank 0 waits at B0 for rank 1's B0, which waits behind F1, which waits for rank 0's F1, which waits behind B0"
        in (one.board["said"][1])
    )


def test_what_has_to_wait_is_told(view):
    one = view(2)
    say(one, "place", rank=1, move="F0")
    assert one.board["said"] == (
        "placed",
        "F0 on rank 1: placed. It has to wait: rank 1's F0 waits for rank 0's F0, which has no place yet.",
    )
    assert one.scene["tracks"][0]["waiting"] == (
        (1, "F0", "F", "rank 1's F0 waits for rank 0's F0, which has no place yet"),
    )
    assert one.scene["tracks"][0]["name"] == ()
    say(one, "place", rank=0, move="F0")
    assert one.scene["tracks"][0]["waiting"] == ()
    assert one.scene["tracks"][0]["end"] == [1, 2]


def test_open_ends_are_no_bubbles_of_a_finished_rank(view):
    """While operations are placed, the gap at a lane's end says what is to come, not that the run was stopped."""
    one = view(2)
    say(one, "load", text="F0 F1\nF0")
    gaps = one.scene["tracks"][0]["gaps"]
    assert [gap[3] for gap in gaps] == ["rank 1 is idle from 0 to 1: it waits for rank 0's F0, which ended at 1"]
    say(one, "load", text="F0 F1 B0\nF0 F1")
    assert [gap[3] for gap in one.scene["tracks"][0]["gaps"] if gap[0] == 0] == [
        "nothing runs on rank 0 from 2 on: rank 0's B0 waits for rank 1's B0, which has no place yet"
    ]
    say(one, "load", text="F0\nF0")
    assert [gap[3] for gap in one.scene["tracks"][0]["gaps"] if gap[0] == 0] == [
        "rank 0 has 3 more to run: place the next one, and it starts as early as it can"
    ]
    say(one, "load", text="F0 F1 B0 B1\nF0 F1 B0 B1")
    assert all("place" not in gap[3] for gap in one.scene["tracks"][0]["gaps"])
    assert one.scene["tracks"][0]["phases"]


def test_details_come_as_the_scene_has_them(view):
    one = view(2)
    say(one, "load", text="F0\nF0")
    say(one, "details")
    assert one.details["number"] == one.scene["number"]
    assert one.details["tracks"][0]["gaps"] == one.scene["tracks"][0]["gaps"]
    json.dumps([one.scene, one.details, one.board])


def test_legal_moves_on_request(view):
    one = view(2)
    say(one, "set", values={"legal": True})
    assert one.board["tray"] == [["legal", "legal", "illegal", "illegal"]] * 2
    say(one, "place", rank=0, move="F0")
    assert one.board["tray"][0] == ["placed", "legal", "legal", "illegal"]
    say(one, "set", values={"legal": False})
    assert one.board["tray"][0] == ["placed", "open", "open", "open"]


def test_undo_redo_and_starting_over(view):
    one = view(2)
    assert (one.board["undo"], one.board["redo"]) == (False, False)
    say(one, "place", rank=0, move="F0")
    say(one, "place", rank=0, move="F1")
    say(one, "undo")
    assert (one.text, one.board["redo"]) == ("0F0\n\n", True)
    say(one, "redo")
    assert one.text == "0F0,0F1\n\n"
    say(one, "restart")
    assert (one.text, one.board["placed"]) == ("\n\n", 0)
    say(one, "undo")
    assert one.text == "0F0,0F1\n\n"


def test_hints_one_after_the_other(view):
    one = view(1)
    assert (one.board["hints"], one.board["hints_left"]) == ([], 3)
    say(one, "set", values={"hints": 2})
    assert one.board["hints"] == list(LEVELS[0].hints[:2])
    say(one, "set", values={"hints": 4})
    assert one.error == "hints is how many of this level's hints are shown, from 0 to 3: hints=4"


def test_each_level_keeps_its_own_position(view):
    one = view(2)
    say(one, "place", rank=0, move="F0")
    say(one, "set", values={"hints": 1})
    say(one, "set", values={"level": 5})
    assert (one.error, one.board["ranks"], one.board["placed"], one.board["hints"]) == ("", 4, 0, [])
    say(one, "place", rank=3, move="F0")
    one.level = 2
    assert (one.text, one.board["ranks"]) == ("0F0\n\n", 2)
    one.level = 5
    assert one.text == "\n\n\n3F0\n"


def test_saved_text_leads_back(view):
    one, other = view(5), view(5)
    say(one, "load", text=one_f_one_b(4, 8).to_csv())
    assert one.board["recognised"] == "This is 1F1B."
    say(one, "undo")
    say(one, "redo")
    other.text = one.text
    assert other.board["recognised"] == "This is 1F1B."
    assert Puzzle(5, text=one.text).board["solved"]


def test_what_was_loaded_is_told(view):
    one = view(2)
    say(one, "load", text="F0 F1\nF0")
    assert one.board["said"] == ("placed", "3 of 8 operations are placed.")
    say(one, "load", text=naive(2, 2).to_csv())
    assert one.board["said"] == (
        "done",
        "It runs, but misses the goal: makespan 8, 2 over; bubble 50.0 %, 16.7 points over. This is naive.",
    )


def test_text_that_cannot_be_loaded(view):
    one = view(2)
    say(one, "place", rank=0, move="F0")
    say(one, "load", text="0F0,0B0\n1F1,1B1,1F0,1B0")
    assert one.error.startswith("this text p=2 m=2 cannot run: rank 0 waits at B0 for rank 1's B0")
    assert one.text == "0F0\n\n"
    say(one, "load", text="zz")
    assert one.error.startswith("rank 0: 'zz' is no operation")
    with pytest.raises(TraitError, match="is no operation"):
        one.text = "zz"
    assert one.text == "0F0\n\n"
    say(one, "place", rank=0, move="F1")  # the next move goes on from there, and the error is gone
    assert (one.error, one.text) == ("", "0F0,0F1\n\n")


@pytest.mark.parametrize("level", [0, 13, -1])
def test_no_such_level(view, level):
    with pytest.raises(ValueError, match="there are levels 1 to 12"):
        puzzle(level)
    one = view(3)
    with pytest.raises(TraitError, match="there are levels 1 to 12"):
        one.level = level
    say(one, "set", values={"level": level})
    assert one.error.startswith("there are levels 1 to 12")
    assert (one.level, one.board["level"]) == (3, 3)


def test_nonsense_from_the_page_is_told(view):
    one = view(1)
    say(one, "place", rank=7, move="F0")
    assert one.error == "there is no rank 7: ranks run from 0 to 1"
    say(one, "place", rank=0, move="?")
    assert one.error.startswith("rank 0: '?' is no operation")
    say(one, "dance")
    assert "the page asks for 'dance'" in one.error
    assert one.board["placed"] == 0


def test_a_level_of_ones_own(view):
    mine = Level("Mine", "End at 15.", 2, 4, 15, gpipe(2, 4), Costs(forward=1, backward=2), cap=(4, 4))
    one = view(mine)
    assert (one.level, one.board["title"], one.board["given"]) == (0, "Mine", "(F = 1, B = 2)")
    one.text = gpipe(2, 4).to_csv()
    assert one.board["solved"]
    assert repr(one) == "puzzle 'Mine': makespan 15, bubble 20.0 %, in flight 4 4. Solved. This is GPipe"
    one.level = 1
    one.level = 0
    assert one.board["recognised"] == "This is GPipe."


@pytest.mark.parametrize(
    ("forward", "label"),
    [(1, "time (units of F)"), ([1, 1], "time (units of F)"), (2, "time (units)"), ([1, 2], "time (units)")],
)
def test_the_axis_says_units_of_f_only_where_an_f_takes_one(view, forward, label):
    one = view(Level("Mine", "End.", 2, 4, 60, gpipe(2, 4), Costs(forward=forward, backward=3)))
    assert one.scene["label"] == label


def test_its_text_is_one_line_without_addresses(view):
    one = view(5)
    assert repr(one) == "puzzle 5, One forward, one backward: 0 of 64 operations placed"
    one.text = gpipe(4, 8).to_csv()
    assert repr(one) == (
        "puzzle 5, One forward, one backward: makespan 22, bubble 27.3 %, in flight 8 8 8 8. "
        "Not every goal is reached. This is GPipe"
    )
    data, _ = one._repr_mimebundle_()
    assert data["text/plain"] == repr(one)


def test_it_draws_itself_without_a_browser(view):
    one = view(2)
    one.text = "F0 F1\nF0"
    assert one.static().get_title(loc="left").startswith("yours")
    one.text = naive(2, 2).to_csv()
    assert "makespan 8" in one.static().get_title(loc="left")


# the real run, with a stand-in for the training: the real one is in tests/browser


class Ran:
    """What `train_course` returns, as far as it is looked at."""

    def __init__(self, schedule: Schedule, pace: Costs) -> None:
        self.schedule, self.pace, self.losses, self.stopped = schedule, pace, (2.0, 1.0), None
        self.timeline = Timeline(schedule, simulate(schedule, pace).spans, "measured: a stand-in", "s", measured=True)


def test_only_a_whole_schedule_runs(view):
    one = view(1)
    say(one, "place", rank=0, move="F0")
    say(one, "run")
    assert one.error == "3 operations have no place yet: only a whole schedule can run"
    assert one.run["state"] == "idle"


def test_the_measured_timeline_lies_under_the_predicted_one(view, monkeypatch):
    runs: list[Ran] = []
    monkeypatch.setattr(widget, "train_course", lambda *job, **_: (runs.append(Ran(*job)), runs[-1])[1])
    one = view(7)
    one.text = LEVELS[6].reference.to_csv()
    say(one, "run")
    one._real.join(10)
    assert runs[0].schedule.orders == LEVELS[6].reference.orders
    assert str(runs[0].pace) == "F=0.02 s B=0.04 s, transfer 0.02 s"
    assert one.run["state"] == "done"
    tracks = one.scene["tracks"]
    assert [track["word"] for track in tracks] == ["predicted", "measured"]
    assert tracks[0]["makespan"] == pytest.approx(560)  # 28 units of 20 ms
    assert one.scene["marks"] == [{"time": pytest.approx(560), "label": "target 28"}]
    assert one.scene["unit"] == "ms"
    assert one.measured
    say(one, "set", values={"overlay": False})
    assert [track["word"] for track in one.scene["tracks"]] == [""]
    one.overlay = True
    say(one, "undo")  # another position has not been run
    assert len(one.scene["tracks"]) == 1
    assert (one.measured, one.run["state"], one.run["text"]) == (False, "idle", "")
    say(one, "redo")
    assert len(one.scene["tracks"]) == 2


def test_a_run_belongs_to_the_position_at_which_it_began(view, monkeypatch):
    """Playing on while it runs is possible; the result waits at its own position."""
    go = threading.Event()
    monkeypatch.setattr(widget, "train_course", lambda *job, **_: (go.wait(10), Ran(*job))[1])
    one = view(1)
    one.text = "F0 B0\nF0 B0"
    say(one, "run")
    say(one, "undo")
    go.set()
    one._real.join(10)
    assert (one.run["state"], len(one.scene["tracks"])) == ("done", 1)
    say(one, "redo")
    assert len(one.scene["tracks"]) == 2


def test_the_run_is_named_for_what_was_built(view, monkeypatch):
    names: list[str] = []
    monkeypatch.setattr(widget, "train_course", lambda *job, **_: (names.append(job[0].name), Ran(*job))[1])
    one = view(2)
    for text in (gpipe(2, 2).to_csv(), "F0 F1 B1 B0\nF0 F1 B1 B0"):
        one.text = text
        say(one, "run")
        one._real.join(10)
    assert names == ["GPipe", "your order"]


def test_an_answer_to_this_machine_is_pushed_out(view, monkeypatch):
    """More than the loopback's packet goes after it (65,483 bytes at an MTU of 65,536), so that nothing holds it back."""
    sent: list[tuple[object, list[bytes]]] = []
    one = view(1)
    monkeypatch.setattr(one, "send", lambda content, buffers=None: sent.append((content, buffers or [])))
    say(one, "place", rank=0, move="F0", local=False)
    assert sent == []
    say(one, "place", rank=1, move="F0", local=True)
    assert [sum(map(len, buffers)) >= 65_483 for _, buffers in sent] == [True]


def test_an_order_of_ones_own_is_a_level_of_its_own(view):
    """It stands there whole; what is taken back can be placed better."""
    one = view("F0 B0 F1 B1\nF0 B0 F1 B1", costs=Costs(forward=1, backward=2))
    assert (one.level, one.board["title"], one.board["given"]) == (0, "Better than your order", "(F = 1, B = 2)")
    assert one.text == "0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n"
    said = "It runs, but misses the goal: improvement none, it is as good as your order. This is naive."
    assert one.board["said"] == ("done", said)
    assert repr(one).endswith("Not every goal is reached. This is naive")
    for _ in range(6):
        say(one, "undo")
    assert one.text == "0F0\n1F0\n"
    assert one.scene["budget"] == (1, 1)
    say(one, "restart")
    assert one.board["placed"] == 0
    one.level = 1
    one.level = 0
    assert one.board["title"] == "Better than your order"


def test_it_stands_there_as_far_as_one_says(view):
    assert view(gpipe(2, 4), start=2).text == "0F0,0F1\n1F0\n"
    assert view(4, start="F0 F1").text == "0F0,0F1\n\n\n"
