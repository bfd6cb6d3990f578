"""Places in the program that call again: neither a Request is made for them nor anything looked up in one.

The first call of a place goes the whole way (`Communicator._answer`), and what was found out there is kept for the next
one of the same place that gives a value of the same dtype and shape, and the same arguments.

Measured, 8 ranks on 2 cores, in turns: without this a barrier takes 4 times as long, an all_reduce of 4 KiB 3 times, of
64 KiB 2 times. A place is its code and the instruction there: asking a frame for its line takes 0.5 us, which all ranks
of a core pay one after the other, a fifth of a barrier.
"""

from __future__ import annotations

import dataclasses
import sys
from _thread import get_ident
from dataclasses import dataclass
from time import perf_counter
from types import CodeType

import numpy as np

from ....base.dtypes import plain_array
from ....base.origin import short_file
from ....run.calls import caller
from ....run.communicator import Request
from ...flight import FLIGHT_RECORDS, KEPT_CALLS
from ..arena import ABORT
from ..barrier import STOLEN_S, yield_core
from ..collectives import STEP_BYTES, Collectives, Prepared
from ..comm import NOTE, Communicator, KnownCall
from ..groups import Check, Group
from ..shared_memory import NEEDS_FENCE, fence
from .in_place import InPlace
from .large_sum import LargeSum
from .messages import FastMessages
from .peer_memory import PeerMemory
from .single_step import OneStep, fits_one_step
from .small_sum import SmallSum

