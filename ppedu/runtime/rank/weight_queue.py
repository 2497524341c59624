"""Split a backward in two: I computes the input's gradient and leaves in a queue what W needs for the weights'.

Neither layers nor torch know of this. autograd computes no more than it is asked for: I asks for all gradients but those of
the weight matrices that a product or an embedding uses, and hears at these nodes of the graph what comes in from above. That
and the input that the node has saved are what W needs. Only matrices wait for W. The gradients of vectors (biases, the scales
of norms) come in I: there the layer's gradient is in cache, so that a sum over it costs next to nothing, and nothing more has
to be kept for them. Megatron-LM's zero bubble does the same. Matrices of other layers come in I, too: see `Stage.unsplit`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Node: TypeAlias = Any  # of autograd's graph: torch has no types for what the several kinds of them save
Add: TypeAlias = Callable[[Tensor, Tensor], None]
"""(what the node saved, the gradient that came in): adds to a weight's gradient."""


@dataclass(frozen=True, slots=True)
class Use:
    """A node of the graph that can leave a weight's gradient for W. saved: the attribute with what it saved."""

    node: Node
    weight: Tensor
    saved: str
    add: Add


class WeightQueue:
    """What one microbatch's W needs: filled by `backward_input`, emptied by `run`."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: deque[tuple[Add, Tensor, Tensor]] = deque()

    def backward_input(self, output: Tensor, gradient: Tensor | None) -> None:
        """I: backward, but for what can wait."""
        uses, others = _uses(output.grad_fn)
        if not uses:
            output.backward(gradient)
            return
        for use in uses:
            _let_look_twice(getattr(use.node, f"_raw{use.saved}"))
        hooks = [use.node.register_prehook(partial(self._hear, use)) for use in uses]
        asked: Any = [*others, *(torch.autograd.graph.GradientEdge(use.node, 0) for use in uses)]
        try:
            torch.autograd.backward(output, gradient, inputs=asked)
        finally:
            for (
                hook
            ) in hooks:  # it knows its node: what W does not need is freed now, not when Python happens to collect
                hook.remove()

    def _hear(self, use: Use, gradients: tuple[Tensor | None, ...]) -> None:
        if gradients[0] is not None:
            self.pending.append((use.add, getattr(use.node, use.saved).detach(), gradients[0]))

    def tensors(self) -> Iterator[Tensor]:
        """What stays in memory until W: inputs, and gradients of outputs."""
        return (tensor for _, *kept in self.pending for tensor in kept)

    @torch.no_grad()
    def run(self) -> None:
        """W: add the gradients to the weights'."""
        while self.pending:
            add, saved, gradient = self.pending.popleft()
            add(saved, gradient)


def _uses(root: Node) -> tuple[list[Use], list[Tensor]]:
    """The uses of all weights that can wait, and the other leaves of a graph. A weight waits if all its uses can."""
    uses: list[Use] = []
    now: dict[int, Tensor] = {}  # the leaves that cannot wait, by their ids
    seen, todo = {root}, [root]
    while todo:
        node = todo.pop()
        if type(node).__name__ == "CheckpointFunctionBackward":
            return [], []  # the older kind of checkpoint refuses to be asked for some gradients only
        for edge, (child, _) in enumerate(node.next_functions):
            if child is None:
                continue
            transposed = type(child).__name__ == "TBackward0"  # as linear takes its weight
            leaf = child.next_functions[0][0] if transposed else child
            if type(leaf).__name__ == "AccumulateGrad":
                if use := _use(node, edge, leaf.variable, transposed):
                    uses.append(use)
                else:
                    now[id(leaf.variable)] = leaf.variable
            elif child not in seen:
                seen.add(child)
                todo.append(child)
    return [use for use in uses if id(use.weight) not in now], list(now.values())


def _use(node: Node, edge: int, weight: Tensor, transposed: bool) -> Use | None:
    """How a node uses a weight, where that can wait: a plain matrix, and nobody who listens to its gradient."""
    kind = type(node).__name__
    if (
        kind not in ("AddmmBackward0", "MmBackward0", "EmbeddingBackward0")
        or type(weight) is not nn.Parameter
        or not (weight.dim() == 2 and weight.is_floating_point() and weight.layout is torch.strided)
        or weight._backward_hooks
        or weight._post_accumulate_grad_hooks
    ):
        return None
    if kind == "AddmmBackward0" and edge == 2 and node._saved_alpha == 1:
        return Use(node, weight, "_saved_mat1", partial(_add_product, weight, transposed))
    if kind == "MmBackward0" and edge == 1:
        return Use(node, weight, "_saved_self", partial(_add_product, weight, transposed))
    if kind == "EmbeddingBackward0" and not (node._saved_sparse or node._saved_scale_grad_by_freq):
        padding = node._saved_padding_idx  # without a sign: none, which is -1, comes as 2**64 - 1
        return Use(node, weight, "_saved_indices", partial(_add_rows, weight, -1 if padding >> 63 else padding))
    return None


class _Handles(dict[int, Any]):
    """By what a checkpoint finds a tensor that it computed once more. It forgets that at the first look."""

    def __setitem__(self, key: int, handle: Any) -> None:
        if handle is not None:
            super().__setitem__(key, handle)


def _let_look_twice(saved: Any) -> None:
    """What a checkpointed layer saved can be looked at once, but here two do: autograd, and the queue."""
    holder: Any = getattr(saved, "data", None)
    if hasattr(holder, "handles"):
        holder.handles = _Handles()


def _add_product(weight: nn.Parameter, transposed: bool, x: Tensor, gradient: Tensor) -> None:
    """Product and sum in one pass over the weight's gradient: the product alone need not be written anywhere."""
    left, right = (gradient, x) if transposed else (x, gradient)
    if weight.grad is None:
        weight.grad = left.t().mm(right)
    else:
        weight.grad.addmm_(left.t(), right)


def _add_rows(weight: nn.Parameter, padding: int, indices: Tensor, gradient: Tensor) -> None:
    rows = torch.ops.aten.embedding_dense_backward.default(gradient, indices, weight.shape[0], padding, False)
    weight.grad = rows if weight.grad is None else weight.grad.add_(rows)
