"""HyperParallel's families of operators: what each is given, and the labels that follow (`rules.py`)."""

from __future__ import annotations

import math
from typing import Any

from .layout import Layout
from .rules import ANY, LETTERS, Call, Form, cuts, family, letters, strict


@family("ops")
def as_first(call: Call) -> tuple[Any, ...] | None:
    """An operator that has no rule of its own: its result lies as its first operand."""
    return (call.lies("...->..."),) if call.given else None


# ---- labels alone: their number of operands, if it is fixed; the reduction of what the results lack ----

LABELS = {
    "embedding": ("...,VE->...E", 0, "sum"),  # ranks give zeros for others' rows: a sum
    "scaled_dot_product_attention": ("...SD,...TD,...TE->...SE", 0, ""),
    "isin": ("...,*->...", 0, ""),
    "Linear": ("...K,NK,N?->...N", 3, "sum"),
}


def _labelled(pattern: str, count: int, reduce: str) -> Any:
    def rule(call: Call) -> Any:
        call.need(not count or len(call.layouts) == count, f"{count} layouts")
        return call.lies(pattern, reduce=reduce)

    rule.__doc__ = f"Layouts of {pattern}"
    return rule


for _name, _what in LABELS.items():
    family(*([_name] if _name.islower() else []), kinds="" if _name.islower() else _name)(_labelled(*_what))

# ---- one dim lies whole: its place in extra_args, what it is without one, the labels ----

ONE_DIM = {
    "cumsum": (0, None, "...->..."),
    "topk": (1, -1, "...->...,..."),
    "sort": (0, -1, "...->...,..."),
    "argsort": (0, -1, "...->...,..."),
}


def _one_dim(place: int, default: int | None, pattern: str) -> Any:
    def rule(call: Call) -> Any:
        dim = call.argument(place, "dim")
        return call.lies(pattern, call.labels[call.dim(default if dim is None else dim)])

    rule.__doc__ = f"extra_args with a dim at {place}, which lies whole"
    return rule


for _name, _args in ONE_DIM.items():
    family(_name)(_one_dim(*_args))


# ---- element by element ----


@family("elementwise", "tuple_elementwise")
def elementwise(call: Call) -> Layout | None:
    """Shapes are broadcast: dims of size 1 lie whole. Without shapes all layouts must be equal."""
    if not call.given:
        return None
    sums = call.kind in ("Add", "Sub")
    linear = ("sum",) if sums else ANY if "WithPartial" in call.kind else ()
    shapes = call.shapes()
    if len(call.given) == 1 or not shapes:
        forms = tuple(map(letters, call.given))
        call.need(len(set(forms)) == 1, "Operands of as many dims, or their shapes")
        return strict(Form(forms, forms[:1], linear=linear), call.given, call.name)[0]
    pairs = [(x, tuple(s or ())) for x, s in zip(call.layouts, shapes, strict=False) if x is not None]
    most = max(len(shape) for _, shape in pairs)
    padded = [(1,) * (most - len(shape)) + shape for _, shape in pairs]
    sizes = tuple(max(column, default=1) if 0 not in column else 0 for column in zip(*padded, strict=True))
    ins, whole = [], ""
    for (layout, shape), full in zip(pairs, padded, strict=True):
        call.need(all(size in (1, out) for size, out in zip(full, sizes, strict=True)), "Sizes that are equal, or 1")
        if layout.is_partial() and full != sizes:
            raise call.refuse(f"an operand of shape {shape} has Partial status and broadcasts", "Whole values")
        alone = [size == 1 != out for size, out in zip(full, sizes, strict=True)]
        names = [LETTERS[dim].upper() if alone[dim] else LETTERS[dim] for dim in range(most - len(shape), most)]
        ins.append("".join(names))
        whole += "".join(filter(str.isupper, names))
    result = LETTERS[:most]
    return strict(Form(tuple(ins), (result,), whole, result, linear=linear), [x for x, _ in pairs], call.name)[0]


