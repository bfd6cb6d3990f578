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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
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

    def gradient(self, operand: int) -> AxisPlacement:
        """What the axis does to an operand's gradient: split alike; pending, if ranks have own results of a copy."""
        mine = self.ins[operand]
        if isinstance(mine, (Shard, StridedShard)):
            return mine
        own = any(not isinstance(p, Replicate) for p in self.outs)
        return Partial() if own and not isinstance(mine, Partial) else REPLICATE

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
    linear = list(_linear(op, numbers))
    sums = [operands for operands, before, after in linear if before == after == "sum"]
    addends = set.intersection(*sums) if sums else set()  # in every sum: pending where labels leave the result so
    for label in sorted(filter(labels.splits, labels.signature.labels), key=labels.order):
        if labels.divides(label, ranks):
            ins, outs = labels.placements(label)
            if op.expand is not None and Partial in map(type, outs):  # its parts reduce, and not it alone
                continue
            if outs == [Partial()]:
                ins = [outs[0] if i in addends and p == REPLICATE else p for i, p in enumerate(ins)]
            found.append(rule(ins, outs, label))
    for operands, before, after in linear:
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
        self.unfolded = op.offset_labels(signature)[op.unfold.label] if op.unfold is not None else ""

    def splits(self, label: str) -> bool:
        """Whether an axis may split a label."""
        return label not in self.whole and label not in self.op.exchanges and label != self.unfolded

    def order(self, label: str) -> tuple[int, int]:
        """Labels that all have first, then contracted ones, then those of the first operand: PyTorch's order; those
        of a single operand as they stand."""
        ins = [self.signature.ins[i] for i in operands_in_order(self.op, len(self.signature.ins))]
        if len(ins) == 1:
            return 0, ins[0].find(label)
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
        if self.sizes[label] < ranks or self.notices(label, ranks):  # some would have nothing
            return False
        return label in self.results or not op.mean and op.reduce in ("sum", "prod")

    def notices(self, label: str, ranks: int) -> bool:
        """Whether a rank computes otherwise where a label is split."""
        return bool(self.op.localize or self.op.offset or self.op.restrict)

    def placements(self, label: str) -> tuple[list[AxisPlacement], list[AxisPlacement]]:
        """What the operands and the results are where an axis splits this label."""
        op = self.op
        pending: AxisPlacement = REPLICATE if op.reduce == "same" else Partial(REDUCE_OPS[op.reduce])
        pending = Partial("avg") if op.mean else pending

        def of(labels: str, otherwise: AxisPlacement) -> AxisPlacement:
            return Shard(labels.index(label)) if label in labels else otherwise

        ins, outs = self.signature.ins, self.signature.outs
        return [of(labels, REPLICATE) for labels in ins], [of(labels, pending) for labels in outs]


def operands_in_order(op: OpDef, count: int) -> Sequence[int]:
    """Positions of the operands as PyTorch takes them, and moves them: its embedding takes the table first."""
    return (1, 0) if op.name == "embedding" else range(count)


def new_labels(signature: Signature) -> set[str]:
    """Labels of results that no operand has: windows, positions, which an operand may have by another name."""
    return set("".join(signature.outs)) - set("".join(signature.ins)) - {"1"}


def has_labels(op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any]) -> bool:
    """Whether an operator has labels, its own or those of the operator whose gradient it is: others no axis splits."""
    try:
        return bool(_labels(op, shapes, attrs))
    except NotBuiltYet:
        return False


