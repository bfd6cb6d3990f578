"""`LocalRecorder`: gradient rules and optimizers, written with operators, become instructions on slices.

    with recorder:                       # instead of the tracer
        g = OPS["cast"](g, dtype="float32")     appends compute %w.grad_1 = Cast(%w.grad)

Pass `unfold`: so do operators that send messages of their own, such as ring attention (`unfold=` of `@op`).

A gradient is a value of the program, a `TracedValue` with the shape of one rank's slice, or a `Uniform`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ...base.dtypes import scalar_operand
from ...base.errors import TraceError
from ...base.hooks import current_tracer
from ...base.origin import Origin
from ...layout.tensor_layout import TensorLayout
from ...ops.machine.opdef import OpDef, dtype_name
from ..draft import Draft, counted, fresh_name, result_names
from ..instr import Instr, Pairs, Value, attr_pairs
from ..traced_value import TracedValue


@dataclass(frozen=True)
class Uniform:
    """A gradient that is the same number everywhere, on every rank; with a loss scaler, times the loss scale."""

    number: float
    shape: tuple[int, ...]
    dtype: str


@lru_cache(maxsize=4096)
def gradient_layout(layout: TensorLayout) -> TensorLayout:
    """Layout of the gradient of a value: split as the value is, partial sums over its replicas."""
    return TensorLayout(layout.device_matrix, layout.tensor_map, layout.replica_axes, rows=layout.rows)


class LocalRecorder:
    """Records operators on slices, instead of the tracer, while vjp rules and optimizers become instructions."""

    def __init__(self, values: dict[str, Value], scalars: dict[str, Any]) -> None:
        self.values, self.scalars = values, scalars
        self.instrs: list[Instr] = []
        self.name, self.origin = "", Origin()
        self.suffix = ".grad"
        # where the slices of the forward instruction lie, for gradient operators that ask for it
        self.place: dict[str, Any] = {}
        self.once, self.stage = "", 0
        self.when: Pairs = ()

    def __enter__(self) -> LocalRecorder:
        self._token = current_tracer.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        current_tracer.reset(self._token)

    def enter(self, cell: Any = None) -> None:
        """Cells that a function of the user's own calls have no place in the network."""

    leave = enter

    def staged(self, function: Any) -> Any:
        """A function of the user's own as it is: a rule runs for each side of an `if` that the network takes."""
        return function

    def where(self, op_class: str, primitive: Any) -> str:
        """The start of an error about an operator of a rule."""
        return f"{op_class} of {self.name!r}"

    def value(self, name: str) -> TracedValue:
        """A value of the program, as rules see it: with the shape of one rank's slice."""
        value = self.values[name]
        return TracedValue(name, value.slice_shape, value.dtype, self)

    def record(self, op: OpDef, operands: Any, attrs: dict[str, Any], primitive: Any = None) -> Any:
        """One operator on slices: its result, or the tuple of its results."""
        traced = [x if isinstance(x, TracedValue) else self.number(x, operands) for x in operands]
        shapes, dtypes = tuple(t.shape for t in traced), tuple([dtype_name(t.dtype) for t in traced])
        results = op.infer(shapes, dtypes, attrs, self.name)
        fields: dict[str, Any] = {"op": op.name, "op_class": op.class_name}
        fields["attrs"] = attr_pairs({**attrs, "shape": results.shapes[0]} if op.view else attrs)
        place = self.place if op.offset is not None or op.part_size is not None else {}
        ins = tuple([t.name for t in traced])
        if not results.several:
            return self.emit("compute", Value(results.shapes[0], results.dtypes[0], None), ins, **fields, **place)
        name = fresh_name(f"{self.name}{self.suffix}", self.values)
        outs = tuple(fresh_name(out, self.values) for out in result_names(name, results))
        self.append("compute", outs, ins, **fields, **place)
        for out, shape, dtype in zip(outs, results.shapes, results.dtypes, strict=True):
            self.values[out] = Value(shape, dtype, None)
        return tuple(map(self.value, outs))

    def number(self, x: Any, operands: Any) -> TracedValue:
        """A number next to these operands, as a value of the program. Raises TraceError for anything else."""
        number = isinstance(x, (bool, int, float))
        if not number and not (isinstance(x, (np.generic, np.ndarray)) and x.ndim == 0):
            raise TraceError(f"operand {x!r}", where=self.name, allowed="Values of the program and numbers")
        array = scalar_operand(x, operands) if number else np.asarray(x)  # an array has its dtype
        dtype = dtype_name(array.dtype)
        name = f"{array.item()!r}:{dtype}"
        self.scalars[name] = array.item()
        self.values.setdefault(name, Value((), dtype, None))
        return TracedValue(name, (), dtype, self)

    def emit(self, kind: str, value: Value, ins: tuple[str, ...], out: str = "", **fields: Any) -> TracedValue:
        """Append an instruction that makes `value`; `fields` are further fields of Instr. Returns its result."""
        out = fresh_name(out or f"{self.name}{self.suffix}", self.values)
        self.append(kind, (out,), ins, **fields)
        self.values[out] = value
        return TracedValue(out, value.slice_shape, value.dtype, self)

    def append(self, kind: str, outs: tuple[str, ...], ins: tuple[str, ...], **fields: Any) -> None:
        """Append an instruction that makes these values."""
        own: dict[str, Any] = {"name": self.name, "origin": self.origin, "once": self.once, "stage": self.stage}
        self.instrs.append(Instr(kind, outs, ins, when=self.when, **{**own, **fields}))


def unfold(draft: Draft) -> Draft:
    """Replace operators that send messages of their own by these and what is computed between them, where dims are
    split: forward and backward, once layouts are known.
    """
    for phase in ("forward", "backward"):
        rec = LocalRecorder(draft.value_table(), {})
        rec.suffix = ".part"
        with rec:
            for instr in draft.program(phase):
                rule = instr.opdef.unfold if instr.kind == "compute" else None
                if rule is None or not rule(rec, instr):
                    rec.instrs.append(instr)
        done = draft.with_program(phase, tuple(rec.instrs), rec.values)
        draft = done.noted("unfold", f"{phase}: {counted(rec.instrs)}")
    return draft
