"""How a schedule gets its name: a function that makes the actions of all ranks, and `@named` above it.

    @named("gpipe", chunks=None)
    def gpipe(stages, micro_batches, chunks):
        for rank in range(stages):
            yield [do(rank, "F", n) for n in range(micro_batches)] + ...

It stands in a file of `named/`; all files there are read when the first schedule is asked for.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...base.errors import ArgumentError
from .order import Order, lanes, loop, shape_v, two_way

_PLACES: dict[str, Callable[[int, int], Any]] = {
    "loop": loop,
    "v": shape_v,
    "two-way": lambda stages, chunks: two_way(stages),
}


@dataclass(frozen=True)
class Named:
    """A schedule by name.

    make    (stages, micro-batches, chunks) -> per rank its actions, with those that run as one in a tuple
    place   where parts lie: "loop" (part k on rank k % stages), "v" (down, and up again), "two-way" (two copies)
    chunks  parts on a rank; None: as many as asked for
    allowed (stages, micro-batches, chunks) -> what is wrong with them, or ""
    """

    name: str
    make: Callable[[int, int, int], Iterable[Any]]
    place: str
    chunks: int | None
    allowed: Callable[[int, int, int], str]

    def order(self, stages: int, micro_batches: int, chunks: int | None = None) -> Order:
        """The schedule. Raises ArgumentError for numbers that it is not defined for."""
        where = f"schedule {self.name!r}"
        chunks = chunks or self.chunks or 1
        for name, number in (("stages", stages), ("micro_batches", micro_batches), ("chunks", chunks)):
            if not isinstance(number, int) or number < 1:
                raise ArgumentError(f"{name}={number!r}", where=where, allowed="A whole number, at least 1")
        if self.chunks not in (None, chunks) and chunks != 1:
            raise ArgumentError(f"chunks={chunks}", where=where, allowed=f"It has {self.chunks} parts on a rank")
        chunks = self.chunks or chunks
        if fault := self.allowed(stages, micro_batches, chunks):
            what = f"stages={stages}, micro_batches={micro_batches}, chunks={chunks}"
            raise ArgumentError(what, where=where, allowed=fault)
        ranks, together = lanes(self.make(stages, micro_batches, chunks))
        parts = stages if self.place == "two-way" else stages * chunks
        return Order(self.name, parts, micro_batches, _PLACES[self.place](stages, chunks), ranks, together)


def named(
    name: str,
    *,
    place: str = "loop",
    chunks: int | None = 1,
    allowed: Callable[[int, int, int], str] = lambda stages, micro_batches, chunks: "",
) -> Callable[[Callable[[int, int, int], Iterable[Any]]], Named]:
    """Give a function that makes a schedule its name."""
    return lambda make: Named(name, make, place, chunks, allowed)


@cache
def all_named() -> dict[str, Named]:
    """Every schedule of the files in `named/`, by name."""
    package = importlib.import_module(f"{__package__}.named")
    files = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    modules = [importlib.import_module(f"{package.__name__}.{file}") for file in files]
    return {value.name: value for module in modules for value in vars(module).values() if isinstance(value, Named)}


def find(name: str) -> Named:
    """The schedule of a name. Raises ArgumentError, which lists those that there are."""
    if name not in all_named():
        raise ArgumentError(f"schedule {name!r}", where="make_schedule", allowed=", ".join(sorted(all_named())))
    return all_named()[name]
