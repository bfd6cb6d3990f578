"""The page of a piece, which a notebook shows: the number, what finds and mends the bug, the lines that are wrong."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from ...base.errors import escape
from ..shared.sections import html_table
from .network import Network

LOOKS = {
    "loss": "loss of the first step, next to one device's",
    "gradients": "gradients, next to one device's",
    "probe": "values inside, next to one device's",
    "copies": "copies on ranks, after two steps",
}
RIGHT, WRONG = "#1e7d46", "#c0392b"
APART = ";padding-right:1.5em"
LINE = f"background:#fdecea;box-shadow:inset 3px 0 {WRONG};display:inline-block;width:100%"


def page(piece: Any, right: float, wrong: float, found: Mapping[str, str]) -> str:
    """HTML of a `Piece`.  right, wrong: as measured;  found: what each finder says of the bug, "" where it is blind"""
    owner, _, number = piece.issue.partition("#")
    issue = f"https://github.com/{owner}/issues/{number.partition(',')[0]}"
    source = f"People met it: <a href='{issue}'>{escape(piece.issue)}</a>." if number else "Constructed."
    numbers = "".join(
        f"<div style='color:{colour}'><b style='font-size:2em'>{value:.4g}</b><br>{label}</div>"
        for value, label, colour in ((right, "as it should be", RIGHT), (wrong, "with the bug", WRONG))
    )
    return (
        f"<section style='max-width:60em'><h3>{escape(piece.name)}</h3>"
        f"<p>{escape(piece.about)} {source}</p>"
        f"<p><b>Symptom, measured on four ranks:</b> {escape(piece.symptom)}</p>"
        f"<div style='display:flex;gap:3em'>{numbers}</div><p><b>What mends it:</b> {escape(piece.mends)}</p>"
        f"<p><b>What finds it</b></p>{html_table(('looks at', '', 'says'), _looks(piece, found), (APART,) * 3)}"
        f"<p><b>Where it bites</b></p>{_code(piece.network)}</section>"
    )


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").strip().partition("\n\n")[0].split())


def _code(network: type[Network]) -> str:
    """The network with its switch marked, and folded the one that it is made of, where that is another."""
    shown, (base,) = _source(network), network.__bases__
    if base is Network:
        return shown
    about = escape(_first_paragraph(base.__doc__))
    return f"{shown}<details><summary><code>{base.__name__}</code>: {about}</summary>{_source(base)}</details>"


def _source(network: type[Network]) -> str:
    lines = inspect.getsource(network).rstrip().split("\n")
    marked = (f"<span style='{LINE}'>{escape(x)}</span>" if ".wrong" in x else escape(x) for x in lines)
    return "<pre style='line-height:1.35;white-space:pre-wrap'>" + "\n".join(marked) + "</pre>"


def _looks(piece: Any, found: Mapping[str, str]) -> list[tuple[str, str, str]]:
    rows = [(words, "✓" if found[name] else "sees nothing", found[name]) for name, words in LOOKS.items()]
    if piece.in_plan:
        says = "an error before the plan runs" if piece.by_types else "its values have the right types"
        rows.append(("types of a plan with this mistake", "✓" if piece.by_types else "sees nothing", says))
    return rows
