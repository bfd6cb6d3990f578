"""Bugs that people make, planted in a plan: it still runs, and its numbers are wrong.

    for site in sites(plan, "missing"):           every reduction of the plan
        wrong = mutant(plan, "missing", site, seed=0)
    wrong.plan, wrong.instr, wrong.mend           what to run; where it lies; what makes it right again

Two families. REDUCTIONS: a sum over ranks is not taken, taken twice, over other ranks, or one reader takes the addends.
VALUES: numbers of the right type that are wrong: divisors, seeds, positions, labels, noise, what is stale. Whether a
mutant changes a gradient is a question to a run (`planted.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import ArgumentError, shorten
from ...graph.instr import Instr, Value, attr_pairs
from ...graph.plan import Plan
from ...graph.value_types import Axes, named
from ...ops.machine.opdef import OPS

ADDING = ("all_reduce", "reduce_scatter")
STATISTICS = ("epsilon", "eps")  # attributes of operators that divide by a deviation


class Site(NamedTuple):
    """An instruction of a plan: number of the stage, program, position in it."""

    stage: int
    phase: str
    position: int


@dataclass(frozen=True)
class Mutant:
    """A plan with a bug.

    kind, site   one of KINDS; where it was planted;  instr: the instruction of the right plan
    mend         what makes it right again, in words
    """

    plan: Plan
    kind: str
    site: Site
    instr: Instr
    mend: str

    @property
    def family(self) -> str:
        """ "reduction" or "value"."""
        return "reduction" if self.kind in REDUCTIONS else "value"

    def __str__(self) -> str:
        return f"{self.kind} at {named(self.instr)}: {self.mend}"


def instr_at(plan: Plan, site: Site) -> Instr:
    """The instruction at a site."""
    return plan.stages[site.stage].program(site.phase)[site.position]


def _all(plan: Plan, holds: Callable[[str, Instr], bool]) -> tuple[Site, ...]:
    return tuple(
        Site(number, phase, position)
        for number, stage in enumerate(plan.stages)
        for phase, program in stage.programs
        for position, instr in enumerate(program)
        if holds(phase, instr)
    )


class _Edit:
    """A plan while it is changed at one site."""

    def __init__(self, plan: Plan, site: Site, rng: np.random.Generator) -> None:
        self.plan, self.site, self.rng, self.instr = plan, site, rng, instr_at(plan, site)
        self.values: dict[str, Value] = {}

    @property
    def program(self) -> tuple[Instr, ...]:
        return self.plan.stages[self.site.stage].program(self.site.phase)

    def new(self, name: str, like: str) -> str:
        """A name for a value that lies as another."""
        while name in self.plan.value_table or name in self.values:
            name += "_"
        self.values[name] = self.plan.value(like)
        return name

    def done(self, *instead: Instr, position: int | None = None, phase: str | None = None, **fields: Any) -> Plan:
        """The plan with these instructions at a position (the site's)."""
        at, phase = self.site.position if position is None else position, phase or self.site.phase
        stages = list(self.plan.stages)
        stage = stages[self.site.stage]
        programs = {name: list(program) for name, program in stage.programs}
        programs[phase][at : at + 1] = instead
        parts = tuple((name, tuple(program)) for name, program in programs.items())
        stages[self.site.stage] = replace(stage, programs=parts)
        values = tuple(sorted({**self.plan.value_table, **self.values}.items()))
        return replace(self.plan, stages=tuple(stages), values=values, **fields)

    def operator(self, op: str, out: str, source: str, **attrs: Any) -> Instr:
        """One more operator, at the place of the instruction."""
        made: dict[str, Any] = {"axes": (), "device_matrix": (), "offset_axes": (), "strategy": None, "reason": ""}
        made |= {"op": op, "op_class": OPS[op].class_name, "attrs": attr_pairs(attrs), "outs": (out,), "ins": (source,)}
        return replace(self.instr, kind="compute", **made)

    def scaled(self, count: float) -> Plan:
        """The result divided once more."""
        instr, out = self.instr, self.instr.out
        before = self.new(f"{out}.undivided", out)
        outs = tuple(before if name == out else name for name in instr.outs)
        once = instr.once or ("last" if instr.kind == "accumulate" else "")
        divided = self.operator("divide_by", out, before, count=count)
        return self.done(replace(instr, outs=outs), replace(divided, once=once))

    def arrived(self) -> tuple[str, int, Instr] | None:
        """(program, position, instruction) that makes what a reduction brings: itself, its wait, a split of that."""
        if self.instr.kind != "start":
            return self.site.phase, self.site.position, self.instr
        stage, name, bucket = self.plan.stages[self.site.stage], self.instr.out, self.instr.attr("members") is not None
        found = [(p, at, i) for p, program in stage.programs for at, i in enumerate(program)]
        wait = next((each for each in found if each[2].kind == "wait" and each[2].ins[0] == name), None)
        if wait is None or not bucket:
            return wait
        parts = [each for each in found if each[2].kind == "split" and each[2].ins[0] == wait[2].out]
        return parts[int(self.rng.integers(len(parts)))] if parts else None


# ---- reductions ----


def reductions(plan: Plan) -> tuple[Site, ...]:
    """All sums over ranks that the plan takes."""
    return _all(plan, lambda phase, i: _adds(i))


def _adds(instr: Instr) -> bool:
    adds = instr.message in ADDING and instr.attr("reduce", "sum") == "sum" and instr.kind != "wait"
    return adds and not instr.by_hand and not instr.attr("of_slices") and bool(instr.axes)


def _cut(edit: _Edit, source: str, out: str) -> Instr:
    """What of its own addend a rank would take for the sum: the addend; of a sum that is scattered its part."""
    instr = edit.instr
    if instr.message == "all_reduce":
        attrs, place = {"shape": edit.plan.value(source).slice_shape}, {"axes": (), "device_matrix": ()}
        return replace(instr, kind="reshape", outs=(out,), ins=(source,), attrs=attr_pairs(attrs), **place)
    return replace(instr, kind="slice", outs=(out,), ins=(source,), attrs=attr_pairs({"dim": instr.attr("dim")}))


def _missing(edit: _Edit) -> Plan | None:
    instr = edit.instr
    if instr.kind == "start":
        return edit.done(replace(instr, axes=())) if instr.message == "all_reduce" else None
    return edit.done(_cut(edit, instr.ins[0], instr.out))


def _doubled(edit: _Edit) -> Plan | None:
    place = edit.arrived()
    if place is None:
        return None
    phase, position, last = place
    once = edit.new(f"{last.out}.once", last.out)
    attrs, place = attr_pairs({"reduce": "sum", "fusion": 0}), (edit.instr.axes, edit.instr.device_matrix)
    again = replace(last, kind="all_reduce", ins=(once,), attrs=attrs, axes=place[0], device_matrix=place[1])
    return edit.done(replace(last, outs=(once,)), again, position=position, phase=phase)


def _wrong_group(edit: _Edit) -> Plan | None:
    instr, plan = edit.instr, edit.plan
    matrices = [v.layout.device_matrix for _, v in plan.values if v.layout is not None]
    count = plan.stages[0].count
    fine = Axes((m for m in (*matrices, instr.device_matrix, _halves(count)) if np.prod(m) == count), count).strides
    matrix = tuple(b // a for a, b in pairwise(fine))[::-1]
    ways = [axes for n in range(1, len(matrix) + 1) for axes in combinations(range(len(matrix)), n)]
    ways = [tuple(reversed(axes)) for axes in ways]
    made = [replace(instr, axes=axes, device_matrix=matrix) for axes in ways]
    right = [instr.group(rank) for rank in range(count)]
    size = instr.group_size
    others = [i for i in made if [i.group(r) for r in range(count)] != right]
    if instr.message == "reduce_scatter":
        others = [i for i in others if i.group_size == size]
    return edit.done(others[int(edit.rng.integers(len(others)))]) if others else None


def _halves(count: int) -> tuple[int, ...]:
    """A device matrix of two axes, if there is one."""
    divisor = next((d for d in range(2, count) if count % d == 0), count)
    return (count // divisor, divisor)


def _read_early(edit: _Edit) -> Plan | None:
    """One reader of the sum reads the addend."""
    place = edit.arrived()
    if place is None or edit.instr.message == "reduce_scatter" and edit.instr.kind == "start":
        return None
    last, stage = place[2], edit.plan.stages[edit.site.stage]
    readers = [
        (phase, at, i)
        for phase, program in stage.programs
        for at, i in enumerate(program)
        if last.out in i.ins and i.kind in ("compute", "slice", "reshape", *ADDING, "all_gather", "start")
    ]
    if not readers:
        return None
    phase, at, reader = readers[int(edit.rng.integers(len(readers)))]
    source = edit.instr.ins[0]
    if last.kind == "split":
        bucket = next(i for _, p in stage.programs for i in p if source in i.outs)
        source = bucket.ins[last.attr("member")]
    if edit.instr.message == "all_reduce":
        return edit.done(_reading(reader, last.out, source), position=at, phase=phase)
    early = edit.new(f"{last.out}.early", last.out)
    cut = replace(_cut(edit, source, early), once=reader.once, stage=reader.stage, when=reader.when)
    return edit.done(cut, _reading(reader, last.out, early), position=at, phase=phase)


def _reading(instr: Instr, name: str, instead: str) -> Instr:
    return replace(instr, ins=tuple(instead if n == name else n for n in instr.ins))


# ---- values ----


def _other_attrs(edit: _Edit, **attrs: Any) -> Plan:
    return edit.done(replace(edit.instr, attrs=attr_pairs({**dict(edit.instr.attrs), **attrs})))


def _shifted(edit: _Edit) -> Plan:
    """Labels moved by one within what a rank holds: the last target of a slice is the first."""
    instr = edit.instr
    label = next(n for n in instr.ins if _is_label(edit.plan, n))
    moved = edit.new(f"{label}.shifted", label)
    axis = len(edit.plan.value(label).shape) - 1
    roll = edit.operator("roll", moved, label, shift=(-1,), axis=(axis,))
    return edit.done(roll, _reading(instr, label, moved))


def _is_label(plan: Plan, name: str) -> bool:
    value = plan.value_table.get(name)
    return value is not None and value.dtype.startswith("int") and len(value.shape) > 0 and max(value.shape) > 1


def _coarse(edit: _Edit) -> Plan:
    """The result rounded to half precision."""
    instr, out = edit.instr, edit.instr.out
    fine, half = edit.new(f"{out}.fine", out), edit.new(f"{out}.half", out)
    edit.values[half] = replace(edit.values[fine], dtype="float16")
    narrow = edit.operator("cast", half, fine, dtype="float16")
    wide = edit.operator("cast", out, half, dtype=edit.values[fine].dtype)
    return edit.done(replace(instr, outs=(fine,)), narrow, wide)


def _not_taken(edit: _Edit) -> Plan:
    """A parameter keeps its old value."""
    outs = set(edit.instr.kept)
    return edit.done(edit.instr, assignments=tuple(p for p in edit.plan.assignments if p[1] not in outs))


def _gradients(plan: Plan) -> set[str]:
    return {gradient for _, gradient in plan.gradients}


def _parameters(plan: Plan) -> set[str]:
    new, names = dict(plan.assignments), {i.name for i in plan.parameters}
    return {source for target, source in new.items() if target in names}


def _replicas(edit: _Edit) -> int:
    """A number that somebody takes for the right one: ranks of a group, or two."""
    sizes = sorted({i.group_size for _, i in edit.plan.instructions() if i.message and i.axes} - {1}) or [2]
    return sizes[int(edit.rng.integers(len(sizes)))]


Sites = Callable[[Plan], Sequence[Site]]
Change = Callable[[_Edit], Plan | None]


@dataclass(frozen=True)
class Kind:
    """A kind of bug: where it may be planted, how, what mends it."""

    sites: Sites
    change: Change
    mend: str


def _computes(*ops: str, **attrs: Any) -> Sites:
    def found(plan: Plan) -> Sequence[Site]:
        return _all(plan, lambda phase, i: i.kind == "compute" and i.op in ops and bool(i.offset_axes))

    return found


REDUCTIONS: dict[str, Kind] = {
    "missing": Kind(reductions, _missing, "the sum over these ranks"),
    "doubled": Kind(reductions, _doubled, "one sum over these ranks, not two"),
    "wrong group": Kind(reductions, _wrong_group, "the sum over the ranks that hold addends"),
    "read early": Kind(reductions, _read_early, "reading the sum, not the addend"),
}
VALUES: dict[str, Kind] = {
    "divisor": Kind(
        lambda plan: _all(plan, lambda phase, i: i.kind == "compute" and not _gradients(plan).isdisjoint(i.kept)),
        lambda edit: edit.scaled(_replicas(edit)),
        "no second division: the mean was taken",
    ),
    "loss seed": Kind(
        lambda plan: _all(plan, lambda phase, i: i.op == "fill" and phase == "backward" and bool(i.attr("value"))),
        lambda edit: _other_attrs(edit, value=edit.instr.attr("value") * _replicas(edit)),
        "a gradient that starts with 1 over the ranks that hold the loss",
    ),
    "mean for sum": Kind(
        lambda plan: _all(plan, lambda phase, i: _adds(i) and phase in ("forward", "backward", "weights")),
        lambda edit: _other_attrs(edit, reduce="mean"),
        "a sum, not a mean",
    ),
    "positions": Kind(
        _computes("rotary_positions", "causal_mask", "context_attention", "attention_block", "gather", "split_losses"),
        lambda edit: edit.done(replace(edit.instr, offset_axes=())),
        "the offset of the slice",
    ),
    "same noise": Kind(
        _computes("dropout_at"),
        lambda edit: edit.done(replace(edit.instr, offset_axes=())),
        "noise by the place in the whole tensor, not by the rank's",
    ),
    "other noise": Kind(
        lambda plan: _all(plan, lambda phase, i: i.op == "dropout_at" and phase != "forward"),
        lambda edit: _other_attrs(edit, key=edit.instr.attr("key", 0) + 1),
        "the mask of the forward pass",
    ),
    "shifted labels": Kind(
        lambda plan: _all(
            plan, lambda phase, i: i.kind == "compute" and "entropy" in i.op and any(_is_label(plan, n) for n in i.ins)
        ),
        _shifted,
        "labels that are shifted before they are cut",
    ),
    "stale": Kind(
        lambda plan: _all(plan, lambda phase, i: phase == "update" and not _parameters(plan).isdisjoint(i.kept)),
        _not_taken,
        "the assignment of the new value",
    ),
    "norm of clipping": Kind(
        lambda plan: _all(plan, lambda phase, i: phase == "update" and i.op in ("reduce_sum", "norm_ratio")),
        lambda edit: edit.scaled(1 / _replicas(edit)),
        "copies counted once",
    ),
    "accumulation": Kind(
        lambda plan: _all(plan, lambda phase, i: i.kind == "accumulate"),
        lambda edit: edit.scaled(edit.plan.micro_batches),
        "a sum over micro-batches: the loss was divided",
    ),
    "epsilon": Kind(
        lambda plan: _all(plan, lambda phase, i: i.kind == "compute" and any(i.attr(e) for e in STATISTICS)),
        lambda edit: _other_attrs(edit, **{e: edit.instr.attr(e) * 1e4 for e in STATISTICS if edit.instr.attr(e)}),
        "the epsilon of the forward pass",
    ),
    "precision": Kind(
        lambda plan: _all(plan, lambda phase, i: _adds(i) and i.kind != "start" and phase != "forward"),
        _coarse,
        "sums in float32",
    ),
}
KINDS = {**REDUCTIONS, **VALUES}


def sites(plan: Plan, kind: str) -> tuple[Site, ...]:
    """Where a kind of bug may be planted. Raises ArgumentError."""
    if kind not in KINDS:
        raise ArgumentError(f"kind {shorten(kind)}", where="sites", allowed=f"One of {', '.join(KINDS)}")
    return tuple(KINDS[kind].sites(plan))


def mutant(plan: Plan, kind: str, site: Site | int, seed: int = 0) -> Mutant | None:
    """A plan with a bug of one of KINDS at a site (or the site of that number); None: it cannot be planted there.

    seed  draws what is left open: the wrong group, the reader, the number taken for the right one

    Raises ArgumentError.
    """
    known = sites(plan, kind)
    if isinstance(site, int) and not isinstance(site, Site):
        if not -len(known) <= site < len(known):
            raise ArgumentError(f"site {site}", where="plant", allowed=f"0 to {len(known) - 1} of {kind!r}")
        site = known[site]
    if site not in known:
        raise ArgumentError(f"site {site}", where="plant", allowed=f"One of sites(plan, {kind!r})")
    edit = _Edit(plan, site, np.random.default_rng([seed, *known.index(site).to_bytes(4, "little")]))
    wrong = KINDS[kind].change(edit)
    return None if wrong is None or wrong == plan else Mutant(wrong, kind, site, edit.instr, KINDS[kind].mend)


def drawn(plan: Plan, family: str, seed: int) -> Mutant | None:
    """A mutant of one of KINDS ("reduction", "value") at a site drawn uniformly; None as `mutant`."""
    rng = np.random.default_rng(seed)
    table = {"reduction": REDUCTIONS, "value": VALUES}[family]
    possible = [(kind, found) for kind in table if (found := sites(plan, kind))]
    if not possible:
        return None
    kind, found = possible[int(rng.integers(len(possible)))]
    return mutant(plan, kind, found[int(rng.integers(len(found)))], seed)
