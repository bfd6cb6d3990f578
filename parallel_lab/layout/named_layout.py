"""`Layout`: a placement written with names for the axes of the device matrix, MindSpore's `Layout`; strategies of such.

    >>> layout = Layout((2, 2, 2), ("dp", "sp", "mp"))
    >>> x = layout("mp", ("sp", "dp"))
    >>> x.tensor_map, x.splits
    ((0, (1, 2)), (2, 4))
    >>> print(x)
    layout(mp, (sp, dp))

Eight ranks stand in a 2 x 2 x 2 matrix: rank = 4 dp + 2 sp + mp. The rows of x are split by mp, its columns by sp and
dp, sp being the outer (slower) split: column block 2 sp + dp. "None" leaves a dim whole. Anywhere a strategy is a tuple
of counts per input, it can be a tuple of such layouts:

    ops.MatMul().shard((layout("mp", ("sp", "dp")), layout(("sp", "dp"), "None")))

Counts make a device matrix of their own for every operator; layouts say which ranks hold which slice, and one dim can
be split by several axes. Calling a Layout makes a new one and changes nothing (MindSpore's changes itself too). Rules:
MindSpore, Layout (parallel/shard.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..base.checks import fitting_class
from ..base.errors import LayoutError, LayoutTypeError, shorten
from ..base.settings.checks import INTERLEAVED, check_rank_list
from .tensor_layout import TensorLayout

WHOLE = "None"  # the name that splits nothing

Dim = str | tuple[str, ...]
Strategy = tuple[tuple[int, ...], ...]  # per input, the number of slices of every dim


@fitting_class
@dataclass(frozen=True, repr=False, eq=False)
class Layout:
    """A device matrix with a name for every axis; called with one name per tensor dim, the placement of that tensor.

    device_matrix  ranks as a row-major matrix; its product is the number of ranks
    alias_name     one name per axis, other than "None"; "interleaved_parallel" stands last only, and has no ranks: it
                   asks for a rank's slice to be computed in parts, which changes no number
    rank_list      None, or the ranks in the order of the matrix, which is theirs: [0, 1, 2, ...]
    dims           per tensor dim an axis, a tuple of axes (outer split first) or "None"; None until it is called

    Two that were called are equal if they place a tensor's slices equally, whatever the names of their axes.

    >>> Layout((2, 4), ("dp", "mp"))("dp", "None") == Layout((2, 2, 2), ("a", "b", "c"))("a", "None")
    True

    Raises LayoutTypeError (a TypeError) for wrong types, LayoutError (a ValueError) for wrong values.
    """

    device_matrix: tuple[int, ...]
    alias_name: tuple[str, ...]
    rank_list: list[int] | None = None
    dims: tuple[Dim, ...] | None = None

    def __post_init__(self) -> None:
        where = f"Layout({shorten(self.device_matrix)}, {shorten(self.alias_name)})"
        _check_matrix(self.device_matrix, where)
        _check_names(self.alias_name, where)
        if len(self.device_matrix) != len(self.alias_name):
            what = f"device_matrix has {len(self.device_matrix)} axes and alias_name {len(self.alias_name)} names"
            raise LayoutError(what, where=where, allowed="One name per axis")
        if self.rank_list is not None:
            check_rank_list(self.rank_list, math.prod(self.device_matrix), where)
        if self.dims is not None:
            if not isinstance(self.dims, tuple):
                raise LayoutTypeError(f"dims={shorten(self.dims)}", where=where, allowed="A tuple, or None")
            self._check_dims(f"{where}({', '.join(map(shorten, self.dims))})")

    def _check_dims(self, where: str) -> None:
        used: dict[str, int] = {}
        for position, entry in enumerate(self.dims or ()):
            for name in entry if isinstance(entry, tuple) else (entry,):
                if not isinstance(name, str):
                    part = f"{shorten(name)} of type {type(name).__name__}"
                    what = f"dim {position} is given {shorten(entry)}, with {part}"
                    hint = "Write 'None' for a dim that stays whole" if name is None else ""
                    allowed = f"Per dim one of {(*self.alias_name, WHOLE)}, or a tuple of them"
                    raise LayoutTypeError(what, where=where, allowed=allowed, hint=hint)
                if name == WHOLE:
                    continue
                if name not in self.alias_name:
                    allowed = f"One of {(*self.alias_name, WHOLE)}"
                    raise LayoutError(f"no axis {shorten(name)}", where=where, allowed=allowed)
                if name in used:
                    twice = f"dims {used[name]} and {position}" if used[name] != position else f"dim {position} twice"
                    what = f"the axis {name!r} splits {twice}"
                    raise LayoutError(what, where=where, allowed="An axis splits one dim, once")
                used[name] = position

    def __call__(self, *dims: Dim) -> Layout:
        """The layout of a tensor, one entry per dim; `layout()`: of a number, or of an input that follows the others.

        >>> Layout((2, 4), ("dp", "mp"))("dp", "None").to_dict()
        {'device_matrix': (2, 4), 'tensor_map': (1, -1), 'interleaved_parallel': False}
        """
        return replace(self, dims=dims)

    def named(self, axes: Iterable[Iterable[int]]) -> Layout:
        """The layout of a tensor whose dims are split by these axes, counted from the right: the inverse of `axes`.

        >>> Layout((2, 4), ("dp", "mp")).named(((1, 0), ()))
        Layout((2, 4), ('dp', 'mp'))(('dp', 'mp'), 'None')
        """
        entries = (tuple(self.alias_name[-1 - a] for a in entry) for entry in axes)
        return self(*(WHOLE if not names else names[0] if len(names) == 1 else names for names in entries))

    # ---- what it says ----

    def _called(self) -> tuple[Dim, ...]:
        if self.dims is None:
            example = f"layout({self.alias_name[0]!r}, 'None')"
            hint = f"Call it with one entry per dim, e.g. {example}, and use what it returns"
            allowed = "A layout that was called"
            raise LayoutError("it places no tensor yet", where=repr(self), allowed=allowed, hint=hint)
        return self.dims

    def _axis(self, name: str) -> int:
        return -1 if name == WHOLE else len(self.alias_name) - 1 - self.alias_name.index(name)

    @property
    def tensor_map(self) -> tuple[int | tuple[int, ...], ...]:
        """Per dim the axis, counted from the right, or -1, or a tuple as given. LayoutError before the call."""
        return tuple(
            tuple(map(self._axis, entry)) if isinstance(entry, tuple) else self._axis(entry) for entry in self._called()
        )

    @property
    def axes(self) -> tuple[tuple[int, ...], ...]:
        """Per dim the axes that split it, counted from the right, outer first: the tensor_map of a `TensorLayout`."""
        entries = (entry if isinstance(entry, tuple) else (entry,) for entry in self.tensor_map)
        return tuple(tuple(a for a in entry if a != -1) for entry in entries)

    @property
    def splits(self) -> tuple[int, ...]:
        """Number of slices per dim."""
        plain = self.plain()
        return tuple(math.prod(plain.device_matrix[-1 - a] for a in entry) for entry in plain.axes)

    @property
    def device_num(self) -> int:
        """Ranks of the device matrix, without the axis "interleaved_parallel"."""
        return math.prod(self.plain().device_matrix)

    def plain(self) -> Layout:
        """The layout without the axis "interleaved_parallel"."""
        if not self.interleaved:
            return self
        layout = Layout(self.device_matrix[:-1], self.alias_name[:-1])
        return layout if self.dims is None else layout.named(tuple(a - 1 for a in entry if a) for entry in self.axes)

    @property
    def parts(self) -> int:
        """In how many parts a slice is to be computed: the size of the axis "interleaved_parallel", or 1."""
        return self.device_matrix[-1] if self.interleaved else 1

    @property
    def written(self) -> tuple[Any, ...]:
        """What it was made of: equal only of layouts that are written equally."""
        return self.device_matrix, self.alias_name, self.dims

    def _key(self) -> tuple[Any, ...]:
        return self.written if self.dims is None else (self.parts, self.tensor_layout().canonical())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    @property
    def interleaved(self) -> bool:
        """Whether the last axis is "interleaved_parallel"."""
        return INTERLEAVED in self.alias_name

    def tensor_layout(self) -> TensorLayout:
        """The same placement without names."""
        plain = self.plain()
        return TensorLayout(plain.device_matrix, plain.axes)

    def to_dict(self) -> dict[str, Any]:
        """MindSpore's form: device_matrix, tensor_map, interleaved_parallel. Raises LayoutError before the call."""
        return {
            "device_matrix": self.device_matrix,
            "tensor_map": self.tensor_map,
            "interleaved_parallel": self.interleaved,
        }

    def __repr__(self) -> str:
        text = f"Layout({self.device_matrix}, {self.alias_name})"
        return text if self.dims is None else f"{text}({', '.join(map(repr, self.dims))})"

    def __str__(self) -> str:
        if self.dims is None:
            return repr(self)
        entries = (f"({', '.join(entry)})" if isinstance(entry, tuple) else entry for entry in self.dims)
        return f"layout({', '.join(entries)})"


