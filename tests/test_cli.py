"""The command line: tables that fit the terminal, and mistakes that are told before anything is trained."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from ppedu import cli
from ppedu.builders import gpipe, naive, one_f_one_b
from ppedu.schedule import Costs
from ppedu.simulate import simulate


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("this must not be trained")

    monkeypatch.setattr("ppedu.course.train", refuse)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--context 99999999", "a sequence and the byte after it must fit in the text: context=99999999"),
        ("--seed 99999999999999999999", "--seed is between"),
        ("--blocks 0", "blocks=0"),
        ("--pace weird", "--pace is milliseconds above 0"),
        ("-p 0", "p=0"),
    ],
)
def test_odd_values_end_in_a_sentence(no_training, tmp_path, capsys, arguments, text):
    assert cli.main(["run", "--out", str(tmp_path), *arguments.split()]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_folder_that_cannot_be_written_to_is_told_before_training(no_training, tmp_path, capsys, command):
    (tmp_path / "file").touch()
    assert cli.main([command, "--out", str(tmp_path / "file")]) == 2
    assert "--out names a folder that can be written to" in capsys.readouterr().err


def pair(schedule: Any, steps: int = 3) -> Any:
    """What a run of the default model gives."""
    timeline = simulate(schedule, Costs(0.02, 0.02, unit="s"))
    run = SimpleNamespace(
        schedule=schedule, timeline=timeline, timelines=(timeline,), peak_activation_bytes=(19_480_000,) * 4,
        losses=(5.558,) * steps, where="measured: 4 CPU processes on 2 cores, paced F=0.02 s B=0.02 s",
        pace=Costs(0.02, 0.02, unit="s"), overruns=(), stopped=None,
    )  # fmt: skip
    return cli.Pair(run, timeline)


def shown(monkeypatch: pytest.MonkeyPatch, capsys: Any, width: int, *tables: Any) -> str:
    monkeypatch.setattr(
        "rich.console.Console", lambda **_: Console(width=width, force_terminal=True, color_system=None)
    )
    cli._show(*tables)
    out: str = capsys.readouterr().out
    assert all(len(line) <= width for line in out.splitlines())
    return out


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_figure_is_cut_whatever_the_width(monkeypatch, capsys, width):
    pairs = [pair(naive(4)), pair(gpipe(4, 8)), pair(one_f_one_b(4, 8))]
    out = shown(monkeypatch, capsys, width, cli._compare_table(pairs), cli._compare_table(pairs, tall=True))
    assert "…" not in out
    for text in ("naive m=1", "160.0 ms", "440.0 ms", "72.7%", "4 3 2 1", "8 8 8 8", "19.48 MB"):
        assert text in out
    assert out.count("5.558") == 9
    assert ("schedule" in out) == (width >= 120)


def test_many_steps_wrap(monkeypatch, capsys):
    out = shown(monkeypatch, capsys, 80, cli._run_table(pair(one_f_one_b(4, 8), steps=50)))
    assert "…" not in out
    assert out.count("5.558") == 50
