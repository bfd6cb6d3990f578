"""Seconds per instruction and per step on one rank, from shapes alone; any number of devices.

    compute         max(flops / rate, bytes touched / memory bandwidth) + overhead          (roofline)
    slice, concat   bytes read and written / memory bandwidth + overhead
    messages        closed forms in alpha, beta, gamma, below

S is the full tensor (all_reduce, reduce_scatter: before; all_gather: after), n the group size, m the operand one rank hands over:

    all_reduce      ring        2(n-1) alpha + 2(n-1)/n S beta + (n-1)/n S gamma            S = m
    all_gather      ring         (n-1) alpha +  (n-1)/n S beta                              S = n m
    reduce_scatter  ring         (n-1) alpha +  (n-1)/n S beta + (n-1)/n S gamma            S = m
    all_to_all      pairwise     (n-1) alpha +  (n-1)/n m beta                              S = n m: (n-1)/n^2 S beta
    broadcast       binomial    ceil(log2 n) (alpha + S beta)                               S = m
    reduce          binomial    ceil(log2 n) (alpha + S beta + S gamma)                     S = m
    gather          binomial    ceil(log2 n) alpha + (n-1)/n S beta                         S = n m
    scatter         binomial    ceil(log2 n) alpha + (n-1)/n S beta                         S = m, the root's
    barrier         dissemination  ceil(log2 n) alpha
    send, recv                   alpha + S beta                                             S = m
    halos           neighbours  alpha + s beta per strip of s bytes (halo_reduce: + s gamma), of the member with most to do

They assume full-duplex links without contention and one port per rank. Sources: Thakur, Rabenseifner, Gropp 2005 (ring, pairwise, binomial);
Chan et al. 2007 (gather, scatter, lower bounds); Hensgen, Finkel, Manber 1988 (dissemination barrier).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from ..cluster import Cluster, Device, Link
from ..errors import ArgumentError, PlanError, message
from ..graph.ir import Instr
from ..halo import HALOS, Halo
from ..plan import PHASES, Plan, Stage
from ..run.communicator import payload_bytes

__all__ = [
    "PhaseTime",
    "StepTime",
    "all_gather_time_s",
    "all_reduce_time_s",
    "all_to_all_time_s",
    "broadcast_time_s",
    "halo_time_s",
    "instr_flops",
    "instr_time_s",
    "is_view",
    "local_time_s",
    "message_bytes",
    "message_time_s",
    "plan_message_time_s",
    "reduce_scatter_time_s",
    "sent_bytes",
    "single_stage",
    "step_time_s",
    "touched_bytes",
]


# ---- messages: closed forms ----


def all_reduce_time_s(size_bytes: float, group_size: int, link: Link, gamma_s_per_byte: float = 0.0) -> float:
    """Seconds for one ring all_reduce of `size_bytes` per rank.

    >>> all_reduce_time_s(8_000, 4, Link(alpha_s=1e-6, beta_s_per_byte=1e-9))
    1.8e-05
    """
    share = _share(size_bytes, group_size)
    return 2 * (group_size - 1) * link.alpha_s + 2 * share * link.beta_s_per_byte + share * gamma_s_per_byte


def all_gather_time_s(size_bytes: float, group_size: int, link: Link) -> float:
    """Seconds for one ring all_gather; `size_bytes` is the gathered result.

    >>> all_gather_time_s(8_000, 4, Link(alpha_s=1e-6, beta_s_per_byte=1e-9))
    9e-06
    """
    return (group_size - 1) * link.alpha_s + _share(size_bytes, group_size) * link.beta_s_per_byte


def reduce_scatter_time_s(size_bytes: float, group_size: int, link: Link, gamma_s_per_byte: float = 0.0) -> float:
    """Seconds for one ring reduce_scatter; `size_bytes` is what each rank hands over.

    >>> reduce_scatter_time_s(8_000, 4, Link(alpha_s=1e-6, beta_s_per_byte=1e-9), gamma_s_per_byte=1e-9)
    1.5e-05
    """
    return (group_size - 1) * link.alpha_s + _share(size_bytes, group_size) * (link.beta_s_per_byte + gamma_s_per_byte)


def all_to_all_time_s(size_bytes: float, group_size: int, link: Link) -> float:
    """Seconds for one pairwise all_to_all; `size_bytes` is what one rank holds, 1/n of it for each member.

    >>> all_to_all_time_s(8_000, 4, Link(alpha_s=1e-6, beta_s_per_byte=1e-9))
    9e-06
    """
    return (group_size - 1) * link.alpha_s + _share(size_bytes, group_size) * link.beta_s_per_byte


def broadcast_time_s(size_bytes: float, group_size: int, link: Link) -> float:
    """Seconds for one binomial broadcast of `size_bytes`.

    >>> broadcast_time_s(4096, 8, Link(alpha_s=1.0, beta_s_per_byte=0.5))
    6147.0
    """
    _share(size_bytes, group_size)
    return _rounds(group_size) * link.time_s(size_bytes)


def halo_time_s(kind: str, operand_bytes: float, halo: Halo, link: Link, gamma_s_per_byte: float = 0.0) -> float:
    """Seconds for one halo_exchange or halo_reduce; `operand_bytes` is a slice, or a window.

    A rank in the middle sends one strip each way and receives one from each side, at the same time; its port sends them one after the other. In a
    group of two each sends one and receives one.

    >>> halo_time_s("halo_exchange", 8_000, Halo(4, -1, 6, 4, 3), Link(alpha_s=1e-6, beta_s_per_byte=1e-9))
    6e-06
    """
    element_bytes = operand_bytes / halo.extents(kind)[0]
    adding = gamma_s_per_byte if kind == "halo_reduce" else 0.0

    def seconds(messages: tuple[int, ...], per_byte: float) -> float:
        return len(messages) * link.alpha_s + sum(messages) * element_bytes * per_byte

    return max(
        max(seconds(sent, link.beta_s_per_byte), seconds(received, link.beta_s_per_byte + adding)) for sent, received in halo_traffic(halo, kind)
    )


@lru_cache(maxsize=256)
def halo_traffic(halo: Halo, kind: str) -> frozenset[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(elements of each strip sent, elements of each strip received) of the members, each different pair once."""
    return frozenset((halo.sent(kind, i), halo.received(kind, i)) for i in range(halo.members))


