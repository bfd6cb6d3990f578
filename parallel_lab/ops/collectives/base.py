"""What operators that a script calls by hand to communicate share: their world, their arguments, their base class."""

from __future__ import annotations

from typing import Any

from ...base.checks import choice, integer
from ...base.errors import TracedCommunication, WorldArgumentError, WorldError, WorldTypeError, shorten
from ...base.hooks import current_tracer, current_world
from ...base.origin import caller
from ...layout.slices import REDUCERS
from ..machine.primitive import Primitive, Uncut
from .deferred import send_held


def _world(where: str) -> Any:
    """The world this process is a rank of. Raises WorldError."""
    world = current_world()
    if world is None:
        what, allowed = "this process is not a rank of a world", "Communication needs ranks to talk to"
        hint = "Call init() first, in a script started with `parallel-lab run -n 8 script.py` or mpirun"
        raise WorldError(what, where=where, allowed=allowed, hint=hint)
    return world


def members_of(where: str, group: str | None) -> tuple[Any, tuple[int, ...]]:
    """As `group_of`, for a call that is about to communicate: messages that are held back are sent before it."""
    found = group_of(where, group)
    send_held()
    return found


def group_of(where: str, group: str | None) -> tuple[Any, tuple[int, ...]]:
    """(world, ranks of the group this rank calls for). Raises WorldError, WorldArgumentError."""
    world = _world(where)
    members = tuple(world.group(group))
    if world.rank not in members:
        what = f"rank {world.rank} is not in group {group!r} {members}"
        raise WorldArgumentError(what, where=where, allowed="A rank communicates in groups it belongs to")
    return world, members


def origin_of(name: str) -> str:
    """The operator and the learner's line: what ranks compare, and what errors show."""
    place = caller().place
    return f"{name} at {place}" if place else name


def checked_root(name: str, label: str, root: int, members: tuple[int, ...]) -> int:
    """`root`, which must be in the group. Raises WorldArgumentError."""
    if root not in members:
        raise WorldArgumentError(f"{label}={root}", where=name, allowed=f"A rank of the group {members}")
    return root


class Communication(Uncut):
    """Base of the operators: Primitives that take no strategy.

    fusion  (`add_prim_attr("fusion", 1)`): calls in a Cell with equal numbers above 0, group, reduction and dtype are
            one message (`deferred.py`); 0: alone. It changes no result.
    """

    why = "communication called by hand takes this rank's value as it is"

    def __init__(self, attrs: dict[str, Any]) -> None:
        super().__init__(attrs)
        self.prim_attrs = {"group": attrs.get("group"), "fusion": 0}

    def add_prim_attr(self, name: str, value: Any) -> Primitive:
        """Attach a named attribute; `fusion` is an int, at least 0. Returns self."""
        if name == "fusion":
            integer(0)(self.name, "fusion", value)
        return super().add_prim_attr(name, value)

    def begin(self) -> None:
        """Refuse to run while a network is traced."""
        if current_tracer.get() is not None:
            allowed = "A compiled network has its messages from its strategies"
            modes = "stand_alone or data_parallel mode"
            hint = f"Run it in {modes}, where a network that communicates by hand runs operator by operator"
            what = f"{self.name} is called while a network is compiled"
            raise TracedCommunication(what, where=caller().place, allowed=allowed, hint=hint)

    def __repr__(self) -> str:
        shown = {**self.attrs, **self.prim_attrs}
        return f"Prim[{self.name}]<{', '.join(f'{k}={v}' for k, v in shown.items())}>"


REDUCTION = choice(*REDUCERS)


def a_group(where: str, name: str, group: Any, errors: Any = None) -> str | None:
    """The name of a group, or None for all ranks. Raises WorldTypeError."""
    if group is not None and not isinstance(group, str):
        allowed = "The name of a group, as given to create_group; None for all ranks"
        raise WorldTypeError(f"{name}={shorten(group)}", where=where, allowed=allowed)
    return group
