"""MindSpore's other forms: Tensors for arrays, classes for functions, dtypes, and settings that do nothing here."""

from __future__ import annotations

import functools
import inspect
import logging
import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from .. import ops
from ..base import seeds
from ..base.checks import checked, choice, fitting, flag, instance, integer, misfit, number, text
from ..base.dtypes import kind_of, load_bfloat16
from ..base.errors import ArgumentTypeError, ShapeError, StrategyError, shorten
from ..base.hooks import current_tracer
from ..base.settings import context
from ..catalog.nn.forms import arguments_of
from ..layout.named_layout import strategy_counts
from ..nn.cell import Cell
from ..nn.tensor.tensor import Tensor
from ..ops.collectives.base import Communication
from ..ops.elementwise import a_dtype
from ..ops.machine.attributes import check_target
from ..ops.machine.primitive import WithoutStrategy, check_strategy_value
from ..ops.spellings import tensor_operand
from ..ops.synonyms import own_names
from ._derivatives import depend
from ._functions import scalar_to_array

# the newest MindSpore whose paths these are, and a local version label (PEP 440) that says they are ours
VERSION = "2.6.0+parallel.lab"

_LOGGER = logging.getLogger("mindspore")
critical, debug, error, info, warning = _LOGGER.critical, _LOGGER.debug, _LOGGER.error, _LOGGER.info, _LOGGER.warning

# ---- dtypes ----

bool_ = np.dtype(np.bool_)
int8, int16, int32, int64 = (np.dtype(f"int{bits}") for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64))
float16, float32, float64 = (np.dtype(f"float{bits}") for bits in (16, 32, 64))


def __getattr__(name: str) -> Any:
    """bfloat16, which loads ml_dtypes."""
    if name == "bfloat16":
        return load_bfloat16()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


Type = np.dtype
int_, uint, float_, short, half, single, double = int64, uint64, float64, int16, float16, float32, float64
int_type, uint_type = (int8, int16, int32, int64), (uint8, uint16, uint32, uint64)
float_type = (float16, float32, float64)
number_type = (*int_type, *uint_type, *float_type)


def dtype_to_nptype(type_: Any) -> type:
    """numpy's scalar type: np.float32 for ms.float32."""
    return np.dtype(a_dtype("dtype_to_nptype", "type_", type_)).type


def dtype_to_pytype(type_: Any) -> type:
    """Python's type for elements of a dtype: bool, int or float."""
    return {"b": bool, "i": int, "u": int, "f": float}[kind_of(a_dtype("dtype_to_pytype", "type_", type_))]


def pytype_to_dtype(obj: Any) -> np.dtype:
    """The dtype for bool, int (int64), float (float64), or another name that numpy knows."""
    return np.dtype(a_dtype("pytype_to_dtype", "obj", obj))


# ---- tensors made of nothing ----


def _tensor(fn: Callable) -> Callable:
    """`fn`, giving a Tensor; dtype=None is the function's own default."""
    parameters = list(inspect.signature(fn).parameters)

    @functools.wraps(fn)
    def make(*args: Any, **kwargs: Any) -> Tensor:
        args = args[:-1] if args and args[-1] is None and parameters[len(args) - 1 :] == ["dtype"] else args
        return Tensor(fn(*args, **{k: v for k, v in kwargs.items() if k != "dtype" or v is not None}))

    return make


arange, eye, linspace = _tensor(ops.arange), _tensor(ops.eye), _tensor(ops.linspace)
full, ones, zeros = _tensor(ops.full), _tensor(ops.ones), _tensor(ops.zeros)
full_like, ones_like, zeros_like = _tensor(ops.full_like), _tensor(ops.ones_like), _tensor(ops.zeros_like)