def message_time_s(
    kind: str,
    operand_bytes: float,
    group_size: int,
    link: Link,
    gamma_s_per_byte: float = 0.0,
    window: tuple[int, int, int, int] | None = None,
) -> float:
    """Seconds for one message of any kind, from the bytes of the operand one rank hands over (for scatter: the root's).

    window   halo_exchange and halo_reduce: their attribute (step, origin, length, part)

    A collective of one rank costs nothing. Raises ArgumentError for a kind without a closed form, negative sizes and empty groups.
    """
    share = _share(operand_bytes, group_size)
    if kind in ("send", "recv"):
        return link.time_s(operand_bytes)
    rounds = _rounds(group_size)
    if kind == "all_reduce":
        return all_reduce_time_s(operand_bytes, group_size, link, gamma_s_per_byte)
    if kind == "all_gather":
        return all_gather_time_s(operand_bytes * group_size, group_size, link)
    if kind == "reduce_scatter":
        return reduce_scatter_time_s(operand_bytes, group_size, link, gamma_s_per_byte)
    if kind == "all_to_all":
        return all_to_all_time_s(operand_bytes, group_size, link)
    if kind in HALOS:
        if window is None:
            raise ArgumentError(message(f"{kind} without a window", where="message_time_s", allowed="window=(step, origin, length, part)"))
        return halo_time_s(kind, operand_bytes, Halo(*window, members=group_size), link, gamma_s_per_byte)
    if kind == "broadcast":
        return broadcast_time_s(operand_bytes, group_size, link)
    if kind == "reduce":
        return rounds * (link.time_s(operand_bytes) + operand_bytes * gamma_s_per_byte)
    if kind == "gather":
        return rounds * link.alpha_s + (group_size - 1) * operand_bytes * link.beta_s_per_byte
    if kind == "scatter":
        return rounds * link.alpha_s + share * link.beta_s_per_byte
    if kind == "barrier":
        return rounds * link.alpha_s
    raise ArgumentError(message(f"{kind!r} has no closed form", where="message_time_s", allowed="A kind of message"))


