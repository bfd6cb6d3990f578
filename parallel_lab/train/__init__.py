"""Training: `Model`, its callbacks and metrics; networks and functions that run compiled on the ranks of a world."""

from ..nn.cell import ShardedCell, shard
from .auto_parallel import AutoParallel
from .callbacks import (
    Callback,
    CallbackList,
    CallbackParams,
    History,
    LambdaCallback,
    LossMonitor,
    RunContext,
    SummaryCollector,
    TimeMonitor,
)
from .checkpoint_callback import CheckpointConfig, ModelCheckpoint
from .compiled import CompiledFunction
from .engine import layouts, make_eval_step, make_predict_step, make_train_step
from .metrics import (
    F1,
    MAE,
    MSE,
    Accuracy,
    Fbeta,
    Loss,
    Metric,
    Precision,
    Recall,
    Top1CategoricalAccuracy,
    Top5CategoricalAccuracy,
    TopKCategoricalAccuracy,
    get_metric_fn,
    get_metrics,
    names,
    rearrange_inputs,
)
from .model import Model
from .plateau import EarlyStopping, LearningRateScheduler, ReduceLROnPlateau
from .progress import ProgressBar
from .run_cell import jit

__all__ = [
    "F1",
    "MAE",
    "MSE",
    "Accuracy",
    "AutoParallel",
    "Callback",
    "CallbackList",
    "CallbackParams",
    "CheckpointConfig",
    "CompiledFunction",
    "EarlyStopping",
    "Fbeta",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "Loss",
    "LossMonitor",
    "Metric",
    "Model",
    "ModelCheckpoint",
    "Precision",
    "ProgressBar",
    "Recall",
    "ReduceLROnPlateau",
    "RunContext",
    "ShardedCell",
    "SummaryCollector",
    "TimeMonitor",
    "Top1CategoricalAccuracy",
    "Top5CategoricalAccuracy",
    "TopKCategoricalAccuracy",
    "get_metric_fn",
    "get_metrics",
    "jit",
    "layouts",
    "make_eval_step",
    "make_predict_step",
    "make_train_step",
    "names",
    "rearrange_inputs",
    "shard",
]
