"""Convolutions of rows, N C L, and volumes, N C D H W, and transposed ones."""

from __future__ import annotations

from typing import Any

from ...base.checks import checked, choice, kept
from ...base.errors import ArgumentError, ShapeError
from ...nn.cell import Cell
from ...nn.layers.conv import FORMATS, Conv2d, Convolution, conv_settings, one_or_each
from ...ops.kernels.windows import read_extents
from ...ops.shape import expand_dims, shape as shape_of, squeeze
from ..ops.convolutions import convolution_3d, transposed_convolution
from .forms import arguments_of


class _OfRows(Convolution):
    """Rows (n, c, l), as pictures of height 1."""

    def _on_pictures(self, windows: dict[str, Any], pad: Any) -> tuple[dict[str, Any], Any]:
        self.expand_dims, self.squeeze = expand_dims.primitive(), squeeze.primitive(2)
        sides = pad if isinstance(pad, tuple) else (pad, pad)
        return {name: (1, value) for name, value in windows.items()}, (0, 0, *sides)

    def construct(self, x: Any) -> Any:
        return self.squeeze(super().construct(self.expand_dims(x, 2)))


class Conv1d(_OfRows):
    """Convolution of rows, then the bias.  x: (n, in_channels, l) -> (n, out_channels, ol). Arguments: Conv2d.

    kernel_size, stride, dilation are ints, padding an int or (left, right). The weight is (out_channels, in_channels /
    group, 1, length). Operators: `expand_dims`, `conv2d` (Conv2D), `bias_add`, `squeeze`. Form: MindSpore, nn.Conv1d.
    """

    @kept(**conv_settings(1))
    @arguments_of(Conv2d.__init__, without="data_format")
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._convolve(**settings)


class Conv3d(Convolution):
    """Convolution of volumes, then the bias.  x: (n, in_channels, d, h, w) -> (n, out_channels, od, oh, ow).

    Arguments as in Conv2d, with (depth, height, width) and padding (head, tail, top, bottom, left, right). The weight
    is (out_channels, in_channels / group, depth, height, width). Operators: `conv3d` (Conv3D) and `bias_add`.
    """

    dims, name, operator = 3, "conv3d", convolution_3d.primitive

    @checked(data_format=choice(FORMATS[3]))
    @kept(**conv_settings(3))
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


class _Transposed(Convolution):
    """The operator of which the size of the result is asked."""

    name, operator, transposed = "conv2d_transpose", transposed_convolution.primitive, True
    output_padding: Any = 0
    form = "(n, c, h, w)"

    def _convolved(self, x: Any) -> Any:
        return getattr(self, self.name)(x, self.weight, self._result_shape(x))

    def _result_shape(self, x: Any) -> tuple[int, ...]:
        """What a transposed convolution makes of an input of this shape (MindSpore, nn.Conv2dTranspose)."""
        shape = shape_of(x)
        if len(shape) != 4:
            given = (*shape[:2], *shape[3:]) if isinstance(self, _OfRows) else shape
            raise ShapeError(f"an input of shape {given}", where=self._where(), allowed=self.form)
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


class Conv2dTranspose(_Transposed):
    """Transposed convolution, then the bias.  x: (n, in_channels, h, w) -> (n, out_channels, oh, ow).

    Arguments as in Conv2d, of the convolution whose transpose this is: one that makes h x w of oh x ow.

    pad_mode        "same": size * stride results; "valid": as many as any element reaches; "pad": these less `padding`
                    on every side, plus output_padding
    output_padding  less than the stride, for pad_mode="pad": an int, or (height, width)

    The weight is (in_channels, out_channels / group, height, width). Operators: `conv2d_transpose` (Conv2DTranspose)
    and `bias_add`. Sizes and defaults: MindSpore 2.x, nn.Conv2dTranspose.
    """

    @kept(**conv_settings(2), output_padding=one_or_each(0, (1, 2), "An int, or (height, width), each at least 0"))
    @arguments_of(Conv2d.__init__, without="data_format", after=("padding", "output_padding", 0))
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        _check_output_padding(self)
        self._convolve(**settings)


class Conv1dTranspose(_OfRows, _Transposed):
    """Conv2dTranspose of rows.  x: (n, in_channels, l) -> (n, out_channels, ol). Arguments: ints, as in Conv1d.

    The weight is (in_channels, out_channels / group, 1, length). Operators: `expand_dims`, `conv2d_transpose`,
    `bias_add`, `squeeze`. Form: MindSpore, nn.Conv1dTranspose.
    """

    form = "(n, c, l)"

    @kept(**conv_settings(1))
    @arguments_of(Conv2d.__init__, without="data_format")
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._convolve(**settings)