def tensor(
    input_data: Any = None,
    dtype: Any = None,
    shape: Any = None,
    init: Any = None,
    const_arg: bool = False,
    device: str | None = None,
) -> Tensor:
    """`Tensor(input_data, dtype)`, or `Tensor(shape=, dtype=, init=)`. const_arg, device (a text): without effect."""
    flag("tensor", "const_arg", const_arg)
    (text | None)("tensor", "device", device)
    return (
        Tensor(input_data, dtype, shape, init) if shape is not None or init is not None else Tensor(input_data, dtype)
    )


def scalar_to_tensor(input_x: Any, dtype: Any = None) -> Tensor:
    """A number as a Tensor, of dtype float32 unless `dtype` is another.  -> ()."""
    return Tensor(input_x, np.float32 if dtype is None else dtype)


def tuple_to_array(input_x: Any) -> Tensor:
    """A tuple of numbers of one kind as a Tensor: ints are int64, floats float32.  -> (count,)."""
    where, what = "tuple_to_array", f"input_x={shorten(input_x)}"
    if isinstance(input_x, tuple) and not input_x:
        raise ShapeError(what, where=where, allowed="At least one number")
    if not isinstance(input_x, tuple) or {type(n) for n in input_x} not in ({int}, {float}):
        raise ArgumentTypeError(what, where=where, allowed="A tuple of ints, or of floats")
    return Tensor(list(input_x))


def fill(type: Any, shape: Any, value: Any) -> Tensor:
    """One number everywhere.  -> `shape`, of dtype `type`."""
    return Tensor(ops.full(tuple(shape) if isinstance(shape, (list, tuple)) else shape, value, type))


def _one_number(where: str, name: str, value: Any) -> np.generic:
    """A number, or the element of a Tensor of one, with its dtype. Raises ShapeError."""
    given = tensor_operand(where, name, value, number=True)
    if int(np.prod(given.shape)) != 1:
        raise ShapeError(f"{name} has shape {tuple(given.shape)}", where=where, allowed="A number, or a Tensor of one")
    return np.asarray(given).reshape(-1)[0]


def fill_v2(shape: Any, value: Any) -> Tensor:
    """One number everywhere.  shape: ints, or a Tensor of them; value: a number or a Tensor of one -> of its dtype."""
    number = _one_number("FillV2", "value", value)
    size = shape.asnumpy().tolist() if isinstance(shape, Tensor) else shape
    return Tensor(ops.full(tuple(size) if isinstance(size, list) else size, number.item(), number.dtype))


def range_(start: Any, end: Any, step: Any = 1, maxlen: int = 1_000_000) -> Tensor:
    """start, start + step, ... before end.  start, end, step: numbers or Tensors of one -> (count,) of their dtype."""
    bounds = {"start": start, "end": end, "step": step}
    given = [_one_number("range", name, x) for name, x in bounds.items()]
    most = integer(1)("range", "maxlen", maxlen)
    if given[2] and all(map(math.isfinite, given)) and (count := math.ceil((given[1] - given[0]) / given[2])) > most:
        raise ShapeError(f"{count} numbers", where="range", allowed=f"At most maxlen={most}")
    # Python's numbers take the dtype of the other operand, a Tensor
    kinds = (x if type(x) in (int, float) else n for x, n in zip(bounds.values(), given, strict=True))
    return Tensor(ops.arange(*(x.item() for x in given), dtype=np.result_type(*kinds)))


def lin_space(start: Any, stop: Any, num: int) -> Tensor:
    """`num` numbers at equal distances from start to stop.  start, stop: numbers or Tensors of one -> (num,)."""
    if any(hasattr(x, "tracer") for x in (start, stop)):  # values come when the program runs
        first, last = (ops.reshape(tensor_operand("LinSpace", "start and stop", x), (1,)) for x in (start, stop))
        return ops.add(first, ops.mul(ops.sub(last, first), ops.linspace(0.0, 1.0, num)))
    ends = (_one_number("LinSpace", name, x) for name, x in (("start", start), ("stop", stop)))
    return Tensor(ops.linspace(*(x.item() for x in ends), num))


