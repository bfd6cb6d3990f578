"""Calls that a place in the program has made before: neither a Request is made for them nor anything looked up in one.

The first call of a place goes the whole way (`Communicator._answer`), and what was found out there is kept for the place: its code, and the
instruction in it. Eight ranks on two cores push each other's code and data out of the caches, so that whatever is made, called or touched here is
seen in the time of a small collective.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from types import CodeType, FrameType

import numpy as np

from ...origin import short_file
from ..calls import caller
from ..communicator import Request
from .arena import ABORT
from .barrier import STOLEN_S, Meeting, yield_core
from .block import NEEDS_FENCE, fence
from .checked_calls import CheckedCalls
from .collectives import Collectives, Prepared, Program
from .flight import FLIGHT_HEAD, FLIGHT_RECORDS, KEPT_CALLS
from .groups import Check, Group
from .one_meeting import Small
from .one_step import OneStep

__all__ = ["NOTHING", "Plan", "RepeatedCalls"]

NOTHING = (0, 0)
ONE_STEP = ("all_gather", "reduce_scatter", "all_to_all", "broadcast")
DETAILS = ("reduce", "dim", "split_dim", "concat_dim", "root", "shape", "dtype")  # of a Request
_NOTE = FLIGHT_HEAD.pack_into


class Plan:
    """What is known of one call of a rank: made the first time it is asked for.

    loose   digests compared only with members that give them too
    slot    of its text in the flight recorder
    prepared   views and the like for this one call, None where nothing can be prepared
    """

    __slots__ = ("check", "digest", "group", "loose", "members", "prepared", "single", "slot", "started", "started_prepared")

    def __init__(self, request: Request, digest: int, loose: tuple[int, int] | None, slot: int) -> None:
        self.members, self.digest, self.loose, self.slot = request.group, digest, loose or NOTHING, slot
        self.single = len(request.group) == 1
        self.check = Check(digest, len(request.group))
        self.group: Group | None = None
        self.started: Group | None = None
        self.prepared: Prepared | None = None
        self.started_prepared: Prepared | None = None


class Site:
    """A place in the program that has called, with all that its next call touches side by side.

    code, at, asked   its code, the instruction there, and the group it gave
    """

    __slots__ = (
        *("asked", "at", "bytes", "check_rows", "check_words", "code", "ends", "ends_at", "group", "meeting", "mine", "reached_by_me"),
        *("records_at", "requests_word", "rows", "slot", "words"),
    )

    def __init__(self, comm: RepeatedCalls, plan: Plan, at: int, asked: tuple[int, ...] | None, code: CodeType) -> None:
        self.code, self.at, self.asked, self.slot = code, at, asked, plan.slot
        self.words, self.bytes, self.meeting = comm._words, comm._bytes, comm._meeting
        self.requests_word, self.records_at, self.ends, self.ends_at = comm._requests_word, comm._records_at, comm._ends, comm._ends_at
        self.check_words, self.check_rows = plan.check.words, plan.check.rows
        group = self.group = plan.group
        self.mine, self.reached_by_me, self.rows = group.mine, group.reached_by_me, group.rows


class BarrierSite(Site):
    """That of a barrier without a tag."""

    __slots__ = ("asleep",)

    def __init__(self, comm: RepeatedCalls, plan: Plan, key: tuple, code: CodeType) -> None:
        _, at, asked = key
        super().__init__(comm, plan, at, asked, code)
        self.asleep = plan.group.asleep


class SumSite(Site):
    """That of an all_reduce of a small value.

    dtype, shape, reduce   of its value;  tag: that it gave
    """

    __slots__ = ("add", "done_by_me", "dtype", "reduce", "results", "shape", "sums", "tag", "values", "waits")

    def __init__(self, comm: RepeatedCalls, plan: Plan, key: tuple, code: CodeType) -> None:
        _, at, self.dtype, self.shape, self.reduce, asked, self.tag, _ = key
        super().__init__(comm, plan, at, asked, code)
        group, small = plan.group, plan.prepared
        self.done_by_me, self.results = group.done_by_me, group.results
        self.values, self.sums, self.waits, self.add = small.mine, small.sums, small.waits, small.add


class RepeatedCalls(CheckedCalls):
    """A communicator that knows the places in the program that have called it."""

    recording: bool
    _words: memoryview
    _bytes: memoryview
    _meeting: Meeting
    _collectives: Collectives
    _requests_word: int
    _records_at: list[int]  # bytes of the flight records
    _ends: memoryview
    _ends_at: list[int]  # of their ends in `_ends`
    _index: int  # of the next request
    _last_plan: Plan | None  # of the call that has just been answered, if it can be repeated
    _last_origin: str
    _answer: Callable[[Request, bool], np.ndarray | None]  # the whole way
    _drive: Callable[[Program], np.ndarray | None]
    _move_on: Callable[[], bool]

    def _begin_run(self) -> None:
        self._sites: dict[tuple, BarrierSite | SumSite | tuple] = {}  # by place in the program
        self._codes: list[CodeType] = []
        self._last_barrier: BarrierSite | None = None
        self._last_sum: SumSite | None = None
        self._last_plan, self._last_origin = None, ""

    def all_reduce(self, x, reduce: str = "sum", group=None, *, out=None, tag: str = "") -> np.ndarray:
        """x combined over the group in group order.  x: any shape, equal on all members -> same shape, in `out` (which may be x) if given."""
        frame = sys._getframe(1)
        site, plain = self._last_sum, type(x) is np.ndarray and (out is None or (type(out) is np.ndarray and out.flags.carray))
        if (
            site is not None
            and frame.f_code is site.code
            and frame.f_lasti == site.at
            and plain
            and x.dtype is site.dtype
            and x.shape == site.shape
            and (out is None or (out.dtype is site.dtype and out.shape == site.shape))
            and reduce is site.reduce
            and group is site.asked
            and tag is site.tag
            and not self.recording
        ):
            return self._sum_again(site, x, out)
        key = None
        if plain and x.flags.c_contiguous and (group is None or type(group) is tuple):
            place = None if out is None else (out.dtype, out.shape)
            try:
                key = (id(frame.f_code), frame.f_lasti, x.dtype, x.shape, reduce, group, tag, place)
                known = self._sites.get(key)
            except TypeError:  # a group of what is no rank, or the like
                key = known = None
            if known is not None and not self.recording:
                if type(known) is SumSite:
                    self._last_sum = known
                    return self._sum_again(known, x, out)
                return self._again(known, x, out)
        reply = self._ask("all_reduce", group, tag, value=x, reduce=reduce, out=out)
        if key is not None:
            self._remember(key, frame, tag)
        return reply

    def _ask(self, kind: str, group: tuple[int, ...] | None, tag: str, **fields) -> np.ndarray | None:
        value, out, key = fields.get("value"), fields.get("out"), None
        if (
            kind in ONE_STEP
            and (value is None or (type(value) is np.ndarray and value.flags.c_contiguous))
            and (out is None or (type(out) is np.ndarray and out.flags.carray))
            and (group is None or type(group) is tuple)
        ):
            frame = sys._getframe(2)
            signature = None if value is None else (value.dtype, value.shape)
            place = None if out is None else (out.dtype, out.shape)
            rest = [fields.get(name) for name in DETAILS]
            try:
                key = (kind, id(frame.f_code), frame.f_lasti, group, tag, signature, place, *rest)
                known = self._sites.get(key)
            except TypeError:  # a group of what is no rank, or the like
                key = known = None
            if known is not None and not self.recording:
                return self._again(known, value, out)
        if value is not None:
            fields["value"] = np.asarray(value, order="C")
        origin = tag or caller(2)  # a tag replaces the source line, so that two lines can be declared to meet
        reply = self._answer(Request(kind, self._members(kind, group, origin), origin=origin, **fields), bool(tag))
        if key is not None:
            self._remember(key, frame, tag)
        return reply

    def broadcast(self, x=None, root: int = 0, group=None, *, out=None, tag: str = "") -> np.ndarray:
        """The root's value on every member. Off the root x may be None; if it is given, its shape and dtype must be the root's."""
        if self.rank == root or x is None:
            return self._ask("broadcast", group, tag, value=x, root=root, out=out)
        x = np.asarray(x)
        return self._ask("broadcast", group, tag, root=root, shape=x.shape, dtype=x.dtype, out=out)

    def barrier(self, group=None, *, tag: str = "") -> None:
        """Return when all members have called it."""
        frame = sys._getframe(1)
        site = self._last_barrier
        if site is None or frame.f_code is not site.code or frame.f_lasti != site.at or group is not site.asked or tag or self.recording:
            site = None if tag or self.recording else self._barrier_site(frame, group)
            if site is None:
                self._ask("barrier", group, tag)
                if group is None or type(group) is tuple:
                    self._remember((id(frame.f_code), frame.f_lasti, group), frame, tag)
                return
        # `_answer`, `Group.come` and the first look of `Meeting.wait` in one: apart they take a quarter more
        words, meeting, members = site.words, site.meeting, site.group
        if words[ABORT]:
            raise meeting.fault_error()
        index, number = self._index, members.number
        self._index, members.number = index + 1, number + 1
        record = index % FLIGHT_RECORDS
        start_s = perf_counter()
        _NOTE(site.bytes, site.records_at[record], index, number, start_s, 0.0, site.slot)
        if NEEDS_FENCE:
            fence()
        words[site.requests_word] = index + 1
        if meeting.progress is not None:
            self._move_on()
            start_s = perf_counter()  # what this rank does itself is not lost to others
        if NEEDS_FENCE:
            fence()
        seq = members.seq = members.seq + 1
        parity, phase = seq & 1, seq & 3
        words[site.mine[parity]] = site.check_words[phase]
        words[site.reached_by_me] = seq
        row = members.row = site.rows[parity]
        expected = members.expected = site.check_rows[phase]
        if row == expected:
            if words[site.asleep[parity]] >= seq:
                meeting.ring((members.bells[parity], site.asleep[parity], seq))
        else:
            if start_s >= meeting.calm_until:
                yield_core()
                come, now = row == expected, perf_counter()
                if now - start_s > STOLEN_S:
                    meeting.lost_time(now, now - start_s)
                if come:
                    site.ends[site.ends_at[record]] = now
                    return
                start_s = now
            meeting.wait(members.met, start_s)
        site.ends[site.ends_at[record]] = perf_counter()

    def _barrier_site(self, frame: FrameType, group: tuple[int, ...] | None) -> BarrierSite | None:
        """What is known of a place that calls a barrier; None where it has to go the whole way."""
        try:
            site = self._sites.get((id(frame.f_code), frame.f_lasti, group))
        except TypeError:  # a group given as a list
            return None
        if site is not None:
            self._last_barrier = site
        return site

    def _remember(self, key: tuple, frame: FrameType, tag: str) -> None:
        """Let the place that has just called do without a Request from now on. Its code is kept, so that the code's id stays its own."""
        plan, code = self._last_plan, frame.f_code
        if plan is None or (plan.loose != NOTHING and type(plan.prepared) is not OneStep) or not plan.group.joined:
            return
        if not tag and self._last_origin != f"{short_file(code.co_filename)}:{frame.f_lineno}":
            return  # an operator of this package: one line of it stands for many of the learner's
        if key in self._sites:  # it went the whole way because it was recorded
            return
        if len(self._sites) >= KEPT_CALLS:
            self._forget_sites()
        if plan.prepared is None:
            self._sites[key] = BarrierSite(self, plan, key, code)
        elif type(plan.prepared) is Small and plan.prepared.total[0].dtype.isnative:  # replies are native, and so has `out` to be
            self._sites[key] = SumSite(self, plan, key, code)
        else:
            self._sites[key] = (plan.check, plan.slot, plan.group, plan.prepared, plan.loose)
            self._codes.append(code)

    def _again(self, known: tuple, value: np.ndarray | None, out: np.ndarray | None) -> np.ndarray:
        """What `_answer` does, for a call that is prepared, with members that are known."""
        words, meeting = self._words, self._meeting
        if words[ABORT]:
            raise meeting.fault_error()
        check, slot, group, prepared, loose = known
        index = self._index
        self._index = index + 1
        record = index % FLIGHT_RECORDS
        number = group.number
        group.number = number + 1
        start_s = perf_counter()
        _NOTE(self._bytes, self._records_at[record], index, number, start_s, 0.0, slot)
        if NEEDS_FENCE:
            fence()
        words[self._requests_word] = index + 1
        if meeting.progress is not None:
            self._move_on()
        if self._collectives.last is not group:
            self._drive(self._collectives.switch_to(group))
        if group.summed_seq == group.seq and type(prepared) is OneStep:
            group.take_other_buffer()
        out = self._drive(prepared.program(group, value, out, check, loose))
        group.finish()
        self._ends[self._ends_at[record]] = perf_counter()
        return out

    def _sum_again(self, site: SumSite, value: np.ndarray, out: np.ndarray | None) -> np.ndarray:
        """`_answer`, `Small.program` and the first look of `Meeting.wait` in one, as for a barrier."""
        words, meeting, members = site.words, site.meeting, site.group
        if words[ABORT]:
            raise meeting.fault_error()
        index, number = self._index, members.number
        self._index, members.number = index + 1, number + 1
        record = index % FLIGHT_RECORDS
        start_s = perf_counter()
        _NOTE(site.bytes, site.records_at[record], index, number, start_s, 0.0, site.slot)
        if NEEDS_FENCE:
            fence()
        words[site.requests_word] = index + 1
        if meeting.progress is not None:
            self._move_on()
            start_s = perf_counter()
        if self._collectives.last is not members:
            self._drive(self._collectives.switch_to(members))
            start_s = perf_counter()
        seq = members.seq + 1
        buffer = (seq + members.shift) & 1
        site.values[buffer][...] = value
        if NEEDS_FENCE:
            fence()
        members.seq, parity, phase = seq, seq & 1, seq & 3
        words[site.mine[parity]] = site.check_words[phase]
        words[site.reached_by_me] = seq
        row = members.row = site.rows[parity]
        expected = members.expected = site.check_rows[phase]
        result = site.results[parity]
        if row == expected:
            site.add(members)
        else:
            site.waits.looks = 0
            if start_s >= meeting.calm_until:
                yield_core()
                come, now = words[result] >> 16 >= seq, perf_counter()
                if now - start_s > STOLEN_S:
                    meeting.lost_time(now, now - start_s)
                if not come:
                    meeting.wait(site.waits, now)
            else:
                meeting.wait(site.waits, start_s)
        found = site.sums[buffer][words[result] & 0xFFFF]
        if out is None:
            out = found.copy()
        else:
            out[...] = found
        if NEEDS_FENCE:
            fence()
        words[site.done_by_me] = members.data_seq = seq
        site.ends[site.ends_at[record]] = perf_counter()
        return out

    def _forget_calls(self) -> None:
        super()._forget_calls()
        self._forget_sites()

    def _forget_sites(self) -> None:
        self._sites.clear()
        self._codes.clear()
        self._last_barrier = self._last_sum = None
