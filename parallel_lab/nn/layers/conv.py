"""Layers for pictures, N C H W, rows, N C L, and volumes, N C D H W: convolution, transposed too, and pooling.

net = nn.SequentialCell(nn.Conv2d(3, 32, 3, pad_mode="same"), nn.ReLU(), nn.MaxPool2d(2, 2))
net[0].conv2d.shard(((4, 1, 1, 1), (2, 1, 1, 1)))      # samples and output channels
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...base.checks import Check, checked, choice, flag, integer, integers, kept
from ...base.errors import ArgumentError, ShapeError
from ...ops.conv import convolution, convolution_3d
from ...ops.kernels.windows import PAD_MODE, read_extents
from ...ops.machine.primitive import Primitive
from ...ops.pictures import interpolate
from ...ops.pool import adaptive_avg_pool, adaptive_max_pool, avg_pool, avg_pool_3d, max_pool, max_pool_3d
from ...ops.shape import expand_dims, shape as shape_of, squeeze
from ...ops.transposed_conv import transposed_convolution
from ..cell import Cell
from .activation import OneOperator
from .basic import Weighted


def _extents(low: int, lengths: tuple[int, ...], allowed: str) -> Check:
    """An int for all, or one each: as many as `lengths` says."""

    def read(value: Any) -> int | tuple[int, ...]:
        given = integers(low).read(value)
        if len(given) not in lengths:
            raise ValueError
        return given[0] if len(given) == 1 else given

    return Check(allowed, read)


NAMES = {1: "length", 2: "height, width", 3: "depth, height, width"}
SIDES = {1: "left, right", 2: "top, bottom, left, right", 3: "head, tail, top, bottom, left, right"}
FORMATS = {2: "NCHW", 3: "NCDHW"}


def _each(dims: int) -> Check:
    """An extent of at least 1 per dim."""
    return integer(1) if dims == 1 else _extents(1, (1, dims), f"An int, or ({NAMES[dims]}), each at least 1")


def _pads(dims: int) -> Check:
    return _extents(0, (1, dims, 2 * dims), f"An int, ({NAMES[dims]}) or ({SIDES[dims]}), each at least 0")


def _settings(dims: int) -> dict[str, Check]:
    """Checks of the arguments of a convolution."""
    windows = dict.fromkeys(("kernel_size", "stride"), _each(dims))
    counts = dict.fromkeys(("in_channels", "out_channels"), integer(1))
    padding = {"pad_mode": PAD_MODE, "padding": _pads(dims), "dilation": _each(dims)}
    return {**counts, **windows, **padding, "group": integer(1), "has_bias": flag}


def _check_padding(layer: Cell) -> None:
    if np.any(layer.padding) and layer.pad_mode != "pad":
        given = f"padding={layer.padding} with pad_mode={layer.pad_mode!r}"
        raise ArgumentError(given, where=type(layer).__name__, allowed="padding is 0 unless pad_mode='pad'")


class _Conv(Weighted):
    """What convolutions share: an operator on pictures of `dims` dims, held as `name`, then `bias_add`.

    transposed  dim 0 of the weight are the input's channels;  rows: inputs are (n, c, l), as pictures of height 1
    """

    dims, name, transposed, rows = 2, "conv2d", False, False
    operator: type[Primitive] = convolution.primitive

    def _convolve(self, weight_init: Any, bias_init: Any, dtype: Any) -> None:
        """Make operators and Parameters by the settings that were kept."""
        _check_padding(self)
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
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        pad_mode: str = "same",
        padding: int | tuple[int, ...] = 0,
        dilation: int = 1,
        group: int = 1,
        has_bias: bool = False,
        weight_init: Any = None,
        bias_init: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        self._convolve(weight_init, bias_init, dtype)


class Conv3d(_Conv):
    """Convolution of volumes, then the bias.  x: (n, in_channels, d, h, w) -> (n, out_channels, od, oh, ow).

    Arguments as in Conv2d, with (depth, height, width) and padding (head, tail, top, bottom, left, right). The weight
    is (out_channels, in_channels / group, depth, height, width). Operators: `conv3d` (Conv3D) and `bias_add`.
    """

    dims, name, operator = 3, "conv3d", convolution_3d.primitive

    @checked(data_format=choice(FORMATS[3]))
    @kept(**_settings(3))
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int, int],
        stride: int | tuple[int, int, int] = 1,
        pad_mode: str = "same",
        padding: int | tuple[int, ...] = 0,
        dilation: int | tuple[int, int, int] = 1,
        group: int = 1,
        has_bias: bool = False,
        weight_init: Any = None,
        bias_init: Any = None,
        data_format: str = "NCDHW",
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        self._convolve(weight_init, bias_init, dtype)


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

    @kept(**_settings(2), output_padding=_extents(0, (1, 2), "An int, or (height, width), each at least 0"))
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        pad_mode: str = "same",
        padding: int | tuple[int, ...] = 0,
        output_padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        group: int = 1,
        has_bias: bool = False,
        weight_init: Any = None,
        bias_init: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        _check_output_padding(self)
        self._convolve(weight_init, bias_init, dtype)


class Conv1dTranspose(_Conv):
    """Conv2dTranspose of rows.  x: (n, in_channels, l) -> (n, out_channels, ol). Arguments: ints, as in Conv1d.

    The weight is (in_channels, out_channels / group, 1, length). Operators: `expand_dims`, `conv2d_transpose`,
    `bias_add`, `squeeze`. Form: MindSpore, nn.Conv1dTranspose.
    """

    name, operator, transposed = "conv2d_transpose", transposed_convolution.primitive, True
    rows, output_padding = True, 0

    @kept(**_settings(1))
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        pad_mode: str = "same",
        padding: int | tuple[int, ...] = 0,
        dilation: int = 1,
        group: int = 1,
        has_bias: bool = False,
        weight_init: Any = None,
        bias_init: Any = None,
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        self._convolve(weight_init, bias_init, dtype)


_WINDOWS = {"kernel_size": _each(2), "stride": _each(2), "pad_mode": PAD_MODE, "padding": _pads(2)}


class _Pool(OneOperator):
    """What both pooling layers share."""

    def _pool(self) -> None:
        _check_padding(self)
        self._begin(kernel_size=self.kernel_size, strides=self.stride, pad_mode=self.pad_mode, pad=self.padding)


class MaxPool2d(_Pool):
    """The largest element of each window, as nn.MaxPool2d.  x: (n, c, h, w) -> (n, c, oh, ow). Operator: `max_pool`.

    dilation, return_indices, ceil_mode  1, False and False: others are not available
    """

    operator = max_pool.primitive

    @checked(data_format=choice("NCHW"), dilation=choice(1, (1, 1)))
    @checked(return_indices=choice(False), ceil_mode=choice(False))
    @kept(**_WINDOWS)
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


class AvgPool2d(_Pool):
    """The mean of every window, as nn.AvgPool2d.  x: (n, c, h, w) -> (n, c, oh, ow). Operator: `avg_pool`.

    count_include_pad            with pad_mode="pad", whether padded zeros count
    ceil_mode, divisor_override  False and None: others are not available
    """

    operator = avg_pool.primitive

    @checked(data_format=choice("NCHW"), count_include_pad=flag, ceil_mode=choice(False), divisor_override=choice(None))
    @kept(**_WINDOWS)
    def __init__(
        self,
        kernel_size: Any = 1,
        stride: Any = 1,
        pad_mode: str = "valid",
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        data_format: str = "NCHW",
    ) -> None:
        self._pool()
        self.avg_pool.given["count_include_pad"] = count_include_pad


class _RowPool(Cell):
    """Pooling of rows: of pictures of height 1.  x: (n, c, l) -> (n, c, ol)."""

    def __init__(self, pool: type[_Pool], **options: Any) -> None:
        super().__init__()
        _check_padding(self)
        sides = (0, 0, *(self.padding if isinstance(self.padding, tuple) else (self.padding,) * 2))
        sizes = {"kernel_size": (1, self.kernel_size), "stride": (1, self.stride)}
        self.expand_dims, self.squeeze = expand_dims.primitive(), squeeze.primitive(2)
        self.pool = pool(**sizes, pad_mode=self.pad_mode, padding=sides, **options)

    def construct(self, x: Any) -> Any:
        if len(shape_of(x)) != 3:
            raise ShapeError(f"x of shape {shape_of(x)}", where=self._where(), allowed="(n, c, l)")
        return self.squeeze(self.pool(self.expand_dims(x, 2)))


_ROW_WINDOWS = {"kernel_size": _each(1), "stride": _each(1), "pad_mode": PAD_MODE, "padding": _pads(1)}


class MaxPool1d(_RowPool):
    """The largest element of each window of rows.  x: (n, c, l) -> (n, c, ol). Arguments: ints, as in MaxPool2d.

    padding  an int or (left, right). Operators: `expand_dims`, `pool` (MaxPool2d), `squeeze`. Form: nn.MaxPool1d.
    """

    @checked(dilation=choice(1), return_indices=choice(False), ceil_mode=choice(False))
    @kept(**_ROW_WINDOWS)
    def __init__(
        self,
        kernel_size: int = 1,
        stride: int = 1,
        pad_mode: str = "valid",
        padding: int | tuple[int, int] = 0,
        dilation: int = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(MaxPool2d)


class AvgPool1d(_RowPool):
    """The mean of every window of rows.  x: (n, c, l) -> (n, c, ol). Arguments: ints, as in AvgPool2d.

    padding  an int or (left, right). Operators: `expand_dims`, `pool` (AvgPool2d), `squeeze`. Form: nn.AvgPool1d.
    """

    @checked(ceil_mode=choice(False), count_include_pad=flag)
    @kept(**_ROW_WINDOWS)
    def __init__(
        self,
        kernel_size: int = 1,
        stride: int = 1,
        pad_mode: str = "valid",
        padding: int | tuple[int, int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(AvgPool2d, count_include_pad=count_include_pad)


class Upsample(Cell):
    """Pictures in another size.  x: (n, c, h, w) -> (n, c, *size). Arguments: `ops.interpolate`."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.options = (size, scale_factor, mode, align_corners, recompute_scale_factor)

    def construct(self, x: Any) -> Any:
        return interpolate(x, *self.options)


