"""What names of JAX mean: meshes and shardings, `jit`, `grad`, `shard_map` and its collectives.

Under `jit` the compiler places what nobody places: here operators take the layouts with the fewest bytes and nothing
stays pending ("reduce_at_once"); what no result needs is not sent, and what is moved twice is sent once. In `shard_map`
messages are those that are written, one for each call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from ...layout.device_mesh import DeviceMesh
from ...layout.mesh_layout import MeshLayout
from ...nn.tensor.dtensor_parts import Parts
from .front import METHODS, PYTHON, Front, Table, arange, cast_to, filled, from_list, last, like, one_hot, op, ours
from .jax_arrays import Sharding, Spec, laid, leaves, mapped
from .jax_maps import (
    all_gather,
    all_to_all,
    axes_of,
    count_of,
    ppermute,
    psum,
    psum_scatter,
    remat,
    shard_map,
    varied,
    vmap,
)
from .torch_names import OPERATORS, backward, device_mesh, made_mesh, permute, reduction
from .values import Name, NotRead
from .world import Message, layout_of

# ---- meshes and shardings ----


def mesh(front: JaxFront, devices: Any, axis_names: Any = (), **kw: Any) -> DeviceMesh:
    """Mesh(devices, axis_names)"""
    names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
    return typed(front, device_mesh(front, "", devices, mesh_dim_names=names), kw.get("axis_types"), "Auto")


def make_mesh(front: JaxFront, axis_shapes: Any, axis_names: Any, **kw: Any) -> DeviceMesh:
    """jax.make_mesh"""
    made = made_mesh(front, DeviceMesh(tuple(axis_shapes), tuple(axis_names)))
    return typed(front, made, kw.get("axis_types"), "Explicit")


def typed(front: JaxFront, mesh: DeviceMesh, axis_types: Any, default: str) -> DeviceMesh:
    """A mesh whose axes are explicit, which is the default of make_mesh since JAX 0.9, or left to the compiler."""
    kinds = {last(kind) for kind in axis_types} if isinstance(axis_types, (tuple, list)) else {default}
    if len(kinds) > 1 or not kinds <= {"Auto", "Explicit"}:
        raise NotRead("a mesh with axes of several types is not read")
    front.typed |= kinds == {"Explicit"}
    return mesh


def set_mesh(front: JaxFront, mesh: DeviceMesh) -> DeviceMesh:
    """The mesh that arrays lie on from here on"""
    front.explicit |= front.typed
    front.current = mesh
    return mesh


def constrained(front: JaxFront, x: Any, how: Any) -> Any:
    """with_sharding_constraint, on axes that are the compiler's"""
    if front.explicit:
        raise NotRead("refused: with_sharding_constraint on explicit axes: use reshard")
    return mapped(lambda a, s: laid(front, a, s), x, how)


def resharded(front: JaxFront, x: Any, how: Any) -> Any:
    """reshard"""
    front.explicit |= front.typed
    return mapped(lambda a, s: laid(front, a, s), x, how)


def created(make: Callable[..., Any]) -> Callable[..., Any]:
    """What makes an array, with `device`, which may be a sharding."""

    def run(front: JaxFront, *args: Any, device: Any = None, **kw: Any) -> Any:
        made = make(front, *args, **kw)
        front.explicit |= front.typed and device is not None
        return laid(front, made, device) if isinstance(device, (Sharding, Spec)) else made

    return run


def product(name: str) -> Callable[..., Any]:
    """dot, matmul, einsum, with out_sharding"""

    def run(front: JaxFront, *args: Any, out_sharding: Any = None, precision: Any = None, **kw: Any) -> Any:
        before, front.asked = front.asked, front.asked or out_sharding is not None
        try:
            return laid(front, op(name)(*args, **kw), out_sharding)
        finally:
            front.asked = before

    return run


def device_put(front: JaxFront, x: Any, device: Any = None, **kw: Any) -> Any:
    """An array's copy where it is wanted: the host sends slices, not ranks. Its type has explicit axes from here on."""
    front.explicit |= front.typed
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
            front.reduced.clear()
            needed = front.world.needed([x for x in (*leaves(out), *front.looped) if isinstance(x, Parts)])
            events = front.world.events
            events[begun:] = [e for e in events[begun:] if not isinstance(e, Message) or id(e) in needed]
        return out

    return run


