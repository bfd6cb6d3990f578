"""`@op`: an operator, declared once.

    @op("mk,kn->mn", axes="mkn", example=case((16, 8), (8, 24)))
    def matmul(a, b):
        \"\"\"Matrix product.  a: (m, k), b: (k, n) -> (m, n).\"\"\"
        return a @ b

    @matmul.vjp
    def _(g, out, a, b):
        return matmul(g, b, transpose_b=True), matmul(a, g, transpose_a=True)

From the declaration follow: the function `matmul(a, b)`, which runs at once on arrays and Tensors and is recorded while a Cell is traced; the class
`ops.MatMul`, whose instances carry a strategy (`.shard(...)`); shape inference; the sharding rule and its refusals (`sharding.py`); and the test
battery.

Parameters without a default are tensors, except those named in `static`. Positional parameters with a default are attributes given at the call
(`reduce_sum(x, axis)`), keyword-only ones are attributes of the class (`ReduceSum(keep_dims=True)`), as in MindSpore.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..context import current_tracer, get_compat
from ..errors import ArgumentTypeError, ParallelLabError, ShapeError, StrategyError, StrategyTypeError, message, shorten
from ..named_layout import Layout
from ..origin import Origin, caller
from .placement import TARGET, Placed, refuse_placement, refuse_recompute
from .signature import Shape, Signature, resolve

__all__ = ["OPS", "Case", "OpDef", "Primitive", "case", "check_dim", "check_ints", "check_strategy_value", "dtype_name", "op", "scalar_operand"]

OPS: dict[str, OpDef] = {}
PRIMITIVES: dict[str, type[Primitive]] = {}

SWITCHES = ("cross_batch", "enable_nd_tp")  # attributes that the compiler reads as True or False

Strategy = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Case:
    """One example of an operator, from which the battery draws its data: operand shapes, attributes, and the range of values.

    ints   upper bound (exclusive) of integer operands by position; bools: positions of operands that are True or False
    Other operands are floats drawn between `low` and `high`.
    """

    shapes: tuple[Shape, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    low: float = -2.0
    high: float = 2.0
    ints: tuple[tuple[int, int], ...] = ()
    bools: tuple[int, ...] = ()

    def arrays(self, rng: np.random.Generator, dtype: Any = np.float64) -> list[np.ndarray]:
        """One array per operand, drawn with `rng`; floats have `dtype`."""
        ints = dict(self.ints)
        return [
            rng.integers(0, ints[i], shape).astype(np.int32)
            if i in ints
            else rng.integers(0, 2, shape).astype(bool)
            if i in self.bools
            else np.asarray(rng.uniform(self.low, self.high, shape), dtype)
            for i, shape in enumerate(self.shapes)
        ]


def case(*shapes: Shape, low: float = -2.0, high: float = 2.0, ints: dict[int, int] | None = None, bools: Sequence[int] = (), **attrs: Any) -> Case:
    """A `Case`: `case((16, 8), axis=0, low=0.1)`."""
    return Case(tuple(shapes), tuple(attrs.items()), low, high, tuple((ints or {}).items()), tuple(bools))


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
    dtype: Callable | str | None = None
    sizes: Callable | None = None
    strategy_labels: Callable | None = None
    instead: str = ""
    out_sizes: Callable | None = None
    restrict: Callable | None = None
    outputs: Callable | None = None
    offset: str | Callable | None = None
    part_size: Callable | None = None
    window: Callable | None = None
    localize: Callable | None = None
    view: bool = False
    check: Callable | None = None
    infer_fn: Callable | None = None
    flops: Callable | None = None
    cases: tuple[Case, ...] = ()
    variadic: bool = False
    expand: Callable | None = None
    vjp_fn: Callable | None = None
    vjp_across: bool = False
    vjp_needs: bool = False
    internal: bool = False
    __doc__: str | None = field(default=None, repr=False)

    # ---- calling ----

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.plain and not kwargs and len(args) == len(self.tensors) and current_tracer.get() is None:
            # the short way for what a tape does most: arrays of numbers, element by element
            if all([type(x) is np.ndarray for x in args]):  # noqa: C419 - a list is faster than a generator here
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
        simple = self.signature in ("...->...", "...,...->...") and self.check is None and self.expand is None and self.outputs is None
        return simple and self.positional == self.tensors and not self.options

    def call(self, args: Sequence[Any], kwargs: dict[str, Any], primitive: Primitive | None = None, only: int | None = None) -> Any:
        """Run on arrays or Tensors, or record while tracing. An operator with several results gives a tuple, or the one numbered `only`."""
        tracer = current_tracer.get()
        try:
            return self._called(args, kwargs, primitive, only, tracer)
        except ShapeError as error:
            if tracer is None or not hasattr(tracer, "where") or not str(error).startswith(f"{self.class_name}: "):
                raise
            # what the operator says of itself, with the place in the learner's network
            raise type(error)(tracer.where(self.class_name, primitive) + str(error)[len(self.class_name) :]) from None

    def _called(self, args: Sequence[Any], kwargs: dict[str, Any], primitive: Primitive | None, only: int | None, tracer: Any) -> Any:
        operands, attrs = self.bind(args, kwargs, as_class=primitive is not None)
        if tracer is None:
            operands = self._as_arrays(operands)
        if self.check is not None:
            self.check(self.class_name, [_Facts(x) for x in operands], **attrs)
        if self.expand is not None:
            # its parts may take more than it does: a product of matrices broadcasts
            self.signature_for(tuple(tuple(getattr(x, "shape", ())) for x in operands), attrs)
            return self.expand(operands, attrs if only is None else {**attrs, "index": only}, primitive)
        if only is not None:
            return self._one(operands, {**attrs, "index": only}, tracer, primitive)
        if self.outputs is not None:
            count = self.outputs(tuple(tuple(getattr(x, "shape", ())) for x in operands), **attrs)
            return tuple(self._one(operands, {**attrs, "index": i}, tracer, primitive) for i in range(count))
        return self._one(operands, attrs, tracer, primitive)

    def result(self, index: int, *args: Any, **kwargs: Any) -> Any:
        """One of several results; the others are not computed."""
        return self.call(args, kwargs, only=index)

    def _one(self, operands: list[Any], attrs: dict[str, Any], tracer: Any, primitive: Primitive | None) -> Any:
        if tracer is not None:
            return tracer.record(self, operands, attrs, primitive)
        for operand in operands:
            handler = getattr(operand, "__parallel_lab_op__", None)
            if handler is not None:
                return handler(self, operands, attrs)
        if self.infer_fn is None and not self.plain:
            self.signature_for(tuple([getattr(x, "shape", ()) for x in operands]), attrs)
        return self.attempt(operands, attrs)

    def _as_arrays(self, operands: list[Any]) -> list[Any]:
        """Lists become arrays; numbers too, unless an operand beside them has a dtype that they take. Raises ShapeError for what is no array."""
        alone = not any(hasattr(x, "dtype") for x in operands)
        return [
            x if hasattr(x, "dtype") or (not alone and isinstance(x, (bool, int, float))) else self._as_array(i, x) for i, x in enumerate(operands)
        ]

    def _as_array(self, position: int, value: Any) -> np.ndarray:
        try:
            array = scalar_operand(value, ()) if isinstance(value, (bool, int, float)) else np.asarray(value)
        except (ValueError, TypeError):  # rows of different lengths
            array = None
        if array is None or array.dtype.kind not in "biuf":
            what = f"operand {position}{'' if self.variadic else f' ({self.tensors[position]})'} is {shorten(value)}"
            raise ShapeError(message(what, where=self.class_name, allowed="A Tensor, an array, or numbers in a rectangular shape"))
        return array

    def attempt(self, arrays: Sequence[Any], attrs: dict[str, Any]) -> np.ndarray:
        """`compute`; what numpy cannot do raises ShapeError with the operator's name."""
        try:
            return self.compute(*arrays, **attrs)
        except ParallelLabError:
            raise
        except (ArithmeticError, IndexError, TypeError, ValueError) as error:
            facts = [_Facts(x) for x in arrays]
            # where shapes and dtypes say what is wrong, inference has the words
            self.infer(tuple(f.shape for f in facts), tuple(str(f.dtype) for f in facts), attrs)
            given = " and ".join(f"{f.dtype} {f.shape}" for f in facts)
            raise ShapeError(message(f"it cannot be computed for {given}: {error}", where=self.class_name)) from error

    def compute(self, *arrays: Any, **attrs: Any) -> np.ndarray:
        """The numpy computation itself: arrays in, array out. Of several results, the one that `index` names."""
        if self.expand is not None:
            return self.expand(list(arrays), attrs, None)
        if self.variadic:
            return np.asarray(self.fn(*arrays, **attrs))
        # by name: a static parameter may stand between two tensors (one_hot's depth)
        return np.asarray(self.fn(**dict(zip(self.tensors, arrays, strict=True)), **attrs))

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any], *, as_class: bool = False) -> tuple[list[Any], dict[str, Any]]:
        """Split call arguments into tensor operands and attributes; attributes at their default are kept too.

        as_class  attributes of the class were given to its constructor: by position the call takes tensors and the attributes given with them only
        """
        if self.variadic:
            operands, args = (list(args[0]), args[1:]) if args and isinstance(args[0], (tuple, list)) else (list(args), ())
            usage, names = f"{self.name}(tensors, {', '.join(self.options)})", tuple(self.options)
        else:
            usage, names = f"{self.name}({', '.join([*self.positional, *self.options])})", self.positional
            names = names if as_class else (*names, *self.options)
        if len(args) > len(names):
            raise ShapeError(message(f"got {len(args)} arguments", where=self.name, allowed=usage))
        given = dict(zip(names, args, strict=False))
        given.update(kwargs)
        unknown = [k for k in given if k not in self.positional and k not in self.options]
        missing = [k for k in self.positional if k not in given and k not in self.defaults]
        missing += [k for k, default in self.options.items() if default is inspect.Parameter.empty and k not in given]
        if unknown or missing:
            fault = f"unknown argument {unknown[0]!r}" if unknown else f"missing argument {missing[0]!r}"
            raise ShapeError(message(fault, where=self.name, allowed=usage))
        attrs = {**self.defaults, **self.options, **given}
        if not self.variadic:
            operands = [attrs.pop(name) for name in self.tensors]
        elif not operands:
            raise ShapeError(message("got no tensors", where=self.name, allowed=usage))
        for name, value in attrs.items():
            if hasattr(value, "asnumpy"):
                what = f"attribute {name} is a tensor"
                raise ShapeError(message(what, where=self.class_name, allowed="Attributes are Python numbers or tuples, known before anything runs"))
            if isinstance(self.options.get(name), bool) and not isinstance(value, (bool, np.bool_)):
                raise ShapeError(message(f"{name}={shorten(value)}", where=self.class_name, allowed="True or False"))
        return operands, {k: _frozen_attr(v) for k, v in attrs.items()}

    def vjp(self, fn: Callable) -> Callable:
        """Decorator: `fn(g, out, *operands, **attrs)` returns one gradient (or None) per operand, written with operators.

        A rule that names a parameter `across` is given a function `across(value, reduce="sum")` that combines a value over the ranks among which a
        reduction was split; one that names `needs` is given a tuple of bools, which operands' gradients are asked for, so that costly ones for data
        are not computed.
        """
        names = inspect.signature(fn).parameters
        self.vjp_fn, self.vjp_across, self.vjp_needs = fn, "across" in names, "needs" in names
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

    def infer(self, shapes: tuple[Shape, ...], dtypes: tuple[str, ...], attrs: dict[str, Any], where: str = "") -> tuple[Shape, str]:
        """Shape and dtype of the result."""
        if self.infer_fn is not None:
            return tuple(self.infer_fn(shapes, **attrs)), self.result_dtype(dtypes, attrs)
        signature = self.signature_for(shapes, attrs, where)
        known = self.result_sizes(self.label_sizes(signature, shapes, attrs), shapes, attrs)
        shape = tuple(1 if c == "1" else known[c] for c in signature.out)
        if self.view:
            shape = tuple(self.sizes(shapes, **attrs)["shape"])
        return shape, self.result_dtype(dtypes, attrs)

    def result_dtype(self, dtypes: tuple[str, ...], attrs: dict[str, Any]) -> str:
        """Name of the result's dtype for operands of these dtypes."""
        if callable(self.dtype):
            return dtype_name(np.dtype(self.dtype(dtypes, **attrs)))
        if self.dtype is not None:
            return self.dtype
        return _common_dtype(dtypes)

    @property
    def names_labels(self) -> bool:
        """Whether the labels are the operator's own words ("k" of a matrix product), not letters dealt out by position."""
        return isinstance(self.signature, str) or isinstance(self.axes, str)

    @property
    def default_attrs(self) -> dict[str, Any]:
        """Attributes of a call that gives none; the first of several results."""
        return {**self.defaults, **self.options, **({} if self.outputs is None else {"index": 0})}

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
        """Labels that must not be cut."""
        return self.whole(signature, **attrs) if callable(self.whole) else self.whole

    def work_flops(self, shapes: tuple[Shape, ...], attrs: dict[str, Any]) -> int:
        """Floating-point operations for operands of these shapes."""
        if self.infer_fn is not None:
            return max((math.prod(s) for s in shapes), default=0)
        signature = self.signature_for(shapes, attrs)
        known = self.result_sizes(self.label_sizes(signature, shapes, attrs), shapes, attrs)
        if self.flops is not None:
            return int(self.flops(SimpleNamespace(**known)))
        return math.prod(known[c] for c in signature.labels)


