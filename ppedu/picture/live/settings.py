"""What an explorer's controls can be set to, and the schedule, costs and timeline that follow from it.

Letters: p ranks, m microbatches, v stages per rank; F forward, B backward, I and W its halves. The unit of time is one F
of a rank when the model is cut into p stages, so that schedules compare on one model: of 2p stages each takes half of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from typing import TypeAlias

from ppedu.core.costs import Costs, PerStage
from ppedu.core.operations import Kind, Overlap
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.core.timeline import Timeline
from ppedu.picture.scene import Structure, structure
from ppedu.schedules import SCHEDULES


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
    "v": Range("the number of stages on each rank", 1, 4, 1, whole=True),
    "ratio": Range("how many times as long as F a B takes", 0.25, 4, 0.25),
    "w_share": Range("the share of B that W takes, the rest is I", 0.1, 0.9, 0.05),
    "overlap": Range("how long an overlapped pair F&B takes, as a share of F + B", 0.5, 1, 0.05),
    "transfer": Range("how long a tensor travels to another rank, in units of F", 0, 4, 0.1),
    "slow_factor": Range("how many times slower the slow stage is", 1, 4, 0.25),
    "budget": Range("how many activations in flight a rank has room for", 1, 64, 1, whole=True),
}
OWN: dict[str, float] = {"v": 2, "w_share": 0.5, "overlap": 1.0}
"""Controls that only some schedules have, with the value that stands in where they count for nothing."""
Build: TypeAlias = Callable[..., Schedule]


@dataclass(frozen=True, slots=True)
class Features:
    """What the controls need to know of a schedule, whatever p, m and v are.

    name: what pictures call it. controls: those of OWN that it has. several: some rank holds more than one stage.
    """

    name: str
    controls: frozenset[str]
    several: bool


class Order:
    """An order of one's own in the place of a name: a builder for one p and one m.

    Two of them are the same only where they are one object: to compare thousands of operations for each move takes too long.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def __call__(self, p: int, m: int) -> Schedule:
        self.check("p", p), self.check("m", m)
        return self.schedule

    def check(self, name: str, value: object) -> int:
        """p or m, or ValueError where it is not the order's."""
        fixed = self.schedule.num_ranks if name == "p" else self.schedule.num_microbatches
        if value != fixed:
            raise ValueError(
                f"{name} is {fixed} in the order that was given: got {_said(value)}. Choose a schedule by its name to move it"
            )
        return fixed


Which: TypeAlias = str | Order
"""A name in SCHEDULES, or an order of one's own."""


def builder(which: Which) -> Build:
    """What makes the schedule; what is kept for speed is kept by it."""
    return which if isinstance(which, Order) else SCHEDULES[which]


def features(which: Which) -> Features:
    """Those of an order, or of a schedule of SCHEDULES, as a small one of its kind shows them.

    >>> sorted(features("zb_v").controls), features("zb_v").several
    (['w_share'], True)
    """
    return _features(builder(which))


@lru_cache(maxsize=256)
def _features(build: Build) -> Features:
    if isinstance(build, Order):
        return _seen(build.schedule, takes_v=False)
    for p in (2, 4, 3, 1, 8):
        schedule = _try(build, p, (4, 4 * p, 1))
        if isinstance(schedule, Schedule):
            return _seen(schedule, takes_v="v" in signature(build).parameters)
    raise ValueError(f"a builder in SCHEDULES takes p and m, but {build!r} makes no small schedule: {schedule}")


def _seen(schedule: Schedule, takes_v: bool) -> Features:
    entries = {entry for order in schedule.orders for entry in order}
    has = {
        "v": takes_v,
        "w_share": any(part.kind is Kind.W for entry in entries for part in entry.actions),
        "overlap": any(isinstance(entry, Overlap) for entry in entries),
    }
    several = schedule.num_stages > schedule.num_ranks
    return Features(schedule.name, frozenset(name for name, there in has.items() if there), several)


