"""JSON from files that nobody vouches for: read within limits, refused where two readers could differ.

    table = parse_json(data, "strategy.json", StrategyFileError, max_bytes=1 << 20)

The limits are looked at before Python's parser sees the text: deep nesting would end in its recursion, many small items
in a hundred times the memory. Keys that stand twice (of which readers keep one, not all the same one), NaN and infinity
(which are no JSON) are refused.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from .errors import ParallelLabError, message, shorten

MAX_BYTES = 16 << 20
MAX_DEPTH = 8
MAX_ITEMS = 1_000_000

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")


class _Refused(ValueError):
    """What the parser's hooks raise, turned into the caller's error."""


def parse_json(
    data: bytes,
    where: str,
    error: type[ParallelLabError],
    *,
    max_bytes: int = MAX_BYTES,
    max_depth: int = MAX_DEPTH,
    max_items: int = MAX_ITEMS,
) -> Any:
    """The value that `data` (UTF-8) holds. Raises `error`, its text beginning with `where`, for anything that is not
    plain JSON within the limits.

    >>> parse_json(b'{"a": [1, 2.5, null]}', "here", ParallelLabError)
    {'a': [1, 2.5, None]}
    """
    if len(data) > max_bytes:
        raise error(message(f"{len(data)} bytes", where=where, allowed=f"At most {max_bytes} bytes"))
    items = data.count(b",") + data.count(b"[") + data.count(b"{")
    if items > max_items:
        raise error(message(f"about {items} items", where=where, allowed=f"At most {max_items} items"))
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub(b"", data)):
        depth += 1 if bracket.group() in b"[{" else -1
        if depth > max_depth:
            raise error(message(f"nested deeper than {max_depth}", where=where, allowed=f"At most {max_depth} levels"))
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_constant, parse_float=_finite)
    except (ValueError, RecursionError) as found:  # _Refused, JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise error(message(f"invalid JSON: {found}", where=where)) from None


def dump_json(value: Any) -> str:
    """`value` as JSON on one line. Raises ValueError for NaN and infinity, TypeError for what JSON has no form for."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _Refused(f"the key {shorten(twice)} stands twice")
    return found


def _constant(text: str) -> Any:
    raise _Refused(f"{text} is not allowed")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Refused(f"the number {shorten(text)} is not finite")
    return number
