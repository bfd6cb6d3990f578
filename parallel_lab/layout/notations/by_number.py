"""Notations without names: strategy, device matrix with tensor map, GSPMD, Alpa. What is counted must fit the mesh.

    strategy         ((8, 1),)                              slices per dim; a device matrix of its own
    tensor map       device_matrix (2, 4), tensor_map ((1, 0), -1)    axes counted from the right
    GSPMD            {devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}
    Alpa             S01R                                   axes of the mesh per dim

A strategy says how many slices a dim has; which rank holds which follows: dims in order, copies innermost. So it is a
form of a layout exactly if the slices are the same; on most meshes, most layouts have no strategy. GSPMD counts
tiles the same way, and says with a transpose which device has which: its numbers are places in the mesh, not ranks.
Reading either asks which axes of the mesh count like that. Rules: MindSpore 2.10; GSPMD's text as JAX 0.10.2 prints it;
Alpa (Zheng et al. 2022), section 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...base.errors import LayoutError
from ..mesh_layout import DeviceMesh, MeshLayout
from .reader import MOST_DIMS, Around, Reader, even_dims, nothing_pending, reductions

Shape = tuple[int, ...]
Dims = tuple[tuple[str, ...], ...]
_EQUAL = "slices of MindSpore are equally large"


def numbers_of(mesh: DeviceMesh, names: Sequence[str]) -> np.ndarray:
    """(mesh.size,) int64: the number of the slice at each place of the mesh, if these axes cut, outer first."""
    places, number = np.arange(mesh.size), np.zeros(mesh.size, np.int64)
    for name in names:
        inner = math.prod(mesh.shape[mesh.axis(name) + 1 :])
        number = number * mesh.axis_size(name) + places // inner % mesh.axis_size(name)
    return number


def counting_axes(mesh: DeviceMesh, numbers: np.ndarray, count: int) -> tuple[str, ...] | None:
    """The axes, outer first, that number `count` slices like this; None where none do.

    >>> mesh = DeviceMesh((2, 4), ("dp", "tp"))
    >>> counting_axes(mesh, np.array([0, 2, 4, 6, 1, 3, 5, 7]), 8)
    ('tp', 'dp')
    """
    steps = {}  # of the number, when one goes a step along an axis
    for axis, name in enumerate(mesh.names):
        if mesh.shape[axis] > 1:
            steps[name] = numbers[math.prod(mesh.shape[axis + 1 :])] - numbers[0]
    names = tuple(sorted((name for name, step in steps.items() if step > 0), key=lambda name: -steps[name]))
    fits = math.prod(map(mesh.axis_size, names)) == count and np.array_equal(numbers_of(mesh, names), numbers)
    return names if fits else None


# ---- strategy ----


def write_strategy(layout: MeshLayout, shape: Shape) -> str:
    """The strategy that gives every rank the same slices. LayoutError: none does, or reductions are pending."""
    nothing_pending(layout, "a strategy")
    mesh, dims = layout.mesh, even_dims(layout, shape, _EQUAL)
    counts = tuple(math.prod(map(mesh.axis_size, names)) for names in dims)
    if set(mesh.ranks) != set(range(mesh.size)):
        raise LayoutError(f"{mesh}", allowed="No form: a strategy counts ranks from 0")
    for dim, (names, numbers) in enumerate(zip(dims, _strategy_numbers(counts, mesh), strict=True)):
        if not np.array_equal(numbers, numbers_of(mesh, names)):
            given = f"{(counts,)}, which puts other slices of dim {dim} on the ranks"
            allowed = "No form: a strategy makes a device matrix of its own, dims in order, copies innermost"
            raise LayoutError(given, allowed=allowed, hint="Write a Layout")
    return f"{(counts,)}"


def _strategy_numbers(counts: Shape, mesh: DeviceMesh) -> list[np.ndarray]:
    """Per dim the slice at each place of the mesh. counts: divide its size."""
    ranks, inner = np.array(mesh.ranks), mesh.size
    numbers = []
    for count in counts:
        inner //= count
        numbers.append(ranks // inner % count)
    return numbers


def read_strategy(reader: Reader, around: Around) -> MeshLayout:
    """By the axes of the mesh if some count like that, otherwise on a mesh of the strategy's own."""
    mesh, at = reader.mesh(around), reader.at
    counts = reader.typed(tuple, "A tuple of slices per dim, in a tuple: ((2, 4),)")
    if len(counts) == 1 and isinstance(counts[0], tuple):
        counts = counts[0]
    if any(type(count) is not int or count < 1 for count in counts):
        reader.fail("Slices per dim of one tensor, each at least 1: ((2, 4),)", at)
    reader.fits(len(counts), around, at)
    if mesh.size % math.prod(counts):
        reader.fail(f"Counts whose product divides the {mesh.size} ranks", at)
    found = [counting_axes(mesh, *pair) for pair in zip(_strategy_numbers(counts, mesh), counts, strict=True)]
    dims = tuple(names for names in found if names is not None)
    if len(dims) == len(found):
        return MeshLayout.from_dims(mesh, dims)
    # no axes of the mesh count like that: the strategy's own device matrix
    own = [(f"dim{dim}", count) for dim, count in enumerate(counts) if count > 1]
    copies = mesh.size // math.prod(counts)
    axes = [*own, *([("copies", copies)] if copies > 1 else [])]
    own_mesh = DeviceMesh(tuple(size for _, size in axes), tuple(name for name, _ in axes))
    return MeshLayout.from_dims(
        own_mesh, tuple((f"dim{dim}",) if count > 1 else () for dim, count in enumerate(counts))
    )


