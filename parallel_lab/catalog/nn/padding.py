"""Layers that pad the last dims, and layers that only rearrange or compare: the functions of `ops` as Cells.

pad = nn.ReflectionPad2d(1)      # (n, c, h, w) -> (n, c, h + 2, w + 2)
"""

from __future__ import annotations

from typing import Any

from ... import ops
from ...base.checks import checked, choice, instance, integer, kept, number, sequence_of
from ...base.errors import ArgumentError, ShapeError, shorten
from ...nn.cell import Cell

_COUNTS = sequence_of(integer(0), "An int, or a tuple of ints: (before, after) of the last dim, then of the one before")


class _Pad(Cell):
    """Pads the last `dims` dims of x.  mode, value: as of `ops.pad`; ndim: how many dims x may have."""

    dims, mode, value, ndim = 0, "constant", 0.0, ()

    def __init__(self, padding: Any) -> None:
        super().__init__()
        counts = (padding,) * (2 * self.dims) if isinstance(padding, int) else padding
        self.padding = tuple(_COUNTS(self.cls_name, "padding", counts))
        if len(self.padding) != 2 * self.dims:
            allowed = f"An int, or {2 * self.dims} ints: before and after each dim, the last dim's first"
            raise ArgumentError(f"padding={shorten(padding)}", where=self.cls_name, allowed=allowed)

    def construct(self, x: Any) -> Any:
        shape = ops.shape(x)
        if len(shape) < self.dims or self.ndim and len(shape) not in self.ndim:
            allowed = f"{' or '.join(map(str, self.ndim))} dims" if self.ndim else f"At least {self.dims} dims"
            raise ShapeError(f"x of shape {shape}", where=self._where(), allowed=allowed)
        return ops.pad(x, self.padding, self.mode, self.value)


class _ConstantPad(_Pad):
    @kept(value=number())
    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)


def _pad(name: str, base: type[_Pad], dims: int, mode: str, what: str) -> type[_Pad]:
    last = "the last dim" if dims == 1 else f"the last {dims} dims"
    counts = "an int, or a tuple (before, after) of the last dim, then of the one before it"
    text = f"Pads {last} with {what}.  x: (...) -> (...). padding: {counts}. Form: MindSpore, nn.{name}."
    ndim = () if mode == "constant" else (dims + 1, dims + 2)
    return type(name, (base,), {"dims": dims, "mode": mode, "ndim": ndim, "__doc__": text, "__module__": __name__})


ConstantPad1d = _pad("ConstantPad1d", _ConstantPad, 1, "constant", "`value`")
ConstantPad2d = _pad("ConstantPad2d", _ConstantPad, 2, "constant", "`value`")
ConstantPad3d = _pad("ConstantPad3d", _ConstantPad, 3, "constant", "`value`")
ZeroPad2d = _pad("ZeroPad2d", _Pad, 2, "constant", "zeros")
ReflectionPad1d = _pad("ReflectionPad1d", _Pad, 1, "reflect", "what lies inside, mirrored at the edge element")
ReflectionPad2d = _pad("ReflectionPad2d", _Pad, 2, "reflect", "what lies inside, mirrored at the edge element")
ReflectionPad3d = _pad("ReflectionPad3d", _Pad, 3, "reflect", "what lies inside, mirrored at the edge element")
ReplicationPad1d = _pad("ReplicationPad1d", _Pad, 1, "replicate", "the edge element")
ReplicationPad2d = _pad("ReplicationPad2d", _Pad, 2, "replicate", "the edge element")
ReplicationPad3d = _pad("ReplicationPad3d", _Pad, 3, "replicate", "the edge element")


class Pad(Cell):
    """x with elements put before and after its dims.  x: (...), paddings: ((before, after), ...) per dim -> (...).

    mode  "CONSTANT": zeros; "REFLECT", "SYMMETRIC": mirrored, without and with the edge element
    """

    @checked(paddings=instance(tuple, "A tuple of pairs"), mode=choice("CONSTANT", "REFLECT", "SYMMETRIC"))
    def __init__(self, paddings: tuple, mode: str = "CONSTANT") -> None:
        super().__init__()
        self.paddings, self.mode = paddings, mode.lower()

    def construct(self, x: Any) -> Any:
        return ops.pad_dims(x, paddings=self.paddings, mode=self.mode)


class PixelShuffle(Cell):
    """Channels made pixels.  x: (..., c r^2, h, w) -> (..., c, h r, w r), r the upscale_factor."""

    @kept(upscale_factor=integer(1))
    def __init__(self, upscale_factor: int) -> None:
        super().__init__()

    def construct(self, input: Any) -> Any:
        return ops.pixel_shuffle(input, self.upscale_factor)


class CosineSimilarity(Cell):
    """Sum of products along `dim` over the product of both norms, each at least eps.  x1, x2: (...) -> (...)."""

    @kept(dim=integer(), eps=number(0))
    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()

    def construct(self, x1: Any, x2: Any) -> Any:
        return ops.cosine_similarity(x1, x2, self.dim, self.eps)


class Softmax2d(Cell):
    """Softmax over the channels at every place.  x: (n, c, h, w) or (c, h, w) -> the same."""

    def construct(self, input: Any) -> Any:
        shape = ops.shape(input)
        if len(shape) not in (3, 4):
            raise ShapeError(f"x of shape {shape}", where=self._where(), allowed="(n, c, h, w) or (c, h, w)")
        return ops.softmax(input, axis=-3)
