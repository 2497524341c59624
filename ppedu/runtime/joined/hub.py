"""What the main threads of the ranks of a world do: rank 0's hears all ranks and tells them how the run ended; any other
says where it is, and waits to hear that."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any

from ppedu.runtime.errors import RunError, RunStopped
from ppedu.runtime.joined.links import Links, Trail
from ppedu.runtime.joined.told import for_here
from ppedu.runtime.processes.interrupts import Ended
from ppedu.runtime.processes.rank_process import Sender
from ppedu.runtime.processes.watch import TICK, Clock, Place, Ranks, Watch, at_place
from ppedu.runtime.rank.heartbeat import Heartbeat
from ppedu.runtime.rank.lower import Program, Recv, Send

BEAT = 0.5  # seconds between two words of a rank that has nothing to say
PAUSE = (
    0.03  # seconds between two looks of rank 0's main thread, which would hold up its worker if it looked all the time
)


class OrphanedError(RunError):
    """Whoever started the ranks of this host is gone, and would leave them behind."""


Where = Callable[[Sequence[float], int], Place]
"""(all heartbeats, rank) -> what that rank does, in words."""
OnMessage = Callable[[int, str, Any], None]
"""(rank, kind, content): what a rank says on the way."""


class SharedHeartbeat(Heartbeat):
    """A heartbeat that rank 0 can read, and rank 0's the others: of its operations at once, since a rank that is killed says
    nothing any more; of what it only waits for by its main thread, if it takes long."""

    def __init__(self, cells: Any, rank: int, program: Program, sender: Sender, trails: Sequence[Trail]) -> None:
        super().__init__(cells, rank)
        self.sender, self.trails = sender, trails
        self.quiet = frozenset(at for at, i in enumerate(program) if isinstance(i, Send | Recv))
        self.sent: list[float] = []

    def put(self, step: int, at: int) -> None:
        super().put(step, at)
        if at not in self.quiet:
            place = self.place()
            for trail in self.trails:
                trail.write(place)

    def publish(self, due: bool) -> None:
        """Send where this rank is, if it is new, or time to send anything at all."""
        if due or self.place() != self.sent:
            self.sent = self.place()
            self.sender.send("place", self.sent)

    def place(self) -> list[float]:
        return list(self.cells[self.base : self.base + self.WIDTH])


class Side:
    """What a rank's main thread does while its worker works (`follow`). check: raises what ends the run from outside."""

    def __init__(
        self, rank: int, links: Links, heartbeat: SharedHeartbeat, place_of: Where, on_message: OnMessage, timeout: float,
        check: Callable[[], None],
    ) -> None:  # fmt: skip
        self.rank, self.links, self.heartbeat, self.cells = rank, links, heartbeat, heartbeat.cells
        self.place_of, self.on_message, self.timeout, self.check = place_of, on_message, timeout, check
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
        return self.place_of(self.cells, rank)

    def show(self, rank: int, place: Sequence[float]) -> None:
        """A place comes by two ways: the later one counts."""
        base = rank * Heartbeat.WIDTH
        if place[2] >= self.since.get(rank, place[2]):
            self.cells[base : base + Heartbeat.WIDTH], self.since[rank] = place, place[2]

    def first_of_host(self, rank: int, gone: Sequence[int] = ()) -> bool:
        """Whether a rank is the one of its host that prints."""
        machines = self.links.machines
        return rank == min(r for r in range(len(machines)) if machines[r] == machines[rank] and r not in gone)


