"""Models that tell their views when they change."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

__all__ = ["Listened"]


class Listened:
    """Something with listeners. `__init__` must run before the first change."""

    def __init__(self) -> None:
        self._listeners: list[Callable[..., None]] = []

    def on_change(self, callback: Callable[..., None]) -> Callable[[], None]:
        """Call `callback` after every change, with a word for what has changed where the model tells kinds apart; returns a function that ends it.

        Calls may come from a helper thread.
        """
        self._listeners.append(callback)

        def unsubscribe() -> None:
            with suppress(ValueError):  # called twice, or after the model has forgotten all
                self._listeners.remove(callback)

        return unsubscribe

    def _changed(self, *what: str) -> None:
        for callback in list(self._listeners):
            callback(*what)
