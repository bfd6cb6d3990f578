"""The values of a program that is read: functions, classes and objects of its own, names that it imports, limits."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

LONGEST = 200_000  # characters of a program
HELD = 20_000  # elements of a list with those of the lists in it
INT = 2**62
UNKNOWN = "..."  # in a text, where a value is not known
TOO_WIDE = re.compile(r"\d{3}")  # a field of 100 columns or more

Scopes = list[dict[str, Any]]  # names, innermost first
PLAIN = (bool, int, float, str, tuple, list, dict, type(None), slice, type(...))


@dataclass(frozen=True)
class Unread:
    """What an expression that was not understood gives."""

    line: int


@dataclass(frozen=True)
class Name:
    """Something imported, by its full path: "torch.nn.Linear"."""

    path: str


@dataclass(eq=False)
class Function:
    """A function of the program.  scopes: innermost first;  of: the class whose body it stands in"""

    node: Any
    scopes: Scopes
    defaults: dict[str, Any]
    of: Any = None


@dataclass(eq=False)
class Class:
    """A class of the program, with the paths of what else it inherits."""

    name: str
    bases: list[Any]
    names: dict[str, Any]
    fields: list[str] = field(default_factory=list)

    def lineage(self) -> list[Any]:
        """It and all that it inherits from, each once: of a diamond of 40 classes there are a million million ways."""
        found, waiting = {}, [self]
        while waiting:
            one = waiting.pop()
            if id(one) not in found:
                found[id(one)] = one
                waiting += reversed(one.bases) if isinstance(one, Class) else ()
        return list(found.values())

    def find(self, name: str) -> Any:
        """What the class or the first of its bases holds under a name; None."""
        return next((one.names[name] for one in self.lineage() if isinstance(one, Class) and name in one.names), None)

    def all_fields(self) -> list[str]:
        """Fields of a dataclass: those of its bases first, from the last base on, each class once."""
        found: dict[str, None] = {}
        seen: set[int] = set()

        def visit(one: Any) -> None:
            if isinstance(one, Class) and id(one) not in seen:
                seen.add(id(one))
                for base in reversed(one.bases):
                    visit(base)
                found.update(dict.fromkeys(one.fields))

        visit(self)
        return list(found)

    def inherits(self, of: Any) -> bool:
        """Whether a class of the program, or an imported one whose path ends so, is it or among its bases."""
        return any(
            one is of or not isinstance(one, Class) and str(getattr(one, "path", "")).endswith(str(of))
            for one in self.lineage()
        )


@dataclass(eq=False)
class Instance:
    """An object of a class of the program, or of a layer of ours (`kind`)."""

    of: Class | None
    names: dict[str, Any] = field(default_factory=dict)
    kind: str = ""

    def keep(self, name: str, value: Any) -> None:
        """self.name = value"""
        self.names[name] = value

    def place(self, key: Any) -> str:
        """The name under which self[key] = ... is kept."""
        if not isinstance(key, str):
            raise NotRead("an element of this that is set is not read")
        return key

    def drop(self, key: Any) -> None:
        """del self.key, del self[key]"""
        del self.names[key]

    def begin(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Without an __init__ of its own: a dataclass or a named tuple."""
        fields = self.of.all_fields() if self.of else []
        held = {name: self.of.find(name) for name in fields} if self.of else {}
        held = {name: type(v)(v) if isinstance(v, (list, dict)) else v for name, v in held.items()}
        if len(args) > len(fields) or set(kwargs) - set(fields):
            raise NotRead("arguments of a class that do not fit")
        self.names |= held | dict(zip(fields, args, strict=False)) | kwargs


@dataclass(eq=False)
class Bound:
    """A method of an object, or of a value by its name in the tables."""

    of: Any
    what: Any
    start: Any = None  # super(): the class after which to look


class Endless(list):
    """The first items of a generator that has more than are read."""


class Leave(Exception):
    """return, break, continue; endless: a generator that has more items than are read."""

    def __init__(self, kind: str, value: Any = None) -> None:
        super().__init__(kind)
        self.kind, self.value = kind, value


class NotRead(Exception):
    """An expression that is not understood, and why."""


class Stopped(Exception):
    """The program raises an error here, or is too long to be read to its end."""


def needed(value: Any) -> Any:
    """A value that something else needs. Raises NotRead for one that was not read."""
    if isinstance(value, Unread):
        raise NotRead(f"it needs what line {value.line} gives")
    return value


def unread_gradient(gradient: Any) -> Any:
    """Raises NotRead: what a library does in this gradient is not known."""
    raise NotRead("the gradient of this is not read")


def limited(value: Any) -> Any:
    """A value, unless it is too large, with all that it holds: nested lists can be larger than they look."""
    count, waiting = 0, [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (tuple, list, dict)):
            count += len(part)
            waiting += part.values() if isinstance(part, dict) else part
        if isinstance(part, int) and abs(part) > INT or isinstance(part, str) and len(part) > LONGEST or count > HELD:
            raise NotRead("a value that is too large")
    return value
