"""Real worker processes with collectives through nameless shared memory.

The plain data path reads in this order: collectives, groups, barrier.

    shared_memory, arena   the block, and its map of words and buffers
    arrays                 arrays that all ranks can read (`comm.empty`)
    barrier, futex         the one wait loop of a rank
    groups                 barriers of a group: everybody says what it asks for, and sees that all ask for the same
    collectives, channels  how data moves;  slices: arrays as flat ranges
    nonblocking            collectives that are waited for later
    comm                   what a rank's function receives
    fast/                  shorter ways with the same bits, behind one hook
    pool, worker_main      the notebook's side: run, submit, stop; the process of a rank
    launch, server_preload starting workers
    attach, shared_world   processes that become ranks by themselves, and who looks after them
    watch                  which ranks wait for which
"""

from ...base.interrupts import AFTER_IMPORT_S, held
from ...base.system import IN_BROWSER
from ..flight import FlightEntry
from ..jobs import Job
from ..without import absent, nothing

if IN_BROWSER:
    globals().update(absent("Communicator", "WorkerPool", "context", "get_pool", "start_processes", "start_server"))
    close_all = release_pools = nothing
else:
    with held(AFTER_IMPORT_S):
        from .comm import Communicator
        from .launch import context, start_processes, start_server
        from .pool import WorkerPool, close_all, get_pool, release_pools

__all__ = ["Communicator", "FlightEntry", "Job", "WorkerPool", "close_all", "get_pool", "release_pools"]
__all__ += ["context", "start_processes", "start_server"]
