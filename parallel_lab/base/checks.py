"""Checks of arguments: what a value may be is said once, and every refusal reads alike.

    depth = integer(1)("OneHot", "depth", depth)               in a function: check(where, name, value)

    @checked(vocab_size=integer(1), use_one_hot=flag, padding_idx=integer(0) | None)
    def __init__(self, vocab_size, use_one_hot=False, padding_idx=None): ...

A check gives the value in plain Python types, or raises: "where: name=value. What is allowed. A hint." The class of the
error is one of a pair, `Errors`: its first for a wrong type, its second for a value out of range. A bool is never an
int or a number. Nothing of the value is called but its repr for the text: what it is, is asked of its type, and a
subclass of int, float or str is read through the base class.

    >>> integer(1, 8)("GPT", "layers", 9)
    Traceback (most recent call last):
    parallel_lab.base.errors.ArgumentError: GPT: layers=9. An int from 1 to 8.

`checked` refuses arguments that fit no parameter, too: too many, missing, unknown, given twice.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import os
import re
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from .dtypes import is_masked
from .errors import STUMBLES, ArgumentError, ArgumentTypeError, ParallelLabError, ShapeError, shorten, stumbled

INT_LIMIT = 2**31 - 1  # of counts, sizes and indices that MindSpore bounds on one side only: more is a slip
COPIES = 10_000  # of layers and the like, at most: each is an object of its own
INTS = (int, np.integer)
PATH = "The path of a file or folder as text (str), without a null character"
Kinds = type | tuple[type, ...]
Function = TypeVar("Function", bound=Callable[..., Any])


class Errors(NamedTuple):
    """What a check raises: for a value of a wrong type, and for one out of range."""

    type: type[ParallelLabError]
    value: type[ParallelLabError]


ARGUMENT, SHAPE_ERRORS = Errors(ArgumentTypeError, ArgumentError), Errors(ShapeError, ShapeError)


class Check:
    """What a value may be: `check(where, name, value)` gives it in plain Python types. allowed: its text, for errors;
    read: value -> plain value, or TypeError or ValueError with a hint, or with nothing.
    """

    def __init__(self, allowed: str, read: Callable[[Any], Any]) -> None:
        self.allowed, self.read = allowed, read

    def __call__(self, where: str, name: str, value: Any, errors: Errors = ARGUMENT) -> Any:
        try:
            return self.read(value)
        except (TypeError, ValueError) as refused:
            kind, hint = errors[isinstance(refused, ValueError)], str(refused)
        raise kind(f"{name}={shorten(value)}", where=where, allowed=self.allowed, hint=hint)

    def __or__(self, other: None) -> Check:
        """The same, and None."""
        return Check(f"{self.allowed}, or None", lambda value: None if value is None else self.read(value))


def checked(
    where: str = "", errors: Errors = ARGUMENT, /, **checks: Callable[..., Any]
) -> Callable[[Function], Function]:
    """A decorator that checks arguments by name and passes them on as the checks return them. Defaults are not checked.

    where  what errors begin with; without it, the name of the class for `__init__`, otherwise that of the function
    """
    return lambda function: _guarded(function, where, function.__qualname__, checks, errors)


def fitting(function: Function, where: str = "") -> Function:
    """`checked` for a function that checks no values but switches (`switches_of`)."""
    switches = switches_of(function).items() if inspect.isfunction(function) else ()
    return _guarded(function, where, function.__name__, {name: check for name, (_, check) in switches}, ARGUMENT)


def _guarded(function: Function, where: str, own_name: str, checks: dict[str, Any], errors: Errors) -> Function:
    written = inspect.isfunction(function)
    parameters = inspect.signature(function).parameters.values() if written else ()
    places = {p.name: INT_LIMIT if p.kind is p.KEYWORD_ONLY else at for at, p in enumerate(parameters)}
    makes = written and function.__name__ in ("__init__", "__new__", "__call__")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        place = where or own_name
        if makes and args and not where:
            place = (args[0] if isinstance(args[0], type) else type(args[0])).__name__
        values = list(args)
        for name, check in checks.items():
            if name in kwargs:
                kwargs[name] = check(place, name, kwargs[name], errors)
            elif places[name] < len(values):
                values[places[name]] = check(place, name, values[places[name]], errors)
        try:
            return function(*values, **kwargs)
        except STUMBLES as error:
            if fault := refusal(error, place, function if written else None, args, kwargs, errors):
                raise fault from fault.__cause__
            raise

    return cast(Function, call)


def switches_of(function: Callable[..., Any]) -> dict[str, tuple[int, Check]]:
    """Position and check of the parameters that say by their default or name what they take: those that are True or
    False (unless annotated with other types, too), and seeds.
    """
    found = {}
    for place, (name, p) in enumerate(inspect.signature(function).parameters.items()):
        # what only a name gives stands at no place
        place = INT_LIMIT if p.kind is p.KEYWORD_ONLY else place
        if type(p.default) is bool and p.annotation in (p.empty, bool, "bool"):
            found[name] = (place, flag)
        elif name == "seed" and p.default is None:
            found[name] = (place, SEED)
        elif name == "generator" and p.default is None:
            found[name] = (place, NOTHING)
        elif name == "device" and p.default is None:
            found[name] = (place, text | None)
    return found


def check_switches(
    where: str, switches: dict[str, tuple[int, Check]], args: tuple[Any, ...], kwargs: dict[str, Any], errors: Errors
) -> None:
    """Raise for a switch (`switches_of`) that is neither True nor False, and the like."""
    for name, (place, check) in switches.items():
        if place < len(args):
            check(where, name, args[place], errors)
        elif name in kwargs:
            check(where, name, kwargs[name], errors)


def fitting_class(cls: type) -> type:
    """`fitting` for the makers of objects of a class, and for the public methods that the class itself defines."""
    for name, method in list(vars(cls).items()):
        function = getattr(method, "__func__", method)  # of a class method or a static one
        public = name in ("__init__", "__new__") or not name.startswith("_")
        if public and inspect.isfunction(function) and not hasattr(function, "__wrapped__"):
            setattr(cls, name, fitting(function) if function is method else type(method)(fitting(function)))
    return cls


def kept(**checks: Callable[..., Any]) -> Callable[[Function], Function]:
    """`checked` for an `__init__` whose arguments, given or default, are attributes when the body begins. `_kept` lists
    the names of those that are checked, those of base classes first.
    """

    def decorate(init: Function) -> Function:
        signature = inspect.signature(init)

        @functools.wraps(init)
        def call(self: Any, *args: Any, **kwargs: Any) -> None:
            given = signature.bind(self, *args, **kwargs)
            given.apply_defaults()
            own = [p for p in given.arguments.items() if p[0] in checks or not hasattr(type(self), p[0])][1:]
            vars(self).update(own, _kept=(*checks, *vars(self).get("_kept", ())))
            init(self, *args, **kwargs)

        return cast(Function, checked(**checks)(call))

    return decorate


# ---- arguments that fit no parameter ----


def misfit(
    where: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    kind: type[ParallelLabError] = ArgumentTypeError,
) -> ParallelLabError | None:
    """The error for arguments that are too many, missing, unknown or given twice; None if they fit.

    >>> str(misfit("uncalled_function", inspect.signature(uncalled_function), (), {"txt": "a"}))
    "uncalled_function: unexpected argument 'txt'. It takes (text). The nearest is 'text'."
    """
    known = signature.parameters
    hint, open_ends = "", (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError as error:
        what = str(error).removeprefix("got an ").replace("keyword argument", "argument")
        hint = next((nearest(name, known.keys() - kwargs.keys()) for name in kwargs if name not in known), "")
    else:
        needed = [name for name, p in known.items() if p.default is p.empty and p.kind not in open_ends]
        missing = [repr(name) for name in needed if name not in given]
        if not missing:
            return None
        what = f"missing argument{'s' * (len(missing) > 1)} {', '.join(missing)}"
    own = ("self", "cls")
    shown = inspect.Signature([p.replace(annotation=p.empty) for name, p in known.items() if name not in own])
    return kind(what, where=where, allowed=f"It takes {shown}", hint=hint)


def refusal(error: Exception, where: str, called: Any, args: Any, kwargs: Any, errors: Errors = ARGUMENT) -> Any:
    """The error for arguments that do not fit what was `called`, or what `stumbled` says of `error`; or None.

    Whether they fit is asked afterwards: asked before, it would cost many calls more than what they do.
    """
    unfit = misfit(where, inspect.signature(called), args, kwargs) if called and isinstance(error, TypeError) else None
    if unfit is not None:
        unfit.__cause__ = None  # Python's words say less
    return unfit or stumbled(error, where, *errors)


# ---- numbers ----


def is_int(value: Any, low: float = -math.inf, high: float = math.inf, kinds: Kinds = int) -> bool:
    """Whether `value` is an int, and no bool, from `low` to `high`."""
    return _is(value, kinds) and low <= _plain_int(value) <= high


def _plain_int(value: Any) -> int:
    return int.__index__(value) if issubclass(type(value), int) else int(value)


def integer(
    low: int | None = None, high: int | None = None, *, also: tuple[int, ...] = (), kinds: Kinds = INTS
) -> Check:
    """An int from `low` to `high`, or one of `also`. kinds: int alone leaves numpy's out."""
    open_end = high is None or high == INT_LIMIT
    span = "" if low is None else f", at least {low}" if open_end else f" from {low} to {high}"

    def read(value: Any) -> int:
        if not _is(value, kinds):
            raise TypeError
        plain = _plain_int(value)
        if plain not in also and (low is not None and plain < low or high is not None and plain > high):
            raise ValueError(f"More than {INT_LIMIT} is taken for a slip" if high == INT_LIMIT < plain else "")
        return plain

    return Check("".join(f"{n}, or " for n in also) + f"{'an' if also else 'An'} int{span}", read)


