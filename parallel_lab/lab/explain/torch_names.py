"""What names of PyTorch mean: meshes, placements, distributed tensors, operators, gradients.

Each entry says in a line or two what a call is in terms of ours; layers and what shards them are in `modules.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from ...layout.device_mesh import DeviceMesh
from ...layout.mesh_layout import MeshLayout, Partial, Replicate, Shard, StridedShard
from ...nn.parallel_styles import parallel_cross_entropy
from ...nn.tensor import dtensor
from ...nn.tensor.dtensor import DTensor
from ...nn.tensor.dtensor_parts import Parts, replicated
from .front import (
    METHODS,
    PYTHON,
    Front,
    Table,
    arange,
    cast_to,
    filled,
    from_list,
    last,
    like,
    number,
    one_hot,
    op,
    ours,
    shape_of,
)  # fmt: skip
from .values import Name, NotRead, unread_gradient
from .world import uncertain

PLACEMENTS = (Shard, StridedShard, Replicate, Partial)

# ---- meshes ----


def made_mesh(front: Front, mesh: DeviceMesh) -> DeviceMesh:
    """A mesh that the program made, noted for the report. Raises NotRead for more ranks than there are."""
    if mesh.size > front.devices:
        front.largest = max(front.largest, mesh.size)
        raise NotRead(f"refused: a mesh of {mesh.size} ranks, and {front.devices} run the program")
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
    shape, ranks = (list(mesh.shape), []) if isinstance(mesh, Parts) else ([], list(mesh))
    while ranks and isinstance(ranks[0], (list, tuple, range)):
        shape, ranks = [*shape, len(ranks)], [r for row in ranks for r in row]
    shape += [len(ranks) // math.prod(shape)] if ranks else []
    return made_mesh(front, DeviceMesh(tuple(shape), tuple(mesh_dim_names or ()), tuple(ranks)))


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


def distribute_tensor(front: Front, tensor: Parts, device_mesh: Any = None, placements: Any = None, **kw: Any) -> Any:
    """The whole tensor that every rank has, in a layout. PyTorch sends it from rank 0 first, which is not counted."""
    to = placed(front, device_mesh, placements)
    made = dtensor.distribute_tensor(tensor, to.mesh, to.placements, requires_grad=tensor.requires_grad)
    return front.world.note("placed", made.layout.code, made)


def from_local(
    front: Front,
    local_tensor: Parts,
    device_mesh: Any = None,
    placements: Any = None,
    *,
    run_check: bool = False,
    shape: Any = None,
    stride: Any = None,
    grad_placements: Any = None,
) -> Any:
    """A distributed tensor of the ranks' own ones."""
    if run_check:
        raise NotRead("what run_check sends is not known")
    to = placed(front, device_mesh, placements)
    more = {"shape": None if shape is None else shape_of([shape]), "grad_placements": grad_placements}
    made = DTensor.from_local(local_tensor, to.mesh, to.placements, **more)
    return front.world.note("from_local", made.layout.code, made)


def redistribute(front: Front, x: DTensor, device_mesh: Any = None, placements: Any = None, **kw: Any) -> Any:
    """x.redistribute(mesh, placements)"""
    if isinstance(device_mesh, (list, tuple)):
        device_mesh, placements = None, device_mesh
    if placements is None or x.alone:
        raise NotRead("refused: placements are needed, and a distributed tensor")
    return x.redistribute(placed(front, device_mesh or x.mesh, placements), reason="asked for")


def factory(front: Front, *sizes: Any, device_mesh: Any = None, placements: Any = None, **kw: Any) -> Any:
    """ones, zeros, randn, ... of torch or, with a mesh, of torch.distributed.tensor."""
    made = filled(front, *sizes, **kw)
    return made if device_mesh is None else distribute_tensor(front, made, device_mesh, placements)


def axis_of(front: Front, group: Any) -> str:
    """The axis of the mesh that a group is along; "" for all ranks, where no mesh of one axis has them."""
    over = group or next((m for m in front.meshes if m.ndim == 1 and m.size == front.devices), None)
    axis = over.names[0] if isinstance(over, DeviceMesh) and over.ndim == 1 else ""
    if over is not None and not axis:
        raise NotRead("a group whose axis is not known")
    return axis


