"""Rows for products, windows, normalisation, attention and losses: ours and PyTorch's. See `torch_table.py`."""

from __future__ import annotations

import math

from parallel_lab import ops
from tests.recorded.torch_table import F, O, Row, floats, given, inside, ints, positive, row

PRODUCTS: tuple[Row, ...] = (
    row("matmul", lambda t, a, b: a @ b, floats(4, 3), floats(3, 5)),
    row("matmul-transposed", lambda t, a, b: a.T @ b.T, floats(3, 4), floats(5, 3), transpose_a=True, transpose_b=True),
    row("matmul-batches", lambda t, a, b: a @ b, floats(2, 1, 4, 3), floats(5, 3, 2)),
    row("matmul-batches-transposed", lambda t, a, b: a @ b.mT, floats(2, 4, 3), floats(2, 5, 3), transpose_b=True),
)


# ---- windows: PyTorch pads equally on both sides, so other pads are made before. Its order is (left, right, top,
# bottom) ----


def _conv(*, pads=(0, 0, 0, 0), **options):
    return lambda t, x, w, b=None: t.nn.functional.conv2d(t.nn.functional.pad(x, pads), w, b, **options)


def _max_pool(*args, pads=(0, 0, 0, 0)):
    return lambda t, x: t.nn.functional.max_pool2d(t.nn.functional.pad(x, pads, value=-math.inf), *args)


def _avg_pool(*args, pads=(0, 0, 0, 0), **options):
    return lambda t, x: t.nn.functional.avg_pool2d(t.nn.functional.pad(x, pads), *args, **options)


def _avg_real(*args, pads):
    """Means of the real elements of every window."""

    def theirs(t, x):
        pad, pool = t.nn.functional.pad, t.nn.functional.avg_pool2d
        return pool(pad(x, pads), *args) / pool(pad(t.ones_like(x), pads), *args)

    return theirs


SAME = {"kernel_size": 3, "strides": 2, "pad_mode": "same"}
PADDED = {"kernel_size": (3, 2), "strides": 1, "pad_mode": "pad", "pad": (1, 0, 1, 1)}
REAL = {"kernel_size": 3, "strides": 2, "pad_mode": "pad", "pad": 1, "count_include_pad": False}
UNEVEN = {"pad_mode": "pad", "pad": (1, 1, 2, 2), "stride": (2, 1), "dilation": (1, 2)}
DEPTHWISE = {"group": 4, "stride": 2, "pad_mode": "pad", "pad": 1}
TIES = given((((1.0, 1.0, 0.5), (1.0, 0.5, 2.0), (2.0, 2.0, 2.0)),))
XW, XW_UNEVEN = (floats(2, 3, 5, 6), floats(4, 3, 3, 2)), (floats(1, 2, 5, 6), floats(3, 2, 3, 3))

