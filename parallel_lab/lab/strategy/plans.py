"""The plans of the Strategy Lab's settings: each is compiled once, and kept while it is among the last few.

plans, setting = Plans(), Setting("quickstart", "seed", devices=8)
plans.plan(setting, {"matmul": ((2, 4), (4, 1))})
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

from ...base.errors import ParallelLabError
from ...base.settings.current import default_settings
from ...graph.compiler import compile_network
from ...graph.plan import Plan
from ..pictures.layers import operator_of
from ..shared.jobs import JOBS
from ..shared.networks import apply_strategies, operator_layers, operator_primitives
from ..shared.problems import get_problem

FUSED = {"comm_fusion": {"allreduce": {"mode": "auto", "config": None}}}
SLICED = {"enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0}
SHORT = 8  # operators up to which a network is shown operator by operator, above it layer by layer
KEPT = 32  # plans: one of the GPT takes half a megabyte

Strategies = Mapping[str, Any]


class Setting(NamedTuple):
    """What a plan depends on besides the strategies.  fused: gradient sums;  sliced: optimizer states"""

    net: str
    data: str
    devices: int
    fused: bool = False
    sliced: bool = False


class Facts(NamedTuple):
    """Facts of a network's operators, whatever their strategies and the devices are.

    names      in order of the network
    composed   {operator made of others: (declaration, shapes of operands, attributes)}: it is not a node of a plan
    layers     {operator: its layer}; empty for a network that is shown operator by operator
    """

    names: tuple[str, ...]
    composed: dict[str, tuple]
    layers: dict[str, str]


@lru_cache(maxsize=32)
def facts_of(net: str, data: str) -> Facts:
    """Facts of the operators, from the plan for one device: the same for all labs."""
    plan, network = _compiled(Setting(net, data, 1), {})
    primitives = operator_primitives(network)
    names = dict.fromkeys(operator_of(node.name, primitives) for node in plan.graph.nodes)
    names.pop("", None)
    composed = {
        name: (primitives[name].op, *primitives[name].called_with)
        for name in names
        if primitives[name].op.expand is not None
    }
    layers = operator_layers(network) if len(names) > SHORT else {}
    return Facts(tuple(names), composed, layers)


def job_of(net: str, data: str, strategies: Strategies) -> tuple[Any, Any, list]:
    """(network with its first values and these strategies, optimizer, batches)."""
    job = JOBS[net](data)
    with default_settings():
        apply_strategies(job.net, strategies)
    return job.net, job.optimizer, list(job.batches)


class Plans:
    """Plans by their settings; may be asked in several threads, and by all branches of a lab."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Setting, str], Plan] = OrderedDict()
        self._drawn: OrderedDict[int, tuple[Plan, dict[Hashable, Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def plan(self, setting: Setting, strategies: Strategies) -> Plan:
        """The plan; the same object as long as it is kept. Raises ParallelLabError where that is refused."""
        # by their text: for Python ((True, 2),) is ((1, 2),), and lists have no hash
        key = setting, repr({name: strategy for name, strategy in strategies.items() if strategy is not None})
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        plan = _compiled(setting, strategies)[0]
        with self._lock:
            self._kept[key] = plan
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return plan

    def drawn(self, plan: Plan, part: Hashable, draw: Callable[[], Any]) -> Any:
        """What `draw` makes of a plan for a part of the picture, kept like it; dicts and lists are the caller's."""
        with self._lock:
            _, parts = self._drawn.setdefault(id(plan), (plan, {}))
            self._drawn.move_to_end(id(plan))
            if len(self._drawn) > KEPT:
                self._drawn.popitem(last=False)
        if part not in parts:
            parts[part] = draw()
        return own_copy(parts[part])

    def fitting(self, setting: Setting, given: Strategies) -> dict[str, Any]:
        """`given` as far as it fits the data; None (default) elsewhere. In order of the network."""
        chosen: dict[str, Any] = dict.fromkeys(facts_of(setting.net, setting.data).names)
        with suppress(ParallelLabError):
            self.plan(setting, {**chosen, **given})
            return {**chosen, **given}
        for operator, strategy in given.items():
            with suppress(ParallelLabError):
                self.plan(setting, {**chosen, operator: strategy})
                chosen[operator] = strategy
        return chosen


def own_copy(drawn: Any) -> Any:
    """A copy of dicts and lists, and of those in them."""
    if isinstance(drawn, dict):
        return {name: own_copy(value) for name, value in drawn.items()}
    return [own_copy(value) for value in drawn] if isinstance(drawn, list) else drawn


def _compiled(setting: Setting, strategies: Strategies) -> tuple[Plan, Any]:
    """A plan, and the network it was made of."""
    net, optimizer, batches = job_of(setting.net, setting.data, strategies)
    how: dict[str, Any] = {"device_num": setting.devices, "dataset_strategy": "full_batch"}
    how |= FUSED if setting.fused else {}
    how |= SLICED if setting.sliced else {}
    with default_settings():
        return compile_network(net, *batches[0], loss=get_problem(setting.data).loss(), optimizer=optimizer, **how), net
