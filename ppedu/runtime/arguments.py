"""What `ppedu.train` is called with, checked before anything starts: each refusal says the rule, what came, and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ppedu.core.checks import is_whole, whole
from ppedu.core.costs import Costs
from ppedu.core.schedule import Schedule
from ppedu.runtime.model.batches import Data, batch_of, check_batch
from ppedu.runtime.model.shapes import check_fit
from ppedu.runtime.processes.pickling import dumps
from ppedu.runtime.rank.job import Work

ENGINES = ("ppedu", "torch")


def check_order_and_loss(schedule: Any, loss_fn: Any) -> None:
    if not isinstance(schedule, Schedule):
        raise TypeError(f"a schedule is what ppedu.gpipe(p=4, m=8) and the like return: schedule={schedule!r:.80}")
    if not callable(loss_fn):
        raise TypeError(f"loss_fn is a function (outputs, targets) -> loss: loss_fn={loss_fn!r:.80}")


def check_training(schedule: Schedule, data: Any, optimizer: Any, steps: Any, device: Any, pace: Any) -> None:
    whole("steps", steps)
    if optimizer is not None and not callable(optimizer):
        raise TypeError(
            "optimizer is a function from parameters to an optimizer, because each rank makes its own: "
            f"lambda w: torch.optim.SGD(w, lr=0.1). Got {type(optimizer).__name__}"
        )
    if not callable(data) and not (isinstance(data, Sequence) and len(data)):
        raise TypeError(
            "data is a list of (inputs, targets) batches, at least one, or a function of the step. "
            f"Of what goes round, such as a DataLoader, take list(...). Got {type(data).__name__}"
        )
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is 'auto', 'cpu' or 'cuda': device={device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda', but torch sees no GPU here. Take device='auto' or 'cpu'")
    if pace is not None:
        if not isinstance(pace, Costs):
            raise TypeError(f"pace is ppedu.Costs(forward=..., backward=...) in seconds: pace={pace!r:.80}")
        pace.check(schedule)


def check_options(seed: Any, timeout: Any, progress: Any, stop: Any, engine: Any) -> None:
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise ValueError(f"timeout is a number of seconds above 0: timeout={timeout!r}")
    if not is_whole(seed) or abs(seed) >= 2**62:  # each rank adds its number
        raise ValueError(f"seed is a whole number between -2^62 and 2^62: seed={seed!r:.80}")
    if not isinstance(progress, bool) and not callable(progress):
        raise TypeError(f"progress is True, False or a function (steps done, steps, loss): progress={progress!r:.80}")
    if stop is not None and not callable(getattr(stop, "is_set", None)):
        raise TypeError(f"stop is a threading.Event: stop={stop!r:.80}")
    if engine not in ENGINES:
        raise ValueError(f"engine is 'ppedu' or 'torch': engine={engine!r:.80}")


def check_layers(schedule: Schedule, layers: Sequence[nn.Module]) -> None:
    """Of one stage a rank, the split says it as well."""
    n = schedule.chain_length
    if n != schedule.num_ranks and n > len(layers):
        raise ValueError(
            f"{schedule.label} has {n} stages, of at least one layer each, but the model has {len(layers)} layers. "
            "Take a smaller p or v, a schedule with one stage a rank, or a model with more layers"
        )


def check_data(data: Data, schedule: Schedule, stages: Sequence[nn.Module]) -> None:
    m = schedule.num_microbatches
    for step in range(1 if callable(data) else len(data)):
        inputs, targets = batch_of(data, step)
        check_batch(inputs, targets, m)
        if step == 0:
            check_fit(stages, inputs[: -(-len(inputs) // m)], schedule)


def check_sendable(works: Sequence[Work]) -> None:
    """All that ranks need goes to them by value: say what cannot, before any of them starts."""
    job, data = works[0].job, next(work.data for work in works if work.data is not None)
    parts: dict[str, Any] = {"loss_fn": job.loss_fn, "optimizer": job.optimizer}
    if callable(data):
        parts["data"] = data
    parts |= {f"stage {s}": module for work in works for s, module in work.modules.items()}
    for name, part in parts.items():
        try:
            dumps(part)
        except Exception as error:
            remedy = "Keep open files, locks, generators and the like out of it, or make them inside the function"
            if "parametrized modules" in str(error):  # weight_norm, spectral_norm, orthogonal
                remedy = (
                    "Make such a layer plain first, by torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight'), "
                    "or leave the parametrization out"
                )
            raise TypeError(
                f"{name} cannot be sent to another process ({type(error).__name__}: {error}). {remedy}"
            ) from error
