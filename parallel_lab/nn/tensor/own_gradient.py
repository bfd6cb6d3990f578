"""Results with a gradient that a function says: behind `bprop` of a Cell, hooks, recomputation and `InsertGradientOf`.

    y = OwnGradient("clip", lambda values, gradients: [ops.clip(gradients[0], -1, 1)])((y,), several=False)

The operator is `own_gradient` of `ops/own_gradient.py`; operators of the user's own are in `catalog/nn/custom.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...ops.own_gradient import MADE, own_gradient
from .tensor import Tensor

_NUMBERS = itertools.count()


def next_number() -> int:
    """By which a traced call names a function or an operator of the user's own."""
    return next(_NUMBERS)


class OwnGradient:
    """Results with a gradient that a function says: `OwnGradient(name, f)((result,), inputs, several=False)`.

    f  called with (values, gradients of the results) for the gradients of the inputs; without inputs, of the values
       themselves. values: the results, then the inputs
    """

    def __init__(self, called: str, function: Callable) -> None:
        self.called, self.function, self.number = called, function, next_number()
        MADE[self.number] = self

    def gradient(self, values: tuple[Any, ...], gradients: tuple[Any, ...]) -> list[Any]:
        """Arrays are given to the function as Tensors, and taken back as arrays."""
        at_once = isinstance(gradients[0], (np.ndarray, np.generic))
        opened = (tuple(map(Tensor, each)) if at_once else each for each in (values, gradients))
        return [None if gradient is None else values_of(gradient) for gradient in self.function(*opened)]

    def __call__(self, results: tuple[Any, ...], inputs: tuple[Any, ...] = (), *, several: bool) -> Any:
        facts = {"called": self.called, "number": self.number, "count": len(results), "several": several}
        outputs = own_gradient(*results, *inputs, **facts)
        for x in outputs if several else (outputs,):
            if getattr(x, "node", None) is not None:
                x.node.attrs = {**x.node.attrs, "kept": self}  # until the gradient is made
        return outputs


def values_of(result: Any) -> Any:
    """Tensors as arrays, also in tuples; values of a trace as they are."""
    if isinstance(result, (tuple, list)):
        return tuple(map(values_of, result))
    return result.asnumpy() if isinstance(result, Tensor) else result
