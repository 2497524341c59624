"""The ranks of a run as each of them sees them: over what their tensors travel, NCCL, gloo, or gloo through host memory."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ppedu.runtime.rank.accelerator import Accelerator, Cuda, check_connections

DATA, HEADER, STAMP, NUMBERS = range(4)  # gloo matches by tag; NCCL gets the data alone, and only in order


@dataclass(slots=True)
class Group:
    """The ranks of a run, and what carries their tensors.

    control: a gloo group for headers and small messages. data: the group of each ordered pair of ranks that talk.
    device: where this rank computes. through_host: its tensors travel in host memory (gloo has no CUDA tensors).
    gpu: what else this rank asks of its device; None on the CPU. copy_groups: the group of each set of ranks (sorted) that
    hold copies of one stage.
    """

    rank: int
    size: int
    device: torch.device
    control: dist.ProcessGroup
    data: dict[tuple[int, int], dist.ProcessGroup]
    through_host: bool
    backend: str
    gpu: Accelerator | None = None
    copy_groups: dict[tuple[int, ...], dist.ProcessGroup] = field(default_factory=dict)

    def over_the_host(self) -> Group:
        """The same ranks, whose tensors all go over the control group."""
        data = dict.fromkeys(self.data, self.control)
        return replace(self, data=data, through_host=self.device.type == "cuda", backend="gloo")

    def abort(self) -> None:
        """End what NCCL still has running here. (To destroy a group would wait for kernels whose messages never come.)"""
        for group in {*self.data.values(), *self.copy_groups.values()} if self.backend == "nccl" else ():
            group.abort()

    def send(self, numbers: Sequence[float], to: int) -> Any:
        """Start to send a few numbers of the host's; wait() on what comes back."""
        return self.control.send([torch.tensor(numbers, dtype=torch.float64, device="cpu")], to, NUMBERS)

    def receive(self, count: int, source: int) -> list[float]:
        numbers = torch.empty(count, dtype=torch.float64, device="cpu")
        self.control.recv([numbers], source, NUMBERS).wait()
        return numbers.tolist()


def connect(
    rank: int,
    size: int,
    device: torch.device,
    control: dist.ProcessGroup,
    pairs: set[tuple[int, int]],
    copies: Sequence[tuple[int, ...]] = (),
    store: Any = None,
    limit: timedelta | None = None,
) -> Group:
    """Set up the channels. One GPU per rank: NCCL, a group for each ordered pair, so that the two directions never
    share a stream. Else gloo.

    copies: the sets of ranks that need a group of their own. store: where ranks tell which device they have; without one,
    all of them are on the CPU. limit: how long the transport waits for a message. All ranks call this alike.
    """
    gpu = Cuda(device) if device.type == "cuda" else None
    nccl = store is not None and one_gpu_each(rank, size, device, store)

    def made(ranks: tuple[int, ...], shared: bool) -> dist.ProcessGroup:
        if shared and not nccl:
            return control
        group: dist.ProcessGroup = dist.new_group(list(ranks), backend="nccl" if nccl else "gloo", timeout=limit)
        return group

    ordered = by_rounds(pairs)
    if nccl:
        check_connections(1 + sum(rank in ranks for ranks in (*ordered, *copies)))
    with _faults_found_by_us():  # the same order on every rank
        data = {pair: made(pair, shared=True) for pair in ordered}
        sums = {ranks: made(ranks, shared=len(ranks) == size) for ranks in copies}
    group = Group(
        rank, size, device, control, {pair: one for pair, one in data.items() if rank in pair}, gpu is not None and not nccl,
        "nccl" if nccl else "gloo", gpu, {ranks: one for ranks, one in sums.items() if rank in ranks},
    )  # fmt: skip
    if nccl:
        greet(group)
    return group


def greet(group: Group) -> None:
    """NCCL joins ranks at their first message, and blocks them until then: do it here, in an order that all keep."""
    hello = torch.zeros(1, device=group.device)
    for (source, to), via in group.data.items():
        sends, other = group.rank == source, to if group.rank == source else source
        (via.send if sends else via.recv)([hello], index_in_pair(other, group.rank), DATA).wait()
        if group.gpu is not None:
            group.gpu.finish()
    for via in group.copy_groups.values():
        via.allreduce([hello]).wait()
        if group.gpu is not None:
            group.gpu.finish()


def by_rounds(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pairs of ranks in an order in which as many as can meet at the same time: no rank is in two pairs of one round.

    >>> by_rounds({(0, 1), (1, 2), (2, 3)})
    [(0, 1), (2, 3), (1, 2)]
    """
    rounds: list[list[tuple[int, int]]] = []
    for pair in sorted(pairs):
        for members in rounds:
            if not any(set(pair) & set(other) for other in members):
                members.append(pair)
                break
        else:
            rounds.append([pair])
    return [pair for members in rounds for pair in members]


@contextmanager
def _faults_found_by_us() -> Iterator[None]:
    """Groups that are made in here leave it to this package to find who failed. NCCL's own watch would end a process that
    only lost its peer, and so the wrong one would be blamed."""
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    before = os.environ.pop(name, None)
    os.environ[name] = "0"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def index_in_pair(rank: int, other: int) -> int:
    """A rank's number in the group of an ordered pair, which torch numbers by rank."""
    return int(rank > other)


def one_gpu_each(rank: int, size: int, device: torch.device, store: Any) -> bool:
    """No GPU serves two ranks, and none computes on its CPU. All ranks ask this, whatever they have themselves."""
    store.set(f"device of {rank}", json.dumps(_device_id(device)))
    every = [json.loads(store.get(f"device of {other}")) for other in range(size)]
    return None not in every and len({tuple(one) for one in every}) == size and dist.is_nccl_available()


def _device_id(device: torch.device) -> list[Any] | None:
    """The machine and the slot that a GPU is in: parts of one GPU (MIG) have ids of their own, but NCCL counts slots."""
    if device.type != "cuda":
        return None
    properties: Any = torch.cuda.get_device_properties(device)
    slot = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    return [*machine_id(), *(slot if None not in slot else [str(properties.uuid)])]


def machine_id() -> tuple[str, str]:
    """The host's name, and what tells two machines of one name apart."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return socket.gethostname(), boot.read_text().strip() if boot.exists() else ""
