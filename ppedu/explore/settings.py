"""What an explorer's controls can be set to, and the schedule, costs and timeline that follow from it.

Letters: p ranks, m microbatches; F forward, B backward. One F of an ordinary stage is the unit of time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from ppedu.builders import SCHEDULES
from ppedu.explore.scene import Structure, structure
from ppedu.schedule import Costs, Schedule
from ppedu.simulate import simulate
from ppedu.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Range:
    """The values that a control can take: from `low` to `high`; `step` is the slider's, numbers typed may lie between."""

    what: str
    low: float
    high: float
    step: float
    whole: bool = False

    def check(self, name: str, value: object) -> float:
        """The value as a number, or ValueError with the rule and what was given."""
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not self.low <= value <= self.high or (self.whole and value != int(value)):  # type: ignore[call-overload, operator]
            kind = "a whole number" if self.whole else "a number"
            raise ValueError(f"{name} is {self.what}, {kind} from {self.low:g} to {self.high:g}: got {_said(value)}")
        return int(value) if self.whole else float(value)  # type: ignore[call-overload, arg-type]


RANGES: dict[str, Range] = {
    "p": Range("the number of ranks", 1, 16, 1, whole=True),
    "m": Range("the number of microbatches", 1, 64, 1, whole=True),
    "ratio": Range("how many times as long as F a B takes", 0.25, 4, 0.25),
    "transfer": Range("how long a tensor travels to another rank, in units of F", 0, 4, 0.1),
    "slow_factor": Range("how many times slower the slow stage is", 1, 4, 0.25),
    "budget": Range("how many activations in flight a rank has room for", 1, 64, 1, whole=True),
}
NAMES: dict[str, str] = {key: build(p=2, m=1).name for key, build in SCHEDULES.items()}
"""What pictures call the schedules, by their keys in SCHEDULES."""


def check_name(value: object) -> str:
    """A key of SCHEDULES, or ValueError with those that there are."""
    if not isinstance(value, str) or value not in SCHEDULES:
        raise ValueError(f"there is no schedule {_said(value)}: the names are {', '.join(SCHEDULES)}")
    return value


def check_stage(value: object, p: int) -> int | None:
    """The slow stage: None, or one of the p stages."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < p):
        return value
    stages = "is stage 0 alone" if p == 1 else f"are stages 0 to {p - 1}"
    raise ValueError(f"slow_stage is None or a stage: with p={p} there {stages}, got {_said(value)}")


def _said(value: object) -> str:
    return "nothing" if value is None else f"{value:g}" if isinstance(value, float) else repr(value)


@dataclass(frozen=True, slots=True)
class Settings:
    """One position of all controls. Equal settings give equal timelines."""

    schedule: str
    p: int
    m: int
    ratio: float = 1.0
    transfer: float = 0.0
    slow_stage: int | None = None
    slow_factor: float = 1.0

    @property
    def even(self) -> bool:
        """All stages take the same time."""
        return self.slow_stage is None or self.slow_factor == 1 or self.p == 1

    @property
    def free(self) -> bool:
        """Messages take no time, or there are none."""
        return self.transfer == 0 or self.p == 1

    def costs(self, unit: float = 1.0, name: str = "") -> Costs:
        """What the operations cost, with an F of an ordinary stage as `unit` long."""
        factors = [1.0] * self.p
        if self.slow_stage is not None:
            factors[self.slow_stage] = self.slow_factor
        forward = [unit * factor for factor in factors]
        backward = [self.ratio * one for one in forward]
        if len(set(factors)) == 1:
            return Costs(forward[0], backward[0], transfer=self.transfer * unit, unit=name)
        return Costs(forward, backward, transfer=self.transfer * unit, unit=name)

    @property
    def words(self) -> str:
        """What the prediction rests on: 'F=1 B=2, rank 1 takes 2 times as long'."""
        said = [f"F=1 B={self.ratio:g}"]
        if self.slow_stage is not None and self.slow_factor != 1:
            said.append(f"rank {self.slow_stage} takes {self.slow_factor:g} times as long")
        if self.transfer:
            said.append(f"transfer {self.transfer:g}")
        return ", ".join(said)

    def built(self) -> tuple[Schedule, Structure]:
        """The schedule, with what its picture needs of it whatever the costs are."""
        return _built(self.schedule, self.p, self.m)

    def predicted(self) -> Timeline:
        """The simulated timeline, in units of F."""
        return _predicted(self)


@lru_cache(maxsize=16)
def _built(name: str, p: int, m: int) -> tuple[Schedule, Structure]:
    schedule = SCHEDULES[name](p=p, m=m)
    return schedule, structure(schedule)


@lru_cache(maxsize=16)
def _predicted(settings: Settings) -> Timeline:
    return simulate(settings.built()[0], settings.costs())
