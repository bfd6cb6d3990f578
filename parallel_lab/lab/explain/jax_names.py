"""What names of JAX mean: meshes and shardings, `jit`, `grad`, `shard_map` and its collectives.

Under `jit` the compiler places what nobody places: here operators take the layouts with the fewest bytes and nothing
stays pending ("reduce_at_once"); what no result needs is not sent, and what is moved twice is sent once. In `shard_map`
messages are those that are written, one for each call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...layout.device_mesh import DeviceMesh
from ...layout.mesh_layout import MeshLayout
from .front import METHODS, PYTHON, Front, Table, arange, cast_to, filled, from_list, like, op, ours
from .reading import Instance, Name, NotRead
from .symbolic import Message, Sym
from .torch_names import OPERATORS, device_mesh, made_mesh, permute, reduction


@dataclass(frozen=True)
class Spec:
    """PartitionSpec: per dim the axes that split it, outer first."""

    entries: tuple[Any, ...]

    def layout(self, mesh: DeviceMesh, ndim: int) -> MeshLayout:
        """As placements on a mesh."""
        if len(self.entries) > ndim:
            raise NotRead(f"refused: {len(self.entries)} entries for an array of {ndim} dims")
        dims = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in self.entries]
        return MeshLayout.from_dims(mesh, (*dims, *((),) * (ndim - len(dims))))


@dataclass(frozen=True)
class Sharding:
    """NamedSharding."""

    mesh: DeviceMesh
    spec: Spec


def leaves(tree: Any) -> list[Any]:
    """The leaves of nested tuples, lists and dicts."""
    if isinstance(tree, Instance):  # of a class with fields
        tree = tree.names
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, (list, tuple)):
        return [leaf for value in tree for leaf in leaves(value)]
    return [tree]


def mapped(change: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The tree with its leaves changed; others: trees alike, or a leaf for all below."""
    if isinstance(tree, Instance):
        others = tuple(o.names if isinstance(o, Instance) else o for o in others)
        return Instance(tree.of, mapped(change, tree.names, *others), tree.kind)
    if isinstance(tree, dict):
        return {k: mapped(change, v, *(o[k] if isinstance(o, dict) else o for o in others)) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        made = [
            mapped(change, v, *(o[i] if isinstance(o, (list, tuple)) and len(o) == len(tree) else o for o in others))
            for i, v in enumerate(tree)
        ]
        return tuple(made) if isinstance(tree, tuple) else made
    return change(tree, *others)


# ---- meshes and shardings ----


def mesh(front: JaxFront, devices: Any, axis_names: Any = (), **kw: Any) -> DeviceMesh:
    """Mesh(devices, axis_names)"""
    names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
    return device_mesh(front, "", devices, mesh_dim_names=names)


def make_mesh(front: JaxFront, axis_shapes: Any, axis_names: Any, **kw: Any) -> DeviceMesh:
    """jax.make_mesh"""
    return made_mesh(front, DeviceMesh(tuple(axis_shapes), tuple(axis_names)))


def laid(front: JaxFront, x: Any, how: Any) -> Any:
    """An array in a layout that is asked for; None: as it is."""
    if not isinstance(x, Sym) or how is None:
        return x
    if isinstance(how, Spec):
        how = Sharding(front.known_mesh(), how)
    if not isinstance(how, Sharding):
        return x
    layout = how.spec.layout(how.mesh, len(x.shape))
    if x.layout is None:
        made = front.world.tensor(x.shape, str(x.dtype), layout)
        front.world.note("placed", layout.code, made)
        return front.world.through("placed", x, made, lambda g: g)
    return front.world.redistribute(x, layout, "a sharding that is asked for")


def device_put(front: JaxFront, x: Any, device: Any = None, **kw: Any) -> Any:
    """An array's copy where it is wanted: the host sends slices, not ranks."""
    return mapped(lambda a, s: laid(front, a, s), x, device)


# ---- jit and grad ----


def jit(front: JaxFront, of: Any = None, *, in_shardings: Any = None, out_shardings: Any = None, **kw: Any) -> Any:
    """A function that is compiled: its arguments and results are placed, dead messages dropped."""
    if of is None:
        return lambda made: jit(front, made, in_shardings=in_shardings, out_shardings=out_shardings)

    def run(*args: Any, **kwargs: Any) -> Any:
        outer, front.compiled = front.compiled, True
        begun = len(front.world.events)
        args = mapped(lambda a, s: laid(front, a, s), tuple(args), in_shardings)
        try:
            out = front.reader.call(of, list(args), kwargs)
            out = mapped(lambda a, s: laid(front, a, s), out, out_shardings)
        finally:
            front.compiled = outer
        if not outer:
            needed = front.needed([x for x in leaves(out) if isinstance(x, Sym)])
            events = front.world.events
            events[begun:] = [e for e in events[begun:] if not isinstance(e, Message) or id(e) in needed]
        return out

    return run


def grad(front: JaxFront, of: Any, argnums: Any = 0, has_aux: bool = False, *, value: bool = False) -> Any:
    """jax.grad, jax.value_and_grad"""

    def run(*args: Any, **kwargs: Any) -> Any:
        numbers = argnums if isinstance(argnums, (tuple, list)) else (argnums,)

        def watched(x: Any) -> Any:
            if not isinstance(x, Sym) or x.dtype.kind in "iub":
                return x
            made = front.world.tensor(x.shape, str(x.dtype), x.layout, requires_grad=True)
            made.made_of = (x,)
            return made

        args = tuple(mapped(watched, a) if i in numbers else a for i, a in enumerate(args))
        out = front.reader.call(of, list(args), kwargs)
        root = out[0] if has_aux else out
        wanted = [x for i in numbers for x in leaves(args[i]) if isinstance(x, Sym)]
        found = dict(zip(map(id, wanted), front.world.backward(root, wrt=wanted), strict=True))
        grads = [mapped(lambda x: found[id(x)] if found.get(id(x)) is not None else x, args[i]) for i in numbers]
        given = tuple(grads) if isinstance(argnums, (tuple, list)) else grads[0]
        return (out, given) if value else (given, out[1]) if has_aux else given

    return run


# ---- shard_map ----


def shard_map(
    front: JaxFront, of: Any = None, mesh: Any = None, in_specs: Any = None, out_specs: Any = None, **kw: Any
) -> Any:
    """A function that each rank runs on its own parts."""
    if of is None:
        return lambda made: shard_map(front, made, mesh=mesh, in_specs=in_specs, out_specs=out_specs)

    def run(*args: Any) -> Any:
        over, world = mesh or front.known_mesh(), front.world

        def entered(x: Any, spec: Any) -> Any:
            if not isinstance(x, Sym) or not isinstance(spec, Spec):
                return x
            x = laid(front, x, Sharding(over, spec))
            copies = tuple(n for n in over.names if n not in {a for d in x.layout.dims(len(x.shape)) for a in d})

            def rule(g: Sym) -> Sym:
                whole = _sent(front, "all_reduce", copies, g, g.shape, "of a copy") if copies else g
                made = world.tensor(x.shape, str(g.dtype), x.layout)
                made.made_of = (whole,)
                return made

            return world.through("shard_map", x, world.own(x), rule)

        def left(x: Any, spec: Any) -> Any:
            if not isinstance(x, Sym) or not isinstance(spec, Spec):
                return x
            layout = spec.layout(over, len(x.shape))
            cuts = [math.prod(over.axis_size(a) for a in axes) for axes in layout.dims(len(x.shape))]
            made = world.tensor([n * cut for n, cut in zip(x.shape, cuts, strict=True)], str(x.dtype), layout)
            return world.through("shard_map", x, made, lambda g: world.own(world.moved(g, layout, "of shard_map")))

        specs = in_specs if isinstance(in_specs, (tuple, list)) else (in_specs,) * len(args)
        outer, front.manual = front.manual, over
        try:
            out = front.reader.call(of, [mapped(entered, a, s) for a, s in zip(args, specs, strict=True)], {})
            return mapped(left, out, out_specs)
        finally:
            front.manual = outer

    return run


def _axes(front: JaxFront, name: Any) -> tuple[str, ...]:
    names = (name,) if isinstance(name, str) else tuple(name)
    if front.manual is None:
        raise NotRead("a collective outside of shard_map")
    return names


def _count(front: JaxFront, names: Sequence[str]) -> int:
    assert front.manual is not None
    return math.prod(front.manual.axis_size(n) for n in names)


def _sent(
    front: JaxFront, kind: str, names: Sequence[str], x: Sym, shape: Sequence[int], reason: str, reduce: str = "sum"
) -> Sym:
    made = front.world.tensor(shape, str(x.dtype), x.layout)
    reduces = reduce if kind in ("all_reduce", "reduce_scatter") else ""
    message: Message = front.world.send(kind, ",".join(names), x.shape, x.dtype, reduces, reason)
    made.made_of, made.sent = (x,), [message]
    return made


def _collective(
    front: JaxFront,
    kind: str,
    name: Any,
    x: Any,
    shape: Callable[[Sym, int], Sequence[int]],
    back: str,
    reduce: str = "sum",
) -> Any:
    """A collective on every leaf, with the one that carries its gradient; back "": its gradient is what arrives."""
    names = _axes(front, name)

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, Sym):  # psum(1, axis) counts ranks
            return leaf * _count(front, names)
        made = _sent(front, kind, names, leaf, shape(leaf, _count(front, names)), "asked for", reduce)

        def rule(g: Sym) -> Sym:
            return _sent(front, back, names, g, leaf.shape, f"gradient of {kind}") if back else g

        return front.world.through(kind, leaf, made, rule)

    return mapped(one, x)


