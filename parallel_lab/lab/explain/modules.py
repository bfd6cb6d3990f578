"""Layers of a program as Cells of ours, so that our `parallelize_module`, `fully_shard` and hooks work on them.

A class of the program that inherits from Module or Cell becomes a `Module`, a Cell whose construct reads the program's
forward; so does a layer that the program makes by its name ("Linear"). Their parameters have no values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from ...base.dtypes import as_dtype
from ...base.errors import shorten
from ...layout.device_mesh import DeviceMesh
from ...layout.mesh_layout import Replicate
from ...nn import fully_shard as sharding, parallel_styles as styles
from ...nn.cell import Cell
from ...nn.tensor.dtensor import RankTensors
from ...nn.tensor.dtensor_parameter import DTensorParameter, hold, reduced
from ...nn.tensor.dtensor_parts import Parts, hollow, replicated
from ...nn.tensor.tape import history
from . import data_parallel, pipelines
from .front import DTYPES, Front, Table, dtype_of, entry_for, last, op, shape_of
from .torch_names import CALLS, FUNCTIONAL, OPERATORS, PLACEMENTS, TorchFront, distribute_tensor, from_local, placed
from .values import Class, Instance, Name, NotRead, needed
from .world import now

# ---- layers ----


class RankParameter(RankTensors):
    """A parameter that no mesh has yet: each rank has all of it."""

    __slots__ = ("name",)

    def __init__(self, like: RankTensors, wanted: bool = True) -> None:
        super().__init__(like._locals, like.mesh)
        self.name, self._wanted = "Parameter", wanted

    full_shape = property(lambda self: self.shape)

    def like(self, parts: Any, layout: Any = None, shape: Any = None) -> RankTensors:
        return RankTensors(parts, self.mesh)


class Module(Instance, Cell):
    """A layer.  of: its class in the program; None: known by its `kind`, with the arguments that it was given"""

    def __init__(self, front: Any, of: Class | None, args: Any = (), kwargs: Any = None) -> None:
        Cell.__init__(self)
        self.__dict__.update({" front": front, " of": of, " args": args, " kwargs": kwargs or {}, "training": True})

    of = property(lambda self: self.__dict__[" of"])  # type: ignore[assignment]
    names = property(lambda self: self.__dict__)  # type: ignore[assignment]
    kind = property(lambda self: "module" if self.of else type(self).layer)  # type: ignore[assignment]
    layer = ""

    def keep(self, name: str, value: Any) -> None:
        """self.name = value"""
        self.__dict__[" front"].reader.in_time()  # of thousands of layers in a list each takes longer
        if isinstance(value, Cell):
            self._params.pop(name, None)
            setattr(self, name, value)
            return
        self._cells.pop(name, None)
        if isinstance(value, (RankParameter, DTensorParameter)):
            value.name = name
            hold(self, name, value)
        else:
            self._params.pop(name, None)
            self.__dict__[name] = value

    def place(self, key: Any) -> str:
        """The name under which self[key] = ... is kept."""
        return key if isinstance(key, str) else list(self._cells)[key]

    def drop(self, key: Any) -> None:
        """del self.key, del self[key]: layers of a list are numbered again."""
        kept = list(self._cells.values())
        if numbered := self.kind in ("ModuleList", "Sequential"):
            del kept[key]
        for name in list(self._cells) if numbered else [key]:
            if name not in self.__dict__:
                raise NotRead(f"del of {shorten(name)}, which is not there")
            for held in (self._cells, self._params, self.__dict__):
                held.pop(name, None)
        for i, each in enumerate(kept if numbered else ()):
            self.keep(str(i), each)

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        front, of = self.__dict__[" front"], self.of
        method = of and (of.find("forward") or of.find("construct"))
        if method:
            return front.reader.run(method, [self, *args], kwargs)
        if self.kind not in FORWARD:
            raise NotRead("a layer without forward is called")
        return FORWARD[self.kind](front, self, *args, **kwargs)


def _layer(kind: str, *shapes: tuple[str, Callable[..., Any]]) -> Callable[..., Module]:
    """A layer with parameters.  shapes: (name, function of the layer's arguments that gives a shape, or None)"""
    made = type(kind, (Module,), {"layer": kind, "__module__": __name__})

    def make(front: Front, *args: Any, dtype: Any = None, device: Any = None, **kw: Any) -> Module:
        kw = {k: v for k, v in kw.items() if k not in ("weight_init", "bias_init")}
        of = made(front, None, args, kw)
        for name, shape in shapes:
            size = shape(*args, **kw)
            tensor = None if size is None else front.world.tensor(shape_of(size), dtype_of(dtype))
            of.keep(name, None if tensor is None else RankParameter(tensor))
        return of

    return make


def _several(kind: str) -> Callable[..., Module]:
    """A layer made of layers."""
    made = type(kind, (Module,), {"layer": kind, "__module__": __name__})

    def make(front: Front, *parts: Any) -> Module:
        of = made(front, None)
        if len(parts) == 1 and not isinstance(parts[0], Instance):
            parts = tuple(parts[0].items() if isinstance(parts[0], dict) else front.reader.items(parts[0]))
        for i, each in enumerate(parts):
            of.keep(*(each if isinstance(each, tuple) else (str(i), each)))
        return of

    return make


def _in_order(front: Any, of: Module, x: Any) -> Any:
    for each in of._cells.values():
        x = front.invoke(each, [x], {})
    return x


def _norm(shape: Any, eps: Any = 0, elementwise_affine: bool = True, bias: bool = True, **kw: Any) -> list[Any]:
    """Shapes of a norm: that it is taken over, of its weight, of its bias."""
    own = (shape,) if isinstance(shape, int) else tuple(shape)
    return [own, own if elementwise_affine else None, own if elementwise_affine and bias else None]


def _norm_part(at: int) -> Callable[..., Any]:
    return lambda *args, normalized_shape=None, **kw: _norm(*(args or (normalized_shape,)), **kw)[at]


_OTHERS = ("Dropout", "Identity", "Softmax", "Flatten", "CrossEntropyLoss", "MSELoss", "NLLLoss")
ACTIVATIONS = {"ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Tanh": "tanh", "Sigmoid": "sigmoid"}
LAYERS: Table = {
    "Linear": _layer("Linear", ("weight", lambda in_features, out_features, bias=True: (out_features, in_features)),
                     ("bias", lambda in_features, out_features, bias=True: (out_features,) if bias else None)),
    "Dense": _layer("Linear", ("weight", lambda in_channels, out_channels, has_bias=True: (out_channels, in_channels)),
                    ("bias", lambda in_channels, out_channels, has_bias=True: (out_channels,) if has_bias else None)),
    "Embedding": _layer("Embedding", ("weight", lambda num_embeddings, embedding_dim, *args, **kw: (
        num_embeddings, embedding_dim))),
    "LayerNorm": _layer("LayerNorm", ("weight", _norm_part(1)), ("bias", _norm_part(2))),
    "RMSNorm": _layer("RMSNorm", ("weight", _norm_part(1))),
    **{kind: _layer(kind) for kind in (*ACTIVATIONS, *_OTHERS)},
    **dict.fromkeys(("Sequential", "SequentialCell"), _several("Sequential")),
    **dict.fromkeys(("ModuleList", "CellList"), _several("ModuleList")),
    "ModuleDict": _several("ModuleDict"),
}  # fmt: skip


def _args(of: Module) -> tuple[Any, dict[str, Any]]:
    return of.names[" args"], of.names[" kwargs"]


FORWARD: Table = {
    "Linear": lambda front, of, x: FUNCTIONAL["linear"](front, x, of.names["weight"], of.names["bias"]),
    "Embedding": lambda front, of, x: FUNCTIONAL["embedding"](front, x, of.names["weight"]),
    "LayerNorm": lambda front, of, x: FUNCTIONAL["layer_norm"](
        front, x, _norm_part(0)(*_args(of)[0], **_args(of)[1]), of.names["weight"], of.names["bias"]
    ),
    "RMSNorm": lambda front, of, x: FUNCTIONAL["rms_norm"](front, x, 1, of.names["weight"]),
    **{kind: lambda front, of, x, name=name: op(name)(x) for kind, name in ACTIVATIONS.items()},
    "Dropout": lambda front, of, x: FUNCTIONAL["dropout"](front, x),
    "Identity": lambda front, of, x: x,
    "Softmax": lambda front, of, x: OPERATORS["softmax"](front, x, *_args(of)[0], **_args(of)[1]),
    "Flatten": lambda front, of, x: OPERATORS["flatten"](front, x, *(_args(of)[0] or (1,)), **_args(of)[1]),
    "Sequential": _in_order,
    "CrossEntropyLoss": lambda front, of, x, y: FUNCTIONAL["cross_entropy"](front, x, y, **_args(of)[1]),
    "MSELoss": lambda front, of, x, y: FUNCTIONAL["mse_loss"](front, x, y, **_args(of)[1]),
}


def modules(of: Any) -> list[tuple[str, Any]]:
    """A layer and all below it, by path."""
    return list(of.cells_and_names()) if isinstance(of, Module) else []


def children(of: Any) -> dict[str, Any]:
    """The layers that a layer holds, by name."""
    return of._cells if isinstance(of, Module) else {}


def parameters(of: Any) -> list[tuple[str, Any]]:
    """The parameters of a layer and of all below it, each once, by path."""
    return of._paths() if isinstance(of, Module) else []


def parameter(front: Front, x: Any = None, requires_grad: bool = True, **kw: Any) -> Any:
    """nn.Parameter(tensor)"""
    if x.alone:
        return RankParameter(x, requires_grad)
    return DTensorParameter(x._locals, x.layout, x.shape, "Parameter", requires_grad)


def under(front: Any, of: Module, path: str) -> Module:
    """The layer at a path."""
    return dict(modules(of))[path]


# ---- parallelize_module, fully_shard ----


def _style(kind: str) -> Callable[..., Any]:
    """A parallel style with its settings."""

    def make(front: Front, *args: Any, **kw: Any) -> Any:
        given = {k: tuple(v) if isinstance(v, list) else v for k, v in kw.items()}
        return getattr(styles, kind)(*args, **given)

    return make


STYLES: Table = {
    kind: _style(kind)
    for kind in (
        "ColwiseParallel", "RowwiseParallel", "SequenceParallel", "PrepareModuleInput", "PrepareModuleOutput"
    )
}  # fmt: skip


def parallelize_module(
    front: Any, module: Module, device_mesh: Any = None, parallelize_plan: Any = None, **kw: Any
) -> Any:
    """Styles for layers, by path."""
    if not isinstance(device_mesh, DeviceMesh):
        raise NotRead("the mesh is not known")
    known = [path for path, _ in modules(module)]
    plan = parallelize_plan if isinstance(parallelize_plan, styles.ParallelStyle) else dict(parallelize_plan or {})
    if isinstance(plan, dict) and (missing := [p for p in plan if not styles.matching(known, p)]):
        raise NotRead(f"the plan names layers that are not there: {missing}")
    before = {id(p) for _, p in parameters(module) if isinstance(p, DTensorParameter)}
    styles.parallelize_module(module, device_mesh, plan)
    for path, p in parameters(module):
        if isinstance(p, DTensorParameter) and id(p) not in before:
            front.world.note(f"{path}, parallelized", p.layout.code, p)
    return module


def fully_shard(
    front: Any,
    module: Any,
    mesh: Any = None,
    reshard_after_forward: Any = None,
    mp_policy: Any = None,
    comm_fusion: bool = False,
    mixed_precision: Any = None,
    shard_placement_fn: Any = None,
    offload_policy: Any = None,
) -> Any:
    """Parameters that no group has yet become one."""
    several = list(module) if isinstance(module, (list, tuple)) else [module]
    given = (mp_policy or mixed_precision or Instance(None)).names
    policy = {k: dtype_of(v) if k.endswith("dtype") and v is not None else v for k, v in given.items()}
    choose = shard_placement_fn and (lambda p: front.reader.call(shard_placement_fn, [p], {}))
    sharding.fully_shard(
        several,
        mesh=mesh or DeviceMesh((front.devices,)),
        reshard_after_forward=True if front.hyper and reshard_after_forward is None else reshard_after_forward,
        shard_placement_fn=choose,
        mp_policy=sharding.MixedPrecisionPolicy(**policy),
    )
    for one in several:
        one.names["marks"] = ("FSDPModule", "HSDPModule")
        if front.hyper and not comm_fusion:
            one.names["_group"].__class__ = OneByOne
    return module


class OneByOne(sharding.Group):
    """HyperParallel without comm_fusion: a message for each parameter, and nothing is gathered in advance."""

    ahead = False

    def _messages_of(self, shapes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        return shapes


# ---- activation checkpointing ----

# operators that keep nothing for their gradients
KEEPS_NOTHING = (
    "add", "sub", "neg", "identity", "reshape", "transpose", "swapaxes", "expand_dims", "squeeze", "broadcast_to",
    "concat", "stack", "split_parts", "slice", "strided_slice", "reduce_sum", "reduce_mean", "cast", "flatten",
)  # fmt: skip


def checkpoint(front: Any, of: Any, *args: Any, use_reentrant: Any = None, **kwargs: Any) -> Any:
    """What `of` computes, and in backward once more, up to the last of what was kept for gradients."""
    kwargs = {k: v for k, v in kwargs.items() if k not in ("preserve_rng_state", "determinism_check", "debug")}
    if "context_fn" in kwargs or "early_stop" in kwargs:
        raise NotRead("a checkpoint that chooses what to keep is not read")
    if use_reentrant is not False:
        raise NotRead("use_reentrant=True, the default, is not read")
    since = now()
    out = front.reader.call(of, list(args), kwargs)
    tensors = [x for x in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(x, Parts)]
    kept = {x.node.order: x.node for t in tensors for x in history(t, since) if _keeps(x.node.op)}
    if kept:
        kept[max(kept)].hooks.append(lambda g: front.world.again(since, max(kept)))
    return out


def _keeps(op: Any) -> bool:
    return (op.vjp_fn is not None or op.name in ("matmul", "power")) and op.name not in KEEPS_NOTHING


def checkpoint_wrapper(front: Any, module: Module, *args: Any, **kwargs: Any) -> Module:
    """A layer around another, whose forward is recomputed."""
    if last(kwargs.pop("checkpoint_impl", "NO_REENTRANT")) != "NO_REENTRANT":
        raise NotRead("use_reentrant=True is not read")
    return front.layer("CheckpointWrapper", kwargs, _checkpoint_wrapped_module=module)


def apply_checkpointing(
    front: Any, model: Module, checkpoint_wrapper_fn: Any = None, check_fn: Any = None, auto_wrap_policy: Any = None
) -> None:
    """checkpoint_wrapper for each layer that a function of the program chooses."""
    if auto_wrap_policy is not None:
        raise NotRead("auto_wrap_policy is not read")
    wrap = checkpoint_wrapper_fn or Name("checkpoint_wrapper")
    for _, one in modules(model):
        for name, child in list(children(one).items()):
            if check_fn is None or front.reader.call(check_fn, [child], {}):
                one.keep(name, front.reader.call(wrap, [child], {}))


FORWARD["DistributedDataParallel"] = data_parallel.forward
FORWARD["CheckpointWrapper"] = lambda front, of, *args, **kw: checkpoint(
    front, of.names["_checkpoint_wrapped_module"], *args, **{"use_reentrant": False, **of.names[" kwargs"], **kw}
)


# ---- optimizers ----


def optimizer(front: Any, params: Any, *args: Any, reads: int = 1, **kw: Any) -> Instance:
    """Anything that reads gradients and writes parameters.  reads: how often it reads a gradient; 0: not known"""
    groups = [one["params"] if isinstance(one, dict) else [one] for one in front.reader.items(params)]
    pairs = [p[1] if isinstance(p, tuple) else p for group in groups for p in front.reader.items(group)]
    return Instance(None, {"params": [p for p in pairs if isinstance(p, Parts)], "reads": reads}, "optimizer")


def step(front: Any, of: Instance, *args: Any, **kwargs: Any) -> None:
    """A parameter takes its gradient in its own layout, each time that the rule reads it; a pipeline runs a batch."""
    if of.kind == "pipeline schedule":
        pipelines.run(front, of, args, kwargs, True)
    for p in of.names.get("params", ()):
        if p.grad is not None and p.grad.layout != p.layout and not of.names["reads"]:
            raise NotRead("what this optimizer does with a gradient that lies otherwise than its parameter is not read")
        for _ in range(of.names["reads"]):
            reduced(p, "the optimizer")


def zero_grad(front: Any, of: Instance, *args: Any, **kw: Any) -> None:
    """No gradients."""
    for p in of.names["params"] if of.kind == "optimizer" else [p for _, p in parameters(of)]:
        p.grad = None


def clip_grad_norm_(front: Any, params: Any, max_norm: Any, norm_type: Any = 2.0, *args: Any, **kw: Any) -> Any:
    """The norm of gradients."""
    several = [params] if isinstance(params, Parts) else front.reader.items(params)
    return total_norm(front, [p.grad for p in several], norm_type)


def total_norm(front: Any, tensors: Any, norm_type: Any = 2.0, *args: Any, **kw: Any) -> Any:
    """One norm of all: theirs are summed together, in one message along each axis that splits some."""
    if norm_type != 2:
        raise NotRead("another norm than that of squares is not read")
    given = [tensors] if isinstance(tensors, Parts) else front.reader.items(tensors)
    grads = [g for g in given if g is not None and not g.alone and not front.flat]  # flat: each rank has its own norm
    if any(g.layout.pending for g in grads) or len({g.mesh for g in grads}) > 1:
        raise NotRead(
            "the norm of gradients that are pending, or on several meshes (which PyTorch refuses), is not read"
        )
    for axis, *placements in zip(grads[0].mesh.names, *(g.placements for g in grads), strict=True) if grads else ():
        if any(p != Replicate() for p in placements):
            front.world.send("all_reduce", axis, front.world.tensor((len(grads),)), "sum", "the norm of all gradients")
    return front.world.tensor((), layout=replicated(grads[0].mesh)) if grads else front.number()


def _called(name: str) -> Callable[..., Any]:
    """A method that our layers have too."""
    return lambda front, of, *args, **kw: getattr(of, name)(*args, **kw)


def cast_module(front: Front, of: Any, *args: Any, dtype: Any = None, **kw: Any) -> Any:
    """model.to(device, dtype): floats get the dtype."""
    dtype = next((a for a in args if last(a) in DTYPES), dtype)
    for _, p in parameters(of) if dtype is not None else ():
        if p.dtype.kind == "f" or str(p.dtype) == "bfloat16":
            p._locals = {rank: hollow(x.shape, dtype_of(dtype), (x,)) for rank, x in p._locals.items()}
            p._dtype = as_dtype(dtype_of(dtype))
    return of


def _requires_grad(front: Front, of: Any, requires_grad: bool = True) -> Any:
    for _, p in parameters(of):
        p._wanted = requires_grad
    return of


_CHANGES_NOTHING = ("cuda", "to_empty", "reset_parameters", "init_weights", "train", "set_train", "apply", "compile")
_SCHEDULES = ("StepLR", "LambdaLR", "CosineAnnealingLR", "LinearLR", "SequentialLR", "ConstantLR", "MultiStepLR")
_SHARDED = ("set_requires_gradient_sync", "set_requires_all_reduce", "set_reshard_after_forward", "unshard", "reshard")


class ModuleFront(TorchFront):
    """PyTorch with layers."""

    hyper = flat = False  # flat: whether there are groups of FullyShardedDataParallel
    calls: ClassVar[Table] = {
        **CALLS,
        **{f"nn.{kind}": make for kind, make in LAYERS.items()},
        **STYLES,
        **pipelines.PIPELINES,
        **data_parallel.FEEDS,
        "Parameter": parameter,
        "parallelize_module": parallelize_module,
        "fully_shard": fully_shard,
        "MixedPrecisionPolicy": lambda front, **kw: Instance(None, kw, "policy"),
        "fsdp.MixedPrecision": lambda front, buffer_dtype=None, **kw: Instance(None, kw, "policy"),
        "loss_parallel": lambda front: Name("split loss"),
        "clip_grad_norm_": clip_grad_norm_,
        "get_total_norm": total_norm,
        "clip_grads_with_norm_": lambda front, parameters, max_norm, total_norm, foreach=None: None,
        "checkpoint.checkpoint": checkpoint,
        "checkpoint_wrapper": checkpoint_wrapper,
        "apply_activation_checkpointing": apply_checkpointing,
        **{f"lr_scheduler.{n}": lambda front, *args, **kw: optimizer(front, []) for n in _SCHEDULES},
        "optim.SGD": optimizer,  # Adam: the mean's lerp_, and both factors of the square's addcmul_
        **{f"optim.{n}": partial(optimizer, reads=3) for n in ("Adam", "AdamW")},
        **{f"optim.{n}": partial(optimizer, reads=0) for n in ("Adagrad", "RMSprop")},
    }
    methods: ClassVar[dict[type, Table]] = {
        **TorchFront.methods,
        Instance: {
            **TorchFront.methods[Instance],
            "__init__": lambda front, of, *args, **kw: None,
            **dict.fromkeys(
                ("parameters", "trainable_params"), lambda front, of, *args, **kw: [p for _, p in parameters(of)]
            ),
            **dict.fromkeys(
                ("named_parameters", "parameters_and_names"), lambda front, of, *args, **kw: parameters(of)
            ),
            "modules": lambda front, of: [m for _, m in modules(of)],
            "named_modules": lambda front, of: modules(of),
            **dict.fromkeys(("named_children", "items"), lambda front, of: list(children(of).items())),
            **dict.fromkeys(("children", "values"), lambda front, of: list(children(of).values())),
            "keys": lambda front, of: list(children(of)),
            "iter": lambda front, of: (
                data_parallel.batches(front, of)
                if of.kind in ("loader", "tensors")
                else list(children(of) if of.kind == "ModuleDict" else children(of).values())
            ),
            "no_sync": lambda front, of: data_parallel.no_sync(of),
            "clip_grad_norm_": data_parallel.flat_norm,
            "state_dict": lambda front, of: dict(parameters(of)),
            "load_state_dict": lambda front, of, state, **kw: None,
            "set_epoch": lambda front, of, epoch: None,
            "[]": lambda front, of, key: (
                list(children(of).values())[key] if isinstance(key, (int, slice)) else of.names[key]
            ),
            "append": lambda front, of, held: of.keep(str(len(children(of))), held),
            **dict.fromkeys(
                ("register_buffer", "register_parameter", "add_module", "register_module"),
                lambda front, of, name, value=None, **kw: of.keep(name, value),
            ),
            "get_submodule": under,
            "build_stage": pipelines.build_stage,
            **dict.fromkeys(_CHANGES_NOTHING, lambda front, of, *args, **kw: of),
            "to": cast_module,
            **{
                name: lambda front, of, name=name: cast_module(front, of, dtype=name)
                for name in ("bfloat16", "float", "half", "double")
            },
            "requires_grad_": _requires_grad,
            "forward": lambda front, of, *args, **kw: of.construct(*args, **kw),
            "step": step,
            "eval": lambda front, of, *args, **kw: (
                pipelines.run(front, of, args, kw, False) if of.kind == "pipeline schedule" else of
            ),
            **dict.fromkeys(("zero_grad", "zero_grads"), zero_grad),
            **{name: _called(name) for name in _SHARDED},
            "set_requires_grad_sync": _called("set_requires_gradient_sync"),
            "set_reduce_op_type": lambda front, of, kind: None,
        },
    }

    def layer(self, kind: str, settings: Any = None, **layers: Any) -> Module:
        """A layer of this kind around others."""
        of = type(kind, (Module,), {"layer": kind, "__module__": __name__})(self, None, (), settings)
        for name, each in layers.items():
            of.keep(name, each)
        return of

    def made(self, of: Class) -> Instance:
        """An object of a class of the program, before its __init__."""
        return Module(self, of) if of.inherits("Module") or of.inherits("Cell") else Instance(of)

    def attribute(self, holder: Any, name: str) -> Any:
        """holder.name; of a layer that is wrapped for recomputing, that of the layer within."""
        if getattr(holder, "kind", "") == "CheckpointWrapper" and entry_for(self.methods, holder, name) is None:
            return self.reader.attribute(holder.names["_checkpoint_wrapped_module"], name)
        return super().attribute(holder, name)

    def invoke(self, of: Instance, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A layer's forward, with what was hung before and after it."""
        if of.kind == "optimizer":  # MindSpore: optimizer(gradients)
            return step(self, of)
        return of(*args, **kwargs) if isinstance(of, Module) else super().invoke(of, args, kwargs)


def local_map(
    front: Front,
    func: Any = None,
    out_placements: Any = None,
    in_placements: Any = None,
    in_grad_placements: Any = None,
    device_mesh: Any = None,
    *,
    redistribute_inputs: bool = False,
) -> Any:
    """A function of parts, called with distributed tensors: their parts go in, and its results lie as is said."""
    if func is None:
        given = out_placements, in_placements, in_grad_placements, device_mesh
        return lambda made: local_map(front, made, *given, redistribute_inputs=redistribute_inputs)
    if in_grad_placements is not None:
        raise NotRead("local_map with in_grad_placements is not read")

    def run(*args: Any, **kw: Any) -> Any:
        spread = [x for x in args if isinstance(x, Parts) and not x.alone]
        mesh = device_mesh or (spread[0].mesh if spread else None)
        several = list(in_placements) if in_placements is not None else [None] * len(args)
        given = []
        for x, want in zip(args, several, strict=True):
            if isinstance(x, Parts) and not x.alone:
                to = x.layout if want is None else placed(front, mesh, want).on(x.ndim)
                if to != x.layout and not redistribute_inputs:
                    raise NotRead("refused: an input of local_map that lies otherwise, without redistribute_inputs")
                x = x.redistribute(to, reason="local_map").to_local()
            given.append(x)
        out = needed(front.reader.call(func, given, kw))
        results = list(out) if isinstance(out, (tuple, list)) else [out]
        single = not isinstance(out_placements, (tuple, list)) or isinstance(
            next(iter(out_placements), None), PLACEMENTS
        )
        wanted = [out_placements] if single else list(out_placements)
        if len(wanted) != len(results):
            raise NotRead("refused: local_map has another number of results")
        made = [from_local(front, x, mesh, w) if w is not None else x for x, w in zip(results, wanted, strict=True)]
        return type(out)(made) if isinstance(out, (tuple, list)) else made[0]

    return run


def distribute_module(
    front: Any,
    module: Any,
    device_mesh: Any = None,
    partition_fn: Any = None,
    input_fn: Any = None,
    output_fn: Any = None,
) -> Any:
    """Parameters by `partition_fn` (name, layer, mesh), the others copies; inputs and outputs by functions."""
    for path, one in modules(module):
        if partition_fn is not None:
            front.reader.call(partition_fn, [path, one, device_mesh], {})
        for name, p in list(one._params.items()):
            if not isinstance(p, DTensorParameter):
                one.keep(name, parameter(front, distribute_tensor(front, p, device_mesh), p.requires_grad))
    if input_fn is not None:
        module.register_forward_pre_hook(lambda of, args: front.reader.call(input_fn, [of, args, device_mesh], {}))
    if output_fn is not None:
        module.register_forward_hook(lambda of, args, out: front.reader.call(output_fn, [of, out, device_mesh], {}))
    return module


ModuleFront.calls["distribute_module"] = distribute_module
ModuleFront.calls["local_map"] = local_map
