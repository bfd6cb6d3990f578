"""Rows for element-wise operators, reductions and softmaxes: ours and PyTorch's. See `torch_table.py`."""

from __future__ import annotations

import math

from tests.recorded.torch_table import Called, F, O, Row, T, bools, floats, given, ints, positive, row

LINALG = Called("linalg")
XY = (floats(4, 6), floats(6))
WIDE = given(-200.0, -90.0, -8.5, -0.25, 0.25, 8.5, 90.0, 200.0)  # where a careless form overflows


ARITHMETIC: tuple[Row, ...] = (
    row("add", lambda t, x, y: x + y, *XY),
    row("add-both-broadcast", lambda t, x, y: x + y, floats(3, 1), floats(1, 4)),
    row("sub", lambda t, x, y: x - y, *XY),
    row("mul", lambda t, x, y: x * y, floats(2, 3, 4), floats(3, 1)),
    row("div", lambda t, x, y: x / y, floats(4, 6), positive(6)),
    row("floor_div", T.floor_divide(), floats(4, 6, fixed=True), positive(6, fixed=True)),
    row("mod", T.remainder(), floats(4, 6), positive(6)),
    row("mod-negative", T.remainder(), floats(4, 6), floats(6, low=-2.0, high=-0.5)),
    row("power", lambda t, x, y: x**y, positive(4, 6), floats(6)),
    row("power-negative-base", lambda t, x, y: x**y, floats(4, 6), given(2.0, 3.0, 2.0, 1.0, 4.0, 2.0, fixed=True)),
    row("maximum", T.maximum(), *XY),
    row("minimum", T.minimum(), *XY),
    row("bias_add", lambda t, x, b: x + b[:, None, None], floats(2, 3, 2, 2), floats(3)),
    row("bias_add-rows", lambda t, x, b: x + b, *XY),
    row("addn", lambda t, x, y, z: x + y + z, floats(2, 3), floats(2, 3), floats(2, 3)),
    row("neg", lambda t, x: -x, floats(4, 6)),
    row("cast-float32", lambda t, x: x.to(t.float32), floats(4, 6), dtype="float64"),
    row("clip", T.clip(-1.0, 0.5), floats(4, 6), ours=O.clip(-1.0, 0.5)),
    row("clip_by_value", T.clip(max=0.5), floats(4, 6), ours=O.clip_by_value(None, 0.5)),
)


def _same(names, *inputs):
    """Operators that are called as PyTorch's functions are, "ours=torch's" where the names differ."""
    pairs = [(name.partition("=")[0], name.rpartition("=")[2]) for name in names.split()]
    return tuple(row(mine, getattr(T, other)(), *inputs) for mine, other in pairs)


NEAR_0 = given(1e-12, -1e-9, 1e-5)
FUNCTIONS: tuple[Row, ...] = (
    *_same("abs_=abs sign exp expm1 square sin cos erf floor ceil round_=round stop_gradient=detach", floats(4, 6)),
    *_same("log log1p sqrt rsqrt reciprocal", positive(4, 6)),
    row("expm1-near-0", T.expm1(), NEAR_0),
    row("log1p-near-0", T.log1p(), NEAR_0),
    row("erf-far", T.erf(), given(-7.0, -5.5, -3.0, -0.46, 0.47, 1e-9, 4.1, 6.5)),
    row("round_-halves", T.round(), given(-2.5, -1.5, -0.5, 0.5, 1.5, 2.5)),
)

ACTIVATIONS: tuple[Row, ...] = (
    row("relu", T.relu(), floats(4, 6)),
    row("relu-at-0", T.relu(), given(-1.0, 0.0, 1.0)),
    row("relu6", F.relu6(), floats(4, 6, low=-8.0, high=8.0)),
    # by its definition: the gradient of PyTorch's own has a sixth in float32
    row("hsigmoid", lambda t, x: t.nn.functional.relu6(x + 3) / 6, floats(4, 6, low=-8.0, high=8.0)),
    row("hswish", F.hardswish(), floats(4, 6, low=-8.0, high=8.0)),
    row("leaky_relu", F.leaky_relu(0.2), floats(4, 6), negative_slope=0.2),
    row("leaky_relu-default", F.leaky_relu(), floats(4, 6)),
    row("prelu", F.prelu(), floats(2, 3, 4), floats(3)),
    row("prelu-one", F.prelu(), floats(2, 3), floats(1)),
    row("gelu", F.gelu(approximate="tanh"), floats(4, 6)),
    row("gelu-erf", F.gelu(), floats(4, 6), approximate="none"),
    row("gelu-number", F.gelu(approximate="tanh"), floats()),
    row("sigmoid", T.sigmoid(), floats(4, 6)),
    row("sigmoid-wide", T.sigmoid(), WIDE),
    row("silu", F.silu(), floats(4, 6)),
    row("silu-wide", F.silu(), WIDE),
    # beyond its threshold PyTorch takes x for log(1 + e^x): set where the two are equal in float64
    row("softplus", F.softplus(threshold=40), floats(4, 6)),
    row("softplus-wide", F.softplus(threshold=40), WIDE),
    row("log_sigmoid", F.logsigmoid(), floats(4, 6), ours=O.log_sigmoid()),
    row("log_sigmoid-wide", F.logsigmoid(), WIDE, ours=O.log_sigmoid()),
    row("elu", F.elu(0.5), floats(4, 6), alpha=0.5),
    row("tanh", T.tanh(), floats(4, 6)),
    row("softmax", T.softmax(-1), floats(4, 6)),
    row("softmax-axis-0", T.softmax(0), floats(4, 3, 2), axis=0),
    row("softmax-wide", T.softmax(-1), WIDE),
    row("softmax_expand", T.softmax(1), floats(4, 3, 2), axis=1),
    row("log_softmax", T.log_softmax(-1), floats(4, 6)),
    row("log_softmax-axis-0", T.log_softmax(0), floats(4, 3, 2), axis=0),
    row("log_softmax-wide", T.log_softmax(-1), WIDE),
    row("gelu-float32", F.gelu(approximate="tanh"), floats(4, 6), dtype="float32"),
    row("softmax-float32", T.softmax(-1), floats(4, 6), dtype="float32"),
    row("log_softmax-float32", T.log_softmax(-1), floats(4, 6), dtype="float32"),
    row("erf-float32", T.erf(), floats(4, 6), dtype="float32"),
    row("sigmoid-wide-float32", T.sigmoid(), WIDE, dtype="float32"),
    row("softplus-wide-float32", F.softplus(threshold=40), WIDE, dtype="float32"),
)