def _times(x: Sym, dim: int, n: int, tiled: bool) -> tuple[int, ...]:
    if not tiled:
        return (*x.shape[:dim], n, *x.shape[dim:])
    return tuple(size * n if d == dim else size for d, size in enumerate(x.shape))


def _cut(x: Sym, dim: int, n: int, tiled: bool) -> tuple[int, ...]:
    kept = x.shape[dim] // n if tiled else 0
    return tuple(kept if d == dim else size for d, size in enumerate(x.shape) if d != dim or tiled)


def psum(front: JaxFront, x: Any, axis_name: Any, reduce: str = "sum") -> Any:
    """Sums, and maxima, over axes: the gradient of what all have is what arrives."""
    return _collective(front, "all_reduce", axis_name, x, lambda a, n: a.shape, "", reduce)


def all_gather(front: JaxFront, x: Any, axis_name: Any, *, axis: int = 0, tiled: bool = False, **kw: Any) -> Any:
    """jax.lax.all_gather"""
    return _collective(front, "all_gather", axis_name, x, lambda a, n: _times(a, axis, n, tiled), "reduce_scatter")


def psum_scatter(
    front: JaxFront, x: Any, axis_name: Any, *, scatter_dimension: int = 0, tiled: bool = False, **kw: Any
) -> Any:
    """jax.lax.psum_scatter"""
    return _collective(
        front, "reduce_scatter", axis_name, x, lambda a, n: _cut(a, scatter_dimension, n, tiled), "all_gather"
    )


