"""Processes that were started one by one meet: a socket with a name that all of them know, one that waits there, and
shared memory handed over.

    hub      rank 0 of a rank table, or the scheduler of a dynamic cluster: waits for all ranks, makes the memory, hands
             it to each, looks after them (hub.py)
    peer     connects (again and again until the hub is there), says who it is, receives rank and memory

On Linux the name is an abstract one, which vanishes with its socket; elsewhere it is a file that is removed at the end.
Only processes of the same user are let in. Nothing waits for ever: the rendezvous has a time limit that names who did
not come, and afterwards the supervisor (processes/supervisor.py) looks after the ranks as under a launcher.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
import threading
import time
from dataclasses import dataclass, field

from ...base.errors import WorldError, WorldTimeout, message
from ..shm.arena import ABORT, ArenaMap
from ..shm.attach import AttachedRank, attach, install_excepthook
from .hub import BUSY_S, LINE_BYTES, RETRY_S, Hub, RendezvousSpec, peer_identity, send, socket_address, watched_process
from .world import World, leave_in_order

PEER_LOOK_S = (
    0.25  # a peer has only two things to see: the end of the hub, and a fault that its own program does not notice
)
UNHEARD_S = 5.0  # after a fault, for a rank that asks for nothing any more and so does not hear of it


def host_rendezvous(plan: RendezvousSpec, library: str) -> World:
    """This process is rank 0 and the hub: wait for the others, and return the world.

    At the end it leaves last: it stays (within timeout_s) until the others have left, so that what is said about them
    is said.
    """
    hub = Hub(plan, own_rank=0)
    hub.collect()
    rank = attach(0, hub.arena.map, os.dup(hub.arena.block.fd))
    watcher = threading.Thread(target=hub.watch, daemon=True, name="hub")
    watcher.start()
    undo = install_excepthook(rank.note)
    unheard = _Unheard(rank)

    def leave() -> None:
        undo()
        unheard.world_left.set()
        leave_in_order(rank)
        hub.all_gone.wait(plan.timeout_s if not rank.arena.words[ABORT] else UNHEARD_S)
        hub.stop_watching.set()
        watcher.join(1.0)
        hub.close()

    unheard.start()
    return World(rank.comm, backend="shared_memory", launcher=plan.launcher, library=library, on_close=leave)


def join_rendezvous(plan: RendezvousSpec, rank: int | None, library: str) -> World:
    """This process is one of the others, with number `rank` or whichever is free: find the hub, and return the world.

    Raises WorldTimeout if the hub does not come in time, and what the hub says.
    """
    connection, reply, block = _find_hub(plan, rank)
    layout = ArenaMap(reply["world_size"], reply["buffer_bytes"], reply["ring_bytes"])
    attached = attach(reply["rank"], layout, block)
    undo = install_excepthook(attached.note)
    unheard = _Unheard(attached, connection, plan.hub)

    def leave() -> None:
        undo()
        unheard.world_left.set()
        leave_in_order(attached)
        with contextlib.suppress(OSError):
            send(connection, {"bye": True})
        connection.close()

    unheard.start()
    return World(attached.comm, backend="shared_memory", launcher=plan.launcher, library=library, on_close=leave)


def _find_hub(plan: RendezvousSpec, rank: int | None) -> tuple[socket.socket, dict, int]:
    end = time.monotonic() + plan.limit_s
    refused_until = time.monotonic() + BUSY_S
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(socket_address(plan.name))
        except OSError:
            connection.close()
            if time.monotonic() >= end:
                text = (
                    f"{plan.hub} did not come within {plan.limit_s:g} s ({plan.limit_variable}) to meet by {plan.what}"
                )
                raise WorldTimeout(text, where="init") from None
            time.sleep(RETRY_S)
            continue
        try:
            if peer_identity(connection)[1] != os.getuid():
                raise WorldError(f"the socket of {plan.what} belongs to another user", where="init")
            send(connection, {"rank": rank, "world_size": plan.world_size})
            # the hub keeps the limit; a moment more, so that its word comes first
            reply, descriptors = _receive(connection, max(1.0, end - time.monotonic()) + 5.0, plan)
            if "error" not in reply:
                return connection, reply, descriptors[0]
            if not reply.get("complete") or time.monotonic() > refused_until:
                kind = WorldTimeout if reply.get("kind") == "WorldTimeout" else WorldError
                raise kind(message(reply["error"], where="init"))
            connection.close()
            time.sleep(RETRY_S)  # an earlier run of the same name may be about to end
        except BaseException:
            connection.close()
            raise


def _receive(connection: socket.socket, limit_s: float, plan: RendezvousSpec) -> tuple[dict, list[int]]:
    connection.settimeout(limit_s)
    data, descriptors = b"", []
    while not data.endswith(b"\n"):
        try:
            piece, found, _, _ = socket.recv_fds(connection, LINE_BYTES, 1)
        except TimeoutError:
            raise WorldTimeout(
                f"{plan.hub} did not answer while the ranks were meeting by {plan.what}", where="init"
            ) from None
        except OSError:
            piece, found = b"", []
        if not piece:
            raise WorldError(f"{plan.hub} ended while the ranks were meeting by {plan.what}", where="init")
        data, descriptors = data + piece, descriptors + found
    return json.loads(data.split(b"\n")[0]), descriptors


@dataclass
class _Unheard:
    """The thread that sees what the rank's own program does not: the end of the hub, and a fault while it asks for
    nothing any more.
    """

    rank: AttachedRank
    connection: socket.socket | None = None
    hub: str = ""
    world_left: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        threading.Thread(target=self._watch, daemon=True, name="world").start()

    def _watch(self) -> None:
        arena, me = self.rank.arena, self.rank.comm.rank
        pid = peer_identity(self.connection)[0] if self.connection else 0
        process = watched_process(pid)
        fault_since_s: float | None = None
        with selectors.DefaultSelector() as selector:
            if self.connection is not None:
                self.connection.setblocking(False)
                selector.register(self.connection, selectors.EVENT_READ)
            if process >= 0:
                selector.register(process, selectors.EVENT_READ)
            while not self.world_left.is_set():
                ready = (
                    {key.fd for key, _ in selector.select(PEER_LOOK_S)}
                    if selector.get_map()
                    else self.world_left.wait(PEER_LOOK_S) and set()
                )
                if ready and not self.world_left.is_set():
                    if self._hub_is_gone():
                        arena.write_fault(
                            me, "RankDied", f"{self.hub} (pid {pid}) ended without leaving the world.", rank=0
                        )
                    for descriptor in list(selector.get_map()):
                        selector.unregister(descriptor)
                if arena.words[ABORT] and fault_since_s is None:
                    fault_since_s = time.monotonic()
                if (
                    fault_since_s is not None
                    and time.monotonic() - fault_since_s > UNHEARD_S
                    and not self.rank.comm._loop.fault_raised
                ):
                    self._end()
        if process >= 0:
            os.close(process)

    def _hub_is_gone(self) -> bool:
        """False if it said goodbye."""
        try:
            data = self.connection.recv(LINE_BYTES)
        except OSError:
            return True
        return b"bye" not in data

    def _end(self) -> None:
        text = self.rank.arena.read_fault()[1]["text"]
        print(f"parallel-lab: rank {self.rank.comm.rank} is ended: {text}", file=sys.stderr, flush=True)
        os._exit(1)