# ---- device matrix and tensor map ----


def write_tensor_map(layout: MeshLayout, shape: Shape) -> str:
    """LayoutError: uneven slices, pending reductions, ranks in another order."""
    nothing_pending(layout, "a tensor map")
    mesh, dims = layout.mesh, even_dims(layout, shape, _EQUAL)
    if not mesh.in_order:
        allowed = "No form: ranks of a device matrix are in row-major order"
        raise LayoutError(f"{mesh}", allowed=allowed, hint="A Layout has rank_list for it")
    numbers = (tuple(mesh.ndim - 1 - mesh.axis(name) for name in names) for names in dims)
    entries = tuple(-1 if not axes else axes[0] if len(axes) == 1 else axes for axes in numbers)
    return f"device_matrix {mesh.shape}, tensor_map {entries}"


def read_tensor_map(reader: Reader, around: Around) -> MeshLayout:
    """Its axes are named as those of the mesh that is given along, if the shapes are equal."""
    reader.name("device_matrix")
    at, matrix = reader.at, reader.tuple_of(int, "Sizes, such as (2, 4)")
    reader.expect(",")
    reader.name("tensor_map")
    at, entries = reader.at, reader.typed(tuple, "An axis per dim, counted from the right; -1 for none: (1, -1)")
    same = around.mesh is not None and around.mesh.shape == matrix
    mesh = reader.made_mesh(matrix, around.mesh.names if same and around.mesh is not None else (), (), at)
    reader.fits(len(entries), around, at)
    dims = []
    for entry in entries:
        axes = [axis for axis in (entry if isinstance(entry, tuple) else (entry,)) if axis != -1]
        if any(type(axis) is not int or not 0 <= axis < mesh.ndim for axis in axes):
            reader.fail(f"-1, or axes from 0 to {mesh.ndim - 1}, counted from the right", at)
        dims.append(tuple(mesh.names[-1 - axis] for axis in axes))
    return MeshLayout.from_dims(mesh, dims)


# ---- GSPMD ----


def write_gspmd(layout: MeshLayout, shape: Shape) -> str:
    """The kind of a pending reduction is not said: unreduced stands for all of them."""
    dims, mesh = even_dims(layout, shape, "arrays of JAX divide evenly"), layout.mesh
    wide = [name for name, size in zip(mesh.names, mesh.shape, strict=True) if size > 1]
    split = [name for names in dims for name in names if name in wide]
    unreduced = list(reductions(layout))
    copies = [name for name in wide if name not in (*split, *unreduced)]
    if not split and not (unreduced and copies):
        return "{unreduced}" if unreduced else "{replicated}"
    tiles = [math.prod(map(mesh.axis_size, names)) for names in dims]
    tiles += [math.prod(map(mesh.axis_size, names)) for names in (unreduced, copies) if names]
    kinds = ", ".join(["unreduced"] * bool(unreduced) + ["replicated"] * bool(copies))
    tail = f" last_tile_dims={{{kinds}}}" if unreduced else " last_tile_dim_replicate" if copies else ""
    return f"{{devices=[{','.join(map(str, tiles))}]<={_iota(mesh, wide, [*split, *unreduced, *copies])}{tail}}}"


def _iota(mesh: DeviceMesh, wide: list[str], order: list[str]) -> str:
    """`[8]` or `[2,4]T(1,0)`: all devices, axes in another order; those that stay together are one."""
    runs: list[list[int]] = []
    for axis in map(wide.index, order):
        if runs and runs[-1][-1] + 1 == axis:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    lying = sorted(runs)
    sizes = [math.prod(mesh.axis_size(wide[axis]) for axis in run) for run in lying]
    turn = "" if len(runs) == 1 else f"T({','.join(str(lying.index(run)) for run in runs)})"
    return f"[{','.join(map(str, sizes))}]{turn}"


