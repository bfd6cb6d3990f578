"""What the optimizer parallel does with each parameter, and what it must send for that in closed form. Pure functions
of two plans.

    facts = parameter_facts(plan, off)          `off`: the plan of the same settings without optimizer parallel
    facts[0].ways, facts[0].why                 8, ""
    formulas(plan, facts, rank=0)               {("gradients", "reduce_scatter"): Formula("7/8 x 2 MiB", 1835008.0)}

The formulas know the parameters and the rules, and not the messages of the plan; the lab shows both side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...base.units import bytes_text
from ...cost.time import is_view
from ...graph.instr import Instr
from ...graph.passes.optimizer_shard import LOCAL_OPS, accumulates_slices
from ...graph.plan import Plan

NOT_SPLIT = " is not sharded: "  # how the pass says it in its notes


@dataclass(frozen=True)
class ParameterFact:
    """One trainable parameter.

    shape, size_bytes  of its slice in the network: what a rank holds without optimizer parallel
    kept_shape         what a rank keeps
    ways, replicas     ranks that share a slice;  ranks that hold the same one in the network
    owner              the rank that updates it (weight grouping), or None
    read_again         backward reads the parameter itself, so that level3 gathers it again
    why                why it is not split, in a clause; "" if it is, or if nothing was asked for
    """

    name: str
    shape: tuple[int, ...]
    kept_shape: tuple[int, ...]
    size_bytes: int
    ways: int
    replicas: int
    owner: int | None
    read_again: bool
    why: str

    @property
    def text(self) -> str:
        """One line: name, shape, and how many ranks share it, or why it stays whole."""
        outcome = f"shared by {self.ways}" if self.ways > 1 else f"whole: {self.why}"
        return f"{self.name:16} {self.shape!s:12} {outcome}"


@dataclass(frozen=True)
class Formula:
    """Bytes that a rank must send for one kind of message in a step, and the expression they are from."""

    text: str
    sent_bytes: float


def parameter_facts(plan: Plan, off: Plan) -> tuple[ParameterFact, ...]:
    """One per trainable parameter, in the order of their use."""
    why = {}
    for name, text in plan.notes:
        if name == "optimizer_shard" and NOT_SPLIT in text:
            parameter, _, clause = text.partition(NOT_SPLIT)
            why[parameter] = clause
    owners, read = dict(plan.owners), _read_by_backward(off)
    facts = []
    for given in off.parameters:
        if not given.trainable:
            continue
        whole, kept = off.value(given.name), plan.value(given.name)
        ways = math.prod(whole.slice_shape) // max(1, math.prod(kept.slice_shape))
        name, replicas = given.name, whole.layout.replica_count
        known = owners.get(name), name in read, why.get(name, "")
        facts.append(
            ParameterFact(name, whole.slice_shape, kept.slice_shape, whole.slice_bytes, ways, replicas, *known)
        )
    return tuple(facts)


def _read_by_backward(plan: Plan) -> set[str]:
    """Parameters that backward reads, themselves or in another form that needs no message (a cast, a reshape)."""
    source = {i.name: i.name for i in plan.parameters}
    for _, instr in plan.instructions("forward"):
        if len(instr.ins) == 1 and instr.ins[0] in source and _another_form(instr):
            source[instr.out] = source[instr.ins[0]]
    return {source[name] for _, instr in plan.instructions("backward") for name in instr.ins if name in source}


def _another_form(instr: Instr) -> bool:
    return is_view(instr) or (instr.kind == "compute" and instr.op in LOCAL_OPS) or instr.kind == "slice"


def formulas(plan: Plan, facts: Sequence[ParameterFact], rank: int = 0) -> dict[tuple[str, str], Formula]:
    """{(purpose, kind): what a rank must send}, for parameters and their gradients. Zeros are left out.

        whole, R ranks hold it          all_reduce 2 (R-1)/R B
        w ranks share it                reduce_scatter (w-1)/w B, all_gather (w-1)/w B, and 2 (r-1)/r B/w where r = R/w
                                        > 1 copies are left
        weight grouping                 all_reduce as ever, and the owner broadcasts B

    With M micro-batches gradients that are accumulated in slices are scattered M times; level3 gathers for each
    micro-batch, and what backward reads once more.
    """
    config = plan.config
    parts = config.grad_accumulation_step
    scattered = parts if accumulates_slices(config) else 1
    twice = config.optimizer_level == "level3"
    gathered = parts if twice else 1
    cut, whole = [f for f in facts if f.ways > 1], [f for f in facts if f.ways == 1]
    reduced = _terms(((f.replicas, f.size_bytes) for f in whole), 2, 1)
    copies = _terms(((f.replicas // f.ways, f.size_bytes // f.ways) for f in cut), 2, 1)
    again = _terms(((f.ways, f.size_bytes) for f in cut if f.read_again), 1, gathered) if twice else []
    terms_of = {
        ("gradients", "all_reduce"): reduced + copies,
        ("gradients", "reduce_scatter"): _terms(((f.ways, f.size_bytes) for f in cut), 1, scattered),
        ("parameters", "all_gather"): _terms(((f.ways, f.size_bytes) for f in cut), 1, gathered) + again,
    }
    sent = sum(f.size_bytes for f in facts if f.owner == rank)
    if any(f.owner is not None for f in facts):
        terms_of["parameters", "broadcast"] = [(f"{bytes_text(sent)} of its own", float(sent))]
    terms_of = {key: zip(*terms, strict=True) for key, terms in terms_of.items() if terms}
    return {key: Formula(" + ".join(texts), sum(sizes)) for key, (texts, sizes) in terms_of.items()}


def _terms(groups: Iterable[tuple[int, int]], factor: int, times: int) -> list[tuple[str, float]]:
    """(expression, bytes) per number of ranks: factor x (n-1)/n x bytes x times."""
    sizes: dict[int, int] = {}
    for n, size_bytes in groups:
        if n > 1:
            sizes[n] = sizes.get(n, 0) + size_bytes
    terms = []
    for n, size_bytes in sorted(sizes.items()):
        before, behind = f"{factor} x " if factor > 1 else "", f" x {times}" if times > 1 else ""
        text = f"{before}{n - 1}/{n} x {bytes_text(size_bytes)}{behind}"
        terms.append((text, float(np.prod([factor, n - 1, size_bytes, times], dtype=float) / n)))
    return terms
