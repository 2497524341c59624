"""What goes to ranks by value: tensors that share memory go on sharing it, and a GPU's come to the reader's own GPU."""

from __future__ import annotations

import io
import pickle
import types
from typing import Any

import cloudpickle
import pytest
import torch
from runtime_helpers import in_ranks
from torch import Tensor, nn
from torch.storage import UntypedStorage

from ppedu.runtime.processes import pickling as by_value
from ppedu.runtime.processes.pickling import dumps


class Tied(nn.Module):
    """One matrix in two layers, a buffer that is a part of another one, and a weight that needs no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 3), nn.Linear(3, 3)
        self.outer.weight = self.inner.weight
        self.fixed = nn.Parameter(torch.arange(2.0), requires_grad=False)
        self.register_buffer("whole", torch.arange(6.0).reshape(2, 3).t())
        self.register_buffer("part", self.get_buffer("whole")[1:, 0])


def plain(value: object) -> bytes:
    """What cloudpickle writes, but for the file names of code."""

    class Pickler(cloudpickle.Pickler):
        dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({types.CodeType: by_value._reduced})

    with io.BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


def sent(value: Any) -> Any:
    return pickle.loads(dumps(value))


MANY = [
    torch.arange(10.0), torch.randn(3, 4).t(), torch.ones(2, dtype=torch.bfloat16), torch.tensor(True), torch.empty(0),
    torch.ones(3).to_sparse(), torch.ones(2, dtype=torch.complex64), nn.Linear(2, 2), torch.arange(3).untyped_storage(),
]  # fmt: skip


def test_on_the_cpu_the_bytes_are_torch_s():
    for value in (*MANY, Tied(), lambda: MANY):
        assert dumps(value) == plain(value)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """All memory counts as a GPU's when it is written. How often one was read, and went to the reader's GPU."""
    placed: list[int] = []

    def cuda(storage: UntypedStorage) -> UntypedStorage:
        placed.append(storage.nbytes())
        return storage

    monkeypatch.setattr(by_value, "_on_gpu", lambda storage: True)
    monkeypatch.setattr(UntypedStorage, "cuda", cuda)
    return placed


def test_all_that_was_on_a_gpu_comes_back(on_gpu):
    for value in MANY[:-2]:
        found = sent(value)
        assert type(found) is type(value)
        assert found.dtype == value.dtype
        assert torch.equal(found.to_dense(), value.to_dense())
        assert found.is_sparse or found.stride() == value.stride()
    layer = sent(MANY[-2])
    assert all(torch.equal(a, b) for a, b in zip(layer.parameters(), MANY[-2].parameters(), strict=True))
    assert bytes(sent(MANY[-1])) == bytes(MANY[-1])
    assert not on_gpu


@pytest.mark.parametrize("chosen", [True, False], ids=["GPU", "CPU"])
def test_what_shares_memory_still_does(on_gpu, monkeypatch, chosen):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: chosen)
    whole = torch.arange(10.0)
    model, first, part, other = sent((Tied(), whole, whole[2:5], whole.view(torch.int32)))
    assert model.inner.weight is model.outer.weight
    assert not model.fixed.requires_grad
    first[2], model.whole[1, 0] = 99.0, 77.0
    assert part.tolist() == [99.0, 3.0, 4.0]
    assert model.part.tolist() == [77.0, 2.0]
    assert other.view(torch.float32)[2] == 99.0
    # tied weight, two biases, the fixed weight, the buffer and its part, the three views: each memory once
    assert sorted(on_gpu) == (sorted([36, 12, 12, 8, 24, 40]) if chosen else [])


def test_a_process_without_a_gpu_of_its_own_starts_none(on_gpu, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("this starts CUDA")

    monkeypatch.setattr(torch.cuda, "_lazy_init", refuse)
    monkeypatch.setattr(torch._C, "_cuda_setDevice", refuse, raising=False)
    assert not torch.cuda.is_initialized()
    assert sent(torch.arange(3)).tolist() == [0, 1, 2]
    assert not on_gpu


def reads(payload: bytes, context: Any) -> Any:
    """A rank that has chosen its GPU, and then reads. Where tensors went, in the words of the stand-in for a GPU."""
    went: list[str] = []
    torch.cuda.is_initialized = lambda: True  # type: ignore[method-assign, assignment]
    torch.cuda.current_device = lambda: context.rank  # type: ignore[method-assign, assignment]
    moved = UntypedStorage.to

    def to(storage: UntypedStorage, *, device: Any, non_blocking: bool = False) -> Any:
        index = device.index if device.index is not None else torch.cuda.current_device()
        went.append(f"{device.type}:{index}")
        return moved(storage, device=torch.device("cpu"))

    UntypedStorage.to = to  # type: ignore[method-assign]
    found: Tensor = pickle.loads(payload)
    return went, found.tolist()


@pytest.mark.slow
def test_each_rank_reads_onto_its_own_gpu(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(by_value, "_on_gpu", lambda storage: True)
        payload = dumps(torch.arange(3))
    found = in_ranks(reads, [payload] * 2)
    assert found == [(["cuda:0"], [0, 1, 2]), (["cuda:1"], [0, 1, 2])]


def test_without_this_torch_names_the_gpu(monkeypatch):
    """So that the tests above can fail: torch writes down the place of a tensor's memory, and reads it back to there."""
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    tensor = torch.arange(3)
    assert b"cuda:0" in plain(tensor)
    assert b"cuda:0" in dumps(tensor)
    monkeypatch.setattr(by_value, "_on_gpu", lambda storage: True)
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: str(storage.device))
    assert b"cuda" not in dumps(tensor)
