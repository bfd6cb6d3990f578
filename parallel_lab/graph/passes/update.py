"""Pass `update`: the optimizer's rule, traced on one rank's slices.

Optimizer states are split as their parameter is, so most rules need no communication. Those that need a sum over a
whole parameter (the norms of Lamb, LARS and gradient clipping, the search for overflow), or along some of its dims
(AdaFactor's means), get it by an all_reduce over the axes that split these, and only those: ranks that hold copies
count once. Learning rates and scalar states
(Adam's beta powers, the loss scale) are values of the program too, so that they can change without compiling again.

Pass `loss_scale` stands before `differentiate`, which starts with the scale; the update divides by it and changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...base.dtypes import LOSS_SCALE, scalar_dtype
from ...base.errors import TraceError
from ...base.origin import Origin
from ...layout.tensor_layout import TensorLayout
from ...nn.optim.state_shapes import ShapeAndDtype, layout_of_state, shape_of_state
from ...nn.optim.totals import Totals, added, nonfinite
from ...ops.machine.registry import OPS
from ..draft import Draft, at_compile, fresh_name
from ..instr import Instr, Value, attr_pairs
from ..ir import SKIP
from .differentiate import loss_scale_name
from .local_recorder import LocalRecorder


def scale_loss(draft: Draft) -> Draft:
    """Add the scalar states of the optimizer's loss scaler (an `nn.LossScaler`), float32 and equal on all ranks. Where
    the function multiplied its loss by the scale, an input holds it already.
    """
    scaler, by_hand = draft.training.optimizer.loss_scaler, draft.training.scale_input
    values, states = draft.value_table(), []
    for kind in scaler.scalar_state():
        label = by_hand if by_hand and kind == LOSS_SCALE else fresh_name(kind, values)
        values[label] = Value((), "float32", TensorLayout.replicated(draft.config.device_num, 0))
        states.append((label, "", kind))
    done = replace(draft, values=tuple(sorted(values.items())), states=(*draft.states, *states))
    in_function = "the loss is multiplied in the function itself"
    in_chain = "gradients start from the scale, not from 1"
    return done.noted("loss_scale", f"{scaler.rule}: {in_function if draft.graph.seeds else in_chain}")


class _SliceTotals(Totals):
    """Sums over the ranks that hold different slices."""

    def __init__(self, rec: LocalRecorder) -> None:
        self.rec = rec

    def at(self, name: str) -> None:
        self.rec.name = name or "optimizer"

    def total(
        self, name: str, local: Any, why: str, over: Sequence[int] | None = None, kept: Sequence[int] = ()
    ) -> Any:
        return self._summed(local, _cut(self.rec.values[name].placed, over, kept), why)

    def parts(self, name: str) -> tuple[float, ...]:
        return self.rec.values[name].placed.slice_counts

    def totals(self, by_name: dict[str, Any], why: str) -> Any:
        # parameters that are split alike share one message
        together: dict[TensorLayout, list[Any]] = {}
        for name, local in by_name.items():
            together.setdefault(_cut(self.rec.values[name].placed), []).append(local)
        return added([self._summed(added(locals_), layout, why) for layout, locals_ in together.items()])

    def _summed(self, local: Any, layout: TensorLayout, why: str) -> Any:
        """The sum of the ranks' addends; `layout` says who holds them."""
        if not layout.is_partial:
            return local
        shape = layout.full_shape(local.shape)
        self.rec.values[local.name] = Value(shape, str(local.dtype), layout)
        count = len(layout.partial_group(0))
        fields: dict[str, Any] = {
            "axes": tuple(sorted(layout.partial, reverse=True)),
            "device_matrix": layout.device_matrix,
        }
        fields["attrs"] = attr_pairs({"reduce": "sum", "fusion": 0})
        slices = f"each of {count} ranks holds another slice, and ranks with copies are not counted again"
        fields["reason"] = f"{why}: {slices}"
        value = Value(shape, str(local.dtype), layout.whole())
        return self.rec.emit("all_reduce", value, (local.name,), f"{self.rec.name}.total", **fields)


