"""The flight recorder: what each rank asked for last, in shared memory, to be read after the rank has died.
A record is 40 bytes: index, number in the group, start, end, place of its text (kind, group, dtype, shape, source
line). Texts are written once per different call, so recording costs less than a microsecond.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass

FLIGHT_RECORDS = 64
FLIGHT_BYTES = 64  # one cache line
FLIGHT_HEAD = struct.Struct("<qqddq")  # index, number in the group, start_s, end_s (0: not over), slot of its text
KEPT_CALLS = 1024  # different calls a rank remembers; a training step has a few dozen
# A slot is used again after TEXT_SLOTS new texts. Remembered calls and the last 64 records point at the latest
# KEPT_CALLS + 64 texts at most.
TEXT_SLOTS = KEPT_CALLS + 4 * FLIGHT_RECORDS
TEXT_BYTES = 512
TEXT_LENGTH = struct.Struct("<q")


@dataclass(frozen=True)
class FlightEntry:
    """One request as the flight recorder kept it: `index` in the run (all groups), `number` in its group (started ones
    counted apart); `start_s`, `end_s`: the worker's time.perf_counter(), end_s None while not answered.
    """

    rank: int
    index: int
    number: int
    kind: str
    group: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...]
    detail: str
    origin: str
    start_s: float
    end_s: float | None

    def __str__(self) -> str:
        data = f" {self.dtype} {self.shape}" if self.dtype else ""
        detail = f" {self.detail}" if self.detail else ""
        origin = f" at {self.origin}" if self.origin else ""
        first, last = self.group[0], self.group[-1]
        members = f"{first}..{last}" if len(self.group) > 8 else ", ".join(map(str, self.group))
        return f"{self.kind} #{self.number}{data}{detail} of group ({members}){origin}"


def flight_text(
    kind: str, group: tuple[int, ...], dtype: str, shape: tuple[int, ...], detail: str, origin: str
) -> bytes:
    """The constant part of a flight record, at most TEXT_BYTES minus its length."""
    limit = TEXT_BYTES - TEXT_LENGTH.size
    group = tuple(map(int, group))  # numpy's ints are ranks too
    first, last = group[0], group[-1]
    members = [first, last] if group == tuple(range(first, last + 1)) and len(group) > 2 else None
    for length in (300, 120, 60, 0):
        call = [kind, members or list(group), members is not None]
        packed = [*call, dtype[:60], list(shape)[:16], detail[:60], origin[-length:] if length else ""]
        text = json.dumps(packed, separators=(",", ":")).encode()
        if len(text) <= limit:
            return text
    return json.dumps([kind, [first, last], True, "", [], "", ""]).encode()  # a group of very many scattered ranks


def entry_from_text(
    rank: int, index: int, number: int, text: bytes, start_s: float = 0.0, end_s: float | None = None
) -> FlightEntry:
    """The entry whose constant part is `text`. Raises ValueError or TypeError for a text that is only half written."""
    kind, group, ranged, dtype, shape, detail, origin = json.loads(text)
    members = tuple(range(group[0], group[1] + 1)) if ranged else tuple(group)
    return FlightEntry(rank, index, number, kind, members, dtype, tuple(shape), detail, origin, start_s, end_s)
