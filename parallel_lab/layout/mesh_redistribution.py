"""From one mesh layout to another: a list of steps, where each changes what one axis of the mesh does.

    S -> R    all_gather        S -> S'   all_to_all          R -> S    slice (no message)
    P -> R    all_reduce        P -> S    reduce_scatter      S -> P, R -> P   addends (no message)

    >>> from .device_mesh import DeviceMesh
    >>> mesh = DeviceMesh((2, 4), ("dp", "tp"))
    >>> for step in redistribution(MeshLayout.coded(mesh, "S0 S1"), MeshLayout.coded(mesh, "S1 S0"), (16, 32)):
    ...     print(step, step.kind, step.sent_shape((16, 32), 0))
    tp: S1 -> R all_gather (8, 8)
    dp: S0 -> S1 all_to_all (8, 32)
    tp: R -> S0 slice ()

Four planners. "torch" is PyTorch's: from right to left it moves each axis to where it should be, or undoes it where an
axis to its left is in the way; then from left to right it does the rest. "cheapest" searches all ways with these steps
for the one with the fewest bytes. "by dims" is HyperParallel's: what is pending first, then splits, exchanges and
gathers, dim by dim. "gspmd" is what JAX's compiler does, where that is known, and refuses the rest. A step can be taken
where the ranks along its axis hold, between them, all that they need: an axis leaves a dim innermost first. What a rank
gives to the message and what it makes of the answer are `sent` and `received`; pieces that do not divide are padded to
the largest, as PyTorch pads them.

Rules: PyTorch 2.14, redistribution of DTensors (greedy planner; Dijkstra for strided shards).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ..base.errors import LayoutError, shorten
from .mesh_layout import AxisPlacement, MeshLayout, Partial, Replicate, Shard, StridedShard
from .tensor_layout import Shape

SPLITS = (Shard, StridedShard)
KINDS = {
    ("S", "R"): "all_gather",
    ("S", "S"): "all_to_all",
    ("R", "S"): "slice",
    ("P", "R"): "all_reduce",
    ("P", "S"): "reduce_scatter",
    ("S", "P"): "addends",
    ("R", "P"): "addends",
}
Array = np.ndarray


@dataclass(frozen=True)
class MeshStep:
    """One axis of a layout does something else.

    before  the layout; axis: number of the axis, from the left; to: what it does afterwards
    """

    before: MeshLayout
    axis: int
    to: AxisPlacement

    @property
    def source(self) -> AxisPlacement:
        """What the axis does before."""
        return self.before.placements[self.axis]

    @property
    def name(self) -> str:
        """Name of the axis."""
        return self.before.mesh.names[self.axis]

    @property
    def after(self) -> MeshLayout:
        """The layout that it makes."""
        return with_placement(self.before, self.axis, self.to)

    @property
    def kind(self) -> str:
        """The message, or "slice", "addends" where nothing is sent. Raises LayoutError: it cannot be taken."""
        kind = _kind(self.before, self.axis, self.to)
        if kind is None:
            hint = "Reduce it first: redistribute to Replicate()" if isinstance(self.source, Partial) else ""
            allowed = "Shard to anything but Partial('max'), ...; Partial to Replicate or Shard"
            raise LayoutError(f"{self}", where="redistribute", allowed=allowed, hint=hint)
        return kind

    @property
    def communicates(self) -> bool:
        """Whether ranks send something."""
        return self.kind not in ("slice", "addends")

    @property
    def reduce(self) -> str:
        """How what is sent combines, "" where it does not."""
        return self.source.reduce_op if isinstance(self.source, Partial) else ""

    def group(self, rank: int) -> tuple[int, ...]:
        """The ranks along the axis, ascending."""
        return tuple(sorted(self.before.mesh.group(self.name, rank)))

    def _sizes(self, layout: MeshLayout, shape: Shape, rank: int, dim: int) -> list[Array]:
        """What the members hold of a dim, in the order of the group."""
        return [layout.indices(shape, member)[dim] for member in self.group(rank)]

    def sent(self, shape: Shape, rank: int, value: Array) -> Array:
        """What a rank gives to the message.  value: its part -> an array of one shape on all members."""
        before, after, kind = self.before.on(len(shape)), self.after.on(len(shape)), self.kind
        source, to = before.placements[self.axis], after.placements[self.axis]
        if kind in ("all_gather", "all_to_all"):
            assert isinstance(source, SPLITS)
            value = _padded(value, source.dim, max(map(len, self._sizes(before, shape, rank, source.dim))))
        if kind in ("all_to_all", "reduce_scatter"):
            assert isinstance(to, SPLITS)
            held = before.indices(shape, rank)[to.dim]
            parts = self._sizes(after, shape, rank, to.dim)
            largest = max(map(len, parts))
            blocks = [_padded(value.take(_places(held, part), to.dim), to.dim, largest) for part in parts]
            value = np.concatenate(blocks, axis=to.dim if kind == "all_to_all" else 0)
        return _contiguous(value)

    def attrs(self, ndim: int) -> dict[str, object]:
        """Fields of the request, besides its kind, group and value."""
        if self.kind == "all_to_all":
            source, to = (_dim(placement, ndim) for placement in (self.source, self.to))
            return {"split_dim": to, "concat_dim": source}
        names = {"avg": "mean", "product": "prod"}
        return {"reduce": names.get(self.reduce, self.reduce)} if self.reduce else {}

    def received(self, shape: Shape, rank: int, reply: Array) -> Array:
        """The rank's part afterwards, from the answer, or from its part before where nothing is sent."""
        before, after, kind = self.before.on(len(shape)), self.after.on(len(shape)), self.kind
        source, to = before.placements[self.axis], after.placements[self.axis]
        held, wanted = before.indices(shape, rank), after.indices(shape, rank)
        if kind == "slice":
            assert isinstance(to, SPLITS)
            return _contiguous(reply.take(_places(held[to.dim], wanted[to.dim]), to.dim))
        if kind == "addends":
            return self._addend(shape, rank, reply, held, wanted)
        if isinstance(source, SPLITS):
            parts = self._sizes(before, shape, rank, source.dim)
            pieces = np.split(reply, len(parts), 0 if kind == "all_gather" else source.dim)
            dim = source.dim
            reply = np.concatenate([p.take(range(len(i)), dim) for p, i in zip(pieces, parts, strict=True)], axis=dim)
            there = np.concatenate(parts)
            if not np.array_equal(there, wanted[dim]):
                reply = reply.take(_places(there, wanted[dim]), dim)
        if isinstance(to, SPLITS):
            reply = reply.take(range(len(wanted[to.dim])), to.dim)
        return _contiguous(reply)

    def _addend(
        self, shape: Shape, rank: int, value: Array, held: tuple[Array, ...], wanted: tuple[Array, ...]
    ) -> Array:
        """An addend whose sum over the axis is the value; of a mean, and of max and min, the value itself."""
        if isinstance(self.source, SPLITS):
            dim = _dim(self.source, len(shape))
            whole = np.zeros([len(part) for part in wanted], value.dtype)
            index = [slice(None)] * len(shape)
            index[dim] = _places(wanted[dim], held[dim])  # type: ignore[call-overload]
            whole[tuple(index)] = value
            return whole
        if self.to != Partial():
            return value
        size = self.before.mesh.shape[self.axis]
        if value.dtype.kind in "fc":
            return (value / size).astype(value.dtype)
        first = self.before.mesh.coordinates(rank)[self.axis] == 0
        return value if first else np.zeros_like(value)

    def sent_shape(self, shape: Shape, rank: int) -> Shape:
        """Shape of what a rank gives to the message, () where nothing is sent."""
        if not self.communicates:
            return ()
        before, after, kind = self.before.on(len(shape)), self.after.on(len(shape)), self.kind
        source, to = before.placements[self.axis], after.placements[self.axis]
        sizes = list(before.local_shape(shape, rank))
        if isinstance(source, SPLITS):
            sizes[source.dim] = max(map(len, self._sizes(before, shape, rank, source.dim)))
        if isinstance(to, SPLITS):
            parts = self._sizes(after, shape, rank, to.dim)
            sizes[to.dim] = max(map(len, parts))
            sizes[to.dim if kind == "all_to_all" else 0] *= len(parts)
        return tuple(sizes)

    def sent_elements(self, shape: Shape) -> float:
        """Elements that the busiest rank sends: (n - 1) times its part for a gather, 2 (n - 1) / n for an all_reduce,
        (n - 1) / n for the others (ring algorithms).
        """
        if not self.communicates:
            return 0.0
        n = self.before.mesh.shape[self.axis]
        times = {"all_gather": n - 1, "all_reduce": 2 * (n - 1) / n}.get(self.kind, (n - 1) / n)
        return _most_held(self.before, shape) * times

    def __str__(self) -> str:
        codes = (f"S{p.dim}" if isinstance(p, StridedShard) else p.code for p in (self.source, self.to))
        return f"{self.name}: {' -> '.join(codes)}"


