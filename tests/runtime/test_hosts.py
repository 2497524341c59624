"""One run over several hosts, each with its own network, name, clock and processes: what works, and what is said when not."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hosts
import pytest
import torch
from hosts import Host, Job, Lan
from runtime_helpers import Plain, assert_equal_training, batch, layers, momentum, mse

import ppedu

pytestmark = [
    pytest.mark.slow,
    pytest.mark.apart,
    pytest.mark.timeout(170),
    pytest.mark.skipif(bool(hosts.missing()), reason=hosts.missing()),
]

M, STEPS = 5, 3
TIMEOUT, OVER = 6, 5  # seconds: what each run is given, and how long after that everybody must know
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

def later(act):
    # An operation that takes a while before it goes wrong: by then the others have heard that it runs.
    def acts():
        time.sleep(1.5)
        note(f"fault of {phase}")
        act()
    return acts

class Acts(torch.nn.Module):
    # Acts in the forward with this number, from 0, and notes when.
    def __init__(self, act, call):
        super().__init__()
        self.act, self.call, self.calls = act, call, 0
    def forward(self, x):
        if self.calls == self.call:
            note(f"fault of {phase}")
            self.act()
        self.calls += 1
        return x

def fails(phase, act, guilty, **rest):
    # Five microbatches a step: the forward with number 7 is F2 of step 1.
    torch.manual_seed(0)  # all ranks bring the same model
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

ACTS = {
    "boom": faulty.boom, "hang": faulty.sleep, "kill": later(faulty.kill), "exit": later(faulty.exit_at_once),
    "die": faulty.kill, "run": None,
}
for phase in phases:
    what, _, number = phase.partition("@")
    if what == "equal":
        equal(phase)
    elif what == "stop":
        event = threading.Event()
        def set_it():
            note(f"fault of {phase}")
            event.set()
        if rank == int(number):
            threading.Timer(1.5, set_it).start()
        fails(phase, None, 0, stop=event)
    else:
        fails(phase, ACTS[what], int(number or 0))
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
        """As srun starts tasks, and as its users map its variables: no torchrun, and no names of hosts."""
        for rank in self.ranks:
            host, local = self.lan.hosts[rank // self.per_host], str(rank % self.per_host)
            variables = {
                "RANK": str(rank), "WORLD_SIZE": str(len(self.ranks)), "LOCAL_RANK": local,
                "MASTER_ADDR": self.lan.hosts[0].address, "MASTER_PORT": PORT,
            }  # fmt: skip
            variables |= {"LOCAL_WORLD_SIZE": str(self.per_host)} if local_size else {}
            command = [sys.executable, str(self.folder / "script.py"), str(self.folder), *phases]
            log = self.folder / f"rank{rank}.log"
            self.jobs.append(host.start(*command, log=log, **variables, **environment))
        return self

    def wait(self, seconds: float = 120) -> list[int]:
        """Exit codes. Raises AssertionError where a process is left on a host."""
        deadline = time.monotonic() + seconds
        codes = [job.wait(max(0.1, deadline - time.monotonic())) for job in self.jobs]
        while (left := [host.processes() for host in self.lan.hosts]) != [[] for _ in self.lan.hosts]:
            assert time.monotonic() < deadline, f"left: {left}\n{self.logs()}"
            time.sleep(0.05)
        return codes

    def logs(self) -> str:
        return "\n".join(f"--- {job.log.name}\n{job.text}" for job in self.jobs)

    def left(self) -> list[str]:
        """Files and shared memory that are left on the hosts, torchrun's own logs and torch's cache left out."""
        theirs = "torchelastic_", "torchinductor_"
        return [file for host in self.lan.hosts for file in host.files() if not Path(file).name.startswith(theirs)]

    def saved(self, phase: str) -> list[dict[str, Any]]:
        return [torch.load(self.folder / f"{phase}.{rank}.pt", weights_only=False) for rank in self.ranks]

    def fault(self, phase: str, when: float) -> None:
        """A fault that the test itself made."""
        (self.folder / f"fault of {phase}.0").write_text(json.dumps({"when": when}))

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
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1] / "helpers"
    ) as owner:
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


def assert_equal(world: World, phase: str) -> None:
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


# what goes wrong


def assert_told(world: World, phase: str, alive: Sequence[int], kind: str = "RunError", **wanted: Any) -> None:
    """Each living rank has caught one error, soon after the fault, which names `rank`, `blamed` (its host), `action` and
    `step`."""
    faults = [note for rank in world.ranks if (note := world.noted(f"fault of {phase}", rank))]
    assert len(faults) == 1
    for rank in alive:
        told = world.noted(phase, rank)
        assert told, f"rank {rank} was not told\n{world.logs()}"
        assert (rank, told["kind"]) == (rank, kind), told
        assert {name: told[name] for name in wanted} == wanted, f"rank {rank}: {told}"
        took = told["when"] - faults[0]["when"]
        assert 0 <= took < TIMEOUT + OVER, f"rank {rank} was told after {took:.1f} s"


def assert_printed_once(world: World) -> None:
    """One of our errors in each host's log, and nothing from the transport or the watching."""
    for job in world.jobs:
        assert job.text.count("RunError:") == 1, f"{job.log}\n{job.text}"
        for echo in ("closed by peer", "Connection reset", "Exception in thread", "[rank0]: [rank0]:"):
            assert echo not in job.text, f"{job.log}\n{job.text}"


