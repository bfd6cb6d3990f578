"""The rank table: a JSON file that says which rank runs on which card, and processes that a shell starts one by one.

    RANK_TABLE_FILE=/path/rank_table_2pcs.json RANK_ID=1 DEVICE_ID=1 python train.py

    {"version": "1.0", "server_count": "1", "status": "completed",
     "server_list": [{"server_id": "10.0.0.1", "host_nic_ip": "reserve",
                      "device": [{"device_id": "0", "device_ip": "192.1.27.6", "rank_id": "0"}, ...]}]}

The cards are only numbers here, the processes all run on this machine; but a table that the real machine would refuse
is refused. Rules of HCCL (MindSpore, distributed training on Ascend): 1, 2, 4 or 8 cards of one server, or 8 x N of
several; cards 0 to 3 and 4 to 7 are wired to different networks, so 2 or 4 cards must be on one side. Addresses are not
looked at.

The ranks meet at a socket named by the table's content; rank 0 waits there. Time limit: HCCL_CONNECT_TIMEOUT seconds
(120, as HCCL's).
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.errors import NotBuiltYet, WorldArgumentError, shorten
from .hub import RendezvousSpec
from .rendezvous import host_rendezvous, join_rendezvous
from .world import World, collective_timeout_s, seconds_from

LIMIT_VARIABLE = "HCCL_CONNECT_TIMEOUT"
LIMIT_S = 120.0
CARDS = 8  # of a server
LARGEST_FILE = 16 << 20  # bytes


@dataclass(frozen=True)
class RankTable:
    """devices: device id per rank;  key: the same for equal tables, whatever their layout as text."""

    devices: tuple[int, ...]
    key: str


def read_rank_table(path: str | os.PathLike[str]) -> RankTable:
    """The table in `path`, checked.

    Raises WorldArgumentError (a ValueError and RuntimeError) for a file that is missing, no JSON, lacks a field or
    breaks a rule; NotBuiltYet for a table of several servers that breaks none.
    """
    where = f"rank table {path}"
    file = Path(path)
    if not file.is_file():
        raise WorldArgumentError("there is no such file", where=where, hint="RANK_TABLE_FILE is its path")
    if file.stat().st_size > LARGEST_FILE:
        raise WorldArgumentError(
            f"the file has {file.stat().st_size} bytes", where=where, allowed=f"At most {LARGEST_FILE}"
        )
    try:
        table = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise WorldArgumentError(f"it is not JSON ({error})", where=where) from error
    servers = _field(table, "server_list", list, where)
    version, status = _field(table, "version", str, where), _field(table, "status", str, where)
    if version != "1.0":
        raise WorldArgumentError(f"version {shorten(version)}", where=where, allowed='"1.0"')
    if status != "completed":
        raise WorldArgumentError(f"status {shorten(status)}", where=where, allowed='"completed": the table is whole')
    if _number(table, "server_count", where) != len(servers) or not servers:
        raise WorldArgumentError(
            f"server_count {table['server_count']!r}, and server_list has {len(servers)}", where=where
        )
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
    if not isinstance(entry, dict):
        raise WorldArgumentError(f"{shorten(entry)} stands where an object belongs", where=where)
    if name not in entry:
        raise WorldArgumentError(
            f"the field {name!r} is missing", where=where, allowed=f"Found: {', '.join(map(str, entry)) or 'nothing'}"
        )
    if not isinstance(entry[name], kind):
        words = {str: "a string", list: "a list"}[kind]
        raise WorldArgumentError(f"{name}={shorten(entry[name])}", where=where, allowed=f"{name} is {words}")
    return entry[name]


def _number(entry: Any, name: str, where: str) -> int:
    text = _field(entry, name, str, where)
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise WorldArgumentError(
            f"{name}={shorten(text)}", where=where, allowed=f'{name} is a number in quotes, such as "0"'
        )
    return int(text)


def _check_cards(cards: list[tuple[int, int, int]], servers: int, where: str) -> None:
    count = len(cards)
    ranks = sorted(rank for rank, _, _ in cards)
    if not count or ranks != list(range(count)):
        allowed = f"{count} cards have the rank ids 0 to {count - 1}, each once" if count else "At least one card"
        raise WorldArgumentError(f"rank ids {shorten(ranks)}", where=where, allowed=allowed)
    places = [(server, device) for _, server, device in cards]
    twice = sorted({place for place in places if places.count(place) > 1}) if count <= 4096 else []
    if twice:
        raise WorldArgumentError(f"device_id {twice[0][1]} of server {twice[0][0]} is given to two ranks", where=where)
    outside = [device for _, _, device in cards if device >= CARDS]
    if outside:
        raise WorldArgumentError(
            f"device_id {outside[0]}", where=where, allowed=f"A server has the cards 0 to {CARDS - 1}"
        )
    if servers > 1:
        sizes = [sum(server == position for _, server, _ in cards) for position in range(servers)]
        if any(size != CARDS for size in sizes):
            raise WorldArgumentError(
                f"{servers} servers with {sizes} cards",
                where=where,
                allowed="Several servers take part with 8 cards each",
            )
        hint = "Several hosts: mpirun -H host1:8,host2:8 python script.py"
        raise NotBuiltYet(
            f"it names {servers} servers, and the ranks of a rank table share the memory of one machine",
            where=where,
            hint=hint,
        )
    if count not in (1, 2, 4, CARDS):
        raise WorldArgumentError(f"{count} cards of one server", where=where, allowed="1, 2, 4 or 8 (HCCL)")
    low = [device for _, _, device in cards if device < CARDS // 2]
    if count in (2, 4) and low and len(low) < count:
        devices = sorted(device for _, _, device in cards)
        allowed = "Cards 0 to 3 and cards 4 to 7 are wired to different networks, so 2 or 4 cards are all from one side"
        raise WorldArgumentError(
            f"{count} cards, {devices}, straddle the two sides of the server", where=where, allowed=allowed
        )


def meet_by_table(library: str) -> World:
    """This process's world by RANK_TABLE_FILE and RANK_ID, and what RANK_SIZE and DEVICE_ID say, which must agree with
    the table.
    """
    path = os.environ["RANK_TABLE_FILE"]
    table = read_rank_table(path)
    where, count = f"rank table {path}", len(table.devices)
    rank = _from_environment("RANK_ID", where)
    if rank >= count:
        raise WorldArgumentError(
            f"RANK_ID={rank} is not in the table", where=where, allowed=f"Rank ids 0 to {count - 1}"
        )
    if os.environ.get("RANK_SIZE") and _from_environment("RANK_SIZE", where) != count:
        raise WorldArgumentError(f"RANK_SIZE={os.environ['RANK_SIZE']}, and the table has {count} ranks", where=where)
    if os.environ.get("DEVICE_ID") and _from_environment("DEVICE_ID", where) != table.devices[rank]:
        what = f"DEVICE_ID={os.environ['DEVICE_ID']}, and the table gives rank {rank} the card {table.devices[rank]}"
        raise WorldArgumentError(what, where=where)
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


def _from_environment(name: str, where: str) -> int:
    text = os.environ[name]
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise WorldArgumentError(f"{name}={shorten(text)}", where=where, allowed=f"{name} is a whole number from 0 on")
    return int(text)
