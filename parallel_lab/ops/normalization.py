"""Normalisation over dims that one rank holds whole: layer norm. Batch norm has a file of its own; RMS norm, group norm
and others are in the catalogue.

    y = (x - mean) / sqrt(variance + epsilon) * gamma + beta

Mean and variance are those of the normalised elements; the variance is divided by n (population form).

The normalised dims stay whole, all others may be split freely: a mean over a split dim is not "local mean, then
one reduction" of the result. RMS norm may split them too: it is then made of other operators. Gradients of gamma and
beta are sums over the other dims, which the synchronisation of gradients completes.

Few passes over the data make these fast: means are products with a vector of ones (a third of the time of numpy's mean,
1024 x 256 float32), sums of squares are row-wise dot products. float16 is computed in float32.

A gradient rule needs the normalised values three times, for x, gamma and beta: one operator has all three as results.
"""

from __future__ import annotations

import math

import numpy as np

from ..base.checks import number
from .machine.operand_checks import floats, one_dim
from .machine.registry import case, op, total
from .machine.signature import letters
from .unary import floats as in_floats

# ---- helpers shared with other families ----


EPSILON = number(0, above=True)


def parameters_fault(operands, names, shape, what):
    """The fault of the operands, in the order of `names`, if x is not a float or a parameter has another shape."""
    x, *parameters = operands
    for name, operand in zip(names, parameters, strict=True):
        if operand.shape != shape:
            return f"{name} has shape {operand.shape}", f"{shape}, {what}"
    return floats(x)


def wide(x):
    """x in a dtype to compute in."""
    return x.astype(np.float32) if x.dtype == np.float16 else in_floats(x)


def _mean(rows):
    """Mean of every row.  rows: (r, d) -> (r, 1)."""
    return (rows @ np.full(rows.shape[1], 1 / rows.shape[1], rows.dtype))[:, None]


def normalized_rows(rows, epsilon):
    """Rows with mean 0, variance 1; their 1 / deviation, mean, variance.  rows: (r, d) -> (r, d), 3 times (r, 1)."""
    mean = _mean(rows)
    x = rows - mean
    variance = np.vecdot(x, x)[:, None] / x.shape[1]
    inverse = 1 / np.sqrt(variance + x.dtype.type(epsilon))
    x *= inverse
    return x, inverse, mean, variance


def normalized_rows_grad(g, x, inverse):
    """Gradient for the rows; it overwrites `g`, the gradient of the normalised rows `x`.  All (r, d)."""
    slope = np.vecdot(g, x)[:, None] / x.shape[1]
    g -= _mean(g)
    x *= slope
    g -= x
    g *= inverse
    return g


def column_sums(g, x=None):
    """Sums of the columns of g, or of g * x.  g, x: (r, d) -> (d,)."""
    return np.ones(len(g), g.dtype) @ g if x is None else np.einsum("rd,rd->d", g, x)


# ---- layer norm ----


def _layer_labels(shapes, *, begin_norm_axis, begin_params_axis, epsilon):
    names = letters(len(shapes[0]))
    params, kept = names[begin_params_axis % len(names) :], begin_norm_axis % len(names)
    statistic = names[:kept] + "1" * (len(names) - kept)
    return f"{names},{params},{params}->{names},{statistic},{statistic}"


def _check_layer(operands, *, begin_norm_axis, begin_params_axis, epsilon):
    shape = operands[0].shape
    if 0 in shape[begin_norm_axis:]:
        return f"x has shape {shape}", "Normalised dims with elements"
    what = f"the dims of x from begin_params_axis={begin_params_axis} on"
    return parameters_fault(operands, ("gamma", "beta"), shape[begin_params_axis:], what)


