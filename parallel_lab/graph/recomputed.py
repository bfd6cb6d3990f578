"""What the learner asked to recompute, as the trace writes it down: `Node.recompute`.

    cell.recompute()               everything in the Cell but what makes its outputs is made again for backward
    primitive.recompute()          this operator's results are made again, wherever it stands; (False): they are kept

A call of a Cell is a region of its own, with a number; a Cell within it belongs to the outermost one that was asked.
Pass `recompute` makes the copies. Rules: MindSpore, Cell.recompute and Primitive.recompute.
"""

from __future__ import annotations

from typing import Any

from .ir import Pairs, attr_pairs

OPTIONS = {"mp_comm_recompute": True, "parallel_optimizer_comm_recompute": False, "recompute_slice_activation": False}


def region_of(cell: Any, around: Pairs, number: int) -> Pairs:
    """The region that operators of a Cell belong to, given that of the Cell around it; (): none.

    number  of operators before it: no two regions that hold any have the same
    """
    options = getattr(cell, "recompute_options", None)
    return around if around or options is None else attr_pairs({**OPTIONS, **options, "region": number})


def wish_of(primitive: Any, region: Pairs) -> Pairs:
    """How an operator of a region is recomputed: as the region says, unless the Primitive itself has been told."""
    said = None if primitive is None else primitive.prim_attrs.get("recompute")
    if said is None:
        return region
    return attr_pairs({**OPTIONS, **dict(region), "alone": True}) if said else ()
