"""Two chains at once: each stage has two copies, which learn as one model does and stay equal to the last bit."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from orders import dualpipe, legal_schedules
from runtime_helpers import Plain, assert_equal_training, batch, mse
from test_lower import StuckError
from test_torchrun import torchrun
from torch import Tensor, nn

import ppedu
from ppedu.runtime import board
from ppedu.runtime.copies import Message, copy_pairs, messages, sum_gradients
from ppedu.runtime.train import place_of
from ppedu.schedule import Schedule


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


# as one process


@pytest.mark.slow
def test_the_published_order_trains_as_one_process_does():
    run = train_as_plain(dualpipe(), blocks(4), 19)
    assert run.timeline.complete
    assert run.unsplit == ()
    assert run.timeline.schedule.chains == 2


@pytest.mark.slow
@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 5), (4, 4), (4, 8), (4, 11)])
def test_dualpipe_trains_as_one_process_does(p, m):
    train_as_plain(ppedu.SCHEDULES["dualpipe"](p=p, m=m), blocks(p), 2 * m + 1)


@pytest.mark.slow
@pytest.mark.parametrize(("p", "m"), [(1, 3), (3, 2), (3, 5), (5, 4), (2, 1)])
def test_a_rank_may_hold_both_copies(p, m):
    """The middle rank of an odd number; and m = 1, where one chain has nothing to do and its gradients are none."""
    if m > 1:
        train_as_plain(two_ways(p, m), blocks(p), 2 * m + 1)
    else:
        train_as_plain(ppedu.SCHEDULES["dualpipe"](p=p, m=m), blocks(p), 3)


@pytest.mark.slow
def test_ranks_hold_twice_the_weights():
    """What DualPipe pays: 2x parameters (DeepSeek's README)."""
    m, model = 4, blocks(4)
    one = ppedu.train(model, ppedu.one_f_one_b(4, m), [batch(8, 4, 4)], mse, progress=False, device="cpu")
    two = ppedu.train(model, ppedu.SCHEDULES["dualpipe"](p=4, m=m), [batch(8, 4, 4)], mse, progress=False, device="cpu")
    a_block = (4 + 4 + 4 * 6 + 6 + 6 * 4 + 4) * 8
    assert one.parameter_bytes == (a_block,) * 4
    assert two.parameter_bytes == (2 * a_block,) * 4


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_progress_hears_the_loss_of_the_whole_batch():
    heard: list[tuple[int, int, float]] = []
    model, schedule = blocks(4), ppedu.SCHEDULES["dualpipe"](p=4, m=8)
    run = ppedu.train(
        model, schedule, [batch(8, 4, 4)], mse, adamw, steps=2, progress=lambda *told: heard.append(told), device="cpu"
    )
    assert heard == [(1, 2, run.losses[0]), (2, 2, run.losses[1])]


@pytest.mark.slow
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


@pytest.mark.slow
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
from test_bidirectional import adamw, blocks

out, rank = sys.argv[1], int(os.environ["RANK"])
model = blocks(2)
run = ppedu.train(model, ppedu.SCHEDULES["dualpipe"](p=2, m=5), [batch(11, 4, 4, s) for s in range(2)], mse, adamw,
                  steps=3, gradients=True, device="cpu", progress=False)
torch.save({"losses": run.losses, "gradients": run.gradients, "state": model.state_dict(),
            "bytes": run.parameter_bytes}, f"{out}/{rank}.pt")
"""


@pytest.mark.slow
def test_under_torchrun(tmp_path):
    done = torchrun(tmp_path, SCRIPT, 2)
    assert done.returncode == 0, done.stdout + done.stderr
    wanted = Plain(blocks(2), [batch(11, 4, 4, s) for s in range(2)], mse, adamw, 3)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        assert_equal_training(found["losses"], found["gradients"], found["state"], wanted)
        assert found["bytes"][0] == found["bytes"][1] > 0


# messages between copies


def test_messages_of_dualpipe():
    """Ranks 0 and 3 hold stages 0 and 3, 1 and 2 hold 1 and 2: each swaps with its mirror image."""
    assert messages(dualpipe()) == [
        Message(0, 4), Message(4, 0), Message(1, 5), Message(5, 1), Message(2, 6), Message(6, 2), Message(3, 7), Message(7, 3),
    ]  # fmt: skip
    assert copy_pairs(dualpipe()) == {(0, 3), (3, 0), (1, 2), (2, 1)}
    assert messages(two_ways(1, 2)) == []
    assert copy_pairs(two_ways(3, 2)) == {(0, 2), (2, 0)}
    assert copy_pairs(ppedu.gpipe(4, 4)) == set()


def replay(lists: dict[int, list[Message]], rank_of: tuple[int, ...]) -> int:
    """NCCL's rules at their strictest: a send waits for its receive, and a rank does one thing at a time."""
    left = {rank: list(todo) for rank, todo in lists.items()}
    done = 0
    while any(left.values()):
        heads = Counter(todo[0] for todo in left.values() if todo)
        able = [m for m, both in heads.items() if both == 2]
        if not able:
            raise StuckError("ranks wait for each other")
        for message in able:
            for rank in (rank_of[message.stage], rank_of[message.copy]):
                assert left[rank].pop(0) == message
            done += 1
    return done


def lists_of(schedule: Schedule) -> dict[int, list[Message]]:
    rank_of = schedule.rank_of_stage
    return {
        rank: [m for m in messages(schedule) if rank in (rank_of[m.stage], rank_of[m.copy])]
        for rank in range(schedule.num_ranks)
    }


@settings(max_examples=200)
@given(legal_schedules())
def test_copies_never_wait_in_a_circle(schedule):
    assert replay(lists_of(schedule), schedule.rank_of_stage) == len(messages(schedule))


def test_another_order_would():
    """The replay bites: one of two ranks takes what it sends first, the other as well."""
    lists = lists_of(two_ways(2, 2))
    lists[0] = [*lists[0][1:], lists[0][0]]
    with pytest.raises(StuckError):
        replay(lists, two_ways(2, 2).rank_of_stage)


def test_sums_on_one_rank_need_no_messages():
    one, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    one.grad, other.grad = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])
    sum_gradients(two_ways(1, 2), None, {0: [one], 1: [other]})  # type: ignore[arg-type]
    assert one.grad.tolist() == other.grad.tolist() == [11.0, 22.0]
    assert one.grad is not other.grad
    one.grad = None
    sum_gradients(two_ways(1, 2), None, {0: [one], 1: [other]})  # type: ignore[arg-type]
    assert one.grad is not None
    assert one.grad.tolist() == [11.0, 22.0]
    one.grad = other.grad = None
    sum_gradients(two_ways(1, 2), None, {0: [one], 1: [other]})  # type: ignore[arg-type]
    assert one.grad is None


def test_places_have_words():
    """What a hang is explained with: both are waits, so that the rank that computes is blamed."""
    schedule = dualpipe()
    for at in (board.AWAITING_LOSS, board.SUMMING):
        place = place_of(schedule, (), 3, at, 0.0)
        assert place.waiting
        assert place.step == 3
    assert "copies" in place.text
    assert len(set(board.PLACES.values())) == len(board.PLACES)
