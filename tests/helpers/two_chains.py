"""What the tests of two chains share: a model that is hard on ranks, and training that is held against one process."""

from __future__ import annotations

from typing import Any

import torch
from runtime_helpers import Plain, assert_equal_training, batch, mse
from torch import Tensor, nn

import ppedu
from ppedu.core.schedule import Schedule


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.inner(x)
        return result


def blocks(count: int) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(*(Block() for _ in range(count))).double()


def adamw(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, lr=0.01)


def two_ways(p: int, m: int) -> Schedule:
    """GPipe down and GPipe up at once: legal for every p, odd ones too, where the middle rank holds both copies."""
    half = range(m * 1 // 2), range(m // 2, m)
    orders = []
    for rank in range(p):
        stages = (rank, 2 * p - 1 - rank)
        forwards = [f"{s}F{j}" for s, js in zip(stages, half, strict=True) for j in js]
        backwards = [f"{s}B{j}" for s, js in zip(stages, half, strict=True) for j in js]
        orders.append(",".join(forwards + backwards))
    rank_of = (*range(p), *reversed(range(p)))
    read = Schedule.from_csv("\n".join(orders), "two ways", chains=1).orders
    return Schedule("two ways", m, rank_of, read, 2)


def train_as_plain(schedule: Schedule, model: nn.Sequential, samples: int, **rest: Any) -> ppedu.Run:
    data = [batch(samples, 4, 4, seed) for seed in range(2)]
    wanted = Plain(model, data, mse, adamw, 3)
    rest = {"optimizer": adamw, "steps": 3, "gradients": True, "progress": False, "device": "cpu"} | rest
    run = ppedu.train(model, schedule, data, mse, **rest)
    assert_equal_training(run.losses, run.gradients, dict(model.state_dict()), wanted)
    return run
