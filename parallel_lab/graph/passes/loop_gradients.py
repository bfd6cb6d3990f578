"""Backward through a `while`: a loop of its own, which takes the turns from the last to the first.

    restore      the values that the turn has made are there again; without one it ends
    body back    gradients of what the turn read: of a variable for the turn before, of all else a sum over the turns

`back` is the way back through the program (`differentiate.Backward`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ops.machine.opdef import OPS
from ..instr import Instr, Value, attr_pairs
from ..traced_value import TracedValue


def loop_back(back: Any, variables: Sequence[Instr], body: Sequence[Instr]) -> None:
    """Through a loop: `variables`, an instruction of kind "loop" for each, and what a turn runs before them."""
    rec, first, name = back.rec, variables[0], variables[0].loop
    inner, condition = first.when, first.ins[0]
    taken = [back.take_array(i.out) for i in variables]
    if all(gradient is None for gradient in taken):
        return
    outer = rec.when = back.sides(inner[:-1])
    made = {n for i in body for n in i.outs} | {i.ins[1] for i in variables}
    read = dict.fromkeys(n for i in body for n in i.ins if n not in made and n in back.live)
    carried = [i for i in variables if i.out in back.live]
    gradients = dict(zip(variables, taken, strict=True))
    now = {i: _named(back, _or_zeros(back, gradients[i], i.out), i.out) for i in carried}
    sums = {n: _named(back, _or_zeros(back, None, n), n) for n in read}
    loop = OPS["logical_not"](rec.number(False, []))
    rec.when = (*outer, (loop.name, True))
    reason = "backward takes the turns of a loop from the last to the first"
    again = rec.emit("restore", Value((), "bool", None), (), attrs=attr_pairs({"of": name}), reason=reason)
    sides = {(name, True): (loop.name, True), (condition, True): (again.name, True)}
    within = (*inner, (condition, True))
    before = back.grads, back.made_when, back.translated
    back.grads = {}
    back.made_when = {**back.made_when, **dict.fromkeys((*read, *(i.ins[1] for i in variables)), within)}
    back.translated = {**back.translated, **sides}
    rec.when = back.sides(within)
    for i in carried:
        back.give(i.ins[2], now[i])
    back.run_part(body)
    rec.when = back.sides(within)
    following = {i: _or_zeros(back, back.take_array(i.ins[1]), i.ins[1]) for i in carried}
    added = {n: part if (part := back.take_array(n)) is None else sums[n] + part for n in read}
    back.grads, back.made_when, back.translated = before
    rec.when = (*outer, (loop.name, True))
    ends = [(i.ins[1], now[i], following[i]) for i in carried]
    ends += [(n, sums[n], total) for n, total in added.items() if total is not None]
    given = []
    for n, at_first, next_one in ends:
        operands, op = (again.name, at_first.name, next_one.name), {"op": "loop", "op_class": OPS["loop"].class_name}
        value = back.gradient_value(n)
        given.append((n, rec.emit("loop", value, operands, attrs=attr_pairs({"of": loop.name}), **op)))
    rec.when = outer
    for n, gradient in given:
        back.give(n, gradient)


def _or_zeros(back: Any, gradient: TracedValue | None, name: str) -> TracedValue:
    """The gradient of `name`, or zeros if there is none."""
    if gradient is not None:
        return gradient
    value = back.gradient_value(name)
    zeros = OPS["fill"](shape=value.slice_shape, value=0.0, dtype=value.dtype)
    back.values[zeros.name] = value
    return zeros


def _named(back: Any, gradient: TracedValue, name: str) -> TracedValue:
    """A value of its own, which takes another one with every turn."""
    result = OPS["identity"](gradient)
    back.values[result.name] = back.gradient_value(name)
    return result
