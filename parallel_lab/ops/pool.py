"""Pooling of pictures (N C H W): MaxPool, AvgPool and their adaptive forms.

    y = ops.MaxPool(kernel_size=2, strides=2).shard(((2, 2, 2, 1),))(x)
    y = ops.adaptive_avg_pool2d(x, (None, 1))        # None keeps that extent

Samples and channels may be split freely; height and width where no window crosses a border and nothing is padded:
kernel at most the stride, slices a multiple of it (MindSpore, maxpool_info.cc). Adaptive pooling splits neither.
"""

from __future__ import annotations

from typing import Any

from ..base.checks import Check, is_int
from .kernels import pool as kernels
from .kernels.windows import PADDING, PAIR, Pair, Windows, padding_fault, windows
from .machine.operand_checks import floats
from .machine.registry import case, gradient, op
from .machine.signature import Fault
from .spellings import function


def _picture_fault(operands: Any) -> Fault | None:
    """What is no picture of floats."""
    shape = operands[0].shape
    if len(shape) != 4 or 0 in shape[2:]:
        return f"a tensor of shape {shape}", "A picture (n, c, h, w)"
    return floats(operands[0])


def _windows_of(shapes: Any, *, kernel_size: Any, strides: Any, **attrs: Any) -> Windows:
    return windows(shapes[0][2:], kernel_size, strides, **attrs)


