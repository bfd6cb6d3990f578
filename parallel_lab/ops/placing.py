"""An operator that changes nothing but where slices lie: given a strategy, it says how a value is cut at this point of a network."""

from __future__ import annotations

from .registry import case, op

__all__ = ["identity"]


@op("...->...", name="Identity", example=(case((16, 8)), case((8, 4, 16))))
def identity(x):
    """x itself.  x: (...) -> (...)."""
    return x


@identity.vjp
def _(g, out, x):
    return (g,)
