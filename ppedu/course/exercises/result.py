"""What `check` and `reveal` return: a text that a notebook shows, and a picture where there is something to see."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from io import BytesIO

from ppedu.core.timeline import Timeline

_WIDTH = 110  # characters: pages that do not wrap outputs (GitHub's) show this many


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """What is said to an answer.

    text: what a notebook shows. correct: None where nothing was attempted, or an answer could not be read.
    idea: the known wrong idea that the answer was recognised by.
    timelines: what the picture shows, the reader's schedule first; () for no picture.
    """

    text: str
    correct: bool | None
    idea: str | None = None
    timelines: tuple[Timeline, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        lines = [textwrap.fill(line, _WIDTH, break_on_hyphens=False) for line in self.text.splitlines()]
        return "\n".join([*lines, *map(repr, self.timelines)])

    def _repr_png_(self) -> bytes | None:
        """The reader's timeline over the one that was asked for, on one time axis. None where there is none."""
        if not self.timelines:
            return None
        from matplotlib import pyplot as plt

        from ppedu.picture.paper import plot_compare

        file = BytesIO()
        figure = plot_compare(self.timelines).figure
        plt.figure(figure.number)  # type: ignore[union-attr]
        plt.savefig(file, format="png", dpi=100)
        plt.close()
        return file.getvalue()
