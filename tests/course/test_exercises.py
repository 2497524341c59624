"""`check` and `reveal`: every wrong answer gets a reason, garbage gets help, and nothing hangs, breaks or leaks."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from decimal import Decimal
from fractions import Fraction

import pytest

import ppedu
import ppedu.course
from ppedu.course import store
from ppedu.course.exercises import progress_store as kept
from ppedu.course.exercises import registry
from ppedu.course.exercises.ask import Exercise, Question, Wrong
from ppedu.course.exercises.call import is_stub
from ppedu.course.exercises.forms import Choice, Fields, ListOf, Number, Order, YesNo
from ppedu.course.exercises.grade import judge, predicted
from ppedu.course.exercises.orders import Orders
from ppedu.course.exercises.reading import MisreadError, open_answer
from ppedu.course.exercises.registry import Asked
from ppedu.course.exercises.result import Result
from ppedu.course.scoreboard.collect import collect

NOT_ATTEMPTED = "Not attempted yet"
BUBBLE = Exercise(
    "bubble",
    form=Number(),
    right=lambda p, m: (p - 1) / (m + p - 1),
    cases=({"p": 4, "m": 8}, {"p": 2, "m": 1}, {"p": 1, "m": 3}),
    nudge="Which part of the ranks' time is idle?",
    because="So m has to grow with p.",
    wrong=(Wrong("divides by the ideal time", lambda p, m: (p - 1) / m, "That is (p-1)/m = {p}-1 over {m}: {got}."),),
    seconds=1,
)
GPIPE = Exercise(
    "gpipe",
    form=Orders(),
    right=ppedu.gpipe,
    cases=({"p": 2, "m": 3}, {"p": 4, "m": 8}),
    nudge="All forwards come first.",
    wrong=(Wrong("1F1B", ppedu.one_f_one_b, "This is 1F1B."),),
    seconds=1,
)
ONE_F_ONE_B = Exercise(
    "1f1b", form=Orders(), right=ppedu.one_f_one_b, cases=({"p": 4, "m": 8}, {"p": 4, "m": 2}), nudge="How many lead?"
)
QUIZ = Exercise(
    "quiz",
    form=Fields({"smaller bubble": YesNo(), "less memory": YesNo(), "makespan": Number()}),
    right={"smaller bubble": False, "less memory": True, "makespan": 22},
    nudge="Look at the two pictures again.",
    because="Same bubble, less memory.",
    wrong=(
        Wrong("1F1B shrinks the bubble", {"smaller bubble": True}, "Compare the two makespans."),
        Wrong("memory is the same", {"less memory": False}, "Compare the strips."),
    ),
)
WIDTHS = Exercise(
    "cut", form=ListOf(Number(whole=True), 3), right=[2, 1, 3], nudge="Add up each part.", because="The largest is 3."
)


# what counts as not attempted


@pytest.mark.parametrize("answer", [None, ..., (None, None), [None], {"p": None, "m": None}])
def test_an_open_answer_is_not_attempted(answer):
    assert open_answer(answer)
    for exercise in (BUBBLE, WIDTHS, QUIZ):
        result = judge(exercise, answer)
        assert result.correct is None
        assert repr(result).startswith(NOT_ATTEMPTED)


def stub_dots(p, m): ...


def stub_pass(p, m):
    pass


def stub_text(p, m):
    """For each rank its order."""


def stub_return(p, m):
    return None


def stub_error(p, m):
    raise NotImplementedError("your turn")


@pytest.mark.parametrize("stub", [stub_dots, stub_pass, stub_text, stub_return, stub_error, lambda p, m: None])
def test_a_stub_is_not_attempted(stub):
    result = judge(BUBBLE, stub)
    assert (result.correct, result.text[:17]) == (None, NOT_ATTEMPTED)


def test_a_function_that_does_something_is_no_stub():
    def forgot(p, m):
        (p - 1) / (m + p - 1)

    assert not is_stub(forgot)
    assert not is_stub(print)
    result = judge(BUBBLE, forgot)
    assert result.correct is False
    assert "it returned None. Does a `return` stand at its end?" in result.text


# right, and wrong for a known reason


def test_right_says_what_to_take_away():
    result = judge(BUBBLE, lambda p, m: (p - 1) / (m + p - 1))
    assert result == Result("Right, in 3 of 3 cases. So m has to grow with p.", True)


def test_a_known_wrong_idea_gets_its_hint_with_the_readers_numbers():
    result = judge(BUBBLE, lambda p, m: (p - 1) / m)
    assert result.idea == "divides by the ideal time"
    assert "That is (p-1)/m = 4-1 over 8: 0.375." in result.text


def test_an_unknown_wrong_answer_gets_the_case_and_a_nudge():
    result = judge(BUBBLE, lambda p, m: 3 / 11)
    assert result.text == (
        "your function(p=2, m=1) (after 1 of 3 cases that are right): you gave 0.272727, it is 0.5.\n"
        "Which part of the ranks' time is idle?"
    )
    assert result.idea is None


def test_per_cent_sign_and_rounding_are_seen():
    assert "in per cent" in judge(BUBBLE, lambda p, m: 100 * (p - 1) / (m + p - 1)).text
    assert "the sign is not" in judge(BUBBLE, lambda p, m: (1 - p) / (m + p - 1)).text
    assert "is it rounded?" in judge(BUBBLE, lambda p, m: round((p - 1) / (m + p - 1), 2)).text


def test_an_idea_recognised_by_a_predicate():
    early = Wrong("too early", 0, "{got} is before the first one arrives.", when=lambda got, want, *_: got < want)
    start = Exercise("start", right=lambda i: 3 + i, cases=({"i": 1},), nudge="n", wrong=(early,))
    result = judge(start, lambda i: i)
    assert (result.idea, result.text) == ("too early", "your function(i=1): 1 is before the first one arrives.")
    assert judge(start, lambda i: 99).idea is None


def test_a_value_is_not_given_away():
    result = judge(WIDTHS, [3, 1, 2])
    assert result.correct is False
    assert "[2, 1, 3]" not in result.text
    assert "[3, 1, 2] is not it. Add up each part." in result.text
    assert judge(WIDTHS, (2, 1.0, 3)).text == "Right. The largest is 3."


def test_a_quiz_answers_entry_by_entry():
    result = judge(QUIZ, {"smaller bubble": True, "less memory": None, "makespan": 23})
    assert result.text.splitlines() == [
        "0 of 3 right, 1 still open.",
        '- "smaller bubble": Compare the two makespans.',
        '- "makespan": not this one yet.',
        "Look at the two pictures again.",
    ]
    assert result.idea == "1F1B shrinks the bubble"
    assert judge(QUIZ, {"smaller bubble": False}).text == "1 of 3 right, 2 still open."
    assert judge(QUIZ, {"smaller bubble": False}).correct is None
    assert judge(QUIZ, QUIZ.right).text == "Right. Same bubble, less memory."


# garbage


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (0.27, "A function of (p, m) is asked for, and this is 0.27 (float). Hand in the function itself"),
        (lambda p: p, "Your function has to take (p, m), and takes (p)."),
        (lambda p, m: "0.27", "a number is asked for, and this is '0.27' (str). Write it without quotes."),
        (lambda p, m: True, "a number is asked for, and this is True (bool)."),
        (lambda p, m: [1], "a number is asked for, and this is [1] (list)."),
        (lambda p, m: float("nan"), "a number is asked for, and this is nan."),
        (lambda p, m: object(), "a number is asked for, and this is <object object> (object)."),
        (lambda p, m: print, "a number is asked for, and this is the function print."),
        (lambda p, m: 1 / 0, "it raised ZeroDivisionError: division by zero, in line"),
        (lambda p, m: sys.exit(), "it raised SystemExit"),
        (lambda p, m: ppedu.gpipe(0, m), "it raised ValueError: p is the number of ranks"),
    ],
)
def test_garbage_gets_help(answer, said):
    result = judge(BUBBLE, answer)
    assert result.correct is False
    assert said in result.text


def test_an_error_comes_with_the_readers_line():
    def mine(p, m):
        return [1, 2][m]

    text = judge(BUBBLE, mine).text
    assert re.search(r"mine\(p=4, m=8\): it raised IndexError: list index out of range, in line \d+ of its cell", text)
    assert "`return [1, 2][m]`" in text


def test_a_function_that_calls_itself():
    def mine(p, m):
        return mine(p, m)

    assert "it calls itself without end" in judge(BUBBLE, mine).text


def loop_plain(p, m):
    while True:
        pass


def loop_stubborn(p, m):
    while True:
        try:  # noqa: SIM105
            p / 0
        except:  # noqa: E722
            pass


def loop_asleep(p, m):
    while True:
        time.sleep(0.01)


@pytest.mark.parametrize("loop", [loop_plain, loop_stubborn, loop_asleep])
def test_an_endless_loop_is_ended(loop):
    """Within the exercise's second and a bit; its thread is gone as well."""
    start = time.monotonic()
    result = judge(BUBBLE, loop)
    assert time.monotonic() - start < 3
    assert result.correct is False
    assert "it had not ended after 1 seconds. Is there a loop whose condition never becomes False?" in result.text
    assert not [thread for thread in threading.enumerate() if thread.name == "ppedu exercise"]


