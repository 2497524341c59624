"""An exception in a rank as plain data, so that it reaches the caller whatever its class is, and as text again there."""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass

_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_CALLS = ("_wrapped_call_impl", "_call_impl")  # two frames that torch puts before each forward, and that say nothing
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


@dataclass(frozen=True, slots=True)
class Link:
    """One exception of a chain. frames: (file, line, function): the source is joined where it is, in the caller."""

    frames: tuple[tuple[str, int, str], ...]
    summary: str
    before: str  # how it follows from the one before


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception in a rank: its chain, oldest first.

    lost_peer: it is the echo of another rank's end. remark: what this package knows about it, in a sentence.
    """

    chain: tuple[Link, ...]
    lost_peer: bool = False
    remark: str | None = None
    text: str | None = None  # the traceback, where it was written where the source is


def failure_of(error: BaseException) -> Failure:
    """An exception as plain data. What this package found out about it stands in its attributes of the same names."""
    chain: list[Link] = []
    seen, now = set[int](), error
    while True:
        seen.add(id(now))
        cause = now.__cause__ or (None if now.__suppress_context__ else now.__context__)
        if cause is not None and id(cause) in seen:
            cause = None
        before = "" if cause is None else _CAUSE if now.__cause__ else _CONTEXT
        chain.insert(0, Link(_frames(now), "".join(traceback.format_exception_only(type(now), now)), before))
        if cause is None:
            break
        now = cause
    return Failure(tuple(chain), getattr(error, "lost_peer", False), getattr(error, "remark", None))


def _frames(error: BaseException) -> tuple[tuple[str, int, str], ...]:
    """Without the frames of this package above the first of the user's."""
    stack = [
        (frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    frames = [frame for frame in stack if frame[2] not in _CALLS]
    while len(frames) > 1 and frames[0][0].startswith(_HERE):
        del frames[0]
    return tuple(frames)


def failure_text(failure: Failure) -> str:
    """The traceback as Python prints it. Source of notebook cells is found here, in the kernel, not in the rank."""
    return "".join(_link_text(link) for link in failure.chain) if failure.text is None else failure.text


def _link_text(link: Link) -> str:
    frames = traceback.format_list([traceback.FrameSummary(*frame) for frame in link.frames])
    head = "Traceback (most recent call last):\n" if frames else ""
    return link.before + head + "".join(frames) + link.summary
