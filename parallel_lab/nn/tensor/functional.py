"""Gradients, named and formed as in MindSpore's `ops.composite`.

    grad = GradOperation(get_by_list=True)
    grads = grad(net_with_loss, net.trainable_params())(x, label)         # a tuple, one per parameter

It works at once and inside a function that is compiled: it is made of `value_and_grad`. Maps over tuples (`HyperMap`)
are in `catalog/nn/forms.py`, choice by type (`MultitypeFuncGraph`) in `mindspore/_derivatives.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...base.checks import checked, flag, function, kept
from ...base.errors import ArgumentError, ArgumentTypeError
from .arithmetic import Arithmetic
from .autograd import value_and_grad, weighted
from .parameter import Parameter, ParameterTuple


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
