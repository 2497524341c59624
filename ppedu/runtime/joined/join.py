"""A rank of a world that is there (torchrun's, Slurm's): its main thread watches, and a worker thread does its work.

Rank 0's main thread watches all ranks as the caller of a launched run does, and sends every rank the one verdict. So a
layer that hangs, a rank that dies and a host that is cut off end the run on all ranks that are left, with one RunError.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from ppedu.runtime.joined.clocks import clock_offset, on_one_clock
from ppedu.runtime.joined.hub import Hub, OrphanedError, SharedHeartbeat, Spoke
from ppedu.runtime.joined.links import Links, meet
from ppedu.runtime.joined.told import told_by_one
from ppedu.runtime.joined.world import World, leave, local_rank, world_rank
from ppedu.runtime.processes.failures import failure_of, failure_text
from ppedu.runtime.processes.interrupts import interrupts_held, terminations_held
from ppedu.runtime.processes.rank_main import Context, RankMain, pick_device
from ppedu.runtime.processes.rank_process import Sender
from ppedu.runtime.processes.watch import BIRTH, Place
from ppedu.runtime.rank.heartbeat import CONNECTING, GATHERING, Heartbeat
from ppedu.runtime.rank.job import RankResult, StepReport, Work

FAREWELL = 1.0  # seconds that a worker thread has to end once its connections are cut
OnMessage = Callable[[int, str, Any], None]
Everyone = list[tuple[list[StepReport], RankResult]]
"""Of each rank: the reports of its steps, and its result."""


def train_joined(
    main: RankMain,
    works: Sequence[Work],
    place: Callable[[Work, int, int, float], Place],
    on_message: OnMessage,
    check_stop: Callable[[], None],
) -> Everyone:
    """Run this rank's part of the works; returns the reports and results of all ranks, on every rank.

    place: what a rank does, in words. on_message: takes what ranks say on the way, on rank 0. check_stop: raises what ends
    the run from outside.
    The caller's own layers, random numbers, threads, device and groups stay as they are: the rank works on copies.
    """
    import_module("ppedu.runtime.processes.preload")  # what torch imports late takes seconds: before anyone waits
    job, rank = works[0].job, world_rank()
    device = pick_device(job.device, local_rank(rank), set_it=False)
    work = replace(works[rank], modules=copy.deepcopy(works[rank].modules))
    with _alone(), interrupts_held() as held, terminations_held() as ending, _as_it_was(job.threads, device):
        parent = os.getppid()

        def check_signals() -> None:
            held.let_through()
            ending.look()
            if "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() != parent:
                raise OrphanedError("torchrun, which started this rank, is gone")

        longest = max(job.timeout, BIRTH)
        with told_by_one():
            world = World.join(longest, check_signals)
            links = meet(world.keys, world.rank, world.size, _called(works), longest, check_signals)
        worker = Worker(main, work, world, device, links)

        def check() -> None:
            check_signals()
            if worker.connected.is_set():  # it takes a moment, and cannot be called off without harm to the world
                check_stop()

        def where(cells: Sequence[float], rank: int) -> Place:
            return place(works[rank], *Heartbeat.read(cells, rank))

        side = Hub if world.rank == 0 else Spoke
        watch = side(world.rank, links, worker.heartbeat, where, on_message, job.timeout, check).follow
        with contextlib.closing(links):
            return worker.result_under(watch)


_one_at_a_time = threading.Lock()


@contextmanager
def _alone() -> Iterator[None]:
    if not _one_at_a_time.acquire(blocking=False):
        raise ValueError(
            "another thread of this rank trains already, and ranks join one run at a time: wait for its end"
        )
    try:
        yield
    finally:
        _one_at_a_time.release()


def _called(works: Sequence[Work]) -> dict[str, Any]:
    """What all ranks have to want alike. Of weights the sums stand for the numbers: other seeds give other ones."""
    job, state = works[0].job, dict(pair for work in works for pair in work.named_tensors())
    order = hashlib.sha1(job.schedule.to_csv().encode()).hexdigest()[:8]
    shapes = hashlib.sha1(str([(n, t.shape, t.dtype) for n, t in state.items()]).encode()).hexdigest()[:8]
    called: dict[str, Any] = {
        "schedule": f"{job.schedule.label} (order {order})", "steps": str(job.steps), "pace": str(job.pace),
        "seed": str(job.seed), "gradients": str(job.gradients), "timeout": f"{job.timeout:g}",
        "model": f"{len(state)} weights and buffers (names, shapes and dtypes {shapes})",
    }  # fmt: skip
    for name, tensor in state.items():
        numbers = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        called[f"weights {name}"] = [numbers.double().sum().item(), numbers.double().abs().sum().item()]
    return called


_LOOPBACK = (
    "a host's own name leads to an address (127...) that is another machine on every host, as on Debian and Ubuntu: "
    "export GLOO_SOCKET_IFNAME=<the network interface, like eth0> on every host"
)


class Worker(threading.Thread):
    """Does the rank's work, and tells how it ended."""

    def __init__(self, main: RankMain, work: Work, world: World, device: torch.device, links: Links) -> None:
        super().__init__(name=f"ppedu rank {world.rank}", daemon=True)
        self.main, self.work, self.world, self.machines = main, work, world, links.machines
        self.sender = Sender(links.mine)
        trails = list(links.trails.values())
        self.heartbeat = SharedHeartbeat(Heartbeat.blank(world.size), world.rank, work.program, self.sender, trails)
        self.context = Context(
            world.rank, world.size, device, world.keys, work.job.patience, self.heartbeat, self._report
        )  # fmt: skip
        self.reports: list[StepReport] = []
        self.result: Everyone | None = None
        self.groups: list[Any] = []  # process groups, to be destroyed
        self.sockets: dict[int, int] = {}
        self.connected = threading.Event()

    def result_under(self, watch: Callable[[], None]) -> Everyone:
        """Work, while this thread watches. Raises what ended the run."""
        self.start()
        try:
            watch()
        except BaseException:
            self._abandon()
            raise
        self.join()
        leave(self.groups, failed=False)
        assert self.result is not None
        return self.result

    def run(self) -> None:
        try:
            with self.context.lost_peers_marked():
                self.result = self._work()
            kind, content = "done", None
        except BaseException as error:
            failure, several = failure_of(error), len(set(self.machines)) > 1
            remark = failure.remark or (_LOOPBACK if "remote=[127." in str(error) and several else None)
            kind, content = "failed", replace(failure, text=failure_text(failure), remark=remark)
        with contextlib.suppress(OSError):  # nobody listens any more
            self.sender.send(kind, content)

    def _work(self) -> Everyone:
        context = self.context
        torch.set_num_threads(self.work.job.threads)
        if context.device.type == "cuda":
            torch.cuda.set_device(context.device)
        self.heartbeat.put(-1, CONNECTING)
        before = _sockets()
        control = context.control = self.world.control_group(context.limit)
        self.groups.append(control)
        group = context.connect(self.work)
        self.groups[:0] = [g for g in {*group.data.values(), *group.copy_groups.values()} if g is not control]
        self.sockets = {fd: inode for fd, inode in _sockets().items() if before.get(fd) != inode}
        self.connected.set()
        began = clock_offset(group, self.machines)
        since = time.perf_counter()
        context.clock = lambda: time.perf_counter() + began
        result = self.main(self.work, context)
        self.heartbeat.put(self.reports[-1].step, GATHERING)
        until, ended = time.perf_counter(), clock_offset(group, self.machines)
        reports = [on_one_clock(r, since + began, until + began, ended - began) for r in self.reports]
        everyone: list[Any] = [None] * self.world.size
        dist.all_gather_object(everyone, (reports, result), group=control)
        return everyone

    def _report(self, report: StepReport) -> None:
        """To rank 0 at once, without the moments, which all ranks exchange at the end."""
        self.reports.append(report)
        self.sender.send("step", replace(report, moments=[]))

    def _abandon(self) -> None:
        """End what keeps this thread waiting: NCCL's kernels, and gloo's connections, which tell the other ranks as well."""
        with contextlib.suppress(Exception):
            if self.context.group is not None:
                self.context.group.abort()
        _shut(self.sockets)
        self.join(FAREWELL)
        leave(self.groups, failed=True)


def _sockets() -> dict[int, int]:
    """The sockets that this process has open, and what tells one from another."""
    found: dict[int, int] = {}
    for name in os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ():
        with contextlib.suppress(OSError, ValueError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = status.st_ino
    return found


def _shut(sockets: dict[int, int]) -> None:
    """Cut these connections, if they are still those. Gloo has no other way to end a receive whose message never comes."""
    for fd, inode in sockets.items():
        with contextlib.suppress(OSError):
            if os.fstat(fd).st_ino == inode:
                with socket.socket(fileno=os.dup(fd)) as one:
                    one.getpeername()  # raises where nobody is at the other end: gloo's own door stays as it is
                    one.shutdown(socket.SHUT_RDWR)


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
