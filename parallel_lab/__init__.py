"""parallel_lab: learn and teach distributed training of neural networks, in a notebook, on real processes.

    import parallel_lab as pl
    from parallel_lab import nn, ops, Parameter, Tensor

    plan = pl.compile(net, x, label, loss=nn.MSELoss(), optimizer=opt, device_num=8, dataset_strategy="full_batch")
    print(plan.text(rank=0))
    with pl.Session(plan, net, opt, executor="processes") as session:
        losses = session.train([(x, label)], steps=20)

In a script that is started with `parallel-lab run -n 8 script.py`:

    pl.init()
    pl.Model(net, nn.MSELoss(), opt).train(5, dataset, callbacks=[pl.LossMonitor()])

In a notebook:

    pl.StrategyLab("quickstart", devices=8)  # the last line of a cell: it shows itself
    with pl.WorkerPool(4) as pool:
        pool.run(lambda comm: comm.all_reduce(np.ones(3)))

Words and behaviour are MindSpore's. `import parallel_lab` loads numpy, tensors, operators and layers; compiling,
running, training, files, processes and labs are imported when one of their names is first used (`_LATER`).
"""

from __future__ import annotations

import os
import sys

# the command itself, before an import from where learners' files lie (lab/grading/walls.py)
if sys.argv[1:2] == ["grade"] and (
    os.path.basename(sys.argv[0]).startswith("parallel-lab") or "parallel_lab" in sys.orig_argv
):
    # what `python -m` has imported by now is the current folder's, if it lies there
    for early in {name.partition(".")[0] for name in tuple(sys.modules)} | {"runpy"}:
        in_folder = "-m" in sys.orig_argv and not sys.flags.safe_path and early != __name__
        if in_folder and (os.path.isfile(f"{early}.py") or os.path.isfile(os.path.join(early, "__init__.py"))):
            sys.exit(f"parallel-lab: grade: {early} in this folder runs before the command: start `parallel-lab grade`")
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != os.path.realpath(os.curdir)]

import difflib
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if importlib.util.find_spec("numpy") is None:  # even our errors need it
    hint = "In a page, its folder lacks Pyodide's numpy; elsewhere: pip install numpy."
    raise ImportError(f"parallel_lab: numpy, which computes everything here, could not be loaded. {hint}", name="numpy")

from .base.interrupts import AFTER_IMPORT_S, held

with held(AFTER_IMPORT_S):  # half of numpy, or of the operators, is of no use to the next cell
    from . import nn, ops
