"""The command line: train under a schedule, compare schedules, and see prediction and measurement side by side."""

from __future__ import annotations

import argparse
import io
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import ppedu
from ppedu import doctor
from ppedu.core.costs import Costs
from ppedu.core.format import joined
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.core.timeline import Timeline
from ppedu.course.job import train_course
from ppedu.course.seat import Seat
from ppedu.course.tables import Pair, compare_table, run_table, show
from ppedu.schedules import SCHEDULES, naive, takes_v

MILLISECONDS = 20.0  # of a paced operation: enough for the default model, and for one's eyes

DESCRIPTION = """\
Train a small Transformer on real English text, cut into p stages that run in p processes, under a pipeline schedule;
and compare what the schedule's simulation predicts with what the run measures."""

EPILOG = """\
examples:
  ppedu run --schedule 1f1b -p 4 -m 8 --steps 5    one schedule: a table, the picture and the trace
  ppedu compare                                    no microbatches, GPipe and 1F1B in turn, on the same batch
  ppedu compare -p 2 -m 16 --pace none             as fast as this machine goes
  ppedu run -p 4 -m 8 --pace 20,40                 a backward takes twice as long as a forward
  ppedu run --schedule interleaved -v 2            two stages on each rank
  ppedu compare --schedules 1f1b,zb_h1,zb_v        any of them in turn
  ppedu doctor                                     prove that real runs work on this machine, on its GPUs if it has some
  torchrun --nproc-per-node 4 -m ppedu run -p 4    in ranks that torchrun starts, on several machines too

p is the number of ranks (processes), m the number of microbatches that a batch is cut into, v the number of stages on each
rank.
"""
COMPARED = ("gpipe", "1f1b")


LAST_WORD = 10.0
"""Seconds that a rank which says nothing waits for the one that speaks: torchrun ends all of them once one has ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. Mistakes end in a sentence and 2, failed runs in their reason and 1. Under
    torchrun all ranks train, the first one shows the result, and one of each host tells mistakes and failures."""
    seat = Seat.found()
    with _heard(seat.speaks):
        options = _parser().parse_args(arguments)
    from ppedu.runtime.errors import RunError

    try:
        with warnings.catch_warnings():
            if not seat.speaks:
                warnings.simplefilter("ignore")
            options.command(options)
    except (ValueError, TypeError, OSError) as error:
        return _told(error, 2, seat.speaks)
    except RunError as error:
        return _told(error, 1, getattr(error, "told_here", True))  # who is left knows who tells it
    except KeyboardInterrupt:
        return _told("interrupted, no process is left", 130, seat.speaks, wait=False)
    return 0


@contextmanager
def _heard(speaks: bool) -> Iterator[None]:
    """What argparse prints goes to the terminal, or nowhere."""
    if speaks:
        yield
        return
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    except SystemExit as end:
        if end.code:
            time.sleep(LAST_WORD)
        raise


def _told(what: object, code: int, speaks: bool, wait: bool = True) -> int:
    if speaks:
        print(f"ppedu: {what}", file=sys.stderr)
    elif wait:
        time.sleep(LAST_WORD)
    return code


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("ppedu", description=DESCRIPTION, epilog=EPILOG, formatter_class=plain)
    parser.add_argument("--version", action="version", version=f"ppedu {ppedu.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    run = commands.add_parser(
        "run", help="train under one schedule", description="Train under one schedule.", formatter_class=plain
    )
    run.add_argument(
        "--schedule", metavar="NAME", default="1f1b", help=f"which one: {', '.join(SCHEDULES)} (default %(default)s)"
    )
    run.set_defaults(command=_run)
    compare = commands.add_parser(
        "compare",
        help="train under no microbatches, GPipe and 1F1B in turn, or under other schedules",
        description="Train under several schedules in turn: the same weights, the same batches. By default: no "
        "microbatches, GPipe and 1F1B.",
        formatter_class=plain,
    )
    compare.add_argument(
        "--schedules", metavar="NAMES", help=f"which ones, with commas between them: {', '.join(SCHEDULES)}"
    )
    compare.set_defaults(command=_compare)
    for command, steps in ((run, 5), (compare, 3)):
        _add_options(command, steps)
    doctor.add_command(commands)
    return parser


