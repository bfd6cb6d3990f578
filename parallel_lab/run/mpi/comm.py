"""One rank's communicator over MPI: the same requests, the same answers as the simulator and shared memory.

    comm = connect()                         # under mpirun; every rank
    total = comm.all_reduce(x)               # or comm.answer(Request("all_reduce", (0, 1, 2, 3), x))

The members of a group first compare what they ask for (`meeting.py`). Small values travel with that comparison, and each member combines them by
itself. Larger ones are moved by the MPI library, as bytes:

    all_reduce      reproducible: alltoall of pieces, each member adds its piece in group order, allgather of the sums; else the library's allreduce
    reduce, reduce_scatter   alltoall, addition in group order (and gather to the root); else the library's
    all_gather, gather, all_to_all, broadcast, scatter   the library's
    halos           alltoall of the strips at the borders
    send, recv      a message that says what comes, then the data

Reproducible is the default: sums are made in group order, so the bits are those of `communicator.answer`, whatever MPI it is and however it adds; the
bytes that travel are the same (2(n-1)/n of the value for all_reduce). The library's own sums match to rounding.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import RankDied, message
from ...halo import HALOS, Halo
from ..calls import caller
from ..communicator import Request, answer, combine, delivered
from ..shm.arena import FLIGHT_RECORDS, FlightEntry
from ..shm.channels import pack_head, unpack_head
from ..shm.checked_calls import CheckedCalls
from ..shm.slices import as_pieces, positive_dim
from .meeting import MESSAGE_TAG, STRIP_TAG, Arrival, Meeting, entry_of, pack_arrival

__all__ = ["MpiCommunicator"]

SMALL_BYTES = 2048  # up to here a value travels with the comparison: with its head it stays below the 4 KiB that Open MPI sends at once
PAUSE_LOOK_S = 2e-3
MAX_TAG = 32767  # the least that MPI promises
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_JOINING = ("all_gather", "gather", "all_to_all", *HALOS)
# What the library adds itself when it is asked to: floats, whose sums depend on the order anyway. Of integers the order does not change the sum, and
# Open MPI 4.1 gives others (measured: int8 100 + 100 = 127, it saturates; the smaller of two uint64 above 2**63 is the wrong one).
_NATIVE_DTYPES, _NATIVE_REDUCERS = ("float32", "float64", "complex64", "complex128"), ("sum", "prod")


class MpiCommunicator(CheckedCalls):
    """One rank of an MPI world. For one thread at a time, `report` excepted.

    mpi           the module mpi4py.MPI
    reproducible  sums in group order, bit for bit those of the simulator; False: the MPI library's own sums
    timeout_s     a request that other ranks do not answer in this time raises CollectiveTimeout
    warn_after_s  after this time `warn` is called with a text that names the ranks that are missing
    report        what `report` does with an object; default: it is printed
    """

    def __init__(
        self,
        mpi: Any,
        *,
        reproducible: bool = True,
        timeout_s: float = 30.0,
        warn_after_s: float = 2.0,
        warn: Callable[[str], object] = print,
        report: Callable[[object], object] | None = None,
    ) -> None:
        super().__init__(mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size())
        self.reproducible = reproducible
        self.control = "run"
        self._mpi, self._report = mpi, report
        self._meeting = Meeting(mpi, timeout_s, warn_after_s, warn)
        self._types: dict[int, Any] = {}
        self._begin_run(0, fresh=False)

    def __repr__(self) -> str:
        return f"MpiCommunicator(rank={self.rank}, world_size={self.world_size})"

    # the contract

    def answer(self, request: Request) -> np.ndarray | None:
        """This rank's reply to `request`; waits until the group has answered.

        The bits of `communicator.answer` (reproducible), C-contiguous, in memory of its own; None for barrier, send, and off the root of reduce and
        gather. A send returns when the value is copied; a recv waits for it.

        Raises CollectiveMismatch, CollectiveTimeout, DeadlockError, RankRaised on every rank, never waits for ever.
        """
        return self._answer(request, bool(request.origin))

    def _answer(self, request: Request, explicit: bool, *, quiet: bool = False) -> np.ndarray | None:
        value = request.value
        if not request.origin or (value is not None and not (isinstance(value, np.ndarray) and value.flags.c_contiguous)):
            value = None if value is None else np.asarray(value, order="C")
            request = dataclasses.replace(request, value=value, origin=request.origin or caller(2))
        self._meeting.check()
        check, loose, text = self._call(request, explicit)
        kind, members = request.kind, request.group
        number = self._numbers.get(members, 0) if request.number is None else request.number
        self._numbers[members] = number + 1
        flight = [self._index, number, text, time.perf_counter(), None]
        self._index += 1
        self._flight.append(flight)
        try:
            if kind == "send":
                self._hand_over(value, members[1])
                reply = None
            elif kind == "recv":
                reply = self._receive(request)
            elif len(members) == 1:
                reply = answer([request])[0]
            else:
                reply = self._together(request, number, self._numbered(check, number), loose, text)
            reply = delivered(reply, request)
        except self._mpi.Exception as error:
            what = f"MPI failed in {kind} of rank {self.rank}: {error}"
            raise RankDied(message(what, where=request.origin, hint="A process of this world has probably ended")) from error
        flight[4] = time.perf_counter()
        if self.recording and not quiet:
            self.records.append((flight[0], kind, flight[3], flight[4], self._bytes_sent(request), members, request.origin))
        return reply

    def _together(self, request: Request, number: int, check: int, loose: tuple[int, int] | None, text: bytes) -> np.ndarray | None:
        """A collective of two members or more: meet, then combine what came along, or let MPI move the data."""
        kind, members, value = request.kind, request.group, request.value
        rooted = kind in ("broadcast", "scatter")
        gives = value is not None and (not rooted or request.root == self.rank)
        small = gives and value.nbytes <= SMALL_BYTES and (self.reproducible or kind not in _REDUCING)
        extra = pack_head(value.dtype, value.shape) if rooted and gives else b""
        data = pack_arrival(self._meeting.run, check, loose, number, text, extra, memoryview(value.tobytes()) if small else None)
        found = self._meeting.meet(members, data, check, loose, entry_of(self.rank, 0, number, text))
        if kind == "barrier":
            return None
        if rooted:
            return self._from_root(request, found.get(request.root))
        if small:
            return self._combined(request, found)
        return getattr(self, f"_{kind}")(request, members.index(self.rank))

    def _combined(self, request: Request, found: dict[int, Arrival]) -> np.ndarray | None:
        """The reply made here, from the small values of all members."""
        mine, root = request.value, request.root
        if root is not None and root != self.rank:
            return None
        values = [mine if m == self.rank else np.frombuffer(found[m].value, mine.dtype).reshape(mine.shape) for m in request.group]
        if request.kind in ("all_reduce", "reduce"):
            return combine(values, request.reduce)
        requests = [request if m == self.rank else dataclasses.replace(request, value=v) for m, v in zip(request.group, values, strict=True)]
        return answer(requests)[request.group.index(self.rank)]

    # data that the library moves

    def _group(self, members: tuple[int, ...]) -> Any:
        """The communicator of a group, made when its members first need it; all of them need it in the same call."""
        if members == self._world:
            return self._meeting.comm
        found = self._groups.get(members)
        if found is None:
            whole = self._meeting.comm.Get_group()
            part = whole.Incl(members)
            found = self._groups[members] = self._meeting.comm.Create_group(part, tag=zlib.crc32(repr(members).encode()) % MAX_TAG)
            part.Free()
            whole.Free()
        return found

    def _buffer(self, array: np.ndarray, counts: Sequence[int] | None = None) -> list:
        """An array for MPI: its bytes, counted in elements, so that arrays beyond 2 GiB pass.  counts: elements per member."""
        itemsize = array.dtype.itemsize
        kind = self._types.get(itemsize)
        if kind is None:
            kind = self._types[itemsize] = self._mpi.BYTE.Create_contiguous(itemsize).Commit()
        data = array.reshape(-1).view(np.uint8)
        if counts is None:
            return [data, array.size, kind]
        offsets = [0]
        for count in counts[:-1]:
            offsets.append(offsets[-1] + count)
        return [data, (counts, offsets), kind]

    def _complete(self, request: Any, members: tuple[int, ...], size_bytes: int) -> None:
        self._meeting.complete([request], members, size_bytes)

    def _exchange_pieces(self, pieces: np.ndarray, members: tuple[int, ...]) -> np.ndarray:
        """(n, ...) -> (n, ...): row i of mine goes to member i, row i of the result is member i's row for me."""
        out = np.empty_like(pieces)
        per_member = pieces.size // len(members)
        counts = [per_member] * len(members)
        self._complete(self._group(members).Ialltoallv(self._buffer(pieces, counts), self._buffer(out, counts)), members, pieces.nbytes)
        return out

    def _sum_of_my_part(self, request: Request, me: int) -> tuple[np.ndarray, list[int]]:
        """My 1/n of the flat value, added over the group in its order; elements of each member's part."""
        members, flat = request.group, request.value.reshape(-1)
        n = len(members)
        borders = [flat.size * i // n for i in range(n + 1)]
        counts = [b - a for a, b in itertools.pairwise(borders)]
        rows = np.empty((n, counts[me]), flat.dtype)
        call = self._group(members).Ialltoallv(self._buffer(flat, counts), self._buffer(rows, [counts[me]] * n))
        self._complete(call, members, flat.nbytes)
        return combine(list(rows), request.reduce), counts

    def _all_reduce(self, request: Request, me: int) -> np.ndarray:
        members, value = request.group, request.value
        out = np.empty(value.shape, value.dtype)
        op = self._native(request)
        if op is not None:
            self._complete(self._group(members).Iallreduce(value.reshape(-1), out.reshape(-1), op), members, value.nbytes)
            return out
        part, counts = self._sum_of_my_part(request, me)
        self._complete(self._group(members).Iallgatherv(self._buffer(part), self._buffer(out, counts)), members, value.nbytes)
        return out

    def _reduce(self, request: Request, me: int) -> np.ndarray | None:
        members, value, root = request.group, request.value, request.group.index(request.root)
        out = np.empty(value.shape, value.dtype) if me == root else None
        op = self._native(request)
        if op is not None:
            self._complete(self._group(members).Ireduce(value.reshape(-1), None if out is None else out.reshape(-1), op, root), members, value.nbytes)
            return out
        part, counts = self._sum_of_my_part(request, me)
        target = None if out is None else self._buffer(out, counts)
        self._complete(self._group(members).Igatherv(self._buffer(part), target, root), members, value.nbytes)
        return out

    def _reduce_scatter(self, request: Request, me: int) -> np.ndarray:
        members, value = request.group, request.value
        n, dim = len(members), positive_dim(request.dim, value.ndim, "reduce_scatter")
        pieces = _pieces_first(value, dim, n)
        shape = (*value.shape[:dim], value.shape[dim] // n, *value.shape[dim + 1 :])
        out = np.empty(shape, value.dtype)
        op = self._native(request)
        if op is not None:
            self._complete(self._group(members).Ireduce_scatter_block(pieces.reshape(-1), out.reshape(-1), op), members, value.nbytes)
            return out
        np.copyto(out, combine(list(self._exchange_pieces(pieces, members)), request.reduce).reshape(shape))
        return out

    def _all_gather(self, request: Request, me: int) -> np.ndarray:
        members, value = request.group, request.value
        n, dim = len(members), positive_dim(request.dim, value.ndim, "all_gather")
        rows = np.empty((n, *value.shape), value.dtype)
        self._complete(self._group(members).Iallgather(self._buffer(value), self._spread(rows, n)), members, rows.nbytes)
        return _joined(rows, dim)

    def _gather(self, request: Request, me: int) -> np.ndarray | None:
        members, value, root = request.group, request.value, request.group.index(request.root)
        n, dim = len(members), positive_dim(request.dim, value.ndim, "gather")
        rows = np.empty((n, *value.shape), value.dtype) if me == root else None
        target = None if rows is None else self._spread(rows, n)
        self._complete(self._group(members).Igather(self._buffer(value), target, root), members, n * value.nbytes)
        return None if rows is None else _joined(rows, dim)

    def _spread(self, rows: np.ndarray, n: int) -> list:
        """(n, ...) as the buffer of a collective in which each member has one row."""
        data, size, kind = self._buffer(rows)
        return [data, size // n, kind]

    def _all_to_all(self, request: Request, me: int) -> np.ndarray:
        members, value = request.group, request.value
        n = len(members)
        split = positive_dim(request.split_dim, value.ndim, "all_to_all")
        concat = positive_dim(request.concat_dim, value.ndim, "all_to_all")
        shape = (*value.shape[:split], value.shape[split] // n, *value.shape[split + 1 :])
        rows = self._exchange_pieces(_pieces_first(value, split, n), members)
        return _joined(rows.reshape(n, *shape), concat)

    def _from_root(self, request: Request, arrival: Arrival | None) -> np.ndarray:
        """Broadcast and scatter.  arrival: what the root said; None on the root itself."""
        members, value, scattered = request.group, request.value, request.kind == "scatter"
        n, me, root = len(members), members.index(self.rank), members.index(request.root)
        if arrival is None:
            dtype, shape, small = value.dtype, value.shape, value.nbytes <= SMALL_BYTES
        else:
            dtype, shape = unpack_head(arrival.extra)
            small = arrival.value is not None
        dim = positive_dim(request.dim, len(shape), "scatter") if scattered else 0
        mine = (*shape[:dim], shape[dim] // n, *shape[dim + 1 :]) if scattered else shape
        if arrival is not None:
            wanted = (mine if request.shape is None else tuple(request.shape), dtype if request.dtype is None else np.dtype(request.dtype))
            if wanted != (mine, dtype):
                what = (
                    f"rank {self.rank} expects {wanted[1]} {wanted[0]} from {request.kind} #{arrival.number}, rank {request.root} gave {dtype} {mine}"
                )
                self._meeting.raise_fault("CollectiveMismatch", message(what), ranks=sorted((self.rank, request.root)))
            if small:
                whole = np.frombuffer(arrival.value, dtype).reshape(shape)
                return np.array(np.split(whole, n, axis=dim)[me] if scattered else whole, order="C")
        elif small:
            return np.array(np.split(value, n, axis=dim)[me] if scattered else value, order="C")
        out = np.empty(mine, dtype)
        group = self._group(members)
        if scattered:
            pieces = None if arrival is not None else self._spread(_pieces_first(value, dim, n), n)
            call = group.Iscatter(pieces, self._buffer(out), root)
        else:
            if arrival is None:
                np.copyto(out, value)
            call = group.Ibcast(self._buffer(out), root)
        self._complete(call, members, out.nbytes)
        return out

    def _halo(self, request: Request, me: int) -> np.ndarray:
        value, kind, members = request.value, request.kind, request.group
        dim, halo = positive_dim(request.dim, value.ndim, kind), Halo(*request.window, members=len(members))
        shape = (*value.shape[:dim], halo.extents(kind)[1], *value.shape[dim + 1 :])
        rows, inner = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
        near = sorted((*halo.neighbours(me), me))
        given, taken = ({j: slice(a * inner, b * inner) for j in near for a, b in [of(kind, me, j)]} for of in (halo.given, halo.taken))
        flat = value.reshape(rows, value.shape[dim] * inner)
        out = np.zeros(shape, value.dtype.newbyteorder("="))
        result = out.reshape(rows, shape[dim] * inner)
        strips = {j: np.empty((rows, part.stop - part.start), value.dtype) for j, part in taken.items() if j != me}
        calls, world = [], self._meeting.comm
        for j, strip in strips.items():
            calls.append(world.Irecv(self._buffer(strip), source=members[j], tag=STRIP_TAG))
        for j in strips:
            calls.append(world.Isend(self._buffer(np.ascontiguousarray(flat[:, given[j]])), dest=members[j], tag=STRIP_TAG))
        self._meeting.complete(calls, [members[j] for j in near], value.nbytes)
        strips[me] = flat[:, given[me]]
        for j, part in taken.items():  # ascending: where windows overlap, the addends come in group order
            if kind == "halo_exchange":
                result[:, part] = strips[j]
            else:
                np.add(result[:, part], strips[j], out=result[:, part])
        return out

    _halo_exchange = _halo_reduce = _halo

    def _native(self, request: Request) -> Any:
        """The library's operation for this reduction, or None: it is made here, in group order."""
        dtype = request.value.dtype
        if self.reproducible or not dtype.isnative or dtype.name not in _NATIVE_DTYPES or request.reduce not in _NATIVE_REDUCERS:
            return None
        return {"sum": self._mpi.SUM, "prod": self._mpi.PROD}[request.reduce]

    # messages from one rank to another

    def _hand_over(self, value: np.ndarray, to: int) -> None:
        head, data = pack_head(value.dtype, value.shape), np.array(value, order="C")
        self._sent[to] += 1
        self._meeting.post(head, to, MESSAGE_TAG)
        self._meeting.outgoing.append(self._meeting.comm.Isend(self._buffer(data), dest=to, tag=MESSAGE_TAG))
        self._meeting.sent_all()

    def _receive(self, request: Request) -> np.ndarray:
        source, meeting = request.group[0], self._meeting
        head = bytearray(256)
        found: list = []

        def came() -> bool:
            here = meeting.comm.Improbe(source, MESSAGE_TAG)
            if here is not None:
                here.Recv([head, self._mpi.BYTE])
                found.append(True)
            return bool(found)

        meeting.until(came, lambda: (source,), lost=lambda rank: meeting.left[rank][0] <= self._received[rank])
        dtype, shape = unpack_head(bytes(head))
        out = np.empty(shape, dtype)
        meeting.complete([meeting.comm.Irecv(self._buffer(out), source=source, tag=MESSAGE_TAG)], (source,), out.nbytes)
        self._received[source] += 1
        wanted = (shape if request.shape is None else tuple(request.shape), dtype if request.dtype is None else np.dtype(request.dtype))
        if wanted != (shape, dtype):
            what = f"rank {self.rank} expects {wanted[1]} {wanted[0]} from rank {source}, which sent {dtype} {shape}"
            meeting.raise_fault("CollectiveMismatch", message(what, where=request.origin), ranks=[self.rank, source])
        return out

    # control

    @property
    def stop_requested(self) -> bool:
        """True once the notebook has asked for a stop. Ranks may see it at different steps: use `agree_to_continue` to leave a loop."""
        return self.control == "stop"

    def wait_if_paused(self) -> None:
        """Return when nobody asks for a pause. Raises what stopped the run meanwhile."""
        while self.control == "pause":
            self._meeting.look()
            self._meeting.check()
            time.sleep(PAUSE_LOOK_S)
        self._meeting.check()

    def report(self, obj: object) -> None:
        """Hand a small object to who started the run: the notebook's `Job.messages`; without a notebook it is printed."""
        if self._report is not None:
            self._report(obj)
        else:
            print(obj, flush=True)

    def flight(self) -> list[FlightEntry]:
        """The last 64 requests of this rank in the present run, oldest first."""
        return [entry_of(self.rank, index, number, text, start_s, end_s) for index, number, text, start_s, end_s in self._flight]

    def last_entry(self) -> FlightEntry | None:
        """The newest request of this rank, or None."""
        if not self._flight:
            return None
        index, number, text, start_s, end_s = self._flight[-1]
        return entry_of(self.rank, index, number, text, start_s, end_s)

    # one run after the other

    def _begin_run(self, run: int, *, fresh: bool) -> None:
        """All ranks together.  fresh: the last run was stopped, and what it left under way must not be met again."""
        if run:
            self._meeting.begin_run(run, fresh=fresh)
        self._meeting.entry = self.last_entry
        self._meeting.paused = lambda: self.control == "pause"
        if fresh or not run:
            self._groups: dict[tuple[int, ...], Any] = {}
        self._numbers: dict[tuple[int, ...], int] = {}
        self._flight: deque[list] = deque(maxlen=FLIGHT_RECORDS)
        self._sent, self._received = [0] * self.world_size, [0] * self.world_size
        self._index = 0
        self.control = "run"
        self.records = []

    def _end_run(self) -> None:
        """Tell the others that this rank has returned, and wait until all have. Raises what stopped one of them meanwhile."""
        meeting = self._meeting
        meeting.leave(self._sent)
        meeting.until_settled(lambda: len(meeting.left) == len(meeting.others))
        if not self.stop_requested:  # who stops may leave a message lying
            self._check_unread()
        meeting.until_settled(meeting.sent_all)

    def _check_unread(self) -> None:
        """Raise CollectiveMismatch when this rank has not received all that others say they have sent it."""
        for source, (sent, _) in sorted(self._meeting.left.items()):
            if sent != self._received[source]:
                what = f"rank {source} sent {sent} message{'s' if sent != 1 else ''} to rank {self.rank}, which received {self._received[source]}"
                self._meeting.raise_fault("CollectiveMismatch", message(what, allowed="Every send needs its recv"), ranks=[source, self.rank])


def _pieces_first(value: np.ndarray, dim: int, n: int) -> np.ndarray:
    """`value` cut into n pieces along `dim`, one after the other in memory: (n, elements)."""
    pieces = as_pieces(value, dim, n, "pieces")
    return np.ascontiguousarray(pieces.transpose(1, 0, 2)).reshape(n, -1)


def _joined(rows: np.ndarray, dim: int) -> np.ndarray:
    """The rows joined along `dim`, in memory of their own and the machine's byte order."""
    return np.ascontiguousarray(np.concatenate(list(rows), axis=dim))
