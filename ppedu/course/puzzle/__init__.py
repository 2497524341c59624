"""Build a schedule operation by operation; see at once why one cannot stand there; then run it for real."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ppedu.core.costs import Costs
    from ppedu.core.schedule import Schedule
    from ppedu.course.puzzle.levels import Level
    from ppedu.course.puzzle.widget import Puzzle


def puzzle(
    level: int | Level | Schedule | str = 1,
    start: Schedule | str | float | None = None,
    *,
    costs: Costs | None = None,
) -> Puzzle:
    """Build a schedule by hand, by mouse or by keys: choose a rank and what it runs next.

    level: 1 to 12, the levels that the widget lists; a Level of your own; or an order of your own, a Schedule or its text,
        which stands there whole: take back what you want to change, and better it under `costs` (by default F = B = 1).
    start: what stands there at first: a beginning of each rank's order ("F0 F1\\nF0"), or the time up to which your own
        order stands there. Each level starts empty by itself.

    A move that no schedule could be made of any more is refused with the reason. `view.text` is the position as CSV: keep
    it, and set it to come back. Raises ValueError for a level that there is not, and for an order that cannot run.

    >>> view = puzzle(level=1)
    >>> print(view.place(1, "B0").message)
    rank 1 runs B0 before F0, whose result it needs: run F0 first
    >>> view.text = "0F0,0B0\\n1F0,1B0"
    >>> view
    puzzle 1, Down and up: makespan 4, bubble 50.0 %, in flight 1 1. Solved. This is naive, GPipe and 1F1B
    >>> puzzle("F0 B0 F1 B1\\nF0 B0 F1 B1", start=1)
    puzzle 'Better than your order': 1 of 8 operations placed
    """
    from ppedu.course.puzzle.widget import Puzzle

    return Puzzle(level, start, costs)
