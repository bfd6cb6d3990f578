"""Dropout layers. The mask is a function of (global seed, layer name, step, element): the same under every strategy."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...base.checks import number, probability
from ...base.errors import ArgumentError, ShapeError
from ...base.seeds import get_seed
from ...ops.dropout import dropout_at, dropout_key
from ...ops.elementwise import a_dtype
from ...ops.machine.state import StepCalls
from ...ops.shape import shape as shape_of
from ..cell import Cell


class Dropout(Cell):
    """A share p of the elements set to 0, the others divided by 1 - p; in training only.  x: (...) -> (...).

    keep_prob  1 - p, as MindSpore up to 1.10 has it, from above 0 to 1; one of the two may be given
    p          from 0 on, below 1; default 0.5

    Run directly, every call in training counts as a step, from 0 on (`calls`); in `Model` and compiled, training steps
    count. Two dropouts of one network differ by their names, two calls of one in a compiled step by their order.
    Operator: `dropout` (Dropout); its strategy has one tuple.
    """

    dims: int | None = None  # leading dims that have elements of their own; None: all
    rank: int | None = None  # dims that x has; None: any number
    other_names: ClassVar = {"dropout_do_mask": "dropout", "dropout_gen_mask": "dropout"}  # MindSpore's up to 1.10

    def __init__(self, keep_prob: float | None = None, p: float | None = None, dtype: Any = np.float32) -> None:
        super().__init__()
        where = type(self).__name__
        a_dtype(where, "dtype", dtype)
        if keep_prob is not None and p is not None:
            raise ArgumentError(f"keep_prob={keep_prob} and p={p}", where=where, allowed="One of the two")
        if keep_prob is not None:
            p = 1 - number(0, 1, above=True)(where, "keep_prob", keep_prob)
        self.p = 0.5 if p is None else probability(where, "p", p)
        self.keep_prob, self.dtype = 1 - self.p, dtype
        self._calls = StepCalls()
        # `key` is set when it is called: the name is complete only then
        self.dropout = dropout_at.primitive(p=self.p, key=0, dims=self.dims)

    def construct(self, x: Any) -> Any:
        if not self.training or self.p == 0:
            return x
        if self.rank not in (None, len(shape_of(x))):
            raise ShapeError(f"an input of shape {shape_of(x)}", where=self._where(), allowed=f"{self.rank} dims")
        step, again = self._calls.next()
        self.dropout.given["key"] = dropout_key(get_seed(), self.__dict__["_prefix"], again)
        return self.dropout(x, step)

    @property
    def calls(self) -> int:
        """How often it was called in training, outside of training steps."""
        return self._calls.calls

    def extend_repr(self) -> str:
        return f"p={self.p}"
