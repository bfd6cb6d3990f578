"""What names of PyTorch mean: meshes, placements, distributed tensors, operators, gradients.

Each entry says in a line or two what a call is in terms of ours; layers and what shards them are in `modules.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ...layout.device_mesh import DeviceMesh
from ...layout.mesh_layout import MeshLayout, Partial, Replicate, Shard, StridedShard
from .front import METHODS, PYTHON, Front, Table, arange, cast_to, filled, from_list, last, like, op, ours, shape_of
from .reading import Name, NotRead
from .symbolic import Sym

PLACEMENTS = (Shard, StridedShard, Replicate, Partial)

# ---- meshes ----


def made_mesh(front: Front, mesh: DeviceMesh) -> DeviceMesh:
    """A mesh that the program made, noted for the report."""
    front.meshes += [] if mesh in front.meshes else [mesh]
    return mesh


def init_device_mesh(
    front: Front,
    device_type: Any = "",
    mesh_shape: Any = (),
    *,
    mesh_dim_names: Any = (),
    alias_name: Any = (),
    **kw: Any,
) -> DeviceMesh:
    """A mesh by its shape, ranks in order."""
    return made_mesh(front, DeviceMesh(shape_of(mesh_shape), tuple(mesh_dim_names or alias_name or ())))


def device_mesh(front: Front, device_type: Any, mesh: Any, *, mesh_dim_names: Any = None, **kw: Any) -> DeviceMesh:
    """A mesh by a nested list of ranks, or a tensor of them in order: torch.arange(8).reshape(2, 4)."""
    shape, ranks = (list(mesh.shape), []) if isinstance(mesh, Sym) else ([], list(mesh))
    while ranks and isinstance(ranks[0], (list, tuple, range)):
        shape, ranks = [*shape, len(ranks)], [r for row in ranks for r in row]
    shape += [len(ranks) // math.prod(shape)] if ranks else []
    return made_mesh(front, DeviceMesh(tuple(shape), tuple(mesh_dim_names or ()), tuple(ranks)))


def sub_mesh(front: Front, mesh: DeviceMesh, names: Any) -> DeviceMesh:
    """mesh["tp"], mesh["dp", "tp"]: of rank 0's ranks."""
    names = (names,) if isinstance(names, str) else tuple(names)
    kept, here = [mesh.axis(name) for name in names], mesh.coordinates(mesh.ranks[0])
    ranks = [r for r in mesh.ranks if all(a in kept or c == here[a] for a, c in enumerate(mesh.coordinates(r)))]
    return mesh if len(ranks) == mesh.size else DeviceMesh(tuple(mesh.shape[a] for a in kept), names, tuple(ranks))


def _axis(mesh: DeviceMesh, axis: Any) -> int:
    return mesh.axis(axis) if isinstance(axis, str) else int(axis or 0)


# ---- placements and distributed tensors ----


def placed(front: Front, mesh: Any, placements: Any) -> MeshLayout:
    """A layout of a mesh and placements. None: copies everywhere."""
    if isinstance(placements, MeshLayout):
        return placements
    if not isinstance(mesh, DeviceMesh):
        raise NotRead("the mesh is not known")
    several = [placements] if isinstance(placements, PLACEMENTS) else placements or [Replicate()] * mesh.ndim
    return MeshLayout(mesh, tuple(several))


def distribute_tensor(front: Front, tensor: Sym, device_mesh: Any = None, placements: Any = None, **kw: Any) -> Sym:
    """The whole tensor that every rank has, in a layout. PyTorch sends it from rank 0 first, which is not counted."""
    layout = placed(front, device_mesh, placements)
    return front.world.placed(tensor.shape, tensor.dtype, layout, "placed", tensor.requires_grad)


def distribute_module(front: Front, module: Any, device_mesh: Any = None, *hooks: Any, **kw: Any) -> Any:
    """Copies of every parameter, where nobody says otherwise."""
    if any(hooks) or any(kw.values()):
        raise NotRead("distribute_module with functions of the program is not read")
    for one in front.methods[type(module)]["modules"](front, module):
        one.names |= {k: distribute_tensor(front, v, device_mesh) for k, v in one.names.items() if isinstance(v, Sym)}
    return module