def with_placement(layout: MeshLayout, axis: int, placement: AxisPlacement) -> MeshLayout:
    """The layout in which this axis does something else."""
    return MeshLayout(layout.mesh, (*layout.placements[:axis], placement, *layout.placements[axis + 1 :]))


def _dim(placement: AxisPlacement, ndim: int) -> int:
    assert isinstance(placement, SPLITS)
    return placement.dim % ndim


def _contiguous(value: Array) -> Array:
    return np.require(value, requirements="C")  # ascontiguousarray gives a number a dim


def _places(held: Array, wanted: Array) -> Array:
    """Where each wanted position stands in what is held. Raises LayoutError where it does not stand there: pieces of
    pieces in strides, of unequal lengths.
    """
    if len(held) and (np.diff(held) == 1).all():
        order, places = np.arange(len(held)), wanted - held[0]
    else:
        order = np.argsort(held)
        places = np.searchsorted(held, wanted, sorter=order)
    if len(wanted) and not (0 <= places.min() <= places.max() < len(held) and (held[order[places]] == wanted).all()):
        given, allowed = f"positions {shorten(wanted.tolist())}", f"Some of {shorten(held.tolist())}, which ranks hold"
        raise LayoutError(given, where="redistribute", allowed=allowed, hint="Strides over two axes need equal parts")
    return order[places]


