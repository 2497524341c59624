"""I and W by themselves: what B gives, whatever layers a stage has; and what they leave in memory."""

from __future__ import annotations

import copy
import gc
import threading
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from runtime_helpers import Plain, assert_close, assert_equal_training, batch, layers, mse
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from torchrun import torchrun

import ppedu
from ppedu.course.models import Block, ByteGPT, next_byte_loss
from ppedu.runtime.rank.stage import Meter, Stage


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(*shape: int, below: int = 7) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(0))


class Calls(nn.Module):
    """A linear layer's weights, used as a function says."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(numbers(4, 4, seed=5)), nn.Parameter(numbers(4, seed=6))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.function(x, self.weight, self.bias)
        return result


class Letters(nn.Module):
    """A linear layer that is none to the eye."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(numbers(4, 4, seed=5)), nn.Parameter(numbers(4, seed=6))

    def forward(self, x: Tensor) -> Tensor:
        return (x.unsqueeze(-1) * self.weight).sum(-2) + self.bias


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = inner, reentrant

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


def frozen(module: nn.Module, *names: str) -> nn.Module:
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 4)).double()


def attention() -> tuple[nn.Module, Tensor]:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x: Tensor) -> Any:
            return self.inner(x, x, x, need_weights=False)[0]

    return Looks().double(), numbers(2, 3, 4)


# What is split whole: (module, input)
SPLIT = {
    "linear": lambda: (layers(4, 4), numbers(6, 4)),
    "one sample without a dimension": lambda: (layers(4, 4), numbers(4)),
    "three dimensions": lambda: (layers(4, 5, 4), numbers(2, 3, 4)),
    "four dimensions": lambda: (layers(4, 5, 4), numbers(2, 2, 3, 4)),
    "transposed": lambda: (layers(4, 5, 4), numbers(4, 6).t()),
    "no bias": lambda: (nn.Linear(4, 4, bias=False).double(), numbers(2, 3, 4)),
    "frozen weight": lambda: (frozen(layers(4, 4), "0.weight"), numbers(2, 3, 4)),
    "frozen bias": lambda: (frozen(layers(4, 4), "0.bias"), numbers(2, 3, 4)),
    "all frozen but the last": lambda: (frozen(layers(4, 4, 4), "0.weight", "0.bias"), numbers(2, 3, 4)),
    "norm": lambda: (nn.LayerNorm(4).double(), numbers(2, 3, 4)),
    "norm without a bias": lambda: (nn.LayerNorm(4, bias=False).double(), numbers(2, 3, 4)),
    "norm without weights": lambda: (nn.Sequential(nn.LayerNorm(4, elementwise_affine=False), *layers(4, 4)).double(), numbers(6, 4)),
    "in place after linear": lambda: (mlp(), numbers(2, 3, 4)),
    "block": lambda: (Block(8, 2).double(), numbers(2, 3, 8)),
    "single precision": lambda: (Block(8, 2), numbers(2, 3, 8).float()),
    "half precision": lambda: (mlp().bfloat16(), numbers(2, 3, 4).bfloat16()),
    "used twice": lambda: (Calls(lambda x, w, b: F.linear(F.linear(x, w, b).tanh(), w, b)), numbers(2, 3, 4)),
    "used three times": lambda: (Calls(lambda x, w, b: F.linear(F.linear(F.linear(x, w), w, b), w)), numbers(6, 4)),
    "by name": lambda: (Calls(lambda x, w, b: F.linear(bias=b, weight=w, input=x)), numbers(6, 4)),
    "an unused output": lambda: (Calls(lambda x, w, b: (F.linear(x, w, b), x * 2)[1]), numbers(6, 4)),
    "half of the output": lambda: (Calls(lambda x, w, b: F.linear(x, w, b)[..., :2].repeat(1, 2)), numbers(6, 4)),
    "an output that is cut off": lambda: (Calls(lambda x, w, b: x + F.linear(x, w, b).detach()), numbers(6, 4)),
    "without a gradient in between": lambda: (Calls(quietly), numbers(6, 4)),
    "expanded": lambda: (Calls(lambda x, w, b: F.linear(x, w, b).sum(-1, keepdim=True).expand(6, 4)), numbers(6, 4)),
    "checkpointed": lambda: (nn.Sequential(Checkpointed(mlp(), False), *layers(4, 4)), numbers(2, 3, 4)),
    "tokens": lambda: (nn.Sequential(nn.Embedding(7, 4), *layers(4, 4)).double(), tokens(2, 3)),
    "tokens with a padding": lambda: (nn.Embedding(7, 4, padding_idx=-3).double(), tokens(5, 6)),
    "tokens of 32 bits": lambda: (nn.Embedding(7, 4).double(), tokens(5, 6).int()),
    "renormalised tokens": lambda: (nn.Embedding(7, 4, max_norm=1.0).double(), tokens(2, 3)),
    "by the letter": lambda: (Calls(lambda x, w, b: x @ w + b), numbers(6, 4)),
    "both ways": lambda: (Calls(lambda x, w, b: F.linear(x, w, b) @ w), numbers(6, 4)),
    "vmap": lambda: (Calls(lambda x, w, b: torch.func.vmap(lambda row: F.linear(row, w, b))(x)), numbers(6, 4)),
    "first of a GPT": lambda: (ByteGPT(blocks=1, width=8, heads=2, context=4).double(), tokens(3, 4)),
}  # fmt: skip


