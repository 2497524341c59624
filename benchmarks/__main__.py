"""Run the benchmarks and print each as a ratio beside its bound."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import ppedu
from benchmarks.browser import live_views
from benchmarks.process import in_a_rank
from benchmarks.split_backward import split
from benchmarks.table import line
from benchmarks.torch_pipelining import OWN, run_torch
from ppedu.course.data import batches
from ppedu.course.models import ByteGPT, next_byte_loss

OPERATION = 0.020  # seconds of a paced operation
PACE = ppedu.Costs(forward=OPERATION, backward=OPERATION)


def light(p: int, m: int) -> tuple[list[nn.Module], Any, Any]:
    """Stages of Linear and Tanh, width 64: the mathematics are nothing."""
    layers = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(p)]
    return layers, (torch.randn(4 * m, 64), torch.randn(4 * m, 64)), nn.functional.mse_loss


def transformer(p: int, m: int) -> tuple[Any, Any, Any]:
    """ByteGPT's six blocks of width 48 a stage."""
    model = ByteGPT(blocks=6 * p, width=48, context=32)
    return ppedu.split(model, p), batches(4 * m, 32, steps=1)[0], next_byte_loss


def ours(
    stages: Any, schedule: ppedu.Schedule, batch: Any, loss_fn: Any, steps: int, pace: ppedu.Costs | None
) -> list[float]:
    run = ppedu.train(stages, schedule, [batch], loss_fn, steps=steps, pace=pace, device="cpu", progress=False)
    return [t.makespan for t in run.timelines[1:]]


def pace(rounds: int) -> None:
    """Makespan over the ideal (m+p-1)(F+B)."""
    print(f"\nPaced makespan over the ideal, {OPERATION * 1e3:g} ms operations, first step and optimizer left out")
    cases: list[tuple[str, Callable[[int, int], Any], int, int, dict[str, float]]] = [
        ("light stage", light, 4, 8, {"gpipe": 1.03, "1f1b": 1.04}),
        ("light stage", light, 8, 16, {"gpipe": 1.03, "1f1b": 1.04}),
        ("6 blocks of width 48", transformer, 4, 8, {"gpipe": 1.06, "1f1b": 1.08}),
    ]
    for name, make, p, m, bounds in cases:
        stages, batch, loss_fn = make(p, m)
        ideal = (m + p - 1) * 2 * OPERATION
        found: dict[str, list[float]] = {key: [] for key in bounds}
        for _ in range(rounds):
            for key, values in found.items():
                values += [t / ideal for t in ours(stages, ppedu.SCHEDULES[key](p, m), batch, loss_fn, 6, PACE)]
        for key, values in found.items():
            line(f"{name}, p={p} m={m}, {key}", values, bounds[key])


def versus_torch(rounds: int) -> None:
    """Our makespan over torch.distributed.pipelining's, alternating runs on the same stages."""
    print("\nOver torch.distributed.pipelining: ratio of the medians of alternating runs, below 1 is faster")
    cases: list[tuple[str, Callable[[int, int], Any], int, bool, tuple[str, ...]]] = [
        ("light stage, paced", light, 4, True, tuple(ppedu.SCHEDULES)),
        ("6 blocks of width 48, paced", transformer, 4, True, ("gpipe", "1f1b")),
        ("6 blocks of width 48, unpaced", transformer, 2, False, ("gpipe", "1f1b")),
    ]
    for name, make, p, paced, keys in cases:
        print(f"{name}, p={p} m=8, ours over")
        for key in keys:
            schedule = ppedu.SCHEDULES[key](p=p, m=8)
            if schedule.chains > 1:
                continue  # which torch cannot run
            owns = {"torch's runtime in our order": None} | ({f"torch's {OWN[key]}": OWN[key]} if key in OWN else {})
            operation = OPERATION * p / schedule.chain_length  # of the same model, cut finer
            costs = ppedu.Costs(forward=operation, backward=operation) if paced else None
            stages, batch, loss_fn = make(schedule.chain_length, 8)
            ratios: dict[str, list[float]] = {what: [] for what in owns}
            for _ in range(rounds):
                mine = statistics.median(ours(stages, schedule, batch, loss_fn, 8, costs))
                for what, own in owns.items():
                    theirs = run_torch(stages, schedule, own, batch, loss_fn, 8, costs)[1:]
                    ratios[what].append(mine / statistics.median(theirs))
            for what, values in ratios.items():
                line(f"{key}: {what}", values, 1.0)