def grad(front: JaxFront, of: Any, argnums: Any = 0, has_aux: bool = False, *, value: bool = False) -> Any:
    """jax.grad, jax.value_and_grad"""

    def run(*args: Any, **kwargs: Any) -> Any:
        if front.sums_inside:
            raise NotRead("a gradient inside of shard_map is read with check_vma=False alone")
        numbers = argnums if isinstance(argnums, (tuple, list)) else (argnums,)

        def watched(x: Any) -> Any:
            if not isinstance(x, Parts) or x.dtype.kind in "iub":
                return x
            return x.detach().requires_grad_()

        args = tuple(mapped(watched, a) if i in numbers else a for i, a in enumerate(args))
        out = front.reader.call(of, list(args), kwargs)
        root = out[0] if has_aux else out
        backward(front, root)
        grads = [mapped(lambda x: x if getattr(x, "grad", None) is None else x.grad, args[i]) for i in numbers]
        given = tuple(grads) if isinstance(argnums, (tuple, list)) else grads[0]
        return (out, given) if value else (given, out[1]) if has_aux else given

    return run


# ---- names ----

_MAPS = ("tree.map", "tree_map")
_SUMS = {"psum": "sum", "pmean": "sum", "pmax": "max", "pmin": "min"}


def once(name: str) -> Callable[..., Any]:
    """A reduction; inside jit it is computed once, however often it is written: the compiler finds the same again."""

    def run(front: JaxFront, x: Parts, axis: Any = None, keepdims: bool = False, **kw: Any) -> Any:
        dims = range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        dims = tuple(sorted(d % x.ndim for d in dims)) if x.ndim else ()
        key = name, id(x), dims, repr(kw)
        if not front.compiled or key not in front.reduced:
            front.reduced[key] = x, reduction(name)(front, x, axis=dims or None, **kw)
        made = front.reduced[key][1]
        for dim in dims if keepdims else ():
            made = op("expand_dims")(made, dim)
        return made

    return run


def mean(front: JaxFront, x: Parts, axis: Any = None, keepdims: bool = False, **kw: Any) -> Any:
    """A sum, divided."""
    total = once("sum")(front, x, axis, keepdims, **kw)
    return op("mul")(total, total.size / max(x.size, 1))


def concatenate(front: JaxFront, xs: Any, axis: int = 0) -> Any:
    """Arrays joined along a dim that nothing splits."""
    if any(isinstance(x, Parts) and not x.alone and x.layout.dims(x.ndim)[axis] for x in xs):
        raise NotRead("what XLA sends to join arrays along a split dim is not known")
    return op("concat")(*xs, axis=axis)


