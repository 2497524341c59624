"""What the two halves of a backward take, in time over the whole and in bytes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import ppedu
from benchmarks.process import in_a_rank
from benchmarks.table import line
from ppedu.course.data import batches
from ppedu.course.models import Block, ByteGPT, next_byte_loss
from ppedu.runtime.rank.stage import Meter, Stage

BLOCKS, SEQUENCES, TOKENS = 6, 4, 64
BOUNDS = {48: (None, None), 128: (0.85, 1.10), 256: (0.75, 1.10), 512: (0.7, 1.10)}  # width -> (I / B, (I + W) / B)


def split(rounds: int) -> None:
    """I and W over B, and what they keep."""
    print(f"\nI and W over B of the same round: {BLOCKS} blocks, {SEQUENCES} x {TOKENS} tokens, one thread")
    for width, (half, both) in BOUNDS.items():
        found = in_a_rank(_times, width, 12 * rounds)
        line(f"width {width}: I over B", [t["I"] / t["B"] for t in found], half)
        line(f"width {width}: W over B", [t["W"] / t["B"] for t in found])
        line(f"width {width}: I + W over B", [(t["I"] + t["W"]) / t["B"] for t in found], both)
    _bytes()


def _times(width: int, rounds: int) -> list[dict[str, float]]:
    """Seconds of F and B, and of F, I and W, in turn."""
    stage = _stage(width, active=False)
    x, gradient = torch.randn(SEQUENCES, TOKENS, width), torch.randn(SEQUENCES, TOKENS, width)
    steps: dict[str, Callable[[], Any]] = {
        "F": lambda: stage.forward(0, x),
        "B": lambda: stage.backward(0, gradient),
        "F again": lambda: stage.forward(0, x),
        "I": lambda: stage.backward_input(0, gradient),
        "W": lambda: stage.backward_weight(0),
    }
    found = []
    for _ in range(rounds + 5):
        times = {}
        for key, step in steps.items():
            begin = time.perf_counter()
            step()
            times[key] = time.perf_counter() - begin
        found.append(times)
    return found[5:]  # the first ones warm up


def _stage(width: int, active: bool) -> Stage:
    meter = Meter()
    meter.active = active
    return Stage(nn.Sequential(*(Block(width, 4) for _ in range(BLOCKS))), meter, first=False, loss_fn=None)


def _bytes() -> None:
    """Peaks of a whole run, and how one stage's bytes go up and down."""
    p, m, width = 4, 8, 48
    model = ByteGPT(blocks=BLOCKS * p, width=width, context=TOKENS)
    batch = batches(SEQUENCES * m, TOKENS, steps=1)[0]
    print(f"\nPeak bytes of activations per rank, p={p} m={m}, {BLOCKS} blocks of width {width} a stage")
    for key in ("1f1b", "zb_h1", "zb_h2"):
        run = ppedu.train(model, ppedu.SCHEDULES[key](p=p, m=m), [batch], next_byte_loss, progress=False, device="cpu")
        print(f"{key:<8}", *(f"{b / 2**20:7.2f} MiB" for b in run.peak_activation_bytes))
    stage = _stage(width, active=True)
    x = torch.randn(SEQUENCES, TOKENS, width)
    print("One such stage, MiB after each operation:", end=" ")
    for kind, i in (("F", 0), ("F", 1), ("I", 0), ("I", 1), ("W", 0), ("W", 1)):
        if kind == "F":
            stage.forward(i, x.clone())
        elif kind == "I":
            stage.backward_input(i, torch.randn_like(x))
        else:
            stage.backward_weight(i)
        print(f"{kind}{i} {stage.meter.now / 2**20:.2f}", end=" ")
    print(f"(peak {stage.meter.peak / 2**20:.2f})")
