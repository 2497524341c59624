"""How a rank finds the others: fresh processes over loopback, or the world that torchrun made."""

from __future__ import annotations

import atexit
import copy
import functools
import itertools
import os
import shutil
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ppedu.runtime import channels
from ppedu.runtime.board import CONNECTING, STARTING, Board
from ppedu.runtime.born import Mouth
from ppedu.runtime.channels import Group, connect
from ppedu.runtime.execute import Rank
from ppedu.runtime.work import RankResult, StepReport, Work

_TRANSPORT = (channels.__file__, str(Path(dist.__file__).parent))  # an error that starts there is the transport's
FOREVER = timedelta(days=7)  # who hangs is found by the process that watches, not by a time-out of the transport


class Rendezvous:
    """A place where the ranks of one run meet: a file of its own, so that no port is fixed and no run meets another's."""

    def __init__(self, size: int) -> None:
        self.folder = tempfile.mkdtemp(prefix="ppedu-")
        self.path = str(Path(self.folder) / "rendezvous")

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(slots=True)
class Start:
    """What a fresh rank gets."""

    work: Work
    pairs: set[tuple[int, int]]
    device: str
    rendezvous: str
    size: int


class _Reports:
    def __init__(self, say: Callable[[str, Any], None]) -> None:
        self.say = say

    def step(self, report: StepReport) -> None:
        self.say("step", report)


def train_started(mouth: Mouth, cells: Any, start: Start) -> RankResult:
    """The work of a rank in a fresh process."""
    work = start.work
    board = Board(cells, work.rank)
    torch.set_num_threads(work.threads)
    torch.set_default_dtype(work.dtype)
    device = pick_device(start.device, work.rank)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    os.environ.setdefault("USE_LIBUV", "0")
    store = dist.FileStore(start.rendezvous, start.size)  # type: ignore[attr-defined]
    board.put(-1, CONNECTING)
    with _lost_peer_marked(lambda: True):
        dist.init_process_group("gloo", store=store, rank=work.rank, world_size=start.size, timeout=FOREVER)
        control = dist.distributed_c10d._get_default_group()
        group = connect(work.rank, start.size, device, control, start.pairs)
    board.put(-1, STARTING)
    rank = Rank(work, group, _Reports(mouth.say), board, time.perf_counter)
    with _lost_peer_marked(lambda: rank.current is None):
        return rank.run()


@contextmanager
def _lost_peer_marked(while_talking: Callable[[], bool]) -> Any:
    """Mark an error that the transport raised: it is the echo of another rank's end, never the cause."""
    try:
        yield
    except RuntimeError as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if while_talking() and frame.f_code.co_filename.startswith(_TRANSPORT):
            error.lost_peer = True  # type: ignore[attr-defined]
        raise


def pick_device(device: str, rank: int) -> torch.device:
    """The device of a rank: its GPU, shared round robin where there are fewer than ranks, or the CPU."""
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    chosen = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(chosen)
    return chosen


def found(ranks: int) -> bool:
    """Whether a world is there to join (torchrun's, or one that the caller set up). Raises ValueError where its size
    is not the schedule's."""
    if dist.is_available() and dist.is_initialized():
        size = dist.get_world_size()
    elif {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        size = int(os.environ["WORLD_SIZE"])
    else:
        return False
    if size != ranks:
        raise ValueError(
            f"the schedule has p={ranks} ranks, but this world has {size} processes: "
            f"start {ranks} (torchrun --nproc-per-node {ranks} on one machine), or take a schedule with p={size}"
        )
    return True


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(os.environ["RANK"])


def ranks_here() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))


def train_joined(
    work: Work, pairs: set[tuple[int, int]], device: str, hear: Callable[[int, str, Any], None]
) -> list[RankResult]:
    """The work of a rank in a world that is there; returns the results of all ranks, on every rank.

    The caller's own layers, random numbers, threads and groups stay as they are: the rank works on copies.
    """
    here = pick_device(device, int(os.environ.get("LOCAL_RANK", work.rank)))
    work = replace(work, modules=copy.deepcopy(work.modules))
    reports: list[tuple[str, Any]] = []
    with _control_group() as control, _as_it_was(work.threads, here):
        group = connect(work.rank, dist.get_world_size(), here, control, pairs)
        try:
            offset = clock_offset(group)
            board = Board(Board.blank(group.size), work.rank)
            local = Rank(
                work, group, _Reports(lambda *r: reports.append(r)), board, lambda: time.perf_counter() + offset
            )
            result = local.run()
            everyone: list[Any] = [None] * group.size
            dist.all_gather_object(everyone, (reports, result), group=control)
        finally:
            for via in group.data.values():
                if via is not control:
                    dist.destroy_process_group(via)
    for number, (said, _) in enumerate(everyone):
        for kind, content in said:
            hear(number, kind, content)
    return [result for _, result in everyone]


@contextmanager
def _control_group() -> Iterator[dist.ProcessGroup]:
    """A gloo group of all ranks: within the caller's world, or, where only torchrun's variables are there, as a world."""
    if dist.is_initialized():
        control = dist.new_group(backend="gloo", timeout=FOREVER)
    else:
        # A world that is gone has left its addresses in torchrun's store: each one gets keys of its own.
        store, rank, size = _store()
        keys = dist.PrefixStore(f"ppedu {next(_worlds)}", store)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=keys, rank=rank, world_size=size, timeout=FOREVER)
        control = dist.distributed_c10d._get_default_group()
    try:
        yield control
    finally:
        dist.destroy_process_group(control)


_worlds = itertools.count()


@functools.cache
def _store() -> tuple[Any, int, int]:
    """What the ranks that torchrun started meet at: (store, rank, size). One for the life of the process."""
    return next(iter(dist.rendezvous("env://")))  # type: ignore[attr-defined,no-any-return]


atexit.register(_store.cache_clear)  # its threads end before Python does


@contextmanager
def _as_it_was(threads: int, device: torch.device) -> Iterator[None]:
    """Set torch's threads; put them and torch's random numbers back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        torch.set_num_threads(before)


def clock_offset(group: Group, rounds: int = 10) -> float:
    """Seconds to add to this machine's clock to get rank 0's: 0 on the same machine, else from the quickest of a few
    exchanges of timestamps (Cristian, 1989)."""
    machines: list[Any] = [None] * group.size
    dist.all_gather_object(machines, _machine(), group=group.control)
    best = (float("inf"), 0.0)
    for other in range(1, group.size):
        if machines[other] == machines[0]:
            continue
        for _ in range(rounds):
            if group.rank == 0:
                group.receive_number(other)
                group.send_number(time.perf_counter(), other).wait()
            elif group.rank == other:
                asked = time.perf_counter()
                group.send_number(0.0, 0).wait()
                theirs = group.receive_number(0)
                answered = time.perf_counter()
                best = min(best, (answered - asked, theirs - (asked + answered) / 2))
    return best[1]


def _machine() -> Sequence[str]:
    boot = Path("/proc/sys/kernel/random/boot_id")
    return socket.gethostname(), boot.read_text() if boot.exists() else ""
