"""What a network does with Parameters besides its result, or after the optimizer's step: an average of weights that is
kept with them.

    ops.assign(self.average, self.average * 0.9 + self.w * 0.1)     # the loss does not depend on it

Nothing of it comes from the data, so it has no batch to split: operators without a strategy follow the Parameters as
the network's own operators lay them out, and are computed after these. (MindSpore gives strategies to what the loss
depends on; the rest works on slices as they are.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...layout.tensor_layout import TensorLayout
from ...ops.machine.sharding import sharding_rule
from ..draft import needed as needed_by
from ..instr import Value
from ..ir import Graph, Node
from .candidates import choose_from_inputs


def parameter_operators(graph: Graph) -> tuple[set[str], set[str], set[str]]:
    """Names of the forward operators without a strategy that read Parameters and numbers only, and on which no result
    depends; of what is computed after them: these, and what reads them; and of those on which a result does depend, or
    the function that is differentiated.
    """
    nodes = graph.of_phase("forward")
    needed = set(graph.read_late())
    for node in reversed(nodes):
        if needed.intersection(node.outs) or node.when:
            needed.update(node.reads)
    still = {i.name for i in graph.inputs if i.role == "parameter" or i.is_number or i.role == "constant"}
    follow: set[str] = set()
    late: set[str] = set()
    results: set[str] = set()
    for node in nodes:
        if needed.intersection(node.outs) or node.own_rows or node.when:
            continue
        if still.issuperset(node.reads) and (node.strategy_source not in ("user", "file") or node.follows):
            still.update(node.outs)
            if node.strategy is not None and not node.opdef.view and node.op != "cast":
                follow.add(node.name)
        elif not results.intersection(node.reads):
            continue
        late.add(node.name)
        results.update(node.outs)
    of_loss = {n.name for n in (needed_by(nodes, (*graph.seeds, *graph.outputs)) if graph.seeds else nodes)}
    return (follow, late, of_loss) if follow else (set(), set(), of_loss)


def lies_elsewhere(build: Any, node: Node, of_loss: set[str]) -> bool:
    """Whether an operator on which no result depends, such as a weight decay, reads a Parameter that lies elsewhere."""
    if node.name in of_loss or node.strategy_source != "default":
        return False
    how: Any = build.graph.operand_shapes(node), dict(node.attrs), node.strategy, build.config.device_num
    rule = sharding_rule(node.opdef, *how, where=node.where)
    wanted = [(n, want) for n, want in zip(node.ins, rule.ins, strict=True) if build.is_parameter(n)]
    return any(n in build.values and not build.values[n].placed.same_placement(want) for n, want in wanted)


def ordered(graph: Graph, late: set[str]) -> tuple[Node, ...]:
    """The forward operators, those in `late` last."""
    nodes = graph.of_phase("forward")
    return (*(n for n in nodes if n.name not in late), *(n for n in nodes if n.name in late))


def follow_parameters(build: Any, node: Node, together: Sequence[Node]) -> None:
    """Compute element by element on slices as they lie; else by the strategy that moves least of the operands. build:
    the Builder of `parallelize`;  together: the operators with which it is computed.
    """
    graph, device_num = build.graph, build.config.device_num
    shapes, held = graph.operand_shapes(node), [_laid_out(graph, together, name, build.values) for name in node.ins]
    lie = [layout for layout, shape in zip(held, shapes, strict=True) if shape]
    op = node.opdef
    plain = isinstance(op.signature, str) and "..." in op.signature and len(node.outs) == 1
    plain = plain and not op.whole and not op.localize  # the softmax of a slice is something else
    lead = lie[0] if lie else None
    equal = lead is not None and all(layout is not None and layout.same_placement(lead) for layout in lie)
    if not (plain and equal and all(shape in ((), node.shape) for shape in shapes)):
        attrs = dict(node.attrs)
        strategy = choose_from_inputs(op, shapes, attrs, held, device_num, build.config)
        node = replace(node, strategy=strategy, strategy_source="followed")
        rule = sharding_rule(op, shapes, attrs, strategy, device_num, node.where)
        build.compute(node, rule, build.operands(node, rule.ins))
        return
    layouts = [TensorLayout.replicated(device_num, 0) if layout is None else layout for layout in held]
    plain_node = replace(node, strategy=None, strategy_source="")
    build.add(plain_node.computed(build.operands(node, layouts), node.attrs), Value(node.shape, node.dtype, lie[0]))


def _laid_out(graph: Graph, nodes: Sequence[Node], name: str, values: dict[str, Value]) -> TensorLayout | None:
    """Where a value that these operators read lies; of a Parameter that nothing else reads, as one of its shape that
    meets it there.
    """
    shape = graph.shapes()[name]
    if not shape or name in values:
        return values[name].layout if shape else None
    together = {name}
    numbers = {i.name for i in graph.inputs if i.is_number}
    count = 0
    while count != len(together):
        count = len(together)
        for node in nodes:
            names = {*node.ins, *node.outs} - numbers
            if together & names:
                together |= names
    alike = sorted(n for n in together if n in values and values[n].shape == shape)
    return values[alike[0]].layout if alike else None
