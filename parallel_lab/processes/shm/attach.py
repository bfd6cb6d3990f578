"""A process that is not a worker of a pool becomes a rank: a script under a launcher, or one that met others by itself.

    launcher:  block = SharedBlock(layout.size_bytes);  Place(rank, ...) into the environment of each rank's process,
               descriptors passed on
    rank:      place = launched_place();  rank = attach(place.rank, place.layout, place.block,
               end=...);  rank.comm.all_reduce(x)

The words of the arena are those of a pool that runs one job: a rank is STARTED once attached, FINISHED once it left in
order. The holder of the block (launcher, hub) sets FINISHED for a rank that ended with exit code 0 without doing so,
and writes a fault note for one that ended otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from types import TracebackType

import dill

from ...base.errors import WorldError
from ..faults import exit_code, follows_fault, last_place, print_error, text_of
from .arena import ABORT, FINISHED, PID, RAISED, RUN, STARTED, Arena, ArenaMap
from .comm import Communicator
from .shared_memory import SharedBlock
from .worker_main import communicator_class, prepare_process

VARIABLE = "PARALLEL_LAB_WORLD"


@dataclass(frozen=True)
class Place:
    """What a launcher tells a rank's process, as JSON in PARALLEL_LAB_WORLD. `block`, `life`: descriptors of the shared
    block and of a pipe whose write end only the launcher holds; `pid`: the process meant (0 until it has started), as
    children inherit the environment; `launcher`: what the user typed; `left`: this rank has left its world; `parent`:
    the launcher's process where a rank has to look whether it lives, 0 where the system tells.
    """

    rank: int
    world_size: int
    buffer_bytes: int
    ring_bytes: int
    block: int
    life: int
    pid: int = 0
    launcher: str = "parallel-lab run"
    left: bool = False
    parent: int = 0

    @property
    def layout(self) -> ArenaMap:
        return ArenaMap(self.world_size, self.buffer_bytes, self.ring_bytes)

    def text(self) -> str:
        """The value of the environment variable."""
        return json.dumps(asdict(self))


def launched_place() -> Place | None:
    """This process's place in a launcher's world; None if no launcher started it, or it is a child of a rank."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        place = Place(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise WorldError(f"{VARIABLE}={text[:80]!r} is not what a launcher writes", hint=f"unset {VARIABLE}") from error
    return place if place.pid == os.getpid() else None


class _Printing:
    """Where `comm.report` of a script goes, and a warning: no notebook is at the other end, so the console shows it."""

    @staticmethod
    def send_bytes(data: bytes) -> None:
        if data[:1] == b"W":
            print(f"parallel-lab: warning: {data[1:].decode()}", file=sys.stderr, flush=True)
        else:
            print(dill.loads(data[1:]), flush=True)


@dataclass
class AttachedRank:
    """One rank's hold on its arena: the communicator, and how it leaves."""

    arena: Arena
    comm: Communicator
    pid: int = field(default_factory=os.getpid)

    def leave(self) -> None:
        """Say that this rank is done: what it sent is handed over, and peers that still wait for it raise at once.

        Raises what stopped the run, if it was stopped, after leaving. Does nothing in a forked child.
        """
        if os.getpid() != self.pid:
            return
        words, slot = self.arena.words, self.arena.map.slot(self.comm.rank)
        try:
            self.comm._end_run()
        finally:
            words[slot + FINISHED] = words[RUN]

    def note(self, error: BaseException) -> bool:
        """Tell the peers that this rank ends with `error`; returns whether that only follows from another rank's."""
        return os.getpid() == self.pid and leave_note(self.arena, self.comm.rank, error)


def attach(rank: int, layout: ArenaMap, block: int) -> AttachedRank:
    """Make this process rank `rank` of the world whose shared memory lies behind descriptor `block`."""
    prepare_process()
    arena = Arena(SharedBlock.attached(block, layout.size_bytes), layout)
    slot = arena.map.slot(rank)
    arena.words[slot + PID] = os.getpid()
    comm = communicator_class()(arena, rank, _Printing())
    arena.words[slot + STARTED] = arena.words[RUN]
    return AttachedRank(arena, comm)


def note_uncaught(error: BaseException) -> bool:
    """As `leave_note`, for the process of a rank, attached or not."""
    place = launched_place()
    if place is None or place.left:
        return follows_fault(error)
    arena = Arena(SharedBlock.attached(os.dup(place.block), place.layout.size_bytes), place.layout)
    try:
        return leave_note(arena, place.rank, error)
    finally:
        arena.close()


def leave_note(arena: Arena, rank: int, error: BaseException) -> bool:
    """Tell the peers that `rank` ends with `error`; returns whether that only follows from another rank's."""
    if isinstance(error, KeyboardInterrupt) and arena.words[ABORT]:
        return True
    own_fault = getattr(error, "secondary", None)
    if own_fault is not None:
        return bool(own_fault)
    follows = follows_fault(error)
    place = last_place(error)
    where = f" ({place})" if place else ""
    text = ". ".join(part.rstrip(".") for part in (text_of(error), *getattr(error, "__notes__", ())))[:500]
    what, code = f"raised {type(error).__name__}: {text}", 1
    if isinstance(error, SystemExit):
        what, code = f"left by sys.exit({text})", exit_code(error.code)
    arena.write_fault(rank, "RankRaised", f"rank {rank} {what}{where}.", rank=rank, exit_code=code)
    if not follows:
        arena.words[arena.map.slot(rank) + RAISED] = arena.words[RUN]
    return follows


def install_excepthook(note: Callable[[BaseException], bool]) -> Callable[[], None]:
    """Let the peers know of an exception that ends this process before it is printed; returns the undoing call."""
    before, pid = sys.excepthook, os.getpid()

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        follows = False
        if os.getpid() == pid and threading.current_thread() is threading.main_thread():
            with contextlib.suppress(Exception):  # the traceback below is what matters; the peers see this process end
                follows = note(error)
        if follows or hasattr(error, "secondary"):  # one of the communicator's own
            print_error(error, trace, follows)
        else:
            before(kind, error, trace)

    def undo() -> None:
        if sys.excepthook is hook:
            sys.excepthook = before

    sys.excepthook = hook
    return undo
