"""Norms of rows and of groups of channels, responses normalised over neighbouring channels; and norms as functions."""

from __future__ import annotations

import math

import numpy as np

from ...base.checks import SHAPE_ERRORS, choice, integer, integers, number
from ...base.dtypes import promoted
from ...base.errors import ShapeError, shorten
from ...ops.elementwise import add, cast, float_result, mul
from ...ops.machine.composed import composed
from ...ops.machine.registry import case, form, gradient, op, total
from ...ops.machine.signature import letters
from ...ops.normalization import (
    EPSILON,
    column_sums,
    layer_normalization,
    normalized_rows,
    normalized_rows_grad,
    parameters_fault,
    wide,
)
from ...ops.reduce import reduce_mean
from ...ops.spellings import function
from ...ops.unary import floats as in_floats, rsqrt, square


@function()
def layer_norm(x, normalized_shape, gamma=None, beta=None, eps=1e-5):
    """x normalised over its last dims.  x: (..., *normalized_shape), gamma, beta: normalized_shape, or None: ones and
    zeros -> (...).
    """
    shape = integers(0)("layer_norm", "normalized_shape", normalized_shape, SHAPE_ERRORS)
    if tuple(x.shape[-len(shape) :]) != shape:
        given = f"normalized_shape={shorten(normalized_shape)} for x of shape {tuple(x.shape)}"
        raise ShapeError(given, where="layer_norm", allowed="Its last dims")
    axis = -len(shape)
    gamma = np.ones(shape, str(x.dtype)) if gamma is None else gamma
    beta = np.zeros(shape, str(x.dtype)) if beta is None else beta
    return layer_normalization(x, gamma, beta, begin_norm_axis=axis, begin_params_axis=axis, epsilon=eps)[0]


