"""Notations that say of each dim which axes split it, the first one outer: Layout, PartitionSpec, sdy, scaling book.

    MindSpore, HyperParallel   Layout((2, 4), ("dp", "tp"))(("dp", "tp"), "None")
    JAX                        PartitionSpec(('dp', 'tp'), None)              pending: unreduced={'tp'}
    Shardy                     mesh <["dp"=2, "tp"=4]>; #sdy.sharding<@mesh, [{"dp", "tp"}, {}]>
    scaling book               A[I_{XY}, J]          X, Y, Z: the axes in order; pending: A[I_X, J] {U_Y}

They differ in brackets, in what they say of pending sums, and in whether the mesh is a part of the text. Rules:
MindSpore 2.10, Layout; HyperParallel fdd0a80; JAX 0.10.2; openxla/shardy, sharding representation; How to Scale Your
Model, chapter 3.
"""

from __future__ import annotations

from typing import Any

from ...base.errors import LayoutError
from ..mesh_layout import DeviceMesh, MeshLayout
from .reader import Around, Reader, Term, even_dims, nothing_pending, only_sums, plain, quoted, reductions

Shape = tuple[int, ...]
Dims = tuple[tuple[str, ...], ...]
AXIS_LETTERS, DIM_LETTERS = "XYZWVT", "IJKLMNOPQRST"
TO_HYPER = {op: op for op in ("sum", "avg", "max", "min")} | {"product": "prod"}
FROM_HYPER = {theirs: ours for ours, theirs in TO_HYPER.items()}
_EQUAL = "slices of MindSpore are equally large"
_FLOORED = "HyperParallel divides rounding down, rows would be lost"


# ---- Layout: MindSpore, and the aliases of HyperParallel ----


def layout_head(mesh: DeviceMesh) -> str:
    """`Layout((2, 4), ("dp", "tp"))`, with rank_list where the ranks are in another order."""
    names = ", ".join(map(quoted, mesh.names)) + "," * (mesh.ndim == 1)
    return f"Layout({mesh.shape}, ({names}){'' if mesh.in_order else f', rank_list={list(mesh.ranks)}'})"


def read_layout_head(reader: Reader) -> DeviceMesh:
    """The mesh of `Layout(device_matrix, alias_name, rank_list=None)`."""
    reader.name("Layout")
    at = reader.at
    reader.expect("(")
    given, named = reader.arguments()
    parts = dict(zip(("device_matrix", "alias_name", "rank_list"), given, strict=False)) | named
    matrix, names, ranks = (parts.pop(name, None) for name in ("device_matrix", "alias_name", "rank_list"))
    if parts or len(given) > 3 or not (_all(matrix, int) and _all(names, str) and (ranks is None or _all(ranks, int))):
        reader.fail("A tuple of sizes, a tuple of names, and rank_list if ranks are in another order", at)
    if "interleaved_parallel" in names:
        hint = "Without that axis it places the same slices"
        reader.fail("No interleaved_parallel: it orders what one rank computes, and has no form elsewhere", at, hint)
    return reader.made_mesh(matrix, names, ranks or (), at)


def _all(values: Any, kind: type) -> bool:
    return isinstance(values, tuple) and all(type(value) is kind for value in values)


def _called(layout: MeshLayout, dims: Dims) -> str:
    entries = ('"None"' if not n else quoted(n[0]) if len(n) == 1 else f"({', '.join(map(quoted, n))})" for n in dims)
    return f"{layout_head(layout.mesh)}({', '.join(entries)})"


def write_layout(layout: MeshLayout, shape: Shape) -> str:
    """MindSpore's. LayoutError: uneven slices, pending reductions."""
    nothing_pending(layout, "a Layout")
    return _called(layout, even_dims(layout, shape, _EQUAL))


def write_alias(layout: MeshLayout, shape: Shape) -> str:
    """HyperParallel's, with a call for each pending reduction. LayoutError: uneven slices."""
    calls = (
        f"; set_partial_by_dev_axis({quoted(name)}, {quoted(hyper_reduction(op))})"
        for name, op in reductions(layout).items()
    )
    return _called(layout, even_dims(layout, shape, _FLOORED)) + "".join(calls)


def hyper_reduction(op: str) -> str:
    """Its name in HyperParallel. Raises LayoutError."""
    if op not in TO_HYPER:
        raise LayoutError(f"pending {op}", allowed=f"No form: HyperParallel has {', '.join(FROM_HYPER)}")
    return TO_HYPER[op]


def read_layout(reader: Reader, around: Around) -> MeshLayout:
    """What `write_layout` writes; `None` for "None", too."""
    mesh = read_layout_head(reader)
    return MeshLayout.from_dims(mesh, _entries(reader, around))


