"""Recursive programming: halve the network between two halves of the devices, then each half again.

With 2^d devices there are d levels. On each of them every product takes the cut in two that costs least, in elements of
the tensors as they are by then:

    rows of a (m, k) x (k, n)      (k, n) is kept whole by both halves     k * n / 2 * 0.1
    columns                        (m, k) is kept whole                    m * k / 2
    the contraction                the result has to be summed             m * n / 2
    nothing                        both halves do all of it                the least of these, squared, / 25

More where a neighbour that decided before it on this level is cut otherwise: 16 times the tensor. A dim of odd size is
not cut; a product whose columns were cut does not cut the contraction any more, nor the other way round; equals go to
the first of this list. A convolution halves its batch, pooling batch or channels; the dataset, a batch normalization
and the cross entropies their first even dim. Operators are met from the result backward, last operands first, and
decide in the opposite order. Among more than 32 devices the dearest decide first: of a product the dearest of the four
counts, of a convolution half of its smallest tensor, 0 of pooling and the dataset; the others come before all. There
the sums of a split contraction stay scattered along the rows.

All others follow: they are split as what they read, or else as their readers want it; first where this uses all
devices, then half of them, and so on; what is left is not split. A BatchMatMul follows, too. A Gather splits its
indices, then the rows of its table, and hands nothing on. Some operators nobody halves and none follows (WHOLE).

Strategies that the learner gave are not looked at, as in MindSpore 2.10, except with `self_define_shard`. (MindSpore:
rec_core. The weight 0.1 is rp_matmul_mem_coef of set_cost_model_context; in 1.x it was 0.25. 64 single products do not
tell the two apart, but 2.10 halves the rows alone of (16, 32) x (32, 16) before a relu and (16, 16), as recorded; a
quarter would not.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ...base.errors import StrategyError
from ...base.settings.config import ParallelConfig
from ...base.settings.current import get_cost_model_context
from ...graph.ir import Graph, Node
from ...graph.passes.candidates import BATCH_ONLY
from ...layout.named_layout import AnyStrategy, strategy_counts
from ...layout.tensor_layout import Shape
from ...ops.machine.legal_strategies import legal_strategies, nearest_legal
from ...ops.machine.primitive import Strategy
from ...ops.machine.sharding import default_strategy, sharding_rule
from ...ops.machine.split_labels import ShardingRule, strategy_operands
from .places import DATASET, Places

WHOLE_BELOW = 25  # elements: a product whose cheapest cut costs less is left whole
MOVED_SCALE = 16  # elements of a tensor that two operators cut differently
KINDS = {"m": "rows", "n": "columns", "k": "contraction", "b": "batch", "c": "channels", "": ""}
# operators that halve themselves besides products: one of these dims, from the right, or else the first even one
HALVED = {"Conv2D": {"b": 4}, "Conv2DTranspose": {"b": 4}, "MaxPool": {"b": 4, "c": 3}}
FIRST_EVEN = ("BatchNorm", "PReLU", "SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits", DATASET)
# MindSpore has rules for these, but neither a way to halve them nor one to follow: they stay whole (rec_parse_graph)
WHOLE = (
    *("AvgPool", "AvgPool3D", "BroadcastTo", "Conv3D", "Cosh", "CumProd", "Erfinv", "GatherNd", "HShrink", "IsFinite"),
    *("KLDivLoss", "MaxPool3D", "Mish", "MulNoNan", "ReduceAll", "ReduceAny", "ReduceProd", "Rint", "SeLU", "Slice"),
    *("SoftShrink", "SquaredDifference", "TopK", "TruncateDiv", "Xdivy", "Xlogy"),
)
DEAREST_ABOVE = 32  # devices (rec_partition, SortByWeight; rec_generate_strategy, ExtraShardMatmulOnBatchDim)
SILENT = (DATASET, "Gather", "Assign", "ExpandDims")  # these hand nothing on
AS_IT_IS = (0, 1, 2, 3)  # the order of four dims
AFTER = -1  # stands for an operand: the neighbour reads the result
Cuts = tuple[int, int, int]  # of operands 0 and 1 and the result the dims that are halved, from the right; 0: none


@dataclass(eq=False)
class _Op:
    """An operator, a reshape (its node's strategy means nothing) or the dataset.

    kind, shapes   MindSpore's name; of the operands, a product's as if nothing were transposed;  out: of the result
    ins            the operators its operands come from;  near: (neighbour, by which operand, whether it is the same)
    cuts, halved   what this level cuts; {dim from the right: so many parts} of operands 0 and 1 and the result
    """

    name: str
    kind: str
    shapes: tuple[Shape, ...]
    out: Shape
    ins: tuple[str | None, ...] = ()
    node: Node | None = None
    cuts: Cuts | None = None
    strategy: Strategy = ()
    near: list[tuple[_Op, int, bool]] = field(default_factory=list)
    halved: tuple[dict[int, int], ...] = field(default_factory=lambda: ({}, {}, {}))

    @property
    def reads(self) -> list[tuple[int, str]]:
        return [(at, name) for at, name in enumerate(self.ins) if name is not None]

    @property
    def halves(self) -> bool:
        return self.kind == "MatMul" or self.kind in HALVED or self.kind in FIRST_EVEN or self.kind in WHOLE

    def now(self, at: int) -> Shape:
        """Shape of operand 0 or 1, or of the result (2), as it is by now."""
        shape = self.out if at == 2 else self.shapes[at]
        return tuple(n // self.halved[at].get(len(shape) - i, 1) for i, n in enumerate(shape))

    def prices(self, rows_scale: float) -> tuple[float, float, float, float]:
        """What a product's rows, columns, contraction or nothing cost.  rows_scale: by which the rows are cheaper."""
        (m, k), (_, n) = self.now(0), self.now(1)
        cuts = k * n / 2 * rows_scale, m * k / 2, m * n / 2
        return *cuts, min(cuts) ** 2 / WHOLE_BELOW

    def weight(self, rows_scale: float) -> float:
        """How early it decides where the dearest is the first."""
        if self.kind == "MatMul":
            return max(self.prices(rows_scale))
        if self.kind == "MaxPool" or self.kind in WHOLE or self.kind == DATASET:
            return 0.0
        return min(math.prod(self.now(at)) for at in range(3)) / 2 if self.kind in HALVED else math.inf

    def choices(self, rows_scale: float) -> Iterator[tuple[str, float, Cuts]]:
        """(label, price, cuts) of what can be halved."""
        if self.kind == "MatMul":
            (m, k), (_, n) = self.now(0), self.now(1)
            rows, columns, contraction, nothing = self.prices(rows_scale)
            if not m % 2:
                yield "m", rows, (2, 0, 2)
            if not n % 2 and 1 not in self.halved[0]:
                yield "n", columns, (0, 1, 1)
            if not k % 2 and 1 not in self.halved[1]:
                yield "k", contraction, (1, 2, 0)
            yield "", nothing, (0, 0, 0)
            return
        shape = self.now(2 if self.kind == "MaxPool" else 0)
        even = [dim for dim in range(len(shape), 0, -1) if not shape[-dim] % 2]
        if self.kind in HALVED:
            yield from ((label, 0.0, (dim, 0, dim)) for label, dim in HALVED[self.kind].items() if dim in even)
        elif even and self.kind in FIRST_EVEN:
            yield "", 0.0, (even[0], even[0], even[0])


@dataclass(frozen=True)
class Halving:
    """One decision.  prices: elements of every cut that was possible ("": none), with what lies between neighbours."""

    level: int
    operator: str
    prices: tuple[tuple[str, float], ...]
    label: str | None
    kind: str

    def text(self) -> str:
        """In words."""
        others = ", ".join(f"{label or 'nothing'!r} {price:,.0f}" for label, price in self.prices)
        if self.label is None:
            return f"level {self.level}: {self.operator!r} is not halved, both halves do all of it ({others} elements)"
        return f"level {self.level}: {self.operator!r} halves its {self.kind}, {self.label!r} ({others} elements)"


def recursive_search(graph: Graph, config: ParallelConfig) -> tuple[dict[str, AnyStrategy], tuple[Halving, ...]]:
    """({operator: strategy}, what was decided on each level).

    Raises StrategyError for more devices than the setting recursive_most_devices (MindSpore: 1024), and for a count
    that is not a power of two: devices are halved until one is left.
    """
    if config.device_num & (config.device_num - 1):
        what, hint = f"{config.device_num} devices", "Use dynamic_programming"
        raise StrategyError(what, where="recursive_programming", allowed="A power of two", hint=hint)
    if config.device_num > config.recursive_most_devices:
        what, allowed = f"{config.device_num} devices", f"At most {config.recursive_most_devices}"
        hint = f"Use dynamic_programming, or set recursive_most_devices={config.device_num}"
        raise StrategyError(what, where="recursive_programming", allowed=allowed, hint=hint)
    search = _Recursive(graph, config)
    return search.run(), tuple(search.steps)


class _Recursive(Places):
    def __init__(self, graph: Graph, config: ParallelConfig) -> None:
        super().__init__(graph, config)
        self.ops = self.met()  # the last of the network first
        self.rows_scale = get_cost_model_context("rp_matmul_mem_coef")
        self.steps: list[Halving] = []
        self.rules: dict[str, ShardingRule] = {}

    def met(self) -> dict[str, _Op]:
        """Operators, reshapes and the dataset in the order in which they are met from the results backward."""
        every, ops = self.nodes | self.views, {}
        makers = {out: name for name, node in every.items() for out in node.outs} | dict.fromkeys(self.data, DATASET)
        fed = tuple(self.inputs[name].shape for name in self.data)
        given = tuple(layout.splits for layout in self.data.values())
        queue = [*every, *(makers[name] for name in self.graph.outputs if name in makers)]
        while queue:
            name = queue.pop()
            if name == DATASET:
                ops.setdefault(name, _Op(name, DATASET, fed, fed[0], strategy=given))
            elif name not in ops:
                node = every[name]
                shapes, kind = self.graph.operand_shapes(node), node.op_class
                if node.op == "matmul":
                    kind = "MatMul" if len(shapes[0]) == len(shapes[1]) == 2 else "BatchMatMul"
                    shapes = turned(node, shapes) if kind == "MatMul" else shapes
                ops[name] = _Op(name, kind, shapes, node.shape, tuple(map(makers.get, node.ins)), node)
                queue += [source for _, source in ops[name].reads]
        return ops

    def before_it(self, op: _Op) -> Iterator[tuple[_Op, int, bool]]:
        """Operators before `op` that halve themselves, each once, through those that follow, by first operands first.

        With the operand that leads there, and whether what is read there is what is made here: transposed and back, or
        with dims that a reshape joined or parted.
        """
        seen: set[str] = set()
        ways = [(name, at, AS_IT_IS, False) for at, name in reversed(op.reads)]
        while ways:
            name, at, perm, reshaped = ways.pop()
            here = self.ops[name]
            if name in seen:
                continue
            seen.add(name)
            if here.halves:
                yield here, min(at, 1), same(here.out, op.shapes[at], perm, reshaped)
                continue
            if here.kind == "Transpose":
                own = dict(self.nodes[name].attrs)["perm"]
                perm = tuple(own[i] for i in perm) if len(own) == len(perm) else ()
            ways += [(other, at, perm, reshaped or name in self.views) for _, other in reversed(here.reads)]

    # ---- halving ----

    def run(self) -> dict[str, AnyStrategy]:
        order = [op for op in reversed(self.ops.values()) if op.halves]
        for op in order:
            for first, at, alike in self.before_it(op):
                op.near.append((first, at, alike))
                first.near.append((op, AFTER, alike or first.out in op.shapes))
        for level in range(1, self.device_num.bit_length()):
            for op in order:
                op.cuts = None
            dearest = {op: -op.weight(self.rows_scale) if among_many(self.config) else op.kind in WHOLE for op in order}
            for op in sorted(order, key=dearest.__getitem__):
                self.halve(op, level)
        for op in self.ops.values():
            if op.node is not None and (op.halves or op.node.op in BATCH_ONLY or without_rule(op.node)):
                self.take(op, as_halved(op, op.node))
        self.follow()
        self.agree()
        return {name: self.rules[name].strategy for name in self.nodes}

    def halve(self, op: _Op, level: int) -> None:
        """Take the cheapest cut in two."""
        prices = []
        for label, price, cuts in op.choices(self.rows_scale):
            moved = 0.0
            for other, at, alike in op.near:
                if alike and other.cuts is not None:
                    mine, theirs = (cuts[2], other.cuts[0]) if at == AFTER else (cuts[at], other.cuts[2])
                    moved += MOVED_SCALE * math.prod(op.now(2 if at == AFTER else 0)) * (mine != theirs)
            prices.append((price + moved, label, cuts))
        _, label, op.cuts = min(prices, key=lambda one: one[0], default=(0.0, "", (0, 0, 0)))
        for dim, parts in zip(op.cuts, op.halved, strict=True):
            if dim:
                parts[dim] = 2 * parts.get(dim, 1)
        if op.kind == "MatMul" or op.kind in HALVED:
            told = tuple((label, price) for price, label, _ in prices)
            self.steps.append(Halving(level, op.name, told, label or None, KINDS[label]))

    def take(self, op: _Op, wanted: Strategy) -> None:
        """Give an operator the legal strategy nearest to this one."""
        node, op.strategy = op.node, wanted
        if node is None or op.name in self.views:
            return
        what, devices = (node.opdef, self.graph.operand_shapes(node), dict(node.attrs)), self.device_num
        if without_rule(node) or len(self.candidates(node)) == 1:
            op.strategy = default_strategy(*what, devices)
        elif wanted not in legal_strategies(*what, devices):
            op.strategy = cast("Strategy", nearest_legal(*what, wanted, devices, lambda _: False))
        chosen: AnyStrategy = op.strategy
        if node.self_defined and node.strategy is not None:
            op.strategy, chosen = strategy_counts(node.strategy), node.strategy
        self.rules[op.name] = sharding_rule(*what, chosen, devices, node.where)

    # ---- all others ----

    def follow(self) -> None:
        """Split the operators that do not halve themselves, as the module says."""
        left = [op for op in self.ops.values() if op.name not in self.rules and op.node is not None]
        least = self.device_num
        while least > 1:
            count = len(left)
            left = self.passed(left, self.as_read, least)
            if len(left) == count:
                left = self.passed(left, self.as_wanted, least)
            least = least if len(left) < count else least // 2
        while count := len(left):
            left = self.passed(self.passed(left, self.as_read, 1), self.as_wanted, 1)
            if len(left) == count:
                break
        for op in left:
            self.take(op, self.by_label(op, (1,) * max(map(len, op.shapes), default=0)))

    def passed(self, left: list[_Op], says: Callable[[_Op], tuple[int, ...]], least: int) -> list[_Op]:
        """Split what can be, the last first; the rest, in the other order.  least: devices that have to be used."""
        rest = []
        for op in reversed(left):
            cuts = says(op)
            if cuts and math.prod(cuts) >= least:
                self.take(op, self.by_label(op, cuts))
            else:
                rest.append(op)
        return rest

    def as_read(self, op: _Op) -> tuple[int, ...]:
        """How its operand lies: the first whose maker is split, or else the last."""
        makers = [self.ops[name] for _, name in op.reads]
        split = (maker for maker in makers if any(n > 1 for n in itertools.chain(*maker.strategy)))
        made = next(split, makers[-1] if makers else None)
        if made is None or made.kind in SILENT or not made.strategy:
            return ()
        if not made.halves and (op.kind in ("OneHot", "Transpose") or made.kind == "StridedSlice"):
            return ()
        if made.name in self.views:
            return reshaped_cuts(made.shapes[0], made.out, made.strategy[0])
        if made.node is not None and (scattered := rows_scattered(made.node, made.strategy, self.config)):
            return scattered[0]
        return made.strategy[0] if made.kind == "BatchMatMul" else self.rules[made.name].outs[0].whole().splits

    def as_wanted(self, op: _Op) -> tuple[int, ...]:
        """How its first reader wants the result, as cuts of its operand."""
        readers = (other for other in self.ops.values() if other.strategy and op.name in other.ins)
        reader = next(readers, None)
        if reader is None or reader.kind in SILENT or op.kind in ("Flatten", "ArgMaxWithValue", "ArgMinWithValue"):
            return ()
        at = min(reader.ins.index(op.name), len(reader.strategy) - 1)
        cuts = reader.strategy[at]
        if op.name in self.views:
            return reshaped_cuts(op.out, op.shapes[0], cuts)
        if op.kind == "Gather":
            return spread(reader.shapes[at], self.device_num)
        node = self.nodes[op.name]
        if op.kind == "Transpose":  # MindSpore takes the same order in this direction
            return tuple(cuts[i] for i in dict(node.attrs)["perm"])
        signature = node.opdef.signature_for(self.graph.operand_shapes(node), dict(node.attrs))
        by_label = dict(zip(signature.out, cuts, strict=False))
        return tuple(by_label.get(c, 1) for c in self.word(op))

    def word(self, op: _Op) -> str:
        """Labels of what a follower is split by: its result, of operators with broadcasting, or its largest operand."""
        node = self.nodes[op.name]
        signature = node.opdef.signature_for(self.graph.operand_shapes(node), dict(node.attrs))
        if node.op == "matmul" or self.operator(node).is_elementwise:
            return signature.out
        return max(strategy_operands(node.opdef, signature), key=len, default="")

    def by_label(self, op: _Op, cuts: tuple[int, ...]) -> Strategy:
        """A follower's strategy from the cuts of its `word`, or a reshape's operand."""
        if op.name in self.views:
            return (tuple(n if size % n == 0 else 1 for n, size in zip(cuts, op.shapes[0], strict=False)),)
        node, attrs = self.nodes[op.name], dict(self.nodes[op.name].attrs)
        shapes = self.graph.operand_shapes(node)
        if op.kind == "Gather":
            return gathered(shapes, attrs, op.out, self.device_num)
        signature = node.opdef.signature_for(shapes, attrs)
        sizes = node.opdef.label_sizes(signature, shapes, attrs)
        counts = {c: n for c, n in zip(self.word(op), cuts, strict=False) if sizes.get(c, 1) % n == 0}
        return tuple(tuple(counts.get(c, 1) for c in labels) for labels in strategy_operands(node.opdef, signature))

    def agree(self) -> None:
        """Readers of one parameter split it as the first of them does that is not a Gather, where they can."""
        readers: dict[str, list[tuple[_Op, int]]] = {}
        for op in sorted(self.ops.values(), key=lambda op: op.kind == "Gather"):
            for at, name in enumerate(op.node.ins if op.name in self.rules and op.node is not None else ()):
                if (parameter := self.parameter(name)) is not None:
                    readers.setdefault(parameter, []).append((op, at))
        for (first, place), *others in readers.values():
            held = self.rules[first.name].operand_layouts[place]
            for op, at in others:
                node, operator = self.nodes[op.name], self.operator(self.nodes[op.name])
                legal = legal_strategies(node.opdef, operator.shapes, dict(node.attrs), self.device_num)
                fitting = [s for s in legal if operator.rule(s).ins[at].same_placement(held)]
                if fitting and op.strategy not in fitting:
                    rest = self.device_num // math.prod(held.splits)  # a Gather's indices take the other devices
                    wanted = (held.splits, (rest,)) if op.kind == "Gather" else op.strategy
                    cuts = tuple(itertools.chain(*wanted))
                    self.take(op, max(fitting, key=lambda s: sum(map(int.__eq__, itertools.chain(*s), cuts))))


def among_many(config: ParallelConfig) -> bool:
    """Whether all stages together have so many devices that other rules hold."""
    return config.device_num * config.pipeline_stages > DEAREST_ABOVE


def rows_scattered(node: Node, strategy: Strategy, config: ParallelConfig) -> Strategy | None:
    """The out_strategy of a product whose sums stay scattered along its rows, where these allow it."""
    if node.op_class != "MatMul" or not among_many(config) or len(node.shape) != 2:
        return None
    (rows, parts), _ = turned(node, strategy)
    return ((rows * parts, 1),) if parts > 1 and node.shape[0] % (rows * parts) == 0 else None


def without_rule(node: Node) -> bool:
    """Whether only its batch can be split."""
    return node.by_batch or node.self_defined or node.opdef.result_shape is not None


def same(out: Shape, shape: Shape, perm: tuple[int, ...], reshaped: bool) -> bool:
    """Whether a tensor is read as it was made."""
    if reshaped:
        return perm == AS_IT_IS and (out == shape or (len(out) != len(shape) and math.prod(out) == math.prod(shape)))
    ndim = max(len(out), len(shape), len(AS_IT_IS))
    out, shape = ((1,) * (ndim - len(x)) + x for x in (out, shape))
    return out == shape if perm == AS_IT_IS else tuple(out[i] for i in perm) == shape


def as_halved(op: _Op, node: Node) -> Strategy:
    """The strategy of an operator that halves itself."""
    parts = (*op.halved[:2], *({},) * len(op.shapes))
    cuts = [
        tuple(n.get(dim, 1) for dim in range(len(shape), 0, -1)) for shape, n in zip(op.shapes, parts, strict=False)
    ]
    return turned(node, cuts) if op.kind == "MatMul" else tuple(cuts)


def turned(node: Node, tuples: Sequence[Shape]) -> tuple[Shape, ...]:
    """Shapes or cuts of a product's operands without their transposes, or the other way round."""
    turns = (dict(node.attrs)[name] for name in ("transpose_a", "transpose_b"))
    return tuple(x[::-1] if turn else x for x, turn in zip(tuples, turns, strict=True))


def reshaped_cuts(before: Shape, after: Shape, cuts: tuple[int, ...]) -> tuple[int, ...]:
    """How a reshape hands on cuts: whole to the first dim that they divide, else as much as divides it.

    >>> reshaped_cuts((32, 64), (4, 8, 64), (8, 2)), reshaped_cuts((4, 8, 64), (32, 64), (4, 1, 2))
    ((1, 8, 2), (4, 2))
    """
    out, left = [1] * len(after), list(cuts)
    for whole in (True, False):
        source, target, i, j = list(before), list(after), 0, 0
        while i < len(source) and j < len(target):
            part = math.gcd(left[i], target[j]) if whole or source[i] > target[j] else left[i]
            part = 1 if whole and (part < left[i] or source[i] < target[j]) else part
            out[j], left[i] = out[j] * part, left[i] // part
            if source[i] > target[j]:
                source[i] //= target[j]
                j += 1
            elif source[i] < target[j]:
                target[j] //= source[i]
                i += 1
            else:
                i, j = i + 1, j + 1
    return tuple(out)


def spread(shape: Shape, devices: int) -> tuple[int, ...]:
    """Halve dim 0, then the others, the longest first, while they are even."""
    order = [0, *sorted(range(1, len(shape)), key=lambda dim: -shape[dim])]
    cuts, left = [1] * len(shape), devices
    for dim in order:
        while left > 1 and shape[dim] // cuts[dim] % 2 == 0:
            cuts[dim], left = 2 * cuts[dim], left // 2
    return tuple(cuts)


def gathered(shapes: tuple[Shape, ...], attrs: dict[str, Any], out: Shape, devices: int) -> Strategy:
    """A Gather's strategy, whoever asks: rows of the indices, then of a table whose indices are whole."""
    table, ids = shapes[:2]
    if attrs["axis"] % len(table):
        cuts = spread(out, devices)
        return (cuts[0], *(1,) * (len(table) - 1)), cuts[len(table) - 1 :][: len(ids)]
    rows = spread(ids[:1], devices)[0] if ids else 1
    least = spread(table[:1], devices // rows)[0]
    both = len(table) == len(ids) == 2 and rows * least == devices
    return (least if rows == 1 or both else 1, *(1,) * (len(table) - 1)), (rows, *(1,) * (len(ids) - 1)) if ids else ()
