"""What an explorer's controls can be set to, and the schedule, costs and timeline that follow from it.

Letters: p ranks, m microbatches, v stages per rank; F forward, B backward, I and W its halves. The unit of time is one F
of a rank when the model is cut into p stages, so that schedules compare on one model: of 2p stages each takes half of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from ppedu.core.costs import Costs, PerStage
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.core.timeline import Timeline
from ppedu.picture.live.features import Build, Features, Order, Which, builder, features, said, why_not_p
from ppedu.schedules import SCHEDULES, takes_v


@dataclass(frozen=True, slots=True)
class Control:
    """A setting that has a slider. `low`, `high` and `step` are the slider's; numbers typed may lie between its steps.

    label: what it is called. what: the same in the sentence that refuses a value. hint: more of it, where one points.
    """

    label: str
    what: str
    low: float
    high: float
    step: float
    whole: bool = False
    hint: str = ""

    def check(self, name: str, value: object) -> float:
        """The value as a number, or ValueError with the rule and what was given."""
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not self.low <= value <= self.high or (self.whole and value != int(value)):  # type: ignore[call-overload, operator]
            kind = "a whole number" if self.whole else "a number"
            raise ValueError(f"{name} is {self.what}, {kind} from {self.low:g} to {self.high:g}: got {said(value)}")
        return int(value) if self.whole else float(value)  # type: ignore[call-overload, arg-type]


def _setting(first: Any, *label_and_range: Any, own: bool = False, **more: Any) -> Any:
    """A field of Settings. own: only some schedules have it; where it counts for nothing `first` stands in."""
    return field(default=first, metadata={"control": Control(*label_and_range, **more), "own": own})


@dataclass(frozen=True, slots=True)
class Settings:
    """One position of all controls: the one list of them. Equal settings give equal timelines: a control that the schedule
    does not have counts for nothing, whatever it was set to."""

    schedule: Which
    p: int = _setting(4, "ranks p", "the number of ranks", 1, 16, 1, whole=True)
    m: int = _setting(8, "microbatches m", "the number of microbatches", 1, 64, 1, whole=True)
    v: int = _setting(2, "stages a rank v", "the number of stages on each rank", 1, 4, 1, whole=True, own=True)
    ratio: float = _setting(1.0, "B takes × F", "how many times as long as F a B takes", 0.25, 4, 0.25)
    w_share: float = _setting(
        0.5, "W's share of B", "the share of B that W takes, the rest is I", 0.1, 0.9, 0.05, own=True
    )
    overlap: float = _setting(
        1.0, "F&B × (F + B)", "how long an overlapped pair F&B takes, as a share of F + B", 0.5, 1, 0.05, own=True,
        hint="What an overlapped pair takes: 1 on a single stream, less with kernels that overlap",
    )  # fmt: skip
    transfer: float = _setting(
        0.0, "transfer (× F)", "how long a tensor travels to another rank, in units of F", 0, 4, 0.1
    )
    slow_stage: int | None = None
    slow_factor: float = _setting(2.0, "slower by ×", "how many times slower the slow stage is", 1, 4, 0.25)

    def __post_init__(self) -> None:
        for name in OWN:
            if name not in self.features.controls:
                object.__setattr__(self, name, DEFAULTS[name])

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
        return self.built().stage_size

    def costs(self) -> Costs:
        """What the operations cost, in units of an F of 1/p of the model."""
        slow = [self.slow_factor if rank == self.slow_stage else 1.0 for rank in self.built().rank_of_stage]
        each = [self.size * factor for factor in (slow if len(set(slow)) > 1 else slow[:1])]

        def times(factor: float) -> PerStage:
            return [factor * one for one in each] if len(each) > 1 else factor * each[0]

        split = "w_share" in self.features.controls
        return Costs(
            times(1.0),
            times(self.ratio),
            input_grad=times((1 - self.w_share) * self.ratio) if split else None,
            weight_grad=times(self.w_share * self.ratio) if split else None,
            overlapped=times(self.overlap * (1 + self.ratio)) if self.overlap != 1 else None,
            transfer=self.transfer,
        )

    def built(self) -> Schedule:
        """The schedule, whatever the costs are."""
        return _built(builder(self.schedule), self.p, self.m, self.v)

    def predicted(self) -> Timeline:
        """The simulated timeline, in units of F."""
        return _predicted(self, builder(self.schedule))


DEFAULTS: dict[str, Any] = {one.name: one.default for one in fields(Settings) if one.name != "schedule"}
"""The controls in the order in which they stand, each with the value that it has at first."""
CONTROLS: dict[str, Control] = {
    one.name: one.metadata["control"] for one in fields(Settings) if "control" in one.metadata
}
"""Those of them that have a slider."""
OWN = tuple(one.name for one in fields(Settings) if one.metadata.get("own"))
"""Those that only some schedules have."""
LABELS = {
    one.name: one.metadata["control"].label if one.metadata else one.name.replace("_", " ") for one in fields(Settings)
}


def ranks_of(names: Sequence[Which]) -> list[int]:
    """The p, within the control's range, that all of these schedules can have; at most that of an order of one's own.

    >>> ranks_of(["gpipe", "dualpipe"])
    [2, 4, 6, 8, 10, 12, 14, 16]
    """
    own, all_p = _own(names), range(int(CONTROLS["p"].low), int(CONTROLS["p"].high) + 1)
    tried = [own[0].shape["p"]] if own else all_p
    return [p for p in tried if not any(why_not_p(name, p) for name in names)]


def nearest_m(m: int, names: Sequence[Which]) -> int:
    """The m that these schedules can have: an order of one's own fixes it, and may have more than the control goes to."""
    own = _own(names)
    return own[0].shape["m"] if own else min(m, int(CONTROLS["m"].high))


