"""Rows for operators that work element by element, reductions and softmaxes: ours and PyTorch's. See
`torch_table.py`.
"""

from __future__ import annotations

import math

from parallel_lab import ops
from tests.recorded.torch_table import Row, bools, floats, given, ints, row

XY = (floats(4, 6), floats(6))
POSITIVE = {"low": 0.5, "high": 2.0}
WIDE = given(-200.0, -90.0, -8.5, -0.25, 0.25, 8.5, 90.0, 200.0)  # where a careless form overflows


ARITHMETIC: tuple[Row, ...] = (
    row("add", lambda t, x, y: x + y, *XY),
    row("add", lambda t, x, y: x + y, floats(3, 1), floats(1, 4), label="both-broadcast"),
    row("sub", lambda t, x, y: x - y, *XY),
    row("mul", lambda t, x, y: x * y, floats(2, 3, 4), floats(3, 1)),
    row("div", lambda t, x, y: x / y, floats(4, 6), floats(6, **POSITIVE)),
    row("floor_div", lambda t, x, y: t.floor_divide(x, y), floats(4, 6, fixed=True), floats(6, fixed=True, **POSITIVE)),
    row("mod", lambda t, x, y: t.remainder(x, y), floats(4, 6), floats(6, **POSITIVE)),
    row("mod", lambda t, x, y: t.remainder(x, y), floats(4, 6), floats(6, low=-2.0, high=-0.5), label="negative"),
    row("power", lambda t, x, y: x**y, floats(4, 6, **POSITIVE), floats(6)),
    row(
        "power",
        lambda t, x, y: x**y,
        floats(4, 6),
        given(2.0, 3.0, 2.0, 1.0, 4.0, 2.0, fixed=True),
        label="negative-base",
    ),
    row("maximum", lambda t, x, y: t.maximum(x, y), *XY),
    row("minimum", lambda t, x, y: t.minimum(x, y), *XY),
    row("bias_add", lambda t, x, b: x + b[:, None, None], floats(2, 3, 2, 2), floats(3)),
    row("bias_add", lambda t, x, b: x + b, *XY, label="rows"),
    row("addn", lambda t, x, y, z: x + y + z, floats(2, 3), floats(2, 3), floats(2, 3)),
    row("neg", lambda t, x: -x, floats(4, 6)),
    row("cast", lambda t, x: x.to(t.float32), floats(4, 6), dtype="float64", label="float32"),
    row("clip", lambda t, x: t.clip(x, -1.0, 0.5), floats(4, 6), ours=lambda x: ops.clip(x, -1.0, 0.5)),
    row("clip_by_value", lambda t, x: t.clip(x, max=0.5), floats(4, 6), ours=lambda x: ops.clip_by_value(x, None, 0.5)),
)

FUNCTIONS: tuple[Row, ...] = (
    row("abs_", lambda t, x: x.abs(), floats(4, 6)),
    row("sign", lambda t, x: x.sign(), floats(4, 6)),
    row("exp", lambda t, x: x.exp(), floats(4, 6)),
    row("expm1", lambda t, x: x.expm1(), floats(4, 6)),
    row("expm1", lambda t, x: x.expm1(), given(1e-12, -1e-9, 1e-5), label="near-0"),
    row("log", lambda t, x: x.log(), floats(4, 6, **POSITIVE)),
    row("log1p", lambda t, x: x.log1p(), floats(4, 6, **POSITIVE)),
    row("log1p", lambda t, x: x.log1p(), given(1e-12, -1e-9, 1e-5), label="near-0"),
    row("sqrt", lambda t, x: x.sqrt(), floats(4, 6, **POSITIVE)),
    row("rsqrt", lambda t, x: x.rsqrt(), floats(4, 6, **POSITIVE)),
    row("reciprocal", lambda t, x: x.reciprocal(), floats(4, 6, **POSITIVE)),
    row("square", lambda t, x: x.square(), floats(4, 6)),
    row("sin", lambda t, x: x.sin(), floats(4, 6)),
    row("cos", lambda t, x: x.cos(), floats(4, 6)),
    row("erf", lambda t, x: x.erf(), floats(4, 6)),
    row("erf", lambda t, x: x.erf(), given(-7.0, -5.5, -3.0, -0.46, 0.47, 1e-9, 4.1, 6.5), label="far"),
    row("floor", lambda t, x: x.floor(), floats(4, 6)),
    row("ceil", lambda t, x: x.ceil(), floats(4, 6)),
    row("round_", lambda t, x: x.round(), floats(4, 6)),
    row("round_", lambda t, x: x.round(), given(-2.5, -1.5, -0.5, 0.5, 1.5, 2.5), label="halves"),
    row("stop_gradient", lambda t, x: x.detach(), floats(4, 6)),
)

