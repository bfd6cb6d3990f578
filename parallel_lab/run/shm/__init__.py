"""Real worker processes with collectives through nameless shared memory.

block, arena, heap   the shared memory: words, buffers, arrays        pool           the notebook's side: run, submit, stop, errors
groups, barrier, futex   meeting the members, the one wait loop       watch          who waits for whom: warnings, time limits, cycles
collectives, one_meeting, one_step, large_sum, channels   the data    launch, worker_main   starting processes, and how they end
started      collectives that are waited for later                    outcome        one error from many reports
comm, checked_calls   what a rank's function receives                 flight         what each rank asked for last
"""

from ..jobs import Job
from .arena import FlightEntry
from .comm import Communicator
from .pool import WorkerPool, close_all, get_pool

__all__ = ["Communicator", "FlightEntry", "Job", "WorkerPool", "close_all", "get_pool"]
