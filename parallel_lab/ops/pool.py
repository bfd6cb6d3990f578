"""Pooling of pictures (n, c, h, w): the largest element of every window. The catalogue has means, volumes and windows
that adapt to the size of the result.

    y = ops.MaxPool(kernel_size=2, strides=2).shard(((2, 2, 2, 1),))(x)

Samples and channels may be split freely; height and width where no window crosses a border and nothing is padded:
kernel at most the stride, slices a multiple of it (MindSpore, maxpool_info.cc).
"""

from __future__ import annotations

from typing import Any

from .conv import conv_window, window_refusal
from .kernels import pool as kernels
from .kernels.windows import EXTENTS, SPACE, Windows, extents, padding, padding_fault, read_extents, windows
from .machine.operand_checks import floats
from .machine.registry import case, op
from .machine.signature import Fault

_PICTURES = {2: "A picture (n, c, h, w)", 3: "A volume (n, c, d, h, w)"}


def _picture_fault(operands: Any, dims: int = 2) -> Fault | None:
    """The fault if the operand is not a picture, or volume, of floats."""
    shape = operands[0].shape
    if len(shape) != 2 + dims or 0 in shape[2:]:
        return f"a tensor of shape {shape}", _PICTURES[dims]
    return floats(operands[0])


def _windows_of(shapes: Any, *, kernel_size: Any, strides: Any, **attrs: Any) -> Windows:
    return windows(shapes[0][2:], kernel_size, strides, **attrs)


def _check(operands, dims, pad_name="pad", **attrs):
    if fault := _picture_fault(operands, dims) or padding_fault(attrs["pad_mode"], attrs["pad"], pad_name):
        return fault
    window = _windows_of((operands[0].shape,), **attrs)
    if any(padded >= window.kernel[side // 2] for side, padded in enumerate(window.pads)):
        given = f"{pad_name}={attrs['pad']} with kernel_size={attrs['kernel_size']}"
        return given, "Less padding than the kernel is large: every window holds a real element"
    return window.fault()


def _restrict(signature, cuts, sizes, **attrs):
    labels = "".join(c for c in "dhw" if c in sizes)
    window = _windows_of(((1, 1, *(sizes[c] for c in labels)),), **attrs)
    for d, label in enumerate(labels):
        if cuts.get(label, 1) == 1:
            continue
        size, kernel, stride, _, before, after = window.along(d)
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
    halos = {}
    for label in (c for c in "dh" if cuts.get(c, 1) > 1):
        size, kernel, stride, *rest = _along(sizes, label, attrs)
        if kernel > stride:
            halos[label] = conv_window(size, cuts[label], kernel, stride, *rest)
    return halos


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

    If several are largest, the first in row-major order takes the gradient.

    kernel_size, strides  an int, or (height, width)
    pad_mode              "valid"; "same": ceil(size / stride) results; "pad": `pad`, or (top, bottom, left, right)
    What is padded is never the largest.
    """
    window = windows(x.shape[2:], kernel_size, strides, pad_mode=pad_mode, pad=pad)
    return kernels.max_pool_forward(x, window.kernel, window.stride, window.pads, window.out_size)


@max_pool.vjp
def _(g, out, x, **attrs):
    window = _windows_of((x.shape,), **attrs)
    return (max_pool_grad(g, out, x, kernel=window.kernel, stride=window.stride, pads=window.pads),)


@op(result_shape=2)
def max_pool_grad(g, out, x, *, kernel, stride, pads):
    """Gradient of max_pool.  g, out: (n, c, oh, ow), x: (n, c, h, w) -> (n, c, h, w); or volumes."""
    return kernels.max_pool_grad(g, out, x, kernel, stride, pads)
