"""Gradients of operators that gradients are made of: second derivatives, `grad(lambda x: grad(f)(x).sum())`.

An operator without one here is refused where its gradient is to be differentiated. Rules: the product rule.
"""

from __future__ import annotations

from ...ops.activation import relu_grad, tanh_grad
from ...ops.elementwise import mul, where_at_least, where_below
from ...ops.reduce import reduce_sum, spread


@spread.vjp
def _(g, out, x, *, shape, axis):
    return (reduce_sum(g, axis=axis, keep_dims=len(x.shape) == len(shape)) if axis else g,)


@tanh_grad.vjp
def _(g, result, slope, out):
    return tanh_grad(g, out), mul(mul(g, slope), mul(out, -2.0))


@relu_grad.vjp
def _(g, result, slope, out):
    return relu_grad(g, out), None


@where_at_least.vjp
def _(g, out, slope, x, y):
    return where_at_least(g, x, y), None, None


@where_below.vjp
def _(g, out, slope, x, y):
    return where_below(g, x, y), None, None
