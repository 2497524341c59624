"""The process of one check: get ready, wait for one's turn, look, and write down what was seen."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def main(task: dict[str, Any]) -> None:
    """task: a Check as a dictionary, and where to write the `result`. A line on stdin says that it is this check's turn;
    the end of stdin, that nobody waits for it any more."""
    with contextlib.suppress(Exception):  # it comes again, and is told, when it is this check's turn
        _function(task)
        if task["launches"]:
            _warm_up()
    if not os.read(sys.stdin.fileno(), 1):
        return
    threading.Thread(target=_end_with_driver, daemon=True).start()
    found = _seen(task)
    new = Path(task["result"] + ".new")
    new.write_text(json.dumps(found), "utf-8")
    new.replace(task["result"])


def _function(task: dict[str, Any]) -> Callable[..., str]:
    module, _, name = task["calls"].partition(":")
    function: Callable[..., str] = getattr(import_module(module), name)
    return function


def _end_with_driver() -> None:
    while os.read(sys.stdin.fileno(), 16):  # not sys.stdin.read(): Python could not end while a thread is in it
        pass
    if hasattr(os, "killpg"):
        os.killpg(os.getpgid(0), signal.SIGKILL)
    os._exit(1)


def _warm_up() -> None:
    """The first run starts the fork server, which takes seconds: the time of this check begins after that."""
    import torch

    import ppedu

    ones = torch.ones(1, 1)
    ppedu.train(
        [torch.nn.Linear(1, 1)],
        ppedu.gpipe(1, 1),
        [(ones, ones)],
        torch.nn.functional.mse_loss,
        device="cpu",
        progress=False,
    )


def _seen(task: dict[str, Any]) -> dict[str, Any]:
    """What to report of a check: is (ok, FAIL or skip), said, unseen, and the number of GPUs that it saw."""
    from ppedu.doctor import verdict

    found: dict[str, Any] = {"is": "ok"}
    try:
        if task["gpus"] and verdict.gpus() < task["gpus"]:
            raise verdict.Skipped(verdict.too_few(task["gpus"], verdict.gpus()))
        found["said"] = _function(task)(**task["arguments"])
    except verdict.Skipped as why:
        found = {"is": "skip", "said": str(why)}
    except verdict.Failed as what:
        found = {"is": "FAIL", "said": str(what)}
    except BaseException as error:  # a check that ends in any other way has found something too
        place = traceback.extract_tb(error.__traceback__)[-1]
        found = {"is": "FAIL", "said": f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"}
    return found | {"unseen": verdict.all_unseen(), "gpus": None if task["share"] else verdict.gpus()}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
