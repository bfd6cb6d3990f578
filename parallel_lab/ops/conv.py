"""Convolution of pictures (N C H W), MindSpore's Conv2D, and its sharding rule.

    y = ops.Conv2D(out_channel=32, kernel_size=3, pad_mode="same").shard(((2, 2, 1, 1), (2, 2, 1, 1)))(x, weight)
    y = ops.conv2d(x, weight, bias, stride=2, pad_mode="pad", padding=1)

Strategy ((n, i, h, w), (o, i, 1, 1)): samples, input channels, height, width, output channels. Split input channels
leave partial sums, which an all_reduce adds. Split rows or columns need the rows of the neighbours that a kernel at the
border reaches ("halo", `conv_window`); after that the convolution runs without padding there.
"""

from __future__ import annotations

from typing import Any

from ..base.checks import choice, integer
from .elementwise import bias_add
from .kernels import conv as kernels
from .kernels.windows import PADDING, PAIR, Windows, output_size, padding_fault, windows
from .machine.registry import case, op
from .spellings import function


def _windows_of(shapes: Any, *, stride: Any, dilation: Any, **attrs: Any) -> Windows:
    return windows(shapes[0][2:], tuple(shapes[1][2:]), stride, dilation, **attrs)


def _check(operands, *, out_channel, kernel_size, group, **attrs):
    x, weight = (o.shape for o in operands)
    if len(x) != 4 or len(weight) != 4:
        allowed = "A picture (n, c, h, w) and a weight (out channels, in channels / group, kh, kw)"
        return f"operands of shapes {x} and {weight}", allowed
    if 0 in weight:
        return f"a weight of shape {weight}", "At least one element in every dim"
    if x[1] % group or weight[0] % group:
        given = f"group={group} with {x[1]} input and {weight[0]} output channels"
        return given, "An int, at least 1, that divides both numbers of channels"
    if weight[1] * group != x[1]:
        allowed = f"With group={group} the weight's dim 1 is {x[1]} / {group} = {x[1] // group}"
        return f"a weight of shape {weight} for a picture of shape {x}", allowed
    if out_channel not in (None, weight[0]):
        return f"out_channel={out_channel} with a weight of shape {weight}", f"{weight[0]}"
    if kernel_size is not None and PAIR.read(kernel_size) != weight[2:]:
        return f"kernel_size={kernel_size} with a weight of shape {weight}", f"{weight[2:]}"
    return padding_fault(attrs["pad_mode"], attrs["pad"]) or _windows_of((x, weight), **attrs).fault()


# ---- sharding ----


def _labels(shapes, *, group, **_):
    # with groups the weight's channels are those of one group: another label than the picture's
    return f"nihw,o{'i' if group == 1 else 'j'}kl->nohw"


