"""Widgets: thin bindings of the headless labs to a notebook, loaded on demand: an import here needs no anywidget."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Module and class of every lab.
LABS = {
    "StrategyLab": "strategy",
    "CollectiveStepper": "collectives",
    "FusionLab": "fusion",
    "MemoryLab": "memory",
    "PipelineLab": "pipeline",
    "RedistributionLab": "redistribution",
    "RecomputeLab": "recompute",
}


def __getattr__(name: str) -> Any:
    lab = name.removesuffix("Widget")
    if lab == name or lab not in LABS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .shared.lab_view import widget_of

    return widget_of(getattr(import_module(f".{LABS[lab]}.model", __package__), lab))
