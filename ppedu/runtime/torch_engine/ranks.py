"""The ranks of train_with_torch: fresh processes as those of `train`, in which torch's runtime runs the order."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from threading import Event
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ppedu.core.schedule import Schedule
from ppedu.runtime.model.batches import batch_of, check_batch
from ppedu.runtime.processes import world
from ppedu.runtime.processes.launch import Mouth, Place, run_ranks
from ppedu.runtime.rank.channels import machine_id
from ppedu.runtime.rank.heartbeat import PLACES, RETURNING, STARTING, STEPPING, WAITING, Board
from ppedu.runtime.rank.job import RankResult, StepReport, Work, made_optimizer
from ppedu.runtime.run import available_cores
from ppedu.runtime.torch_engine.runtime import LEARNING_SHAPES, LOGGER, Runtime, Track, runtime_of


def works_of(
    schedule: Schedule, stages: Sequence[nn.Module], names: Any, loss_fn: Any, optimizer: Any, data: Any, steps: int,
    pace: Any, gradients: bool, seed: int,
) -> list[Work]:  # fmt: skip
    threads = 1 if pace else max(1, available_cores() // schedule.num_ranks)
    ends = {schedule.rank_of_stage[0], schedule.rank_of_stage[-1]}
    works = []
    for rank in range(schedule.num_ranks):
        mine = [s for s, r in enumerate(schedule.rank_of_stage) if r == rank]
        works.append(
            Work(
                rank=rank, schedule=schedule, program=(), modules={s: stages[s] for s in mine},
                names={s: names[s] for s in mine}, loss_fn=loss_fn, optimizer=optimizer,
                data=data if rank in ends else None, steps=steps, pace=pace, gradients=gradients, threads=threads, seed=seed,
            )
        )  # fmt: skip
    return works


def launched(works: Sequence[Work], hear: Any, timeout: float, stop: Event | None) -> list[RankResult]:
    schedule = works[0].schedule

    def where(cells: Sequence[float], rank: int) -> Place:
        return _place(schedule, rank, *Board.read(cells, rank))

    with world.Rendezvous(len(works)) as meeting:
        starts = world.starts_of(works, set(), (), "cpu", meeting.path, timeout)
        results: list[RankResult] = run_ranks(
            _train_started, starts, Board.blank(len(works)), where=where, on_message=hear, timeout=timeout, stop=stop
        )
    return results


def _place(schedule: Schedule, rank: int, step: int, at: int, since: float) -> Place:
    """What a rank is doing, in words: torch's runtime says when it computes, and all else is waiting."""
    shown, order = (step if step >= 0 else None), schedule.orders[rank]
    if at == LEARNING_SHAPES:
        return Place("runs its stage once to learn shapes", None, shown, False, since)
    if at < 0:
        return Place(f"is {PLACES[at]}", None, shown, at in WAITING, since)
    if at // 2 >= len(order):
        return Place("waits for its last messages to leave", None, shown, True, since)
    action = schedule.short(order[at // 2])
    if at % 2:
        return Place(f"computes {action}", action, shown, False, since)
    return Place(f"waits in torch's runtime for what {action} needs", None, shown, True, since)


def _train_started(mouth: Mouth, cells: Any, start: world.Start) -> RankResult:
    """The work of a rank in a fresh process."""
    board = Board(cells, start.rank)
    logging.getLogger(LOGGER).setLevel(logging.CRITICAL)  # who fails is reported once, by the parent
    work, _, _ = world.enter(start, board)
    board.put(-1, STARTING)
    track = Track(work.schedule.orders[work.rank], work.pace, board)
    with world.lost_peer_marked(lambda: not track.busy):
        return _train(work, track, board, lambda report: mouth.say("step", report))


def _train(work: Work, track: Track, board: Board, report: Callable[[StepReport], None]) -> RankResult:
    runtime = runtime_of(work.schedule, work.modules, work.loss_fn, torch.device("cpu"), None, track)
    weights = [w for module in work.modules.values() for w in module.parameters() if w.requires_grad]
    optimizer = made_optimizer(work.optimizer, weights) if work.optimizer and weights else None
    torch.manual_seed(work.seed + work.rank)
    for step in range(work.steps):
        track.start_step(step)
        for module in work.modules.values():
            module.zero_grad(set_to_none=True)
        done = _step(work, runtime, step)
        done.moments = track.moments
        stop = torch.tensor([float(done.not_finite is not None)], device="cpu")
        dist.broadcast(stop, src=work.schedule.rank_of_stage[-1])
        if optimizer and not stop.item():
            board.put(step, STEPPING)
            optimizer.step()
        report(done)
        if stop.item():
            break
    board.put(step, RETURNING)
    return _result(work)


def _step(work: Work, runtime: Runtime, step: int) -> StepReport:
    ends = [s in work.modules for s in (0, work.schedule.num_stages - 1)]
    inputs = targets = None
    if work.data is not None:
        inputs, targets = batch_of(work.data, step)
        check_batch(inputs, targets, work.schedule.num_microbatches)
    losses: list[Tensor] = []
    runtime.step(*([inputs] if ends[0] else []), target=targets if ends[1] else None, losses=losses)
    if not ends[1]:
        return StepReport(step, [])
    values = [loss.item() for loss in losses]
    bad = next(((i, value) for i, value in enumerate(values) if not math.isfinite(value)), None)
    return StepReport(step, [], sum(value / len(values) for value in values), bad)


def _result(work: Work) -> RankResult:
    tensors: dict[str, Tensor] = {}
    gradients: dict[str, Tensor] = {}
    for s, module in work.modules.items():
        for local, tensor in (*module.named_parameters(), *module.named_buffers()):
            name = work.names[s][local]
            tensors[name] = tensor.detach()
            if work.gradients and tensor.grad is not None:
                gradients[name] = tensor.grad
    size = sum(w.nbytes for module in work.modules.values() for w in module.parameters())
    return RankResult(
        tensors=tensors, gradients=gradients, peak_activation_bytes=0, peak_device_bytes=None, device="CPU", backend="gloo",
        parameter_bytes=size, unsplit=(), machine=machine_id(), cores=available_cores(),
    )  # fmt: skip
