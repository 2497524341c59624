"""Torch's pipeline runtime, with what would go wrong in it unseen put right or refused, and its operations recorded.

All that ppedu knows of the insides of torch.distributed.pipelining stands here.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ppedu.core.costs import Costs
from ppedu.core.operations import Action, Entry, Kind
from ppedu.core.schedule import Schedule
from ppedu.runtime.model.shapes import explained
from ppedu.runtime.rank.stage import LossFn, checked_loss
from ppedu.runtime.rank.timers import Moment, sleep_until

_NONE = (
    "to_torch hands a schedule to torch.distributed.pipelining's runtime for orders of any kind, and torch "
    f"{torch.__version__} has none that it knows ({{}}). Install torch>=2.6,<2.15, or run the schedule by ppedu.train"
)
try:
    from torch.distributed.pipelining import PipelineStage, schedules
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
except ImportError as error:
    raise ImportError(_NONE.format(error)) from error
_USED = {
    _PipelineScheduleRuntime: "_load_csv _maybe_compute_loss _maybe_get_loss _update_losses _merge_outputs",
    PipelineStage: "forward_one_chunk backward_one_chunk backward_weight_one_chunk forward_maybe_with_nosync",
}
for _owner, _names in _USED.items():
    for _name in _names.split():
        if not hasattr(_owner, _name):
            raise ImportError(_NONE.format(f"{_owner.__name__} is without {_name}"))

HAS_PAIRS = hasattr(schedules, "OVERLAP_F_B")
LOGGER = schedules.__name__
LEARNING_SHAPES = -100  # where a rank is on its heartbeat, besides the places of heartbeat.py


class Track:
    """What one rank does and when, entry by entry: it must be `order`. Under a `pace`, entries last as long as that says.

    order: None takes what comes (for torch's own schedules, and evaluation). publish: told the step, and where it is in it.
    """

    def __init__(
        self, order: Sequence[Entry] | None = None, pace: Costs | None = None,
        publish: Callable[[int, int], None] = lambda step, at: None,
    ) -> None:  # fmt: skip
        self.order, self.pace, self.publish = order, pace, publish
        self.step = -1
        self.busy = False  # computing, not waiting: between the two halves of a pair torch may wait

    def start_step(self) -> None:
        self.step += 1
        self.moments: list[Moment] = []
        self.ran: list[Entry] = []
        self.left: list[Action] = []
        self.put(0)

    def put(self, at: int) -> None:
        self.publish(self.step, at)

    def begin(self, action: Action) -> None:
        if not self.left:
            at = len(self.ran)
            entry: Entry | None = action
            if self.order is not None:
                entry = self.order[at] if at < len(self.order) else None
            if entry is None or entry.actions[0] != action:
                raise RuntimeError(f"torch ran {action} as number {at} of its rank, where the order has {entry}")
            now = time.perf_counter()
            self.moments.append(Moment(now, now, now))
            self.ran.append(entry)
            self.left = list(entry.actions)
            self.put(2 * at + 1)
        if self.left[0] != action:
            raise RuntimeError(f"torch ran {action} where the order has {self.left[0]}")
        self.busy = True

    def end(self) -> None:
        moment, self.busy = self.moments[-1], False
        moment.computed = time.perf_counter()
        self.left.pop(0)
        if not self.left:
            if self.pace is not None:
                sleep_until(moment.start + self.pace.duration(self.ran[-1]), time.perf_counter)
            moment.end = time.perf_counter()
            self.put(2 * len(self.ran))


class _Enter(torch.autograd.Function):
    """A received tensor, no leaf any more: a first layer that works in place may write over it, as in the unsplit model."""

    @staticmethod
    def forward(ctx: Any, received: Tensor) -> Tensor:
        return received.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Stage(PipelineStage):
    """Torch's stage, with what would go wrong in it unseen put right or refused, and its operations recorded."""

    track: Track
    buffers: Sequence[tuple[Tensor, Tensor]] = ()  # and what they were before torch learned shapes

    def _prepare_forward_infra(self, *args: Any, **rest: Any) -> Any:
        """Torch runs the stage once on made-up numbers to learn shapes: buffers (BatchNorm's means) must not keep them."""
        self.buffers = [(b, b.clone()) for b in self.submod.buffers()]
        return super()._prepare_forward_infra(*args, **rest)

    def _restore_buffers(self) -> None:
        with torch.no_grad():
            for buffer, before in self.buffers:
                buffer.copy_(before)
        self.buffers = []

    def _compute_outputs(self, *args: Any, **rest: Any) -> Any:
        self.track.put(LEARNING_SHAPES)
        if not self.is_first:
            with torch.no_grad():
                args[0].zero_()  # uninitialised memory, which may be no index of an embedding, or not finite
        output = self._passed_on(super()._compute_outputs, *args, **rest)
        self.track.put(0)
        return output

    def forward_maybe_with_nosync(self, *args: Any, **rest: Any) -> Any:
        return self._passed_on(super().forward_maybe_with_nosync, *args, **rest)

    def _passed_on(self, forward: Callable[..., Any], *args: Any, **rest: Any) -> Tensor:
        received = args[0]
        if isinstance(received, Tensor) and received.requires_grad:
            args = (_Enter.apply(received), *args[1:])  # type: ignore[no-untyped-call]
        with explained(self.stage_index, self.submod, received):
            output = forward(*args, **rest)
        if not isinstance(output, Tensor):
            raise TypeError(f"a stage passes on one tensor, but this one returned {type(output).__name__}")
        if self.is_last:
            return output
        if self.has_backward and output.is_floating_point() and not output.requires_grad:
            # Or the next stage's input would need no gradient, and torch's I and W would leave its weights without theirs.
            return output.detach().requires_grad_()
        return output.clone() if output._is_view() else output  # torch detaches it in place after I; a view cannot be

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **rest: Any) -> Any:
        self._restore_buffers()
        self._begin(Kind.F, fwd_chunk_id)
        try:
            output = super().forward_one_chunk(fwd_chunk_id, *args, **rest)
        except RuntimeError as error:
            if error.__cause__ is None:
                raise
            raise error.__cause__ from None  # the layer's own, out of torch's wrapping
        if not (self.is_last and self.has_backward):  # else its loss ends it
            self.track.end()
        return output

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: Any = False
    ) -> None:
        split = not full_backward and not self.is_first and self.has_backward
        if split and not any(t.requires_grad for t in self.fwd_cache[bwd_chunk_id][1]):
            raise ValueError(
                f"stage {self.stage_index} gets whole numbers, through which no gradient passes, and torch would leave its "
                "weights without one where I and W are apart. Take B there, or let the first stage have this layer too"
            )
        self._begin(Kind.B if full_backward else Kind.I, bwd_chunk_id)
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        self.track.end()

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **rest: Any) -> None:
        self._begin(Kind.W, bwd_chunk_id)
        super().backward_weight_one_chunk(bwd_chunk_id, *args, **rest)
        self.track.end()

    def get_local_bwd_output(self, mb_index: int) -> Any:
        """Without a backward (`eval`) there is nothing to pass between two stages on one rank, where torch stops."""
        return super().get_local_bwd_output(mb_index) if self.has_backward else ()  # type: ignore[no-untyped-call]

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)

    def _begin(self, kind: Kind, microbatch: int) -> None:
        self.track.begin(Action(self.stage_index, kind, microbatch))


