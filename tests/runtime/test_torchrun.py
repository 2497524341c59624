"""Under torchrun each rank joins the world that is there, and every one gets the whole of the Run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runtime_helpers import Plain, assert_equal_training, batch, layers, momentum, mse
from torchrun import torchrun

import ppedu

pytestmark = pytest.mark.slow

P, M, STEPS = 4, 5, 3
SIZES = (4, 5, 3, 6, 4, 2)

# No main guard, and a model and a loss of the script's own. Each phase is one thing that people do.
SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
import ppedu
from ppedu.runtime.joined import clocks, join, links
from runtime_helpers import batch, layers

out, rank = sys.argv[1], int(os.environ["RANK"])
data = [batch(13, 4, 2, seed) for seed in range(2)]
kept = {}

class Mine(torch.nn.Tanh):
    pass

def my_loss(outputs, targets):
    return ((outputs - targets) ** 2).mean()

def momentum(weights):
    return torch.optim.SGD(weights, lr=0.05, momentum=0.9)

def train(phase, schedule, **rest):
    model = layers(4, 5, 3, 6, 4, 2)
    model[1] = Mine()
    random, threads = torch.get_rng_state(), torch.get_num_threads()
    rest = {"steps": 3, "gradients": True, "device": "cpu", "progress": False} | rest
    run = ppedu.train(model, schedule, data, my_loss, momentum, **rest)
    kept[phase] = {
        "losses": run.losses, "gradients": run.gradients, "state": model.state_dict(),
        "timelines": [t.to_json() for t in run.timelines], "where": run.where, "bytes": run.peak_activation_bytes,
        "same random numbers": torch.equal(random, torch.get_rng_state()), "same threads": threads == torch.get_num_threads(),
        "left in a world": dist.is_initialized(), "grads": sum(w.grad is not None for w in model.parameters()),
    }

# a world of another size
try:
    train("wrong", ppedu.gpipe(3, 5))
except ValueError as error:
    kept["wrong"] = str(error)

# torchrun's world: once, and again
train("first", ppedu.one_f_one_b(4, 5))
train("second", ppedu.gpipe(4, 5))
train("paced", ppedu.naive(4, 2), steps=2, pace=ppedu.Costs(forward=0.01, backward=0.01))

# a world that the script set up itself, and goes on to use
dist.init_process_group("gloo")
train("mine", ppedu.one_f_one_b(4, 5))
before = len(dist.distributed_c10d._world.pg_map)
train("mine again", ppedu.one_f_one_b(4, 5))
kept["groups left"] = len(dist.distributed_c10d._world.pg_map) - before
total = torch.tensor([rank])
dist.all_reduce(total)
kept["still works"] = total.item()
dist.destroy_process_group()

# machines whose clocks differ by hours
class Clock:
    def __getattr__(self, name):
        return getattr(time, name)
    def perf_counter(self):
        return time.perf_counter() + 5000.0 * (3 - rank)
clocks.time = join.time = Clock()
links.machine_id = lambda: ("machine", str(rank))
train("clocks", ppedu.one_f_one_b(4, 5), pace=ppedu.Costs(forward=0.01, backward=0.01))

torch.save(kept, f"{out}/{rank}.pt")
print(f"rank {rank} is through")
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict[str, Any]]:
    """What each rank saw."""
    folder = tmp_path_factory.mktemp("torchrun")
    done = torchrun(folder, SCRIPT, P)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(done.stdout.count(f"rank {rank} is through") == 1 for rank in range(P))  # nobody ran it again
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(P)]


def plain() -> Plain:
    return Plain(layers(*SIZES), [batch(13, 4, 2, seed) for seed in range(2)], mse, momentum, STEPS)


def test_a_world_of_another_size_is_refused(ranks):
    for rank in ranks:
        assert rank["wrong"].startswith(
            "the schedule has p=3 ranks, but this world has 4 processes: start 3 "
            "(torchrun --nproc-per-node 3 on one machine), or take a schedule with p=4"
        )


PHASES = pytest.mark.parametrize("phase", ["first", "second", "mine", "mine again", "clocks"])


@PHASES
def test_every_rank_has_the_weights_of_plain_training(ranks, phase):
    wanted = plain()
    for rank in ranks:
        found = rank[phase]
        assert_equal_training(found["losses"], found["gradients"], found["state"], wanted)


@PHASES
def test_every_rank_has_the_whole_timeline(ranks, phase):
    texts = {tuple(rank[phase]["timelines"]) for rank in ranks}
    assert len(texts) == 1  # the same on all
    (steps,) = texts
    assert len(steps) == STEPS
    for text in steps:
        timeline = ppedu.Timeline.from_json(text)
        assert timeline.complete
        assert timeline.start == 0
        assert timeline.peak_in_flight == ((5,) * 4 if phase == "second" else (4, 3, 2, 1))
        ends = {a: span.end for span in timeline.spans for a in span.action.actions}
        for span in timeline.spans:
            for needed in ppedu.dependencies(span.action, timeline.schedule):
                slack = 5e-3 if phase == "clocks" else 0.0  # clocks are read through messages
                assert span.start >= ends[needed] - slack


def test_clocks_that_differ_are_aligned(ranks):
    """Hours apart, and yet each makespan is that of eight paced operations and more, not of hours."""
    for text in ranks[0]["clocks"]["timelines"]:
        assert 0.16 <= ppedu.Timeline.from_json(text).makespan < 2


@PHASES
def test_the_caller_gets_back_what_was_his(ranks, phase):
    for rank in ranks:
        found = rank[phase]
        assert found["left in a world"] == phase.startswith("mine")
        assert found["same random numbers"]
        assert found["same threads"]
        assert not found["grads"]  # as where ranks are processes of their own


def test_groups_do_not_pile_up(ranks):
    for rank in ranks:
        assert rank["groups left"] == 0
        assert rank["still works"] == sum(range(P))


def test_pace_and_place(ranks):
    found = ranks[3]["paced"]
    assert found["where"].startswith("measured: 4 CPU processes on ")
    assert "paced F=0.01 s B=0.01 s" in found["where"]
    assert ppedu.Timeline.from_json(found["timelines"][-1]).makespan >= 4 * 2 * 2 * 0.01
    assert all(rank["first"]["bytes"] == ranks[0]["first"]["bytes"] for rank in ranks)
    assert len(ranks[0]["first"]["bytes"]) == P
