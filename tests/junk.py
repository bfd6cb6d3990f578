"""Junk for everything that is checked: values a check takes, values just outside, and things that nothing takes.

The text of a check is a promise ("An int from 1 to 8"). `promise` reads it back as a rule of its own, apart from the
check's code, with the values at its edges on both sides:

    inside, outside = promise("An int from 1 to 8").sides()     # [1, 8, ...], [(0, ValueError), ("1", TypeError), ...]
    for value, error in outside: ...                            # is refused: a TypeError, or out of range

    declared(nn.Dense.__init__)                                 # {argument: Check} of `@checked`

`MEEK` lists values of all kinds; `JUNK` adds objects that fight back: their methods raise, their repr raises, they lie
about their class. Only checks promise to refuse these in words; what reads a value may be given `MEEK`.
"""

from __future__ import annotations

import ast
import collections
import decimal
import enum
import fractions
import inspect
import itertools
import math
import numbers
import re
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_lab.base.checks import Check

LARGEST, FLOATS = 2**31 - 1, sys.float_info.max
Kind = type[Exception] | None  # what refuses a value; None: it is taken


# ---- hostile objects ----


def raising(self, *args, **kwargs):
    raise ZeroDivisionError("code of the value ran")


HOSTILE = (
    *("__eq__", "__hash__", "__bool__", "__lt__", "__le__", "__gt__", "__ge__", "__len__", "__iter__", "__contains__"),
    *("__getitem__", "__index__", "__int__", "__float__", "__str__", "__format__", "__getattr__", "__add__"),
    *("__fspath__", "keys", "items", "get", "encode", "startswith"),
)


def hostile(base: type, name: str) -> type:
    return type(name, (base,), dict.fromkeys(HOSTILE, raising))


Thing, Int, Float, Text, List, Tuple, Dict = (
    hostile(base, f"Hostile{base.__name__.title()}") for base in (object, int, float, str, list, tuple, dict)
)
# with str's own __eq__ and __hash__: a dict's key
KeyText = type("KeyText", (str,), dict.fromkeys(HOSTILE[2:], raising))
Silent = type("Silent", (Thing,), {"__repr__": raising})
SilentText = type("SilentText", (Text,), {"__repr__": raising})
Liar = type(
    "Liar", (), {"__class__": property(lambda self: int), "__index__": lambda self: 8, "__repr__": lambda self: "8"}
)
Loud = type("Loud", (), {"__repr__": lambda self: "loud " * 1000})
Eight = enum.IntEnum("Eight", {"EIGHT": 8})
Pair = collections.namedtuple("Pair", "a b")


def self_containing() -> list:
    loop: list = []
    loop.append(loop)
    return loop


NUMBERS = [-1, 0, 1, 2, 8, 2**63, 10**400, -(10**30), 0.0, -0.0, 0.5, 1.0, 1e300, math.nan, math.inf, -math.inf, 3 + 2j]
NUMBERS += [True, False, decimal.Decimal(8), fractions.Fraction(8), Eight.EIGHT]
OF_NUMPY = [np.int64(8), np.int8(1), np.float64(0.5), np.float32(0.5), np.bool_(True), np.str_("x")]
OF_NUMPY += [np.datetime64("2020-01-01"), np.zeros(0), np.arange(3), np.array(8), np.array([[8, 1]])]
OF_NUMPY += [np.array(["a"], object), np.ones((200, 200))]
TEXTS = ["", " ", "a", "8", "True", "x" * 5000, "a\0b", "\ud800", "💥", "a\nb\x1b[31m"]
TEXTS += [b"", b"a", bytearray(b"8"), memoryview(b"8")]
GROUPS = [(), [], {}, (1,), [1, 2], (1, 2), ((1, 2), (2, 1)), ("a",), (None,), (True,), (1.5,), {"a": 1}, {3: 1}]
GROUPS += [{1, 2}, frozenset(), range(3), Pair(8, 1), collections.OrderedDict(), types.MappingProxyType({})]
GROUPS += [self_containing()]
OTHERS = [None, Loud(), object(), NotImplemented, ..., int, str, len, types, slice(1), lambda: 8]
FIGHTING = [Thing(), Silent(), Liar(), Int(8), Int(-1), Float(0.5), Text("a"), SilentText("x"), {KeyText("a"): 1}]
FIGHTING += [List([1, 2]), Tuple(((8, 1),)), Dict(), [Silent()], (Silent(),)]
MEEK = [*NUMBERS, *OF_NUMPY, *TEXTS, *GROUPS, *OTHERS]
JUNK = [*MEEK, *FIGHTING]


# ---- promises ----