def sections(front: JaxFront, x: Parts, parts: Any, axis: int = 0) -> Any:
    """jnp.split: a number of equal parts, or where to cut"""
    n = x.shape[axis]
    cuts = [n // parts * i for i in range(1, parts)] if isinstance(parts, int) else list(parts)
    sizes = [end - begin for begin, end in zip([0, *cuts], [*cuts, n], strict=True)]
    return op("split_parts")(x, axis=axis, sizes=tuple(sizes))


def softmax(front: JaxFront, x: Parts, axis: Any = -1, **kw: Any) -> Any:
    """In parts, as jax.nn writes it: a split dim costs messages of its sums, not of the array."""
    high = op("reduce_max")(x, axis=axis, keep_dims=True)
    parts = op("exp")(op("sub")(x, high.detach()))
    return op("div")(parts, op("reduce_sum")(parts, axis=axis, keep_dims=True))


def log_sum_exp(front: JaxFront, x: Parts, axis: Any = None, keepdims: bool = False, **kw: Any) -> Any:
    """In parts, as `softmax`."""
    high = op("reduce_max")(x, **({} if axis is None else {"axis": axis}), keep_dims=True).detach()
    parts = op("exp")(op("sub")(x, high))
    total = op("log")(reduction("sum")(front, parts, axis=axis, keepdims=keepdims))
    return op("add")(total, high if keepdims else op("reshape")(high, total.shape))


def log_softmax(front: JaxFront, x: Parts, axis: int = -1, **kw: Any) -> Any:
    """x without its log_sum_exp"""
    return op("sub")(x, log_sum_exp(front, x, axis=axis, keepdims=True))


def variance(front: JaxFront, x: Parts, axis: Any = None, keepdims: bool = False, **kw: Any) -> Any:
    """Mean of the squares of what is left of x without its mean: two messages, if its dim is split."""
    return mean(front, op("square")(op("sub")(x, mean(front, x, axis, True))), axis, keepdims)


def turn(front: JaxFront, of: Any, carry: Any, *before: Any, after: Sequence[Any] = (), more: int = 0) -> Any:
    """One turn of a loop: a compiled loop's text has its messages once.  more: further results"""
    world, begun, kept = front.world, len(front.world.events), front.looped

    def entered(x: Any, wanted: bool) -> Any:
        if not isinstance(x, Parts) or x.dtype.kind != "f" or not (wanted or x.requires_grad):
            return x
        start = x if x.requires_grad else x.detach().requires_grad_()
        return world.through("loop", start, x.detach(), lambda g: (kept.append(g), g)[1])

    def left(x: Any, every: tuple[Any, ...]) -> Any:
        def back(g: Any) -> tuple[Any, ...]:
            return tuple(g if y is x else like(front, y) for y in every)

        return world.through("loop", every, x.detach(), back) if any(x is y for y in every) else x

    for wanted in (False, True):  # once more where what is carried has a gradient that the turn before needs
        out = front.reader.call(of, [*before, mapped(lambda x, w=wanted: entered(x, w), carry), *after], {})
        ends = leaves(out[0] if more else out)
        given = [x.requires_grad for x in ends if isinstance(x, Parts)]
        if not any(given) or all(x.requires_grad for x in leaves(carry) if isinstance(x, Parts)) or wanted:
            break
        world.events[begun:] = []
    lie = [[layout_of(x) if isinstance(x, Parts) else None for x in each] for each in (leaves(carry), ends)]
    if lie[0] != lie[1]:
        raise NotRead("a loop whose values lie otherwise after a turn is not read")
    kept += [x for x in ends if isinstance(x, Parts)]
    every = tuple(x for x in kept[-len(ends) :] if isinstance(x, Parts) and x.requires_grad)
    carried = mapped(lambda x: left(x, every), out[0] if more else out)
    return (carried, *out[1:]) if more else carried


def scan(front: JaxFront, of: Any, init: Any, xs: Any = None, length: Any = None, **kw: Any) -> Any:
    """A loop over the first dim of arrays, which nothing splits."""

    def moved(x: Any, to: Callable[[Sequence[Any]], Sequence[Any]], back: Callable[[Sequence[Any]], Any]) -> Any:
        def other(y: Parts, change: Callable[[Sequence[Any]], Sequence[Any]]) -> Any:
            layout = None if y.alone else MeshLayout.from_dims(y.mesh, tuple(change(y.layout.dims(y.ndim))))
            sizes = [n if isinstance(n, int) else turns for n in change(y.shape)]
            return front.world.tensor(sizes, y.dtype, layout, made_of=(y,))

        return front.world.through("scan", x, other(x, to), lambda g: other(g, back)) if isinstance(x, Parts) else x

    arrays = [a for a in leaves(xs) if isinstance(a, Parts)]
    turns = length or next((a.shape[0] for a in arrays), 1)
    if any(not a.alone and a.layout.dims(a.ndim)[0] for a in arrays):
        raise NotRead("a loop over a dim that is split is not read")
    first = mapped(lambda a: moved(a, lambda all_: all_[1:], lambda one: ((), *one)), xs)
    carry, out = turn(front, of, init, after=[first], more=1)
    return carry, mapped(lambda a: moved(a, lambda one: ((), *one), lambda all_: all_[1:]), out)


def cond(front: JaxFront, which: Any, *given: Any) -> Any:
    """lax.cond, lax.switch: of branches that send nothing."""
    branches, operands = (given[0], given[1:]) if isinstance(given[0], (list, tuple)) else (given[:2], given[2:])
    begun = len(front.world.messages)
    results = [front.reader.call(of, list(operands), {}) for of in branches]
    lie = [[layout_of(x) for x in leaves(out) if isinstance(x, Parts)] for out in results]
    if len(front.world.messages) > begun or any(one != lie[0] for one in lie):
        raise NotRead("which branch is taken is not known, and what they send, or how their results lie, is not alike")

    def refused(gradient: Any) -> Any:
        raise NotRead("the gradient of a branch that is not known is not read")

    return mapped(
        lambda x: front.world.through("cond", x, x.detach(), refused) if isinstance(x, Parts) else x, results[0]
    )


def updated(front: JaxFront, x: Parts, part: Parts, *starts: Any, **kw: Any) -> Any:
    """dynamic_update_slice of a rank's own array"""
    if not (x.alone and part.alone):
        raise NotRead("what XLA sends to put a part into an array that is split is not known")
    made = front.world.tensor(x.shape, x.dtype, made_of=(x, part))
    return front.world.through("update", (x, part), made, lambda g: (g, like(front, part)))


def _cut_to(front: JaxFront, x: Parts, size: int, axis: int) -> Any:
    rest = x.shape[axis] - size
    return op("split_parts")(x, axis=axis, sizes=(size, rest))[0] if rest else x


def drawn(front: JaxFront, key: Any = None, *args: Any, dtype: Any = None, shape: Any = (), **kw: Any) -> Any:
    """jax.random.normal(key, shape), numpy.random.normal(size=shape)"""
    return filled(front, next((a for a in args if isinstance(a, tuple)), kw.get("size", shape)), dtype=dtype)


_RENAMED = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "power": "power"}
NUMPY: Table = {
    **OPERATORS,
    **{name: ours(of) for name, of in _RENAMED.items()},
    **{name: once(name) for name in ("sum", "max", "min", "prod")},
    "mean": mean,
    "transpose": lambda front, x, *axes, **kw: permute(front, x, *axes, *kw.values()),
    "var": variance,
    "std": lambda front, x, **kw: op("sqrt")(variance(front, x, **kw)),
    "linalg.norm": lambda front, x, ord=None, axis=None, keepdims=False: op("sqrt")(
        reduction("sum")(front, op("square")(x), axis=axis, keepdims=keepdims)
    ),
    "concatenate": concatenate,
    "split": sections,
    "expand_dims": lambda front, x, axis: op("expand_dims")(x, axis),
    **dict.fromkeys(("ones", "zeros", "empty"), created(filled)),
    "full": lambda front, shape, value, **kw: filled(front, shape, **kw),
    "arange": created(arange),
    **{name: product(of) for name, of in (("matmul", "matmul"), ("dot", "matmul"), ("einsum", "einsum"))},
    **dict.fromkeys(
        ("array", "asarray"), lambda front, x, *args, **kw: x if isinstance(x, Parts) else from_list(front, x)
    ),
    **{f"{name}_like": like for name in ("ones", "zeros")},
}
_METHODS = ("var", "std", "sum", "mean", "max", "min", "dot", "reshape", "transpose", "squeeze", "flatten", "swapaxes")
_NN = ("relu", "gelu", "silu", "tanh", "sigmoid", "softplus")