@family("activation_with_axis")
def softmax(call: Call) -> Layout | None:
    """extra_args: (axis or axes,), which lie whole; further operands are split as the first is."""
    if not call.given:
        return None
    axes = call.argument(0, "axis")
    whole = "".join(call.labels[call.dim(a)] for a in (axes if isinstance(axes, tuple) else (axes,)))
    return strict(Form((call.labels,) * len(call.given), (call.labels,), whole), call.given, call.name)[0]


# ---- reductions ----

REDUCTIONS = {"mean": "avg", "sum": "sum", "max": "max", "min": "min", "prod": "prod", "all": "all"}


@family("reduce")
def reduction(call: Call) -> Any:
    """extra_args: (dim, keepdim), dim None for all, a number, several. max, min: two results where dim is given."""
    kind = call.kind.lower().removeprefix("reduce").removesuffix("ext")
    reduce, labels = REDUCTIONS[kind], call.labels
    pair = kind in ("max", "min") and not call.kind.startswith("Reduce")
    if pair and len(call.given) == 2 and not call.extra:
        return strict(Form((labels, labels), (labels,), linear=(reduce,)), call.given, call.name)[0]
    given, keep = call.argument(0, "dim"), bool(call.argument(1, "keepdim", False))
    each = range(len(labels)) if given is None else given if isinstance(given, (tuple, list)) else [given]
    dims = [call.dim(d) for d in each]
    rest = "".join((c.upper() if keep else "") if i in dims else c for i, c in enumerate(labels))
    linear = ("sum", "avg") if reduce in ("sum", "avg") else (reduce,)
    return call.lies(f"...->{rest}{f',{rest}' if pair and given is not None else ''}", reduce=reduce, linear=linear)


@family("argmax_with_value_ops")
def argmax(call: Call) -> tuple[Layout, Layout]:
    """extra_args: (axis, keep_dims); three operands, the first with a layout. Index and value."""
    axis, keep = call.extra
    call.need(len(call.layouts) == 3, "Three operands")
    labels, at = call.labels, call.dim(axis)
    rest = labels[:at] + (labels[at].upper() if keep else "") + labels[at + 1 :]
    return call.lies(f"...->{rest},{rest}")


# ---- products ----


@family("matmul")
def product(call: Call) -> Layout:
    """MatMul, BatchMatMul: extra_args (transpose_a, transpose_b); their Ext forms: none. Batch dims are broadcast."""
    turned, (a, b) = (False, False), (letters(layout) for layout in call.layouts[:2])
    if "Ext" not in call.kind:
        turned = call.extra
        call.need(len(turned) == 2, "(transpose_a, transpose_b)")
    call.need(min(len(a), len(b)) >= 2, "Two dims or more")
    call.need(len(call.layouts) == 2 or call.kind != "MatMulExt", "Two layouts")
    batch = LETTERS[: max(len(a), len(b)) - 2]
    a = batch[len(batch) + 2 - len(a) :] + ("KM" if turned[0] else "MK")
    b = batch[len(batch) + 2 - len(b) :] + ("NK" if turned[1] else "KN")
    return call.lies(f"{a},{b}->{batch}MN", loose=batch, reduce="sum")


@family("flash_attention_score", "npu_flash_attention_score")
def flash_attention(call: Call) -> Any:
    """extra_args with a layout's name, such as "BSH"; query, key, value. FlashAttentionScore: statistics, attention.

    Keys and values lie whole along the sequence, and heads along their dim: a rank has all that its rows look at.
    """
    forms = {"BSH": "BSN", "SBH": "SBN", "BNSD": "BNSD", "BSND": "BSND", "TND": "SND"}
    (name,) = (x for x in call.extra if isinstance(x, str) and x in forms)
    query = forms[name]
    keys, values = query.replace("S", "T"), query.replace("S", "T").replace("D", "E")
    statistics, result = ("SNX" if name == "TND" else "BNSX"), query.replace("D", "E")
    outs = (
        f"{statistics},{statistics},Y,{result}" if "Npu" not in call.kind else f"{result},{statistics},{statistics},Y"
    )
    return call.lies(f"{query},{keys},{values}->{outs}")


