"""JSON from files that nobody vouches for: read within limits, refused where two readers could differ.

    table = parse_json(data, "strategy.json", StrategyFileError, max_bytes=1 << 20)

Python's own parser reads: it takes time linear in the text, and ends deep nesting with an error. What it lacks is
added. Memory: small values take up to fifty times the bytes of their text, so what they may take is reckoned from the
text before it is parsed (`memory_needed`), and refused above 3 times the text and 32 MiB. Keys that stand twice (of
which readers keep one, not all the same one), NaN and infinity (which are no JSON), and deep nesting are refused.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from .errors import ParallelLabError, message, shorten
from .files import read_regular

MAX_BYTES = 8 << 20
MAX_DEPTH = 8
# a reader parses once more what stands as text in the JSON of a checkpoint, and may take 64 MiB in all
SPARE_BYTES = 32 << 20

MAX_ENTRY_BYTES, _PIECE_BYTES = 64 << 10, 1 << 20  # of a list that is read entry by entry
_SHORT_ENTRIES, _LEAST_BYTES = 10_000, 16  # so many may be short; then an entry has so many bytes on average
_BLANKS = re.compile(r"[ \t\r\n]*")

# bytes that one of them in the text may stand for in memory, while it is parsed: the most that tracemalloc saw in
# CPython 3.11, rounded up. A text has two quotes, a number is followed by a comma
_COSTS = {b",": 40, b":": 160, b"[": 80, b"{": 100, b'"': 24}


class _Refused(ValueError):
    """What the parser's hooks raise, turned into the caller's error."""


def parse_json(
    data: bytes, where: str, error: type[ParallelLabError], *, max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH
) -> Any:
    """The value that `data` (UTF-8) holds. Raises `error`, its text beginning with `where`, for anything that is not
    plain JSON within the limits.

    >>> parse_json(b'{"a": [1, 2.5, null]}', "here", ParallelLabError)
    {'a': [1, 2.5, None]}
    """
    if len(data) > max_bytes:
        raise error(message(f"{len(data)} bytes", where=where, allowed=f"At most {max_bytes} bytes"))
    value: Any = None
    try:
        text = data.decode("utf-8")
        needed, most = memory_needed(data, text), 3 * len(data) + SPARE_BYTES
        if needed > most:
            what, allowed = f"it would take up to {needed >> 20} MiB of memory", f"At most {most >> 20} MiB"
            raise error(message(what, where=where, allowed=allowed))
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_constant, parse_float=_finite)
        is_deep = _is_deeper(value, max_depth)
    except RecursionError:
        is_deep = True
    except ValueError as found:  # _Refused, JSONDecodeError, UnicodeDecodeError; `error` may be a ValueError as well
        if isinstance(found, ParallelLabError):
            raise
        raise error(message(f"invalid JSON: {found}", where=where)) from None
    if is_deep:
        raise error(message(f"nested deeper than {max_depth}", where=where, allowed=f"At most {max_depth} levels"))
    return value


def read_json(
    path: str | os.PathLike[str], error: type[ParallelLabError], *, where: str = "", hint: str = "", **limits: int
) -> Any:
    """What a file holds, by `parse_json`; `error` also where it cannot be read. where: its name; the path, if empty."""
    where = where or str(path)
    try:
        data = read_regular(path, limits.get("max_bytes", MAX_BYTES))
    except (OSError, ValueError) as found:
        reason = getattr(found, "strerror", None) or str(found)
        raise error(f"cannot be read: {reason}", where=where, hint=hint) from found
    return parse_json(data, where, error, **limits)


def entries_of(file: BinaryIO, key: str, where: str, error: type[ParallelLabError]) -> Iterator[Any]:
    """The entries of the list `key` in the object that a file of ASCII holds, one after the other: of a file of any
    length one piece is in memory. Raises `error` as parse_json does; an entry has at most MAX_ENTRY_BYTES, and millions
    of entries of a byte or two, each as slow as a long one, are refused.

    >>> import io
    >>> list(entries_of(io.BytesIO(b'{"a": [1, 2], "b": [{"c": 3}, 4]}'), "b", "here", ParallelLabError))
    [{'c': 3}, 4]
    """
    decode = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_constant, parse_float=_finite).raw_decode
    text, at, passed, values = "", 0, 0, 0
    names: set[str] = set()

    def next_sign() -> str:
        nonlocal text, at, passed
        if len(text) - at < 2 * MAX_ENTRY_BYTES:  # what may come next is in memory as a whole
            passed += at
            text, at = text[at:] + file.read(_PIECE_BYTES).decode("ascii"), 0
        at = cast(re.Match[str], _BLANKS.match(text, at)).end()  # also of no blanks at all
        return text[at : at + 1]

    def take(signs: str) -> str:
        nonlocal at
        sign = next_sign()
        if not sign or sign not in signs:
            raise _Refused(f"{shorten(sign) if sign else 'the end'} instead of {' or '.join(signs)}")
        at += 1
        return sign

    def value() -> Any:
        nonlocal at, values
        next_sign()
        values += 1
        if values > _SHORT_ENTRIES and values * _LEAST_BYTES > passed + at:
            raise _Refused(f"{values:,} entries in {passed + at:,} bytes")
        one, end = decode(text, at)
        if end - at > MAX_ENTRY_BYTES:
            raise _Refused(f"an entry of {end - at:,} bytes")
        # a look at every value of every entry would take as long as the parsing
        may_be_deep = text.count("[", at, end) + text.count("{", at, end) > MAX_DEPTH
        at = end
        if may_be_deep and _is_deeper(one, MAX_DEPTH):
            raise _Refused(f"an entry nested deeper than {MAX_DEPTH}")
        return one

    try:
        take("{")
        while True:
            name = value()
            take(":")
            if name in names:
                raise _Refused(f"the key {shorten(name)} stands twice")
            if next_sign() != "[":
                value()
            else:
                names.add(name)
                is_over = bool(take("[")) and next_sign() == "]" and bool(take("]"))
                while not is_over:
                    entry = value()
                    if name == key:
                        yield entry
                    is_over = take(",]") == "]"
            if take(",}") == "}":
                break
        if next_sign():
            raise _Refused("more text after its end")
        if key not in names:
            raise _Refused(f"there is no list {key!r}")
    except (ValueError, RecursionError) as fault:
        raise error(message(f"invalid JSON: {fault}", where=where)) from None


def memory_needed(data: bytes, text: str) -> int:
    """Bytes that parsing `text`, whose bytes are `data`, takes at most, the text itself included."""
    width = sys.getsizeof(text)
    # of texts made of escapes, a wide one at the end makes all of them wide
    texts = max(1.25 * width, 3 * len(data) if b"\\u" in data else 0)
    return int(width + texts + sum(data.count(sign) * cost for sign, cost in _COSTS.items())) + 4096


def dump_json(value: Any) -> str:
    """`value` as JSON on one line. Raises ValueError for NaN and infinity, TypeError for values that JSON lacks."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _is_deeper(value: Any, max_depth: int) -> bool:
    """Whether lists and objects lie more than `max_depth` deep in each other."""
    level = [value]
    for _ in range(max_depth):
        inner = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list)))
        level = [one for several in inner for one in several]
    return any(isinstance(one, (dict, list)) for one in level)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise _Refused(f"the key {shorten(twice)} stands twice")
    return entries


def _constant(text: str) -> Any:
    raise _Refused(f"{text} is not allowed")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Refused(f"the number {shorten(text)} is not finite")
    return number
