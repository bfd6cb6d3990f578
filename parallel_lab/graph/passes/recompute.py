"""Pass `recompute`: results that are recomputed for backward, so that those of forward need not be kept until then.

    forward    a = MatMul(x, w)   b = Tanh(a)   y = MatMul(b, v)            x and y are kept; a and b die at once
    backward   ...   a.again = MatMul(x, w)   b.again = Tanh(a.again)   dv = MatMul(b.again, dy)   ...

A backward instruction that reads a result which may be recomputed reads a copy in its place, and the copies that this
one needs come right before it, from values that are kept. What no one reads gets no copy. A copy is the same operator
on the same operands, so no bit changes: a random mask has the key and the step of the first time. How long values live
and what an instruction costs follow from the program (`lifetimes.py`, `cost/`); nothing else knows of recomputing.

Made again is what stands in a region (`graph/recomputed.py`), but not: the operators that make the region's outputs,
and what these show (a view's operand is in memory anyway); what parameters take as new values; sums over micro-batches,
prints, what came from another pipeline stage. The three options of a region:

    mp_comm_recompute=False                  keeps what messages brought, and of that only what was cut out of it for
                                             the operator that reads it: fewer messages, more memory
    parallel_optimizer_comm_recompute=True   gathers the parameters of the region again too (`optimizer_shard`)
    recompute_slice_activation=True          keeps 1/R of an input that R ranks hold, and gathers it for backward

Rules: MindSpore, Cell.recompute.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...ops.collectives.definitions import MESSAGES
from ..draft import Draft, fresh_name
from ..instr import Instr, Value, attr_pairs
from ..ir import Graph, Node
from ..recomputed import asks_to_recompute
from .message_gradients import one_sided
from .optimizer_shard import LOCAL_OPS, is_parameter_gather, shared_layout

WHY = "recompute: computed again for backward, so that it did not have to stay in memory"
WHY_GATHERED = "parallel_optimizer_comm_recompute: gathered again for backward, and not kept until then"
WHY_LEVEL3 = "level3: gathered again for backward, so that the gathered parameter did not have to stay in memory"
_BACK = {"": "", "first": "last", "last": "first"}  # part of a step in forward -> where its backward is


def recompute(draft: Draft) -> Draft:
    """Make copies of what is recomputed, where backward reads it."""
    regions = _Regions(draft)
    copies = Copies(draft, "recompute", regions.why)
    program = copies.run(draft.program("backward"))
    done = draft.with_program("backward", program, copies.values)
    notes = [f"{len(copies.made)} instructions run again for backward"]
    done, count = _slice_activations(done, regions)
    notes += [f"{count} activations are kept as slices"] if count else []
    notes += [regions.ignored] if regions.ignored else []
    return done.noted("recompute", "; ".join(notes))


# ---- copies ----


class Copies:
    """The backward program while copies of forward instructions come into it.

    why     (instruction, reader) -> the reason to make it again for this reader; None: what forward made is read
    fusion  the messages of copies may share buckets, as those of forward do
    """

    def __init__(
        self, draft: Draft, by: str, why: Callable[[Instr, Instr], str | None], *, fusion: bool = False
    ) -> None:
        self.values, self.by, self.why, self.fusion = draft.value_table(), by, why, fusion
        self.forward = draft.program("forward")
        self.place = {name: at for at, instr in enumerate(self.forward) for name in instr.kept}
        self.kept = {*draft.outputs, *(source for _, source in draft.forward_assignments)}
        self.labels: dict[tuple[str, str], str] = {}  # (forward value, part of the step) -> its copy
        self.made: list[Instr] = []

    def run(self, backward: tuple[Instr, ...]) -> tuple[Instr, ...]:
        """The backward program with copies, each right before its first reader."""
        done: list[Instr] = []
        for reader in backward:
            for at in self.needed(reader):
                done.append(self.copy(self.forward[at], reader))
            done.append(self.reading(reader, reader.once))
        return tuple(done)

    def needed(self, reader: Instr) -> list[int]:
        """Positions of the forward instructions that are to be copied for this reader, in order."""
        positions: set[int] = set()
        stack = list(reader.ins)
        while stack:
            name = stack.pop()
            at = self.place.get(name)
            if at is None or at in positions or name in self.kept or (name, reader.once) in self.labels:
                continue
            if self.why(self.forward[at], reader) is not None:
                positions.add(at)
                stack += self.forward[at].ins
        return sorted(positions)

    def reading(self, instr: Instr, once: str) -> Instr:
        ins = tuple(self.labels.get((name, once), name) for name in instr.ins)
        return replace(instr, ins=ins) if ins != instr.ins else instr

    def copy(self, instr: Instr, reader: Instr) -> Instr:
        """The copy of an instruction. Results that stay are there already: in the copy they have no name."""
        why, outs = self.why(instr, reader), []
        for name in instr.outs:
            label = fresh_name(f"{name}.again", self.values) if name else ""
            if name:
                self.values[label] = self.values[name]
            if name and name not in self.kept:
                self.labels[name, reader.once] = label
            outs.append(label)
        alone = instr.attr("fusion") and not self.fusion
        attrs = attr_pairs({**dict(instr.attrs), "fusion": 0}) if alone else instr.attrs
        fields = {"outs": tuple(outs), "strategy": None, "once": reader.once, "attrs": attrs}
        copied = replace(instr, reason=why or instr.reason, origin=instr.origin.made(self.by), **fields)
        self.made.append(self.reading(copied, reader.once))
        return self.made[-1]


# ---- optimizer_level level3 ----


def regather_parameters(draft: Draft) -> Draft:
    """Gather parameters, and their casts and views, again before backward reads them: the forward ones die early."""
    sources: set[str] = set()
    for instr in draft.program("forward"):
        if is_parameter_gather(instr) or (len(instr.ins) == 1 and instr.ins[0] in sources and _is_local(instr)):
            sources.add(instr.out)

    def why(instr: Instr, reader: Instr) -> str | None:
        if instr.out not in sources:
            return None
        return "" if instr.ins[0] in sources else WHY_LEVEL3

    copies = Copies(draft, "regather", why, fusion=True)
    done = draft.with_program("backward", copies.run(draft.program("backward")), copies.values)
    count = len({instr.attr("parameter") for instr in copies.made if is_parameter_gather(instr)})
    return done.noted("regather", f"{count} parameters are gathered again for backward")


def _is_local(instr: Instr) -> bool:
    if instr.kind == "compute":
        return instr.opdef.view or instr.op in LOCAL_OPS
    return instr.kind in ("reshape", "slice")


# ---- what is recomputed ----


class _Regions:
    """Which forward instructions are recomputed, and for whom.

    settings  operator -> how it is recomputed
    again     results of forward that may be recomputed
    """

    def __init__(self, draft: Draft) -> None:
        graph, config = draft.graph, draft.config
        self.settings = {n.name: dict(n.recompute) for n in graph.of_phase("forward") if asks_to_recompute(n.recompute)}
        kept, begun, brought = _makers_of_outputs(graph), set(), set()
        computed = {i.name for i in draft.program("forward") if i.kind == "compute"}
        self.again: set[str] = set()
        for instr in draft.program("forward"):
            setting = self.settings.get(instr.name)
            if setting is None or not _can_run_again(instr):
                continue
            begun.update([instr.name] if instr.kind == "compute" else [])
            # what comes before the computation brings operands
            makes_output = instr.name in kept and (instr.name in begun or instr.name not in computed)
            moves = instr.message or (instr.kind != "compute" and not brought.isdisjoint(instr.ins))
            if setting.get("operands"):
                if moves and instr.name not in begun:
                    brought.update(instr.kept)
                    self.again.update(instr.kept)
            elif moves and not setting["mp_comm_recompute"]:
                brought.update(instr.kept)
            elif not makes_output:
                self.again.update(instr.kept)
        regathers = any(setting["parallel_optimizer_comm_recompute"] for setting in self.settings.values())
        # at level3 all parameters are gathered again, by a pass of its own
        self.gathers = regathers and config.pipeline_stages == 1 and config.optimizer_level != "level3"
        self.ignored = ""
        if regathers and config.pipeline_stages > 1:
            self.ignored = f"parallel_optimizer_comm_recompute has no effect with {config.pipeline_stages} stages"
            warnings.warn(f"recompute: {self.ignored}: leave it False", RuntimeWarning, stacklevel=2)

    def asks(self, reader: Instr, option: str) -> bool:
        """Whether an instruction belongs to an operator of a region with this option."""
        return bool(self.settings.get(reader.name, {}).get(option))

    def why(self, instr: Instr, reader: Instr) -> str | None:
        """Why an instruction is to run again for a backward instruction; None: its result of forward is read."""
        if instr.stage != reader.stage or _BACK[instr.once] != reader.once:
            return None
        if is_parameter_gather(instr):
            regathered = self.gathers and self.asks(reader, "parallel_optimizer_comm_recompute")
            return WHY_GATHERED if regathered else None
        return WHY if self.again.issuperset(instr.kept) else None


def _can_run_again(instr: Instr) -> bool:
    """Whether running an instruction a second time has no effect but its results."""
    if instr.when:
        return False  # what a side of an `if` makes, or a turn of a loop, is kept
    if instr.kind == "compute":
        return not instr.opdef.writes
    message = instr.kind in MESSAGES and instr.attr("shift") is None and not one_sided(instr)
    return message or instr.kind in ("slice", "reshape")


def _makers_of_outputs(graph: Graph) -> set[str]:
    """The operators that make what a region gives to others; and what makes the operands of those that are views."""
    nodes = {n.name: n for n in graph.of_phase("forward")}
    readers: dict[str, list[Node]] = {}
    for node in nodes.values():
        for name in node.ins:
            readers.setdefault(graph.maker(name), []).append(node)
    late = {graph.maker(name) for name in (*graph.read_late(), *graph.outputs)}
    names: set[str] = set()
    for node in reversed(nodes.values()):
        setting = dict(node.recompute)
        if not setting or setting.get("alone"):  # asked of the operator itself, and not of a Cell around it
            continue
        used = readers.get(node.name, ())
        shown = any(r.opdef.view and r.name in names and r.ins[0] in node.outs for r in used)
        if shown or node.name in late or any(dict(r.recompute).get("region") != setting["region"] for r in used):
            names.add(node.name)
    return names


# ---- activations that are kept as slices ----


def _slice_activations(draft: Draft, regions: _Regions) -> tuple[Draft, int]:
    """The program with inputs of regions kept as slices between forward and backward; how many they are."""
    makers = {name: instr for instr in draft.program("forward") for name in instr.kept}
    values, activations = draft.value_table(), {}
    backward = draft.program("backward")
    for reader in backward:
        if reader.origin.made_by == "recompute" and regions.asks(reader, "recompute_slice_activation"):
            for name in reader.ins:
                maker = makers.get(name)
                if maker is not None and name not in activations and name not in draft.outputs:
                    if is_parameter_gather(maker) or _BACK[maker.once] != reader.once:
                        continue
                    sliced = _sliced(maker, values[name], name, values)
                    activations.update({} if sliced is None else {name: sliced})
    if not activations:
        return draft, 0
    forward: list[Instr] = []
    for instr in draft.program("forward"):
        forward += [instr, *(activations[name][0] for name in instr.kept if name in activations)]
    brought: set[str] = set()
    done: list[Instr] = []
    for reader in backward:
        mine = [n for n in dict.fromkeys(reader.ins) if n in activations and reader.stage == activations[n][1].stage]
        mine = [n for n in mine if reader.once == activations[n][1].once]
        done += [activations[name][1] for name in mine if name not in brought]
        brought.update(mine)
        names = {name: activations[name][1].out for name in mine}
        done.append(replace(reader, ins=tuple(names.get(name, name) for name in reader.ins)) if mine else reader)
    draft = draft.with_program("forward", tuple(forward), values).with_program("backward", tuple(done), values)
    return draft, len(activations)


def _sliced(maker: Instr, value: Value, name: str, values: dict[str, Value]) -> tuple[Instr, Instr] | None:
    """(What keeps a rank's part of a value that others hold too, what gathers it); None: it cannot be shared."""
    layout = value.layout
    if layout is None or layout.is_partial or not value.shape or layout.replica_count == 1:
        return None
    ways = layout.replica_count
    shared = shared_layout(layout, ways) if value.slice_shape[0] % ways == 0 else None
    if shared is None or not value.slice_shape[0]:
        return None
    stored, axes = shared
    part, whole = fresh_name(f"{name}.part", values), fresh_name(f"{name}.gathered", values)
    values[part], values[whole] = Value(value.shape, value.dtype, stored), value
    why = f"recompute_slice_activation: {ways} ranks hold {name!r}, and each keeps 1/{ways} of it until backward"
    fields: dict[str, Any] = {"axes": axes, "device_matrix": stored.device_matrix, "name": maker.name}
    fields |= {"stage": maker.stage, "origin": maker.origin.made("recompute")}
    keep = Instr("slice", (part,), (name,), attrs=attr_pairs({"dim": 0}), reason=why, once=maker.once, **fields)
    attrs, why = attr_pairs({"dim": 0, "fusion": 0}), "recompute_slice_activation: backward reads the whole slice"
    return keep, Instr("all_gather", (whole,), (part,), attrs=attrs, reason=why, once=_BACK[maker.once], **fields)
