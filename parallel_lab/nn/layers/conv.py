"""Layers for pictures, N C H W, rows, N C L, and volumes, N C D H W: convolution, transposed too, and
the largest element of each window.

net = nn.SequentialCell(nn.Conv2d(3, 32, 3, pad_mode="same"), nn.ReLU(), nn.MaxPool2d(2, 2))
net[0].conv2d.shard(((4, 1, 1, 1), (2, 1, 1, 1)))      # samples and output channels
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.checks import Check, checked, choice, flag, integer, integers, kept
from ...base.errors import ArgumentError, ShapeError
from ...ops.conv import convolution, convolution_3d
from ...ops.kernels.windows import PAD_MODE, read_extents
from ...ops.machine.primitive import Primitive
from ...ops.pool import max_pool
from ...ops.shape import expand_dims, shape as shape_of, squeeze
from ...ops.transposed_conv import transposed_convolution
from ..cell import Cell
from .activation import OneOperator
from .basic import Weighted, arguments_of


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


def _settings(dims: int) -> dict[str, Check]:
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


class _Conv(Weighted):
    """What convolutions share: an operator on pictures of `dims` dims, held as `name`, then `bias_add`.

    transposed  dim 0 of the weight are the input's channels;  rows: inputs are (n, c, l), as pictures of height 1
    """

    dims, name, transposed, rows = 2, "conv2d", False, False
    operator: type[Primitive] = convolution.primitive

    def _convolve(self, weight_init: Any, bias_init: Any, dtype: Any, **_: Any) -> None:
        """Make operators and Parameters by these, and by the settings that were kept."""
        check_padding(self)
        ends = self.in_channels, self.out_channels
        if ends[0] % self.group or ends[1] % self.group:
            given = f"group={self.group} with in_channels={ends[0]}, out_channels={ends[1]}"
            raise ArgumentError(given, where=type(self).__name__, allowed="A count that divides both")
        windows = {name: getattr(self, name) for name in ("kernel_size", "stride", "dilation")}
        pad = self.padding
        if self.rows:
            windows = {name: (1, value) for name, value in windows.items()}
            pad = (0, 0, *(pad if isinstance(pad, tuple) else (pad, pad)))
            self.expand_dims, self.squeeze = expand_dims.primitive(), squeeze.primitive(2)
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

    def construct(self, x: Any) -> Any:
        if self.rows:
            x = self.expand_dims(x, 2)
        convolve = getattr(self, self.name)
        x = convolve(x, self.weight, self._result_shape(x)) if self.transposed else convolve(x, self.weight)
        x = self.bias_add(x, self.bias) if self.has_bias else x
        return self.squeeze(x) if self.rows else x

    def _result_shape(self, x: Any) -> tuple[int, ...]:
        """What a transposed convolution makes of an input of this shape (MindSpore, nn.Conv2dTranspose)."""
        shape = shape_of(x)
        if len(shape) != 4:
            given = shape if not self.rows else (*shape[:2], *shape[3:])
            form = "(n, c, l)" if self.rows else "(n, c, h, w)"
            raise ShapeError(f"an input of shape {given}", where=self._where(), allowed=form)
        attrs = getattr(self, self.name).given
        kernel, stride, dilation = (read_extents(attrs[n], 2) for n in ("kernel_size", "stride", "dilation"))
        pads = attrs["pad"] if isinstance(attrs["pad"], tuple) else (attrs["pad"],) * 4
        pads = pads if len(pads) == 4 else (pads[0], pads[0], pads[1], pads[1])
        more = _both(self.output_padding)
        sizes = []
        for d, size in enumerate(shape[2:]):
            reach = dilation[d] * (kernel[d] - 1) + 1
            over = {"same": 0, "valid": max(0, reach - stride[d])}.get(self.pad_mode)
            if over is None:
                over = reach - stride[d] - pads[2 * d] - pads[2 * d + 1] + more[d]
            sizes.append(size * stride[d] + over)
        return (shape[0], self.out_channels, *sizes)


class Conv2d(_Conv):
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
    @kept(**_settings(2))
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


class Conv1d(_Conv):
    """Convolution of rows, then the bias.  x: (n, in_channels, l) -> (n, out_channels, ol). Arguments: Conv2d.

    kernel_size, stride, dilation are ints, padding an int or (left, right). The weight is (out_channels, in_channels /
    group, 1, length). Operators: `expand_dims`, `conv2d` (Conv2D), `bias_add`, `squeeze`. Form: MindSpore, nn.Conv1d.
    """

    rows = True

    @kept(**_settings(1))
    @arguments_of(Conv2d.__init__, without="data_format")
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._convolve(**settings)


class Conv3d(_Conv):
    """Convolution of volumes, then the bias.  x: (n, in_channels, d, h, w) -> (n, out_channels, od, oh, ow).

    Arguments as in Conv2d, with (depth, height, width) and padding (head, tail, top, bottom, left, right). The weight
    is (out_channels, in_channels / group, depth, height, width). Operators: `conv3d` (Conv3D) and `bias_add`.
    """

    dims, name, operator = 3, "conv3d", convolution_3d.primitive

    @checked(data_format=choice(FORMATS[3]))
    @kept(**_settings(3))
    @arguments_of(Conv2d.__init__, data_format=FORMATS[3])
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._convolve(**settings)


def _check_output_padding(layer: Cell) -> None:
    """More results than there are places between two elements, or where no padding says how many there are."""
    more, steps, dilations = map(_both, (layer.output_padding, layer.stride, layer.dilation))
    if any(m >= max(both) for m, *both in zip(more, steps, dilations, strict=True) if m) or (
        any(more) and layer.pad_mode != "pad"
    ):
        given = f"output_padding={layer.output_padding} with stride={layer.stride}, pad_mode={layer.pad_mode!r}"
        allowed = "0, or with pad_mode='pad' less than stride or dilation"
        raise ArgumentError(given, where=type(layer).__name__, allowed=allowed)


def _both(value: Any) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


class Conv2dTranspose(_Conv):
    """Transposed convolution, then the bias.  x: (n, in_channels, h, w) -> (n, out_channels, oh, ow).

    Arguments as in Conv2d, of the convolution whose transpose this is: one that makes h x w of oh x ow.

    pad_mode        "same": size * stride results; "valid": as many as any element reaches; "pad": these less `padding`
                    on every side, plus output_padding
    output_padding  less than the stride, for pad_mode="pad": an int, or (height, width)

    The weight is (in_channels, out_channels / group, height, width). Operators: `conv2d_transpose` (Conv2DTranspose)
    and `bias_add`. Sizes and defaults: MindSpore 2.x, nn.Conv2dTranspose.
    """

    name, operator, transposed = "conv2d_transpose", transposed_convolution.primitive, True

    @kept(**_settings(2), output_padding=one_or_each(0, (1, 2), "An int, or (height, width), each at least 0"))
    @arguments_of(Conv2d.__init__, without="data_format", after=("padding", "output_padding", 0))
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        _check_output_padding(self)
        self._convolve(**settings)


class Conv1dTranspose(_Conv):
    """Conv2dTranspose of rows.  x: (n, in_channels, l) -> (n, out_channels, ol). Arguments: ints, as in Conv1d.

    The weight is (in_channels, out_channels / group, 1, length). Operators: `expand_dims`, `conv2d_transpose`,
    `bias_add`, `squeeze`. Form: MindSpore, nn.Conv1dTranspose.
    """

    name, operator, transposed = "conv2d_transpose", transposed_convolution.primitive, True
    rows, output_padding = True, 0

    @kept(**_settings(1))
    @arguments_of(Conv2d.__init__, without="data_format")
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._convolve(**settings)


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
