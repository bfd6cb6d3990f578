"""Every message, declared once: what its request says, what comes back, what it costs, its gradient, its words.

    >>> gather = MESSAGES["all_gather"]
    >>> gather.reply_shape((2, 3), {"dim": 0}, 4), gather.adjoint, gather.formula.time_text
    ((8, 3), 'reduce_scatter', '(n-1)·α + (n-1)/n·S·β')

The table `MESSAGES` is read by requests and their reference answer (`run/communicator.py`), the check and the text of
a plan and its gradients (`graph/`), seconds and bytes (`cost/time.py`), the algorithms and the Collective Stepper.
Shared memory and MPI move the bytes in ways of their own and must give the bits of `answer`. So a new collective is a
`CollectiveDef` here, and a way to move it in each of the two.

Formulas are in alpha (seconds per message), beta (seconds per byte) and gamma (seconds per byte that is added), for
full-duplex links without contention and one port per rank. Sources: Thakur, Rabenseifner, Gropp 2005 (ring, pairwise,
binomial); Chan et al. 2007 (gather, scatter, lower bounds); Hensgen, Finkel, Manber 1988 (dissemination barrier).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...base.checks import INTS, is_int
from ...base.errors import ArgumentError, ParallelLabError, ShapeError, shorten
from ...base.hooks import in_parts
from ...layout.route import route_of
from ...layout.slices import REDUCERS, copy_of
from .block_exchange import BLOCK_EXCHANGES, BlockExchange, block_exchange, row_splits, rows_fit, rows_route
from .halo import Halo

REDUCTIONS = (*REDUCERS, "mean")  # the mean is the sum, divided by the members once it is complete

Arrays = Sequence[np.ndarray | None]
Attrs = Mapping[str, Any]
Shape = tuple[int, ...]
# of n ranks, and of k segments where an algorithm splits its value into segments
Count = Callable[[int, int], int | Fraction]


class Link(Protocol):
    """What a message needs of a link (`base/cluster.py`): seconds until the first byte arrives, and for each byte."""

    @property
    def alpha_s(self) -> float: ...
    @property
    def beta_s_per_byte(self) -> float: ...


class Term(NamedTuple):
    """A number that follows from n ranks (and k segments), and how it is written."""

    of: Count
    text: str


@dataclass(frozen=True)
class Formula:
    """Closed forms of n ranks and k segments. S is the whole tensor: all_reduce, reduce_scatter, broadcast, reduce,
    scatter: what one rank hands over; all_gather, gather: the result; all_to_all: what all ranks hold together.

    rounds     how many
    messages   sent by the rank that sends most of them
    sent       by the rank that sends most, as a fraction of S
    alphas, betas, gammas   time = alphas * alpha + betas * S * beta + gammas * S * gamma
    """

    rounds: Count
    rounds_text: str
    messages: Count
    messages_text: str
    sent: Count
    sent_text: str
    alphas: Count
    betas: Count
    gammas: Count
    time_text: str


def of_n(function: Callable[[int], int | Fraction], text: str = "") -> Term:
    """A term that depends on the number of ranks alone; of one rank it is 0."""
    return Term(lambda n, k: function(n) if n > 1 else 0, text)


def formula(
    rounds: Term,
    sent: Term,
    time_text: str,
    *,
    messages: Term | None = None,
    alphas: Term | None = None,
    betas: Term | None = None,
    gammas: Term | None = None,
) -> Formula:
    """What a message costs on n ranks, from terms in n, as a `Formula` says.

    rounds, sent   steps one after the other; bytes that a rank sends, as a share of the value's
    messages       that a rank sends, by default one a round
    alphas, betas, gammas   how often alpha is paid, bytes that pay beta, bytes added: `rounds`, `sent` and none
    time_text      the time in words, which is only shown
    """
    messages, alphas, betas = messages or rounds, alphas or rounds, betas or sent
    return Formula(*rounds, *messages, *sent, alphas.of, betas.of, (gammas or ZERO).of, time_text)


def ceil_log2(n: int) -> int:
    """The least number of rounds in which one rank can reach n; exact for any n."""
    return (n - 1).bit_length()


def largest_subtree(n: int) -> int:
    """Ranks in the largest subtree below the root of a binomial tree."""
    return max((min(v & -v, n - v) for v in range(1, n)), default=0)


ZERO, ONE = of_n(lambda n: 0, "0"), of_n(lambda n: 1, "1")
LESS_ONE = of_n(lambda n: n - 1, "n-1")
LOG = of_n(ceil_log2, "⌈log₂n⌉")
WHOLE = of_n(lambda n: 1, "S")
LOG_WHOLES = of_n(ceil_log2, "⌈log₂n⌉·S")
SHARE = of_n(lambda n: Fraction(n - 1, n), "(n-1)/n·S")
TWO_SHARES = of_n(lambda n: Fraction(2 * (n - 1), n), "2(n-1)/n·S")
PAIR_SHARE = of_n(lambda n: Fraction(n - 1, n * n), "(n-1)/n²·S")


@dataclass(frozen=True)
class CollectiveDef:
    """One kind of message.

    kind, class_name   "all_reduce", and MindSpore's operator
    reply         what a rank gets, in a sentence
    attributes    what a request says besides its value, and all members say alike: reduce, root, dim, split_dim,
                  concat_dim, window, route (shape and dtype of a recv)
    cut, join     the attribute that names the dim which is split into one piece per member, or along which the
                  members' pieces are joined; "" where none is
    sender, receiver   who hands over a value, and who gets a reply: "all", "root" or "" (nobody)
    answer        (values in group order, attributes) -> replies in group order, C-contiguous, in memory of their
                  own, but for equal ones (`apart`); those that are not for a receiver are dropped
    formula       rounds, bytes and seconds of its usual algorithm, `algorithm`, with their texts
    together      whether S of the formula is what all members hand over together; False: what one hands over
    payload       what a rank must send in the bandwidth-optimal form, as a fraction of its operand m (Chan et al. 2007)
    adjoint, why  the kind of message that brings its gradient back, and why, of operator {name}; "" without a gradient
    fault_of      of an exchange of blocks (`block_exchange.py`):  (shape, attributes, n) -> what is wrong, or None
    operands      of its instruction: 2 where the second, counts, says at run time which pieces are sent
    """

    kind: str
    class_name: str
    reply: str
    attributes: tuple[str, ...] = ()
    cut: str = ""
    join: str = ""
    sender: str = "all"
    receiver: str = "all"
    answer: Callable[[Arrays, Attrs], list[np.ndarray | None]] | None = None
    algorithm: str = ""
    formula: Formula | None = None
    together: bool = False
    payload: Term = ZERO
    adjoint: str = ""
    why: str = ""
    fault_of: Callable[[Shape, Attrs, int], tuple[str, str] | None] | None = None
    operands: int = 1

    @property
    def rooted(self) -> bool:
        return "root" in self.attributes

    @property
    def reducing(self) -> bool:
        """Whether values are combined by a reduction that the request names."""
        return "reduce" in self.attributes

    @property
    def windowed(self) -> bool:
        return "window" in self.attributes

    @property
    def piecewise(self) -> bool:
        """Whether members give each other pieces of different sizes, as a window or a route says."""
        return self.kind in BLOCK_EXCHANGES

    @property
    def is_collective(self) -> bool:
        """Whether a group makes it together; a send and a recv are one rank's each."""
        return self.kind not in ("send", "recv")

    def gives(self, rank: int, root: int | None) -> bool:
        """Whether `rank` hands over a value."""
        return self.sender == "all" or (self.sender == "root" and rank == root)

    @property
    def adds(self) -> bool:
        """Whether numbers are added up."""
        return self.reducing or self.kind in ("halo_reduce", "exchange_reduce")

    @property
    def symmetric(self) -> bool:
        """Whether all members hand over a value and get a reply."""
        return self.sender == self.receiver == "all" and self.is_collective

    def reply_shape(self, shape: Shape, attrs: Attrs, n: int) -> Shape:
        """Shape of a reply in a group of n whose members hand over `shape` (for scatter: the root)."""
        if self.piecewise:
            return self.block_exchange(attrs, n, shape).reply
        sizes = list(shape)
        if self.cut:
            sizes[attrs[self.cut]] //= n
        if self.join:
            sizes[attrs[self.join]] *= n
        return tuple(sizes)

    def block_exchange(self, attrs: Attrs, n: int, shape: Shape | None = None) -> BlockExchange:
        """Who hands whom which part, of a kind that is sent piece by piece.  shape: a member's value"""
        if "route" in self.attributes:
            return block_exchange(self.kind, attrs["route"], n, shape if self.operands == 2 else None)
        return block_exchange(self.kind, attrs["window"], n, shape, attrs["dim"] if shape else 0)

    @staticmethod
    def counted(route: tuple[Any, ...], counts: np.ndarray) -> tuple[Any, ...]:
        """The route of the rows that there are, where the plan knows how many there may be.  counts: (1, n, e)."""
        return rows_route(*route[:2], row_splits(counts[0], route[2]), route[2])

    def payload_bytes(self, operand_bytes: int, n: int, how: Any = None, position: int | None = None) -> int:
        """Bytes that a rank must send, where it hands over `operand_bytes` in a group of n, whichever algorithm moves
        them; piece by piece, as the window or route `how` says, those of the member at `position`, or (None) of the
        member that sends most.
        """
        if n <= 1:
            return 0
        if self.piecewise:
            parts = self.block_exchange({"window": how, "route": how}, n)
            sent = max(sum(given) for given, _ in parts.traffic) if position is None else sum(parts.sent(position))
            return operand_bytes * sent // max(math.prod(parts.operand), 1)
        share = self.payload.of(n, n)
        return operand_bytes * share.numerator // share.denominator

    def time_s(self, operand_bytes: float, n: int, link: Link, gamma_s_per_byte: float = 0.0, how: Any = None) -> float:
        """Seconds in a group of n, each handing over `operand_bytes` (for scatter: the root).  how: window or route"""
        if self.piecewise:
            return self._pieces_time_s(operand_bytes, n, link, gamma_s_per_byte if self.adds else 0.0, how)
        alphas, (betas, of_beta), (gammas, of_gamma) = _coefficients(self.formula, n)
        size = operand_bytes * (n if self.together else 1)
        sent_s, added_s = size * betas / of_beta * link.beta_s_per_byte, size * gammas / of_gamma * gamma_s_per_byte
        return alphas * link.alpha_s + sent_s + added_s

    def _pieces_time_s(self, operand_bytes: float, n: int, link: Link, gamma_s_per_byte: float, how: Any) -> float:
        """A rank sends its messages one after the other and receives likewise, both at once; the busiest one counts."""
        if how is None:
            allowed = "window=(step, origin, length, part)" if "window" in self.attributes else "route=Route(...).attr"
            raise ArgumentError(f"{self.kind} without its pieces", where="message_time_s", allowed=allowed)
        parts = self.block_exchange({"window": how, "route": how}, n)
        element_bytes, beta = operand_bytes / max(math.prod(parts.operand), 1), link.beta_s_per_byte

        def seconds(sizes: tuple[int, ...], per_byte: float) -> float:
            return len(sizes) * link.alpha_s + sum(sizes) * element_bytes * per_byte

        return max(max(seconds(out, beta), seconds(back, beta + gamma_s_per_byte)) for out, back in parts.traffic)

    def adjoint_attrs(self, attrs: Attrs) -> dict[str, Any]:
        """Attributes of the message that brings the gradient back: joined dims are split, split ones joined."""
        back = MESSAGES[self.adjoint]
        if self.operands == 2:
            given, taken, is_back, splits = attrs["route"]
            return {"route": rows_route(taken, given, zip(*splits, strict=True), not is_back)}
        turned = {back.cut: attrs.get(self.join), back.join: attrs.get(self.cut)}
        return {a: "sum" if a == "reduce" else turned.get(a, attrs.get(a)) for a in back.attributes}