class LossOf:
    """The loss, checked as `train` checks it; it is the end of the last stage's forward."""

    def __init__(self, loss_fn: LossFn, track: Track) -> None:
        self.loss_fn, self.track = loss_fn, track

    def __call__(self, outputs: Tensor, targets: Any) -> Tensor:
        loss = checked_loss(self.loss_fn, outputs, targets)
        if loss._is_view():
            loss = loss.clone()  # torch detaches it in place after I
        if self.track.busy:  # not where torch only learns shapes
            self.track.end()
        return loss


class Runtime(_PipelineScheduleRuntime):
    """Torch's runtime. Losses and outputs, which it numbers as they come, have their microbatch's place."""

    def __init__(self, schedule: Schedule, stages: Sequence[Stage], loss_fn: LossFn, track: Track) -> None:
        self._track = track
        super().__init__(list(stages), schedule.num_microbatches, loss_fn=loss_fn)  # type: ignore[no-untyped-call]
        last = schedule.num_stages - 1
        order = schedule.orders[schedule.rank_of_stage[last]]
        forwards = [a.microbatch for e in order for a in e.actions if (a.stage, a.kind) == (last, Kind.F)]
        self._places = sorted(range(len(forwards)), key=forwards.__getitem__)
        self._found: dict[int, Tensor] = {}
        self._shapes: dict[str, Any] = {}
        with tempfile.TemporaryDirectory(prefix="ppedu-") as folder:
            path = Path(folder) / "order.csv"
            path.write_text(schedule.to_csv(), "utf-8")
            self._load_csv(str(path), format="compute_only")

    def step(self, *args: Any, target: Any = None, **rest: Any) -> Any:
        for what, tensors in (("inputs", args[:1]), ("targets", () if target is None else (target,))):
            for tensor in tensors:
                check_cut(len(tensor), self._n_microbatches)
                check_same(tuple(tensor.shape), self._shapes.setdefault(what, tuple(tensor.shape)))
        self._found.clear()
        self._track.start_step()
        return super().step(*args, target=target, **rest)

    def _maybe_compute_loss(self, stage: Any, output: Any, target_mbs: Any, mb_index: int, *rest: Any) -> None:
        super()._maybe_compute_loss(stage, output, target_mbs, mb_index, *rest)  # type: ignore[no-untyped-call]
        if self._internal_losses:
            self._found[mb_index] = self._internal_losses.pop()

    def _maybe_get_loss(self, stage: Any, mb_index: int) -> Tensor | None:
        return self._found.get(mb_index) if stage.is_last else None

    def _update_losses(self, stages: Any, losses: Any) -> None:
        self._internal_losses[:] = [loss for _, loss in sorted(self._found.items())]
        self._found.clear()
        super()._update_losses(stages, losses)  # type: ignore[no-untyped-call]

    def _merge_outputs(self, output_chunks: list[Any]) -> Any:
        return super()._merge_outputs([output_chunks[place] for place in self._places])


def runtime_of(
    schedule: Schedule,
    modules: dict[int, nn.Module] | dict[int, nn.Sequential],
    loss_fn: LossFn,
    device: torch.device,
    group: dist.ProcessGroup | None,
    track: Track,
) -> Runtime:
    stages = [Stage(modules[s].to(device), s, schedule.num_stages, device, group=group) for s in sorted(modules)]
    for stage in stages:
        stage.track = track
    return Runtime(schedule, stages, LossOf(loss_fn, track), track)


def check_cut(samples: int, m: int) -> None:
    if samples % m:
        raise ValueError(
            f"torch's runtime fixes the shape of a microbatch once and for all, so that a batch is cut into equal parts, but "
            f"{samples} samples are no multiple of m={m}. Take {samples // m * m or m} samples, or ppedu.train, "
            "whose microbatches may differ by one"
        )


def check_same(found: Any, first: Any) -> None:
    if found != first:
        raise ValueError(
            f"torch's runtime fixes the shape of a batch in its first step: it was {first} there, and is {found} now. "
            "Give batches of one shape, or take ppedu.train"
        )
