"""What an order is looked for: the steps of a microbatch, what they need and take, and what each rank may keep.

Letters: p ranks, m microbatches; F forward, B full backward, I and W its halves (input's and weights' gradient).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ppedu.core.checks import is_whole, whole
from ppedu.core.costs import Costs
from ppedu.core.format import counted
from ppedu.core.operations import Action, B, F, I, Kind, W
from ppedu.core.schedule import Schedule, needs

Step: TypeAlias = tuple[int, Kind]
"""(stage, kind): what is done once with every microbatch."""

MemoryLimit: TypeAlias = int | Sequence[int] | None


@dataclass(frozen=True, slots=True)
class Problem:
    """One chain of stages on p ranks, and m equal microbatches that pass through it.

    limits: the most that each rank may have in flight, or None. split: every backward is an I and a W, not a B.
    """

    m: int
    costs: Costs
    rank_of_stage: tuple[int, ...]
    split: bool
    limits: tuple[int, ...] | None

    @property
    def p(self) -> int:
        return 1 + max(self.rank_of_stage)

    @property
    def frees(self) -> Kind:
        """The kind after which an activation is no longer kept."""
        return W if self.split else B

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every step of one microbatch, each one after all that it needs."""
        down = range(len(self.rank_of_stage))
        backward = (I, W) if self.split else (B,)
        return (*((s, F) for s in down), *((s, kind) for s in reversed(down) for kind in backward))

    @property
    def shape(self) -> Schedule:
        """A schedule without its orders: what the rules of dependency ask for."""
        return Schedule("optimized", self.m, self.rank_of_stage, ((),) * self.p)

    def duration(self, step: Step) -> float:
        stage, kind = step
        return self.costs.duration(Action(stage, kind, 0))

    def with_times(self, times: Mapping[Step, float], transfer: float) -> Problem:
        """The same problem where steps and messages take as long as this."""
        stages = range(len(self.rank_of_stage))
        f, b, i, w = ([times.get((stage, kind), 0.0) for stage in stages] for kind in (F, B, I, W))
        halves = Costs(f, None, i, w, transfer=transfer)
        return replace(self, costs=halves if self.split else Costs(f, b, transfer=transfer))

    def links(self) -> dict[Step, tuple[tuple[Step, float], ...]]:
        """For each step those that it needs, and how long each result travels."""
        found: dict[Step, tuple[tuple[Step, float], ...]] = {}
        for step in self.steps:
            # where a stage may need another's B or I, only one of the two is ever run here
            needed = [(s, next(k for k in kinds if (s, k) in found)) for s, kinds in needs(*step, self.shape)]
            found[step] = tuple((other, self._travels(other[0], step[0])) for other in needed)
        return found

    def _travels(self, source: int, target: int) -> float:
        return 0.0 if self.rank_of_stage[source] == self.rank_of_stage[target] else float(self.costs.transfer)


def problem(p: Any, m: Any, costs: Any, memory_limit: Any, split_backward: Any, rank_of_stage: Any) -> Problem:
    """What was asked, checked. Raises TypeError or ValueError with the rule, the number and the remedy."""
    p, m = whole("p", p), whole("m", m)
    if not isinstance(costs, Costs):
        raise TypeError(f"costs is ppedu.Costs(forward=..., backward=...) or a timeline's costs(): costs={costs!r:.80}")
    if not isinstance(split_backward, bool):
        raise TypeError(f"split_backward is True (I and W) or False (B): split_backward={split_backward!r:.80}")
    placement = _placement(p, rank_of_stage)
    costs.check(Schedule("the order to be found", m, placement, ((),) * p))
    return Problem(m, costs, placement, split_backward, _limits(p, memory_limit, placement))


def _placement(p: int, given: Any) -> tuple[int, ...]:
    if given is None:
        return tuple(range(p))
    if not isinstance(given, Sequence) or isinstance(given, str) or not all(map(is_whole, given)):
        raise TypeError(f"rank_of_stage holds a rank for each stage, like (0, 1, 1, 0): rank_of_stage={given!r:.80}")
    if set(given) != set(range(p)):
        raise ValueError(
            f"each of the ranks 0 to {p - 1} holds a stage, and no other rank does: rank_of_stage={tuple(given)} with p={p}"
        )
    return tuple(map(int, given))


def _limits(p: int, given: Any, placement: tuple[int, ...]) -> tuple[int, ...] | None:
    """One limit a rank. A microbatch goes forward through all stages of a rank before it comes back to any of them."""
    if given is None:
        return None
    limits = (given,) * p if is_whole(given) else given
    if not isinstance(limits, Sequence) or isinstance(limits, str) or not all(map(is_whole, limits)):
        raise TypeError(
            "memory_limit is the most stage-microbatches that a rank may have in flight, a whole number for all ranks, "
            f"or one a rank, or None: memory_limit={given!r:.80}"
        )
    if len(limits) != p:
        raise ValueError(f"memory_limit is one number, or one a rank: {len(limits)} numbers for p={p} ranks")
    least = tuple(map(placement.count, range(p)))
    low = next((rank for rank in range(p) if limits[rank] < least[rank]), None)
    if low is not None:
        works = str(max(least)) if len(set(least)) == 1 else f"({', '.join(map(str, least))})"
        stages, keeps = counted(least[low], "stage"), counted(least[low], "activation")
        raise ValueError(
            f"a microbatch on its way through the {stages} of rank {low} keeps {keeps} there, but memory_limit allows "
            f"{limits[low]}. The least that works is memory_limit={works}"
        )
    return tuple(map(int, limits))
