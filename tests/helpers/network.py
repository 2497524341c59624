"""A network between ranks that are threads of one process: NCCL's rules or gloo's, and a hang is found at once.

It stands in for the process groups of torch.distributed, so that the real interpreter and the real channels run on it. Ranks
take turns: one goes on until it waits for another, and each has random numbers of its own, as processes have.

Numbers are computed at once, on the CPU. What a GPU would make of it is for gpu_model.py to say: on request each rank gets a
GPU that only writes down what the rank's host asks of it.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from gpu_model import AwaitDevice, AwaitMark, Launch, Listen, Mark, Note, Post, Step, Take, Talk, Trace
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ppedu.runtime.rank.group import DATA, Group, by_rounds
from ppedu.runtime.rank.heartbeat import Heartbeat
from ppedu.runtime.rank.interpreter import Rank
from ppedu.runtime.rank.job import RankResult, Work
from ppedu.runtime.rank.replicas import copy_sets

NCCL_KNOWS = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.bool, torch.int32, torch.int64,
)  # fmt: skip


MakeGpu: TypeAlias = Callable[[Trace], Any]


class StuckError(Exception):
    """Every rank waits for another one."""


class Message:
    """One end of a message, as torch's Work. Matched with the other ends by order within its stream.

    channel: of a tensor's message the ordered pair of ranks, or all ranks of a sum. record: called when the host waits.
    """

    def __init__(self, network: Network, tensor: Tensor, sends: bool, channel: Any, record: Callable[[], Any]) -> None:
        self.network, self.tensor, self.sends, self.channel, self.record = network, tensor, sends, channel, record
        self.done = self.waited = False
        self.error: str | None = None

    def is_completed(self) -> bool:
        """As seen of torch 2.13: under gloo False until one has waited. The host of a GPU is ahead: nothing has arrived."""
        return self.done if self.network.nccl and self.network.gpu is None else self.waited

    def wait(self) -> bool:
        self.record()
        self.network.wait_for(self)
        if self.error:
            raise RuntimeError(self.error)
        return True


class Network:
    """nccl: data goes on one stream for each ordered pair of ranks, without tags. Else all goes over gloo, by tag.
    gpu: makes each rank's GPU from a trace, where the rank's actions are written down. shared: both directions of a pair get
    one stream, which is wrong.

    A send is done when its receive takes it, under both: what finishes so finishes with buffers too.
    """

    def __init__(self, size: int, nccl: bool, gpu: MakeGpu | None = None, shared: bool = False) -> None:
        self.size, self.nccl, self.gpu, self.shared = size, nccl, gpu, shared
        self.traces = [Trace() for _ in range(size)]
        self.changed = threading.Condition()
        self.streams: dict[Any, dict[Any, deque[Message]]] = {}  # stream -> its ends, each with what waits there
        self.running, self.over = size, False
        self.awaited: set[Message] = set()
        self.untaken: Counter[tuple[bool, tuple[int, int]]] = Counter()  # ends of data messages not waited for yet
        self.most_untaken: Counter[tuple[bool, tuple[int, int]]] = Counter()

    def group(self, rank: int, pairs: set[tuple[int, int]], copies: Sequence[tuple[int, ...]] = ()) -> Group:
        control = _ProcessGroup(self, rank, None)
        data: dict[Any, Any] = dict.fromkeys(pairs, control)
        if self.nccl:
            stream: Any = frozenset if self.shared else tuple
            data = {pair: _ProcessGroup(self, rank, pair, stream(pair)) for pair in by_rounds(pairs) if rank in pair}
        sums: Any = {ranks: _ProcessGroup(self, rank, ranks, ("sum", *ranks)) for ranks in copies if rank in ranks}
        backend, cpu = "nccl" if self.nccl else "gloo", torch.device("cpu")
        if self.gpu is None:
            return Group(rank, self.size, cpu, control, data, False, backend, None, sums)
        trace = self.traces[rank]
        trace.streams += dict.fromkeys(group.stream for group in (*data.values(), *sums.values()))
        return GpuGroup(rank, self.size, cpu, control, data, not self.nccl, backend, self.gpu(trace), sums)

    def start(self, stream: Any, end: Any, ends: Sequence[Any], message: Message) -> Message:
        """One end of a message; it is carried when all `ends` are there."""
        with self.changed:
            waiting = self.streams.setdefault(stream, {each: deque() for each in ends})
            waiting[end].append(message)
            self._count(message, 1)
            while all(waiting.values()):
                _carry([queue.popleft() for queue in waiting.values()])
                self.changed.notify_all()
        return message

    def _count(self, message: Message, change: int) -> None:
        if message.channel:
            key = message.sends, message.channel
            self.untaken[key] += change
            self.most_untaken[key] = max(self.untaken[key], self.most_untaken[key])

    def wait_for(self, message: Message) -> None:
        with self.changed:
            self.awaited.add(message)
            self._look()
            while not message.done:
                if self.over:
                    raise StuckError("every rank waits for another one")
                mine = torch.get_rng_state()
                self.changed.wait()
                torch.set_rng_state(mine)
            self.awaited.remove(message)
            if not message.waited:
                message.waited = True
                self._count(message, -1)

    def _look(self) -> None:
        if len(self.awaited) == self.running and not any(message.done for message in self.awaited):
            self.over = True
            self.changed.notify_all()

    def leave(self, failed: bool) -> None:
        with self.changed:
            self.running -= 1
            self.over |= failed
            self._look()
            self.changed.notify_all()

    def left(self) -> int:
        """Ends of messages that met no other end."""
        return sum(len(queue) for ends in self.streams.values() for queue in ends.values())


def _carry(ends: list[Message]) -> None:
    """The receiver gets what the sender has; all ends of a sum get the sum."""
    senders, receivers = [end for end in ends if end.sends], [end for end in ends if not end.sends]
    a, b = (senders or receivers)[0].tensor, receivers[0].tensor
    if any(end.tensor.numel() != a.numel() or end.tensor.dtype != a.dtype for end in ends):
        receivers[0].error = f"{tuple(a.shape)} {a.dtype} arrived where {tuple(b.shape)} {b.dtype} was expected"
    else:
        total = a if senders else sum(end.tensor for end in receivers)
        for end in receivers:
            end.tensor.copy_(total.reshape(end.tensor.shape))
    for end in ends:
        end.done = True


class _ProcessGroup:
    """ranks: an ordered pair, or ranks that add up what they have; None for all, over gloo."""

    def __init__(self, network: Network, rank: int, ranks: tuple[int, ...] | None, stream: Hashable = None) -> None:
        self.network, self.rank, self.ranks, self.stream = network, rank, ranks, stream
        self.posted: Counter[Any] = Counter()

    def send(self, tensors: list[Tensor], to: int, tag: int) -> Message:
        return self._start(tensors[0], to, tag, True)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> Message:
        return self._start(tensors[0], source, tag, False)

    def allreduce(self, tensors: list[Tensor], _: Any = None) -> Message:
        assert self.ranks is not None
        return self._begin(("sum", *self.ranks), self.rank, self.ranks, tensors[0], False, None)

    def abort(self) -> None:
        self.network.leave(failed=True)

    def _start(self, tensor: Tensor, other: int, tag: int, sends: bool) -> Message:
        if self.ranks is not None:
            other = sorted(self.ranks)[other]  # torch numbers a group's ranks from 0
        channel = (self.rank, other) if sends else (other, self.rank)
        if self.ranks not in (None, channel) and not self.network.shared:
            raise ValueError(f"a message from {channel[0]} to {channel[1]} on the stream of {self.ranks}")
        stream = channel if self.ranks is not None else (channel, tag)
        is_data = self.ranks is not None or tag == DATA
        return self._begin(stream, sends, (True, False), tensor, sends, channel if is_data else None)

    def _begin(self, stream: Any, end: Any, ends: Sequence[Any], tensor: Tensor, sends: bool, channel: Any) -> Message:
        self.posted[stream, end] += 1
        key = (*stream, self.posted[stream, end])
        wait = self._record(key, stream, ends, tensor, channel if sends else None)
        return self.network.start(stream, end, ends, Message(self.network, tensor, sends, channel, wait))

    def _record(self, key: Any, stream: Any, ends: Sequence[Any], tensor: Tensor, sent: Any) -> Callable[[], Any]:
        """Write down that this rank starts an end of a message; returns what writes down that it waits for it."""
        on_gpu = self.network.nccl and self.ranks is not None
        if on_gpu and (tensor.dtype not in NCCL_KNOWS or not tensor.is_contiguous()):
            raise TypeError(f"NCCL takes no tensor of dtype {tensor.dtype} and strides {tensor.stride()}")
        if self.network.gpu is None:
            return lambda: None
        add = self.network.traces[self.rank].steps.append
        if on_gpu:
            if stream[0] == "sum":
                add(Launch("a sum's parts in one piece", frozenset([("cat", tensor.dtype)])))
            add(Post(key, self.stream, stream, len(ends)))
            return lambda: add(Take(key))
        if sent is not None:  # a copy to the host waits for what it copies
            RecordingGpu(self.network.traces[self.rank]).finish()
        add(Talk(key))
        return lambda: add(Listen(key))


# the GPU that writes down


class RecordingGpu:
    """An Accelerator (ppedu/runtime/accelerator.py). Nothing that is asked is over yet: the GPU is far behind."""

    PEAK = 123

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def use(self) -> None: ...

    def event(self) -> RecordedEvent:
        return RecordedEvent(self.trace)

    def finish(self) -> None:
        event = self.event()
        event.record()
        event.synchronize()

    def finish_all(self) -> None:
        """What torch.cuda.synchronize does. The runtime must never ask for it; tests that show why do."""
        self.trace.steps.append(AwaitDevice())

    def reset_peak(self) -> None:
        self.trace.steps.append(Note("the peak is reset"))

    def peak_bytes(self) -> int:
        return self.PEAK

    def name(self) -> str:
        return "a GPU that writes down"


class RecordedEvent:
    def __init__(self, trace: Trace) -> None:
        self.trace, self.number, self.time = trace, -1, 0.0

    def record(self) -> None:
        self.number, self.time = len(self.trace.steps), time.perf_counter()
        self.trace.steps.append(Mark(self.number))

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        self.trace.steps.append(AwaitMark(self.number))

    def elapsed_time(self, end: RecordedEvent) -> float:
        return (end.time - self.time) * 1e3


class GpuGroup(Group):
    """Ranks with GPUs, as far as they are one: tensors are on the CPU, but to go over gloo they are copied to the host."""

    __slots__ = ()

    def over_the_host(self) -> Group:
        return replace(Group.over_the_host(self), through_host=True)


class Kernels(TorchDispatchMode):
    """Collects which kernels run in this thread: by operation, shapes and dtypes, for a GPU has other kernels for each."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[Hashable] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.rstrip("_")
        if not (func.is_view or name.startswith("empty") or name == "detach"):
            tensors = torch.utils._pytree.arg_tree_leaves(*args)
            self.found.add((name, *((tuple(t.shape), t.dtype) for t in tensors if isinstance(t, Tensor))))
        return func(*args, **(kwargs or {}))


