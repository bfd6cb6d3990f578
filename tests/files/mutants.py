"""Damaged and hostile variants of a good file, drawn from a generator; and what a reader made of each.

    for change, data, blind in variants(rng, good, "json", 100): ...
    outcome, broken, took_s = judged(reader, path, data, good_value, blind)      broken: which rule, "" if none

A variant is the good file with bytes changed by chance, or written by someone who knows its form: a value in its JSON
replaced by one that nobody would write, and the checksum made anew; a token of a text; a size in a binary header; and
packed files unpacked, changed and packed again.
"""

from __future__ import annotations

import copy
import gzip
import hashlib
import json
import re
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from parallel_lab.base.errors import ParallelLabError
from tests.files.readers import READERS, Reader, read_plain

MOST_S = 2.0  # of a processor, for any file
SPARE_BYTES = 64 << 20  # and three times the file
NO_SUM = "0" * 64
HOSTILE = [None, True, False, -1, 0, 1, 2, 3, 7, 8, 1.5, -0.0, 5e-324, 1e308, 2**31, 2**63, 2**64, 10**18, 10**4000]
HOSTILE += ["", "x", "0", "None", "../x", "/etc/passwd", "a\0b", "\ud800", "<img src=x onerror=alert(1)>", "é" * 300]
HOSTILE += ["x" * 100_000, [], {}, [[]], [None], [-1], {"a": None}, [1] * 1000, [[0, 0]] * 9, [0] * 100_000, {"": {}}]
WORDS = ["0F999999999999", "9" * 5000 + "F0", "0F" + "9" * 5000, "999999999F0", "0X0", "F", "0", "+", "0F0+0F0", "0F0+"]
WORDS += [
    "٣F٣",
    "0F-1",
    "-1F0",
    ",",
    ";",
    "(",
    ")",
    "(0F0;1B0)OVERLAP_F_B",
    "#",
    "\0",
    "\u2028",
    "0UNSHARD",
    "0SEND_F0",
]
WORDS += ["((", "[" * 500, "-" * 3000, "1 if " * 900, "9**9**9", "'", '"""', "\\", "lambda:" * 300, "\t", "é", "10**9"]
LENGTHS = [10_000, 300_000, 2_000_000, 6_000_000]  # bytes of a file that is filled up
FILLED = 0.02  # of the variants
SIZES = [0, 1, 2, 255, 256, 65535, 2**20, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1]


# ---- bytes ----


def damaged(rng: np.random.Generator, data: bytes) -> tuple[str, bytes]:
    """One random damage: (what was done, the bytes after it, different from those before)."""
    while True:
        made, at, other = bytearray(data), int(rng.integers(len(data))), int(rng.integers(len(data)))
        count = int(rng.integers(1, 65))
        kinds = ["bit", "byte", "cut", "longer", "zeros", "swap", "copy", "drop", "insert", "digit", "text", "length"]
        kind = str(rng.choice(kinds))
        if kind == "bit":
            made[at] ^= 1 << int(rng.integers(8))
        elif kind == "byte":
            made[at] = int(rng.integers(256))
        elif kind == "cut":
            del made[at:]
        elif kind == "longer":
            made += rng.bytes(count)
        elif kind == "zeros":
            made[at : at + count] = bytes(len(made[at : at + count]))
        elif kind == "swap":
            a, b = sorted((at, other))
            count = min(count, b - a, len(data) - b)
            made[a : a + count], made[b : b + count] = data[b : b + count], data[a : a + count]
        elif kind == "copy":
            count = min(count, len(data) - at, len(data) - other)
            made[at : at + count] = data[other : other + count]
        elif kind == "drop":
            del made[at : at + count]
        elif kind == "insert":
            made[at:at] = rng.bytes(count)
        elif kind == "digit":
            digits = [i for i, byte in enumerate(data) if 48 <= byte <= 57]
            made[int(rng.choice(digits)) if digits else at] = 48 + int(rng.integers(10))
        elif kind == "text":
            pairs = [(b"F32", b"I32"), (b"F16", b"I16"), (b"null", b"nuln"), (b'"w"', b'"v"')]
            pairs += [(b",", b";"), (b"[", b"("), (b" ", b"\t")]
            old, new = pairs[int(rng.integers(7))]
            made = bytearray(data.replace(old, new, 1))
        else:
            made[:8] = int(rng.integers(0, 2 * len(data))).to_bytes(8, "little")
        if bytes(made) != data:
            return f"{kind} at {at} ({other}, {count})", bytes(made)


