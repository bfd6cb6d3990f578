"""A lab's page in a real browser: `page_of` for pages of their own, `live` for the page of a kernel.

The live page talks to a real model in this process, through a stand-in of anywidget's `model`: what the page sends are the widget's own commands.
Import the fixtures and `MARKS`: `from tests.browser.lab_page import MARKS, browser, live, page_of`.
"""

from __future__ import annotations

import json
import os
import shutil

import pytest

sync_api = pytest.importorskip("playwright.sync_api")

CHROMIUM = os.environ.get("PLAB_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
MARKS = [pytest.mark.browser, pytest.mark.skipif(not CHROMIUM, reason="no chromium")]

LIVE = """<!doctype html><meta charset="utf-8"><title>live</title><style>body{{margin:0}}{style}</style><div id="lab"></div>
<script type="module">
{script}
const listeners = {{}}, state = {state};
const tell = (name, ...given) => (listeners[name] ?? []).forEach((f) => f(...given));
render({{ el: document.getElementById("lab"), model: {{
  get: (name) => state[name],
  on: (name, f) => (listeners[name] ??= []).push(f),
  off: () => {{}},
  send: async (message) => {{
    Object.assign(state, JSON.parse(await window.python(JSON.stringify(message))));
    tell("change:snapshot"); tell("change:last_error"); tell("msg:custom", {{ kind: "answered", number: message.number }});
  }},
}} }});
</script>"""


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def page_of(browser, tmp_path):
    """page_of(html, scheme=..., width=..., drawn=what is waited for) -> page; at the end: no request left, nothing was raised."""
    asked, broken, contexts = [], [], []

    def opened(html, scheme="light", width=1280, python=None, drawn='[role="region"][data-painted]', **options):
        file = tmp_path / f"page{len(contexts)}.html"
        file.write_text(html, encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        if python is not None:
            page.expose_function("python", python)
        page.on("request", lambda r: asked.append(r.url) if r.url != file.as_uri() else None)
        page.on("pageerror", lambda e: broken.append(str(e)))
        page.on("console", lambda m: broken.append(m.text) if m.type in ("error", "warning") else None)
        page.goto(file.as_uri())
        if options.get("java_script_enabled", True):
            page.wait_for_selector(drawn)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not asked and not broken


@pytest.fixture
def live(page_of):
    """live(view of a lab) -> (page, the view): the page of a kernel. It is closed at the end."""
    widgets = []

    def opened(widget, **options):
        widgets.append(widget)

        def shown() -> str:
            return json.dumps({"snapshot": widget.snapshot, "last_error": widget.last_error})

        def python(message: str) -> str:
            given = json.loads(message)
            widget.command(given["command"], *given["arguments"])
            return shown()

        html = LIVE.format(style=widget._css, script=widget._esm, state=shown())
        return page_of(html, python=python, **options), widget

    yield opened
    for widget in widgets:
        widget.close()
