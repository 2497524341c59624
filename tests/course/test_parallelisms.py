"""One model under DDP, ZeRO-3, tensor parallelism and a pipeline: the same training, and each rank's share of it."""

from __future__ import annotations

import copy
import multiprocessing
import re
import socket
import sys
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import same_color
from matplotlib.patches import Rectangle
from runtime_helpers import Plain, assert_close, assert_equal_training, in_ranks
from torch import nn

import ppedu
from ppedu.course.data import Batches
from ppedu.course.exercises.notebooks import nb01
from ppedu.course.models import ByteGPT, next_byte_loss
from ppedu.course.parallelisms import Comparison, RankShare, Way, ddp, one_device, pp, tp, zero3
from ppedu.course.parallelisms.meters import Flops, sent_bytes
from ppedu.course.parallelisms.plans import KEPT, plot_ways
from ppedu.course.parallelisms.shares import plot_shares
from ppedu.course.parallelisms.ways import adamw
from ppedu.runtime.model.balance import balance

BLOCKS, WIDTH, LENGTH, SAMPLES, STEPS = 4, 32, 16, 8, 2
TOKENS = SAMPLES * LENGTH
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the bytes of a socket")


def model(dtype: torch.dtype = torch.float64) -> ByteGPT:
    return ByteGPT(BLOCKS, WIDTH, heads=4, context=LENGTH, seed=1).to(dtype)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return Batches(SAMPLES, LENGTH, seed=3)(0)


def run(name: str, p: int, dtype: torch.dtype = torch.float64) -> Way:
    if name == "PP":
        return pp(model(dtype), batch(), next_byte_loss, ppedu.naive(p))
    return {"DDP": ddp, "ZeRO-3": zero3, "TP": tp}[name](model(dtype), batch(), next_byte_loss, p)


NAMES = ("DDP", "ZeRO-3", "TP", "PP")


@pytest.fixture(scope="module")
def ways() -> dict[tuple[str, int], Way]:
    """Each way with p = 2 and 4, in float64, run once for all tests."""
    return {(name, p): run(name, p) for name in NAMES for p in (2, 4)}


@pytest.fixture(scope="module")
def plain() -> Plain:
    return Plain(model(), [batch()], next_byte_loss, adamw, STEPS)


# closed forms of the model, by hand: what the measurements are held against

ENDS = 256 * WIDTH + LENGTH * WIDTH + 2 * WIDTH + WIDTH * 256 + 256  # embeddings, final norm, head
SPLIT = 3 * WIDTH * WIDTH + 3 * WIDTH + WIDTH * WIDTH + 8 * WIDTH * WIDTH + 4 * WIDTH  # of a block, what TP shards
REPEATED = 4 * WIDTH + WIDTH + WIDTH  # of a block: two norms, and the biases that are added after the all-reduce
WEIGHTS = ENDS + BLOCKS * (SPLIT + REPEATED)
BLOCK_FLOPS = TOKENS * 6 * 12 * WIDTH * WIDTH + 14 * SAMPLES * LENGTH * LENGTH * WIDTH
HEAD_FLOPS = TOKENS * 6 * WIDTH * 256


def test_the_closed_form_counts_the_model_s_weights():
    assert sum(w.numel() for w in model().parameters()) == WEIGHTS