def lin_space_ext(start: Any, end: Any, steps: int, dtype: Any = None) -> Tensor:
    """`steps` numbers at equal distances from start to end.  start, end: numbers or Tensors of one -> (steps,)."""
    return ops.cast(lin_space(start, end, steps), dtype or "float32")


# ---- functions whose form differs ----


def _place(name: str) -> Callable:
    def called(input: Any, dim: int | None = None, keepdim: bool = False, *, axis: int | None = None) -> Any:
        x, dim = tensor_operand(name, "input", input), axis if dim is None else dim
        if dim is None:
            return getattr(ops, name)(ops.reshape(x, (-1,)), output_type="int64")
        return getattr(ops, name)(x, axis=dim, output_type="int64", keep_dims=keepdim)

    called.__name__ = called.__qualname__ = name
    called.__doc__ = f"`ops.{name}` along `dim` (1.x: axis); None: of all elements.  input: (...) -> (...) int64."
    return called


argmax = _place("argmax")


def argmin(input: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """`ops.argmin` along `axis`; None: of all elements.  input: (...) -> (...) int64."""
    return _place("argmin")(input, axis, keepdims)


@checked("flatten", order=choice("C", "F"))
def flatten(input: Any, order: str = "C", *, start_dim: int = 1, end_dim: int = -1) -> Any:
    """The dims from start_dim to end_dim joined, row by row ("C") or column by column ("F").  input: (...) -> (...)."""
    x = tensor_operand("flatten", "input", input)
    if len(x.shape) < 2:
        return ops.reshape(x, (-1,))
    return (Tensor(x) if isinstance(x, np.ndarray) else x).flatten(start_dim, end_dim, order=order)


def one_hot(indices: Any, depth: int, on_value: Any = 1, off_value: Any = 0, axis: int = -1) -> Any:
    """`on_value` at each index, `off_value` elsewhere.  indices: (...) int -> (..., depth, ...)."""
    on_value, off_value = (
        np.int64(x) if type(x) is int else x for x in (on_value, off_value)
    )  # not the indices' dtype
    return ops.one_hot(indices, depth, on_value, off_value, axis=axis)


def typeof(x: Any) -> Any:
    """The dtype of a tensor; of anything else its type."""
    return dtype(x) if hasattr(x, "dtype") else type(x)


# ---- what a tensor is ----


def dtype(x: Any) -> np.dtype:
    """The dtype of x."""
    return np.dtype(str(tensor_operand("dtype", "x", x).dtype))


def rank(input_x: Any) -> int:
    """How many dims input_x has."""
    return len(tensor_operand("rank", "input_x", input_x).shape)


def size(input_x: Any) -> int:
    """How many elements input_x has."""
    return int(np.prod(tensor_operand("size", "input_x", input_x).shape))


# ---- operators that are classes there ----


class _Form(WithoutStrategy):
    """A function as MindSpore's class of an operator: made without arguments, called with tensors. Its attributes and
    its strategy are checked and kept: no operator in the graph could have them.
    """

    fn: Callable

    @fitting
    def __init__(self) -> None:
        super().__init__()

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> _Form:
        """Counts or a layout per input, with `()` for anything but a tensor. Returns self."""
        where = f"{self.name} shard"
        for name, given in (("strategy", in_strategy), ("out_strategy", out_strategy)):
            if given is not None:
                check_strategy_value(given, where, name)
        self.in_strategy, self.out_strategy = in_strategy, out_strategy
        return self

    def __call__(self, *args: Any, **named: Any) -> Any:
        if named:
            names = list(inspect.signature(self.fn).parameters)
            named = own_names(named, names, names[: len(args)])
        if fault := misfit(self.name, inspect.signature(self.fn), args, named):
            raise fault
        return self.fn(*args, **named)


def _form(name: str, fn: Callable, base: type[_Form] = _Form) -> type[_Form]:
    members = {"fn": staticmethod(fn), "__doc__": f"`{name}()(...)`: {fn.__doc__}", "__module__": __name__}
    return type(name, (base,), members)


class _Made(_Form):
    """The class of a function that makes a tensor, a constant, whose slice every rank takes that its readers
    want, without a message. A strategy is for the tensor that is made.

    entries  how many tuples a strategy has; 0: any
    """

    entries = 0

    def __call__(self, *args: Any, **named: Any) -> Any:
        made = super().__call__(*args, **named)
        devices, given = getattr(current_tracer.get(), "device_num", None), strategy_counts(self.in_strategy or ())
        if devices and self.entries and given and len(given) != self.entries:
            allowed = f"{self.entries}: one for the tensor, () for the number"
            raise StrategyError(f"strategy {given} has {len(given)} tuples", where=self.name, allowed=allowed)
        for cuts in filter(None, given):
            if devices and (min(cuts) < 1 or devices % math.prod(cuts)):
                what = f"strategy {cuts} makes {math.prod(cuts)} slices on {devices} devices"
                raise StrategyError(what, where=self.name, allowed="Their number divides the devices")
            if len(cuts) != len(made.shape) or any(n % max(c, 1) for n, c in zip(made.shape, cuts, strict=True)):
                what = f"strategy {cuts} for a tensor of shape {tuple(made.shape)}"
                raise StrategyError(what, where=self.name, allowed="One count per dim, each dividing it")
        return made


class Range(_Made):
    """`Range(maxlen)(start, limit, delta)`: start, start + delta, ... before limit, at most maxlen.  -> (count,)."""

    @checked(maxlen=integer(1))
    def __init__(self, maxlen: int = 1_000_000) -> None:
        super().__init__()
        self.fn = functools.partial(range_, maxlen=maxlen)


def float_status(x: Any) -> Any:
    """1 if an element is infinite or not a number, else 0.  x: (...) -> (1,) float32."""
    bad = ops.cast(ops.logical_not(ops.isfinite(x)), "float32")
    return ops.reshape(ops.reduce_max(bad), (1,))


def no_status(x: Any = None) -> Tensor:
    """(8,) zeros: no register here notes an overflow; FloatStatus looks at values."""
    return Tensor(np.zeros(8, np.float32))


DType = _form("DType", dtype)
FloatStatus = _form("FloatStatus", float_status)
NPUAllocFloatStatus = _form("NPUAllocFloatStatus", no_status)
NPUClearFloatStatus = _form("NPUClearFloatStatus", no_status)
NPUGetFloatStatus = _form("NPUGetFloatStatus", no_status)
Depend = _form("Depend", depend)
Eye = _form("Eye", eye, _Made)
Fill = _form("Fill", fill, _Made)
FillV2 = _form("FillV2", fill_v2, _Made)
FillV2.entries = 2  # the shape counts as an input (fillv2_info)
LinSpace, LinSpaceExt = _form("LinSpace", lin_space, _Made), _form("LinSpaceExt", lin_space_ext, _Made)
Ones = _form("Ones", ones, _Made)
OnesLike, OnesLikeExt = (_form(name, ones_like, _Made) for name in ("OnesLike", "OnesLikeExt"))
Rank = _form("Rank", rank)
ScalarToArray = _form("ScalarToArray", scalar_to_array)
ScalarToTensor = _form("ScalarToTensor", scalar_to_tensor)
Shape = _form("Shape", ops.shape)
Size = _form("Size", size)
TupleToArray = _form("TupleToArray", tuple_to_array)
Zeros = _form("Zeros", zeros, _Made)
ZerosLike, ZerosLikeExt = (_form(name, zeros_like, _Made) for name in ("ZerosLike", "ZerosLikeExt"))


class _GivesTensors(Communication):
    """Tensors where the operator of `parallel_lab.ops` gives arrays."""

    def at_once(self, *inputs: Any) -> Any:
        found = super().at_once(*inputs)
        if isinstance(found, tuple):
            return tuple(Tensor(x) if isinstance(x, np.ndarray) else x for x in found)
        return Tensor(found) if isinstance(found, np.ndarray) else found


class Receive(_GivesTensors, ops.Receive):
    """`parallel_lab.ops.Receive`, giving a Tensor."""


class NeighborExchange(_GivesTensors, ops.NeighborExchange):
    """`parallel_lab.ops.NeighborExchange`, giving Tensors. Shapes come in a tuple, and so do the Tensors: otherwise it
    raises ArgumentTypeError (a TypeError) when it is called (MindSpore, neighborexchange.cc, CheckAttr).
    """

    @checked()
    @arguments_of(ops.NeighborExchange.__init__)
    def __init__(self, recv_shapes: Any, send_shapes: Any, **how: Any) -> None:
        shapes = {"recv_shapes": recv_shapes, "send_shapes": send_shapes}
        listed = [f"{name}={shorten(given)}" for name, given in shapes.items() if isinstance(given, list)]
        self.untaken = listed[0] if listed else ""
        known = all(isinstance(given, (list, tuple)) for given in shapes.values())
        if listed and not (known and all(isinstance(one, (list, tuple)) for one in (*recv_shapes, *send_shapes))):
            recv_shapes, send_shapes, how["send_rank_ids"], how["recv_rank_ids"] = (), (), [], []
        super().__init__(recv_shapes=recv_shapes, send_shapes=send_shapes, **how)

    def __call__(self, *inputs: Any) -> Any:
        return super().__call__(*(inputs or ((),)))  # who sends nothing may give nothing

    def _checked(self, values: list[Any], rank: int | None, members: tuple[int, ...]) -> None:
        if self.untaken:
            raise ArgumentTypeError(self.untaken, where=self.name, allowed="A tuple of shapes: ([2, 3],), with a comma")
        super()._checked(values, rank, members)

    def at_once(self, x: Any) -> Any:
        if not isinstance(x, (tuple, list)):
            raise ArgumentTypeError(shorten(x), where=self.name, allowed="A tuple of Tensors, one per send_rank_id")
        return super().at_once(x)


class NeighborExchangeV2(_GivesTensors, ops.NeighborExchangeV2):
    """`parallel_lab.ops.NeighborExchangeV2`, giving a Tensor."""


class AlltoAllV(_GivesTensors, ops.AlltoAllV):
    """`parallel_lab.ops.AlltoAllV`, giving a Tensor."""


class BatchISendIRecv(_GivesTensors, ops.BatchISendIRecv):
    """`parallel_lab.ops.BatchISendIRecv`, giving Tensors."""


class Dropout(ops.Dropout):
    """`Dropout(keep_prob)(x)`: (x with a share 1 - keep_prob of its elements 0, the others divided by keep_prob; None).
    `keep_prob`: above 0, at most 1; `Seed0`, `Seed1`: ints that make its masks differ (two operators differ anyway).
    None stands for MindSpore's mask, here a function of step and place (`ops/dropout.py`), never stored; outside of
    training steps every call counts as one. Raises ArgumentError, ArgumentTypeError.
    """

    @checked(keep_prob=number(0, 1, above=True), Seed0=integer(0), Seed1=integer(0))
    def __init__(self, keep_prob: float = 0.5, Seed0: int = 0, Seed1: int = 0) -> None:
        super().__init__(p=1 - keep_prob)
        self._seeds = (Seed0, Seed1)
        self._number, self._calls = seeds.next_draw(), ops.StepCalls()

    def __call__(self, x: Any) -> tuple[Any, None]:
        step, again = self._calls.next()
        self.given["key"] = ops.dropout_key(seeds.get_seed(), "Dropout", self._number, *self._seeds, again)
        return super().__call__(tensor_operand("Dropout", "x", x), step), None


def dropout(input: Any, p: float = 0.5, training: bool = True, seed: int | None = None) -> Any:
    """`parallel_lab.ops.dropout`; outside of training steps every call has a mask of its own."""
    outside = flag("dropout", "training", training) and ops.training_step() is None
    step = np.asarray(seeds.next_draw(), np.int64) if outside else None
    return ops.dropout(input, p=p, training=training, seed=seed, step=step)


# ---- settings ----


def set_seed(seed: int) -> None:
    """Seed parameters, dropout, datasets (`parallel_lab.set_seed`) and, as MindSpore does, numpy's global generator."""
    seeds.set_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - scripts draw their data from numpy's global state after set_seed


def set_device(device_target: str, device_id: int | None = None) -> None:
    """Name the device (2.5 and later). Every rank computes on this machine's processors, whatever it is called."""
    check_target("set_device", device_target)
    context.set_context(device_target=device_target, **({} if device_id is None else {"device_id": device_id}))


@checked(deterministic=flag)
def set_deterministic(deterministic: bool) -> None:
    """Accepted: results here are the same bit for bit in every run anyway."""


@checked(recursion_limit=integer(1, kinds=int))
def set_recursion_limit(recursion_limit: int = 1000) -> None:
    """Accepted: a trace is as deep as the network's own calls, and Python's limit holds for them."""


# ---- decorators of the graph compiler ----


def unchanged(fn: Any = None, **options: Any) -> Any:
    """A decorator for MindSpore's graph compiler (no_inline): what it decorates stays as it is."""
    return fn if fn is not None else lambda inner: inner


def identity(*x: Any) -> Any:
    """What it is given: a Tensor, a tuple of them, None. `identity()` is the function."""
    return identity if not x else ops.identity(x[0]) if isinstance(x[0], Tensor) else x[0]


def lazy_inline(fn: Any = None, attrs: Any = None, policy: Any = None) -> Any:
    """A decorator for the `__init__` of a Cell, which is compiled as it would be without it.

    With compat="2.10" a network in interleaved pipeline stages needs one such Cell, as in MindSpore.
    """
    if fn is None:
        return lazy_inline
    instance(FunctionType, "The __init__ of a Cell")("lazy_inline", "fn", fn)
    fn.lazy_inline = True
    return fn


@checked("jit_class", cls=instance(type, "A class"))
def jit_class(cls: type) -> type:
    """A decorator for classes that a compiled network uses: here all can be."""
    return cls


def mutable(input_data: Any, dynamic_len: bool = False) -> Any:
    """input_data, numbers and tensors in tuples, lists and dicts: here what is not a tensor is a constant of a compiled
    function, and a changed one compiles again. Raises ArgumentTypeError.
    """
    flag("mutable", "dynamic_len", dynamic_len)
    inside = [input_data]
    while inside:
        each = inside.pop()
        if isinstance(each, (tuple, list, dict)):
            inside.extend(each.values() if isinstance(each, dict) else each)
        elif not isinstance(each, (bool, int, float, np.ndarray, np.generic, Tensor)):
            allowed = "Numbers and Tensors, and tuples, lists and dicts of them"
            raise ArgumentTypeError(f"input_data={shorten(input_data)}", where="mutable", allowed=allowed)
    return input_data


def run_check() -> None:
    """Say whose paths these are, and try a matrix product."""
    product = ops.matmul(Tensor(np.ones((2, 3), np.float32)), Tensor(np.ones((3, 2), np.float32)))
    works = bool((product.asnumpy() == 3).all())
    found = "a matrix product gives what it should" if works else "a matrix product is wrong"
    print(f"parallel_lab instead of MindSpore ({VERSION}): {found}.")


@checked(net=instance(Cell, "A Cell that was compiled"))
def sync_pipeline_shared_parameters(net: Cell) -> None:
    """Nothing is to be done: what several stages read goes from the first of them to the others in every run."""
