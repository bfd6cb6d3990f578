"""A page that computes (lab/live.py): its worker, its view, and the Python behind them.

Pyodide is played: the worker's `loadPyodide` is a stand-in whose Python answers on this server, with the real `Live`.
"""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from parallel_lab.base.errors import ArgumentError, DataFileError
from parallel_lab.lab.live import Live
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.shared.replay import Limits
from tests.browser.lab_page import FEW, MARKS, browser, sync_api
from tests.lab.labs import LABS

__all__ = ["browser"]  # the fixture

expect = sync_api.expect
# what stands where Pyodide would: it asks this server, which answers with everything that Live has posted since
PYODIDE = """export const loadPyodide = async () => {
  const given = {};
  const ask = async (where, text) => {
    const answer = await fetch(new URL(`/${where}`, import.meta.url), { method: "POST", body: text });
    for (const one of await answer.json()) given.post(one);
  };
  return { loadPackage: async () => {}, globals: { set: (name, value) => { given[name] = value; } },
    runPythonAsync: async (code) => {
      await ask("begin", given.state);
      return { receive: (text) => { ask("tell", text); } };
    } };
};
"""


def small() -> MemoryLab:
    return LABS["memory"]()


@pytest.mark.parametrize("name", LABS)
@pytest.mark.quick(2)
def test_behind_a_page_is_the_view_that_notebooks_have(name):
    posts: list[str] = []
    lab = LABS[name]()
    behind = Live(posts.append, json.dumps(lab.state()))
    (first,) = map(json.loads, posts)
    assert first["traits"]["snapshot"]["title"] == lab.snapshot()["title"]
    parts = {f"part_{name}" for name in lab.apart}
    assert set(first["traits"]) >= {"snapshot", "progress", "last_error", "loss_parallel"} | parts
    behind.receive(json.dumps({"command": "no such", "arguments": [], "number": 3}))
    heard = [json.loads(post) for post in posts[1:]]
    assert heard[-1]["message"] == {"kind": "answered", "number": 3, "refused": True}
    assert any("no such" in (one.get("traits", {}).get("last_error") or "") for one in heard)
    behind.view.close()


def test_a_state_of_another_form_and_a_strange_address_are_refused(tmp_path):
    with pytest.raises(DataFileError, match="not the file of a lab"):
        Live(print, "{}")
    for address in ("ftp://x/", "https://x", "https://x/'; script-src *;/", 3):
        with pytest.raises(ArgumentError, match="a live site"):
            small().to_html(limits=FEW, live=address)


def test_a_live_page_asks_its_site_and_nothing_else():
    text = small().to_html(limits=FEW, live="https://school.example/lab/")
    (policy,) = [line for line in text.splitlines() if "default-src 'none'" in line]
    assert policy.count("https://school.example;") == 2 and "worker-src blob:" in policy
    assert "script-src 'unsafe-inline' 'wasm-unsafe-eval' blob: https://school.example" in policy
    assert 'id="live"' not in small().to_html(limits=FEW)


class _Server(http.server.SimpleHTTPRequestHandler):
    """Files of a folder; what the worker says goes to `behind`."""

    behind: dict[str, Any]

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        posts = self.behind.setdefault("posts", [])
        if self.path == "/begin":
            self.behind["live"] = Live(posts.append, text)
        else:
            self.behind["live"].receive(text)
        answer = json.dumps([posts.pop(0) for _ in range(len(posts))]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(answer)


@pytest.fixture
def served(tmp_path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The address of a live page of the Memory Lab, and what is behind it."""
    place = tmp_path / "static" / "pyodide"
    place.mkdir(parents=True)
    (place / "pyodide.mjs").write_text(PYODIDE, encoding="utf-8")
    (place / "size.json").write_text('{"bytes": 33000000}', encoding="utf-8")
    small().to_html(tmp_path / "memory.html", limits=Limits(16, 10.0), live=True)
    handler = type("Handler", (_Server,), {"behind": {}})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/memory.html", handler.behind
    server.shutdown()
    server.server_close()
    thread.join()
    if "live" in handler.behind:
        handler.behind["live"].view.close()


@pytest.mark.browser
@MARKS[1]
def test_a_page_says_what_it_downloads_and_then_goes_on_where_it_stands(browser, served):
    url, behind = served
    page, broken = browser.new_context().new_page(), []
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.goto(url)
    offer = page.get_by_role("button", name="Compute here (downloads 32 MiB, once)")
    expect(offer).to_be_visible()
    assert not behind  # nothing was asked for before
    page.locator("[data-value=level3]").first.click()
    offer.click()
    expect(page.get_by_text("Python computes here; ranks are simulated.")).to_be_visible()
    lab = behind["live"].lab
    assert lab.choices()["level"].value == "level3"  # what the page had chosen by itself
    status = page.locator(".pl-status").first
    before = status.inner_text()
    page.locator("[data-value=off]").first.click()
    expect(status).not_to_have_text(before)
    assert lab.choices()["level"].value == "off" and broken == []
    page.context.close()
