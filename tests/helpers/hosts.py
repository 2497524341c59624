"""Several hosts on one machine: Linux namespaces that die with the process which made them.

Each host has its own network, host name, hosts file, clock, processes, shared memory and boot id; files are those of this
machine. The hosts hang on a switch, a host of its own kind, and reach nothing else. What holds a host is one process that
waits for the end of its standard input: when we end, however we do, it ends, and as it is process 1 of its host, the kernel
ends every process there and takes the namespaces and links away.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

HostsFile = Literal["good", "debian", "none"]
TOOLS = ("ip", "unshare", "nsenter", "mount")
CAPACITY = 9  # hosts
# What a holder does before it waits. A host is up when it says so. Process 1 adopts whoever loses its parent: as it
# ignores the ends of its children, they leave no trace.
HOLD = """
set -e
echo "$1" > /proc/sys/kernel/hostname
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/boot_id" /proc/sys/kernel/random/boot_id
mount -t tmpfs shm /dev/shm
ip link set lo up
echo up
exec env --ignore-signal=CHLD cat
"""
OURS = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME"


class NoHostsError(RuntimeError):
    """This machine, or this user, cannot make hosts; the text says why."""


class Job:
    """A command that runs on a host, and what it wrote: `log`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log

    @property
    def text(self) -> str:
        return self.log.read_text("utf-8", errors="replace")

    def wait(self, seconds: float) -> int:
        """Its exit code (128 + the signal's number where one killed it). Raises AssertionError after `seconds`."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not over after {seconds:g} s. It wrote:\n{self.text}") from None
        return 128 - code if code < 0 else code

    def ctrl_c(self) -> None:
        """What a terminal does: interrupt the command and those of its children that share its session."""
        for pid in _processes():
            with contextlib.suppress(OSError):
                if os.getsid(pid) == os.getsid(self._command()) and pid != self.process.pid:
                    os.kill(pid, signal.SIGINT)

    def kill(self) -> None:
        """The command itself, not what it started."""
        os.kill(self._command(), signal.SIGKILL)

    def _command(self) -> int:
        """Its process; ours has only gone in there with it, and waits for its end."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text())


