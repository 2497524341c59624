"""One JupyterLab and one browser for all tests of this folder; none where there is no Chromium.

They end with this folder, not with the session: other tests look for processes that are left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from browser.real_lab import INSTALL, Lab, LiveView, browser, chromium, run_all, set_theme

CELLS = (
    "import ppedu\nfrom ppedu.course import train_course",
    "one = ppedu.explore(p=4, m=8, train=train_course); one",
    "two = ppedu.explore_compare(p=4, m=8, train=train_course); two",
    "built = ppedu.course.puzzle(level=1); built",
    "built",
)


@pytest.fixture(scope="package")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    pytest.importorskip("playwright")
    if chromium() is None:
        pytest.skip(f"there is no Chromium: {INSTALL}")
    with Lab(tmp_path_factory.mktemp("lab") / "home") as lab:
        yield lab


@pytest.fixture(scope="module")
def complaints() -> list[str]:
    """What the page threw, or said of our modules as an error."""
    return []


@pytest.fixture(scope="module")
def notebook(lab: Lab, complaints: list[str]) -> Iterator[Any]:
    """The page with all live views, each in its cell."""
    with browser(chromium() or "") as one:
        page = one.new_page(viewport={"width": 1280, "height": 720})
        page.on("pageerror", lambda error: complaints.append(str(error)))
        run_all(page, lab.write("live.ipynb", CELLS))
        page.wait_for_function("document.querySelectorAll('.ppedu[data-drawn]').length === 4", timeout=30_000)
        yield page


@pytest.fixture
def page(notebook: Any) -> Iterator[Any]:
    """The page in its usual size and theme."""
    yield notebook
    notebook.set_viewport_size({"width": 1280, "height": 720})
    set_theme(notebook, "JupyterLab Light")


@pytest.fixture
def explore(page: Any) -> LiveView:
    return LiveView(page, 1).settled()


@pytest.fixture
def compare(page: Any) -> LiveView:
    return LiveView(page, 2).settled()


@pytest.fixture
def puzzle(page: Any) -> LiveView:
    return LiveView(page, 3).settled()
