"""What a rank's function receives: the communicator of one worker.

    def step(comm, x):                       # runs on every rank
        total = comm.all_reduce(x)           # or comm.answer(Request("all_reduce", (0, 1, 2, 3), x))
        comm.report(float(total[0]))         # to the notebook, while running
        return total

    pool.run(step, np.ones(4))

`answer` is the contract of `run/communicator.py`; the named methods fill in a Request and the caller's source line. A barrier and an all_reduce of a
small value are remembered by the place in the program that calls them: the second time neither a Request is made nor anything looked up in it.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from time import perf_counter
from types import FrameType

import dill
import numpy as np

from ...errors import message
from ...origin import short_file
from ..calls import caller, check_startable
from ..communicator import Request, answer, delivered
from .arena import ABORT, CONTROL, REQUESTS, Arena
from .barrier import Meeting, Missing
from .block import NEEDS_FENCE, fence
from .channels import Channels
from .checked_calls import CheckedCalls
from .collectives import Collectives, Prepared, Program
from .far import Far
from .flight import FLIGHT_HEAD, FLIGHT_RECORDS, KEPT_CALLS
from .groups import Check, Group, Register
from .heap import Heap
from .one_meeting import Small
from .one_step import OneStep
from .started import Lane, Started, in_reach

__all__ = ["CONTROLS", "Communicator"]

CONTROLS = ("run", "pause", "stop")
PAUSE_LOOK_S = 2e-3  # how often a paused rank looks whether it may go on
NOTHING = (0, 0)
ONE_STEP = ("all_gather", "reduce_scatter", "all_to_all", "broadcast")
DETAILS = ("reduce", "dim", "split_dim", "concat_dim", "root", "shape", "dtype")  # of a Request
_NOTE = FLIGHT_HEAD.pack_into
_END_OFFSET = 24  # of end_s in FLIGHT_HEAD


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


class Communicator(CheckedCalls):
    """One rank's side of the pool. For one thread at a time, `report` excepted.

    rank, world_size
    state       a dict that lives as long as the worker: parameters and the like, kept between runs
    recording   when True, every request appends (index, kind, start_s, end_s, bytes sent, group, origin) to `records`; times are
                perf_counter(), bytes those of `communicator.payload_bytes` for what this rank gives; one that was started is appended when it
                is complete
    """

    def __init__(self, arena: Arena, rank: int, world_size: int, pipe) -> None:
        super().__init__(rank, world_size)
        self._arena, self._pipe, self._pipe_lock = arena, pipe, threading.Lock()
        self._words, self._bytes = arena.words, arena.bytes
        self._meeting = Meeting(arena, rank)
        self._meeting.behind = self._behind
        self._channels = Channels(arena, self._meeting)
        self._heap = Heap(arena, rank)
        far = Far(arena, self._meeting)
        self._collectives = Collectives(arena, self._meeting, self._heap, far)
        self._started_collectives = Collectives(arena, self._meeting, self._heap, far, started=True)
        self._lane = Lane(self._meeting, self._note_started_end)
        self._requests_word = arena.map.slot(rank) + REQUESTS
        self._records_at = [arena.flight_offset(rank, index) for index in range(FLIGHT_RECORDS)]
        first, last = self._records_at[0], self._records_at[-1] + FLIGHT_HEAD.size
        self._ends = arena.bytes[first:last].cast("d")
        self._ends_at = [(at - first + _END_OFFSET) // 8 for at in self._records_at]
        self._begin_run()

    def __repr__(self) -> str:
        return f"Communicator(rank={self.rank}, world_size={self.world_size})"

    # the contract

    def answer(self, request: Request) -> np.ndarray | None:
        """This rank's reply to `request`; blocks until the group has answered.

        Bit-identical to `communicator.answer`. The reply is C-contiguous, in memory of its own or in `out`; None for barrier, send, and off the root
        of reduce and gather. A send returns when the value is copied; a recv waits for it.

        Raises CollectiveMismatch, CollectiveTimeout, DeadlockError, RankDied, RankRaised on every member, never waits for ever.
        """
        return self._answer(request, bool(request.origin))

    def empty(self, shape: int | tuple[int, ...], dtype="float32") -> np.ndarray:
        """A new array, contents arbitrary, in memory that the other ranks can read too: a collective on it copies nothing in.

        An ordinary array where that memory is used up. Raises SharedMemoryTooSmall when the system has none left.
        """
        return self._heap.empty(shape, dtype)

    def all_reduce(self, x, reduce: str = "sum", group=None, *, out=None, tag: str = "") -> np.ndarray:
        """x combined over the group in group order.  x: any shape, equal on all members -> same shape, in `out` (which may be x) if given."""
        frame = sys._getframe(1)
        key = None
        if type(x) is np.ndarray and x.flags.c_contiguous and (out is None or out is x or (type(out) is np.ndarray and out.flags.c_contiguous)):
            place = None if out is None else (out.dtype, out.shape)
            try:
                key = (id(frame.f_code), frame.f_lasti, x.dtype, x.shape, reduce, group, tag, place)
                known = self._sites.get(key)
            except TypeError:  # a group given as a list
                key = known = None
            if known is not None and not self.recording:
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
            and (out is None or type(out) is np.ndarray)
        ):
            frame = sys._getframe(2)
            signature = None if value is None else (value.dtype, value.shape)
            place = None if out is None else (out.dtype, out.shape, out.flags.c_contiguous)
            rest = [fields.get(name) for name in DETAILS]
            try:
                key = (kind, id(frame.f_code), frame.f_lasti, group, tag, signature, place, *rest)
                known = self._sites.get(key)
            except TypeError:  # a group given as a list
                key = known = None
            if known is not None and not self.recording:
                return self._again(known, value, out)
        if value is not None:
            fields["value"] = np.asarray(value, order="C")
        members = self._world if group is None else tuple(group)
        # a tag replaces the source line, so that two lines can be declared to meet
        reply = self._answer(Request(kind, members, origin=tag or caller(2), **fields), bool(tag))
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
        try:
            key = (id(frame.f_code), frame.f_lasti, group, tag)
            known = self._sites.get(key)
        except TypeError:  # a group given as a list
            key = known = None
        if known is None or self.recording:
            self._ask("barrier", group, tag)
            if key is not None:
                self._remember(key, frame, tag)
            return None
        # from here on what `_answer` does, for a barrier that nobody has tagged; every call less is seen in the time of a barrier
        words, meeting = self._words, self._meeting
        if words[ABORT]:
            raise meeting.fault_error()
        check, slot, members, _, _ = known
        index = self._index
        self._index = index + 1
        record = index % FLIGHT_RECORDS
        number = members.number
        members.number = number + 1
        start_s = perf_counter()
        _NOTE(self._bytes, self._records_at[record], index, number, start_s, 0.0, slot)
        words[self._requests_word] = index + 1
        if meeting.progress is not None:
            self._move_on()
        if not members.come(check):
            meeting.wait(members.met, start_s)
        self._ends[self._ends_at[record]] = perf_counter()
        return None

    def _remember(self, key: tuple, frame: FrameType, tag: str) -> None:
        """Let the place that has just called do without a Request from now on. Its code is kept, so that the code's id stays its own."""
        plan, code = self._last_plan, frame.f_code
        if plan is None or (plan.loose != NOTHING and type(plan.prepared) is not OneStep) or not plan.group.joined:
            return
        if not tag and self._last_origin != f"{short_file(code.co_filename)}:{frame.f_lineno}":
            return  # an operator of this package: one line of it stands for many of the learner's
        if len(self._sites) >= KEPT_CALLS:
            self._forget_sites()
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
        words[self._requests_word] = index + 1
        if meeting.progress is not None:
            self._move_on()
        if self._collectives.last is not group:
            self._drive(self._collectives.switch_to(group))
            start_s = perf_counter()
        if type(prepared) is Small:
            parity = (group.seq + 1 + group.shift) & 1
            prepared.mine[parity][...] = value
            if group.come(check, False):
                prepared.add(group)
            else:
                prepared.waits.looks = 0
                meeting.wait(prepared.waits, start_s)
            found = prepared.sums[parity][words[group.results[group.seq & 1]] & 0xFFFF]
            if out is None:
                out = found.copy()
            else:
                out[...] = found
        else:
            if group.summed_seq == group.seq and type(prepared) is OneStep:
                group.take_other_buffer()
            out = self._drive(prepared.program(group, value, out, check, loose))
        group.finish()
        self._ends[self._ends_at[record]] = perf_counter()
        return out

    def _answer(self, request: Request, explicit: bool, *, quiet: bool = False) -> np.ndarray | None:
        value = request.value
        if not request.origin or (value is not None and not (isinstance(value, np.ndarray) and value.flags.c_contiguous)):
            value = None if value is None else np.asarray(value, order="C")
            request = dataclasses.replace(request, value=value, origin=request.origin or caller(2))
        if self._words[ABORT]:
            raise self._meeting.fault_error()
        plan = self._call(request, explicit)
        kind, group = request.kind, plan.group
        number = group.number if request.number is None else request.number
        group.number = number + 1
        start_s, index = perf_counter(), self._note_start(number, plan.slot)
        self._last_plan = None
        if self._meeting.progress is not None:
            self._move_on()
        if kind == "send":
            self._channels.send(value, plan.members[1])
            if self._channels.pending:
                self._meeting.progress = self._move_on
            reply = None
        elif kind == "recv":
            reply = delivered(self._received(request), request)
        elif plan.single and kind != "barrier":
            reply = answer([request])[0]
        else:  # also a rank that meets itself, which then costs what checking a call costs
            check = plan.check if request.number is None else Check(self._numbered(plan.digest, number), group.n)
            if plan.prepared is None:
                plan.prepared = self._collectives.prepared(group, request)
            reply = self._drive(self._collectives.program(group, request, check, plan.loose, plan.prepared))
            if plan.prepared is not None or kind == "barrier":
                self._last_plan, self._last_origin = plan, request.origin
        end_s = perf_counter()
        self._ends[self._ends_at[index % FLIGHT_RECORDS]] = end_s
        if self.recording and not quiet:
            self.records.append((index, kind, start_s, end_s, self._bytes_sent(request), plan.members, request.origin))
        return reply

    def _drive(self, program: Program) -> np.ndarray | None:
        """The reply of a collective, waiting wherever it has to."""
        wait = self._meeting.wait
        try:
            while True:
                condition = next(program)
                if not condition.test():
                    wait(condition)
        except StopIteration as end:
            return end.value

    # working while a message travels

    def _begin(self, request: Request, explicit: bool) -> Started:
        value = request.value
        if not request.origin or (value is not None and not (isinstance(value, np.ndarray) and value.flags.c_contiguous)):
            value = None if value is None else np.asarray(value, order="C")
            request = dataclasses.replace(request, value=value, origin=request.origin or caller(2))
        check_startable(request)
        self._meeting.check_abort()
        plan = self._call(request, explicit)
        group = plan.started
        if group is None:
            group = plan.started = self._group(plan.members, started=True)
        number = group.number if request.number is None else request.number
        group.number = number + 1
        index = self._note_start(number, plan.slot)
        call = (index + 1, number, plan.slot)
        if plan.single:
            started = Started(self._lane, request, call, None, lambda: _at_once(request))
        else:
            check = plan.check if request.number is None else Check(self._numbered(plan.digest, number), group.n)
            near = in_reach(request, self._heap)
            if plan.started_prepared is None:
                plan.started_prepared = self._started_collectives.prepared(group, request)
            total = plan.started_prepared

            def program() -> Program:
                return self._started_collectives.program(group, near, check, plan.loose, total)

            started = Started(self._lane, request, call, group, program)
        self._meeting.progress = self._move_on
        self._lane.add(started)
        self._move_on()
        return started

    def progress(self) -> None:
        """Do what can be done now, without waiting, for the collectives that were started. Raises what stopped the run."""
        if self._meeting.progress is not None:
            self._meeting.check_abort()
            self._move_on()

    def _move_on(self) -> bool:
        """Push messages that did not fit their channel, and go on with what was started; returns whether there is more to do."""
        more = bool(self._channels.pending) and self._channels.push()
        if self._lane.queue:
            more = self._lane.progress() or more
        if not more:
            self._meeting.progress = None
        return more

    def _behind(self) -> tuple[Missing | None, int] | None:
        queue = self._lane.queue
        return (self._lane.missing(), queue[0].call[0]) if queue else None

    def _note_started_end(self, started: Started) -> None:
        """Write when it was complete, if its record is still kept."""
        index, request = started.call[0] - 1, started.request
        if self._index - index <= FLIGHT_RECORDS:
            self._ends[self._ends_at[index % FLIGHT_RECORDS]] = started.end_s
        if self.recording:
            sent = self._bytes_sent(request)
            self.records.append((index, request.kind, started.start_s, started.end_s, sent, request.group, request.origin))

    # what is known of calls

    def _examined(self, request: Request, check: int, loose: tuple[int, int] | None, text: bytes) -> Plan:
        self._arena.write_text(self.rank, self._texts, text)
        plan = Plan(request, check, loose, self._texts)
        self._texts += 1
        plan.group = self._group(plan.members)
        return plan

    def _forget_calls(self) -> None:
        super()._forget_calls()
        self._forget_sites()

    def _forget_sites(self) -> None:
        self._sites.clear()
        self._codes.clear()

    def _group(self, members: tuple[int, ...], *, started: bool = False) -> Group:
        key = (members, started)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(self._arena, self._meeting, self._register, members, started=started)
        return group

    def _received(self, request: Request) -> np.ndarray:
        source = request.group[0]
        out, dtype, shape = self._channels.recv(source, request.out)
        wanted_shape = shape if request.shape is None else tuple(request.shape)
        wanted_dtype = dtype if request.dtype is None else np.dtype(request.dtype)
        if (wanted_shape, wanted_dtype) != (shape, dtype):
            what = f"rank {self.rank} expects {wanted_dtype} {wanted_shape} from rank {source}, which sent {dtype} {shape}"
            text = message(what, where=request.origin, hint=f"The last call of rank {source} was {self._arena.last_entry(source)}")
            self._meeting.raise_fault("CollectiveMismatch", text, ranks=[self.rank, source])
        return out

    def _note_start(self, number: int, slot: int) -> int:
        """Write the flight record of a request that starts; returns its index."""
        index = self._index
        self._index = index + 1
        _NOTE(self._bytes, self._records_at[index % FLIGHT_RECORDS], index, number, perf_counter(), 0.0, slot)
        if NEEDS_FENCE:
            fence()
        self._words[self._requests_word] = index + 1
        return index

    # control

    @property
    def control(self) -> str:
        """What the notebook asks for: "run", "pause" or "stop"."""
        return CONTROLS[self._words[CONTROL]]

    @property
    def stop_requested(self) -> bool:
        """True once the notebook has asked for a stop. Ranks may see it at different steps: use `agree_to_continue` to leave a loop."""
        return self._words[CONTROL] == 2

    def wait_if_paused(self) -> None:
        """Return when the notebook does not ask for a pause. Raises what stopped the run meanwhile."""
        while self._words[CONTROL] == 1:
            self._meeting.check_abort()
            self._move_on()
            time.sleep(PAUSE_LOOK_S)
        self._meeting.check_abort()

    def report(self, obj: object) -> None:
        """Send a small object to the notebook while the run goes on (`Job.messages`, `on_message`)."""
        self._send(b"M", dill.dumps(obj, recurse=True))

    # for worker_main

    def _send(self, kind: bytes, payload: bytes = b"") -> None:
        with self._pipe_lock:
            self._pipe.send_bytes(kind + payload)

    def _begin_run(self) -> None:
        self._meeting.begin_run()
        self._channels.begin_run()
        self._lane.begin_run()
        self._collectives.begin_run()
        self._started_collectives.begin_run()
        self._register = Register(self._arena, self.rank)
        self._groups: dict[tuple, Group] = {}
        self._calls.clear()
        self._sites: dict[tuple, tuple] = {}  # by place in the program
        self._codes: list = []
        self._last_plan: Plan | None = None
        self._last_origin = ""
        self._texts = 0
        self._index = 0
        self.records = []

    def _end_run(self) -> None:
        """This rank's program has returned: hand over what it sent. Raises CollectiveMismatch for a collective that was not waited for."""
        if not self._words[ABORT]:
            self._lane.check_waited(self.rank)
            if not self.stop_requested:
                self._channels.flush()


def _at_once(request: Request) -> Program:
    """A collective of one rank alone."""
    yield from ()
    return answer([request])[0]
