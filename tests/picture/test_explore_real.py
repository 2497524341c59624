""" "Run for real" of the live views with real processes: a measurement comes back, and nothing stays behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from leftovers import children, gone_within

import ppedu
from ppedu.course import train_course

pytestmark = pytest.mark.slow


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@pytest.fixture
def view():
    made = ppedu.explore(p=2, m=4, train=train_course)
    yield made
    made.close()
    until(lambda: not children(), 10)


def test_a_real_run_comes_back_with_its_measurement(view):
    view.run_for_real()
    until(lambda: not view.run["busy"])
    assert view.run["state"] == "done", view.run["text"]
    predicted, measured = view.timelines
    assert (predicted.measured, measured.measured, measured.complete) == (False, True, True)
    assert measured.provenance.startswith("measured: 2 ")
    assert predicted.makespan == pytest.approx(0.2)  # (m + p - 1)(F + B) x 20 ms
    assert measured.makespan > 0.99 * predicted.makespan  # a pace is a lower bound; other tests may be on
    assert measured.peak_in_flight == predicted.peak_in_flight == (2, 1)
    assert [t["word"] for t in view.scene["tracks"]] == ["predicted", "measured"]


def test_stop_ends_it_soon_and_leaves_no_process(view):
    view.m, view.ratio = 64, 4
    view.run_for_real()
    until(children)
    start = time.monotonic()
    view.stop(wait=10)
    assert time.monotonic() - start < 5
    assert view.run["state"] == "stopped"
    assert children() == []


def test_close_leaves_no_process():
    view = ppedu.explore(p=2, m=64, ratio=4, train=train_course)
    view.run_for_real()
    until(children)
    view.close()
    assert children() == []


LEAVE = """
import time, leftovers, ppedu
from ppedu.course import train_course
view = ppedu.explore(p=2, m=64, ratio=4, train=train_course)
view.run_for_real()
while len(leftovers.children()) < 2:
    time.sleep(0.01)
print("running", flush=True)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes by /proc")
@pytest.mark.parametrize("end", ["", "\nimport os, signal; os.kill(os.getpid(), signal.SIGKILL)"], ids=["exit", "kill"])
def test_the_end_of_the_kernel_leaves_no_process(root, end):
    mark = f"PPEDU_EXPLORE_TEST={os.getpid()}-{time.monotonic_ns()}"
    name, _, value = mark.partition("=")
    environment = {**os.environ, name: value, "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests/helpers'}"}
    done = subprocess.run(
        [sys.executable, "-c", LEAVE + end], env=environment, capture_output=True, text=True, timeout=90, check=False
    )
    assert "running" in done.stdout, done.stderr
    gone_within(10, mark)