def collective(kind: str, at: int) -> Callable[..., Any]:
    """A message by hand, over the ranks of a group, in a tensor of this rank's own.  at: which argument is given"""
    reduces = kind in ("all_reduce", "reduce_scatter")

    def run(front: Front, *args: Any, op: Any = "sum", group: Any = None, **kw: Any) -> Name:
        given, more = args[at], args[at + 1 :]
        if not isinstance(given, Parts) or set(kw) - {"async_op"} or more and kind == "all_to_all":
            raise NotRead(f"{kind} of this is not read")
        if reduces and more:
            op, *more = more
        axis = axis_of(front, more[0] if more else group)
        front.world.send(kind, axis, given, str(last(op)).lower() if reduces else "", "asked for")
        return Name("work")

    return run


def hand_broadcast(front: Front, *args: Any, **kw: Any) -> None:
    """dist.broadcast: lists of messages leave out those that place what all ranks have."""
    raise NotRead("a broadcast is not counted: lists leave out what places a tensor that all ranks have")


def new_group(front: Front, ranks: Any = None, *args: Any, **kw: Any) -> None:
    """A group of all ranks."""
    if ranks is not None and list(ranks) != list(range(front.devices)):
        raise NotRead("a group of some of the ranks is not read")


# ---- gradients ----


def backward(front: Front, x: DTensor, gradient: Any = None, **kw: Any) -> None:
    """x.backward()"""
    if not x.requires_grad:
        raise NotRead("a gradient of what depends on nothing that needs one")
    x.backward(gradient)


def autograd_grad(front: Front, outputs: Any, inputs: Any, grad_outputs: Any = None, **kw: Any) -> tuple[Any, ...]:
    """torch.autograd.grad, of tensors that nothing has made"""
    root = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
    several = list(inputs) if isinstance(inputs, (tuple, list)) else [inputs]
    if any(x.node is not None for x in several):
        raise NotRead("gradients of what was computed are not read")
    held = [x.grad for x in several]
    for x in several:
        x.grad = None
    backward(front, root, grad_outputs)
    found = tuple(x.grad for x in several)
    for x, grad in zip(several, held, strict=True):
        x.grad = grad
    return found


def full_tensor(front: Front, x: Any, *, grad_placements: Any = None) -> Any:
    """x.full_tensor()"""
    return x.redistribute(replicated(x.mesh), reason="the whole tensor is asked for").to_local(
        grad_placements=grad_placements
    )


# ---- operators, in PyTorch's spelling ----


def _several(values: Sequence[Any]) -> tuple[Any, ...]:
    """Numbers as separate arguments, or one tuple."""
    return tuple(values[0]) if len(values) == 1 and isinstance(values[0], (tuple, list)) else tuple(values)


def reduction(name: str) -> Callable[..., Any]:
    """sum, mean, ...: dim and keepdim, or axis and keepdims."""

    def run(
        front: Front,
        x: Parts,
        dim: Any = None,
        keepdim: bool = False,
        *,
        axis: Any = None,
        dtype: Any = None,
        **kw: Any,
    ) -> Any:
        if set(kw) - {"keepdims", "keep_dims"}:
            raise NotRead(f"{name} with {', '.join(kw)} is not read")
        x = x if dtype is None else cast_to(front, x, dtype)
        dim, keepdim = dim if axis is None else axis, kw.get("keepdims", kw.get("keep_dims", keepdim))
        dims = {} if dim is None else {"axis": dim if isinstance(dim, int) else tuple(dim)}
        if name == "prod" and x.requires_grad and not x.alone:
            raise NotRead("a product that needs a gradient is not read")
        return op(f"reduce_{name}")(x, **dims, keep_dims=keepdim)

    return run


