"""Split a backward in two: I computes the input's gradient and leaves in a queue what W needs for the weights'.

Layers do not know of this. While a stage runs, a `Router` stands in for torch.nn.functional's linear and embedding. It lets
torch compute with weights that ask for no gradient, so that torch's own backward is I, and a hook hears what W needs; where
there is nothing to hear, an autograd Function of ours does the same. Only weight matrices wait for W. The gradients of
vectors (biases, the scales of norms) come in I: there the layer's gradient is in cache, so that a sum over it costs next to
nothing, and nothing more has to be kept for them. Megatron-LM's zero bubble does the same. Matrices of other layers come in
I, too: see `Stage.unsplit`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class WeightQueue:
    """What one microbatch's W needs: filled while I runs, emptied by `run`."""

    __slots__ = ("filling", "pending")

    def __init__(self) -> None:
        self.filling = False
        self.pending: deque[tuple[Any, tuple[Any, ...]]] = deque()  # (layer below, what its `add` takes)

    @contextmanager
    def filled(self) -> Iterator[None]:
        """While this is open, layers that can be split leave their weights' half here instead of computing it."""
        self.filling = True
        try:
            yield
        finally:
            self.filling = False

    def tensors(self) -> Iterator[Tensor]:
        """What stays in memory until W: inputs, and gradients of outputs."""
        return (
            t for _, kept in self.pending for t in kept if isinstance(t, Tensor) and not isinstance(t, nn.Parameter)
        )

    @torch.no_grad()
    def run(self) -> None:
        """W: add the gradients to the weights'."""
        while self.pending:
            layer, kept = self.pending.popleft()
            layer.add(*kept)


_linear: Callable[..., Tensor] = F.linear
_embedding: Callable[..., Tensor] = F.embedding


class _Linear(torch.autograd.Function):
    """Saves what torch's own saves, and computes what it computes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, queue: WeightQueue) -> Tensor:
        ctx.queue, ctx.weight = queue, weight
        ctx.save_for_backward(x, weight)
        return _linear(x, weight, bias).detach()  # no view, so that the next layer may work in place

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        for_x, _, for_bias, _ = ctx.needs_input_grad
        rows = gradient.reshape(-1, gradient.shape[-1])
        back = _times(gradient, weight, x) if for_x else None
        vector = rows.sum(0) if for_bias else None
        if not ctx.queue.filling:
            return back, rows.t().mm(x.reshape(-1, x.shape[-1])), vector, None
        ctx.queue.pending.append((_Linear, (ctx.weight, x.detach(), gradient)))  # without the input's own graph
        return back, None, vector, None

    @staticmethod
    def add(weight: nn.Parameter, x: Tensor, gradient: Tensor) -> None:
        """Product and sum in one pass over the weight's gradient: the product alone need not be written anywhere."""
        rows, x = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
        if weight.grad is None:
            weight.grad = rows.t().mm(x)
        else:
            weight.grad.addmm_(rows.t(), x)


def _times(gradient: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    """The input's gradient, by the operations that autograd takes: others would round otherwise."""
    if gradient.dim() > 2 and gradient.is_contiguous():
        return gradient.matmul(weight)  # what follows here, in one call
    rows = gradient.reshape(-1, weight.shape[0])
    if x.dim() == 2 and x.stride() == (1, x.shape[0]) and x.shape[0] > 1:
        return weight.t().mm(rows.t()).t()
    return rows.mm(weight).view(x.shape)


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, indices: Tensor, weight: Tensor, queue: WeightQueue, padding: int) -> Tensor:
        ctx.queue, ctx.weight, ctx.padding = queue, weight, padding
        ctx.save_for_backward(indices)
        return torch.embedding(weight, indices, padding)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (indices,) = ctx.saved_tensors
        kept = ctx.weight, indices, gradient, ctx.padding
        if ctx.queue.filling:
            ctx.queue.pending.append((_Embedding, kept))
            return None, None, None, None
        return None, _rows_of(*kept), None, None

    @staticmethod
    def add(weight: nn.Parameter, indices: Tensor, gradient: Tensor, padding: int) -> None:
        rows = _rows_of(weight, indices, gradient, padding)
        weight.grad = rows if weight.grad is None else weight.grad.add_(rows)


def _rows_of(weight: Tensor, indices: Tensor, gradient: Tensor, padding: int) -> Tensor:
    found: Tensor = torch.ops.aten.embedding_dense_backward.default(gradient, indices, weight.shape[0], padding, False)
    return found


class OwnGradientError(Exception):
    """A stage takes a gradient in its forward or loss: then what is computed with weights that ask for none misses them."""


def _listened(y: Tensor, queue: WeightQueue, weight: Tensor, x: Tensor) -> Tensor:
    """`y`, computed with a weight that asks for no gradient: torch's own backward is then the input's half alone, and a hook
    hears the gradient that W needs. It costs half of what a Function in Python does."""
    held, version = x.detach(), x._version

    def hear(gradient: Tensor) -> None:
        if not queue.filling:
            raise OwnGradientError
        if held._version != version:
            raise RuntimeError(spoilt(held, version))
        queue.pending.append((_Linear, (weight, held, gradient)))

    # A layer that works in place on a view gives it another history, but not what it is a view of.
    (y if y._base is None else y._base).register_hook(hear)
    return y


