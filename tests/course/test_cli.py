"""The command line: tables that fit the terminal, and mistakes that are told before anything is trained."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import ppedu
from ppedu.core.costs import Costs
from ppedu.core.simulate import simulate
from ppedu.course import cli, tables
from ppedu.course.seat import Seat
from ppedu.schedules import SCHEDULES, gpipe, naive, one_f_one_b


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("this must not be trained")

    monkeypatch.setattr("ppedu.runtime.train.train", refuse)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--context 99999999", "a sequence and the byte after it must fit in the text: context=99999999"),
        ("--seed 99999999999999999999", "--seed is between"),
        ("--blocks 0", "blocks=0"),
        ("--pace weird", "--pace is milliseconds above 0"),
        ("-p 0", "p=0"),
        ("--schedule dualpipe -p 3", "DualPipe pairs rank r with rank p - 1 - r, so p is even: p=3. Take p=4 or p=2"),
        ("--schedule zb", "there is no schedule 'zb': the names are naive, gpipe, 1f1b, interleaved"),
        ("-v 2", "-v is the number of stages on each rank of interleaved and looped_bfs: 1f1b has its own"),
        ("--schedule interleaved -v 0", "v is the number of stages on each rank, a whole number of at least 1: v=0"),
        (
            "--schedule interleaved -v 7",
            "cuts the model into 28 stages, each with a block at least, but it has 24: take "
            "--blocks 28 or more, or a smaller -p or -v",
        ),
        (
            "--blocks 3",
            "1F1B p=4 m=8 cuts the model into 4 stages, each with a block at least, but it has 3: take --blocks 4 "
            "or more, or a smaller -p\n",
        ),
    ],
)
def test_odd_values_end_in_a_sentence(no_training, tmp_path, capsys, arguments, text):
    assert cli.main(["run", "--out", str(tmp_path), *arguments.split()]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("gpipe,zb", "there is no schedule 'zb': the names are naive, gpipe, 1f1b, interleaved"),
        (",", "--schedules names different schedules with commas between them: ','"),
        ("gpipe,gpipe", "--schedules names different schedules"),
        ("gpipe,dualpipe -p 3", "DualPipe pairs rank r"),
        (
            "gpipe,zb_v -v 3",
            "-v is the number of stages on each rank of interleaved and looped_bfs: gpipe, zb_v has its own",
        ),
    ],
)
def test_schedules_that_cannot_be_compared(no_training, tmp_path, capsys, names, text):
    assert cli.main(["compare", "--out", str(tmp_path), "--schedules", *names.split()]) == 2
    assert text in capsys.readouterr().err


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """What would be trained, as (schedule, pace); it then has run exactly as paced."""
    jobs: list[tuple[Any, Any]] = []

    def train(options: Any, schedule: Any, pace: Any) -> Any:
        jobs.append((schedule, pace))
        return pair(schedule, pace=pace)

    monkeypatch.setattr(cli, "_train", train)
    return jobs


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_can_be_run(trained, tmp_path, capsys, name):
    assert cli.main(["run", "--out", str(tmp_path), "--schedule", name, "-p", "2", "-m", "4", "--pace", "20,40"]) == 0
    ((schedule, pace),) = trained
    assert schedule == SCHEDULES[name](2, 4)
    size = 2 / schedule.chain_length
    assert (pace.forward, pace.backward) == (0.02 * size, 0.04 * size)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}-p2-m4.png", f"{name}-p2-m4.trace.json"}
    said = capsys.readouterr().out
    assert ("the same, in 1/p of the model" in said) == (size != 1)
    assert ("2 copies" in said) == (name == "dualpipe")


def test_stages_on_a_rank(trained, tmp_path):
    assert (
        cli.main(["run", "--out", str(tmp_path), "--schedule", "interleaved", "-p", "2", "-v", "3", "--pace", "30"])
        == 0
    )
    ((schedule, pace),) = trained
    assert (schedule.num_stages, pace.forward) == (6, pytest.approx(0.01))
    assert (tmp_path / "interleaved-p2-m8-v3.png").exists()


def test_compare_is_no_microbatches_gpipe_and_1f1b(trained, tmp_path, capsys):
    assert cli.main(["compare", "--out", str(tmp_path), "--pace", "20"]) == 0
    assert [schedule for schedule, _ in trained] == [naive(4), gpipe(4, 8), one_f_one_b(4, 8)]
    assert [pace.forward for _, pace in trained] == [0.16, 0.02, 0.02]
    assert "the whole batch is paced as m microbatches in a row" in capsys.readouterr().out


@pytest.mark.slow
def test_compare_takes_any_schedules(trained, tmp_path, capsys):
    options = ["--schedules", "gpipe, 1f1b,interleaved", "--pace", "20", "-v", "4"]
    assert cli.main(["compare", "--out", str(tmp_path), *options]) == 0
    assert [schedule.name for schedule, _ in trained] == ["GPipe", "1F1B", "interleaved 1F1B"]
    assert [pace.forward for _, pace in trained] == [0.02, 0.02, 0.005]
    said = capsys.readouterr().out
    assert "activations of 1/p" in said
    assert "in a row" not in said
    for peaks in ("8 8 8 8", "4 3 2 1", "4.75 4.25 3.75 3.25"):  # 2(p - i - 1) + (v - 1)p + 1 = 19 17 15 13 quarters
        assert peaks in said
    assert (tmp_path / "compare-p4-m8-v4-interleaved.trace.json").exists()


@pytest.mark.slow
def test_names_may_be_written_as_tables_show_them(trained, tmp_path, capsys):
    assert cli.main(["run", "--out", str(tmp_path), "--pace", "20", "--schedule", "ZB-H1"]) == 0
    assert (
        cli.main(["compare", "--out", str(tmp_path), "--pace", "20", "--schedules", "1F1B, looped BFS,DualPipeV"]) == 0
    )
    assert [schedule.name for schedule, _ in trained] == ["ZB-H1", "1F1B", "looped BFS", "DualPipeV"]
    for name in ("zb_h1-p4-m8.png", "compare-p4-m8-looped_bfs.trace.json"):
        assert (tmp_path / name).exists()


@pytest.mark.slow
def test_names_may_be_those_of_the_builders(trained, tmp_path, capsys):
    assert cli.main(["run", "--out", str(tmp_path), "--pace", "20", "--schedule", "one_f_one_b"]) == 0
    assert (tmp_path / "1f1b-p4-m8.png").exists()
    for builder in SCHEDULES.values():
        assert cli.main(["run", "--out", str(tmp_path), "--pace", "20", "--schedule", builder.__name__]) == 0
        assert trained[-1][0] == builder(4, 8)
    twice = ["--schedules", "1f1b,one_f_one_b"]
    assert cli.main(["compare", "--out", str(tmp_path), "--pace", "20", *twice]) == 2
    assert "--schedules names different schedules" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_folder_that_cannot_be_written_to_is_told_before_training(no_training, tmp_path, capsys, command):
    (tmp_path / "file").touch()
    assert cli.main([command, "--out", str(tmp_path / "file")]) == 2
    assert "--out names a folder that can be written to" in capsys.readouterr().err


def pair(schedule: Any, steps: int = 3, pace: Any = None) -> Any:
    """What a run of the default model gives."""
    pace = pace or Costs(0.02, 0.02, unit="s")
    timeline = simulate(schedule, pace)
    run = SimpleNamespace(
        schedule=schedule, timeline=timeline, timelines=(timeline,), peak_activation_bytes=(19_480_000,) * 4,
        losses=(5.558,) * steps, where="measured: 4 CPU processes on 2 cores, paced F=0.02 s B=0.02 s",
        pace=pace, overruns=(), stopped=None,
    )  # fmt: skip
    return tables.Pair(run, timeline)


def shown(monkeypatch: pytest.MonkeyPatch, capsys: Any, width: int, *made: Any) -> str:
    monkeypatch.setattr(
        "rich.console.Console", lambda **_: Console(width=width, force_terminal=True, color_system=None)
    )
    tables.show(*made)
    out: str = capsys.readouterr().out
    assert all(len(line) <= width for line in out.splitlines())
    return out


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_figure_is_cut_whatever_the_width(monkeypatch, capsys, width):
    pairs = [pair(naive(4)), pair(gpipe(4, 8)), pair(one_f_one_b(4, 8))]
    out = shown(monkeypatch, capsys, width, tables.compare_table(pairs), tables.compare_table(pairs, tall=True))
    assert "…" not in out
    for text in ("naive m=1", "160 ms", "440 ms", "72.7%", "4 3 2 1", "8 8 8 8", "19.48 MB"):
        assert text in out
    assert out.count("5.558") == 9
    assert ("schedule" in out) == (width >= 120)


def test_many_steps_wrap(monkeypatch, capsys):
    out = shown(monkeypatch, capsys, 80, tables.run_table(pair(one_f_one_b(4, 8), steps=50)))
    assert "…" not in out
    assert out.count("5.558") == 50


# when it paces

KUBEFLOW = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "23456"}
TORCHRUN = {**KUBEFLOW, "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets all the variables by which torchrun tells a process its place."""

    def become(variables: dict[str, str]) -> None:
        for name in TORCHRUN:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    become({})
    monkeypatch.setattr(cli, "LAST_WORD", 0.0)
    return become


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "gpus", "cores", "variables", "paced"),
    [
        ("auto", 0, 4, {}, False),
        ("auto", 0, 3, {}, True),
        ("auto", 4, 1, {}, False),
        ("auto", 3, 64, {}, True),
        ("cuda", 1, 64, {}, True),
        ("cuda", 4, 1, {}, False),
        ("cpu", 8, 3, {}, True),
        ("cpu", 0, 4, {}, False),
        ("auto", 0, 3, KUBEFLOW, True),
        ("auto", 0, 4, TORCHRUN, False),  # p = 8, of which four are on this host
        ("auto", 4, 1, TORCHRUN, False),
        ("auto", 3, 1, TORCHRUN, True),
        ("cpu", 4, 3, TORCHRUN, True),
        ("auto", 0, 4, {k: v for k, v in TORCHRUN.items() if "LOCAL" not in k}, True),
    ],
)
def test_it_paces_where_ranks_share_something(monkeypatch, environment, device, gpus, cores, variables, paced):
    environment(variables)
    monkeypatch.setattr("ppedu.runtime.machine.gpu_count", lambda: gpus)
    monkeypatch.setattr("ppedu.runtime.run.available_cores", lambda: cores)
    options = argparse.Namespace(pace="auto", device=device, p=8 if variables.get("WORLD_SIZE") == "8" else 4)
    assert cli._pace(options) == (Costs(0.02, 0.02, unit="s") if paced else None)
    options.pace = "none"
    assert cli._pace(options) is None
    options.pace = "5,10"
    assert cli._pace(options) == Costs(0.005, 0.01, unit="s")


