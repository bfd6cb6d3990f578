"""A snapshot of a lab as one HTML page that needs no kernel and no network.

    lab.save_html("lab.html")       # the text of `lab.to_html()`

The page carries the widget's own script and style sheet, so it looks and reads the same; a Content-Security-Policy
forbids every request. What can be chosen without a kernel is in the snapshot (`Lab.page_snapshot`).

The same content in words is below the picture, and is all there is where scripts are off.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...base.errors import escape

# The scripts and style sheets of all labs lie in their folders. One module: a page without a network imports nothing.
FRONT_END = Path(__file__).resolve().parents[1]
SCRIPTS = ("shared/page.js", "shared/predict.js", "shared/sections.js", "shared/loss.js")  # what all labs share
STYLES = ("shared/lab.css", "shared/sections.css")
CURVES = ("parallel", "single")  # the losses of a training, in the snapshot's "loss"

ALONE = "No kernel here: the page replays what was computed, and controls that need a kernel are off."
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none';
               form-action 'none'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 0; background: #fff; color: #1b1f24; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #14171b; color: #eceff2; }} }}
{style}
</style>
</head>
<body>
<main class="pl-page">
<p class="pl-alone">{alone}</p>
<div id="lab"></div>
<details class="pl-words" id="words"><summary>The same in words</summary><pre>{words}</pre></details>
</main>
<noscript><style>#words > summary {{ display: none; }}
#words::details-content {{ content-visibility: visible; height: auto; }}</style></noscript>
<script type="application/json" id="snapshot">{snapshot}</script>
<script type="module">
{script}
mountPage(document.getElementById("lab"), JSON.parse(document.getElementById("snapshot").textContent));
</script>
</body>
</html>
"""


def read_front_end(scripts: Iterable[str], styles: Iterable[str]) -> tuple[str, str]:
    """A lab's script (an ES module with `default.render` and `mountPage`) and style sheet: shared parts, its own."""
    script, style = (
        "\n".join((FRONT_END / name).read_text(encoding="utf-8") for name in names)
        for names in ((*SCRIPTS, *scripts), (*STYLES, *styles))
    )
    return script, style


def lab_page(snapshot: Mapping[str, Any], words: str, script: str, style: str) -> str:
    """A page of any lab's snapshot: `script` is a module with a function mountPage(element, snapshot), `words` the same
    content as text. Raises ValueError for NaN or infinity outside the losses.
    """
    shown = dict(snapshot)
    if "loss" in shown:
        shown["loss"] = {**shown["loss"], **{name: _finite(shown["loss"].get(name)) for name in CURVES}}
    parts = {"title": escape(snapshot["title"]), "style": style, "words": escape(words), "alone": ALONE}
    parts |= {"snapshot": _json_in_html(shown), "script": script}
    return PAGE.format(**parts)


def _finite(curve: Any) -> list[float | None]:
    """Losses for JSON: nine digits (which name any float32), NaN and infinity as null (a gap in the drawn line)."""
    losses = map(float, () if curve is None else curve)
    return [float(f"{y:.9g}") if abs(y) < float("inf") else None for y in losses]


def _json_in_html(value: Any) -> str:
    """JSON that cannot end its script element: `<`, `>` and `&` occur in strings only, and become \\uXXXX."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _plain(value: Any) -> Any:
    """numpy scalars and arrays, sets and the like, as JSON can carry them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a snapshot may hold plain values only, not {type(value).__name__}")
