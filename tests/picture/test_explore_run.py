""" "Run for real" of the live views: in the background, with progress and a stop that holds. Without processes here."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import pytest

import ppedu
from ppedu import Timeline
from ppedu.course import train_course
from ppedu.picture.live import real_run as real
from ppedu.picture.live.settings import Settings


@dataclass
class FakeRun:
    schedule: ppedu.Schedule
    timeline: Timeline
    losses: tuple[float, ...] = (5.5, 5.25, 5.0)
    stopped: str | None = None


@dataclass
class Job:
    """What a trainer was asked for."""

    schedule: ppedu.Schedule
    pace: ppedu.Costs
    samples: int


def measured(job: Job) -> FakeRun:
    """As if everything had taken a quarter longer than its pace."""
    t = ppedu.simulate(job.schedule, job.pace)
    spans = tuple(ppedu.Span(s.action, s.rank, 9 + 1.25 * s.start, 9 + 1.25 * s.end) for s in t.spans)
    return FakeRun(job.schedule, Timeline(job.schedule, spans, "measured: 4 fake processes", "s", measured=True))


class Trainer:
    """In place of real training: it goes from step to step when it is told to."""

    def __init__(self):
        self.jobs, self.go, self.threads = [], threading.Semaphore(0), []

    def __call__(self, schedule, pace, *, samples, steps, progress, stop):
        self.jobs.append(Job(schedule, pace, samples))
        self.threads.append(threading.current_thread())
        for step in range(steps):
            while not self.go.acquire(timeout=0.01):
                if stop.is_set():
                    raise ppedu.RunStopped("stopped")
            progress(step + 1, steps, 5.0 - step)
        return measured(self.jobs[-1])

    def finish(self, view, steps=100):
        self.go.release(steps)
        until(lambda: not view.run["busy"])


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


@pytest.fixture
def trainer():
    made = Trainer()
    yield made
    made.go.release(1000)
    until(lambda: not real._runs)


@pytest.fixture
def view(trainer):
    made = ppedu.explore(train=trainer)
    yield made
    made.close()


def press(view, what):
    view._handle_custom_msg({"do": what, "asked": 1}, [])


def test_it_is_run_with_exactly_these_settings(view, trainer):
    view.m, view.ratio, view.transfer, view.slow_stage, view.slow_factor = 4, 2.0, 0.5, 1, 3.0
    press(view, "run")
    trainer.finish(view)
    (job,) = trainer.jobs
    assert job.schedule == ppedu.one_f_one_b(p=4, m=4)
    assert (job.pace.unit, job.samples) == ("s", 16)
    assert job.pace.forward == pytest.approx((0.02, 0.06, 0.02, 0.02))
    assert job.pace.backward == pytest.approx((0.04, 0.12, 0.04, 0.04))
    assert job.pace.transfer == pytest.approx(0.01)


def test_the_measured_timeline_lies_over_the_predicted_one(view, trainer):
    press(view, "run")
    trainer.finish(view)
    assert view.run["state"] == "done"
    assert view.run["text"] == "1F1B: loss 5.500 to 5.000 in 3 steps."
    predicted, run = view.scene["tracks"]
    assert (predicted["word"], run["word"]) == ("predicted", "measured")
    assert predicted["group"] == run["group"]
    assert (predicted["makespan"], run["makespan"]) == (440, 550)  # ms: 22 units of 20 ms, and a quarter more
    assert predicted["title"][1] == "makespan 440 ms predicted → 550 ms measured (+25.0 %)"
    assert view.scene["caption"].endswith("Predicted, F=1 B=1. Measured: 4 fake processes.")
    assert view.measured
    assert "measured: 4 fake" in view.timelines[1].provenance


def test_other_settings_have_no_measurement_and_coming_back_has_it_again(view, trainer):
    press(view, "run")
    trainer.finish(view)
    view.m = 9
    assert len(view.scene["tracks"]) == 1
    assert not view.measured
    view.m = 8
    assert len(view.scene["tracks"]) == 2
    view.overlay = False
    assert len(view.scene["tracks"]) == 1
    assert view.measured


def test_moves_made_during_a_run_are_kept_and_its_result_too(view, trainer):
    """The kernel stays usable: the run goes on in its thread, and is filed under the settings it was started with."""
    press(view, "run")
    until(lambda: trainer.jobs)
    assert trainer.threads[0] is not threading.current_thread()
    view.m = 9
    assert view.scene["tracks"][0]["makespan"] == 24
    trainer.finish(view)
    assert (view.m, len(view.scene["tracks"])) == (9, 1)
    view.m = 8
    assert len(view.scene["tracks"]) == 2


def test_progress_comes_step_by_step(view, trainer):
    press(view, "run")
    until(lambda: view.run["text"].startswith("1F1B p=4 m=8: starting; then 3 steps of about 0.44 s each"))
    trainer.go.release()
    until(lambda: view.run["step"] == 1)
    assert view.run == {
        "state": "running", "step": 1, "steps": 3, "loss": 5.0, "text": "1F1B p=4 m=8: step 1 of 3, loss 5.000",
        "busy": True,
    }  # fmt: skip


def test_stop_ends_the_run_and_shows_it(view, trainer):
    press(view, "run")
    until(lambda: trainer.jobs)
    press(view, "stop")
    until(lambda: view.run["state"] == "stopped")
    assert view.run["text"] == "Stopped. No process is left."
    assert len(view.scene["tracks"]) == 1
    press(view, "run")  # and it can be started again
    trainer.finish(view)
    assert view.run["state"] == "done"


def test_stop_without_a_run_does_nothing(view):
    press(view, "stop")
    assert (view.run["state"], view.error) == ("idle", "")


def test_close_stops_the_run(trainer):
    made = ppedu.explore(train=trainer)
    made.run_for_real()
    until(lambda: trainer.jobs)
    made.close()
    assert not real._runs
    assert not trainer.threads[0].is_alive()


def test_two_runs_at_a_time_are_refused_with_the_reason(view, trainer):
    other = ppedu.explore_compare(train=trainer)
    press(view, "run")
    press(view, "run")
    assert view.error == "a run is on its way: stop it first"
    press(other, "run")
    assert other.error.startswith("another live view is running for real")
    assert other.run["state"] == "idle"
    trainer.finish(view)
    press(other, "run")
    trainer.finish(other)
    assert other.run["state"] == "done"
    other.close()


def test_too_many_ranks_are_refused_with_the_reason(view, trainer):
    view.p = 9
    press(view, "run")
    assert view.error == view.not_real
    assert view.error.startswith("A real run takes up to 8 ranks from here")
    assert not trainer.jobs
    with pytest.raises(ValueError, match="up to 8 ranks"):
        view.run_for_real()


def test_what_a_trainer_refuses_is_said():
    """train_course does so before it imports anything."""
    view = ppedu.explore("interleaved", p=8, v=4, train=train_course)
    press(view, "run")
    until(lambda: view.run["state"] == "failed")
    assert view.run["text"] == (
        "The run failed. ValueError: interleaved 1F1B p=8 m=8 has 32 stages, but the course's model has 24 blocks, and a "
        "stage without any would be none: take a smaller p or v, or more blocks"
    )
    view.close()


@pytest.mark.parametrize("make", [ppedu.explore, ppedu.explore_compare])
def test_without_something_to_train_nothing_runs_and_how_to_is_said(make):
    view = make()
    assert view.not_real == (
        "To run this for real, say what it trains: add train=train_course (from ppedu.course import train_course)."
    )
    press(view, "run")
    assert (view.error, view.run["state"]) == (view.not_real, "idle")
    with pytest.raises(ValueError, match="add train=train_course"):
        view.run_for_real()
    view.close()


@pytest.mark.parametrize(
    ("name", "stages"),
    [("interleaved", 4), ("looped_bfs", 4), ("zb_h1", 2), ("zb_h2", 2), ("zb_v", 4), ("dualpipe", 4), ("dualpipev", 4)],
)
def test_every_schedule_is_run_with_its_own_costs(view, trainer, name, stages):
    """A stage of 2p is half of one of p: half the pace. An overlapped pair is paced at what the control says."""
    view.schedule, view.p, view.m, view.ratio, view.w_share, view.overlap = name, 2, 4, 2.0, 0.25, 0.9
    press(view, "run")
    trainer.finish(view)
    (job,) = trainer.jobs
    size = 2 / job.schedule.chain_length
    assert job.schedule.num_stages == stages
    assert (job.pace.forward, job.pace.backward) == (pytest.approx(0.02 * size), pytest.approx(0.04 * size))
    if job.pace.weight_grad is not None:
        assert (job.pace.input_grad, job.pace.weight_grad) == (pytest.approx(0.03 * size), pytest.approx(0.01 * size))
    if name.startswith("dual"):
        assert job.pace.overlapped == pytest.approx(0.9 * 0.06 * size)
    assert view.run["state"] == "done", view.run["text"]
    assert [track["word"] for track in view.scene["tracks"]] == ["predicted", "measured"]


def test_a_run_that_fails_says_why():
    def fail(*_, **__):
        raise RuntimeError("rank 2 failed in F3 of step 0")

    view = ppedu.explore(train=fail)
    press(view, "run")
    until(lambda: view.run["state"] == "failed")
    assert view.run["text"] == "The run failed. RuntimeError: rank 2 failed in F3 of step 0"
    view.close()


def test_a_result_that_cannot_be_shown_says_why(view, trainer, monkeypatch):
    monkeypatch.setattr(type(view), "_ran", lambda *_: 1 / 0)
    press(view, "run")
    trainer.finish(view)
    assert view.run["state"] == "failed"
    assert "ZeroDivisionError" in view.run["text"]


def test_an_end_before_its_time_is_told(view, trainer, monkeypatch):
    monkeypatch.setattr(FakeRun, "stopped", "the loss of microbatch 0 in step 1 is nan")
    monkeypatch.setattr(
        FakeRun, "__init__", lambda self, schedule, t: self.__dict__.update(schedule=schedule, timeline=t)
    )
    press(view, "run")
    trainer.finish(view)
    assert "It ended early: the loss of microbatch 0 in step 1 is nan." in view.run["text"]


def test_comparison_runs_each_schedule_in_turn(trainer):
    view = ppedu.explore_compare(p=3, m=4, train=trainer)
    press(view, "run")
    trainer.finish(view)
    assert [job.schedule.name for job in trainer.jobs] == ["GPipe", "1F1B"]
    assert view.run["steps"] == 2 * real.STEPS
    assert [(t["group"], t["word"]) for t in view.scene["tracks"]] == [
        (0, "predicted"), (0, "measured"), (1, "predicted"), (1, "measured"),
    ]  # fmt: skip
    assert view.run["text"] == "GPipe: loss 5.500 to 5.000 in 3 steps. 1F1B: loss 5.500 to 5.000 in 3 steps."
    assert view.scene["caption"].count("Measured: 4 fake processes.") == 1
    view.schedules = ["gpipe", "naive"]  # not all of these were run
    assert len(view.scene["tracks"]) == 2
    view.close()


def test_the_page_hears_of_the_run(view, trainer):
    told = []
    view._send = lambda message, buffers=None: told.append(message["state"])
    press(view, "run")
    trainer.finish(view)
    states = [message["run"]["state"] for message in told if "run" in message]
    assert (states[0], states[-1]) == ("starting", "done")
    assert [m["run"]["step"] for m in told if "run" in m and m["run"]["state"] == "running"][-3:] == [1, 2, 3]


def test_the_pace_of_a_unit():
    """An operation lasts long enough to be seen, and a step of p=4, m=8 less than half a second."""
    costs = Settings("1f1b", 4, 8).costs().scaled(real.PACE, "s")
    assert ppedu.simulate(ppedu.one_f_one_b(p=4, m=8), costs).makespan == pytest.approx(0.44)