# under torchrun


def test_which_rank_shows_and_which_speak(environment):
    first = {"RANK": "0", "LOCAL_RANK": "0"}
    for variables, shows, speaks, here in (
        ({}, True, True, None),
        (KUBEFLOW, True, True, None),
        ({**KUBEFLOW, "RANK": "3", "LOCAL_RANK": "3"}, True, True, None),  # a world of one process is none
        ({**TORCHRUN, "MASTER_PORT": ""}, True, True, None),
        ({**TORCHRUN, **first}, True, True, 4),
        (TORCHRUN, False, False, 4),
        ({**TORCHRUN, "RANK": "4", "LOCAL_RANK": "0"}, False, True, 4),  # the first one of another host
        ({k: v for k, v in TORCHRUN.items() if "LOCAL" not in k}, False, True, 8),
    ):
        environment(variables)
        seat = Seat.found()
        assert (seat.shows, seat.speaks, seat.here) == (shows, speaks, here), variables


@pytest.mark.parametrize("speaks", [True, False])
@pytest.mark.parametrize("arguments", ["run --schedule", "run --oops", "run --pace weird -p 2", "compare --help"])
def test_mistakes_are_told_once_a_host(environment, tmp_path, capsys, arguments, speaks):
    environment({**TORCHRUN, "LOCAL_RANK": "0" if speaks else "1"})
    try:
        code = cli.main([*arguments.split(), *(["--out", str(tmp_path / "out")] if "weird" in arguments else [])])
    except SystemExit as end:  # argparse's way
        code = end.code
    assert code == (0 if "help" in arguments else 2)
    said = "".join(capsys.readouterr())
    assert bool(said) == speaks
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("told_here", [True, False, None])
def test_failures_are_told_where_the_run_says(environment, monkeypatch, capsys, tmp_path, told_here):
    """Not by the number: the first rank of a host may be the one that died."""
    environment(TORCHRUN)
    error = ppedu.RunError("rank 4 on hostB ended without a word", rank=4)
    if told_here is None:
        vars(error).pop("told_here", None)
    else:
        error.told_here = told_here

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "_train", fail)
    assert cli.main(["run", "--pace", "20", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == ("" if told_here is False else "ppedu: rank 4 on hostB ended without a word\n")


@pytest.mark.parametrize("command", ["run", "compare"])
def test_only_the_first_rank_shows_the_result(environment, trained, tmp_path, capsys, command):
    environment({**TORCHRUN, "RANK": "4", "LOCAL_RANK": "0"})
    assert cli.main([command, "--out", str(tmp_path), "--pace", "20"]) == 0
    assert len(trained) == (1 if command == "run" else 3)
    assert capsys.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Two ranks that run a script or a module."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


SMALL = "--blocks 4 --width 16 --context 16 --device cpu --steps 2 -p 2 -m 4"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "title", "files"),
    [
        ("run --pace 5", "1F1B p=2 m=4", {"1f1b-p2-m4.png", "1f1b-p2-m4.trace.json"}),
        (
            "compare --pace none",
            "p=2 ranks, the same weights and batches",
            {"compare-p2-m4.png", *(f"compare-p2-m4-{name}.trace.json" for name in ("naive", "gpipe", "1f1b"))},
        ),
    ],
)
def test_under_torchrun_it_trains_on_all_ranks_and_prints_once(tmp_path, command, title, files):
    done = torchrun("-m", "ppedu", *command.split(), *SMALL.split(), "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(title) == done.stdout.count("measured: 2 CPU processes on") == 1
    assert done.stdout.count("picture ") == 1
    assert {path.name for path in tmp_path.iterdir()} == files
    for path in tmp_path.glob("*.json"):  # all ranks are in it
        events = json.loads(path.read_text("utf-8"))["traceEvents"]
        assert {event["tid"] for event in events if event["ph"] == "X"} == {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("-p 3", "ppedu: the schedule has p=3 ranks, but this world has 2 processes: start 3"),
        ("--pace", "error: argument --pace: expected one argument"),
    ],
)
def test_under_torchrun_a_mistake_is_told_once(tmp_path, arguments, text):
    start = time.perf_counter()
    done = torchrun("-m", "ppedu", "run", *SMALL.split(), "--out", str(tmp_path), *arguments.split())
    assert done.returncode == 1  # torchrun's
    assert done.stderr.count(text) == 1
    assert "exitcode  : 2" in done.stderr
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())
    assert time.perf_counter() - start < 60  # nobody waits for ranks that have nothing to say