ACTIVATIONS: tuple[Row, ...] = (
    row("relu", lambda t, x: t.relu(x), floats(4, 6)),
    row("relu", lambda t, x: t.relu(x), given(-1.0, 0.0, 1.0), label="at-0"),
    row("relu6", lambda t, x: t.nn.functional.relu6(x), floats(4, 6, low=-8.0, high=8.0)),
    # by its definition: the gradient of PyTorch's own has a sixth in float32
    row("hsigmoid", lambda t, x: t.nn.functional.relu6(x + 3) / 6, floats(4, 6, low=-8.0, high=8.0)),
    row("hswish", lambda t, x: t.nn.functional.hardswish(x), floats(4, 6, low=-8.0, high=8.0)),
    row("leaky_relu", lambda t, x: t.nn.functional.leaky_relu(x, 0.2), floats(4, 6), negative_slope=0.2),
    row("leaky_relu", lambda t, x: t.nn.functional.leaky_relu(x), floats(4, 6), label="default"),
    row("prelu", lambda t, x, w: t.nn.functional.prelu(x, w), floats(2, 3, 4), floats(3)),
    row("prelu", lambda t, x, w: t.nn.functional.prelu(x, w), floats(2, 3), floats(1), label="one"),
    row("gelu", lambda t, x: t.nn.functional.gelu(x, approximate="tanh"), floats(4, 6)),
    row("gelu", lambda t, x: t.nn.functional.gelu(x), floats(4, 6), label="erf", approximate="none"),
    row("gelu", lambda t, x: t.nn.functional.gelu(x, approximate="tanh"), floats(), label="number"),
    row("sigmoid", lambda t, x: t.sigmoid(x), floats(4, 6)),
    row("sigmoid", lambda t, x: t.sigmoid(x), WIDE, label="wide"),
    row("silu", lambda t, x: t.nn.functional.silu(x), floats(4, 6)),
    row("silu", lambda t, x: t.nn.functional.silu(x), WIDE, label="wide"),
    # beyond its threshold PyTorch takes x for log(1 + e^x): set where the two are equal in float64
    row("softplus", lambda t, x: t.nn.functional.softplus(x, threshold=40), floats(4, 6)),
    row("softplus", lambda t, x: t.nn.functional.softplus(x, threshold=40), WIDE, label="wide"),
    row("log_sigmoid", lambda t, x: t.nn.functional.logsigmoid(x), floats(4, 6), ours=ops.log_sigmoid),
    row("log_sigmoid", lambda t, x: t.nn.functional.logsigmoid(x), WIDE, label="wide", ours=ops.log_sigmoid),
    row("elu", lambda t, x: t.nn.functional.elu(x, 0.5), floats(4, 6), alpha=0.5),
    row("tanh", lambda t, x: t.tanh(x), floats(4, 6)),
    row("softmax", lambda t, x: t.softmax(x, -1), floats(4, 6)),
    row("softmax", lambda t, x: t.softmax(x, 0), floats(4, 3, 2), label="axis-0", axis=0),
    row("softmax", lambda t, x: t.softmax(x, -1), WIDE, label="wide"),
    row("softmax_expand", lambda t, x: t.softmax(x, 1), floats(4, 3, 2), axis=1),
    row("log_softmax", lambda t, x: t.log_softmax(x, -1), floats(4, 6)),
    row("log_softmax", lambda t, x: t.log_softmax(x, 0), floats(4, 3, 2), label="axis-0", axis=0),
    row("log_softmax", lambda t, x: t.log_softmax(x, -1), WIDE, label="wide"),
    *(
        row(name, theirs, floats(4, 6), label="float32", dtype="float32")
        for name, theirs in (
            ("gelu", lambda t, x: t.nn.functional.gelu(x, approximate="tanh")),
            ("softmax", lambda t, x: t.softmax(x, -1)),
            ("log_softmax", lambda t, x: t.log_softmax(x, -1)),
            ("erf", lambda t, x: x.erf()),
        )
    ),
    row("sigmoid", lambda t, x: t.sigmoid(x), WIDE, label="wide-float32", dtype="float32"),
    row(
        "softplus", lambda t, x: t.nn.functional.softplus(x, threshold=40), WIDE, label="wide-float32", dtype="float32"
    ),
)