REPEATABLE = ("barrier", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
SMALL_BYTES = (
    64 * 1024
)  # up to here the last rank to come adds everything: n times the reading, one barrier instead of two
SHARED_FROM_BYTES = 4096  # of a started value; looking where a value lies takes a microsecond


class FastCollectives(Collectives):
    """The collectives of one rank, each in the shortest way there is for it."""

    def __init__(self, comm: Communicator, peers: PeerMemory, *, started: bool) -> None:
        super().__init__(comm._arena, comm._loop, started=started)
        self.arrays, self.peers = comm._arrays, peers
        self.small_bytes = min(SMALL_BYTES, self.capacity // 2)

    def prepared(self, group: Group, request: Request) -> Prepared | None:
        """The shortest way; None: the plain one."""
        if fits_one_step(request, self.capacity, STEP_BYTES):
            return OneStep(group, request, self.arrays, self.starts)
        value = request.value
        if request.kind in ("all_reduce", "reduce"):
            half = self.capacity // 2
            if value.nbytes <= self.small_bytes:
                return SmallSum(group, request, self.starts, half)
            return LargeSum(group, request, self.arrays, self._peers(group, request), self.starts, half)
        if request.kind == "broadcast" and self.rank == request.root:
            return InPlace(self, self.arrays, None, request)
        if request.kind in ("all_gather", "reduce_scatter", "all_to_all") and value.size:
            return InPlace(self, self.arrays, self._peers(group, request), request)
        return None

    def _peers(self, group: Group, request: Request) -> PeerMemory | None:
        return self.peers if self.peers.wanted(group, request) else None


@dataclass(slots=True)
class CallSite:
    """A place in the program that has called.  code: kept, so that its id stays its own; the rest is of its call"""

    code: CodeType
    check: Check
    slot: int
    group: Group
    prepared: Prepared | None


class FastCommunicator(FastMessages, Communicator):
    """A communicator with the shortest ways; `barrier`, `all_reduce` look up their place: `_ask` takes 1 us longer."""

    def _make_collectives(self) -> tuple[Collectives, Collectives]:
        peers = self._channels.peers
        return FastCollectives(self, peers, started=False), FastCollectives(self, peers, started=True)

    def _begin_run(self) -> None:
        self._sites: dict[tuple, CallSite] = {}
        self._last_barrier: tuple = (None, 0, None, None)  # code, instruction, group as given, CallSite
        super()._begin_run()

    def _forget_calls(self) -> None:
        super()._forget_calls()
        self._sites.clear()
        self._last_barrier = (None, 0, None, None)

    def barrier(self, group=None, *, tag: str = "") -> None:
        """Return when all members have called it."""
        frame = sys._getframe(1)
        code, at, asked, site = self._last_barrier
        if code is not frame.f_code or at != frame.f_lasti or asked is not group or tag or self.recording:
            try:
                site = None if tag or self.recording else self._sites.get((id(frame.f_code), frame.f_lasti, group))
            except TypeError:  # a group given as a list
                site = None
            if site is None:
                return self._ask("barrier", group, tag)
            self._last_barrier = frame.f_code, frame.f_lasti, group, site
        # `_repeat`, `Group.come` and the first look of `WaitLoop.wait` in one: each call more is seen eight times
        words, loop, members = self._words, self._loop, site.group
        if get_ident() != loop.thread:
            loop.check_caller()
        if words[ABORT]:
            raise loop.fault_error()
        index, number, start = self._index, members.number, perf_counter()
        self._index, members.number = index + 1, number + 1
        record = index % FLIGHT_RECORDS
        NOTE(self._bytes, self._records_at[record], index, number, start, 0.0, site.slot)
        if NEEDS_FENCE:
            fence()
        words[self._requests_word] = index + 1
        if loop.progress is not None:
            self._move_on()
            start = perf_counter()  # what this rank does itself is not lost to others
        seq = members.seq = members.seq + 1
        parity, phase, check = seq & 1, seq & 3, site.check
        words[members.mine[parity]] = check.words[phase]
        words[members.reached_by_me] = seq
        row, expected = members.rows[parity], check.rows[phase]
        members.row, members.expected = row, expected
        if row == expected:
            if words[members.asleep[parity]] >= seq:
                loop.ring(members.bell())
        else:
            if start >= loop.calm_until:
                yield_core()
                come, now = row == expected, perf_counter()
                if now - start > STOLEN_S:
                    loop.lost_time(now, now - start)
                if come:
                    self._ends[self._ends_at[record]] = now
                    return
                start = now
            loop.wait(members.met, start)
        self._ends[self._ends_at[record]] = perf_counter()

    def all_reduce(self, x, reduce: str = "sum", group=None, *, out=None, tag: str = "") -> np.ndarray:
        """x combined in group order.  x: any shape, equal on all members -> same shape, in `out` (or x) if given.

        tag   a name that is compared instead of the source line: in a loop over tensors, tag=name shows a rank that
              takes them in another order, which nothing else can. A Parameter brings its own name
        """
        if type(x) is np.ndarray and x.flags.c_contiguous and (out is None or (type(out) is np.ndarray)):
            frame = sys._getframe(1)
            place = None if out is None else (out.dtype, out.shape, out.flags.carray)
            try:
                site = self._sites.get((id(frame.f_code), frame.f_lasti, x.dtype, x.shape, reduce, group, place, tag))
            except TypeError:  # a group given as a list
                site = None
            if site is not None and not self.recording:
                return self._repeat(site, x, out)
        return self._ask("all_reduce", group, tag, value=x, out=out, reduce=reduce)

    def _ask(self, kind: str, group: tuple[int, ...] | None, tag: str, *, value=None, out=None, **rest):
        frame, key, site = sys._getframe(2), None, None
        if (
            kind in REPEATABLE
            and (value is None or (type(value) is np.ndarray and value.flags.c_contiguous))
            and (out is None or (type(out) is np.ndarray and out.flags.carray))
            and (group is None or type(group) is tuple)
        ):
            key = (id(frame.f_code), frame.f_lasti, group)
            if kind == "all_reduce":
                place = None if out is None else (out.dtype, out.shape, True)
                key = (*key[:2], value.dtype, value.shape, rest["reduce"], group, place, tag)
            elif kind != "barrier" or tag:
                signature = None if value is None else (value.dtype, value.shape)
                place = None if out is None else (out.dtype, out.shape)
                key = (kind, *key, tag, signature, place, *rest.values())  # in the order in which the method names them
            try:
                site = self._sites.get(key)
            except TypeError:  # a group of something other than ranks, or the like
                key = None
            if site is not None and not self.recording:
                return self._repeat(site, value, out)
        operand = "" if tag or type(value) is np.ndarray else value
        if value is not None:
            value = plain_array(value, order="C", where=kind)
        origin = tag or caller(2)  # a tag replaces the source line, so that two lines can be declared to meet
        fields = {"value": value, "out": out, **rest}
        request = self._request(kind, self._members(kind, group, origin), operand, origin, fields)
        reply = self._answer(request, bool(tag))
        # the line of an operator of this package stands for many of the learner's
        own = tag or origin == f"{short_file(frame.f_code.co_filename)}:{frame.f_lineno}"
        if key is not None and site is None and own:
            self._remember(key, frame.f_code, self._call(request, bool(tag)))
        return reply

    def _remember(self, key: tuple, code: CodeType, known: KnownCall) -> None:
        """Let the place do without a Request from now on: its call was prepared, or is a barrier without a tag."""
        if not known.group.joined or (known.prepared is None and len(key) > 3):
            return
        if len(self._sites) >= KEPT_CALLS:
            self._sites.clear()
        self._sites[key] = CallSite(code, known.check, known.slot, known.group, known.prepared)

    def _repeat(self, site: CallSite, value: np.ndarray | None, out: np.ndarray | None) -> np.ndarray | None:
        """What `_answer` does, for a call that is known."""
        loop, group, prepared = self._loop, site.group, site.prepared
        if get_ident() != loop.thread:
            loop.check_caller()
        if self._words[ABORT]:
            raise loop.fault_error()
        number = group.number
        group.number = number + 1
        index = self._note_start(number, site.slot)
        if loop.progress is not None:
            self._move_on()
        if self._collectives.last is not group:
            self._drive(self._collectives.switch_to(group))
        if type(prepared) is SmallSum:  # a generator would take half as long as the rest
            waits = prepared.begin(group, value, site.check)
            if waits is not None and not waits.test():
                loop.wait(waits)
            reply = prepared.end(group, out)
        else:
            group.take_other_buffer(prepared.is_sum)
            reply = self._drive(prepared.program(group, value, out, site.check))
        group.finish()
        self._ends[self._ends_at[index % FLIGHT_RECORDS]] = perf_counter()
        return reply

    def _startable(self, request: Request) -> Request:
        """The request, its value in a shared array that others read while this rank works; a sum may be in it."""
        value, sums = request.value, request.kind in ("all_reduce", "reduce")
        if value is None or value.nbytes < SHARED_FROM_BYTES or (sums and value.nbytes <= SMALL_BYTES):
            return request
        arrays, copy = self._arrays, value
        if arrays.position(value) < 0:
            copy = arrays.empty(value.shape, value.dtype)
            copy[...] = value
        if not sums:
            return request if copy is value else dataclasses.replace(request, value=copy)
        out = request.out
        if copy is not value:
            out = copy  # nobody else knows of it
        elif out is not None and arrays.position(out) < 0:
            out = None  # the sum is made in a shared array, and copied
        return dataclasses.replace(request, value=copy, out=out)
