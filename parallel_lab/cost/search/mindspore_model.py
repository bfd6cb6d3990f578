"""A problem with MindSpore's own numbers: bytes computed on and communicated, by which its searches choose.

    cost = alpha * computation + beta * (communication + gamma * communication_of_parameters)

An operator computes on its operands' slices and on partial sums, and once more on parameters whose gradients have to be
summed; it communicates partial sums, and these gradients, which are mostly hidden (gamma). An edge costs what bringing
the tensor from the producer's layout to the consumer's costs, forward and backward (`layout/redistribution_cost.py`).
Small messages cost as much as 3072 bytes, others 1024 more than they have. A batch split among all devices wins ties by
a byte. Bytes are a device's. alpha, beta, gamma: `set_cost_model_context`. (MindSpore: operator_costmodel, costmodel,
edge_costmodel.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ...base.settings.config import ParallelConfig
from ...base.settings.current import get_cost_model_context
from ...graph.ir import Graph, Node
from ...graph.passes.candidates import Operator, operator_cost
from ...layout.named_layout import AnyStrategy
from ...layout.redistribution_cost import practical, redistribution_cost
from ...layout.tensor_layout import Shape, TensorLayout
from ...ops.machine.split_labels import ShardingRule
from .cost_model import CostModel
from .problem import Problem, Term

# operators that MindSpore's parallel passes leave out of account whatever they are: its scripts end networks with one
NOT_LOOKED_AT = ("VirtualLoss",)


def mindspore_problem(graph: Graph, config: ParallelConfig, also: Mapping[str, AnyStrategy] | None = None) -> Problem:
    """The choices of a traced network, priced as MindSpore prices them.  also: more candidates, of operators by name"""
    return MindSporeModel(graph, config, also).problem()


class MindSporeModel(CostModel):
    """Bytes, as in the module's words."""

    name = "mindspore"

    def terms(self) -> tuple[Term, ...]:
        alpha, beta, gamma = (get_cost_model_context(f"costmodel_{name}") for name in ("alpha", "beta", "gamma"))
        sums = "slices of partial results; slices sent by redistributions, forward and backward; small ones as 3072 B"
        return (
            Term(
                "computation", "bytes", alpha, "slices of operands and partial sums; of parameters to be summed, twice"
            ),
            Term("communication", "bytes", beta, sums),
            Term("communication of parameters", "bytes", beta * gamma, "slices of parameters that several ranks hold"),
        )

    def looks_at(self, node: Node) -> bool:
        return node.op_class not in NOT_LOOKED_AT

    def prices(self, node: Node, rules: list[ShardingRule]) -> tuple[np.ndarray, np.ndarray]:
        operator = self.operator(node)
        key = (id(rules), operator.itemsize, operator.out_shapes, operator.parameters)
        if key not in self.priced:
            memory = np.array([held_bytes(operator, rule) for rule in rules], np.int64)
            self.priced[key] = np.array([operator_cost(operator, rule) for rule in rules]), memory
        return self.priced[key]

    def between(
        self, before: TensorLayout, after: TensorLayout, shape: Shape, shape_after: Shape, itemsize: int, live: bool
    ) -> tuple[float, ...]:
        how = {"alltoall": any(self.config.manner.values()), "first_slice": True}
        cost = redistribution_cost(before, after, shape, shape_after, **how)
        sent = practical(cost.forward * itemsize) + practical(cost.backward * itemsize)
        return cost.computation * itemsize, sent, 0.0


def held_bytes(operator: Operator, rule: ShardingRule) -> int:
    """Bytes of a device for an operator's results and the parameters it reads."""
    result_elements = sum(math.prod(x.slice_shape(s)) for x, s in zip(rule.outs, operator.out_shapes, strict=True))
    parameters = sum(math.prod(rule.ins[i].slice_shape(operator.shapes[i])) for i in operator.parameters)
    return (result_elements + parameters) * operator.itemsize
