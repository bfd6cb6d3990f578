"""Convolution of volumes (N C D H W), MindSpore's Conv3D, and a convolution's gradient for its picture as an operator,
Conv2DTranspose, with its sharding rule.

    transposed = ops.Conv2DTranspose(8, 3, pad_mode="same", stride=2).shard(((2, 2, 2, 1), (2, 2, 1, 1)))
    y = transposed(x, weight, (4, 6, 16, 16))     # x: (4, 8, 8, 8), weight: (8, 6, 3, 3)

Element q of x adds to the elements q * stride + k * dilation - before of the result, k in the kernel. Strategy ((n, o,
h, w), (o, i, 1, 1)): samples, channels of x, height, width, channels of the result. A split o leaves partial sums.
Where height or width are split, a part of the result needs the elements of x around its own (`transposed_window`):
halos, as a convolution's, but on x's coarser grid.
"""

from __future__ import annotations

from ...base.checks import Check, is_int
from ...ops.conv import (
    conv_attributes,
    conv_weight_grad,
    conv_work,
    declared_convolution,
    dims_fault,
    grad_work,
    inner_label,
    labels_of,
    sized,
    weight_fault,
)
from ...ops.kernels import conv as kernels
from ...ops.kernels.windows import padding_fault, windows
from ...ops.machine.registry import case, op

# the width is never split (MindSpore, conv3d_info)
convolution_3d = declared_convolution(
    "convolution_3d",
    "Conv3D",
    3,
    "nidho",
    (
        case((2, 2, 4, 4, 3), (2, 2, 3, 2, 2), pad_mode="same"),
        case((2, 4, 4, 2, 3), (4, 2, 2, 1, 2), stride=(2, 1, 1), group=2),
        case((2, 2, 3, 8, 2), (4, 2, 2, 3, 1), pad_mode="pad", pad=(0, 1, 1, 0, 1, 0), stride=(1, 2, 1)),
    ),
)


# ---- transposed ----


def _back(input_size, *, kernel_size, stride, dilation, pad_mode, pad, pad_list, **_):
    """The windows of the convolution whose transpose this is: from the result back to x."""
    pad = pad if pad_list is None else pad_list
    return windows(input_size[2:], kernel_size, stride, dilation, pad_mode=pad_mode, pad=pad)


def _check_transposed(operands, *, input_size, out_channel, kernel_size, group, **attrs):
    x, weight = (o.shape for o in operands)
    if fault := dims_fault(x, weight, 2):
        return fault
    if input_size[0] != x[0]:
        return f"input_size={input_size} for x of shape {x}", f"As many samples as x: {x[0]}"
    if weight[0] != x[1]:
        return f"a weight of shape {weight} for x of shape {x}", f"The weight's dim 0 is the channels of x: {x[1]}"
    given = f"input_size={input_size}"
    fault = weight_fault(weight, given, input_size[1], x[1], group, None, kernel_size, 2)
    if fault := fault or padding_fault(attrs["pad_mode"], attrs["pad"]):
        return fault
    window = _back(input_size, kernel_size=kernel_size, **attrs)
    if any(count < size for count, size in zip(window.out_size, x[2:], strict=True)):
        what = f"x of shape {x} with input_size={input_size}"
        return what, f"A result of this size is read by {window.out_size[0]} x {window.out_size[1]} windows only"
    return None


def _read_input_size(value):
    if not (isinstance(value, tuple) and len(value) == 4 and all(is_int(v, 1) for v in value)):
        raise TypeError
    return value


