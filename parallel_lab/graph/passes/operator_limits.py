"""What MindSpore refuses of an operator besides its strategy, before any is chosen: EmbeddingLookup off the host, PadV3
that mirrors, layouts of Split's results, and layouts with the axis "interleaved_parallel" where it takes no parts.
"""

from __future__ import annotations

from ...base.errors import StrategyError
from ...base.settings.checks import INTERLEAVED
from ...layout.named_layout import LayoutStrategy
from ..draft import at_compile
from ..ir import Graph, Node


def check_operators(graph: Graph, device_num: int) -> None:
    """Raise StrategyError (also a RuntimeError) for the first operator that is refused."""
    if device_num > 1:
        for node in graph.of_phase("forward"):
            if node.opdef.host_only and node.target != "CPU":
                what, allowed = "it has no target", "The host, where tables are larger than a device's memory"
                hint = f"Write {node.op_class}().set_device('CPU'), or use Gather"
                raise StrategyError(what, where=node.where, allowed=allowed, hint=hint)
    for node in graph.of_phase("forward"):
        if node.strategy is not None:
            _check_given(graph, node)
    chosen = ((n, n.strategy) for n in graph.nodes)
    parts = {s.parts: n for n, s in chosen if isinstance(s, LayoutStrategy) and s.parts > 1}
    if len(parts) > 1:
        shown = " and ".join(f"{number} ({node.where})" for number, node in parts.items())
        what, allowed = f"layouts have axes {INTERLEAVED!r} of sizes {shown}", "One size in a network"
        raise at_compile(StrategyError, what, allowed)
    for node in graph.nodes if parts else ():
        if isinstance(node.strategy, LayoutStrategy) and node.strategy.parts > 1:
            _check_parts(graph, node, node.strategy)


def _check_given(graph: Graph, node: Node) -> None:
    """Raise StrategyError for an operator that takes no strategy (MindSpore: pad_info, split_info)."""
    attrs, named, fault = dict(node.attrs), isinstance(node.strategy, LayoutStrategy), ()
    if node.op_class == "PadV3" and attrs["mode"] != "constant":
        fault = f"mode {attrs['mode']!r}", "With a strategy only 'constant'", "Leave the strategy out"
    elif node.op == "split_parts" and named and node.out_strategy is not None:
        fault = f"out_strategy {node.out_strategy}", "None: every part has the layout of the input", "Leave it out"
    if fault:
        what, allowed, hint = fault
        raise StrategyError(what, where=node.where, allowed=allowed, hint=hint)


def _check_parts(graph: Graph, node: Node, strategy: LayoutStrategy) -> None:
    """Raise StrategyError if an operator cannot be computed in parts, or not in these."""
    what, allowed = f"its layouts have the axis {INTERLEAVED!r}", ""
    if node.op == "sort":
        allowed = f"{node.op_class} takes whole slices"
    elif node.op == "split_parts":
        axis = dict(node.attrs)["axis"] % len(graph.operand_shapes(node)[0])
        if axis in strategy.interleaved:
            what = f"{INTERLEAVED!r} splits dim {axis} of its input"
            allowed = f"Any other dim: {node.op_class} itself takes this one apart"
    if allowed:
        hint = f"Give it layouts without {INTERLEAVED!r}"
        raise StrategyError(what, where=node.where, allowed=allowed, hint=hint)
