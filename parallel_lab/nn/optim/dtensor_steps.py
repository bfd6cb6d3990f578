"""A step of an optimizer whose parameters are DTensors: its rule runs on every rank's parts.

    optimizer = nn.Adam(net.trainable_params(), 0.01)
    loss, grads = value_and_grad(forward, None, optimizer.parameters)(x)
    optimizer(grads)

A gradient is laid out as its parameter first; that reduces a pending one, and the message names the reader. States
lie as their parameters do. What a rule needs of the whole, such as a norm, is added up over the parts (`MeshTotals`).
In a program that is compiled, parameters and states are read and written.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from ...base.dtypes import scalar_dtype
from ...base.errors import ArgumentTypeError, NotBuiltYet
from ...base.hooks import current_tracer
from ...layout.mesh_layout import AxisPlacement, MeshLayout, Partial, Replicate, Shard, StridedShard
from ..tensor.dtensor import DTensor, RankTensors, distribute_tensor
from ..tensor.dtensor_parameter import DTensorParameter, cut_parameter
from ..tensor.dtensor_parts import move, replicated
from .parameter_groups import one_gradient_each
from .totals import Totals, nonfinite


class MeshTotals(Totals):
    """Sums over the parts of DTensors.  parameters: by name"""

    def __init__(self, parameters: dict[str, DTensorParameter]) -> None:
        self.parameters = parameters

    def total(
        self, name: str, local: Any, why: str, over: Sequence[int] | None = None, kept: Sequence[int] = ()
    ) -> Any:
        layout, before = self.parameters[name].layout, []
        for placement in layout.placements:
            after: AxisPlacement = Replicate()
            if isinstance(placement, (Shard, StridedShard)) and (over is None or placement.dim in over):
                after = Partial()
            elif isinstance(placement, (Shard, StridedShard)) and placement.dim in kept:
                after = Shard(tuple(kept).index(placement.dim))
            before.append(after)
        to = [Replicate() if placement == Partial() else placement for placement in before]
        return DTensor.from_local(local, layout.mesh, before).redistribute(to, reason=f"{why}: {name}").to_local()

    def parts(self, name: str) -> tuple[float, ...]:
        parameter = self.parameters[name]
        return parameter.layout.full_shape((1,) * parameter.ndim)


def step_of_dtensors(optimizer: Any, grads: Sequence[Any]) -> None:
    """See `Optimizer.construct`. Raises ArgumentTypeError: Parameters of both kinds."""
    where, tracer = type(optimizer).__name__, current_tracer.get()
    plain = next((p for p in optimizer.parameters if not isinstance(p, DTensorParameter)), None)
    if plain is not None:
        allowed = "DTensors alone, or Parameters alone: an optimizer for each"
        raise ArgumentTypeError(f"Parameter {plain.name!r} among DTensors", where=where, allowed=allowed)
    given = zip(optimizer.parameters, one_gradient_each(where, grads, optimizer.parameters), strict=True)
    gradients = {p.name: _as_parameter(p, g, where) for p, g in given if p.requires_grad}
    if not gradients:
        return
    scaler, rates = optimizer.loss_scaler, optimizer.rates(optimizer.steps_taken)
    totals = MeshTotals({p.name: p for p in optimizer.parameters})
    if scaler and tracer is not None:
        raise NotBuiltYet("a loss scaler with DTensors, compiled", where=where, allowed="It runs at once")
    with np.errstate(over="ignore", invalid="ignore", divide="ignore") if scaler else nullcontext():
        finite = not (scaler and scaler.drop_overflow_update) or not _nonfinite(gradients, totals)
        if finite:
            prepared = optimizer.prepared(gradients, totals, np.float32(scaler.scale_value) if scaler else None)
            _update(optimizer, prepared, rates, totals)
    if scaler:
        scaler.adjust(finite)

    def count() -> None:
        optimizer.steps_taken += 1

    if tracer is None:
        count()
    else:
        tracer.depends_on(lambda: optimizer.rates(optimizer.steps_taken))
        tracer.after_each_run.append(count)


def _nonfinite(gradients: dict[str, Any], totals: MeshTotals) -> int:
    return int(DTensor.from_local(nonfinite(gradients, totals), next(iter(totals.parameters.values())).mesh))


def _as_parameter(parameter: DTensorParameter, gradient: Any, where: str) -> Any:
    if not isinstance(gradient, DTensor):
        gradient = distribute_tensor(gradient, parameter.mesh, parameter.placements)
    why = f"{where} reads the gradient of {parameter.name}"
    return move(gradient.detach(), parameter.layout, why).to_local()


def _update(optimizer: Any, gradients: dict[str, Any], rates: dict[str, float], totals: MeshTotals) -> None:
    shared: dict[Any, dict[str, Any]] = {}
    for i, parameter in enumerate(optimizer.parameters):
        if parameter.name not in gradients:
            continue
        dtype = scalar_dtype(parameter.dtype)
        if dtype not in shared:
            start = {name: np.asarray(value, dtype) for name, value in optimizer.scalar_state().items()}
            held = _held(optimizer, f"all {dtype}", start, replicated(parameter.mesh))
            shared[dtype] = optimizer.update_scalars({name: x.detach().to_local() for name, x in held.items()})
            _keep(held, shared[dtype])
        states = _held(optimizer, parameter.name, optimizer.initial_state(parameter), parameter.layout)
        rate = np.asarray(rates[optimizer.rate_name(parameter.name)], dtype)
        place = optimizer._place(i, totals, lambda kind, dtype=dtype: np.asarray(rates[kind], dtype))
        uneven = any(n % count for n, count in zip(parameter.shape, place.parts, strict=True))
        if any(x.shape != parameter.shape for x in states.values()) or (place.centralized and uneven):
            what = f"the mean over uneven parts of {parameter.name!r}, or states of another shape than it has"
            raise NotBuiltYet(what, where=type(optimizer).__name__, allowed="DTensors with a rule element by element")
        local = {name: x.detach().to_local() for name, x in states.items()}
        value = parameter.detach().to_local()
        new, made = optimizer.update(value, gradients[parameter.name], local, shared[dtype], rate, place)
        _keep({**states, "": parameter}, {**made, "": new})


def _held(optimizer: Any, of: str, start: dict[str, np.ndarray], layout: MeshLayout) -> dict[str, DTensorParameter]:
    """What is kept from step to step for a parameter, or for all."""
    kept = vars(optimizer).setdefault("_dtensors", {})
    if of not in kept:
        token = current_tracer.set(None)  # they were there before what is compiled
        try:
            lies = [(name, x, layout if x.ndim else replicated(layout.mesh)) for name, x in start.items()]
            kept[of] = {name: cut_parameter(x, to.mesh, to.placements, f"{name}.{of}", False) for name, x, to in lies}
        finally:
            current_tracer.reset(token)
    return kept[of]


def _keep(held: dict[str, DTensorParameter], new: dict[str, RankTensors]) -> None:
    for name, value in new.items():
        x = held[name]
        x.take(DTensor.from_local(value, x.mesh, x.placements, shape=x.shape))
