"""The two lanes of the Fusion Lab: what backward computes, and the messages that carry its gradients.

    lanes = plan_lanes(plan, cluster)           predicted, from shapes
    lanes = event_lanes(plan, session.events)   simulated or measured, of one step of rank 0
    lanes = overlap_lanes(overlap)              of a list of gradients without a network

A message is exposed where it travels after the last computation of backward: there the rank has nothing to do but wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...base.cluster import Cluster
from ...base.errors import ArgumentError
from ...base.events import Event
from ...cost.overlap import Gradient, Overlap
from ...cost.time import single_stage
from ...cost.timeline import predict_timeline
from ...graph.instr import Instr
from ...graph.plan import Plan

Timed = tuple[str, Instr, float, float]  # phase, instruction, start, end (of a start: of its journey)


@dataclass(frozen=True)
class Box:
    """What backward computes until the gradient `name` exists, and the work on its complete sum; in seconds."""

    name: str
    size_bytes: int
    start_s: float
    end_s: float
    after_s: float = 0.0


@dataclass(frozen=True)
class Sent:
    """A message.  ready_s: when its last gradient was ready;  start_s, end_s: when it travelled."""

    members: tuple[str, ...]
    size_bytes: int
    ready_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Lanes:
    """One step: both lanes, and when backward begins and ends and the step ends, in seconds since the step began."""

    boxes: tuple[Box, ...]
    messages: tuple[Sent, ...]
    forward_s: float
    backward_s: float
    step_s: float

    def exposed(self, sent: Sent) -> float:
        """Seconds that a message travels after backward."""
        return max(0.0, sent.end_s - max(sent.start_s, self.backward_s))

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The gradients of each message, by name, in the order in which backward makes them."""
        return tuple(tuple(box.name for box in self.boxes if box.name in sent.members) for sent in self.messages)

    @property
    def exposed_s(self) -> float:
        return sum(self.exposed(m) for m in self.messages)

    @property
    def communication_s(self) -> float:
        return sum(m.end_s - m.start_s for m in self.messages)


def overlap_lanes(found: Overlap) -> Lanes:
    """The lanes of a list of gradients: no forward, no update."""
    boxes, messages, start_s = [], [], 0.0
    for gradient, ready_s in zip(found.gradients, found.ready_s, strict=True):
        boxes.append(Box(gradient.name, gradient.size_bytes, start_s, ready_s))
        start_s = ready_s
    for b in found.buckets:
        names = tuple(found.gradients[p].name for p in b.members)
        messages.append(Sent(names, b.size_bytes, b.ready_s, b.start_s, b.end_s))
    return Lanes(tuple(boxes), tuple(messages), 0.0, found.backward_s, found.step_s)


def plan_lanes(plan: Plan, cluster: Cluster) -> Lanes:
    """The step of rank 0 as `predict_timeline` has it."""
    return event_lanes(plan, predict_timeline(plan, cluster, ranks=(0,)).log)


def event_lanes(plan: Plan, events: Iterable[Event], step: int | None = None) -> Lanes:
    """The lanes of rank 0 in a step of `events` (default: the last). Raises ArgumentError for a step without any."""
    own = [e for e in events if e.rank == 0 and step in (None, e.step)]
    if not own:
        raise ArgumentError("no events of rank 0", where="event_lanes", hint="Train with record=1")
    step = max(e.step for e in own)
    own = [e for e in own if e.step == step]
    began = min(e.start_s for e in own)
    event_of: dict[tuple[str, int, str, bool], Event] = {}
    for event in own:
        event_of[event.phase, event.micro_batch, event.name, event.kind == "wait" and not event.overlapped] = event
    timed: list[Timed] = []
    line_s = 0.0
    stage = single_stage(plan)
    for action in stage.actions:
        for _, instr in stage.part(action):
            waits = instr.kind == "wait"
            event = event_of.get((action.program, action.micro_batch, instr.ins[0] if waits else instr.out, waits))
            if event is None:
                continue
            start_s, end_s = event.start_s - began, event.end_s - began
            if (
                instr.kind == "start"
            ):  # the event begins when the rank hands the message over; it travels behind the one before
                start_s = max(start_s, line_s)
                line_s = end_s = max(start_s, end_s)
            timed.append((action.program, instr, start_s, end_s))
    return _lanes(plan, timed)


