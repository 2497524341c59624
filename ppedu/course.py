"""The main job: train the course's model on the course's text under a schedule. What the command line and the explorers run."""

from __future__ import annotations

from typing import Any

import torch

from ppedu.data import Batches
from ppedu.models import ByteGPT, next_byte_loss
from ppedu.runtime.run import Run
from ppedu.runtime.train import train
from ppedu.schedule import Costs, Schedule


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
    weights and batches under every schedule. options: more arguments for `ppedu.train`."""
    data = Batches(samples, context, seed=seed)  # first: a context longer than the text must not become a model
    model = ByteGPT(blocks, width, context=context, seed=seed)
    return train(
        model, schedule, data, next_byte_loss, lambda weights: torch.optim.AdamW(weights, lr=learning_rate),
        steps=steps, pace=pace, **options,
    )  # fmt: skip