def extreme(name: str) -> Callable[..., Any]:
    """max and min: of all, of two, or along a dim, with indices."""

    def run(front: Front, x: Parts, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None or isinstance(dim, Parts):
            return op(f"reduce_{name}")(x) if dim is None else op(f"{name}imum")(x, dim)
        if x.alone:
            values = op(f"reduce_{name}")(x, axis=dim, keep_dims=keepdim)
            return values, front.world.tensor(values.shape, "int64")
        whole = op("softmax")(x.detach(), axis=dim)  # along the dim it needs x as this does
        values = op(f"reduce_{name}")(whole, axis=dim, keep_dims=keepdim)
        places = front.world.tensor(values.shape, "int64", values.layout, made_of=(whole,))
        return front.world.through(name, x, values, unread_gradient), places

    return run


def place_of(front: Front, x: Parts, dim: Any = None, keepdim: bool = False, *, axis: Any = None, of: str) -> Any:
    """argmax, argmin along a dim; without one of all elements in a row"""
    dim = dim if axis is None else axis
    if dim is None and any(p not in (Replicate(), Shard(0)) for p in (() if x.alone else x.placements)):
        raise NotRead(f"{of} of all elements that lie so is not read")
    found = op(of)(op("reshape")(x, (-1,)) if dim is None else x, axis=dim or 0)
    return op("expand_dims")(found, dim) if keepdim else found


def flatten(front: Front, x: Parts, start_dim: int = 0, end_dim: int = -1) -> Any:
    """x.flatten(0, 1)"""
    start, end = start_dim % len(x.shape), end_dim % len(x.shape)
    return op("reshape")(x, (*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :]))


def permute(front: Front, x: Parts, *dims: Any) -> Any:
    """x.permute(0, 2, 1); without dims in reverse order."""
    order = _several(dims) or range(len(x.shape))[::-1]
    return op("transpose")(x, tuple(d % len(x.shape) for d in order))


def expand(front: Front, x: Parts, *sizes: Any) -> Any:
    """x.expand(4, -1)"""
    new = _several(sizes)
    lead = len(new) - len(x.shape)
    dims = () if x.alone else enumerate(x.layout.dims(x.ndim))
    if any(x.shape[dim] % math.prod(map(x.mesh.axis_size, axes)) for dim, axes in dims):
        raise NotRead("expand of a dim that is split into unequal parts is not read")
    return op("broadcast_to")(x, shape=tuple(x.shape[i - lead] if n == -1 else n for i, n in enumerate(new)))


def split(front: Front, x: Parts, split_size: Any, dim: int = 0) -> Any:
    """x.split(3), x.split([1, 2])"""
    n = x.shape[dim]
    sizes = [min(split_size, n - at) for at in range(0, n, split_size)] if isinstance(split_size, int) else split_size
    return op("split_parts")(x, axis=dim, sizes=tuple(sizes))


def linear(front: Front, x: Parts, weight: Parts, bias: Any = None) -> Any:
    """x @ weight.T + bias"""
    if not (by_columns(x) or by_columns(weight)):
        return op("linear")(x, weight, bias)
    made = product(front, x, turn(weight))
    return made if bias is None else op("add")(made, bias)


