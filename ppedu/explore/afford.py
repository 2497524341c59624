"""How many microbatches a schedule can have in a memory budget, and what each of them then takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from ppedu import theory
from ppedu.builders import SCHEDULES
from ppedu.explore.settings import RANGES, Settings
from ppedu.simulate import simulate

MOST = int(RANGES["m"].high)
_MANY = 10**4  # peaks that have not grown by then never will: they are at most p, or they grow with every microbatch


@dataclass(frozen=True, slots=True)
class Afford:
    """m: the most microbatches within the budget, up to where the slider goes. any: there is no limit to them.

    each: the makespan at that m over m, so that batches of different size compare.
    """

    m: int
    any: bool
    each: float

    @property
    def text(self) -> str:
        """'m = 4', or 'any m'."""
        return "any m" if self.any else f"m = {self.m}"

    @property
    def pace(self) -> str:
        """What a microbatch takes, and at which m where the text does not say it."""
        return f"{f'at m = {self.m} ' if self.any else ''}each takes {self.each:.3g}"


def afford(settings: Settings, budget: int | None) -> Afford:
    """What a budget of `budget` activations in flight on every rank affords; None is no limit.

    >>> afford(Settings("gpipe", p=4, m=8), budget=4)
    Afford(m=4, any=False, each=3.5)
    >>> one = afford(Settings("1f1b", p=4, m=8), budget=4)
    >>> one.text, one.pace
    ('any m', 'at m = 64 each takes 2.09')
    """
    name, p = settings.schedule, settings.p
    fits = [m for m in range(1, MOST + 1) if budget is None or peak(name, p, m) <= budget]
    m = max(fits)  # one microbatch always fits: a budget is at least 1
    endless = m == MOST and (budget is None or peak(name, p, _MANY) <= budget)
    return Afford(m, endless, replace(settings, m=m).predicted().makespan / m)


@lru_cache(maxsize=4096)
def peak(name: str, p: int, m: int) -> int:
    """The most in flight on any rank: by the closed form, or by simulation where there is none."""
    try:
        return max(theory.peak_in_flight(name, p, m))
    except ValueError:
        return max(simulate(SCHEDULES[name](p=p, m=m)).peak_in_flight)
