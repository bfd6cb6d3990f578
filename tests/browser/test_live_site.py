"""`parallel-lab site --live`: a site from npm's Pyodide, which has no numpy, in node and in Chromium without a network.

What a full folder does nobody has seen here: numpy for Pyodide is in no registry that tests may ask.
"""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import subprocess
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import markupsafe
import pytest

from parallel_lab.base.errors import ArgumentError, DataFileError
from parallel_lab.base.files import shipped_folder
from parallel_lab.cli.live_site import CORE, MARK, own_wheel, write_live_site
from parallel_lab.cli.site_command import chosen_lessons
from tests.browser.lab_page import MARKS, browser
from tests.portable import numpy_stand_in

__all__ = ["browser"]  # the fixture

LIVE = [pytest.mark.exhaustive, pytest.mark.timeout(600)]
CURRENT = "window.jupyterapp?.shell.currentWidget"
# modules that compute when they are imported, which a stand-in for numpy cannot; and what needs packages of computers
COMPUTING = ("exercises.lesson_04", "exercises.lesson_15", "exercises.lesson_16", "lessons.context_parallel")
ELSEWHERE = tuple(f"No module named '{name}'" for name in ("multiprocess", "threadpoolctl", "nbformat"))


@pytest.fixture(scope="module")
def pyodide(tmp_path_factory) -> Path:
    """npm's package: interpreter, Python's library and the lock."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: the interpreter comes from it")
    folder = tmp_path_factory.mktemp("pyodide")
    done = subprocess.run(["npm", "pack", "pyodide@314.0.7"], cwd=folder, capture_output=True, text=True, timeout=200)
    if done.returncode:
        pytest.skip(f"npm found no pyodide: {done.stderr[-300:]}")
    shutil.unpack_archive(next(folder.glob("*.tgz")), folder, filter="data")
    return folder / "package"


@pytest.fixture(scope="module")
def site(pyodide, tmp_path_factory) -> tuple[Path, list[str]]:
    """The site of two lessons, and what was said about it."""
    pytest.importorskip("jupyterlite_core", reason="the extra live is not installed")
    said: list[str] = []
    out = tmp_path_factory.mktemp("live") / "site"
    return write_live_site(out, chosen_lessons(["01", "02"]), pyodide, said.append), said


@pytest.fixture(scope="module")
def url(site) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    settings = site[0] / "jupyter-lite.json"
    config = json.loads(settings.read_text(encoding="utf-8"))
    config["jupyter-config-data"]["exposeAppInBrowser"] = True  # for the test alone
    settings.write_text(json.dumps(config), encoding="utf-8")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site[0])))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def test_our_wheel_has_the_package_and_what_it_ships(tmp_path):
    wheel = own_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        needs = file.read(f"{wheel.name.rsplit('-', 3)[0]}.dist-info/METADATA").decode()
    shipped = {f"parallel_lab/_shipped/notebooks/{path.name}" for path in shipped_folder("notebooks").glob("*.ipynb")}
    assert {
        "parallel_lab/__init__.py",
        "parallel_lab/lab/shared/page.js",
        "parallel_lab-0.1.0.dist-info/RECORD",
    } <= names
    assert len(shipped) > 17 and shipped <= names and not any("__pycache__" in name for name in names)
    assert "Requires-Dist: numpy>=2.0\n" in needs and "Requires-Dist: dill>=0.3.9\n" in needs
    first = wheel.read_bytes()
    assert own_wheel(tmp_path).read_bytes() == first


@pytest.mark.exhaustive
def test_folders_that_are_not_pyodide_or_are_taken_are_refused(tmp_path):
    pytest.importorskip("jupyterlite_core", reason="the extra live is not installed")
    (tmp_path / "taken").mkdir()
    with pytest.raises(DataFileError, match="not made by parallel-lab site --live"):
        write_live_site(tmp_path / "taken", [], tmp_path)
    from parallel_lab.cli.main import _parser

    with pytest.raises(ArgumentError, match="--pyodide"):
        args = _parser().parse_args(["site", "out", "--pyodide", "x"])
        args.run(args)
    folder = tmp_path / "damaged"
    folder.mkdir()
    for name in CORE:
        (folder / name).touch()
    (folder / "pyodide-lock.json").write_text("{")
    with pytest.raises(DataFileError, match=r"pyodide-lock.json: invalid JSON"):
        write_live_site(tmp_path / "new", [], folder)


class TestSite:
    pytestmark = LIVE

    def test_it_says_how_much_is_downloaded_and_what_only_pyodide_builds(self, site):
        place, said = site
        index = (place / "index.html").read_text(encoding="utf-8")
        assert MARK in index and "The first lesson downloads about" in index and "Ranks are\nsimulated" in index
        assert index.count('href="lab/index.html?path=') == 2 and 'href="StrategyLab.html"' in index
        lacking = sorted(line.split()[1].partition("-")[0] for line in said if line.startswith("without "))
        assert lacking == ["markupsafe", "numpy"]
        lock = json.loads((place / "static" / "pyodide" / "pyodide-lock.json").read_text(encoding="utf-8"))
        assert lock["packages"]["parallel-lab"]["imports"] == ["parallel_lab"]
        assert {"numpy", "anywidget", "dill"} <= set(lock["packages"]["parallel-lab"]["depends"])
        assert not {"multiprocess", "safetensors", "threadpoolctl"} & set(lock["packages"])

    def test_in_node_the_wheel_installs_and_with_a_stand_in_for_numpy_every_room_is_imported(self, site):
        if shutil.which("node") is None:
            pytest.skip("node is not installed")
        script, stand_in = Path(__file__).with_name("import_rooms.mjs"), numpy_stand_in.__file__
        given = [str(site[0] / "static" / "pyodide"), stand_in, str(Path(markupsafe.__file__).parent)]
        done = subprocess.run(["node", str(script), *given], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        found = json.loads(done.stdout.splitlines()[-1])
        assert found["python"].startswith("3.14.") and (found["form"], found["system"]) == ("loop", "Browser")
        assert "numpy, which computes everything here, could not be loaded" in found["without"]
        assert found["count"] > 700 and len(found["asked"]) > 100
        for name, fault in found["faults"].items():
            assert name.endswith(COMPUTING) or any(text in fault for text in ELSEWHERE), (name, fault)

    @pytest.mark.browser
    def test_in_chromium_a_labs_page_says_why_it_cannot_compute_and_goes_on_replaying(self, browser, url):
        page = browser.new_context().new_page()
        page.set_default_timeout(120_000)
        page.goto(f"{url}MemoryLab.html")
        page.get_by_role("button", name="Compute here").click()
        page.get_by_text("numpy, which computes everything here, could not be loaded").wait_for()
        assert page.locator("[data-command]:enabled").count() > 3
        page.context.close()

    @pytest.mark.browser
    def test_in_chromium_a_lesson_opens_its_kernel_starts_and_numpy_alone_is_missing(self, browser, url):
        page, foreign = browser.new_context().new_page(), []
        page.set_default_timeout(200_000)

        def only_ours(route: Any) -> None:
            ours = route.request.url.startswith((url, "data:", "blob:"))
            (route.continue_ if ours else lambda: (foreign.append(route.request.url), route.abort()))()

        page.context.route("**/*", only_ours)
        page.goto(url)
        assert "downloads about" in page.inner_text("body")
        page.get_by_role("link").first.click()
        page.wait_for_function(f"() => {CURRENT}?.sessionContext?.session?.kernel?.status === 'idle'")
        page.evaluate(
            f"async () => {{ const book = {CURRENT}.content;"
            " book.activeCellIndex = book.widgets.findIndex((c) => c.model.type === 'code');"
            " await window.jupyterapp.commands.execute('notebook:run-cell'); }"
        )
        end_s, outputs = time.monotonic() + 100, []
        while not outputs and time.monotonic() < end_s:
            page.wait_for_timeout(200)
            outputs = page.evaluate(
                f"() => {CURRENT}.content.widgets.filter((c) => c.model.type === 'code')"
                ".flatMap((c) => c.model.outputs.toJSON()).filter((o) => o.output_type === 'error')"
            )
        assert len(outputs) == 1 and "ImportError" in outputs[0]["ename"]
        assert "numpy, which computes everything here, could not be loaded" in outputs[0]["evalue"]
        assert "its folder lacks Pyodide's numpy" in outputs[0]["evalue"] and foreign == []
        page.context.close()


pytestmark = [MARKS[1]]
