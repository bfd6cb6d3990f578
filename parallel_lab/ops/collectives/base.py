"""What operators that a script calls by hand to communicate share: their world, their arguments, their base class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...base.checks import choice, integer
from ...base.errors import (
    ArgumentTypeError,
    TracedCommunication,
    WorldArgumentError,
    WorldError,
    WorldTypeError,
    shorten,
)
from ...base.hooks import current_tracer, current_world
from ...base.origin import caller
from ...base.settings.checks import SHARDED_MODES
from ...base.settings.current import get_auto_parallel_context
from ...base.settings.tables import WORLD_GROUPS
from ...layout.slices import REDUCERS
from ..machine.opdef import OpDef
from ..machine.primitive import Primitive, WithoutStrategy
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
    members = group_of(where, group)
    send_held()
    return members


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


def name_of(value: Any) -> str:
    """The name of a Parameter that was given one; "" for anything else."""
    name = getattr(value, "name", "") if hasattr(value, "requires_grad") else ""
    return name if isinstance(name, str) and name != "Parameter" else ""


def checked_root(name: str, label: str, root: int, members: tuple[int, ...]) -> int:
    """`root`, which must be in the group. Raises WorldArgumentError."""
    if root not in members:
        raise WorldArgumentError(f"{label}={root}", where=name, allowed=f"A rank of the group {members}")
    return root


# messages that bring every rank a value of one shape, as one program for all ranks needs them
OF_SLICES = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "Broadcast", "Barrier")


class Communication(WithoutStrategy):
    """Base of the operators: Primitives that take no strategy.

    fusion  (`add_prim_attr("fusion", 1)`): calls in a Cell with equal numbers above 0, group, reduction and dtype are
            one message (`deferred.py`); 0: alone. It changes no result.
    """

    why = "communication called by hand takes this rank's value as it is"
    takes = (1, 1)  # how many inputs, at least and at most

    def __init__(self, attrs: dict[str, Any]) -> None:
        super().__init__(attrs)
        self.prim_attrs = {"group": attrs.get("group"), "fusion": 0}

    def add_prim_attr(self, name: str, value: Any) -> Primitive:
        """Attach a named attribute; `fusion` is an int, at least 0. Returns self."""
        if name == "fusion":
            integer(0)(self.name, "fusion", value)
        return super().add_prim_attr(name, value)

    def __call__(self, *inputs: Any) -> Any:
        """Communicate at once; in a network that is compiled, write it down."""
        low, high = self.takes
        if not low <= len(inputs) <= high:
            what, allowed = f"called with {len(inputs)} arguments", f"{low}" if low == high else f"{low} to {high}"
            raise ArgumentTypeError(what, where=self.name, allowed=f"{allowed} inputs")
        tracer = current_tracer.get()
        return self.at_once(*inputs) if tracer is None else self.traced(tracer, *inputs)

    def at_once(self, *inputs: Any) -> Any:
        """What a call outside a compiled network gives."""
        raise NotImplementedError

    def traced(self, tracer: Any, *inputs: Any) -> Any:
        """What a call gives in a network that is compiled."""
        raise NotImplementedError

    def in_trace(self, tracer: Any) -> tuple[int, tuple[int, ...]]:
        """(rank that the program is for: this one, else the setting global_rank; ranks of the group) in a trace.

        Raises TracedCommunication in stand_alone mode, whose program is one device's, and in the forward part of modes
        that split operators, whose messages follow from strategies: behind gradients `OF_SLICES` are possible.
        """
        mode = tracer.parallel_mode or get_auto_parallel_context("parallel_mode")
        origin, where = caller(tracer.scope_text()), caller().place
        if mode in SHARDED_MODES:
            what = f"the graph can not contain communication op: parallel_mode {mode!r}, {self.name} in {origin.scope}"
            allowed = "Messages that follow from strategies: shard(...) on operators, reshard(x, layout)"
            hint = "A network that communicates by hand runs in stand_alone, data_parallel or hybrid_parallel mode"
            hint += f"; behind gradients {', '.join(OF_SLICES)} are possible"
            error = TracedCommunication(what, where=where, allowed=allowed, hint=hint)
            if tracer.in_forward or self.name not in OF_SLICES:
                raise error
            tracer.refused_forward = tracer.refused_forward or error
        group, world = self.given["group"], current_world()
        if world is not None:
            members = group_of(self.name, group)[1]
        elif group is None or group in WORLD_GROUPS.values():
            members = tuple(range(tracer.device_num))
        else:
            _world(self.name)
        if mode == "stand_alone" and len(members) > 1:
            what = f"{self.name} of {len(members)} ranks is called while a network is compiled for one device"
            hint = "Compile it with parallel_mode='data_parallel', or call the network as it is"
            raise TracedCommunication(what, where=where, allowed="Ranks that run one program each", hint=hint)
        return (tracer.rank if world is None else world.rank), members

    def recorded(self, tracer: Any, op: OpDef, operands: Sequence[Any], **attrs: Any) -> Any:
        """One message as an operator of the network. Raises TracedCommunication for operands made from gradients where
        no operators are split.
        """
        if tracer.refused_forward is not None:
            return tracer.recorded_late(op, operands, {**attrs, "fusion": self.prim_attrs["fusion"]}, self)
        late = next((x for x in operands if getattr(x, "name", None) in tracer.late), None)
        if late is not None:
            what = f"{self.name} is given {late.name!r}, which is made from gradients, while a network is compiled"
            allowed = "Values of the forward part: gradients are added up over the ranks by the program"
            raise TracedCommunication(what, where=caller().place, allowed=allowed)
        return tracer.record(op, operands, {**attrs, "fusion": self.prim_attrs["fusion"]}, self)

    def __repr__(self) -> str:
        shown = {**self.given, **self.prim_attrs}
        return f"Prim[{self.name}]<{', '.join(f'{k}={v}' for k, v in shown.items())}>"


REDUCTION = choice(*REDUCERS)


def a_group(where: str, name: str, group: Any, errors: Any = None) -> str | None:
    """The name of a group, or None for all ranks. Raises WorldTypeError."""
    if group is not None and not isinstance(group, str):
        allowed = "The name of a group, as given to create_group; None for all ranks"
        raise WorldTypeError(f"{name}={shorten(group)}", where=where, allowed=allowed)
    return group
