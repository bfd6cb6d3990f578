"""Pooling of pictures (N C H W): MaxPool, AvgPool and their adaptive forms.

    y = ops.MaxPool(kernel_size=2, strides=2).shard(((2, 2, 2, 1),))(x)
    y = ops.adaptive_avg_pool2d(x, (None, 1))        # None keeps that extent

Samples and channels may be cut freely. Height and width may be cut where no window crosses a cut and nothing is padded:
kernel at most the stride, slices a multiple of it (MindSpore, maxpool_info.cc). Adaptive pooling keeps height and width
whole.
"""

from __future__ import annotations

from typing import Any

from ..base.errors import ShapeError, shorten
from .kernels import pool as kernels
from .kernels.windows import Pads, Pair, check_layout, check_size, output_size, pads_of, pair
from .machine.registry import case, op
from .spellings import function


def _picture(where: str, operands: Any) -> Pair:
    """Height and width. Raises ShapeError for anything but pictures of floats."""
    shape, dtype = operands[0].shape, operands[0].dtype
    if len(shape) != 4 or 0 in shape[2:]:
        raise ShapeError(f"a tensor of shape {shape}", where=where, allowed="A picture (n, c, h, w)")
    if dtype.kind != "f":
        raise ShapeError(f"a tensor of {dtype}", where=where, allowed="Floats", hint="Convert it: x.astype('float32')")
    return shape[2:]


def _settings(
    where: str, size: Pair, kernel_size: Any, strides: Any, pad_mode: str, pad: Any
) -> tuple[Pair, Pair, Pads, Pair]:
    """(kernel, stride, pads, size of the result). Raises ShapeError."""
    kernel, stride = pair(where, "kernel_size", kernel_size), pair(where, "strides", strides)
    pads = pads_of(where, pad_mode, pad, size, kernel, stride)
    sizes = tuple(output_size(size[d], kernel[d], stride[d], 1, pads[2 * d], pads[2 * d + 1]) for d in (0, 1))
    return kernel, stride, pads, sizes


def _settings_of(
    shapes: Any, *, kernel_size: Any, strides: Any, pad_mode: str, pad: Any, **_: Any
) -> tuple[Pair, Pair, Pads, Pair]:
    return _settings("pooling", tuple(shapes[0][2:]), kernel_size, strides, pad_mode, pad)


def _check(where, operands, *, kernel_size, strides, pad_mode, pad, data_format, **_):
    size = _picture(where, operands)
    check_layout(where, pad_mode, data_format)
    kernel, _, pads, out_size = _settings(where, size, kernel_size, strides, pad_mode, pad)
    if any(pads[2 * d + side] >= kernel[d] for d in (0, 1) for side in (0, 1)):
        given = f"pad={shorten(pad)} with kernel_size={shorten(kernel_size)}"
        raise ShapeError(
            given, where=where, allowed="Less padding than the kernel is large: every window holds a real element"
        )
    check_size(where, size, out_size, kernel, pads)


def _restrict(signature, cuts, sizes, **attrs):
    kernel, stride, pads, _ = _settings_of(((1, 1, sizes["h"], sizes["w"]),), **attrs)
    for d, label in enumerate("hw"):
        if cuts[label] == 1:
            continue
        cut, part = f"splits '{label}' ({sizes[label]} elements) {cuts[label]} ways", sizes[label] // cuts[label]
        if kernel[d] > stride[d]:
            return (
                f"{cut} with kernel {kernel[d]} and stride {stride[d]}: windows cross the slice borders",
                "Only a kernel at most as large as the stride",
            )
        if part % stride[d]:
            return (
                f"{cut}: slices of {part} elements with stride {stride[d]}",
                "A slice must be a multiple of the stride",
            )
        if pads[2 * d] + pads[2 * d + 1]:
            return f"{cut} with padding {pads[2 * d]}, {pads[2 * d + 1]}", "A padded dim stays whole"
    return None


def _extents(shapes, **attrs):
    kernel = pair("pooling", "kernel_size", attrs["kernel_size"])
    return {"k": kernel[0], "l": kernel[1]}  # no dims of the result: what one window costs


_FACTS = {
    "check": _check,
    "sizes": _extents,
    "out_sizes": lambda shapes, **attrs: dict(zip("hw", _settings_of(shapes, **attrs)[3], strict=True)),
    "restrict": _restrict,
    "flops": lambda s: s.n * s.c * s.h * s.w * s.k * s.l,
    "example": (
        case((2, 4, 8, 4), kernel_size=2, strides=2),
        case((4, 2, 6, 7), kernel_size=3, strides=2, pad_mode="same"),
        case((2, 2, 5, 6), kernel_size=(3, 2), strides=1, pad_mode="pad", pad=(1, 0, 1, 1)),
        case((2, 2, 8, 12), kernel_size=(1, 2), strides=(2, 3)),
    ),
}


