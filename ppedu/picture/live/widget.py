"""What all live views share: moves and answers, errors that show in the widget, and the real run.

The page sends a move as a message {do: "set", values, asked, gesture}; the answer is one message with everything that
changed and `answered` = `asked`, so that the page sends its next move only then and a burst of moves settles at once.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets
from traitlets import Bool, Dict, Int, TraitError, Unicode

from ppedu.core.timeline import Timeline
from ppedu.picture.live.real_run import IDLE, Job, RealRun, State, Trainer
from ppedu.picture.scene import Scene, Track, details, scene, tracks_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AT_ONCE = 300
"""Operations up to which a scene comes with its details at once; larger ones get them when the moves have settled."""

_PUSH = bytes(65536)
"""Sent after each answer to a page whose server is on this machine, for the page to throw away.

Jupyter's server leaves Nagle's algorithm on (jupyter_server 2.21): an answer smaller than a packet is held back until the
page's system has acknowledged the kernel's "busy" that went ahead of it, and that it puts off for 40 ms. A full packet goes at
once, and on the loopback interface a packet is 64 KiB. From another machine packets are small, and answers fill several."""

Check = Callable[[Any, object], object]


def as_text(value: object, widget: object) -> str:
    """A scene goes to the page as one JSON string: that is quicker than to have its many numbers looked through."""
    return json.dumps(value, separators=(",", ":"))


class WrongValueError(TraitError, ValueError):
    """A control was set to a value that it cannot have: the error that traitlets know, and the one that users expect."""


def enable_in_colab() -> None:
    """Colab shows widgets of others only once this is switched on; elsewhere there is nothing to do."""
    if "google.colab" in sys.modules:
        import_module("google.colab.output").enable_custom_widget_manager()


class View(anywidget.AnyWidget):
    """A picture with its controls in one widget. Setting a trait, here or on the page, recomputes what is shown.

    A wrong value raises ValueError here; where the page sends one, the sentence shows in the widget (`error`) and nothing
    else changes. train: what "Run for real" trains with; None where the view does not run.
    overlay: lay measured and predicted timeline over one another, where there are both (`measured`).
    """

    in_flight = Bool(True).tag(sync=True)
    phases = Bool(True).tag(sync=True)
    critical_path = Bool(False).tag(sync=True)
    large = Bool(False).tag(sync=True)
    overlay = Bool(True).tag(sync=True)
    measured = Bool(False).tag(sync=True)

    scene = Dict().tag(sync=True, to_json=as_text)
    details = Dict().tag(sync=True, to_json=as_text)
    error = Unicode("").tag(sync=True)
    run = Dict().tag(sync=True)
    not_real = Unicode("").tag(sync=True)
    answered = Int(0).tag(sync=True)
    fixed = Dict().tag(sync=True)

    CHECKS: dict[str, Check] = {"overlay": lambda view, value: bool(value)}  # noqa: RUF012 - a table of the class
    LATE: frozenset[str] = frozenset()
    """Those that depend on others: they are checked when all that a move sets is set."""

    def __init__(self, train: Trainer | None = None, **given: Any) -> None:
        enable_in_colab()
        if train is not None and not callable(train):
            raise TypeError(
                f"train is a function that runs a schedule for real, like ppedu.course.train_course: train={train!r:.80}"
            )
        self._train = train
        self._guard = threading.RLock()  # the kernel's thread and the run's thread both change what is shown
        self._number = 0
        self._gesture: object = None
        self._shown: object = None
        self._setting = False
        self._tracks: list[Track] = []
        self._real: RealRun | None = None
        super().__init__(run=IDLE, fixed=self._fixed(), **given)
        self._refresh()
        self._send_details()  # a page that is saved now has them, and reads without a kernel
        self.observe(self._moved, list(self.CHECKS))
        self.on_msg(self._hear)

    def _fixed(self) -> dict[str, Any]:
        """What the page has to know once."""
        return {}

    def _commands(self) -> dict[str, Callable[[dict[str, Any]], None]]:
        """What the page can ask for, by the word that it says."""
        return {
            "set": self._set,
            "details": lambda _: self._send_details(),
            "run": lambda _: self._run(),
            "stop": lambda _: self.stop(),
        }

    # what subclasses fill in

    @property
    def pairs(self) -> tuple[tuple[Timeline, ...], ...]:
        """What is drawn of each schedule: one timeline, or the predicted and the measured one."""
        raise NotImplementedError

    def _follow(self) -> None:
        """Set the traits that cannot stay where they are after a move."""

    def _why_not_real(self) -> str:
        """Why this cannot run for real, or "" where it can."""
        raise NotImplementedError

    def _key(self) -> Any:
        """The position of all controls: where it is the same, there is nothing to compute."""
        raise NotImplementedError

    def _compute(self, key: Any, fresh: bool) -> None:
        """Set the traits that follow from the controls. fresh: a new gesture begins with this move."""
        raise NotImplementedError

    def _jobs(self) -> list[Job]:
        """What "Run for real" is to run."""
        raise NotImplementedError

    def _ran(self, key: Any, runs: Sequence[Any]) -> None:
        """Take the results of a real run that was started at `key`."""
        raise NotImplementedError

    # moves

    @traitlets.validate("overlay")
    def _validate_overlay(self, proposal: Any) -> Any:
        return self._validate(proposal)

    def _validate(self, proposal: Any) -> Any:
        """What subclasses validate their traits with: by CHECKS."""
        try:
            return self.CHECKS[proposal["trait"].name](self, proposal["value"])
        except ValueError as error:
            raise WrongValueError(str(error)) from None

    def _moved(self, _: object) -> None:
        if not self._setting:  # a move that the page made is refreshed when all of it is set
            self._refresh()

    def _refresh(self, fresh: bool = True) -> None:
        """Compute what is shown, if the controls stand elsewhere than before."""
        with self._together():
            self._follow()
            key = self._key()
            if key == self._shown:
                return
            self.error = ""
            self._shown = None  # what fails is tried again by the next move
            self._compute(key, fresh)
            self.not_real = self._why_not_real()
            self._shown = key

    def _draw(self, pairs: Sequence[Sequence[Timeline]], transfer: float | None = 0.0, **how: Any) -> Scene:
        """Put timelines into the next scene, with the details at once where they are few or the picture needs them."""
        self._number += 1
        self._tracks = tracks_of(pairs, transfer)
        few = sum(len(track.timeline.spans) for track in self._tracks) <= AT_ONCE
        self.scene = scene(self._number, self._tracks, whole=few or self.critical_path, **how)
        return self.scene

    @contextmanager
    def _together(self) -> Iterator[None]:
        """One thread at a time, and one message to the page for all that changes."""
        with self._guard, self.hold_sync():
            yield

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """What the page sets by itself: how things are drawn. A wrong value shows and changes nothing."""
        with self._guard, self._shown_errors():
            super().set_state(sync_data)

    @contextmanager
    def _shown_errors(self) -> Iterator[None]:
        """Errors of callbacks vanish in a notebook: show them in the widget."""
        try:
            yield
        except (TraitError, ValueError, RuntimeError) as error:
            self.error = str(error)
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"

    def _hear(self, _widget: object, content: Any, _buffers: object) -> None:
        """A message from the page."""
        with self._together():
            with self._shown_errors():
                commands = self._commands()
                if content["do"] not in commands:
                    raise ValueError(f"the page asks for {content['do']!r}; it can ask for {', '.join(commands)}")
                commands[content["do"]](content)
            if "asked" in content:
                self.answered = content["asked"]
        if content.get("local"):
            self.send({"do": "nothing"}, [_PUSH])

    def _set(self, content: dict[str, Any]) -> None:
        """A move made on the page. It is taken as a whole or not at all."""
        self._setting = True
        try:
            with self.hold_trait_notifications():
                for name, value in content["values"].items():
                    if name not in self.CHECKS:
                        raise ValueError(f"there is no control {name!r}")
                    self.set_trait(name, value if name in self.LATE else self.CHECKS[name](self, value))
        finally:
            self._setting = False
        gesture = content.get("gesture")
        self._refresh(fresh=gesture is None or gesture != self._gesture)
        self._gesture = gesture
        self.error = ""

    def _send_details(self) -> None:
        if self._tracks and self.details.get("number") != self._number:
            self.details = details(self._number, self._tracks)

    # the real run

    def _run(self) -> None:
        if self._real is not None and self.run["busy"]:
            raise RuntimeError("a run is on its way: stop it first")
        if self.not_real or self._train is None:
            raise ValueError(self.not_real)
        self.error = ""
        key = self._key()
        real = RealRun(self._train, self._jobs(), self._tell, lambda runs: self._finish(key, runs))
        real.start()
        self._real = real

    def run_for_real(self) -> None:
        """Press "Run for real": train with these settings, in the background."""
        with self._together():
            self._run()

    def stop(self, wait: float = 0.0) -> None:
        """Press "Stop"; with `wait`, give the run so many seconds to end."""
        if self._real is not None:
            self._real.stop()
            self._real.join(wait)

    def _tell(self, state: State) -> None:
        with self._guard:
            self.run = state

    def _finish(self, key: Any, runs: Sequence[Any]) -> None:
        with self._together():
            self._ran(key, runs)

    def close(self) -> None:
        """Take the view off the page. A run that is on its way is stopped first, and leaves no process."""
        if getattr(self, "_real", None) is not None:
            self.stop(wait=10)
        super().close()

    # text, and the picture on paper

    @property
    def timelines(self) -> tuple[Timeline, ...]:
        """All timelines that are drawn."""
        return tuple(t for pair in self.pairs for t in pair)

    def static(self, **how: Any) -> Axes:
        """The same picture by matplotlib, for the cell above the view. how: arguments of `ppedu.plot_timeline`, which draws
        it, or of `ppedu.plot_compare` where the view compares."""
        from ppedu.picture.paper import plot_compare, plot_timeline

        how = {"in_flight": self.in_flight, "phases": self.phases, "critical_path": self.critical_path, **how}
        timelines = self.timelines
        return plot_timeline(*timelines, **how) if len(self.pairs) == 1 else plot_compare(timelines, **how)

    def __repr__(self) -> str:
        """The view in one line: what notebooks store as its text."""
        return f"live {'view' if len(self.pairs) == 1 else 'comparison'} of {'; '.join(map(repr, self.timelines))}"
