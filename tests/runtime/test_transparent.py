"""Pipelined training is plain training: losses, every gradient and the weights afterwards, to a part in 10^12.

Ranks are processes here, as for a user. The same is asked of torch.distributed.pipelining where it accepts the case.
"""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from orders import F, golden
from runtime_helpers import (
    Plain,
    assert_close,
    assert_equal_training,
    batch,
    in_ranks,
    layers,
    momentum,
    mse,
    pipelining_rank,
)
from torch import nn

import ppedu
from ppedu.core.operations import Action, Kind, Overlap
from ppedu.core.schedule import Schedule
from ppedu.course.models import ByteGPT, next_byte_loss

SAMPLES = 13  # no m below divides it, but for 1


def train(model, schedule, data, loss_fn=mse, optimizer=momentum, steps=3, **rest):
    return ppedu.train(
        model, schedule, data, loss_fn, optimizer, steps, device="cpu", gradients=True, progress=False, **rest
    )


def state_of(model) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in nn.ModuleList(model).state_dict().items()}


def check(schedule: Schedule, model=None, data=None, loss_fn=mse, optimizer=momentum, steps=3) -> None:
    model = layers(4, 5, 3, 6, 4, 2) if model is None else model
    data = [batch(SAMPLES, 4, 2, seed) for seed in range(2)] if data is None else data
    plain = Plain(model, data, loss_fn, optimizer, steps)
    run = train(model, schedule, data, loss_fn, optimizer, steps)
    assert_equal_training(run.losses, run.gradients, model.state_dict(), plain)


# the grid

GRID = [(1, 1), (1, 4), (2, 1), (2, 5), (3, 2), (3, 8), (4, 3), (4, 8), (6, 4)]


@pytest.mark.parametrize("make", [ppedu.naive, ppedu.gpipe, ppedu.one_f_one_b], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("p", "m"), GRID, ids=str)
def test_every_gradient_is_that_of_the_whole_batch(make, p, m):
    """p=1, m=1, m < p, and 13 samples in m parts that differ by one."""
    check(make(p, m))


def test_orders_that_no_builder_makes():
    check(Schedule.from_text("F1 F0 F2 B2 B0 B1\nF1 F0 I0 F2 I2 W0 B1 W2"))
    a, b = (lambda s, i: Action(s, F, i)), (lambda s, i: Action(s, Kind.B, i))
    first = (a(0, 0), a(0, 1), Overlap(a(0, 2), b(0, 0)), b(0, 1), b(0, 2))
    last = (a(1, 0), b(1, 0), a(1, 1), Overlap(a(1, 2), b(1, 1)), b(1, 2))
    check(Schedule("pairs", 3, (0, 1), (first, last)))


# models


def test_a_transformer():
    model = ByteGPT(blocks=4, width=8, heads=2, context=6).double()
    g = torch.Generator().manual_seed(0)
    tokens = torch.randint(256, (5, 7), generator=g)
    data = [(tokens[:, :-1], tokens[:, 1:])]
    check(ppedu.one_f_one_b(4, 3), model, data, next_byte_loss)
    check(ppedu.gpipe(2, 5), model, data, next_byte_loss, lambda w: torch.optim.AdamW(w, lr=1e-3))


