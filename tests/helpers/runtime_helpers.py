"""What the tests of the runtime share. Ranks import it too (models and losses go to them by name), so it stays light."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ppedu.core.operations import Action, Entry, Kind
from ppedu.core.schedule import Schedule
from ppedu.runtime.processes.launch import run_ranks
from ppedu.runtime.processes.rank_main import Context
from ppedu.runtime.processes.watch import Place

F, B = Kind.F, Kind.B
Batch = tuple[Tensor, Tensor]


# schedules


def backwards_reversed(p: int, m: int) -> Schedule:
    """The last rank takes the microbatches in reverse, the others as they come: legal, but an unusual need."""
    forwards = [Action(p - 1, F, i) for i in range(m)]
    last: list[Entry] = [*reversed(forwards), *(Action(p - 1, B, i) for i in range(m))]
    others = [[Action(r, k, i) for k in (F, B) for i in range(m)] for r in range(p - 1)]
    return Schedule("reversed", m, tuple(range(p)), tuple(map(tuple, [*others, last])))


# training


def mse(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs, targets)


def momentum(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.05, momentum=0.9)


def batch(samples: int, inputs: int, outputs: int, seed: int = 0) -> Batch:
    """Random numbers, float64."""
    g = torch.Generator().manual_seed(seed)
    return (
        torch.randn(samples, inputs, generator=g, dtype=torch.float64),
        torch.randn(samples, outputs, generator=g, dtype=torch.float64),
    )


def layers(*widths: int, seed: int = 0) -> nn.Sequential:
    """Linear and Tanh in turn, float64; a Tanh has no weights, so that some stages have none. Ends in a Linear."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found: list[nn.Module] = []
        for a, b in pairwise(widths):
            found += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*found[:-1]).double()


class Plain:
    """What single-process training of a copy of `model` on whole batches gives."""

    def __init__(
        self,
        model: nn.Module,
        data: Sequence[Batch] | Callable[[int], Batch],
        loss_fn: Callable[[Any, Any], Tensor],
        optimizer: Callable[[Any], torch.optim.Optimizer] | None,
        steps: int,
        forward: Callable[[nn.Module, Tensor], Tensor] = lambda model, x: model(x),
    ) -> None:
        self.model = copy.deepcopy(model)
        made = optimizer([w for w in self.model.parameters() if w.requires_grad]) if optimizer else None
        self.losses: list[float] = []
        for step in range(steps):
            inputs, targets = data(step) if callable(data) else data[step % len(data)]
            self.model.zero_grad()
            loss = loss_fn(forward(self.model, inputs.clone()), targets)
            loss.backward()
            self.losses.append(loss.item())
            if made:
                made.step()
        self.gradients = {n: w.grad for n, w in self.model.named_parameters() if w.grad is not None}
        self.state = dict(self.model.state_dict())


def assert_close(found: Tensor, wanted: Tensor, what: str, tolerance: float = 1e-12) -> None:
    """Equal to a part in 10^12 of the tensor's largest number."""
    assert found.shape == wanted.shape, what
    assert found.dtype == wanted.dtype, what
    assert torch.isfinite(found).all(), what
    worst = (found - wanted).abs().max().item() if wanted.numel() else 0.0
    scale = wanted.abs().max().item() if wanted.numel() else 0.0
    assert worst <= tolerance * scale, f"{what}: off by {worst} where the largest is {scale}"


def assert_equal_training(
    losses: Sequence[float], gradients: dict[str, Tensor], state: dict[str, Tensor], plain: Plain
) -> None:
    """Losses, every gradient and the weights afterwards are those of plain training."""
    assert len(losses) == len(plain.losses)
    for step, (loss, wanted) in enumerate(zip(losses, plain.losses, strict=True)):
        assert abs(loss - wanted) <= 1e-12 * abs(wanted), f"loss of step {step}: {loss} for {wanted}"
    assert gradients.keys() == plain.gradients.keys()
    for name, gradient in gradients.items():
        assert_close(gradient, plain.gradients[name], f"gradient of {name}")
    assert state.keys() == plain.state.keys()
    for name, tensor in state.items():
        assert_close(tensor, plain.state[name], name)


# ranks that run something else than ppedu.train


def in_ranks(main: Callable[[Any, Context], Any], works: Sequence[Any], timeout: float = 30) -> list[Any]:
    """Run main(work, context) in one process per work, joined in a world of gloo."""
    now = time.perf_counter()
    return run_ranks(
        main, works, lambda *_: Place("runs a test", None, None, False, now), lambda *_: None, timeout=timeout
    )


def pipelining_rank(work: Any, context: Context) -> list[Any]:
    """Train under torch.distributed.pipelining: for each case (name, m) losses, gradients and weights of this stage, or
    the text with which it refuses."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    stage, data, cases, steps = work
    rank, size = context.rank, context.size
    results: list[Any] = []
    for name, m in cases:
        module = copy.deepcopy(stage)
        kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[name]
        weights = list(module.parameters())
        optimizer = momentum(weights) if weights else None
        losses: list[float] = []
        try:
            pipe = PipelineStage(module, rank, size, torch.device("cpu"))
            schedule = kind(pipe, m, loss_fn=mse)  # scale_grads, on by default, makes the sum a mean
        except ValueError as error:
            results.append(str(error))
            continue
        for step in range(steps):
            module.zero_grad()
            inputs, targets = data[step]
            first, last = rank == 0, rank == size - 1
            parts: list[Tensor] = []
            given = {"target": targets, "losses": parts} if last else {}
            schedule.step(*([inputs] if first else []), **given)
            losses += [torch.stack(parts).mean().item()] if last else []
            if optimizer:
                optimizer.step()
        gradients = {n: w.grad for n, w in module.named_parameters()}
        results.append({"losses": losses, "gradients": gradients, "state": dict(module.state_dict())})
    return results