def layer_norm(front: Front, x: Parts, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """layer_norm; a weight or a bias that is not given costs nothing."""
    shape, layout = shape_of((shape,)), None if x.alone else replicated(x.mesh)
    given = [front.world.tensor(shape, x.dtype, layout) if p is None else p for p in (weight, bias)]
    return op("layer_norm")(x, shape, *given)


def attention(
    front: Front,
    query: Parts,
    key: Parts,
    value: Parts,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
) -> Any:
    """scaled_dot_product_attention"""
    if attn_mask is not None:
        raise NotRead("attention with a mask is not read")
    return op("scaled_dot_product_attention")(query, key, value, is_causal=is_causal, scale=scale)


def dropout(front: Front, x: Parts, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """dropout; PyTorch refuses a pending tensor"""
    if training and not x.alone and x.layout.pending:
        raise NotRead("refused: dropout of what is pending (PyTorch)")
    return op("mul")(x, 1.0)


def cross_entropy(
    front: Front,
    input: DTensor,
    target: Any,
    *args: Any,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    **kw: Any,
) -> Any:
    """cross_entropy; under loss_parallel of logits split by class: three sums of a number for each row."""
    if not input.alone and (args or label_smoothing or set(kw) - {"ignore_index"}):
        raise NotRead("a cross_entropy with weights or smoothing is not read")
    if input.alone or not front.splits_loss:
        return op("cross_entropy")(input, target, reduction=reduction)
    if input.mesh.ndim != 1 or input.ndim != 2 or input.placements != (Shard(1),):
        raise NotRead("refused: loss_parallel takes logits (rows, classes) that a mesh of one axis splits by class")
    losses = parallel_cross_entropy(input, target)
    return losses if reduction == "none" else op(f"reduce_{reduction}")(losses)


def mse_loss(front: Front, input: Parts, target: Parts, *args: Any, reduction: str = "mean") -> Any:
    """Mean of squares: PyTorch's own rule for it gives a gradient that is wrong by a factor."""
    found = op("square")(op("sub")(input, target))
    return found if reduction == "none" else op(f"reduce_{reduction}")(found)


def own_shape(rule: Callable[..., Sequence[int]]) -> Callable[..., Any]:
    """What gives a tensor of a known shape of a rank's own one.  rule: of the tensor's shape and the arguments"""

    def run(front: Front, x: Parts, *args: Any, **kw: Any) -> Any:
        if not x.alone:
            raise NotRead("this is read of a rank's own tensors")
        made = front.world.tensor(shape_of([tuple(rule(x.shape, *args, **kw))]), x.dtype, made_of=(x,))
        return front.world.through("shaped", x, made, lambda g: like(front, x))

    return run


def _repeated(shape: Sequence[int], *sizes: Any) -> list[int]:
    counts = _several(sizes)
    return [n * count for n, count in zip((1,) * (len(counts) - len(shape)) + tuple(shape), counts, strict=True)]


def _interleaved(shape: Sequence[int], repeats: int, dim: int) -> list[int]:
    return [n * repeats if d == dim % len(shape) else n for d, n in enumerate(shape)]


def _unflattened(shape: Sequence[int], dim: int, sizes: Sequence[int]) -> list[int]:
    dim %= len(shape)
    rest = shape[dim] // -math.prod(sizes) if -1 in sizes else 0
    return [*shape[:dim], *(rest if n == -1 else n for n in sizes), *shape[dim + 1 :]]


def product(front: Front, x: Any, y: Any, **kw: Any) -> Any:
    """x @ y. PyTorch makes the gradient of a matrix that lies by columns transposed, too."""
    matmul, turned = op("matmul"), (by_columns(x) and y.ndim == 2, by_columns(y))
    made, needs = matmul(x, y), tuple(isinstance(each, Parts) and each.requires_grad for each in (x, y))
    if not any(turned):
        return made

    def back(g: Any) -> tuple[Any, ...]:
        bases = [turn(each.detach()) if by else each.detach() for each, by in zip((x, y), turned, strict=True)]
        found = matmul.vjp_fn(g, made, *bases, transpose_a=turned[0], transpose_b=turned[1], needs=needs)
        return tuple([turn(each) if by and each is not None else each for each, by in zip(found, turned, strict=True)])

    return front.world.through("matmul", (x, y), made.detach(), back)


def turn(x: Parts) -> Any:
    """The last two dims exchanged."""
    return op("swapaxes")(x, -1, -2)


def by_columns(x: Any) -> bool:
    """Whether a matrix lies by columns: transposed, or made of such a one element by element."""
    if not isinstance(x, Parts) or x.ndim != 2 or x.node is None:
        return False
    (of, *_), made_by = x.node.operands, x.node.op
    if made_by.name in ("transpose", "swapaxes"):
        return not by_columns(of)
    elementwise = getattr(made_by, "signature", "") in ("...->...", "...,...->...") and not made_by.whole
    return (elementwise or made_by.name == "redistribute") and by_columns(of)


def einsum(front: Front, equation: str, *operands: Any) -> Any:
    """einsum; PyTorch sends other shapes than it is given, since it turns operands first."""
    begun = len(front.world.messages)
    made = op("einsum")(equation, *operands)
    if len(front.world.messages) > begun:
        raise NotRead("an einsum that sends a message is not read: redistribute its operands first")
    return made


NAMED = """
    relu gelu silu tanh sigmoid exp log sqrt rsqrt square abs neg sin cos maximum minimum softplus leaky_relu elu erf
    sign log1p expm1 floor ceil round addmm bmm outer tril triu where t logsumexp cumsum add sub mul div
    masked_fill
"""
OPERATORS: Table = {
    **{name: ours(name) for name in NAMED.split()},
    **{name: reduction(name) for name in ("sum", "mean", "prod")},
    **{theirs: ours(name) for theirs, name in (("dot", "matmul"), ("mv", "matmul"), ("clone", "identity"))},
    "pow": ours("power"),
    **dict.fromkeys(("matmul", "mm"), product),
    "max": extreme("max"),
    "min": extreme("min"),
    "amax": reduction("max"),
    "amin": reduction("min"),
    "reshape": lambda front, x, *sizes: op("reshape")(x, _several(sizes)),
    "flatten": flatten,
    "permute": permute,
    **dict.fromkeys(("transpose", "swapaxes"), lambda front, x, dim0, dim1: op("swapaxes")(x, dim0, dim1)),
    "unsqueeze": lambda front, x, dim: op("expand_dims")(x, dim),
    "squeeze": lambda front, x, dim=(), *, axis=None: op("squeeze")(x, axis=dim if axis is None else axis),
    **dict.fromkeys(("cat", "concat"), lambda front, xs, dim=0, axis=None: op("concat")(*xs, axis=axis or dim)),
    "stack": lambda front, xs, dim=0, *, axis=None: op("stack")(*xs, axis=dim if axis is None else axis),
    "chunk": lambda front, x, chunks, dim=0: split(front, x, -(-x.shape[dim] // chunks), dim),
    "split": split,
    "softmax": lambda front, x, dim=-1, *, axis=None, dtype=None, **kw: op("softmax")(
        x if dtype is None else cast_to(front, x, dtype), axis=dim if axis is None else axis
    ),
    "broadcast_to": expand,
    "einsum": einsum,
    "log_softmax": lambda front, x, dim=-1, *, axis=None, dtype=None: op("log_softmax")(
        x if dtype is None else cast_to(front, x, dtype), axis=dim if axis is None else axis
    ),
    **{name: partial(place_of, of=name) for name in ("argmax", "argmin")},
    "flip": lambda front, x, dims=None, *, axis=None: op("flip")(x, axis=dims if axis is None else axis),
    "clamp": lambda front, x, min=None, max=None: op("clip_by_value")(x, min, max),
    "unbind": lambda front, x, dim=0: [op("squeeze")(p, axis=dim) for p in split(front, x, 1, dim)],
    "repeat_interleave": own_shape(_interleaved),
    "unflatten": own_shape(_unflattened),
    # complex numbers by the shape of their parts
    "polar": own_shape(lambda shape, angle: shape),
    "view_as_complex": own_shape(lambda shape: shape[:-1]),
    "view_as_real": own_shape(lambda shape: (*shape, 2)),
}
FUNCTIONAL: Table = {
    "linear": linear,
    "embedding": lambda front, input, weight, *args, **kw: op("embedding")(input, weight),
    "layer_norm": layer_norm,
    "rms_norm": lambda front, x, shape, weight=None, eps=None: op("rms_norm")(x, weight, epsilon=eps or 1e-6)[0],
    "scaled_dot_product_attention": attention,
    "dropout": dropout,
    "one_hot": one_hot,
    "cross_entropy": cross_entropy,
    "nll_loss": lambda front, x, target, reduction="mean": op("nll_loss")(x, target, reduction=reduction),
    "mse_loss": mse_loss,
}
_SAME = ["trunc_normal_", "uniform_", "cuda", "cpu", "npu", "zero_", "normal_", "fill_", "retain_grad"]
TENSOR: Table = {
    **OPERATORS,
    **dict.fromkeys(_SAME, lambda front, x, *args, **kw: x),
    **dict.fromkeys(("to", "type", "astype", "type_as"), cast_to),
    **{
        name: lambda front, x, to=name: cast_to(front, x, to)
        for name in ("float", "half", "bfloat16", "double", "long")
    },
    "item": number,
    "contiguous": lambda front, x: (
        front.world.through("contiguous", x, x.detach(), lambda g: g) if by_columns(x) else x
    ),
    "view": OPERATORS["reshape"],
    "expand": expand,
    "repeat": own_shape(_repeated),
    "size": lambda front, x, dim=None: x.shape if dim is None else x.shape[dim],
    "dim": lambda front, x: len(x.shape),
    "numel": lambda front, x: math.prod(x.shape),
    "detach": lambda front, x: x.detach(),
    "requires_grad_": lambda front, x, wanted=True: x.requires_grad_(wanted),
    "backward": backward,
    "redistribute": redistribute,
    "to_local": lambda front, x, **kw: x.to_local(**kw),
    "full_tensor": full_tensor,
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
    **dict.fromkeys(("distributed.all_gather", "all_gather_into_tensor"), collective("all_gather", 1)),
    "distributed.reduce_scatter_tensor": collective("reduce_scatter", 1),
    "distributed.all_to_all_single": collective("all_to_all", 1),
    "distributed.broadcast": hand_broadcast,
    "autograd.grad": autograd_grad,
    "torch.no_grad": lambda front: Name("no gradients"),
    "inference_mode": lambda front, mode=True: Name("inference" if mode else "context"),
    **dict.fromkeys(("record_function", "CommDebugMode"), lambda front, *args, **kw: Name("context")),
    **dict.fromkeys(("torch.device", "current_accelerator"), lambda front, *args: args[0] if args else "cuda"),
    "distributed.new_group": new_group,
    "torch.compile": lambda front, of=None, **kw: of,
    **dict.fromkeys(("get_rank", "get_local_rank", "current_device"), lambda front, *args: 0),
    **dict.fromkeys(("get_world_size", "get_group_size", "device_count"), lambda front, *args: front.devices),
    **dict.fromkeys(("is_available", "is_initialized"), lambda front: True),
    "get_default_backend_for_device": lambda front, device: "nccl",
    "Parameter": lambda front, x, requires_grad=True, **kw: x.requires_grad_(requires_grad),
}


class TorchFront(Front):
    """PyTorch."""

    def __init__(self, world: Any, devices: int) -> None:
        super().__init__(world, devices)
        if world.policy == "torch":
            world.refuses = uncertain

    calls = CALLS
    operators: ClassVar[Table] = {"Pow": ours("power"), "MatMult": product}
    methods: ClassVar[dict[type, Table]] = {
        **METHODS,
        Parts: TENSOR,
        DeviceMesh: {
            "[]": lambda front, mesh, names: mesh[names],
            "size": lambda front, mesh, mesh_dim=None: (
                mesh.size if mesh_dim is None else mesh.shape[_axis(mesh, mesh_dim)]
            ),
            **dict.fromkeys(("get_local_rank", "get_rank"), lambda front, mesh, *args, **kw: 0),
            "get_coordinate": lambda front, mesh: mesh.coordinates(mesh.ranks[0]),
            "_flatten": lambda front, mesh, name="": DeviceMesh(
                (mesh.size,), (name or "_".join(mesh.names),), mesh.ranks
            ),
            "get_group": lambda front, mesh, mesh_dim=0: mesh[mesh.names[_axis(mesh, mesh_dim)]],
            "iter": lambda front, mesh: list(mesh.shape),
        },
    }
    attributes: ClassVar[dict[type, Table]] = {
        Parts: {
            "shape": lambda front, x: x.shape,
            "ndim": lambda front, x: len(x.shape),
            "dtype": lambda front, x: Name(f"torch.{x.dtype}"),
            "device": lambda front, x: "cpu",
            "grad": lambda front, x: x.grad,
            "data": lambda front, x: x.detach(),
            "requires_grad": lambda front, x: x.requires_grad,
            "placements": lambda front, x: x.placements,
            "device_mesh": lambda front, x: x.mesh,
            "T": permute,
            "mT": lambda front, x: op("swapaxes")(x, -1, -2),
            "_local_tensor": lambda front, x: x.to_local(),
        },
        DeviceMesh: {
            "ndim": lambda front, mesh: mesh.ndim,
            "shape": lambda front, mesh: mesh.shape,
            "group_name": lambda front, mesh: mesh.names[0],
            "mesh_dim_names": lambda front, mesh: mesh.names,
            "device_type": lambda front, mesh: "cuda",
        },
        str: {"type": lambda front, device: device.partition(":")[0], "index": lambda front, device: 0},
        Shard: {"dim": lambda front, placement: placement.dim},
        tuple: {"values": lambda front, pair: pair[0], "indices": lambda front, pair: pair[1]},
    }
