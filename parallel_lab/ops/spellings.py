"""All names under which one operator can be written, made from the keywords of its declaration.

    @op(UNARY, name="Neg", also="negative", method="neg", operator="__neg__", ufunc="negative", mint="neg negative")
    def neg(x): ...

    ops.neg(x), ops.negative(x)      `NAMES`: functions of `parallel_lab.ops`
    x.neg(), -x                      `TensorMethods`, the base of Tensors and of the values of a trace
    np.negative(x)                   `UFUNCS`: numpy's element-wise functions, given a Tensor
    mint.neg(x), mint.negative(x)    `MINT`: `mindspore.mint`, PyTorch's spelling

`@function` does the same for functions made of operators: `ops.clip`, `ops.einsum`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from ..base.checks import SHAPE_ERRORS, check_switches, fitting, no_tensor, refusal, switches_of
from ..base.dtypes import plain_array, scalar_operand
from ..base.errors import STUMBLES, ArgumentTypeError, ShapeError
from ..base.hooks import open_catalog
from .machine.operand_checks import is_operand
from .machine.tables import Table
from .synonyms import own_names

NAMES: Table[Callable] = Table()  # public functions of `parallel_lab.ops` by name
UFUNCS: Table[Callable] = Table()  # numpy's element-wise function -> the operator
NUMPY: Table[str] = Table()  # numpy's other function -> the name in `ops` of what to use instead
MINT: Table[str] = Table()  # name in mindspore.mint, or "functional." and name in mindspore.mint.nn -> name in `ops`

TENSORS = ("x", "input", "input_x", "target", "logits", "labels", "label")  # parameters of forms and functions
FURTHER = frozenset(  # and of functions: those that come along with one of these
    (
        *("other", "tensor1", "tensor2", "mat", "mat1", "mat2", "vec", "vec1", "vec2", "batch1", "batch2", "x1", "x2"),
        *("y", "weight", "pos_weight", "bias", "mask", "index", "indices", "src", "updates", "values", "grid"),
        *("sorted_sequence", "running_mean", "running_var", "tokens", "permuted_tokens", "sorted_indices", "probs"),
    )
)
SPELLINGS = ("also", "method", "operator", "ufunc", "numpy", "mint")  # keywords of a declaration
# methods of MindSpore's Tensor that are the function of this name, given the tensor first, and all of the catalogue's
METHODS = """
    abs absolute acos acosh add addbmm addcdiv addcmul addmm addmv addr allclose amax amin aminmax approximate_equal
    arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmax_with_value argmin argmin_with_value argsort
    argwhere asin asinh atan atan2 atanh baddbmm bernoulli bessel_i0 bessel_i0e bessel_i1 bessel_i1e bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bmm ceil choose chunk clamp clip copysign
    cos cosh count_nonzero cross cummax cummin cumprod cumsum deg2rad det diag diagonal diff digamma div divide dot
    dsplit eq equal erf erfc erfinv exp exp2 expand_dims expm1 fill_diagonal flip fliplr flipud float_power floor
    floor_divide fmod frac gather_elements gather_nd gcd ge ger greater greater_equal gt hardshrink heaviside hsplit
    hypot i0 igamma igammac index_add index_fill index_put index_select inner inplace_update inv inverse invert isclose
    isfinite isinf isnan isneginf isposinf lcm le lerp less less_equal lgamma log log10 log1p log2 logaddexp logaddexp2
    logcumsumexp logdet logical_and logical_not logical_or logical_xor logit logsumexp lt masked_fill masked_select
    matrix_power max maximum min minimum mm moveaxis movedim msort mul multinomial multiply mv nan_to_num nansum narrow
    ndimension ne neg negative new_empty new_full new_ones new_zeros nextafter nonzero norm not_equal numel outer
    positive pow prod ptp rad2deg ravel reciprocal remainder repeat_interleave reshape_as resize roll rot90 round rsqrt
    scatter scatter_add searchsorted sgn sigmoid sign signbit sin sinc sinh slogdet softmax sort split sqrt square std
    sub subtract swapaxes swapdims t take tan tanh tensor_scatter_add tensor_scatter_div tensor_scatter_max
    tensor_scatter_min tensor_scatter_mul tensor_scatter_sub tensor_split top_k topk trace tril triu true_divide trunc
    unbind unfold unsorted_segment_max unsorted_segment_min unsorted_segment_prod unsorted_segment_sum unsqueeze value
    var vecdot view_as vsplit xdivy xlogy
