"""Windows over a picture: the arithmetic that convolution and pooling share.

    window y of one dim reads the elements  y * stride + k * dilation - before      for k = 0 .. kernel - 1

Pad modes are MindSpore's: "valid" pads nothing; "same" pads so that the result has ceil(size / stride) elements, one
more after than before if the number is odd (TensorFlow's rule); "pad" takes the numbers given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...base.checks import Check, choice, is_int
from ..machine.signature import Fault

Pair = tuple[int, int]
Pads = tuple[int, int, int, int]  # top, bottom, left, right


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


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution or pooling: (height, width) each; pads (top, bottom, left, right)."""

    size: Pair
    kernel: Pair
    stride: Pair
    dilation: Pair
    pads: Pads

    def along(self, d: int) -> tuple[int, int, int, int, int, int]:
        """Along height (0) or width (1): size, kernel, stride, dilation, padding before and after."""
        before, after = self.pads[2 * d : 2 * d + 2]
        return self.size[d], self.kernel[d], self.stride[d], self.dilation[d], before, after

    @property
    def out_size(self) -> Pair:
        """How many windows there are: height and width of the result."""
        return tuple(output_size(*self.along(d)) for d in (0, 1))

    def fault(self) -> Fault | None:
        """Why no window fits."""
        if min(self.out_size) >= 1:
            return None
        rows, columns = (d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))
        picture = f"a picture of {self.size[0]} x {self.size[1]}, padded by {self.pads}"
        what = f"a kernel that covers {rows} x {columns} elements for {picture}"
        return what, "A kernel at most as large as the padded picture", "Try pad_mode='same'"


def windows(
    size: Sequence[int],
    kernel: int | Pair,
    stride: int | Pair,
    dilation: int | Pair = 1,
    *,
    pad_mode: str | tuple[str, str],
    pad: int | tuple[int, ...] = 0,
    **_: Any,
) -> Windows:
    """The windows that attributes of these names describe, which `PADDING` and `PAIR` have checked.

    pad_mode  one for both dims, or one each for height and width (a slice along one of them pads only the other)

    >>> windows((8, 7), 3, 2, pad_mode="same").pads
    (0, 1, 1, 1)
    """
    size, (kernel, stride, dilation) = tuple(size), map(_read_pair, (kernel, stride, dilation))
    given, pads = _read_pads(pad), []
    for d, mode in enumerate((pad_mode, pad_mode) if isinstance(pad_mode, str) else pad_mode):
        total = max(0, (-(-size[d] // stride[d]) - 1) * stride[d] + dilation[d] * (kernel[d] - 1) + 1 - size[d])
        pads += {"valid": (0, 0), "same": (total // 2, total - total // 2), "pad": given[2 * d : 2 * d + 2]}[mode]
    return Windows(size, kernel, stride, dilation, tuple(pads))


def _read_pair(value: Any) -> Pair:
    both = (value, value) if is_int(value, 1) else value
    if isinstance(both, tuple) and len(both) == 4 and both[:2] == (1, 1):  # MindSpore's (1, 1, height, width)
        both = both[2:]
    if not (isinstance(both, tuple) and len(both) == 2 and all(is_int(v, 1) for v in both)):
        raise TypeError
    return both


def _read_pads(value: Any) -> Pads:
    if is_int(value, 0):
        return (value, value, value, value)
    if not (isinstance(value, tuple) and len(value) in (2, 4) and all(is_int(v, 0) for v in value)):
        raise TypeError
    return value if len(value) == 4 else (value[0], value[0], value[1], value[1])


def _read_format(value: Any) -> str:
    if value != "NCHW":
        raise ValueError("Move the channels first: ops.transpose(x, (0, 3, 1, 2))" if value == "NHWC" else "")
    return value


PAIR = Check("An int, or a tuple (height, width) of ints, at least 1", _read_pair)
PADDING = {
    "pad_mode": choice("valid", "same", "pad"),
    "pad": Check("An int, (height, width) or (top, bottom, left, right), not negative", _read_pads),
    "data_format": Check("'NCHW'", _read_format),
}


def padding_fault(pad_mode: str, pad: Any) -> Fault | None:
    """Padding that its mode does not take."""
    if pad_mode == "pad" or not any(_read_pads(pad)):
        return None
    return f"pad={pad} with pad_mode={pad_mode!r}", "Only pad_mode='pad' takes pad", "Give pad_mode='pad', or pad=0"
