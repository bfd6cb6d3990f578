"""No garbage collection while very many objects are made that all last."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import Any


def without_collector(build: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that makes very many lasting objects: the collector would take half of the time in vain."""

    @wraps(build)
    def uncollected(*args: Any, **kwargs: Any) -> Any:
        if not gc.isenabled():
            return build(*args, **kwargs)
        gc.disable()
        try:
            return build(*args, **kwargs)
        finally:
            gc.enable()

    return uncollected
