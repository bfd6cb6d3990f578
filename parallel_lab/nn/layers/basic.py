"""Layers: Dense, Flatten, and the Cells that hold others in order.

net = nn.SequentialCell(nn.Flatten(), nn.Dense(784, 512, activation="relu"), nn.Dense(512, 10))
net[1].matmul.shard(((2, 4), (1, 4)))     # the weight is stored (out, in): counts are in storage order
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ...base.checks import flag, integer, kept
from ...base.errors import ArgumentError, ArgumentTypeError, CellError, ShapeError, shorten
from ...ops.elementwise import bias_add
from ...ops.linalg import matmul
from ...ops.machine.primitive import Primitive
from ...ops.shape import flatten, reshape, shape as shape_of
from ..cell import Cell
from ..initializer import HeUniform, Uniform, initializer
from ..tensor.parameter import Parameter
from .activation import OneOperator, get_activation


class Flatten(OneOperator):
    """The dims from start_dim to end_dim joined: all but the first.  x: (a, ...) -> (a, product of the rest)."""

    operator = flatten.primitive

    @kept(start_dim=integer(), end_dim=integer())
    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self._begin()

    def construct(self, x: Any) -> Any:
        return self.flatten(x) if (self.start_dim, self.end_dim) == (1, -1) else x.flatten(self.start_dim, self.end_dim)


class Identity(Cell):
    """Its input as it is: for the place of a layer that is omitted.  x: (...) -> (...)."""

    def construct(self, x: Any) -> Any:
        return x


class Weighted(Cell):
    """A layer with `weight`, of shape (out, ...), and perhaps `bias` (out,), added by the operator `bias_add`."""

    def _draw(
        self,
        shape: tuple[int, ...],
        weight_init: Any,
        bias_init: Any,
        has_bias: bool,
        dtype: Any,
        outputs: int | None = None,
    ) -> None:
        """Make the Parameters.  shape: of the weight;  outputs: length of the bias, if it is not the weight's."""
        weight_init = HeUniform(math.sqrt(5)) if weight_init is None else weight_init
        self.weight, self.bias = Parameter(initializer(weight_init, shape, dtype)), None
        if has_bias:
            bias_init = Uniform(1 / math.sqrt(math.prod(shape[1:]))) if bias_init is None else bias_init
            self.bias = Parameter(initializer(bias_init, (outputs or shape[0],), dtype))
            self.bias_add = bias_add.primitive()
        vars(self).update(weight_init=weight_init, bias_init=bias_init)  # a Parameter among them is not the layer's


class Dense(Weighted):
    """x @ weight.T + bias, then the activation.  x: (..., in_channels) -> (..., out_channels).

    weight_init  what `initializer` takes; default HeUniform(sqrt(5)), that is uniform within 1 / sqrt(in_channels)
    bias_init    default uniform within 1 / sqrt(in_channels)
    has_bias     add a bias
    activation   name, Cell, Primitive or None

    The weight is stored (out_channels, in_channels). Inputs of another rank than 2 are reshaped to (rows, in_channels)
    and back. The operators are `matmul` (MatMul(transpose_b=True)) and `bias_add`; give them strategies with
    `dense.matmul.shard(...)`. Where the strategy of `bias_add` has a count for each dim of the input, the bias is added
    after the way back, so that a dim among the rows (a sequence) can be split. Defaults: MindSpore 2.x, nn.Dense.
    """

    @kept(in_channels=integer(1), out_channels=integer(1), has_bias=flag)
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        weight_init: Any = None,
        bias_init: Any = None,
        has_bias: bool = True,
        activation: str | Cell | Primitive | None = None,
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        self.reshape, self.matmul = reshape.primitive(), matmul.primitive(transpose_b=True)
        self._draw((out_channels, in_channels), weight_init, bias_init, has_bias, dtype)
        self.activation = get_activation(activation, "Dense")

    def construct(self, x: Any) -> Any:
        shape = shape_of(x)
        if not shape or shape[-1] != self.in_channels:
            allowed = f"The last dim has {self.in_channels} elements (in_channels)"
            raise ShapeError(f"an input of shape {shape}", where=self._where(), allowed=allowed)
        rows = len(shape) != 2
        if rows:
            x = self.reshape(x, (math.prod(shape[:-1]), shape[-1]))
        x = self.matmul(x, self.weight)
        counts = self.bias_add.in_strategy if rows and self.has_bias else None
        if counts is not None and len(getattr(counts[0], "axes", counts[0])) == len(shape):
            x = self.reshape(x, (*shape[:-1], self.out_channels))
            x, rows = self.bias_add.op.call((x, self.bias), {"data_format": "NHWC"}, self.bias_add), False
        elif self.has_bias:
            x = self.bias_add(x, self.bias)
        if self.activation is not None:
            x = self.activation(x)
        return self.reshape(x, (*shape[:-1], self.out_channels)) if rows else x