def _check(operands, *, pad_mode, pad, **attrs):
    if fault := _picture_fault(operands) or padding_fault(pad_mode, pad):
        return fault
    made = _windows_of((operands[0].shape,), pad_mode=pad_mode, pad=pad, **attrs)
    if any(padded >= made.kernel[side // 2] for side, padded in enumerate(made.pads)):
        given = f"pad={pad} with kernel_size={attrs['kernel_size']}"
        return given, "Less padding than the kernel is large: every window holds a real element"
    return made.fault()


def _restrict(signature, cuts, sizes, **attrs):
    made = _windows_of(((1, 1, sizes["h"], sizes["w"]),), **attrs)
    for d, label in enumerate("hw"):
        if cuts[label] == 1:
            continue
        size, kernel, stride, _, before, after = made.along(d)
        cut, part = f"splits '{label}' ({size} elements) {cuts[label]} ways", size // cuts[label]
        if kernel > stride:
            what = f"{cut} with kernel {kernel} and stride {stride}: windows cross the slice borders"
            return what, "Only a kernel at most as large as the stride"
        if part % stride:
            return f"{cut}: slices of {part} elements with stride {stride}", "A slice must be a multiple of the stride"
        if before + after:
            return f"{cut} with padding {before}, {after}", "A padded dim stays whole"
    return None


def _extents(shapes, *, kernel_size, **_):
    return dict(zip("kl", PAIR.read(kernel_size), strict=True))  # no dims of the result: what one window costs


_FACTS = {
    "attrs": {"kernel_size": PAIR, "strides": PAIR, **PADDING},
    "check": _check,
    "sizes": _extents,
    "out_sizes": lambda shapes, **attrs: dict(zip("hw", _windows_of(shapes, **attrs).out_size, strict=True)),
    "restrict": _restrict,
    "flops": 1,
    "example": (
        case((2, 4, 8, 4), kernel_size=2, strides=2),
        case((4, 2, 6, 7), kernel_size=3, strides=2, pad_mode="same"),
        case((2, 2, 5, 6), kernel_size=(3, 2), strides=1, pad_mode="pad", pad=(1, 0, 1, 1)),
        case((2, 2, 8, 12), kernel_size=(1, 2), strides=(2, 3)),
    ),
}


@op("nchw->nchw", name="MaxPool", **_FACTS)
def max_pool(x, *, kernel_size=1, strides=1, pad_mode="valid", data_format="NCHW", pad=0):
    """The largest element of every window.  x: (n, c, h, w) -> (n, c, oh, ow).

    Of equal ones the first in row-major order takes the gradient.

    kernel_size, strides  an int, or (height, width)
    pad_mode              "valid"; "same": ceil(size / stride) results; "pad": `pad`, or (top, bottom, left, right)
    What is padded is never the largest.
    """
    made = windows(x.shape[2:], kernel_size, strides, pad_mode=pad_mode, pad=pad)
    return kernels.max_pool_forward(x, made.kernel, made.stride, made.pads, made.out_size)


@max_pool.vjp
def _(g, out, x, **attrs):
    made = _windows_of((x.shape,), **attrs)
    return (max_pool_grad(g, out, x, kernel=made.kernel, stride=made.stride, pads=made.pads),)


@op(result_shape=2)
def max_pool_grad(g, out, x, *, kernel, stride, pads):
    """Gradient of max_pool.  g, out: (n, c, oh, ow), x: (n, c, h, w) -> (n, c, h, w)."""
    return kernels.max_pool_grad(g, out, x, kernel, stride, pads)


@op("nchw->nchw", name="AvgPool", **_FACTS)
def avg_pool(x, *, kernel_size=1, strides=1, pad_mode="valid", data_format="NCHW", pad=0, count_include_pad=True):
    """The mean of every window.  x: (n, c, h, w) -> (n, c, oh, ow). Arguments as in max_pool.

    count_include_pad  with pad_mode="pad", whether padded zeros count in the mean; with "same" never (MindSpore)
    """
    made = windows(x.shape[2:], kernel_size, strides, pad_mode=pad_mode, pad=pad)
    count_pads = count_include_pad and pad_mode == "pad"
    return kernels.avg_pool_forward(x, made.kernel, made.stride, made.pads, made.out_size, count_pads)


@avg_pool.vjp
def _(g, out, x, *, pad_mode, count_include_pad, **attrs):
    made, count_pads = _windows_of((x.shape,), pad_mode=pad_mode, **attrs), count_include_pad and pad_mode == "pad"
    facts = {"kernel": made.kernel, "stride": made.stride, "pads": made.pads, "count_pads": count_pads}
    return (avg_pool_grad(g, size=made.size, **facts),)


@op(result_shape=lambda shapes, *, size, **_: (*shapes[0][:2], *size))
def avg_pool_grad(g, *, size, kernel, stride, pads, count_pads):
    """Gradient of avg_pool.  g: (n, c, oh, ow) -> (n, c, *size)."""
    return kernels.avg_pool_grad(g, size, kernel, stride, pads, count_pads)


# ---- windows that fit the result's size ----


def _read_size(value: Any) -> tuple[int | None, int | None]:
    both = value if isinstance(value, tuple) else (value, value)
    if len(both) != 2 or not all(v is None or is_int(v, 1) for v in both):
        raise TypeError
    return both


def _adaptive_size(size: Pair, output_size: Any) -> Pair:
    return tuple(n if wanted is None else wanted for n, wanted in zip(size, _read_size(output_size), strict=True))


def _adaptive_extents(shapes, *, output_size):
    return dict(zip("hw", _adaptive_size(tuple(shapes[0][2:]), output_size), strict=True))


_ADAPTIVE = {
    "attrs": {"output_size": Check("An int, or (height, width), where None keeps that extent", _read_size)},
    "check": lambda operands, **_: _picture_fault(operands),
    "whole": "hw",
    "sizes": lambda shapes, **_: {"y": shapes[0][2], "x": shapes[0][3]},  # what is read
    "out_sizes": _adaptive_extents,
    "flops": lambda s: s.n * s.c * s.y * s.x,
    "example": (
        case((4, 2, 4, 6), output_size=1),
        case((2, 4, 5, 7), output_size=(2, 3)),
        case((2, 2, 3, 4), output_size=(None, 6)),
    ),
}


@op("nchw->nchw", name="AdaptiveAvgPool2D", **_ADAPTIVE)
def adaptive_avg_pool(x, *, output_size):
    """Means over windows that fit the result: window i of m over n elements is floor(i n / m) to ceil((i + 1) n / m).

    x: (n, c, h, w) -> (n, c, *output_size); an int stands for both, None keeps that extent.
    """
    return kernels.adaptive_avg(x, _adaptive_size(x.shape[2:], output_size))


@gradient(adaptive_avg_pool)
def adaptive_avg_pool_grad(g, *, shape):
    """Gradient of adaptive_avg_pool.  g: (n, c, oh, ow) -> `shape`, (n, c, h, w)."""
    return kernels.adaptive_avg_grad(g, shape[2:])


@op("nchw->nchw", name="AdaptiveMaxPool2D", **_ADAPTIVE)
def adaptive_max_pool(x, *, output_size):
    """The largest elements of adaptive_avg_pool's windows.  x: (n, c, h, w) -> (n, c, *output_size)."""
    return kernels.adaptive_max(x, _adaptive_size(x.shape[2:], output_size))


@gradient(adaptive_max_pool)
def adaptive_max_pool_grad(g, x):
    """Gradient of adaptive_max_pool.  g: (n, c, oh, ow), x: (n, c, h, w) -> (n, c, h, w)."""
    return kernels.adaptive_max_grad(g, x)


# ---- as functions, with MindSpore's names ----


@function()
def max_pool2d(x, kernel_size, stride=None, padding=0):
    """Largest elements of windows; the stride is the kernel's size unless given.  x: (n, c, h, w) -> (n, c, oh, ow)."""
    stride = kernel_size if stride is None else stride
    return max_pool(x, kernel_size=kernel_size, strides=stride, pad_mode="pad", pad=padding)


@function()
def avg_pool2d(x, kernel_size=1, stride=1, pad_mode="valid", padding=0, count_include_pad=True):
    """Means of windows.  x: (n, c, h, w) -> (n, c, oh, ow)."""
    return avg_pool(
        x, kernel_size=kernel_size, strides=stride, pad_mode=pad_mode, pad=padding, count_include_pad=count_include_pad
    )


@function()
def adaptive_avg_pool2d(x, output_size):
    """Means of windows that fit the result.  x: (n, c, h, w) -> (n, c, *output_size)."""
    return adaptive_avg_pool(x, output_size=output_size)


@function()
def adaptive_max_pool2d(x, output_size):
    """Largest elements of windows that fit the result.  x: (n, c, h, w) -> (n, c, *output_size)."""
    return adaptive_max_pool(x, output_size=output_size)
