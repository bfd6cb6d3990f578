"""The group of data parallel omits the ranks that split the sequence: nothing is added up."""

from typing import Any

from .models import Language
from .piece import Piece, ratio, unsummed


class _WithoutSequence(Language):
    def summed(self, name: str, gradient: Any) -> Any:
        data_parallel = (self.rank,)  # no other rank has another text
        return self.all_reduce(gradient, group=data_parallel if self.wrong else self.sharing())


PIECE = Piece(
    "group without the sequence",
    "ByteDance-Seed/VeOmni#1115",
    _WithoutSequence,
    symptom="gradient, next to one device's",
    right=1.0,
    wrong=1 / 4,  # addends of four ranks
    finds=("gradients", "copies"),
    mends="The group of dp and cp together",
    measure=ratio("gradient of head"),
    by_types=True,
    in_plan=unsummed(""),
)
