"""`ppedu doctor`: every way in which a check can end is told as it is, nothing is left, and the real checks can fail."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ppedu
from ppedu import doctor
from ppedu.doctor import driver
from ppedu.doctor.table import CHECKS, UNSEEN, Check, Failed, Skipped

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what a check leaves is found by /proc")
HERE = Path(__file__).parent

# Checks that are made up. They run in processes of their own, which import this file.


def sees(what: str) -> str:
    UNSEEN.append("the far side of the moon")
    return f"saw {what}"


def finds_fault() -> str:
    raise Failed("the device is\ntoo warm")


def breaks() -> str:
    return {}["no such key"]


def skips() -> str:
    raise Skipped("it is the wrong machine")


def dies() -> str:
    print("a last word", flush=True)
    os._exit(3)


def hangs(folder: str) -> str:
    leaves(folder)
    time.sleep(1000)
    return "it came back"


def leaves(folder: str) -> str:
    """Start a process in a session of its own, as torchrun starts its workers."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
    Path(folder, "pids").write_text(f"{os.getpid()} {child.pid}")
    return "all is well"


def naps(seconds: float) -> str:
    time.sleep(seconds)
    return f"slept {seconds:g} s"


def made(name: str, function: str = "", limit: float = 30, **rest: Any) -> Check:
    return Check(name, f"test_doctor:{function or name}", limit=limit, **rest)


def alive(folder: Path) -> list[int]:
    """Of the processes that a check wrote down, those that are there (and not only their entries, which init clears away)."""
    pids = map(int, (folder / "pids").read_text().split())
    return [pid for pid in pids if driver.command(pid) not in ("", "gone")]


Report = tuple[int, list[str], dict[str, Any]]
Examine = Callable[..., Report]


