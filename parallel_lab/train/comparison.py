"""Programs of ranks, compared before step 1, so that ranks that do not fit each other raise and never wait for ever.

In modes that split operators all ranks run one program. In data_parallel and hybrid_parallel each rank traces the
network for itself, and what it traces may depend on its number: there the messages are compared, in the order in which
they are sent. Where they are not the same list on all ranks, `fault_of` walks through the lists as ranks would.
"""

from __future__ import annotations

import hashlib
from collections import deque
from itertools import zip_longest
from typing import Any

import numpy as np

from ..base.errors import CollectiveMismatch, shorten
from ..base.settings.checks import LOCAL_MODES
from ..graph.kinds import class_name
from ..graph.plan import Plan
from ..ops.collectives.definitions import MESSAGES
from .agreement import said_by_all

Message = dict[str, Any]


def compare_programs(plan: Plan, world: Any, rates: dict[str, float]) -> None:
    """Raise CollectiveMismatch on every rank unless all have compiled the same program, or (data_parallel,
    hybrid_parallel: each rank runs the network for itself) one whose messages meet.

    rates  the optimizer's learning rates now: no part of the program, but copies of a parameter must take the same step
    """
    local = plan.config.parallel_mode in LOCAL_MODES
    by_hand = any(i.by_hand for _, i in plan.instructions())
    lines = _lines(plan, rates)
    mine = np.frombuffer(hashlib.sha256("\n".join(lines).encode()).digest() + bytes([local, by_hand]), np.uint8)
    tag = f"compare the programs of {plan.graph.name}"
    digests = np.asarray(world.comm.all_gather(mine[None], dim=0, tag=tag))
    other = next((r for r in range(len(digests)) if not np.array_equal(digests[r], digests[0])), None)
    odd = next((r for r in range(len(digests)) if digests[r, -2] != digests[0, -2]), None)
    allowed, hint = "All ranks run one program", _SAME
    if odd is not None:
        modes = ("a mode that splits operators", " or ".join(LOCAL_MODES))
        what = f"rank {odd} trains in {modes[digests[odd, -2]]}, and rank 0 in {modes[digests[0, -2]]}"
        raise CollectiveMismatch(what, where="before step 1", allowed=allowed, hint=hint)
    if local and (other is not None or digests[:, -1].any()):
        what = fault_of(said_by_all(world, messages_of(plan, world.rank)))
        if not what:
            return
        allowed = "Ranks whose messages meet: the same collectives in the same order, a Receive for every Send"
        hint = "What a network sends may depend on get_rank(), but every message needs all that take part in it"
        raise CollectiveMismatch(what, where="before step 1", allowed=allowed, hint=hint)
    if other is not None:
        texts = said_by_all(world, lines)
        what = f"rank {other} has compiled another program of {plan.graph.name} than rank 0: "
        pairs = zip_longest(texts[other], texts[0], fillvalue="nothing more")
        what += next(
            (f"{shorten(one, 300)} in place of {shorten(first, 300)}" for one, first in pairs if one != first), ""
        )
        raise CollectiveMismatch(what, where="before step 1", allowed=allowed, hint=hint)


_SAME = "Nothing in the network, its strategies, its optimizer or the settings may depend on get_rank()"


def _lines(plan: Plan, rates: dict[str, float]) -> list[str]:
    """What is equal for equal programs, wherever their source files lie: a line for each thing that counts."""
    local = plan.config.parallel_mode in LOCAL_MODES
    lines = []
    if not local:
        facts = [(i.name, i.role, plan.value(i.name)) for i in (*plan.data_inputs, *plan.parameters)]
        lines += [f"{role} {name} {v.shape} {v.dtype} in slices {v.slice_shape} {v.layout}" for name, role, v in facts]
        lines += [f"{name} {rate}" for name, rate in sorted(rates.items())]
    for phase, i in plan.instructions():
        value = plan.value(i.ins[0]) if i.ins else plan.value(i.out)
        if i.is_communication or not local:
            what = f"{phase} {i.kind} {i.op} {i.axes} {i.device_matrix} {i.attrs} {value.slice_shape} {value.dtype}"
            lines.append(what if local else f"{what} {i.kept} {i.ins} {i.offset_axes}")
    if not local:
        kept = plan.outputs, plan.forward_assignments, plan.assignments, plan.states, plan.optimizer, plan.constants
        lines += list(map(repr, kept))
    return lines


