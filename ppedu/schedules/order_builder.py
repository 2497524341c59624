"""What the builders share: where stages stand, and a rank's order while it is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ppedu.core.operations import Action, Entry, Kind, Overlap


def ring(p: int, v: int) -> tuple[int, ...]:
    """Stage s on rank s modulo p: behind the last rank the chain goes on at the first.

    >>> ring(p=2, v=2)
    (0, 1, 0, 1)
    """
    return tuple(range(p)) * v


def vee(p: int) -> tuple[int, ...]:
    """Down the ranks and up again, two stages on each: a letter V.

    >>> vee(p=3)
    (0, 1, 2, 2, 1, 0)
    """
    return (*range(p), *reversed(range(p)))


class Writing:
    """A rank's order while it is written. Each operation goes to the next microbatch of its stage.

    >>> order = Writing()
    >>> order.run("F", 0)
    >>> order.run("F", 0)
    >>> order.run("IW", 0)
    >>> print(*order.entries)
    0F0 0F1 0I0 0W0
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._done: Counter[tuple[int, Kind]] = Counter()
        self._split: list[Action] = []  # every I, in order: their W's follow

    def run(self, kinds: str, stage: int) -> None:
        """Append a stage's next operation of each of these kinds."""
        for letter in kinds:
            action = self._next(stage, Kind(letter))
            self.entries.append(action)
            if action.kind is Kind.I:
                self._split.append(action)

    def run_pair(self, forward: int, backward: int) -> None:
        """Append the next F of one stage and the next B of another as one slot."""
        self.entries.append(Overlap(self._next(forward, Kind.F), self._next(backward, Kind.B)))

    def run_oldest_w(self) -> None:
        """Append the W of the oldest I that has none yet, if there is one."""
        if self._split:
            oldest = self._split.pop(0)
            self.entries.append(Action(oldest.stage, Kind.W, oldest.microbatch))

    def _next(self, stage: int, kind: Kind) -> Action:
        counted = Kind.B if kind is Kind.I else kind  # a microbatch has either
        self._done[stage, counted] += 1
        return Action(stage, kind, self._done[stage, counted] - 1)


def only(entries: Iterable[Entry], there: Mapping[int, int]) -> tuple[Entry, ...]:
    """The entries whose microbatch is below `there[stage]`. Of a pair, what is left stands alone.

    What is left can run if the whole could: no operation needs one of another microbatch.
    """
    kept: list[Entry] = []
    for entry in entries:
        parts = tuple(a for a in entry.actions if a.microbatch < there[a.stage])
        kept += [entry] if parts == entry.actions else parts
    return tuple(kept)