def quietly(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    with torch.no_grad():
        scale = F.linear(x, weight, bias)
    return F.linear(x * scale, weight, bias)


def penalised(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Takes a gradient of its own in the forward, and a gradient of that later: force fields do so."""
    with torch.enable_grad():
        energy = F.linear(x, weight, bias).tanh().sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
    return x + force


def in_bfloat(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(x.float(), weight, bias).double()


def listened() -> tuple[nn.Module, Tensor]:
    module = layers(4, 4, 4)
    module[0].weight.register_hook(lambda g: g * 2)
    return module, numbers(6, 4)


# What is not, or not in whole: (module, input), and the weights whose gradients come in I
UNSPLIT = {
    "convolution": (
        lambda: (nn.Sequential(nn.Conv1d(3, 3, 1), *layers(4, 4)).double(), numbers(2, 3, 4)), {"0.weight"},
    ),
    "batch norm": (
        lambda: (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).double(), numbers(6, 4)), set(),
    ),
    "parametrized": (
        lambda: (weight_norm(nn.Linear(4, 4)).double(), numbers(6, 4)),
        {"parametrizations.weight.original0", "parametrizations.weight.original1"},
    ),
    "norm over two dimensions": (lambda: (nn.LayerNorm((3, 4)).double(), numbers(2, 3, 4)), {"weight", "bias"}),
    "the weight on the left": (lambda: (Calls(lambda x, w, b: (w @ x.t()).t() + b), numbers(6, 4)), {"weight"}),
    "the weight by itself": (lambda: (Calls(lambda x, w, b: F.linear(x, w, b) * w.sum()), numbers(6, 4)), {"weight"}),
    "checkpointed, reentrant": (
        lambda: (nn.Sequential(Checkpointed(mlp(), True), *layers(4, 4)), numbers(2, 3, 4)),
        {"0.inner.1.weight", "0.inner.3.weight", "1.weight"},
    ),
    "autocast": (lambda: (Calls(in_bfloat).float(), numbers(6, 4)), {"weight"}),
    "a gradient of its own": (lambda: (Calls(penalised), numbers(6, 4)), {"weight"}),
    "tokens by frequency": (lambda: (nn.Embedding(7, 4, scale_grad_by_freq=True).double(), tokens(5, 6)), {"weight"}),
    "sparse tokens": (lambda: (nn.Embedding(7, 4, sparse=True).double(), tokens(2, 3)), {"weight"}),
    "torch's attention": (attention, set()),  # to rounding: its inputs are not contiguous
    "a view that is not contiguous": (lambda: (layers(4, 5, 4), numbers(4, 2, 3).permute(1, 2, 0)), set()),  # to rounding
    "listened to": (listened, {"0.weight"}),
}  # fmt: skip


def built(make: Any) -> tuple[nn.Module, Tensor]:
    """The same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, x = make()
    return module, x


def train_both(make: Any, same: Any = torch.equal, microbatches: int = 3) -> tuple[Stage, Stage]:
    """Microbatches through two stages, by B and by I and W: outputs and inputs' gradients are equal on the way."""
    whole, halves = (Stage(built(make)[0], Meter(), first=False, loss_fn=None) for _ in range(2))
    x = built(make)[1]
    for i in range(microbatches):
        inputs = x * (i + 1) / 2 if x.is_floating_point() else x
        ys = [stage.forward(i, inputs.clone())[0] for stage, split in ((whole, False), (halves, True))]
        assert same(*ys)
    gradient = [numbers(*ys[0].shape, seed=i).to(ys[0].dtype) for i in range(microbatches)]
    for i in range(microbatches):
        backs = [whole.backward(i, gradient[i]), halves.backward_input(i, gradient[i])]
        assert same(*backs)
        if i:  # one later than its I
            halves.backward_weight(i - 1)
    halves.backward_weight(microbatches - 1)
    assert not halves.meter.now
    return whole, halves


def assert_same_sums(one: nn.Module, other: nn.Module) -> None:
    """To rounding: W adds to a gradient in one pass over it, which rounds once where B rounds twice."""
    wanted = dict(one.named_parameters())
    for name, weight in other.named_parameters():
        gradient, expected = weight.grad, wanted[name].grad
        assert (gradient is None) == (expected is None), name
        if gradient is not None:
            assert_close(gradient, expected, name, {torch.float64: 1e-12, torch.float32: 1e-5}.get(weight.dtype, 2e-2))


def assert_same_bits(one: nn.Module, other: nn.Module) -> None:
    wanted = dict(one.named_parameters())
    for name, weight in other.named_parameters():
        gradient, expected = weight.grad, wanted[name].grad
        assert (gradient is None) == (expected is None), name
        if gradient is not None:
            assert torch.equal(gradient.to_dense(), expected.to_dense()), name


def names_of(stage: Stage) -> set[str]:
    return {name for name, w in stage.module.named_parameters() if any(w is u for u in stage.unsplit)}


TWICE = {
    "used twice",
    "used three times",
    "both ways",
    "without a gradient in between",
}  # weights that are summed in another order


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("name", SPLIT)
def test_both_halves_are_the_whole(name):
    whole, halves = train_both(SPLIT[name])
    assert_same_sums(whole.module, halves.module)
    assert names_of(halves) == set()
    whole, halves = train_both(SPLIT[name], microbatches=1)
    (assert_same_sums if name in TWICE else assert_same_bits)(whole.module, halves.module)


@pytest.mark.parametrize(("make", "left"), UNSPLIT.values(), ids=UNSPLIT)
def test_layers_without_a_split_are_right_and_named(make, left):
    whole, halves = train_both(make, torch.allclose)
    assert names_of(halves) == left
    wanted = dict(whole.module.named_parameters())
    for name, weight in halves.module.named_parameters():
        # a weight that is used both ways is summed in another order
        assert_close(
            weight.grad.to_dense(), wanted[name].grad.to_dense(), name, 1e-12 if weight.dtype == torch.float64 else 1e-6
        )


@pytest.mark.parametrize("make", SPLIT.values(), ids=SPLIT)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_input_half_leaves_the_weights_alone(make):
    """That the gradients above come in W, not in I: else equal numbers would say nothing about the split."""
    module, x = make()
    stage = Stage(module, Meter(), first=False, loss_fn=None)
    y, _ = stage.forward(0, x.clone())
    stage.backward_input(0, torch.ones_like(y))
    assert all(w.grad is None for w in module.parameters() if w.dim() > 1)  # vectors come in I on purpose
    stage.backward_weight(0)
    assert not stage.queues


def test_a_stage_may_run_some_microbatches_whole_and_split_others():
    """DualPipe does."""
    module = mlp()
    whole, mixed = (Stage(copy.deepcopy(module), Meter(), first=False, loss_fn=None) for _ in range(2))
    for i in range(4):
        x, gradient = numbers(3, 4, seed=i), numbers(3, 4, seed=i + 9)
        for stage in (whole, mixed):
            stage.forward(i, x.clone())
        back = mixed.backward_input(i, gradient) if i % 2 else mixed.backward(i, gradient)
        assert torch.equal(back, whole.backward(i, gradient))
        if i % 2:
            mixed.backward_weight(i)
    assert_same_sums(whole.module, mixed.module)


def test_whole_backward_after_a_forward_that_could_be_split():
    module, x = mlp(), numbers(3, 4)
    whole, other = (Stage(copy.deepcopy(module), Meter(), first=False, loss_fn=None) for _ in range(2))
    for stage in (whole, other):
        stage.forward(0, x.clone())
    assert torch.equal(whole.backward(0, x), other.backward(0, x))
    assert_same_bits(whole.module, other.module)


# memory


class _Token:
    pass


class _Holds(torch.autograd.Function):
    """Keeps an object for its backward, as layers keep activations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: _Token) -> Tensor:
        ctx.token = token
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * 2, None


def test_input_half_really_frees_the_graph():
    alive: list[weakref.ref[_Token]] = []

    class Holds(nn.Module):
        def forward(self, x: Tensor) -> Any:
            token = _Token()
            alive.append(weakref.ref(token))
            return _Holds.apply(x, token)

    stage = Stage(nn.Sequential(*layers(4, 4), Holds(), *layers(4, 4)), Meter(), first=False, loss_fn=None)
    stage.forward(0, numbers(3, 4))
    gc.collect()
    assert alive[0]() is not None
    stage.backward_input(0, numbers(3, 4))
    assert alive[0]() is None  # at once, not when Python happens to collect
    assert stage.meter.now == 3 * (4 + 4 + 4 + 4) * 8  # what W waits with: two inputs, two gradients
    stage.backward_weight(0)
    assert stage.meter.now == 0


def test_checkpointed_layers_keep_their_input_only():
    """Queues must not bring back what checkpointing saves: before I the block's input and the head's."""
    meter = Meter()
    stage = Stage(nn.Sequential(Checkpointed(mlp(), False), *layers(4, 4)), meter, first=False, loss_fn=None)
    stage.forward(0, numbers(3, 4))
    assert meter.now <= 3 * (4 + 4) * 8
    stage.backward_input(0, numbers(3, 4))
    assert meter.now > 3 * (4 + 4) * 8
    stage.backward_weight(0)
    assert meter.now == 0


# torch itself


def torchs_own() -> tuple[Any, ...]:
    autograd = torch.autograd
    return F.linear, F.embedding, autograd.grad, autograd.backward, autograd.Function.apply


def test_torchs_functions_stay_as_they_are():
    """In the forward, in both halves of the backward, and afterwards."""
    before, seen = torchs_own(), []

    class Sees(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(torchs_own())
            x.register_hook(lambda gradient: seen.append(torchs_own()))
            return x

    stage = Stage(nn.Sequential(*layers(4, 4), Sees(), *layers(4, 4)), Meter(), first=False, loss_fn=None)
    stage.forward(0, numbers(3, 4))
    stage.backward_input(0, numbers(3, 4))
    stage.backward_weight(0)
    assert [*seen, torchs_own()] == [before] * 3


IN_A_WORLD = """
import threading, torch, ppedu
from runtime_helpers import batch, mse

def torchs_own():
    F, autograd = torch.nn.functional, torch.autograd
    return F.linear, F.embedding, autograd.grad, autograd.backward, autograd.Function.apply

torch.manual_seed(0)
before, places = torchs_own(), []

class Looks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4, dtype=torch.float64)
    def __deepcopy__(self, memo):
        return self  # what the rank's thread sees is wanted in the main one
    def forward(self, x):
        places.append((threading.current_thread() is threading.main_thread(), torchs_own() == before))
        return self.inner(x)

ppedu.train([Looks(), Looks()], ppedu.zb_h1(2, 2), [batch(4, 4, 4)], mse, progress=False, device="cpu")
assert places and set(places) == {(False, True)}, places
assert torchs_own() == before
"""


@pytest.mark.slow
def test_torchs_functions_stay_as_they_are_in_a_process_that_joined_a_world(tmp_path):
    """There a rank computes in the user's own process."""
    done = torchrun(tmp_path, IN_A_WORLD, 2)
    assert done.returncode == 0, done.stderr[:2000]


def test_stages_in_two_threads_do_not_meet():
    """Each computes while the other is inside."""
    inside, gone = threading.Barrier(2), threading.Event()

    class Meets(nn.Module):
        def __init__(self, first: bool) -> None:
            super().__init__()
            self.inner, self.first = nn.Linear(4, 4), first

        def forward(self, x: Tensor) -> Any:
            inside.wait(10)
            if not self.first:
                assert gone.wait(10)
            return self.inner(x)

    stages = [Stage(Meets(first), Meter(), first=False, loss_fn=None) for first in (True, False)]

    def work(stage: Stage, first: bool) -> None:
        stage.forward(0, torch.ones(3, 4))
        stage.backward_input(0, torch.ones(3, 4))
        if first:
            gone.set()
        stage.backward_weight(0)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work, stage, first) for stage, first in zip(stages, (True, False), strict=True)]:
            done.result(20)
    for stage in stages:
        assert stage.unsplit == []
        assert torch.equal(stage.module.inner.weight.grad, torch.full((4, 4), 3.0))