def number(
    low: float = -math.inf, high: float = math.inf, *, above: bool = False, below: bool = False, kinds: Kinds = Real
) -> Check:
    """A finite number from `low` to `high`, as a float. above, below: without that end. kinds=float: no ints."""
    bounds = [] if low == -math.inf else [f"{'above' if above else 'at least'} {low:g}"]
    bounds += [] if high == math.inf else [f"{'below' if below else 'at most'} {high:g}"]
    allowed = ", ".join([f"A finite {'float' if kinds is float else 'number'}", *bounds])

    def read(value: Any) -> float:
        if not _is(value, kinds):
            raise TypeError("Write it with a decimal point" if kinds is float and _is(value, int) else "")
        plain = float.__float__(value) if issubclass(type(value), float) else _as_float(value)
        inside = (plain > low if above else plain >= low) and (plain < high if below else plain <= high)
        if not inside or not math.isfinite(plain):
            raise ValueError
        return plain

    return Check(allowed, read)


def floating(low: float = -math.inf, high: float = math.inf, **ends: bool) -> Check:
    """`number`, and no int: what MindSpore's documents call a float and refuse otherwise."""
    return number(low, high, kinds=float, **ends)


probability = number(0, 1, below=True)


def _as_float(value: Any) -> float:
    try:
        return float(int.__index__(value) if issubclass(type(value), int) else value)
    except OverflowError:  # an int of more than 308 digits
        return math.inf