def test_an_endless_generator_is_ended():
    assert "after 100000 entries it had not ended" in judge(GPIPE, lambda p, m: itertools.repeat("F0")).text


def test_in_a_thread_that_is_not_the_main_one():
    """Notebooks of some kinds run cells in other threads, where signals cannot be set."""
    results = []
    thread = threading.Thread(target=lambda: results.append(judge(BUBBLE, loop_plain)))
    thread.start()
    thread.join(10)
    assert "it had not ended" in results[0].text


def test_what_a_function_prints_is_seen(capsys):
    judge(BUBBLE, lambda p, m: print("p is", p) or (p - 1) / (m + p - 1))
    assert "p is 4" in capsys.readouterr().out


TIMES = Exercise("sum", right=sum, cases=({"times": [3, 1, 2]}, {"times": [5]}), nudge="Add them up.")


def test_changed_arguments_are_told_and_harm_nobody():
    def mine(times):
        total = 0
        while times:
            total += times.pop()
        return total

    result = judge(TIMES, mine)
    assert result.correct is True
    assert "your function changes `times`, which belongs to its caller. Work on a copy: list(times)." in result.text
    assert TIMES.cases[0] == {"times": [3, 1, 2]}


def test_what_is_kept_between_calls_is_told():
    def mine(times, seen=[]):  # noqa: B006
        seen.append(sum(times))
        return seen[0] if len(seen) == 1 else seen[-1] if len(seen) == 2 else sum(seen)

    result = judge(TIMES, mine)
    assert result.correct is False
    assert "it keeps something from call to call" in result.text