@op("nchw->nchw", name="MaxPool", **_FACTS)
def max_pool(x, *, kernel_size=1, strides=1, pad_mode="valid", data_format="NCHW", pad=0):
    """The largest element of every window.  x: (n, c, h, w) -> (n, c, oh, ow). Of equal ones the first in row-major
                                             order takes the gradient.

    kernel_size, strides  an int, or (height, width)
    pad_mode              "valid"; "same": ceil(size / stride) results; "pad": `pad` elements, or (top, bottom, left,
                          right)
    What is padded is never the largest.
    """
    kernel, stride, pads, out_size = _settings_of(
        (x.shape,), kernel_size=kernel_size, strides=strides, pad_mode=pad_mode, pad=pad
    )
    return kernels.max_pool_forward(x, kernel, stride, pads, out_size)


@max_pool.vjp
def _(g, out, x, **attrs):
    kernel, stride, pads, _ = _settings_of((x.shape,), **attrs)
    return (max_pool_grad(g, out, x, kernel=kernel, stride=stride, pads=pads),)


@op(infer_fn=lambda shapes, **_: shapes[2])
def max_pool_grad(g, out, x, *, kernel, stride, pads):
    """Gradient of max_pool.  g, out: (n, c, oh, ow), x: (n, c, h, w) -> (n, c, h, w)."""
    return kernels.max_pool_grad(g, out, x, kernel, stride, pads)


@op("nchw->nchw", name="AvgPool", **_FACTS)
def avg_pool(x, *, kernel_size=1, strides=1, pad_mode="valid", data_format="NCHW", pad=0, count_include_pad=True):
    """The mean of every window.  x: (n, c, h, w) -> (n, c, oh, ow).

    kernel_size, strides, pad_mode, pad  as in max_pool
    count_include_pad  with pad_mode="pad", whether padded zeros count in the mean; with "same" they never do
                       (MindSpore)
    """
    kernel, stride, pads, out_size = _settings_of(
        (x.shape,), kernel_size=kernel_size, strides=strides, pad_mode=pad_mode, pad=pad
    )
    return kernels.avg_pool_forward(x, kernel, stride, pads, out_size, count_include_pad and pad_mode == "pad")


@avg_pool.vjp
def _(g, out, x, *, pad_mode, count_include_pad, **attrs):
    kernel, stride, pads, _ = _settings_of((x.shape,), pad_mode=pad_mode, **attrs)
    count_pads = count_include_pad and pad_mode == "pad"
    return (avg_pool_grad(g, size=tuple(x.shape[2:]), kernel=kernel, stride=stride, pads=pads, count_pads=count_pads),)


@op(infer_fn=lambda shapes, *, size, **_: (*shapes[0][:2], *size))
def avg_pool_grad(g, *, size, kernel, stride, pads, count_pads):
    """Gradient of avg_pool.  g: (n, c, oh, ow) -> (n, c, *size)."""
    return kernels.avg_pool_grad(g, size, kernel, stride, pads, count_pads)


# ---- windows that fit the result's size ----


def _adaptive_size(size: Pair, output_size: Any) -> Pair:
    both = output_size if isinstance(output_size, tuple) else (output_size, output_size)
    return tuple(n if wanted is None else wanted for n, wanted in zip(size, both, strict=True))


def _check_adaptive(where, operands, *, output_size):
    _picture(where, operands)
    both = output_size if isinstance(output_size, tuple) else (output_size, output_size)
    if len(both) != 2 or any(v is not None and (isinstance(v, bool) or not isinstance(v, int) or v < 1) for v in both):
        raise ShapeError(
            f"output_size={shorten(output_size)}",
            where=where,
            allowed="An int, or (height, width), where None keeps that extent",
        )


_ADAPTIVE = {
    "check": _check_adaptive,
    "whole": "hw",
    "sizes": lambda shapes, **_: {"y": shapes[0][2], "x": shapes[0][3]},  # what is read
    "out_sizes": lambda shapes, *, output_size: dict(
        zip("hw", _adaptive_size(tuple(shapes[0][2:]), output_size), strict=True)
    ),
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


@adaptive_avg_pool.vjp
def _(g, out, x, *, output_size):
    return (adaptive_avg_pool_grad(g, size=tuple(x.shape[2:])),)


@op(infer_fn=lambda shapes, *, size: (*shapes[0][:2], *size))
def adaptive_avg_pool_grad(g, *, size):
    """Gradient of adaptive_avg_pool.  g: (n, c, oh, ow) -> (n, c, *size)."""
    return kernels.adaptive_avg_grad(g, size)


@op("nchw->nchw", name="AdaptiveMaxPool2D", **_ADAPTIVE)
def adaptive_max_pool(x, *, output_size):
    """The largest elements of the windows of adaptive_avg_pool; ties as in max_pool.  x: (n, c, h, w) -> (n, c,
    *output_size).
    """
    return kernels.adaptive_max(x, _adaptive_size(x.shape[2:], output_size))


@adaptive_max_pool.vjp
def _(g, out, x, *, output_size):
    return (adaptive_max_pool_grad(g, x),)


@op(infer_fn=lambda shapes: shapes[1])
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