def _labels(op: OpDef, shapes: tuple[Shape, ...], attrs: dict[str, Any]) -> _Labels:
    """Labels as declared; those of a gradient are its operator's. Raises NotBuiltYet for an operator without any."""
    if op.signature is not None:
        labels = _SplitLabels(op, shapes, attrs)
        new = new_labels(labels.signature)
        if op.cases or op.unfold is None and (op.result_shape is not None or new <= set(labels.whole)):
            return labels  # new ones are split with those of an operator's strategy
    if op.gradient_of is not None:
        of, operand = op.gradient_of
        given = dict(zip(op.tensors, shapes, strict=True))
        given.setdefault(operand, attrs.get("shape", shapes[0]))  # `gradient`: the operand's shape, or that of g
        if all(name in given for name in of.tensors) and not (
            of.window or of.localize or of.restrict and not of.offset
        ):
            its = {name: attrs.get(name, value) for name, value in of.default_attrs.items()}
            of_shapes = tuple(given[name] for name in of.tensors)
            signature = of.signature_for(of_shapes, its)
            names = dict(zip(of.tensors, signature.ins, strict=True))
            ins = tuple(names.get(name, signature.out if s else "") for name, s in zip(op.tensors, shapes, strict=True))
            sizes = of.label_sizes(signature, of_shapes, its)
            derived = Signature(ins, (names[operand],))
            whole = of.whole_labels(signature, of_shapes, its) + of.offset_labels(signature)
            return _Labels(op, derived, sizes, sizes, whole)
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
        divides = super().divides(label, ranks)
        if not divides or self.sizes[label] % ranks or self.out.get(label, 0) % ranks:
            return divides
        cuts = self._cuts(label, ranks)
        try:
            return not self.known.windows(cuts) and self.known.label_fault(cuts) is None
        except ParallelLabError:
            return False

    def notices(self, label: str, ranks: int) -> bool:
        op, known, cuts = self.op, self.known, self._cuts(label, ranks)
        if label in op.offset_labels(self.signature) or known.refused(cuts) or known.windows(cuts):
            return True
        return op.localize is not None and op.localize(known.attrs, cuts) != op.localize(known.attrs, self._cuts("", 1))

    def _cuts(self, label: str, ranks: int) -> dict[str, int]:
        return {c: ranks if c == label else 1 for c in self.known.names}


def _linear(op: OpDef, numbers: Sequence[bool]) -> Iterator[tuple[set[int], str, str]]:
    """(operands that are pending together, their reduction, the result's) as `linear=` of the declaration says."""
    # what only moves elements passes everything
    moves = op.flops == 0 and not op.linear and op.expand is None and (op.variadic or len(op.tensors) == 1)
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


def _copies(rule: AxisRule, *_: Any) -> bool:
    return not rule.label and REPLICATE in rule.ins


def _looks_up(rule: AxisRule) -> bool:
    """Whether an axis splits what is looked up: ranks give zeros for rows of others."""
    return bool(rule.label) and Partial() in rule.outs


