"""Orders as people write them: one rank a line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set

from ppedu.core.operations import Action, Entry, Kind, Overlap, ScheduleError

_CELL = re.compile(r"(\d*)([FBIW])(\d+)")
_PAIR = re.compile(r"\(?(\d*[FBIW]\d+)[;&](\d*[FBIW]\d+)(?:\)OVERLAP_F_B)?")


def parse_entry(cell: str, rank: int = 0) -> Entry:
    """One cell of an order, as `str(entry)` or `Schedule.short` writes it; a cell without a stage means stage `rank`.

    >>> print(parse_entry("2F0"), parse_entry("F1&B0", rank=3))
    2F0 (3F1;3B0)OVERLAP_F_B
    """
    pair = _PAIR.fullmatch(cell)
    if pair is None:
        return _parse_action(cell, rank)
    return Overlap(_parse_action(pair[1], rank), _parse_action(pair[2], rank))


def _parse_action(cell: str, rank: int) -> Action:
    match = _CELL.fullmatch(cell)
    if match is None:
        raise ScheduleError(
            f"rank {rank}: '{cell}' is no operation. An operation is its stage, a letter of F B I W and its "
            "microbatch, like 2F0 (sends, receives and idle slots are not written down)"
        )
    stage, kind, microbatch = match.groups()
    return Action(int(stage) if stage else rank, Kind(kind), int(microbatch))


def lines_of(text: object) -> list[str]:
    """The lines that say something, one a rank."""
    if not isinstance(text, str):
        raise TypeError(
            f"a schedule is read from one string with a line a rank, but this is of type {type(text).__name__}"
        )
    return [line for line in text.splitlines() if line.strip()]


def without_rank(line: str, rank: int) -> str:
    """The line without its 'rank 0:', which must be where it stands: read in another order, it is another schedule."""
    match = re.match(r"\s*rank\s+(\d+)\s*:", line)
    if match is None:
        return line
    if int(match[1]) != rank:
        raise ScheduleError(
            f"ranks stand in order, one a line, but where rank {rank} should stand is 'rank {match[1]}:'. Sort the lines; "
            f"a rank that runs nothing has a line too, 'rank {rank}:'"
        )
    return line[match.end() :]


def entries_of(given: object, rank: int) -> tuple[Entry, ...]:
    """What a function returned for a rank, as entries."""
    words = given.split() if isinstance(given, str) else given
    if not isinstance(words, Iterable) or isinstance(words, Set):  # a set has no order
        raise TypeError(
            f"the order of rank {rank} is text like 'F0 F1 B0 B1' or a list of such words, but the function returned "
            + ("nothing (is a return missing?)" if given is None else f"{given!r:.80}")
        )
    found: list[Entry] = []
    for word in words:
        if isinstance(word, Action | Overlap):
            found.append(word)
        elif isinstance(word, str):
            found.append(parse_entry(word.strip(), rank))
        else:
            raise TypeError(
                f"rank {rank}: an operation is a word like 'F0' or '2F0', an Action or an Overlap: {word!r:.80}"
            )
    return tuple(found)