WINDOWS: tuple[Row, ...] = (
    row("convolution", _conv(), *XW),
    row("convolution-same", _conv(padding="same"), floats(2, 2, 4, 5), floats(3, 2, 3, 2), pad_mode="same"),
    # "same" with stride 2 on 6 x 5: rows 0 before and 1 after, columns 1 and 1
    row(
        *("convolution-same-2", _conv(pads=(1, 1, 0, 1), stride=2), floats(1, 2, 6, 5), floats(2, 2, 3, 3)),
        **{"pad_mode": "same", "stride": 2},
    ),
    row("convolution-pad", _conv(padding=(1, 2), stride=(2, 1), dilation=(1, 2)), *XW_UNEVEN, **UNEVEN),
    row("convolution-groups", _conv(groups=2), floats(2, 4, 4, 4), floats(6, 2, 2, 3), group=2),
    row(
        *("convolution-depthwise", _conv(groups=4, padding=1, stride=2), floats(1, 4, 5, 4), floats(4, 1, 3, 3)),
        **DEPTHWISE,
    ),
    row("convolution-float32", _conv(), *XW, dtype="float32"),
    row(
        *("conv2d", _conv(padding=(1, 0)), floats(1, 2, 4, 5), floats(3, 2, 3, 2), floats(3)),
        ours=O.conv2d(pad_mode="pad", padding=(1, 0)),
    ),
    row("convolution_3d", F.conv3d(stride=(1, 2, 1)), floats(1, 2, 3, 4, 3), floats(2, 2, 2, 3, 2), stride=(1, 2, 1)),
    row(
        *("conv3d", F.conv3d(padding=1, groups=2), floats(1, 2, 3, 2, 3), floats(2, 1, 2, 3, 2), floats(2)),
        ours=O.conv3d(pad_mode="pad", padding=1, groups=2),
    ),
    row(
        *("transposed_convolution", F.conv_transpose2d(stride=2, padding=1), floats(1, 2, 3, 4), floats(2, 3, 3, 2)),
        ours=O.transposed_convolution((1, 3, 5, 6), kernel_size=(3, 2), stride=2, pad_mode="pad", pad=1),
    ),
    row("max_pool_3d", F.max_pool3d(2, 1), floats(1, 2, 3, 4, 3), kernel_size=2, strides=1),
    row("max_pool3d", F.max_pool3d((1, 2, 3)), floats(1, 2, 3, 4, 3), ours=O.max_pool3d((1, 2, 3))),
    row("avg_pool_3d", F.avg_pool3d(2, 1), floats(1, 2, 3, 4, 3), kernel_size=2, strides=1),
    row("avg_pool3d", F.avg_pool3d(3, 2, 1), floats(1, 2, 3, 4, 3), ours=O.avg_pool3d(3, 2, 1)),
    row("max_pool", _max_pool(2, 2), floats(2, 2, 4, 6), kernel_size=2, strides=2),
    row("max_pool-same", _max_pool(3, 2, pads=(0, 1, 0, 1)), floats(1, 2, 6, 6), **SAME),
    row("max_pool-pad", _max_pool((3, 2), 1, pads=(1, 1, 1, 0)), floats(1, 2, 4, 5), **PADDED),
    row("max_pool-ties", _max_pool(2, 1), TIES, kernel_size=2, strides=1),
    row("max_pool2d", F.max_pool2d(3, padding=1), floats(1, 2, 5, 6), ours=O.max_pool2d(3, padding=1)),
    row("avg_pool", _avg_pool((1, 2), (2, 3)), floats(2, 2, 4, 6), kernel_size=(1, 2), strides=(2, 3)),
    row("avg_pool-same", _avg_real(3, 2, pads=(0, 1, 0, 1)), floats(1, 2, 6, 6), **SAME),
    row("avg_pool-pad", _avg_pool((3, 2), 1, pads=(1, 1, 1, 0)), floats(1, 2, 4, 5), **PADDED),
    row("avg_pool-real", _avg_pool(3, 2, 1, count_include_pad=False), floats(1, 2, 5, 4), **REAL),
    row("avg_pool2d", _avg_pool(2, 1), floats(1, 2, 3, 4), ours=O.avg_pool2d(2)),
    row("adaptive_avg_pool", F.adaptive_avg_pool2d((2, 3)), floats(2, 2, 5, 7), output_size=(2, 3)),
    row("adaptive_avg_pool2d", F.adaptive_avg_pool2d(1), floats(2, 2, 3, 4), ours=O.adaptive_avg_pool2d(1)),
    row("adaptive_max_pool", F.adaptive_max_pool2d((None, 6)), floats(2, 2, 3, 4), output_size=(None, 6)),
    row("adaptive_max_pool2d", F.adaptive_max_pool2d(2), floats(2, 2, 5, 7), ours=O.adaptive_max_pool2d(2)),
)


# ---- normalisation ----


def _layer_norm(t, x, gamma, beta):
    shape, dims = gamma.shape, tuple(range(x.ndim - gamma.ndim, x.ndim))
    y = t.nn.functional.layer_norm(x, shape, gamma, beta, 1e-5)
    return y, x.mean(dims, keepdim=True), x.var(dims, correction=0, keepdim=True)


def _layer_norm_wide(t, x, gamma, beta):
    """Normalised over more dims than gamma has."""
    dims = tuple(range(1, x.ndim))
    y = t.nn.functional.layer_norm(x, x.shape[1:], eps=1e-5) * gamma + beta
    return y, x.mean(dims, keepdim=True), x.var(dims, correction=0, keepdim=True)


