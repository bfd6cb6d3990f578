"""Text of a notation taken apart from left to right. Nothing of it is run, and what does not fit is shown where it is.

    reader = Reader("jax.PartitionSpec", "PartitionSpec('dp', None)")
    reader.value()          Term(name='PartitionSpec', given=('dp', None), named={})

Texts are short (LONGEST), brackets are nested a few levels deep (DEEPEST), lists have MOST values at most. An error is
a LayoutError with the notation, the text up to the fault and "<-- here", and what could stand there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeVar

from ...base.errors import LayoutError, LayoutTypeError, shorten
from ..mesh_layout import DeviceMesh, MeshLayout

LONGEST, DEEPEST, MOST = 4000, 6, 1024  # characters, levels of brackets, values of a list
MOST_DIMS, MOST_RANKS = 32, 65_536  # of a tensor; of a mesh that a text speaks of
_TOKEN = re.compile(
    r"""\s*(?:(?P<int>-?[0-9]{1,9}(?![0-9]))|(?P<name>[A-Za-z_][A-Za-z_0-9.]*)"""
    r"""|"(?P<double>[^"\\\n]*)"|'(?P<single>[^'\\\n]*)'|(?P<sign>\S))"""
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_CONSTANTS = {"None": None, "True": True, "False": False}
Item = TypeVar("Item")


class Term(NamedTuple):
    """A name with what stands in the brackets behind it; given None: it has no brackets."""

    name: str
    given: tuple[Any, ...] | None
    named: dict[str, Any]


class Around(NamedTuple):
    """What a text leaves open: the mesh that it speaks of, the shape of the tensor, how a pending value is reduced."""

    mesh: DeviceMesh | None = None
    shape: tuple[int, ...] | None = None
    reduce_op: str = "sum"


