"""A lab's page in a real browser: `page_of` for pages of their own, `live` for the page of a kernel.

The live page talks to a real model in this process, through a stand-in of anywidget's `model`: what the page sends are
the widget's own commands. `recorded` is the page of a kernel that only records what it is asked. Import the fixtures
and `MARKS`: `from tests.browser.lab_page import MARKS, browser, live, page_of`. `boxes` says where elements are.

Whatever a test does on any page (a click, a key, a new size) returns when the page shows what came of it: see
`painted_actions`. A kernel in another process answers when it likes: what it changes is waited for with `expect`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from parallel_lab.lab.shared.lab_view import part_of
from parallel_lab.lab.shared.replay import Limits

sync_api = pytest.importorskip("playwright.sync_api")

CHROMIUM = os.environ.get("PLAB_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
FEW = Limits(3)  # settings of a page of its own: what a test of other things can wait for
MARKS = [pytest.mark.browser, pytest.mark.skipif(not CHROMIUM, reason="no chromium")]

LIVE = """<!doctype html><meta charset="utf-8"><title>live</title>
<style>body{{margin:0}}{style}</style><div id="lab"></div>
<script type="module">
{script}
const listeners = {{}}, state = {state};
const tell = (name, ...given) => (listeners[name] ?? []).forEach((f) => f(...given));
window.tellAll = async () => {{ // what has changed without a command of the page
  Object.assign(state, JSON.parse(await window.python("null"))[0]);
  for (const name of ["snapshot", "progress", "last_error"]) tell(`change:${{name}}`);
}};
render({{ el: document.getElementById("lab"), model: {{
  get: (name) => state[name],
  on: (name, f) => (listeners[name] ??= []).push(f),
  off: () => {{}},
  send: (message) => {{
    const answered = async () => {{
      const [now, sent] = JSON.parse(await window.python(JSON.stringify(message)));
      Object.assign(state, now);
      tell("change:snapshot"); tell("change:last_error");
      for (const one of sent) tell("msg:custom", one);
    }};
    window.answered = Promise.all([window.answered, answered()]);
  }},
}} }});
</script>"""

# Labs draw in the next frame, and once more where that has changed their size. Drawing was asked for before, and so
# comes first. In a frame that is out of sight the browser draws nothing.
PAINTED = """async () => {
  if (!document.querySelector(".pl-lab") || !innerWidth) return;
  await window.answered;
  const frame = () => new Promise((done) => {
    requestAnimationFrame(done);
    if (window !== window.parent) setTimeout(done, 1000);
  });
  await frame();
  await frame();
}"""
ACTIONS = {
    "Locator": "blur check clear click dblclick dispatch_event drag_to fill focus hover press press_sequentially "
    "select_option set_checked tap type uncheck",
    "Page": "check click dblclick dispatch_event drag_and_drop emulate_media fill focus hover press select_option "
    "set_checked set_viewport_size tap type uncheck",
    "Keyboard": "down insert_text press type up",
    "Mouse": "click dblclick down move up wheel",
}


def wait_painted(page: Any) -> None:
    """Wait until all labs of the page, also those in frames, show all that they have received so far."""
    for frame in page.frames:
        try:
            frame.evaluate(PAINTED)
        except sync_api.Error as error:  # the action has led to another page
            if not any(word in error.message for word in ("navigation", "detached", "closed")):
                raise


@contextlib.contextmanager
def painted_actions() -> Iterator[None]:
    """Meanwhile every action of Playwright on a page waits until the page shows what came of it."""

    def painted(action: Callable[..., Any], page_of: Callable[[Any], Any]) -> Callable[..., Any]:
        @functools.wraps(action)
        def acted(self: Any, *args: Any, **options: Any) -> Any:
            found = action(self, *args, **options)
            wait_painted(page_of(self))
            return found

        return acted

    def owned(name: str) -> property:
        """A keyboard or a mouse that knows its page."""
        known = getattr(sync_api.Page, name)

        def device(page: Any) -> Any:
            found = known.fget(page)
            found.page = page
            return found

        return property(device)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("keyboard", "mouse"):
            patch.setattr(sync_api.Page, name, owned(name))
        for kind, names in ACTIONS.items():
            known = getattr(sync_api, kind)
            for name in names.split():
                on = (lambda page: page) if kind == "Page" else (lambda what: what.page)
                patch.setattr(known, name, painted(getattr(known, name), on))
        yield


BOXES = (
    "(all) => all.map((e) => { const { x, y, width, height } = e.getBoundingClientRect(); return { x, y, width, "
    "height }; })"
)


def boxes(locator) -> list[dict[str, float]]:
    """`bounding_box()` of all elements in one call, because each call takes milliseconds. Hidden ones are left out."""
    return [box for box in locator.evaluate_all(BOXES) if box["width"] or box["height"]]


# Those of these elements whose content is wider than they are.
CUT = """(css) => [...document.querySelectorAll(css)].filter((e) => e.clientWidth && !e.matches(".pl-hidden")
  && e.scrollWidth > e.clientWidth + 1)
  .map((e) => `${e.className}: ${e.textContent.trim().slice(0, 80)}`)"""
# Faults of the texts that can be seen: [what, the text, where it stands]. A text may leave a box only if that scrolls.
FAULTS = r"""() => {
  const root = document.querySelector(".pl-lab"), zoom = Number(root.style.zoom) || 1;
  const room = document.documentElement.clientWidth, found = [], texts = [];
  const once = (of, known = new Map()) => (e) => known.get(e) ?? known.set(e, of(e)).get(e);
  const look = once((e) => { // an element's style is asked for once: of thousands of texts all are in the same few
    const { display, visibility, opacity, clipPath, overflowX, overflowY, position } = getComputedStyle(e);
    const hidden = display === "none" || visibility === "hidden" || !(Number(opacity) > 0) || clipPath !== "none";
    return { hidden, overflowX, overflowY, sticky: position === "sticky" };
  });
  const shown = once((e) => !look(e).hidden && (!e.parentElement || shown(e.parentElement)));
  const stuck = once((e) => e !== root && (look(e).sticky || stuck(e.parentElement)));
  const over = once((e) => root.matches(".pl-tab-over") && e.closest(".pl-tab-panel")); // covers on purpose
  const scrolls = (how) => how === "auto" || how === "scroll";
  const sides = [["left", Math.max], ["top", Math.max], ["right", Math.min], ["bottom", Math.min]];
  const within = (a, b) => Object.fromEntries(sides.map(([side, near]) => [side, near(a[side], b[side])]));
  const all = { left: -Infinity, top: -Infinity, right: Infinity, bottom: Infinity };
  // where an element's content may be, where it is in sight now, and whether it can be scrolled aside
  const place = once((e) => {
    if (e === document.body || !e) return { view: all, sight: all, scroller: false };
    const { view, sight, scroller } = place(e.parentElement), { overflowX, overflowY } = look(e);
    if (overflowX === "visible" && overflowY === "visible") return { view, sight, scroller };
    const { left, top, right, bottom } = e.getBoundingClientRect();
    const sideways = scrolls(overflowX) ? {} : { left, right }, upright = scrolls(overflowY) ? {} : { top, bottom };
    return {
      view: within(view, { ...all, ...sideways, ...upright }),
      sight: within(sight, { left, top, right, bottom }),
      scroller: scroller || scrolls(overflowX),
    };
  });
  const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode, e = node.parentElement;
    if (!node.nodeValue.trim() || e.closest("option, title, desc") || !shown(e)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    // a text squeezed into a length: a range has the boxes that it would have without
    const boxes = e.matches("text[textLength]") ? [e.getBoundingClientRect()] : range.getClientRects();
    for (const box of boxes) if (box.width >= 1) texts.push({ text: node.nodeValue.trim(), e, box });
  }
  const where = (e) => `${e.nodeName}.${e.getAttribute("class")} in ${e.closest("[data-key]")?.dataset.key}`;
  const tell = (what, { text, e }) => found.push([what, text.slice(0, 60), where(e)]);
  const inSight = [];
  for (const one of texts) {
    const { e, box } = one, { view, sight, scroller } = place(e);
    const off = 3 * zoom; // pixels that a line's box reaches beyond its letters
    if (box.left < view.left - off || box.right > view.right + off) tell("clipped at the side", one);
    if (box.top < view.top - off || box.bottom > view.bottom + off) tell("clipped above or below", one);
    if (!scroller && (box.left < 0 || box.right > room + 1)) tell("beyond the page", one);
    const seen = within(box, sight);
    if (seen.left < seen.right && seen.top < seen.bottom) inSight.push({ ...one, box: seen });
  }
  inSight.forEach((a, i) => {
    for (const b of inSight.slice(i + 1)) {
      const wide = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
      const high = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
      if (wide > 2 * zoom && high > 4 * zoom && a.e !== b.e && over(a.e) === over(b.e) && !stuck(a.e) && !stuck(b.e)) {
        tell(`covers "${b.text.slice(0, 40)}"`, a);
      }
    }
  });
  for (const e of root.querySelectorAll("svg, canvas")) {
    const own = e.getBoundingClientRect(), box = e.parentElement.getBoundingClientRect();
    const out = own.left < box.left - 1 || own.right > box.right + 1;
    if (own.width > 1 && out && shown(e) && getComputedStyle(e.parentElement).overflowX === "visible") {
      tell("a picture sticks out", { text: `${own.width} of ${box.width}`, e });
    }
  }
  for (const e of root.querySelectorAll("*")) {
    const cut = getComputedStyle(e).textOverflow === "ellipsis" && e.scrollWidth > e.clientWidth + 1;
    if (cut && shown(e) && e.textContent.trim()) tell("cut", { text: e.textContent.trim(), e });
  }
  const choices = [...root.querySelectorAll("select")].filter(shown).flatMap((e) => [...e.options].map((option) => {
    const whole = e.cloneNode(false);
    whole.style.cssText = "position: absolute; flex: none; width: max-content; min-width: 0; max-width: none";
    whole.append(option.cloneNode(true));
    e.after(whole);
    return { whole, text: option.text, e };
  })); // all at once: one layout
  for (const one of choices) if (one.whole.offsetWidth > one.e.offsetWidth + 1) tell("cut once it is chosen", one);
  for (const { whole } of choices) whole.remove();
  return found;
}"""


def axe_faults(page: Any, within: str = "html") -> list[str]:
    """What axe-core finds in a part of a page, without its frames: all rules to WCAG 2.2 AA, experimental ones too."""
    page.evaluate(pytest.importorskip("axe_playwright_python.base").AXE_SCRIPT)
    found = page.evaluate(
        """async (within) => {
          const rules = axe.getRules().filter((rule) => !rule.tags.includes("wcag2aaa"));
          const all = Object.fromEntries(rules.map((rule) => [rule.ruleId, { enabled: true }]));
          return (await axe.run({ include: within }, { iframes: false, rules: all })).violations;
        }""",
        within,
    )
    return [f"{fault['id']}: {node['html'][:160]}" for fault in found for node in fault["nodes"]]


STARTED: list[tuple[Any, Any]] = []  # Playwright and its Chromium, for one file after the other
FREE: dict[str, list[Tab]] = {}  # its tabs that no test has, by the options of their context
LEFT = "<!doctype html><script>localStorage.clear()</script>"


@pytest.fixture(scope="module")
def browser():
    """A Chromium, started for the first file that needs one; the folder's conftest ends it after the last."""
    if not STARTED:
        play = sync_api.sync_playwright().start()
        STARTED.append((play, play.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)))
    return STARTED[0][1]