def read_gspmd(reader: Reader, around: Around) -> MeshLayout:
    """LayoutError also where axes of the mesh do not count tiles like that."""
    mesh = reader.mesh(around)
    reader.expect("{")
    at, kind = reader.at, reader.name("devices", "replicated", "unreduced", "manual", "maximal")
    if kind in ("manual", "maximal"):
        reader.fail("devices=[...], replicated or unreduced: a program that moves data by hand has no layout here", at)
    if kind != "devices":
        reader.expect("}")
        return MeshLayout.from_dims(
            mesh, (), dict.fromkeys(mesh.names if kind == "unreduced" else (), around.reduce_op)
        )
    reader.expect("=")
    at, tiles = reader.at, reader.tuple_of(int, "Tiles per dim, such as [2,4]")
    if len(tiles) > MOST_DIMS or min(tiles, default=0) < 1 or math.prod(tiles) != mesh.size:
        reader.fail(f"At most {MOST_DIMS} counts whose product is {mesh.size}, the ranks of {mesh}", at)
    order, tail = _devices(reader, mesh.size), []
    if reader.is_name("last_tile_dim_replicate"):
        tail = ["replicated"]
    elif reader.is_name("last_tile_dims"):
        reader.expect("={")
        tail = reader.listed(lambda: reader.name("unreduced", "replicated"), "}", 2)
    reader.expect("}")
    ndim = len(tiles) - len(tail)
    if ndim < 0 or len(set(tail)) < len(tail):
        reader.fail("A tile count for each of them, each once", at)
    reader.fits(ndim, around, at)
    places, found = np.argsort(order), []  # of each device in the order of the tiles
    for dim, tile in enumerate(tiles):
        numbers = places // math.prod(tiles[dim + 1 :]) % tile
        names = counting_axes(mesh, numbers, tile)
        if names is None:
            hint = "Split an axis of the mesh in two first" if dim < ndim else ""
            reader.fail(f"Axes of {mesh} that make {tile} tiles like these", at, hint)
        found.append(names)
    pending = dict(zip(tail, found[ndim:], strict=True)).get("unreduced", ())
    return MeshLayout.from_dims(mesh, found[:ndim], dict.fromkeys(pending, around.reduce_op))


def _devices(reader: Reader, size: int) -> np.ndarray:
    """The devices in the order of the tiles: a list of them, or `<=[2,4]T(1,0)`."""
    at = reader.at
    if not reader.sign("<="):
        numbers = [reader.integer()]
        while reader.sign(",") and len(numbers) < size:
            numbers.append(reader.integer())
        if sorted(numbers) != list(range(size)):
            reader.fail(f"Each device from 0 to {size - 1} once", at)
        return np.array(numbers)
    sizes = reader.tuple_of(int, "A shape, such as [2,4]")
    turn = tuple(range(len(sizes)))
    if reader.is_name("T"):
        reader.expect("(")
        turn = tuple(reader.listed(reader.integer, ")", MOST_DIMS))
    fits = 0 < len(sizes) <= MOST_DIMS and min(sizes) > 0 and math.prod(sizes) == size
    if not fits or sorted(turn) != list(range(len(sizes))):
        reader.fail(f"A shape of {size} devices, and an order of its axes", at)
    return np.arange(size).reshape(sizes).transpose(turn).ravel()


# ---- Alpa ----


def write_alpa(layout: MeshLayout, shape: Shape) -> str:
    """LayoutError: uneven, pending, three axes, ranks in another order, an inner axis named first."""
    nothing_pending(layout, "Alpa")
    mesh, dims = layout.mesh, even_dims(layout, shape, "Alpa speaks of even sizes")
    axes = [[mesh.axis(name) for name in names] for names in dims]
    if mesh.ndim > 2 or not mesh.in_order:
        raise LayoutError(f"{mesh}", allowed="No form: Alpa's mesh has one or two axes, with ranks in row-major order")
    for names, numbers in zip(dims, axes, strict=True):
        if numbers != sorted(numbers):
            given = f"{names[0]!r} outside of {names[1]!r}"
            raise LayoutError(given, allowed="No form: Alpa has S01, whose axis 0 is outer, and no S10")
    return "".join("S" + "".join(map(str, numbers)) if numbers else "R" for numbers in axes)


def read_alpa(reader: Reader, around: Around) -> MeshLayout:
    """R, S0, S1, S01 per dim."""
    mesh, at, text = reader.mesh(around), reader.at, reader.name()
    dims: list[tuple[str, ...]] = []
    allowed = f"R, {', '.join(f'S{axis}' for axis in range(min(2, mesh.ndim)))}{', S01' * (mesh.ndim > 1)} per dim"
    if mesh.ndim > 2 or not mesh.in_order:
        reader.fail(f"A mesh of one or two axes, with ranks in row-major order, not {mesh}", at)
    for part in text.replace("S", " S").replace("R", " R ").split():
        axes = part.removeprefix("S") if part != "R" else ""
        if part != "R" and (not part.startswith("S") or axes not in ("0", "1", "01")[: 2 * mesh.ndim - 1]):
            reader.fail(allowed, at)
        dims.append(tuple(mesh.names[int(axis)] for axis in axes))
    reader.fits(len(dims), around, at)
    return MeshLayout.from_dims(mesh, dims)
