"""How a rank finds the others: fresh processes over loopback, or the world that torchrun made."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import pickle
import shutil
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ppedu.core.schedule import Schedule
from ppedu.runtime.errors import RunError
from ppedu.runtime.processes.pickling import dumps
from ppedu.runtime.processes.rank_main import Mouth
from ppedu.runtime.processes.watch import TICK
from ppedu.runtime.rank import channels
from ppedu.runtime.rank import interpreter as execute
from ppedu.runtime.rank import replicas as copies
from ppedu.runtime.rank.accelerator import many_connections
from ppedu.runtime.rank.channels import Group, connect, machine_id
from ppedu.runtime.rank.heartbeat import CONNECTING, STARTING, Board
from ppedu.runtime.rank.interpreter import Rank
from ppedu.runtime.rank.job import RankResult, StepReport, Work
from ppedu.runtime.rank.timers import Moment

# Where messages are waited for: an error that starts there is the transport's.
_TRANSPORT = (channels.__file__, copies.__file__, execute.__file__, str(Path(dist.__file__).parent))
FOREVER = timedelta(days=7)  # who hangs is found by the process that watches, not by a time-out of the transport


def patience(schedule: Schedule, timeout: float) -> timedelta:
    """How long the transport waits for a message. A rank may rightly wait while all operations of a step run, each for as
    long as `timeout` allows. Who watches finds a hang long before, and whose it is; this is for when nobody watches any more.
    """
    operations = sum(len(order) for order in schedule.orders)
    return min(FOREVER, timedelta(seconds=timeout * (operations + 10)))


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
    """What a fresh rank gets. work: a Work, pickled, so that its tensors find the rank's device when they are read."""

    rank: int
    work: bytes
    pairs: set[tuple[int, int]]
    copies: Sequence[tuple[int, ...]]
    device: str
    rendezvous: str
    size: int
    limit: timedelta


def starts_of(
    works: Sequence[Work],
    pairs: set[tuple[int, int]],
    copies: Sequence[tuple[int, ...]],
    device: str,
    path: str,
    timeout: float,
) -> list[Start]:
    limit = patience(works[0].schedule, timeout)
    return [Start(work.rank, dumps(work), pairs, copies, device, path, len(works), limit) for work in works]


class _Reports:
    def __init__(self, say: Callable[[str, Any], None]) -> None:
        self.say = say

    def step(self, report: StepReport) -> None:
        self.say("step", report)


def enter(start: Start, board: Board) -> tuple[Work, torch.device, Any]:
    """What every fresh rank begins with: its work, its device, and a world of its own with the others, whose store it is."""
    device = pick_device(start.device, start.rank)
    work: Work = pickle.loads(start.work)
    torch.set_num_threads(work.threads)
    work.settings.apply()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    os.environ.setdefault("USE_LIBUV", "0")
    store = dist.FileStore(start.rendezvous, start.size)  # type: ignore[attr-defined]
    board.put(-1, CONNECTING)
    with lost_peer_marked(lambda: True):
        dist.init_process_group("gloo", store=store, rank=work.rank, world_size=start.size, timeout=start.limit)
    return work, device, store


def train_started(mouth: Mouth, cells: Any, start: Start) -> RankResult:
    """The work of a rank in a fresh process."""
    board = Board(cells, start.rank)
    work, device, store = enter(start, board)
    with lost_peer_marked(lambda: True):
        control = dist.distributed_c10d._get_default_group()
        told = store if torch.cuda.is_available() else None  # all ranks are on this machine
        group = connect(work.rank, start.size, device, control, start.pairs, start.copies, told, start.limit)
    board.put(-1, STARTING)
    rank = Rank(work, group, _Reports(mouth.say), board, time.perf_counter)
    with lost_peer_marked(lambda: rank.current is None):
        return rank.run()


@contextmanager
def lost_peer_marked(while_talking: Callable[[], bool]) -> Any:
    """Mark an error that the transport raised: it is the echo of another rank's end, never the cause."""
    try:
        yield
    except RuntimeError as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if while_talking() and frame.f_code.co_filename.startswith(_TRANSPORT):
            error.lost_peer = True  # type: ignore[attr-defined]
        raise


