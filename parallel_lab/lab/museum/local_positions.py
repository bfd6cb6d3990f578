"""Rotary positions begin at 0 on every rank."""

from dataclasses import replace
from typing import Any

import numpy as np

from ...graph.instr import Instr
from .models import Language
from .network import Array, Held
from .piece import Piece, Ranks


def in_plan(instr: Instr) -> Instr:
    """The mistake in a plan: the operator is not given the offset of its slice."""
    return replace(instr, offset_axes=()) if instr.op == "rotary_positions" else instr


class _LocalPositions(Language):
    def positions(self) -> Array:
        return np.arange(len(self.own)) if self.wrong else self.own

    def turned(self, x: Any, positions: Array) -> Any:
        turned = super().turned(x, positions)
        self.watch("queries", x, self.own)  # they come before keys
        self.watch("turned queries", turned, self.own)
        return turned


def cosine(ranks: Ranks, alone: Held) -> float:
    """The cosine of the angle by which the last query of all was turned."""
    before, after = ranks[-1]["queries"][-1], ranks[-1]["turned queries"][-1]
    return float(before @ after / (before @ before))


PIECE = Piece(
    "local positions",
    "ISEEKYAN/Megatron-LM#208",
    _LocalPositions,
    symptom="cosine of the angle by which the last of 32 tokens is turned",
    right=float(np.cos(31)),
    wrong=float(np.cos(7)),  # its place on its rank
    finds=("loss", "gradients", "probe"),
    mends="The position is the index map of the placement",
    measure=cosine,
    in_plan=in_plan,
)
