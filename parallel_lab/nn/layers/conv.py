"""Layers for pictures, N C H W: convolution, and the largest element of each window.

net = nn.SequentialCell(nn.Conv2d(3, 32, 3, pad_mode="same"), nn.ReLU(), nn.MaxPool2d(2, 2))
net[0].conv2d.shard(((4, 1, 1, 1), (2, 1, 1, 1)))      # samples and output channels
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.checks import Check, checked, choice, flag, integer, integers, kept
from ...base.errors import ArgumentError
from ...ops.conv import convolution
from ...ops.kernels.windows import PAD_MODE
from ...ops.machine.primitive import Primitive
from ...ops.pool import max_pool
from ..cell import Cell
from .activation import OneOperator
from .basic import Weighted


def one_or_each(low: int, lengths: tuple[int, ...], allowed: str) -> Check:
    """An int for all, or one each: as many as `lengths` says."""

    def read(value: Any) -> int | tuple[int, ...]:
        values = integers(low).read(value)
        if len(values) not in lengths:
            raise ValueError
        return values[0] if len(values) == 1 else values

    return Check(allowed, read)


NAMES = {1: "length", 2: "height, width", 3: "depth, height, width"}
SIDES = {1: "left, right", 2: "top, bottom, left, right", 3: "head, tail, top, bottom, left, right"}
FORMATS = {2: "NCHW", 3: "NCDHW"}


def extents(dims: int) -> Check:
    """An extent of at least 1 per dim."""
    return integer(1) if dims == 1 else one_or_each(1, (1, dims), f"An int, or ({NAMES[dims]}), each at least 1")


def paddings(dims: int) -> Check:
    """Zeros on every side, per dim, or per side."""
    return one_or_each(0, (1, dims, 2 * dims), f"An int, ({NAMES[dims]}) or ({SIDES[dims]}), each at least 0")


def conv_settings(dims: int) -> dict[str, Check]:
    """Checks of the arguments of a convolution."""
    windows = dict.fromkeys(("kernel_size", "stride"), extents(dims))
    counts = dict.fromkeys(("in_channels", "out_channels"), integer(1))
    padding = {"pad_mode": PAD_MODE, "padding": paddings(dims), "dilation": extents(dims)}
    return {**counts, **windows, **padding, "group": integer(1), "has_bias": flag}


def check_padding(layer: Cell) -> None:
    """Raise ArgumentError for a padding that pad_mode does not use."""
    if np.any(layer.padding) and layer.pad_mode != "pad":
        given = f"padding={layer.padding} with pad_mode={layer.pad_mode!r}"
        raise ArgumentError(given, where=type(layer).__name__, allowed="padding is 0 unless pad_mode='pad'")


class Convolution(Weighted):
    """What convolutions share: an operator on pictures of `dims` dims, held as `name`, then `bias_add`.

    transposed  dim 0 of the weight are the input's channels
    """

    dims, name, transposed = 2, "conv2d", False
    operator: type[Primitive] = convolution.primitive

    def _convolve(self, weight_init: Any, bias_init: Any, dtype: Any, **_: Any) -> None:
        """Make operators and Parameters by these, and by the settings that were kept."""
        check_padding(self)
        ends = self.in_channels, self.out_channels
        if ends[0] % self.group or ends[1] % self.group:
            given = f"group={self.group} with in_channels={ends[0]}, out_channels={ends[1]}"
            raise ArgumentError(given, where=type(self).__name__, allowed="A count that divides both")
        windows = {name: getattr(self, name) for name in ("kernel_size", "stride", "dilation")}
        windows, pad = self._on_pictures(windows, self.padding)
        kernel = (
            windows["kernel_size"] if isinstance(windows["kernel_size"], tuple) else (self.kernel_size,) * self.dims
        )
        first, second = ends if self.transposed else (ends[1], ends[0])
        settings = {**windows, "pad_mode": self.pad_mode, "pad": pad, "group": self.group}
        setattr(self, self.name, self.operator(out_channel=first, **settings))
        self._draw((first, second // self.group, *kernel), weight_init, bias_init, self.has_bias, dtype, ends[1])
        # scripts read one number per dim, and of rows those of pictures of height 1 (MindSpore)
        for name, value in windows.items():
            setattr(self, name, value if isinstance(value, tuple) else (value,) * self.dims)
        self.padding = pad

    def _on_pictures(self, windows: dict[str, Any], pad: Any) -> tuple[dict[str, Any], Any]:
        """Windows and padding as the operator takes them."""
        return windows, pad

    def _convolved(self, x: Any) -> Any:
        return getattr(self, self.name)(x, self.weight)

    def construct(self, x: Any) -> Any:
        x = self._convolved(x)
        return self.bias_add(x, self.bias) if self.has_bias else x


class Conv2d(Convolution):
    """Convolution, then the bias.  x: (n, in_channels, h, w) -> (n, out_channels, oh, ow).

    kernel_size, stride, dilation  an int, or (height, width)
    pad_mode     "same": ceil(size / stride) results; "valid": no padding; "pad": `padding` zeros on every side, or
                 (top, bottom, left, right)
    group        channels are convolved in this many groups
    weight_init  what `initializer` takes; default HeUniform(sqrt(5)), uniform within 1 / sqrt(in_channels / group *
                 kernel elements)
    bias_init    default uniform within the same bound

    The weight is (out_channels, in_channels / group, height, width). Operators: `conv2d` (Conv2D) and `bias_add`.
    Defaults: MindSpore 2.x, nn.Conv2d.
    """

    @checked(data_format=choice(FORMATS[2]))
    @kept(**conv_settings(2))
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        pad_mode: str = "same",
        padding: int | tuple[int, ...] = 0,
        dilation: int | tuple[int, int] = 1,
        group: int = 1,
        has_bias: bool = False,
        weight_init: Any = None,
        bias_init: Any = None,
        data_format: str = "NCHW",
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        self._convolve(weight_init, bias_init, dtype)


POOL_SETTINGS = {"kernel_size": extents(2), "stride": extents(2), "pad_mode": PAD_MODE, "padding": paddings(2)}


class Pool(OneOperator):
    """What both pooling layers share."""

    def _pool(self) -> None:
        check_padding(self)
        self._begin(kernel_size=self.kernel_size, strides=self.stride, pad_mode=self.pad_mode, pad=self.padding)


class MaxPool2d(Pool):
    """The largest element of each window, as nn.MaxPool2d.  x: (n, c, h, w) -> (n, c, oh, ow). Operator: `max_pool`.

    dilation, return_indices, ceil_mode  1, False and False: others are not available
    """

    operator = max_pool.primitive

    @checked(data_format=choice("NCHW"), dilation=choice(1, (1, 1)))
    @checked(return_indices=choice(False), ceil_mode=choice(False))
    @kept(**POOL_SETTINGS)
    def __init__(
        self,
        kernel_size: Any = 1,
        stride: Any = 1,
        pad_mode: str = "valid",
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
        data_format: str = "NCHW",
    ) -> None:
        self._pool()