@dataclass(frozen=True)
class Promise:
    """rule   value -> None for one that is taken, or the class of the refusal: TypeError, ValueError, ...
    edges  values at the ends of the range and of the types, on both sides
    """

    rule: Callable[[Any], Kind]
    edges: tuple[Any, ...]

    def sides(self, values: Iterable[Any] = ()) -> tuple[list[Any], list[tuple[Any, type[Exception]]]]:
        """What is taken and what is refused, of the edges and of other values."""
        judged = [(value, self.rule(value)) for value in (*self.edges, *values)]
        return [value for value, error in judged if error is None], [pair for pair in judged if pair[1] is not None]


def kind(value: Any, *classes: type) -> bool:
    """isinstance, without asking the value."""
    return issubclass(type(value), classes)


def plain(value: Any) -> Any:
    """An int, float or str of a subclass, read through the base class; other values as they are."""
    for base, read in ((int, int.__index__), (float, float.__float__), (str, str.__str__)):
        if kind(value, base) and type(value) is not bool:
            return read(value)
    return value


def whole(
    low: int | float = -math.inf, high: int | float = math.inf, also: tuple[int, ...] = (), of_numpy: bool = False
) -> Promise:
    """An int from low to high, or one of `also`. of_numpy: numpy's, too."""
    kinds = (int, np.integer) if of_numpy else (int,)

    def rule(value: Any) -> Kind:
        if type(value) is bool or not kind(value, *kinds):
            return TypeError
        number = int(plain(value))
        return None if low <= number <= high or number in also else ValueError

    ends = {n for end in (low, high, *also) if abs(end) < math.inf for n in (end - 1, end, end + 1)} or {-9, 0, 9}
    some = max(low, 1)
    edges = (*sorted(ends), Int(some), np.int64(min(some, LARGEST)), float(some), str(some), True, False, None, [some])
    return Promise(rule, edges)


def real(
    low: float = -math.inf, high: float = math.inf, *, above: bool = False, below: bool = False, ints: bool = False
) -> Promise:
    """A finite float from low to high. above, below: without that end; ints: other real numbers, too."""
    kinds = (numbers.Real,) if ints else (float,)

    def rule(value: Any) -> Kind:
        if type(value) is bool or not kind(value, *kinds):
            return TypeError
        number = plain(value) if kind(value, int) else float(plain(value))
        inside = (number > low if above else number >= low) and (number < high if below else number <= high)
        return None if inside and -FLOATS <= number <= FLOATS else ValueError

    ends = [end for end in (low, high) if math.isfinite(end)]
    near = [math.nextafter(end, to) for end in ends for to in (-math.inf, math.inf)]
    some = (math.nextafter(low, math.inf) if math.isfinite(low) else 0.0) if above else max(low, -1.0)
    edges = (*map(float, ends), *near, *map(int, ends), some, Float(some), np.float64(some), np.float32(0.5), 10**400)
    return Promise(rule, (*edges, math.nan, math.inf, -math.inf, str(some), True, None, 1j, fractions.Fraction(1, 2)))


def one_of(*known: Any) -> Promise:
    """One of these values, of their type, too."""
    kinds = tuple({type(one) for one in known})

    def rule(value: Any) -> Kind:
        if not kind(value, *kinds):
            return TypeError
        given = plain(value) if kind(value, str) else value
        return None if any(type(given) is type(one) and given == one for one in known) else ValueError

    words = [one for one in known if isinstance(one, str)]
    near = [change for word in words for change in (Text(word), word.upper(), f"{word} ", word[:-1], word.encode())]
    return Promise(
        rule, (*known, *near, *(int(one) for one in known if isinstance(one, bool)), 2, "x", None, [known[0]])
    )


def several(
    part: Promise, *classes: type, one: bool = False, empty: bool = False, make: Callable[[Any], Any] = tuple
) -> Promise:
    """A list or tuple of these values (or what `classes` says). one: or a single such value; empty: or none."""
    classes = classes or (list, tuple)

    def rule(value: Any) -> Kind:
        if not kind(value, *classes):
            return part.rule(value) if one else TypeError
        base = next(base for base in classes if kind(value, base))
        return next(
            filter(None, map(part.rule, base.__iter__(value))), None if empty or base.__len__(value) else ValueError
        )

    good = next(value for value in part.edges if part.rule(value) is None)
    grouped = (base(group) for base in classes for edge in part.edges for group in ([edge], [good, edge]))
    return Promise(rule, (*part.edges, *grouped, *(base() for base in classes), {}, {good}))


def either(*promises: Promise) -> Promise:
    """What one of them takes; what all refuse is a ValueError as soon as one of them says so."""

    def rule(value: Any) -> Kind:
        kinds = [promise.rule(value) for promise in promises]
        return None if None in kinds else max(kinds, key=lambda kind: kind is ValueError)

    return Promise(rule, tuple(itertools.chain.from_iterable(promise.edges for promise in promises)))