class RecordedRank(Rank):
    """Writes down its operations, each with its kernels, its optimizer's steps, and its rehearsals."""

    def __init__(self, work: Work, group: Group, *rest: Any) -> None:
        super().__init__(work, group, *rest)
        assert isinstance(group.gpu, RecordingGpu)
        self.add: Callable[[Step], None] = group.gpu.trace.steps.append
        if self.optimizer is not None:
            kernels = Launch("the optimizer", frozenset(["optimizer"]))
            self.optimizer.register_step_pre_hook(lambda *_: self.add(kernels))

    def _mathematics(self, entry: Any, timer: Any) -> None:
        with Kernels() as kernels:
            super()._mathematics(entry, timer)
        what = f"{self.schedule.short(entry)} of step {self.step}"
        self.add(Launch(what, frozenset(kernels.found), operation=True))

    def _rehearse(self, forms: Any) -> None:
        self.add(Note("rehearsal"))
        super()._rehearse(forms)
        self.add(Note("rehearsed"))


class RecordedHeartbeat(Heartbeat):
    """Writes down what it shows: a step, and the number of an instruction or one of heartbeat.PLACES."""

    def __init__(self, work: Work, trace: Trace) -> None:
        super().__init__(Heartbeat.blank(work.rank + 1), work.rank)
        self.trace = trace

    def put(self, step: int, at: int) -> None:
        super().put(step, at)
        self.trace.steps.append(Note((step, at)))