def test_layers_that_work_in_place_and_layers_without_weights():
    """Each stage but one begins with a layer that writes over what was received, or has no weights at all."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Tanh(), nn.Linear(4, 4), nn.LeakyReLU(inplace=True), nn.Linear(4, 2)
    ).double()
    check(ppedu.one_f_one_b(6, 3), model)
    check(ppedu.gpipe(6, 3), model)
    check(golden("zbh1_p4_m8"), model)
    check(ppedu.gpipe(2, 2), nn.Sequential(nn.Identity(), nn.Linear(4, 2)).double())


def test_frozen_weights_stay_and_pass_gradients_on():
    for frozen in ([0], [1], [2], [1, 2]):
        model = nn.Sequential(*(nn.Sequential(*layers(4, 4, seed=s)) for s in range(2)), *layers(4, 2))
        for layer in frozen:
            model[layer].requires_grad_(False)
        check(ppedu.one_f_one_b(3, 3), model, steps=2)


def test_models_in_every_form():
    data, sizes = [batch(SAMPLES, 4, 2)], (4, 3, 3, 40, 2)
    plain = Plain(layers(*sizes), data, mse, momentum, 2)
    for make in (list, tuple, nn.ModuleList):
        model = make(layers(*sizes))
        run = train(model, ppedu.one_f_one_b(3, 4), data, steps=2)
        assert_equal_training(run.losses, run.gradients, state_of(model), plain)
    model = layers(*sizes)
    stages = ppedu.split(model, p=3, by="parameters")
    assert [len(stage) for stage in stages] != [len(stage) for stage in ppedu.split(model, p=3)]
    run = train(stages, ppedu.gpipe(3, 4), data, steps=2)
    assert_equal_training(run.losses, run.gradients, model.state_dict(), plain)


def test_a_weight_that_nothing_uses():
    class Spare(nn.Linear):
        def __init__(self):
            super().__init__(4, 2)
            self.spare = nn.Parameter(torch.ones(3))

    check(ppedu.gpipe(2, 2), nn.Sequential(nn.Linear(4, 4), Spare()).double())


def test_batch_statistics_come_back():
    """BatchNorm normalises each microbatch by itself: the same as going through the microbatches one by one."""
    torch.manual_seed(0)
    model = [nn.Linear(4, 4), nn.Tanh(), nn.BatchNorm1d(4), nn.Linear(4, 3), nn.Tanh(), nn.BatchNorm1d(3)]
    model = nn.Sequential(*model).double()
    m, data = 3, [batch(SAMPLES, 4, 3)]
    wanted = copy.deepcopy(model)
    for x, y in zip(*(t.tensor_split(m) for t in data[0]), strict=True):
        (mse(wanted(x), y) * (len(x) / SAMPLES)).backward()
    momentum(wanted.parameters()).step()
    run = train(model, ppedu.one_f_one_b(2, m), data, steps=1)
    for name, w in wanted.named_parameters():
        assert_close(run.gradients[name], w.grad, name)
    for name, tensor in wanted.state_dict().items():
        assert_close(model.state_dict()[name], tensor, name)
    assert model[2].num_batches_tracked == m


# data


def test_lists_and_functions_and_batches_that_change():
    sizes = [13, 5, 9, 13]
    batches = [batch(n, 4, 2, seed) for seed, n in enumerate(sizes)]

    def of_step(step):
        return batches[step % len(batches)]

    check(ppedu.one_f_one_b(3, 4), data=batches, steps=6)
    check(ppedu.one_f_one_b(3, 4), data=of_step, steps=6)
    check(golden("zbv_p4_m8"), layers(4, *(3,) * 6, 2), [batch(n, 4, 2, n) for n in (8, 17, 9)], steps=4)


def test_sequences_may_be_longer_in_one_step_than_in_another():
    """As many samples, other shapes: a receive that was posted for the shape before would take the bytes for it."""
    model = ByteGPT(blocks=2, width=8, heads=2, context=9).double()

    def data(step):
        tokens = torch.randint(256, (4, 2 + (7, 3, 5, 7)[step]), generator=torch.Generator().manual_seed(step))
        return tokens[:, :-1], tokens[:, 1:]

    check(ppedu.one_f_one_b(2, 2), model, data, next_byte_loss, steps=4)


def test_no_optimizer_leaves_the_weights():
    model, data = layers(4, 5, 2), [batch(SAMPLES, 4, 2)]
    plain = Plain(model, data, mse, None, 2)
    run = train(model, ppedu.one_f_one_b(2, 3), data, optimizer=None, steps=2)
    assert_equal_training(run.losses, run.gradients, model.state_dict(), plain)
    assert run.losses[0] == run.losses[1]


def test_forwards_alone():
    """Losses, and nothing else: no gradient, no weight moved, nothing kept."""
    model = layers(4, 5, 3, 2)
    before, data = copy.deepcopy(model.state_dict()), [batch(SAMPLES, 4, 2, seed) for seed in range(2)]
    wanted = [mse(model(x), y).item() for x, y in data]
    run = train(model, ppedu.forward_only(3, 4), data, steps=2)
    assert run.losses == pytest.approx(wanted, rel=1e-12)
    assert run.gradients == {}
    assert run.peak_activation_bytes == (0, 0, 0)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_runs_in_a_row_go_on_where_the_last_one_ended():
    """Weights are back in the model. (The optimizer's state lives for one call: so here is one without any.)"""
    model, data = layers(4, 5, 3, 2), [batch(SAMPLES, 4, 2)]

    def sgd(weights):
        return torch.optim.SGD(weights, lr=0.1)

    plain = Plain(model, data, mse, sgd, 3)
    losses = []
    for schedule in (ppedu.naive(2, 2), ppedu.gpipe(3, 4), ppedu.one_f_one_b(4, 3)):
        run = train(model, schedule, data, optimizer=sgd, steps=1)
        losses += run.losses
    assert_equal_training(losses, run.gradients, model.state_dict(), plain)


def test_the_comparison_bites():
    """One gradient off by a part in 10^9, or the mean of means over unequal microbatches, is seen."""
    model, data = layers(4, 5, 2), [batch(SAMPLES, 4, 2)]
    plain = Plain(model, data, mse, momentum, 1)
    run = train(model, ppedu.gpipe(2, 4), data, steps=1)
    assert_equal_training(run.losses, run.gradients, model.state_dict(), plain)
    off = {**run.gradients, "0.bias": run.gradients["0.bias"] * (1 + 1e-9)}
    with pytest.raises(AssertionError, match=r"gradient of 0\.bias"):
        assert_equal_training(run.losses, off, model.state_dict(), plain)
    twin = copy.deepcopy(plain.model)
    parts = [mse(twin(x), y).item() for x, y in zip(*(t.tensor_split(4) for t in data[0]), strict=True)]
    assert sum(parts) / 4 != pytest.approx(run.losses[0], rel=1e-4)


# torch.distributed.pipelining

PIPELINING = [(1, 2), (2, 4), (4, 4), (4, 8), (4, 2)]


@pytest.mark.parametrize("p", sorted({p for p, _ in PIPELINING}))
def test_the_same_numbers_as_pipelining(p):
    """torch's own GPipe and 1F1B, on the same stages and whole microbatches (theirs must be equal). It refuses m < p for
    1F1B; ppedu does not, and the test above shows that its numbers are right."""
    steps = 2
    cases = [(name, m) for q, m in PIPELINING if q == p for name in ("gpipe", "1f1b")]
    model = layers(4, 5, 3, 6, 2)
    data = [batch(16, 4, 2, seed) for seed in range(steps)]
    stages = ppedu.split(model, p)
    theirs = in_ranks(pipelining_rank, [(stage, data, cases, steps) for stage in stages])
    starts = [0, *torch.tensor([len(s) for s in stages]).cumsum(0).tolist()]
    assert all(b > a for a, b in pairwise(starts))
    for number, (name, m) in enumerate(cases):
        refused = name == "1f1b" and m < p
        plain = Plain(model, data, mse, momentum, steps)
        mine = copy.deepcopy(model)
        run = train(mine, ppedu.SCHEDULES[name](p, m), data, steps=steps)
        assert_equal_training(run.losses, run.gradients, mine.state_dict(), plain)
        found = [rank[number] for rank in theirs]
        if refused:
            assert all(isinstance(f, str) and "number of stages" in f for f in found), found
            continue
        losses = found[-1]["losses"]
        gradients, state = {}, {}
        for start, part in zip(starts, found, strict=False):
            for kind, into in (("gradients", gradients), ("state", state)):
                for key, tensor in part[kind].items():
                    layer, _, rest = key.partition(".")
                    into[f"{start + int(layer)}.{rest}"] = tensor
        assert run.losses == pytest.approx(losses, rel=1e-12)
        assert gradients.keys() == run.gradients.keys()
        for key, tensor in gradients.items():
            assert_close(run.gradients[key], tensor, f"{name} m={m}: gradient of {key}")
        for key, tensor in state.items():
            assert_close(mine.state_dict()[key], tensor, f"{name} m={m}: {key}")


class _AddsOnes(nn.Module):
    def forward(self, x):
        return x + torch.ones(2)  # of the default dtype, whatever that is


def test_ranks_have_the_callers_default_dtype():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        model = [nn.Linear(2, 2), _AddsOnes(), nn.Linear(2, 2)]
        run = train(model, ppedu.gpipe(2, 2), lambda step: (torch.ones(4, 2), torch.zeros(4, 2)), steps=1)
    finally:
        torch.set_default_dtype(before)
    assert {gradient.dtype for gradient in run.gradients.values()} == {torch.float64}


def test_too_few_layers_for_several_stages_a_rank():
    with pytest.raises(
        ValueError, match=r"ZB-V p=2 m=2 has 4 stages.*but the model has 3 layers\. Take a smaller p or v"
    ):
        train([nn.Linear(4, 4, dtype=torch.float64) for _ in range(3)], ppedu.zb_v(2, 2), [batch(4, 4, 4, 0)])
