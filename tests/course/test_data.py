"""The course's text and batches."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ppedu.course import data
from ppedu.course.data import Batches, batches, split_text, text


def as_bytes(rows: torch.Tensor) -> list[bytes]:
    return [bytes(row.tolist()) for row in rows]


def test_the_text_is_real_english_and_long_enough_to_train_on() -> None:
    assert len(text()) > 250_000
    assert text().count(" the ") > 2_000
    assert 'The "while" statement is used for repeated execution' in text()


def test_no_paragraph_stands_twice() -> None:
    paragraphs = text().split("\n\n")
    assert len(paragraphs) == len(set(paragraphs)) > 1_000


def test_train_and_validation_are_disjoint_parts_of_the_text() -> None:
    train, validation = split_text("train"), split_text("validation")
    assert train + validation == text()
    assert len(validation) == pytest.approx(len(text()) / 10, rel=0.05)
    assert train.endswith("\n\n")
    assert not set(train.split("\n\n")) & set(validation.split("\n\n")) - {""}


@pytest.mark.parametrize("split", ["train", "validation"])
def test_inputs_and_targets_come_from_their_split(split: str) -> None:
    inputs, targets = Batches(5, 40, split=split)(3)
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.is_contiguous()
    assert targets.is_contiguous()
    whole = split_text(split).encode()
    for x, y in zip(as_bytes(inputs), as_bytes(targets), strict=True):
        assert x[1:] == y[:-1]
        assert x + y[-1:] in whole


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.integers(1, 70), st.integers(0, 10**12), st.integers(0, 10**12))
def test_a_batch_is_a_function_of_step_and_seed(batch_size: int, context: int, step: int, seed: int) -> None:
    batch = Batches(batch_size, context, seed)
    sent = pickle.loads(pickle.dumps(batch))
    assert sent == batch
    for a, b in zip(batch(step), sent(step), strict=True):
        assert a.shape == (batch_size, context)
        assert torch.equal(a, b)


def test_steps_and_seeds_draw_other_places() -> None:
    seen = [tuple(as_bytes(Batches(4, 64, seed)(step)[0])) for seed in range(5) for step in range(5)]
    assert len(set(seen)) == 25


def test_places_spread_over_the_text_to_its_last_byte() -> None:
    whole = data._tokens("train")
    context = len(whole) - 3  # three places are left
    starts = [x.tolist() for step in range(20) for x in Batches(1, context)(step)[0][:, :40]]
    assert {tuple(s) for s in starts} == {tuple(whole[i : i + 40].tolist()) for i in range(3)}


def test_drawing_leaves_the_global_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    Batches(4, 8)(0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_batch_function_is_small_to_send_and_the_list_is_its_first_steps() -> None:
    assert len(pickle.dumps(Batches(32, 32))) < 200
    for step, (x, y) in enumerate(batches(4, 16, steps=3, seed=2, split="validation")):
        a, b = Batches(4, 16, 2, "validation")(step)
        assert torch.equal(a, x)
        assert torch.equal(b, y)


def test_another_process_draws_the_same() -> None:
    code = "from ppedu.course.data import Batches; print(Batches(2, 16, seed=3)(7)[0].tolist())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == str(Batches(2, 16, seed=3)(7)[0].tolist())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"context": 0}, "context=0"),
        ({"context": 1.0}, "context=1.0"),
        ({"context": 10**6}, r"context=1000000, and the train text has \d+ bytes. Take a context below \d+"),
        ({"split": "test"}, "train and validation: split='test'"),
    ],
)
def test_batches_that_cannot_be_drawn(bad: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Batches(**{"batch_size": 2, "context": 8, **bad})


def test_the_longest_context_leaves_one_place() -> None:
    length = len(data._tokens("validation"))
    inputs, targets = Batches(1, length - 1, split="validation")(0)
    assert as_bytes(inputs)[0] + as_bytes(targets)[0][-1:] == split_text("validation").encode()
    with pytest.raises(ValueError, match=f"below {length}$"):
        Batches(1, length, split="validation")


def test_steps_are_counted_from_0() -> None:
    with pytest.raises(ValueError, match="step=-1"):
        Batches(2, 8)(-1)
    with pytest.raises(ValueError, match="steps=0"):
        batches(2, 8, steps=0)


def test_a_python_without_its_documentation_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ModuleNotFoundError, match=r"which this Python lacks\. Install a complete one"):
        data.text.__wrapped__()