class MaxPool3d(OneOperator):
    """The largest element of each window.  x: (n, c, d, h, w) -> (n, c, od, oh, ow). Operator: `max_pool_3d`.

    kernel_size, stride  an int, or (depth, height, width)
    pad_mode   "same": ceil(size / stride) results; "valid": no padding; "pad": `padding` on every side, or (depth,
               height, width)
    ceil_mode  a last window that begins inside and reaches beyond the padding counts too
    dilation, return_indices  1 and False: others are not available
    """

    operator = max_pool_3d.primitive
    other_names: ClassVar = {"max_pool": "max_pool_3d"}

    @checked(dilation=choice(1), return_indices=choice(False))
    @kept(kernel_size=_each(3), stride=_each(3), pad_mode=PAD_MODE, padding=_pads(3), ceil_mode=flag)
    def __init__(
        self,
        kernel_size: Any = 1,
        stride: Any = 1,
        pad_mode: str = "valid",
        padding: Any = 0,
        dilation: int = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        _check_padding(self)
        windows = {"kernel_size": kernel_size, "strides": stride, "pad_mode": pad_mode}
        self._begin(**windows, pad_list=padding, ceil_mode=ceil_mode)


class AvgPool3d(OneOperator):
    """The mean of every window.  x: (n, c, d, h, w) -> (n, c, od, oh, ow). Operator: `avg_pool_3d`.

    kernel_size, stride, pad_mode, padding, ceil_mode  as in MaxPool3d
    count_include_pad  whether padded zeros count;  divisor_override: divide by this number instead
    """

    operator = avg_pool_3d.primitive
    other_names: ClassVar = {"avg_pool": "avg_pool_3d"}

    @checked(count_include_pad=flag, divisor_override=integer(1) | None)
    @kept(kernel_size=_each(3), stride=_each(3), pad_mode=PAD_MODE, padding=_pads(3), ceil_mode=flag)
    def __init__(
        self,
        kernel_size: Any = 1,
        stride: Any = 1,
        pad_mode: str = "valid",
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        _check_padding(self)
        windows = {"kernel_size": kernel_size, "strides": stride, "pad_mode": pad_mode, "pad": padding}
        means = {"count_include_pad": count_include_pad, "divisor_override": divisor_override or 0}
        self._begin(**windows, ceil_mode=ceil_mode, **means)


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

    operator = adaptive_avg_pool.primitive

    @kept(output_size=OUTPUT_SIZE)
    def __init__(self, output_size: int | tuple[int | None, int | None] | None) -> None:
        self._begin(output_size=output_size)


class AdaptiveMaxPool2d(AdaptiveAvgPool2d):
    """AdaptiveAvgPool2d with maxima.  x: (n, c, h, w) -> (n, c, *output_size). Operator: `adaptive_max_pool`.

    return_indices  False, True is not available
    """

    operator = adaptive_max_pool.primitive

    @checked(return_indices=choice(False))
    def __init__(self, output_size: int | tuple[int | None, int | None] | None, return_indices: bool = False) -> None:
        super().__init__(output_size)
