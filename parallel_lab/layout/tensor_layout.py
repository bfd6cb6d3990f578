"""`TensorLayout`: which part of a tensor each rank holds.

A layout has three parts, in MindSpore's words:

    device_matrix   shape of the ranks, row-major: rank r has one coordinate per axis
    tensor_map      per tensor dim the device-matrix axes that split it, counted from the right; () (or -1) = whole
    partial         axes along which every rank holds only an addend (or a candidate of max/min) of the value

Eight ranks as (2, 4); a (16, 32) tensor split in rows by axis 1 and in columns by axis 0:

    >>> x = TensorLayout((2, 4), (1, 0))
    >>> x.slice_shape((16, 32)), x.slice_index((16, 32), 5)
    ((8, 8), (slice(8, 16, None), slice(8, 16, None)))
    >>> x.group((0,), 5), x.group((1,), 5)
    ((4, 5, 6, 7), (1, 5))

A tensor dim may be split by several axes, the first one being the outer (slower) split. Axes of the device matrix that
neither split a dim nor are partial are replica axes: ranks that differ only there hold equal data. Rules: MindSpore,
tensor_layout (see `Layout` in its docs).
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from ..base.errors import LayoutError, LayoutTypeError, in_family
from ..base.unchecked import unchecked

REDUCTIONS = ("sum", "max", "min", "prod", "avg")  # avg: what is pending is a mean, in plans of DTensors
Shape = tuple[int, ...]


@lru_cache(maxsize=65536, typed=True)  # numpy's rank 5 gives numpy's numbers, and 5 does not
def _ranks_along(device_matrix: tuple[int, ...], axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    strides, base, stride = [], rank, 1
    for axis, size in enumerate(reversed(device_matrix)):
        if axis in axes:
            base -= (rank // stride % size) * stride
            strides.append((stride, size))
        stride *= size
    ranks = [base]
    for stride, size in reversed(strides):
        ranks = [r + i * stride for r in ranks for i in range(size)]
    return tuple(ranks)


def ranks_along(device_matrix: Iterable[int], axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Ranks that differ from `rank` only along `axes` (counted from the right), in device-matrix order (ascending).

    >>> ranks_along((2, 4), (0,), 5)
    (4, 5, 6, 7)
    >>> ranks_along((2, 1, 4, 2), (1, 3), 5)
    (1, 3, 5, 7, 9, 11, 13, 15)
    """
    return _ranks_along(tuple(device_matrix), tuple(sorted(set(axes))), rank)


