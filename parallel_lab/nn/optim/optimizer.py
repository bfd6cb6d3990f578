"""`Optimizer`, the base of optimizers: one update rule each, for arrays, Tensors and traced values alike.

    optimizer = nn.Momentum(net.trainable_params(), learning_rate=0.2, momentum=0.1)
    loss, grads = value_and_grad(forward, None, optimizer.parameters)(x, y)
    optimizer(grads)

`update(parameter, gradient, state, scalars, learning_rate, place)` is pure and made of operators: called with arrays it
computes, called in a trace it is recorded. Every state has the dims of its parameter, or some of them
(`dims_of_state`), so a slice of a state belongs to the same slice of its parameter, and a rank can update what it
holds. A rule that needs a norm of the whole asks `place.total` for it. What all gradients go through before the rule
(loss scale, clipping) is `prepared`. The rules are in `rules.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.checks import Check, flag, instance, number
from ...base.dtypes import kind_of, plain_array, scalar_dtype
from ...base.errors import ArgumentError, ArgumentTypeError, CellError, NotBuiltYet, ShapeError, TraceError, shorten
from ...base.hooks import current_tracer, current_world
from ...base.settings.current import get_auto_parallel_context
from ...layout.slices import cut, is_split, same_slices
from ...layout.tensor_layout import TensorLayout
from ...ops.elementwise import add, mul
from ...ops.kernels.threads import keep_freed_memory
from ...ops.machine.attributes import check_target
from ..cell import Cell
from ..layers.basic import CellList
from ..tensor.parameter import Parameter, ParameterTuple
from ..tensor.tensor import RankTensor, Tensor
from .amp import LossScaler, unscaled
from .clip import GradientClip
from .dtensor_steps import step_of_dtensors
from .global_norm import RankTotals, centralized
from .held_parameters import LEARNING_RATE, HeldParameters
from .held_states import State
from .lr_schedule import ConstantRate, as_schedule, rate_at
from .parameter_groups import groups_of, in_order, is_dtensor, one_gradient_each, trained_parameters
from .several_optimizers import SeveralOptimizers
from .totals import Place, Totals, nonfinite
from .weight_groups import Grouped, check_grouping, update_owners

WEIGHT_DECAY = "weight_decay"  # likewise, where it depends on the step

Params = Iterable[Parameter] | Iterable[dict[str, Any]]
Rate = float | Sequence[float] | Tensor | Callable[[int], Any]
Decay = float | Cell


@dataclass(frozen=True)
class _Setting:
    """What holds for one parameter: its factor of weight decay, or the scalar state with it; the scalar state with its
    learning rate, and whether its gradient is centralized.
    """

    weight_decay: float | str
    rate: str
    centralized: bool = False


def _read_decay(value: Any) -> Decay:
    return value if isinstance(value, Cell) else number(0).read(value)


A_DECAY = Check(f"{number(0).allowed}, or a Cell that gives the factor of a step", _read_decay)


def plain_number(value: Any) -> Any:
    """The number of a 0-d Tensor; anything else as it is."""
    return value.item() if isinstance(value, Tensor) and not value.shape else value


def _are_parameters(value: Any) -> bool:
    """Whether a list can only be the parameters of an optimizer, or groups of them."""
    return isinstance(value, (list, tuple)) and bool(value) and isinstance(value[0], (Parameter, dict))


class Optimizer(HeldParameters, Cell):
    """Base of optimizers: a Cell, called with one gradient per parameter.

    params         Parameters with different names; those without requires_grad are ignored. Or groups, as in
                   MindSpore: a list of dicts {"params": [...], "lr": rate, "weight_decay": factor}, the last two where
                   they differ from the optimizer's, with "grad_centralization": True where the mean of a gradient
                   is taken from it, and perhaps one {"order_params": [...]}, which says in which order they come
    learning_rate  number from 0 on; a schedule or function of the step (from 0); list or 1-D Tensor: a rate per step
    weight_decay   adds weight_decay * parameter to each gradient (Lamb, LARS and AdamWeightDecay: see there). A number
                   from 0 on, or a Cell that gives the factor of a step (from 0), also in a group. Without
                   groups, parameters whose names contain "beta" or "gamma" are spared, as in MindSpore: those of
                   normalisation layers
    loss_scale     the loss was multiplied by this; gradients are divided by it
    clip           a `GradientClip`: clip gradients before weight decay
    loss_scaler    a `LossScaler` (amp.py): gradients are divided by its scale, and a step whose gradients are not
                   finite changes nothing. In a plan it also multiplies the loss; with eager steps the loss is
                   multiplied by hand, with loss_scaler.scale(loss)

    The first two may change places, as in MindSpore's base: super().__init__(learning_rate, params).

    Attributes: `parameters` (a ParameterTuple), `learning_rate` (a Parameter, which may be assigned, or a schedule;
    another may take its place between steps), `global_step` and `steps_taken` (a Parameter, an int; skipped ones too),
    `states` and `scalars` (what the steps keep), `state_layouts` (on a rank that runs a compiled step: which slices the
    states of a parameter are), states by their names (`moments`, ParameterTuples). With optimizer parallel in
    data_parallel mode a rank keeps the states of the parameters that it updates; `state_owners` names the ranks that
    hold the others. Subclasses define `update` and, if they keep states, `state_names`; `can_be_grouped` says whether
    they work in that form; or, as in MindSpore, they define `construct(gradients)`, keep Parameters of their own and
    assign to them.
    Raises OptimizerParallelError (a RuntimeError) where enable_parallel_optimizer is set and cannot work.
    """

    state_names: tuple[str, ...] = ()
    can_be_grouped = False
    decays_by_name = True  # whether weight decay spares parameters for their names

    def __init__(
        self,
        params: Params | None = None,
        learning_rate: Rate | None = None,
        weight_decay: Decay = 0.0,
        loss_scale: float = 1.0,
        *,
        parameters: Params | None = None,
        clip: GradientClip | None = None,
        loss_scaler: LossScaler | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        where = type(self).__name__
        # MindSpore's base is Optimizer(learning_rate, parameters, ...)
        if _are_parameters(learning_rate):
            params, learning_rate = learning_rate, params
        if parameters is not None and (params is None or learning_rate is None):
            params, learning_rate = parameters, params if learning_rate is None else learning_rate
        elif parameters is not None or params is None or learning_rate is None:
            missing = "params" if params is None else "learning_rate"
            what = f"{missing}=None" if parameters is None else "parameters are given twice"
            raise ArgumentTypeError(what, where=where, allowed="Parameters, and their learning rate")
        self._decays: dict[str, Cell] = {}
        # a Cell does not belong to this one
        self.__dict__["weight_decay"] = self.__dict__["_decay"] = A_DECAY(
            where, "weight_decay", plain_number(weight_decay)
        )
        self.loss_scale = number(0, above=True)(where, "loss_scale", plain_number(loss_scale))
        self.clip = (instance(GradientClip, "A GradientClip") | None)(where, "clip", clip)
        self.loss_scaler = (instance(LossScaler, "A LossScaler") | None)(where, "loss_scaler", loss_scaler)
        self._rates: dict[str, Any] = {}
        self.learning_rate = learning_rate
        # all by a parameter's position: a Cell that takes the network later changes the names
        self._settings: list[_Setting] = []
        self._groups: list[tuple[int, ...]] = []
        # not registered: they are the network's, which names them
        self.__dict__["parameters"] = ParameterTuple(self._grouped(params))
        self.parameters.optimizer = self
        self._begin()

    def _begin(self) -> None:
        """No step taken, no states held."""
        self._numbers: dict[str, int] = {}
        self.steps_taken = 0
        self._states: list[State] | None = None
        self._scalars: dict[np.dtype, State] = {}
        self._layouts: list[TensorLayout | None] = [None] * len(self.parameters)
        self._owners: list[int | None] = [None] * len(self.parameters)
        check_grouping_in_context(self)

    @property
    def members(self) -> tuple[Optimizer, ...]:
        """The optimizers that take a step: itself; `SeveralOptimizers` answers with its members."""
        return (self,)

    def together(self, others: Sequence[Optimizer]) -> SeveralOptimizers:
        """One that takes the steps of all. Raises NotBuiltYet, as `SeveralOptimizers`."""
        return SeveralOptimizers((self, *others))

    # ---- where it runs ----

    _target: str | None = None
    updates_on_host = False
    # AdamOffload, Adam(use_offload=True): in compiled steps states lie on the host, which makes of gradients what the
    # device then adds to Parameters
    use_offload = False

    @property
    def target(self) -> str | None:
        """Where the update runs in compiled steps: "CPU", the host, whose memory then holds Parameters and states;
        "GPU", "Ascend" or None: the device. Only rules with `updates_on_host` take it (NotBuiltYet, which is a
        NotImplementedError), and "CPU" stays (ValueError), as in MindSpore.
        """
        return self._target

    @target.setter
    def target(self, value: str) -> None:
        where = f"{type(self).__name__}.target"
        check_target(where, value)
        if not self.updates_on_host:
            hint = "With it are Adam, AdamWeightDecay, LazyAdam, FTRL and ProximalAdagrad"
            raise NotBuiltYet("it has no update on a device of choice", where=where, hint=f"Omit it. {hint}")
        if self._target == "CPU" and value != "CPU":
            what, allowed = f"target={value!r} after 'CPU'", "'CPU': what lies on the host stays there"
            raise ArgumentError(what, where=where, allowed=allowed, hint="Make another optimizer")
        self._target = value

    # ---- learning rates ----

    @property
    def learning_rate(self) -> Any:
        """The rate, a Parameter, or the schedule; with groups that have rates of their own, one per parameter."""
        if not self.is_group_lr:
            return self._rate_as_read(LEARNING_RATE)
        if not self.dynamic_lr:
            return ParameterTuple([self._rate_as_read(setting.rate) for setting in self._settings])
        cells = {kind: ConstantRate(rate) if isinstance(rate, float) else rate for kind, rate in self._rates.items()}
        found = [cells[setting.rate] for setting in self._settings]
        return CellList(found) if all(isinstance(rate, Cell) for rate in found) else tuple(found)

    @learning_rate.setter
    def learning_rate(self, value: Rate) -> None:
        self._rates[LEARNING_RATE] = as_schedule(value, type(self).__name__)

    def set_rate(self, kind: str, value: Rate) -> None:
        """Change one of the rates that `rates` names: that of a group too. Raises ArgumentError."""
        if kind not in self._rates:
            allowed = f"One of {', '.join(self._rates)}"
            raise ArgumentError(f"unknown rate {kind!r}", where=type(self).__name__, allowed=allowed)
        self._rates[kind] = as_schedule(value, type(self).__name__)

    def learning_rates(self, step: int) -> dict[str, float]:
        """The rates of step `step` (from 0): {scalar state: rate}; "learning_rate" is the own one. ArgumentError."""
        return {kind: rate_at(rate, step, type(self).__name__) for kind, rate in self._rates.items()}

    def rates(self, step: int) -> dict[str, float]:
        """`learning_rates`, and the factors of weight decay that depend on the step."""
        where, decays = type(self).__name__, self._decays.items()
        return self.learning_rates(step) | {k: rate_at(decay, step, where, "weight decay") for k, decay in decays}

    @property
    def has_schedule(self) -> bool:
        """Whether a learning rate, or weight decay, depends on the step."""
        return self.dynamic_lr or bool(self._decays)

    def rate_name(self, name: str) -> str:
        """The scalar state with the learning rate of parameter `name`."""
        return self._settings[self._number(name)].rate

    def _number(self, name: str) -> int:
        """The position of the parameter that is called `name` now."""
        i = self._numbers.get(name)
        if i is None or self.parameters[i].name != name:  # renamed since
            self._numbers = {p.name: i for i, p in enumerate(self.parameters)}
            i = self._numbers.get(name)
        if i is None:
            raise ArgumentError(f"no parameter is called {shorten(name)}", where=type(self).__name__)
        return i

    # ---- the rule ----

    def initial_state(self, parameter: Any) -> dict[str, np.ndarray]:
        """A parameter's states before the first step: zeros. parameter, or a slice: anything with `shape`, `dtype`."""
        return {name: np.zeros(tuple(parameter.shape), np.dtype(str(parameter.dtype))) for name in self.state_names}

    def starts_of(self, name: str, like: Any) -> dict[str, np.ndarray]:
        """`initial_state` of the parameter `name`, which looks like that."""
        return self.initial_state(like)

    def scalar_state(self) -> dict[str, float]:
        """The values that all parameters share, before the first step."""
        return {}

    def initial_scalars(self) -> dict[str, float]:
        """A plan's scalar states before its first step: rates, those of `scalar_state`, the loss scaler's."""
        return {**self.rates(0), **self.scalar_state(), **(self.loss_scaler.scalar_state() if self.loss_scaler else {})}

    def update_scalars(self, scalars: State) -> State:
        """The shared values of this step from those of the last one. Called once per step, before the parameters."""
        return dict(scalars)

    def prepared(self, gradients: dict[str, Any], totals: Totals, scale: Any = None) -> dict[str, Any]:
        """What the rules are given: gradients without loss scale, clipped.

        gradients  {parameter: its gradient, or one rank's slice of it}
        totals     sums over the slices of a parameter
        scale      the loss scaler's scale in this step: () or None
        """

        def divided(name: str, gradient: Any) -> Any:
            gradient = gradient if scale is None else unscaled(gradient, scale)
            return gradient if self.loss_scale == 1 else mul(gradient, 1 / self.loss_scale)

        done = totals.each(gradients, divided)
        return done if self.clip is None else self.clip.clipped(done, totals)

    def update(
        self,
        parameter: Any,
        gradient: Any,
        state: State,
        scalars: State,
        learning_rate: Any,
        place: Place | None = None,
    ) -> tuple[Any, State]:
        """One step of one parameter: (new values, new states).

        parameter, gradient, states  arrays, Tensors or traced values of one dtype and, as a rule, shape; the gradient
                                     `prepared`
        scalars, learning_rate       0-d values of that dtype; float32 where it is bfloat16
        place                        which parameter it is; default: a whole one with the optimizer's weight decay
        """
        hint = "Define update(...), or construct(gradients)"
        raise CellError(f"{type(self).__name__} has no update rule", where=type(self).__name__, hint=hint)

    def place(self, name: str, totals: Totals, scalar: Callable[[str], Any]) -> Place:
        """What `update` receives about parameter `name`.  scalar: gives a scalar state, in the parameter's dtype."""
        return self._place(self._number(name), totals, scalar)

    def _place(self, i: int, totals: Totals, scalar: Callable[[str], Any]) -> Place:
        name, setting = self.parameters[i].name, self._settings[i]
        total, parts = functools.partial(totals.total, name), totals.parts(name)
        decay = scalar(setting.weight_decay) if isinstance(setting.weight_decay, str) else setting.weight_decay
        return Place(name, decay, total, parts, setting.centralized)

    def own_place(self) -> Place:
        """A whole parameter without a name, with the optimizer's weight decay as it is in the next step."""
        return Place("", self.rates(self.steps_taken).get(WEIGHT_DECAY, self._decay))

    def _decayed(self, parameter: Any, gradient: Any, place: Place | None) -> Any:
        """The gradient with weight decay."""
        return (self.own_place() if place is None else place).decayed(parameter, gradient)

    # ---- for subclasses with a construct of their own ----

    is_group = property(lambda self: bool(self._groups), doc="Whether the parameters came in groups.")
    is_group_lr = property(lambda self: len(self._rates) > 1, doc="Whether a group has a learning rate of its own.")
    dynamic_lr = property(
        lambda self: any(not isinstance(rate, float) for rate in self._rates.values()),
        doc="Whether a learning rate depends on the step.",
    )

    def get_weight_decay(self) -> Tensor | tuple[Tensor, ...]:
        """The factor of weight decay of the next eager step, () float32; with groups, one per parameter."""
        factors = self._factors() if self._groups else (self.own_place().weight_decay,)
        given = tuple(Tensor(factor, np.float32) for factor in factors)
        return given if self._groups else given[0]

    def _factors(self) -> tuple[float, ...]:
        """The factor of weight decay of every parameter in the next eager step."""
        if self._decays and current_tracer.get() is not None:
            what, hint = "weight decay that depends on the step, in a compiled step of its own", "Define update(...)"
            raise NotBuiltYet(what, where=type(self).__name__, allowed="A number", hint=hint)
        now = self.rates(self.steps_taken)
        return tuple(now.get(s.weight_decay, s.weight_decay) for s in self._settings)

    def get_lr_parameter(self, param: Any) -> Any:
        """The rate of a parameter, or of each one of a list: a Parameter, all rates of a list, or a schedule."""
        if not isinstance(param, (list, tuple)):
            instance(Parameter, "A Parameter, or a list of them")("get_lr_parameter", "param", param)
            rate = self._rate_as_read(self.rate_name(param.name))
            return getattr(rate, "as_tensor", rate)
        return [self.get_lr_parameter(one) for one in param]

    def decay_weight(self, gradients: Sequence[Any]) -> tuple[Any, ...]:
        """Gradients with weight decay.  One per parameter, in their order."""
        factors = self._factors()
        checked = one_gradient_each(type(self).__name__, gradients, self.parameters)
        given = zip(self.parameters, checked, factors, strict=True)
        return tuple(g if not factor else add(g, mul(p, factor)) for p, g, factor in given)

    def scale_grad(self, gradients: Sequence[Any]) -> tuple[Any, ...]:
        """Gradients divided by `loss_scale`."""
        given = one_gradient_each(type(self).__name__, gradients, self.parameters)
        return tuple(g if self.loss_scale == 1 else mul(g, 1 / self.loss_scale) for g in given)

    def flatten_gradients(self, gradients: Any) -> Any:
        """The gradients as they are: parameters do not share a flat buffer here."""
        return gradients

    def gradients_centralization(self, gradients: Sequence[Any]) -> tuple[Any, ...]:
        """Gradients of groups with grad_centralization without their mean (`centralized`); the others as they are."""
        gradients = one_gradient_each(type(self).__name__, gradients, self.parameters)
        given = zip(gradients, self._settings, strict=True)
        return tuple(centralized(g, Place()) if setting.centralized else g for g, setting in given)

    # ---- a step, at once ----

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As `construct`."""
        if not self.has_own_step:
            return self.construct(*args, **kwargs)
        grads = args[0] if args and isinstance(args[0], (list, tuple)) else ()
        if any(isinstance(g, RankTensor) and is_split(g.layout) for g in grads):
            hint = "Put it into nn.TrainOneStepCell, or into a function for jit: there it is written for whole tensors"
            what = "its own construct is called with a rank's slices of gradients"
            raise TraceError(what, where=type(self).__name__, hint=hint)
        before, result = self.steps_taken, super().__call__(*args, **kwargs)
        if current_tracer.get() is None and self.steps_taken == before:  # it may count them itself
            self.steps_taken += 1
        return result

    @property
    def has_own_step(self) -> bool:
        """Whether the step is a `construct` of the subclass's own, instead of an `update` per parameter."""
        return type(self).construct is not Optimizer.construct

    def construct(self, grads: Sequence[Any]) -> None:
        """Update every parameter in place with its gradient. grads: one Tensor or array per parameter, in their order.

        In a function that is compiled, with the gradients that were made there: the update is written down and belongs
        to the plan. On a rank whose Parameters hold slices, with the slices of the gradients that a compiled
        `value_and_grad` returned: it updates what it holds.
        """
        tracer = current_tracer.get()
        if any(map(is_dtensor, self.parameters)):
            step_of_dtensors(self, grads)
            return
        if tracer is not None:
            tracer.update(self, one_gradient_each(type(self).__name__, grads, self.parameters))
            return
        gradients = self._gradients(grads)
        if not gradients:
            return
        keep_freed_memory()  # the next step will need as much again
        cuts = {p.name: p.layout for p in self.parameters if p.layout is not None}
        scaler, totals = self.loss_scaler, RankTotals(cuts) if cuts else Totals()
        rates = self.rates(self.steps_taken)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore") if scaler else nullcontext():
            finite = not (scaler and scaler.drop_overflow_update) or bool(nonfinite(gradients, totals) == 0)
            if finite:
                scale = np.float32(scaler.scale_value) if scaler else None
                self._step(self.prepared(gradients, totals, scale), rates, totals)
        if scaler:
            scaler.adjust(finite)
        self.steps_taken += 1
        world = current_world()
        if world is not None:
            world.after_update(self)

    def _gradients(self, grads: Sequence[Any]) -> dict[str, np.ndarray]:
        """The gradients of the parameters that are still trained, checked."""
        where, arrays = type(self).__name__, {}
        for parameter, gradient in zip(self.parameters, one_gradient_each(where, grads, self.parameters), strict=True):
            is_slice = isinstance(gradient, RankTensor) and is_split(gradient.layout)
            if is_slice and not same_slices(gradient.layout, parameter.layout):
                gradient = gradient.full()
                if parameter.layout is not None:
                    gradient = cut(gradient.asnumpy(), parameter.layout, current_world().rank)
            array = gradient.asnumpy() if isinstance(gradient, Tensor) else plain_array(gradient, where=where)
            if kind_of(array.dtype) not in "biuf":
                what = f"the gradient of {parameter.name!r} is {array.dtype}"
                raise ArgumentTypeError(what, where=where, allowed="Numbers")
            array = np.asarray(array, parameter.dtype)
            if array.shape != parameter.shape:
                what = f"the gradient of {parameter.name!r} has shape {array.shape}"
                raise ShapeError(what, where=where, allowed=f"Shape {parameter.shape}")
            if parameter.requires_grad:
                arrays[parameter.name] = array
        return arrays

    def _step(self, gradients: dict[str, Any], rates: dict[str, float], totals: Totals) -> None:
        owners = owners_in_context(self.parameters)
        rank = 0 if current_world() is None else current_world().rank
        states = self._states_as_parameters(owners, rank)
        for dtype in dict.fromkeys(scalar_dtype(p.dtype) for p in self.parameters):
            self._scalars[dtype] = self.update_scalars(self.shared_state(dtype))
        for i, parameter in enumerate(self.parameters):
            name = parameter.name
            if name in gradients and owners.get(name, rank) == rank:
                dtype = scalar_dtype(parameter.dtype)
                rate = np.asarray(rates[self._settings[i].rate], dtype)
                given = (parameter.asnumpy(), gradients[name], states[i], self._scalars[dtype], rate)
                place = self._place(i, totals, lambda kind, dtype=dtype: np.asarray(rates[kind], dtype))
                new, states[i] = self.update(*given, place)
                parameter.adopt(np.asarray(new))
        for name, owner in sorted(owners.items(), key=lambda item: item[1]):  # in the order of the owners
            parameter = next(p for p in self.parameters if p.name == name)
            if name in gradients:
                comm, tag = current_world().comm, f"new value of {name}"
                parameter.adopt(comm.broadcast(parameter.asnumpy(), root=owner, tag=tag))

    # ---- parameters and groups ----

    def _grouped(self, params: Any) -> list[Parameter]:
        """The parameters in order; notes the settings of each."""
        where = type(self).__name__
        if isinstance(params, (Tensor, np.ndarray, str, dict)) or not isinstance(params, Iterable):
            allowed = "A list of Parameters, for instance net.trainable_params()"
            raise ArgumentTypeError(f"params={shorten(params)}", where=where, allowed=allowed)
        params = list(params)
        if not any(isinstance(one, dict) for one in params):
            trained, decay = trained_parameters(where, params), self._factor_or_state(self._decay)
            for p in trained:
                spared = self.decays_by_name and ("beta" in p.name or "gamma" in p.name)
                self._settings.append(_Setting(0.0 if spared else decay, LEARNING_RATE))
            return trained
        groups, order = groups_of(where, params)
        trained = trained_parameters(where, [p for group in groups for p in group["params"]])
        trained = trained if order is None else in_order(where, trained, order)
        numbers = {p.name: i for i, p in enumerate(trained)}
        settings: dict[int, _Setting] = {}
        for group in groups:
            rate = LEARNING_RATE
            if "lr" in group:
                rate = f"{LEARNING_RATE}.{len(self._rates)}"
                self._rates[rate] = as_schedule(group["lr"], where, "lr")
            given = plain_number(group.get("weight_decay", self._decay))
            decay = self._factor_or_state(A_DECAY(where, "weight_decay", given))
            members = tuple(numbers[p.name] for p in group["params"] if p.name in numbers)
            self._groups.append(members)
            centralized = flag(where, "grad_centralization", group.get("grad_centralization", False))
            settings.update(dict.fromkeys(members, _Setting(decay, rate, centralized)))
        self._settings = [settings[i] for i in range(len(trained))]
        decays = [self._decays.get(s.weight_decay, s.weight_decay) for s in self._settings]
        read = (decay if isinstance(decay, Cell) else Tensor(decay, np.float32) for decay in decays)
        self.__dict__["weight_decay"] = tuple(read)  # as MindSpore's scripts find it
        return trained

    def _factor_or_state(self, decay: Decay) -> float | str:
        """A factor of weight decay, or the scalar state with it, which is noted."""
        if not isinstance(decay, Cell):
            return decay
        kind_of_decay = next((kind for kind, one in self._decays.items() if one is decay), None)
        if kind_of_decay is None:
            kind_of_decay = f"{WEIGHT_DECAY}.{len(self._decays)}" if decay is not self._decay else WEIGHT_DECAY
            self._decays[kind_of_decay] = decay
        return kind_of_decay

    # ---- text ----

    def _shown(self) -> dict[str, Any]:
        """What `repr` shows after the learning rate."""
        decay = "of the step" if isinstance(self._decay, Cell) else self._decay
        return {"weight_decay": decay, "loss_scale": self.loss_scale}

    @property
    def rule(self) -> str:
        """The update rule in words, without learning rates and loss scale. Equal rules make equal plans."""
        shown = {k: str(v) for k, v in self._shown().items()}
        if self.clip is not None:
            shown["clip"] = str(self.clip)
        if self.loss_scaler is not None:
            shown["loss_scaler"] = self.loss_scaler.rule
        if self._groups:
            groups = []
            for members in filter(None, self._groups):
                names, one = ", ".join(self.parameters[i].name for i in members), self._settings[members[0]]
                more = ", grad_centralization" if one.centralized else ""
                groups.append(f"{names}: weight_decay={one.weight_decay}, {one.rate}{more}")
            shown["groups"] = f"[{'; '.join(groups)}]"
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in shown.items())})"

    def __repr__(self) -> str:
        further = {"clip": self.clip, "loss_scaler": self.loss_scaler}
        shown = {LEARNING_RATE: self._rates[LEARNING_RATE], **self._shown()}
        shown.update({name: value for name, value in further.items() if value is not None})
        groups = f" in {len(self._groups)} groups" if self._groups else ""
        count = f"{len(self.parameters)} parameters{groups}"
        return f"{type(self).__name__}({count}, {', '.join(f'{k}={v}' for k, v in shown.items())})"


def check_grouping_in_context(optimizer: Grouped) -> None:
    """As `check_grouping`, by the settings of the parallel context, where they ask for optimizer parallel."""
    if get_auto_parallel_context("enable_parallel_optimizer"):
        world = current_world()
        size = get_auto_parallel_context("device_num") if world is None else world.world_size
        check_grouping(get_auto_parallel_context("parallel_mode"), optimizer, size, type(optimizer).__name__)


def owners_in_context(parameters: Sequence[Parameter]) -> dict[str, int]:
    """`update_owners` for a step that runs at once on this rank; {} where every rank updates all."""
    world = current_world()
    if world is None or world.world_size == 1 or not get_auto_parallel_context("enable_parallel_optimizer"):
        return {}
    grouped = get_auto_parallel_context("parallel_mode") == "data_parallel"
    return update_owners(parameters, world.world_size) if grouped else {}
