"""The main job: train the course's model on the course's text under a schedule. What the command line and the explorers run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppedu.core.costs import Costs
from ppedu.core.schedule import Schedule

if TYPE_CHECKING:
    from ppedu.runtime.run import Run


def train_course(
    schedule: Schedule,
    pace: Costs | None,
    *,
    samples: int,
    steps: int = 3,
    blocks: int = 24,
    width: int = 48,
    context: int = 32,
    learning_rate: float = 0.003,
    seed: int = 0,
    **options: Any,
) -> Run:
    """Train a fresh ByteGPT with AdamW on `samples` sequences of `context` bytes a step. The same seed gives the same
    weights and batches under every schedule. options: more arguments for `ppedu.train`.

    Raises ValueError where the model has fewer blocks than the schedule has stages."""
    if schedule.chain_length > blocks >= 1:  # less than one is the model's to refuse
        raise ValueError(
            f"{schedule.label} has {schedule.chain_length} stages, but the course's model has {blocks} blocks, and a stage "
            "without any would be none: take a smaller p or v, or more blocks"
        )
    import torch

    from ppedu.course.data import Batches
    from ppedu.course.models import ByteGPT, next_byte_loss
    from ppedu.runtime.train import train

    data = Batches(samples, context, seed=seed)  # first: a context longer than the text must not become a model
    model = ByteGPT(blocks, width, context=context, seed=seed)
    return train(
        model, schedule, data, next_byte_loss, lambda weights: torch.optim.AdamW(weights, lr=learning_rate),
        steps=steps, pace=pace, **options,
    )  # fmt: skip
