"""One run over several hosts, each with its own network, name, clock and processes: what works, and what is said when not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hosts
import pytest
import torch
from hosts import Job, Lan
from runtime_helpers import Plain, assert_equal_training, batch, layers, momentum, mse

import ppedu

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(hosts.missing()), reason=hosts.missing()),
]

M, STEPS = 5, 3
PORT = "29500"
CAUSAL = 5e-3  # seconds: clocks of hosts are compared by messages, whose way takes part of a millisecond

# What each rank runs: the phases that its arguments name, in one process. `note` writes what a rank saw into a file.
SCRIPT = """
import json, os, socket, sys, threading, time
import torch
import faulty, ppedu
from runtime_helpers import batch, layers, momentum, mse

out, *phases = sys.argv[1:]
rank, p = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
data = [batch(13, 4, 2, seed) for seed in range(2)]

def note(name, **what):
    path = os.path.join(out, f"{name}.{rank}")
    with open(path + ".new", "w") as file:
        json.dump({"when": time.time(), "host": socket.gethostname(), **what}, file)
    os.replace(path + ".new", path)

def equal(phase):
    model = layers(4, 5, 3, 6, 4, 2)
    began = time.perf_counter()
    run = ppedu.train(model, ppedu.one_f_one_b(p, 5), data, mse, momentum, steps=3, gradients=True, device="cpu",
                      progress=False)
    torch.save({
        "losses": run.losses, "gradients": run.gradients, "state": model.state_dict(), "where": run.where,
        "timelines": [t.to_json() for t in run.timelines], "clock": time.perf_counter(),
        "seconds": time.perf_counter() - began,
    }, f"{out}/{phase}.{rank}.pt")

class Acts(torch.nn.Module):
    # Acts in the forward with this number, from 0, and notes when.
    def __init__(self, act, call):
        super().__init__()
        self.act, self.call, self.calls = act, call, 0
    def forward(self, x):
        if self.calls == self.call:
            note("fault")
            self.act()
        self.calls += 1
        return x

def fails(phase, act, guilty, **rest):
    # Five microbatches a step: the forward with number 7 is F2 of step 1.
    stages = [torch.nn.Linear(8, 8) for _ in range(p)]
    if act:
        stages[guilty] = torch.nn.Sequential(stages[guilty], Acts(act, 7))
    def steps(step):
        note("step", step=step)
        return torch.ones(10, 8), torch.zeros(10, 8)
    rest = {"steps": 2000, "timeout": 6, "pace": ppedu.Costs(0.01, 0.01), "device": "cpu", "progress": False} | rest
    try:
        ppedu.train(stages, ppedu.one_f_one_b(p, 5), steps, torch.nn.functional.mse_loss, faulty.sgd, **rest)
    except BaseException as error:
        told = {name: getattr(error, name, None) for name in ("rank", "action", "step", "traceback")}
        note(phase, kind=type(error).__name__, text=str(error), blamed=getattr(error, "host", None), **told)
        if phase == phases[-1]:
            raise

for phase in phases:
    what, _, number = phase.partition("@")
    if what == "equal":
        equal(phase)
    elif what == "stop":
        event = threading.Event()
        if rank == int(number):
            def set_it():
                note("fault")
                event.set()
            threading.Timer(1.5, set_it).start()
        fails(phase, None, 0, stop=event)
    else:
        act = {"boom": faulty.boom, "kill": faulty.kill, "exit": faulty.exit_at_once, "hang": faulty.sleep}.get(what)
        fails(phase, act, int(number or 0))
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