def _first(fn):
    return lambda *given: fn(*given)[0]


def _rms_norm(t, x, gamma):
    dims = tuple(range(x.ndim - gamma.ndim, x.ndim))
    return t.nn.functional.rms_norm(x, gamma.shape, gamma, 1e-6), t.rsqrt(x.square().mean(dims, keepdim=True) + 1e-6)


def _batch_norm(training):
    def theirs(t, x, scale, bias, mean, variance):
        running = (None, None) if training else (mean, variance)
        y = t.nn.functional.batch_norm(x, *running, scale, bias, training, eps=1e-5)
        if training:
            dims = (0, *range(2, x.ndim))
            mean, variance = x.mean(dims), x.var(dims, correction=0)
        return y, mean, variance, mean, variance

    return theirs


def _layer_norm_of(shape, layer_norm):
    return lambda x, gamma, beta: layer_norm(x, shape, gamma, beta)


def _group_norm(groups):
    return lambda t, x, gamma, beta: t.nn.functional.group_norm(x, groups, gamma, beta)


CHANNELS = (positive(3), floats(3), floats(3), positive(3))
RUNNING = (floats(3, fixed=True), positive(3, fixed=True))
ROWS_OF_6 = (floats(4, 6), positive(6), floats(6))
LAST_TWO = {"begin_norm_axis": 1, "begin_params_axis": 1, "epsilon": 1e-5}
WIDE = {"begin_norm_axis": 1, "begin_params_axis": -1, "epsilon": 1e-5}

NORMALISATION: tuple[Row, ...] = (
    row("layer_normalization", _layer_norm, *ROWS_OF_6, epsilon=1e-5),
    row("layer_normalization-two-dims", _layer_norm, floats(2, 3, 4), positive(3, 4), floats(3, 4), **LAST_TWO),
    row("layer_normalization-wide", _layer_norm_wide, floats(2, 3, 4), positive(4), floats(4), **WIDE),
    row("layer_normalization-float32", _layer_norm, *ROWS_OF_6, dtype="float32", epsilon=1e-5),
    row(
        *("layer_norm", lambda t, *given: _layer_norm_of((3, 4), t.nn.functional.layer_norm)(*given)),
        *(floats(2, 3, 4), floats(3, 4), floats(3, 4)),
        ours=_layer_norm_of((3, 4), ops.layer_norm),
    ),
    row("rms_normalization", _rms_norm, floats(4, 6), positive(6)),
    row("rms_normalization-two-dims", _rms_norm, floats(2, 3, 4), positive(3, 4)),
    row("rms_norm", _first(_rms_norm), floats(4, 6), floats(6), ours=_first(ops.rms_norm)),
    # epsilon bounds the squared norm here, the norm there
    row("l2_normalize", F.normalize(dim=1, eps=0.1), floats(4, 6, 2), axis=1, epsilon=0.01),
    row("l2_normalize-short", F.normalize(dim=-1, eps=4.0), floats(4, 3, low=-0.5, high=0.5), epsilon=16.0),
    row("group_norm", _group_norm(2), floats(2, 4, 3, 2), floats(4), floats(4), num_groups=2),
    row("group_norm-rows", _group_norm(3), floats(4, 6), floats(6), floats(6), num_groups=3),
    row("batch_normalization-training", _batch_norm(True), floats(2, 3, 2, 3), *CHANNELS, is_training=True),
    row("batch_normalization-training-rows", _batch_norm(True), floats(6, 3), *CHANNELS, is_training=True),
    row("batch_normalization", _batch_norm(False), floats(2, 3, 2, 3), *CHANNELS[:2], *RUNNING),
    row("batch_norm", F.batch_norm(), floats(4, 3), *RUNNING, floats(3), floats(3), ours=O.batch_norm()),
)


# ---- attention ----


def _attention(t, q, k, v, mask=None, *, causal=False, scale=None):
    if mask is not None and causal:  # PyTorch takes one of them
        later = t.ones(q.shape[2], k.shape[2], dtype=t.bool).triu(1)
        mask, causal = mask.masked_fill(later, -math.inf), False
    # math: the formula; the fused kernels are less exact
    with t.nn.attention.sdpa_kernel(t.nn.attention.SDPBackend.MATH):
        return t.nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale)


