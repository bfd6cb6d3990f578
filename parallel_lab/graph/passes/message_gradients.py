"""Gradients of messages: the adjoint of what a message does, on the gradient of what it brought.

    message_back(back, instr, gradients)      what passes inserted, and what all ranks of a network call alike
    one_sided_back(back, instr)               what the network calls, where ranks play different parts: send, recv, ...

`back` is the way back through the program (`differentiate.Backward`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...base.dtypes import kind_of
from ...layout.tensor_layout import TensorLayout
from ...ops.collectives.definitions import MESSAGES, without_gradient
from ...ops.machine.opdef import OPS, dtype_name
from ..instr import Instr, Value, attr_pairs
from ..kinds import class_name
from ..traced_value import TracedValue
from .local_recorder import Uniform, gradient_layout
from .parameter_gradients import scatter


def one_sided(instr: Instr) -> bool:
    """Whether the network itself calls a message in which ranks play different parts."""
    return bool(instr.by_hand) and not MESSAGES[instr.kind].symmetric


def one_sided_back(back: Any, instr: Instr) -> None:
    """Through a message whose ranks do different things, so that each must play its part in backward whether or
    not it needs the gradient: a send receives it, a recv sends it (zeros, if nothing used the value), and so on.
    """
    definition, operand = MESSAGES[instr.kind], back.values[instr.ins[0]]
    if not definition.adjoint or kind_of(back.values[instr.out].dtype) != "f":
        return
    gradient = back.take_array(instr.out)
    if instr.kind == "send":
        gradient = back.rec.number(0, [])
    elif gradient is None:
        received = back.values[instr.out]
        gradient = OPS["fill"](shape=received.slice_shape, value=0.0, dtype=received.dtype)
    if instr.kind == "recv":
        operand = back.values[instr.out]
    attrs = {"shape": operand.slice_shape, "dtype": operand.dtype, **dict(instr.attrs)}
    attrs = {**definition.adjoint_attrs(attrs), "fusion": 0, "group": _group_back(instr)}
    reason = definition.why.format(name=instr.name, n=instr.group_size)
    value = Value(operand.slice_shape, operand.dtype, None)
    returned = back.message(definition.adjoint, instr, gradient, value, reason, attrs)
    back.sent.add(returned.name)
    if instr.kind != "recv":
        back.give(instr.ins[0], returned)


def _group_back(instr: Instr) -> tuple[int, ...]:
    """The ranks of the gradient's message: of a send and a recv, the other way."""
    return instr.by_hand if MESSAGES[instr.kind].is_collective else instr.by_hand[::-1]


def message_back(back: Any, instr: Instr, gradients: Sequence[TracedValue | Uniform]) -> None:
    """Through a message: its adjoint, on the gradient of what it brought."""
    (gradient,) = gradients
    definition, source = MESSAGES[instr.message], instr.ins[0]
    if instr.attr("shift") is not None:
        _border_back(back, instr, gradient)
        return
    if instr.by_hand and instr.attr("reduce", "sum") != "sum":
        if instr.kind != "all_reduce":
            raise without_gradient(class_name(instr), instr.attr("reduce"))
        _extreme_back(back, instr, back.array(gradient))
        return
    if isinstance(gradient, Uniform) and instr.kind == "all_reduce" and not instr.by_hand:
        back.give(source, replace(gradient, number=gradient.number * instr.group_size))
        return
    if instr.out in back.gathers:
        back.give(source, scatter(back, instr, back.array(gradient)))
        return
    value = back.values[source]
    if instr.kind == "all_reduce":
        value = back.values[instr.out]
        if value.layout is not None:
            layout = gradient_layout(value.layout)
            still_partial = tuple(a for a in layout.partial if a not in instr.axes)
            layout = TensorLayout(layout.device_matrix, layout.tensor_map, still_partial)
            value = Value(value.shape, value.dtype, layout)
    elif value.layout is None or definition.reducing:
        # a windowed value, some of whose elements neighbours hold too; or whole again, where addends were
        value = Value(value.slice_shape, value.dtype, None)
    else:
        value = back.gradient_value(source)
    reason = definition.why.format(name=instr.name, n=instr.group_size)
    attrs = {**definition.adjoint_attrs(dict(instr.attrs)), "fusion": 0}
    attrs |= {"group": instr.by_hand} if instr.by_hand else {}
    back.give(source, back.message(definition.adjoint, instr, back.array(gradient), value, reason, attrs))


def _extreme_back(back: Any, instr: Instr, gradient: TracedValue) -> None:
    """Through an all_reduce of the network itself that takes the extreme: equal ones share its gradient equally."""
    if instr.attr("reduce") not in ("max", "min"):
        raise without_gradient(class_name(instr), instr.attr("reduce"))
    source = instr.ins[0]
    value = Value(back.values[instr.out].slice_shape, gradient.dtype.name, None)
    attrs = {"reduce": "sum", "fusion": 0, "group": instr.by_hand}
    why = "backward of an extreme: its gradient is the sum of all ranks', shared by those whose element it is"
    mask = OPS["cast"](OPS["equal"](back.rec.value(source), back.rec.value(instr.out)), dtype=value.dtype)
    count = back.message("all_reduce", instr, mask, value, why, attrs, f"{instr.out}.grad.holders")
    total = back.message("all_reduce", instr, gradient, value, why, attrs)
    back.give(source, mask * (total / count))


def _border_back(back: Any, instr: Instr, gradient: TracedValue | Uniform) -> None:
    """The gradient of what came from another part of a pipeline goes back to it."""
    if isinstance(gradient, Uniform):
        back.give(instr.ins[0], gradient)
        return
    attrs = {**dict(instr.attrs), "source": instr.stage, "shift": -instr.attr("shift")}
    attrs |= {"sr_tag": instr.attr("sr_tag") + 1, "shape": gradient.shape, "dtype": dtype_name(gradient.dtype)}
    value = back.values[gradient.name]
    reason = f"the gradient of {instr.ins[0]!r} goes back to the stage that has made it"
    fields = {"attrs": attr_pairs(attrs), "reason": reason, "device_matrix": instr.device_matrix}
    fields["stage"] = instr.attr("source")
    back.give(instr.ins[0], back.rec.emit("recv", value, (gradient.name,), f"{instr.ins[0]}.grad.back", **fields))