class World:
    """One job over all hosts: their jobs, one per command (torchrun's, or a rank's where there is no torchrun)."""

    def __init__(self, lan: Lan, folder: Path, per_host: int) -> None:
        self.lan, self.folder, self.per_host = lan, folder, per_host
        self.jobs: list[Job] = []
        (folder / "script.py").write_text(SCRIPT, "utf-8")

    @property
    def ranks(self) -> range:
        return range(self.per_host * len(self.lan.hosts))

    def torchrun(self, *phases: str, static: bool = False, endpoint: str = "hostA", **environment: str) -> World:
        size = ["--nnodes", str(len(self.lan.hosts)), "--nproc-per-node", str(self.per_host)]
        for number, host in enumerate(self.lan.hosts):
            if static:
                meet = ["--node-rank", str(number), "--master-addr", endpoint, "--master-port", PORT]
            else:
                meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{endpoint}:{PORT}", "--rdzv-id", "job"]
            command = [*TORCHRUN, *size, *meet, str(self.folder / "script.py"), str(self.folder), *phases]
            self.jobs.append(host.start(*command, log=self.folder / f"{host.name}.log", **environment))
        return self

    def slurm(self, *phases: str, local_size: bool = False, **environment: str) -> World:
        """As srun starts tasks, and as its users map its variables: no torchrun."""
        for rank in self.ranks:
            host, local = self.lan.hosts[rank // self.per_host], str(rank % self.per_host)
            variables = {
                "RANK": str(rank), "WORLD_SIZE": str(len(self.ranks)), "LOCAL_RANK": local,
                "MASTER_ADDR": "hostA", "MASTER_PORT": PORT,
            }  # fmt: skip
            variables |= {"LOCAL_WORLD_SIZE": str(self.per_host)} if local_size else {}
            command = [sys.executable, str(self.folder / "script.py"), str(self.folder), *phases]
            log = self.folder / f"rank{rank}.log"
            self.jobs.append(host.start(*command, log=log, **variables, **environment))
        return self

    def wait(self, seconds: float = 60) -> list[int]:
        """Exit codes. Raises AssertionError where a process is left on a host."""
        deadline = time.monotonic() + seconds
        codes = [job.wait(max(0.1, deadline - time.monotonic())) for job in self.jobs]
        while (left := [host.processes() for host in self.lan.hosts]) != [[] for _ in self.lan.hosts]:
            assert time.monotonic() < deadline, f"left: {left}\n{self.logs()}"
            time.sleep(0.05)
        return codes

    def logs(self) -> str:
        return "\n".join(f"--- {job.log.name}\n{job.text}" for job in self.jobs)

    def saved(self, phase: str) -> list[dict[str, Any]]:
        return [torch.load(self.folder / f"{phase}.{rank}.pt", weights_only=False) for rank in self.ranks]

    def noted(self, name: str, rank: int) -> dict[str, Any] | None:
        path = self.folder / f"{name}.{rank}"
        return json.loads(path.read_text()) if path.exists() else None


# the harness itself


def test_hosts_differ_in_name_clock_and_boot_and_reach_each_other_by_name():
    probe = "import socket, time; print(socket.gethostname(), time.monotonic(), open('/proc/sys/kernel/random/boot_id').read())"
    with Lan(("good", "debian", "none"), (0, 5000, 90000)) as lan:
        said = [host.run(sys.executable, "-c", probe).split() for host in lan.hosts]
        assert [name for name, _, _ in said] == ["hostA", "hostB", "hostC"]
        clocks = [float(clock) for _, clock, _ in said]
        assert 5000 <= clocks[1] - clocks[0] < 5010
        assert 90000 <= clocks[2] - clocks[0] < 90010
        assert len({boot for _, _, boot in said}) == 3
        asked = [lan[n].run("sh", "-c", f"getent ahostsv4 {n} || true") for n in ("hostA", "hostB", "hostC")]
        assert [text.partition(" ")[0] for text in asked] == ["10.77.0.1", "127.0.1.1", ""]


# Answers each line that comes; where a second argument is given, asks and prints the answers instead.
TALK = """
import socket, sys, time
if len(sys.argv) == 1:
    door = socket.create_server(("", 29500))
    print("up", flush=True)
    talk, _ = door.accept()
    while line := talk.recv(100):
        talk.sendall(line)
else:
    talk = socket.create_connection((sys.argv[1], 29500), 5)
    for number in range(10 ** 6):
        talk.sendall(b"%d\\n" % number)
        print(talk.recv(100).decode(), end="", flush=True)
        time.sleep(0.02)
"""


def until(found: Callable[[], Any], seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while not (result := found()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return result


def test_a_cut_link_loses_packets_without_a_word_and_a_mended_one_carries_them(tmp_path):
    with Lan() as lan:
        a, b = lan.hosts
        answers = a.start(sys.executable, "-c", TALK, log=tmp_path / "a")
        until(lambda: answers.text)
        asks = b.start(sys.executable, "-c", TALK, "hostA", log=tmp_path / "b")
        until(lambda: asks.text.count("\n") > 5)
        lan.cut(b)
        time.sleep(0.2)
        before = asks.text
        time.sleep(1)
        assert asks.text == before  # nothing comes, and neither end has an error
        assert asks.process.poll() is answers.process.poll() is None
        lan.mend(b)
        until(lambda: asks.text != before)


OWNER = """
import sys, time
from pathlib import Path
from hosts import Lan
with Lan() as lan:
    for host in lan.hosts:
        host.start("sh", "-c", "setsid sleep 1000 & sleep 1000", log=Path(sys.argv[1]) / host.name)
    while min(len(host.processes()) for host in lan.hosts) < 3:
        time.sleep(0.01)
    print(*[host.namespace for host in [lan._switch, *lan.hosts]], lan._folder.name, flush=True)
    time.sleep(0 if len(sys.argv) > 2 else 1000)
"""


@pytest.mark.parametrize("how", ["killed", "over"])
def test_nothing_is_left_of_hosts_even_when_their_owner_is_killed(tmp_path, how):
    def links() -> list[str]:
        return [*os.listdir("/sys/class/net"), *(os.listdir("/run/netns") if os.path.exists("/run/netns") else [])]

    def mounts() -> str:
        return Path("/proc/self/mounts").read_text()

    before = links(), mounts()
    command = [sys.executable, "-c", OWNER, str(tmp_path), *(["over"] if how == "over" else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent) as owner:
        assert owner.stdout
        *namespaces, folder = owner.stdout.readline().split()
        assert len(namespaces) == 3
        if how == "killed":
            assert len(hosts.processes_of(namespaces)) >= 9
            owner.kill()
    until(lambda: not hosts.processes_of(namespaces), 5)
    assert (links(), mounts()) == before
    assert Path(folder).exists() == (how == "killed")  # a folder of small files is all that a kill leaves
    if how == "killed":
        subprocess.run(["rm", "-r", folder], check=True)


# what works


def plain() -> Plain:
    return Plain(layers(4, 5, 3, 6, 4, 2), [batch(13, 4, 2, seed) for seed in range(2)], mse, momentum, STEPS)


def assert_equal(world: World, phase: str = "equal") -> None:
    """Losses, gradients and weights on every rank are those of plain training; each has the whole timeline, and no
    operation began before what it needs was over, whatever the clocks say."""
    wanted, found = plain(), world.saved(phase)
    p = len(found)
    for rank in found:
        assert_equal_training(rank["losses"], rank["gradients"], rank["state"], wanted)
        assert rank["timelines"] == found[0]["timelines"]
        assert f"{len(world.lan.hosts)} hosts" in rank["where"]
    assert max(rank["clock"] for rank in found) - min(rank["clock"] for rank in found) > 1000
    for text in found[0]["timelines"]:
        timeline = ppedu.Timeline.from_json(text)
        assert timeline.complete
        assert timeline.start == 0
        assert timeline.makespan < 5
        assert timeline.peak_in_flight == tuple(min(M, p - rank) for rank in range(p))
        ends = {a: span.end for span in timeline.spans for a in span.action.actions}
        for span in timeline.spans:
            for needed in ppedu.dependencies(span.action, timeline.schedule):
                assert span.start >= ends[needed] - CAUSAL


def test_two_hosts_by_torchrun_c10d(tmp_path):
    with Lan() as lan:
        world = World(lan, tmp_path, 2).torchrun("equal")
        assert world.wait() == [0, 0], world.logs()
        assert_equal(world)


def test_three_hosts_by_torchrun_static(tmp_path):
    with Lan(("good",) * 3, (0, 5000, 90000)) as lan:
        world = World(lan, tmp_path, 1).torchrun("equal", static=True)
        assert world.wait() == [0, 0, 0], world.logs()
        assert_equal(world)


@pytest.mark.parametrize("local_size", [False, True])
def test_two_hosts_as_slurm_starts_them(tmp_path, local_size):
    with Lan() as lan:
        world = World(lan, tmp_path, 2).slurm("equal", local_size=local_size)
        assert world.wait() == [0, 0, 0, 0], world.logs()
        assert_equal(world)
