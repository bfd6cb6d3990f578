"""Types of what goes round a ring: slices that were handed on, and sums that every rank adds its part to.

    turned("S1", 1, 4)                                     "T1.1"      rank r holds the slice of the rank before it
    through_ring("attention_block", ("S1", "T1.3", "T1.3", "A1.0.0-1-2.3", ...), turns=4, last=3)       ("S1", "S1")

Two kinds of sums, both with the turns that are in them:

    A{dim}.{turn}.{seen}.{last}    stays: of queries, whose keys and values come by
    B{dim}.{turn}.{seen}.{last}    travels: of keys and values, which meet all queries; begun `turn` ranks before

Each is the whole sum, a slice S{dim}, once all turns from 0 to `last` are in it and it is where it began. Rules: a
rotation keeps copies and addends what they are; a sum takes every turn once; nothing reads a sum that is on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .type_rules import Refused

TOKENS = "S1"  # how a sequence lies along the ring: dim 1 of queries, keys and values
ROUND = "Every rank's part is added once, and the sum is handed on until it is where it began"
BLOCKS = {"attention_block": (1, 3), "attention_block_grad": (4, 6)}  # queries' operands before keys; first sum's place


class Sum(NamedTuple):
    """A sum on its way.  kind: "A" or "B"; see above"""

    kind: str
    dim: int
    turn: int
    seen: frozenset[int]
    last: int

    @classmethod
    def of(cls, code: str) -> Sum:
        turn, seen, last = code[1:].split(".")[1:]
        return cls(code[0], int(code[1:].split(".")[0]), int(turn), frozenset(map(int, seen.split("-"))), int(last))

    def code(self, ranks: int) -> str:
        """As text; that of a slice if nothing is missing."""
        sign = 1 if self.kind == "A" else -1
        if self.turn == 0 and self.seen == {sign * n % ranks for n in range(self.last + 1)}:
            return f"S{self.dim}"
        return f"{self.kind}{self.dim}.{self.turn}.{'-'.join(map(str, sorted(self.seen)))}.{self.last}"


def ring_shift(attrs: dict[str, Any]) -> int | None:
    """By how many places the message hands whole values on; None: it does something else."""
    route = attrs.get("route", ())
    ring = len(route) == 7 and route[:2] == route[2:4] and type(route[5]) is int and route[6] is None
    return route[5] if ring and route[5] >= 0 else None


def turned(code: str, shift: int, ranks: int) -> str:
    """The type after every rank has handed its value `shift` places on, along an axis of so many."""
    if code[0] in "RCP?V":  # which rank holds which of the addends makes no difference
        return code
    if code[0] == "B":
        held = Sum.of(code)
        seen = frozenset((n + shift) % ranks for n in held.seen)
        return held._replace(turn=(held.turn + shift) % ranks, seen=seen).code(ranks)
    if code[0] == "A":
        raise Refused("hands on a sum that is not whole", mend=ROUND)
    dim, before = code[1:].split(".") if code[0] == "T" else (code[1:], "0")
    after = (int(before) + shift) % ranks
    return f"T{dim}.{after}" if after else f"S{dim}"


def through_ring(op: str, ins: Sequence[str], turns: int, last: int) -> tuple[str, ...] | None:
    """The types of what an operator of a ring makes, along an axis of `turns` ranks; None: of another.

    last  the last turn in which any rank sees a key

    Raises Refused.
    """
    if op == "added_to" and "B" in {code[0] for code in ins}:
        return (_added(ins, turns),)
    if op not in BLOCKS:
        return None
    at, sums = BLOCKS[op][0], ins[BLOCKS[op][1] :]
    keys = set(ins[at : at + 2])
    if set(ins[:at]) != {TOKENS} or len(keys) > 1:
        return None
    (key,) = keys
    if key != TOKENS and not key.startswith(f"T{TOKENS[1:]}."):
        return None
    turn = int(key.partition(".")[2] or 0)
    of_queries = Sum("A", 1, 0, frozenset({turn}), last)
    held = next((Sum.of(code) for code in sums if code[0] == "A"), None)
    if held is not None:
        if turn in held.seen:
            raise Refused("counts the keys of one slice twice", doubled=True, mend=ROUND)
        of_queries = held._replace(seen=held.seen | {turn})
    made = of_queries.code(turns)
    if op == "attention_block":
        return made, made
    of_keys = Sum("B", 1, turn, frozenset({0}), last).code(turns)
    return made, of_keys, of_keys


def _added(ins: Sequence[str], ranks: int) -> str:
    if {code[0] for code in ins} != {"B"}:
        raise Refused("adds a sum on its way round the ring to something else", mend=ROUND)
    one, other = map(Sum.of, ins)
    if one.turn != other.turn:
        raise Refused("adds sums for the slices of different ranks", mend=ROUND)
    if one.seen & other.seen:
        raise Refused("adds the part of one rank twice", doubled=True, mend=ROUND)
    return one._replace(seen=one.seen | other.seen).code(ranks)