@pytest.fixture
def examine(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Examine:
    """Run the command: (exit code, the lines before the last, the last as JSON)."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))

    def run(checks: Sequence[Check], *arguments: str) -> Report:
        code = doctor.main(arguments, checks)
        *lines, last = capfd.readouterr().out.splitlines()
        return code, lines, json.loads(last)

    return run


# the driver


@linux
@pytest.mark.slow
def test_each_end_is_told_as_it_is(examine: Examine, tmp_path: Path) -> None:
    checks = [
        made("sees", arguments={"what": "a light"}), made("finds_fault"), made("breaks"), made("skips"), made("dies"),
        made("hangs", limit=4, arguments={"folder": str(tmp_path)}), made("missing", "no_such_function"),
        made("wants_gpus", "sees", gpus=1000, arguments={"what": "the impossible"}),
    ]  # fmt: skip
    code, lines, whole = examine(checks, "--json", str(tmp_path / "all.json"))
    assert code == 1
    found = {name: (result["is"], result["said"]) for name, result in whole["checks"].items()}
    assert list(found) == [check.name for check in checks]
    assert found["sees"] == ("ok", "saw a light")
    assert found["finds_fault"] == ("FAIL", "the device is\ntoo warm")
    assert found["breaks"][0] == "FAIL"
    assert found["breaks"][1].startswith("KeyError: 'no such key' (test_doctor.py:")
    assert found["skips"] == ("skip", "it is the wrong machine")
    assert found["dies"] == ("FAIL", "its process ended with 3 and told nothing: a last word")
    assert found["hangs"] == ("FAIL", "not done after 4 s, and was ended: it printed nothing")
    assert 4 <= whole["checks"]["hangs"]["seconds"] < 10
    assert found["missing"][0] == "FAIL"
    assert "no_such_function" in found["missing"][1]
    assert found["wants_gpus"][0] == "skip"
    assert "need 1000 GPUs" in found["wants_gpus"][1]
    assert alive(tmp_path) == []
    assert whole["counts"] == {"ok": 1, "FAIL": 5, "skip": 2}
    assert json.loads((tmp_path / "all.json").read_text()) == whole

    ran = [[kind, name] for name, (kind, _) in found.items() if kind != "skip"]
    assert [line.split()[:2] for line in lines[: len(ran)]] == ran
    assert "the device is too warm" in lines[1]  # one line
    unchecked = [line for line in lines if line.startswith("Not checked: ")]
    assert unchecked == [f"Not checked: {text}" for text in whole["not_checked"]]
    assert unchecked[:2] == ["Not checked: the far side of the moon", "Not checked: it is the wrong machine (skips)"]
    assert "(wants_gpus)" in unchecked[2]
    assert lines[len(ran) :] == ["", *unchecked, whole["verdict"]]
    assert whole["verdict"].startswith("something FAILED: 1 ok, 5 FAIL, 2 not checked, ")


@linux
@pytest.mark.slow
def test_what_a_check_leaves_is_a_failure(examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppedu.doctor.driver.GRACE", 0.3)
    code, _, whole = examine([made("leaves", arguments={"folder": str(tmp_path)})])
    assert code == 1
    assert whole["checks"]["leaves"]["said"].startswith("left behind (processes): ")
    assert alive(tmp_path) == []


@pytest.mark.slow
def test_where_all_is_well_the_exit_code_is_0(examine: Examine) -> None:
    checks = [made("sees", arguments={"what": "a light"}), made("skips")]
    assert examine(checks)[0] == 0
    code, _, whole = examine(checks, "--only", "skips")
    assert (code, list(whole["checks"])) == (0, ["skips"])


@pytest.mark.slow
def test_what_the_time_is_too_short_for_is_said(examine: Examine) -> None:
    """And it is no failure: nobody knows."""
    nap = {"seconds": 60}
    code, _, whole = examine(
        [made("first", "naps", 90, arguments=nap), made("second", "naps", 90, arguments=nap)], "--seconds", "4"
    )
    assert code == 0
    assert whole["checks"]["first"]["is"] == whole["checks"]["second"]["is"] == "skip"
    assert whole["checks"]["first"]["said"] == "not checked: out of time, after 4 s of the 90 that it may take"
    assert whole["checks"]["second"]["said"] == "not checked: out of time"
    assert whole["not_checked"] == ["the time was up (first, second)"]
    late = "nothing failed: 0 ok, 0 FAIL, 2 not checked (2 of them because the time was up: --seconds), "
    assert whole["verdict"].startswith(late)
    assert whole["seconds"] < 10


@pytest.mark.slow
def test_what_wants_gpus_runs_once_they_are_seen(
    examine: Examine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two GPUs, of a stand-in for torch. The first check to tell of them is not the one that the others need."""
    (tmp_path / "torch.py").write_text("class cuda:\n    is_available = lambda: True\n    device_count = lambda: 2\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{HERE}")
    light = {"what": "a light"}
    checks = [
        made("first", "sees", share=False, arguments=light), made("two", "sees", gpus=2, arguments=light),
        made("three", "sees", gpus=3, arguments=light), made("last", "sees", arguments=light),
    ]  # fmt: skip
    code, _, whole = examine(checks)
    assert [result["is"] for result in whole["checks"].values()] == ["ok", "ok", "skip", "ok"]
    assert whole["checks"]["three"]["said"] == "NCCL, and a GPU for each rank, need 3 GPUs, and here are 2"
    assert (code, whole["gpus"], whole["budget"]) == (0, 2, 600)


@pytest.mark.parametrize(("spent", "given"), [(0, 90), (200, 32), (230, None)])
def test_a_check_may_take_its_limit_and_what_is_left(
    spent: float, given: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 240 s, 8 are kept for the end; what is not begun then is told."""
    monkeypatch.setattr(driver, "looked", lambda check, folder, seconds: {"is": "ok", "said": seconds})
    examination = driver.Examination([], None, lambda name, result: None)
    examination.began -= spent
    result = examination._result(made("x", limit=90), Path("/t"))
    assert result["said"] == ("not checked: out of time" if given is None else pytest.approx(given, abs=0.1))


def test_several_gpus_get_more_time() -> None:
    examination = driver.Examination([], None, lambda name, result: None)
    assert (examination.budget, driver.ONE_GPU) == (240, 240)
    examination.gpus = 2
    assert (examination.budget, driver.SEVERAL) == (600, 600)


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert {"environment", "fork_server", "equal_every_schedule", "hangs", "torchrun", "nccl_several_steps"} <= set(
        names
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--only", "equal,equl"], "there is no check 'equl': the names are environment, fork_server, "),
        (["--seconds", "0"], "--seconds is a number above 0: 0"),
        (["--seconds", "nan"], "--seconds is a number above 0: nan"),
        (["--only", "equal", "--json", "no/such/folder/x.json"], "No such file or directory"),
    ],
)
def test_mistakes_end_in_a_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(arguments) == 2
    assert sentence in capsys.readouterr().err


def test_a_line_fits_but_what_failed_is_told_in_full() -> None:
    long = {"seconds": 1.0, "said": "x" * 300}
    assert len(doctor._line("name", {"is": "ok", **long}, 20)) == 160
    assert doctor._line("name", {"is": "FAIL", **long}, 20).endswith("x" * 300)


@pytest.mark.parametrize(
    ("before", "share", "seen"),
    [(None, True, "0"), (None, False, None), ("2,3", True, "2"), ("2,3", False, "2,3"), ("", True, "")],
)
def test_ranks_that_share_see_one_gpu(
    before: str | None, share: bool, seen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if before is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    made_up = driver.environment(made("x", share=share), Path("/t"), "m")
    assert made_up.get("CUDA_VISIBLE_DEVICES") == seen


@linux
@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_driver_that_is_ended_leaves_no_check(end: signal.Signals, tmp_path: Path) -> None:
    """Of the check's process this holds however the driver ends; of what left its session, where the driver can still act."""
    code = (
        "import sys, test_doctor as t; from ppedu import doctor;"
        "sys.exit(doctor.main([], [t.made('hangs', limit=60, arguments={'folder': sys.argv[1]})]))"
    )
    driving = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}", "TMPDIR": str(tmp_path)},
    )
    try:
        wait(lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2)
        check = int((tmp_path / "pids").read_text().split()[0])
        driving.send_signal(end)
        assert driving.wait(20) == (130 if end is signal.SIGINT else -end)
        wait(lambda: check not in alive(tmp_path))
        if end is signal.SIGINT:
            assert alive(tmp_path) == []
    finally:
        driving.kill()
        for pid in alive(tmp_path):
            os.kill(pid, signal.SIGKILL)


