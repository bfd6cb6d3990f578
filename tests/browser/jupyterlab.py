"""A real JupyterLab in a real Chromium, for the browser tests.

    with jupyterlab(folder) as url, chromium_page() as page:
        watch = Watch(page, url)
        book = Notebook(page, url, "01_quickstart.ipynb")
        book.run_all()
        assert not book.errors() and not watch.outside and not watch.broken

Tests take a notebook from the fixture `opened`: one server and one page serve all tests of a file, `NOTEBOOKS` of the
file names those of ours that it opens, and `PLAB_SHOTS=folder` keeps a screenshot of each test.

The server listens on 127.0.0.1 with settings and workspaces of its own in a temporary folder, shows no news and asks
nothing of the network. Outputs are read from the notebook's model: the page holds only those that are on screen.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from tests import conftest as everywhere
from tests.browser.lab_page import CHROMIUM, FLAGS, sync_api

MARKS = [pytest.mark.browser, pytest.mark.skipif(not CHROMIUM, reason="no chromium")]
REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 60  # until something that must happen counts as missing; the machine may be busy
ENDED = "Canceled future for"  # what JupyterLab raises where a kernel ends that still owes an answer
CURRENT = "window.jupyterapp.shell.currentWidget"


def until(what: Callable[[], Any], timeout_s: float = PATIENCE_S, interval_s: float = 0.05) -> bool:
    """Look until `what()` holds; whether it did in time."""
    end = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(interval_s)
    return True


# ---- server and browser ----


@contextlib.contextmanager
def jupyterlab(root: Path) -> Iterator[str]:
    """A JupyterLab server for the files in `root`; yields its address. At the end it shuts its kernels down."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = Path(tempfile.mkdtemp(prefix="jupyterlab-"))
    (home / "labconfig").mkdir()
    quiet = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
    (home / "labconfig/default_setting_overrides.json").write_text(json.dumps(quiet))
    # all but those of the extra `live`: made for JupyterLite, they raise in a JupyterLab
    (home / "labextensions").mkdir()
    for extension in Path(sys.prefix, "share/jupyter/labextensions").glob("*"):
        if extension.name != "@jupyterlite":
            (home / "labextensions" / extension.name).symlink_to(extension)
    env = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(home),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    command += [
        "--ServerApp.port_retries=0",
        "--IdentityProvider.token=",
        f"--ServerApp.root_dir={root}",
        "--LabApp.expose_app_in_browser=True",
    ]
    command += [
        "--LabApp.extension_manager=readonly",
        f"--LabApp.labextensions_path={home / 'labextensions'}",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        # a language server that lies in this environment (pyrefly is one) would start, and outlive JupyterLab
        "--LanguageServerManager.autodetect=False",
    ]
    with (home / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    url = f"http://127.0.0.1:{port}"

    def up() -> bool:
        assert server.poll() is None, (home / "server.log").read_text()[-2000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/api/status", timeout=1):
            return True
        return False

    try:
        assert until(up), (home / "server.log").read_text()[-2000:]
        yield url
    finally:
        server.terminate()  # the server ends its kernels first
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(15)
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def chromium_page(width: int = 1280, height: int = 1000) -> Iterator[Any]:
    """A page of a new Chromium; clicks and waits are patient."""
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        page = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce").new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        try:
            yield page
        finally:
            browser.close()


class Watch:
    """What must not happen on a page: `outside`, requests to anything but `url`; `broken`, uncaught exceptions."""

    def __init__(self, page: Any, url: str) -> None:
        self.outside: list[str] = []
        self.broken: list[str] = []
        sockets = url.replace("http", "ws", 1)
        page.on(
            "request",
            lambda r: (
                self.outside.append(r.url) if r.url.startswith("http") and not r.url.startswith(f"{url}/") else None
            ),
        )
        page.on("websocket", lambda s: self.outside.append(s.url) if not s.url.startswith(f"{sockets}/") else None)
        page.on("pageerror", lambda e: None if ENDED in str(e) else self.broken.append(str(e)))


# ---- a notebook ----


class Notebook:
    """A notebook that is open in the page, and its kernel."""

    def __init__(self, page: Any, url: str, name: str) -> None:
        self.page = page
        page.goto(f"{url}/lab/tree/{name}?reset")  # reset: no workspace of an earlier test
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        self.wait_idle()

    def wait_idle(self) -> None:
        self.page.wait_for_function(f"() => {CURRENT}?.context?.sessionContext?.session?.kernel?.status === 'idle'")

    def run_all(self) -> None:
        """Run all cells and wait until the kernel has answered the last one."""
        # the command ends at the first error, also at one that is meant, while the cells behind it still run; the
        # kernel answers in turn
        self.page.evaluate(
            "async () => { await window.jupyterapp.commands.execute('notebook:run-all-cells');"
            f" await {CURRENT}.context.sessionContext.session.kernel.requestKernelInfo(); }}"
        )
        self.wait_idle()

    def run_cell(self, number: int, wait: bool = True) -> None:
        """Run one cell (counted over all cells, from 0)."""
        self.page.evaluate(
            f"(i) => {{ const book = {CURRENT}.content; book.activeCellIndex = i; book.deselectAll();"
            " window.ran = window.jupyterapp.commands.execute('notebook:run-cell'); return null; }",
            number,
        )
        if wait:
            self.page.evaluate("() => window.ran")

    def command(self, name: str) -> None:
        """Start a command of JupyterLab, such as "kernelmenu:interrupt"; does not wait for its end."""
        self.page.evaluate("(name) => { window.jupyterapp.commands.execute(name); return null; }", name)

    def cells(self) -> list[dict[str, Any]]:
        """The code cells as the model has them: id, execution_count, outputs."""
        return self.page.evaluate(
            f"() => [...{CURRENT}.content.model.cells].filter((c) => c.type === 'code')"
            ".map((c) => ({ id: c.id, execution_count: c.executionCount, outputs: c.outputs.toJSON() }))"
        )

    def errors(self) -> list[str]:
        """Every error output: name and text."""
        return [
            f"{o['ename']}: {o['evalue']}" for c in self.cells() for o in c["outputs"] if o["output_type"] == "error"
        ]

    def printed(self, cell_id: str) -> str:
        """What the cell with this id printed."""
        outputs = next(c["outputs"] for c in self.cells() if c["id"] == cell_id)
        return "".join("".join(o["text"]) for o in outputs if o["output_type"] == "stream")

    def shown(self, cell_id: str) -> str:
        """The value that the cell with this id shows, as text."""
        outputs = next(c["outputs"] for c in self.cells() if c["id"] == cell_id)
        return "".join("".join(o["data"].get("text/plain", "")) for o in outputs if "data" in o)

    def scroll_to(self, number: int) -> None:
        """Bring a cell on screen: JupyterLab draws only those that are."""
        code = (
            f"async (i) => {{ const book = {CURRENT}.content; book.activeCellIndex = i; await book.scrollToItem(i, "
            "'start'); }"
        )
        self.page.evaluate(code, number)


def written(path: Path, *sources: str) -> Path:
    """Write a notebook with these code cells; their ids are c0, c1, ..."""
    cells = [nbformat.v4.new_code_cell(source, id=f"c{i}") for i, source in enumerate(sources)]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    return path


# ---- what a kernel leaves behind ----


def living(pids: list[int]) -> list[int]:
    """Those of `pids` that are processes and not only waiting to be buried."""
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                found.append(pid)
    return found


def descendants(pid: int) -> list[int]:
    """Every process below `pid`."""
    return [p.pid for p in psutil.Process(pid).children(recursive=True)]


def shared_files() -> set[str]:
    """Names in /dev/shm neither Chromium's nor used outside this process's tree: other tests run at the same time."""
    return {
        name for name in everywhere.shared_names() if "chromium" not in name.lower() and not everywhere._of_others(name)
    }


# ---- the fixtures of the tests ----


@pytest.fixture(scope="module")
def world(request, tmp_path_factory) -> Iterator[tuple[Any, str, Path]]:
    """(page, address of the server, folder of its notebooks)."""
    root = tmp_path_factory.mktemp("notebooks")
    for name in getattr(request.module, "NOTEBOOKS", ()):
        shutil.copy(REPOSITORY / "notebooks" / name, root)
    with jupyterlab(root) as url, chromium_page(1280, 1000) as page:
        yield page, url, root


@pytest.fixture
def opened(world, request) -> Iterator[Callable[..., Notebook]]:
    """opened(name, *sources) -> Notebook; at the end: no request outside, no exception, kernel and memory gone."""
    page, url, root = world
    watch, books, names = Watch(page, url), [], shared_files()

    def book(name: str, *sources: str) -> Notebook:
        if sources:
            written(root / name, *sources)
        books.append(Notebook(page, url, name))
        return books[-1]

    yield book
    shot(page, request.node.name)
    if books:
        page.evaluate(f"() => {CURRENT}.context.sessionContext.shutdown()")
    assert not watch.outside, f"asked of the network: {watch.outside}"
    assert not watch.broken, f"raised in the page: {watch.broken}"
    assert until(lambda: shared_files() <= names), shared_files() - names


def shot(page: Any, name: str) -> None:
    """Keep a screenshot in the folder `PLAB_SHOTS`, if there is one."""
    if folder := os.environ.get("PLAB_SHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{re.sub(r'[^a-z0-9-]+', '_', name)}.png")
