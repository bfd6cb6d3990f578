"""Windows over a picture: the arithmetic that convolution and pooling share.

    window y of one dim reads the elements  y * stride + k * dilation - before      for k = 0 .. kernel - 1

Pad modes are MindSpore's: "valid" pads nothing; "same" pads so that the result has ceil(size / stride) elements, one
more after than before if the number is odd (TensorFlow's rule); "pad" takes the numbers given. Capitals mean the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...base.checks import Check, is_int
from ..machine.signature import Fault

Pair = tuple[int, int]
Extents = tuple[int, ...]  # one number per dim: (height, width), or (depth, height, width)
Pads = tuple[int, ...]  # two per dim: top, bottom, left, right, after head and tail of volumes

NAMES = {2: "height, width", 3: "depth, height, width"}
SIDES = {2: "top, bottom, left, right", 3: "head, tail, top, bottom, left, right"}
FORMATS = {2: "NCHW", 3: "NCDHW"}
SPACE = {2: "hw", 3: "dhw"}  # labels of a picture's dims
EXTENTS = {2: "kl", 3: "klm"}  # and of a kernel's
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


def taps(
    kernel: int, stride: int, dilation: int, before: int, size: int, count: int
) -> Iterator[tuple[int, slice, slice]]:
    """Along one dim, per kernel element: (its number, the windows that have it in the picture, its elements there)."""
    nearest = max(0, -(((count - 1) * stride - before) // dilation))  # elements outside in every window are left out
    for k in range(nearest, min(kernel, (size - 1 + before) // dilation + 1)):
        offset = k * dilation - before
        first, last = inside(offset, stride, size, count)
        if first < last:
            start = first * stride + offset
            yield k, slice(first, last), slice(start, start + (last - first - 1) * stride + 1, stride)


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution or pooling, per dim of the picture.

    ceil  a last window that begins inside, but reaches beyond the padding, counts (pooling's `ceil_mode`)
    """

    size: Extents
    kernel: Extents
    stride: Extents
    dilation: Extents
    pads: Pads
    ceil: bool = False

    def along(self, d: int) -> tuple[int, int, int, int, int, int]:
        """Along dim d: size, kernel, stride, dilation, padding before and after."""
        before, after = self.pads[2 * d : 2 * d + 2]
        return self.size[d], self.kernel[d], self.stride[d], self.dilation[d], before, after

    @property
    def out_size(self) -> Extents:
        """How many windows there are: the extents of the result.

        >>> [windows((8,), 3, 2, pad_mode="valid", ceil_mode=ceil).out_size for ceil in (False, True)]
        [(3,), (4,)]
        """
        return tuple(self._count(*self.along(d)) for d in range(len(self.size)))

    def _count(self, size: int, kernel: int, stride: int, dilation: int, before: int, after: int) -> int:
        count = output_size(size, kernel, stride, dilation, before, after)
        left_over = size + before + after - dilation * (kernel - 1) - 1 - (count - 1) * stride
        return count + (self.ceil and count > 0 and left_over > 0 and count * stride < size + before)

    def fault(self) -> Fault | None:
        """Why no window fits."""
        if min(self.out_size) >= 1:
            return None
        reach = " x ".join(str(d * (k - 1) + 1) for k, d in zip(self.kernel, self.dilation, strict=True))
        picture = f"a picture of {' x '.join(map(str, self.size))}, padded by {self.pads}"
        what = f"a kernel that covers {reach} elements for {picture}"
        return what, "A kernel at most as large as the padded picture", "Try pad_mode='same'"


def windows(
    size: Sequence[int],
    kernel: int | Extents,
    stride: int | Extents,
    dilation: int | Extents = 1,
    *,
    pad_mode: str | tuple[str, ...],
    pad: int | Pads = 0,
    ceil_mode: bool | None = False,
    **_: Any,
) -> Windows:
    """The windows that attributes of these names describe, which `extents` and `padding` have checked.

    pad_mode  one for all dims, or one each (a slice along one of them pads only the others)

    >>> windows((8, 7), 3, 2, pad_mode="same").pads
    (0, 1, 1, 1)
    """
    size, dims = tuple(size), len(size)
    kernel, stride, dilation = (read_extents(value, dims) for value in (kernel, stride, dilation))
    given, pads = _read_pads(pad, dims), []
    for d, mode in enumerate((pad_mode,) * dims if isinstance(pad_mode, str) else pad_mode):
        total = max(0, (-(-size[d] // stride[d]) - 1) * stride[d] + dilation[d] * (kernel[d] - 1) + 1 - size[d])
        same = (total // 2, total - total // 2)
        pads += {"valid": (0, 0), "same": same, "pad": given[2 * d : 2 * d + 2]}[mode.lower()]
    return Windows(size, kernel, stride, dilation, tuple(pads), bool(ceil_mode))


def read_extents(value: Any, dims: int) -> Extents:
    """An int for all dims, or one each; MindSpore also writes (1, 1, height, width). Raises TypeError."""
    each = (value,) * dims if is_int(value, 1) else value
    if isinstance(each, tuple) and len(each) == dims + 2 and each[:2] == (1, 1):
        each = each[2:]
    if not (isinstance(each, tuple) and len(each) == dims and all(is_int(v, 1) for v in each)):
        raise TypeError
    return each


def _read_pads(value: Any, dims: int, least: float = -math.inf) -> Pads:
    if is_int(value, 0):
        return (value,) * (2 * dims)
    if not (isinstance(value, tuple) and len(value) in (dims, 2 * dims) and all(is_int(v, least) for v in value)):
        raise TypeError
    return value if len(value) == 2 * dims else tuple(v for v in value for _ in range(2))


def _read_mode(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    if value.lower() not in PAD_MODES:
        raise ValueError
    return value.lower()


def _read_format(value: Any, dims: int) -> str:
    formats = FORMATS[dims]
    if value != formats:
        perm = (0, dims + 1, *range(1, dims + 1))
        raise ValueError(f"Move the channels first: ops.transpose(x, {perm})" if value == f"N{formats[2:]}C" else "")
    return value


PAD_MODE = Check(f"One of {', '.join(map(repr, PAD_MODES))}", _read_mode)


def extents(dims: int) -> Check:
    """The check of an attribute with one extent per dim."""
    return Check(f"An int, or a tuple ({NAMES[dims]}) of ints, at least 1", lambda value: read_extents(value, dims))


def padding(dims: int, pad: str = "pad") -> dict[str, Check]:
    """The checks of the attributes that pad.  pad: what the amounts are called"""
    allowed = f"An int, ({NAMES[dims]}) or ({SIDES[dims]}), not negative"
    return {
        "pad_mode": PAD_MODE,
        pad: Check(allowed, lambda value: _read_pads(value, dims, 0)),
        "data_format": Check(repr(FORMATS[dims]), lambda value: _read_format(value, dims)),
    }


def padding_fault(pad_mode: str, pad: Any, name: str = "pad") -> Fault | None:
    """Padding that its mode does not take."""
    if pad_mode.lower() == "pad" or not any((pad,) if isinstance(pad, int) else pad):
        return None
    what = f"{name}={pad} with pad_mode={pad_mode!r}"
    return what, f"Only pad_mode='pad' takes {name}", f"Give pad_mode='pad', or {name}=0"