@lru_cache(maxsize=1024)
def _coefficients(formula: Formula, n: int) -> tuple[int, tuple[int, int], tuple[int, int]]:
    """Those of alpha, S beta and S gamma, the latter as (numerator, denominator)."""
    alphas, betas, gammas = (f(n, n) for f in (formula.alphas, formula.betas, formula.gammas))
    return int(alphas), betas.as_integer_ratio(), gammas.as_integer_ratio()


# ---- reference answers ----


def combine(values: Arrays, reduce: str) -> np.ndarray:
    """((v0 + v1) + v2) + ... of equal shapes. The order is the contract: every answerer must produce these bits."""
    ufunc = REDUCERS["sum" if reduce == "mean" else reduce]
    total = np.empty(values[0].shape, values[0].dtype)
    for sum_of_part, first, *others in in_parts(total, *values):
        sum_of_part[...] = first
        for value in others:
            ufunc(sum_of_part, value, out=sum_of_part)
        if reduce == "mean":
            np.divide(sum_of_part, total.dtype.type(len(values)), out=sum_of_part)
    return total


def cut_value(value: np.ndarray, parts: int, dim: int) -> list[np.ndarray]:
    """`value` in `parts` equal pieces along `dim`. Raises ShapeError if that does not come out even."""
    shape = value.shape
    if not -len(shape) <= dim < len(shape) or shape[dim] % parts:
        what = f"a value of shape {shape} cannot be split along dim {dim}"
        raise ShapeError(what, allowed=f"A dim that divides by {parts}")
    return np.split(value, parts, axis=dim)


