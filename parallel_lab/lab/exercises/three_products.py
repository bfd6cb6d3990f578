"""Three products in a row on eight ranks, the first one's strategy given: what sharding propagation makes of it, and
the least that any choice sends. Lesson 11's chain.

    spread({})                                     what propagation gives the other two
    sent_bytes_of(spread({}))                      bytes that a rank sends in a step, counted in the compiled plan
    least().best.cost                              of all choices, proved

x (1024, 64) @ w1 (64, 64) @ w2 (64, 1024) @ w3 (1024, 64), no loss. Between two products the exact exchange moves what
is missing and nothing else, so that bytes are due to the strategies alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from ...base.cluster import Cluster, Device, Link
from ...base.settings.current import default_settings
from ...cost.search import Found, propagate_strategies, search
from ...cost.search.search_modes import with_strategies
from ...cost.time import sent_bytes
from ...ops.machine.primitive import Strategy
from ..shared.jobs import ProductChain

ROWS, WIDTHS, DEVICES = 1024, (64, 64, 1024, 64), 8
GIVEN: dict[str, Strategy] = {"matmul1": ((1, 1), (1, 8))}
# a second for a byte, and nothing for whatever else: what a search makes least is what a rank sends
BYTES = Cluster("bytes", Device(1e30, 1 << 50, 1e30, 0.0), Link(0.0, 1.0), DEVICES)


@lru_cache(maxsize=1)
def _free() -> Found:
    """The search with nothing given, exact."""
    with default_settings():
        x = np.zeros((ROWS, WIDTHS[0]), np.float32)
        how = {"cluster": BYTES, "device_num": DEVICES, "dataset_strategy": "full_batch", "redistribution": "exact"}
        return search(ProductChain(WIDTHS), x, **how)


@lru_cache(maxsize=1)
def least() -> Found:
    """The choice that sends least with the first product as it is given: branch and bound, proved."""
    with default_settings():
        return _free().again(pinned=GIVEN, method="branch_and_bound")


def operators() -> dict[str, tuple[Strategy, ...]]:
    """{operator: its candidates}."""
    return {choice.name: choice.candidates for choice in _free().problem.choices if choice.name}


def spread(pins: Mapping[str, Strategy]) -> dict[str, Strategy]:
    """Every operator's strategy: the given one, the pins, and what propagation makes of them."""
    draft = _free().draft
    with default_settings():
        graph = with_strategies(draft.graph, draft.config, {**GIVEN, **pins}, {})
        graph = propagate_strategies(graph, draft.config)
    return {name: graph.node(name).strategy for name in operators()}


def sent_bytes_of(strategies: Mapping[str, Strategy]) -> int:
    """Bytes that the rank sends that sends most, in one step of the compiled plan."""
    with default_settings():
        plan = _free().compile_with(strategies, {})
    messages = [instr for _, instr in plan.instructions() if instr.is_communication]
    return max(sum(sent_bytes(plan, i, i.position(rank)) for i in messages) for rank in range(DEVICES))
