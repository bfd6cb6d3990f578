"""Pass `strategies`: each operator's, as given, batch-parallel or (auto_parallel) searched for; refuses wrong ones.

Pass `strategy file`, before it, reads those that an earlier run has saved.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, cast

from ...base.errors import ContextConflictError, StrategyError
from ...base.hooks import from_above
from ...layout.named_layout import LayoutStrategy
from ...ops.machine.completion import completed
from ...ops.machine.result_layouts import result_layouts
from ...ops.machine.sharding import default_strategy, sharding_rule
from ..draft import Draft, at_compile
from ..ir import Node
from .operator_limits import check_operators

SOURCES = {"propagated": "propagated from them", "searched": "searched for", "default": "by default"}


def check_device_num(device_num: int) -> None:
    """Raise ContextConflictError unless `device_num` is 1, 2, 4 or a multiple of 8 (MindSpore's rule)."""
    if device_num not in (1, 2, 4) and (device_num < 1 or device_num % 8):
        near = max(n for n in (1, 2, 4, device_num - device_num % 8) if n <= max(device_num, 1))
        what, hint = f"device_num={device_num}", f"Try {near}, or start {near} ranks"
        raise at_compile(ContextConflictError, what, "1, 2, 4 or a multiple of 8", hint)


def choose_strategies(draft: Draft) -> Draft:
    """Fill in `strategy` of every node; stand_alone and data_parallel ignore the learner's, as MindSpore does.

    Raises StrategyError (operator, file:line, input, dim, both numbers, a legal suggestion) if one does not fit.
    """
    graph, config = draft.graph, draft.config
    if config.local:
        ignored = sum(n.strategy is not None for n in graph.nodes)
        note, nodes = f"none in {config.parallel_mode} mode; {ignored} given ones ignored", map(_without, graph.nodes)
        return replace(draft, graph=replace(graph, nodes=tuple(nodes))).noted("strategies", note)
    searched, stand_alone = config.parallel_mode == "auto_parallel", config.parallel_mode == "stand_alone"
    if not stand_alone:
        check_operators(graph, config.device_num)

    def gets_strategy(n: Node) -> bool:
        """Operators on gradients follow their operands' layouts, which only the backward program will tell."""
        decided = n.strategy is not None or n.by_batch or n.opdef.result_shape is not None
        decided = decided or n.nd_tp or n.self_defined
        return n.phase == "forward" and (decided or not searched)

    chosen = (
        _chosen(n, graph.operand_shapes(n), config.device_num, stand_alone) if gets_strategy(n) else n
        for n in graph.nodes
    )
    graph = replace(graph, nodes=tuple(chosen))
    if searched:
        graph = from_above("strategy_searcher")(graph, config)
    count = Counter(n.strategy_source for n in graph.nodes)
    others = ", ".join(f"{count[how]} {words}" for how, words in SOURCES.items() if count[how]) or "0 by default"
    return replace(draft, graph=graph).noted("strategies", f"{count['user']} given, {others}")


def _without(node: Node) -> Node:
    return replace(node, strategy=None, strategy_source="", out_strategy=None)


def _chosen(node: Node, shapes: tuple[tuple[int, ...], ...], device_num: int, stand_alone: bool) -> Node:
    op, attrs = node.opdef, dict(node.attrs)
    if stand_alone:
        node = _without(node)
    if node.follows:
        return node
    if op.result_shape is not None:
        hint = "Compose it from operators that have one"
        raise StrategyError(f"{node.op_class} has no sharding rule", where=node.where, hint=hint)
    if not stand_alone:
        _check_layouts(node)
    if node.strategy is None:
        return replace(node, strategy=default_strategy(op, shapes, attrs, device_num), strategy_source="default")
    place = (node.strategy_origin.place if node.strategy_origin is not None else "") or node.origin.place
    where = f"{node.op_class} {node.name!r}" + (f" ({place})" if place else "")
    strategy = completed(op, shapes, attrs, node.strategy)
    if isinstance(strategy, LayoutStrategy) and node.self_defined:
        strategy = replace(strategy, results=cast(LayoutStrategy, node.out_strategy))
    node = replace(node, strategy=strategy)
    rule = sharding_rule(op, shapes, attrs, strategy, device_num, where)
    result_layouts(op, rule, node.shapes, node.out_strategy, where)
    return node


def _check_layouts(node: Node) -> None:
    """Raise StrategyError unless an operator that asks for layouts has them."""
    allowed, name, given = "2D and 3D tensor parallelism needs a Layout per input", "enable_nd_tp", [node.strategy]
    hint = "For example 2D: .shard((layout('None', ('x', 'y')), layout('x', 'y')))"
    if node.self_defined:
        allowed, name, given = "A Layout per input and per result", "self_define_shard", [*given, node.out_strategy]
        hint = "For example .shard((layout('dp', 'None'),), (layout('dp', 'None'),))"
    for what, strategy in zip(("strategy", "out_strategy"), given, strict=False):
        if (node.nd_tp or node.self_defined) and not isinstance(strategy, LayoutStrategy):
            fault = f"{name} with {f'no {what}' if strategy is None else f'{what} {strategy}'}"
            raise StrategyError(fault, where=node.where, allowed=allowed, hint=hint)


def with_saved_strategies(draft: Draft) -> Draft:
    """Take strategies of `strategy_ckpt_load_file` where the learner gave none; of operators that read no Parameter
    where they fit (MindSpore saves none of them). StrategyError: other device number.
    """
    path = draft.config.strategy_ckpt_load_file
    file = from_above("strategy_reader")(path)
    made_for = file.stages[0][1] if file.stages else file.device_num  # strategies are for the devices of a stage
    if made_for != draft.config.device_num:
        what = f"strategy_ckpt_load_file={path!r} was made for {made_for} devices"
        raise at_compile(StrategyError, what, f"A file made for {draft.config.device_num}, as many as compile now")
    saved = {(one.name, one.op): one for one in file.operators if one.strategy is not None}
    nodes, taken = list(draft.graph.nodes), 0
    parameters = {source.name for source in draft.graph.inputs if source.role == "parameter"}
    for at, node in enumerate(nodes):
        one = saved.get((node.name, node.op_class))
        wants = one is not None and node.strategy is None and node.phase == "forward"
        if wants and (_fits(one.strategy, draft.graph.operand_shapes(node)) or not parameters.isdisjoint(node.ins)):
            chosen = {"strategy": one.strategy, "out_strategy": one.out_strategy, "strategy_source": "file"}
            nodes[at], taken = replace(node, **chosen), taken + 1
    graph = replace(draft.graph, nodes=tuple(nodes))
    return replace(draft, graph=graph).noted("strategy file", f"{taken} strategies from {path}")


def _fits(strategy: Any, shapes: tuple[tuple[int, ...], ...]) -> bool:
    pairs = [] if isinstance(strategy, LayoutStrategy) else zip(strategy, shapes, strict=False)
    return all(len(c) == len(s) and all(n and not size % n for n, size in zip(c, s, strict=True)) for c, s in pairs)
