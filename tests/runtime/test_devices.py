"""Which device a rank takes, what of the caller's settings it takes over, and what it leaves behind."""

from __future__ import annotations

import pickle
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runtime_helpers import Plain, assert_equal_training, batch, layers, momentum, mse
from torch import nn

import ppedu
from ppedu.runtime.processes import launch
from ppedu.runtime.processes.rank_main import pick_device
from ppedu.runtime.rank import accelerator
from ppedu.runtime.rank.job import Settings
from ppedu.runtime.rank.rehearsal import unnoticed
from ppedu.runtime.run import where_measured

pytestmark = pytest.mark.slow


class FakeCuda:
    """torch.cuda with some GPUs, of which some compute nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, broken: tuple[int, ...] = ()) -> None:
        self.chosen: list[Any] = []
        monkeypatch.delenv(accelerator.CONNECTIONS, raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"Card {device.index}")
        monkeypatch.setattr(torch.cuda, "set_device", self.chosen.append)
        real = torch.ones

        def ones(*size: int, device: Any) -> torch.Tensor:
            if device.index in broken:
                raise RuntimeError("CUDA error: no kernel image is available for execution on the device")
            return real(*size)

        monkeypatch.setattr(torch, "ones", ones)


def test_ranks_take_gpus_in_turn(monkeypatch):
    cuda = FakeCuda(monkeypatch, 2)
    assert [str(pick_device("auto", rank)) for rank in range(4)] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert [device.index for device in cuda.chosen] == [0, 1, 0, 1]
    assert pick_device("cpu", 1).type == "cpu"
    pick_device("auto", 1, set_it=False)
    assert len(cuda.chosen) == 4


def test_a_gpu_that_this_torch_has_no_code_for_counts_as_none(monkeypatch):
    FakeCuda(monkeypatch, 2, broken=(1,))
    assert pick_device("auto", 0).type == "cuda"
    with pytest.warns(UserWarning, match=r"Card 1 does not compute under torch .*This rank computes on the CPU"):
        assert pick_device("auto", 1).type == "cpu"
    with pytest.raises(
        RuntimeError, match=r"Card 1 does not compute .* Take device='cpu', or a torch that is built for this GPU"
    ):
        pick_device("cuda", 1)


def test_cuda_is_asked_for_many_queues_before_it_starts(monkeypatch):
    FakeCuda(monkeypatch, 1)
    monkeypatch.setenv(accelerator.CONNECTIONS, "1")  # as Megatron-LM advises, for another way to overlap
    pick_device("auto", 0)
    accelerator.check_connections(17)  # 8 channels each way
    monkeypatch.setenv(accelerator.CONNECTIONS, "1")
    with pytest.raises(
        ValueError, match=r"CUDA_DEVICE_MAX_CONNECTIONS=1 gives a GPU fewer queues .* \(3: .* set it to 32"
    ):
        accelerator.check_connections(3)


# what the caller has set


def test_ranks_take_over_torchs_switches():
    found = pickle.loads(pickle.dumps(Settings()))
    assert found == Settings()
    before = Settings()
    torch.set_deterministic_debug_mode("warn")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    try:
        set_ = Settings()
        assert set_ != before
        before.apply()
        assert Settings() == before
        set_.apply()
        assert Settings() == set_
    finally:
        before.apply()


class Switches(nn.Module):
    """Passes on what is set in its rank."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [
            torch.get_deterministic_debug_mode(),
            torch.get_float32_matmul_precision() == "high",
            torch.ones(1).is_cpu,
        ]
        return x * 0 + torch.tensor(found, dtype=x.dtype)


def test_they_are_set_in_the_ranks():
    before = Settings()
    torch.set_deterministic_debug_mode("warn")
    torch.set_float32_matmul_precision("high")
    try:
        run = ppedu.train(
            [nn.Tanh(), Switches()], ppedu.forward_only(2, 1), [(torch.zeros(1, 3), torch.zeros(1, 3))],
            lambda y, t: (y * torch.tensor([100.0, 10.0, 1.0])).sum(), device="cpu", progress=False,
        )  # fmt: skip
    finally:
        before.apply()
    assert run.losses == (111.0,)


def test_a_default_device_of_the_callers_is_each_ranks_own():
    """Whoever says torch.set_default_device("cuda") has tensors that name no device on the GPU; in a rank, on its own.
    On the CPU: the caller's default, another one, reaches none of what ranks and their channels make."""
    model, data = layers(4, 4, 4), [batch(8, 4, 4)]
    plain = Plain(model, data, mse, momentum, 2)
    torch.set_default_device("meta")
    try:
        run = ppedu.train(
            model, ppedu.zb_h1(3, 4), data, mse, momentum, 2, device="cpu", gradients=True, progress=False
        )
    finally:
        torch.set_default_device(None)
    assert_equal_training(run.losses, run.gradients, model.state_dict(), plain)


