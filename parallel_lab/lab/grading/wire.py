"""What the grader and a submission's process say to each other: JSON, and nothing that could run.

A value crosses as data: numbers, texts, lists, dicts, arrays, Requests, measured fits, events. A function, a generator
or the handle of a started message stays where it is, and its number crosses: the other process asks for a call. An
error crosses as its name and text. Anything else crosses as the text that stands for it.
"""

from __future__ import annotations

import base64
import builtins
import json
import re
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, MappingView
from dataclasses import fields
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from ...base import errors
from ...base.errors import shorten
from ...base.events import Event
from ...cost.schedules import Schedule
from ...nn.tensor.tensor import Tensor
from ...processes.measure.fit import Fit
from ...run.communicator import Handle, Request, Wait
from ..exercises.capstone import Layout, Work
from ..exercises.own_process import HandleHere, Opaque, text_of
from ..pipeline.model import PipelineLab
from ..shared.equality import Equality, EqualityRow

MOST_BYTES = 64 << 20  # of one message
MOST_VALUES = 200_000  # in one value, of lists in lists
DEEPEST = 40  # lists in lists
MOST_DIGITS = 1000  # of a whole number
_HEAD = struct.Struct(">I")
_RECORDS: dict[str, type] = {
    kind.__name__: kind for kind in (Request, Wait, Fit, Layout, Work, Event, Equality, EqualityRow)
}
_NUMBERS: dict[str, type] = {"Fraction": Fraction, "Decimal": Decimal}  # that their text gives exactly


class Lost(Exception):
    """The other process has ended, or sends something that is not a message."""


class Channel:
    """Messages over a socket, one dict each."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self._sending = threading.Lock()  # the thread that ends a submission's process says so

    def send(self, message: dict[str, Any]) -> None:
        """Raises Lost."""
        data = json.dumps(message).encode()
        if len(data) > MOST_BYTES:
            raise Lost("a message that is too long")
        try:
            with self._sending:
                self.link.sendall(_HEAD.pack(len(data)) + data)
        except OSError as error:
            raise Lost(str(error)) from error

    def receive(self, seconds: float | None = None) -> dict[str, Any]:
        """The next message. Raises Lost, and TimeoutError if none comes in time."""
        self.link.settimeout(seconds)
        try:
            (size,) = _HEAD.unpack(self._exactly(_HEAD.size))
            if size > MOST_BYTES:
                raise Lost("a message that is too long")
            message = json.loads(self._exactly(size))
        except TimeoutError:
            raise
        except (OSError, ValueError, RecursionError) as error:
            raise Lost(str(error)) from error
        if not isinstance(message, dict):
            raise Lost("not a message")
        return message

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self.link.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise Lost("the process has ended")
            parts += part
        return bytes(parts)


class Encoder:
    """Makes plain data of values; keeps functions, generators and handles under numbers."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def encode(self, value: Any) -> Any:
        """Plain data for `decode`. Never raises for a value."""
        self._left, self._bytes = MOST_VALUES, MOST_BYTES // 2
        try:
            return self._encoded(value, 0)
        except Exception:  # whatever a learner's object does; too many values, too deep
            return {"opaque": text_of(value)}

    def _encoded(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0 or depth > DEEPEST:
            raise ValueError("too large")
        kind = type(value)
        if value is None or kind in (bool, float):
            return value
        if kind is int:
            return value if abs(value) < 10**MOST_DIGITS else {"opaque": "a number of very many digits"}
        if kind is str:
            self._take(len(value))
            return value
        if kind.__name__ in _NUMBERS and kind is _NUMBERS[kind.__name__]:
            self._take(len(str(value)))
            return {"number": str(value), "kind": kind.__name__}
        if kind in (bytes, complex):
            self._take(len(value) if kind is bytes else 16)
            return {"bytes": _base64(value)} if kind is bytes else {"complex": [value.real, value.imag]}
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value)
        if kind in _RECORDS.values():
            values = {f.name: self._encoded(getattr(value, f.name), depth + 1) for f in fields(value)}
            return {"record": kind.__name__, "fields": values}
        if isinstance(value, PipelineLab | Schedule):
            return (value.schedule if isinstance(value, PipelineLab) else value).text()
        if isinstance(value, Tensor):
            return self._array(np.asarray(value.asnumpy()))
        if isinstance(value, Mapping):
            return {"dict": [[self._encoded(k, depth + 1), self._encoded(v, depth + 1)] for k, v in value.items()]}
        if isinstance(value, list | tuple | set | frozenset | range | deque | MappingView):
            name = next(n for n in ("tuple", "set", "list") if n == kind.__name__ or n == "list")
            return {name: [self._encoded(one, depth + 1) for one in value]}
        if isinstance(value, Generator | Iterator):
            return {"generator": self._keep(value)}
        if isinstance(value, Handle | HandleHere):
            return {"handle": self._keep(value) if isinstance(value, Handle) else value.number}
        if callable(value):
            return {"function": self._keep(value), "name": str(getattr(value, "__name__", "function"))[:100]}
        return {"opaque": text_of(value)}

    def _keep(self, value: Any) -> int:
        self.kept.append(value)
        return len(self.kept) - 1

    def _take(self, size: int) -> None:
        self._bytes -= size
        if self._bytes < 0:
            raise ValueError("too large")

    def _array(self, value: Any) -> Any:
        if value.dtype.kind not in "biufcU":
            return {"opaque": text_of(value)}
        self._take(2 * value.nbytes)
        data = _base64(np.ascontiguousarray(value).tobytes())
        return {"array": data, "dtype": value.dtype.str, "shape": list(value.shape), "single": np.isscalar(value)}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _is_far(text: str) -> bool:
    """Whether a number has an exponent that stands for very many digits: int(Decimal("1e999999999")) takes hours."""
    found = re.search(r"[eE][-+]?(\d+)", text)
    return found is not None and (len(found[1]) > 9 or int(found[1]) > MOST_DIGITS)


