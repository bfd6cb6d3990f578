"""Loss scaling: what keeps small gradients alive where a network computes in float16.

float16 has no number below 6e-8. The loss is multiplied by a scale before it is differentiated, so that gradients stay
above that, and the gradients are divided by it in float32. Too large a scale overflows: then the step is skipped, and a
dynamic scale is lowered.

    net = Net().to_float(np.float16)
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9, loss_scaler=nn.DynamicLossScaler(2**16, 2, 1000))
    plan = parallel_lab.compile(net, x, label, loss=nn.MSELoss(), optimizer=optimizer)

The network's results are float16 then; a loss of many large ones may itself overflow, so cast them to float32 before
it: `ops.cast(x, "float32")` at the end of construct.

Given to an optimizer, the scaler is part of the plan: the scale is a value of the program, and all ranks skip a step if
one gradient on one rank is not finite. By hand, as in MindSpore's amp:

    loss, grads = value_and_grad(lambda x, y: scaler.scale(loss_fn(net(x), y)), None, optimizer.parameters)(x, y)
    finite = all_finite(grads)
    if finite:
        optimizer(scaler.unscale(grads))
    scaler.adjust(finite)

Rules and names: MindSpore, amp (StaticLossScaler, DynamicLossScaler, Fixed- and DynamicLossScaleManager).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.checks import fitting, integer, kept, number
from ...base.dtypes import LOSS_SCALE
from ...base.hooks import current_tracer
from ...ops.elementwise import add, cast, div, maximum, mul
from ...ops.logic import greater_equal, isfinite, logical_not, select
from ...ops.spellings import tensor_operand
from ...ops.writes import assign
from ..tensor.parameter import Parameter
from ..tensor.tensor import Tensor
from .global_norm import in_dtype_of

GOOD_STEPS = "good_steps"  # steps without overflow since the scale last changed

State = dict[str, Any]


def unscaled(gradient: Any, scale: Any) -> Any:
    """gradient / scale, computed in float32 at least.  gradient: (...), scale: () -> (...) of the gradient's dtype."""
    own = np.dtype(str(gradient.dtype))
    wide = cast(gradient, "float32") if own.itemsize < 4 else gradient
    quotient = div(wide, in_dtype_of(wide, scale))
    return quotient if wide is gradient else cast(quotient, str(own))


class LossScaler:
    """Base of loss scalers. drop_overflow_update: skip the step if a gradient is not finite.

    scale_value  what the next loss is multiplied by (a plan keeps its own, starting from this)
    """

    drop_overflow_update = True

    @fitting
    def __init__(self, scale_value: float) -> None:
        self.scale_value = self._scale("scale_value", scale_value)

    # ---- by hand ----

    def scale(self, inputs: Any) -> Any:
        """The loss (or several tensors) times the scale; in a compiled function that of the step that runs."""
        if isinstance(inputs, (list, tuple)):
            return tuple(self.scale(x) for x in inputs)
        tracer = current_tracer.get()
        if tracer is None:
            return mul(inputs, self.scale_value)
        scale = tracer.loss_scale(self)
        return mul(inputs, scale if inputs.dtype == scale.dtype else cast(scale, str(inputs.dtype)))

    def unscale(self, inputs: Any) -> Any:
        """Gradients (a tensor, or several as a tuple) divided by the scale."""
        if isinstance(inputs, (list, tuple)):
            return tuple(self.unscale(x) for x in inputs)
        tracer, inputs = current_tracer.get(), tensor_operand("unscale", "inputs", inputs)
        return unscaled(inputs, np.float32(self.scale_value) if tracer is None else tracer.loss_scale(self))

    def adjust(self, grads_finite: Any) -> bool:
        """Tell the scaler whether a step's gradients were finite. Returns whether such news can change the scale."""
        states = {name: np.float32(value) for name, value in self.scalar_state().items()}
        flag = np.asarray(tensor_operand("adjust", "grads_finite", grads_finite, number=True))
        self.take(self.update_scalars(states, np.asarray(flag, bool)))
        return len(states) > 1

    def take(self, states: State) -> None:
        self.scale_value = float(states[LOSS_SCALE])

    # ---- the rule ----

    def scalar_state(self) -> dict[str, float]:
        """The values the rule keeps from step to step, as they are now."""
        return {LOSS_SCALE: self.scale_value}

    def update_scalars(self, states: State, finite: Any) -> State:
        """Those values after a step.  states: () float32 each, finite: () bool."""
        return dict(states)

    @property
    def rule(self) -> str:
        """The rule in words, without the scale itself, which is a value of the program."""
        return f"{type(self).__name__}({', '.join(self._settings())})"

    def _settings(self) -> list[str]:
        return [f"{name}={getattr(self, name)}" for name in vars(self).get("_kept", ())]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([f'scale_value={self.scale_value:g}', *self._settings()])})"

    def _scale(self, name: str, value: Any) -> float:
        return number(1, float(np.finfo(np.float32).max))(type(self).__name__, name, value)


