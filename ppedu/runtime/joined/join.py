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
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist

from ppedu.runtime.joined.hub import Hear, Hub, OrphanedError, Spoke, ToldBoard, Where
from ppedu.runtime.joined.links import Links, meet
from ppedu.runtime.joined.told import told_by_one
from ppedu.runtime.processes import world
from ppedu.runtime.processes.failures import failure_of, failure_text
from ppedu.runtime.processes.interrupts import interrupts_held, terminations_held
from ppedu.runtime.processes.rank_main import Mouth
from ppedu.runtime.processes.watch import BIRTH
from ppedu.runtime.rank.channels import Group, connect
from ppedu.runtime.rank.heartbeat import CONNECTING, GATHERING, STARTING, Board
from ppedu.runtime.rank.interpreter import Rank
from ppedu.runtime.rank.job import RankResult, StepReport, Work

FAREWELL = 1.0  # seconds that a worker thread has to end once its connections are cut

Everyone = list[tuple[list[StepReport], RankResult]]
"""Of each rank: the reports of its steps, and its result."""


@dataclass(slots=True)
class Join:
    """What a rank brings into the world that is there. where: what a rank does, in words. hear: what ranks say on the way,
    on rank 0. let_in: raises what ends the run from outside."""

    work: Work
    pairs: set[tuple[int, int]]
    copies: Sequence[tuple[int, ...]]
    device: str
    where: Where
    hear: Hear
    timeout: float
    let_in: Callable[[], None]
    state: dict[str, torch.Tensor]  # of the whole model


def train_joined(job: Join) -> Everyone:
    """The work of this rank; returns the reports and results of all ranks, on every rank.

    The caller's own layers, random numbers, threads, device and groups stay as they are: the rank works on copies.
    """
    if not _one_at_a_time.acquire(blocking=False):
        raise ValueError(
            "another thread of this rank trains already, and ranks join one run at a time: wait for its end"
        )
    try:
        return _train_joined(job)
    finally:
        _one_at_a_time.release()


_one_at_a_time = threading.Lock()


def _train_joined(job: Join) -> Everyone:
    import_module("ppedu.runtime.processes.preload")  # what torch imports late takes seconds: before anyone waits
    here = world.pick_device(job.device, world.local_rank(job.work.rank), set_it=False)
    job.work = replace(job.work, modules=copy.deepcopy(job.work.modules))
    with interrupts_held() as held, terminations_held() as ending, _as_it_was(job.work.threads, here):
        parent = os.getppid()

        def signals() -> None:
            held.let_through()
            ending.look()
            if "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() != parent:
                raise OrphanedError("torchrun, which started this rank, is gone")

        with told_by_one():
            joined = world.World.join(max(job.timeout, BIRTH), signals)
            links = meet(joined.keys, joined.rank, joined.size, _called(job), max(job.timeout, BIRTH), signals)
        try:
            return _watched(job, joined, links, here, signals)
        finally:
            links.close()


def _called(job: Join) -> dict[str, Any]:
    """What all ranks have to want alike. Of weights the sums stand for the numbers: other seeds give other ones."""
    work = job.work
    order = hashlib.sha1(work.schedule.to_csv().encode()).hexdigest()[:8]
    shapes = hashlib.sha1(str([(n, t.shape, t.dtype) for n, t in job.state.items()]).encode()).hexdigest()[:8]
    called: dict[str, Any] = {
        "schedule": f"{work.schedule.label} (order {order})", "steps": str(work.steps), "pace": str(work.pace),
        "seed": str(work.seed), "gradients": str(work.gradients), "timeout": f"{job.timeout:g}",
        "model": f"{len(job.state)} weights and buffers (names, shapes and dtypes {shapes})",
    }  # fmt: skip
    for name, tensor in job.state.items():
        numbers = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        called[f"weights {name}"] = [numbers.double().sum().item(), numbers.double().abs().sum().item()]
    return called


