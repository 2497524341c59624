"""Layers to stages: the balance against brute force, the stages against the whole model, and what is refused."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Iterator, Sequence
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ppedu.course.models import ByteGPT, next_byte_loss
from ppedu.runtime.model import layer_times as timing
from ppedu.runtime.model.layer_times import layer_times
from ppedu.runtime.model.split import balance, layers_of, split, stage_parameter_names, stages_of


def tokens() -> Tensor:
    return torch.randint(256, (3, 8), generator=torch.Generator().manual_seed(1))


def gpt(blocks: int = 24) -> ByteGPT:
    return ByteGPT(blocks=blocks, width=8, heads=2, context=8)


def sizes(stages: Sequence[nn.Module]) -> list[int]:
    return [len(layers_of(stage)) for stage in stages]


def linears(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in itertools.pairwise(widths)))


# -- balance: which cut is best


def every_cut(n: int, p: int) -> list[tuple[int, ...]]:
    edges = ((0, *inner, n) for inner in itertools.combinations(range(1, n), p - 1))
    return [tuple(b - a for a, b in itertools.pairwise(e)) for e in edges]


def loads(costs: Sequence[float], cut: tuple[int, ...]) -> list[Fraction]:
    ends = itertools.accumulate(cut)
    return [sum(map(Fraction, costs[end - size : end]), Fraction()) for end, size in zip(ends, cut, strict=True)]


def rank_of_cut(costs: Sequence[float], cut: tuple[int, ...]) -> tuple[object, ...]:
    stages = loads(costs, cut)
    return max(stages), sum(x * x for x in stages), sum(s * s for s in cut), cut


cost = st.one_of(st.integers(0, 5), st.floats(0, 3), st.sampled_from([0.1, 0.2, 0.3, 1e-9, 1e12]))


@settings(max_examples=300, deadline=None)
@given(st.lists(cost, min_size=1, max_size=8), st.data())
def test_balance_is_the_best_of_all_cuts(costs: list[float], data: st.DataObject) -> None:
    p = data.draw(st.integers(1, len(costs)))
    assert balance(costs, p) == min(every_cut(len(costs), p), key=lambda cut: rank_of_cut(costs, cut))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.data())
def test_equal_costs_differ_by_at_most_one_layer_and_the_last_stages_take_more(n: int, data: st.DataObject) -> None:
    p = data.draw(st.integers(1, n))
    assert balance([1] * n, p) == (n // p,) * (p - n % p) + (n // p + 1,) * (n % p)
    assert balance([0.1] * n, p) == balance([0] * n, p) == balance([1] * n, p)


def test_the_greedy_cut_is_not_good_enough() -> None:
    """Closing each stage when it reaches the mean, 4, gives 6 4 2; closing it before it passes the mean, 3 3 6."""
    costs = [3, 3, 2, 2, 2]
    assert balance(costs, 3) == (1, 2, 2)
    assert loads(costs, balance(costs, 3)) == [3, 5, 4]


def test_costs_of_very_different_size_stay_exact() -> None:
    assert balance([1e18, 1, 1, 1e18], 2) == (2, 2)
    assert balance([0.1, 0.2, 0.3, 0.6], 2) == (3, 1)
    assert balance([1e300, 1e-300, 5e-324, 1e300], 2) == (2, 2)


def test_many_layers_are_cut_at_once() -> None:
    costs = [(7 * i) % 13 + 1 for i in range(400)]
    cut = balance(costs, 32)
    assert sum(cut) == 400
    assert max(loads(costs, cut)) < sum(costs) / 32 + 13


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf])
def test_costs_that_mean_nothing(bad: float) -> None:
    with pytest.raises(ValueError, match="layer 1 is"):
        balance([1, bad, 1], 2)


# -- split: the stages


def test_24_blocks_over_4_stages_are_6_each_and_the_ends_hold_embedding_and_head() -> None:
    model = gpt()
    stages = split(model, p=4)
    assert sizes(stages) == [6, 6, 6, 6]
    assert [layer for stage in stages for layer in stage] == list(model)
    has = [
        [any(f".{part}." in name for name, _ in s.named_parameters()) for part in ("embedding", "head")] for s in stages
    ]
    assert has == [[True, False], [False, False], [False, False], [False, True]]


@pytest.mark.parametrize("by", ["layers", "parameters", "time"])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 6])
def test_stages_in_a_row_compute_what_the_model_computes_to_the_bit(by: str, p: int) -> None:
    model = gpt(6)
    stages = split(model, p, by, sample=tokens())
    assert len(stages) == p
    x = tokens()
    for stage in stages:
        x = stage(x)
    whole = model(tokens())
    assert torch.equal(x, whole)
    next_byte_loss(x, tokens()).backward()
    through_stages = [w.grad.clone() for w in model.parameters()]
    model.zero_grad()
    next_byte_loss(whole, tokens()).backward()
    assert all(torch.equal(a, w.grad) for a, w in zip(through_stages, model.parameters(), strict=True))


def test_by_parameters_counts_weights_not_layers() -> None:
    model = linears(1, 1, 1, 1, 1, 40, 40)  # parameters 2 2 2 2 80 1640
    assert sizes(split(model, p=2)) == [3, 3]
    assert sizes(split(model, p=2, by="parameters")) == [5, 1]
    assert sizes(split([nn.Tanh() for _ in range(5)], p=2, by="parameters")) == [2, 3]


def test_stages_hold_the_same_layers_so_training_them_trains_the_model() -> None:
    model = gpt(4)
    before = model[3].head.logits.weight.clone()
    stages = split(model, p=2)
    torch.optim.SGD(stages[1].parameters(), lr=1.0)
    with torch.no_grad():
        for w in stages[1].parameters():
            w += 1
    assert torch.equal(model[3].head.logits.weight, before + 1)


@pytest.mark.parametrize("form", [list, tuple, nn.ModuleList, lambda layers: nn.Sequential(*layers)])
def test_every_form_of_a_sequence_of_layers(form: object) -> None:
    layers = [nn.Linear(2, 2), nn.Tanh(), nn.Sequential(nn.Linear(2, 2), nn.Tanh()), nn.Linear(2, 1)]
    model = form(layers)
    assert layers_of(model) == layers
    assert [list(stage) for stage in split(model, p=2)] == [layers[:2], layers[2:]]


def test_what_split_returned_is_kept_as_it_is_and_can_be_split_again() -> None:
    model = linears(1, 1, 1, 40)
    stages = split(model, p=2, by="parameters")
    assert layers_of(stages) == layers_of(list(stages)) == list(model)
    assert all(a is b for a, b in zip(stages_of(stages, 2), stages, strict=True))
    assert sizes(split(stages, p=3)) == [1, 1, 1]
    assert sizes(stages_of(model, 3)) == [1, 1, 1]
    with pytest.raises(ValueError, match="split into 2 stages where 3 are needed"):
        stages_of(stages, 3)


def test_a_stage_can_be_sent() -> None:
    stage = split(gpt(4), p=2)[0]
    sent = pickle.loads(pickle.dumps(stage))
    assert torch.equal(sent(tokens()), stage(tokens()))
    assert sizes(stages_of([sent], 1)) == [2]


# -- time


class Clocked(nn.Module):
    """Takes the given seconds of a clock that stands still otherwise: forward, then backward."""

    def __init__(self, clock: list[float], forward: float, backward: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.clock, self.times = clock, (forward, backward)

    def __deepcopy__(self, memo: object) -> Clocked:
        return Clocked(self.clock, *self.times)

    def forward(self, x: Tensor) -> Tensor:
        self.clock[0] += self.times[0]
        y = x * self.weight
        y.register_hook(lambda grad: self.clock.__setitem__(0, self.clock[0] + self.times[1]))
        return y


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(timing, "_now", lambda x: now[0])
    return now


def test_time_is_forward_and_backward_of_each_layer(clock: list[float]) -> None:
    model = [Clocked(clock, 1, 2), nn.Tanh(), Clocked(clock, 4, 8), Clocked(clock, 0.5, 1)]
    assert layer_times(model, torch.ones(2, 3)) == (3, 0, 12, 1.5)
    assert sizes(split(model, 2, by="time", sample=torch.ones(2, 3))) == [2, 2]
    assert sizes(split(model, 3, by="time", sample=torch.ones(2, 3))) == [1, 2, 1]


def test_the_median_forgives_one_slow_round(clock: list[float]) -> None:
    layer = Clocked(clock, 1, 1)
    rounds = iter([50.0, 3.0, 1.0, 90.0, 2.0, 4.0])  # the first one warms up
    layer.forward = lambda x: (clock.__setitem__(0, clock[0] + next(rounds)), x)[1]
    layer.__class__ = type("Same", (Clocked,), {"__deepcopy__": lambda self, memo: self})
    assert layer_times([layer], torch.ones(1)) == (3.0,)


def test_backward_is_measured_where_gradients_are_off(clock: list[float]) -> None:
    with torch.no_grad():
        assert layer_times([Clocked(clock, 1, 2)], torch.ones(1)) == (3.0,)


def test_every_layer_but_the_first_computes_a_gradient_for_its_input(clock: list[float]) -> None:
    class Free(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            if y.requires_grad:
                y.register_hook(lambda grad: clock.__setitem__(0, clock[0] + 1))
            return y

    assert layer_times([Free(), Free(), Free()], torch.ones(1)) == (0, 1, 1)


def test_the_last_layers_time_includes_the_loss(clock: list[float]) -> None:
    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        assert target.item() == 7
        clock[0] += 5
        return output.mean()

    model = [Clocked(clock, 1, 0), Clocked(clock, 1, 0)]
    assert layer_times(model, (torch.ones(2), torch.tensor(7)), loss_fn) == (1, 6)
    assert layer_times(model, (torch.ones(2), torch.tensor(7))) == (1, 1)
    with pytest.raises(ValueError, match="the loss needs targets"):
        layer_times(model, torch.ones(2), loss_fn)


@pytest.mark.timing
def test_real_work_is_told_from_little() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2048), nn.Linear(2048, 2048), nn.Tanh())
    times = layer_times(list(model), torch.ones(16, 16))
    assert times[3] > 3 * max(times[0], times[1])
    assert sizes(split(model, 2, by="time", sample=torch.ones(16, 16))) == [3, 2]


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_measuring_leaves_no_trace() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4, 1))
    model[4].eval()
    model[0].weight.requires_grad_(False)
    model[4].weight.grad = torch.full_like(model[4].weight, 3.0)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    with torch.no_grad():
        split(model, 2, by="time", sample=(torch.randn(5, 3, generator=torch.Generator()), torch.ones(5)))
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.get_num_threads() == 3
    assert [layer.training for layer in model] == [True, True, True, True, False]
    grads = {name: w.grad for name, w in model.named_parameters() if w.grad is not None}
    assert list(grads) == ["4.weight"]
    assert bool((grads["4.weight"] == 3).all())


@pytest.mark.usefixtures("three_threads")
def test_threads_come_back_after_a_failure_too() -> None:
    seen = []

    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(torch.get_num_threads())
            raise RuntimeError("no luck")

    with pytest.raises(ValueError, match=r"layer 1 \(Fails\) .* float32 of shape \(1, 2\): RuntimeError: no luck"):
        layer_times([nn.Identity(), Fails()], torch.ones(1, 2))
    assert seen == [1]
    assert torch.get_num_threads() == 3


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


@pytest.mark.parametrize(
    ("layers", "sample", "message"),
    [
        ([nn.Linear(3, 2)], torch.ones(1, 2), r"layer 0 \(Linear\) cannot be measured on float32 of shape \(1, 2\)"),
        ([nn.Identity(), Pair()], torch.ones(1), r"layer 1 \(Pair\).*returned tuple"),
        ([nn.Identity()], [1, 2, 3], "this one is a list of int, int, int"),
        (
            [nn.Identity()],
            (torch.ones(1),) * 3,
            r"\(inputs, targets\), but this one is a tuple of Tensor, Tensor, Tensor",
        ),
    ],
)
def test_samples_that_cannot_be_measured(layers: list[nn.Module], sample: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer_times(layers, sample)


# -- names


def test_names_of_parameters_and_buffers_in_the_model() -> None:
    model = nn.Sequential()
    model.add_module("stem", nn.Linear(2, 3))
    model.add_module("norm", nn.BatchNorm1d(3))
    model.add_module("act", nn.Tanh())
    model.add_module("head", nn.Linear(3, 1))
    first, second = stage_parameter_names(model, split(model, p=2))
    assert first["0.weight"] == "stem.weight"
    assert first["1.running_mean"] == "norm.running_mean"
    assert second == {"1.weight": "head.weight", "1.bias": "head.bias"}
    names = {n for n, _ in (*model.named_parameters(), *model.named_buffers())}
    assert {*first.values(), *second.values()} == names


def test_names_cover_bytegpt_and_point_at_the_same_tensors() -> None:
    model = gpt(5)
    for form in (model, list(model), split(model, p=3)):
        stages = split(form, p=2)
        whole = dict(model.named_parameters())
        maps = stage_parameter_names(form, stages)
        assert sum(map(len, maps)) == len(whole)
        for stage, names in zip(stages, maps, strict=True):
            assert all(whole[names[local]] is weight for local, weight in stage.named_parameters())


def test_a_list_of_layers_is_named_by_number() -> None:
    layers = [nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1)]
    assert stage_parameter_names(layers, split(layers, p=2))[1] == {"1.weight": "2.weight", "1.bias": "2.bias"}


def test_names_of_other_peoples_stages() -> None:
    with pytest.raises(ValueError, match=r"stage 0 holds '0\.weight', which this model does not"):
        stage_parameter_names(linears(1, 1, 1), split(linears(1, 1, 1), p=2))


# -- what is refused


@pytest.mark.parametrize("p", [0, -1, True, 2.0, "4"])
def test_p_is_a_whole_number_of_at_least_1(p: object) -> None:
    with pytest.raises(ValueError, match=f"at least 1: p={p!r}"):
        split(linears(1, 1, 1), p)


def test_more_stages_than_layers() -> None:
    with pytest.raises(
        ValueError, match=r"p=3 stages are more than the 2 layers\. Take p of at most 2, or a model with more layers$"
    ):
        split(linears(1, 1, 1), 3)
    with pytest.raises(ValueError, match="a sequence inside the model is one layer: unpack it"):
        split([linears(1, 1, 1, 1), nn.Tanh()], 4)
    with pytest.raises(ValueError, match=r"with more layers$"):
        split([linears(1, 1, 1, 1), nn.Tanh()], 5)
    with pytest.raises(ValueError, match="the model has no layers"):
        split([], 1)


def test_an_unknown_way_to_split() -> None:
    with pytest.raises(ValueError, match="'layers', 'parameters' or 'time': by='size'"):
        split(linears(1, 1, 1), 2, by="size")


def test_time_needs_a_sample() -> None:
    with pytest.raises(ValueError, match="give sample=, the inputs of one microbatch"):
        split(linears(1, 1, 1), 2, by="time")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Linear(1, 1), linears(1, 1, 1)


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(1, 1), "this is of type Linear. Give nn.Sequential"),
        (Net(), r"this is of type Net\. .* a list of layers \(\.blocks has 2\)"),
        (Residual(nn.Linear(1, 1)), "Residual is an nn.Sequential with a forward of its own"),
        (nn.ModuleDict({"a": nn.Linear(1, 1)}), "of type ModuleDict"),
        ([nn.Linear(1, 1), torch.tanh], "layer 1 is of type builtin_function_or_method"),
        (None, "of type NoneType"),
        ("layers", "of type str"),
    ],
)
def test_models_that_are_no_sequence_of_layers(model: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        split(model, 1)


def test_the_same_layer_at_two_places() -> None:
    shared, act = nn.Linear(1, 1), nn.Tanh()
    with pytest.raises(ValueError, match=r"layers 0 and 2 are the same Linear.*copy\.deepcopy"):
        split([shared, nn.Tanh(), shared], 2)
    with pytest.raises(ValueError, match="layers 0 and 1 are the same BatchNorm1d"):
        split([norm := nn.BatchNorm1d(3, affine=False), norm], 1)
    model = nn.Sequential(nn.Linear(1, 1), act, nn.Linear(1, 1), act)  # nothing to train, nothing to share
    assert [list(stage) for stage in split(model, 2)] == [[model[0], act], [model[2], act]]
    assert [n for s in stage_parameter_names(model, split(model, 2)) for n in s.values()] == [
        n for n, _ in model.named_parameters()
    ]


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 5, bias=False)))
    model[2][1].weight = model[0].weight
    return model


def test_weights_shared_between_stages_are_named_on_both_sides() -> None:
    both = "'0.weight' of stage 0 and '2.1.weight' of stage 1 are one Parameter"
    with pytest.raises(ValueError, match=both):
        split(tied(), 2)
    with pytest.raises(ValueError, match=both.replace("stage 1", "stage 2")):
        split(list(tied()), 3)
    assert sizes(split(tied(), 1)) == [3]


def test_weights_shared_within_one_stage_keep_the_models_name() -> None:
    model = nn.Sequential(*tied(), nn.Linear(5, 200))
    stages = split(model, 2, by="parameters")
    assert sizes(stages) == [3, 1]
    assert stage_parameter_names(model, stages)[0] == {n: n for n, _ in tied().named_parameters()}


def test_tables_that_all_blocks_read_may_be_shared() -> None:
    table = torch.arange(3.0)
    model = linears(3, 3, 3)
    for layer in model:
        layer.register_buffer("table", table)
    assert [names["0.table"] for names in stage_parameter_names(model, split(model, 2))] == ["0.table", "0.table"]
