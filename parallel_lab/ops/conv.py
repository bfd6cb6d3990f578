"""Convolution of pictures (N C H W), MindSpore's Conv2D, and its sharding rule, which holds for volumes, too.

    y = ops.Conv2D(out_channel=32, kernel_size=3, pad_mode="same").shard(((2, 2, 1, 1), (2, 2, 1, 1)))(x, weight)

Strategy ((n, i, h, w), (o, i, 1, 1)): samples, input channels, height, width, output channels. Split input channels
leave partial sums, which an all_reduce adds. Split rows or columns need the rows of the neighbours that a kernel at the
border reaches ("halo", `conv_window`); after that the convolution runs without padding there.
"""

from __future__ import annotations

import math
from typing import Any

from ..base.checks import choice, integer
from .kernels import conv as kernels
from .kernels.windows import (
    EXTENTS,
    FORMATS,
    NAMES,
    SIDES,
    SPACE,
    Windows,
    extents,
    output_size,
    padding,
    padding_fault,
    read_extents,
    windows,
)
from .machine.registry import case, op


def _windows_of(shapes: Any, *, stride: Any, dilation: Any, **attrs: Any) -> Windows:
    return windows(shapes[0][2:], tuple(shapes[1][2:]), stride, dilation, **attrs)


def weight_fault(weight, given, into, out, group, out_channel, kernel_size, dims):
    """What does not fit a weight that goes with this many channels of `into` and `out`: (out, into / group, ...)."""
    if 0 in weight:
        return f"a weight of shape {weight}", "At least one element in every dim"
    if into % group or out % group:
        what = f"group={group} with {into} input and {out} output channels"
        return what, "An int, at least 1, that divides both numbers of channels"
    if weight[1] * group != into:
        allowed = f"With group={group} the weight's dim 1 is {into} / {group} = {into // group}"
        return f"a weight of shape {weight} for {given}", allowed
    if out_channel not in (None, out):
        return f"out_channel={out_channel} with a weight of shape {weight}", f"{out}"
    if kernel_size is not None and read_extents(kernel_size, dims) != weight[2:]:
        return f"kernel_size={kernel_size} with a weight of shape {weight}", f"{weight[2:]}"
    return None


_PICTURES = {2: "A picture (n, c, h, w)", 3: "A volume (n, c, d, h, w)"}
_KERNELS = {2: "kh, kw", 3: "kd, kh, kw"}


def dims_fault(x, weight, dims):
    """The fault if x and weight are not a picture and a weight of so many dims, else None."""
    if (len(x), len(weight)) == (2 + dims, 2 + dims):
        return None
    allowed = f"{_PICTURES[dims]} and a weight (out channels, in channels / group, {_KERNELS[dims]})"
    return f"operands of shapes {x} and {weight}", allowed


def _check(operands, dims, *, out_channel, kernel_size, group, **attrs):
    x, weight = (o.shape for o in operands)
    if fault := dims_fault(x, weight, dims):
        return fault
    given = f"a picture of shape {x}"
    fault = weight_fault(weight, given, x[1], weight[0], group, out_channel, kernel_size, dims)
    if fault := fault or padding_fault(attrs["pad_mode"], attrs["pad"]):
        return fault
    return _windows_of((x, weight), **attrs).fault()


# ---- sharding ----


def window_refusal(
    label: str, parts: int, size: int, kernel: int, stride: int, dilation: int, before: int, after: int, mode: str
):
    """Why a picture of `size` rows may not be split `parts` ways (what, allowed), or None. MindSpore, conv2d_info."""
    reach, slice_size = dilation * (kernel - 1) + 1, size // parts
    count = output_size(size, kernel, stride, dilation, before, after)
    cut = f"splits '{label}' ({size} elements) {parts} ways"
    if count % parts:
        return f"{cut}, but the result has {count} elements there", "The result must be split into equal slices too"
    if mode == "valid" and reach > stride:
        what = f"{cut} with pad_mode='valid', kernel {reach} and stride {stride}: windows cross the slice borders"
        allowed = "With 'valid' padding a kernel larger than the stride keeps its picture whole"
        return what, f"{allowed}; 'same' and 'pad' exchange rows"
    if reach < stride and before + after:
        what = f"{cut} with kernel {reach}, stride {stride} and padding {before}, {after}"
        return what, "A kernel smaller than the stride must have no padding"
    if reach <= stride and not before + after:
        what = f"{cut}: slices of {slice_size} elements with stride {stride}"
        return (what, "A slice must be a multiple of the stride") if slice_size % stride else None
    if (size + before + after - reach) % stride:
        last = f"the last window (kernel {reach}, stride {stride}) leaves some over"
        what = f"{cut}, but of {size} + {before} + {after} elements {last}"
        return what, "The padded size minus the kernel must be a multiple of the stride"
    return None  # whether the neighbours hold what a window needs is checked where the exchange is planned


