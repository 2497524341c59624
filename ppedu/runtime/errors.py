"""What a run that fails says."""

from __future__ import annotations


class RunError(RuntimeError):
    """A run that could not go on. One rank is the cause; its peers, which only lost it, are not reported.

    rank: the rank that failed, or None where no single rank did.
    host: the name of its machine, where the ranks are on a world that torchrun (or the like) made; else None.
    action: the operation that it was in, as text ("F3"), or None before the first one.
    step: the training step, from 0, or None before the first one.
    traceback: that rank's own traceback, or "" where it could not write one (it was killed, or hung).
    told_here: whether this process prints it where nobody catches it. Under torchrun one rank of each host does.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        host: str | None = None,
        action: str | None = None,
        step: int | None = None,
        traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.rank, self.host, self.action, self.step, self.traceback = rank, host, action, step, traceback
        self.told_here = True  # False on all ranks of a host but one, so that it is printed once a host


class RunStopped(RunError):  # noqa: N818 - nobody made a mistake
    """A run that ended because its caller asked for it (`train(..., stop=event)`)."""
