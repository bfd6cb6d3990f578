"""The workers on which DTensors of a notebook lie: calls that every rank carries out on its own DTensors.

    ranks = ranks_of(mesh)                      this process's shared pool of as many workers
    ranks.call(("...dtensor_parts", "move"), (x, layout, "redistribute"), {}, How())

Here (`Ranks`) a DTensor is a handle. There (`Table`) a rank keeps its DTensors under the handles' keys, and is the rank
of a world for as long as a call lasts, so that the code of DTensors finds its communicator. A call that did not end on
every rank, because one raised or the notebook was interrupted, has not happened: what it made is dropped, and what it
had changed is put back. Every later use of DTensors whose workers were lost says which rank died.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from ..base.errors import ArgumentError, LayoutError, LayoutTypeError, NotBuiltYet, ParallelLabError, ShapeError
from ..base.hooks import set_world
from ..base.origin import caller
from ..layout.device_mesh import DeviceMesh
from ..nn.tensor.dtensor_calls import Handle, How
from ..nn.tensor.dtensor_parts import Parts, Surroundings, recorder, valueless
from ..nn.tensor.tensor import Node, Tensor
from ..ops.machine.opdef import OPS, OpDef
from .job_pool import JobPool
from .jobs import quick, read_quick
from .mpi.pool import get_mpi_pool
from .shm.pool import get_pool

BATCH_S = 0.01  # handles that go together are dropped together
STATE = "dtensors"  # where a rank keeps its Table in `comm.state`
# what a program's text is wrong about: every rank finds it alike, before it sends anything
MISTAKES = (ArgumentError, LayoutError, NotBuiltYet, ShapeError)
AWAY = Node(None, (), {})  # of a DTensor whose history lies on workers


class Key(NamedTuple):
    """A DTensor of the ranks: the call that made it, and which of its results."""

    call: int
    place: int


class Operator(NamedTuple):
    """An operator by its name."""

    name: str


class Made(NamedTuple):
    """What the notebook knows of a DTensor, and a rank's own part.  count: as a Handle has it;  name: of a Parameter"""

    key: Key
    count: int
    kind: type[Parts]
    layout: Any
    shape: tuple[int, ...]
    dtype: Any
    wanted: bool
    recorded: bool
    name: str | None
    part_shape: tuple[int, ...]


class Digest(NamedTuple):
    """Stands for a value that another rank sends whole."""

    digest: bytes

    @classmethod
    def of(cls, value: Any) -> Digest:
        array = value.asnumpy() if isinstance(value, Tensor) else value
        return cls(hashlib.blake2b(np.ascontiguousarray(array)).digest())


class Call(NamedTuple):
    """One call.  rank: the only one that runs it, or -1;  changes: whether it changes its arguments"""

    number: int
    target: tuple[str, str]
    args: Any
    kwargs: Any
    members: tuple[int, ...]
    rank: int
    changes: bool
    surroundings: Surroundings
    where: str


class Reply(NamedTuple):
    """What a rank answers.  result: with values on one rank only;  arguments: the DTensors that it was given, now"""

    result: Any
    arguments: tuple[Made, ...] = ()
    messages: tuple[Any, ...] = ()
    mistake: ParallelLabError | None = None


# ---- in the notebook ----


