"""A rank of a world that is there (torchrun's, Slurm's): its main thread watches, and a worker thread does its work.

Rank 0's main thread watches all ranks as the caller of a launched run does, and sends every rank the one verdict. So a
layer that hangs, a rank that dies and a host that is cut off end the run on all ranks that are left, with one RunError.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import pickle
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing import connection
from typing import Any

import torch
import torch.distributed as dist

from ppedu.runtime import world
from ppedu.runtime.board import CONNECTING, GATHERING, STARTING, Board
from ppedu.runtime.born import Mouth
from ppedu.runtime.channels import Group, connect
from ppedu.runtime.errors import RunError, RunStopped
from ppedu.runtime.execute import Rank
from ppedu.runtime.failures import failure_of, failure_text
from ppedu.runtime.interrupts import Ended, interrupts_held, terminations_held
from ppedu.runtime.links import Links, Trail, meet
from ppedu.runtime.lower import Program, Recv, Send
from ppedu.runtime.watch import BIRTH, TICK, Clock, Place, Ranks, Watch
from ppedu.runtime.work import RankResult, StepReport, Work

BEAT = 0.5  # seconds between two words of a rank that has nothing to say
PAUSE = (
    0.03  # seconds between two looks of rank 0's main thread, which would hold up its worker if it looked all the time
)
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
    where: Callable[[Sequence[float], int], Place]
    hear: Callable[[int, str, Any], None]
    timeout: float
    let_in: Callable[[], None]


def train_joined(job: Join) -> Everyone:
    """The work of this rank; returns the reports and results of all ranks, on every rank.

    The caller's own layers, random numbers, threads, device and groups stay as they are: the rank works on copies.
    """
    import_module("ppedu.runtime.preload")  # what torch imports late takes seconds: before anyone waits
    here = world.pick_device(job.device, int(os.environ.get("LOCAL_RANK", job.work.rank)), set_it=False)
    job.work = replace(job.work, modules=copy.deepcopy(job.work.modules))
    with interrupts_held() as held, terminations_held() as ending, _as_it_was(job.work.threads, here):

        def signals() -> None:
            held.let_through()
            ending.look()

        with _told_by_one():
            joined = world.World.join(max(job.timeout, BIRTH), signals)
            links = meet(joined.keys, joined.rank, joined.size, _called(job), max(job.timeout, BIRTH), signals)
        try:
            return _watched(job, joined, links, here, signals)
        finally:
            links.close()


def _called(job: Join) -> dict[str, str]:
    work = job.work
    order = hashlib.sha1(work.schedule.to_csv().encode()).hexdigest()[:8]
    return {
        "schedule": f"{work.schedule.label} (order {order})", "steps": str(work.steps), "pace": str(work.pace),
        "seed": str(work.seed), "gradients": str(work.gradients), "timeout": f"{job.timeout:g}",
    }  # fmt: skip


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

    side = (Hub if joined.rank == 0 else Spoke)(job, joined, links, board, let_in)
    try:
        side.follow()
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


class ToldBoard(Board):
    """A board that rank 0 can read, and rank 0's the others: of its operations at once, since a rank that is killed says
    nothing any more; of what it only waits for by its main thread, if it takes long."""

    def __init__(self, cells: Any, rank: int, program: Program, mouth: Mouth, trails: Sequence[Trail]) -> None:
        super().__init__(cells, rank)
        self.mouth, self.trails = mouth, trails
        self.quiet = frozenset(at for at, i in enumerate(program) if isinstance(i, Send | Recv))
        self.told: list[float] = []

    def put(self, step: int, at: int) -> None:
        super().put(step, at)
        if at not in self.quiet:
            place = self.place()
            for trail in self.trails:
                trail.write(place)

    def tell(self, beat: bool) -> None:
        """Say where this rank is, if it is new, or time to say anything at all."""
        if beat or self.place() != self.told:
            self.told = self.place()
            self.mouth.say("place", self.told)

    def place(self) -> list[float]:
        return list(self.cells[self.base : self.base + self.WIDTH])


class Reports:
    """Whom a rank tells of its steps: rank 0 at once, without the moments, which all ranks exchange at the end."""

    def __init__(self, mouth: Mouth) -> None:
        self.mouth, self.all = mouth, list[StepReport]()

    def step(self, report: StepReport) -> None:
        self.all.append(report)
        self.mouth.say("step", replace(report, moments=[]))


class Side:
    """What a rank's main thread does while its worker works."""

    def __init__(
        self, job: Join, joined: world.World, links: Links, board: ToldBoard, outside: Callable[[], None]
    ) -> None:
        self.job, self.joined, self.links, self.board, self.cells = job, joined, links, board, board.cells
        self.outside = outside
        self.hosts = [name for name, _ in links.machines]
        self.beat = 0.0
        self.since: dict[int, float] = {}  # on each rank's own clock

    def follow(self) -> None:
        raise NotImplementedError

    def due(self) -> bool:
        now = time.perf_counter()
        if now - self.beat < BEAT:
            return False
        self.beat = now
        return True

    def where(self, rank: int) -> Place:
        if rank in self.links.trails and (record := self.links.trails[rank].last()):
            self.show(rank, record)
        return self.job.where(self.cells, rank)

    def show(self, rank: int, place: Sequence[float]) -> None:
        """A place comes by two ways: the later one counts."""
        base = rank * Board.WIDTH
        if place[2] >= self.since.get(rank, place[2]):
            self.cells[base : base + Board.WIDTH], self.since[rank] = place, place[2]

    def first_of_host(self, rank: int, gone: Sequence[int] = ()) -> bool:
        """Whether a rank is the one of its host that prints."""
        machines = self.links.machines
        return rank == min(r for r in range(self.joined.size) if machines[r] == machines[rank] and r not in gone)