class Hub(Side):
    """Rank 0: it watches all ranks, and tells them how the run ended."""

    def follow(self) -> None:
        ranks = Ranks(self.links.connections, _without_a_word, {}, self.hosts)
        watch = Watch(ranks, self.where, self.receive, self.timeout, self.look_around)
        try:
            watch.results()
        except RunError as error:
            gone = [*watch.gone, *self.hung_up()]
            self.send_all("verdict", (error, gone))
            raise for_here(error, self.rank, self.first_of_host(0, gone)) from None
        except BaseException as error:  # Ctrl-C, SIGTERM, or whatever the caller's own functions raised
            what = f"rank 0 on {self.hosts[0]} ended the run ({_in_words(error)})"
            self.send_all("verdict", (RunError(what, rank=0, host=self.hosts[0]), [0]))
            raise
        self.send_all("over", None)

    def hung_up(self) -> list[int]:
        """Ranks that are gone by now: several may have ended at once."""
        ready = connection.wait(self.links.connections, 0)
        return [rank for rank, one in enumerate(self.links.connections) if one in ready and _at_end(one)]

    def look_around(self) -> None:
        self.check()
        if self.due():
            self.send_all("place", self.heartbeat.place())
        time.sleep(PAUSE)

    def receive(self, rank: int, kind: str, content: Any) -> None:
        if kind == "place":
            if rank != 0:  # its own stands there already
                self.show(rank, content)
        elif kind == "stop":
            raise RunStopped("the run was stopped")
        elif kind == "leaves":
            what = f"rank {rank} on {self.hosts[rank]} ended the run ({content})"
            raise RunError(what, rank=rank, host=self.hosts[rank])
        else:
            self.on_message(rank, kind, content)

    def send_all(self, kind: str, content: Any) -> None:
        data = pickle.dumps((kind, content))
        for one in self.links.connections[1:]:
            with contextlib.suppress(OSError):
                one.send_bytes(data)


class Spoke(Side):
    """Any other rank: it says where it is, and hears how the run ended."""

    def follow(self) -> None:
        clock, heard = Clock(), 0.0
        try:
            while True:
                self.check()
                self.heartbeat.publish(self.due())
                if connection.wait([self.links.mine], TICK):
                    kind, content = pickle.loads(self.links.mine.recv_bytes())
                    heard = clock.read()
                    if kind == "over":
                        return
                    if kind == "verdict":
                        error, gone = content
                        raise for_here(error, self.rank, self.first_of_host(self.rank, gone))
                    self.show(0, content)
                elif clock.read() - heard > self.timeout:
                    self.lost(f"nothing was heard of rank 0 there for {clock.read() - heard:.1f} s", cut=True)
        except RunStopped:
            self.send("stop", None)
            raise
        except OrphanedError as error:
            self.send("leaves", str(error))
            raise for_here(error, self.rank, self.first_of_host(self.rank)) from None
        except RunError:
            raise
        except (EOFError, OSError):
            self.lost(f"rank 0 on {self.hosts[0]} {_without_a_word(0)}", cut=False)
        except BaseException as error:  # Ctrl-C, SIGTERM
            self.send("leaves", _in_words(error))
            raise

    def send(self, kind: str, content: Any) -> None:
        with contextlib.suppress(OSError):
            self.heartbeat.sender.send(kind, content)

    def lost(self, what: str, cut: bool) -> None:
        """Without rank 0 there is no verdict: say what is known here."""
        mine, place = self.rank, self.where(0)
        here = self.place_of(self.cells, mine)
        last = "" if cut else f" {at_place(place)}"
        near = self.links.machines[0] == self.links.machines[mine]
        far = "rank 0's process stands still, or" if near else f"host {self.hosts[0]}"
        error = RunError(
            (f"{far} cannot be reached: " if cut else "")
            + f"{what}{last}. Meanwhile rank {mine} on {self.hosts[mine]} {here.text}",
            rank=0, host=self.hosts[0], action=None if cut else place.action, step=None if cut else place.step,
        )  # fmt: skip
        raise for_here(error, mine, self.first_of_host(mine, [0])) from None


def _in_words(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "Ctrl-C"
    if isinstance(error, Ended):
        return "SIGTERM"
    return type(error).__name__ + (f": {error}" if str(error) else "")


def _without_a_word(rank: int) -> str:
    return "ended without a word (it was killed, crashed or exited: see the log on its host)"


def _at_end(one: connection.Connection) -> bool:
    try:
        while one.poll():
            one.recv_bytes()
    except (EOFError, OSError):
        return True
    return False
