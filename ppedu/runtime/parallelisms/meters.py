"""What one rank keeps, computes and sends, measured where it happens: below every kind of parallelism."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_TCP_INFO = 11  # Linux: socket.TCP_INFO is not in every Python
_SENT, _RESENT = 200, 208  # where struct tcp_info (linux/tcp.h) has its 64-bit tcpi_bytes_sent and tcpi_bytes_retrans


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor: of a DTensor its own shard, of a tensor still on its way the tensor.

    >>> local(torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """
    for inside in ("_local_tensor", "elem"):  # DTensor, AsyncCollectiveTensor
        tensor = getattr(tensor, inside, tensor)
    return tensor


def size_in_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of this rank's parts of some tensors.

    >>> size_in_bytes([torch.ones(2, 3), None])
    24
    """
    return sum(local(t).numel() * t.element_size() for t in tensors if t is not None)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """What an optimizer remembers of each parameter: AdamW two tensors of its size. Its counts of steps are left out."""
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor) and value.ndim)


class Flops(TorchDispatchMode):
    """Counts the floating-point operations of matrix products, two for a multiplication with its addition.

    It stands below DTensor: for one it declines, and then sees the operations on the shard that DTensor makes of it.
    (`torch.utils.flop_counter.FlopCounterMode` stands above, and counts what the whole tensors would take.)

    >>> with Flops() as flops:
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 5)
    >>> flops.count
    60
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "_local_tensor") or kind.__name__ == "DTensor" for kind in types):
            return NotImplemented
        self.count += _flops_of(func.overloadpacket, args)
        return func(*args, **(kwargs or {}))


def _flops_of(operation: Any, args: Any) -> int:
    aten = torch.ops.aten
    if operation in (aten.mm, aten.bmm):
        return 2 * args[0].numel() * args[1].shape[-1]
    if operation in (aten.addmm, aten.baddbmm):
        return 2 * args[1].numel() * args[2].shape[-1]
    if operation is aten._scaled_dot_product_flash_attention_for_cpu:  # scores, and the mixture of values
        query, key = args[:2]
        return 4 * query.numel() * key.shape[-2]
    if operation is aten._scaled_dot_product_flash_attention_for_cpu_backward:  # the scores again, and four gradients
        query, key = args[1:3]
        return 10 * query.numel() * key.shape[-2]
    return 0


def sent_bytes() -> int | None:
    """Bytes that this process has sent over TCP so far, over all its open sockets, as Linux counts them. None elsewhere.

    >>> sent_bytes() is None or sent_bytes() >= 0
    True
    """
    if sys.platform != "linux":
        return None
    total = 0
    for name in os.listdir("/proc/self/fd"):
        sent = _sent_through(int(name))
        if sent is None:
            return None
        total += sent
    return total


def _sent_through(descriptor: int) -> int | None:
    """0 for what is no TCP connection; None where the kernel does not count (before Linux 4.19)."""
    try:
        copy = os.dup(descriptor)
    except OSError:  # the listing itself, closed by now
        return 0
    try:
        connection = socket.socket(fileno=copy)
    except OSError:  # no socket
        os.close(copy)
        return 0
    with connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
            return 0
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _RESENT + 8)
        except OSError:
            return None
    if len(info) < _RESENT + 8:
        return None
    sent, resent = struct.unpack_from("=QQ", info, _SENT)
    return int(sent - resent)


class Usage:
    """What the layers of a model use as they run: the bytes of the weights that they compute with, each time they run
    forward, and those of the activations that autograd saves for their backward (weights and the batch left out, each
    storage once)."""

    def __init__(self, model: nn.Module, batch: Iterable[Tensor]) -> None:
        self.weight_bytes = self.activation_bytes = 0
        self._batch = {_storage(t) for t in batch}
        self._here: set[int] = set()  # the weights of the layer that runs
        self._kept: dict[int, Tensor] = {}  # held, so that no address is used again meanwhile
        for layer in model.modules():
            if next(layer.parameters(recurse=False), None) is not None:
                layer.register_forward_pre_hook(self._enter)

    def _enter(self, layer: nn.Module, _: Any) -> None:
        weights = list(layer.parameters(recurse=False))
        self.weight_bytes += size_in_bytes(weights)
        self._here = {_storage(w) for w in weights}

    def _save(self, tensor: Tensor) -> Tensor:
        key = _storage(tensor)
        if key not in self._here and key not in self._batch and key not in self._kept:
            self._kept[key] = local(tensor)
            self.activation_bytes += local(tensor).untyped_storage().nbytes()
        return tensor

    @contextmanager
    def watch_forward(self) -> Iterator[None]:
        """Count while a forward runs; what was counted before is forgotten."""
        self.weight_bytes = self.activation_bytes = 0
        self._kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor):
            yield
        self._kept.clear()


def _storage(tensor: Tensor) -> int:
    return local(tensor).untyped_storage().data_ptr()