@pytest.mark.slow
@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("name", NAMES)
class TestEachWay:
    def test_trains_as_one_process_does(self, ways, plain, name, p):
        way = ways[name, p]
        for loss, wanted in zip(way.losses, plain.losses, strict=True):
            assert abs(loss - wanted) <= 1e-12 * wanted
        assert way.gradients.keys() == plain.gradients.keys()
        for weight, gradient in way.gradients.items():
            assert_close(gradient, plain.gradients[weight], f"gradient of {weight}", 1e-11)
        for weight, tensor in way.weights.items():
            assert_close(tensor, plain.state[weight], weight, 1e-10)  # AdamW divides by small numbers

    def test_keeps_what_it_should(self, ways, name, p):
        kept = [share.parameter_bytes / 8 for share in ways[name, p].ranks]
        if name == "DDP":
            assert kept == [WEIGHTS] * p
        elif name == "ZeRO-3":
            assert kept == [WEIGHTS / p] * p
        elif name == "TP":
            assert kept == [ENDS + BLOCKS * (REPEATED + SPLIT / p)] * p
        else:
            first = 256 * WIDTH + LENGTH * WIDTH
            stage = BLOCKS // p * (SPLIT + REPEATED)
            assert kept == [stage + first, *[stage] * (p - 2), stage + ENDS - first]

    def test_gradients_and_optimizer_follow_the_weights(self, ways, name, p):
        for share in ways[name, p].ranks:
            assert share.gradient_bytes == share.parameter_bytes
            assert share.optimizer_bytes == 2 * share.parameter_bytes
            assert share.kept_bytes == 4 * share.parameter_bytes

    def test_computes_what_it_should(self, ways, name, p):
        found = [share.flops for share in ways[name, p].ranks]
        if name in ("DDP", "ZeRO-3"):
            assert found == [(BLOCKS * BLOCK_FLOPS + HEAD_FLOPS) / p] * p
        elif name == "TP":
            assert found == [BLOCKS * BLOCK_FLOPS / p + HEAD_FLOPS] * p
        else:
            stage = BLOCKS // p * BLOCK_FLOPS
            assert found == [*[stage] * (p - 1), stage + HEAD_FLOPS]

    def test_computes_with_what_it_keeps_but_for_zero(self, ways, name, p):
        for share in ways[name, p].ranks:
            assert share.used_bytes == (WEIGHTS * 8 if name == "ZeRO-3" else share.parameter_bytes)
            assert share.samples == (SAMPLES / p if name in ("DDP", "ZeRO-3") else SAMPLES)

    @on_linux
    def test_sends_what_it_should(self, ways, name, p):
        activation = TOKENS * WIDTH * 8
        for rank, share in enumerate(ways[name, p].ranks):
            needed = {
                "DDP": 2 * (p - 1) / p * WEIGHTS * 8,
                "ZeRO-3": 3 * (p - 1) / p * WEIGHTS * 8,
                "TP": BLOCKS * 4 * 2 * (p - 1) / p * activation,
                "PP": activation * (1 if rank in (0, p - 1) else 2),
            }[name]
            assert share.needed_bytes == needed
            gloo = 4 / 3 if name == "ZeRO-3" else 1  # its reduce-scatter is an all-reduce
            assert needed * gloo <= share.sent_bytes <= 1.05 * needed * gloo


@pytest.mark.slow
def test_activations_are_those_that_autograd_saves(ways):
    """A p-th of the samples keep a p-th of what all keep; so do a p-th of the layers, and tensor parallelism keeps more,
    for it repeats what lies between the layers."""
    whole = one_device(model(), batch(), next_byte_loss).ranks[0].activation_bytes
    for p in (2, 4):
        for name in ("DDP", "ZeRO-3"):
            assert [s.activation_bytes for s in ways[name, p].ranks] == pytest.approx([whole / p] * p, rel=0.01)
        assert sum(s.activation_bytes for s in ways["PP", p].ranks) == pytest.approx(whole, rel=0.02)
        for share in ways["TP", p].ranks:
            assert whole / p < share.activation_bytes < whole


@pytest.mark.slow
def test_float32_agrees_as_far_as_it_can():
    alone = one_device(model(torch.float32), batch(), next_byte_loss)
    for name in NAMES:
        assert run(name, 2, torch.float32).difference(alone) < 1e-4


@pytest.mark.slow
def test_a_pipeline_may_run_any_schedule():
    m = 4
    way = pp(model(), batch(), next_byte_loss, ppedu.one_f_one_b(p=2, m=m))
    assert_equal_training(
        way.losses, way.gradients, {n: way.weights[n] for n in way.weights},
        Plain(model(), [batch()], next_byte_loss, adamw, STEPS),
    )  # fmt: skip
    assert [share.samples for share in way.ranks] == [SAMPLES, SAMPLES]
    assert [share.needed_bytes for share in way.ranks] == [TOKENS * WIDTH * 8] * 2
    assert way.timeline is not None
    assert way.timeline.peak_in_flight == (2, 1)
    assert way.ranks[0].used_bytes == way.ranks[0].parameter_bytes, "each weight counts once, however many microbatches"


@pytest.mark.slow
def test_the_caller_s_model_stays_as_it_is_and_no_process_stays():
    mine = model()
    before = copy.deepcopy(mine.state_dict())
    way = tp(mine, batch(), next_byte_loss, p=2, steps=1)
    assert all(torch.equal(t, before[n]) for n, t in mine.state_dict().items())
    assert not all(torch.equal(t, before[n]) for n, t in way.weights.items())
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_a_failure_names_its_rank():
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("no loss today")

    with pytest.raises(ppedu.RunError, match=r"(?s)rank . failed while it trains under DDP.*no loss today"):
        ddp(model(), batch(), loss, p=2)


# what is refused


