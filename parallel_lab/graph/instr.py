"""`Instr` and `Value`: one line of the program that every rank runs, and what it reads and makes.

    %matmul.partial = MatMul(%x, %w)                       kind "compute", on slices
    %matmul = AllReduce(%matmul.partial) over axes (1,)    kind "all_reduce", among ranks that differ along axis 1

One program serves all ranks: an instruction names axes of a device matrix, from which a rank's group and slice follow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..base.dtypes import as_dtype
from ..base.errors import PlanError
from ..base.origin import Origin
from ..layout.named_layout import AnyStrategy
from ..layout.tensor_layout import TensorLayout, ranks_along
from ..ops.collectives.definitions import MESSAGES
from ..ops.collectives.halo import Halo
from ..ops.machine.opdef import OPS, OpDef

Shape = tuple[int, ...]
Pairs = tuple[tuple[str, Any], ...]


def attr_pairs(attrs: dict[str, Any]) -> Pairs:
    """Attributes as a sorted, hashable tuple."""
    return tuple(sorted(attrs.items()))


@dataclass(frozen=True)
class Value:
    """A value: its global shape, dtype and placement. A rank's scratch values have no layout: their `shape` is
    the slice's.
    """

    shape: Shape
    dtype: str
    layout: TensorLayout | None

    @property
    def placed(self) -> TensorLayout:
        """The layout of a value that is not scratch. Raises PlanError for one that is."""
        if self.layout is None:
            raise PlanError(f"a value of shape {self.shape} has no layout", where="plan")
        return self.layout

    @cached_property
    def slice_shape(self) -> Shape:
        return self.shape if self.layout is None else self.layout.slice_shape(self.shape)

    @property
    def slice_bytes(self) -> int:
        return math.prod(self.slice_shape) * as_dtype(self.dtype).itemsize


class Written:
    """What operators and instructions share, which read `ins`, make `outs`, and run on sides of an `if` (`when`)."""

    @property
    def reads(self: Any) -> tuple[str, ...]:
        """Its operands, and what decides whether it runs."""
        return (*self.ins, *(name for name, _ in self.when)) if self.when else self.ins

    @property
    def loop(self: Any) -> str:
        """The loop at whose end it stands, as one of its variables; "" of others."""
        return dict(self.attrs).get("of", "") if self.kind == "loop" else ""

    @property
    def made_when(self: Any) -> Pairs:
        """On which sides what it makes is there: of a loop's end outside of the loop."""
        return self.when[:-1] if self.loop else self.when


