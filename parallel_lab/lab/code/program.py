"""A lab's setting as data, from which programs for other libraries are written.

    program = program_of(plan, net, optimizer, DATA["seed"], title="quickstart, 8 ranks")
    program.steps[0]        Step(name="matmul", op="matmul", ins=("x", "w"), ..., strategy=((2, 4), (4, 1)))

The steps are the operators of the compiled graph, so that every network that compiles is written in one way. Initial
values are drawn in the program, by numpy and with the seeds that our own parameters have: the losses are the same.
"""

from __future__ import annotations

import keyword
import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import count
from typing import Any

import numpy as np

from ...base.errors import ArgumentError
from ...graph.ir import Graph, Node
from ...graph.plan import Plan
from ...layout.refinement import common_factors, on_device_matrix
from ...layout.tensor_layout import TensorLayout
from ...nn.optim.optimizer import Optimizer
from ...nn.tensor.initial_slices import parameter_key, rule_of
from ...nn.tensor.parameter import Parameter
from ...ops.machine.sharding import sharding_rule

TARGETS = ("mindspore", "torch", "jax")
LABELS = {"mindspore": "MindSpore", "torch": "PyTorch", "jax": "JAX"}


RESERVED = ("np", "ms", "nn", "ops", "torch", "F", "dist", "jax", "jnp", "mesh", "self", "p", "split", "initial", "rng")


class NoForm(ArgumentError):
    """The setting has no form in the library. The text says what is missing, in words for a learner."""


@dataclass(frozen=True)
class Step:
    """One operator.

    ins, out    names of values: of data, parameters and earlier steps;  attrs: of the operator
    strategy    what the learner gave, or None;  layouts: of the operands, over the program's device matrix
    left        layout of the result, where it needs no message to be complete
    stage       of a pipeline
    """

    name: str
    op: str
    class_name: str
    ins: tuple[str, ...]
    out: str
    attrs: Mapping[str, Any]
    shape: tuple[int, ...]
    strategy: Any = None
    layouts: tuple[TensorLayout, ...] = ()
    left: TensorLayout | None = None
    stage: int = 0


@dataclass(frozen=True)
class Drawn:
    """A parameter and how its initial values are drawn, as numpy's: "rng(5).normal(0.0, 0.01, (4, 2))"."""

    name: str
    shape: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Program:
    """A setting.

    title          in a sentence;  data: lines that make `batches`, a list of tuples of arrays
    inputs         names of the arrays of a batch, the label last
    optimizer      its class;  rates: what it is made with, by MindSpore's names
    device_matrix  on which every layout of a step is written
    """

    title: str
    data: str
    inputs: tuple[str, ...]
    parameters: tuple[Drawn, ...]
    steps: tuple[Step, ...]
    loss: str
    optimizer: str
    rates: Mapping[str, Any]
    devices: int
    device_matrix: tuple[int, ...]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def names(self) -> dict[str, str]:
        """{value: a Python name for it}, all different."""
        names: dict[str, str] = {}
        taken = set(RESERVED)
        for value in (*self.inputs, *(p.name for p in self.parameters), *(s.out for s in self.steps)):
            names[value] = fresh(value, taken)
            taken.add(names[value])
        return names

    def has(self, op: str) -> bool:
        """Whether it has this operator."""
        return any(step.op == op for step in self.steps)

    def placements(self) -> tuple[dict[str, TensorLayout], list[dict[str, TensorLayout]]]:
        """(how data and parameters lie at the start, what each step needs in another layout than it was left in)."""
        start, now, moves = {}, {}, []
        sources = {*self.inputs, *(p.name for p in self.parameters)}
        known = {*sources, *(s.out for s in self.steps)}
        for step in self.steps:
            moved = {}
            for name, layout in zip(step.ins, step.layouts, strict=False):
                if name not in known:  # a number
                    continue
                if name in sources and name not in now:
                    start[name] = layout
                elif now.get(name) != layout:
                    moved[name] = layout
                now[name] = layout
            if step.left is not None:
                now[step.out] = step.left
            moves.append(moved)
        whole = TensorLayout.replicated(math.prod(self.device_matrix), 0)
        start |= {name: replace(whole, device_matrix=self.device_matrix) for name in sources - start.keys()}
        return start, moves


