"""Widgets: thin bindings of the headless labs to a notebook, loaded on demand: an import here needs no anywidget."""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import Any
from urllib.parse import unquote

from ..base.errors import DataFileError, shorten
from ..base.plain_json import parse_json
from .shared.state import FORMAT, MOST_BYTES, checked_state, read_state

LINKED = "#state="  # before the state in a link

# Module and class of every lab.
LABS = {
    "StrategyLab": "strategy",
    "CollectiveStepper": "collectives",
    "FusionLab": "fusion",
    "MemoryLab": "memory",
    "PipelineLab": "pipeline",
    "RedistributionLab": "redistribution",
    "RecomputeLab": "recompute",
    "CostLab": "costs",
    "SearchLab": "search",
    "ContextLab": "context",
    "ExpertLab": "experts",
    "RosettaLab": "rosetta",
    "ExplainLab": "explain",
    "HuntLab": "hunt",
    "RunLab": "runs",
}


def open_lab(path: str | os.PathLike[str]) -> Any:
    """The lab that `lab.save(path)` has written, or of a `lab.link()`, whichever it is. Raises DataFileError for
    anything else."""
    if isinstance(path, str) and LINKED in path:
        text, _, others = path[: 3 * MOST_BYTES].partition(LINKED)[2].partition("&")
        state = parse_json(
            unquote(text).encode(errors="surrogatepass"), "link", DataFileError, max_bytes=MOST_BYTES, max_depth=12
        )
        found = re.search(r"(?:^|&)controls=([^&]*)", others)
        hidden = {"controls": unquote(found[1])} if found else {}
        return lab_of_state({"format": FORMAT, **hidden, **state} if isinstance(state, dict) else state, "link")
    return lab_of_state(read_state(path), str(path))


def lab_of_state(state: Any, where: str = "state") -> Any:
    """The lab of a `state`, whichever it is. Raises DataFileError for anything else."""
    state = checked_state(state, where)
    kind = state["kind"]
    if kind not in LABS:
        raise DataFileError(f"a lab {shorten(kind)}", where=where, allowed=f"One of {', '.join(LABS)}")
    return getattr(import_module(f".{LABS[kind]}.model", __package__), kind).of_state(state, where)


def __getattr__(name: str) -> Any:
    lab = name.removesuffix("Widget")
    if lab == name or lab not in LABS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .shared.lab_view import widget_of

    return widget_of(getattr(import_module(f".{LABS[lab]}.model", __package__), lab))
