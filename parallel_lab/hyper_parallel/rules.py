"""`infer_layout` of HyperParallel's operators: one engine, and per family the labels of its operands and results.

    MatMul = operator_class("MatMulExtDistributedOp", "matmul")
    MatMul("matmul").infer_layout((x, w), [])              "mk,kn->mn"

The labels are those of `@op`: an axis that splits a label splits it in every operand and in the results; what splits a
label that the results lack leaves them pending. HyperParallel chooses no redistribution, so what would need one is
refused (a ValueError): operands that split a label otherwise, a `whole` label that is split, what is pending in an
operator that is not linear. What each family (`families.py`) is given besides layouts (`extra_args`), and in which form
it answers, is HyperParallel's at release 0.1, of March 2026.

Where it forgets that a value is pending (transpose, reshape, unbind, reductions), it is kept here or refused: addends
are not the value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..base.errors import LayoutError, ParallelLabError, shorten
from .layout import Layout

Axes = tuple[str, ...]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Form:
    """What an operator does with dims.

    ins, outs  labels of operands (those that have a layout) and of results
    whole      labels that nothing may split
    loose      labels that one operand may split while another holds all of it
    reduce     how results are pending on labels that they lack; "": such labels are whole
    linear     reductions that may be pending in operands, and stay so in results
    """

    ins: tuple[str, ...]
    outs: tuple[str, ...]
    whole: str = ""
    loose: str = ""
    reduce: str = ""
    linear: tuple[str, ...] = ()


ANY = ("sum", "max", "min", "avg", "prod", "all")


def strict(form: Form, layouts: Sequence[Layout], where: str) -> list[Layout]:
    """Layouts of the results. Raises LayoutError where a message would be needed, with the dim and both layouts."""
    first = layouts[0]
    if any(layout.mesh.to_hash() != first.mesh.to_hash() for layout in layouts):
        raise LayoutError("operands on two meshes", where=where, allowed="One mesh_shape, alias_name and rank_list")
    split: dict[str, Axes] = {}
    whole = set(form.whole)
    if not form.reduce:
        whole |= set("".join(form.ins)) - set("".join(form.outs))
    for number, (labels, layout) in enumerate(zip(form.ins, layouts, strict=True)):
        dims = layout.dims()
        if len(dims) != len(labels):
            given = f"operand {number} has {len(dims)} dims"
            raise LayoutError(given, where=where, allowed=f"{len(labels)}")
        for dim, (label, axes) in enumerate(zip(labels, dims, strict=True)):
            if label in whole and any(layout.mesh.get_device_num_along_axis(axis) > 1 for axis in axes):
                given = f"dim {dim} of operand {number} is split by {axes}"
                hint = "Redistribute it so that every rank holds that dim whole"
                raise LayoutError(given, where=where, allowed='A dim that is "None" there', hint=hint)
            before = split.setdefault(label, axes)
            if before != axes and label in form.loose and not (before and axes):
                split[label] = before or axes
            elif before != axes:
                given = (
                    f"dim {dim} of operand {number} is split by {axes or 'nothing'}, elsewhere by {before or 'nothing'}"
                )
                raise LayoutError(given, where=where, allowed="Operands that split it alike", hint="Redistribute one")
    pending = _pending(form, layouts, where)
    results = []
    for labels in form.outs:
        entries = [split.get(label, ()) for label in labels]
        made = Layout.from_device_mesh(first.mesh)(*(e[0] if len(e) == 1 else e or "None" for e in entries))
        for axis, op in pending.items():
            made.set_partial_by_dev_axis(axis, op)
        for label, axes in split.items():
            for axis in axes if form.reduce and label not in labels else ():
                made.set_partial_by_dev_axis(axis, form.reduce)
        results.append(made)
    return results


def _pending(form: Form, layouts: Sequence[Layout], where: str) -> dict[str, str]:
    """{axis: reduction} of what is pending in operands. Raises LayoutError where the operator would lose it."""
    found: dict[str, str] = {}
    for number, layout in enumerate(layouts):
        for axis, op in zip(layout.mesh.pivot.names, layout.partial, strict=True):
            if op is None:
                continue
            if op not in form.linear:
                given = f"operand {number} is pending ({op}) over {axis!r}: its Partial status is not allowed"
                raise LayoutError(given, where=where, allowed="Whole values", hint="reduce_partial() first")
            if found.setdefault(axis, op) != op:
                given = f"operands are pending over {axis!r} by {found[axis]} and {op}"
                raise LayoutError(given, where=where, allowed="One reduction per axis")
    return found


# ---- what a call is given ----


class CallError(LayoutError, TypeError):
    """What an operator was given: HyperParallel raises a ValueError for some of it, a TypeError for other."""


class Call:
    """One call of `infer_layout`.

    name     the operator's;  kind: its class without "DistributedOp"
    layouts  of all operands, None for plain values;  extra: extra_args
    """

    def __init__(self, name: str, kind: str, layouts: Sequence[Any], extra: Any) -> None:
        self.name, self.kind, self.layouts, self.extra = name, kind, tuple(layouts), extra
        self.given = [layout for layout in layouts if layout is not None]

    @property
    def labels(self) -> str:
        """A letter per dim of operand 0."""
        return letters(self.layouts[0])

    def refuse(self, given: str, allowed: str) -> CallError:
        """An error about what the call was given."""
        return CallError(given, where=self.name, allowed=allowed)

    def need(self, holds: Any, allowed: str) -> None:
        """Refuse the call unless something holds."""
        if not holds:
            given = f"layouts {shorten(self.layouts)} with extra_args={shorten(self.extra)}"
            raise self.refuse(given, allowed)

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """One of extra_args, by its place in a list or its name in a dict."""
        if isinstance(self.extra, dict):
            return self.extra.get(name, default)
        extra = self.extra if isinstance(self.extra, (list, tuple)) else [self.extra]
        return extra[place] if place < len(extra) else default

    def shapes(self) -> Sequence[Any]:
        """The last of extra_args: shapes of all operands."""
        last = self.argument(-1, "input_shapes") if self.extra else None
        return last if isinstance(last, (list, tuple)) else ()

    def dim(self, value: Any, *, more: int = 0) -> int:
        """A dim of operand 0, counted from the left.  more: 1 where a new one is made.  Raises CallError."""
        ndim = len(self.labels) + more
        if type(value) is not int or not -ndim <= value < ndim:
            raise self.refuse(f"dim {shorten(value)}", f"An int, {-ndim} to {ndim - 1}")
        return value % ndim

    def lies(self, pattern: str, whole: str = "", linear: tuple[str, ...] = (), **form: str) -> Any:
        """The layout of the result, or of all, by labels: "...K,NK,N?->...N".

        ...  a letter per dim of operand 0, but those that it writes out;  *: one per dim of an operand, its own
        ?    the operand may be missing;  whole, linear, form: see `Form`
        """
        before, after = pattern.split("->")
        parts = before.split(",")
        lead = self.labels[: len(self.labels) - len(parts[0].replace("...", ""))]
        pairs = []
        for labels, layout in zip(parts, self.layouts, strict=False):
            if layout is not None or not labels.endswith("?"):
                own = labels.removesuffix("?").replace("...", lead)
                pairs.append((own.replace("*", letters(layout).upper()), layout))
        self.need(len(self.layouts) >= len(parts), f"{len(parts)} layouts or more")
        ins = tuple(labels for labels, _ in pairs)
        outs = tuple(labels.replace("...", lead) for labels in after.split(","))
        results = strict(Form(ins, outs, whole, linear=linear, **form), [x for _, x in pairs], self.name)
        return results[0] if len(results) == 1 else tuple(results)

    def moved(self, result: str, labels: str = "", whole: str = "") -> Layout:
        """The layout of a result of these labels, of operand 0; what is pending stays so."""
        return strict(Form((labels or self.labels,), (result,), whole, linear=ANY), [self.layouts[0]], self.name)[0]


def letters(layout: Layout) -> str:
    """A letter per dim."""
    return LETTERS[: len(layout.dims())]


def cuts(layout: Layout) -> list[int]:
    """Per dim the number of its pieces."""
    return [math.prod(layout.mesh.get_device_num_along_axis(axis) for axis in axes) for axes in layout.dims()]


# ---- operators by their names ----

Rule = Callable[[Call], Any]
FAMILIES: dict[str, Rule] = {}  # module parallel_NAME: its family
KINDS: dict[str, Rule] = {}  # a class, without "Ext" and "View", that is not of its module's family


def family(*modules: str, kinds: str = "") -> Callable[[Rule], Rule]:
    """Register the rule of modules, or of classes."""

    def register(rule: Rule) -> Rule:
        FAMILIES.update(dict.fromkeys(modules, rule))
        KINDS.update(dict.fromkeys(kinds.split(), rule))
        return rule

    return register


class DistributedOp:
    """How an operator's results lie.  op_name: the operator's, as a framework calls it"""

    kind, family = "", staticmethod(lambda call: FAMILIES["ops"](call))

    def __init__(self, op_name: str = "") -> None:
        self.op_name = op_name or self.kind

    def infer_layout(self, layouts: Sequence[Any], extra_args: Any = None) -> Any:
        """The layouts of the results.

        layouts     of the operands; None: no tensor
        extra_args  what else the call has, in order; where shapes matter, a list of them comes last

        A list of layouts that ends in such values, alone, is the form of later releases, which answer (layouts, None).

        Raises LayoutError (a ValueError) where the results would need a message first.
        """
        if isinstance(layouts, list) and extra_args is None and not _is_layout(layouts[-1] if layouts else None):
            count = next((n for n, value in enumerate(layouts) if not _is_layout(value)), len(layouts))
            found = self.infer_layout(tuple(layouts[:count]), layouts[count:])
            return (found if isinstance(found, tuple) else (found,)), None
        call = Call(self.op_name, self.kind, layouts, extra_args)
        try:
            return type(self).family(call)
        except ParallelLabError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            given = f"layouts {shorten(layouts)} with extra_args={shorten(extra_args)}"
            raise call.refuse(given, str(type(self).family.__doc__).partition("\n")[0]) from error

    def get_expand_impl(self, func: Any, output_layout: Any, layouts: Sequence[Any], extra_args: Any = None) -> Any:
        """What ranks run instead of `func`; None: `func` itself.

        A whole operand that is added to addends is divided by their number first (Add, Linear's bias).
        """
        if self.kind == "Linear":
            place, ranks = 2, _addends(output_layout)
        elif self.kind == "Add" and len({layout is not None and layout.is_partial() for layout in layouts[:2]}) == 2:
            whole = [n for n, layout in enumerate(layouts[:2]) if layout is None or not layout.is_partial()]
            place, ranks = whole[0], _addends(output_layout)
        else:
            return None
        if ranks == 1 or (place < len(layouts) and self.kind == "Linear" and layouts[place] is None):
            return None

        def divided(*operands: Any, **more: Any) -> Any:
            given = list(operands)
            given[place] = given[place] / ranks
            return func(*given, **more)

        return divided


def _is_layout(value: Any) -> bool:
    return value is None or isinstance(value, Layout)


def _addends(layout: Any) -> int:
    """Ranks whose values are added."""
    layout = layout[0] if isinstance(layout, tuple) else layout
    return math.prod(n for n, op in zip(layout.mesh_shape, layout.partial, strict=True) if op == "sum")


@lru_cache(maxsize=1024)
def operator_class(name: str, module: str) -> type[DistributedOp]:
    """The class `name` of HyperParallel's module parallel_`module`. Raises LayoutError for an unknown module."""
    kind = re.sub("DistributedOp(Base)?$", "", name)
    if module not in FAMILIES:
        raise LayoutError(f"parallel_{module}", where="hyper_parallel", allowed=f"One of {sorted(FAMILIES)}")
    plain = kind.removesuffix("View").removesuffix("Ext")
    family = KINDS.get(plain, FAMILIES[module])
    return type(name, (DistributedOp,), {"kind": kind, "family": staticmethod(family), "__module__": __name__})