# operators for which PyTorch has fewer rules: (rule, what the axis does to the operands now, shapes) -> whether it has
FEWER: dict[str, Callable[[AxisRule, Sequence[AxisPlacement | None], tuple[Shape, ...]], bool]] = {
    "tril": _copies,
    "triu": _copies,
    "index_select": lambda rule, now, shapes: not _looks_up(rule),
    "gather_elements": lambda rule, now, shapes: not _looks_up(rule) or 1 in shapes[1],
    "embedding": lambda rule, now, shapes: not _looks_up(rule) or tuple(now) == rule.ins,
    "stack": lambda rule, now, shapes: all(
        REPLICATE in (a, b) or Partial() == a or a == b for a, b in zip(now, rule.ins, strict=True)
    ),
}

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
               operand pending); "explicit": nothing may be sent; "gspmd": what JAX's compiler does where that is known

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
    labels = _labels(op, shapes, attrs)
    meshes = {layout.mesh for layout in layouts if layout is not None}
    if len(meshes) != 1:
        what = f"operands on {' and '.join(map(str, meshes))}"
        raise LayoutError(what, where=where, allowed="Operands on one mesh")
    mesh, numbers = meshes.pop(), tuple(layout is None for layout in layouts)
    start = tuple(None if x is None else x.on(len(s)) for x, s in zip(layouts, shapes, strict=True))
    held = {p for layout in start if layout is not None for p in layout.placements}
    factors = dict.fromkeys(p.split_factor for p in held if isinstance(p, (Shard, StridedShard)))
    if policy != "torch" or name == "embedding":
        factors = {1: None} | factors  # PyTorch splits nothing where no operand is split, but for rows of a table
    per_axis = [
        [strided for rule in axis_rules(op, shapes, attrs, ranks, numbers) for strided in _strided(rule, factors)]
        for ranks in mesh.shape
    ]
    if policy == "torch" and (has := FEWER.get(name)) is not None:
        held_there = [[None if x is None else x.placements[axis] for x in start] for axis in range(mesh.ndim)]
        per_axis = [
            [rule for rule in rules if has(rule, now, shapes)] for rules, now in zip(per_axis, held_there, strict=True)
        ]
    if policy in ("reduce_at_once", "gspmd"):
        per_axis = [[r for r in rules if not any(isinstance(p, Partial) for p in r.ins)] for rules in per_axis]
    best: tuple[float, bool, State, tuple[AxisRule, ...]] | None = None
    for rules in itertools.product(*per_axis):
        if not _consistent(rules) or not _divides(labels, rules, mesh):
            continue
        ins = [None if n else _layout(mesh, rules, i) for i, n in enumerate(numbers)]
        if policy == "torch" and tuple(ins) != start and any(map(_in_strides, ins)):
            continue
        cost = sum(
            _price(src, dst, shape, size, policy)
            for src, dst, shape, size in zip(start, ins, shapes, itemsizes, strict=True)
        )
        if policy == "gspmd" and cost < math.inf:
            cost += _compiled(op, shapes, attrs, start, rules, max(itemsizes, default=0), cost)
        key = cost, tuple(ins) != start  # of equal ones that which moves nothing, then the first
        if cost < math.inf and (best is None or key < best[:2]):
            best = *key, tuple(ins), rules
    if best is None:  # under "gspmd"; copies always fit elsewhere
        given = ", ".join("a number" if x is None else str(x) for x in start)
        raise LayoutError(f"operands {given}", where=where, allowed="Those for which XLA's messages are known")
    cost, _, end, chosen = best
    if policy == "explicit" and cost:
        moved = [(i, x) for i, x in enumerate(end) if x is not None and x != start[i]]
        hint = "; ".join(f"operand {i}: redistribute({x})" for i, x in moved)
        given = ", ".join("a number" if x is None else str(x) for x in start)
        raise LayoutError(f"operands {given}, which would have to move", where=where, allowed="No message", hint=hint)
    outs = tuple(MeshLayout(mesh, tuple(rule.outs[i] for rule in chosen)) for i in range(len(chosen[0].outs)))
    return Choice(end, outs, chosen, cost)


