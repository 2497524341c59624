"""One stage by itself: its gradients against plain autograd, B against I and W, and the bytes that it keeps."""

from __future__ import annotations

import copy
import gc
import weakref

import numpy as np
import pytest
import torch
from runtime_helpers import assert_close, layers, mse
from torch import Tensor, nn

from ppedu.course.models import ByteGPT, next_byte_loss
from ppedu.runtime.rank.stage import Meter, Stage

DOUBLE = 8  # bytes


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(*shape: int) -> Tensor:
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(0))


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: w.grad for name, w in module.named_parameters() if w.grad is not None}


class Shared(nn.Module):
    """Uses one tensor in several places, in place and through views."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbers(3, 3, seed=3))

    def forward(self, x: Tensor) -> Tensor:
        y = (x @ self.weight).tanh()
        z = y.view(-1, 1, 3).flatten(1) * y
        return z.relu_() + y.t().sum(0).unsqueeze(-1)


MODULES = {
    "linear": lambda: layers(3, 5, 3),
    "ends in tanh": lambda: nn.Sequential(*layers(3, 3), nn.Tanh()),
    "no weights": lambda: nn.Sequential(nn.Tanh(), nn.Softmax(-1)),
    "in place first": lambda: nn.Sequential(nn.ReLU(inplace=True), *layers(3, 3)),
    "in place only": lambda: nn.Sequential(nn.ReLU(inplace=True)),
    "identity": lambda: nn.Sequential(nn.Identity()),
    "norm": lambda: nn.Sequential(nn.LayerNorm(3), nn.GELU(), nn.Linear(3, 3)).double(),
    "batch norm": lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)).double(),
    "views": Shared,
    "frozen": lambda: nn.Sequential(*layers(3, 3), *layers(3, 3)).requires_grad_(False),
}
EACH_MODULE = pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)


def plain(module: nn.Module, x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """(output, gradient for x, gradients of the weights), by torch alone."""
    module, x = copy.deepcopy(module), x.clone().requires_grad_()
    y = module(x * 1)
    y.backward(gradient)
    return y.detach(), x.grad, gradients(module)


def same_gradients(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert_close(found[name], gradient, name)


# gradients


@EACH_MODULE
def test_backward_is_plain_autograd(make):
    module, x, gradient = make(), numbers(4, 3), numbers(4, 3, seed=1)
    wanted_y, wanted_x, wanted = plain(module, x, gradient)
    stage = Stage(module, Meter(), first=False, loss_fn=None)
    y, loss = stage.forward(0, x.clone())
    assert loss is None
    assert not y.requires_grad
    assert_close(y, wanted_y, "output")
    assert_close(stage.backward(0, gradient), wanted_x, "gradient for the input")
    same_gradients(gradients(module), wanted)
    assert not stage.in_flight


@EACH_MODULE
def test_input_and_weight_halves_are_the_whole(make):
    module, x, gradient = make(), numbers(4, 3), numbers(4, 3, seed=1)
    _, wanted_x, wanted = plain(module, x, gradient)
    stage = Stage(module, Meter(), first=False, loss_fn=None)
    stage.forward(0, x.clone())
    assert_close(stage.backward_input(0, gradient), wanted_x, "gradient for the input")
    vectors = {name for name, w in module.named_parameters() if w.dim() < 2 and w.requires_grad}
    assert gradients(module).keys() == vectors  # I leaves the matrices alone
    assert {name for name, w in module.named_parameters() if any(w is u for u in stage.unsplit)} == set()
    stage.backward_weight(0)
    same_gradients(gradients(module), wanted)
    assert not stage.in_flight
    assert not stage.queues


@pytest.mark.parametrize("halves", [False, True], ids=["B", "I W"])
def test_microbatches_add_up_in_any_order(halves):
    module = layers(3, 4, 3)
    parts = [(numbers(n, 3, seed=n), numbers(n, 3, seed=n + 10)) for n in (2, 3, 1)]
    whole = plain(module, torch.cat([x for x, _ in parts]), torch.cat([g for _, g in parts]))
    stage = Stage(module, Meter(), first=False, loss_fn=None)
    for i in (2, 0, 1):
        stage.forward(i, parts[i][0].clone())
    back = {}
    for i in (1, 2, 0):
        back[i] = stage.backward_input(i, parts[i][1]) if halves else stage.backward(i, parts[i][1])
    for i in (0, 2, 1) if halves else ():
        stage.backward_weight(i)
    assert_close(torch.cat([back[i] for i in range(3)]), whole[1], "gradients for the inputs")
    same_gradients(gradients(module), whole[2])


@pytest.mark.parametrize("halves", [False, True], ids=["B", "I W"])
def test_the_last_stage_weighs_the_loss_by_its_share(halves):
    module, x, target = layers(3, 2), numbers(5, 3), numbers(5, 2, seed=1)
    whole, inputs = copy.deepcopy(module), x.clone().requires_grad_()
    wanted = mse(whole(inputs), target)
    wanted.backward()
    stage = Stage(module, Meter(), first=False, loss_fn=mse)
    loss, back = 0.0, []
    for i, part in enumerate((slice(0, 2), slice(2, 5))):
        share = (part.stop - part.start) / 5
        y, mean = stage.forward(i, x[part].clone(), target[part], share)
        assert y.item() == pytest.approx(mean.item() * share)
        loss += mean.item() * share
        back.append(stage.backward_input(i, None) if halves else stage.backward(i, None))
        if halves:
            stage.backward_weight(i)
    assert loss == pytest.approx(wanted.item(), rel=1e-12)
    assert_close(torch.cat(back), inputs.grad, "gradient for the input")
    same_gradients(gradients(module), gradients(whole))


@pytest.mark.parametrize("halves", [False, True], ids=["B", "I W"])
def test_the_first_stage_returns_no_gradient(halves):
    model = ByteGPT(blocks=1, width=8, heads=2, context=4).double()
    whole = copy.deepcopy(model)
    x = tokens(3, 4)
    next_byte_loss(whole(x), x).backward()
    stage = Stage(model, Meter(), first=True, loss_fn=next_byte_loss)
    stage.forward(0, x, x)
    assert (stage.backward_input(0, None) if halves else stage.backward(0, None)) is None
    if halves:
        assert all(gradient.dim() < 2 for gradient in gradients(model).values())
        stage.backward_weight(0)
    same_gradients(gradients(model), gradients(whole))


@pytest.mark.filterwarnings("ignore:Complex modules")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.complex128])
def test_every_kind_of_number_that_has_a_gradient(dtype):
    module, x, gradient = layers(3, 4, 3).to(dtype), numbers(4, 3).to(dtype), numbers(4, 3, seed=1).to(dtype)
    _, wanted_x, wanted = plain(module, x, gradient)
    stage = Stage(module, Meter(), first=False, loss_fn=None)
    stage.forward(0, x.clone())
    assert torch.equal(stage.backward(0, gradient), wanted_x)
    assert all(torch.equal(gradients(module)[name], wanted[name]) for name in wanted)


def test_a_stage_that_forgets_its_input_returns_zeros():
    """The rank before it waits for a gradient in any case."""

    class Forgets(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(torch.ones_like(x))

    for halves in (False, True):
        stage = Stage(Forgets(3, 3).double(), Meter(), first=False, loss_fn=None)
        stage.forward(0, numbers(4, 3))
        back = stage.backward_input(0, numbers(4, 3)) if halves else stage.backward(0, numbers(4, 3))
        assert back.shape == (4, 3)
        assert not back.any()
        if halves:
            stage.backward_weight(0)
        assert all(w.grad is not None for w in stage.weights)


def test_a_stage_of_frozen_weights_at_the_very_start_has_nothing_to_do():
    stage = Stage(layers(3, 3).requires_grad_(False), Meter(), first=True, loss_fn=None)
    for i, halves in enumerate((False, True)):
        stage.forward(i, numbers(4, 3))
        assert (stage.backward_input(i, numbers(4, 3)) if halves else stage.backward(i, numbers(4, 3))) is None
        if halves:
            stage.backward_weight(i)
    assert not stage.in_flight
    assert stage.weights == []


def test_whole_numbers_pass_between_stages_without_a_gradient():
    """A first stage that looks up or shifts tokens, say."""
    stage = Stage(nn.Embedding(256, 3).double(), Meter(), first=False, loss_fn=None)
    stage.forward(0, tokens(2, 4))
    back = stage.backward(0, numbers(2, 4, 3))
    assert back.shape == (2, 4)
    assert back.dtype == torch.int64
    assert stage.module.weight.grad is not None


def test_stages_of_one_rank_share_memory_and_autograd_still_watches():
    """What a stage sends to the next one on its own rank is not copied. A next stage that works in place may spoil what
    the first has saved: refused, as in the unsplit model, not computed wrongly."""
    meter = Meter()
    for last, fits in ((nn.Linear(3, 3), True), (nn.Tanh(), False)):
        first = Stage(last.double(), meter, first=True, loss_fn=None)
        second = Stage(nn.Sequential(nn.ReLU(inplace=True)), meter, first=False, loss_fn=None)
        x = numbers(4, 3)
        x.requires_grad_(not fits)  # so that there is something to do for a Tanh
        y, _ = first.forward(0, x)
        second.forward(0, y)
        back = second.backward(0, numbers(4, 3, seed=1))
        if fits:
            first.backward(0, back)
            continue
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            first.backward(0, back)


@pytest.mark.parametrize("active", [True, False])
def test_a_layer_that_spoils_what_another_saved_is_found_with_the_meter_and_without(active):
    """Hooks on saved tensors switch off torch's own look at versions, and numbers would be wrong in the first step."""
    meter = Meter()
    meter.active = active
    stage = Stage(nn.Sequential(nn.Tanh(), nn.ReLU(inplace=True)), meter, first=False, loss_fn=None)
    stage.forward(0, numbers(4, 3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stage.backward(0, numbers(4, 3))


# what is refused


def test_a_stage_passes_on_one_tensor():
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    with pytest.raises(TypeError, match="a stage passes on one tensor, but this one returned tuple"):
        Stage(Pair(), Meter(), first=False, loss_fn=None).forward(0, numbers(2, 3))


@pytest.mark.parametrize(
    ("loss", "what"), [(lambda y, t: (y - t) ** 2, r"shape \(2, 3\)"), (lambda y, t: 1.0, "float")]
)
def test_a_loss_is_one_number(loss, what):
    stage = Stage(layers(3, 3), Meter(), first=False, loss_fn=loss)
    with pytest.raises(ValueError, match=f"a tensor of one number, but it returned {what}"):
        stage.forward(0, numbers(2, 3), numbers(2, 3))


@pytest.mark.parametrize("loss", [lambda y, t: torch.tensor(1.0), lambda y, t: ((y - t) ** 2).mean().detach()])
def test_a_loss_without_a_gradient_is_refused_where_something_could_learn(loss):
    stage = Stage(layers(3, 3), Meter(), first=True, loss_fn=loss)
    with pytest.raises(ValueError, match=r"the loss has no gradient: .* Leave .item\(\)"):
        stage.forward(0, numbers(2, 3), numbers(2, 3))
    assert stage.forward(0, numbers(2, 3), numbers(2, 3), train=False)[1] is not None
    stage.module.requires_grad_(False)
    assert stage.forward(0, numbers(2, 3), numbers(2, 3))[1] is not None


# memory


def test_bytes_by_hand():
    """Linear saves its input, Tanh its output, which is the next Linear's input: each storage once, weights left out.

    Widths 4 - 8 - 6 - 2, five samples, float64: 4 + 8 + 6 numbers a sample in the middle of a pipeline.
    """
    meter = Meter()
    stage = Stage(layers(4, 8, 6, 2), meter, first=False, loss_fn=None)
    stage.forward(0, numbers(5, 4))
    assert meter.now == 5 * (4 + 8 + 6) * DOUBLE
    stage.forward(1, numbers(3, 4))
    assert meter.now == meter.peak == 8 * (4 + 8 + 6) * DOUBLE
    stage.backward(0, numbers(5, 2))
    assert meter.now == 3 * (4 + 8 + 6) * DOUBLE
    stage.backward(1, numbers(3, 2))
    assert meter.now == 0
    assert meter.peak == 8 * (4 + 8 + 6) * DOUBLE


def test_the_batch_is_there_in_any_case():
    """On the first stage the input is a part of the batch, on the last the target: neither waits because of a backward."""
    meter = Meter()
    batch, targets = numbers(8, 4), numbers(8, 2)
    meter.ignore((batch, targets))
    stage = Stage(layers(4, 8, 2), meter, first=True, loss_fn=mse)
    stage.forward(0, batch.tensor_split(2)[1], targets.tensor_split(2)[1])
    assert meter.now == 4 * (8 + 2) * DOUBLE  # Tanh's output, and the model's, which the loss saves
    stage.backward(0, None)
    assert meter.now == 0


def test_bytes_from_input_half_to_weight_half_by_hand():
    """I frees what only I needed (GELU's input), and W's queue keeps the inputs of both linear layers and the gradients
    of their outputs: 4 + 8 and 8 + 2 numbers a sample."""
    meter = Meter()
    module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).double()
    stage = Stage(module, meter, first=False, loss_fn=None)
    stage.forward(0, numbers(5, 4))
    saved = 5 * (4 + 8 + 8) * DOUBLE
    assert meter.now == saved
    stage.backward_input(0, numbers(5, 2))
    assert meter.now == meter.peak == 5 * (4 + 8 + 8 + 2) * DOUBLE
    stage.forward(1, numbers(3, 4))
    stage.backward_weight(0)
    assert meter.now == 3 * (4 + 8 + 8) * DOUBLE
    stage.backward_input(1, numbers(3, 2))
    stage.backward_weight(1)
    assert meter.now == 0


def test_input_half_frees_what_needs_no_weights():
    """Of many activations without weights nothing stays for W."""
    meter = Meter()
    stage = Stage(nn.Sequential(*(nn.Tanh() for _ in range(5)), *layers(4, 2)), meter, first=False, loss_fn=None)
    stage.forward(0, numbers(5, 4))
    assert meter.now == 5 * (5 * 4) * DOUBLE  # five outputs, the last of which is also the input of Linear
    stage.backward_input(0, numbers(5, 2))
    assert meter.now == 5 * (4 + 2) * DOUBLE
    stage.backward_weight(0)
    assert meter.now == 0


def test_a_gradient_that_two_layers_share_counts_once():
    """x + f(x): the sum hands one gradient to both of its parts."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = layers(4, 4)[0], layers(4, 4)[0]

        def forward(self, x: Tensor) -> Tensor:
            return self.one(x) + self.other(x)

    meter = Meter()
    stage = Stage(Both(), meter, first=False, loss_fn=None)
    stage.forward(0, numbers(5, 4))
    stage.backward_input(0, numbers(5, 4))
    assert meter.now == 5 * (4 + 4) * DOUBLE  # one input, one gradient


def test_a_storage_that_two_stages_save_counts_once():
    """The first stage's Tanh saves its output, which the second stage's Linear, on the same rank, saves as its input."""
    meter = Meter()
    first = Stage(nn.Sequential(*layers(3, 4), nn.Tanh()), meter, first=False, loss_fn=None)
    second = Stage(layers(4, 2), meter, first=False, loss_fn=None)
    y, _ = first.forward(0, numbers(5, 3))
    assert meter.now == 5 * (3 + 4) * DOUBLE
    second.forward(0, y)
    assert meter.now == 5 * (3 + 4) * DOUBLE
    back = second.backward(0, numbers(5, 2))
    assert meter.now == 5 * (3 + 4) * DOUBLE  # the first stage still holds it
    first.backward(0, back)
    assert meter.now == 0


def test_views_count_their_whole_storage_once():
    meter = Meter()

    class Halves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.exp()  # saves y
            return y[:, :1] * y[:, 1:2]  # saves two views of y

    stage = Stage(Halves(), meter, first=False, loss_fn=None)
    stage.forward(0, numbers(5, 3))
    assert meter.now == 5 * 3 * DOUBLE


def test_buffers_and_weights_are_left_out():
    meter = Meter()
    module = nn.Sequential(nn.BatchNorm1d(3).double().eval())  # saves its statistics, which are buffers
    stage = Stage(module, meter, first=False, loss_fn=None)
    stage.forward(0, numbers(4, 3))
    assert meter.now == 4 * 3 * DOUBLE


def test_nothing_is_kept_without_training():
    meter = Meter()
    stage = Stage(layers(3, 4, 2), meter, first=True, loss_fn=mse)
    loss, mean = stage.forward(0, numbers(5, 3), numbers(5, 2), share=0.5, train=False)
    assert loss.item() == mean.item() / 2
    assert (meter.now, meter.peak, stage.in_flight) == (0, 0, {})


def test_a_resting_meter_counts_nothing_and_still_frees():
    meter = Meter()
    stage = Stage(layers(3, 4, 2), meter, first=False, loss_fn=None)
    stage.forward(0, numbers(5, 3))
    meter.active = False
    stage.forward(1, numbers(5, 3))
    stage.backward_input(1, numbers(5, 2))
    stage.backward_weight(1)
    assert meter.now == meter.peak > 0
    stage.backward(0, numbers(5, 2))
    assert meter.now == 0


@pytest.mark.parametrize("halves", [False, True], ids=["B", "I W"])
def test_what_the_meter_counts_is_really_there_and_really_freed(halves):
    """No reference is left behind, and none is dropped early: seen from an array that lies under the saved tensor."""
    below = np.zeros((5, 3))
    alive = weakref.ref(below)
    stage = Stage(layers(3, 4, 2), Meter(), first=False, loss_fn=None)
    stage.forward(0, torch.from_numpy(below))
    del below
    if halves:
        stage.backward_input(0, numbers(5, 2))
    assert alive() is not None
    assert stage.meter.now
    if halves:
        stage.backward_weight(0)
    else:
        stage.backward(0, numbers(5, 2))
    gc.collect()
    assert alive() is None
    assert not stage.meter.now
