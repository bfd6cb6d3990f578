"""Rows for the operators that layers are made of: products, windows, normalisation, attention, losses. Ours and
PyTorch's. See `torch_table.py`.
"""

from __future__ import annotations

import math

from parallel_lab import ops
from tests.recorded.torch_table import Row, floats, given, ints, row

POSITIVE = {"low": 0.5, "high": 2.0}
INSIDE = {"low": 0.1, "high": 0.9}

PRODUCTS: tuple[Row, ...] = (
    row("matmul", lambda t, a, b: a @ b, floats(4, 3), floats(3, 5)),
    row(
        "matmul",
        lambda t, a, b: a.T @ b.T,
        floats(3, 4),
        floats(5, 3),
        label="transposed",
        transpose_a=True,
        transpose_b=True,
    ),
    row("matmul", lambda t, a, b: a @ b, floats(2, 1, 4, 3), floats(5, 3, 2), label="batches"),
    row(
        "matmul",
        lambda t, a, b: a @ b.mT,
        floats(2, 4, 3),
        floats(2, 5, 3),
        label="batches-transposed",
        transpose_b=True,
    ),
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


PADDED = {"pad_mode": "pad", "pad": (1, 0, 1, 1)}

WINDOWS: tuple[Row, ...] = (
    row("convolution", _conv(), floats(2, 3, 5, 6), floats(4, 3, 3, 2)),
    row("convolution", _conv(padding="same"), floats(2, 2, 4, 5), floats(3, 2, 3, 2), label="same", pad_mode="same"),
    # "same" with stride 2 on 6 x 5: rows 0 before and 1 after, columns 1 and 1
    row(
        "convolution",
        _conv(pads=(1, 1, 0, 1), stride=2),
        floats(1, 2, 6, 5),
        floats(2, 2, 3, 3),
        label="same-2",
        pad_mode="same",
        stride=2,
    ),
    row(
        *("convolution", _conv(padding=(1, 2), stride=(2, 1), dilation=(1, 2)), floats(1, 2, 5, 6), floats(3, 2, 3, 3)),
        **{"label": "pad", "pad_mode": "pad", "pad": (1, 1, 2, 2), "stride": (2, 1), "dilation": (1, 2)},
    ),
    row("convolution", _conv(groups=2), floats(2, 4, 4, 4), floats(6, 2, 2, 3), label="groups", group=2),
    row(
        "convolution",
        _conv(groups=4, padding=1, stride=2),
        floats(1, 4, 5, 4),
        floats(4, 1, 3, 3),
        label="depthwise",
        group=4,
        stride=2,
        pad_mode="pad",
        pad=1,
    ),
    row("convolution", _conv(), floats(2, 3, 5, 6), floats(4, 3, 3, 2), label="float32", dtype="float32"),
    row(
        *("conv2d", _conv(padding=(1, 0)), floats(1, 2, 4, 5), floats(3, 2, 3, 2), floats(3)),
        ours=lambda x, w, b: ops.conv2d(x, w, b, pad_mode="pad", padding=(1, 0)),
    ),
    row("max_pool", _max_pool(2, 2), floats(2, 2, 4, 6), kernel_size=2, strides=2),
    row(
        "max_pool",
        _max_pool(3, 2, pads=(0, 1, 0, 1)),
        floats(1, 2, 6, 6),
        label="same",
        kernel_size=3,
        strides=2,
        pad_mode="same",
    ),
    row(
        "max_pool",
        _max_pool((3, 2), 1, pads=(1, 1, 1, 0)),
        floats(1, 2, 4, 5),
        label="pad",
        kernel_size=(3, 2),
        strides=1,
        **PADDED,
    ),
    row(
        "max_pool",
        _max_pool(2, 1),
        given((((1.0, 1.0, 0.5), (1.0, 0.5, 2.0), (2.0, 2.0, 2.0)),)),
        label="ties",
        kernel_size=2,
        strides=1,
    ),
    row(
        "max_pool2d",
        lambda t, x: t.nn.functional.max_pool2d(x, 3, padding=1),
        floats(1, 2, 5, 6),
        ours=lambda x: ops.max_pool2d(x, 3, padding=1),
    ),
    row("avg_pool", _avg_pool((1, 2), (2, 3)), floats(2, 2, 4, 6), kernel_size=(1, 2), strides=(2, 3)),
    row(
        "avg_pool",
        _avg_real(3, 2, pads=(0, 1, 0, 1)),
        floats(1, 2, 6, 6),
        label="same",
        kernel_size=3,
        strides=2,
        pad_mode="same",
    ),
    row(
        "avg_pool",
        _avg_pool((3, 2), 1, pads=(1, 1, 1, 0)),
        floats(1, 2, 4, 5),
        label="pad",
        kernel_size=(3, 2),
        strides=1,
        **PADDED,
    ),
    row(
        *("avg_pool", _avg_pool(3, 2, 1, count_include_pad=False), floats(1, 2, 5, 4)),
        **{"label": "real", "kernel_size": 3, "strides": 2, "pad_mode": "pad", "pad": 1, "count_include_pad": False},
    ),
    row("avg_pool2d", _avg_pool(2, 1), floats(1, 2, 3, 4), ours=lambda x: ops.avg_pool2d(x, 2)),
    row(
        "adaptive_avg_pool",
        lambda t, x: t.nn.functional.adaptive_avg_pool2d(x, (2, 3)),
        floats(2, 2, 5, 7),
        output_size=(2, 3),
    ),
    row(
        "adaptive_avg_pool2d",
        lambda t, x: t.nn.functional.adaptive_avg_pool2d(x, 1),
        floats(2, 2, 3, 4),
        ours=lambda x: ops.adaptive_avg_pool2d(x, 1),
    ),
    row(
        "adaptive_max_pool",
        lambda t, x: t.nn.functional.adaptive_max_pool2d(x, (None, 6)),
        floats(2, 2, 3, 4),
        output_size=(None, 6),
    ),
    row(
        "adaptive_max_pool2d",
        lambda t, x: t.nn.functional.adaptive_max_pool2d(x, 2),
        floats(2, 2, 5, 7),
        ours=lambda x: ops.adaptive_max_pool2d(x, 2),
    ),
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


def _rms_norm(t, x, gamma):
    dims = tuple(range(x.ndim - gamma.ndim, x.ndim))
    return t.nn.functional.rms_norm(x, gamma.shape, gamma, 1e-6), t.rsqrt(x.square().mean(dims, keepdim=True) + 1e-6)


def _batch_norm(training):
    def theirs(t, x, scale, bias, mean, variance):
        y = t.nn.functional.batch_norm(
            x, None if training else mean, None if training else variance, scale, bias, training, eps=1e-5
        )
        if training:
            dims = (0, *range(2, x.ndim))
            mean, variance = x.mean(dims), x.var(dims, correction=0)
        return y, mean, variance, mean, variance

    return theirs


CHANNELS = (floats(3, **POSITIVE), floats(3), floats(3), floats(3, **POSITIVE))

NORMALISATION: tuple[Row, ...] = (
    row("layer_normalization", _layer_norm, floats(4, 6), floats(6, **POSITIVE), floats(6), epsilon=1e-5),
    row(
        *("layer_normalization", _layer_norm, floats(2, 3, 4), floats(3, 4, **POSITIVE), floats(3, 4)),
        **{"label": "two-dims", "begin_norm_axis": 1, "begin_params_axis": 1, "epsilon": 1e-5},
    ),
    row(
        *("layer_normalization", _layer_norm_wide, floats(2, 3, 4), floats(4, **POSITIVE), floats(4)),
        **{"label": "wide", "begin_norm_axis": 1, "begin_params_axis": -1, "epsilon": 1e-5},
    ),
    row(
        "layer_normalization",
        _layer_norm,
        floats(4, 6),
        floats(6, **POSITIVE),
        floats(6),
        label="float32",
        dtype="float32",
        epsilon=1e-5,
    ),
    row(
        *(
            "layer_norm",
            lambda t, x, g, b: t.nn.functional.layer_norm(x, (3, 4), g, b),
            floats(2, 3, 4),
            floats(3, 4),
            floats(3, 4),
        ),
        ours=lambda x, g, b: ops.layer_norm(x, (3, 4), g, b),
    ),
    row("rms_normalization", _rms_norm, floats(4, 6), floats(6, **POSITIVE)),
    row("rms_normalization", _rms_norm, floats(2, 3, 4), floats(3, 4, **POSITIVE), label="two-dims"),
    row(
        "rms_norm",
        lambda t, x, g: t.nn.functional.rms_norm(x, (6,), g, 1e-6),
        floats(4, 6),
        floats(6),
        ours=ops.rms_norm,
    ),
    # epsilon bounds the squared norm here, the norm there
    row(
        "l2_normalize", lambda t, x: t.nn.functional.normalize(x, dim=1, eps=0.1), floats(4, 6, 2), axis=1, epsilon=0.01
    ),
    row(
        "l2_normalize",
        lambda t, x: t.nn.functional.normalize(x, dim=-1, eps=4.0),
        floats(4, 3, low=-0.5, high=0.5),
        label="short",
        epsilon=16.0,
    ),
    row(
        "group_norm",
        lambda t, x, g, b: t.nn.functional.group_norm(x, 2, g, b),
        floats(2, 4, 3, 2),
        floats(4),
        floats(4),
        num_groups=2,
    ),
    row(
        "group_norm",
        lambda t, x, g, b: t.nn.functional.group_norm(x, 3, g, b),
        floats(4, 6),
        floats(6),
        floats(6),
        label="rows",
        num_groups=3,
    ),
    row("batch_normalization", _batch_norm(True), floats(2, 3, 2, 3), *CHANNELS, label="training", is_training=True),
    row("batch_normalization", _batch_norm(True), floats(6, 3), *CHANNELS, label="training-rows", is_training=True),
    row(
        "batch_normalization",
        _batch_norm(False),
        floats(2, 3, 2, 3),
        *CHANNELS[:2],
        *(floats(3, fixed=True), floats(3, fixed=True, **POSITIVE)),
    ),
    row(
        *("batch_norm", lambda t, x, m, v, w, b: t.nn.functional.batch_norm(x, m, v, w, b), floats(4, 3)),
        *(floats(3, fixed=True), floats(3, fixed=True, **POSITIVE), floats(3), floats(3)),
        ours=lambda *given: ops.batch_norm(*given),
    ),
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

ATTENTION: tuple[Row, ...] = (
    row("scaled_dot_product_attention", _attention, *QKV),
    row(
        "scaled_dot_product_attention", lambda *a: _attention(*a, causal=True), *SQUARE, label="causal", is_causal=True
    ),
    row(
        "scaled_dot_product_attention",
        lambda *a: _attention(*a, causal=True),
        *QKV,
        label="causal-longer",
        is_causal=True,
    ),
    row(
        "scaled_dot_product_attention",
        lambda *a: _by_positions(*a, scale=0.3),
        *SQUARE,
        label="BSND",
        scale=0.3,
        input_layout="BSND",
    ),
    row("scaled_dot_product_attention_with_mask", _attention, *QKV, floats(4, 5)),
    row("scaled_dot_product_attention_with_mask", _attention, *QKV, floats(2, 1, 1, 5), label="samples"),
    row(
        "scaled_dot_product_attention_with_mask",
        lambda *a: _attention(*a, causal=True),
        *SQUARE,
        floats(2, 2, 4, 4),
        label="causal",
        is_causal=True,
    ),
    row(
        "scaled_dot_product_attention_with_mask",
        _by_positions,
        *SQUARE,
        floats(2, 1, 2, 2),
        label="BSND",
        input_layout="BSND",
    ),
    row("causal_mask", lambda t, x: x.masked_fill(t.ones(4, 5, dtype=t.bool).triu(1), -1e30), floats(2, 4, 5)),
    row("attention_expand", lambda *a: _attention(*a, causal=True, scale=0.5), *SQUARE, is_causal=True, scale=0.5),
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


def _cross_entropy(**options):
    return lambda t, x, y, w: t.nn.functional.cross_entropy(x, y.long(), w, reduction="none", **options)


def _logits_definition(t, x, y, w, p):
    logs = t.nn.functional.logsigmoid
    return -w * (p * y * logs(x) + (1 - y) * logs(-x))


def _label_weight(t, labels, weight):
    return weight[labels.long()] * (labels != 2)


LOSSES: tuple[Row, ...] = (
    row(
        "softmax_cross_entropy",
        lambda t, x, y: t.nn.functional.cross_entropy(x, y, reduction="none"),
        floats(4, 5),
        floats(4, 5, **INSIDE),
    ),
    row(
        "sparse_softmax_cross_entropy",
        lambda t, x, y: t.nn.functional.cross_entropy(x, y.long(), reduction="none"),
        floats(6, 4),
        ints(4, 6),
    ),
    row("class_cross_entropy", _cross_entropy(), floats(6, 4), ints(4, 6), floats(4, fixed=True, **POSITIVE)),
    row(
        "class_cross_entropy",
        _cross_entropy(ignore_index=1),
        floats(2, 3, 2, 2),
        ints(3, 2, 2, 2),
        floats(3, fixed=True, **POSITIVE),
        label="ignore",
        ignore_index=1,
    ),
    row(
        "class_cross_entropy",
        _cross_entropy(label_smoothing=0.1),
        floats(6, 4),
        ints(4, 6),
        floats(4, fixed=True, **POSITIVE),
        label="smoothing",
        label_smoothing=0.1,
    ),
    row(
        *(
            "class_cross_entropy",
            _cross_entropy(label_smoothing=0.2, ignore_index=2),
            floats(6, 4),
            ints(4, 6),
            floats(4, fixed=True, **POSITIVE),
        ),
        **{"label": "smoothing-ignore", "label_smoothing": 0.2, "ignore_index": 2},
    ),
    row(
        *(
            "class_cross_entropy",
            lambda t, x, y, w: _weighted_logs(t, x.log_softmax(1), y, w, 2, 0.2),
            floats(6, 4),
            ints(4, 6),
            floats(4, **POSITIVE),
        ),
        **{"label": "definition", "label_smoothing": 0.2, "ignore_index": 2},
    ),
    row(
        "nll",
        lambda t, x, y, w: t.nn.functional.nll_loss(x, y.long(), w, reduction="none"),
        floats(6, 4),
        ints(4, 6),
        floats(4, fixed=True, **POSITIVE),
    ),
    row(
        "nll",
        lambda t, x, y, w: _weighted_logs(t, x, y, w, 1),
        floats(2, 3, 2),
        ints(3, 2, 2),
        floats(3, **POSITIVE),
        label="definition",
        ignore_index=1,
    ),
    row("label_weight", _label_weight, ints(4, 8), floats(4, **POSITIVE), ignore_index=2),
    row(
        *(
            "binary_cross_entropy_values",
            lambda t, x, y, w: t.nn.functional.binary_cross_entropy(x, y, w, reduction="none"),
        ),
        *(floats(4, 6, **INSIDE), floats(4, 6, **INSIDE), floats(6, fixed=True, **POSITIVE)),
    ),
    row(
        *("binary_cross_entropy_values", lambda t, x, y, w: -w * (y * x.log() + (1 - y) * (1 - x).log())),
        *(floats(4, 6, **INSIDE), floats(4, 6, **INSIDE), floats(6, **POSITIVE)),
        label="definition",
    ),
    row(
        *(
            "binary_cross_entropy_values",
            lambda t, x, y, w: t.nn.functional.binary_cross_entropy(x, y, w, reduction="none"),
        ),
        *(given(0.0, 1.0, 0.0, 1.0, fixed=True), given(0.0, 1.0, 1.0, 0.0, fixed=True), given(1.0, fixed=True)),
        label="certain",
    ),
    row(
        *(
            "bce_with_logits_values",
            lambda t, x, y, w, p: t.nn.functional.binary_cross_entropy_with_logits(
                x, y, w, reduction="none", pos_weight=p
            ),
        ),
        *(floats(4, 6), floats(4, 6, **INSIDE), floats(6, fixed=True, **POSITIVE), floats(6, fixed=True, **POSITIVE)),
    ),
    row(
        *(
            "bce_with_logits_values",
            _logits_definition,
            floats(4, 6),
            floats(4, 6, **INSIDE),
            floats(6, **POSITIVE),
            floats(6, **POSITIVE),
        ),
        label="definition",
    ),
    row(
        *(
            "bce_with_logits_values",
            lambda t, x, y, w, p: t.nn.functional.binary_cross_entropy_with_logits(
                x, y, w, reduction="none", pos_weight=p
            ),
        ),
        *(
            given(-200.0, -30.0, 30.0, 200.0),
            given(0.0, 1.0, 1.0, 0.0, fixed=True),
            given(1.0, fixed=True),
            given(2.0, fixed=True),
        ),
        label="far",
    ),
    row(
        "smooth_l1_values",
        lambda t, x, y: t.nn.functional.smooth_l1_loss(x, y, reduction="none", beta=0.7),
        floats(4, 6),
        floats(4, 6),
        beta=0.7,
    ),
)


def _functional(name, *inputs, label="", **options):
    """One of torch.nn.functional's losses, with the same name and options as ours; labels in int64, which it asks
    for.
    """

    def theirs(t, *xs):
        return getattr(t.nn.functional, name)(*(x.long() if x.dtype == t.int32 else x for x in xs), **options)

    return row(name, theirs, *inputs, label=label, ours=lambda *xs: getattr(ops, name)(*xs, **options))


FUNCTIONAL_LOSSES: tuple[Row, ...] = (
    _functional("cross_entropy", floats(6, 4), ints(4, 6)),
    _functional("cross_entropy", floats(6, 4), ints(4, 6), floats(4, fixed=True, **POSITIVE), label="weights"),
    _functional(
        "cross_entropy", floats(6, 4), floats(6, 4, **INSIDE), label="dense", label_smoothing=0.1, reduction="sum"
    ),
    _functional(
        "cross_entropy", floats(2, 3, 2, 2), ints(3, 2, 2, 2), label="pictures", ignore_index=1, label_smoothing=0.2
    ),
    _functional("nll_loss", floats(6, 4), ints(4, 6), floats(4, fixed=True, **POSITIVE), ignore_index=2),
    _functional("nll_loss", floats(2, 3, 4), ints(3, 2, 4), label="none", reduction="none"),
    _functional("mse_loss", floats(4, 6), floats(4, 6)),
    _functional("l1_loss", floats(4, 6), floats(4, 6), reduction="sum"),
    _functional("smooth_l1_loss", floats(4, 6), floats(4, 6), beta=0.7, reduction="mean"),
    _functional(
        "binary_cross_entropy", floats(4, 6, **INSIDE), floats(4, 6, **INSIDE), floats(6, fixed=True, **POSITIVE)
    ),
    _functional("binary_cross_entropy_with_logits", floats(4, 6), floats(4, 6, **INSIDE), reduction="sum"),
    row(
        "binary_cross_entropy_with_logits",
        lambda t, x, y, p: t.nn.functional.binary_cross_entropy_with_logits(x, y, pos_weight=p),
        *(floats(4, 6), floats(4, 6, **INSIDE), floats(6, fixed=True, **POSITIVE)),
        label="positives",
        ours=lambda x, y, p: ops.binary_cross_entropy_with_logits(x, y, pos_weight=p),
    ),
)

ROWS = PRODUCTS + WINDOWS + NORMALISATION + ATTENTION + LOSSES + FUNCTIONAL_LOSSES