def all_to_all(
    front: JaxFront, x: Any, axis_name: Any, split_axis: int, concat_axis: int, *, tiled: bool = False, **kw: Any
) -> Any:
    """jax.lax.all_to_all, tiled."""

    def shape(a: Sym, n: int) -> Sequence[int]:
        sizes = list(a.shape)
        sizes[split_axis] //= n
        sizes[concat_axis] *= n
        return sizes

    if not tiled:
        raise NotRead("all_to_all without tiled=True is not read")
    return _collective(front, "all_to_all", axis_name, x, shape, "all_to_all")


def ppermute(front: JaxFront, x: Any, axis_name: Any, perm: Any) -> Any:
    """jax.lax.ppermute"""
    return _collective(front, "permute", axis_name, x, lambda a, n: a.shape, "permute")


# ---- names ----

_CONSTRAINTS = ("with_sharding_constraint", "reshard")
_MAPS = ("tree.map", "tree_map")
_SUMS = {"psum": "sum", "pmean": "sum", "pmax": "max", "pmin": "min"}


def softmax(front: JaxFront, x: Sym, axis: Any = -1, **kw: Any) -> Sym:
    """In parts, as jax.nn writes it: a split dim costs messages of its sums, not of the array."""
    high = op("reduce_max")(x, axis=axis, keep_dims=True)
    parts = op("exp")(op("sub")(x, front.world.tensor(high.shape, str(high.dtype), high.layout, made_of=(high,))))
    return op("div")(parts, op("reduce_sum")(parts, axis=axis, keep_dims=True))


