"""`ppedu doctor`: one command that proves what real runs stand on, GPUs or CPU, on the machine where it is called.

A line for each check that ran, with what was seen; a line for each reason why others did not; the verdict; and all of it as
JSON in the last line. The exit code is 0 where nothing failed, else 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ppedu.doctor.driver import ONE_GPU, OUT_OF_TIME, SEVERAL, Examination, Result
from ppedu.doctor.table import CHECKS, Check

__all__ = ["add_command", "main"]

COLUMNS = 160
TIME_UP = "the time was up"
DESCRIPTION = f"""\
Prove that pipelines run here for real, on GPUs or CPU cores, in {ONE_GPU / 60:g} minutes at most, {SEVERAL / 60:g} where there are several GPUs.
Each check is a process of its own, with a limit; what could not be checked is said."""


def add_command(commands: Any) -> None:
    """Add `doctor` to a parser's sub-commands (what add_subparsers returned)."""
    parser = commands.add_parser("doctor", help="prove that real runs work on this machine, GPU or CPU")
    _add_options(parser)
    parser.set_defaults(command=_command)


def main(arguments: Sequence[str] | None = None, checks: Sequence[Check] = CHECKS) -> int:
    """`python -m ppedu.doctor`: the exit code, 0 where nothing failed, 1 where something did, 2 for a mistake."""
    parser = argparse.ArgumentParser("ppedu doctor")
    _add_options(parser)
    try:
        return examine(parser.parse_args(arguments), checks)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"ppedu doctor: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("ppedu doctor: interrupted, no process is left\n")
        return 130


def _command(options: argparse.Namespace) -> None:
    if code := examine(options):
        raise SystemExit(code)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.formatter_class = DESCRIPTION, argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--only", metavar="NAMES", help="these checks alone, with commas between them")
    add("--list", action="store_true", help="the names of all checks, and what each is at most: seconds, GPUs it needs")
    add("--seconds", type=float, help=f"for all checks together (default {ONE_GPU:g}, with several GPUs {SEVERAL:g})")
    add("--json", type=Path, metavar="FILE", help="write the result there too")


def examine(options: argparse.Namespace, checks: Sequence[Check] = CHECKS) -> int:
    """Run the checks that the options name, and report: 0 where nothing failed, else 1. Raises ValueError for a mistake."""
    chosen = _chosen(options, checks)
    if options.list:
        _say(*(f"{c.name:30} {c.limit:4g} s{f'  {c.gpus} GPUs' if c.gpus else ''}" for c in chosen))
        return 0
    if options.json:
        options.json.write_text("", "utf-8")  # a folder that is not there is told now, not at the end
    width = max(len(check.name) for check in chosen)

    def tell(name: str, result: Result) -> None:
        if result["is"] != "skip":  # those are told at the end, together where the reason is the same
            _say(_line(name, result, width))

    examination = Examination(chosen, options.seconds, tell)
    examination.run()
    whole = _summary(examination)
    _say("", *(f"Not checked: {sentence}" for sentence in whole["not_checked"]), whole["verdict"])
    if options.json:
        options.json.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")
    _say(json.dumps(whole))
    return 1 if whole["counts"]["FAIL"] else 0


def _chosen(options: argparse.Namespace, checks: Sequence[Check]) -> list[Check]:
    names = [check.name for check in checks]
    wanted = names if options.only is None else [name.strip() for name in options.only.split(",")]
    if unknown := [name for name in wanted if name not in names]:
        raise ValueError(f"there is no check {unknown[0]!r}: the names are {', '.join(names)}")
    if options.seconds is not None and not 0 < options.seconds < float("inf"):
        raise ValueError(f"--seconds is a number above 0: {options.seconds:g}")
    return [check for check in checks if check.name in wanted]


def _line(name: str, result: Result, width: int) -> str:
    """One line; what failed is told in full, the rest as far as the line goes."""
    line = f"{result['is']:4} {name:{width}} {result['seconds']:5.1f} s  {' '.join(result['said'].split())}"
    return line if result["is"] == "FAIL" or len(line) <= COLUMNS else line[: COLUMNS - 1] + "…"


def _summary(examination: Examination) -> dict[str, Any]:
    """All that was found, as plain data."""
    results = examination.results
    unseen = [text for result in results.values() for text in result.pop("unseen", ())]
    skipped: dict[str, list[str]] = {}  # names of checks, by the reason
    for name, result in results.items():
        result.pop("gpus", None)
        if result["is"] == "skip":
            late = result["said"].startswith(OUT_OF_TIME)
            skipped.setdefault(TIME_UP if late else result["said"], []).append(name)
    counts = {kind: sum(r["is"] == kind for r in results.values()) for kind in ("ok", "FAIL", "skip")}
    return {
        "verdict": _verdict(counts, len(skipped.get(TIME_UP, ())), examination.spent),
        "counts": counts,
        "seconds": round(examination.spent, 1),
        "budget": examination.budget,
        "gpus": examination.gpus,
        "not_checked": [*unseen, *(f"{reason} ({', '.join(names)})" for reason, names in skipped.items())],
        "checks": results,
    }


def _verdict(counts: dict[str, int], late: int, seconds: float) -> str:
    verdict = "something FAILED" if counts["FAIL"] else "nothing failed"
    left = f"{counts['skip']} not checked" + (f" ({late} of them because {TIME_UP}: --seconds)" if late else "")
    return f"{verdict}: {counts['ok']} ok, {counts['FAIL']} FAIL, {left}, {seconds:.1f} s"


def _say(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
