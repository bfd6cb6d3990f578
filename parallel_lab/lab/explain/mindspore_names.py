"""What names of MindSpore mean where that is more than the object that a script finds: settings, tensors, training.

A network is read and compiled by `mindspore_front.py`, datasets are in `mindspore_data.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from ...base.hooks import current_tracer
from ...base.settings.checks import SHARDED_MODES
from ...base.settings.context import reset_auto_parallel_context, set_auto_parallel_context, set_context
from ...base.settings.current import frozen, get_auto_parallel_context, is_set
from ...nn.cell import Cell
from ...nn.initializer import initializer
from ...nn.tensor.arithmetic import Arithmetic
from ...nn.tensor.parameter import Parameter
from ...nn.tensor.tensor import Tensor
from ...train.auto_parallel import AutoParallel
from ...train.model import Model
from .front import METHODS, PYTHON, Table
from .mindspore_data import DATA, DATASET_METHODS, columns_of
from .mindspore_front import SETTINGS, MindFront, hollow, looked_up
from .values import Function, Instance, Name, NotRead, needed


def from_file(*args: Any, **kw: Any) -> None:
    """AutoParallel.load_param_strategy_file and its like: they change what is sent."""
    raise NotRead("strategies of a file are not read")


def settings(front: Any, *args: Any, **given: Any) -> None:
    """set_auto_parallel_context: but for files."""
    files = [key for key in given if key.endswith("file") or key == "strategy_ckpt_config"]
    if any("load" in key for key in files):
        from_file()
    kept = {key: front.given(value) for key, value in given.items() if key not in files}
    if front.fixed and kept.get("device_num", front.devices) != front.devices:
        raise NotRead(f"device_num={kept['device_num']}, and {front.devices} ranks are started")
    set_auto_parallel_context(**kept)
    front.devices = kept.get("device_num", front.devices)


def started(front: Any, *args: Any, **kw: Any) -> None:
    """init()"""
    front.started = True
    if not is_set("device_num"):
        set_auto_parallel_context(device_num=front.devices)


def reset(front: Any) -> None:
    """reset_auto_parallel_context(): but for the ranks that are started."""
    reset_auto_parallel_context()
    if front.started:
        started(front)


def tensor(
    front: Any, input_data: Any = None, dtype: Any = None, shape: Any = None, init: Any = None, **kw: Any
) -> Any:
    """Tensor(...): of an array, with the array's shape."""
    if input_data is None:
        return hollow(front.given(shape), front.given(dtype))
    kind = None if dtype is None else front.given(dtype)
    if isinstance(input_data, Tensor):
        return hollow(input_data.shape, kind or input_data.dtype)
    return Tensor(front.given(input_data), kind)


def array(front: Any, value: Any, dtype: Any = None, **kw: Any) -> Any:
    """numpy.array"""
    made = value if isinstance(value, Tensor) else Tensor(np.array(front.given(value)))
    return made if dtype is None else hollow(made.shape, front.given(dtype))


def filled(default: str) -> Callable[..., Any]:
    """numpy.ones(shape, dtype) and the like."""
    return lambda front, shape=(), dtype=None, *args, **kw: hollow(
        (shape,) if isinstance(shape, int) else shape or kw.get("size", ()),
        default if dtype is None else front.given(dtype),
    )


def drawn(dtype: str) -> Callable[..., Any]:
    """numpy.random.randn(2, 3), uniform(0, 1, size)"""

    def run(front: Any, *sizes: Any, size: Any = None, **kw: Any) -> Any:
        size = size if size is not None else next((s for s in sizes if isinstance(s, (tuple, list))), sizes)
        return hollow((size,) if isinstance(size, int) else size, front.given(kw["dtype"]) if "dtype" in kw else dtype)

    return run


def parameter(front: Any, default_input: Any, *args: Any, **kw: Any) -> Any:
    """Parameter: without values."""
    value = front.given(default_input)
    if type(value) is Tensor and not any(value.asnumpy().strides):
        value = initializer("zeros", list(value.shape), value.dtype)
    return Parameter(value, *front.given(args), **front.given(kw))


def gradient(name: str) -> Callable[..., Any]:
    """value_and_grad, grad: a function that is compiled where it is called outside of a network."""

    def run(front: Any, *args: Any, **kw: Any) -> Any:
        made = looked_up(name)(*front.given(args), **front.given(kw))
        at_once = {"parallel_mode": "stand_alone"}  # in other modes it runs where it stands, and sends nothing
        return front.compiling(made, made, settings=lambda: {} if frozen().parallel_mode in SHARDED_MODES else at_once)

    return run