def _share(size_bytes: float, group_size: int) -> float:
    """(n-1)/n of the bytes: what a rank does not have yet, or does not keep."""
    if group_size < 1 or not size_bytes >= 0:
        what = f"{size_bytes} bytes in a group of {group_size}"
        raise ArgumentError(message(what, where="cost of a message", allowed="At least 0 bytes and 1 rank"))
    return (group_size - 1) * size_bytes / group_size


def _rounds(group_size: int) -> int:
    return (group_size - 1).bit_length()  # ceil(log2 n), exact


# ---- instructions ----


def message_bytes(plan: Plan, instr: Instr, rank: int | None = None) -> int:
    """Bytes a rank hands over: its operand; 0 for local instructions and barriers. A recv has no operand: the bytes that arrive.

    Of a halo only strips are handed over, fewer at the edges of the tensor: those of `rank`, or of the rank that gives most. A broadcast is handed
    over by its root.
    """
    if rank is not None and instr.attr("root", rank) != rank:
        return 0
    if instr.kind in HALOS:
        return payload_bytes(
            instr.kind, instr.group_size, _operand_bytes(plan, instr), instr.attr("window"), None if rank is None else instr.position(rank)
        )
    return _operand_bytes(plan, instr)


def _operand_bytes(plan: Plan, instr: Instr) -> int:
    if not instr.is_communication or instr.kind == "barrier":
        return 0
    return plan.value(instr.ins[0] if instr.ins else instr.out).slice_bytes


def plan_message_time_s(plan: Plan, instr: Instr, cluster: Cluster, link: Link) -> float:
    """Seconds for one message of a plan over `link`."""
    gamma = cluster.device.gamma_s_per_byte
    return message_time_s(instr.message, _operand_bytes(plan, instr), instr.group_size, link, gamma, instr.attr("window"))


def sent_bytes(plan: Plan, instr: Instr) -> int:
    """Bytes a rank must send for this message in the bandwidth-optimal form (see `payload_bytes`); 0 for local instructions."""
    if not instr.is_communication:
        return 0
    # a send has no axes along which its two ranks would differ
    members = 2 if instr.kind in ("send", "recv") else instr.group_size
    return payload_bytes(instr.message, members, _operand_bytes(plan, instr), instr.attr("window"))


def is_view(instr: Instr) -> bool:
    """Whether the result is the operand's own memory under another shape: slices are C-contiguous, so numpy's reshape copies nothing.

    So is a column range of a single row (the split of a bucket's sum), what a start and a wait stand for while an all_reduce happens in place.
    """
    if instr.kind == "split":
        return instr.attr("rows") == 1
    if instr.kind in ("start", "wait"):
        return instr.kind == "start" or instr.in_place
    return instr.kind == "reshape" or instr.kind == "compute" and (instr.opdef.view or instr.op == "flatten")


def instr_flops(plan: Plan, instr: Instr) -> int:
    """Floating-point operations of one rank, on its slices; 0 for everything but compute."""
    if instr.kind != "compute":
        return 0
    return int(instr.opdef.work_flops(tuple(plan.value(n).slice_shape for n in instr.ins), dict(instr.attrs)))


def touched_bytes(plan: Plan, instr: Instr) -> int:
    """Bytes a local instruction reads and writes.

    compute          operands and result;  nothing for a view
    slice, split     the part that is kept, read and written;  nothing for the split of a single row, which is a view
    concat           operands and result
    """
    if is_view(instr) or instr.kind in ("print", "wait", "free"):
        return 0
    made = plan.value(instr.out).slice_bytes
    if instr.kind in ("slice", "split"):
        return 2 * made
    return sum(plan.value(n).slice_bytes for n in instr.ins) + made


