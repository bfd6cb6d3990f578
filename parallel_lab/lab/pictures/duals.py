"""Messages in pairs: the forward message, and the one that brings its gradient back.

    table = with_duals(plan, message_table(plan, rank))
    table[2]["dual"], table[2]["dual_text"]     9, "its backward is #9, the AllReduce of the gradient"

Read off the plan: an all_gather's gradient comes back by a reduce_scatter, an all_reduce's by an all_reduce, and so on
(`CollectiveDef.adjoint`). A message without a partner says why: a slice is undone without a message, and the gradients
of a parameter that ranks hold in copies are added up for a copy that costs nothing forward.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...graph.instr import Instr
from ...graph.plan import Plan
from ...layout.redistribution import plan_redistribution
from ...ops.collectives.definitions import MESSAGES
from .moves import moves_view
from .picture import drawn_dims, form_of


def _moving(plan: Plan) -> list[tuple[str, Instr]]:
    """What `message_table` lists, in its order."""
    return [(p, i) for p, i in plan.instructions() if i.is_communication or i.kind == "slice"]


def duals(plan: Plan) -> dict[int, int]:
    """Numbers of the messages that belong together, both ways."""
    numbered = list(enumerate(_moving(plan), 1))
    back = {instr.out: number for number, (phase, instr) in numbered if phase == "backward"}
    partners: dict[int, int] = {}
    for number, (phase, instr) in numbered:
        kind = instr.message or instr.kind
        if phase == "backward" or kind not in MESSAGES:
            continue
        gathered = instr.attr("parameter")
        names = [f"{instr.out}.grad.{MESSAGES[kind].adjoint}", *([f"{gathered}.grad.scattered"] if gathered else [])]
        partner = next((back[name] for name in names if name in back), None)
        if partner is not None:
            partners |= {number: partner, partner: number}
    return partners


def with_duals(plan: Plan, table: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table, each row with "dual" (a number or None), "dual_text" (a sentence of it), and the values that the
    message "reads" and "makes".
    """
    rows, pairs, instrs = list(table), duals(plan), _moving(plan)
    named = {row["number"]: row["collective"] for row in rows}
    with_gradient = dict(plan.value_gradients)
    made_of = {out: i.ins for _, i in plan.instructions("forward") for out in i.outs}

    def trained(value: str) -> bool:
        return value in with_gradient or any(name in with_gradient for name in made_of.get(value, ()))

    def text(number: int, phase: str, instr: Instr) -> str:
        partner = pairs.get(number)
        if partner is not None:
            role = "its backward is" if phase == "forward" else "it is the backward of"
            return f"{role} #{partner}, the {named[partner]}{' of the gradient' if phase == 'forward' else ''}"
        if phase == "forward":
            if not trained(instr.ins[0]):
                return "no gradient comes back through it: nothing is trained before it"
            alone = (
                "zeros beside the gradient of the slice" if instr.kind == "slice" else "every rank knows its gradient"
            )
            return f"its backward sends nothing: {alone}"
        copies = "its forward sends nothing: the ranks hold copies of the parameter"
        return copies if instr.attr("parameter") or instr.attr("members") else "it has no partner in forward"

    return [
        {
            **row,
            "dual": pairs.get(row["number"]),
            "dual_text": text(row["number"], phase, instr),
            "reads": instr.ins[0],
            "makes": instr.out,
        }
        for row, (phase, instr) in zip(rows, instrs, strict=True)
    ]


def redistribution_of(plan: Plan, number: int) -> dict[str, Any] | None:
    """What moves in the redistribution that message `number` is a step of, as `moves_view` has it; None of others, and
    where more than two dims change, which a flat picture cannot show.
    """
    phase, instr = _moving(plan)[number - 1]
    source = form_of(plan, instr.out)
    wanted = f"{source}.for.{instr.name}"
    if phase != "forward" or instr.attr("window") is not None or {source, wanted} - plan.value_table.keys():
        return None
    have, want = plan.value(source), plan.value(wanted)
    if have.layout is None or want.layout is None or have.shape != want.shape:
        return None
    splits = tuple(max(pair) for pair in zip(have.layout.splits, want.layout.splits, strict=True))
    if sum(n > 1 for n in splits) > 2:
        return None
    steps = plan_redistribution(have.layout, want.layout, have.shape, **plan.config.manner)
    view = moves_view(steps, have.layout, want.layout, have.shape, np.dtype(have.dtype).itemsize)
    return {**view, "drawn": drawn_dims(splits), "label": f"{source} for {instr.name}"}