def _padded(value: Array, dim: int, size: int) -> Array:
    """The array with zeros at the end of a dim, up to this size."""
    missing = size - value.shape[dim]
    if missing <= 0:
        return value
    return np.pad(value, [(0, missing if d == dim else 0) for d in range(value.ndim)])


@lru_cache(maxsize=65_536)
def _kind(layout: MeshLayout, axis: int, to: AxisPlacement) -> str | None:
    """The kind of a step; None: it cannot be taken."""
    source = layout.placements[axis]
    kind = KINDS.get((source.code[0], to.code[0]))
    split_to_other = kind == "addends" and isinstance(source, SPLITS) and to != Partial()
    return None if kind is None or split_to_other or not _adjoins(layout, axis, to) else kind


@lru_cache(maxsize=65_536)
def _most_held(layout: MeshLayout, shape: Shape) -> int:
    """Elements of the largest part: that of the first rank."""
    return math.prod(layout.local_shape(shape, layout.mesh.ranks[0]))


def _adjoins(layout: MeshLayout, axis: int, to: AxisPlacement) -> bool:
    """Whether the ranks along an axis hold between them what they need: it is the innermost split of the dim that it
    leaves, and of the dim to which it goes.
    """
    return all(
        not isinstance(state.placements[axis], SPLITS) or _is_innermost(state, axis)
        for state in (layout, with_placement(layout, axis, to))
    )


@lru_cache(maxsize=16_384)
def _is_innermost(layout: MeshLayout, axis: int) -> bool:
    here = layout.placements[axis]
    assert isinstance(here, SPLITS)
    dims = [p.dim for p in layout.placements if isinstance(p, SPLITS)]
    if dims.count(here.dim) == 1:
        return True
    try:
        return layout.dims(max(dims) + 1)[here.dim][-1] == layout.mesh.names[axis]
    except LayoutError:  # no form by dims: split after axes to its right
        right = layout.placements[axis + 1 :]
        return not any(isinstance(p, SPLITS) and p.dim == here.dim for p in right)


# ---- planners ----


def redistribution(
    src: MeshLayout, dst: MeshLayout, shape: Shape, planner: str = "torch", *, copies_as_addends: bool = False
) -> tuple[MeshStep, ...]:
    """The steps from one layout to the other.

    shape    of the tensor
    planner  "torch", "cheapest", "by dims" or "gspmd": see above
    copies_as_addends  a copy may become an addend, as operators take it who add it to addends

    Raises LayoutError for layouts over two meshes, and where no steps lead there (to a pending max, say).
    """
    src, dst = src.on(len(shape)), dst.on(len(shape))
    if src.mesh != dst.mesh:
        allowed = "Two layouts over one mesh"
        raise LayoutError(f"from {src.mesh} to {dst.mesh}", where="redistribute", allowed=allowed)
    for here, there in zip(src.placements, dst.placements, strict=True):
        fits = isinstance(here, Replicate) if copies_as_addends else isinstance(here, Shard) and there == Partial()
        if isinstance(there, Partial) and here != there and not fits:
            allowed = "Shard to Partial('sum'), or the same Partial"
            raise LayoutError(
                f"{here} to {there}", where="redistribute", allowed=allowed, hint="A copy is not an addend"
            )
    return _planned(src, dst, tuple(shape), planner)


