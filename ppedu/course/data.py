"""Real English without a download: the text of Python's own documentation, which ships inside CPython."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ppedu.core.checks import whole

SPLITS = ("train", "validation")


@cache
def text() -> str:
    """What `help("for")` and its like print (`pydoc_data.topics`), some 370,000 characters; topics by name.

    A paragraph that several topics repeat is kept once, where it stands first: a fifth of the text is such repeats, and
    they would stand in training and validation alike. The text differs a little from one Python version to the next.
    Raises ModuleNotFoundError where the Python was built without it.

    >>> text().startswith('The "assert" statement')
    True
    """
    try:
        from pydoc_data.topics import topics
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the course's text is Python's own documentation, pydoc_data.topics, which this Python lacks. Install a "
            "complete one (python.org, conda, Debian: apt install libpython3-stdlib), or train on batches of your own: "
            "a list of (inputs, targets)"
        ) from error
    paragraphs = (p.strip("\n") for name in sorted(topics) for p in topics[name].split("\n\n"))
    return "\n\n".join(dict.fromkeys(p for p in paragraphs if p))


@cache
def split_text(split: str) -> str:
    """One part of the text: "train" is its first nine tenths, "validation" the rest, cut between two paragraphs.

    >>> split_text("train") + split_text("validation") == text()
    True
    """
    if split not in SPLITS:
        raise ValueError(f"the text is split in {' and '.join(SPLITS)}: split={split!r}")
    whole = text()
    cut = whole.rfind("\n\n", 0, len(whole) * 9 // 10) + 2
    return whole[:cut] if split == "train" else whole[cut:]


@cache
def _tokens(split: str) -> Tensor:
    return torch.frombuffer(bytearray(split_text(split), "utf-8"), dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class Batches:
    """A batch for each step: `Batches(...)(step)` is the same (inputs, targets) on every rank and in every process.

    It holds four small values, not the text, so it is quick to send: each rank reads the text itself.

    batch_size: sequences a batch. context: bytes a sequence. seed: another seed draws other places of the text.
    split: "train" or "validation".
    inputs, targets: int64 bytes, (batch_size, context); a target is the byte that follows its input.
    Raises ValueError for sizes below 1, an unknown split and a context as long as the text.

    >>> inputs, targets = Batches(batch_size=2, context=8)(step=0)
    >>> inputs.shape, bool((inputs[:, 1:] == targets[:, :-1]).all())
    (torch.Size([2, 8]), True)
    """

    batch_size: int
    context: int
    seed: int = 0
    split: str = "train"

    def __post_init__(self) -> None:
        for name, size in (("batch_size", self.batch_size), ("context", self.context)):
            whole(name, size)
        length = len(_tokens(self.split))
        if self.context >= length:
            raise ValueError(
                f"a sequence and the byte after it must fit in the text: context={self.context}, and the {self.split} "
                f"text has {length} bytes. Take a context below {length}"
            )

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        whole("step", step, least=0)
        tokens = _tokens(self.split)
        # random() alone is promised to draw the same in every Python; seeding from text mixes seed and step well.
        draw = random.Random(f"{self.seed} {step}").random
        starts = [int(draw() * (len(tokens) - self.context)) for _ in range(self.batch_size)]
        places = torch.tensor(starts, device="cpu")[:, None] + torch.arange(self.context + 1, device="cpu")
        windows = tokens[places].long()
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def batches(
    batch_size: int, context: int, steps: int, seed: int = 0, split: str = "train"
) -> list[tuple[Tensor, Tensor]]:
    """The first `steps` batches of `Batches`, as a list of (inputs, targets).

    >>> len(batches(batch_size=2, context=8, steps=3))
    3
    """
    whole("steps", steps)
    batch = Batches(batch_size, context, seed, split)
    return [batch(step) for step in range(steps)]