def speedup(rounds: int) -> None:
    """One single-threaded process against p=2, m=8, unpaced."""
    print("\nReal speed-up of p=2, m=8 over one single-threaded process, unpaced (ideal 2 x 8/9 = 1.78)")
    for width, length, bound in ((128, 64, 1.65), (48, 32, None)):
        model = ByteGPT(blocks=24, width=width, context=length)
        batch = batches(32, length, steps=1)[0]
        stages = ppedu.split(model, 2)
        whole, parts, piped = [], [], []
        for _ in range(rounds):
            whole += in_a_rank(single, model, batch, 1)
            parts += in_a_rank(single, model, batch, 8)
            piped += ours(stages, ppedu.one_f_one_b(2, 8), batch, next_byte_loss, 6, None)
        pipeline = statistics.median(piped)
        print(f"width {width}, {length} tokens: whole batch {statistics.median(whole):.3f} s, in 8 microbatches "
              f"{statistics.median(parts):.3f} s, pipeline {pipeline:.3f} s")  # fmt: skip
        line(f"width {width}: over the whole batch in one go", [t / pipeline for t in whole], bound, more=True)
        line(f"width {width}: over the same 8 microbatches", [t / pipeline for t in parts])


def single(model: nn.Module, batch: Any, m: int, steps: int = 3) -> list[float]:
    """Seconds of forward and backward of a batch, one thread, in m microbatches."""
    times = []
    for _ in range(steps + 1):
        model.zero_grad()
        start = time.perf_counter()
        for inputs, targets in zip(*(t.tensor_split(m) for t in batch), strict=True):
            (next_byte_loss(model(inputs), targets) / m).backward()
        times.append(time.perf_counter() - start)
    return times[1:]


_START = """
import time, torch, torch.distributed, ppedu
from ppedu.runtime import train
layers = [torch.nn.Linear(4, 4) for _ in range(4)]
batch = torch.ones(4, 4), torch.zeros(4, 4)
schedule = ppedu.forward_only(4, 1)
for _ in range(6):
    start = time.perf_counter()
    ppedu.train(layers, schedule, [batch], torch.nn.functional.mse_loss, progress=False)
    print(time.perf_counter() - start)
"""


def start(rounds: int) -> None:
    """A whole run of one forward step on four ranks, from the call of train to its return: start, connect, run, end."""
    print("\nStart of 4 fresh connected ranks: train() with one forward of a tiny model, from call to return")
    first, later = [], []
    for _ in range(max(3, rounds // 2)):
        said = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True, check=True).stdout
        times = [float(x) for x in said.split()]
        first.append(times[0])
        later += times[1:]
    line("first time (starts the fork server, which imports torch)", first, 3.0, " s")
    line("after that", later, 0.25, " s")


def simulation(rounds: int) -> None:
    print("\nsimulate() at p=64, m=1024: 131,072 operations")
    for key in ("gpipe", "1f1b"):
        schedule, times = ppedu.SCHEDULES[key](64, 1024), []
        for _ in range(rounds):
            begin = time.perf_counter()
            ppedu.simulate(schedule)
            times.append(time.perf_counter() - begin)
        line(key, times, 1.0, " s")


def importing(rounds: int) -> None:
    print("\npython -c 'import ppedu' beyond python -c 'pass'")
    differences = []
    for _ in range(5 * rounds):
        times = []
        for code in ("pass", "import ppedu"):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            times.append(time.perf_counter() - begin)
        differences.append(times[1] - times[0])
    line("import ppedu", differences, 0.15, " s")


BENCHMARKS: dict[str, Callable[[int], None]] = {
    "pace": pace, "torch": versus_torch, "speedup": speedup, "split": split, "start": start, "simulate": simulation, "import": importing,
    "browser": live_views,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("which", nargs="*", help=f"any of {', '.join(BENCHMARKS)}; all without")
    parser.add_argument("--rounds", type=int, default=5, help="repeats of each (default %(default)s)")
    chosen = parser.parse_args()
    unknown = set(chosen.which) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}: choose from {', '.join(BENCHMARKS)}")
    import os

    print(
        f"torch {torch.__version__}, {os.cpu_count()} cores. Median (lowest to highest). Run it alone: others' load shows."
    )
    for name in chosen.which or BENCHMARKS:
        BENCHMARKS[name](chosen.rounds)


if __name__ == "__main__":
    main()
