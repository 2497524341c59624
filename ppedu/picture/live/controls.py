"""What the explorers have in common: the settings as traitlets that cannot be set to what makes no sense, and real runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import traitlets
from traitlets import Int, List

from ppedu.core.simulate import simulate
from ppedu.core.timeline import Timeline
from ppedu.picture.live.features import Order, Which, features
from ppedu.picture.live.real_run import PACE, Job, why_not_real
from ppedu.picture.live.settings import (
    CONTROLS,
    DEFAULTS,
    OWN,
    Settings,
    check_name,
    check_shape,
    check_stage,
    nearest_m,
    ranks_of,
    words,
)
from ppedu.picture.live.widget import Check, View
from ppedu.schedules import SCHEDULES

if TYPE_CHECKING:
    from ppedu.runtime.run import Run


def _ranged(name: str) -> Check:
    return lambda view, value: CONTROLS[name].check(name, value)


def _trait(name: str) -> Any:
    """Of any type: CHECKS says what is wrong with a value in a sentence, where a typed trait would say it in its own words."""
    return traitlets.Any(DEFAULTS[name], allow_none=True).tag(sync=True)


class LiveView(View):
    """The settings of settings.py as traits, for one schedule or for several, by their names in SCHEDULES.

    given: the schedules to begin with. A Schedule among them is known by its name with " (as given)", and fixes p and m.
    """

    p, m, v, ratio, w_share, overlap, transfer, slow_stage, slow_factor = map(_trait, DEFAULTS)
    ranks: List[int] = List(Int()).tag(sync=True)
    """The p that can be chosen."""

    CHECKS: dict[str, Check] = {  # noqa: RUF012 - a table of the class
        **View.CHECKS,
        **{name: _ranged(name) for name in CONTROLS},
        "p": lambda view, value: check_shape("p", value, view._which()),
        "m": lambda view, value: check_shape("m", value, view._which()),
        "slow_stage": lambda view, value: check_stage(value, view.p),
    }
    LATE = frozenset({"p", "m", "slow_stage"})

    def __init__(self, orders: Mapping[str, Order], **given: Any) -> None:
        self._orders = orders
        self._measured: dict[Settings, Timeline] = {}
        for order in orders.values():
            given = order.shape | given
        super().__init__(**given)

    @traitlets.validate(*DEFAULTS)
    def _validate_setting(self, proposal: Any) -> Any:
        return self._validate(proposal)

    # what subclasses fill in

    def _chosen(self) -> Sequence[str]:
        """The schedules that are shown, by name."""
        raise NotImplementedError

    def _say(self, settings: Sequence[Settings], fresh: bool) -> dict[str, Any]:
        """Set the traits that say what these settings come to; returns how their scene is drawn."""
        raise NotImplementedError

    # what follows from the controls

    def _which(self) -> tuple[Which, ...]:
        return tuple(self._orders.get(name, name) for name in self._chosen())

    def _check_name(self, value: object) -> str:
        return value if isinstance(value, str) and value in self._orders else check_name(value)

    def _settings(self) -> tuple[Settings, ...]:
        """The position of the controls, one for each schedule."""
        values = {name: getattr(self, name) for name in DEFAULTS}
        return tuple(Settings(which, **values) for which in self._which())

    def _fixed(self) -> dict[str, Any]:
        known = {name: features(self._orders.get(name, name)) for name in (*self._orders, *SCHEDULES)}
        return {
            **super()._fixed(),
            "overlay": "measured",
            "controls": {name: asdict(one) for name, one in CONTROLS.items()},
            "names": {name: name if name in self._orders else one.name for name, one in known.items()},
            "given": list(self._orders),
            "own": {name: sorted(key for key, one in known.items() if name in one.controls) for name in OWN},
            "several": sorted(key for key, one in known.items() if one.several),
        }

    def _follow(self) -> None:
        possible = ranks_of(self._which())
        if self.ranks != possible:
            self.ranks = possible
        if self.p not in possible:  # a schedule was chosen that cannot have so many ranks
            self.p = min(possible, key=lambda p: (abs(p - self.p), -p))
        self.m = nearest_m(self.m, self._which())
        if self.slow_stage is not None and self.slow_stage >= self.p:
            self.slow_stage = self.p - 1  # the slow stage follows p

    def _all_measured(self, settings: Sequence[Settings]) -> bool:
        return all(one in self._measured for one in settings)

    def _key(self) -> Any:
        settings = self._settings()
        return settings, self.overlay and self._all_measured(settings)

    @property
    def pairs(self) -> tuple[tuple[Timeline, ...], ...]:
        """What is drawn of each schedule: the predicted timeline, or this and the measured one, where all ran for real."""
        settings, overlaid, *_ = self._key()
        if not overlaid:
            return tuple((one.predicted(),) for one in settings)
        return tuple((simulate(*_paced(one)), self._measured[one]) for one in settings)

    def _compute(self, key: Any, fresh: bool) -> None:
        settings, overlaid, *_ = key
        self.measured = self._all_measured(settings)
        how = self._say(settings, fresh)
        transfer = settings[0].transfer * (PACE if overlaid else 1.0)
        how |= {"predicted": f"predicted, {words(settings)}", "label": "time (units of F)"}
        self._draw(self.pairs, transfer, **how)

    # the real run

    def _why_not_real(self) -> str:
        return why_not_real(self._train, [one.built() for one in self._settings()])

    def _jobs(self) -> list[Job]:
        return [_paced(one) for one in self._settings()]

    def _ran(self, key: Any, runs: Sequence[Run]) -> None:
        self._measured.update(zip(key[0], (run.timeline for run in runs), strict=True))
        if key[0] == self._settings():
            self.overlay = True
        self._shown = None  # there is more to show at the same settings
        self._refresh(fresh=False)


def _paced(settings: Settings) -> Job:
    """What a real run of these settings is, and what its prediction is of."""
    return settings.built(), settings.costs().scaled(PACE, "s")
