"""Says of any order whether it can run, and of one that cannot, why: which rank, which operation, what it needs.

Letters: F forward, B backward, I and W its halves (B = I + W): gradient of the input, gradient of the weights.
"""

from __future__ import annotations

from ppedu.core.costs import Costs
from ppedu.core.operations import ScheduleError
from ppedu.core.replay import replay
from ppedu.core.schedule import Schedule
from ppedu.core.structure import Violation


def violations(schedule: Schedule) -> tuple[Violation, ...]:
    """Every reason why a schedule cannot run; () when it is legal. Linear in the number of operations.

    Orders that wait for each other are looked for only once each operation is there, once and on its rank.
    A schedule without any backward is legal: inference.

    >>> late = Schedule.from_text("F0 F1 B0 B1\\nF0 F1 B1 B0")
    >>> violations(late)
    ()
    >>> print(violations(Schedule.from_text("F0 B0\\nB0 F0"))[0].message)
    rank 1 runs B0 before F0, whose result it needs: run F0 first
    """
    return replay(schedule, Costs())[1]


def check(schedule: Schedule) -> None:
    """Raise ScheduleError, with the reasons in its `violations`, where a schedule cannot run."""
    found = violations(schedule)
    if found:
        raise refusal(schedule, found)


def refusal(schedule: Schedule, found: tuple[Violation, ...], shown: int = 5) -> ScheduleError:
    """The error that tells the first few of the reasons and counts the others."""
    if len(found) == 1:
        return ScheduleError(f"{schedule.label} cannot run: {found[0].message}", found)
    lines = [f"{schedule.label} cannot run, for {len(found)} reasons:", *(f"- {v.message}" for v in found[:shown])]
    if len(found) > shown:
        lines.append(f"- and {len(found) - shown} more (the error's `violations` holds all)")
    return ScheduleError("\n".join(lines), found)
