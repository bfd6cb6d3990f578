"""`infer_layout` of HyperParallel's operators: one class, and per family the labels of its operands and results.

    MatMul = operator_class("MatMulExtDistributedOp")
    MatMul("matmul").infer_layout((x, w), [])              "mk,kn->mn"

The labels are those of `@op`: an axis that splits a label splits it in every operand and in the results; what splits a
label that the results lack leaves them pending. HyperParallel chooses no redistribution, so what would need one is
refused (a ValueError): operands that split a label otherwise, a `whole` label that is split, what is pending in an
operator that is not linear. What each family is given besides layouts (`extra_args`), and in which form it answers, is
HyperParallel's at release 0.1, of March 2026.

Where it forgets that a value is pending (transpose, reshape, unbind, reductions), it is kept here or refused: addends
are not the value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..base.errors import LayoutError, LayoutTypeError, shorten
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


class Call:
    """One call of `infer_layout`.

    name     the operator's;  kind: its class without "DistributedOp"
    layouts  of the operands that have one;  extra: extra_args
    """

    def __init__(self, name: str, kind: str, layouts: Sequence[Any], extra: Any) -> None:
        self.name, self.kind, self.all_layouts, self.extra = name, kind, layouts, extra
        self.layouts = [layout for layout in layouts if layout is not None]

    def refuse(self, given: str, allowed: str) -> LayoutError:
        """An error about what the call was given."""
        return LayoutError(given, where=self.name, allowed=allowed)

    def operands(self, least: int, most: int | None = None) -> list[Any]:
        """The layouts. Raises LayoutError for fewer or more, or if the first is missing."""
        count = len(self.all_layouts)
        if count < least or (most is not None and count > most) or (least and self.all_layouts[0] is None):
            raise self.refuse(f"{count} layouts, {shorten(self.all_layouts)}", f"{least} or more, the first a Layout")
        return list(self.all_layouts)

    def labels(self, operand: int = 0) -> str:
        """A letter per dim of an operand."""
        return LETTERS[: len(self.all_layouts[operand].dims())]

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

    def dim(self, value: Any, ndim: int, *, more: int = 0) -> int:
        """A dim counted from the left.  more: 1 where a new one is made.  Raises LayoutError."""
        if type(value) is not int:
            raise LayoutTypeError(f"dim={shorten(value)}", where=self.name, allowed="An int")
        if not -(ndim + more) <= value < ndim + more:
            raise self.refuse(f"dim {value} is out of range", f"{-(ndim + more)} to {ndim + more - 1}")
        return value % (ndim + more) if ndim + more else 0

    def one(self, form: Form) -> Layout:
        """The layout of the only result."""
        return strict(form, self.layouts, self.name)[0]

    def same(self, whole: str = "", linear: tuple[str, ...] = ()) -> Layout:
        """The layout of operand 0 for a result of its dims; those of `whole` may not be split."""
        labels = self.labels()
        return strict(Form((labels,), (labels,), whole, linear=linear), [self.all_layouts[0]], self.name)[0]


# ---- element by element ----


def elementwise(call: Call) -> Layout | None:
    """Shapes are broadcast: dims of size 1 lie whole. Without shapes all layouts must be equal."""
    if not call.layouts:
        return None
    partial = "WithPartial" in call.kind or call.kind in ("Add", "Sub")
    linear = ("sum",) if call.kind in ("Add", "Sub") else ANY if partial else ()
    shapes = call.shapes()
    if len(call.layouts) == 1 or not shapes:
        forms = tuple(map(letters, call.layouts))
        if len(set(forms)) > 1:
            raise call.refuse("operands of different numbers of dims, without their shapes", "Their shapes")
        return call.one(Form(forms, forms[:1], linear=linear))
    pairs = [(x, tuple(s or ())) for x, s in zip(call.all_layouts, shapes, strict=False) if x is not None]
    most = max(len(shape) for _, shape in pairs)
    padded = [(1,) * (most - len(shape)) + shape for _, shape in pairs]
    sizes = [max(column, default=1) if 0 not in column else 0 for column in zip(*padded, strict=True)]
    ins, whole = [], ""
    for (layout, shape), full in zip(pairs, padded, strict=True):
        if any(size not in (1, out) for size, out in zip(full, sizes, strict=True)):
            raise call.refuse(f"shapes {[s for _, s in pairs]} cannot be broadcast together", "Equal sizes, or 1")
        names = ""
        for dim in range(most - len(shape), most):
            alone = full[dim] == 1 != sizes[dim]
            names += LETTERS[dim].upper() if alone else LETTERS[dim]
            whole += LETTERS[dim].upper() if alone else ""
        if layout.is_partial() and full != tuple(sizes):
            raise call.refuse(f"an operand of shape {shape} has Partial status and broadcasts", "Whole values")
        ins.append(names)
    result = LETTERS[:most]
    return strict(Form(tuple(ins), (result,), whole, result, linear=linear), [x for x, _ in pairs], call.name)[0]


def letters(layout: Layout) -> str:
    """A letter per dim."""
    return LETTERS[: len(layout.dims())]


def softmax(call: Call) -> Layout | None:
    """extra_args: (axis or axes,), which lie whole; further operands are split as the first is."""
    if not call.layouts:
        return None
    axes, labels = call.argument(0, "axis"), call.labels()
    if not isinstance(axes, (int, tuple)):
        raise call.refuse(f"axis={shorten(axes)}", "An int or a tuple of ints")
    whole = "".join(labels[call.dim(a, len(labels))] for a in (axes if isinstance(axes, tuple) else (axes,)))
    return call.one(Form((labels,) * len(call.layouts), (labels,), whole))


def scan(call: Call) -> Layout:
    """extra_args: (dim,), which lies whole: cumsum."""
    call.operands(1)
    dim = call.argument(0, "dim")
    if type(dim) is not int:
        raise call.refuse(f"dim={shorten(dim)}", "An int")
    return call.same(call.labels()[call.dim(dim, len(call.labels()))])


# ---- reductions ----


def reduction(call: Call) -> Any:
    """extra_args: (dim, keepdim), dim None for all, a number, several. max, min: two results where dim is given."""
    call.operands(1)
    kind = call.kind.lower().removeprefix("reduce").removesuffix("ext")
    reduce = {"mean": "avg", "sum": "sum", "max": "max", "min": "min", "prod": "prod", "all": "all"}[kind]
    labels = call.labels()
    pair = kind in ("max", "min") and not call.kind.startswith("Reduce")
    if pair and len(call.layouts) == 2 and not call.extra:
        return call.one(Form((labels, labels), (labels,), linear=(reduce,)))
    given, keep = call.argument(0, "dim"), bool(call.argument(1, "keepdim", False))
    if given is None:
        dims = list(range(len(labels)))
    elif isinstance(given, (int, tuple, list)):
        each = list(given) if isinstance(given, (tuple, list)) else [given]
        dims = [call.dim(d, len(labels)) for d in each]
    else:
        raise LayoutTypeError(f"dim={shorten(given)}", where=call.name, allowed="None, an int, or several")
    rest = "".join((c.upper() if keep else "") if i in dims else c for i, c in enumerate(labels))
    linear = ("sum", "avg") if reduce in ("sum", "avg") else (reduce,)
    form = Form((labels,), (rest,) * (2 if pair and given is not None else 1), reduce=reduce, linear=linear)
    results = strict(form, call.layouts[:1], call.name)
    return tuple(results) if len(results) > 1 else results[0]


def argmax(call: Call) -> tuple[Layout, Layout]:
    """extra_args: (axis, keep_dims); three operands, the first with a layout. Index and value."""
    layouts = call.operands(3, 3)
    if len(call.extra or ()) != 2:
        raise call.refuse(f"extra_args={shorten(call.extra)}", "(axis, keep_dims)")
    labels, keep = call.labels(), call.extra[1]
    axis = call.extra[0]
    if type(axis) is not int:
        raise call.refuse(f"axis={shorten(axis)}", "An int")
    at = call.dim(axis, len(labels))
    rest = labels[:at] + (labels[at].upper() if keep else "") + labels[at + 1 :]
    index, value = strict(Form((labels,), (rest, rest)), layouts[:1], call.name)
    return index, value


# ---- products ----


def product(call: Call) -> Layout:
    """MatMul, BatchMatMul: extra_args (transpose_a, transpose_b); their Ext forms: none. Batch dims are broadcast."""
    layouts = call.operands(2, None if call.kind.startswith("Batch") or "Ext" not in call.kind else 2)
    if layouts[1] is None:
        raise call.refuse("no layout of operand 1", "Two layouts")
    turned = (False, False)
    if "Ext" not in call.kind:
        if len(call.extra or ()) != 2:
            raise call.refuse(f"extra_args={shorten(call.extra)}", "(transpose_a, transpose_b)")
        turned = call.extra
    ranks = [len(layout.dims()) for layout in layouts[:2]]
    if min(ranks) < 2:
        raise call.refuse(f"operands of {ranks} dims", "Two dims or more")
    batches = [LETTERS[max(ranks) - n : max(ranks) - 2] for n in ranks]
    a = batches[0] + ("KM" if turned[0] else "MK")
    b = batches[1] + ("NK" if turned[1] else "KN")
    batch = LETTERS[: max(ranks) - 2]
    return strict(Form((a, b), (batch + "MN",), loose=batch, reduce="sum"), layouts[:2], call.name)[0]


def linear(call: Call) -> Layout:
    """x (..., k), weight (n, k), and a bias (n,) or None."""
    layouts = call.operands(3, 3)
    if layouts[1] is None:
        raise call.refuse("no layout of the weight", "Three layouts; the bias may be None")
    batch = call.labels()[:-1]
    ins = (batch + "K", "NK", "N")[: len(call.layouts)]
    return call.one(Form(ins, (batch + "N",), reduce="sum"))


def embedding(call: Call) -> Layout:
    """Indices, weight (v, e): rows that are split leave a sum pending, since ranks give zeros for others' rows."""
    layouts = call.operands(2)
    labels = call.labels()
    return strict(Form((labels, "VE"), (labels + "E",), reduce="sum"), layouts[:2], call.name)[0]