def from_local(
    front: Front, local_tensor: Sym, device_mesh: Any = None, placements: Any = None, *, run_check: bool = False,
    shape: Any = None, stride: Any = None,
) -> Sym:  # fmt: skip
    """A distributed tensor of the ranks' own ones."""
    layout = placed(front, device_mesh, placements)
    return front.world.note("from_local", layout.code, front.world.from_local(local_tensor, layout, shape))


def redistribute(front: Front, x: Sym, device_mesh: Any = None, placements: Any = None, **kw: Any) -> Sym:
    """x.redistribute(mesh, placements)"""
    if isinstance(device_mesh, (list, tuple)):
        device_mesh, placements = None, device_mesh
    if placements is None or x.layout is None:
        raise NotRead("refused: placements are needed, and a distributed tensor")
    return front.world.redistribute(x, placed(front, device_mesh or x.layout.mesh, placements))


def to_local(front: Front, x: Sym, *, grad_placements: Any = None) -> Sym:
    """x.to_local()"""
    asked = grad_placements is not None and x.layout is not None
    return front.world.to_local(x, placed(front, x.layout.mesh, grad_placements) if asked else None)  # type: ignore[union-attr]


def factory(front: Front, *sizes: Any, device_mesh: Any = None, placements: Any = None, **kw: Any) -> Sym:
    """ones, zeros, randn, ... of torch or, with a mesh, of torch.distributed.tensor."""
    made = filled(front, *sizes, **kw)
    return made if device_mesh is None else distribute_tensor(front, made, device_mesh, placements)


def collective(kind: str, at: int) -> Callable[..., Any]:
    """A message by hand, over the ranks of a group, in a tensor of this rank's own.  at: which argument is given"""

    def run(front: Front, *args: Any, op: Any = "sum", group: Any = None, **kw: Any) -> None:
        given = args[at][0] if isinstance(args[at], list) else args[at]
        over = group or next((m for m in front.meshes if m.ndim == 1 and m.size == front.devices), None)
        axis = over.names[0] if isinstance(over, DeviceMesh) and over.ndim == 1 else ""
        reduce = str(last(op)).lower() if kind in ("all_reduce", "reduce_scatter") else ""
        front.world.send(kind, axis, given.shape, given.dtype, reduce, "asked for")

    return run


# ---- gradients ----


def backward(front: Front, x: Sym, gradient: Any = None, **kw: Any) -> None:
    """x.backward()"""
    front.world.backward(x, gradient)
    front.backward_ended()


def autograd_grad(front: Front, outputs: Any, inputs: Any, grad_outputs: Any = None, **kw: Any) -> tuple[Any, ...]:
    """torch.autograd.grad"""
    root = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
    return tuple(
        front.world.backward(root, grad_outputs, list(inputs) if isinstance(inputs, (tuple, list)) else [inputs])
    )


def requires_grad_(front: Front, x: Sym, requires_grad: bool = True) -> Sym:
    """x.requires_grad_()"""
    x.requires_grad = requires_grad
    return x


def detached(front: Front, x: Sym) -> Sym:
    """x.detach()"""
    return front.world.tensor(x.shape, str(x.dtype), x.layout, made_of=(x,))


# ---- operators, in PyTorch's spelling ----


def _several(values: Sequence[Any]) -> tuple[Any, ...]:
    """Numbers as separate arguments, or one tuple."""
    return tuple(values[0]) if len(values) == 1 and isinstance(values[0], (tuple, list)) else tuple(values)


def reduction(name: str) -> Callable[..., Any]:
    """sum, mean, ...: dim and keepdim, or axis and keepdims."""

    def run(front: Front, x: Sym, dim: Any = None, keepdim: bool = False, *, axis: Any = None, **kw: Any) -> Sym:
        dim, keepdim = dim if axis is None else axis, kw.get("keepdims", kw.get("keep_dims", keepdim))
        dims = {} if dim is None else {"axis": dim if isinstance(dim, int) else tuple(dim)}
        return op(f"reduce_{name}")(x, **dims, keep_dims=keepdim)

    return run


