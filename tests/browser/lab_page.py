"""A lab's page in a real browser: `page_of` for pages of their own, `live` for the page of a kernel.

The live page talks to a real model in this process, through a stand-in of anywidget's `model`: what the page sends are
the widget's own commands. `recorded` is the page of a kernel that only records what it is asked. Import the fixtures
and `MARKS`: `from tests.browser.lab_page import MARKS, browser, live, page_of`. `boxes` says where elements are.
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

LIVE = """<!doctype html><meta charset="utf-8"><title>live</title>
<style>body{{margin:0}}{style}</style><div id="lab"></div>
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
    tell("change:snapshot"); tell("change:last_error");
    tell("msg:custom", {{ kind: "answered", number: message.number }});
  }},
}} }});
</script>"""

BOXES = (
    "(all) => all.map((e) => { const { x, y, width, height } = e.getBoundingClientRect(); return { x, y, width, "
    "height }; })"
)


def boxes(locator) -> list[dict[str, float]]:
    """`bounding_box()` of all elements in one call, because each call takes milliseconds. Hidden ones are left out."""
    return [box for box in locator.evaluate_all(BOXES) if box["width"] or box["height"]]


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield started
        started.close()


class Tab:
    """A page that shows one file after the other, test after test: a new page takes longer than loading a file."""

    def __init__(self, browser, options) -> None:
        self.page = browser.new_context(**options).new_page()
        self.file, self.asked, self.broken = None, [], []
        self.python = lambda message: None
        self.page.expose_function("python", lambda message: self.python(message))
        self.page.on("request", lambda r: self.asked.append(r.url) if r.url != self.file else None)
        self.page.on("pageerror", lambda e: self.broken.append(str(e)))
        self.page.on("console", lambda m: self.broken.append(m.text) if m.type in ("error", "warning") else None)

    def show(self, file, scheme, width, python) -> None:
        self.python = python or (lambda message: None)
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme=scheme)
        self.page.mouse.move(0, 0)
        self.file = file.as_uri()
        self.page.goto(self.file)

    def leave(self) -> list[str]:
        """Leave the page; what went wrong on it."""
        self.file = "about:blank"
        self.page.goto(self.file)
        found = self.asked + self.broken
        self.asked.clear()
        self.broken.clear()
        return found


@pytest.fixture(scope="module")
def tabs(browser):
    """Tabs that are free, by the options of their context."""
    free = {}
    yield free
    for tab in (tab for same in free.values() for tab in same):
        tab.page.context.close()


@pytest.fixture
def page_of(browser, tabs, tmp_path):
    """page_of(html, scheme=..., width=..., drawn=what is waited for) -> page; at the end: no request, no exception."""
    used = []

    def opened(html, scheme="light", width=1280, python=None, drawn='[role="region"][data-painted]', **options):
        file = tmp_path / f"page{len(used)}.html"
        file.write_text(html, encoding="utf-8")
        key = repr(sorted(options.items()))
        tab = tabs[key].pop() if tabs.get(key) else Tab(browser, options)
        used.append((key, tab))
        tab.show(file, scheme, width, python)
        if options.get("java_script_enabled", True):
            tab.page.wait_for_selector(drawn)
        return tab.page

    yield opened
    found = []
    for key, tab in used:
        found += tab.leave()
        tabs.setdefault(key, []).append(tab)
    assert not found


@pytest.fixture
def live(page_of):
    """live(view of a lab) -> (page, the view): the page of a kernel. It is closed at the end."""
    widgets = []

    def opened(widget, **options):
        widgets.append(widget)

        def shown() -> str:
            return json.dumps(
                {"snapshot": widget.snapshot, "progress": widget.progress, "last_error": widget.last_error}
            )

        def python(message: str) -> str:
            given = json.loads(message)
            widget.command(given["command"], *given["arguments"])
            return shown()

        html = LIVE.format(style=widget._css, script=widget._esm, state=shown())
        return page_of(html, python=python, **options), widget

    yield opened
    for widget in widgets:
        widget.close()


RECORDING = """<!doctype html><meta charset="utf-8"><style>%s</style><div id="lab"></div><script type="module">
%s
const heard = {}, values = %s;
window.sent = [];
window.tell = (name, ...given) => (heard[name] ?? []).forEach((f) => f(...given));
window.put = (name, value) => { values[name] = value; tell(`change:${name}`); };
const on = (n, f) => (heard[n] ??= []).push(f), off = (n, f) => { heard[n] = heard[n].filter((g) => g !== f); };
const model = { get: (n) => values[n], send: (m) => sent.push(m), on, off };
window.leave = render({ model, el: document.getElementById("lab") });
window.left = () => Object.values(heard).flat().length;
</script>"""


def traits(lab) -> dict:
    """What the kernel of a lab has told the page."""
    shot, often = lab.snapshot(), lab.progress()
    return {"snapshot": {k: v for k, v in shot.items() if k not in often}, "progress": often, "last_error": None}


@pytest.fixture
def recorded(browser, tmp_path):
    """recorded(lab) -> the page of a kernel that keeps in `sent` what it is asked; `put` and `tell` speak for it."""
    pages, broken = [], []

    def opened(lab):
        file = tmp_path / "recorded.html"
        script, style = lab.front_end()
        file.write_text(RECORDING % (style, script, json.dumps(traits(lab))), encoding="utf-8")
        page = browser.new_page(viewport={"width": 1000, "height": 900})
        pages.append(page)
        page.on("pageerror", lambda e: broken.append(str(e)))
        page.goto(file.as_uri())
        page.wait_for_selector('[role="region"][data-painted]')
        return page

    yield opened
    for page in pages:
        page.close()
    assert not broken