# ---- norms ----


def rms_norm(call: Call) -> tuple[Layout, Layout]:
    """x, ..., gamma, and one more: gamma's dims, x's last, lie whole. Results: as x, and its statistics."""
    layouts = call.operands(3)
    labels, count = call.labels(), len(layouts[-2].dims())
    whole = labels[len(labels) - count :]
    ins = (labels,) * (len(layouts) - 2) + (whole,)
    form = Form(ins, (labels, labels[: len(labels) - count] + whole.upper()), whole)
    first, statistics = strict(form, layouts[:-1], call.name)
    return first, statistics


def layer_norm(call: Call) -> Layout:
    """extra_args: (normalized_shape,): the last dims, which lie whole."""
    call.operands(1)
    shape, labels = call.argument(0, "normalized_shape"), call.labels()
    if not isinstance(shape, (int, tuple, list)):
        raise call.refuse(f"normalized_shape={shorten(shape)}", "An int, a tuple or a list")
    count = 1 if isinstance(shape, int) else len(shape)
    if count > len(labels):
        raise call.refuse(f"normalized_shape={shape} for {len(labels)} dims", "At most as many dims")
    return call.same(labels[len(labels) - count :])


# ---- order ----


def ordered(call: Call) -> tuple[Layout, Layout]:
    """topk: extra_args (k, dim); sort: (dim, descending, stable). dim lies whole. Values and indices."""
    call.operands(1)
    dim = call.argument(1 if call.kind.startswith("TopK") else 0, "dim")
    labels = call.labels()
    made = call.same(labels[call.dim(-1 if dim is None else dim, len(labels))])
    return made, made