def _watched(job: Join, joined: world.World, links: Links, here: torch.device, signals: Callable[[], None]) -> Everyone:
    cells = Board.blank(joined.size)
    mouth = Mouth(links.mine)
    board = ToldBoard(cells, joined.rank, job.work.program, mouth, list(links.trails.values()))
    worker = Worker(job, joined, here, mouth, board, links.machines)
    worker.start()

    def let_in() -> None:
        signals()
        if worker.connected.is_set():  # it takes a moment, and cannot be called off without harm to the world
            job.let_in()

    side = Hub if joined.rank == 0 else Spoke
    try:
        side(joined.rank, links, board, job.where, job.hear, job.timeout, let_in).follow()
    except BaseException:
        worker.abandon()
        raise
    worker.join()
    joined.leave(worker.groups)
    assert worker.result is not None
    return worker.result


_LOOPBACK = (
    "a host's own name leads to an address (127...) that is another machine on every host, as on Debian and Ubuntu: "
    "export GLOO_SOCKET_IFNAME=<the network interface, like eth0> on every host"
)


class Worker(threading.Thread):
    """Does the rank's work, and tells how it ended."""

    def __init__(
        self,
        job: Join,
        joined: world.World,
        here: torch.device,
        mouth: Mouth,
        board: ToldBoard,
        machines: Sequence[Any],
    ) -> None:
        super().__init__(name=f"ppedu rank {joined.rank}", daemon=True)
        self.job, self.joined, self.here, self.mouth, self.board = job, joined, here, mouth, board
        self.several_hosts = len(set(machines)) > 1
        self.result: Everyone | None = None
        self.groups: list[Any] = []  # process groups, to be destroyed
        self.group: Group | None = None
        self.sockets: dict[int, int] = {}
        self.connected = threading.Event()
        self.current: Callable[[], bool] = lambda: True

    def run(self) -> None:
        try:
            with world.lost_peer_marked(lambda: self.current()):  # noqa: PLW0108 - by then it is another one
                self.result = self._work()
            kind, content = "done", None
        except BaseException as error:
            failure = failure_of(error)
            remark = failure.remark or (_LOOPBACK if "remote=[127." in str(error) and self.several_hosts else None)
            kind, content = "failed", replace(failure, text=failure_text(failure), remark=remark)
        with contextlib.suppress(OSError):  # nobody listens any more
            self.mouth.say(kind, content)

    def _work(self) -> Everyone:
        work, job, joined = self.job.work, self.job, self.joined
        torch.set_num_threads(work.threads)
        if self.here.type == "cuda":
            torch.cuda.set_device(self.here)
        self.board.put(-1, CONNECTING)
        limit = world.patience(work.schedule, job.timeout)
        before = _sockets()
        control = joined.control_group(limit)
        self.groups.append(control)
        group = self.group = connect(
            joined.rank, joined.size, self.here, control, job.pairs, job.copies, joined.keys, limit
        )  # fmt: skip
        self.groups[:0] = [g for g in {*group.data.values(), *group.copy_groups.values()} if g is not control]
        self.sockets = {fd: inode for fd, inode in _sockets().items() if before.get(fd) != inode}
        self.connected.set()
        began = world.clock_offset(group)
        since = time.perf_counter()
        self.board.put(-1, STARTING)
        said = Reports(self.mouth)
        rank = Rank(work, group, said, self.board, lambda: time.perf_counter() + began)
        self.current = lambda: rank.current is None
        result = rank.run()
        self.board.put(rank.step, GATHERING)
        until, ended = time.perf_counter(), world.clock_offset(group)
        reports = [world.on_one_clock(r, since + began, until + began, ended - began) for r in said.all]
        everyone: list[Any] = [None] * joined.size
        dist.all_gather_object(everyone, (reports, result), group=control)
        return everyone

    def abandon(self) -> None:
        """End what keeps this thread waiting: NCCL's kernels, and gloo's connections, which tell the other ranks as well."""
        with contextlib.suppress(Exception):
            if self.group is not None:
                self.group.abort()
        _shut(self.sockets)
        self.join(FAREWELL)
        self.joined.abandon(self.groups)


class Reports:
    """Whom a rank tells of its steps: rank 0 at once, without the moments, which all ranks exchange at the end."""

    def __init__(self, mouth: Mouth) -> None:
        self.mouth, self.all = mouth, list[StepReport]()

    def step(self, report: StepReport) -> None:
        self.all.append(report)
        self.mouth.say("step", replace(report, moments=[]))


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