def fresh(value: str, taken: Container[str]) -> str:
    """A Python name that is not taken.

    >>> fresh("blocks.0.relu", ["relu"]), fresh("in", [])
    ('blocks_0_relu', 'in_')
    """
    name = "".join(c if c.isidentifier() or c.isdigit() else "_" for c in value).strip("_") or "value"
    name = f"v{name}" if name[0].isdigit() else name
    name = f"{name}_" if keyword.iskeyword(name) else name
    return name if name not in taken else next(f"{name}_{n}" for n in count(2) if f"{name}_{n}" not in taken)


# ---- from a plan ----


def program_of(plan: Plan, optimizer: Optimizer, data: str, title: str) -> Program:
    """The program of a compiled plan. Raises NoForm where initial values follow no rule of one draw."""
    graph, nodes = plan.graph, _needed(plan.graph)
    renamed = _renamed(graph, nodes)
    kept = [n for n in nodes if n.name not in renamed and n.op != "accumulate"]
    data_names = tuple(i.name for i in graph.inputs if i.role == "data")
    rules = {node.name: _rule(plan, node) for node in kept}
    layouts = [layout for rule in rules.values() if rule is not None for layout in rule.ins]
    matrix = common_matrix(layouts, plan.device_num // len(plan.stages))
    steps = _joined([_step(node, rules[node.name], matrix, renamed) for node in kept])
    drawn = tuple(_drawn(p) for p in optimizer.parameters)
    shapes = {i.name: i.shape for i in graph.inputs}
    last = steps[-1].out
    return Program(
        title,
        data,
        data_names,
        drawn,
        steps,
        last,
        type(optimizer).__name__,
        _rates(optimizer),
        plan.device_num,
        matrix,
        shapes,
    )


def _needed(graph: Graph) -> list[Node]:
    """The nodes that the loss depends on, in order."""
    wanted, nodes = {graph.outputs[0]}, []
    for node in reversed(graph.nodes):
        if node.phase == "forward" and wanted & set(node.outs):
            wanted |= set(node.ins)
            nodes.append(node)
    return nodes[::-1]


def _renamed(graph: Graph, nodes: list[Node]) -> dict[str, str]:
    """{a step that only picks a micro-batch's rows: the data it picks from}."""
    return {node.name: node.ins[0] for node in nodes if node.op == "micro_batch_rows"}


def _rule(plan: Plan, node: Node) -> Any:
    if node.strategy is None:
        return None
    devices = plan.device_num // len(plan.stages)
    return sharding_rule(node.opdef, plan.graph.operand_shapes(node), dict(node.attrs), node.strategy, devices)


def common_matrix(layouts: Iterable[TensorLayout], devices: int) -> tuple[int, ...]:
    """The coarsest device matrix on which all of them can be written.

    >>> common_matrix([TensorLayout((2, 4, 1), (2, 1)), TensorLayout((8, 1), (1, 0))], 8)
    (2, 4)
    """
    matrix = reduce(lambda one, two: common_factors(one, two.device_matrix), layouts, (devices,))
    if matrix is None:
        raise NoForm("the strategies have device matrices without a common refinement", where="code")
    return matrix or (1,)


def _step(node: Node, rule: Any, matrix: tuple[int, ...], renamed: Mapping[str, str]) -> Step:
    layouts = () if rule is None else tuple(on_device_matrix(layout, matrix) for layout in rule.ins)
    left = None if rule is None or rule.out.is_partial else on_device_matrix(rule.out, matrix)
    strategy = node.strategy if node.strategy_source == "user" else None
    numbers = {name: text for name in node.ins for text, colon, _ in [name.rpartition(":")] if colon}
    ins = tuple({**numbers, **renamed}.get(name, name) for name in node.ins)
    attrs = dict(node.attrs)
    names = [_short(name) for name in (node.name, *ins, node.outs[0])]
    if node.op == "expert_load":
        attrs["local"] = rule is None  # each rank counts its own rows
    what = {"strategy": strategy, "layouts": layouts, "left": left, "stage": max(0, node.stage)}
    return Step(names[0], node.op, node.op_class, tuple(names[1:-1]), names[-1], attrs, node.shape, **what)


# of an nn.MoE, what copies tokens, moves rows, and computes with them
ROWS = ("into_groups", "place", "dispatch", "exchange", "apart", "first", "activation", "second", "together", "combine")


def _with_experts(steps: list[Step]) -> list[Step]:
    """Experts as one operator of tokens, weights, and two matrices of each expert: libraries have no rows whose number
    the router decides, so every expert has room for every token. Weights are those of all experts, mostly 0.
    """
    layers = {step.name.removesuffix(".combine") for step in steps if step.op == "combine_rows"}
    by_name, made_by, done = {s.name: s for s in steps}, {s.out: s for s in steps}, []
    for step in steps:
        moe, _, part = step.name.rpartition(".")
        if moe in layers and part == "out_of_groups":
            route, first, second = (by_name[f"{moe}.{name}"] for name in ("route", "first", "second"))
            logits = made_by[route.ins[0]]
            layouts = (*logits.layouts[:1] * 2, *(product.layouts[2] for product in (first, second) if logits.layouts))
            ins = (by_name[f"{moe}.into_groups"].ins[0], route.out, first.ins[2], second.ins[2])
            attrs = {"activation": made_by[second.ins[0]], "experts": logits.shape[-1]}
            how = {"attrs": attrs, "strategy": first.strategy, "layouts": layouts, "left": None}
            done.append(replace(step, name=moe, op="experts", class_name="MoE", ins=ins, **how))
        elif step.op == "route_tokens":  # its bias is 0
            attrs = {**step.attrs, "experts": made_by[step.ins[0]].shape[-1]}
            done.append(replace(step, ins=step.ins[:1], layouts=step.layouts[:1], attrs=attrs))
        elif not step.name.startswith(tuple(f"{layer}.{part}" for layer in layers for part in ROWS)):
            done.append(step)
    return done


def _joined(steps: list[Step]) -> tuple[Step, ...]:
    """Batch norm as one operator, as the libraries have it: its sums and what they are applied to. So are experts."""
    steps = _with_experts(steps)
    sums = {step.out for step in steps if step.op == "batch_norm_sums"}
    joined = []
    for step in steps:
        if step.op == "batch_norm_apply":
            x, _, scale, shift = step.ins
            strategy, layouts = step.strategy, step.layouts
            of_inputs = None if strategy is None else (strategy[0], *(strategy[2],) * 4)
            name = step.name.removesuffix(".batch_norm_apply")
            how = {"ins": (x, scale, shift), "layouts": (layouts[0], *layouts[2:]) if layouts else ()}
            step = replace(step, name=name, op="batch_norm", class_name="BatchNorm", strategy=of_inputs, **how)
        if step.out not in sums:
            joined.append(step)
    return tuple(joined)


def _short(name: str) -> str:
    """Without the wrappers that a pipeline puts around a network."""
    return name.removeprefix("network.backbone.").removeprefix("network.")


def _rates(optimizer: Optimizer) -> dict[str, Any]:
    """What the optimizer is made with, by MindSpore's names."""
    rate = optimizer.learning_rate if optimizer.dynamic_lr else optimizer.learning_rates(0)["learning_rate"]
    rates = {"learning_rate": rate, "momentum": getattr(optimizer, "momentum", None)}
    kept = {name: getattr(optimizer, name, None) for name in ("beta1", "beta2", "eps")}
    return {name: value for name, value in (rates | kept).items() if value is not None}


class _Note(np.random.Generator):
    """Notes what is drawn, and draws zeros."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))
        self.calls: list[str] = []

    def _noted(self, name: str, one: float, two: float, shape: Any) -> np.ndarray:
        self.calls.append(f"{name}({float(one)!r}, {float(two)!r}, {tuple(shape)})")
        return np.zeros(shape)

    def normal(self, loc: float = 0.0, scale: float = 1.0, size: Any = None) -> Any:
        return self._noted("normal", loc, scale, size)

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Any = None) -> Any:
        return self._noted("uniform", low, high, size)


def _drawn(parameter: Parameter) -> Drawn:
    """How the initial values of a parameter are drawn, as numpy's code."""
    note, shape, initial = _Note(), tuple(parameter.shape), rule_of(parameter)
    values = parameter.asnumpy() if initial is None else initial.draw(note, shape)
    if len(note.calls) == 1:
        return Drawn(parameter.name, shape, f"rng({parameter_key(parameter.name)}).{note.calls[0]}")
    if not note.calls and math.prod(shape) and np.all(values == values.flat[0]):
        return Drawn(parameter.name, shape, f"np.full({shape}, {float(values.flat[0])!r})")
    what = f"the initial values of {parameter.name!r} follow no rule of one draw"
    raise NoForm(what, where="code", hint="Normal, Uniform, He, Xavier and constant values do")