def _check_tuple(where: str, name: str, values: Any, kind: type, allowed: str, hint: str = "") -> None:
    """LayoutTypeError unless `values` is a tuple of `kind`."""
    if not isinstance(values, tuple):
        raise LayoutTypeError(f"{name} is a {type(values).__name__}", where=where, allowed=allowed, hint=hint)
    for value in values:
        if not isinstance(value, kind) or isinstance(value, bool):
            what = f"{name} holds {shorten(value)} of type {type(value).__name__}"
            raise LayoutTypeError(what, where=where, allowed=allowed)


def _check_matrix(device_matrix: Any, where: str) -> None:
    _check_tuple(where, "device_matrix", device_matrix, int, "A tuple of ints, such as (2, 4)")
    if not device_matrix or min(device_matrix) < 1:
        what = f"device_matrix holds {min(device_matrix)}" if device_matrix else "device_matrix is empty"
        raise LayoutError(what, where=where, allowed="At least one axis, and every axis has at least one rank")


def _check_names(names: Any, given: str) -> None:
    allowed = "A tuple of names, such as ('dp', 'mp')"
    _check_tuple(given, "alias_name", names, str, allowed, hint="Mind the comma in ('tp',)")
    for name in names:
        if name in ("", WHOLE):
            why = f"the name {name!r}, which stands for a dim that stays whole" if name else "an empty name"
            raise LayoutError(f"alias_name holds {why}", where=given, allowed="Any other text")
        if names.count(name) > 1:
            what = f"alias_name holds {name!r} {names.count(name)} times"
            raise LayoutError(what, where=given, allowed="Every axis has a name of its own")
    if INTERLEAVED in names[:-1]:
        where = f"{INTERLEAVED!r} is the name of axis {names.index(INTERLEAVED)}"
        raise LayoutError(where, where=given, allowed="It stands last: it splits what one rank holds")


