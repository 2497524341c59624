"""The command line: train under a schedule, compare schedules, and see prediction and measurement side by side."""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import ppedu
from ppedu import doctor
from ppedu.core.costs import Costs
from ppedu.core.schedule import Schedule
from ppedu.core.simulate import simulate
from ppedu.core.timeline import Timeline
from ppedu.schedules import SCHEDULES, naive

if TYPE_CHECKING:
    from rich.console import JustifyMethod
    from rich.table import Table

    from ppedu.runtime.run import Run

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


@dataclass(frozen=True, slots=True)
class Seat:
    """Which of the ranks that torchrun started this process is. A process that starts its ranks itself has the first seat.

    rank: of all ranks. local: of those on this host. here: how many there are on this host; None where this starts them.
    """

    rank: int = 0
    local: int = 0
    here: int | None = None

    @staticmethod
    def found() -> Seat:
        """As the environment says. A world of one process is none: notebooks on some clusters have such variables."""
        number = {name: int(text) for name, text in os.environ.items() if name in _RANKS and text.isdecimal()}
        world = number.get("WORLD_SIZE", 1)
        if world == 1 or "RANK" not in number or not all(os.environ.get(name) for name in _MASTER):
            return Seat()
        return Seat(number["RANK"], number.get("LOCAL_RANK", 0), number.get("LOCAL_WORLD_SIZE", world))

    @property
    def shows(self) -> bool:
        """All ranks have the whole result: one of them prints it, and writes the files."""
        return self.rank == 0

    @property
    def speaks(self) -> bool:
        """All ranks make the same mistakes: one of each host tells them."""
        return self.local == 0


LAST_WORD = 10.0
"""Seconds that a rank which says nothing waits for the one that speaks: torchrun ends all of them once one has ended."""
_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_MASTER = ("MASTER_ADDR", "MASTER_PORT")


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
    takes = ", ".join(name for name in SCHEDULES if _takes_v(name))
    add("-v", type=int, help=f"stages on each rank, for {takes} (default 2)")
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


@dataclass(frozen=True, slots=True)
class Pair:
    """A schedule's predicted and measured timelines, and the run that the latter comes from."""

    run: Run
    predicted: Timeline

    @property
    def measured(self) -> Timeline:
        return self.run.timeline


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


def _takes_v(name: str) -> bool:
    return "v" in signature(SCHEDULES[name]).parameters


def _built(options: argparse.Namespace, names: Sequence[str]) -> list[Schedule]:
    """The schedules of these names. Whatever they cannot have is told before anything is trained."""
    unknown = [name for name in names if name not in SCHEDULES]
    if unknown:
        raise ValueError(f"there is no schedule {unknown[0]!r}: the names are {', '.join(SCHEDULES)}")
    with_v = [name for name in names if _takes_v(name)]
    if options.v is not None and not with_v:
        takes = " and ".join(name for name in SCHEDULES if _takes_v(name))
        raise ValueError(f"-v is the number of stages on each rank of {takes}: {', '.join(names)} has its own")
    v = {} if options.v is None else {"v": options.v}
    schedules = [SCHEDULES[name](options.p, options.m, **(v if name in with_v else {})) for name in names]
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
    size = schedule.num_ranks / schedule.chain_length
    if pace is None or size == 1:
        return pace
    assert isinstance(pace.forward, float)
    assert isinstance(pace.backward, float)
    return Costs(size * pace.forward, size * pace.backward, unit="s")


def _train(options: argparse.Namespace, schedule: Schedule, pace: Costs | None) -> Pair:
    from ppedu.course.job import train_course

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
    _show(_run_table(pair))
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
        whole = None if pace is None else _times(options.m, pace)
        cases = [(naive(options.p), whole)] + [(one, pace) for one in schedules]
    else:
        cases = [(one, _paced(pace, one)) for one in schedules]
    pairs = [_train(options, schedule, its) for schedule, its in cases]
    if not Seat.found().shows:
        return
    _show(_compare_table(pairs), _compare_table(pairs, tall=True))
    from ppedu.picture.paper import plot_compare

    axes = plot_compare([t for pair in pairs for t in (pair.predicted, pair.measured)], in_flight=False)
    name = f"compare-p{options.p}-m{options.m}" + (f"-v{options.v}" if options.v else "")
    traces = {f"{name}-{key}": pair.measured for key, pair in zip(keys, pairs, strict=True)}
    _save(options.out, name, axes, traces)


def _key(name: str) -> str:
    """A schedule's key, also where somebody writes the name as tables and pictures do: ZB-H1 for zb_h1."""
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def _names(text: str) -> list[str]:
    """The names between the commas, each once."""
    names = [_key(name) for name in text.split(",") if name.strip()]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"--schedules names different schedules with commas between them: {text!r}")
    return names


def _times(m: int, pace: Costs) -> Costs:
    """The pace of a whole batch: m microbatches in a row."""
    assert isinstance(pace.forward, float)
    assert isinstance(pace.backward, float)
    return Costs(m * pace.forward, m * pace.backward, unit="s")