# ---- by someone who knows the form ----


def _places(value: Any, path: tuple = ()) -> list[tuple]:
    """The paths to everything in a value; "text" in a path leads into a text that holds JSON."""
    found = [path] if path else []
    if isinstance(value, str) and value[:1] in ("{", "["):
        with suppress(ValueError):
            return [*found, *_places(json.loads(value), (*path, _TEXT))[1:]]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return found + [place for key, one in items for place in _places(one, (*path, key))]


_TEXT = object()  # in a path: into the JSON that a text holds


def _changed(value: Any, path: tuple, change: Callable[[Any, Any], None]) -> Any:
    """The value after `change(container, key)` where the path leads."""
    if path[0] is _TEXT:
        return json.dumps(_changed(json.loads(value), path[1:], change), separators=(",", ":"))
    if len(path) == 1:
        change(value, path[0])
    else:
        value[path[0]] = _changed(value[path[0]], path[1:], change)
    return value


def edited(rng: np.random.Generator, text: bytes) -> tuple[str, bytes]:
    """The JSON with one to three of its values made hostile; what cannot be read as JSON is damaged instead."""
    try:
        value = json.loads(text)
    except ValueError:
        return damaged(rng, text)
    said = []
    for _ in range(int(rng.integers(1, 4))):
        places = _places(value)
        if not places:
            break
        place = places[int(rng.integers(len(places)))]
        how = str(rng.choice(["value", "value", "value", "value", "gone", "renamed", "other", "twice", "number"]))
        hostile, other = copy.deepcopy(HOSTILE[int(rng.integers(len(HOSTILE)))]), places[int(rng.integers(len(places)))]

        def change(container: Any, key: Any, how: str = how, hostile: Any = hostile, other: tuple = other) -> None:
            if how == "gone":
                del container[key]
            elif how == "renamed" and isinstance(container, dict):
                container[f"{key}x"] = container.pop(key)
            elif how == "other":
                container[key] = str(other)
            elif how == "twice" and isinstance(container, list):
                container.append(copy.deepcopy(container[key]))
            elif how == "number" and isinstance(container[key], int):
                container[key] = container[key] * 2 + 1
            else:
                container[key] = hostile

        try:
            value = _changed(value, place, change)
        except (KeyError, IndexError, TypeError):
            continue
        said.append(f"{how} at {'/'.join('text' if p is _TEXT else str(p)[:20] for p in place)}")
    if rng.random() < 0.1:
        return "nested", b"[" * int(rng.integers(1, 20)) + json.dumps(value).encode() + b"]" * int(rng.integers(1, 20))
    return ", ".join(said), json.dumps(value).encode()


def inflated(rng: np.random.Generator, text: bytes) -> tuple[str, bytes]:
    """The JSON with one of its lists or objects filled up, with copies of what it has or with small things."""
    value, size = json.loads(text), int(rng.choice(LENGTHS))
    places = [place for place in _places(value) if isinstance(_at(value, place), (list, dict))]
    if not places:
        return edited(rng, text)
    place = places[int(rng.integers(len(places)))]
    inside = list(_at(value, place).values()) if isinstance(_at(value, place), dict) else _at(value, place)
    one = inside[0] if inside and rng.random() < 0.7 else [0, "x", [], {}, None, [0, 0]][int(rng.integers(6))]

    def change(container: Any, key: Any) -> None:
        count = size // (len(json.dumps(one)) + 12) + 1
        if isinstance(container[key], list):
            container[key] += [one] * count
        else:
            container[key] |= {f"k{number}": one for number in range(count)}

    said = "/".join("text" if part is _TEXT else str(part)[:20] for part in place)
    return f"{size:,} bytes of {str(one)[:30]} in {said}", json.dumps(_changed(value, place, change)).encode()