def _by_positions(t, q, k, v, mask=None, **options):
    return _attention(t, *(x.transpose(1, 2) for x in (q, k, v)), mask, **options).transpose(1, 2)


QKV = (floats(2, 2, 4, 3), floats(2, 2, 5, 3), floats(2, 2, 5, 2))
SQUARE = (floats(2, 2, 4, 3), floats(2, 2, 4, 3), floats(2, 2, 4, 3))


def _causal(*inputs, **options):
    return _attention(*inputs, causal=True, **options)


FUSED, MASKED = "scaled_dot_product_attention", "scaled_dot_product_attention_with_mask"

ATTENTION: tuple[Row, ...] = (
    row(FUSED, _attention, *QKV),
    row(f"{FUSED}-causal", _causal, *SQUARE, is_causal=True),
    row(f"{FUSED}-causal-longer", _causal, *QKV, is_causal=True),
    row(f"{FUSED}-BSND", lambda *a: _by_positions(*a, scale=0.3), *SQUARE, scale=0.3, input_layout="BSND"),
    row(MASKED, _attention, *QKV, floats(4, 5)),
    row(f"{MASKED}-samples", _attention, *QKV, floats(2, 1, 1, 5)),
    row(f"{MASKED}-causal", _causal, *SQUARE, floats(2, 2, 4, 4), is_causal=True),
    row(f"{MASKED}-BSND", _by_positions, *SQUARE, floats(2, 1, 2, 2), input_layout="BSND"),
    row("causal_mask", lambda t, x: x.masked_fill(t.ones(4, 5, dtype=t.bool).triu(1), -1e30), floats(2, 4, 5)),
    row("attention_expand", lambda *a: _causal(*a, scale=0.5), *SQUARE, is_causal=True, scale=0.5),
)


# ---- losses of operators: nothing is reduced ----


def _weighted_logs(t, logs, labels, weight, ignore_index=None, smoothing=0.0):
    """The definition, because PyTorch's own has no gradient for the weights."""
    counted = t.ones(labels.shape, dtype=t.bool) if ignore_index is None else labels != ignore_index
    numbers = t.where(counted, labels, 0).long()
    loss = -logs.gather(1, numbers.unsqueeze(1)).squeeze(1) * weight[numbers]
    if smoothing:
        spread = (logs * weight.reshape(-1, *(1,) * (logs.ndim - 2))).sum(1)
        loss = (1 - smoothing) * loss - smoothing / logs.shape[1] * spread
    return loss * counted


def _entropy(**options):
    return F.cross_entropy(reduction="none", **options)


def _logits(t, x, y, *weights, reduction="none"):
    """With (weight, pos_weight), or pos_weight alone."""
    *weight, pos_weight = weights
    formula = t.nn.functional.binary_cross_entropy_with_logits
    return formula(x, y, *weight, reduction=reduction, pos_weight=pos_weight)


def _logits_definition(t, x, y, w, p):
    logs = t.nn.functional.logsigmoid
    return -w * (p * y * logs(x) + (1 - y) * logs(-x))


def _label_weight(t, labels, weight):
    return weight[labels.long()] * (labels != 2)


def _loss_of(operator, **attrs):
    return lambda *given: operator(*given, **attrs)[0]


def _row_by_row(operator):
    """A mean over one row is its loss."""
    return lambda x, y: ops.stack(tuple(operator(x[i : i + 1], y[i : i + 1]) for i in range(len(y))))


CLASSES, MAPS = (floats(6, 4), ints(4, 6)), (floats(2, 3, 2, 2), ints(3, 2, 2, 2))
WEIGHTED = (*CLASSES, positive(4, fixed=True))
SHARES = (inside(4, 6), inside(4, 6))
FACTOR = positive(6, fixed=True)
CERTAIN = given(0.0, 1.0, 1.0, 0.0, fixed=True)
ONE, TWO = given(1.0, fixed=True), given(2.0, fixed=True)
BOTH = {"label_smoothing": 0.2, "ignore_index": 2}