def _joined(values: Arrays, dim: int) -> np.ndarray:
    return np.ascontiguousarray(np.concatenate(values, axis=dim))


def apart(replies: Iterable[np.ndarray | None], outs: Iterable[np.ndarray | None]) -> list[np.ndarray | None]:
    """The same replies in arrays of their own, unless an `out` waits for them: what several get may be one array."""
    found, kept = [], set()
    for reply, out in zip(replies, outs, strict=True):
        mine = copy_of(reply) if reply is not None and out is None and id(reply) in kept else reply
        kept.update(() if out is not None else (id(mine),))
        found.append(mine)
    return found


def _all_reduce(values: Arrays, attrs: Attrs) -> list[np.ndarray]:
    return [combine(values, attrs["reduce"])] * len(values)


def _all_gather(values: Arrays, attrs: Attrs) -> list[np.ndarray]:
    return [_joined(values, attrs["dim"])] * len(values)


def _reduce_scatter(values: Arrays, attrs: Attrs) -> list[np.ndarray]:
    pieces = zip(*(cut_value(v, len(values), attrs["dim"]) for v in values), strict=True)
    return [combine(mine, attrs["reduce"]) for mine in pieces]


def _all_to_all(values: Arrays, attrs: Attrs) -> list[np.ndarray]:
    pieces = zip(*(cut_value(v, len(values), attrs["split_dim"]) for v in values), strict=True)
    return [_joined(mine, attrs["concat_dim"]) for mine in pieces]