def test_a_penalty_in_the_loss_is_right_too():
    """The gradient of a gradient: all of its graph is the loss's."""

    def penalised_loss(y: Tensor, target: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(y.square().sum(), weights[-1], create_graph=True)
        return mse(y, target) + slope.square().mean()

    found = []
    for split in (False, True):
        module, x = layers(4, 4, 4), numbers(6, 4)
        weights = [w for w in module.parameters() if w.dim() > 1]
        stage = Stage(module, Meter(), first=False, loss_fn=penalised_loss)
        stage.forward(0, x.clone(), torch.zeros(6, 4))
        found.append([stage.backward_input(0, None) if split else stage.backward(0, None)])
        if split:
            stage.backward_weight(0)
        assert not stage.meter.now
        found[-1] += [w.grad for w in module.parameters()]
    for one, other in zip(*found, strict=True):
        assert_close(one, other, "gradient")


def test_writing_over_what_w_needs_is_refused():
    class Spoils(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = x * 2
            y: Tensor = self.inner(x)
            x.add_(1)
            return y

    stage = Stage(Spoils(), Meter(), first=False, loss_fn=None)
    stage.forward(0, torch.ones(3, 4))
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation: a tensor of shape \(3, 4\)"):
        stage.backward_input(0, torch.ones(3, 4))


def test_other_modes_still_see_the_calls():
    seen = []

    class Sees(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    module = layers(4, 4)
    with Sees():
        Stage(module, Meter(), first=False, loss_fn=None).forward(0, numbers(2, 4))
    assert F.linear in seen


# for real


def adamw(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, lr=0.01)


def train_as_plain(schedule: ppedu.Schedule, model: nn.Sequential, data: list[Any], loss_fn: Any = mse) -> ppedu.Run:
    wanted = Plain(model, data, loss_fn, adamw, 3)
    run = ppedu.train(model, schedule, data, loss_fn, adamw, steps=3, gradients=True, progress=False, device="cpu")
    assert_equal_training(run.losses, run.gradients, dict(model.state_dict()), wanted)
    return run


def blocks(count: int) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(*(mlp() for _ in range(count)))


@pytest.mark.slow
@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 1), (3, 2), (3, 7)])
@pytest.mark.parametrize("key", ["interleaved", "looped_bfs", "zb_h1", "zb_h2", "zb_v", "dualpipev"])
def test_all_builders_train_as_one_process_does(key, p, m):
    """m < p, m = 1, microbatches of two sizes."""
    schedule = ppedu.SCHEDULES[key](p=p, m=m)
    train_as_plain(schedule, blocks(schedule.chain_length), [batch(2 * m + 1, 4, 4, seed) for seed in range(2)])


