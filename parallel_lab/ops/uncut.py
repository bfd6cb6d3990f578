"""Primitives that are no operators of a graph: they print or send what a rank holds, so there is nothing that a strategy could cut."""

from __future__ import annotations

from typing import Any

from ..errors import StrategyError, message, shorten
from .registry import Primitive

__all__ = ["Uncut"]


class Uncut(Primitive):
    """A Primitive without an `op` of the registry.

    why   the reason that `shard` gives
    """

    why = ""

    def __init__(self, attrs: dict[str, Any] | None = None) -> None:
        self._begin_with({} if attrs is None else attrs)

    @property
    def takes_strategy(self) -> bool:
        """False."""
        return False

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Primitive:
        """Raises StrategyError for anything but None. Returns self."""
        given = in_strategy if out_strategy is None else out_strategy
        if given is not None:
            raise StrategyError(message(f"strategy {shorten(given)}", where=self.name, allowed=f"None: {self.why}"))
        return self