def spoilt(tensor: Tensor, version: int) -> str:
    """What torch says of a tensor that is needed for a backward, and was written over."""
    return (
        "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of "
        f"shape {tuple(tensor.shape)} is at version {tensor._version}, but was saved at version {version}. "
        "Take inplace=True out of the layer after the one that saved it"
    )


class Router:
    """Sends a stage's calls of linear and embedding through what can be split, with the queue of one microbatch.

    Entered for its forward, and for its backward as well, in which checkpointed layers run once more. (A TorchFunctionMode
    would look at every call of torch: at width 128 that made a forward 7 % slower.)

    splittable: the ids of the stage's weights that take part (`splittable`). Calls with others stay as they are.
    hold: told what is kept for the backward besides what autograd saves.
    """

    def __init__(self, queue: WeightQueue, splittable: Collection[int], hold: Callable[[Tensor], object] = id) -> None:
        self.queue, self.splittable, self.hold = queue, splittable, hold

    def __enter__(self) -> None:
        self.saving, self.forward = _saving(), not self.queue.filling
        _switch.on(self)

    def __exit__(self, *_: object) -> None:
        _switch.off(self)

    def linear(self, input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002 - torch's name
        if not self.takes(input, weight):
            return _linear(input, weight, bias)
        if input.requires_grad and torch.is_grad_enabled() and _saving() == self.saving and not self.queue.filling:
            self.hold(input)
            return _listened(_linear(input, weight.detach(), bias), self.queue, weight, input)
        return _apply(_Linear, input, weight, bias, self.queue)  # nothing to listen to, or checkpointed

    def embedding(
        self,
        input: Any,  # noqa: A002 - torch's name
        weight: Any,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Any:
        if max_norm is not None or scale_grad_by_freq or sparse or not self.takes(input, weight):
            return _embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
        return _apply(_Embedding, input, weight, self.queue, padding)

    def takes(self, x: Any, weight: Any) -> bool:
        """A plain tensor, a weight of this stage, nobody who listens to its gradient, no other mechanism around."""
        return (
            id(weight) in self.splittable
            and type(x) in (Tensor, nn.Parameter)
            and not weight._backward_hooks
            and not weight._post_accumulate_grad_hooks
            and not torch.is_autocast_enabled(x.device.type)
            and not torch._C._are_functorch_transforms_active()
            and not torch.compiler.is_compiling()
        )


class _Switch:
    """What stands in for torch's functions while any router is entered, in any thread: calls go to the router of their
    weight, if it has one. In the threads that compute a forward, taking a gradient is an OwnGradientError."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.entered = 0
        self.routers: dict[int, Router] = {}  # by the ids of their weights: a stage computes one microbatch at a time
        self.here = threading.local()
        self.before: tuple[Any, ...] = ()

    def on(self, router: Router) -> None:
        with self.lock:
            if not self.entered:
                self.before = F.linear, F.embedding, torch.autograd.grad, torch.autograd.backward
                self._put((self.linear, self.embedding, self.grad, self.backward))
            self.entered += 1
            self.routers.update(dict.fromkeys(router.splittable, router))
        if router.forward:
            self.here.forwards = getattr(self.here, "forwards", 0) + 1

    def off(self, router: Router) -> None:
        if router.forward:
            self.here.forwards -= 1
        with self.lock:
            for weight in router.splittable:
                self.routers.pop(weight, None)
            self.entered -= 1
            if not self.entered:
                self._put(self.before)

    def _put(self, functions: tuple[Any, ...]) -> None:
        autograd: Any = torch.autograd
        F.linear, F.embedding, autograd.grad, autograd.backward = functions

    def linear(self, input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002 - torch's name
        router = self.routers.get(id(weight))
        return self.before[0](input, weight, bias) if router is None else router.linear(input, weight, bias)

    def embedding(self, input: Any, weight: Any, *more: Any, **options: Any) -> Any:  # noqa: A002
        router = self.routers.get(id(weight))
        return (self.before[1] if router is None else router.embedding)(input, weight, *more, **options)

    def grad(self, *given: Any, **options: Any) -> Any:
        self._refuse()
        return self.before[2](*given, **options)

    def backward(self, *given: Any, **options: Any) -> Any:
        self._refuse()
        return self.before[3](*given, **options)

    def _refuse(self) -> None:
        if getattr(self.here, "forwards", 0):
            raise OwnGradientError


_switch = _Switch()


def splittable(module: nn.Module) -> set[int]:
    """The ids of the weights whose gradients can wait: leaves with a gradient, of ordinary numbers, all in one piece."""
    return {
        id(w)
        for w in module.parameters()
        if type(w) is nn.Parameter and w.requires_grad and w.is_floating_point() and w.layout is torch.strided
    }


def _saving() -> Any:
    """Who saves tensors for the backward in torch's place: torch.utils.checkpoint does, and saves none."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def _apply(layer: Any, *arguments: Any) -> Any:
    return layer.apply(*arguments)
