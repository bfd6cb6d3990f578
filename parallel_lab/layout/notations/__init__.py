"""One layout in every notation: how MindSpore, PyTorch, JAX, HyperParallel and others write where a tensor lies.

    mesh = DeviceMesh((2, 4), ("dp", "tp"))
    x = notations["jax.PartitionSpec"].parse("P('dp', None)", mesh)
    notations["torch"].print(x, (16, 32))       "mesh (2, 4) ('dp', 'tp'); [Shard(0), Replicate()]"
    notations["mindspore.strategy"].print(x, (16, 32))                                  "((2, 1),)"

Each notation is read into a MeshLayout and written from it. Where a layout has no form in a notation (a pending sum in
a strategy, uneven slices in JAX, ...), `print` raises LayoutError with the reason; `written` gives all forms and all
reasons at once. What a text leaves open is given along: the mesh, the shape, how an unreduced value is to be reduced.

    >>> mesh = DeviceMesh((2, 4), ("dp", "tp"))
    >>> notations["scaling_book"].print(notations["alpa"].parse("S01R", mesh), (16, 32))
    'A[I_{XY}, J]'
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ...base.checks import INT_LIMIT, Errors, integer, sequence_of
from ...base.errors import LayoutError, LayoutTypeError, shorten
from ..mesh_layout import REDUCE_OPS, DeviceMesh, MeshLayout
from . import by_axis, by_dim, by_number
from .reader import Around, Reader

Shape = tuple[int, ...]
Read = Callable[[Reader, Around], MeshLayout]
Write = Callable[[MeshLayout, Shape], str]
_SHAPE = sequence_of(integer(0, INT_LIMIT), "A tuple of sizes", empty=True)
_ERRORS = Errors(LayoutTypeError, LayoutError)


class Notation(NamedTuple):
    """A notation.

    parse   (text, mesh=None, shape=None, reduce_op="sum") -> MeshLayout. mesh: what names and numbers of the text speak
            of, unless that is a part of it; shape: of the tensor, whose dims the text must then have; reduce_op: how a
            value that is said to be unreduced is to be reduced. LayoutError shows the place where a text ends to fit
    print   (layout, shape) -> text, or LayoutError with the reason why it has no form
    """

    parse: Callable[..., MeshLayout]
    print: Callable[[MeshLayout, Shape], str]


def _parse(
    name: str, read: Read, text: str, mesh: DeviceMesh | None = None, shape: Shape | None = None, reduce_op: str = "sum"
) -> MeshLayout:
    if reduce_op not in REDUCE_OPS:
        raise LayoutError(f"reduce_op={shorten(reduce_op)}", where=name, allowed=f"One of {REDUCE_OPS}")
    if not isinstance(mesh, DeviceMesh | None):
        raise LayoutTypeError(f"mesh={shorten(mesh)}", where=name, allowed="A DeviceMesh, or None")
    reader = Reader(name, text)
    around = Around(mesh, None if shape is None else _SHAPE(name, "shape", shape, _ERRORS), reduce_op)
    try:
        layout = read(reader, around)
        reader.end()
    except LayoutError as refused:
        if str(refused).startswith(name):
            raise
        raise LayoutError(f"{text}: {refused}", where=name) from None  # it fits the notation, and not the mesh
    return layout


def _print(name: str, write: Write, layout: MeshLayout, shape: Shape) -> str:
    if not isinstance(layout, MeshLayout):
        raise LayoutTypeError(f"layout={shorten(layout)}", where=name, allowed="A MeshLayout")
    return write(layout, _SHAPE(name, "shape", shape, _ERRORS))


def _notation(name: str, read: Read, write: Write) -> Notation:
    return Notation(partial(_parse, name, read), partial(_print, name, write))


notations: dict[str, Notation] = {
    name: _notation(name, read, write)
    for name, (read, write) in {
        "mindspore.strategy": (by_number.read_strategy, by_number.write_strategy),
        "mindspore.Layout": (by_dim.read_layout, by_dim.write_layout),
        "mindspore.tensor_map": (by_number.read_tensor_map, by_number.write_tensor_map),
        "torch": (by_axis.read_torch, by_axis.write_torch),
        "hyper_parallel.alias": (by_dim.read_alias, by_dim.write_alias),
        "hyper_parallel.placements": (by_axis.read_placements, by_axis.write_placements),
        "jax.PartitionSpec": (by_dim.read_spec, by_dim.write_spec),
        "scaling_book": (by_dim.read_book, by_dim.write_book),
        "sdy": (by_dim.read_sdy, by_dim.write_sdy),
        "gspmd": (by_number.read_gspmd, by_number.write_gspmd),
        "alpa": (by_number.read_alpa, by_number.write_alpa),
        "spmd_types": (by_axis.read_spmd, by_axis.write_spmd),
    }.items()
}


class Form(NamedTuple):
    """A layout in a notation: its text, or None and the reason."""

    text: str | None
    reason: str = ""


def written(layout: MeshLayout, shape: Shape) -> dict[str, Form]:
    """The layout of a tensor of `shape` in every notation that has a form for it, and the reasons of the others.

    >>> layout = MeshLayout.coded(DeviceMesh((2, 4), ("dp", "tp")), "S0 P")
    >>> written(layout, (16, 32))["jax.PartitionSpec"].text
    "PartitionSpec('dp', None, unreduced={'tp'})"
    >>> written(layout, (16, 32))["mindspore.Layout"].text is None
    True
    """
    forms = {}
    for name, notation in notations.items():
        try:
            forms[name] = Form(notation.print(layout, shape))
        except LayoutError as error:
            forms[name] = Form(None, str(error))
    return forms