class Rude:
    def __repr__(self):
        raise RuntimeError("no")

    def __eq__(self, other):
        raise RuntimeError("no")

    __hash__ = None


def test_objects_that_misbehave():
    assert "a Rude without a readable repr" in judge(BUBBLE, lambda p, m: Rude()).text
    assert "a Rude without a readable repr" in judge(WIDTHS, Rude()).text


# forms


def test_numbers_of_all_kinds():
    numpy = pytest.importorskip("numpy")
    form = Number()
    for half in (0.5, Fraction(1, 2), numpy.float32(0.5), numpy.float64(0.5), numpy.array(0.5)):
        assert form.same(form.read(half), 0.5)
    assert Number(whole=True).read(numpy.int64(3)) == 3
    assert type(Number(whole=True).read(3.0)) is int
    for bad in (numpy.array([0.5]), numpy.bool_(True), 1j, "0.5", None, Decimal, float("inf")):
        with pytest.raises(MisreadError):
            form.read(bad)
    with pytest.raises(MisreadError, match=r"a whole number of stages is asked for, and 2\.5 is not whole"):
        Number("stages", whole=True).read(2.5)


def test_choices_and_orders_are_read_with_tolerance():
    assert Choice(("a", "GPipe")).read(" gpipe ") == "GPipe"
    with pytest.raises(MisreadError, match='one of "a", "b" is asked for'):
        Choice(("a", "b")).read("c")
    wanted = ("F0", "F1", "B0")
    for answer in ("F0 F1 B0", "f0, f1, b0", ["F0", "F1", "B0"], (x for x in wanted), [("F", 0), ("F", 1), ("B", 0)]):
        assert Order().read(answer) == wanted
    assert Order().read(ppedu.gpipe(1, 2).orders[0][:2]) == ("0F0", "0F1")
    with pytest.raises(MisreadError, match=r"entry 1 is 'X1' \(str\), which is no operation"):
        Order().read("F0 X1")


