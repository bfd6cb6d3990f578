"""`OpDef`: everything known about one operator: its declaration, its numpy function, what shapes and dtypes it gives.

    OPS["matmul"].infer(((16, 8), (8, 24)), ("float32", "float32"), {}).shapes     ((16, 24),)
    OPS["matmul"].compute(a, b)                                                    the numpy function, on arrays

Values are inferred without running anything: labels (`signature.py`) give shapes, `dtype` the dtype. Ranks that run a
plan enter at `compute`; a call by the learner takes the walk of `calling.py`. The keywords are explained once, at `@op`
(`registry.py`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ...base.dtypes import (
    FLOAT32,
    alike,
    as_dtype,
    check_taken_in,
    float_result,
    in_float32,
    is_bfloat16,
    number_result,
    promoted,
    scalar_operand,
)
from ...base.errors import ParallelLabError, ShapeError
from .signature import Shape, Signature, resolve
from .tables import Table


class Results(NamedTuple):
    """Shapes and dtypes of what an operator gives; several: whether that is a tuple, if only of one."""

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    several: bool = False

    def form(self, values: Sequence[Any]) -> Any:
        """`values`, one per result, as a call gives them."""
        return tuple(values) if self.several else values[0]


@dataclass(eq=False)
class OpDef:
    """Everything known about one operator. Built by `@op`; most fields are its keywords.

    What makes an operator: `name`, `class_name` ("matmul", "MatMul"), `fn` (the numpy function), `signature`
    ("mk,kn->mn"), `reduce` (how partial results combine) and `vjp_fn` (the gradient). The others are for operators that
    need more, in the groups that `@op` explains.
    """

    name: str
    class_name: str
    fn: Callable[..., Any]
    signature: str | Callable[..., Any] | None

    # what `@op` reads from the function: arguments by position, those that are tensors among them, attributes of the
    # class, attributes of a call that have a default
    positional: tuple[str, ...]
    tensors: tuple[str, ...]
    options: dict[str, Any]
    defaults: dict[str, Any]
    variadic: bool = False
    internal: bool = False
    primitives: dict[str, Callable[..., Any]] = field(default_factory=dict, repr=False)  # its classes, by name
    __doc__: str | None = field(default=None, repr=False)

    # what it computes
    attrs: dict[str, Callable[..., Any]] = field(default_factory=dict)
    check: Callable[..., Any] | None = None
    numbers: str | None = None
    dtype: Callable[..., Any] | str | int | tuple[Any, ...] | None = None
    sizes: Callable[..., Any] | None = None
    out_sizes: Callable[..., Any] | None = None
    result_shape: Callable[..., Any] | int | tuple[int, ...] | None = None
    view: bool = False
    writes: bool = False
    message: str = ""  # the kind of message that it is, of communication called by hand
    flops: Callable[..., Any] | int | None = None
    expand: Callable[..., Any] | None = None
    host_only: bool = False  # in modes that split operators it runs where `set_device("CPU")` says
    cases: tuple[Any, ...] = ()

    # how it may be split
    axes: str | Callable[..., Any] | None = None
    whole: str | Callable[..., Any] = ""
    instead: str = ""
    restrict: Callable[..., Any] | None = None
    batch: str | None = None
    held: Callable[..., Any] | None = None
    counted: Callable[..., Any] | None = None
    scatters: int | None = None
    devices: Callable[..., Any] | None = None
    uneven: Callable[..., Any] | None = None
    strategy_labels: Callable[..., Any] | None = None
    reduce: str = "sum"
    mean: bool = False
    linear: str = ""

    # what one rank's slice needs besides its data
    offset: str | Callable[..., Any] | None = None
    part_size: Callable[..., Any] | None = None
    window: Callable[..., Any] | None = None
    exchanges: str = ""  # label whose split makes it an all_to_all_v among the ranks that have its parts
    localize: Callable[..., Any] | None = None
    unfold: Any = None  # an Unfolding

    # its gradient: operators declared for it by operand, the rule, and what the rule names among its arguments
    gradients: dict[str, OpDef] = field(default_factory=dict, repr=False)
    gradient_of: tuple[OpDef, str] | None = field(default=None, repr=False)
    vjp_fn: Callable[..., Any] | None = None
    vjp_across: bool = False
    vjp_needs: bool = False
    vjp_total: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What a call by the learner does: `calling.Operator`, which all declared operators are, has the walk."""
        raise NotImplementedError(self.name)

    # ---- computing ----

    @cached_property
    def meets(self) -> Callable[..., Any] | None:
        """What makes one dtype of the operands' (MindSpore's implicit conversion); None: they stay as they are."""
        alone = self.writes or not (self.signature == "...,...->..." or self.dtype is None)
        return float_result if self.dtype is float_result else None if alone else promoted

    def compute(self, *arrays: Any, **attrs: Any) -> Any:
        """The numpy computation itself: arrays in, array out; several results are a tuple of arrays."""
        if self.expand is not None:
            return self.expand(list(arrays), attrs, None)
        # of subclasses the array: to an np.matrix * is another product
        arrays = tuple([np.asarray(x) if isinstance(x, np.ndarray) else x for x in arrays])
        if (dtypes := {getattr(x, "dtype", None) for x in arrays}) != {FLOAT32}:  # there nothing of this is needed
            if not self.view and any(x is not None and is_bfloat16(x) for x in dtypes):
                return self._rounded(arrays, attrs)
            if (rule := self.meets) and (len(dtypes) > 1 or (rule is float_result and arrays[0].dtype.kind != "f")):
                arrays = alike(arrays, self.class_name, rule)
            if self.dtype is number_result and all(x is not None and x.kind == "b" for x in dtypes):
                raise TypeError  # numpy does not refuse them all
        if self.variadic:
            result = self.fn(*arrays, **attrs)
        else:
            # by name: a static parameter may stand between two tensors (one_hot's depth)
            result = self.fn(**dict(zip(self.tensors, arrays, strict=True)), **attrs)
        return tuple([np.asarray(each) for each in result]) if isinstance(result, tuple) else np.asarray(result)

    def _rounded(self, arrays: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """`compute` in float32 where operands are bfloat16; the results in the dtypes that inference says."""
        dtypes = tuple(str(x.dtype if hasattr(x, "dtype") else scalar_operand(x, arrays).dtype) for x in arrays)
        result = self.compute(*map(in_float32, arrays), **attrs)
        several = result if isinstance(result, tuple) else (result,)
        own_attrs = {name: value for name, value in attrs.items() if name != "offset"}
        result_dtypes = self.result_dtypes(dtypes, own_attrs, len(several))
        rounded = tuple(x.astype(dtype, copy=False) for x, dtype in zip(several, result_dtypes, strict=True))
        return rounded if isinstance(result, tuple) else rounded[0]

    def vjp(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: `fn(g, out, *operands, **attrs)` returns one gradient, or None, per operand, by operators.

        With several results `g` and `out` are tuples. The gradient of one that the loss does not depend on is None.

        A rule that names a parameter `across` receives a function `across(value, reduce="sum")` that combines a value
        over the ranks among which a reduction was split; `needs`: a bool per operand, whether its gradient is needed,
        so that costly ones for data are not computed; `total`: a function that sums a gradient over all ranks.
        """
        names = inspect.signature(fn).parameters
        self.vjp_fn, self.vjp_across, self.vjp_needs = fn, "across" in names, "needs" in names
        self.vjp_total = "total" in names
        return fn

    # ---- inference ----

    def signature_for(self, shapes: tuple[Shape, ...], attrs: dict[str, Any], where: str = "") -> Signature:
        """The labels for operands of these shapes. Raises ShapeError."""
        text = self.signature
        if callable(text):
            text = text(shapes, **attrs)
        return resolve(text, shapes, where or self.class_name)

    def label_sizes(self, signature: Signature, shapes: tuple[Shape, ...], attrs: dict[str, Any]) -> dict[str, int]:
        """Extent of every label, those that only the result has included."""
        sizes = signature.sizes(shapes)
        if self.sizes is not None:
            sizes.update(self.sizes(shapes, **attrs))
        return sizes

    def result_sizes(self, sizes: dict[str, int], shapes: tuple[Shape, ...], attrs: dict[str, Any]) -> dict[str, int]:
        """Extent of every label in the result; `known` are those in the operands."""
        return sizes if self.out_sizes is None else {**sizes, **self.out_sizes(shapes, **attrs)}

    def infer(
        self, shapes: tuple[Shape, ...], dtypes: tuple[str, ...], attrs: dict[str, Any], where: str = ""
    ) -> Results:
        """Shapes and dtypes of the results. Raises ShapeError that names `where`."""
        with suppress(ParallelLabError, TypeError):  # refused, below with its place; or an attribute cannot be a key
            return _inferred(self, shapes, dtypes, repr(attrs), tuple(attrs), *attrs.values())
        return self._infer(shapes, dtypes, attrs, where)

    def _infer(
        self, shapes: tuple[Shape, ...], dtypes: tuple[str, ...], attrs: dict[str, Any], where: str = ""
    ) -> Results:
        rule = self.result_shape
        if rule is None:
            signature = self.signature_for(shapes, attrs, where)
            sizes = self.result_sizes(self.label_sizes(signature, shapes, attrs), shapes, attrs)
            result_shapes = tuple([tuple([1 if c == "1" else sizes[c] for c in labels]) for labels in signature.outs])
            if self.view and self.sizes is not None:
                result_shapes = (tuple(self.sizes(shapes, **attrs)["shape"]),)
            several = signature.several
        else:
            answer: Any
            if callable(rule):
                answer = rule(shapes, **attrs)
            else:
                answer = tuple([shapes[i] for i in rule]) if isinstance(rule, tuple) else shapes[rule]
            several = len(answer) > 0 and isinstance(answer[0], tuple)
            result_shapes = tuple(answer) if several else (tuple(answer),)
        try:
            return Results(result_shapes, self.result_dtypes(dtypes, attrs, len(result_shapes)), several)
        except ShapeError as error:  # of a rule about dtypes, which does not know whose it is
            raise type(error)((where or self.class_name) + str(error).removeprefix("arithmetic")) from None

    def result_dtypes(self, dtypes: tuple[str, ...], attrs: dict[str, Any], count: int) -> tuple[str, ...]:
        """Names of the dtypes of `count` results for operands of these dtypes."""
        if self.writes:
            check_taken_in("arithmetic", dtypes[0], dtypes[-1])
        rule = self.dtype(dtypes, **attrs) if callable(self.dtype) else self.dtype
        rules = rule if isinstance(rule, tuple) else (rule,) * count
        named = [dtypes[r] if isinstance(r, int) else r for r in rules]
        return tuple([promoted(dtypes) if r is None else dtype_name(as_dtype(r)) for r in named])

    @property
    def names_labels(self) -> bool:
        """Whether the labels are the operator's own words ("k" of a matrix product), not letters by position."""
        return isinstance(self.signature, str) or isinstance(self.axes, str)

    @property
    def default_attrs(self) -> dict[str, Any]:
        """Attributes of a call that gives none."""
        return {**self.defaults, **self.options}

    def offset_labels(self, signature: Signature) -> str:
        """Labels whose first index on a rank the computation needs."""
        return (self.offset(signature) if callable(self.offset) else self.offset) or ""

    def part_sizes(self, shapes: Sequence[Shape], attrs: dict[str, Any], labels: str) -> tuple[int, ...]:
        """Extents of one rank's part along the offset labels, from the shapes of its slices."""
        if self.part_size is not None:
            part = self.part_size(shapes, attrs)
            return part if isinstance(part, tuple) else (part,)
        shapes = tuple(shapes)
        sizes = self.label_sizes(self.signature_for(shapes, attrs), shapes, attrs)
        return tuple(sizes[c] for c in labels)

    def whole_labels(self, signature: Signature, shapes: tuple[Shape, ...], attrs: dict[str, Any]) -> str:
        """Labels that must not be split."""
        return self.whole(signature, **attrs) if callable(self.whole) else self.whole

    def work_flops(self, shapes: tuple[Shape, ...], attrs: dict[str, Any]) -> int:
        """Floating-point operations for operands of these shapes."""
        if self.result_shape is not None:
            return max((math.prod(s) for s in shapes), default=0)
        signature = self.signature_for(shapes, attrs)
        sizes = self.result_sizes(self.label_sizes(signature, shapes, attrs), shapes, attrs)
        if self.flops == 0:
            return 0
        if isinstance(self.flops, int):
            return self.flops * math.prod(sizes.values())
        if self.flops is not None:
            return int(self.flops(SimpleNamespace(**sizes)))
        return math.prod(sizes[c] for c in signature.labels)


OPS: Table[OpDef] = Table()  # every operator, by the name of its function
CALLS: dict[str, OpDef] = {}  # communication as an operator of a traced network, by class name


# Equal layers ask for the same results. The attributes' text is part of the key: (2,) and (2.0,) are equal, and an
# operator may take one and refuse the other.
@lru_cache(maxsize=16_384)
def _inferred(
    op: OpDef, shapes: tuple[Shape, ...], dtypes: tuple[str, ...], text: str, names: tuple[str, ...], *values: Any
) -> Results:
    return op._infer(shapes, dtypes, dict(zip(names, values, strict=True)))


@lru_cache(maxsize=256)
def dtype_name(dtype: np.dtype) -> str:
    """str(dtype), which numpy formats again each time."""
    return str(dtype)