def _add_options(command: argparse.ArgumentParser, steps: int) -> None:
    add = command.add_argument
    add("-p", type=int, default=4, help="ranks, each a process with its part of the model (default %(default)s)")
    add("-m", type=int, default=8, help="microbatches that a batch is cut into (default %(default)s)")
    add("-v", type=int, help=f"stages on each rank, for {', '.join(_with_v())} (default 2)")
    add("--steps", type=int, default=steps, help="training steps (default %(default)s)")
    add(
        "--pace", default="auto", metavar="MS",
        help="milliseconds that each operation on 1/p of the model is made to last, '20', or forward and backward, '20,40' "
        "(a stage that is a smaller part takes its share of that, and I and W half of the backward each); 'none' for as "
        "fast as it goes; by default 20 where the ranks of this host share what they compute on, GPUs or without these "
        "cores, because only a pace then shows what p devices do. The mathematics, the messages and the memory are real in "
        "any case",
    )  # fmt: skip
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where ranks compute (default %(default)s)")
    add("--blocks", type=int, default=24, help="Transformer blocks of the model (default %(default)s)")
    add("--width", type=int, default=48, help="width of the model (default %(default)s)")
    add("--context", type=int, default=32, help="bytes of text in a sequence (default %(default)s)")
    add("--sequences", type=int, default=4, help="sequences in a microbatch (default %(default)s)")
    add("--learning-rate", type=float, default=0.003, metavar="RATE", help="of AdamW (default %(default)s)")
    add("--seed", type=int, default=0, help="of weights and batches (default %(default)s)")
    add("--out", type=Path, default=Path("runs"), metavar="FOLDER", help="for picture and trace (default %(default)s)")