def end_browser() -> None:
    FREE.clear()
    while STARTED:
        play, started = STARTED.pop()
        started.close()
        play.stop()


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

    def show(self, file, scheme, width, python, motion) -> None:
        self.python = python or (lambda message: None)
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(color_scheme=scheme, reduced_motion=motion)
        self.page.mouse.move(0, 0)
        self.file = file.as_uri()
        self.page.goto(self.file)

    def leave(self, folder) -> list[str]:
        """Leave the page; what went wrong on it. For another file: about:blank would take a new process each time."""
        file = folder / "left.html"
        file.write_text(LEFT, encoding="utf-8")
        self.file = file.as_uri()
        self.page.goto(self.file)
        found = self.asked + self.broken
        self.asked.clear()
        self.broken.clear()
        return found


@pytest.fixture
def page_of(browser, tmp_path):
    """page_of(html, scheme=..., width=..., drawn=what is waited for) -> page; at the end: no request, no exception."""
    used = []

    def opened(
        html,
        scheme="light",
        width=1280,
        python=None,
        drawn='[role="region"][data-painted]',
        reduced_motion="no-preference",
        **options,
    ):
        file = tmp_path / f"page{len(used)}.html"
        file.write_text(html, encoding="utf-8")
        key = repr(sorted(options.items()))
        tab = FREE[key].pop() if FREE.get(key) else Tab(browser, options)
        used.append((key, tab))
        tab.show(file, scheme, width, python, reduced_motion)
        if options.get("java_script_enabled", True):
            tab.page.wait_for_selector(drawn)
        return tab.page

    yield opened
    found = []
    for key, tab in used:
        found += tab.leave(tmp_path)
        FREE.setdefault(key, []).append(tab)
    assert not found, found


@pytest.fixture
def live(page_of):
    """live(view of a lab) -> (page, the view): the page of a kernel. It is closed at the end."""
    widgets = []

    def opened(widget, **options):
        widgets.append(widget)

        sent = []
        widget.send = lambda content, buffers=None: sent.append(content) if content["kind"] != "loss" else None

        def shown() -> dict[str, Any]:
            apart = {part_of(name): getattr(widget, part_of(name)) for name in widget.apart}
            own = {name: getattr(widget, name) for name in ("snapshot", "apart", "progress", "last_error")}
            return {**own, **apart}

        def python(message: str) -> str:
            sent.clear()
            widget._on_message(widget, json.loads(message), [])
            return json.dumps([shown(), sent])

        html = LIVE.format(style=widget._css, script=widget._esm, state=json.dumps(shown()))
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
def recorded(page_of):
    """recorded(lab) -> the page of a kernel that keeps in `sent` what it is asked; `put` and `tell` speak for it."""

    def opened(lab):
        script, style = lab.front_end()
        return page_of(RECORDING % (style, script, json.dumps(traits(lab))), width=1000)

    return opened
