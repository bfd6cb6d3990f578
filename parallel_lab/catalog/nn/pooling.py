"""Pooling of rows and volumes, means, windows that fit the result; and `Upsample`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from ... import ops
from ...base.checks import Check, checked, choice, flag, integer, kept
from ...base.errors import ShapeError
from ...nn.cell import Cell
from ...nn.layers.activation import OneOperator
from ...nn.layers.conv import POOL_SETTINGS, MaxPool2d, Pool, check_padding, extents, paddings
from ...ops.kernels.windows import PAD_MODE
from .forms import arguments_of


class AvgPool2d(Pool):
    """The mean of every window, as nn.AvgPool2d.  x: (n, c, h, w) -> (n, c, oh, ow). Operator: `avg_pool`.

    count_include_pad            with pad_mode="pad", whether padded zeros count
    ceil_mode, divisor_override  False and None: others are not available
    """

    operator = ops.AvgPool

    @checked(data_format=choice("NCHW"), count_include_pad=flag, ceil_mode=choice(False), divisor_override=choice(None))
    @kept(**POOL_SETTINGS)
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

    def __init__(self, pool: Callable[..., Pool], **options: Any) -> None:
        super().__init__()
        check_padding(self)
        sides = (0, 0, *(self.padding if isinstance(self.padding, tuple) else (self.padding,) * 2))
        sizes = {"kernel_size": (1, self.kernel_size), "stride": (1, self.stride)}
        self.expand_dims, self.squeeze = ops.ExpandDims(), ops.Squeeze(2)
        self.pool = pool(**sizes, pad_mode=self.pad_mode, padding=sides, **options)
        self.kernel_size, self.stride = sizes.values()  # as scripts read them: of pictures of height 1 (MindSpore)

    def construct(self, x: Any) -> Any:
        if len(ops.shape(x)) != 3:
            raise ShapeError(f"x of shape {ops.shape(x)}", where=self._where(), allowed="(n, c, l)")
        return self.squeeze(self.pool(self.expand_dims(x, 2)))


_ROW_WINDOWS = {"kernel_size": extents(1), "stride": extents(1), "pad_mode": PAD_MODE, "padding": paddings(1)}


class MaxPool1d(_RowPool):
    """The largest element of each window of rows.  x: (n, c, l) -> (n, c, ol). Arguments: ints, as in MaxPool2d.

    padding  an int or (left, right). Operators: `expand_dims`, `pool` (MaxPool2d), `squeeze`. Form: nn.MaxPool1d.
    """

    @checked(dilation=choice(1), return_indices=choice(False), ceil_mode=choice(False))
    @kept(**_ROW_WINDOWS)
    @arguments_of(MaxPool2d.__init__, without="data_format")
    def __init__(self, **settings: Any) -> None:
        super().__init__(MaxPool2d)


class AvgPool1d(_RowPool):
    """The mean of every window of rows.  x: (n, c, l) -> (n, c, ol). Arguments: ints, as in AvgPool2d.

    padding  an int or (left, right). Operators: `expand_dims`, `pool` (AvgPool2d), `squeeze`. Form: nn.AvgPool1d.
    """

    @checked(ceil_mode=choice(False), count_include_pad=flag)
    @kept(**_ROW_WINDOWS)
    @arguments_of(AvgPool2d.__init__, without="divisor_override data_format")
    def __init__(self, **settings: Any) -> None:
        super().__init__(AvgPool2d, count_include_pad=settings["count_include_pad"])


class Upsample(Cell):
    """Pictures in another size.  x: (n, c, h, w) -> (n, c, *size). Arguments: `ops.interpolate`."""

    @kept()
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
        return ops.interpolate(x, *self.options)


class MaxPool3d(OneOperator):
    """The largest element of each window.  x: (n, c, d, h, w) -> (n, c, od, oh, ow). Operator: `max_pool_3d`.

    kernel_size, stride  an int, or (depth, height, width)
    pad_mode   "same": ceil(size / stride) results; "valid": no padding; "pad": `padding` on every side, or (depth,
               height, width)
    ceil_mode  a last window that begins inside and reaches beyond the padding counts too
    dilation, return_indices  1 and False: others are not available
    """

    operator = ops.MaxPool3D
    other_names: ClassVar = {"max_pool": "max_pool_3d"}

    @checked(dilation=choice(1), return_indices=choice(False))
    @kept(kernel_size=extents(3), stride=extents(3), pad_mode=PAD_MODE, padding=paddings(3), ceil_mode=flag)
    @arguments_of(MaxPool2d.__init__, without="data_format")
    def __init__(self, ceil_mode: bool, **_: Any) -> None:
        check_padding(self)
        windows = {"kernel_size": self.kernel_size, "strides": self.stride, "pad_mode": self.pad_mode}
        self._begin(**windows, pad_list=self.padding, ceil_mode=ceil_mode)


class AvgPool3d(OneOperator):
    """The mean of every window.  x: (n, c, d, h, w) -> (n, c, od, oh, ow). Operator: `avg_pool_3d`.

    kernel_size, stride, pad_mode, padding, ceil_mode  as in MaxPool3d
    count_include_pad  whether padded zeros count;  divisor_override: divide by this number instead
    """

    operator = ops.AvgPool3D
    other_names: ClassVar = {"avg_pool": "avg_pool_3d"}

    @checked(count_include_pad=flag, divisor_override=integer(1) | None)
    @kept(kernel_size=extents(3), stride=extents(3), pad_mode=PAD_MODE, padding=paddings(3), ceil_mode=flag)
    @arguments_of(AvgPool2d.__init__, without="data_format")
    def __init__(self, ceil_mode: bool, count_include_pad: bool, divisor_override: int | None, **_: Any) -> None:
        check_padding(self)
        windows = {"kernel_size": self.kernel_size, "strides": self.stride, "pad_mode": self.pad_mode}
        means = {"count_include_pad": count_include_pad, "divisor_override": divisor_override or 0}
        self._begin(**windows, pad=self.padding, ceil_mode=ceil_mode, **means)


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
    """AdaptiveAvgPool2d with maxima.  x: (n, c, h, w) -> (n, c, *output_size). Operator: `adaptive_max_pool`.

    return_indices  False, True is not available
    """

    operator = ops.AdaptiveMaxPool2D

    @checked(return_indices=choice(False))
    def __init__(self, output_size: int | tuple[int | None, int | None] | None, return_indices: bool = False) -> None:
        super().__init__(output_size)
