"""What layers and optimizers here are made with: the arguments of another layer, a function applied to nested tuples.

    @arguments_of(Conv2d.__init__, without="data_format")
    def __init__(self, **settings): ...

    HyperMap()(ops.assign_add, totals, grads)

Source of the second: MindSpore, `ops.composite`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ...base.checks import flag, instance, kept
from ...base.errors import ArgumentTypeError, ShapeError

Init = Callable[..., None]


def arguments_of(
    init: Init, *, names: str = "", without: str = "", after: tuple[str, str, Any] | None = None, **defaults: Any
) -> Callable[[Init], Any]:
    """A decorator for `__init__(self, **settings)`, which is called with the arguments that `init` of another layer
    takes, by place and by name.

    names     those of its arguments that this layer has, in order; default: all;  without: those that it does not have
    after     one more argument: (the name before it, its name, its default);  defaults: those that differ
    """
    known = inspect.signature(init).parameters
    kept_names = (name for name in (["self", *names.split()] if names else known) if name not in without.split())
    takes = [known[name].replace(default=defaults.get(name, known[name].default)) for name in kept_names]
    if after is not None:
        name, more, default = after
        place = 1 + next(i for i, p in enumerate(takes) if p.name == name)
        takes.insert(place, inspect.Parameter(more, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default))
    signature = inspect.Signature(takes, return_annotation="None")

    def decorate(function: Init) -> Any:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            function(**bound.arguments)

        called.__signature__ = signature  # type: ignore[attr-defined]
        return called

    return decorate


class HyperMap:
    """A function applied to elements of nested tuples and lists in step: `HyperMap()(fn, grads, totals)` -> a tuple.

    ops  the function; None: it is the first argument of the call

    With `Map` only the outermost level is taken apart.
    """

    deep = True

    @kept(ops=instance(Callable, "A function") | None, reverse=flag)
    def __init__(self, ops: Callable | None = None, reverse: bool = False) -> None:
        pass

    def __call__(self, *args: Any) -> Any:
        where = type(self).__name__
        fn, sequences = (self.ops, args) if self.ops is not None else (args[0] if args else None, args[1:])
        if not callable(fn) or not sequences:
            allowed = "A function, and tuples of equal length"
            raise ArgumentTypeError(f"called with {len(args)} arguments", where=where, allowed=allowed)
        return self._mapped(fn, sequences, 0)

    def _mapped(self, fn: Callable, values: Sequence[Any], depth: int) -> Any:
        nested = [isinstance(v, (tuple, list)) for v in values]
        if not any(nested) or (depth and not self.deep):
            return fn(*values)
        if not all(nested) or len({len(v) for v in values}) > 1:
            sizes = ", ".join(str(len(v)) if n else type(v).__name__ for v, n in zip(values, nested, strict=True))
            allowed = "Equal lengths, nested alike"
            raise ShapeError(f"tuples of {sizes} elements", where=type(self).__name__, allowed=allowed)
        rows = list(zip(*values, strict=True))
        done = [self._mapped(fn, row, depth + 1) for row in (reversed(rows) if self.reverse else rows)]
        return tuple(reversed(done)) if self.reverse else tuple(done)
