"""Layers for pictures, N C H W: convolution and pooling.

net = nn.SequentialCell(nn.Conv2d(3, 32, 3, pad_mode="same"), nn.ReLU(), nn.MaxPool2d(2, 2))
net[0].conv2d.shard(((4, 1, 1, 1), (2, 1, 1, 1)))      # samples and output channels
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import ops
from ...base.checks import checked, choice, flag, integer, integers
from ...base.errors import ArgumentError
from ..cell import Cell
from ..initializer import HeUniform, Uniform, initializer
from ..tensor.tensor import Parameter

PAD_MODES = ("same", "valid", "pad")


def _pair(value: Any, where: str, name: str) -> int | tuple[int, int]:
    """One int for both, or (height, width)."""
    given = integers(1)(where, name, value)
    if len(given) > 2:
        raise ArgumentError(f"{name}={value}", where=where, allowed="An int, or (height, width)")
    return given[0] if len(given) == 1 else given


def _padding(value: Any, where: str, pad_mode: str) -> int | tuple[int, ...]:
    given = integers(0)(where, "padding", value)
    if len(given) not in (1, 2, 4):
        raise ArgumentError(
            f"padding={value}", where=where, allowed="An int, (height, width) or (top, bottom, left, right)"
        )
    if any(given) and pad_mode != "pad":
        raise ArgumentError(
            f"padding={value} with pad_mode={pad_mode!r}", where=where, allowed="padding is 0 unless pad_mode='pad'"
        )
    return given[0] if len(given) == 1 else given


class Conv2d(Cell):
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

    @checked(
        in_channels=integer(1),
        out_channels=integer(1),
        pad_mode=choice(*PAD_MODES),
        group=integer(1),
        has_bias=flag,
        data_format=choice("NCHW"),
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
        where = "Conv2d"
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = _pair(kernel_size, where, "kernel_size")
        self.stride, self.dilation = _pair(stride, where, "stride"), _pair(dilation, where, "dilation")
        self.pad_mode = pad_mode
        self.padding = _padding(padding, where, pad_mode)
        self.group = group
        if in_channels % group or out_channels % group:
            given = f"group={group} with in_channels={in_channels}, out_channels={out_channels}"
            raise ArgumentError(given, where=where, allowed="A count that divides both")
        self.has_bias = has_bias
        self.data_format = data_format
        kernel = self.kernel_size if isinstance(self.kernel_size, tuple) else (self.kernel_size,) * 2
        shape = (self.out_channels, self.in_channels // self.group, *kernel)
        rule = HeUniform(math.sqrt(5)) if weight_init is None else weight_init
        self.weight = Parameter(initializer(rule, shape, dtype), name="weight")
        self.conv2d = ops.Conv2D(
            out_channel=self.out_channels,
            kernel_size=self.kernel_size,
            pad_mode=self.pad_mode,
            pad=self.padding,
            stride=self.stride,
            dilation=self.dilation,
            group=self.group,
        )
        self.bias = None
        if has_bias:
            rule = Uniform(1 / math.sqrt(math.prod(shape[1:]))) if bias_init is None else bias_init
            self.bias = Parameter(initializer(rule, (self.out_channels,), dtype), name="bias")
            self.bias_add = ops.BiasAdd()

    def construct(self, x: Any) -> Any:
        x = self.conv2d(x, self.weight)
        return self.bias_add(x, self.bias) if self.has_bias else x

    def extend_repr(self) -> str:
        return (
            f"in_channels={self.in_channels}, out_channels={self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, "
            f"pad_mode={self.pad_mode!r}, padding={self.padding}, dilation={self.dilation}, group={self.group}, "
            f"has_bias={self.has_bias}"
        )


class _Pool(Cell):
    """What both pooling layers share."""

    @checked(pad_mode=choice(*PAD_MODES), data_format=choice("NCHW"))
    def __init__(self, kernel_size: Any, stride: Any, pad_mode: Any, padding: Any, data_format: Any) -> None:
        super().__init__()
        where = type(self).__name__
        self.kernel_size, self.stride = _pair(kernel_size, where, "kernel_size"), _pair(stride, where, "stride")
        self.pad_mode = pad_mode
        self.padding = _padding(padding, where, pad_mode)

    def _attrs(self) -> dict[str, Any]:
        return {"kernel_size": self.kernel_size, "strides": self.stride, "pad_mode": self.pad_mode, "pad": self.padding}

    def extend_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, pad_mode={self.pad_mode!r}, padding={self.padding}"
        )


class MaxPool2d(_Pool):
    """The largest element of every window.  x: (n, c, h, w) -> (n, c, oh, ow). Operator: `max_pool`. Defaults:
    MindSpore, nn.MaxPool2d.
    """

    def __init__(
        self,
        kernel_size: Any = 1,
        stride: Any = 1,
        pad_mode: str = "valid",
        padding: Any = 0,
        data_format: str = "NCHW",
    ) -> None:
        super().__init__(kernel_size, stride, pad_mode, padding, data_format)
        self.max_pool = ops.MaxPool(**self._attrs())

    def construct(self, x: Any) -> Any:
        return self.max_pool(x)


class AvgPool2d(_Pool):
    """The mean of every window.  x: (n, c, h, w) -> (n, c, oh, ow). Operator: `avg_pool`. Defaults: MindSpore,
                                  nn.AvgPool2d.

    count_include_pad  with pad_mode="pad", whether padded zeros count
    """

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
        self.avg_pool = ops.AvgPool(**self._attrs(), count_include_pad=count_include_pad)

    def construct(self, x: Any) -> Any:
        return self.avg_pool(x)


def _output_size(value: Any, where: str) -> Any:
    both = value if isinstance(value, tuple) else (value, value)
    if len(both) != 2:
        raise ArgumentError(
            f"output_size={value}", where=where, allowed="An int, or (height, width), where None keeps that extent"
        )
    made = tuple(None if v is None else integer(1)(where, "output_size", v) for v in both)
    return made if isinstance(value, tuple) or value is None else made[0]


class AdaptiveAvgPool2d(Cell):
    """Means over windows that fit the result's size.  x: (n, c, h, w) -> (n, c, *output_size). Operator:
    `adaptive_avg_pool`.

    output_size  an int, or (height, width), where None keeps that extent
    """

    def __init__(self, output_size: int | tuple[int | None, int | None] | None) -> None:
        super().__init__()
        self.output_size = _output_size(output_size, "AdaptiveAvgPool2d")
        self.adaptive_avg_pool = ops.AdaptiveAvgPool2D(output_size=self.output_size)

    def construct(self, x: Any) -> Any:
        return self.adaptive_avg_pool(x)

    def extend_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool2d(Cell):
    """The largest elements of the windows of AdaptiveAvgPool2d.  x: (n, c, h, w) -> (n, c, *output_size). Operator:
    `adaptive_max_pool`.
    """

    def __init__(self, output_size: int | tuple[int | None, int | None] | None) -> None:
        super().__init__()
        self.output_size = _output_size(output_size, "AdaptiveMaxPool2d")
        self.adaptive_max_pool = ops.AdaptiveMaxPool2D(output_size=self.output_size)

    def construct(self, x: Any) -> Any:
        return self.adaptive_max_pool(x)

    def extend_repr(self) -> str:
        return f"output_size={self.output_size}"
