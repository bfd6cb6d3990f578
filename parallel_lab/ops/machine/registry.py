"""`@op`: an operator, declared once.

    @op("mk,kn->mn", axes="mkn", example=case((16, 8), (8, 24)))
    def matmul(a, b):
        \"\"\"Matrix product.  a: (m, k), b: (k, n) -> (m, n).\"\"\"
        return a @ b

    @matmul.vjp
    def _(g, out, a, b):
        return matmul(g, b, transpose_b=True), matmul(a, g, transpose_a=True)

A gradient that is a computation of its own is declared by `@gradient(matmul)`, below.

From the declaration follow: the function `matmul(a, b)`, which runs at once on arrays and Tensors and is recorded while
a Cell is traced (`calling.py` has the walk of a call); its second names, methods and Python operators
(`../spellings.py`); the class `ops.MatMul`, whose instances carry a strategy (`.shard(...)`, `primitive.py`); shape
inference; the sharding rule and its refusals (`sharding.py`); and the test battery.

Parameters without a default are tensors, except those named in `static`. Positional parameters with a default are
attributes given at the call (`reduce_sum(x, axis)`), keyword-only ones are attributes of the class
(`ReduceSum(keep_dims=True)`), as in MindSpore.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from ...base.errors import ArgumentError, shorten
from ..spellings import SPELLINGS, spell
from .calling import Operator
from .opdef import OPS, OpDef
from .primitive import Form, Primitive
from .signature import Shape
from .tables import Table

PRIMITIVES: Table[type[Primitive]] = Table()


@dataclass(frozen=True)
class Case:
    """One example of an operator: operand shapes, attributes, range of values. The battery draws data from it.

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


def case(
    *shapes: Shape,
    low: float = -2.0,
    high: float = 2.0,
    ints: dict[int, int] | None = None,
    bools: Sequence[int] = (),
    **attrs: Any,
) -> Case:
    """A `Case`, from the shape of each operand: `case((16, 8), axis=0, low=0.1)`; `attrs` are the call's attributes."""
    return Case(tuple(shapes), tuple(attrs.items()), low, high, tuple((ints or {}).items()), tuple(bools))


def _cases(example: Any, where: str) -> tuple[Case, ...]:
    """The cases of an operator. Raises ArgumentError for anything else, such as plain shapes."""
    cases = example if isinstance(example, (tuple, list)) else (example,)
    if not all(isinstance(one, Case) for one in cases):
        hint = "Write example=case((8, 16), (24, 16)), with the shapes of your operands"
        raise ArgumentError(f"example={shorten(example)}", where=where, allowed="One or several `case(...)`", hint=hint)
    return tuple(cases)


