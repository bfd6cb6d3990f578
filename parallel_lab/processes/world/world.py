"""The world of a rank: this process is rank r of n, however it was started.

    world = connect()                       # communication.init() does this
    world.rank, world.world_size            # 3, 8
    world.comm.all_reduce(x)                # shared memory or MPI: the same requests, the same answers
    world.close()                           # also at exit

How the processes found each other (`launcher` says which):

    parallel-lab run, msrun, %%ranks        the launcher made the shared memory and handed it over
                                            (processes/shm/attach.py)
    mpirun                                  MPI (mpi/)
    RANK_TABLE_FILE and RANK_ID             a rank table; rank 0 is the rendezvous (rank_table.py, rendezvous.py)
    MS_ROLE, MS_SCHED_HOST, ...             a dynamic cluster; the scheduler is the rendezvous (cluster_env.py,
                                            rendezvous.py)

Shared memory ends at the border of one machine. Several hosts are MPI's business: `mpirun -H a:4,b:4 ...` starts the
same script, `connect` finds MPI, and nothing above this file knows the difference. That is how it is designed; it has
been tested on one machine only. A rank table or a cluster that names several hosts is refused with this advice.

With PARALLEL_LAB_EVENTS=FILE in the environment every rank records its communication, and the last one to close writes
FILE: a Chrome trace (chrome://tracing, ui.perfetto.dev) that also holds the events as `events.from_dicts` reads them,
under "events". One file, one schema, for all launchers. PARALLEL_LAB_TIMEOUT: seconds to wait for a missing rank (120).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ...base.errors import WorldArgumentError, shorten
from ...base.events import Event, chrome_trace, from_dicts, to_dicts
from ...base.files import write_whole
from ...base.hooks import current_world, set_world
from ...base.seeds import get_seed, set_seed
from ...base.settings.tables import WORLD_GROUPS
from ...run.communicator import Request

BACKENDS = (*WORLD_GROUPS, "mpi")
EVENTS_VARIABLE = "PARALLEL_LAB_EVENTS"
TIMEOUT_VARIABLE = "PARALLEL_LAB_TIMEOUT"
TIMEOUT_S = 120.0  # for a collective of a script that nobody limits; learners in front of a notebook get less
# of a host's rank, and of how many there are: Open MPI; MPICH
LOCAL_VARIABLES = {"OMPI_COMM_WORLD_LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALRANKID": "MPI_LOCALNRANKS"}


class World:
    """This process as `rank` of `world_size`. `comm` answers `answer(Request)` and named methods (run/calls.py);
    `backend`: "shared_memory" or "mpi", what carries data; `library`: "hccl" (unless `init` named another), "nccl",
    "mccl", whose names a script uses; `launcher`: how processes were started, for messages; `groups`: name ->
    ranks, ascending, the world's own too; `events`: recorded besides the communicator's (PARALLEL_LAB_EVENTS);
    `before_sum`: (reducer, ranks, gradients, settings), called before gradients are added up by hand; `summed`:
    (shape, ranks) of what AllReduce has added since gradients were made; `after_update`: called with an optimizer
    that has used them; `copies`: what these keep, per reducer and optimizer; `updates`: steps of optimizers outside
    compiled programs.
    """

    def __init__(
        self,
        comm: Any,
        *,
        backend: str,
        launcher: str,
        library: str = "hccl",
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.comm, self.backend, self.launcher, self.library = comm, backend, launcher, library
        self.rank, self.world_size = comm.rank, comm.world_size
        self.groups: dict[str, tuple[int, ...]] = dict.fromkeys(WORLD_GROUPS.values(), tuple(range(self.world_size)))
        self.events: list[Event] = []
        self.before_sum: Callable | None = None
        self.after_update: Callable = lambda optimizer: None
        self.before_all_reduce: Callable = lambda value: None
        self.summed: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.updates, self.has_gradients = 0, False  # made, and not used yet
        self._alone_since: int | None = (
            None  # messages that were no training's: before gradients, and of single numbers
        )
        self.copies: WeakKeyDictionary = WeakKeyDictionary()
        self.closed = False
        self._on_close, self._pid = on_close, os.getpid()
        self._events_file = os.environ.get(EVENTS_VARIABLE) or ""
        self._events_key = ""
        comm.recording = comm.recording or bool(self._events_file)
        atexit.register(self.close)

    def __repr__(self) -> str:
        closed = ", closed" if self.closed else ""
        return f"World(rank {self.rank} of {self.world_size}, {self.backend}, {self.launcher}{closed})"

    @property
    def local_rank(self) -> int:
        """This rank's number among those of its host."""
        return self._local(LOCAL_VARIABLES.keys(), self.rank)

    @property
    def local_size(self) -> int:
        """Ranks on this host."""
        return self._local(LOCAL_VARIABLES.values(), self.world_size)

    def _local(self, names: Collection[str], alone: int) -> int:
        found = [os.environ[name] for name in names if self.backend == "mpi" and name in os.environ]
        return int(found[0]) if found else alone

    def group(self, name: str | None = None) -> tuple[int, ...]:
        """The ranks of a named group, or of the world. Raises WorldArgumentError (a ValueError) for an unknown name."""
        if name is None:
            return self.groups[WORLD_GROUPS["hccl"]]
        if name not in self.groups:
            own = sorted(set(self.groups) - set(WORLD_GROUPS.values()))
            known = f"The world's name {WORLD_GROUPS[self.library]!r}" + (f", or one of {own}" if own else "")
            hint = "create_group(name, rank_ids) makes one"
            raise WorldArgumentError(f"there is no group {name!r}", allowed=known, hint=hint)
        return self.groups[name]

    def agree(self) -> None:
        """Meet all ranks first: rank 0's seed (`set_seed`) becomes everybody's, so that all draw the same numbers. One
        set on another rank before `init` is replaced; one set afterwards is its own business.
        """
        mine = np.array([get_seed(), int.from_bytes(os.urandom(6), "little")], np.uint64) if self.rank == 0 else None
        request = Request("broadcast", self.group(), mine, root=0, shape=(2,), dtype="uint64", origin="init")
        seed, key = (int(word) for word in self.comm.answer(request))
        if seed != get_seed():
            set_seed(seed)
        self._events_key = f"{key:012x}"
        self.comm.records.clear()

    def note_gradients(self) -> None:
        """Gradients were made; what AllReduce adds from now on may be these."""
        self.summed, self.has_gradients = [], True
        if self._alone_since is None:
            self._alone_since = self.comm.messages_made

    def note_sum(self, value: np.ndarray, members: tuple[int, ...]) -> None:
        """AllReduce is about to add a value."""
        if self.has_gradients:
            self.before_all_reduce(value)
        self.summed.append((value.shape, members))
        if self._alone_since is not None and value.size <= 1:  # a loss, to be shown
            self._alone_since += 1

    def _alone_text(self) -> str:
        """What to say where ranks have trained, and never exchanged anything that was more than a number."""
        if self.updates < 2 or self.world_size == 1 or self.comm.messages_made != self._alone_since:
            return ""
        what = f"{self.updates} updates, and no gradients were added up: each of the {self.world_size} ranks"
        means = "nn.DistributedGradReducer(optimizer.parameters), parallel_mode='data_parallel' or ops.AllReduce"
        return f"{what} has trained a model of its own, on what it was given. Add them with {means}"

    def close(self) -> None:
        """Leave the world, once: peers that still wait for this rank raise. Called at exit; not in a forked child."""
        if self.closed or os.getpid() != self._pid:
            return
        self.closed = True
        atexit.unregister(self.close)
        if current_world() is self:
            set_world(None)
        if self.rank == 0 and (text := self._alone_text()) and getattr(sys, "last_value", None) is None:
            print(f"parallel-lab: warning: {text}", file=sys.stderr, flush=True)
        try:
            self._on_close()
        finally:
            if self._events_file:
                self._write_events()

    def _write_events(self) -> None:
        parts = Path(f"{self._events_file}.parts-{self._events_key}")
        parts.mkdir(parents=True, exist_ok=True)
        mine = {"world_size": self.world_size, "launcher": self.launcher, "events": to_dicts(self.recorded_events())}
        write_whole(parts / f"rank.{self.rank}.json", json.dumps(mine))
        if len(list(parts.glob("rank.*.json"))) == self.world_size:
            merge_events(parts, self._events_file)

    def recorded_events(self) -> list[Event]:
        """The communication of this rank so far, and what executors added, in order of time."""
        found = list(self.events)
        for m in self.comm.records:
            name = f"{m.kind} #{m.index}{f' at {m.origin}' if m.origin else ''}"
            what = "run", "communication", name, m.kind, m.start_s, m.end_s
            found.append(Event(self.rank, m.step, *what, tuple(m.group), int(m.size_bytes)))
        return sorted(found, key=lambda event: event.start_s)


