"""What a call of an operator does: `ops.matmul(a, b)`, or `ops.MatMul()(a, b)`.

The walk of one call:

    __call__   the function; element-wise operators on arrays or Tensors alone go straight to `fn` ("plain")
    call       also the class's way in; splits arguments into operands and attributes (`bind`), checks them (`examine`)
    _one       while a network is traced: `tracer.record`. With a Tensor: its `__parallel_lab_op__`, which keeps what
               a gradient needs and then calls `attempt`. Otherwise `attempt` itself
    attempt    `compute`, whose numpy errors become a ShapeError in words
    compute    the decorated function `fn` on arrays: a @ b. Ranks that run a plan enter here (`opdef.py`)

An operator with several results is called once, and is one node of a graph: what a call gives is a tuple.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...base.checks import SHAPE_ERRORS, Check, flag, no_tensor
from ...base.dtypes import float_result, number_result, scalar_operand
from ...base.errors import STUMBLES, ArgumentTypeError, OutOfMemory, ParallelLabError, ShapeError, shorten, stumbled
from ...base.hooks import current_tracer
from ...base.seeds import repeated
from ..synonyms import own_names
from .opdef import OpDef, dtype_name
from .operand_checks import OperandType, is_operand, refuse
from .signature import Shape

OBJECT = np.dtype(object)


class Operator(OpDef):
    """An operator that can be called: an `OpDef` with the walk of a call."""

    @property
    def primitive(self) -> Callable[..., Any]:
        """Its class: `matmul.primitive` is `ops.MatMul`. Classes with other names and forms are in `primitives`."""
        return self.primitives[self.class_name]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.plain and not kwargs and len(args) == len(self.tensors) and current_tracer.get() is None:
            # the short way of what a tape does most: arrays of numbers of one dtype, element by element
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
        return simple and self.result_shape is None and self.check is None and self.expand is None and not self.writes

    @cached_property
    def plain_kinds(self) -> str:
        """Kinds of dtypes that `fn` takes as they are, if the operator is `plain`: the others `compute` converts."""
        return "f" if self.dtype is float_result else "iuf" if self.dtype is number_result else "biuf"

    def call(self, args: Sequence[Any], kwargs: dict[str, Any], primitive: Any = None) -> Any:
        """Run at once, or record while tracing. Several results are a tuple.

        primitive  the Primitive that is called, with its strategy; None: the function
        """
        tracer, operands = current_tracer.get(), args
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
        except STUMBLES as error:  # its declaration counts on other dims
            given = f"operands {shorten([getattr(x, 'shape', x) for x in operands])}: "
            if fault := stumbled(error, self.class_name, *SHAPE_ERRORS, given):
                raise fault from fault.__cause__
            raise

    def examine_attrs(self, attrs: dict[str, Any]) -> None:
        """Raise ShapeError for attributes that no operands could go with: what their types and values alone say."""
        for name, value in attrs.items():
            check = flag if type(self.options.get(name)) is bool else self.attrs.get(name)
            if isinstance(check := getattr(check, "alone", check), Check):
                check(self.class_name, name, self._frozen({name: value})[name], SHAPE_ERRORS)

    def examine(self, operands: list[Any], attrs: dict[str, Any]) -> None:
        """Raise ShapeError for attributes and operands that the operator does not take."""
        facts = [OperandType(x) for x in operands]
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
        ready = [is_operand(x) for x in operands]
        keep_numbers = any(ready) or not at_once
        if all(ready):
            return operands
        return [x if ready[i] else self._as_array(i, x, keep_numbers) for i, x in enumerate(operands)]

    def _as_array(self, position: int, value: Any, keep_number: bool) -> Any:
        number = not self.variadic and self.takes_number[position]
        if number and isinstance(value, (bool, int, float)):
            if keep_number:
                return value
            array = scalar_operand(value, ())
            if array.dtype.kind in "biuf":
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
            facts = [OperandType(x) for x in arrays]
            # where shapes and dtypes say what is wrong, inference has the words
            self.infer(tuple(f.shape for f in facts), tuple(str(f.dtype) for f in facts), attrs)
            operands = " and ".join(f"{f.dtype} {f.shape}" for f in facts) + f" with {shorten(attrs)}" * bool(attrs)
            raise ShapeError(f"it cannot be computed for {operands}: {error}", where=self.class_name) from error

    def bind(
        self, args: Sequence[Any], kwargs: dict[str, Any], *, as_class: bool = False
    ) -> tuple[list[Any], dict[str, Any]]:
        """Split call arguments into tensor operands and attributes; attributes at their default are kept too.

        as_class  attributes of the class were given to its constructor: by position the call takes tensors and the
                  attributes given with them only
        """
        if self.plain and not kwargs and len(args) == len(self.tensors):
            return list(args), {}
        operands: list[Any] = []
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
        arguments = dict(zip(names, args, strict=False))
        arguments.update(own_names(kwargs, (*self.positional, *self.options), arguments))
        unknown = [k for k in arguments if k not in self.positional and k not in self.options]
        missing = [k for k in self.positional if k not in arguments and k not in self.defaults]
        missing += [
            k for k, default in self.options.items() if default is inspect.Parameter.empty and k not in arguments
        ]
        if unknown or missing:
            fault = f"unknown argument {unknown[0]!r}" if unknown else f"missing argument {missing[0]!r}"
            raise ShapeError(fault, where=self.name, allowed=usage)
        attrs = {**self.defaults, **self.options, **arguments}
        if not self.variadic:
            operands = [attrs.pop(name) for name in self.tensors]
        elif not operands:
            raise ShapeError("got no tensors", where=self.name, allowed=usage)
        for name, value in attrs.items():
            if hasattr(value, "asnumpy"):
                # what MindSpore gives to the class (`kernel_size`) is not a tensor there
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
