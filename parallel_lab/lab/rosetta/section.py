"""The layout of a tensor in five notations, as a section for any lab: a table whose cells can be copied and typed into.

    sections["forms"] = notation_table("Notations", {"has": have, "needs": want}, (16, 32))

With `command`, a cell is a field: what is typed into it is sent as command(notation, text).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...layout.mesh_layout import MeshLayout
from ...layout.notations import Form, written
from ...layout.tensor_layout import TensorLayout
from ..shared.sections import Section, table

Shape = tuple[int, ...]
# what a view shows, and how each is read
VIEWS = {
    "mindspore.strategy": (
        "MindSpore strategy",
        "slices per dim; the dims in order are the device matrix, copies innermost",
    ),
    "mindspore.Layout": ("MindSpore Layout", "per dim the axes that split it, the first one outer"),
    "torch": ("PyTorch placements", "per axis of the mesh what it does, the left one outer"),
    "jax.PartitionSpec": ("JAX PartitionSpec", "per dim the axes that split it, the first one outer"),
    "scaling_book": ("scaling book", "below each dim the axes that split it: X, Y, Z in the order of the mesh"),
}
NAMES = VIEWS | {
    "mindspore.tensor_map": ("MindSpore tensor map", "axes counted from the right"),
    "hyper_parallel.alias": ("HyperParallel aliases", "as MindSpore's, and what is pending"),
    "hyper_parallel.placements": ("HyperParallel placements", "as PyTorch's, one axis per dim"),
    "sdy": ("Shardy", "what JAX hands its compiler"),
    "gspmd": ("GSPMD", "tiles per dim, and devices in their order"),
    "alpa": ("Alpa", "per dim R, or S and its axes"),
    "spmd_types": ("spmd_types", "per axis of the mesh R, S, P or V"),
}
MORE = tuple(name for name in NAMES if name not in VIEWS)


def text_of(notation: str, form: Form) -> str | None:
    """What a view shows of it: PyTorch's placements without the mesh, which views show anyway."""
    return form.text.partition("; ")[2] if notation == "torch" and form.text else form.text


def notation_table(
    title: str,
    layouts: Mapping[str, MeshLayout],
    shape: Shape,
    names: Iterable[str] = VIEWS,
    *,
    command: str = "",
    **more: Any,
) -> Section:
    """A table of notations, and how a tensor of `shape` is written in each.

    layouts  {head of a column: layout}
    names    of `notations`
    command  of the lab, which takes the name of a notation and a text; "": cells are only copied
    more     further fields of the section
    """
    forms = {head: written(layout, shape) for head, layout in layouts.items()}

    def cell(name: str, head: str) -> list[Any]:
        form = forms[head][name]
        return [name, text_of(name, form), form.reason or NAMES[name][1]]

    rows = [[NAMES[name][0], *(cell(name, head) for head in layouts)] for name in names]
    more |= {"command": command} if command else {}
    return table(title, {"": "name"} | dict.fromkeys(layouts, "form"), rows, **more)


def types_text(pairs: Iterable[Sequence[str]]) -> str:
    """ "S0 P, gradient S0 R"; "" along no axis."""
    rows = list(pairs)
    value, gradient = (" ".join(filter(None, (row[n] for row in rows))) for n in range(2))
    return f"{value}, gradient {gradient}" if gradient else value


def type_note(rows: Sequence[Sequence[str]]) -> str:
    """ "Type along dp, tp: S0 P, gradient S0 R."  rows: (axis, the value's type, its gradient's or "")"""
    return f"Type along {', '.join(name for name, *_ in rows)}: {types_text(pair for _, *pair in rows)}."


def mesh_layout_of(layout: TensorLayout, names: Iterable[str]) -> MeshLayout:
    """The layout with names for its axes, from the left: those, as far as they are different, then axis1, axis2, ..."""
    wanted = dict.fromkeys(name.replace(" ", "") for name in names)
    axes = [*wanted, *(f"axis{n}" for n in range(len(layout.device_matrix)))][: len(layout.device_matrix)]
    return MeshLayout.of(layout, axes)
