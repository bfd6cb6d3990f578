"""Gradients of parameters: summed over the ranks that hold the same slice, or scattered to those that hold its shards.

    mirror(back, name)                all_reduce over replicas, then the division of a mean
    scatter(back, gather, gradient)   reduce_scatter, where the optimizer parallel has sharded the parameter

`back` is the way back through the program (`differentiate.Backward`).
"""

from __future__ import annotations

from typing import Any

from ...base.dtypes import HALF
from ...base.settings.config import ParallelConfig
from ...ops.machine.opdef import OPS, dtype_name
from ..instr import Instr, Value, attr_pairs
from ..traced_value import TracedValue


def _sum_dtype(config: ParallelConfig, dtype: str) -> str:
    """The dtype in which ranks sum gradients: float32 for half precision (MindSpore's gradient_fp32_sync)."""
    return "float32" if dtype in HALF and config.gradient_fp32_sync and not config.local else dtype


def scatter(back: Any, gather: Instr, gradient: TracedValue) -> TracedValue:
    """A rank's part of the sum of all gradients of a parameter that was gathered by `gather`."""
    source, parameter = gather.ins[0], gather.attr("parameter")
    dtype = _sum_dtype(back.draft.config, dtype_name(gradient.dtype))
    if dtype != dtype_name(gradient.dtype):
        gradient = _widened(back, gradient, dtype)
        back.wide.add(source)
    shard = back.gradient_value(source)
    attrs = {"dim": gather.attr("dim"), "reduce": "sum", "fusion": gather.attr("fusion"), "parameter": parameter}
    has = f"each of {gather.group_size} ranks has a partial sum of the gradient of {parameter!r}"
    reason = f"optimizer parallel: {has}, and needs the sum of the part it keeps"
    value, out = Value(shard.shape, dtype, shard.layout), f"{parameter}.grad.scattered"
    return back.message("reduce_scatter", gather, gradient, value, reason, attrs, out, name=parameter)


def _widened(back: Any, gradient: TracedValue, dtype: str) -> TracedValue:
    """The addends of a gradient in a wider dtype."""
    value = back.values[gradient.name]
    wide = OPS["cast"](gradient, dtype=dtype)
    back.values[wide.name] = Value(value.shape, dtype, value.layout)
    return wide


def mirror(back: Any, name: str) -> str | None:
    """Synchronise the gradient of a parameter, or of an input, over the ranks that hold the same slice."""
    source, config = back.draft.graph.input(name), back.draft.config
    user = back.first_reader.get(name)
    if user is None:
        return None
    back.rec.name, back.rec.origin, back.rec.when = name, user.origin.made("differentiate"), ()
    back.rec.stage = user.attr("source", user.stage)
    gradient = back.take_array(name)
    if gradient is None:
        return None
    layout, shape = back.values[name].layout, back.values[name].shape
    axes = tuple(sorted(layout.replica_axes, reverse=True))
    own = config.local and (source.layerwise or source.role == "data")  # stays each rank's own
    shared = back.shares.get(name, 1)
    if axes and not own:
        why = "each has a partial sum of it, from its own samples or from its own part of the network"
        same = f"{layout.replica_count} ranks hold the same slice of {name!r} and must apply the same gradient"
        reason = f"{same}: {why}"
        sent = _sum_dtype(config, source.dtype)
        if sent != dtype_name(gradient.dtype):
            gradient = _widened(back, gradient, sent)
        attrs = {"reduce": "sum", "fusion": source.comm_fusion, "parameter": name}
        value, out = Value(shape, sent, layout), f"{name}.grad.mirror"
        gradient = back.message("all_reduce", layout, gradient, value, reason, attrs, out, axes=axes)
    total = back.values[gradient.name] = Value(shape, dtype_name(gradient.dtype), layout)
    if config.gradients_mean and (axes or shared > 1) and not own:
        count = attr_pairs({"count": layout.replica_count * shared})
        fields = {"op": "divide_by", "op_class": "Mul", "attrs": count}
        gradient = back.rec.emit("compute", total, (gradient.name,), f"{name}.grad.mean", **fields)
    if total.dtype != source.dtype:  # after the division: a mean can be had in float16 where the sum cannot
        gradient = OPS["cast"](gradient, dtype=source.dtype)
        back.values[gradient.name] = Value(shape, source.dtype, layout)
    return gradient.name
