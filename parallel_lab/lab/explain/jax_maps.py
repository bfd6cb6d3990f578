"""`shard_map` and `vmap` of JAX: functions of what ranks, or examples, have of their own; and their collectives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...layout.mesh_layout import MeshLayout
from ...nn.tensor.dtensor_parts import Parts, implicit_replication, move
from .jax_arrays import Sharding, Spec, laid, leaves, mapped
from .values import NotRead
from .world import layout_of


def shard_map(
    front: Any, of: Any = None, mesh: Any = None, in_specs: Any = None, out_specs: Any = None, **kw: Any
) -> Any:
    """A function that each rank runs on its own parts."""
    if of is None:
        return lambda made: shard_map(front, made, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **kw)
    if more := set(kw) - {"check_vma", "check_rep"}:
        raise NotRead(f"shard_map with {', '.join(sorted(more))} is not read")
    checks = (
        False not in kw.values()
    )  # the gradient of what all ranks have alike is then a sum, without being asked for

    def run(*args: Any) -> Any:
        over, world = mesh or front.known_mesh(), front.world

        def entered(x: Any, spec: Any) -> Any:
            if not isinstance(x, Parts) or not isinstance(spec, Spec):
                return x
            if front.typed and (
                spec.layout(over, x.ndim).dims(x.ndim) != (((),) * x.ndim if x.alone else x.layout.dims(x.ndim))
            ):
                raise NotRead("refused: in_specs on explicit axes that are not those of the input")
            x = laid(front, x, Sharding(over, spec))
            copies = tuple(n for n in over.names if n not in {a for d in x.layout.dims(len(x.shape)) for a in d})

            def rule(g: Parts) -> Any:
                whole = _sent(front, "all_reduce", copies, g, g.shape, "of a copy") if copies else g
                return world.tensor(x.shape, g.dtype, x.layout, made_of=(whole,))

            return world.through("shard_map", x, world.own(x), rule)

        def left(x: Any, spec: Any) -> Any:
            if not isinstance(x, Parts) or not isinstance(spec, Spec):
                return x
            layout = spec.layout(over, len(x.shape))
            cuts = [math.prod(over.axis_size(a) for a in axes) for axes in layout.dims(len(x.shape))]
            whole = [n * cut for n, cut in zip(x.shape, cuts, strict=True)]
            made = world.tensor(whole, x.dtype, layout, made_of=(x,))

            def rule(g: Any) -> Any:
                return world.own(g if g.alone else move(g, layout, "gradient of shard_map"))

            return world.through("shard_map", x, made, rule)

        specs = in_specs if isinstance(in_specs, (tuple, list)) else (in_specs,) * len(args)
        outer, front.manual = front.manual, over
        before, front.sums_inside = front.sums_inside, checks
        try:
            given = [mapped(entered, a, s) for a, s in zip(args, specs, strict=True)]
            with implicit_replication(False):
                out = front.reader.call(of, given, {})
            return mapped(left, out, out_specs)
        finally:
            front.manual, front.sums_inside = outer, before

    return run


def vmap(front: Any, of: Any, in_axes: Any = 0, out_axes: Any = 0, **kw: Any) -> Any:
    """jax.vmap where no other dim than the mapped one is split: a rank has examples, and copies of the rest."""

    def run(*args: Any) -> Any:
        world, each = front.world, in_axes if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args)
        if len(each) != len(args) or any(a not in (None, 0) for a in each) or out_axes != 0 or kw:
            raise NotRead("vmap over another dim than the first is not read")
        many = [x for a, tree in zip(each, args, strict=True) if a == 0 for x in leaves(tree) if isinstance(x, Parts)]
        splits = {x.layout.dims(x.ndim)[0] for x in many if not x.alone}
        placed = [x for tree in args for x in leaves(tree) if isinstance(x, Parts) and not x.alone]
        mesh = placed[0].mesh if placed else None
        if len(splits) > 1 or any(
            any(x.layout.dims(x.ndim)[1 if any(x is m for m in many) else 0 :]) or x.layout.pending for x in placed
        ):
            raise NotRead("vmap of arrays that are split along other dims is not read")
        axes = next(iter(splits), ())
        size = many[0].shape[0] if many else 0

        def entered(x: Any, axis: Any) -> Any:
            if not isinstance(x, Parts):
                return x

            def back(g: Any) -> Any:
                if axis is None and axes:
                    g = _sent(front, "all_reduce", axes, g, g.shape, "of what all examples share")
                return world.tensor(x.shape, g.dtype, layout_of(x), made_of=(g,))

            made = world.tensor(x.shape if axis is None else x.shape[1:], x.dtype, made_of=(x,))
            return world.through("vmap", x, made, back)

        def left(x: Any) -> Any:
            if not isinstance(x, Parts):
                return x
            if not x.alone:
                raise NotRead("vmap of a function that uses other arrays that are split is not read")
            to = MeshLayout.from_dims(mesh, (axes, *((),) * x.ndim)) if mesh is not None else None
            made = world.tensor((size, *x.shape), x.dtype, to, made_of=(x,))
            return world.through("vmap", x, made, lambda g: world.tensor(x.shape, g.dtype, made_of=(g,)))

        with implicit_replication(False):
            given = [mapped(lambda x, a=a: entered(x, a), tree) for a, tree in zip(each, args, strict=True)]
            out = front.reader.call(of, given, {})
        return mapped(left, out)

    return run


def remat(front: Any, of: Any = None, **kw: Any) -> Any:
    """jax.checkpoint of what sends nothing."""
    if of is None:
        return lambda made: remat(front, made, **kw)

    def run(*args: Any, **kwargs: Any) -> Any:
        begun = len(front.world.messages)
        out = front.reader.call(of, list(args), kwargs)
        if len(front.world.messages) > begun:
            raise NotRead("what jax.checkpoint sends again is not read")
        return out

    return run


def axes_of(front: Any, name: Any) -> tuple[str, ...]:
    """The axes that a collective names. Raises NotRead outside of shard_map."""
    names = (name,) if isinstance(name, str) else tuple(name)
    if front.manual is None:
        raise NotRead("a collective outside of shard_map")
    return names


def count_of(front: Any, names: Sequence[str]) -> int:
    """Ranks along some axes of the mesh that shard_map runs over."""
    assert front.manual is not None
    return math.prod(front.manual.axis_size(n) for n in names)


def _sent(
    front: Any, kind: str, names: Sequence[str], x: Parts, shape: Sequence[int], reason: str, reduce: str = "sum"
) -> Any:
    sent = front.world.send(
        kind, ",".join(names), x, reduce if kind in ("all_reduce", "reduce_scatter") else "", reason
    )
    return front.world.tensor(shape, x.dtype, made_of=(x,), sent=sent)


def _collective(
    front: Any,
    kind: str,
    name: Any,
    x: Any,
    shape: Callable[[Parts, int], Sequence[int]],
    back: str,
    reduce: str = "sum",
) -> Any:
    """A collective on every leaf, with the one that carries its gradient; back "": its gradient is what arrives."""
    names, checks = axes_of(front, name), front.sums_inside

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, Parts):  # psum(1, axis) counts ranks
            return leaf * count_of(front, names)
        made = _sent(front, kind, names, leaf, shape(leaf, count_of(front, names)), "asked for", reduce)

        def rule(g: Parts) -> Any:
            if not back and not checks:
                raise NotRead("the gradient of a sum in shard_map with check_vma=False is not read")
            return _sent(front, back, names, g, leaf.shape, f"gradient of {kind}") if back else g

        return front.world.through(kind, leaf, made, rule)

    return mapped(one, x)


def _times(x: Parts, dim: int, n: int, tiled: bool) -> tuple[int, ...]:
    if not tiled:
        return (*x.shape[:dim], n, *x.shape[dim:])
    return tuple(size * n if d == dim else size for d, size in enumerate(x.shape))


def _cut(x: Parts, dim: int, n: int, tiled: bool) -> tuple[int, ...]:
    kept = x.shape[dim] // n if tiled else 0
    return tuple(kept if d == dim else size for d, size in enumerate(x.shape) if d != dim or tiled)


def psum(front: Any, x: Any, axis_name: Any, reduce: str = "sum") -> Any:
    """Sums, and maxima, over axes: the gradient of what all have is what arrives."""
    return _collective(front, "all_reduce", axis_name, x, lambda a, n: a.shape, "", reduce)


def all_gather(front: Any, x: Any, axis_name: Any, *, axis: int = 0, tiled: bool = False, **kw: Any) -> Any:
    """jax.lax.all_gather"""
    return _collective(front, "all_gather", axis_name, x, lambda a, n: _times(a, axis, n, tiled), "reduce_scatter")


def psum_scatter(
    front: Any, x: Any, axis_name: Any, *, scatter_dimension: int = 0, tiled: bool = False, **kw: Any
) -> Any:
    """jax.lax.psum_scatter"""
    return _collective(
        front, "reduce_scatter", axis_name, x, lambda a, n: _cut(a, scatter_dimension, n, tiled), "all_gather"
    )


def all_to_all(
    front: Any, x: Any, axis_name: Any, split_axis: int, concat_axis: int, *, tiled: bool = False, **kw: Any
) -> Any:
    """jax.lax.all_to_all, tiled."""

    def shape(a: Parts, n: int) -> Sequence[int]:
        sizes = list(a.shape)
        sizes[split_axis] //= n
        sizes[concat_axis] *= n
        return sizes

    if not tiled:
        raise NotRead("all_to_all without tiled=True is not read")
    return _collective(front, "all_to_all", axis_name, x, shape, "all_to_all")


def varied(front: Any, x: Any, *axes: Any, to: str = "varying") -> Any:
    """jax.lax.pcast, pvary: what all have alike counts as each rank's own, whose gradient is a sum."""
    if to != "varying" or any(isinstance(leaf, Parts) and leaf.requires_grad for leaf in leaves(x)):
        raise NotRead("pcast to another type, or of what needs a gradient, is not read")
    return x


def ppermute(front: Any, x: Any, axis_name: Any, perm: Any) -> Any:
    """jax.lax.ppermute"""
    return _collective(front, "permute", axis_name, x, lambda a, n: a.shape, "permute")
