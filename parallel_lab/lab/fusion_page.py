"""A snapshot of the Fusion Lab as one HTML page that needs no kernel and no network, and the front end that draws it.

The page looks as the widget does; its controls are off, but the lanes of what was simulated and measured can be chosen. The same content in words is
below the picture, and is all there is where scripts are off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .fusion_words import fusion_text
from .static_page import lab_page, read_front_end

__all__ = ["fusion_front_end", "fusion_page"]

SCRIPTS = ("page.js", "fusion_lab.js")
STYLES = ("strategy_lab.css", "fusion_lab.css")  # the first for what all labs share: colours, header, buttons


def fusion_front_end() -> tuple[str, str]:
    """Script and style sheet of the Fusion Lab."""
    return read_front_end(SCRIPTS, STYLES)


def fusion_page(snapshot: Mapping[str, Any], title: str | None = None) -> str:
    """The whole page as text (UTF-8 when written); `title` replaces the snapshot's own."""
    shown = dict(snapshot) if title is None else {**snapshot, "title": title}
    return lab_page(shown, fusion_text(shown), *fusion_front_end())
