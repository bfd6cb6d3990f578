"""What happens while a program is read: tensors without values, and the messages that operators on them send.

    world = World(devices=8)
    with world.reading():
        x = world.tensor((16, 32), layout=MeshLayout.coded(mesh, "S0 R"))
        w = world.tensor((32, 64), layout=MeshLayout.coded(mesh, "R S1"), requires_grad=True)
        reduce_sum(matmul(x, w)).backward()
    world.messages              what rank 0 sent, in order, each with the line that was read then and a reason

Tensors are this package's DTensors without values, played by rank 0 alone (`nn/tensor/dtensor_parts.py`); a rank's own
tensor (a slice, a batch) is a `RankTensors`: operators on it send nothing.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from ...base.dtypes import as_dtype
from ...base.hooks import cells_at_once
from ...layout.device_mesh import DeviceMesh
from ...layout.mesh_layout import MeshLayout
from ...nn.tensor.dtensor import DTensor, Moved, RankTensors
from ...nn.tensor.dtensor_gradients import differentiated
from ...nn.tensor.dtensor_parts import (
    Hollow,
    Parts,
    dtensor_messages,
    dtensor_policy,
    hollow,
    implicit_replication,
    note,
    without_values,
)
from ...nn.tensor.tensor import Node
from .values import NotRead


@dataclass(frozen=True)
class Message:
    """What a rank sends.

    axis   of the mesh;  group: the ranks of a plan's;  line: of the program
    shape  and dtype of what rank 0 gives;  handed_bytes: of a plan's, which can be less (the strips of a halo)
    """

    kind: str
    axis: str
    shape: tuple[int, ...]
    reduce: str
    dtype: str
    phase: str
    line: int
    reason: str
    group: tuple[int, ...] = ()
    handed_bytes: int | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes that a rank gives; of a recv that it is given."""
        return (
            self.handed_bytes
            if self.handed_bytes is not None
            else math.prod(self.shape) * as_dtype(self.dtype).itemsize
        )

    @property
    def over(self) -> str:
        """The axis or the ranks that it goes over; of a send, whose reason names its end, nothing."""
        return self.axis or ("" if self.kind in ("send", "recv") else "all")

    def row(self) -> list[Any]:
        """[kind, axis, shape], and the reduction if it is not a sum, as recordings have it."""
        return [self.kind, self.axis, list(self.shape), *([self.reduce] if self.reduce not in ("", "sum") else [])]


@dataclass(frozen=True)
class Step:
    """Something that was computed or placed.

    layouts  of operands and result;  memory_bytes: of it, on rank 0;  reason: of its strategy
    """

    what: str
    layouts: str
    memory_bytes: int
    phase: str
    line: int
    reason: str = ""


SECOND_FIRST = ("matmul", "batch_matmul", "mul", "div")


