"""parallel_lab: learn and teach distributed training of neural networks, in a notebook, on real processes.

    import parallel_lab as pl
    from parallel_lab import nn, ops, Parameter, Tensor

    plan = pl.compile(net, x, label, loss=nn.MSELoss(), optimizer=opt, device_num=8, dataset_strategy="full_batch")
    print(plan.text(rank=0))
    with pl.Session(plan, net, opt, executor="processes") as session:
        losses = session.train([(x, label)], steps=20)

    pl.init()                                                       # in a script under `parallel-lab run -n 8 script.py`
    pl.Model(net, nn.MSELoss(), opt).train(5, dataset, callbacks=[pl.LossMonitor()])

Words and behaviour are MindSpore's. `import parallel_lab` loads numpy, tensors, operators and layers; compiling, running, training and files are
imported when one of their names is first used (`_LATER`), widgets, plots and processes where they are needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

from . import nn, ops
from .autograd import grad, value_and_grad
from .context import (
    GRAPH_MODE,
    PYNATIVE_MODE,
    ParallelMode,
    get_algo_parameters,
    get_auto_parallel_context,
    get_compat,
    get_context,
    get_seed,
    reset_algo_parameters,
    reset_auto_parallel_context,
    set_algo_parameters,
    set_auto_parallel_context,
    set_compat,
    set_context,
    set_seed,
)
from .errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    ContextError,
    DeadlockError,
    LayoutError,
    ParallelLabError,
    PlanError,
    RankDied,
    RankRaised,
    ShapeError,
    StrategyError,
    TraceError,
)
from .layout import TensorLayout
from .named_layout import Layout
from .nn.initializer import initializer
from .nn.sharded import shard
from .redistribution import plan_redistribution
from .tensor import Parameter, ParameterTuple, Tensor

if TYPE_CHECKING:  # what `_LATER` says, for editors
    from . import checkpoint, communication, dataset, models, train
    from .checkpoint import load_checkpoint, load_param_into_net, save_checkpoint
    from .communication import create_group, get_group_size, get_rank, init, release
    from .compiler import compile_network as compile, compile_steps
    from .plan import Plan
    from .run.communicator import Request
    from .run.session import Session
    from .run.simulator import Simulator, simulate
    from .train import AutoParallel, Callback, CheckpointConfig, LossMonitor, Model, ModelCheckpoint, ProgressBar, TimeMonitor, jit

# what is imported when it is first asked for: name -> (module, its name there; "" for the module itself)
_LATER: dict[str, tuple[str, str]] = {
    "compile": ("compiler", "compile_network"),
    **{
        name: (module, name)
        for module, names in {
            "compiler": ("compile_steps",),
            "plan": ("Plan",),
            "run.communicator": ("Request",),
            "run.session": ("Session",),
            "run.simulator": ("Simulator", "simulate"),
            "communication": ("create_group", "get_group_size", "get_rank", "init", "release"),
            "checkpoint": ("load_checkpoint", "load_param_into_net", "save_checkpoint"),
            "train": ("AutoParallel", "Callback", "CheckpointConfig", "LossMonitor", "Model", "ModelCheckpoint", "ProgressBar", "TimeMonitor", "jit"),
        }.items()
        for name in names
    },
    **{module: (module, "") for module in ("checkpoint", "communication", "dataset", "models", "train")},
}

__all__ = [
    "GRAPH_MODE",
    "PYNATIVE_MODE",
    "AutoParallel",
    "Callback",
    "CheckpointConfig",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "ContextError",
    "DeadlockError",
    "Layout",
    "LayoutError",
    "LossMonitor",
    "Model",
    "ModelCheckpoint",
    "ParallelLabError",
    "ParallelMode",
    "Parameter",
    "ParameterTuple",
    "Plan",
    "PlanError",
    "ProgressBar",
    "RankDied",
    "RankRaised",
    "Request",
    "Session",
    "ShapeError",
    "Simulator",
    "StrategyError",
    "Tensor",
    "TensorLayout",
    "TimeMonitor",
    "TraceError",
    "checkpoint",
    "communication",
    "compile",
    "compile_steps",
    "create_group",
    "dataset",
    "get_algo_parameters",
    "get_auto_parallel_context",
    "get_compat",
    "get_context",
    "get_group_size",
    "get_rank",
    "get_seed",
    "grad",
    "init",
    "initializer",
    "jit",
    "load_checkpoint",
    "load_param_into_net",
    "models",
    "nn",
    "ops",
    "plan_redistribution",
    "release",
    "reset_algo_parameters",
    "reset_auto_parallel_context",
    "save_checkpoint",
    "set_algo_parameters",
    "set_auto_parallel_context",
    "set_compat",
    "set_context",
    "set_seed",
    "shard",
    "simulate",
    "train",
    "value_and_grad",
]


def __getattr__(name: str) -> Any:
    """What `_LATER` lists. Raises AttributeError for other names."""
    if name not in _LATER:
        raise AttributeError(f"module 'parallel_lab' has no attribute {name!r}")
    module, inside = _LATER[name]
    found: Any = importlib.import_module(f".{module}", __name__)
    if inside:
        found = getattr(found, inside)
    globals()[name] = found  # asked once
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


def load_ipython_extension(ipython) -> None:
    """`%load_ext parallel_lab`: adds the cell magic `%%ranks`."""
    from .magics import load

    load(ipython)
