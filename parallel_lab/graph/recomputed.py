"""What is not to be kept on the device for backward, as the trace writes it down: `Node.recompute`.

    cell.recompute()               everything in the Cell but what makes its outputs is recomputed for backward
    primitive.recompute()          this operator's results are recomputed, wherever it stands; (False): they are kept
    primitive.add_prim_attr("recompute_comm_op", True)    what messages brought for this operator is brought again
    cell.offload()                 what backward reads of the Cell's results waits on the host

A call of a Cell is a region of its own, with a number; a Cell within it belongs to the outermost one that was asked.
Pass `recompute` makes again, `graph/copies.py` moves. Rules: MindSpore, Cell.recompute, Primitive.recompute,
Cell.offload.
"""

from __future__ import annotations

from typing import Any

from .instr import Pairs, attr_pairs

OPTIONS = {"mp_comm_recompute": True, "parallel_optimizer_comm_recompute": False, "recompute_slice_activation": False}


def region_of(cell: Any, around: Pairs, number: int) -> Pairs:
    """The region that operators of a Cell belong to, given that of the Cell around it; (): none.

    number  of operators before it: no two regions that hold any have the same
    """
    options, ahead = getattr(cell, "recompute_options", None), getattr(cell, "offload_prefetch", None)
    if around or options is ahead is None:
        return around
    return attr_pairs({**({"offload": ahead} if ahead else {**OPTIONS, **(options or {})}), "region": number})


def option_of(primitive: Any, region: Pairs) -> Pairs:
    """How an operator of a region is recomputed: as the region says, unless the Primitive itself says otherwise."""
    attrs = {} if primitive is None else primitive.prim_attrs
    chosen = attrs.get("recompute")
    if attrs.get("recompute_comm_op") is True and chosen is None and not region:
        return attr_pairs({**OPTIONS, "alone": True, "operands": True})
    if chosen is None or (not chosen and offloads(region)):
        return region
    region = () if offloads(region) else region
    return attr_pairs({**OPTIONS, **dict(region), "alone": True}) if chosen else ()


def offloads(option: Pairs) -> int:
    """How many operators before its reader what waits on the host is brought back; 0: it does not wait there."""
    return dict(option).get("offload", 0)


def asks_to_recompute(option: Pairs) -> bool:
    """Whether results are to be recomputed."""
    return bool(option) and not offloads(option)
