"""How a tensor gets from rank to rank.

A channel joins an ordered pair of ranks and keeps its order; receives are posted at most two ahead, so that transfers
hide behind compute and memory stays what the schedule promises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from ppedu.core.operations import Action, Kind
from ppedu.runtime.rank.group import DATA, HEADER, STAMP, Group, index_in_pair
from ppedu.runtime.rank.lower import Instruction, Program, Recv, Send

AHEAD = 2  # receives posted before they are needed, per channel
_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
_MAX_DIMS = 8

Shape = tuple[torch.Size, torch.dtype]
Form: TypeAlias = tuple[int, int]
"""What the shape of a stage's output depends on: (samples in the microbatch, number of the shape of its samples)."""


@dataclass(slots=True)
class Outbox:
    """The sending end of one channel."""

    group: Group
    to: int
    announced: dict[tuple[int, Form], Shape] = field(default_factory=dict)  # (stage, form) -> shape that is known there
    pending: deque[list[tuple[Any, Tensor]]] = field(default_factory=deque)  # each tensor, its header and its stamp
    gone: int = 0  # tensors of this step that have arrived

    def send(self, action: Action, tensor: Tensor, form: Form, stamp: float | None) -> None:
        """Start to send; the tensor is kept until it is gone. `stamp`: when it was computed, where the receiver asks."""
        tensor = tensor.contiguous().resolve_conj().resolve_neg()  # what travels is memory, not what torch makes of it
        parts = []
        if action.kind is Kind.F and self._is_news(action, tensor, form):
            parts.append(self._start(self.group.control, _header(tensor), HEADER))
        if self.group.through_host:
            tensor = tensor.to("cpu")
        parts.append(self._start(self.group.data[self.group.rank, self.to], _wire(self.group, tensor), DATA))
        if stamp is not None:
            number = torch.tensor([stamp], dtype=torch.float64, device="cpu")
            parts.append(self._start(self.group.control, number, STAMP))
        self.pending.append(parts)
        while self.pending and all(work.is_completed() for work, _ in self.pending[0]):
            self._let_go()

    def _is_news(self, action: Action, tensor: Tensor, form: Form) -> bool:
        """The receiver does not know the shape yet. Raises ValueError where it knows another one."""
        shape = tensor.shape, tensor.dtype
        known = self.announced.setdefault((action.stage, form), shape)
        if known != shape:
            raise ValueError(
                f"the shape of what a stage passes on may depend on the shape of its inputs only, but stage {action.stage} "
                f"passed on {tuple(known[0])} {known[1]} before, and now {tuple(shape[0])} {shape[1]} for inputs alike"
            )
        return known is shape

    def _start(self, via: dist.ProcessGroup, tensor: Tensor, tag: int) -> tuple[Any, Tensor]:
        to = self.to if via is self.group.control else index_in_pair(self.to, self.group.rank)
        return via.send([tensor], to, tag), tensor

    def release(self, count: int) -> None:
        """The first `count` tensors of this step have arrived: let go of them. (Gloo does not say so by itself.)"""
        while self.gone < count:
            self._let_go()

    def flush(self) -> None:
        while self.pending:
            self._let_go()
        self.gone = 0

    def _let_go(self) -> None:
        for work, _ in self.pending.popleft():
            work.wait()
        self.gone += 1


@dataclass(slots=True)
class Inbox:
    """The receiving end of one channel: `sequence` is what arrives in a step, in order."""

    group: Group
    source: int
    sequence: Sequence[Action]
    shapes: dict[tuple[int, Kind, Form], Shape]  # (stage, F or B, form) -> what arrives
    stamped: bool
    forms: Sequence[Form] = ()
    taken: int = 0
    posted: deque[tuple[Any, Tensor, Any, Tensor | None]] = field(default_factory=deque)

    def start(self, forms: Sequence[Form]) -> None:
        """A new step, with a form for each microbatch."""
        self.forms, self.taken = forms, 0
        self.post()

    def post(self) -> None:
        """Post receives whose shape is known, up to AHEAD of what was taken."""
        while (nxt := self.taken + len(self.posted)) < min(len(self.sequence), self.taken + AHEAD):
            shape = self.shapes.get(self._key(self.sequence[nxt]))
            if shape is None:
                return
            self._post_one(shape)

    def take(self) -> tuple[Tensor, float | None]:
        """Wait for the next tensor: (tensor on this rank's device, when it was computed)."""
        if not self.posted:
            key = self._key(self.sequence[self.taken])
            if key not in self.shapes:
                self.shapes[key] = self._receive_header()
            self._post_one(self.shapes[key])
        work, tensor, stamp_work, stamp = self.posted.popleft()
        self.taken += 1
        work.wait()
        if stamp_work is not None:
            stamp_work.wait()
        if self.group.through_host:
            tensor = tensor.to(self.group.device)
        return tensor, None if stamp is None else stamp.item()

    def _key(self, action: Action) -> tuple[int, Kind, Form]:
        return action.stage, Kind.F if action.kind is Kind.F else Kind.B, self.forms[action.microbatch]

    def _post_one(self, shape: Shape) -> None:
        via = self.group.data[self.source, self.group.rank]
        here = "cpu" if self.group.through_host else self.group.device
        tensor = torch.empty(shape[0], dtype=shape[1], device=here)
        source = self.source if via is self.group.control else index_in_pair(self.source, self.group.rank)
        work = via.recv([_wire(self.group, tensor)], source, DATA)
        stamp = torch.empty(1, dtype=torch.float64, device="cpu") if self.stamped else None
        stamp_work = self.group.control.recv([stamp], self.source, STAMP) if stamp is not None else None
        self.posted.append((work, tensor, stamp_work, stamp))

    def _receive_header(self) -> Shape:
        header = torch.empty(2 + _MAX_DIMS, dtype=torch.int64, device="cpu")
        self.group.control.recv([header], self.source, HEADER).wait()
        dtype, dims, *shape = header.tolist()
        return torch.Size(shape[:dims]), _DTYPES[dtype]


