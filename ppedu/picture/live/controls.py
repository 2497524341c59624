"""The controls that the explorers have in common, as traitlets that cannot be set to what makes no sense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import traitlets
from traitlets import Int, List

from ppedu.picture.live.real_run import why_not_real
from ppedu.picture.live.settings import (
    OWN,
    RANGES,
    Settings,
    Which,
    check_microbatches,
    check_ranks,
    check_stage,
    features,
    nearest_m,
    ranks_of,
)
from ppedu.picture.live.widget import Check, View
from ppedu.schedules import SCHEDULES


def _ranged(name: str) -> Check:
    return lambda view, value: RANGES[name].check(name, value)


_FREE = ("v", "ratio", "w_share", "overlap", "transfer", "slow_factor")
"""Controls whose values depend on no other control."""


class LiveView(View):
    """What the explorers have in common: the settings of settings.py as traits."""

    # of any type: CHECKS says what is wrong with a value in a sentence, where a typed trait would say it in traitlets' words
    p = traitlets.Any(4).tag(sync=True)
    m = traitlets.Any(8).tag(sync=True)
    v = traitlets.Any(2).tag(sync=True)
    ratio = traitlets.Any(1.0).tag(sync=True)
    w_share = traitlets.Any(0.5).tag(sync=True)
    overlap = traitlets.Any(1.0).tag(sync=True)
    transfer = traitlets.Any(0.0).tag(sync=True)
    slow_stage = traitlets.Any(None, allow_none=True).tag(sync=True)
    slow_factor = traitlets.Any(2.0).tag(sync=True)
    ranks: List[int] = List(Int()).tag(sync=True)
    """The p that can be chosen."""

    CHECKS: dict[str, Check] = {  # noqa: RUF012 - a table of the class
        **{name: _ranged(name) for name in _FREE},
        "p": lambda view, value: check_ranks(value, view._names()),
        "m": lambda view, value: check_microbatches(value, view._names()),
        "slow_stage": lambda view, value: check_stage(value, view.p),
    }
    FIRST: dict[str, Check] = {  # noqa: RUF012 - a table of the class
        "p": _ranged("p"),
        "m": _ranged("m"),
        "slow_stage": lambda view, value: value,
    }

    @traitlets.validate("p", "m", "slow_stage", *_FREE)
    def _validate_setting(self, proposal: Any) -> Any:
        return self._validate(proposal)

    def _names(self) -> Sequence[Which]:
        """The schedules that are shown."""
        raise NotImplementedError

    def _choices(self) -> dict[str, Which]:
        """The schedules that can be shown, by the names that the page and the traits have for them."""
        return {name: name for name in SCHEDULES}

    def _settings(self) -> tuple[Settings, ...]:
        """The position of the controls, one for each schedule."""
        rest = (self.p, self.m, self.ratio, self.transfer, self.slow_stage, self.slow_factor)
        return tuple(Settings(name, *rest, self.v, self.w_share, self.overlap) for name in self._names())

    def _fixed(self) -> dict[str, Any]:
        ranges = {name: {"low": r.low, "high": r.high, "step": r.step} for name, r in RANGES.items()}
        known = {key: features(which) for key, which in self._choices().items()}
        return {
            **super()._fixed(),
            "overlay": "measured",
            "ranges": ranges,
            "names": {key: one.name for key, one in known.items()},
            "own": {name: sorted(key for key, one in known.items() if name in one.controls) for name in OWN},
            "several": sorted(key for key, one in known.items() if one.several),
        }

    def _follow(self) -> None:
        possible = ranks_of(self._names())
        if self.ranks != possible:
            self.ranks = possible
        if self.p not in possible:  # a schedule was chosen that cannot have so many ranks
            self.p = min(possible, key=lambda p: (abs(p - self.p), -p))
        self.m = nearest_m(self.m, self._names())
        if self.slow_stage is not None and self.slow_stage >= self.p:
            self.slow_stage = self.p - 1  # the slow stage follows p

    def _why_not_real(self) -> str:
        return next(filter(None, (why_not_real(one.built()[0]) for one in self._settings())), "")
