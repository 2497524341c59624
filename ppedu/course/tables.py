"""The command line's tables: what was predicted beside what was measured, of one schedule or of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppedu.core.format import by_rank, bytes_text, time_text
from ppedu.core.timeline import Timeline

if TYPE_CHECKING:
    from rich.console import JustifyMethod
    from rich.table import Table

    from ppedu.runtime.run import Run


@dataclass(frozen=True, slots=True)
class Pair:
    """A schedule's predicted and measured timelines, and the run that the latter comes from."""

    run: Run
    predicted: Timeline

    @property
    def measured(self) -> Timeline:
        return self.run.timeline

    @property
    def both(self) -> tuple[Timeline, Timeline]:
        return self.predicted, self.measured


def run_table(pair: Pair) -> Table:
    """One run: a figure a row."""
    run, both = pair.run, pair.both
    table = _table(pair.measured.label, ["", "predicted", "measured"])
    table.add_row("makespan", *(time_text(t.makespan, "s") for t in both))
    table.add_row("utilization", *(f"{t.utilization:.1%}" for t in both))
    table.add_row("bubble, of the makespan", *(f"{t.bubble_fraction:.1%}" for t in both))
    table.add_row("bubble, over the ideal time", *(f"{t.bubble_over_ideal:.1%}" for t in both))
    table.add_row("peak in flight, by rank", *(" ".join(map(str, t.peak_in_flight)) for t in both))
    if not _one_size([pair]):
        table.add_row("the same, in 1/p of the model", *(by_rank(t.peak_activations) for t in both))
    if run.schedule.chains == 2:
        table.add_row("weights", "2 copies", "2 copies")
    table.add_row("peak activations, by rank", "", " ".join(map(bytes_text, run.peak_activation_bytes)))
    table.add_row("loss, step by step", "", _losses(run))
    table.caption = _caption([pair])
    return table


def compare_table(pairs: Sequence[Pair], tall: bool = False) -> Table:
    """One schedule a row; or, `tall`, one a column, for narrow terminals."""
    held = "peak in flight" if _one_size(pairs) else "activations of 1/p"
    heads = ["schedule", "makespan\npredicted", "\nmeasured", "busy\npredicted", "\nmeasured", f"{held}\nby rank"]
    heads += ["peak activations\nrank 0", "loss\nstep by step"]
    rows = [_compare_row(pair) for pair in pairs]
    if tall:
        figures = ["", *(head.replace("\n", ", ").removeprefix(", ") for head in heads[1:])]
        heads, *rows = map(list, zip(figures, *rows, strict=True))
    table = _table(f"p={pairs[0].run.schedule.num_ranks} ranks, the same weights and batches", heads)
    for row in rows:
        table.add_row(*row)
    table.caption = _caption(pairs)
    return table


def _compare_row(pair: Pair) -> list[str]:
    run = pair.run
    return [
        run.schedule.label.replace(f" p={run.schedule.num_ranks}", ""),
        *(time_text(t.makespan, "s") for t in pair.both),
        *(f"{t.utilization:.1%}" for t in pair.both),
        by_rank(pair.measured.peak_activations),  # what is in flight, where all stages are 1/p of the model
        bytes_text(run.peak_activation_bytes[0]),
        _losses(run),
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
    twice = [pair.run.schedule.name for pair in pairs if pair.run.schedule.chains == 2]
    lines += [f"{name} holds two copies of the weights" for name in twice]
    lines += [f"stopped: {pair.run.stopped}" for pair in pairs if pair.run.stopped]
    return "\n".join(lines)


def _one_size(pairs: Sequence[Pair]) -> bool:
    """Every stage is 1/p of the model, so that what is in flight compares as it is."""
    return all(pair.run.schedule.stage_size == 1 for pair in pairs)


def _losses(run: Run) -> str:
    return " ".join(f"{loss:.3f}" for loss in run.losses)


def show(table: Table, narrow: Table | None = None) -> None:
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