from .base.errors import (
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
from .base.hooks import set_catalog, set_from_above
from .base.seeds import get_seed, set_seed
from .base.settings.context import (
    ParallelMode,
    get_algo_parameters,
    get_auto_parallel_context,
    get_compat,
    get_context,
    keep_also,
    reset_algo_parameters,
    reset_auto_parallel_context,
    set_algo_parameters,
    set_auto_parallel_context,
    set_compat,
    set_context,
)
from .base.settings.run_checks import run_checks, set_run_checks
from .base.settings.tables import GRAPH_MODE, PYNATIVE_MODE
from .layout.named_layout import Layout
from .layout.redistribution import plan_redistribution
from .layout.tensor_layout import TensorLayout
from .nn.initializer import initializer
from .nn.sharded_cell import shard
from .nn.tensor.autograd import grad, value_and_grad
from .nn.tensor.parameter import Parameter, ParameterTuple
from .nn.tensor.tensor import Tensor

if TYPE_CHECKING:  # what `_LATER` says, for editors
    from . import train
    from .base.cluster import Link, get_cluster
    from .base.events import Event, EventLog
    from .graph.compiler import compile_steps
    from .graph.dtensor_programs import compile_network as compile
    from .graph.plan import Plan
    from .graph.value_types import check_types, infer_types
    from .lab import widgets
    from .lab.collectives.model import CollectiveStepper
    from .lab.context.model import ContextLab
    from .lab.costs.model import CostLab
    from .lab.experts.model import ExpertLab
    from .lab.explain.explanation import explain
    from .lab.explain.model import ExplainLab
    from .lab.fusion.model import FusionLab
    from .lab.hunt.model import HuntLab
    from .lab.memory.model import MemoryLab
    from .lab.pipeline.model import PipelineLab
    from .lab.recompute.model import RecomputeLab
    from .lab.redistribution.model import RedistributionLab
    from .lab.rosetta.model import RosettaLab
    from .lab.runs.model import RunLab
    from .lab.search.model import SearchLab
    from .lab.shared.lab import pages_of
    from .lab.strategy.model import StrategyLab
    from .lab.widgets import open_lab
    from .layout.device_mesh import DeviceMesh, init_device_mesh
    from .layout.mesh_layout import MeshLayout, Partial, Replicate, Shard
    from .layout.notations import notations
    from .mindspore import _checkpoint as checkpoint, _communication as communication, _dataset as dataset
    from .nn import models
    from .nn.fully_shard import MixedPrecisionPolicy, fully_shard
    from .nn.parallel_styles import (
        ColwiseParallel,
        PrepareModuleInput,
        PrepareModuleOutput,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallel_cross_entropy,
        parallelize_module,
    )
    from .nn.pipeline_stage import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
    from .nn.tensor.dtensor import DTensor, distribute_tensor, dtensor_messages, dtensor_policy, implicit_replication
    from .processes.shm import WorkerPool
    from .run.communicator import Request
    from .run.simulator import Simulator, simulate
    from .train import (
        AutoParallel,
        Callback,
        CheckpointConfig,
        LossMonitor,
        Model,
        ModelCheckpoint,
        ProgressBar,
        TimeMonitor,
        jit,
    )
    from .train.checkpoint import load_checkpoint, load_param_into_net, save_checkpoint
    from .train.communication import create_group, get_group_size, get_rank, init, release
    from .train.reshard import reshard
    from .train.session import Session

# what is imported when it is first used: name -> (module, its name there; "" for the module itself)
_LATER: dict[str, tuple[str, str]] = {
    "compile": ("graph.dtensor_programs", "compile_network"),
    **{
        name: (module, name)
        for module, names in {
            "base.cluster": ("Link", "get_cluster"),
            "base.events": ("Event", "EventLog"),
            "layout.device_mesh": ("DeviceMesh", "init_device_mesh"),
            "layout.mesh_layout": ("MeshLayout", "Partial", "Replicate", "Shard"),
            "layout.notations": ("notations",),
            "nn.fully_shard": ("MixedPrecisionPolicy", "fully_shard"),
            "nn.pipeline_stage": ("PipelineStage", "Schedule1F1B", "ScheduleGPipe", "ScheduleInterleaved1F1B"),
            "nn.parallel_styles": (
                *("ColwiseParallel", "PrepareModuleInput", "PrepareModuleOutput", "RowwiseParallel"),
                *("SequenceParallel", "loss_parallel", "parallel_cross_entropy", "parallelize_module"),
            ),
            "nn.tensor.dtensor": (
                *("DTensor", "distribute_tensor", "dtensor_messages", "dtensor_policy", "implicit_replication"),
            ),
            "graph.compiler": ("compile_steps",),
            "graph.plan": ("Plan",),
            "graph.value_types": ("check_types", "infer_types"),
            "run.communicator": ("Request",),
            "run.simulator": ("Simulator", "simulate"),
            "processes.shm": ("WorkerPool",),
            "train.session": ("Session",),
            "train.reshard": ("reshard",),
            "train.communication": ("create_group", "get_group_size", "get_rank", "init", "release"),
            "train.checkpoint": ("load_checkpoint", "load_param_into_net", "save_checkpoint"),
            "train": (
                "AutoParallel",
                "Callback",
                "CheckpointConfig",
                "LossMonitor",
                "Model",
                "ModelCheckpoint",
                "ProgressBar",
                "TimeMonitor",
                "jit",
            ),
            "lab.strategy.model": ("StrategyLab",),
            "lab.collectives.model": ("CollectiveStepper",),
            "lab.fusion.model": ("FusionLab",),
            "lab.hunt.model": ("HuntLab",),
            "lab.memory.model": ("MemoryLab",),
            "lab.pipeline.model": ("PipelineLab",),
            "lab.recompute.model": ("RecomputeLab",),
            "lab.context.model": ("ContextLab",),
            "lab.costs.model": ("CostLab",),
            "lab.experts.model": ("ExpertLab",),
            "lab.explain.explanation": ("explain",),
            "lab.explain.model": ("ExplainLab",),
            "lab.redistribution.model": ("RedistributionLab",),
            "lab.rosetta.model": ("RosettaLab",),
            "lab.runs.model": ("RunLab",),
            "lab.search.model": ("SearchLab",),
            "lab.shared.lab": ("pages_of",),
            "lab.widgets": ("open_lab",),
        }.items()
        for name in names
    },
    **{path.rpartition(".")[2]: (path, "") for path in ("train", "nn.models", "lab.widgets")},
    # train's own, and what only MindSpore's scripts use
    **{name: (f"mindspore._{name}", "") for name in ("checkpoint", "communication", "dataset")},
}

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
    "PlanError",
    "RankDied",
    "RankRaised",
    "ShapeError",
    "StrategyError",
    "Tensor",
    "TensorLayout",
    "TraceError",
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
    "run_checks",
    "set_algo_parameters",
    "set_auto_parallel_context",
    "set_compat",
    "set_context",
    "set_run_checks",
    "set_seed",
    "shard",
    "value_and_grad",
    *_LATER,
]


