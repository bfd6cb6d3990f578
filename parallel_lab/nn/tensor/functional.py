"""Functions of functions, named and formed as in MindSpore's `ops.composite`: gradients, maps.

    grad = GradOperation(get_by_list=True)
    grads = grad(net_with_loss, net.trainable_params())(x, label)         # a tuple, one per parameter
    HyperMap()(ops.assign_add, totals, grads)

They work at once and inside a function that is compiled: everything here is made of operators and of `value_and_grad`.
Choice by type (`MultitypeFuncGraph`) is in `mindspore/_derivatives.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...base.checks import checked, flag, function, instance, kept
from ...base.errors import ArgumentError, ArgumentTypeError, ShapeError
from .arithmetic import Arithmetic
from .autograd import value_and_grad, weighted
from .parameter import Parameter, ParameterTuple

# ---- gradients ----


class GradOperation:
    """Makes the gradient function of a function or Cell.

    get_all      gradients for all inputs (a tuple); False: for the first one
    get_by_list  gradients for the weights given to the call; with get_all: the pair (inputs, weights)
    sens_param   the gradient function takes one more argument, at its end: the gradient of the function's own result

    Without sens_param it is 1 for every element of the result. Raises ArgumentTypeError for options that are no bools.
    """

    @kept(get_all=flag, get_by_list=flag, sens_param=flag)
    def __init__(self, get_all: bool = False, get_by_list: bool = False, sens_param: bool = False) -> None: ...

    @checked("GradOperation", fn=function("A function or a Cell"))
    def __call__(self, fn: Callable, weights: Iterable[Parameter] | Parameter | None = None) -> Callable:
        """The gradient function of `fn`.  weights: Parameters; default, for a Cell: its trainable ones."""
        targets = self._weights(fn, weights) if self.get_by_list else None
        return lambda *inputs: self.with_value(fn, targets, inputs)[1]

    def with_value(self, fn: Callable, targets: list[Parameter] | None, inputs: Sequence[Any]) -> tuple[Any, Any]:
        """(fn's result, its gradients).  wanted: weights; None: of the inputs alone."""
        where, sens = "GradOperation", None
        if self.sens_param:
            if not inputs:
                allowed = "The inputs, and last the result's gradient"
                raise ArgumentError("no argument is given", where=where, allowed=allowed)
            *inputs, sens = inputs
        positions = tuple(i for i, x in enumerate(inputs) if isinstance(x, (Arithmetic, np.ndarray)))
        if not self.get_all:
            positions = () if targets is not None else positions[:1]
        if not positions and targets is None:
            raise ArgumentError("no tensor among the inputs", where=where, allowed="At least one, to differentiate for")
        (_, result), grads = value_and_grad(weighted(fn, sens), positions or None, targets, has_aux=True)(*inputs)
        if targets is None:
            return result, grads if self.get_all else grads[0]
        return result, grads if not self.get_all or positions else ((), grads)

    @staticmethod
    def _weights(fn: Any, weights: Any) -> list[Parameter]:
        if weights is None:
            if not hasattr(fn, "trainable_params"):
                what, hint = "get_by_list=True without weights", "grad(fn, net.trainable_params())"
                raise ArgumentTypeError(what, where="GradOperation", allowed="Parameters", hint=hint)
            weights = fn.trainable_params()
        return [weights] if isinstance(weights, Parameter) else list(ParameterTuple(weights))

    def __repr__(self) -> str:
        return f"GradOperation(get_all={self.get_all}, get_by_list={self.get_by_list}, sens_param={self.sens_param})"


# ---- functions of tuples ----


class HyperMap:
    """A function applied to elements of nested tuples and lists in step: `HyperMap()(fn, grads, totals)` -> a tuple.

    ops  the function; None: it is the first argument of the call

    With `Map` only the outermost level is taken apart.
    """

    deep = True

    @kept(ops=instance(Callable, "A function") | None, reverse=flag)
    def __init__(self, ops: Callable | None = None, reverse: bool = False) -> None:
        pass

    def __call__(self, *args: Any) -> Any:
        where = type(self).__name__
        fn, sequences = (self.ops, args) if self.ops is not None else (args[0] if args else None, args[1:])
        if not callable(fn) or not sequences:
            allowed = "A function, and tuples of equal length"
            raise ArgumentTypeError(f"called with {len(args)} arguments", where=where, allowed=allowed)
        return self._mapped(fn, sequences, 0)

    def _mapped(self, fn: Callable, values: Sequence[Any], depth: int) -> Any:
        nested = [isinstance(v, (tuple, list)) for v in values]
        if not any(nested) or (depth and not self.deep):
            return fn(*values)
        if not all(nested) or len({len(v) for v in values}) > 1:
            sizes = ", ".join(str(len(v)) if n else type(v).__name__ for v, n in zip(values, nested, strict=True))
            allowed = "Equal lengths, nested alike"
            raise ShapeError(f"tuples of {sizes} elements", where=type(self).__name__, allowed=allowed)
        rows = list(zip(*values, strict=True))
        done = [self._mapped(fn, row, depth + 1) for row in (reversed(rows) if self.reverse else rows)]
        return tuple(reversed(done)) if self.reverse else tuple(done)