def _window_refusal(
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
    """(label, (size, kernel, stride, dilation, before, after)) of height and width."""
    made = _windows_of(((1, 1, sizes["h"], sizes["w"]), (1, 1, sizes["k"], sizes["l"])), **attrs)
    return ("h", made.along(0)), ("w", made.along(1))


def _restrict(signature, cuts, sizes, **attrs):
    if attrs["group"] != 1 and (cuts["i"] > 1 or cuts["o"] > 1):
        label = "i" if cuts["i"] > 1 else "o"
        what = f"splits '{label}' {cuts[label]} ways, but the channels are convolved in {attrs['group']} groups"
        return what, "With group other than 1 the channels stay whole"
    for label, (size, *rest) in _dims(sizes, attrs):
        if cuts[label] > 1:
            refused = _window_refusal(label, cuts[label], size, *rest, attrs["pad_mode"])
            if refused is not None:
                return refused
    return None


def _windows(sizes, cuts, **attrs):
    found = {}
    for label, (size, *rest) in _dims(sizes, attrs):
        parts = cuts.get(label, 1)
        if parts > 1:
            step, origin, length = conv_window(size, parts, *rest)
            # else each slice holds all its part needs
            if (step, origin) != (size // parts, 0) or length > size // parts:
                found[label] = (step, origin, length)
    return found


def _localize(attrs, parts):
    """Attributes for one slice: no padding along a split dim, whose windows contain it; its output channels."""
    modes = tuple("valid" if parts[label] > 1 else attrs["pad_mode"] for label in "hw")
    channels = attrs["out_channel"]
    mode = modes[0] if modes[0] == modes[1] else modes
    pad = attrs["pad"] if "pad" in modes else 0
    channels = None if channels is None else channels // parts["o"]
    return {**attrs, "pad_mode": mode, "pad": pad, "out_channel": channels}


# ---- the operator ----


def _work(s):
    return 2 * s.n * s.o * s.h * s.w * vars(s).get("j", s.i) * s.k * s.l


@op(
    _labels,
    name="Conv2D",
    axes="nihwo",
    whole="jkl",
    held=lambda signature, **_: "o",  # MindSpore, conv2d_info: GenerateOpStrategies looks at N, C, H and W
    out_sizes=lambda shapes, **attrs: dict(zip("hw", _windows_of(shapes, **attrs).out_size, strict=True)),
    restrict=_restrict,
    window=_windows,
    localize=_localize,
    attrs={
        "out_channel": integer(1) | None,
        "kernel_size": PAIR | None,
        "mode": choice(1),
        **PADDING,
        **dict.fromkeys(("stride", "dilation"), PAIR),
        "group": integer(1),
    },
    check=_check,
    flops=_work,
    example=(
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
def convolution(
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
    data_format="NCHW",
):
    """Convolution.  x: (n, i, h, w), weight: (o, i / group, kh, kw) -> (n, o, oh, ow).

    pad_mode  "valid"; "same": as many results as ceil(size / stride); "pad": `pad` zeros on every side, or (top,
              bottom, left, right)
    stride, dilation  an int, or (height, width)
    group     the channels are convolved in this many groups, each with its own
    out_channel, kernel_size  where given, they must agree with the weight (MindSpore's Conv2D has them)
    """
    made = _windows_of((x.shape, weight.shape), pad_mode=pad_mode, pad=pad, stride=stride, dilation=dilation)
    return kernels.conv_forward(x, weight, made.stride, made.dilation, made.pads, group)


@function()
def conv2d(input, weight, bias=None, stride=1, pad_mode="valid", padding=0, dilation=1, groups=1):
    """Convolution.  input: (n, i, h, w), weight: (o, i / groups, kh, kw), bias: (o,) -> (n, o, oh, ow).

    padding  for pad_mode="pad": an int, (height, width) or (top, bottom, left, right)
    """
    out = convolution(input, weight, stride=stride, pad_mode=pad_mode, pad=padding, dilation=dilation, group=groups)
    return out if bias is None else bias_add(out, bias)


@convolution.vjp
def _(g, out, x, weight, *, group, needs, **attrs):
    made = _windows_of((x.shape, weight.shape), **attrs)
    settings = {"stride": made.stride, "dilation": made.dilation, "pads": made.pads, "group": group}
    return (
        conv2d_input_grad(g, weight, size=tuple(x.shape[2:]), **settings) if needs[0] else None,
        conv2d_weight_grad(g, x, kernel=tuple(weight.shape[2:]), **settings) if needs[1] else None,
    )


@op(
    lambda shapes, *, group, **_: f"noyx,o{'i' if group == 1 else 'j'}kl->nihw",
    sizes=lambda shapes, *, size, group, **_: {"i": shapes[1][1] * group, "h": size[0], "w": size[1]},
    flops=lambda s: 2 * s.n * s.o * s.y * s.x * vars(s).get("j", s.i) * s.k * s.l,
)
def conv2d_input_grad(g, weight, *, size, stride, dilation, pads, group):
    """Gradient of a convolution for its picture.  g: (n, o, oh, ow), weight: (o, i / group, kh, kw) -> (n, i, h, w)."""
    return kernels.conv_input_grad(g, weight, size, stride, dilation, pads, group)


@op(
    "noyx,nihw->ojkl",
    sizes=lambda shapes, *, kernel, group, **_: {"j": shapes[1][1] // group, "k": kernel[0], "l": kernel[1]},
    flops=lambda s: 2 * s.n * s.o * s.y * s.x * s.j * s.k * s.l,
)
def conv2d_weight_grad(g, x, *, kernel, stride, dilation, pads, group):
    """Gradient of a convolution for its weight.  g: (n, o, oh, ow), x: (n, i, h, w) -> (o, i / group, *kernel)."""
    return kernels.conv_weight_grad(g, x, kernel, stride, dilation, pads, group)
