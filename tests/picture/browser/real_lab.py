"""A real JupyterLab and a real browser, for tests and benchmarks: started on free ports in a folder of their own, and ended.

The live views run in somebody else's page; only that page shows whether they work. Nothing here sleeps and hopes: each
step waits for what it needs to be there.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import psutil
from nbformat import v4

ROOT = Path(__file__).resolve().parents[3]
INSTALL = "`apt-get install chromium` (Debian), or `python -m playwright install chromium`"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
]  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    # JupyterLab asks the network for news and for newer versions of itself unless it is told not to.
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True},
    "docmanager-extension/plugin": {"autosave": False},
    "notebook-extension/tracker": {"windowingMode": "none"},  # cells out of sight stay on the page
}


def chromium() -> str | None:
    """The browser's file: the system's, else the one that Playwright installed; None where there is neither."""
    names = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
    found = next((path for path in map(shutil.which, names) if path), None)
    if found:
        return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if os.path.exists(own) else None


def wait_for(what: str, get: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first true value of `get`, or TimeoutError that says what was missing. For what has no event to wait on."""
    end = time.monotonic() + seconds
    while not (value := get()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what} after {seconds:g} s")
        time.sleep(0.02)
    return value


class Lab:
    """A JupyterLab server of its own: its own folder, settings and token; a port that the system chose.

    A context manager: at its end the server is asked to end, with its kernels, and what has not ended then is killed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.books = folder / "books"
        self.token = secrets.token_hex(16)

    def __enter__(self) -> Lab:
        self.books.mkdir(parents=True)
        for name, values in SETTINGS.items():
            path = self.folder / "settings/@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values), "utf-8")
        self.log = (self.folder / "server.log").open("w+", encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "jupyterlab",
            "--no-browser",
            "--ServerApp.port=0",
            "--ServerApp.port_retries=0",
        ]
        command += [f"--ServerApp.root_dir={self.books}", "--LabApp.expose_app_in_browser=True"]
        command += ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        self.process = subprocess.Popen(
            command, cwd=self.folder, env=self._environment(), stdout=self.log, stderr=self.log
        )
        try:
            self.url = wait_for("JupyterLab does not answer", self._answers, 60)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _environment(self) -> dict[str, str]:
        own = {
            "JUPYTER_CONFIG_DIR": "config", "JUPYTER_RUNTIME_DIR": "runtime", "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces", "IPYTHONDIR": "ipython",
        }  # fmt: skip
        folders = {name: str(self.folder / folder) for name, folder in own.items()}
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))  # the ppedu of this folder
        return {**os.environ, **folders, "JUPYTER_TOKEN": self.token, "PYTHONPATH": path}

    def _answers(self) -> str:
        """The server's address, once it has written it down; "" before."""
        if self.process.poll() is not None:
            self.log.seek(0)
            raise RuntimeError(f"JupyterLab ended with {self.process.returncode}:\n{self.log.read()[-3000:]}")
        path = self.folder / "runtime" / f"jpserver-{self.process.pid}.json"
        try:
            return str(json.loads(path.read_text("utf-8"))["url"])
        except (OSError, ValueError):  # not there, or half written
            return ""

    def __exit__(self, *_: object) -> None:
        family = self.family()
        self.process.terminate()  # the server ends its kernels
        _, alive = psutil.wait_procs(family, timeout=10)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=5)
        self.process.wait()
        self.log.close()

    def family(self) -> list[psutil.Process]:
        """The server and everything that it started."""
        try:
            server = psutil.Process(self.process.pid)
            return [server, *server.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def write(self, name: str, cells: Sequence[str]) -> str:
        """Put a notebook into the server's folder; returns the address under which it opens alone on the page."""
        metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        book = v4.new_notebook(cells=[v4.new_code_cell(text) for text in cells], metadata=metadata)
        nbformat.write(book, self.books / name)
        return f"{self.url}doc/tree/{name}?token={self.token}&reset"


@contextmanager
def browser(executable: str) -> Iterator[Any]:
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=executable, headless=True, args=FLAGS)
        try:
            yield one
        finally:
            one.close()


