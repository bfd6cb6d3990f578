"""Labs as one HTML page that needs no kernel and no network.

    lab.to_html("lab.html")
    pages_of([fusion, memory])          # several on one page share its script

The page carries the widget's own script and style sheet, so it looks and reads the same; a Content-Security-Policy
forbids every request. What can be chosen without a kernel was computed beforehand (replay.py); the page looks it up.

The same content in words is below the picture, and is all there is where scripts are off.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...base.errors import escape
from .replay import Replay, pack, plain, ready

# Scripts and style sheets lie in their labs' folders, these in lab/shared/. One module: a page imports nothing.
FRONT_END = Path(__file__).resolve().parents[1]
SCRIPTS = ("page.js", "predict.js", "alone.js", "plotly.js", "sections.js", "choices.js", "story.js", "loss.js")
LIVE = ("plotly_live.js",)  # what a page of its own, which asks for nothing, does without
STYLES, PAGE_STYLES = ("lab.css", "sections.css"), ("alone.css",)
LARGEST_PAGE = 440 * 1024  # bytes, of a lab

ALONE = "No kernel here: the page replays what was computed; what is dimmed needs a kernel."
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
{style}
</style>
<noscript><style>.pl-words > summary {{ display: none; }}
.pl-words::details-content {{ content-visibility: visible; height: auto; }}</style></noscript>
</head>
<body{frame}>
<main class="pl-page">
{alone}{labs}
</main>
<script type="module">
{script}
</script>
</body>
</html>
"""
ONE = """<div id="lab{n}" data-kind="{kind}" data-commands="{commands}"></div>
<details class="pl-words" id="words{n}"{scale}><summary>The same in words</summary><pre>{words}</pre></details>
<script type="application/json" id="snapshot{n}">{snapshot}</script>
<script type="text/plain" id="replay{n}">{replay}</script>"""
# The whole script, packed: for a page inside a cell's output: a notebook has many.
PACKED = """const bytes = Uint8Array.from(atob("{packed}"), (c) => c.charCodeAt(0));
const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
const script = document.createElement("script");
script.type = "module";
script.textContent = await new Response(stream).text();
document.body.append(script);"""


class LabOnPage(NamedTuple):
    """What a page has of a lab: its class, the snapshot that it opens on, that in words, and what it can replay."""

    kind: type[Any]
    snapshot: Mapping[str, Any]
    words: str
    replay: Replay


def shared_script() -> str:
    """What all labs share."""
    return _joined("shared", SCRIPTS)


def read_front_end(scripts: Iterable[str], styles: Iterable[str]) -> tuple[str, str]:
    """A lab's script (an ES module with `default.render`) and style sheet: shared parts, its own."""
    own = _joined("", scripts)
    script = f"{shared_script()}\n{_joined('shared', LIVE)}\n{own}\nexport default {{ render }};\n"
    return script, f"{_joined('shared', STYLES)}\n{_joined('', styles)}"


def _joined(folder: str, names: Iterable[str]) -> str:
    return "\n".join((FRONT_END / folder / name).read_text(encoding="utf-8") for name in names)


def lab_page(
    labs: Sequence[LabOnPage],
    title: str | None = None,
    *,
    controls: bool = True,
    height: int | None = None,
    packed: bool = False,
    above: tuple[str, str, str] = ("", "", ""),
) -> str:
    """A page of labs.  packed: with a script that is smaller and cannot be read; above: what stands above them, HTML,
    and its own script and style; see `Lab.to_html` for the others.
    Raises ValueError for NaN or infinity outside the losses.
    """
    kinds = {lab.kind.__name__: lab.kind for lab in labs}
    own = [
        f"kinds.{name} = (() => {{\n{_joined('', kind.scripts)}\nreturn Object.assign(mountPage, {{ render }});\n}})();"
        for name, kind in kinds.items()
    ]
    script = "\n".join([shared_script(), "const kinds = {};", *own, "mountAll(kinds);", above[1]])
    if packed:
        script = PACKED.format(packed=base64.b64encode(zlib.compress(script.encode(), 9)).decode())
    style = "\n".join(
        [_joined("shared", (*STYLES, *PAGE_STYLES)), *(_joined("", kind.styles) for kind in kinds.values()), above[2]]
    )
    titles = dict.fromkeys(lab.snapshot["title"] for lab in labs)
    frame = "" if controls else ' class="pl-bare"'
    frame += "" if height is None else f' style="height: {height}px; overflow: auto"'
    parts = {"title": escape(title or ", ".join(titles)), "style": style, "script": script, "frame": frame}
    largest = _zoom(max((lab.snapshot.get("scale", 1) for lab in labs), default=1))
    parts["alone"] = above[0] or f'<h1 class="pl-hidden">{parts["title"]}</h1>\n'
    parts["alone"] += f'<p class="pl-alone"{largest}>{ALONE}</p>\n' if controls else ""
    room = LARGEST_PAGE - len(PAGE) - (len(style) + len(script)) // max(1, len(labs))
    ones = (_one(lab, "" if n == 1 else str(n), room) for n, lab in enumerate(labs, 1))
    return PAGE.format(**parts, labs="\n".join(ones))


def _one(lab: LabOnPage, number: str, room: int) -> str:
    shown = ready({name: part for name, part in lab.snapshot.items() if name != "looks"})
    parts = {
        "n": number,
        "kind": lab.kind.__name__,
        "commands": " ".join(lab.kind.commands),
        "words": escape(lab.words),
        "snapshot": _json_in_html(shown),
    }
    parts["scale"] = _zoom(lab.snapshot.get("scale", 1))
    room += len(_json_in_html(shown.get("recording"))) - len(ONE) - sum(len(part.encode()) for part in parts.values())
    return ONE.format(**parts, replay=pack(lab.replay, lab.kind, room))


def _zoom(scale: float) -> str:
    """The attribute of what is written next to a lab, as large as the lab itself."""
    return "" if scale == 1 else f' style="zoom: {scale:g}"'


def _json_in_html(value: Any) -> str:
    """JSON that cannot end its script element: `<`, `>` and `&` occur in strings only, and become \\uXXXX."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=plain)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