class Ranks:
    """The workers of a pool as those who keep DTensors.  gone: (key, count) of handles that have gone"""

    def __init__(self, pool: JobPool) -> None:
        self.pool, self.gone = pool, SimpleQueue[Any]()
        self._known: WeakValueDictionary[Key, Parts] = WeakValueDictionary()
        self._calls = 0
        free = threading.Thread(target=_free, args=(self.gone, pool), daemon=True, name="free parts of DTensors")
        free.start()

    def __del__(self) -> None:
        self.gone.put(None)

    def call(self, target: tuple[str, str], args: tuple[Any, ...], kwargs: dict[str, Any], how: How) -> Any:
        """See `nn/tensor/dtensor_calls.py`. Raises what the function raises; RankDied, RankRaised, WorkersClosed."""
        self._calls += 1
        number, members = self._calls, _members([*args, *kwargs.values()])
        rank = -1 if how.at is None else how.at(*args, **kwargs)
        if rank >= 0 and rank not in members:
            raise LayoutError(f"rank {rank}", where="DTensor", allowed=f"One of {members}")
        now, log = Surroundings.now()
        what = self._packed(args), self._packed(kwargs), members, rank, how.changes, now, caller().place
        try:
            replies = [read_quick(reply) for reply in self.pool.run(_answer, quick(Call(number, target, *what)))]
            answered = [reply for reply in replies if reply is not None]
            for reply in answered:
                if reply.mistake is not None:
                    raise reply.mistake
        except BaseException:
            if self.pool.alive:
                with contextlib.suppress(ParallelLabError):
                    self.pool.submit(_undo, number)
            raise
        first = replies[rank] if rank >= 0 else answered[0]
        if log is not None:
            for message in first.messages:
                log.append(message)
        for made in first.arguments:
            self._tensor(made)
        shapes = {r: _tensors_of(reply.result) for r, reply in enumerate(replies) if reply is not None}
        self._check_equal(first.result, [reply.result for reply in answered if reply is not first])
        result = self._rebuilt(first.result)
        for at, made in enumerate(_tensors_of(first.result)):
            for r, theirs in shapes.items():
                self._known[made.key]._locals.shapes[r] = theirs[at].part_shape
        return result

    def _check_equal(self, result: Any, others: list[Any]) -> None:
        """Values that the notebook is given have to be the same on every rank."""
        if isinstance(result, (Tensor, np.ndarray)) and any(other != Digest.of(result) for other in others):
            hint = "Each group, or rank, has its own: x.local(rank)"
            raise LayoutTypeError("values that differ between ranks", where="DTensor on workers", hint=hint)

    def _packed(self, value: Any) -> Any:
        """An argument for the ranks: DTensors by their keys, operators by their names."""
        if isinstance(value, Parts):
            parts: Any = value._locals
            if type(parts) is not Handle or parts.ranks is not self:
                other = "in this process" if type(parts) is not Handle else repr(parts.ranks.pool)
                hint = "distribute_tensor(x.full_tensor(), mesh, placements)"
                raise LayoutTypeError(f"DTensors on {self.pool!r} and {other}", where="DTensor", hint=hint)
            return parts.key
        if isinstance(value, OpDef) and OPS.get(value.name) is value:
            return Operator(value.name)
        if isinstance(value, Tensor) and value.requires_grad and value.node is not None:
            hint = "Make it a DTensor first: distribute_tensor(..., requires_grad=True)"
            raise LayoutTypeError("a Tensor whose gradient is wanted here", where="DTensor on workers", hint=hint)
        return _mapped(value, self._packed)

    def _rebuilt(self, value: Any) -> Any:
        return self._tensor(value) if isinstance(value, Made) else _mapped(value, self._rebuilt)

    def _tensor(self, made: Made) -> Parts:
        """The DTensor of the notebook for one of the ranks, as that is now."""
        tensor: Any = self._known.get(made.key)  # with a Handle where others have parts
        if tensor is None:
            tensor = made.kind.__new__(made.kind)
            tensor._locals = Handle(made.key, self, made.layout.mesh.members)
            self._known[made.key] = tensor
        tensor._locals.count = made.count
        tensor.layout, tensor._shape, tensor._dtype, tensor._wanted = made.layout, made.shape, made.dtype, made.wanted
        tensor.node = AWAY if made.recorded else None
        if made.name is not None:
            tensor.name = made.name
        return tensor


def ranks_of(mesh: DeviceMesh) -> Ranks | None:
    """The workers of this process on which the DTensors of a mesh lie: its shared pool of that size.

    None where nothing has values, or is written down for a plan.
    """
    if valueless() or recorder() is not None:
        return None
    pool = (get_mpi_pool if mesh.executor == "mpi" else get_pool)(max(mesh.members) + 1)
    if "dtensors" not in pool.kept:
        pool.kept["dtensors"] = Ranks(pool)
    return pool.kept["dtensors"]


def _free(gone: SimpleQueue[Any], pool: JobPool) -> None:
    """In a thread, since a handle may go at any moment: let ranks drop DTensors without a handle."""
    while (handle := gone.get()) is not None:
        time.sleep(BATCH_S)
        handles = [handle]
        while not gone.empty() and (handle := gone.get()) is not None:
            handles.append(handle)
        with contextlib.suppress(ParallelLabError):  # the workers are gone, and all they had
            pool.submit(_drop, handles)
        if handle is None:
            return


def _members(values: list[Any]) -> tuple[int, ...]:
    """The ranks of the first DTensor or mesh among values."""
    for value in values:
        if isinstance(value, Parts):
            return value.mesh.members
        if isinstance(value, DeviceMesh):
            return value.members
    raise AssertionError(values)


def _tensors_of(value: Any) -> list[Made]:
    found: list[Made] = []

    def look(each: Any) -> Any:
        if isinstance(each, Made):
            found.append(each)
            return each
        return _mapped(each, look)

    look(value)
    return found


def _mapped(value: Any, change: Any) -> Any:
    """A value with what is inside of it changed."""
    if type(value) in (tuple, list):
        return type(value)(map(change, value))
    return {key: change(each) for key, each in value.items()} if type(value) is dict else value


# ---- on a rank ----