def test_a_sequence_says_which_entry():
    assert judge(WIDTHS, [1, 2]).text.endswith("and yours has 2 entries.")
    assert judge(WIDTHS, [1, "2", 3]).text.startswith("Entry 1 of your list: a whole number is asked for")
    assert judge(WIDTHS, "213").correct is False
    order = Exercise("order", form=Order(), right=lambda p: "F0 F1 B0 B1", cases=({"p": 2},), nudge="n")
    said = "number 2 of your order is B0: up to there it is right, from there it is not."
    assert said in judge(order, lambda p: "F0 B0 F1 B1").text
    assert "ends after 3 operations, and 4 are needed" in judge(order, lambda p: "F0 F1 B0").text


# schedules


@pytest.mark.parametrize(
    "form_of_answer",
    [
        lambda s: s,
        str,
        lambda s: str(s).splitlines(),
        lambda s: [[s.short(a) for a in order] for order in s.orders],
        lambda s: [" ".join(map(s.short, order)) for order in s.orders],
        lambda s: (iter([(a.kind.value, a.microbatch) for a in order]) for order in s.orders),
        lambda s: [list(order) for order in s.orders],
    ],
)
def test_a_schedule_in_whatever_form(form_of_answer):
    result = judge(GPIPE, lambda p, m: form_of_answer(ppedu.gpipe(p, m)))
    assert result.correct is True, result.text


def test_another_legal_order_that_is_as_good_is_right():
    def backwards_last_first(p, m):
        return [[f"F{i}" for i in range(m)] + [f"B{i}" for i in reversed(range(m))] for _ in range(p)]

    assert judge(GPIPE, backwards_last_first).correct is True
    exact = Exercise("exact", form=Orders(exact=True), right=ppedu.gpipe, cases=GPIPE.cases, nudge="n")
    said = judge(exact, backwards_last_first).text
    assert "Rank 0: number 4 of your order is B2" in said


def test_a_known_idea_wins_over_being_as_good():
    """1F1B is as fast as GPipe and holds less, but is not what was asked for."""
    assert judge(GPIPE, ppedu.one_f_one_b).idea == "1F1B"


def test_a_rule_of_its_own():
    def all_forwards_first(schedule):
        return "" if str(schedule).find("B0") > str(schedule).find("F2") else "a backward stands among the forwards."

    form = Orders(rule=all_forwards_first)
    exercise = Exercise("rule", form=form, right=ppedu.gpipe, cases=({"p": 1, "m": 3},), nudge="n")
    assert "a backward stands among the forwards." in judge(exercise, lambda p, m: "F0 B0 F1 B1 F2 B2").text


def test_a_deadlock_is_told_with_ranks_and_operations_and_drawn_until_it_is_stuck():
    result = judge(GPIPE, lambda p, m: "F0 B0 F1 B1 F2 B2\nF0 F1 B0 F2 B1 B2" if p == 2 else "F0 B0")
    assert "this cannot run. Rank 0 waits at B0 for rank 1's B0, which waits behind F1" in result.text
    mine, target = result.timelines
    assert not mine.complete
    assert target.label == "GPipe p=2 m=3"
    assert "until it is stuck" in mine.provenance
    assert result._repr_png_().startswith(b"\x89PNG")


def test_a_slow_schedule_is_told_with_the_wait_that_makes_it_slow():
    result = judge(ONE_F_ONE_B, ppedu.naive)
    assert "it can run, but takes 64, and 22 is possible." in result.text
    assert "Rank 0 is idle from 1 to 7: it waits for rank 1's B0, which ended at 7." in result.text
    assert [t.label for t in result.timelines] == ["yours p=4 m=8", "1F1B p=4 m=8"]


