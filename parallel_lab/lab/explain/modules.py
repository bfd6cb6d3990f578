"""Layers as trees of parameters, and what splits them: `parallelize_module`, `fully_shard`, HyperParallel's same names.

A layer is an `Instance` with a kind; a style adds functions before and after its forward, which place inputs and
outputs. `fully_shard` makes a `Group` of parameters, gathered before forward and before backward, whose gradients are
scattered when backward has passed: the messages follow from when autograd comes by, as in PyTorch.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...layout.device_mesh import DeviceMesh
from ...layout.mesh_layout import MeshLayout, Replicate, Shard
from .front import Front, Table, dtype_of, op, shape_of
from .reading import Instance, Name, NotRead
from .symbolic import Sym
from .torch_names import CALLS, FUNCTIONAL, OPERATORS, TorchFront, placed

# ---- layers ----


def _layer(kind: str, *shapes: tuple[str, Callable[..., Any]]) -> Callable[..., Instance]:
    """A layer with parameters.  shapes: (name, function of the layer's arguments that gives a shape, or None)"""

    def make(front: Front, *args: Any, dtype: Any = None, **kw: Any) -> Instance:
        kw = {k: v for k, v in kw.items() if k not in ("device", "weight_init", "bias_init")}
        made = Instance(None, {}, kind)
        for name, shape in shapes:
            size = shape(*args, **kw)
            tensor = None if size is None else front.world.tensor(shape_of(size), dtype_of(dtype), requires_grad=True)
            made.names[name] = tensor
        return made

    return make


def _kept(kind: str) -> Callable[..., Instance]:
    """A layer that keeps its arguments."""
    return lambda front, *args, **kw: Instance(None, {"args": args, "kwargs": kw}, kind)


def _several(kind: str) -> Callable[..., Instance]:
    """A layer made of layers."""

    def make(front: Front, *parts: Any) -> Instance:
        if len(parts) == 1 and not isinstance(parts[0], Instance):
            parts = tuple(parts[0].items() if isinstance(parts[0], dict) else front.reader.items(parts[0]))
        return Instance(None, dict(p if isinstance(p, tuple) else (str(i), p) for i, p in enumerate(parts)), kind)

    return make


def _in_order(front: Any, of: Instance, x: Any) -> Any:
    for part in children(of).values():
        x = front.invoke(part, [x], {})
    return x


def _norm_shape(normalized_shape: Any, *args: Any, **kw: Any) -> tuple[int, ...]:
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


_OTHERS = ("Dropout", "Identity", "Softmax", "Flatten", "CrossEntropyLoss", "MSELoss")
ACTIVATIONS = {"ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Tanh": "tanh", "Sigmoid": "sigmoid"}
LAYERS: Table = {
    "Linear": _layer("Linear", ("weight", lambda in_features, out_features, bias=True: (out_features, in_features)),
                     ("bias", lambda in_features, out_features, bias=True: (out_features,) if bias else None)),
    "Dense": _layer("Linear", ("weight", lambda in_channels, out_channels, has_bias=True: (out_channels, in_channels)),
                    ("bias", lambda in_channels, out_channels, has_bias=True: (out_channels,) if has_bias else None)),
    "Embedding": _layer("Embedding", ("weight", lambda num_embeddings, embedding_dim, *args, **kw: (
        num_embeddings, embedding_dim))),
    "LayerNorm": _layer("LayerNorm", ("weight", _norm_shape), ("bias", _norm_shape)),
    "RMSNorm": _layer("RMSNorm", ("weight", _norm_shape)),
    **{kind: _kept(kind) for kind in (*ACTIVATIONS, *_OTHERS)},
    **{kind: _several("Sequential") for kind in ("Sequential", "SequentialCell")},
    **{kind: _several("ModuleList") for kind in ("ModuleList", "ModuleDict", "CellList")},
}  # fmt: skip
FORWARD: Table = {
    "Linear": lambda front, of, x: FUNCTIONAL["linear"](front, x, of.names["weight"], of.names["bias"]),
    "Embedding": lambda front, of, x: FUNCTIONAL["embedding"](front, x, of.names["weight"]),
    "LayerNorm": lambda front, of, x: op("layer_norm")(
        x, of.names["weight"].shape, of.names["weight"], of.names["bias"]
    ),
    "RMSNorm": lambda front, of, x: FUNCTIONAL["rms_norm"](front, x, 1, of.names["weight"]),
    **{kind: lambda front, of, x, name=name: op(name)(x) for kind, name in ACTIVATIONS.items()},
    "Dropout": lambda front, of, x: FUNCTIONAL["dropout"](front, x),
    "Identity": lambda front, of, x: x,
    "Softmax": lambda front, of, x: OPERATORS["softmax"](front, x, *of.names["args"], **of.names["kwargs"]),
    "Flatten": lambda front, of, x: OPERATORS["flatten"](front, x, *(of.names["args"] or (1,)), **of.names["kwargs"]),
    "Sequential": _in_order,
    "CrossEntropyLoss": lambda front, of, x, y: FUNCTIONAL["cross_entropy"](front, x, y, **of.names["kwargs"]),
    "MSELoss": lambda front, of, x, y: FUNCTIONAL["mse_loss"](front, x, y, **of.names["kwargs"]),
}


def children(of: Instance) -> dict[str, Instance]:
    """The layers that a layer holds, by name."""
    return {name: held for name, held in of.names.items() if isinstance(held, Instance) and held.kind}


def modules(of: Instance, path: str = "") -> Iterator[tuple[str, Instance]]:
    """A layer and all below it, by path."""
    yield path, of
    for name, held in children(of).items():
        yield from modules(held, f"{path}.{name}" if path else name)


def parameters(of: Instance) -> list[tuple[str, Sym]]:
    """The parameters of a layer and of all below it, each once, by path."""
    found = {}
    for path, module in modules(of):
        for key, held in module.names.items():
            if isinstance(held, Sym) and held.node is None and held.requires_grad:
                found.setdefault(id(held), (f"{path}.{key}" if path else key, held))
    return list(found.values())


def under(of: Instance, path: str) -> list[Instance]:
    """The layers that a path of a plan names: "layers.*.w1"."""
    found = [of]
    for part in path.split(".") if path else []:
        found = [held for one in found for key, held in children(one).items() if fnmatch.fnmatchcase(key, part)]
    return found


# ---- parallelize_module ----


def _style(kind: str, *, dim: Any = None, **defaults: Any) -> Callable[..., Instance]:
    """A parallel style with its settings."""
    return lambda front, *args, **kw: Instance(None, defaults | kw | ({"sequence_dim": args[0]} if args else {}), kind)


STYLES: Table = {
    kind: _style(kind, **defaults)
    for kind, defaults in {
        "ColwiseParallel": {"input_layouts": Replicate(), "output_layouts": Shard(-1), "use_local_output": True},
        "RowwiseParallel": {"input_layouts": Shard(-1), "output_layouts": Replicate(), "use_local_output": True},
        "SequenceParallel": {"sequence_dim": 1, "use_local_output": False},
        "PrepareModuleInput": {"use_local_output": False},
        "PrepareModuleOutput": {"use_local_output": True},
    }.items()
}


def parallelize_module(
    front: Any, module: Instance, device_mesh: Any = None, parallelize_plan: Any = None, **kw: Any
) -> Any:
    """Styles for layers, by path."""
    if not isinstance(device_mesh, DeviceMesh) or device_mesh.ndim != 1:
        raise NotRead('refused: parallelize_module takes a mesh of one axis: give mesh["tp"]')
    plan = {"": parallelize_plan} if isinstance(parallelize_plan, Instance) else dict(parallelize_plan or {})
    for path, how in plan.items():
        for one in under(module, path):
            _styled(front, one, how, device_mesh)
    if missing := [path for path in plan if not under(module, path)]:
        raise NotRead(f"the plan names layers that are not there: {missing}")
    return module


def _styled(front: Any, module: Instance, how: Instance, mesh: DeviceMesh) -> None:
    world, names, kind = front.world, how.names, how.kind
    local = names.get("use_local_output", False)

    def at(placement: Any, x: Sym) -> MeshLayout:
        return placed(front, mesh, placement).on(len(x.shape))

    def taken(x: Any, given: Any, wanted: Any, exactly: bool = False) -> Any:
        """An input as the style takes it.  exactly: whatever it is now"""
        if not isinstance(x, Sym) or given is None:
            return x
        x = world.from_local(x, at(given, x)) if x.layout is None else x
        move = wanted is not None and (exactly or given != wanted)
        return world.redistribute(x, at(wanted, x), f"an input that {kind} takes as {wanted}") if move else x

    def given_back(x: Any, wanted: Any) -> Any:
        if not isinstance(x, Sym) or wanted is None:
            return x
        x = world.from_local(x, at(wanted, x)) if x.layout is None else x
        return own(world.redistribute(x, at(wanted, x), f"the output that {kind} gives as {wanted}"))

    def own(x: Any) -> Any:
        return world.to_local(x) if local and isinstance(x, Sym) else x

    before, after = (module.names.setdefault(f"{when} forward", []) for when in ("before", "after"))
    if kind in ("ColwiseParallel", "RowwiseParallel"):
        if module.kind not in ("Linear", "Embedding"):
            raise NotRead(f"refused: {kind} takes Linear and Embedding")
        column, table = kind == "ColwiseParallel", module.kind == "Embedding"
        splits = {"weight": Shard(int(column == table))} | ({"bias": Shard(0)} if column else {})
        wanted = Replicate() if column or table else Shard(-1)
        before.append(lambda args: [taken(args[0], names["input_layouts"], wanted), *args[1:]])
        after.append(lambda out: given_back(out, names["output_layouts"]))
    elif kind == "SequenceParallel":
        splits, dim = {}, Shard(names["sequence_dim"])
        before.append(lambda args: [taken(args[0], dim, dim, exactly=True), *args[1:]])
        after.append(own)
    else:
        side = "input" if kind == "PrepareModuleInput" else "output"
        pair = (names.get(f"{wish}{side}_layouts") for wish in ("", "desired_"))
        given, wished = (p if isinstance(p, (tuple, list)) else (p,) for p in pair)
        if side == "input":
            before.append(lambda args: [own(taken(x, g, w)) for x, g, w in zip(args, given, wished, strict=True)])
        else:
            after.append(lambda out: given_back(taken(out, given[0], wished[0]), wished[0]))
        return
    for key, held in list(module.names.items()):
        if isinstance(held, Sym):
            layout, what = placed(front, mesh, splits.get(key, Replicate())), f"{module.kind}.{key}, {kind}"
            module.names[key] = world.placed(held.shape, held.dtype, layout, what, requires_grad=True)


# ---- fully_shard ----


@dataclass(eq=False)
class Group:
    """Parameters that `fully_shard` gathers and scatters together.

    frees    after forward; None: unless it is the outermost
    each     a message for every parameter (HyperParallel without comm_fusion)
    ahead    the group that comes next in backward is gathered in advance
    gathered, passed, waiting  parameters are whole; backward has left it; modules of it that have still to run
    order    groups in the order of forward
    """

    front: Any
    modules: list[Instance]
    mesh: DeviceMesh
    params: list[Sym]
    frees: bool | None
    gather_dtype: str | None
    reduce_dtype: str | None
    each: bool
    ahead: bool
    syncs: bool = True
    gathered: bool = False
    passed: bool = True
    outermost: bool = False
    waiting: int = 0
    order: list[Group] = field(default_factory=list)

    def _send(self, kind: str, axis: str, times: int, dtype: str | None, reason: str) -> None:
        """One message of all parameters' rows, rounded up to equal pieces; or one for each."""
        rows = [-(-(p.local_shape or (1,))[0] // self.mesh.shape[-1]) * times for p in self.params]
        shapes = [(n, *p.local_shape[1:]) for n, p in zip(rows, self.params, strict=True)]
        for shape in shapes if self.each else [(sum(map(math.prod, shapes)),)]:
            reduce = "" if kind == "all_gather" else "sum"
            self.front.world.send(kind, axis, shape, dtype or self.gather_dtype or self.params[0].dtype, reduce, reason)

    def gather(self, reason: str) -> None:
        """Make the parameters whole."""
        if self.params and not self.gathered:
            self.gathered = True
            self._send("all_gather", self.mesh.names[-1], 1, None, reason)

    def after_forward(self) -> None:
        """Keep only this rank's pieces, if that is asked for."""
        if self.frees if self.frees is not None else not self.outermost:
            self.gathered = False

    def before_backward(self) -> None:
        """Backward reaches the results of the module."""
        if self.passed:
            self.passed = False
            self.gather("parameters before backward")
            if self.ahead and self in self.order and (at := self.order.index(self)) > 0:
                self.order[at - 1].gather("parameters of the group that comes next in backward")

    def after_backward(self) -> None:
        """Backward has left the module."""
        if self.passed:
            return
        self.passed, self.gathered = True, False
        reached = [p for p in self.params if p.grad is not None]
        if not self.syncs or not reached:
            return
        for p in reached:  # what tensor parallelism has left pending
            if p.layout is not None and p.grad is not None and p.grad.layout != p.layout:
                p.grad = self.front.world.moved(p.grad, p.layout, "a gradient before it is scattered")
        self._send(
            "reduce_scatter", self.mesh.names[-1], self.mesh.shape[-1], self.reduce_dtype, "gradients of the group"
        )
        if self.mesh.ndim > 1:
            self._send("all_reduce", self.mesh.names[0], 1, self.reduce_dtype, "gradients, over the copies")


def fully_shard(
    front: Any, module: Any, mesh: Any = None, reshard_after_forward: Any = None, mp_policy: Any = None,
    comm_fusion: bool = False, mixed_precision: Any = None, shard_placement_fn: Any = None, **kw: Any,
) -> Any:  # fmt: skip
    """Parameters that no group has yet become one."""
    if reshard_after_forward not in (None, True, False) or shard_placement_fn is not None:
        raise NotRead("reshard_after_forward of a number, and shard_placement_fn, are not read")
    several = list(module) if isinstance(module, (list, tuple)) else [module]
    policy = (mp_policy or mixed_precision or Instance(None)).names
    gather_dtype, reduce_dtype = (dtype_of(d) if (d := policy.get(f"{k}_dtype")) else None for k in ("param", "reduce"))
    owned = {id(p) for g in front.groups for p in g.params}
    params = [p for one in several for _, p in parameters(one) if id(p) not in owned]
    frees = True if front.hyper and reshard_after_forward is None else reshard_after_forward
    over = mesh or DeviceMesh((front.devices,))
    each = front.hyper and not comm_fusion
    group = Group(front, several, over, params, frees, gather_dtype, reduce_dtype, each, ahead=not front.hyper)
    front.groups.append(group)
    for one in several:
        one.names |= {"group": group, "marks": ("FSDPModule", "HSDPModule")}
    return module


# ---- optimizers ----


def optimizer(front: Any, params: Any, *args: Any, **kw: Any) -> Instance:
    """Anything that reads gradients and writes parameters."""
    groups = [one["params"] if isinstance(one, dict) else [one] for one in front.reader.items(params)]
    pairs = [p[1] if isinstance(p, tuple) else p for group in groups for p in front.reader.items(group)]
    return Instance(None, {"params": [p for p in pairs if isinstance(p, Sym)]}, "optimizer")


def step(front: Any, of: Instance, *args: Any) -> None:
    """A parameter takes its gradient in its own layout."""
    for p in of.names["params"]:
        if p.grad is not None and p.layout is not None and p.grad.layout is not None:
            front.world.moved(p.grad, p.layout, "the optimizer reads a gradient")


def zero_grad(front: Any, of: Instance, *args: Any, **kw: Any) -> None:
    """No gradients."""
    for p in of.names["params"] if of.kind == "optimizer" else [p for _, p in parameters(of)]:
        p.grad = None


def clip_grad_norm_(front: Any, params: Any, *args: Any, **kw: Any) -> None:
    """One norm of all gradients: those of parameters that lie alike are summed in one message per axis."""
    alike: dict[tuple[str, ...], int] = {}
    for p in front.reader.items(params):
        if p.grad is not None:
            axes = [g.mesh.names[-1] for g in front.groups if any(p is q for q in g.params)]
            pairs = zip(p.layout.mesh.names, p.layout.placements, strict=True) if p.layout is not None else ()
            key = (*axes, *(name for name, placement in pairs if placement != Replicate()))
            alike[key] = alike.get(key, 0) + 1
    for axes, count in alike.items():
        for axis in axes:
            front.world.send("all_reduce", axis, (count,), "float32", "sum", "the norm of all gradients")


def _set_sync(front: Any, of: Instance, syncs: bool, **kw: Any) -> None:
    below = {id(one) for _, one in modules(of)}
    for group in front.groups:
        group.syncs = syncs if id(group.modules[0]) in below else group.syncs


def _hold(front: Any, of: Instance, name: str, value: Any, **kw: Any) -> None:
    of.names[name] = value


_CHANGES_NOTHING = ("to", "cuda", "train", "eval", "set_train", "bfloat16", "float", "half", "apply", "requires_grad_")


_SCHEDULES = ("StepLR", "LambdaLR", "CosineAnnealingLR", "LinearLR")


class ModuleFront(TorchFront):
    """PyTorch with layers."""

    hyper = False
    calls: ClassVar[Table] = {
        **CALLS,
        **{f"nn.{kind}": make for kind, make in LAYERS.items()},
        **STYLES,
        "parallelize_module": parallelize_module,
        "fully_shard": fully_shard,
        "MixedPrecisionPolicy": lambda front, **kw: Instance(None, kw, "policy"),
        "loss_parallel": lambda front: Name("split loss"),
        "clip_grad_norm_": clip_grad_norm_,
        **{f"lr_scheduler.{n}": lambda front, *args, **kw: optimizer(front, []) for n in _SCHEDULES},
        **{f"optim.{name}": optimizer for name in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop")},
    }
    methods: ClassVar[dict[type, Table]] = {
        **TorchFront.methods,
        Instance: {
            **TorchFront.methods[Instance],
            "__init__": lambda front, of, *args, **kw: None,
            **{
                n: lambda front, of, *args, **kw: [p for _, p in parameters(of)]
                for n in ("parameters", "trainable_params")
            },
            **{n: lambda front, of, *args, **kw: parameters(of) for n in ("named_parameters", "parameters_and_names")},
            "modules": lambda front, of: [m for _, m in modules(of)],
            "named_modules": lambda front, of: list(modules(of)),
            **{n: lambda front, of: list(children(of).items()) for n in ("named_children", "items")},
            **{n: lambda front, of: list(children(of).values()) for n in ("children", "values", "iter")},
            "[]": lambda front, of, key: list(children(of).values())[key] if isinstance(key, int) else of.names[key],
            "append": lambda front, of, held: _hold(front, of, str(len(children(of))), held),
            **dict.fromkeys(("register_buffer", "register_parameter", "add_module"), _hold),
            "get_submodule": lambda front, of, path: under(of, path)[0],
            **{name: lambda front, of, *args, **kw: of for name in _CHANGES_NOTHING},
            "forward": lambda front, of, *args, **kw: front.invoke(of, list(args), kw),
            "step": step,
            **dict.fromkeys(("zero_grad", "zero_grads"), zero_grad),
            **dict.fromkeys(("set_requires_gradient_sync", "set_requires_grad_sync"), _set_sync),
            "set_reduce_op_type": lambda front, of, kind: None,
        },
    }

    def __init__(self, world: Any, devices: int) -> None:
        super().__init__(world, devices)
        self.groups: list[Group] = []
        self.running: list[Group] = []
        self.order: list[Group] = []

    def invoke(self, of: Instance, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A layer's forward, with what was hung before and after it."""
        if of.kind == "optimizer":  # MindSpore: optimizer(gradients)
            return step(self, of)
        method = None if of.of is None else of.of.find("forward") or of.of.find("construct")
        if method is None and of.kind not in FORWARD:
            return super().invoke(of, args, kwargs)
        group = of.names.get("group")
        args = self._entered(group, args) if group else args
        for hook in of.names.get("before forward", ()):
            args = hook(args)
        run = self.reader.run if method is not None else lambda of, args, kw: FORWARD[of.kind](self, *args, **kw)
        out = run(method or of, [of, *args], kwargs)
        for hook in of.names.get("after forward", ()):
            out = hook(out)
        return self._left(group, out) if group else out

    def _entered(self, group: Group, args: list[Any]) -> list[Any]:
        if group.waiting:  # another module of the group has begun
            return args
        group.waiting = len(group.modules)
        if not self.running:
            self.order = []
        group.outermost, group.order = not self.running, self.order
        self.running.append(group)
        group.gather("parameters before forward")
        tensors = {id(a): a for a in args if isinstance(a, Sym) and a.requires_grad}
        copies = {key: self._copy(a) for key, a in tensors.items()}

        def rule(*grads: Any) -> Sequence[Any]:
            group.after_backward()
            return grads

        self.world.keep("fully_shard", list(tensors.values()), list(copies.values()), rule)
        return [copies.get(id(a), a) for a in args]

    def _copy(self, x: Sym) -> Sym:
        return self.world.tensor(x.shape, str(x.dtype), x.layout, made_of=(x,))

    def _left(self, group: Group, out: Any) -> Any:
        group.waiting -= 1
        if group.waiting:
            return out
        self.running.remove(group)
        group.after_forward()
        self.order += [group] if group.params else []
        if not isinstance(out, Sym) or not out.requires_grad:
            return out
        made = self._copy(out)

        def rule(g: Any) -> Sequence[Any]:
            group.before_backward()
            return [g]

        self.world.keep("fully_shard", [out], [made], rule)
        return made

    def backward_ended(self) -> None:
        """Groups whose inputs need no gradient scatter theirs at the end."""
        self.world.phase = "backward"
        for group in sorted(self.groups, key=lambda g: not g.outermost):
            group.after_backward()
        self.world.phase = "forward"