class OwnWorld:
    """This rank during a call: what operators of DTensors ask of a world.  place: the learner's line"""

    def __init__(self, comm: Any, place: str) -> None:
        self.comm, self.place = comm, place
        self.rank, self.world_size = comm.rank, comm.world_size


@dataclass
class Table:
    """The DTensors of a rank, and what undoes the last call: keys that it made, contents that it changed."""

    tensors: dict[Key, Parts] = field(default_factory=dict)
    keys: dict[int, Key] = field(default_factory=dict)  # id of a DTensor -> its key
    counts: Counter[Key] = field(default_factory=Counter)  # how often it was given to the notebook
    given: list[Key] = field(default_factory=list)  # by the last call
    last: int = 0
    before: dict[Key, dict[str, Any]] = field(default_factory=dict)

    def begin(self, call: Call) -> None:
        """Note what would undo a call."""
        self.last, self.given = call.number, []
        self.before = {key: x.contents() for key, x in self.tensors.items()} if call.changes else {}

    def undo(self, number: int) -> None:
        """Put back what the call of this number changed, if it was the last, and drop what it made."""
        if self.last == number:
            for key, contents in self.before.items():
                self.tensors[key].set_contents(contents)
            self.counts.subtract(self.given)
            self.drop([(key, self.counts[key]) for key in self.tensors if key.call == number])

    def drop(self, handles: list[tuple[Key, int]]) -> None:
        """Forget DTensors, unless the notebook was given them once more."""
        for key, count in handles:
            if key in self.tensors and self.counts[key] == count:
                del self.keys[id(self.tensors.pop(key))], self.counts[key]
                self.before.pop(key, None)

    def found(self, value: Any) -> Any:
        """An argument: the DTensors of keys, the operators of names."""
        if isinstance(value, Key):
            return self.tensors[value]
        return OPS[value.name] if isinstance(value, Operator) else _mapped(value, self.found)

    def described(self, value: Any, with_values: bool) -> Any:
        """A result for the notebook; a DTensor is kept."""
        if isinstance(value, Parts):
            made = self.made(value)
            self.counts[made.key] += 1
            self.given.append(made.key)
            return made._replace(count=self.counts[made.key])
        if isinstance(value, (Tensor, np.ndarray)) and not with_values:
            return Digest.of(value)
        return _mapped(value, lambda each: self.described(each, with_values))

    def made(self, x: Parts) -> Made:
        """What the notebook knows of a DTensor, which is kept from now on."""
        if id(x) not in self.keys:
            key = Key(self.last, sum(k.call == self.last for k in self.tensors))
            self.tensors[key], self.keys[id(x)] = x, key
        about = x.layout, x.shape, x.dtype, x._wanted, x.node is not None, getattr(x, "name", None)
        key = self.keys[id(x)]
        return Made(key, self.counts[key], type(x), *about, next(iter(x._locals.values())).shape)


def _answer(comm: Any, sent: Any) -> Any:
    """A call on this rank: its `Reply`."""
    reply = _reply(comm, read_quick(sent))
    if STATE in comm.state and not comm.state[STATE].tensors:
        del comm.state[STATE]
    return quick(reply)


def _reply(comm: Any, call: Call) -> Reply | None:
    if comm.rank not in call.members or call.rank not in (-1, comm.rank):
        return None
    table = comm.state.setdefault(STATE, Table())
    table.begin(call)
    sent = comm.messages_made
    with _rank_of(comm, call.where):
        args, kwargs = table.found(call.args), table.found(call.kwargs)
        module, name = call.target
        function = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        with call.surroundings.entered() as messages:
            try:
                result = function(*args, **kwargs)
            except MISTAKES as mistake:
                if comm.messages_made != sent:
                    raise  # the others may wait for this rank
                return Reply(None, mistake=mistake)
    tells = call.rank >= 0 or comm.rank == call.members[0]
    given = tuple(table.made(x) for x in (*args, *kwargs.values()) if isinstance(x, Parts))
    return Reply(table.described(result, tells), given if tells else (), tuple(messages) if tells else ())


@contextlib.contextmanager
def _rank_of(comm: Any, where: str) -> Iterator[None]:
    set_world(OwnWorld(comm, where))
    try:
        yield
    finally:
        set_world(None)


def _drop(comm: Any, handles: list[tuple[Key, int]]) -> None:
    """Forget DTensors; all, and the table too, when these were the last."""
    table = comm.state.get(STATE)
    if table is not None:
        table.drop(handles)
        if not table.tensors:
            del comm.state[STATE]


def _undo(comm: Any, number: int) -> None:
    """Make a call not to have happened that did not end on every rank."""
    if STATE in comm.state:
        comm.state[STATE].undo(number)
