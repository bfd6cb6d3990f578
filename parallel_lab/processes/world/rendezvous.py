"""Processes that were started one by one meet: one waits at a socket all know, and hands over memory.

    hub      rank 0 of a rank table, or the scheduler of a dynamic cluster: waits for all ranks, makes the memory, hands
             it to each, looks after them (hub.py)
    peer     connects (again and again until the hub listens), says who it is, receives rank and memory

The name is an abstract one, which vanishes with its socket, or that of a folder (`own_folder.py`). Only processes of
the same user are let in. Nothing waits for ever: the rendezvous has a time limit that names who did not come, and
afterwards the supervisor (processes/supervisor.py) looks after the ranks as under a launcher.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from multiprocess.connection import Client, Connection

from ...base.errors import WorldError, WorldTimeout, message
from ...base.system import SYSTEM, require_processes
from ..own_folder import folder_of, remove_if_dead
from ..shm.arena import ABORT
from ..shm.attach import AttachedRank, attach, install_excepthook
from ..shm.shared_memory import received_descriptor
from .hub import (
    BUSY_S,
    RETRY_S,
    Hub,
    RendezvousSpec,
    close_in_children,
    memory_path,
    peer_identity,
    refuse_strangers,
    socket_address,
    watched_process,
)
from .world import World, leave_in_order

# a peer has only two things to see: the end of the hub, and a fault that its own program does not notice
PEER_LOOK_S = 0.25
UNHEARD_S = 5.0  # after a fault, for a rank that asks for nothing any more and so does not hear of it


def host_rendezvous(plan: RendezvousSpec, library: str) -> World:
    """This process is rank 0 and the hub: wait for the others, return the world, and leave last (within timeout_s)."""
    hub = Hub(plan, own_rank=0)
    hub.collect()
    rank = attach(0, hub.arena.map, os.dup(hub.arena.block.fd))
    watcher = threading.Thread(target=hub.watch, daemon=True, name="hub")
    watcher.start()

    def farewell() -> None:
        hub.all_gone.wait(plan.timeout_s if not rank.arena.words[ABORT] else UNHEARD_S)
        hub.stop_watching.set()
        watcher.join(1.0)
        hub.close()

    return _world(plan, library, _Unheard(rank), farewell)


def join_rendezvous(plan: RendezvousSpec, rank: int | None, library: str) -> World:
    """Join with number `rank` or a free one; returns the world. Raises WorldTimeout without a hub, or its words."""
    require_processes("init")
    connection, reply, block = _find_hub(plan, rank)
    attached = attach(reply["rank"], reply["layout"], block)

    def farewell() -> None:
        with contextlib.suppress(OSError):
            connection.send({"bye": True})
        connection.close()

    folder = "" if SYSTEM.abstract_sockets else str(folder_of(plan.name))
    return _world(plan, library, _Unheard(attached, connection, plan.hub, reply["pid"], folder), farewell)


def _world(plan: RendezvousSpec, library: str, unheard: _Unheard, farewell: Callable[[], None]) -> World:
    rank = unheard.rank
    undo = install_excepthook(rank.note)

    def leave() -> None:
        undo()
        unheard.world_left.set()
        leave_in_order(rank)
        farewell()

    unheard.start()
    return World(rank.comm, backend="shared_memory", launcher=plan.launcher, library=library, on_close=leave)


def _find_hub(plan: RendezvousSpec, rank: int | None) -> tuple[Connection, dict, int]:
    """(connection to the hub, its reply, descriptor of the memory)."""
    end = time.monotonic() + plan.limit_s
    refused_until = time.monotonic() + BUSY_S
    while True:
        try:
            connection = Client(socket_address(plan.name), "AF_UNIX")
        except OSError:
            if time.monotonic() >= end:
                late = f"did not come within {plan.limit_s:g} s ({plan.limit_variable}) to meet by {plan.what}"
                raise WorldTimeout(f"{plan.hub} {late}", where="init") from None
            time.sleep(RETRY_S)
            continue
        close_in_children(connection)
        try:
            refuse_strangers(connection, plan.what)
            # the hub keeps the limit; a moment more, so that its word comes first
            reply, block = _ask(connection, rank, max(1.0, end - time.monotonic()) + 5.0, plan)
            if block >= 0:
                return connection, reply, block
            if not reply.get("complete") or time.monotonic() > refused_until:
                raise reply.get("kind", WorldError)(message(reply["error"], where="init"))
            connection.close()
            time.sleep(RETRY_S)  # an earlier run of the same name may be about to end
        except BaseException:
            connection.close()
            raise


def _ask(connection: Connection, rank: int | None, limit_s: float, plan: RendezvousSpec) -> tuple[dict, int]:
    """(what the hub replies, descriptor of the memory, -1 where it refuses)."""
    meeting = f"while the ranks were meeting by {plan.what}"
    try:
        connection.send({"rank": rank, "world_size": plan.world_size, "pid": os.getpid()})
        if connection.poll(limit_s):
            reply = connection.recv()
            if "error" in reply:
                return reply, -1
            if SYSTEM.sent_descriptors:
                return reply, received_descriptor(connection)
            return reply, os.open(memory_path(plan.name), os.O_RDWR | os.O_CLOEXEC)
    except (EOFError, OSError, RuntimeError):
        raise WorldError(f"{plan.hub} ended {meeting}", where="init") from None
    raise WorldTimeout(f"{plan.hub} did not answer {meeting}", where="init")


@dataclass
class _Unheard:
    """A thread that sees the end of the hub, and a fault while the rank's own program asks for nothing any more."""

    rank: AttachedRank
    connection: Connection | None = None
    hub: str = ""
    hub_pid: int = 0
    folder: str = ""
    world_left: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        threading.Thread(target=self._watch, daemon=True, name="world").start()

    def _watch(self) -> None:
        arena, me = self.rank.arena, self.rank.comm.rank
        pid = (self.connection and peer_identity(self.connection)[0]) or self.hub_pid
        process = watched_process(pid)
        fault_since_s = math.inf
        with selectors.DefaultSelector() as selector:
            if self.connection is not None:
                selector.register(self.connection, selectors.EVENT_READ)
            if process >= 0:
                selector.register(process, selectors.EVENT_READ)
            while not self.world_left.is_set():
                if not selector.get_map():
                    self.world_left.wait(PEER_LOOK_S)
                elif selector.select(PEER_LOOK_S) and not self.world_left.is_set():
                    if self._hub_is_gone():
                        text = f"{self.hub} (pid {pid}) ended without leaving the world."
                        arena.write_fault(me, "RankDied", text, rank=0)
                        if self.folder:
                            remove_if_dead(self.folder)
                    for descriptor in list(selector.get_map()):
                        selector.unregister(descriptor)
                if not arena.words[ABORT] or self.rank.comm._loop.fault_raised:
                    fault_since_s = math.inf
                elif fault_since_s == math.inf:
                    fault_since_s = time.monotonic()
                if time.monotonic() - fault_since_s > UNHEARD_S:
                    self._end()
        if process >= 0:
            os.close(process)

    def _hub_is_gone(self) -> bool:
        """False if it said goodbye."""
        try:
            return not self.connection.poll() or "bye" not in self.connection.recv()
        except (EOFError, OSError):
            return True

    def _end(self) -> None:
        text = self.rank.arena.read_fault()[1]["text"]
        print(f"parallel-lab: rank {self.rank.comm.rank} is ended: {text}", file=sys.stderr, flush=True)
        os._exit(1)