# ---- norms ----


@family("norm")
def rms_norm(call: Call) -> tuple[Layout, Layout]:
    """x, ..., gamma, and one more: gamma's dims, x's last, lie whole. Results: as x, and its statistics."""
    call.need(len(call.layouts) >= 3, "x, gamma, and one more")
    labels, at = call.labels, len(call.labels) - len(letters(call.layouts[-2]))
    ins = ",".join([labels] * (len(call.layouts) - 2) + [labels[at:]])
    return call.lies(f"{ins}->{labels},{labels[:at]}{labels[at:].upper()}", labels[at:])


@family(kinds="LayerNorm")
def layer_norm(call: Call) -> Layout:
    """extra_args: (normalized_shape,): the last dims, which lie whole."""
    shape = call.argument(0, "normalized_shape")
    call.need(isinstance(shape, (int, tuple, list)), "(an int, a tuple or a list,)")
    count = 1 if isinstance(shape, int) else len(shape)
    call.need(count <= len(call.labels), "At most as many dims")
    return call.lies("...->...", call.labels[len(call.labels) - count :])


@family("multinomial")
def multinomial(call: Call) -> Layout:
    """Probabilities (c,) or (n, c): c lies whole."""
    call.need(len(call.labels) in (1, 2), "1 or 2 dims")
    return call.lies("...C->...S")


@family("one_hot_ext")
def one_hot(call: Call) -> Layout | None:
    """extra_args: (num_classes, on, off, axis). The new dim lies whole; of several dims only the first may be split."""
    if not call.layouts:
        return None
    classes, axis, labels = call.argument(0, "num_classes", -1), call.argument(3, "axis", -1), call.labels
    axis = axis if isinstance(axis, int) else -1
    call.need(not isinstance(classes, int) or classes >= -1, "num_classes of -1 or more")
    call.need(
        labels and -1 <= axis <= min(1, len(labels)) and (len(labels) == 1 or axis == -1), "axis -1; 0, 1: one dim"
    )
    others = [layout for layout in call.layouts[1:] if layout is not None]
    names = tuple(letters(layout).upper() for layout in others)
    at = len(labels) if axis == -1 else axis
    form = Form((labels, *names), (labels[:at] + "Z" + labels[at:],), labels[1:] + "".join(names))
    return strict(form, [call.layouts[0], *others], call.name)[0]


# ---- by index ----


@family("gather")
def index_select(call: Call) -> Layout:
    """x, None, index (one dim; gather: as many as x); extra_args (dim,), which lies whole in x."""
    x, _, index = call.layouts
    (dim,) = call.extra
    at = call.dim(dim)
    # gather: a rank holds the rows of x that its part of the index looks into
    selected = call.labels[:at] + "I" + call.labels[at + 1 :]
    form = Form((call.labels, selected if call.kind.startswith("Gather") else "I"), (selected,), call.labels[at])
    return strict(form, [x, index], call.name)[0]


@family(kinds="GatherNd")
def gather_nd(call: Call) -> Layout:
    """x or None, indices (..., k); shapes last in extra_args. k, and the first k dims of x, lie whole."""
    (x, indices), (shape, index_shape) = call.layouts[:2], call.shapes()[:2]
    count = index_shape[-1]
    call.need(0 < count <= len(shape) and not any(call.layouts[2:]), f"A last dim of 1 to {len(shape)}")
    dims, index = LETTERS[: len(shape)], letters(indices).upper()
    pairs = [(index, indices)] + ([(dims, x)] if x is not None else [])
    form = Form(tuple(labels for labels, _ in pairs), (index[:-1] + dims[count:] or "Z",))
    return strict(form, [layout for _, layout in pairs], call.name)[0]


