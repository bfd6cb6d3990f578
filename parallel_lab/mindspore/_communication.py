"""`pl.communication`: that of `train/`, and what only MindSpore's scripts ask.

The ranks of a host, those of one group in another, and the names of the groups of all ranks. Names, arguments and
exception classes: MindSpore, mindspore.communication; texts are ours.
"""

from __future__ import annotations

from ..base.errors import WorldArgumentError
from ..base.settings.tables import WORLD_GROUPS
from ..train.communication import (
    RANK,
    WORLD,
    GlobalComm,
    create_group,
    get_group_size,
    get_rank,
    init,
    known_world,
    members_of,
    place_in,
    release,
)

__all__ = [
    "HCCL_WORLD_COMM_GROUP",
    "MCCL_WORLD_COMM_GROUP",
    "NCCL_WORLD_COMM_GROUP",
    "GlobalComm",
    "create_group",
    "destroy_group",
    "get_group_rank_from_world_rank",
    "get_group_size",
    "get_local_rank",
    "get_local_rank_size",
    "get_process_group_ranks",
    "get_rank",
    "get_world_rank_from_group_rank",
    "init",
    "release",
]

HCCL_WORLD_COMM_GROUP = WORLD_GROUPS["hccl"]
NCCL_WORLD_COMM_GROUP = WORLD_GROUPS["nccl"]
MCCL_WORLD_COMM_GROUP = WORLD_GROUPS["mccl"]


def get_local_rank(group: str | None = None) -> int:
    """This process's number among the ranks of `group` on its host. Errors as `get_rank`."""
    world = known_world("get_local_rank")
    members = members_of("get_local_rank", group)
    return world.local_rank if len(members) == world.world_size else place_in("get_local_rank", group)


def get_local_rank_size(group: str | None = None) -> int:
    """How many ranks of `group` this host has. Errors as `get_rank`."""
    world = known_world("get_local_rank_size")
    members = members_of("get_local_rank_size", group)
    return world.local_size if len(members) == world.world_size else len(members)


def get_world_rank_from_group_rank(group: str, group_rank_id: int) -> int:
    """The world's rank of the one with rank `group_rank_id` in `group`. Errors as `get_rank`, also out of range."""
    where = "get_world_rank_from_group_rank"
    members = members_of(where, group, needed=True)
    RANK(where, "group_rank_id", group_rank_id, WORLD)
    if not 0 <= group_rank_id < len(members):
        what = f"group_rank_id={group_rank_id}"
        raise WorldArgumentError(what, where=where, allowed=f"0 to {len(members) - 1}: {group!r} has {members}")
    return members[group_rank_id]


def get_group_rank_from_world_rank(world_rank_id: int, group: str) -> int:
    """The rank in `group` of the world's rank `world_rank_id`. Errors as `get_rank`, also for one outside."""
    where = "get_group_rank_from_world_rank"
    members = members_of(where, group, needed=True)
    RANK(where, "world_rank_id", world_rank_id, WORLD)
    if world_rank_id not in members:
        what = f"world_rank_id={world_rank_id} is not in group {group!r}"
        raise WorldArgumentError(what, where=where, allowed=f"Its ranks: {members}")
    return members.index(world_rank_id)


def get_process_group_ranks(group: str | None = None) -> list[int]:
    """The world's numbers of the ranks of `group` (default: all), ascending. Errors as `get_rank`."""
    return list(members_of("get_process_group_ranks", group))


def destroy_group(group: str) -> None:
    """Forget a group that `create_group` made. Errors as `get_rank`, also for the group of all ranks."""
    members_of("destroy_group", group, needed=True)
    if group in WORLD_GROUPS.values():
        what = f"{group!r} is the group of all ranks"
        raise WorldArgumentError(what, where="destroy_group", hint="release() leaves the world")
    del known_world("destroy_group").groups[group]
