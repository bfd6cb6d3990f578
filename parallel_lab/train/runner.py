"""`RankProgram`: a compiled plan on the rank that this process is.

    program = RankProgram(compile_program(train_step, x, y, device_num=8), current_world())
    loss = program(x_rows, y_rows)          # this rank's slices, with their layouts

The learner's own objects are the store: a Parameter holds this rank's slice between calls, the optimizer the slices of
its states. So several programs (training, evaluation, another batch size) share them, a checkpoint finds them where it
looks, and a program that wants a parameter laid out differently brings it there. The interpreter is the one of
simulator and sessions; requests go to the world's communicator.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.dtypes import plain_array
from ..base.errors import ShapeError, WorldError
from ..base.events import Event
from ..base.settings.checks import LOCAL_MODES
from ..graph.actions import Action
from ..graph.compiler import Compiled
from ..graph.forms import fill_form
from ..graph.instr import Instr
from ..graph.plan import Plan
from ..layout.slices import cut, gather_full, is_split
from ..nn.tensor.initial_slices import OnAnotherStage, is_on_another_stage
from ..nn.tensor.tensor import Initial, RankTensor, Tensor
from ..run.computing import computing
from ..run.interpreter import Env
from .comparison import compare_programs
from .finite import PlanCheck, gradients_of, wanted
from .rank_steps import step_on
from .replicas import Replicas, dtypes_of, of_plan, settings_of


class RankProgram:
    """What a rank calls, step after step.

    compiled  plan and objects
    world     the `World` this process is a rank of; None: there is one device
    parameters  what Parameters are afterwards: "slices", this rank's; "whole", what the program gave them a value for
                is gathered (for code around it that runs at once); "as they were", nothing is kept of what the program
                did (it computes again what another has kept)
    steps     calls so far

    Raises WorldError for a world of another size, CollectiveMismatch (on all ranks) for different programs.
    """

    def __init__(self, compiled: Compiled, world: Any, *, parameters: str = "slices") -> None:
        plan = compiled.plan
        self.compiled, self.plan, self.world = compiled, plan, world
        self.rank = world.rank if world is not None else 0
        size = world.world_size if world is not None else 1
        if plan.device_num != size:
            here = "this process is alone" if world is None else f"this world has {size} ranks"
            what = f"the program is for {plan.device_num} devices, and {here}"
            command = f"parallel-lab run -n {plan.device_num} script.py"
            hint = f"Start {plan.device_num} ranks: {command}; or leave device_num to the world"
            raise WorldError(what, where=plan.graph.name, hint=hint)
        self.steps, self.parameters = 0, parameters
        self.local = self.rank % plan.stages[0].count  # layouts count the ranks of a pipeline stage
        self.env: Env = {
            name: cut(array, plan.value(name).layout, self.local) for name, array in plan.constant_arrays.items()
        }
        self._kept = {name for name, _ in (*plan.assignments, *plan.forward_assignments)}
        mine = [given.name for given in plan.parameters if plan.held_by(given.name, self.rank)]
        self._layouts = {name: plan.value(name).layout for name in mine}
        self._elsewhere = {}  # of other pipeline stages: who holds them
        for given in plan.parameters if len(plan.stages) > 1 else ():
            there = [f"stage {n}" for n, stage in enumerate(plan.stages) if plan.held_by(given.name, stage.first)]
            if there and given.name not in self._layouts:
                self._elsewhere[given.name] = f"the ranks of {' and '.join(there)}"
        self._check: PlanCheck | None = None
        self._copies: Replicas | None = None
        if size > 1:
            optimizer = compiled.optimizer
            if optimizer is not None:
                self._copies = of_plan(plan, world.comm, compiled.parameters)
            compare_programs(plan, world, {} if optimizer is None else optimizer.rates(optimizer.global_step))

    def __call__(self, *inputs: Any, step: int | None = None) -> Any:
        """Run one step on this rank's inputs; what the function returned, with RankTensors in place of tensors.

        inputs  Tensors or arrays: this rank's slices, or with dataset_strategy "full_batch" the whole
        step    what random masks depend on in a program without an optimizer; default: calls so far
        """
        plan, env = self.plan, self.env
        self.steps = self.steps if step is None else step
        env.update(self._inputs(inputs))
        env.update(self._parameters())
        if self.compiled.scaler is not None:
            scaler, name = self.compiled.scaler
            env[name] = np.asarray(scaler.scale_value, np.float32)
        shared = self._states()
        if self._copies is not None and self._copies.due():
            more = {"gradients_mean": plan.config.gradients_mean, **dtypes_of(plan)}
            self._copies.compare(self._held(), settings_of(self.compiled.optimizer, **more), self._number())
        observe, events = self._observer()
        check = self._finite_check()
        if check is not None:
            check.begin(self._number())
        if self.world is not None:
            self.world.comm.step = self._number()  # of the messages that it records
        with computing(plan):
            look = None if check is None else check.look
            comm = None if self.world is None else self.world.comm
            step_on(comm, plan, env, look, step=self._number(), observe=observe)
        if check is not None:
            check.end()
        self.steps += 1
        self._keep(shared)
        if events:
            self.world.events.extend(events)
        outputs = [
            RankTensor(env[name], plan.value(name).shape, plan.value(name).layout) if name in env else None
            for name in plan.outputs
        ]
        for given in plan.data_inputs:
            env.pop(given.name, None)
        return fill_form(self.compiled.form, outputs)

    # ---- what goes in ----

    def _inputs(self, inputs: Sequence[Any]) -> Env:
        plan = self.plan
        expected = plan.data_inputs
        if len(inputs) != len(expected):
            names = ", ".join(i.name for i in expected)
            raise ShapeError(f"got {len(inputs)} inputs", where=plan.graph.name, allowed=f"{len(expected)}: {names}")
        whole = plan.config.dataset_strategy == "full_batch" and plan.config.parallel_mode not in LOCAL_MODES
        return {i.name: local_array(plan, i.name, x, self.local, whole) for i, x in zip(expected, inputs, strict=True)}

    def _parameters(self) -> Env:
        given = self.compiled.parameters
        return {name: given[name].slice_for(layout, self.local) for name, layout in self._layouts.items()}

    def _states(self) -> dict[str, dict[str, str]]:
        """Put the optimizer's states into `env`; {dtype: {kind: value name}} of those that all parameters share."""
        optimizer, plan = self.compiled.optimizer, self.plan
        shared: dict[str, dict[str, str]] = {}
        if optimizer is None:
            return shared
        given = [s.parameter for s in plan.states if s.parameter in self._layouts]
        shapes = {name: (plan.value(name).shape, self._layouts[name]) for name in given}
        held = optimizer.take_states(shapes, self.local, dict(plan.owners))
        rates = optimizer.rates(optimizer.global_step)
        scaler = optimizer.loss_scaler.scalar_state() if optimizer.loss_scaler is not None else {}
        for state in plan.states:
            dtype = plan.value(state.name).dtype
            if not plan.held_by(state.name, self.rank):
                continue
            if state.parameter:
                self.env[state.name] = np.asarray(held[state.parameter][state.kind], dtype)
                continue
            if state.kind in rates:
                value = rates[state.kind]
            elif state.kind in scaler:
                value = scaler[state.kind]
            else:
                value = optimizer.shared_state(dtype)[state.kind]
                shared.setdefault(dtype, {})[state.kind] = state.name
            self.env[state.name] = np.asarray(value, dtype)
        return shared

    def _held(self) -> dict[str, np.ndarray]:
        """What this rank holds of the copies that are compared."""
        return {name: self.env[name] for name in self._copies.names if self.plan.held_by(name, self.rank)}

    def _finite_check(self) -> PlanCheck | None:
        """What looks for NaN and infinities in this step of a training."""
        optimizer = self.compiled.optimizer
        if optimizer is None or self.compiled.scaler is not None or not wanted(optimizer):
            return None
        if self._check is None:
            self._check = PlanCheck(self.plan, self.rank, self.env, gradients_of(self.plan))
        return self._check

    # ---- what is kept ----

    def _keep(self, shared: dict[str, dict[str, str]]) -> None:
        env, given, optimizer = self.env, self.compiled.parameters, self.compiled.optimizer
        for name, layout in self._layouts.items():
            array = env.pop(name)
            is_new = name in self._kept or (is_split(layout) and given[name].layout is not layout)
            if self.parameters == "slices" and is_new:
                given[name].hold(array, layout)
            elif self.parameters == "whole" and name in self._kept:
                given[name].set_data(gather_full(array, given[name].full_shape, layout, tag=f"new value of {name}"))
        for name, holders in self._elsewhere.items() if self.parameters == "slices" else ():
            p = given[name]
            if not is_on_another_stage(p):
                p.set_data(Initial(OnAnotherStage(name, holders), p.full_shape, p.dtype))
        if optimizer is None:
            return
        states: dict[str, dict[str, np.ndarray]] = {}
        scaler: dict[str, Any] = {}
        for state in self.plan.states:
            if not self.plan.held_by(state.name, self.rank):
                continue
            if state.parameter:
                states.setdefault(state.parameter, {})[state.kind] = env.pop(state.name)
            elif optimizer.loss_scaler is not None and state.kind in optimizer.loss_scaler.scalar_state():
                scaler[state.kind] = env[state.name]
        scalars = {dtype: {k: env[n] for k, n in kinds.items()} for dtype, kinds in shared.items()}
        optimizer.keep_states(states, self._layouts, scalars, dict(self.plan.owners))
        if scaler:
            optimizer.loss_scaler.take(scaler)
        optimizer.global_step += 1

    # ---- running ----

    def _number(self) -> int:
        """Steps before this one: the optimizer's, which a checkpoint restores; without one, the program's calls."""
        optimizer = self.compiled.optimizer
        return self.steps if optimizer is None else optimizer.global_step

    def _observer(self) -> tuple[Any, list[Event]]:
        """What notes the computations of a step as events, beside the recorded messages, if the world records."""
        events: list[Event] = []
        if self.world is None or not self.world.comm.recording:
            return None, events

        number = self._number()

        def observe(
            action: Action, instr: Instr, start_s: float, end_s: float, handed_bytes: int, arrived_s: float | None
        ) -> None:
            if not instr.is_communication:
                what = "compute", instr.out, instr.op_class or instr.kind
                if instr.kind == "wait":
                    what = "wait", instr.ins[0], instr.attr("message")
                event = Event(self.rank, number, action.program, *what, start_s, end_s, micro_batch=action.micro_batch)
                events.append(event)

        return observe, events


