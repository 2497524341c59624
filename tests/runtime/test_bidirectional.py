"""Two chains at once: each stage has two copies, which learn as one model does and stay equal to the last bit."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from orders import dualpipe
from runtime_helpers import Plain, assert_equal_training, batch, mse
from torch import Tensor, nn
from torchrun import torchrun
from two_chains import adamw, blocks, train_as_plain, two_ways

import ppedu

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 5), (4, 4), (4, 11)])
def test_dualpipe_trains_as_one_process_does(p, m):
    train_as_plain(ppedu.SCHEDULES["dualpipe"](p=p, m=m), blocks(p), 2 * m + 1)


@pytest.mark.parametrize(("p", "m"), [(1, 3), (3, 2), (3, 5), (5, 4), (2, 1)])
def test_a_rank_may_hold_both_copies(p, m):
    """The middle rank of an odd number; and m = 1, where one chain has nothing to do and its gradients are none."""
    if m > 1:
        train_as_plain(two_ways(p, m), blocks(p), 2 * m + 1)
    else:
        train_as_plain(ppedu.SCHEDULES["dualpipe"](p=p, m=m), blocks(p), 3)


def test_ranks_hold_twice_the_weights():
    """What DualPipe pays: 2x parameters (DeepSeek's README)."""
    m, model = 4, blocks(4)
    one = ppedu.train(model, ppedu.one_f_one_b(4, m), [batch(8, 4, 4)], mse, progress=False, device="cpu")
    two = ppedu.train(model, ppedu.SCHEDULES["dualpipe"](p=4, m=m), [batch(8, 4, 4)], mse, progress=False, device="cpu")
    a_block = (4 + 4 + 4 * 6 + 6 + 6 * 4 + 4) * 8
    assert one.parameter_bytes == (a_block,) * 4
    assert two.parameter_bytes == (2 * a_block,) * 4


@pytest.mark.parametrize("schedule", [dualpipe(), two_ways(3, 4)], ids=["dualpipe", "both copies on one rank"])
def test_copies_stay_equal_to_the_last_bit(schedule, tmp_path):
    """Each rank writes down its weights after each step: every one is there twice, as it is."""
    folder = str(tmp_path)

    def writes(weights: Any) -> torch.optim.Optimizer:
        kept = list(weights)
        made = torch.optim.AdamW(kept, lr=0.01)
        number, step = itertools.count(), made.step

        def stepped(*arguments: Any) -> None:
            step(*arguments)
            gradients = [w.grad for w in kept]
            name = f"{folder}/{next(number)}.{torch.initial_seed()}.pt"
            torch.save(
                [[t.numpy().tobytes() for t in ts] for ts in (list(map(torch.Tensor.detach, kept)), gradients)], name
            )

        made.step = stepped
        return made

    samples = 2 * schedule.num_microbatches + 1
    train_as_plain(schedule, blocks(schedule.chain_length), samples, optimizer=writes)
    for step in range(3):
        files = sorted(Path(folder).glob(f"{step}.*.pt"))
        assert len(files) == schedule.num_ranks
        for of_ranks in zip(
            *(torch.load(f, weights_only=False) for f in files), strict=True
        ):  # weights, then gradients
            seen = Counter(text for rank in of_ranks for text in rank)
            assert all(count % 2 == 0 for count in seen.values())
            assert len(seen) > schedule.chain_length


class Sometimes(nn.Module):
    """Uses its weights only where the first number of the input is above zero; one of them never."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.never = nn.Linear(4, 4), nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.linear(x) if x.flatten()[0] > 0 else x * 2
        return result


@pytest.mark.parametrize("sign", [1, -1], ids=["first chain", "second chain"])
def test_a_gradient_that_one_copy_lacks_counts_as_zero(sign):
    model = nn.Sequential(Sometimes(), *blocks(1)).double()
    inputs, targets = batch(8, 4, 4)
    inputs[:4, 0], inputs[4:, 0] = sign * 1.0, -sign * 1.0
    schedule = ppedu.SCHEDULES["dualpipe"](p=2, m=2)
    run = ppedu.train(model, schedule, [(inputs, targets)], mse, progress=False, device="cpu", gradients=True)

    def in_parts(model: nn.Module, x: Tensor) -> Tensor:
        return torch.cat([model(part) for part in x.tensor_split(2)])

    wanted = Plain(model, [(inputs, targets)], mse, None, 1, in_parts)
    assert_equal_training(run.losses, run.gradients, dict(model.state_dict()), wanted)
    assert "0.linear.weight" in run.gradients
    assert "0.never" not in run.gradients


@pytest.mark.parametrize("where", [0, 7], ids=["first chain", "second chain"])
def test_a_loss_that_is_no_number_stops_both_chains(where):
    inputs, targets = batch(8, 4, 4)
    bad = targets.clone()
    bad[where] = math.inf
    model = blocks(4)
    schedule = ppedu.SCHEDULES["dualpipe"](p=4, m=8)
    good = Plain(model, [(inputs, targets)], mse, adamw, 1)
    with pytest.warns(UserWarning, match="the run ended early"):
        run = ppedu.train(
            model, schedule, [(inputs, targets), (inputs, bad)], mse, adamw, steps=3, progress=False, device="cpu"
        )
    assert run.stopped == f"the loss of microbatch {where} in step 1 is inf"
    assert len(run.losses) == 2
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, good.state[name], rtol=1e-12, atol=0)


def test_progress_hears_the_loss_of_the_whole_batch():
    heard: list[tuple[int, int, float]] = []
    model, schedule = blocks(4), ppedu.SCHEDULES["dualpipe"](p=4, m=8)
    run = ppedu.train(
        model, schedule, [batch(8, 4, 4)], mse, adamw, steps=2, progress=lambda *told: heard.append(told), device="cpu"
    )
    assert heard == [(1, 2, run.losses[0]), (2, 2, run.losses[1])]


def test_a_failure_in_the_second_chain_is_that_ranks():
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[0] == 2:
                raise RuntimeError("mine")
            return x

    model = nn.Sequential(*blocks(1), Fails())
    with pytest.raises(ppedu.RunError, match=r"mine") as caught:  # 5 samples, m=2: the first chain has three of them
        ppedu.train(model, ppedu.SCHEDULES["dualpipe"](p=2, m=2), [batch(5, 4, 4)], mse, progress=False, device="cpu")
    assert caught.value.rank == 0
    assert caught.value.action == "3F1"


def test_batches_of_two_sizes_are_refused():
    """Every rank at an end of a chain asks for the batch: here all but the first rank would get another one."""
    seed = torch.initial_seed()

    def data(step: int) -> tuple[Tensor, Tensor]:
        return batch(8 if torch.initial_seed() in (seed, 0) else 9, 4, 4)

    with pytest.raises(ppedu.RunError, match="must return the same batch for the same step"):
        ppedu.train(blocks(2), ppedu.SCHEDULES["dualpipe"](p=2, m=4), data, mse, progress=False, device="cpu")


SCRIPT = """
import os, sys
import torch
import ppedu
from runtime_helpers import batch, mse
from two_chains import adamw, blocks

out, rank = sys.argv[1], int(os.environ["RANK"])
model = blocks(2)
run = ppedu.train(model, ppedu.SCHEDULES["dualpipe"](p=2, m=5), [batch(11, 4, 4, s) for s in range(2)], mse, adamw,
                  steps=3, gradients=True, device="cpu", progress=False)
torch.save({"losses": run.losses, "gradients": run.gradients, "state": model.state_dict(),
            "bytes": run.parameter_bytes}, f"{out}/{rank}.pt")
"""


def test_under_torchrun(tmp_path):
    done = torchrun(tmp_path, SCRIPT, 2)
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = Plain(blocks(2), [batch(11, 4, 4, s) for s in range(2)], mse, adamw, 3)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        assert_equal_training(found["losses"], found["gradients"], found["state"], wanted)
        assert found["bytes"][0] == found["bytes"][1] > 0