def variance(front: JaxFront, x: Sym, axis: Any = None, keepdims: bool = False, **kw: Any) -> Sym:
    """Mean of the squares of what is left of x without its mean: two messages, if its dim is split."""
    mean = NUMPY["mean"](front, x, axis=axis, keepdims=True)
    return NUMPY["mean"](front, op("square")(op("sub")(x, mean)), axis=axis, keepdims=keepdims)


def scan(front: JaxFront, of: Any, init: Any, xs: Any = None, length: Any = None, **kw: Any) -> Any:
    """One turn of the loop: a compiled loop's text has its messages once."""
    first = mapped(lambda a: op("squeeze")(_cut_to(front, a, 1, 0), axis=0) if isinstance(a, Sym) else a, xs)
    turns = length or next((a.shape[0] for a in leaves(xs) if isinstance(a, Sym)), 1)
    carry, out = front.reader.call(of, [init, first], {})
    many = lambda a: front.world.tensor((turns, *a.shape), str(a.dtype), made_of=(a,)) if isinstance(a, Sym) else a  # noqa: E731
    return carry, mapped(many, out)


def _cut_to(front: JaxFront, x: Sym, size: int, axis: int) -> Sym:
    rest = x.shape[axis] - size
    return op("split_parts")(x, axis=axis, sizes=(size, rest))[0] if rest else x


def drawn(front: JaxFront, key: Any, *args: Any, dtype: Any = None, shape: Any = None, **kw: Any) -> Sym:
    """jax.random.normal(key, shape)"""
    return filled(front, next((a for a in args if isinstance(a, tuple)), shape or ()), dtype=dtype)


_RENAMED = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "power": "power",
    "matmul": "matmul",
    "dot": "matmul",
}
NUMPY: Table = {
    **OPERATORS,
    **{name: ours(of) for name, of in _RENAMED.items()},
    "max": reduction("max"),
    "min": reduction("min"),
    "transpose": lambda front, x, *axes, **kw: permute(front, x, *axes, *kw.values()),
    "var": variance,
    "concatenate": lambda front, xs, axis=0: op("concat")(*xs, axis=axis),
    "expand_dims": lambda front, x, axis: op("expand_dims")(x, axis),
    **dict.fromkeys(("ones", "zeros", "empty"), filled),
    "full": lambda front, shape, value, **kw: filled(front, shape, **kw),
    "arange": arange,
    **{
        name: lambda front, x, *args, **kw: x if isinstance(x, Sym) else from_list(front, x)
        for name in ("array", "asarray")
    },
    **{f"{name}_like": like for name in ("ones", "zeros")},
}
_METHODS = ("sum", "mean", "max", "min", "dot", "reshape", "transpose", "squeeze", "flatten", "swapaxes")
_NN = ("relu", "gelu", "silu", "tanh", "sigmoid", "softplus")


