"""Real worker processes with collectives through nameless shared memory.

arena        the shared block: words, flight recorder, buffers        pool           the notebook's side: run, submit, stop, errors
barrier      meeting the members of a group, the one wait loop        watch          who waits for whom: warnings, time limits, cycles
collectives, channels   moving the data                              launch, worker_main   starting processes, and how they end
comm         what a rank's function receives                          outcome        one error from many reports
"""

from ..jobs import Job
from .arena import FlightEntry
from .comm import Communicator
from .pool import WorkerPool, close_all, get_pool

__all__ = ["Communicator", "FlightEntry", "Job", "WorkerPool", "close_all", "get_pool"]
