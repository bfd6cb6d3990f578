"""Gradients of all ranks together, by hand: what a training loop calls between `value_and_grad` and the optimizer.

    reducer = nn.DistributedGradReducer(optimizer.parameters)
    loss, grads = grad_fn(x, label)
    optimizer(reducer(grads))

Gradients travel in buckets: laid side by side in memory that all ranks can read, summed there, and handed on as views
of it. All buckets are started before the first is waited for. Sums are made element by element in rank order, so no
result depends on the buckets, to the bit.

Rules: MindSpore, nn.DistributedGradReducer; which gradients share a bucket: its grad_reducer.py
and CommunicationOpFusion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.checks import checked, flag, instance, integer, text
from ...base.dtypes import HALF, plain_array
from ...base.errors import ArgumentTypeError, shorten
from ...base.hooks import current_tracer, current_world
from ...base.settings.checks import LOCAL_MODES, SHARDED_MODES
from ...base.settings.current import frozen, fusion_is_switched_off, get_auto_parallel_context
from ...base.settings.fusion_rules import buckets_of, index_groups, size_groups_by_bytes
from ...ops.collectives.base import members_of, origin_of
from ...ops.collectives.primitives import AllReduce
from ...ops.elementwise import cast, mul
from ..cell import Cell
from ..tensor.arithmetic import Arithmetic
from ..tensor.parameter import Parameter, ParameterTuple
from ..tensor.tensor import RankTensor, Tensor
from .parameter_groups import one_gradient_each


def parameter_tuple(where: str, parameters: Any) -> ParameterTuple:
    """What a reducer was given, as a ParameterTuple. Raises ArgumentTypeError."""
    if isinstance(parameters, (Arithmetic, np.ndarray)) or not isinstance(parameters, Iterable):
        allowed = "A list of Parameters: optimizer.parameters"
        raise ArgumentTypeError(f"parameters={shorten(parameters)}", where=where, allowed=allowed)
    items = list(parameters)
    for i, p in enumerate(items):
        instance(Parameter, "Parameters: optimizer.parameters")(where, f"parameters[{i}]", p)
    result = ParameterTuple(items)
    result.optimizer = getattr(parameters, "optimizer", None)
    return result


@dataclass(frozen=True)
class Outgoing:
    """A gradient that is to be sent.

    place       of its parameter among all that the reducer has, from 0
    fusion      `comm_fusion` of the parameter; given: somebody has chosen it
    dtype       in which it travels;  size_bytes: in that dtype
    """

    place: int
    fusion: int
    given: bool
    dtype: str
    size_bytes: int


def shared_messages(
    gradients: Sequence[Outgoing],
    ids: Sequence[int],
    *,
    fusion_type: int = 1,
    setting: tuple[str, Any] | None = None,
    wording: str = "inclusive",
) -> tuple[tuple[int, ...], ...]:
    """Which gradients travel together: numbers in `gradients`, message by message, in the order of their first.

    ids          `comm_fusion` of the reducer's parameters, those that send nothing included
    fusion_type  the number of all gradients where nothing else gives them one
    setting      (mode, config) of comm_fusion for allreduce; None: not configured
    wording      how positions of mode "index" are read, see `fusion.index_groups`

    Parameters with different `comm_fusion` have chosen: equal numbers go together, 0 alone. Else positions of mode
    "index" split the list of parameters; else all have the number `fusion_type`, and 0 is again alone. One message has
    one dtype. Modes "size" and "auto" split what is left together where its bytes exceed the threshold (in MB).

    >>> three = [Outgoing(place, 1, False, "float32", size_bytes=600_000) for place in range(3)]
    >>> shared_messages(three, [1, 1, 1])
    ((0, 1, 2),)
    >>> shared_messages(three, [1, 1, 1], setting=("size", 1))
    ((0, 1), (2,))
    >>> shared_messages(three, [1, 1, 1], setting=("index", (0,)))
    ((0,), (1, 2))
    """
    mode, config = setting or ("", None)
    chosen = len(set(ids)) > 1 or (bool(gradients) and all(g.given for g in gradients) and gradients[0].fusion == 0)
    if chosen:
        numbers = [g.fusion for g in gradients]
    elif mode == "index" and fusion_type:
        groups = index_groups(len(ids), config, wording)
        numbers = [1 + groups[g.place] for g in gradients]  # MindSpore counts from 1024; what matters is that none is 0
    else:
        numbers = [fusion_type] * len(gradients)
    together: dict[tuple[Any, ...], list[int]] = {}
    for n, (gradient, number) in enumerate(zip(gradients, numbers, strict=True)):
        together.setdefault((number, gradient.dtype) if number else (0, n), []).append(n)
    messages = []
    for mine in together.values():
        sizes = [gradients[n].size_bytes for n in mine]
        parts = size_groups_by_bytes(sizes, config) if mode in ("auto", "size") else (0,) * len(mine)
        messages += [tuple(mine[n] for n in part) for part in buckets_of(parts)]
    return tuple(sorted(messages))


class DistributedGradReducer(Cell):
    """Every rank's gradients, added up over the ranks: a tuple -> a tuple.

    parameters   those the gradients are of, in their order
    mean         multiply the sums by 1 / degree; None: as the context's gradients_mean says now
    degree       an int above 0; None: the number of ranks in the group
    fusion_type  the number of the message that carries all of them, where neither their parameters nor the context say
                 otherwise: an int, at least 0; 0: each gradient is a message of its own
    group        name of a group (`create_group`); None: all ranks

    Which gradients share a message: `shared_messages`, with the context's comm_fusion (all_reduce_fusion_config) for
    allreduce and fusion_index as they are when the reducer is made; openstate False makes fusion_type 0. Gradients of
    parameters with layerwise_parallel stay as they are. Gradients in float16 are added in float32, unless the context
    says gradient_fp32_sync=False. Without a world, or with one rank in it, everything stays as it is.

    Inside a network that the semi-automatic and automatic modes compile, it returns its gradients unchanged: there the
    compiler adds them up, over the ranks that hold the same slice. So does it with gradients that such a program has
    returned. A data_parallel network that calls it runs operator by operator on each rank.
    """

    @checked(mean=flag | None, degree=integer(1) | None, group=text | None)
    def __init__(
        self,
        parameters: Iterable[Parameter],
        mean: bool | None = None,
        degree: int | None = None,
        fusion_type: int = 1,
        group: str | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.__dict__["parameters"] = parameter_tuple("DistributedGradReducer", parameters)
        self.mean = get_auto_parallel_context("gradients_mean") if mean is None else mean
        self.degree, self.group = degree, group
        self.fusion_type = fusion_type
        self.all_reduce = AllReduce(group=group)
        self.all_reduce.add_prim_attr("fusion", fusion_type)
        config = frozen()
        self._setting = next(((mode, value) for kind, mode, value in config.comm_fusion if kind == "allreduce"), None)
        self._wording = config.fusion_index
        self._closed = self._setting is None and fusion_is_switched_off()
        self._messages: tuple[Any, Any] = (None, ())

    def construct(self, grads: Any) -> tuple[Any, ...]:
        grads = one_gradient_each("DistributedGradReducer", grads, self.parameters)
        world, tracer = current_world(), current_tracer.get()
        mode = getattr(tracer, "parallel_mode", None) or get_auto_parallel_context("parallel_mode")
        if world is None or (tracer is not None and mode not in LOCAL_MODES):
            return tuple(grads)
        size = len(world.group(self.group))
        factor = 1 / (self.degree or size) if self.mean else 1.0
        wide = get_auto_parallel_context("gradient_fp32_sync")
        reduced = list(grads)
        added = [mode in SHARDED_MODES and isinstance(g, RankTensor) and g.layout is not None for g in grads]
        sent = [i for i, p in enumerate(self.parameters) if not (p.layerwise_parallel or added[i])]
        if size == 1:
            for i in sent:
                reduced[i] = reduced[i] if factor == 1 else mul(reduced[i], factor)
        elif tracer is not None or any(getattr(grads[i], "requires_grad", False) for i in sent):
            # operators, so that gradients go through; and in a trace, where they say that they cannot be there
            sums = [_summed(self.all_reduce, grads[i], wide) for i in sent]
            for i, total in zip(sent, sums, strict=True):
                total = total if factor == 1 else mul(total, factor)
                # the mean can be had in float16 where the sum cannot
                reduced[i] = total if str(total.dtype) == str(grads[i].dtype) else cast(total, str(grads[i].dtype))
        elif sent:
            self._send(reduced, sent, factor, wide)
        return tuple(reduced)

    def _send(self, grads: list[Any], places: list[int], factor: float, wide: bool) -> None:
        """Replace the gradients by the sums at `places`, message by message."""
        world, members = members_of("DistributedGradReducer", self.group)
        comm, line = world.comm, origin_of("DistributedGradReducer")
        before_sum = getattr(world, "before_sum", None)
        if before_sum is not None:
            before_sum(self, members, grads, {"gradients_mean": self.mean, "degree": self.degree or len(members)})
        arrays = [grads[i].asnumpy() if isinstance(grads[i], Tensor) else plain_array(grads[i]) for i in places]
        dtypes = [np.dtype(np.float32) if wide and str(a.dtype) in HALF else a.dtype for a in arrays]
        under_way = []
        messages = self._shared(places, arrays, dtypes)
        for number, numbers in enumerate(messages):
            ends = np.cumsum([arrays[n].size for n in numbers]).tolist()
            bucket = comm.empty(ends[-1], dtypes[numbers[0]])
            spans = [slice(start, stop) for start, stop in zip((0, *ends), ends, strict=False)]
            for n, span in zip(numbers, spans, strict=True):
                bucket[span] = arrays[n].reshape(-1)
            tag = f"{line}: message {number + 1} of {len(messages)}, {self._names([places[n] for n in numbers])}"
            handle = comm.start("all_reduce", bucket, members, reduce="sum", out=bucket, tag=tag)
            under_way.append((numbers, spans, bucket, handle))
        for numbers, spans, bucket, handle in under_way:
            handle.wait()
            if factor != 1:
                np.multiply(bucket, bucket.dtype.type(factor), out=bucket)
            for n, span in zip(numbers, spans, strict=True):
                total = bucket[span].reshape(arrays[n].shape).astype(arrays[n].dtype, copy=False)
                grads[places[n]] = Tensor(total) if isinstance(grads[places[n]], Tensor) else total

    def _shared(
        self, places: list[int], arrays: list[np.ndarray], dtypes: list[np.dtype]
    ) -> tuple[tuple[int, ...], ...]:
        """`shared_messages` of these gradients, counted once, because they do not change from step to step."""
        key = [(i, self.parameters[i]._comm_fusion, d, a.size) for i, a, d in zip(places, arrays, dtypes, strict=True)]
        if self._messages[0] != key:
            outgoing = [
                Outgoing(i, (p := self.parameters[i]).comm_fusion, p.comm_fusion_given, str(d), a.size * d.itemsize)
                for i, a, d in zip(places, arrays, dtypes, strict=True)
            ]
            fusion_type = 0 if self._closed else self.fusion_type
            ids = [p.comm_fusion for p in self.parameters]
            rule = {"fusion_type": fusion_type, "setting": self._setting, "wording": self._wording}
            self._messages = key, shared_messages(outgoing, ids, **rule)
        return self._messages[1]

    def _names(self, places: list[int]) -> str:
        """The parameters of a message, as ranks compare and errors show them."""
        first, last = (self.parameters[places[at]].name for at in (0, -1))
        return f"gradient of {first}" if len(places) == 1 else f"gradients of {first} to {last} ({len(places)})"


def _summed(all_reduce: Any, gradient: Any, wide: bool) -> Any:
    """The sum over the ranks, in the dtype in which it travels."""
    return all_reduce(cast(gradient, "float32") if wide and str(gradient.dtype) in HALF else gradient)