def multinomial(call: Call) -> Layout:
    """Probabilities (c,) or (n, c): c lies whole."""
    call.operands(1)
    if len(call.labels()) not in (1, 2):
        raise call.refuse(f"{len(call.labels())} dims", "1 or 2")
    labels = call.labels()
    return strict(Form((labels,), (labels[:-1] + "S",)), call.layouts[:1], call.name)[0]


def isin(call: Call) -> Layout:
    """Elements, and what is looked for, which lies whole."""
    layouts = call.operands(2)
    if layouts[1] is None:
        raise call.refuse("no layout of test_elements", "Two layouts")
    labels, others = call.labels(), call.labels(1).upper()
    return strict(Form((labels, others), (labels,), others), layouts[:2], call.name)[0]


def one_hot(call: Call) -> Layout | None:
    """extra_args: (num_classes, on, off, axis). The new dim lies whole; of several dims only the first may be split."""
    if not call.all_layouts:
        return None
    layouts = call.operands(1)
    classes, axis = call.argument(0, "num_classes", -1), call.argument(3, "axis", -1)
    labels = call.labels()
    if isinstance(classes, int) and classes < -1:
        raise call.refuse(f"num_classes={classes}", "-1 or more")
    axis = axis if isinstance(axis, int) else -1
    if not labels or not -1 <= axis <= 1 or axis > len(labels) or (len(labels) > 1 and axis != -1):
        raise call.refuse(f"axis={axis} for {len(labels)} dims", "-1, or for one dim 0 or 1")
    others = [layout for layout in layouts[1:] if layout is not None]
    names = tuple(letters(layout).upper() for layout in others)
    at = len(labels) if axis == -1 else axis
    whole = labels[1:] + "".join(names)
    form = Form((labels, *names), (labels[:at] + "Z" + labels[at:],), whole)
    return strict(form, [layouts[0], *others], call.name)[0]


