"""Pooling by means, of volumes (n, c, d, h, w), and with windows that adapt to the size of the result.

    y = ops.adaptive_avg_pool2d(x, (None, 1))        # None keeps that extent

Pictures are split as by MaxPool (`ops/pool.py`). Volumes exchange borders where windows cross them
(max_avg_pool_3d_info.cc), if zeros outside are what their windows count. Adaptive pooling splits neither.
"""

from __future__ import annotations

from typing import Any

from ...base.checks import SHAPE_ERRORS, Check, choice, integer, is_int
from ...base.errors import ShapeError
from ...ops.kernels.pool import max_pool_forward
from ...ops.kernels.windows import Pair, Windows, windows
from ...ops.machine.registry import case, gradient, op
from ...ops.pool import _FACTS, _facts, _picture_fault, _windows_of, max_pool, max_pool_grad
from ...ops.shape import expand_dims, reshape, squeeze
from ...ops.spellings import function
from . import mean_windows as kernels


@op("nchw->nchw", name="AvgPool", **_FACTS)
def avg_pool(x, *, kernel_size=1, strides=1, pad_mode="valid", data_format="NCHW", pad=0, count_include_pad=True):
    """The mean of every window.  x: (n, c, h, w) -> (n, c, oh, ow). Arguments as in max_pool.

    count_include_pad  with pad_mode="pad", whether padded zeros count in the mean; with "same" never (MindSpore)
    """
    made = windows(x.shape[2:], kernel_size, strides, pad_mode=pad_mode, pad=pad)
    return kernels.avg_pool_forward(x, made, count_include_pad and pad_mode.lower() == "pad")


@avg_pool.vjp
def _(g, out, x, *, pad_mode, count_include_pad, **attrs):
    counts = count_include_pad and pad_mode.lower() == "pad"
    return (_avg_grad(g, _windows_of((x.shape,), pad_mode=pad_mode, **attrs), counts, 0),)


def _avg_grad(g, made, count_pads, divisor):
    facts = {"kernel": made.kernel, "stride": made.stride, "pads": made.pads, "ceil": made.ceil}
    return avg_pool_grad(g, size=made.size, **facts, count_pads=count_pads, divisor=divisor)


# ---- volumes ----

_EXAMPLE_3D = {"kernel_size": 2, "strides": 2}
_CEIL = choice(None, True, False)


@op(
    "ncdhw->ncdhw",
    name="MaxPool3D",
    **_facts(3, "pad_list", ceil_mode=_CEIL),
    example=(
        case((2, 2, 4, 4, 2), **_EXAMPLE_3D),
        case((2, 4, 3, 4, 5), kernel_size=(2, 1, 3), strides=(1, 2, 2), pad_mode="same"),
        case((2, 2, 4, 3, 5), **_EXAMPLE_3D, pad_mode="pad", pad_list=(1, 0, 1, 1, 0, 1), ceil_mode=True),
        case((2, 2, 6, 10, 3), kernel_size=(3, 4, 3), strides=(1, 2, 1), pad_mode="pad", pad_list=(0, 0, 0, 0, 1, 1)),
    ),
)
def max_pool_3d(x, *, kernel_size=1, strides=1, pad_mode="VALID", pad_list=0, ceil_mode=None, data_format="NCDHW"):
    """The largest element of every window.  x: (n, c, d, h, w) -> (n, c, od, oh, ow). Arguments as in max_pool.

    pad_list   with pad_mode="pad": an int, or (head, tail, top, bottom, left, right)
    ceil_mode  a last window that begins inside and reaches beyond the padding counts too

    w stays whole; d and h may be split where windows cross borders too, if nothing is padded there.
    """
    made = windows(x.shape[2:], kernel_size, strides, pad_mode=pad_mode, pad=pad_list, ceil_mode=ceil_mode)
    return max_pool_forward(x, made.kernel, made.stride, made.pads, made.out_size)


@max_pool_3d.vjp
def _(g, out, x, *, pad_list, **attrs):
    made = _windows_of((x.shape,), pad=pad_list, **attrs)
    return (max_pool_grad(g, out, x, kernel=made.kernel, stride=made.stride, pads=made.pads),)