def made_by(plan: Plan, lanes: Lanes) -> dict[str, list[str]]:
    """Which instructions of backward the lanes are read off, by what they make: the one that completes the gradient of
    each box, the one that hands each message over, and those that come "after" messages.
    """
    stage = single_stage(plan)
    program = [i for action in stage.actions if action.program == "backward" for _, i in stage.part(action)]
    maker = {name: i.out for i in program if i.kind not in ("start", "wait") for name in i.kept}
    packed = {i.out: i for i in program if i.kind == "concat"}
    gradient: dict[str, str] = {}
    messages, after = [], set()
    for instr in program:
        if after.intersection(instr.ins):
            after.update(instr.kept)
        elif instr.carried and instr.message == "all_reduce":
            sources = packed[instr.ins[0]].ins if instr.ins[0] in packed else instr.ins
            gradient |= {name: maker[source] for name, source in zip(instr.carried, sources, strict=True)}
            messages.append(instr.out)
            after.add(instr.out)
    return {"boxes": [gradient[box.name] for box in lanes.boxes], "messages": messages, "after": sorted(after)}


def gradients_of(lanes: Lanes) -> tuple[tuple[Gradient, ...], float]:
    """The boxes as `cost/overlap.py` takes them, and the seconds of backward after the last."""
    gradients, before = [], lanes.forward_s
    for box in lanes.boxes:
        gradients.append(Gradient(box.name, box.size_bytes, max(0.0, box.end_s - before), box.after_s))
        before = max(before, box.end_s)
    return tuple(gradients), max(0.0, lanes.backward_s - before)


def _lanes(plan: Plan, timed: Sequence[Timed]) -> Lanes:
    """Boxes and messages of instructions that were timed, in program order."""
    ready_at = {name: end for phase, i, _, end in timed if phase == "backward" and i.kind != "start" for name in i.kept}
    packed = {i.out: i for phase, i, _, _ in timed if phase == "backward" and i.kind == "concat"}
    behind: dict[str, tuple[str, ...]] = {}  # what follows from gradient messages: whose
    after: dict[str, float] = {}
    messages: list[Sent] = []
    ready: list[tuple[float, int, str, int]] = []
    forward_s = max((end for phase, _, _, end in timed if phase == "forward"), default=0.0)
    backward_s = forward_s
    for phase, instr, start_s, end_s in timed:
        if phase != "backward":
            continue
        if any(name in behind for name in instr.ins):
            owners = tuple(dict.fromkeys(owner for name in instr.ins for owner in behind.get(name, ())))
            whose = (owners[instr.attr("member")],) if instr.kind == "split" else owners
            behind.update(dict.fromkeys(instr.kept, whose))
            if instr.kind == "compute" and len(owners) == 1:
                after[owners[0]] = after.get(owners[0], 0.0) + end_s - start_s
        elif instr.carried and instr.message == "all_reduce":
            behind[instr.out] = instr.carried
            sources = packed[instr.ins[0]].ins if instr.ins[0] in packed else instr.ins
            for name, source in zip(instr.carried, sources, strict=True):
                ready.append((ready_at.get(source, forward_s), len(ready), name, plan.value(source).slice_bytes))
            size = sum(plan.value(source).slice_bytes for source in sources)
            messages.append(
                Sent(instr.carried, size, max(ready_at.get(source, forward_s) for source in sources), start_s, end_s)
            )
        else:
            backward_s = max(backward_s, end_s)
    boxes, before = [], forward_s
    for end_s, _, name, size in sorted(ready):
        boxes.append(Box(name, size, before, end_s, after.get(name, 0.0)))
        before = end_s
    step_s = max((end for _, _, _, end in timed), default=0.0)
    return Lanes(tuple(boxes), tuple(messages), forward_s, backward_s, step_s)