def axes_of_groups(groups: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(device matrix, axes) whose groups these are, or None: they differ in size, distance, or omit a rank.

    >>> axes_of_groups(((0, 2), (1, 3), (4, 6), (5, 7))), axes_of_groups(((0, 1), (2,)))
    (((2, 2, 2), (1,)), None)
    """
    size, total = len(groups[0]), sum(map(len, groups))
    step = groups[0][1] - groups[0][0] if size > 1 else 1
    if step < 1 or total % (size * step):
        return None
    matrix, axes = (total // (size * step), size, step), (1,)
    return (matrix, axes) if {ranks_along(matrix, axes, r) for r in range(total)} == set(map(tuple, groups)) else None


def canonical_axes(device_matrix: Iterable[int], axes: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(device matrix, axes) of the same groups with the fewest axes: groups are equal exactly if these are.

    >>> canonical_axes((4, 1, 2), (2, 1)), canonical_axes((4, 2), (1,)), canonical_axes((2, 2, 2), (1, 2))
    (((4, 2), (1,)), ((4, 2), (1,)), ((4, 2), (1,)))
    """
    matrix, taken = tuple(device_matrix), set(axes)
    merged: list[tuple[int, bool]] = []
    for position, size in enumerate(matrix):
        part = len(matrix) - 1 - position in taken
        if size == 1:
            continue
        if merged and merged[-1][1] == part:
            merged[-1] = (merged[-1][0] * size, part)
        else:
            merged.append((size, part))
    return tuple(size for size, _ in merged), tuple(len(merged) - 1 - n for n, (_, part) in enumerate(merged) if part)


def slice_text(index: tuple[slice, ...], shape: tuple[int, ...]) -> str:
    """A slice index as a learner writes it: whole dims are `:`.

    >>> slice_text((slice(8, 16), slice(0, 32)), (16, 32))
    '[8:16, :]'
    """
    parts = (":" if (s.start, s.stop) == (0, n) else f"{s.start}:{s.stop}" for s, n in zip(index, shape, strict=True))
    return "[" + ", ".join(parts) + "]"


def _axes_of(entry: int | Iterable[int] | None) -> tuple[int, ...]:
    if entry is None or entry == -1:
        return ()
    return tuple(entry) if isinstance(entry, Iterable) else (entry,)


@dataclass(frozen=True)
class TensorLayout:
    """Placement of one tensor over the ranks.

    device_matrix  ranks as a row-major matrix; its product is the number of ranks
    tensor_map     one entry per tensor dim: axis, tuple of axes (outer split first), or -1 / None / () for a whole dim
    partial        axes along which the ranks hold addends that `reduce` must still combine
    reduce         one of REDUCTIONS: how partial values combine
    rows           sizes of the parts of dim 0, where they differ: a rank's slice has as many rows as the largest part,
                   zeros after its own (Gather with manual_split)

    Raises LayoutError if an axis does not exist or is used twice. Shapes are checked where a shape is given.
    """

    device_matrix: tuple[int, ...]
    tensor_map: tuple[tuple[int, ...], ...]
    partial: tuple[int, ...] = ()
    reduce: str = "sum"
    rows: tuple[int, ...] = field(default=(), repr=False)  # most layouts have equal parts

    @in_family(LayoutTypeError, LayoutError)
    def __post_init__(self) -> None:
        if not (isinstance(self.device_matrix, Iterable) and isinstance(self.tensor_map, Iterable)):
            raise LayoutError(f"{self.device_matrix!r}, {self.tensor_map!r}", allowed="Both as tuples: (2, 4), (0, -1)")
        object.__setattr__(self, "device_matrix", tuple(self.device_matrix))
        object.__setattr__(self, "tensor_map", tuple([e if type(e) is tuple else _axes_of(e) for e in self.tensor_map]))
        object.__setattr__(self, "partial", tuple(sorted(_axes_of(self.partial))))
        object.__setattr__(self, "rows", tuple(self.rows) if len(set(self.rows)) > 1 else ())
        self._check()

    def _check(self) -> None:
        if len(self.device_matrix) > 64:  # nobody has so many; their product takes seconds
            raise LayoutError(f"{len(self.device_matrix)} axes", where="device matrix", allowed="At most 64")
        for size in self.device_matrix:
            if not isinstance(size, int) or size < 1:
                raise LayoutError(f"device-matrix entry {size!r} is not a positive int", where=self._given)
        used = [axis for axes in self.tensor_map for axis in axes] + list(self.partial)
        for axis in used:
            if not isinstance(axis, int) or not 0 <= axis < len(self.device_matrix):
                allowed = f"Axes are counted from the right and run from 0 to {len(self.device_matrix) - 1}"
                hint = "Use -1 or () for a dim that stays whole"
                raise LayoutError(f"axis {axis!r} does not exist", where=self._given, allowed=allowed, hint=hint)
        if len(set(used)) < len(used):
            twice = min(axis for axis in set(used) if used.count(axis) > 1)
            allowed = "An axis may split one tensor dim, or be partial, not both and not twice"
            raise LayoutError(f"axis {twice} is used {used.count(twice)} times", where=self._given, allowed=allowed)
        if self.reduce not in REDUCTIONS:
            raise LayoutError(f"reduce={self.reduce!r}", where=self._given, allowed=f"One of {REDUCTIONS}")
        if self.rows and (min(self.rows) < 1 or self.splits[:1] != (len(self.rows),)):
            raise LayoutError(f"rows={self.rows}", where=self._given, allowed="A size per part of dim 0, at least 1")

    @property
    def _given(self) -> str:
        """The layout as it was given, for errors."""
        return f"TensorLayout(device_matrix={self.device_matrix}, tensor_map={self.tensor_map}, partial={self.partial})"

    # ---- makers ----

    @classmethod
    def replicated(cls, device_num: int, ndim: int) -> TensorLayout:
        """Every rank holds the whole tensor."""
        return cls((device_num,), ((),) * ndim)

    @classmethod
    def from_strategy(cls, strategy: Iterable[int], device_num: int) -> TensorLayout:
        """Layout of a tensor whose dim i is split `strategy[i]` ways on `device_num` ranks; spare ranks repeat.

        >>> TensorLayout.from_strategy((4, 1), 8)
        TensorLayout(device_matrix=(4, 1, 2), tensor_map=((2,), ()), partial=(), reduce='sum')
        """
        strategy = tuple(strategy)
        used = math.prod(strategy)
        if used < 1 or device_num % used:
            what = f"strategy {strategy} makes {used} slices on {device_num} devices"
            raise LayoutError(what, allowed="The product must divide the number of devices")
        repeat = (device_num // used,) if used < device_num else ()
        last = len(strategy) - 1 + len(repeat)
        return cls(strategy + repeat, tuple((last - dim,) if cut > 1 else () for dim, cut in enumerate(strategy)))

    @classmethod
    def known(
        cls,
        device_matrix: tuple[int, ...],
        tensor_map: tuple[tuple[int, ...], ...],
        partial: tuple[int, ...] = (),
        reduce: str = "sum",
    ) -> TensorLayout:
        """A layout whose parts are known to fit (tuples of axes, `partial` ascending): they are not checked again."""
        return unchecked(
            cls, device_matrix=device_matrix, tensor_map=tensor_map, partial=partial, reduce=reduce, rows=()
        )

    # ---- sizes ----

    @property
    def device_num(self) -> int:
        """Ranks of the device matrix."""
        return math.prod(self.device_matrix)

    @property
    def ndim(self) -> int:
        """Dims of the tensor."""
        return len(self.tensor_map)

    def axis_size(self, axis: int) -> int:
        """Ranks along `axis` (counted from the right)."""
        return self.device_matrix[-1 - axis]

    @cached_property
    def splits(self) -> tuple[int, ...]:
        """Number of slices per tensor dim (the strategy of this operand)."""
        return tuple([math.prod([self.device_matrix[-1 - a] for a in axes]) for axes in self.tensor_map])

    @property
    def slice_counts(self) -> tuple[float, ...]:
        """How many slices of a rank's size make each dim: no ints where rows are uneven."""
        return self._uneven(self.splits, lambda rows: sum(rows) / max(rows))

    def _uneven(self, per_dim: tuple[Any, ...], of_rows: Callable[[tuple[int, ...]], Any]) -> tuple[Any, ...]:
        """`per_dim` with what `of_rows` says for dim 0, if the parts of that dim differ."""
        return (of_rows(self.rows), *per_dim[1:]) if self.rows else per_dim

    @property
    def replica_axes(self) -> tuple[int, ...]:
        """Axes of more than one rank that neither split a dim nor are partial, ascending."""
        used = {a for axes in self.tensor_map for a in axes} | set(self.partial)
        return tuple(a for a in range(len(self.device_matrix)) if a not in used and self.axis_size(a) > 1)

    @property
    def replica_count(self) -> int:
        """How many ranks hold each slice."""
        return math.prod(self.axis_size(a) for a in self.replica_axes)

    @property
    def is_partial(self) -> bool:
        """Whether several ranks hold addends of the value (or maxima, minima) that are still to be reduced."""
        return any(self.axis_size(a) > 1 for a in self.partial)

    def check_shape(self, shape: tuple[int, ...], where: str = "") -> None:
        """Raise LayoutError unless this layout splits `shape` into equal slices."""
        if len(shape) == self.ndim and not self.rows and not any(map(operator.mod, shape, self.splits)):
            return
        if len(shape) != self.ndim:
            tensor = f"the tensor of shape {tuple(shape)} has {len(shape)} dims"
            raise LayoutError(f"tensor_map {self.tensor_map} has {self.ndim} entries, but {tensor}", where=where)
        if self.rows and shape[0] != sum(self.rows):
            raise LayoutError(f"parts of {self.rows} rows for a tensor of shape {tuple(shape)}", where=where)
        for dim, (size, cut) in enumerate(zip(shape, self.splits, strict=True)):
            if size % cut and not (self.rows and dim == 0):
                what = f"dim {dim} of shape {tuple(shape)} has {size} elements and cannot be split {cut} ways"
                raise LayoutError(what, where=where)

    # ---- slices ----

    def slice_shape(self, shape: Iterable[int]) -> tuple[int, ...]:
        """Shape of the part one rank holds; the same on every rank."""
        shape = tuple(shape)
        self.check_shape(shape)
        return self._uneven(tuple(map(operator.floordiv, shape, self.splits)), max)

    def full_shape(self, part: Iterable[int]) -> tuple[int, ...]:
        """Shape of the tensor, where a rank holds a part of this shape."""
        return self._uneven(tuple([size * cut for size, cut in zip(part, self.splits, strict=True)]), sum)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Coordinates of `rank` in the device matrix, left to right.

        >>> TensorLayout((2, 4), ()).coordinates(5)
        (1, 1)
        """
        self.check_rank(rank)
        coordinates = []
        for size in reversed(self.device_matrix):
            coordinates.append(rank % size)
            rank //= size
        return tuple(reversed(coordinates))

    def check_rank(self, rank: int) -> None:
        """Raise LayoutError unless there is such a rank."""
        if not 0 <= rank < self.device_num:
            raise LayoutError(f"rank {rank} does not exist", allowed=f"Ranks run from 0 to {self.device_num - 1}")

    def slice_numbers(self, rank: int) -> tuple[int, ...]:
        """Per tensor dim, the number of the slice that `rank` holds."""
        coordinates = self.coordinates(rank)
        numbers = []
        for axes in self.tensor_map:
            number = 0
            for axis in axes:
                number = number * self.axis_size(axis) + coordinates[-1 - axis]
            numbers.append(number)
        return tuple(numbers)

    def slice_index(self, shape: Iterable[int], rank: int) -> tuple[slice, ...]:
        """Where the part of `rank` lies in the full tensor of `shape`: an index for numpy."""
        return self.index_of(self.slice_numbers(rank), shape)

    def index_of(self, numbers: tuple[int, ...], shape: Iterable[int]) -> tuple[slice, ...]:
        """Where the slice of these numbers lies in the full tensor of `shape`."""
        index = tuple(slice(i * n, (i + 1) * n) for i, n in zip(numbers, self.slice_shape(shape), strict=True))
        return self._uneven(index, lambda rows: slice(sum(rows[: numbers[0]]), sum(rows[: numbers[0] + 1])))

    # ---- groups ----

    def group(self, axes: Iterable[int], rank: int) -> tuple[int, ...]:
        """Ranks that differ from `rank` only along `axes`, ascending."""
        self.check_rank(rank)
        return ranks_along(self.device_matrix, axes, rank)

    def replicas(self, rank: int) -> tuple[int, ...]:
        """Ranks that hold the same slice (and the same addend) as `rank`, itself included."""
        return self.group(self.replica_axes, rank)

    def partial_group(self, rank: int) -> tuple[int, ...]:
        """Ranks whose addends together make the value at `rank`; `(rank,)` if nothing is partial."""
        return self.group(self.partial, rank)

    # ---- forms ----

    def whole(self) -> TensorLayout:
        """The same tensor with nothing pending: partial axes become replica axes."""
        return TensorLayout(self.device_matrix, self.tensor_map, rows=self.rows)

    def canonical(self) -> TensorLayout:
        """The shortest layout with the same placement: no axis of size 1, axes that always travel together merged.

        Two layouts of a tensor place every slice equally exactly if their canonical forms are equal.

        >>> TensorLayout((2, 1, 4), (2, -1)).canonical() == TensorLayout((2, 2, 2), (2, -1)).canonical()
        True
        """
        return self._canonical

    @cached_property
    def _canonical(self) -> TensorLayout:
        keep = [a for a in range(len(self.device_matrix) - 1, -1, -1) if self.axis_size(a) > 1]
        follows: dict[int, int] = {}
        role: dict[int, tuple[str | int, ...]] = {a: ("partial",) if a in self.partial else ("replica",) for a in keep}
        for dim, axes in enumerate(self.tensor_map):
            cut = [a for a in axes if self.axis_size(a) > 1]
            follows.update(itertools.pairwise(cut))
            role.update(dict.fromkeys(cut, ("dim", dim)))
        runs: list[list[int]] = []
        for axis in keep:
            previous = runs[-1][-1] if runs else None
            joined = previous is not None and (
                follows.get(previous) == axis if role[axis][0] == "dim" else role[previous] == role[axis]
            )
            if joined:
                runs[-1].append(axis)
            else:
                runs.append([axis])
        number = {run[0]: len(runs) - 1 - i for i, run in enumerate(runs)}
        return TensorLayout(
            tuple(math.prod(self.axis_size(a) for a in run) for run in runs),
            tuple(tuple(number[a] for a in axes if a in number) for axes in self.tensor_map),
            tuple(number[a] for a in self.partial if a in number),
            self.reduce if self.is_partial else "sum",
            self.rows,
        )

    def same_placement(self, other: TensorLayout) -> bool:
        """Whether every rank holds the same part (and the same kind of addend) under both layouts."""
        return self == other or self._canonical == other._canonical

    def distinct_slices(self) -> Iterator[tuple[int, ...]]:
        """Slice numbers of all different slices, row-major: the order in which views give out colours."""
        return itertools.product(*(range(n) for n in self.splits))

    def __str__(self) -> str:
        shown = ("-1" if not axes else str(axes[0]) if len(axes) == 1 else str(axes) for axes in self.tensor_map)
        entries = ", ".join(shown)
        pending = f", partial {self.reduce} over axes {self.partial}" if self.partial else ""
        uneven = f", rows {self.rows}" if self.rows else ""
        return f"device_matrix {self.device_matrix}, tensor_map ({entries}){uneven}{pending}"