def test_conjugates_travel_as_numbers():
    """torch conjugates when a tensor is read; over a channel goes its memory."""

    class Conjugate(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.conj(x)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.imag - targets).mean()

    inputs = torch.tensor([[1 + 2j], [3 + 4j]], dtype=torch.complex128)
    run = ppedu.train(
        [Conjugate(), nn.Identity()], ppedu.forward_only(2, 2), [(inputs, torch.zeros(2, 1, dtype=torch.float64))], loss,
        device="cpu", progress=False,
    )  # fmt: skip
    assert run.losses == (-3.0,)


# what a rehearsal leaves


class Holder:
    def __init__(self) -> None:
        self.number, self.items, self.table = 1, [1, [2]], {"a": {3}, "t": torch.ones(2)}
        self.itself = self


def test_a_rehearsal_leaves_objects_and_random_numbers_as_they_were():
    layer, loss = nn.Linear(2, 2), Holder()
    numbers = [random.Random(5).getstate(), np.random.RandomState(5).get_state()]
    random.setstate(numbers[0])
    np.random.set_state(numbers[1])
    torch.manual_seed(5)
    weight, tensor, items = layer.weight.detach().clone(), loss.table["t"], loss.items

    def draws() -> list[float]:
        return [random.random(), float(np.random.random()), torch.rand(()).item()]

    with unnoticed([layer, loss, mse], torch.device("cpu")):
        first = draws()
        layer(torch.ones(1, 2)).sum().backward()
        with torch.no_grad():
            layer.weight.mul_(2)
        layer.late = 1
        loss.number, loss.more = 2, 3
        loss.items[1].append(4)
        loss.items.append(5)
        loss.table["a"].add(6)
        loss.table["t"].zero_()
        loss.table.pop("t")
        del loss.itself
    assert draws() == first
    assert torch.equal(layer.weight, weight)
    assert layer.weight.grad is None
    assert not hasattr(layer, "late")
    assert vars(loss).keys() == {"number", "items", "table", "itself"}
    assert (loss.number, loss.items, loss.table["a"]) == (1, [1, [2]], {3})
    assert loss.items is items
    assert loss.table["t"] is tensor
    assert tensor.tolist() == [1, 1]


# what is waited for, and what is left


def test_nobody_waits_for_the_whole_device(root):
    """It would wait for receives that are posted ahead. (layer_times runs in the caller's process, where there are none.)"""
    files = [path for path in (root / "ppedu" / "runtime").rglob("*.py") if path.name != "layer_times.py"]
    code = {path.name: re.sub(r'""".*?"""|#.*', "", path.read_text("utf-8"), flags=re.DOTALL) for path in files}
    assert "clocks.py" in code
    assert [name for name, text in code.items() if re.search(r"cuda\.synchronize|\.cpu\.synchronize", text)] == []


def test_what_nccl_shares_is_found_in_the_maps_of_a_process(tmp_path: Path, monkeypatch):
    (tmp_path / "7").mkdir()
    maps = "7f00-7f10 rw-s 00000000 00:19 12 /dev/shm/nccl-Ab3\n7f10 r--p 0 0:0 3 /usr/lib/libc.so\n7f20 rw-s 00 00:19 12 /dev/shm/nccl-Ab3\n"
    (tmp_path / "7" / "maps").write_text(maps + "7f30 rw-s 0 0:19 5 /dev/shm/nccl-zz9 (deleted)\n", "utf-8")
    monkeypatch.setattr(launch, "_shared_memory", lambda: ["/dev/shm/nccl-Ab3"])
    assert launch.shared_by_nccl(7, tmp_path) == [Path("/dev/shm/nccl-Ab3"), Path("/dev/shm/nccl-zz9")]
    assert launch.shared_by_nccl(8, tmp_path) == []
    monkeypatch.setattr(launch, "_shared_memory", list)
    assert launch.shared_by_nccl(7, tmp_path) == []


@pytest.mark.parametrize(
    ("cores", "device", "wanted"),
    [
        ((2,), "CPU", "measured: 4 CPU processes on 2 cores"),
        ((1,), "CPU", "measured: 4 CPU processes on 1 core"),
        ((2, 2), "CPU", "measured: 4 CPU processes on 2 hosts with 2 cores each"),
        ((2, 16), "CPU", "measured: 4 CPU processes on 2 hosts with 2 + 16 cores"),
        ((8, 8), "NVIDIA H200", "measured: 4 ranks on NVIDIA H200 in 2 hosts over nccl"),
        ((8,), "NVIDIA H200", "measured: 4 ranks on NVIDIA H200 over nccl"),
    ],
)
def test_captions_say_how_many_hosts(cores, device, wanted):
    assert where_measured(4, device, "nccl", cores, None) == wanted
