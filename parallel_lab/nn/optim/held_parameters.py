"""What an optimizer keeps, as the Parameters that MindSpore's scripts read and assign.

    ops.assign(optimizer.learning_rate, Tensor(0.01))
    optimizer.moments[0].asnumpy(), optimizer.global_step, optimizer.get_lr()

The values lie in the optimizer: rates as exact as they were given, states as a rank holds them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ...base.errors import ArgumentTypeError
from ...base.hooks import current_tracer, open_catalog
from ..tensor.parameter import Parameter, ParameterTuple
from .held_states import HeldStates

# the scalar state that holds the rate; "learning_rate.1", ... are those of groups with a rate of their own
LEARNING_RATE = "learning_rate"
GLOBAL_STEP = "global_step"
# attributes of MindSpore's optimizers whose Parameters have another name, which is the state's
NAMED_THERE = {
    "moments1": ("adam_m", "lamb_m"),
    "moments2": ("adam_v", "lamb_v"),
    "ms": ("mean_square",),
    "mg": ("mean_grad",),
}


class HeldParameter(Parameter):
    """What an optimizer keeps, as scripts read and assign it: `optimizer.learning_rate`, `optimizer.moments[0]`. The
    value lies in the optimizer, which gives it by `read_held(key)` and takes another by `write_held(key, array)`.
    """

    __slots__ = ("_key", "owner")

    def __init__(self, owner: HeldParameters, key: tuple[Any, ...], name: str) -> None:
        self.owner, self._key = owner, key
        super().__init__(owner.read_held(key), name, requires_grad=False)

    @property
    def _data(self) -> np.ndarray:
        return self.owner.read_held(self._key)

    @_data.setter
    def _data(self, array: np.ndarray) -> None:
        if hasattr(self, "name"):  # until then it is being made, of what the owner has
            self.owner.write_held(self._key, array)


class HeldParameters(HeldStates):
    """The part of `Optimizer` that gives them."""

    state_names: tuple[str, ...]
    steps_taken: int
    _rates: dict[str, Any]
    _settings: list[Any]
    state_dtypes: ClassVar[dict[str, np.dtype]] = {}  # of states that a script has replaced by others
    # what a step written by hand reads beyond this; catalog/nn/optimizer_names.py fills it
    further: ClassVar[dict[str, Callable[[Any], Any]]] = {}

    def held(self, key: tuple[Any, ...], name: str) -> HeldParameter:
        """What lies at `key`, as a Parameter: always the same one."""
        made = vars(self).setdefault("_held", {})
        if key not in made:
            made[key] = HeldParameter(self, key, name)
        return made[key]

    def __getattr__(self, name: str) -> Any:
        # only reached when the attribute is missing: `optimizer.moments` are states
        name = next((n for n in NAMED_THERE.get(name, ()) if n in self.state_names), name)
        if name not in self.state_names:
            open_catalog()
            if name in self.further:
                return self.further[name](self)
            return super().__getattr__(name)  # type: ignore[misc]
        with_it = [(i, p) for i, p in enumerate(self.parameters) if name in self.initial_state(p)]
        return ParameterTuple([self.held((name, i), f"{name}.{p.name}") for i, p in with_it])

    def __setattr__(self, name: str, value: Any) -> None:
        kind = next((n for n in NAMED_THERE.get(name, ()) if n in self.state_names), name)
        if kind not in self.state_names or not isinstance(value, ParameterTuple):
            return super().__setattr__(name, value)
        # a script's own states, in another dtype: `self.moments1 = ParameterTuple(...)` behind super().__init__
        dtypes = {np.dtype(str(p.dtype)) for p in value}
        if len(value) != len(self.parameters) or len(dtypes) > 1:
            given = f"{len(value)} Parameters in {' and '.join(sorted(map(str, dtypes)))}"
            allowed = f"{len(self.parameters)} of one dtype, one for each Parameter that is trained"
            raise ArgumentTypeError(given, where=f"{type(self).__name__}.{name}", allowed=allowed)
        super().__setattr__("state_dtypes", {**self.state_dtypes, kind: dtypes.pop()})
        for i, one in enumerate(value):
            self.write_held((kind, i), one.asnumpy())

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_held": {}}  # a copy makes Parameters of its own

    def _rate_as_read(self, kind: str) -> Any:
        rate = self._rates[kind]
        return self._held_rate(kind) if isinstance(rate, float) else rate

    def _held_rate(self, kind: str) -> Parameter:
        """The rate of the next step."""
        _, _, group = kind.partition(".")
        return self.held((kind,), f"{LEARNING_RATE}_group_{int(group) - 1}" if group else LEARNING_RATE)

    @property
    def global_step(self) -> Any:
        """The steps taken, a Parameter.  (1,) int32."""
        return self.held((GLOBAL_STEP,), GLOBAL_STEP)

    @global_step.setter
    def global_step(self, value: Any) -> None:
        self.steps_taken = int(value)

    def read_held(self, key: tuple[Any, ...]) -> np.ndarray:
        """The steps, the rate key[0] of the next step, or the state key[0] of parameter number key[1]."""
        if key == (GLOBAL_STEP,):
            return np.array([self.steps_taken], np.int32)
        if len(key) == 1:
            return np.asarray(self.learning_rates(self.steps_taken)[key[0]], np.float32)
        return self._state(key[1])[key[0]]

    def write_held(self, key: tuple[Any, ...], array: np.ndarray) -> None:
        """Take another value at `key`."""
        if key == (GLOBAL_STEP,):
            self.steps_taken = int(array.item())
        elif len(key) == 1:
            if array != self.read_held(key):  # what it was stays as exact as it was given
                self.set_rate(key[0], array.item())
        else:
            (name, i), state = key, self._state(key[1])
            self._states = [{} for _ in self.parameters] if self._states is None else self._states
            self._states[i] = {**state, name: np.array(array, self.state_dtypes.get(name, state[name].dtype))}

    def _state(self, i: int) -> dict[str, np.ndarray]:
        return (self._states[i] if self._states else {}) or self.initial_state(self.parameters[i])

    def get_lr(self) -> Any:
        """The learning rate of the next step, a Tensor; with groups that have rates of their own, one per parameter."""
        traced = current_tracer.get() is not None  # there it is read in every step
        rates = {kind: self._held_rate(kind) for kind in self._rates}
        given = rates if traced else {kind: rate.value() for kind, rate in rates.items()}
        if len(rates) == 1:
            return given[LEARNING_RATE]
        return tuple(given[setting.rate] for setting in self._settings)
