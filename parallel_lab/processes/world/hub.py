"""The hub of processes that were started one by one: it waits for ranks, hands out memory, looks after them.

    hub = Hub(plan, own_rank=0)     # rank 0 of a rank table; own_rank=None: the scheduler of a dynamic cluster
    hub.collect()                   # all have come, and have their numbers and the memory
    hub.watch()                     # until the last one has gone

The connections stay open: the end of one without a goodbye is the death of its process, and so is the end of the
process itself (a child that it forked may hold a copy of the connection). The other ends are in `rendezvous.py`.

Where a socket cannot be abstract, it and the memory lie in a folder that the hub locks while it lives
(`own_folder.py`); peers that see the hub's end remove it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import struct
import sys
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

from multiprocess.connection import Connection

from ...base.errors import WorldError, WorldTimeout, message
from ...base.system import SYSTEM, end_of_process, require_processes
from ..own_folder import OwnFolder, folder_of
from ..shm.arena import ARENA_BYTES, Arena, ArenaMap
from ..shm.shared_memory import SharedBlock, send_descriptor
from ..shm.shared_world import SharedWorld
from ..shm.watch import ranks_text
from ..supervisor import LOOK_S, Limits, Warn
from .world import TIMEOUT_S

RETRY_S = 0.05
BUSY_S = 5.0  # how long a run waits for an earlier one of the same name to end
LATE_START_S = 10.0  # a rank that comes to `init` this much later than another is worth a warning


@dataclass(frozen=True)
class RendezvousSpec:
    """What all processes know before they meet: the socket's `name` and `what` readers call it ("rank table
    hccl.json"); `hub`, which process waits there ("rank 0", "the scheduler"); `world_size`; `launcher`, how they were
    started, for messages; `limit_s` for all to come, from `limit_variable`; `timeout_s`, `warn_after_s` as for a
    launcher.
    """

    name: str
    what: str
    hub: str
    world_size: int
    launcher: str
    limit_s: float
    limit_variable: str
    timeout_s: float = TIMEOUT_S
    warn_after_s: float = 2.0


def socket_address(name: str) -> str:
    """Where processes of one machine meet under `name`: an abstract socket, which vanishes with its owner, or one in
    the folder of that name. Raises WorldError where that is not safe.
    """
    return f"\0{name}" if SYSTEM.abstract_sockets else str(folder_of(name) / "socket")


def memory_path(name: str) -> Path:
    """The file of the memory, where no descriptor is handed over."""
    return folder_of(name) / "memory"


def peer_identity(connection: Connection | socket.socket) -> tuple[int, int]:
    """(pid, uid) of the other end. Where sockets do not tell: (0, the user's own), who alone may enter the folder."""
    if not SYSTEM.peers:
        return 0, os.getuid()
    with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
        credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return pid, uid


def refuse_strangers(end: Connection | socket.socket, what: str) -> None:
    """Raise WorldError where another user's process has the socket at which the ranks of `what` would meet."""
    pid, uid = peer_identity(end)
    if uid != os.getuid():
        whose = f"the socket of {what} belongs to another user: process {pid} of user {uid}"
        hint = "Ask them to end it, or change what names it: an address in the rank table, or MS_SCHED_PORT"
        raise WorldError(whose, where="init", hint=hint)


def watched_process(pid: int) -> int:
    """A descriptor that becomes readable when the process ends; -1 where the system lacks them, or it has ended."""
    with contextlib.suppress(ProcessLookupError):
        return end_of_process(pid)
    return -1


def close_in_children(connection: Connection) -> None:
    """Let a child that this process forks have no copy of the connection, whose end is this process's death."""
    kept = weakref.ref(connection)

    def in_child() -> None:
        found = kept()
        if found is not None:
            found.close()

    if not SYSTEM.process_ends:
        os.register_at_fork(after_in_child=in_child)


@dataclass
class _Peer:
    """One connection of the hub."""

    connection: Connection
    pid: int
    process: int = -1  # descriptor that becomes readable when the process ends
    rank: int | None = None
    said_goodbye: bool = False
    wanted: int | None = None

    def messages(self) -> tuple[list[dict], bool]:
        """What has come, and whether more may come."""
        found = []
        try:
            while self.connection.poll():
                found.append(self.connection.recv())
        except (EOFError, OSError):
            return found, False
        return found, True

    def send(self, **message: object) -> None:
        """Tell it, if it still listens: the watch sees that it has gone."""
        with contextlib.suppress(OSError):
            self.connection.send(message)

    def close(self) -> None:
        self.connection.close()
        if self.process >= 0:
            os.close(self.process)
            self.process = -1


class Hub:
    """The one that waits: `collect` until all have come, `watch` until all have gone; `own_rank` None: a scheduler."""

    def __init__(self, plan: RendezvousSpec, own_rank: int | None = None) -> None:
        require_processes("init")
        self.plan, self.own_rank = plan, own_rank
        self.folder: OwnFolder | None = None
        self.peers: list[_Peer] = []
        self.arena: Arena | None = None
        self.world: SharedWorld | None = None
        self.selector = selectors.DefaultSelector()
        self.listener = self._listen()
        self.selector.register(self.listener, selectors.EVENT_READ, None)
        self.all_gone = threading.Event()
        self.stop_watching = threading.Event()

    def _listen(self) -> socket.socket:
        listener, end = socket.socket(socket.AF_UNIX), time.monotonic() + BUSY_S
        while True:
            try:
                if not SYSTEM.abstract_sockets and self.folder is None:
                    self.folder = OwnFolder(self.plan.name)
                listener.bind(socket_address(self.plan.name))
                break
            except OSError as error:
                busy = error.errno == errno.EADDRINUSE or isinstance(error, BlockingIOError)
                if not busy or time.monotonic() > end:
                    with listener, contextlib.suppress(OSError):
                        listener.setblocking(False)
                        listener.connect(socket_address(self.plan.name))
                        refuse_strangers(listener, self.plan.what)
                    what = f"another run of {self.plan.what} is under way ({error})"
                    hint = "Wait for it to end, or end it" if busy else ""
                    raise WorldError(f"{self.plan.hub} cannot wait for the others: {what}", hint=hint) from error
                time.sleep(RETRY_S)
        listener.listen(self.plan.world_size + 8)
        listener.setblocking(False)
        return listener

    def collect(self) -> None:
        """Wait for every rank, then hand out ranks and memory. Raises WorldTimeout naming the missing ranks, WorldError
        for one that ended meanwhile; those that came receive the same.
        """
        plan, end = self.plan, time.monotonic() + self.plan.limit_s
        needed = plan.world_size - (self.own_rank is not None)
        while len(self.peers) < needed:
            left_s = end - time.monotonic()
            if left_s <= 0:
                self._fail(WorldTimeout, self._missing_text())
            for key, _ in self.selector.select(min(left_s, LOOK_S)):
                if key.data is None:
                    self._accept()
                elif key.data.rank is None:
                    self._take_hello(key.data)
        self._give_numbers()
        layout = ArenaMap.for_budget(plan.world_size, ARENA_BYTES)
        path = None if SYSTEM.sent_descriptors else memory_path(plan.name)
        self.arena = Arena(SharedBlock(layout.size_bytes, path), layout)
        limits = Limits(plan.timeout_s, plan.warn_after_s, plan.timeout_s, LATE_START_S)
        self.world = SharedWorld(self.arena, limits)
        if self.own_rank is not None:
            self.world.pids[self.own_rank] = os.getpid()
        for peer in self.peers:
            self.world.pids[peer.rank] = peer.pid or None
            peer.send(rank=peer.rank, layout=layout, pid=os.getpid())
            if SYSTEM.sent_descriptors:
                with contextlib.suppress(OSError):
                    send_descriptor(peer.connection, self.arena.block.fd)

    def _accept(self) -> None:
        try:
            connection = Connection(self.listener.accept()[0].detach())
        except OSError:
            return
        pid, uid = peer_identity(connection)
        if uid != os.getuid():
            connection.close()
            return
        close_in_children(connection)
        peer = _Peer(connection, pid, watched_process(pid))
        self.selector.register(connection, selectors.EVENT_READ, peer)

    def _take_hello(self, peer: _Peer) -> None:
        messages, open_still = peer.messages()
        known = peer in self.peers
        if not open_still:
            self._forget(peer)
            if known:
                self.peers.remove(peer)
                who = f"rank {peer.wanted}" if peer.wanted is not None else "a process"
                self._fail(WorldError, f"{who} (pid {peer.pid}) ended while the ranks were meeting by {self.plan.what}")
            return
        if known or not messages:
            return
        refusal, wanted, count = "", messages[0]["rank"], messages[0]["world_size"]
        taken = {self.own_rank, *(other.wanted for other in self.peers)} - {None}
        if count != self.plan.world_size:
            refusal = f"this process counts {count} ranks, and {self.plan.hub} counts {self.plan.world_size}"
        elif wanted in taken:
            refusal = f"rank {wanted} is taken"
        elif self.arena is not None or len(self.peers) >= self.plan.world_size:
            refusal = "all ranks have come already"
        if refusal:
            peer.send(error=refusal, complete=self.arena is not None)
            self._forget(peer)
            return
        peer.wanted, peer.pid = wanted, peer.pid or messages[0]["pid"]
        self.peers.append(peer)

    def _give_numbers(self) -> None:
        taken = {self.own_rank, *(peer.wanted for peer in self.peers)}
        free = iter([rank for rank in range(self.plan.world_size) if rank not in taken])
        for peer in self.peers:  # those without a number get the free ones in the order in which they came
            peer.rank = peer.wanted if peer.wanted is not None else next(free)

    def _missing_text(self) -> str:
        plan = self.plan
        here = {self.own_rank, *(peer.wanted for peer in self.peers)} - {None}
        if any(peer.wanted is None for peer in self.peers) or not self.peers and self.own_rank is None:
            missing = f"{plan.world_size - len(self.peers)} of {plan.world_size} workers"
        else:
            missing = ranks_text([rank for rank in range(plan.world_size) if rank not in here])
        return f"{missing} did not come within {plan.limit_s:g} s ({plan.limit_variable}) to meet by {plan.what}"

    def _fail(self, kind: type[WorldError], text: str) -> None:
        for peer in self.peers:
            peer.send(error=text, kind=kind)
        self.close()
        raise kind(message(text, where="init"))

    def _forget(self, peer: _Peer) -> None:
        if peer.connection.closed:
            return
        for descriptor in (peer.connection, peer.process):
            with contextlib.suppress(KeyError, ValueError):  # it is not registered, or the system lacks them
                self.selector.unregister(descriptor)
        peer.close()

    def watch(self) -> None:
        """Look after the ranks until the last peer has gone (or `stop_watching`)."""
        for peer in self.peers:
            if peer.process >= 0:
                self.selector.register(peer.process, selectors.EVENT_READ, peer)
        left = list(self.peers)
        fault_told = False
        while left and not self.stop_watching.is_set():
            for key, _ in self.selector.select(LOOK_S):
                peer = key.data
                if peer is None:
                    self._accept()
                elif peer.rank is None:
                    self._take_hello(peer)
                elif peer in left:
                    messages, open_still = peer.messages()
                    peer.said_goodbye = peer.said_goodbye or any("bye" in message for message in messages)
                    if not open_still or key.fd == peer.process:
                        left.remove(peer)
                        self._ended(peer)
            for action in self.world.look():
                if isinstance(action, Warn):
                    print(f"parallel-lab: warning: {action.text}", file=sys.stderr, flush=True)
            if self.own_rank is None and self.world.stopped and not fault_told:
                fault_told = True
                print(f"parallel-lab: {self.world.fault()['text']}", file=sys.stderr, flush=True)
        self.all_gone.set()

    def _ended(self, peer: _Peer) -> None:
        rank = peer.rank
        self._forget(peer)
        if peer.said_goodbye:
            self.world.left(rank)
            return
        entry = self.world.last_entry(rank)
        where = f" {'in' if entry.end_s is None else 'after'} {entry}" if entry else ""
        how = "ended without leaving its world (killed, or by os._exit)"
        self.world.died(rank, f"rank {rank} (pid {peer.pid}) {how}{where}.")

    def close(self) -> None:
        """Close the connections and the socket."""
        for peer in self.peers:
            peer.send(bye=True)
            self._forget(peer)
        for key in list(self.selector.get_map().values()):
            if isinstance(key.data, _Peer):
                self._forget(key.data)
        self.selector.close()
        self.listener.close()
        if self.folder is not None:
            self.folder.remove()