class Threads:
    """Takes the place of `ppedu.runtime.train.run_launched`: ranks as threads, on a network of the given rules."""

    def __init__(self, nccl: bool, gpu: MakeGpu | None = None, shared: bool = False) -> None:
        self.nccl, self.gpu, self.shared = nccl, gpu, shared
        self.network: Network
        self.heartbeats: list[Heartbeat] = []
        self.random_states: dict[int, Tensor] = {}  # each rank's, when it is through
        self.ranks: list[Rank] = []

    def __call__(self, works: Sequence[Work], collector: Any, *_: Any) -> list[RankResult]:
        self.network = network = Network(len(works), self.nccl, self.gpu, self.shared)
        self.ranks, self.random_states = [], {}
        kind = Rank if self.gpu is None else RecordedRank
        self.heartbeats = [RecordedHeartbeat(work, network.traces[work.rank]) for work in works]
        lock, results, errors = threading.Lock(), {}, {}
        copies = copy_sets(works[0].job.schedule)

        def report_of(rank: int) -> Callable[[Any], None]:
            def report(step: Any) -> None:
                with lock:
                    collector.receive(rank, "step", step)

            return report

        def life(work: Work) -> None:
            with network.changed:  # until it waits, no other rank goes on
                try:
                    group = network.group(work.rank, work.pairs, copies)
                    rank = kind(work, group, report_of(work.rank), self.heartbeats[work.rank], time.perf_counter)
                    self.ranks.append(rank)
                    results[work.rank] = rank.run()
                    self.random_states[work.rank] = torch.get_rng_state()
                except BaseException as error:  # the test's to see
                    errors[work.rank] = error
                network.leave(failed=work.rank in errors)

        with torch.random.fork_rng(devices=[]):
            threads = [threading.Thread(target=life, args=(copy.deepcopy(work),), daemon=True) for work in works]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
        for error in sorted(errors.values(), key=lambda e: isinstance(e, StuckError)):
            raise error
        if network.left():
            raise StuckError(f"{network.left()} ends of messages met no other end")
        return [results[rank] for rank in sorted(results)]
