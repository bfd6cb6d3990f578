"""Pass `optimizer_shard`: optimizer parallel where operators are split: ranks share slices, not copies.

    w whole on 8 ranks        each keeps 1/8 of the rows of w, of its gradient and of its optimizer states
    forward                   all_gather (w) before its first use
    backward                  reduce_scatter for the mirror's all_reduce: the all_gather's counterpart
    update                    on what the rank keeps; nothing is sent

A parameter is sharded if R > 1 ranks hold the same slice, R divides dim 0 of the slice, and the whole parameter has at
least `parallel_optimizer_threshold` KB. With optimizer_weight_shard_size = s < R only s consecutive holders share a
slice, and R / s copies are left, whose gradients are still added up by an all_reduce. The split by the model stays the
outer one. Whatever does not fit stays as it was, and a note says why.

Levels: level1 shards weights and states; level2 also the buffer in which `nn.GradAccumulation` adds up gradients (at
level1 gradient_accumulation_shard does it); level3 gathers weights for each micro-batch, and once more before its
backward (`recompute.regather_parameters`), so that the gathered ones need not stay in memory between.

A parameter that is only used in a narrower dtype is cast first: half the bytes travel. Its gradients are added up in
float32 (gradient_fp32_sync). Rules: MindSpore, enable_parallel_optimizer, parallel_optimizer_config.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from ...base.dtypes import kind_of
from ...base.errors import OptimizerParallelError
from ...base.settings.config import ParallelConfig
from ...layout.tensor_layout import TensorLayout
from ..draft import Draft, at_compile, fresh_name
from ..instr import Instr, Value, attr_pairs
from ..ir import GraphInput

KB = 1024  # the unit of parallel_optimizer_threshold
LOCAL_OPS = ("cast", "transpose")  # made again from a gathered parameter rather than kept


@dataclass(frozen=True)
class Shard:
    """What the optimizer parallel does with one parameter.

    layout   how it is stored; None: as the network wants it
    axes     of the stored layout's device matrix: the ranks that share a slice;  ways: how many they are
    replicas ranks that hold the same slice in the network
    why      why it is not sharded, in a clause; "" if it is
    """

    name: str
    layout: TensorLayout | None
    axes: tuple[int, ...]
    ways: int
    replicas: int
    why: str = ""


def is_parameter_gather(instr: Instr) -> bool:
    """Whether an instruction gathers a parameter that the optimizer parallel has sharded."""
    return instr.kind == "all_gather" and instr.attr("parameter") is not None


def accumulates_slices(config: ParallelConfig) -> bool:
    """Whether accumulated gradients stay sharded: every micro-batch sends its own, and no rank keeps a whole one."""
    return config.gradient_accumulation_shard or config.optimizer_level != "level1"


def shared_layout(layout: TensorLayout, ways: int) -> tuple[TensorLayout, tuple[int, ...]] | None:
    """(layout whose dim 0 is also split among `ways` of the ranks that hold the same slice, the axes that do it).

    Neighbours in the group share: of (0, 8, 16, 24) with 2 ways, 0 with 8, 16 with 24. None if no axes say that.

    >>> stored, axes = shared_layout(TensorLayout((2, 4), ((1,), ())), 2)
    >>> stored, axes
    (TensorLayout(device_matrix=(2, 2, 2), tensor_map=((2, 0), ()), partial=(), reduce='sum'), (0,))
    """
    form, rest, taken = layout.canonical(), ways, []
    for axis in form.replica_axes:  # the innermost first
        size = form.axis_size(axis)
        if rest == 1:
            break
        if rest % size == 0:
            rest //= size
            taken.append(axis)
        elif size % rest == 0:
            form = _split_axis(form, axis, rest)
            rest = 1
            taken.append(axis)
        else:
            return None
    if rest > 1:
        return None
    axes = tuple(reversed(taken))
    first, *others = form.tensor_map
    return TensorLayout(form.device_matrix, ((*first, *axes), *others)), axes


def _split_axis(layout: TensorLayout, axis: int, inner: int) -> TensorLayout:
    """`layout` over a device matrix whose `axis` is written as two, the inner one of size `inner`."""
    sizes = list(layout.device_matrix)
    at = len(sizes) - 1 - axis
    sizes[at : at + 1] = [sizes[at] // inner, inner]
    tensor_map = tuple(tuple(a + 1 if a > axis else a for a in entry) for entry in layout.tensor_map)
    return TensorLayout(tuple(sizes), tensor_map)


def choose_shards(draft: Draft) -> tuple[Shard, ...]:
    """Decisions for trainable parameters, in order of use. OptimizerParallelError: shard size above device number."""
    config = draft.config
    if config.optimizer_weight_shard_size > config.device_num:
        what = f"optimizer_weight_shard_size={config.optimizer_weight_shard_size} with {config.device_num} devices"
        allowed = "At most as many ranks as there are; -1: all that hold the same slice"
        raise at_compile(OptimizerParallelError, what, allowed)
    values = draft.value_table()
    used = [i for i in draft.graph.inputs if i.role == "parameter" and i.trainable and i.name in values]
    written = dict(draft.forward_assignments)
    return tuple(_decide(i, values[i.name].placed, config, i.name in written) for i in used)


def _decide(parameter: GraphInput, layout: TensorLayout, config: ParallelConfig, written: bool) -> Shard:
    replicas = layout.replica_count
    size_bytes = math.prod(parameter.shape) * np.dtype(parameter.dtype).itemsize
    shard_size = config.optimizer_weight_shard_size
    ways = replicas if shard_size < 0 else min(shard_size, replicas)
    holders, least = f"the {replicas} ranks that hold the same slice", config.parallel_optimizer_threshold
    if not parameter.parallel_optimizer:
        why = "parallel_optimizer=False"
    elif parameter.layerwise:
        why = "layerwise_parallel=True"
    elif written:
        why = "construct gives it a value, as a whole"
    elif size_bytes < least * KB:
        why = f"its {size_bytes / KB:.4g} KB are below parallel_optimizer_threshold={least}"
    elif replicas == 1:
        why = "every rank holds a slice of its own"
    elif not parameter.shape:
        why = "a single number cannot be split"
    elif ways == 1 or replicas % ways:
        why = f"optimizer_weight_shard_size={shard_size} makes no equal groups of {holders}"
    elif (rows := layout.slice_shape(parameter.shape)[0]) % ways or not rows:
        why = f"dim 0 of its slice has {rows} elements, which {ways} ranks cannot share equally"
    elif (sharded := shared_layout(layout, ways)) is None:
        why = f"{ways} neighbours among {holders} are not axes of the device matrix"
    else:
        return Shard(parameter.name, *sharded, ways, replicas)
    return Shard(parameter.name, None, (), 1, replicas, why)


# ---- forward ----


def shard_parameters(draft: Draft) -> Draft:
    """Store parameters sharded over their replicas, gathered before their first use. Raises as `choose_shards`."""
    shards = choose_shards(draft)
    cut = [shard for shard in shards if shard.layout is not None]
    for shard in cut:
        draft = _with_gather(draft, shard)
    listed = ": " + ", ".join(f"{s.name} {s.ways} ways" for s in cut) if cut else ""
    notes = [f"{len(cut)} of {len(shards)} parameters are sharded over the ranks that hold copies{listed}"]
    for note in (*notes, *(f"{shard.name} is not sharded: {shard.why}" for shard in shards if shard.why)):
        draft = draft.noted("optimizer_shard", note)
    return draft


def _with_gather(draft: Draft, shard: Shard) -> Draft:
    """`draft` with one parameter stored as `shard`, gathered before use; at level3 again per micro-batch."""
    used = draft.value_table()[shard.name]
    draft, source = _cast_first(draft, shard, used)
    values, program = draft.value_table(), draft.program("forward")
    values[shard.name] = Value(used.shape, used.dtype, shard.layout)
    each = draft.config.optimizer_level == "level3"
    instrs: list[Instr] = []
    labels: dict[str, str] = {}  # for each micro-batch "", or once -> the gathered parameter

    def gathered(reader: Instr) -> str:
        once = reader.once if each or draft.graph.micro_batches == 1 else "first"
        if once not in labels:
            instrs.append(_gather(draft, shard, source, used, values, replace(reader, once=once)))
            labels[once] = instrs[-1].out
        return labels[once]

    for instr in program:
        if source in instr.ins and instr.kind != "print":
            instr = _reading(instr, {source: gathered(instr)})
        instrs.append(instr)
    late = dict(draft.forward_assignments)
    for target, value in late.items():
        if value == source:
            late[target] = next(iter(labels.values())) if labels else gathered(instrs[-1])
    return draft.with_program("forward", tuple(instrs), values, forward_assignments=tuple(late.items()))


def _gather(draft: Draft, shard: Shard, source: str, used: Value, values: dict[str, Value], reader: Instr) -> Instr:
    """The instruction that gathers a parameter for `reader`; notes its value."""
    label = fresh_name(f"{shard.name}.gathered", values)
    values[label] = Value(used.shape, values[source].dtype, used.layout)
    who = ("the" if shard.ways == shard.replicas else f"{shard.ways} of the") + f" {shard.replicas} ranks"
    keep = f"{who} that would hold the same slice of {shard.name!r} keep 1/{shard.ways} of it each"
    states = "with its gradient and optimizer states; the network needs the whole slice"
    reason = f"optimizer parallel: {keep}, {states}"
    attrs = attr_pairs({"dim": 0, "fusion": draft.graph.source(shard.name).comm_fusion, "parameter": shard.name})
    stored = cast(TensorLayout, shard.layout)  # only what is sharded is gathered
    fields = {"axes": shard.axes, "device_matrix": stored.device_matrix, "once": reader.once}
    origin = reader.origin.made("optimizer_shard")
    return Instr("all_gather", (label,), (source,), shard.name, attrs=attrs, reason=reason, origin=origin, **fields)


def _reading(instr: Instr, names: dict[str, str]) -> Instr:
    return replace(instr, ins=tuple(names.get(n, n) for n in instr.ins))


def _cast_first(draft: Draft, shard: Shard, used: Value) -> tuple[Draft, str]:
    """(draft, what is to be gathered): of a parameter that is read by nothing but casts to one narrower dtype, the cast
    of what a rank keeps, made once: half the bytes travel, and casts of the same give the same.
    """
    program = draft.program("forward")
    casts = [i for i in program if shard.name in i.ins and i.kind != "print"]
    if {(i.kind, i.op) for i in casts} != {("compute", "cast")} or len({i.attr("dtype") for i in casts}) > 1:
        return draft, shard.name
    values, source = draft.value_table(), casts[0].out
    dtype = np.dtype(values[source].dtype)
    if kind_of(dtype) != "f" or dtype.itemsize >= np.dtype(used.dtype).itemsize:
        return draft, shard.name
    values[source] = Value(used.shape, str(dtype), shard.layout)
    same = {i.out: source for i in casts[1:]}
    for name in same:
        del values[name]
    changes: dict[str, tuple[Any, ...]] = {"outputs": tuple(same.get(v, v) for v in draft.outputs)}
    for pairs in ("bridges", "forward_assignments"):
        changes[pairs] = tuple((n, same.get(v, v)) for n, v in getattr(draft, pairs))
    if draft.graph.micro_batches > 1 and draft.config.optimizer_level != "level3":
        program = tuple(replace(i, once="first") if i is casts[0] else i for i in program)
    left = tuple(_reading(i, same) for i in program if i.out not in same)
    return draft.with_program("forward", left, values, **changes), source