class Rehearsal:
    """A program for several devices in a process that is none of their ranks: compiled and checked, never run.

    Called like a `RankProgram`, it gives zeros of the whole results' shapes, and changes nothing. The logger
    "parallel_lab" says so once per program (MindSpore: a dry run, MS_SIMULATION_LEVEL).
    """

    def __init__(self, compiled: Compiled) -> None:
        self.compiled, self.plan = compiled, compiled.plan
        count, name = self.plan.device_num, self.plan.graph.name
        start = f"Start {count} ranks and call init(): parallel-lab run -n {count} script.py, in a notebook %%ranks"
        text = "%s is compiled for %s devices and not run, as this process is not a rank: results are zeros. %s"
        logging.getLogger("parallel_lab").warning(text, name, count, start)

    def __call__(self, *inputs: Any, step: int | None = None) -> Any:
        """Zeros in place of what the function returns."""
        values = [self.plan.value(name) for name in self.plan.outputs]
        outputs = [RankTensor(np.zeros(value.shape, value.dtype), value.shape, None) for value in values]
        return fill_form(self.compiled.form, outputs)


def local_array(plan: Plan, name: str, given: Any, rank: int, whole: bool) -> np.ndarray:
    """This rank's part of an input, C-contiguous, in the plan's dtype; split here if `whole`. Raises ShapeError."""
    value = plan.value(name)
    array = plain_array(given.asnumpy() if isinstance(given, Tensor) else given, where=name)
    expected = value.shape if whole else value.slice_shape
    if array.shape != expected:
        allowed = f"The program was compiled for {'whole tensors' if whole else 'slices'} of shape {expected}"
        raise ShapeError(f"{name!r} has shape {array.shape}", where=plan.graph.name, allowed=allowed)
    if array.dtype != value.dtype and not np.can_cast(array.dtype, value.dtype, "same_kind"):
        what = f"{name!r} is {array.dtype}"
        raise ShapeError(what, where=plan.graph.name, allowed=f"{value.dtype}, for which the program was compiled")
    if whole:
        array = array[value.layout.slice_index(value.shape, rank)]
    return np.array(array, value.dtype, order="C")
