"""Collective algorithms by name, to be counted, timed, stepped through and run on any ranks.

    ring = algorithm("all_reduce", "ring", ranks=4)
    print(ring.to_text())                                     # rounds, each a list of sends
    ring.counts()[2].messages, ring.time_s(1 << 20, link)     # what rank 2 sends; seconds under alpha-beta
    ring.run([x0, x1, x2, x3])                                # on arrays, in this process

    total = run_algorithm(comm, "all_reduce", "ring", x)      # on real ranks

Each algorithm has its own order of addition, fixed by its list of sends (`walk.py`), and gives the same bits wherever
it runs; `direct` adds in rank order and gives those of `comm.all_reduce`. A list of sends of your own is one too:
`custom_algorithm("all_reduce", rounds, ranks=4)`.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ....base.checks import choice, number
from ....base.cluster import Link
from ....base.errors import ArgumentError, CollectiveMismatch, ShapeError, WorldError
from ....base.hooks import current_world
from ....base.origin import caller
from ....ops.collectives.definitions import MESSAGES, Formula, combine
from ....run.communicator import Request, check_request
from ....run.simulator import simulate
from ....train.program import drive
from .rounds import ROOTED, STORIES, Phase, Send
from .table import formula_texts, recipe_of, rounds_of
from .walk import Arrival, Verdict, Walk, as_rounds, check_algorithm, usual_chunks, walk

CONTENTION = ("none", "hops")


@dataclass(frozen=True)
class Counts:
    """What one rank does; amounts are fractions of S, the whole tensor, as `rounds.py` says."""

    rank: int
    messages: int
    received_messages: int
    sent: Fraction
    received: Fraction
    added: Fraction

    def sent_bytes(self, size_bytes: int) -> Fraction:
        """Bytes sent when S has `size_bytes` and is split evenly."""
        return self.sent * size_bytes


@dataclass(frozen=True)
class Algorithm:
    """A collective as a list of sends.

    kind, name   such as "all_reduce", "ring"
    ranks        group size
    phases       rounds that belong together, with a name
    chunks       pieces of the data that are sent by number
    root         position of the root in the group
    formula      closed forms, of an algorithm with a known name
    words        the idea in one sentence
    """

    kind: str
    name: str
    ranks: int
    phases: tuple[Phase, ...]
    chunks: int
    root: int = 0
    formula: Formula | None = None
    words: str = ""

    @cached_property
    def told(self) -> str:
        """What tells it from every other algorithm: its name, and of a list of one's own a number for that list."""
        if self.formula is not None and self == algorithm(self.kind, self.name, self.ranks, root=self.root):
            return self.name
        return (
            f"{self.name} ({len(self.rounds)} rounds, list {zlib.crc32(repr((self.chunks, self.rounds)).encode()):x})"
        )

    # the list

    @cached_property
    def rounds(self) -> tuple[tuple[Send, ...], ...]:
        """All rounds, whatever their phase. Sends of one round happen at the same time."""
        return tuple(sends for part in self.phases for sends in part.rounds)

    @cached_property
    def walked(self) -> Walk:
        """What lies where after each round: `walked.states[t][rank][chunk]`."""
        return walk(self.kind, self.rounds, self.ranks, self.chunks, self.root)

    def check(self) -> Verdict:
        """Whether the sends do what the collective promises."""
        return check_algorithm(self.kind, self.rounds, self.ranks, chunks=self.chunks, root=self.root)

    def arrivals(self, number: int) -> tuple[Arrival, ...]:
        """Chunks that come in round `number`, counted from 1."""
        return tuple(
            Arrival(s.source, s.destination, chunk, s.add) for s in self.rounds[number - 1] for chunk in s.chunks
        )

    def phase_of(self, number: int) -> str:
        """Name of the phase to which round `number` belongs, counted from 1."""
        for part in self.phases:
            if number <= len(part.rounds):
                return part.name
            number -= len(part.rounds)
        last = len(self.rounds)
        raise ArgumentError(f"round {number + last}", where=self.name, allowed=f"Rounds run from 1 to {last}")

    # counting

    @cached_property
    def _counted(self) -> dict[int | None, tuple[Counts, ...]]:
        return {}

    def counts(self, rounds: int | None = None) -> tuple[Counts, ...]:
        """What each rank sends, receives and adds; with `rounds`, in the first so many."""
        if rounds not in self._counted:
            self._counted[rounds] = self._count(rounds)
        return self._counted[rounds]

    def _count(self, rounds: int | None) -> tuple[Counts, ...]:
        sent, received, added = ([0] * self.ranks for _ in range(3))
        out, into = [0] * self.ranks, [0] * self.ranks
        for sends in self.rounds[:rounds]:
            for send in sends:
                out[send.source] += 1
                into[send.destination] += 1
                sent[send.source] += len(send.chunks)
                received[send.destination] += len(send.chunks)
                added[send.destination] += len(send.chunks) * send.add
        shares = [[Fraction(n, self.chunks) for n in counted] for counted in (sent, received, added)]
        return tuple(map(Counts, range(self.ranks), out, into, *shares))

    def round_times_s(
        self, size_bytes: float, link: Link, *, gamma_s_per_byte: float = 0.0, contention: str = "none"
    ) -> tuple[float, ...]:
        """Seconds of each round.

        size_bytes   of S
        link         alpha and beta of every link; gamma_s_per_byte: of adding
        contention   "none": every pair has a link of its own. "hops": the ranks stand in a ring and a message occupies
                     every link on its way, so that its bytes take as many times as long as it has hops

        A rank's port sends one message after the other, and receives while it sends. A round takes as long as its
        busiest rank: max(sending, receiving) + adding.
        """
        choice(*CONTENTION)(self._where, "contention", contention)
        chunk_bytes, times = number(0)(self._where, "size_bytes", size_bytes) / self.chunks, []
        for sends in self.rounds:
            busy_s = np.zeros((3, self.ranks))
            for send in sends:
                hops = ring_distance(send.source, send.destination, self.ranks) if contention == "hops" else 1
                taken_s = link.time_s(chunk_bytes * len(send.chunks) * hops)
                busy_s[0, send.source] += taken_s
                busy_s[1, send.destination] += taken_s
                busy_s[2, send.destination] += chunk_bytes * len(send.chunks) * gamma_s_per_byte * send.add
            times.append(float((np.maximum(busy_s[0], busy_s[1]) + busy_s[2]).max(initial=0.0)))
        return tuple(times)

    def time_s(self, size_bytes: float, link: Link, **options: Any) -> float:
        """Seconds of all rounds, one after the other; arguments as of `round_times_s`.

        >>> algorithm("all_reduce", "ring", ranks=4).time_s(8_000, Link(alpha_s=1e-6, beta_s_per_byte=1e-9))
        1.8e-05
        """
        return sum(self.round_times_s(size_bytes, link, **options))

    # running

    def run(self, values: Sequence[Any], reduce: str = "sum", **dims: int) -> list[np.ndarray | None]:
        """Walk through the rounds with arrays, one per rank (broadcast, scatter: the root's is read); the replies."""
        if len(values) != self.ranks:
            raise ShapeError(f"{len(values)} values", where=self._where, allowed=f"{self.ranks}, one per rank")
        like = values[self.root]
        if self.kind == "broadcast" and like is not None:
            values = [np.zeros_like(like) if value is None else value for value in values]
        return simulate([self.program(rank, value, reduce=reduce, **dims) for rank, value in enumerate(values)])

    def program(
        self,
        rank: int,
        x: Any = None,
        *,
        group: Sequence[int] | None = None,
        reduce: str = "sum",
        origin: str = "",
        **dims: int,
    ) -> Generator[Request, Any, np.ndarray | None]:
        """A rank program: yields a send or a recv for each message of this rank, and returns the reply.

        x       this rank's value; of scatter None off the root, of broadcast an array like the root's
        group   ranks at the positions 0 ... ranks - 1; default those numbers themselves
        reduce, dims (dim, split_dim, concat_dim)   as for the collective of that kind
        origin  for messages about this call

        In each round all sends come first, then the recvs: a send never waits for its receiver.

        Raises ArgumentError for sends that are no such collective, ShapeError and CollectiveMismatch for values.
        """
        if self.formula is None and not (verdict := self.check()):
            raise ArgumentError(verdict.text.rstrip("."), where=self._where)
        members = tuple(range(self.ranks)) if group is None else tuple(group)
        if len(members) != self.ranks:
            raise CollectiveMismatch(f"group {members}", where=self._where, allowed=f"{self.ranks} ranks")
        if x is not None:
            x = np.asarray(x)
            x = np.asarray(x, x.dtype.newbyteorder("="), order="C")
        root = members[self.root] if self.kind in ROOTED else None
        whole = Request(self.kind, members, x, reduce, root=root, origin=origin, **dims)
        check_request(whole, rank, members)
        if x is None and self.kind == "broadcast":
            hint = "np.empty_like of the root's, for instance: the pieces do not say how large the whole is"
            what = f"rank {rank} broadcasts by {self.name} without a value"
            raise ShapeError(what, allowed="An array like the root's", hint=hint)
        return self._program(members.index(rank), whole)

    @property
    def _where(self) -> str:
        return f"{self.kind} by {self.name}"

    def _program(self, me: int, whole: Request) -> Generator[Request, Any, np.ndarray | None]:
        members, data = whole.group, self._pieces(me, whole)
        shape = next((piece.shape for piece in data.values()), None)
        for at, sends in enumerate(self.rounds, 1):
            note = f"{whole.origin or self.kind} ({self.name}, round {at} of {len(self.rounds)})"
            for send in sends:
                if send.source == me:
                    packed = self._packed([data[c] for c in send.chunks])
                    yield Request("send", (members[me], members[send.destination]), packed, origin=note)
            arrived: dict[int, list[tuple[int, np.ndarray, bool]]] = {}
            for send in sends:
                if send.destination == me:
                    got = yield Request("recv", (members[send.source], members[me]), origin=note)
                    for chunk, piece in zip(send.chunks, self._unpacked(got, send.chunks, whole, shape), strict=True):
                        arrived.setdefault(chunk, []).append((send.source, piece, send.add))
            for chunk, found in arrived.items():
                _, piece, add = found[0]
                if add:
                    parts = sorted([(me, data[chunk], True), *found], key=lambda part: part[0])
                    reduce = "sum" if whole.reduce == "mean" else whole.reduce
                    piece = combine([piece for _, piece, _ in parts], reduce)
                data[chunk] = piece
        return self._reply(me, whole, data)

    def _bounds(self, size: int) -> list[tuple[int, int]]:
        """Flat range of each chunk of a value that is split without regard to its dims; sizes differ by one at most."""
        return [(c * size // self.chunks, (c + 1) * size // self.chunks) for c in range(self.chunks)]

    @property
    def _flat(self) -> bool:
        return STORIES[self.kind].moves == "chunk"

    def _pieces(self, me: int, whole: Request) -> dict[int, np.ndarray]:
        """The chunks that lie on this rank at the start. They may be views: nothing is ever written into them."""
        value, n, definition = whole.value, self.ranks, MESSAGES[self.kind]
        if definition.sender == "root" and me != self.root:
            return {}
        if self._flat:
            flat = value.reshape(-1)
            return {c: flat[a:b] for c, (a, b) in enumerate(self._bounds(flat.size))}
        if not definition.cut:
            return {me: value}
        first = me * n if STORIES[self.kind].moves == "pair" else 0
        return dict(enumerate(np.split(value, n, axis=getattr(whole, definition.cut)), first))

    def _packed(self, pieces: list[np.ndarray]) -> np.ndarray:
        """Several chunks as one message: flat ones one after the other, pieces of equal shape stacked."""
        if len(pieces) == 1:
            return np.ascontiguousarray(pieces[0]).reshape(pieces[0].shape)
        return np.concatenate(pieces) if self._flat else np.stack(pieces)

    def _unpacked(
        self, got: np.ndarray, chunks: tuple[int, ...], whole: Request, shape: tuple[int, ...] | None
    ) -> list[np.ndarray]:
        """The chunks of a message. shape: that of this rank's own pieces, and so of all; None off a scatter's root."""
        bounds = self._bounds(whole.value.size) if self._flat else []
        sizes = [bounds[c][1] - bounds[c][0] for c in chunks] if self._flat else []
        wanted = (sum(sizes),) if self._flat else shape if shape is None or len(chunks) == 1 else (len(chunks), *shape)
        dtype = got.dtype if whole.value is None else whole.value.dtype
        if wanted not in (None, got.shape) or got.dtype != dtype:
            what, allowed = f"{got.dtype} {got.shape} arrived", "Values of one shape and dtype on all ranks"
            where = whole.origin or self.kind
            raise CollectiveMismatch(f"{what}, and {dtype} {wanted} was expected", where=where, allowed=allowed)
        if self._flat:
            return np.split(got, np.cumsum(sizes)[:-1])
        return list(got) if len(chunks) > 1 else [got]

    def _reply(self, me: int, whole: Request, data: dict[int, np.ndarray]) -> np.ndarray | None:
        n, definition = self.ranks, MESSAGES[self.kind]
        if definition.receiver == "root" and me != self.root:
            return None
        if self._flat:
            joined = np.concatenate([data[c] for c in range(self.chunks)]).reshape(whole.value.shape)
        elif not definition.join:
            joined = np.array(data[me], order="C")
        else:
            numbers = [i * n + me for i in range(n)] if STORIES[self.kind].moves == "pair" else list(range(n))
            axis = getattr(whole, definition.join)
            joined = np.ascontiguousarray(np.concatenate([data[c] for c in numbers], axis=axis))
        if definition.reducing and whole.reduce == "mean":
            np.divide(joined, joined.dtype.type(n), out=joined)
        return joined

    # words

    def to_text(self, size_bytes: int | None = None) -> str:
        """The rounds as text, then what each rank sends."""
        lines = [f"{self.kind} by {self.name}, {self.ranks} ranks, {self.chunks} chunks: {len(self.rounds)} rounds"]
        if self.words:
            lines.append(f"{self.words}.")
        for at, sends in enumerate(self.rounds, 1):
            lines.append(f"  {at:>3}  {self.phase_of(at):<14} " + "   ".join(map(str, sends)))
        for c in self.counts():
            size = "" if size_bytes is None else f" = {float(c.sent_bytes(size_bytes)):g} bytes"
            text = f"  rank {c.rank} sends {c.messages} messages, {c.sent} S{size}; receives {c.received_messages}, "
            lines.append(text + f"{c.received} S")
        if self.formula is not None:
            rounds, messages, sent, time = formula_texts(self.formula, self.ranks)
            lines.append(f"  formula: {rounds} rounds; the busiest rank sends {messages} messages, {sent}; time {time}")
        return "\n".join(lines)


@lru_cache(maxsize=256, typed=True)  # 2.0 ranks are refused, also after 2
def algorithm(kind: str, name: str, ranks: int, *, root: int = 0, segments: int | None = None) -> Algorithm:
    """An algorithm by name.

    kind      one of KINDS;  name: one of `algorithm_names(kind)`
    ranks     group size
    root      position of the root in the group (broadcast, reduce, scatter, gather)
    segments  pieces that follow each other down a chain ("ring" of broadcast and reduce); default: one per rank

    Raises ArgumentError for unknown names, with the nearest, and for ranks that it cannot take, with one that can.
    """
    phases, recipe = rounds_of(kind, name, ranks, root, segments), recipe_of(kind, name)
    chunks = usual_chunks(kind, ranks) if recipe.chunks is None else recipe.chunks(ranks, segments or ranks)
    return Algorithm(kind, name, ranks, phases, chunks, root, recipe.formula, recipe.words)


def custom_algorithm(
    kind: str, rounds: Iterable[Any], ranks: int, *, chunks: int | None = None, root: int = 0, name: str = "my own"
) -> Algorithm:
    """Your own list of rounds of sends as an algorithm. A wrong one can be checked and stepped through, but not run."""
    check_algorithm(kind, (), ranks, chunks=chunks, root=root)
    chunks = usual_chunks(kind, ranks) if chunks is None else chunks
    return Algorithm(kind, name, ranks, (Phase("", as_rounds(rounds)),), chunks, root)


def run_algorithm(
    comm: Any,
    kind: str,
    name: str | Algorithm,
    x: Any = None,
    reduce: str = "sum",
    *,
    group: Sequence[int] | None = None,
    root: int = 0,
    **dims: int,
) -> np.ndarray | None:
    """Perform a collective by a named algorithm (or an `Algorithm`) on real ranks; every member calls it.

        from parallel_lab.train.communication import init
        init()
        total = run_algorithm(None, "all_reduce", "ring", x)

    comm   this rank's communicator, as a worker's function receives it; None: that of the world which `init` has joined
    root   a rank, as for `comm.broadcast`
    dims   dim, split_dim, concat_dim, as for the collective

    The ranks meet once before the first message: CollectiveMismatch, naming two ranks and their lines, if they want
    different things or send them in different ways. Raises WorldError without a communicator and a world, and what
    `Algorithm.program`, its sends and recvs raise.
    """
    if comm is None:
        world = current_world()
        if world is None:
            hint = "In a %%ranks cell, or a script under parallel-lab run, call parallel_lab.init() first; in a pool's "
            hint += "function, give its comm"
            raise WorldError("this process is not a rank", where="run_algorithm", hint=hint)
        comm = world.comm
    members = tuple(range(comm.world_size)) if group is None else tuple(group)
    if isinstance(name, Algorithm):
        chosen = name
    else:
        if kind in ROOTED and root not in members:
            raise CollectiveMismatch(f"root {root}", where=f"{kind} by {name}", allowed=f"A rank of {members}")
        chosen = algorithm(kind, name, len(members), root=members.index(root) if kind in ROOTED else 0)
    if chosen.kind != kind:
        raise ArgumentError(
            f"an algorithm for {chosen.kind}", where=f"run_algorithm, {kind}", allowed=f"One for {kind}"
        )
    place = caller().place
    origin = f"{kind} at {place}" if place else ""
    program = chosen.program(comm.rank, x, group=members, reduce=reduce, origin=origin, **dims)
    value = None if x is None else np.asarray(x)
    at = members[chosen.root] if kind in ROOTED else None
    comm.meet_for(Request(kind, members, value, reduce, root=at, origin=place or kind, **dims), chosen.told)
    return drive(program, comm)


def ring_distance(source: int, destination: int, ranks: int) -> int:
    """Hops from one rank to another on a ring of `ranks`, the shorter way.

    >>> [ring_distance(0, r, 8) for r in range(8)]
    [0, 1, 2, 3, 4, 3, 2, 1]
    """
    apart = abs(source - destination)
    return min(apart, ranks - apart)
