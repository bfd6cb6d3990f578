"""The operators of the Strategy Lab's network: what each is, its strategy, and those it may have."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from ...base.errors import ArgumentError, shorten
from ...graph.plan import Plan
from ...graph.value_types import Types, ValueTypes
from ...ops.machine.legal_strategies import legal_strategies
from ...ops.machine.opdef import OpDef
from ...ops.machine.sharding import default_strategy
from ..pictures import picture
from ..pictures.layers import operator_of, parameter_layers, plan_layers
from .sections import shapes_text

LARGEST_TEXT = 200  # characters of a typed strategy


@dataclass(frozen=True)
class Operators:
    """What a snapshot says of them.

    strategies, given   chosen, and those of the preset;  typed: {operator: (text, why it was refused)}
    composed   {operator made of others: (declaration, shapes of operands, attributes)};  layers: {operator: its layer}
    types      of the plan's values
    """

    plan: Plan
    strategies: dict[str, Any]
    given: dict[str, Any]
    typed: dict[str, tuple[str, str]]
    composed: dict[str, tuple]
    layers: dict[str, str]
    types: ValueTypes

    def shown(self, tensors: set[str]) -> list[dict[str, Any]]:
        """Every operator. tensors: ids of those one can look at."""
        nodes: dict[str, list[Any]] = {name: [] for name in self.strategies}
        for node in self.plan.graph.nodes:
            nodes.get(operator_of(node.name, nodes), []).append(node)
        return [self._operator(name, nodes[name], tensors) for name in nodes]

    def _operator(self, name: str, nodes: list[Any], outs: set[str]) -> dict[str, Any]:
        """One operator, its strategy and those it may have; one made of others gives each of them its splits."""
        op, operands, attrs, out, source = self._facts(name, nodes)
        devices = self.plan.device_num
        strategy = nodes[0].strategy if name not in self.composed else self.strategies[name]
        if strategy is None:
            strategy = default_strategy(op, operands, attrs, devices)
        typed, error = self.typed.get(name, (None, None))
        return {
            "name": name,
            "op": op.class_name,
            "strategy": str(strategy),
            "source": "preset" if source == "user" and self.strategies[name] == self.given[name] else source,
            "choices": [str(c) for c in legal_strategies(op, operands, attrs, devices)],
            "error": error,
            "typed": typed,
            "formula": f"{shapes_text(op, operands)} -> {out}",
            "tensor": self._result(nodes[-1], outs),
            "types": types_along(self.types, self._result(nodes[-1], outs)),
            "unchecked": not {node.name for node in nodes}.isdisjoint(self.types.unchecked),
            "layer": self.layers.get(name, ""),
        }

    def result_of(self, name: str, tensors: set[str]) -> str:
        """The tensor to look at that an operator gives."""
        *_, last = (n for n in self.plan.graph.nodes if operator_of(n.name, self.strategies) == name)
        return self._result(last, tensors)

    def _result(self, node: Any, outs: set[str]) -> str:
        result = picture.first_read(self.plan, node)
        return f"{result}.partial" if f"{result}.partial" in outs else result

    def _facts(self, name: str, nodes: list[Any]) -> tuple[OpDef, tuple, dict[str, Any], tuple[int, ...], str]:
        """An operator's (declaration, shapes of operands, attributes, result shape, who set the strategy)."""
        node = nodes[-1]
        if name in self.composed:
            return *self.composed[name], node.shape, "default" if self.strategies[name] is None else "user"
        shapes = self.plan.graph.shapes()
        node = nodes[0]
        return node.opdef, tuple(shapes[i] for i in node.ins), dict(node.attrs), node.shape, node.strategy_source


def types_along(types: ValueTypes, value: str, base: str = "") -> list[list[str]]:
    """[type of a value, its gradient's or ""] along the axes of its device matrix that have several ranks.

    base  the value that says where it lies, if that is another one
    """
    layout = types.plan.value(base or value).layout
    sizes = layout.device_matrix if layout is not None and types.get(value) is not None else ()
    along = [types.axes.of(sizes, axis) or () for axis in reversed(range(len(sizes))) if sizes[-1 - axis] > 1]

    def text(codes: Types | None, numbers: tuple[int, ...]) -> str:
        return " ".join(dict.fromkeys(codes[n] for n in numbers)) if codes else ""

    return [[text(types[value], numbers), text(types.of_gradient(value), numbers)] for numbers in along]


def parse_strategy(text: Any) -> tuple | None:
    """A typed strategy as a value; anything that is not a Python literal is refused with an example."""
    if text is None or isinstance(text, tuple):
        return text
    text = str(text).strip()
    example = "Type counts per dim for each input, such as ((2, 4), (4, 1))"
    if len(text) > LARGEST_TEXT:
        what = f"{len(text)} characters"
        raise ArgumentError(what, where="strategy", allowed=f"At most {LARGEST_TEXT}", hint=example)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ArgumentError(f"{shorten(text)} cannot be read", where="strategy", hint=example) from None


def first_tensor(plan: Plan, operators: Collection[str], look: str) -> str:
    """What tells most: the network's choice `look`, a value with a halo, the largest addends, or the first result."""
    entries = picture.tensor_entries(plan)
    known = [e.value for e in entries]
    halos = [e.value for e in entries if e.base != e.value]
    partial = [e.value for e in entries if e.value.endswith(".partial") and e.source in operators]
    partial.sort(key=lambda v: -math.prod(plan.value(v).shape))
    results = [name for n in plan.graph.nodes for name in n.outs if name in known]
    return next(iter((*([look] if look in known else []), *halos, *partial, *results, *known)))


def same_source(before: str, known: dict[str, Any]) -> str:
    """The one of the `known` tensors that plays the role that `before` had in another plan."""
    base, _, reader = before.partition(".halo.")
    halos = [v for v in known if reader and v.startswith(f"{base.partition('.for.')[0]}.") and ".halo." in v]
    source = base.removesuffix(".partial").partition(".for.")[0]
    return next((v for v in (*halos, f"{source}.partial", source) if v in known), next(iter(known)))


def layer_of_entries(plan: Plan, layers: dict[str, str]) -> Callable[[picture.TensorEntry], str]:
    """A function: the layer of a tensor; "" for data, and in a network that is shown operator by operator."""
    if not layers:
        return lambda entry: ""
    known = plan_layers(plan, layers)
    known = {**known, **parameter_layers(plan, known)}
    # what is read in another form than it was made belongs to its reader
    return lambda entry: known.get(entry.owner) or known.get(entry.source, "")
