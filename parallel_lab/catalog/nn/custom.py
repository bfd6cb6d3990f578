"""Operators of the user's own: a class that says which shape and dtype its result has.

    class Penalty(PrimitiveWithInfer):
        @prim_attr_register
        def __init__(self, scale=1.0): ...
        def infer_shape(self, x): return []
        def infer_dtype(self, x): return x
        def __call__(self, x): return self.scale * x.abs().sum()        # what a run computes; not needed to compile

    Custom(lambda x: 2 * x, lambda x: x, lambda x: x, "pyfunc")         # the same without a class

    @bprop_getters.register(Penalty)
    def gradient(self):
        def bprop(x, out, dout): return (dout * self.scale * ops.sign(x),)
        return bprop

A method `get_bprop(self)` of the class gives the function, too (MindSpore 1.x). Every rank has its operands and results
whole (`catalog/ops/custom.py`). Forms: MindSpore, ops.PrimitiveWithInfer, ops.prim_attr_register.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ...base.checks import checked, choice, fitting, function, text
from ...base.dtypes import plain_array
from ...base.errors import ArgumentTypeError, ShapeError, shorten
from ...base.hooks import current_tracer
from ...nn.tensor.own_gradient import OwnGradient, next_number, values_of
from ...nn.tensor.tensor import Tensor
from ...ops.elementwise import a_dtype
from ...ops.machine.operand_checks import one_per_input
from ...ops.machine.primitive import WithoutStrategy, check_strategy_value
from ...ops.own_gradient import MADE, own_gradient
from ..ops.custom import custom


class PrimitiveWithInfer(WithoutStrategy):
    """Base of operators of the user's own; see the text of this module. A subclass defines infer_shape(*shapes) and
    infer_dtype(*dtypes), or both in `__infer__(*{"shape": ..., "dtype": ..., "value": ...})`.

    name  how plans call it, the class's name by default
    """

    op = custom
    why = "no rule says how an operator of one's own is split: its operands and results are whole on every rank"
    _own: Callable | None = None

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "__call__" in cls.__dict__:  # how it is computed; a call goes the way of all operators
            cls._own = cls.__dict__["__call__"]
            cls.__call__ = PrimitiveWithInfer.__call__

    @fitting
    def __init__(self, name: str = "") -> None:
        super().__init__()
        self._name = text(type(self).__name__, "name", name)
        self.number = next_number()  # by which a traced call names it
        MADE[self.number] = self

    @property
    def name(self) -> str:
        """How plans call it."""
        return self.__dict__.get("_name") or type(self).__name__

    def init_prim_io_names(self, inputs: list[str], outputs: list[str]) -> None:
        """Name inputs and outputs; kept as attributes."""
        self.prim_attrs |= {"input_names": list(inputs), "output_names": list(outputs)}

    @functools.cached_property
    def compute(self) -> Callable | None:
        """The function of arrays that gives the result, or a tuple of results; None: nobody has said."""
        own = vm_impl_registry.of(self) or (self._own and functools.partial(type(self)._own, self))
        return own and (lambda *arrays: values_of(own(*map(Tensor, arrays))))

    @functools.cached_property
    def gradient(self) -> Callable | None:
        """The function of (*inputs, result, its gradient) that gives a tuple of gradients; None: nobody has said. It
        is kept, with the operators that it calls.
        """
        rule = bprop_getters.of(self) or (self.get_bprop() if hasattr(type(self), "get_bprop") else None)
        if rule is None:
            return None

        def gradients(*given: Any) -> tuple[Any, ...]:
            input_gradients = rule(*given)
            input_gradients = input_gradients if isinstance(input_gradients, (tuple, list)) else (input_gradients,)
            return tuple(map(values_of, one_per_input(input_gradients, given[:-2], self.name)))

        return gradients

    def __call__(self, *args: Any) -> Any:
        if "number" not in self.__dict__:
            what = f"{type(self).__name__}.__init__ did not call super().__init__(name)"
            raise ArgumentTypeError(what, hint="Or decorate it: @prim_attr_register")
        operands = [x if hasattr(x, "shape") and hasattr(x, "dtype") else plain_array(x) for x in args]
        facts = [(tuple(x.shape), np.dtype(str(x.dtype))) for x in operands]
        results, dtypes, several = self._inferred(facts)
        attrs = {"called": self.name, "number": self.number, "results": results, "dtypes": dtypes}
        return custom.call(operands, {**attrs, "several": several}, self)

    def _inferred(self, facts: list[tuple[tuple[int, ...], np.dtype]]) -> tuple[tuple, tuple, bool]:
        """(shapes, names of dtypes, whether they are several) of the results for operands of these shapes, dtypes."""
        where = self.name
        if hasattr(self, "__infer__"):
            declared = self.__infer__(
                *[{"shape": list(shape), "dtype": dtype, "value": None} for shape, dtype in facts]
            )
            shapes, dtypes = declared["shape"], declared["dtype"]
        elif hasattr(self, "infer_shape") and hasattr(self, "infer_dtype"):
            shapes = self.infer_shape(*[list(shape) for shape, _ in facts])
            dtypes = self.infer_dtype(*[dtype for _, dtype in facts])
        else:
            allowed = "A class with infer_shape(*shapes) and infer_dtype(*dtypes)"
            raise ArgumentTypeError("it does not say what its result is", where=where, allowed=allowed)
        several = bool(shapes) and all(isinstance(each, (list, tuple)) for each in shapes)
        shapes, dtypes = (shapes, dtypes) if several else ((shapes,), (dtypes,))
        fits = isinstance(dtypes, (list, tuple)) and len(dtypes) == len(shapes)
        if not fits or not all(isinstance(n, (int, np.integer)) and n >= 0 for each in shapes for n in each):
            given = f"infer_shape gives {shorten(shapes)}, infer_dtype {shorten(dtypes)}"
            raise ShapeError(given, where=where, allowed="A shape and a dtype per result")
        names = tuple(str(a_dtype(where, "infer_dtype", dtype)) for dtype in dtypes)
        return tuple(tuple(map(int, shape)) for shape in shapes), names, several


class Custom(PrimitiveWithInfer):
    """`Custom(func, out_shape, out_dtype, func_type, bprop)(*inputs)`: an operator of one's own, without a class.

    func       a function of arrays; or the name of compiled code, whose operator can be compiled and not run
    out_shape  of the result, or of several results a list; or a function of the inputs' shapes that gives it. None:
               what `func` makes of zeros.  out_dtype: likewise, of dtypes
    func_type  which of MindSpore's ways to say `func`;  bprop: (*inputs, out, dout) -> gradients
    reg_info   accepted

    A strategy has no effect: every rank has operands and results whole.
    """

    why = ""

    @checked(
        func_type=choice("hybrid", "pyfunc", "aot", "akg", "tbe", "aicpu", "julia"),
        bprop=function("A function of (*inputs, out, dout)") | None,
    )
    def __init__(
        self,
        func: Any,
        out_shape: Any = None,
        out_dtype: Any = None,
        func_type: str = "hybrid",
        bprop: Callable | None = None,
        reg_info: Any = None,
    ) -> None:
        if isinstance(func, str) and (out_shape is None or out_dtype is None):
            raise ArgumentTypeError(f"Custom({shorten(func)})", allowed="Compiled code with out_shape and out_dtype")
        if not isinstance(func, str):
            function("A function of arrays, or the name of compiled code")("Custom", "func", func)
        super().__init__("Custom")
        self.func, self.out_shape, self.out_dtype, self.bprop = func, out_shape, out_dtype, bprop

    def __infer__(self, *inputs: dict[str, Any]) -> dict[str, Any]:
        facts = {key: [one[key] for one in inputs] for key in ("shape", "dtype")}
        said = {"shape": self.out_shape, "dtype": self.out_dtype}
        if None in said.values():
            made = self.func(*map(np.zeros, facts["shape"], facts["dtype"]))
            seen = [(list(each.shape), each.dtype) for each in (made if isinstance(made, tuple) else (made,))]
            shapes, dtypes = map(list, zip(*seen, strict=True))
            several = isinstance(made, tuple)
            said = {"shape": shapes if several else shapes[0], "dtype": dtypes if several else dtypes[0]}
        return {key: how(*facts[key]) if inspect.isroutine(how) else how for key, how in said.items()}

    @functools.cached_property
    def compute(self) -> Callable | None:
        """As `PrimitiveWithInfer.compute`."""
        return self.func if callable(self.func) else None

    def get_bprop(self) -> Callable | None:
        """The function of the gradients that was given."""
        return self.bprop

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Custom:
        """Checked, and without effect. Returns self."""
        for strategy in (in_strategy, out_strategy):
            if strategy is not None:
                check_strategy_value(strategy, "Custom shard")
        return self


class InsertGradientOf(WithoutStrategy):
    """`InsertGradientOf(f)(x)`: x, whose gradient is f(its gradient)."""

    op = own_gradient
    why = "its function is given the whole gradient on every rank"

    @checked(f=function("A function of the gradient"))
    def __init__(self, f: Callable) -> None:
        super().__init__()
        self.own = OwnGradient(type(self).__name__, lambda _, gradients: [self._new(f, gradients[0])])

    @staticmethod
    def _new(f: Callable, gradient: Any) -> Any:
        return f(gradient)

    def __call__(self, x: Any) -> Any:
        return self.own((x,), several=False)


class HookBackward(InsertGradientOf):
    """`HookBackward(hook_fn)(x)`: x; hook_fn is called with a tuple of its gradient, and may return another one.

    For networks that run at once; a compiled one has x as it is. cell_id is accepted.
    """

    @fitting
    def __init__(self, hook_fn: Callable, cell_id: str = "") -> None:
        text("HookBackward", "cell_id", cell_id)
        function("A function of the gradient")("HookBackward", "hook_fn", hook_fn)
        super().__init__(hook_fn)

    @staticmethod
    def _new(f: Callable, gradient: Any) -> Any:
        new = f((gradient,))
        new = new[0] if isinstance(new, tuple) else new
        return gradient if new is None else new

    def __call__(self, x: Any) -> Any:
        return x if current_tracer.get() is not None else super().__call__(x)


def prim_attr_register(init: Callable) -> Callable:
    """A decorator of `__init__`: its arguments become attributes of the operator, which is named after its class."""
    function("An __init__ method")("prim_attr_register", "init", init)
    signature = inspect.signature(init)

    @functools.wraps(init)
    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(self, PrimitiveWithInfer):
            PrimitiveWithInfer.__init__(self)
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            for name, value in list(bound.arguments.items())[1:]:
                self.add_prim_attr(name, value)
                setattr(self, name, value)
        init(self, *args, **kwargs)

    return begin


class Getters:
    """Functions by the class of operators of one's own: `register(cls)` decorates one, which is called with the
    operator and gives what computes its result, or its gradient.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._getters: weakref.WeakKeyDictionary[type, Callable] = weakref.WeakKeyDictionary()

    def register(self, primitive: Any) -> Callable[[Callable], Callable]:
        """Decorator. primitive: a subclass of PrimitiveWithInfer. Raises ArgumentTypeError."""
        if not (isinstance(primitive, type) and issubclass(primitive, PrimitiveWithInfer)):
            allowed = "A subclass of PrimitiveWithInfer; the operators of this package have their own"
            raise ArgumentTypeError(f"{self.what}.register({shorten(primitive)})", allowed=allowed)

        def keep(getter: Callable) -> Callable:
            self._getters[primitive] = getter
            return getter

        return keep

    def of(self, operator: PrimitiveWithInfer) -> Callable | None:
        """What was registered for the class of `operator`, called with it; None: nothing."""
        for cls in type(operator).__mro__:
            if cls in self._getters:
                return self._getters[cls](operator)
        return None


bprop_getters, vm_impl_registry = Getters("bprop_getters"), Getters("vm_impl_registry")