def merge_events(parts: Path, target: str | os.PathLike[str]) -> None:
    """Merge what the ranks wrote into `parts` to `target`, and remove the folder; two at once write the same."""
    events: list[Event] = []
    ranks = 0
    with contextlib.suppress(FileNotFoundError):  # another rank was quicker, and its file holds the same
        for path in sorted(parts.glob("rank.*.json")):
            events += from_dicts(json.loads(path.read_text(encoding="utf-8"))["events"]).events
            ranks += 1
        if ranks:
            events.sort(key=lambda event: (event.start_s, event.rank))
            whole = {**chrome_trace(events), "schema": "parallel_lab events 1", "events": to_dicts(events)}
            write_whole(target, json.dumps(whole, separators=(",", ":"), allow_nan=False) + "\n")
    shutil.rmtree(parts, ignore_errors=True)


def collective_timeout_s() -> float:
    """Seconds a collective waits for a missing rank, where no launcher says so. Raises WorldArgumentError."""
    return seconds_from(TIMEOUT_VARIABLE, TIMEOUT_S)


def seconds_from(variable: str, default: float) -> float:
    """A number of seconds from the environment. Raises WorldArgumentError for anything else."""
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e7:
        raise WorldArgumentError(f"{variable}={text!r}", where="init", allowed="A number of seconds above 0")
    return value


def whole_number(name: str, text: str, allowed: str, where: str = "init", *, low: int = 0, high: int = 999_999) -> int:
    """The number that stands as decimal digits in `text`. Raises WorldArgumentError for anything else."""
    if not (text.isascii() and text.isdigit() and len(text) < 7 and low <= int(text) <= high):
        raise WorldArgumentError(f"{name}={shorten(text)}", where=where, allowed=allowed)
    return int(text)


def leave_in_order(rank: Any) -> None:
    """Leave the arena; what stopped the run is printed in a line, not raised: this happens at exit as well."""
    from ..shm.arena import ABORT

    last = getattr(sys, "last_value", None)  # a test runner's failed test: it never reaches the excepthook
    if last is not None and not rank.arena.words[ABORT]:
        rank.note(last)
    try:
        rank.leave()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