LOGIC: tuple[Row, ...] = (
    row("equal", lambda t, x, y: x == y, ints(3, 4, 6), ints(3, 6)),
    row("not_equal", lambda t, x, y: x != y, ints(3, 4, 6), ints(3, 6)),
    row("greater", lambda t, x, y: x > y, *XY),
    row("greater_equal", lambda t, x, y: x >= y, ints(3, 4, 6), ints(3, 6)),
    row("less", lambda t, x, y: x < y, *XY),
    row("less_equal", lambda t, x, y: x <= y, ints(3, 4, 6), ints(3, 6)),
    row("isnan", lambda t, x: t.isnan(x), given(1.0, math.nan, math.inf, -math.inf)),
    row("isinf", lambda t, x: t.isinf(x), given(1.0, math.nan, math.inf, -math.inf)),
    row("isfinite", lambda t, x: t.isfinite(x), given(1.0, math.nan, math.inf, -math.inf)),
    row("logical_and", lambda t, x, y: t.logical_and(x, y), bools(4, 6), bools(6)),
    row("logical_or", lambda t, x, y: t.logical_or(x, y), bools(4, 6), bools(6)),
    row("logical_xor", lambda t, x, y: t.logical_xor(x, y), bools(4, 6), bools(6)),
    row("logical_not", lambda t, x: t.logical_not(x), bools(4, 6)),
    row("select", lambda t, c, x, y: t.where(c, x, y), bools(4, 6), floats(4, 6), floats(6)),
    row(
        "where",
        lambda t, c, x, y: t.where(c, x, y),
        bools(6),
        floats(4, 6),
        floats(4, 1),
        ours=lambda c, x, y: ops.where(c, x, y),
    ),
    row("masked_fill", lambda t, x, m, v: x.masked_fill(m, v), floats(4, 6), bools(6), floats()),
)


def _prod(t, x, dims, keep=False):
    for d in sorted(dims, reverse=True):
        x = x.prod(d, keepdim=keep)
    return x


