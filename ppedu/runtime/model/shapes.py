"""Do two stages fit? What the one sends against what the other can take, before training where that can be known."""

from __future__ import annotations

import copy
import io
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ppedu.core.schedule import Schedule
from ppedu.runtime.errors import RunError
from ppedu.runtime.processes.failures import failure_of, failure_text
from ppedu.runtime.processes.interrupts import import_aside, interrupts_held

_ABOUT_SHAPES = re.compile(r"shape|size|dtype|\bdim|match|multiplied|expected|type|channels", re.IGNORECASE)
_TOO_FEW = "Expected more than 1 value per channel"  # what BatchNorm says of a microbatch of one sample
_KNOWN = ("torch.nn.modules.", "ppedu.course.models", "ppedu.runtime.model.split")


def tensor_text(shape: Sequence[int], dtype: torch.dtype) -> str:
    """'(4, 8) float32'"""
    return f"{tuple(shape)} {str(dtype).removeprefix('torch.')}"


@contextmanager
def explained(stage: int, module: nn.Module, inputs: Tensor) -> Iterator[None]:
    """Note in an error's `remark` where it means that two stages do not fit."""
    try:
        yield
    except Exception as error:
        if text := misfit(stage, inputs, error, lambda: module(inputs)):
            error.remark = text  # type: ignore[attr-defined]
        raise


def misfit(stage: int, inputs: Tensor, error: Exception, forward: Callable[[], object]) -> str | None:
    """A sentence where a stage failed because it cannot take what came in, else None.

    The stage runs once more to see which operation fails: one that meets what came in as it came, or one inside.
    """
    if (
        not isinstance(error, RuntimeError | ValueError)
        or not _ABOUT_SHAPES.search(str(error))
        or _TOO_FEW in str(error)
    ):
        return None
    layer = _where_it_fails(inputs, error, forward)
    if layer is None:
        return None
    weight = next(layer.parameters(), None)
    has = "" if weight is None else f", whose first weight is {tensor_text(weight.shape, weight.dtype)}"
    came = tensor_text(inputs.shape, inputs.dtype)
    if stage == 0:
        return f"the batch does not fit stage 0: a microbatch of inputs is {came}, but there it meets {_outline(layer)}{has}"
    return (
        f"stages {stage - 1} and {stage} do not fit: stage {stage - 1} sends {came}, but in stage {stage} it meets "
        f"{_outline(layer)}{has}. Make the last layer of stage {stage - 1} return what the first of stage {stage} takes"
    )


def _where_it_fails(inputs: Tensor, error: Exception, forward: Callable[[], object]) -> nn.Module | None:
    """The layer that cannot take what came in; None where the stage fails at something that it computed itself."""
    quiet = io.StringIO()
    trace = _Trace(inputs)
    with interrupts_held(), redirect_stdout(quiet), redirect_stderr(quiet), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.no_grad(), trace:
                forward()
        except Exception as again:
            if (type(again), str(again)) != (type(error), str(error)):
                return None
            frames = [frame for frame, _ in traceback.walk_tb(again.__traceback__)]
            layers = [frame for frame in frames if isinstance(frame.f_locals.get("self"), nn.Module)]
            layer = layers[-1].f_locals["self"] if layers else None
            checked = any(trace.came(value) for value in layers[-1].f_locals.values()) if layers else False
            refused = checked and type(layer).__module__.startswith("torch.nn.modules.")  # by its own check of shapes
            return layer if trace.blamed or refused else None
    return None


class _Trace(TorchFunctionMode):
    """Follows what came into a stage. `blamed`: an operation failed that took it as it came (or reshaped, or through
    a function of its elements), and nothing that the stage had computed from it with its weights."""

    def __init__(self, inputs: Tensor) -> None:
        super().__init__()
        self.blamed = False
        self._as_it_came: dict[int, Tensor] = {id(inputs): inputs}  # by identity; held, so that no number is used again
        self._computed: dict[int, Tensor] = {}

    def came(self, value: object) -> bool:
        return id(value) in self._as_it_came

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = list(_tensors((args, kwargs or {})))
        came = [self.came(t) for t in operands]
        computed = any(id(t) in self._computed for t in operands)
        try:
            result = func(*args, **(kwargs or {}))
        except Exception:
            self.blamed = any(came) and not computed
            raise
        if any(came) or computed:
            for tensor in _tensors(result):
                self._as_it_came.pop(id(tensor), None)
                (self._as_it_came if all(came) else self._computed)[id(tensor)] = tensor
        return result


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _outline(layer: nn.Module) -> str:
    text = repr(layer)
    return text if "\n" not in text else type(layer).__name__


def check_fit(stages: Sequence[nn.Module], inputs: Tensor, schedule: Schedule) -> None:
    """Send shapes, not numbers, through all stages; raise RunError where two do not fit.

    (Numbers after all where dtypes differ: "meta" tensors do not say which operations refuse to mix them.)
    Only for models of torch's own layers and the course's: those of others may print or count, so they run once, for real.
    """
    modules = [m for stage in stages for m in stage.modules()]
    if not all(
        type(m).__module__.startswith(_KNOWN) and not m._forward_hooks and not m._forward_pre_hooks for m in modules
    ):
        return
    tensors = [t for stage in stages for t in (*stage.parameters(), *stage.buffers())]
    device = "meta" if len({t.dtype for t in (inputs, *tensors) if t.is_floating_point()}) < 2 else "cpu"
    if device == "meta":
        import_aside("torch._dynamo")  # as torch does for some operations on that device
    passing = inputs.to(device)
    for number, original in enumerate(stages):
        try:
            stage = _copy_on(device, original)
        except Exception:  # then it cannot be sent to its rank either, which is told before long
            return
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                result = stage(passing)
        except Exception as error:  # whatever it is, it is known better when it runs for real - but for a misfit
            text = misfit(number, passing, error, partial(stage, passing))
            if text is None:
                return
            raise _not_started(text, schedule, number, failure_text(failure_of(error))) from None
        if number == len(stages) - 1:
            return
        if not isinstance(result, Tensor):
            last = _outline(list(stage.children())[-1])
            what = f"a stage passes on one tensor, but stage {number} ends with {last}, which returns {type(result).__name__}"
            raise _not_started(what, schedule, number)
        passing = result


def _copy_on(device: str, stage: nn.Module) -> nn.Module:
    """A copy whose weights and buffers are on `device`. The stage itself is not touched: not even Ctrl-C can harm it."""
    moved: dict[int, Any] = {id(b): b.detach().to(device, copy=True) for b in stage.buffers()}
    moved |= {id(w): nn.Parameter(w.detach().to(device, copy=True), requires_grad=False) for w in stage.parameters()}
    return copy.deepcopy(stage, moved)


def _not_started(text: str, schedule: Schedule, stage: int, trace: str = "") -> RunError:
    rank = schedule.rank_of_stage[stage]
    action = "F0" if schedule.one_stage_per_rank else f"{stage}F0"
    would = f"{text}.\nNothing was started. Rank {rank} would fail in {action}" + (f":\n\n{trace}" if trace else "")
    return RunError(would, rank=rank, action=action, step=0, traceback=trace)