# What runs say, as patterns: real runs are held against them here, and so is the table of docs/torchrun.md.
BOOM = r"rank 3 on hostB failed in F2 of step \d:"
HANG = r"no progress for \d+ s: rank 3 on hostB computes F2\."
GONE = r"rank (\d) on host(.) ended without a word .*in F2 of step \d"
OUT_OF_REACH = r"host hostB cannot be reached: ranks 2 and 3 there said nothing for \d+\.\d s"
NO_HUB = r"host hostA cannot be reached"
LOOPBACK = r"a host's own name leads to an address \(127\.\.\.\)"
CTRL_C = r"rank \d on host. ended the run \(Ctrl-C\)"
STOPPED = r"the run was stopped"
ORPHANED = "torchrun, which started this rank, is gone"
SAID = BOOM, HANG, GONE, OUT_OF_REACH, NO_HUB, LOOPBACK, CTRL_C, STOPPED


def test_two_hosts_by_torchrun_c10d(tmp_path):
    """All ranks outlive an error that one raised: the same job trains on. Then an operation hangs."""
    with Lan() as lan:
        world = World(lan, tmp_path, 2).torchrun("equal@1", "boom@3", "equal@2", "hang@3")
        codes = world.wait()
        assert_equal(world, "equal@1")
        assert_told(world, "boom@3", world.ranks, rank=3, blamed="hostB", action="F2", step=1)
        for rank in world.ranks:
            told = world.noted("boom@3", rank)
            assert re.match(BOOM + r"\n\nTraceback \(most recent call last\):\n", told["text"]), told["text"]
            assert told["text"].rstrip().endswith("RuntimeError: boom")
            assert told["traceback"] in told["text"]
        assert_equal(world, "equal@2")
        assert_told(world, "hang@3", world.ranks, rank=3, blamed="hostB", action="F2", step=1)
        for rank in world.ranks:
            text = world.noted("hang@3", rank)["text"]
            assert re.match(HANG, text), text
            assert all(f"rank {other} " in text for other in world.ranks), text
        assert codes == [1, 1], world.logs()
        assert_printed_once(world)
        assert world.left() == []


def test_three_hosts_by_torchrun_static(tmp_path):
    """One rank asks for an end; the same job trains on; then a rank raises, and nobody catches it."""
    with Lan(("good",) * 3, (0, 5000, 90000)) as lan:
        world = World(lan, tmp_path, 1).torchrun("equal@1", "stop@2", "equal@2", "boom@1", static=True)
        codes = world.wait()
        assert_equal(world, "equal@1")
        assert_told(world, "stop@2", world.ranks, kind="RunStopped", text=STOPPED)
        assert_equal(world, "equal@2")
        assert_told(world, "boom@1", world.ranks, rank=1, blamed="hostB", action="F2", step=1)
        assert codes == [1, 1, 1], world.logs()
        assert_printed_once(world)
        assert world.left() == []


