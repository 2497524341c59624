"""Checks of the machine and of what a run takes from it: libraries, devices, memory, and that nothing stays behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ppedu
from ppedu.doctor import faults, runs
from ppedu.doctor.driver import GRACE, MARK, PROC, command, left_after, left_behind, marked
from ppedu.doctor.table import UNSEEN, Skipped, device, gpus, require

SHARED = Path("/dev/shm")
SMALL = 256 << 20  # bytes of /dev/shm that NCCL may find too few, for some ten megabytes a rank
LOST = 64 << 20  # bytes of GPU memory that a driver may keep for itself


def environment() -> str:
    """What there is: versions, devices, shared memory. A GPU computes a sum."""
    said = f"Python {sys.version.split()[0]}, torch {torch.__version__}, {ppedu.machine().cores} cores; {_gpus()}"
    if not gpus():
        UNSEEN.append("everything on a GPU: torch sees none here, so the same checks ran on the CPU")
    UNSEEN.append("several machines and what connects them: this looks at one")
    if SHARED.is_dir():
        size = shutil.disk_usage(SHARED).total
        said += f"; /dev/shm {size >> 20:,} MiB"
        if size < SMALL and gpus() > 1:
            said += ", too little for NCCL perhaps: in a container give it --shm-size=1g"
    return said


def _gpus() -> str:
    if not gpus():
        return f"no GPU ({'torch is built without CUDA' if torch.version.cuda is None else 'CUDA finds none'})"
    count, built = gpus(), torch.cuda.get_arch_list()
    names = sorted({torch.cuda.get_device_name(i) for i in range(count)})
    for i in range(count):
        total = torch.ones(2, device=f"cuda:{i}").sum().item()
        require(total == 2, f"GPU {i} says that 1 + 1 is {total}")
    capable = sorted({"sm_{}{}".format(*torch.cuda.get_device_capability(i)) for i in range(count)})
    said = (
        f"{count} x {', '.join(names)} ({', '.join(capable)}; torch has {' '.join(built)}), CUDA {torch.version.cuda}"
    )
    if not torch.distributed.is_nccl_available():
        return f"{said}, no NCCL"
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    direct = sum(torch.cuda.can_device_access_peer(a, b) for a, b in pairs)
    version: Any = torch.cuda.nccl.version()
    return f"{said}, NCCL {'.'.join(map(str, version))}, {direct} of {len(pairs)} pairs reach each other's memory"


def fork_server() -> str:
    """Ranks are forks of the fork server: where CUDA was started there, it would be broken in each of them."""
    if sys.platform != "linux":
        raise Skipped("ranks are spawned here: there is no fork server")
    runs.trained(ppedu.gpipe(2, 2))
    servers = [pid for pid in _mine() if "forkserver" in command(pid)]
    require(bool(servers), f"no fork server among {[command(pid) for pid in _mine()]}")
    for pid in servers:
        held = [file for file in _open_files(PROC / str(pid)) if file.startswith(("/dev/nvidia", "/dev/dxg"))]
        require(not held, f"CUDA runs in the fork server, which holds {', '.join(sorted(set(held)))}")
    return f"{len(servers)} fork server, and no GPU is open in it"


def _mine() -> set[int]:
    """The processes that came from this one."""
    return set(marked(os.environ[MARK]))


def _open_files(process: Path) -> list[str]:
    """What a process holds open, and what is mapped into its memory. process: its folder in /proc."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for file in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                found.append(os.readlink(file))
        found += [line.split(maxsplit=5)[-1] for line in (process / "maps").read_text().splitlines()]
    return found


def memory(width: int = 512, samples: int = 4096) -> str:
    """1F1B holds less than GPipe: in bytes of activations, the same on GPU and CPU, and at the GPU's allocator."""

    def run(schedule: ppedu.Schedule, where: str) -> ppedu.Run:
        torch.manual_seed(0)
        model = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(4)]
        data = [(torch.randn(samples, width), torch.randn(samples, width))]
        return runs.train(model, schedule, data, None, steps=2, device=where)

    orders = ppedu.one_f_one_b(4, 8), ppedu.gpipe(4, 8)
    here = [run(order, device()) for order in orders]
    said = f"activations {_less('activations', *(one.peak_activation_bytes for one in here))}"
    held = here[0].peak_activation_bytes  # the batch itself does not count: what rank 0 holds may be less
    require(held[1] > held[2] > held[3], f"1F1B holds {held} bytes: less on each later rank was expected")
    if not gpus():
        return said
    for order, one in zip(orders, here, strict=True):
        cpu, ours = run(order, "cpu").peak_activation_bytes, one.peak_activation_bytes
        require(ours == cpu, f"{order.label} keeps {ours} bytes of activations on the GPU, {cpu} on the CPU")
    return f"{said}, as on the CPU; the allocator's peak {_less('the GPU', *(one.peak_device_bytes or () for one in here))}"


def _less(what: str, low: Any, high: Any) -> str:
    less = len(low) == 4 and all(a < b for a, b in zip(low[:3], high, strict=False))
    require(less, f"1F1B holds {low}, GPipe {high} bytes of {what}")
    return f"{_mb(low)} MB under 1F1B, {_mb(high)} under GPipe"


def _mb(sizes: Any) -> str:
    return " ".join(f"{size / 1e6:.1f}" for size in sizes)


def nothing_left(backend: str, rounds: int = 2) -> str:
    """After runs that go well and runs that fail: no rank, no file, and the GPU's memory as before."""
    runs.warm_up()
    servants = _mine()  # fork server and resource tracker, which live as long as this process
    free, shared = _free(), in_shared_memory()
    with tempfile.TemporaryDirectory(prefix="ppedu-") as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        for _ in range(rounds):
            runs.trained(ppedu.one_f_one_b(2, 4), backend=backend)
            for fault in ("raises", "killed") if hasattr(signal, "SIGKILL") else ("raises",):
                faults.named(fault, p=2)
        _require_gone("processes", lambda: [command(pid) for pid in _mine() - servants])
        _require_gone("files in /dev/shm", lambda: left_in_shared_memory(shared))
        _require_gone("temporary files", lambda: [path.name for path in Path(folder).iterdir()])
    lost = "GPU memory, here or by another program"
    _require_gone(lost, lambda: [f"{lost >> 20} MiB" for lost in [free - _free()] if lost > LOST])
    if sys.platform != "linux":
        UNSEEN.append("processes and shared memory that runs leave: they are found on Linux only")
        return f"no temporary file after runs that went well and runs that failed, {rounds} times"
    gpu = ", GPU memory as before" if gpus() else ""
    return f"after {rounds} runs that went well, {2 * rounds} that failed: no process, no file in /dev/shm, no temporary file{gpu}"


def _free() -> int:
    return torch.cuda.mem_get_info()[0] if gpus() else 0


def _require_gone(what: str, there: Callable[[], list[str]]) -> None:
    """What ends is gone within a few seconds."""
    left = left_after(GRACE, there)
    require(not left, left_behind(what, left))


def in_shared_memory() -> set[Path]:
    return set(SHARED.iterdir()) if SHARED.is_dir() else set()


def left_in_shared_memory(before: set[Path]) -> list[str]:
    """Files of this user that came meanwhile and that no living process holds: those that one holds may be another program's."""
    new = set()
    for file in in_shared_memory() - before:
        with contextlib.suppress(OSError):
            if file.stat().st_uid == os.getuid():
                new.add(str(file))
    return sorted(new.difference(*(_open_files(process) for process in (PROC.glob("[0-9]*") if new else ()))))
