"""ByteGPT: its layers, its numbers, and that it learns."""

from __future__ import annotations

import copy
import math
import pickle
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ppedu.course.data import Batches, split_text
from ppedu.course.models import ByteGPT, generate, next_byte_loss


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors this small are computed fastest by one thread, the more so on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def small(**sizes: int) -> ByteGPT:
    return ByteGPT(**{"blocks": 3, "width": 16, "heads": 4, "context": 12, **sizes})


def tokens(batch: int = 2, length: int = 12) -> torch.Tensor:
    return torch.randint(256, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("blocks", [1, 2, 24])
def test_one_layer_a_block_and_one_tensor_between(blocks: int) -> None:
    model = small(blocks=blocks)
    assert len(model) == blocks
    x = tokens()
    for layer in list(model)[:-1]:
        x = layer(x)
        assert x.shape == (2, 12, 16)
    assert model[-1](x).shape == (2, 12, 256)


def test_the_default_is_24_blocks_of_width_48_over_32_bytes() -> None:
    model = ByteGPT()
    attention_and_mlp = (48 * 144 + 144) + (48 * 48 + 48) + (48 * 192 + 192) + (192 * 48 + 48) + 4 * 48
    ends = 256 * 48 + 32 * 48 + (2 * 48 + 48 * 256 + 256)
    assert sum(p.numel() for p in model.parameters()) == 24 * attention_and_mlp + ends
    assert len({id(p) for p in model.parameters()}) == len(list(model.named_parameters(remove_duplicate=False)))
    assert model(torch.zeros(1, 32, dtype=torch.int64)).dtype == torch.float32


def test_the_ends_ride_with_the_first_and_the_last_block() -> None:
    first, middle, last = ({name.split(".")[0] for name, _ in layer.named_parameters()} for layer in small())
    assert first == {"embedding", "block"}
    assert middle == {"attention_norm", "attention", "mlp_norm", "mlp"}
    assert last == {"block", "head"}
    assert {name.split(".")[0] for name, _ in small(blocks=1)[0].named_parameters()} == {"embedding", "block", "head"}


def test_a_seed_fixes_the_weights_and_leaves_the_global_random_numbers_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = small()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    again, other = small(), small(seed=1)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), again.parameters(), strict=True))
    assert not torch.equal(one[1].mlp[0].weight, other[1].mlp[0].weight)


