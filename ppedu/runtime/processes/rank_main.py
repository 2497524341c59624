"""The main of a rank, the same wherever it runs: set up, meet the others, and do the work under their eyes.

A rank is a process of its own (`fresh_rank`), or a thread in a world that is there (ppedu/runtime/joined). Either makes a
`Context`, and gives it to what its job says: `train_rank`, torch's runtime, or any function (work, context).
"""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ppedu.runtime.processes.rank_process import Sender
from ppedu.runtime.rank import channels
from ppedu.runtime.rank.accelerator import many_connections
from ppedu.runtime.rank.group import Group, connect
from ppedu.runtime.rank.heartbeat import CONNECTING, STARTING, Heartbeat
from ppedu.runtime.rank.interpreter import Rank
from ppedu.runtime.rank.job import RankResult, Settings, StepReport, Work
from ppedu.runtime.rank.replicas import copy_sets

# Where messages are waited for: an error that starts there, while nothing is computed, is the transport's.
_TRANSPORT = (str(Path(channels.__file__).parent), str(Path(dist.__file__).parent))


@dataclass(slots=True)
class Context:
    """What a rank's work finds when it begins.

    control: a gloo group of all ranks. store: where they meet. limit: how long the transport waits for a message.
    heartbeat: where the rank publishes what it does. report: takes what each step came to.
    computes: whether an error would be the rank's own, and not that of a message.
    """

    rank: int
    size: int
    device: torch.device
    store: Any
    limit: timedelta
    heartbeat: Heartbeat
    report: Callable[[StepReport], None]
    control: dist.ProcessGroup | None = None
    group: Group | None = None
    clock: Callable[[], float] = time.perf_counter
    computes: Callable[[], bool] = lambda: False

    def connect(self, work: Work) -> Group:
        """The channels that the work needs, set up once."""
        if self.group is None:
            assert self.control is not None
            sets = copy_sets(work.job.schedule)
            self.group = connect(
                self.rank, self.size, self.device, self.control, work.pairs, sets, self.store, self.limit
            )
        return self.group

    @contextmanager
    def lost_peers_marked(self) -> Iterator[None]:
        """Mark an error that the transport raised: it is the echo of another rank's end, never the cause."""
        try:
            yield
        except RuntimeError as error:
            *_, (frame, _) = traceback.walk_tb(error.__traceback__)
            if not self.computes() and frame.f_code.co_filename.startswith(_TRANSPORT):
                error.lost_peer = True  # type: ignore[attr-defined]
            raise


RankMain = Callable[[Any, Context], Any]
"""(work, context) -> result"""


def rank_of(work: Work, context: Context) -> Rank:
    """The interpreter of the work's program, ready to run."""
    group = context.connect(work)
    context.heartbeat.put(-1, STARTING)
    rank = Rank(work, group, context.report, context.heartbeat, context.clock)
    context.computes = lambda: rank.current is not None
    return rank


def train_rank(work: Work, context: Context) -> RankResult:
    return rank_of(work, context).run()


@dataclass(slots=True)
class Start:
    """What a fresh rank gets. work: pickled, so that its tensors find the rank's device when they are read.
    rendezvous: a file of the run's own, so that no port is fixed and no run meets another's."""

    main: RankMain
    work: bytes
    rank: int
    size: int
    rendezvous: str
    device: str
    threads: int
    settings: Settings
    limit: timedelta


def fresh_rank(sender: Sender, cells: Any, start: Start) -> Any:
    """The main of a rank in a process of its own, in a world of its own with the others, all on this machine."""
    heartbeat = Heartbeat(cells, start.rank)
    device = pick_device(start.device, start.rank)
    work = pickle.loads(start.work)
    torch.set_num_threads(start.threads)
    start.settings.apply()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    os.environ.setdefault("USE_LIBUV", "0")
    store = dist.FileStore(start.rendezvous, start.size)  # type: ignore[attr-defined]
    heartbeat.put(-1, CONNECTING)
    shared = store if torch.cuda.is_available() else None  # else no rank has a device to tell of
    context = Context(start.rank, start.size, device, shared, start.limit, heartbeat, lambda r: sender.send("step", r))
    with context.lost_peers_marked():
        dist.init_process_group("gloo", store=store, rank=start.rank, world_size=start.size, timeout=start.limit)
        context.control = dist.distributed_c10d._get_default_group()
        return start.main(work, context)


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
