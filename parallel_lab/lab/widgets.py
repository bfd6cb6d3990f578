"""Widgets: thin bindings of the headless labs to a notebook, one per lab. Loaded on demand, so importing this package
needs no anywidget.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "StrategyLabWidget":
        from .strategy.model import StrategyLab as model_type
    elif name == "CollectiveStepperWidget":
        from .collectives.model import CollectiveStepper as model_type
    elif name == "FusionLabWidget":
        from .fusion.model import FusionLab as model_type
    elif name == "MemoryLabWidget":
        from .memory.model import MemoryLab as model_type
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .shared.lab_view import widget_of

    return widget_of(model_type)