def _own(names: Sequence[Which]) -> list[Order]:
    return [which for which in names if isinstance(which, Order)]


def check_shape(name: str, value: object, names: Sequence[Which]) -> int:
    """p or m, or ValueError where it is out of range, not that of an order of one's own, or a p that one of the schedules
    cannot have."""
    for order in (own := _own(names)):
        order.check(name, value)
    number = own[0].shape[name] if own else int(CONTROLS[name].check(name, value))
    reasons = (why_not_p(one, number) for one in names if name == "p")
    if reason := next(filter(None, reasons), ""):
        raise ValueError(f"p cannot be {number}: {reason}")
    return number


def check_name(value: object) -> str:
    """A key of SCHEDULES, or ValueError with those that there are."""
    if not isinstance(value, str) or value not in SCHEDULES:
        raise ValueError(f"there is no schedule {said(value)}: the names are {', '.join(SCHEDULES)}")
    return value


def check_stage(value: object, p: int) -> int | None:
    """The slow stage: None, or the rank that holds it. Where a rank holds several stages, all of them are slow."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < p):
        return value
    ranks = "is rank 0 alone" if p == 1 else f"are ranks 0 to {p - 1}"
    raise ValueError(f"slow_stage is None or the rank of the slow stage: with p={p} there {ranks}, got {said(value)}")


def words(all_settings: Sequence[Settings]) -> str:
    """What a prediction of these schedules, at the same costs, rests on.

    >>> words([Settings("1f1b", 4, 8, ratio=2, slow_stage=1, slow_factor=2)])
    'F=1 B=2, rank 1 takes 2 times as long'
    >>> words([Settings("zb_v", 4, 8, ratio=2)])
    'F=1 B=2 (I=1 W=1) for 1/4 of the model; a stage of ZB-V is 1/8'
    """
    one = all_settings[0]
    smaller = [s for s in all_settings if s.size != 1]
    size = f" for 1/{one.p} of the model" if one.p > 1 else " for the model"
    share = next((s.w_share for s in all_settings if "w_share" in s.features.controls), None)
    halves = "" if share is None else f" (I={(1 - share) * one.ratio:.3g} W={share * one.ratio:.3g})"
    said = [f"F=1 B={one.ratio:g}{halves}{size if smaller else ''}"]
    said += [f"F&B={s.overlap * (1 + one.ratio):.3g}" for s in all_settings if s.overlap != 1][:1]
    if one.slow_stage is not None and one.slow_factor != 1:
        said.append(f"rank {one.slow_stage} takes {one.slow_factor:g} times as long")
    if one.transfer:
        said.append(f"transfer {one.transfer:g}")
    parts = [f"a stage of {s.features.name} is 1/{s.built().chain_length}" for s in smaller]
    return "; ".join([", ".join(said), *parts])


@lru_cache(maxsize=16)
def _built(build: Build, p: int, m: int, v: int) -> Schedule:
    more = {"v": v} if takes_v(build) else {}
    return build(p=p, m=m, **more)


@lru_cache(maxsize=16)
def _predicted(settings: Settings, build: Build) -> Timeline:
    return simulate(settings.built(), settings.costs())
