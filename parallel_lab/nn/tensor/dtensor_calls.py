"""DTensors of a notebook whose parts lie on worker processes: handles here, one call per line, the same code there.

    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"), executor="processes")
    x = distribute_tensor(array, mesh, [Shard(0), Replicate()])       every rank cuts its part
    y = x @ w                                                         every rank runs `x @ w` on its own DTensors

A function that touches parts is marked `@on_ranks`. Called with a DTensor whose parts are elsewhere, or with a mesh of
workers, it is not run here: its name and its arguments go to the ranks, and each runs it as a rank of
`parallel-lab run` does, with its communicator. What comes back are layouts, shapes, messages with their reasons, and
plain values. The calls themselves are `processes/dtensor_ranks.py`'s.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from ...base.checks import fitting
from ...base.errors import LayoutTypeError
from ...base.hooks import current_tracer, current_world, from_above
from ...layout.device_mesh import DeviceMesh

Function = TypeVar("Function", bound=Callable[..., Any])


class Ranks(Protocol):
    """The workers of a mesh."""

    def call(self, target: tuple[str, str], args: tuple[Any, ...], kwargs: dict[str, Any], how: How) -> Any:
        """What the function gives that `target` names (module, name in it), run by every rank."""


class Handle:
    """What a DTensor has instead of parts that lie on workers; the parts are freed when it goes.

    key      their name there;  ranks: who has them;  members: the ranks that do
    shapes   rank -> shape of its part
    count    how often ranks have given this DTensor: one may be given again while word travels that a handle is gone
    """

    __slots__ = ("count", "key", "members", "ranks", "shapes")

    def __init__(self, key: Any, ranks: Any, members: tuple[int, ...]) -> None:
        self.key, self.ranks, self.members, self.count = key, ranks, members, 0
        self.shapes: dict[int, tuple[int, ...]] = {}

    def __del__(self) -> None:
        self.ranks.gone.put((self.key, self.count))

    def __iter__(self) -> Iterator[int]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __getattr__(self, name: str) -> NoReturn:
        raise LayoutTypeError("parts on worker processes", where="DTensor", allowed=ALLOWED, hint=HINT)

    def __reduce__(self) -> NoReturn:
        raise LayoutTypeError("parts on worker processes", where="DTensor, copied", allowed=ALLOWED, hint=HINT)


ALLOWED = "Operators, redistribute, to_local, local(rank), full_tensor, backward"
HINT = 'Whatever needs the parts themselves: executor="simulator", or a script under `parallel-lab run`'


class How(NamedTuple):
    """at: of the arguments, the only rank that runs the function; changes: whether it changes its arguments."""

    at: Callable[..., int] | None = None
    changes: bool = False


def on_ranks(
    name: str = "", at: Callable[..., int] | None = None, changes: bool = False
) -> Callable[[Function], Function]:
    """Let ranks run a function where its DTensors lie on workers.

    name  by which its module has it, where that is not its own;  at, changes: see `How`
    """
    how = How(at, changes)

    def decorate(function: Function) -> Function:
        target = function.__module__, name or function.__qualname__

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if current_tracer.get() is not None:  # it is written down here, wherever it will run
                return function(*args, **kwargs)
            here = current_world() is not None  # a rank has its own parts
            ranks = None if here else _ranks(args) or (_ranks(kwargs.values()) if kwargs else None)
            return function(*args, **kwargs) if ranks is None else ranks.call(target, args, kwargs, how)

        return fitting(called)  # type: ignore[return-value]

    return decorate


def _ranks(values: Any) -> Ranks | None:
    """The workers that have the first DTensor or mesh among values; None where this process plays the ranks."""
    for value in values:
        parts = getattr(value, "_locals", None)
        if parts is not None:
            return parts.ranks if type(parts) is Handle else None
        if isinstance(value, DeviceMesh):
            return from_above("dtensor_ranks")(value) if value.executor != "simulator" else None
    return None