class World:
    """What has happened so far in one program.

    devices           ranks that run it
    policy, planner   by which operators choose layouts, and go from one to another (`dtensor_policy`)
    implicit          a rank's own tensor among distributed ones is a copy that all have (JAX's jit)
    """

    def __init__(self, devices: int = 8, policy: str = "torch", planner: str = "", implicit: bool = False) -> None:
        self.devices, self.policy, self.planner, self.implicit = devices, policy, planner, implicit
        self.ranks = DeviceMesh((devices,))
        self.merges: Callable[[str, str], bool] | None = None  # whether messages over axes that follow are one
        self.refuses: Callable[[str, bool], str] = lambda reason, backward: ""  # why a message cannot be
        self.in_time: Callable[[], None] = lambda: None  # raises Stopped when reading has taken too long
        self.inference = False  # PyTorch's inference_mode
        self.events: list[Message | Step] = []
        self.told: dict[int, tuple[Any, Message, int]] = {}  # the engine's messages, what was made of them, and when
        self.computed: dict[int, Parts] = {}  # of several, by operators
        self.line, self._begun, self._lines, self._rule = 0, [0], [0], (None, 0)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Inside, DTensors have no values, and what they send is noted here."""
        copies = implicit_replication() if self.implicit else nullcontext()
        how = dtensor_policy(self.policy, self.planner)
        with cells_at_once(), dtensor_messages(self), without_values(self._computed), copies, how:
            yield

    def at(self, line: int) -> None:
        """The program is read at a line now: what is computed from here on belongs to it, and so does its gradient."""
        if line != self.line:
            self.line = line
            self._begun.append(now())
            self._lines.append(line)

    def append(self, sent: Any) -> None:
        """Note a message of a DTensor."""
        node, line, why = differentiated(), self.line, sent.reason
        if node is not None:
            line = self._lines[bisect.bisect(self._begun, node.order) - 1]
            known = "gradient" in why or why.startswith(("gather", "recomputed"))
            why = why if known else f"gradient of {node.op.name}, {why}"
        if fault := self.refuses(why, node is not None) or (INFERENCE if self.inference and _WHY.search(why) else ""):
            raise NotRead(fault)
        phase = "backward" if node is not None else "forward"
        axis, last = sent.axis, self.events[-1] if self.events else None
        reduce = "sum" if self.merges and sent.reduce == "avg" else sent.reduce  # XLA divides afterwards
        if self.merges and isinstance(last, Message) and sent.kind == last.kind == "all_reduce" and why != "asked for":
            before = last.shape, last.dtype, last.reduce, last.reason.partition(":")[0]
            same = before == (tuple(sent.shape), sent.dtype, reduce, why.partition(":")[0])
            if same and self.merges(last.axis, axis):  # one message over both axes
                axis = f"{last.axis},{axis}"
                self.events.pop()
        made = Message(sent.kind, axis, tuple(sent.shape), reduce, sent.dtype, phase, line, why)
        self.told[id(sent)] = sent, made, now()
        if axis != sent.axis:
            self.told |= {key: (one, made, when) for key, (one, of, when) in self.told.items() if of is last}
        if node is not self._rule[0]:
            self._rule = node, len(self.events)
        self.events.append(made)

    def again(self, since: int, until: int) -> None:
        """Note the messages between two moments again: what was computed then is recomputed now."""
        for sent, _, when in list(self.told.values()):
            if since < when < until and not sent.reason.startswith("gather"):
                note(sent.kind, sent.axis, sent.reduce, hollow(sent.shape, sent.dtype), f"recomputed: {sent.reason}")

    def send(self, kind: str, axis: str, x: Parts, reduce: str, reason: str) -> tuple[Any, ...]:
        """Note a message of what rank 0 has of a tensor."""
        return note(kind, axis, reduce, part(x), reason)

    @property
    def messages(self) -> list[Message]:
        """What was sent, in order."""
        return [e for e in self.events if isinstance(e, Message)]

    def _computed(self, op: Any, operands: Sequence[Any], results: Sequence[Parts]) -> None:
        self.in_time()
        if self.inference and any(isinstance(x, Parts) and not x.alone for x in operands):
            raise NotRead(INFERENCE)
        several = [x for x in operands if isinstance(x, Parts)]
        if len(several) > 1 or any(id(x) in self.computed for x in several):
            self.computed |= {id(x): x for x in results}
        if results == ():
            self._in_order(op, operands)
        elif differentiated() is None:
            codes = ", ".join(x.layout.code for x in operands if isinstance(x, Parts))
            self.note(op.name, f"{codes} -> {results[0].layout.code}", results[0])

    def _in_order(self, op: Any, grads: Sequence[Any]) -> None:
        """PyTorch computes the gradient of a product's second operand before that of the first."""
        node, begun = self._rule
        self._rule = differentiated(), len(self.events)  # what follows adds gradients
        if self.planner or self.policy != "torch" or op.name not in SECOND_FIRST or len(grads) != 2 or grads[0] is None:
            return
        if node is not differentiated():
            return  # it sends nothing
        sent, first = self.events[begun:], self.needed([grads[0]])
        self.events[begun:] = [e for e in sent if id(e) not in first] + [e for e in sent if id(e) in first]

    def note(self, what: str, layouts: str, value: Parts) -> Any:
        """Note what was computed or placed."""
        self.events.append(Step(what, layouts, part(value).nbytes, "forward", self.line))
        return value

    # ---- tensors ----

    def tensor(
        self,
        shape: Sequence[int],
        dtype: Any = "float32",
        layout: MeshLayout | None = None,
        requires_grad: bool = False,
        made_of: Sequence[Parts] = (),
        sent: Sequence[Any] = (),
    ) -> Any:
        """A tensor that no operator gave; layout None: a rank's own.  made_of, sent: tensors and messages for it"""
        layout = layout if layout is None else layout.on(len(shape))
        rank = (self.ranks if layout is None else layout.mesh).members[0]
        own = shape if layout is None else layout.local_shape(tuple(shape), rank)
        parts: Any = {rank: hollow(own, dtype, [part(x) for x in made_of], sent)}
        made = RankTensors(parts, self.ranks) if layout is None else DTensor(parts, layout, shape)
        return made.requires_grad_(requires_grad)

    def through(self, name: str, of: Any, out: Any, back: Callable[[Any], Any]) -> Any:
        """`out`, made of a value or of a tuple by no operator of ours.  back: from its gradient to theirs"""
        operands = of if isinstance(of, tuple) else (of,)
        if any(x.requires_grad for x in operands):
            out.node = Node(Moved(name, back), operands, {})
        return out

    def own(self, x: Parts) -> Any:
        """What rank 0 has of a tensor, without a gradient."""
        return x.detach() if x.alone else RankTensors(x._locals, x.mesh)

    def needed(self, results: Sequence[Parts]) -> set[int]:
        """The numbers (`id`) of the messages without which these results would not be there."""
        found: set[int] = set()
        seen: set[int] = set()
        waiting: list[Any] = [part(x) for x in results]
        while waiting:
            x = waiting.pop()
            if isinstance(x, Hollow) and id(x) not in seen:
                seen.add(id(x))
                found |= {id(self.told[id(m)][1]) for m in x.sent if id(m) in self.told}
                waiting += x.made_of
        return found


def now() -> int:
    """A number that grows, in the order in which tensors are made."""
    return Node(None, (), {}).order


def part(x: Parts) -> Any:
    """What rank 0 has of a tensor, as an array without values."""
    return next(iter(x._locals.values()))


def layout_of(x: Parts) -> MeshLayout | None:
    """How a tensor is distributed; None: it is a rank's own."""
    return None if x.alone else x.layout


# messages of an operator, in gradients too: for which operand, or for which operator's rule; what it was before
_WHY = re.compile(r"(?:operand \d+|gradient) of (\w+): (\w+) ->")
INFERENCE = "PyTorch's rules for distributed tensors are others in inference_mode (or it refuses): not read"
_NORMS = ("RmsNorm", "LayerNorm")
_SURE = ("MatMul", "BatchMatMul", "Add", "Sub", "BiasAdd", "redistribute", "from_local", "to_local")


def uncertain(reason: str, backward: bool) -> str:
    """Why a message of an eager DTensor is not read: PyTorch's rules for it differ from ours in some of these cases."""
    if not (found := _WHY.search(reason)):
        return ""
    of, before = found.groups()
    if of in _NORMS:
        return "a norm of what is pending, or split in the dims that it is taken over, is not read"
    if backward and of not in _SURE and (before.startswith("P") or of.endswith("Grad")):
        return f"a gradient that {of} would have to move is not read"
    return ""