def test_two_hosts_as_slurm_starts_them(tmp_path):
    """Without torchrun, without a word about how many ranks a host has, with names that lead nowhere. A rank is killed in
    a short operation."""
    with Lan(("none", "debian")) as lan:
        world = World(lan, tmp_path, 2).slurm("equal@1", "die@3", GLOO_SOCKET_IFNAME="eth0")
        codes = world.wait()
        assert_equal(world, "equal@1")
        assert_told(world, "die@3", [0, 1, 2], rank=3, blamed="hostB")
        assert codes == [1, 1, 1, 128 + signal.SIGKILL], world.logs()
        on_a = world.jobs[0].text + world.jobs[1].text
        assert on_a.count("RunError:") == 1, on_a
        assert world.jobs[2].text.count("RunError:") == 1
        assert world.left() == []


@pytest.mark.soak
def test_two_hosts_as_slurm_starts_them_told_how_many_ranks_a_host_has(tmp_path):
    with Lan(("debian", "debian")) as lan:
        world = World(lan, tmp_path, 2).slurm("equal@1", "boom@0", local_size=True, GLOO_SOCKET_IFNAME="eth0")
        codes = world.wait()
        assert_equal(world, "equal@1")
        assert_told(world, "boom@0", world.ranks, rank=0, blamed="hostA", action="F2", step=1)
        assert codes == [1, 1, 1, 1], world.logs()
        for pair in (world.jobs[:2], world.jobs[2:]):
            assert sum(job.text.count("RunError:") for job in pair) == 1, world.logs()
        assert world.left() == []


@pytest.mark.parametrize(
    ("fault", "static"),
    [
        ("kill@0", False),
        pytest.param("kill@3", False, marks=pytest.mark.soak),
        pytest.param("exit@2", True, marks=pytest.mark.soak),
    ],
)
def test_a_rank_ends_without_a_word(tmp_path, fault, static):
    """Killed (rank 0 too, which watches the others), or gone by os._exit."""
    guilty = int(fault[-1])
    with Lan() as lan:
        world = World(lan, tmp_path, 2).torchrun(fault, static=static)
        codes = world.wait()
        alive = [rank for rank in world.ranks if rank != guilty]
        blamed = f"host{'AABB'[guilty]}"
        assert_told(world, fault, alive, rank=guilty, blamed=blamed, action="F2", step=1)
        for rank in alive:
            said = re.match(GONE, world.noted(fault, rank)["text"])
            assert said, world.noted(fault, rank)
            assert said.groups() == (str(guilty), blamed[-1])
        assert codes == [1, 1], world.logs()
        assert_printed_once(world)
        assert world.left() == []


def test_own_names_that_lead_to_the_host_itself(tmp_path):
    """What Debian's installers write, and no word about the interface: said to all, with the address that betrays it."""
    with Lan(("debian", "debian")) as lan:
        world = World(lan, tmp_path, 2).torchrun("equal@1")
        assert world.wait() == [1, 1], world.logs()
        for job in world.jobs:  # gloo has written its part, too
            assert job.text.count("RunError:") == 1, job.text
            assert re.search("RunError: " + LOOPBACK, job.text), job.text
            assert "remote=[127.0.1.1]" in job.text, job.text
        assert world.left() == []


def running(world: World, steps: int = 5) -> float:
    """Wait until so many steps more are done. Returns the time at which they are."""
    now = (world.noted("step", 0) or {"step": 0})["step"]

    def there() -> bool:
        assert all(job.process.poll() is None for job in world.jobs), world.logs()
        note = world.noted("step", 0)
        return note is not None and note["step"] >= now + steps

    until(there, 90)
    return time.time()