# ---- Cells in order ----


class _Ordered(Cell):
    """Cells under the names "0", "1", ...; index, slice, change and iterate it like a list."""

    def __init__(self, *args: Cell | list[Cell] | tuple[Cell, ...] | OrderedDict[str, Cell]) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], dict):
            for name, cell in args[0].items():
                self.insert_child_to_cell(name, cell)
        else:
            cells = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
            self._renumber(list(cells))

    def _renumber(self, cells: list[Any]) -> None:
        """Hold exactly `cells`, in this order and under their numbers."""
        for cell in cells:
            self._check_cell(cell)
        for name in list(self._cells):
            delattr(self, name)
        for i, cell in enumerate(cells):
            setattr(self, str(i), cell)

    def _check_cell(self, value: Any) -> None:
        if not isinstance(value, Cell):
            raise ArgumentTypeError(f"element {shorten(value)}", where=self._where(), allowed="Cells only")

    def _list(self) -> list[Cell]:
        return list(self._cells.values())

    def _position(self, index: Any, *, end: int = 0) -> int:
        count = len(self._cells) + end
        if isinstance(index, bool) or not isinstance(index, (int, np.integer)):
            raise ArgumentTypeError(f"index {shorten(index)}", where=self._where(), allowed="An int or a slice")
        if not -count <= index < count:
            raise _IndexError(f"index {index}", where=self._where(), allowed=f"There are {len(self._cells)} cells")
        return int(index) % count

    def __len__(self) -> int:
        return len(self._cells)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._list())

    def __getitem__(self, index: int | slice) -> Any:
        """The Cell at `index`, or for a slice a list or sequence of this kind (its Cells are shared, names kept)."""
        if isinstance(index, slice):
            part = type(self)()
            names = list(self._cells)[index]
            # Registered without `setattr`: a view must not rename what the whole still holds.
            for name in names:
                part._cells[name] = part.__dict__[name] = self._cells[name]
            return part
        return self._list()[self._position(index)]

    def __setitem__(self, index: int, cell: Cell) -> None:
        name = list(self._cells)[self._position(index)]
        self._check_cell(cell)
        setattr(self, name, cell)

    def __delitem__(self, index: int | slice) -> None:
        cells = self._list()
        del cells[index if isinstance(index, slice) else self._position(index)]
        self._renumber(cells)

    def append(self, cell: Cell) -> _Ordered:
        """Add a Cell at the end. Returns self."""
        return self.insert(len(self), cell)

    def extend(self, cells: Iterable[Cell]) -> _Ordered:
        """Add Cells at the end. Returns self."""
        if isinstance(cells, type) or not isinstance(cells, Iterable):
            raise ArgumentTypeError(f"cells={shorten(cells)}", where=self._where(), allowed="A list of Cells")
        for cell in list(cells):
            self.append(cell)
        return self

    def insert(self, index: int, cell: Cell) -> _Ordered:
        """Put a Cell before the one at `index`; the later ones move up. Returns self."""
        cells = self._list()
        position = self._position(index, end=1) if index >= 0 else self._position(index)
        if position == len(cells) and isinstance(cell, Cell):
            while str(position) in self._cells:  # a slice keeps the numbers of the whole
                position += 1
            self.insert_child_to_cell(str(position), cell)
        else:
            self._renumber([*cells[:position], cell, *cells[position:]])
        return self


class SequentialCell(_Ordered):
    """Cells in a row: `SequentialCell(a, b)`, `SequentialCell([a, b])` or `SequentialCell(OrderedDict(first=a))`.

    Parameters are named "0.weight", "1.weight", ... or by the keys of the dict.
    """

    def construct(self, x: Any) -> Any:
        for cell in self._list():
            x = cell(x)
        return x


class CellList(_Ordered):
    """A list of Cells that are the network's: `for block in self.blocks: x = block(x)`. It is not called itself."""

    _is_called = False

    def construct(self, *args: Any) -> Any:
        hint = "Loop over it: `for cell in self.blocks: x = cell(x)`, or use SequentialCell"
        raise CellError("a CellList is not called", where=self._where(), hint=hint)


class _IndexError(ArgumentError, IndexError):
    """An index outside a SequentialCell or CellList; also an IndexError."""
