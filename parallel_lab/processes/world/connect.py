"""`connect`: this process becomes the rank that its environment says, however it was started."""

from __future__ import annotations

import dataclasses
import os
from contextvars import ContextVar
from typing import Any

from ...base.errors import NotLaunched, WorldError
from ...base.hooks import set_world
from ...base.settings.tables import WORLD_GROUPS
from .world import World, collective_timeout_s, leave_in_order

# The communicator of the rank that this thread plays, in a process that is not one (`lab/exercises/played_ranks.py`).
played_rank: ContextVar[Any] = ContextVar("parallel_lab_played_rank", default=None)


def ways_to_start() -> str:
    """How ranks can be started, for error texts."""
    return (
        "Ways to start ranks: parallel-lab run -n 8 script.py; mpirun --oversubscribe -n 8 python script.py; "
        "RANK_TABLE_FILE and RANK_ID in the environment of each process; parallel-lab msrun or MS_ROLE, "
        "MS_WORKER_NUM, MS_SCHED_HOST, MS_SCHED_PORT; "
        "in a notebook %load_ext parallel_lab and %%ranks -n 8"
    )


def connect(library: str | None = None) -> World:
    """Make this process the rank that its environment says; returns its world, as `current_world()` from now on.
    `library`: one of BACKENDS, or None; "mpi" asks for MPI, the others name the group of all ranks. Raises WorldError
    (a RuntimeError) naming the ways to start where nothing did, WorldArgumentError, WorldTimeout, MissingPackage.
    """
    from ..shm.attach import launched_place

    names = library if library in WORLD_GROUPS else "hccl"
    place, played = launched_place(), played_rank.get()
    if played is not None:
        world = World(played, backend="shared_memory", launcher="a check", library=names)
    elif place is not None and library != "mpi":
        world = _launched(place, names)
    elif library == "mpi" or _launched_by_mpi():
        from .. import mpi

        world = World(mpi.connect(timeout_s=collective_timeout_s()), backend="mpi", launcher="mpirun", library=names)
    elif os.environ.get("RANK_TABLE_FILE") and os.environ.get("RANK_ID"):
        from .rank_table import meet_by_table

        world = meet_by_table(names)
    elif os.environ.get("MS_ROLE"):
        from .cluster_env import meet_in_cluster

        world = meet_in_cluster(names)
    else:
        pair = ("RANK_TABLE_FILE", "RANK_ID")
        halves = [f"{one} is set, but {other} is not" for one, other in (pair, pair[::-1]) if os.environ.get(one)]
        what = "this process was started alone, as no rank of a world"
        raise NotLaunched(what, where="init", hint="".join(halves) or ways_to_start())
    set_world(world)
    try:
        world.agree()
        world.comm.caller.anybody_may_call()  # a program may join in one thread and train in another
    except BaseException:
        set_world(None)
        raise
    return world


def _launched_by_mpi() -> bool:
    if not any(name.startswith(("OMPI_", "PMI_", "PMIX_", "MPI_")) for name in os.environ):
        return False
    from .. import mpi

    return mpi.launched_by_mpi()


def _launched(place: Any, library: str) -> World:
    from ..shm.attach import VARIABLE, attach

    if place.left:
        what = "this rank has left its world, and a launched process is a rank of one world only"
        raise WorldError(what, where="init", hint="Call release() at the end, or start the script again")
    rank = attach(place.rank, place.layout, os.dup(place.block))

    def leave() -> None:
        os.environ[VARIABLE] = dataclasses.replace(place, left=True).text()
        leave_in_order(rank)

    return World(rank.comm, backend="shared_memory", launcher=place.launcher, library=library, on_close=leave)