def _stays(*_: Any) -> Any:
    raise ValueError("a function that stays in the other process")


def raised(error: Exception) -> list[str]:
    """An error as plain data, for `error_of`."""
    return [type(error).__name__, str(error)[:2000]]


def error_of(name: str, text: str) -> Exception:
    """An error that the other process has raised: one of ours or of Python's with this name, or a RuntimeError."""
    kind = getattr(errors, name, getattr(builtins, name, None))
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = RuntimeError
    error = kind.__new__(kind)
    error.args = (text,)
    return error


def decode(
    data: Any,
    function: Callable[[int, str], Any] = _stays,
    generator: Callable[[int], Any] = _stays,
    handle: Callable[[int], Any] = _stays,
) -> Any:
    """The value again; `function`, `generator` and `handle` make what stands for those. Raises ValueError for other
    data.
    """

    def decoded(data: Any) -> Any:
        if not isinstance(data, dict):
            if isinstance(data, list):
                raise ValueError("a bare list")
            return data
        match data:
            case {"list": items}:
                return [decoded(one) for one in items]
            case {"tuple": items}:
                return tuple(decoded(one) for one in items)
            case {"set": items}:
                return {decoded(one) for one in items}
            case {"dict": pairs}:
                return {decoded(key): decoded(value) for key, value in pairs}
            case {"array": text, "dtype": dtype, "shape": shape, "single": single}:
                if np.dtype(dtype).kind not in "biufcU":
                    raise ValueError(f"an array of {dtype}")
                array = np.frombuffer(base64.b64decode(text), np.dtype(dtype)).reshape([int(n) for n in shape])
                return array.reshape(())[()] if single is True else array.copy()
            case {"bytes": text}:
                return base64.b64decode(text)
            case {"complex": [real, imaginary]}:
                return complex(real, imaginary)
            case {"record": name, "fields": told}:
                return _RECORDS[name](**{str(key): decoded(value) for key, value in told.items()})
            case {"function": number, "name": name}:
                return function(int(number), str(name))
            case {"generator": number}:
                return generator(int(number))
            case {"handle": number}:
                return handle(int(number))
            case {"number": text, "kind": kind}:
                if any(len(digits) > MOST_DIGITS for digits in re.findall(r"\d+", str(text))) or _is_far(str(text)):
                    raise ValueError(f"a {shorten(kind)} of very many digits")
                return _NUMBERS[kind](str(text))
            case {"opaque": text}:
                return Opaque(str(text))
        raise ValueError(f"a value of an unknown kind: {sorted(data)[:3]}")

    try:
        return decoded(data)
    except ValueError:
        raise
    except Exception as error:  # data that another process made up
        raise ValueError(str(error)) from error
