"""Primitives: an operator as an object, `ops.MatMul(transpose_b=True).shard(((2, 4), (4, 1)))`, as MindSpore has it.

`shard` checks what can be checked without shapes (`check_strategy_value`); the rest is checked when a network is
compiled. `Whole` is the base of Primitives that are no operators of a graph, such as `ops.Print`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ...base.checks import fitting, is_int
from ...base.errors import ArgumentTypeError, ShapeError, StrategyError, StrategyTypeError, in_family, shorten
from ...base.origin import Origin, caller
from ...base.settings.compat import get_compat
from ...layout.named_layout import Layout, Strategy
from ..spellings import TENSORS, tensor_operand
from ..synonyms import own_names
from .attributes import TARGET, Attributed
from .calling import Operator

# ---- checks ----


def check_strategy_value(strategy: Any, where: str, what: str = "strategy") -> Strategy | tuple[Layout, ...]:
    """A strategy without shapes: per input counts, or a layout. Raises StrategyTypeError, StrategyError."""
    text = f"{what} {shorten(strategy)}"
    per_input = "A tuple with one tuple per input, one int per dim, or with one layout per input"
    if not isinstance(strategy, tuple):
        hint = "For example ((2, 4), (4, 1)); mind the comma in ((2, 4),)"
        hint = f"For one input write ({strategy!r},)" if isinstance(strategy, Layout) else hint
        raise StrategyTypeError(f"{text} is a {type(strategy).__name__}", where=where, allowed=per_input, hint=hint)
    if any(isinstance(entry, Layout) for entry in strategy):
        return _check_layouts(strategy, where, what)
    for position, cuts in enumerate(strategy):
        spot = f"at input {position}"
        if not isinstance(cuts, tuple):
            hint = f"For one input write ({shorten(strategy)},)" if all(isinstance(c, int) for c in strategy) else ""
            fault = f"{text} has a {type(cuts).__name__} {spot}"
            raise StrategyTypeError(fault, where=where, allowed=per_input, hint=hint)
        for dim, count in enumerate(cuts):
            if not is_int(count):
                fault = f"{text} has {shorten(count)} {spot}, dim {dim}"
                raise StrategyTypeError(fault, where=where, allowed="Counts are ints")
            if count < 1 and get_compat() == "seeds":  # 2.10 says so when the network is compiled
                fault = f"{text} splits dim {dim} of input {position} {count} ways"
                allowed = "Counts are at least 1, which leaves a dim whole"
                raise StrategyError(fault, where=where, allowed=allowed, hint=f"Try {shorten(_mended(strategy))}")
    return strategy


def _mended(strategy: tuple[Any, ...]) -> tuple[Any, ...]:
    """`strategy` with 1 for every count below it; anything but a count stays as it was given, right or wrong."""

    def mended(count: Any) -> Any:
        return max(1, count) if is_int(count) else count

    return tuple(tuple(map(mended, cuts)) if isinstance(cuts, tuple) else cuts for cuts in strategy)


def _check_layouts(strategy: tuple[Any, ...], where: str, what: str) -> tuple[Layout, ...]:
    """A strategy of layouts, checked as far as one can without shapes."""
    for position, layout in enumerate(strategy):
        if not isinstance(layout, Layout):
            wrong = f"{shorten(layout)} of type {type(layout).__name__} at input {position}"
            fault = f"{what} {shorten(strategy)} has {wrong}"
            hint = "Write layout() for a number, or for an input whose split follows from the others"
            allowed = "Layouts only, or tuples of ints only: the two do not mix"
            raise StrategyTypeError(fault, where=where, allowed=allowed, hint=hint if layout == () else "")
        if layout.dims is None:
            fault = f"{what} has {layout!r} at input {position}, which places no tensor yet"
            hint = f"For example {layout!r}({layout.alias_name[0]!r}, 'None')"
            allowed = "Layouts that were called with one entry per dim"
            raise StrategyError(fault, where=where, allowed=allowed, hint=hint)
    return strategy


# ---- operators as objects ----


class Primitive(Attributed):
    """An operator as an object, as in MindSpore: `ops.MatMul(transpose_b=True).shard(((2, 4), (4, 1)))`.

    Attributes of the operator are given to the constructor, tensors to the call. One instance carries one strategy.

    called_with  of an operator made of others, which is not itself a line of the graph: (shapes of the operands,
                 attributes) of its last call
    """

    op: Operator
    called_with: tuple[tuple[tuple[int, ...], ...], dict[str, Any]] | None = None

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "__call__" in vars(cls):
            cls.__call__ = fitting(vars(cls)["__call__"])  # type: ignore[method-assign]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        where = type(self).__name__
        if not hasattr(self, "op"):
            raise ArgumentTypeError(f"{where}() names no operator", allowed="One of its subclasses, such as MatMul()")
        names = list(self.options)
        allowed = f"Attributes: {', '.join(names) or 'none'}"
        if len(args) > len(names):
            raise ShapeError(f"got {len(args)} arguments", where=where, allowed=allowed)
        placed = dict(zip(names, args, strict=False))
        arguments = {**placed, **own_names(kwargs, names, placed)}
        unknown = [k for k in arguments if k not in names]
        if unknown:
            raise ShapeError(f"unknown attribute {unknown[0]!r}", where=where, allowed=allowed)
        if self.options is self.op.options:
            self.op.examine_attrs(arguments)
        self._begin_with(arguments)

    def _begin_with(self, attrs: dict[str, Any]) -> None:
        self.given = attrs
        self.instance_name = ""
        self.in_strategy: Strategy | tuple[Layout, ...] | None = None
        self.out_strategy: Strategy | tuple[Layout, ...] | None = None
        self.strategy_origin: Origin | None = None
        self.prim_attrs: dict[str, Any] = {}

    @property
    def compile_key(self) -> tuple[Any, ...]:
        """What compiled programs depend on: strategies, target, and what is asked of its messages."""
        asked = TARGET, "recompute_comm_op", "forward_reduce_scatter"
        return self.in_strategy, self.out_strategy, *map(self.prim_attrs.get, asked)

    @property
    def options(self) -> dict[str, Any]:
        """Attributes that the constructor takes, with their defaults."""
        return self.op.options

    @property
    def takes_strategy(self) -> bool:
        """Whether `shard` can say how operands are split; a Reshape passes on its producer's layout."""
        return not self.op.view

    def shard(
        self,
        in_strategy: Strategy | tuple[Layout, ...] | None = None,
        out_strategy: Strategy | tuple[Layout, ...] | None = None,
    ) -> Primitive:
        """Set how inputs are split: per input a tuple with a count per dim, or a called `Layout`. Returns self.

        out_strategy  how the result is split, one tuple (or layout) in a tuple. It follows from the inputs; only where
                      they leave partial sums is there a choice: the splits that follow (an all_reduce), or those with
                      dim 0 split further, among the ranks that hold the addends (a reduce_scatter)

        Raises StrategyTypeError (a TypeError) for wrong types, StrategyError for counts that no operator can take.

        What depends on shapes or on the number of devices is checked when the network is compiled. Takes effect in the
        semi-automatic and automatic modes (and in `parallel_lab.compile`).
        """
        origin = caller()
        where = f"{self.name} shard ({origin.place})" if origin.place else f"{self.name} shard"
        if in_strategy is None and out_strategy is not None:
            raise StrategyError("out_strategy is given without in_strategy", where=where, hint="Give in_strategy too")
        if in_strategy is not None and not self.takes_strategy:
            allowed = f"{self.name} takes no strategy: it passes on its producer's layout to the one its consumer wants"
            hint = "Shard the operator before or after it"
            raise StrategyError(f"strategy {shorten(in_strategy)}", where=where, allowed=allowed, hint=hint)
        if isinstance(in_strategy, tuple) and self.op.variadic:
            in_strategy = _of_each(in_strategy)
        inward = None if in_strategy is None else check_strategy_value(in_strategy, where)
        outward = None if out_strategy is None else check_strategy_value(out_strategy, where, "out_strategy")
        if inward and outward and isinstance(inward[0], Layout) != isinstance(outward[0], Layout):
            what = f"in_strategy {shorten(in_strategy)} with out_strategy {shorten(out_strategy)}"
            raise StrategyTypeError(what, where=where, allowed="Both are made of layouts, or both of tuples of ints")
        # nothing has changed if one of the two was refused
        self.in_strategy, self.out_strategy, self.strategy_origin = inward, outward, origin
        return self

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.called(self._in_order(args, named) if named else args)

    @property
    def operands(self) -> dict[str, Any]:
        """What a call takes, in order, with defaults; `inspect.Parameter.empty` where there is none."""
        return {name: self.op.defaults.get(name, inspect.Parameter.empty) for name in self.op.positional}

    def _in_order(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments of a call, those given by name at their places, and defaults of those between them."""
        known, names = self.operands, tuple(self.operands)
        placed = dict(zip(names, args, strict=False))
        named = own_names(named, names, placed)
        wrong = [name for name in named if name not in names or name in placed]
        leading = names[: max((names.index(name) + 1 for name in named if name in names), default=0)]
        missing = [n for n in leading if known[n] is inspect.Parameter.empty and n not in {**placed, **named}]
        if wrong or missing:
            what = f"{wrong[0]!r} is given by name" if wrong else f"{missing[0]!r} is missing"
            raise ShapeError(what, where=self.name, allowed=f"{self.name}(...)({', '.join(names)}), each once")
        return (*args, *({**known, **named}[name] for name in leading[len(args) :]))

    def called(self, args: Sequence[Any]) -> Any:
        """The result of a call."""
        return self.op.call(args, self.given, self)

    def __repr__(self) -> str:
        # MindSpore 2.10 leaves out_strategy out
        strategies: dict[str, Any] = {} if self.in_strategy is None else {"in_strategy": self.in_strategy}
        if strategies and get_compat() != "2.10":
            strategies["out_strategy"] = self.out_strategy
        shown = {**self.given, **strategies, **self.prim_attrs}
        return f"Prim[{self.name}]<{', '.join(f'{k}={v}' for k, v in shown.items())}>"


class Form(Primitive):
    """Another class of an operator, with attributes and a call of its own; `registry.form` declares one.

    arrange   (itself, *arguments of the call, **attributes) -> result, by `self.run(...)`
    settings  its attributes with their defaults; `inspect.Parameter.empty`: it has to be given
    read      how many tuples of a strategy count; further ones are not read
    """

    arrange: Callable[..., Any]
    settings: dict[str, Any]
    read: int | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.given = {**self.settings, **self.given}
        missing = [name for name, value in self.given.items() if value is inspect.Parameter.empty]
        if missing:
            allowed = f"Attributes: {', '.join(self.settings)}"
            raise ShapeError(f"missing attribute {missing[0]!r}", where=self.name, allowed=allowed)

    @property
    def options(self) -> dict[str, Any]:
        """Attributes that the constructor takes, with their defaults."""
        return self.settings

    @property
    def operands(self) -> dict[str, Any]:
        """As `Primitive.operands`."""
        parameters = list(inspect.signature(type(self).arrange).parameters.values())[1:]
        return {p.name: p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Primitive:
        """As `Primitive.shard`."""
        super().shard(in_strategy, out_strategy)
        self.in_strategy = self.in_strategy and self.in_strategy[: self.read]
        return self

    @in_family(ShapeError, ShapeError)
    def called(self, args: Sequence[Any]) -> Any:
        """The result of a call."""
        signature = inspect.signature(type(self).arrange)
        try:
            arguments = signature.bind(self, *args, **self.given).arguments
        except TypeError:
            names = [p.name for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY][1:]
            usage = f"{self.name}({', '.join(self.settings)})({', '.join(names)})"
            raise ShapeError(f"got {len(args)} arguments", where=self.name, allowed=usage) from None
        lists = {name for name, x in arguments.items() if self.op.variadic and isinstance(x, (list, tuple))}
        for name in arguments.keys() & set(TENSORS) - lists:
            arguments[name] = tensor_operand(self.name, name, arguments[name])
        return type(self).arrange(**arguments)

    def run(self, *args: Any, of: Operator | None = None, **attrs: Any) -> Any:
        """The operator's own call, with this class's name and strategy. of: another operator of the same operands."""
        return (of or self.op).call(args, attrs, self)

    def before(self, op: Operator, x: Any, **attrs: Any) -> Any:
        """An element-wise operator on the first operand, split as that is."""
        first = type(op.class_name, (Primitive,), {"op": op})(**{k: v for k, v in attrs.items() if k in op.options})
        if self.in_strategy is not None:
            first.in_strategy, first.strategy_origin = self.in_strategy[:1], self.strategy_origin
        return op.call((x,), attrs, first)


def _of_each(strategy: Any) -> Any:
    """The strategies of all tensors, those of a list taken out of it: (((4, 1), (4, 1)), (2,))."""
    nested = [isinstance(x, tuple) and x and all(isinstance(y, (tuple, Layout)) for y in x) for x in strategy]
    return tuple(y for x, inner in zip(strategy, nested, strict=True) for y in (x if inner else (x,)))


class WithoutStrategy(Primitive):
    """A Primitive without an `op` of the registry. why: the reason that `shard` gives."""

    why = ""

    def __init__(self, attrs: dict[str, Any] | None = None) -> None:
        self._begin_with({} if attrs is None else attrs)

    @property
    def options(self) -> dict[str, Any]:
        """{}: no attributes."""
        return {}

    @property
    def takes_strategy(self) -> bool:
        """False."""
        return False

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Primitive:
        """Raises StrategyError for anything but None. Returns self."""
        strategy = in_strategy if out_strategy is None else out_strategy
        if strategy is not None:
            raise StrategyError(f"strategy {shorten(strategy)}", where=self.name, allowed=f"None: {self.why}")
        return self


class Print(WithoutStrategy):
    """Print texts and tensors, one line each: `self.print("out is:", out)`. Returns the last argument.

    In a compiled network: name, shape and dtype when compiled; each rank's slice at every run. Takes no strategy.
    """

    why = "it prints each rank's slice as it is"

    def __call__(self, *args: Any) -> Any:
        for each in args:
            # repr of a Tensor has its shape and dtype; str of a traced value asks for the line that prints its slice
            print(repr(each) if hasattr(each, "asnumpy") and not hasattr(each, "tracer") else str(each))
        return args[-1] if args else None

    def __repr__(self) -> str:
        return "Prim[Print]<>"