def extreme(name: str) -> Callable[..., Any]:
    """max and min: of all, of two, or along a dim, with indices."""

    def run(front: Front, x: Sym, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None or isinstance(dim, Sym):
            return op(f"reduce_{name}")(x) if dim is None else op(f"{name}imum")(x, dim)
        values = op(f"reduce_{name}")(x, axis=dim, keep_dims=keepdim)
        return values, front.world.tensor(values.shape, "int64", values.layout)

    return run


def flatten(front: Front, x: Sym, start_dim: int = 0, end_dim: int = -1) -> Sym:
    """x.flatten(0, 1)"""
    start, end = start_dim % len(x.shape), end_dim % len(x.shape)
    return op("reshape")(x, (*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :]))


def permute(front: Front, x: Sym, *dims: Any) -> Sym:
    """x.permute(0, 2, 1); without dims in reverse order."""
    order = _several(dims) or range(len(x.shape))[::-1]
    return op("transpose")(x, tuple(d % len(x.shape) for d in order))


def expand(front: Front, x: Sym, *sizes: Any) -> Sym:
    """x.expand(4, -1)"""
    new = _several(sizes)
    lead = len(new) - len(x.shape)
    return op("broadcast_to")(x, shape=tuple(x.shape[i - lead] if n == -1 else n for i, n in enumerate(new)))


def split(front: Front, x: Sym, split_size: Any, dim: int = 0) -> Any:
    """x.split(3), x.split([1, 2])"""
    n = x.shape[dim]
    sizes = [min(split_size, n - at) for at in range(0, n, split_size)] if isinstance(split_size, int) else split_size
    return op("split_parts")(x, axis=dim, sizes=tuple(sizes))


def linear(front: Front, x: Sym, weight: Sym, bias: Any = None) -> Sym:
    """x @ weight.T + bias"""
    made = op("matmul")(x, weight, transpose_b=True)
    return made if bias is None else op("add")(made, bias)


def attention(
    front: Front, query: Sym, key: Sym, value: Sym, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: Any = None,
) -> Sym:  # fmt: skip
    """scaled_dot_product_attention"""
    if attn_mask is not None:
        raise NotRead("attention with a mask is not read")
    return op("scaled_dot_product_attention")(query, key, value, is_causal=is_causal, scale=scale)


def cross_entropy(front: Front, input: Sym, target: Sym, *args: Any, reduction: str = "mean", **kw: Any) -> Sym:
    """cross_entropy; under loss_parallel of logits split by class: three sums of a number for each row."""
    layout, dims = input.layout, len(input.shape)
    if layout is None or not front.splits_loss:
        return op("cross_entropy")(input, target, reduction=reduction)
    if layout.on(dims).placements != (Shard(dims - 1),):
        raise NotRead("refused: loss_parallel takes logits that a mesh of one axis splits by class")
    for reduce in ("max", "sum", "sum"):
        front.world.send(
            "all_reduce", layout.mesh.names[0], (*input.shape[:-1], 1), input.dtype, reduce, "loss_parallel"
        )
    out = front.world.tensor((), str(input.dtype), MeshLayout(layout.mesh, (Replicate(),)))
    return front.world.through("loss", input, out, lambda g: front.world.tensor(input.shape, str(g.dtype), layout))


def mse_loss(front: Front, input: Sym, target: Sym, *args: Any, reduction: str = "mean") -> Sym:
    """Mean of squares: PyTorch's own rule for it gives a gradient that is wrong by a factor."""
    found = op("square")(op("sub")(input, target))
    return found if reduction == "none" else op(f"reduce_{reduction}")(found)


