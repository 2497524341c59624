"""What this machine is said to do: GPUs by their names, which the driver is asked for and CUDA is not started for."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ppedu.runtime import machine as module
from ppedu.runtime.machine import Machine, machine

# Does what the real one does with these arguments: all GPUs, or those that -i names; it fails for a name it does not know.
DRIVER = """\
#!{python}
import sys
gpus = {gpus!r}
if sys.argv[1:3] != ["--query-gpu=name", "--format=csv,noheader"]:
    sys.exit("unknown arguments " + " ".join(sys.argv[1:]))
wanted = sys.argv[4].split(",") if sys.argv[3:4] == ["-i"] else list(gpus)
for key in wanted:
    if key not in gpus:
        print("No devices were found")
        sys.exit(6)
    print(gpus[key])
"""
A, B = "NVIDIA A100-SXM4-80GB", "NVIDIA H200"

Install = Callable[[int, "dict[str, str] | None"], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A machine on which torch counts so many GPUs, with a driver that names these, or with none."""

    def installed(count: int, gpus: dict[str, str] | None) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(module, "available_cores", lambda: 16)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if gpus is not None:
            path = tmp_path / "nvidia-smi"
            path.write_text(DRIVER.format(python=sys.executable, gpus=gpus), "utf-8")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return installed


needs_scripts = pytest.mark.skipif(os.name == "nt", reason="the stand-in for nvidia-smi is a script with a #! line")


@needs_scripts
def test_the_driver_names_them(install):
    install(2, {"0": B, "1": B})
    assert machine() == Machine(16, (B, B))
    assert repr(machine()) == (
        "This machine: 16 cores, 2 x NVIDIA H200. "
        "Here 4 ranks will share 2 GPUs (NVIDIA H200) and talk through host memory over gloo."
    )
    assert machine().plan(2) == "2 ranks will have a GPU each (NVIDIA H200) and talk over NCCL"


@needs_scripts
@pytest.mark.parametrize(
    ("visible", "names"),
    [("1", (B,)), ("2,1", (A, B)), (" 0, 2", (A, A)), ("GPU-5f1c", (B,))],
)
def test_those_that_may_be_used(install, monkeypatch, visible, names):
    install(len(names), {"0": A, "1": B, "2": A, "GPU-5f1c": B})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine().gpus == names


@needs_scripts
def test_unlike_ones_are_counted_apart(install):
    install(3, {"0": A, "1": B, "2": A})
    assert "16 cores, 2 x NVIDIA A100-SXM4-80GB, 1 x NVIDIA H200. Here 4 ranks will share 3 GPUs (" in repr(machine())


@pytest.mark.parametrize(("count", "said"), [(1, "1 GPU"), (2, "2 GPUs")])
def test_without_the_driver_s_tool_they_are_counted(install, count, said):
    install(count, None)
    assert repr(machine()) == (
        f"This machine: 16 cores, {said}. Here 4 ranks will share {said} and talk through host memory over gloo."
    )
    assert machine().plan(count) == f"{count} ranks will have a GPU each and talk over NCCL"


@needs_scripts
def test_names_that_do_not_fit_are_left_out(install, monkeypatch):
    """A slice of a GPU, which -i does not know; and a driver that knows more GPUs than torch can use."""
    install(1, {"0": A})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-37b1c8c4")
    assert machine().gpus == ("GPU",)
    install(1, {"0": A, "1": B})
    assert machine().gpus == ("GPU",)


@needs_scripts
def test_a_driver_that_does_not_answer(install, monkeypatch, tmp_path):
    install(2, {})
    (tmp_path / "nvidia-smi").write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n", "utf-8")
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    assert machine().gpus == ("GPU", "GPU")


def test_cuda_is_not_started(install, monkeypatch):
    """Nor does a machine without GPUs ask for their names."""

    def refuse(*_: object) -> None:
        raise AssertionError("this starts CUDA")

    for name in ("get_device_name", "get_device_properties", "_lazy_init", "set_device", "current_device"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    install(2, {"0": B, "1": B})
    machine()
    install(0, None)
    monkeypatch.setattr(module.shutil, "which", refuse)
    assert repr(machine()).startswith("This machine: 16 cores, no GPU. Here 4 ranks will be 4 CPU processes")


def test_one_core():
    assert "This machine: 1 core, no GPU. Here 4 ranks will be 4 CPU processes that share 1 core and" in repr(
        Machine(1, ())
    )
