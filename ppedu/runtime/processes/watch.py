"""Listen to the ranks of a run until all are done, or one has failed, died or hung: then say which, where and how."""

from __future__ import annotations

import pickle
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, NoReturn

from ppedu.runtime.errors import RunError
from ppedu.runtime.processes.failures import Failure, failure_text

TICK = 0.1  # seconds between looks at whether anything moves
ECHO = 2.0  # seconds that a lost connection waits for its cause to be heard of
BIRTH = 60.0  # seconds that a process has at least to come up: where it is spawned, it imports torch meanwhile
DRAIN = 0.2  # seconds at most to read what ranks have said before a failure
QUIET = 3.0  # seconds without a word after which a rank on another host may be out of reach


@dataclass(frozen=True, slots=True)
class Place:
    """What a rank is doing: `text` says it, `action` and `step` name it, `waiting` if it only waits for others, `long` if it
    may take as long as it takes (all ranks exchange results, however large)."""

    text: str
    action: str | None
    step: int | None
    waiting: bool
    since: float
    long: bool = False


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of a run, as one who watches them knows them.

    connections: over which they are heard, in the order of the ranks. ended: how one ended whose connection broke
    or whose process is over, in words ("was killed by SIGKILL"). sentinels: what tells that a process is over, where it
    is a child of this one: whose rank it is. hosts: where ranks are, if on machines that may be different ones; such a rank
    says every half second that it is there, but for rank 0, whose own process watches.
    """

    connections: Sequence[connection.Connection]
    ended: Callable[[int], str]
    sentinels: Mapping[Any, int]
    hosts: Sequence[str] | None = None

    def name(self, rank: int) -> str:
        return f"rank {rank}" if self.hosts is None else f"rank {rank} on {self.hosts[rank]}"

    def host(self, rank: int) -> str | None:
        return None if self.hosts is None else self.hosts[rank]


class Watch:
    """Of one run: `where` its ranks are. `check_stop`: raises what ends the run from outside; it is called ten times a second.
    `on_message` hears what ranks say on the way."""

    def __init__(
        self,
        ranks: Ranks,
        where: Callable[[int], Place],
        on_message: Callable[[int, str, Any], None],
        timeout: float,
        check_stop: Callable[[], None],
    ) -> None:
        self.ranks, self.where, self.on_message = ranks, where, on_message
        self.timeout, self.check_stop = timeout, check_stop
        self.size = len(ranks.connections)
        self.open: dict[Any, int] = {one: rank for rank, one in enumerate(ranks.connections)}  # connections that are
        self.sentinels = dict(ranks.sentinels)
        self.done: dict[int, Any] = {}
        self.awake: set[int] = set() if ranks.hosts is None else set(range(self.size))
        self.gone: set[int] = set()
        self.echo: tuple[float, int, Failure, Place] | None = None
        self.clock = Clock()
        self.seen: dict[int, tuple[Place, float]] = {}  # where each rank is, and since when on our clock
        self.last_word: dict[int, float] = dict.fromkeys(range(self.size), 0.0)  # when it last said a word

    def results(self) -> list[Any]:
        checked = 0.0
        while len(self.done) < self.size:
            ready: list[Any] = connection.wait([*self.open, *self.sentinels], TICK)
            self.check_stop()
            now = self.clock.read()
            for one in [c for c in ready if c in self.open]:
                self._listen(one)
                while one in self.open and one.poll():
                    self._listen(one)
            for sentinel in [s for s in ready if s in self.sentinels]:
                self._end_of(self.sentinels.pop(sentinel))
            if self.echo and now - self.echo[0] > ECHO:
                self._failed(*self.echo[1:])
            if now - checked > TICK:  # by the clock: another rank may say something all the time
                checked = now
                self._check_progress(now)
        return [self.done[rank] for rank in sorted(self.done)]

    def _listen(self, one: Any) -> None:
        rank, message = self.open[one], self._received(one)
        if message is None:
            if rank not in self.ranks.sentinels.values():  # else its end is heard by the sentinel
                self._end_of(rank)
            return
        kind, content = message
        if kind == "done":
            self.done[rank] = content
        elif kind == "failed":
            if not content.lost_peer:
                self._failed(rank, content, self.where(rank))
            if self.echo is None:
                self.echo = self.clock.read(), rank, content, self.where(rank)
            elif content.remark and not self.echo[2].remark:  # the one that says more
                self.echo = self.echo[0], rank, content, self.where(rank)
        else:
            self._pass_on(rank, kind, content)

    def _received(self, one: Any) -> tuple[str, Any] | None:
        """The next message of a rank, or None where its connection is gone."""
        try:
            message: tuple[str, Any] = pickle.loads(one.recv_bytes())
        except (EOFError, OSError):
            del self.open[one]
            return None
        self.last_word[self.open[one]] = self.clock.read()
        return message

    def _pass_on(self, rank: int, kind: str, content: Any) -> None:
        if kind == "awake":
            self.awake.add(rank)
            self.seen.pop(rank, None)  # its time begins now
        else:
            self.on_message(rank, kind, content)

    def _end_of(self, rank: int) -> None:
        """A process ended. What it said before that comes first: it may have been done, or have failed."""
        for one in [c for c, r in self.open.items() if r == rank]:
            while one in self.open and one.poll():
                self._listen(one)
        if rank not in self.done:
            self.gone.add(rank)
            place = self.where(rank)
            self._raise(f"{self.ranks.name(rank)} {self.ranks.ended(rank)} {at_place(place)}", rank, place)

    def _failed(self, rank: int, failure: Failure, place: Place) -> NoReturn:
        text = failure_text(failure)
        head = f"{self.ranks.name(rank)} failed {at_place(place)}"
        if failure.remark:
            head = f"{failure.remark}.\nSo {head}"
        self._raise(f"{head}:\n\n{text}", rank, place, text)

    def _check_progress(self, now: float) -> None:
        """Blame the rank that computes: the others wait, directly or not, for it."""
        waited: dict[int, float] = {}
        for rank in range(self.size):
            place = self.where(rank)
            if rank not in self.seen or self.seen[rank][0] != place:
                self.seen[rank] = place, now
            if rank not in self.done:
                waited[rank] = now - self.seen[rank][1]
        if self.ranks.hosts is not None and self._out_of_reach(now, waited):
            return
        waited = {r: t for r, t in waited.items() if not self.seen[r][0].long}
        stuck = [r for r, t in waited.items() if t > (self.timeout if r in self.awake else max(self.timeout, BIRTH))]
        guilty = [r for r in stuck if not self.seen[r][0].waiting]
        if not guilty and (len(stuck) < len(waited) or not stuck):
            return
        first = guilty[0] if guilty else stuck[0]
        place = self.seen[first][0]
        self._raise(
            f"no progress for {self.timeout:g} s: {self.ranks.name(first)} {place.text}.\n" + self._places(waited)
            + "\nIf an operation may take that long, give train(..., timeout=seconds) more.",
            first, place,
        )  # fmt: skip

    def _places(self, waited: Mapping[int, float]) -> str:
        lines = [f"  {self.ranks.name(r)} {self.seen[r][0].text}, for {t:.1f} s" for r, t in waited.items()]
        return "\n".join(lines)

    def _out_of_reach(self, now: float, waited: Mapping[int, float]) -> bool:
        """Whether some rank has not been heard for a while, which says more than what it was last seen at."""
        silent = {
            r: now - self.last_word[r] for r in waited if r and now - self.last_word[r] > min(QUIET, self.timeout)
        }
        lost = [r for r, t in silent.items() if t > self.timeout]
        if lost:
            first, host = lost[0], self.ranks.host(lost[0])
            there = [r for r in waited if self.ranks.host(r) == host]
            if all(r in silent for r in there):
                numbers = " and ".join(map(str, there)) if len(there) < 3 else f"{there[0]} to {there[-1]}"
                what = f"host {host} cannot be reached: rank{'s' * (len(there) > 1)} {numbers} there"
            else:
                what = f"{self.ranks.name(first)} cannot be reached, or its code holds Python's lock: it"
            self._raise(
                f"{what} said nothing for {silent[first]:.1f} s. What each rank was last seen at:\n" + self._places(waited)
                + "\nIf it may be silent that long, give train(..., timeout=seconds) more.",
                first, self.seen[first][0],
            )  # fmt: skip
        return bool(silent)

    def _raise(self, message: str, rank: int, place: Place, traceback: str = "") -> NoReturn:
        self._drain()
        raise RunError(
            message, rank=rank, host=self.ranks.host(rank), action=place.action, step=place.step, traceback=traceback
        )

    def _drain(self) -> None:
        """What the ranks said before the failure, above all what they printed, is passed on."""
        deadline = time.perf_counter() + DRAIN
        while time.perf_counter() < deadline and (ready := connection.wait([*self.open], 0)):
            for one in ready:
                rank, message = self.open[one], self._received(one)
                if message is None:
                    self.gone.add(rank)
                elif message[0] not in ("done", "failed"):
                    self._pass_on(rank, *message)


class Clock:
    """Seconds that this process ran. While it was stopped (Ctrl-Z, a debugger), so may its ranks have been: then no one hung."""

    def __init__(self) -> None:
        self._now, self._last = 0.0, time.perf_counter()

    def read(self) -> float:
        last, self._last = self._last, time.perf_counter()
        self._now += min(self._last - last, 10 * TICK)
        return self._now


def how_it_ended(code: int | None) -> str:
    """A process's exit code in words."""
    if code is not None and code < 0:
        return f"was killed by {_signal(-code)}"
    return f"ended by itself with exit code {code}"


def _signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
    return name + (" (by hand, or by a system that ran out of memory)" if name == "SIGKILL" else "")


def at_place(place: Place) -> str:
    """Where a rank was, for the end of a sentence."""
    if place.action is not None and not place.waiting:
        return f"in {place.action} of step {place.step}"
    return f"while it {place.text}" + ("" if place.step is None else f" (step {place.step})")