def _cut(layout: TensorLayout, over: Sequence[int] | None = None, kept: Sequence[int] = ()) -> TensorLayout:
    """How a number of each rank's slice is laid out: an addend along each axis that splits the parameter, or its dims
    `over`; as the parameter along the dims `kept`, where it has those.
    """
    entries = layout.tensor_map if over is None else [layout.tensor_map[d] for d in over]
    axes = tuple(a for entry in entries for a in entry if layout.axis_size(a) > 1)
    rows = layout.rows if tuple(kept[:1]) == (0,) else ()
    return TensorLayout(layout.device_matrix, tuple(layout.tensor_map[d] for d in kept), axes, rows=rows).canonical()


class _Update:
    """The update program while it grows."""

    def __init__(self, draft: Draft, optimizer: Any) -> None:
        self.draft, self.optimizer = draft, optimizer
        self.values = draft.value_table()
        self.rec = LocalRecorder(self.values, {})
        self.rec.suffix = ".update"
        self.rec.origin = Origin(scope=f"Default/optimizer-{_named(optimizer)}", made_by="update")
        self.totals = _SliceTotals(self.rec)
        self.states = list(draft.states)
        self.assignments: list[tuple[str, str]] = []
        self.labels: dict[tuple[str, str], str] = {}
        self.finite: Any = None

    def scalar(self, kind: str, dtype: str) -> Any:
        """A scalar state in the dtype of the parameters that use it; one program value per dtype."""
        if (kind, dtype) not in self.labels:
            label = self.labels[kind, dtype] = fresh_name(f"{kind}:{dtype}", self.values)
            self.values[label] = Value((), dtype, TensorLayout.replicated(self.draft.config.device_num, 0))
            self.states.append((label, "", kind))
        return self.rec.value(self.labels[kind, dtype])

    def assign(self, target: str, new: Any, layout: TensorLayout | None, shape: tuple[int, ...]) -> None:
        """`target` takes the value `new`; after an overflow it keeps the one it has."""
        if new.name == target:
            return
        if self.finite is not None:
            new = OPS["choose"](self.finite, new, self.rec.value(target))
        self.values[new.name] = Value(shape, self.values[new.name].dtype, layout)
        self.assignments.append((target, new.name))

    def zeros(self, name: str) -> str:
        """Zeros for a parameter that the result does not depend on: weight decay and moments need a gradient."""
        held = self.values.setdefault(name, self.draft.graph.source(name).whole(self.draft.config.device_num))
        self.rec.name = name
        filled = OPS["fill"](shape=held.slice_shape, value=0.0, dtype=held.dtype)
        self.values[filled.name] = held
        return filled.name

    def prepared(self, gradients: dict[str, str]) -> dict[str, Any]:
        """Gradients without loss scale, clipped; notes whether the step counts."""
        by_name = {name: self.rec.value(gradient) for name, gradient in gradients.items()}
        skip = dict(self.draft.updates).get(SKIP)
        if skip is not None:
            self.finite = OPS["equal"](self.rec.value(skip), False)
        scaler, scale = self.optimizer.loss_scaler, loss_scale_name(self.draft)
        if scaler is None or scale is None:
            return self.optimizer.prepared(by_name, self.totals)
        if scaler.drop_overflow_update:
            self.finite = OPS["equal"](nonfinite(by_name, self.totals), 0.0)
            scaler_states = scaler.scalar_state()
            state_values = {
                kind: self.rec.value(label) for label, _, kind in self.draft.states if kind in scaler_states
            }
            for kind, new in scaler.update_scalars(state_values, self.finite).items():
                if new.name != state_values[kind].name:
                    self.values[new.name] = self.values[state_values[kind].name]
                    self.assignments.append((state_values[kind].name, new.name))
        return self.optimizer.prepared(by_name, self.totals, self.rec.value(scale))

    def shared(self, dtype: str) -> dict[str, Any]:
        """The scalar states of this step, as parameters of this dtype use them."""
        scalars = {kind: self.scalar(kind, dtype) for kind in self.optimizer.scalar_state()}
        self.totals.at("")
        stepped = self.optimizer.update_scalars(scalars) if scalars else {}
        for kind, new in stepped.items():
            self.assign(scalars[kind].name, new, self.values[scalars[kind].name].layout, ())
        return stepped

    def parameter(self, parameter: Any, gradient: Any, scalars: dict[str, Any]) -> None:
        name, optimizer = parameter.name, self.optimizer
        self.totals.at(name)
        dtype, layout, shape = self.values[name].dtype, self.values[name].layout, self.values[name].shape
        state, targets = {}, {}
        empty = ShapeAndDtype((0,) * len(shape), dtype)  # for the kinds and dtypes of the states alone
        for s, initial in optimizer.starts_of(name, empty).items():
            # a parameter may itself be called "moments.w"
            label = targets[s] = fresh_name(f"{s}.{name}", self.values)
            held = layout_of_state(s, layout)
            self.values[label] = Value(shape_of_state(s, shape), str(np.asarray(initial).dtype), held)
            self.states.append((label, name, s))
            state[s] = self.rec.value(label)
        kept = str(scalar_dtype(dtype))
        rate = self.scalar(optimizer.rate_name(name), kept)

        def scalar(kind: str) -> Any:
            return self.scalar(kind, kept)

        place = optimizer.place(name, self.totals, scalar)
        new, new_state = optimizer.update(self.rec.value(name), gradient, state, scalars, rate, place)
        self.assign(name, new, layout, shape)
        for s, value in new_state.items():
            self.assign(targets[s], value, layout_of_state(s, layout), shape_of_state(s, shape))