# ---- by index ----


def index_select(call: Call) -> Layout:
    """x, None, index (one dim; gather: as many as x); extra_args (dim,), which lies whole in x."""
    layouts = call.operands(3, 3)
    if len(call.extra or ()) != 1 or layouts[2] is None:
        raise call.refuse(f"extra_args={shorten(call.extra)}", "(dim,), and a layout of the index")
    labels, gathers = call.labels(), call.kind.startswith("Gather")
    at = call.dim(call.extra[0], len(labels))
    indexed = labels[at]
    index = "".join(c.upper() for c in labels) if gathers else "I"
    if len(layouts[2].dims()) != len(index):
        raise call.refuse(f"an index of {len(layouts[2].dims())} dims", f"{len(index)}")
    result = index if gathers else labels[:at] + "I" + labels[at + 1 :]
    form = Form((labels, index), (result,), indexed)
    if gathers:  # a rank holds the rows of x that its part of the index looks into
        index = labels[:at] + "I" + labels[at + 1 :]
        form = Form((labels, index), (index,), indexed)
    return strict(form, [layouts[0], layouts[2]], call.name)[0]


def gather_nd(call: Call) -> Layout:
    """x or None, indices (..., k); shapes last in extra_args. k, and the first k dims of x, lie whole."""
    if len(call.all_layouts) < 2 or call.all_layouts[1] is None or any(x is not None for x in call.all_layouts[2:]):
        raise call.refuse(f"layouts {shorten(call.all_layouts)}", "Those of x (or None) and of indices")
    shapes = call.shapes()
    if len(shapes) < 2 or None in shapes[:2]:
        raise call.refuse(f"extra_args={shorten(call.extra)}", "Shapes of both operands at the end")
    shape, index_shape = (tuple(map(int, s)) for s in shapes[:2])
    count = index_shape[-1] if index_shape else 0
    if not 0 < count <= len(shape):
        raise call.refuse(f"indices of shape {index_shape} into {shape}", f"A last dim of 1 to {len(shape)}")
    x, indices = call.all_layouts[:2]
    dims = LETTERS[: len(shape)]
    index = letters(indices).upper()
    result = index[:-1] + dims[count:] or "Z"
    pairs = [(index, indices)] + ([(dims, x)] if x is not None else [])
    form = Form(tuple(labels for labels, _ in pairs), (result,))
    return strict(form, [layout for _, layout in pairs], call.name)[0]


def scatter(call: Call) -> Layout:
    """input, None, index, src; extra_args (dim, ...), which lies whole; all lie alike."""
    layouts = call.operands(1)
    dim, labels = call.argument(0, "dim") if call.extra else None, call.labels()
    if type(dim) is not int:
        raise call.refuse(f"dim={shorten(dim)}", "An int")
    given = [layouts[0], *(layout for layout in layouts[2:4] if layout is not None)]
    form = Form((labels,) * len(given), (labels,), labels[call.dim(dim, len(labels))])
    return strict(form, given, call.name)[0]


def scatter_update(call: Call) -> Layout:
    """input (a, ...), indices, updates (indices' dims, ...): a and the indices lie whole."""
    layouts = call.operands(3, 3)
    labels, index = call.labels(), call.labels(1).upper()
    if not labels or any(x is None for x in layouts):
        raise call.refuse(f"layouts {shorten(layouts)}", "Three, the first of one dim or more")
    form = Form((labels, index, index + labels[1:]), (labels,), labels[0] + index)
    return strict(form, layouts, call.name)[0]


def masked_scatter(call: Call) -> Layout:
    """input, mask, source: all lie whole, since the source is used up in order."""
    call.operands(1)
    ins = tuple(map(letters, call.layouts))
    whole = "".join(sorted(set("".join(ins))))
    return call.one(Form(ins, ins[:1], whole))


def copies(call: Call) -> Layout:
    """extra_args: (size, ...). The result of new_ones lies whole."""
    (layout,) = call.operands(1)[:1]
    size = call.argument(0, "size") if call.extra else None
    if size is None:
        raise call.refuse("no size in extra_args", "(size, ...)")
    if not isinstance(size, (int, tuple, list)):
        raise LayoutTypeError(f"size={shorten(size)}", where=call.name, allowed="An int, a tuple or a list")
    return Layout.from_device_mesh(layout.mesh)(*["None"] * (1 if isinstance(size, int) else len(size)))


Rule = Callable[[Call], Any]
