"""The batch of a step: asked for, checked, and cut into microbatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

Batch = tuple[Tensor, Tensor]
Data = Sequence[Batch] | Callable[[int], Batch]


def microbatch_sizes(samples: int, m: int) -> list[int]:
    """Samples in each of m microbatches: they differ by one at most, as torch.tensor_split cuts."""
    return [samples // m + (i < samples % m) for i in range(m)]


def batch_of(data: Data, step: int) -> Batch:
    """The batch of a step: a list goes round, a function is asked."""
    batch = data(step) if callable(data) else data[step % len(data)]
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not all(isinstance(t, Tensor) for t in batch):
        raise TypeError(
            f"a batch is (inputs, targets), two tensors, but data gave {_what(batch)} for step {step}. "
            "One batch goes in as [(inputs, targets)]"
        )
    return batch[0], batch[1]


def check_batch(inputs: Tensor, targets: Tensor, m: int) -> None:
    if not inputs.dim() or not targets.dim() or len(inputs) != len(targets):
        raise ValueError(
            "inputs and targets have one entry a sample in their first dimension, as many in both, "
            f"but their shapes are {tuple(inputs.shape)} and {tuple(targets.shape)}"
        )
    if len(inputs) < m:
        raise ValueError(
            f"a batch of {len(inputs)} samples cannot be cut into m={m} microbatches: "
            f"every microbatch needs a sample. Take m of at most {len(inputs)}, or a larger batch"
        )


def _what(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"({', '.join(type(v).__name__ for v in value)})"
    return type(value).__name__
