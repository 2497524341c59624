"""From a model to one rank's part of it: what PyTorch is asked to do under DDP, ZeRO-3 and tensor parallelism."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


def as_it_is(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """One device: the model itself."""
    return model


def with_ddp(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Every rank has the model. After the backward their gradients are averaged (an all-reduce)."""
    # the buckets that travel are the gradients: without this there would be a second copy of them
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def with_zero3(model: nn.Sequential, mesh: DeviceMesh) -> nn.Module:
    """Every rank keeps a part of every weight. Layer by layer, the whole weights are gathered when they are needed and
    dropped again; gradients are summed and scattered back."""
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def with_tp(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Every rank has some heads of each attention and some columns of each MLP; the rest of the model is repeated."""
    for block in blocks_of(model):
        block.attention = _SomeHeads(block.attention, mesh.size())
        parallelize_module(
            block,
            mesh,
            {
                "attention.query_key_value": ColwiseParallel(),
                "attention.out": RowwiseParallel(),
                "mlp.0": ColwiseParallel(),
                "mlp.2": RowwiseParallel(),
            },
        )
    return model


def blocks_of(model: nn.Module) -> list[Any]:
    """The Transformer blocks of a ByteGPT, wherever they stand in it."""
    return [m for m in model.modules() if hasattr(m, "attention") and hasattr(m, "mlp")]


class _SomeHeads(nn.Module):
    """One rank's heads of a `ppedu.course.models.Attention`; its layers are sharded after this is made.

    Its fused weight has the rows of all queries, then of all keys, then of all values. Cut into p equal parts, the first
    rank would get queries alone. So the rows are sorted by rank first: its queries, its keys, its values.
    """

    def __init__(self, attention: Any, p: int) -> None:
        super().__init__()
        self.query_key_value, self.out = attention.query_key_value, attention.out
        self.heads, self.head_width = attention.heads // p, self.out.in_features // attention.heads
        with torch.no_grad():
            for rows in self.query_key_value.parameters():
                rows.copy_(by_rank(rows, p))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        split = self.query_key_value(x).view(batch, length, 3, self.heads, self.head_width)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        gathered = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed: Tensor = self.out(gathered.transpose(1, 2).reshape(batch, length, -1))
        return mixed


def by_rank(rows: Tensor, p: int) -> Tensor:
    """Rows of queries, keys and values, sorted by kind, sorted by rank instead.

    >>> by_rank(torch.arange(12), p=2).tolist()
    [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]
    """
    sorted_rows: Tensor = rows.unflatten(0, (3, p, -1)).transpose(0, 1).flatten(0, 2)
    return sorted_rows


def by_kind(rows: Tensor, p: int) -> Tensor:
    """Undo `by_rank`.

    >>> by_kind(by_rank(torch.arange(12), p=2), p=2).tolist() == list(range(12))
    True
    """
    sorted_rows: Tensor = rows.unflatten(0, (p, 3, -1)).transpose(0, 1).flatten(0, 2)
    return sorted_rows