def messages_of(plan: Plan, rank: int) -> list[Message]:
    """What `rank` sends, receives, starts and waits for in a step, in order, as plain data.

    kind, group   of the message; of a wait "wait", and `start`, the number of what was started
    about         what its members must agree on: dtype, shape, attributes
    at            operator and source line
    operand       the Parameter that it is given, if so; compared where both ranks give one
    """
    messages: list[Message] = []
    parameters = {parameter.name for parameter in plan.parameters}
    started: dict[str, int] = {}
    for _, i in plan.instructions():
        if not i.runs_on(rank) or not (i.is_communication or i.kind == "wait"):
            continue
        group = list(i.group(rank))
        if i.kind == "wait":
            messages.append({"kind": "wait", "group": group, "start": started[i.ins[0]], "at": i.name})
            continue
        definition = MESSAGES[i.message]
        value = plan.value(i.out if i.kind == "recv" else i.ins[0])
        about = {name: i.attr(name) for name in definition.attributes if i.attr(name) is not None}
        if definition.symmetric or not definition.is_collective:
            about |= {"shape": list(value.slice_shape), "dtype": value.dtype}
        at = f"{i.name} at {i.origin.place}" if i.origin.place else i.name
        message = {"kind": i.message, "group": group, "about": about, "at": f"{class_name(i)} of {at}"}
        if i.ins and i.ins[0] in parameters:
            message["operand"] = i.ins[0]
        if i.kind == "start":
            started[i.out] = len(messages)
            message["started"] = True
        messages.append(message)
    return messages


def fault_of(ranks: list[list[Message]]) -> str:
    """What is wrong with the ranks' lists of messages, walked through together; "" if all meet to the end."""
    at = [0] * len(ranks)
    mail: dict[tuple[int, int, int], deque[Message]] = {}
    begun: dict[tuple[int, ...], dict[int, list[int]]] = {}  # group -> rank -> places of what it has started
    moved = True
    while moved:
        moved = False
        for rank, messages in enumerate(ranks):
            while at[rank] < len(messages):
                fault = _taken(rank, ranks, at, mail, begun)
                if fault is None:
                    break
                if fault:
                    return fault
                moved = True
    stuck = [rank for rank, messages in enumerate(ranks) if at[rank] < len(messages)]
    if stuck:
        return "; ".join(_waits(rank, ranks, at) for rank in stuck)
    unread = next((message for queue in mail.values() for message in queue), None)
    if unread is not None:
        source, to = unread["group"]
        return f"rank {source} calls {_words(unread)}, and rank {to} never receives it"
    return ""


def _taken(rank: int, ranks: list[list[Message]], at: list[int], mail: dict, begun: dict) -> str | None:
    """Take the next message of `rank`, of a collective those of all members: "" if done, None if it waits, a fault."""
    message = ranks[rank][at[rank]]
    kind, group = message["kind"], tuple(message["group"])
    if kind in ("send", "recv"):
        queue = mail.setdefault((*group, message["about"]["sr_tag"]), deque())
        if kind == "send":
            queue.append(message)
        elif not queue:
            return None
        else:
            sent = queue.popleft()
            if sent["about"] != message["about"]:
                return _differ(group[0], sent, rank, message)
        at[rank] += 1
        return ""
    if message.get("started"):
        places = begun.setdefault(group, {})
        mine = places.setdefault(rank, [])
        mine.append(at[rank])
        for other, theirs in places.items():
            if len(theirs) >= len(mine):
                there = ranks[other][theirs[len(mine) - 1]]
                if not _meet(there, message):
                    return _differ(other, there, rank, message)
        at[rank] += 1
        return ""
    if kind == "wait":
        number = begun[group][rank].index(message["start"])
        if any(len(begun[group].get(member, ())) <= number for member in group):
            return None
        at[rank] += 1
        return ""
    for member in group:
        if at[member] >= len(ranks[member]):
            return f"rank {rank} calls {_words(message)}, and rank {member} has no message left"
        there = ranks[member][at[member]]
        if tuple(there["group"]) != group or there["kind"] in ("send", "recv", "wait") or there.get("started"):
            return None
        if not _meet(there, message):
            return _differ(member, there, rank, message)
    for member in group:
        at[member] += 1
    return ""


def _meet(one: Message, other: Message) -> bool:
    """Whether these are one collective."""
    named = [message["operand"] for message in (one, other) if "operand" in message]
    return len(set(named)) < 2 and all(one[key] == other[key] for key in ("kind", "group", "about"))


def _differ(one: int, first: Message, other: int, second: Message) -> str:
    pairs = sorted([(one, first), (other, second)], key=lambda pair: pair[0])
    return " and ".join(f"rank {rank} calls {_words(message)}" for rank, message in pairs)


def _waits(rank: int, ranks: list[list[Message]], at: list[int]) -> str:
    message = ranks[rank][at[rank]]
    return f"rank {rank} would wait for ever in {_words(message)}, with {tuple(message['group'])}"


def _words(message: Message) -> str:
    """A message in words: "AllReduce of all_reduce at net.py:12, float32 (4, 2), reduce sum"."""
    about = dict(message.get("about", {}))
    dtype, shape = about.pop("dtype", ""), about.pop("shape", None)
    value = f"{dtype} {tuple(shape)}" if shape is not None else ""
    attributes = [f"{name} {given}" for name, given in about.items() if (name, given) != ("sr_tag", 0)]
    operand = f"parameter {message['operand']!r}" if "operand" in message else ""
    return ", ".join(filter(None, (message["at"], operand, value, *attributes)))
