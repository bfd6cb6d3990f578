"""Windows over a picture: the arithmetic that convolution and pooling share.

    window y of one dim reads the elements  y * stride + k * dilation - before      for k = 0 .. kernel - 1

Pad modes are MindSpore's: "valid" pads nothing; "same" pads so that the result has ceil(size / stride) elements, one
more after than before if the number is odd (TensorFlow's rule); "pad" takes the numbers given.
"""

from __future__ import annotations

from typing import Any

from ...base.errors import ShapeError, shorten

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]  # top, bottom, left, right

PAD_MODES = ("valid", "same", "pad")


def output_size(size: int, kernel: int, stride: int, dilation: int, before: int, after: int) -> int:
    """How many windows one dim has; 0 if the kernel does not fit.

    >>> output_size(8, 3, 2, 1, 0, 1)
    4
    """
    return max(0, (size + before + after - dilation * (kernel - 1) - 1) // stride + 1)


def inside(offset: int, step: int, size: int, count: int) -> Pair:
    """The range of y in 0..count for which y * step + offset lies in 0..size.

    >>> inside(-1, 2, 8, 5)     # y = 0 would read element -1
    (1, 5)
    """
    first = min(count, max(0, -(offset // step)))  # the smallest y with y * step + offset >= 0
    return first, max(first, min(count, (size - 1 - offset) // step + 1))


# ---- attributes ----


def _is_int(value: Any, least: int) -> bool:
    return not isinstance(value, bool) and isinstance(value, int) and value >= least


def pair(where: str, name: str, value: Any, least: int = 1) -> Pair:
    """An int, or one int each for height and width, as (height, width). Raises ShapeError."""
    both = (value, value) if _is_int(value, least) else value
    if isinstance(both, tuple) and len(both) == 4 and both[:2] == (1, 1):  # MindSpore's (1, 1, height, width)
        both = both[2:]
    if not (isinstance(both, tuple) and len(both) == 2 and all(_is_int(v, least) for v in both)):
        allowed = f"An int, or a tuple (height, width) of ints, at least {least}"
        raise ShapeError(f"{name}={shorten(value)}", where=where, allowed=allowed)
    return both


def four_pads(where: str, name: str, value: Any) -> Pads:
    """An int, (height, width) or (top, bottom, left, right) as four numbers. Raises ShapeError."""
    if _is_int(value, 0):
        return (value, value, value, value)
    if isinstance(value, tuple) and all(_is_int(v, 0) for v in value) and len(value) in (2, 4):
        return value if len(value) == 4 else (value[0], value[0], value[1], value[1])
    allowed = "An int, (height, width) or (top, bottom, left, right), not negative"
    raise ShapeError(f"{name}={shorten(value)}", where=where, allowed=allowed)


def pads_of(
    where: str,
    pad_mode: str | tuple[str, str],
    pad: Any,
    size: Pair,
    kernel: Pair,
    stride: Pair,
    dilation: Pair = (1, 1),
    name: str = "pad",
) -> Pads:
    """How many elements are padded: (top, bottom, left, right). Raises ShapeError.

    pad_mode  one for both dims, or one each for height and width (a slice along one of them pads only the other);
              `check_layout` has looked at it

    >>> pads_of("Conv2D", "same", 0, (8, 7), (3, 3), (2, 2))
    (0, 1, 1, 1)
    """
    given = four_pads(where, name, pad)
    modes = (pad_mode, pad_mode) if isinstance(pad_mode, str) else pad_mode
    if any(given) and "pad" not in modes:
        what = f"{name}={shorten(pad)} with pad_mode={pad_mode!r}"
        raise ShapeError(
            what, where=where, allowed=f"Only pad_mode='pad' takes {name}", hint=f"Give pad_mode='pad', or {name}=0"
        )
    pads: list[int] = []
    for d, mode in enumerate(modes):
        total = max(0, (-(-size[d] // stride[d]) - 1) * stride[d] + dilation[d] * (kernel[d] - 1) + 1 - size[d])
        pads += {"valid": (0, 0), "same": (total // 2, total - total // 2), "pad": given[2 * d : 2 * d + 2]}[mode]
    return tuple(pads)


def check_layout(where: str, pad_mode: Any, data_format: Any) -> None:
    """ShapeError for a pad_mode that is not one of the three, or channels that are not dim 1."""
    if pad_mode not in PAD_MODES:
        raise ShapeError(
            f"pad_mode={shorten(pad_mode)}", where=where, allowed=f"One of {', '.join(map(repr, PAD_MODES))}"
        )
    if data_format != "NCHW":
        hint = "Move the channels first: ops.transpose(x, (0, 3, 1, 2))" if data_format == "NHWC" else ""
        raise ShapeError(f"data_format={shorten(data_format)}", where=where, allowed="'NCHW'", hint=hint)


def check_size(where: str, size: Pair, out_size: Pair, kernel: Pair, pads: Pads) -> None:
    """ShapeError if no window fits."""
    if min(out_size) < 1:
        what = (
            f"a kernel that covers {kernel[0]} x {kernel[1]} elements for a picture of {size[0]} x {size[1]}, "
            f"padded by {pads}"
        )
        raise ShapeError(
            what, where=where, allowed="A kernel at most as large as the padded picture", hint="Try pad_mode='same'"
        )
