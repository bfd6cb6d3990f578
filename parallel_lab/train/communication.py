"""MindSpore's communication functions: `init`, ranks, groups.

    from parallel_lab.train.communication import init, get_rank, get_group_size

    init()
    print(get_rank(), "of", get_group_size())

`init` connects this process with the other ranks, however they were started (processes/world/world.py lists the ways).
Names, arguments and exception classes: MindSpore, mindspore.communication; texts are ours. Functions that only
MindSpore's scripts call are in `mindspore/_communication.py`.
"""

from __future__ import annotations

import os
from typing import Any

from ..base import hooks
from ..base.checks import Errors, checked, choice, instance, integer, text
from ..base.errors import NotLaunched, WorldArgumentError, WorldError, WorldTypeError, shorten
from ..base.settings.compat import get_compat
from ..base.settings.tables import WORLD_GROUPS
from ..processes.world.connect import connect, ways_to_start
from ..processes.world.world import BACKENDS, World

__all__ = ["GlobalComm", "create_group", "get_group_size", "get_rank", "init", "release"]

WORLD = Errors(WorldTypeError, WorldArgumentError)
RANK = integer(kinds=int)
LONGEST_NAME = 127  # characters of a group name; MindSpore, create_group


class _LiveNames(type):
    """Reads the names from the world of this process, so that no second place could disagree with it."""

    @property
    def BACKEND(cls) -> str:
        """ "hccl", "nccl" or "mccl"; "" before `init`."""
        world = hooks.current_world()
        return world.library if world else ""

    @property
    def WORLD_COMM_GROUP(cls) -> str:
        """The name of the group of all ranks."""
        world = hooks.current_world()
        return WORLD_GROUPS[world.library if world else "hccl"]

    @property
    def INITED(cls) -> bool:
        """True between `init` and `release`."""
        return hooks.current_world() is not None


class GlobalComm(metaclass=_LiveNames):
    """What the communication of this process is called: BACKEND, WORLD_COMM_GROUP, INITED. Read-only.

    CHECK_ENVS  may be set: False lets `init` pass in a process that no launcher started, for scripts that only compile
    """

    CHECK_ENVS = True


@checked("", WORLD, backend_name=choice(*BACKENDS) | None)
def init(backend_name: str | None = None) -> None:
    """Connect this process with the other ranks. A second call does nothing.

    backend_name   "hccl", "nccl" or "mccl": only the name of the group of all ranks, all of them run on this machine's
                   processors; "mpi": through MPI, however started; None: as the launcher says, named "hccl"

    The ranks meet here for the first time: a rank that does not call `init` keeps the others waiting, and the time
    limit names it. Rank 0's seed (`set_seed`) becomes every rank's.

    Raises WorldTypeError (a TypeError) for a name that is not a string, WorldArgumentError (a ValueError) for an
    unknown one, WorldError (a RuntimeError) where no launcher started this process.
    """
    if hooks.current_world() is None:
        try:
            connect(backend_name)
        except NotLaunched:
            if GlobalComm.CHECK_ENVS:
                raise
            return
        # Cells called from now on may have to run compiled; a process that is not a rank need not load the compiler
        from .finite import before_all_reduce
        from .replicas import after_update, before_sum
        from .run_cell import run_cell

        hooks.set_cell_runner(run_cell)
        world = hooks.current_world()
        world.before_sum, world.after_update, world.before_all_reduce = before_sum, after_update, before_all_reduce


def release() -> None:
    """Leave the world; at exit this happens by itself. Raises WorldError before `init`."""
    known_world("release").close()


def get_rank(group: str | None = None) -> int:
    """This process's number in `group` (its name; default: all ranks).

    Before `init` with compat "2.10": the environment's RANK_ID, or 0. Raises WorldError (a RuntimeError) before `init`,
    WorldTypeError, WorldArgumentError (unknown, without this rank).
    """
    number = _of_environment("get_rank", group, "RANK_ID", 0)
    return place_in("get_rank", group) if number is None else number


