"""A network between ranks that are threads of one process: NCCL's rules or gloo's, and a hang is found at once.

It stands in for the process groups of torch.distributed, so that the real interpreter and the real channels run on it.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ppedu.runtime.board import Board
from ppedu.runtime.channels import DATA, Group
from ppedu.runtime.execute import Rank
from ppedu.runtime.work import RankResult, Work


class StuckError(Exception):
    """Every rank waits for another one."""


class Message:
    """One end of a message, as torch's Work. Matched with the other end by order within its stream."""

    def __init__(self, network: Network, tensor: Tensor, sends: bool, channel: tuple[int, int] | None) -> None:
        self.network, self.tensor, self.sends, self.channel = network, tensor, sends, channel
        self.done = self.waited = False
        self.error: str | None = None

    def is_completed(self) -> bool:
        """As seen of torch 2.13: under gloo False until one has waited."""
        return self.done if self.network.nccl else self.waited

    def wait(self) -> bool:
        self.network.wait_for(self)
        if self.error:
            raise RuntimeError(self.error)
        return True


class Network:
    """nccl: data goes on one stream for each ordered pair of ranks, without tags. Else all goes over gloo, by tag.

    A send is done when its receive takes it, under both: what finishes so finishes with buffers too.
    """

    def __init__(self, size: int, nccl: bool) -> None:
        self.size, self.nccl = size, nccl
        self.changed = threading.Condition()
        self.streams: dict[Any, tuple[deque[Message], deque[Message]]] = defaultdict(lambda: (deque(), deque()))
        self.running, self.over = size, False
        self.awaited: set[Message] = set()
        self.untaken: Counter[tuple[bool, tuple[int, int]]] = Counter()  # ends of data messages not waited for yet
        self.most_untaken: Counter[tuple[bool, tuple[int, int]]] = Counter()

    def group(self, rank: int, pairs: set[tuple[int, int]]) -> Group:
        control = _ProcessGroup(self, rank, None)
        data: dict[Any, Any] = {pair: _ProcessGroup(self, rank, pair) if self.nccl else control for pair in pairs}
        backend = "nccl" if self.nccl else "gloo"
        return Group(rank, self.size, torch.device("cpu"), control, data, False, backend)

    def start(self, stream: Any, message: Message) -> Message:
        with self.changed:
            receives, sends = self.streams[stream]
            (sends if message.sends else receives).append(message)
            self._count(message, 1)
            while receives and sends:
                self._carry(sends.popleft(), receives.popleft())
        return message

    def _count(self, message: Message, change: int) -> None:
        if message.channel:
            key = message.sends, message.channel
            self.untaken[key] += change
            self.most_untaken[key] = max(self.untaken[key], self.most_untaken[key])

    def _carry(self, sent: Message, received: Message) -> None:
        a, b = sent.tensor, received.tensor
        if a.numel() != b.numel() or a.dtype != b.dtype:
            received.error = f"{tuple(a.shape)} {a.dtype} arrived where {tuple(b.shape)} {b.dtype} was expected"
        else:
            b.copy_(a.reshape(b.shape))
        sent.done = received.done = True
        self.changed.notify_all()

    def wait_for(self, message: Message) -> None:
        with self.changed:
            self.awaited.add(message)
            self._look()
            while not message.done:
                if self.over:
                    raise StuckError("every rank waits for another one")
                self.changed.wait()
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
        return sum(len(end) for ends in self.streams.values() for end in ends)


class _ProcessGroup:
    def __init__(self, network: Network, rank: int, pair: tuple[int, int] | None) -> None:
        self.network, self.rank, self.pair = network, rank, pair

    def send(self, tensors: list[Tensor], to: int, tag: int) -> Message:
        return self._start(tensors[0], to, tag, True)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> Message:
        return self._start(tensors[0], source, tag, False)

    def _start(self, tensor: Tensor, other: int, tag: int, sends: bool) -> Message:
        if self.pair is not None:
            other = sorted(self.pair)[other]  # torch numbers a group's ranks from 0
        channel = (self.rank, other) if sends else (other, self.rank)
        if self.pair not in (None, channel):
            raise ValueError(f"a message from {channel[0]} to {channel[1]} on the stream of {self.pair}")
        stream = channel if self.pair is not None else (channel, tag)
        is_data = self.pair is not None or tag == DATA
        return self.network.start(stream, Message(self.network, tensor, sends, channel if is_data else None))


class _Reports:
    def __init__(self, rank: int, hear: Callable[[int, str, Any], None], lock: threading.Lock) -> None:
        self.rank, self.hear, self.lock = rank, hear, lock

    def step(self, report: Any) -> None:
        with self.lock:
            self.hear(self.rank, "step", report)


class Threads:
    """Takes the place of `ppedu.runtime.train._train_launched`: ranks as threads, on a network of the given rules."""

    def __init__(self, nccl: bool) -> None:
        self.nccl = nccl
        self.network: Network
        self.ranks: list[Rank] = []

    def __call__(
        self, works: Sequence[Work], pairs: set[tuple[int, int]], device: str, collector: Any, *_: Any
    ) -> list[RankResult]:
        self.network = network = Network(len(works), self.nccl)
        lock, results, errors = threading.Lock(), {}, {}

        def life(work: Work) -> None:
            board = Board(Board.blank(len(works)), work.rank)
            try:
                rank = Rank(
                    work, network.group(work.rank, pairs), _Reports(work.rank, collector.hear, lock), board, time.perf_counter
                )
                results[work.rank] = rank.run()
            except BaseException as error:  # the test's to see
                errors[work.rank] = error
            network.leave(failed=work.rank in errors)

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