@lru_cache(maxsize=16_384)
def _planned(src: MeshLayout, dst: MeshLayout, shape: Shape, planner: str) -> tuple[MeshStep, ...]:
    strided = any(isinstance(p, StridedShard) for p in (*src.placements, *dst.placements))
    if planner == "by dims":
        steps = tuple(_by_dims(src, dst))
    elif planner == "gspmd":
        steps = _gspmd(src, dst)
    elif planner == "torch" and not strided:
        steps = tuple(_greedy(src, dst))
    else:
        steps = _least(src, dst, lambda step: _price(step, shape, planner))
    return steps


def _by_dims(src: MeshLayout, dst: MeshLayout) -> Iterator[MeshStep]:
    now = src

    def can(axis: int, to: AxisPlacement) -> bool:
        try:
            return bool(MeshStep(now, axis, to).kind)
        except LayoutError:
            return False

    while now != dst:
        differ = [a for a in range(now.mesh.ndim) if now.placements[a] != dst.placements[a]]
        ways = [(a, Replicate()) for a in differ if isinstance(now.placements[a], Partial)]
        ways += [(a, dst.placements[a]) for a in differ if now.placements[a] == Replicate()]
        splits = [a for a in differ if isinstance(now.placements[a], Shard)]
        ways += [(a, dst.placements[a]) for a in splits if isinstance(dst.placements[a], Shard)]
        ways += sorted(((a, Replicate()) for a in splits), key=lambda way: now.placements[way[0]].dim)  # type: ignore[union-attr]
        way = next((way for way in ways if can(*way)), None)
        if way is None:  # of what an axis to the right cuts first nothing is known
            allowed = "Dims that their axes cut from left to right"
            raise LayoutError(f"{now} to {dst}", where="redistribute", allowed=allowed)
        yield (step := MeshStep(now, *way))
        now = step.after


def _gspmd(src: MeshLayout, dst: MeshLayout) -> tuple[MeshStep, ...]:
    """What is pending is reduced, where the axes to its left are used; then slices, or the gathers and exchanges that
    XLA is known to send: one axis changes, innermost of its dim, and the axes to its left are split; or all that is
    split is gathered, whose dims ascend. Compared with XLA (JAX 0.10, on a CPU) for all layouts of a matrix over (2, 4)
    and (4, 2); in the other cases it sends permutations, and gathers over all axes.
    """
    steps, now = [], src
    for axis, placement in enumerate(src.placements):
        if isinstance(placement, Partial) and dst.placements[axis] != placement:
            steps.append(MeshStep(now, axis, Replicate()))
            now = steps[-1].after
    here, there = now.placements, dst.placements
    reduced = [step.axis for step in steps]
    unused = [
        a for a, p in enumerate(here) if isinstance(p, Replicate) and a not in reduced and a < max(reduced, default=0)
    ]
    changed = [axis for axis in range(len(here)) if here[axis] != there[axis]]
    splits = [p for p in here if isinstance(p, Shard)]
    innermost = all(
        not any(isinstance(p, Shard) and p in (here[axis], there[axis]) for p in here[axis + 1 :]) for axis in changed
    )
    known = innermost and all(isinstance(here[axis], Replicate) for axis in changed)
    if len(changed) == 1 and isinstance(source := here[axis := changed[0]], Shard):
        known = innermost and not any(isinstance(p, Replicate) for p in here[:axis])
        if isinstance(to := there[axis], Shard):
            known &= to.dim > source.dim or source not in here[:axis]
    if changed and all(isinstance(p, Replicate) for p in there):
        whole = here[: len(splits)] == tuple(splits)
        known = known or whole and all(a.dim < b.dim for a, b in itertools.pairwise(splits))
    if not known or unused:
        raise LayoutError(f"{src} to {dst}", where="redistribute", allowed="Moves whose messages XLA is known to send")
    return (*steps, *_greedy(now, dst))