def _try(build: Build, p: int, ms: Sequence[int]) -> Schedule | str:
    """A schedule of p ranks, with the first of these m that it can have; or why it can have none."""
    reason = ""
    for m in ms:
        try:
            return build(p=p, m=m)
        except ValueError as error:
            reason = str(error)
    return reason


def why_not_p(which: Which, p: int) -> str:
    """Why a schedule cannot have p ranks, in its builder's words; "" where it can."""
    return _why_not_p(builder(which), p)


@lru_cache(maxsize=256)
def _why_not_p(build: Build, p: int) -> str:
    found = _try(build, p, (1, p, 2 * p, 4 * p))
    return found if isinstance(found, str) else ""


def ranks_of(names: Sequence[Which]) -> list[int]:
    """The p, within the control's range, that all of these schedules can have; that of an order of one's own.

    >>> ranks_of(["gpipe", "dualpipe"])
    [2, 4, 6, 8, 10, 12, 14, 16]
    """
    if own := _own(names):
        return [own.schedule.num_ranks]
    low, high = int(RANGES["p"].low), int(RANGES["p"].high)
    return [p for p in range(low, high + 1) if not any(why_not_p(name, p) for name in names)]


def nearest_m(m: int, names: Sequence[Which]) -> int:
    """The m that these schedules can have: an order of one's own fixes it, and may have more than the control goes to."""
    own = _own(names)
    return own.schedule.num_microbatches if own else min(m, int(RANGES["m"].high))


def _own(names: Sequence[Which]) -> Order | None:
    return next((which for which in names if isinstance(which, Order)), None)


def check_microbatches(value: object, names: Sequence[Which]) -> int:
    """m, or ValueError where it is out of range, or not that of an order of one's own."""
    own = _own(names)
    return own.check("m", value) if own else int(RANGES["m"].check("m", value))


def check_ranks(value: object, names: Sequence[Which]) -> int:
    """p, or ValueError where it is out of range, or one of the schedules cannot have it."""
    if own := _own(names):
        return own.check("p", value)
    p = int(RANGES["p"].check("p", value))
    for name in names:
        reason = why_not_p(name, p)
        if reason:
            raise ValueError(f"p cannot be {p}: {reason}")
    return p


def check_name(value: object) -> str:
    """A key of SCHEDULES, or ValueError with those that there are."""
    if not isinstance(value, str) or value not in SCHEDULES:
        raise ValueError(f"there is no schedule {_said(value)}: the names are {', '.join(SCHEDULES)}")
    return value


