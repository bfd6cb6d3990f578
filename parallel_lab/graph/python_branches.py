"""Finds `if` on tensors in a function's source: `with_branches(construct)` is the function with its `if`, `for`, `and`,
`or`, `not` and early `return` as calls that see the tensor (`Operators`), by the library malt (AutoGraph on its own).

    if x.mean() > 0:                    def if_body(): nonlocal y; y = ops.exp(x)
        y = ops.exp(x)          ->      def else_body(): nonlocal y; y = x
    else:                               ag__.if_stmt(ag__.converted_call(x.mean, ...) > 0, if_body, else_body,
        y = x                                        get_state, set_state, ("y",), 1)

Lines and file stay the author's own, so that errors and plans name them. A function of a library, or without source,
is left as it is.
"""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

from ..base.errors import TraceError
from ..base.hooks import current_tracer
from ..base.origin import caller, is_learners
from ..ops.machine.registry import OPS
from .traced_branches import Missing, Variables
from .traced_value import Overflow, TracedValue

_DONE = "autograph_info__"  # of a function that malt has made: as it marks those inside of them
_MAKES_NO_VALUE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def with_branches(function: Callable[..., Any], made: dict[Any, Any]) -> Callable[..., Any]:
    """A function or method of the learner's that runs both sides of its `if` on tensors; anything else as it is.

    made  factories of the functions that were read before, by code object
    """
    method = inspect.ismethod(function)
    plain: Any = function.__func__ if method else function
    code: Any = getattr(plain, "__code__", None)
    if not inspect.isfunction(plain) or hasattr(plain, _DONE) or hasattr(plain, "__wrapped__"):
        return function
    if code.co_name == "<lambda>" or code.co_flags & _MAKES_NO_VALUE or not is_learners(code.co_filename):
        return function
    if code not in made:
        made[code] = _factory(plain)
    if made[code] is None:
        return function
    cells = dict(zip(code.co_freevars, plain.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in made[code].co_freevars)
    result = types.FunctionType(made[code], plain.__globals__, code.co_name, closure=closure)(Operators())
    result.__defaults__, result.__kwdefaults__ = plain.__defaults__, plain.__kwdefaults__
    setattr(result, _DONE, None)
    return types.MethodType(result, function.__self__) if method else result


def _factory(function: Any) -> types.CodeType | None:
    """The code of a function of `ag__` that returns the changed function; None where its source cannot be read."""
    from malt.converters import conditional_expressions
    from malt.core.converter import STANDARD_OPTIONS, ProgramContext
    from malt.impl.api import PyToPy
    from malt.pyct.anno import Basic
    from malt.pyct.transpiler import GenericTranspiler

    try:
        changed, context = GenericTranspiler.transform_function(PyToPy(), function, ProgramContext(STANDARD_OPTIONS))
        while any(isinstance(node, ast.IfExp) for node in ast.walk(changed)):  # malt takes the outermost ones only
            changed = conditional_expressions.transform(changed, context)
    except Exception:  # no source, or a form that malt does not know: its truth test is refused where it stands
        return None
    defined: Any = changed
    free = " = ".join((*function.__code__.co_freevars, "unused"))
    outer: Any = ast.parse(
        f"def outer():\n    {free} = None\n    def factory(ag__):\n        return {defined.name}\n    return factory"
    )
    outer.body[0].body[1].body.insert(0, defined)
    for node in ast.walk(outer):
        origin: Any = Basic.ORIGIN.of(node, default=None)
        for name in node._attributes:
            node.__dict__.pop(name, None)
        if origin is not None and node._attributes:  # what malt adds has the line of what is around it
            line, column = origin.loc.lineno, origin.loc.col_offset
            node.__dict__.update(lineno=line, end_lineno=line, col_offset=column, end_col_offset=column)
    code = compile(ast.fix_missing_locations(outer), function.__code__.co_filename, "exec")
    for name in ("outer", "factory"):
        code = next(one for one in code.co_consts if isinstance(one, types.CodeType) and one.co_name == name)
    return code


def _is_traced(value: Any) -> bool:
    return isinstance(value, TracedValue) and not isinstance(value, Overflow)


class _FunctionScope:
    """What a changed function returns through; malt finds the function's frame by it."""

    def __init__(self, function_name: str, scope_name: str, options: Any) -> None:
        self.name = scope_name

    def __enter__(self) -> _FunctionScope:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def ret(self, value: Any, returned: Any) -> Any:
        """The function's result. Raises TraceError where it returns a value on one side of an `if` only."""
        if _is_traced(returned):
            hint = "Return a tensor of the same shape and dtype on the other side too"
            what, where = "the function returns a value on one side of an if only", caller().place
            raise TraceError(what, where=where, allowed="A value on both sides", hint=hint)
        return None if isinstance(value, Missing) else value


class Operators:
    """What changed functions call, under the names that malt gives them: Python's own meaning, but for tensors."""

    STD: Any = None
    FunctionScope = _FunctionScope
    Undefined = Missing

    @staticmethod
    def UndefinedReturnValue() -> Missing:  # named as malt calls it
        """What a function returns that has not returned yet."""
        return Missing("return", returned=True)

    @staticmethod
    def autograph_artifact(function: Any, extras: Any = None) -> Any:
        """A function that is defined inside a changed one."""
        setattr(function, _DONE, extras)
        return function

    @staticmethod
    def with_function_scope(run: Callable[..., Any], scope_name: str, options: Any) -> Any:
        """The body of a lambda."""
        return run(_FunctionScope("lambda", scope_name, options))

    @staticmethod
    def ld(value: Any) -> Any:
        """A variable that is read. Raises TraceError if only one side of an `if`, or a turn of a loop, sets it."""
        if isinstance(value, Missing):
            what, hint = f"{value.name!r} is not set on each side of an if", "Set it before the if, or the loop"
            raise TraceError(what, where=caller().place, allowed="Variables that every way sets", hint=hint)
        return value

    @staticmethod
    def ldu(read: Callable[[], Any], name: str) -> Any:
        """A variable or attribute, or `Missing`."""
        try:
            return read()
        except (KeyError, AttributeError, NameError):
            return Missing(name)

    @staticmethod
    def converted_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, scope: Any = None) -> Any:
        """A call in a changed function: of a function of the learner's, changed too."""
        from malt.operators import py_builtins

        if function is super:
            return py_builtins.super_in_original_context(function, args, scope)
        if function is locals or function is globals:
            return getattr(py_builtins, f"{function.__name__}_in_original_context")(scope)
        if function is eval:
            return py_builtins.eval_in_original_context(function, args, scope)
        return current_tracer.get().staged(function)(*args, **(kwargs or {}))

    @staticmethod
    def if_stmt(
        condition: Any, body: Any, orelse: Any, state: Any, set_state: Any, names: tuple[str, ...], count: int
    ) -> None:
        """`if` ... `else`."""
        if _is_traced(condition):
            current_tracer.get().branched(condition, (body, orelse), Variables(names, state, set_state))
        else:
            (body if condition else orelse)()

    @staticmethod
    def if_exp(condition: Any, if_true: Any, if_false: Any, text: str) -> Any:
        """`a if condition else b`."""
        if not _is_traced(condition):
            return if_true() if condition else if_false()
        held: list[Any] = [None]
        sides = [lambda side=side: held.__setitem__(0, side()) for side in (if_true, if_false)]

        def set_state(values: tuple[Any, ...]) -> None:
            held[:] = values

        current_tracer.get().branched(condition, sides, Variables((text,), lambda: tuple(held), set_state))
        return held[0]

    @staticmethod
    def for_stmt(
        items: Iterable[Any], test: Any, body: Any, state: Any, set_state: Any, names: tuple[str, ...], options: Any
    ) -> None:
        """`for`, written down once for each item; after a `break` or `return` on a tensor the rest is not taken."""
        for item in items:
            goes_on = True if test is None else test()
            if _is_traced(goes_on):
                sides = functools.partial(body, item), lambda: None
                current_tracer.get().branched(goes_on, sides, Variables(names, state, set_state))
            elif goes_on:
                body(item)
            else:
                break

    @staticmethod
    def while_stmt(test: Any, body: Any, state: Any, set_state: Any, names: tuple[str, ...], options: Any) -> None:
        """`while`; as soon as its condition is a tensor, a loop that runs as often as that says."""
        tracer: Any = current_tracer.get()
        while True:
            before, goes_on = tracer.written(), test()
            if _is_traced(goes_on):
                tracer.looped(test, body, Variables(names, state, set_state), before)
                return
            if not goes_on:
                return
            body()

    @staticmethod
    def not_(value: Any) -> Any:
        """`not`."""
        if not _is_traced(value):
            return not value
        return current_tracer.get().negated(value)

    @staticmethod
    def and_(first: Callable[[], Any], second: Callable[[], Any]) -> Any:
        """`and`; of tensors their logical_and."""
        left = first()
        if not _is_traced(left):
            return left and second()
        return _joined("logical_and", left, second(), decides=False)

    @staticmethod
    def or_(first: Callable[[], Any], second: Callable[[], Any]) -> Any:
        """`or`; of tensors their logical_or."""
        left = first()
        if not _is_traced(left):
            return left or second()
        return _joined("logical_or", left, second(), decides=True)


def _joined(op: str, left: TracedValue, right: Any, *, decides: bool) -> Any:
    tracer: Any = current_tracer.get()
    if _is_traced(right):
        return OPS[op](tracer.truth(left), tracer.truth(right))
    return decides if bool(right) == decides else tracer.truth(left)
