"""Where the tokens of a sequence lie under context parallelism, and how many pairs of query and key each rank computes.

A layout cuts a sequence in order. Under a causal mask that is unfair: the first rank sees its own tokens, the last one
all of them. A placement permutes the sequence first, once, at the input (tokens, labels, masks and positions alike);
afterwards every layer cuts it in order again, and only attention and rotary positions know what happened.

    8 tokens on 2 ranks        rank 0        rank 1
    contiguous                 0 1 2 3       4 5 6 7
    zigzag                     0 1 6 7       2 3 4 5        2P chunks, rank r holds r and 2P - 1 - r
    striped                    0 2 4 6       1 3 5 7        every P-th token
    per_document               zigzag inside each document of a packed sequence
    head_tail                  0 1 6 7       4 5 2 3        keys gathered in order, second halves of queries exchanged

In a ring, rank r meets in step i the keys of rank (r - i) mod P, and a step lasts as long as its longest rank. With c
tokens a rank, N = P c, the useful share of a causal ring's time (counted, and equal to these for all P and c):

    contiguous   (P c + 1) / ((2 P - 1) c + 1)     hidden blocks computed: (P c + 1) / (2 P c)
    zigzag       1
    striped      (P c + 1) / (P (c + 1))

    >>> work = attention_work(Placement("contiguous", 32, 4))
    >>> work.per_rank, work.longest_per_step, work.useful_share
    ((36, 100, 164, 228), (36, 64, 64, 64), Fraction(11, 19))

Counts are exact and need no mask of N x N: each query sees an interval of positions (`VisibleKeys`), and how many of
its keys lie on a rank is the difference of two running counts. Liu et al. 2023 (ring), Brandon et al. 2023 (striped),
Megatron-Core `get_batch_on_this_cp_rank` (zigzag), MindSpore's flash attention load balance (head_tail).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial

import numpy as np

from ..base.checks import INT_LIMIT, Errors, choice, flag, integer, sequence_of
from ..base.errors import LayoutError, LayoutTypeError

TOKEN_ORDERS = ("contiguous", "zigzag", "striped", "per_document")  # in which a sequence may be given to ranks
PLACEMENTS = (*TOKEN_ORDERS, "head_tail")  # which exchanges queries instead
_ERRORS = Errors(LayoutTypeError, LayoutError)
_COUNT = integer(1, INT_LIMIT)
_LENGTHS = sequence_of(_COUNT, "A list or tuple of lengths, each at least 1", empty=True)


@dataclass(frozen=True)
class Placement:
    """Which positions of a sequence each rank holds, and in which order.

    kind       one of PLACEMENTS
    tokens     length of the sequence; ranks: that hold it, each as many tokens
    documents  lengths of the documents of a packed sequence, in order; only per_document asks for them

    Raises LayoutError where the lengths do not divide: by P (contiguous, striped), by 2 P (zigzag, head_tail), or a
    document by 2 P (per_document: pad it, see `padded_documents`).
    """

    kind: str
    tokens: int
    ranks: int
    documents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        keep = partial(object.__setattr__, self)
        where = f"Placement {choice(*PLACEMENTS)('Placement', 'kind', self.kind, _ERRORS)!r}"
        for name, check in {"tokens": _COUNT, "ranks": _COUNT, "documents": _LENGTHS}.items():
            keep(name, check(where, name, getattr(self, name), _ERRORS))
        if bool(self.documents) != (self.kind == "per_document"):
            allowed = "The lengths of the documents for 'per_document', nothing for the others"
            hint = "What a token may see is said by VisibleKeys(documents=...)" if self.documents else ""
            raise LayoutError(f"documents={self.documents}", where=where, allowed=allowed, hint=hint)
        whole = self.kind in ("contiguous", "striped")
        parts, text = (self.ranks, "P") if whole else (2 * self.ranks, "2 P, two chunks a rank")
        if uneven := [n for n in self.documents or (self.tokens,) if n % parts]:
            what = f"{'a document' if self.documents else 'a sequence'} of {uneven[0]} tokens on {self.ranks} ranks"
            hint = f"Pad it to {-(-uneven[0] // parts) * parts}"
            raise LayoutError(what, where=where, allowed=f"A multiple of {parts} = {text}", hint=hint)
        if self.documents and sum(self.documents) != self.tokens:
            what = f"documents of {sum(self.documents)} tokens in a sequence of {self.tokens}"
            raise LayoutError(what, where=where, allowed="Lengths that add up to the sequence")

    @classmethod
    def of_rank_tokens(cls, kind: str, rank_tokens: int, ranks: int) -> Placement:
        """The placement of a sequence by the tokens that each rank holds."""
        c, p = (
            _COUNT("Placement", name, n, _ERRORS) for name, n in {"rank_tokens": rank_tokens, "ranks": ranks}.items()
        )
        return cls(kind, c * p, p)

    @classmethod
    def packed(cls, kind: str, documents: Sequence[int], ranks: int) -> Placement:
        """The placement of documents packed into one sequence; only per_document looks at where one ends."""
        lengths = _LENGTHS("Placement", "documents", documents, _ERRORS)
        return cls(kind, sum(lengths), ranks, lengths if kind == "per_document" else ())

    @property
    def rank_tokens(self) -> int:
        """Tokens of each rank: c = tokens / ranks."""
        return self.tokens // self.ranks

    def chunks(self, rank: int) -> tuple[range, ...]:
        """The positions of a rank as ranges, in the order in which it holds them."""
        r = integer(0, self.ranks - 1)("Placement.chunks", "rank", rank, _ERRORS)
        c, half, last = self.rank_tokens, self.rank_tokens // 2, 2 * self.ranks - 1
        if self.kind == "contiguous":
            return (range(r * c, (r + 1) * c),)
        if self.kind == "striped":
            return (range(r, self.tokens, self.ranks),)
        if self.kind == "head_tail":
            return tuple(range(i * half, (i + 1) * half) for i in (2 * r, last - 2 * r))
        found, start = [], 0
        for length in self.documents or (self.tokens,):
            half = length // (2 * self.ranks)
            found += [range(start + i * half, start + (i + 1) * half) for i in (r, last - r)]
            start += length
        return tuple(found)

    def positions(self, rank: int) -> np.ndarray:
        """(c,) int64: the positions of a rank, in the order in which it holds them; what rotary embeddings need."""
        return np.concatenate([np.arange(part.start, part.stop, part.step) for part in self.chunks(rank)])

    @cached_property
    def order(self) -> np.ndarray:
        """(tokens,) int64: x[order] is the sequence as the ranks hold it, rank 0's tokens first."""
        return _fixed(np.concatenate([self.positions(rank) for rank in range(self.ranks)]))

    @cached_property
    def inverse(self) -> np.ndarray:
        """(tokens,) int64: placed[inverse] is in the order of the sequence again; the place of each position."""
        places = np.empty_like(self.order)
        places[self.order] = np.arange(self.tokens)
        return _fixed(places)

    def owners(self) -> np.ndarray:
        """(tokens,) int64: the rank that holds each position."""
        return self.inverse // self.rank_tokens


