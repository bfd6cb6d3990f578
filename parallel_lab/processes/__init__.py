"""Ranks that are real processes: shared memory, MPI, how processes find each other, launchers, and what this machine
measures.

    supervisor           looking after ranks: one state machine for pools, launchers and hubs
    jobs, job_pool       functions that run on all ranks of a pool; outcome: one error from many reports
    faults, flight       errors that end a rank or a run; what each rank asked for last
    checked_calls        what both communicators do before ranks meet;  started: collectives that are waited for later
    shm/, mpi/           shared memory on one machine; MPI
    world/, launch/      how processes become ranks of one world; starting them
    measure/             the alpha-beta model of this machine
"""

from ..base.interrupts import import_whole

# a notebook that was interrupted in the middle of one would need another kernel
import_whole("dill", "multiprocess", "multiprocess.connection", "multiprocess.forkserver")
