"""`TracedValue`: what a traced network computes with. It knows global shape and dtype, but no numbers."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.errors import TraceError, message
from ..base.hooks import current_tracer
from ..base.origin import caller
from ..nn.tensor.arithmetic import Arithmetic
from ..nn.tensor.tensor import Tensor
from ..ops.spellings import NAMES, NUMPY, UFUNCS


class TraceAttributeError(TraceError, AttributeError):
    """An attribute that a traced value does not have; also an AttributeError, so that hasattr() works."""


class TruthTest(TraceError):
    """A truth test of a traced value where no `if` or `while` was found in the function's source."""


class TracedValue(Arithmetic):
    """A value of the trace: a name, a shape and a dtype, no numbers."""

    __slots__ = ("dtype", "name", "shape", "tracer")
    answers = False  # for operators itself, as a DTensor does

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str, tracer: Any) -> None:
        self.name, self.shape, self.dtype, self.tracer = name, tuple(shape), np.dtype(dtype), tracer

    @property
    def __class__(self) -> type:
        """Tensor for the learner's own code, which may ask `isinstance(x, Tensor)`; this package asks which it has."""
        asks = sys._getframe(1).f_globals.get("__name__", "")
        return type(self) if asks.partition(".")[0] == __name__.partition(".")[0] else Tensor

    def _refuse(self, what: str, kind: type[TraceError] = TraceError) -> Any:
        needs = f"{what} needs the numbers of {self.name!r} (shape {self.shape}, {self.dtype})"
        allowed = "While a network is compiled its tensors have shapes but no values yet"
        hint = "Run the Cell outside a parallel mode to look at numbers, or use operators instead"
        raise kind(needs, where=caller().place, allowed=allowed, hint=hint)

    # fmt: off
    def asnumpy(self): return self._refuse("asnumpy()")
    def item(self): return self._refuse("item()")
    def __array__(self, dtype: Any = None, copy: Any = None): return self._refuse("a conversion to a numpy array")
    def __bool__(self): return self._refuse("a truth test (if, while, and, or)", TruthTest)
    def __float__(self): return self._refuse("float()")
    def __int__(self): return self._refuse("int()")
    def __complex__(self): return self._refuse("complex()")
    def __index__(self): return self._refuse("use as an index")
    def __round__(self, digits: Any = None): return self._refuse("round()")
    def __contains__(self, value: Any): return self._refuse("a search ('in')")
    def _become(self, new: TracedValue) -> None: self.tracer.item_set(self, new.name)
    # fmt: on

    def _no_operator(self, what: str, hint: str, kind: type[TraceError] = TraceError) -> Any:
        """Raise TraceError: `what` is not among the operators that can be compiled."""
        call = f"{what} of {self.name!r} (shape {self.shape}, {self.dtype}) is not an operator yet"
        allowed = "A network that is compiled uses the operators of parallel_lab.ops"
        raise kind(message(call, where=caller().place, allowed=allowed, hint=hint))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """`array + x` reaches this through numpy, and is recorded; numpy functions on x are refused."""
        operator = UFUNCS.get(ufunc.__name__)
        # Python asks x's own method first when x stands on the left, so only here can numpy have been asked to add
        if method == "__call__" and ufunc.__name__ in _BINARY_UFUNCS and not isinstance(inputs[0], TracedValue):
            out = kwargs.pop("out", None)
            if not kwargs and (out is None or out[0] is inputs[0]):
                return operator(*inputs)
        hint = f"Use ops.{operator.name}" if operator else "Use operators instead"
        return self._no_operator(f"np.{ufunc.__name__}", hint)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        name = function.__name__
        operator = NUMPY.get(name)
        if name in ("shape", "ndim", "size"):  # known without numbers
            return getattr(self, name)
        return self._no_operator(f"np.{name}", f"Use ops.{operator}" if operator else "Use operators instead")

    def __format__(self, spec: str) -> str:
        return self._refuse(f"the format {spec!r}") if spec else str(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in TracedValue.__slots__:  # Python and numpy look for optional methods
            raise AttributeError(name)
        return self._no_operator(f"the attribute {name!r}", _attribute_hint(name), TraceAttributeError)

    @property
    def data(self) -> TracedValue:
        return self  # as in MindSpore

    def __getitem__(self, key: Any) -> Any:
        # among the variables of an `if` malt counts x[0] too: of a tensor the whole is chosen instead
        plain: Any = super()
        return None if getattr(self.tracer, "between_sides", False) else plain.__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        if not getattr(self.tracer, "between_sides", False):
            plain: Any = super()
            plain.__setitem__(key, value)

    def __repr__(self) -> str:
        return f"TracedValue({self.name}, shape={self.shape}, dtype={self.dtype})"

    def __str__(self) -> str:
        """What `print(x)` shows during compilation; numbers follow when the plan runs: on each rank its slice."""
        if hasattr(self.tracer, "prints") and current_tracer.get() is self.tracer:
            self.tracer.prints.append((self.tracer.shown(self), caller(self.tracer.scope_text())))
        what = f"{self.name}: global shape {self.shape}, {self.dtype}"
        return f"Tensor({what}; every rank prints its slice when the plan runs)"


class Overflow(TracedValue):
    """Whether a step overflowed: a value that is false where Python asks for it. What is written for a step that counts
    is compiled, and the optimizer's update looks at the value (`Tracer.unless`).
    """

    __slots__ = ()

    def __bool__(self) -> bool:
        return False


# the numpy functions behind Python's binary operators
_ARITHMETIC = ("add", "subtract", "multiply", "divide", "true_divide", "power", "matmul")
_BINARY_UFUNCS = frozenset((*_ARITHMETIC, "equal", "not_equal", "greater", "greater_equal", "less", "less_equal"))


def _attribute_hint(name: str) -> str:
    if name in NAMES:
        return f"Use ops.{name}(x)"
    near = difflib.get_close_matches(name, [n for n in dir(TracedValue) if not n.startswith("_")], 1)
    return f"Did you mean {near[0]!r}?" if near else "Use operators instead"