class DynamicLossScaler(LossScaler):
    """A scale as large as overflow allows.

    scale_value   the first scale
    scale_factor  int: after an overflow the scale is divided by it, but not below 1
    scale_window  after so many steps in a row without overflow it is multiplied by scale_factor, if finite in float32
    """

    @kept(scale_factor=integer(1), scale_window=integer(1))
    def __init__(self, scale_value: float, scale_factor: int, scale_window: int) -> None:
        super().__init__(scale_value)
        self.counter = 0

    def scalar_state(self) -> dict[str, float]:
        return {LOSS_SCALE: self.scale_value, GOOD_STEPS: float(self.counter)}

    def update_scalars(self, states: State, finite: Any) -> State:
        scale, steps = states[LOSS_SCALE], add(states[GOOD_STEPS], 1.0)
        grown = mul(scale, float(self.scale_factor))
        grown = select(isfinite(grown), grown, scale)
        shrunk = maximum(div(scale, float(self.scale_factor)), 1.0)
        is_due = greater_equal(steps, float(self.scale_window))
        none = mul(states[GOOD_STEPS], 0.0)
        new_scale = select(finite, select(is_due, grown, scale), shrunk)
        return {LOSS_SCALE: new_scale, GOOD_STEPS: select(finite, select(is_due, none, steps), none)}

    def adjust(self, grads_finite: Any) -> bool:
        with np.errstate(over="ignore"):  # a scale that has reached the end of float32 is kept
            return super().adjust(grads_finite)

    def take(self, states: State) -> None:
        super().take(states)
        self.counter = int(states[GOOD_STEPS])


# ---- the older names ----


class _OlderNames(LossScaler):
    """What MindSpore's managers and their update cells have in common."""

    def get_loss_scale(self) -> float:
        return self.scale_value


class LossScaleManager(_OlderNames):
    """What both managers add to their scaler: methods under MindSpore's names."""

    def get_drop_overflow_update(self) -> bool:
        """Whether a step whose gradients are not finite is skipped."""
        return self.drop_overflow_update

    def update_loss_scale(self, overflow: bool) -> None:
        """`adjust` by whether there was an overflow."""
        self.adjust(not overflow)


class DynamicLossScaleManager(LossScaleManager, DynamicLossScaler):
    """`DynamicLossScaler` with the defaults and methods of MindSpore's manager."""

    @fitting
    def __init__(self, init_loss_scale: float = 2**24, scale_factor: int = 2, scale_window: int = 2000) -> None:
        super().__init__(self._scale("init_loss_scale", init_loss_scale), scale_factor, scale_window)

    def get_update_cell(self) -> DynamicLossScaleUpdateCell:
        """What a training loop calls with (loss_scale, overflow)."""
        return DynamicLossScaleUpdateCell(self.scale_value, self.scale_factor, self.scale_window)


class UpdateCell(_OlderNames):
    """Called with (loss_scale of the step, overflow) after a step: returns overflow. A Parameter as loss_scale takes
    the next scale. In a function that is compiled the optimizer's step counts unless there is an overflow.
    """

    good_steps: Parameter | None = None  # of compiled steps

    @fitting
    def __call__(self, loss_scale: Any, overflow: Any) -> Any:
        tracer = current_tracer.get()
        if tracer is not None:
            self._compiled(loss_scale, logical_not(overflow))
            return tracer.unless(overflow)
        taken = loss_scale.asnumpy() if isinstance(loss_scale, Tensor) else loss_scale
        self._adjusted(self._scale("loss_scale", float(np.reshape(taken, ()))), not bool(overflow))
        if isinstance(loss_scale, Parameter):
            loss_scale.set_data(np.full(loss_scale.shape, self.scale_value))
        return overflow

    def _compiled(self, loss_scale: Any, finite: Any) -> None:
        """Write down what happens to the scale, and to the count of steps."""

    def _adjusted(self, scale: float, finite: bool) -> None:
        """The same at once, for a step with this scale."""


class DynamicLossScaleUpdateCell(UpdateCell, DynamicLossScaler):
    """Called with (loss_scale of the step, overflow): returns overflow and adjusts `scale_value`."""

    @fitting
    def __init__(self, loss_scale_value: float, scale_factor: int, scale_window: int) -> None:
        super().__init__(self._scale("loss_scale_value", loss_scale_value), scale_factor, scale_window)

    def _compiled(self, loss_scale: Any, finite: Any) -> None:
        if not isinstance(loss_scale, Parameter):
            return  # a scale of the caller's own, which stays
        if self.good_steps is None:
            kept = Tensor(np.full(loss_scale.shape, self.counter, np.float32))
            self.good_steps = Parameter(kept, f"{loss_scale.name}.{GOOD_STEPS}", requires_grad=False)
        held = {LOSS_SCALE: loss_scale, GOOD_STEPS: self.good_steps}
        new = self.update_scalars(held, finite)
        for kind, parameter in held.items():
            assign(parameter, new[kind])

    def _adjusted(self, scale: float, finite: bool) -> None:
        self.scale_value = scale
        self.adjust(finite)
