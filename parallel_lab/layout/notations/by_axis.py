"""Notations that say what each axis of the mesh does: placements of PyTorch and HyperParallel, spmd_types.

    PyTorch          mesh (2, 4) ('dp', 'tp'); [_StridedShard(0, split_factor=4), Shard(0)]
    HyperParallel    Layout((2, 4), ("dp", "tp"))(Shard(0), Replicate())
    spmd_types       {dp: S(0), tp: P}          or, where several axes split a dim:
                     {dp: V, tp: V}; PartitionSpec(('dp', 'tp'), None)

Where two axes split one dim, the left one is outer; PyTorch has _StridedShard for the other order, HyperParallel's
placements refuse both, spmd_types asks for a PartitionSpec. Rules: PyTorch 2.14; HyperParallel fdd0a80; spmd_types
6dbe9e2.
"""

from __future__ import annotations

from typing import Any

from ...base.errors import LayoutError
from ..mesh_layout import REDUCE_OPS, AxisPlacement, DeviceMesh, MeshLayout, Partial, Replicate, Shard, StridedShard
from .by_dim import FROM_HYPER, hyper_reduction, layout_head, read_layout_head, spec, spec_parts
from .reader import Around, Reader, Term, even_dims, only_sums, plain

Shape = tuple[int, ...]
_PLACEMENTS = "Shard(dim), Replicate(), Partial(reduce_op)"


# ---- PyTorch ----


def write_torch(layout: MeshLayout, shape: Shape) -> str:
    """`mesh (2, 4) ('dp', 'tp'); [Shard(0), Replicate()]`: has a form of every layout."""
    mesh = layout.mesh
    names = ", ".join(f"'{plain(name)}'" for name in mesh.names) + "," * (mesh.ndim == 1)
    ranks = "" if mesh.in_order else f" of ranks {list(mesh.ranks)}"
    return f"mesh {mesh.shape} ({names}){ranks}; {layout.on(len(shape))}"


def read_torch(reader: Reader, around: Around) -> MeshLayout:
    """The mesh may be left out where one is given along; placements may also read as PyTorch prints them."""
    if reader.is_name("mesh"):
        at, shape = reader.at, reader.tuple_of(int, "The shape of the mesh, such as (2, 4)")
        names = reader.tuple_of(str, "Names of its axes, such as ('dp', 'tp')")
        ranks: tuple[int, ...] = ()
        if reader.is_name("of"):
            reader.name("ranks")
            ranks = reader.tuple_of(int, "Ranks, such as [0, 2, 1, 3]")
        mesh = reader.made_mesh(shape, names, ranks, at)
        reader.expect(";")
    else:
        mesh = reader.mesh(around)
    at = reader.at
    terms = reader.typed(tuple, f"Placements, such as [Shard(0), Replicate()]: {_PLACEMENTS}")
    return _layout(mesh, tuple(_placement(term, reader, at, strided=True) for term in terms), around)


def _layout(mesh: DeviceMesh, placements: tuple[AxisPlacement, ...], around: Around) -> MeshLayout:
    layout = MeshLayout(mesh, placements)
    return layout if around.shape is None else layout.on(len(around.shape))


def _placement(term: Any, reader: Reader, at: int, *, strided: bool = False) -> AxisPlacement:
    """`Shard(0)`, `Shard(dim=0)`, `Replicate()`, `Partial()`, `Partial("max")`, also as PyTorch prints them."""
    if not isinstance(term, Term) or term.given is None:
        reader.fail(_PLACEMENTS, at)
    kind = term.name.rpartition(".")[2]
    names = {"Shard": ("dim",), "_StridedShard": ("dim", "split_factor"), "Partial": ("reduce_op",), "Replicate": ()}
    if kind not in names or (kind == "_StridedShard" and not strided) or len(term.given) > len(names[kind]):
        reader.fail(f"{_PLACEMENTS}{', _StridedShard(dim, split_factor=n)' if strided else ''}", at)
    named = {"split_factor" if name == "sf" else name: value for name, value in term.named.items()}
    given = dict(zip(names[kind], term.given, strict=False)) | named
    if kind == "Partial":
        op = given.pop("reduce_op", "sum")
        op = op.name if isinstance(op, Term) and op.given is None else op
        op = op if strided else FROM_HYPER.get(op) if isinstance(op, str) else None
        if given or op not in REDUCE_OPS:
            reader.fail(f"Partial with one of {', '.join(REDUCE_OPS if strided else FROM_HYPER)}", at)
        return Partial(op)
    if given.keys() != set(names[kind]) or any(type(number) is not int for number in given.values()):
        reader.fail(f"{kind}({', '.join(names[kind])})", at)
    return Replicate() if kind == "Replicate" else Shard(**given) if kind == "Shard" else StridedShard(**given)


