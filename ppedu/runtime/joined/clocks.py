"""One clock for all: how far each machine's is from rank 0's, and moments put right by it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from ppedu.runtime.rank.group import Group
from ppedu.runtime.rank.job import StepReport
from ppedu.runtime.rank.timers import Moment

ROUNDS = 10


def clock_offset(group: Group, machines: Sequence[tuple[str, str]]) -> float:
    """Seconds to add to this machine's clock to get rank 0's: 0 on the same machine, else from the quickest of a few
    exchanges of timestamps (Cristian, 1989). machines: of each rank."""
    best = (float("inf"), 0.0)
    for other in range(1, group.size):
        if machines[other] == machines[0]:
            continue
        for _ in range(ROUNDS):
            if group.rank == 0:
                group.receive(1, other)
                group.send([time.perf_counter()], other).wait()
            elif group.rank == other:
                asked = time.perf_counter()
                group.send([0.0], 0).wait()
                (theirs,) = group.receive(1, 0)
                answered = time.perf_counter()
                best = min(best, (answered - asked, theirs - (asked + answered) / 2))
    return best[1]


def on_one_clock(report: StepReport, begin: float, end: float, drift: float) -> StepReport:
    """A report whose moments follow rank 0's clock all the way: what this clock was off at the end of the run, and was not
    at its beginning, came in evenly."""
    if not drift:
        return report

    def moved(moment: Moment) -> Moment:
        return Moment(*(t + drift * (t - begin) / (end - begin) for t in (moment.start, moment.computed, moment.end)))

    return replace(report, moments=[moved(moment) for moment in report.moments])