def read_alias(reader: Reader, around: Around) -> MeshLayout:
    """What `write_alias` writes."""
    mesh = read_layout_head(reader)
    dims, pending = _entries(reader, around), {}
    while reader.sign(";"):
        reader.name("set_partial_by_dev_axis")
        name, op = (*reader.tuple_of(str, "An axis and a reduction"), "", "")[:2]
        if op not in FROM_HYPER or name in pending:
            reader.fail(f"An axis that is not pending yet, and one of {', '.join(FROM_HYPER)}")
        pending[name] = FROM_HYPER[op]
    return MeshLayout.from_dims(mesh, dims, pending)


def _entries(reader: Reader, around: Around) -> Dims:
    """What stands in brackets behind a Layout or PartitionSpec, per dim."""
    at = reader.at
    reader.expect("(")
    given, named = reader.arguments()
    reader.fits(len(given), around, at)
    if named:
        reader.fail("An axis, a tuple of axes, or 'None', per dim", at)
    return tuple(axes_of(entry, reader, at) for entry in given)


def axes_of(entry: Any, reader: Reader, at: int) -> tuple[str, ...]:
    """The axes that an entry of a Layout or a PartitionSpec names."""
    names = entry if isinstance(entry, tuple) else () if entry in (None, "None") else (entry,)
    names = tuple(name for name in names if name != "None")
    if isinstance(entry, Term) and entry.name.endswith("UNCONSTRAINED"):
        reader.fail("No UNCONSTRAINED: the compiler chooses, the layout is not known yet", at)
    if not all(isinstance(name, str) for name in names):
        reader.fail("Per dim an axis, a tuple of axes, or nothing", at)
    return names


# ---- JAX ----


def write_spec(layout: MeshLayout, shape: Shape) -> str:
    """JAX's. LayoutError: uneven slices, other than sums pending."""
    return spec(even_dims(layout, shape, "arrays of JAX divide evenly"), tuple(only_sums(layout, "JAX")))


def spec(dims: Dims, unreduced: tuple[str, ...] = ()) -> str:
    """`PartitionSpec('dp', None, unreduced={'tp'})`."""
    one = [f"'{plain(name)}'" for names in dims for name in names]
    one.reverse()
    entries = ("None" if not n else one.pop() if len(n) == 1 else f"({', '.join(one.pop() for _ in n)})" for n in dims)
    pending = [f"unreduced={{{', '.join(repr(plain(name)) for name in unreduced)}}}"] if unreduced else []
    return f"PartitionSpec({', '.join([*entries, *pending])})"


def read_spec(reader: Reader, around: Around) -> MeshLayout:
    """The PartitionSpec of `spec_parts`, on the mesh that is given along."""
    dims, unreduced = spec_parts(reader, around)
    return MeshLayout.from_dims(reader.mesh(around), dims, dict.fromkeys(unreduced, around.reduce_op))


def spec_parts(reader: Reader, around: Around) -> tuple[Dims, tuple[str, ...]]:
    """Per dim its axes, and the unreduced ones, of `PartitionSpec(...)` or `P(...)`; missing entries split nothing."""
    at, term = reader.at, reader.typed(Term, "PartitionSpec(...)")
    if term.name.rpartition(".")[2] not in ("P", "PartitionSpec") or term.given is None:
        reader.fail("PartitionSpec(...) or P(...)", at)
    if term.named.keys() - {"unreduced", "reduced"}:
        reader.fail("Axes per dim, unreduced={...} and reduced={...}", at)
    # reduced: copies, whose gradients are pending
    sets = [term.named.get(name, ()) for name in ("unreduced", "reduced")]
    sets = [one.given[0] if isinstance(one, Term) and one.name == "frozenset" and one.given else one for one in sets]
    if not all(_all(one, str) for one in sets):
        reader.fail("A set of axes, such as unreduced={'tp'}", at)
    reader.fits(len(term.given), around, at, fewer=True)
    missing = 0 if around.shape is None else len(around.shape) - len(term.given)
    return (*(axes_of(entry, reader, at) for entry in term.given), *((),) * missing), sets[0]


# ---- Shardy ----


def write_sdy(layout: MeshLayout, shape: Shape) -> str:
    """Mesh and sharding in Shardy's text, all dims closed. LayoutError: uneven slices, other than sums pending."""
    dims, mesh = even_dims(layout, shape, "arrays of JAX divide evenly"), layout.mesh
    unreduced = ", ".join(map(quoted, only_sums(layout, "sdy")))
    axes = ", ".join(f"{quoted(name)}={size}" for name, size in zip(mesh.names, mesh.shape, strict=True))
    devices = "" if mesh.in_order else f", device_ids={list(mesh.ranks)}"
    entries = ", ".join(f"{{{', '.join(map(quoted, names))}}}" for names in dims)
    more = f", unreduced={{{unreduced}}}" if unreduced else ""
    return f"mesh <[{axes}]{devices}>; #sdy.sharding<@mesh, [{entries}]{more}>"