# ---- HyperParallel ----

_ONE_EACH = "HyperParallel's placements refuse a dim split by two axes"


def write_placements(layout: MeshLayout, shape: Shape) -> str:
    """The placements behind a Layout's head. LayoutError: uneven, or a dim split by two axes."""
    for dim, names in enumerate(even_dims(layout, shape, "HyperParallel divides rounding down, rows would be lost")):
        if len(names) > 1:
            given = f"dim {dim} split by {' and '.join(map(repr, names))}"
            raise LayoutError(given, allowed=f"No form: {_ONE_EACH}", hint="Write it with aliases")
    placements = (
        f"Partial({hyper_reduction(placement.reduce_op)!r})" if isinstance(placement, Partial) else str(placement)
        for placement in layout.on(len(shape)).placements
    )
    return f"{layout_head(layout.mesh)}({', '.join(placements)})"


def read_placements(reader: Reader, around: Around) -> MeshLayout:
    """What `write_placements` writes."""
    mesh, at = read_layout_head(reader), reader.at
    reader.expect("(")
    terms, named = reader.arguments()
    if named:
        reader.fail(_PLACEMENTS, at)
    placements = tuple(_placement(term, reader, at) for term in terms)
    dims = [placement.dim for placement in placements if isinstance(placement, Shard)]
    if len(set(dims)) < len(dims):
        reader.fail(f"One axis per dim: {_ONE_EACH}", at, "Write it with aliases")
    return _layout(mesh, placements, around)


# ---- spmd_types ----


def write_spmd(layout: MeshLayout, shape: Shape) -> str:
    """`{dp: S(0), tp: P}`, with a PartitionSpec where several axes split a dim. LayoutError: a mean, ... is pending."""
    dims, pending, mesh = layout.dims(len(shape)), only_sums(layout, "spmd_types"), layout.mesh
    for name in mesh.names:
        if not name.isidentifier():
            raise LayoutError(f"axis {plain(name)!r}", allowed="No form: axes are names without quotes")
    nested = any(len(names) > 1 for names in dims)
    of = {name: "V" if nested else f"S({dim})" for dim, names in enumerate(dims) for name in names}
    of |= dict.fromkeys(pending, "P")
    text = ", ".join(f"{name}: {of.get(name, 'R')}" for name in mesh.names)
    return f"{{{text}}}; {spec(dims)}" if nested else f"{{{text}}}"


def read_spmd(reader: Reader, around: Around) -> MeshLayout:
    """I, one logical value, is read as copies: the two differ in their gradients."""
    mesh = reader.mesh(around)

    def axis() -> tuple[str, Any]:
        at, name = reader.at, reader.value()
        name = name.name if isinstance(name, Term) and name.given is None else name
        if name not in mesh.names:
            reader.fail(f"An axis of {mesh}", at)
        reader.expect(":")
        return name, reader.value()

    at = reader.at
    reader.expect("{")
    pairs = reader.listed(axis, "}", 64)
    of, dims = dict(pairs), {}
    if len(of) != len(pairs) or len(of) != mesh.ndim:
        reader.fail(f"Every axis of {mesh} once", at)
    kinds = {name: term.name if isinstance(term, Term) else "" for name, term in of.items()}
    for name, kind in kinds.items():
        given = of[name].given if kind else None
        if kind == "S" and given and len(given) == 1 and type(given[0]) is int:
            dims[name] = given[0]
        elif kind not in ("R", "I", "V", "P") or given is not None:
            reader.fail("R, I, V, P or S(dim) per axis", at)
    if len(set(dims.values())) < len(dims):
        reader.fail("S of a dim once", at, "Write V, and a PartitionSpec behind it")
    varying = {name for name, kind in kinds.items() if kind == "V"}
    split: tuple[tuple[str, ...], ...] = ()
    if reader.sign(";"):
        at = reader.at
        split, unreduced = spec_parts(reader, around)
        if {name for names in split for name in names} != varying or unreduced or dims:
            reader.fail("A PartitionSpec of the axes that are V, and of no others", at)
    elif varying:
        reader.fail("A PartitionSpec: V alone only says that ranks differ", hint="{dp: V, tp: R}; PartitionSpec('dp')")
    pending = {name: around.reduce_op for name, kind in kinds.items() if kind == "P"}
    layout = MeshLayout.from_dims(mesh, split, pending)
    placements = (Shard(dims[n]) if n in dims else p for n, p in zip(mesh.names, layout.placements, strict=True))
    return _layout(mesh, tuple(placements), around)