def _named(optimizer: Any) -> str:
    """The class of an optimizer, or of several."""
    return "-".join(type(one).__name__ for one in optimizer.members)


def _when_read(instrs: list[Instr], new: set[str]) -> tuple[Instr, ...]:
    """The same program with local work moved to where its result is first read, so that clipped or unscaled gradients
    of all parameters are not there at once. Messages and the values in `new` keep their order.
    """
    makers, later = {name: i for i in instrs for name in i.outs}, {name for i in instrs for name in i.ins} - new
    order: list[Instr] = []
    there: set[str] = set()
    for instr in instrs:
        if instr.kind == "compute" and later.intersection(instr.outs) and not new.intersection(instr.outs):
            continue
        waiting = [instr]
        while waiting:
            missing = [makers[name] for name in reversed(waiting[-1].ins) if name in makers and name not in there]
            if missing:
                waiting += missing
            elif there.isdisjoint((ready := waiting.pop()).outs):
                order.append(ready)
                there.update(ready.outs)
    return tuple(order)


def update_parameters(draft: Draft) -> Draft:
    """Add the update program of an `nn.Optimizer`: `prepared`, `update`, `initial_state`, `scalar_state`.

    Only the optimizer's own parameters are updated, also those that the result does not depend on: as on one device
    their gradient is zero. Raises TraceError if none of them has a gradient, or if one is not the network's own.
    """
    optimizer, parameters = draft.training.optimizer, draft.training.parameters
    own = {p.name for p in optimizer.parameters}
    gradients = {name: gradient for name, gradient in (draft.updates or draft.gradients) if name in own}
    if not gradients:
        trained = ", ".join(name for name, _ in draft.gradients)
        what = f"the optimizer has {', '.join(sorted(own))}"
        raise at_compile(TraceError, what, f"The network's parameters: {trained}")
    other = next((p.name for p in optimizer.parameters if p.name in gradients and p is not parameters[p.name]), None)
    if other is not None:
        what = f"the optimizer's {other!r} is another Parameter of that name than the network's"
        hint = "Make the optimizer from net.trainable_params()"
        raise at_compile(TraceError, what, "Parameters of this network", hint)
    update = _Update(draft, optimizer)
    trainable = {i.name for i in draft.graph.inputs if i.role == "parameter" and i.trainable}
    with update.rec:
        idle = [p.name for p in optimizer.parameters if p.name in trainable and parameters.get(p.name) is p]
        gradients |= {name: update.zeros(name) for name in idle if name not in gradients}
        ready = update.prepared(gradients)
        shared: dict[str, dict[str, Any]] = {}
        for name, gradient in ready.items():
            dtype = str(scalar_dtype(update.values[name].dtype))
            if dtype not in shared:
                shared[dtype] = update.shared(dtype)
            update.parameter(parameters[name], gradient, shared[dtype])
    instrs, states = _when_read(update.rec.instrs, {source for _, source in update.assignments}), tuple(update.states)
    messages = sum(i.is_communication for i in instrs)
    changes = {"assignments": (*draft.assignments, *update.assignments), "states": states, "optimizer": optimizer.rule}
    done = draft.with_program("update", (*draft.program("update"), *instrs), update.values, **changes)
    text = f"{_named(optimizer)}: {len(instrs)} instructions, {len(states)} states"
    return done.noted("update", text + (f", {messages} messages" if messages else ""))
