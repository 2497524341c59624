"""Checks of the machine and of what a run takes from it: libraries, devices, memory, and that nothing stays behind."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ppedu
from ppedu.doctor import faults, plain, processes
from ppedu.doctor.plain import trained
from ppedu.doctor.verdict import Skipped, device, gpus, require, unseen

SMALL = 256 << 20  # bytes of /dev/shm that NCCL may find too few, for some ten megabytes a rank
LOST = 64 << 20  # bytes of GPU memory that a driver may keep for itself


def environment() -> str:
    """What there is: versions, devices, shared memory. A GPU computes a sum."""
    said = [
        f"Python {sys.version.split()[0]}, torch {torch.__version__}, {ppedu.machine().cores} cores",
        _gpus(),
        _shared(),
    ]
    if not gpus():
        unseen("everything on a GPU: torch sees none here, so the same checks ran on the CPU")
    unseen("several machines and what connects them: this looks at one")
    return "; ".join(text for text in said if text)


def _gpus() -> str:
    if not gpus():
        return f"no GPU ({'torch is built without CUDA' if torch.version.cuda is None else 'CUDA finds none'})"
    count, built = gpus(), torch.cuda.get_arch_list()
    names = sorted({torch.cuda.get_device_name(i) for i in range(count)})
    for i in range(count):
        total = torch.ones(2, device=f"cuda:{i}").sum().item()
        require(total == 2, f"GPU {i} says that 1 + 1 is {total}")
    capable = sorted({"sm_{}{}".format(*torch.cuda.get_device_capability(i)) for i in range(count)})
    return f"{count} x {', '.join(names)} ({', '.join(capable)}; torch has {' '.join(built)}), CUDA {torch.version.cuda}, {_nccl()}"


def _nccl() -> str:
    if not torch.distributed.is_nccl_available():
        return "no NCCL"
    pairs = [(a, b) for a in range(gpus()) for b in range(gpus()) if a != b]
    direct = sum(torch.cuda.can_device_access_peer(a, b) for a, b in pairs)
    version: Any = torch.cuda.nccl.version()
    return f"NCCL {'.'.join(map(str, version))}, {direct} of {len(pairs)} pairs reach each other's memory"


def _shared() -> str:
    if not processes.SHARED.is_dir():
        return ""
    size = shutil.disk_usage(processes.SHARED).total
    small = size < SMALL and gpus() > 1
    remedy = ", too little for NCCL perhaps: in a container give it --shm-size=1g" if small else ""
    return f"/dev/shm {size >> 20:,} MiB{remedy}"


def fork_server() -> str:
    """Ranks are forks of the fork server: where CUDA was started there, it would be broken in each of them."""
    if sys.platform != "linux":
        raise Skipped("ranks are spawned here: there is no fork server")
    trained(ppedu.gpipe(2, 2))
    mine = processes.marked(os.environ[processes.MARK])
    servers = [pid for pid in mine if "forkserver" in processes.command(pid)]
    require(bool(servers), f"no fork server among {[processes.command(pid) for pid in mine]}")
    for pid in servers:
        held = [file for file in processes.open_files(pid) if file.startswith(("/dev/nvidia", "/dev/dxg"))]
        require(not held, f"CUDA runs in the fork server, which holds {', '.join(sorted(set(held)))}")
    return f"{len(servers)} fork server, and no GPU is open in it"


def memory(width: int = 512, samples: int = 4096) -> str:
    """1F1B holds less than GPipe: in bytes of activations, the same on GPU and CPU, and at the GPU's allocator."""
    orders = [ppedu.one_f_one_b(4, 8), ppedu.gpipe(4, 8)]
    here = [_run(order, device(), width, samples) for order in orders]
    held, much = (run.peak_activation_bytes for run in here)
    require(
        all(a < b for a, b in zip(held[:3], much, strict=False)),
        f"1F1B holds {held}, GPipe {much} bytes of activations",
    )
    # the batch itself does not count: what rank 0 holds may be less
    require(held[1] > held[2] > held[3], f"1F1B holds {held} bytes: less on each later rank was expected")
    said = f"activations {_mb(held)} MB under 1F1B, {_mb(much)} under GPipe"
    if not gpus():
        return said
    for order, run in zip(orders, here, strict=True):
        cpu, ours = _run(order, "cpu", width, samples).peak_activation_bytes, run.peak_activation_bytes
        require(ours == cpu, f"{order.label} keeps {ours} bytes of activations on the GPU, {cpu} on the CPU")
    low, high = (run.peak_device_bytes or () for run in here)
    require(
        all(a < b for a, b in zip(low[:3], high, strict=False)),
        f"the allocator's peak: {low} under 1F1B, {high} under GPipe",
    )
    return f"{said}, as on the CPU; the allocator's peak {_mb(low)} and {_mb(high)}"


def _run(schedule: ppedu.Schedule, where: str, width: int, samples: int) -> ppedu.Run:
    torch.manual_seed(0)
    model = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(schedule.num_ranks)]
    data = [(torch.randn(samples, width), torch.randn(samples, width))]
    return ppedu.train(model, schedule, data, plain.mse, steps=2, progress=False, device=where)


def _mb(sizes: Any) -> str:
    return " ".join(f"{size / 1e6:.1f}" for size in sizes)


def nothing_left(rounds: int = 2) -> str:
    """After runs that go well and runs that fail: no rank, no file, and the GPU's memory as before."""
    servants = _mine()  # fork server and resource tracker, which live as long as this process
    free, shared = _free(), processes.in_shared_memory()
    with tempfile.TemporaryDirectory(prefix="ppedu-") as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        for _ in range(rounds):
            trained(ppedu.one_f_one_b(2, 4))
            for fault in ("raises", "killed") if hasattr(signal, "SIGKILL") else ("raises",):
                faults.named(fault, p=2)
        _gone("processes", lambda: [processes.command(pid) for pid in _mine() - servants])
        _gone("files in /dev/shm", lambda: processes.left_in_shared_memory(shared))
        _gone("temporary files", lambda: [path.name for path in Path(folder).iterdir()])
    _gone(
        "GPU memory, here or by another program",
        lambda: [f"{lost >> 20} MiB" for lost in [free - _free()] if lost > LOST],
    )
    if sys.platform != "linux":
        unseen("processes and shared memory that runs leave: they are found on Linux only")
        return f"no temporary file after runs that went well and runs that failed, {rounds} times"
    gpu = ", GPU memory as before" if gpus() else ""
    return (
        f"after {3 * rounds} runs, {2 * rounds} of them failed: no process, no file in /dev/shm, no temporary file{gpu}"
    )


def _mine() -> set[int]:
    return set(processes.marked(os.environ[processes.MARK]))


def _free() -> int:
    return torch.cuda.mem_get_info()[0] if gpus() else 0


def _gone(what: str, left: Callable[[], list[str]]) -> None:
    """What ends is gone within a few seconds."""
    deadline = time.perf_counter() + 5
    while (there := left()) and time.perf_counter() < deadline:
        time.sleep(0.1)
    require(not there, f"left behind ({what}): {', '.join(there)}")


def nccl_leaves_no_shared_memory() -> str:
    """NCCL's ranks on one machine may talk through files there, also where they are killed."""
    shared = processes.in_shared_memory()
    run, _ = trained(ppedu.one_f_one_b(2, 4), steps=1, timeout=30)
    require(run.backend == "nccl", f"ran as {run.where}")
    faults.named("killed", p=2)
    _gone("files in /dev/shm", lambda: processes.left_in_shared_memory(shared))
    return f"no file after a run that ended well and one with a killed rank; {run.where}"
