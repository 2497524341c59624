"""How many microbatches a schedule can have in a memory budget, and what each of them then takes."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from ppedu import theory
from ppedu.core.format import number
from ppedu.picture.live.features import Build, Order, builder
from ppedu.picture.live.settings import CONTROLS, Control, Settings

BUDGET = Control(
    "memory budget", "how many activations in flight a rank has room for", 1, 64, 1, whole=True,
    hint="How many activations in flight a rank has room for",
)  # fmt: skip
MOST = int(CONTROLS["m"].high)


@dataclass(frozen=True, slots=True)
class Afford:
    """m: the most microbatches within the budget, up to where the slider goes; 0 for none. any: there is no limit to them.

    each: the makespan at that m over m, so that batches of different size compare.
    """

    m: int
    any: bool
    each: float

    @property
    def text(self) -> str:
        """'m = 4', or 'any m'."""
        return "any m" if self.any else f"m = {self.m}" if self.m else "no m"

    @property
    def pace(self) -> str:
        """What a microbatch takes, and at which m where the text does not say it."""
        at = f"at m = {self.m} " if self.any else ""
        return f"{at}each takes {number(self.each, 3)}" if self.m else "it always holds more"


def afford(settings: Settings, budget: int) -> Afford:
    """What a budget of `budget` activations on every rank affords. One activation is what a microbatch leaves on 1/p of the
    model. An order of one's own has its own m, or none.

    >>> afford(Settings("gpipe", p=4, m=8), budget=4)
    Afford(m=4, any=False, each=3.5)
    >>> one = afford(Settings("1f1b", p=4, m=8), budget=4)
    >>> one.text, one.pace
    ('any m', 'at m = 64 each takes 2.09')
    """
    found = peaks(settings)
    fits = [m for m, most in found.items() if most <= budget]
    m = max((m for m in fits if m <= MOST or len(found) == 1), default=0)
    # Peaks that grow without end do so with every microbatch; the others are highest at some m below 2p.
    endless = len(fits) == len(found) > 1
    return Afford(m, endless, replace(settings, m=m).predicted().makespan / m if m else math.inf)


def peaks(settings: Settings) -> dict[int, float]:
    """For each m that the schedule can have, up to one more than the slider goes to: the most activations that any rank
    holds, in what a microbatch leaves on 1/p of the model; by the closed form, or as simulated."""
    key = replace(settings, m=1, ratio=1.0, w_share=0.5, overlap=1.0, transfer=0.0, slow_stage=None)  # no times count
    return _peaks(builder(settings.schedule), key)


@lru_cache(maxsize=256)
def _peaks(build: Build, settings: Settings) -> dict[int, float]:
    found = {}
    for m in [build.shape["m"]] if isinstance(build, Order) else range(1, MOST + 2):
        try:
            found[m] = max(theory.peak_activations(settings.key, settings.p, m, settings.v))
        except ValueError:
            with suppress(ValueError):  # it cannot have this m
                found[m] = max(replace(settings, m=m).predicted().peak_activations)
    return found
