"""The handshake of a group over MPI: small messages, compared before any data moves, and the one wait loop of a rank.

MPI does not look at what ranks ask for: two that disagree get wrong numbers or wait for ever. So the members of a group
first exchange arrivals, pair by pair: what is being asked for (a digest, and its text for messages), small values along
with it. A rank that sees another digest than its own tells every rank, and all of them raise. Only then does the MPI
library move data, and nothing it is asked for can disagree.

    ARRIVED   head | text of the call | dtype and shape, from a root | a small value        to the other members of the
              group
    STARTED   the same, of a collective that is started and waited for later                likewise
    FAULT     why everybody must stop                                                       to every rank
    WAITS     "I wait for these ranks", after `warn_after_s`                                to every rank
    LEFT      "I have returned"; how many messages I sent you                               to every rank

All of them travel with one tag, so that what a rank sends another is read in the order in which it was sent. Nothing
here blocks inside MPI: messages are looked for (`Improbe`), and between looks the core is given away. Waiting is
adaptive as in shared memory: looks with sched_yield, then sleeps that grow with the time already waited.
"""

from __future__ import annotations

import contextlib
import functools
import json
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from ...base.errors import ParallelLabError, RankDied, message
from ...run.communicator import Request
from ..faults import FAULT_ERRORS, SAME_CALLS, RunInterrupted, difference
from ..flight import FlightEntry, entry_from_text
from ..lines import LINE, Lines, crossing_text
from ..one_caller import OneCaller
from ..shm.barrier import yield_core
from ..shm.watch import ranks_text

CONTROL_TAG, MESSAGE_TAG, DATA_TAG = 11, 12, 13
ARRIVED, FAULT, WAITS, LEFT, STARTED, THROUGH = 1, 2, 3, 4, 5, 6
# what, carries a value, bytes of text, bytes of dtype and shape, run, check, origin, shape, number
_HEAD = struct.Struct("<BBHHIIIIQ")
LOOKS = 16  # looks with sched_yield before the clock is read for the first time
SPIN_S = 300e-6  # as in shared memory: a few turns of 8 ranks on 2 cores
MAX_SLEEP_S, LONG_WAIT_S, MAX_LONG_SLEEP_S = 1e-3, 1.0, 5e-3
CYCLE_S = 1.0  # a circle of waiting ranks is a deadlock when none of them has moved for so long
SLOWEST_BYTES_PER_S = 10e6  # a transfer over a poor network is given this much more time than the limit


class Asked(NamedTuple):
    """What a rank asks for: `check`, the digest all members must share; `origin`, `shape`, digests compared only where
    given (0: not); `number` and `text` of the call (`flight_text`), for errors.
    """

    check: int
    origin: int
    shape: int
    number: int
    text: bytes

    def entry(self, rank: int) -> FlightEntry:
        """The call of `rank`, for messages."""
        return entry_from_text(rank, 0, self.number, self.text)


class Arrival(NamedTuple):
    """What one member said on arriving: a root's dtype and shape (`extra`); the bytes of a small `value`, or None."""

    asked: Asked
    extra: bytes
    value: memoryview | None


def pack_arrival(what: int, run: int, arrival: Arrival) -> bytes:
    """The bytes of an ARRIVED or STARTED message."""
    (check, origin, shape, number, text), extra, value = arrival
    head = _HEAD.pack(what, value is not None, len(text), len(extra), run & 0xFFFFFFFF, check, origin, shape, number)
    return b"".join((head, text, extra, value if value is not None else b""))


def died(error: Exception, rank: int, request: Request) -> RankDied:
    """What MPI's own error in a call of `rank` means."""
    what = f"MPI failed in {request.kind} of rank {rank}: {error}"
    return RankDied(what, where=request.origin, hint="A process of this world has probably ended")


class _Waiting(NamedTuple):
    """For whom a rank waits long, in which of its waits; `moving`: all have come, data is moving, so no deadlock."""

    stamp: int
    ranks: tuple[int, ...]
    text: str
    moving: bool


