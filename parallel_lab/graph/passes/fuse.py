"""Pass `fuse`: gradients, and sharded parameters, travel in buckets while the ranks compute.

    %bucket1         = concat(%w2.grad, %w1.grad)            side by side, in one array
    %bucket1.sent    = start(%bucket1)                       as soon as the last of them is made
    ...                                                      the rest of backward
    %bucket1.done    = wait(%bucket1.sent)
    %w2.grad.mirror  = split(%bucket1.done)                  a view

Gradients are sent as they become ready, waited for behind the backward program in the order they were sent. Parameters
are gathered one bucket ahead:
the next one starts when the last one has been waited for, so that two buckets are in memory besides what is in use.

Which messages share a bucket is in `buckets.py`. Where nobody asked for fusion the program stays as it is: each message
by itself, behind the backward program. (MindSpore's back end joins all messages of id 1 by default; here the first look
shows each for itself, and comm_fusion "auto" is one call.)

Sums are by element in rank order: buckets do not change a bit. With gradients_mean a bucket travels as a mean.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass, field, replace
from typing import Any

from ...base.errors import PlanError
from ...ops.collectives.definitions import MESSAGES
from ..draft import Draft, fresh_name
from ..instr import Instr, Value, attr_pairs
from .buckets import Member, called_together, members_of, shared_buckets, unreached


def fuse_messages(draft: Draft) -> Draft:
    """Put the messages of gradients and sharded parameters into buckets, and start each bucket as soon as it can be."""
    notes = []
    for phase in ("forward", "backward"):
        values, program = draft.value_table(), draft.program(phase)
        # what is sent for each micro-batch and what is sent once do not share a message
        alike: dict[tuple[str, str, int], list[Member]] = {}
        for member in members_of(draft, program, values):
            alike.setdefault((member.instr.kind, member.instr.once, member.instr.stage), []).append(member)
        buckets = called_together(program, values)
        if buckets:
            notes.append(f"{phase}: {sum(map(len, buckets))} calls of the network in {len(buckets)} messages")
        for (kind, *_), members in alike.items():
            shared = shared_buckets(draft, members)
            if shared is not None:
                buckets += shared
                sent = f"{len(shared)} message{'s' if len(shared) != 1 else ''}"
                notes.append(f"{phase}: {len(members)} {kind} in {sent}{unreached(draft, members)}")
        if buckets:
            program, buckets = _with_means(program, buckets)
            program = _placed(program, [_Bucket(members, values) for members in buckets])
            draft = draft.with_program(phase, program, values)
    return draft.noted("fuse", "; ".join(notes) or "no fusion was requested: every message travels by itself")


def _with_means(
    program: tuple[Instr, ...], buckets: list[list[Member]]
) -> tuple[tuple[Instr, ...], list[list[Member]]]:
    """Program and buckets with one division for each bucket of sums that only their count divides; same bits."""
    readers: dict[str, list[Instr]] = {}
    for instr in program:
        for name in instr.ins:
            readers.setdefault(name, []).append(instr)

    def divided(sum_: Instr) -> bool:
        used = readers.get(sum_.out, [])
        added = sum_.kind == "all_reduce" and sum_.attr("reduce") == "sum"
        return added and len(used) == 1 and used[0].op == "divide_by" and used[0].attr("count") == sum_.group_size

    means: dict[str, Instr] = {}
    for bucket in buckets:
        if all(divided(m.instr) for m in bucket):
            for m in bucket:
                attrs = attr_pairs({**dict(m.instr.attrs), "reduce": "mean"})
                means[m.instr.out] = replace(m.instr, outs=readers[m.instr.out][0].outs, attrs=attrs)
    dropped = {i.out for i in means.values()}
    left = tuple(means.get(i.out, i) for i in program if i.out not in dropped)
    return left, [[replace(m, instr=means.get(m.instr.out, m.instr)) for m in bucket] for bucket in buckets]


class _Bucket:
    """One bucket: `sending` (concat, start) `needs` values; `taking` (wait, a split per member) `gives` results."""

    def __init__(self, members: list[Member], values: dict[str, Value]) -> None:
        self.ahead = members[0].instr.kind == "all_gather" and members[0].given is not None
        self.needs = {m.instr.ins[0] for m in members}
        self.gives = {m.instr.out for m in members}
        make = _alone if len(members) == 1 else _one_message
        self.sending, self.taking = make(members, values)


def _alone(members: list[Member], values: dict[str, Value]) -> tuple[list[Instr], list[Instr]]:
    message = members[0].instr
    sent = fresh_name(f"{message.out}.sent", values)
    values[sent] = values[message.out]
    attrs = attr_pairs({**dict(message.attrs), "message": message.kind})
    start = replace(message, kind="start", outs=(sent,), attrs=attrs)
    return [start], [replace(message, kind="wait", ins=(sent,), attrs=attrs, reason="")]


def _one_message(members: list[Member], values: dict[str, Value]) -> tuple[list[Instr], list[Instr]]:
    """One message for several.

    A row of the bucket is what one rank of the group gives (all_gather: the only row; reduce_scatter: its piece of each
    member): one message along dim 0 brings each member's part to where its own message would have brought it.
    """
    first, n = members[0].instr, members[0].instr.group_size
    definition = MESSAGES[first.kind]
    rows_sent, rows_received = (n if definition.cut else 1), (n if definition.join else 1)
    width = sum(m.elements for m in members) // rows_sent
    origin = first.origin.made("fuse")
    names = [m.name for m in members]
    label = next(name for name in (f"bucket{n}" for n in itertools.count(1)) if name not in values)
    values[label] = Value((rows_sent, width), members[0].value.dtype, None)
    sent, done = fresh_name(f"{label}.sent", values), fresh_name(f"{label}.done", values)
    values[sent] = values[done] = Value((rows_received, width), members[0].value.dtype, None)
    turn = {"origin": origin, "once": first.once, "stage": first.stage}
    place = {"axes": first.axes, "device_matrix": first.device_matrix, **turn}
    operands = tuple(m.instr.ins[0] for m in members)
    concat = Instr("concat", (label,), operands, label, attrs=attr_pairs({"rows": rows_sent}), **turn)
    attrs = {"message": first.kind, "fusion": first.attr("fusion", 0), "members": tuple(names)}
    attrs |= {"reduce": first.attr("reduce")} if first.attr("reduce") is not None else {}
    attrs |= {"group": first.by_hand} if first.by_hand else {}
    attrs = attr_pairs(attrs | ({"dim": 0} if "dim" in definition.attributes else {}))
    carried = "slices" if first.kind == "all_gather" else "gradients"
    whose = "what the network sends in" if first.by_hand else f"{carried} of"
    what = f"{whose} {len(names)} {'calls' if first.by_hand else 'parameters'} in one message: {', '.join(names)}"
    start = Instr("start", (sent,), (label,), label, attrs=attrs, reason=what, **place)
    wait = Instr("wait", (done,), (sent,), label, attrs=attrs, **place)
    taking, at = [wait], 0
    for number, member in enumerate(members):
        stop = at + member.elements // rows_sent
        cut: dict[str, Any] = {"rows": rows_received, "start": at, "stop": stop, "member": number}
        cut["shape"] = values[member.instr.out].slice_shape
        alone = member.instr
        kept = {"reason": alone.reason, "origin": alone.origin, "once": alone.once, "stage": alone.stage}
        taking.append(Instr("split", alone.outs, (done,), alone.name, attrs=attr_pairs(cut), **kept))
        at = stop
    return [concat, start], taking


@dataclass
class _Step:
    """Instructions that stay together; the ready step with the smallest `turn` comes next."""

    instrs: list[Instr]
    needs: set[str]
    turn: tuple[float, ...]
    after: list[int] = field(default_factory=list)


def _placed(program: tuple[Instr, ...], buckets: list[_Bucket]) -> tuple[Instr, ...]:
    """The program with its messages replaced by buckets.

    What only leads to a message (gradients, casts, sums of several uses) runs early, and the message starts at once;
    what follows only from gradient messages comes last, bucket by bucket. The rest keeps its order.
    """
    late, ahead = [b for b in buckets if not b.ahead], [b for b in buckets if b.ahead]
    replaced = {name for bucket in buckets for name in bucket.gives}
    rest = [(n, i) for n, i in enumerate(program) if i.out not in replaced]
    early = _leading_to(replaced, program)
    behind = {name for bucket in late for name in bucket.gives}
    ready: dict[str, int] = {}  # value -> the position by which it can be there
    for n, instr in rest:
        if behind.intersection(instr.reads):
            behind.update(instr.outs)
        there = max((ready.get(name, -1) for name in instr.reads), default=-1) if instr.out in early else n
        ready.update(dict.fromkeys(instr.outs, there))
    steps: list[_Step] = []
    last = -1  # the rest keeps its order
    loops = {i.loop for _, i in rest if i.loop}
    for n, instr in rest:
        around = next((name for name, _ in instr.when if name in loops), "") if loops else ""
        if around and steps and (around, True) in steps[-1].instrs[-1].when:  # a loop stays whole
            steps[-1].needs.update(set(instr.reads).difference(*(i.outs for i in steps[-1].instrs)))
            steps[-1].instrs.append(instr)
            continue
        turn = (1, n) if around else (0, n) if instr.out in early else (2, -1, n) if instr.out in behind else (1, n)
        steps.append(_Step([instr], set(instr.reads), turn))
        if turn[0] == 1:
            steps[-1].after = [last] if last >= 0 else []
            last = len(steps) - 1
    for number, bucket in enumerate(sorted(late, key=lambda b: max(ready.get(name, -1) for name in b.needs))):
        steps.append(_Step(bucket.sending, bucket.needs, (-1, number)))
        steps.append(_Step(bucket.taking, {bucket.sending[-1].out}, (2, number)))
    first_use = [min((n for n, i in rest if b.gives.intersection(i.reads)), default=len(program)) for b in ahead]
    before: list[int] = []
    for use, bucket in sorted(zip(first_use, ahead, strict=True), key=lambda pair: pair[0]):
        steps.append(_Step(bucket.sending, bucket.needs, (-1, -1), list(before)))
        steps.append(_Step(bucket.taking, {bucket.sending[-1].out}, (1, use - 0.5)))
        before = [len(steps) - 1]
    return _in_turn(steps)


def _leading_to(replaced: set[str], program: tuple[Instr, ...]) -> set[str]:
    """Values that nothing reads but the messages that make `replaced`, and what leads to them only."""
    users: dict[str, set[str]] = {}
    for instr in program:
        for name in instr.reads:
            users.setdefault(name, set()).update(instr.outs)
    names: set[str] = set()
    for instr in reversed(program):
        used, local = set().union(*(users.get(name, ()) for name in instr.outs)), not instr.is_communication
        # what is made again for backward waits for its turn: early, it would take the memory that it is to save
        local = local and instr.origin.made_by != "recompute" and not instr.when
        if local and instr.out not in replaced and used and used <= names | replaced:
            names.update(instr.outs)
    return names


def _in_turn(steps: list[_Step]) -> tuple[Instr, ...]:
    """All instructions, each step behind those it needs, by turn."""
    maker = {name: n for n, step in enumerate(steps) for i in step.instrs for name in i.outs}
    waits = [{maker[name] for name in step.needs if name in maker} | set(step.after) for step in steps]
    followers: dict[int, list[int]] = {}
    for n, needed in enumerate(waits):
        for m in needed:
            followers.setdefault(m, []).append(n)
    heap = [(step.turn, n) for n, step in enumerate(steps) if not waits[n]]
    heapq.heapify(heap)
    done: list[Instr] = []
    while heap:
        _, n = heapq.heappop(heap)
        done += steps[n].instrs
        for m in followers.get(n, ()):
            waits[m].discard(n)
            if not waits[m]:
                heapq.heappush(heap, (steps[m].turn, m))
    stuck = next((steps[n].instrs[0] for n, needed in enumerate(waits) if needed), None)
    if stuck is not None:
        what, allowed = f"{stuck.out!r} waits for a message that waits for it", "A message of what is made before it"
        raise PlanError(what, where="fuse", allowed=allowed, hint="Fuse fewer: comm_fusion by size, or by index")
    return tuple(done)
