"""The model that the course trains: a small GPT that reads and writes bytes, as a list of layers."""

from __future__ import annotations

from collections import OrderedDict
from typing import overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ppedu.core.checks import whole

VOCABULARY = 256
"""A token is a byte."""


class Embedding(nn.Module):
    """Bytes to vectors: what the byte is, plus where it stands. (batch, length) -> (batch, length, width)."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.context = context
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(context, width)

    def forward(self, tokens: Tensor) -> Tensor:
        if tokens.ndim != 2 or tokens.dtype != torch.int64:
            raise ValueError(
                "the model reads int64 tokens of shape (batch, length), but it got "
                f"{str(tokens.dtype).removeprefix('torch.')} of shape {tuple(tokens.shape)}. "
                "Cast with .long(), and give one text a batch of its own with [None]"
            )
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(
                f"a sequence is at most `context` tokens long: length={length}, context={self.context}. "
                "Cut it, or build the model with a longer context"
            )
        if tokens.is_cpu and tokens.numel():  # on a GPU the look itself would make the device wait
            low, high = int(tokens.min()), int(tokens.max())
            if low < 0 or high >= VOCABULARY:
                raise ValueError(f"a token is a byte, 0 to {VOCABULARY - 1}, but these run from {low} to {high}")
        where = torch.arange(length, device=tokens.device)
        vectors: Tensor = self.token(tokens) + self.position(where)
        return vectors


class Attention(nn.Module):
    """Each position gathers what it needs from itself and the positions before it. Shapes stay as they are."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (batch, heads, length, width of a head)
        gathered = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed: Tensor = self.out(gathered.transpose(1, 2).reshape(batch, length, width))
        return mixed


class Block(nn.Module):
    """One Transformer block: gather from other positions, then think at each one. Shapes stay as they are."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        gathered: Tensor = x + self.attention(self.attention_norm(x))
        thought: Tensor = gathered + self.mlp(self.mlp_norm(gathered))
        return thought


class ByteGPT(nn.Sequential):
    """A GPT over bytes: a sequence of exactly `blocks` layers, with one tensor going from each to the next.

    The embedding rides with the first block, the final norm and the head with the last one, so that 24 blocks over
    4 stages are 6 each. No dropout and no tied weights: a microbatch computes what it computes in the whole batch,
    and no stage needs another one's weights.

    blocks: Transformer blocks, and layers. width: numbers that stand for one position. heads: attention heads.
    context: the longest sequence, in bytes. seed: the same seed gives the same weights; the global random numbers
    stay as they are. The layout is GPT-2's (Radford et al., 2019), as is the start: weights from N(0, 0.02), those
    that end a block's two branches divided by sqrt(2 blocks).

    Input (batch, length <= context), int64 bytes. Output (batch, length, 256), the logits of the byte that follows.
    Raises ValueError for sizes below 1, a width that the heads do not divide, and tokens that it cannot read.

    >>> model = ByteGPT(blocks=2, width=8, heads=2, context=16)
    >>> len(model), model(torch.zeros(4, 16, dtype=torch.int64)).shape
    (2, torch.Size([4, 16, 256]))
    """

    def __init__(self, blocks: int = 24, width: int = 48, heads: int = 4, context: int = 32, *, seed: int = 0) -> None:
        _check(blocks=blocks, width=width, heads=heads, context=context)
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            layers: list[nn.Module] = [Block(width, heads) for _ in range(blocks)]
            first: nn.Module = Embedding(width, context)
            last = _named(norm=nn.LayerNorm(width), logits=nn.Linear(width, VOCABULARY))
            if blocks == 1:
                layers[0] = _named(embedding=first, block=layers[0], head=last)
            else:
                layers[0] = _named(embedding=first, block=layers[0])
                layers[-1] = _named(block=layers[-1], head=last)
            super().__init__(*layers)
            _start(self, blocks)
        self.context = context

    @overload
    def __getitem__(self, index: int) -> nn.Module: ...
    @overload
    def __getitem__(self, index: slice) -> nn.Sequential: ...
    def __getitem__(self, index: int | slice) -> nn.Module:
        """One layer, or some of them as a plain nn.Sequential: a part of a ByteGPT is none itself."""
        return nn.Sequential(*list(self)[index]) if isinstance(index, slice) else super().__getitem__(index)


def _named(**modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(modules))


def _check(**sizes: int) -> None:
    for name, size in sizes.items():
        whole(name, size)
    width, heads = sizes["width"], sizes["heads"]
    if width % heads:
        raise ValueError(
            f"each head takes an equal part of the width, so heads divide width: width={width}, heads={heads} "
            f"leave {width % heads} over. The next width that fits is {width + heads - width % heads}"
        )


@torch.no_grad()
def _start(model: nn.Module, blocks: int) -> None:
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            branch_end = name.endswith((".attention.out.weight", ".mlp.2.weight"))
            parameter.normal_(0, 0.02 / (2 * blocks) ** 0.5 if branch_end else 0.02)
        elif name.endswith("bias"):
            parameter.zero_()


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy, in nats a byte, of logits (batch, length, 256) against int64 targets (batch, length).

    >>> round(next_byte_loss(torch.zeros(2, 3, 256), torch.zeros(2, 3, dtype=torch.int64)).item(), 3)  # ln 256
    5.545
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"each position has its own target: logits {tuple(logits.shape)} want targets of shape "
            f"{tuple(logits.shape[:-1])}, but they have {tuple(targets.shape)}"
        )
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


@torch.no_grad()
def generate(model: ByteGPT, prompt: str, n: int = 200, temperature: float = 0.0, seed: int = 0) -> str:
    """The prompt and the `n` bytes that the model writes after it, each seeing the last `context` bytes.

    temperature: 0 takes the likeliest byte each time; 1 draws as the model's probabilities say; above 1 is wilder.
    Bytes that are no UTF-8 come out as U+FFFD. Raises ValueError for an empty prompt, n < 0 or temperature < 0.

    >>> len(generate(ByteGPT(blocks=1, width=8, heads=2), "def ", n=3).encode("utf-8", "replace")) >= 7
    True
    """
    if not prompt or n < 0 or not temperature >= 0:
        raise ValueError(
            f"a prompt has at least one byte, n and temperature are at least 0: "
            f"prompt={prompt!r}, n={n}, temperature={temperature}"
        )
    device = next(model.parameters()).device
    random = torch.Generator().manual_seed(seed)
    written = list(prompt.encode())
    for _ in range(n):
        logits = model(torch.tensor([written[-model.context :]], device=device))[0, -1].cpu()
        if temperature == 0:
            written.append(int(logits.argmax()))
        else:
            chances = (logits / temperature).softmax(0)
            written.append(int(torch.multinomial(chances, 1, generator=random)))
    return bytes(written).decode("utf-8", "replace")