@lru_cache(maxsize=256)
def dtype_name(dtype: np.dtype) -> str:
    """str(dtype), which numpy puts together anew each time."""
    return str(dtype)


@lru_cache(maxsize=256)
def _common_dtype(dtypes: tuple[str, ...]) -> str:
    return str(np.result_type(*(np.dtype(d) for d in dtypes)))


class _Facts:
    """Shape and dtype of an operand, whatever it is: what `check=` functions look at."""

    __slots__ = ("dtype", "shape")

    def __init__(self, operand: Any) -> None:
        if not hasattr(operand, "dtype"):
            operand = np.asarray(operand)
        dtype = operand.dtype
        self.shape, self.dtype = tuple(operand.shape), dtype if isinstance(dtype, np.dtype) else np.dtype(str(dtype))


def check_dim(where: str, name: str, dim: Any, ndim: int, shape: Any = None) -> int:
    """`dim` counted from the front; ShapeError unless it is an int that names one of `ndim` dims."""
    if isinstance(dim, bool) or not isinstance(dim, int) or not -ndim <= dim < ndim:
        given = f"{name}={shorten(dim)}" + ("" if shape is None else f" for a tensor of shape {shape}")
        allowed = f"An int from {-ndim} to {ndim - 1}" if ndim else "A tensor with dims"
        raise ShapeError(message(given, where=where, allowed=allowed))
    return dim % ndim


