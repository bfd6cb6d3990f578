"""`shard`: a Cell or a function whose inputs are split as told, from which strategies inside are propagated.

block = shard(net.block, in_strategy=((4, 1),), parameter_plan={"dense.weight": (1, 2)})
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..base.checks import checked, function, instance, integer, text
from ..base.errors import ArgumentError, ArgumentTypeError, ShardConditionError, shorten
from ..base.hooks import current_tracer, current_world
from ..base.settings.current import frozen
from ..ops.elementwise import identity
from ..ops.machine.primitive import check_strategy_value
from .cell import Cell
from .tensor.parameter import Parameter


class ShardedCell(Cell):
    """What `shard` returns: callable as the Cell or function it wraps, whose Parameters it shows under their own names.

    Inside a network that is compiled anyway, Identities before the Cell and after it carry the strategies, from which
    others spread.

    in_strategy   one strategy per input; None: rows split among all ranks
    pinned        (Parameter, strategy) pairs
    out_strategy  one strategy per result; None, for one or for all: as propagated
    """

    def __init__(
        self,
        fn: Callable,
        in_strategy: tuple[Any, ...],
        pinned: list[tuple[Parameter, Any]],
        out_strategy: tuple[Any, ...] | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.__dict__.update(fn=fn, in_strategy=in_strategy, pinned=pinned, out_strategy=out_strategy)
        if isinstance(fn, Cell):
            # the same tables, not copies: what is added to the Cell later is seen here too
            self.__dict__.update(_cells=fn._cells, _params=fn._params, _primitives=fn._primitives)

    def construct(self, *inputs: Any) -> Any:
        if current_tracer.get() is None:
            check_propagates()
            return self.fn(*inputs)
        in_place = vars(self.fn).pop("_laid_out", None) if isinstance(self.fn, Cell) else None
        try:
            return self.laid_out(self.fn, inputs, {})
        finally:
            if in_place is not None:
                vars(self.fn)["_laid_out"] = in_place

    def laid_out(self, construct: Callable, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """`construct` of these inputs, while a network is traced: inputs, Parameters and results as told."""
        if named:
            inputs = inspect.signature(self.fn.construct).bind(*inputs, **named).args
        if len(inputs) != len(self.in_strategy):
            what = f"{len(inputs)} inputs and {len(self.in_strategy)} strategies"
            hint = "None splits an input's rows over all ranks"
            raise ArgumentError(what, where="shard", allowed="One strategy per input", hint=hint)
        tracer: Any = current_tracer.get()
        given = [self._placed(x, strategy) for x, strategy in zip(inputs, self.in_strategy, strict=True)]
        outer = dict(tracer.pinned)
        for parameter, strategy in self.pinned:
            tracer.pinned[id(parameter)] = self._placed(parameter, strategy)
        try:
            found = construct(*given)
        finally:
            tracer.pinned = outer
        results = found if isinstance(found, tuple) else (found,)
        wanted = self.out_strategy or (None,) * len(results)
        if len(wanted) != len(results):
            what = f"{len(results)} results and {len(wanted)} strategies in out_strategy"
            raise ArgumentError(what, where="shard", allowed="One strategy per result")
        placed = tuple(x if s is None else self._placed(x, s) for x, s in zip(results, wanted, strict=True))
        return placed if isinstance(found, tuple) else placed[0]

    @staticmethod
    def _placed(value: Any, strategy: Any) -> Any:
        if not hasattr(value, "shape"):
            return value  # a number or None cannot be split
        if strategy is None:
            world = current_world()
            ranks = frozen().device_num if world is None else world.world_size
            rows = ranks if value.shape and value.shape[0] % ranks == 0 else 1
            strategy = (rows,) + (1,) * (len(value.shape) - 1) if value.shape else ()
        return identity.primitive().shard((strategy,))(value)

    def __repr__(self) -> str:
        return f"ShardedCell({self.fn!r}, in_strategy={self.in_strategy})"


@checked(
    fn=function("A Cell or a function of Tensors"),
    in_strategy=instance(tuple, "A tuple with one strategy per input. Mind the comma: ((4, 1),)"),
    out_strategy=instance(tuple, "A tuple") | None,
    parameter_plan=instance(dict, "A dict {name: strategy}") | None,
    device=text,
    level=integer(),
)
def shard(
    fn: Callable,
    in_strategy: tuple[Any, ...],
    out_strategy: tuple[Any, ...] | None = None,
    parameter_plan: dict[str, Any] | None = None,
    device: str = "Ascend",
    level: int = 0,
) -> ShardedCell:
    """`fn` with its inputs split by `in_strategy`; strategies inside are propagated from there (conditions: MindSpore
    2.6, shard, Cell.shard).

        block = shard(net.block, in_strategy=((4, 1),), parameter_plan={"dense.weight": (1, 2)})
        y = block(x)      # on a rank, in PyNative mode: this call runs compiled on all ranks, what is around it at once

    fn              a Cell or a function of Tensors
    in_strategy     one tuple of counts (or Layout) per input; None for an input: its rows are split among all ranks
    out_strategy    likewise per result; None, for one or for all: as propagated
    parameter_plan  {"dense.weight" or "self.dense.weight": counts} for Parameters of a Cell
    device, level   "Ascend" or "GPU", and an int: checked, without effect

    Raises ArgumentTypeError and ArgumentError for wrong arguments, StrategyError for an invalid strategy,
    ShardConditionError (an AssertionError) for another device, or for a mode that cannot propagate.
    """
    if device not in ("Ascend", "GPU"):
        raise ShardConditionError(f"device={device!r}", where="shard", allowed="'Ascend' or 'GPU'")
    for what, strategies in (("input", in_strategy), ("result", out_strategy or ())):
        for number, strategy in enumerate(strategies):
            if strategy is not None:
                check_strategy_value((strategy,), f"shard, {what} {number}")
    _check_count(fn, len(in_strategy))
    return ShardedCell(fn, in_strategy, _pinned(fn, parameter_plan or {}), out_strategy)


def _check_count(fn: Callable, count: int) -> None:
    """Raise ArgumentError if `fn` cannot be called with as many inputs as there are strategies."""
    try:
        signature = inspect.signature(fn.construct if isinstance(fn, Cell) else fn)
        signature.bind(*range(count))
    except TypeError:
        inside = [name for name, primitive in getattr(fn, "_primitives", {}).items() if primitive.takes_strategy]
        hint = f"For an operator inside ({', '.join(inside)}): .{inside[0]}.shard(...)" if inside else ""
        name = type(fn).__name__ if isinstance(fn, Cell) else getattr(fn, "__name__", "fn")
        what = f"{count} strategies for {name}{signature}"
        raise ArgumentError(what, where="shard", allowed="One strategy per input", hint=hint) from None
    except ValueError:
        return  # a callable that does not tell its arguments


def check_propagates() -> None:
    """Raise ShardConditionError unless the parallel mode is one in which given strategies spread."""
    config = frozen()
    propagates = config.search_mode == "sharding_propagation"
    if config.parallel_mode == "semi_auto_parallel" or (config.parallel_mode == "auto_parallel" and propagates):
        return
    given = f"parallel_mode={config.parallel_mode!r}"
    if config.parallel_mode == "auto_parallel":
        given += f" with search_mode={config.search_mode!r}"
    allowed = "auto_parallel with sharding_propagation, or semi_auto_parallel"
    hint = 'Use set_auto_parallel_context(parallel_mode="auto_parallel", search_mode="sharding_propagation")'
    raise ShardConditionError(given, where="shard", allowed=allowed, hint=hint)


def _pinned(fn: Callable, plan: dict[str, Any]) -> list[tuple[Parameter, Any]]:
    """(Parameter, strategy) pairs of a parameter_plan."""
    where, pinned = "shard", []
    if plan and not isinstance(fn, Cell):
        what, hint = "parameter_plan of a function", "Give the Cell itself"
        raise ArgumentTypeError(what, where=where, allowed="Parameters of a Cell", hint=hint)
    parameters = {name: p for path, p in fn.parameters_and_names() for name in (path, p.name)} if plan else {}
    for name, strategy in plan.items():
        if not isinstance(name, str):
            what = f"parameter_plan has the key {shorten(name)}"
            raise ArgumentTypeError(what, where=where, allowed="Names of Parameters")
        known = max((n for n in parameters if f".{name}".endswith(f".{n}")), key=len, default=None)
        if known is None:
            allowed = f"Parameters of the Cell: {', '.join(dict.fromkeys(p.name for p in parameters.values()))}"
            raise ArgumentError(f"parameter_plan names {name!r}", where=where, allowed=allowed)
        check_strategy_value((strategy,), f"shard, parameter_plan of {name!r}")
        parameter = parameters[known]
        cuts, shape = (
            strategy if isinstance(strategy, tuple) else (1,) * len(parameter.full_shape),
            parameter.full_shape,
        )
        fault = "Counts that divide the dims" if any(n % c for n, c in zip(shape, cuts, strict=False)) else ""
        fault = "One count per dim" if len(cuts) != len(shape) else fault
        if fault:
            what = f"parameter_plan splits {name!r} of shape {shape} {strategy}"
            raise ArgumentError(what, where=where, allowed=fault)
        pinned.append((parameter, strategy))
    return pinned


def _shard_in_place(cell: Cell, *how: Any) -> ShardedCell:
    """`shard` of a Cell that is laid out so from now on wherever it is called, until it is sharded again."""
    sharded = shard(cell, *how)
    vars(cell)["_laid_out"] = sharded.laid_out
    return sharded


Cell._sharded = _shard_in_place  # how a Cell, which this file is written with, reaches it