class Hub(Side):
    """Rank 0: it hears all ranks, and tells them how the run ended."""

    def follow(self) -> None:
        ranks = Ranks(self.links.ears, _without_a_word, {}, self.hosts)
        watch = Watch(ranks, self.where, self.hear, self.job.timeout, self.let_in)
        try:
            watch.results()
        except RunError as error:
            gone = [*watch.gone, *self.hung_up()]
            self.tell("verdict", (error, gone))
            raise _for_here(error, self.joined.rank, self.first_of_host(0, gone)) from None
        except BaseException as error:  # Ctrl-C, SIGTERM, or whatever the caller's own functions raised
            what = f"rank 0 on {self.hosts[0]} ended the run ({_in_words(error)})"
            self.tell("verdict", (RunError(what, rank=0, host=self.hosts[0]), [0]))
            raise
        self.tell("over", None)

    def hung_up(self) -> list[int]:
        """Ranks that are gone by now: several may have ended at once."""
        ready = connection.wait(self.links.ears, 0)
        return [rank for rank, ear in enumerate(self.links.ears) if ear in ready and _at_end(ear)]

    def let_in(self) -> None:
        self.outside()
        if self.due():
            self.tell("place", self.board.place())
        time.sleep(PAUSE)

    def hear(self, rank: int, kind: str, content: Any) -> None:
        if kind == "place":
            if rank != 0:  # its own stands there already
                self.show(rank, content)
        elif kind == "stop":
            raise RunStopped("the run was stopped")
        elif kind == "leaves":
            raise RunError(
                f"rank {rank} on {self.hosts[rank]} ended the run ({content})", rank=rank, host=self.hosts[rank]
            )
        else:
            self.job.hear(rank, kind, content)

    def tell(self, kind: str, content: Any) -> None:
        data = pickle.dumps((kind, content))
        for ear in self.links.ears[1:]:
            with contextlib.suppress(OSError):
                ear.send_bytes(data)


class Spoke(Side):
    """Any other rank: it says where it is, and hears how the run ended."""

    def follow(self) -> None:
        clock, heard = Clock(), 0.0
        try:
            while True:
                self.outside()
                self.board.tell(beat=self.due())
                if connection.wait([self.links.mine], TICK):
                    kind, content = pickle.loads(self.links.mine.recv_bytes())
                    heard = clock.read()
                    if kind == "over":
                        return
                    if kind == "verdict":
                        error, gone = content
                        raise _for_here(error, self.joined.rank, self.first_of_host(self.joined.rank, gone))
                    self.show(0, content)
                elif clock.read() - heard > self.job.timeout:
                    self.lost(f"nothing was heard of rank 0 there for {clock.read() - heard:.1f} s", cut=True)
        except RunStopped:
            self.say("stop", None)
            raise
        except RunError:
            raise
        except (EOFError, OSError):
            self.lost(f"rank 0 on {self.hosts[0]} {_without_a_word(0)}", cut=False)
        except BaseException as error:  # Ctrl-C, SIGTERM
            self.say("leaves", _in_words(error))
            raise

    def say(self, kind: str, content: Any) -> None:
        with contextlib.suppress(OSError):
            self.board.mouth.say(kind, content)

    def lost(self, what: str, cut: bool) -> None:
        """Without rank 0 there is no verdict: say what is known here."""
        mine, place = self.joined.rank, self.where(0)
        here = self.job.where(self.cells, mine)
        last = (
            "" if cut else f" while it {place.text}" if place.waiting or place.action is None else f" in {place.action}"
        )
        last += "" if cut or place.step is None else f" of step {place.step}"
        error = RunError(
            (f"host {self.hosts[0]} cannot be reached: " if cut else "")
            + f"{what}{last}. Meanwhile rank {mine} on {self.hosts[mine]} {here.text}",
            rank=0, host=self.hosts[0], action=None if cut else place.action, step=None if cut else place.step,
        )  # fmt: skip
        raise _for_here(error, mine, self.first_of_host(mine, [0]))


def _in_words(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "Ctrl-C"
    if isinstance(error, Ended):
        return "SIGTERM"
    return type(error).__name__ + (f": {error}" if str(error) else "")


def _without_a_word(rank: int) -> str:
    return "ended without a word (it was killed, crashed or exited: see the log on its host)"


def _at_end(ear: connection.Connection) -> bool:
    try:
        while ear.poll():
            ear.recv_bytes()
    except (EOFError, OSError):
        return True
    return False


def _for_here(error: RunError, rank: int, told: bool) -> RunError:
    error.told_here = told
    if not told:
        _print_only_what_is_told()
    _tell_torchrun(error, rank)
    return error


@contextmanager
def _told_by_one() -> Iterator[None]:
    """Before ranks know one another, the first process of a host prints."""
    try:
        yield
    except RunError as error:
        raise _for_here(error, -1, os.environ.get("LOCAL_RANK", "0") == "0") from error.__cause__


def _print_only_what_is_told() -> None:
    """Where nobody catches a RunError, one rank of each host prints it."""
    before = sys.excepthook
    if getattr(before, "ppedu", False):
        return

    def hook(kind: Any, error: BaseException, trace: Any) -> None:
        if getattr(error, "told_here", True):
            before(kind, error, trace)

    hook.ppedu = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _tell_torchrun(error: RunError, rank: int) -> None:
    """torchrun sums up who failed first by what each rank writes here. Let it be the one that did."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    when = int(time.time()) + (0 if rank == error.rank else 1)
    said = str(error).partition("\n")[0]
    info = {"message": f"RunError: {said}", "extraInfo": {"py_callstack": said, "timestamp": str(when)}}
    with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
        json.dump({"message": info}, file)


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
