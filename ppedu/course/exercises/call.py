"""Calls a function that a reader wrote: with a time limit, its own copy of the arguments, and errors as sentences."""

from __future__ import annotations

import contextvars
import copy
import ctypes
import dis
import inspect
import linecache
import re
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ppedu.course.exercises.reading import MisreadError


class _TimeIsUpError(BaseException):
    """Ends a reader's endless loop. No Exception, so that `except Exception` in the loop does not keep it going."""


@dataclass(frozen=True, slots=True)
class Called:
    """What came of one call. value: what was made of its result; or trouble: why there is none, as a sentence."""

    value: Any = None
    trouble: str = ""
    changed: str = ""  # the name of an argument that the function changed


def is_stub(function: Callable[..., Any]) -> bool:
    """Whether a function does nothing: its body is `...`, `pass`, or a docstring.

    >>> def stub(p, m): ...
    >>> def short_answer(p, m): return p
    >>> is_stub(stub), is_stub(short_answer)
    (True, False)
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    idle = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST", "CACHE", "EXTENDED_ARG"}
    lines = list(dis.get_instructions(code))
    loads = [line.argval for line in lines if line.opname in {"LOAD_CONST", "RETURN_CONST"}]
    return all(line.opname in idle for line in lines) and loads == [None]


def takes(function: Callable[..., Any], names: Sequence[str]) -> str:
    """A sentence where a function cannot be called with these arguments by position; "" where it can."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""  # some builtins do not tell
    try:
        signature.bind(*names)
    except TypeError:
        return f"your function has to take ({', '.join(names)}), and takes {signature}."
    return ""


def call(
    function: Callable[..., Any], case: dict[str, Any], seconds: float, read: Callable[[Any], Any], limit: float
) -> Called:
    """Call a reader's function with the values of a case, and `read` its result, within `seconds`.

    limit: the seconds that a message names. Reading belongs to the time: a generator works while it is read.
    """
    arguments = copy.deepcopy(list(case.values()))
    outcome: list[Called] = []

    def work() -> None:
        try:
            outcome.append(Called(read(function(*arguments))))
        except NotImplementedError:
            outcome.append(Called())
        except _TimeIsUpError:
            pass
        except BaseException as error:
            outcome.append(Called(trouble=_told(error, function)))

    # A thread, for that works in a notebook, in a script and on every system; signals are for main threads on Unix.
    context = contextvars.copy_context()  # so that what the reader prints still lands below this cell
    thread = threading.Thread(target=context.run, args=(work,), name="ppedu exercise", daemon=True)
    thread.start()
    try:
        _join(thread, seconds)
    finally:
        ended = _end(thread)  # also when the reader interrupts the kernel
    if not outcome:
        left = "" if ended else " It could not be stopped and still runs: restart the kernel when you have mended it."
        return Called(
            trouble=f"it had not ended after {limit:g} seconds. Is there a loop whose condition never becomes False?{left}"
        )
    done = outcome[0]
    for (name, before), after in zip(case.items(), arguments, strict=True):
        if not _equal(before, after):
            return Called(done.value, done.trouble, name)
    return done


def _join(thread: threading.Thread, seconds: float) -> None:
    """Wait in short turns: on Windows a long join cannot be interrupted."""
    deadline = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < deadline:
        thread.join(min(0.05, max(0.0, deadline - time.monotonic())))


def _end(thread: threading.Thread) -> bool:
    """Raise in the thread until it has ended, for a second at most: a bare `except:` in a loop swallows some."""
    deadline = time.monotonic() + 1
    while thread.is_alive() and thread.ident is not None and time.monotonic() < deadline:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_TimeIsUpError))
        thread.join(0.02)
    return not thread.is_alive()


def _told(error: BaseException, function: Callable[..., Any]) -> str:
    """An error with the line of the reader's cell that it came from; other people's files are left out."""
    if isinstance(error, MisreadError):
        return str(error)
    name = type(error).__name__
    if isinstance(error, RecursionError):
        return f"it raised {name}: it calls itself without end. Which call should be the last one?"
    said = f"it raised {name}" + (f": {error}" if str(error) else "")
    said = re.sub(r" at 0x[0-9a-fA-F]+", "", said)[:300]
    file = getattr(getattr(function, "__code__", None), "co_filename", None)
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if not own:
        return f"{said}."
    line = linecache.getline(own[-1].filename, own[-1].lineno or 0).strip()
    return f"{said}, in line {own[-1].lineno} of its cell" + (f": `{line}`" if line else ".")


def _equal(before: Any, after: Any) -> bool:
    try:
        return bool(before == after)
    except Exception:  # arrays compare entry by entry: what cannot be compared is not blamed
        return True