LOGIC: tuple[Row, ...] = (
    *_same("equal=eq not_equal=ne greater_equal=ge less_equal=le", ints(3, 4, 6), ints(3, 6)),
    *_same("greater=gt less=lt", *XY),
    *_same("isnan isinf isfinite", given(1.0, math.nan, math.inf, -math.inf)),
    *_same("logical_and logical_or logical_xor", bools(4, 6), bools(6)),
    row("logical_not", T.logical_not(), bools(4, 6)),
    row("select", T.where(), bools(4, 6), floats(4, 6), floats(6)),
    row("where", T.where(), bools(6), floats(4, 6), floats(4, 1), ours=O.where()),
    row("masked_fill", T.masked_fill(), floats(4, 6), bools(6), floats()),
)


def _prod(t, x, dims, keep=False):
    for d in sorted(dims, reverse=True):
        x = x.prod(d, keepdim=keep)
    return x


REDUCTIONS: tuple[Row, ...] = (
    row("reduce_sum", T.sum(), floats(4, 6)),
    row("reduce_sum-dims", T.sum((0, 2), keepdim=True), floats(2, 3, 4), axis=(0, 2), keep_dims=True),
    row("reduce_mean", T.mean(-1), floats(4, 6), axis=-1),
    row("reduce_mean-dims", T.mean((0, 1)), floats(2, 3, 4), axis=(0, 1)),
    row("reduce_max", T.amax(1), floats(4, 6), axis=1),
    row("reduce_max-ties", T.amax((0, 1)), given((1.0, 2.0, 2.0), (0.5, 2.0, 1.0)), axis=(0, 1)),
    row("reduce_min", T.amin(0, keepdim=True), floats(4, 6), axis=0, keep_dims=True),
    row("reduce_prod", lambda t, x: _prod(t, x, (1,)), floats(4, 6), axis=1),
    row("reduce_prod-dims", lambda t, x: _prod(t, x, (0, 2), True), floats(2, 3, 2), axis=(0, 2), keep_dims=True),
    row("reduce_prod-zeros", T.prod(1), given((1.5, 0.0, 2.0), (0.0, 3.0, 0.0), (1.0, 2.0, 3.0)), axis=1),
    row("reduce_any", T.any(1), bools(6, 2), axis=1),
    row("reduce_all", T.all(0, keepdim=True), bools(2, 6), axis=0, keep_dims=True),
    row("logsumexp", T.logsumexp(1), floats(4, 6), axis=1),
    row("logsumexp-dims", T.logsumexp((0, 2), keepdim=True), floats(2, 3, 4), axis=(0, 2), keep_dims=True),
    row("logsumexp-wide", T.logsumexp(0), WIDE, axis=0),
    row("var", T.var(1, correction=0), floats(4, 6), axis=1),
    row(
        "var-unbiased", T.var((0, 2), correction=1, keepdim=True), floats(2, 3, 4), axis=(0, 2), ddof=1, keep_dims=True
    ),
    row("std", T.std(correction=0), floats(4, 6)),
    row("std-unbiased", T.std(0, correction=1), floats(4, 6), axis=0, ddof=1),
    *(
        row(f"lp_norm-{p}", LINALG.vector_norm(p, 1), floats(4, 6), axis=1, p=p)
        for p in (1, 2, 3, 2.5, 0, math.inf, -math.inf)
    ),
    row("lp_norm-dims", LINALG.vector_norm(2, (0, 2), keepdim=True), floats(2, 3, 4), axis=(0, 2), keep_dims=True),
    row("norm", LINALG.norm(), floats(4, 6), ours=O.norm()),
    row("norm-1", LINALG.norm(1, 1, keepdim=True), floats(4, 6), ours=O.norm(1, 1, True)),
    row("cumsum", T.cumsum(1), floats(4, 6), axis=1),
    row("cumsum-exclusive", lambda t, x: x.cumsum(0) - x, floats(4, 6), axis=0, exclusive=True),
    row("cumsum-reverse", lambda t, x: x.flip(1).cumsum(1).flip(1), floats(4, 6), axis=-1, reverse=True),
    row(
        "cumsum-both", lambda t, x: x.flip(1).cumsum(1).flip(1) - x, floats(4, 6), axis=1, reverse=True, exclusive=True
    ),
    row("argmax", T.argmax(-1), floats(4, 6)),
    row("argmax-axis-0", T.argmax(0), floats(4, 6), axis=0),
    row("argmin", T.argmin(1, keepdim=True), floats(4, 6), axis=1, keep_dims=True),
)

ROWS = ARITHMETIC + FUNCTIONS + ACTIVATIONS + LOGIC + REDUCTIONS
