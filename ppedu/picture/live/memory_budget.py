"""How many microbatches a schedule can have in a memory budget, and what each of them then takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from ppedu import theory
from ppedu.picture.live.settings import RANGES, Build, Settings
from ppedu.schedules import SCHEDULES

MOST = int(RANGES["m"].high)


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
    """What a budget of `budget` activations on every rank affords; None is no limit. One activation is what a microbatch
    leaves on 1/p of the model.

    >>> afford(Settings("gpipe", p=4, m=8), budget=4)
    Afford(m=4, any=False, each=3.5)
    >>> one = afford(Settings("1f1b", p=4, m=8), budget=4)
    >>> one.text, one.pace
    ('any m', 'at m = 64 each takes 2.09')
    """
    m, endless = MOST, True
    if budget is not None:
        peaks = [peak(settings.key, settings.p, n, settings.v) for n in range(1, MOST + 2)]
        fits = [n for n, most in enumerate(peaks, 1) if most <= budget]
        m = min(MOST, max(fits, default=1))  # one microbatch always fits, where it can be: a budget is at least 1
        # Peaks that grow without end do so with every microbatch; the others are highest at some m below 2p.
        endless = len(fits) == len(peaks)
    return Afford(m, endless, replace(settings, m=m).predicted().makespan / m)


def peak(name: str, p: int, m: int, v: int = 2) -> float:
    """The most activations that any rank holds, in what a microbatch leaves on 1/p of the model: by its closed form, or as
    simulated. Infinite where the schedule cannot have this m."""
    return _peak(SCHEDULES[name], name, p, m, v)


@lru_cache(maxsize=8192)
def _peak(_: Build, name: str, p: int, m: int, v: int) -> float:
    try:
        return max(theory.peak_activations(name, p, m, v))
    except ValueError:
        pass
    try:
        return max(Settings(name, p, m, v=v).predicted().peak_activations)
    except ValueError:
        return math.inf
