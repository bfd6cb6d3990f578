"""Programs that compiled functions call: a plan on the learner's own objects, or in a process that is not a rank.

program = CompiledProgram(compile_program(train_step, x, y, device_num=8), current_world())
loss = program(x_rows, y_rows)          # this rank's slices, with their layouts
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.dtypes import plain_array
from ..base.errors import ShapeError, WorldError
from ..base.events import Event
from ..base.hooks import current_world
from ..base.settings.checks import LOCAL_MODES
from ..base.settings.config import ParallelConfig
from ..graph.actions import Action
from ..graph.compiler import Compiled, targets_of
from ..graph.forms import fill_form
from ..graph.instr import Instr
from ..graph.kinds import Env
from ..graph.plan import Plan
from ..layout.slices import cut
from ..layout.tensor_layout import TensorLayout
from ..nn.tensor.parameter import Parameter
from ..nn.tensor.tensor import RankTensor, Tensor
from ..run.computing import computing
from .finite import wanted
from .learner_values import LearnerValues
from .program import Program
from .replicas import dtypes_of, of_plan, settings_of


class CompiledProgram(Program):
    """What a compiled function calls, step after step: a plan on the learner's Parameters and optimizer.

    compiled    plan and objects
    world       the `World` this process is a rank of; None: there is one device
    parameters  what Parameters are afterwards: see `LearnerValues`

    Raises WorldError for a world of another size.
    """

    def __init__(self, compiled: Compiled, world: Any, *, parameters: str = "slices") -> None:
        plan, size = compiled.plan, 1 if world is None else world.world_size
        if plan.device_num != size:
            here = "this process is alone" if world is None else f"this world has {size} ranks"
            what = f"the program is for {plan.device_num} devices, and {here}"
            command = f"parallel-lab run -n {plan.device_num} script.py"
            hint = f"Start {plan.device_num} ranks: {command}; or leave device_num to the world"
            raise WorldError(what, where=plan.graph.name, hint=hint)
        super().__init__(plan, None if world is None else world.comm, {})
        self.compiled, self.world, self.calls = compiled, world, 0
        self.values = LearnerValues(compiled, self.rank, parameters)
        if size > 1 and compiled.optimizer is not None:
            self.copies = of_plan(plan, self.comm, compiled.parameters)
        self.local = self.rank % plan.stages[0].count  # layouts count the ranks of a pipeline stage
        for name, array in plan.constant_arrays.items():
            self.env[name] = cut(array, plan.value(name).layout, self.local)

    def __call__(self, *inputs: Any, step: int | None = None) -> Any:
        """Take one step on this rank's inputs; what the function returned, with RankTensors instead of tensors.

        inputs  Tensors or arrays: this rank's slices, or with dataset_strategy "full_batch" the whole
        step    what random masks depend on in a program without an optimizer; default: calls so far
        """
        plan, env, optimizer = self.plan, self.env, self.compiled.optimizer
        self.calls = self.calls if step is None else step
        # steps before this one: the optimizer's, which a checkpoint restores
        number = self.calls if optimizer is None else optimizer.steps_taken
        env.update(self._inputs(inputs))
        self.values.put_into(env)
        observe, events = self._observer(number)
        if self.world is not None:
            self.world.comm.step = number  # of the messages that it records
        finite = optimizer is not None and self.compiled.scaler is None and wanted(optimizer)
        with computing(plan):
            self.step(number, finite=finite, settings=self._settings, observe=observe)
        self.calls += 1
        outputs = [
            RankTensor(env[name], plan.value(name).shape, plan.value(name).layout) if name in env else None
            for name in plan.outputs
        ]
        self.values.take_from(env)  # Parameters too, which may be among what is returned
        if events:
            self.world.events.extend(events)
        for data in plan.data_inputs:
            env.pop(data.name, None)
        return fill_form(self.compiled.form, outputs)

    def _inputs(self, inputs: Sequence[Any]) -> Env:
        plan = self.plan
        expected = plan.data_inputs
        if len(inputs) != len(expected):
            names = ", ".join(i.name for i in expected)
            raise ShapeError(f"got {len(inputs)} inputs", where=plan.graph.name, allowed=f"{len(expected)}: {names}")
        whole = plan.config.dataset_strategy == "full_batch" and plan.config.parallel_mode not in LOCAL_MODES
        return {i.name: _local_array(plan, i.name, x, self.local, whole) for i, x in zip(expected, inputs, strict=True)}

    def _settings(self) -> dict[str, Any]:
        """What changes the copies that are compared."""
        more = {"gradients_mean": self.plan.config.gradients_mean, **dtypes_of(self.plan)}
        return settings_of(self.compiled.optimizer, **more)

    def _observer(self, number: int) -> tuple[Callable[..., None] | None, list[Event]]:
        """What notes the computations of a step as events, next to the recorded messages, if the world records."""
        events: list[Event] = []
        if self.world is None or not self.world.comm.recording:
            return None, events

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
    """A program for several devices in a process that is not one of their ranks: compiled and checked, never run.

    Called like a `CompiledProgram`, it gives zeros of the whole results' shapes, and changes nothing. The logger
    "parallel_lab" says so once per program (MindSpore: a dry run, MS_SIMULATION_LEVEL).
    """

    def __init__(self, compiled: Compiled) -> None:
        self.compiled, self.plan = compiled, compiled.plan
        count, name = self.plan.device_num, self.plan.graph.name
        start = f"Start {count} ranks and call init(): parallel-lab run -n {count} script.py, in a notebook %%ranks"
        text = "%s is compiled for %s devices and not run, as this process is not a rank: results are zeros. %s"
        logging.getLogger("parallel_lab").warning(text, name, count, start)

    def __call__(self, *inputs: Any, step: int | None = None) -> Any:
        """Zeros instead of what the function returns."""
        values = [self.plan.value(name) for name in self.plan.outputs]
        outputs = [RankTensor(np.zeros(value.shape, value.dtype), value.shape, None) for value in values]
        return fill_form(self.compiled.form, outputs)


def still_holds(compiled: Compiled) -> bool:
    """Whether Cells' modes, operators' strategies and targets, the optimizer's target, Parameters, their names and
    their messages are as when the program was made.
    """
    if targets_of(compiled.optimizer) != compiled.targets:
        return False
    trained = {source.name: source.trainable for source in compiled.plan.parameters}
    same = all(cell.training == training for cell, training in compiled.cells)
    same = same and all(p.compile_key == settings for p, settings in compiled.primitives)
    same = same and all(p.name == name for name, p in compiled.parameters.items())
    same = same and all(p.requires_grad == trained[name] for name, p in compiled.parameters.items() if name in trained)
    for source in compiled.traced.inputs:
        if source.role == "parameter" and source.name in compiled.parameters:
            p = compiled.parameters[source.name]
            was = source.comm_fusion, source.fusion_given, source.layerwise, source.parallel_optimizer
            same = same and was == (p.comm_fusion, p.comm_fusion_given, p.layerwise_parallel, p.parallel_optimizer)
    return same


def own_part(value: Any, layout: TensorLayout, config: ParallelConfig) -> Any:
    """An input as the program takes it: results of compiled calls and sharded Parameters in the input's layout."""
    if isinstance(value, Parameter) and value.layout is not None:
        value = RankTensor(value.asnumpy(), value.full_shape, value.layout)
    if not isinstance(value, RankTensor) or value.layout is None:
        return value
    if config.dataset_strategy == "full_batch":
        return value.full()
    if value.layout.same_placement(layout):
        return value
    if any(size % count for size, count in zip(value.full_shape, layout.splits, strict=True)):
        setting = f"as dataset_strategy {config.dataset_strategy!r} says"
        what = f"a tensor of shape {value.full_shape} is to be split {layout.splits}, {setting}"
        hint = 'Set dataset_strategy="full_batch", or put the call that made it into the function that is compiled'
        raise ShapeError(what, where="a compiled call", allowed="Counts that divide the dims", hint=hint)
    return Tensor(cut(value.full().asnumpy(), layout, current_world().rank))


def _local_array(plan: Plan, name: str, data: Any, rank: int, whole: bool) -> np.ndarray:
    """This rank's part of an input, C-contiguous, in the plan's dtype; split here if `whole`. Raises ShapeError."""
    value = plan.value(name)
    array = plain_array(data.asnumpy() if isinstance(data, Tensor) else data, where=name)
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