def check_ints(where: str, operand: _Facts, what: str) -> None:
    """ShapeError unless the operand has an integer dtype: class numbers."""
    if operand.dtype.kind not in "iu":
        hint = "Convert them: labels.astype('int32')" if operand.dtype.kind == "f" else ""
        raise ShapeError(message(f"the {what} are {operand.dtype}", where=where, allowed=f"The {what} must be ints: class numbers", hint=hint))


def _frozen_attr(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_frozen_attr(v) for v in value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return _frozen_attr(value.tolist())
    if isinstance(value, (np.dtype, type)):
        return str(np.dtype(value))
    return value


def scalar_operand(value: Any, others: Sequence[Any]) -> np.ndarray:
    """A Python number beside tensors, as a 0-d array: it takes their dtype, unless that would lose its fraction.

    others  the other operands; anything with a `dtype`
    """
    dtypes = [o.dtype if isinstance(o.dtype, np.dtype) else np.dtype(str(o.dtype)) for o in others if hasattr(o, "dtype")]
    if not dtypes:
        return np.asarray(value, np.float32 if isinstance(value, float) else None)
    dtype = np.result_type(*dtypes)
    if isinstance(value, float) and dtype.kind in "iub":
        dtype = np.dtype(np.float32)
    return np.asarray(value, dtype)


def op(
    signature: str | Callable | None = None,
    *,
    name: str | None = None,
    aliases: Sequence[str] = (),
    static: Sequence[str] = (),
    example: Case | Sequence[Case] = (),
    expand: Callable | None = None,
    **facts: Any,
) -> Callable[[Callable], OpDef]:
    """Declare an operator.

    signature  labels ("mk,kn->mn"), or a function of (operand shapes, **attributes) that returns them
    name       class name in MindSpore, "MatMul"; None for an operator that only vjp rules and optimizers use
    aliases    further class names
    static     parameters without a default that are attributes, not tensors
    example    one or several `case(...)`: the battery's data
    axes       labels in the order of the device matrix, the batch dim first; or a function of the signature (default: order of appearance); those
               left out must be whole, and have no axis
    whole      labels that must not be cut, or a function of (signature, **attributes)
    instead    the form whose whole labels may be cut, named where a strategy is refused: "SoftmaxExpand"
    reduce     how partial results over a cut, reduced label combine: "sum", "max", "min" or "prod"; "same" if every rank has the whole result already
    mean       the combined result is divided by the number of parts (means)
    dtype      result dtype: a name, or a function of (operand dtypes, **attributes); default: numpy's promotion
    sizes      function of (shapes, **attributes): extents of labels that only the result has
    out_sizes  function of (shapes, **attributes): extents in the result of labels that have another one there (a convolution's height and width)
    restrict   function of (signature, {label: parts}, {label: extent}, **attributes): None, or (what is wrong with these cuts, what is allowed)
    outputs    function of (shapes, **attributes): how many results there are. The function then has a keyword-only parameter `index`, the number of
               the one it computes, a call gives a tuple, and every result is an operator of its own in the graph
    strategy_labels  function of the signature: labels of each strategy tuple where they differ from the operands' labels
    offset     label, or labels, whose first index on this rank the computation needs, passed as `offset=`: an int for one label, a tuple for several;
               or a function of the signature
    part_size  function of (slice shapes, attributes): extent of one rank's part of that label (a tuple for several), where the slices' shapes do
               not tell; in an internal operator: that it needs the place its caller has
    window     function of (extents, parts per label, **attributes): {label of operand 0: (step, origin, length)} for cut labels whose slices do not
               suffice: part i needs the elements [step * i + origin, + length), zeros outside
    localize   function of (attributes, parts per label) -> attributes for one slice
    check      function of (class name, operands with shape and dtype, **attributes) that raises ShapeError for what the operator cannot take; called
               before it runs or is recorded
    infer_fn   function of (shapes, **attributes) -> result shape, for operators without labels; they take no strategy and appear only in vjp rules
    view       the result is the operand's data in another shape; sharded by redistribution, takes no strategy
    flops      function of a namespace of label extents
    expand     what a call does for an operator made of others (see `composed.py`)
    """

    def declare(fn: Callable) -> OpDef:
        positional, tensors, options, defaults, variadic = [], [], {}, {}, False
        for parameter in list(inspect.signature(fn).parameters.values())[1 if expand is not None else 0 :]:
            if parameter.kind is parameter.KEYWORD_ONLY:
                if parameter.name not in ("offset", "index"):
                    options[parameter.name] = parameter.default
                continue
            if parameter.kind is parameter.VAR_POSITIONAL:
                variadic = True
                continue
            positional.append(parameter.name)
            if parameter.default is not parameter.empty:
                defaults[parameter.name] = parameter.default
            elif parameter.name not in static:
                tensors.append(parameter.name)
        cases = (example,) if isinstance(example, Case) else tuple(example)
        made = OpDef(
            name=fn.__name__,
            class_name=name or "".join(part.title() for part in fn.__name__.split("_")),
            fn=fn,
            signature=signature,
            positional=tuple(positional),
            tensors=tuple(tensors),
            options=options,
            defaults=defaults,
            cases=cases,
            variadic=variadic,
            internal=name is None,
            __doc__=fn.__doc__,
            **facts,
        )
        if expand is not None:
            made.expand = partial(expand, made)
        if made.name in OPS:
            raise ValueError(f"operator {made.name!r} is declared twice")
        OPS[made.name] = made
        for class_name in (name, *aliases) if name else ():
            PRIMITIVES[class_name] = type(class_name, (Primitive,), {"op": made, "__doc__": fn.__doc__, "__module__": "parallel_lab.ops"})
        return made

    return declare


def check_strategy_value(strategy: Any, where: str, what: str = "strategy") -> Strategy | tuple[Layout, ...]:
    """A strategy checked as far as one can without shapes: tuple of tuples of ints that are powers of two, or tuple of layouts.

    Raises StrategyTypeError for wrong types, StrategyError for counts below 1 or not powers of two and for a Layout that was not called.
    """
    if not isinstance(strategy, tuple):
        raise StrategyTypeError(
            message(
                f"{what} {shorten(strategy)} is a {type(strategy).__name__}",
                where=where,
                allowed="A tuple with one tuple per input, one int per dim, or with one layout per input",
                hint=f"For one input write ({strategy!r},)"
                if isinstance(strategy, Layout)
                else "For example ((2, 4), (4, 1)); mind the comma in ((2, 4),)",
            )
        )
    if any(isinstance(entry, Layout) for entry in strategy):
        return _check_layouts(strategy, where, what)
    for position, cuts in enumerate(strategy):
        if not isinstance(cuts, tuple):
            raise StrategyTypeError(
                message(
                    f"{what} {shorten(strategy)} has a {type(cuts).__name__} at input {position}",
                    where=where,
                    allowed="A tuple with one tuple per input, one int per dim, or with one layout per input",
                    hint=f"For one input write ({shorten(strategy)},)" if all(isinstance(c, int) for c in strategy) else "",
                )
            )
        for dim, count in enumerate(cuts):
            if isinstance(count, bool) or not isinstance(count, int):
                raise StrategyTypeError(
                    message(f"{what} {shorten(strategy)} has {shorten(count)} at input {position}, dim {dim}", where=where, allowed="Counts are ints")
                )
            if count < 1 or count & (count - 1):
                near = 1 if count < 1 else 1 << (count.bit_length() - 1)
                corrected = (*cuts[:dim], near, *cuts[dim + 1 :])
                better = (*strategy[:position], corrected, *strategy[position + 1 :])  # what comes behind is as it was given, right or wrong
                raise StrategyError(
                    message(
                        f"{what} {shorten(strategy)} cuts dim {dim} of input {position} {count} ways",
                        where=where,
                        allowed="Counts are powers of two: 1, 2, 4, 8, ...",
                        hint=f"Try {shorten(better)}",
                    )
                )
    return strategy


def _check_layouts(strategy: tuple, where: str, what: str) -> tuple[Layout, ...]:
    """A strategy of layouts, checked as far as one can without shapes."""
    for position, layout in enumerate(strategy):
        if not isinstance(layout, Layout):
            raise StrategyTypeError(
                message(
                    f"{what} {shorten(strategy)} has {shorten(layout)} of type {type(layout).__name__} at input {position}",
                    where=where,
                    allowed="Layouts only, or tuples of ints only: the two do not mix",
                    hint="Write layout() for a number, or for an input whose cuts follow from the others" if layout == () else "",
                )
            )
        if layout.dims is None:
            raise StrategyError(
                message(
                    f"{what} has {layout!r} at input {position}, which places no tensor yet",
                    where=where,
                    allowed="Layouts that were called with one entry per dim",
                    hint=f"For example {layout!r}({layout.alias_name[0]!r}, 'None')",
                )
            )
        for dim, axes in enumerate(layout.axes):
            for size, name in ((layout.device_matrix[-1 - a], layout.alias_name[-1 - a]) for a in axes):
                if size & (size - 1):
                    given = f"{what} {layout!r} cuts dim {dim} of input {position} by {name!r}, {size} ways"
                    raise StrategyError(message(given, where=where, allowed="Counts are powers of two: 1, 2, 4, 8, ..."))
    return strategy


class Primitive(Placed):
    """An operator as an object, as in MindSpore: `ops.MatMul(transpose_b=True).shard(((2, 4), (4, 1)))`.

    Attributes of the operator are given to the constructor, tensors to the call. One instance carries one strategy.

    called_with  of an operator made of others, which is no line of the graph: (shapes of the operands, attributes) of its last call
    """

    op: OpDef
    called_with: tuple[tuple[tuple[int, ...], ...], dict[str, Any]] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = list(self.op.options)
        if len(args) > len(names):
            raise ShapeError(message(f"got {len(args)} arguments", where=type(self).__name__, allowed=f"Attributes: {', '.join(names) or 'none'}"))
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        unknown = [k for k in given if k not in names]
        if unknown:
            raise ShapeError(
                message(f"unknown attribute {unknown[0]!r}", where=type(self).__name__, allowed=f"Attributes: {', '.join(names) or 'none'}")
            )
        self._begin_with(given)

    def _begin_with(self, attrs: dict[str, Any]) -> None:
        self.attrs = attrs
        self.instance_name = ""
        self.in_strategy: Strategy | tuple[Layout, ...] | None = None
        self.out_strategy: Strategy | tuple[Layout, ...] | None = None
        self.strategy_origin: Origin | None = None
        self.prim_attrs: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """Class name, as the IR prints it."""
        return type(self).__name__

    @property
    def takes_strategy(self) -> bool:
        """Whether `shard` can say how the operands are cut; an operator such as Reshape passes on the layout of its producer."""
        return not self.op.view

    def shard(self, in_strategy: Strategy | tuple[Layout, ...] | None = None, out_strategy: Strategy | tuple[Layout, ...] | None = None) -> Primitive:
        """Set how the inputs are cut: one tuple per input, one power of two per dim; or one called `Layout` per input. Returns self.

        out_strategy  how the result is cut, one tuple (or layout) in a tuple. It follows from the inputs; only where they leave partial sums is there
                      a choice: the cuts that follow (an all_reduce), or those with dim 0 cut further, among the ranks that hold the addends (a
                      reduce_scatter)

        Raises StrategyTypeError (a TypeError) for wrong types, StrategyError for counts that no operator can take.

        What depends on shapes or on the number of devices is checked when the network is compiled. Takes effect in the semi-automatic and automatic
        modes (and in `parallel_lab.compile`).
        """
        origin = caller()
        where = f"{self.name} shard ({origin.place})" if origin.place else f"{self.name} shard"
        if in_strategy is None and out_strategy is not None:
            raise StrategyError(message("out_strategy is given without in_strategy", where=where, hint="Give in_strategy too"))
        if in_strategy is not None and not self.takes_strategy:
            raise StrategyError(
                message(
                    f"strategy {shorten(in_strategy)}",
                    where=where,
                    allowed=f"{self.name} takes no strategy: it passes on its producer's layout to the one its consumer wants",
                    hint="Shard the operator before or after it",
                )
            )
        inward = None if in_strategy is None else check_strategy_value(in_strategy, where)
        outward = None if out_strategy is None else check_strategy_value(out_strategy, where, "out_strategy")
        if inward and outward and isinstance(inward[0], Layout) != isinstance(outward[0], Layout):
            what = f"in_strategy {shorten(in_strategy)} with out_strategy {shorten(out_strategy)}"
            raise StrategyTypeError(message(what, where=where, allowed="Both are made of layouts, or both of tuples of ints"))
        # nothing has changed if one of the two was refused
        self.in_strategy, self.out_strategy, self.strategy_origin = inward, outward, origin
        return self

    def add_prim_attr(self, name: str, value: Any) -> Primitive:
        """Attach a named attribute: `instance_name` names the operator in plans, `cross_batch` leaves the sums of a reduction with each rank,
        `enable_nd_tp` lets a matrix product gather and scatter; others are kept. Returns self. Raises ArgumentTypeError."""
        if not isinstance(name, str):
            raise ArgumentTypeError(message(f"name={shorten(name)}", where=f"{self.name} add_prim_attr", allowed="The name of an attribute, a str"))
        if name in SWITCHES and not isinstance(value, bool):
            raise ArgumentTypeError(message(f"{name}={shorten(value)}", where=f"{self.name} add_prim_attr", allowed="True or False"))
        self.prim_attrs[name] = value
        if name == "instance_name":
            self.instance_name = str(value)
        return self

    def __call__(self, *args: Any) -> Any:
        if TARGET in self.prim_attrs:
            refuse_placement(self.name, self.prim_attrs[TARGET])
        if self.prim_attrs.get("recompute"):
            refuse_recompute(self.name)
        return self.op.call(args, self.attrs, self)

    def result(self, index: int, *args: Any) -> Any:
        """One of the several results of a call; the others are not computed."""
        return self.op.call(args, self.attrs, self, index)

    def __repr__(self) -> str:
        # MindSpore 2.10 leaves out_strategy out
        strategies = {"in_strategy": self.in_strategy} | ({} if get_compat() == "2.10" else {"out_strategy": self.out_strategy})
        shown = {**self.attrs, **(strategies if self.in_strategy is not None else {}), **self.prim_attrs}
        return f"Prim[{self.name}]<{', '.join(f'{k}={v}' for k, v in shown.items())}>"