def wait(until: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.perf_counter() + seconds
    while not until():
        assert time.perf_counter() < deadline
        time.sleep(0.05)


def test_the_driver_is_light(fresh_python: Callable[[str], str]) -> None:
    found = fresh_python("import sys, ppedu.doctor; print(*{'torch', 'matplotlib', 'numpy'} & sys.modules.keys())")
    assert found.split() == []


def test_the_subcommand_ends_with_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    doctor.add_command(parser.add_subparsers())
    for code in (0, 1):
        monkeypatch.setattr(doctor, "examine", lambda options, code=code: code)
        options = parser.parse_args(["doctor", "--only", "equal"])
        if code == 0:
            options.command(options)
        else:
            with pytest.raises(SystemExit) as end:
                options.command(options)
            assert end.value.code == 1


@linux
@pytest.mark.slow
def test_files_in_shared_memory_that_nobody_holds_are_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = import_module("ppedu.doctor.machine")
    monkeypatch.setattr(machine, "SHARED", tmp_path)
    (tmp_path / "old").touch()
    before = machine.in_shared_memory()
    (tmp_path / "left").touch()
    with (tmp_path / "held").open("w"):
        assert machine.left_in_shared_memory(before) == [str(tmp_path / "left")]
    assert machine.left_in_shared_memory(before) == [str(tmp_path / "held"), str(tmp_path / "left")]


# the real checks


SOME = ("environment", "fork_server", "equal", "raises", "stops")


@pytest.mark.slow
def test_checks_pass_here(examine: Examine) -> None:
    code, _, whole = examine(CHECKS, "--only", ",".join(SOME))
    told = {name: result["said"] for name, result in whole["checks"].items()}
    assert code == 0, told
    assert tuple(told) == SOME
    assert "torch" in told["environment"]
    assert told["raises"].startswith("rank 1 in F2 after ")
    assert "several machines and what connects them: this looks at one" in whole["not_checked"]


@pytest.mark.slow
def test_a_fault_that_is_blamed_on_another_rank_is_a_failure(examine: Examine) -> None:
    check = Check("raises", "ppedu.doctor.faults:named", {"fault": "raises", "blamed": 0}, limit=90)
    code, _, whole = examine([check])
    assert code == 1
    assert whole["checks"]["raises"]["said"].startswith("not rank 0 in F2 is blamed, but rank 1 in F2 after ")


def called(calls: str, **arguments: Any) -> str:
    """A check's function, in this process: what it saw."""
    module, _, name = calls.partition(":")
    seen: str = getattr(import_module(f"ppedu.doctor.{module}"), name)(**arguments)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calls", "arguments", "said"),
    [
        ("runs:schedules", {"backend": "gloo", "reduction": "sum"}, r"naive p=2 m=4: .* is off by \d"),
        ("runs:schedules", {"backend": "gloo", "tolerance": -1.0}, "where -1e\\+00 is allowed"),
        ("runs:one", {"backend": "nccl", "p": 2, "steps": 1}, "1F1B p=2 m=8: it ran over gloo, not over nccl"),
        ("faults:named", {"fault": "killed", "at": 2, "blamed": 1}, "not rank 1 in F2 is blamed, but rank 2 in F2"),
    ],
)
def test_checks_can_fail(calls: str, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(Failed, match=said):
        called(calls, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calls", "arguments", "said"),
    [
        ("torchrun:equal", {"backend": "gloo"}, r"off by \de-1\d; measured: 2 CPU processes"),
        (
            "torchrun:raises",
            {"within": 60},
            r"exit code 1, \d+\.\d s after it happened: rank 1 on \S+ failed in F2 of step 1",
        ),
        ("runs:dtypes", {}, r"off by at most: float32 \de-.*, int64 into the second rank "),
        ("machine:memory", {"width": 64, "samples": 256}, r"activations \S+ \S+ \S+ \S+ MB under 1F1B, "),
    ],
)
def test_more_checks_pass_here(calls: str, arguments: dict[str, Any], said: str) -> None:
    assert re.match(said, called(calls, **arguments))


@pytest.mark.slow
def test_an_operation_before_what_it_needs_is_found() -> None:
    """A simulated timeline, in which rank 1 starts F1 as early as 0.25 before rank 0 has ended it."""
    schedule = ppedu.gpipe(2, 2)
    right = ppedu.simulate(schedule)
    early = replace(
        right, spans=tuple(replace(s, start=s.start - 0.25) if str(s.action) == "1F1" else s for s in right.spans)
    )
    found = import_module("ppedu.doctor.runs").backwards
    assert found(SimpleNamespace(schedule=schedule, timelines=[right])) == 0
    with pytest.raises(Failed, match=r"an operation starts 250\.00 ms before what it needs"):
        found(SimpleNamespace(schedule=schedule, timelines=[early]))


@pytest.mark.slow
def test_the_machine_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs, as torch would tell of them."""
    import torch

    cuda, ones = torch.cuda, torch.ones
    facts: dict[str, Any] = {
        "is_available": True, "device_count": 2, "get_device_name": "GPU X", "get_arch_list": ["sm_80", "sm_90"],
        "get_device_capability": (9, 0), "can_device_access_peer": True,
    }  # fmt: skip
    for name, fact in facts.items():
        monkeypatch.setattr(cuda, name, lambda *_, fact=fact: fact)
    monkeypatch.setattr(cuda, "nccl", SimpleNamespace(version=lambda: (2, 27, 5)))
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch, "ones", lambda count, device: ones(count))
    told = called("machine:environment")
    assert "; 2 x GPU X (sm_90; torch has sm_80 sm_90), CUDA " in told
    assert ", NCCL 2.27.5, 2 of 2 pairs reach each other's memory; " in told
    monkeypatch.setattr(torch, "ones", lambda count, device: ones(count) * (1 if device == "cuda:0" else 2))
    with pytest.raises(Failed, match=re.escape("GPU 1 says that 1 + 1 is 4")):
        called("machine:environment")


@pytest.mark.slow
def test_checks_for_several_gpus_run_here_where_they_can() -> None:
    """What they have of their own; NCCL itself needs GPUs."""
    assert called("runs:large_messages", backend="gloo", mib=1).startswith("8 messages of 1 MiB a step; off by ")
    try:
        told = called("runs:unpaced", p=2, width=64, samples=64)
    except Failed as found:  # so small operations are none to predict from, and here ranks share cores
        told = str(found)
    assert re.match(r"\d+\.\d{3} of the prediction, ", told)
    assert called("runs:one", backend="gloo", p=None, steps=2).startswith("off by ")