def op(
    signature: str | Callable[..., Any] | None = None,
    *,
    name: str = "",
    shown: str = "",
    static: Sequence[str] = (),
    reduce: str = "sum",
    example: Case | Sequence[Case] = (),
    expand: Callable[..., Any] | None = None,
    **facts: Any,
) -> Callable[[Callable[..., Any]], Operator]:
    """Declare an operator. Names are given in one text, with spaces between them: "Add TensorAdd".

    Six keywords make an operator:
    signature  labels ("mk,kn->mn"), or a function of (operand shapes, **attributes) that returns them. Several results
               are a tuple, in labels ("ab->ab,a") as in what the function returns
    name       class names in MindSpore, that of plans first; "": an operator that only vjp rules and optimizers use
    axes       labels in the order of the device matrix, the batch dim first; or a function of the signature (default:
               order of appearance); those omitted must be whole, and have no axis
    reduce     how partial results over a split, reduced label combine: "sum", "mean", "max", "min" or "prod"; "same" if
               every rank has the whole result already
    flops      work: operations per combination of labels, or a function of a namespace of label extents (default: 1)
    example    one or several `case(...)`: the battery's data. Anything else raises ArgumentError

    More of what it is called (see `spellings.py`):
    shown      class name in texts of one without `name`: MindSpore's, where it has such an operator
    also       second names of the function: "negative"
    method     methods of a Tensor, with the names of their arguments where those differ: "pow(exponent)"
    operator   Python's operator: "__neg__", "__add__" (which makes "__radd__", too)
    ufunc      numpy's element-wise functions, which on a Tensor call the operator: "negative"
    numpy      numpy's other functions, whose refusal names the operator: "sum"
    mint       names in mindspore.mint, PyTorch's spelling: "neg negative functional.relu"

    More of what it computes:
    static     parameters without a default that are attributes, not tensors
    attrs      what attributes may be, by name: checks (`operand_checks.py`)
    numbers    tensors that a Python number may stand for (default: of several tensors those that broadcast, or have
               no dims)
    check      function of (operands with shape and dtype, **attributes), called after those and before the operator
               runs or is recorded: None, or (what is wrong, what is allowed) and perhaps a hint
    dtype      result dtype: a name, the number of the operand that has it, or a function of (operand dtypes,
               **attributes) that returns one; default: MindSpore's promotion. A tuple: one for each of several results
    sizes      function of (shapes, **attributes): extents of labels that only the result has
    out_sizes  function of (shapes, **attributes): extents in the result of labels that have another one there (a
               convolution's height and width)
    result_shape  for operators without labels, which take no strategy and appear only in vjp rules: the number of the
               operand that has it, or a function of (shapes, **attributes); of several results a tuple of either
    writes     operand 0 is a Parameter, and the result is its new value: a call returns the Parameter, and what
               reads it afterwards reads the result. No gradient flows to the other operands; that of the result is the
               Parameter's. Element by element ("...,...->...") and without a strategy it lies as the Parameter does
    view       the result is the operand's data in another shape; sharded by redistribution, takes no strategy
    expand     what a call does for an operator made of others (see `composed.py`)
    host_only  in modes that split operators it has to run on the host: `set_device("CPU")`

    More of how it may be split:
    whole      labels that must not be split, or a function of (signature, **attributes)
    instead    the form whose whole labels may be split, named where a strategy is refused: "SoftmaxExpand"
    restrict   function of (signature, {label: parts}, {label: extent}, **attributes): None, or (what is wrong with
               these splits, what is allowed)
    batch      label that all devices split where no strategy is given; "": none (default: the first one of `axes`)
    held       labels that no search splits, as a function of (signature, **attributes)
    counted    labels that counts may split and layouts may not, as a function of (signature, extents, **attributes)
    scatters   number of an operand: unless it is split, sums that no `out_strategy` places are scattered along dim 0
               under compat "2.10", where they can be (default: they are left with every rank)
    devices    function of (signature, {label: parts}, number of devices, **attributes): None or a fault, as `restrict`
    uneven     function of (signature, **attributes): {first label of an operand: (sizes of its parts, label that is
               split with it, on the same axis)}
    strategy_labels  function of the signature: labels of each strategy tuple where they differ from the operands'
                     labels

    linear     what passes a pending reduction on, for tensors over a mesh: "x, y" (either alone, a sum or a mean),
               "x+y" (both together), "max: x" (a maximum), "max>min: x", "avg: x with y" (y a tensor that lies whole)

    What one rank's slice needs besides its data:
    offset     label, or labels, whose first index on this rank the computation needs, passed as `offset=`: an int for
               one label, a tuple for several; or a function of the signature
    part_size  function of (slice shapes, attributes): extent of one rank's part of that label (a tuple for several),
               where the slices' shapes do not tell; in an internal operator: that it needs the place its caller has
    window     function of (extents, parts per label, **attributes): {label of operand 0: (step, origin, length)} for
               split labels whose slices do not suffice: part i needs the elements [step * i + origin, + length), zeros
               outside
    localize   function of (attributes, parts per label) -> attributes for one slice
    unfold     the messages and blocks that the operator becomes, backward too: see `unfolding.py`
    """

    spelled = {key: facts.pop(key) for key in SPELLINGS if key in facts}

    def declare(fn: Callable[..., Any]) -> Operator:
        positional, tensors, options, defaults, variadic = [], [], {}, {}, False
        for parameter in list(inspect.signature(fn).parameters.values())[1 if expand is not None else 0 :]:
            if parameter.kind is parameter.KEYWORD_ONLY:
                if parameter.name != "offset":
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
        class_names = (name or shown).split() or ["".join(part.title() for part in fn.__name__.split("_"))]
        operator_def = Operator(
            name=fn.__name__,
            class_name=class_names[0],
            fn=fn,
            signature=signature,
            positional=tuple(positional),
            tensors=tuple(tensors),
            options=options,
            defaults=defaults,
            cases=_cases(example, f"@op {fn.__name__}"),
            reduce="sum" if reduce == "mean" else reduce,
            mean=reduce == "mean",
            variadic=variadic,
            internal=not name,
            __doc__=fn.__doc__,
            **facts,
        )
        if expand is not None:
            operator_def.expand = partial(expand, operator_def)
        if operator_def.writes:
            operator_def.vjp(_to_variable)
        _refuse_twice(operator_def, class_names if name else ())
        OPS[operator_def.name] = operator_def
        if name:
            spell(operator_def, operator_def.name, operator_def.positional, **spelled)
            for each in class_names:
                inside = {"op": operator_def, "__doc__": fn.__doc__, "__module__": "parallel_lab.ops"}
                PRIMITIVES[each] = operator_def.primitives[each] = type(each, (Primitive,), inside)
        return operator_def

    return declare