def test_the_start_is_gpt2s_so_that_an_untrained_model_knows_nothing() -> None:
    model = ByteGPT()
    weights = dict(model.named_parameters())
    assert weights["5.mlp.0.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert weights["5.mlp.2.weight"].std().item() == pytest.approx(0.02 / math.sqrt(48), rel=0.05)
    assert weights["0.block.attention.out.weight"].std().item() == pytest.approx(0.02 / math.sqrt(48), rel=0.05)
    x, y = Batches(8, 32)(0)
    assert next_byte_loss(model(x), y).item() == pytest.approx(math.log(256), rel=0.02)


def test_no_position_sees_what_comes_after_it() -> None:
    model = small().double()
    x = tokens(1)
    changed = x.clone()
    changed[0, 7:] = (changed[0, 7:] + 1) % 256
    a, b = model(x), model(changed)
    assert torch.equal(a[:, :7], b[:, :7])
    assert not torch.allclose(a[:, 7], b[:, 7])
    torch.testing.assert_close(model(x[:, :7]), a[:, :7], rtol=1e-12, atol=1e-12)


def test_attention_is_softmax_of_query_times_key() -> None:
    """The formula (Vaswani et al., 2017), head by head, against the fused kernel."""
    attention = small()[1].attention.double()
    x = torch.randn(2, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    queries, keys, values = attention.query_key_value(x).split(16, dim=-1)
    heads = []
    for h in range(4):
        part = slice(4 * h, 4 * h + 4)
        scores = queries[..., part] @ keys[..., part].mT / math.sqrt(4)
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
        heads.append(scores.softmax(-1) @ values[..., part])
    torch.testing.assert_close(attention(x), attention.out(torch.cat(heads, -1)), rtol=1e-12, atol=1e-12)


def test_microbatches_compute_what_the_whole_batch_computes() -> None:
    model = small().double()
    x, y = tokens(6), tokens(6).roll(1, 1)
    whole = next_byte_loss(model(x), y)
    pairs = zip(x.split([2, 2, 1, 1]), y.split([2, 2, 1, 1]), strict=True)
    parts = sum(next_byte_loss(model(a), b) * len(a) / 6 for a, b in pairs)
    assert parts.item() == pytest.approx(whole.item(), rel=1e-13)


def test_the_loss_is_the_mean_over_all_bytes() -> None:
    logits = torch.randn(2, 3, 256, generator=torch.Generator().manual_seed(0))
    by_hand = [-F.log_softmax(logits[i, j], 0)[tokens()[i, j]] for i in range(2) for j in range(3)]
    assert next_byte_loss(logits, tokens()[:, :3]).item() == pytest.approx(sum(by_hand).item() / 6, rel=1e-6)
    with pytest.raises(ValueError, match=r"targets of shape \(2, 3\), but they have \(2, 12\)"):
        next_byte_loss(logits, tokens())


def test_it_learns_english() -> None:
    """On text that it never saw it beats the best guess that ignores context: bytes as often as they occur there."""
    model, data = ByteGPT(blocks=2, width=32), Batches(32, 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(80):
        x, y = data(step)
        loss = next_byte_loss(model(x), y)
        if step == 0:
            assert loss.item() > 5.4  # it starts at chance, ln 256 = 5.545
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    counts = Counter(split_text("validation").encode())
    entropy = -sum(n / counts.total() * math.log(n / counts.total()) for n in counts.values())
    x, y = Batches(64, 32, split="validation")(0)
    assert next_byte_loss(model(x), y).item() < entropy - 0.2


def test_it_can_be_copied_sliced_and_sent() -> None:
    model = small()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), nn.Sequential(*model[:2], model[2])):
        assert torch.equal(other(tokens()), model(tokens()))
    assert type(model[1:]) is nn.Sequential
    assert list(model[1:]) == list(model)[1:]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"width": 50}, "width=50, heads=4 leave 2 over. The next width that fits is 52"),
        ({"blocks": 0}, "blocks=0"),
        ({"heads": 1.5}, "heads=1.5"),
        ({"context": -1}, "context=-1"),
    ],
)
def test_sizes_that_make_no_model(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ByteGPT(**sizes)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(1, 13, dtype=torch.int64), "length=13, context=12"),
        (torch.full((1, 3), 256), "0 to 255, but these run from 256 to 256"),
        (torch.tensor([[3, -1]]), "run from -1 to 3"),
        (torch.zeros(1, 3), r"float32 of shape \(1, 3\)"),
        (torch.zeros(3, dtype=torch.int64), r"int64 of shape \(3,\)"),
    ],
)
def test_tokens_that_it_cannot_read(x: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small()(x)


def test_generate_takes_the_likeliest_byte_of_the_last_context() -> None:
    model = small()
    with torch.no_grad():
        model[-1].head.logits.bias[ord("a")] += 100
    assert generate(model, "x" * 20, n=3) == "x" * 20 + "aaa"
    assert generate(model, "é", n=0) == "é"


def test_generate_reads_the_last_bytes_where_the_text_outgrows_the_context() -> None:
    model = small()
    seen: list[bytes] = []
    model.register_forward_pre_hook(lambda module, args: seen.append(bytes(args[0][0].tolist())))
    with torch.no_grad():
        model[-1].head.logits.bias[128:] -= 1e9  # ASCII only: a byte is a letter
    text = generate(model, "abcdefghijk", n=5, temperature=1).encode()
    assert seen == [text[:11], text[:12], text[1:13], text[2:14], text[3:15]]


def test_generate_draws_by_the_models_probabilities() -> None:
    model = small()
    with torch.no_grad():
        model[-1].head.logits.weight.zero_()
        model[-1].head.logits.bias.fill_(-1e9)
        model[-1].head.logits.bias[ord("a")], model[-1].head.logits.bias[ord("b")] = math.log(3), 0.0
    drawn = generate(model, "a", n=300, temperature=1)[1:]
    assert set(drawn) == {"a", "b"}
    assert 225 - 30 < drawn.count("a") < 225 + 30  # 3 to 1, within 4 standard deviations
    assert drawn.startswith(generate(model, "a", n=40, temperature=1)[1:])
    assert not drawn.startswith(generate(model, "a", n=40, temperature=1, seed=1)[1:])
    assert generate(model, "a", n=50, temperature=0.01) == "a" * 51


@pytest.mark.parametrize("bad", [{"prompt": ""}, {"n": -1}, {"temperature": -0.1}, {"temperature": math.nan}])
def test_generate_refuses(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="at least"):
        generate(small(), **{"prompt": "a", **bad})
