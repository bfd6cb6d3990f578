"""Redistribution with a full memory: all_to_all alone, axes as discs on the pegs that dims are. Exercise 17.5.

A move takes an axis from a dim, where it must be the inner one, to another dim, where it becomes the inner one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

from ...base.errors import LayoutError
from .reading import another_form, reading, refusals
from .running import listed
from .verdict import Part, Wrong, reached

Dims = Sequence[Sequence[str]]  # per dim the axes that split it, outer first


@dataclass(frozen=True)
class Move:
    """A puzzle: from one layout of a tensor to another, and no rank ever has more than its part.

    mesh, shape  of the ranks and of the tensor;  source, target: per dim the axes that split it, outer first
    par          parts that a rank sends, the least there is
    """

    mesh: tuple[tuple[str, int], ...]
    shape: tuple[int, ...]
    source: tuple[tuple[str, ...], ...]
    target: tuple[tuple[str, ...], ...]
    par: float = field(repr=False)

    @property
    def sizes(self) -> dict[str, int]:
        """Ranks along each axis."""
        return dict(self.mesh)

    @property
    def part(self) -> int:
        """Numbers that a rank has, at first and at most."""
        return self.held(self.source)

    def held(self, dims: Dims) -> int:
        """Numbers that a rank has in a layout."""
        return math.prod(self.shape) // math.prod(self.sizes[name] for order in dims for name in order)

    def after(self, dims: Dims, axis: str, to: int) -> tuple[tuple[str, ...], ...]:
        """The layout after an axis has left its dim and splits another, as the inner one. Raises LayoutError."""
        at, where = next(dim for dim, order in enumerate(dims) if axis in order), text_of(dims)
        if at == to:
            raise LayoutError(f"{axis} splits dim {to} already", where=where, allowed="Another dim")
        if dims[at][-1] != axis:
            raise LayoutError(f"{axis} is not the inner one of dim {at}", where=where, allowed=f"{dims[at][-1]} first")
        new = tuple(
            (*(name for name in order if name != axis), *(axis,) * (dim == to)) for dim, order in enumerate(dims)
        )
        cut = math.prod(self.sizes[name] for name in new[to])
        if self.shape[to] % cut:
            raise LayoutError(f"dim {to} of {self.shape[to]} in {cut}", where=where, allowed="Equal slices")
        return new

    def sent(self, axis: str) -> Fraction:
        """Parts that a rank sends: an all_to_all keeps one of n blocks."""
        return 1 - Fraction(1, self.sizes[axis])


def text_of(dims: Dims) -> str:
    """A layout as a PartitionSpec has it: P(('tp', 'dp'), 'cp', None)."""
    return f"P({', '.join(str(tuple(o)) if len(o) > 1 else repr(o[0]) if o else 'None' for o in dims)})"


# drawn: all planners need room for more than a part; at least five moves, and no move is a gather. Par is what a search
# over all layouts finds, which a test does again; no moves at par are kept here
PUZZLES = (
    Move((("dp", 2), ("cp", 2), ("tp", 4)), (24, 8, 2), (("tp",), ("dp",), ("cp",)), (("cp", "dp"), ("tp",), ()), 3.75),
    Move((("dp", 4), ("cp", 2), ("tp", 2)), (8, 16, 4), (("cp", "dp"), ("tp",), ()), (("tp", "cp"), ("dp",), ()), 2.75),
    Move(
        (("dp", 2), ("cp", 4), ("tp", 2)), (16, 16, 2), (("tp", "cp", "dp"), (), ()), (("dp", "tp"), ("cp",), ()), 2.75
    ),
    Move(
        (("dp", 2), ("cp", 2), ("tp", 4)), (16, 8, 8), (("cp", "dp"), (), ("tp",)), (("dp", "tp", "cp"), (), ()), 2.75
    ),
    Move((("dp", 2), ("cp", 2), ("tp", 4)), (16, 8, 8), (("tp", "cp"), ("dp",), ()), (("cp", "dp"), ("tp",), ()), 2.75),
    Move((("dp", 2), ("cp", 4), ("tp", 2)), (16, 8, 8), (("dp",), (), ("tp", "cp")), (("tp", "cp", "dp"), (), ()), 3),
    Move((("dp", 2), ("cp", 2), ("tp", 4)), (8, 16, 4), ((), ("cp", "tp", "dp"), ()), ((), ("tp", "dp"), ("cp",)), 3),
    Move((("dp", 2), ("cp", 2), ("tp", 4)), (16, 16, 2), (("tp", "dp"), (), ("cp",)), (("cp", "tp"), (), ("dp",)), 3),
    Move((("dp", 2), ("cp", 4), ("tp", 2)), (8, 16, 4), ((), ("dp", "cp"), ("tp",)), ((), ("tp", "dp"), ("cp",)), 3),
    Move(
        (("dp", 2), ("cp", 4), ("tp", 2)), (16, 16, 2), (("dp",), ("tp", "cp"), ()), ((), ("dp", "tp", "cp"), ()), 3.5
    ),
    Move(
        (("dp", 2), ("cp", 2), ("tp", 4)), (16, 8, 8), (("dp", "tp", "cp"), (), ()), (("cp", "dp", "tp"), (), ()), 3.5
    ),
    Move((("dp", 2), ("cp", 4), ("tp", 2)), (8, 16, 4), (("dp", "cp"), (), ("tp",)), (("tp",), ("dp", "cp"), ()), 3.75),
    Move((("dp", 4), ("cp", 2), ("tp", 2)), (24, 8, 2), (("cp",), ("dp",), ("tp",)), (("dp",), ("tp", "cp"), ()), 3.75),
    Move(
        (("dp", 2), ("cp", 4), ("tp", 2)), (16, 16, 2), (("tp",), ("cp",), ("dp",)), (("cp", "tp"), (), ("dp",)), 4.25
    ),
)

MOVES_FORM = 'A list of (axis, dim): [("dp", 2), ("tp", 0), ...]'


def _moves(puzzle: Move, answer: Any, /) -> Iterator[Part]:
    with reading(answer, MOVES_FORM, "no moves yet"):
        moves = [(axis, to) for axis, to in map(partial(listed, most=2), listed(answer, 100))]
    for axis, to in moves:
        if not isinstance(axis, str) or axis not in puzzle.sizes or isinstance(to, bool) or to not in (None, 0, 1, 2):
            raise another_form(answer, MOVES_FORM)
    dims, cost = puzzle.source, Fraction(0)
    for n, (axis, to) in enumerate(moves, 1):
        if to is None:
            full = f"move {n}, {axis} to copies: a rank would have {puzzle.sizes[axis]} parts, and has room for one"
            raise Wrong(full, "all_to_all alone", "That is what planners do: gather, then cut. Park it on another dim.")
        with refusals("moves that can be made"):
            dims, cost = puzzle.after(dims, axis, int(to)), cost + puzzle.sent(axis)
    there = dims == puzzle.target
    yield reached("arrives", there, f"{text_of(dims)} after {len(moves)} moves", text_of(puzzle.target))
    if there:
        text, more = f"a rank sends {float(cost):g} times its part", f"{float(cost) / puzzle.par:.3g} x par"
        note = "An axis of n ranks costs 1 - 1/n for each of its moves: which should move least often?"
        yield reached("near par", cost <= 1.5 * puzzle.par, f"{text}: {more}", "1.5 x par", note)
        limit = f"{puzzle.par:g}: the least, by exact search over all layouts"
        yield reached("par", cost <= puzzle.par, f"{text}: {more}", limit, note)


def of_move(puzzle: Move) -> dict[str, Any]:
    """What 17.5 is for this puzzle."""
    mesh = ", ".join(f"{name} {size}" for name, size in puzzle.mesh)
    shape = " x ".join(map(str, puzzle.shape))
    peg, (lowest, *_) = max(enumerate(puzzle.target), key=lambda one: len(one[1]))
    return {
        "numbers": f"{text_of(puzzle.source)} to {text_of(puzzle.target)}\na tensor {shape} on ranks {mesh}",
        "grader": partial(_moves, puzzle),
        "par": lambda: f"a rank sends {puzzle.par:g} times its part: no moves send less, by search over all layouts",
        "hints": (
            "Which axis is in the way, since it stands inside one that has to leave or to come before it?",
            "Draw three pegs, one for each dim, and axes as discs on them: only the last that came can leave.",
            "A dim that neither layout splits, or not so often, is a place to park. Park small axes: they cost less.",
            f"On dim {peg} {lowest} lies lowest at the end. Empty that peg and take off what lies on {lowest}, parking "
            "small axes where nothing needs room; then move in from the outer axis to the inner one.",
        ),
    }