class Handshake(OneCaller):
    """One rank's side of all handshakes; it warns of missing ranks, and raises after `timeout_s`."""

    def __init__(self, mpi: Any, timeout_s: float, warn_after_s: float, warn: Callable[[str], object]) -> None:
        self.mpi, self.timeout_s, self.warn_after_s, self.warn = mpi, timeout_s, warn_after_s, warn
        self.rank, self.world_size = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()
        self.others = tuple(r for r in range(self.world_size) if r != self.rank)
        self.comm: Any = None
        self.started_comm: Any = None  # carries the data of started collectives, and nothing else
        self.progress: Callable[[], None] | None = None  # moves the started collectives that are under way, if any
        self.in_flight: Callable[[], list] = list  # their MPI requests
        self.messages: Callable[[], None] = lambda: None  # takes what was sent to this rank; and their MPI requests
        self.messages_in_flight: Callable[[], list] = list
        self.run = 0
        self.interrupted = False
        self.paused: Callable[[], bool] = lambda: False
        self._abandoned: list = []  # of runs that were stopped: MPI may still write to the buffers of these requests
        self._used: list = []  # communicators of such runs: freeing one needs all ranks, and they are few
        self._status = mpi.Status()
        self.outgoing: deque = deque()
        self.unfinished: list = []
        self.watch_forks()
        self.begin_run(0, fresh=True)

    def begin_run(self, run: int, *, fresh: bool) -> None:
        """Start anew, all ranks alike.  fresh: with a new communicator: messages of a stopped run may be under way."""
        if fresh:
            self.sent_all()
            self._abandoned += [*self.outgoing, *self.unfinished, *self.in_flight(), *self.messages_in_flight()]
            self._used += [self.comm, self.started_comm]
            self.outgoing.clear()
            self.unfinished = []
            self.comm, self.started_comm = self.mpi.COMM_WORLD.Dup(), self.mpi.COMM_WORLD.Dup()
        self.run = run
        self.anybody_may_call()
        self.fault: tuple[int, dict] | None = None
        self.interrupted = False
        self.inbox: list[deque[Arrival]] = [deque() for _ in range(self.world_size)]
        self.started: list[deque[Arrival]] = [deque() for _ in range(self.world_size)]
        self.left: dict[int, tuple[int, str]] = {}
        self.through: set[int] = set()
        self.waiting: dict[int, _Waiting] = {}
        self.entry: Callable[[], FlightEntry | None] = lambda: None
        self.lines: dict[tuple[int, ...], Lines] = {}
        self.started_lines: dict[tuple[int, ...], Lines] = {}
        self._stamp = 0

    @property
    def untidy(self) -> bool:
        """True when this process cannot finish MPI in order: transfers were given up in the middle."""
        under_way = self.unfinished or self._abandoned or self.in_flight() or self.messages_in_flight()
        return bool(under_way) or not self.sent_all()

    # sending

    def post(self, data: Any, to: int, tag: int = CONTROL_TAG) -> None:
        """Send without waiting; MPI keeps the buffer until it has gone."""
        self.outgoing.append(self.comm.Isend([data, self.mpi.BYTE], dest=to, tag=tag))

    def sent_all(self) -> bool:
        """Whether everything posted has gone."""
        while self.outgoing and self.outgoing[0].Test():
            self.outgoing.popleft()
        return not self.outgoing

    def _tell(self, what: int, ranks: Sequence[int], note: dict, number: int = 0) -> None:
        text = json.dumps(note, default=str).encode()
        data = _HEAD.pack(what, 0, len(text), 0, self.run & 0xFFFFFFFF, 0, 0, 0, number) + text
        for rank in ranks:
            self.post(data, rank)

    # receiving

    def look(self) -> None:
        """Read what has come, without waiting."""
        status = self._status
        while (found := self.comm.Improbe(self.mpi.ANY_SOURCE, CONTROL_TAG, status)) is not None:
            data = bytearray(status.Get_count(self.mpi.BYTE))
            source = status.Get_source()
            found.Recv([data, self.mpi.BYTE])
            self._take(source, memoryview(data))

    def attend(self) -> None:
        """Read what has come, and move on what was started, without waiting. Raises the mismatch of one of them."""
        self.look()
        self.messages()
        if self.progress is not None:
            self.progress()

    def _take(self, source: int, data: memoryview) -> None:
        what, carries, text_bytes, extra_bytes, run, check, origin, shape, number = _HEAD.unpack_from(data)
        if run != self.run & 0xFFFFFFFF:  # of a run that is over
            return
        at = _HEAD.size
        text, extra = bytes(data[at : at + text_bytes]), bytes(data[at + text_bytes : at + text_bytes + extra_bytes])
        if what in (ARRIVED, STARTED):
            value = data[at + text_bytes + extra_bytes :] if carries else None
            arrival = Arrival(Asked(check, origin, shape, number, text), extra, value)
            (self.inbox if what == ARRIVED else self.started)[source].append(arrival)
            return
        note = json.loads(text)
        if what == FAULT:
            self.fault = self.fault or (source, note)
        elif what == LEFT:
            self.left[source] = (number, note["last"])
        elif what == THROUGH:
            self.through.add(source)
        elif note["ranks"]:
            self.waiting[source] = _Waiting(note["stamp"], tuple(note["ranks"]), note["text"], note["moving"])
        else:
            self.waiting.pop(source, None)

    # handshake

    def meet(self, members: tuple[int, ...], data: bytes, asked: Asked, root: int | None) -> dict[int, Arrival]:
        """Arrive with `data` (see pack_arrival); what each other member said. Raises as `compare`, `compare_lines` and
        `until` do.
        """
        peers = [m for m in members if m != self.rank]
        for peer in peers:
            self.post(data, peer)
        missing = list(peers)
        found: dict[int, Arrival] = {}

        def met() -> bool:
            for peer in tuple(missing):
                if self.inbox[peer]:
                    arrival = found[peer] = self.inbox[peer].popleft()
                    missing.remove(peer)
                    self.compare(peer, arrival.asked, asked)
            return not missing

        self.until(met, lambda: missing, lost=lambda rank: not self.inbox[rank])
        self.compare_lines(self.lines, members, found, asked, root)
        self.sent_all()
        return found

    def compare(self, peer: int, theirs: Asked, mine: Asked) -> None:
        """Raise CollectiveMismatch, on every rank, unless `peer` asks for the same as this rank."""
        tags = (0 if origin & LINE else origin for origin in (mine.origin, theirs.origin))
        if theirs.check != mine.check or any(a and b and a != b for a, b in (tags, (mine.shape, theirs.shape))):
            self._differ((self.rank, mine), (peer, theirs))

    def compare_lines(
        self,
        lines: dict[tuple[int, ...], Lines],
        members: tuple[int, ...],
        found: dict[int, Arrival],
        mine: Asked,
        root: int | None,
    ) -> None:
        """Raise CollectiveMismatch, on every rank, if the lines of a call with a root are not those of one call.

        lines  by group, what is known;  found: what the others said;  root: its position
        """
        if root is not None:
            asked = [mine if rank == self.rank else found[rank].asked for rank in members]
            known = lines.setdefault(members, Lines())
            differing = known.differing([one.origin for one in asked], root)
            if differing is not None:
                self._differ(*((members[at], asked[at]) for at in differing))
            if members[root] == self.rank and (crossing := known.crossing()) is not None:
                self.warn(crossing_text(crossing, mine.entry(self.rank).origin))

    def _differ(self, one: tuple[int, Asked], other: tuple[int, Asked]) -> NoReturn:
        text = difference(*(asked.entry(rank) for rank, asked in (one, other)))
        self.raise_fault("CollectiveMismatch", text, ranks=sorted((one[0], other[0])))

    def complete(self, requests: list, members: Sequence[int], size_bytes: int) -> None:
        """Wait until MPI has moved the data of `requests`; `members` are those who take part."""
        self.unfinished += requests
        peers, extra_s = [m for m in members if m != self.rank], size_bytes / SLOWEST_BYTES_PER_S
        done = functools.partial(self.mpi.Request.Testall, requests)
        self.until(done, lambda: peers, moving=lambda: True, extra_s=lambda: extra_s)
        self.unfinished = []

    def until(
        self,
        done: Callable[[], bool],
        missing: Callable[[], Sequence[int]],
        *,
        lost: Callable[[int], bool] = lambda rank: False,
        moving: Callable[[], bool] = lambda: False,
        extra_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Wait until done(), asked after each look at the messages; started collectives move on meanwhile.
        `missing`: ranks waited for; `lost`: whether one that returned will not bring it about; `moving`: whether all
        have come and data is awaited; `extra_s`: added to the limit. Raises what stopped the run, CollectiveTimeout,
        DeadlockError, CollectiveMismatch (waiting for a rank that has returned).
        """
        for _ in range(LOOKS):
            self.attend()
            if done():
                return
            self.check()
            yield_core()
        clock, start = time.monotonic, time.monotonic()
        told: tuple[bool, tuple[int, ...]] | None = None
        cycle: tuple[tuple, float] | None = None
        try:
            while True:
                self.attend()
                if done():
                    return
                self.check()
                now = clock()
                if self.paused():
                    start = now
                waited = now - start
                self.check_wait(waited, missing(), lost, extra_s())
                if waited > self.warn_after_s:
                    present = moving(), tuple(missing())
                    if told != present:  # what was said first may not be true any more
                        self._announce(*present, warn=told is None)
                        told = present
                    cycle = self._watch_cycle(cycle, now)
                if waited < SPIN_S:
                    yield_core()
                else:
                    time.sleep(min(waited / 8, MAX_SLEEP_S if waited < LONG_WAIT_S else MAX_LONG_SLEEP_S))
        finally:
            if told is not None:
                self.waiting.pop(self.rank, None)
                self._tell(WAITS, self.others, {"ranks": []})

    def check_wait(self, waited_s: float, missing: Sequence[int], lost: Callable[[int], bool], extra_s: float) -> None:
        """Raise CollectiveMismatch or CollectiveTimeout when what is waited for will not come. See `until`."""
        if gone := [r for r in missing if r in self.left and lost(r)]:
            self._left_early(gone[0])
        if waited_s > self.timeout_s + extra_s:
            self._timeout(missing)

    def leave(self, sent_to: Sequence[int]) -> None:
        """Tell every rank that this one has returned.  sent_to: messages sent to each rank in this run."""
        entry = self.entry()
        for rank in self.others:
            self._tell(LEFT, (rank,), {"last": "" if entry is None else str(entry)}, number=sent_to[rank])

    def tell_through(self) -> None:
        """Tell every rank that nothing keeps this one from finishing MPI."""
        self._tell(THROUGH, self.others, {})

    def until_settled(self, done: Callable[[], bool]) -> None:
        """Wait without a limit, after this rank has returned. Raises what stops one that still computes."""
        start = time.monotonic()
        while True:
            self.attend()
            if done():
                return
            self.check()
            waited = time.monotonic() - start
            if waited < SPIN_S:
                yield_core()
            else:
                time.sleep(min(waited / 8, MAX_LONG_SLEEP_S))

    # faults

    def check(self) -> None:
        """Raise the error of the fault that stopped the run, if there is one."""
        if self.interrupted:
            raise RunInterrupted("the run was interrupted")
        if self.fault is not None:
            raise self.fault_error()

    def fault_error(self) -> BaseException:
        """The error to raise here for the fault that stopped the run, with what this rank was doing."""
        author, note = self.fault
        text, entry = note["text"], self.entry()
        if author != self.rank and entry is not None:
            text = f"{text} Rank {self.rank} was stopped {'in' if entry.end_s is None else 'after'} {entry}."
        error = FAULT_ERRORS.get(note["kind"], ParallelLabError)(text)
        error.secondary = author != self.rank  # told as a consequence, not as the cause
        error.ranks = note.get("ranks", [])
        return error

    def write_fault(self, kind: str, text: str, **attributes: object) -> None:
        """Stop every rank. The first fault of a run is kept."""
        if self.fault is not None:
            return
        note = {"kind": kind, "text": text[:4000], **attributes}
        self.fault = (self.rank, note)
        with contextlib.suppress(self.mpi.Exception):  # MPI itself may be what failed
            self._tell(FAULT, self.others, note)

    def raise_fault(self, kind: str, text: str, **attributes: object) -> NoReturn:
        """Stop every rank, and raise the fault here."""
        self.write_fault(kind, text, **attributes)
        raise self.fault_error()

    def _left_early(self, peer: int) -> None:
        last = f"its last call was {self.left[peer][1]}" if self.left[peer][1] else "it made no call"
        what = f"rank {peer} has returned while rank {self.rank} waits for it in {self.entry()}; {last}"
        self.raise_fault("CollectiveMismatch", message(what, allowed=SAME_CALLS), ranks=sorted((self.rank, peer)))

    # long waits

    def _announce(self, moving: bool, missing: Sequence[int], *, warn: bool) -> None:
        """Tell all ranks for whom this rank waits, and the user too."""
        self._stamp += 1
        text = f"{self.entry()}"
        self.waiting[self.rank] = _Waiting(self._stamp, tuple(missing), text, moving)
        self._tell(WAITS, self.others, {"stamp": self._stamp, "ranks": list(missing), "text": text, "moving": moving})
        if warn:
            self.warn(f"rank {self.rank} has waited {self.warn_after_s:g} s for {ranks_text(missing)} in {text}")

    def _culprits(self, missing: Sequence[int]) -> list[int]:
        """The ranks at the ends of the chains of waiting that begin with `missing`."""
        seen: set[int] = set()
        todo, ends = list(missing), []
        while todo:
            rank = todo.pop()
            if rank in seen:
                continue
            seen.add(rank)
            if rank in self.waiting:
                todo += self.waiting[rank].ranks
            else:
                ends.append(rank)
        return sorted(ends)

    def _watch_cycle(self, before: tuple[tuple, float] | None, now: float) -> tuple[tuple, float] | None:
        """(the circle of waiting ranks this one is in, since when) or None; one that lasts is a DeadlockError."""
        circle = self._circle(self.rank)
        if circle is None:
            return None
        key = tuple((r, self.waiting[r].stamp) for r in circle)
        if before is None or before[0] != key:
            return key, now
        if now - before[1] >= CYCLE_S:
            pairs = zip(circle, [*circle[1:], circle[0]], strict=True)
            texts = "; ".join(f"rank {r} waits for rank {n} in {self.waiting[r].text}" for r, n in pairs)
            text = message(f"ranks wait for each other: {texts}", allowed="One of them must go first")
            self.raise_fault("DeadlockError", text, ranks=sorted(circle))
        return before

    def _circle(self, start: int) -> list[int] | None:
        """A chain of waiting ranks from `start` back to it, beginning with its smallest rank; or None."""
        trails = deque([[start]])
        seen: set[int] = set()
        while trails:
            trail = trails.popleft()
            said = self.waiting.get(trail[-1])
            for rank in said.ranks if said is not None and not said.moving else ():
                if rank == start:
                    at = trail.index(min(trail))
                    return trail[at:] + trail[:at]
                if rank not in seen:
                    seen.add(rank)
                    trails.append([*trail, rank])
        return None

    def _timeout(self, missing: Sequence[int]) -> None:
        culprits = self._culprits(missing) or sorted(missing)
        what = f"{ranks_text(culprits)} did not come within {self.timeout_s:g} s"
        what += f"; rank {self.rank} waits in {self.entry()}"
        others = sorted((r, w) for r, w in self.waiting.items() if r != self.rank)
        chain = [f"rank {r} waits for {list(w.ranks)} in {w.text}" for r, w in others]
        hint = "A rank that computes for longer needs a larger timeout_s"
        self.raise_fault("CollectiveTimeout", message(what, allowed="; ".join(chain)[:1000], hint=hint), ranks=culprits)
