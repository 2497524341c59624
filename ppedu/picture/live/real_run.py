"""Run a view's settings for real, in a thread of its own, so that the kernel stays usable: progress, stop, result.

Only here does a live view reach for torch, and only once the button is pressed.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ppedu.core.costs import Costs
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate

if TYPE_CHECKING:
    from ppedu.runtime.run import Run

PACE = 0.02
"""Seconds that a unit of cost is made to last in a real run: long against the mathematics, short for a reader."""
STEPS = 3
MOST_RANKS = 8
BLOCKS = 24
"""Transformer blocks of the course's model."""


def why_not_real(schedule: Schedule) -> str:
    """Why a live view does not run a schedule for real, or "" where it does."""
    if schedule.num_ranks > MOST_RANKS:
        return (
            f"A real run takes up to {MOST_RANKS} ranks from here: each is a process of its own, and more of them would "
            "measure how they wait for one another's cores. `ppedu run` on the command line takes any number."
        )
    if schedule.chain_length > BLOCKS:
        return (
            f"{schedule.label} has {schedule.chain_length} stages, but the course's model has {BLOCKS} blocks, and a "
            "stage without any would be none: take a smaller p or v."
        )
    return ""


@dataclass(frozen=True, slots=True)
class Job:
    """One training run: a schedule, and the seconds that its operations are made to last."""

    schedule: Schedule
    pace: Costs


@dataclass(frozen=True, slots=True)
class State:
    """Where a run stands, as the page is told.

    state: idle, starting, running, stopping, done, stopped or failed. step of steps: over all jobs. text: a sentence.
    """

    state: str = "idle"
    step: int = 0
    steps: int = STEPS
    loss: float | None = None
    text: str = ""

    @property
    def busy(self) -> bool:
        return self.state in ("starting", "running", "stopping")

    def plain(self) -> dict[str, Any]:
        return asdict(self)


Progress = Callable[[int, int, float], None]
_turn = threading.Lock()  # two runs at a time would take each other's cores, and measure that
_runs: set[RealRun] = set()


def train_one(job: Job, progress: Progress, stop: threading.Event) -> Run | None:
    """Train the course's model under one job; None where `stop` ended it. Raises RunError if a rank fails."""
    from ppedu.course.job import train_course
    from ppedu.runtime.errors import RunStopped

    samples = 4 * job.schedule.num_microbatches
    try:
        return train_course(
            job.schedule, job.pace, samples=samples, steps=STEPS, blocks=BLOCKS, progress=progress, stop=stop
        )
    except RunStopped:
        return None


class RealRun:
    """Jobs that are run one after the other in the background. Made, started, perhaps stopped; then thrown away."""

    def __init__(self, jobs: Sequence[Job], tell: Callable[[State], None], done: Callable[[list[Run]], None]) -> None:
        self.jobs, self._tell, self._done = jobs, tell, done
        self._stop = threading.Event()
        self._state = State(steps=STEPS * len(jobs))
        self._thread = threading.Thread(target=self._work, name="ppedu real run", daemon=True)

    def start(self) -> None:
        """Begin, or raise RuntimeError where another view is running for real."""
        if not _turn.acquire(blocking=False):
            raise RuntimeError(
                "another live view is running for real: two at once would take each other's cores. Stop it"
            )
        _runs.add(self)
        self._say("starting", text="starting the processes")
        self._thread.start()

    def stop(self) -> None:
        """Ask the run to end; it does so within a second or two, and leaves no process."""
        if self._thread.is_alive() and not self._stop.is_set():
            self._stop.set()
            self._say("stopping", text="stopping")

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread is done."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _say(self, state: str, **news: Any) -> None:
        self._state = replace(self._state, state=state, **news)
        self._tell(self._state)

    def _work(self) -> None:
        try:
            end = self._results()
        except BaseException as error:  # whatever it is, the page is where it can be read
            end = "failed", f"The run failed. {type(error).__name__}: {error}"
        finally:
            _runs.discard(self)
            _turn.release()
        self._say(end[0], text=end[1])

    def _results(self) -> tuple[str, str]:
        runs = []
        for number, job in enumerate(self.jobs):
            step = simulate(job.schedule, job.pace).makespan
            self._say_unless_stopping(
                text=f"{job.schedule.label}: starting; then {STEPS} steps of about {step:.2g} s each"
            )
            run = train_one(job, self._progress(job, STEPS * number), self._stop)
            if run is None:
                return "stopped", "Stopped. No process is left."
            runs.append(run)
        self._done(runs)
        return "done", summary(runs)

    def _progress(self, job: Job, before: int) -> Progress:
        def progress(done: int, steps: int, loss: float) -> None:
            text = f"{job.schedule.label}: step {done} of {steps}, loss {loss:.3f}"
            self._say_unless_stopping(step=before + done, loss=loss, text=text)

        return progress

    def _say_unless_stopping(self, **news: Any) -> None:
        if not self._stop.is_set():
            self._say("running", **news)


def summary(runs: Sequence[Run]) -> str:
    """What was measured, in a sentence for each run."""
    said = []
    for run in runs:
        losses = f"loss {run.losses[0]:.3f} to {run.losses[-1]:.3f} in {len(run.losses)} steps" if run.losses else ""
        ended = f" It ended early: {run.stopped}." if run.stopped else ""
        said.append(f"{run.schedule.name}: {losses}.{ended}")
    return " ".join(said)


@atexit.register
def _stop_all() -> None:
    """At the end of the kernel: ranks watch for their parent's death as well, but an orderly end is quicker."""
    for run in list(_runs):
        run._stop.set()
    for run in list(_runs):
        run.join(3)