def _at(value: Any, path: tuple) -> Any:
    for part in path:
        value = json.loads(value) if part is _TEXT else value[part]
    return value


def signed(text: bytes) -> bytes:
    """The JSON with its sha256 made anew, wherever the entry stands."""
    found = re.search(rb'"sha256": ?"([0-9a-f]{64})"', text)
    if not found or (b'"__metadata__"' not in text and b'"files"' not in text and b'"strategy' not in text):
        return text
    empty = text.replace(found[1], NO_SUM.encode(), 1)
    return empty.replace(NO_SUM.encode(), hashlib.sha256(empty).hexdigest().encode(), 1)


def _header(rng: np.random.Generator, data: bytes) -> tuple[str, bytes]:
    """A safetensors file with its header edited, signed, and its length told rightly."""
    length = int.from_bytes(data[:8], "little")
    what, text = (inflated if rng.random() < FILLED else edited)(rng, data[8 : 8 + length])
    text = signed(text)
    return f"header: {what}", len(text).to_bytes(8, "little") + text + data[8 + length :]


def _sizes(rng: np.random.Generator, data: bytes) -> tuple[str, bytes]:
    """A size at the beginning, big-endian or little-endian, made another one."""
    at, size = 4 * int(rng.integers(min(5, len(data) // 4))), SIZES[int(rng.integers(len(SIZES)))]
    order = "big" if rng.random() < 0.8 else "little"
    return f"{size} at {at}, {order}", data[:at] + size.to_bytes(4, order) + data[at + 4 :]


def _words(rng: np.random.Generator, data: bytes) -> tuple[str, bytes]:
    """A text with one to three words replaced, added or repeated many times."""
    pieces = re.split(r"(\s+|[,;()])", data.decode("utf-8", "replace"))
    said = []
    for _ in range(int(rng.integers(1, 4))):
        at, word = int(rng.integers(len(pieces))), WORDS[int(rng.integers(len(WORDS)))]
        how = str(rng.choice(["instead", "before", "times", "gone", "swapped"]))
        said.append(f"{how} {word[:20]!r} at {at}")
        if rng.random() < FILLED:
            pieces[at] = f"{pieces[at]} " * (int(rng.choice(LENGTHS)) // (len(pieces[at]) + 1))
        elif how == "instead":
            pieces[at] = word
        elif how == "before":
            pieces.insert(at, f"{word} ")
        elif how == "times":
            pieces[at] = f"{pieces[at]} " * int(rng.choice([2, 50, 3000]))
        elif how == "gone":
            pieces[at] = ""
        else:
            other = int(rng.integers(len(pieces)))
            pieces[at], pieces[other] = pieces[other], pieces[at]
    return ", ".join(said), "".join(pieces).encode("utf-8", "replace")


def misread(rng: np.random.Generator, text: bytes) -> tuple[str, bytes]:
    """JSON that one reader may take for another file than the next one does: no reader of ours takes it."""
    places = [at for at in range(len(text)) if text[at : at + 1] == b"{" and text[at + 1 : at + 2] == b'"']
    at = places[int(rng.integers(len(places)))] + 1
    value, end = json.JSONDecoder().raw_decode(text[at:].decode())
    key = text[at : at + len(text[at:].decode()[:end].encode())]
    other = [b"7", b'"x"', b"[]", b"null", b"{}"][int(rng.integers(5))]
    made = {
        "a key twice": text[:at] + key + b":" + other + b"," + text[at:],
        "NaN": text[:at] + b'"' + key[1:-1] + b'x":NaN,' + text[at:],
        "infinite": text[:at] + b'"' + key[1:-1] + b'x":1e999,' + text[at:],
        "a mark of bytes": b"\xef\xbb\xbf" + text,
        "UTF-16": text.decode().encode("utf-16"),
        "a zero": text + b"\0",
        "more text": text + text,
        "no UTF-8": text[:at] + b'"\xff":1,' + text[at:],
    }
    how = str(rng.choice(list(made)))
    return f"{how} at {at}, {value}", made[how]


def variant(rng: np.random.Generator, data: bytes, form: str) -> tuple[str, bytes, bool]:
    """One variant of a file: (what it is, its bytes, whether it was changed by chance: checksums tell)."""
    if rng.random() < 0.4:
        return *damaged(rng, data), True
    if form == "packed":
        what, inner, _ = variant(rng, gzip.decompress(data), "sizes")
        more = bytes(int(rng.choice([0, 0, 0, 1 << 20, 80 << 20])))
        return f"packed again: {what}, {len(more)} more", gzip.compress(inner + more, 1), False
    knowing = {"json": edited, "header": _header, "sizes": _sizes, "words": _words}[form]
    if form == "json" and rng.random() < FILLED:
        knowing = inflated
    what, made = knowing(rng, data)
    return what, signed(made) if form == "json" and rng.random() < 0.8 else made, False


# ---- the judge ----


def resident_bytes(name: str) -> int:
    """VmRSS: memory that is resident; VmHWM: the most of it since `forget_peak`."""
    return int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) << 10


def forget_peak() -> None:
    """Let VmHWM begin anew (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def judged(reader: Reader, path: Path, data: bytes, good: Any, blind: bool) -> tuple[str, str, float]:
    """(what became of the file: "refused", "same" or "taken"; the rule that the reader broke, "" if none; seconds of a
    processor). `good`: what the good file holds;  blind: the file was changed by chance.
    """
    path.write_bytes(data)
    forget_peak()
    before, begun, broken = resident_bytes("VmRSS"), time.process_time(), ""
    try:
        outcome = "same" if read_plain(reader, path) == good else "taken"
    except ParallelLabError as error:
        outcome, said = "refused", str(error)
        if len(said) > 10_000:
            broken = f"an error of {len(said)} characters: {said[:200]}"
    except BaseException as error:
        outcome, broken = "refused", f"another family: {type(error).__name__}: {str(error)[:300]}"
    took_s, grown = time.process_time() - begun, resident_bytes("VmHWM") - before
    if outcome == "taken" and reader.sums and blind:
        broken = "taken although it carries checksums"
    if took_s > MOST_S:
        broken += f" {took_s:.1f} s for {len(data):,} bytes"
    if grown > 3 * len(data) + SPARE_BYTES:
        broken += f" {grown >> 20} MiB for {len(data):,} bytes"
    return outcome, broken, took_s


def variants(rng: np.random.Generator, data: bytes, form: str, count: int) -> Iterator[tuple[str, bytes, bool]]:
    """`count` variants that differ from the good file."""
    while count:
        what, made, blind = variant(rng, data, form)
        if made != data:
            count -= 1
            yield what, made, blind


def tried(kind: str, folder: Path, count: int, seed: int) -> dict[str, Any]:
    """`count` variants of a kind of file, read in `folder`: how many were refused, the same, taken; the slowest; what
    broke a rule, as texts."""
    reader, rng = READERS[kind], np.random.default_rng([seed, zlib.crc32(kind.encode())])
    path = folder / reader.name
    reader.write(path)
    data = path.read_bytes()
    good = read_plain(reader, path)
    found: dict[str, Any] = {"kind": kind, "refused": 0, "same": 0, "taken": 0, "slowest_s": 0.0, "broken": []}
    for number, (what, made, blind) in enumerate(variants(rng, data, reader.form, count)):
        outcome, broken, took_s = judged(reader, path, made, good, blind)
        found[outcome] += 1
        found["slowest_s"] = max(found["slowest_s"], took_s)
        if broken:
            found["broken"].append(f"{kind}, variant {number} of seed {seed} ({what}): {broken}")
    return found