"""
# operators that Python calls with the operands exchanged where the left one is not a tensor: 2 - x
_REFLECTED = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"]
# what Python's operator of truth values is on integers
_BITWISE = {f"__{short}__": f"bitwise_{short}" for short in ("and", "or", "xor", "invert")}


class TensorMethods:
    """Python operators and methods that declarations of operators ask for; `spell` adds them."""

    __slots__ = ()

    dtype: Any

    def _bits(self, bitwise: str, logical: Callable, *operands: Any) -> Any:
        """`&`, `|`, `^`, `~`: the logical operator on truth values, on integers the one named `bitwise`."""
        for each in operands:
            if not comparable(each):
                tensor_operand(logical.name, "operand", each)
        truth = all((x if isinstance(x, TensorMethods) else np.asarray(x)).dtype.kind == "b" for x in operands)
        return (logical if truth else NAMES[bitwise])(*operands)


class CatalogMethod:
    """A method whose operator is not declared yet because it lies in the catalogue, which a look at the method opens.

    Declarations of the catalogue replace it, as those of the taught operators have done before.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, tensor: Any, kind: type) -> Any:
        open_catalog()
        if isinstance(vars(TensorMethods)[self.name], CatalogMethod):  # the catalogue is just being loaded
            raise AttributeError(f"{kind.__name__} has no attribute {self.name!r} yet", name=self.name, obj=tensor)
        return getattr(kind if tensor is None else tensor, self.name)


for _name in METHODS.split():
    setattr(TensorMethods, _name, CatalogMethod(_name))


def comparable(value: Any) -> bool:
    """Whether `value` can be combined with a tensor: a number, an array of numbers, a tensor, a list of numbers."""
    if isinstance(value, (bool, int, float, np.generic, np.ndarray)):
        return np.asarray(value).dtype.kind in "biuf"
    try:
        return isinstance(value, TensorMethods) or (
            isinstance(value, (list, tuple)) and bool(value) and all(comparable(v) for v in value)
        )
    except RecursionError:  # a list that contains itself
        return False


def function(*, numbers: str = "", lists: str = "", **spellings: str) -> Callable[[Callable], Callable]:
    """Decorator: a function made of operators, public in `ops`, under the spellings that `op` takes too. Parameters
    with a name of TENSORS or FURTHER are tensors, or None where that is the default, and all else is refused.

    numbers  parameters that may be a Python number, which takes the dtype of the tensor it goes with
    lists    parameters that may be a list or tuple of tensors
    """

    def publish(fn: Callable) -> Callable:
        parameters = tuple(inspect.signature(fn).parameters)
        tensors = [(place, each) for place, each in enumerate(parameters) if each in TENSORS or each in FURTHER]
        called = _of_tensors(fn, tensors, parameters, frozenset(numbers.split()), frozenset(lists.split()))
        spell(called, fn.__name__, parameters, **spellings)
        return called

    return publish


def method(name: str) -> Callable[[Callable], Callable]:
    """Decorator: a method of Tensors whose form differs from that of the function, next to the operator it calls."""

    def publish(fn: Callable) -> Callable:
        fn.__name__ = name
        fn.__qualname__ = f"Tensor.{name}"
        setattr(TensorMethods, name, fn if name.startswith("__") else fitting(fn))
        return fn

    return publish


def _of_tensors(
    fn: Callable,
    tensors: list[tuple[int, str]],
    parameters: Sequence[str],
    numbers: frozenset[str],
    lists: frozenset[str],
) -> Callable:
    switches = switches_of(fn)
    optional = {name for name, p in inspect.signature(fn).parameters.items() if p.default is None}

    @wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        kwargs = own_names(kwargs, parameters, parameters[: len(args)]) if kwargs else kwargs
        if switches:
            check_switches(fn.__name__, switches, args, kwargs, SHAPE_ERRORS)
        positional = list(args)
        for place, name in tensors:
            where, at = (positional, place) if place < len(positional) else (kwargs, name)
            value = where[at] if where is positional else kwargs.get(name)
            if is_operand(value) or (value is None and (name in optional or name not in kwargs and where is kwargs)):
                continue
            if name in lists and isinstance(value, (list, tuple)):
                continue
            # a number takes the dtype of the tensors; operands of other names count too
            operands = [x for x in (*args, *kwargs.values()) if is_operand(x)]
            if name in numbers and operands and type(value) in (bool, int, float):
                where[at] = scalar_operand(value, operands)
            else:
                where[at] = tensor_operand(fn.__name__, name, value, number=name in numbers)
        try:
            return fn(*positional, **kwargs)
        except STUMBLES as error:
            if fault := refusal(error, fn.__name__, fn, args, kwargs, SHAPE_ERRORS):
                raise fault from fault.__cause__
            raise

    return called