def _fixed(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def padded_documents(documents: Sequence[int], ranks: int) -> tuple[int, ...]:
    """Lengths of documents, each rounded up to a multiple of 2 P, as placement per document needs them (Megatron).

    >>> padded_documents((5, 16, 17), 4)
    (8, 16, 24)
    """
    lengths = _LENGTHS("padded_documents", "documents", documents, _ERRORS)
    parts = 2 * _COUNT("padded_documents", "ranks", ranks, _ERRORS)
    return tuple(-(-length // parts) * parts for length in lengths)


@dataclass(frozen=True)
class VisibleKeys:
    """Which keys a query may see: always an interval of positions.

    causal     none after the query
    window     only the nearest: the query's own position and window - 1 before it (and after it, if not causal)
    documents  lengths of the documents of a packed sequence: none of another document; (): one document
    """

    causal: bool = True
    window: int | None = None
    documents: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, check in {"causal": flag, "window": _COUNT | None, "documents": _LENGTHS}.items():
            object.__setattr__(self, name, check("VisibleKeys", name, getattr(self, name), _ERRORS))

    def bounds(self, tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """(tokens,) int64 twice: query q sees the keys from first[q] up to, and without, stop[q]."""
        documents = self.documents or (tokens,)
        if sum(documents) != tokens:
            what = f"documents of {sum(documents)} tokens in a sequence of {tokens}"
            raise LayoutError(what, where="VisibleKeys", allowed="Lengths that add up to the sequence")
        ends, query = np.cumsum(documents), np.arange(tokens)
        first, stop = np.repeat(ends - documents, documents), np.repeat(ends, documents)
        if self.causal:
            stop = query + 1
        if self.window is not None:
            first, stop = np.maximum(first, query + 1 - self.window), np.minimum(stop, query + self.window)
        return first, stop


@dataclass(frozen=True)
class AttentionWork:
    """Pairs of query and key that ranks compute.

    pairs        [rank][owner of the keys], visible ones
    rank_tokens  c, queries and keys of a rank
    gathered     all keys are there before the work begins: one step; otherwise a ring of P steps
    """

    pairs: tuple[tuple[int, ...], ...]
    rank_tokens: int
    gathered: bool = False

    @property
    def ranks(self) -> int:
        """P."""
        return len(self.pairs)

    @property
    def useful(self) -> int:
        """Visible pairs of the whole sequence."""
        return sum(self.per_rank)

    @cached_property
    def per_rank(self) -> tuple[int, ...]:
        """Visible pairs of each rank."""
        return tuple(map(sum, self.pairs))

    @cached_property
    def per_step(self) -> tuple[tuple[int, ...], ...]:
        """[step][rank]: in step i of a ring, rank r works on the keys of rank (r - i) mod P."""
        if self.gathered:
            return (self.per_rank,)
        ranks = range(self.ranks)
        return tuple(tuple(self.pairs[r][(r - step) % self.ranks] for r in ranks) for step in ranks)

    @property
    def longest_per_step(self) -> tuple[int, ...]:
        """Pairs of the longest rank of each step: the others wait for its keys."""
        return tuple(map(max, self.per_step))

    @property
    def time(self) -> int:
        """Pairs that a ring in lockstep waits for: the longest ranks of all steps, added."""
        return sum(self.longest_per_step)

    @property
    def useful_share(self) -> Fraction:
        """Visible pairs over what P ranks could have computed in that time."""
        return Fraction(self.useful, self.ranks * self.time)

    @property
    def computed_share(self) -> Fraction:
        """The same where hidden pairs are computed, too, and thrown away: P c^2 pairs on every rank."""
        return Fraction(self.useful, (self.ranks * self.rank_tokens) ** 2)

    @property
    def steps_with_work(self) -> int:
        """Steps in which at least one rank sees a key: where a window is short, a ring may end early."""
        return sum(longest > 0 for longest in self.longest_per_step)

    @property
    def longest_over_mean(self) -> Fraction:
        """Pairs of the rank that has most over the mean of all ranks."""
        return Fraction(max(self.per_rank) * self.ranks, self.useful)

    def block(self, rank: int, step: int) -> str:
        """What a rank meets in a step of a ring: "hidden" (nothing to compute), "full" (no mask needed), "masked"."""
        pairs = self.pairs[rank][(rank - step) % self.ranks]
        return {0: "hidden", self.rank_tokens**2: "full"}.get(pairs, "masked")


def attention_work(
    placement: Placement, visible: VisibleKeys | None = None, *, gathered: bool | None = None
) -> AttentionWork:
    """Count the visible pairs of every rank with the keys of every rank.

    visible   which keys a query sees; None: a causal mask over the whole sequence
    gathered  whether all keys are there before the work begins; None: as the placement says (head_tail: yes)

    Exact; N P steps and memory for N numbers: 131,072 tokens on 64 ranks take a fraction of a second.

    >>> attention_work(Placement("head_tail", 32, 4)).per_rank
    (132, 132, 132, 132)
    """
    first, stop = (visible or VisibleKeys()).bounds(placement.tokens)
    first, stop = first[placement.order], stop[placement.order]
    columns = []
    for owner in range(placement.ranks):
        before = np.zeros(placement.tokens + 1, np.int64)  # keys of this rank before each position
        before[placement.positions(owner) + 1] = 1
        before = np.cumsum(before)
        seen = before[stop] - before[first]
        columns.append(seen.reshape(placement.ranks, -1).sum(1).tolist())
    in_one_step = placement.kind == "head_tail" if gathered is None else gathered
    return AttentionWork(tuple(zip(*columns, strict=True)), placement.rank_tokens, in_one_step)