def test_what_is_held_too_long_is_told_with_the_forward_that_is_too_many():
    result = judge(ONE_F_ONE_B, ppedu.gpipe)
    said = "rank 0 holds 8 activations at once, and 4 is enough: number 5 of its order, F4, is one forward too many"
    assert said in " ".join(result.text.split())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("F0 B0", "there are p=2 ranks, and your schedule has 1: give"),
        ("F0 F1 B0 B1\nF0 F1 B0 B1", "rank 0 never runs F2: every microbatch passes every stage (m=3)"),
        ("F0 F1 F2 F3 B0 B1 B2 B3\n" * 2, "rank 0 runs 0F3, but there is no microbatch 3"),
        ("F0 F1 F2 B0 B1 B2\nB0 B1 B2 F0 F1 F2", "Rank 1 runs B0 before F0"),
        (["F0", "F1", "F2"], "this is one flat list that begins with 'F0' (str)"),
        ([["F0"], []], "rank 1 has no operations"),
        ([], "there is no rank in it"),
        ([["F0", 7]], "rank 0: entry 1 is 7 (int), which is no operation"),
        (7, "for each rank its operations in order"),
        ({0: "F0"}, "for each rank its operations in order"),
    ],
)
def test_what_is_no_schedule_is_told(answer, said):
    result = judge(GPIPE, lambda p, m: answer)
    assert result.correct is False
    assert said.lower() in " ".join(result.text.split()).lower()


# results


def test_text_is_wrapped_and_tells_no_address():
    result = Result("word " * 60, False)
    assert max(map(len, repr(result).splitlines())) <= 110
    assert result._repr_png_() is None


def test_pictures_leave_nothing_open():
    plt = pytest.importorskip("matplotlib.pyplot")
    before = plt.get_fignums()
    assert judge(ONE_F_ONE_B, ppedu.naive)._repr_png_().startswith(b"\x89PNG")
    assert plt.get_fignums() == before


def test_ipython_shows_text_and_picture():
    formatter = pytest.importorskip("IPython.core.formatters").DisplayFormatter()
    data, _ = formatter.format(judge(ONE_F_ONE_B, ppedu.naive))
    assert set(data) == {"text/plain", "image/png"}
    data, _ = formatter.format(judge(BUBBLE, None))
    assert set(data) == {"text/plain"}


def test_exercises_need_no_matplotlib(fresh_python):
    code = "import sys, ppedu.course; ppedu.course.check; ppedu.course.reveal('makespan of 1F1B', 16); print('matplotlib' in sys.modules)"
    assert fresh_python(code) == "False\n"


# predictions


def test_a_prediction_gets_hint_and_reason():
    question = Question(
        "q", lambda: 0.25, "One works at a time.", wrong=(Wrong("all work", 1, "That is all of them."),)
    )
    assert predicted(question, 1).text == "You said 1, it is 0.25. That is all of them. One works at a time."
    assert predicted(question, 0.5).text == "You said 0.5, it is 0.25. One works at a time."
    assert predicted(question, 0.25).text == "Yes: 0.25. One works at a time."
    assert predicted(question, "1").text.startswith("This prediction cannot be read: a number is asked for")
    assert predicted(question, None).text.startswith(NOT_ATTEMPTED)


def test_unknown_ids_are_the_authors_mistake():
    with pytest.raises(ValueError, match="no notebook has the question 'x': there are 'makespan of 1F1B'"):
        ppedu.course.reveal("x", 1)
    with pytest.raises(ValueError, match="no notebook has the exercise 'x'"):
        ppedu.course.check("x", 1)
    with pytest.raises(ValueError, match="there is no notebook '99'"):
        ppedu.course.progress("99")


# progress


@pytest.fixture
def course(monkeypatch, tmp_path):
    """A course of one notebook of our own, and a reader who starts today."""
    question = Question("q", lambda: 1, "b", wrong=(Wrong("two", 2, "h"),))
    known = Asked("02", (question,), (BUBBLE, WIDTHS, QUIZ))
    monkeypatch.setattr(registry, "notebooks", lambda: ("02",))
    monkeypatch.setattr(registry, "asked", lambda number: known)
    monkeypatch.setenv("PPEDU_HOME", str(tmp_path / "home"))
    kept._kept.clear()
    kept._trouble.clear()
    return tmp_path / "home"


