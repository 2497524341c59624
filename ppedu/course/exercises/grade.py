"""Judges answers: `check` for exercises, `reveal` for predictions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ppedu.course.exercises import progress_store as kept
from ppedu.course.exercises import registry
from ppedu.course.exercises.ask import Exercise, Question, Wrong
from ppedu.course.exercises.call import Called, call, is_stub, takes
from ppedu.course.exercises.forms import Fields, Form, Number
from ppedu.course.exercises.reading import MisreadError, open_answer, sentence, what
from ppedu.course.exercises.result import Result

_OPEN = "Not attempted yet: put your answer in place of the dots or of None, then run this cell again."


def reveal(question: str, prediction: Any) -> Result:
    """Compare a prediction with the answer, and say why it is that. None means not attempted, and gives nothing away.

    Raises ValueError for a question that no notebook asks.

    >>> reveal("makespan of 1F1B", None)
    Not attempted yet: put your number in place of None, then run this cell again.
    """
    number, asked = registry.question(question)
    result = predicted(asked, prediction)
    if result.correct is not None:
        kept.record(number, "predictions", question, result.correct, result.idea)
    return result


def predicted(asked: Question, prediction: Any) -> Result:
    """`reveal` for a question at hand: nothing is recorded.

    >>> predicted(registry.question("makespan of 1F1B")[1], 22).correct
    True
    """
    if open_answer(prediction):
        noun = "number" if isinstance(asked.form, Number) else "answer"
        return Result(f"Not attempted yet: put your {noun} in place of None, then run this cell again.", None)
    form, right = asked.form, asked.form.read(asked.answer())
    try:
        given = form.read(prediction)
    except MisreadError as error:
        return Result(f"This prediction cannot be read: {error}", None)
    if form.same(given, right):
        return Result(f"Yes: {form.show(right)}. {asked.because}", True)
    idea = next((w for w in asked.wrong if _has(w, form, given, right)), None)
    parts = [f"You said {form.show(given)}, it is {form.show(right)}.", asked.because]
    if idea is not None:
        parts.insert(1, _hint(idea, form.show(given), {}))
    return Result(" ".join(parts), False, idea.idea if idea else None)


def check(exercise: str, answer: Any) -> Result:
    """Judge the answer to an exercise: a value, or the function that was asked for (itself, not its result).

    A wrong answer gets the reason, and where it helps its picture over the one that was asked for. Raises ValueError
    for an exercise that no notebook has.
    """
    number, asked = registry.exercise(exercise)
    result = judge(asked, answer)
    if result.correct is not None:
        kept.record(number, "exercises", exercise, result.correct, result.idea)
    return result


def judge(asked: Exercise, answer: Any) -> Result:
    """`check` for an exercise at hand: nothing is recorded."""
    if open_answer(answer):
        return Result(_OPEN, None)
    if not asked.cases:
        return _value(asked, answer)
    if not callable(answer):
        names = ", ".join(asked.cases[0])
        return Result(
            f"A function of ({names}) is asked for, and this is {what(answer)}. Hand in the function itself: its name, "
            "without parentheses behind it.",
            False,
        )
    if is_stub(answer):
        return Result(_OPEN, None)
    misfit = takes(answer, list(asked.cases[0]))
    return Result(sentence(misfit), False) if misfit else _function(asked, answer)


def _value(asked: Exercise, answer: Any) -> Result:
    """Judge a value. The right one is not named: there is only this one."""
    form, right = asked.form, asked.wanted({})
    if callable(answer):
        return Result(f"{sentence(form.wants)} is asked for, and this is {what(answer)}: call it.", False)
    try:
        given = form.read(answer)
    except MisreadError as error:
        return Result(sentence(str(error)), False)
    if form.same(given, right):
        return Result(f"Right. {asked.because}".strip(), True)
    pictures = form.timelines(given, right)
    ideas = [w for w in asked.wrong if _has(w, form, given, right)]
    if isinstance(form, Fields):
        return _fields(asked, form, given, right, ideas)
    if ideas:
        return Result(_hint(ideas[0], form.show(given), {}), False, ideas[0].idea, pictures)
    said = form.remark(given, right) or f"{form.show(given)} is not it."
    return Result(f"{sentence(said)} {asked.nudge}", False, None, pictures)


def _fields(asked: Exercise, form: Fields, given: Any, right: Any, ideas: list[Wrong]) -> Result:
    """Judge a table or a quiz: what is open, what is right, and for each wrong entry its own hint where there is one."""
    wrong, still_open = form.wrong(given, right), [key for key, value in given.items() if value is None]
    good = len(given) - len(wrong) - len(still_open)
    lines = [f"{good} of {len(given)} right" + (f", {len(still_open)} still open." if still_open else ".")]
    for key in wrong:
        idea = next((w for w in ideas if key in w.answer), None)
        remark = form.of[key].remark(given[key], right[key])
        said = _hint(idea, form.of[key].show(given[key]), {}) if idea else remark or "not this one yet."
        lines.append(f'- "{key}": {said}')
    if wrong and not all(any(key in w.answer for w in ideas) for key in wrong):
        lines.append(asked.nudge)
    return Result("\n".join(lines), False if wrong else None, ideas[0].idea if ideas else None)


def _function(asked: Exercise, function: Callable[..., Any]) -> Result:
    """Call the function on every case; say what is wrong with the first case that is."""
    calls = _called(asked, function)
    wanted = [asked.wanted(case) for case in asked.all_cases]
    idea = next((w for w in asked.wrong if w.when is None and _in_every_case(asked, w, calls)), None)
    first = next((i for i, done in enumerate(calls) if not _is_right(asked, done, wanted[i])), None)
    if first is None and idea is None:
        return _passed(asked, function, calls)
    if all(c.value is None and not c.trouble for c in calls):
        return Result(_OPEN, None)  # raise NotImplementedError
    first = first or 0
    case, done, want = asked.all_cases[first], calls[first], wanted[first]
    head = f"{function_name(function)}({_arguments(case)})"
    if done.trouble:
        return Result(f"{head}: {done.trouble}", False, idea.idea if idea else None)
    if done.value is None:
        return Result(f"{head} raised NotImplementedError, while other cases have an answer.", False)
    pictures = asked.form.timelines(done.value, want)
    idea = idea or next((w for w in asked.wrong if w.when and w.when(done.value, want, *case.values())), None)
    if idea is not None:
        return Result(f"{head}: {_hint(idea, asked.form.show(done.value), case)}", False, idea.idea, pictures)
    before = f" (after {first} of {len(calls)} cases that are right)" if first else ""
    said = asked.form.remark(done.value, want) or asked.form.differs(done.value, want)
    return Result(f"{head}{before}: {said}\n{asked.nudge}", False, None, pictures)


def _is_right(asked: Exercise, done: Called, want: Any) -> bool:
    return not done.trouble and done.value is not None and asked.form.same(done.value, want)


def _called(asked: Exercise, function: Callable[..., Any]) -> list[Called]:
    """The outcome of each case. After one that took all the time, the others are not tried."""
    deadline, calls = time.monotonic() + asked.seconds, list[Called]()

    def read(value: Any) -> Any:
        if value is None:
            raise MisreadError("it returned None. Does a `return` stand at its end?")
        return asked.form.read(value)

    for case in asked.all_cases:
        left = max(0.1, deadline - time.monotonic())
        calls.append(call(function, dict(case), left, read, asked.seconds))
        if calls[-1].trouble and time.monotonic() > deadline:
            break
    return calls


def _passed(asked: Exercise, function: Callable[..., Any], calls: list[Called]) -> Result:
    """All cases are right: a last look at what would bite elsewhere."""
    count = len(calls)
    text = f"Right, in {count} of {count} cases. {asked.because}".strip()
    changed = next((c.changed for c in calls if c.changed), "")
    if changed:
        text += f"\nOne thing: your function changes `{changed}`, which belongs to its caller. Work on a copy: list({changed})."
    again = call(function, dict(asked.all_cases[0]), asked.seconds, asked.form.read, asked.seconds)
    if again.trouble or not asked.form.same(again.value, asked.wanted(asked.all_cases[0])):
        return Result(
            f"{function_name(function)}({_arguments(asked.all_cases[0])}) is right the first time, and not when it is called "
            "again: it keeps something from call to call. Is a list made outside the function, or as a default argument?",
            False,
        )
    return Result(text, True)


def _in_every_case(asked: Exercise, wrong: Wrong, calls: list[Called]) -> bool:
    """Whether the answers are those of a known wrong idea, case by case. Where the idea fails, so must the reader."""
    if len(calls) < len(asked.all_cases):
        return False
    for case, done in zip(asked.all_cases, calls, strict=True):
        try:
            known = asked.form.read(wrong.answer(*case.values()))
        except Exception:
            known = None
        if (known is None) != (done.value is None) or (known is not None and not asked.form.alike(done.value, known)):
            return False
    return True


def _has(wrong: Wrong, form: Form, given: Any, right: Any) -> bool:
    return bool(wrong.when(given, right)) if wrong.when else form.alike(given, form.read(wrong.answer))


def _hint(wrong: Wrong, got: str, case: Mapping[str, Any]) -> str:
    """A hint with the reader's own figures put in."""
    return wrong.hint.format_map({**case, "got": got})


def function_name(function: Callable[..., Any]) -> str:
    """What the reader called it."""
    name = getattr(function, "__name__", "your function")
    return "your function" if name == "<lambda>" else str(name)


def _arguments(case: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in case.items())
