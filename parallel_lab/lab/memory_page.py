"""A snapshot of the Memory Lab as one HTML page that needs no kernel and no network, and the front end that draws it.

The page looks as the widget does; its controls are off, but the moment, the rank and the source of what was counted can be chosen. The same content
in words is below the picture, and is all there is where scripts are off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .memory_words import memory_text
from .static_page import lab_page, read_front_end

__all__ = ["memory_front_end", "memory_page"]

SCRIPTS = ("page.js", "memory_bars.js", "memory_lab.js")
STYLES = ("strategy_lab.css", "memory_lab.css")  # the first for what all labs share: colours, header, buttons


def memory_front_end() -> tuple[str, str]:
    """Script and style sheet of the Memory Lab."""
    return read_front_end(SCRIPTS, STYLES)


def memory_page(snapshot: Mapping[str, Any], title: str | None = None) -> str:
    """The whole page as text (UTF-8 when written); `title` replaces the snapshot's own."""
    shown = dict(snapshot) if title is None else {**snapshot, "title": title}
    return lab_page(shown, memory_text(shown), *memory_front_end())
