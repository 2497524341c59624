"""One stage's forward and backward of one microbatch, and what is in flight meanwhile, in counts and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ppedu.runtime.rank.weight_queue import WeightQueue

LossFn = Callable[[Any, Any], Tensor]


class _Enter(torch.autograd.Function):
    """Where a received tensor enters the stage's graph. It catches the tensor's gradient; and since the tensor is no leaf
    behind it, a first layer that works in place (ReLU(inplace=True)) is as welcome as in the unsplit model.

    What comes out shares memory and version with what came in, so that autograd still sees where such a layer spoils what
    the stage before it, on the same rank, has saved."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, received: Tensor, caught: list[Tensor]) -> Tensor:
        ctx.caught = caught
        return received.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        ctx.caught.append(gradient)
        return None, None, None


@dataclass(slots=True)
class InFlight:
    """What a microbatch leaves behind between its forward and its backward."""

    output: Tensor  # the root of the graph: the activation that was sent on, or the weighted loss
    like: dict[str, Any] | None  # size, dtype and device of the gradient that goes back; None on the first stage
    caught: list[Tensor]  # the input's gradient, once it is known

    def input_gradient(self) -> Tensor | None:
        """None on the first stage; zeros where nothing depends on the input, since the rank before waits in any case."""
        if self.like is None:
            return None
        return self.caught.pop() if self.caught else torch.zeros(**self.like)


class Stage:
    """A stage that computes microbatches: `forward`, then `backward`, or `backward_input` and `backward_weight`.

    The last stage ends in the loss, weighted by the microbatch's share of the batch, so that the gradients of all
    microbatches add up to those of the whole batch.

    unsplit: the matrices whose gradients came in I, because their layers cannot leave them for W. (Those of vectors,
        biases and the like, come in I on purpose: see weight_queue.py.)
    """

    def __init__(self, module: nn.Module, meter: Meter, *, first: bool, loss_fn: LossFn | None) -> None:
        self.module, self.meter, self.first, self.loss_fn = module, meter, first, loss_fn
        self.in_flight: dict[int, InFlight] = {}
        self.queues: dict[int, WeightQueue] = {}  # of microbatches between I and W
        self.weights = [w for w in module.parameters() if w.requires_grad]
        self.matrices = [w for w in self.weights if w.dim() > 1]
        self.unsplit: list[Tensor] = []
        meter.ignore((*module.parameters(), *module.buffers()))

    def forward(
        self, microbatch: int, inputs: Tensor, target: Any = None, share: float = 1.0, train: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """(what the next stage gets, the microbatch's mean loss on the last stage). Keeps the graph if `train`."""
        caught, loss = list[Tensor](), None
        like = None if self.first else {"size": inputs.shape, "dtype": inputs.dtype, "device": inputs.device}
        with self.meter.watch(self, microbatch) if train else torch.no_grad():
            if train and not self.first and (inputs.is_floating_point() or inputs.is_complex()):
                gate = torch.empty(0, requires_grad=True, device="cpu")
                inputs = _Enter.apply(gate, inputs, caught)  # type: ignore[no-untyped-call]
            output = self.module(inputs)
            if self.loss_fn is not None:
                loss = checked_loss(self.loss_fn, output, target)
                output = loss * share
        if not isinstance(output, Tensor):
            raise TypeError(f"a stage passes on one tensor, but this one returned {type(output).__name__}")
        if train:
            self.in_flight[microbatch] = InFlight(output, like, caught)
        return output.detach(), None if loss is None else loss.detach()

    def backward(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """B: add to the weights' gradients; return the gradient for the input (None on the first stage)."""
        kept = self.in_flight.pop(microbatch)
        if kept.output.requires_grad:
            kept.output.backward(gradient)
        self.meter.free(self, microbatch)
        return kept.input_gradient()

    def backward_input(self, microbatch: int, gradient: Tensor | None) -> Tensor | None:
        """I: the gradient for the input. Of what the forward kept, only what W needs stays."""
        kept = self.in_flight.pop(microbatch)
        queue = self.queues[microbatch] = WeightQueue()
        before = [(w.grad, None if w.grad is None else w.grad._version) for w in self.matrices]
        if kept.output.requires_grad:
            queue.backward_input(kept.output, gradient)
        for weight, (was, version) in zip(self.matrices, before, strict=True):
            touched = weight.grad is not was or (was is not None and was._version != version)
            if touched and not any(weight is w for w in self.unsplit):
                self.unsplit.append(weight)
        self.meter.free(self, microbatch)
        for tensor in queue.tensors():
            self.meter.add(self, microbatch, tensor)
        return kept.input_gradient()

    def backward_weight(self, microbatch: int) -> None:
        """W: the gradients for the weights that I left."""
        self.queues.pop(microbatch).run()
        self.meter.free(self, microbatch)


def checked_loss(loss_fn: LossFn, output: Any, target: Any) -> Tensor:
    """The loss of a microbatch. Raises ValueError where it is no number, or where nothing could be learnt from it."""
    loss = loss_fn(output, target)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"loss_fn returns the mean over the samples, a tensor of one number, but it returned {what}")
    if torch.is_grad_enabled() and isinstance(output, Tensor) and output.requires_grad and not loss.requires_grad:
        raise ValueError(
            "the loss has no gradient: loss_fn detached it from the outputs, and no weight would learn. "
            "Leave .item(), .detach(), torch.tensor(...) and torch.no_grad() out of loss_fn"
        )
    return loss


def _unspoilt(saved: tuple[Tensor, int]) -> Tensor:
    """What a layer saved, if no other has written over it since: torch looks itself, but not where there are hooks."""
    tensor, version = saved
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of "
            f"shape {tuple(tensor.shape)} is at version {tensor._version}, but was saved at version {version}. "
            "Take inplace=True out of the layer after the one that saved it"
        )
    return tensor


