"""Bytes that a rank sends where experts lie on several ranks: rows to experts and back, by choice, by rank, or padded.

    >>> different_places(experts=256, chosen=8, places=8)
    5.29465200038248
    >>> dispatch_bytes(4096, 7168, 256, 8, 64)
    469762048.0

T tokens of a rank, each with k of E experts, EP ranks of E / EP experts. One way:

    a row for each choice         T k row                  with those for itself, 1 / EP of them if experts are alike
    one for each different rank   T D row                  D = EP (1 - C(E - E / EP, k) / C(E, k)); copied on there
    padded to a capacity C        E C h e (EP - 1) / EP    one all_to_all of a tensor, the same on every rank

D is the expected number of ranks among k experts drawn alike without replacement (nodes instead of ranks: the copies
that cross the slower link, DeepEP). A row is h numbers of bfloat16, or bytes with a float32 scale for each 128.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from ...base.checks import checked, choice, integer, number
from ...base.errors import ArgumentError
from ...ops.expert_capacity import capacity

_COUNT = integer(1, 10**9)
_RATE = number(0, above=True)
ROWS = {"bf16": "two bytes a number", "fp8": "a byte a number, and a float32 scale for each 128 of them"}
COPIES = {"choice": "a row for each chosen expert", "rank": "a row for each different rank of them"}
SCALED_TOGETHER, SCALE_BYTES = 128, 4  # numbers of a row that share a scale (DeepSeek-V3, section 3.3)


@checked(hidden=_COUNT, row=choice(*ROWS))
def row_bytes(hidden: int, row: str = "bf16") -> int:
    """Bytes of a token on its way to an expert.  row: one of ROWS.

    >>> row_bytes(7168), row_bytes(7168, "fp8")
    (14336, 7392)
    """
    return 2 * hidden if row == "bf16" else hidden + SCALE_BYTES * math.ceil(hidden / SCALED_TOGETHER)


@checked(experts=_COUNT, chosen=_COUNT, places=_COUNT)
def different_places(experts: int, chosen: int, places: int) -> float:
    """Expected number of different ranks (or nodes) that hold a token's experts, drawn alike without replacement.

    Raises ArgumentError for more chosen than there are, and for experts that the places do not divide.
    """
    _divided("different_places", experts, chosen, places)
    missed = Fraction(math.comb(experts - experts // places, chosen), math.comb(experts, chosen))
    return float(places * (1 - missed))


@checked(tokens=_COUNT, hidden=_COUNT, experts=_COUNT, chosen=_COUNT, ranks=_COUNT)
@checked(row=choice(*ROWS), copies=choice(*COPIES))
def dispatch_bytes(
    tokens: int, hidden: int, experts: int, chosen: int, ranks: int, *, row: str = "bf16", copies: str = "choice"
) -> float:
    """Expected bytes of all rows of one dispatch of a rank's tokens, those for itself included; experts are alike.

    row, copies  one of ROWS, of COPIES
    """
    _divided("dispatch_bytes", experts, chosen, ranks)
    each = chosen if copies == "choice" else different_places(experts, chosen, ranks)
    return float(tokens * each * row_bytes(hidden, row))


@dataclass(frozen=True)
class PaddedExchange:
    """A tensor of experts x capacity x h that goes from ranks with tokens to ranks with experts.

    capacity        rows of each expert, for the tokens of one rank
    sent_bytes      of a rank, one way
    cut_bytes       the same where the capacity is first cut over tensor parallel ranks, and gathered among them after
    padding_share   of the rows that are empty if nothing is dropped
    """

    capacity: int
    sent_bytes: int
    cut_bytes: int
    padding_share: float


@checked(tokens=_COUNT, hidden=_COUNT, experts=_COUNT, chosen=_COUNT, ranks=_COUNT, factor=_RATE)
@checked(tensor=_COUNT, number_bytes=_COUNT)
def padded_exchange(
    tokens: int,
    hidden: int,
    experts: int,
    chosen: int,
    ranks: int,
    factor: float,
    *,
    tensor: int = 1,
    number_bytes: int = 2,
) -> PaddedExchange:
    """The exchange of mindspore.nn.transformer's MoE: capacity k T factor / E, rounded up, to a multiple of `tensor`.

    factor  the capacity factor;  tensor: ranks that may cut the capacity (MindFormers' group_wise_a2a)
    """
    _divided("padded_exchange", experts, chosen, ranks)
    room = -(-(capacity(tokens, experts, chosen, factor, "mindspore") or 0) // tensor) * tensor
    sent = experts // ranks * (ranks - 1) * room * hidden * number_bytes
    return PaddedExchange(room, sent, sent // tensor, 1 - tokens * chosen / (experts * room))


@checked(flops_per_s=_RATE, bytes_per_s=_RATE, dispatched_bytes=_RATE, combined_bytes=_RATE)
@checked(leaving=_RATE, chosen=_COUNT)
def least_hidden_width(
    flops_per_s: float,
    bytes_per_s: float,
    chosen: int,
    leaving: float,
    *,
    dispatched_bytes: float = 2,
    combined_bytes: float = 2,
) -> float:
    """Width f of an expert from which on computing a token's rows takes as long as sending them there and back.

    leaving           copies of a token that leave its rank, or its node
    dispatched_bytes  of a number on its way there;  combined_bytes: on its way back

    6 k h f operations against leaving (e_d + e_c) h bytes. DeepSeek-V3 (3.2 copies to other nodes, 50 GB/s a device)
    would need f of 3,956 on an H100 and has 2,048: it hides the exchange behind attention of another micro-batch.

    >>> round(least_hidden_width(989e12, 50e9, 8, 3.2, dispatched_bytes=1))
    3956
    """
    return leaving / chosen * (dispatched_bytes + combined_bytes) * flops_per_s / (6 * bytes_per_s)


def _divided(where: str, experts: int, chosen: int, ranks: int) -> None:
    if chosen > experts:
        raise ArgumentError(f"chosen={chosen} of {experts} experts", where=where, allowed="At most all of them")
    if experts % ranks:
        raise ArgumentError(f"{experts} experts on {ranks} ranks", where=where, allowed="As many on each")