def _kept_settings() -> dict[str, Any]:
    from .mindspore._settings import KEPT

    return KEPT


def _load_catalog() -> None:
    with held():
        importlib.import_module(".catalog", __name__)


def _executor() -> Any:
    from .mindspore._executor import cell_graph_executor

    return cell_graph_executor


def _schedule(*what: Any) -> Any:
    from .cost.schedules import make_schedule

    return make_schedule(*what)


def _strategies(path: Any) -> Any:
    from .train.checkpoint.strategy_file import load_strategy

    return load_strategy(path)


def _searched(graph: Any, config: Any) -> Any:
    from .cost.search import search_strategies

    return search_strategies(graph, config)


def _dtensor_ranks(mesh: Any) -> Any:
    with held():
        return importlib.import_module(".processes.dtensor_ranks", __name__).ranks_of(mesh)


def _typed(plan: Any, **how: Any) -> Any:
    return importlib.import_module(".graph.value_types", __name__).check_types(plan, **how)


def _mindspore_name(path: str) -> Any:
    return importlib.import_module(".mindspore._modules", __name__).named(path)


def _live_page(*page: Any) -> str:
    return importlib.import_module(".lab.live", __name__).live_page(*page)


def _lab_widget(lab_type: Any) -> Any:
    return importlib.import_module(".lab.shared.lab_view", __name__).widget_of(lab_type)


def _schedule_names() -> tuple[str, ...]:
    from .cost.schedules import schedule_names

    return schedule_names()


set_catalog(_load_catalog)
set_from_above(
    cell_executor=_executor,
    schedule_maker=_schedule,
    schedule_names=_schedule_names,
    strategy_reader=_strategies,
    strategy_searcher=_searched,
    dtensor_ranks=_dtensor_ranks,
    live_page=_live_page,
    lab_widget=_lab_widget,
    mindspore_name=_mindspore_name,
    type_checker=_typed,
)
keep_also(_kept_settings)  # settings that nothing reads: the facade is loaded when a script sets one


def __getattr__(name: str) -> Any:
    """What `_LATER` lists. Raises AttributeError for other names."""
    if name not in _LATER:
        public = [] if name.startswith("_") else [known for known in __dir__() if not known.startswith("_")]
        near = " or ".join(map(repr, difflib.get_close_matches(name, public)))
        hint = f". Did you mean {near}?" if near else ""
        raise AttributeError(f"module 'parallel_lab' has no attribute {name!r}{hint}", name=name)
    module, inside = _LATER[name]
    with held():
        found: Any = importlib.import_module(f".{module}", __name__)
    if inside:
        found = getattr(found, inside)
    globals()[name] = found  # asked once
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


def load_ipython_extension(ipython) -> None:
    """`%load_ext parallel_lab`: adds the cell magic `%%ranks`."""
    from .cli.magics import load

    load(ipython)
