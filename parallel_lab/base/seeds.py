"""Seeds: one for the process, from which everything random is drawn, and one of their own for datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .settings.checks import SETTINGS, integer

_seed = 1


def set_seed(seed: int) -> None:
    """Seed of every later draw of the package: an int from 0 to 2^64 - 1. Raises ContextTypeError, ContextError."""
    global _seed, _draws
    _seed, _draws = _check_seed("set_seed", "seed", seed, SETTINGS), 0


_check_seed = integer(0, 2**64 - 1)  # `World.agree` sends it as a uint64


def get_seed() -> int:
    """The present global seed."""
    return _seed


@contextmanager
def temporary_seed(seed: int) -> Iterator[None]:
    """Draw with `seed` within the block, as a fresh process would after `set_seed(seed)`; afterwards as before.

    Parameters draw when first read: read them in the block. Datasets given a seed of their own keep it.
    """
    global _seed, _draws
    before = _seed, _draws
    set_seed(seed)
    try:
        yield
    finally:
        _seed, _draws = before


class Repeated:
    """What a function drew and changed when it ran, for a second run that is to be equal (`nn/tensor/recompute.py`).

    written  id of a Parameter -> (itself, its values before the function gave it others)
    """

    def __init__(self, around: Repeated | None = None, drawn: list[Any] | None = None) -> None:
        self.around = around
        self.drawn: list[Any] = [] if drawn is None else drawn
        self.rest: list[Any] | None = None if drawn is None else list(drawn)
        self.written: dict[int, tuple[Any, Any]] = {}

    def again(self) -> Repeated:
        """For another run: gives what was drawn, in order."""
        return Repeated(None, self.drawn)

    def draw(self, make: Callable[[], Any]) -> Any:
        """What `make` gives, noted; in another run what it gave."""
        if self.rest is not None:
            return self.rest.pop(0)
        self.drawn.append(make() if self.around is None else self.around.draw(make))
        return self.drawn[-1]

    def writes(self, parameter: Any) -> None:
        """Note the values of a Parameter that is to have others."""
        self.written.setdefault(id(parameter), (parameter, parameter.array))
        if self.around is not None:
            self.around.writes(parameter)


# What notes or repeats the draws of a function that runs, if something does.
repeated: ContextVar[Repeated | None] = ContextVar("parallel_lab_repeated", default=None)


def drawn(make: Callable[[], Any]) -> Any:
    """What `make` gives, or gave when the function that runs a second time ran first."""
    noting = repeated.get()
    return make() if noting is None else noting.draw(make)


_draws = 0


def next_draw() -> int:
    """How often this was asked since `set_seed`: tells apart things that draw without a name, equally on all ranks."""
    return drawn(_next_draw)


def _next_draw() -> int:
    global _draws
    _draws += 1
    return _draws - 1


_dataset_seed: int | None = None


def set_dataset_seed(seed: int | None) -> None:
    """Seed of the datasets' orders and augmentations alone; None: the global seed. Errors as `set_seed`."""
    global _dataset_seed
    _dataset_seed = None if seed is None else _check_seed("set_dataset_seed", "seed", seed, SETTINGS)


def get_dataset_seed() -> int:
    """What datasets draw with: their own seed if they were given one, else the global one."""
    return _seed if _dataset_seed is None else _dataset_seed
