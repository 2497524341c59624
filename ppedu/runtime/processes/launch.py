"""Processes: start one per rank, watch them, collect what they say, report the first failure, leave nothing behind.

On Linux a fork server that has imported torch makes fresh ranks in some 10 ms each; elsewhere, where forking is not
safe, they are spawned. Ranks never import the caller's `__main__`: all that they need comes by value (cloudpickle).
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from glob import glob
from multiprocessing import connection
from pathlib import Path
from threading import Event
from typing import Any

from ppedu.runtime.errors import RunError, RunStopped
from ppedu.runtime.processes.fork_server import context, start_process, wait_for_server
from ppedu.runtime.processes.interrupts import Held, interrupts_held
from ppedu.runtime.processes.pickling import dumps
from ppedu.runtime.processes.rank_main import RankMain, Start, fresh_rank
from ppedu.runtime.processes.rank_process import rank_process
from ppedu.runtime.processes.watch import Place, Watch, how_it_ended
from ppedu.runtime.processes.watch import Ranks as Watched
from ppedu.runtime.rank.heartbeat import Heartbeat
from ppedu.runtime.rank.job import FOREVER, Settings

END = 5.0  # seconds that killed ranks have to be gone
OnMessage = Callable[[int, str, Any], None]
"""(rank, kind, content): what a rank says on the way."""


def run_ranks(
    main: RankMain,
    works: Sequence[Any],
    place: Callable[[int, int, int, float], Place],
    on_message: OnMessage,
    *,
    timeout: float,
    stop: Event | None = None,
    device: str = "cpu",
    threads: int = 1,
    limit: timedelta = FOREVER,
) -> list[Any]:
    """Run main(work, context) in one fresh process per work, all joined in a world, and return what each returned, in order.

    place: what a rank does in words, from the rank and the three numbers that it publishes. timeout: seconds that it may
    stay in one operation. stop: once it is set, the run ends in RunStopped. limit: how long the transport waits.
    Raises RunError for the first rank that fails, dies or hangs. No rank is left when this returns or raises.
    """
    with tempfile.TemporaryDirectory(prefix="ppedu-", ignore_cleanup_errors=True) as folder, interrupts_held() as held:
        path, settings = str(Path(folder) / "rendezvous"), Settings()
        starts = [
            Start(main, dumps(work), rank, len(works), path, device, threads, settings, limit)
            for rank, work in enumerate(works)
        ]

        def check_stop() -> None:
            held.let_through()
            if stop is not None and stop.is_set():
                raise RunStopped("the run was stopped")

        def where(rank: int) -> Place:
            return place(rank, *Heartbeat.read(ranks.cells, rank))

        ranks = Ranks(Heartbeat.blank(len(works)))
        try:
            ranks.start(starts, held, check_stop)
            return Watch(ranks.watched(), where, on_message, timeout, check_stop).results()
        finally:
            with held.uninterruptible():
                ranks.end()


class Ranks:
    """The processes of one run, and the ends of the pipes over which they are heard."""

    def __init__(self, cells: Sequence[float]) -> None:
        self.context = context()
        self.cells = self.context.RawArray("d", list(cells))
        self.processes: list[Any] = []
        self.connections: list[connection.Connection] = []

    def start(self, starts: Sequence[Start], held: Held, check_stop: Callable[[], None]) -> None:
        """`check_stop` is called where nothing is left half done."""
        wait_for_server(held, check_stop)
        for rank, start in enumerate(starts):
            payload = dumps((fresh_rank, start, dict(os.environ)))
            receiving, sending = self.context.Pipe(duplex=False)
            self.connections.append(receiving)
            process = self.context.Process(
                target=rank_process, args=(sending, self.cells, payload), name=f"ppedu rank {rank}", daemon=True
            )
            try:
                with sending, held.uninterruptible():
                    start_process(process)
            except (OSError, EOFError) as error:  # no memory, no more files; or it was killed while it was started
                what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                raise RunError(f"rank {rank} could not be started ({what})", rank=rank) from error
            self.processes.append(process)
            check_stop()

    def watched(self) -> Watched:
        sentinels = {process.sentinel: rank for rank, process in enumerate(self.processes)}
        return Watched(self.connections, self._ended, sentinels)

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
        for receiving in self.connections:
            receiving.close()
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
