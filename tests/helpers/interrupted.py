"""A program that trains when it is told to, for the tests of interrupts: it says what became of each call of train()."""

from __future__ import annotations

import sys
import threading
import time

import leftovers
import torch
from torch import nn

import ppedu

LAYERS = [nn.Linear(8, 8) for _ in range(4)]
BATCH = (torch.ones(16, 8), torch.zeros(16, 8))


def train(steps: int) -> None:
    ppedu.train(
        LAYERS, ppedu.one_f_one_b(4, 8), [BATCH], nn.functional.mse_loss, lambda w: torch.optim.SGD(w, lr=0.1),
        steps=steps, progress=False, timeout=20, pace=ppedu.Costs(forward=0.002, backward=0.002),
    )  # fmt: skip


def outcome(steps: int, interrupted: bool) -> str:
    """What train() ends in, from "go" on: where an interrupt is on its way, it may also come when train() is over already."""
    result = ""
    try:
        print("go", flush=True)  # in here: who hears it may interrupt before this process runs on
        try:
            train(steps)
            result = "completed"
        except KeyboardInterrupt:
            return "interrupted"
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        if interrupted:
            time.sleep(30)
    except KeyboardInterrupt:
        return f"{result} before" if result else "interrupted"
    return result


def in_a_thread(steps: int) -> str:
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(outcome(steps, False)))
    try:
        thread.start()
        while thread.is_alive():
            time.sleep(0.01)
    except KeyboardInterrupt:
        results.append("interrupted outside")
        while thread.is_alive():
            time.sleep(0.01)
    return ", ".join(results)


def settled() -> str:
    """'' once no rank is left: at once, but for the process that a fork server makes first of all, which ends by itself."""
    deadline = time.perf_counter() + 1
    while left := leftovers.children():
        if time.perf_counter() > deadline:
            return f"left: {left}"
        time.sleep(0.005)
    return "nothing left"


def main() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        command, steps = line.split()
        result = in_a_thread(int(steps)) if command == "thread" else outcome(int(steps), command == "interrupt")
        print(f"{result}, {settled()}", flush=True)


if __name__ == "__main__":
    main()