class Reader:
    """A text, and how far it is read.  notation: its name, for errors"""

    def __init__(self, notation: str, text: str) -> None:
        if not isinstance(text, str):
            raise LayoutTypeError(f"a {type(text).__name__}", where=notation, allowed="A text")
        if len(text) > LONGEST:
            raise LayoutError(f"{len(text):,} characters", where=notation, allowed=f"At most {LONGEST:,}")
        self.notation, self.text, self.at = notation, text, 0

    def fail(self, allowed: str, at: int | None = None, hint: str = "") -> NoReturn:
        """LayoutError: what stands at `at`, or here, is not allowed there."""
        at = self.at if at is None else at
        at += len(self.text[at:]) - len(self.text[at:].lstrip())
        before, fault = self.text[max(0, at - 40) : at].rstrip(), self.text[at : at + 20] or "the end"
        what = f"{'...' if at > 40 else ''}{before} <-- here: {fault!r}" if before else f"{fault!r}"
        raise LayoutError(what, where=self.notation, allowed=allowed, hint=hint)

    # ---- single things ----

    def peek(self) -> re.Match[str] | None:
        """What stands here, not yet read; None: nothing, or a quote that does not end."""
        return _TOKEN.match(self.text, self.at)

    def sign(self, signs: str) -> bool:
        """Whether these signs stand here; they are then read."""
        at = self.at
        for sign in signs:
            found = self.peek()
            if found is None or found["sign"] != sign:
                self.at = at
                return False
            self.at = found.end()
        return True

    def expect(self, signs: str) -> None:
        """Read these signs, or fail."""
        if not self.sign(signs):
            self.fail(f"{signs!r} stands here")

    def name(self, *known: str) -> str:
        """A name without quotes, one of `known` if there are any."""
        found = self.peek()
        if found is None or found["name"] is None or (known and found["name"] not in known):
            self.fail(f"One of {', '.join(known)}" if known else "A name")
        self.at = found.end()
        return found["name"]

    def is_name(self, *known: str) -> bool:
        """Whether one of these names stands here; it is then read."""
        found = self.peek()
        if found is None or found["name"] not in known:
            return False
        self.at = found.end()
        return True

    def integer(self) -> int:
        """A whole number."""
        return self.typed(int, "A whole number")

    def typed(self, kind: type[Item], allowed: str) -> Item:
        """A value of this type."""
        at, value = self.at, self.value()
        if type(value) is not kind:
            self.fail(allowed, at)
        return value

    def tuple_of(self, kind: type[Item], allowed: str) -> tuple[Item, ...]:
        """Values of this type in brackets."""
        at, values = self.at, self.typed(tuple, allowed)
        if any(type(value) is not kind for value in values):
            self.fail(allowed, at)
        return values

    def end(self) -> None:
        """Fail unless everything is read."""
        if self.text[self.at :].strip():
            self.fail("Nothing more")

    # ---- what holds others ----

    def listed(self, item: Callable[[], Item], closing: str, most: int = MOST) -> list[Item]:
        """Items with commas between them, up to the closing bracket; a comma may stand behind the last."""
        found: list[Item] = []
        while not self.sign(closing):
            if found:
                self.expect(",")
                if self.sign(closing):
                    break
            if len(found) == most:
                self.fail(f"At most {most} values")
            found.append(item())
        return found

    def value(self, depth: int = DEEPEST) -> Any:
        """A number, a text, None, a Term, or a tuple of such: of what brackets hold, whatever their kind."""
        found = self.peek()
        if found is None or not depth:
            self.fail("A value" if depth else f"Brackets {DEEPEST} levels deep")
        self.at = found.end()
        if found["int"]:
            return int(found["int"])
        if found["name"]:
            name = found["name"]
            if self.sign("("):
                return Term(name, *self.arguments(depth - 1))
            return _CONSTANTS[name] if name in _CONSTANTS else Term(name, None, {})
        if found["sign"]:
            if found["sign"] not in _CLOSING:
                self.fail("A value", found.start())
            values = self.listed(lambda: self.value(depth - 1), _CLOSING[found["sign"]])
            comma = self.text[: self.at - 1].rstrip().endswith(",")
            # (x) is x, as in Python
            return values[0] if found["sign"] == "(" and len(values) == 1 and not comma else tuple(values)
        return found["double"] if found["double"] is not None else found["single"]

    def arguments(self, depth: int = DEEPEST) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What stands in the brackets of a call, whose opening one is read: values, and those with a name."""
        named: dict[str, Any] = {}

        def one() -> Any:
            at, value = self.at, self.value(depth)
            if isinstance(value, Term) and value.given is None and self.sign("="):
                if value.name in named:
                    self.fail("Every name once", at)
                named[value.name] = self.value(depth)
                return named
            if named:
                self.fail("Values without a name first", at)
            return value

        return tuple(value for value in self.listed(one, ")") if value is not named), named

    def made_mesh(self, shape: tuple[int, ...], names: tuple[str, ...], ranks: tuple[int, ...], at: int) -> DeviceMesh:
        """The mesh that the text speaks of. LayoutError for more than MOST_RANKS."""
        if not 0 < math.prod(shape) <= MOST_RANKS:
            self.fail(f"A mesh of 1 to {MOST_RANKS} ranks", at)
        return DeviceMesh(shape, names, ranks)

    def mesh(self, around: Around) -> DeviceMesh:
        """The mesh around the text. Raises LayoutError where none was given."""
        if around.mesh is None:
            hint = "parse(text, mesh=DeviceMesh((2, 4), ('dp', 'tp')))"
            raise LayoutError(
                "no mesh", where=self.notation, allowed="A text that names axes needs their mesh", hint=hint
            )
        return around.mesh

    def fits(self, ndim: int, around: Around, at: int = 0, *, fewer: bool = False) -> None:
        """Fail unless a text of so many entries fits the shape, if that is known, and MOST_DIMS."""
        dims = MOST_DIMS if around.shape is None else len(around.shape)
        if ndim > dims or (around.shape is not None and ndim < dims and not fewer):
            self.fail(f"{'At most ' * (fewer or around.shape is None)}{dims} entries, one per dim", at)


# ---- for those who write ----


def quoted(name: str) -> str:
    """A name in double quotes. Raises LayoutError for one that has quotes itself."""
    return f'"{plain(name)}"'


def plain(name: str) -> str:
    """The name. Raises LayoutError for one that could not be read again."""
    if not re.fullmatch(r"[^\"'\\\n]{1,64}", name):
        raise LayoutError(f"axis {shorten(name)}", allowed="A name without quotes, of at most 64 characters")
    return name


def reductions(layout: MeshLayout) -> dict[str, str]:
    """{axis: reduction} of what is really pending: an axis of one rank has nothing to add."""
    return {name: op for name, op in layout.pending.items() if layout.mesh.axis_size(name) > 1}


def nothing_pending(layout: MeshLayout, whose: str) -> None:
    """Raise LayoutError where a value is still to be reduced."""
    if pending := reductions(layout):
        hint = "Reduce first: all_reduce, or reduce_scatter where a dim is then split by that axis"
        given = f"pending {', '.join(f'{op} over {name!r}' for name, op in pending.items())}"
        raise LayoutError(given, allowed=f"No form: {whose} says nothing of pending reductions", hint=hint)


def only_sums(layout: MeshLayout, whose: str) -> dict[str, str]:
    """{axis: "sum"} of what is pending. Raises LayoutError for other reductions."""
    pending = reductions(layout)
    for name, op in pending.items():
        if op != "sum":
            hint = "Keep the factor 1/n outside, and it is a sum" if op == "avg" else ""
            allowed = f"No form: what is pending is a sum in {whose}"
            raise LayoutError(f"pending {op} over {name!r}", allowed=allowed, hint=hint)
    return pending


def even_dims(layout: MeshLayout, shape: tuple[int, ...], why: str) -> tuple[tuple[str, ...], ...]:
    """Per dim its axes, outer first. Raises LayoutError where slices are not equally large, or it has no such form."""
    dims = layout.dims(len(shape))
    for dim, names in enumerate(dims):
        parts = 1
        for name in names:
            parts *= layout.mesh.axis_size(name)
        if shape[dim] % parts:
            given = f"dim {dim} of {shape} split {parts} ways"
            raise LayoutError(given, allowed=f"No form: {why}", hint="Pad the dim to a multiple")
    return dims