@pytest.mark.slow
@pytest.mark.parametrize("v", [1, 3])
@pytest.mark.parametrize("key", ["interleaved", "looped_bfs"])
def test_other_numbers_of_stages_a_rank(key, v):
    schedule = ppedu.SCHEDULES[key](p=2, m=4, v=v)
    train_as_plain(schedule, blocks(schedule.chain_length), [batch(9, 4, 4)])


@pytest.mark.slow
def test_the_courses_model_is_split_whole():
    model = ByteGPT(blocks=4, width=8, heads=2, context=4).double()
    data = [(tokens(9, 4, below=256), tokens(9, 4, below=256).roll(1))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = train_as_plain(ppedu.SCHEDULES["zb_h1"](p=4, m=4), model, data, next_byte_loss)
    assert run.unsplit == ()


@pytest.mark.slow
def test_layers_without_a_split_are_said_once():
    model = nn.Sequential(*layers(4, 4), nn.Sequential(Letters(), nn.Tanh(), nn.Linear(4, 4)).double())
    schedule = ppedu.SCHEDULES["zb_h1"](p=2, m=3)
    with pytest.warns(UserWarning, match=r"those of 1\.0 came in I") as said:
        run = train_as_plain(schedule, model, [batch(7, 4, 4)])
    assert len(said) == 1
    assert run.unsplit == ("1.0.weight",)
    assert set(run.unsplit) <= run.gradients.keys()


@pytest.mark.slow
def test_checkpointed_and_frozen_layers_train_as_one_process_does():
    model = nn.Sequential(
        *layers(4, 4), Checkpointed(mlp(), False), frozen(mlp(), "0.weight", "1.weight", "3.bias"), *layers(4, 4)
    )
    run = train_as_plain(ppedu.SCHEDULES["zb_h1"](p=4, m=3), model, [batch(7, 4, 4)])
    assert run.unsplit == ()


@pytest.mark.slow
def test_where_backwards_are_whole_nothing_is_unsplit():
    model = nn.Sequential(*layers(4, 4), Letters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = train_as_plain(ppedu.one_f_one_b(2, 3), model, [batch(7, 4, 4)])
    assert run.unsplit == ()
    assert run.parameter_bytes == ((16 + 4) * 8, (16 + 4) * 8)