@form(layer_normalization, "LayerNormExt")
def _(self, input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """`LayerNorm` in PyTorch's words.  input: (..., *shape) -> like it, mean (..., 1), 1 / deviation (..., 1)."""
    shape = integers(0)("LayerNormExt", "normalized_shape", normalized_shape, SHAPE_ERRORS)
    gamma = np.ones(shape, str(input.dtype)) if weight is None else weight
    beta = np.zeros(shape, str(input.dtype)) if bias is None else bias
    axis = -len(shape)
    y, mean, variance = self.run(input, gamma, beta, begin_norm_axis=axis, begin_params_axis=axis, epsilon=eps)
    return y, mean, rsqrt(variance + eps)


@form(layer_normalization, "LayerNormV3")
def _(self, input_x, gamma, beta, *, begin_norm_axis=1, begin_params_axis=1, epsilon=1e-7):
    """As LayerNorm, with 1 / deviation.  input_x: (...), gamma, beta: its last dims -> (...), (..., 1), (..., 1)."""
    where = {"begin_norm_axis": begin_norm_axis, "begin_params_axis": begin_params_axis}
    y, mean, variance = self.run(input_x, gamma, beta, epsilon=epsilon, **where)
    return y, mean, rsqrt(variance + epsilon)


# ---- RMS norm ----


def _rms_parts(shapes):
    """Labels of x, of gamma and of the root."""
    names = letters(len(shapes[0]))
    kept = max(len(names) - len(shapes[1]), 0)
    return names, names[kept:], names[:kept] + "1" * (len(names) - kept)


def _rms_labels(shapes, *, epsilon):
    return "{0},{1}->{0},{2}".format(*_rms_parts(shapes))


def _check_rms(operands, *, epsilon):
    dims = len(operands[1].shape) or 1
    return parameters_fault(operands, ("gamma",), operands[0].shape[-dims:], "the last dims of x")


_RMS = {"attrs": {"epsilon": EPSILON}, "check": _check_rms, "flops": 5}


@op(_rms_labels, whole=lambda signature, **_: signature.ins[1], **_RMS, shown="RmsNorm")
def rms_norm_fused(x, gamma, *, epsilon=1e-6):
    """`rms_normalization` over dims that are whole.  x: (...), gamma: its last dims -> (...), (..., 1 for each)."""
    rows = wide(x).reshape(-1, gamma.size)
    dtype = np.result_type(in_floats(x), gamma)
    inverse = _inverse_rms(rows, epsilon)
    y = ((rows * inverse) * gamma.reshape(-1)).reshape(x.shape).astype(dtype, copy=False)
    return y, inverse.reshape(*x.shape[: x.ndim - gamma.ndim], *(1,) * gamma.ndim).astype(dtype, copy=False)


@rms_norm_fused.vjp
def _(g, out, x, gamma, *, epsilon):
    of_y, of_root = g
    of_x, of_gamma = (None, None) if of_y is None else rms_norm_grad(of_y, x, gamma, epsilon=epsilon)
    other = None if of_root is None else rms_norm_root_grad(of_root, out[1], x, dims=len(gamma.shape))
    return total(of_x, other), of_gamma


@composed(
    _rms_labels, name="RmsNorm RMSNorm", **_RMS, example=(case((8, 16), (16,)), case((4, 2, 2, 4), (2, 4), epsilon=0.1))
)
def rms_normalization(part, x, gamma, *, epsilon=1e-6):
    """x / sqrt(mean of x squared + epsilon) * gamma, and that inverse root (Zhang and Sennrich 2019).

    x: (...), gamma: the last dims, averaged over -> y: (...), inverse root: (..., 1 for each of gamma's dims).

    Where averaged dims are split: Square, ReduceMean (an all_reduce of the size of the root), Add, Rsqrt, Mul, Mul, and
    backward another such all_reduce (MindSpore, rms_norm_info); else one operator without messages.
    """
    names, count = letters(len(x.shape)), len(gamma.shape)
    params, small = names[len(names) - count :], names[: len(names) - count] + "1" * count
    if not part.splits(params):
        labels = f"{names},{params}->{names}"
        return part(rms_norm_fused, x, gamma, labels=labels, alone=True, epsilon=epsilon)
    dtype = promoted((float_result((x.dtype,)), gamma.dtype))
    in_float32 = str(x.dtype) == "float16" or float_result((x.dtype,)) != str(x.dtype)
    x = part(cast, x, labels=f"{names}->{names}", dtype="float32") if in_float32 else x
    squares = part(square, x, labels=f"{names}->{names}")
    mean = part(reduce_mean, squares, labels=f"{names}->{small}", axis=tuple(range(-count, 0)), keep_dims=True)
    root = part(rsqrt, part(add, mean, epsilon, labels=f"{small},->{small}"), labels=f"{small}->{small}")
    y = part(mul, x, root, labels=f"{names},{small}->{names}")
    y = part(mul, y, gamma, labels=f"{names},{params}->{names}")
    return tuple(
        v if str(v.dtype) == dtype else part(cast, v, labels=f"{c}->{c}", dtype=dtype)
        for v, c in ((y, names), (root, small))
    )


@function()
def rms_norm(x, gamma, epsilon=1e-6):
    """`RmsNorm`'s two results.  x: (...), gamma: its last dims -> (...), (..., 1 for each). Form: mindspore.ops."""
    return rms_normalization(x, gamma, epsilon=epsilon)


@op(
    lambda shapes, *, epsilon: "{0},{0},{1}->{0},{2},{0}".format(*_rms_parts(shapes[1:])),
    name="AddRmsNorm",
    whole=lambda signature, **_: signature.ins[2],
    check=lambda operands, *, epsilon: _check_rms(operands[1:], epsilon=epsilon),
    attrs={"epsilon": EPSILON},
    flops=6,
    example=(case((8, 16), (8, 16), (16,)), case((4, 2, 2, 4), (4, 2, 2, 4), (2, 4), epsilon=0.1)),
)
def add_rms_norm(x1, x2, gamma, epsilon=1e-6):
    """`rms_norm` of x1 + x2, and the sum.  x1, x2: (...), gamma: its last dims -> (...), (..., 1 for each), (...)."""
    both = x1 + x2
    return *rms_norm_fused.fn(both, gamma, epsilon=epsilon), both


@add_rms_norm.vjp
def _(g, out, x1, x2, gamma, *, epsilon):
    of_y, of_root, of_sum = g
    both = out[2]
    of_x, of_gamma = (None, None) if of_y is None else rms_norm_grad(of_y, both, gamma, epsilon=epsilon)
    root = None if of_root is None else rms_norm_root_grad(of_root, out[1], both, dims=len(gamma.shape))
    of_x = total(total(of_x, root), of_sum)
    return of_x, of_x, of_gamma


# ---- group norm ----


def _group_labels(shapes, *, num_groups, epsilon):
    names = letters(len(shapes[0]))
    return f"{names},{names[1:2]},{names[1:2]}->{names}"


def _check_group(operands, *, num_groups, epsilon):
    shape = operands[0].shape
    if len(shape) < 2:
        return f"x has shape {shape}", "At least 2 dims: (n, c, ...)"
    if shape[1] % num_groups:
        return f"num_groups={num_groups} for {shape[1]} channels", "A count that divides the channels"
    return parameters_fault(operands, ("gamma", "beta"), shape[1:2], "one per channel of x")


def _group_restriction(signature, cuts, sizes, *, num_groups, epsilon):
    parts = cuts["b"]
    if num_groups % parts:
        what = f"splits dim 1 of input 0 ('b', the channels) {parts} ways, but there are {num_groups} groups"
        return what, "A group stays on one rank: channels are split at the borders of groups only"
    return None


@op(
    _group_labels,
    name="GroupNorm",
    attrs={"num_groups": integer(1), "epsilon": EPSILON},
    check=_check_group,
    whole=lambda signature, **_: signature.ins[0][2:],
    restrict=_group_restriction,
    localize=lambda attrs, parts: {**attrs, "num_groups": attrs["num_groups"] // parts["b"]},
    flops=8,
    example=(case((4, 8, 3, 2), (8,), (8,), num_groups=4), case((8, 6), (6,), (6,), num_groups=2)),
)
def group_norm(x, gamma, beta, *, num_groups=1, epsilon=1e-5):
    """Channels normalised in groups, every sample on its own (Wu and He 2018).  x: (n, c, ...), others: (c,) -> like x.

    The mean goes over c / num_groups channels and all dims after them, which stay whole; c may be split between groups.
    """
    dtype = np.result_type(in_floats(x), gamma, beta)
    rows = wide(x).reshape(len(x) * num_groups, -1)
    y = normalized_rows(rows, epsilon)[0].reshape(len(x), x.shape[1], -1)
    y = y * gamma[:, None]
    y += beta[:, None]
    return y.reshape(x.shape).astype(dtype, copy=False)


@group_norm.vjp
def _(g, out, x, gamma, beta, **attrs):
    return group_norm_grad(g, x, gamma, **attrs)


def _neighbours(values, radius):
    """Sums over the channels at most `radius` away.  values: (n, c, ...) -> (n, c, ...)."""
    sums, channels = np.zeros_like(values), values.shape[1]
    for step in range(-min(radius, channels - 1), min(radius, channels - 1) + 1):
        sums[:, max(0, -step) : channels - max(0, step)] += values[:, max(0, step) : channels - max(0, -step)]
    return sums


@op(
    lambda shapes, **_: f"{letters(4)}->{letters(4)}",
    name="LRN",
    attrs={
        "depth_radius": integer(0),
        **dict.fromkeys(("bias", "alpha", "beta"), number()),
        "norm_region": choice("ACROSS_CHANNELS"),
    },
    whole=letters(4)[1],
    dtype=float_result,
    flops=lambda s: 12 * s.a * s.b * s.c * s.d,
    example=(case((8, 6, 4, 2)), case((8, 6, 4, 2), depth_radius=1, bias=2.0, alpha=0.5, beta=0.75)),
)
def local_response(x, *, depth_radius=5, bias=1.0, alpha=1.0, beta=0.5, norm_region="ACROSS_CHANNELS"):
    """x over (bias + alpha * sum of squares of the channels at most depth_radius away) ** beta.  x: (n, c, h, w) ->
    (n, c, h, w). Channels stay whole. (MindSpore, LRN.)
    """
    return x / (bias + alpha * _neighbours(x * x, depth_radius)) ** beta


@gradient(local_response, shown="LRNGrad")
def local_response_grad(g, x, *, depth_radius, bias, alpha, beta):
    """Gradient of local_response.  g, x: (n, c, h, w) -> (n, c, h, w)."""
    base = bias + alpha * _neighbours(x * x, depth_radius)
    return g * base**-beta - 2 * alpha * beta * x * _neighbours(g * x * base ** (-beta - 1), depth_radius)


# ---- gradients ----


def _inverse_rms(rows, epsilon):
    return 1 / np.sqrt(np.vecdot(rows, rows)[:, None] / rows.shape[1] + rows.dtype.type(epsilon))


@op(result_shape=(1, 2))
def rms_norm_grad(g, x, gamma, *, epsilon):
    """Gradients for x and gamma.  g, x: (...), gamma: its last dims -> like x, gamma."""
    dtype = np.result_type(g, x, gamma)
    rows = wide(x).reshape(-1, gamma.size)
    g_rows = wide(g).reshape(rows.shape)
    inverse = _inverse_rms(rows, epsilon)
    normal = rows * inverse
    of_gamma = column_sums(g_rows, normal)
    scaled = g_rows * gamma.reshape(-1)
    normal *= np.vecdot(scaled, normal)[:, None] / rows.shape[1]
    scaled -= normal
    scaled *= inverse
    return scaled.reshape(x.shape).astype(dtype, copy=False), of_gamma.reshape(gamma.shape).astype(dtype, copy=False)


@op(result_shape=2)
def rms_norm_root_grad(g, out, x, *, dims):
    """Gradient of the inverse root.  g, out: (..., 1), x: (...) -> (...)."""
    count = math.prod(x.shape[x.ndim - dims :])
    return (x * (g * out**3 * (-1 / count))).astype(x.dtype, copy=False)


@op(result_shape=(1, 2, 2))
def group_norm_grad(g, x, gamma, *, num_groups, epsilon):
    """Gradients for x, gamma and beta.  g, x: (n, c, ...), gamma: (c,) -> like x, gamma, gamma."""
    dtype = np.result_type(g, x, gamma)
    planes = (len(x), x.shape[1], math.prod(x.shape[2:]))
    normal, inverse, *_ = normalized_rows(wide(x).reshape(len(x) * num_groups, -1), epsilon)
    g = wide(g).reshape(planes)
    of_gamma = np.vecdot(g, normal.reshape(planes)).sum(axis=0)
    of_beta = g.sum(axis=(0, 2))
    scaled = (g * gamma[:, None]).reshape(normal.shape)
    of_x = normalized_rows_grad(scaled, normal, inverse).reshape(x.shape)
    return tuple(each.astype(dtype, copy=False) for each in (of_x, of_gamma, of_beta))
