"""What both communicators (`shm/comm.py`, `mpi/comm.py`) do before ranks meet: each different call is checked once, and
gets the digest that members compare. `CheckedCalls` stands between `Calls` (the named methods) and them.
"""

from __future__ import annotations

import dataclasses
import time
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.checks import INTS, is_int
from ..base.dtypes import plain_array
from ..base.errors import ShapeError
from ..ops.collectives.base import name_of
from ..ops.collectives.definitions import MESSAGES
from ..run.calls import Calls, caller
from ..run.communicator import Request, check_request, detail
from .flight import KEPT_CALLS, flight_text
from .lines import LINE, line_digest
from .one_caller import OneCaller

PAUSE_LOOK_S = 2e-3  # how often a paused rank looks whether it may go on
_MIX = 0x9E3779B1  # odd 32-bit constant (golden ratio): spreads the call number over the digest


@dataclass(frozen=True)
class Meeting(Request):
    """A barrier before a call that is made of messages (`how`: which ones). Members compare `call`."""

    call: Request | None = None
    how: str = ""


@dataclass(frozen=True)
class Named(Request):
    """The request of a Parameter.  operand: its name, compared among the members that give a Parameter"""

    operand: str = ""


class CheckedCalls(Calls):
    """A communicator that knows the calls it has seen.  control: what the notebook asks for (run, pause, stop);
    caller: who may call

    Members are compared in each call: kind, number, dtype, shape, reduction, root, and the source line. In a loop such
    as `for t in tensors: comm.all_reduce(t)` all calls stand on one line, so a rank that takes the tensors in another
    order, or leaves out a turn, adds unlike tensors and nothing shows it. A name does: `comm.all_reduce(t, tag=name)`;
    a Parameter brings its own. Calls with a root (broadcast, reduce, gather, scatter) may stand on one line for the
    root and on another for the others; if they are swapped when these lines meet for the first time, only a tag can
    tell, and where the lines cross a warning says so.
    """

    control: str
    caller: OneCaller
    _index: int

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(rank, world_size)
        self._calls: dict[tuple, Any] = {}

    def answer(self, request: Request) -> np.ndarray | None:
        """This rank's reply to `request`, when the group has answered; a send returns when its value is copied. The
        bits of `communicator.answer`, C-contiguous, in own memory or `out`; None: barrier, send, off the root of reduce
        and gather. Raises CollectiveMismatch, CollectiveTimeout, DeadlockError, RankDied, RankRaised on every member.
        """
        return self._answer(request, bool(request.origin))

    def _call(self, request: Request, explicit: bool) -> Any:
        """What is known of a request, kept per different call: (check, loose, flight text) or `_examined`'s result."""
        operand = ""
        if type(request) is not Request:
            if type(request) is Meeting:
                return self._known_meeting(request)
            operand = request.operand
        value = request.value
        signature = (value.dtype, value.shape) if isinstance(value, np.ndarray) else value is None
        out, place = request.out, request.out is None
        if isinstance(out, np.ndarray):
            place = out.dtype, out.shape, out.flags.c_contiguous and out.flags.writeable
        r = request
        dims = r.dim, r.split_dim, r.concat_dim
        asked = r.kind, r.group, signature, r.reduce, dims, r.root, r.shape, r.dtype, r.window, r.route, r.sr_tag
        key = *asked, r.origin, explicit, place, operand
        try:
            known = self._calls.get(key)
        except TypeError:  # a list as a root, a reduction or a dim: refused by name
            self._examine(request, explicit)
            raise
        if known is None:
            if len(self._calls) >= KEPT_CALLS:
                self._forget_calls()
            known = self._calls[key] = self._examined(request, *self._examine(request, explicit))
        return known

    def _known_meeting(self, request: Meeting) -> Any:
        call, value = request.call, request.call.value
        check, loose = digests(call, False)
        dtype, shape = ("", ()) if value is None else (str(value.dtype), value.shape)
        kind = f"{call.kind} by {request.how}"
        text = flight_text(kind, call.group, dtype, shape, detail(call), call.origin)
        found = digest(check, request.how), loose, text
        known = self._calls.get(found)
        if known is None:
            if len(self._calls) >= KEPT_CALLS:
                self._forget_calls()
            known = self._calls[found] = self._examined(request, *found)
        return known

    # a Parameter's name is compared too: of calls from one line in a loop it is all that tells them apart

    def _ask(self, kind: str, group: tuple[int, ...] | None, tag: str, **fields) -> np.ndarray | None:
        operand = "" if tag else fields.get("value")
        origin = tag or caller(2)  # a tag replaces the source line, so that two lines can be declared to meet
        fields = self._given(kind, fields)
        request = self._request(kind, self._members(kind, group, origin), operand, origin, fields)
        return self._answer(request, bool(tag))

    def _given(self, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of a request, the value as an array; off the root of a broadcast it only says what will come."""
        value = fields.get("value")
        if value is None:
            return fields
        if kind != "broadcast" or not is_int(fields["root"], kinds=INTS) or fields["root"] == self.rank:
            return fields | {"value": plain_array(value, order="C", where=kind)}
        array = plain_array(value, where=kind)
        return fields | {"value": None, "shape": array.shape, "dtype": str(array.dtype)}

    @staticmethod
    def _request(kind: str, group: tuple[int, ...], operand: Any, origin: str, fields: dict[str, Any]) -> Request:
        """The request; `Named` if `operand` is a Parameter, or the name of one."""
        name = operand if isinstance(operand, str) else name_of(operand)
        if not name:
            return Request(kind, group, origin=origin, **fields)
        return Named(kind, group, origin=origin, operand=name, **fields)

    def start(self, kind: str, x=None, group=None, *, tag: str = "", **fields) -> Any:
        """As `Calls.start`."""
        origin = tag or caller(1)
        if x is not None:
            fields["value"] = plain_array(x, order="C", where=kind)
        request = self._request(kind, self._members(kind, group, origin), "" if tag else x, origin, fields)
        return self._begin(request, bool(tag))

    start.__doc__ = Calls.start.__doc__

    def named(
        self, kind: str, x: np.ndarray, operand: str, group: tuple[int, ...], origin: str, **fields: Any
    ) -> np.ndarray | None:
        """A call of an operator with a Parameter.  operand: its name, compared in addition to `origin`"""
        value: np.ndarray | None = np.asarray(x, order="C")
        if not MESSAGES[kind].gives(self.rank, fields.get("root")):
            fields |= {"shape": value.shape, "dtype": str(value.dtype)} if kind == "broadcast" else {}
            value = None
        return self._answer(self._request(kind, group, operand, origin, {"value": value, **fields}), True)

    def meet_for(self, call: Request, how: str) -> None:
        """Meet the members of `call`, a collective that will be made of sends and recvs: CollectiveMismatch, on every
        rank, unless all of them ask for the same, in the same way.  how: which messages, in a few words
        """
        self._answer(Meeting("barrier", call.group, origin=call.origin, call=call, how=how), False, quiet=True)

    @staticmethod
    def _complete(request: Request) -> Request:
        """The request with its caller's line, and a value whose elements lie in order."""
        value = request.value
        in_order = value is None or (isinstance(value, np.ndarray) and value.flags.c_contiguous)
        if request.origin and in_order:
            return request
        value = value if in_order else np.asarray(value, order="C")
        return dataclasses.replace(request, value=value, origin=request.origin or caller(3))

    def _forget_calls(self) -> None:
        self._calls.clear()

    def _examined(self, request: Request, check: int, loose: tuple[int, int] | None, text: bytes) -> Any:
        """What `_call` keeps and returns."""
        return check, loose, text

    def _examine(self, request: Request, explicit: bool) -> tuple:
        kind, group = request.kind, request.group
        check_request(request, self.rank, range(self.world_size))
        if kind in ("send", "recv"):
            check, loose = 0, None
        else:
            try:
                check, loose = digests(request, explicit)
            except (IndexError, KeyError, TypeError) as error:
                raise ShapeError(f"{kind} does not fit its value ({error})", where=request.origin) from error
        if isinstance(request.value, np.ndarray):
            dtype, shape = str(request.value.dtype), request.value.shape
        else:
            dtype, shape = request.dtype or "", request.shape or ()
        shape = tuple(int(s) for s in shape)
        origin = f"{request.operand} at {request.origin}" if type(request) is Named else request.origin
        return check, loose, flight_text(kind, group, str(dtype), shape, detail(request), origin)

    def told_by_all(self, note: np.ndarray, group: tuple[int, ...], tag: str) -> np.ndarray:
        """What each member gives as `note`, for comparisons; not among the recorded messages.  (...) -> (n, ...)."""
        request = Request("all_gather", group, note.reshape(1, *note.shape), origin=tag)
        return self._answer(request, True, quiet=True)

    @staticmethod
    def _numbered(check: int, number: int) -> int:
        """The digest of the group's call `number`; never 0, which stands for no call."""
        return ((check + number * _MIX) & 0xFFFFFFFF) or 1

    @property
    def messages_made(self) -> int:
        """Requests of this rank so far."""
        return self._index

    @property
    def stop_requested(self) -> bool:
        """Whether the notebook has asked for a stop. Ranks may differ: leave a loop by `agree_to_continue`."""
        return self.control == "stop"

    def wait_if_paused(self) -> None:
        """Return when the notebook does not ask for a pause. Raises what stopped the run meanwhile."""
        self.progress()
        while self.control == "pause":
            time.sleep(PAUSE_LOOK_S)
            self.progress()

    def agree_to_continue(self, step: int = 0) -> bool:
        """One answer on all ranks, at the start of a step: `if not comm.agree_to_continue(step): break`. Waits while
        the notebook asks for a pause. Rank 0's decision travels in a broadcast, so no rank leaves a step before its
        peers; ranks at different steps raise CollectiveMismatch. After a stop, started collectives need no wait.
        """
        decision = None
        if self.rank == 0:
            self.wait_if_paused()
            decision = np.array([not self.stop_requested])
        fields = {"root": 0, "shape": (1,), "dtype": "bool", "origin": f"agree_to_continue(step {step})"}
        request = Request("broadcast", self._world, decision, **fields)
        return bool(self._answer(request, True, quiet=True)[0])


def root_position(request: Request) -> int | None:
    """Position of the root in the group of a rooted call; None: any other."""
    call = request.call if type(request) is Meeting else request
    return call.group.index(call.root) if MESSAGES[call.kind].rooted else None


def digest(*parts: object) -> int:
    """32 bits that are equal in every process for equal parts; never 0, which means "nothing to compare"."""
    return zlib.crc32(repr(parts).encode()) or 1


def digests(request: Request, explicit_origin: bool) -> tuple[int, tuple[int, int] | None]:
    """(check, loose): the digest all members must share, and those of origin and shape, compared where members give
    them. Symmetric collectives compare the source line too: two swapped all_reduce calls differ in nothing else. Rooted
    ones are often on other lines, which are compared as `lines.py` says; a barrier's origin counts when given on
    purpose, and a shape where it is known.
    """
    definition, kind, group = MESSAGES[request.kind], request.kind, request.group
    origin = digest(request.origin) if request.origin else 0
    operand = digest(request.operand) & ~LINE or 1 if type(request) is Named else 0
    if definition.symmetric:
        return digest(request.descriptor(), origin), (operand, 0) if operand else None
    loose_origin = operand
    if origin and not operand and (explicit_origin or definition.rooted):
        loose_origin = origin & ~LINE or 1 if explicit_origin else line_digest(request.origin)
    if definition.receiver == "root":
        return digest(request.descriptor()), (loose_origin, 0)
    if definition.sender == "root":
        known = request.value is not None or (request.shape is not None and request.dtype is not None)
        shape = digest(request.descriptor()) if known else 0
        return digest(kind, group, request.root, request.dim if definition.cut else 0), (loose_origin, shape)
    return digest(kind, group), (loose_origin, 0)
