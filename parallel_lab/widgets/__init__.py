"""Widgets: thin bindings of the headless labs to a notebook. Loaded on demand, so importing this package needs no anywidget."""

from __future__ import annotations

from typing import Any

__all__ = ["StrategyLabWidget"]


def __getattr__(name: str) -> Any:
    if name == "StrategyLabWidget":
        from .strategy_lab import StrategyLabWidget

        return StrategyLabWidget
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
