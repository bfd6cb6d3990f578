"""What one axis of a mesh may do to the operands and results of an operator, and which of it costs least.

    axis_rules(OPS["matmul"], ((8, 16), (16, 12)), {}, ranks=4)
        R,  R  -> R        every rank computes everything
        S1, S0 -> P        label k is contracted: addends
        S0, R  -> S0       label m;      R, S1 -> S1     label n
        P,  R  -> P        linear in a;  R, P  -> P      and in b

All follows from labels: a label of the result is split wherever it occurs, a label that the result lacks leaves the
result pending by the operator's reduction, and what is `linear` (a keyword of `@op`) passes what is pending. A mesh of
several axes takes one rule for each; `choose` searches their product for the redistribution of the operands that costs
least under a policy. Rules: PyTorch 2.14 (operators of DTensor), whose tables for single operators agree with these.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...base.errors import LayoutError, NotBuiltYet, ParallelLabError
from ...layout.device_mesh import DeviceMesh
from ...layout.mesh_layout import AxisPlacement, MeshLayout, Partial, Replicate, Shard, StridedShard
from ...layout.mesh_redistribution import GIB, redistribution, torch_step
from .opdef import OPS, OpDef
from .signature import Shape, Signature
from .split_labels import LabelSplits

REPLICATE = Replicate()
REDUCE_OPS = {"sum": "sum", "max": "max", "min": "min", "prod": "product"}
LINEAR = ("sum", "avg")  # reductions that what is linear passes, unless its declaration says others


@dataclass(frozen=True)
class AxisRule:
    """What one axis does: to each operand (None: a number, which lies nowhere), and to each result; by which label."""

    ins: tuple[AxisPlacement | None, ...]
    outs: tuple[AxisPlacement, ...]
    label: str = ""

    def __str__(self) -> str:
        ins, outs = (", ".join("-" if p is None else p.code for p in side) for side in (self.ins, self.outs))
        return f"{ins} -> {outs}"


@dataclass(frozen=True)
class Choice:
    """How an operator runs: layouts in which it takes its operands, in which it gives its results; a rule per axis."""

    ins: tuple[MeshLayout | None, ...]
    outs: tuple[MeshLayout, ...]
    rules: tuple[AxisRule, ...]
    cost: float

    def axes_of(self, label: str) -> tuple[int, ...]:
        """Numbers of the axes that split a label."""
        return tuple(axis for axis, rule in enumerate(self.rules) if rule.label == label)


def axis_rules(
    op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any], ranks: int, numbers: Sequence[bool] = ()
) -> tuple[AxisRule, ...]:
    """The rules of an operator for an axis of so many ranks, copies first.  numbers: which operands are no tensors."""
    return tuple(_rules(op.name, shapes, tuple(sorted(attrs.items())), ranks, tuple(numbers)))


@lru_cache(maxsize=4096)
def _rules(
    name: str, shapes: tuple[Shape, ...], items: tuple[Any, ...], ranks: int, numbers: tuple[bool, ...]
) -> list[AxisRule]:
    op, attrs = OPS[name], dict(items)
    numbers = numbers or (False,) * len(shapes)
    results = len(op.infer(shapes, ("float32",) * len(shapes), attrs).shapes)

    def rule(ins: Sequence[AxisPlacement], outs: Sequence[AxisPlacement], label: str = "") -> AxisRule:
        return AxisRule(tuple(None if n else p for n, p in zip(numbers, ins, strict=True)), tuple(outs), label)

    found = [rule([REPLICATE] * len(shapes), [REPLICATE] * results)]
    labels = _labels(op, shapes, attrs)
    for label in sorted(filter(labels.splits, labels.signature.labels), key=labels.order):
        if labels.divides(label, ranks):
            found.append(rule(*labels.placements(label), label))
    for operands, before, after in _linear(op, numbers):
        ins = [Partial(before) if i in operands else REPLICATE for i in range(len(shapes))]
        found.append(rule(ins, [Partial(after)] * results))
    return found


class _Labels:
    """The labels of an operator, as far as an axis may split them.

    signature  labels of operands and results;  sizes, out: their extents, before and in the results
    """

    def __init__(self, op: OpDef, signature: Signature, sizes: dict[str, int], out: dict[str, int], whole: str) -> None:
        self.op, self.signature, self.sizes, self.out, self.whole = op, signature, sizes, out, whole
        self.results = "".join(signature.outs)

    def splits(self, label: str) -> bool:
        """Whether an axis may split a label."""
        return label not in self.whole and label not in self.op.exchanges

    def order(self, label: str) -> tuple[int, int]:
        """Labels that all have first, then contracted ones, then those of the first operand: PyTorch's order."""
        ins = self.signature.ins
        if label not in self.results:
            return 1, 0
        everywhere = all(label in labels for labels in ins)
        return (
            (0, self.results.index(label)) if everywhere else (2, next((i for i, c in enumerate(ins) if label in c), 9))
        )

    def divides(self, label: str, ranks: int) -> bool:
        """Whether it splits into equal parts, or uneven ones where the computation does not notice."""
        op = self.op
        if self.sizes[label] % ranks == 0 and self.out.get(label, 0) % ranks == 0:
            return True
        reduces = label not in self.results
        return not (op.localize or op.offset or op.restrict or (reduces and (op.mean or op.reduce != "sum")))

    def placements(self, label: str) -> tuple[list[AxisPlacement], list[AxisPlacement]]:
        """What the operands and the results are where an axis splits this label."""
        op = self.op
        pending: AxisPlacement = REPLICATE if op.reduce == "same" else Partial(REDUCE_OPS[op.reduce])
        pending = Partial("avg") if op.mean else pending

        def of(labels: str, otherwise: AxisPlacement) -> AxisPlacement:
            return Shard(labels.index(label)) if label in labels else otherwise

        ins, outs = self.signature.ins, self.signature.outs
        return [of(labels, REPLICATE) for labels in ins], [of(labels, pending) for labels in outs]