def _run_table(pair: Pair) -> Table:
    run, both = pair.run, (pair.predicted, pair.measured)
    table = _table(pair.measured.label, ["", "predicted", "measured"])
    table.add_row("makespan", *(_time(t.makespan) for t in both))
    table.add_row("utilization", *(f"{t.utilization:.1%}" for t in both))
    table.add_row("bubble, of the makespan", *(f"{t.bubble_fraction:.1%}" for t in both))
    table.add_row("bubble, over the ideal time", *(f"{t.bubble_over_ideal:.1%}" for t in both))
    table.add_row("peak in flight, by rank", *(" ".join(map(str, t.peak_in_flight)) for t in both))
    if not _one_size([pair]):
        table.add_row("the same, in 1/p of the model", *(_counts(t.peak_activations) for t in both))
    if run.schedule.chains == 2:
        table.add_row("weights", "2 copies", "2 copies")
    table.add_row("peak activations, by rank", "", " ".join(map(_bytes, run.peak_activation_bytes)))
    table.add_row("loss, step by step", "", " ".join(f"{x:.3f}" for x in run.losses))
    table.caption = _caption([pair])
    return table


def _one_size(pairs: Sequence[Pair]) -> bool:
    """Every stage is 1/p of the model, so that what is in flight compares as it is."""
    return all(pair.run.schedule.chain_length == pair.run.schedule.num_ranks for pair in pairs)


def _counts(peaks: Sequence[float]) -> str:
    return " ".join(f"{peak:.3g}" for peak in peaks)


def _compare_table(pairs: Sequence[Pair], tall: bool = False) -> Table:
    """One schedule a row; or, `tall`, one a column, for narrow terminals."""
    title = f"p={pairs[0].run.schedule.num_ranks} ranks, the same weights and batches"
    held = "peak in flight" if _one_size(pairs) else "activations of 1/p"
    rows = [_compare_row(pair) for pair in pairs]
    if tall:
        figures = ["", "makespan, predicted", "measured", "busy, predicted", "measured", f"{held}, by rank",
                   "peak activations, rank 0", "loss, step by step"]  # fmt: skip
        (_, *heads), *lines = zip(figures, *rows, strict=True)
        table = _table(title, ["", *heads])
    else:
        lines = [tuple(row) for row in rows]
        table = _table(
            title,
            ["schedule", "makespan\npredicted", "\nmeasured", "busy\npredicted", "\nmeasured", f"{held}\nby rank",
             "peak activations\nrank 0", "loss\nstep by step"],
        )  # fmt: skip
    for line in lines:
        table.add_row(*line)
    table.caption = _caption(pairs)
    return table


def _compare_row(pair: Pair) -> list[str]:
    run, both = pair.run, (pair.predicted, pair.measured)
    return [
        run.schedule.label.replace(f" p={run.schedule.num_ranks}", ""),
        *(_time(t.makespan) for t in both),
        *(f"{t.utilization:.1%}" for t in both),
        _counts(pair.measured.peak_activations),  # what is in flight, where all stages are 1/p of the model
        _bytes(run.peak_activation_bytes[0]),
        " ".join(f"{x:.3f}" for x in run.losses),
    ]


def _table(title: str, columns: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left", title_style="bold")
    for column in columns:
        justify: JustifyMethod = "left" if column in ("", "schedule") else "right"
        table.add_column(column, justify=justify, no_wrap=column == "")  # what is too long wraps, nothing is cut
    return table


def _caption(pairs: Sequence[Pair]) -> str:
    """Where it ran, and what the prediction is made of."""
    lines = [pairs[-1].run.where]
    if pairs[0].run.pace is None:
        lines.append("predicted from the medians of what each stage's operations took")
    elif any(pair.run.schedule.num_microbatches == 1 for pair in pairs) and len({pair.run.pace for pair in pairs}) > 1:
        lines.append("the whole batch is paced as m microbatches in a row")
    over = sum(len(pair.run.overruns) for pair in pairs)
    if over:
        total = sum(len(t.spans) for pair in pairs for t in pair.run.timelines)
        lines.append(f"{over} of {total} operations overran their pace")
    lines += [
        f"{pair.run.schedule.name} holds two copies of the weights" for pair in pairs if pair.run.schedule.chains == 2
    ]
    lines += [f"stopped: {pair.run.stopped}" for pair in pairs if pair.run.stopped]
    return "\n".join(lines)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.3f} s"


def _bytes(count: int) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def _show(table: Table, narrow: Table | None = None) -> None:
    """Print the table, or `narrow` where the terminal is not wide enough for it."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    if not console.is_terminal:  # a file or a pipe has no width to fit
        console = Console(width=160)
    if narrow and Measurement.get(console, console.options.update(width=1000), table).maximum > console.width:
        table = narrow
    console.print()
    console.print(table)


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
