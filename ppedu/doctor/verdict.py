"""How a check says what it found, and what it knows of the machine. A check returns what it saw, in a line of text."""

from __future__ import annotations

_unseen: list[str] = []


class Failed(Exception):  # noqa: N818 - it is a finding
    """The machine, or ppedu on it, does not do what it should."""


class Skipped(Exception):  # noqa: N818 - nobody made a mistake
    """This machine cannot be asked that."""


def require(holds: bool, otherwise: str) -> None:
    """Raise Failed unless it holds. (An assert would pass everything under `python -O`.)"""
    if not holds:
        raise Failed(otherwise)


def unseen(what: str) -> None:
    """Note what this check would look at on another machine: the end of the report lists it."""
    _unseen.append(what)


def all_unseen() -> list[str]:
    return list(_unseen)


def gpus() -> int:
    """GPUs that this process may use."""
    import torch  # what a check needs, it loads itself

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def too_few(needed: int, here: int) -> str:
    return (
        f"NCCL, and a GPU for each rank, need {needed} GPUs, and here {'is' if here == 1 else 'are'} {here or 'none'}"
    )


def device() -> str:
    """Where the ranks of a check compute."""
    return "cuda" if gpus() else "cpu"


def patience() -> float:
    """Seconds of `timeout=` for checks that wait until it is up: more on a GPU, where a rank's first operation starts CUDA."""
    return 6.0 if gpus() else 4.0
