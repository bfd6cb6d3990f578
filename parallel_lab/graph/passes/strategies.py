"""Pass `strategies`: every operator gets a strategy, the learner's, or the batch-parallel default, or in auto_parallel
mode the propagated one.

A wrong one is refused here, before anything runs. Before it stands `strategy file`, which reads those that an earlier
run has saved.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ...base.errors import ContextConflictError, StrategyError
from ...base.settings.checks import LOCAL_MODES
from ...base.settings.context import get_compat
from ...layout.named_layout import LayoutStrategy
from ...ops.machine.sharding import completed, default_strategy, result_layout, sharding_rule
from ..ir import Draft, Graph, Node
from ..strategy_file import load_strategy
from .propagate import propagate_strategies


def check_device_num(device_num: int) -> None:
    """Raise ContextConflictError (also a RuntimeError) unless `device_num` is 1, 2, 4 or a multiple of 8 (MindSpore's
    rule, when it compiles).
    """
    if device_num not in (1, 2, 4) and (device_num < 1 or device_num % 8):
        near = max(n for n in (1, 2, 4, *range(8, 4097, 8)) if n <= max(device_num, 1))
        raise ContextConflictError(
            f"device_num={device_num}",
            where="compile",
            allowed="1, 2, 4 or a multiple of 8",
            hint=f"Try {near}, or start {near} ranks",
        )


def choose_strategies(draft: Draft) -> Draft:
    """Fill in `strategy` of every node. In stand_alone and data_parallel mode the learner's strategies are ignored, as
    in MindSpore.

    Raises StrategyError (operator, file:line, input, dim, both numbers, a legal suggestion) for a strategy that does
    not fit its operator.
    """
    check_device_num(draft.config.device_num)
    shapes = draft.graph.shapes()
    if draft.config.parallel_mode in LOCAL_MODES:
        nodes = tuple(replace(n, strategy=None, strategy_source="", out_strategy=None) for n in draft.graph.nodes)
        ignored = sum(n.strategy is not None for n in draft.graph.nodes)
        return replace(draft, graph=replace(draft.graph, nodes=nodes)).noted(
            "strategies", f"none in {draft.config.parallel_mode} mode; {ignored} given ones ignored"
        )
    if draft.config.parallel_mode == "auto_parallel":
        return _propagated(draft)
    stand_alone = draft.config.parallel_mode == "stand_alone"
    nodes = tuple(
        # operators on gradients follow their operands' layouts, which only the backward program will tell
        _chosen(node, tuple(shapes[i] for i in node.ins), draft.config.device_num, stand_alone)
        if node.phase == "forward"
        else node
        for node in draft.graph.nodes
    )
    given = sum(n.strategy_source == "user" for n in nodes)
    graph: Graph = replace(draft.graph, nodes=nodes)
    return replace(draft, graph=graph).noted(
        "strategies", f"{given} given, {sum(n.strategy_source == 'default' for n in nodes)} by default"
    )


def _propagated(draft: Draft) -> Draft:
    """The given strategies checked, the others spread from them."""
    shapes = draft.graph.shapes()
    nodes = tuple(
        _chosen(n, tuple(shapes[i] for i in n.ins), draft.config.device_num, False)
        if n.phase == "forward" and (n.strategy is not None or n.opdef.infer_fn is not None or n.nd_tp)
        else n
        for n in draft.graph.nodes
    )
    graph = propagate_strategies(replace(draft.graph, nodes=nodes), draft.config, need_given=get_compat() == "seeds")
    count = Counter(n.strategy_source for n in graph.nodes)
    return replace(draft, graph=graph).noted(
        "strategies", f"{count['user']} given, {count['propagated']} propagated from them"
    )


def _chosen(node: Node, shapes: tuple[tuple[int, ...], ...], device_num: int, stand_alone: bool) -> Node:
    op, attrs = node.opdef, dict(node.attrs)
    if op.view:
        return node
    if stand_alone:
        node = replace(node, strategy=None, strategy_source="", out_strategy=None)
    if op.infer_fn is not None:
        raise StrategyError(
            f"{node.op_class} has no sharding rule", where=node.where, hint="Compose it from operators that have one"
        )
    if node.nd_tp and not stand_alone and not isinstance(node.strategy, LayoutStrategy):
        what = f"enable_nd_tp with {'no strategy' if node.strategy is None else f'strategy {node.strategy}'}"
        hint = "For example 2D: .shard((layout('None', ('x', 'y')), layout('x', 'y')))"
        raise StrategyError(
            what, where=node.where, allowed="2D and 3D tensor parallelism needs a Layout per input", hint=hint
        )
    if node.strategy is None:
        return replace(node, strategy=default_strategy(op, shapes, attrs, device_num), strategy_source="default")
    place = (
        node.strategy_origin.place
        if node.strategy_origin is not None and node.strategy_origin.place
        else node.origin.place
    )
    where = f"{node.op_class} {node.name!r}" + (f" ({place})" if place else "")
    node = replace(node, strategy=completed(op, shapes, attrs, node.strategy))
    result_layout(
        op, sharding_rule(op, shapes, attrs, node.strategy, device_num, where), node.shape, node.out_strategy, where
    )
    return node


def with_saved_strategies(draft: Draft) -> Draft:
    """Pass `strategy file`: strategies of the file that `strategy_ckpt_load_file` names, for operators that the learner
    gave none.

    Raises StrategyError for a file made for another number of devices, and what `load_strategy` raises.
    """
    path = draft.config.strategy_ckpt_load_file
    file = load_strategy(path)
    if file.device_num != draft.config.device_num:
        what = f"strategy_ckpt_load_file={path!r} was made for {file.device_num} devices"
        raise StrategyError(
            what, where="compile", allowed=f"A file made for {draft.config.device_num}, as many as compile now"
        )
    saved = {operator.name: operator for operator in file.operators if operator.strategy is not None}
    nodes = tuple(
        replace(
            node, strategy=saved[node.name].strategy, out_strategy=saved[node.name].out_strategy, strategy_source="file"
        )
        if node.strategy is None
        and node.phase == "forward"
        and node.name in saved
        and saved[node.name].op == node.op_class
        else node
        for node in draft.graph.nodes
    )
    taken = sum(node.strategy_source == "file" for node in nodes)
    return replace(draft, graph=replace(draft.graph, nodes=nodes)).noted(
        "strategy file", f"{taken} strategies from {path}"
    )
