"""parallel_lab: learn and teach distributed training of neural networks, in a notebook, on real processes.

    import parallel_lab as pl
    from parallel_lab import nn, ops, Parameter, Tensor

    plan = pl.compile(net, x, label, loss=nn.MSELoss(), optimizer=opt, device_num=8, dataset_strategy="full_batch")
    print(plan.text(rank=0))
    with pl.Session(plan, net, opt, executor="processes") as session:
        losses = session.train([(x, label)], steps=20)

Words and behaviour are MindSpore's. `import parallel_lab` loads numpy and little else; widgets, plots and processes are imported where they are used.
"""

from __future__ import annotations

__version__ = "0.1.0"

from . import nn, ops
from .autograd import grad, value_and_grad
from .compiler import (
    compile_network as compile,
    compile_steps,
)
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
from .plan import Plan
from .redistribution import plan_redistribution
from .run.communicator import Request
from .run.session import Session
from .run.simulator import Simulator, simulate
from .tensor import Parameter, ParameterTuple, Tensor

__all__ = [
    "GRAPH_MODE",
    "PYNATIVE_MODE",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "ContextError",
    "DeadlockError",
    "Layout",
    "LayoutError",
    "ParallelLabError",
    "ParallelMode",
    "Parameter",
    "ParameterTuple",
    "Plan",
    "PlanError",
    "RankDied",
    "RankRaised",
    "Request",
    "Session",
    "ShapeError",
    "Simulator",
    "StrategyError",
    "Tensor",
    "TensorLayout",
    "TraceError",
    "compile",
    "compile_steps",
    "get_algo_parameters",
    "get_auto_parallel_context",
    "get_compat",
    "get_context",
    "get_seed",
    "grad",
    "initializer",
    "nn",
    "ops",
    "plan_redistribution",
    "reset_algo_parameters",
    "reset_auto_parallel_context",
    "set_algo_parameters",
    "set_auto_parallel_context",
    "set_compat",
    "set_context",
    "set_seed",
    "simulate",
    "value_and_grad",
]


def load_ipython_extension(ipython) -> None:
    """`%load_ext parallel_lab`: adds the cell magic `%%ranks`."""
    from .magics import load

    load(ipython)