REDUCTIONS: tuple[Row, ...] = (
    row("reduce_sum", lambda t, x: x.sum(), floats(4, 6)),
    row(
        "reduce_sum",
        lambda t, x: x.sum((0, 2), keepdim=True),
        floats(2, 3, 4),
        label="dims",
        axis=(0, 2),
        keep_dims=True,
    ),
    row("reduce_mean", lambda t, x: x.mean(-1), floats(4, 6), axis=-1),
    row("reduce_mean", lambda t, x: x.mean((0, 1)), floats(2, 3, 4), label="dims", axis=(0, 1)),
    row("reduce_max", lambda t, x: x.amax(1), floats(4, 6), axis=1),
    row("reduce_max", lambda t, x: x.amax((0, 1)), given((1.0, 2.0, 2.0), (0.5, 2.0, 1.0)), label="ties", axis=(0, 1)),
    row("reduce_min", lambda t, x: x.amin(0, keepdim=True), floats(4, 6), axis=0, keep_dims=True),
    row("reduce_prod", lambda t, x: _prod(t, x, (1,)), floats(4, 6), axis=1),
    row(
        "reduce_prod",
        lambda t, x: _prod(t, x, (0, 2), True),
        floats(2, 3, 2),
        label="dims",
        axis=(0, 2),
        keep_dims=True,
    ),
    row(
        "reduce_prod",
        lambda t, x: x.prod(1),
        given((1.5, 0.0, 2.0), (0.0, 3.0, 0.0), (1.0, 2.0, 3.0)),
        label="zeros",
        axis=1,
    ),
    row("reduce_any", lambda t, x: x.any(1), bools(6, 2), axis=1),
    row("reduce_all", lambda t, x: x.all(0, keepdim=True), bools(2, 6), axis=0, keep_dims=True),
    row("logsumexp", lambda t, x: t.logsumexp(x, 1), floats(4, 6), axis=1),
    row(
        "logsumexp",
        lambda t, x: t.logsumexp(x, (0, 2), keepdim=True),
        floats(2, 3, 4),
        label="dims",
        axis=(0, 2),
        keep_dims=True,
    ),
    row("logsumexp", lambda t, x: t.logsumexp(x, 0), WIDE, label="wide", axis=0),
    row("var", lambda t, x: t.var(x, 1, correction=0), floats(4, 6), axis=1),
    row(
        "var",
        lambda t, x: t.var(x, (0, 2), correction=1, keepdim=True),
        floats(2, 3, 4),
        label="unbiased",
        axis=(0, 2),
        ddof=1,
        keep_dims=True,
    ),
    row("std", lambda t, x: t.std(x, correction=0), floats(4, 6)),
    row("std", lambda t, x: t.std(x, 0, correction=1), floats(4, 6), label="unbiased", axis=0, ddof=1),
    *(
        row("lp_norm", lambda t, x, p=p: t.linalg.vector_norm(x, p, 1), floats(4, 6), label=str(p), axis=1, p=p)
        for p in (1, 2, 3, 2.5, 0, math.inf, -math.inf)
    ),
    row(
        "lp_norm",
        lambda t, x: t.linalg.vector_norm(x, 2, (0, 2), keepdim=True),
        floats(2, 3, 4),
        label="dims",
        axis=(0, 2),
        keep_dims=True,
    ),
    row("norm", lambda t, x: t.linalg.norm(x), floats(4, 6), ours=ops.norm),
    row(
        "norm",
        lambda t, x: t.linalg.norm(x, 1, 1, keepdim=True),
        floats(4, 6),
        label="1",
        ours=lambda x: ops.norm(x, 1, 1, True),
    ),
    row("cumsum", lambda t, x: x.cumsum(1), floats(4, 6), axis=1),
    row("cumsum", lambda t, x: x.cumsum(0) - x, floats(4, 6), label="exclusive", axis=0, exclusive=True),
    row("cumsum", lambda t, x: x.flip(1).cumsum(1).flip(1), floats(4, 6), label="reverse", axis=-1, reverse=True),
    row(
        "cumsum",
        lambda t, x: x.flip(1).cumsum(1).flip(1) - x,
        floats(4, 6),
        label="both",
        axis=1,
        reverse=True,
        exclusive=True,
    ),
    row("argmax", lambda t, x: x.argmax(-1), floats(4, 6)),
    row("argmax", lambda t, x: x.argmax(0), floats(4, 6), label="axis-0", axis=0),
    row("argmin", lambda t, x: x.argmin(1, keepdim=True), floats(4, 6), axis=1, keep_dims=True),
)

ROWS = ARITHMETIC + FUNCTIONS + ACTIVATIONS + LOGIC + REDUCTIONS