@family("scatter")
def scatter(call: Call) -> Layout:
    """input, None, index, src; extra_args (dim, ...), which lies whole; all lie alike."""
    labels, whole = call.labels, call.labels[call.dim(call.argument(0, "dim"))]
    given = [call.layouts[0], *(layout for layout in call.layouts[2:4] if layout is not None)]
    return strict(Form((labels,) * len(given), (labels,), whole), given, call.name)[0]


@family("scatter_update")
def scatter_update(call: Call) -> Layout:
    """input (a, ...), indices, updates (indices' dims, ...): a and the indices lie whole."""
    call.need(len(call.layouts) == 3, "Three layouts")
    labels, index = call.labels, letters(call.layouts[1]).upper()
    return call.lies(f"...,{index},{index}{labels[1:]}->...", labels[0] + index)


@family("masked_scatter")
def masked_scatter(call: Call) -> Layout:
    """input, mask, source: all lie whole, since the source is used up in order."""
    call.need(call.labels is not None, "Layouts")
    ins = tuple(map(letters, call.given))
    return strict(Form(ins, ins[:1], "".join(sorted(set("".join(ins))))), call.given, call.name)[0]


@family("new_ones")
def copies(call: Call) -> Layout:
    """extra_args: (size, ...). The result of new_ones lies whole."""
    size = call.argument(0, "size") if call.extra else None
    call.need(isinstance(size, (int, tuple, list)), "(an int, a tuple or a list, ...)")
    dims = 1 if isinstance(size, int) else len(size)
    return Layout.from_device_mesh(call.layouts[0].mesh)(*["None"] * dims)


# ---- what moves elements without changing them, and keeps what is pending ----


@family("transpose")
def transpose(call: Call) -> Layout:
    """Transpose, permute: extra_args (permutation,); transpose: (dim, dim); t: none."""
    labels, extra = call.labels, call.extra or ()
    if call.kind == "T" or call.name in ("t", "TExt"):
        return call.moved(labels[::-1])
    if call.name in ("Transpose", "permute") and "Ext" not in call.kind:
        call.need(sorted(extra[0]) == list(range(len(labels))), f"A permutation of {tuple(range(len(labels)))}")
        return call.moved("".join(labels[dim] for dim in extra[0]))
    names = ("transpose", "TransposeExt", "TransposeExtView", "TransposeView")
    call.need(call.name in names and len(extra) == 2, "Transpose, permute: (permutation,); transpose: (dim0, dim1)")
    swap = dict(zip(map(call.dim, extra), map(call.dim, reversed(extra)), strict=True))
    return call.moved("".join(labels[swap.get(dim, dim)] for dim in range(len(labels))))