def pick_device(device: str, rank: int, set_it: bool = True) -> torch.device:
    """The device of a rank: its GPU, shared round robin where there are fewer than ranks, or the CPU.

    set_it: make it the calling thread's. A GPU that this build of torch has no code for counts as none, if device="auto".
    """
    if device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    many_connections()
    chosen = torch.device("cuda", rank % torch.cuda.device_count())
    try:
        torch.ones(1, device=chosen).add(1).item()
    except RuntimeError as error:
        what = f"{torch.cuda.get_device_name(chosen)} does not compute under torch {torch.__version__} ({error})"
        if device == "cuda":
            raise RuntimeError(f"{what}. Take device='cpu', or a torch that is built for this GPU") from error
        warnings.warn(f"{what}. This rank computes on the CPU", stacklevel=2)
        return torch.device("cpu")
    if set_it:
        torch.cuda.set_device(chosen)
    return chosen


WORLD_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def size_found() -> int:
    """The size of the world that is there (torchrun's, or one that the caller set up); 1 where there is none.

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


_UNSET = "Start ranks by torchrun, which sets these variables, or unset them"


def _number(name: str) -> int:
    text = os.environ[name]
    if not text.isdecimal():
        raise ValueError(f"{name}={text!r} in the environment is no whole number from 0 on. {_UNSET}")
    return int(text)


def found(ranks: int) -> bool:
    """Whether a world is there to join. Raises ValueError where its size is not the schedule's."""
    size = size_found()
    if size == 1:
        return False
    if size != ranks:
        raise ValueError(
            f"the schedule has p={ranks} ranks, but this world has {size} processes: "
            f"start {ranks} (torchrun --nproc-per-node {ranks} on one machine), or take a schedule with p={size}"
        )
    return True


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else _number("RANK")


def local_rank(otherwise: int) -> int:
    """The number of this rank on its host."""
    return _number("LOCAL_RANK") if "LOCAL_RANK" in os.environ else otherwise


def ranks_here() -> int:
    return max(1, _number("LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in os.environ else size_found())


_worlds = itertools.count()


@dataclass(frozen=True, slots=True)
class World:
    """A world that is there, as one run joins it. keys: its store, under a name of the run's own."""

    rank: int
    size: int
    keys: Any
    callers: bool  # the caller has set it up, and goes on to use it

    @classmethod
    def join(cls, timeout: float, let_in: Callable[[], None]) -> World:
        """Raises RunError where the store cannot be reached within `timeout` seconds."""
        name = f"ppedu {next(_worlds)}"  # a world that is gone has left its addresses in the store
        if dist.is_initialized():
            store, rank, size = dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size()
        else:
            store, rank, size = _interruptible(lambda: _store(timeout), let_in)
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

    def leave(self, groups: Sequence[Any]) -> None:
        for group in groups:
            dist.destroy_process_group(group)

    def abandon(self, groups: Sequence[Any]) -> None:
        """Forget groups that are of no use any more, without waiting for what they still have to do."""
        for group in groups:
            with contextlib.suppress(Exception):
                dist.distributed_c10d._abort_process_group(group)


def _interruptible(function: Callable[[], Any], let_in: Callable[[], None]) -> Any:
    """Call what waits inside of torch, where Ctrl-C does not reach it."""
    found: list[Any] = []
    failed: list[Exception] = []

    def call() -> None:
        try:
            found.append(function())
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=call, name="meeting", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(TICK)
        let_in()
    if failed:
        raise failed[0]
    return found[0]


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


def clock_offset(group: Group, rounds: int = 10) -> float:
    """Seconds to add to this machine's clock to get rank 0's: 0 on the same machine, else from the quickest of a few
    exchanges of timestamps (Cristian, 1989)."""
    machines: list[Any] = [None] * group.size
    dist.all_gather_object(machines, machine_id(), group=group.control)
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


def on_one_clock(report: StepReport, begin: float, end: float, drift: float) -> StepReport:
    """A report whose moments follow rank 0's clock all the way: what this clock was off at the end of the run, and was not
    at its beginning, came in evenly."""
    if not drift:
        return report

    def moved(moment: Moment) -> Moment:
        return Moment(*(t + drift * (t - begin) / (end - begin) for t in (moment.start, moment.computed, moment.end)))

    return replace(report, moments=[moved(moment) for moment in report.moments])