def test_progress_counts_what_is_right_and_what_was_predicted(course):
    assert repr(ppedu.course.progress("02")) == "02: 0 of 3 exercises, 0 of 1 prediction"
    ppedu.course.reveal("q", 2)
    ppedu.course.reveal("q", 1)
    ppedu.course.check("bubble", lambda p, m: (p - 1) / m)
    ppedu.course.check("cut", [2, 1, 3])
    ppedu.course.check("cut", [9, 9, 9])
    ppedu.course.check("quiz", None)
    assert repr(ppedu.course.progress("02")) == "02: 1 of 3 exercises, 1 of 1 prediction"
    data = json.loads(ppedu.course.progress().to_json(name="Ada"))
    assert data["name"] == "Ada"
    assert data["notebooks"]["02"]["exercises"] == {
        "bubble": {"attempts": 1, "right": False, "ideas": ["divides by the ideal time"]},
        "cut": {"attempts": 2, "right": True},
    }
    assert data["notebooks"]["02"]["predictions"]["q"] == {
        "attempts": 2, "right": True, "first_right": False, "ideas": ["two"],
    }  # fmt: skip


def test_looking_writes_nothing(course):
    ppedu.course.progress()
    ppedu.course.check("cut", None)
    ppedu.course.reveal("q", None)
    assert not course.exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": "other"}', '{"format": "ppedu progress 1", "notebooks": 3}']
)
def test_a_broken_file_is_kept_aside(course, text):
    course.mkdir()
    (course / "progress.json").write_text(text)
    ppedu.course.check("cut", [2, 1, 3])
    said = repr(ppedu.course.progress("02"))
    assert said.startswith("02: 1 of 3 exercises, 0 of 1 prediction\n")
    assert "could not be read: it is kept as progress.broken.json, and counting starts afresh" in said
    assert (course / "progress.broken.json").read_text() == text
    ppedu.course.check("cut", [2, 1, 3])
    assert repr(ppedu.course.progress("02")) == "02: 1 of 3 exercises, 0 of 1 prediction"


def test_where_nothing_can_be_written_learning_goes_on(course):
    course.parent.mkdir(exist_ok=True)
    course.write_text("a file where the folder should be")
    assert ppedu.course.check("cut", [2, 1, 3]).correct is True
    said = repr(ppedu.course.progress("02"))
    assert said.startswith("02: 1 of 3 exercises")
    assert "cannot be kept in" in said


def test_a_lock_that_was_left_behind_is_broken(course, monkeypatch):
    monkeypatch.setattr(store, "STALE", 0.1)
    course.mkdir()
    (course / "progress.lock").touch()
    ppedu.course.check("cut", [2, 1, 3])
    assert repr(ppedu.course.progress("02")).startswith("02: 1 of 3")
    assert sorted(os.listdir(course)) == ["progress.json"]


def test_kernels_that_write_at_once_lose_nothing(tmp_path):
    code = "from ppedu.course.exercises import progress_store as kept\nfor _ in range(15): kept.record('00', 'exercises', 'x', True, None)"
    env = {**os.environ, "PPEDU_HOME": str(tmp_path)}
    writers = [subprocess.Popen([sys.executable, "-c", code], env=env) for _ in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    data = json.loads((tmp_path / "progress.json").read_text())
    assert data["notebooks"]["00"]["exercises"]["x"]["attempts"] == 45
    assert os.listdir(tmp_path) == ["progress.json"]


def test_home_is_where_the_system_keeps_users_data(monkeypatch, tmp_path):
    monkeypatch.setenv("PPEDU_HOME", str(tmp_path))
    assert store.home() == tmp_path
    monkeypatch.delenv("PPEDU_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert store.home() == tmp_path / "xdg/ppedu"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert store.home().parts[-3:] == ("Library", "Application Support", "ppedu")


def test_a_class_is_collected(course, tmp_path):
    ppedu.course.check("bubble", lambda p, m: (p - 1) / m)
    ppedu.course.reveal("q", 2)
    ppedu.course.progress().save(tmp_path / "ada.json", name="Ada")
    ppedu.course.check("bubble", lambda p, m: (p - 1) / (m + p - 1))
    ppedu.course.progress().save(tmp_path / "bob.json")
    (tmp_path / "not.json").write_text("{}")
    said = collect([tmp_path / "ada.json", tmp_path / "bob.json", tmp_path / "not.json"])
    assert said.splitlines()[:4] == [
        "2 handed in",
        "",
        "Ada: 02: 0 of 3 exercises, 1 of 1 prediction",
        "bob: 02: 1 of 3 exercises, 1 of 1 prediction",
    ]
    assert '  bubble: 1 of 2 right; met: "divides by the ideal time" (2)' in said
    assert '  q: 0 of 2 right at first; met: "two" (2)' in said
    assert "not.json is left out" in said