@dataclass(frozen=True)
class Instr(Written):
    """One instruction of the program of every rank.

    What it does:
    kind           one of `kinds.KINDS`
    outs, ins      value names; of several results one that nothing reads is "": it is not kept
    name           the operator it belongs to ("d1.matmul"), or the parameter whose message it is
    op, op_class   of a computation: its name in the registry, and MindSpore's
    attrs          sorted (name, value) pairs, by kind:
                     compute              the operator's attributes
                     messages             dim, split_dim, concat_dim, reduce, window, route, fusion; `parameter`, whose
                                          gradient or slice it carries; `group`, the ranks of one that the network
                                          itself calls (axes and device matrix then only say how many there are);
                                          `of_slices`: a training step calls it, on slices as they lie
                     start                those of its `message`, the kind that is started; `members`, the parameters
                                          in a bucket
                     concat               rows: operands stand as (rows, size / rows) side by side
                     split                rows, start, stop: columns of such an array; member: the number of the
                                          concat's operand; shape
                     recv of a border     source, shift: the part of the pipeline that sends, and how many ranks its
                                          ranks stand before

    Which ranks, which part:
    axes, device_matrix   the ranks that take part differ along `axes`; of a slice: which part a rank keeps
    offset_axes    for a computation that depends on where its slice lies: per dim it asks about, the axes that split it
    owner          the only rank that runs it (optimizer parallel in data_parallel mode); None: all do
    once           "first", "last": with the first or last micro-batch that its program runs for; "": with each
    when           (value, bool) pairs: it runs only where each of these () bools is that (`traced_branches.py`)
    stage          the part of a pipelined network that it belongs to; -1 in an update: to all that read its results

    For the reader:
    strategy       that of the operator;  reason: why a communication or a slice is here, in a sentence
    origin         Cell path, file:line, the pass that made it
    """

    kind: str
    outs: tuple[str, ...]
    ins: tuple[str, ...]
    name: str = ""
    op: str = ""
    op_class: str = ""
    attrs: Pairs = ()
    axes: tuple[int, ...] = ()
    device_matrix: Shape = ()
    offset_axes: tuple[tuple[int, ...], ...] = ()
    strategy: AnyStrategy | None = None
    reason: str = ""
    origin: Origin = field(default_factory=Origin)
    owner: int | None = None
    once: str = ""
    stage: int = 0
    when: Pairs = ()

    @property
    def kept(self) -> tuple[str, ...]:
        """The values it makes that anything reads."""
        return self.outs if len(self.outs) == 1 else tuple(name for name in self.outs if name)

    @property
    def out(self) -> str:
        """The value it makes; if it makes several, the first that anything reads."""
        return self.outs[0] or self.kept[0]

    @property
    def of_step(self) -> bool:
        """Whether what it makes belongs to the whole step, and not to one micro-batch."""
        return bool(self.once) or self.kind == "accumulate"

    def runs_on(self, rank: int) -> bool:
        """Whether `rank` runs this instruction."""
        return self.owner is None or self.owner == rank

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or `default` where it is not given."""
        for key, value in self.attrs:  # a few: a dict would take longer to make
            if key == name:
                return value
        return default

    @property
    def opdef(self) -> OpDef:
        return OPS[self.op]

    @property
    def message(self) -> str:
        """The kind of message that this instruction sends, at once or to be waited for; "" of local work."""
        if self.kind == "start":
            return self.attr("message")
        return self.kind if self.kind in MESSAGES else ""

    @property
    def carried(self) -> tuple[str, ...]:
        """The parameters whose gradients or slices a message brings, of a wait too; () of others."""
        alone = self.attr("parameter")
        return self.attr("members") or (() if alone is None else (alone,))

    @property
    def in_place(self) -> bool:
        """Whether what a start sends is replaced by what comes back: a bucket, which nothing else reads, by its sum."""
        return self.attr("message") == "all_reduce" and self.attr("members") is not None

    @property
    def is_communication(self) -> bool:
        return self.kind == "start" or self.kind in MESSAGES

    @property
    def by_hand(self) -> tuple[int, ...]:
        """The ranks of a message that the network itself calls, or of its gradient; of others ()."""
        return self.attr("group", ()) if self.message or self.kind == "wait" else ()

    @property
    def group_size(self) -> int:
        if self.attr("shift") is not None:
            return 2
        return len(self.by_hand) or math.prod(self.device_matrix[-1 - a] for a in self.axes)

    @property
    def halo(self) -> Halo:
        """The windows of a halo_exchange or halo_reduce."""
        return Halo(*self.attr("window"), members=self.group_size)

    @property
    def how(self) -> Any:
        """What says which pieces a message sends: the window of a halo, the route of an exchange; None of others."""
        return self.attr("window") or self.attr("route")

    def group(self, rank: int) -> tuple[int, ...]:
        """The ranks `rank` communicates with here, itself included, ascending; of a border (source, destination)."""
        shift = self.attr("shift")
        if shift is not None:
            return (rank, rank + shift) if self.attr("message", self.kind) == "send" else (rank - shift, rank)
        return self.by_hand or ranks_along(self.device_matrix, self.axes, rank)

    def position(self, rank: int, axes: tuple[int, ...] | None = None) -> int:
        """Which of the parts along `axes` (default: the instruction's own) is this rank's, outer axis first."""
        strides, stride = [], 1
        for size in reversed(self.device_matrix):
            strides.append(stride)
            stride *= size
        number = 0
        for axis in self.axes if axes is None else axes:
            size = self.device_matrix[-1 - axis]
            number = number * size + rank // strides[axis] % size
        return number
