"""Operators that become a program of their own once layouts are known: messages, and computations between them.

A rank program is a generator. It computes with operators, and yields `Start` and `Wait` where it needs other ranks:

    def shifted_sum(x):
        coming = yield Start("exchange", x, {"route": around_the_ring(x.shape, 4)})
        mine = square(x)                          the message travels meanwhile
        return add(mine, (yield Wait(coming)))

It is driven in two ways. `Unfolding`, a rule of the compiler (`unfold=` of `@op`), writes down instructions that every
rank runs; `run/rank_programs.py` runs it on a rank's arrays, for exercises and for numbers of ranks that no plan has.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from ...layout.route import MIRROR, Route
from ...layout.tensor_layout import TensorLayout
from ..collectives.definitions import MESSAGES
from .opdef import dtype_name


@dataclass(frozen=True)
class Start:
    """Start a message of this kind with `value`; its attributes, why it is sent, and MindSpore's operator where it is
    not the kind's. The answer is a handle.
    """

    kind: str
    value: Any
    attrs: dict[str, Any]
    reason: str = ""
    class_name: str = ""


@dataclass(frozen=True)
class Wait:
    """Wait until a message that was started has arrived. The answer is what it brought."""

    handle: Any


Program = Generator[Start | Wait, Any, tuple[Any, ...]]


def around_the_ring(shape: tuple[int, ...], ranks: int, shift: int = 1, wrapped: bool | None = None) -> tuple[Any, ...]:
    """The route by which every one of `ranks` hands its whole value, of this shape, `shift` ranks on, or to the rank
    that mirrors it (MIRROR).  wrapped: only beyond the end of the ring (True), or only up to it; others get zeros
    """
    rows = TensorLayout((ranks,), ((0,), *((),) * (len(shape) - 1)))
    return Route(rows, rows, (shape[0] * ranks, *shape[1:]), shift if shift == MIRROR else shift % ranks, wrapped).attr


@dataclass(frozen=True)
class Unfolding:
    """A rule for `unfold=`: (recorder, instruction) -> whether its program was recorded instead of the instruction.

    label    the number of the offset label along whose ranks messages go
    program  (operands, attributes) -> the generator, or None: the instruction stays as it is
    """

    label: int
    program: Callable[..., Program | None]

    def __call__(self, recorder: Any, instr: Any) -> bool:
        made = self.program([recorder.value(name) for name in instr.ins], dict(instr.attrs))
        if made is None:
            return False
        start, answer = len(recorder.instrs), None
        recorder.name, recorder.origin = instr.name, instr.origin.made("unfold")
        recorder.once, recorder.stage, recorder.when = instr.once, instr.stage, instr.when
        place = {"axes": instr.offset_axes[self.label], "device_matrix": instr.device_matrix}
        recorder.place = {"offset_axes": instr.offset_axes, "device_matrix": instr.device_matrix}
        try:
            while True:
                asked = made.send(answer)
                answer = _waited(recorder, asked) if isinstance(asked, Wait) else _started(recorder, asked, place)
        except StopIteration as end:
            results = end.value
        names = {made.name: out for made, out in zip(results, instr.outs, strict=True)}
        for name in names:
            del recorder.values[name]

        def renamed(values: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(names.get(value, value) for value in values)

        recorder.instrs[start:] = [
            dataclasses.replace(i, outs=renamed(i.outs), ins=renamed(i.ins)) for i in recorder.instrs[start:]
        ]
        return True


def _base(x: Any) -> str:
    """The name of what a message carries, without the messages that have carried it before."""
    return x.name.partition(".sent")[0].partition(".came")[0]


def _started(recorder: Any, asked: Start, place: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The instruction that starts a message: (what was sent, the fields that its wait has, too)."""
    x, matrix = asked.value, place["device_matrix"]
    members = math.prod(matrix[-1 - axis] for axis in place["axes"])
    attrs: dict[str, Any] = {**asked.attrs, "message": asked.kind, "fusion": 0, "of_slices": True}
    outer_first = sorted(place["axes"], reverse=True)
    if "route" in attrs and list(place["axes"]) != outer_first:  # slices follow the layout, members the device matrix
        rows = tuple(matrix[-1 - axis] for axis in outer_first)
        first = tuple(len(rows) - 1 - outer_first.index(axis) for axis in place["axes"])
        maps = (first, *attrs["route"][1][1:])
        attrs["route"] = (rows, maps, rows, maps, *attrs["route"][4:])
    shape = MESSAGES[asked.kind].reply_shape(tuple(x.shape), attrs, members)
    op_class = asked.class_name or MESSAGES[asked.kind].class_name
    fields = {**place, "attrs": tuple(sorted(attrs.items())), "op_class": op_class}
    value = dataclasses.replace(recorder.values[x.name], shape=shape, dtype=dtype_name(x.dtype), layout=None)
    return recorder.emit("start", value, (x.name,), f"{_base(x)}.sent", reason=asked.reason, **fields), fields


def _waited(recorder: Any, asked: Wait) -> Any:
    sent, fields = asked.handle
    return recorder.emit("wait", recorder.values[sent.name], (sent.name,), f"{_base(sent)}.came", **fields)