def _is(value: Any, kinds: Kinds) -> bool:
    return issubclass(type(value), kinds) and type(value) is not bool


# ---- other values ----


def no_tensor(kind: type[ParallelLabError], where: str, what: str, value: Any, number: bool) -> ParallelLabError:
    """The error for a value that is not a tensor. what: the text before the value; number: whether a number would do,
    too.
    """
    unwrapped = isinstance(value, (list, tuple)) or (isinstance(value, (bool, int, float)) and not number)
    allowed = f"A Tensor or an array of numbers{', or a number' if number else ''}"
    hint = "Fill what is masked: x.filled(0)" if is_masked(value) else "Write Tensor(...)" if unwrapped else ""
    return kind(f"{what}{shorten(value)}", where=where, allowed=allowed, hint=hint)


def _read_flag(value: Any) -> bool:
    if value is not True and value is not False:
        raise TypeError
    return value


def _read_nothing(value: Any) -> None:
    if value is not None:
        raise TypeError("Draws are numbered, and repeat with set_seed")


NOTHING = Check("None: there are no generators", _read_nothing)
flag = Check("True or False", _read_flag)
SEED = integer(0, 2**64 - 1) | None


LARGEST_TEXT = 40  # characters of a typed size
UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def _read_size(given: Any) -> int:
    """A size in bytes: an int, or a text such as "4 MiB", "900 KB", "2G". 0 for None and an empty text."""
    if isinstance(given, str):
        text = given.strip().upper()[:LARGEST_TEXT].removesuffix("IB").removesuffix("B").replace(",", ".")
        number, unit = (text[:-1], text[-1]) if text[-1:] in UNITS and text else (text, "")
        given = int(min(float(number) * UNITS[unit], 2**60)) if text else 0
    return integer(0, 2**60 - 1).read(given or 0)


