"""Messages between two ranks on their way: sent and not received, or asked for and not sent. Each queue in its order.

A key names a queue. The simulator has (pair of ranks, sr_tag), a real rank (source, sr_tag) of what comes to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from ..base.errors import CollectiveMismatch
from .communicator import Request, describe

Taker = Callable[[Any], object]


class Mail:
    """kept: messages that nobody has asked for;  asked: who takes the next ones, called with the message"""

    def __init__(self) -> None:
        self.kept: dict[tuple[Any, ...], deque[Any]] = {}
        self.asked: dict[tuple[Any, ...], deque[Taker]] = {}

    def put(self, key: tuple[Any, ...], message: Any) -> None:
        """A message has come."""
        taker = self.taker(key)
        if taker is None:
            self.kept.setdefault(key, deque()).append(message)
        else:
            taker(message)

    def take(self, key: tuple[Any, ...]) -> Any | None:
        """The oldest message that is kept, or None."""
        queue = self.kept.get(key)
        return queue.popleft() if queue else None

    def ask(self, key: tuple[Any, ...], taker: Taker) -> None:
        """`taker` gets the next message that nobody else has asked for before, now or when it comes."""
        message = self.take(key)
        if message is None:
            self.asked.setdefault(key, deque()).append(taker)
        else:
            taker(message)

    def taker(self, key: tuple[Any, ...]) -> Taker | None:
        """Who has asked first, and is handed the next message by the caller; None: nobody waits."""
        queue = self.asked.get(key)
        return queue.popleft() if queue else None


def expected(request: Request, shape: tuple[int, ...], dtype: np.dtype) -> tuple[tuple[int, ...], np.dtype]:
    """(shape, dtype) that a receiver expects, where (shape, dtype) has come: what its request says, if it does."""
    shape_expected = shape if request.shape is None else tuple(request.shape)
    return shape_expected, dtype if request.dtype is None else np.dtype(request.dtype)


def received(request: Request, sent: Request) -> np.ndarray:
    """What `sent` holds as reply to the recv `request`. Raises CollectiveMismatch for another shape or dtype."""
    value = cast(np.ndarray, sent.value)  # every send has one
    shape, dtype = expected(request, value.shape, value.dtype)
    if (shape, dtype) != (value.shape, value.dtype):
        source, target = request.group
        what = f"rank {target} expects {dtype} {shape} from rank {source}, which called {describe(sent)}"
        raise CollectiveMismatch(what, where=f"{describe(request)}, call {request.number}")
    return value