def _pace(options: argparse.Namespace) -> Costs | None:
    if options.pace == "none":
        return None
    if options.pace == "auto":
        return Costs(MILLISECONDS / 1e3, MILLISECONDS / 1e3, unit="s") if _shared(options) else None
    try:
        numbers = [float(x) / 1e3 for x in options.pace.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(0 < x < 3600 for x in numbers):
        raise ValueError(f"--pace is milliseconds above 0, '20' or '20,40', or 'none' or 'auto': {options.pace!r}")
    return Costs(numbers[0], numbers[-1], unit="s")


def _shared(options: argparse.Namespace) -> bool:
    """Whether there are fewer GPUs than ranks on this host, or, where these compute on the CPU, fewer cores."""
    from ppedu.runtime.machine import gpu_count
    from ppedu.runtime.run import available_cores

    gpus = 0 if options.device == "cpu" else gpu_count()
    return (gpus or available_cores()) < (Seat.found().here or options.p)


def _with_v() -> list[str]:
    return [name for name, build in SCHEDULES.items() if takes_v(build)]


def _built(options: argparse.Namespace, names: Sequence[str]) -> list[Schedule]:
    """The schedules of these names. Whatever they cannot have is told before anything is trained."""
    unknown = [name for name in names if name not in SCHEDULES]
    if unknown:
        raise ValueError(f"there is no schedule {unknown[0]!r}: the names are {', '.join(SCHEDULES)}")
    takes = _with_v()
    if options.v is not None and not set(names) & set(takes):
        raise ValueError(f"-v is the number of stages on each rank of {joined(takes)}: {', '.join(names)} has its own")
    v = {} if options.v is None else {"v": options.v}
    schedules = [SCHEDULES[name](options.p, options.m, **(v if name in takes else {})) for name in names]
    for schedule in schedules:
        if schedule.chain_length > options.blocks >= 1:
            raise ValueError(
                f"{schedule.label} cuts the model into {schedule.chain_length} stages, each with a block at least, but it "
                f"has {options.blocks}: take --blocks {schedule.chain_length} or more, or a smaller -p"
                + (" or -v" if schedule.chain_length > schedule.num_ranks else "")
            )
    return schedules


def _paced(pace: Costs | None, schedule: Schedule) -> Costs | None:
    """The pace of a schedule's stages: `pace` is that of 1/p of the model."""
    return pace and pace.scaled(schedule.stage_size)


def _train(options: argparse.Namespace, schedule: Schedule, pace: Costs | None) -> Pair:
    for name, least in (("sequences", 1), ("steps", 1)):
        if getattr(options, name) < least:
            raise ValueError(f"--{name} is at least {least}: {getattr(options, name)}")
    if not 0 < options.learning_rate < 1e3:
        raise ValueError(f"--learning-rate is above 0: {options.learning_rate}")
    if abs(options.seed) >= 2**62:
        raise ValueError(f"--seed is between -2^62 and 2^62: {options.seed}")
    if Seat.found().shows:
        _make(options.out)  # before the training, so that no run is lost
    run = train_course(
        schedule, pace, samples=options.sequences * options.m, steps=options.steps, blocks=options.blocks,
        width=options.width, context=options.context, learning_rate=options.learning_rate, seed=options.seed,
        device=options.device,
    )  # fmt: skip
    return Pair(run, simulate(schedule, pace or run.timeline.costs()))


def _run(options: argparse.Namespace) -> None:
    key = _key(options.schedule)
    (schedule,) = _built(options, [key])
    pair = _train(options, schedule, _paced(_pace(options), schedule))
    if not Seat.found().shows:
        return
    show(run_table(pair))
    from ppedu.picture.paper import plot_timeline

    v = "" if options.v is None else f"-v{options.v}"
    name = f"{key}-p{options.p}-m{options.m}{v}"
    axes = plot_timeline(pair.predicted, pair.measured, in_flight=True)
    _save(options.out, name, axes, {name: pair.measured})


def _compare(options: argparse.Namespace) -> None:
    keys = ["naive", *COMPARED] if options.schedules is None else _names(options.schedules)
    schedules = _built(options, COMPARED if options.schedules is None else keys)
    pace = _pace(options)
    if options.schedules is None:
        whole = pace and pace.scaled(options.m)  # m microbatches in a row
        cases = [(naive(options.p), whole)] + [(one, pace) for one in schedules]
    else:
        cases = [(one, _paced(pace, one)) for one in schedules]
    pairs = [_train(options, schedule, its) for schedule, its in cases]
    if not Seat.found().shows:
        return
    show(compare_table(pairs), compare_table(pairs, tall=True))
    from ppedu.picture.paper import plot_compare

    axes = plot_compare([t for pair in pairs for t in (pair.predicted, pair.measured)], in_flight=False)
    name = f"compare-p{options.p}-m{options.m}" + (f"-v{options.v}" if options.v else "")
    traces = {f"{name}-{key}": pair.measured for key, pair in zip(keys, pairs, strict=True)}
    _save(options.out, name, axes, traces)


def _key(name: str) -> str:
    """A schedule's key, also where somebody writes the name as tables and pictures do, ZB-H1, or its builder's, one_f_one_b."""
    key = name.strip().lower().replace("-", "_").replace(" ", "_")
    return next((known for known, build in SCHEDULES.items() if build.__name__ == key), key)


def _names(text: str) -> list[str]:
    """The names between the commas, each once."""
    names = [_key(name) for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"--schedules names different schedules with commas between them: {text!r}")
    return names


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):  # the one sure way to know
            pass
    except OSError as error:
        raise ValueError(
            f"--out names a folder that can be written to, but '{folder}' cannot: {error.strerror}"
        ) from error


def _save(folder: Path, name: str, axes: Any, traces: dict[str, Timeline]) -> None:
    picture = folder / f"{name}.png"
    axes.figure.savefig(picture, dpi=150)
    print(f"picture  {picture}")
    for key, timeline in traces.items():
        trace = folder / f"{key}.trace.json"
        trace.write_text(timeline.to_chrome_trace(), encoding="utf-8")
        print(f"trace    {trace}  (open it at ui.perfetto.dev)")
