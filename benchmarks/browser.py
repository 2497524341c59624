"""The live views in a real JupyterLab and browser: from a slider's move to the painted picture, measured inside the page.

For comparison, in the same run and on the same page: the same picture by matplotlib, redrawn into an ipywidgets.Image.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.table import line

ROOT = Path(__file__).resolve().parent.parent
CELLS = (
    "import io, ipywidgets, ppedu\nfrom matplotlib.figure import Figure",
    "view = ppedu.explore(p=8, m=32); view",
    """
number, image = ipywidgets.IntText(32, continuous_update=True), ipywidgets.Image(format="png")

def draw(_=None):
    timeline = ppedu.simulate(ppedu.one_f_one_b(view.p, number.value))
    figure, png = Figure(figsize=(12, 5)), io.BytesIO()
    ppedu.plot_timeline(timeline, in_flight=True, ax=figure.subplots())
    figure.savefig(png, format="png")
    image.value = png.getvalue()

draw()
number.observe(draw, "value")
ipywidgets.VBox([number, image])""",
)
PAUSE = 300  # ms between single moves: what follows a picture (its details) is over by then


def live_views(rounds: int) -> None:
    """Moves of the explorer's sliders, and matplotlib's answer to the same moves."""
    sys.path.insert(0, str(ROOT / "tests"))  # the tests' JupyterLab and browser
    from browser.real_lab import INSTALL, Lab, LiveView, browser, chromium, python, run_all

    print("\nLive view, 1280 x 720 in JupyterLab: from a slider's move to the painted picture")
    executable = chromium()
    if executable is None:
        print(f"left out: there is no Chromium here ({INSTALL})")
        return
    with tempfile.TemporaryDirectory() as folder, Lab(Path(folder) / "home") as lab, browser(executable) as one:
        page = one.new_page(viewport={"width": 1280, "height": 720})
        run_all(page, lab.write("bench.ipynb", CELLS))
        page.evaluate((ROOT / "benchmarks/browser.js").read_text("utf-8"))
        view = LiveView(page, 1)
        view.until("root => root.dataset.drawn")
        many = 12 * rounds
        slider(view, "microbatches m", [20 + 7 * n % 25 for n in range(8)])  # the first moves fill caches
        single("p=8, m around 32", slider(view, "microbatches m", [20 + 7 * n % 25 for n in range(many)]), 40, 80)
        python(page, "view.m = 32")
        single("p=8 m=32, B:F", slider(view, "B takes × F", [1.25 + 0.25 * (5 * n % 12) for n in range(many)]), 40, 80)
        python(page, "view.ratio = 1")
        drag = [float(burst(view, [16 + 2 * n for n in range(1, 16)])) for _ in range(max(3, rounds))]
        line("a burst of 15 moves at 33 ms settles, worst of several", [max(drag)], 150, " ms")
        images = matplotlib(view, [20 + 7 * n % 25 for n in range(2 * rounds)])
        line("matplotlib into ipywidgets.Image, p=8, m around 32", images, unit=" ms")
        python(page, "view.p, view.m = 16, 64")
        single("p=16, m 40 to 64", slider(view, "microbatches m", [40 + 7 * n % 25 for n in range(many)]), 100)
        python(page, "view.m = 64")
        single("p=16 m=64, B:F", slider(view, "B takes × F", [1.25 + 0.25 * (5 * n % 12) for n in range(many)]), 100)
        line("matplotlib, p=16", matplotlib(view, [64 - n for n in range(rounds)]), unit=" ms")


def single(what: str, times: Sequence[Sequence[float]], median: float, most: float | None = None) -> None:
    """times: for each move until its picture is painted, and until the frame with it has left the page."""
    drawn, shown = zip(*times, strict=True)
    line(what, drawn, median, " ms")
    if most is not None:
        line(f"{what}: 95 % are within", [statistics.quantiles(drawn, n=20)[-1]], most, " ms")
    line(f"{what}: with the browser's own work on the frame", shown, unit=" ms")


def slider(view: Any, label: str, values: Sequence[float]) -> list[list[float]]:
    """Single moves of one slider, in milliseconds."""
    view.settled()
    bar = view.root.get_by_label(label, exact=True).element_handle()
    move = "([root, bar, values, pause]) => ppeduMeasure.moves(root, bar, values, pause)"
    times: list[list[float]] = view.page.evaluate(move, [view.root.element_handle(), bar, list(values), PAUSE])
    return times


def burst(view: Any, values: Sequence[int]) -> float:
    """One drag: milliseconds from its last move."""
    view.settled()
    bar = view.root.get_by_label("microbatches m", exact=True).element_handle()
    drag = "([root, bar, values]) => ppeduMeasure.burst(root, bar, values, 33)"
    return float(view.page.evaluate(drag, [view.root.element_handle(), bar, list(values)]))


def matplotlib(view: Any, values: Sequence[int]) -> list[float]:
    """The same moves, answered by a new PNG."""
    last = view.page.locator(".jp-Notebook-cell").nth(2)
    number, image = last.locator("input").element_handle(), last.locator("img").element_handle()
    redraw = "([number, image, values]) => ppeduMeasure.images(number, image, values, 100)"
    return [float(ms) for ms in view.page.evaluate(redraw, [number, image, list(values)])]
