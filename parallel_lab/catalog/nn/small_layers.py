"""Small layers: a dict of Cells, other shapes, pooling of rows, channels in another order, the focal loss.

    cells = nn.CellDict({"a": nn.Dense(2, 3), "b": nn.ReLU()})
    for cell in cells.values(): x = cell(x)

Forms and formulas: MindSpore 2.10.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from ...base.checks import choice, flag, floating, integer, kept, sequence_of
from ...base.errors import ArgumentError, ArgumentTypeError, CellError, ShapeError, shorten
from ...nn.cell import Cell
from ...nn.layers.losses import LossBase
from ...nn.tensor.tensor import Tensor
from ...ops.kernels.windows import windows
from ...ops.spellings import NAMES

SIZES = sequence_of(integer(-1), "A tuple or list of ints, one of them perhaps -1")
_PATCH = sequence_of(integer(1), "A tuple or list (1, height, width, 1)")


class CellDict(Cell, MutableMapping):
    """A dict of Cells that are the network's, in order: `self.branches["a"](x)`. It is not called itself.

    args  a dict of names and Cells, a list of such pairs, or another CellDict
    """

    _is_called = False
    __eq__, __hash__ = object.__eq__, object.__hash__  # which Cell it is

    def __init__(self, *args: Any) -> None:
        super().__init__()
        self.update(*args)

    def update(self, *args: Any) -> None:
        """Hold these Cells too: a dict, pairs, or another CellDict."""
        try:
            pairs = dict(*args)
        except (TypeError, ValueError):
            allowed = "A dict of names and Cells, or pairs"
            raise ArgumentTypeError(f"cells={shorten(args)}", where=self._where(), allowed=allowed) from None
        for key, cell in pairs.items():
            self[key] = cell

    def __setitem__(self, key: str, cell: Cell) -> None:
        if not isinstance(key, str) or not key or "." in key or not isinstance(cell, Cell):
            allowed = "A text that is not empty, without a dot, and a Cell"
            raise ArgumentTypeError(f"{shorten(key)}: {shorten(cell)}", where=self._where(), allowed=allowed)
        if hasattr(type(self), key):
            hint = "Take another name"
            raise ArgumentError(f"key={key!r}", where=self._where(), allowed="No name of a Cell's own", hint=hint)
        setattr(self, key, cell)

    def __getitem__(self, key: str) -> Cell:
        if key not in self._cells:
            raise _KeyError(f"key={shorten(key)}", where=self._where(), allowed=f"One of {list(self._cells)}")
        return self._cells[key]

    def __delitem__(self, key: str) -> None:
        self[key]  # refused where it is missing
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._cells)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._cells))

    def construct(self, *args: Any) -> Any:
        hint = "Loop over it: `for cell in self.branches.values(): x = cell(x)`"
        raise CellError("a CellDict is not called", where=self._where(), hint=hint)


class _KeyError(ArgumentError, KeyError):
    """A name that a CellDict does not hold; also a KeyError."""

    __str__ = ArgumentError.__str__


class Unflatten(Cell):
    """One dim as several.  input: (..., n, ...) -> (..., *unflattened_size, ...)."""

    @kept(axis=integer(), unflattened_size=SIZES)
    def __init__(self, axis: int, unflattened_size: tuple[int, ...] | list[int]) -> None:
        super().__init__()

    def construct(self, input: Any) -> Any:
        shape = tuple(input.shape)
        axis = self.axis + len(shape) * (self.axis < 0)
        if not 0 <= axis < len(shape):
            raise ShapeError(f"axis={self.axis} of shape {shape}", where=self._where(), allowed="A dim of the input")
        return NAMES["reshape"](input, (*shape[:axis], *self.unflattened_size, *shape[axis + 1 :]))


class AdaptiveAvgPool1d(Cell):
    """Means over windows that fit the result.  input: (n, c, l) or (c, l) -> (..., output_size)."""

    function = "adaptive_avg_pool1d"

    @kept(output_size=integer(1))
    def __init__(self, output_size: int) -> None:
        super().__init__()

    def construct(self, input: Any) -> Any:
        return NAMES[self.function](input, self.output_size)


class AdaptiveMaxPool1d(AdaptiveAvgPool1d):
    """AdaptiveAvgPool1d with maxima.  input: (n, c, l) or (c, l) -> (..., output_size)."""

    function = "adaptive_max_pool1d"


class ChannelShuffle(Cell):
    """Channels of `groups` groups in turn.  x: (n, c, ...) -> the same."""

    @kept(groups=integer(1))
    def __init__(self, groups: int) -> None:
        super().__init__()

    def construct(self, x: Any) -> Any:
        return NAMES["channel_shuffle"](x, self.groups)


class PixelUnshuffle(Cell):
    """Blocks of pixels as channels.  input: (..., c, h, w) -> (..., c * factor^2, h / factor, w / factor)."""

    @kept(downscale_factor=integer(1))
    def __init__(self, downscale_factor: int) -> None:
        super().__init__()

    def construct(self, input: Any) -> Any:
        return NAMES["pixel_unshuffle"](input, self.downscale_factor)


class Unfold(Cell):
    """Patches as channels, a patch's first element of all channels first.  x: (n, c, h, w) -> (n, kh kw c, oh, ow).

    ksizes, strides, rates  (1, height, width, 1): of patches, between patches, between elements of one
    padding                 "same": zeros around the picture, ceil(size / stride) patches; "valid": none
    """

    @kept(ksizes=_PATCH, strides=_PATCH, rates=_PATCH, padding=choice("same", "valid", "SAME", "VALID"))
    def __init__(self, ksizes: Any, strides: Any, rates: Any, padding: str = "valid") -> None:
        super().__init__()
        if any(len(given) != 4 or given[0] != 1 or given[3] != 1 for given in (ksizes, strides, rates)):
            what = f"ksizes={ksizes}, strides={strides}, rates={rates}"
            raise ArgumentError(what, where="Unfold", allowed="(1, height, width, 1)")

    def construct(self, x: Any) -> Any:
        kernel, stride, rate = (tuple(given[1:3]) for given in (self.ksizes, self.strides, self.rates))
        made = windows(tuple(x.shape[2:]), kernel, stride, rate, pad_mode=self.padding)
        columns = NAMES["window_columns"](x, ksizes=kernel, strides=stride, dilations=rate, pads=made.pads)
        return NAMES["reshape"](NAMES["swapaxes"](columns, 1, 2), (x.shape[0], -1, *made.out_size))


class ResizeBilinear(Cell):
    """Pictures in another size, as ops.ResizeBilinear.  x: (n, c, h, w) -> (n, c, *size) or scale_factor times."""

    @kept(half_pixel_centers=flag)
    def __init__(self, half_pixel_centers: bool = False) -> None:
        super().__init__()

    def construct(self, x: Any, size: Any = None, scale_factor: Any = None, align_corners: bool = False) -> Any:
        if (size is None) == (scale_factor is None):
            raise ArgumentError(f"size={size}, scale_factor={scale_factor}", where=self._where(), allowed="One of both")
        if scale_factor is not None:
            size = tuple(n * integer(1)(self._where(), "scale_factor", scale_factor) for n in x.shape[2:])
        corners, middles = align_corners, self.half_pixel_centers
        return NAMES["resize_bilinear"](x, size=size, align_corners=corners, half_pixel_centers=middles)


class RReLU(Cell):
    """x where it is above 0, elsewhere x times a number from lower to upper, drawn anew.  x: (...) -> same."""

    @kept(lower=floating(), upper=floating())
    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3) -> None:
        super().__init__()
        if lower > upper:
            raise ArgumentError(f"lower={lower}, upper={upper}", where=self._where(), allowed="lower <= upper")

    def construct(self, x: Any) -> Any:
        bounds = (Tensor([bound]) for bound in (self.lower, self.upper))
        slope = NAMES["cast"](NAMES["uniform"](tuple(x.shape), *bounds), str(x.dtype))
        return NAMES["where"](x > 0, x, x * slope)


class FocalLoss(LossBase):
    """Cross-entropy in which what is classified well counts less: -(1 - p)^gamma * log(p), p of the label's class.

    logits: (n, c, ...), labels: (n, 1, ...) ints, or (n, c, ...) one-hot -> () or (n, ...).
    weight: (c,), a factor per class;  gamma: from 0 on;  reduction: "mean", "sum", "none"
    """

    @kept(gamma=floating(0))
    def __init__(self, weight: Any = None, gamma: float = 2.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        if weight is not None and (not isinstance(weight, Tensor) or len(weight.shape) != 1):
            raise ArgumentTypeError(f"weight={shorten(weight)}", where="FocalLoss", allowed="A Tensor (c,), or None")
        self.__dict__["weight"] = weight

    def construct(self, logits: Any, labels: Any) -> Any:
        given = [getattr(x, "shape", None) for x in (logits, labels)]
        if not all(isinstance(shape, tuple) and len(shape) >= 2 for shape in given):
            what = f"logits {shorten(logits)}, labels {shorten(labels)}"
            raise ShapeError(what, where=self._where(), allowed="Tensors (n, c, ...) and (n, 1, ...) or (n, c, ...)")
        (n, c, *_), (m, one, *_) = given
        if n != m or one not in (1, c) or tuple(logits.shape[2:]) != tuple(labels.shape[2:]):
            what = f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)}"
            raise ShapeError(what, where=self._where(), allowed="(n, c, ...) and (n, 1, ...) or (n, c, ...)")
        logits, labels = (NAMES["reshape"](x, (n, x.shape[1], -1)) for x in (logits, labels))
        logs = NAMES["log_softmax"](logits, axis=1)
        factor = None
        if self.weight is not None:
            factor = NAMES["broadcast_to"](NAMES["reshape"](self.weight, (1, c, 1)), shape=tuple(logs.shape))
        if one == 1:
            places = NAMES["cast"](labels, "int32")
            logs = NAMES["gather_elements"](logs, 1, places)
            factor = factor if factor is None else NAMES["gather_elements"](factor, 1, places)
        share = NAMES["pow"](1.0 - NAMES["exp"](logs), self.gamma)
        logs = logs if factor is None else logs * factor
        if one == 1:
            return self.get_loss(NAMES["reduce_mean"](0.0 - share * logs, 1))
        return self.get_loss(NAMES["reduce_mean"](0.0 - share * labels * logs, -1))
