"""`Arithmetic`: Python operators and methods, for Tensors and for the values of a trace alike: `x @ w + b`,
`x.sum(axis=0)`, `x[1:]`.

Each is an operator of `ops`, which runs at once on a Tensor and is recorded on a traced value. Names are those of
MindSpore's Tensor. Most come from the operators' own declarations, by way of `TensorMethods` (`ops/spellings.py`), also
in a form of their own (`@method`); here are those of dtypes and shapes, and what is done in place.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...base.checks import choice, fitting_class, function
from ...base.dtypes import kind_of
from ...base.errors import NotBuiltYet, ShapeError
from ...ops.elementwise import cast
from ...ops.logic import select
from ...ops.machine.operand_checks import check_dim
from ...ops.shape import broadcast_to, flatten, repeat_interleave, reshape, squeeze, swapaxes, tile, transpose
from ...ops.spellings import TensorMethods, tensor_operand


class Handle:
    """What registering a hook returns: `remove()` takes it away again."""

    def __init__(self, hooks: list[Callable], hook: Callable) -> None:
        self._hooks, self._hook = hooks, hook

    def remove(self) -> None:
        """Call the hook no longer."""
        if self._hook in self._hooks:
            self._hooks.remove(self._hook)


@fitting_class
class Arithmetic(TensorMethods):
    """Python operators and methods, for Tensors and for values of a trace."""

    __slots__ = ()

    shape: tuple[int, ...]
    dtype: Any

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    # fmt: off
    def __pos__(self): return self
    def select(self, condition, y): return select(condition, self, y)
    def where(self, condition, y): return select(condition, self, y)
    def squeeze(self, axis=None): return squeeze(self, axis=axis)
    def astype(self, dtype, copy=True): return cast(self, dtype)
    def bool(self): return cast(self, "bool")
    def int(self): return cast(self, "int32")
    def long(self): return cast(self, "int64")
    def half(self): return cast(self, "float16")
    def float(self): return cast(self, "float32")
    def double(self): return cast(self, "float64")
    def type_as(self, other): return cast(self, str(tensor_operand("type_as", "other", other).dtype))
    def contiguous(self): return self
    def dim(self): return len(self.shape)
    def view(self, *shape): return reshape(self, _ints(shape))
    def nelement(self): return self.size
    def clone(self): return self.copy()
    def adjoint(self): return swapaxes(self, -1, -2)
    def is_contiguous(self): return True
    def is_complex(self): return False
    def is_floating_point(self): return kind_of(self.dtype) == "f"
    def is_signed(self): return kind_of(self.dtype) == "f" or np.dtype(self.dtype).kind == "i"
    # fmt: on
    mT = mH = H = property(adjoint, doc="The last two dims exchanged.")

    def stride(self, dim=None):
        """How many elements lie between neighbours along a dim; None: along each."""
        if dim is not None:
            dim = check_dim("stride", "dim", dim, len(self.shape), self.shape)
            return math.prod(self.shape[dim + 1 :])
        return tuple(math.prod(self.shape[i + 1 :]) for i in range(len(self.shape)))

    def _in_place(name):
        """`x.add_(y)`: x has the elements of `x.add(y)`, in its own dtype, as `x[...] = x.add(y)` gives it."""

        def method(self, *args, **kwargs):
            new = getattr(self, name)(*args, **kwargs)
            if kind_of(new.dtype) == "f" != kind_of(self.dtype):
                what, allowed = f"{new.dtype} elements for a tensor of {self.dtype}", "Results that its dtype can hold"
                raise ShapeError(what, where=f"{name}_", allowed=allowed, hint=f"Write x = x.{name}(...)")
            self[...] = new
            return self

        method.__name__, method.__doc__ = f"{name}_", f"`x[...] = x.{name}(...)`; returns x."
        return method

    add_, sub_, mul_, div_, subtract_ = map(_in_place, ("add", "sub", "mul", "div", "subtract"))
    exp_, log_, floor_, floor_divide_, remainder_ = map(_in_place, ("exp", "log", "floor", "floor_divide", "remainder"))
    clamp_, masked_fill_, index_add_, index_fill_ = map(_in_place, ("clamp", "masked_fill", "index_add", "index_fill"))
    scatter_, scatter_add_, index_put_ = map(_in_place, ("scatter", "scatter_add", "index_put"))
    addmm_, tanh_ = map(_in_place, ("addmm", "tanh"))
    del _in_place

    def fill_(self, value):
        """Every element is `value` from now on. Returns this tensor."""
        self[...] = value
        return self

    def copy_(self, src, non_blocking=False):
        """The elements are those of `src` from now on, in this tensor's dtype. Returns this tensor."""
        return self.fill_(tensor_operand("copy_", "src", src))

    def zero_(self):
        """Every element is 0 from now on. Returns this tensor."""
        return self.fill_(0)

    # == compares elements; a dict, a set or an optimizer knows a tensor by which object it is
    __hash__ = object.__hash__

    def register_hook(self, hook_fn):
        """hook_fn(gradient), when the gradient of this tensor is made: None, or another gradient. Returns a Handle.

        It is called in networks that run at once: where they are compiled, or no gradient is asked for, nothing does.
        A hook of a Parameter is refused: NotBuiltYet.
        """
        function("A function of the gradient")("register_hook", "hook_fn", hook_fn)
        if hasattr(self, "requires_grad") and getattr(self, "name", None):
            hint = "Change what value_and_grad returns, or register_backward_hook of the Cell"
            raise NotBuiltYet("a hook of a Parameter", where=f"Parameter {self.name!r}", hint=hint)
        hooks = getattr(getattr(self, "node", None) or self, "hooks", [])
        hooks.append(hook_fn)
        return Handle(hooks, hook_fn)

    def __iter__(self) -> Iterator[Any]:
        """The rows: `q, k, v = qkv`. Each is an operator."""
        return iter([self[i] for i in range(len(self))])

    def to(self, dtype):
        """The same values in another dtype. There are no devices to move to."""
        return cast(self, dtype)

    def copy(self):
        """The same values in a new tensor, gradient included."""
        return copy.copy(self)

    def _become(self, new):
        """Be `new` from now on: `x[...] = value`."""
        raise NotImplementedError

    def tile(self, *multiples):
        """Repeated `multiples[i]` times along dim i: `x.tile((2, 1))` or `x.tile(2, 1)`."""
        return tile(self, _ints(multiples))

    def repeat(self, repeats, axis=None):
        """Every element `repeats` times along `axis`, as numpy and MindSpore; PyTorch's repeat is `tile`."""
        return repeat_interleave(self, repeats, axis)

    def broadcast_to(self, *shape):
        """Stretched to `shape` by numpy's rules; -1 keeps a dim."""
        return broadcast_to(self, shape=_ints(shape))

    def reshape(self, *shape):
        """The same elements under another shape: `x.reshape(4, -1)` or `x.reshape((4, -1))`."""
        return reshape(self, _ints(shape))

    expand = broadcast_to

    def expand_as(self, other):
        """Stretched to the other's shape."""
        return broadcast_to(self, shape=tuple(tensor_operand("expand_as", "other", other).shape))

    def flatten(self, start_dim=0, end_dim=-1, *, order="C"):
        """The dims from start_dim to end_dim joined row by row, by default all (not `ops.flatten`); "F": by column."""
        start_dim, order = (0, start_dim) if isinstance(start_dim, str) else (start_dim, order)
        if choice("C", "F")("flatten", "order", order) == "F":
            return self.transpose().flatten(start_dim, end_dim)
        shape = tuple(self.shape)
        if not shape:
            return reshape(self, (1,))
        first = check_dim("flatten", "start_dim", start_dim, len(shape), shape)
        last = check_dim("flatten", "end_dim", end_dim, len(shape), shape)
        if first > last:
            raise ShapeError(f"start_dim={start_dim} is after end_dim={end_dim}", where="flatten")
        if (first, last) == (1, len(shape) - 1):
            return flatten(self)  # an operator that can be split, where a reshape is redistribution
        return reshape(self, (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))

    def transpose(self, *perm):
        """Dims in the order `perm`; without arguments reversed."""
        return transpose(self, _ints(perm) or tuple(reversed(range(self.ndim))))

    def permute(self, *axis):
        """Dims in the order `axis`: `x.permute(1, 0)` or `x.permute((1, 0))`."""
        return transpose(self, _ints(axis))

    @property
    def T(self):
        """Dims reversed."""
        return self.transpose()

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("a 0-d tensor has no length", where="len")
        return self.shape[0]


def _ints(given):
    """One tuple or list, or the ints themselves, as a tuple."""
    return tuple(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
