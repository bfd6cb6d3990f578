"""Messages that wait for others, so that several travel as one: operators called by hand with the attribute `fusion`.

    first = ops.AllReduce().add_prim_attr("fusion", 1)
    second = ops.AllReduce().add_prim_attr("fusion", 1)

    def construct(self, a, b):
        a, b = first(a), second(b)       # nothing is sent yet: both results are promised
        return a * 2 + b                 # reading one of them sends both, side by side, in one message

Inside the outermost Cell call, in graph mode, an AllReduce, AllGather or ReduceScatter with a number above 0 returns a
Tensor whose values come later. Those of one operator, group, reduction, dtype and number are one message. It is sent
when one of its results is first read, when an operator communicates in any other way, and at the latest when the Cell
returns. Elsewhere each is sent when it is called.

An operator takes the values its operand has when it is called, and sums are made element by element in rank order:
results do not depend on fusion, to the bit. Ranks that read in another order than their peers send other messages, and
get an error that says so (CollectiveMismatch).

What may share a message: MindSpore, attribute `fusion` of communication operators. A graph knows beforehand which calls
can wait; code that runs at once waits until somebody asks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ...base.errors import WorldError
from ...base.hooks import held_messages
from ...base.origin import caller
from ...base.settings.current import get_context
from ...base.settings.tables import GRAPH_MODE
from .definitions import MESSAGES

SHOWN = 3  # source lines that a message names in errors and records


@contextmanager
def holding_messages() -> Iterator[None]:
    """What an outermost Cell runs in: messages may be held back inside, and are sent at its end unless it fails."""
    held: dict[tuple[Any, ...], _Message] = {}
    before = held_messages.set(held)
    try:
        yield
        send_held()
    finally:
        held_messages.reset(before)
        for left in held.values():
            left.is_open = False


def holdable(kind: str, shape: tuple[int, ...], members: int) -> bool:
    """Whether a call with a value of this shape may wait for others now; if not it travels by itself, at once."""
    if held_messages.get() is None or get_context("mode") != GRAPH_MODE or members < 2 or not math.prod(shape):
        return False
    return kind == "all_reduce" or (bool(shape) and (kind == "all_gather" or shape[0] % members == 0))


def send_held() -> None:
    """Send all messages that are held back, in the order in which they were begun: before any other communication."""
    held = held_messages.get()
    while held:
        next(iter(held.values())).send()


def hold(
    kind: str,
    name: str,
    value: np.ndarray,
    *,
    world: Any,
    members: tuple[int, ...],
    fusion: int,
    reduce: str = "",
    operand: str = "",
) -> DeferredResult:
    """Put a call into the message that is held back for its like.

    kind      "all_reduce", "all_gather" or "reduce_scatter", both along dim 0, which there is; the last with as many
              pieces as members
    name      of the operator;  fusion: its number, above 0
    value     this rank's, which is copied: what happens to it afterwards does not matter
    members   ranks of the group, at least two
    operand   name of a Parameter that has the value
    """
    held, dtype = held_messages.get(), value.dtype.newbyteorder("=")
    key = (kind, members, reduce, dtype, fusion)
    waiting = held.get(key)
    if waiting is None:
        waiting = held[key] = _Message(key, name, world, held)
    return waiting.promise(np.array(value, dtype, order="C"), operand)


class DeferredResult:
    """The result of a call: `shape` and `dtype` now, the array when it is read."""

    __slots__ = ("array", "dtype", "operand", "place", "sent_with", "shape", "value")

    def __init__(self, sent_with: _Message, value: np.ndarray, shape: tuple[int, ...], operand: str) -> None:
        self.sent_with, self.shape, self.dtype, self.place = sent_with, shape, value.dtype, caller().place
        self.operand, self.value = operand, value
        self.array: np.ndarray | None = None

    def read(self) -> np.ndarray:
        """The values; sends the message if need be. Raises WorldError if it never will be sent, CollectiveMismatch."""
        if self.array is None:
            self.sent_with.send()
        return self.array


class _Message:
    """Calls that travel together. A row of what is sent is what one rank is concerned with: all_reduce and all_gather
    have one, reduce_scatter one per rank, so that each call's part arrives where its own message would bring it.
    """

    def __init__(self, key: tuple[Any, ...], name: str, world: Any, held: dict[tuple[Any, ...], _Message]) -> None:
        self.kind, self.members, self.reduce, self.dtype, self.fusion = self.key = key
        self.name, self.world, self.held = name, world, held
        self.calls: list[DeferredResult] = []
        self.is_open = True

    def promise(self, value: np.ndarray, operand: str) -> DeferredResult:
        shape = MESSAGES[self.kind].reply_shape(value.shape, {"dim": 0}, len(self.members))
        self.calls.append(DeferredResult(self, value, shape, operand))
        return self.calls[-1]

    def send(self) -> None:
        if not self.is_open:
            ended = "the Cell that called it ended with an error before it was sent"
            what = f"the result of {self.name} at {self.calls[0].place} is read, but {ended}"
            raise WorldError(what, where=caller().place, hint="Call the Cell again")
        self.is_open = False
        del self.held[self.key]
        n, comm = len(self.members), self.world.comm
        rows, rows_back = n if MESSAGES[self.kind].cut else 1, n if MESSAGES[self.kind].join else 1
        ends = np.cumsum([call.value.size // rows for call in self.calls]).tolist()
        spans = [slice(start, stop) for start, stop in zip((0, *ends), ends, strict=False)]
        given = comm.empty((rows, ends[-1]), self.dtype)
        for call, span in zip(self.calls, spans, strict=True):
            given[:, span] = call.value.reshape(rows, -1)
            call.value = None
        came = given if rows == rows_back else comm.empty((rows_back, ends[-1]), self.dtype)
        about = {"reduce": self.reduce, "dim": 0}
        attrs = {name: about[name] for name in MESSAGES[self.kind].attributes}
        names = [call.operand for call in self.calls]
        if all(names):
            came = comm.named(self.kind, given, ", ".join(names), self.members, self._tag(), out=came, **attrs)
        else:
            came = getattr(comm, self.kind)(given, group=self.members, out=came, tag=self._tag(), **attrs)
        for call, span in zip(self.calls, spans, strict=True):
            call.array = np.ascontiguousarray(came[:, span]).reshape(call.shape)

    def _tag(self) -> str:
        """What ranks compare, and what errors show: they must have put the same calls together."""
        places, count = [call.place for call in self.calls], len(self.calls)
        lines = ", ".join(places[:SHOWN]) + (f", ... {places[-1]}" if count > SHOWN else "")
        together = "1 call so far" if count == 1 else f"{count} calls in one message"
        return f"{self.name} with fusion {self.fusion}, sent when a result is first read: {together}, {lines}"