LOSSES: tuple[Row, ...] = (
    row("softmax_cross_entropy", _entropy(), floats(4, 5), inside(4, 5), ours=_loss_of(ops.softmax_cross_entropy)),
    row("sparse_softmax_cross_entropy", _entropy(), *CLASSES, ours=_row_by_row(ops.sparse_softmax_cross_entropy)),
    row("class_cross_entropy", _entropy(), *WEIGHTED),
    row("class_cross_entropy-ignore", _entropy(ignore_index=1), *MAPS, positive(3, fixed=True), ignore_index=1),
    row("class_cross_entropy-smoothing", _entropy(label_smoothing=0.1), *WEIGHTED, label_smoothing=0.1),
    row("class_cross_entropy-smoothing-ignore", _entropy(**BOTH), *WEIGHTED, **BOTH),
    row(
        *("class_cross_entropy-definition", lambda t, x, y, w: _weighted_logs(t, x.log_softmax(1), y, w, 2, 0.2)),
        *(*CLASSES, positive(4)),
        **BOTH,
    ),
    row("nll", F.nll_loss(reduction="none"), *WEIGHTED, ours=_loss_of(ops.nll, reduction="none")),
    row(
        *("nll-definition", lambda *given: _weighted_logs(*given, 1), floats(2, 3, 2), ints(3, 2, 2), positive(3)),
        ours=_loss_of(ops.nll, reduction="none", ignore_index=1),
    ),
    row("label_weight", _label_weight, ints(4, 8), positive(4), ignore_index=2),
    row("binary_cross_entropy_values", F.binary_cross_entropy(reduction="none"), *SHARES, FACTOR),
    row(
        *("binary_cross_entropy_values-definition", lambda t, x, y, w: -w * (y * x.log() + (1 - y) * (1 - x).log())),
        *(*SHARES, positive(6)),
    ),
    row(
        *("binary_cross_entropy_values-certain", F.binary_cross_entropy(reduction="none")),
        *(given(0.0, 1.0, 0.0, 1.0, fixed=True), CERTAIN, ONE),
    ),
    row("bce_with_logits_values", _logits, floats(4, 6), inside(4, 6), FACTOR, FACTOR),
    row("bce_with_logits_values-definition", _logits_definition, floats(4, 6), inside(4, 6), positive(6), positive(6)),
    row("bce_with_logits_values-far", _logits, given(-200.0, -30.0, 30.0, 200.0), CERTAIN, ONE, TWO),
    row("smooth_l1_values", F.smooth_l1_loss(reduction="none", beta=0.7), floats(4, 6), floats(4, 6), beta=0.7),
)


def _functional(key, *inputs, **options):
    """One of torch.nn.functional's losses, with the same name and options as ours."""
    name = key.partition("-")[0]
    return row(key, getattr(F, name)(**options), *inputs, ours=getattr(O, name)(**options))


FUNCTIONAL_LOSSES: tuple[Row, ...] = (
    _functional("cross_entropy", *CLASSES),
    _functional("cross_entropy-weights", *WEIGHTED),
    _functional("cross_entropy-dense", floats(6, 4), inside(6, 4), label_smoothing=0.1, reduction="sum"),
    _functional("cross_entropy-pictures", *MAPS, ignore_index=1, label_smoothing=0.2),
    _functional("nll_loss", *WEIGHTED, ignore_index=2),
    _functional("nll_loss-none", floats(2, 3, 4), ints(3, 2, 4), reduction="none"),
    _functional("mse_loss", floats(4, 6), floats(4, 6)),
    _functional("l1_loss", floats(4, 6), floats(4, 6), reduction="sum"),
    _functional("smooth_l1_loss", floats(4, 6), floats(4, 6), beta=0.7, reduction="mean"),
    _functional("binary_cross_entropy", *SHARES, FACTOR),
    _functional("binary_cross_entropy_with_logits", floats(4, 6), inside(4, 6), reduction="sum"),
    row(
        *("binary_cross_entropy_with_logits-positives", lambda *given: _logits(*given, reduction="mean")),
        *(floats(4, 6), inside(4, 6), FACTOR),
        ours=lambda x, y, p: ops.binary_cross_entropy_with_logits(x, y, pos_weight=p),
    ),
)

ROWS = PRODUCTS + WINDOWS + NORMALISATION + ATTENTION + LOSSES + FUNCTIONAL_LOSSES
