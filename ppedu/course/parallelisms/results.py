"""What was measured: a line for each rank, and a table with a line for each way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from torch import Tensor

from ppedu.core.format import table
from ppedu.core.timeline import Timeline


@dataclass(frozen=True, slots=True)
class RankShare:
    """What one rank keeps, computes and sends in one step.

    samples: of the batch, that it works on.
    parameter_bytes, gradient_bytes, optimizer_bytes (AdamW's two numbers a weight): kept here. activation_bytes: kept from forward to backward.
    used_bytes: of the weights that its forward computes with, wherever they are kept.
    flops: operations of its matrix products, forward and backward.
    sent_bytes: through its sockets; None where the system does not count them.
    needed_bytes: what the algorithm has to send, by the closed form.
    """

    samples: int
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    used_bytes: int
    flops: int
    sent_bytes: int | None
    needed_bytes: int = 0

    @property
    def kept_bytes(self) -> int:
        """Weights, gradients and the optimizer's memory."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes

    @property
    def flops_per_sample(self) -> float:
        return self.flops / self.samples


@dataclass(frozen=True, slots=True, repr=False)
class Way:
    """A model trained for a few steps in one way.

    ranks: measured in the last step. losses: of the whole batch, before each step's update.
    gradients: of the last step; weights: after it. Whole tensors, by the model's names.
    where: "measured: 4 CPU processes on 2 cores". timeline: of the last step, where ranks run different operations.
    """

    name: str
    ranks: tuple[RankShare, ...]
    losses: tuple[float, ...]
    gradients: dict[str, Tensor] = field(compare=False)
    weights: dict[str, Tensor] = field(compare=False)
    where: str
    timeline: Timeline | None = None

    def difference(self, other: Way) -> float:
        """The largest difference between two ways' gradients, in parts of the largest number of its tensor.

        Raises ValueError where they trained models whose weights have other names.
        """
        if only := sorted(self.gradients.keys() ^ other.gradients.keys()):
            raise ValueError(
                f"these are two models: one of them alone has a weight {only[0]!r}, and {len(only) - 1} more"
            )
        pairs = [(self.gradients[name], gradient) for name, gradient in other.gradients.items()]
        return max((float((a - b).abs().max() / b.abs().max()) for a, b in pairs if b.any()), default=0.0)

    def __repr__(self) -> str:
        rows = [(str(rank), *(column.of(share) for column in _RANK)) for rank, share in enumerate(self.ranks)]
        return "\n".join([f"{self.name} ({self.where})", *_table("rank", _RANK, rows)])


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Ways to train one model on several ranks, beside the training of it on one device."""

    one_device: Way
    ways: tuple[Way, ...]

    def __repr__(self) -> str:
        (whole,) = self.one_device.ranks
        rows = []
        for way in (self.one_device, *self.ways):
            cells = [[column.of(share, whole) for share in way.ranks] for column in _SHARES]
            rows.append((way.name, *map(_span, cells)))
        full = f"{whole.parameter_bytes / 1e6:.2f} MB of weights, {whole.flops_per_sample / 1e6:,.0f} MFLOP a sample"
        return "\n".join([*_table("each rank", _SHARES, rows), f"100 %: {full} ({self.ways[0].where})"])


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a table: under which heading it stands, its title, and its text for one rank."""

    heading: str
    title: str
    of: Callable[..., str]


def _mb(number: float | None) -> str:
    return "-" if number is None else f"{number / 1e6:.2f}"


def _part(number: float, whole: float) -> str:
    return f"{100 * number / whole:.0f}"


_RANK = (
    _Column("keeps, MB", "weights", lambda r: _mb(r.parameter_bytes)),
    _Column("keeps, MB", "gradients", lambda r: _mb(r.gradient_bytes)),
    _Column("keeps, MB", "AdamW", lambda r: _mb(r.optimizer_bytes)),
    _Column("keeps, MB", "activations", lambda r: _mb(r.activation_bytes)),
    _Column("computes", "samples", lambda r: str(r.samples)),
    _Column("computes", "weights", lambda r: _mb(r.used_bytes)),
    _Column("computes", "MFLOP", lambda r: f"{r.flops / 1e6:,.0f}"),
    _Column("sends, MB", "needed", lambda r: _mb(r.needed_bytes)),
    _Column("sends, MB", "measured", lambda r: _mb(r.sent_bytes)),
)
_SHARES = (
    _Column("keeps, %", "weights", lambda r, whole: _part(r.parameter_bytes, whole.parameter_bytes)),
    _Column("keeps, %", "gradients", lambda r, whole: _part(r.gradient_bytes, whole.gradient_bytes)),
    _Column("keeps, %", "AdamW", lambda r, whole: _part(r.optimizer_bytes, whole.optimizer_bytes)),
    _Column("works on", "samples", lambda r, whole: str(r.samples)),
    _Column("on a sample, %", "weights", lambda r, whole: _part(r.used_bytes, whole.used_bytes)),
    _Column("on a sample, %", "FLOPs", lambda r, whole: _part(r.flops_per_sample, whole.flops_per_sample)),
    _Column("sends, MB", "needed", lambda r, whole: _mb(r.needed_bytes)),
    _Column("sends, MB", "measured", lambda r, whole: _mb(r.sent_bytes)),
)


def _span(cells: Sequence[str]) -> str:
    """One text for all ranks: "25", or "24-27" where they differ."""
    ordered = sorted(set(cells), key=lambda cell: float(cell.replace("-", "nan")))
    return ordered[0] if len(ordered) == 1 else f"{ordered[0]}-{ordered[-1]}"


def _table(first: str, columns: Sequence[_Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of text, narrow enough for a slide: headings over titles over rows. Numbers stand to the right."""
    names, *cells = zip((first, *(c.title for c in columns)), *rows, strict=True)
    blocks = [_block("", [names], "<")]
    for heading, group in groupby(zip(columns, cells, strict=True), key=lambda pair: pair[0].heading):
        blocks.append(_block(heading, [texts for _, texts in group], ">"))
    return ["   ".join(parts).rstrip() for parts in zip(*blocks, strict=True)]


def _block(heading: str, columns: Sequence[Sequence[str]], align: str) -> list[str]:
    """The columns under one heading, as lines of one length."""
    lines = [heading, *table(zip(*columns, strict=True), align, " ")]
    return [line.ljust(max(map(len, lines))) for line in lines]