class Meter:
    """Bytes of activations that autograd saves for the backward passes in flight on one rank. From I to W what W's queue
    holds counts instead: the inputs of layers, and the gradients of their outputs.

    Saved-tensor hooks see each tensor; weights, buffers and the batch itself are left out, each storage counts once.
    The hooks cost time, so they are on while `active`.
    """

    def __init__(self) -> None:
        self.active = True
        self.now = self.peak = 0
        self._ignored: set[int] = set()
        self._holders: dict[int, int] = {}  # storage -> microbatches that hold it
        self._saved: dict[tuple[Stage, int], dict[int, int]] = {}  # (stage, microbatch) -> storage -> bytes

    def ignore(self, tensors: Iterable[Tensor]) -> None:
        """Leave out what is there in any case: weights, buffers, the batch itself."""
        self._ignored |= {t.untyped_storage().data_ptr() for t in tensors}

    def watch(self, stage: Stage, microbatch: int) -> Any:
        """A context in which saved tensors count for one microbatch."""
        return self._hooks(stage, microbatch) if self.active else nullcontext()

    @contextmanager
    def _hooks(self, stage: Stage, microbatch: int) -> Iterator[None]:
        def pack(tensor: Tensor) -> tuple[Tensor, int]:
            self.add(stage, microbatch, tensor)
            return tensor, tensor._version

        with torch.autograd.graph.saved_tensors_hooks(pack, _unspoilt):
            yield

    def add(self, stage: Stage, microbatch: int, tensor: Tensor) -> None:
        """Count a tensor that stays until the microbatch is freed."""
        if not self.active:
            return
        saved = self._saved.setdefault((stage, microbatch), {})
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key not in self._ignored and key not in saved:
            saved[key] = storage.nbytes()
            self._holders[key] = self._holders.get(key, 0) + 1
            if self._holders[key] == 1:
                self.now += saved[key]
                self.peak = max(self.peak, self.now)

    def free(self, stage: Stage, microbatch: int) -> None:
        for key, size in self._saved.pop((stage, microbatch), {}).items():
            self._holders[key] -= 1
            if not self._holders[key]:
                del self._holders[key]
                self.now -= size