def _labels(op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any]) -> _Labels:
    """Labels as declared; those of a gradient are its operator's. Raises NotBuiltYet for an operator without any."""
    if op.signature is not None:
        known = _SplitLabels(op, shapes, attrs)
        return known
    if op.gradient_of is not None:
        of, operand = op.gradient_of
        given = dict(zip(op.tensors, shapes, strict=True))
        given.setdefault(operand, attrs.get("shape", shapes[0]))  # `gradient`: the operand's shape, or that of g
        if all(name in given for name in of.tensors) and not (of.window or of.localize or of.offset or of.restrict):
            its = {name: attrs.get(name, value) for name, value in of.default_attrs.items()}
            of_shapes = tuple(given[name] for name in of.tensors)
            signature = of.signature_for(of_shapes, its)
            names = dict(zip(of.tensors, signature.ins, strict=True))
            ins = tuple(names.get(name, signature.out) for name in op.tensors)
            sizes = of.label_sizes(signature, of_shapes, its)
            derived = Signature(ins, (names[operand],))
            return _Labels(op, derived, sizes, sizes, of.whole_labels(signature, of_shapes, its))
    raise NotBuiltYet(f"{op.class_name} has no labels", allowed="Operators with labels, in gradients of DTensors")


class _SplitLabels(_Labels):
    """Labels of an operator that takes strategies: what is refused there is refused here."""

    def __init__(self, op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any]) -> None:
        self.known = known = LabelSplits(op, shapes, attrs)
        super().__init__(op, known.signature, known.sizes, known.out, known.whole)

    def splits(self, label: str) -> bool:
        known = self.known
        free = label in known.names and label not in known.uneven and label not in known.tied.values()
        return free and super().splits(label)

    def divides(self, label: str, ranks: int) -> bool:
        if not super().divides(label, ranks) or self.sizes[label] % ranks or self.out.get(label, 0) % ranks:
            return super().divides(label, ranks)
        cuts = {c: ranks if c == label else 1 for c in self.known.names}
        try:
            return not self.known.windows(cuts) and self.known.label_fault(cuts) is None
        except ParallelLabError:
            return False


def _linear(op: OpDef, numbers: Sequence[bool]) -> Iterator[tuple[set[int], str, str]]:
    """(operands that are pending together, their reduction, the result's) as `linear=` of the declaration says."""
    moves = (
        op.flops == 0 and not op.linear and (op.variadic or len(op.tensors) == 1)
    )  # elements, and does not change them
    text = "sum avg max min: *" if moves else op.linear
    for part in filter(None, map(str.strip, text.split(";"))):
        reductions, _, alternatives = part.rpartition(":")
        for alternative in alternatives.split(","):
            together, _, whole = alternative.partition(" with ")
            every = together.strip() == "*"
            chosen = set(range(len(numbers)) if every else map(op.tensors.index, together.strip().split("+")))
            others = set(map(op.tensors.index, whole.split()))
            if any(numbers[i] for i in chosen | others):
                continue
            for reduction in reductions.split() or LINEAR:
                before, _, after = reduction.partition(">")
                yield chosen, before, after or before


# ---- a rule for every axis ----

POLICIES = ("torch", "cheapest", "explicit", "reduce_at_once")
State = tuple[MeshLayout | None, ...]


def choose(
    op: OpDef,
    shapes: tuple[Shape, ...],
    attrs: dict[str, Any],
    layouts: State,
    itemsizes: tuple[int, ...],
    policy: str = "torch",
    where: str = "",
) -> Choice:
    """How an operator runs on operands that lie so.

    layouts    of the operands; None: a plain number
    itemsizes  bytes of an element of each
    policy     "torch": least by PyTorch's prices; "cheapest", "reduce_at_once": fewest bytes (the second leaves no
               operand pending); "explicit": nothing may be sent

    Raises LayoutError: over two meshes; under "explicit" with the calls that would mend it.
    """
    return _choice(op.name, shapes, tuple(sorted(attrs.items())), layouts, itemsizes, policy, where or op.class_name)


