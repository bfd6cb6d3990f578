"""The rest of `rules.py`: operators that move dims or pick from them, the table of all, and the class that reads it.

    Reshape = operator_class("ReshapeDistributedOp")
    Reshape("Reshape").infer_layout((x,), ((8, 4), (32,)))        (layout, shape of a slice)

What moves elements without changing them keeps what is pending.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ..base.errors import LayoutError, LayoutTypeError, shorten
from .layout import Layout
from .rules import (
    ANY,
    Call,
    Form,
    Rule,
    argmax,
    copies,
    elementwise,
    embedding,
    gather_nd,
    index_select,
    isin,
    layer_norm,
    letters,
    linear,
    masked_scatter,
    multinomial,
    one_hot,
    ordered,
    product,
    reduction,
    rms_norm,
    scan,
    scatter,
    scatter_update,
    softmax,
    strict,
)


def _moved(call: Call, result: str, labels: str = "", whole: str = "", keep: tuple[str, ...] = ANY) -> Layout:
    """The layout of a result of these labels, of operand 0."""
    form = Form((labels or call.labels(),), (result,), whole, linear=keep)
    return strict(form, [call.all_layouts[0]], call.name)[0]


def transpose(call: Call) -> Layout:
    """Transpose, permute: extra_args (permutation,); transpose: (dim, dim); t: none."""
    call.operands(1)
    labels, extra = call.labels(), call.extra or ()
    if call.kind.startswith("T") and len(call.kind) == 1 or call.name in ("t", "TExt"):
        return _moved(call, labels[::-1])
    if call.name in ("Transpose", "permute") and "Ext" not in call.kind:
        order = extra[0] if extra else None
        if not isinstance(order, (tuple, list)) or sorted(order) != list(range(len(labels))):
            raise call.refuse(f"extra_args={shorten(call.extra)}", f"A permutation of {tuple(range(len(labels)))}")
        return _moved(call, "".join(labels[dim] for dim in order))
    if call.name not in ("transpose", "TransposeExt", "TransposeExtView", "TransposeView") or len(extra) != 2:
        allowed = "Transpose and permute with (permutation,); transpose with (dim0, dim1)"
        raise call.refuse(f"{call.name!r} with extra_args={shorten(call.extra)}", allowed)
    first, second = (call.dim(dim, len(labels)) for dim in extra)
    swapped = list(labels)
    swapped[first], swapped[second] = swapped[second], swapped[first]
    return _moved(call, "".join(swapped))


def reshape(call: Call) -> tuple[Layout, list[int]]:
    """Reshape: extra_args (new shape, shape); reshape, view: (sizes or a shape, ..., shape); -1: what is left.

    Elements stay where they are: a dim that is split, with the whole dims behind it, must become dims, and the
    first of them is split as many times. The layout, and the shape of a slice.
    """
    layout = call.operands(1)[0]
    extra = list(call.extra or ())
    if len(extra) < 2 or (call.name not in ("reshape", "view") and len(extra) != 2):
        raise call.refuse(f"extra_args={shorten(call.extra)}", "The new shape, and the shape before")
    new, old = (extra[0] if len(extra) == 2 else extra[:-1]), extra[-1]
    new = new.tolist() if hasattr(new, "tolist") else [new] if isinstance(new, int) else new
    if not isinstance(new, (tuple, list)) or sum(n < 0 for n in new) > 1 or 0 in new:
        raise call.refuse(f"shape {shorten(new)}", "A tuple or a list, with one -1 at most")
    sizes, shape = _known(call, list(old), list(new))
    dims, splits = layout.dims(), []
    for axes in dims:
        splits.append(math.prod(layout.mesh.get_device_num_along_axis(axis) for axis in axes))
    groups: list[tuple[int, int]] = []  # (dim that is split or -1, elements), of a split dim and whole ones behind it
    for dim, (size, split) in enumerate(zip(sizes, splits, strict=True)):
        if split > 1 or not groups:
            groups.append((dim if split > 1 else -1, size))
        else:
            groups[-1] = groups[-1][0], groups[-1][1] * size
    entries: list[Any] = ["None"] * len(shape)
    at = len(shape)
    refused = call.refuse(f"{tuple(old)} to {tuple(new)} split as {layout.alias_tensor_map}", "Slices that stay")
    for dim, size in reversed(groups):
        product = 1
        while product < size and at:
            at, product = at - 1, product * shape[at - 1]
        if product != size or (dim >= 0 and (at == len(shape) or shape[at] % splits[dim])):
            raise refused
        if dim >= 0:
            entries[at] = dims[dim][0] if len(dims[dim]) == 1 else dims[dim]
    if any(n != 1 for n in shape[:at]):
        raise refused
    made = Layout.from_device_mesh(layout.mesh)(*entries)
    for axis, op in zip(layout.mesh.pivot.names, layout.partial, strict=True):
        if op is not None:
            made.set_partial_by_dev_axis(axis, op)
    cuts = [math.prod(made.mesh.get_device_num_along_axis(axis) for axis in axes) for axes in made.dims()]
    unknown = min(old, default=1) < 0
    local = [-1 if unknown and n < 0 else size // cut for n, size, cut in zip(new, shape, cuts, strict=True)]
    return made, local


def _known(call: Call, old: list[int], new: list[int]) -> tuple[list[int], list[int]]:
    """Both shapes without -1. Where both have one, sizes that any split of the mesh divides."""
    known = [math.prod(n for n in shape if n >= 0) for shape in (old, new)]
    many = call.all_layouts[0].mesh.size()
    open_ones = [min(shape, default=1) < 0 for shape in (old, new)]
    missing = [known[1] * (many if all(open_ones) else 1), known[0] * (many if all(open_ones) else 1)]
    if not all(open_ones):
        if any(m % k for m, k, is_open in zip(missing, known, open_ones, strict=True) if is_open):
            raise call.refuse(f"{old} to {new}", "Shapes of as many elements")
        missing = [m // k if is_open else m for m, k, is_open in zip(missing, known, open_ones, strict=True)]
    full = [[m if n < 0 else n for n in shape] for m, shape in zip(missing, (old, new), strict=True)]
    if math.prod(full[0]) != math.prod(full[1]):
        raise call.refuse(f"{old} to {new}", "Shapes of as many elements")
    return full[0], full[1]


def squeeze(call: Call) -> Layout:
    """extra_args (axis, shapes) or (shapes,), or a dict of them: dims of size 1 that nothing splits, or those named."""
    call.operands(1)
    if not isinstance(call.extra, (dict, list, tuple)) or not call.extra:
        raise call.refuse(f"extra_args={shorten(call.extra)}", "Shapes of the operands at the end")
    shapes = call.argument(-1, "input_shapes")
    axis = call.argument(0, "axis") if isinstance(call.extra, dict) or len(call.extra) > 1 else None
    if not isinstance(shapes, (list, tuple)):
        raise call.refuse(f"input_shapes={shorten(shapes)}", "A list of shapes")
    shape = shapes[0] if shapes and isinstance(shapes[0], (list, tuple)) else shapes
    labels, dims = call.labels(), call.all_layouts[0].dims()
    if len(shape) != len(labels):
        raise call.refuse(f"a shape of {len(shape)} dims for a layout of {len(labels)}", "As many")
    if not shape and axis not in (None, [], ()):
        raise call.refuse(f"axis={axis} of a number", "None")
    if axis is None:
        named = [dim for dim, size in enumerate(shape) if size == 1 and not dims[dim]]
    else:
        named = [call.dim(a, len(labels)) for a in ([axis] if isinstance(axis, int) else axis)]
    if wrong := [dim for dim in named if shape[dim] != 1 or dims[dim]]:
        given = f"dim {wrong[0]} of size {shape[wrong[0]]}, split by {dims[wrong[0]] or 'nothing'}"
        raise call.refuse(given, "A dim of size 1 that nothing splits")
    return _moved(call, "".join(label for dim, label in enumerate(labels) if dim not in named))


def expand_dims(call: Call) -> Layout:
    """extra_args (axis,) or the axis: a new dim, which lies whole."""
    call.operands(1)
    axis = call.argument(0, "axis") if call.extra is not None and call.extra != () and call.extra != [] else None
    if axis is None:
        raise call.refuse("no axis in extra_args", "(axis,)")
    labels = call.labels()
    at = call.dim(axis, len(labels), more=1)
    return _moved(call, labels[:at] + "Z" + labels[at:])


def expand(call: Call) -> Layout:
    """expand: extra_args (size, size, ...): -1 leaves a dim as it is; others, and new dims, lie whole."""
    call.operands(1)
    sizes, labels = list(call.extra or ()), call.labels()
    new = len(sizes) - len(labels)
    if not sizes or new < 0 or any(type(n) is not int for n in sizes) or -1 in sizes[: max(new, 0)]:
        allowed = f"{len(labels)} sizes or more; -1 only for dims that are there"
        raise call.refuse(f"sizes {shorten(call.extra)} for {len(labels)} dims", allowed)
    whole = "".join(label for label, size in zip(labels, sizes[new:], strict=True) if size != -1)
    return _moved(call, "Z" * new + labels, whole=whole)


def expand_as(call: Call) -> Layout:
    """extra_args ((shape, shape of the other),): dims of size 1 that become larger lie whole."""
    call.operands(1)
    shapes = call.argument(0, "input_shapes") or ()
    if len(shapes) < 2 or any(not isinstance(s, (tuple, list)) for s in shapes[:2]):
        raise call.refuse(f"extra_args={shorten(call.extra)}", "Both shapes")
    own, other, labels = tuple(shapes[0]), tuple(shapes[1]), call.labels()
    new = len(other) - len(own)
    if new < 0 or any(n not in (1, m) for n, m in zip(own, other[max(new, 0) :], strict=False)):
        raise call.refuse(f"shape {own} to {other}", "Dims that stay, and dims of size 1")
    whole = "".join(label for label, n, m in zip(labels, own, other[new:], strict=True) if n != m)
    return _moved(call, "Z" * new + labels, whole=whole)


def repeat_interleave(call: Call) -> Layout:
    """extra_args (repeats, dim): dim lies whole; without one the result is flat, and only dim 0 may be split."""
    call.operands(1)
    dim, labels = call.argument(1, "dim"), call.labels()
    if dim is None:
        return _moved(call, labels[:1] or "Z", whole=labels[1:])
    return _moved(call, labels, whole=labels[call.dim(dim, len(labels))])


def unbind(call: Call) -> tuple[Layout, ...]:
    """extra_args (dim, shapes) or (shapes,): a result per position of dim, which lies whole."""
    call.operands(1)
    labels, shape = call.labels(), call.shapes()[0]
    at = call.dim(call.extra[0] if len(call.extra) > 1 else 0, len(labels))
    return (_moved(call, labels[:at] + labels[at + 1 :], whole=labels[at]),) * shape[at]


def split(call: Call) -> tuple[Layout, ...]:
    """extra_args: sizes or a size, the dim (0), shapes; TensorSplit: sections or indices, the dim. It lies whole."""
    call.operands(1)
    extra, labels = list(call.extra or ()), call.labels()
    cuts_at_indices = call.kind.startswith("TensorSplit")
    shapes = None
    if len(extra) > 1 and isinstance(extra[-1], (tuple, list)) and not cuts_at_indices:
        shapes = extra.pop()
    if not 1 <= len(extra) <= 2:
        raise call.refuse(f"extra_args={shorten(call.extra)}", "Sizes, the dim, and shapes of the operands")
    sizes, at = extra[0], call.dim(extra[1] if len(extra) > 1 else 0, len(labels))
    made = _moved(call, labels, whole=labels[at])
    if cuts_at_indices:
        parts = sizes if isinstance(sizes, int) else None
        if parts is None and not hasattr(sizes, "__len__"):
            raise LayoutTypeError(
                f"indices_or_sections={shorten(sizes)}", where=call.name, allowed="An int, or indices"
            )
        return (made,) * (len(sizes) + 1 if parts is None else parts)
    if isinstance(sizes, int):
        if not shapes:
            raise call.refuse(f"a size of {sizes} without the shape", "Shapes of the operands")
        return (made,) * -(-shapes[0][at] // sizes)
    return (made,) * len(sizes)


def concat(call: Call) -> tuple[Layout]:
    """extra_args (dim,), 0: it lies whole in all, or parts would come in another order; else all lie alike."""
    call.operands(1)
    labels = call.labels()
    at = call.dim(call.argument(0, "axis", 0) if call.extra else 0, len(labels))
    form = Form((labels,) * len(call.layouts), (labels,), labels[at])
    return (strict(form, call.layouts, call.name)[0],)


def stack(call: Call) -> tuple[Layout]:
    """extra_args (dim,), 0: a new dim, which lies whole; all lie alike."""
    if not call.layouts:
        raise call.refuse("no layouts", "One or more")
    labels = letters(call.layouts[0])
    at = call.dim(call.argument(0, "dim", 0) if call.extra else 0, len(labels), more=1)
    form = Form((labels,) * len(call.layouts), (labels[:at] + "Z" + labels[at:],))
    return (strict(form, call.layouts, call.name)[0],)


def slice_of(call: Call) -> tuple[Layout, tuple[int, ...], tuple[int, ...]]:
    """extra_args (begin, end, shape): dims that are taken in part lie whole. Layout, begin, end of a slice."""
    call.operands(1, 1)
    begin, end, shape = call.extra
    labels, layout = call.labels(), call.all_layouts[0]
    taken = [size not in (-1, stop - start) for start, stop, size in zip(begin, end, shape, strict=True)]
    made = _moved(call, labels, whole="".join(c for c, part in zip(labels, taken, strict=True) if part))
    cuts = [math.prod(layout.mesh.get_device_num_along_axis(axis) for axis in axes) for axes in layout.dims()]
    first, last = (tuple(n // cut for n, cut in zip(bound, cuts, strict=True)) for bound in (begin, end))
    return made, first, last


def pad(call: Call) -> Layout:
    """extra_args (amounts, ...): two per dim, the last dim first; padded dims lie whole."""
    call.operands(1)
    amounts, labels = call.argument(0, "pad") if call.extra else None, call.labels()
    if not isinstance(amounts, (tuple, list)) or len(amounts) % 2 or len(amounts) > 2 * len(labels):
        raise call.refuse(f"pad={shorten(amounts)}", f"Two amounts per dim, of {len(labels)} dims")
    whole = [labels[-1 - n] for n in range(len(amounts) // 2) if any(amounts[2 * n : 2 * n + 2])]
    return _moved(call, labels, whole="".join(whole), keep=())


def as_first(call: Call) -> tuple[Any, ...] | None:
    """An operator that has no rule of its own: its result lies as its first operand."""
    return (call.same(),) if call.layouts else None


# module parallel_NAME: its family. A class is read by its module, and by its own name where that has several
FAMILIES: dict[str, Rule] = {
    "ops": as_first,
    "elementwise": elementwise,
    "tuple_elementwise": elementwise,
    "activation_with_axis": softmax,
    "cumsum": scan,
    "reduce": reduction,
    "argmax_with_value_ops": argmax,
    "matmul": product,
    "norm": rms_norm,
    "embedding": embedding,
    "one_hot_ext": one_hot,
    "topk": ordered,
    "sort": ordered,
    "argsort": ordered,
    "multinomial": multinomial,
    "isin": isin,
    "gather": index_select,
    "scatter": scatter,
    "scatter_update": scatter_update,
    "masked_scatter": masked_scatter,
    "new_ones": copies,
    "transpose": transpose,
    "reshape": reshape,
    "squeeze": squeeze,
    "expand_dims": expand_dims,
    "expand": expand,
    "repeat_interleave": repeat_interleave,
    "unbind": unbind,
    "split": split,
    "concat": concat,
    "stack": stack,
    "slice": slice_of,
    "pad": pad,
}
KINDS: dict[str, Rule] = {"Linear": linear, "LayerNorm": layer_norm, "GatherNd": gather_nd, "ExpandAs": expand_as}


class DistributedOp:
    """How an operator's results lie.  op_name: the operator's, as a framework calls it"""

    kind, family = "", staticmethod(as_first)

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
        return type(self).family(Call(self.op_name, self.kind, layouts, extra_args))

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
