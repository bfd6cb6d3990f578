"""Bytes one rank holds during a step, from shapes alone; all slices of a tensor are equally large, so ranks only differ
in what one of them alone holds (optimizer states in weight grouping).

    params        parameter slices                     optimizer     optimizer states (the learning rate too)
    inputs        slices of data and constants         activations   forward results that backward reads
    grads         synchronised parameter gradients     gathered      sharded parameters, gathered for use
    workspace     everything else: operands on their way, new values next to the old ones that they replace

A value lives from the instruction that makes it to its last use (`Plan.last_uses`), a parameter or state until its new
value replaces it (`Plan.replacements`); a reshape is a view of its operand and takes no bytes; while an instruction
runs, its operands and its result are both there. A gradient that a schedule makes out of turn is held until its turn.
The step starts without gradients of the step before. Buffers inside a collective and the allocator's rounding are not
counted: what an exchange brings counts from its wait on, and takes the memory of what was sent if nothing reads that.

What lies on the host (`Plan.host`) is counted apart: a MemoryPoint's `live` is the device's, its `host` the host's.

    report = predict_memory(plan)
    report.parts              {"params": 512, "grads": 512, "optimizer": 516, "activations": 640}
    report.peak               MemoryPoint: which instruction, how many bytes of what
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..base.cluster import Cluster
from ..graph.actions import Action
from ..graph.copies import TO_DEVICE
from ..graph.instr import Instr
from ..graph.plan import Plan
from .time import is_view, on_dearer_sides

MEMORY_KINDS = ("params", "optimizer", "inputs", "activations", "gathered", "grads", "workspace")


@dataclass(frozen=True)
class MemoryPoint:
    """What is live while an instruction (phase, position, name) runs: bytes per kind, in the order of MEMORY_KINDS, on
    the device and on the host.
    """

    phase: str
    position: int
    name: str
    live: tuple[int, ...]
    host: tuple[int, ...] = (0,) * len(MEMORY_KINDS)

    @property
    def host_bytes(self) -> int:
        """What the rank keeps in the memory of the host."""
        return sum(self.host)

    @property
    def total_bytes(self) -> int:
        """Bytes of all kinds."""
        return sum(self.live)

    @property
    def by_kind(self) -> dict[str, int]:
        """{kind: bytes}."""
        return dict(zip(MEMORY_KINDS, self.live, strict=True))


@dataclass(frozen=True)
class MemoryReport:
    """Predicted memory of one rank over one step: of its device; what lies on the host is in `host_peak_bytes`.

    params_bytes, optimizer_bytes, inputs_bytes   there from the start to the end
    grads_bytes         all synchronised gradients
    activations_bytes   forward values that backward still needs, at the moment when they take most
    gathered_bytes      parameters gathered for use, at most;  timeline: a MemoryPoint per instruction, in order
    host_resident_bytes parameters, states and inputs on the host
    kept_bytes          what one micro-batch keeps from forward to backward (`kept_blocks`)
    """

    params_bytes: int
    grads_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    inputs_bytes: int
    timeline: tuple[MemoryPoint, ...]
    gathered_bytes: int = 0
    host_resident_bytes: int = 0
    kept_bytes: int = 0

    @property
    def parts(self) -> dict[str, int]:
        """The largest of each of the four parts; they may add up to more than the peak, being at different times."""
        return {kind: getattr(self, f"{kind}_bytes") for kind in ("params", "grads", "optimizer", "activations")}

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
        """Bytes at the fullest moment."""
        return self.peak.total_bytes if self.peak is not None else self.resident_bytes

    @property
    def host_peak_bytes(self) -> int:
        """The most that the rank keeps on the host at once."""
        return max((p.host_bytes for p in self.timeline), default=self.host_resident_bytes)

    def fits(self, cluster: Cluster) -> bool:
        """Whether the peak is within the memory of the cluster's devices, and what all ranks of a node keep on its host
        is within the memory of that.
        """
        there = self.host_peak_bytes * cluster.devices_per_node
        fits_host = not there or there <= cluster.known_host.memory_bytes
        return self.peak_bytes <= cluster.device.memory_bytes and fits_host


def predict_memory(plan: Plan, *, rank: int = 0) -> MemoryReport:
    """Walk one step's programs on `rank` and count live bytes. Raises PlanError: no such rank."""
    plan = on_dearer_sides(plan, lambda instr: sum(plan.value(name).slice_bytes for name in instr.kept))
    memory = _Memory(plan, rank)
    grads = (block for block, kind in memory.kinds.items() if kind == "grads" and block not in memory.host)
    grads_bytes, kept_bytes = (sum(memory.sizes[block] for block in blocks) for blocks in (grads, memory.kept))
    timeline = []
    live, on_host = memory.live.values(), memory.host_live.values()  # in the order of MEMORY_KINDS
    for action, position, instr in memory.walk(plan, rank):
        timeline.append(MemoryPoint(action.program, position, instr.out, tuple(live), tuple(on_host)))
    kept = {kind: memory.resident[kind] for kind in ("params", "optimizer", "inputs")}
    places = {kind: MEMORY_KINDS.index(kind) for kind in ("activations", "gathered")}
    most = {kind: max((p.live[at] for p in timeline), default=0) for kind, at in places.items()}
    sizes = {f"{kind}_bytes": size for kind, size in {**kept, **most, "grads": grads_bytes}.items()}
    sizes |= {"host_resident_bytes": memory.host_resident_bytes, "kept_bytes": kept_bytes}
    return MemoryReport(timeline=tuple(timeline), **sizes)


