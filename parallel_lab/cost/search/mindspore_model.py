"""A problem with MindSpore's own numbers: bytes computed on and communicated, by which its searches choose.

    cost = alpha * computation + beta * (communication + gamma * communication_of_parameters)

An operator computes on its operands' slices and on partial sums, those of a mean twice; it communicates partial sums,
and gradients of parameters that have to be summed, which are mostly hidden (gamma). An edge costs what bringing
the tensor from the producer's layout to the consumer's costs, forward and backward (`layout/redistribution_cost.py`).
Small messages cost as much as 3072 bytes, others 1024 more than they have; there and back through a Reshape is one
message. A batch split among all devices wins ties by a byte. A Gather pays more where rows of its table are split;
convolutions and batch normalization have one candidate, the batch among all devices, pooling those that split the
batch. Bytes are a device's. alpha, beta, gamma: `set_cost_model_context`. (MindSpore: operator_costmodel, costmodel,
edge_costmodel, SetCostUnderStrategyBase; GenerateOpStrategies of conv2d_info, batchnorm_info, maxpool_info.)
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
from ...ops.machine.primitive import Strategy
from ...ops.machine.split_labels import ShardingRule
from .cost_model import CostModel
from .problem import Problem, Term

# operators that MindSpore's parallel passes leave out of account whatever they are: its scripts end networks with one
NOT_LOOKED_AT = ("VirtualLoss",)
BATCH_AMONG_ALL, BATCH_ALONE = ("Conv2D", "Conv2DTranspose", "BatchNorm"), ("MaxPool", "AvgPool")


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
            Term("computation", "bytes", alpha, "slices of operands and of partial sums; a mean's are divided, too"),
            Term("communication", "bytes", beta, sums),
            Term("communication of parameters", "bytes", beta * gamma, "slices of parameters that several ranks hold"),
        )

    def looks_at(self, node: Node) -> bool:
        return node.op_class not in NOT_LOOKED_AT

    def candidates(self, node: Node) -> tuple[Strategy, ...]:
        found = super().candidates(node)
        if node.op_class in BATCH_AMONG_ALL + BATCH_ALONE:
            alone = tuple(s for s in found if math.prod(s[0]) == s[0][0])
            return tuple(s for s in alone if s[0][0] == self.device_num or node.op_class in BATCH_ALONE) or found
        return found

    def prices(self, node: Node, rules: list[ShardingRule]) -> tuple[np.ndarray, np.ndarray]:
        operator = self.operator(node)
        key = (id(rules), operator.itemsize, operator.out_shapes, operator.parameters)
        if key not in self.priced:
            memory = np.array([held_bytes(operator, rule) for rule in rules], np.int64)
            self.priced[key] = np.array([operator_bytes(operator, rule) for rule in rules]), memory
        return self.priced[key]

    def between(
        self, before: TensorLayout, after: TensorLayout, shape: Shape, shape_after: Shape, itemsize: int, live: bool
    ) -> tuple[float, ...]:
        how = {"alltoall": any(self.config.manner.values()), "first_slice": True}
        cost = redistribution_cost(before, after, shape, shape_after, **how)
        if shape != shape_after:  # the Reshape's own cost
            computed, sent = cost.computation * itemsize, cost.communication * itemsize
            less = before.splits[:1] == (self.device_num,)
            return computed - (less and computed > 1), practical(sent - (less and sent > 1)), 0.0
        sent = practical(cost.forward * itemsize) + practical(cost.backward * itemsize)
        return cost.computation * itemsize, sent, 0.0


def operator_bytes(operator: Operator, rule: ShardingRule) -> tuple[float, float, float]:
    """Bytes computed on, communicated forward, start-up included, and for the gradients of parameters."""
    costs = operator_cost(operator, rule)
    if operator.op.name != "gather":
        return costs
    table, ids = (layout.slice_shape(shape) for layout, shape in zip(rule.ins, operator.shapes, strict=True))
    axis, wide = dict(operator.attrs)["axis"] % len(table), rule.ins[0].splits[:1] == (operator.device_num,)
    rows, places = (math.prod(x) * operator.itemsize for x in (table, ids))
    if rule.ins[0].splits[axis] == 1:
        return rows + places - wide, 0.0, costs[2]
    sent = places * math.prod(table) / table[axis]
    return 3 * rows + 7 * places - wide, practical(sent - wide), costs[2]


def held_bytes(operator: Operator, rule: ShardingRule) -> int:
    """Bytes of a device for an operator's results and the parameters it reads."""
    result_elements = sum(math.prod(x.slice_shape(s)) for x, s in zip(rule.outs, operator.out_shapes, strict=True))
    parameters = sum(math.prod(rule.ins[i].slice_shape(operator.shapes[i])) for i in operator.parameters)
    return (result_elements + parameters) * operator.itemsize
