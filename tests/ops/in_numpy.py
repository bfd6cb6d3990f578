"""What operators compute, in numpy: a column for the examples of their declarations.

    NUMPY["truncate_mod"]      np.fmod, a function of the operands in order, and of the example's attributes by name

It stands here, not in the declarations: the package would carry at every import what only one test reads. Operators
that PyTorch has are compared with its recorded results (`tests/recorded`) and have no line here; what neither column
has is in BY_HAND, with the test that looks at it.
"""

from __future__ import annotations

import math

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rotary_positions(x, base=10000.0, placement="contiguous", ranks=1):
    """Halves of the elements as real and imaginary parts, turned by position."""
    s, d = x.shape[1], x.shape[-1]
    positions = np.arange(s)
    if placement == "zigzag":
        chunks = positions.reshape(2 * ranks, -1)
        positions = np.concatenate([c for r in range(ranks) for c in (chunks[r], chunks[-1 - r])])
    turns = np.exp(1j * positions[:, None] * base ** (-2 * np.arange(d // 2) / d))
    turned = (x[..., : d // 2] + 1j * x[..., d // 2 :]) * turns.reshape(s, *[1] * (x.ndim - 3), d // 2)
    return np.concatenate([turned.real, turned.imag], -1)


def balanced(scores):
    return scores / scores.sum(-1, keepdims=True)


def bias_after_step(bias, load, rate=1e-3, centred=False):
    change = rate * np.sign(load.mean() - load)
    return bias + change - (change.mean() if centred else 0)


def each(function):
    """A function of numbers, element by element."""
    return lambda x: np.array([function(v) for v in x.ravel().tolist()]).reshape(x.shape)


def swiglu(x, dim=-1):
    gate, value = np.split(x, 2, dim)
    return gate * sigmoid(gate) * value


def logit(x, eps=None):
    x = x if eps is None else np.clip(x, eps, 1 - eps)
    return np.log(x / (1 - x))


def sparse_cross_entropy(x, labels):
    return np.log(np.exp(x).sum(1)) - x[np.arange(len(x)), labels]


def kl_div_loss(x, y, reduction):
    values = y * (np.log(y) - x)
    return {"none": values, "mean": values.mean(), "sum": values.sum(), "batchmean": values.sum() / len(x)}[reduction]


def local_response(x, depth_radius=5, bias=1.0, alpha=1.0, beta=0.5):
    """MindSpore, LRN: channels at most depth_radius away count."""
    near = [(x[:, max(0, c - depth_radius) : c + depth_radius + 1] ** 2).sum(1) for c in range(x.shape[1])]
    return x / (bias + alpha * np.stack(near, 1)) ** beta


def rotary_position_embedding(x, cos, sin, mode=0):
    """Pairs of elements as complex numbers, times e^(i angle): halves of the last dim, or neighbours."""
    if mode == 0:
        first, second = np.split(x, 2, -1)
        return x * cos + np.concatenate([-second, first], -1) * sin
    return x * cos + np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape) * sin


# ---- along a dim ----


def running(function, start):
    """`function.accumulate`; exclusive: without the element itself, beginning with `start`."""

    def expected(x, axis, exclusive=False, reverse=False):
        x = np.flip(x, axis) if reverse else x
        out = function.accumulate(x, axis)
        if exclusive:
            first = np.full_like(np.take(out, [0], axis), start)
            out = np.concatenate([first, np.take(out, range(x.shape[axis] - 1), axis)], axis)
        return np.flip(out, axis) if reverse else out

    return expected


def running_extreme(function):
    """Values, and the number of the last element that had each."""

    def expected(x, axis):
        values = function.accumulate(x, axis)
        numbers = np.arange(x.shape[axis]).reshape([-1 if d == axis % x.ndim else 1 for d in range(x.ndim)])
        return values, np.maximum.accumulate(np.where(x == values, numbers, 0), axis)

    return expected


def number_and_extreme(place, extreme):
    return lambda x, axis=0, keep_dims=False: (place(x, axis, keepdims=keep_dims), extreme(x, axis, keepdims=keep_dims))


def extreme_and_number(extreme, place):
    return lambda x, dim, keepdim=False: (extreme(x, dim, keepdims=keepdim), place(x, dim, keepdims=keepdim))


# ---- put where numbers say ----


def put(x, places, rows, way):
    """Update after update."""
    x = x.copy()
    for place, row in zip(places, rows, strict=True):
        x[place] = way(x[place], row)
    return x


def by_rows(way):
    return lambda x, i, rows: put(x, i.ravel(), rows.reshape(-1, *x.shape[1:]), way)


def by_coordinates(way):
    return lambda x, i, rows: put(
        x, map(tuple, i.reshape(-1, i.shape[-1])), rows.reshape(-1, *x.shape[i.shape[-1] :]), way
    )


def by_attribute(way):
    return lambda x, rows, indices: put(x, np.atleast_1d(indices), rows, way)


def along(x, i, rows, axis=0, reduction="none"):
    places = [(*q[:axis], i[q], *q[axis + 1 :]) for q in np.ndindex(i.shape)]
    return put(x, places, rows.ravel(), np.add if reduction == "add" else WAYS["update"])


def segments(fold, empty):
    """Parts of x with one number, folded; parts without an element have a value of their own."""

    def expected(x, ids, num_segments):
        parts = [x[ids == i] for i in range(num_segments)]
        return np.stack([fold(p, 0) if len(p) else np.full(x.shape[ids.ndim :], empty(x.dtype)) for p in parts])

    return expected


WAYS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "update": lambda old, row: row,
}

IN_PLACE = {
    **{"addext": np.add, "subext": np.subtract, "mul": np.multiply, "div": np.divide, "floordivide": np.floor_divide},
    "copy": lambda x, y: np.broadcast_to(y, x.shape),
}
NUMPY = {
    # element by element
    **{
        name: getattr(np, name) for name in ("hypot", "signbit", "isneginf", "isposinf", "exp2", "log2", "log10", "tan")
    },
    **{name: getattr(np, name) for name in ("rad2deg", "deg2rad", "sinc", "sinh", "cosh", "trunc", "nextafter", "gcd")},
    **{
        name: getattr(np, name) for name in ("lcm", "copysign", "bitwise_and", "bitwise_or", "bitwise_xor", "heaviside")
    },
    **{name: getattr(np, name) for name in ("left_shift", "right_shift", "logaddexp", "logaddexp2")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan", "tan2", "sinh", "cosh", "tanh")},
    "identity": lambda x: x,
    "near": lambda x, y: np.isclose(x, y),
    "numbers_instead": np.nan_to_num,
    "bitwise_invert": np.invert,
    "population_count": each(lambda v: v.bit_count()),
    "frac": lambda x: np.modf(x)[0],
    "squared_difference": lambda x, y: (x - y) ** 2,
    **dict.fromkeys(("xdivy", "div_no_nan"), np.divide),
    "mul_no_nan": np.multiply,
    "xlogy": lambda x, y: x * np.log(y),
    "truncate_div": lambda x, y: np.trunc(x / y),
    "truncate_mod": np.fmod,
    "add_ext": lambda x, y, alpha: x + alpha * y,
    "sub_ext": lambda x, y, alpha: x - alpha * y,
    "lerp": lambda start, end, weight: (1 - weight) * start + weight * end,
    "add_product": lambda x, first, second, value: x + value * first * second,
    "add_quotient": lambda x, first, second, value: x + value * first / second,
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * (np.exp(x) - 1)),
    "celu": lambda x, alpha=1.0: np.where(x > 0, x, alpha * (np.exp(x / alpha) - 1)),
    "softsign": lambda x: x / (1 + abs(x)),
    "fast_gelu": lambda x: x * sigmoid(1.702 * x),
    "hardshrink": lambda x, lambd=0.5: np.where(abs(x) > lambd, x, 0),
    "soft_shrink": lambda x, lambd=0.5: np.sign(x) * np.maximum(abs(x) - lambd, 0),
    "hardtanh": lambda x, min_val=-1.0, max_val=1.0: np.clip(x, min_val, max_val),
    "threshold": lambda x, threshold, value: np.where(x > threshold, x, value),
    "swiglu": swiglu,
    "logit": logit,
    "erfc": each(math.erfc),
    "lgamma": each(math.lgamma),
    "bessel_i0": np.i0,
    "bessel_i0e": lambda x: np.i0(x) * np.exp(-abs(x)),
    "assign": lambda x, y: y,
    "assign_add": np.add,
    "assign_sub": np.subtract,
    # losses and sums
    "l2_loss": lambda x: (x * x).sum() / 2,
    "square_sum_all": lambda x, y: ((x * x).sum(), (y * y).sum()),
    "sparse_cross_entropy": sparse_cross_entropy,
    "sigmoid_cross_entropy_with_logits": lambda x, y: np.log(1 + np.exp(x)) - x * y,
    "kl_div_loss": kl_div_loss,
    "local_response": local_response,
    # products and matrices
    "mv": np.matmul,
    "outer": np.outer,
    "plus_product": lambda x, a, b, *, transpose_b=False: x + a @ (b.T if transpose_b else b),
    "cross_product": lambda x, y, dim=-1: np.cross(x, y, axis=dim),
    "cdist": lambda x, y, p=2.0: np.linalg.norm(x[..., :, None, :] - y[..., None, :, :], p, axis=-1),
    "matrix_inverse": np.linalg.inv,
    "matrix_determinant": np.linalg.det,
    "log_matrix_determinant": lambda x: tuple(np.linalg.slogdet(x)),
    "rotary_position_embedding": rotary_position_embedding,
    # along a dim
    "argmax_with_value": number_and_extreme(np.argmax, np.max),
    "argmin_with_value": number_and_extreme(np.argmin, np.min),
    "max_dim": extreme_and_number(np.max, np.argmax),
    "min_dim": extreme_and_number(np.min, np.argmin),
    "cummax": running_extreme(np.maximum),
    "cummin": running_extreme(np.minimum),
    "cumulative_product": running(np.multiply, 1),
    "cumulative_logsumexp": running(np.logaddexp, None),
    "invert_permutation": np.argsort,
    "repeat_element": np.repeat,
    "repeat_heads": lambda x, repeats: x[:, :, np.arange(x.shape[2] * repeats) // repeats],
    **{f"tensor_inplace{name}": way for name, way in IN_PLACE.items()},
    # by number
    "index_select": lambda x, i, axis: np.take(x, i, axis),
    "gather_nd": lambda x, i: x[tuple(np.moveaxis(i, -1, 0))],
    "unsorted_segment_prod": segments(np.prod, lambda dtype: 1),
    "unsorted_segment_max": segments(np.max, lambda dtype: np.finfo(dtype).min),
    "unsorted_segment_min": segments(np.min, lambda dtype: np.finfo(dtype).max),
    "tensor_scatter_elements": along,
    **{f"scatter_{how}": by_rows(way) for how, way in WAYS.items()},
    **{f"scatter_nd_{how}": by_coordinates(way) for how, way in WAYS.items()},
    **{f"tensor_scatter_{how}": by_coordinates(way) for how, way in WAYS.items()},
    **{f"inplace_{how}": by_attribute(WAYS[how]) for how in ("add", "sub", "update")},
    "rotary_positions": rotary_positions,
    # of routers
    "expert_scores": lambda x, scores="softmax": balanced(np.exp(x) if scores == "softmax" else sigmoid(x)),
    "squared_log_sum_exp": lambda x: np.log(np.exp(x).sum(-1)) ** 2,
    "bias_step": bias_after_step,
}

BY_HAND = {
    "approximate_equal": "test_functions.py: examples of drawn numbers are never near",
    **dict.fromkeys(("window_columns", "add_columns"), "test_pictures.py: the windows themselves"),
    "relu_v2": "test_functions.py: bits",
    **dict.fromkeys(("unique_elements", "unique_with_pad"), "test_functions.py: padded results"),
    **dict.fromkeys(
        ("erfinv", "digamma", "bessel_i1", "bessel_i1e", "igamma", "igammac", "zeta"), "test_functions.py: not in numpy"
    ),
    **dict.fromkeys(
        ("bounding_box_encode", "bounding_box_decode", "check_valid", "iou", "nms_with_mask"), "test_pictures.py"
    ),
    "alignment_loss": "test_functions.py",
    **dict.fromkeys(
        ("resize_nearest_neighbor", "resize_bilinear", "depth_to_space", "space_to_depth"), "test_pictures.py"
    ),
    **dict.fromkeys(("crop_and_resize", "roi_align", "grid_sampler_2d"), "test_pictures.py"),
    "flash_attention": "test_flash_attention.py",
    "balanced_attention": "test_balanced_attention.py",
    "route_to_room": "../nn/test_moe.py: token by token",
    "dropout_at": "tests/nn/test_dropout.py",
    **dict.fromkeys(("infer_attention", "block_attention", "block_write", "cache_write"), "test_served_models.py"),
    **dict.fromkeys(("feed_forward", "grouped_product", "moe_init_routing"), "test_served_models.py"),
    **dict.fromkeys(("sample_cache", "sample_cache_write", "routed_rows", "turned_pair"), "test_served_forms.py"),
    **dict.fromkeys(("add_rms_norm", "dynamic_quantize", "wkv"), "test_served_forms.py"),
    **dict.fromkeys(("sparse_scores", "sparse_values"), "test_sparse_attention.py"),
    **dict.fromkeys(("moe_compute_expert_tokens", "moe_gating_top_k_softmax"), "test_served_models.py"),
    **dict.fromkeys(("moe_finalize_routing", "quantize", "rescale", "quantized_product"), "test_served_models.py"),
    "token_places": "test_served_models.py",
    **dict.fromkeys(
        ("route_tokens", "sorted_rows", "slot_rows", "dispatch_rows", "combine_rows", "exchange_rows"),
        "tests/nn/test_moe.py: a loop over tokens; recorded rows of tests/recorded/five_d.json",
    ),
    **dict.fromkeys(("expert_product", "slot_product", "expert_load"), "tests/nn/test_moe.py: a loop over tokens"),
}