@dataclass(frozen=True, eq=False)
class LayoutStrategy:
    """A strategy made of layouts, one per input of an operator, where others are a tuple of counts per input.

    layouts  called layouts over one device matrix, without the axis "interleaved_parallel"
    parts    its size, where it was given: the parts in which a rank would compute its slice, one's messages during
             another's computation. Here they are not told apart, and results are the same
    nd_tp    2D and 3D tensor parallelism: the operator gathers what its inputs split in addition, and scatters its sums
             (matrix products only)
    results  layouts of the results of an operator that the learner splits (`self_define_shard`); None: they follow
    """

    layouts: tuple[Layout, ...]
    nd_tp: bool = False
    parts: int = 1
    interleaved: tuple[int, ...] = ()
    results: LayoutStrategy | None = None

    def __eq__(self, other: object) -> bool:
        # equal placements are not enough: plans show the names
        return isinstance(other, LayoutStrategy) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return tuple(layout.written for layout in self.layouts), self.nd_tp, self.parts, self.results

    def __len__(self) -> int:
        return len(self.layouts)

    def __iter__(self) -> Iterator[Layout]:
        return iter(self.layouts)

    def __getitem__(self, position: int) -> Layout:
        return self.layouts[position]

    @property
    def counts(self) -> tuple[tuple[int, ...], ...]:
        """Slices per dim of every input: as a strategy of counts says it."""
        return tuple(layout.splits for layout in self.layouts)

    @property
    def code(self) -> str:
        """How a learner writes it: `(layout('dp', 'mp'),) with layout = Layout((2, 4), ('dp', 'mp'))`."""
        entries = ", ".join(f"layout({', '.join(map(repr, layout.dims or ()))})" for layout in self.layouts)
        matrix = Layout(self.layouts[0].device_matrix, self.layouts[0].alias_name)
        return f"({entries}{',' if len(self.layouts) == 1 else ''}) with layout = {matrix!r}"

    def __str__(self) -> str:
        named = ", ".join(dict.fromkeys(_matrix_text(layout) for layout in self.layouts))
        listed = ", ".join(map(str, self.layouts))
        comma = "," if len(self.layouts) == 1 else ""
        more = ", enable_nd_tp" * self.nd_tp + f", in {self.parts} parts" * (self.parts > 1)
        return f"({listed}{comma}) on {named}{more}"


AnyStrategy = Strategy | LayoutStrategy


def _matrix_text(layout: Layout) -> str:
    """The device matrix with its names: `device_matrix (dp=2, mp=4)`."""
    sizes = zip(layout.alias_name, layout.device_matrix, strict=True)
    return f"device_matrix ({', '.join(f'{name}={size}' for name, size in sizes)})"


def as_strategy(strategy: Any, nd_tp: bool = False) -> Any:
    """What `shard` was given as a Node carries it: layouts as a LayoutStrategy, counts and None as they are."""
    if not (isinstance(strategy, tuple) and strategy and isinstance(strategy[0], Layout)):
        return strategy
    parts = max(layout.parts for layout in strategy)
    first = strategy[0]
    along = tuple(dim for dim, entry in enumerate(first.axes) if first.interleaved and 0 in entry)
    return LayoutStrategy(tuple(layout.plain() for layout in strategy), nd_tp, parts, along)


def strategy_counts(strategy: Any) -> tuple[tuple[int, ...], ...]:
    """Slices per dim of every input, of a strategy of counts or of layouts.

    >>> strategy_counts(((2, 4), (4, 1)))
    ((2, 4), (4, 1))
    >>> layout = Layout((2, 4), ("dp", "mp"))
    >>> strategy_counts((layout("dp", "mp"), layout("mp", "None")))
    ((2, 4), (4, 1))
    """
    return tuple(entry.splits if isinstance(entry, Layout) else entry for entry in strategy)
