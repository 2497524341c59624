"""What operations took, as costs to predict with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import TypeVar

from ppedu.core.costs import Costs
from ppedu.core.operations import Action, Kind, Overlap
from ppedu.core.spans import Span


def median_costs(spans: Sequence[Span], num_stages: int, unit: str) -> Costs:
    """The median of each kind on each stage. Kinds that did not run at all are left at their defaults."""
    took = _medians(
        ((span.action.kind, span.action.stage), span.duration) for span in spans if isinstance(span.action, Action)
    )
    pairs = [(span.action, span.duration) for span in spans if isinstance(span.action, Overlap)]
    took = _medians(_told_by_pairs(pairs, took)) | took
    stages = range(num_stages)

    def of(kind: Kind) -> list[float] | None:
        ran = any((kind, stage) in took for stage in stages)
        return [_took(kind, stage, took) for stage in stages] if ran else None

    none = [0.0 for _ in stages]
    forward, backward, input_grad, weight_grad = of(Kind.F) or none, of(Kind.B), of(Kind.I), of(Kind.W)
    if input_grad is not None and weight_grad is None:
        weight_grad = none  # a run that was stopped before its first W
    together = _medians((pair.forward.stage, duration) for pair, duration in pairs)
    overlapped = [together.get(s, forward[s] + _took(Kind.B, s, took)) for s in stages] if pairs else None
    return Costs(forward, backward, input_grad, weight_grad, overlapped, unit=unit)


_Key = TypeVar("_Key")


def _medians(took: Iterable[tuple[_Key, float]]) -> dict[_Key, float]:
    found: dict[_Key, list[float]] = {}
    for key, duration in took:
        found.setdefault(key, []).append(duration)
    return {key: median(durations) for key, durations in found.items()}


def _told_by_pairs(
    pairs: Sequence[tuple[Overlap, float]], took: Mapping[tuple[Kind, int], float]
) -> Iterator[tuple[tuple[Kind, int], float]]:
    """What the halves of pairs took that never ran alone: the rest of the pair, or half of it where neither half did."""
    for pair, duration in pairs:
        for part, other in (pair.actions, pair.actions[::-1]):
            if not _took(part.kind, part.stage, took):
                rest = duration - _took(other.kind, other.stage, took)
                yield (part.kind, part.stage), duration / 2 if rest == duration else max(0.0, rest)


def _took(kind: Kind, stage: int, took: Mapping[tuple[Kind, int], float]) -> float:
    """What a kind took on a stage, or what the others there say of it: B is I and W, either of them half of B."""
    b, i, w = (took.get((one, stage)) for one in (Kind.B, Kind.I, Kind.W))
    if (kind, stage) in took:
        return took[kind, stage]
    if kind is Kind.B:
        return (i or 0.0) + (w or 0.0)
    other = w if kind is Kind.I else i
    if kind is Kind.F or b is None:
        return 0.0
    return b / 2 if other is None else max(0.0, b - other)
