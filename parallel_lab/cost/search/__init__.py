"""Who gives operators their strategies in auto_parallel mode.

`sharding_propagation` spreads given strategies to the neighbours (`propagation.py`).
"""

from __future__ import annotations

from ...base.settings.config import ParallelConfig
from ...graph.ir import Graph
from .propagation import propagate_strategies


def search_strategies(graph: Graph, config: ParallelConfig) -> Graph:
    """The graph with strategies for all forward operators, found as `config.search_mode` says."""
    return propagate_strategies(graph, config)