def _refuse_twice(of: OpDef, class_names: Sequence[str], form: bool = False) -> None:
    """Raise ArgumentError for a name or a class that is another operator's. form: which may replace its own class."""
    named = [each for each in class_names if dict.get(PRIMITIVES, each, Primitive) is not Primitive]
    others = [f"the class {each}" for each in named if not (form and PRIMITIVES[each].op is of)]
    for name in (["this name"] if not form and of.name in OPS else []) + others:
        raise ArgumentError(f"{name} is declared already", where=f"@op {of.name}", hint="Choose another one")


def _to_variable(g: Any, out: Any, variable: Any, *others: Any, **attrs: Any) -> tuple[Any, ...]:
    """The gradients of an operator that writes: that of the result is the Parameter's."""
    return g, *[None] * len(others)


def form(of: OpDef, name: str, *, read: int | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare another class of an operator, or several ("Slice SliceV2"), with attributes and a call of their own.

        @form(reduce_sum, "SumExt")
        def _(self, input, dim=None, keepdim=False):
            return self.run(input, dim, keep_dims=keepdim)

    Keyword-only parameters are attributes of the class. The strategy is the operator's. read: see `Form`.
    """

    def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
        keyword = [p for p in inspect.signature(fn).parameters.values() if p.kind is p.KEYWORD_ONLY]
        _refuse_twice(of, name.split(), form=True)
        inside = {"op": of, "arrange": fn, "settings": {p.name: p.default for p in keyword}, "read": read}
        for each in name.split():
            namespace = {**inside, "__doc__": fn.__doc__ or of.__doc__, "__module__": "parallel_lab.ops"}
            PRIMITIVES[each] = of.primitives[each] = type(each, (Form,), namespace)
        return fn

    return declare


def gradient(of: OpDef, operand: str = "", **facts: Any) -> Callable[[Callable[..., Any]], OpDef]:
    """Declare the operator that computes the gradient of `of` for one operand (the first), which `of`'s rule calls.

        @gradient(gelu)
        def gelu_grad(g, x, *, approximate): ...

    Its tensors are known by their names: `g`, the gradient of the result, comes first; `out`, the result; operands of
    `of`. Keyword-only are attributes of `of`, and `shape`, that of the operand, which is also the result's. Where `of`
    broadcasts it is g's, and broadcasting is undone afterwards. The result has g's dtype.

    facts  other keywords of `op`
    """
    operand = operand or of.tensors[0]
    broadcasts = isinstance(of.signature, str) and of.signature.count("...") > 2

    def declare(fn: Callable[..., Any]) -> OpDef:
        names = list(inspect.signature(fn).parameters)
        like = 0 if broadcasts or operand not in names else names.index(operand)
        keywords: dict[str, Any] = {"result_shape": _own_shape if "shape" in names else like, "dtype": 0, **facts}
        grad_op = of.gradients[operand] = op(**keywords)(fn)
        grad_op.gradient_of = of, operand
        of.vjp(rule)
        return grad_op

    def rule(g: Any, out: Any, *operands: Any, needs: tuple[bool, ...] | None = None, **attrs: Any) -> tuple[Any, ...]:
        by_name = {"g": g, "out": out, **dict(zip(of.tensors, operands, strict=True))}
        gradients: dict[str, Any] = dict.fromkeys(of.tensors)
        for name, needed in zip(of.tensors, needs or (True,) * len(operands), strict=True):
            if needed and name in of.gradients:
                grad_op, values = of.gradients[name], {**attrs, "shape": tuple(by_name[name].shape)}
                grad = grad_op(*(by_name[n] for n in grad_op.tensors), **{n: values[n] for n in grad_op.options})
                gradients[name] = unbroadcast(grad, by_name[name]) if broadcasts else grad
        return tuple(gradients.values())

    return declare


def _own_shape(shapes: tuple[Shape, ...], *, shape: Shape, **_: Any) -> Shape:
    return shape


def total(*gradients: Any) -> Any:
    """The sum of the gradients that are there, or None: for operands that several results depend on."""
    parts = [g for g in gradients if g is not None]
    return reduce(operator.add, parts) if parts else None


def unbroadcast(g: Any, operand: Any) -> Any:
    """The gradient of a broadcast operand; recorded only if something was broadcast."""
    shape = tuple(operand.shape)
    return g if tuple(g.shape) == shape else OPS["sum_to"](g, shape=shape)
