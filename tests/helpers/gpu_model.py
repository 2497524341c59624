"""What GPUs and NCCL do with what the hosts of ranks asked of them: whether it ends, and how far hosts are ahead.

A rank's host is a list of actions, as tests/network.py records them. The model has no clock: everything waits only for
something to be over, so that an order of events that ends in a deadlock is found whatever the speeds are. Hosts go on as far
as they can, and GPUs do something only when no host can move: no real host is further ahead.

It is stricter than some GPUs: a message has no room to wait in, and loading a kernel, or getting memory for the first time,
always waits for all else. It leaves out how many kernels fit on a GPU at a time, memory that is freed or fetched later on,
how NCCL connects its ranks, and streams of the user's own.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

COMPUTE = "compute"  # the stream of the mathematics; each channel has one of its own
CONNECTIONS = 8  # hardware queues of a GPU, if CUDA_DEVICE_MAX_CONNECTIONS says nothing else


class DeadlockError(Exception):
    """Nobody can go on."""


class SharedStreamError(Exception):
    """Two directions on one stream: what one of them waits for may stand behind it."""


# what a host does


@dataclass(frozen=True, slots=True)
class Launch:
    """Kernels on the compute stream. The first launch of a kernel loads it, and waits until the GPU has nothing to do."""

    what: str
    kernels: frozenset[Hashable]
    operation: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """An event on the compute stream."""

    number: int


@dataclass(frozen=True, slots=True)
class AwaitMark:
    """The host waits for an event."""

    number: int


@dataclass(frozen=True, slots=True)
class AwaitDevice:
    """The host waits for all that it has launched, on all streams (torch.cuda.synchronize)."""


@dataclass(frozen=True, slots=True)
class Post:
    """One end of an NCCL message, on a stream that waits for what is on the compute stream now. key: the same at all ends."""

    key: Hashable
    stream: Hashable
    direction: Hashable
    ends: int = 2


@dataclass(frozen=True, slots=True)
class Take:
    """The compute stream waits for an NCCL message; the host does not."""

    key: Hashable


@dataclass(frozen=True, slots=True)
class Talk:
    """One end of a message between hosts."""

    key: Hashable


@dataclass(frozen=True, slots=True)
class Listen:
    """The host waits until a message between hosts has both its ends."""

    key: Hashable


@dataclass(frozen=True, slots=True)
class Note:
    """Nothing: it says where in its program a host is."""

    what: object


Step: TypeAlias = Launch | Mark | AwaitMark | AwaitDevice | Post | Take | Talk | Listen | Note


@dataclass(slots=True)
class Trace:
    """All that one host does. streams: in the order in which they were made."""

    streams: list[Hashable] = field(default_factory=lambda: [COMPUTE])
    steps: list[Step] = field(default_factory=list)


# what comes of it


@dataclass(eq=False, slots=True)
class Work:
    """Something on a stream. ends: those of a message that have started, where it is one; it lasts until all have."""

    text: str
    needs: Sequence[Work] = ()
    ends: list[Work] | None = None
    wanted: int = 1
    started: bool = False

    @property
    def over(self) -> bool:
        return self.started and (self.ends is None or len(self.ends) == self.wanted)

    def start(self) -> None:
        self.started = True
        if self.ends is not None:
            self.ends.append(self)

    def waits_for(self) -> str:
        if self.started:
            return f"{self.text} runs, and waits for its other end"
        waits = [need.text for need in self.needs if not need.over]
        return f"{self.text} waits for {', '.join(waits) or 'what was issued before it to its queue'}"


class Device:
    """Streams, each in order, that share hardware queues: in a queue nothing starts before what was issued before it."""

    def __init__(self, streams: Sequence[Hashable], connections: int) -> None:
        queues: list[deque[Work]] = [deque() for _ in range(connections)]
        self.streams: dict[Hashable, deque[Work]] = {stream: deque() for stream in streams}
        self.queues = {stream: queues[k % connections] for k, stream in enumerate(streams)}
        self.last = Work("the beginning", started=True)  # on the compute stream

    def issue(self, stream: Hashable, work: Work) -> Work:
        self.streams[stream].append(work)
        self.queues[stream].append(work)
        if stream == COMPUTE:
            self.last = work
        return work

    def advance(self) -> bool:
        """Let each stream do one thing."""
        moved = False
        for stream, works in self.streams.items():
            queue = self.queues[stream]
            head = works[0] if works else None
            if head and not head.started and queue[0] is head and all(need.over for need in head.needs):
                queue.popleft().start()
                moved = True
            if head and head.over:
                works.popleft()
                moved = True
        return moved

    def idle(self) -> bool:
        return all(work.over for works in self.streams.values() for work in works)


class Host:
    """A rank's host and its GPU. ahead: the most operations that were launched and not over."""

    def __init__(self, trace: Trace, connections: int, messages: dict[Hashable, list[Work]]) -> None:
        self.steps, self.device, self.messages = deque(trace.steps), Device(trace.streams, connections), messages
        self.loaded: set[Hashable] = set()
        self.marks: dict[int, Work] = {}
        self.posted: dict[Hashable, Work] = {}
        self.directions: dict[Hashable, Hashable] = {}
        self.operations: deque[Work] = deque()
        self.ahead = 0
        self.last = "nothing"

    def run(self, talked: defaultdict[Hashable, int]) -> bool:
        """Go on as far as can be; whether that was anywhere."""
        before = len(self.steps)
        while self.steps and self._may(self.steps[0], talked):
            self._do(self.steps.popleft(), talked)
        return len(self.steps) < before

    def _may(self, step: Step, talked: defaultdict[Hashable, int]) -> bool:
        match step:
            case Launch(_, kernels):
                return kernels <= self.loaded or self.device.idle()
            case AwaitMark(number):
                return self.marks[number].over
            case AwaitDevice():
                return self.device.idle()
            case Listen(key):
                return talked[key] == 2
        return True

    def _do(self, step: Step, talked: defaultdict[Hashable, int]) -> None:
        match step:
            case Launch(what, kernels, operation):
                self.loaded |= kernels
                work, self.last = self.device.issue(COMPUTE, Work(what)), what
                if operation:
                    self._count(work)
            case Mark(number):
                self.marks[number] = self.device.issue(COMPUTE, Work(f"event {number}"))
            case Post():
                self._post(step)
            case Take(key):
                self.device.issue(COMPUTE, Work("the compute stream", (self.posted[key],)))
            case Talk(key):
                talked[key] += 1

    def _count(self, work: Work) -> None:
        self.operations.append(work)
        while self.operations[0].over:
            self.operations.popleft()
        self.ahead = max(self.ahead, len(self.operations))

    def _post(self, post: Post) -> None:
        if self.directions.setdefault(post.stream, post.direction) != post.direction:
            raise SharedStreamError(f"{post.direction} and {self.directions[post.stream]} on stream {post.stream}")
        work = Work(f"message {post.key}", (self.device.last,), self.messages[post.key], post.ends)
        self.posted[post.key] = self.device.issue(post.stream, work)

    def stuck(self) -> str:
        """What the host waits for, and what its streams do."""
        lines = [f"host: {self.steps[0] if self.steps else 'at its end'}, after {self.last}"]
        lines += [f"stream {stream}: {works[0].waits_for()}" for stream, works in self.device.streams.items() if works]
        return "\n    ".join(lines)


def replay(traces: Sequence[Trace], connections: int = CONNECTIONS) -> list[int]:
    """How many operations each rank's host was ahead at most. Raises DeadlockError, SharedStreamError."""
    messages: defaultdict[Hashable, list[Work]] = defaultdict(list)
    talked: defaultdict[Hashable, int] = defaultdict(int)
    hosts = [Host(trace, connections, messages) for trace in traces]
    while any(host.steps or not host.device.idle() for host in hosts):
        moved = any(host.run(talked) for host in hosts)
        if not moved and not any(host.device.advance() for host in hosts):
            raise DeadlockError("\n".join(f"rank {rank}\n    {host.stuck()}" for rank, host in enumerate(hosts)))
    return [host.ahead for host in hosts]