class JaxFront(Front):
    """JAX."""

    calls: ClassVar[Table] = {
        **PYTHON,
        **{f"{room}.{name}": entry for room in ("numpy", "np") for name, entry in NUMPY.items()},
        **{f"lax.{name}": NUMPY[name] for name in ("add", "mul", "dot", "exp", "tanh", "rsqrt")},
        **{f"nn.{name}": OPERATORS[name] for name in _NN},
        "nn.swish": OPERATORS["silu"],
        "nn.softmax": softmax,
        **{f"random.{name}": drawn for name in ("normal", "uniform", "randint", "truncated_normal")},
        **{f"random.{name}": lambda front, *args, **kw: 0 for name in ("PRNGKey", "key", "fold_in")},
        "random.split": lambda front, key, num=2: [0] * num,
        **{name: lambda front, *args: list(range(front.devices)) for name in ("devices", "local_devices")},
        "create_device_mesh": lambda front, shape, *args, **kw: front.world.tensor(tuple(shape), "int64"),
        "Mesh": mesh,
        "make_mesh": make_mesh,
        **{name: lambda front, over: over for name in ("set_mesh", "use_mesh")},
        "PartitionSpec": lambda front, *entries: Spec(entries),
        "NamedSharding": lambda front, over, spec, **kw: Sharding(over, spec),
        "device_put": device_put,
        **{name: lambda front, x, how: mapped(lambda a, s: laid(front, a, s), x, how) for name in _CONSTRAINTS},
        "jax.jit": jit,
        "jax.grad": grad,
        "value_and_grad": lambda front, of, *args, **kw: grad(front, of, *args, value=True, **kw),
        "shard_map": shard_map,
        **{
            name: lambda front, of, *trees: mapped(lambda *a: front.reader.call(of, list(a), {}), *trees)
            for name in _MAPS
        },
        "tree.leaves": lambda front, tree: leaves(tree),
        **{
            f"lax.{name}": lambda front, x, axis_name, reduce=of: psum(front, x, axis_name, reduce)
            for name, of in _SUMS.items()
        },
        "lax.all_gather": all_gather,
        "lax.psum_scatter": psum_scatter,
        "lax.all_to_all": all_to_all,
        "lax.ppermute": ppermute,
        "lax.scan": scan,
        "lax.fori_loop": lambda front, lower, upper, body, init: front.reader.call(body, [lower, init], {}),
        **{name: lambda front, of=None, **kw: of or (lambda made: made) for name in ("jax.checkpoint", "jax.remat")},
        "dynamic_slice_in_dim": lambda front, x, start, size, axis=0: _cut_to(front, x, size, axis),
        "config.update": lambda front, *args: None,
        "lax.axis_index": lambda front, name: front.world.tensor((), "int32"),
        "lax.axis_size": lambda front, name: _count(front, _axes(front, name)),
        "lax.stop_gradient": lambda front, x: front.world.tensor(x.shape, str(x.dtype), x.layout, made_of=(x,)),
        "device_count": lambda front, *args: front.devices,
    }
    methods: ClassVar[dict[type, Table]] = {
        **METHODS,
        Sym: {**{name: NUMPY[name] for name in _METHODS}, "astype": cast_to, "block_until_ready": lambda front, x: x},
        DeviceMesh: {"iter": lambda front, over: list(over.names)},
    }
    attributes: ClassVar[dict[type, Table]] = {
        Sym: {
            "shape": lambda front, x: x.shape,
            "ndim": lambda front, x: len(x.shape),
            "size": lambda front, x: math.prod(x.shape),
            "dtype": lambda front, x: str(x.dtype),
            "T": permute,
            "sharding": lambda front, x: Name("sharding"),
        },
        DeviceMesh: {
            "shape": lambda front, over: dict(zip(over.names, over.shape, strict=True)),
            "axis_names": lambda front, over: over.names,
            "devices": lambda front, over: list(over.ranks),
            "size": lambda front, over: over.size,
        },
    }

    def __init__(self, world: Any, devices: int) -> None:
        super().__init__(world, devices)
        self.manual: DeviceMesh | None = None
        self.compiled = False

    def known_mesh(self) -> DeviceMesh:
        """The mesh that a program means when it names none."""
        if not self.meshes:
            raise NotRead("no mesh was made before")
        return self.meshes[-1]

    def needed(self, results: Sequence[Sym]) -> set[int]:
        """The messages without which these results would not be there."""
        found: set[int] = set()
        seen: set[int] = set()
        waiting = list(results)
        while waiting:
            x = waiting.pop()
            if id(x) not in seen:
                seen.add(id(x))
                found |= {id(m) for m in x.sent}
                waiting += x.made_of
        return found