@pytest.mark.parametrize(
    ("start", "error", "text"),
    [
        (lambda: ddp(model(), batch(), next_byte_loss, p=3), ValueError, "p=3 does not divide a batch of 8. Take 6"),
        (
            lambda: zero3(model(), batch(), next_byte_loss, p=16),
            ValueError,
            "p=16 does not divide a batch of 8. Take 16",
        ),
        (lambda: tp(model(), batch(), next_byte_loss, p=3), ValueError, "p=3 does not divide heads=4"),
        (
            lambda: tp(nn.Sequential(nn.Linear(2, 2)), batch(), next_byte_loss, p=2),
            TypeError,
            "ppedu.course.models.ByteGPT",
        ),
        (
            lambda: ddp(model(), batch(), next_byte_loss, p=0),
            ValueError,
            "p is the number of ranks, a whole number of at least 1: p=0",
        ),
        (lambda: tp(model(), batch(), next_byte_loss, p=2, steps=0), ValueError, "at least 1: steps=0"),
        (lambda: pp(model(), batch(), next_byte_loss, ppedu.naive(2), steps=0), ValueError, "at least 1: steps=0"),
        (lambda: pp(model(), batch(), next_byte_loss, ppedu.gpipe(2, 9)), ValueError, "cannot be cut into m=9"),
        (lambda: pp(model(), batch(), next_byte_loss, ppedu.gpipe(5, 1)), ValueError, "p=5 stages are more than the 4"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(start, error, text):
    with pytest.raises(error, match=re.escape(text)):
        start()


# the meters


@on_linux
def test_sent_bytes_are_those_of_this_process_s_connections():
    server = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(server.getsockname())
    receiver, _ = server.accept()
    before = sent_bytes()

    def take() -> None:
        left = 3_000_000
        while left:
            left -= len(receiver.recv(left))

    thread = threading.Thread(target=take)
    thread.start()
    sender.sendall(bytes(3_000_000))
    thread.join(10)
    after = sent_bytes()
    for one in (sender, receiver, server):
        one.close()
    assert before is not None
    assert after is not None
    assert after - before == 3_000_000


def test_sent_bytes_are_none_where_the_system_does_not_count_them(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert sent_bytes() is None


def test_flops_agree_with_torch_s_own_counter():
    from torch.utils.flop_counter import FlopCounterMode

    layer = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    x = torch.randn(3, 5, 8)
    with Flops() as ours:
        layer(x).sum().backward()
    with FlopCounterMode(display=False) as theirs:
        layer(x).sum().backward()
    assert ours.count == theirs.get_total_flops() > 0


def _count_both(work, context):
    """FLOPs of one product whose second factor is sharded over two ranks: (ours, FlopCounterMode's)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.utils.flop_counter import FlopCounterMode

    mesh = init_device_mesh("cpu", (2,))
    a = distribute_tensor(torch.ones(4, 8), mesh, [Replicate()])
    b = distribute_tensor(torch.ones(8, 6), mesh, [Shard(1)])
    with Flops() as ours:
        a @ b
    with FlopCounterMode(display=False) as theirs:
        a @ b
    return ours.count, theirs.get_total_flops()


@pytest.mark.slow
def test_flops_of_a_shard_are_counted_below_dtensor():
    for ours, theirs in in_ranks(_count_both, [None, None]):
        assert ours == 2 * 4 * 8 * 3
        assert theirs == 2 * 4 * 8 * 6, "torch's counter has learnt to count shards: use it"


# how it reads


def share(**changes: int | None) -> RankShare:
    given: dict[str, int | None] = {
        "samples": 4, "parameter_bytes": 1_000_000, "gradient_bytes": 1_000_000, "optimizer_bytes": 2_000_000,
        "activation_bytes": 500_000, "used_bytes": 4_000_000, "flops": 80_000_000, "sent_bytes": 12_000_000,
        "needed_bytes": 9_000_000, **changes,
    }  # fmt: skip
    return RankShare(**given)  # type: ignore[arg-type]


WHOLE = share(
    samples=16, parameter_bytes=4_000_000, gradient_bytes=4_000_000, optimizer_bytes=8_000_000, flops=320_000_000,
    sent_bytes=0, needed_bytes=0,
)  # fmt: skip


def test_a_way_reads_as_a_line_a_rank():
    way = Way("ZeRO-3", (share(), share(sent_bytes=None)), (), {}, {}, "measured: 2 CPU processes on 2 cores")
    assert repr(way).splitlines() == [
        "ZeRO-3 (measured: 2 CPU processes on 2 cores)",
        "       keeps, MB                             computes                sends, MB",
        "rank   weights gradients AdamW activations   samples weights MFLOP   needed measured",
        "0         1.00      1.00  2.00        0.50         4    4.00    80     9.00    12.00",
        "1         1.00      1.00  2.00        0.50         4    4.00    80     9.00        -",
    ]


def test_a_comparison_reads_as_a_line_a_way():
    alone = Way("one device", (WHOLE,), (), {}, {}, "measured: 1 CPU process on 2 cores")
    sharded = Way("ZeRO-3", (share(), share(sent_bytes=13_000_000)), (), {}, {}, "measured: 2 CPU processes on 2 cores")
    assert repr(Comparison(alone, (sharded,))).splitlines() == [
        "             keeps, %                  works on   on a sample, %   sends, MB",
        "each rank    weights gradients AdamW   samples    weights FLOPs    needed    measured",
        "one device       100       100   100        16        100   100      0.00        0.00",
        "ZeRO-3            25        25    25         4        100   100      9.00 12.00-13.00",
        "100 %: 4.00 MB of weights, 20 MFLOP a sample (measured: 2 CPU processes on 2 cores)",
    ]


def test_ways_of_two_models_are_not_compared():
    a = Way("DDP", (), (), {"0.weight": torch.ones(2)}, {}, "")
    b = Way("PP", (), (), {"1.weight": torch.ones(2)}, {}, "")
    with pytest.raises(ValueError, match="two models"):
        a.difference(b)
    assert a.difference(Way("PP", (), (), {"0.weight": torch.tensor([1.0, 1.5])}, {}, "")) == pytest.approx(1 / 3)


@pytest.mark.slow
def test_the_notebook_s_exercises_agree_with_what_is_measured(ways):
    """Equal stages, and no rank that repeats anything: with more blocks, the measured shares come to these."""
    everything = {name: ways[name, 4].ranks[1] for name in NAMES}
    kept = nb01._kept(WEIGHTS, 4)  # float32 there, float64 here
    assert 2 * kept["DDP"] == everything["DDP"].kept_bytes
    assert 2 * kept["ZeRO-3"] == everything["ZeRO-3"].kept_bytes
    assert 2 * kept["PP"] == pytest.approx(sum(r.kept_bytes for r in ways["PP", 4].ranks) / 4)
    sent = nb01._sent(4, WEIGHTS * 8, BLOCKS, TOKENS * WIDTH * 8)
    assert {name: share.needed_bytes for name, share in everything.items()} == sent


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.data())
def test_the_notebook_s_best_cut_is_the_library_s(times, data):
    p = data.draw(st.integers(1, len(times)))
    assert nb01.largest(times, balance(times, p)) == nb01.smallest_largest(times, p)


# pictures


def test_the_drawing_shows_who_has_what():
    """Area of the solid bars, in layers: what all ranks keep together, as the sketch has it."""
    kept = {}
    for name, panel in zip(("DDP", "ZeRO-3", "TP", "PP"), _panels(plot_ways(p=4, layers=8)), strict=True):
        solid = [bar for bar in panel if same_color(bar.get_facecolor(), KEPT)]
        whole = max(bar.get_width() for bar in panel)
        kept[name] = sum(bar.get_width() for bar in solid) / whole
    assert kept == pytest.approx({"DDP": 32, "ZeRO-3": 8, "TP": 8, "PP": 8})


def _panels(ax: Axes) -> list[list[Rectangle]]:
    """The bars of layers in each of the four panels."""
    plt.close(ax.figure)
    bars = [patch for patch in ax.patches if isinstance(patch, Rectangle) and patch.get_height() == 13]
    width = ax.get_xlim()[1] / 4
    return [[bar for bar in bars if bar.get_x() // width == panel] for panel in range(4)]


def test_the_drawing_refuses_unequal_stages():
    with pytest.raises(ValueError, match=r"p=3 does not divide layers=8\. Take 9"):
        plot_ways(p=3, layers=8)


def test_the_bars_are_those_of_the_fullest_rank():
    alone = Way("one device", (WHOLE,), (), {}, {}, "measured: 1 CPU process on 2 cores")
    way = Way("PP", (share(), share(parameter_bytes=2_000_000, sent_bytes=None)), (), {}, {}, "measured: here")
    ax = plot_shares(Comparison(alone, (way,)))
    plt.close(ax.figure)
    assert [bar.get_height() for bar in ax.patches[:2]] == [50, 100]
    assert ax.get_label() == "PP: keeps 50 % of the weights, computes with 100 %, sends 12.00 MB a step"
    assert "the fullest rank; measured: here" in [text.get_text() for text in ax.texts]
