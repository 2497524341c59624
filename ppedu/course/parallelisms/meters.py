"""What one rank keeps, computes with and sends, measured where it happens: below every kind of parallelism."""

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
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

_TCP_INFO = 11  # Linux: not every Python has socket.TCP_INFO
_SENT, _SENT_AGAIN = 200, 208  # where struct tcp_info (linux/tcp.h) has tcpi_bytes_sent and tcpi_bytes_retrans


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor: of a DTensor its shard, anything else as it is.

    >>> local(torch.ones(2, 3)).shape
    torch.Size([2, 3])
    """
    if isinstance(tensor, DTensor):
        tensor = tensor._local_tensor
    return getattr(tensor, "elem", tensor)  # an AsyncCollectiveTensor holds one that is on its way


def size_in_bytes(tensors: Iterable[Tensor | None]) -> int:
    """Bytes of this rank's parts of some tensors.

    >>> size_in_bytes([torch.ones(2, 3), None])
    24
    """
    return sum(local(t).numel() * t.element_size() for t in tensors if t is not None)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """What an optimizer remembers of each weight: AdamW two tensors of its size. Its counts of steps are left out."""
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor) and value.ndim)


class Flops(TorchDispatchMode):
    """Counts the floating-point operations of matrix products: two for a multiplication with its addition.

    It stands below DTensor: it declines those, and then sees what is done with the shards inside them.
    (`torch.utils.flop_counter.FlopCounterMode` stands above, and counts what the whole tensors would take.)

    >>> with Flops() as flops:
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 5)
    >>> flops.count
    60
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if not any(issubclass(kind, FakeTensor) for kind in types):  # DTensor tries the whole shape on one of these
            self.count += _flops_of(func.overloadpacket, args)
        return func(*args, **(kwargs or {}))


def _flops_of(operation: Any, args: Any) -> int:
    aten = torch.ops.aten
    if operation in (aten.mm, aten.bmm):
        return int(2 * args[0].numel() * args[1].shape[-1])
    if operation in (aten.addmm, aten.baddbmm):
        return int(2 * args[1].numel() * args[2].shape[-1])
    if operation is aten._scaled_dot_product_flash_attention_for_cpu:  # the scores, and the mixture of values
        query, key = args[:2]
        return int(4 * query.numel() * key.shape[-2])
    if operation is aten._scaled_dot_product_flash_attention_for_cpu_backward:  # the scores again, and four gradients
        query, key = args[1:3]
        return int(10 * query.numel() * key.shape[-2])
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
    except OSError:  # the listing's own, closed by now
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
            info = connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SENT_AGAIN + 8)
        except OSError:
            return None
    if len(info) < _SENT_AGAIN + 8:
        return None
    sent, again = struct.unpack_from("=QQ", info, _SENT)
    return int(sent - again)


class Usage:
    """What the layers of a model use in a forward: the bytes of the weights that they compute with, and those of the
    activations that autograd saves for the backward (weights and the batch left out, each storage once).

    >>> layer = nn.Linear(4, 8)
    >>> usage = Usage(layer)
    >>> with usage.watch_forward():
    ...     _ = layer(torch.ones(2, 4)).exp()  # keeps its input, of 32 bytes, and exp's result, of 64
    >>> usage.weight_bytes, usage.activation_bytes
    (160, 96)
    """

    def __init__(self, model: nn.Module, batch: Iterable[Tensor] = ()) -> None:
        self.activation_bytes = 0
        self._batch = {_storage(t) for t in batch}
        self._used: dict[nn.Module, int] = {}  # layer -> bytes of its weights, at the time when it ran
        self._here: set[int] = set()  # the weights of the layer that runs
        self._kept: dict[int, Tensor] = {}  # held, so that no address serves twice
        for layer in model.modules():
            if next(layer.parameters(recurse=False), None) is not None:
                layer.register_forward_pre_hook(self._enter)
                layer.register_forward_hook(self._leave)

    @property
    def weight_bytes(self) -> int:
        return sum(self._used.values())

    def _enter(self, layer: nn.Module, _: Any) -> None:
        weights = list(layer.parameters(recurse=False))
        self._used[layer] = size_in_bytes(weights)
        self._here = {_storage(w) for w in weights}

    def _leave(self, *_: Any) -> None:
        self._here = set()  # ZeRO-3 may drop these weights now, and an activation take their place in memory

    def _save(self, tensor: Tensor) -> Tensor:
        key = _storage(tensor)
        if key not in self._here and key not in self._batch and key not in self._kept:
            self._kept[key] = local(tensor)
            self.activation_bytes += local(tensor).untyped_storage().nbytes()
        return tensor

    @contextmanager
    def watch_forward(self) -> Iterator[None]:
        """Count the activations of one forward; those of an earlier one are forgotten."""
        self.activation_bytes = 0
        with torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor):
            yield
        self._kept.clear()


def _storage(tensor: Tensor) -> int:
    return local(tensor).untyped_storage().data_ptr()