def _of_root(values: Arrays) -> np.ndarray:
    return next(v for v in values if v is not None)


# ---- halos: what their windows say ----


def _halo_def(kind: str, class_name: str, adjoint: str, reply: str, why: str) -> CollectiveDef:
    def fault_of(shape: Shape, attrs: Attrs, n: int) -> tuple[str, str] | None:
        window, dim = attrs["window"], attrs["dim"]
        if not isinstance(window, tuple) or len(window) != 4 or not all(is_int(x, kinds=INTS) for x in window):
            window_is = "Four ints: (step, origin, length, part); member i gets [step * i + origin, + length) of slices"
            return f"window={shorten(window)}", f"{window_is} of `part` elements"
        halo = Halo(*window, members=n)
        extent = halo.extents(kind)[0]
        if shape[dim] != extent:
            what = "slice" if kind == "halo_exchange" else "window"
            return f"dim {dim} has {shape[dim]} elements", f"A {what} of {extent}, as window={window} says"
        fault = halo.fault()
        return (fault, "Windows reach no further than the neighbouring slices") if fault else None

    return _piecewise_def(kind, class_name, adjoint, reply, why, ("dim", "window"), fault_of)


def _exchange_def(kind: str, class_name: str, adjoint: str, reply: str, why: str, operands: int = 1) -> CollectiveDef:
    def fault_of(shape: Shape, attrs: Attrs, n: int) -> tuple[str, str] | None:
        route, allowed = attrs["route"], f"Route(src, dst, shape).attr of two layouts of the group's {n} ranks"
        try:
            if operands == 2:
                allowed = f"rows_route(rows_in, rows_out, splits), {n} x {n} counts whose sums are rows that there are"
                shape, fits = shape[-2:-1], rows_fit(route, n)
            else:
                fits = {layout.device_num for layout in (route_of(route).src, route_of(route).dst)} == {n}
            has = block_exchange(kind, route, n).operand if fits else ()
        except (ParallelLabError, TypeError, ValueError, IndexError):
            fits = False
        if not fits:
            return f"route={shorten(route)}", allowed
        return None if shape == has else (f"a value of shape {shape}", f"A slice of shape {has}, as its route says")

    return replace(_piecewise_def(kind, class_name, adjoint, reply, why, ("route",), fault_of), operands=operands)