def jitted(front: Any, fn: Any = None, **kw: Any) -> Any:
    """jit; of a method what it is"""
    if fn is None:
        return lambda of: jitted(front, of)
    first = fn.node.args.args[:1] if isinstance(fn, Function) else ()
    of = front.given(fn)
    if [a.arg for a in first] == ["self"]:
        return fn
    front.at_once.append(front.compiling(fn, of))
    return front.at_once[-1]


def model(front: Any, network: Any, loss_fn: Any = None, optimizer: Any = None, **kw: Any) -> Model:
    """Model, without what its evaluation has."""
    more = {k: front.given(v) for k, v in kw.items() if k in ("amp_level", "loss_scale_manager", "keep_batchnorm_fp32")}
    return Model(*front.given((network, loss_fn, optimizer)), **more)


def trained(front: Any, of: Model, *args: Any, **kw: Any) -> None:
    """Model.train, fit, build: one step on the first batch of a dataset."""
    dataset = kw.get("train_dataset") or next((a for a in args if isinstance(a, Instance)), None)
    columns = tuple(hollow(*column) for column in columns_of(needed(dataset)))
    of._network.set_train(True)
    step = of._train_step
    if step._compiled is None:
        return
    if frozen().parameter_broadcast and id(of) not in front.functions:
        front.functions[id(of)] = of, step._compiled
        for p in step._parameters():
            front.sent(
                "broadcast", hollow(p.full_shape, p.dtype), "parameter_broadcast: all start with rank 0's values"
            )
    front.compiled(step._compiled, columns)


def predicted(front: Any, of: Model, *args: Any, **kw: Any) -> Any:
    """Model.predict: the network alone."""
    of._network.set_train(False)
    return front.ask(of._network, [a for a in args if isinstance(a, Tensor)], {})


def reshaped(front: Any, x: Any, *shape: Any) -> Any:
    """x.reshape(2, -1)"""
    if not isinstance(x, Tensor) or current_tracer.get() is not None:
        return front.ask(x.reshape, list(shape), {})
    return hollow(np.broadcast_to(np.zeros(()), x.shape).reshape(*front.given(shape)).shape, x.dtype)


def cast(front: Any, x: Any, dtype: Any, *args: Any, **kw: Any) -> Any:
    """x.astype(dtype)"""
    if isinstance(x, Tensor) and current_tracer.get() is None:
        return hollow(x.shape, front.given(dtype))
    return front.ask(x.astype, [dtype], {})


def number(name: str) -> Callable[..., Any]:
    """float, int; of a tensor the tensor, whose value is not known"""
    return lambda front, *given: given[0] if isinstance(given[0], Tensor) else PYTHON[f"builtins.{name}"](front, *given)


# ---- messages by hand: mint.distributed gives them in place, comm_func as results ----


def _handed(front: Any, kind: str, x: Any, op: Any, group: Any, why: str = "asked for") -> Name:
    """Note a message outside of networks, over all ranks."""
    if not isinstance(x, Tensor) or current_tracer.get() is not None or group not in (None, *WORLD):
        raise NotRead(f"{kind} of this, or among some of the ranks, is not read")
    if not front.started:
        raise NotRead("refused: a message before init()")
    reduce = str(front.given(op)) if kind in ("all_reduce", "reduce_scatter", "reduce") else ""
    front.sent(kind, x, why, reduce)
    return Name("work")


def in_place(kind: str, at: int, *names: str) -> Callable[..., Any]:
    """A function of mint.distributed.  at: which argument is handed over;  names: of those behind it"""

    def run(front: Any, *args: Any, async_op: bool = False, **kw: Any) -> Any:
        more = dict(zip(names, args[at + 1 :], strict=False)) | kw
        if set(more) - set(names) or not at < len(args) <= at + 1 + len(names):
            raise NotRead(f"{kind} with these arguments is not read")
        end = next(
            (f"rank 0 -> {more[k]}" if k == "dst" else f"rank {more[k]} -> 0" for k in ("dst", "src") if k in more), ""
        )
        return _handed(front, kind, args[at], more.get("op", "sum"), more.get("group"), end or "asked for")

    return run


def with_result(kind: str, shape: Callable[[tuple[int, ...], int], Sequence[int]]) -> Callable[..., Any]:
    """A function of comm_func.  shape: of the result, from what is handed over and the number of ranks"""

    def run(front: Any, tensor: Any, op: Any = "sum", group: Any = None, async_op: bool = False) -> Any:
        if op in WORLD or op is None:  # all_gather_into_tensor(tensor, group)
            op, group = "sum", op
        work = _handed(front, kind, tensor, op, group)
        return hollow(shape(tuple(tensor.shape), front.devices), tensor.dtype), work

    return run