class Host:
    """One host. name, address: how the others reach it. folder: for its temporary files."""

    def __init__(self, name: str, number: int, folder: Path, hosts_file: str, clock: int) -> None:
        self.name, self.number, self.folder = name, number, folder
        self.address = f"10.77.0.{number}"
        folder.mkdir()
        (folder / "tmp").mkdir()
        (folder / "hosts").write_text(hosts_file, "utf-8")
        (folder / "boot_id").write_text(f"{uuid.uuid4()}\n", "utf-8")
        own = ["--net", "--uts", "--mount", "--pid", "--mount-proc", "--time", "--monotonic", str(clock)]
        self.holder = subprocess.Popen(
            ["unshare", *own, "--fork", "--kill-child", "sh", "-c", HOLD, "sh", name, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.jobs: list[Job] = []
        assert self.holder.stdout is not None
        if (said := self.holder.stdout.readline()) != "up\n":
            said += self.holder.stdout.read()
            self.end()
            raise NoHostsError(f"a host could not be made: {said.strip()}")
        self.pid = int(Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text())
        self.namespace = os.readlink(f"/proc/{self.pid}/ns/pid")

    def entered(self, *command: str) -> list[str]:
        """The command line that runs a command here, in the folder where we are."""
        return [
            "nsenter", "-t", str(self.pid), "--net", "--uts", "--mount", "--pid", "--time",
            "env", "-C", os.getcwd(), *command,
        ]  # fmt: skip

    def run(self, *command: str) -> str:
        """Run a short command to its end: what it printed. Raises NoHostsError where it fails."""
        done = subprocess.run(self.entered(*command), capture_output=True, text=True, timeout=30, check=False)
        if done.returncode:
            raise NoHostsError(f"{' '.join(command)}: {done.stdout}{done.stderr}".strip())
        return done.stdout

    def start(self, *command: str, log: Path, **environment: str) -> Job:
        """Start a command, in an environment that knows the tests, but of no world of torch's."""
        root = Path(__file__).parents[2]
        known = {name: value for name, value in os.environ.items() if name not in OURS}
        known |= {
            "PYTHONPATH": f"{root}{os.pathsep}{root / 'tests/helpers'}",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
        }
        known |= {
            "TMPDIR": str(self.folder / "tmp"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{known['PATH']}",
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.entered(*command), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=known | environment, start_new_session=True,
            )  # fmt: skip
        job = Job(process, log)
        self.jobs.append(job)
        return job

    def processes(self) -> list[str]:
        """The command lines of all that runs here, our holder left out."""
        found = []
        for pid in processes_of([self.namespace]):
            with contextlib.suppress(OSError):
                if pid != self.pid:
                    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found.append(f"{pid}: {line}")
        return found

    def files(self) -> list[str]:
        """What is left in its temporary folder and its shared memory."""
        left = [str(path) for path in (self.folder / "tmp").iterdir()]
        return sorted([*left, *self.run("ls", "/dev/shm").split()])

    def end(self) -> None:
        """As when the power fails: all that runs here ends at once."""
        assert self.holder.stdin is not None
        self.holder.stdin.close()
        self.holder.wait(10)
        for job in self.jobs:
            job.process.wait(10)


class Lan:
    """Hosts hostA, hostB and so on, on one switch.

    files: the kind of each host's hosts file. "good" names all hosts; "debian" gives the own name 127.0.1.1, as Debian's
    and Ubuntu's installers do; with "none" no host is known by name, not even the own one. clocks: seconds by which each
    host's monotonic clock is ahead of this machine's.
    """

    def __init__(self, files: Sequence[HostsFile] = ("good", "good"), clocks: Sequence[int] = (0, 5000)) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ppedu-hosts-")
        self._switch: Host | None = None
        self.hosts: list[Host] = []
        self.wanted = list(zip(files, clocks, strict=True))
        assert len(self.wanted) <= CAPACITY

    def __enter__(self) -> Lan:
        names = [f"host{'ABCDEFGHI'[i]}" for i in range(len(self.wanted))]
        folder = Path(self._folder.name)
        try:
            self._switch = Host("switch", 0, folder / "switch", "", 0)
            self._switch.run("sh", "-c", "ip link add bridge0 type bridge && ip link set bridge0 up")
            for number, (name, (kind, clock)) in enumerate(zip(names, self.wanted, strict=True), 1):
                host = Host(name, number, folder / name, _hosts_file(kind, number, names), clock)
                self.hosts.append(host)
                self._plug_in(host)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __getitem__(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def _plug_in(self, host: Host) -> None:
        assert self._switch is not None
        ends = ["ip", "link", "add", f"to-{host.name}", "type", "veth", "peer", "name", "eth0", "netns", str(host.pid)]
        network_only = ["nsenter", "-t", str(self._switch.pid), "--net"]  # the other end is named by a process of ours
        done = subprocess.run([*network_only, *ends], capture_output=True, text=True, timeout=30, check=False)
        if done.returncode:
            raise NoHostsError(f"{' '.join(ends)}: {done.stderr.strip()}")
        self._switch.run("ip", "link", "set", f"to-{host.name}", "up")
        self.mend(host)
        host.run("sh", "-c", f"ip addr add {host.address}/24 dev eth0 && ip link set eth0 up")

    def cut(self, host: Host) -> None:
        """The switch drops all that comes from this host or goes to it. Nobody is told: the cable still has a signal."""
        assert self._switch is not None
        self._switch.run("ip", "link", "set", f"to-{host.name}", "nomaster")

    def mend(self, host: Host) -> None:
        assert self._switch is not None
        self._switch.run("ip", "link", "set", f"to-{host.name}", "master", "bridge0")

    def close(self) -> None:
        for host in [*self.hosts, *([self._switch] if self._switch else [])]:
            host.end()
        self._folder.cleanup()


def _hosts_file(kind: HostsFile, number: int, names: Sequence[str]) -> str:
    lines = ["127.0.0.1 localhost"]
    for other, name in enumerate(names, 1):
        if kind == "debian" and other == number:
            lines.append(f"127.0.1.1 {name}")
        elif kind != "none":
            lines.append(f"10.77.0.{other} {name}")
    return "\n".join([*lines, ""])


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def processes_of(namespaces: Sequence[str]) -> list[int]:
    """All processes in these namespaces (texts like 'pid:[4026532281]'), whoever started them."""
    found = []
    for pid in _processes():
        for kind in {name.partition(":")[0] for name in namespaces}:
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/ns/{kind}") in namespaces:
                    found.append(pid)
    return found


@functools.cache
def missing() -> str:
    """Why there can be no hosts here, in one sentence; "" where they can. Found out by making two."""
    if platform.system() != "Linux" or os.geteuid() != 0:
        return "several hosts on one machine need Linux and root: the tests of several hosts are skipped"
    if lacking := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"several hosts on one machine need {', '.join(lacking)} (apt-get install iproute2 util-linux)"
    try:
        with Lan():
            return ""
    except (NoHostsError, OSError, subprocess.SubprocessError) as error:
        return f"several hosts on one machine need namespaces, which are not to be had here: {error}"
