"""Pass `strategies`: every operator gets a strategy, the learner's or the batch-parallel default.

A wrong one is refused here, before anything runs.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import ContextError, StrategyError, message
from ...ops.sharding import completed, default_strategy, result_layout, sharding_rule
from ..ir import Draft, Graph, Node

__all__ = ["check_device_num", "choose_strategies"]


def check_device_num(device_num: int) -> None:
    """Raise ContextError unless `device_num` is 1, 2, 4 or a multiple of 8 (MindSpore's rule)."""
    if device_num not in (1, 2, 4) and (device_num < 1 or device_num % 8):
        near = max(n for n in (1, 2, 4, *range(8, 4097, 8)) if n <= max(device_num, 1))
        raise ContextError(message(f"device_num={device_num}", where="compile", allowed="1, 2, 4 or a multiple of 8", hint=f"Try {near}"))


def choose_strategies(draft: Draft) -> Draft:
    """Fill in `strategy` of every node. In stand_alone and data_parallel mode the learner's strategies are ignored, as in MindSpore.

    Raises StrategyError (operator, file:line, input, dim, both numbers, a legal suggestion) for a strategy that does not fit its operator.
    """
    check_device_num(draft.config.device_num)
    shapes = draft.graph.shapes()
    if draft.config.parallel_mode == "data_parallel":
        nodes = tuple(replace(n, strategy=None, strategy_source="", out_strategy=None) for n in draft.graph.nodes)
        ignored = sum(n.strategy is not None for n in draft.graph.nodes)
        return replace(draft, graph=replace(draft.graph, nodes=nodes)).noted(
            "strategies", f"none in data_parallel mode; {ignored} given ones ignored"
        )
    stand_alone = draft.config.parallel_mode == "stand_alone"
    nodes = tuple(_chosen(node, tuple(shapes[i] for i in node.ins), draft.config.device_num, stand_alone) for node in draft.graph.nodes)
    given = sum(n.strategy_source == "user" for n in nodes)
    graph: Graph = replace(draft.graph, nodes=nodes)
    return replace(draft, graph=graph).noted("strategies", f"{given} given, {sum(n.strategy_source == 'default' for n in nodes)} by default")


def _chosen(node: Node, shapes: tuple[tuple[int, ...], ...], device_num: int, stand_alone: bool) -> Node:
    op, attrs = node.opdef, dict(node.attrs)
    if op.view:
        return node
    if stand_alone:
        node = replace(node, strategy=None, strategy_source="", out_strategy=None)
    if op.infer_fn is not None:
        raise StrategyError(message(f"{node.op_class} has no sharding rule", where=node.where, hint="Compose it from operators that have one"))
    if node.strategy is None:
        return replace(node, strategy=default_strategy(op, shapes, attrs, device_num), strategy_source="default")
    place = node.strategy_origin.place if node.strategy_origin is not None and node.strategy_origin.place else node.origin.place
    where = f"{node.op_class} {node.name!r}" + (f" ({place})" if place else "")
    node = replace(node, strategy=completed(op, shapes, attrs, node.strategy))
    result_layout(op, sharding_rule(op, shapes, attrs, node.strategy, device_num, where), node.shape, node.out_strategy, where)
    return node