def tensor_operand(where: str, name: str, value: Any, *, number: bool = False) -> Any:
    """`value` as something with shape and dtype; ShapeError if it is not a tensor. number: or a Python number."""
    if is_operand(value):
        return value
    is_number = isinstance(value, (bool, int, float))
    if number and is_number and (array := np.asarray(value)).dtype.kind in "biuf":
        return array
    raise no_tensor(ShapeError, where, f"{name}=", value, number)


def spell(
    called: Callable,
    name: str,
    parameters: Sequence[str],
    also: str = "",
    method: str = "",
    operator: str = "",
    ufunc: str = "",
    numpy: str = "",
    mint: str = "",
) -> None:
    """Note all names of an operator or function and its `parameters`; the others as `op` takes them (registry.py)."""
    NAMES.update(dict.fromkeys([name, *also.split()], called))
    UFUNCS.update(dict.fromkeys(ufunc.split(), called))
    NUMPY.update(dict.fromkeys(numpy.split(), name))
    MINT.update(dict.fromkeys(mint.split(), name))
    for each in method.split():
        one, _, arguments = each.rstrip(")").partition("(")
        setattr(TensorMethods, one, _method(called, one, arguments.split(",") if arguments else (), parameters))
    for each in (name, *also.split()):
        if isinstance(vars(TensorMethods).get(each), CatalogMethod):
            setattr(TensorMethods, each, _method(called, each, (), parameters))
    for each in operator.split():
        setattr(TensorMethods, each, _operator(called, each, unary=len(parameters) == 1))
        plain = each.strip("_")
        if plain in _REFLECTED:
            setattr(TensorMethods, f"__r{plain}__", _operator(called, each, reflected=True))


def _method(called: Callable, name: str, renamed: Sequence[str], parameters: Sequence[str]) -> Callable:
    """`x.name(...)`, which is `called(x, ...)`."""
    if inspect.isfunction(called):
        return called  # as a method of a class it is given the tensor first
    theirs = dict(zip(renamed, parameters[1:], strict=False))

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return called(self, *args, **{theirs.get(k, k): v for k, v in kwargs.items()})

    names = ("self", *(renamed or parameters[1:]))
    shown = [inspect.Parameter(p, inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in names]
    method.__name__, method.__doc__, method.__signature__ = name, called.__doc__, inspect.Signature(shown)
    return method


def _as_operand(other: Any) -> Any:
    """The other operand of Python's operators on a tensor, where a list of numbers is an array: x + [1, 2]."""
    if not isinstance(other, (list, tuple)):
        return other
    try:
        return plain_array(other, where="a list with a Tensor")
    except ArgumentTypeError:
        raise
    except (ValueError, TypeError):  # rows of different lengths: the operator refuses it
        return other


def _operator(called: Callable, name: str, unary: bool = False, reflected: bool = False) -> Callable:
    """The special method that Python calls for `-x`, `x + y`, `y + x`, `x == y`."""
    if name in _BITWISE:

        def method(self: Any, *other: Any) -> Any:
            return self._bits(_BITWISE[name], called, *((*other, self) if reflected else (self, *other)))

    elif name in ("__eq__", "__ne__"):

        def method(self: Any, other: Any) -> Any:
            return called(self, _as_operand(other)) if comparable(other) else NotImplemented

    elif unary:

        def method(self: Any) -> Any:
            return called(self)

    elif reflected:

        def method(self: Any, other: Any) -> Any:
            return called(_as_operand(other), self)

    else:

        def method(self: Any, other: Any) -> Any:
            return called(self, _as_operand(other))

    method.__name__, method.__doc__ = name, called.__doc__
    return method