@lru_cache(maxsize=8192)
def _choice(
    name: str,
    shapes: tuple[Shape, ...],
    items: tuple[Any, ...],
    layouts: State,
    itemsizes: tuple[int, ...],
    policy: str,
    where: str,
) -> Choice:
    op, attrs = OPS[name], dict(items)
    _labels(op, shapes, attrs)
    meshes = {layout.mesh for layout in layouts if layout is not None}
    if len(meshes) != 1:
        what = f"operands on {' and '.join(map(str, meshes))}"
        raise LayoutError(what, where=where, allowed="Operands on one mesh")
    mesh, numbers = meshes.pop(), tuple(layout is None for layout in layouts)
    start = tuple(None if x is None else x.on(len(s)) for x, s in zip(layouts, shapes, strict=True))
    held = {p for layout in start if layout is not None for p in layout.placements}
    factors = dict.fromkeys(p.split_factor for p in held if isinstance(p, (Shard, StridedShard)))
    if policy != "torch":
        factors = {1: None} | factors  # PyTorch splits nothing where no operand is split
    per_axis = [
        [strided for rule in axis_rules(op, shapes, attrs, ranks, numbers) for strided in _strided(rule, factors)]
        for ranks in mesh.shape
    ]
    if policy == "reduce_at_once":
        per_axis = [[r for r in rules if not any(isinstance(p, Partial) for p in r.ins)] for rules in per_axis]
    best: tuple[float, bool, State, tuple[AxisRule, ...]] | None = None
    for rules in itertools.product(*per_axis):
        if not _consistent(rules):
            continue
        ins = [None if n else _layout(mesh, rules, i) for i, n in enumerate(numbers)]
        cost = sum(
            _price(src, dst, shape, size, policy)
            for src, dst, shape, size in zip(start, ins, shapes, itemsizes, strict=True)
        )
        key = cost, tuple(ins) != start  # of equal ones that which moves nothing, then the first
        if cost < math.inf and (best is None or key < best[:2]):
            best = *key, tuple(ins), rules
    assert best is not None  # copies always fit
    cost, _, end, chosen = best
    if policy == "explicit" and cost:
        moved = [(i, x) for i, x in enumerate(end) if x is not None and x != start[i]]
        hint = "; ".join(f"operand {i}: redistribute({x})" for i, x in moved)
        given = ", ".join("a number" if x is None else str(x) for x in start)
        raise LayoutError(f"operands {given}, which would have to move", where=where, allowed="No message", hint=hint)
    outs = tuple(MeshLayout(mesh, tuple(rule.outs[i] for rule in chosen)) for i in range(len(chosen[0].outs)))
    return Choice(end, outs, chosen, cost)


def _layout(mesh: DeviceMesh, rules: Sequence[AxisRule], operand: int) -> MeshLayout:
    return MeshLayout(mesh, tuple(p for rule in rules if (p := rule.ins[operand]) is not None))


def _strided(rule: AxisRule, factors: Iterable[int]) -> Iterator[AxisRule]:
    """The rule for each way in which operands are split now; a strided split is as good as another, if all are."""
    if not rule.label:
        yield rule
        return

    def with_factor(placement: Any, factor: int) -> Any:
        return StridedShard(placement.dim, factor) if isinstance(placement, Shard) and factor > 1 else placement

    for factor in factors:
        ins, outs = (tuple(with_factor(p, factor) for p in side) for side in (rule.ins, rule.outs))
        yield AxisRule(ins, outs, rule.label)


@lru_cache(maxsize=65536)
def _price(src: MeshLayout | None, dst: MeshLayout | None, shape: Shape, itemsize: int, policy: str) -> float:
    """What it costs to move an operand: PyTorch's microseconds, or bytes that a rank sends; inf: it cannot be done."""
    if src is None or dst is None or src == dst:
        return 0.0
    if policy == "torch" and all(isinstance(p, Replicate) for p in src.placements):
        return 0.0
    try:
        steps = redistribution(src, dst, shape, "torch" if policy == "torch" else "cheapest", copies_as_addends=True)
    except LayoutError:
        return math.inf
    if any(isinstance(step.to, Partial) and isinstance(step.source, (Shard, StridedShard)) for step in steps):
        return math.inf
    if policy != "torch":
        return sum(step.sent_elements(shape) for step in steps) * itemsize
    pairs = zip(src.placements, src.mesh.shape, strict=True)
    size = math.prod(shape) * itemsize / math.prod(n for p, n in pairs if isinstance(p, (Shard, StridedShard))) / GIB
    total = 0.0
    for step in steps:
        price, size = torch_step(step.source, step.to, src.mesh.shape[step.axis], size)
        total += price
    return total


def _consistent(rules: Sequence[AxisRule]) -> bool:
    """Whether nothing would be pending by two reductions that do not go together."""
    for values in itertools.chain(
        zip(*(r.outs for r in rules), strict=True), zip(*(r.ins for r in rules), strict=True)
    ):
        ops = {p.reduce_op for p in values if isinstance(p, Partial)}
        if len(ops) > 1 and ops != {"sum", "avg"}:
            return False
    return True
