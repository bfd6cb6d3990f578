"""Labelled dimensions: what `"mk,kn->mn"` says about an operator, for given operand shapes.

letter   one dim; equal letters have equal sizes and are split equally
...      the remaining leading dims, aligned on the right and broadcast like numpy
,        behind the arrow: several results, a tuple as in Python: "ab->ab,a", "ab->a," (one), "ab->,," (two numbers)
1        a dim of size 1 that is broadcast (in an operand) or kept by a reduction (in the result); never split

>>> resolve("...,...->...", ((16, 64), (64,)))
Signature(ins=('AB', 'B'), outs=('AB',), several=False)
>>> resolve("...mk,...kn->...mn", ((8, 4, 6), (6, 5))).sizes(((8, 4, 6), (6, 5)))
{'A': 8, 'm': 4, 'k': 6, 'n': 5}
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...base.errors import ShapeError

BROADCAST = "1"
_SPARE = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

Shape = tuple[int, ...]
Fault = tuple[str, ...]  # what is wrong, what is allowed, and perhaps a hint


def letters(n: int) -> str:
    """The first `n` labels for dims that have no name of their own: 'abc...'."""
    return "abcdefghijklmnopqrstuvwxyz"[:n]


def more_letters(n: int) -> str:
    """`n` labels besides those of `letters`, for dims that only the result has or whose size changes."""
    return "".join(itertools.islice((chr(c) for c in itertools.count(ord("α")) if chr(c).islower()), n))


def same_labels(shapes: tuple[Shape, ...], **_: Any) -> str:
    """Signature of an operator of one tensor whose result has the same dims."""
    names = letters(len(shapes[0]))
    return f"{names}->{names}"


@dataclass(frozen=True)
class Signature:
    """Labels of every operand and of every result, one character per dim; several: whether results are a tuple."""

    ins: tuple[str, ...]
    outs: tuple[str, ...]
    several: bool = False

    @property
    def out(self) -> str:
        """Labels of the only result, or of the first."""
        return self.outs[0]

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels in order of appearance, without broadcast dims."""
        return tuple(dict.fromkeys(c for c in "".join(self.ins + self.outs) if c != BROADCAST))

    @property
    def reduced(self) -> tuple[str, ...]:
        """Labels that do not appear in any result: splitting them leaves partial results."""
        return tuple(c for c in self.labels if all(c not in out for out in self.outs))

    def sizes(self, shapes: tuple[Shape, ...]) -> dict[str, int]:
        """Extent of every label; the shapes must have been checked by `resolve`."""
        return {
            c: n
            for labels, shape in zip(self.ins, shapes, strict=True)
            for c, n in zip(labels, shape, strict=True)
            if c != BROADCAST
        }

    def __str__(self) -> str:
        return ",".join(self.ins) + "->" + ",".join(self.outs) + ("," if self.several and len(self.outs) == 1 else "")


def along_axis(signature: Signature, *, axis: int | tuple[int, ...], **_: Any) -> str:
    """Labels of the dims that the attribute `axis` names: what stays whole where an operator works along them."""
    return "".join(signature.ins[0][a] for a in (axis if isinstance(axis, tuple) else (axis,)))


def but_numbers(signature: Signature) -> tuple[str, ...]:
    """Labels of all operands but the numbers at the end, which need no tuple in a strategy."""
    ins = signature.ins
    while ins and not ins[-1]:
        ins = ins[:-1]
    return ins


@lru_cache(maxsize=4096)
def resolve(text: str, shapes: tuple[Shape, ...], where: str = "") -> Signature:
    """The signature `text` for these shapes. Raises ShapeError naming operand, dim and label that do not fit."""
    left, out = text.split("->")
    ins = left.split(",")
    if len(ins) != len(shapes):
        allowed = f"{len(ins)} operands, one per part of '{left}'"
        raise ShapeError(f"got {len(shapes)} operands of shapes {shapes}", where=where, allowed=allowed)
    spare = [c for c in _SPARE if c not in text]
    pairs = list(zip(ins, shapes, strict=True))
    depth = max((len(shape) - len(labels.replace("...", "")) for labels, shape in pairs if "..." in labels), default=0)
    extents: list[int] = [1] * depth
    for position, (labels, shape) in enumerate(pairs):
        named = len(labels.replace("...", ""))
        if "..." not in labels and named != len(shape) or len(shape) < named:
            least = "at least " if "..." in labels else ""
            allowed = f"{least}{named} dims, labelled '{labels}'"
            raise ShapeError(f"operand {position} has shape {shape}", where=where, allowed=allowed)
        if "..." in labels:
            start = labels.index("...")
            for i, n in enumerate(reversed(shape[start : len(shape) - (named - start)])):
                extents[-1 - i] = n if extents[-1 - i] == 1 else extents[-1 - i]
    names = spare[:depth]
    done, sizes = [], {}
    for position, (labels, shape) in enumerate(pairs):
        if "..." in labels:
            start, count = labels.index("..."), len(shape) - len(labels.replace("...", ""))
            dims = shape[start : start + count]
            filled = "".join(
                BROADCAST if n == 1 and big != 1 else c
                for n, big, c in zip(dims, extents[depth - count :], names[depth - count :], strict=True)
            )
            labels = labels.replace("...", filled)
        for dim, (label, n) in enumerate(zip(labels, shape, strict=True)):
            if label == BROADCAST:
                continue
            if sizes.setdefault(label, n) != n:
                sizes_text = f"'{label}' is already {sizes[label]}; operand shapes {shapes}"
                what = f"operand {position} has {n} elements in dim {dim} ('{label}'), but {sizes_text}"
                raise ShapeError(what, where=where, allowed=f"Dims with equal labels in '{text}' have equal sizes")
        done.append(labels)
    outs = tuple(out.removesuffix(",").replace("...", "".join(names)).split(","))
    return Signature(tuple(done), outs, "," in out)
