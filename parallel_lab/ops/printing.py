"""`ops.Print`: what MindSpore's scripts print tensors with inside `construct`."""

from __future__ import annotations

from typing import Any

from ..errors import StrategyError, message, shorten
from .registry import Primitive

__all__ = ["Print"]


class Print(Primitive):
    """Print texts and tensors, one line each: `self.print("out is:", out)`. Returns the last argument.

    At once outside a trace. In a compiled network: what is known when it is compiled (name, global shape, dtype), and at every run, on every rank,
    the numbers of its slice, as with Python's `print`. Takes no strategy.
    """

    def __init__(self) -> None:
        self.attrs = {}
        self.instance_name = ""
        self.in_strategy = self.out_strategy = self.strategy_origin = None
        self.prim_attrs = {}

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Primitive:
        """Raises StrategyError: printing cuts nothing."""
        raise StrategyError(message(f"strategy {shorten(in_strategy)}", where="Print", allowed="None: it prints each rank's slice as it is"))

    def __call__(self, *args: Any) -> Any:
        for each in args:
            # repr of a Tensor has its shape and dtype; str of a value of a trace asks for the line that prints its slice
            print(repr(each) if hasattr(each, "asnumpy") and not hasattr(each, "tracer") else str(each))
        return args[-1] if args else None

    def __repr__(self) -> str:
        return "Prim[Print]<>"