@op(
    "ncdhw->ncdhw",
    name="AvgPool3D",
    **_facts(3, ceil_mode=_CEIL, divisor_override=integer(0)),
    example=(
        case((2, 2, 4, 4, 2), **_EXAMPLE_3D),
        case((2, 4, 3, 4, 5), kernel_size=(2, 1, 3), strides=(1, 2, 2), pad_mode="same", count_include_pad=False),
        case((2, 2, 4, 3, 5), **_EXAMPLE_3D, pad_mode="pad", pad=1, ceil_mode=True),
        case((2, 2, 4, 4, 2), **_EXAMPLE_3D, divisor_override=3),
        case((2, 2, 4, 8, 3), kernel_size=3, strides=(1, 2, 2), pad_mode="same"),
    ),
)
def avg_pool_3d(
    x,
    *,
    kernel_size=1,
    strides=1,
    pad_mode="valid",
    pad=0,
    ceil_mode=False,
    count_include_pad=True,
    divisor_override=0,
    data_format="NCDHW",
):
    """The mean of every window.  x: (n, c, d, h, w) -> (n, c, od, oh, ow). Arguments as in MaxPool3D.

    count_include_pad  whether padded zeros count in the mean;  divisor_override: divide by this number, unless it is 0
    """
    made = windows(x.shape[2:], kernel_size, strides, pad_mode=pad_mode, pad=pad, ceil_mode=ceil_mode)
    return kernels.avg_pool_forward(x, made, count_include_pad, divisor_override)


@avg_pool_3d.vjp
def _(g, out, x, *, count_include_pad, divisor_override, **attrs):
    return (_avg_grad(g, _windows_of((x.shape,), **attrs), count_include_pad, divisor_override),)


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


@gradient(adaptive_avg_pool, shown="AdaptiveAvgPool2DGrad")
def adaptive_avg_pool_grad(g, *, shape):
    """Gradient of adaptive_avg_pool.  g: (n, c, oh, ow) -> `shape`, (n, c, h, w)."""
    return kernels.adaptive_avg_grad(g, shape[2:])


@op("nchw->nchw", name="AdaptiveMaxPool2D", **_ADAPTIVE)
def adaptive_max_pool(x, *, output_size):
    """The largest elements of adaptive_avg_pool's windows.  x: (n, c, h, w) -> (n, c, *output_size)."""
    return kernels.adaptive_max(x, _adaptive_size(x.shape[2:], output_size))


@gradient(adaptive_max_pool, shown="AdaptiveMaxPool2DGrad")
def adaptive_max_pool_grad(g, x):
    """Gradient of adaptive_max_pool.  g: (n, c, oh, ow), x: (n, c, h, w) -> (n, c, h, w)."""
    return kernels.adaptive_max_grad(g, x)


# ---- as functions, with MindSpore's names ----


@function()
def max_pool2d(x, kernel_size, stride=None, padding=0, dilation=1, return_indices=False, ceil_mode=False):
    """Largest elements of windows; the stride is the kernel's size unless given.  x: (n, c, h, w) -> (n, c, oh, ow).

    ceil_mode  a last window that begins inside counts;  dilation, return_indices: 1 and False, others are not available
    """
    choice(1, (1, 1))("max_pool2d", "dilation", dilation, SHAPE_ERRORS)
    choice(False)("max_pool2d", "return_indices", return_indices, SHAPE_ERRORS)
    if ceil_mode:
        return _as_volume(max_pool3d, x, kernel_size, stride, padding, ceil_mode=True)
    stride = kernel_size if stride is None else stride
    return max_pool(x, kernel_size=kernel_size, strides=stride, pad_mode="pad", pad=padding)


@function()
def avg_pool2d(x, kernel_size=1, stride=1, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=0):
    """Means of windows.  x: (n, c, h, w) -> (n, c, oh, ow).

    ceil_mode  a last window that begins inside counts;  divisor_override: what sums are divided by, unless it is 0
    """
    if ceil_mode or divisor_override:
        counts = {"count_include_pad": count_include_pad, "divisor_override": divisor_override}
        return _as_volume(avg_pool3d, x, kernel_size, stride, padding, ceil_mode=ceil_mode, **counts)
    window = {"kernel_size": kernel_size, "strides": stride, "pad_mode": "pad", "pad": padding}
    return avg_pool(x, **window, count_include_pad=count_include_pad)


def _as_volume(pool, x, kernel_size, stride, padding, **how):
    """Pooling of pictures by that of volumes one layer deep, which has more settings."""

    def flat(n, own):
        return (own, *n) if isinstance(n, (tuple, list)) else (own, n, n)

    if fault := _picture_fault((x,)):
        raise ShapeError(fault[0], where="pooling", allowed=fault[1])
    if isinstance(padding, (tuple, list)) and len(padding) == 4:
        raise ShapeError(f"padding={padding}", where="pooling", allowed="An int, or (height, width)")
    stride = kernel_size if stride is None else stride
    made = pool(expand_dims(x, 2), flat(kernel_size, 1), flat(stride, 1), flat(padding, 0), **how)
    return squeeze(made, axis=2)


