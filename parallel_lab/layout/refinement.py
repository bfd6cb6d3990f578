"""Refinement: two layouts written over one device matrix and one tensor shape.

Redistribution compares layouts entry by entry, which needs both on common ground. Splitting an axis of 8 ranks into 2 x
4, or a tensor dim of 16 into 2 x 8, moves no rank and no element; it only gives the parts names. Eight ranks, a (16,
16) tensor, rows split 2 ways and columns 4 ways against rows split 8 ways:

    >>> both = common_refinement(TensorLayout((2, 4), (1, 0)), TensorLayout((8,), (0, -1)), (16, 16), (16, 16))
    >>> both.device_matrix, both.shape, both.src_map, both.dst_map
    ((2, 4), (2, 8, 16), (1, -1, 0), (1, 0, -1))

Read: columns (last entry, axis 0) must move to the inner part of the rows. An axis is known here by its `span` (lo,
hi), the running products of the device matrix left and right of it: spans of different device matrices of the same
ranks can be compared. Rules: MindSpore, tensor_layout and shape_util (reference behaviour recorded in
tests/recorded/redistribution.json).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..base.errors import LayoutError
from .tensor_layout import Shape, TensorLayout

Span = tuple[int, int]
Piece = tuple[int, Span | None]  # one dim of a refined tensor: size, and the axis that splits it (None = whole)


@dataclass(frozen=True)
class Refinement:
    """Two layouts of one tensor on common ground.

    device_matrix     common device matrix, without axes of size 1
    shape             common global shape, without dims of size 1
    src_map, dst_map  per dim of `shape` the one axis that splits it, counted from the right, or -1
    """

    device_matrix: tuple[int, ...]
    shape: Shape
    src_map: tuple[int, ...]
    dst_map: tuple[int, ...]

    @property
    def layouts(self) -> tuple[TensorLayout, TensorLayout]:
        """Layouts of `shape`: the source's and the destination's."""
        src, dst = (tuple((axis,) if axis >= 0 else () for axis in axes) for axes in (self.src_map, self.dst_map))
        return TensorLayout(self.device_matrix, src), TensorLayout(self.device_matrix, dst)


# ---- factorisations of a number ----


def _products(factors: Iterable[int]) -> list[int]:
    products, product = [], 1
    for factor in factors:
        product *= factor
        if factor != 1:
            products.append(product)
    return products


@lru_cache(maxsize=4096)
def expand_factors(factors: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """Split `factors` also where `other` is split; None if the splits do not nest.

    The running products of both, united and sorted, give the result as successive ratios.

    >>> expand_factors((2, 8, 32), (16, 4, 8)), expand_factors((2, 3), (3, 2))
    ((2, 8, 4, 8), None)
    """
    result, last = [], 1
    for product in sorted({*_products(factors), *_products(other)}):
        if product % last:
            return None
        result.append(product // last)
        last = product
    return tuple(result)


def common_factors(one: Iterable[int], two: Iterable[int]) -> tuple[int, ...] | None:
    """Coarsest factorisation that refines both; or None. Raises LayoutError if the totals differ.

    >>> common_factors((8, 4), (2, 16))
    (2, 4, 4)
    """
    one, two = tuple(one), tuple(two)
    if math.prod(one) != math.prod(two):
        what = f"{one} has {math.prod(one)} elements and {two} has {math.prod(two)}"
        raise LayoutError(what, allowed="Both must have equally many")
    return expand_factors(one, two)


# ---- spans ----


@lru_cache(maxsize=4096)
def _spans(device_matrix: tuple[int, ...]) -> tuple[Span, ...]:
    """Span of every axis, axis 0 (the rightmost) first."""
    spans, low = [], 1
    for size in device_matrix:
        spans.append((low, low * size))
        low *= size
    return tuple(reversed(spans))


@lru_cache(maxsize=4096)
def _axes_over(coarse: tuple[int, ...], fine: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """For every axis of one device matrix the axes of another (outer first) that lie in its span."""
    spans = _spans(fine)
    return tuple(
        tuple(a for a in range(len(spans) - 1, -1, -1) if low <= spans[a][0] and spans[a][1] <= high)
        for low, high in _spans(coarse)
    )


def on_device_matrix(layout: TensorLayout, device_matrix: Iterable[int]) -> TensorLayout:
    """The same placement over another device matrix. Raises LayoutError if that does not refine this one.

    >>> on_device_matrix(TensorLayout((8,), (0, -1)), (2, 4))
    TensorLayout(device_matrix=(2, 4), tensor_map=((1, 0), ()), partial=(), reduce='sum')
    """
    device_matrix = tuple(device_matrix)
    return layout if layout.device_matrix == device_matrix else _on_device_matrix(layout, device_matrix)


@lru_cache(maxsize=16384)
def _on_device_matrix(layout: TensorLayout, device_matrix: tuple[int, ...]) -> TensorLayout:
    form = layout.canonical()
    axes_of = _axes_over(form.device_matrix, device_matrix)
    for a, axes in enumerate(axes_of):
        if math.prod([device_matrix[-1 - x] for x in axes]) != form.axis_size(a):
            what = f"{layout} cannot be written over device_matrix {device_matrix}"
            raise LayoutError(what, allowed=f"A refinement of {form.device_matrix}")
    if form.device_num != math.prod(device_matrix):
        raise LayoutError(f"device_matrix {device_matrix} has not the {form.device_num} ranks of {layout}")
    return TensorLayout.known(
        device_matrix,
        tuple([tuple([x for a in axes for x in axes_of[a]]) for axes in form.tensor_map]),
        tuple(sorted([x for a in form.partial for x in axes_of[a]])),
        layout.reduce,
    )


# ---- refining a tensor together with its layout ----


@lru_cache(maxsize=16384)
def _pieces(layout: TensorLayout, shape: Shape, device_matrix: tuple[int, ...]) -> list[Piece]:
    """Dims of the tensor, split until each has one axis of the refined device matrix; without dims of size 1.

    Every axis but the last takes a piece of exactly its size, the last one the rest.
    """
    fine, pieces = _spans(device_matrix), []
    axes_of = _axes_over(layout.device_matrix, device_matrix)
    for size, axes in zip(shape, layout.tensor_map, strict=True):
        if size == 1:
            continue
        cuts = [fine[x] for a in axes for x in axes_of[a] if fine[x][0] != fine[x][1]]
        for low, high in cuts[:-1]:
            pieces.append((high // low, (low, high)))
            size //= high // low
        pieces.append((size, cuts[-1] if cuts else None))
    return pieces


def _cut(pieces: list[Piece], shape: Shape) -> tuple[list[Piece] | None, int]:
    """Split `pieces` to `shape`, their refinement: a sub-dim takes as many of the slices left as it has room for.

    Returns (pieces, 0), (None, p) to split an axis at the running product p first, or (None, 0) if it cannot be done.
    """
    result: list[Piece] = []
    sizes = iter(shape)
    for size, span in pieces:
        part, left = 1, span
        while part < size:
            sub = next(sizes)
            part *= sub
            if left is None:
                result.append((sub, None))
                continue
            low, high = left
            count = high // low
            if sub >= count:
                if sub % count:
                    return None, 0
                result.append((sub, left))
                left = None
            else:
                return None, (0 if count % sub else low * sub)
    return result, 0


def _map(pieces: list[Piece], device_matrix: tuple[int, ...]) -> tuple[int, ...]:
    number = {span: a for a, span in enumerate(_spans(device_matrix))}
    return tuple(-1 if span is None else number[span] for _, span in pieces)


def _with_cut(device_matrix: tuple[int, ...], product: int) -> tuple[int, ...] | None:
    """`device_matrix` split at the running product `product` too; None if that does not nest, or for 0."""
    if not product:
        return None
    total = math.prod(device_matrix)
    return None if total % product else expand_factors(device_matrix, (product, total // product))


def common_refinement(src: TensorLayout, dst: TensorLayout, shape: Shape, dst_shape: Shape) -> Refinement | None:
    """Both layouts over the coarsest common device matrix and tensor shape, or None.

    src, dst          layouts of `shape` and of `dst_shape`; pending reductions are ignored, their axes kept apart
    shape, dst_shape  global shapes with equally many elements; they differ if a Reshape lies between

    Axes that always travel together are one axis first (canonical form), so that no message is split without need.
    """
    src, dst = src.canonical(), dst.canonical()
    device_matrix = common_factors(src.device_matrix, dst.device_matrix)
    while device_matrix is not None and math.prod(shape):
        one, two = _pieces(src, shape, device_matrix), _pieces(dst, dst_shape, device_matrix)
        common = common_factors([n for n, _ in one], [n for n, _ in two])
        if common is None:
            return None
        one, cut_one = _cut(one, common)
        two, cut_two = _cut(two, common)
        if one is not None and two is not None:
            return Refinement(device_matrix, common, _map(one, device_matrix), _map(two, device_matrix))
        device_matrix = _with_cut(device_matrix, cut_one or cut_two)
    return None


def join_axes(pieces: Iterable[tuple[int, tuple[int, ...], int]]) -> tuple[int, ...] | None:
    """Axes of the dim that results when neighbouring dims are joined, or None if no tensor_map entry says the same.

    pieces  per dim (size, axes, split): all dims before the last split one must be split completely, to length 1

    >>> join_axes([(2, (1,), 2), (8, (0,), 4)]), join_axes([(2, (), 1), (8, (0,), 4)])
    ((1, 0), None)
    """
    joined: tuple[int, ...] = ()
    closed = False
    for size, axes, cut in pieces:
        if axes and closed:
            return None
        joined += axes
        closed = closed or cut < size
    return joined


@lru_cache(maxsize=4096)
def flat_placement(layout: TensorLayout, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """What each rank holds, however shaped: equal for two (layout, shape) if Reshapes of the slices lead between them.

    Digits of the flat index that the rank decides, as (stride, count, span of ranks), then what is pending.
    """
    spans = _spans(layout.device_matrix)
    digits: list[tuple[int, int, int, int]] = []
    stride = math.prod(shape)
    for size, axes in zip(shape, layout.tensor_map, strict=True):
        block = stride
        for a in axes:
            low, high = spans[a]
            if low == high:
                continue
            count = high // low
            block //= count
            if digits and digits[-1][0] == block * count and digits[-1][3] == low:
                _, more, low, _ = digits.pop()
                count *= more
            digits.append((block, count, low, high))
        stride = stride // size if size else 0
    pending: list[Span] = []
    for low, high in sorted(spans[a] for a in layout.partial if spans[a][0] != spans[a][1]):
        if pending and pending[-1][1] == low:
            low = pending.pop()[0]
        pending.append((low, high))
    return tuple(digits), tuple(pending), layout.reduce if pending else "sum"