def conv_window(
    size: int, parts: int, kernel: int, stride: int, dilation: int, before: int, after: int
) -> tuple[int, int, int]:
    """What each part of a picture split `parts` ways along one dim must hold: (step, origin, length).

    Part i computes its share of the result from the elements [step * i + origin, step * i + origin + length), zeros
    outside the picture, without padding.

    >>> conv_window(8, 2, 3, 1, 1, 1, 1)   # 3 rows of kernel, padded by 1: elements -1..4 and 3..8
    (4, -1, 6)
    """
    share = output_size(size, kernel, stride, dilation, before, after) // parts
    return share * stride, -before, (share - 1) * stride + dilation * (kernel - 1) + 1


def _dims(sizes: dict[str, int], attrs: dict[str, Any]):
    """(label, (size, kernel, stride, dilation, before, after)) of every dim of the picture that may be split."""
    space, kernel = ("hw", "kl") if "d" not in sizes else ("dhw", "klm")
    shapes = (1, 1, *(sizes[c] for c in space)), (1, 1, *(sizes[c] for c in kernel))
    window = _windows_of(shapes, **attrs)
    return [(label, window.along(d)) for d, label in enumerate(space[:2])]


def _restrict(signature, cuts, sizes, **attrs):
    if attrs["group"] != 1 and (cuts["i"] > 1 or cuts["o"] > 1):
        label = "i" if cuts["i"] > 1 else "o"
        what = f"splits '{label}' {cuts[label]} ways, but the channels are convolved in {attrs['group']} groups"
        return what, "With group other than 1 the channels stay whole"
    for label, (size, *rest) in _dims(sizes, attrs):
        if cuts[label] > 1:
            refused = window_refusal(label, cuts[label], size, *rest, attrs["pad_mode"].lower())
            if refused is not None:
                return refused
    return None


