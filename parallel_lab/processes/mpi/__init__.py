"""Ranks under MPI: the way beyond one machine, with the same plan, the same interpreter and the same errors.

    mpirun --oversubscribe -n 8 python script.py        # script.py calls parallel_lab.init(), or connect() from here

handshake     what ranks say to each other before data moves, and the one wait loop
comm          the communicator: requests answered over MPI
movement      how data moves when the members agree;  nonblocking: collectives that are waited for later
ending        all ranks end together, whichever way one of them ends
launch        mpirun's command line and environment;  pool, worker, keeper: a world on MPI from a notebook

Several hosts are designed for (nothing here assumes one machine, pool and worker aside), and untested: mpirun's own
options say which hosts there are (`-H host:slots`, a hostfile), the package must be installed on each.
"""

from __future__ import annotations

import os
import warnings

from ...base.errors import ArgumentError, MissingPackage, shorten
from ..supervisor import check_seconds
from .launch import INSTALL_HINT, Hosts, find_mpirun, launched_by_mpi, mpirun_command

__all__ = ["Hosts", "connect", "find_mpirun", "launched_by_mpi", "load_mpi", "mpirun_command"]

# The one communicator of this process: MPI can be started once per process, and ended once.
_connected: list = []


def load_mpi():
    """The module mpi4py.MPI; importing it starts MPI. Raises MissingPackage naming what is missing."""
    try:
        import mpi4py

        # `ending.py` finishes MPI, in this process only: mpi4py does it by itself also at the end of a forked child,
        # which then hangs (measured)
        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI library
        what = f"MPI cannot be used here ({str(error).strip().splitlines()[0]})"
        raise MissingPackage(what, where="mpi4py", hint=INSTALL_HINT) from error
    return MPI


def connect(*, reproducible: bool | None = None, timeout_s: float = 30.0, warn_after_s: float = 2.0):
    """This process as a rank of the world that mpirun started (without: a world of one): always the same
    MpiCommunicator. `reproducible`: sums in group order, bit for bit the simulator's; False: the MPI library's own;
    None: PARALLEL_LAB_MPI_REPRODUCIBLE (1 or 0), or True. After `warn_after_s` a warning names the missing ranks, after
    `timeout_s` CollectiveTimeout. From then on all ranks end together (`ending.py`). Raises MissingPackage.
    """
    if _connected:
        return _connected[0]
    if reproducible is None:
        word = os.environ.get("PARALLEL_LAB_MPI_REPRODUCIBLE", "1")
        if word not in ("0", "1"):
            raise ArgumentError(f"PARALLEL_LAB_MPI_REPRODUCIBLE={shorten(word)}", where="connect", allowed="1 or 0")
        reproducible = word == "1"
    check_seconds("connect", timeout_s=timeout_s, warn_after_s=warn_after_s)
    from .comm import MpiCommunicator
    from .ending import end_together

    def warn(text: str) -> None:
        warnings.warn(text, RuntimeWarning, stacklevel=2)

    limits = {"timeout_s": timeout_s, "warn_after_s": warn_after_s}
    comm = MpiCommunicator(load_mpi(), reproducible=reproducible, **limits, warn=warn)
    end_together(comm)
    _connected.append(comm)
    return comm