def dict_of(**parts: Promise) -> Promise:
    """A dict with some of these keys."""

    def rule(value: Any) -> Kind:
        if not kind(value, dict):
            return TypeError
        for name, part in dict.items(value):
            if not kind(name, str) or str.__str__(name) not in parts:
                return KeyError
            if found := parts[str.__str__(name)].rule(part):
                return found
        return None

    good = {name: next(edge for edge in part.edges if part.rule(edge) is None) for name, part in parts.items()}
    alone = [
        {name: edge} for name, part in parts.items() for edge in (*part.edges, Silent(), Thing(), self_containing())
    ]
    last = [{**good, name: edge} for name, part in parts.items() for edge in part.edges]
    wrong = [{key: edge} for key in ("", "mode", next(iter(parts))[:-1], 3, None, b"a", "é") for edge in (1, Silent())]
    return Promise(rule, (*alone, *last, *wrong, {KeyText(next(iter(parts))): good[next(iter(parts))]}, Dict(good), {}))


def _of_type(base: type, *edges: Any) -> Promise:
    return Promise(lambda value: None if kind(value, base) else TypeError, edges)


def _flag(value: Any) -> Kind:
    return None if type(value) is bool else TypeError


def _path(value: Any) -> Kind:
    if not kind(value, str):
        return TypeError
    return ValueError if any(c == "\0" or "\ud800" <= c <= "\udc7f" for c in str.__str__(value)) else None


NOTHING = one_of(None)
FLAG = Promise(_flag, (True, False, 0, 1, "True", None, np.bool_(True)))
TEXT = _of_type(str, "", "a", Text("a"), SilentText("a"), b"a", 1, None, ["a"])
PATHS = ("", "s.ckpt", "d/e/s.json", "a\0b", "a\ud800", "\udc80", Text("s.ckpt"), b"s.ckpt", None, 3)
PATH = Promise(_path, PATHS)

NUMBER = r"-?[\d.e+-]*\d"
PATTERNS: list[tuple[str, Callable[..., Promise]]] = [
    (r"(.+), or None", lambda text: either(_parsed(text), NOTHING)),
    (r"True or False", lambda: FLAG),
    (r"A text \(str\)", lambda: TEXT),
    (r"The path of a file or folder as text \(str\), without a null character", lambda: PATH),
    (r"One of (.+)", lambda values: one_of(*ast.literal_eval(f"({values},)"))),
    (r"(An int.*), or a list or tuple of such ints", lambda text: several(_parsed(text), one=True)),
    (rf"((?:{NUMBER}, or )*)[Aa]n int", lambda also: _ints(also)),
    (rf"((?:{NUMBER}, or )*)[Aa]n int, at least ({NUMBER})", lambda also, low: _ints(also, int(low))),
    (rf"((?:{NUMBER}, or )*)[Aa]n int from ({NUMBER}) to ({NUMBER})", lambda also, *ends: _ints(also, *map(int, ends))),
    (
        rf"A finite (float|number)(?:, (above|at least) ({NUMBER}))?(?:, (below|at most) ({NUMBER}))?",
        lambda what, above, low, below, high: real(
            float(low or -math.inf),
            float(high or math.inf),
            above=above == "above",
            below=below == "below",
            ints=what == "number",
        ),
    ),
]


ANY_CASE = ("One of 'valid', 'same', 'pad'",)  # taken in capitals, too, which the text does not say


def _ints(also: str, low: int | float = -math.inf, high: int | float = math.inf) -> Promise:
    return whole(low, high, tuple(map(int, re.findall(NUMBER, also))), of_numpy=True)


def _parsed(text: str) -> Promise:
    for pattern, make in PATTERNS:
        if found := re.fullmatch(pattern, text):
            return make(*found.groups())
    raise LookupError(text)


def promise(what: Check | str) -> Promise | None:
    """What the text of a check promises; None for a text that is not in the kit's own words."""
    text = what if isinstance(what, str) else what.allowed
    try:
        return None if text in ANY_CASE else _parsed(text)
    except (LookupError, ValueError):  # other words; values that are not literals
        return None


# ---- declarations ----


def declared(function: Callable[..., Any]) -> dict[str, Check]:
    """The checks that `@checked` holds for a function; {} for another one."""
    if not hasattr(function, "__wrapped__") or "checks" not in function.__code__.co_freevars:
        return {}
    return inspect.getclosurevars(function).nonlocals["checks"]


def outside(check: Check) -> list[Any]:
    """Values that a check refuses: those just outside its promise, or what no check takes."""
    found = promise(check)
    return [value for value, _ in found.sides()[1]] if found else [Loud()]
