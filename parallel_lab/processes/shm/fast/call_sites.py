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
from types import CodeType, FrameType
from typing import Any

import numpy as np
from numpy import ndarray

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

# up to here the last rank to come adds everything: n times the reading, one barrier instead of two
SMALL_BYTES = 64 * 1024
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


@dataclass(slots=True, eq=False)
class CallSite:
    """A place in the program that has called.  code: kept, so that its id stays its own; key: what it is known by;
    next: the place that called after it the last time; the rest is of its call
    """

    code: CodeType | None = None
    key: tuple = ()
    check: Check | None = None
    slot: int = 0
    group: Group | None = None
    prepared: Prepared | None = None
    next: CallSite | None = None


class FastCommunicator(FastMessages, Communicator):
    """A communicator with the shortest ways; each named method looks up its place before anything else."""

    def _make_collectives(self) -> tuple[Collectives, Collectives]:
        peers = self._channels.peers
        return FastCollectives(self, peers, started=False), FastCollectives(self, peers, started=True)

    def _begin_run(self) -> None:
        self._forget_sites()
        super()._begin_run()

    def _forget_calls(self) -> None:
        super()._forget_calls()
        self._forget_sites()

    def _forget_sites(self) -> None:
        self._sites: dict[tuple, CallSite] = {}
        self._site = CallSite()  # that of the last call
        self._site.next = self._site
        self._last_barrier: tuple = (None, 0, None, None)  # code, instruction, group as given, CallSite

    def barrier(self, group=None, *, tag: str = "") -> None:
        """Return when all members have called it."""
        frame = sys._getframe(1)
        code, at, asked, site = self._last_barrier
        if code is not frame.f_code or at != frame.f_lasti or asked is not group or tag or self.recording:
            site, _ = self._find(frame, None, None, ("barrier", group, tag))
            if site is None:
                return self._ask("barrier", group, tag)
            self._last_barrier = frame.f_code, frame.f_lasti, group, site
        # `_repeat` without what a barrier does not need: calling that takes 1.08 times as long
        loop, words, members, check = self._loop, self._words, site.group, site.check
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
        parity, phase = seq & 1, seq & 3
        words[members.mine[parity]] = check.words[phase]
        words[members.reached_by_me] = seq
        row, expected = members.row, members.expected = members.rows[parity], check.rows[phase]
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
        site, _ = self._find(sys._getframe(1), x, out, ("all_reduce", group, tag, reduce))
        if site is None:
            return self._ask("all_reduce", group, tag, value=x, reduce=reduce, out=out)
        return self._repeat(site, x, out)

    def all_gather(self, x, dim: int = 0, group=None, *, out=None, tag: str = "") -> np.ndarray:
        site, _ = self._find(sys._getframe(1), x, out, ("all_gather", group, tag, dim))
        if site is None:
            return self._ask("all_gather", group, tag, value=x, dim=dim, out=out)
        return self._repeat(site, x, out)

    def all_to_all(
        self, x, split_dim: int = 0, concat_dim: int = 0, group=None, *, out=None, tag: str = ""
    ) -> np.ndarray:
        site, _ = self._find(sys._getframe(1), x, out, ("all_to_all", group, tag, split_dim, concat_dim))
        if site is None:
            return self._ask("all_to_all", group, tag, value=x, split_dim=split_dim, concat_dim=concat_dim, out=out)
        return self._repeat(site, x, out)

    def broadcast(self, x=None, root: int = 0, group=None, *, out=None, tag: str = "") -> np.ndarray:
        site, _ = self._find(sys._getframe(1), x, out, ("broadcast", group, tag, root))
        if site is None:
            return self._ask("broadcast", group, tag, value=x, root=root, out=out)
        return self._repeat(site, x, out)

    def _find(self, frame: FrameType, value: Any, out: Any, call: tuple) -> tuple[CallSite | None, tuple | None]:
        """(the place, if it has made the same call before, else None; what it is known by, None: nothing).  call: kind,
        group, tag, and the rest in the order in which the method names it
        """
        given = result = None
        if call[1] is not None and type(call[1]) is not tuple:  # a group that may be another one when it is read again
            return None, None
        if value is not None:
            if type(value) is not ndarray or not value.flags.c_contiguous:
                return None, None
            given = value.dtype, value.shape
        if out is not None:
            if type(out) is not ndarray or not out.flags.carray:
                return None, None
            result = given if out is value else (out.dtype, out.shape)
        key, last = (id(frame.f_code), frame.f_lasti, given, result, *call), self._site
        site = last.next  # programs repeat: what followed the last time is likely to follow again
        try:
            if site.key != key:
                site = last.next = self._sites.get(key, site)
                if site.key != key:
                    return None, key
        except (TypeError, ValueError):  # a group of something other than ranks, or the like
            return None, None
        self._site = site
        return None if self.recording else site, None

    def _ask(self, kind: str, group: tuple[int, ...] | None, tag: str, *, value=None, out=None, **rest):
        frame = sys._getframe(2)
        site, key = self._find(frame, value, out, (kind, group, tag, *rest.values()))
        if site is not None:
            return self._repeat(site, value, out)
        operand = "" if tag or type(value) is ndarray else value
        origin = tag or caller(2)  # a tag replaces the source line, so that two lines can be declared to meet
        fields = self._given(kind, {"value": value, "out": out, **rest})
        request = self._request(kind, self._members(kind, group, origin), operand, origin, fields)
        reply = self._answer(request, bool(tag))
        # the line of an operator of this package stands for many of the learner's
        if key is not None and (tag or origin == f"{short_file(frame.f_code.co_filename)}:{frame.f_lineno}"):
            self._remember(key, frame.f_code, self._call(request, bool(tag)))
        return reply

    def _remember(self, key: tuple, code: CodeType, known: KnownCall) -> None:
        """Let the place do without a Request from now on: its call was prepared, or is a barrier without a tag."""
        is_barrier = key[4] == "barrier" and not known.check.told
        if not known.group.joined or (known.prepared is None and not is_barrier):
            return
        if len(self._sites) >= KEPT_CALLS:
            self._forget_sites()
        site = self._sites[key] = CallSite(code, key, known.check, known.slot, known.group, known.prepared)
        site.next = self._site.next = self._site = site

    def _repeat(self, site: CallSite, value: np.ndarray | None, out: np.ndarray | None) -> np.ndarray | None:
        """What `_answer` does, for a call that is known: `Short.program`, `Group.tell`, `come`, `compare`, `finish` and
        the first look of `WaitLoop.wait` in one: each call more is seen eight times.
        """
        loop, words, group, prepared, check = self._loop, self._words, site.group, site.prepared, site.check
        if get_ident() != loop.thread:
            loop.check_caller()
        if words[ABORT]:
            raise loop.fault_error()
        index, number, start = self._index, group.number, perf_counter()
        self._index, group.number = index + 1, number + 1
        record = index % FLIGHT_RECORDS
        NOTE(self._bytes, self._records_at[record], index, number, start, 0.0, site.slot)
        if NEEDS_FENCE:
            fence()
        words[self._requests_word] = index + 1
        if loop.progress is not None:
            self._move_on()
            start = perf_counter()  # what this rank does itself is not lost to others
        if self._collectives.last is not group:
            self._drive(self._collectives.switch_to(group))
            start = perf_counter()
        if group.summed_seq == group.seq:
            group.take_other_buffer(prepared.is_sum)
        if not prepared.small:
            reply = self._drive(prepared.program(group, value, out, check))
            group.finish()
            self._ends[self._ends_at[record]] = perf_counter()
            return reply
        seq, told, waits = group.seq + 1, check.told, prepared.waits
        parity, phase, turn = seq & 1, seq & 3, (seq + group.shift) & 1
        if prepared.gives:
            prepared.give(value, turn)
        if told and group.has_told[parity] is not check:
            group.tell(check)
        if NEEDS_FENCE:
            fence()
        group.seq = seq
        words[group.mine[parity]] = check.words[phase]
        words[group.reached_by_me] = seq
        row, expected = group.row, group.expected = group.rows[parity], check.rows[phase]
        come, end = row == expected, 0.0
        if not come:
            if start >= loop.calm_until:
                yield_core()
                come, end = row == expected if waits is None else waits.test(), perf_counter()
                if end - start > STOLEN_S:
                    loop.lost_time(end, end - start)
            if not come:
                loop.wait(waits or group.met, end or start)
                end = 0.0
        elif waits is not None:
            prepared.last(group)
        elif words[group.asleep[parity]] >= seq:
            loop.ring(group.bell())
        if told and check.agreed != group.compared[parity]:
            group.compare(check)
        reply = prepared.take(group, value, out, turn)
        if NEEDS_FENCE:
            fence()
        words[group.done_by_me] = group.data_seq = seq
        self._ends[self._ends_at[record]] = end or perf_counter()  # copying small values takes next to nothing
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