size_or_none = Check("A size such as '4 MiB' or '900 KiB', or '' for none", _read_size)


def instance(kinds: Kinds, allowed: str, call: str = "...") -> Check:
    """A value of these types, as it is. call: arguments in the hint for a class that was given instead."""

    def read(value: Any) -> Any:
        if not isinstance(value, kinds):
            is_class = isinstance(value, type) and issubclass(value, kinds)
            raise TypeError(f"Write {value.__name__}({call})" if is_class else "")
        return value

    return Check(allowed, read)


def function(allowed: str) -> Check:
    """Something that can be called, and no class."""

    def read(value: Any) -> Any:
        if isinstance(value, type):
            raise TypeError(f"Write {value.__name__}(...)")
        if not callable(value):
            raise TypeError
        return value

    return Check(allowed, read)


def choice(*known: Any) -> Check:
    """One of the given values, of their type too: 1 is not True."""
    kinds = tuple({type(one) for one in known})
    texts = [one for one in known if isinstance(one, str)]

    def read(value: Any) -> Any:
        if not issubclass(type(value), kinds):
            raise TypeError
        plain = str.__str__(value) if issubclass(type(value), str) else value
        if not any(type(plain) is type(one) and plain == one for one in known):
            raise ValueError(nearest(plain, texts) if isinstance(plain, str) else "")
        return plain

    return Check(f"One of {', '.join(map(repr, known))}", read)


def sequence_of(check: Check, allowed: str, *, one: bool = False, empty: bool = False) -> Check:
    """A list or tuple of what `check` takes, as a tuple. one: or a single such value; empty: or none."""

    def read(value: Any) -> tuple[Any, ...]:
        if issubclass(type(value), (list, tuple)):
            parts = list.__iter__(value) if issubclass(type(value), list) else tuple.__iter__(value)
            plain = tuple(check.read(part) for part in parts)
            if not plain and not empty:
                raise ValueError
            return plain
        if not one:
            raise TypeError
        return (check.read(value),)

    return Check(allowed, read)


def integers(low: int) -> Check:
    """An int, or a list or tuple of ints, each at least `low`: as a tuple."""
    return sequence_of(integer(low), f"An int, at least {low}, or a list or tuple of such ints", one=True)


def _read_text(value: Any) -> str:
    if not issubclass(type(value), str):
        raise TypeError
    return str.__str__(value)


text = Check("A text (str)", _read_text)


def path_text(allowed: str = PATH, *, empty: bool = True, kinds: Kinds = str) -> Check:
    """A text that the operating system can take for a path; it need not exist. empty: "" too."""

    def read(value: Any) -> str:
        if not issubclass(type(value), kinds):
            raise TypeError
        plain = str.__str__(value) if issubclass(type(value), str) else os.fspath(value)
        try:
            usable = isinstance(plain, str) and b"\0" not in os.fsencode(plain) and (empty or plain != "")
        except UnicodeEncodeError:
            usable = False
        if not usable:
            raise ValueError
        if name := uncalled_function(plain):
            what = f"It holds the text of the function {name}, not what it returns: write '{{}}'.format({name}())"
            raise ValueError(what)
        return plain

    return Check(allowed, read)


def uncalled_function(text: str) -> str:
    """The function whose own text went into a path, as in "rank_{}".format(get_rank); otherwise "".

    >>> uncalled_function(f"rank_{uncalled_function}/strategy.ckpt")
    'uncalled_function'
    """
    found = re.search(r"<(?:built-in |bound )?(?:function|method) ([\w.]+)", text)
    return found.group(1) if found else ""


def nearest(given: str, known: Iterable[str]) -> str:
    """A hint that names the known word most like `given`, or ""."""
    found = difflib.get_close_matches(given[:60], list(known), n=1, cutoff=0.5)
    return f"The nearest is {found[0]!r}" if found else ""


def refuse_slip(where: str, given: str, known: Iterable[str]) -> None:
    """Raise ArgumentError for a name that is nearly a known one, where any other name would be taken."""
    found = difflib.get_close_matches(given[:60], list(known), n=1, cutoff=0.85)
    if found:
        raise ArgumentError(f"there is no {given!r}", where=where, allowed=f"{found[0]!r}, or a name less like it")