NAMED = """
    relu gelu silu tanh sigmoid exp log sqrt rsqrt square abs neg sin cos maximum minimum softplus leaky_relu elu erf
    sign log1p expm1 floor ceil round addmm bmm mm einsum outer tril triu where t logsumexp cumsum add sub mul div
    matmul masked_fill
"""
OPERATORS: Table = {
    **{name: ours(name) for name in NAMED.split()},
    **{name: reduction(name) for name in ("sum", "mean", "prod")},
    **{
        theirs: ours(name)
        for theirs, name in (("pow", "power"), ("dot", "matmul"), ("mv", "matmul"), ("clone", "identity"))
    },
    "max": extreme("max"),
    "min": extreme("min"),
    "amax": reduction("max"),
    "amin": reduction("min"),
    "reshape": lambda front, x, *sizes: op("reshape")(x, _several(sizes)),
    "flatten": flatten,
    "permute": permute,
    **{name: lambda front, x, dim0, dim1: op("swapaxes")(x, dim0, dim1) for name in ("transpose", "swapaxes")},
    "unsqueeze": lambda front, x, dim: op("expand_dims")(x, dim),
    "squeeze": lambda front, x, dim=(): op("squeeze")(x, axis=dim),
    **{name: lambda front, xs, dim=0, axis=None: op("concat")(*xs, axis=axis or dim) for name in ("cat", "concat")},
    "stack": lambda front, xs, dim=0: op("stack")(*xs, axis=dim),
    "chunk": lambda front, x, chunks, dim=0: split(front, x, -(-x.shape[dim] // chunks), dim),
    "split": split,
    "softmax": lambda front, x, dim=-1, *, axis=None, **kw: op("softmax")(x, axis=dim if axis is None else axis),
    "broadcast_to": expand,
}
FUNCTIONAL: Table = {
    "linear": linear,
    "embedding": lambda front, input, weight, *args, **kw: op("gather")(weight, input, 0),
    "layer_norm": lambda front, x, shape, weight=None, bias=None, eps=1e-5: op("layer_norm")(
        x, (shape,) if isinstance(shape, int) else tuple(shape), weight, bias
    ),
    "rms_norm": lambda front, x, shape, weight=None, eps=None: op("rms_norm")(x, weight, epsilon=eps or 1e-6)[0],
    "scaled_dot_product_attention": attention,
    "dropout": lambda front, x, *args, **kw: op("mul")(x, 1.0),
    "cross_entropy": cross_entropy,
    "mse_loss": mse_loss,
}
_SAME = ["contiguous", "cuda", "cpu", "npu", "zero_", "normal_", "fill_", "item", "tolist", "retain_grad"]
TENSOR: Table = {
    **OPERATORS,
    **{name: lambda front, x, *args, **kw: x for name in _SAME},
    **dict.fromkeys(("to", "type", "astype", "type_as"), cast_to),
    **{
        name: lambda front, x, to=name: cast_to(front, x, to)
        for name in ("float", "half", "bfloat16", "double", "long")
    },
    "view": OPERATORS["reshape"],
    "expand": expand,
    "size": lambda front, x, dim=None: x.shape if dim is None else x.shape[dim],
    "dim": lambda front, x: len(x.shape),
    "numel": lambda front, x: math.prod(x.shape),
    "detach": detached,
    "requires_grad_": requires_grad_,
    "backward": backward,
    "redistribute": redistribute,
    "to_local": to_local,
    "full_tensor": lambda front, x, **kw: front.world.full(x),
    "iter": lambda front, x: [op("squeeze")(p, axis=0) for p in split(front, x, 1)],
}
_FACTORIES = ("rand", "randn", "zeros", "ones", "empty")
CALLS: Table = {
    **PYTHON,
    **{f"torch.{name}": entry for name, entry in OPERATORS.items()},
    **{f"functional.{name}": entry for name, entry in (OPERATORS | FUNCTIONAL).items()},
    **{f"{room}.{name}": factory for room in ("torch", "tensor", "_tensor") for name in _FACTORIES},
    **{f"torch.{name}_like": like for name in _FACTORIES},
    "init_device_mesh": init_device_mesh,
    "DeviceMesh": device_mesh,
    "distribute_tensor": distribute_tensor,
    "distribute_module": distribute_module,
    "DTensor.from_local": from_local,
    "Shard": lambda front, dim: Shard(dim),
    "_StridedShard": lambda front, dim, *, split_factor: StridedShard(dim, split_factor),
    "Replicate": lambda front: Replicate(),
    "Partial": lambda front, reduce_op="sum": Partial(reduce_op),
    **{f"{room}.full": lambda front, size, value, **kw: factory(front, size, **kw) for room in ("torch", "tensor")},
    "torch.randint": lambda front, *args, dtype="int64", **kw: filled(front, kw.get("size", args[-1]), dtype=dtype),
    "torch.tensor": from_list,
    "torch.arange": arange,
    "torch.eye": lambda front, n, m=None, **kw: filled(front, n, m or n),
    "distributed.all_reduce": collective("all_reduce", 0),
    **{name: collective("all_gather", 1) for name in ("distributed.all_gather", "all_gather_into_tensor")},
    "distributed.reduce_scatter_tensor": collective("reduce_scatter", 1),
    "distributed.all_to_all_single": collective("all_to_all", 1),
    "distributed.broadcast": lambda front, *args, **kw: None,
    "autograd.grad": autograd_grad,
    **{name: lambda front: Name("no gradients") for name in ("torch.no_grad", "inference_mode")},
    **{name: lambda front, *args, **kw: Name("context") for name in ("autocast", "record_function", "CommDebugMode")},
    "torch.device": lambda front, *args: args[0],
    "torch.compile": lambda front, of=None, **kw: of,
    **{name: lambda front, *args: 0 for name in ("get_rank", "get_local_rank", "current_device")},
    **{name: lambda front, *args: front.devices for name in ("get_world_size", "get_group_size", "device_count")},
    **{name: lambda front: True for name in ("is_available", "is_initialized")},
    "Parameter": lambda front, x, requires_grad=True, **kw: requires_grad_(front, x, requires_grad),
}


class TorchFront(Front):
    """PyTorch."""

    calls = CALLS
    methods: ClassVar[dict[type, Table]] = {
        **METHODS,
        Sym: TENSOR,
        DeviceMesh: {
            "[]": sub_mesh,
            "size": lambda front, mesh, mesh_dim=None: (
                mesh.size if mesh_dim is None else mesh.shape[_axis(mesh, mesh_dim)]
            ),
            **{name: lambda front, mesh, *args, **kw: 0 for name in ("get_local_rank", "get_rank")},
            "get_coordinate": lambda front, mesh: mesh.coordinates(mesh.ranks[0]),
            "_flatten": lambda front, mesh, name="": DeviceMesh(
                (mesh.size,), (name or "_".join(mesh.names),), mesh.ranks
            ),
            "get_group": lambda front, mesh, mesh_dim=0: sub_mesh(front, mesh, mesh.names[_axis(mesh, mesh_dim)]),
            "iter": lambda front, mesh: list(mesh.shape),
        },
    }
    attributes: ClassVar[dict[type, Table]] = {
        Sym: {
            "shape": lambda front, x: x.shape,
            "ndim": lambda front, x: len(x.shape),
            "dtype": lambda front, x: str(x.dtype),
            "device": lambda front, x: "cpu",
            "grad": lambda front, x: x.grad,
            "data": detached,
            "requires_grad": lambda front, x: x.requires_grad,
            "placements": lambda front, x: x.layout and x.layout.placements,
            "device_mesh": lambda front, x: x.layout and x.layout.mesh,
            "T": permute,
            "mT": lambda front, x: op("swapaxes")(x, -1, -2),
            "_local_tensor": to_local,
        },
        DeviceMesh: {
            "ndim": lambda front, mesh: mesh.ndim,
            "shape": lambda front, mesh: mesh.shape,
            "mesh_dim_names": lambda front, mesh: mesh.names,
            "device_type": lambda front, mesh: "cuda",
        },
        Shard: {"dim": lambda front, placement: placement.dim},
        tuple: {"values": lambda front, pair: pair[0], "indices": lambda front, pair: pair[1]},
    }
