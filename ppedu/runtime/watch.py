"""Listen to the ranks of a run until all are done, or one has failed, died or hung: then say which, where and how."""

from __future__ import annotations

import pickle
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, NoReturn

from ppedu.runtime.errors import RunError
from ppedu.runtime.failures import Failure, failure_text

TICK = 0.1  # seconds between looks at whether anything moves
ECHO = 2.0  # seconds that a lost connection waits for its cause to be heard of
BIRTH = 60.0  # seconds that a process has at least to come up: where it is spawned, it imports torch meanwhile
LAST_WORDS = 0.2  # seconds at most to read what ranks have said before a failure


@dataclass(frozen=True, slots=True)
class Place:
    """What a rank is doing: `text` says it, `action` and `step` name it, `waiting` if it only waits for others."""

    text: str
    action: str | None
    step: int | None
    waiting: bool
    since: float


class Watch:
    """One run's ranks: `processes`, the `ears` that hear them, and `where` they are. `let_in`: raises what ends the run
    from outside; it is called ten times a second."""

    def __init__(
        self,
        processes: Sequence[Any],
        ears: Sequence[connection.Connection],
        where: Callable[[int], Place],
        on_message: Callable[[int, str, Any], None],
        timeout: float,
        let_in: Callable[[], None],
    ) -> None:
        self.processes, self.where, self.on_message = processes, where, on_message
        self.timeout, self.let_in = timeout, let_in
        self.ears: dict[Any, int] = {ear: rank for rank, ear in enumerate(ears)}
        self.deaths = {process.sentinel: rank for rank, process in enumerate(processes)}
        self.done: dict[int, Any] = {}
        self.awake: set[int] = set()
        self.echo: tuple[float, int, Failure, Place] | None = None
        self.clock = _Clock()
        self.seen: dict[int, tuple[Place, float]] = {}  # where each rank is, and since when on our clock

    def results(self) -> list[Any]:
        checked = 0.0
        while len(self.done) < len(self.processes):
            ready = connection.wait([*self.ears, *self.deaths], TICK)
            self.let_in()
            now = self.clock.read()
            for ear in [e for e in ready if e in self.ears]:
                self._listen(ear)
            for sentinel in [s for s in ready if s in self.deaths]:
                self._end_of(self.deaths.pop(sentinel))
            if self.echo and now - self.echo[0] > ECHO:
                self._failed(*self.echo[1:])
            if now - checked > TICK:  # by the clock: another rank may say something all the time
                checked = now
                self._check_progress(now)
        return [self.done[rank] for rank in sorted(self.done)]

    def _listen(self, ear: Any) -> None:
        rank, message = self.ears[ear], self._heard(ear)
        if message is None:
            return
        kind, content = message
        if kind == "done":
            self.done[rank] = content
        elif kind == "failed":
            if not content.lost_peer:
                self._failed(rank, content, self.where(rank))
            self.echo = self.echo or (self.clock.read(), rank, content, self.where(rank))
        else:
            self._tell(rank, kind, content)

    def _heard(self, ear: Any) -> tuple[str, Any] | None:
        try:
            message: tuple[str, Any] = pickle.loads(ear.recv_bytes())
        except (EOFError, OSError):
            del self.ears[ear]  # its end is heard by the sentinel
            return None
        return message

    def _tell(self, rank: int, kind: str, content: Any) -> None:
        if kind == "awake":
            self.awake.add(rank)
            self.seen.pop(rank, None)  # its time begins now
        else:
            self.on_message(rank, kind, content)

    def _end_of(self, rank: int) -> None:
        """A process ended. What it said before that comes first: it may have been done, or have failed."""
        for ear in [e for e, r in self.ears.items() if r == rank]:
            while ear in self.ears and ear.poll():
                self._listen(ear)
        if rank not in self.done:
            self._died(rank)

    def _failed(self, rank: int, failure: Failure, place: Place) -> NoReturn:
        text = failure_text(failure)
        head = f"rank {rank} failed {_in(place)}"
        if failure.remark:
            head = f"{failure.remark}.\nSo {head}"
        self._raise(f"{head}:\n\n{text}", rank, place, text)

    def _died(self, rank: int) -> NoReturn:
        process, place = self.processes[rank], self.where(rank)
        process.join(1)
        code = process.exitcode
        if code is not None and code < 0:
            how = f"was killed by {_signal(-code)}"
        else:
            how = f"ended by itself with exit code {code}"
        self._raise(f"rank {rank} {how} {_in(place)}", rank, place)

    def _check_progress(self, now: float) -> None:
        """Blame the rank that computes: the others wait, directly or not, for it."""
        waited: dict[int, float] = {}
        for rank in range(len(self.processes)):
            place = self.where(rank)
            if rank not in self.seen or self.seen[rank][0] != place:
                self.seen[rank] = place, now
            if rank not in self.done:
                waited[rank] = now - self.seen[rank][1]
        stuck = [r for r, t in waited.items() if t > (self.timeout if r in self.awake else max(self.timeout, BIRTH))]
        guilty = [r for r in stuck if not self.seen[r][0].waiting]
        if not guilty and (len(stuck) < len(waited) or not stuck):
            return
        first = guilty[0] if guilty else stuck[0]
        places = {rank: self.seen[rank][0] for rank in waited}
        lines = [f"  rank {rank} {place.text}, for {waited[rank]:.1f} s" for rank, place in places.items()]
        self._raise(
            f"no progress for {self.timeout:g} s: rank {first} {places[first].text}.\n" + "\n".join(lines)
            + "\nIf an operation may take that long, give train(..., timeout=seconds) more.",
            first, places[first],
        )  # fmt: skip

    def _raise(self, message: str, rank: int, place: Place, traceback: str = "") -> NoReturn:
        self._hear_last_words()
        raise RunError(message, rank=rank, action=place.action, step=place.step, traceback=traceback)

    def _hear_last_words(self) -> None:
        """What the ranks said before the failure, above all what they printed, is passed on."""
        deadline = time.perf_counter() + LAST_WORDS
        while (ready := connection.wait([*self.ears], 0)) and time.perf_counter() < deadline:
            for ear in ready:
                rank, message = self.ears[ear], self._heard(ear)
                if message and message[0] not in ("done", "failed"):
                    self._tell(rank, *message)


class _Clock:
    """Seconds that this process ran. While it was stopped (Ctrl-Z, a debugger), so may its ranks have been: then no one hung."""

    def __init__(self) -> None:
        self._now, self._last = 0.0, time.perf_counter()

    def read(self) -> float:
        last, self._last = self._last, time.perf_counter()
        self._now += min(self._last - last, 10 * TICK)
        return self._now


def _signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
    return name + (" (by hand, or by a system that ran out of memory)" if name == "SIGKILL" else "")


def _in(place: Place) -> str:
    if place.action is not None and not place.waiting:
        return f"in {place.action} of step {place.step}"
    return f"while it {place.text}" + ("" if place.step is None else f" (step {place.step})")