def local_time_s(plan: Plan, instr: Instr, device: Device) -> float:
    """Seconds for an instruction that needs no other rank. Raises PlanError for a kind without a cost rule."""
    if instr.kind not in ("compute", "slice", "split", "concat", "reshape", "wait", "print", "free"):
        raise PlanError(message(f"kind {instr.kind!r} has no cost rule", where=f"instruction {instr.out!r}"))
    work_s = instr_flops(plan, instr) / device.flops_per_s
    return max(work_s, touched_bytes(plan, instr) / device.memory_bandwidth_bytes_per_s) + device.overhead_s


def instr_time_s(plan: Plan, instr: Instr, cluster: Cluster, *, rank: int = 0) -> float:
    """Predicted seconds of one instruction on `rank`: working, or from the arrival of the last member of a group to the end of the message.

    Only the link of its group can tell one rank from another: groups that span nodes use the slower one.
    """
    if not instr.is_communication:
        return local_time_s(plan, instr, cluster.device)
    return plan_message_time_s(plan, instr, cluster, cluster.link_for(instr.group(rank)))


# ---- a step ----


@dataclass(frozen=True)
class PhaseTime:
    """One phase of a step on one rank.

    flops, sent_bytes   work done and bytes sent (bandwidth-optimal form)
    messages            how many messages
    """

    phase: str
    compute_s: float
    communication_s: float
    flops: int
    sent_bytes: int
    messages: int

    @property
    def total_s(self) -> float:
        return self.compute_s + self.communication_s


@dataclass(frozen=True)
class StepTime:
    """Predicted time of one step on one rank, phase by phase.

    All messages count in full, also those that travel while the rank computes. What is hidden of them, and waiting for slower groups: see
    `predict_timeline`.
    """

    rank: int
    phases: tuple[PhaseTime, ...]

    @property
    def compute_s(self) -> float:
        return math.fsum(p.compute_s for p in self.phases)

    @property
    def communication_s(self) -> float:
        return math.fsum(p.communication_s for p in self.phases)

    @property
    def total_s(self) -> float:
        return self.compute_s + self.communication_s

    @property
    def flops(self) -> int:
        return sum(p.flops for p in self.phases)

    @property
    def sent_bytes(self) -> int:
        return sum(p.sent_bytes for p in self.phases)

    @property
    def messages(self) -> int:
        return sum(p.messages for p in self.phases)

    def phase(self, name: str) -> PhaseTime:
        """The phase called `name`; one that the plan does not have took no time."""
        return next((p for p in self.phases if p.phase == name), PhaseTime(name, 0.0, 0.0, 0, 0, 0))


def single_stage(plan: Plan) -> Stage:
    """The plan's only stage.

    Raises PlanError for a pipeline: its stages run different programs at different times, and the costs here are those of one program.
    """
    if len(plan.stages) != 1:
        what = f"the plan has {len(plan.stages)} pipeline stages"
        raise PlanError(message(what, where="cost", allowed="Costs are predicted for plans of one stage"))
    return plan.stages[0]


def step_time_s(plan: Plan, cluster: Cluster, *, rank: int = 0) -> StepTime:
    """Predicted time of one training step on `rank`.

    Raises ArgumentError if the cluster has fewer devices than the plan has ranks, PlanError for a pipeline.
    """
    cluster.check_device_num(plan.device_num)
    plan.stage_of(rank)
    stage, phases = single_stage(plan), []
    for name in PHASES:
        program = [i for i in stage.program(name) if i.runs_on(rank)]
        if program:
            times = [(i.is_communication, instr_time_s(plan, i, cluster, rank=rank)) for i in program]
            phases.append(
                PhaseTime(
                    name,
                    compute_s=math.fsum(t for communication, t in times if not communication),
                    communication_s=math.fsum(t for communication, t in times if communication),
                    flops=sum(instr_flops(plan, i) for i in program),
                    sent_bytes=sum(sent_bytes(plan, i) for i in program if i.attr("root", rank) == rank),
                    messages=sum(i.is_communication for i in program),
                )
            )
    return StepTime(rank, tuple(phases))