def get_group_size(group: str | None = None) -> int:
    """How many ranks `group` has (default: all). Before `init` with compat "2.10": RANK_SIZE, or 1. As `get_rank`."""
    size = _of_environment("get_group_size", group, "RANK_SIZE", 1)
    return len(members_of("get_group_size", group)) if size is None else size


def create_group(group: str, rank_ids: list[int], options: Any = None) -> None:
    """Name the ranks `rank_ids` for operators and `get_rank`. Ranks outside may call it too; nobody waits.

    group      1 to 127 characters, not the name of a group with other ranks
    rank_ids   ascending ints, each once
    options    None: the options MindSpore takes here tune its own libraries

    Raises WorldError (a RuntimeError) before `init`, WorldTypeError (a TypeError), WorldArgumentError (a ValueError).
    """
    where = "create_group"
    world = known_world(where)
    text(where, "group", group, WORLD)
    instance(list, "A list of ints, such as [0, 1]")(where, "rank_ids", rank_ids, WORLD)
    if not 0 < len(group) <= LONGEST_NAME:
        what = f"the name {shorten(group)} has {len(group)} characters"
        raise WorldArgumentError(what, where=where, allowed=f"1 to {LONGEST_NAME}")
    if options is not None:
        what = f"options={shorten(options)}"
        raise WorldArgumentError(what, where=where, allowed="None: there is no library here to tune")
    for rank in rank_ids:
        RANK(where, "a rank of rank_ids", rank, WORLD)
    outside = [rank for rank in rank_ids if not 0 <= rank < world.world_size]
    if not rank_ids or outside:
        what = f"rank_ids={shorten(rank_ids)}"
        raise WorldArgumentError(what, where=where, allowed=f"At least one of the ranks 0 to {world.world_size - 1}")
    if sorted(set(rank_ids)) != rank_ids:
        fault = "names a rank twice" if len(set(rank_ids)) < len(rank_ids) else "is not ascending"
        what = f"rank_ids={shorten(rank_ids)} {fault}"
        raise WorldArgumentError(what, where=where, allowed=f"Each rank once, ascending: {sorted(set(rank_ids))}")
    if world.groups.get(group, tuple(rank_ids)) != tuple(rank_ids):
        what = f"group {group!r} already exists, with the ranks {list(world.groups[group])}"
        raise WorldArgumentError(what, where=where, hint="Take another name, or destroy_group first")
    world.groups[group] = tuple(rank_ids)


def known_world(where: str) -> World:
    """The world of this process. Raises WorldError (a RuntimeError) before `init`, for the function `where`."""
    world = hooks.current_world()
    if world is None:
        from ..processes.shm.attach import launched_place

        what = "the communication is not initialised in this process"
        hint = "" if launched_place() else ways_to_start()  # a launcher has started the ranks already
        raise WorldError(what, where=where, allowed="Call init() first", hint=hint)
    return world


def members_of(where: str, group: str | None, *, needed: bool = False) -> tuple[int, ...]:
    """The ranks of a group (its name; None: all ranks). Raises WorldError, WorldTypeError, WorldArgumentError."""
    world = known_world(where)
    if not isinstance(group, str) and (needed or group is not None):
        raise WorldTypeError(f"group={shorten(group)}", where=where, allowed="The name of a group, a str")
    try:
        return world.group(group)
    except WorldArgumentError as error:
        raise WorldArgumentError(f"{where}: {error}") from None


def _of_environment(where: str, group: str | None, variable: str, usual: int) -> int | None:
    """What MindSpore 2.10 says before `init`, whatever the group; None if ranks are known, or by the seeds' rules."""
    if hooks.current_world() is not None or get_compat() != "2.10":
        return None
    (text | None)(where, "group", group, Errors(WorldTypeError, WorldArgumentError))
    digits = os.environ.get(variable, "")
    return int(digits) if digits.isdecimal() else usual


def place_in(where: str, group: str | None) -> int:
    """This process\'s number in a group. Errors as `members_of`, also for a group without this rank."""
    world, members = known_world(where), members_of(where, group)
    if world.rank not in members:
        what = f"rank {world.rank} is not in group {group!r}, whose ranks are {list(members)}"
        raise WorldArgumentError(what, where=where)
    return members.index(world.rank)