def _piecewise_def(
    kind: str, class_name: str, adjoint: str, reply: str, why: str, attributes: tuple[str, ...], fault_of: Any
) -> CollectiveDef:
    def answer(values: Arrays, attrs: Attrs) -> list[np.ndarray]:
        return MESSAGES[kind].block_exchange(attrs, len(values), values[0].shape).answer(values)

    payload = Term(ZERO.of, "the strips for the neighbours" if "window" in attributes else "the pieces for others")
    return CollectiveDef(
        kind, class_name, reply, attributes, answer=answer, payload=payload, adjoint=adjoint, why=why, fault_of=fault_of
    )


# ---- the table ----

_PASSED_ON = formula(Term(lambda n, k: 1, "1"), Term(lambda n, k: 1, "S"), "α + S·β")

_DEFS = (
    CollectiveDef(
        "all_reduce",
        "AllReduce",
        "every rank: the combination in group order",
        ("reduce",),
        answer=_all_reduce,
        algorithm="ring",
        formula=formula(
            of_n(lambda n: 2 * (n - 1), "2(n-1)"), TWO_SHARES, "2(n-1)·α + 2(n-1)/n·S·β + (n-1)/n·S·γ", gammas=SHARE
        ),
        payload=of_n(lambda n: Fraction(2 * (n - 1), n), "2(n-1)/n·m"),
        adjoint="all_reduce",
        why="backward of the all_reduce of {name!r}: the gradient of its replicated result lies in partial sums on its "
        "{n} holders",
    ),
    CollectiveDef(
        "all_gather",
        "AllGather",
        "every rank: the values joined along `dim` in group order",
        ("dim",),
        join="dim",
        answer=_all_gather,
        algorithm="ring",
        formula=formula(LESS_ONE, SHARE, "(n-1)·α + (n-1)/n·S·β"),
        together=True,
        payload=of_n(lambda n: n - 1, "(n-1)·m"),
        adjoint="reduce_scatter",
        why="backward of the all_gather for {name!r}: each rank needs the sum of all gradients of the part it had "
        "given",
    ),
    CollectiveDef(
        "reduce_scatter",
        "ReduceScatter",
        "rank i: piece i of the combination along `dim`",
        ("reduce", "dim"),
        cut="dim",
        answer=_reduce_scatter,
        algorithm="ring",
        formula=formula(LESS_ONE, SHARE, "(n-1)·α + (n-1)/n·S·β + (n-1)/n·S·γ", gammas=SHARE),
        payload=of_n(lambda n: Fraction(n - 1, n), "(n-1)/n·m"),
        adjoint="all_gather",
        why="backward of the reduce_scatter for {name!r}: every partial sum of a part has that part's gradient",
    ),
    CollectiveDef(
        "all_to_all",
        "AlltoAll",
        "rank i: piece i (along split_dim) of every member's value, joined along concat_dim in group order",
        ("split_dim", "concat_dim"),
        cut="split_dim",
        join="concat_dim",
        answer=_all_to_all,
        algorithm="pairwise",
        formula=formula(LESS_ONE, PAIR_SHARE, "(n-1)·α + (n-1)/n²·S·β"),
        together=True,
        payload=of_n(lambda n: Fraction(n - 1, n), "(n-1)/n·m"),
        adjoint="all_to_all",
        why="backward of the all_to_all for {name!r}: gradients go back the way the values came",
    ),
    CollectiveDef(
        "broadcast",
        "Broadcast",
        "every rank: the root's value",
        ("root",),
        sender="root",
        answer=lambda values, attrs: [copy_of(_of_root(values))] * len(values),
        algorithm="tree",
        formula=formula(LOG, LOG_WHOLES, "⌈log₂n⌉·(α + S·β)"),
        payload=of_n(lambda n: 1, "m"),
        adjoint="reduce",
        why="backward of the broadcast for {name!r}: the root needs the sum of all gradients",
    ),
    CollectiveDef(
        "reduce",
        "Reduce",
        "the root: the combination in group order",
        ("reduce", "root"),
        receiver="root",
        answer=_all_reduce,
        algorithm="tree",
        formula=formula(LOG, WHOLE, "⌈log₂n⌉·(α + S·β + S·γ)", messages=ONE, betas=LOG_WHOLES, gammas=LOG_WHOLES),
        payload=of_n(lambda n: 1, "m"),
        adjoint="broadcast",
        why="backward of the reduce for {name!r}: every partial sum has the gradient of the sum",
    ),
    CollectiveDef(
        "gather",
        "CollectiveGather",
        "the root: the values joined along `dim` in group order",
        ("root", "dim"),
        join="dim",
        receiver="root",
        answer=_all_gather,
        algorithm="tree",
        formula=formula(
            LOG,
            of_n(lambda n: Fraction(largest_subtree(n), n), "m/n·S, m = the largest subtree"),
            "⌈log₂n⌉·α + (n-1)/n·S·β",
            messages=ONE,
            betas=SHARE,
        ),
        together=True,
        payload=of_n(lambda n: 1, "m"),
        adjoint="scatter",
        why="backward of the gather for {name!r}: each rank gets the gradient of the piece it had given",
    ),
    CollectiveDef(
        "scatter",
        "CollectiveScatter",
        "rank i: piece i of the root's value along `dim`",
        ("root", "dim"),
        cut="dim",
        sender="root",
        answer=lambda values, attrs: [copy_of(p) for p in cut_value(_of_root(values), len(values), attrs["dim"])],
        algorithm="tree",
        formula=formula(LOG, SHARE, "⌈log₂n⌉·α + (n-1)/n·S·β"),
        payload=of_n(lambda n: 1, "m"),
        adjoint="gather",
        why="backward of the scatter for {name!r}: the root gets the gradients of all pieces",
    ),
    CollectiveDef(
        "barrier",
        "Barrier",
        "nothing: all members have called it",
        sender="",
        receiver="",
        answer=lambda values, attrs: [None] * len(values),
        algorithm="dissemination",
        formula=formula(LOG, ZERO, "⌈log₂n⌉·α"),
    ),
    _halo_def(
        "halo_exchange",
        "NeighborExchangeV2",
        "halo_reduce",
        "rank i: window i of the values joined along `dim`, zeros outside",
        "backward of the halo_exchange for {name!r}: an element that several ranks used gets the sum of their "
        "gradients",
    ),
    _halo_def(
        "halo_reduce",
        "NeighborExchangeV2Grad",
        "halo_exchange",
        "rank i: slice i of the sum of all windows, each put where it lies and added to zeros in group order",
        "backward of the halo_reduce of {name!r}: every partial sum of an element has that element's gradient",
    ),
    _exchange_def(
        "exchange",
        "AlltoAllV",
        "exchange_reduce",
        "rank i: its slice of the new layout, each piece that it lacks from one rank that has it",
        "backward of the exchange for {name!r}: a piece's gradient goes back to the rank it came from, and is added "
        "there",
    ),
    _exchange_def(
        "exchange_reduce",
        "AlltoAllVGrad",
        "exchange",
        "rank i: its slice of the old layout, all pieces that were taken of it added to zeros in group order",
        "backward of the exchange_reduce of {name!r}: every piece of a sum has the sum's gradient",
    ),
    _exchange_def(
        "all_to_all_v",
        "AlltoAllV",
        "all_to_all_v",
        "rank i: the rows that every member gives it, in group order, zeros behind them",
        "backward of the all_to_all_v for {name!r}: gradients of rows go back to where the rows came from",
        2,
    ),
    CollectiveDef(
        "send",
        "Send",
        "nothing: the value is copied and lies ready for its receiver",
        ("sr_tag",),
        receiver="",
        formula=_PASSED_ON,
        payload=of_n(lambda n: 1, "m"),
        adjoint="recv",
        why="backward of the send for {name!r}: its receiver has the gradient",
    ),
    CollectiveDef(
        "recv",
        "Receive",
        "the next value that the source sends",
        ("shape", "dtype", "sr_tag"),
        sender="",
        formula=_PASSED_ON,
        adjoint="send",
        why="backward of the recv of {name!r}: its sender needs the gradient",
    ),
)
MESSAGES: dict[str, CollectiveDef] = {d.kind: d for d in _DEFS}
COLLECTIVES = tuple(d.kind for d in _DEFS if d.is_collective)


def without_gradient(name: str, reduce: str) -> ArgumentError:
    """The error to raise where a message that combines values in this way is differentiated."""
    what, hint = f"{name} with op {reduce!r} has no gradient", "ops.stop_gradient(x) before it"
    return ArgumentError(what, where=name, allowed="op 'sum'", hint=hint)
