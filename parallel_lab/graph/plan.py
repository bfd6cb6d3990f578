"""`Plan`: one frozen program for all ranks. Simulator, processes, cost model and views all walk it.

    plan = parallel_lab.compile(net, x, label, loss=nn.MSELoss(), optimizer=opt, device_num=8)
    print(plan.text(rank=0))          the IR with slice shapes, groups, and why each message is there
    plan.to_dict(rank=0)["comm"]      the same as data, as one rank sees it
    plan.to_dict()                    everything; Plan.from_dict gives the plan back

There is one program per pipeline stage and none per rank: a rank's view is the plan plus its coordinates, so a plan for
4096 devices costs what one for 8 costs. A plan holds no tensor data except small constants.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ..base.errors import ArgumentError, PlanError, shorten
from ..base.origin import Origin
from ..base.settings.config import ParallelConfig
from ..layout.named_layout import Layout, LayoutStrategy
from ..layout.tensor_layout import TensorLayout
from .actions import OF_STEP, Action, Stage
from .instr import Instr, Value
from .ir import Graph, GraphInput, Node
from .lifetimes import Dead, dead_after, replacements

PHASES = ("forward", "backward", "weights", "reduce", "update")
VERSION = 4


@dataclass(frozen=True)
class State:
    """What outlives a step besides parameters, sliced as `parameter` is ("": a scalar); `kind`: "moments", ..."""

    name: str
    parameter: str
    kind: str


@dataclass(frozen=True)
class Plan:
    """A compiled network: what was traced (`graph`, on global shapes, with strategies), the settings it was compiled
    for, and what the passes made of them, under the names that `ir.Draft` explains. Besides:

    stages       programs per pipeline stage
    values       global shape, dtype and layout of everything the programs name
    assignments  (target, source) of the update, in place (`replacements`);  optimizer: its rule, but no rate
    outputs      values the forward program returns, the loss first
    constants    (name, dtype, shape, base64 of the bytes): arrays the network held
    """

    graph: Graph
    config: ParallelConfig
    stages: tuple[Stage, ...]
    values: tuple[tuple[str, Value], ...]
    states: tuple[State, ...] = ()
    assignments: tuple[tuple[str, str], ...] = ()
    forward_assignments: tuple[tuple[str, str], ...] = ()
    optimizer: str = ""
    owners: tuple[tuple[str, int], ...] = ()
    gradients: tuple[tuple[str, str], ...] = ()
    value_gradients: tuple[tuple[str, str], ...] = ()
    outputs: tuple[str, ...] = ()
    constants: tuple[tuple[str, str, tuple[int, ...], str], ...] = ()
    host: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    as_compiled: ClassVar[bool] = False  # true of what the compiler has made, not of what `replace` makes of that

    # ---- looking things up ----

    @property
    def device_num(self) -> int:
        """Ranks of all stages."""
        return sum(stage.count for stage in self.stages)

    @cached_property
    def value_table(self) -> dict[str, Value]:
        """{name: Value} of everything that the programs name."""
        return dict(self.values)

    def value(self, name: str) -> Value:
        """The Value called `name`. Raises PlanError with near names if it does not exist."""
        value = self.value_table.get(name)
        if value is None:
            near = difflib.get_close_matches(name, self.value_table, 3)
            raise PlanError(f"no value {name!r}", where="plan", hint=f"Near: {', '.join(near)}" if near else "")
        return value

    def stage_of(self, rank: int) -> Stage:
        """The stage that `rank` belongs to. Raises PlanError for a rank that does not exist."""
        for stage in self.stages:
            if rank in stage.ranks:
                return stage
        allowed = f"Ranks run from 0 to {self.device_num - 1}"
        raise PlanError(f"rank {rank} does not exist", where="plan", allowed=allowed)

    @cached_property
    def _owner_of(self) -> dict[str, int]:
        parameters = dict(self.owners)
        owners_of_states = {s.name: parameters[s.parameter] for s in self.states if s.parameter in parameters}
        return owners_of_states | {
            name: i.owner for _, i in self.instructions() if i.owner is not None for name in i.kept
        }

    def owner_of(self, name: str) -> int | None:
        """The only rank that ever holds the value `name`; None: all do."""
        return self._owner_of.get(name)

    def held_by(self, name: str, rank: int) -> bool:
        """Whether `rank` is one that holds the value `name`."""
        return self._owner_of.get(name, rank) == rank and (len(self.stages) == 1 or name in self._names[self.at(rank)])

    def at(self, rank: int) -> int:
        """Number of the stage that `rank` belongs to."""
        return rank // self.stages[0].count

    @cached_property
    def _names(self) -> tuple[set[str], ...]:
        """What the ranks of each stage hold: values of their programs, states of these, scalars that none reads."""
        by_stage = [set(stage.names) for stage in self.stages]
        unread = {s.name for s in self.states if not s.parameter}.difference(*by_stage)
        for names in by_stage:
            names.update(unread, (s.name for s in self.states if s.parameter in names))
        return tuple(by_stage)

    def instructions(self, phase: str | None = None) -> Iterator[tuple[str, Instr]]:
        """(phase, instruction) in the order they run, stage by stage."""
        for stage in self.stages:
            for action in stage.actions:
                if phase is None or action.program == phase:
                    for _, instr in stage.part(action):
                        yield action.program, instr

    @property
    def data_inputs(self) -> tuple[GraphInput, ...]:
        """The inputs that are fed at each step."""
        return tuple(i for i in self.graph.inputs if i.role == "data")

    @property
    def parameters(self) -> tuple[GraphInput, ...]:
        """Parameters in the order in which the network used them."""
        return tuple(i for i in self.graph.inputs if i.role == "parameter" and i.name in self.value_table)

    @cached_property
    def scalars(self) -> dict[str, np.ndarray]:
        """Numbers written in the programs, as 0-d arrays. Their names are "number:dtype"."""
        numbers = {i.name: np.asarray(i.value, i.dtype) for i in self.graph.inputs if i.role == "scalar"}
        for name, value in self.values:
            text, _, dtype = name.rpartition(":")
            scalar = value.layout is None and not value.shape and dtype == value.dtype
            number = _number(text) if scalar and name not in numbers else None
            if number is not None:
                numbers[name] = np.asarray(number, dtype)
        return numbers

    @cached_property
    def constant_arrays(self) -> dict[str, np.ndarray]:
        """The arrays that the network held, by name."""
        parts = ((name, base64.b64decode(data), dtype, shape) for name, dtype, shape, data in self.constants)
        return {name: np.frombuffer(data, dtype).reshape(shape) for name, data, dtype, shape in parts}

    def replacements(self, rank: int) -> dict[int, tuple[tuple[str, str], ...]]:
        """Position in the update program -> (target, source) that are replaced when its instruction has run."""
        return self._lifetimes[self.at(rank)][0]

    def last_uses(self, rank: int) -> dict[Action, Dead]:
        """Per action: instruction position -> values that nothing reads afterwards, in this action or a later one."""
        return self._lifetimes[self.at(rank)][1]

    @cached_property
    def _lifetimes(self) -> tuple[Any, ...]:
        keep = {i.name for i in self.graph.inputs} | {s.name for s in self.states} | set(self.scalars)
        keep |= set(self.outputs) | {source for _, source in self.forward_assignments} | {g for _, g in self.gradients}
        by_stage = []
        for stage, names in zip(self.stages, self._names, strict=True):
            new = tuple(pair for pair in self.assignments if pair[0] in names or len(self.stages) == 1)
            replaced = replacements(stage.program("update"), new)
            by_stage.append((replaced, dead_after(stage, self.of_micro_batch, replaced, keep)))
        return tuple(by_stage)

    @cached_property
    def kept_of_turns(self) -> dict[str, tuple[str, ...]]:
        """Of every loop what a turn makes that backward reads."""
        kept: dict[str, tuple[str, ...]] = {}
        for stage in self.stages:
            back = stage.program("backward")
            read = {name for i in back for name in i.reads}
            for name in dict.fromkeys(i.attr("of") for i in back if i.kind == "restore"):
                inside = [i for i in stage.program("forward") if (name, True) in i.when]
                made = {n for i in inside for n in ((i.ins[1],) if i.loop else i.kept)}
                kept[name] = tuple(sorted(made & read))
        return kept

    @cached_property
    def sides_back(self) -> frozenset[tuple[Any, Any]]:
        """(a side in forward, the same in backward) of turns of loops: backward makes their values be there again."""
        instrs = [i for _, i in self.instructions()]
        decides = {i.loop: i.ins[0] for i in instrs if i.loop}
        back = [(i.attr("of"), i.when[-1], (i.out, True)) for i in instrs if i.kind == "restore"]
        turns = [((name, True), loop) for name, loop, _ in back]
        return frozenset(turns + [((decides[name], True), again) for name, _, again in back])

    @property
    def micro_batches(self) -> int:
        """How many micro-batches a step feeds the network; 1: the batch as it is."""
        return self.graph.micro_batches

    @cached_property
    def of_micro_batch(self) -> frozenset[str]:
        """Values that every micro-batch makes for itself."""
        if self.micro_batches == 1:
            return frozenset()
        parts = (i for phase, i in self.instructions() if phase not in OF_STEP and not i.of_step)
        return frozenset(name for i in parts for name in i.kept)

    # ---- forms ----

    def to_dict(self, rank: int | None = None) -> dict[str, Any]:
        """Plain data: the whole plan, for `from_dict`; with `rank`, its ops, params, inputs and comm."""
        if rank is not None:
            from .plan_text import rank_view

            return rank_view(self, rank)
        data = {"version": VERSION, "plan": _encode(self)}
        return {**data, "sha256": _checksum(data)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Plan:
        """The plan that `to_dict()` wrote. Raises PlanError for another version, changed or malformed data."""
        version = data.get("version") if isinstance(data, dict) else None
        if version != VERSION:
            raise PlanError(f"version {version!r}", where="Plan.from_dict", allowed=f"Version {VERSION}")
        try:
            if data.get("sha256") != _checksum({"version": version, "plan": data["plan"]}):
                hint = "Change a plan with dataclasses.replace, and look at it with verify()"
                raise PlanError("its checksum does not fit", allowed="As to_dict() wrote it", hint=hint)
            plan = _decode(data["plan"])
            if isinstance(plan, cls):
                return plan.verify()
        except Exception as error:  # whatever a rule raises that meets a field of another type
            raise PlanError(f"malformed plan: {error}", where="Plan.from_dict") from error
        raise PlanError("the data is not a plan", where="Plan.from_dict")

    @property
    def digest(self) -> str:
        """A hash of the plan's content, equal in every process: ranks compare it before step 1."""
        return self.to_dict()["sha256"][:16]

    def text(self, rank: int = 0, *, phases: tuple[str, ...] = PHASES) -> str:
        """One rank's program: strategies, slice and global shapes, group ranks, source lines, why each message."""
        from .plan_text import plan_text

        unknown = [phases] if isinstance(phases, str) else [p for p in phases if p not in PHASES]
        if unknown:
            allowed = f"A tuple of names out of {PHASES}"
            raise ArgumentError(f"phases {shorten(unknown[0])}", where="Plan.text", allowed=allowed)
        return plan_text(self, rank, phases)

    def diff(self, other: Plan, rank: int = 0) -> str:
        """A unified diff of the texts to `other`, or ""; by names, as one new instruction changes later numbers."""
        from .plan_text import named_lines

        if not isinstance(other, Plan):
            raise ArgumentError(f"other is {shorten(other)}", where="Plan.diff", allowed="A Plan")
        before, after = (named_lines(plan.text(rank)) for plan in (self, other))
        return "\n".join(difflib.unified_diff(before, after, "before", "after", lineterm="", n=2))

    def verify(self) -> Plan:
        """Check the plan against its own rules (see `plan_verify`). Returns the plan; raises PlanError."""
        from .plan_verify import verify_plan

        verify_plan(self)
        return self

    def __repr__(self) -> str:
        instrs = [i for _, i in self.instructions()]
        messages = sum(i.is_communication for i in instrs)
        size = f"{self.device_num} devices, {len(instrs)} instructions, {messages} messages"
        return f"Plan({self.graph.name}, {size}, {self.digest})"


def _checksum(data: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _number(text: str) -> float | int | bool | None:
    """The number that a text is, or None."""
    if text in ("True", "False"):
        return text == "True"
    for read in (int, float):
        with suppress(ValueError):
            return read(text)
    return None


_PROGRAM = (Plan, Stage, Action, State, Graph, GraphInput, Node, Instr, Value)
_CLASSES = {c.__name__: c for c in (*_PROGRAM, TensorLayout, Layout, LayoutStrategy, Origin, ParallelConfig)}


def _encode(value: Any) -> Any:
    name = type(value).__name__
    if name in _CLASSES:
        held = {f.name: getattr(value, f.name) for f in fields(value)}
        return {"is": name, **{key: _encode(v) for key, v in held.items() if key != "when" or v}}
    if isinstance(value, tuple):
        return [_encode(v) for v in value]
    return value


def _decode(data: Any) -> Any:
    if isinstance(data, dict):
        rest = {k: _decode(v) for k, v in data.items() if k != "is"}
        return _CLASSES[data["is"]](**rest)
    if isinstance(data, list):
        return tuple(_decode(v) for v in data)
    return data