def read_sdy(reader: Reader, around: Around) -> MeshLayout:
    """A mesh in the text goes before the one that is given along."""
    if reader.is_name("mesh", "sdy.mesh"):
        if reader.sign("@"):
            reader.name()
            reader.expect("=")
        mesh = _sdy_mesh(reader)
        reader.expect(";")
    else:
        mesh = reader.mesh(around)
    reader.expect("#")
    reader.name("sdy.sharding")
    reader.expect("<@")
    reader.name()
    reader.expect(",[")
    at = reader.at
    dims = tuple(reader.listed(lambda: _closed(reader), "]"))
    reader.fits(len(dims), around, at)
    sets: dict[str, tuple[str, ...]] = {}
    while reader.sign(","):
        kind = reader.name("replicated", "unreduced")
        reader.expect("=")
        sets[kind] = _closed(reader)
    reader.expect(">")
    pending = dict.fromkeys(sets.get("unreduced", ()), around.reduce_op)
    layout = MeshLayout.from_dims(mesh, dims, pending)
    if taken := {*pending, *(name for names in dims for name in names)} & {*sets.get("replicated", ())}:
        reader.fail(f"An axis is used once: {', '.join(sorted(taken))} cannot be replicated, too")
    return layout


def _sdy_mesh(reader: Reader) -> DeviceMesh:
    def axis() -> tuple[str, int]:
        name = reader.typed(str, 'An axis, such as "dp"=2')
        reader.expect("=")
        return name, reader.integer()

    reader.expect("<[")
    at, axes, ranks = reader.at, reader.listed(axis, "]", 64), ()
    if reader.sign(","):
        reader.name("device_ids")
        reader.expect("=")
        ranks = reader.tuple_of(int, "Numbers of the ranks")
    reader.expect(">")
    return reader.made_mesh(tuple(size for _, size in axes), tuple(name for name, _ in axes), ranks, at)


def _closed(reader: Reader) -> tuple[str, ...]:
    """Axes in braces: a dim that is closed, of whole axes, without a priority."""

    def axis() -> str:
        if reader.sign("?"):
            reader.fail("No '?': an open dim may be split further, the layout is not known yet")
        name = reader.typed(str, 'An axis, such as "dp"')
        if reader.sign(":"):
            reader.fail(
                "A whole axis", hint="Split the axis of the mesh in two first: a sub-axis has no form elsewhere"
            )
        return name

    reader.expect("{")
    names = tuple(reader.listed(axis, "}"))
    if (found := reader.peek()) is not None and found["name"]:
        reader.fail("No priority: it is for the compiler, and has no form elsewhere")
    return names


# ---- scaling book ----


def write_book(layout: MeshLayout, shape: Shape) -> str:
    """A, its dims I, J, K. LayoutError: uneven, other than sums pending, ranks in another order, letters run out."""
    dims, mesh = even_dims(layout, shape, "the book speaks of even sizes"), layout.mesh
    if not mesh.in_order:
        raise LayoutError(f"{mesh}", allowed="No form: the book's notation does not say in which order ranks lie")
    if mesh.ndim > len(AXIS_LETTERS) or len(dims) > len(DIM_LETTERS):
        given = f"{mesh.ndim} axes and {len(dims)} dims"
        allowed = f"No form: there are letters for {len(AXIS_LETTERS)} axes and {len(DIM_LETTERS)} dims"
        raise LayoutError(given, allowed=allowed)

    def below(names: tuple[str, ...]) -> str:
        letters = "".join(AXIS_LETTERS[mesh.axis(name)] for name in names)
        return f"_{letters}" if len(letters) == 1 else f"_{{{letters}}}" if letters else ""

    unreduced = below(tuple(only_sums(layout, "the book")))
    entries = (letter + below(names) for letter, names in zip(DIM_LETTERS, dims, strict=False))
    return f"A[{', '.join(entries)}]{f' {{U{unreduced}}}' if unreduced else ''}"


def read_book(reader: Reader, around: Around) -> MeshLayout:
    """Any letters for tensor and dims; those of the axes are X, Y, Z in the order of the mesh."""
    mesh = reader.mesh(around)

    def below() -> tuple[str, ...]:
        """The axes of a name with letters below it: I_X, I_{XY}."""
        at, name = reader.at, reader.name()
        letters = name.partition("_")[2]
        if name.endswith("_"):
            reader.expect("{")
            letters = "" if reader.sign("}") else reader.name()
            if letters:
                reader.expect("}")
        numbers = [AXIS_LETTERS.find(letter) for letter in letters]
        if not all(0 <= number < mesh.ndim for number in numbers):
            reader.fail(f"Below a dim, letters of {AXIS_LETTERS[: mesh.ndim]}, one per axis of {mesh}", at)
        return tuple(mesh.names[number] for number in numbers)

    reader.name()
    reader.expect("[")
    at = reader.at
    dims = tuple(reader.listed(below, "]"))
    reader.fits(len(dims), around, at)
    pending: tuple[str, ...] = ()
    if reader.sign("{"):
        at = reader.at
        pending = below()
        if not reader.text[at:].lstrip().startswith("U_"):
            reader.fail("U with the axes of a pending sum below it", at)
        reader.expect("}")
    return MeshLayout.from_dims(mesh, dims, dict.fromkeys(pending, around.reduce_op))