@function()
def adaptive_avg_pool2d(x, output_size):
    """Means of windows that fit the result.  x: (n, c, h, w) -> (n, c, *output_size)."""
    return adaptive_avg_pool(x, output_size=output_size)


@function()
def adaptive_max_pool2d(x, output_size, return_indices=False):
    """Largest elements of windows that fit the result.  x: (n, c, h, w) -> (n, c, *output_size).

    return_indices  False, True is not available
    """
    choice(False)("adaptive_max_pool2d", "return_indices", return_indices, SHAPE_ERRORS)
    return adaptive_max_pool(x, output_size=output_size)


def _of_rows(pool, x, output_size):
    """Pooling of rows by that of pictures of height 1.  x: (n, c, l) or (c, l) -> (..., output_size)."""
    shape = tuple(x.shape)
    size = integer(1)("adaptive pooling", "output_size", output_size, SHAPE_ERRORS)
    if len(shape) not in (2, 3):
        raise ShapeError(f"an input of shape {shape}", where="adaptive pooling", allowed="(n, c, l) or (c, l)")
    pictures = reshape(x, (*((1,) * (3 - len(shape))), *shape[:-1], 1, shape[-1]))
    return reshape(pool(pictures, output_size=(1, size)), (*shape[:-1], size))


@function(mint="functional.adaptive_avg_pool1d")
def adaptive_avg_pool1d(input, output_size):
    """Means of rows over windows that fit the result.  input: (n, c, l) or (c, l) -> (..., output_size)."""
    return _of_rows(adaptive_avg_pool, input, output_size)


@function(mint="functional.adaptive_max_pool1d")
def adaptive_max_pool1d(input, output_size, return_indices=False):
    """Largest elements of rows over windows that fit the result.  input: (n, c, l) or (c, l) -> (..., output_size)."""
    choice(False)("adaptive_max_pool1d", "return_indices", return_indices, SHAPE_ERRORS)
    return _of_rows(adaptive_max_pool, input, output_size)


@function(mint="functional.adaptive_avg_pool3d")
def adaptive_avg_pool3d(input, output_size):
    """Means over windows that fit the result.  input: (n, c, d, h, w) -> (n, c, *output_size); None keeps an extent."""
    n, c, d, h, w = (*input.shape, *(None,) * 5)[:5]
    size = output_size if isinstance(output_size, tuple) else (output_size,) * 3
    if len(input.shape) != 5 or len(size) != 3:
        what = f"output_size={output_size} of an input of shape {tuple(input.shape)}"
        raise ShapeError(what, where="adaptive_avg_pool3d", allowed="An int, or 3, of (n, c, d, h, w)")
    layers = adaptive_avg_pool(reshape(input, (n, c * d, h, w)), output_size=size[1:])  # a mean of means is the mean
    rows, columns = layers.shape[2:]
    volumes = adaptive_avg_pool(reshape(layers, (n, c, d, rows * columns)), output_size=(size[0], None))
    return reshape(volumes, (n, c, volumes.shape[2], rows, columns))


@function()
def max_pool3d(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """Largest elements of windows; the stride is the kernel's size unless given.  x: (n, c, d, h, w) -> like that.

    padding  an int, or (depth, height, width);  dilation, return_indices: 1 and False, others are not available
    """
    choice(1)("max_pool3d", "dilation", dilation, SHAPE_ERRORS)
    choice(False)("max_pool3d", "return_indices", return_indices, SHAPE_ERRORS)
    stride = kernel_size if stride is None else stride
    mode = {"pad_mode": "pad", "pad_list": padding, "ceil_mode": ceil_mode}
    return max_pool_3d(x, kernel_size=kernel_size, strides=stride, **mode)


@function()
def avg_pool3d(
    input_x, kernel_size=1, stride=1, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=0
):
    """Means of windows.  input_x: (n, c, d, h, w) -> like that.  padding: an int, or (depth, height, width)."""
    mode = {"pad_mode": "pad", "pad": padding, "ceil_mode": ceil_mode, "divisor_override": divisor_override}
    return avg_pool_3d(input_x, kernel_size=kernel_size, strides=stride, count_include_pad=count_include_pad, **mode)


@op(result_shape=lambda shapes, *, size, **_: (*shapes[0][:2], *size))
def avg_pool_grad(g, *, size, kernel, stride, pads, ceil, count_pads, divisor):
    """Gradient of avg_pool.  g: (n, c, oh, ow) -> (n, c, *size); or volumes."""
    made = Windows(size, kernel, stride, (1,) * len(size), pads, ceil)
    return kernels.avg_pool_grad(g, made, count_pads, divisor)
