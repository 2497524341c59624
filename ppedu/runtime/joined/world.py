"""The world that is there: the one that torchrun or Slurm started this process in, or that the caller has set up."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ppedu.core.format import counted
from ppedu.runtime.errors import RunError
from ppedu.runtime.processes.watch import TICK

WORLD_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_UNSET = "Start ranks by torchrun, which sets these variables, or unset them"


def world_size() -> int:
    """The size of the world that is there; 1 where there is none.

    A world of one process is none: notebooks on some clusters are started with such variables.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    if not all(os.environ.get(name) for name in WORLD_VARIABLES):
        return 1
    rank, size = (_number(name) for name in ("RANK", "WORLD_SIZE"))
    if size > 1 and rank >= size:
        raise ValueError(
            f"RANK={rank} in the environment is no rank of WORLD_SIZE={size}: they go from 0 to {size - 1}. {_UNSET}"
        )
    return max(1, size)


def _number(name: str) -> int:
    text = os.environ[name]
    if not text.isdecimal():
        raise ValueError(f"{name}={text!r} in the environment is no whole number from 0 on. {_UNSET}")
    return int(text)


def is_there(ranks: int) -> bool:
    """Whether there is a world to join. Raises ValueError where its size is not the schedule's."""
    size = world_size()
    if size == 1:
        return False
    check_size(ranks, size)
    return True


def check_size(ranks: int, size: int, whose: str = "world") -> None:
    """Raise ValueError where a world, or a group within it, has not the schedule's size."""
    if size != ranks:
        remedy = f"start {ranks} (torchrun --nproc-per-node {ranks} on one machine)"
        raise ValueError(
            f"the schedule has p={ranks} ranks, but this {whose} has {counted(size, 'process')}: "
            f"{remedy if whose == 'world' else f'give a group of {ranks}'}, or take a schedule with p={size}"
        )


def world_rank() -> int:
    return dist.get_rank() if dist.is_initialized() else _number("RANK")


def local_rank(otherwise: int) -> int:
    """The number of this rank on its host."""
    return _number("LOCAL_RANK") if "LOCAL_RANK" in os.environ else otherwise


def ranks_here() -> int:
    """How many ranks are on this host."""
    return max(1, _number("LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in os.environ else world_size())


_worlds = itertools.count()


@dataclass(frozen=True, slots=True)
class World:
    """The world that is there, as one run joins it. keys: its store, under a name of the run's own."""

    rank: int
    size: int
    keys: Any
    callers: bool  # the caller has set it up, and goes on to use it

    @classmethod
    def join(cls, timeout: float, check_stop: Callable[[], None]) -> World:
        """Raises RunError where the store cannot be reached within `timeout` seconds."""
        name = f"ppedu {next(_worlds)}"  # a world that is gone has left its addresses in the store
        if dist.is_initialized():
            store, rank, size = dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
        else:
            store, rank, size = _interruptible(lambda: _store(timeout), check_stop)
        return cls(rank, size, dist.PrefixStore(name, store), dist.is_initialized())  # type: ignore[attr-defined]

    def control_group(self, limit: timedelta) -> dist.ProcessGroup:
        """A gloo group of all ranks."""
        if self.callers:
            made: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=limit)
            return made
        hook = sys.excepthook
        dist.init_process_group("gloo", store=self.keys, rank=self.rank, world_size=self.size, timeout=limit)
        sys.excepthook = hook  # torch's, which says whose error it is, would stay, one for each world there ever was
        return dist.distributed_c10d._get_default_group()


def leave(groups: Sequence[Any], failed: bool) -> None:
    """Let torch forget a run's groups. failed: without waiting for what they still have to do."""
    for group in groups:
        if failed:
            with contextlib.suppress(Exception):
                dist.distributed_c10d._abort_process_group(group)
        else:
            dist.destroy_process_group(group)


def _interruptible(function: Callable[[], Any], check_stop: Callable[[], None]) -> Any:
    """Call what waits inside of torch, where Ctrl-C does not reach it."""
    result: Future[Any] = Future()

    def call() -> None:
        try:
            result.set_result(function())
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=call, name="meeting", daemon=True).start()
    while not futures.wait([result], TICK).done:
        check_stop()
    return result.result()


_stores: list[tuple[Any, int, int]] = []


def _store(timeout: float) -> tuple[Any, int, int]:
    """What the ranks that torchrun started meet at: (store, rank, size). One for the life of the process."""
    if not _stores:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        try:
            _stores.append(next(iter(dist.rendezvous("env://", timeout=timedelta(seconds=timeout)))))  # type: ignore[attr-defined]
        except (RuntimeError, ValueError) as error:  # torch's DistNetworkError and the like among them
            raise RunError(
                f"rank {os.environ['RANK']} found RANK, WORLD_SIZE={os.environ['WORLD_SIZE']}, MASTER_ADDR and MASTER_PORT in "
                f"its environment, but no world at {address} within {timeout:g} s ({str(error).splitlines()[0]}). Start the "
                "script on every rank (torchrun does), with an address that all hosts resolve and reach; or unset WORLD_SIZE "
                "where there is no such world"
            ) from error
    return _stores[0]


atexit.register(_stores.clear)  # its threads end before Python does
