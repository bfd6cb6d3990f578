"""Bytes one rank holds during a step, from shapes alone; the same on every rank, because all slices of a tensor are equally large.

    params        parameter slices                     optimizer     optimizer states (the learning rate too)
    inputs        slices of data and constants         activations   forward results that the backward program still reads
    grads         synchronised parameter gradients     workspace     everything else: operands on their way, new parameter values

A value lives from the instruction that makes it to its last use (`Plan.last_uses`); a reshape is a view of its operand and takes no bytes; while
an instruction runs, its operands and its result are both there. The step starts without gradients of the step before. Buffers inside a collective
and the allocator's rounding are not counted.

    report = predict_memory(plan)
    report.parts              {"params": 512, "grads": 512, "optimizer": 516, "activations": 640}
    report.peak               MemoryPoint: which instruction, how many bytes of what
"""

from __future__ import annotations

from dataclasses import dataclass

from ..cluster import Cluster
from ..plan import Plan
from .time import is_view, single_stage

__all__ = ["MEMORY_KINDS", "MemoryPoint", "MemoryReport", "predict_memory"]

MEMORY_KINDS = ("params", "optimizer", "inputs", "activations", "grads", "workspace")


@dataclass(frozen=True)
class MemoryPoint:
    """What is live while one instruction runs.

    phase, position, name   the instruction and the value it makes
    live                    bytes per kind, in the order of MEMORY_KINDS
    """

    phase: str
    position: int
    name: str
    live: tuple[int, ...]

    @property
    def total_bytes(self) -> int:
        return sum(self.live)

    @property
    def by_kind(self) -> dict[str, int]:
        return dict(zip(MEMORY_KINDS, self.live, strict=True))


@dataclass(frozen=True)
class MemoryReport:
    """Predicted memory of one rank over one step.

    params_bytes, optimizer_bytes, inputs_bytes   there from the start to the end
    grads_bytes         all synchronised gradients
    activations_bytes   forward values that backward still needs, at the moment when they take most
    timeline            one MemoryPoint per instruction, in the order they run
    """

    params_bytes: int
    grads_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    inputs_bytes: int
    timeline: tuple[MemoryPoint, ...]

    @property
    def parts(self) -> dict[str, int]:
        """The four parts that memory is discussed in. They need not add up to the peak: not all are largest at the same time."""
        return {
            "params": self.params_bytes,
            "grads": self.grads_bytes,
            "optimizer": self.optimizer_bytes,
            "activations": self.activations_bytes,
        }

    @property
    def resident_bytes(self) -> int:
        """What the rank holds before the step starts."""
        return self.params_bytes + self.optimizer_bytes + self.inputs_bytes

    @property
    def peak(self) -> MemoryPoint | None:
        """The first instruction at which most bytes are live; None for a plan without instructions."""
        return max(self.timeline, key=lambda p: p.total_bytes, default=None)

    @property
    def peak_bytes(self) -> int:
        return self.peak.total_bytes if self.peak is not None else self.resident_bytes

    def fits(self, cluster: Cluster) -> bool:
        """Whether the peak is within the memory of the cluster's devices."""
        return self.peak_bytes <= cluster.device.memory_bytes


def predict_memory(plan: Plan) -> MemoryReport:
    """Walk the program of one step and count live bytes. Raises PlanError for a pipeline."""
    stage = single_stage(plan)
    memory = _Memory(plan)
    timeline = []
    for action in stage.actions:
        dead = plan.last_uses[action.program]
        for position, instr in enumerate(stage.program(action.program)):
            memory.make(instr.out)
            timeline.append(MemoryPoint(action.program, position, instr.out, tuple(memory.live[kind] for kind in MEMORY_KINDS)))
            for name in dead.get(position, ()):
                memory.drop(name)
    kept = memory.resident
    return MemoryReport(
        params_bytes=kept["params"],
        grads_bytes=sum(memory.sizes[block] for block, kind in memory.kinds.items() if kind == "grads"),
        optimizer_bytes=kept["optimizer"],
        activations_bytes=max((p.by_kind["activations"] for p in timeline), default=0),
        inputs_bytes=kept["inputs"],
        timeline=tuple(timeline),
    )


class _Memory:
    """Blocks of memory and the values that lie in them. A block is named after its first value; a view lies in its operand's block."""

    def __init__(self, plan: Plan) -> None:
        self.block: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self.users: dict[str, int] = {}
        self.live = dict.fromkeys(MEMORY_KINDS, 0)
        roles = {"parameter": "params", "data": "inputs", "constant": "inputs"}
        for given in plan.graph.inputs:
            if given.role in roles and given.name in plan.value_table:
                self._add_block(plan, given.name, roles[given.role])
        for state in plan.states:
            self._add_block(plan, state.name, "optimizer")
        for name in tuple(self.block):
            self.make(name)
        self.resident = dict(self.live)
        self._find_blocks(plan)

    def _add_block(self, plan: Plan, name: str, kind: str) -> None:
        self.block[name], self.kinds[name], self.sizes[name] = name, kind, plan.value(name).slice_bytes

    def _find_blocks(self, plan: Plan) -> None:
        """The block of every value the programs make, and its kind, which depends on who reads it later."""
        forward: set[str] = set()
        for phase, instr in plan.instructions():
            operand = instr.ins[0] if instr.ins else ""
            if is_view(instr) and operand in self.block:
                self.block[instr.out] = self.block[operand]
                continue
            self._add_block(plan, instr.out, "workspace")
            if phase == "forward":
                forward.add(instr.out)
        read = {self.block[name] for _, instr in plan.instructions("backward") for name in instr.ins if name in self.block}
        self.kinds.update(dict.fromkeys(forward & read, "activations"))
        made = {self.block[value] for _, value in plan.gradients}
        self.kinds.update((block, "grads") for block in made if self.kinds[block] == "workspace")

    def make(self, name: str) -> None:
        block = self.block[name]
        self.users[block] = self.users.get(block, 0) + 1
        if self.users[block] == 1:
            self.live[self.kinds[block]] += self.sizes[block]

    def drop(self, name: str) -> None:
        block = self.block[name]
        self.users[block] -= 1
        if not self.users[block]:
            self.live[self.kinds[block]] -= self.sizes[block]
