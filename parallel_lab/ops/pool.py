"""Pooling of pictures (N C H W): MaxPool, AvgPool, their adaptive forms; of volumes (N C D H W): MaxPool3D, AvgPool3D.

    y = ops.MaxPool(kernel_size=2, strides=2).shard(((2, 2, 2, 1),))(x)
    y = ops.adaptive_avg_pool2d(x, (None, 1))        # None keeps that extent

Samples and channels may be split freely; height and width where no window crosses a border and nothing is padded:
kernel at most the stride, slices a multiple of it (MindSpore, maxpool_info.cc). Volumes exchange borders where windows
cross them (max_avg_pool_3d_info.cc), if zeros outside are what their windows count. Adaptive pooling splits neither.
"""

from __future__ import annotations

from typing import Any

from ..base.checks import Check, choice, integer, is_int
from ..base.errors import ShapeError
from .conv import conv_window, window_refusal
from .kernels import pool as kernels
from .kernels.windows import EXTENTS, SPACE, Pair, Windows, extents, padding, padding_fault, read_extents, windows
from .machine.opdef import SHAPE_ERRORS
from .machine.operand_checks import floats
from .machine.registry import case, gradient, op
from .machine.signature import Fault
from .shape import expand_dims, squeeze
from .spellings import function

_PICTURES = {2: "A picture (n, c, h, w)", 3: "A volume (n, c, d, h, w)"}


def _picture_fault(operands: Any, dims: int = 2) -> Fault | None:
    """What is no picture, or volume, of floats."""
    shape = operands[0].shape
    if len(shape) != 2 + dims or 0 in shape[2:]:
        return f"a tensor of shape {shape}", _PICTURES[dims]
    return floats(operands[0])


def _windows_of(shapes: Any, *, kernel_size: Any, strides: Any, **attrs: Any) -> Windows:
    return windows(shapes[0][2:], kernel_size, strides, **attrs)


def _check(operands, dims, pad_name="pad", **attrs):
    if fault := _picture_fault(operands, dims) or padding_fault(attrs["pad_mode"], attrs["pad"], pad_name):
        return fault
    made = _windows_of((operands[0].shape,), **attrs)
    if any(padded >= made.kernel[side // 2] for side, padded in enumerate(made.pads)):
        given = f"{pad_name}={attrs['pad']} with kernel_size={attrs['kernel_size']}"
        return given, "Less padding than the kernel is large: every window holds a real element"
    return made.fault()


def _restrict(signature, cuts, sizes, **attrs):
    labels = "".join(c for c in "dhw" if c in sizes)
    made = _windows_of(((1, 1, *(sizes[c] for c in labels)),), **attrs)
    for d, label in enumerate(labels):
        if cuts.get(label, 1) == 1:
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


def _along(sizes, label, attrs):
    """Size, kernel, stride, dilation, padding before and after along one dim of a volume."""
    return _windows_of(((1, 1, *(sizes[c] for c in "dhw")),), **attrs).along("dhw".index(label))


def _restrict_volume(signature, cuts, sizes, *, pad_mode, count_include_pad=None, divisor_override=0, **attrs):
    for label in (c for c in "dh" if cuts[c] > 1):
        size, kernel, stride, dilation, before, after = _along(sizes, label, {"pad_mode": pad_mode, **attrs})
        if refused := window_refusal(
            label, cuts[label], size, kernel, stride, dilation, before, after, pad_mode.lower()
        ):
            return refused
        cut = f"splits '{label}' ({size} elements) {cuts[label]} ways with padding {before}, {after}"
        if kernel <= stride and before + after:
            return cut, "A kernel at most as large as the stride must have no padding"
        if before + after and count_include_pad is None:
            return cut, "What ranks find outside is zero, which may be larger than the largest element: no padding"
        if before + after and not (count_include_pad or divisor_override):
            return cut, "What ranks find outside counts: count_include_pad=True, or a divisor_override"
    return None


def _volume_windows(sizes, cuts, *, count_include_pad=None, divisor_override=0, **attrs):
    found = {}
    for label in (c for c in "dh" if cuts.get(c, 1) > 1):
        size, kernel, stride, *rest = _along(sizes, label, attrs)
        if kernel > stride:
            found[label] = conv_window(size, cuts[label], kernel, stride, *rest)
    return found


def _localize_volume(attrs, parts):
    """Attributes for one slice: along a split dim the window that it holds is not padded."""
    modes = tuple("valid" if parts.get(c, 1) > 1 else attrs["pad_mode"].lower() for c in "dhw")
    return {**attrs, "pad_mode": modes[0] if len(set(modes)) == 1 else modes}


def _facts(dims: int, pad: str = "pad", **more: Any) -> dict[str, Any]:
    """The declaration of pooling over so many dims.  pad: what the attribute is called that says how much"""

    def named(fn):
        """fn, given the attribute under its one name here."""
        return lambda *given, **attrs: fn(*given, **{"pad" if k == pad else k: v for k, v in attrs.items()})

    def extents_of(shapes, *, kernel_size, **_):
        # no dims of the result: what one window costs
        return dict(zip(EXTENTS[dims], read_extents(kernel_size, dims), strict=True))

    def out_sizes(shapes, **attrs):
        return dict(zip(SPACE[dims], _windows_of(shapes, **attrs).out_size, strict=True))

    volumes = {"axes": "ncdh", "whole": "w", "localize": _localize_volume, "window": named(_volume_windows)}
    return {
        **({"restrict": named(_restrict)} if dims == 2 else {"restrict": named(_restrict_volume), **volumes}),
        "attrs": {"kernel_size": extents(dims), "strides": extents(dims), **padding(dims, pad), **more},
        "check": named(lambda operands, **attrs: _check(operands, dims, pad, **attrs)),
        "sizes": extents_of,
        "out_sizes": named(out_sizes),
        "flops": 1,
    }


_FACTS = {
    **_facts(2),
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
    """Gradient of max_pool.  g, out: (n, c, oh, ow), x: (n, c, h, w) -> (n, c, h, w); or volumes."""
    return kernels.max_pool_grad(g, out, x, kernel, stride, pads)


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


@op(result_shape=lambda shapes, *, size, **_: (*shapes[0][:2], *size))
def avg_pool_grad(g, *, size, kernel, stride, pads, ceil, count_pads, divisor):
    """Gradient of avg_pool.  g: (n, c, oh, ow) -> (n, c, *size); or volumes."""
    made = Windows(size, kernel, stride, (1,) * len(size), pads, ceil)
    return kernels.avg_pool_grad(g, made, count_pads, divisor)


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
    return kernels.max_pool_forward(x, made.kernel, made.stride, made.pads, made.out_size)


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