def test_a_link_is_cut(tmp_path):
    """For two seconds: the run goes on. For good: each side names the host that it cannot reach, and what its own ranks
    were waiting for."""
    with Lan() as lan:
        world = World(lan, tmp_path, 2).torchrun("run")
        running(world)
        lan.cut(lan["hostB"])
        time.sleep(2)
        lan.mend(lan["hostB"])
        world.fault("run", running(world))
        lan.cut(lan["hostB"])
        until(lambda: all(world.noted("run", rank) for rank in world.ranks), TIMEOUT + OVER + 5)
        lan.mend(lan["hostB"])  # torchrun itself would wait for its store
        codes = world.wait()
        for side, other, words in (([0, 1], "hostB", OUT_OF_REACH), ([2, 3], "hostA", NO_HUB)):
            assert_told(world, "run", side, blamed=other)
            for rank in side:
                text = world.noted("run", rank)["text"]
                assert re.match(words, text), text
                assert re.search(rf"rank {rank} on host. (waits for|sends|is waiting for)", text), text
        assert codes == [1, 1], world.logs()
        assert_printed_once(world)
        assert world.left() == []


@pytest.mark.parametrize("where", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_ctrl_c_at_one_of_the_torchruns(tmp_path, where):
    with Lan() as lan:
        world = World(lan, tmp_path, 2).torchrun("run")
        world.fault("run", running(world))
        world.jobs[where].ctrl_c()
        world.wait()
        others = [rank for rank in world.ranks if rank // 2 != where]
        assert_told(world, "run", others, blamed=lan.hosts[where].name)
        assert re.match(CTRL_C, world.noted("run", others[0])["text"])
        assert world.jobs[1 - where].text.count("RunError:") == 1, world.logs()
        assert world.left() == []


def test_one_of_the_torchruns_is_killed(tmp_path):
    """It leaves its ranks behind. They end by themselves, and all others with them."""
    with Lan() as lan:
        world = World(lan, tmp_path, 2).torchrun("run")
        world.fault("run", running(world))
        world.jobs[1].kill()
        assert world.wait() == [1, 128 + signal.SIGKILL], world.logs()
        assert_told(world, "run", [0, 1], blamed="hostB")
        assert world.jobs[0].text.count("RunError:") == 1, world.logs()
        assert ORPHANED in world.jobs[0].text
        assert ORPHANED in world.jobs[1].text
        assert world.left() == []


# docs/torchrun.md


def page() -> str:
    return (Path(__file__).parents[2] / "docs" / "torchrun.md").read_text("utf-8")


def blocks(heading: str, language: str = "sh") -> list[str]:
    """The code blocks under a heading, as they stand there."""
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page(), re.MULTILINE | re.DOTALL)
    assert section, heading
    return re.findall(rf"^```{language}\n(.*?)^```$", section[1], re.MULTILINE | re.DOTALL)


class Reader:
    """Who does what the page says, on two hosts."""

    def __init__(self, lan: Lan, folder: Path) -> None:
        self.lan, self.folder = lan, folder
        (script,) = blocks("Before the first run", "python")
        (folder / "train.py").write_text(script, "utf-8")

    def start(self, host: Host, text: str, **environment: str) -> Job:
        log = self.folder / f"{host.name} {len(host.jobs)}.log"
        return host.start("bash", "-euc", f"cd {self.folder}\n{text}", log=log, **environment)

    def does(self, *texts: str) -> list[Job]:
        """Run blocks at the same time, each on the hosts that its first line names, to their good end."""
        first, second = self.lan.hosts
        where = {"# on the first machine": [first], "# on the second machine": [second]}
        where["# on both machines"] = [first, second]
        jobs = [self.start(host, text) for text in texts for host in where[text.partition("\n")[0]]]
        assert [job.wait(120) for job in jobs] == [0] * len(jobs), "\n".join(job.text for job in jobs)
        return jobs


def assert_trained(jobs: Sequence[Job]) -> None:
    said = [job.text.count("4 CPU processes on 2 hosts") for job in jobs]
    assert said == [1] + [0] * (len(jobs) - 1), "\n".join(job.text for job in jobs)


def test_page_looks_and_starts_by_name(tmp_path):
    with Lan() as lan:
        reader = Reader(lan, tmp_path)
        look, alone = blocks("Before the first run")
        assert "10.77.0.1" in reader.does(look)[1].text
        assert reader.does(alone)[0].text.count("2 CPU processes on") == 1
        assert_trained(reader.does(blocks("Start by name (c10d)")[0]))


def test_page_starts_by_address_whatever_names_are_good_for(tmp_path):
    with Lan(("none", "debian")) as lan:
        reader = Reader(lan, tmp_path)
        (see,) = blocks("Names: 127.0.1.1, and names that lead nowhere")
        assert [job.text[:9] for job in reader.does(see)] == ["", "127.0.1.1"]
        assert_trained(reader.does(*blocks("Start by address")))


@pytest.mark.soak
def test_page_starts_c10d_without_names(tmp_path):
    with Lan(("debian", "none")) as lan:
        assert_trained(Reader(lan, tmp_path).does(*blocks("Start by name (c10d)")[1:]))


def test_page_has_notebooks_variables_do_no_harm(tmp_path):
    with Lan() as lan:
        (left_over,) = blocks("Notebooks and leftover variables")
        assert "measured: 2 CPU processes on" in Reader(lan, tmp_path).does(left_over)[0].text


def test_page_starts_under_slurm(tmp_path):
    """Stand-ins for Slurm's commands: scontrol names the hosts, srun writes down what it is to run, and where."""
    (script,) = blocks("Slurm")
    nodes, per_node = (
        int(re.search(rf"^#SBATCH --{name}=(\d+)$", script, re.MULTILINE)[1]) for name in ("nodes", "ntasks-per-node")
    )
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "scontrol").write_text('#!/bin/sh\n[ "$*" = "show hostnames host[A-B]" ] && printf "hostA\\nhostB\\n"\n')
    (tools / "srun").write_text('#!/bin/sh\nprintf "%s\\0" "$@" > srun.args\nenv -0 > srun.env\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    with Lan() as lan:
        reader = Reader(lan, tmp_path)
        path = f"{tools}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        job = reader.start(lan["hostA"], script, PATH=path, SLURM_JOB_NODELIST="host[A-B]", SLURM_JOB_ID="12345")
        assert job.wait(30) == 0, job.text
        words = (tmp_path / "srun.args").read_text().rstrip("\0").split("\0")
        known = dict(line.split("=", 1) for line in (tmp_path / "srun.env").read_text().rstrip("\0").split("\0"))
        assert known["MASTER_PORT"] == "22345"
        asked = {
            name: known[name] for name in ("MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        }
        size = {"SLURM_NTASKS": str(nodes * per_node), "SLURM_NTASKS_PER_NODE": str(per_node)}
        jobs = []
        for rank in range(nodes * per_node):
            place = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % per_node)}
            command = ["env", "-C", str(tmp_path), *words]
            host = lan.hosts[rank // per_node]
            jobs.append(host.start(*command, log=tmp_path / f"task {rank}.log", **asked, **size, **place))
        assert [job.wait(120) for job in jobs] == [0] * len(jobs), "\n".join(job.text for job in jobs)
        assert_trained(jobs)


# What the code says where a test of it would wait for minutes.
RARE = (
    "cannot be reached, or its code holds Python's lock", ORPHANED, " did not come, but RANK and WORLD_SIZE ", "called train with ", "'s model is not rank 0's: ", " found no way to rank 0 at port ",
    "but no world at ", "the schedule has p=",
)  # fmt: skip


def test_page_explains_every_error(root):
    """Each text is quoted as runs say it."""
    (section,) = re.findall(r"^## When something goes wrong\n(.*?)^## ", page(), re.MULTILINE | re.DOTALL)
    quoted = re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^\| (.*)", section, re.MULTILINE)))
    for pattern in SAID:
        assert any(re.match(pattern, text) for text in quoted), pattern
    source = "\n".join(path.read_text("utf-8") for path in (root / "ppedu" / "runtime").rglob("*.py"))
    for piece in RARE:
        assert piece in source, piece
        assert any(piece in text for text in quoted), piece
