"""Normalisation over dims that one rank holds whole: layer norm, RMS norm, group norm. Batch norm has a file of its
own.

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

from ..base.checks import choice, integer, integers, number
from ..base.dtypes import promoted
from ..base.errors import ShapeError, shorten
from .elementwise import add, cast, float_result, mul
from .machine.composed import composed
from .machine.opdef import SHAPE_ERRORS
from .machine.operand_checks import floats, one_dim
from .machine.registry import case, form, gradient, op, total
from .machine.signature import letters
from .reduce import reduce_mean
from .spellings import function
from .unary import floats as in_floats, rsqrt, square

# ---- helpers shared with other families ----


EPSILON = number(0, above=True)


def parameters_fault(operands, names, shape, what):
    """The fault of the operands, in the order of `names`, if x is no float or a parameter has another shape."""
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


def _normalized(rows, epsilon):
    """Rows with mean 0, variance 1; their 1 / deviation, mean, variance.  rows: (r, d) -> (r, d), 3 times (r, 1)."""
    mean = _mean(rows)
    x = rows - mean
    variance = np.vecdot(x, x)[:, None] / x.shape[1]
    inverse = 1 / np.sqrt(variance + x.dtype.type(epsilon))
    x *= inverse
    return x, inverse, mean, variance


def _normalized_grad(g, x, inverse):
    """Gradient for the rows, in place of `g`, the gradient of the normalised rows `x`, which is lost.  All (r, d)."""
    slope = np.vecdot(g, x)[:, None] / x.shape[1]
    g -= _mean(g)
    x *= slope
    g -= x
    g *= inverse
    return g


def _columns(g, x=None):
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
    y, _, *statistics = _normalized(rows, epsilon)
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
    normal, inverse, *_ = _normalized(x.reshape(math.prod(x.shape[:axis]), -1), epsilon)
    g_rows = g.reshape(math.prod(x.shape[:start]), -1)
    sums = _columns(g_rows, normal.reshape(g_rows.shape)), _columns(g_rows)
    scaled = np.multiply(g, gamma, dtype=np.result_type(g, normal, wide(gamma)))
    _normalized_grad(scaled.reshape(normal.shape), normal, inverse)
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
    found = (None,) * 3 if of_y is None else layer_norm_grad(of_y, x, gamma, **axis, **attrs)
    rules = (layer_norm_mean_grad, layer_norm_variance_grad)
    others = (None if each is None else rule(each, x, **axis) for each, rule in zip(of_statistics, rules, strict=True))
    return total(found[0], *others), *found[1:]


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


# ---- RMS norm ----


def _rms_labels(shapes, *, epsilon):
    names = letters(len(shapes[0]))
    count = min(len(shapes[1]), len(names))
    kept = len(names) - count
    return f"{names},{names[kept:]}->{names},{names[:kept] + '1' * count}"


def _check_rms(operands, *, epsilon):
    dims = len(operands[1].shape) or 1
    return parameters_fault(operands, ("gamma",), operands[0].shape[-dims:], "the last dims of x")


def _inverse_rms(rows, epsilon):
    return 1 / np.sqrt(np.vecdot(rows, rows)[:, None] / rows.shape[1] + rows.dtype.type(epsilon))


_RMS = {"attrs": {"epsilon": EPSILON}, "check": _check_rms, "flops": 5}


@op(_rms_labels, whole=lambda signature, **_: signature.ins[1], **_RMS, shown="RmsNorm")
def rms_norm_fused(x, gamma, *, epsilon=1e-6):
    """`rms_normalization` over dims that are whole.  x: (...), gamma: its last dims -> (...), (..., 1 for each)."""
    rows = wide(x).reshape(-1, gamma.size)
    dtype = np.result_type(in_floats(x), gamma)
    inverse = _inverse_rms(rows, epsilon)
    y = ((rows * inverse) * gamma.reshape(-1)).reshape(x.shape).astype(dtype, copy=False)
    return y, inverse.reshape(*x.shape[: x.ndim - gamma.ndim], *(1,) * gamma.ndim).astype(dtype, copy=False)


@op(result_shape=(1, 2))
def rms_norm_grad(g, x, gamma, *, epsilon):
    """Gradients for x and gamma.  g, x: (...), gamma: its last dims -> like x, gamma."""
    dtype = np.result_type(g, x, gamma)
    rows = wide(x).reshape(-1, gamma.size)
    g_rows = wide(g).reshape(rows.shape)
    inverse = _inverse_rms(rows, epsilon)
    normal = rows * inverse
    of_gamma = _columns(g_rows, normal)
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
    y = _normalized(rows, epsilon)[0].reshape(len(x), x.shape[1], -1)
    y = y * gamma[:, None]
    y += beta[:, None]
    return y.reshape(x.shape).astype(dtype, copy=False)


@op(result_shape=(1, 2, 2))
def group_norm_grad(g, x, gamma, *, num_groups, epsilon):
    """Gradients for x, gamma and beta.  g, x: (n, c, ...), gamma: (c,) -> like x, gamma, gamma."""
    dtype = np.result_type(g, x, gamma)
    planes = (len(x), x.shape[1], math.prod(x.shape[2:]))
    normal, inverse, *_ = _normalized(wide(x).reshape(len(x) * num_groups, -1), epsilon)
    g = wide(g).reshape(planes)
    of_gamma = np.vecdot(g, normal.reshape(planes)).sum(axis=0)
    of_beta = g.sum(axis=(0, 2))
    scaled = (g * gamma[:, None]).reshape(normal.shape)
    of_x = _normalized_grad(scaled, normal, inverse).reshape(x.shape)
    return tuple(each.astype(dtype, copy=False) for each in (of_x, of_gamma, of_beta))


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
