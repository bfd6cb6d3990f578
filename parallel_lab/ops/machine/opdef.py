"""`OpDef`: everything known about one operator, what a call of it does, and what shapes and dtypes its results have.

The walk of one call, `ops.matmul(a, b)` or `ops.MatMul()(a, b)`:

    __call__   the function; element-wise operators on arrays or Tensors alone go straight to `fn` ("plain")
    call       also the class's way in; splits arguments into operands and attributes (`bind`), checks them (`examine`)
    _one       while a network is traced: `tracer.record`. Beside a Tensor: its `__parallel_lab_op__`, which keeps what
               a gradient needs and then calls `attempt`. Otherwise `attempt` itself
    attempt    `compute`, whose numpy errors become a ShapeError in words
    compute    the decorated function `fn` on arrays: a @ b. Ranks that run a plan enter here

An operator with several results is called once, and is one node of a graph: what a call gives is a tuple.

Values are inferred without running anything by `infer`: labels (`signature.py`) give shapes, `dtype` the dtype.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ...base.checks import Check, Errors, flag, no_tensor
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
from ...base.errors import ArgumentTypeError, OutOfMemory, ParallelLabError, ShapeError, shorten
from ...base.hooks import current_tracer
from ...base.seeds import repeated
from ..synonyms import own_names
from .operand_checks import Facts, is_operand, refuse
from .signature import Shape, Signature, resolve

OBJECT = np.dtype(object)
SHAPE_ERRORS = Errors(ShapeError, ShapeError)


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
    """Everything known about one operator. Built by `@op`; see the keyword arguments there."""

    name: str
    class_name: str
    fn: Callable
    signature: str | Callable | None
    positional: tuple[str, ...]
    tensors: tuple[str, ...]
    options: dict[str, Any]
    defaults: dict[str, Any]
    axes: str | Callable | None = None
    whole: str | Callable = ""
    reduce: str = "sum"
    mean: bool = False
    dtype: Callable | str | int | tuple | None = None
    sizes: Callable | None = None
    strategy_labels: Callable | None = None
    instead: str = ""
    out_sizes: Callable | None = None
    restrict: Callable | None = None
    batch: str | None = None
    held: Callable | None = None
    counted: Callable | None = None
    scatters: int | None = None
    devices: Callable | None = None
    uneven: Callable | None = None
    offset: str | Callable | None = None
    part_size: Callable | None = None
    window: Callable | None = None
    localize: Callable | None = None
    view: bool = False
    writes: bool = False
    message: str = ""  # the kind of message that it is, of communication called by hand
    attrs: dict[str, Callable] = field(default_factory=dict)
    check: Callable | None = None
    result_shape: Callable | int | tuple[int, ...] | None = None
    flops: Callable | int | None = None
    cases: tuple[Any, ...] = ()
    variadic: bool = False
    expand: Callable | None = None
    gradients: dict[str, OpDef] = field(default_factory=dict, repr=False)
    vjp_fn: Callable | None = None
    vjp_across: bool = False
    vjp_needs: bool = False
    vjp_total: bool = False
    internal: bool = False
    numbers: str | None = None
    host_only: bool = False  # in modes that split operators it runs where `set_device("CPU")` says
    __doc__: str | None = field(default=None, repr=False)

    # ---- calling ----

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.plain and not kwargs and len(args) == len(self.tensors) and current_tracer.get() is None:
            # the short way for what a tape does most: arrays of numbers of one dtype, element by element
            dtype = args[0].dtype if type(args[0]) is np.ndarray else OBJECT
            if dtype.kind in self.plain_kinds and all([type(x) is np.ndarray and x.dtype == dtype for x in args]):  # noqa: C419
                try:
                    return np.asarray(self.fn(*args))
                except (ValueError, TypeError):
                    pass  # shapes and dtypes that do not fit are refused in words below
            else:
                run = getattr(args[0], "__parallel_lab_plain__", None)
                result = NotImplemented if run is None else run(self, args)
                if result is not NotImplemented:
                    return result
        return self.call(args, kwargs)

    @cached_property
    def plain(self) -> bool:
        """Element by element, with tensors and nothing else as arguments."""
        simple = self.signature in ("...->...", "...,...->...") and self.positional == self.tensors and not self.options
        return simple and self.check is None and self.expand is None and not self.writes

    @cached_property
    def plain_kinds(self) -> str:
        """Kinds of dtypes that `fn` takes as they are, if the operator is `plain`: the others `compute` converts."""
        return "f" if self.dtype is float_result else "iuf" if self.dtype is number_result else "biuf"

    @cached_property
    def meets(self) -> Callable | None:
        """What makes one dtype of the operands' (MindSpore's implicit conversion); None: they stay as they are."""
        alone = self.writes or not (self.signature == "...,...->..." or self.dtype is None)
        return float_result if self.dtype is float_result else None if alone else promoted

    def call(self, args: Sequence[Any], kwargs: dict[str, Any], primitive: Any = None) -> Any:
        """Run at once, or record while tracing. Several results are a tuple.

        primitive  the Primitive that is called, with its strategy; None: the function
        """
        tracer = current_tracer.get()
        try:
            operands, attrs = self.bind(args, kwargs, as_class=primitive is not None)
            operands = self._as_arrays(operands, tracer is None)
            if self.attrs or self.check is not None:
                self.examine(operands, attrs)
            shapes = tuple([tuple(getattr(x, "shape", ())) for x in operands])
            if self.expand is not None:
                self.signature_for(shapes, attrs)  # its parts may take more than it does: a matrix product broadcasts
                return self.expand(operands, attrs, primitive)
            return self._one(operands, shapes, attrs, tracer, primitive)
        except ShapeError as error:
            if tracer is None or not hasattr(tracer, "where") or not str(error).startswith(f"{self.class_name}: "):
                raise
            # what the operator says of itself, with the place in the learner's network
            raise type(error)(tracer.where(self.class_name, primitive) + str(error)[len(self.class_name) :]) from None

    def examine_attrs(self, given: dict[str, Any]) -> None:
        """Raise ShapeError for attributes that no operands could go with: what their types and values alone say."""
        for name, value in given.items():
            check = flag if type(self.options.get(name)) is bool else self.attrs.get(name)
            check = getattr(check, "alone", check)
            if isinstance(check, Check):
                check(self.class_name, name, self._frozen({name: value})[name], SHAPE_ERRORS)

    def examine(self, operands: list[Any], attrs: dict[str, Any]) -> None:
        """Raise ShapeError for attributes and operands that the operator does not take."""
        facts = [Facts(x) for x in operands]
        for name, check in self.attrs.items():
            if isinstance(check, Check):
                check(self.class_name, name, attrs[name], SHAPE_ERRORS)
            else:
                refuse(self.class_name, check(name, attrs[name], facts[0].shape))
        if self.check is not None:
            refuse(self.class_name, self.check(facts, **attrs))

    def _one(
        self, operands: list[Any], shapes: tuple[Shape, ...], attrs: dict[str, Any], tracer: Any, primitive: Any
    ) -> Any:
        if tracer is not None:
            return tracer.record(self, operands, attrs, primitive)
        if self.writes:
            return self._written(operands, attrs)
        for operand in operands:
            handler = getattr(operand, "__parallel_lab_op__", None)
            if handler is not None:
                return handler(self, operands, attrs)
        if self.result_shape is None and not self.plain:
            self.signature_for(shapes, attrs)
        return self.attempt(operands, attrs)

    def _written(self, operands: list[Any], attrs: dict[str, Any]) -> Any:
        """The Parameter that is operand 0, after it took the result."""
        parameter, *others = operands
        if not hasattr(parameter, "set_data"):
            what = f"{self.tensors[0]} is {shorten(parameter)}"
            raise ArgumentTypeError(what, where=self.class_name, allowed="A Parameter: its value is replaced")
        arrays = [parameter.array, *(getattr(x, "array", x) if hasattr(x, "asnumpy") else x for x in others)]
        numbers = (bool, int, float)
        arrays = [scalar_operand(x, [parameter]) if type(x) in numbers else np.asarray(x) for x in arrays]
        self.infer(tuple([x.shape for x in arrays]), tuple([dtype_name(x.dtype) for x in arrays]), attrs)
        if (noting := repeated.get()) is not None:
            noting.writes(parameter)
        parameter.set_data(self.attempt(arrays, attrs))
        return parameter

    @cached_property
    def takes_number(self) -> tuple[bool, ...]:
        """For each tensor, whether a Python number may stand for it: `numbers=`, or what broadcasts among several."""
        if self.numbers is not None:
            return tuple(name in self.numbers.split() for name in self.tensors)
        labels = self.signature.partition("->")[0].split(",") if isinstance(self.signature, str) else self.tensors
        several = len(labels) == len(self.tensors) > 1
        return tuple([self.internal or (several and each in ("", "...")) for each in labels])

    def _as_arrays(self, operands: list[Any], at_once: bool) -> list[Any]:
        """The operands; at once, numbers become arrays unless another has a dtype for them. ShapeError: no tensor."""
        known = [is_operand(x) for x in operands]
        beside = any(known) or not at_once
        return (
            operands
            if all(known)
            else [x if known[i] else self._as_array(i, x, beside) for i, x in enumerate(operands)]
        )

    def _as_array(self, position: int, value: Any, beside: bool) -> Any:
        number = not self.variadic and self.takes_number[position]
        if number and isinstance(value, (bool, int, float)):
            array = value if beside else scalar_operand(value, ())
            if beside or array.dtype.kind in "biuf":
                return array
        name = "" if self.variadic else f" ({self.tensors[position]})"
        raise no_tensor(ShapeError, self.class_name, f"operand {position}{name} is ", value, number)

    def attempt(self, arrays: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """`compute`; what numpy cannot do raises ShapeError with the operator's name."""
        try:
            return self.compute(*arrays, **attrs)
        except ParallelLabError:
            raise
        except MemoryError as error:
            raise OutOfMemory(str(error), where=self.class_name) from None
        except (ArithmeticError, IndexError, TypeError, ValueError) as error:
            facts = [Facts(x) for x in arrays]
            # where shapes and dtypes say what is wrong, inference has the words
            self.infer(tuple(f.shape for f in facts), tuple(str(f.dtype) for f in facts), attrs)
            given = " and ".join(f"{f.dtype} {f.shape}" for f in facts)
            raise ShapeError(f"it cannot be computed for {given}: {error}", where=self.class_name) from error

    def compute(self, *arrays: Any, **attrs: Any) -> Any:
        """The numpy computation itself: arrays in, array out; several results are a tuple of arrays."""
        if self.expand is not None:
            return self.expand(list(arrays), attrs, None)
        # of subclasses the array: to an np.matrix * is another product
        arrays = tuple([np.asarray(x) if isinstance(x, np.ndarray) else x for x in arrays])
        if not self.view and any([is_bfloat16(getattr(x, "dtype", FLOAT32)) for x in arrays]):  # noqa: C419
            return self._rounded(arrays, attrs)
        several, rule = len({getattr(x, "dtype", None) for x in arrays}) > 1, self.meets
        if rule is not None and (several or (rule is float_result and arrays[0].dtype.kind != "f")):
            arrays = alike(arrays, self.class_name, rule)
        if self.dtype is number_result and all([getattr(x, "dtype", FLOAT32).kind == "b" for x in arrays]):  # noqa: C419
            raise TypeError  # numpy does not refuse them all
        if self.variadic:
            made = self.fn(*arrays, **attrs)
        else:
            # by name: a static parameter may stand between two tensors (one_hot's depth)
            made = self.fn(**dict(zip(self.tensors, arrays, strict=True)), **attrs)
        return tuple([np.asarray(each) for each in made]) if isinstance(made, tuple) else np.asarray(made)

    def _rounded(self, arrays: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """`compute` in float32 where operands are bfloat16; the results in the dtypes that inference says."""
        dtypes = tuple(str(x.dtype if hasattr(x, "dtype") else scalar_operand(x, arrays).dtype) for x in arrays)
        made = self.compute(*map(in_float32, arrays), **attrs)
        several = made if isinstance(made, tuple) else (made,)
        known = {name: value for name, value in attrs.items() if name != "offset"}
        wanted = self.result_dtypes(dtypes, known, len(several))
        rounded = tuple(x.astype(dtype, copy=False) for x, dtype in zip(several, wanted, strict=True))
        return rounded if isinstance(made, tuple) else rounded[0]

    def bind(
        self, args: Sequence[Any], kwargs: dict[str, Any], *, as_class: bool = False
    ) -> tuple[list[Any], dict[str, Any]]:
        """Split call arguments into tensor operands and attributes; attributes at their default are kept too.

        as_class  attributes of the class were given to its constructor: by position the call takes tensors and the
                  attributes given with them only
        """
        if self.plain and not kwargs and len(args) == len(self.tensors):
            return list(args), {}
        if self.variadic:
            in_one = args and isinstance(args[0], (tuple, list))
            operands, args = (list(args[0]), args[1:]) if in_one else (list(args), ())
            usage, names = f"{self.name}(tensors, {', '.join(self.options)})", tuple(self.options)
        else:
            usage, names = f"{self.name}({', '.join([*self.positional, *self.options])})", self.positional
            names = names if as_class else (*names, *self.options)
        if len(args) > len(names):
            raise ShapeError(f"got {len(args)} arguments", where=self.name, allowed=usage)
        if self.variadic and not operands and isinstance(kwargs.get("tensors"), (tuple, list)):
            operands, kwargs = list(kwargs["tensors"]), {k: v for k, v in kwargs.items() if k != "tensors"}
        given = dict(zip(names, args, strict=False))
        given.update(own_names(kwargs, (*self.positional, *self.options), given))
        unknown = [k for k in given if k not in self.positional and k not in self.options]
        missing = [k for k in self.positional if k not in given and k not in self.defaults]
        missing += [k for k, default in self.options.items() if default is inspect.Parameter.empty and k not in given]
        if unknown or missing:
            fault = f"unknown argument {unknown[0]!r}" if unknown else f"missing argument {missing[0]!r}"
            raise ShapeError(fault, where=self.name, allowed=usage)
        attrs = {**self.defaults, **self.options, **given}
        if not self.variadic:
            operands = [attrs.pop(name) for name in self.tensors]
        elif not operands:
            raise ShapeError("got no tensors", where=self.name, allowed=usage)
        for name, value in attrs.items():
            if hasattr(value, "asnumpy"):
                # what MindSpore gives to the class (`kernel_size`) is no tensor there
                given_at_call = name not in self.options and not hasattr(value, "tracer")
                if given_at_call and str(value.dtype).lstrip("u").startswith("int"):
                    attrs[name] = value.asnumpy().tolist()  # a Tensor of axes is as good as a tuple
                    continue
                allowed = "Attributes are Python numbers or tuples, known before anything runs"
                raise ShapeError(f"attribute {name} is a tensor", where=self.class_name, allowed=allowed)
            if isinstance(self.options.get(name), bool) and not isinstance(value, (bool, np.bool_)):
                raise ShapeError(f"{name}={shorten(value)}", where=self.class_name, allowed="True or False")
        return operands, self._frozen(attrs)

    def _frozen(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Attributes as `frozen_attr` writes them. Raises ShapeError."""
        try:
            return {k: frozen_attr(v) for k, v in attrs.items()}
        except (RecursionError, TypeError):  # a list that contains itself, a dtype of several
            allowed = "Attributes are Python numbers, texts, dtypes, or tuples of them"
            raise ShapeError(f"attributes {shorten(attrs)}", where=self.class_name, allowed=allowed) from None

    def vjp(self, fn: Callable) -> Callable:
        """Decorator: `fn(g, out, *operands, **attrs)` returns one gradient, or None, per operand, by operators.

        Of several results `g` and `out` are tuples. The gradient of one that the loss does not depend on is None.

        A rule that names a parameter `across` is given a function `across(value, reduce="sum")` that combines a value
        over the ranks among which a reduction was split; one that names `needs` is given a tuple of bools, which
        operands' gradients are asked for, so that costly ones for data are not computed.
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
        known = signature.sizes(shapes)
        if self.sizes is not None:
            known.update(self.sizes(shapes, **attrs))
        return known

    def result_sizes(self, known: dict[str, int], shapes: tuple[Shape, ...], attrs: dict[str, Any]) -> dict[str, int]:
        """Extent of every label in the result; `known` are those in the operands."""
        return known if self.out_sizes is None else {**known, **self.out_sizes(shapes, **attrs)}

    def infer(
        self, shapes: tuple[Shape, ...], dtypes: tuple[str, ...], attrs: dict[str, Any], where: str = ""
    ) -> Results:
        """Shapes and dtypes of the results. Raises ShapeError that names `where`."""
        try:
            return _inferred(self, shapes, dtypes, repr(attrs), tuple(attrs), *attrs.values())
        except (ParallelLabError, TypeError):  # refused, here with its place; or an attribute that cannot be a key
            return self._infer(shapes, dtypes, attrs, where)

    def _infer(
        self, shapes: tuple[Shape, ...], dtypes: tuple[str, ...], attrs: dict[str, Any], where: str = ""
    ) -> Results:
        rule = self.result_shape
        if rule is None:
            signature = self.signature_for(shapes, attrs, where)
            known = self.result_sizes(self.label_sizes(signature, shapes, attrs), shapes, attrs)
            made = tuple([tuple([1 if c == "1" else known[c] for c in labels]) for labels in signature.outs])
            if self.view:
                made = (tuple(self.sizes(shapes, **attrs)["shape"]),)
            several = signature.several
        else:
            given = rule(shapes, **attrs) if callable(rule) else rule
            if not callable(rule):
                given = tuple([shapes[i] for i in rule]) if isinstance(rule, tuple) else shapes[rule]
            several = len(given) > 0 and isinstance(given[0], tuple)
            made = tuple(given) if several else (tuple(given),)
        try:
            return Results(made, self.result_dtypes(dtypes, attrs, len(made)), several)
        except ShapeError as error:  # of a rule about dtypes, which does not know whose it is
            raise type(error)((where or self.class_name) + str(error).removeprefix("arithmetic")) from None

    def result_dtypes(self, dtypes: tuple[str, ...], attrs: dict[str, Any], count: int) -> tuple[str, ...]:
        """Names of the dtypes of `count` results for operands of these dtypes."""

        if self.writes:
            check_taken_in("arithmetic", dtypes[0], dtypes[-1])
        rule = self.dtype(dtypes, **attrs) if callable(self.dtype) else self.dtype
        rules = rule if isinstance(rule, tuple) else (rule,) * count
        return tuple(
            [
                promoted(dtypes) if r is None else dtypes[r] if isinstance(r, int) else dtype_name(as_dtype(r))
                for r in rules
            ]
        )

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
            made = self.part_size(shapes, attrs)
            return made if isinstance(made, tuple) else (made,)
        shapes = tuple(shapes)
        known = self.label_sizes(self.signature_for(shapes, attrs), shapes, attrs)
        return tuple(known[c] for c in labels)

    def whole_labels(self, signature: Signature, shapes: tuple[Shape, ...], attrs: dict[str, Any]) -> str:
        """Labels that must not be split."""
        return self.whole(signature, **attrs) if callable(self.whole) else self.whole

    def work_flops(self, shapes: tuple[Shape, ...], attrs: dict[str, Any]) -> int:
        """Floating-point operations for operands of these shapes."""
        if self.result_shape is not None:
            return max((math.prod(s) for s in shapes), default=0)
        signature = self.signature_for(shapes, attrs)
        known = self.result_sizes(self.label_sizes(signature, shapes, attrs), shapes, attrs)
        if self.flops == 0:
            return 0
        if isinstance(self.flops, int):
            return self.flops * math.prod(known.values())
        if self.flops is not None:
            return int(self.flops(SimpleNamespace(**known)))
        return math.prod(known[c] for c in signature.labels)


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


def frozen_attr(value: Any) -> Any:
    """An attribute as plain, hashable Python: tuples for lists and arrays, Python's numbers, dtypes as str."""
    if isinstance(value, (list, tuple)):
        return tuple(frozen_attr(v) for v in value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return frozen_attr(value.tolist())
    if isinstance(value, (np.dtype, type)):
        return str(np.dtype(value))
    return value
