"""The rank table: a JSON file that says which rank runs on which card, and processes that a shell starts one by one.

    RANK_TABLE_FILE=/path/rank_table_2pcs.json RANK_ID=1 DEVICE_ID=1 python train.py

    {"version": "1.0", "server_count": "1", "status": "completed",
     "server_list": [{"server_id": "10.0.0.1", "host_nic_ip": "reserve",
                      "device": [{"device_id": "0", "device_ip": "192.1.27.6", "rank_id": "0"}, ...]}]}

The cards are only numbers here, the processes all run on this machine; but a table that the real machine would refuse
is refused. Rules of HCCL (MindSpore, distributed training on Ascend): 1, 2, 4 or 8 cards of one server, or 8 x N of
several; cards 0 to 3 and 4 to 7 are wired to different networks, so 2 or 4 cards must be on one side. Addresses are not
looked at.

The ranks meet at a socket named by the table's content; rank 0 waits there. Time limit: HCCL_CONNECT_TIMEOUT s (120).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ...base.errors import NotBuiltYet, WorldArgumentError, shorten
from ...base.plain_json import read_json
from .hub import RendezvousSpec
from .rendezvous import host_rendezvous, join_rendezvous
from .world import World, collective_timeout_s, seconds_from, whole_number

LIMIT_VARIABLE = "HCCL_CONNECT_TIMEOUT"
LIMIT_S = 120.0
CARDS = 8  # of a server
LARGEST_FILE = 1 << 20  # bytes: eight thousand cards


@dataclass(frozen=True)
class RankTable:
    """devices: device id per rank;  key: the same for equal tables, whatever their layout as text."""

    devices: tuple[int, ...]
    key: str


def read_rank_table(path: str | os.PathLike[str]) -> RankTable:
    """The checked table in `path`. Raises WorldArgumentError (ValueError, RuntimeError): missing, no JSON, lacks a
    field, breaks a rule; NotBuiltYet: several servers, no rule broken.
    """
    where = f"rank table {path}"
    refused = functools.partial(WorldArgumentError, where=where)
    how = {"where": where, "hint": "RANK_TABLE_FILE is its path"}
    table = read_json(path, WorldArgumentError, max_bytes=LARGEST_FILE, **how)
    servers = _field(table, "server_list", list, where)
    for name, wanted, meaning in (("version", "1.0", ""), ("status", "completed", ": the table is whole")):
        found = _field(table, name, str, where)
        if found != wanted:
            raise refused(f"{name} {shorten(found)}", allowed=f'"{wanted}"{meaning}')
    if _number(table, "server_count", where) != len(servers) or not servers:
        raise refused(f"server_count {table['server_count']!r}, and server_list has {len(servers)}")
    cards: list[tuple[int, int, int]] = []  # rank, server, device
    for position, server in enumerate(servers):
        at = f"{where}, server {position}"
        _field(server, "server_id", str, at)
        for device in _field(server, "device", list, at):
            cards.append((_number(device, "rank_id", at), position, _number(device, "device_id", at)))
    _check_cards(cards, len(servers), where)
    devices = tuple(device for _, _, device in sorted(cards))
    key = hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
    return RankTable(devices, key)


def _field(entry: Any, name: str, kind: type, where: str) -> Any:
    refused = functools.partial(WorldArgumentError, where=where)
    if not isinstance(entry, dict):
        raise refused(f"{shorten(entry)} stands where an object belongs")
    if name not in entry:
        found = ", ".join(map(str, entry)) or "nothing"
        raise refused(f"the field {name!r} is missing", allowed=f"Found: {found}")
    if not isinstance(entry[name], kind):
        words = {str: "a string", list: "a list"}[kind]
        raise refused(f"{name}={shorten(entry[name])}", allowed=f"{name} is {words}")
    return entry[name]


def _number(entry: Any, name: str, where: str) -> int:
    allowed = f'{name} is a number in quotes, such as "0"'
    return whole_number(name, _field(entry, name, str, where), allowed, where)


def _check_cards(cards: list[tuple[int, int, int]], servers: int, where: str) -> None:
    refused = functools.partial(WorldArgumentError, where=where)
    count = len(cards)
    ranks = sorted(rank for rank, _, _ in cards)
    if not count or ranks != list(range(count)):
        allowed = f"{count} cards have the rank ids 0 to {count - 1}, each once" if count else "At least one card"
        raise refused(f"rank ids {shorten(ranks)}", allowed=allowed)
    places = Counter((server, device) for _, server, device in cards)
    for server, device in sorted(place for place, times in places.items() if times > 1):
        raise refused(f"device_id {device} of server {server} is given to two ranks")
    devices = sorted(device for _, _, device in cards)
    if devices[-1] >= CARDS:
        raise refused(f"device_id {devices[-1]}", allowed=f"A server has the cards 0 to {CARDS - 1}")
    if servers > 1:
        sizes = [sum(server == position for _, server, _ in cards) for position in range(servers)]
        if any(size != CARDS for size in sizes):
            allowed = "Several servers take part with 8 cards each"
            raise refused(f"{servers} servers with {sizes} cards", allowed=allowed)
        what = f"it names {servers} servers, and the ranks of a rank table share the memory of one machine"
        raise NotBuiltYet(what, where=where, hint="Several hosts: mpirun -H host1:8,host2:8 python script.py")
    if count not in (1, 2, 4, CARDS):
        raise refused(f"{count} cards of one server", allowed="1, 2, 4 or 8 (HCCL)")
    if count < CARDS and devices[0] < CARDS // 2 <= devices[-1]:
        allowed = "Cards 0 to 3 and cards 4 to 7 are wired to different networks, so 2 or 4 cards are all from one side"
        raise refused(f"{count} cards, {devices}, straddle the two sides of the server", allowed=allowed)


def meet_by_table(library: str) -> World:
    """The world by RANK_TABLE_FILE and RANK_ID; RANK_SIZE and DEVICE_ID, where given, must agree with the table."""
    path, environment = os.environ["RANK_TABLE_FILE"], os.environ
    table = read_rank_table(path)
    where, count = f"rank table {path}", len(table.devices)
    given = {
        name: whole_number(name, environment[name], f"{name} is a whole number from 0 on", where)
        for name in ("RANK_ID", "RANK_SIZE", "DEVICE_ID")
        if environment.get(name)
    }
    rank = given["RANK_ID"]
    refused = functools.partial(WorldArgumentError, where=where)
    if rank >= count:
        raise refused(f"RANK_ID={rank} is not in the table", allowed=f"Rank ids 0 to {count - 1}")
    if given.get("RANK_SIZE", count) != count:
        raise refused(f"RANK_SIZE={environment['RANK_SIZE']}, and the table has {count} ranks")
    device = table.devices[rank]
    if given.get("DEVICE_ID", device) != device:
        raise refused(f"DEVICE_ID={environment['DEVICE_ID']}, and the table gives rank {rank} the card {device}")
    plan = RendezvousSpec(
        name=f"parallel_lab-{os.getuid()}-{table.key[:32]}",
        what=f"rank table {os.path.basename(path)}",
        hub="rank 0",
        world_size=count,
        launcher="a rank table",
        limit_s=seconds_from(LIMIT_VARIABLE, LIMIT_S),
        limit_variable=LIMIT_VARIABLE,
        timeout_s=collective_timeout_s(),
    )
    return host_rendezvous(plan, library) if rank == 0 else join_rendezvous(plan, rank, library)