@family("reshape")
def reshape(call: Call) -> tuple[Layout, list[int]]:
    """Reshape: extra_args (new shape, shape); reshape, view: (sizes or a shape, ..., shape); -1: what is left.

    Elements stay where they are: a dim that is split, with the whole dims behind it, must become dims, and the
    first of them is split as many times. The layout, and the shape of a slice.
    """
    (layout, *_), extra = call.layouts, list(call.extra or ())
    call.need(
        len(extra) == 2 or (len(extra) > 2 and call.name in ("reshape", "view")), "The new shape, the shape before"
    )
    new, old = (extra[0] if len(extra) == 2 else extra[:-1]), extra[-1]
    new = new.tolist() if hasattr(new, "tolist") else [new] if isinstance(new, int) else new
    call.need(sum(n < 0 for n in new) <= 1 and 0 not in new, "A new shape with one -1 at most")
    sizes, shape = _known(call, list(old), list(new))
    splits = cuts(layout)
    groups: list[tuple[int, int]] = []  # (dim that is split or -1, elements), of a split dim and whole ones behind it
    for dim, (size, split) in enumerate(zip(sizes, splits, strict=True)):
        if split > 1 or not groups:
            groups.append((dim if split > 1 else -1, size))
        else:
            groups[-1] = groups[-1][0], groups[-1][1] * size
    result, at = ["Z"] * len(shape), len(shape)
    stays = f"A shape whose slices are the ranks' in order: {tuple(old)} is split as {layout.alias_tensor_map}"
    for dim, size in reversed(groups):
        product = 1
        while product < size and at:
            at, product = at - 1, product * shape[at - 1]
        call.need(product == size and (dim < 0 or (at < len(shape) and shape[at] % splits[dim] == 0)), stays)
        if dim >= 0:
            result[at] = LETTERS[dim]
    call.need(all(n == 1 for n in shape[:at]), stays)
    # dims that nothing splits have labels of their own
    made = call.moved(
        "".join(result), "".join(c if n > 1 else c.upper() for c, n in zip(call.labels, splits, strict=True))
    )
    unknown = min(old, default=1) < 0
    return made, [-1 if unknown and n < 0 else size // cut for n, size, cut in zip(new, shape, cuts(made), strict=True)]


def _known(call: Call, old: list[int], new: list[int]) -> tuple[list[int], list[int]]:
    """Both shapes without -1. Where both have one, sizes that any split of the mesh divides."""
    known = [math.prod(n for n in shape if n >= 0) for shape in (old, new)]
    is_open = [min(shape, default=1) < 0 for shape in (old, new)]
    if all(is_open):
        many = call.layouts[0].mesh.size()
        missing = [known[1] * many, known[0] * many]
    else:
        missing = [known[1] // max(known[0], 1), known[0] // max(known[1], 1)]
    full = [[m if n < 0 else n for n in shape] for m, shape in zip(missing, (old, new), strict=True)]
    call.need(math.prod(full[0]) == math.prod(full[1]), "Shapes of as many elements")
    return full[0], full[1]


@family("squeeze")
def squeeze(call: Call) -> Layout:
    """extra_args (axis, shapes) or (shapes,), or a dict of them: dims of size 1 that nothing splits, or those named."""
    shapes, labels, dims = call.argument(-1, "input_shapes"), call.labels, call.layouts[0].dims()
    axis = call.argument(0, "axis") if isinstance(call.extra, dict) or len(call.extra) > 1 else None
    call.need(isinstance(shapes, (list, tuple)), "Shapes of the operands at the end")
    shape = shapes[0] if shapes and isinstance(shapes[0], (list, tuple)) else shapes
    call.need(len(shape) == len(labels) and (shape or axis in (None, [], ())), "A shape with the dims of the layout")
    if axis is None:
        named = [dim for dim, size in enumerate(shape) if size == 1 and not dims[dim]]
    else:
        named = [call.dim(a) for a in ([axis] if isinstance(axis, int) else axis)]
    call.need(all(shape[dim] == 1 and not dims[dim] for dim in named), "Dims of size 1 that nothing splits")
    return call.moved("".join(label for dim, label in enumerate(labels) if dim not in named))


@family("expand_dims")
def expand_dims(call: Call) -> Layout:
    """extra_args (axis,) or the axis: a new dim, which lies whole."""
    at = call.dim(call.argument(0, "axis"), more=1)
    return call.moved(call.labels[:at] + "Z" + call.labels[at:])


@family("expand")
def expand(call: Call) -> Layout:
    """expand: extra_args (size, size, ...): -1 leaves a dim as it is; others, and new dims, lie whole."""
    sizes, labels = list(call.extra), call.labels
    new = len(sizes) - len(labels)
    fits = sizes and new >= 0 and all(type(n) is int for n in sizes) and -1 not in sizes[: max(new, 0)]
    call.need(fits, f"{len(labels)} sizes or more; -1 only for dims that are there")
    whole = "".join(label for label, size in zip(labels, sizes[new:], strict=True) if size != -1)
    return call.moved("Z" * new + labels, whole=whole)


@family(kinds="ExpandAs")
def expand_as(call: Call) -> Layout:
    """extra_args ((shape, shape of the other),): dims of size 1 that become larger lie whole."""
    own, other = map(tuple, call.argument(0, "input_shapes")[:2])
    new, labels = len(other) - len(own), call.labels
    fits = new >= 0 and all(n in (1, m) for n, m in zip(own, other[max(new, 0) :], strict=False))
    call.need(fits, "Dims that stay, and dims of size 1")
    whole = "".join(label for label, n, m in zip(labels, own, other[new:], strict=True) if n != m)
    return call.moved("Z" * new + labels, whole=whole)


@family("repeat_interleave")
def repeat_interleave(call: Call) -> Layout:
    """extra_args (repeats, dim): dim lies whole; without one the result is flat, and only dim 0 may be split."""
    dim, labels = call.argument(1, "dim"), call.labels
    if dim is None:
        return call.moved(labels[:1] or "Z", whole=labels[1:])
    return call.moved(labels, whole=labels[call.dim(dim)])


@family("unbind")
def unbind(call: Call) -> tuple[Layout, ...]:
    """extra_args (dim, shapes) or (shapes,): a result per position of dim, which lies whole."""
    labels, shape = call.labels, call.shapes()[0]
    at = call.dim(call.extra[0] if len(call.extra) > 1 else 0)
    return (call.moved(labels[:at] + labels[at + 1 :], whole=labels[at]),) * shape[at]


@family("split")
def split(call: Call) -> tuple[Layout, ...]:
    """extra_args: sizes or a size, the dim (0), shapes; TensorSplit: sections or indices, the dim. It lies whole."""
    extra, at_indices, shapes = list(call.extra or ()), call.kind.startswith("TensorSplit"), None
    if len(extra) > 1 and isinstance(extra[-1], (tuple, list)) and not at_indices:
        shapes = extra.pop()
    call.need(1 <= len(extra) <= 2, "Sizes, the dim, and shapes of the operands")
    sizes, at = extra[0], call.dim(extra[1] if len(extra) > 1 else 0)
    if not isinstance(sizes, int):
        count = len(sizes) + at_indices
    elif at_indices:
        count = sizes
    else:
        call.need(shapes, "Shapes of the operands, for one size")
        count = -(-shapes[0][at] // sizes)
    return (call.moved(call.labels, whole=call.labels[at]),) * count


@family("concat")
def concat(call: Call) -> tuple[Layout]:
    """extra_args (dim,), 0: it lies whole in all, or parts would come in another order; else all lie alike."""
    labels, at = call.labels, call.dim(call.argument(0, "axis", 0) if call.extra else 0)
    return (strict(Form((labels,) * len(call.given), (labels,), labels[at]), call.given, call.name)[0],)


@family("stack")
def stack(call: Call) -> tuple[Layout]:
    """extra_args (dim,), 0: a new dim, which lies whole; all lie alike."""
    call = Call(call.name, call.kind, call.given, call.extra)
    labels, at = call.labels, call.dim(call.argument(0, "dim", 0) if call.extra else 0, more=1)
    form = Form((labels,) * len(call.given), (labels[:at] + "Z" + labels[at:],))
    return (strict(form, call.given, call.name)[0],)


@family("slice")
def slice_of(call: Call) -> tuple[Layout, tuple[int, ...], tuple[int, ...]]:
    """extra_args (begin, end, shape): dims that are taken in part lie whole. Layout, begin, end of a slice."""
    (layout,), (begin, end, shape) = call.layouts, call.extra
    taken = [size not in (-1, stop - start) for start, stop, size in zip(begin, end, shape, strict=True)]
    whole = "".join(c for c, part in zip(call.labels, taken, strict=True) if part)
    first, last = (tuple(n // cut for n, cut in zip(bound, cuts(layout), strict=True)) for bound in (begin, end))
    return call.moved(call.labels, whole=whole), first, last


@family("pad")
def pad(call: Call) -> Layout:
    """extra_args (amounts, ...): two per dim, the last dim first; padded dims lie whole."""
    amounts, labels = call.argument(0, "pad"), call.labels
    call.need(len(amounts) % 2 == 0 and len(amounts) <= 2 * len(labels), "Two amounts per dim")
    return call.lies(
        "...->...", "".join(labels[-1 - n] for n in range(len(amounts) // 2) if any(amounts[2 * n : 2 * n + 2]))
    )
