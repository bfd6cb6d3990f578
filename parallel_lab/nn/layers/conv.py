"""Layers for pictures, N C H W: convolution and pooling.

net = nn.SequentialCell(nn.Conv2d(3, 32, 3, pad_mode="same"), nn.ReLU(), nn.MaxPool2d(2, 2))
net[0].conv2d.shard(((4, 1, 1, 1), (2, 1, 1, 1)))      # samples and output channels
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...base.checks import Check, checked, choice, flag, integer, integers, kept
from ...base.errors import ArgumentError
from ..cell import Cell
from .activation import OneOperator
from .basic import Weighted

PAD_MODES = ("same", "valid", "pad")


def _extents(low: int, lengths: tuple[int, ...], allowed: str) -> Check:
    """An int for all, or one each: as many as `lengths` says."""

    def read(value: Any) -> int | tuple[int, ...]:
        given = integers(low).read(value)
        if len(given) not in lengths:
            raise ValueError
        return given[0] if len(given) == 1 else given

    return Check(allowed, read)


PAIR = _extents(1, (1, 2), "An int, or (height, width), each at least 1")
PADS = _extents(0, (1, 2, 4), "An int, (height, width) or (top, bottom, left, right), each at least 0")


def _check_padding(layer: Cell) -> None:
    if np.any(layer.padding) and layer.pad_mode != "pad":
        given = f"padding={layer.padding} with pad_mode={layer.pad_mode!r}"
        raise ArgumentError(given, where=type(layer).__name__, allowed="padding is 0 unless pad_mode='pad'")


class Conv2d(Weighted):
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

    @checked(data_format=choice("NCHW"))
    @kept(
        in_channels=integer(1),
        out_channels=integer(1),
        kernel_size=PAIR,
        stride=PAIR,
        pad_mode=choice(*PAD_MODES),
        padding=PADS,
        dilation=PAIR,
        group=integer(1),
        has_bias=flag,
    )
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
        _check_padding(self)
        if in_channels % group or out_channels % group:
            given = f"group={group} with in_channels={in_channels}, out_channels={out_channels}"
            raise ArgumentError(given, where="Conv2d", allowed="A count that divides both")
        kernel = kernel_size if isinstance(kernel_size, tuple) else (kernel_size,) * 2
        windows = {"stride": stride, "dilation": dilation, "pad_mode": pad_mode, "pad": padding, "group": group}
        self.conv2d = ops.Conv2D(out_channel=out_channels, kernel_size=kernel_size, **windows)
        self._draw((out_channels, in_channels // group, *kernel), weight_init, bias_init, has_bias, dtype)

    def construct(self, x: Any) -> Any:
        x = self.conv2d(x, self.weight)
        return self.bias_add(x, self.bias) if self.has_bias else x


class _Pool(OneOperator):
    """What both pooling layers share."""

    @checked(data_format=choice("NCHW"))
    @kept(kernel_size=PAIR, stride=PAIR, pad_mode=choice(*PAD_MODES), padding=PADS)
    def __init__(
        self,
        kernel_size: Any = 1,
        stride: Any = 1,
        pad_mode: str = "valid",
        padding: Any = 0,
        data_format: str = "NCHW",
    ) -> None:
        _check_padding(self)
        self._begin(kernel_size=kernel_size, strides=stride, pad_mode=pad_mode, pad=padding)


class MaxPool2d(_Pool):
    """The largest element of each window, as nn.MaxPool2d.  x: (n, c, h, w) -> (n, c, oh, ow). Operator: `max_pool`."""

    operator = ops.MaxPool


class AvgPool2d(_Pool):
    """The mean of every window, as nn.AvgPool2d.  x: (n, c, h, w) -> (n, c, oh, ow). Operator: `avg_pool`.

    count_include_pad  with pad_mode="pad", whether padded zeros count
    """

    operator = ops.AvgPool

    @checked(count_include_pad=flag)
    def __init__(
        self,
        kernel_size: Any = 1,
        stride: Any = 1,
        pad_mode: str = "valid",
        padding: Any = 0,
        count_include_pad: bool = True,
        data_format: str = "NCHW",
    ) -> None:
        super().__init__(kernel_size, stride, pad_mode, padding, data_format)
        self.avg_pool.attrs["count_include_pad"] = count_include_pad


def _read_output_size(value: Any) -> Any:
    both = value if isinstance(value, tuple) else (value, value)
    if len(both) != 2:
        raise ValueError
    made = tuple((integer(1) | None).read(v) for v in both)
    return made if isinstance(value, tuple) or value is None else made[0]


OUTPUT_SIZE = Check("An int, or (height, width), each at least 1, or None to keep the extent", _read_output_size)


class AdaptiveAvgPool2d(OneOperator):
    """Means over windows that fit the result.  x: (n, c, h, w) -> (n, c, *output_size). Operator: `adaptive_avg_pool`.

    output_size  an int, or (height, width), where None keeps that extent
    """

    operator = ops.AdaptiveAvgPool2D

    @kept(output_size=OUTPUT_SIZE)
    def __init__(self, output_size: int | tuple[int | None, int | None] | None) -> None:
        self._begin(output_size=output_size)


class AdaptiveMaxPool2d(AdaptiveAvgPool2d):
    """AdaptiveAvgPool2d with maxima.  x: (n, c, h, w) -> (n, c, *output_size). Operator: `adaptive_max_pool`."""

    operator = ops.AdaptiveMaxPool2D
