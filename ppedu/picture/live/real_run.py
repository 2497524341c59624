"""Run a view's settings for real, in a thread of its own, so that the kernel stays usable: progress, stop, result.

What is trained is handed in (`Trainer`). Only here does a live view reach for torch, and only once the button is pressed.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ppedu.core.costs import Costs
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate

if TYPE_CHECKING:
    from ppedu.runtime.run import Run

PACE = 0.02
"""Seconds that a unit of cost is made to last in a real run: long against the mathematics, short for a reader."""
STEPS = 3
MOST_RANKS = 8
Progress: TypeAlias = Callable[[int, int, float], None]


class Trainer(Protocol):
    """What "Run for real" calls, in a thread of its own: `ppedu.course.train_course`, or a function of yours that trains
    a model under `schedule` by `ppedu.train`, and hands its other arguments on.

    pace: the seconds that operations are made to last. samples: how many a batch has, a multiple of m. steps: of training.
    progress: to be called with (steps done, steps, loss) after each. stop: once it is set, RunStopped is raised soon.
    Whatever else is raised shows in the view, with its sentence.
    """

    def __call__(
        self, schedule: Schedule, pace: Costs, /, *, samples: int, steps: int, progress: Progress, stop: threading.Event
    ) -> Run: ...


def why_not_real(train: Trainer | None, schedules: Sequence[Schedule]) -> str:
    """Why a live view does not run these schedules for real, or "" where it does."""
    if train is None:
        return (
            "To run this for real, say what it trains: add train=train_course (from ppedu.course import train_course)."
        )
    if any(schedule.num_ranks > MOST_RANKS for schedule in schedules):
        return (
            f"A real run takes up to {MOST_RANKS} ranks from here: each is a process of its own, and more of them would "
            "measure how they wait for one another's cores. `ppedu run` on the command line takes any number."
        )
    return ""


Job: TypeAlias = tuple[Schedule, Costs]
"""One training run: a schedule, and the seconds that its operations are made to last."""
State: TypeAlias = dict[str, Any]
IDLE: State = {"state": "idle", "busy": False, "step": 0, "steps": STEPS, "loss": None, "text": ""}
"""Where a run stands, as the page is told: idle, starting, running, stopping, done, stopped or failed; busy in the second to
the fourth of these; step of steps, over all jobs; the latest loss; and a sentence."""
_turn = threading.Lock()  # two runs at a time would take each other's cores, and measure that
_runs: set[RealRun] = set()


class RealRun:
    """Jobs that are run one after the other in the background. Made, started, perhaps stopped; then thrown away."""

    def __init__(
        self, train: Trainer, jobs: Sequence[Job], tell: Callable[[State], None], done: Callable[[list[Run]], None]
    ) -> None:
        self.jobs, self._train, self._tell, self._done = jobs, train, tell, done
        self._stop = threading.Event()
        self._state = {**IDLE, "steps": STEPS * len(jobs)}
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
        if state == "running" and self._stop.is_set():
            return  # it stays at "stopping"
        self._state = {**self._state, "state": state, "busy": state in ("starting", "running", "stopping"), **news}
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
        from ppedu.runtime.errors import RunStopped

        runs = []
        for number, (schedule, pace) in enumerate(self.jobs):
            step = simulate(schedule, pace).makespan
            self._say("running", text=f"{schedule.label}: starting; then {STEPS} steps of about {step:.2g} s each")
            progress = partial(self._progress, schedule.label, STEPS * number)
            samples = 4 * schedule.num_microbatches
            try:
                run = self._train(schedule, pace, samples=samples, steps=STEPS, progress=progress, stop=self._stop)
            except RunStopped:
                return "stopped", "Stopped. No process is left."
            runs.append(run)
        self._done(runs)
        return "done", summary(runs)

    def _progress(self, label: str, before: int, done: int, steps: int, loss: float) -> None:
        text = f"{label}: step {done} of {steps}, loss {loss:.3f}"
        self._say("running", step=before + done, loss=loss, text=text)


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