def transposed_window(
    size: int, parts: int, kernel: int, stride: int, dilation: int, before: int
) -> tuple[int, int, int]:
    """What each part of x must hold, where the result of `size` elements is split `parts` ways: (step, origin, length).

    Part i of the result takes what the elements [step * i + origin, step * i + origin + length) of x give it. A part of
    the result is a multiple of the stride.

    >>> transposed_window(8, 2, 3, 2, 1, 0)   # kernel 3, stride 2: result 4 takes from x 1 and 2, result 3 from x 1
    (2, -1, 3)
    """
    share, reach = size // parts, dilation * (kernel - 1) + 1
    origin = -((reach - 1 - before) // stride)
    return share // stride, origin, (share - 1 + before) // stride - origin + 1


def _transposed_dims(input_size, parts, attrs):
    """(number, label, part, window, padding before) of each split dim."""
    geometry = _back(input_size, **attrs)
    for d, label in enumerate("hw"):
        size, kernel, stride, dilation, before, _ = geometry.along(d)
        if parts.get(label, 1) > 1:
            window = transposed_window(size, parts[label], kernel, stride, dilation, before)
            yield d, label, size // parts[label], stride, window, before


def _restrict_transposed(signature, cuts, sizes, *, input_size, **attrs):
    if attrs["group"] != 1 and (cuts["i"] > 1 or cuts["o"] > 1):
        what = f"splits channels, which are convolved in {attrs['group']} groups"
        return what, "With group other than 1 the channels stay whole"
    for _, label, share, stride, *_ in _transposed_dims(input_size, cuts, attrs):
        cut = f"splits '{label}' {cuts[label]} ways"
        if attrs["pad_mode"].lower() == "valid":
            return f"{cut} with pad_mode='valid'", "'same' or 'pad' (MindSpore, conv2d_info)"
        if share % stride:
            what = f"{cut}: slices of the result of {share} elements with stride {stride}"
            return what, "A slice of the result must be a multiple of the stride"
    return None


def _transposed_windows(sizes, cuts, *, input_size, **attrs):
    halos = {}
    for _, label, _, _, window, _ in _transposed_dims(input_size, cuts, attrs):
        part = sizes[label] // cuts[label]
        if window[:2] != (part, 0) or window[2] > part:
            halos[label] = window
    return halos


def _localize_transposed(attrs, parts):
    """Attributes for one slice: its part of the result, and where it lies relative to the slice's window of x."""
    size = attrs["input_size"]
    n, c, h, w = (n // parts.get(label, 1) for n, label in zip(size, "nihw", strict=True))
    local = {"input_size": (n, c, h, w)}
    others = {k: v for k, v in attrs.items() if k != "input_size"}
    pads = list(_back(size, **others).pads)
    for d, _, _, stride, (_, origin, _), before in _transposed_dims(size, parts, others):
        pads[2 * d], local["pad_mode"] = before - origin * stride, "pad"
    return {**attrs, **local, **({"pad": tuple(pads), "pad_list": None} if "pad_mode" in local else {})}


@op(
    lambda shapes, *, group, **_: f"nohw,o{inner_label(group)}kl->nihw",
    name="Conv2DTranspose Conv2DBackpropInput",
    static=("input_size",),
    axes="nohwi",
    whole="jkl",
    held=lambda signature, **_: "i",
    sizes=lambda shapes, *, group, **_: {"i": shapes[1][1] * group},
    out_sizes=lambda shapes, *, input_size, **_: dict(zip("hw", input_size[2:], strict=True)),
    restrict=_restrict_transposed,
    window=_transposed_windows,
    localize=_localize_transposed,
    attrs={
        "input_size": Check("The shape of the result, (n, c, h, w): 4 ints, at least 1", _read_input_size),
        **conv_attributes(2),
        "pad_list": conv_attributes(2)["pad"] | None,
    },
    check=_check_transposed,
    flops=conv_work,
    example=(
        case((2, 4, 4, 3), (4, 2, 3, 2), input_size=(2, 2, 8, 6), kernel_size=(3, 2), pad_mode="same", stride=2),
        case((4, 2, 8, 4), (2, 4, 3, 3), input_size=(4, 4, 8, 4), kernel_size=3, pad_mode="pad", pad=1, out_channel=2),
        case(
            (2, 2, 8, 2),
            (2, 2, 3, 2),
            input_size=(2, 2, 16, 4),
            kernel_size=(3, 2),
            pad_mode="pad",
            stride=2,
            pad=(0, 1, 0, 0),
        ),
        case(
            (2, 4, 3, 2), (4, 1, 2, 2), input_size=(2, 2, 7, 3), kernel_size=2, stride=(2, 1), dilation=(1, 1), group=2
        ),
        case((2, 2, 4, 2), (2, 2, 5, 1), input_size=(2, 2, 8, 2), kernel_size=(5, 1), pad_mode="same", stride=(2, 1)),
        case((2, 2, 8, 2), (2, 2, 1, 1), input_size=(2, 2, 16, 2), kernel_size=1, pad_mode="same", stride=(2, 1)),
    ),
)
def transposed_convolution(
    x,
    weight,
    input_size,
    *,
    out_channel=None,
    kernel_size,
    pad_mode="valid",
    pad=0,
    pad_list=None,
    mode=1,
    stride=1,
    dilation=1,
    group=1,
    data_format="NCHW",
):
    """A convolution's gradient for its picture, as an operator.  x: (n, o, h, w), weight: (o, i / group, kh, kw) -> (n,
    i, oh, ow), the shape `input_size`.

    pad_mode, pad, stride, dilation, group  those of the convolution that makes x's shape of the result's
    pad_list     (top, bottom, left, right), goes before pad
    out_channel  of no effect: the channels of x by MindSpore's Cells, of the result by its documents, and not checked

    Strategy ((n, o, h, w), (o, i, 1, 1)). A split o leaves partial sums; split rows or columns exchange borders, with
    pad_mode "same" or "pad" and slices of the result that are multiples of the stride.
    """
    window = _back(
        input_size,
        kernel_size=kernel_size,
        stride=stride,
        dilation=dilation,
        pad_mode=pad_mode,
        pad=pad,
        pad_list=pad_list,
    )
    return kernels.conv_input_grad(x, weight, window.size, window.stride, window.dilation, window.pads, group)


@op(
    lambda shapes, *, group, **_: "{2},{1}->{0}".format(*labels_of(shapes, inner_label(group))),
    sizes=lambda shapes, *, size, **_: sized("zyx", size),
    flops=grad_work,
)
def conv_of_size(x, weight, *, size, stride, dilation, pads, group):
    """The first windows of a convolution, `size` of them.  x: (n, i, ...), weight: (o, ...) -> (n, o, *size)."""
    pads = list(pads)
    for d, count in enumerate(size):
        reach = dilation[d] * (weight.shape[2 + d] - 1) + 1
        pads[2 * d + 1] = (count - 1) * stride[d] + reach - x.shape[2 + d] - pads[2 * d]
    return kernels.conv_forward(x, weight, stride, dilation, tuple(pads), group)


@transposed_convolution.vjp
def _(g, out, x, weight, *, input_size, group, needs, **attrs):
    window = _back(input_size, **attrs)
    settings = {"stride": window.stride, "dilation": window.dilation, "pads": window.pads, "group": group}
    return (
        conv_of_size(g, weight, size=tuple(x.shape[2:]), **settings) if needs[0] else None,
        conv_weight_grad(x, g, kernel=tuple(weight.shape[2:]), **settings) if needs[1] else None,
    )
