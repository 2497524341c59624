"""What a run that fails says."""

from __future__ import annotations


class RunError(RuntimeError):
    """A run that could not go on. One rank is the cause; its peers, which only lost it, are not reported.

    rank: the rank that failed, or None where no single rank did.
    action: the operation that it was in, as text ("F3"), or None before the first one.
    step: the training step, from 0, or None before the first one.
    traceback: that rank's own traceback, or "" where it could not write one (it was killed, or hung).
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        action: str | None = None,
        step: int | None = None,
        traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.rank, self.action, self.step, self.traceback = rank, action, step, traceback


class RunStopped(RunError):  # noqa: N818 - nobody made a mistake
    """A run that ended because its caller asked for it (`train(..., stop=event)`)."""