def _wire(group: Group, tensor: Tensor) -> Tensor:
    """What goes over the channel: NCCL gets bytes, for it does not know all of torch's dtypes."""
    return tensor.reshape(-1).view(torch.uint8) if group.backend == "nccl" else tensor


def _header(tensor: Tensor) -> Tensor:
    if tensor.dtype not in _DTYPES or tensor.dim() > _MAX_DIMS:
        raise TypeError(
            f"a stage passes on a tensor of at most {_MAX_DIMS} dimensions and a plain dtype, "
            f"but this one has {tensor.dim()} dimensions and dtype {tensor.dtype}"
        )
    shape = [*tensor.shape, *(0,) * (_MAX_DIMS - tensor.dim())]
    return torch.tensor([_DTYPES.index(tensor.dtype), tensor.dim(), *shape], dtype=torch.int64, device="cpu")


class Channels:
    """All channels of one rank, as its program needs them."""

    def __init__(self, group: Group, program: Sequence[Instruction], stamped: bool) -> None:
        self.group, self.stamped = group, stamped
        self.shapes: dict[tuple[int, Kind, Form], Shape] = {}
        self.outboxes = {i.to: Outbox(group, i.to) for i in program if isinstance(i, Send)}
        self.arrivals: dict[int, list[Recv]] = {}
        for i in program:
            if isinstance(i, Recv):
                self.arrivals.setdefault(i.source, []).append(i)
        self.inboxes = {
            source: Inbox(group, source, [i.action for i in arrivals], self.shapes, stamped)
            for source, arrivals in self.arrivals.items()
        }
        self.forms: Sequence[Form] = ()

    def learn(self, other: Channels) -> None:
        """The shapes that other channels of this rank found out."""
        self.shapes.update(other.shapes)
        for to, outbox in other.outboxes.items():
            self.outboxes[to].announced.update(outbox.announced)

    def start_step(self, forms: Sequence[Form]) -> None:
        """A new step, with a form for each microbatch."""
        self.forms = forms
        for inbox in self.inboxes.values():
            inbox.start(forms)

    def send(self, action: Action, tensor: Tensor, to: int, stamp: float | None) -> None:
        form = self.forms[action.microbatch]
        if action.kind is Kind.F and (key := (action.stage + 1, Kind.B, form)) not in self.shapes:
            self.shapes[key] = (tensor.shape, tensor.dtype)  # the gradient that comes back looks like what went
            for inbox in self.inboxes.values():
                inbox.post()
        self.outboxes[to].send(action, tensor, form, stamp if self.stamped else None)

    def take(self, source: int) -> tuple[Tensor, float | None]:
        return self.inboxes[source].take()

    def tidy(self) -> None:
        """Post the next receives, and let go of what has arrived elsewhere: work that can hide behind an operation."""
        for source, inbox in self.inboxes.items():
            inbox.post()
            if inbox.taken and source in self.outboxes:
                self.outboxes[source].release(self.arrivals[source][inbox.taken - 1].taken_there)

    def end_step(self) -> None:
        """Wait until everything sent has left: an unwaited send would hang or lose data."""
        for outbox in self.outboxes.values():
            outbox.flush()


def pairs_of(programs: Iterable[Program]) -> set[tuple[int, int]]:
    """The ordered pairs of ranks that talk."""
    return {(rank, i.to) for rank, program in enumerate(programs) for i in program if isinstance(i, Send)}
