"""`no_init_parameters`: MindSpore's way to build a network without drawing its initial values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..base.checks import checked

__all__ = ["no_init_parameters"]


@checked("no_init_parameters")
@contextmanager
def no_init_parameters() -> Iterator[None]:
    """Build networks and optimizers inside; initial values are drawn later, when they are first read.

    with no_init_parameters():
        net = Net()
        optimizer = nn.SGD(net.trainable_params(), 1e-2)

    Here every Parameter made from `initializer(...)` waits like this, inside and outside: its values belong to (global
    seed, parameter name) and do not depend on when they are drawn. Under a strategy a rank keeps its slice.
    """
    yield
