"""Widgets: thin bindings of the headless labs to a notebook. Loaded on demand, so importing this package needs no anywidget."""

from __future__ import annotations

from typing import Any

__all__ = ["CollectiveStepperWidget", "FusionLabWidget", "MemoryLabWidget", "StrategyLabWidget"]


def __getattr__(name: str) -> Any:
    if name == "StrategyLabWidget":
        from .strategy_lab import StrategyLabWidget

        return StrategyLabWidget
    if name == "CollectiveStepperWidget":
        from .collective_stepper import CollectiveStepperWidget

        return CollectiveStepperWidget
    if name == "FusionLabWidget":
        from .fusion_lab import FusionLabWidget

        return FusionLabWidget
    if name == "MemoryLabWidget":
        from .memory_lab import MemoryLabWidget

        return MemoryLabWidget
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
