"""`check_finite`: NaN and infinities told where they come from: rank, step, parameter (or input, or loss), index.

Gradients are added up over ranks, so one rank's NaN is every rank's after one step, and another rank's loss may show
it first. So each rank looks at its own inputs before a step, at its own gradients before they are added up, and at its
loss after the step. The sum of squares of an array is finite if all of it is, which costs a microsecond and 0.05 ns
per element; only where it is not, elements are looked at. With a loss scale nothing is checked: an overflow is what it
looks for, and it leaves out the step.

    set_run_checks(finite=True)        # in notebooks that is the default; ranks of a script warn
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any

import numpy as np

from ..base.dtypes import in_float32, kind_of
from ..base.errors import NonFinite
from ..base.hooks import current_world
from ..base.origin import caller
from ..base.settings.run_checks import note_told, run_checks
from ..graph.plan import Plan
from ..layout.slices import is_split
from ..nn.tensor.tensor import Tensor

MOVES = ("concat", "split", "slice", "reshape")  # kinds of instructions that compute nothing


def wanted(optimizer: Any) -> bool:
    """Whether numbers are looked at in steps of this optimizer."""
    return run_checks().check_finite and getattr(optimizer, "loss_scaler", None) is None


def scales_its_loss(network: Any) -> bool:
    """Whether a Cell in it has a loss scale of its own, and looks for overflow."""
    cells = network.cells_and_names() if hasattr(network, "cells_and_names") else ()
    return any("scale_sense" in vars(cell) for _, cell in cells)


def fault_in(value: Any) -> tuple[str, tuple[int, ...]] | None:
    """What is in an array that is not finite, in words, and the index of the first; None: nothing.

    >>> fault_in(np.array([[1.0, 2.0], [np.nan, np.inf]]))
    ('nan (1 NaN, 1 infinite of 4)', (1, 0))
    """
    array = value.asnumpy() if isinstance(value, Tensor) else np.asarray(value)
    if _looks_finite(array):
        return None
    if not array.size or kind_of(array.dtype) not in "fc":
        return None
    array = in_float32(array)
    bad = ~np.isfinite(array)
    if not bad.any():  # only the sum of squares has overflowed
        return None
    index = tuple(int(i) for i in np.argwhere(bad)[0]) if array.ndim else ()
    nans, count = int(np.isnan(array).sum()), int(bad.sum())
    return f"{array[index]} ({nans} NaN, {count - nans} infinite of {array.size})", index


def _looks_finite(array: np.ndarray, vdot: Callable = np.vdot) -> bool:
    """Whether the sum of squares is finite. vdot does not warn of others; np.errstate around dot takes longer."""
    return array.dtype.char in "fd" and isfinite(vdot(array, array))


def check(what: str, array: Any, step: int, *, rank: int | None = None, layout: Any = None, first: str = "") -> None:
    """Raise NonFinite if something in an array is not finite.

    what   such as "parameter 'w'";  step: from 0;  rank: default: this process's
    layout   how the whole is split: the index is that in the whole;  first: where it was seen first
    """
    fault = fault_in(array)
    if fault is not None:
        _tell(what, array, fault, step, rank, layout, first)


def check_all(kind: str, named: Iterable[tuple[str, Any]], step: int) -> None:
    """`check` of arrays with names; kind: what they are, such as "parameter"."""
    for name, array in named:
        if fault_in(array) is not None:
            check(f"{kind} {name!r}", array, step)


def before_all_reduce(value: np.ndarray) -> None:
    """An operator is about to add up something by hand, which may be a gradient."""
    if run_checks().check_finite and not _looks_finite(value):
        check("what goes into AllReduce", value, current_world().updates)


def _tell(what: str, array: Any, fault: tuple, step: int, rank: int | None, layout: Any, first: str) -> None:
    how = run_checks().on_nonfinite
    if how == "told":
        return
    text, index = fault
    if rank is None:
        world = current_world()
        rank = 0 if world is None else world.rank
    if layout is not None and is_split(layout):
        shape = tuple(size * cut for size, cut in zip(np.shape(array), layout.splits, strict=True))
        begins = [part.start or 0 for part in layout.slice_index(shape, rank % layout.device_num)]
        index = tuple(i + begin for i, begin in zip(index, begins, strict=True))
    at = f" at index {index}" if index else ""
    hint = "Look at the data first; else try a smaller learning rate, clip the gradients, or use a loss scale"
    seen = f"; it was first in {first}" if first else ""
    allowed = "Finite numbers (set_run_checks(finite=False) lets a training go on without)"
    error = NonFinite(f"{what} is {text}{at}{seen}", where=f"rank {rank}, step {step + 1}", allowed=allowed, hint=hint)
    if how != "warning":
        raise error
    note_told()
    line = caller()
    warnings.warn_explicit(f"{error} The training goes on.", RuntimeWarning, line.file or __file__, line.line or 1)


class PlanCheck:
    """One rank's step of a plan. A rank looks at what it is about to send (`look`), the simulator `observe`s.

    env      the rank's values
    watched  `gradients_of` the plan
    """

    def __init__(self, plan: Plan, rank: int, env: Mapping[str, Any], watched: dict[str, str]) -> None:
        self.plan, self.rank, self.env, self.step, self.watched = plan, rank, env, 0, watched
        self._inputs = [one.name for one in plan.data_inputs if kind_of(plan.value(one.name).dtype) in "fc"]
        self._loss = plan.outputs[0]
        self._trained = [(f"parameter {one.name!r}", one.name) for one in plan.parameters if one.trainable]

    def begin(self, step: int) -> None:
        """Before step `step`, from 0: the inputs."""
        self.step = step
        for name in self._inputs:
            array = self.env.get(name)
            if array is not None and not _looks_finite(array):
                self._look(f"input {name!r}", name)

    def look(self, request: Any) -> None:
        """Before a request is answered."""
        value = request.value
        if value is None or _looks_finite(value) or fault_in(value) is None:
            return
        for name in self.watched:
            self._look_at_gradient(name)
        check(f"what goes into {request.kind} at {request.origin}", value, self.step, rank=self.rank)

    def __call__(self, action: Any, instr: Any, *measured: Any) -> None:
        """After an instruction: a gradient that will be added up, or used."""
        if instr.out in self.watched:
            self._look_at_gradient(instr.out)

    def _look_at_gradient(self, name: str) -> None:
        parameter = self.watched[name]
        self._look(f"the gradient of parameter {parameter!r}" if parameter else f"gradient {name!r}", name)

    def end(self) -> None:
        """After the step: the loss. An update that has spoiled a parameter shows in the next one."""
        array = self.env.get(self._loss)
        if array is None or _looks_finite(array) or fault_in(array) is None:
            return
        for label, name in self._trained:
            self._look(label, name)
        self._look("the loss", self._loss)

    def _look(self, what: str, name: str) -> None:
        array = self.env.get(name)
        if array is None or fault_in(array) is None:
            return
        layout = self.plan.value(name).layout
        local = None if layout is None or layout.partial else layout
        check(what, array, self.step, rank=self.rank, layout=local, first=self._first(name))

    def _first(self, but: str) -> str:
        """The operator that has made the first value of the step that is not finite."""
        for _, instr in self.plan.instructions():
            if instr.out == but:
                break
            if instr.out in self.env and fault_in(self.env[instr.out]) is not None:
                at = f" at {instr.origin.place}" if instr.origin.place else ""
                return f"{instr.out!r}, of {instr.op_class or instr.kind}{at}"
        return ""


def gradients_of(plan: Plan) -> dict[str, str]:
    """{value that a rank computes as its own part of a gradient: the parameter, "" where it is not known}."""
    makers = {instr.out: instr for _, instr in plan.instructions()}

    def computed(names: Iterable[str]) -> list[str]:
        """Where values come from that are only moved."""
        sources = []
        for name in names:
            instr = makers.get(name)
            sources += computed(instr.ins) if instr is not None and instr.kind in MOVES else [name]
        return sources

    parameter_of: dict[str, str] = {}
    for instr in makers.values():
        if instr.is_communication and instr.carried and instr.message in ("all_reduce", "reduce_scatter"):
            parts = computed(instr.ins)
            known = instr.carried if len(parts) == len(instr.carried) else [""] * len(parts)
            parameter_of.update(zip(parts, known, strict=True))
    for parameter, gradient in plan.gradients:
        if parameter not in parameter_of.values():
            parameter_of[gradient] = parameter
    return parameter_of
