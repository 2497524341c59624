"""Do two stages fit? What the one sends against what the other can take, before training where that can be known."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ppedu.runtime.errors import RunError
from ppedu.runtime.launch import failure_of, failure_text
from ppedu.schedule import Schedule

_ABOUT_SHAPES = re.compile(r"shape|size|dtype|dimension|match|multiplied|expected|type|channels", re.IGNORECASE)
_KNOWN = ("torch.nn.modules.", "ppedu.models", "ppedu.runtime.split")


def tensor_text(shape: Sequence[int], dtype: torch.dtype) -> str:
    """'(4, 8) float32'"""
    return f"{tuple(shape)} {str(dtype).removeprefix('torch.')}"


def misfit(stage: int, module: nn.Module, inputs: Tensor, error: BaseException) -> str | None:
    """A sentence where a stage failed because its first layer cannot take what came in, else None."""
    if not isinstance(error, RuntimeError | TypeError | ValueError | IndexError) or not _ABOUT_SHAPES.search(str(error)):
        return None
    layers = list(module.children()) if isinstance(module, nn.Sequential) else [module]
    if not layers or _failing(module, error) is not layers[0]:
        return None
    weight = next(layers[0].parameters(), None)
    has = "" if weight is None else f", whose first weight is {tensor_text(weight.shape, weight.dtype)}"
    takes = f"stage {stage} begins with {_outline(layers[0])}{has}"
    came = tensor_text(inputs.shape, inputs.dtype)
    if stage == 0:
        return f"the batch does not fit stage 0: a microbatch of inputs is {came}, but {takes}"
    return (
        f"stages {stage - 1} and {stage} do not fit: stage {stage - 1} sends {came}, but {takes}. "
        f"Make the last layer of stage {stage - 1} return what the first layer of stage {stage} takes"
    )


def _failing(module: nn.Module, error: BaseException) -> nn.Module | None:
    """Which of the stage's layers raised: read from the stack, where nn.Sequential calls its layers one by one."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_locals.get("self") is module and frame.f_code.co_name == "forward":
            layer = frame.f_locals.get("module")
            return layer if isinstance(layer, nn.Module) else None
    return None


def _outline(layer: nn.Module) -> str:
    text = repr(layer)
    return text if "\n" not in text else type(layer).__name__


def check_fit(stages: Sequence[nn.Module], inputs: Tensor, schedule: Schedule) -> None:
    """Send shapes, not numbers, through all stages; raise RunError where two do not fit.

    Only for models of torch's own layers and the course's: those of others may print or count, so they run once, for real.
    """
    modules = [m for stage in stages for m in stage.modules()]
    if not all(type(m).__module__.startswith(_KNOWN) and not m._forward_hooks and not m._forward_pre_hooks for m in modules):
        return
    passing = inputs.to("meta")
    for number, stage in enumerate(stages):
        state = {name: t.to("meta") for name, t in (*stage.named_parameters(), *stage.named_buffers())}
        try:
            with torch.no_grad():
                result = torch.func.functional_call(stage, state, (passing,))
        except Exception as error:  # whatever it is, it is known better when it runs for real - but for a misfit
            text = misfit(number, stage, passing, error)
            if text is None:
                return
            rank, trace = schedule.rank_of_stage[number], failure_text(failure_of(error))
            action = "F0" if schedule.one_stage_per_rank else f"{number}F0"
            raise RunError(
                f"{text}.\nNothing was started. Rank {rank} would fail in {action}:\n\n{trace}",
                rank=rank, action=action, step=0, traceback=trace,
            ) from None  # fmt: skip
        if not isinstance(result, Tensor):
            return
        passing = result
