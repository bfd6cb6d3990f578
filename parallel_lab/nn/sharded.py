"""`shard`: a Cell or a function whose inputs are cut as told, while the strategies inside follow from there.

    block = shard(net.block, in_strategy=((4, 1),), parameter_plan={"dense.weight": (1, 2)})
    y = block(x)                    # on a rank, in PyNative mode: this call runs compiled on all ranks, what is around it at once

Inside a network that is compiled anyway it puts an Identity with the strategy before the Cell, from which the strategies spread. Conditions and
errors: MindSpore, shard (mindspore 2.6), Cell.shard.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .. import ops
from ..context import current_tracer, current_world, frozen
from ..errors import ArgumentError, ArgumentTypeError, ShardConditionError, message, shorten
from ..ops.registry import check_strategy_value
from ..tensor import Parameter
from .cell import Cell
from .checks import whole_number

__all__ = ["ShardedCell", "shard"]


class ShardedCell(Cell):
    """What `shard` returns: callable as the Cell or function it wraps, whose Parameters it shows under their own names.

    in_strategy  one strategy per input; None: rows cut among all ranks
    pinned       (Parameter, strategy) pairs
    """

    def __init__(self, fn: Callable, in_strategy: tuple[Any, ...], pinned: list[tuple[Parameter, Any]]) -> None:
        super().__init__(auto_prefix=False)
        self.__dict__.update(fn=fn, in_strategy=in_strategy, pinned=pinned)
        if isinstance(fn, Cell):
            # the same tables, not copies: what is added to the Cell later is seen here too
            self.__dict__.update(_cells=fn._cells, _params=fn._params, _primitives=fn._primitives)

    def construct(self, *inputs: Any) -> Any:
        tracer = current_tracer.get()
        if tracer is None:
            check_propagates()
            return self.fn(*inputs)
        if len(inputs) != len(self.in_strategy):
            what = f"{len(inputs)} inputs and {len(self.in_strategy)} strategies"
            raise ArgumentError(message(what, where="shard", allowed="One strategy per input", hint="None cuts an input's rows among all ranks"))
        given = [self._placed(x, strategy) for x, strategy in zip(inputs, self.in_strategy, strict=True)]
        outer = dict(tracer.pinned)
        for parameter, strategy in self.pinned:
            tracer.pinned[id(parameter)] = self._placed(parameter, strategy)
        try:
            return self.fn(*given)
        finally:
            tracer.pinned = outer

    @staticmethod
    def _placed(value: Any, strategy: Any) -> Any:
        if not hasattr(value, "shape"):
            return value  # a number or None is no input that could be cut
        if strategy is None:
            world = current_world()
            ranks = frozen().device_num if world is None else world.world_size
            rows = ranks if value.shape and value.shape[0] % ranks == 0 else 1
            strategy = (rows,) + (1,) * (len(value.shape) - 1) if value.shape else ()
        return ops.Identity().shard((strategy,))(value)

    def __repr__(self) -> str:
        return f"ShardedCell({self.fn!r}, in_strategy={self.in_strategy})"


def shard(
    fn: Callable,
    in_strategy: tuple[Any, ...],
    out_strategy: tuple[Any, ...] | None = None,
    parameter_plan: dict[str, Any] | None = None,
    device: str = "Ascend",
    level: int = 0,
) -> ShardedCell:
    """`fn` with its inputs cut by `in_strategy`; strategies inside are propagated from there.

    fn              a Cell or a function of Tensors
    in_strategy     one tuple of cuts (or Layout) per input; None for an input: its rows are cut among all ranks
    out_strategy    checked, without effect, as in MindSpore
    parameter_plan  {"dense.weight" or "self.dense.weight": cuts} for Parameters of a Cell
    device, level   "Ascend" or "GPU", and an int: checked, without effect

    Raises ArgumentTypeError and ArgumentError for wrong arguments, StrategyError for cuts that are none, ShardConditionError (an AssertionError) for
    another device, and when it is called in a parallel mode that cannot propagate.
    """
    where = "shard"
    if not callable(fn) or isinstance(fn, type):
        raise ArgumentTypeError(message(f"fn is {shorten(fn)}", where=where, allowed="A Cell or a function of Tensors"))
    if not isinstance(in_strategy, tuple):
        what = f"in_strategy is {shorten(in_strategy)}"
        raise ArgumentTypeError(message(what, where=where, allowed="A tuple with one strategy per input", hint="Mind the comma: ((4, 1),)"))
    if out_strategy is not None and not isinstance(out_strategy, tuple):
        raise ArgumentTypeError(message(f"out_strategy is {shorten(out_strategy)}", where=where, allowed="A tuple, or None"))
    if not isinstance(device, str):
        raise ArgumentTypeError(message(f"device is {shorten(device)}", where=where, allowed="'Ascend' or 'GPU'"))
    whole_number(level, where, "level")
    if parameter_plan is not None and not isinstance(parameter_plan, dict):
        raise ArgumentTypeError(message(f"parameter_plan is {shorten(parameter_plan)}", where=where, allowed="A dict {name: strategy}, or None"))
    if device not in ("Ascend", "GPU"):
        raise ShardConditionError(message(f"device={device!r}", where=where, allowed="'Ascend' or 'GPU'"))
    for number, strategy in enumerate(in_strategy):
        if strategy is not None:
            check_strategy_value((strategy,), f"shard, input {number}")
    _check_count(fn, len(in_strategy))
    return ShardedCell(fn, in_strategy, _pinned(fn, parameter_plan or {}))


def _check_count(fn: Callable, count: int) -> None:
    """Raise ArgumentError if `fn` cannot be called with as many inputs as there are strategies."""
    try:
        signature = inspect.signature(fn.construct if isinstance(fn, Cell) else fn)
        signature.bind(*range(count))
    except TypeError:
        inside = [name for name, primitive in getattr(fn, "_primitives", {}).items() if primitive.takes_strategy]
        hint = f"For an operator inside ({', '.join(inside)}): .{inside[0]}.shard(...)" if inside else ""
        what = f"{count} strategies for {type(fn).__name__ if isinstance(fn, Cell) else getattr(fn, '__name__', 'fn')}{signature}"
        raise ArgumentError(message(what, where="shard", allowed="One strategy per input", hint=hint)) from None
    except ValueError:
        return  # a callable that does not tell its arguments


def check_propagates() -> None:
    """Raise ShardConditionError unless the parallel mode is one in which strategies spread from those that were given."""
    config = frozen()
    if config.parallel_mode == "semi_auto_parallel" or (config.parallel_mode == "auto_parallel" and config.search_mode == "sharding_propagation"):
        return
    given = f"parallel_mode={config.parallel_mode!r}"
    if config.parallel_mode == "auto_parallel":
        given += f" with search_mode={config.search_mode!r}"
    hint = 'Use set_auto_parallel_context(parallel_mode="auto_parallel", search_mode="sharding_propagation")'
    raise ShardConditionError(message(given, where="shard", allowed="auto_parallel with sharding_propagation, or semi_auto_parallel", hint=hint))


def _pinned(fn: Callable, plan: dict[str, Any]) -> list[tuple[Parameter, Any]]:
    """(Parameter, strategy) pairs of a parameter_plan."""
    if plan and not isinstance(fn, Cell):
        raise ArgumentTypeError(message("parameter_plan of a function", where="shard", allowed="Parameters of a Cell", hint="Give the Cell itself"))
    found: list[tuple[Parameter, Any]] = []
    known = {name: p for path, p in fn.parameters_and_names() for name in (path, p.name)} if plan else {}
    for name, strategy in plan.items():
        if not isinstance(name, str):
            raise ArgumentTypeError(message(f"parameter_plan has the key {shorten(name)}", where="shard", allowed="Names of Parameters"))
        short = name.removeprefix("self.")
        parameter = known[short] if short in known else next((p for n, p in known.items() if short.endswith("." + n)), None)
        if parameter is None:
            names = ", ".join(dict.fromkeys(p.name for p in known.values()))
            raise ArgumentError(message(f"parameter_plan names {name!r}", where="shard", allowed=f"Parameters of the Cell: {names}"))
        check_strategy_value((strategy,), f"shard, parameter_plan of {name!r}")
        cuts = strategy if isinstance(strategy, tuple) else ()
        if isinstance(strategy, tuple) and len(cuts) != len(parameter.full_shape):
            what = f"parameter_plan cuts {name!r} of shape {parameter.full_shape} {strategy}"
            raise ArgumentError(message(what, where="shard", allowed="One count per dim"))
        if any(size % count for size, count in zip(parameter.full_shape, cuts, strict=False)):
            what = f"parameter_plan cuts {name!r} of shape {parameter.full_shape} {strategy}"
            raise ArgumentError(message(what, where="shard", allowed="Counts that divide the dims"))
        found.append((parameter, strategy))
    return found
