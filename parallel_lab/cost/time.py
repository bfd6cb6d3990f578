"""Seconds per instruction and per step on one rank, from shapes alone; any number of devices.

compute         max(flops / rate, bytes touched / memory bandwidth) + overhead          (roofline)
slice, concat   bytes read and written / memory bandwidth + overhead
on the host     the same with the rates of the host
copies          alpha + beta * bytes of the link between a device and its host
messages        closed forms in alpha, beta and gamma: those of their definitions, `ops/collectives/definitions.py`

On a measured machine whose ranks share cores, all that needs a core takes longer, and a message needs one as well
(`shared_cores.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..base.cluster import Cluster, Device, Host, Link
from ..base.errors import ArgumentError, PlanError
from ..graph.actions import Action, Stage
from ..graph.copies import COPIES, runs_on_host
from ..graph.instr import Instr, Value
from ..graph.kinds import KINDS
from ..graph.plan import PHASES, Plan
from ..ops.collectives.definitions import MESSAGES
from .shared_cores import call_time_s, on_shared_cores


def message_time_s(
    kind: str,
    operand_bytes: float,
    group_size: int,
    link: Link,
    gamma_s_per_byte: float = 0.0,
    window: tuple[int, int, int, int] | None = None,
    route: tuple[Any, ...] | None = None,
) -> float:
    """Seconds for one message of any kind, from the bytes of the operand one rank hands over (for scatter: the root's).

    window   halo_exchange and halo_reduce: their attribute (step, origin, length, part)
    route    exchange and exchange_reduce: theirs, `Route(src, dst, shape).attr`

    A collective of one rank costs nothing. Raises ArgumentError: no closed form, negative size, empty group.

    >>> message_time_s("all_reduce", 8_000, 4, Link(alpha_s=1e-6, beta_s_per_byte=1e-9))
    1.8e-05
    >>> message_time_s("halo_exchange", 8_000, 3, Link(alpha_s=1e-6, beta_s_per_byte=1e-9), window=(4, -1, 6, 4))
    6e-06
    """
    if kind not in MESSAGES:
        raise ArgumentError(f"{kind!r} has no closed form", where="message_time_s", allowed="A kind of message")
    if group_size < 1 or not operand_bytes >= 0:
        what = f"{operand_bytes} bytes in a group of {group_size}"
        raise ArgumentError(what, where="cost of a message", allowed="At least 0 bytes and 1 rank")
    return MESSAGES[kind].time_s(operand_bytes, group_size, link, gamma_s_per_byte, window or route)


# ---- instructions ----


class HoldsValues(Protocol):
    """What prices of an instruction are asked of: a plan, or a table of values."""

    def value(self, name: str) -> Value:
        """The value of this name."""


def message_bytes(plan: HoldsValues, instr: Instr, rank: int | None = None) -> int:
    """Bytes a rank hands over: its operand, its pieces for others; of a recv what arrives, 0 for local instructions."""
    if not instr.is_communication:
        return 0
    definition = MESSAGES[instr.message]
    if rank is not None and definition.sender == "root" and not definition.gives(rank, instr.attr("root")):
        return 0
    if definition.piecewise:
        return sent_bytes(plan, instr, None if rank is None else instr.position(rank))
    return _operand_bytes(plan, instr)


def operand_of(instr: Instr, handed_over_bytes: int, group_size: int) -> float:
    """Bytes of an operand when the rank that sends most hands over so many: all, or of pieces those for others."""
    definition = MESSAGES[instr.message]
    if not definition.piecewise or group_size == 1:
        return handed_over_bytes
    parts = definition.block_exchange({"window": instr.how, "route": instr.how}, group_size)
    return handed_over_bytes * math.prod(parts.operand) / max(max(sum(out) for out, _ in parts.traffic), 1)


def _operand_bytes(plan: HoldsValues, instr: Instr) -> int:
    if not instr.is_communication or instr.message == "barrier":
        return 0
    return plan.value(instr.out if instr.message == "recv" else instr.ins[0]).slice_bytes


def is_border(instr: Instr) -> bool:
    """Whether an instruction is one side of a message between pipeline stages."""
    return instr.attr("shift") is not None


def takes_border(instr: Instr) -> bool:
    """Whether it needs what another stage has sent."""
    received = instr.kind == "recv" or (instr.kind == "wait" and instr.attr("message") == "recv")
    return received and is_border(instr)


def border_key(instr: Instr, action: Action) -> tuple[int, int]:
    """(its tag, its micro-batch; -1 once): what a send and its recv have in common."""
    return instr.attr("sr_tag"), -1 if instr.once else action.micro_batch


def plan_message_time_s(plan: HoldsValues, instr: Instr, cluster: Cluster, link: Link) -> float:
    """Seconds for one message of a plan over `link`."""
    gamma, call_s = cluster.device.gamma_s_per_byte, call_time_s(cluster)
    return call_s + MESSAGES[instr.message].time_s(
        _operand_bytes(plan, instr), instr.group_size, link, gamma, instr.how
    )


def sent_bytes(plan: HoldsValues, instr: Instr, position: int | None = None) -> int:
    """Bytes a rank must send for this message in the bandwidth-optimal form (see `CollectiveDef.payload`); 0 for local
    instructions. Piece by piece: the member at `position`, or the one that sends most.
    """
    if not instr.is_communication:
        return 0
    definition = MESSAGES[instr.message]
    # a send has no axes along which its two ranks would differ
    members = instr.group_size if definition.is_collective else 2
    return definition.payload_bytes(_operand_bytes(plan, instr), members, instr.how, position)


def is_view(instr: Instr) -> bool:
    """Whether the result is the operand's own memory under another shape."""
    return KINDS[instr.kind].view(instr)


def instr_flops(plan: HoldsValues, instr: Instr) -> int:
    """Floating-point operations of one rank, on its slices; 0 for everything but compute."""
    return KINDS[instr.kind].flops(plan, instr)


def touched_bytes(plan: HoldsValues, instr: Instr) -> int:
    """Bytes a local instruction reads and writes; none for a view."""
    return 0 if is_view(instr) else KINDS[instr.kind].touched(plan, instr)


def local_time_s(plan: HoldsValues, instr: Instr, device: Device | Host) -> float:
    """Seconds for an instruction that needs no other rank, nor a copy. Raises PlanError for a message."""
    if instr.is_communication:
        raise PlanError(f"kind {instr.kind!r} has no cost rule", where=f"instruction {instr.out!r}")
    work_s = instr_flops(plan, instr) / device.flops_per_s
    return max(work_s, touched_bytes(plan, instr) / device.memory_bandwidth_bytes_per_s) + device.overhead_s


def own_time_s(plan: Plan, instr: Instr, cluster: Cluster, host: frozenset[str]) -> float:
    """Seconds of a copy, or of local work where it is done; `host`: what lies there (`frozenset(plan.host)`)."""
    if instr.kind in COPIES:
        return cluster.known_host.link.time_s(plan.value(instr.out).slice_bytes)
    return local_time_s(plan, instr, cluster.known_host if runs_on_host(instr, host) else cluster.device)


def instr_time_s(plan: Plan, instr: Instr, cluster: Cluster, *, rank: int = 0) -> float:
    """Seconds of one instruction on `rank`: working, or from the last member's arrival to the end (slowest link)."""
    cluster = on_shared_cores(cluster, plan.device_num)
    if not instr.is_communication:
        return own_time_s(plan, instr, cluster, frozenset(plan.host))
    return plan_message_time_s(plan, instr, cluster, cluster.link_for(instr.group(rank)))


def on_dearer_sides(plan: Plan, price: Callable[[Instr], float]) -> Plan:
    """The plan as a step of it is predicted: of every `if` on a tensor the side whose instructions have the higher
    prices in all, and nothing of the other one.
    """
    prices: dict[tuple[str, bool], float] = {}
    for stage in plan.stages:
        for instr in (i for _, program in stage.programs for i in program):
            for side in instr.when:
                prices[side] = prices.get(side, 0.0) + price(instr)
    if not prices:
        return plan
    left_out = {(c, s) for (c, s), sum_ in prices.items() if (sum_, s) < (prices.get((c, not s), 0.0), not s)}
    stages = []
    for stage in plan.stages:
        kept = ((p, tuple(i for i in program if left_out.isdisjoint(i.when))) for p, program in stage.programs)
        stages.append(replace(stage, programs=tuple(kept)))
    return replace(plan, stages=tuple(stages))


# ---- a step ----


@dataclass(frozen=True)
class PhaseTime:
    """A phase of a step on one rank: `flops`, `sent_bytes` (bandwidth-optimal form), number of `messages`.

    compute_s  of the host too;  copy_s: copies between device and host, of so many bytes to_host and to_device
    """

    phase: str
    compute_s: float
    communication_s: float
    flops: int
    sent_bytes: int
    messages: int
    copy_s: float = 0.0
    to_host_bytes: int = 0
    to_device_bytes: int = 0

    @property
    def total_s(self) -> float:
        """Seconds, one after the other."""
        return self.compute_s + self.communication_s + self.copy_s


@dataclass(frozen=True)
class StepTime:
    """Predicted seconds of a step on a rank by phase, all messages in full (hidden ones: `predict_timeline`)."""

    rank: int
    phases: tuple[PhaseTime, ...]

    @property
    def compute_s(self) -> float:
        """Seconds of computing, of all phases."""
        return math.fsum(p.compute_s for p in self.phases)

    @property
    def communication_s(self) -> float:
        """Seconds of messages, of all phases."""
        return math.fsum(p.communication_s for p in self.phases)

    @property
    def copy_s(self) -> float:
        """Seconds of copies to and from the host, of all phases."""
        return math.fsum(p.copy_s for p in self.phases)

    @property
    def to_host_bytes(self) -> int:
        """Bytes copied from the device to the host in a step."""
        return sum(p.to_host_bytes for p in self.phases)

    @property
    def to_device_bytes(self) -> int:
        """Bytes copied from the host to the device."""
        return sum(p.to_device_bytes for p in self.phases)

    @property
    def total_s(self) -> float:
        """Seconds, one after the other."""
        return self.compute_s + self.communication_s + self.copy_s

    @property
    def flops(self) -> int:
        """Floating-point operations of a rank, of all phases."""
        return sum(p.flops for p in self.phases)

    @property
    def sent_bytes(self) -> int:
        """Bytes that a rank sends, of all phases."""
        return sum(p.sent_bytes for p in self.phases)

    @property
    def messages(self) -> int:
        """Messages of a rank, of all phases."""
        return sum(p.messages for p in self.phases)

    def phase(self, name: str) -> PhaseTime:
        """The phase called `name`; one that the plan does not have took no time."""
        return next((p for p in self.phases if p.phase == name), PhaseTime(name, 0.0, 0.0, 0, 0, 0))


def single_stage(plan: Plan) -> Stage:
    """The plan's only stage. Raises PlanError for a pipeline, whose stages run different programs."""
    if len(plan.stages) != 1:
        what = f"the plan has {len(plan.stages)} pipeline stages"
        raise PlanError(what, where="cost", allowed="Costs are predicted for plans of one stage")
    return plan.stages[0]


def step_time_s(plan: Plan, cluster: Cluster, *, rank: int = 0) -> StepTime:
    """Time of one step on `rank`, without waiting. Raises ArgumentError: fewer devices than ranks."""
    cluster.check_device_num(plan.device_num)
    plan = on_dearer_sides(plan, lambda instr: instr_time_s(plan, instr, cluster, rank=rank))
    stage, phases = plan.stage_of(rank), []
    for name in PHASES:
        program = [i for a in stage.actions if a.program == name for _, i in stage.part(a) if i.runs_on(rank)]
        if program:
            times = [(_sort(i), instr_time_s(plan, i, cluster, rank=rank)) for i in program]
            kinds = ("compute", "message", "copy")
            compute_s, message_s, copy_s = (math.fsum(t for sort, t in times if sort == kind) for kind in kinds)
            flops = sum(instr_flops(plan, i) for i in program)
            sent = sum(sent_bytes(plan, i) for i in program if i.attr("root", rank) == rank)
            messages = sum(i.is_communication for i in program)
            to_host, to_device = (copied_bytes(plan, program, kind) for kind in COPIES)
            phases.append(PhaseTime(name, compute_s, message_s, flops, sent, messages, copy_s, to_host, to_device))
    return StepTime(rank, tuple(phases))


def copied_bytes(plan: Plan, program: Iterable[Instr], kind: str) -> int:
    """Bytes of all copies of a kind ("copy_to_host", "copy_to_device")."""
    return sum(plan.value(i.out).slice_bytes for i in program if i.kind == kind)


def _sort(instr: Instr) -> str:
    return "message" if instr.is_communication else "copy" if instr.kind in COPIES else "compute"