def check_stage(value: object, p: int) -> int | None:
    """The slow stage: None, or the rank that holds it. Where a rank holds several stages, all of them are slow."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < p):
        return value
    ranks = "is rank 0 alone" if p == 1 else f"are ranks 0 to {p - 1}"
    raise ValueError(f"slow_stage is None or the rank of the slow stage: with p={p} there {ranks}, got {_said(value)}")


def _said(value: object) -> str:
    return "nothing" if value is None else f"{value:g}" if isinstance(value, float) else repr(value)


@dataclass(frozen=True, slots=True)
class Settings:
    """One position of all controls. Equal settings give equal timelines: a control that the schedule does not have counts
    for nothing, whatever it was set to."""

    schedule: Which
    p: int
    m: int
    ratio: float = 1.0
    transfer: float = 0.0
    slow_stage: int | None = None
    slow_factor: float = 1.0
    v: int = 2
    w_share: float = 0.5
    overlap: float = 1.0

    def __post_init__(self) -> None:
        for name, indifferent in OWN.items():
            if name not in self.features.controls:
                object.__setattr__(self, name, indifferent)

    @property
    def features(self) -> Features:
        """What holds of the schedule whatever p, m and v are."""
        return features(self.schedule)

    @property
    def key(self) -> str:
        """The name in SCHEDULES; "" for an order of one's own, which no closed form is known for."""
        return self.schedule if isinstance(self.schedule, str) else ""

    @property
    def even(self) -> bool:
        """All stages take the same time."""
        return self.slow_stage is None or self.slow_factor == 1 or self.p == 1

    @property
    def free(self) -> bool:
        """Messages take no time, or there are none."""
        return self.transfer == 0 or self.p == 1

    @property
    def size(self) -> float:
        """What a stage is of a p-th of the model: the share of its costs, and of its activations."""
        return self.p / self.built()[0].chain_length

    def costs(self, unit: float = 1.0, name: str = "") -> Costs:
        """What the operations cost, with an F of 1/p of the model as `unit` long."""
        factors = [1.0] * self.p
        if self.slow_stage is not None:
            factors[self.slow_stage] = self.slow_factor
        whole, transfer = unit * self.size, self.transfer * unit
        each = [whole * factors[rank] for rank in self.built()[0].rank_of_stage]
        forward: PerStage = each if len(set(each)) > 1 else each[0]
        backward = _times(self.ratio, forward)
        more: dict[str, PerStage] = {}
        if "w_share" in self.features.controls:
            more["input_grad"] = _times((1 - self.w_share) * self.ratio, forward)
            more["weight_grad"] = _times(self.w_share * self.ratio, forward)
        if self.overlap != 1:
            more["overlapped"] = _times(self.overlap * (1 + self.ratio), forward)
        return Costs(forward, backward, transfer=transfer, unit=name, **more)

    def built(self) -> tuple[Schedule, Structure]:
        """The schedule, with what its picture needs of it whatever the costs are."""
        return _built(builder(self.schedule), self.p, self.m, self.v)

    def predicted(self) -> Timeline:
        """The simulated timeline, in units of F."""
        return _predicted(self, builder(self.schedule))


def words(all_settings: Sequence[Settings]) -> str:
    """What a prediction of these schedules, at the same costs, rests on.

    >>> words([Settings("1f1b", 4, 8, ratio=2, slow_stage=1, slow_factor=2)])
    'F=1 B=2, rank 1 takes 2 times as long'
    >>> words([Settings("zb_v", 4, 8, ratio=2)])
    'F=1 B=2 (I=1 W=1) for 1/4 of the model; a stage of ZB-V is 1/8'
    """
    one = all_settings[0]
    said = [f"F=1 B={one.ratio:g}"]
    split = next((s for s in all_settings if "w_share" in s.features.controls), None)
    if split is not None:
        said[0] += f" (I={(1 - split.w_share) * one.ratio:.3g} W={split.w_share * one.ratio:.3g})"
    pair = next((s for s in all_settings if s.overlap != 1), None)
    if pair is not None:
        said.append(f"F&B={pair.overlap * (1 + one.ratio):.3g}")
    if one.slow_stage is not None and one.slow_factor != 1:
        said.append(f"rank {one.slow_stage} takes {one.slow_factor:g} times as long")
    if one.transfer:
        said.append(f"transfer {one.transfer:g}")
    smaller = [s for s in all_settings if s.size != 1]
    if not smaller:
        return ", ".join(said)
    said[0] += f" for 1/{one.p} of the model" if one.p > 1 else " for the model"
    parts = [f"a stage of {s.features.name} is 1/{s.built()[0].chain_length}" for s in smaller]
    return "; ".join([", ".join(said), *parts])


def _times(factor: float, each: PerStage) -> PerStage:
    return [factor * one for one in each] if isinstance(each, Sequence) else factor * each


@lru_cache(maxsize=16)
def _built(build: Build, p: int, m: int, v: int) -> tuple[Schedule, Structure]:
    more = {"v": v} if "v" in _features(build).controls else {}
    schedule = build(p=p, m=m, **more)
    return schedule, structure(schedule)


@lru_cache(maxsize=16)
def _predicted(settings: Settings, build: Build) -> Timeline:
    return simulate(settings.built()[0], settings.costs())
