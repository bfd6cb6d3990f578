"""`ops.Print`: what MindSpore's scripts print tensors with inside `construct`."""

from __future__ import annotations

from typing import Any

from .uncut import Uncut

__all__ = ["Print"]


class Print(Uncut):
    """Print texts and tensors, one line each: `self.print("out is:", out)`. Returns the last argument.

    At once outside a trace. In a compiled network: what is known when it is compiled (name, global shape, dtype), and at every run, on every rank,
    the numbers of its slice, as with Python's `print`. Takes no strategy.
    """

    why = "it prints each rank's slice as it is"

    def __call__(self, *args: Any) -> Any:
        for each in args:
            # repr of a Tensor has its shape and dtype; str of a value of a trace asks for the line that prints its slice
            print(repr(each) if hasattr(each, "asnumpy") and not hasattr(each, "tracer") else str(each))
        return args[-1] if args else None

    def __repr__(self) -> str:
        return "Prim[Print]<>"
