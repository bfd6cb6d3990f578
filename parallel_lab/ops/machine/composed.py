"""Operators made of other operators, with one strategy for all of them.

Where a split dim is not "local forward + one reduction" (a softmax along it, a batch norm over a split batch), the
computation is several operators with messages between them. A composed operator has labels, a class and a strategy like
any other; when it is called, its parts are run or recorded in its place, each with the splits that the strategy gives
its labels:

    @composed("nchw,c,c->nchw", name="BatchNormTraining", example=case((8, 4, 2, 2), (4,), (4,)))
    def batch_norm_training(part, x, scale, bias, *, epsilon=1e-5):
        sums = part(batch_norm_sums, x, labels="nchw->sc")
        return part(batch_norm_apply, x, sums, scale, bias, labels="nchw,sc,c,c->nchw", epsilon=epsilon)

Gradients are those of the parts. A rule of its own is for DTensors, which run it as one operator (`as_one`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...base.errors import StrategyError
from ...base.hooks import current_tracer
from ...base.settings.checks import SHARDED_MODES
from ...layout.named_layout import LayoutStrategy, as_strategy
from .calling import Operator
from .completion import completed, part_strategy
from .opdef import OpDef
from .primitive import Primitive
from .registry import op
from .result_layouts import result_layouts
from .sharding import sharding_rule
from .split_labels import ShardingRule


def _number_for(strategy: Any) -> int:
    """More devices than any plan has, as many that every count may be one: the true number is checked part by part."""
    if isinstance(strategy, LayoutStrategy):
        return strategy[0].device_num
    return math.lcm(1 << 40, *(n for cuts in strategy for n in cuts))


class _Part:
    """`part(op, *operands, labels=..., **attributes)`: run one part with the splits of the whole's strategy.

    labels  what each dim of the operands is in the letters of the whole, in the form of a signature; dims without a
            split in the strategy stay whole
    keep    names of attributes (`add_prim_attr`) that the part takes over from the whole
    alone   the part is the whole computation, under the whole's name
    """

    def __init__(self, whole: OpDef, rule: ShardingRule | None, primitive: Primitive | None) -> None:
        self.whole, self.rule, self.primitive = whole, rule, primitive

    def splits(self, labels: str) -> bool:
        """Whether the strategy splits one of these labels."""
        return self.rule is not None and any(n > 1 for c, n in self.rule.cuts if c in labels)

    def __call__(
        self,
        part: Operator,
        *operands: Any,
        labels: str = "",
        keep: tuple[str, ...] = (),
        alone: bool = False,
        **attrs: Any,
    ) -> Any:
        if current_tracer.get() is None or self.primitive is None and not alone:
            return part.call(operands, attrs)
        kind = type(self.whole.class_name if alone else part.class_name, (Primitive,), {"op": part})
        inner = kind(**{k: v for k, v in attrs.items() if k in part.options})
        if self.primitive is None:
            return part.call(operands, attrs, inner)
        inner.prim_attrs = {name: value for name, value in self.primitive.prim_attrs.items() if name in keep}
        if self.primitive.instance_name:
            name = self.primitive.instance_name
            inner.instance_name = name if alone else f"{name}.{part.name}"
        if self.rule is not None and not (part.view or part.writes):  # those lie as their operand does
            inner.in_strategy = part_strategy(self.rule, labels.split("->")[0].split(","))
            inner.strategy_origin = self.primitive.strategy_origin
        return part.call(operands, attrs, inner)


def composed(signature: str | Callable[..., Any], **facts: Any) -> Callable[[Callable[..., Any]], OpDef]:
    """Declare an operator by its parts: `fn(part, *operands, **attributes)`; facts: other keywords of `op`."""

    def declare(fn: Callable[..., Any]) -> OpDef:
        def expand(whole: OpDef, operands: list[Any], attrs: dict[str, Any], primitive: Primitive | None) -> Any:
            one = whole.vjp_fn is not None and getattr(operands[0], "answers", False)  # a DTensor
            if one and (result := operands[0].as_one(whole, attrs)) is not None:
                return result
            rule = None
            shapes = tuple(tuple(x.shape) for x in operands)
            if primitive is not None:
                primitive.called_with = (shapes, attrs)
            tracer = current_tracer.get()
            # a program of whole tensors, as in data_parallel mode, has no strategies
            splits = tracer is not None and tracer.parallel_mode in (None, *SHARDED_MODES)
            if primitive is not None and primitive.in_strategy is not None and splits:
                place = primitive.strategy_origin.place if primitive.strategy_origin is not None else ""
                name = tracer.path_of(primitive.instance_name)
                where = f"{whole.class_name} {name!r}" + (f" ({place})" if place else "")
                strategy = completed(whole, shapes, attrs, as_strategy(primitive.in_strategy))
                if primitive.prim_attrs.get("self_define_shard") is True:
                    allowed = f"{whole.class_name} is made of operators that take layouts of their own"
                    raise StrategyError("self_define_shard", where=where, allowed=allowed)
                devices = _number_for(strategy)
                rule = sharding_rule(whole, shapes, attrs, strategy, devices, where)
                if primitive.out_strategy is not None:
                    results = whole.infer(shapes, tuple(str(x.dtype) for x in operands), attrs, where)
                    # sums are combined inside: their results are not split further
                    combined = replace(rule, outs=tuple(out.whole() for out in rule.outs))
                    result_layouts(whole, combined, results.shapes, as_strategy(primitive.out_strategy), where)
            named = dict(zip(whole.tensors, operands, strict=True))
            return fn(_Part(whole, rule, primitive), **named, **attrs)

        return op(signature, expand=expand, **facts)(fn)

    return declare