def _windows(sizes, cuts, **attrs):
    halos = {}
    for label, (size, *rest) in _dims(sizes, attrs):
        parts = cuts.get(label, 1)
        if parts > 1:
            step, origin, length = conv_window(size, parts, *rest)
            # else each slice holds all its part needs
            if (step, origin) != (size // parts, 0) or length > size // parts:
                halos[label] = (step, origin, length)
    return halos


def _localize(attrs, parts):
    """Attributes for one slice: no padding along a split dim, whose windows contain it; its output channels."""
    space = "dhw" if "d" in parts else "hw"
    modes = tuple("valid" if parts.get(c, 1) > 1 else attrs["pad_mode"].lower() for c in space)
    channels = attrs["out_channel"]
    mode = modes[0] if len(set(modes)) == 1 else modes
    pad = attrs["pad"] if "pad" in modes else 0
    channels = None if channels is None else channels // parts["o"]
    return {**attrs, "pad_mode": mode, "pad": pad, "out_channel": channels}


# ---- the operator ----


def conv_work(s):
    """Flops of a convolution: two per product."""
    return 2 * s.n * s.o * math.prod(getattr(s, c, 1) for c in "dhwklm") * vars(s).get("j", s.i)


def conv_attributes(dims: int) -> dict[str, Any]:
    """Checks of the attributes of a convolution."""
    windowed = dict.fromkeys(("stride", "dilation"), extents(dims))
    sizes = {"out_channel": integer(1) | None, "kernel_size": extents(dims) | None, "mode": choice(1)}
    return {**sizes, **padding(dims), **windowed, "group": integer(1)}


def declared_convolution(name: str, class_name: str, dims: int, axes: str, example: tuple) -> Any:
    """Declare the convolution of pictures of so many dims."""
    space, taps = SPACE[dims], EXTENTS[dims]

    def fn(
        x,
        weight,
        *,
        out_channel=None,
        kernel_size=None,
        mode=1,
        pad_mode="valid",
        pad=0,
        stride=1,
        dilation=1,
        group=1,
        data_format=FORMATS[dims],
    ):
        window = _windows_of((x.shape, weight.shape), pad_mode=pad_mode, pad=pad, stride=stride, dilation=dilation)
        return kernels.conv_forward(x, weight, window.stride, window.dilation, window.pads, group)

    def labels(shapes, *, group, **_):
        # with groups the weight's channels are those of one group: another label than the picture's
        return f"ni{space},o{'i' if group == 1 else 'j'}{taps}->no{space}"

    fn.__name__ = fn.__qualname__ = name
    fn.__doc__ = f"""Convolution.  x: (n, i, {", ".join(space)}), weight: (o, i / group, {taps}) -> (n, o, ...).

    pad_mode  "valid"; "same": as many results as ceil(size / stride); "pad": `pad` zeros on every side, or
              ({SIDES[dims]})
    stride, dilation  an int, or ({NAMES[dims]})
    group     the channels are convolved in this many groups, each with its own
    out_channel, kernel_size  where given, they must agree with the weight (MindSpore's {class_name} has them)
    """
    operator = op(
        labels,
        name=class_name,
        axes=axes,
        whole=f"j{taps}{'' if dims == 2 else 'w'}",
        held=lambda signature, **_: "o",  # MindSpore, conv2d_info: GenerateOpStrategies looks at N, C, H and W
        out_sizes=lambda shapes, **attrs: dict(zip(space, _windows_of(shapes, **attrs).out_size, strict=True)),
        restrict=_restrict,
        window=_windows,
        localize=_localize,
        attrs=conv_attributes(dims),
        check=lambda operands, **attrs: _check(operands, dims, **attrs),
        flops=conv_work,
        example=example,
    )(fn)

    @operator.vjp
    def _(g, out, x, weight, *, group, needs, **attrs):
        window = _windows_of((x.shape, weight.shape), **attrs)
        settings = {"stride": window.stride, "dilation": window.dilation, "pads": window.pads, "group": group}
        return (
            conv_input_grad(g, weight, size=tuple(x.shape[2:]), **settings) if needs[0] else None,
            conv_weight_grad(g, x, kernel=tuple(weight.shape[2:]), **settings) if needs[1] else None,
        )

    return operator


convolution = declared_convolution(
    "convolution",
    "Conv2D",
    2,
    "nihwo",
    (
        case((4, 2, 5, 6), (4, 2, 3, 2)),
        case((2, 2, 8, 4), (2, 2, 3, 3), pad_mode="same"),
        case((2, 2, 8, 4), (4, 2, 3, 2), pad_mode="same", stride=2),
        case((2, 2, 8, 4), (2, 2, 2, 2), stride=2, out_channel=2, kernel_size=2),
        case((2, 4, 4, 8), (4, 4, 3, 3), pad_mode="pad", pad=(1, 0, 2, 2), stride=(2, 1), dilation=(1, 2)),
        case((2, 2, 4, 8), (4, 2, 1, 1), stride=2),
        case((4, 4, 4, 6), (6, 2, 2, 3), pad_mode="same", group=2, dilation=2),
        case((4, 4, 5, 8), (4, 1, 3, 3), pad_mode="pad", pad=1, group=4, stride=2),
    ),
)

# ---- what gradients need, for any number of dims ----


def labels_of(shapes, inner):
    """Labels of a convolution's result, its weight with `inner` channels of a group, its picture."""
    dims = len(shapes[0]) - 2
    return f"no{'zyx'[3 - dims :]}", f"o{inner}{EXTENTS[dims]}", f"ni{SPACE[dims]}"


def sized(labels, values):
    """{label: size} of the last labels."""
    return dict(zip(labels[len(labels) - len(values) :], values, strict=True))


def inner_label(group):
    """Label of the weight's dim 1: the picture's channels, or, with groups, those of one."""
    return "i" if group == 1 else "j"


def grad_work(s):
    """Flops of a gradient: two per product."""
    return 2 * s.n * s.o * math.prod(getattr(s, c, 1) for c in "zyxklm") * vars(s).get("j", s.i)


@op(
    lambda shapes, *, group, **_: "{},{}->{}".format(*labels_of(shapes, inner_label(group))),
    sizes=lambda shapes, *, size, group, **_: {"i": shapes[1][1] * group, **sized("dhw", size)},
    flops=grad_work,
    shown="Conv2DBackpropInput",
)
def conv_input_grad(g, weight, *, size, stride, dilation, pads, group):
    """Gradient of a convolution for its picture.  g: (n, o, ...), weight: (o, i / group, ...) -> (n, i, *size)."""
    return kernels.conv_input_grad(g, weight, size, stride, dilation, pads, group)


@op(
    lambda shapes, **_: "{0},{2}->{1}".format(*labels_of(shapes, "j")),
    sizes=lambda shapes, *, kernel, group, **_: {
        "j": shapes[1][1] // group,
        **dict(zip(EXTENTS[len(kernel)], kernel, strict=True)),
    },
    flops=grad_work,
    shown="Conv2DBackpropFilter",
)
def conv_weight_grad(g, x, *, kernel, stride, dilation, pads, group):
    """Gradient of a convolution for its weight.  g: (n, o, ...), x: (n, i, ...) -> (o, i / group, *kernel)."""
    return kernels.conv_weight_grad(g, x, kernel, stride, dilation, pads, group)
