"""Everything that notebooks ask: the right answer passes, each known wrong one gets its own hint, solutions are right.

The solutions are tested from the folded cells of the notebooks, below the stubs that stand there.
"""

from __future__ import annotations

import pytest
from notebook_files import notebook_of, task

import ppedu
from ppedu import course
from ppedu.course.exercises import registry
from ppedu.course.exercises.ask import Exercise, Question
from ppedu.course.exercises.grade import judge, predicted
from ppedu.course.exercises.result import Result

QUESTIONS = [pytest.param(q, id=f"{n} {q.id}") for n in registry.notebooks() for q in registry.asked(n).questions]
EXERCISES = [pytest.param(e, id=f"{n} {e.id}") for n in registry.notebooks() for e in registry.asked(n).exercises]
ON_PAGE = [pytest.param(n, e, id=f"{n} {e.id}") for n in registry.notebooks() for e in registry.asked(n).exercises]


def only_one(result: Result, ideas: list[str]) -> None:
    """A text for people: no address, no braces left over, no empty hint."""
    assert " at 0x" not in result.text
    assert "{" not in result.text.replace('{"', "")
    assert ideas.count(result.idea or "") == 1


def test_ids_are_told_apart():
    ids = [p.values[0].id for p in QUESTIONS], [p.values[0].id for p in EXERCISES]
    for names in ids:
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_right_prediction_is_right(question: Question):
    result = predicted(question, question.form.read(question.answer()))
    assert result.correct is True
    assert question.because in result.text


@pytest.mark.parametrize("question", QUESTIONS)
def test_each_wrong_prediction_gets_its_own_hint(question: Question):
    ideas = [wrong.idea for wrong in question.wrong]
    for wrong in question.wrong:
        result = predicted(question, wrong.answer)
        assert (result.correct, result.idea) == (False, wrong.idea)
        assert question.because in result.text
        only_one(result, ideas)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_right_answer_is_right(exercise: Exercise):
    result = judge(exercise, exercise.right)
    assert result.correct is True, result.text
    assert result.text.startswith("Right")


@pytest.mark.parametrize("exercise", EXERCISES)
def test_each_known_wrong_answer_gets_its_own_hint(exercise: Exercise):
    assert exercise.wrong, "which wrong ideas do readers have here?"
    ideas = [wrong.idea for wrong in exercise.wrong]
    for wrong in exercise.wrong:
        result = judge(exercise, wrong.answer)
        assert (result.correct is True, result.idea) == (False, wrong.idea), result.text
        only_one(result, ideas)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_nothing_and_garbage_get_help(exercise: Exercise):
    assert judge(exercise, None).correct is None
    for garbage in (object(), "?!", 1j, lambda *a, **k: object(), [], {"x": 1}, lambda: 1, print, float("nan")):
        result = judge(exercise, garbage)
        assert result.correct is not True
        assert len(result.text) > 20
        assert " at 0x" not in result.text


@pytest.mark.parametrize(("number", "exercise"), ON_PAGE)
def test_stub_then_solution_on_the_page(number: str, exercise: Exercise):
    """The stub is not attempted; with the solution's code in its place, the check passes."""
    path = notebook_of(number)
    assert path is not None, f"notebook {number} asks '{exercise.id}', but is not there"
    found = task(path, exercise.id)
    assert found is not None, f"{path.name} does not check '{exercise.id}'"
    assert found.solution, f"{path.name}: no cell tagged solution with python code below '{exercise.id}'"
    space = {"ppedu": ppedu, "__name__": "__main__", **{name: getattr(course, name) for name in course.__all__}}
    exec(found.stub, space)
    assert eval(found.check, space).correct is None, "the stub counts as attempted"
    exec(found.solution, space)
    result = eval(found.check, space)
    assert result.correct is True, result.text
