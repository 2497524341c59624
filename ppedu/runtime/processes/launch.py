"""Processes: start one per rank, watch them, collect what they say, report the first failure, leave nothing behind.

On Linux a fork server that has imported torch makes fresh ranks in some 10 ms each; elsewhere, where forking is not
safe, they are spawned. Ranks never import the caller's `__main__`: all that they need comes by value (cloudpickle).
"""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from glob import glob
from multiprocessing import connection
from pathlib import Path
from threading import Event
from typing import Any

from ppedu.runtime.errors import RunError, RunStopped
from ppedu.runtime.processes import rank_main as born
from ppedu.runtime.processes.fork_server import START_METHOD, _start, _warm_up
from ppedu.runtime.processes.interrupts import Held, interrupts_held
from ppedu.runtime.processes.pickling import dumps
from ppedu.runtime.processes.rank_main import Mouth, RankFunction
from ppedu.runtime.processes.watch import Place, Watch, how_it_ended
from ppedu.runtime.processes.watch import Ranks as Watched

__all__ = ["Mouth", "Place", "RankFunction", "Ranks", "run_ranks"]

END = 5.0  # seconds that killed ranks have to be gone


def run_ranks(
    function: RankFunction,
    arguments: Sequence[Any],
    cells: Sequence[float],
    *,
    where: Callable[[Sequence[float], int], Place],
    on_message: Callable[[int, str, Any], None],
    timeout: float,
    stop: Event | None = None,
) -> list[Any]:
    """Run `function` in one fresh process per argument and return what each returned, in rank order.

    cells: numbers of shared memory, as they are at first, in which ranks publish where they are; `where` reads them.
    on_message: called with (rank, kind, content) for what ranks say on the way. timeout: seconds that a rank may stay
    in one operation. stop: once it is set, the run ends in RunStopped.
    Raises RunError for the first rank that fails, dies or hangs. No rank is left when this returns or raises.
    """
    with interrupts_held() as held:

        def let_in() -> None:
            held.let_through()
            if stop is not None and stop.is_set():
                raise RunStopped("the run was stopped")

        ranks = Ranks(cells)
        try:
            ranks.start(function, arguments, held, let_in)
            return Watch(ranks.watched(), partial(where, ranks.cells), on_message, timeout, let_in).results()
        finally:
            with held.firmly():
                ranks.end()


class Ranks:
    """The processes of one run, and the ends of the pipes over which they are heard."""

    def __init__(self, cells: Sequence[float]) -> None:
        self.context: Any = multiprocessing.get_context(START_METHOD)
        self.cells = self.context.RawArray("d", list(cells))
        self.processes: list[Any] = []
        self.ears: list[connection.Connection] = []

    def start(self, function: RankFunction, arguments: Sequence[Any], held: Held, let_in: Callable[[], None]) -> None:
        """`let_in` is called where nothing is left half done."""
        if START_METHOD == "forkserver":
            _warm_up(self.context, held, let_in)
        for rank, argument in enumerate(arguments):
            payload = dumps((function, argument, dict(os.environ)))
            ear, mouth = self.context.Pipe(duplex=False)
            self.ears.append(ear)
            process = self.context.Process(
                target=born.live, args=(mouth, self.cells, payload), name=f"ppedu rank {rank}", daemon=True
            )
            try:
                with mouth, held.firmly():
                    _start(process)
            except (OSError, EOFError) as error:  # no memory, no more files; or it was killed while it was started
                what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                raise RunError(f"rank {rank} could not be started ({what})", rank=rank) from error
            self.processes.append(process)
            let_in()

    def watched(self) -> Watched:
        return Watched(self.ears, self._ended, {process.sentinel: rank for rank, process in enumerate(self.processes)})

    def _ended(self, rank: int) -> str:
        self.processes[rank].join(1)
        return how_it_ended(self.processes[rank].exitcode)

    def end(self) -> None:
        leftovers = [file for process in self.processes for file in shared_by_nccl(process.pid)]
        for process in self.processes:
            if process.exitcode is None:
                process.kill()
        deadline = time.perf_counter() + END
        for process in self.processes:
            process.join(max(0.0, deadline - time.perf_counter()))
            if process.exitcode is not None:
                process.close()
        for ear in self.ears:
            ear.close()
        for file in leftovers:
            file.unlink(missing_ok=True)


def shared_by_nccl(process: int | None, proc: Path = Path("/proc")) -> list[Path]:
    """The files in shared memory over which NCCL in this process talks to others on its machine. Who is killed leaves them."""
    if not _shared_memory():  # as on every machine but those with GPUs
        return []
    try:
        maps = (proc / str(process) / "maps").read_text()
    except OSError:  # it is over
        return []
    return [Path(name) for name in sorted(set(re.findall(r"/dev/shm/nccl-\w+", maps)))]


def _shared_memory() -> list[str]:
    return glob("/dev/shm/nccl-*")