def value_kinds(plan: Plan, *, rank: int = 0) -> dict[str, str]:
    """{value: its kind out of MEMORY_KINDS} of everything that `rank` ever holds."""
    memory = _Memory(plan, rank)
    return {name: memory.kinds[block] for name, block in memory.block.items()}


def kept_blocks(plan: Plan, *, rank: int = 0) -> dict[str, tuple[str, ...]]:
    """What `rank` keeps from forward to backward: {block of memory, named after its first value: its values}."""
    memory = _Memory(plan, rank)
    names: dict[str, tuple[str, ...]] = {}
    for name, block in memory.block.items():
        names[block] = (*names.get(block, ()), name)
    return {block: names[block] for block in memory.kept}


def held_blocks(plan: Plan, *, rank: int = 0) -> Iterator[tuple[Action, Instr, dict[str, int]]]:
    """(action, instruction, {block: bytes on the device}) of a step's moments: blocks are named as in `kept_blocks`."""
    memory = _Memory(plan, rank)
    for action, _, instr in memory.walk(plan, rank):
        yield action, instr, memory.held()


class _Memory:
    """Blocks of memory, named after their first value, and values in them; a view lies in its operand's block."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.block: dict[str, str] = {}
        self.kinds: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        # (block, micro-batch that has it, -1 of the whole step) -> names of values that lie in it now
        self.users: dict[tuple[str, int], set[str]] = {}
        self.of_micro_batch, self.micro_batch = plan.of_micro_batch, 0
        self.turns = plan.stage_of(rank).turns
        # sum over micro-batches -> parts that are in it, numbers of those that wait for their turn
        self.sums: dict[str, tuple[int, set[int]]] = {}
        self.live, self.host_live = dict.fromkeys(MEMORY_KINDS, 0), dict.fromkeys(MEMORY_KINDS, 0)
        self.host = frozenset(plan.host)  # a view lies where its operand does, so blocks can be looked up by name
        roles = {"parameter": "params", "data": "inputs", "constant": "inputs"}
        for given in plan.graph.inputs:
            if given.role in roles and given.name in plan.value_table and plan.held_by(given.name, rank):
                self._add_block(plan, given.name, roles[given.role])
        for state in plan.states:
            if plan.held_by(state.name, rank):
                self._add_block(plan, state.name, "optimizer")
        for name in tuple(self.block):
            self.make(name)
        self.resident, self.host_resident_bytes = dict(self.live), sum(self.host_live.values())
        self._find_blocks(plan, rank)

    def _add_block(self, plan: Plan, name: str, kind: str) -> None:
        self.block[name], self.kinds[name], self.sizes[name] = name, kind, plan.value(name).slice_bytes

    def _find_blocks(self, plan: Plan, rank: int) -> None:
        """The block of every value the programs make, and its kind, which depends on its later readers."""
        forward: set[str] = set()
        buckets: set[str] = set()  # arrived, and not split up yet
        programs = plan.stage_of(rank).programs
        for phase, instr in ((phase, i) for phase, program in programs for i in program):
            if not instr.runs_on(rank):
                continue
            operand = instr.ins[0] if instr.ins else ""
            if is_view(instr) and operand in self.block:
                self.block[instr.out] = self.block[operand]
                continue
            together = _puts_together(instr) or (instr.kind == "split" and operand in buckets)
            buckets.update([instr.out] if _puts_together(instr) else [])
            for name in instr.kept:
                self._add_block(plan, name, "gathered" if together else "workspace")
            over = [(name, instr.ins[at]) for name, at in zip(instr.outs, instr.attr("over", ()), strict=False) if name]
            self.block.update((name, self.block[operand]) for name, operand in over)
            if instr.kind == "start" and instr.message == "recv":
                self.sizes[instr.out] = 0  # what another stage sends counts from its wait on
            if phase == "forward":
                forward.update(instr.kept)
        late = (i for phase, program in programs if phase in ("backward", "weights") for i in program)
        read = {self.block[name] for i in late for name in i.ins if name in self.block}
        self.kept = {self.block[name] for name in forward} & read
        self.kinds.update((block, "activations") for block in self.kept if self.kinds[block] == "workspace")
        mine = (i for program in dict(programs).values() for i in program)
        brought = (i for i in mine if i.kind == TO_DEVICE and i.runs_on(rank))
        held = {i.name for i in plan.parameters}
        self.kinds.update((self.block[i.out], "gathered") for i in brought if i.ins[0] in held)
        gradients = {self.block[value] for _, value in plan.gradients if value in self.block}
        self.kinds.update((block, "grads") for block in gradients if self.kinds[block] == "workspace")

    def walk(self, plan: Plan, rank: int) -> Iterator[tuple[Action, int, Instr]]:
        """(action, position, instruction) in the order of a step, each when what it makes is there as well."""
        stage, dead_after, replaced = plan.stage_of(rank), plan.last_uses(rank), plan.replacements(rank)
        for action in stage.actions:
            last_uses, pairs_at = dead_after[action], replaced if action.program == "update" else {}
            self.micro_batch = action.micro_batch
            for position, instr in stage.part(action):
                dead = {name for name in last_uses.get(position, ()) if name in self.block}
                if instr.kind == "wait" and instr.attr("message") == "exchange":
                    for name in dead.intersection(instr.ins):
                        self.drop(name)
                    dead.difference_update(instr.ins)
                if instr.runs_on(rank):
                    for name in instr.kept if instr.kind != "accumulate" else self.add(instr):
                        self.make(name)
                    yield action, position, instr
                for target, source in pairs_at.get(position, ()):
                    if plan.held_by(target, rank):
                        self.replace(target, source)
                for name in dead:
                    self.drop(name)

    def held(self) -> dict[str, int]:
        """Bytes of every block that is on the device now, of all micro-batches that have it."""
        sizes: dict[str, int] = {}
        for block, _ in self.users:
            if block not in self.host:
                sizes[block] = sizes.get(block, 0) + self.sizes[block]
        return sizes

    def _users(self, name: str) -> set[str]:
        block = self.block[name]
        return self.users.setdefault(self._place(block), set())

    def _place(self, block: str) -> tuple[str, int]:
        return block, self.micro_batch if block in self.of_micro_batch else -1

    def make(self, name: str) -> None:
        users, block = self._users(name), self.block[name]
        if not users:
            self._live(block)[self.kinds[block]] += self.sizes[block]
        users.add(name)

    def drop(self, name: str, user: str = "") -> None:
        """Nothing reads a value any more, or not the one that it was kept for."""
        block = self.block[name]
        place = self._place(block)
        users = self.users[place]
        users.remove(user or name)
        if not users:
            self._live(block)[self.kinds[block]] -= self.sizes[block]
            del self.users[place]

    def add(self, instr: Instr) -> tuple[str, ...]:
        """Give a sum this micro-batch's part, which stays until its turn; the sum's name, if there is one then."""
        part, (count, waiting) = instr.ins[0], self.sums.setdefault(instr.out, (0, set()))
        self._users(part).add(instr.out)
        waiting.add(self.micro_batch)
        before = self.micro_batch
        turns = self.turns(instr.stage)
        while count < len(turns) and turns[count] in waiting:
            self.micro_batch = turns[count]
            waiting.remove(self.micro_batch)
            self.drop(part, instr.out)
            count += 1
        self.micro_batch, self.sums[instr.out] = before, (count, waiting)
        return instr.kept if count else ()

    def _live(self, block: str) -> dict[str, int]:
        return self.host_live if block in self.host else self.live

    def replace(self, target: str, source: str) -> None:
        """`target` gives up its old value and names the new one, which counts as what the old one was."""
        old, new = self.block[target], self.block[source]
        self.drop(target)
        if self.kinds[new] not in ("params", "optimizer"):
            live = self._live(new)
            live[self.kinds[new]] -= self.sizes[new]
            live[self.kinds[old]] += self.sizes[new]
            self.kinds[new] = self.kinds[old]
        self.block[target] = new
        self.make(target)


def _puts_together(instr: Instr) -> bool:
    """Whether an instruction brings parameters that the optimizer parallel keeps split, one of them or a bucket."""
    return bool(instr.carried) and (instr.message or instr.attr("message")) == "all_gather"