@pytest.mark.slow
def test_under_torchrun_the_one_that_tells_has_time_to(tmp_path):
    """The other rank finds the mistake two seconds earlier, and torchrun ends everyone when it ends."""
    (tmp_path / "late.py").write_text(LATE, "utf-8")
    done = torchrun(str(tmp_path / "late.py"))
    assert done.stderr.count("there is no schedule 'zb'") == 1


LATE = """
import os, sys, time
from ppedu.course import cli
time.sleep(2 if os.environ["RANK"] == "0" else 0)
sys.exit(cli.main(["run", "--schedule", "zb"]))
"""


FAILS = """
import sys
from ppedu.course import cli, models

def no_loss(outputs, targets):
    raise ArithmeticError("no loss today")

models.next_byte_loss = no_loss
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_under_torchrun_a_failed_run_is_told_once(tmp_path):
    (tmp_path / "fails.py").write_text(FAILS, "utf-8")
    out = tmp_path / "out"
    done = torchrun(str(tmp_path / "fails.py"), "run", *SMALL.split(), "--pace", "none", "--out", str(out))
    told = [line for line in done.stderr.splitlines() if line.startswith("ppedu: ")]
    assert len(told) == 1, done.stderr
    assert told[0].startswith("ppedu: rank 1 on ")
    assert "failed in F0 of step 0" in told[0]
    assert done.stderr.count("ArithmeticError: no loss today") == 1
    assert "exitcode  : 1" in done.stderr
    assert done.stdout == ""
    assert not list(out.iterdir())