def run_all(page: Any, address: str) -> None:
    """Open a notebook and run all its cells: returns when the last one is done."""
    page.goto(address)
    page.wait_for_function("window.jupyterapp?.shell?.currentWidget?.context?.isReady", timeout=60_000)
    page.evaluate(
        """async () => {
            const panel = window.jupyterapp.shell.currentWidget;
            await panel.context.ready;
            await panel.sessionContext.ready;
            await window.jupyterapp.commands.execute("notebook:run-all-cells");
        }"""
    )


def set_theme(page: Any, name: str) -> None:
    """'JupyterLab Dark' or 'JupyterLab Light'."""
    page.evaluate("name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})", name)
    light = str(name != "JupyterLab Dark").lower()
    page.wait_for_function("light => document.body.dataset.jpThemeLight === light", arg=light)


def python(page: Any, code: str) -> str:
    """Run code in the notebook's kernel, beside its cells, and return what it printed."""
    return str(
        page.evaluate(
            """async code => {
                const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
                const said = [];
                const future = kernel.requestExecute({code, store_history: false});
                future.onIOPub = ({content}) => said.push(content.text ?? (content.traceback ?? []).join("\\n"));
                const {content} = await future.done;
                if (content.status !== "ok") throw new Error(said.join(""));
                return said.join("");
            }""",
            code,
        )
    )


class LiveView:
    """One of our widgets on the page, as a user meets it; and what to wait for."""

    def __init__(self, page: Any, cell: int) -> None:
        self.page = page
        self.root = page.locator(".jp-Notebook-cell").nth(cell).locator(".ppedu")

    def __getitem__(self, selector: str) -> Any:
        return self.root.locator(selector)

    def button(self, name: str) -> Any:
        return self.root.get_by_role("button", name=name, exact=True)

    def settled(self) -> LiveView:
        """Wait until the answer to the last move has been painted."""
        self.until("root => +root.dataset.answered >= +root.dataset.asked && !root.view.stale")
        return self

    def until(self, condition: str, arg: Any = None, seconds: float = 20) -> None:
        """Wait until a function of the widget's root element, and of `arg`, is true."""
        handle = self.root.element_handle()
        text = f"([root, arg]) => ({condition})(root, arg)"
        self.page.wait_for_function(text, arg=[handle, arg], timeout=1000 * seconds)

    @property
    def drawn(self) -> int:
        """The number of the scene that is painted."""
        return int(self.root.get_attribute("data-drawn"))

    def pixels(self) -> str:
        """The picture as it is painted."""
        return str(self.root.evaluate("root => root.view.below.toDataURL()"))

    def scene(self, get: str) -> Any:
        """Something of the scene that is shown: "scene => ..."."""
        return self.root.evaluate(f"root => ({get})(root.view.scene)")

    def out_of_column(self) -> list[str]:
        """The elements that are wider than the column that the view has, once it is drawn anew."""
        self.until("root => Math.abs(root.view.box.clientWidth - root.view.wide) < 1 && !root.view.stale")
        found: list[str] = self.root.evaluate(
            """root => [...root.querySelectorAll("*")].filter(one => {
                const box = one.getBoundingClientRect(), mine = root.getBoundingClientRect();
                return box.width && !one.closest(".ppedu-live") && (box.right > mine.right + 1 || box.left < mine.left - 1);
            }).map(one => one.outerHTML.slice(0, 120))"""
        )
        return found

    def point(self, target: str) -> None:
        """Move the mouse to the middle of a target, given as a function of track 0: "track => ({rank: 0, op: 3})"."""
        area = self.root.evaluate(
            f"""root => {{
                const target = {{track: 0, ...({target})(root.view.scene.tracks[0])}};
                root.view.above.scrollIntoView({{block: "center"}});
                const [x, y, w, h] = root.view.area(target), box = root.view.above.getBoundingClientRect();
                return [box.left + x + w / 2, box.top + y + h / 2];
            }}"""
        )
        self.page.mouse.move(*area)

    def tip(self) -> str:
        """What stands in the tip, once there is one."""
        tip = self.root.locator(".ppedu-tip")
        tip.wait_for(state="visible")
        return str(tip.inner_text())