def _greedy(src: MeshLayout, dst: MeshLayout) -> Iterator[MeshStep]:
    now = src
    if any(isinstance(p, SPLITS) for p in src.placements):
        for axis in reversed(range(src.mesh.ndim)):
            to = dst.placements[axis]
            if isinstance(to, SPLITS):
                outer = [
                    [isinstance(p, SPLITS) and p.dim == to.dim for p in layout.placements[:axis]]
                    for layout in (now, dst)
                ]
                to = to if outer[0] == outer[1] else Replicate()
            if now.placements[axis] != to:
                yield (step := MeshStep(now, axis, to))
                now = step.after
    for axis in range(src.mesh.ndim):
        if now.placements[axis] != dst.placements[axis]:
            yield (step := MeshStep(now, axis, dst.placements[axis]))
            now = step.after


def _least(src: MeshLayout, dst: MeshLayout, price: Callable[[MeshStep], float]) -> tuple[MeshStep, ...]:
    """The cheapest steps, of equally cheap ones the fewest (Dijkstra over what the axes do on the way)."""
    choices = [_on_the_way(src, dst, axis) for axis in range(src.mesh.ndim)]
    number = itertools.count()
    waiting: list[tuple[float, int, int, MeshLayout, tuple[MeshStep, ...]]] = [(0.0, 0, next(number), src, ())]
    done: set[MeshLayout] = set()
    while waiting:
        cost, _, _, now, steps = heapq.heappop(waiting)
        if now == dst:
            return steps
        if now in done:
            continue
        done.add(now)
        for axis, placements in enumerate(choices):
            for to in placements:
                step = MeshStep(now, axis, to)
                if to != now.placements[axis] and possible(step) and _wanted(step, dst):
                    total = cost + price(step)
                    heapq.heappush(waiting, (total, len(steps) + 1, next(number), step.after, (*steps, step)))
    raise LayoutError(f"from [{src.code}] to [{dst.code}]", where="redistribute", allowed="Steps as listed in its help")


def _on_the_way(src: MeshLayout, dst: MeshLayout, axis: int) -> list[AxisPlacement]:
    """What an axis may do between the two layouts: what it does in either, nothing, or split a dim that one splits."""
    dims = sorted({p.dim for layout in (src, dst) for p in layout.placements if isinstance(p, SPLITS)})
    return list(dict.fromkeys((dst.placements[axis], src.placements[axis], Replicate(), *map(Shard, dims))))


def possible(step: MeshStep) -> bool:
    """Whether a step can be taken."""
    return _kind(step.before, step.axis, step.to) is not None


def _wanted(step: MeshStep, dst: MeshLayout) -> bool:
    """Whether a step on the way does not take a copy for an addend, except where `dst` asks for it."""
    return not isinstance(step.to, Partial) or step.to == dst.placements[step.axis]


def _price(step: MeshStep, shape: Shape, planner: str) -> float:
    elements = step.sent_elements(shape)
    if planner == "cheapest" or not elements:
        return elements
    size = _most_held(step.before, shape) * 4 / GIB
    return torch_step(step.source, step.to, step.before.mesh.shape[step.axis], size)[0]


# ---- PyTorch's prices ----

BANDWIDTH, HOP_US, START_US, GIB = 87.7, 0.6, 6.6, 2.0**30  # GB/s and microseconds within a host, of its ring model


def ring_us(kind: str, size_gib: float, ranks: int) -> float:
    """PyTorch's time of a collective, in microseconds: start, hops, and bytes by a ring (an all_reduce has twice as
    many hops). all_gather: of the gathered result.
    """
    hops = 2 * (ranks - 1) if kind == "all_reduce" else ranks - 1
    return START_US + hops * HOP_US + size_gib * hops / ranks / BANDWIDTH * 1e6


def torch_step(source: AxisPlacement, to: AxisPlacement, ranks: int, size_gib: float) -> tuple[float, float]:
    """(microseconds, GiB of a rank's part afterwards) of a step, as PyTorch 2.14 prices it where it chooses how an
    operator runs: an all_to_all as a gather and a little more; slices and copies taken for addends cost nothing; from
    a split nothing leads to a pending sum.
    """
    if isinstance(source, SPLITS):
        if isinstance(to, Partial):
            return math.inf, size_gib
        if isinstance(to, Replicate):
            return ring_us("all_gather", size_gib * ranks, ranks), size_gib * ranks
        return ring_us("all_gather", size_gib, ranks) + 1.0, size_gib
    if isinstance(source, Partial):
        if isinstance(to, Partial):
            return math.inf, size_gib
        if isinstance(to, Replicate):
            return ring_us("all_reduce", size_gib, ranks), size_gib
        return ring_us("reduce_scatter", size_gib, ranks), size_gib / ranks
    return 0.0, size_gib / ranks if isinstance(to, SPLITS) else size_gib