def _compiled(
    op: OpDef, shapes: Any, attrs: Any, start: State, rules: Sequence[AxisRule], itemsize: int, moved: float
) -> float:
    """Bytes of what becomes pending though one operand was not split; inf: XLA does something else, or that is not
    known. Compared with XLA (JAX 0.10, on a CPU) for products, sums and reductions in random layouts.
    """
    layouts = [x for x in start if x is not None]
    mesh, signature = layouts[0].mesh, _labels(op, shapes, attrs).signature
    gathered = [
        (axis, i)
        for axis, rule in enumerate(rules)
        for i, (x, to) in enumerate(zip(start, rule.ins, strict=True))
        if x is not None and not isinstance(x.placements[axis], Replicate) and x.placements[axis] != to
    ]
    free = [axis for axis, rule in enumerate(rules) if any(isinstance(p, Partial) for p in rule.outs)]
    if op.signature == "...,...->..." or op.signature is None:
        return math.inf if moved and mesh.ndim > 1 else 0.0
    if len(layouts) == 1:  # axes in the order of the dims; nothing moves
        order = [mesh.axis(name) for names in layouts[0].dims(len(shapes[0])) for name in names]
        return math.inf if gathered or free and order != sorted(order) else 0.0
    price = 0.0
    for axis in free:
        pairs = [(x.placements[axis], to) for x, to in zip(start, rules[axis].ins, strict=True) if x is not None]
        if any(axis == other for other, _ in gathered):
            return math.inf  # what is gathered gives nothing pending
        if any(a != b for a, b in pairs):  # one operand was split, the other is cut
            if mesh.ndim > 1:
                return math.inf
            price += math.prod(op.infer(shapes, ("float32",) * len(shapes), attrs).shapes[0]) * itemsize
    for axis, i in gathered:
        held, others = start[i], [x for x in layouts if x is not start[i]]
        assert held is not None
        source = held.placements[axis]
        if not isinstance(source, Shard) or not isinstance(rules[axis].ins[i], Replicate):
            return math.inf  # products exchange nothing
        if mesh.ndim > 1:  # weights over the axis that splits the rows, and no other, while no axis is idle
            contracted = signature.ins[i][source.dim] not in signature.outs[0]
            rows = [x.placements[axis] for x in others]
            idle = any(all(isinstance(x.placements[a], Replicate) for x in layouts) for a in range(mesh.ndim))
            nested = any(sum(p == row for p in x.placements) > 1 for x, row in zip(others, rows, strict=True))
            if len(gathered) > 1 or not contracted or idle or nested or not any(isinstance(r, Shard) for r in rows):
                return math.inf
    return price


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
        planner = policy if policy in ("torch", "gspmd") else "cheapest"
        steps = redistribution(src, dst, shape, planner, copies_as_addends=True)
    except LayoutError:
        return math.inf
    if any(isinstance(step.to, Partial) and isinstance(step.source, (Shard, StridedShard)) for step in steps):
        return math.inf
    if policy != "torch":
        return sum(step.sent_elements(shape) for step in steps) * itemsize
    priced = (Shard,) if _in_strides(src) else (Shard, StridedShard)  # what a view left in strides has no price
    pairs = zip(src.placements, src.mesh.shape, strict=True)
    size = math.prod(shape) * itemsize / math.prod(n for p, n in pairs if isinstance(p, priced)) / GIB
    total = 0.0
    for step in steps:
        if isinstance(step.source, StridedShard) and StridedShard not in priced:
            continue
        price, size = torch_step(step.source, step.to, src.mesh.shape[step.axis], size)
        total += price
    return total


@lru_cache(maxsize=4096)
def _in_strides(layout: MeshLayout | None) -> bool:
    """Whether positions lie as a view of a split dim left them: PyTorch does not split so, nor prices its end."""
    dims = [p.dim for p in layout.placements if isinstance(p, (Shard, StridedShard))] if layout is not None else []
    try:
        return bool(layout is not None and dims and not layout.dims(max(dims) + 1))
    except LayoutError:
        return True


def _divides(labels: _Labels, rules: Sequence[AxisRule], mesh: DeviceMesh) -> bool:
    """Whether a label splits into as many parts as the axes that share it have ranks together."""
    shared = [label for label, axes in Counter(rule.label for rule in rules if rule.label).items() if axes > 1]
    return all(
        labels.divides(c, math.prod(n for n, rule in zip(mesh.shape, rules, strict=True) if rule.label == c))
        for c in shared
    )


def _consistent(rules: Sequence[AxisRule]) -> bool:
    """Whether nothing would be pending by two reductions that do not go together."""
    for values in itertools.chain(
        zip(*(r.outs for r in rules), strict=True), zip(*(r.ins for r in rules), strict=True)
    ):
        ops = {p.reduce_op for p in values if isinstance(p, Partial)}
        if len(ops) > 1 and ops != {"sum", "avg"}:
            return False
    return True