class JaxFront(Front):
    """JAX."""

    calls: ClassVar[Table] = {
        **PYTHON,
        **{f"{room}.{name}": entry for room in ("numpy", "np") for name, entry in NUMPY.items()},
        **{f"lax.{name}": NUMPY[name] for name in ("add", "mul", "dot", "exp", "tanh", "rsqrt")},
        **{f"nn.{name}": OPERATORS[name] for name in _NN},
        "nn.swish": OPERATORS["silu"],
        "nn.one_hot": lambda front, x, n, *, dtype="float32", **kw: one_hot(front, x, n, dtype),
        "nn.softmax": softmax,
        "nn.log_softmax": log_softmax,
        "nn.logsumexp": log_sum_exp,
        "special.logsumexp": log_sum_exp,
        **{f"random.{name}": drawn for name in ("normal", "uniform", "randint", "truncated_normal")},
        **{f"random.{name}": lambda front, *args, **kw: 0 for name in ("PRNGKey", "key", "fold_in")},
        "random.split": lambda front, key, num=2: [0] * num,
        **dict.fromkeys(("devices", "local_devices"), lambda front, *args: list(range(front.devices))),
        "create_device_mesh": lambda front, shape, *args, **kw: front.world.tensor(tuple(shape), "int64"),
        "Mesh": mesh,
        "make_mesh": make_mesh,
        **dict.fromkeys(("set_mesh", "use_mesh"), set_mesh),
        **dict.fromkeys(("jax.P",), lambda front, *entries: Spec(entries)),
        "PartitionSpec": lambda front, *entries: Spec(entries),
        "NamedSharding": lambda front, over, spec, **kw: Sharding(over, spec),
        "device_put": device_put,
        "with_sharding_constraint": constrained,
        "reshard": resharded,
        "jax.jit": jit,
        "jax.grad": grad,
        "value_and_grad": lambda front, of, *args, **kw: grad(front, of, *args, value=True, **kw),
        "shard_map": shard_map,
        **dict.fromkeys(_MAPS, lambda front, of, *trees: mapped(lambda *a: front.reader.call(of, list(a), {}), *trees)),
        "tree.leaves": lambda front, tree: leaves(tree),
        **{
            f"lax.{name}": lambda front, x, axis_name, reduce=of: psum(front, x, axis_name, reduce)
            for name, of in _SUMS.items()
        },
        "lax.all_gather": all_gather,
        "lax.psum_scatter": psum_scatter,
        "lax.all_to_all": all_to_all,
        "lax.ppermute": ppermute,
        **dict.fromkeys(("lax.pcast", "lax.pvary"), varied),
        "lax.scan": scan,
        "lax.fori_loop": lambda front, lower, upper, body, init, **kw: turn(front, body, init, lower),
        "lax.while_loop": lambda front, test, body, init: (
            front.reader.call(test, [init], {}),
            turn(front, body, init),
        )[1],
        **dict.fromkeys(("lax.cond", "lax.switch"), cond),
        **dict.fromkeys(("dynamic_update_slice", "dynamic_update_slice_in_dim"), updated),
        **dict.fromkeys(("jax.typeof", "get_abstract_mesh"), lambda front, *args: Name("type")),
        **{f"numpy.random.{name}": filled for name in ("randn", "rand")},
        **{f"numpy.random.{name}": drawn for name in ("normal", "uniform", "randint")},
        **dict.fromkeys(("jax.checkpoint", "jax.remat", "ad_checkpoint.checkpoint"), remat),
        "jax.vmap": vmap,
        "dynamic_slice_in_dim": lambda front, x, start, size, axis=0: _cut_to(front, x, size, axis),
        "config.update": lambda front, *args: None,
        "jax.block_until_ready": lambda front, x: x,
        "lax.axis_index": lambda front, name: front.world.tensor((), "int32"),
        "lax.axis_size": lambda front, name: count_of(front, axes_of(front, name)),
        "lax.stop_gradient": lambda front, x: x.detach(),
        **dict.fromkeys(("device_count", "local_device_count"), lambda front, *args: front.devices),
    }
    methods: ClassVar[dict[type, Table]] = {
        **METHODS,
        Parts: {**{name: NUMPY[name] for name in _METHODS}, "astype": cast_to, "block_until_ready": lambda front, x: x},
        DeviceMesh: {"iter": lambda front, over: list(over.names)},
    }
    attributes: ClassVar[dict[type, Table]] = {
        Parts: {
            "shape": lambda front, x: x.shape,
            "ndim": lambda front, x: len(x.shape),
            "size": lambda front, x: math.prod(x.shape),
            "dtype": lambda front, x: Name(f"jax.numpy.{x.dtype}"),
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
        self.current: DeviceMesh | None = None
        self.looped: list[Any] = []  # what turns of loops carry: the next turn needs it
        self.reduced: dict[Any, Any] = {}  # in the function that is compiled: a reduction and its result
        self.compiled = self.typed = self.explicit = self.asked = self.sums_inside = False
        world.refuses, world.merges = self.refused, lambda before, axis: axis not in before.split(",")

    def refused(self, reason: str, backward: bool) -> str:
        """Why a message that nobody asked for cannot be: explicit axes take products of split dims by out_sharding."""
        if (
            backward
            or not self.explicit
            or self.asked
            or not reason.startswith(("operand", "result of MatMul", "result of Batch"))
        ):
            return ""
        return f"a message that explicit axes do not send, or that is not known ({reason}): give out_sharding"

    def known_mesh(self) -> DeviceMesh:
        """The mesh that a program means when it names none."""
        if self.current is None and len(self.meshes) != 1:
            raise NotRead("which mesh is meant is not known")
        return self.current or self.meshes[-1]

    @contextmanager
    def within(self, entered: Sequence[Any]) -> Iterator[None]:
        """The body of `with mesh:`."""
        before, self.current = self.current, next((x for x in entered if isinstance(x, DeviceMesh)), self.current)
        try:
            with super().within(entered):
                yield
        finally:
            self.current = before
