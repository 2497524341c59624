"""The controls that the explorers have in common, as traitlets that cannot be set to what makes no sense."""

from __future__ import annotations

from typing import Any

import traitlets
from traitlets import Float, Int

from ppedu.explore.settings import NAMES, RANGES, check_stage
from ppedu.explore.widget import Check, View


def _ranged(name: str) -> Check:
    return lambda view, value: RANGES[name].check(name, value)


class LiveView(View):
    """What the explorers have in common: the settings of settings.py as traits."""

    p = Int(4).tag(sync=True)
    m = Int(8).tag(sync=True)
    ratio = Float(1.0).tag(sync=True)
    transfer = Float(0.0).tag(sync=True)
    slow_stage = Int(None, allow_none=True).tag(sync=True)
    slow_factor = Float(2.0).tag(sync=True)

    CHECKS: dict[str, Check] = {  # noqa: RUF012 - a table of the class
        **{name: _ranged(name) for name in ("p", "m", "ratio", "transfer", "slow_factor")},
        "slow_stage": lambda view, value: check_stage(value, view.p),
    }

    @traitlets.validate("p", "m", "ratio", "transfer", "slow_factor", "slow_stage")
    def _validate_setting(self, proposal: Any) -> Any:
        return self._validate(proposal)

    def _fixed(self) -> dict[str, Any]:
        ranges = {name: {"low": r.low, "high": r.high, "step": r.step} for name, r in RANGES.items()}
        return {**super()._fixed(), "ranges": ranges, "names": NAMES}

    def _follow(self) -> None:
        if self.slow_stage is not None and self.slow_stage >= self.p:
            self.slow_stage = self.p - 1  # the slow stage follows p

    def _ranks(self) -> int:
        return self.p