@op(
    _layer_labels,
    name="LayerNorm",
    instead="ReduceMean and Var",
    attrs={"begin_norm_axis": one_dim, "begin_params_axis": one_dim, "epsilon": EPSILON},
    check=_check_layer,
    whole=lambda signature, *, begin_norm_axis, **_: signature.ins[0][begin_norm_axis % len(signature.ins[0]) :],
    flops=8,
    example=(
        case((8, 16), (16,), (16,)),
        case((4, 8, 6), (8, 6), (8, 6), begin_norm_axis=-1),
        case((4, 2, 3, 4), (4,), (4,), begin_norm_axis=1, begin_params_axis=-1),
    ),
)
def layer_normalization(x, gamma, beta, *, begin_norm_axis=1, begin_params_axis=1, epsilon=1e-7):
    """x normalised over its dims from `begin_norm_axis` on, and the mean and variance of those elements.

    x: (...), gamma, beta: the dims from `begin_params_axis` on -> y: (...); mean, variance: (..., 1 for each normalised
    dim). The normalised dims stay whole; gamma and beta are split as x is. Defaults: MindSpore's ops.LayerNorm.
    """
    axis = begin_norm_axis % x.ndim
    rows = wide(x).reshape(math.prod(x.shape[:axis]), -1)
    dtype, kept = np.result_type(in_floats(x), gamma, beta), (*x.shape[:axis], *(1,) * (x.ndim - axis))
    y, _, *statistics = normalized_rows(rows, epsilon)
    y = y.reshape(x.shape)
    # in place where the dtypes agree: one array less
    y = np.multiply(y, gamma, out=y if y.dtype == dtype else None)
    y += beta
    mean, variance = (s.reshape(kept).astype(dtype, copy=False) for s in statistics)
    return y.astype(dtype, copy=False), mean, variance


@op(result_shape=(1, 2, 2))
def layer_norm_grad(g, x, gamma, *, begin_norm_axis, begin_params_axis, epsilon):
    """Gradients for x, gamma and beta.  g, x: (...), gamma: its last dims -> like x, gamma, gamma."""
    axis, start = begin_norm_axis % x.ndim, begin_params_axis % x.ndim
    dtype = np.result_type(g, x, gamma)
    g, x = wide(g), wide(x)
    normal, inverse, *_ = normalized_rows(x.reshape(math.prod(x.shape[:axis]), -1), epsilon)
    g_rows = g.reshape(math.prod(x.shape[:start]), -1)
    sums = column_sums(g_rows, normal.reshape(g_rows.shape)), column_sums(g_rows)
    scaled = np.multiply(g, gamma, dtype=np.result_type(g, normal, wide(gamma)))
    normalized_rows_grad(scaled.reshape(normal.shape), normal, inverse)
    of_gamma, of_beta = (each.reshape(gamma.shape).astype(dtype, copy=False) for each in sums)
    return scaled.astype(dtype, copy=False), of_gamma, of_beta


@op(result_shape=1)
def layer_norm_mean_grad(g, x, *, begin_norm_axis):
    """Gradient of the mean.  g: (..., 1), x: (...) -> (...)."""
    axis = begin_norm_axis % x.ndim
    return np.array(np.broadcast_to(g / math.prod(x.shape[axis:]), x.shape))


@op(result_shape=1)
def layer_norm_variance_grad(g, x, *, begin_norm_axis):
    """Gradient of the variance.  g: (..., 1), x: (...) -> (...)."""
    axis = begin_norm_axis % x.ndim
    rows = x.reshape(math.prod(x.shape[:axis]), -1)
    return (rows - _mean(rows)).reshape(x.shape) * (g * (2 / rows.shape[1])).astype(x.dtype)


@layer_normalization.vjp
def _(g, out, x, gamma, beta, *, begin_norm_axis, **attrs):
    axis = {"begin_norm_axis": begin_norm_axis}
    of_y, *of_statistics = g
    gradients = (None,) * 3 if of_y is None else layer_norm_grad(of_y, x, gamma, **axis, **attrs)
    rules = (layer_norm_mean_grad, layer_norm_variance_grad)
    others = (None if each is None else rule(each, x, **axis) for each, rule in zip(of_statistics, rules, strict=True))
    return total(gradients[0], *others), *gradients[1:]
