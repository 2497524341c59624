"""train(): check, cut, lower, start the ranks (or join the world that torchrun made), and put the results together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from threading import Event

from ppedu.core.costs import Costs
from ppedu.core.schedule import Schedule
from ppedu.runtime.arguments import (
    check_data,
    check_layers,
    check_options,
    check_order_and_loss,
    check_sendable,
    check_training,
)
from ppedu.runtime.collect import Collector, Progress, put_back
from ppedu.runtime.errors import RunError, RunStopped
from ppedu.runtime.joined import world
from ppedu.runtime.joined.join import train_joined
from ppedu.runtime.model.batches import Data
from ppedu.runtime.model.split import ModelLike, layers_of, stage_parameter_names, stages_of
from ppedu.runtime.processes.interrupts import interrupts_held
from ppedu.runtime.processes.launch import run_ranks
from ppedu.runtime.processes.rank_main import RankMain, train_rank
from ppedu.runtime.processes.watch import Place
from ppedu.runtime.rank.job import Job, MakeOptimizer, RankResult, Work, works_of
from ppedu.runtime.rank.lower import Program, lower
from ppedu.runtime.rank.stage import LossFn
from ppedu.runtime.run import Run, available_cores

PlaceOf = Callable[[Work, int, int, float], Place]
"""What a rank is doing, in words, from the numbers that it publishes."""


def train(
    model: ModelLike,
    schedule: Schedule,
    data: Data,
    loss_fn: LossFn,
    optimizer: MakeOptimizer | None = None,
    steps: int = 1,
    device: str = "auto",
    pace: Costs | None = None,
    *,
    gradients: bool = False,
    seed: int = 0,
    timeout: float = 60.0,
    progress: bool | Progress = True,
    stop: Event | None = None,
    engine: str = "ppedu",
) -> Run:
    """Train `model` for real under `schedule`, one process per rank, and measure when each operation ran.

    model: a sequence of layers (nn.Sequential, a list of modules), or what `ppedu.split` returned. Its weights (and
        buffers) hold the trained values afterwards.
    data: a list of batches (inputs, targets), gone round where `steps` ask for more, or a function of the step that
        returns one. Both tensors have the samples in their first dimension. The function is called on the first and
        on the last rank (with several chains, of each), so it returns the same batch for the same step; and once here,
        to check the batch.
    loss_fn: (outputs, targets) -> the mean over the samples. Each microbatch counts with its share of the batch, so the
        gradients equal those of the whole batch.
    optimizer: parameters -> optimizer, like `lambda w: torch.optim.SGD(w, lr=0.1)`; each rank makes one for its stage,
        and its state lives for this call. None leaves the weights as they are. Where a schedule runs two chains, each
        stage has two copies, which get the sum of both gradients after the step and stay equal as long as the optimizer
        treats each weight by itself; buffers come back from the first one.
    device: "cpu", "cuda", or "auto": one GPU per rank over NCCL where there are enough, else ranks share the GPUs and
        send through host memory over gloo, else CPU processes over gloo.
    pace: nominal seconds per operation. The mathematics run, and the operation then sleeps until its time is up, as if
        its device were that fast: how a machine with fewer cores than ranks shows what p devices do.
    gradients: keep those of the last step in the Run. seed: of torch's random numbers in rank r, plus r.
    timeout: seconds after which a rank that does not get on in one operation counts as hung.
    progress: a bar over the steps, or a function that is called with (steps done, steps, loss) after each.
    stop: an event (threading.Event); once another thread sets it, the run ends in RunStopped within a moment.
    engine: "torch" has torch.distributed.pipelining's own runtime run the order, on CPU processes that are started here. It
        takes one chain of stages, batches of one shape that are multiples of m, and a pace without `transfer`; see
        `ppedu.to_torch` for what it does otherwise, and for its use under torchrun.

    On a GPU each new shape of a microbatch is first run once, unmeasured: model and loss are called once more for it.

    Under torchrun every rank calls this, joins the world that is there, and returns its Run with the whole timeline. `stop`
    may be set on any rank, progress is told on rank 0, and a RunError is raised on every rank that is left.
    A loss that is not finite ends the run: what it measured so far is returned, `Run.stopped` says where, and the
    weights are those before that step. Raises ValueError, TypeError or ScheduleError for what cannot run, before
    anything starts, and RunError for the rank that failed, died or hung.

    >>> import ppedu, torch
    >>> layers = [torch.nn.Linear(4, 4) for _ in range(2)]
    >>> batch = torch.ones(8, 4), torch.zeros(8, 4)
    >>> sgd = lambda weights: torch.optim.SGD(weights, lr=0.1)
    >>> run = ppedu.train(layers, ppedu.one_f_one_b(p=2, m=4), [batch], torch.nn.functional.mse_loss, sgd,
    ...                   steps=2, progress=False)
    >>> run.losses[1] < run.losses[0], run.timeline.peak_in_flight
    (True, (2, 1))
    """
    check_order_and_loss(schedule, loss_fn)
    check_training(schedule, data, optimizer, steps, device, pace)
    check_options(seed, timeout, progress, stop, engine)
    programs: Sequence[Program] = lower(schedule)
    main: RankMain = train_rank
    place: PlaceOf = Work.place
    if engine == "torch":
        from ppedu.runtime.torch_engine import ranks as by_torch  # a torch without it serves all else

        by_torch.check(schedule, data, device, pace)
        device, programs, main, place = "cpu", (), by_torch.train_rank, by_torch.place
    check_layers(schedule, layers_of(model))
    stages = stages_of(model, schedule.chain_length)
    names = stage_parameter_names(model, stages)
    check_data(data, schedule, stages)
    joined = world.is_there(schedule.num_ranks)
    here = world.ranks_here() if joined else schedule.num_ranks
    job = Job(
        schedule=schedule, loss_fn=loss_fn, optimizer=optimizer, steps=steps, device=device, pace=pace, gradients=gradients,
        seed=seed, timeout=timeout, threads=1 if pace else max(1, available_cores() // here),
    )  # fmt: skip
    works = works_of(job, programs, stages, names, data)
    if not joined:
        check_sendable(works)
    shown = progress if not joined or world.world_rank() == 0 else False  # one bar, not one a rank
    # The ranks of a launched run are watched from here, and Ctrl-C comes in only where nothing is left half done.
    with nullcontext() if joined else interrupts_held(), Collector(job, shown, engine) as collector:
        try:
            run = run_joined if joined else run_launched
            results = run(works, collector, stop, main, place)
        except RunError as error:
            raise error.with_traceback(None) from error.__cause__  # how it came up through here tells nobody anything
        put_back(stages, names, results)
    return collector.run(results)


def run_launched(
    works: Sequence[Work], collector: Collector, stop: Event | None, main: RankMain, place: PlaceOf
) -> list[RankResult]:
    """In fresh processes, one a rank."""
    job = works[0].job
    return run_ranks(
        main, works, lambda rank, *published: place(works[rank], *published), collector.receive,
        timeout=job.timeout, stop=stop, device=job.device, threads=job.threads, limit=job.patience,
    )  # fmt: skip


def run_joined(
    works: Sequence[Work], collector: Collector, stop: Event | None, main: RankMain, place: PlaceOf
) -> list[RankResult]:
    """In the world that is there, of which this process is a rank."""

    def check_stop() -> None:
        if stop is not None and stop.is_set():
            raise RunStopped("the run was stopped")

    everyone = train_joined(main, works, place, collector.receive, check_stop)
    collector.reports = {}
    for rank, (reports, _) in enumerate(everyone):
        for report in reports:
            collector.reports.setdefault(report.step, {})[rank] = report
    return [result for _, result in everyone]