WORLD = ("hccl_world_group", "nccl_world_group", "mccl_world_group")
_TO, _BY = ("op", "group"), ("group",)
BY_HAND: Table = {
    "distributed.all_reduce": in_place("all_reduce", 0, *_TO),
    **dict.fromkeys(("distributed.all_gather", "distributed.all_gather_into_tensor"), in_place("all_gather", 1, *_BY)),
    "distributed.reduce_scatter_tensor": in_place("reduce_scatter", 1, *_TO),
    "distributed.all_to_all_single": in_place("all_to_all", 1),
    "distributed.broadcast": in_place("broadcast", 0, "src", "group"),
    "distributed.reduce": in_place("reduce", 0, "dst", *_TO),
    **dict.fromkeys(("distributed.send", "distributed.isend"), in_place("send", 0, "dst", "group")),
    **dict.fromkeys(("distributed.recv", "distributed.irecv"), in_place("recv", 0, "src", "group")),
    "comm_func.all_reduce": with_result("all_reduce", lambda shape, n: shape),
    "comm_func.all_gather_into_tensor": with_result("all_gather", lambda shape, n: (shape[0] * n, *shape[1:])),
    "comm_func.reduce_scatter_tensor": with_result("reduce_scatter", lambda shape, n: (shape[0] // n, *shape[1:])),
}


class MindSporeFront(MindFront):
    """MindSpore, with the names that it reads itself."""

    calls: ClassVar[Table] = {
        **PYTHON,
        **DATA,
        **BY_HAND,
        **{f"builtins.{name}": number(name) for name in ("float", "int")},
        "builtins.filter": lambda front, of, values: [
            v for v in front.reader.items(values) if front.reader.call(of, [v], {})
        ],
        "set_auto_parallel_context": settings,
        "reset_auto_parallel_context": reset,
        "get_auto_parallel_context": lambda front, key: front.got(get_auto_parallel_context(key)),
        "set_context": lambda front, **kw: set_context(**{k: front.given(v) for k, v in kw.items() if k in SETTINGS}),
        "set_algo_parameters": lambda front, **kw: looked_up("set_algo_parameters")(**front.given(kw)),
        "communication.init": started,
        "management.init": started,
        "mindspore.init": started,
        "init_process_group": started,
        **dict.fromkeys(("get_rank", "get_local_rank"), lambda front, *args, **kw: 0),
        **dict.fromkeys(
            ("get_group_size", "get_local_rank_size", "get_world_size"), lambda front, *args, **kw: front.devices
        ),
        "mindspore.Tensor": tensor,
        "tensor.Tensor": tensor,
        "Parameter": parameter,
        **{name: gradient(name) for name in ("value_and_grad", "grad")},
        **dict.fromkeys(("jit", "ms_function", "jit_class"), jitted),
        "_cell_graph_executor.compile": lambda front, net, *args, **kw: front.ask(net, list(args), {}),
        "Print": lambda front, *args, **kw: lambda *values: None,
        "lazy_inline": lambda front, fn=None, **kw: fn if fn is not None else (lambda of: of),
        **dict.fromkeys(("mindspore.Model", "train.Model", "model.Model"), model),
        **{f"numpy.{name}": filled("float64") for name in ("ones", "zeros", "empty", "full")},
        **{f"numpy.random.{name}": drawn("float64") for name in ("rand", "randn", "random", "uniform", "normal")},
        **{
            f"numpy.random.{name}": lambda front, *args: Name("numpy.random") for name in ("default_rng", "RandomState")
        },
        "numpy.random.randint": drawn("int64"),
        **{f"numpy.{name}": array for name in ("array", "asarray")},
        "numpy.arange": lambda front, *args, dtype=None, **kw: array(
            front, front.reader.items(range(*args[:3])), dtype
        ),
        "initializer": lambda front, *args, **kw: initializer(*front.given(args), **front.given(kw)),
    }
    methods: ClassVar[dict[type, Table]] = {
        **METHODS,
        Cell: dict.fromkeys(
            ("compile", "compile_and_run"), lambda front, of, *args, **kw: front.ask(of, list(args), kw)
        ),
        AutoParallel: {
            **{f"save_{kind}_strategy_file": lambda front, of, *args, **kw: None for kind in ("param", "operator")},
            **{f"load_{kind}_strategy_file": from_file for kind in ("param", "operator")},
            "set_group_ckpt_save_file": lambda front, of, *args, **kw: None,
        },
        Model: {
            **dict.fromkeys(("train", "fit", "build", "infer_train_layout"), trained),
            "predict": predicted,
            "infer_predict_layout": predicted,
            "eval": lambda front, of, *args, **kw: {},
        },
        Arithmetic: {
            "reshape": reshaped,
            "astype": cast,
            **dict.fromkeys(("asnumpy", "numpy", "copy", "set_data"), lambda front, x, *args, **kw: x),
        },
        Instance: {**METHODS[Instance], **DATASET_METHODS},
    }
